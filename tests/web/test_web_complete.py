"""Complete tab."""

import numpy as np
from conftest import error_of
from PIL import Image

from ebm_app.web import complete


def test_the_unknown_half_is_sampled(models, monkeypatch):
    pixels, masks = np.zeros((80, 80, 3), np.uint8), []
    pixels[:, 30:50] = 255
    drawing = {"composite": Image.fromarray(pixels)}
    with monkeypatch.context() as patch:
        patch.setattr(
            complete, "iterate_completion", lambda *args, **_: masks.append(args[1:3]) or []
        )
        list(complete.complete("grey", drawing, "left half", 2, 3, 0, models=models))
    ((levels, known),) = masks
    assert levels[0, 0, 0].tolist() == [0, 0, 0, 16, 16, 0, 0, 0]
    assert known.nonzero()[:, 1].unique().tolist() == [4, 5, 6, 7]
    *_, (grid, text) = complete.complete("grey", drawing, "lower half", 2, 3, 0, models=models)
    assert grid.size[0] > 8 and text.startswith("2 completions in ")
    assert "averaged to 8 × 8 pixels" in text
    shown = np.asarray(grid.crop((0, 0, (grid.width - 1) // 2, grid.height)))
    assert (np.asarray(grid)[0, :5] == 0).all() and shown[2, shown.shape[1] // 2 + 2] > 200
    empty = complete.complete("grey", None, "lower half", 2, 3, 0, models=models)
    assert "canvas is empty" in error_of(list, empty)
    run = complete.complete("grey", drawing, "middle", 2, 3, 0, models=models)
    assert "middle" in error_of(list, run)
