"""The scripts: end to end on tiny data, and a user's mistakes in one sentence with exit code 2."""

import json
import runpy
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY, call
from PIL import Image

from ebm_app.cli.command_line import run_script
from ebm_app.ebm import EBM


def last_json(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, image_folder) -> Path:
    """A model trained by the script; ``test_processes`` starts it in a process of its own."""
    folder = tmp_path_factory.mktemp("runs") / "model"
    main = runpy.run_path(str(ROOT / "train" / "ebm.py"))["main"]
    steps = ["--max_train_steps", "4", "--validation_steps", "2", "--checkpointing_steps", "2"]
    steps += ["--num_preview_images", "4", "--report_to", "tensorboard"]
    flags = ["--dataset", f"folder:{image_folder}", "--output_dir", str(folder), *TINY, *steps]
    with redirect_stdout(StringIO()) as out:
        assert run_script(main, flags) == 0
    metrics = last_json(out.getvalue())
    assert metrics["output_dir"] == str(folder) and metrics["steps"] == 4
    assert metrics["images_per_second"] > 0 and {"loss", "bits_per_dim"} <= set(metrics)
    return folder


def test_training_leaves_everything_a_user_expects(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "model.safetensors", "metrics.jsonl", "run.json", "loss.png"} <= names
    assert {"checkpoint-2", "checkpoint-4"} <= names
    assert len(list((trained / "previews").glob("*.png"))) == 2
    assert list(trained.rglob("events.out.tfevents*"))
    record = json.loads((trained / "run.json").read_text())
    assert record["figures"]["steps"] == 4 and record["settings"]["training"]["seed"] == 0
    assert record["versions"]["torch"]
    for folder in (trained, trained / "checkpoint-2"):
        assert EBM.from_pretrained(folder).config.image_shape == (1, 8, 8)


@pytest.mark.process
def test_a_run_starts_from_the_weights_of_a_model(trained, script, image_folder, tmp_path, capsys):
    flags = ["--dataset", f"folder:{image_folder}", *TINY, "--max_train_steps", 1]
    flags += ["--lr_scheduler", "constant_with_warmup"]
    still = ["--learning_rate", 0, "--init_from", trained, "--output_dir", tmp_path / "still"]
    assert call(script("train/ebm.py"), *flags, *still) == 0
    before, after = (
        EBM.from_pretrained(run).state_dict() for run in (trained, tmp_path / "still")
    )
    assert all(torch.equal(before[name], after[name]) for name in before)
    further = ["--max_train_steps", 2, "--resume_from_checkpoint", "latest"]
    assert call(script("train/ebm.py"), *flags, *still, *further) == 0
    record = json.loads((tmp_path / "still" / "run.json").read_text())
    assert record["settings"]["init_from"] == {"model": str(trained)}
    other = ["--init_from", trained, "--prediction", "raw", "--output_dir", tmp_path / "other"]
    assert call(script("train/ebm.py"), *flags, *other) == 2
    assert "prediction was moments, now raw" in capsys.readouterr().err
    assert not (tmp_path / "other" / "run.json").exists()


#: settings that make annealed HMC short
FEW = "steps_per_temperature=1 num_leapfrog_steps=1 final_steps=0".split()


@pytest.mark.parametrize(
    ("sampler", "settings"),
    [("pf_ode", []), ("annealed_hmc", ["--sampler_args", *FEW])],
    ids=["pf_ode", "annealed_hmc"],
)
def test_sampling_writes_exact_pixels_and_repeats_with_its_seed(
    trained, script, capsys, tmp_path, sampler, settings
):
    flags = ["--sampler", sampler, "--num_images", 3, "--num_steps", 2, "--device", "cpu"]
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        own = ["--seed", seed, "--output_dir", tmp_path / name]
        assert call(script("sample/ebm.py"), trained, *flags, *settings, *own) == 0
    figures = last_json(capsys.readouterr().out)
    assert figures["num_files"] == 4 and figures["nfe"] > 0 and figures["seconds"] > 0
    images = [(tmp_path / name / "00002.png").read_bytes() for name in "abc"]
    assert images[0] == images[1] != images[2]
    assert Image.open(tmp_path / "a" / "00000.png").size == (8, 8)


def test_dry_run_prints_settings_that_config_takes_back(script, capsys, tmp_path, image_folder):
    train = script("train/ebm.py")
    data = ["--dataset", f"folder:{image_folder}", "--output_dir", tmp_path / "run"]
    assert call(train, *data, "--dry_run", *TINY, "--learning_rate", "0.01") == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings["training"]["learning_rate"] == 0.01
    assert settings["ebm"]["net"]["block_out_channels"] == [8]
    assert not (tmp_path / "run").exists()
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    config = ["--config", tmp_path / "run.json"]
    assert call(train, *data, "--dry_run", *config, "--learning_rate", "0.02") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["training"].pop("learning_rate") == 0.02
    settings["training"].pop("learning_rate")
    assert again == settings


def test_a_run_is_not_overwritten_unasked_and_can_be_replaced(script, capsys, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "notes.txt").write_text("mine")
    arguments = ["--output_dir", run, "--max_train_steps", 1, *TINY]
    assert call(script("train/ebm.py"), *arguments) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert call(script("train/ebm.py"), *arguments, "--overwrite_output_dir") == 0
    names = {path.name for path in run.iterdir()}
    assert "checkpoint-4" not in names and "checkpoint-1" in names
    assert (run / "notes.txt").read_text() == "mine"


def test_mistakes_in_scoring_and_sampling_end_in_one_sentence(trained, script, capsys, tmp_path):
    bpd, sample = script("evaluate/bpd.py"), script("sample/ebm.py")
    own = ["--output_dir", tmp_path / "out", "--device", "cpu"]
    damaged = tmp_path / "damaged"
    shutil.copytree(trained, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for module, arguments, message in (
        (bpd, ["nowhere"], "no model at 'nowhere'"),
        (bpd, [trained, "--dataset", "digits"], "with 17"),
        (bpd, [trained, "--split", "all"], "unknown split"),
        (bpd, [trained, "--eps", 0], "eps must be greater than or equal to"),
        (bpd, [damaged], "damaged or truncated"),
        (sample, [damaged], "damaged or truncated"),
        (
            sample,
            [trained, "--sampler", "annealed_hmc", "--sampler_args", "score=guess"],
            "of head, in",
        ),
        (sample, [trained, "--device", "tpu"], "choose one of auto, cpu, cuda"),
    ):
        assert call(module, *arguments, *(own if "--device" not in arguments else own[:2])) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert error[-1].startswith("error: ") and message in error[-1]
