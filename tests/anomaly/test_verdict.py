"""Verdicts in words."""

import numpy as np
import torch

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.anomaly.verdict import NO_DETECTOR, VERY_UNUSUAL, examine, place_of, verdict
from ebm_app.data.images import load_images


def test_each_verdict_states_its_p_value():
    facts = {"p_value": 0.64, "percentile": 100.0, "class": "7", "most_unusual": "lower left"}
    share = "percent of held-out images are at least as unusual (p ="
    unusual = {"p_value": 0.03, "percentile": 3.0}
    for change, words in (
        ({}, f"Usual 7: 64 {share} 0.64)."),
        ({"class": None}, "Usual image: "),
        (unusual, f"Unusual, mostly at the lower left: 3 {share} 0.03"),
        (unusual | {"p_value": 0.002}, "Very unusual, mostly at the lower left: 0.2 "),
        ({"p_value": 0.03, "most_unusual": None}, "Unusual, a blank image: "),
        ({"p_value": None}, NO_DETECTOR),
    ):
        assert verdict(facts | change).startswith(words)
    assert verdict(facts | {"p_value": 0.04}).endswith(", and simpler than all of them.")


def test_place_names_the_third_of_the_image():
    excess = np.zeros((9, 9))
    for row, column, place in ((0, 8, "upper right"), (4, 0, "left"), (4, 4, "middle")):
        excess[row, column] = excess.max() + 1
        assert place_of(excess) == place


def test_verdict_of_digits_and_of_other_images():
    detector, digits = AnomalyDetector("digits"), load_images("digits").test[:60] / 16
    verdicts = [
        verdict({**examine(detector, image)[0], "class": None}) for image in digits.split(1)
    ]
    unusual = sum(not words.startswith("Usual") for words in verdicts)
    assert unusual <= 60 * 0.1 + 3 * (60 * 0.1 * 0.9) ** 0.5
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 17, (1, 1, 8, 8), generator=generator) / 16
    for image in (noise, torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8)):
        p = detector.p_value(image).item()
        words = verdict({**examine(detector, image)[0], "class": "9"})
        assert words.startswith("Very unusual" if p <= VERY_UNUSUAL else "Unusual")
        assert f"(p = {p:.2g})" in words
