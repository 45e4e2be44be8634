"""The generator and the precision are part of an experiment, and what was chosen is written down."""

import pytest
import torch

from fedray.arrays import trees
from fedray.config import decisive, fingerprint, override
from fedray.federate.device import host
from fedray.federate.device.numbers import multiplying, on_device, set_precision
from fedray.federate.in_process import LocalFederation
from tests.helpers import differing, experiment, small_plan


def test_auto_is_sfc64_on_a_cpu_and_philox_on_a_gpu_and_a_choice_stays():
    plan = small_plan()
    assert plan.cfg.noise_generator == "auto"
    assert on_device(plan, False).cfg.noise_generator == "sfc64"
    assert on_device(plan, True).cfg.noise_generator == "philox"
    for name in ("sfc64", "philox"):
        for gpu in (False, True):
            assert on_device(small_plan(settings={"noise_generator": name}), gpu).cfg.noise_generator == name


def test_a_federation_says_which_generator_it_uses():
    assert LocalFederation(small_plan()).plan.cfg.noise_generator == "sfc64"


def test_what_changes_the_numbers_changes_the_fingerprint_and_nothing_else_does():
    cfg = experiment("pfedbayes")
    assert {"noise_generator", "precision"}.isdisjoint(decisive(cfg))  # as of versions without these settings
    assert fingerprint(override(cfg, {"noise_generator": "sfc64"})) == fingerprint(cfg)
    others = [{"noise_generator": "philox"}, {"precision": "tf32"}]
    assert len({fingerprint(cfg), *(fingerprint(override(cfg, change)) for change in others)}) == 3


def test_auto_on_a_cpu_is_sfc64_to_the_bit():
    def played(settings):
        federation = LocalFederation(small_plan("pfedbayes", {"local_steps": 2} | settings))
        list(federation)
        return federation.snapshot()

    assert differing(played({}), played({"noise_generator": "sfc64"})) == []
    assert differing(played({}), played({"noise_generator": "philox"})) != []
    assert differing(played({}), played({"precision": "tf32"})) == []  # CPUs always use float32


def products():
    backends = torch.backends
    return [x.allow_tf32 for x in (backends.cuda.matmul, backends.cudnn)]


def test_no_product_of_a_gpu_is_rounded_unless_that_was_asked_for():
    before = products()
    with multiplying("float32"):
        assert products() == [False] * 2
        with multiplying("tf32"):
            assert products() == [True] * 2
        assert products() == [False] * 2
    assert products() == before
    with pytest.raises(KeyError), multiplying("tf32"):
        raise KeyError
    assert products() == before


def test_the_precision_of_a_process_stays():
    with multiplying("float32"):
        set_precision("tf32")
        assert products() == [True] * 2


def test_the_compiler_can_read_the_precision():
    """It asks for the older switches, and raises where they contradict the newer ones."""
    with multiplying("float32"):
        assert not torch._C._get_cudnn_allow_tf32()
        assert not torch._C._get_cublas_allow_tf32()


def test_a_tree_that_leaves_a_cpu_is_the_tree():
    tree = (torch.arange(3.0), (7, None, torch.ones(2)))
    there = host.leaving(tree)()
    assert differing(trees.to_torch(there[0]), tree[0]) == []
    assert there[1][:2] == (7, None)
    assert host.moved(tree, "cpu")[0] is tree[0]  # no copy
