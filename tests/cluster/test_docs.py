"""The files and commands that README.md and docs/cluster.md name exist and are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
DOCS = ("README.md", "docs/cluster.md")


def blocks(path: str) -> list[str]:
    """The shell commands of a document, one a line."""
    found = re.findall(r"```bash\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    lines = "\n".join(found).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("path", DOCS)
def test_every_file_that_a_document_names_exists(path):
    for name in re.findall(
        r"(?<![\w/.])(?:cluster|docs|tests)/[\w/.-]+\.(?:yaml|txt|md|py)", (ROOT / path).read_text()
    ):
        assert (ROOT / name).is_file(), name


def test_every_launch_of_the_readme_is_a_valid_request():
    from fedray.launch import parse

    launches = [found[1] for line in blocks("README.md") if (found := re.search(r"fedray\.launch\b([^#]*)", line))]
    assert len(launches) >= 5
    for words in launches:
        if not {"--resume", "--help"} & set(words.split()):
            parse(words.split())


def test_the_readme_has_the_test_command_on_a_line_of_its_own_where_ci_looks_for_it():
    assert "uv run pytest" in blocks("README.md")
    assert "uv run pytest" in (ROOT / ".ci" / "run").read_text()


def test_the_document_speaks_of_every_cluster_file():
    text = (ROOT / "docs" / "cluster.md").read_text()
    for file in CLUSTER.iterdir():
        assert f"cluster/{file.name}" in text


def test_the_commands_of_the_document_are_those_of_ray_and_of_ours():
    from ray.scripts.scripts import cli

    known = set(cli.commands)
    lines = blocks("docs/cluster.md")
    used = {found[1] for line in lines if (found := re.search(r"\bray ([a-z-]+)", line))}
    assert {"up", "exec", "submit", "job", "rsync-down", "dashboard", "down", "get-auth-token"} <= used <= known


def test_every_launch_in_the_document_and_the_files_is_a_valid_request():
    from fedray.launch import parse

    rayjob = re.sub(r"\n +--", " --", (CLUSTER / "kuberay.yaml").read_text())  # its entrypoint has two lines
    lines = [*blocks("docs/cluster.md"), *rayjob.splitlines()]
    launches = [found[1] for line in lines if (found := re.search(r"fedray\.launch((?: [^\s'\"]+)*)", line))]
    assert len(launches) >= 4
    for words in launches:
        if "--resume" not in words:
            parse(words.split())
