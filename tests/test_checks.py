"""The outcome of a check: passed, failed or skipped, and of several together."""

import math

import pytest

from ebm_app.evaluation.selftest import Check, all_passed, judge

PASSED = judge("predicted noise", 0.001, 0.0, 0.02, "of the head")
FAILED = judge("mean time score", -0.5, 0.1, 0.1, "summed over the clock")
SKIPPED = Check("predicted noise", "not finite")


@pytest.mark.parametrize(
    ("value", "stderr", "passed"),
    [(0.1, 0.0, True), (-0.39, 0.1, True), (0.41, 0.1, False), (-0.11, 0.0, False)],
)
def test_a_check_passes_within_its_allowance_and_three_standard_errors(value, stderr, passed):
    assert judge("check", value, stderr, 0.1, "").passed is passed


@pytest.mark.parametrize(("value", "stderr"), [(math.nan, 0.1), (0.0, math.nan), (math.inf, 0.1)])
def test_an_unknown_value_is_skipped_and_not_passed(value, stderr):
    check = judge("check", value, stderr, 0.1, "of two draws")
    assert check.passed is None and check.outcome == "skipped" and check.value is None
    assert "not finite" in check.note


def test_all_passed_needs_one_that_ran_and_none_that_failed():
    assert all_passed([PASSED]) and all_passed([PASSED, SKIPPED])
    assert not all_passed([PASSED, FAILED]) and not all_passed([SKIPPED]) and not all_passed([])
