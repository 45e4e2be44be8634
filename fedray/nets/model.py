"""Networks as functions of one flat parameter vector: layers are views, personalization names slices of it.

The vector is padded to a multiple of 64 so that elementwise kernels treat a client alike whether it is computed alone
or stacked with others: the results are then bitwise equal on CPU. The padding has no gradient and stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import psutil
import torch
from torch import Tensor, nn

from fedray.arrays.rng import Stream
from fedray.nets.bilstm import BiLSTM, bilstm
from fedray.nets.densities import CATEGORICAL, Density
from fedray.nets.own import OwnModule
from fedray.types import FedRayError

FLOAT_BYTES = 4
ALIGN = 64
PARAMETRIC = nn.Linear | nn.Conv2d | nn.GroupNorm | BiLSTM | OwnModule
REUSING = nn.GroupNorm | BiLSTM | OwnModule  # a weight may enter several pre-activations: no noise is each one's own
PLAIN = (nn.Linear, nn.Conv2d, nn.GroupNorm, BiLSTM, nn.Flatten, nn.ReLU, nn.LeakyReLU, nn.MaxPool2d, nn.ConstantPad1d)


@dataclass(frozen=True)
class Model:
    """A network whose parameters are one vector theta [P].

    ``layers`` is a chain of nn.Linear, nn.Conv2d, nn.GroupNorm, BiLSTM and modules without parameters or buffers;
    chains in the chain are unpacked. The modules only describe the computation, their own weights are never used. An
    OwnModule, a caller's module of any make, is a chain by itself. Linear weights are stored [in, out] (x @ W + b),
    which is also what makes a product of one client bitwise equal to its row of a stacked product. The scale of an
    nn.GroupNorm is stored as its distance from 1, so that a start or a prior around 0 leaves what it normalizes as it
    is. Raises FedRayError, naming the layer, for any other layer, and where the chain does not map the inputs to the
    classes.
    """

    layers: nn.Sequential
    input_shape: tuple[int, ...]
    classes: int  # outputs C: a logit or mean per class, or the mean of a real target
    extra: int = 0  # parameters that no layer reads, after those of the layers: of the prior
    density: Density = CATEGORICAL  # of a target, given the outputs; its own parameters are the last ones of theta
    shapes: tuple[tuple[int, ...], ...] = field(init=False)
    # layer1, layer2, ..., the density's parameters as noise; head is the last layer with them, body the other layers
    slices: dict[str, slice] = field(init=False)
    tensors: dict[str, slice] = field(init=False)  # layer1.weight, layer1.bias, ..., head.weight, head.bias
    size: int = field(init=False)  # parameters, those that no layer reads included
    padded: int = field(init=False)  # P: length of theta
    # Pre-activations per example, for local reparameterization; 0 where weights recur, or the density has parameters of
    # its own, neither of which it covers.
    activations: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", nn.Sequential(*_unpacked(self.layers)).eval())  # none draws random numbers
        for place, layer in enumerate(self.layers):
            _check(place, layer)
        if own_module(self) is None and _shared(self.layers):
            raise FedRayError("network: two of its layers share parameters, and each would get its own; build both")
        shapes: list[tuple[int, ...]] = []
        slices = {}
        tensors = {}
        start = 0
        for layer in self.layers:
            if _parametric(layer):
                name = f"layer{len(slices) + 1}"
                own = _shapes(name, layer)
                stop = start + sum(map(math.prod, own))
                if len(own) == 2 and not isinstance(layer, OwnModule):
                    tensors[f"{name}.weight"] = slice(start, stop - own[1][0])
                    tensors[f"{name}.bias"] = slice(stop - own[1][0], stop)
                slices[name] = slice(start, stop)
                if isinstance(layer, OwnModule):
                    parts = layer.slices(start)
                    tensors |= {path: part for path, part in parts.items() if path in layer.names}
                    slices |= {path: part for path, part in parts.items() if path not in tensors}
                start = stop
                shapes += own
        if not slices:
            raise FedRayError(f"network {self.layers}: has no parameters to learn; add an nn.Linear")
        head = "head" if "head" in slices else list(slices)[-1]  # a caller's module has one
        if {f"{head}.weight", f"{head}.bias"} <= tensors.keys():
            tensors |= {f"head.{kind}": tensors[f"{head}.{kind}"] for kind in ("weight", "bias")}
        size = start + self.extra + self.density.noise
        slices |= {"head": slices[head], "body": slice(0, slices[head].start)}
        if self.density.noise:
            slices |= {"head": slice(slices[head].start, size), "noise": slice(start + self.extra, size)}
        for name, value in (
            ("shapes", tuple(shapes)),
            ("slices", slices),
            ("tensors", tensors),
            ("size", size),
            ("padded", -(-size // ALIGN) * ALIGN),
        ):
            object.__setattr__(self, name, value)
        check_memory(self.size, f"network: its {self.size} parameters", "make its layers narrower")
        object.__setattr__(self, "activations", self._count_activations())
        if any(type(layer) not in PLAIN for layer in self.layers):
            self._check_rows()

    def _count_activations(self) -> int:
        # With our own arithmetic on zeros: running the modules on the meta device would import PyTorch's compiler,
        # ten seconds of every process.
        total = 0
        once = self.density.noise == 0  # whether every weight enters one pre-activation of an example
        x = torch.zeros(1, *self.input_shape)
        zeros = iter(self.split(torch.zeros(self.padded)))
        for place, layer in enumerate(self.layers):
            try:
                x = _apply(layer, x, zeros)
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
                raise FedRayError(
                    f"network: layer {place} ({layer}) cannot take {list(x.shape)}, which inputs of shape "
                    f"{list(self.input_shape)} become ({error}); mend its sizes"
                ) from None
            if not isinstance(x, Tensor):
                raise FedRayError(f"network: layer {place} ({layer}) returns {type(x).__name__}, not a tensor; mend it")
            if _parametric(layer):
                total += x.numel()
                once = once and not isinstance(layer, REUSING) and x.numel() == x.shape[1]
        if x.shape != (1, self.classes):
            raise FedRayError(
                f"network: maps an input of shape {list(self.input_shape)} to {list(x.shape[1:])}, not to the "
                f"{self.classes} outputs that the targets need; mend its last layer"
            )
        if (own := own_module(self)) is not None:
            own.check_stacking(torch.zeros(2, *self.input_shape))
        return total if once else 0

    def _check_rows(self) -> None:
        """Raise FedRayError where the output for one example is not the same in every minibatch: tried on two.

        Inputs of a module of the caller's may have a domain: what it cannot take, or makes NaN of, tells nothing.
        """
        rng = Stream(0, "network check")
        theta, shape = self.init(rng), (2, *self.input_shape)
        if not all(self._same_alone(theta, x) for x in (rng.normal(shape), rng.uniform(shape))):
            raise FedRayError(
                f"network: {self._others()}: the output for one example changes with the others of its minibatch, as "
                "with BatchNorm, or is drawn; a posterior over weights needs a function of each example alone; take "
                "nn.GroupNorm, or nn.LayerNorm in a module of your own"
            )

    def _same_alone(self, theta: Tensor, x: Tensor) -> bool:
        """Whether the first of some examples has the same output without the others, and all have the same again."""
        try:
            together, again = self.apply(theta, x), self.apply(theta, x)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return True
        try:
            alone = self.apply(theta, x[:1])
        except ValueError:  # what BatchNorm says of one example
            return False
        close = partial(torch.allclose, rtol=1e-3, atol=1e-4, equal_nan=True)
        return close(alone, together[:1]) and close(again, together)

    def _others(self) -> str:
        return ", ".join(repr(layer) for layer in self.layers if type(layer) not in PLAIN)

    def split(self, theta: Tensor) -> tuple[Tensor, ...]:
        """theta [..., P] -> views of it: weight, bias of each layer in order, each [..., *shape]."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = theta[..., : sum(sizes)].split(sizes, -1)
        return tuple(part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True))

    def noise(self, theta: Tensor) -> Tensor:
        """theta [..., P] -> the density's own parameters [..., noise]; of most densities there are none."""
        return theta[..., self.size - self.density.noise : self.size]

    def join(self, parts: Sequence[Tensor], noise: Tensor | None = None) -> Tensor:
        """The inverse of :meth:`split` and :meth:`noise`, with zeros in the prior's parameters and in the padding."""
        flat = [part.flatten(-len(shape)) for part, shape in zip(parts, self.shapes, strict=True)]
        if noise is not None and self.density.noise:
            flat += [noise.new_zeros(*noise.shape[:-1], self.extra), noise]
        rest = self.padded - sum(part.shape[-1] for part in flat)
        return torch.cat([*flat, flat[0].new_zeros(*flat[0].shape[:-1], rest)], -1)

    def forward(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """Logits [B, C] of inputs x [B, ...] under the layers' weights and biases."""
        weights = iter(parts)
        for layer in self.layers:
            x = _apply(layer, x, weights)
        return x

    def features(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """What the last layer below the head makes of inputs x [B, ...], without its activation.

        Pooling and reshaping behind it are kept. ``parts`` are the layers' weights and biases.
        """
        if own_module(self) is not None:
            raise FedRayError("network: your module does not say what its head is given; give an nn.Sequential")
        weights = iter(parts)
        *below, head = (place for place, layer in enumerate(self.layers) if _parametric(layer))
        last = max(below, default=0)
        for place, layer in enumerate(self.layers[:head]):
            if place <= last or not _activation(layer):
                x = _apply(layer, x, weights)
        return x

    def apply(self, theta: Tensor, x: Tensor) -> Tensor:
        """Logits [B, C] of inputs x [B, ...] under theta [P]."""
        return self.forward(self.split(theta), x)

    def forward_local(self, mu: Sequence[Tensor], sigma: Sequence[Tensor], x: Tensor, noise: Tensor) -> Tensor:
        """Logits [B, C] by local reparameterization: each pre-activation a ~ N(x μ, x² σ²) is drawn by itself.

        noise [B, activations] is standard normal. Kingma, Salimans and Welling 2015, eq. 6. Raises FedRayError where a
        weight enters several pre-activations of an example, which are not independent then: all places of a channel
        have a convolution's weights and a GroupNorm's scale in common, an LSTM's weights act many times on what they
        have made, and a caller's module may do the same.
        """
        if self.activations == 0:
            raise FedRayError(
                "local reparameterization: not for this network's layers or noise; draw the weights instead"
            )
        means = iter(mu)
        variances = (sd.square() for sd in sigma)
        start = 0
        for layer in self.layers:
            if not _parametric(layer):
                x = layer(x)
                continue
            mean, variance = _apply(layer, x, means), _apply(layer, x.square(), variances)
            width = mean[0].numel()
            eps = noise[:, start : start + width].reshape(mean.shape)
            # The floor keeps the gradient of the root finite where an input is exactly zero.
            x, start = mean + (variance + 1e-16).sqrt() * eps, start + width
        return x

    def init(self, rng: Stream) -> Tensor:
        """theta [P] with PyTorch's default: weights and biases uniform in ±1/√fan_in, or ±1/√H of an LSTM.

        A GroupNorm starts with scale 1 and shift 0, a caller's module as its layers' ``reset_parameters`` draw.
        """
        parts = []
        for layer in self.layers:
            if isinstance(layer, OwnModule):
                parts += layer.draw(rng)
            elif isinstance(layer, nn.GroupNorm) and layer.affine:
                parts += [torch.zeros(shape) for shape in _shapes("", layer)]
            elif _parametric(layer):
                own = _shapes("", layer)
                fan_in = layer.hidden if isinstance(layer, BiLSTM) else math.prod(own[0]) // own[1][0]
                parts += [(2 * rng.uniform(shape) - 1) * (1 / math.sqrt(fan_in)) for shape in own]
        return self.join(parts)

    def part(self, names: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
        """Where the parameters of the named layers (or of head, body, head.bias, ...) lie in theta: ascending [k].

        Raises FedRayError for a name that the network does not have.
        """
        return _places(self._spans(names), device)

    def rest(self, names: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
        """Where the parameters of all other layers lie in theta: ascending indices [size - k]."""
        spans = self._spans(names)
        starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), self.size]
        return _places(zip(starts, ends, strict=True), device)

    def assemble(self, names: Sequence[str], own: Tensor, others: Tensor) -> Tensor:
        """theta [P] of the named layers' parameters [k] and those of all other layers [size - k]."""
        theta = own.new_zeros(self.padded).index_copy(0, self.part(names, own.device), own)
        return theta.index_copy(0, self.rest(names, own.device), others)

    def _spans(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """(start, end) of the named parameters: ascending, none inside of another."""
        places = self.slices | self.tensors
        for name in names:
            if name not in places:
                known = ", ".join(places)
                raise FedRayError(f"layer {name!r}: the network has none of that name; choose from {known}")
        found: list[tuple[int, int]] = []
        for start, end in sorted((places[name].start, places[name].stop) for name in names):
            if found and start < found[-1][1]:
                start, end = found[-1][0], max(end, found.pop()[1])
            found.append((start, end))
        return found

    def pad(self, theta: Tensor) -> Tensor:
        """Zero the padding of a vector [P], so that it cannot enter a norm or a divergence."""
        return torch.cat([theta[: self.size], theta.new_zeros(self.padded - self.size)])


def is_chain(layers: nn.Module) -> bool:
    """Whether a caller's network is a chain in which every layer with parameters is one that a model knows.

    A chain in which layers share parameters is none: a model would give each its own.
    """
    if type(layers) is not nn.Sequential or _shared(layers):
        return False
    return all(_known(layer) or not any(True for _ in layer.parameters()) for layer in _unpacked(layers))


def _known(layer: nn.Module) -> bool:
    """Whether a layer is computed here: linear, a convolution or a normalization, with a bias and nothing special."""
    if type(layer) is nn.Linear:
        return layer.bias is not None
    if type(layer) is nn.Conv2d:
        ungrouped = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"
        return layer.bias is not None and ungrouped
    return type(layer) in (BiLSTM, nn.GroupNorm)


def _parametric(layer: nn.Module) -> bool:
    """Whether a layer takes parameters from the vector; a GroupNorm may have none."""
    return isinstance(layer, PARAMETRIC) and not (isinstance(layer, nn.GroupNorm) and not layer.affine)


def own_module(model: Model) -> OwnModule | None:
    """The caller's module, where the network is one."""
    return next((layer for layer in model.layers if isinstance(layer, OwnModule)), None)


def linear(model: Model) -> bool:
    """Whether all layers with parameters are fully connected."""
    return all(isinstance(layer, nn.Linear) for layer in model.layers if _parametric(layer))


def _places(spans: Iterable[tuple[int, int]], device: torch.device | str) -> Tensor:
    """The numbers in some spans [k], made on the device itself: a copy would interrupt what a GPU replays."""
    parts = [torch.arange(start, end, device=device) for start, end in spans]
    return torch.cat([torch.empty(0, dtype=torch.int64, device=device), *parts])


def check_memory(floats: int, what: str, remedy: str) -> None:
    """Raise FedRayError for more floats than this machine's memory can hold once: asking for it could hang."""
    wanted = FLOAT_BYTES * floats
    there = psutil.virtual_memory().total
    if wanted > there:
        raise FedRayError(
            f"{what} take {wanted / 2**30:.0f} GiB, and this machine has {there / 2**30:.0f} GiB of memory; {remedy}"
        )


def _shared(layers: nn.Sequential) -> bool:
    """Whether a parameter has several places in a network."""
    return len(list(layers.parameters())) < len(list(layers.named_parameters(remove_duplicate=False)))


def _unpacked(layers: nn.Sequential) -> Iterator[nn.Module]:
    for layer in layers:
        if type(layer) is nn.Sequential:
            yield from _unpacked(layer)
        else:
            yield layer


def _check(place: int, layer: nn.Module) -> None:
    """Raise FedRayError for a layer whose parameters, state or randomness would be lost without a word."""
    what = f"network: layer {place} ({type(layer).__name__})"
    known = "nn.Linear, nn.Conv2d, nn.GroupNorm, BiLSTM and modules without parameters or buffers"
    if type(layer) in (nn.Linear, nn.Conv2d, nn.GroupNorm, BiLSTM, OwnModule):
        return  # a subclass may compute something else
    held = [name for name, _ in (*layer.named_parameters(), *layer.named_buffers())]
    if held or isinstance(layer, PARAMETRIC):
        reason = f"holds {', '.join(held)}, which would stay out of the posterior" if held else "is not the known one"
        raise FedRayError(f"{what}: {reason}; build the network of {known}")
    if any(isinstance(part, nn.modules.dropout._DropoutNd) for part in layer.modules()):
        raise FedRayError(f"{what}: draws random numbers of its own, which no seed repeats; leave it out")


def _shapes(name: str, layer: nn.Module) -> tuple[tuple[int, ...], ...]:
    """The shapes of a layer's parameters: weight and bias; of an LSTM, those for inputs, then those for states."""
    if isinstance(layer, BiLSTM | OwnModule):
        return layer.shapes
    assert isinstance(layer, nn.Linear | nn.Conv2d | nn.GroupNorm)
    if not _known(layer):
        reason = "needs a bias, one group, no dilation and padding with zeros"
        raise FedRayError(f"layer {name} ({layer}): {reason}; rebuild it that way")
    if isinstance(layer, nn.Linear):
        return (layer.in_features, layer.out_features), (layer.out_features,)
    if isinstance(layer, nn.GroupNorm):
        return (layer.num_channels,), (layer.num_channels,)
    return tuple(layer.weight.shape), (layer.out_channels,)


def _activation(layer: nn.Module) -> bool:
    return type(layer).__module__ == nn.ReLU.__module__


def _apply(layer: nn.Module, x: Tensor, weights: Iterator[Tensor]) -> Tensor:
    """A layer's output; it takes what parameters it has from ``weights``."""
    if isinstance(layer, nn.Linear):
        return x @ next(weights) + next(weights)
    if isinstance(layer, nn.Conv2d):
        return torch.nn.functional.conv2d(x, next(weights), next(weights), layer.stride, layer.padding)  # type: ignore[arg-type]
    if isinstance(layer, nn.GroupNorm) and layer.affine:
        return torch.nn.functional.group_norm(x, layer.num_groups, 1 + next(weights), next(weights), layer.eps)
    if isinstance(layer, BiLSTM):
        return bilstm(x, next(weights), next(weights), next(weights), next(weights))
    if isinstance(layer, OwnModule):
        return layer.call([next(weights) for _ in layer.names], x)
    return layer(x)
