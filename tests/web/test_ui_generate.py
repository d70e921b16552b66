"""The Generate tab: runs, their log-likelihoods and files."""

import csv
import io
import json
import re
import shutil
from zipfile import ZipFile

import numpy as np
import pytest
from conftest import SETTINGS, error_of, pixels
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.data.pictures import to_uint8
from ebm_app.folders import BUNDLED
from ebm_app.sampling.base import Frame
from ebm_app.sampling.samplers import SAMPLERS
from ebm_app.web import generate, shared

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


def run(models, seed=7, randomise=False, scored=False, num=5):
    return generate.generate("grey", "pf_ode", num, 3, seed, randomise, scored, models=models)


def test_a_run_shows_the_seed_first_then_grids_then_the_files(models, tmp_path):
    first, *steps, last = copied(run(models), tmp_path)
    assert first == (None, "Starting · grey · seed 7", 7, None, None)
    heads = [re.sub(r" in \d+\.\d s", "", shown.caption) for shown in steps]
    assert heads == [
        f"{head} · grey · seed 7" for head in ("Step 1 of 3", "Step 2 of 3", "5 images")
    ]
    for step, shown in enumerate(steps, 1):
        assert json.loads(shown.grid.info["ebm_app"]) == {**SETTINGS, "step": step}
    drawn = models.load("grey").sample(5, "pf_ode", seed=7, num_steps=3)
    for picture in (steps[-1].grid, last.grid):
        assert np.array_equal(pixels(picture), pixels(shared.render(drawn)))
    assert not np.array_equal(pixels(steps[0].grid), pixels(last.grid))
    assert json.loads(Image.open(last.grid).info["ebm_app"]) == {**SETTINGS, "step": 3}
    with ZipFile(last.archive) as archive:
        assert json.loads(archive.read("settings.json")) == SETTINGS
        names = [f"0{number}.png" for number in range(1, 6)]
        assert sorted(archive.namelist()) == [*names, "grid.png", "settings.json"]
        for index, name in enumerate(names):
            tile = pixels(io.BytesIO(archive.read(name)))
            assert np.array_equal(tile, to_uint8(drawn)[index, ..., 0])
    seeds = {[*run(models, randomise=True, num=1)][-1].seed for _ in range(3)}
    assert len(seeds) == 3 and 7 not in seeds


def copied(shown, folder):
    """What a run shows, with the files of it, which it removes in the end."""
    for found in shown:
        if found.archive:
            grid, archive = (shutil.copy(path, folder) for path in (found.grid, found.archive))
            found = found._replace(grid=grid, archive=archive)
        yield found


def test_chains_that_hardly_move_are_told():
    frame = Frame(None, 1, 3, 9, acceptance=0.09)
    assert generate.caption(frame, SETTINGS, 1.0).endswith(f" · {generate.WARNING}")


def test_log_likelihoods_stand_in_the_order_of_the_grid(models, tmp_path):
    *_, some, done, last = copied(run(models, scored=True), tmp_path)
    assert [len(shown.likelihoods) for shown in (some, done, last)] == [4, 5, 5]
    assert some.caption.startswith("Step 4 of 5 log-likelihoods")
    ebm = models.load("grey")
    for number, image in enumerate(ebm.sample(5, "pf_ode", seed=7, num_steps=3)):
        draws = ebm.likelihood(image.expand(4, -1, -1, -1), seed=7).log_prob.numpy()
        expected = [number + 1, draws.mean(), draws.std(ddof=1) / 2]
        assert last.likelihoods[number][:3] == pytest.approx(expected, abs=0.0051)
    with ZipFile(last.archive) as archive:
        rows = list(csv.reader(io.StringIO(archive.read("scores.csv").decode())))
    assert rows[0] == list(generate.HEADERS) and len(rows) == 1 + 5
    assert list(map(float, rows[2])) == last.likelihoods[1]


def test_steps_on_offer_are_those_that_the_sampler_takes_by_itself(models, monkeypatch):
    for name in SAMPLERS:
        first = next(iter(models.load("grey").iterate_sample(1, name)))
        assert generate.own_steps("grey", name, models=models)["value"] == first.num_steps
    monkeypatch.setattr(generate, "MAX_STEPS", 10)
    assert generate.own_steps("grey", "pf_ode", models=models)["value"] == 10


def test_a_click_on_a_grid_gives_the_pixels_that_were_drawn(models):
    *_, shown, _ = run(models)
    grid, config = shown.grid, models.load("grey").config
    drawn = models.load("grey").sample(5, "pf_ode", seed=7, num_steps=3)
    for index, image in enumerate(to_uint8(drawn)[..., 0]):
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
