"""Every command and every snippet of the README, run on tiny data in the order given; what calls
the page, against a page of the bundled model."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from conftest import ROOT, TINY, write_mnist
from PIL import Image

from ebm_app.runs.cli import run_script

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = {
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    "torchrun": ["-m", "torch.distributed.run"],
}
#: what makes a script short
BUDGETS = {
    "evaluate/bpd.py": "--limit 3 --repeats 1 --pf_ode_steps 2",
    "evaluate/ais.py": "--limit 3 --repeats 1 --num_chains 2 --num_temperatures 2 "
    "--transported_temperatures 4 --pf_ode_steps 4",
    "evaluate/selftest.py": "--limit 3 --num_times 2 --num_reference 4 --pf_ode_steps 2",
    "evaluate/samplers.py": "--num_images 4 --classifier_steps 5 --run pf_ode",
    "evaluate/leapfrog.py": "--num_chains 2 --transitions 2 --shares 0.5 --nodes 3 "
    "--leapfrog_steps 1",
    "evaluate/neighbours.py": "--num_images 4 --num_shown 2",
    "evaluate/speed.py": "--quick --parts likelihood",
    "evaluate/toy.py": "--iterations 2 --problems gaussians_d2 --methods nce --members 1",
    "evaluate/mi.py": "--iterations 2 --problems mi_d40 --methods ctsm_v_time1 --num_folds 2 "
    "--num_seeds 1",
    "train/flow.py": "--validation_repeats 1",
    "evaluate/latent.py": "--spaces copula --objectives ctsm_v --max_train_steps 1 --limit 3 "
    f"--pf_ode_limit 2 --pf_ode_steps 2 --repeats 1 --rounds 1 "
    f"--ebm_flags='{' '.join(TINY[:-2])}'",
    "evaluate/stability.py": "--variants x --max_train_steps 1 --num_scores 1 --limit 2 "
    f"--pf_ode_steps 2 --ebm_flags='{' '.join(TINY[:-2])}'",
    "evaluate/bounds.py": "--num_draws 20 --num_steps 1 4 --num_examples 200 --replicates 3",
}


#: where the README has the page
ADDRESS = "http://127.0.0.1:7860"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    scripts = [block for block in blocks("bash") if "curl" not in block]
    lines = [line for block in scripts for line in block.strip().splitlines()]
    return [shlex.split(line) for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A copy of the scripts, with the data that the README's commands name."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("train", "evaluate", "sample", "ui"):
        shutil.copytree(ROOT / name, folder / name)
    write_mnist(folder / "data" / "MNIST" / "raw")
    (folder / "photos").mkdir()
    for name in "ab":
        np.save(folder / f"{name}.npy", np.random.RandomState(ord(name)).randn(200, 2))
    numbers = np.random.RandomState(1)
    for index in range(30):
        pixels = numbers.randint(0, 256, (40, 36, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{index}.jpg")
    return folder


def shortened(arguments: list[str]) -> list[str]:
    """A command with the budget of a test; the rest of it stays as it is."""
    if "train/ebm.py" in arguments:
        schedule = ["--max_train_steps", "4", "--checkpointing_steps", "2"]
        return [*arguments, *TINY, *schedule, "--validation_steps", "4"]
    for script, flags in BUDGETS.items():
        if script in arguments:
            return [*arguments, *shlex.split(flags)]
    return [*arguments, "--num_images", "2", "--num_steps", "2"]


def test_commands_run_in_order(place, here, monkeypatch):
    monkeypatch.chdir(place)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ran, launched = 0, []
    for program, *arguments in commands():
        if "ui/app.py" in arguments:
            check_that_the_page_starts(arguments, place, env)
            continue
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(targets)
            continue
        if "--resume_from_checkpoint" in arguments:  # as if the run had been cut off
            shutil.rmtree(place / "runs" / "mnist" / "checkpoint-4")
        # in this process, which has imported everything already: scripts, and what a launcher
        # starts as one process, once that launcher was seen to work
        is_one = program == "accelerate" and "--multi_gpu" not in arguments
        if program == "python" or (is_one and program in launched):
            name, *flags = shortened(arguments[is_one:])
            assert run_script(here(name).main, flags) == 0, shlex.join(arguments)
            ran += 1
            continue
        launched.append(program)
        command = [sys.executable, *PROGRAMS[program], *shortened(arguments)]
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stderr[-2000:]}"
        ran += 1
    assert ran >= 8


@contextmanager
def page(arguments: list[str], place: Path, env: dict[str, str]) -> Iterator[str]:
    """The address of a page that is served by a command, for as long as it is needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, *arguments, "--port", port]
    with subprocess.Popen(command, cwd=place, env=env, stdout=subprocess.PIPE, text=True) as run:
        try:
            yield run.stdout.readline().split("/ - ")[0]
        finally:
            run.terminate()


def check_that_the_page_starts(arguments: list[str], place: Path, env: dict[str, str]) -> None:
    with page(arguments, place, env) as address:
        assert httpx.get(address).status_code == 200


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """A page of the bundled model."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with page([str(ROOT / "ui" / "app.py")], tmp_path_factory.mktemp("page"), env) as address:
        yield address


@pytest.mark.parametrize("snippet", blocks("python"))
def test_snippets_run(snippet, request):
    if ADDRESS in snippet:
        snippet = snippet.replace(ADDRESS, request.getfixturevalue("address"))
    exec(snippet, {})


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_answers_a_shell(address):
    (script,) = [block for block in blocks("bash") if "curl" in block]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(ADDRESS, address)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    events = re.findall(r"^event: (\w+)$", done.stdout, re.MULTILINE)
    assert events.count("generating") >= 12 and events[-1] == "complete"


def test_pictures_are_there():
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).is_file()
