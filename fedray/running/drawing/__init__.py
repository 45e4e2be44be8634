"""Figures of a finished run, drawn only from the files in its folder."""
