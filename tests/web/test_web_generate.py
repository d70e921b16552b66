"""Generate tab."""

import re

import numpy as np
from conftest import error_of, pixels

from ebm_app.data.pictures import to_uint8
from ebm_app.sampling import SAMPLERS
from ebm_app.web import generate, shared


def run(models, seed=7, randomise=False, num=5):
    return generate.generate("grey", "pf_ode", num, 3, seed, randomise, models=models)


def run_class(models, model, which, num=1, guidance=1.0):
    return generate.generate(model, "dpm", num, 2, 3, False, which, guidance, models=models)


def test_steps_and_final_images_are_shown(models, monkeypatch):
    monkeypatch.setattr(shared, "INTERVAL", 0)
    steps = [*run(models)]
    heads = [re.sub(r" in \d+\.\d s", "", text) for _, text, *_ in steps]
    assert heads == [
        f"{head} · grey · seed 7" for head in ("Step 1 of 3", "Step 2 of 3", "5 images")
    ]
    expected = to_uint8(models.load("grey").sample(5, "pf_ode", seed=7, num_steps=3))
    for (picture, text), image in zip(steps[-1][0], expected[..., 0], strict=True):
        factor = picture.width // 8
        assert np.array_equal(pixels(picture), image.repeat(factor, 0).repeat(factor, 1))
        assert text.startswith("image ")
    replay = steps[-1][3]
    for share, index in ((0, 0), (0.5, 1), (1, 2)):
        assert generate.show_replay(replay, share) == shared.render(replay[index] / 255)
    assert len(replay) == 3 and np.allclose(replay[-1][:, 0], expected[..., 0], atol=1)
    monkeypatch.setattr(shared, "INTERVAL", 1000)
    assert len([*run(models)]) == 2  # the first and the last step
    seeds = {[*run(models, randomise=True, num=1)][-1][2] for _ in range(3)}
    assert len(seeds) == 3 and 7 not in seeds


def test_images_of_chosen_classes_are_generated(models):
    *_, (images, text, *_) = run_class(models, "labelled", "one of each", 4, 2.0)
    assert "class 0, 1, 2, guidance 2" in text
    assert [label for _, label in images] == ["0", "1", "2", "0"]
    for model, which in (("labelled", "3"), ("grey", "1")):
        assert "class" in error_of(list, run_class(models, model, which))
    *_, (images, text, *_) = run_class(models, "labelled", "any")
    expected = models.load("labelled").sample(1, "dpm", 3, "random", num_steps=2)
    assert "random classes" in text
    assert np.array_equal(pixels(images[0][0]), pixels(shared.render(expected, generate.SIDE)))


def test_class_choice_is_offered_to_class_conditional_models(models):
    classes, slider = generate.class_options("labelled", "one of each", models=models)
    labels = ["any", "one of each", "0", "1", "2"]
    assert classes["choices"] == labels and slider["visible"]
    for kept, value in (("2", "2"), ("7", "one of each")):
        assert generate.class_options("labelled", kept, models=models)[0]["value"] == value
    classes, _ = generate.class_options("grey", "2", models=models)
    assert not classes["visible"] and classes["value"] == "any"
    assert models.classes() == ["0", "1", "2"]
    assert generate.labels_of("one of each", (), 1) == generate.labels_of("any", (), 1) == ()


def test_acceptance_of_hmc_is_shown(models):
    run = generate.generate("grey", "annealed_hmc", 1, 2, 0, False, models=models)
    assert re.search(r"^1 images in .* · \d+% of the proposals accepted · grey", [*run][-1][1])


def test_default_steps_are_those_of_the_sampler(models, monkeypatch):
    for name in SAMPLERS:
        first = next(iter(models.load("grey").iterate_sample(1, name)))
        assert generate.default_steps("grey", name, models=models)["value"] == first.num_steps
    monkeypatch.setattr(generate, "MAX_STEPS", 10)
    assert generate.default_steps("grey", "pf_ode", models=models)["value"] == 10
