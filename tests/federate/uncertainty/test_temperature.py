"""Temperature scaling: it recovers a temperature, its losses are those of the scaled model, and clients' losses add."""

import pytest
import torch
from torch.testing import assert_close

from fedray.federate.measures import metrics
from fedray.federate.uncertainty import temperature
from fedray.federate.uncertainty.temperature import TEMPERATURES, UNSCALED, best, losses, scaled

RNG = torch.Generator().manual_seed(0)
LOG_P = torch.randn(80, 5, generator=RNG).double().log_softmax(-1)
Y = (5 * torch.rand(80, generator=RNG)).long()


@pytest.mark.parametrize("place", [0, 7, UNSCALED, 40, len(TEMPERATURES) - 1])
def test_it_finds_the_temperature_that_a_calibrated_model_was_heated_by(place):
    """Labels occur exactly as often as the true model says, which the NLL then has for its minimum."""
    true = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    counts = (10 * true).round().long()
    y = torch.cat([torch.arange(3).repeat_interleave(count) for count in counts])
    log_p = true.log().repeat_interleave(10, 0)
    heated = torch.log_softmax(log_p * TEMPERATURES[place], -1)
    assert int(best(losses(heated, y))) == place
    assert_close(scaled(heated, TEMPERATURES[place]), log_p)


def test_the_losses_are_those_of_the_scaled_model():
    found = [metrics.evaluate(scaled(LOG_P, each)[None], Y).nll for each in TEMPERATURES]
    assert_close(losses(LOG_P, Y), torch.stack(found))
    assert_close(scaled(LOG_P, 1.0), LOG_P)


def test_the_federated_temperature_is_best_for_all_examples_together():
    parts = [losses(LOG_P[cut], Y[cut]) for cut in (slice(0, 20), slice(20, 80))]
    assert_close(sum(parts), losses(LOG_P, Y))
    own = best(torch.stack(parts))
    assert own.shape == (2,)
    assert own.min() <= best(sum(parts)) <= own.max()


def test_the_predicted_class_stays():
    for each in TEMPERATURES[:: len(TEMPERATURES) - 1]:
        assert torch.equal(scaled(LOG_P, each).argmax(-1), LOG_P.argmax(-1))


def test_without_calibration_examples_nothing_is_scaled():
    none = losses(LOG_P[:0], Y[:0])
    assert none.tolist() == [0] * len(TEMPERATURES)
    assert TEMPERATURES[int(best(none))] == 1


def test_a_model_without_errors_is_sharpened_to_the_end_of_the_grid():
    assert int(best(losses(LOG_P, LOG_P.argmax(-1)))) == 0
    assert temperature.TEMPERATURES[0] == 1 / 8
