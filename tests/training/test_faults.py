"""Damaged models, records of settings and checkpoints end in a sentence, and at once."""

import json
import shutil
import struct
import time

import pytest
import torch
from irregular import KINDS, put_irregular
from safetensors.torch import load_file, save, save_file

from ebm_app.config import EBMConfig, PathConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.flow import Flow, FlowConfig
from ebm_app.training.settings import record, resolve
from ebm_app.utils.errors import UserError

IMAGE = (1, 8, 8)
MODELS = {
    "latent": (
        EBM,
        EBMConfig(
            *("digits", IMAGE, 17),
            space="gaussian",
            net_input="x",
            path=PathConfig("vp", 0.5),
            net=UNetConfig((8, 16), attention_levels=(1,), num_heads=2),
        ),
    ),
    "spline": (Flow, FlowConfig("digits", IMAGE, 17, "spline")),
}
#: what stands in the place of a value of config.json: none of these may do harm
VALUES = (
    *(None, True, "", "a\nb", "x" * 300_000, [], {}, [[]], {"a": 1}, ["8"], [-1], [None]),
    *(0, -1, 3, 255, 256, 2**31, 2**63, -(2**64), 0.5, 1e-12, 1e300, 5e-324, 17.5),
    *([1, 8], [3, 8, 8], [4096] * 3, [4096] * 8, [1] * 300, "spline", "copula", "normalised"),
)
#: name -> what becomes of the bytes of config.json
TEXTS = {
    "empty": lambda text: b"",
    "no object": lambda text: b"[]",
    "deep": lambda text: b"[" * 100_000,
    "long number": lambda text: b'{"format_version": ' + b"9" * 5000 + b"}",
    "not finite": lambda text: text.replace(b"17", b"NaN"),
    "bytes": lambda text: bytes(range(256)),
    "another version": lambda text: text.replace(b'format_version": 1', b'format_version": 2'),
    "another kind": lambda text: text.replace(b'"kind": "', b'"kind": "no '),
}
#: and of model.safetensors
BYTES = {
    "no bytes": lambda content: b"",
    "cut head": lambda content: content[:20],
    "cut weights": lambda content: content[:-9],
    "longer": lambda content: content + b"\0" * 9,
    "no length": lambda content: struct.pack("<Q", 0) + content[8:],
    "long head": lambda content: struct.pack("<Q", 2**40) + content[8:],
    "others": lambda content: save({"a": torch.zeros(3)}),
}
#: name -> what becomes of one tensor
TENSORS = {
    "nan": lambda value: value * torch.nan,
    "infinite": lambda value: value + torch.inf,
    "integers": lambda value: value.to(torch.int64),
    "complex": lambda value: value.to(torch.complex64),
    "none": lambda value: value.flatten()[:0],
    "another": lambda value: value[None],
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    for name, (kind, config) in MODELS.items():
        kind(config).save_pretrained(folder / name)
    return folder


@pytest.fixture(params=MODELS)
def model(request, originals, tmp_path):
    """(class, a copy of the folder of a whole model)."""
    shutil.copytree(originals / request.param, tmp_path / "model")
    return MODELS[request.param][0], tmp_path / "model"


def sentence_of(call):
    """What is said where a call fails, None where it does not."""
    begin = time.perf_counter()
    try:
        call()
    except UserError as error:
        assert len(str(error)) < 400 and "\n" not in str(error), str(error)
        return str(error)
    finally:
        assert time.perf_counter() - begin < 5
    return None


def refused(model):
    kind, folder = model
    return sentence_of(lambda: kind.from_pretrained(folder))


def places(data, path=()):
    """The paths of all values inside JSON data."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def with_faults(whole):
    """JSON data with another value, or none, at each of its places in turn."""
    for index, (*path, key) in enumerate(places(whole)):
        # some of the values for each place, others for the next one
        for value in (*VALUES[index % 8 :: 8], "deleted"):
            data = json.loads(json.dumps(whole))
            parent = data
            for step in path:
                parent = parent[step]
            parent[key] = value
            if value == "deleted":
                del parent[key]
            yield data


def test_a_wrong_value_of_a_configuration_is_said_or_does_no_harm(model):
    kind, folder = model
    for data in with_faults(json.loads((folder / "config.json").read_text())):
        (folder / "config.json").write_text(json.dumps(data))
        sentence_of(lambda: kind.from_pretrained(folder))


def test_a_wrong_value_of_recorded_settings_is_said_or_does_no_harm():
    digits = load_images("digits")
    whole = json.loads(json.dumps(record(*resolve(digits, {}))))
    for data in with_faults(whole):
        sentence_of(lambda: resolve(digits, {}, data))  # noqa: B023 - called at once


@pytest.mark.parametrize("name", [*TEXTS, *BYTES])
def test_damaged_files_are_refused(model, name):
    path = model[1] / ("config.json" if name in TEXTS else "model.safetensors")
    path.write_bytes((TEXTS | BYTES)[name](path.read_bytes()))
    assert refused(model)


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS)
def test_other_weights_are_refused(model, change):
    file = model[1] / "model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    save_file({**weights, name: change(weights[name]).contiguous()}, file)
    assert refused(model)
    save_file({key: value for key, value in weights.items() if key != name}, file)
    assert "lacks" in refused(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_is_no_file_is_never_waited_for(model, name, kind, monkeypatch):
    monkeypatch.chdir(model[1])
    (model[1] / name).unlink()
    put_irregular(model[1] / name, kind)
    assert refused(model)
