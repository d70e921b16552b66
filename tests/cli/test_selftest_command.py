"""The self-test by the command, on an exact model and on one with random weights."""

import json

import pytest
import torch
from conftest import NET, call
from PIL import Image

from ebm_app.cli import selftest
from ebm_app.config import EBMConfig, PathConfig
from ebm_app.ebm import EBM

FLAGS = "--limit 16 --num_times 4 --pf_ode_steps 6 --device cpu".split()


@pytest.fixture
def exact(tmp_path):
    """Images of noise of variance 0.04, and a network of zeros, which is their exact model."""
    generator = torch.Generator().manual_seed(0)
    for split, num in (("train", 2), ("validation", 2), ("test", 40)):
        (tmp_path / "noise" / split).mkdir(parents=True)
        for index in range(num):
            x = 0.2 * torch.randn(8, 8, generator=generator)
            pixels = (128 * (x + 1)).floor().to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "noise" / split / f"{index}.png")
    name, path = f"folder:{tmp_path / 'noise'}", PathConfig(c=0.04)
    EBM(EBMConfig(name, (1, 8, 8), 256, eps=1e-6, path=path, net=NET)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.process
def test_exact_model_passes_and_random_one_fails(exact, folder, capsys, tmp_path):
    figures = []
    for model in (exact, folder / "grey"):
        assert call(selftest, model, *FLAGS, "--output_dir", tmp_path / "out") == 0
        figures.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    good, bad = figures
    names = [check["name"] for check in good["checks"]]
    assert names[:2] == ["mean time score", "predicted noise"] and "elbo against" in names[2]
    assert good["passed"] and all(check["passed"] for check in good["checks"])
    assert not bad["passed"]
    assert (tmp_path / "out" / "selftest.png").stat().st_size > 1000
