"""Hooks of the documentation site (../mkdocs.yml): pages made of files that lie outside docs/, and links to them.

Links in the documents are those of the repository, so that they also work where a document is read without the site.
The README becomes the page overview.md; a source file to which a page links becomes a page below source/.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")
NOTEBOOK_LINK = re.compile(r'(?<=href=")[^"#:]+\.(?:md|ipynb)(?=["#])')
OPTION = re.compile(r"<code>(?=--[^<]{1,28}</code>)")
OVERVIEW = "overview.md"
FRONT = "---\nhide: [navigation, toc]\nsearch: {exclude: true}\n---\n"


def on_config(config: MkDocsConfig) -> None:
    """Moves docs_dir to docs/, which MkDocs accepts only once it has checked the configuration."""
    config.docs_dir = str(ROOT / "docs")


@event_priority(100)  # before plugins that read the list of files
def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the README, and the sources to which pages link."""
    files.append(File.generated(config, OVERVIEW, content=(ROOT / "README.md").read_text(encoding="utf-8")))
    linked = {target for file in files.documentation_pages() for target in _linked(file)}
    for source in sorted({path for target in linked if _page(target).startswith("source/") for path in _files(target)}):
        files.append(File.generated(config, _page(source), content=_listing(ROOT / source)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads a page's links to files of the repository to the pages that show them."""
    uri = page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        target = _target(uri, link[0])
        if target is None or (uri != OVERVIEW and target.startswith("docs/")):
            return link[0]
        return posixpath.relpath(_page(target), posixpath.dirname(uri) or ".")

    return LINK.sub(lead, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keeps an option on one line, which browsers would break after its dashes, and leads a notebook's links to the
    pages that they name: MkDocs itself leads only those of Markdown files."""
    html = OPTION.sub('<code class="option">', html)
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def lead(link: re.Match[str]) -> str:
        named = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[0]))
        shown = files.get_file_from_path(named)
        return shown.url_relative_to(page.file) if shown else link[0]

    return NOTEBOOK_LINK.sub(lead, html)


def _linked(file: File) -> Iterator[str]:
    """The files of the repository to which a page links."""
    for link in LINK.findall(file.content_string) if file.src_uri.endswith(".md") else ():
        if target := _target(file.src_uri, link):
            yield target


def _target(uri: str, link: str) -> str | None:
    """The path in the repository to which a page's link leads; None where there is no such file."""
    path = posixpath.normpath(posixpath.join("" if uri == OVERVIEW else posixpath.dirname(f"docs/{uri}"), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _page(target: str) -> str:
    """The page of the site that shows a file of the repository."""
    if target == "README.md":
        return OVERVIEW
    return target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}.md"


def _files(target: str) -> list[str]:
    """A file, or a folder with the Python files in it, as paths in the repository."""
    inside = sorted((ROOT / target).glob("*.py"))  # empty for a file
    return [target, *(path.relative_to(ROOT).as_posix() for path in inside)]


def _listing(path: Path) -> str:
    """The page of a source file, or of a folder."""
    title = f"{FRONT}# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return title + "\n".join(f"- [{file.name}]({path.name}/{file.name}.md)" for file in sorted(path.glob("*.py")))
    return f'{title}`````{path.suffix[1:]} linenums="1"\n{path.read_text(encoding="utf-8")}`````\n'
