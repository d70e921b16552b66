"""Generate tab."""

import json
import re

import numpy as np
from conftest import SETTINGS, error_of, pixels
from PIL import Image

from ebm_app.config import EBMConfig
from ebm_app.data.pictures import to_uint8
from ebm_app.folders import BUNDLED
from ebm_app.sampling import SAMPLERS
from ebm_app.sampling.base import Frame
from ebm_app.web import generate, shared

MNIST = EBMConfig("mnist", (1, 28, 28), 256)


def run(models, seed=7, randomise=False, num=5):
    return generate.generate("grey", "pf_ode", num, 3, seed, randomise, models=models)


def run_class(models, model, which, num=1, guidance=1.0):
    return generate.generate(model, "dpm", num, 2, 3, False, which, guidance, models=models)


def test_steps_and_final_images_are_shown(models):
    first, *steps = run(models)
    assert first == (None, "Starting · grey · seed 7", 7)
    heads = [re.sub(r" in \d+\.\d s", "", caption) for _, caption, _ in steps]
    assert heads == [
        f"{head} · grey · seed 7" for head in ("Step 1 of 3", "Step 2 of 3", "5 images")
    ]
    for step, (grid, *_) in enumerate(steps, 1):
        assert json.loads(grid.info["ebm_app"]) == {**SETTINGS, "step": step}
    expected = models.load("grey").sample(5, "pf_ode", seed=7, num_steps=3)
    assert np.array_equal(pixels(steps[-1][0]), pixels(shared.render(expected)))
    assert not np.array_equal(pixels(steps[0][0]), pixels(steps[-1][0]))
    seeds = {[*run(models, randomise=True, num=1)][-1][2] for _ in range(3)}
    assert len(seeds) == 3 and 7 not in seeds


def test_images_of_chosen_classes_are_generated(models):
    *_, (_, caption, _) = run_class(models, "labelled", "one of each", 4, 2.0)
    assert "class 0, 1, 2, guidance 2" in caption
    for model, which in (("labelled", "3"), ("grey", "1")):
        assert "class" in error_of(list, run_class(models, model, which))
    *_, (grid, caption, _) = run_class(models, "labelled", "any")
    expected = models.load("labelled").sample(1, "dpm", 3, "random", num_steps=2)
    assert "random classes" in caption
    assert pixels(grid).tolist() == pixels(shared.render(expected)).tolist()


def test_class_choice_is_offered_to_class_conditional_models(models):
    classes, slider, _ = generate.model_options("labelled", models=models)
    assert classes["choices"] == ["any", "one of each", "0", "1", "2"] and slider["visible"]
    assert not generate.model_options("grey", models=models)[0]["visible"]
    assert generate.labels_of("one of each", 0, 1) == generate.labels_of("any", 0, 1) == ()


def test_caption_warns_of_low_acceptance():
    frame = Frame(None, 1, 3, 9, acceptance=0.09)
    assert generate.caption(frame, SETTINGS, 1.0).endswith(f" · {generate.WARNING}")


def test_default_steps_are_those_of_the_sampler(models, monkeypatch):
    for name in SAMPLERS:
        first = next(iter(models.load("grey").iterate_sample(1, name)))
        assert generate.default_steps("grey", name, models=models)["value"] == first.num_steps
    monkeypatch.setattr(generate, "MAX_STEPS", 10)
    assert generate.default_steps("grey", "pf_ode", models=models)["value"] == 10


def test_click_on_the_grid_returns_the_exact_image(models):
    *_, (grid, *_) = run(models)
    config = models.load("grey").config
    expected = models.load("grey").sample(5, "pf_ode", seed=7, num_steps=3)
    for index, image in enumerate(to_uint8(expected)[..., 0]):
        row, column = divmod(index, 3)
        place = [int((at + 0.5) / 3 * grid.width) for at in (column, row)]
        found = np.asarray(generate.crop_cell(grid, config, place))
        factor = len(found) // 8
        assert np.array_equal(found, image.repeat(factor, 0).repeat(factor, 1))
    corner = [grid.width - 1, grid.height - 1]
    assert "image" in error_of(generate.crop_cell, grid, config, corner)
    with Image.open(BUNDLED / "mnist" / generate.STORED_GRID) as stored:
        found = np.asarray(generate.crop_cell(stored, MNIST, [29 * 2, 0]))
        assert np.array_equal(found, np.asarray(stored)[:56, 58:114])
    config = EBMConfig("cifar10", (3, 32, 32), 256)
    with Image.open(BUNDLED / "cifar10" / generate.STORED_GRID) as stored:  # of 49 images
        found = np.asarray(generate.crop_cell(stored, config, [stored.width - 5, 0]))
        assert np.array_equal(found, np.asarray(stored)[: len(found), -len(found) :])
