"""Command line, access control and limits of the server."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import httpx
import pytest
from conftest import AUTH, LOGIN, error_of, free_port
from PIL import Image

from ebm_app.cli.command_line import run_script
from ebm_app.web.server import MAX_IMAGE_PIXELS, check_auth, serve


def test_invalid_arguments_exit_with_code_2(page_files, script, folder, capsys, monkeypatch):
    app = script("ui/app.py")
    with gr.Blocks() as empty:
        gr.Markdown("no tab")
    monkeypatch.setattr("ebm_app.web.app.build_app", lambda models, seed: empty)
    model = ["--model", str(folder / "grey"), "--device", "cpu"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, word in (
            (["--models_dir", str(folder / "none")], "--models_dir"),
            (["--model", "nowhere"], "nowhere"),
            ([*model, "--host", "0.0.0.0"], "--auth"),
            ([*model, "--allowed_hosts", "http://a.b"], "http://a.b"),
            ([*model, "--auth", ":word"], "user:password"),
            ([*model, "--port", port], port),
            ([*model, "--port", "70000"], "65535"),
        ):
            assert run_script(app.main, arguments) == 2, arguments
            error = capsys.readouterr().err.strip().splitlines()[-1]
            assert error.startswith("error: ") and word in error, error


def test_only_a_local_page_needs_no_password(script, monkeypatch):
    assert check_auth("127.0.0.1", None) is None and check_auth("localhost", None) is None
    assert check_auth("0.0.0.0", None, no_auth=True) is None
    assert check_auth("0.0.0.0", "user:pass:word") == ("user", "pass:word")
    monkeypatch.setenv("EBM_AUTH", "user")
    assert "user:password" in error_of(script("ui/app.py").main, ["--host", "0.0.0.0"])


@pytest.mark.process
def test_requests_without_a_login_are_refused(address):
    assert Image.MAX_IMAGE_PIXELS == MAX_IMAGE_PIXELS  # set before the page is served
    for path in ("config", "gradio_api/info", "monitoring"):
        assert httpx.get(address + path, follow_redirects=True).status_code in (401, 403, 404)


@pytest.mark.process
def test_requests_for_another_host_are_refused(address):
    for host, code in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 400)):
        answer = httpx.get(address, headers={"Host": host}, trust_env=False)
        assert answer.status_code == code, host


@pytest.mark.process
def test_wrong_passwords_delay_the_next_login(page_files, caplog):
    with gr.Blocks() as page:
        gr.Markdown("page")
    address = serve(page, "127.0.0.1", free_port(), AUTH)
    try:
        wrong = {**LOGIN, "password": "wrong"}
        with ThreadPoolExecutor(20) as pool:
            answers = pool.map(lambda _: httpx.post(f"{address}login", data=wrong), range(40))
            codes = [answer.status_code for answer in answers]
        assert set(codes) == {400, 429} and codes.count(400) < 10
        assert "Wrong password 1 from 127.0.0.1" in caplog.text
        refused = httpx.post(f"{address}login", data=LOGIN)
        assert refused.status_code == 429 and "Too many wrong passwords" in refused.text
        time.sleep(int(refused.headers["Retry-After"]) + 1)
        for _ in range(2):  # a correct password resets the count
            assert httpx.post(f"{address}login", data=LOGIN).status_code == 200
        assert httpx.post(f"{address}login", data=wrong).status_code == 400
    finally:
        page.close(verbose=False)


@pytest.mark.process
def test_page_forbids_requests_to_other_hosts(address):
    for path in ("", "config", "login"):
        policy = httpx.get(address + path, trust_env=False).headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self'; ") and "http" not in policy
