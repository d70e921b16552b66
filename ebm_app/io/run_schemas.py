"""What readers of records need of training runs: keys, types and ranges; a record may
hold more.

Records are written by ``ebm_app.io.cli.RunRecord``, and may come from elsewhere.
"""

from dataclasses import dataclass, field

from ebm_app.io.fields import Count, Number, PositiveInt


@dataclass(frozen=True)
class FirstWeights:
    """The model whose weights a run began with, and what they had seen, where that is known."""

    model: str
    steps: Count = 0
    images: Count = 0
    training_seconds: Number = 0.0


@dataclass(frozen=True)
class Versions:
    """Versions of packages."""

    torch: str


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
