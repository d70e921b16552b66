"""The EBM folder: a round trip gives equal outputs, and nothing that does not fit is loaded."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ebm_app import EBM
from ebm_app.data.levels import to_levels
from ebm_app.errors import UserError
from ebm_app.models.config import EBMConfig, PathConfig
from ebm_app.models.folders import BUNDLED, find_folder
from ebm_app.nets.unet import UNetConfig
from ebm_app.registry import make
from ebm_app.sampling.samplers import SAMPLERS

CONFIG = EBMConfig(
    dataset="digits",
    image_shape=(1, 8, 8),
    num_levels=17,
    path=PathConfig("vp", 0.8, {"beta_max": 15.0}),
    net=UNetConfig((8, 8), norm_num_groups=4, attention_levels=(1,), num_heads=2),
    eps=1e-4,
    num_nodes=8,
)


@pytest.fixture
def ebm() -> EBM:
    torch.manual_seed(0)
    model = EBM(CONFIG)
    torch.nn.init.normal_(model.model.net.unet.conv_out.weight, std=0.1)
    return model.eval()


def images(num: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 17, (num, 1, 8, 8), generator=generator) / 16


def test_who_may_read_the_configuration_may_read_the_weights(ebm, tmp_path):
    ebm.save_pretrained(tmp_path)
    config, weights = (tmp_path / name for name in ("config.json", "model.safetensors"))
    assert weights.stat().st_mode == config.stat().st_mode


def test_round_trip_gives_equal_outputs(ebm, tmp_path):
    ebm.save_pretrained(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    again = EBM.from_pretrained(tmp_path / "model")
    assert again.config == CONFIG and not again.training
    a, b = (model.log_prob(images(), repeats=2, seed=4) for model in (ebm, again))
    assert torch.equal(a.log_prob, b.log_prob) and torch.equal(a.components, b.components)
    assert torch.equal(ebm.sample(2, num_steps=3, seed=5), again.sample(2, num_steps=3, seed=5))


def test_log_prob_and_sample_have_the_stated_form(ebm):
    result = ebm.log_prob(images(), repeats=2)
    assert result.log_prob.shape == result.bits_per_dim.shape == result.error.shape == (3,)
    assert result.components.shape == (3, 1, 8, 8) and result.nfe == 16
    torch.testing.assert_close(result.components.flatten(1).sum(1), result.log_prob)
    drawn = ebm.sample(2, num_steps=3)
    assert drawn.shape == (2, 1, 8, 8) and drawn.min() >= 0 and drawn.max() <= 1
    assert to_levels(drawn, 17).shape == drawn.shape  # samples lie on the grid and can be scored


def test_the_same_seed_gives_the_same_likelihood_and_another_does_not(ebm):
    a, b, c = (ebm.log_prob(images(), seed=seed).log_prob for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(sorted(w)[0]), "it lacks"),
        (lambda w: w.update(extra=torch.zeros(1)), "has unexpected extra"),
        (lambda w: w.update({sorted(w)[0]: torch.zeros(2, 2)}), r"of shape \(2, 2\), not"),
    ],
    ids=["missing", "unexpected", "misshapen"],
)
def test_weights_that_do_not_fit_are_refused(ebm, tmp_path, change, message):
    ebm.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=message):
        EBM.from_pretrained(tmp_path)


def _edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_configurations_that_do_not_fit_are_refused(ebm, tmp_path):
    ebm.save_pretrained(tmp_path)
    for changes, message in (
        ({"format_version": 99}, "format_version 99, this version of ebm_app reads 1"),
        ({"format_version": 1, "colour": 1}, "unknown keys: colour"),
        ({"colour": 0, "eps": "small"}, "unknown keys"),
    ):
        _edit(tmp_path, **changes)
        with pytest.raises(UserError, match=message):
            EBM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"dataset": ')
    with pytest.raises(UserError, match="not valid JSON"):
        EBM.from_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="config.json is missing"):
        EBM.from_pretrained(tmp_path)


def test_pickled_weights_are_not_read(ebm, tmp_path):
    ebm.save_pretrained(tmp_path)
    torch.save(ebm.state_dict(), tmp_path / "model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="model.safetensors is missing"):
        EBM.from_pretrained(tmp_path)


def test_names_are_looked_up_as_folder_bundle_or_hub(tmp_path):
    with pytest.raises(UserError, match="no model at 'nothing': give a folder"):
        find_folder("nothing")
    with pytest.raises(UserError, match="the hub did not give a model of that id"):
        find_folder("nobody/nothing")  # offline in the tests
    for folder in BUNDLED.iterdir():
        if folder.is_dir():
            assert find_folder(folder.name) == folder


def test_mistakes_with_images_and_samplers_are_explained(ebm):
    with pytest.raises(UserError, match=r"takes images of shape \(1, 8, 8\)"):
        ebm.log_prob(torch.zeros(2, 3, 8, 8))
    with pytest.raises(UserError, match="17 levels"):
        ebm.log_prob(torch.full((2, 1, 8, 8), 0.51))
    with pytest.raises(UserError, match="choose one of annealed_hmc, pf_ode"):
        ebm.sample(1, sampler="gibbs")
    with pytest.raises(UserError, match="sampler 'pf_ode': .*temperature"):
        make(SAMPLERS, "sampler", "pf_ode", {"temperature": 2})
    with pytest.raises(UserError, match="path 'vp': .*gamma"):
        EBM(EBMConfig("digits", (1, 8, 8), 17, path=PathConfig("vp", 1.0, {"gamma": 2.0})))


#: bytes of a bundled model at most; every one must be named here
MOST = {"digits": 4e6, "mnist": 16e6}


@pytest.mark.parametrize(
    ("name", "most"), [(p.name, MOST[p.name]) for p in sorted(BUNDLED.iterdir()) if p.is_dir()]
)
def test_bundled_models_load_by_name_and_are_small(name, most):
    assert EBM.from_pretrained(name).config.dataset == name
    assert sum(path.stat().st_size for path in (BUNDLED / name).iterdir()) < most
