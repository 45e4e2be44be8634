"""Sent140: tweets with the sentiment of their emoticon, by user (LEAF)."""

from __future__ import annotations

from fedray.config import DataConfig
from fedray.data import leaf
from fedray.data.readers import Dataset
from fedray.data.records import DatasetRecord, Protocol


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """Word numbers x int32 [N, 25] with their vectors, y [N] in 0..1, and the users."""
    return leaf.load(leaf.files(cfg), 2, cfg.embedding)


DATASET = DatasetRecord(
    summary="tweets and their sentiment, by user (LEAF)",
    load=load,
    protocol=Protocol(10, 4, "lstm", held_out=0.1),  # pFedBreD; tested on the share that LEAF keeps for it
    partition="natural",
)
