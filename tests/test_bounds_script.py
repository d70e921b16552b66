"""The study of the error bounds, end to end with few draws, and its mistakes."""

import json
import math

import pytest
import torch
from PIL import Image

from ebm_app.io.records import read_json
from ebm_app.io.start import run_script
from studies.bounds import study
from studies.bounds.proposition5 import Fits

TINY = "--num_draws 20 --num_steps 1 4 --num_examples 200 400 --replicates 3 --device cpu".split()


@pytest.fixture
def run(script, capsys, tmp_path):
    """Run the script: (exit code, lines of stdout, last line of stderr)."""
    module = script("evaluate/bounds.py")

    def call(*flags):
        code = run_script(module.main, ["--output_dir", str(tmp_path), *flags])
        out, err = capsys.readouterr()
        return code, out.strip().splitlines(), (err.strip().splitlines() or [""])[-1]

    return call


@pytest.mark.slow
def test_the_study_leaves_tables_record_and_plots(run, tmp_path):
    code, out, _ = run(*TINY)
    record = read_json(tmp_path / "bounds.json")
    table = json.loads(out[-1])["table"]
    assert code == 0 and record["figures"]["table"] == table
    assert record["settings"]["num_draws"] == 20 and record["settings"]["seed"] == 0
    rows = table["theorem4"]
    assert len(rows) == 3 * 3 * 2 * 2  # problems, paths, errors, numbers of steps
    for row in rows:
        assert row["kl"] ** 2 <= row["mean_square"] * (1 + 1e-9) <= row["bound"] * (1 + 2e-9)
        assert row["ratio"] == pytest.approx(math.sqrt(row["bound"]) / abs(row["kl"]))
    rows = table["proposition5"]
    assert len(rows) == 3 * 2 * 2  # weightings, objectives, sizes
    assert all(row["fitted"] + row["failed"] == 3 for row in rows)
    e = {(row["weighting"], row["objective"]): row["e"] for row in rows}
    assert len(e) == len(set(e.values())) == 6
    assert all(e[name, "ctsm_v"] < e[name, "ctsm"] for name, _ in e)
    assert min(e, key=e.get) == ("time_score", "ctsm_v")
    heads = [line for line in out if line.startswith(("Theorem 4", "Proposition 5"))]
    assert len(heads) == 2 and len(out) == 3 + 18 + 1 + 2 + 12 + 1
    for name in ("theorem4", "proposition5"):
        assert min(Image.open(tmp_path / f"{name}.png").size) > 300


@pytest.fixture
def small(monkeypatch):
    """One problem, path and weighting."""
    for table, key in (("PROBLEMS", "mixture"), ("PATHS", "linear_vp"), ("WEIGHTINGS", "uniform")):
        monkeypatch.setattr(study, table, {key: getattr(study, table)[key]})


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_same_seed_gives_the_same_rows_and_another_does_not():
    for rows in (
        lambda seed: study.theorem4_rows(20, [1, 4], seed),
        lambda seed: study.proposition5_rows(20, [99], 3, seed),
    ):
        assert rows(0) == rows(0) != rows(1)


@pytest.mark.usefixtures("small")
def test_too_few_examples_for_any_fit_end_in_one_sentence(run, monkeypatch):
    nothing = Fits(torch.zeros(3, 3), torch.zeros(3, dtype=torch.bool))
    monkeypatch.setattr(study, "fit_replicates", lambda *_: nothing)
    code, _, error = run(*TINY)
    assert (
        code == 2
        and error.startswith("error: ctsm, uniform, N = 200")
        and "raise --num_examples" in error
    )


def test_quick_lowers_what_is_not_given(script):
    parse = script("evaluate/bounds.py").parse_args
    assert parse(["--num_steps", "4", "1", "4"]).num_steps == [1, 4]
    full, quick = parse([]), parse(["--quick", "--replicates", "7"])
    assert quick.replicates == 7 and quick.num_draws < full.num_draws
    assert len(quick.num_steps) < len(full.num_steps)
    assert full.num_steps[-1] == 256 and max(quick.num_examples) < max(full.num_examples)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_draws", "1"], "at least 2"),
        (["--replicates", "1"], "at least 2"),
        (["--seed", "-1"], "at least 0"),
        (["--num_steps", "4", "0"], "at least 1"),
        (["--device", "tpu"], "choose auto, cpu or cuda"),
    ],
)
def test_mistakes_end_in_one_sentence(run, flags, message):
    code, _, error = run(*TINY, *flags)
    assert code == 2 and error.startswith("error: ") and message in error
