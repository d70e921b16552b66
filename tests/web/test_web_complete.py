"""Complete tab."""

import numpy as np
from conftest import error_of, save_picture

from ebm_app.web import complete


def test_the_unknown_half_is_sampled(models, tmp_path, monkeypatch):
    pixels, masks = np.zeros((80, 80, 3), np.uint8), []
    pixels[:, 30:50] = 255
    drawing = save_picture(tmp_path / "drawing.png", pixels)
    with monkeypatch.context() as patch:
        patch.setattr(
            complete, "iterate_completion", lambda *args, **_: masks.append(args[1:3]) or []
        )
        list(complete.complete("grey", drawing, "left half", 2, 3, 0, models=models))
    ((levels, known),) = masks
    assert levels[0, 0, 0].tolist() == [0, 0, 0, 16, 16, 0, 0, 0]
    assert known.nonzero()[:, 1].unique().tolist() == [4, 5, 6, 7]
    *_, (grid, text) = complete.complete("grey", drawing, "lower half", 2, 3, 0, models=models)
    assert grid.size[0] > 8 and text.startswith("Step 3 of 3")
    run = complete.complete("grey", drawing, "middle", 2, 3, 0, models=models)
    assert "middle" in error_of(list, run)
