"""The Generate tab: runs, their log-likelihoods and files, and settings read back from a PNG."""

import csv
import io
import json
import math
import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import error_of, huge_png, png_chunk
from PIL import Image, ImageSequence
from PIL.PngImagePlugin import PngInfo

from ebm_app.data.png import to_uint8
from ebm_app.numerics import mixed_seed
from ebm_app.sampling.samplers import Frame
from ebm_app.web import shared
from ebm_app.web.generate import animation, likelihoods
from ebm_app.web.generate import run as sample_run
from ebm_app.web.generate import settings as run_settings
from ebm_app.web.generate import tab as generate
from ebm_app.web.generate.files import write_files

SETTINGS = {"model": "grey", "sampler": "pf_ode", "num_images": 5, "num_steps": 3, "seed": 7}


@pytest.fixture(scope="module")
def settings():
    return run_settings.RunSettings(**SETTINGS)


def pixels(picture) -> np.ndarray:
    return np.asarray(picture if isinstance(picture, Image.Image) else Image.open(picture))


def test_a_run_tells_every_step_and_ends_with_the_samples(models, settings):
    runs = list(sample_run.generate(models.load, settings))
    heads = [run.caption.split(" · ")[0] for run in runs]
    assert heads == ["Step 1 of 3", "Step 2 of 3", "5 images"]
    assert [(run.step, run.num_steps) for run in runs] == [(1, 3), (2, 3), (3, 3)]
    pattern = r"5 images · grey · seed 7 · \d+\.\d s · \d+ evaluations of the score"
    assert re.fullmatch(pattern, runs[-1].caption)
    drawn = models.load("grey").sample(5, seed=7, num_steps=3)
    assert torch.equal(runs[-1].images, drawn) and not torch.equal(runs[0].images, drawn)
    assert not any(run.likelihoods for run in runs)
    level = Frame(torch.zeros(5, 1, 8, 8), 1, 3, 9, acceptance=0.826)
    assert sample_run.caption(level, "grey", 2.0) == (
        "Step 1 of 3 · grey · 2.0 s · 9 evaluations of the score · acceptance 0.83"
    )


def test_the_page_sees_the_seed_first_then_grids_then_the_files(models, settings, tmp_path):
    first, *steps, last = generate.draw(models.load, settings, False, tmp_path)
    assert first == (None, "Starting · grey · seed 7", 7, None, None, None, None, None)
    assert [shown.run.step for shown in steps] == [1, 2, 3]
    for shown in steps:
        assert shown.animation is shown.settings is shown.archive is None
        assert np.array_equal(pixels(shown.grid), pixels(shared.render(shown.run.images)))
        assert json.loads(shown.grid.info["ebm_app"]) == {**SETTINGS, "step": shown.run.step}
    assert np.array_equal(pixels(last.grid), pixels(steps[-1].grid))
    assert last.caption == steps[-1].caption and last.run is None
    assert all(Path(file).is_file() for file in (last.animation, last.settings, last.archive))


def test_who_stops_iterating_stops_the_sampler_and_leaves_no_file(settings, tmp_path):
    steps = []

    def frames(num_images, sampler, seed, num_steps):
        try:
            for step in range(1, num_steps + 1):
                steps.append(step)
                yield Frame(torch.zeros(num_images, 1, 8, 8), step, num_steps, step)
        finally:
            steps.append("closed")

    ebm = SimpleNamespace(iterate_sample=frames, to_images=lambda x: x)
    run = generate.draw(lambda name: ebm, replace(settings, num_steps=50), False, tmp_path)
    shown = [next(run) for _ in range(4)]
    run.close()
    assert steps == [1, 2, 3, "closed"]
    assert not list(tmp_path.iterdir())
    stopped = generate.stop(shown[-1].run, shown[-1].caption, tmp_path)
    assert stopped.caption.startswith("Stopped after step 3 of 50 · grey · seed 7 · ")


def test_what_stays_of_a_stopped_run_is_all_of_its_last_step(models, settings, tmp_path):
    run = generate.draw(models.load, settings, False, tmp_path)
    _, _, shown = (next(run) for _ in range(3))
    run.close()
    stopped = generate.stop(shown.run, "Step 1 of 3 · an older caption", tmp_path)
    assert stopped.caption == f"Stopped after s{shown.caption[1:]}" and stopped.run is None
    made = {**SETTINGS, "step": 2}
    assert Path(stopped.grid).name == "grey-pf_ode-seed7-step2.png"
    assert np.array_equal(pixels(stopped.grid), pixels(shown.grid))
    assert stopped.settings["interactive"] and stopped.archive["interactive"]
    assert json.loads(Path(stopped.settings["value"]).read_text()) == made
    with ZipFile(stopped.archive["value"]) as archive:
        assert json.loads(archive.read("settings.json")) == made
        last = to_uint8(shown.run.images)[4, ..., 0]
        assert np.array_equal(pixels(io.BytesIO(archive.read("05.png"))), last)


def test_stopping_where_nothing_can_be_kept_changes_the_caption_alone(tmp_path):
    for before, after in (
        ("Starting · grey · seed 1", "Stopped before the first step · grey · seed 1"),
        ("5 images · grey", "5 images · grey"),
        ("Stopped after step 3 of 5 · grey", "Stopped after step 3 of 5 · grey"),
        ("", ""),
    ):
        shown = generate.stop(None, before, tmp_path)
        assert shown.caption == after
        assert set(map(str, shown._replace(caption=gr.skip()))) == {str(gr.skip())}
    assert not list(tmp_path.iterdir())


def test_log_likelihoods_stand_in_the_order_of_the_grid(models, settings, tmp_path):
    settings = replace(settings, num_images=9)
    *_, drawn, some, _, done = sample_run.generate(models.load, settings, with_likelihoods=True)
    assert not drawn.likelihoods and len(some.likelihoods) == 8 and len(done.likelihoods) == 9
    assert some.caption == f"Step 8 of 9 log-likelihoods · {drawn.caption}"
    assert done.caption == f"{drawn.caption} · log-likelihoods at eps 0.0001"
    ebm = models.load("grey")
    assert torch.equal(done.images, ebm.sample(9, seed=7, num_steps=3))
    for start, batch in ((0, done.images[:8]), (8, done.images[8:])):
        result = ebm.log_prob(batch.repeat_interleave(4, 0), seed=mixed_seed(7, start))
        draws = result.log_prob.view(-1, 4).numpy()
        for index, (number, log_prob, error, bits) in enumerate(done.likelihoods[start:][:8]):
            assert number == start + index + 1
            assert log_prob == pytest.approx(draws[index].mean())
            assert error == pytest.approx(draws[index].std(ddof=1) / 2) and error > 0
            assert bits == pytest.approx(-log_prob / (64 * math.log(2)))
    number, log_prob, error, bits = done.likelihoods[1]
    assert likelihoods.table(done.likelihoods)[1] == [
        2,
        float(f"{log_prob:.2f}"),
        float(f"{error:.2f}"),
        float(f"{bits:.4f}"),
    ]
    with ZipFile(generate.finish(some, tmp_path).archive) as archive:
        rows = list(csv.reader(io.StringIO(archive.read("scores.csv").decode())))
    assert rows[0] == list(likelihoods.HEADERS) and len(rows) == 1 + 8
    assert tuple(map(float, rows[2])) == done.likelihoods[1]


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


def save_png(path: Path, text: str | None) -> str:
    info = PngInfo()
    if text is not None:
        info.add_text("ebm_app", text)
    Image.new("L", (8, 8)).save(path, pnginfo=info)
    return str(path)


def test_other_files_than_the_pages_own_are_explained(tmp_path):
    whole = save_png(tmp_path / "whole.png", json.dumps(SETTINGS))
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
    message = error_of(run_settings.read_settings, save_png(tmp_path / "a.png", None), [])
    assert message.startswith("this PNG holds no settings: ")


def test_a_text_that_unpacks_to_a_large_one_is_refused(tmp_path):
    bomb = b"ebm_app\0\0" + zlib.compress(b"[" * 4_000_000, 9)
    assert len(bomb) < 8_000
    data = Path(save_png(tmp_path / "a.png", None)).read_bytes()
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
        (json.dumps({**SETTINGS, "num_images": 65}), "num_images is out of range: .* 1 to 64"),
        (json.dumps({**SETTINGS, "num_images": 4.5}), "num_images is out of range"),
        (json.dumps({**SETTINGS, "num_steps": 0}), "num_steps is out of range: .* 1 to 200"),
        (json.dumps({**SETTINGS, "num_steps": True}), "num_steps is out of range"),
        (json.dumps({**SETTINGS, "seed": 2**31}), "seed is out of range: .* 0 to 2147483647"),
        (json.dumps({**SETTINGS, "seed": float("nan")}), "seed is out of range"),
        (json.dumps({**SETTINGS, "seed": "7"}), "seed is out of range"),
    ],
)
def test_settings_that_anyone_may_have_written_are_checked(text, message):
    found = error_of(run_settings.parse_settings, text)
    assert re.search(message, found) and len(found) < 120 and "<" not in found


@pytest.fixture(scope="module")
def tab(models):
    with gr.Blocks() as tab:
        model = gr.Dropdown(list(models.folders), value="grey", label="Model")
        generate.build(models.load, model, 5)
    return tab


def handler(tab, name):
    (found,) = (fn for fn in tab.fns.values() if fn.name == name)
    return found


def test_a_loaded_png_sets_every_field_and_keeps_the_seed(tab, tmp_path):
    load = handler(tab, "load_settings")
    labels = [block.label for block in load.outputs]
    assert labels == ["Model", "Sampler", "Images", "Steps", "Seed", "New seed for every run"]
    values = {**SETTINGS, "model": "colour", "sampler": "annealed_hmc"}
    path = save_png(tmp_path / "a.png", json.dumps(values))
    assert load.fn(path) == ("colour", "annealed_hmc", 5, 3, 7, False)
    (sampler,) = (block for block in load.outputs if block.label == "Sampler")
    events = [event for fn in tab.fns.values() for id_, event in fn.targets if id_ == sampler._id]
    assert events == ["input"]  # a "change" would replace the loaded number of steps


def test_a_new_seed_is_drawn_on_demand_and_told(tab):
    run = handler(tab, "run").fn
    seeds = set()
    for _ in range(3):
        *_, shown = run("grey", "pf_ode", 1, 1, 7, True, False)
        assert f"seed {shown.seed} ·" in shown.caption
        assert 0 <= shown.seed <= shared.MAX_SEED
        seeds.add(shown.seed)
    assert len(seeds) == 3
    *_, shown = run("grey", "pf_ode", 1, 1, 7, False, False)
    assert shown.seed == 7
    with pytest.raises(gr.Error, match="num_images is out of range"):
        list(run("grey", "pf_ode", 2.5, 1, 7, False, False))


def test_stop_cancels_the_run_before_it_looks_what_is_left(tab):
    run = handler(tab, "run")
    (cancelling,) = (fn for fn in tab.fns.values() if fn.cancels)
    assert cancelling.cancels == [run._id] and not cancelling.outputs
    for fn, other_is_before in ((run, True), (cancelling, False)):
        clicked = [each for each in tab.fns.values() if each.targets == fn.targets]
        others = [each for each in clicked if each is not fn and each.outputs]
        assert [each._id < fn._id for each in others] == [other_is_before]
    (left,) = others
    assert left.outputs == run.outputs and not left.queue
