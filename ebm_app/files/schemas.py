"""What readers of records need of them: keys, types and ranges; a record may hold more.

Records are written by ``ebm_app.runs.cli.RunRecord``, and may come from elsewhere.
"""

from dataclasses import dataclass, field
from typing import Any

from ebm_app.fields import Count, Number, PositiveInt


@dataclass(frozen=True)
class Figures:
    """What a training came to."""

    steps: Count
    total_batch_size: PositiveInt
    bits_per_dim: Number
    images_per_second: Number
    training_seconds: Number
    device: str


@dataclass(frozen=True)
class FirstWeights:
    """The model whose weights a run began with, and what they had seen, where that is known."""

    model: str
    steps: Count = 0
    images: Count = 0
    training_seconds: Number = 0.0


@dataclass(frozen=True)
class Model:
    """What a report says of a model."""

    dataset: str
    image_shape: list[PositiveInt]
    space: str


@dataclass(frozen=True)
class Training:
    """What a report says of the settings of a training."""

    objective: str


@dataclass(frozen=True)
class Settings:
    """The settings of a training run."""

    ebm: Model
    training: Training
    init_from: FirstWeights | None = None


@dataclass(frozen=True)
class Versions:
    """Versions of packages."""

    torch: str


@dataclass(frozen=True)
class TrainingRun:
    """run.json of train/ebm.py; without figures while it goes on."""

    command: list[str]
    settings: Settings
    versions: Versions
    started: str
    figures: Figures | None
    git_revision: str | None = None


@dataclass(frozen=True)
class AnyRun:
    """A record of any script."""

    command: list[str]
    figures: dict[str, Any] | None


@dataclass(frozen=True)
class Start:
    """Where the weights of a run come from, in its settings."""

    init_from: FirstWeights | None = None


@dataclass(frozen=True)
class EarlierTraining:
    """What a run that starts from a model asks of that model's run.json."""

    @dataclass(frozen=True)
    class Seen:
        """What its weights have seen."""

        steps: Count
        total_batch_size: PositiveInt
        training_seconds: Number

    settings: Start = field(default_factory=Start)
    figures: Seen | None = None


@dataclass(frozen=True)
class CardRun:
    """What the card of a model says of its training."""

    @dataclass(frozen=True)
    class End:
        """What it came to."""

        steps: Count
        bits_per_dim: Number

    started: str
    versions: Versions
    settings: Start
    figures: End | None


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


@dataclass(frozen=True)
class MeanTimeScore:
    """The mean time score at shares of the clock, and its standard errors."""

    shares: list[Number]
    mean: list[Number]
    stderr: list[Number]


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
