"""``--help`` does without what is slow to import."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from flags import SCRIPTS

#: packages and parts of them that take from half a second to several
SLOW = ("diffusers gradio matplotlib pandas sklearn torchvision").split()
#: one process for all scripts, since torch alone takes seconds
PROGRAM = """
import contextlib, io, json, runpy, sys
sys.path[:0] = ["evaluate", "ui"]
found = {}
for path in sys.argv[2:]:
    sys.argv = [path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    found[path] = [name for name in json.loads(%r) if name in sys.modules]
print(json.dumps(found))
"""


@pytest.mark.process
def test_help_imports_nothing_slow():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % json.dumps(SLOW), "--", *SCRIPTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {path: [] for path in SCRIPTS}
