"""Compare estimators of mutual information on laws with known information.

python evaluate/information.py
python evaluate/information.py --laws parabola --estimators classifier --num_seeds 3

Each cell draws rows with one seed and estimates once. Finished cells are kept in --output_dir, so
that an interrupted study can be resumed. Bias is the mean of value minus truth in nats, coverage
the fraction of 95 percent intervals that contain the truth.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import trapezoid
from scipy.special import entr
from scipy.stats import entropy, norm

from ebm_app.cli.command_line import parse, run_script
from ebm_app.utils.fields import AtLeastTwo, Draws, configuration, setting
from ebm_app.utils.files import read_json, write_json
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.registry import choose

if TYPE_CHECKING:
    from ebm_app.ratios.cross_fit import CrossFitRatio

Rows = tuple[np.ndarray, np.ndarray]
#: Joint probabilities of two columns of three values
PROBABILITIES = np.array([[17, 4, 4], [4, 17, 4], [4, 4, 17]]) / 75
#: Standard deviation of the noise of the parabola
NOISE = 0.5


def gaussian(nats: float, dim: int) -> Callable[..., Rows]:
    """Return draws of X and Y (n, dim) whose pairs of columns share ``nats`` equally."""
    rho = math.sqrt(-math.expm1(-2 * nats / dim))

    def draw(numbers: np.random.Generator, num: int) -> Rows:
        x, noise = numbers.standard_normal((2, num, dim))
        return x, rho * x + math.sqrt(1 - rho**2) * noise

    return draw


def discrete(numbers: np.random.Generator, num: int) -> Rows:
    """Draw two columns by ``PROBABILITIES``."""
    x, y = np.divmod(numbers.choice(9, num, p=PROBABILITIES.ravel()), 3)
    return x, y


def parabola(numbers: np.random.Generator, num: int) -> Rows:
    """Draw Y = X^2 + noise."""
    x, noise = numbers.standard_normal((2, num))
    return x, x**2 + NOISE * noise


def parabola_information() -> float:
    """Return I(X; Y) = h(Y) - h(noise) of the parabola by quadrature."""
    x, y = np.linspace(-8, 8, 2_001), np.linspace(-4, 40, 10_001)
    density = sum(norm.pdf(a) * norm.pdf(y, a**2, NOISE) for a in x) * (x[1] - x[0])
    return float(trapezoid(entr(density), y) - norm(scale=NOISE).entropy())


def repeated(numbers: np.random.Generator, num: int) -> Rows:
    """Draw num / 10 rows of a Gaussian with 0.5 nats and repeat each ten times."""
    x, y = gaussian(0.5, 1)(numbers, num // 10)
    return x.repeat(10, 0), y.repeat(10, 0)


#: Name -> draws and I(X; Y) in nats
LAWS: dict[str, tuple[Callable[..., Rows], float]] = {
    **{
        f"gaussian_{nats:g}_{dim}x{dim}": (gaussian(nats, dim), nats)
        for nats, dim in ((0, 3), (0.5, 1), (2, 3), (10, 20))
    },
    "discrete": (discrete, float(entropy(PROBABILITIES.ravel(), np.full(9, 1 / 9)))),
    "parabola": (parabola, parabola_information()),
    "repeated": (repeated, 0.5),
}


def classifier(random_state: int) -> "CrossFitRatio":
    """Return the classifier's estimator."""
    from ebm_app.ratios import ClassifierRatio  # imports scikit-learn, not needed for --help

    return ClassifierRatio(random_state=random_state)


def ctsm(random_state: int) -> "CrossFitRatio":
    """Return the estimator by CTSM-v."""
    from ebm_app.ratios import CTSMRatio  # imports scikit-learn

    return CTSMRatio(random_state=random_state)


ESTIMATORS = {"classifier": classifier, "ctsm": ctsm}


@configuration(kw_only=True)
class Arguments:
    laws: tuple[str, ...] = setting("laws, by default all", ())
    estimators: tuple[str, ...] = setting("classifier or ctsm, by default both", ())
    num_rows: AtLeastTwo = setting("rows of each draw", 2_000)
    num_seeds: Draws = setting("draws of each law", 20)
    output_dir: Path = setting("folder of the cells and the table", Path("runs/information"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate every cell, seed by seed; return the table."""
    args = parse(Arguments, __doc__, argv)
    laws = [choose("law", name, LAWS) for name in args.laws or LAWS]
    estimators = [choose("estimator", name, ESTIMATORS) for name in args.estimators or ESTIMATORS]
    output = Output(args.output_dir / "information.json", args)
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in range(args.num_seeds):
        for law in laws:
            for name in estimators:
                path = output.folder / f"{law}_{args.num_rows}_{name}_{seed}.json"
                if not path.exists():
                    write_json(path, estimate(law, name, args.num_rows, seed))
                cells.setdefault((law, name), []).append(read_json(path))
        table = [row(law, name, records) for (law, name), records in cells.items()]
        output.write({"table": table})
    print(to_markdown(table))
    output.save({"table": table})
    return {"table": table}


def estimate(law: str, name: str, num_rows: int, seed: int) -> dict[str, Any]:
    """Return the figures of one estimate and its core seconds."""
    from ebm_app.ratios import mutual_information  # imports scikit-learn

    draw, _ = LAWS[law]
    x, y = draw(np.random.default_rng(seed), num_rows)
    begin = time.process_time()
    found = mutual_information(x, y, ESTIMATORS[name](random_state=seed), random_state=seed)
    return {**found.figures(), "core_seconds": time.process_time() - begin}


def row(law: str, name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the table. Estimates without a value are counted as withheld."""
    truth = LAWS[law][1]
    valued = [record for record in records if record["value"] is not None]
    intervals = [record["interval"] for record in valued]
    return {
        "law": law,
        "truth": truth,
        "estimator": name,
        "seeds": len(records),
        "withheld": len(records) - len(valued),
        "bias": fmean(record["value"] - truth for record in valued) if valued else None,
        "coverage": fmean(low <= truth <= high for low, high in intervals) if valued else None,
        "width": fmean(high - low for low, high in intervals) if valued else None,
        "core_seconds": fmean(record["core_seconds"] for record in records),
    }


if __name__ == "__main__":
    raise SystemExit(run_script(main))
