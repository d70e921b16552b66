"""Mutual information by the neural estimators of the package benchmark-mi, on its own tasks.

    python -m venv runs/bmi
    runs/bmi/bin/pip install benchmark-mi==0.1.3 jax==0.4.30 jaxlib==0.4.30
    runs/bmi/bin/python tools/bmi_estimates.py

It needs an environment of its own, since that package asks for older ones than this project. Every
estimator has the settings that its package gives it; half of the rows are its test set. The lines
go to ebm_app/ratios/studies/bmi_estimates.csv; what stands there is not run again.

Source: Czyz et al. 2023, arXiv:2306.11078.
"""

import csv
import time
import warnings
from pathlib import Path

#: name of a task here -> name there
TASKS = {
    "normal_1x1": "1v1-normal-0.75",
    "bimodal_1x1": "1v1-bimodal-0.75",
    "half_cube_1x1": "half_cube-1v1-normal-0.75",
    "normal_cdf_1x1": "normal_cdf-1v1-normal-0.75",
    "wiggly_1x1": "wiggly-1v1-normal-0.75",
    "additive_uniform_0.1": "1v1-additive-0.1",
    "additive_uniform_0.75": "1v1-additive-0.75",
    "swiss_roll_2x1": "swissroll_x-normal_cdf-1v1-normal-0.75",
    **{f"dense_{d}x{d}": f"multinormal-dense-{d}-{d}-0.5" for d in (2, 3, 5, 25, 50)},
    **{f"sparse_{d}x{d}": f"multinormal-sparse-{d}-{d}-2-2.0" for d in (2, 3, 5, 25)},
    **{
        f"{ours}_{d}x{d}": f"{theirs}-multinormal-sparse-{d}-{d}-2-2.0"
        for ours, theirs in (
            ("half_cube", "half_cube"),
            ("normal_cdf", "normal_cdf"),
            ("spiral", "spiral"),
            ("spiral_normal_cdf", "spiral-normal_cdf"),
        )
        for d in (3, 5, 25)
    },
    **{
        f"student_{d}x{d}_df{df}": f"student-identity-{d}-{d}-{df}"
        for d, df in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3))
    },
    **{
        f"asinh_student_{d}x{d}_df{df}": f"asinh-student-identity-{d}-{d}-{df}"
        for d, df in ((1, 1), (2, 1), (3, 2), (5, 2))
    },
}
NUM_ROWS, SEED = 10_000, 0
OUTPUT = Path(__file__).parents[1] / "ebm_app" / "ratios" / "studies" / "bmi_estimates.csv"
HEADER = ("task", "method", "truth", "estimate", "seconds")


def main() -> None:
    """Estimate, and add a line for each task and method to the file."""
    warnings.filterwarnings("ignore")  # of what that package asks of its own dependencies
    from bmi.benchmark import BENCHMARK_TASKS
    from bmi.estimators import InfoNCEEstimator, MINEEstimator, NWJEstimator

    methods = {"infonce": InfoNCEEstimator, "nwj": NWJEstimator, "mine": MINEEstimator}
    found = set()
    if OUTPUT.exists():
        with OUTPUT.open(encoding="utf-8", newline="") as file:
            found = {(row["task"], row["method"]) for row in csv.DictReader(file)}
    else:
        OUTPUT.write_text(",".join(HEADER) + "\n", encoding="utf-8")
    for name in TASKS:
        task = BENCHMARK_TASKS[TASKS[name]]
        x, y = task.sample(NUM_ROWS, seed=SEED)
        for method, estimator in methods.items():
            if (name, method) in found:
                continue
            begin = time.process_time()
            value = float(estimator(verbose=False).estimate(x, y))
            seconds = time.process_time() - begin
            line = f"{name},{method},{task.mutual_information:.4f},{value:.4f},{seconds:.0f}"
            print(line, flush=True)
            with OUTPUT.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
