"""The benchmark of client selection calls the stages as a round does, and finds one HIP in four ways."""

import re

import torch

from fedray.federate.device.cpu import numerics
from tests.benchmarks import selection


def test_all_ways_to_hip_agree(capsys):
    with numerics():
        selection.measure(selection.world(clients=4, particles=3, size=100, dtype=torch.float64))
    apart = re.findall(r"HIPs within (\S+)", capsys.readouterr().out)
    assert len(apart) == 3
    assert all(float(number) < 1e-12 for number in apart)
