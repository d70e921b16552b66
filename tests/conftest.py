"""What several test files use: tiny image data, a tiny model, and the scripts as modules."""

import importlib.util
import os
import struct
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from ebm_app.ebm import EBM
from ebm_app.errors import UserError
from ebm_app.models.config import EBMConfig
from ebm_app.nets.unet import UNetConfig
from ebm_app.runs.cli import run_script

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
#: flags of a model that trains in a moment
TINY = (
    "--block_out_channels 8 8 --norm_num_groups 4 --num_nodes 8 --dropout 0 "
    "--train_batch_size 4 --validation_images 4 --validation_repeats 1 --num_preview_images 4 "
    "--logging_steps 1 --lr_warmup_steps 2 --ema_decay 0.9 --device cpu"
).split()

#: models that the web UI is tried with
NET = UNetConfig((8, 8), norm_num_groups=4)
GREY = EBMConfig("digits", (1, 8, 8), 17, net=NET, eps=1e-4, num_nodes=8)
COLOUR = EBMConfig("folder:photos", (3, 4, 8), 256, net=NET, eps=1e-4, num_nodes=8)


@pytest.fixture
def script() -> "callable":
    """Load a script by its path in the tree, e.g. "train/ebm.py"."""

    def load(path: str) -> ModuleType:
        name = "script_" + path.replace("/", "_").removesuffix(".py")
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def here(script, monkeypatch):
    """A script by its path, whose trainings, if it starts any, run in this process."""

    def train(path, flags, output_dir):
        main = script(f"train/{path.name}").main
        assert run_script(main, [*flags, "--output_dir", str(output_dir)]) == 0

    def study(path):
        found = script(path)
        monkeypatch.setattr(found, "train_once", train, raising=False)
        return found

    return study


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    """Twenty-four grey 8 x 8 images, as a user would keep them."""
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for index in range(24):
        pixels = torch.randint(0, 256, (8, 8), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{index:02d}.png")
    return folder


def write_mnist(folder: Path) -> None:
    """A data set of noise in the files that torchvision reads."""
    folder.mkdir(parents=True)
    numbers = np.random.RandomState(0)
    for part, num in (("train", 60), ("t10k", 12)):
        pixels = numbers.randint(0, 256, (num, 28, 28)).astype(np.uint8)
        head = struct.pack(">IIII", 0x803, num, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        labels = struct.pack(">II", 0x801, num) + bytes(num)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def error_of(call, *args, **kwargs) -> str:
    """The one sentence of the UserError that a call raises."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and ": " in message, f"not one sentence: {message}"
    return message


#: the modules of the page, by the names that tests use
PAGE = {
    "app": "app",
    "card": "diagnostics.card",
    "checks": "diagnostics.checks",
    "compare": "score.compare",
    "diagnostics": "diagnostics.tab",
    "draw": "score.canvas",
    "ending": "ending",
    "examples": "score.examples",
    "gaussian_information": "information.gaussian",
    "generate": "generate.tab",
    "held_out": "score.held_out",
    "information": "information.tab",
    "live": "live",
    "log_z": "diagnostics.log_z",
    "models": "models",
    "paired_data": "information.paired_data",
    "preprocess": "score.uploads",
    "sample_animation": "generate.animation",
    "sample_files": "generate.files",
    "sample_run": "generate.run",
    "sample_scores": "generate.likelihoods",
    "sample_settings": "generate.settings",
    "score": "score.tab",
    "score_many": "score.many_images",
    "scoring": "score.one_image",
    "server": "server",
    "shared": "shared",
    "toy": "toy.tab",
    "trial_report": "toy.report",
}


@pytest.fixture(scope="module")
def ui(tmp_path_factory) -> SimpleNamespace:
    """The modules of the page; no bundled model is offered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        patch.setenv("NO_PROXY", "")
        patch.setenv("no_proxy", "")
        patch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
        modules = SimpleNamespace(
            **{name: import_module(f"ebm_app.web.{module}") for name, module in PAGE.items()}
        )
        patch.syspath_prepend(str(ROOT / "tools"))
        for name in ("browser", "load", "times"):
            setattr(modules, name, import_module(name))
        patch.setattr(modules.models, "BUNDLED", tmp_path_factory.mktemp("none"))
        yield modules


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the runs "grey", with a checkpoint, and "colour": tiny, untrained models."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, config in (("grey", GREY), ("grey/checkpoint-5", GREY), ("colour", COLOUR)):
        ebm = EBM(config)
        torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.1)
        ebm.save_pretrained(folder / name)
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="module")
def models(ui, folder):
    return ui.app.Models(ui.app.find_models(str(folder / "grey"), str(folder)))
