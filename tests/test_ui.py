"""The web UI: its callbacks as functions, the page, and a served page called by a client."""

import json
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import COLOUR, GREY
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

from ebm_app.cli import run_script
from ebm_app.config import EBMConfig
from ebm_app.data.images import load_images
from ebm_app.errors import UserError
from ebm_app.images_io import to_uint8
from ebm_app.samplers import Frame

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


def test_a_run_shows_a_grid_after_every_step_and_ends_with_the_samples(ui, models):
    run = list(ui.generate.generate(models.load, "grey", "pf_ode", 5, 3, 7, False))
    assert run[0] == (None, "Starting · grey · seed 7", 7)
    heads = [text.split(" · ")[0] for _, text, _ in run[1:]]
    assert heads == ["Step 1 of 3", "Step 2 of 3", "5 images"]
    pattern = r"5 images · grey · seed 7 · \d+\.\d s · \d+ evaluations of the score"
    assert re.fullmatch(pattern, run[-1][1])
    level = Frame(torch.zeros(5, 1, 8, 8), 1, 3, 9, acceptance=0.826)
    assert ui.generate.caption(level, "grey", 2.0) == (
        "Step 1 of 3 · grey · 2.0 s · 9 evaluations of the score · acceptance 0.83"
    )
    drawn = models.load("grey").sample(5, seed=7, num_steps=3)
    assert np.array_equal(tiles(run[-1][0], 5), to_uint8(drawn)[..., 0])
    made = json.loads(run[-1][0].info["ebm_app"])
    assert made == {
        **{"model": "grey", "sampler": "pf_ode", "num_images": 5},
        **{"num_steps": 3, "seed": 7, "step": 3},
    }


def test_who_stops_iterating_stops_the_sampler(ui):
    steps = []

    def frames(num_images, sampler, seed, num_steps):
        try:
            for step in range(1, num_steps + 1):
                steps.append(step)
                yield Frame(torch.zeros(num_images, 1, 8, 8), step, num_steps, step)
        finally:
            steps.append("closed")

    ebm = SimpleNamespace(iterate_sample=frames, to_images=lambda x: x)
    run = ui.generate.generate(lambda name: ebm, "any", "pf_ode", 2, 50, 0, False)
    shown = [next(run)[1] for _ in range(4)]
    run.close()
    assert steps == [1, 2, 3, "closed"]
    stopped = ui.generate.stopped
    assert stopped(shown[-1]).startswith("Stopped after step 3 of 50 · any · seed 0")
    for text in ("", "Starting · seed 1", "2 images · seed 1", stopped(shown[-1])):
        assert stopped(text) == text


def test_a_new_seed_is_drawn_on_demand_and_told(ui, models):
    seeds = set()
    for _ in range(3):
        *_, (_, text, seed) = ui.generate.generate(models.load, "grey", "pf_ode", 1, 1, 7, True)
        assert f"seed {seed} ·" in text and 0 <= seed <= ui.shared.MAX_SEED
        seeds.add(seed)
    assert len(seeds) == 3


def test_preprocessing_crops_averages_areas_and_takes_the_nearest_level(ui, tmp_path):
    preprocess = ui.score.preprocess
    image = digit()
    assert torch.equal(preprocess(Path(save_digit(tmp_path / "digit.png")), GREY), image)
    numbers = np.random.RandomState(0)
    pixels = numbers.randint(0, 256, (32, 48))  # 8 columns on either side are cut off
    mean = pixels[:, 8:40].reshape(8, 4, 8, 4).mean((1, 3))
    seen = preprocess(Path(save(tmp_path / "wide.png", pixels)), GREY)
    assert seen.shape == (1, 1, 8, 8)
    levels = seen[0, 0] * 16
    assert torch.equal(levels, levels.round())
    assert np.abs(levels.numpy() - mean / 255 * 16).max() < 0.5 + 16 / 255
    colour = numbers.randint(0, 256, (8, 16, 3))
    seen = preprocess(Path(save(tmp_path / "colour.png", colour)), COLOUR)
    mean = colour.reshape(4, 2, 8, 2, 3).mean((1, 3))
    assert seen.shape == (1, 3, 4, 8)
    assert np.abs(to_uint8(seen)[0] - mean).max() <= 1
    grey = preprocess(Path(save(tmp_path / "grey.png", pixels[:, :8])), COLOUR)
    assert torch.equal(grey[:, :1].expand(-1, 3, -1, -1), grey)


def test_a_score_is_the_mean_over_draws_with_its_standard_error(ui, models, tmp_path):
    path = save_digit(tmp_path / "digit.png")
    (first, working), (seen, text) = ui.score.score(models.load, "grey", path, 12, seed=3)
    assert working == "Scoring" and first is seen
    assert np.array_equal(tiles(seen, 1), to_uint8(digit())[..., 0])
    ebm = models.load("grey")
    values = ebm.log_prob(digit().expand(12, -1, -1, -1), seed=3).log_prob.numpy()
    assert values.std() > 0
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(12)
    bits = 64 * np.log(2)
    assert f"Log-likelihood: {mean:.2f} ± {error:.2f} nats\n" in text
    assert f"Bits per dim: {-mean / bits:.4f} ± {error / bits:.4f} at eps 0.0001\n" in text
    assert "12 dequantisation draws" in text and "8 evaluations a draw" in text
    assert ui.score.CAVEAT in text


def test_mistakes_with_an_image_are_explained_without_paths(ui, models, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    save(tmp_path / "clear.png", np.zeros((8, 8, 4)))
    for path, repeats, message in (
        (None, 4, "there is no image to score"),
        (str(tmp_path / "text.png"), 4, "cannot read 'text.png' as an image"),
        (str(tmp_path / "clear.png"), 4, "'clear.png' is transparent"),
        (save_digit(tmp_path / "digit.png"), 1, "at least 2 repeats"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            list(ui.score.score(models.load, "grey", path, repeats))
        assert str(tmp_path) not in str(caught.value)
    two = EBMConfig("folder:pairs", (2, 8, 8), 256)
    with pytest.raises(UserError, match="2 channels"):
        ui.score.preprocess(tmp_path / "digit.png", two)


def test_visitors_read_mistakes_and_the_log_keeps_the_rest(ui, caplog):
    def failing(error):
        yield 1
        raise error

    run = ui.generate.explained(failing)
    gradio_error = ui.app.gr.Error
    with pytest.raises(gradio_error) as caught:
        list(run(UserError("the seed is bad: give another")))
    assert caught.value.message == "the seed is bad: give another" and not caplog.records
    with pytest.raises(gradio_error) as caught:
        list(run(RuntimeError("secret")))
    assert "secret" not in caught.value.message
    (record,) = caplog.records
    number = re.search(r"under (\w+):", caught.value.message)[1]
    assert number in record.getMessage() and "secret" in caplog.text


def test_only_folders_with_a_model_are_offered_each_once(ui, folder, tmp_path):
    find = ui.app.find_models
    names = ["grey", "colour", "grey/checkpoint-5"]
    assert list(find(str(folder / "grey"), str(folder))) == names
    assert list(find(None, str(folder))) == sorted(names)
    shutil.copytree(folder / "colour", tmp_path / "grey")
    found = find(str(tmp_path / "grey"), str(folder))
    assert found["grey"] == tmp_path / "grey" and found["grey (3)"] == folder / "grey"
    models = ui.app.Models(found)
    assert models.of_dataset("digits") == {"grey (3)", "grey/checkpoint-5"}
    for name in (str(folder / "colour"), "../grey", ""):
        with pytest.raises(UserError, match="unknown model .*: choose one of colour, grey"):
            models.load(name)


def test_a_model_is_kept_until_its_files_change(ui, folder, tmp_path):
    shutil.copytree(folder / "grey", tmp_path / "run")
    models = ui.app.Models({"run": tmp_path / "run"})
    kept = models.load("run")
    assert models.load("run") is kept
    kept.save_pretrained(tmp_path / "run")
    assert models.load("run") is not kept
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="^run/model.safetensors is missing"):
        models.load("run")


def test_mistakes_on_the_command_line_end_in_one_sentence(ui, folder, capsys, tmp_path):
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
            assert run_script(ui.app.main, arguments) == 2, arguments
            error = capsys.readouterr().err.strip().splitlines()
            assert error[-1].startswith("error: ") and re.search(message, error[-1]), error
    assert ui.app.check_auth("0.0.0.0", "user:pass:word") == ("user", "pass:word")
    assert ui.app.check_auth("localhost", None) is None


@pytest.fixture(scope="module")
def page(ui, models):
    return ui.app.build_app(models, seed=5)


def test_the_page_has_its_endpoints_and_shows_held_out_digits(ui, folder, page):
    endpoints = page.get_api_info()["named_endpoints"]
    of_models = ("/generate", "/score")
    assert set(endpoints) == {*of_models, "/toy", "/mi", "/mi_example", "/mi_gaussian"}
    names = [[p["parameter_name"] for p in endpoints[n]["parameters"]] for n in of_models]
    assert names == [
        ["model", "sampler", "num_images", "num_steps", "seed", "randomise"],
        ["model", "image", "repeats"],
    ]
    (row,) = [block for block in page.blocks.values() if block.get_block_name() == "dataset"]
    assert row.visible and len(row.samples) == 10
    for index, (sample,) in enumerate(row.samples):
        path = Path(sample["path"] if isinstance(sample, dict) else sample)
        assert torch.equal(ui.score.preprocess(path, GREY), digit(index))
    colour = ui.app.build_app(ui.app.Models({"colour": folder / "colour"}))
    assert not any(b.get_block_name() == "dataset" for b in colour.blocks.values())


@pytest.fixture(scope="module")
def client(ui, page):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = ui.app.serve(page, "127.0.0.1", port, AUTH)
    assert address == f"http://127.0.0.1:{port}/"
    yield Client(address, auth=AUTH, verbose=False)
    page.close(verbose=False)


def test_a_client_draws_exact_pixels_and_sees_them_come(client, models):
    job = client.submit("grey", "pf_ode", 4, 3, 9, False, api_name="/generate")
    path, text, seed = job.result(timeout=30)
    assert len(job.outputs()) == 4 and text.startswith("4 images · grey · seed 9 · ") and seed == 9
    drawn = models.load("grey").sample(4, seed=9, num_steps=3)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert np.array_equal(tiles(picture, 4), to_uint8(drawn)[..., 0])
        assert json.loads(picture.info["ebm_app"])["seed"] == 9


def test_a_client_scores_an_image(client, tmp_path):
    image = handle_file(save_digit(tmp_path / "digit.png"))
    path, text = client.predict("grey", image, 4, api_name="/score")
    with Image.open(path) as picture:
        assert np.array_equal(tiles(picture, 1), to_uint8(digit())[..., 0])
    assert re.match(r"Log-likelihood: -?\d+\.\d+ ± \d+\.\d+ nats\nBits per dim: ", text)


def test_a_clients_mistakes_are_answered_in_a_sentence(client, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    text = handle_file(str(tmp_path / "text.png"))
    for name, arguments, message in (
        ("/score", ("grey", None, 4), "there is no image to score"),
        ("/score", ("grey", text, 4), "cannot be read as an image"),
        ("/score", ("/etc", None, 4), "not in the list of choices"),
        ("/generate", ("grey", "gibbs", 4, 3, 9, False), "not in the list of choices"),
        ("/generate", ("grey", "pf_ode", 65, 3, 9, False), "greater than maximum"),
    ):
        with pytest.raises(AppError, match=message) as caught:
            client.predict(*arguments, api_name=name)
        assert str(tmp_path) not in str(caught.value)


def test_a_cancelled_run_ends_early_and_frees_the_device(client, ui, monkeypatch):
    rendered, render = [], ui.generate.render
    monkeypatch.setattr(ui.generate, "render", lambda x: rendered.append(1) or render(x))
    job = client.submit("grey", "pf_ode", 1, 200, 0, False, api_name="/generate")
    for _ in job:
        job.cancel()
        break
    client.predict("grey", "pf_ode", 1, 1, 0, False, api_name="/generate")
    assert len(rendered) < 100


def test_strangers_are_kept_out(client):
    import httpx

    for path in ("config", "gradio_api/info", "monitoring"):
        assert httpx.get(client.src + path, follow_redirects=True).status_code in (401, 403, 404)
