"""Endpoints of the served page: their arguments, a client that calls them, and bad arguments."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

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
    "/complete": {
        **{"model": "grey", "drawing": ..., "unknown": "lower half", "num_images": 4},
        **{"num_temperatures": 60, "seed": 5},
    },
    "/generate": {
        **{"model": "grey", "sampler": "dpm", "num_images": 10, "num_steps": 25, "seed": 5},
        **{"randomise": True, "which": "any", "guidance": 1.5},
    },
    "/mi": {
        **{"x": None, "y": None, "csv": None, "x_columns": [], "y_columns": []},
        **{"steps": 1_000, "seed": 5},
    },
    "/mi_example": {"task": "normal_1x1", "num_rows": 2_000, "seed": 5},
    "/score": {"model": "grey", "image": None, "repeats": 16},
    "/score_drawing": {"model": "grey", "drawing": ..., "repeats": 16},
    "/toy": {
        **{"problem": "gaussians_d2", "path": "variance_preserving", "method": "ctsm_v_time1"},
        **{"learning_rate": 1e-2, "iterations": 600, "seed": 5},
    },
}
RETURNS = {
    "/generate": "Image Textbox Number",
    "/mi": "Plot Textbox Json",
    "/score": "Image Textbox Plot Label Json",
    "/toy": "Plot Textbox Json",
}
META = {"_type": "gradio.FileData"}
HTML = "<img src=x onerror=alert(1)>"
ALWAYS_BAD = [{"a": 1}, [[]], 10**400]
PATHS = ("/etc/passwd", "http://127.0.0.1:1/a.png", "x" * 5000)
#: Invalid values by the names of the arguments
BAD = {
    ("seed", "num_images", "repeats", "learning_rate"): [None, HTML, -1, 1e10],
    ("model", "task", "problem"): [None, 40.5, "../grey", HTML],
    ("x_columns",): [None, [3]],
    ("randomise",): [None, HTML],
    ("image", "drawing", "x"): [*PATHS, HTML, 3, *({"path": p, "meta": META} for p in PATHS)],
}
FILES = ("image", "drawing", "x")


def test_endpoints_keep_their_arguments(page):
    info = page.get_api_info()
    endpoints = info["named_endpoints"]
    found = {
        name: [(p["parameter_name"], p["parameter_default"]) for p in endpoint["parameters"]]
        for name, endpoint in endpoints.items()
    }
    for name in ("/score_drawing", "/complete"):
        found[name][1] = ("drawing", ...)  # an empty canvas
    assert found == {name: list(arguments.items()) for name, arguments in ENDPOINTS.items()}
    assert info["unnamed_endpoints"] == {}
    for name, kinds in RETURNS.items():
        assert " ".join(part["component"] for part in endpoints[name]["returns"]) == kinds


@pytest.mark.process
def test_client_generates_images_step_by_step(client, page):
    job = client.submit("grey", "pf_ode", 4, 3, 9, False, api_name="/generate")
    path, text, seed = job.result(timeout=60)
    assert len(job.outputs()) == 1 + 3  # a start and three steps
    assert text.startswith("4 images in ") and seed == 9
    with Image.open(path) as picture:
        assert picture.format == "PNG" and json.loads(picture.info["ebm_app"])["seed"] == 9
    # gradio deletes these files when they expire
    assert path.rpartition("/")[2] in str(page.temp_file_sets)


@pytest.mark.process
def test_client_scores_a_drawing(client, tmp_path):
    ink = np.zeros((280, 280))
    ink[40:240, 120:160] = 255
    stroke = handle_file(save_picture(tmp_path / "=stroke.png", ink))
    canvas = {"background": None, "layers": [], "composite": stroke}
    _, answer, where, *_, metrics = client.predict("grey", canvas, 4, api_name="/score_drawing")
    assert answer.startswith(metrics["answer"]) and f"{metrics['bits_per_dim']:.3f}" in answer
    assert where["plot"].startswith("data:image/png;base64,")
    with pytest.raises(AppError, match="canvas is empty"):
        client.predict("grey", {**canvas, "composite": None}, 4, api_name="/score_drawing")


def bad_calls():
    """Yield endpoint, arguments and the name of the invalid one."""
    for endpoint, good in ENDPOINTS.items():
        good = {name: None if value is ... else value for name, value in good.items()}
        for names, values in BAD.items():
            for name in set(names) & set(good):
                for bad in [*values, *ALWAYS_BAD]:
                    yield endpoint, {**good, name: bad}, name


@pytest.mark.process
def test_bad_arguments_give_safe_error_messages(address):
    web = httpx.Client(timeout=60, trust_env=False)
    web.post(f"{address}login", data=LOGIN)

    def complaint(endpoint, arguments, name):
        """Return what is wrong with the answer, or None."""
        call = f"{address}gradio_api/call{endpoint}"
        text = json.dumps({"data": list(arguments.values())})
        answer = web.post(call, content=text, headers={"Content-Type": "application/json"})
        events = web.get(f"{call}/{answer.json()['event_id']}").text.strip()
        event, data = events.split("\n\n")[-1].split("\n", 1)
        data = json.loads(data.removeprefix("data: "))
        if event != "event: error":
            return f"no error but {str(data)[:200]}"
        message = data["error"] or ""  # empty where gradio refuses the file itself
        is_sentence = "\n" not in message and len(message) < 2000 and bool(message)
        is_safe = not re.search(r"[<>]|/tmp|passwd\W.*root", message)
        return None if is_safe and (is_sentence or name in FILES) else message

    calls = list(bad_calls())
    with ThreadPoolExecutor(12) as pool:  # fewer than the queue holds
        complaints = list(pool.map(lambda call: complaint(*call), calls))
    wrong = [(call, text) for call, text in zip(calls, complaints, strict=True) if text]
    assert not wrong, wrong[:20]
