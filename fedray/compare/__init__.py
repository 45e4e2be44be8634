"""Tables and figures of finished runs, beside the published figures: python -m fedray.compare."""
