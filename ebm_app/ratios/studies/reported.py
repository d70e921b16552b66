"""What the paper reports, to print beside ours (arXiv:2502.02300, appendices E and F).

``reported.csv`` has a row for each cell of its tables: mean and standard deviation over three runs
of the mean squared error of the log ratio, in nats^2, and milliseconds a step on the authors'
machine.
"""

from pathlib import Path
from typing import NamedTuple

import pandas as pd


class Reported(NamedTuple):
    """A cell of the paper."""

    mean: float
    deviation: float
    ms: float


_TABLE = pd.read_csv(Path(__file__).with_name("reported.csv"))
#: (problem, method) -> what the paper reports
REPORTED: dict[tuple[str, str], Reported] = {
    (problem, method): Reported(*cell) for problem, method, *cell in _TABLE.itertuples(index=False)
}
