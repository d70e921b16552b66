"""Damaged models and recorded settings raise a UserError, or load without harm."""

import json
import resource
import time
from copy import copy
from itertools import cycle

import pytest
import torch
from conftest import GREY
from safetensors.torch import load, save

from ebm_app.data.datasets import load_images
from ebm_app.ebm import EBM
from ebm_app.flow import Flow, FlowConfig
from ebm_app.training.build import make_config
from ebm_app.training.recipes import DIGITS
from ebm_app.training.settings import read_settings, with_settings
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import to_dict

MODELS = {"ebm": (EBM, GREY), "flow": (Flow, FlowConfig("digits", (1, 8, 8), 17, "spline"))}
#: Values put in place of those of config.json
VALUES = (
    *(None, True, "", "a\nb", "x" * 300_000, [], {}, [[]], {"a": 1}, ["8"], [-1], [None]),
    *(0, -1, 3, 255, 256, 2**31, 2**63, -(2**64), 0.5, 1e-12, 1e300, 5e-324, 17.5),
    *([1, 8], [3, 8, 8], [4096] * 3, [4096] * 8, [1] * 300, "spline", "copula", "normalised"),
)
#: Of the values used at a place
OFFSETS = cycle(range(8))


def every_tensor(change):
    """Return a function that changes all tensors of a file."""
    return lambda content: save({name: change(value) for name, value in load(content).items()})


def first_tensor(change):
    """Return a function that changes the first tensor of a file, or deletes it for None."""

    def damage(content):
        (name, value), *others = load(content).items()
        changed = {} if change is None else {name: change(value).contiguous()}
        return save({**changed, **dict(others)})

    return damage


#: Damage to the bytes of a file
DAMAGE = {
    "deep": ("config.json", lambda text: b"[" * 100_000),
    "nested": ("config.json", lambda text: text.replace(b"17", b"[" * 400 + b"]" * 400)),
    "surrogate": ("config.json", lambda text: text.replace(b"digits", rb"\ud800")),
    "not finite": ("config.json", lambda text: text.replace(b"17", b"NaN")),
    "version": ("config.json", lambda text: text.replace(b'_version": 1', b'_version": 2')),
    "kind": ("config.json", lambda text: text.replace(b'"kind": "', b'"kind": "no ')),
    "short header": ("model.safetensors", lambda content: content[:20]),
    "nan": ("model.safetensors", first_tensor(lambda value: value * torch.nan)),
    "float8": ("model.safetensors", every_tensor(lambda value: value.to(torch.float8_e4m3fn))),
    "float32": ("model.safetensors", every_tensor(lambda x: torch.full_like(x.double(), 1e300))),
    "integers": ("model.safetensors", first_tensor(lambda value: value.to(torch.int64))),
    "other shape": ("model.safetensors", first_tensor(lambda value: value[None])),
    "missing": ("model.safetensors", first_tensor(None)),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request, tmp_path):
    kind, config = request.param
    kind(config).save_pretrained(tmp_path)
    return kind, tmp_path


def error_in(call, *args, **options):
    try:
        call(*args, **options)
    except UserError as error:
        assert len(str(error)) < 400 and "\n" not in str(error), str(error)
        return str(error)
    return None


def error_of_loading(model):
    kind, folder = model
    return error_in(kind.from_pretrained, folder)


def with_faults(data):
    """JSON data with another value, or none, at each of its places in turn."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        faults = VALUES[next(OFFSETS) :: 8]
        if isinstance(value, dict | list):
            faults = (*faults, *with_faults(value))
        for fault in (*faults, "deleted"):
            changed = copy(data)
            changed[key] = fault
            if fault == "deleted":
                del changed[key]
            yield changed


def test_faulty_config_raises_user_errors_only(model):
    path = model[1] / "config.json"
    for data in with_faults(json.loads(path.read_text())):
        path.write_text(json.dumps(data))
        error_of_loading(model)


def test_faulty_record_raises_user_errors_only(tmp_path):
    digits, path = load_images("digits"), tmp_path / "run.json"
    for data in with_faults(to_dict(DIGITS)):
        path.write_text(json.dumps({"settings": {"train": data}}))
        error_in(lambda: make_config(with_settings(DIGITS, read_settings(path)), digits))


@pytest.mark.parametrize(("name", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_refused(model, name, damage):
    path = model[1] / name
    path.write_bytes(damage(path.read_bytes()))
    assert error_of_loading(model)


def test_huge_network_with_few_weights_is_refused_quickly(model):
    kind, folder = model
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    data = json.loads((folder / "config.json").read_text())
    if kind is EBM:  # 10^11 weights
        data |= {"image_shape": [1, 4096, 4096]}
        data["net"] |= {"block_out_channels": [4096] * 8, "layers_per_block": 8}
    else:
        data |= {"image_shape": [1, 1024, 2048]}
    (folder / "config.json").write_text(json.dumps(data))
    assert "does not match" in error_of_loading(model)
    assert time.perf_counter() - began < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes
