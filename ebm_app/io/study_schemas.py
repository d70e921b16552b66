"""What readers of records need of evaluations: keys, types and ranges; a record may
hold more.

Records are written by ``ebm_app.io.cli.RunRecord``, and may come from elsewhere.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Len

from ebm_app.io.fields import NonNegative, Number, Seed


@dataclass(frozen=True)
class CheckRow:
    """A check of a self-test; one that was skipped has no numbers."""

    name: str
    note: str
    passed: bool | None
    value: Number | None = None
    stderr: Number | None = None
    allowance: Number | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        numbers = (self.value, self.stderr, self.allowance, self.passed)
        if any(number is None for number in numbers) and self.value is not None:
            raise ValueError("must have a value, stderr, allowance and passed, or be skipped")


@dataclass(frozen=True)
class MeanTimeScore:
    """The mean time score at shares of the clock, and its standard errors."""

    shares: list[Number]
    mean: list[Number]
    stderr: list[NonNegative]

    def __post_init__(self) -> None:
        if not len(self.shares) == len(self.mean) == len(self.stderr) > 0:
            raise ValueError("must be as many shares as means and standard errors")


@dataclass(frozen=True)
class SelfTestFigures:
    """A self-test."""

    checks: list[CheckRow]
    mean_time_score: MeanTimeScore


@dataclass(frozen=True)
class SelfTestRecord:
    """selftest.json of evaluate/selftest.py."""

    started: str
    figures: SelfTestFigures


@dataclass(frozen=True)
class HeldOutRecord:
    """held_out.json of evaluate/held_out.py: log-likelihoods of held-out images in nats, and the
    digest of the weights that they are of."""

    dataset: str
    split: str
    estimator: str
    dequantisation: str
    eps: Number
    seed: Seed
    weights: str
    log_prob: Annotated[list[Number], Len(2, 1_000_000)]
