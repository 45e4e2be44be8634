"""docs/methods/ and docs/glossary.md: every method has its page, and what the pages say of the code is true.

A page's front line, "- **Name(s) in FedRay:** ...", names what it documents. Its table of defaults has the columns
setting | default | source; the last column of its table of symbols names functions and fields in the files of its
"- **Code:**" line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import re
from collections import Counter
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

import fedray.config
from fedray import registry
from fedray.config import Experiment, override
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods"
PAGES = sorted(page.name for page in METHODS.glob("*.md") if page.name != "README.md")
LINKED = [*(METHODS / name for name in [*PAGES, "README.md"]), ROOT / "docs" / "glossary.md"]
KNOWN = set(registry.algorithms()) | set(registry.selections())


@cache
def text(page: str) -> str:
    return (METHODS / page).read_text(encoding="utf-8")


def front(page: str) -> list[str]:
    """The algorithms and policies that a page documents."""
    (line,) = re.findall(r"^- \*\*Names? in FedRay:\*\* (.*(?:\n  .*)*)", text(page), re.MULTILINE)
    return [name for name in re.findall(r"`([^`]+)`", line) if name in KNOWN]


def rows(page: str, *header: str) -> list[list[str]]:
    """The rows of a page's one table with this header."""
    head = "| " + " | ".join(header) + " |\n"
    _, found = text(page).split(head)
    lines = found.split("\n\n")[0].splitlines()[1:]
    return [cells(line) for line in lines]


def cells(line: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def modules(page: str) -> tuple[Any, ...]:
    """The modules of a page's code line."""
    (line,) = re.findall(r"^- \*\*Code:\*\* (.*(?:\n  .*)*)", text(page), re.MULTILINE)
    paths = re.findall(r"\[`([^`]+)\.py`\]", line)
    return tuple(importlib.import_module(path.replace("/", ".")) for path in paths)


def exists(page: str, name: str) -> bool:
    """Whether a dotted name, "Class.field" or "function", is found in one of the page's modules."""
    for module in (*modules(page), fedray.config):
        with contextlib.suppress(AttributeError):
            reduce(getattr, name.split("."), module)
            return True
    return False


def default(algorithm: str, setting: str) -> Any:
    """A setting's default under an algorithm: its own, else the experiment's with what the algorithm changes."""
    record = registry.algorithms()[algorithm]
    cfg = record.config()
    return getattr(cfg, setting) if hasattr(cfg, setting) else getattr(override(Experiment(), record.defaults), setting)


def same(cell: str, value: Any) -> bool:
    """Whether a default is written as the code has it."""
    if isinstance(value, tuple):
        return cell == ",".join(map(str, value))
    if isinstance(value, bool | str | None):
        return cell == str(value)
    return (math.e if cell == "e" else float(cell)) == value


def settings(page: str) -> list[tuple[str, str, str]]:
    """(algorithm, setting, default as written) of a page; "fedprox.mu" is the setting of one algorithm."""
    found = []
    for cell, value, _ in rows(page, "setting", "default", "source"):
        *prefix, setting = quoted(cell)[0].split(".")
        algorithms = prefix or [name for name in front(page) if name in registry.algorithms()]
        found += [(algorithm, setting, quoted(value)[0]) for algorithm in algorithms or ["fedavg"]]
    return found


def test_every_algorithm_and_policy_has_exactly_one_page():
    assert Counter(name for page in PAGES for name in front(page)) == Counter(KNOWN)


def index() -> dict[str, list[str]]:
    """The cells of the index after the name, by algorithm."""
    table = [cells(line) for line in text("README.md").splitlines() if line.startswith("| `")]
    return {name: rest for first, *rest in table for name in quoted(first)}


def test_the_index_names_every_algorithm_and_links_every_page():
    assert set(index()) == set(registry.algorithms())
    assert {page for page in PAGES if f"({page})" not in text("README.md")} == set()


@pytest.mark.parametrize("algorithm", sorted(registry.algorithms()))
def test_the_index_says_what_a_method_offers_and_sends(algorithm):
    config = registry.algorithms()[algorithm].config
    clients, particles, few = 2, 4, 6
    cfg = config(particles=particles) if hasattr(config, "particles") else config()
    plan = make_plan(Experiment(algorithm=cfg, rounds=1, clients=clients, local_steps=5, batch_size=8))
    with LocalFederation(plan) as federation:
        (metrics,) = federation
    _, personal, overall, newcomers, floats = index()[algorithm]
    assert (personal == "yes") == (plan.algorithm.predict_personal is not None)
    assert (overall == "yes") == (plan.algorithm.predict_global is not None)
    assert (newcomers == "yes") == (plan.algorithm.adapt is not None)
    whole = plan.model.size
    shared = len(plan.model.rest(getattr(cfg, "personal", ())))
    meaning = {
        "0": 0,
        "P": whole,
        "d_s": shared,
        "d_b": plan.model.slices["body"].stop,
        "2 P": 2 * whole,
        "2 d_s": 2 * shared,
        "2 P - d_s": 2 * whole - shared,
        "P + C": whole + plan.model.classes,
        "M P": plan.algorithm.particles(cfg) * whole,
        "(M + 2) P": (particles + 2) * whole,
        "(M/S) P": particles // clients * whole,
    }
    down, up = floats.split(", ")
    # A few numbers more, such as the damping, are not worth a column.
    assert 0 <= metrics.bytes_down / (4 * len(metrics.participants)) - meaning[down] <= few
    assert 0 <= metrics.bytes_up / (4 * len(metrics.participants)) - meaning[up] <= few


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_every_section(page):
    titles = re.findall(r"^## (.*)$", text(page), re.MULTILINE)
    wanted = ["Equations", "Symbols", "Defaults", "Figures", "Deviations", "What leaves the client", "Not covered"]
    assert [title for title in wanted if not any(found.startswith(title) for found in titles)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_defaults_are_those_of_the_code(page):
    wrong = [
        f"{algorithm} {setting}: {cell}, in the code {default(algorithm, setting)}"
        for algorithm, setting, cell in settings(page)
        if not same(cell, default(algorithm, setting))
    ]
    assert wrong == []


def test_every_setting_of_every_algorithm_is_on_a_page():
    """An inherited setting is documented with any algorithm that has it by the same class."""
    configs = {name: record.config for name, record in registry.algorithms().items()}

    def owned(algorithm: str, setting: str) -> tuple[str, str]:
        classes = [kind for kind in configs[algorithm].__mro__ if setting in vars(kind).get("__annotations__", {})]
        return (classes[0].__name__ if classes else "Experiment"), setting

    documented = {owned(algorithm, setting) for page in PAGES for algorithm, setting, _ in settings(page)}
    needed = {owned(name, field.name) for name, kind in configs.items() for field in dataclasses.fields(kind)}
    assert needed - documented == set()


@pytest.mark.parametrize("page", PAGES)
def test_the_symbols_are_names_of_the_code(page):
    names = [name for row in rows(page, "symbol", "meaning", "code") for name in quoted(row[-1])]
    assert names
    assert [name for name in names if not exists(page, name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_preset_is_explained(page):
    presets = {preset for name in front(page) if name in registry.algorithms() for preset in _presets(name)}
    assert {preset for preset in presets if f"`{preset}`" not in text(page)} == set()


def _presets(algorithm: str) -> list[str]:
    return list(registry.algorithms()[algorithm].presets)


@pytest.mark.parametrize("file", LINKED, ids=lambda file: file.name)
def test_every_link_leads_somewhere(file):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"\s*\n\s+", " ", file.read_text(encoding="utf-8")))
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not (file.parent / link).exists()] == []


def test_every_term_of_the_glossary_is_where_it_says():
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    places = re.findall(r"`([^`]+)` in \[[^\]]+\]\(([^)]+)\)", glossary)
    assert len(places) >= len(re.findall(r"^\| (?!term|---)", glossary, re.MULTILINE))
    lost = [(name, file) for name, file in places if not re.search(rf"\b{name}\b", _source(file))]
    assert lost == []


@cache
def _source(file: str) -> str:
    return (ROOT / "docs" / file).read_text(encoding="utf-8")
