"""Arguments of the Python API: accepted forms, and UserErrors for others."""

import numpy as np
import pytest
import torch
from conftest import GREY, error_of
from exact import generator

from ebm_app import EBM, ESTIMATORS, SAMPLERS, Flow
from ebm_app.anomaly import AnomalyDetector
from ebm_app.flow import FlowConfig

LEVELS = torch.randint(17, (2, 1, 8, 8), generator=generator())
IMAGES = LEVELS / 16
#: Settings that make a call short.
STEPS = {"num_steps": 2}
NOT_IMAGES = {
    "flat": IMAGES.flatten(),
    "list": IMAGES.tolist(),
    "nan": IMAGES * torch.nan,
    "size": torch.zeros(2, 1, 16, 16),
    "channels": torch.zeros(2, 3, 8, 8),
    "levels": torch.full((2, 1, 8, 8), 0.3),
}
SAME_IMAGES = {
    "big-endian": IMAGES.double().numpy().astype(">f8"),
    "reversed": IMAGES.flip(3).numpy()[..., ::-1],
    "levels": LEVELS.numpy().astype(np.uint8),
}


@pytest.fixture(scope="module")
def ebm():
    torch.manual_seed(0)
    return EBM(GREY).eval()


@pytest.fixture(scope="module")
def flow():
    flow = Flow(FlowConfig("digits", (1, 8, 8), 17, "gaussian"))
    flow.space.fit(torch.rand(200, 1, 8, 8))
    return flow


def bits(model, images=IMAGES, **options):
    if isinstance(model, EBM):
        options["num_nodes"] = 12
    return model.likelihood(images, **options).bits_per_dim


@pytest.mark.parametrize("images", SAME_IMAGES.values(), ids=SAME_IMAGES)
def test_images_of_any_form_are_equal(ebm, flow, images):
    for model in (ebm, flow):
        assert torch.equal(bits(model, images), bits(model))


@pytest.mark.parametrize("images", NOT_IMAGES.values(), ids=NOT_IMAGES)
def test_invalid_images_raise_a_user_error(ebm, flow, images):
    for call in (ebm.likelihood, flow.likelihood, AnomalyDetector(ebm).fit):
        error_of(call, images)


@pytest.mark.parametrize("settings", [{"num_images": 0}, {"seed": -1}, {"labels": 3}, {"a": 1}])
def test_invalid_settings_of_samples_are_refused(ebm, settings):
    (name,) = settings
    assert name in error_of(ebm.sample, **{"num_images": 1, **settings})


@pytest.mark.parametrize(
    "settings",
    [{"repeats": 0}, {"estimator": "v"}, {"num_nodes": 0.5}, {"num_nodes": 11}, {"batch_size": 0}],
)
def test_invalid_settings_of_likelihoods_are_refused(ebm, settings):
    (name,) = settings
    assert name in error_of(ebm.likelihood, IMAGES, **settings)


def test_settings_of_an_instance_are_not_ignored(ebm):
    sampler, estimator = SAMPLERS["dpm"](**STEPS), ESTIMATORS["elbo"](num_draws=1, num_nodes=12)
    expected = ebm.sample(1, **STEPS)
    assert torch.equal(ebm.sample(1, sampler), expected)
    assert "num_steps" in error_of(ebm.sample, 1, sampler, num_steps=3)
    assert "num_draws" in error_of(ebm.likelihood, IMAGES, estimator, num_draws=2)


def test_noise_of_an_image_depends_on_its_index(ebm, flow):
    for model in (ebm, flow):
        whole = bits(model)
        assert torch.equal(bits(model, indices=range(2)), whole)
        last = bits(model, IMAGES[1:], indices=[1])
        torch.testing.assert_close(last, whole[1:], rtol=0, atol=1e-5)
        assert not torch.allclose(bits(model, IMAGES[1:]), last)
        for indices in ([1], 5):
            assert "ind" in error_of(model.likelihood, IMAGES, indices=indices)


def test_unknown_arguments_name_the_nearest(ebm):
    assert "'repeats'" in error_of(ebm.log_prob, IMAGES, repeat=1)
    assert "'labels'" in error_of(ebm.sample, 1, label=2)
    assert "'num_steps'" in error_of(ebm.sample, 1, num_step=2)
