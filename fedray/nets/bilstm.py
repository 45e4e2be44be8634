"""A bidirectional LSTM layer as a function of its weights, which stacks over clients like any other layer.

PyTorch's own LSTM is one fused call that vmap cannot stack. Here the two directions run side by side, so that a time
step is one product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BiLSTM(nn.Module):
    """Describes two LSTMs over sequences, one reading forwards and one backwards; it holds no weights itself.

    They are W [2, E, 4H], b [2, 4H], U [2, H, 4H], c [2, 4H]: directions first, and as in PyTorch the gates i, f, g, o
    and two biases.
    """

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.hidden = hidden
        self.shapes = ((2, inputs, 4 * hidden), (2, 4 * hidden), (2, hidden, 4 * hidden), (2, 4 * hidden))


def bilstm(x: Tensor, w: Tensor, b: Tensor, u: Tensor, c: Tensor) -> Tensor:
    """Hidden states [B, T, 2H] of both directions for sequences x [B, T, E], under the weights of a :class:`BiLSTM`.

    i, f, o = sigmoid, g = tanh of x_t W + b + h U + c;  cell' = f cell + i g,  h' = o tanh(cell').
    """
    both = torch.stack([x, x.flip(1)]).transpose(1, 2)  # [2, T, B, E]
    inputs = (both.flatten(1, 2) @ w + (b + c)[:, None]).unflatten(1, both.shape[1:3])  # of all times at once
    h = cell = None
    states = []
    for t in range(x.shape[1]):
        gates = inputs[:, t] if h is None else inputs[:, t] + h @ u
        i, f, _, o = gates.sigmoid().chunk(4, -1)
        new = i * gates.chunk(4, -1)[2].tanh()
        cell = new if cell is None else f * cell + new
        h = o * cell.tanh()
        states.append(h)
    forwards, backwards = torch.stack(states, 2).unbind()
    return torch.cat([forwards, backwards.flip(1)], -1)


class Ends(nn.Module):
    """The output at the last time and the final states, backwards and forwards: [B, T, 2H] -> [B, 4H].

    The forward state at the last time is among them twice, as in pFedBreD's network for Sent140.
    """

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.shape[-1] // 2
        return torch.cat([x[:, -1], x[:, 0, hidden:], x[:, -1, :hidden]], -1)
