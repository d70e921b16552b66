"""Flags of train/ebm.py: what its help shows, and errors in one sentence."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT, TINY, call

from ebm_app.cli import train
from ebm_app.training.settings import NAMES

ERRORS = {
    "--objective nce": "ctsm, ctsm_m, ctsm_v",
    "--objective dual --classes all": "classes",
    "--objective tsm": "--stein_factor 0",
    "--eps 0.7": "eps.*0.5",
    "--objective tsm --stein_factor 0 --compile inductor": "Leave out --compile",
    "--lr_decay_steps 5": "constant_with_warmup",
    "--resume_from_checkpoint latest": "no intact checkpoint",
}


@pytest.mark.parametrize("words", ERRORS)
def test_error_is_one_sentence(capsys, tmp_path, words):
    assert call(train, "--output_dir", tmp_path / "run", *TINY, *words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and len(error.strip().splitlines()) == 1
    assert re.search(ERRORS[words], error), error


def test_help_starts_with_common_flags_and_lists_names(capsys):
    texts = []
    for flag in ("--help", "--help_advanced"):
        with pytest.raises(SystemExit):
            train.main([flag])
        texts.append(capsys.readouterr().out)
    first = "space dataset data_root output_dir objective path".split()
    common, every = (re.findall(r"^\W*--([a-z_]+)", text, re.MULTILINE) for text in texts)
    assert [name for name in common if name in {*first, "learning_rate", "dry_run"}][:6] == first
    assert {"learning_rate", "dry_run"} <= set(common) < {*every, "help_advanced"}
    names = {name for names in NAMES.values() for name in names} - {"display"}
    assert names <= set(re.findall(r"\w+", texts[1]))


@pytest.mark.parametrize("path", ["train/ebm.py", "evaluate/bpd.py", "sample/ebm.py"])
def test_help_does_not_import_torch(path):
    code = "import runpy, sys; sys.argv[1:] = ['--help']\n"
    code += f"try: runpy.run_path('{path}', run_name='__main__')\n"
    code += "except SystemExit: sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
