"""The load on the page: how a visitor's fate is told, against a server that answers as it does."""

import json
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import error_of

STREAMS = {
    "well": 'event: generating\ndata: [1]\n\nevent: complete\ndata: ["a"]\n\n',
    "badly": 'event: error\ndata: {"error": "the seed is bad"}\n\n',
    "full": 'event: error\ndata: "Queue is full! Please try again."\n\n',
    "cut": "",
}


class Page(BaseHTTPRequestHandler):
    """Answers the endpoint of a name with its stream; "refused" is full at once, "slow" silent."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/refused"):
            self.send_error(503, "Queue is full!")
            return
        body = json.dumps({"event_id": "7"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        name = self.path.split("/")[-2]
        if name == "slow":
            self.server.leave.wait(2)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(STREAMS[name].encode())

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def served():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.leave = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.leave.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("endpoint", "outcome"),
    [
        ("well", "answered"),
        ("badly", "failed"),
        ("cut", "failed"),
        ("full", "turned away"),
        ("refused", "turned away"),
        ("slow", "hung"),
    ],
)
def test_the_fate_of_a_visitor(ui, endpoint, outcome):
    with served() as url:
        found = ui.load.visit(url, endpoint, [], timeout=0.5)
    assert found.outcome == outcome and 0 < found.seconds < 10
    assert found.outcome != "failed" or found.words


def test_a_page_that_is_not_there_is_a_failure(ui):
    with served() as url:
        pass
    assert ui.load.visit(url, "well", [], timeout=1).outcome == "failed"


def test_memory_is_that_of_the_process(ui):
    now, most = (ui.load.memory(os.getpid(), key) for key in ("VmRSS", "VmHWM"))
    assert 10 < now <= most < 1e5
    assert ui.load.memory(None, "VmRSS") is None


def test_no_visitors_are_no_load(ui):
    assert "give 1 or more" in error_of(ui.load.main, ["--clients", "0"])
