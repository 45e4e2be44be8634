"""Tensors and trees of them: random streams, files, averages, optimizers. Imports only fedray.types."""
