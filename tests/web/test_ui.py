"""The page as a whole: its models, its endpoints, who may reach it, and mistakes explained."""

import re
import socket

import gradio as gr
from conftest import GREY, error_of
from PIL import Image

from ebm_app.cli.command_line import run_script
from ebm_app.web.score import uploads
from ebm_app.web.server import MAX_IMAGE_PIXELS, check_auth

#: what programs call: endpoint -> arguments in their order, with their defaults. Add at the end,
#: with a default; any other change breaks the programs of others
CONTRACT = {
    "/complete": {
        **{"model": "grey", "drawing": ..., "unknown": "lower half", "num_images": 4},
        **{"num_temperatures": 60, "seed": 5},
    },
    "/generate": {
        **{"model": "grey", "sampler": "dpm", "num_images": 10, "num_steps": 25, "seed": 5},
        **{"randomise": True, "score_images": False, "which": "any", "guidance": 1.5},
    },
    "/mi": {
        **{"x": None, "y": None, "csv": None, "x_columns": [], "y_columns": []},
        **{"steps": 1_000, "seed": 5},
    },
    "/mi_example": {"task": "normal_1x1", "num_rows": 2_000, "seed": 5},
    "/score": {"model": "grey", "image": None, "repeats": 16, "as_it_is": False},
    "/score_drawing": {"model": "grey", "drawing": ..., "repeats": 16},
    "/score_many": {"model": "grey", "files": None, "repeats": 16, "as_it_is": False},
    "/toy": {
        **{"problem": "gaussians_d2", "path": "variance_preserving", "method": "ctsm_v_time1"},
        **{"learning_rate": 1e-2, "iterations": 600, "seed": 5},
    },
}
#: what the endpoints return that programs read the most of
RETURNS = {
    "/generate": "Image Textbox Number Dataframe File",
    "/mi": "Plot Textbox Json",
    "/score": "Image Textbox Plot Textbox Label Json",
    "/score_many": "Dataframe Textbox",
    "/toy": "Plot Textbox Json",
}


def test_programs_find_every_endpoint_with_its_arguments_in_order(page):
    info = page.get_api_info()
    endpoints = info["named_endpoints"]
    found = {
        name: [(p["parameter_name"], p["parameter_default"]) for p in endpoint["parameters"]]
        for name, endpoint in endpoints.items()
    }
    for name in ("/score_drawing", "/complete"):
        found[name][1] = ("drawing", ...)  # an empty canvas
    assert found == {name: list(arguments.items()) for name, arguments in CONTRACT.items()}
    assert info["unnamed_endpoints"] == {}
    for name, kinds in RETURNS.items():
        assert " ".join(part["component"] for part in endpoints[name]["returns"]) == kinds


def test_mistakes_on_the_command_line_end_in_one_sentence(
    page_files, script, folder, capsys, tmp_path, monkeypatch
):
    app = script("ui/app.py")
    with gr.Blocks() as empty:
        gr.Markdown("no tab")
    monkeypatch.setattr("ebm_app.web.app.build_app", lambda models, seed: empty)
    model = ["--model", str(folder / "grey"), "--device", "cpu"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, message in (
            (["--models_dir", str(tmp_path / "none")], "no folder .*none': give another"),
            (["--model", str(tmp_path)], "config.json"),
            (["--model", "nowhere"], "no model at 'nowhere'"),
            ([*model, "--host", "0.0.0.0"], "--host 0.0.0.0 lets others in: .*--auth"),
            ([*model, "--allowed_hosts", "http://a.b"], "allowed_hosts.0 .* not 'http://a.b'"),
            ([*model, "--auth", "user"], "--auth has another form: write it as user:password"),
            ([*model, "--auth", ":word"], "user:password"),
            ([*model, "--seed", "-1"], "seed must be greater than or equal to 0"),
            ([*model, "--port", port], f"127.0.0.1:{port}, .*give another --port"),
            ([*model, "--port", "70000"], "port must be .*65535"),
        ):
            assert run_script(app.main, arguments) == 2, arguments
            error = capsys.readouterr().err.strip().splitlines()
            assert error[-1].startswith("error: ") and re.search(message, error[-1]), error


def test_other_machines_are_let_in_only_by_an_explicit_decision():
    assert check_auth("127.0.0.1", None) is None and check_auth("localhost", None) is None
    assert check_auth("0.0.0.0", None, no_auth=True) is None
    assert check_auth("0.0.0.0", "user:pass:word") == ("user", "pass:word")


def test_the_environment_names_who_is_let_in(script, monkeypatch):
    monkeypatch.setenv("EBM_AUTH", "user")
    assert "as user:password" in error_of(script("ui/app.py").main, ["--host", "0.0.0.0"])


def test_uploads_have_a_limit_of_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", MAX_IMAGE_PIXELS)
    large = tmp_path / "large.png"
    Image.new("L", (4_001, 4_000), 255).save(large)
    for read in (uploads.read_upload, uploads.read_drawing):
        assert "more than 16000000 pixels" in error_of(read, large, GREY)
