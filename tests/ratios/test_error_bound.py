"""Terms of the bound on the error of a log ratio, against closed forms."""

import pytest
from exact import generator

from ebm_app.paths import LinearVPPath
from ebm_app.ratios.densities import gaussian_pair
from ebm_app.ratios.error_bound import discretisation_term
from ebm_app.ratios.problems import TOY_PROBLEMS, train_and_test


def test_discretisation_term_matches_closed_form():
    """p_t = N(4t, I), so that the time score 4 sum_i (x_i - 4t) has the slope -16 D."""
    pair = gaussian_pair(5)
    found = discretisation_term(pair, LinearVPPath(), pair.p1.sample(20, generator()), 10)
    assert found == pytest.approx((16 * 5) ** 2 / (2 * 10**2), rel=1e-9)


def test_squared_divergence_error_is_within_the_second_term():
    """The quadrature of the log ratio is nearly exact, so that the first term is not needed."""
    problem = TOY_PROBLEMS["gaussians_d2"].shorten(30)
    record = train_and_test(problem, "ctsm_v_time1", 0, 1e-2, 4_000, "cpu")
    gap = record["test"]["divergence"] - 16  # KL = D shift^2 / 2
    assert 0 < gap**2 < 2 * record["test"]["time_score_error"]
    assert record["curve"][-1][0] == 30 and record["ms"] > 0
