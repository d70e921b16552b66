"""``--help`` does not import slow packages, and models load in threads."""

import json
import os
import subprocess
import sys

from conftest import ROOT

#: Packages that take half a second or more to import.
SLOW = "diffusers gradio matplotlib pandas sklearn torchvision".split()
#: Scripts that do not import torch either, run first
LIGHT = ["train/ebm.py", "evaluate/bpd.py", "sample/ebm.py"]
FOLDERS = ("train", "sample", "evaluate", "ui")
PATHS = [path for name in FOLDERS for path in (ROOT / name).glob("*.py")]
SCRIPTS = [*LIGHT, *sorted({str(path.relative_to(ROOT)) for path in PATHS} - {*LIGHT})]
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
