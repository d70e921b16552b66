"""Tabs of the page that complete, compare and explain images, and those of density ratios."""

import json

import numpy as np
import pytest
import torch
from conftest import digit, error_of
from PIL import Image

from ebm_app import ClassifierRatio, mutual_information
from ebm_app.data.levels import to_levels
from ebm_app.ebm import EBM
from ebm_app.evaluation.trace import NUM_TIMES, trace
from ebm_app.likelihood import TimeIntegral
from ebm_app.likelihood.noise import noise_for
from ebm_app.morphing import iterate_morph, slerp
from ebm_app.ratios import planes
from ebm_app.web import compare, complete, information, toy
from ebm_app.web.idea import show_time
from ebm_app.web.models import Models


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


def metrics(bits):
    nats = -bits * 64 * np.log(2)
    return {"bits_per_dim": bits, "bits_error": 0.3, "log_prob": nats, "answer": f"at {bits}"}


@pytest.mark.parametrize(
    ("bits", "words"),
    [(2.0, "0.500 ± 0.424 bits per dim more than A: A"), (1.25, "less than A: B")],
)
def test_comparison_states_the_difference_of_the_bits(bits, words):
    kept, text, _ = compare.keep(digit(), metrics(1.5))
    assert text == "A: 1.500 ± 0.300 bits per dim. at 1.5"
    text, figure = compare.compare(kept, digit(1), metrics(bits))
    nats = abs(bits - 1.5) * 64 * np.log(2)
    assert words in text and f"is more likely, by {nats:.1f} nats" in text
    shown = figure.axes[2].images[0].get_array()
    assert np.allclose(shown, (digit(1) - digit())[0, 0])
    for missing in ((None, metrics(1.5)), (digit(), None)):
        assert "no scored image" in error_of(compare.keep, *missing)
        assert compare.compare(kept, *missing)[1] is None


def test_morph_starts_and_ends_at_the_images():
    images = torch.cat([digit(0), digit(1)])
    ebm = EBM.from_pretrained("digits")
    *_, last = iterate_morph(ebm, images, 5)
    frames = ebm.to_images(last.x)
    assert (frames[[0, -1]] - images).abs().mean() < 0.02
    assert (frames[2] - images.mean(0)).abs().mean() > 0.05  # not a cross-fade
    models = Models({"digits": "digits"})
    models.load = lambda name: ebm
    kept = compare.Scored(images[:1], {})
    *_, shown = compare.morph("digits", kept, images[1:], models=models)
    assert [name for _, name in shown][:2] == ["A", "14%"] and shown[-1][1] == "B"
    assert "two images" in error_of(list, compare.morph("digits", None, digit(), models=models))


def test_slerp_keeps_the_norm_and_halves_the_angle():
    a, b = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 3.0])
    middle = slerp(a, b, torch.tensor([0.0, 0.5, 1.0]))
    expected = torch.tensor([[3.0, 0.0], [4.5**0.5, 4.5**0.5], [0.0, 3.0]])
    assert torch.allclose(middle, expected, atol=1e-6)
    assert torch.allclose(slerp(a, a, torch.tensor([0.3])), a[None])


def test_running_integral_ends_at_the_time_integral():
    ebm = EBM.from_pretrained("digits")
    found = trace(ebm, digit(), seed=3)
    levels = to_levels(digit(), ebm.config.num_levels)
    point = ebm.dequantise(levels, noise_for(levels, ebm.dtype, 3)[0])
    expected = TimeIntegral()(ebm.density.with_nodes(64), point.y, point.t)
    assert found.totals[-1] == pytest.approx(expected.value.item(), abs=0.5)
    nats = found.totals[-1] + point.negative_log_q.sum().item()
    assert found.bits == pytest.approx(-nats / (64 * np.log(2)))
    assert found.rates == pytest.approx(found.terms.sum((1, 2)), rel=1e-4, abs=1e-3)


def test_slider_goes_from_noise_to_the_image():
    found = trace(EBM.from_pretrained("digits"), digit())
    assert (found.frames[-1] - digit()[0]).abs().max() <= 1 / 16 + 1e-6
    assert (found.frames[0] - digit()[0]).abs().mean() > 0.2
    noised, terms = show_time(found, 0.5)
    assert noised.size == terms.size
    assert np.asarray(noised)[0, 0] == round(255 * found.frames[NUM_TIMES // 2, 0, 0, 0].item())
    assert show_time(None, 0.5) == (None, None)


def test_every_evaluation_is_shown(monkeypatch):
    monkeypatch.setattr(toy, "NUM_POINTS", 100)
    monkeypatch.setattr(planes, "NUM_DRAWS", 100)
    arguments = "gaussians_d2", "variance_preserving", "ctsm_v_time1", 1e-3, 2, 3
    outputs = list(toy.toy(*arguments))
    heads = [text.split(" · ")[0] for _, text, *_ in outputs]
    assert heads == ["Starting", "Step 0 of 2", "Step 1 of 2", "Step 2 of 2", "2 steps"]
    plot, text, densities, metrics = outputs[-1]
    assert len(densities.axes) == 15 and len(plot.axes) == 2
    assert json.loads(json.dumps(metrics)) == metrics
    assert {"path_kind": "variance_preserving", "iterations": 2}.items() < metrics.items()
    assert f"{metrics['error'] ** 0.5:.3g} nats" in text and f"{metrics['mass']:.3g}" in text
    # KL(p_1 || p_0) = 16 nats, estimated from 50 draws with standard deviation sqrt(32) each
    assert abs(metrics["divergence_truth"] - 16) < 4 * (32 / 50) ** 0.5
    sets = [metrics["points"] for *_, metrics in outputs[1:]]
    assert sets == ["validation"] * 3 + ["test"]
    *_, (_, _, densities, _) = toy.toy("gaussians_d5", *arguments[1:])
    assert densities is None  # of more than two dimensions
    assert "learning rate" in toy.result_text({"error": None})  # diverged
    message = "unknown path of mixtures_k2 'variance_preserving': choose one of bridge_sigma1, "
    assert message in error_of(next, toy.toy("mixtures_k2", *arguments[1:]))


def test_information_of_the_paper_is_learned_step_by_step():
    outputs = list(information.mi_paper(40, 100, 3))
    plot, text, metrics = outputs[-1]
    assert "truth 10 nats" in text and f"{metrics['value']:.3f} nats by CTSM-v" in text
    assert metrics["step"] == 100 and metrics["truth"] == 10
    estimate, truth = plot.axes[0].lines
    assert len(estimate.get_xdata()) == 51 and set(truth.get_ydata()) == {10}
    assert "dimension" in error_of(next, information.mi_paper(41, 100, 3))


def save(folder, name, values):
    np.save(folder / name, values)
    return str(folder / name)


def test_estimate_equals_that_of_the_library(tmp_path):
    x, noise = np.random.default_rng(0).normal(size=(2, 300))
    files = save(tmp_path, "x.npy", x), save(tmp_path, "y.npy", x + noise)
    plot, text, metrics = information.mi(*files, "classifier", 4)
    ratio = ClassifierRatio(random_state=4)
    expected = mutual_information(x, x + noise, ratio, random_state=4)
    assert metrics == {**expected.figures(), "data": "x.npy and y.npy", "seed": 4}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert "by ClassifierRatio(random_state=4)" in text
    label = f"{expected.summary()}\nx.npy and y.npy · 300 rows, 1 + 1 columns · seed 4 · "
    assert text.startswith(label)
    assert len(plot.axes[0].patches) > 10  # histograms


def test_bad_data_give_errors(tmp_path):
    numbers = np.random.default_rng(0)
    good = save(tmp_path, "good.npy", numbers.normal(size=200))
    wide = save(tmp_path, "wide.npy", numbers.normal(size=(200, 64)))
    long = save(tmp_path, "long.npy", numbers.normal(size=20_001))
    for x, y, word in (
        (good, None, "missing"),
        (good, good, "infinite"),
        (good, wide, "65 columns"),
        (long, long, "20001 rows"),
    ):
        assert word in error_of(information.mi, x, y, "automatic", 0)
    assert "estimator" in error_of(information.mi, good, good, "other", 0)
