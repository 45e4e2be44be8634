"""A step compiled ahead of time: exported, compiled once by one process, and loaded by others without a compiler.

torch.export makes a graph of the step, and AOTInductor makes of it one file of 2 MB: machine code with the shapes and
settings as constants. PyTorch's loader class maps it in 3 ms. The Python function around that class would import the
compiler, ten seconds of every process.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedray.arrays import trees
from fedray.federate.compiled import cache
from fedray.federate.compiled.unit import Unit, schema, unit
from fedray.federate.plan import Plan
from fedray.types import Batch, FedRayError, first_line

WIDTHS = {"AVX512": 512, "AVX2": 256}  # bits of a vector, by PyTorch's name of what the CPU can do


class Package(NamedTuple):
    """A compiled step, to be sent to other processes."""

    key: str  # of the unit that it was compiled from
    content: bytes


Backend = str | Package  # how a block runs its clients: by name, or by a package that somebody has obtained


def silent(text: str) -> None:
    """Tell nobody."""


def obtain(plan: Plan) -> Package:
    """The package of a plan's step: from the cache, or compiled now and kept there.

    Raises FedRayError where there is neither a package nor a C++ compiler, where the step cannot be compiled, and
    where the cache cannot be trusted.
    """
    return obtain_unit(unit(plan))


def obtain_unit(work: Unit, tell: Callable[[str], object] = silent) -> Package:
    """:func:`obtain` of a unit."""
    content = cache.read(work.key)
    if content is None:
        _check_compiler()
        tell(f"the local step is compiled once for this machine, 10 to 60 s, and kept in {cache.folder()}")
        content = _compiled_once(work)
    if not content:
        where = cache.folder() / work.key
        raise FedRayError(
            f"backend=compiled: PyTorch cannot export this step; use backend=vmap, or remove {where} to try again"
        )
    return Package(work.key, content)


class Loaded:
    """A compiled step of one client. Between steps a local state is a list: rebuilding its tree would cost as much."""

    def __init__(self, run: Callable[[list[Tensor]], list[Tensor]], work: Unit):
        self._run = run
        self._expected = [described[1:] for described in schema(work.example)]
        self._local, info = work.result
        self._size = len(trees.leaves(self._local))
        self._info = type(info)
        self._checked = False

    def flat(self, local: Any) -> list[Tensor]:
        """The tensors of a local state."""
        return trees.leaves(local)

    def step(self, local: list[Tensor], batch: Batch, bits: Tensor) -> tuple[list[Tensor], Any]:
        """The tensors of the new state, which lie where the old ones did, and what the step reports."""
        inputs = [*local, *batch, bits]
        if not self._checked:  # the code takes any memory for contiguous tensors of its shapes
            found = [described[1:] for described in schema(inputs)]
            assert found == self._expected, f"a step was compiled for {self._expected}, and is called with {found}"
            assert all(tensor.is_contiguous() for tensor in inputs)
            self._checked = True
        outputs = self._run(inputs)
        return outputs[: self._size], self._info(*outputs[self._size :])

    def tree(self, local: list[Tensor]) -> Any:
        """The state of such tensors."""
        given = iter(local)
        return trees.tree_map(lambda _: next(given), self._local)


def load(package: Package, plan: Plan) -> Loaded | None:
    """The step of a package; None where this process would have made another one: other code, PyTorch or CPU."""
    work = unit(plan)
    if work.key != package.key:
        warnings.warn(
            f"the compiled step {package.key} does not fit this machine, whose own is {work.key}: clients here train "
            "without it, with the same results up to rounding",
            stacklevel=2,
        )
        return None
    with tempfile.TemporaryDirectory() as folder:  # the loader maps a copy of its own
        path = Path(folder) / "step.pt2"
        path.write_bytes(package.content)
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)  # type: ignore[attr-defined]
    return Loaded(loader.run, work)


def _check_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")  # as Inductor looks for it
    if shutil.which(compiler) is None:
        raise FedRayError("backend=compiled: no C++ compiler was found; install g++ or set CXX, or use backend=vmap")


def _compiled_once(work: Unit) -> bytes:
    """The package's file, from this process or from one that was faster."""
    with cache.locked():
        content = cache.read(work.key)
        if content is None:
            content = _compiled(work)
            cache.write(work.key, content)
    return content


def _compiled(work: Unit) -> bytes:
    """The package's file; empty where the step cannot be exported. Raises FedRayError where the compiler fails."""
    import torch._inductor
    import torch.export
    from torch._inductor.utils import fresh_cache

    inputs = tuple(leaf.clone() for leaf in trees.leaves(work.example))
    # One thread, as in every actor. Precompiled headers would pay from the second package on.
    options = {"compile_threads": 1, "cpp.threads": 1, "aot_inductor.precompile_headers": False, "cpp.march": ""}
    if platform.machine() == "x86_64":  # the instructions of the CPU's capability, which is in the key: not of this CPU
        width = WIDTHS.get(torch.backends.cpu.get_cpu_capability(), 1)
        options |= {"cpp.simdlen": width, "cpp.vec_isa_ok": True}
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it misses a GPU, which nobody asked for
    # The compiler's own cache lies in a shared folder under a name that others can guess: not there.
    with warnings.catch_warnings(), fresh_cache(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        try:
            graph = torch.export.export(_Flat(work), inputs, strict=False)
        except Exception:  # of many kinds: what the step does is no graph
            return b""
        path = str(Path(folder) / "step.pt2")
        try:
            torch._inductor.aoti_compile_and_package(graph, package_path=path, inductor_configs=options)
            return Path(path).read_bytes()
        except Exception as error:  # of many kinds: the compiler's
            raise FedRayError(
                f"backend=compiled: the step could not be compiled ({first_line(error)}); use backend=vmap"
            ) from None


class _Flat(nn.Module):
    """A step as a module from tensors to tensors, which is what can be exported."""

    def __init__(self, work: Unit):
        super().__init__()
        self._work = work

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = iter(inputs)
        local, batch, bits = trees.tree_map(lambda _: next(given), self._work.example)
        return tuple(trees.leaves(self._work.step(local, batch, bits)))
