"""Recorded numbers of the program, by which a change of its structure is checked.

``python tests/test_golden.py NAME...`` records the numbers of these entries, or all, in
golden.json. Numbers are computed in float64 where possible, so that processors agree.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ebm_app import EBM, ClassifierRatio, CTSMRatio, Flow, mutual_information, train
from ebm_app.data.datasets import load_images
from ebm_app.data.levels import dequantise
from ebm_app.flow import FlowConfig
from ebm_app.ratios.classifier import NetworkClassifier
from ebm_app.ratios.problems import TOY_PROBLEMS, EvaluationPoints
from ebm_app.ratios.problems import train as train_ratio
from ebm_app.sampling.annealing import METHODS, Annealing, make_chains

FILE = Path(__file__).with_name("golden.json")
#: Estimators of each model
BITS = {
    "digits": ("elbo", "path_integral", "probability_flow", "time_integral"),
    "digits-energy": ("elbo", "energy"),
    "mnist": ("elbo", "path_integral", "probability_flow", "time_integral"),
    "mnist-energy": ("energy",),
    "mnist-latent": ("elbo", "time_integral"),
}
#: Settings of slow estimators
SETTINGS = {
    ("mnist", "path_integral"): {"num_nodes": 8},
    ("mnist", "probability_flow"): {"num_steps": 3, "num_probes": 2},
}
SAMPLERS = {
    "dpm": {"num_steps": 5, "noise": 1.0, "labels": [3, 1, 4], "guidance_scale": 1.5},
    "probability_flow": {"num_steps": 5, "labels": "none"},
    "annealed_hmc": {
        "num_temperatures": 4,
        "num_leapfrog_steps": 2,
        "final_steps": 0,
        "labels": "none",
    },
}
#: Settings of a small training run; augmentation and dropout are those of the recipe of digits
TRAINING = {
    "device": "cpu",
    "mixed_precision": "no",
    "train_batch_size": 16,
    "block_out_channels": (16, 24),
    "num_preview_images": 0,
    "validation_images": 8,
    "validation_repeats": 1,
    "checkpointing_steps": 5,
    "seed": 3,
    "num_levels": 17,
    "dataset": "digits",
}


def digits(num: int) -> torch.Tensor:
    return load_images("digits").test[:num]


def large_digits(num: int) -> torch.Tensor:
    """Digits enlarged to 28 x 28 pixels of 256 levels, like those of MNIST."""
    pixels = digits(num).repeat_interleave(3, 2).repeat_interleave(3, 3) * 15
    return torch.nn.functional.pad(pixels, (2, 2, 2, 2))


@contextmanager
def float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def bits(name: str) -> dict[str, Any]:
    """Bits per dim and their errors by each estimator of a model."""
    ebm = EBM.from_pretrained(name).double()
    images = digits(2) if name.startswith("digits") else large_digits(1)
    found = {}
    for estimator in BITS[name]:
        settings = SETTINGS.get((name, estimator), {})
        result = ebm.likelihood(images, estimator, repeats=1, seed=5, **settings)
        found[estimator] = [result.bits_per_dim.tolist(), result.error.tolist(), result.nfe]
    return found


def samples() -> dict[str, Any]:
    """Levels of three samples of each sampler."""
    ebm = EBM.from_pretrained("digits").double()
    return {
        name: (16 * ebm.sample(3, name, seed=7, **settings)).flatten().round().tolist()
        for name, settings in SAMPLERS.items()
    }


def log_z() -> dict[str, Any]:
    """log Z and its error by reversed diffusion and by annealed importance sampling."""
    ebm = EBM.from_pretrained("digits-energy").double()
    points = ebm.encode(digits(4))
    settings, found = Annealing(num_temperatures=6, num_leapfrog_steps=4), {}
    for name, estimate in METHODS.items():
        with float64():
            result = estimate(make_chains(ebm.model, settings, points, seed=2), 4)
        found[name] = [result.estimate.log_z, result.estimate.stderr, result.acceptance]
    return found


def rows() -> tuple[np.ndarray, np.ndarray]:
    x, noise = np.random.default_rng(0).standard_normal((2, 200, 2))
    return x, 0.6 * x + 0.8 * noise


def information() -> dict[str, Any]:
    """Mutual information by each estimator, trained for 20 steps."""
    ratios = ClassifierRatio(NetworkClassifier(steps=20)), CTSMRatio(steps=20)
    estimates = (mutual_information(*rows(), ratio, random_state=1) for ratio in ratios)
    return {each.estimator.split("(")[0]: [each.value, each.stderr] for each in estimates}


def log_ratio() -> dict[str, Any]:
    """Log ratios of a toy problem after 50 steps of each objective."""
    problem, found = TOY_PROBLEMS["gaussians_d2"].shorten(50), {}
    with float64():
        points = EvaluationPoints(problem.pair, 20, torch.Generator().manual_seed(4))
        for method in ("tsm_stein", "ctsm_time1", "ctsm_v_time1"):
            *_, last = train_ratio(problem, method, 6, 1e-2, points)
            found[method] = last.ratio.log_ratio(points.x[:4]).tolist()
    return found


def summary(ebm: EBM) -> dict[str, Any]:
    """Scores at a point, and the norm of all weights, of a trained model."""
    x = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8).double()
    weights = torch.cat([weight.detach().flatten() for weight in ebm.parameters()])
    ebm = ebm.double()
    return {
        "norm": weights.double().norm().item(),
        "score": ebm.score(x, 0.5).flatten()[::9].tolist(),
        "time_score": ebm.time_score(x, 0.5).tolist(),
    }


def copula(levels: torch.Tensor) -> Flow:
    flow = Flow(FlowConfig("digits", (1, 8, 8), 17, "copula"))
    noise = torch.rand((10, *levels.shape), generator=torch.Generator().manual_seed(8))
    flow.space.fit(dequantise(levels.repeat(10, 1, 1, 1), 17, noise.flatten(0, 1)), 10)
    return flow


def training() -> dict[str, Any]:
    """Trained models of pixels and of copula space, and of a resumed run."""
    images, found = load_images("digits").train[:200], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, steps in (("two steps", 2), ("ten steps", 10)):
            ebm = train(images, Path(folder, name), max_train_steps=steps, **TRAINING)
            found[name] = summary(ebm)
        resumed = Path(folder, "resumed")
        shutil.copytree(Path(folder, "ten steps", "checkpoint-5"), resumed / "checkpoint-5")
        options = {"resume_from_checkpoint": "latest", "max_train_steps": 10}
        found["resumed"] = summary(train(images, resumed, **options, **TRAINING))
        settings = {"flow": copula(images), "max_train_steps": 10, **TRAINING}
        found["copula"] = summary(train(images, Path(folder, "latent"), **settings))
    return found


def split() -> dict[str, Any]:
    """Names of the images in each split of a folder, with an image in each of two subfolders."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{'ab'[index % 2]}/{index:03d}.png" for index in range(60)]
        for index, name in enumerate(names):
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((8, 8), 4 * index, np.uint8)).save(path)
        data = load_images(f"folder:{folder}")
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    return {name: images[:, 0, 0, 0].tolist() for name, images in splits.items()}


#: Name -> function, absolute and relative tolerance
GOLDEN: dict[str, tuple[Callable[[], dict[str, Any]], float, float]] = {
    **{f"bits {name}": (lambda name=name: bits(name), 1e-6, 0.0) for name in BITS},
    "samples": (samples, 0.0, 0.0),
    "log_z": (log_z, 1e-6, 0.0),
    "information": (information, 0.0, 1e-4),
    "log_ratio": (log_ratio, 1e-6, 0.0),
    "training": (training, 1e-7, 1e-4),
    "split": (split, 0.0, 0.0),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_are_as_recorded(name):
    compute, atol, rtol = GOLDEN[name]
    recorded, found = json.loads(FILE.read_text())[name], compute()
    assert found.keys() == recorded.keys()
    for key, expected in recorded.items():
        np.testing.assert_allclose(flat(found[key]), flat(expected), rtol, atol, err_msg=key)


def flat(value: Any) -> np.ndarray:
    """Return all numbers of nested dicts and lists."""
    if isinstance(value, dict):
        return np.concatenate([flat(value[key]) for key in sorted(value)])
    if isinstance(value, list):
        return np.concatenate([flat(item) for item in value])
    return np.array([value], dtype=float)


if __name__ == "__main__":
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in sys.argv[1:] or GOLDEN:
        golden[name] = GOLDEN[name][0]()
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in golden.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
