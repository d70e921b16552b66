"""The outcome of a check: passed, failed or skipped, and of several together."""

import json
import math

import pytest

from ebm_app.evaluation.checks import all_passed, as_record, describe, from_record, judge, skip

PASSED = judge("quadrature", 0.001, 0.0, 0.005, "32 against 128 nodes")
FAILED = judge("mean time score", -0.5, 0.1, 0.1, "summed over the clock")
SKIPPED = skip("E[p_1/p_0]", "ESS 1.0 of 100")


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


@pytest.mark.parametrize(
    ("check", "passed", "outcome"),
    [(PASSED, True, "passed"), (FAILED, False, "FAILED"), (SKIPPED, None, "skipped")],
)
def test_a_check_comes_back_from_json(check, passed, outcome):
    record = json.loads(json.dumps(as_record(check), allow_nan=False))
    assert record["passed"] is passed and record["outcome"] == outcome
    assert ("value" in record) == (passed is not None) and from_record(record) == check
    assert describe(check).startswith(outcome) and check.note in describe(check)


def test_a_skipped_check_of_an_earlier_record_is_skipped():
    record = {"name": "E[p_1/p_0]", "unit": "", "passed": True, "note": "ESS 1.0 of 100"}
    assert from_record(record) == SKIPPED
