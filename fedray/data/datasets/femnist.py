"""FEMNIST: handwritten digits and letters of 28 x 28 pixels, by writer (LEAF)."""

from __future__ import annotations

from fedray.config import DataConfig
from fedray.data import leaf
from fedray.data.readers import Dataset
from fedray.data.records import DatasetRecord, Protocol


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """x float32 [N, 1, 28, 28] in [0, 1], y [N] in 0..61, and the writers as users."""
    return leaf.load(leaf.files(cfg), 62, cfg.embedding)


DATASET = DatasetRecord(
    summary="handwritten digits and letters, 28 x 28 pixels, by writer (LEAF)",
    load=load,
    shape=(1, 28, 28),
    classes=62,
    protocol=Protocol(198, 20, "dnn", scaling="unit", held_out=0.1),  # pFedBreD; the share that LEAF keeps for testing
    floored=True,
    partition="natural",
)
