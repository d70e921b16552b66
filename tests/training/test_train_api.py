"""``ebm_app.train``: the run of the script, from tensors."""

import json

import pytest
import torch
from conftest import TINY, error_of
from safetensors.torch import load_file

from ebm_app import EBM, train
from ebm_app.cli.command_line import run_script
from ebm_app.data.images import ImageData, load_images

#: the settings of TINY, by keyword
SMALL = {"block_out_channels": (8,), "norm_num_groups": 4, "num_nodes": 8, "dropout": 0.0}
SMALL |= {"train_batch_size": 4, "validation_images": 4, "validation_repeats": 1, "device": "cpu"}
SMALL |= {"num_preview_images": 0, "logging_steps": 1, "lr_warmup_steps": 2, "ema_decay": 0.9}
IMAGES = torch.randint(17, (12, 1, 8, 8), dtype=torch.uint8)


def weights_of(run):
    return load_file(run / "model.safetensors")


@pytest.mark.process
def test_tensors_and_the_script_train_the_same_weights_and_resume_each_other(script, tmp_path):
    data, tensors, files = load_images("digits"), tmp_path / "tensors", tmp_path / "files"
    images = data.train.double() / 16
    steps = {"max_train_steps": 4, "checkpointing_steps": 2, "validation_steps": 2}
    given = {"dataset": "digits", "num_levels": 17, "validation": data.validation}
    ebm = train(images, tensors, **given, **SMALL, **steps)
    flags = [part for name, value in steps.items() for part in (f"--{name}", str(value))]
    main = script("train/ebm.py").main
    own = ["--dataset", "digits", "--output_dir", str(files), *TINY]
    assert run_script(main, [*own, *flags]) == 0
    ours, theirs = weights_of(tensors), weights_of(files)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(ours[name], value) for name, value in ebm.state_dict().items())
    settings = [json.loads((run / "run.json").read_text())["settings"] for run in (tensors, files)]
    assert settings[0] == settings[1]
    own[3] = str(tensors)
    assert run_script(main, [*own, *flags, "--resume_from_checkpoint", "latest"]) == 0


def test_what_is_returned_samples_scores_and_loads_again(tmp_path):
    ebm = train(IMAGES, tmp_path / "run", num_levels=17, max_train_steps=2, **SMALL)
    assert not ebm.training and ebm.config.num_levels == 17
    drawn = ebm.sample(2, seed=1)
    assert drawn.shape == (2, 1, 8, 8)
    ebm.save_pretrained(tmp_path / "copy")
    again = EBM.from_pretrained(tmp_path / "copy")
    assert torch.equal(again.likelihood(drawn).log_prob, ebm.likelihood(drawn).log_prob)
    message = error_of(train, IMAGES, tmp_path / "run", num_levels=17, **SMALL)
    assert "already holds a run" in message
    more = {**SMALL, "overwrite_output_dir": True, "max_train_steps": 1}
    assert train(IMAGES, tmp_path / "run", num_levels=17, **more)


def test_a_tenth_is_held_out_and_no_image_is_in_both_parts():
    images = torch.arange(40, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    for num, held_out in ((40, 4), (9, 2)):
        data = ImageData.from_tensors(images[:num], None, 256)
        assert len(data.validation) == held_out
        seen = torch.cat([data.train, data.validation])[:, 0, 0, 0]
        assert sorted(seen.tolist()) == list(range(num))


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        (IMAGES[:, 0], {}, "Expected images (N, C, H, W)"),
        (IMAGES, {"validation": IMAGES[..., :4]}, "of equal size"),
        (IMAGES[:2], {}, "at least 3 images"),
        (IMAGES, {"num_levels": 8}, "levels of 0 to 7"),
        (IMAGES, {"colour": 1}, "unknown key colour"),
        (IMAGES, {"learning_rate": "fast"}, "learning_rate must be a valid number, got 'fast'"),
    ],
)
def test_mistakes_are_explained(tmp_path, images, settings, message):
    assert message in error_of(train, images, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
