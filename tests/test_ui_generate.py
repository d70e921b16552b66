"""The Generate tab: runs, their log-likelihoods and files, and settings read back from a PNG."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import SETTINGS, pixels, save_settings

from ebm_app.data.png import to_uint8
from ebm_app.numerics.tensors import mixed_seed
from ebm_app.sampling.samplers import Frame
from ebm_app.web import buttons, shared
from ebm_app.web.generate import likelihoods
from ebm_app.web.generate import run as sample_run
from ebm_app.web.generate import settings as run_settings
from ebm_app.web.generate import tab as generate


@pytest.fixture
def settings():
    return run_settings.RunSettings(**SETTINGS)


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
        "Step 1 of 3 · grey · 2.0 s, about 4 s left · 9 evaluations of the score · acceptance 0.83"
    )
    stuck = sample_run.caption(level._replace(acceptance=0.09), "grey", 2.0)
    assert stuck.endswith(f" · acceptance 0.09 · {sample_run.WARNING}")
    assert sample_run.WARNING.startswith("Fewer than 10% of the moves are accepted, ")


def test_the_page_sees_the_seed_first_then_grids_then_the_files(models, settings, tmp_path):
    first, *steps, last = generate.draw(models.load, settings, False, tmp_path)
    assert first == (None, "Starting · grey · seed 7", 7, None, None, None, None, None)
    assert [shown.run.step for shown in steps] == [1, 2, 3]
    for shown in steps:
        assert shown.animation is shown.settings is shown.archive is None
        assert np.array_equal(pixels(shown.grid), pixels(shared.render(shown.run.images)))
        assert json.loads(shown.grid.info["ebm_app"]) == {**SETTINGS, "step": shown.run.step}
    assert np.array_equal(pixels(last.grid), pixels(steps[-1].grid))
    assert last.caption == steps[-1].caption and torch.equal(last.run.images, steps[-1].run.images)
    assert steps[-1].run.past and last.run.past == ()  # a third of a megabyte stays in memory
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
    stopped = generate.stop(shown[-1].run, buttons.stopped(shown[-1].caption), tmp_path)
    assert stopped.caption.startswith("Stopped after step 3 of 50 · grey · seed 7 · ")


def test_what_stays_of_a_stopped_run_is_all_of_its_last_step(models, settings, tmp_path):
    run = generate.draw(models.load, settings, False, tmp_path)
    _, _, shown = (next(run) for _ in range(3))
    run.close()
    stopped = generate.stop(shown.run, "Stopped after step 1 of 3 · older", tmp_path)
    assert stopped.caption.startswith("Stopped after step 2 of 3 · grey · seed 7 · ")
    assert "left" in shown.caption and "left" not in stopped.caption
    assert torch.equal(stopped.run.images, shown.run.images)
    made = {**SETTINGS, "step": 2}
    assert Path(stopped.grid).name == "grey-pf_ode-seed7-step2.png"
    assert np.array_equal(pixels(stopped.grid), pixels(shown.grid))
    assert stopped.settings["interactive"] and stopped.archive["interactive"]
    assert json.loads(Path(stopped.settings["value"]).read_text()) == made
    with ZipFile(stopped.archive["value"]) as archive:
        assert json.loads(archive.read("settings.json")) == made
        last = to_uint8(shown.run.images)[4, ..., 0]
        assert np.array_equal(pixels(io.BytesIO(archive.read("05.png"))), last)


def test_stopping_where_nothing_can_be_kept_changes_nothing_more(models, settings, tmp_path):
    *_, step, ended = sample_run.generate(models.load, settings)
    caption = buttons.stopped(step.caption)
    for run, text in (
        (None, "Stopped before the first step · grey · seed 1"),
        (None, ""),
        (step, buttons.NEVER_BEGUN),  # it had failed, and another was stopped before it began
        (ended, ended.caption),
        (ended, buttons.NEVER_BEGUN),
        (replace(step, caption=caption), caption),  # the button was pressed twice
    ):
        shown = generate.stop(run, text, tmp_path)
        assert set(map(str, shown)) == {str(gr.skip())}
    assert not list(tmp_path.iterdir())


def test_log_likelihoods_stand_in_the_order_of_the_grid(models, settings, tmp_path):
    settings = replace(settings, num_images=9)
    *_, drawn, some, _, done = sample_run.generate(models.load, settings, with_likelihoods=True)
    assert not drawn.likelihoods and len(some.likelihoods) == 8 and len(done.likelihoods) == 9
    caption = rf"Step 8 of 9 log-likelihoods, about \d+ s left · {re.escape(drawn.caption)}"
    assert re.fullmatch(caption, some.caption)
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
    path = save_settings(tmp_path / "a.png", json.dumps(values))
    assert load.fn(path) == ("colour", "annealed_hmc", 5, 3, 7, False)
    (tmp_path / "b.json").write_text(json.dumps({**values, "step": 3}) + "\n")
    assert load.fn(tmp_path / "b.json") == load.fn(path)
    assert handler(tab, "load_last").fn(json.dumps(values)) == load.fn(path)
    with pytest.raises(gr.Error, match="unknown model 'gone'"):
        handler(tab, "load_last").fn(json.dumps({**values, "model": "gone"}))
    (sampler,) = (block for block in load.outputs if block.label == "Sampler")
    events = [event for fn in tab.fns.values() for id_, event in fn.targets if id_ == sampler._id]
    assert events == ["input"]  # a "change" would replace the loaded number of steps


def test_a_new_seed_is_drawn_on_demand_and_told(tab):
    run = handler(tab, "run").fn.__wrapped__  # not by the thread of the device
    seeds = set()
    for _ in range(3):
        *_, shown = run("grey", "pf_ode", 1, 1, 7, True, False)
        assert f"seed {shown.seed} ·" in shown.caption
        assert 0 <= shown.seed <= shared.MAX_SEED
        seeds.add(shown.seed)
    assert len(seeds) == 3
    *_, shown = run("grey", "pf_ode", 1, 1, 7, False, False)
    assert shown.seed == 7
    with pytest.raises(gr.Error, match="num_images cannot be"):
        list(run("grey", "pf_ode", 2.5, 1, 7, False, False))


def test_stop_cancels_the_run_before_it_looks_what_is_left(tab):
    run = handler(tab, "run")
    (cancelling,) = (fn for fn in tab.fns.values() if fn.cancels)
    assert cancelling.cancels == [run._id] and not cancelling.outputs
    for fn, others_are_before in ((run, True), (cancelling, False)):
        clicked = [each for each in tab.fns.values() if each.targets == fn.targets]
        others = [each for each in clicked if each is not fn and each.outputs]
        assert {each._id < fn._id for each in others} == {others_are_before}
    assert others[-1].outputs == run.outputs and not others[-1].queue
