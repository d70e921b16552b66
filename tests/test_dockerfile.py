"""The commands of the Dockerfile, without Docker."""

import json
import re
import subprocess
import sys

from conftest import ROOT, error_of, free_port

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")


def healthcheck(port: int) -> subprocess.CompletedProcess:
    """The Dockerfile's own command, for a page on another port."""
    command = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.M)[1])
    assert command[0] == "python" and "127.0.0.1:7860/" in command[-1]
    code = command[-1].replace("7860", str(port))
    return subprocess.run(
        [sys.executable, *command[1:-1], code], capture_output=True, text=True, timeout=60
    )


def test_the_health_check_passes_while_the_page_answers(address):
    """Also where it asks for a password."""
    found = healthcheck(int(address.rstrip("/").rpartition(":")[2]))
    assert found.returncode == 0, found.stderr
    assert healthcheck(free_port()).returncode != 0


def test_the_page_in_the_image_is_refused_without_a_password(script, monkeypatch):
    command = json.loads(re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[1])
    monkeypatch.delenv("EBM_AUTH", raising=False)
    main = script(command[0].removeprefix("/app/")).main
    assert "EBM_AUTH=user:password" in error_of(main, command[1:])
