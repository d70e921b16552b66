"""Sampling, and the tables of a folder of images, by the commands; mistakes in one sentence."""

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import call, figures_of, load_script, save_picture
from PIL import Image

import bpd
import score

sample = load_script("sample/ebm.py")


def test_images_depend_only_on_the_seed(folder, tmp_path):
    flags = "--sampler annealed_hmc --num_images 3 --num_steps 2 --device cpu".split()
    flags += "--sampler_args num_leapfrog_steps=1 final_steps=0".split()
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        place = ["--seed", seed, "--output_dir", tmp_path / name]
        figures = figures_of(sample, folder / "grey", *flags, *place)
    assert figures["output_dir"] == str(tmp_path / "c") and figures["num_files"] == 4
    assert figures["nfe"] > 0 and figures["seconds"] > 0
    images = [(tmp_path / name / "00002.png").read_bytes() for name in "abc"]
    assert images[0] == images[1] != images[2]
    assert Image.open(tmp_path / "a" / "00000.png").size == (8, 8)
    assert (tmp_path / "a" / "grid.png").is_file()


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        (bpd, "grey --dataset mnist --data_root none", "mnist"),
        (bpd, "colour --dataset digits", "(1, 8, 8)"),
        (bpd, "grey --t_margin 0", "t_margin"),
        (bpd, "grey --estimator guess", "guess"),
        (sample, "notes", "notes"),
        (sample, "grey --sampler_args end_variance=guess", "end_variance"),
        (sample, "grey --device tpu", "tpu"),
        (score, "grey nowhere", "nowhere"),
    ],
)
def test_user_error_is_one_sentence(folder, capsys, tmp_path, monkeypatch, module, words, message):
    monkeypatch.chdir(tmp_path)
    model, *flags = words.split()
    assert call(module, folder / model, *flags) == 2
    *_, error = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ") and message in error


def test_every_image_has_a_row_for_any_batch_size(capsys, tmp_path):
    rng = np.random.RandomState(0)
    for name in "012":
        save_picture(tmp_path / f"{name}.png", rng.randint(0, 256, (16, 8, 3)))
    (tmp_path / "film.gif").write_text("other file")
    flags = ["digits", tmp_path, "--estimator", "time_integral", "--device", "cpu"]
    assert call(score, *flags) == 2
    assert "resize" in capsys.readouterr().err
    flags += ["--resize", "--repeats", 2]
    tables = []
    for size in (1, 4):
        output = tmp_path / f"{size}.csv"
        figures = figures_of(score, *flags, "--batch_size", size, "--output", output)
        assert (figures["images"], figures["estimator"]) == (3, "time_integral")
        tables.append(list(csv.DictReader(output.open())))
    assert [row["file"] for row in tables[1]] == ["0.png", "1.png", "2.png"]
    for one, row in zip(*tables, strict=True):
        bits = float(row["bits_per_dim"])
        assert bits == pytest.approx(-float(row["log_prob"]) / (64 * math.log(2)), rel=1e-6)
        assert float(row["stderr"]) > 0
        assert float(one["bits_per_dim"]) == pytest.approx(bits, rel=1e-5)
        assert one["p_value"] == row["p_value"] and 0 < float(row["p_value"]) <= 0.05  # noise
    output = tmp_path / "energy.csv"  # of a model without a detector
    figures_of(score, "digits-energy", tmp_path, "--resize", "--device", "cpu", "--output", output)
    assert "p_value" not in output.read_text()


def test_any_file_name_is_scored_and_rows_are_flushed(capsys, tmp_path):
    folder, output = tmp_path / "images", tmp_path / "scores.csv"
    folder.mkdir()
    save_picture(folder / "a.png", np.zeros((8, 8)))
    (folder / "a.png").rename(Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xe9.png")))
    save_picture(folder / "b.png", np.zeros((8, 8)))
    flags = ["digits", folder, "--resize", "--device", "cpu", "--repeats", 2]
    flags += ["--estimator", "time_integral", "--batch_size", 1, "--output", output]
    assert call(score, *flags) == 0
    names = [row["file"] for row in csv.DictReader(output.open(encoding="utf-8"))]
    assert sorted(names) == ["\\xff\\xe9.png", "b.png"]
    (folder / "z.png").write_text("no image")
    (folder / "b.png").rename(folder / "0.png")
    assert call(score, *flags) == 2 and "z.png" in capsys.readouterr().err
    names = [row["file"] for row in csv.DictReader(output.open(encoding="utf-8"))]
    assert names[0] == "0.png"
