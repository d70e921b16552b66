"""Damaged folders, settings and records end in a sentence, at once and in little memory."""

import random
from functools import partial

import pytest
import torch
from fuzzing import Tally, check, copied, mutate_folder

from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow, FlowConfig
from ebm_app.models.config import EBMConfig, PathConfig
from ebm_app.models.unet import UNetConfig

IMAGE = (1, 8, 8)
NET = UNetConfig((8, 8), norm_num_groups=4)
MODELS = {
    "ambient": EBMConfig("digits", IMAGE, 17, net=NET),
    "latent": EBMConfig(
        *("digits", IMAGE, 17, "gaussian", {"margin": 1e-3}),
        net_input="x",
        path=PathConfig("vp", 0.5, {"beta_max": 10.0}),
        net=UNetConfig((8, 16), attention_levels=(1,), num_heads=2),
        palette=tuple(range(17)),
    ),
}
FLOWS = {
    "copula": FlowConfig("digits", IMAGE, 17, "copula"),
    "spline": FlowConfig("digits", IMAGE, 17, "spline", {"layers": 2, "hidden": 4, "bins": 3}),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Folders of whole models, with the class of each."""
    folder, found = tmp_path_factory.mktemp("whole"), []
    torch.manual_seed(0)
    for cls, configs in ((EBM, MODELS), (Flow, FLOWS)):
        for name, config in configs.items():
            cls(config).save_pretrained(folder / name)
            found.append((cls, folder / name))
    return found


def fuzz_folders(originals, tmp_path, numbers):
    tally = Tally()
    for number in numbers:
        rng = random.Random(number)
        cls, base = rng.choice(originals)
        folder = copied(base, tmp_path / "folder")
        done = mutate_folder(folder, rng)
        tally.call(partial(cls.from_pretrained, folder), f"{number} {base.name} {done}")
    return tally


def test_damaged_folders(originals, tmp_path):
    check(fuzz_folders(originals, tmp_path, range(200)))


@pytest.mark.slow
def test_many_damaged_folders(originals, tmp_path):
    check(fuzz_folders(originals, tmp_path, range(10_000)))
