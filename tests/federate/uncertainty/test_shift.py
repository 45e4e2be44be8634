"""Corruptions: what leaves an image as it is, a known turn, and that severity grows."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from fedray.federate.uncertainty.shift import KINDS, blur, corruptions, noise, rotation

IMAGES = torch.rand(6, 2, 12, 12, generator=torch.Generator().manual_seed(0))
NORMALS = torch.randn(6, 2, 12, 12, generator=torch.Generator().manual_seed(1))


def test_images_have_all_kinds_features_noise_and_texts_none():
    found = [(each.kind, each.severity) for each in corruptions((1, 8, 8))]
    assert found == [("none", 0), *((kind, s) for kind in ("noise", "blur", "rotation") for s in range(1, 6))]
    assert [each.kind for each in corruptions((54,))] == ["none"] + ["noise"] * 5
    assert list(corruptions((40, 50))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_severity_changes_the_inputs_more(kind):
    ramps = IMAGES[..., :1] + torch.arange(12) ** 2  # a turn of white noise would have no severity
    changes = [
        float((each.apply(ramps, NORMALS) - ramps).square().mean())
        for each in corruptions((2, 12, 12))
        if each.kind in ("none", kind)
    ]
    assert changes[0] == 0
    assert all(a < b for a, b in itertools.pairwise(changes))


def test_noise_is_measured_in_standard_deviations_of_the_inputs():
    assert_close(noise(0.5, 3 * IMAGES, NORMALS) - 3 * IMAGES, 1.5 * IMAGES.std() * NORMALS)
    assert noise(0.5, torch.ones(1, 1), torch.ones(1, 1)).item() == 1  # a single number has no deviation


def test_a_turn_by_a_right_angle_moves_pixels_only():
    assert_close(rotation(90.0, IMAGES, NORMALS), IMAGES.rot90(1, (2, 3)), atol=1e-5, rtol=0)
    assert_close(rotation(0.0, IMAGES, NORMALS), IMAGES, atol=1e-6, rtol=0)


def test_images_that_are_not_square_turn_without_being_stretched():
    wide = torch.zeros(1, 1, 9, 15)
    wide[..., 4, 5:10] = 1  # a line of five pixels through the centre
    turned = rotation(90.0, wide, wide)
    assert_close(turned[0, 0, :, 7], torch.tensor([0, 0, 1.0, 1, 1, 1, 1, 0, 0]), atol=1e-5, rtol=0)


def test_blur_keeps_a_constant_and_averages_the_rest():
    assert_close(blur(0.1, torch.full((1, 1, 8, 8), 3.0), NORMALS), torch.full((1, 1, 8, 8), 3.0))
    assert blur(0.1, IMAGES, NORMALS).std() < 0.6 * IMAGES.std()
    assert_close(blur(1e-3, IMAGES, NORMALS), IMAGES)


def test_images_that_are_not_square_are_blurred_alike_in_both_directions():
    wide = torch.zeros(1, 1, 21, 63)
    wide[..., 10, 31] = 1
    spot = blur(0.05, wide, wide)[0, 0, 5:16, 26:37]
    assert_close(spot, spot.T)
