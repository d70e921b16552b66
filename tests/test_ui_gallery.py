"""The Generate tab: its images one by one, its samplers, and the last runs of a visitor."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import SETTINGS, error_of, pixels

from ebm_app.data.png import to_uint8
from ebm_app.sampling.samplers import SAMPLERS
from ebm_app.web.generate import gallery, history, samplers
from ebm_app.web.generate import run as sample_run
from ebm_app.web.generate import settings as run_settings
from ebm_app.web.generate import tab as generate
from ebm_app.web.generate.likelihoods import ImageLikelihood
from ebm_app.web.score.uploads import preprocess


@pytest.fixture
def run():
    images = torch.arange(4).view(4, 1, 1, 1).expand(4, 1, 8, 8) / 4
    settings = run_settings.RunSettings(**SETTINGS)
    found = [
        ImageLikelihood(number, nats, 0.25, 1.0) for number, nats in ((1, -5), (2, 3), (3, 1))
    ]
    return sample_run.SampleRun(settings, images, 3, 3, "", likelihoods=tuple(found))


def test_images_are_sorted_by_their_log_likelihood_and_keep_their_captions(run):
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
    assert [text for _, text in gallery.tiles(replace(run, likelihoods=()), "as drawn")] == [
        *"1234"
    ]


def test_the_gallery_is_there_once_there_is_an_image_and_an_order_with_log_likelihoods(run):
    shown, order = gallery.show(run, "as drawn")
    assert len(shown["value"]) == 4 and shown["visible"] and order["visible"]
    shown, order = gallery.show(replace(run, likelihoods=()), "as drawn")
    assert shown["visible"] and not order["visible"]
    assert gallery.show(None, "as drawn") == gallery.hide()
    assert not any(update["visible"] for update in gallery.hide())


def test_an_image_that_is_sent_has_the_pixels_that_were_drawn(models, run, tmp_path):
    ebm = models.load("grey")
    images = ebm.sample(2, seed=7, num_steps=3)
    sent = gallery.tiles(replace(run, images=images, likelihoods=()), "as drawn")
    for image, (picture, _) in zip(images, sent, strict=True):
        picture.save(tmp_path / "sent.png")
        assert torch.equal(preprocess(tmp_path / "sent.png", ebm.config)[0], image)


def test_a_click_sends_an_image_that_is_there(models):
    with gr.Blocks() as app:
        shown, _ = gallery.gallery()
        target, tabs = gr.Image(), gr.Tabs()
        gallery.send_on_click(shown, target, {tabs: "score"})
    (fn,) = (fn for fn in app.fns.values() if fn.name == "send")
    assert fn.inputs == [shown] and fn.outputs == [target, tabs]
    pictures = [("a.png", "1"), ("b.png", "2")]
    path, update = fn.fn(pictures, SimpleNamespace(index=1))
    assert path == "b.png" and update["selected"] == "score"
    for there, index in ((pictures, 2), (pictures, -1), (pictures, "0"), (None, 0)):
        with pytest.raises(gr.Error, match="no longer there"):
            fn.fn(there, SimpleNamespace(index=index))


def test_every_sampler_has_a_name_that_can_be_read():
    assert samplers.CHOICES == [
        ("Probability-flow ODE (seconds)", "pf_ode"),
        ("Annealed HMC (minutes)", "annealed_hmc"),
        ("Annealed HMC by the energy (slow)", "annealed_hmc_energy"),
    ]
    assert all(kind.note in samplers.NOTES for kind in SAMPLERS.values())


@pytest.mark.parametrize("model", ["grey", "colour"])
def test_the_steps_on_offer_are_those_that_the_sampler_takes_by_itself(models, model):
    ebm = models.load(model)
    for name in SAMPLERS:
        first = next(iter(ebm.iterate_sample(1, name)))
        assert samplers.own_steps(ebm, name) == first.num_steps
    offered = samplers.offer_steps(ebm, "annealed_hmc")
    assert offered["value"] == samplers.own_steps(ebm, "annealed_hmc") > 1
    assert offered["info"] == "temperatures"


def test_more_steps_than_the_page_allows_are_not_hidden(models, monkeypatch):
    monkeypatch.setattr(samplers, "own_steps", lambda ebm, sampler: 396)
    offered = samplers.offer_steps(models.load("grey"), "annealed_hmc")
    assert offered["value"] == run_settings.MAX_STEPS
    assert offered["info"] == (
        "temperatures; by itself the sampler takes 396 for this model, the page 200"
    )


def test_steps_follow_the_sampler_and_the_model(models):
    with gr.Blocks() as tab:
        model = gr.Dropdown(list(models.folders), value="grey", label="Model")
        generate.build(models.load, model, 5)
    (follow,) = (fn for fn in tab.fns.values() if fn.name == "own_steps")
    (steps,) = follow.outputs
    sampler = next(
        block for block in tab.blocks.values() if getattr(block, "label", "") == "Sampler"
    )
    assert steps.label == "Steps" and follow.inputs == [model, sampler]
    assert set(follow.targets) == {(sampler._id, "input"), (model._id, "input")}
    assert follow.trigger_mode == "always_last"  # no answer overtakes that to a later choice
    own = {
        name: samplers.own_steps(models.load(name), "annealed_hmc") for name in ("grey", "colour")
    }
    assert own["grey"] != own["colour"]
    for name, number in own.items():
        assert follow.fn(name, "annealed_hmc")["value"] == number
        assert follow.fn(name, "pf_ode")["value"] == 25


def test_the_last_ten_runs_are_kept_each_once():
    settings = run_settings.RunSettings(**SETTINGS)
    runs = []
    for seed in [*range(12), 5]:
        runs = history.remember(runs, replace(settings, seed=seed))
    seeds = [json.loads(run)["seed"] for run in runs]
    assert seeds == [5, 11, 10, 9, 8, 7, 6, 4, 3, 2]
    (text, value), *_ = history.choices(runs)
    assert text == "grey · Probability-flow ODE · 5 images · 3 steps · seed 5"
    assert run_settings.usable(value, ["grey"]) == replace(settings, seed=5)
    assert error_of(run_settings.usable, value, ["colour"]).startswith("unknown model 'grey'")
    run = SimpleNamespace(settings=replace(settings, seed=99))
    assert json.loads(generate.keep(runs, run)[0])["seed"] == 99
    assert generate.keep(runs, None) == runs


def test_a_browser_may_hold_anything():
    good = json.dumps(SETTINGS)
    assert history.known([good, "{}", 3, None, json.dumps({**SETTINGS, "seed": -1}), [good]]) == [
        good
    ]
    for runs in (None, "text", {"a": 1}, math.nan):
        assert history.known(runs) == []
