"""What a contributor and a user of the wheel rely on: metadata, hooks, hosted CI, and links between documents."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from pathlib import Path

import pytest
import yaml

from tests.test_layers import DOORS, MAY_IMPORT

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ids = {"ids": lambda path: str(path.relative_to(ROOT))}


@pytest.fixture(scope="module")
def shared():
    return object()


def test_tests_that_share_a_fixture_of_their_module_go_to_one_process(shared, request):
    assert request.node.get_closest_marker("xdist_group").args == ("tests/test_project.py",)
    # xdist has written the group behind the name, if the mark was there in time.
    assert request.node.nodeid.endswith("@tests/test_project.py") or "PYTEST_XDIST_WORKER" not in os.environ


def test_hooks_check_what_ci_checks():
    ci = re.findall(r"^uv run --quiet ((?:ruff|pyright)\b.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook["entry"].removeprefix("uv run --quiet ") for repo in config["repos"] for hook in repo["hooks"]]
    assert hooks == ci
    assert len(hooks) >= 3


def test_hosted_ci_plays_the_same_script_on_the_oldest_and_the_newest_python_that_we_name():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["check"]
    assert job["steps"][-1] == {"run": ".ci/run"}
    versions = job["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert [versions[0], versions[-1]] == [named[0], named[-1]]
    assert f'requires-python = ">={named[0]}"' in project


@pytest.mark.parametrize("package", ["fedray", "actors", "tune"])
def test_every_package_says_that_it_is_typed(package):
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("path", DOCUMENTS, **ids)
def test_every_link_within_the_repository_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        file, _, heading = target.partition("#")
        if ":" in file:
            continue
        found = path.parent / file if file else path
        assert found.exists(), f"{path.name}: {target}"
        if heading:
            assert heading in anchors(found), f"{path.name}: {target}"


def anchors(path: Path) -> set[str]:
    """The headings of a Markdown file as links name them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, **ids)
def test_every_python_module_that_a_command_names_exists(path):
    commands = "\n".join(re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL))
    for name in re.findall(r"python -m ((?:fedray|tune|tests)[\w.]*)", commands):
        assert importlib.util.find_spec(name), f"{path.name}: {name}"


def test_the_design_lists_the_rooms_in_the_order_of_the_import_test():
    table = re.findall(
        r"^\| `(?:fedray/)?(\w+)(?:\.py|/)`.*\|$", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE
    )
    assert [room for room in MAY_IMPORT if room != "doors"] == [room for room in table if room not in DOORS.split()]


def test_the_library_example_of_the_design_runs(capsys):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), re.DOTALL)
    exec(compile(code, "docs/design.md", "exec"), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2", "3"]


def test_the_console_command_is_a_function_of_ours():
    [(module, function)] = re.findall(
        r'^fedray = "([\w.]+):(\w+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert callable(getattr(importlib.import_module(module), function))
