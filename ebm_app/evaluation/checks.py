"""The outcome of a check on a model: passed, failed or skipped; in words and as JSON."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

#: of most checks
UNIT = "bits per dim"
OUTCOMES = {True: "passed", False: "FAILED", None: "skipped"}


class Check(NamedTuple):
    """One identity: ``value`` should be 0 within ``allowance`` and three times ``stderr``, all in
    ``unit``. ``passed`` is None for a check that was skipped because its value is unknown."""

    name: str
    value: float | None
    stderr: float | None
    allowance: float | None
    unit: str
    passed: bool | None
    note: str

    @property
    def outcome(self) -> str:
        """ "passed", "FAILED" or "skipped"."""
        return OUTCOMES[self.passed]


def judge(
    name: str, value: float, stderr: float, allowance: float, note: str, unit: str = UNIT
) -> Check:
    """The check of a value; skipped where the value or its standard error is not finite."""
    if not (math.isfinite(value) and math.isfinite(stderr)):
        return skip(name, f"{note}: not finite")
    passed = abs(value) <= allowance + 3 * stderr
    return Check(name, value, stderr, allowance, unit, passed, note)


def skip(name: str, note: str) -> Check:
    """A check that was skipped, and why."""
    return Check(name, None, None, None, "", None, note)


def all_passed(checks: Iterable[Check]) -> bool:
    """Whether at least one check ran and every one that ran passed.

    >>> all_passed([skip("E[p_1/p_0]", "too few draws")])
    False
    """
    ran = [check.passed for check in checks if check.passed is not None]
    return bool(ran) and all(ran)


def describe(check: Check) -> str:
    """A check in one line."""
    line = f"{check.outcome:8}{check.name:20} "
    if check.passed is not None:
        line += (
            f"{check.value:+.4f} +- {check.stderr:.4f} {check.unit}, "
            f"allowed {check.allowance} and 3 errors; "
        )
    return line + check.note


def as_record(check: Check) -> dict[str, Any]:
    """A check as JSON, with its outcome in words; a skipped one has ``passed`` null and no
    numbers."""
    record = {**check._asdict(), "outcome": check.outcome}
    return {key: value for key, value in record.items() if value is not None or key == "passed"}


def from_record(record: dict[str, Any]) -> Check:
    """The check that ``as_record`` wrote."""
    if record.get("value") is None:
        return skip(record["name"], record["note"])
    return Check(**{key: record.get(key, "") for key in Check._fields})
