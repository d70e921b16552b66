"""Damaged records, settings and data files end in a sentence, at once and in little memory."""

import json
import random
from functools import partial
from pathlib import Path

import pytest
from conftest import load_script, write_mnist
from fuzzing import NO_FILES, Tally, check, copied, mutated_json, mutated_text, put_no_file

from ebm_app.data.images import load_images
from ebm_app.evaluation.frechet import METRICS
from ebm_app.io.records import read_json, write_json
from ebm_app.tabular.columns import read_csv_pair, read_npy
from ebm_app.training.fine_tuning import trained_before
from ebm_app.training.settings import record, resolve
from ebm_app.web.diagnostics import card, checks

COMMAND = {"command": ["a.py", "--b"], "started": "2025-01-01T00:00:00Z"}
ROW = {"bits_per_dim": 1.5, "stderr": 0.1, "num_images": 3, "repeats": 2, "eps": 1e-6, "nfe": 32}
SEEN = {"model": "a", "steps": 3, "images": 6, "training_seconds": 1.5}
RUN = {
    "steps": 4,
    "total_batch_size": 8,
    "bits_per_dim": 1.5,
    "images_per_second": 10.0,
    "training_seconds": 3.5,
    "device": "1 x cpu",
}
BITS = {**ROW, "final_variance": 1e-6, "split": "test", "estimator": "elbo"}
LOG_Z = {"log_z": 0.25, "stderr": 0.5, "ess": 3.0, "num": 8, "warnings": ["a"]}
JUDGED = dict.fromkeys(METRICS, 0.5)
DRAWN = {"sampler": "pf_ode", "settings": {}, "run": "pf_ode", "nfe": 7, "seconds": 1.0, **JUDGED}
FIGURES = {
    "bpd.json": {**BITS, "estimators": {"elbo": {**ROW, "numerical_error": None}}},
    "ais.json": {
        "methods": {"bridge": LOG_Z},
        "method": "bridge",
        "bits_per_dim": 1.5,
        "bits_per_dim_stderr": 0.1,
        "energy": "ratio",
    },
    "samplers.json": {
        "classifier_accuracy": 0.99,
        "floor": {**JUDGED, "spread": JUDGED, "num_images": 4},
        "table": [DRAWN],
    },
    "memorisation.json": {
        "median_distance": 0.125,
        "num_images": 4,
        "copies": 0.02,
        "quantile": 0.01,
        "median_distance_held_out": 0.25,
        "num_held_out": 5,
        "identical": 0,
    },
    "selftest.json": {
        "mean_time_score": {"shares": [0.5, 1.0], "mean": [0.0, 0.1], "stderr": [0.1, 0.1]},
        "checks": [
            {"name": "a", "note": "b", "passed": None},
            dict(name="c", note="d", passed=True, value=0.1, stderr=0.1, allowance=1.0, unit="e"),
        ],
    },
}


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


@pytest.fixture(scope="module")
def run(tmp_path_factory, digits):
    """The folder of a run with all of its records."""
    folder = tmp_path_factory.mktemp("run")
    settings = {**record(*resolve(digits, {})), "init_from": SEEN}
    versions = {"torch": "2", "python": "3"}
    about = {"settings": settings, "versions": versions, "git_revision": None}
    write_json(folder / "run.json", {**COMMAND, **about, "figures": RUN})
    for name, figures in FIGURES.items():
        write_json(folder / name, {**COMMAND, "figures": figures})
    (folder / "metrics.jsonl").write_text('{"step": 4, "validation_loss": 0.5}\n')
    return folder


def damaged(base, target, name, rng):
    """A copy of a folder in which one file is damaged."""
    file = copied(base, target) / name
    content = file.read_bytes()
    if rng.random() < 0.05:
        file.unlink()
        put_no_file(file, rng.choice(NO_FILES))
    elif name.endswith(".json"):
        file.write_bytes(mutated_json(json.loads(content), rng))
    else:
        file.write_bytes(mutated_text(content, rng))
    return target


def fuzz_records(run, tmp_path, digits, numbers):
    report = load_script("evaluate/report.py")
    readers = {
        "report": (("run.json", *FIGURES), lambda folder: report.main([str(folder)])),
        "self-test": (("selftest.json",), partial(checks.recorded, name="run")),
        "card": (("run.json",), card.run_facts),
        "earlier": (("run.json",), trained_before),
        "config": (
            ("run.json",),
            lambda folder: resolve(digits, {}, read_json(folder / "run.json").get("settings", {})),
        ),
    }
    tally = Tally()
    for number in numbers:
        rng = random.Random(number)
        kind = rng.choice(("report", "report", "config", "config", "self-test", "card", "earlier"))
        names, read = readers[kind]
        name = rng.choice(names)
        folder = damaged(run, tmp_path / "run", name, rng)
        tally.call(partial(read, folder), f"{number} {kind} {name}")
    return tally


def fuzz_data(tmp_path, numbers):
    """Files of numbers and of images in torchvision's layout."""
    import numpy as np

    whole, tally = tmp_path / "whole", Tally()
    write_mnist(whole / "MNIST" / "raw")
    rows = np.random.RandomState(0).randn(40, 2)
    np.save(whole / "a.npy", rows)
    np.save(whole / "b.npy", rows[:, 0] ** 2)
    lines = ["x,y", *(f"{x},{y}" for x, y in rows)]
    (whole / "c.csv").write_text("\n".join(lines))
    files = [f"MNIST/raw/{part}-images-idx3-ubyte" for part in ("train", "t10k")]
    readers = {
        **dict.fromkeys(files, partial(load_images, "mnist")),
        "a.npy": lambda at: read_npy(at / "a.npy"),
        "c.csv": lambda at: read_csv_pair(at / "c.csv", ["x"], ["y"]),
    }
    for read in readers.values():
        read(whole)  # the first time imports what takes seconds
    for number in numbers:
        rng = random.Random(number)
        name = rng.choice(list(readers))
        folder = damaged(whole, tmp_path / "data", name, rng)
        tally.call(partial(readers[name], folder), f"{number} {Path(name).name}")
    return tally


def test_damaged_records(run, tmp_path, digits, capsys):
    check(fuzz_records(run, tmp_path, digits, range(150)))


def test_damaged_data(tmp_path):
    check(fuzz_data(tmp_path, range(100)))


@pytest.mark.slow
def test_many_damaged_records(run, tmp_path, digits, capsys):
    check(fuzz_records(run, tmp_path, digits, range(2_000)))


@pytest.mark.slow
def test_much_damaged_data(tmp_path):
    check(fuzz_data(tmp_path, range(1_000)))
