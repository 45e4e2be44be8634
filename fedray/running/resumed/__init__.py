"""A run that goes on: whether it may as it is asked to, and from what it starts."""
