"""The documentation site: it builds strictly, and every public name is documented."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray import registry, types

griffe = pytest.importorskip("griffe", reason="the site needs the dependency group docs")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LISTED = sorted(
    name
    for page in (DOCS / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built with warnings as errors: a dead link, or a name that the reference does not find."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", DOCS / "mkdocs.yml", "-d", folder]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_every_document_has_a_page_and_no_page_fetches_anything(site):
    for document in DOCS.rglob("*.md"):
        page = document.relative_to(DOCS).with_suffix("")
        page = page.parent if page.name in ("index", "README") else page
        assert (site / page / "index.html").is_file(), document
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img)\b[^>]*\b(?:src|href)=\"?(https?:[^\" >]+)", page.read_text())
        assert not fetched, f"{page}: {fetched}"


@pytest.mark.slow
def test_every_notebook_and_method_is_in_the_navigation(site):
    home = (site / "index.html").read_text()
    for file in [*DOCS.glob("notebooks/*.ipynb"), *DOCS.glob("methods/[a-z]*.md")]:
        assert f'href="{file.parent.name}/{file.stem}/"' in home, file


@pytest.mark.slow
def test_a_link_to_a_source_file_leads_to_its_page(site):
    page = site / "methods" / "pfedbayes"
    links = re.findall(r'href="([^"]*source/[^"]*)"', (page / "index.html").read_text())
    assert len(links) >= 3
    assert all((page / link / "index.html").is_file() for link in links)


@pytest.mark.slow
def test_a_link_of_a_notebook_leads_to_a_page(site):
    """MkDocs checks the links of Markdown files alone."""
    for notebook in DOCS.glob("notebooks/*.ipynb"):
        page = site / "notebooks" / notebook.stem
        text = (page / "index.html").read_text().partition("<article")[2].partition("</article>")[0]
        links = [link for link in re.findall(r'href="([^"#]+)', text) if ":" not in link]
        assert all((page / link / "index.html").is_file() for link in links), f"{notebook.name}: {links}"
        assert links or "](" not in notebook.read_text(), notebook.name


@pytest.mark.slow
def test_an_option_is_not_broken_after_its_dashes(site):
    assert '<code class="option">--metric-mode</code>' in (site / "sweeps" / "index.html").read_text()
    assert "code.option { white-space: nowrap; }" in (site / "theme" / "fedray.css").read_text()


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[-1]  # after four lines of heading
    documented = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    public = {
        *(f"fedray.{name}" for name in fedray.MODULES),
        *(f"fedray.types.{name}" for name in types.__all__ if not name.isupper()),
        *(f"{record.config.__module__}.{record.config.__qualname__}" for record in registry.algorithms().values()),
    }
    assert public - documented == set(), "add them to a page of docs/reference/"


@cache
def packages() -> Any:
    """Our packages as griffe reads them."""
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    for package in ("fedray", "actors"):
        loader.load(package)
    return loader.modules_collection


def undocumented(thing: Any) -> Iterator[str]:
    """The functions, classes and methods without a docstring that a name of the reference shows."""
    thing = thing.final_target if thing.is_alias else thing
    if not thing.is_attribute and not thing.has_docstring:
        yield thing.path
    if thing.is_class or thing.is_module:
        for name, member in thing.members.items():
            shown = name in thing.exports if thing.exports else not member.is_alias and not member.is_module
            if shown and not name.startswith("_"):
                yield from undocumented(member)


@pytest.mark.parametrize("name", sorted({*LISTED, *(f"fedray.{name}" for name in fedray.MODULES)}))
def test_every_public_name_has_a_docstring(name):
    package, *rest = name.split(".")
    assert list(undocumented(packages()[(package, *rest)])) == []
