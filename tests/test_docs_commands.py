"""Every command in the blocks of README and docs/, run on tiny data in the order given; what calls
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
from documents import ADDRESS, PAGES, block_commands, blocks, script_of, shell_scripts
from PIL import Image

from ebm_app.io.start import run_script

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    "torchrun": ["-m", "torch.distributed.run"],
}
#: in one process a precision cannot be changed
STEPS = "--max_train_steps 4 --checkpointing_steps 2 --validation_steps 4 --mixed_precision no"
#: the flags TINY as key=value
TINY_ARGS = [
    "=".join((words.split()[0], ",".join(words.split()[1:])))
    for words in " ".join(TINY[:-2]).split("--")[1:]
]
#: what makes a script short
BUDGETS = {
    "train/ebm.py": f"{STEPS} {' '.join(TINY)}",
    "train/flow.py": "--validation_repeats 1",
    "sample/ebm.py": "--num_images 2 --num_steps 2",
    "evaluate/bpd.py": "--limit 3 --repeats 1",
    "evaluate/ais.py": "--limit 3 --repeats 1 --num_chains 2 --num_temperatures 2 "
    "--transported_temperatures 4 --pf_ode_steps 4 --diffusion_steps 8",
    "evaluate/selftest.py": "--limit 3 --num_times 2 --num_reference 4 --pf_ode_steps 2",
    "evaluate/samplers.py": "--num_images 4 --classifier_steps 5 --run pf_ode",
    "evaluate/memorisation.py": "--num_images 4 --num_shown 2",
    "evaluate/speed.py": "--quick --parts likelihood",
    "evaluate/toy.py": "--iterations 2 --problems gaussians_d2 --methods nce",
    "evaluate/mi.py": "--iterations 2 --num_seeds 1",
    "evaluate/bmi.py": "--iterations 2 --num_rows 100 --tasks normal_1x1",
    "evaluate/ratio.py": "--iterations 2",
    "evaluate/ablations.py": "--max_train_steps 2 --limit 2 --variant ema_decay=0 "
    f"--training_args {' '.join(TINY_ARGS)}",
    "evaluate/bounds.py": "--quick",
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A copy of the scripts, with the data that the commands name."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("train", "evaluate", "sample", "ui"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "ebm_app" / "pretrained", folder / "ebm_app" / "pretrained")
    write_mnist(folder / "data" / "MNIST" / "raw")
    (folder / "photos").mkdir()
    for name in "abc":
        np.save(folder / f"{name}.npy", np.random.RandomState(ord(name)).randn(200, 2))
    numbers = np.random.RandomState(1)
    for index in range(30):
        pixels = numbers.randint(0, 256, (40, 36, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{index}.jpg")
    return folder


@contextmanager
def served(flags: list[str], place: Path) -> Iterator[str]:
    """The address of a page that ui/app.py serves, for as long as it is needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(ROOT / "ui" / "app.py"), *flags, "--port", port]
    run = subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    with run:
        try:
            yield run.stdout.readline().split("/ - ")[0]
        finally:
            run.terminate()


def launch(program: str, arguments: list[str], place: Path) -> None:
    """Run a command in processes of its own, by the launcher that it names."""
    command = [sys.executable, *LAUNCHERS[program], *arguments]
    done = subprocess.run(command, cwd=place, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stderr[-2000:]}"


def information_budget(flags: list[str]) -> list[str]:
    """Those of evaluate/mi.py for data of one's own, known data, and the study."""
    if "--x" in flags or "--csv" in flags:
        return ["--iterations", "2"]
    common = BUDGETS["evaluate/mi.py"].split()
    return [*common, "--problems", "mi_d40", "--methods", "ctsm_v_time1"]


def budget(name: str, flags: list[str]) -> list[str]:
    """The flags that make a command short."""
    found = shlex.split(BUDGETS[name])
    if name.startswith("train/") and "--resume_from_checkpoint" not in flags:
        found.append("--overwrite_output_dir")  # two pages may name one folder
    if "--core_seconds" in flags:
        found = found[2:] + ["--core_seconds", "0.01"]
    if name == "evaluate/toy.py":  # a folder of its own for every table
        found += ["--output_dir", f"runs/toy-{'-'.join(flags)}".replace(" ", "-")[:80]]
    if name == "evaluate/mi.py":
        found = information_budget(flags)
    if "annealed_hmc" in flags:
        found += (
            "--sampler_args steps_per_temperature=1 num_leapfrog_steps=1 final_steps=1".split()
        )
    if "--init_from" in flags:  # the network is that of the weights
        found = [*STEPS.split(), "--lr_decay_steps", "0", *TINY[TINY.index("--dropout") :]]
    return found


def test_commands_run_in_order(place, here, monkeypatch):
    monkeypatch.chdir(place)
    launched: set[str] = set()
    commands = [words for page in PAGES for words in block_commands(page) if words[0] != "make"]
    for program, *arguments in commands:
        name, flags = script_of(arguments)
        if name == "ui/app.py":
            with served(flags, place) as address:
                assert httpx.get(address).status_code == 200
            continue
        if "--resume_from_checkpoint" in flags:  # as if the run had been cut off
            shutil.rmtree(place / "runs" / "mnist" / "checkpoint-4")
        short = budget(name, flags)
        # one process is enough for what is launched as one, once its launcher was seen to work
        is_one = program == "accelerate" and "--multi_gpu" not in arguments
        if program == "python" or (is_one and program in launched):
            assert run_script(here(name).main, [*flags, *short]) == 0, shlex.join(arguments)
        else:
            launched.add(program)
            launch(program, [*arguments, *short], place)
    assert len(commands) >= 30


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """A page of the bundled model."""
    with served([], tmp_path_factory.mktemp("page")) as address:
        yield address


def test_the_page_answers_python(address):
    snippets = [block for page in PAGES for block in blocks(page, "python") if ADDRESS in block]
    assert snippets
    for snippet in snippets:
        exec(snippet.replace(ADDRESS, address), {})


def test_the_page_answers_a_shell(address):
    (script,) = shell_scripts()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(ADDRESS, address)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    events = re.findall(r"^event: (\w+)$", done.stdout, re.MULTILINE)
    assert events.count("generating") >= 12 and events[-1] == "complete"
