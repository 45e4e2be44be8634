"""Whether a run uses a compiled step: a function of its plan alone, so that the same command gives the same bits."""

from __future__ import annotations

from collections.abc import Callable

from fedray.federate.compiled.package import Package, obtain_unit
from fedray.federate.compiled.unit import unit
from fedray.federate.plan import Plan
from fedray.nets.model import linear
from fedray.types import FedRayError

# A compiled step saves some 2 µs per operation, and a package takes 12 to 19 s of CPU, once: it pays from the eighth
# run of this length on, or in one that is eight times as long. Whether it is in the cache must not matter, see above.
WORTH = 1_000_000  # operations of PyTorch in all local steps of a run


def choose(plan: Plan, backend: str, begun: str | None, tell: Callable[[str], object]) -> Package | None:
    """The package that a run trains with, obtained now; None: it trains without one.

    ``begun`` is the key of the package with which a resumed run began, or empty if it had none; None for a new run.
    Raises FedRayError where ``compiled`` was asked for and cannot be had. ``auto`` then says why, and goes without.
    """
    if backend not in ("auto", "compiled"):
        if begun:
            tell(f"the run began with the compiled step {begun}; without it, its numbers agree up to rounding")
        return None
    if backend == "auto" and not begun and not may_compile(plan):
        return None
    try:
        work = unit(plan)
        if backend == "auto" and not wanted(plan, work.operations, begun):
            if begun == "" and wanted(plan, work.operations, None):
                rounds = f"a new one of {plan.cfg.rounds} rounds would compile it"
                tell(f"the run began without a compiled step and keeps to it; {rounds}, and agrees up to rounding")
            return None
        package = obtain_unit(work, tell)
    except FedRayError as error:
        if backend == "compiled":
            raise
        if begun is None:
            tell(f"steps are not compiled: {error}")
        elif begun:
            tell(f"the run began with the compiled step {begun}; without it its numbers agree up to rounding: {error}")
        return None
    if begun is not None and begun != package.key:
        before = f"the step {begun} of other code, PyTorch or CPU" if begun else "no compiled step"
        tell(f"the run began with {before}; with {package.key} its numbers agree up to rounding")
    else:
        tell(f"local steps run compiled (package {package.key})")
    return package


def may_compile(plan: Plan) -> bool:
    """Whether ``auto`` compiles long runs of this network on a CPU."""
    return linear(plan.model)


def wanted(plan: Plan, operations: int, begun: str | None) -> bool:
    """Whether ``auto`` compiles a step of so many operations: in long runs, and in resumed ones as they began."""
    if begun is not None:
        return begun != ""
    facts = plan.facts
    steps = plan.cfg.rounds * (facts.per_round + facts.unheard) * plan.cfg.local_steps
    return steps * operations >= WORTH
