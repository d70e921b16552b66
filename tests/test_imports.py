"""Models load in threads, and extras are optional."""

import json
import re
import subprocess
import sys

import numpy as np
from conftest import ENVIRONMENT, ROOT, TINY, write_mnist


def test_models_load_in_threads():
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from ebm_app import EBM\n"
        "list(ThreadPoolExecutor(6).map(EBM.from_pretrained, ['digits'] * 6))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


#: Runs scripts, given as JSON, without the packages of the extras "hub" and "tables".
BASE = """
import json, runpy, sys
from importlib.machinery import PathFinder

class Base(PathFinder):
    @classmethod
    def find_spec(cls, name, *args):
        is_extra = name.partition(".")[0] in ("datasets", "pandas", "pyarrow")
        return None if is_extra else super().find_spec(name, *args)

sys.meta_path[:] = [Base if finder is PathFinder else finder for finder in sys.meta_path]
codes = []
for sys.argv in json.loads(sys.argv[1]):
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        codes.append(stop.code)
print(json.dumps(codes))
"""


def run_base(folder, *commands):
    words = [[str(ROOT / script), *map(str, flags)] for script, *flags in commands]
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
    steps = [*TINY, "--max_train_steps", 2]
    codes, printed = run_base(
        tmp_path,
        ["train/ebm.py", "--dataset", "digits", "--output_dir", "run", *steps],
        ["train/ebm.py", "--dataset", "mnist", "--output_dir", "mnist", *steps],
        ["train/ebm.py", "--dataset", f"folder:{image_folder}", "--output_dir", "folder", *steps],
        ["evaluate/bpd.py", "run", "--limit", 2, "--repeats", 1],
        ["sample/ebm.py", "run", "--num_images", 2],
        ["evaluate/score.py", "digits", image_folder, "--resize", "--output", "scores.csv"],
    )
    assert codes == [0] * 6, printed


def test_missing_package_names_its_extra(tmp_path):
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    (tmp_path / "data" / "cifar10" / "train.parquet").touch()
    np.save(tmp_path / "x.npy", np.zeros((9, 2)))
    names = {"cifar10": "hub", "hf:mnist": "hub"}
    commands = [["train/ebm.py", "--dataset", name, "--output_dir", "run"] for name in names]
    commands.append(["evaluate/ratio.py", "--x0", "x.npy", "--x1", "x.npy"])
    codes, printed = run_base(tmp_path, *commands)
    assert codes == [2] * 3
    extras = re.findall(
        r"error: \w+ is not installed. Run pip install 'ebm_app\[(\w+)\]'", printed
    )
    assert extras == [*names.values(), "tables"]
