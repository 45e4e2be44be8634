"""Adam is torch.optim.Adam, and bitwise the same alone and stacked."""

import pytest
import torch
from torch.testing import assert_close

from fedray.arrays import trees
from fedray.arrays.optim import _plain, adam_, zero_moments
from fedray.arrays.rng import Stream
from tests.helpers import differing


def grads(*shape, steps=40):
    """Gradients of very different sizes, zeros among them."""
    scale = torch.logspace(-6, 3, shape[-1])
    scale[::7] = 0
    return Stream(0, "grads").normal([steps, *shape]) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr", [0.001, 0.3])
def test_adam_is_torchs_over_many_steps(lr, dtype):
    thetas = list(Stream(0, "theta").normal([2, 64]).to(dtype))
    references = [theta.clone().requires_grad_() for theta in thetas]
    optimizer, moments = torch.optim.Adam(references, lr=lr), [zero_moments(theta) for theta in thetas]
    for number, both in enumerate(grads(2, 64).to(dtype), 1):
        t, kept = torch.tensor(number - 1.0), both.clone()
        for reference, grad in zip(references, kept, strict=True):
            reference.grad = grad.clone()
        optimizer.step()
        assert adam_(thetas, both, moments, t, lr) == number
        for theta, reference in zip(thetas, references, strict=True):
            assert_close(theta, reference.detach(), rtol=1e-6, atol=1e-6 * lr * number)
        assert torch.equal(both, kept)
        assert t == number - 1


def step(thetas, moments, grads, t):
    thetas, moments = trees.tree_map(torch.Tensor.clone, (thetas, moments))
    return thetas, moments, adam_(thetas, grads, moments, t, 0.01)


@pytest.mark.parametrize("shared_time", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_client_is_bitwise_the_same_alone_and_stacked(axis, shared_time):
    """Two vectors of each of three clients, which are at the same step or not."""
    thetas = tuple(Stream(0, "theta").normal([2, 3, 64]))
    stacked = thetas, tuple(map(zero_moments, thetas)), torch.zeros(3)
    alone = [trees.row(stacked, k) for k in range(3)]
    vmapped = torch.vmap(step, in_dims=(0, 0, axis, None if shared_time else 0))
    for t, (a, b) in enumerate(grads(2, 3, 64, steps=10)):
        times = torch.full((3,), float(t)) if shared_time else torch.tensor([t, 2.0 * t, 7.0])
        alone = [step(*state[:2], (a[k], b[k]), times[k]) for k, state in enumerate(alone)]
        moved = a.movedim(0, axis), b.movedim(0, axis)
        stacked = vmapped(*stacked[:2], moved, times[0] if shared_time else times)
        assert differing(stacked, trees.stack(alone)) == []


def test_the_steps_that_compile_are_the_fused_ones_to_rounding():
    start, given = Stream(0, "theta").normal([2, 64]), Stream(0, "grads").normal([4, 2, 64])

    def ended(step):
        thetas, t = list(start.clone()), torch.zeros(())
        moments = [zero_moments(theta) for theta in thetas]
        for both in given:
            t = step(thetas, list(both.clone()), moments, t, 0.01)
        return torch.stack(thetas)

    assert_close(ended(_plain), ended(adam_), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_may_lie_in_memory_as_it_likes(stacked):
    wide = Stream(0, "wide").normal([2, 64, 3])
    for strided in (wide[..., 1], torch.tensor(0.5).expand(2, 64)):
        found = []
        for grad in (strided, strided.contiguous()):
            theta, moments = torch.zeros(2, 64), zero_moments(torch.zeros(2, 64))

            def step(theta, grad, moments):
                t = adam_([theta], [grad], [moments], torch.tensor(0.0), 0.1)
                return theta, t

            if stacked:
                torch.vmap(step, in_dims=(0, 0, 0))(theta, grad, moments)
            else:
                step(theta[0], grad[0], trees.row(moments, 0))
            found.append(theta)
        assert torch.equal(*found)
