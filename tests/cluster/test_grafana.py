"""The Grafana dashboard: it shows every metric of a run, and nothing that no run has."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from actors.telemetry import gauges
from tests.cluster.metrics import DASHBOARD, concrete, targets

FOUND = json.loads(DASHBOARD.read_text())
METRIC = re.compile(r"ray_fedray_\w+")


def metrics() -> dict[str, set[str]]:
    """The labels of every metric, as the module that sets them lists them."""
    lines = re.findall(r"(ray_fedray_\w+)\{([\w, ]+)\}", gauges.__doc__ or "")
    return {name: set(labels.split(", ")) for name, labels in lines}


def test_every_metric_is_shown_by_a_panel_and_no_other() -> None:
    shown = [METRIC.findall(query) for _, query in targets(FOUND)]
    assert sorted(itertools.chain(*shown)) == sorted(metrics())


@pytest.mark.parametrize(("title", "query"), targets(FOUND))
def test_a_query_uses_labels_that_its_metric_has_and_is_of_the_chosen_runs(title: str, query: str) -> None:
    [name] = METRIC.findall(query)
    [target] = [target for panel in FOUND["panels"] for target in panel["targets"] if target["expr"] == query]
    grouped = re.findall(r"by \(([\w, ]+)\)", query)[0].split(", ")
    used = {*grouped, *re.findall(r"(\w+)[!=~]+\"", query), *re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
    assert used <= metrics()[name], title
    assert 'run=~"$run"' in query
    assert "$" not in concrete(query, "x")


def test_panels_have_places_of_their_own_and_ask_the_source_that_was_chosen() -> None:
    places: set[tuple[int, int]] = set()
    for panel in FOUND["panels"]:
        at = panel["gridPos"]
        mine = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not places & mine
        assert at["x"] + at["w"] <= 24
        places |= mine
        assert panel["description"].endswith(".")
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in FOUND["panels"]}) == len(FOUND["panels"])


def test_the_variables_are_a_source_and_the_runs() -> None:
    variables: dict[str, Any] = {each["name"]: each for each in FOUND["templating"]["list"]}
    assert list(variables) == ["datasource", "run"]
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["run"]["query"]["query"] == "label_values(ray_fedray_round, run)"
    assert variables["run"]["multi"]
