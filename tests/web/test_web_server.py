"""Command line, models, links, errors, access control and limits of the server."""

import re
import shutil
import socket

import gradio as gr
import httpx
import pytest
from conftest import LOGIN, error_of
from PIL import Image

from ebm_app.command_line import run_script
from ebm_app.pretrained import BUNDLED
from ebm_app.utils.errors import UserError
from ebm_app.web.__main__ import check_auth, find_models
from ebm_app.web.models import Models
from ebm_app.web.server import MAX_IMAGE_PIXELS
from ebm_app.web.shared import endpoint


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


def test_requests_are_checked(address):
    """The login, the Host header, the security policy, and the size of uploads."""
    assert Image.MAX_IMAGE_PIXELS == MAX_IMAGE_PIXELS  # set before the page is served
    for path in ("config", "gradio_api/info", "monitoring"):
        assert httpx.get(address + path, follow_redirects=True).status_code in (401, 403, 404)
    for host, code in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 400)):
        answer = httpx.get(address, headers={"Host": host}, trust_env=False)
        assert answer.status_code == code, host
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
    web = httpx.Client(trust_env=False, timeout=60)
    assert web.post(f"{address}login", data={**LOGIN, "password": "wrong"}).status_code == 400
    assert web.post(f"{address}login", data=LOGIN).status_code == 200
    files = {"files": bytes(25_000_000)}
    assert web.post(f"{address}gradio_api/upload", files=files).status_code == 413


def test_link_preview_is_that_of_this_server(address):
    page = httpx.get(address, trust_env=False).text
    tag = r'<meta\s+(?:property|name)="(?:og|twitter):image"\s+content="([^"]*)"'
    assert {*re.findall(tag, page)} == {f"{address}preview.png"}
    picture = httpx.get(f"{address}preview.png", trust_env=False)
    assert picture.headers["Content-Type"] == "image/png"


def test_endpoints_report_errors_without_folders_and_html():
    def fail():
        raise UserError("Cannot read '/srv/my models/a.json' (no /tmp/x/file): '<img src=x>' &.")

    with pytest.raises(gr.Error, match=r"'a.json' \(no file\): '&lt;img src=x&gt;' &amp;"):
        endpoint(fail)()


def test_each_model_folder_is_listed_once(page_files, folder, tmp_path, monkeypatch):
    names = ["grey", "colour", "labelled", "grey/checkpoint-5"]
    assert list(find_models(str(folder / "grey"), str(folder))) == names
    assert list(find_models(None, str(folder))) == ["colour", "grey", "labelled", names[-1]]
    shutil.copytree(folder / "colour", tmp_path / "grey")
    found = find_models(str(tmp_path / "grey"), str(folder))
    assert found["grey"] == tmp_path / "grey" and found["grey (3)"] == folder / "grey"
    models = Models(found)
    for name in (str(folder / "colour"), "../grey", ""):
        with pytest.raises(UserError, match="model"):
            models.open(name)
    monkeypatch.setattr("ebm_app.web.__main__.BUNDLED", BUNDLED)
    others = ["cifar10", "digits", "digits-energy", "fashion", "mnist-energy", "mnist-latent"]
    assert list(find_models(None, None)) == ["mnist", *others]
    assert list(find_models("digits", None))[:2] == ["digits", "mnist"]


def test_model_is_reloaded_when_its_file_changes(folder, tmp_path):
    shutil.copytree(folder / "grey", tmp_path / "run")
    models = Models({"run": tmp_path / "run"})
    loaded = models.open("run")
    assert models.open("run") is loaded
    loaded.ebm.save_pretrained(tmp_path / "run")
    assert models.open("run") is not loaded
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="model.safetensors"):
        models.open("run")
