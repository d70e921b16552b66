"""How much work a table is."""

from dataclasses import dataclass, replace

from ebm_app.errors import UserError
from ebm_app.ratios.studies.problems import PROBLEMS, Problem


@dataclass(frozen=True)
class StudyBudget:
    """How much work a table is.

    Args:
        num_seeds: runs of the best learning rate, the first of them from the grid.
        num_points: points of validation and of test.
        iterations, learning_rates: in place of each problem's own, if given.
        first_seed: of the seeds, which follow each other.

    Raises:
        UserError: for numbers that leave no run.
    """

    num_seeds: int = 3
    num_points: int = 10_000
    iterations: int | None = None
    learning_rates: tuple[float, ...] = ()
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.num_seeds < 1 or self.num_points < 2:
            raise UserError("a table needs at least 1 seed and 2 points")
        if self.first_seed < 0:
            raise UserError("the first seed must not be negative")
        if any(not rate > 0 for rate in self.learning_rates):
            raise UserError("learning rates must be positive")

    def of(self, problem: str) -> Problem:
        """The problem with this budget."""
        found = PROBLEMS[problem]
        training = found.training
        if self.iterations is not None:
            every = min(training.eval_every, self.iterations)
            training = replace(training, iterations=self.iterations, eval_every=every)
        rates = self.learning_rates or found.learning_rates
        return replace(found, learning_rates=rates, training=training)

    def num_runs(self, problem: str) -> int:
        """Runs of a cell: one for each learning rate, and the best one's other seeds."""
        return len(self.of(problem).learning_rates) + self.num_seeds - 1
