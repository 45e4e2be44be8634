"""Uniform selection that reports the HIP of those it chose, at which it did not look: what hip is measured against.

With --hip first_order their mean is the decrease of the free energy F/α per unit of step. It costs what hip costs.
"""

from __future__ import annotations

from fedray.selection import uniform
from fedray.selection._draw import watched

SELECTION = watched(uniform.SELECTION, "hip")
