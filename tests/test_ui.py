"""The web UI: its callbacks as functions, the page, and a served page called by a client."""

import json
import re
import shutil
import socket
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch
from conftest import GREY
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

from ebm_app.data.images import load_images
from ebm_app.data.png import to_uint8
from ebm_app.errors import UserError
from ebm_app.models.folders import BUNDLED
from ebm_app.runs.cli import run_script
from ebm_app.web import models as page_models
from ebm_app.web.app import build_app
from ebm_app.web.explanations import explained
from ebm_app.web.generate import run as sample_run
from ebm_app.web.models import Models, find_models
from ebm_app.web.score import estimators, uploads
from ebm_app.web.score import held_out as held
from ebm_app.web.server import check_auth, serve

AUTH = ("user", "word")


def digit(index: int = 0) -> torch.Tensor:
    return load_images("digits").test[index : index + 1] / 16


def save(path: Path, pixels: np.ndarray) -> str:
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return str(path)


def save_digit(path: Path) -> str:
    return save(path, to_uint8(digit())[0, ..., 0].repeat(10, 0).repeat(10, 1))


def tiles(picture: Image.Image, num: int, side: int = 8) -> np.ndarray:
    """The grey images (num, side, side) of a grid, from the corner of each enlarged pixel."""
    columns = int(np.ceil(np.sqrt(num)))
    factor = (picture.width + 1) // ((side + 1) * columns - 1)
    sheet = np.asarray(picture)[::factor, ::factor]
    assert np.array_equal(sheet.repeat(factor, 0).repeat(factor, 1), np.asarray(picture))
    corners = [divmod(index, columns) for index in range(num)]
    return np.stack(
        [sheet[r * 9 : r * 9 + side, c * 9 : c * 9 + side] for r, c in corners]
    )  # one pixel lies between two images


def test_visitors_read_mistakes_and_the_log_keeps_the_rest(caplog):
    def failing(error):
        yield 1
        raise error

    run = explained(failing)
    gradio_error = gr.Error
    with pytest.raises(gradio_error) as caught:
        list(run(UserError("the seed is bad: give another")))
    assert caught.value.message == "the seed is bad: give another" and not caplog.records
    with pytest.raises(gradio_error) as caught:
        list(run(RuntimeError("secret")))
    assert "secret" not in caught.value.message
    (record,) = caplog.records
    number = re.search(r"under (\w+):", caught.value.message)[1]
    assert number in record.getMessage() and "secret" in caplog.text


def test_only_folders_with_a_model_are_offered_each_once(page_files, folder, tmp_path):
    find = find_models
    names = ["grey", "colour", "grey/checkpoint-5"]
    assert list(find(str(folder / "grey"), str(folder))) == names
    assert list(find(None, str(folder))) == sorted(names)
    shutil.copytree(folder / "colour", tmp_path / "grey")
    found = find(str(tmp_path / "grey"), str(folder))
    assert found["grey"] == tmp_path / "grey" and found["grey (3)"] == folder / "grey"
    models = Models(found)
    assert models.of_dataset("digits") == {"grey (3)", "grey/checkpoint-5"}
    for name in (str(folder / "colour"), "../grey", ""):
        with pytest.raises(UserError, match="unknown model .*: choose one of colour, grey"):
            models.load(name)


def test_the_bundled_models_are_offered_by_default(monkeypatch):
    monkeypatch.setattr(page_models, "BUNDLED", BUNDLED)
    assert list(find_models(None, None)) == ["mnist", "digits"]
    assert list(find_models("digits", None)) == ["digits", "mnist"]


def test_a_model_is_kept_until_its_files_change(folder, tmp_path):
    shutil.copytree(folder / "grey", tmp_path / "run")
    models = Models({"run": tmp_path / "run"})
    kept = models.load("run")
    assert models.load("run") is kept
    kept.save_pretrained(tmp_path / "run")
    assert models.load("run") is not kept
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="^run/model.safetensors is missing"):
        models.load("run")


def test_mistakes_on_the_command_line_end_in_one_sentence(
    page_files, script, folder, capsys, tmp_path
):
    main = script("ui/app.py").main
    model = ["--model", str(folder / "grey"), "--device", "cpu"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, message in (
            ([], "train one, python train/ebm.py .* pass it with --model"),
            (["--models_dir", str(tmp_path)], "no model was found"),
            (["--models_dir", str(tmp_path / "none")], "no folder .*none': give another"),
            (["--model", str(tmp_path)], "config.json is missing"),
            (["--model", "nowhere"], "no model at 'nowhere'"),
            ([*model, "--host", "0.0.0.0"], "--host 0.0.0.0 lets others in: .*--auth"),
            ([*model, "--auth", "user"], "--auth has another form: write it as user:password"),
            ([*model, "--auth", ":word"], "user:password"),
            ([*model, "--seed", "-1"], "--seed -1 is out of range"),
            ([*model, "--port", port], f"127.0.0.1:{port}, .*give another --port"),
            ([*model, "--port", "70000"], "give another --port"),
        ):
            assert run_script(main, arguments) == 2, arguments
            error = capsys.readouterr().err.strip().splitlines()
            assert error[-1].startswith("error: ") and re.search(message, error[-1]), error
    assert check_auth("0.0.0.0", "user:pass:word") == ("user", "pass:word")
    assert check_auth("localhost", None) is None


@pytest.fixture(scope="module")
def page(models):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "MAX_IMAGES", 40)  # the others would cost seconds
        yield build_app(models, seed=5)


def test_the_page_shows_held_out_digits(folder, page):
    (row,) = [block for block in page.blocks.values() if block.get_block_name() == "dataset"]
    assert row.visible and len(row.samples) == 10
    for index, (sample,) in enumerate(row.samples):
        path = Path(sample["path"] if isinstance(sample, dict) else sample)
        assert torch.equal(uploads.preprocess(path, GREY), digit(index))
    colour = build_app(Models({"colour": folder / "colour"}))
    assert not any(b.get_block_name() == "dataset" for b in colour.blocks.values())


@pytest.fixture(scope="module")
def client(page):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = serve(page, "127.0.0.1", port, AUTH)
    assert address == f"http://127.0.0.1:{port}/"
    yield Client(address, auth=AUTH, verbose=False)
    page.close(verbose=False)


def test_a_client_draws_exact_pixels_and_sees_them_come(client, page, models):
    job = client.submit("grey", "pf_ode", 4, 3, 9, False, api_name="/generate")
    path, text, seed, scores, *files = job.result(timeout=30)
    assert len(job.outputs()) == 5 and text.startswith("4 images · grey · seed 9 · ") and seed == 9
    drawn = models.load("grey").sample(4, seed=9, num_steps=3)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert np.array_equal(tiles(picture, 4), to_uint8(drawn)[..., 0])
        assert json.loads(picture.info["ebm_app"])["seed"] == 9
    assert scores["data"] == []
    stem, ends = "grey-pf_ode-seed9", ("-animation.png", ".json", ".zip")
    assert [Path(file).name for file in files] == [stem + end for end in ends]
    assert json.loads(Path(files[1]).read_text())["step"] == 3
    deleted_in_time = {Path(file).name for group in page.temp_file_sets for file in group}
    assert deleted_in_time >= {Path(file).name for file in (path, *files)}


def test_a_client_gets_scores_with_the_images(client, models):
    job = ("grey", "pf_ode", 3, 2, 9, False, True)
    _, text, _, scores, *_ = client.predict(*job, api_name="/generate")
    assert [row[0] for row in scores["data"]] == [1, 2, 3]
    assert len(scores["headers"]) == len(scores["data"][0]) == 4
    assert text.endswith(" · log-likelihoods at eps 0.0001")


def test_a_client_scores_an_image(client, tmp_path, monkeypatch):
    image = handle_file(save_digit(tmp_path / "digit.png"))
    path, text, shares, place, histogram = client.predict("grey", image, 4, api_name="/score")
    with Image.open(path) as picture:
        assert np.array_equal(tiles(picture, 1), to_uint8(digit())[..., 0])
    assert re.match(r"Log-likelihood: -?\d+\.\d+ ± \d+\.\d+ nats\nBits per dim: ", text)
    assert re.match(r"Percentile \d+: .* of 40 held-out images", place)
    assert all(plot["plot"].startswith("data:image/png;base64,") for plot in (shares, histogram))
    ratio = {"ratio": estimators.estimators(64)["ratio"]}
    monkeypatch.setattr(estimators, "estimators", lambda num_dims: ratio)
    for file in (handle_file(path), image):  # as the model sees it, or as it was uploaded
        table, _ = client.predict("grey", file, 4, api_name="/estimators")
        ((name, nats, *_),) = table["data"]
        assert name == "ratio" and text.startswith(f"Log-likelihood: {nats:.2f} ")


def test_a_client_scores_a_drawing_and_many_files(client, tmp_path):
    ink = np.zeros((280, 280))
    ink[40:240, 120:160] = 255
    stroke = handle_file(save(tmp_path / "=stroke.png", ink))
    value = {"background": None, "layers": [], "composite": stroke}
    _, text, *_ = client.predict("grey", value, 4, api_name="/score_drawing")
    assert text.startswith("Log-likelihood: ")
    files = [handle_file(save_digit(tmp_path / "digit.png")), stroke]
    table, sheet, text = client.predict("grey", files, 4, api_name="/score_many")
    assert text == "2 of 2 files have a log-likelihood"
    assert [row[0] for row in table["data"]] == ["digit.png", "=stroke.png"]
    assert len(Path(sheet).read_text(encoding="utf-8").splitlines()) == 3
    with pytest.raises(AppError, match="the canvas is empty"):
        empty = {"background": None, "layers": [], "composite": None}
        client.predict("grey", empty, 4, api_name="/score_drawing")


def test_a_clients_mistakes_are_answered_in_a_sentence(client, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    text = handle_file(str(tmp_path / "text.png"))
    for name, arguments, message in (
        ("/score", ("grey", None, 4), "there is no image"),
        ("/score", ("grey", text, 4), "cannot read 'text.png' as an image"),
        ("/score", ("/etc", None, 4), "not in the list of choices"),
        ("/generate", ("grey", "gibbs", 4, 3, 9, False), "not in the list of choices"),
        ("/generate", ("grey", "pf_ode", 65, 3, 9, False), "greater than maximum"),
    ):
        with pytest.raises(AppError, match=message) as caught:
            client.predict(*arguments, api_name=name)
        assert str(tmp_path) not in str(caught.value)


def test_a_cancelled_run_ends_early_and_frees_the_device(client, monkeypatch):
    rendered, render = [], sample_run.render
    monkeypatch.setattr(
        sample_run, "render", lambda *x, **size: rendered.append(1) or render(*x, **size)
    )
    job = client.submit("grey", "pf_ode", 1, 200, 0, False, api_name="/generate")
    for _ in job:
        job.cancel()
        break
    client.predict("grey", "pf_ode", 1, 1, 0, False, api_name="/generate")
    assert 2 <= len(rendered) < 100


def test_strangers_are_kept_out(client):
    import httpx

    for path in ("config", "gradio_api/info", "monitoring"):
        assert httpx.get(client.src + path, follow_redirects=True).status_code in (401, 403, 404)
