"""Documented commands, run in order on tiny data, and the documented API of the web app."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gradio_client
import httpx
import numpy as np
import pytest
from conftest import ENVIRONMENT, ROOT, SMALL, config_flags, served, write_mnist
from datasets import Dataset
from documents import ADDRESS, PAGES, block_commands, blocks, script_of, shell_scripts
from PIL import Image

from ebm_app.command_line import run_script

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    "torchrun": ["-m", "torch.distributed.run"],
}
#: Mixed precision cannot change within one process.
STEPS = "--max_train_steps 4 --mixed_precision no"
INTERVALS = {"checkpointing_steps": 2, "validation_steps": 4, "validation_images": 4}
#: Flags that make each script short.
SHORT = {
    "train/ebm.py": f"{STEPS} {' '.join(config_flags('ebm', SMALL | INTERVALS))}",
    "train/flow.py": "--max_train_steps 2",
    "train/energy.py": (
        f"{STEPS} --train_batch_size 4 {' '.join(config_flags('energy', INTERVALS))}"
    ),
    "sample/ebm.py": "--num_images 10",  # as many as there are labels
    "evaluate/bpd.py": "--limit 2 --repeats 1",
    "evaluate/ais.py": "--limit 3 --num_chains 4 --num_temperatures 20",
    "evaluate/samplers.py": "--num_images 4 --classifier_steps 5",
    "evaluate/speed.py": "--batch_size 4 --rounds 1",
    "evaluate/toy.py": "--iterations 2 --problems gaussians_d2 --methods ctsm_v_time1",
    "evaluate/mi.py": "--iterations 2",
    "evaluate/ratio.py": "--iterations 2",
    "evaluate/anomaly.py": "--limit 2 --num_unusual 2 --num_likelihoods 2",
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A copy of the scripts, with the data that the commands name."""
    folder = tmp_path_factory.mktemp("workplace")
    for name in ("train", "evaluate", "sample", "ui", "ebm_app/pretrained"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("MNIST", "FashionMNIST"):
        write_mnist(folder / "data" / name / "raw")
    photographs = [Image.fromarray(np.full((32, 32, 3), n, np.uint8)) for n in range(60)]
    for split in ("train", "test"):
        data = Dataset.from_dict({"img": photographs, "label": [n % 10 for n in range(60)]})
        data.to_parquet(folder / "data" / "cifar10" / f"{split}.parquet")
    (folder / "photos").mkdir()
    draw = np.random.RandomState(1)
    for name in "abc":
        np.save(folder / f"{name}.npy", draw.randn(200, 2))
    for index in range(30):
        pixels = draw.randint(0, 256, (40, 36, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{index}.jpg")
    return folder


def short_flags(name: str, arguments: list[str]) -> list[str]:
    """Return the flags that make a command short."""
    if name == "evaluate/mi.py" and "--quick" in arguments:
        return "--iterations 2 --num_seeds 1 --problems mi_d40 --methods ctsm_v_time1".split()
    if name == "evaluate/mi.py" and "--x" in arguments and "--method" not in arguments:
        return []  # the classifier takes seconds
    if "--config" in arguments:  # the settings of a short run
        return STEPS.split()
    flags = SHORT[name].split()
    if name.startswith("train/") and "--resume_from_checkpoint" not in arguments:
        flags.append("--overwrite_output_dir")  # two pages may use one folder
    return flags


def test_documented_commands_run_in_order(workplace, script, monkeypatch):
    monkeypatch.chdir(workplace)
    for program, *words in (words for page in PAGES for words in block_commands(page)):
        if program == "make":
            continue
        name, arguments = script_of([program, *words])
        if name == "ui/app.py":
            with served(arguments, workplace) as address:
                assert httpx.get(address).status_code == 200
            continue
        short = short_flags(name, arguments)
        if "--resume_from_checkpoint" in arguments:  # simulate an interrupted run
            shutil.rmtree(workplace / "runs" / "mnist" / "checkpoint-4")
            short = []
        if {"--num_processes", "--nproc_per_node"} & set(words):
            command = [sys.executable, *LAUNCHERS[program], *words, *short]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
            assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr[-2000:]}"
        else:
            assert run_script(script(name).main, [*arguments, *short]) == 0, shlex.join(words)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """The address of a web app with the bundled models."""
    with served([], tmp_path_factory.mktemp("app")) as address:
        yield address


def test_web_app_runs_documented_python(address, monkeypatch):
    connect = gradio_client.Client
    monkeypatch.setattr(gradio_client, "Client", lambda documented: connect(address))
    for page in PAGES:
        for snippet in blocks(page, "python"):
            if ADDRESS in snippet:
                exec(snippet, {})


def test_web_app_runs_documented_shell(address, tmp_path):
    (script,) = shell_scripts()
    ports = f"{ADDRESS}:{address.rstrip('/')}".replace("http://", "")
    (tmp_path / ".curlrc").write_text(f"connect-to = {ports}\n")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "CURL_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    events = re.findall(r"^event: (\w+)$", done.stdout, re.MULTILINE)
    assert "generating" in events and events[-1] == "complete"
