"""The outcome of a check: passed, failed, or no number."""

import math

import pytest
import torch
from conftest import error_of

from ebm_app.evaluation.selftest import judge


@pytest.mark.parametrize(
    ("mean", "stderr", "passed"),
    [(0.1, 0, True), (-0.39, 0.1, True), (0.41, 0.1, False), (-0.11, 0, False)],
)
def test_a_check_passes_within_its_allowance_and_three_standard_errors(mean, stderr, passed):
    values = mean + stderr * torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert judge("check", values, 0.1, "").passed is passed
    assert "check: not finite" in error_of(judge, "check", values * math.nan, 0.1, "")
