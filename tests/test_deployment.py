"""The wheel, the commands of the Dockerfile, models in threads, and optional extras."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from zipfile import ZipFile

import numpy as np
from conftest import ENVIRONMENT, ROOT, TINY, free_port, write_mnist
from packaging.requirements import Requirement


def package_files():
    files = (path for path in (ROOT / "ebm_app").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in str(path)}


def test_wheel_holds_the_package_and_its_models(tmp_path):
    source = tmp_path / "source"  # without earlier build outputs
    shutil.copytree(ROOT / "ebm_app", source / "ebm_app")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", str(source)]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as file:
        assert package_files() <= set(file.namelist())
    assert "ebm_app/pretrained/mnist/model.safetensors" in package_files()


DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")


def health_check(port: int) -> subprocess.CompletedProcess:
    command = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.M)[1])
    code = command[-1].replace("7860", str(port))
    return subprocess.run([sys.executable, *command[1:-1], code], capture_output=True, timeout=60)


def test_health_check_passes_while_the_page_answers(address):
    found = health_check(int(address.rstrip("/").rpartition(":")[2]))
    assert found.returncode == 0, found.stderr
    assert health_check(free_port()).returncode != 0


def test_image_pins_its_base_and_all_packages():
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.M)
    assert DOCKERFILE.count("pip install") == DOCKERFILE.count(" -c constraints.txt ") == 2
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [*extras["plots"], *extras["tables"], *extras["ui"]]
    for requirement in map(Requirement, [*project["dependencies"], *names]):
        if requirement.name != "ebm_app":
            assert requirement.specifier.contains(pins[requirement.name.replace("_", "-")])


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
