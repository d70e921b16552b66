"""The Generate tab: runs, their log-likelihoods and files, settings read back, and last runs."""

import csv
import io
import json
import math
import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from zipfile import ZipFile

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import SETTINGS, error_of, huge_png, pixels, png_chunk, save_settings
from PIL import Image, ImageSequence

from ebm_app.data.png import to_uint8
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.sampling.samplers import SAMPLERS, Frame
from ebm_app.web import shared
from ebm_app.web.generate import gallery
from ebm_app.web.generate import run as sample_run
from ebm_app.web.generate import settings as run_settings
from ebm_app.web.generate import tab as generate
from ebm_app.web.generate.files import write_files
from ebm_app.web.runs import NEVER_BEGUN
from ebm_app.web.score.uploads import read_upload


@pytest.fixture
def settings():
    return run_settings.RunSettings(**SETTINGS)


def draw(models, settings, with_likelihoods=False):
    return list(sample_run.draw(models.load(settings.model), settings, with_likelihoods))


def test_a_run_tells_every_step_and_ends_with_the_samples(models, settings):
    runs = draw(models, settings)
    heads = [re.split(", about| · ", run.caption())[0] for run in runs]
    assert heads == ["Step 1 of 3", "Step 2 of 3", "5 images"]
    pattern = r"5 images · grey · seed 7 · \d+\.\d s · \d+ evaluations of the score"
    assert re.fullmatch(pattern, runs[-1].caption())
    drawn = models.load("grey").sample(5, seed=7, num_steps=3)
    assert torch.equal(runs[-1].images, drawn) and not torch.equal(runs[0].images, drawn)
    level = Frame(torch.zeros(5, 1, 8, 8), 1, 3, 9, acceptance=0.826)
    run = sample_run.SampleRun(settings, level.x, level, 2.0)
    rest = "grey · seed 7 · 2.0 s · 9 evaluations of the score · acceptance 0.83"
    assert run.caption() == f"Step 1 of 3, about 4 s left · {rest}"
    assert run.caption(is_stopped=True) == f"Stopped after step 1 of 3 · {rest}"
    stuck = replace(run, frame=level._replace(acceptance=0.09)).caption()
    assert stuck.endswith(f" · acceptance 0.09 · {sample_run.WARNING}")


def test_the_page_sees_the_seed_first_then_grids_then_the_files(models):
    shown = generate.generate("grey", "pf_ode", 5, 3, 7, False, False, models=models)
    first = next(shown)
    assert first == (None, "Starting · grey · seed 7", 7, None, None, None, None, None)
    for step in (1, 2, 3):
        found = next(shown)
        assert found.run.frame.step == step and found.archive is None
        assert np.array_equal(pixels(found.grid), pixels(shared.render(found.run.images)))
        assert json.loads(found.grid.info["ebm_app"]) == {**SETTINGS, "step": step}
    last = next(shown)
    assert np.array_equal(pixels(last.grid), pixels(found.grid)) and last.caption == found.caption
    assert found.run.past and last.run.past == ()  # a third of a megabyte stays in memory
    assert all(Path(file).is_file() for file in (last.animation, last.settings, last.archive))
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
    halted = generate.halt(shown.run, "Stopped · Step 1 of 3")
    stopped = next(halted)
    assert stopped.caption.startswith("Stopped after step 2 of 3 · grey · seed 7 · ")
    assert torch.equal(stopped.run.images, shown.run.images)
    made = {**SETTINGS, "step": 2}
    assert Path(stopped.grid).name == "grey-pf_ode-seed7-step2.png"
    with ZipFile(stopped.archive) as archive:
        assert json.loads(archive.read("settings.json")) == made
        last = to_uint8(shown.run.images)[4, ..., 0]
        assert np.array_equal(pixels(io.BytesIO(archive.read("05.png"))), last)
    for run, text in ((None, "Starting"), (shown.run, NEVER_BEGUN)):
        (same,) = generate.halt(run, text)
        assert set(map(str, same)) == {str(gr.skip())}


def test_log_likelihoods_stand_in_the_order_of_the_grid(models, settings, tmp_path):
    settings = replace(settings, num_images=9)
    *_, drawn, some, done = draw(models, settings, with_likelihoods=True)
    assert not drawn.likelihoods and len(some.likelihoods) == 8 and len(done.likelihoods) == 9
    assert re.match(r"Step 8 of 9, about \d+ s left · 8 log-likelihoods · grey", some.caption())
    assert done.caption().startswith("9 images · 9 log-likelihoods · grey")
    ebm = models.load("grey")
    for start, batch in ((0, done.images[:8]), (8, done.images[8:])):
        result = ebm.log_prob(batch.repeat_interleave(4, 0), seed=mixed_seed(7, start))
        draws = result.log_prob.view(-1, 4).numpy()
        for index, (number, log_prob, error, bits) in enumerate(done.likelihoods[start:][:8]):
            assert number == start + index + 1
            assert log_prob == pytest.approx(draws[index].mean())
            assert error == pytest.approx(draws[index].std(ddof=1) / 2) and error > 0
            assert bits == pytest.approx(-log_prob / (64 * math.log(2)))
    number, log_prob, error, bits = done.likelihoods[1]
    row = [2, float(f"{log_prob:.2f}"), float(f"{error:.2f}"), float(f"{bits:.4f}")]
    assert sample_run.table(done.likelihoods)[1] == row
    with ZipFile(write_files(some, tmp_path).archive) as archive:
        rows = list(csv.reader(io.StringIO(archive.read("scores.csv").decode())))
    assert rows[0] == list(sample_run.HEADERS) and len(rows) == 1 + 8
    assert tuple(map(float, rows[2])) == done.likelihoods[1]


@pytest.mark.parametrize("model", ["grey", "colour"])
def test_files_hold_exact_pixels_and_their_settings(models, settings, tmp_path, model):
    settings = replace(settings, model=model)
    runs = draw(models, settings)
    files = write_files(runs[-1], tmp_path)
    made = {**SETTINGS, "model": model, "step": 3}
    assert json.loads(Path(files.settings).read_text()) == made
    for file in (files.grid, files.animation):
        assert json.loads(Image.open(file).info["ebm_app"]) == made
    with ZipFile(files.archive) as archive:
        names = [f"0{number}.png" for number in range(1, 6)]
        assert sorted(archive.namelist()) == [*names, "animation.png", "grid.png", "settings.json"]
        for index, name in enumerate(names):
            tile = Image.open(io.BytesIO(archive.read(name)))
            expected = to_uint8(runs[-1].images)[index]
            assert np.array_equal(pixels(tile).reshape(expected.shape), expected)
            assert json.loads(tile.info["ebm_app"]) == {**made, "image": index + 1}
    with Image.open(files.animation) as animation:
        assert animation.n_frames == 3 and animation.info["loop"] == 0
        for run, frame in zip(runs, ImageSequence.Iterator(animation), strict=True):
            sheet = pixels(shared.render(run.images, min_pixels=1))
            factor = 360 // sheet.shape[1]
            assert np.array_equal(pixels(frame), sheet.repeat(factor, 0).repeat(factor, 1))
    for file in (files.grid, files.animation, files.settings):
        assert run_settings.read_settings(file, ["colour", "grey"]) == settings
    assert "unknown model" in error_of(run_settings.read_settings, files.grid, ["other"])


def test_an_animation_has_forty_frames_at_most_and_names_of_models_become_names_of_files(
    models, settings
):
    runs = draw(models, replace(settings, num_images=1, num_steps=95))
    assert 20 < len(runs[-1].past) + 1 <= 40
    for model, stem in (("a/b", "a-b"), ("grey (2)", "grey-2"), ("../x", "x"), ("v1.5", "v1.5")):
        run = replace(runs[-1], settings=replace(settings, model=model))
        assert run.stem == f"{stem}-pf_ode-seed7"


def test_other_files_than_the_pages_own_are_explained(tmp_path):
    whole = save_settings(tmp_path / "whole.png", json.dumps(SETTINGS))
    assert asdict(run_settings.read_settings(whole, ["grey"])) == SETTINGS
    data = Path(whole).read_bytes()
    Image.new("L", (8, 8)).save(tmp_path / "jpeg.png", "JPEG")
    bomb = b"ebm_app\0\0" + zlib.compress(
        b"[" * 4_000_000, 9
    )  # a text that unpacks to a large one
    empty = Path(save_settings(tmp_path / "a.png", None)).read_bytes()
    for name, content in (
        ("text.png", json.dumps(SETTINGS).encode()),
        ("cut.png", data[:-20]),
        ("flipped.png", data.replace(b"pf_ode", b"pf_odd")),
        ("huge.png", huge_png(data)),
        ("bomb.png", empty[:33] + png_chunk(b"zTXt", bomb) + empty[33:]),
    ):
        (tmp_path / name).write_bytes(content)
    for name in ("jpeg.png", "text.png", "cut.png", "flipped.png", "huge.png", "bomb.png"):
        message = error_of(run_settings.read_settings, tmp_path / name, ["grey"])
        assert message.startswith("this file is no PNG or a damaged one: "), name
    assert "holds no settings" in error_of(run_settings.read_settings, tmp_path / "a.png", [])
    for content in (b"", b"\xff\xfe", b"[" * 1_000_000, b'{"model": "grey"}'):
        (tmp_path / "other.json").write_bytes(content)
        message = error_of(run_settings.read_settings, tmp_path / "other.json", ["grey"])
        assert message.startswith("these settings are damaged")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ["grey"]}, "damaged .*model"),
        ({"model": "<img src=x>"}, "damaged"),
        ({"model": "g" * 101}, "damaged"),
        ({"model": "gone"}, "unknown model 'gone'"),
        ({"sampler": "gibbs"}, "unknown sampler 'gibbs': choose one of"),
        ({"num_images": 65}, "num_images cannot be 65: .* 64"),
        ({"num_images": 4.5}, "num_images cannot be 4.5"),
        ({"num_steps": 0}, "num_steps cannot be 0"),
        ({"seed": 2**31}, "seed cannot be 2147483648"),
        ({"seed": float("nan")}, "damaged"),
    ],
)
def test_settings_that_anyone_may_have_written_are_checked(change, message):
    found = error_of(run_settings.usable, json.dumps({**SETTINGS, **change}), ["grey"])
    assert re.search(message, found) and len(found) < 250


def test_a_loaded_file_and_a_last_run_set_every_choice_and_keep_the_seed(models, tmp_path):
    values = {**SETTINGS, "model": "colour", "sampler": "annealed_hmc"}
    expected = ("colour", "annealed_hmc", 5, 3, 7, False)
    path = save_settings(tmp_path / "a.png", json.dumps(values))
    assert generate.load_settings(path, models=models) == expected
    assert generate.load_last(json.dumps(values), models=models) == expected


def test_steps_on_offer_are_those_that_the_sampler_takes_by_itself(models, monkeypatch):
    for model in ("grey", "colour"):
        for name, kind in SAMPLERS.items():
            first = next(iter(models.load(model).iterate_sample(1, name)))
            offered = generate.own_steps(model, name, models=models)
            assert (offered["value"], offered["info"]) == (first.num_steps, kind.steps)
    monkeypatch.setattr(generate, "MAX_STEPS", 10)
    offered = generate.own_steps("grey", "pf_ode", models=models)
    assert offered["value"] == 10 and "by itself the sampler takes" in offered["info"]


def test_images_are_sorted_by_their_log_likelihood_and_keep_their_captions(settings):
    images = torch.arange(4).view(4, 1, 1, 1).expand(4, 1, 8, 8) / 4
    found = [
        sample_run.ImageLikelihood(number, nats, 0.25, 1.0)
        for number, nats in ((1, -5), (2, 3), (3, 1))
    ]
    run = sample_run.SampleRun(settings, images, None, 0.0, likelihoods=tuple(found))
    expected = ["1: -5.0 ± 0.2 nats", "2: 3.0 ± 0.2 nats", "3: 1.0 ± 0.2 nats", "4"]
    for order, places in (
        ("as drawn", [0, 1, 2, 3]),
        ("most likely first", [1, 2, 0, 3]),
        ("least likely first", [0, 2, 1, 3]),
    ):
        tiles = gallery.tiles(run, order)
        assert [caption for _, caption in tiles] == [expected[place] for place in places]
        for (picture, _), place in zip(tiles, places, strict=True):
            assert picture.width == picture.height >= gallery.MIN_PIXELS
            assert set(np.unique(pixels(picture))) == {to_uint8(run.images)[place].max()}
    plain = replace(run, likelihoods=None)
    for given, is_shown, is_sorted in ((run, True, True), (plain, True, False), (None, 0, 0)):
        shown, order = gallery.show(given, "as drawn")
        assert (shown["visible"], order["visible"]) == (is_shown, is_sorted)


def test_a_click_sends_the_pixels_that_were_drawn(models, settings, tmp_path):
    ebm = models.load("grey")
    images = ebm.sample(2, seed=7, num_steps=3)
    sent = gallery.tiles(sample_run.SampleRun(settings, images, None, 0.0), "as drawn")
    for image, (picture, _) in zip(images, sent, strict=True):
        picture.save(tmp_path / "sent.png")
        assert torch.equal(read_upload(tmp_path / "sent.png", ebm.config).image[0], image)
    with gr.Blocks() as app:
        shown = gallery.image_tiles("images")
        gallery.send_on_click(shown, gr.Image(), {gr.Tabs(): "score"})
    (fn,) = (fn for fn in app.fns.values() if fn.name == "send")
    event = gr.SelectData(target=None, data={"index": 1, "value": None})
    path, update = fn.fn([("a.png", "1"), ("b.png", "2")], event)
    assert path == "b.png" and update["selected"] == "score"
    for there in (None, [("a.png", "1")]):
        with pytest.raises(gr.Error, match="no longer there"):
            fn.fn(there, event)


def test_the_last_ten_runs_are_kept_each_once_whatever_a_browser_holds(settings):
    runs = []
    for seed in [*range(12), 5]:
        runs = run_settings.remember(runs, replace(settings, seed=seed))
    assert [json.loads(run)["seed"] for run in runs] == [5, 11, 10, 9, 8, 7, 6, 4, 3, 2]
    (text, value), *_ = run_settings.known(runs)
    assert text == "grey · Probability-flow ODE · 5 images · 3 steps · seed 5"
    assert run_settings.usable(value, ["grey"]) == replace(settings, seed=5)
    assert run_settings.remember(runs, None) == runs
    held = [json.dumps(SETTINGS), "{}", 3, None, json.dumps({**SETTINGS, "seed": -1}), [3]]
    assert [run for _, run in run_settings.known(held)] == held[:1]
    for others in (None, "text", {"a": 1}, math.nan):
        assert run_settings.known(others) == []
