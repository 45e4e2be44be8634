"""The gradient of chains of convolutions, normalizations, poolings and linear layers, written by hand.

On a CPU, PyTorch's max_pool2d takes a quarter of the time of a small network's step: it looks for its maxima one by
one, where rows and columns can be compared at once. The calls of torch.func are saved, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fedray.nets.model import Model

Halves = Callable[[Tensor], tuple[Tensor, Tensor]]


def convolutional(model: Model) -> bool:
    """Whether the network is a chain of convolutions, ReLUs, 2x2 max poolings, flattenings and linear layers.

    GroupNorms of pictures may be among them: before the flattening.
    """
    kinds = [type(layer) for layer in model.layers]
    flat = next((place for place, layer in enumerate(model.layers) if _flattens(layer)), len(kinds))
    if nn.Conv2d not in kinds or nn.Linear in kinds[:flat]:  # a linear layer of pictures acts on their last axis
        return False
    if nn.GroupNorm in kinds[flat:]:
        return False
    return all(
        type(layer) in (nn.ReLU, nn.Linear) or _halves(layer) or _flattens(layer) or _padded(layer) or _scales(layer)
        for layer in model.layers
    )


def _padded(layer: nn.Module) -> bool:
    """Whether a layer is a convolution whose padding is a number: the gradient of others is PyTorch's own matter."""
    return type(layer) is nn.Conv2d and not isinstance(layer.padding, str)


def _scales(layer: nn.Module) -> bool:
    """Whether a layer is a GroupNorm with parameters."""
    return type(layer) is nn.GroupNorm and layer.affine


def backpropagation(model: Model, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted NLL [] of a batch at theta [P] in nats, and its gradient [P], of a network that is `convolutional`."""
    weights = iter(model.split(theta))
    layers = _pooled_first([*model.layers])
    inputs, own = [], []
    for layer in layers:
        inputs.append(x)
        own.append(_parameters(layer, weights))
        x = _forward(layer, x, own[-1])
    value, g, noise = model.density.slopes(x, model.noise(theta), y, weight)
    grads: list[Tensor] = []
    outputs = [*inputs[1:], x]
    for place in reversed(range(len(layers))):
        g, mine = _backward(layers[place], inputs[place], outputs[place], own[place], g, place > 0)
        grads = [*mine, *grads]
    return value, model.join(grads, noise)


def _pooled_first(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The same function to the bit, with every ReLU after the pooling that follows it: on a quarter of the numbers."""
    order = [*layers]
    for place in range(len(order) - 1):
        if type(order[place]) is nn.ReLU and _halves(order[place + 1]):
            order[place], order[place + 1] = order[place + 1], order[place]
    return order


def _parameters(layer: nn.Module, weights: Iterator[Tensor]) -> tuple[Tensor, ...]:
    return (next(weights), next(weights)) if isinstance(layer, nn.Linear | nn.Conv2d | nn.GroupNorm) else ()


def _forward(layer: nn.Module, x: Tensor, own: tuple[Tensor, ...]) -> Tensor:
    if isinstance(layer, nn.Linear):
        return x @ own[0] + own[1]
    if isinstance(layer, nn.Conv2d):
        return torch.nn.functional.conv2d(x, *own, layer.stride, layer.padding)  # type: ignore[arg-type]
    if isinstance(layer, nn.GroupNorm):
        return torch.nn.functional.group_norm(x, layer.num_groups, 1 + own[0], own[1], layer.eps)
    if isinstance(layer, nn.MaxPool2d):
        return torch.maximum(*_columns(torch.maximum(*_rows(x))))
    return layer(x)


def _backward(
    layer: nn.Module, x: Tensor, out: Tensor, own: tuple[Tensor, ...], g: Tensor, needed: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """dL/dx, which may be anything unless it is needed, and dL/dW, dL/db, of g = dL/dout."""
    if isinstance(layer, nn.Linear):
        return g @ own[0].mT, (x.mT @ g, g.sum(-2))
    if isinstance(layer, nn.Conv2d):
        return _backward_convolution(layer, x, own[0], g, needed)
    if isinstance(layer, nn.GroupNorm):
        return _backward_normalization(layer, x, own[0], g)
    if isinstance(layer, nn.MaxPool2d):
        return _spread(x, out, g), ()
    if isinstance(layer, nn.ReLU):
        return torch.ops.aten.threshold_backward(g, out, 0), ()
    return g.reshape(x.shape), ()


def _backward_convolution(
    layer: nn.Conv2d, x: Tensor, weight: Tensor, g: Tensor, needed: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    none, plain = (0, 0), (1, 1)
    dx, dw, db = torch.ops.aten.convolution_backward(
        g, x, weight, [layer.out_channels], layer.stride, layer.padding, plain, False, none, 1, [needed, True, True]
    )
    return dx if needed else g, (dw, db)


def _backward_normalization(
    layer: nn.GroupNorm, x: Tensor, scale: Tensor, g: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Of y = (1 + s) z + b with z = (x - m) r, m and 1/r the mean and sd of a group of an example's channels.

    With h = (1 + s) g, dL/dx = r (h - mean(h) - z mean(h z)), the means those of the group.
    """
    grouped = x.unflatten(1, (layer.num_groups, -1)).flatten(2)
    variance, mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
    rate = (variance + layer.eps).rsqrt()
    z = (grouped - mean) * rate
    h = (g * (1 + scale)[:, None, None]).reshape(grouped.shape)
    dx = rate * (h - h.mean(-1, keepdim=True) - z * (h * z).mean(-1, keepdim=True))
    return dx.reshape(x.shape), ((g * z.reshape(x.shape)).sum((0, 2, 3)), g.sum((0, 2, 3)))


def _rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The upper and the lower numbers of all 2x2 windows of x [..., H, W], each [..., H // 2, 2 (W // 2)]."""
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    return x[..., 0:height:2, :width], x[..., 1:height:2, :width]


def _columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """The left and the right numbers of pairs in the rows of x [..., W], each [..., W // 2]."""
    return x[..., ::2], x[..., 1::2]


def _spread(x: Tensor, out: Tensor, g: Tensor) -> Tensor:
    """g [..., h, w] to the place of the maximum of each window of x [..., H, W], zeros elsewhere.

    Of equal numbers, the left ones go before the right ones, and then the upper before the lower.
    """
    upper, lower = _rows(x)
    higher = torch.maximum(upper, lower)
    left = g * _is(higher[..., ::2], out)
    columns = _placed(_columns, (left, g - left), higher)
    above = columns * _is(upper, higher)
    return _placed(_rows, (above, columns - above), x)


def _placed(places: Halves, parts: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
    """The two parts at their places in a tensor of the last two sizes of another, with zeros elsewhere."""
    whole = parts[0].new_zeros(*parts[0].shape[:-2], *like.shape[-2:])
    for place, part in zip(places(whole), parts, strict=True):
        place.copy_(part)
    return whole


def _is(x: Tensor, maximum: Tensor) -> Tensor:
    """1 where x is the maximum, else 0, as floats: a mask of bools would be converted to be multiplied with."""
    return 1 - torch.sign(maximum - x)


def _halves(layer: nn.Module) -> bool:
    """Whether a layer is max pooling of 2x2 windows that do not overlap."""
    if type(layer) is not nn.MaxPool2d:
        return False
    sizes = [value if isinstance(value, tuple) else (value, value) for value in (layer.kernel_size, layer.stride)]
    plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
    return set(sizes) == {(2, 2)} and plain and not layer.ceil_mode and not layer.return_indices


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
