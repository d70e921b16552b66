"""Every command in the blocks of README and docs/ but those of long measurements, run on tiny data
in the order given; what calls the page, against a page of the bundled models."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from conftest import ROOT, TINY, free_port, write_mnist
from documents import ADDRESS, PAGES, block_commands, blocks, script_of, shell_scripts
from PIL import Image

from ebm_app.cli.command_line import run_script

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    "torchrun": ["-m", "torch.distributed.run"],
}
#: in one process a precision cannot be changed
STEPS = "--max_train_steps 4 --checkpointing_steps 2 --validation_steps 4 --mixed_precision no"
#: what makes a script short
BUDGETS = {
    "train/ebm.py": f"{STEPS} {' '.join(TINY)}",
    "train/flow.py": "--validation_repeats 1",
    "train/energy.py": f"{STEPS} --train_batch_size 4 --validation_images 4",
    "sample/ebm.py": "--num_images 10",  # as many as there are labels
    "evaluate/bpd.py": "--limit 2 --repeats 1",
    "evaluate/ais.py": "--limit 3 --num_chains 4 --num_temperatures 24 --num_leapfrog_steps 1",
    "evaluate/studies/log_z.py": "",
    "evaluate/selftest.py": "--limit 3 --num_times 2 --pf_ode_steps 2",
    "evaluate/samplers.py": "--num_images 4 --classifier_steps 5",
    "evaluate/speed.py": "--quick --parts likelihood",
    "evaluate/toy.py": "--iterations 2 --problems gaussians_d2 --methods ctsm_v_time1",
    "evaluate/mi.py": "--iterations 2",
    "evaluate/ratio.py": "--iterations 2",
    "evaluate/bounds.py": "--quick",
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A copy of the scripts, with the data that the commands name."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("train", "evaluate", "sample", "ui", "ebm_app/pretrained"):
        shutil.copytree(ROOT / name, folder / name)
    write_mnist(folder / "data" / "MNIST" / "raw")
    (folder / "photos").mkdir()
    numbers = np.random.RandomState(1)
    for name in "abc":
        np.save(folder / f"{name}.npy", numbers.randn(200, 2))
    for index in range(30):
        pixels = numbers.randint(0, 256, (40, 36, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{index}.jpg")
    return folder


@contextmanager
def served(flags: list[str], place: Path) -> Iterator[str]:
    """The address of a page that ui/app.py serves, for as long as it is needed."""
    command = [sys.executable, str(ROOT / "ui" / "app.py"), *flags, "--port", str(free_port())]
    run = subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    with run:
        try:
            yield run.stdout.readline().split("/ - ")[0]
        finally:
            run.terminate()


def budget(name: str, flags: list[str]) -> list[str]:
    """The flags that make a command short."""
    if name == "evaluate/mi.py" and "--quick" in flags:
        return "--iterations 2 --num_seeds 1 --problems mi_d40 --methods ctsm_v_time1".split()
    if "--init_from" in flags:  # the network is that of the weights
        return [*STEPS.split(), *TINY[TINY.index("--dropout") :]]
    found = BUDGETS[name].split()
    if name == "evaluate/bpd.py" and "pf_ode" in flags:
        found += "--estimator_args num_steps=2 max_refinements=0".split()
    if name.startswith("train/") and "--resume_from_checkpoint" not in flags:
        found.append("--overwrite_output_dir")  # two pages may name one folder
    return found


def test_commands_run_in_order(place, script, monkeypatch):
    monkeypatch.chdir(place)
    pages = [page for page in PAGES if page.stem != "results"]
    commands = [words for page in pages for words in block_commands(page) if words[0] != "make"]
    for program, *arguments in commands:
        name, flags = script_of(arguments)
        if name == "ui/app.py":
            with served(flags, place) as address:
                assert httpx.get(address).status_code == 200
            continue
        if "--resume_from_checkpoint" in flags:  # as if the run had been cut off
            shutil.rmtree(place / "runs" / "mnist" / "checkpoint-4")
        short = budget(name, flags)
        if {"--num_processes", "--nproc_per_node"} & set(
            arguments
        ):  # processes of their own, by the launcher
            command = [sys.executable, *LAUNCHERS[program], *arguments, *short]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
            assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stderr[-2000:]}"
        else:
            assert run_script(script(name).main, [*flags, *short]) == 0, shlex.join(arguments)
    assert len(commands) >= 30


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """A page of the bundled models."""
    with served([], tmp_path_factory.mktemp("page")) as address:
        yield address


def test_the_page_answers_python(address):
    snippets = [block for page in PAGES for block in blocks(page, "python") if ADDRESS in block]
    assert snippets
    for snippet in snippets:
        exec(snippet.replace(ADDRESS, address), {})


def test_the_page_answers_a_shell(address):
    (script,) = shell_scripts()
    command = ["bash", "-euo", "pipefail", "-c", script.replace(ADDRESS, address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    events = re.findall(r"^event: (\w+)$", done.stdout, re.MULTILINE)
    assert events.count("generating") >= 12 and events[-1] == "complete"
