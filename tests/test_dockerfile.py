"""The commands of the Dockerfile, run without Docker."""

import json
import re
import subprocess
import sys

from conftest import ROOT, error_of, free_port
from packaging.requirements import Requirement

from ebm_app.cli.space import requirements

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")


def health_check(port: int) -> subprocess.CompletedProcess:
    command = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.M)[1])
    code = command[-1].replace("7860", str(port))
    return subprocess.run([sys.executable, *command[1:-1], code], capture_output=True, timeout=60)


def test_health_check_passes_while_the_page_answers(address):
    found = health_check(int(address.rstrip("/").rpartition(":")[2]))
    assert found.returncode == 0, found.stderr
    assert health_check(free_port()).returncode != 0


def test_page_in_the_image_requires_a_password(script, monkeypatch):
    command = json.loads(re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[1])
    monkeypatch.delenv("EBM_AUTH", raising=False)
    main = script(command[0].removeprefix("/app/")).main
    assert "EBM_AUTH" in error_of(main, command[1:])


def test_image_pins_its_base_and_all_packages():
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.M)
    assert DOCKERFILE.count("pip install") == DOCKERFILE.count(" -c constraints.txt ") == 2
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    for requirement in map(Requirement, requirements()):
        assert requirement.specifier.contains(pins[requirement.name.replace("_", "-")])
