"""Adam is torch.optim.Adam, and bitwise the same alone and stacked."""

import pytest
import torch
from torch.testing import assert_close

from fedray.optim import adam, zero_moments
from fedray.rng import Stream


def grads(*shape, steps=40):
    """Gradients of very different sizes, zeros among them."""
    scale = torch.logspace(-6, 3, shape[-1])
    scale[::7] = 0
    return Stream(0, "grads").normal([steps, *shape]) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr", [0.001, 0.3])
def test_adam_is_torchs_over_many_steps(lr, dtype):
    theta = Stream(0, "theta").normal([64]).to(dtype)
    reference = theta.clone().requires_grad_()
    optimizer, moments = torch.optim.Adam([reference], lr=lr), zero_moments(theta)
    for t, grad in enumerate(grads(64).to(dtype), 1):
        reference.grad = grad.clone()
        optimizer.step()
        theta, moments = adam(theta, grad, moments, torch.tensor(float(t)), lr)
        assert_close(theta, reference.detach(), rtol=1e-6, atol=1e-6 * lr * t)


def test_adam_leaves_its_arguments_alone():
    theta, grad = torch.ones(64), torch.ones(64)
    moments, t = zero_moments(theta), torch.ones(())
    adam(theta, grad, moments, t, 0.1)
    assert (theta == 1).all()
    assert (grad == 1).all()
    assert t == 1
    assert all(leaf.count_nonzero() == 0 for leaf in moments)


@pytest.mark.parametrize("shared_time", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_client_is_bitwise_the_same_alone_and_stacked(axis, shared_time):
    thetas, moments = Stream(0, "theta").normal([3, 64]), zero_moments(torch.zeros(3, 64))
    alone = [(theta, zero_moments(theta)) for theta in thetas]
    step = torch.vmap(adam, in_dims=(0, axis, 0, None if shared_time else 0, None))
    for t, grad in enumerate(grads(3, 64, steps=10), 1):
        times = torch.full((3,), float(t)) if shared_time else torch.tensor([t, 2.0 * t, 7.0])
        alone = [adam(theta, g, m, time, 0.01) for (theta, m), g, time in zip(alone, grad, times, strict=True)]
        thetas, moments = step(thetas, grad.movedim(0, axis), moments, times[0] if shared_time else times, 0.01)
        for k, (theta, (m, v)) in enumerate(alone):
            assert torch.equal(thetas[k], theta)
            assert torch.equal(moments.m[k], m)
            assert torch.equal(moments.v[k], v)
