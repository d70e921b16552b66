"""Tabs of the page that use one model: score, generate, diagnostics."""

import json
import os
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import GREY, digit, error_of, pixels, save_digit, save_picture
from photographs import handwritten
from PIL import Image

from ebm_app.anomaly import FITTED_FILE, AnomalyDetector
from ebm_app.data.pictures import image_grid, to_pil, to_uint8
from ebm_app.ebm import EBM
from ebm_app.evaluation.drawings import fits, read_upload, to_input
from ebm_app.evaluation.held_out import examples, stored_samples
from ebm_app.evaluation.reference import BITS_FILE, HeldOutBits, save_bits
from ebm_app.pretrained import BUNDLED
from ebm_app.web import card, generate, score, shared
from ebm_app.web.app import build_app
from ebm_app.web.models import Models

pytestmark = pytest.mark.usefixtures("page_files")


def answers(models, path, model="grey", **options):
    return [*score.Scorer(models, 3).score(model, path, **options)]


def test_score_equals_the_library_on_the_same_pixels(models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    last = answers(models, path)[-1]
    side = last.seen.width // 8
    assert np.array_equal(pixels(last.seen)[::side, ::side], to_uint8(digit())[0, ..., 0])
    found = models.open("grey").ebm.likelihood(digit(), repeats=4, seed=3)
    mean, error = found.log_prob.item(), found.error.item()
    assert f"## log p(x) ≥ −{-mean:.0f} ± {error:.2g} nats" in last.text
    assert last.metrics["log_prob"] == pytest.approx(mean)
    assert last.metrics["log_prob_error"] == pytest.approx(error)
    assert f"**{-mean / (64 * np.log(2)):.2f} bits per dim**" in last.text
    expected = models.open("grey").detector.p_value(digit())
    assert last.metrics["p_value"] == pytest.approx(expected[0])
    assert answers(models, path, repeats=6)[-1].metrics["repeats"] == 6
    drawing = {"composite": Image.new("RGB", (280, 280), "white")}
    (empty,) = score.Scorer(models, 3).show("grey", None, 4, False, "Draw", drawing)
    assert empty == score.Answer()
    drawing["composite"].paste("black", (100, 40, 140, 240))
    *_, drawn = score.Scorer(models, 3).show("grey", None, 4, False, "Draw", drawing)
    assert "nats" in drawn.text


def test_number_comes_before_verdict_and_class(models, tmp_path, monkeypatch):
    monkeypatch.setattr(score, "ALPHA", 0)
    monkeypatch.setattr(score, "SURE", 0)
    parts = [answer.text for answer in answers(models, save_digit(tmp_path / "a.png"), "labelled")]
    first = next(text for text in parts if "nats" in text)
    assert "class" not in first and "class" in parts[-1] and parts[-1].startswith(first)
    parts = [answer.text for answer in answers(models, save_digit(tmp_path / "a.png"))]
    first = next(text for text in parts if "nats" in text)
    assert "unusual" not in first and "**not flagged as unusual (p = " in parts[-1]


def test_flagged_image_has_a_map_and_an_unsure_class(models, tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 17, (8, 8)) * 255 / 16
    path = save_picture(tmp_path / "noise.png", noise.round())
    last = answers(models, path)[-1]
    assert last.metrics["p_value"] <= score.ALPHA and "**flagged as unusual (p = " in last.text
    excess = models.open("grey").detector.explain(read_upload(path, GREY)[0])
    assert (last.where is not None) == bool((excess >= 1).any())
    monkeypatch.setattr(score, "ALPHA", 0)
    assert answers(models, path)[-1].where is None
    detector = models.open("grey").detector
    monkeypatch.setattr(score, "ALPHA", 1)
    monkeypatch.setattr(models.open("labelled"), "detector", detector)
    last = answers(models, path, "labelled")[-1]
    assert "perhaps: it knows ordinary images only" in last.text
    assert last.metrics["class"] is None and len(last.classes) == 3


def test_class_is_unsure_up_to_90_percent(models, tmp_path, monkeypatch):
    path = save_digit(tmp_path / "digit.png")
    for best, named in ((0.91, True), (0.89, False)):
        found = torch.tensor([[best, 1 - best, 0]])
        monkeypatch.setattr(EBM, "classify", lambda *args, found=found, **kwargs: found)
        last = answers(models, path, "labelled")[-1]
        assert "The model sees class “0”" in last.text and last.classes["0"] == pytest.approx(best)
        assert ("unsure" not in last.text) == named == (last.metrics["class"] == "0")


def test_rank_and_verdict_are_one_sentence():
    for fraction, p_value, words in (
        (None, None, ""),
        (None, 0.01, "**Flagged as unusual (p = 0.01)**"),
        (0.7, 0.66, "70% of held-out images, and **not flagged as unusual (p = 0.66)**"),
        (0.1, 0.01, "10% of held-out images, and **flagged as unusual (p = 0.01)**"),
        (0.98, 0.01, "98% of held-out images, but **flagged as unusual (p = 0.01)**"),
    ):
        metrics = {"more_likely_than": fraction, "p_value": p_value}
        assert words in score.rank_text(metrics)


@pytest.mark.parametrize("name", ["mnist", "fashion", "digits"])
def test_unusual_images_have_the_format_of_the_model(name):
    folder, ebm = BUNDLED / name, EBM.from_pretrained(name)
    images = examples(folder, ebm.config, "none")
    unusual = score.unusual(folder, images, ebm.config)
    assert [caption for _, caption in unusual][:2] == ["upside down", "two in one"]
    assert all(fits(picture.convert("RGB"), ebm.config) for picture, _ in unusual)
    assert np.array_equal(pixels(unusual[0][0])[::-1, ::-1], pixels(images[1]))
    foreign = to_input(unusual[2][0], ebm.config)
    assert AnomalyDetector(ebm).load(folder).p_value(foreign) <= score.ALPHA


@pytest.mark.slow
def test_photographs_of_strokes_are_recognised(tmp_path):
    """Of 20 photographs no digit is wrong, most are right, and few are flagged."""
    scorer, random = (
        score.Scorer(Models({"mnist": BUNDLED / "mnist"}), 0),
        np.random.default_rng(1),
    )
    kinds = Counter()
    for index in range(20):
        handwritten(index % 10, random).save(tmp_path / f"{index}.png")
        *_, last = scorer.score("mnist", str(tmp_path / f"{index}.png"))
        named, is_flagged = last.metrics["class"], last.metrics["p_value"] <= score.ALPHA
        kind = "unsure" if named is None else "right" if named == str(index % 10) else "wrong"
        kinds["flagged" if is_flagged else kind] += 1
    print(kinds)
    assert kinds["wrong"] == 0 and kinds["right"] >= 14 and kinds["flagged"] <= 2, kinds


def test_percentile_is_that_of_the_shown_bits(models, tmp_path, monkeypatch):
    path = save_digit(tmp_path / "digit.png")
    bits = answers(models, path)[-1].metrics["bits_per_dim"]
    held_out = HeldOutBits(np.linspace(bits - 1, bits + 3, 401))
    monkeypatch.setattr(models.open("grey"), "held_out", held_out)
    last = answers(models, path)[-1]
    assert last.metrics["more_likely_than"] == pytest.approx(0.75, abs=0.01)
    assert "401 held-out images" in last.text
    assert last.histogram.axes[0].lines[0].get_xdata() == [bits, bits]


def test_stored_bits_belong_to_the_weights(models, tmp_path):
    ebm = models.open("grey").ebm
    save_bits(tmp_path, ebm, torch.tensor([2.0, 1.0]), "test")
    assert HeldOutBits.load(tmp_path, ebm).bits.tolist() == [1, 2]
    assert HeldOutBits.load(tmp_path, EBM(GREY)) is None
    record = json.loads((tmp_path / BITS_FILE).read_text())
    for bits in ([], [-1.0], [[1.0]], [None], "text"):
        (tmp_path / BITS_FILE).write_text(json.dumps({**record, "bits_per_dim": bits}))
        assert "is damaged" in error_of(HeldOutBits.load, tmp_path, ebm)
    for name in ("mnist", "digits", "fashion", "cifar10"):
        assert HeldOutBits.load(BUNDLED / name, EBM.from_pretrained(name)) is not None


def test_stored_samples_have_the_pixels_of_the_grid(tmp_path):
    images = torch.randint(17, (12, 1, 8, 8)) / 16
    to_pil(image_grid(images)).save(tmp_path / "samples_grid.png")
    assert torch.equal(stored_samples(tmp_path, GREY), images[:10])
    assert (
        stored_samples(BUNDLED / "cifar10", EBM.from_pretrained("cifar10").config).shape[0] == 10
    )


def test_errors_are_shown_instead_of_an_answer(models, folder, tmp_path):
    wrong = shutil.copytree(folder / "grey", tmp_path / "wrong")
    (wrong / FITTED_FILE).write_bytes(b"no tensors")
    (tmp_path / "a.svg").write_text("<svg/>")
    path, models = save_digit(tmp_path / "a.png"), Models({**models.folders, "wrong": wrong})
    for model, file, words in (
        ("grey", tmp_path / "a.svg", "This file cannot be read"),
        ("wrong", path, "is damaged"),
    ):
        (last,) = score.Scorer(models, 3).show(model, str(file), 4, False, "Upload", None)
        assert words in last.text and last.metrics is None


def run(models, seed=7, randomise=False, num=5):
    return generate.generate("grey", "probability_flow", num, 3, seed, randomise, models=models)


def run_class(models, model, which, num=1, guidance_scale=1.0):
    return generate.generate(model, "dpm", num, 2, 3, False, which, guidance_scale, models=models)


def test_steps_and_final_images_are_shown(models, monkeypatch):
    monkeypatch.setattr(shared, "INTERVAL", 0)
    steps = [*run(models)]
    heads = [text.split(" in ")[0] for _, text, *_ in steps]
    assert heads == ["Step 1 of 3", "Step 2 of 3", "Step 3 of 3", "5 images", "5 images"]
    ebm = models.open("grey").ebm
    expected = ebm.sample(5, "probability_flow", seed=7, num_steps=3)
    found = ebm.likelihood(expected, repeats=generate.DRAWS)
    bounds = [*zip(found.log_prob.tolist(), found.error.tolist(), strict=True)]
    images, *_, grid, metrics = steps[-1]
    assert [*zip(*metrics.values(), strict=True)] == bounds
    shown = zip(images, to_uint8(expected), bounds, strict=True)
    for (picture, text), image, (bound, error) in shown:
        factor = picture.width // 8
        assert np.array_equal(pixels(picture), image[..., 0].repeat(factor, 0).repeat(factor, 1))
        assert text == f"log p ≥ −{-bound:.0f} ± {error:.0f}"
    assert np.array_equal(pixels(grid), pixels(shared.render(expected)))
    seeds = {[*run(models, randomise=True, num=1)][-1][2] for _ in range(3)}
    assert len(seeds) == 3 and 7 not in seeds


def test_images_of_chosen_classes_are_generated(models):
    *_, (images, text, *_) = run_class(models, "labelled", "one of each", 4, 2.0)
    assert "class 0, 1, 2, guidance 2" in text
    assert [label[:3] for _, label in images] == ["0: ", "1: ", "2: ", "0: "]
    assert "unknown class '3'" in error_of(list, run_class(models, "labelled", "3"))
    assert "without labels" in error_of(list, run_class(models, "grey", "1"))
    assert "class" in error_of(list, run_class(models, "labelled", None))
    *_, (images, text, *_) = run_class(models, "labelled", "any")
    expected = models.open("labelled").ebm.sample(1, "dpm", 3, num_steps=2)
    assert "random classes" in text
    assert np.array_equal(pixels(images[0][0]), pixels(shared.render(expected, generate.SIDE)))
    assert models.classes() == ["0", "1", "2"]  # of any model
    assert generate.labels_of("one of each", (), 1) is None
    assert generate.labels_of("one of each", ("0", "1"), 1) == ("0",)


def test_samplers_have_their_steps_and_acceptance(models):
    def heads(num_steps):
        frames = generate.generate("grey", "dpm", 1, num_steps, 0, False, models=models)
        return [text.split(" in ")[0] for _, text, *_ in frames]

    assert "Step 25 of 25" in heads(0) and "Step 4 of 4" in heads(4)
    frames = generate.generate("grey", "annealed_hmc", 1, 2, 0, False, models=models)
    assert "% of the proposals accepted" in [*frames][-1][1]


def test_model_card_shows_its_text_and_curves(models, tmp_path):
    bundled = Models({name: BUNDLED / name for name in ("digits", "mnist")})
    text, curves, integral = card.model_card("digits", models=bundled)
    assert "# digits" in text and "![" not in text and "Bits per dim by estimator" in text
    assert curves.axes[1].lines and len(integral.axes) == 2
    _, curves, _ = card.model_card("mnist", models=bundled)
    assert curves is None  # of a run with one validation
    text, curves, integral = card.model_card("colour", models=models)
    assert curves is None and integral is None and "3 × 4 × 8, 256 levels" in text


def test_links_out_of_a_model_folder_are_not_read(folder, tmp_path):
    linked, secret = shutil.copytree(folder / "grey", tmp_path / "linked"), tmp_path / "secret"
    secret.write_text('{"step": 1, "validation_bits_per_dim": 2.0}\n' * 3)
    for put, is_shown in ((os.symlink, False), (shutil.copy, True)):
        for name in ("README.md", "metrics.jsonl"):
            (linked / name).unlink(missing_ok=True)
            put(secret, linked / name)
        text, curves, _ = card.model_card("linked", models=Models({"linked": linked}))
        assert ("step" in text) == (curves is not None) == is_shown


@pytest.mark.parametrize("text", ["[" * 400 + "]" * 400, r'{"class_names": "\ud800"}'])
def test_page_starts_with_a_damaged_configuration(folder, tmp_path, text):
    damaged = shutil.copytree(folder / "grey", tmp_path / "damaged")
    (damaged / "config.json").write_text(text)
    models = Models({"labelled": folder / "labelled", "damaged": damaged})
    assert build_app(models, seed=5) and models.classes() == ["0", "1", "2"]
    assert "config.json is not a JSON object" in error_of(models.open, "damaged")
