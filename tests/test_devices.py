"""Scripts on a device that is not the CPU. It computes as the CPU does, so that the numbers are
the same, and a tensor or a generator of the CPU that is left among its own is an error."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, TINY, load_script
from safetensors.torch import load_file

from ebm_app.likelihood import ESTIMATORS


def train(folder):
    return "train/ebm.py", ["--output_dir", f"{folder}/run", "--max_train_steps", "2", *TINY]


def draw(folder, sampler):
    words = ["--sampler", sampler, "--num_images", "2", "--num_steps", "1"]
    return "sample/ebm.py", [f"{folder}/run", *words, "--output_dir", f"{folder}/{sampler}"]


def score(folder, *estimators):
    words = ["--limit", "2", "--repeats", "1", "--output_dir", f"{folder}/bpd"]
    return "evaluate/bpd.py", [f"{folder}/run", *words, "--estimator", *estimators]


def first(folder):
    return [train(folder), draw(folder, "pf_ode"), score(folder, "elbo")]


def far(folder, commands):
    """Results of [fault, script, arguments] on the far device."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "far_device.py")],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


def numbers(metrics):
    """What a run found: no times, no names."""
    if isinstance(metrics, dict):
        kept = {key: one for key, one in metrics.items() if "second" not in key}
        return [number for key in sorted(kept) for number in numbers(kept[key])]
    if isinstance(metrics, list):
        return [number for one in metrics for number in numbers(one)]
    return [metrics] if isinstance(metrics, int | float) else []


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """A folder with what the first commands leave, by the CPU, and their metrics."""
    folder = tmp_path_factory.mktemp("near")
    return folder, [load_script(path).main(words) for path, words in first(folder)]


@pytest.mark.slow
def test_a_training_its_samples_and_its_bits_are_those_of_the_cpu(tmp_path, near):
    folder, expected = near
    faults = [
        ["batches stay on the CPU", *train(tmp_path / "broken")],
        ["noise of the CPU", *draw(tmp_path, "pf_ode")],
    ]
    *found, batches, noise = far(tmp_path, [*(["", *one] for one in first(tmp_path)), *faults])
    for one, other in zip(found, expected, strict=True):
        assert numbers(one["metrics"]) == pytest.approx(numbers(other), rel=1e-6)
    assert found[0]["metrics"]["device"] == "1 x far"
    weights = [load_file(path / "run" / "model.safetensors") for path in (tmp_path, folder)]
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-7)
    assert "of the CPU beside far ones" in batches["error"]
    assert "generator of another device" in noise["error"]


@pytest.mark.slow
def test_every_evaluation_is_that_of_the_cpu(tmp_path, near):
    folder, _ = near
    chains = "--num_chains 2 --limit 2 --repeats 1 --num_temperatures 1".split()
    commands = [
        draw(folder, "annealed_hmc"),
        score(folder, *ESTIMATORS),
        ("evaluate/ais.py", [f"{folder}/run", *chains, "--output_dir", f"{folder}/ais"]),
    ]
    found = far(tmp_path, [["", *command] for command in commands])
    for result, (path, words) in zip(found, commands, strict=True):
        expected = load_script(path).main(words)
        assert numbers(result["metrics"]) == pytest.approx(numbers(expected), rel=1e-5, abs=1e-5)
