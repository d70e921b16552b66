"""The wheel, and the commands of the Dockerfile."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from zipfile import ZipFile

from conftest import ROOT, free_port
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
