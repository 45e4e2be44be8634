"""Damaged files: every reader answers with a value or one FedRayError, soon; python -m tests.fuzz plays many."""
