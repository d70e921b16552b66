"""Files of a run: exact pixels, the animation, and settings that are read back from a PNG."""

import io
import json
import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from conftest import SETTINGS, error_of, huge_png, pixels, png_chunk, save_settings
from PIL import Image, ImageSequence

from ebm_app.data.png import to_uint8
from ebm_app.web import shared
from ebm_app.web.generate import animation
from ebm_app.web.generate import run as sample_run
from ebm_app.web.generate import settings as run_settings
from ebm_app.web.generate.files import write_files


@pytest.fixture
def settings():
    return run_settings.RunSettings(**SETTINGS)


@pytest.mark.parametrize("model", ["grey", "colour"])
def test_files_hold_exact_pixels_and_their_settings(models, settings, tmp_path, model):
    settings = replace(settings, model=model)
    *_, run = sample_run.generate(models.load, settings)
    files = write_files(run, tmp_path / "new")
    made = {**SETTINGS, "model": model, "step": 3}
    stem = f"{model}-pf_ode-seed7"
    names = [f"{stem}.png", f"{stem}-animation.png", f"{stem}.json", f"{stem}.zip"]
    assert [Path(file).name for file in files] == names
    (folder,) = (tmp_path / "new").iterdir()
    assert sorted(folder.iterdir()) == sorted(map(Path, files))
    assert np.array_equal(pixels(files.grid), pixels(shared.render(run.images)))
    assert json.loads(Path(files.settings).read_text()) == made
    for file in (files.grid, files.animation):
        assert json.loads(Image.open(file).info["ebm_app"]) == made
    with ZipFile(files.archive) as archive:
        tiles = [f"0{number}.png" for number in range(1, 6)]
        assert sorted(archive.namelist()) == [*tiles, "animation.png", "grid.png", "settings.json"]
        for name, path in zip(("grid.png", "animation.png", "settings.json"), files, strict=False):
            assert archive.read(name) == Path(path).read_bytes()
        for index, name in enumerate(tiles):
            tile = Image.open(io.BytesIO(archive.read(name)))
            expected = to_uint8(run.images)[index]
            assert np.array_equal(pixels(tile).reshape(expected.shape), expected)
            assert json.loads(tile.info["ebm_app"]) == {**made, "image": index + 1}


def test_names_of_models_become_names_of_files(settings):
    images = torch.zeros(1, 1, 8, 8)
    for model, stem in (("a/b", "a-b"), ("grey (2)", "grey-2"), ("../x", "x"), ("v1.5", "v1.5")):
        run = sample_run.SampleRun(replace(settings, model=model), images, 3, 3, "")
        assert run.stem == f"{stem}-pf_ode-seed7"


def test_an_animation_shows_the_steps_of_the_run_pixel_by_pixel(models, settings, tmp_path):
    settings = replace(settings, model="colour", num_steps=12)
    runs = list(sample_run.generate(models.load, settings))
    files = write_files(runs[-1], tmp_path)
    with Image.open(files.animation) as animation:
        assert animation.n_frames == 12 and animation.info["loop"] == 0
        seconds = []
        for run, frame in zip(runs, ImageSequence.Iterator(animation), strict=True):
            sheet = pixels(shared.render(run.images, min_pixels=1))
            factor = 360 // sheet.shape[1]
            assert factor > 1
            assert np.array_equal(pixels(frame), sheet.repeat(factor, 0).repeat(factor, 1))
            seconds.append(frame.info["duration"] / 1000)
    assert seconds == [0.1] * 11 + [2.0]


def test_an_animation_has_the_first_and_the_last_step_and_forty_at_most():
    is_kept = animation.is_kept
    for num_steps in range(1, run_settings.MAX_STEPS + 1):
        kept = [step for step in range(1, num_steps) if is_kept(step, num_steps)]
        assert len(kept) + 1 <= 40
        assert len(kept) + 1 == num_steps or len(kept) + 1 > 20
        assert kept[:1] == [1][: num_steps - 1]
        assert len(set(np.diff(kept))) <= 1


def test_settings_come_back_from_every_png_of_a_run(models, settings, tmp_path):
    *_, run = sample_run.generate(models.load, settings)
    files = write_files(run, tmp_path)
    with ZipFile(files.archive) as archive:
        tile = archive.extract("03.png", tmp_path)
    for file in (files.grid, files.animation, tile):
        assert run_settings.read_settings(file, ["colour", "grey"]) == settings
    message = error_of(run_settings.read_settings, files.grid, ["colour"])
    assert message == "unknown model 'grey': choose one of colour"


def test_other_files_than_the_pages_own_are_explained(tmp_path):
    whole = save_settings(tmp_path / "whole.png", json.dumps(SETTINGS))
    assert asdict(run_settings.read_settings(whole, ["grey"])) == SETTINGS
    data = Path(whole).read_bytes()
    Image.new("L", (8, 8)).save(tmp_path / "jpeg.png", "JPEG")
    (tmp_path / "text.png").write_text(json.dumps(SETTINGS))
    (tmp_path / "cut.png").write_bytes(data[:-20])
    (tmp_path / "flipped.png").write_bytes(data.replace(b"pf_ode", b"pf_odd"))
    (tmp_path / "huge.png").write_bytes(huge_png(data))
    for name in ("jpeg.png", "text.png", "cut.png", "flipped.png", "huge.png"):
        message = error_of(run_settings.read_settings, tmp_path / name, ["grey"])
        assert message.startswith("this file is no PNG or a damaged one: "), name
    message = error_of(run_settings.read_settings, save_settings(tmp_path / "a.png", None), [])
    assert message.startswith("this PNG holds no settings: ")


def test_settings_come_back_from_the_json_of_a_run_and_from_no_other_file(
    models, settings, tmp_path
):
    *_, run = sample_run.generate(models.load, settings)
    files = write_files(run, tmp_path)
    assert run_settings.read_settings(files.settings, ["colour", "grey"]) == settings
    assert error_of(run_settings.read_settings, files.settings, ["colour"]).startswith("unknown")
    for content in (b"", b"\xff\xfe", b"[" * 1_000_000, b'{"model": "grey"}'):
        (tmp_path / "other.json").write_bytes(content)
        message = error_of(run_settings.read_settings, tmp_path / "other.json", ["grey"])
        assert message == "these settings are damaged: load the file as it was saved"


def test_a_text_that_unpacks_to_a_large_one_is_refused(tmp_path):
    bomb = b"ebm_app\0\0" + zlib.compress(b"[" * 4_000_000, 9)
    assert len(bomb) < 8_000
    data = Path(save_settings(tmp_path / "a.png", None)).read_bytes()
    (tmp_path / "bomb.png").write_bytes(data[:33] + png_chunk(b"zTXt", bomb) + data[33:])
    message = error_of(run_settings.read_settings, tmp_path / "bomb.png", ["grey"])
    assert message.startswith("this file is no PNG or a damaged one: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"model": ' + "9" * 5000 + "}", "damaged"),
        (json.dumps({**SETTINGS, "model": ["grey"]}), "damaged"),
        (json.dumps({**SETTINGS, "model": "<img src=x>"}), "damaged"),
        (json.dumps({**SETTINGS, "model": "g" * 101}), "damaged"),
        (json.dumps({**SETTINGS, "sampler": "<b>"}), "damaged"),
        (json.dumps({key: SETTINGS[key] for key in list(SETTINGS)[:-1]}), "damaged"),
        (json.dumps({**SETTINGS, "sampler": "gibbs"}), "unknown sampler 'gibbs': choose one of"),
        (
            json.dumps({**SETTINGS, "num_images": 65}),
            "num_images cannot be 65: .* whole number from 1 to 64",
        ),
        (json.dumps({**SETTINGS, "num_images": 4.5}), "num_images cannot be 4.5: .* whole"),
        (
            json.dumps({**SETTINGS, "num_steps": 0}),
            "num_steps cannot be 0: .* whole number from 1 to 200",
        ),
        (json.dumps({**SETTINGS, "num_steps": True}), "num_steps cannot be True: .* whole"),
        (
            json.dumps({**SETTINGS, "seed": 2**31}),
            "seed cannot be 2147483648: .* whole number from 0 to 2147483647",
        ),
        (json.dumps({**SETTINGS, "seed": float("nan")}), "damaged"),
        (json.dumps({**SETTINGS, "seed": "7"}), "seed cannot be .*7"),
    ],
)
def test_settings_that_anyone_may_have_written_are_checked(text, message):
    found = error_of(run_settings.parse_settings, text)
    assert re.search(message, found) and len(found) < 120 and "<" not in found
