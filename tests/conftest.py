"""Shared fixtures and helpers: tiny data and models, scripts as modules, and the web app."""

import importlib.util
import io
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ebm_app.anomaly import AnomalyDetector
from ebm_app.command_line import run_script
from ebm_app.config import EBMConfig
from ebm_app.data.datasets import ImageData, load_images
from ebm_app.data.pictures import to_uint8
from ebm_app.ebm import EBM
from ebm_app.evaluation.reference import save_bits
from ebm_app.flow import Flow
from ebm_app.nets.unet import UNetConfig
from ebm_app.training.build import make_config
from ebm_app.training.recipes import recipe
from ebm_app.training.settings import with_settings
from ebm_app.utils.errors import UserError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
#: Environment of scripts in other processes
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
#: Settings of a run of a moment, as keyword arguments
SMALL = {"block_out_channels": (8,), "norm_num_groups": 4, "num_nodes": 8, "dropout": 0.0}
SMALL |= {"train_batch_size": 4, "validation_images": 4, "validation_repeats": 1, "device": "cpu"}
SMALL |= {"mixed_precision": "no"}
SMALL |= {"num_preview_images": 0, "logging_steps": 1, "lr_warmup_steps": 2, "ema_decay": 0.9}
#: Metrics that differ between two identical runs
SPEEDS = ("images_per_second", "core_seconds")
#: Folder of configuration files
CONFIGS = tempfile.TemporaryDirectory()

#: User and password of the web app
AUTH = ("user", "word")
LOGIN = dict(zip(("username", "password"), AUTH, strict=True))
#: Models of the web app
NET = UNetConfig((8,), norm_num_groups=4)
GREY = EBMConfig("digits", (1, 8, 8), 17, net=NET, t_margin=1e-4, num_nodes=8)
COLOUR = EBMConfig("folder:photos", (3, 4, 8), 256, net=NET, t_margin=1e-4, num_nodes=8)


def config_flags(name: str, settings: dict) -> list[str]:
    """Write settings to a JSON file and return the flags that read it."""
    path = Path(CONFIGS.name, f"{name}.json")
    path.write_text(json.dumps(settings))
    return ["--config", str(path)]


#: Flags of a model that trains in seconds
TINY = config_flags("tiny", SMALL)


def load_script(path: str) -> ModuleType:
    """Import a script by its path in the repository, such as "train/ebm.py"."""
    name = "script_" + path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def call(module: ModuleType, *args: object) -> int:
    return run_script(module.main, [str(arg) for arg in args])


def figures_of(module: ModuleType, *args: object) -> dict:
    """Run a script and return its figures."""
    return module.main([str(arg) for arg in args])


def config_of(data: ImageData, flow: Flow | None = None, **settings) -> EBMConfig:
    """Return the configuration of a model by the recipe of a data set and other settings."""
    space = "ambient" if flow is None else flow.config.space
    base = recipe(data.name, data.image_shape, data.num_levels, space=space)
    return make_config(with_settings(base, settings), data, flow)


def random_images(num: int, side: int) -> torch.Tensor:
    """Return the same images (num, 1, side, side) of 17 levels at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(17, (num, 1, side, side), generator=generator, dtype=torch.uint8)


def without_speeds(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key not in SPEEDS} for row in rows]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def equal_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def float64() -> None:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def script():
    return load_script


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    """Folder of 24 grey images of 8 x 8 pixels: 20 to train on, 2 for validation, 2 for test."""
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(5)
    for index in range(24):
        pixels = torch.randint(0, 256, (8, 8), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{index:02d}.png")
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())


def write_mnist(folder: Path, sizes: tuple[int, ...] = (60, 12)) -> None:
    """Write MNIST files in which all pixels of image n are n, with the label n mod 10."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, num in zip(("train", "t10k"), sizes, strict=True):
        values = np.arange(num).astype(np.uint8)
        write_idx(folder / f"{part}-labels-idx1-ubyte", values % 10)
        images = np.tile(values[:, None, None], (1, 28, 28))
        write_idx(folder / f"{part}-images-idx3-ubyte", images)


def error_of(call, *args, **kwargs) -> str:
    """Return the message of the UserError that a call raises."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def digit(index: int = 0) -> torch.Tensor:
    """Return a held-out digit (1, 1, 8, 8) in [0, 1]."""
    return load_images("digits").test[index : index + 1] / 16


def save_picture(path: Path, pixels: np.ndarray, **options) -> str:
    """Save pixels as an image file and return its path."""
    Image.fromarray(pixels.astype(np.uint8)).save(path, **options)
    return str(path)


def encoded(image: Image.Image, kind: str = "png", **options) -> bytes:
    """Return the content of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def deep_png(colour_type: int, channels: int) -> bytes:
    """Return a PNG of 6x5 pixels with 16 bits per channel, which Pillow would cut to 8."""
    content = encoded(Image.new("RGB", (6, 5)))[:8]
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 6, 5, 16, colour_type, 0, 0, 0)),
        (b"IDAT", zlib.compress((b"\0" + bytes(6 * 2 * channels)) * 5)),
        (b"IEND", b""),
    ):
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    return content


def save_digit(path: Path, index: int = 0) -> str:
    """Save a held-out digit, enlarged ten times, and return its path."""
    return save_picture(path, to_uint8(digit(index))[0, ..., 0].repeat(10, 0).repeat(10, 1))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def served(arguments: list[str], folder: Path, port: int | None = None) -> Iterator[str]:
    """Serve the web app with ui/app.py in another process, and yield its address. The process is
    killed at the end."""
    command = [sys.executable, str(ROOT / "ui" / "app.py"), *arguments]
    command += ["--port", str(port or free_port())]
    run = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    with run:
        try:
            yield run.stdout.readline().split("/ - ")[0]
        finally:
            run.kill()


def pixels(picture) -> np.ndarray:
    return np.asarray(picture if isinstance(picture, Image.Image) else Image.open(picture))


@pytest.fixture(scope="session")
def page_files(tmp_path_factory) -> None:
    """Temporary folders for the files of the web app, and no bundled models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        patch.setenv("NO_PROXY", "")
        patch.setenv("no_proxy", "")
        patch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
        patch.setattr("ebm_app.web.__main__.BUNDLED", tmp_path_factory.mktemp("none"))
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Folder with tiny, untrained models: "grey" with a detector and a checkpoint, "colour", and
    the class-conditional "labelled"."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    configs = {"grey": GREY, "grey/checkpoint-5": GREY, "colour": COLOUR}
    configs["labelled"] = replace(GREY, num_classes=3)
    for name, config in configs.items():
        ebm = EBM(config)
        torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.1)
        ebm.save_pretrained(folder / name)
    held_out, grey = load_images("digits").test, EBM.from_pretrained(folder / "grey")
    AnomalyDetector(folder / "grey").fit(held_out[:80]).save(folder / "grey")
    save_bits(
        folder / "grey", grey, grey.likelihood(held_out[:20], repeats=1).bits_per_dim, "test"
    )
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="session")
def models(page_files, folder):
    from ebm_app.web.__main__ import find_models
    from ebm_app.web.models import Models

    return Models(find_models(str(folder / "grey"), str(folder)))


@pytest.fixture(scope="session")
def page(models):
    from ebm_app.web.app import build_app

    return build_app(models, seed=5)


@pytest.fixture(scope="session")
def address(page):
    from ebm_app.web.server import serve

    yield serve(page, "127.0.0.1", free_port(), AUTH)
    page.close(verbose=False)


@pytest.fixture(scope="session")
def client(address):
    from gradio_client import Client

    return Client(address, auth=AUTH, verbose=False)


@pytest.fixture(scope="session")
def browser():
    with load_script("tools/screenshots.py").open_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser, address):
    """Return a function that opens the page in a new window. Fails if the page made an external
    request."""
    contexts, hosts = [], set()

    def visit(address_of="", width=1280, theme="light", query=""):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        context.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        context.request.post(f"{address}login", form=LOGIN)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{address}{address_of}?__theme={theme}{query}")
        page.get_by_role("link", name="Score", exact=True).wait_for(timeout=60_000)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert hosts - {None} == {"127.0.0.1"}  # None: data URLs
