"""A griffe extension that reads docstrings as FedRay writes them.

A comment behind a field, or above it, documents the field; a role such as :class:`Batch` is shown as code.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Documents fields by their comments, and turns roles into Markdown."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites roles, and puts the first paragraph on one line, because summaries quote the first line only."""
        if obj.docstring:
            text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
            first, blank, rest = text.partition("\n\n")
            obj.docstring.value = (first if "\n " in first else first.replace("\n", " ")) + blank + rest

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **kwargs: Any
    ) -> None:
        """Looks for a comment where the attribute is defined."""
        if attr.docstring or not isinstance(node, ast.AST) or attr.lineno is None or attr.endlineno is None:
            return
        lines = attr.lines_collection[attr.filepath]
        _, _, behind = lines[attr.endlineno - 1].partition("  # ")
        above: list[str] = []
        for line in reversed(lines[: attr.lineno - 1]):
            if not line.strip().startswith("# "):
                break
            above.insert(0, line.strip().removeprefix("# "))
        if text := behind.strip() or " ".join(above):
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)
