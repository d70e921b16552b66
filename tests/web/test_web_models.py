"""Tabs of the page that use one model: score, generate, diagnostics."""

import html
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import GREY, digit, draws_of_page, error_of, pixels, save_digit
from PIL import Image

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.data.pictures import to_uint8
from ebm_app.ebm import EBM
from ebm_app.sampling import SAMPLERS
from ebm_app.utils.fields import to_dict
from ebm_app.web import diagnostics, generate, score, shared, uploads
from ebm_app.web.models import Models

pytestmark = pytest.mark.usefixtures("page_files")


def test_score_equals_the_library_on_the_same_pixels(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    first, answered, *refined = score.Scorer(models, 3).score("grey", path, 12)
    last = refined[-1]
    seen = pixels(Image.open(first.seen))
    side = len(seen) // 8
    assert np.array_equal(seen[::side, ::side], to_uint8(digit())[0, ..., 0])
    assert last.seen == first.seen  # a path, so that gradio does not write the file again
    assert first.metrics is None and answered.answer and answered.where is not None
    assert [output.metrics["repeats"] for output in refined] == [1, 5, 9, 12]
    assert "±" not in refined[0].answer
    values = draws_of_page(models.load("grey"), digit(), 12, 3).numpy()
    mean, error, bits = values.mean(), values.std(ddof=1) / np.sqrt(12), 64 * np.log(2)
    assert f"{-mean / bits:.3f} ± {error / bits:.3f} bits per dim" in last.answer
    assert last.metrics["log_prob"] == pytest.approx(mean)
    assert last.metrics["log_prob_error"] == pytest.approx(error) and error > 0
    assert last.metrics["bits_per_dim"] == pytest.approx(-mean / bits)
    expected = AnomalyDetector.from_pretrained(models.folder("grey")).p_value(digit())
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


def test_answer_and_map_are_those_of_the_detector(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    *_, last = score.Scorer(models, 3).score("grey", path, 2)
    findings = models.open("grey").detector.examine(digit())
    p = findings.p_value[0]
    words = "Flagged as unusual" if p <= score.ALPHA else "Not flagged as unusual"
    assert last.answer.startswith(f"{words} (p = {p:.2g}).")
    image, overlay = last.where.axes[0].images
    assert np.array_equal(image.get_array(), digit()[0, 0])
    expected = np.ma.masked_less(findings.maps[0], 1)
    assert np.array_equal(overlay.get_array().mask, expected.mask)


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


def run(models, seed=7, randomise=False, num=5):
    return generate.generate("grey", "probability_flow", num, 3, seed, randomise, models=models)


def run_class(models, model, which, num=1, guidance_scale=1.0):
    return generate.generate(model, "dpm", num, 2, 3, False, which, guidance_scale, models=models)


def test_steps_and_final_images_are_shown(models, monkeypatch):
    monkeypatch.setattr(shared, "INTERVAL", 0)
    steps = [*run(models)]
    heads = [re.sub(r" in \d+\.\d s", "", text) for _, text, *_ in steps]
    assert heads == [
        f"{head} · grey · seed 7" for head in ("Step 1 of 3", "Step 2 of 3", "5 images")
    ]
    expected = to_uint8(models.load("grey").sample(5, "probability_flow", seed=7, num_steps=3))
    for (picture, text), image in zip(steps[-1][0], expected[..., 0], strict=True):
        factor = picture.width // 8
        assert np.array_equal(pixels(picture), image.repeat(factor, 0).repeat(factor, 1))
        assert text.startswith("image ")
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
    assert generate.default_steps("grey", "probability_flow", models=models)["value"] == 10


LINES = [
    {"step": 20, "loss": 1.5},
    {"step": 20, "validation_loss": 1.6, "validation_bits_per_dim": 3.0, "validation_stderr": 0.1},
]
RECORD = {"started": "2025-01-01T00:00:00Z", "settings": {}}


@pytest.fixture
def trained(tmp_path):
    """Models of a run with records and a checkpoint."""
    ebm = EBM(GREY)
    folders = {"run": tmp_path / "run", "run/checkpoint-20": tmp_path / "run" / "checkpoint-20"}
    for folder in folders.values():
        ebm.save_pretrained(folder)
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    (tmp_path / "run" / "run.json").write_text(json.dumps({**RECORD, "figures": None}))
    return Models(folders)


def card(models, name):
    """Return the rows of a model's table, and the other outputs."""
    table, *rest = diagnostics.model_card(models, name)
    return dict(re.findall("<td>(.*?)</td><td>(.*?)</td>", table)), *rest


def test_model_card_shows_config_and_training(trained, tmp_path):
    facts, curves, config = card(trained, "run")
    num_weights = sum(tensor.numel() for tensor in EBM(GREY).state_dict().values())
    assert facts == {
        **{"model": "run", "data": "digits", "images": "8 × 8 pixels, grey, 17 levels"},
        **{"weights": f"{num_weights:,}", "trained": RECORD["started"]},
        "steps": "training is not finished",
    }
    assert {**to_dict(GREY), "kind": "energy model"} == config
    figures = {"steps": 8000, "core_seconds": 1234.5, "bits_per_dim": 1.65}
    settings = {"train": {"objective": "ctsm_v", "divergence": "poisson"}}
    record = {**RECORD, "settings": settings, "figures": figures}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    facts, curves, config = card(trained, "run")
    assert facts["objective"] == "CTSM-v, poisson divergence"
    assert facts["steps"] == "8,000 in 1,234 core seconds"
    assert facts["validation"] == "1.6500 bits per dim"
    assert curves.axes[1].lines[0].get_xdata().tolist() == [20]


def test_checkpoint_shows_the_curves_of_its_run(trained, models):
    assert card(trained, "run/checkpoint-20")[1] is not None
    facts, curves, _ = card(models, "colour")
    assert curves is None and facts["images"] == "4 × 8 pixels, RGB, 256 levels"


def test_recorded_values_are_shown_as_text(trained, tmp_path):
    value = "<img src=//evil.example/a.png> & 'b'"
    record = {"started": value, "settings": {}, "figures": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    shown = card(trained, "run")[0]["trained"]
    assert "<" not in shown and html.unescape(shown) == value
