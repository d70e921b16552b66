"""Score tab: anomaly detection and likelihood of an image."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import digit, pixels, save_digit
from PIL import Image

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.data.pictures import to_uint8
from ebm_app.web import score, shared, uploads

pytestmark = pytest.mark.usefixtures("page_files")


def likelihood_of(ebm, image, repeats, seed):
    """Return the draws of the page: one, then four at a time."""
    sizes = [1, *(min(4, repeats - begin) for begin in range(1, repeats, 4))]
    begins = np.cumsum([0, *sizes[:-1]])
    draws = [
        ebm.likelihood(image.expand(size, -1, -1, -1), seed=seed + int(begin)).log_prob
        for begin, size in zip(begins, sizes, strict=True)
    ]
    return torch.cat(draws)


def test_score_equals_the_library_on_the_same_pixels(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    first, answered, *refined = score.Scorer(models, 3).score("grey", path, 12)
    last = refined[-1]
    side = first.seen.width // 8
    assert np.array_equal(pixels(first.seen)[::side, ::side], to_uint8(digit())[0, ..., 0])
    assert first.metrics is None and answered.answer and answered.where is not None
    assert [output.metrics["repeats"] for output in refined] == [1, 5, 9, 12]
    assert "±" not in refined[0].answer
    values = likelihood_of(models.load("grey"), digit(), 12, 3).numpy()
    mean, error, bits = values.mean(), values.std(ddof=1) / np.sqrt(12), 64 * np.log(2)
    assert f"{-mean / bits:.3f} ± {error / bits:.3f} bits per dim" in last.answer
    assert last.metrics["log_prob"] == pytest.approx(mean)
    assert last.metrics["log_prob_error"] == pytest.approx(error) and error > 0
    assert last.metrics["bits_per_dim"] == pytest.approx(-mean / bits)
    expected = AnomalyDetector(models.folder("grey")).p_value(digit())
    assert last.metrics["p_value"] == pytest.approx(expected[0])
    assert last.answer.startswith(answered.answer)
    drawing = {"composite": Image.open(path)}
    *_, drawn = score.Scorer(models, 3).score_drawing("grey", drawing, 2)
    assert f"{drawn.metrics['bits_per_dim']:.3f}" in drawn.answer


def test_empty_inputs_are_answered_without_a_score(models):
    scorer = score.Scorer(models, 3)
    empty = {"composite": None}
    assert [*scorer.score_drawing("grey", empty, 2)] == [score.ScoreOutputs(answer=uploads.EMPTY)]
    assert [*scorer.score_drawing("grey", empty, 2, False)] == []  # keeps the score of an upload
    assert [output.answer for output in scorer.score("grey", None, 2)] == [score.NO_IMAGE]


def test_map_has_no_colour_for_nine_ordinary_images_in_ten(models, tmp_path):
    detector = models.open("grey").detector
    maxima = detector.explain(detector.ordinary[:24]).max((1, 2))
    assert (maxima <= models.open("grey").map_threshold).mean() == pytest.approx(0.9, abs=0.05)
    index = int(maxima.argmin())
    path = save_digit(tmp_path / "digit.png", index)
    *_, last = score.Scorer(models, 3).score("grey", path, 2)
    (shown,) = (axes for axes in last.where.axes if len(axes.images) == 2)
    assert shown.images[1].get_array().mask.all()
    for axes in (shown, last.where.axes[0]):  # the image, and the same image as the nearest
        assert np.array_equal(axes.images[0].get_array(), digit(index)[0, 0])


def test_class_probabilities_are_shown_for_labelled_models(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    *_, last = score.Scorer(models, 0).score("labelled", path, 2)
    assert set(last.classes) == {"0", "1", "2"}
    assert sum(last.classes.values()) == pytest.approx(1)
    assert last.classes[str(last.metrics["class"])] == max(last.classes.values())
    *_, last = score.Scorer(models, 0).score("grey", path, 2)
    assert last.classes is None


def test_quadrature_error_does_not_shrink_with_draws(models):
    ebm = models.load("grey")
    images = digit().expand(8, -1, -1, -1)
    bound = ebm.likelihood(images, seed=3)
    spread = bound.log_prob.std().item() / np.sqrt(8)
    assert score.mean_likelihood([bound], "elbo", 64)["log_prob_error"] == pytest.approx(spread)
    integral = ebm.likelihood(images, estimator="time_integral", seed=3)
    spread = integral.log_prob.std().item() / np.sqrt(8)
    numerical = integral.error.square().mean().sqrt().item()
    found = score.mean_likelihood([integral], "time_integral", 64)
    assert found["log_prob_error"] == pytest.approx(np.hypot(spread, numerical)) and numerical > 0
    assert found["bits_error"] == pytest.approx(found["log_prob_error"] / (64 * np.log(2)))


def test_new_run_of_a_visitor_stops_the_previous_one():
    def visitor(session, user="app"):
        return SimpleNamespace(session_hash=session, headers={"x-gradio-user": user})

    newest = shared.NewestRun()
    first, other, api, again = (
        newest.follow(iter("abc"), visitor(*who)) for who in ("1", "2", ("1", "api"), "1")
    )
    assert [next(run) for run in (first, other, api, again)] == ["a"] * 4
    assert [[*run] for run in (first, other, api, again)] == [
        [],
        ["b", "c"],
        ["b", "c"],
        ["b", "c"],
    ]
    assert not newest.runs
