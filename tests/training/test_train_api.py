"""``ebm_app.train``: runs from tensors, an accelerate configuration."""

import shutil

import numpy as np
import pytest
import torch
from conftest import (
    SMALL,
    call,
    config_flags,
    equal_tensors,
    error_of,
    random_images,
    weights_of,
)

from ebm_app import EBM, train
from ebm_app.data.datasets import load_images
from ebm_app.utils.files import read_json

IMAGES = random_images(12, 8)


def test_tensors_and_script_train_the_same_weights(script, tmp_path, capsys):
    """A resume by the script needs the folder only."""
    data, tensors, files = load_images("digits"), tmp_path / "tensors", tmp_path / "files"
    steps = {"max_train_steps": 4, "checkpointing_steps": 2, "validation_steps": 2}
    options = {"dataset": "digits", "num_levels": 17, "validation": data.validation}
    ebm = train(data.train.double() / 16, tensors, **options, **SMALL, **steps)
    flags = ["--dataset", "digits", *config_flags("steps", SMALL | steps)]
    module = script("train/ebm.py")
    assert call(module, *flags, "--output_dir", files) == 0
    assert equal_tensors(weights_of(tensors), weights_of(files))
    assert equal_tensors(weights_of(tensors), dict(ebm.state_dict()))
    settings = [read_json(run / "run.json")["settings"] for run in (tensors, files)]
    for each in settings:
        del each["train"]["output_dir"], each["train"]["config"]
    assert settings[0] == settings[1]
    expected = weights_of(files)
    shutil.rmtree(files / "checkpoint-4")
    resume = [module, "--output_dir", files, "--resume_from_checkpoint", "latest"]
    assert call(*resume, "--learning_rate", 0.5) == 2
    assert "learning_rate" in capsys.readouterr().err
    assert call(*resume) == 0 and equal_tensors(weights_of(files), expected)


def test_training_returns_a_model_and_keeps_the_generator(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    steps = {"num_levels": np.int64(17), "max_train_steps": np.int32(2)}
    ebm = train(IMAGES.numpy(), tmp_path / "run", **steps, **SMALL)
    assert torch.equal(torch.rand(3), expected)
    assert not ebm.training and ebm.config.num_levels == 17
    ebm.save_pretrained(tmp_path / "copy")
    again = EBM.from_pretrained(tmp_path / "copy")
    assert torch.equal(again.log_prob(IMAGES), ebm.log_prob(IMAGES))


#: Word of the error, and settings
INVALID = {
    "(12, 1, 8, 4)": {"validation": IMAGES[..., :4]},
    "learning_rate": {"learning_rate": "fast"},
    "'lr'": {"lr": 3},
    "wandb": {"report_to": "wandb"},
    "dry_run": {"dry_run": True},
    "resolution": {"resolution": 4},
    "labels": {"labels": torch.zeros(12, dtype=torch.long), "classes": "none"},
}


@pytest.mark.parametrize("word", INVALID)
def test_invalid_arguments_are_refused(word, tmp_path):
    settings = {"num_levels": 17, **SMALL, **INVALID[word]}
    assert word in error_of(train, IMAGES, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
