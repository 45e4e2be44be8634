"""Tables and figures of finished runs, beside published results: python -m fedray.compare."""
