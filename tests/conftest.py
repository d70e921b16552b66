"""What several test files use: tiny image data, a tiny model, and the scripts as modules."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from ebm_app.errors import UserError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
#: flags of a model that trains in a moment
TINY = (
    "--block_out_channels 8 8 --norm_num_groups 4 --num_nodes 8 --dropout 0 "
    "--train_batch_size 4 --validation_images 4 --validation_repeats 1 --num_preview_images 4 "
    "--logging_steps 1 --lr_warmup_steps 2 --ema_decay 0.9 --device cpu"
).split()


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


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    """Twenty-four grey 8 x 8 images, as a user would keep them."""
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for index in range(24):
        pixels = torch.randint(0, 256, (8, 8), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{index:02d}.png")
    return folder


def error_of(call, *args, **kwargs) -> str:
    """The one sentence of the UserError that a call raises."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and ": " in message, f"not one sentence: {message}"
    return message
