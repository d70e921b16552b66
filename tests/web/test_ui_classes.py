"""The page on a model that knows classes: images of a class, classes of an image, completions."""

import numpy as np
import pytest
from conftest import error_of, pixels, save_digit, save_picture
from ebm_app.web.score.one_image import score

from ebm_app.web import complete, generate
from ebm_app.web.shared import render


def test_images_of_a_class_are_drawn_and_told(models):
    *_, last = generate.generate(
        "told", "dpm", 4, 2, 3, False, False, "one of each", 2.0, models=models
    )
    assert "of 0, 1, 2 with guidance 2" in last.caption
    *_, last = generate.generate("told", "dpm", 1, 2, 3, False, False, "2", models=models)
    assert "of 2 with guidance 1 " in last.caption
    for model, which, message in (("told", "3", "unknown class"), ("grey", "1", "without class")):
        run = generate.generate(model, "dpm", 1, 2, 3, False, False, which, models=models)
        assert message in error_of(list, run)
    *_, last, _ = generate.generate("told", "dpm", 1, 2, 3, False, False, "any", models=models)
    drawn = models.load("told").sample(1, "dpm", 3, "random", num_steps=2)
    assert "of any class" in last.caption
    assert pixels(last.grid).tolist() == pixels(render(drawn)).tolist()
    assert generate.labels_of("one of each", 0, 1) == generate.labels_of("any", 0, 1) == ()
    shown, slider, before = generate.own_settings("told", models=models)
    assert shown["choices"] == ["any", "one of each", "0", "1", "2"] and slider["visible"]
    assert not generate.own_settings("grey", models=models)[0]["visible"] and not before["value"]


def test_an_image_is_told_its_class(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    *_, last = score("told", path, 2, models=models, seed=0)
    assert set(last.classes) == {"0", "1", "2"}
    assert sum(last.classes.values()) == pytest.approx(1)
    *_, last = score("grey", path, 2, models=models, seed=0)
    assert last.classes is None


def test_the_unknown_half_or_what_is_red_is_drawn_anew(models, tmp_path, monkeypatch):
    pixels, masks = np.zeros((80, 80, 3), np.uint8), []
    pixels[:, 30:50] = 255
    drawing = save_picture(tmp_path / "drawing.png", pixels)
    pixels[:, 60:] = 224, 32, 32
    marked = save_picture(tmp_path / "marked.png", pixels)
    image, red = complete.read_marked(marked, models.load("grey").config)
    assert red.nonzero()[:, 1].unique().tolist() == [6, 7]
    assert image[0, 0, 0].tolist() == pytest.approx([0, 0, 0, 1, 1, 0, 2 / 16, 2 / 16])
    with monkeypatch.context() as patch:
        patch.setattr(
            complete, "iterate_completion", lambda *args, **_: masks.append(args[2]) or []
        )
        list(complete.complete("grey", drawing, "left half", 2, 3, 0, models=models))
    assert masks[0].nonzero()[:, 1].unique().tolist() == [4, 5, 6, 7]
    for path, unknown in ((drawing, "lower half"), (marked, "what is red")):
        *_, (grid, text) = complete.complete("grey", path, unknown, 2, 3, 0, models=models)
        assert grid.size[0] > 8 and text.startswith("Step 3 of 3")
    for path, unknown, message in (
        (None, "lower half", "canvas is empty"),
        (drawing, "what is red", "red brush"),
        (drawing, "middle", "unknown"),
    ):
        run = complete.complete("grey", path, unknown, 2, 3, 0, models=models)
        assert message in error_of(list, run)
