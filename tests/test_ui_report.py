"""What the page says of a log-likelihood: the number, its error, and what it is called."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import GREY, digit

from ebm_app.image_models.ebm import EBM
from ebm_app.likelihood.bits import Likelihood
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.web.generate.likelihoods import REPEATS, likelihood_batches
from ebm_app.web.score import report
from ebm_app.web.score.numbers import with_error
from ebm_app.web.score.prepared import Prepared
from ebm_app.web.shared import mean_of


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-505.73, 10.49, "-506 ± 10"),
        (0.92814, 0.0175, "0.928 ± 0.018"),
        (0.92814, 0.0996, "0.93 ± 0.10"),
        (-71.92, 9.96, "-72 ± 10"),
        (-21370.0, 1340.0, "-21400 ± 1300"),
        (3.2e6, 4.56e5, "3200000 ± 460000"),
        (-0.0001, 0.02, "0.000 ± 0.020"),
        (8.0, 1.3e-5, "8.000000 ± 0.000013"),
        (8.0, 0.0, "8.0000 ± 0"),
    ],
)
def test_an_error_has_two_digits_and_its_value_ends_where_it_does(value, error, text):
    assert with_error(value, error) == text


def test_the_error_of_a_fixed_quadrature_is_no_smaller_for_more_draws(models):
    ebm = models.load("grey")
    images = digit().expand(8, -1, -1, -1)
    bound = ebm.log_prob(images, seed=3)
    spread = bound.log_prob.std().item() / np.sqrt(8)
    assert bound.error.mean() > 0
    assert mean_of(bound, "elbo", 64).log_prob_error == pytest.approx(spread)
    integral = ebm.log_prob(images, estimator="ratio", seed=3)
    spread = integral.log_prob.std().item() / np.sqrt(8)
    off = integral.error.square().mean().sqrt().item()
    found = mean_of(integral, "ratio", 64)
    assert found.log_prob_error == pytest.approx(np.hypot(spread, off)) and off > 0
    assert found.bits_error == pytest.approx(found.log_prob_error / (64 * np.log(2)))


def test_the_table_of_drawn_images_has_the_errors_of_the_score_tab(models, monkeypatch):
    monkeypatch.setattr(EBM, "default_estimator", "ratio")
    ebm, images = models.load("grey"), torch.cat([digit(0), digit(1)])
    (rows,) = likelihood_batches(ebm, images, seed=5)
    found = ebm.log_prob(images.repeat_interleave(REPEATS, 0), seed=mixed_seed(5, 0))
    for index, row in enumerate(rows):
        part = slice(index * REPEATS, (index + 1) * REPEATS)
        spread = found.log_prob[part].double().std().item() / np.sqrt(REPEATS)
        off = found.error[part].double().square().mean().sqrt().item()
        assert row.number == index + 1 and off > 0
        assert row.error == pytest.approx(np.hypot(spread, off))


def test_the_error_is_as_large_as_what_other_draws_and_seeds_change(models):
    ebm, groups = models.load("grey"), []
    for seed in (77, 78):
        values = ebm.log_prob(digit().expand(120, -1, -1, -1), seed=seed).log_prob
        groups += values.split(4)
    draws = Likelihood(torch.stack(groups), None, None, None, 0)
    means = [mean_of(draws._replace(log_prob=row), "elbo", 64) for row in draws.log_prob]
    claimed = np.sqrt(np.mean([mean.log_prob_error**2 for mean in means]))
    assert 0.75 < np.std([mean.log_prob for mean in means], ddof=1) / claimed < 1.3


def test_an_integral_that_is_not_normalised_says_so_and_is_called_no_bound():
    ebm = EBM(dataclasses.replace(GREY, stein_head=False, prediction="normalised"))
    result = ebm.log_prob(digit().expand(4, -1, -1, -1))
    text = report.report(report.metrics(result, ebm, Prepared(digit())), ebm.config.num_levels)
    lead = text.splitlines()[0]
    assert lead.endswith(", by the integral of the time score (ratio), not normalised")
    assert "bound" not in text.lower() and "and the estimator's own error" in text
