"""What is compiled: the local step of one client, from its random bits to its new state; and the key of its package.

One client, not a stack: with the calls of small operations gone, a stack gains nothing more (docs/performance.md), and
a client's numbers cannot depend on its company. The minibatch is taken outside, so that the length of a shard does not
matter to the code.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedray.arrays import trees
from fedray.arrays.rng import Stream, normals
from fedray.config import to_dict
from fedray.federate.plan import Plan
from fedray.nets.model import Model
from fedray.types import Batch, Context, Facts, FedRayError, first_line

Step = Callable[[Any, Batch, Tensor], tuple[Any, Any]]  # local, batch, bits -> local, info
FOREIGN = {"torch", "numpy", "psutil", *sys.stdlib_module_names}  # whose code is not ours to follow
AROUND = ("unit.py", "package.py")  # of this folder: what surrounds an algorithm's step
KEY_DIGITS = 16


class Unit(NamedTuple):
    """A step, tensors of the shapes that it is called with, and what it returned for them."""

    step: Step
    example: tuple[Any, Batch, Tensor]
    result: tuple[Any, Any]
    operations: int  # of PyTorch, in one call
    key: str  # of the package: two units of one key are the same machine code


def unit(plan: Plan) -> Unit:
    """The step of a plan; raises FedRayError where no key could tell its code, or where it cannot be called."""
    own = sorted({type(part).__name__ for part in plan.model.layers.modules() if not _known(part)})
    if own:
        raise FedRayError(f"backend=compiled: the network has layers of your own ({', '.join(own)}); use backend=vmap")
    if plan.cfg.noise_generator == "philox":
        raise FedRayError("backend=compiled: its steps draw by sfc64; use noise_generator=sfc64, or backend=vmap")
    read = Noted(plan.facts)
    ctx = replace(plan.context, facts=read)  # type: ignore[arg-type]
    try:
        example = _example(plan)
        step = partial(_step, plan, ctx)
        with _Count() as count:
            result = step(trees.tree_map(Tensor.clone, example[0]), *example[1:])
        found = schema(result[0])
    except Exception as error:  # of many kinds: an author's
        raise FedRayError(f"backend=compiled: a step on zeros failed ({first_line(error)}); use backend=vmap") from None
    if found != schema(example[0]):
        raise FedRayError("backend=compiled: a step changes the shapes of the client's state; use backend=vmap")
    return Unit(step, example, result, count.operations, _key(plan, read.known, example))


def schema(tree: Any) -> list[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and types of a tree's leaves."""
    return [(name, tuple(leaf.shape), str(leaf.dtype)) for name, leaf in trees.named_leaves(tree)]


def _step(plan: Plan, ctx: Context[Any], local: Any, batch: Batch, bits: Tensor) -> tuple[Any, Any]:
    return plan.algorithm.step(ctx, local, batch, normals(bits, plan.algorithm.noise_shape(ctx)))


def _example(plan: Plan) -> tuple[Any, Batch, Tensor]:
    """A client's state before its first step, a minibatch and random bits; no data are read."""
    algorithm, ctx = plan.algorithm, plan.context
    server = plan.initial_server()
    down = algorithm.broadcast(ctx, server, range(plan.clients))
    down = trees.row(down, 0) if algorithm.down_per_client else down
    data = zeros(plan, ctx.facts.shard)
    local = algorithm.begin(ctx, algorithm.client_init(ctx, server), down, data)
    batch = zeros(plan, ctx.facts.batch_size * algorithm.minibatches(ctx.cfg))
    bits = Stream(0, "example").bits(math.prod(algorithm.noise_shape(ctx)))
    return own(local), batch, bits


def own(tree: Any) -> Any:
    """A copy of a state in memory of its own, contiguous, as compiled code takes it."""
    return trees.tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), tree)


def zeros(plan: Plan, size: int) -> Batch:
    """Examples without content, where only their shapes count."""
    y = torch.zeros(size, dtype=torch.long if plan.target is None else torch.float32)
    x = torch.zeros(size, *plan.model.input_shape)
    place = torch.arange(size) % plan.facts.shard  # a minibatch may have more rows than the largest shard
    return Batch(x, y, torch.ones(size), place, torch.tensor(float(size)))


def _known(part: nn.Module) -> bool:
    """Whether a layer is PyTorch's or ours: its printed form then says all of it."""
    return type(part).__module__.startswith(("torch.nn.", "fedray.nets."))


class Noted:
    """The facts of a federation, with a note of those that were asked for: only they can be constants of the code."""

    def __init__(self, facts: Facts):
        self._facts = facts
        self.known: dict[str, int] = {}

    def __getattr__(self, name: str) -> int:
        if name not in Facts._fields:
            raise AttributeError(name)
        self.known[name] = getattr(self._facts, name)
        return self.known[name]


class _Count(TorchFunctionMode):
    """Counts the operations that PyTorch is asked for."""

    operations = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return function(*args, **(kwargs or {}))


def _key(plan: Plan, facts: dict[str, int], example: Any) -> str:
    """All that the machine code depends on, in 16 hex digits."""
    cfg = plan.cfg.algorithm
    parts = {
        "code": _code({type(cfg).__module__, _plain(plan.algorithm.step).__module__, normals.__module__}),
        "torch": torch.__version__,
        "cpu": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        "algorithm": [type(cfg).__qualname__, to_dict(cfg)],
        "network": _described(plan.model),
        "facts": facts,
        "shapes": schema(example),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def _plain(function: Any) -> Any:
    """The function in a partial application."""
    return _plain(function.func) if isinstance(function, partial) else function


def _described(model: Model) -> list[Any]:
    slopes: Any = model.density.slopes
    name = [_plain(slopes).__name__, *(slopes.args if isinstance(slopes, partial) else ())]
    return [str(model.layers), model.input_shape, model.classes, model.extra, *name]


def _code(names: set[str]) -> str:
    """A digest of the sources of modules, of all that they lead to, and of those around the step."""
    files = dict(_reached(names)) | {name: str(Path(__file__).with_name(name)) for name in AROUND}
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


def _reached(names: set[str]) -> Iterator[tuple[str, str]]:
    """Modules and their files: the given ones, and those of the modules, functions and classes that they know."""
    todo = list(names)
    seen = set(names)
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in FOREIGN or not file:
            continue
        yield name, file
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType):
                found = value.__name__
            elif isinstance(value, FunctionType | type):
                found = value.__module__
            else:
                continue
            if found not in seen:
                seen.add(found)
                todo.append(found)
