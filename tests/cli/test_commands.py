"""The ``ebm`` program: its commands, and what a user's module adds to them."""

import dataclasses
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest
import torch
from conftest import GREY

from ebm_app import EBM
from ebm_app.cli import bpd, sample
from ebm_app.cli.__main__ import ALIASES, COMMANDS, main
from ebm_app.cli.names import NAMES, OLD_ESTIMATORS
from ebm_app.likelihood import ALIASES as ALIASES_OF_ESTIMATORS
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.paths import PATHS
from ebm_app.sampling import SAMPLERS
from ebm_app.training import settings
from ebm_app.utils.errors import user_message
from ebm_app.utils.registry import import_extension

MODULE = """
from ebm_app.paths import PATHS, LinearVPPath
PATHS["mine"] = type("Mine", (LinearVPPath,), {})
"""


@pytest.fixture
def ebm(monkeypatch):
    """Run the program on words; return its exit code."""

    def ebm(*words):
        monkeypatch.setattr(sys, "argv", ["ebm", *map(str, words)])
        return main()

    return ebm


def test_every_command_is_a_module_and_listed(ebm, capsys):
    assert ebm() == 0 and ebm("fly") == 2
    printed = capsys.readouterr().out
    for name, path in COMMANDS.items():
        module = import_module(f"ebm_app.cli.{path}")
        assert callable(module.main) and module.Arguments and f"  {name} " in printed
    assert set(ALIASES.values()) <= COMMANDS.keys()
    assert ebm("--version") == 0 and capsys.readouterr().out == f"ebm_app {version('ebm_app')}\n"


def test_help_has_one_example_a_line(capsys):
    with pytest.raises(SystemExit):
        bpd.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    examples = [line for line in lines if line.startswith("ebm evaluate")]
    assert len(examples) == bpd.__doc__.count("\nebm evaluate") > 1


def test_names_in_help_are_those_of_the_registries():
    assert {*OLD_ESTIMATORS.split()} == {*ALIASES_OF_ESTIMATORS}
    registries = {**settings.NAMES, "path": PATHS, "sampler": SAMPLERS, "estimator": ESTIMATORS}
    for kind, names in NAMES.items():
        assert {*names.split()} == {*registries[kind]}
    items = [*dataclasses.fields(bpd.Arguments), *dataclasses.fields(sample.Arguments)]
    texts = {item.name: item.metadata.get("help") for item in items}
    assert all(f"{name}: " in texts["estimator"] for name in [*ESTIMATORS, "all"])
    assert all(name in texts["dequantisation"] for name in DEQUANTISERS)
    for name, kind in SAMPLERS.items():
        assert f"{name}: " in texts["sampler"]
        for field in dataclasses.fields(kind):
            number = f"{field.default:g}" if type(field.default) is float else field.default
            assert field.name == kind.counts or f"{field.name}={number}" in texts["sampler_args"]


def test_mistakes_are_reported_before_slow_imports(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    mistakes = {
        "unknown estimator 'a'": ["evaluate", "digits", "--estimator", "a"],
        "unknown estimator 'b'": ["score", "digits", str(tmp_path), "--estimator", "b"],
        "unknown objective 'c'": ["train", "--objective", "c", "--output_dir", "d"],
        "unknown sampler 'e'": ["sample", "digits", "--sampler", "e"],
        f"{tmp_path} already holds a run": ["train", "--output_dir", str(tmp_path)],
        "'f' is not a folder": ["score", "digits", "f"],
        "'g' is not a folder": ["anomaly", "digits", "g"],
        "'h' is not a folder": ["anomaly", "--fit", "h"],
    }
    code = f"""import sys; from ebm_app.cli.__main__ import main
for words in {[*mistakes.values()]}:
    sys.argv[1:] = words
    assert main() == 2 and "torch" not in sys.modules, words"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(message in done.stderr for message in mistakes)


def test_module_of_the_user_extends_every_command(ebm, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_paths.py").write_text(MODULE)
    sample = ["sample", tmp_path / "model", "--num_images", 1, "--num_steps", 2, "--device", "cpu"]
    try:
        import_extension("my_paths")
        model = EBM(dataclasses.replace(GREY, path=type(GREY.path)("mine")))
        torch.nn.init.normal_(model.model.net.unet.conv_out.weight, std=0.1)
        model.save_pretrained(tmp_path / "model")
        del PATHS["mine"], sys.modules["my_paths"]
        assert ebm(*sample) == 2 and "'mine'" in capsys.readouterr().err
        assert ebm(*sample, "--import", "my_paths") == 0
    finally:
        PATHS.pop("mine", None)
    for name in ("no_such_module", ""):
        assert ebm(*sample, "--import", name) == 2 and "--import" in capsys.readouterr().err


def test_failed_imports_of_users_are_explained():
    message = user_message(ModuleNotFoundError("no", name="gradio.components"))
    assert "pip install 'ebm_app[ui]'" in message
    assert user_message(ModuleNotFoundError("no", name="other")) is None
    error = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    assert user_message(error).startswith("Out of memory")
