"""The table of log-likelihoods of a folder of images."""

import csv
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import call, save_picture

from ebm_app.cli import score


def test_every_image_gets_a_row_whatever_the_batches(capsys, tmp_path):
    rng = np.random.RandomState(0)
    for index in range(3):
        save_picture(tmp_path / f"{index}.png", rng.randint(0, 256, (16, 8, 3)))
    (tmp_path / "bad.png").write_text("no image")
    flags = ["digits", tmp_path, "--estimator", "time_integral", "--device", "cpu"]
    assert call(score, *flags) == 2
    assert "--grayscale --resize --round_levels." in capsys.readouterr().err
    flags += ["--grayscale", "--resize", "--round_levels"]
    assert call(score, *flags) == 2 and "bad.png" in capsys.readouterr().err
    flags += ["--skip_bad", "--repeats", 2]
    tables = []
    for size in (1, 4):
        output = tmp_path / f"{size}.csv"
        assert call(score, *flags, "--batch_size", size, "--output", output) == 0
        figures = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (figures["images"], figures["bad"]) == (3, 1)
        tables.append(list(csv.DictReader(output.open())))
    assert [row["file"] for row in tables[1]] == ["0.png", "1.png", "2.png"]
    for one, row in zip(*tables, strict=True):
        bits = float(row["bits_per_dim"])
        assert bits == pytest.approx(-float(row["log_prob"]) / (64 * math.log(2)), rel=1e-6)
        assert float(row["stderr"]) > 0 and row["trained_on"] == ""
        assert float(one["bits_per_dim"]) == pytest.approx(bits, rel=1e-5)


def test_any_file_name_is_scored_and_rows_are_written_at_once(capsys, tmp_path):
    folder, output = tmp_path / "images", tmp_path / "scores.csv"
    folder.mkdir()
    save_picture(folder / "a.png", np.zeros((8, 8)))
    (folder / "a.png").rename(Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xe9.png")))
    save_picture(folder / "b.png", np.zeros((8, 8)))
    flags = ["digits", folder, "--round_levels", "--device", "cpu", "--repeats", 2]
    flags += ["--estimator", "time_integral", "--batch_size", 1, "--output", output]
    assert call(score, *flags) == 0
    names = [row["file"] for row in csv.DictReader(output.open(encoding="utf-8"))]
    assert sorted(names) == ["\\xff\\xe9.png", "b.png"]
    (folder / "z.png").write_text("no image")
    (folder / "b.png").rename(folder / "0.png")
    assert call(score, *flags) == 2 and "z.png" in capsys.readouterr().err
    names = [row["file"] for row in csv.DictReader(output.open(encoding="utf-8"))]
    assert names[0] == "0.png"
