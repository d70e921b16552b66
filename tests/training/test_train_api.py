"""``ebm_app.train``: the run of train/ebm.py, from tensors."""

import pytest
import torch
from conftest import TINY, error_of
from runs import SMALL, equal_tensors, weights_of

from ebm_app import EBM, train
from ebm_app.cli.command_line import run_script
from ebm_app.data.images import load_images
from ebm_app.utils.files import read_json

IMAGES = torch.randint(17, (12, 1, 8, 8), dtype=torch.uint8)


@pytest.mark.process
def test_tensors_and_script_train_the_same_weights(script, tmp_path):
    data, tensors, files = load_images("digits"), tmp_path / "tensors", tmp_path / "files"
    images = data.train.double() / 16
    steps = {"max_train_steps": 4, "checkpointing_steps": 2, "validation_steps": 2}
    options = {"dataset": "digits", "num_levels": 17, "validation": data.validation}
    ebm = train(images, tensors, **options, **SMALL, **steps)
    flags = [word for name, value in steps.items() for word in (f"--{name}", str(value))]
    main = script("train/ebm.py").main
    own = ["--dataset", "digits", "--output_dir", str(files), *TINY]
    assert run_script(main, [*own, *flags]) == 0
    assert equal_tensors(weights_of(tensors), weights_of(files))
    assert equal_tensors(weights_of(tensors), dict(ebm.state_dict()))
    settings = [read_json(run / "run.json")["settings"] for run in (tensors, files)]
    assert settings[1].pop("flags")["dataset"] == "digits"
    assert settings[0] == settings[1]
    own[3] = str(tensors)
    assert run_script(main, [*own, *flags, "--resume_from_checkpoint", "latest"]) == 0


def test_trained_model_samples_scores_and_loads(tmp_path):
    ebm = train(IMAGES, tmp_path / "run", num_levels=17, max_train_steps=2, **SMALL)
    assert not ebm.training and ebm.config.num_levels == 17
    drawn = ebm.sample(2, seed=1, num_steps=2)
    ebm.save_pretrained(tmp_path / "copy")
    again = EBM.from_pretrained(tmp_path / "copy")
    assert torch.equal(again.log_prob(drawn), ebm.log_prob(drawn))


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        (IMAGES, {"validation": IMAGES[..., :4]}, "size"),
        (IMAGES[:2], {}, "at least 3"),
        (IMAGES, {"learning_rate": "fast"}, "learning_rate"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, images, settings, message):
    assert message in error_of(train, images, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
