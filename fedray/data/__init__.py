"""Datasets, the units of their inputs, and how their examples are split among clients."""
