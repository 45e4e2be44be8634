"""What a sweep may search: the command line's domains, and what is refused."""

import numpy as np
import pytest

from fedray.algorithms.bayesian.pfedbayes import PFedBayes
from fedray.algorithms.mixtures.fedamp import FedAMP
from fedray.config import Experiment
from fedray.types import Choice, FedRayError, LogUniform, Uniform
from tests.helpers import ALGORITHMS
from tune.__main__ import read
from tune.space import Grid, make, show, to_tune

BASE = Experiment(algorithm=PFedBayes())


@pytest.mark.parametrize(
    ("entry", "path", "domain"),
    [
        ("zeta=loguniform(0.5,20)", "algorithm.zeta", LogUniform(0.5, 20.0)),
        ("beta = uniform(0.1, 1)", "algorithm.beta", Uniform(0.1, 1.0)),
        ("rho-init=choice(-1,-2,-2.5)", "algorithm.rho_init", Choice((-1, -2, -2.5))),
        ("average=grid(rho,sigma)", "algorithm.average", Grid(("rho", "sigma"))),
        ("local_steps=choice(10,20)", "local_steps", Choice((10, 20))),
        ("data.size=choice(small,medium)", "data.size", Choice(("small", "medium"))),
        ("model.hidden=choice((50,),(100,20))", "model.hidden", Choice(((50,), (100, 20)))),
    ],
)
def test_an_entry_names_a_setting_and_its_domain(entry, path, domain):
    assert make([entry], {}, BASE) == {path: domain}
    name, _, written = entry.replace(" ", "").partition("=")
    assert show(domain).replace(" ", "") == written
    assert make([f"{name}={show(domain)}"], {}, BASE) == {path: domain}


def test_a_list_is_a_tuple_for_configurations_are_counted_by_their_values():
    assert make(["model.hidden=grid([50],[100])"], {}, BASE) == {"model.hidden": Grid(((50,), (100,)))}


def test_a_real_setting_that_is_left_open_has_a_range():
    """What None stands for says nothing of the type."""
    assert make(["data.test_fraction=uniform(0.1,0.3)"], {}, BASE) == {"data.test_fraction": Uniform(0.1, 0.3)}
    own = make(["alpha=loguniform(0.01,1)"], {}, Experiment(algorithm=FedAMP()))
    assert own == {"algorithm.alpha": LogUniform(0.01, 1.0)}
    with pytest.raises(FedRayError, match="clients takes no fractions"):
        make(["clients=uniform(2,5)"], {}, BASE)


def test_without_entries_the_space_is_the_algorithms_own():
    assert make([], {"zeta": LogUniform(1, 2)}, BASE) == {"algorithm.zeta": LogUniform(1, 2)}
    with pytest.raises(FedRayError, match=r"--space: the algorithm names nothing"):
        make([], {}, BASE)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("zta=uniform(1,2)", "no such setting.*zeta"),
        ("data.nme=choice(a)", "no such setting"),
        ("zeta=uniform(2,1)", "empty range; LOW < HIGH"),
        ("zeta=uniform(1,1)", "empty range; LOW < HIGH"),
        ("zeta=loguniform(0,1)", "0 has no logarithm; 0 < LOW"),
        ("zeta=choice()", "empty range"),
        ("zeta=grid(0.1,2,0.10)", "a value is given twice"),
        ("zeta=uniform(1)", "takes two numbers"),
        ("zeta=uniform(a,b)", "takes two numbers"),
        ("zeta=normal(0,1)", "cannot be read"),
        ("zeta", "cannot be read"),
        ("zeta=choice(1,-1)", "zeta -1"),
        ("zeta=choice(high)", "'high' is not of the kind of 10.0"),
        ("average=choice(median)", "median"),
        ("local_steps=uniform(1,9)", "takes no fractions"),
        ("rounds=choice(1,2)", "--max-rounds"),
        ("seed=choice(1,2)", "--seeds"),
    ],
)
def test_bad_entries_are_refused_with_the_reason(entry, reason):
    with pytest.raises(FedRayError, match=f"--space {entry.split('=')[0]}.*{reason}"):
        make([entry], {}, BASE)


def test_a_setting_is_given_once():
    with pytest.raises(FedRayError, match="twice"):
        make(["zeta=choice(1)", "zeta=choice(2)"], {}, BASE)


def test_draws_stay_within_and_follow_their_law():
    np.random.seed(0)
    draws = np.log([to_tune(LogUniform(0.5, 20)).sample() for _ in range(2000)])
    assert np.log(0.5) <= draws.min() < draws.max() <= np.log(20)
    assert abs(draws.mean() - (np.log(0.5) + np.log(20)) / 2) < 4 * np.log(40) / 12**0.5 / 2000**0.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_setting_of_a_method_has_the_name_of_an_option_of_sweeps(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request, _ = read([name, "--samples", "3", "--metric-mode", "max"])
    assert (request.sweep.samples, request.sweep.mode) == (3, "max")
