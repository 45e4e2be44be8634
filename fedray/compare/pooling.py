"""What the files of several runs hold together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedray.running.drawing.figure_style import Rows, column


def pool(tables: Sequence[Rows], kind: str) -> list[dict[str, float]]:
    """The confidence bins of one kind of model, pooled over runs; empty if nothing was predicted."""
    rows = [row for table in tables for row in table if row["model"] == kind]
    pooled = [_pooled_bin(rows, number) for number in sorted({int(row["bin"]) for row in rows})]
    return pooled if any(row["count"] for row in pooled) else []


def _pooled_bin(rows: Rows, number: int) -> dict[str, float]:
    """Count, mean confidence and accuracy over all examples that several runs have in one bin."""
    filled = [row for row in rows if int(row["bin"]) == number and float(row["count"])]
    count = sum(float(row["count"]) for row in filled)
    confidence = sum(float(row["count"]) * float(row["confidence"]) for row in filled)
    accuracy = sum(float(row["count"]) * float(row["accuracy"]) for row in filled)
    examples = count or 1  # the means of an empty bin are 0
    return {"bin": number, "count": count, "confidence": confidence / examples, "accuracy": accuracy / examples}


def mean_rows(rows: Rows, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of several runs as one per value of the ``keys``, in the order of appearance; all other columns averaged."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, values, strict=True))
        | {name: float(column(same, name).mean()) for name in same[0] if name not in (*keys, "model")}
        for values, same in groups.items()
    ]
