"""Nearest training images, and the share of copies."""

import json

import pytest
import torch
from conftest import GREY
from exact import generator

from ebm_app.evaluation.memorisation import nearest, share_of_copies
from ebm_app.image_models.ebm import EBM
from ebm_app.io.start import run_script


def test_neighbours_are_the_nearest_by_root_mean_square():
    others = torch.rand((40, 1, 3, 2), generator=generator())
    images = torch.rand((7, 1, 3, 2), generator=generator(1))
    found = nearest(images, others, 3, chunk_size=2)
    all_distances = (images[:, None] - others[None]).double().square().mean((2, 3, 4)).sqrt()
    values, indices = all_distances.sort(1)
    torch.testing.assert_close(found.distances, values[:, :3])
    assert torch.equal(found.indices, indices[:, :3])


def test_copies_show_and_fresh_draws_do_not():
    held_out = torch.rand(20_000, generator=generator(), dtype=torch.float64) + 1
    fresh = torch.rand(20_000, generator=generator(1), dtype=torch.float64) + 1
    assert share_of_copies(fresh, held_out) == pytest.approx(0.01, abs=0.003)
    fresh[:5_000] = 0
    assert share_of_copies(fresh, held_out) == pytest.approx(0.2575, abs=0.003)


def test_the_script_shows_an_image_beside_its_neighbours(script, tmp_path, capsys):
    EBM(GREY).save_pretrained(tmp_path / "model")
    main = script("evaluate/memorisation.py").main
    given = [str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), "--device", "cpu"]
    assert run_script(main, [*given, "--num_images", "4", "--num_shown", "2"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["num_images"] == figures["num_held_out"] == 4
    assert figures["median_distance"] > figures["median_distance_held_out"] > 0
    assert figures["identical"] == 0
    assert (tmp_path / "out" / "memorisation.png").exists()
    assert json.loads((tmp_path / "out" / "memorisation.json").read_text())["figures"] == figures
    assert run_script(main, [*given, "--num_shown", "0"]) == 2
    assert "num_shown must be greater than or equal to 1" in capsys.readouterr().err
