"""What readers of records need of evaluations: keys, types and ranges; a record may
hold more.

Records are written by ``ebm_app.io.cli.RunRecord``, and may come from elsewhere.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Len

from ebm_app.io.fields import Count, NonNegative, Number, Seed


@dataclass(frozen=True)
class BitsRow:
    """Bits per dim by one estimator."""

    bits_per_dim: Number
    stderr: Number
    num_images: Count
    repeats: Count
    eps: Number
    nfe: Number
    numerical_error: Number | None


@dataclass(frozen=True)
class BitsFigures:
    """Bits per dim by the first estimator, and by all."""

    bits_per_dim: Number
    stderr: Number
    num_images: Count
    repeats: Count
    eps: Number
    final_variance: Number
    split: str
    estimator: str
    estimators: dict[str, BitsRow]
    dequantisation: str = ""


@dataclass(frozen=True)
class BitsRecord:
    """bpd.json of evaluate/bpd.py."""

    command: list[str]
    figures: BitsFigures


@dataclass(frozen=True)
class LogZRow:
    """log Z by one method."""

    log_z: Number
    stderr: Number
    ess: Number
    num: Count
    warnings: list[str]


@dataclass(frozen=True)
class LogZFigures:
    """log Z by several methods; bits per dim by ``method``."""

    energy: str
    method: str
    bits_per_dim: Number
    bits_per_dim_stderr: Number
    methods: dict[str, LogZRow]


@dataclass(frozen=True)
class LogZRecord:
    """ais.json of evaluate/ais.py."""

    command: list[str]
    figures: LogZFigures


@dataclass(frozen=True)
class SampleMetrics:
    """Metrics of images by a classifier."""

    frechet: Number
    histogram_distance: Number
    class_balance: Number
    confidence: Number
    clear_share: Number
    outside: Number


@dataclass(frozen=True)
class SamplerRow(SampleMetrics):
    """Metrics of what a sampler drew, and its costs."""

    run: str
    nfe: Number
    seconds: Number
    sampler: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Floor(SampleMetrics):
    """The metrics of held-out images, and their spread over draws."""

    num_images: Count
    spread: SampleMetrics


@dataclass(frozen=True)
class SamplerFigures:
    """The table of a study of samplers."""

    classifier_accuracy: Number
    floor: Floor
    table: list[SamplerRow]
    study: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplerRecord:
    """samplers.json of evaluate/samplers.py."""

    command: list[str]
    figures: SamplerFigures


@dataclass(frozen=True)
class CopyFigures:
    """How near drawn images lie to the training images."""

    num_images: Count
    num_held_out: Count
    median_distance: Number
    median_distance_held_out: Number
    copies: Number
    quantile: Number
    identical: Count


@dataclass(frozen=True)
class CopyRecord:
    """memorisation.json of evaluate/memorisation.py."""

    command: list[str]
    figures: CopyFigures


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
class TrialFigures:
    """One training of a table of log ratios."""

    validation_error: Number
    best_step: Count
    test: dict[str, Any]
    quadrature_distance: Number
    nfe: Count
    curve: list[dict[str, Any]]


@dataclass(frozen=True)
class TrialRecord:
    """The record of one training of a table of log ratios."""

    figures: TrialFigures


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
