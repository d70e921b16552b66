"""The Generate tab: runs, their log-likelihoods and files."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import SETTINGS, error_of, pixels
from PIL import Image

from ebm_app.data.png import to_uint8
from ebm_app.models.config import EBMConfig
from ebm_app.models.folders import BUNDLED
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.sampling.samplers import SAMPLERS, Frame
from ebm_app.web import shared
from ebm_app.web.generate import run as sample_run
from ebm_app.web.generate import tab as generate

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


@pytest.fixture
def settings():
    return sample_run.RunSettings(**SETTINGS)


def draw(models, settings, with_likelihoods=False):
    return list(sample_run.draw(models.load(settings.model), settings, with_likelihoods))


def test_a_run_tells_every_step_and_ends_with_the_samples(models, settings):
    runs = draw(models, settings)
    heads = [run.caption().split(" · ")[0] for run in runs]
    assert heads == ["Step 1 of 3", "Step 2 of 3", "5 images"]
    pattern = r"5 images · grey · seed 7 · \d+\.\d s · \d+ evaluations of the score"
    assert re.fullmatch(pattern, runs[-1].caption())
    drawn = models.load("grey").sample(5, "pf_ode", seed=7, num_steps=3)
    assert torch.equal(runs[-1].images, drawn) and not torch.equal(runs[0].images, drawn)
    stuck = replace(runs[0], frame=Frame(drawn, 1, 3, 9, acceptance=0.09)).caption()
    assert stuck.endswith(f" · acceptance 0.09 · {sample_run.WARNING}")


def test_the_page_sees_the_seed_first_then_grids_then_the_files(models):
    shown = generate.generate("grey", "pf_ode", 5, 3, 7, False, False, models=models)
    first = next(shown)
    assert first == (None, "Starting · grey · seed 7", 7, None, None, None)
    for step in (1, 2, 3):
        found = next(shown)
        assert found.run.frame.step == step and found.archive is None
        assert np.array_equal(pixels(found.grid), pixels(shared.render(found.run.images)))
        assert json.loads(found.grid.info["ebm_app"]) == {**SETTINGS, "step": step}
    last = next(shown)
    assert np.array_equal(pixels(last.grid), pixels(found.grid)) and last.caption == found.caption
    assert Path(last.archive).is_file()
    assert list(shown) == [] and not Path(last.archive).exists()
    seeds = {
        [*generate.generate("grey", "pf_ode", 1, 1, 7, True, False, models=models)][-1].seed
        for _ in range(3)
    }
    assert len(seeds) == 3 and 7 not in seeds


def test_what_stays_of_a_stopped_run_is_all_of_its_last_step(models):
    run = generate.generate("grey", "pf_ode", 5, 3, 7, False, False, models=models)
    _, _, shown = (next(run) for _ in range(3))
    run.close()
    halted = generate.halt(shown.run)
    stopped = next(halted)
    assert stopped.caption == gr.skip() and torch.equal(stopped.run.images, shown.run.images)
    assert Path(stopped.grid).name == "grey-pf_ode-seed7-step2.png"
    with ZipFile(stopped.archive) as archive:
        assert json.loads(archive.read("settings.json")) == {**SETTINGS, "step": 2}
        last = to_uint8(shown.run.images)[4, ..., 0]
        assert np.array_equal(pixels(io.BytesIO(archive.read("05.png"))), last)
    assert list(generate.halt(None)) == []


def test_log_likelihoods_stand_in_the_order_of_the_grid(models, settings, tmp_path):
    settings = replace(settings, num_images=9)
    *_, drawn, some, done = draw(models, settings, with_likelihoods=True)
    assert [len(run.likelihoods) for run in (drawn, some, done)] == [0, 8, 9]
    assert done.caption().startswith("9 images · 9 log-likelihoods · grey")
    ebm = models.load("grey")
    for start, batch in ((0, done.images[:8]), (8, done.images[8:])):
        result = ebm.log_prob(batch.repeat_interleave(4, 0), seed=mixed_seed(7, start))
        draws = result.log_prob.view(-1, 4).numpy()
        for index, found in enumerate(done.likelihoods[start:][:8]):
            assert found.log_prob == pytest.approx(draws[index].mean())
            assert found.log_prob_error == pytest.approx(draws[index].std(ddof=1) / 2)
    with ZipFile(sample_run.write_files(some, tmp_path)[1]) as archive:
        rows = list(csv.reader(io.StringIO(archive.read("scores.csv").decode())))
    assert rows[0] == list(sample_run.HEADERS) and len(rows) == 1 + 8
    assert list(map(float, rows[2])) == [2, *done.likelihoods[1].rounded()[:3]]


@pytest.mark.parametrize("model", ["grey", "colour"])
def test_files_hold_exact_pixels_and_their_settings(models, settings, tmp_path, model):
    *_, run = draw(models, replace(settings, model=model))
    grid, archive = sample_run.write_files(run, tmp_path)
    made = {**SETTINGS, "model": model, "step": 3}
    assert json.loads(Image.open(grid).info["ebm_app"]) == made
    with ZipFile(archive) as archive:
        assert json.loads(archive.read("settings.json")) == made
        names = [f"0{number}.png" for number in range(1, 6)]
        assert sorted(archive.namelist()) == [*names, "grid.png", "settings.json"]
        for index, name in enumerate(names):
            tile = Image.open(io.BytesIO(archive.read(name)))
            expected = to_uint8(run.images)[index]
            assert np.array_equal(pixels(tile).reshape(expected.shape), expected)
            assert json.loads(tile.info["ebm_app"]) == {**made, "image": index + 1}
    for name, stem in (("a/b", "a-b"), ("grey (2)", "grey-2"), ("../x", "x"), ("v1.5", "v1.5")):
        named = replace(run, settings=replace(settings, model=name))
        assert named.stem == f"{stem}-pf_ode-seed7"


def test_steps_on_offer_are_those_that_the_sampler_takes_by_itself(models, monkeypatch):
    for model in ("grey", "colour"):
        for name, kind in SAMPLERS.items():
            first = next(iter(models.load(model).iterate_sample(1, name)))
            offered = generate.own_steps(model, name, models=models)
            assert (offered["value"], offered["info"]) == (first.num_steps, kind.steps)
    monkeypatch.setattr(generate, "MAX_STEPS", 10)
    offered = generate.own_steps("grey", "pf_ode", models=models)
    assert offered["value"] == 10 and "by itself the sampler takes" in offered["info"]


def test_a_click_on_a_grid_gives_the_pixels_that_were_drawn(models, settings):
    *_, run = draw(models, settings)
    grid, config = run.grid(), models.load("grey").config
    for index, image in enumerate(to_uint8(run.images)[..., 0]):
        row, column = divmod(index, 3)
        place = [int((at + 0.5) / 3 * grid.width) for at in (column, row)]
        found = np.asarray(generate.cell(grid, config, place))
        factor = len(found) // 8
        assert np.array_equal(found, image.repeat(factor, 0).repeat(factor, 1))
    assert "no image at this place" in error_of(
        generate.cell, grid, config, [grid.width - 1, grid.height - 1]
    )
    with Image.open(BUNDLED / "mnist" / generate.FIRST_GRID) as stored:
        found = np.asarray(generate.cell(stored, MNIST, [29 * 2, 0]))
        assert np.array_equal(found, np.asarray(stored)[:56, 58:114])
