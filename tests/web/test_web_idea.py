"""The time score of an image along the path, and its running integral."""

import numpy as np
import pytest
from conftest import digit

from ebm_app.data.levels import to_levels
from ebm_app.ebm import EBM
from ebm_app.evaluation.trace import NUM_TIMES, trace
from ebm_app.likelihood import TimeIntegral
from ebm_app.likelihood.dequantisation import noise_for
from ebm_app.web.idea import show_time


@pytest.fixture(scope="module")
def ebm():
    """Return the bundled model of digits."""
    return EBM.from_pretrained("digits")


def test_running_integral_ends_at_the_time_integral(ebm):
    found = trace(ebm, digit(), seed=3)
    levels = to_levels(digit(), ebm.config.num_levels)
    point = ebm.dequantise(levels, noise_for(levels, ebm.dtype, 3)[0])
    expected = TimeIntegral()(ebm.density.with_nodes(64), point.y, point.t)
    assert found.totals[-1] == pytest.approx(expected.value.item(), abs=0.5)
    nats = found.totals[-1] + point.negative_log_q.sum().item()
    assert found.bits == pytest.approx(-nats / (64 * np.log(2)))
    assert found.rates == pytest.approx(found.terms.sum((1, 2)), rel=1e-4, abs=1e-3)


def test_slider_goes_from_noise_to_the_image(ebm):
    found = trace(ebm, digit())
    assert (found.frames[-1] - digit()[0]).abs().max() <= 1 / 16 + 1e-6
    assert (found.frames[0] - digit()[0]).abs().mean() > 0.2
    noised, terms = show_time(found, 0.5)
    assert noised.size == terms.size
    assert np.asarray(noised)[0, 0] == round(255 * found.frames[NUM_TIMES // 2, 0, 0, 0].item())
    assert show_time(None, 0.5) == (None, None)
