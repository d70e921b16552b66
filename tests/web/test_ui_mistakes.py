"""The served page: whatever a program sends it is refused, a wrong value in a sentence that names
it, and no word tells of the server's folders."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from conftest import LOGIN
from test_ui import CONTRACT

pytestmark = pytest.mark.process
META = {"_type": "gradio.FileData"}
HTML = "<img src=x onerror=alert(1)>"
ALWAYS_BAD = [{"a": 1}, [[]], 10**400, float("nan")]
PATHS = ("/etc/passwd", "http://127.0.0.1:1/a.png", "x" * 5000)
NO_FILE = [*PATHS, HTML, 3, [3], *({"path": path, "meta": META} for path in PATHS)]
#: what is none of a kind of argument, by arguments of that kind
BAD = {
    ("seed", "num_images", "repeats", "learning_rate"): [None, "", HTML, [], -1, 1e10],
    ("model", "task", "problem"): [None, 40.5, True, [], "nowhere", "../grey", HTML],
    ("x_columns",): [None, 3, [3], [None]],
    ("randomise", "as_it_is"): [None, 2, "maybe", [], HTML],
    ("image", "drawing", "x"): NO_FILE,
    ("files",): [*NO_FILE, [{"path": "/etc/passwd", "meta": META}], [None]],
}
FILES = ("image", "drawing", "x", "files")


def mistakes():
    """(endpoint, arguments, the one that is wrong)."""
    for endpoint, good in CONTRACT.items():
        good = {name: None if value is ... else value for name, value in good.items()}
        for names, values in BAD.items():
            for name in set(names) & set(good):
                for bad in [*values, *ALWAYS_BAD]:
                    yield endpoint, {**good, name: bad}, name


def test_every_bad_argument_is_refused_and_a_wrong_value_named(address):
    web = httpx.Client(timeout=60, trust_env=False)
    web.post(f"{address}login", data=LOGIN)

    def refusal(endpoint, arguments, name):
        """What is wrong with the answer, if anything."""
        call = f"{address}gradio_api/call{endpoint}"
        text = json.dumps({"data": list(arguments.values())})
        answer = web.post(call, content=text, headers={"Content-Type": "application/json"})
        events = web.get(f"{call}/{answer.json()['event_id']}").text.strip()
        event, data = events.split("\n\n")[-1].split("\n", 1)
        data = json.loads(data.removeprefix("data: "))
        if event != "event: error":
            return f"no error but {str(data)[:200]}"
        message = data["error"] or ""  # gradio's own of what is no file has no words
        is_sentence = "\n" not in message and len(message) < 2000 and bool(message)
        is_safe = not re.search(r"[<>]|/tmp|passwd\W.*root", message)
        return None if is_safe and (is_sentence or name in FILES) else message

    calls = list(mistakes())
    with ThreadPoolExecutor(12) as pool:  # as many as may wait
        answers = pool.map(lambda call: refusal(*call), calls)
    wrong = [
        (endpoint, name, arguments[name], words)
        for (endpoint, arguments, name), words in zip(calls, answers, strict=True)
        if words is not None
    ]
    assert not wrong, "\n".join(map(str, wrong[:40]))
    assert len(calls) > 200


def test_the_page_is_called_by_its_own_names_only(address):
    for host, code in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 400)):
        answer = httpx.get(address, headers={"Host": host}, trust_env=False)
        assert answer.status_code == code, host
