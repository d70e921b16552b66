"""Damage by chance to what a user may hand over: JSON texts and safetensors files."""

import copy
import json
import shutil
import struct
import time

import torch
from safetensors.torch import load, save
from test_faults import NO_FILES, VALUES, places, put_no_file

from ebm_app.io.errors import UserError

__all__ = ["NO_FILES", "put_no_file"]
MOST_SECONDS, MOST_CHARACTERS = 2.0, 400
#: texts that stand in the place of a value
RAW = ("NaN", "Infinity", "9" * 5000, "1e400", '"\\ud800"', "01", "[" * 100_000, "nothing", "")
HOLE = "@@hole@@"


def mutated_json(data, rng):
    """JSON as bytes, with one to three of its values, or its text, changed."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        where = list(places(data))
        if not where:
            break
        *path, key = rng.choice(where)
        parent = data
        for step in path:
            parent = parent[step]
        change = rng.choice(("value", "value", "value", "delete", "add", "raw"))
        if change == "delete":
            del parent[key]
        elif change == "add" and isinstance(parent, dict):
            parent[rng.choice(("colour", "self", "k" * 100_000, "a\nb"))] = 1
        else:
            parent[key] = HOLE if change == "raw" else copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(data).replace(json.dumps(HOLE), rng.choice(RAW)).encode()
    return mutated_text(text, rng) if rng.random() < 0.2 else text


def mutated_text(content, rng):
    """Bytes that were cut, doubled, overwritten or put into another encoding."""
    at = rng.randrange(len(content) + 1)
    overwritten = content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at + 3 :]
    others = (b"\xef\xbb\xbf" + content, content[:at], overwritten, rng.randbytes(at), b"")
    others += (content.decode(errors="replace").encode("utf-16"), content + content, b"[]", b"3")
    return rng.choice(others)


def mutated_tensors(content, rng):
    """A safetensors file with other bytes, another header or other tensors."""
    size = struct.unpack("<Q", content[:8])[0]
    kind = rng.choice(("text", "length", "header", "weights", "weights"))
    if kind == "text":
        return mutated_text(content, rng)
    if kind == "length":
        lengths = (0, 1, size - 1, size + 1, 2**31, 2**40, 2**63, 2**64 - 1)
        return struct.pack("<Q", rng.choice(lengths)) + content[8:]
    if kind == "header":
        text = mutated_json(json.loads(content[8 : 8 + size]), rng)
        return struct.pack("<Q", len(text)) + text + content[8 + size :]
    weights = load(content)
    name = rng.choice([key for key, tensor in weights.items() if tensor.numel()])
    value = weights.pop(name)
    kinds = (torch.float16, torch.bool, torch.int64, torch.complex64)
    others = [value * torch.nan, value.to(rng.choice(kinds)), value[None], torch.zeros(0), None]
    other = rng.choice(others)
    return save(weights if other is None else {**weights, name: other.contiguous()})


def copied(base, target, rng=None):
    """A copy of a folder in a place of its own; what was there goes."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(base, target)
    return target


class Tally:
    """What was wrong with how calls ended: not in success, nor in a sentence, nor at once."""

    def __init__(self):
        self.found = []

    def call(self, function, label):
        """Call ``function``; what is wrong with how it ends is kept under ``label``."""
        begin = time.perf_counter()
        try:
            function()
        except UserError as error:
            if len(str(error)) >= MOST_CHARACTERS or "\n" in str(error):
                self.found.append((label, str(error)[:200]))
        except Exception as error:  # whatever it is, it is the finding
            self.found.append((label, f"{type(error).__name__}: {str(error)[:200]!r}"))
        if (seconds := time.perf_counter() - begin) > MOST_SECONDS:
            self.found.append((label, f"{seconds:.1f} seconds"))


def check(tally):
    """No call ended in anything but success or a sentence."""
    assert tally.found == []
