"""Why a figure is not what a paper prints: the paragraphs of why.md, below headings "## STUDY/CELL".

A heading may name several cells, separated by a comma and a space. The paragraph may have several sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

WHY = "why.md"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MEANS = re.compile(rf"\bmeans? of ({'|'.join(NUMBERS)}) seeds\b")


def paragraphs(folder: Path) -> dict[tuple[str, ...], str]:
    """The text below each heading, by the cells that the heading names; none where there is no file."""
    path = folder / WHY
    if not path.exists():
        return {}
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {tuple(heading.strip().split(", ")): " ".join(text.split()) for heading, text in pairs}


def gaps(written: Mapping[tuple[str, ...], str], apart: Mapping[str, int]) -> Iterator[str]:
    """What why.md lacks, has too much or has of old, given the seeds of the cells, STUDY/CELL, that are apart."""
    named = [name for names in written for name in names]
    for name in apart:
        if name not in named:
            yield f"{name} is apart from its paper: write a paragraph below `## {name}` into {WHY}"
    for names, text in written.items():
        if not text:
            yield f"`## {', '.join(names)}` has no text: write it into {WHY}"
        seeds = {apart[name] for name in names if name in apart}
        for word in MEANS.findall(text):
            if seeds and NUMBERS.index(word) not in seeds:
                have = " or ".join(NUMBERS[each] if each < len(NUMBERS) else str(each) for each in sorted(seeds))
                yield f"`## {', '.join(names)}` speaks of the mean of {word} seeds, the table has {have}: write it anew"
    for name in dict.fromkeys(named):
        if name not in apart:
            yield f"`## {name}` is no cell that is apart from its paper: remove it from {WHY}"
        if named.count(name) > 1:
            yield f"`## {name}` stands more than once: merge its paragraphs in {WHY}"
