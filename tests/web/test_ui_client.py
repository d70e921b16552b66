"""The served page, called by a program: what it draws, finds, learns and refuses."""

import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from conftest import save_digit, save_picture
from gradio_client import handle_file
from gradio_client.exceptions import AppError
from PIL import Image

pytestmark = pytest.mark.process


def test_a_client_draws_images_and_sees_them_come(client, page):
    job = client.submit("grey", "pf_ode", 4, 3, 9, False, True, api_name="/generate")
    path, text, seed, table, archive = job.result(timeout=60)
    assert len(job.outputs()) == 1 + 3 + 4 + 1  # a start, steps, log-likelihoods and files
    assert re.fullmatch(r"4 images in \d+\.\d s · grey · seed 9", text) and seed == 9
    with Image.open(path) as picture:
        assert picture.format == "PNG" and json.loads(picture.info["ebm_app"])["seed"] == 9
    assert [row[0] for row in table["data"]] == [1, 2, 3, 4]
    assert len(table["headers"]) == len(table["data"][0]) == 4
    assert Path(archive).name == "grey-pf_ode-seed9.zip"
    deleted_in_time = {Path(file).name for group in page.temp_file_sets for file in group}
    assert deleted_in_time >= {Path(file).name for file in (path, archive)}


def test_a_client_sends_an_image_a_drawing_and_many_files(client, tmp_path):
    digit = handle_file(save_digit(tmp_path / "digit.png"))
    _, answer, where, *_, metrics = client.predict("grey", digit, 4, api_name="/score")
    assert answer == f"{metrics['answer']}\n{metrics['bits_per_dim']:.3f} bits per dim"
    assert where["plot"].startswith("data:image/png;base64,")
    ink = np.zeros((280, 280))
    ink[40:240, 120:160] = 255
    stroke = handle_file(save_picture(tmp_path / "=stroke.png", ink))
    value = {"background": None, "layers": [], "composite": stroke}
    _, text, *_ = client.predict("grey", value, 4, api_name="/score_drawing")
    assert re.search(r"\d bits per dim", text)
    table, text = client.predict("grey", [digit, stroke], 4, api_name="/score_many")
    assert text.startswith("2 of 2 files have a log-likelihood, ")
    assert {row[0] for row in table["data"]} == {"digit.png", "=stroke.png"}
    with pytest.raises(AppError, match="the canvas is empty"):
        empty = {"background": None, "layers": [], "composite": None}
        client.predict("grey", empty, 4, api_name="/score_drawing")


def test_strangers_are_kept_out(client):
    for path in ("config", "gradio_api/info", "monitoring"):
        assert httpx.get(client.src + path, follow_redirects=True).status_code in (401, 403, 404)
