"""A finished run that answers requests."""
