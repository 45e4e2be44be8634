"""A file of the user's own in LEAF's format, whose examples name their user: .json or .jsonl, also compressed."""

from __future__ import annotations

from pathlib import Path

from fedray.config import DataConfig
from fedray.data import leaf
from fedray.data.readers import Dataset
from fedray.data.records import DatasetRecord, Protocol


def load(cfg: DataConfig, classes: int | None = None) -> Dataset:
    """The examples of the file, with as many classes as occur in it."""
    return leaf.load([Path(cfg.name)], None, cfg.embedding, classes)


DATASET = DatasetRecord(
    summary="your file: .json as LEAF's; .jsonl with a user, text and label per line",
    load=load,
    protocol=Protocol(network="auto"),
    protocols={"natural": Protocol(None, None, "auto")},  # every user is a client
    partition="natural",
    suffixes=leaf.SUFFIXES,
)
