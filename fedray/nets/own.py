"""A caller's own ``nn.Module`` as one layer whose parameters are given with every call.

A network is a function of one flat vector, which algorithms stack over clients and draws. So a module must be such a
function, too: without state of its own, and of operations that ``torch.func`` can differentiate and stack.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedray.arrays.rng import Stream
from fedray.types import FedRayError, first_line

SEEDS = 2**31  # of PyTorch's generator
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)


class OwnModule(nn.Module):
    """Describes a caller's module; the caller's object stays as it is.

    In the vector the scale of PyTorch's normalization layers is its distance from 1, as in a chain of layers: so a
    start or a prior around 0 leaves what it normalizes as it is.

    Raises FedRayError for a module with buffers (running statistics of BatchNorm: they are no parameters, so they would
    be neither averaged nor part of a posterior), frozen or other parameters than float32, or Dropout.
    """

    def __init__(self, module: nn.Module, played: bool = False):
        """``played`` says that a run has used it, so that it need not be tried."""
        super().__init__()
        self.played = played
        _check(module)
        self.own = copy.deepcopy(module).cpu().eval()
        named = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        self.names = tuple(named)
        self.real_shapes = tuple(named.values())
        self.places = _places(self.own)
        scales = {id(part.weight) for part in self.own.modules() if isinstance(part, NORMS)}
        self.origins = tuple(float(id(parameter) in scales) for parameter in self.own.parameters())
        # A view of a vector has an axis at least.
        self.shapes = tuple(shape or (1,) for shape in self.real_shapes)

    @property
    def kept(self) -> str:
        """How the vector has the parameters, where not as the module has them; empty: as it has them."""
        return "scales of normalization layers as their distance from 1" if any(self.origins) else ""

    def __repr__(self) -> str:
        return type(self.own).__name__

    def slices(self, start: int) -> dict[str, slice]:
        """Where every part of the module lies in a vector, from ``start`` on: parameters, and modules that hold some.

        ``head`` is the module of that name, or else the last one that holds parameters itself, and comes last. Raises
        FedRayError where a head is not the last part.
        """
        found: dict[str, slice] = {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            parts = name.split(".")
            for place in range(1, len(parts) + 1):
                whole = ".".join(parts[:place])
                found[whole] = slice(found[whole].start if whole in found else start, stop)
            start = stop
        last = self.names[-1].rpartition(".")[0] or self.names[-1]
        head = found.pop("head", found[last])
        if head.stop != start:
            raise FedRayError("network: its head is not the last part; assign self.head last in __init__")
        ends = {f"head.{kind}": found[f"{last}.{kind}"] for kind in ("weight", "bias") if f"{last}.{kind}" in found}
        return ends | found | {"head": head}

    def draw(self, rng: Stream) -> list[Tensor]:
        """New values of all parameters: every layer's own ``reset_parameters``, drawn by the stream.

        Parameters of modules without that method keep the values that the caller gave them.
        """
        fresh = copy.deepcopy(self.own)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int(rng.uniform((1,)).double() * SEEDS))
            for part in fresh.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return self._values(fresh)

    def _values(self, module: nn.Module) -> list[Tensor]:
        """The parameters of such a module as they are in the vector."""
        each = zip(module.parameters(), self.shapes, self.origins, strict=True)
        return [parameter.detach().reshape(shape) - origin for parameter, shape, origin in each]

    def call(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs of inputs x [B, ...] under these parameters."""
        each = zip(weights, self.real_shapes, self.origins, strict=True)
        shaped = [w.reshape(shape) + origin if origin else w.reshape(shape) for w, shape, origin in each]
        named = {name: w for names, w in zip(self.places, shaped, strict=True) for name in names}
        return torch.func.functional_call(self.own, named, (x,), tie_weights=False)

    def check_stacking(self, x: Tensor) -> None:
        """Raise FedRayError where the module cannot be differentiated and stacked, tried on two copies and inputs x."""

        def loss(weights: list[Tensor], x: Tensor) -> Tensor:
            return self.call(weights, x).sum()

        if self.played:
            return
        two = [value.expand(2, *value.shape) for value in self._values(self.own)]
        try:
            torch.vmap(torch.func.grad(loss))(two, torch.stack([x, x]))
            with torch.no_grad():
                torch.vmap(self.call)(two, torch.stack([x, x]))
        except Exception as error:  # whatever the module, or PyTorch under vmap, raises
            reason = first_line(error).partition(". ")[0]
            raise FedRayError(
                f"network: {type(self.own).__name__} cannot be stacked over clients by torch.vmap ({reason}); it may "
                "not branch on tensors, call .item(), write in place or draw random numbers"
            ) from None


def _places(module: nn.Module) -> list[list[str]]:
    """The names under which modules hold each parameter; several where it is shared, one for a module used twice.

    PyTorch's own way of tying weights in a call does not give a module that has two names its weights back.
    """
    found: dict[nn.Parameter, list[str]] = {}
    for path, part in module.named_modules():
        for name, parameter in part.named_parameters(path, recurse=False, remove_duplicate=False):
            found.setdefault(parameter, []).append(name)
    return list(found.values())


def _check(module: nn.Module) -> None:
    what = f"network: {type(module).__name__}"
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise FedRayError(
            f"{what}: has buffers ({', '.join(buffers[:3])}), as BatchNorm's running statistics; they are no "
            "parameters, and would be neither averaged nor part of a posterior; take nn.GroupNorm or nn.LayerNorm"
        )
    named = list(module.named_parameters())
    if not named:
        raise FedRayError(f"{what}: has no parameters to learn; add an nn.Linear")
    for name, parameter in named:
        if isinstance(parameter, nn.UninitializedParameter):
            raise FedRayError(f"{what}: its parameter {name} has no shape yet (a lazy layer); call it once on an input")
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            reason = f"is {parameter.dtype}" if parameter.requires_grad else "is frozen (requires_grad=False)"
            raise FedRayError(f"{what}: its parameter {name} {reason}; all parameters are float32 and trained")
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in module.modules()):
        raise FedRayError(f"{what}: has Dropout, whose random numbers no seed of a run repeats; leave it out")
