r"""Conditional mutual information, by the chain rule and with one error.

    I(X; Y | Z) = I(X; (Y, Z)) - I(X; Z),   in nats.

Both terms are of the same rows, so that their errors are not independent: the error is that of the
influence of the rows on the difference, to which is added, as squares, what either term was not
sure of beside its rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ebm_app.tabular.columns import Columns, check_pair
from ebm_app.tabular.estimate import Estimate, error_of_rows
from ebm_app.tabular.information import InformationEstimate
from ebm_app.tabular.mutual_information import mutual_information
from ebm_app.tabular.scores import row_groups


@dataclass(frozen=True)
class ConditionalEstimate(Estimate):
    """Nats: ``value``, its standard error ``stderr``, and the two terms, ``with_y`` I(X; (Y, Z))
    and ``without_y`` I(X; Z). A value near 0 may come out below it."""

    value: float
    stderr: float
    with_y: InformationEstimate
    without_y: InformationEstimate

    def doubts(self) -> dict[str, bool]:
        terms = {"I(X; (Y, Z))": self.with_y, "I(X; Z)": self.without_y}
        return {
            f"of {name}, {text}": is_so
            for name, term in terms.items()
            for text, is_so in term.doubts().items()
        }

    def lines(self) -> list[str]:
        low, high = self.interval
        text = f"conditional mutual information {self.value:.4f} ± {self.stderr:.4f} nats, "
        text += f"95 percent interval {low:.4f} to {high:.4f}"
        terms = f"{self.with_y.value:.4f} of X and (Y, Z), less {self.without_y.value:.4f} of X"
        return [text, f"{terms} and Z"]


def conditional_mutual_information(
    x: Any, y: Any, z: Any, num_folds: int = 3, steps: int = 2_000, random_state: int = 0
) -> ConditionalEstimate:
    """I(X; Y | Z) in nats from independent rows of all three.

    Args:
        x, y, z: arrays or data frames of numbers, (N, d) each, or (N,) for one column; row i of
            all is one draw. The others as for ``mutual_information``.

    >>> x, y, noise = np.random.default_rng(0).standard_normal((3, 500))
    >>> found = conditional_mutual_information(x, y, x + y + noise, steps=20)
    >>> exact = -math.log(1 - 0.5**2) / 2  # the partial correlation is -1/2; I(X; Y) is 0
    >>> found.interval[0] < exact < found.interval[1], found.stderr < 0.06
    (True, True)

    Raises:
        UserError: as ``mutual_information``.
    """
    of_x, of_y, of_z = (
        Columns.of(side, name) for side, name in zip((x, y, z), "xyz", strict=True)
    )
    check_pair(of_y, of_z)
    given = num_folds, steps, random_state
    names = [label.strip("'") for label in (*of_y.labels, *of_z.labels)]
    both = Columns(np.hstack([of_y.values, of_z.values]), "y and z", names)
    with_y = mutual_information(of_x, both, *given)
    without_y = mutual_information(of_x, of_z, *given)
    rows = np.hstack([of_x.values, both.values])
    influence = torch.from_numpy(with_y.influence - without_y.influence)
    of_rows = error_of_rows(influence, torch.from_numpy(row_groups(rows)))
    stderr = math.hypot(of_rows, with_y.beside_rows, without_y.beside_rows)
    return ConditionalEstimate(with_y.value - without_y.value, stderr, with_y, without_y)
