"""Endpoints of the served page: their arguments, a client that calls them, and bad arguments."""

import json
import re

import httpx
import numpy as np
import pytest
from conftest import LOGIN, save_picture
from gradio_client import handle_file
from gradio_client.exceptions import AppError
from PIL import Image

#: Arguments of each endpoint in order, with their defaults. Clients depend on them: append new
#: ones, with a default.
ENDPOINTS = {
    "/generate": {
        **{"model": "grey", "sampler": "dpm", "num_images": 10, "num_steps": 0, "seed": 5},
        **{"randomise": False, "which": "one of each", "guidance_scale": 1.5},
    },
    "/mi": {"x": None, "y": None, "estimator": "automatic", "seed": 5},
    "/mi_paper": {"dim": 40, "steps": 2_000, "seed": 5},
    "/score": {"model": "grey", "image": None, "repeats": 4, "as_is": False},
    "/toy": {
        **{"problem": "two Gaussians, D = 2", "path": "variance preserving", "method": "CTSM-v"},
        **{"learning_rate": 1e-2, "iterations": 2_000, "seed": 5},
    },
}
HTML = "<img src=x onerror=alert(1)>"
FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
#: Endpoint, argument and invalid value
BAD = [
    *(("/generate", "seed", value) for value in (HTML, -1, 10**400)),
    *(("/generate", "model", value) for value in (None, "../grey", HTML)),
    *(("/score", "image", value) for value in ("/etc/passwd", "http://127.0.0.1:1/a", 3, FILE)),
    *(("/mi", "x", value) for value in ("/etc/passwd", FILE)),
    ("/generate", "guidance_scale", 0.5),
    ("/mi", "estimator", HTML),
    ("/mi_paper", "dim", HTML),
    ("/toy", "learning_rate", HTML),
]


def test_endpoints_keep_their_arguments(page):
    info = page.get_api_info()
    found = {
        name: [(p["parameter_name"], p["parameter_default"]) for p in endpoint["parameters"]]
        for name, endpoint in info["named_endpoints"].items()
    }
    assert found == {name: list(arguments.items()) for name, arguments in ENDPOINTS.items()}
    assert info["unnamed_endpoints"] == {}


def test_client_generates_images_step_by_step(client, page):
    job = client.submit("grey", "probability_flow", 4, 3, 9, False, api_name="/generate")
    images, text, seed, _, metrics = job.result(timeout=60)
    assert len(job.outputs()) >= 2  # the first and the last of three steps
    path = images[0]["image"]
    assert len(images) == 4 and text.startswith("4 images in ") and seed == 9
    for (bound, error), image in zip(zip(*metrics.values(), strict=True), images, strict=True):
        assert image["caption"] == f"log p ≥ −{-bound:.0f} ± {error:.0f}"
    with Image.open(path) as picture:
        assert picture.format == "PNG"
    # gradio deletes these files when they expire
    assert path.rpartition("/")[2] in str(page.temp_file_sets)


def test_client_scores_an_image_and_gets_errors(client, tmp_path):
    stroke = np.zeros((280, 280))
    stroke[40:240, 120:160] = 255
    file = handle_file(save_picture(tmp_path / "=stroke.png", stroke))
    _, answer, *_, metrics, _ = client.predict("grey", file, api_name="/score")
    assert f"{metrics['bits_per_dim']:.2f} bits per dim" in answer
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(AppError, match="cannot be read as an image"):
        client.predict("grey", handle_file(tmp_path / "bad.png"), api_name="/score")


def test_bad_arguments_give_safe_error_messages(address):
    web = httpx.Client(timeout=60, trust_env=False)
    web.post(f"{address}login", data=LOGIN)
    for endpoint, name, bad in BAD:
        good = {key: None if value is ... else value for key, value in ENDPOINTS[endpoint].items()}
        text = json.dumps({"data": list({**good, name: bad}.values())})
        call = f"{address}gradio_api/call{endpoint}"
        answer = web.post(call, content=text, headers={"Content-Type": "application/json"})
        events = web.get(f"{call}/{answer.json()['event_id']}").text.strip()
        event, data = events.split("\n\n")[-1].split("\n", 1)
        assert event == "event: error", (endpoint, name, bad)
        message = json.loads(data.removeprefix("data: "))["error"] or ""
        assert not re.search(r"/tmp|passwd\W.*root", message), message
        # gradio repeats an invalid choice to its caller
        assert "<" not in message or message.startswith(f"Value: {HTML} is not in the list"), (
            message
        )
