"""``--help`` does not import slow packages, models load in threads, and extras are optional."""

import json
import os
import re
import subprocess
import sys

import numpy as np
from conftest import ENVIRONMENT, ROOT, TINY, write_mnist

#: Packages that take half a second or more to import.
SLOW = "diffusers gradio matplotlib pandas sklearn torchvision".split()
#: Scripts that do not import torch either, run first
LIGHT = ["evaluate/bpd.py", "sample/ebm.py"]
FOLDERS = ("sample", "evaluate", "ui")
PATHS = [path for name in FOLDERS for path in (ROOT / name).glob("*.py")]
#: Scripts of training import all at their top
NAMES = {str(path.relative_to(ROOT)) for path in PATHS} - {"evaluate/speed.py"}
SCRIPTS = [*LIGHT, *sorted(NAMES - {*LIGHT})]
#: Runs all scripts in one process, since torch alone takes seconds to import.
PROGRAM = """
import contextlib, io, json, runpy, sys
sys.path[:0] = ["evaluate", "ui"]
imported = {}
for path in sys.argv[2:]:
    sys.argv = [path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    imported[path] = [name for name in json.loads(%r) if name in sys.modules]
print(json.dumps(imported))
"""


def test_help_imports_no_slow_package():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % json.dumps([*SLOW, "torch"]), "--", *SCRIPTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = json.loads(done.stdout)
    assert [*imported] == SCRIPTS and not any(imported[path] for path in LIGHT)
    assert {name for names in imported.values() for name in names} <= {"torch"}


def test_models_load_in_threads():
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from ebm_app import EBM\n"
        "list(ThreadPoolExecutor(6).map(EBM.from_pretrained, ['digits'] * 6))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


#: Runs commands, given as JSON, without the packages of the extras "hub" and "tables".
BASE = """
import json, sys
from importlib.machinery import PathFinder

class Base(PathFinder):
    @classmethod
    def find_spec(cls, name, *args):
        is_extra = name.partition(".")[0] in ("datasets", "pandas", "pyarrow")
        return None if is_extra else super().find_spec(name, *args)

sys.meta_path[:] = [Base if finder is PathFinder else finder for finder in sys.meta_path]
import runpy
codes = []
for sys.argv in json.loads(sys.argv[1]):
    try:
        if sys.argv[0] == "ebm":
            runpy.run_module("ebm_app.cli", run_name="__main__")
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        codes.append(stop.code)
print(json.dumps(codes))
"""


def run_base(folder, *commands):
    words = [[str(word) for word in command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", BASE, json.dumps(words)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_base_install_trains_scores_and_samples(tmp_path, image_folder):
    write_mnist(tmp_path / "data" / "MNIST" / "raw")
    steps, train = [*TINY, "--max_train_steps", 2], ROOT / "train" / "ebm.py"
    codes, printed = run_base(
        tmp_path,
        [train, "--dataset", "digits", "--output_dir", "run", *steps],
        [train, "--dataset", "mnist", "--output_dir", "mnist", *steps],
        ["ebm", "bpd", "run", "--limit", 2, "--repeats", 1],
        ["ebm", "sample", "run", "--num_images", 2],
        ["ebm", "score", "digits", image_folder, *"--resize --repeats 2 --output s.csv".split()],
    )
    assert codes == [0] * 5, printed


def test_missing_package_names_its_extra(tmp_path, image_folder):
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    (tmp_path / "data" / "cifar10" / "train.parquet").touch()
    np.save(tmp_path / "x.npy", np.zeros((9, 2)))
    names = {"cifar10": "hub", f"folder:{image_folder}": "hub", "hf:mnist": "hub"}
    train = ROOT / "train" / "ebm.py"
    commands = [[train, "--dataset", name, "--output_dir", "run"] for name in names]
    commands.append(["ebm", "ratio", "--x0", "x.npy", "--x1", "x.npy", "--output_dir", "ratio"])
    codes, printed = run_base(tmp_path, *commands)
    assert codes == [2] * 4
    extras = re.findall(
        r"error: \w+ is not installed. Run pip install 'ebm_app\[(\w+)\]'", printed
    )
    assert extras == [*names.values(), "tables"]
