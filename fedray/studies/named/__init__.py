"""The named studies, one file per paper or question.

A file defines ``STUDIES``, functions that return the cells of a table, by the names of the studies. Where a study's
comparison differs from the default, ``COMPARISONS`` has its options. A file is found from its place in this folder.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from fedray.studies.cell import Study

_FILES = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]

STUDIES: Mapping[str, Study] = {name: study for file in _FILES for name, study in file.STUDIES.items()}
COMPARISONS: Mapping[str, Mapping[str, str]] = {
    name: options for file in _FILES for name, options in getattr(file, "COMPARISONS", {}).items()
}
