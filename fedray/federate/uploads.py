"""Checks of what clients send to the server, and the size of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedray.arrays import trees
from fedray.federate.messages import Failure, TrainReply
from fedray.federate.plan import Plan


def bad_rows(stacked: Any) -> dict[int, str]:
    """Rows of stacked uploads or states [K, ...] that hold NaN or infinity, and the first field in which they do."""
    found: dict[int, str] = {}
    for name, values in trees.named_leaves(stacked):
        sums = values.flatten(1).sum(1) if values.ndim > 1 else values
        if torch.isfinite(sums).all():  # a third of the cost of testing every element
            continue
        bad = ~torch.isfinite(values.reshape(len(values), -1)).all(1)
        found = dict.fromkeys(bad.nonzero().flatten().tolist(), name) | found
    return found


def not_finite(round_number: int, client: int, field: str, what: str = "upload") -> Failure:
    """That a client's upload, or what it keeps, holds NaN or infinity."""
    reason = f"its {what} {field!r} is not finite"
    return Failure(round_number, f"client {client}", "not finite", reason, stage="finish")


def sound(reply: TrainReply) -> TrainReply:
    """The reply without the clients whose upload is not finite, which join its failures."""
    bad = bad_rows(reply.up)
    if not bad:
        return reply
    failures = tuple(not_finite(reply.round, reply.ids[row], field) for row, field in sorted(bad.items()))
    good = [row for row in range(len(reply.ids)) if row not in bad]
    return rows(reply, good)._replace(failures=reply.failures + failures)


def rows(reply: TrainReply, index: Sequence[int]) -> TrainReply:
    """The reply of some of its clients alone, without failures."""
    parts = (reply.up, reply.examples, reply.info, reply.largest)
    up, examples, info, largest = trees.rows(parts, index) if index else (None, None, None, None)
    ids = tuple(reply.ids[row] for row in index)
    return TrainReply(reply.round, ids, up, examples, info, (), largest, reply.up_bytes)


def payload_bytes(tree: Any, plan: Plan) -> int:
    """Bytes of the parameters in a message; padding is not counted, as no real message would hold it."""
    size = plan.model.size
    padded = plan.model.padded
    total = 0
    for leaf in trees.leaves(tree):
        whole = leaf.numel() * leaf.element_size()
        total += whole * size // padded if leaf.ndim > 0 and leaf.shape[-1] == padded else whole
    return total
