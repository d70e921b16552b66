"""Damage to what a user may hand over: JSON texts, safetensors files, and files that are none."""

import copy
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load, save

from ebm_app.io.errors import UserError

MOST_SECONDS, MOST_BYTES, MOST_CHARACTERS = 2.0, 2**30, 400
#: values of every kind, and of every size
VALUES = [
    *(None, True, False, "", "a", "\0", "nan", "é" * 50, "x" * 300_000, [], {}, [[]], {"a": 1}),
    *(0, 1, -1, 2, 3, 7, 8, 9, 255, 256, 257, 4096, 2**31, 2**31 - 1, 2**63, -(2**64), 10**18),
    *(0.5, -0.5, 1e-12, 1e300, -1e300, 5e-324, 1e6, 10**6, 1.5, 17.5, 1e-7),
    *([1, 8, 8], [3, 8, 8], [1, 8], [4096] * 3, [4096] * 8, [1] * 300, ["8"], [0], [-1], [None]),
    *("vp", "linear_vp", "schrodinger_bridge", "ambient", "gaussian", "copula", "spline"),
    *("raw", "normalised", "moments", "clock", "time", "x", "flow", "energy model"),
]
#: texts that stand in the place of a value
RAW = ["NaN", "Infinity", "-Infinity", "9" * 5000, "1e400", "1" + "0" * 400, '"\\ud800"', "01"]
RAW += ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "[" * 100_000, "'a'", "nothing", "1e"]
RAW += ["0." + "1" * 5000, "-" * 10, '"\\u0000"', "[[],[]," * 1000, "1" * 18 + ".5e-300", ""]
HOLE = "@@hole@@"


def places(data, path=()):
    """The paths of all values inside JSON data."""
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        found += places(value, (*path, key)) if isinstance(value, (dict, list)) else [(*path, key)]
    return found


def mutated_json(data, rng):
    """JSON as bytes, with one to three of its values, or its text, changed."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(("value", "value", "value", "delete", "add", "raw", "swap"))
        where = places(data)
        if not where:
            break
        *path, key = rng.choice(where)
        parent = data
        for step in path:
            parent = parent[step]
        if change == "delete":
            del parent[key]
        elif change == "add" and isinstance(parent, dict):
            parent[rng.choice(("colour", "self", "c", "k" * 100_000, "kind", "a\nb"))] = 1
        elif change == "raw":
            parent[key] = HOLE
        elif change == "swap" and len(where) > 1:
            *other, last = rng.choice(where)
            source = data
            for step in other:
                source = source[step]
            parent[key] = copy.deepcopy(source[last])
        else:
            parent[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(data).replace(json.dumps(HOLE), rng.choice(RAW))
    return mutated_text(text.encode(), rng) if rng.random() < 0.2 else text.encode()


def mutated_text(content, rng):
    """Bytes that were cut, doubled, overwritten or put into another encoding."""
    kind = rng.choice(("bom", "cut", "bytes", "binary", "utf16", "top", "twice", "empty", "keys"))
    at = rng.randrange(len(content) + 1)
    if kind == "bom":
        return b"\xef\xbb\xbf" + content
    if kind == "cut":
        return content[:at]
    if kind == "bytes":
        return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at + 3 :]
    if kind == "binary":
        return rng.randbytes(at)
    if kind == "utf16":
        return content.decode(errors="replace").encode("utf-16")
    if kind == "top":
        values = (b"[]", b"3", b"null", b'"a"', b"[" * 100_000, b"{}", b"9" * 5000, b"NaN")
        return rng.choice(values)
    if kind == "keys" and content[:1] == b"{":  # each key twice
        return content[:-1] + b"," + content[1:]
    return content + content if kind == "twice" else b""


def mutated_tensors(content, rng):
    """A safetensors file with other bytes, another header or other tensors."""
    size = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = rng.choice(("cut", "length", "header", "header", "tensors", "tensors", "bytes", "long"))
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    if kind == "length":
        lengths = (0, 1, size - 1, size + 1, 2**31, 2**40, 2**63, 2**64 - 1, rng.randrange(2**20))
        return struct.pack("<Q", rng.choice(lengths)) + content[8:]
    if kind == "long":
        return content + bytes(rng.randrange(1, 100))
    if kind == "bytes":
        at = rng.randrange(len(content))
        return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at + 3 :]
    if kind == "header":
        text = mutated_json(header, rng)
        return struct.pack("<Q", len(text)) + text + body
    return save(mutated_weights(load(content), rng))


def mutated_weights(weights, rng):
    """Tensors of which one is another."""
    name = rng.choice([key for key, tensor in weights.items() if tensor.numel()])
    value = weights[name]
    change = rng.choice(("nan", "inf", "lose", "more", "dtype", "shape", "empty", "long"))
    if change in ("nan", "inf"):
        value = value.clone()
        value.view(-1)[rng.randrange(value.numel())] = float(change)
        return {**weights, name: value}
    if change == "lose":
        return {key: tensor for key, tensor in weights.items() if key != name}
    if change == "more":
        return {**weights, "m" * rng.choice((1, 300_000)): torch.zeros(2)}
    if change == "dtype":
        kinds = (torch.float16, torch.float64, torch.bool, torch.int8, torch.uint8, torch.bfloat16)
        kinds += (torch.int64, torch.complex64, torch.float8_e4m3fn)
        return {**weights, name: value.to(rng.choice(kinds))}
    if change == "shape":
        return {**weights, name: value.flatten().repeat(rng.choice((1, 2)))}
    return {**weights, name: torch.zeros(0) if change == "empty" else torch.zeros(3, *value.shape)}


NO_FILES = ("folder", "fifo", "device", "random", "broken", "circle", "socket", "nothing")
NO_FILES += ("locked", "memory")


def put_no_file(path, kind):
    """Make something that is no plain file, or not a readable one; a kind of ``NO_FILES``."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    elif kind == "locked":
        path.write_bytes(b"{}")
        path.chmod(0)
    elif kind != "nothing":
        targets = {"device": "/dev/zero", "random": "/dev/urandom", "broken": "nowhere"}
        targets |= {"circle": path.name, "memory": "/proc/self/mem"}
        path.symlink_to(targets[kind])


def copied(base, target, rng=None):
    """A copy of a folder in a place of its own; what was there goes."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(base, target)
    return target


class Tally:
    """What became of mutations: of each, a success, a UserError, or something else."""

    def __init__(self):
        self.counts, self.found, self.longest, self.slowest = Counter(), [], 0, 0.0
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def call(self, function, label):
        """Call ``function``; what is wrong with how it ends is kept under ``label``."""
        begin = time.perf_counter()
        try:
            with alarm(10 * MOST_SECONDS):
                function()
            kind = "success"
        except UserError as error:
            kind, text = "UserError", str(error)
            self.longest = max(self.longest, len(text))
            if len(text) >= MOST_CHARACTERS or "\n" in text:
                self.found.append((label, f"a message of {len(text)} characters: {text[:200]!r}"))
        except BaseException as error:  # whatever it is, it is the finding
            if isinstance(error, KeyboardInterrupt):
                raise
            kind = f"{type(error).__name__}"
            self.found.append((label, f"{kind}: {str(error)[:200]!r}"))
        seconds = time.perf_counter() - begin
        self.slowest = max(self.slowest, seconds)
        if seconds > MOST_SECONDS:
            self.found.append((label, f"{seconds:.1f} seconds"))
        self.counts[kind] += 1

    @property
    def growth(self):
        """Bytes that the process grew by at most."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.before

    def __str__(self):
        return (
            f"{sum(self.counts.values())} mutations: {dict(self.counts)}; slowest "
            f"{self.slowest:.2f} s, longest message {self.longest}, growth {self.growth >> 20} MiB"
        )


def check(tally):
    """No mutation ended in anything but success or a sentence."""
    print(tally)
    assert tally.found == []
    assert tally.growth < MOST_BYTES


class TookTooLong(BaseException):
    """Raised in a call that does not end by itself."""


@contextmanager
def alarm(seconds):
    """Stop what takes longer."""

    def stop(*_):
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mutate_folder(folder: Path, rng: random.Random) -> str:
    """Damage the configuration or the weights of a model's folder; what was done, in words."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    kind = rng.choice(("config", "config", "config", "weights", "weights", "no file"))
    if kind == "config":
        config.write_bytes(mutated_json(json.loads(config.read_bytes()), rng))
    elif kind == "weights":
        weights.write_bytes(mutated_tensors(weights.read_bytes(), rng))
    else:
        path, kind = rng.choice((config, weights)), rng.choice(NO_FILES)
        path.unlink()
        put_no_file(path, kind)
    return kind
