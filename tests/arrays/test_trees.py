"""States are stacked, cut, replaced and moved without a change of a value or of an argument."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedray.arrays import trees
from tests.helpers import differing


class Inner(NamedTuple):
    mu: Tensor
    t: Tensor


class Outer(NamedTuple):
    q: Inner
    pair: tuple[Tensor, Tensor]


def tree(k):
    return Outer(Inner(torch.arange(4.0) + k, torch.tensor(k)), (torch.zeros(2, 1) + k, torch.zeros(0)))


STACK = trees.stack([tree(k) for k in range(5)])


def test_names_are_joined_by_dots():
    assert [name for name, _ in trees.named_leaves(STACK)] == ["q.mu", "q.t", "pair.0", "pair.1"]
    assert [leaf.shape[0] for leaf in trees.leaves(STACK)] == [5] * 4


def test_a_row_of_a_stack_is_the_tree_that_was_stacked():
    assert all(differing(trees.row(STACK, k), tree(k)) == [] for k in range(5))
    assert isinstance(trees.row(STACK, 0).q, Inner)


@pytest.mark.parametrize(
    ("index", "shared"),
    [([1, 2, 3], True), ([4], True), ([0, 2, 3], False), ([3, 2], False), ([0, 2, 1, 3], False)],
)
def test_rows_are_copied_only_if_they_are_not_consecutive(index, shared):
    taken = trees.rows(STACK, index)
    assert differing(taken, trees.stack([tree(k) for k in index])) == []
    assert (taken.q.mu.data_ptr() == STACK.q.mu[index[0]].data_ptr()) is shared


def test_concatenation_undoes_cutting():
    parts = [trees.rows(STACK, index) for index in ([0, 1], [2], [3, 4])]
    assert differing(trees.concatenate(parts), STACK) == []
    assert trees.concatenate([STACK]) is STACK


def test_a_journey_through_numpy_changes_nothing_and_ends_in_memory_of_its_own():
    arrays = trees.to_numpy(STACK)
    assert all(isinstance(leaf, np.ndarray) for leaf in trees.leaves(arrays))
    arrived = trees.to_torch(arrays)
    assert differing(arrived, STACK) == []
    arrived.q.mu.zero_()
    assert arrays.q.mu.any()
    assert STACK.q.mu.any()


def test_numpy_scalars_become_tensors_and_strangers_pass():
    assert torch.equal(trees.to_torch(np.float32(2)), torch.tensor(2.0))
    assert trees.to_torch(trees.to_numpy((None, 3))) == (None, 3)


def test_an_alias_is_the_same_memory_even_if_it_is_read_only():
    arrays = trees.to_numpy(STACK)
    arrays.q.mu.flags.writeable = False
    seen = trees.alias((arrays, None))[0]
    assert differing(seen, STACK) == []
    assert seen.q.mu.data_ptr() == arrays.q.mu.ctypes.data
