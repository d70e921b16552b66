"""The table of unusual images of a folder, and the fit of a detector."""

import csv
import json

import numpy as np
from conftest import call, save_picture

from ebm_app.anomaly import AnomalyDetector
from ebm_app.cli import anomaly
from ebm_app.data.images import load_images


def test_unusual_images_come_first_in_the_table(capsys, tmp_path):
    digits, output = load_images("digits").validation, tmp_path / "anomaly.csv"
    (tmp_path / "images").mkdir()
    save_picture(tmp_path / "images" / "a.png", digits[0, 0].numpy() / 16 * 255)
    save_picture(tmp_path / "images" / "b.png", np.eye(8) * 255)
    flags = ["digits", tmp_path / "images", "--round_levels", "--output", output]
    assert call(anomaly, *flags, "--device", "cpu") == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["images"], figures["unusual"]) == (2, 1)
    rows = list(csv.DictReader(output.open()))
    assert [(row["file"], row["unusual"]) for row in rows] == [("b.png", "yes"), ("a.png", "no")]
    assert float(rows[0]["p_value"]) <= figures["false_alarm_rate"] < float(rows[1]["p_value"])
    assert call(anomaly, *flags, "--false_alarm_rate", 0.005) == 2
    assert "199 calibration" in capsys.readouterr().err


def test_fit_saves_a_detector_of_validation_images(capsys, tmp_path):
    assert call(anomaly, "digits") == 2 and "Expected a folder" in capsys.readouterr().err
    assert call(anomaly, "digits", "--fit", 90, "--output_dir", tmp_path) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["num_images"] == 90 and figures["smallest_p_value"] == 1 / 91
    detector = AnomalyDetector("digits")
    detector.read(tmp_path)
    assert detector.smallest_p_value == 1 / 91
