"""Named studies: which experiments they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray import registry
from fedray.config import Experiment, fingerprint, flatten, override, to_dict
from fedray.federate.planning import refusal, resolve
from fedray.studies import study as study_module
from fedray.studies.__main__ import parse
from fedray.studies.agenda import plan_runs
from fedray.studies.named import STUDIES


def settings(cfg: Experiment) -> dict:
    return flatten(to_dict(cfg))


def run_names(*argv: str) -> list[str]:
    return [run.name for run in plan_runs(*parse(argv)).runs]


def test_help_lists_the_studies_in_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] and line.split()[0] in STUDIES]
    assert [line.split()[0] for line in shown] == list(STUDIES)
    assert len({line.index((STUDIES[line.split()[0]].__doc__ or "").splitlines()[0]) for line in shown}) == 1


def test_table2_holds_the_rows_of_the_paper() -> None:
    cells = STUDIES["table2"]()
    algorithms = [cell.experiment.algorithm for cell in cells]
    rows = [(a.rho_init, a.zeta, 1000 * a.lr_personal, 1000 * a.lr_global) for a in algorithms]
    rates = [(1, 1), (1, 5), (5, 1), (5, 5)]
    paper = {(rho, 10, *pair) for rho in (-1, -2, -3) for pair in rates}
    paper |= {(-1.5, 10, 1, 1), (-2.5, 10, 1, 1)} | {(-2.5, zeta, 1, 1) for zeta in (0.5, 1, 5, 20)}
    assert len(rows) == len(paper) == 18
    assert set(rows) == paper


@pytest.mark.parametrize(("axis", "size"), [("zeta", 5), ("rho_init", 5)])
def test_a_series_of_table2_changes_one_setting_of_the_base(axis: str, size: int) -> None:
    cells = [cell for cell in STUDIES["table2"]() if axis in cell.tags]
    start = settings(cells[0].experiment)
    assert cells[0].name == "base"
    assert (start["data.name"], start["data.size"], start["rounds"]) == ("mnist", "medium", 800)
    for cell in cells[1:]:
        values = settings(cell.experiment)
        assert [name for name in values if values[name] != start[name]] == [f"algorithm.{axis}"]
    assert len({settings(cell.experiment)[f"algorithm.{axis}"] for cell in cells}) == len(cells) == size


@pytest.mark.parametrize(
    "name", ["table1-mnist", "table1-fmnist", "table1-cifar10", "equal-steps-mnist", "equal-steps-fmnist"]
)
def test_such_a_study_holds_every_algorithm_at_every_size(name: str) -> None:
    cells = STUDIES[name]()
    found = {(registry.algorithm_name(c.experiment.algorithm), c.experiment.data.size) for c in cells}
    assert found == {(a, size) for a in registry.algorithms() for size in ("small", "medium", "large")}
    assert len(cells) == len(found)
    prox = next(c.experiment.algorithm for c in cells if c.name == "fedprox-large")
    assert (prox.lr, prox.mu) == (0.01, 0.001)


@pytest.mark.parametrize("name", STUDIES)
def test_cells_have_names_for_files_and_experiments_that_differ(name: str) -> None:
    cells = STUDIES[name]()
    assert all(Path(cell.name).name == cell.name and "'" not in cell.name for cell in cells)
    assert len({cell.name for cell in cells}) == len({fingerprint(resolve(cell.experiment)) for cell in cells})
    assert (STUDIES[name].__doc__ or "").strip().endswith(".")


def test_all_methods_of_an_uncertainty_study_have_one_budget_and_end_with_the_report() -> None:
    for name, shard in (("uncertainty-digits", 35), ("uncertainty-mnist", 250)):
        study, options = parse([name])
        runs = plan_runs(study, options).runs
        assert len(runs) == 15
        for planned in runs:
            cfg = planned.experiment
            steps = 5 if planned.cell in ("pfedbayes", "bpfed") else 1  # of the posterior, on a minibatch
            assert (cfg.local_steps * steps, cfg.batch_size, cfg.rounds) == (100, 50, 20)
            assert study_module.request(study, planned, options).execution.uncertainty
            if planned.cell == "fedavg+ft":
                assert cfg.algorithm.ft == -(-shard // cfg.batch_size)  # an epoch


@pytest.mark.parametrize(
    ("study", "clients", "particles"),
    [
        ("selection", 30, 6),
        ("selection-120", 120, 6),
        ("selection-mnist", 27, 20),
        ("selection-mnist-120", 120, 20),
        ("selection-digits", 30, 6),
    ],
)
def test_selection_is_compared_by_four_policies_over_five_seeds(study: str, clients: int, particles: int) -> None:
    policies = ["round_robin", "uniform", "ksd", "hip"]
    assert run_names(study) == [f"{policy}-s{seed}" for seed in range(5) for policy in policies]
    assert run_names(study, "--seeds", "1", "--only", "hip") == ["hip-s0"]
    cells = STUDIES[study]()
    for cell in cells:
        cfg = resolve(cell.experiment)
        assert (cfg.selection, cfg.clients, cfg.clients_per_round, cfg.rounds) == (cell.name, clients, 1, 100)
        assert (cfg.algorithm.mode, cfg.algorithm.particles, cfg.local_steps) == ("serial", particles, 10)
        other = [name for name, value in settings(cfg).items() if value != settings(resolve(cells[0].experiment))[name]]
        assert other == ([] if cell is cells[0] else ["selection"])
    assert settings(resolve(STUDIES["selection"]()[0].experiment))["data.partition"] == "ratio"


def test_the_uci_study_has_both_controls_beside_the_methods_with_the_same_data_and_budget() -> None:
    """A control takes as many gradient steps as pFedBayes takes of a client's posterior."""
    cells = {cell.tags: resolve(cell.experiment) for cell in STUDIES["uci"]()}
    tables = {table for _, table in cells}
    assert tables == set(registry.datasets()["uci"].tables)
    for table in tables:
        bayes = cells["pfedbayes", table]
        assert bayes.data.partition == "iid"
        for control in ("local", "pooled"):
            cfg = cells[control, table]
            assert cfg.algorithm.posterior == "gaussian"
            assert (cfg.data, cfg.model, cfg.rounds) == (bayes.data, bayes.model, bayes.rounds)
            assert (cfg.batch_size, cfg.predict_samples) == (bayes.batch_size, bayes.predict_samples)
            assert cfg.local_steps == bayes.local_steps * bayes.algorithm.personal_steps
        assert bayes.predict_samples == cells["dsvgd", table].algorithm.particles  # as many models in every mixture


PRINTED = {"selection-printed": 30, "selection-printed-120": 120, "selection-printed-mnist": 27,
           "selection-printed-mnist-120": 120}  # fmt: skip


@pytest.mark.parametrize("study", PRINTED)
def test_the_printed_studies_are_the_papers_text(study: str) -> None:
    """Section IV-A: AdaGrad, h = med²/log M, particles from the prior, λ = 0.55, L = 10, α = 1; eqs. 17 and 24."""
    cells = {cell.name: resolve(cell.experiment) for cell in STUDIES[study]()}
    assert list(cells) == ["round_robin", "uniform", "ksd", "hip", "parallel"]
    for name, cfg in cells.items():
        own = cfg.algorithm
        assert (own.rule, own.bandwidth, own.start, own.kde_width, own.temperature) == (
            "adagrad", "paper", "prior", 0.55, 1.0,
        )  # fmt: skip
        assert (own.sites, own.hip, own.hip_offset, own.ksd, own.score_examples) == (
            "kde_distill", "paper", True, "v", 0,
        )  # fmt: skip
        assert (cfg.local_steps, cfg.selection_epsilon, cfg.clients) == (10, 0.0, PRINTED[study])
        parallel = name == "parallel"
        assert (own.mode, own.merge) == (("parallel", "kde") if parallel else ("serial", "average"))
        assert cfg.clients_per_round == (cfg.clients if parallel else 1)
        assert cfg.selection == ("uniform" if parallel else name)
        assert cfg.data.partition == ("shards" if "mnist" in study else "ratio")


RELEASED_ROUNDS = {"cifar10": 2000, "femnist": 1200, "sent140": 800}  # total_epochs_t of the released scripts


@pytest.mark.parametrize("study", [name for name in STUDIES if name.startswith("pfedbred-") and name != "pfedbred-c5"])
def test_a_column_of_pfedbreds_tables_has_all_rows_whose_method_there_is(study: str) -> None:
    cells = {cell.name: cell.experiment for cell in STUDIES[study]()}
    tricks = {f"{method}{trick}" for method in ("pfedme", "per_fedavg", "mh") for trick in ("", "+ft", "+am")}
    assert set(cells) == {"fedavg", "fedavg+am", "fedem", "fedamp", "fo", "mfo"} | tricks
    for name, cfg in cells.items():
        assert cfg.local_steps == 20
        assert cfg.rounds == RELEASED_ROUNDS.get(study.split("-")[1], 200)
        rates = {getattr(cfg.algorithm, rate, 0.01) for rate in ("lr", "alpha", "alpha_m")} - {None}
        assert rates == {0.01}  # section 6.2.1; None is FedAMP's α, the step of its server
        assert (cfg.data.label_bug, cfg.batch_size) == ("-mnist-" in study, 400 if "sent140" in study else 20)
        if hasattr(cfg.algorithm, "lam"):
            assert cfg.algorithm.lam == (30 if study.endswith("-dnn") else 15)
            assert cfg.train_all
        if hasattr(cfg.algorithm, "ft"):
            assert (cfg.algorithm.ft, cfg.algorithm.beta) == (name.endswith("+ft"), 2 if name.endswith("+am") else 1)
    strategies = {name: cells[name].algorithm.strategy for name in ("fo", "mfo", "mh", "mh+ft", "mh+am")}
    assert strategies == {name: name.partition("+")[0] for name in strategies}


@pytest.mark.parametrize("study", ["pfedbred-mnist-mclr", "table2", "bpfed-novel"])
def test_the_name_of_a_cell_selects_it_alone_though_rows_have_names_too(study: str) -> None:
    names = [cell.name for cell in STUDIES[study]()]
    assert [run_names(study, "--seeds", "1", "--only", name) for name in names] == [[f"{name}-s0"] for name in names]


def test_every_cell_of_the_other_studies_can_be_played() -> None:
    for name, study in STUDIES.items():
        if not name.startswith("table1"):
            assert [cell.name for cell in study() if refusal(cell.experiment)] == [], name


@pytest.mark.parametrize(
    ("study", "algorithm", "changes"),
    [
        ("table1-noise", "pfedbayes", {"noise_sd": 0.001}),
        ("table1-gp", "pfedgp", {"loss": "nodes", "momentum": 0.9, "weight_decay": 0.001}),
        (
            "table1-code",
            "pfedbayes",
            {
                "noise_sd": 0.001,
                "zeta": 0.5,
                "likelihood": "batch",
                "keep_global_moments": True,
                "personal_steps": 5,
            },
        ),
    ],
)
def test_in_another_reading_of_table_1_nothing_else_differs(
    study: str, algorithm: str, changes: dict[str, object]
) -> None:
    of_table1 = {
        f"{short}-{cell.experiment.data.size}": cell
        for short in ("mnist", "fmnist")
        for cell in STUDIES[f"table1-{short}"]()
        if cell.tags == (algorithm,)
    }
    again = {cell.name: cell for cell in STUDIES[study]()}
    assert again.keys() == of_table1.keys()
    for name, cell in again.items():
        changed = {f"algorithm.{field}": value for field, value in changes.items()}
        assert cell.experiment == override(of_table1[name].experiment, changed)


@pytest.mark.parametrize("name", ["equal-steps-mnist", "equal-steps-fmnist"])
def test_with_equal_steps_a_model_takes_100_of_them_in_every_method(name: str) -> None:
    """But SVGD, whose rounds are steps. The rates are those of Table 1."""
    from fedray.studies.named.equal_steps import STEPS_PER_MINIBATCH

    table1 = {cell.name: cell for cell in STUDIES[name.replace("equal-steps", "table1")]()}
    for cell in STUDIES[name]():
        cfg = cell.experiment
        inner = getattr(cfg.algorithm, "personal_steps", getattr(cfg.algorithm, "inner_steps", None))
        per_minibatch = STEPS_PER_MINIBATCH.get(cell.tags[0], 1)
        assert inner is None or inner == per_minibatch
        assert cfg.local_steps * per_minibatch == (1 if cell.tags == ("svgd",) else 100)
        assert (cfg.batch_size, cfg.predict_samples) == (100, 10)
        other = getattr(table1[cell.name].experiment.algorithm, "lr", None)
        assert getattr(cfg.algorithm, "lr", None) == (0.1 if cell.tags == ("bnfed",) else other)


def test_the_tables_of_pfedbayes_follow_public_code_where_the_paper_is_silent() -> None:
    """Twenty minibatches of 100 per round, pFedBayes' Algorithm 1; one draw tests a posterior, two steps Per-FedAvg."""
    cells = {cell.name: cell.experiment for cell in STUDIES["table1-mnist"]()}
    paper = ("fedavg", "fedprox", "bnfed", "per_fedavg", "pfedme", "heurfedamp", "pfedbayes")
    assert {(cells[f"{name}-small"].local_steps, cells[f"{name}-small"].batch_size) for name in paper} == {(20, 100)}
    assert (cells["pfedbayes-small"].algorithm.personal_steps, cells["pfedbayes-small"].predict_samples) == (1, 1)
    assert cells["per_fedavg-small"].algorithm.adapt_steps == 2
    heurfedamp = cells["heurfedamp-small"].algorithm
    assert (heurfedamp.mu, heurfedamp.sigma, heurfedamp.xi_own) == (0.0, 1.0, 0.5)
    assert (heurfedamp.start, heurfedamp.predict) == ("u", "u")
    bnfed = cells["bnfed-small"]
    assert (bnfed.algorithm.lr, bnfed.algorithm.prior_variance, bnfed.data.scaling) == (0.5, 1.0, "unit")
    # Tables 2 and 3 have the same protocol
    assert {cell.experiment.predict_samples for cell in STUDIES["table2"]()} == {1}
    of_heurfedamp = [cell.experiment.algorithm for cell in STUDIES["table3"]() if cell.tags == ("heurfedamp",)]
    assert {(each.mu, each.sigma, each.predict) for each in of_heurfedamp} == {(0.0, 1.0, "u")}
    assert {cell.experiment.algorithm.adapt_steps for cell in STUDIES["table3"]() if cell.tags == ("per_fedavg",)} == {
        2
    }


@pytest.mark.parametrize("study", ["pfedbred-mnist-mclr", "pfedbred-mnist-dnn"])
def test_every_row_of_pfedbreds_mnist_columns_has_the_same_inputs(study: str) -> None:
    assert len({cell.experiment.data for cell in STUDIES[study]()}) == 1
