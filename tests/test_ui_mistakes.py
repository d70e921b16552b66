"""The page as it is started from a shell: whatever a program sends it is refused, a wrong value
in a sentence that names it, and no word tells of the server's folders."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from conftest import ROOT, free_port, save_digit
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

pytestmark = pytest.mark.process
#: arguments that each endpoint takes, by their names
GOOD = {
    "generate": {
        **{"model": "grey", "sampler": "pf_ode", "num_images": 1, "num_steps": 1, "seed": 0},
        **{"randomise": False, "score_images": False},
    },
    "score": {
        **{"model": "grey", "image": None, "repeats": 2},
        **{"invert": False, "frame": False},
    },
    "score_drawing": {"model": "grey", "drawing": None, "repeats": 2},
    "score_many": {
        **{"model": "grey", "files": None, "repeats": 2},
        **{"invert": False, "frame": False},
    },
    "estimators": {"model": "grey", "image": None, "draws": 2},
    "toy": {
        **{"problem": "gaussians_d2", "path": "variance_preserving", "method": "nce"},
        **{"learning_rate": 1e-3, "iterations": 1, "seed": 0},
    },
    "mi": {
        **{"x": None, "y": None, "csv": None, "x_columns": [], "y_columns": []},
        **{"steps": 1, "seed": 0},
    },
    "mi_gaussian": {
        **{"dim": 40, "methods": ["CTSM"], "learning_rate": 1e-3, "iterations": 1, "seed": 0},
    },
    "mi_example": {"task": "normal_1x1", "num_rows": 100, "seed": 0},
}
META = {"_type": "gradio.FileData"}
HTML = "<img src=x onerror=alert(1)>"
ALWAYS_BAD = [{"a": 1}, [[]], 10**400, float("nan"), float("inf")]
NO_FILE = [
    *("/etc/passwd", HTML, 3, True, [3], {"path": "/etc/passwd"}),
    {"path": "/etc/passwd", "meta": META},
    {"path": "http://127.0.0.1:1/a.png", "meta": META},
    {"path": "\0", "meta": META},
    {"path": "x" * 5000, "meta": META},
]
#: by the kind of the field, what is none of it
BAD = {
    "number": [None, "", HTML, [], -1, 1e10, 0.5],
    "name": [None, 3, 40.5, True, [], "", "nowhere", "../grey", HTML],
    "names": [None, 3, {"CTSM": 1}, ["nowhere"], [HTML], [None]],
    "texts": [None, 3, [3], [None]],
    "truth": [None, 2, "maybe", [], HTML],
    "file": NO_FILE,
    "files": [*NO_FILE, [{"path": "/etc/passwd", "meta": META}], [None]],
}
KINDS = {
    "names": ("methods",),
    "texts": ("x_columns", "y_columns"),
    "truth": ("randomise", "score_images", "invert", "frame"),
    "file": ("image", "drawing", "x", "y", "csv"),
    "files": ("files",),
    "number": (
        *("num_images", "num_steps", "seed", "repeats", "draws", "learning_rate"),
        *("iterations", "steps", "num_rows"),
    ),
}


def kind_of(name):
    return next((kind for kind, names in KINDS.items() if name in names), "name")


def mistakes():
    """(endpoint, arguments, the field that is wrong)."""
    for endpoint, good in GOOD.items():
        fields = {kind_of(name): name for name in good}  # one of each kind
        for kind, name in fields.items():
            for bad in [*BAD[kind], *ALWAYS_BAD]:
                if name == "learning_rate" and bad == 0.5:
                    bad = 1.5
                yield endpoint, {**good, name: bad}, name


class Server:
    """The page from a shell."""

    def __init__(self, folder, tmp):
        self.log, port = tmp / "log.txt", free_port()
        command = [sys.executable, str(ROOT / "ui" / "app.py"), "--model", str(folder / "grey")]
        command += ["--port", str(port), "--device", "cpu"]
        environment = {**os.environ, "GRADIO_TEMP_DIR": str(tmp / "gradio")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.address = self.process.stdout.readline().split()[0]
        self.web = httpx.Client(timeout=60, trust_env=False)

    def send(self, endpoint, arguments):
        """The kind of the last event and its data."""
        call = f"{self.address}gradio_api/call/{endpoint}"
        text = json.dumps({"data": list(arguments)})
        answer = self.web.post(call, content=text, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        events = self.web.get(f"{call}/{answer.json()['event_id']}").text.strip()
        event, data = events.split("\n\n")[-1].split("\n", 1)
        return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    server = Server(folder, tmp_path_factory.mktemp("server"))
    yield server
    server.process.terminate()
    server.process.wait()


def test_every_bad_argument_is_refused_and_a_wrong_value_named(server):
    def is_answered(endpoint, arguments, field):
        event, data = server.send(endpoint, arguments.values())
        if event != "error":
            return False, str(data)[:200]
        message = data["error"] or ""  # gradio's own of what is no file has no words
        is_sentence = "\n" not in message and len(message) < 2000 and bool(message)
        is_file = kind_of(field) in ("file", "files")
        is_safe = not re.search(r"[<>]|/tmp|passwd\W.*root", message)
        return is_safe and (is_sentence or is_file), message

    calls = list(mistakes())
    with ThreadPoolExecutor(12) as pool:  # as many as may wait
        answers = list(pool.map(lambda call: is_answered(*call), calls))
    wrong = [
        (endpoint, field, arguments[field], words)
        for (endpoint, arguments, field), (is_good, words) in zip(calls, answers, strict=True)
        if not is_good
    ]
    assert not wrong, "\n".join(map(str, wrong[:40]))
    assert len(calls) > 200


def test_a_programs_mistakes_are_the_same_by_the_client_of_gradio(server, tmp_path):
    client = Client(server.address, verbose=False)
    (tmp_path / "cell.csv").write_text(f"{HTML},b\n" + "1,2\n" * 3)
    np.save(tmp_path / "x.npy", np.zeros(3))
    cell, array = (handle_file(str(tmp_path / name)) for name in ("cell.csv", "x.npy"))
    digit = handle_file(save_digit(tmp_path / "digit.png"))
    for endpoint, changes, message in (
        ("mi", {"csv": array, "x_columns": ["a"], "y_columns": ["b"]}, "cannot read 'x.npy'"),
        ("mi", {"x": cell, "y": array}, "cannot read 'cell.csv'"),
        ("mi", {"csv": cell, "x_columns": ["a"], "y_columns": ["b"]}, "&lt;img src=x"),
        ("score_many", {"files": [digit], "repeats": 2.5}, "^repeats cannot be 2.5"),
        ("score_many", {"files": []}, "there are no files: upload some"),
        ("generate", {"model": HTML}, "^unknown model '&lt;img"),
    ):
        given = {**GOOD[endpoint], **changes}
        with pytest.raises(AppError) as caught:
            client.predict(**given, api_name=f"/{endpoint}")
        assert re.search(message, caught.value.message), caught.value.message
        assert not re.search(r"<|/tmp|gradio", caught.value.message)


def test_the_page_is_called_by_its_own_names_only(server):
    for host, code in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 400)):
        answer = server.web.get(server.address, headers={"Host": host})
        assert answer.status_code == code, host
