"""Where a trial stands, in words and as metrics."""

from typing import Any

from ebm_app.ratios.trials import Snapshot

from ..shared import progress

NAMES = {"ctsm_v": "CTSM-v", "ctsm": "CTSM", "tsm": "TSM"}
WEIGHTINGS = {
    "uniform": "uniform weighting",
    "stein": "Stein score weighting",
    "time0": "time score weighting, c of the data",
    "time1": "time score weighting, c = 1",
    "stratified": "c = 1, stratified times",
    "mixture": "c = 1, over Gaussian mixtures",
}
BASELINES = {"nce": "NCE, one classifier", "tre": "TRE, eight classifiers"}
PATHS = {
    "variance_preserving": "variance preserving",
    "bridge_sigma1": "Schrödinger bridge, σ = 1",
    "bridge_sigma1.41": "Schrödinger bridge, σ = √2",
}


def method_label(method: str) -> str:
    """A method in words."""
    objective, _, weighting = method.rpartition("_")
    return BASELINES.get(method) or f"{NAMES[objective]} · {WEIGHTINGS[weighting]}"


def problem_label(problem: str) -> str:
    """A problem in words."""
    kind, _, size = problem.partition("_")
    if kind == "gaussians":
        return f"two Gaussians, D = {size.removeprefix('d')}"
    return f"mixtures, D = 20, k = {size.removeprefix('k')}" if size else f"{kind}, D = 2"


def report(shot: Snapshot, seconds: float) -> str:
    """Where a trial stands, in two lines."""
    trial, total = shot.trial, shot.trial.training.iterations
    head = [f"{total} steps" if shot.is_final else progress(shot.step, total)]
    head += [problem_label(trial.problem), PATHS[trial.path], f"seed {trial.seed}"]
    head.append(f"{seconds:.1f} s")
    found = shot.scalars
    parts = [f"best weights, of step {shot.best_step}" if shot.is_final else f"step {shot.step}"]
    if found["loss"] is None or found["error"] is None:
        parts.append("no longer finite: lower the learning rate")
    else:
        parts.append(f"loss {found['loss']:.4g}")
        parts.append(
            f"error {found['error']:.4g} nats²" if shot.has_truth else "no true log ratio known"
        )
    if found.get("mass") is not None:
        parts.append(f"learned p₁ integrates to {found['mass']:.3g}")
    if shot.step_ms is not None:
        parts.append(f"{shot.step_ms:.1f} ms a step")
    return f"{' · '.join(head)}\n{method_label(trial.method)}: {' · '.join(parts)}"


def metrics(shot: Snapshot) -> dict[str, Any]:
    """The trial as JSON; errors in nats^2, KL divergences in nats."""
    trial = shot.trial
    found = {
        "problem": trial.problem,
        "path_kind": trial.path,  # gradio's client takes whatever has a "path" for a file
        "method": trial.method,
        "learning_rate": trial.learning_rate,
        "iterations": trial.training.iterations,
        "seed": trial.seed,
        "step": shot.step,
        "best_step": shot.best_step,
        "judged_on": "test" if shot.is_final else "validation",
        "step_ms": shot.step_ms,
        **shot.scalars,
    }
    if shot.has_truth:
        points = shot.evaluator.points
        found["divergence_truth"] = points.metrics(points.truth)["divergence"].item()
    else:
        found["error"] = None  # the best weights were chosen by the loss
    return found
