"""States as files: what an older version wrote can still be read where it is only read."""

from typing import NamedTuple

import pytest
import torch

from fedray.arrays.tensor_files import load_tree, pack, save_tree, unpack
from fedray.types import FedRayError
from tests.helpers import differing


class Old(NamedTuple):
    x: torch.Tensor
    clients: torch.Tensor


class New(NamedTuple):
    x: torch.Tensor


OLD = Old(torch.arange(3.0), torch.tensor(6.0))
TEMPLATE = New(torch.zeros(3))


def test_a_field_that_a_state_no_longer_has_is_ignored_in_a_result(tmp_path):
    save_tree(tmp_path / "global.safetensors", OLD)
    assert differing(load_tree(tmp_path / "global.safetensors", TEMPLATE), New(OLD.x)) == []


def test_and_refused_in_a_checkpoint():
    with pytest.raises(ValueError, match=r"expected: clients$"):
        unpack(pack(OLD), TEMPLATE)


@pytest.mark.parametrize(("template", "name"), [(OLD, "clients"), (New(torch.zeros(4)), "x")])
def test_a_field_that_is_missing_or_of_another_shape_is_refused(tmp_path, template, name):
    save_tree(tmp_path / "global.safetensors", TEMPLATE)
    with pytest.raises(FedRayError, match=f"expected: {name}"):
        load_tree(tmp_path / "global.safetensors", template)
