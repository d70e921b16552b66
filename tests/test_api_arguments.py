"""What the Python API is given: what is meant is taken, what is wrong is one sentence."""

import itertools

import numpy as np
import pytest
import torch
from conftest import GREY, error_of

from ebm_app import (
    EBM,
    Flow,
    Product,
    complete,
    log_density_ratio,
    mutual_information,
    sample_composed,
    train,
)
from ebm_app.anomaly import AnomalyDetector, benjamini_hochberg, two_sample_test
from ebm_app.flow import FlowConfig
from ebm_app.utils.errors import UserError

LEVELS = torch.randint(17, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0))
IMAGES = LEVELS / 16
ROWS = np.random.default_rng(0).normal(size=(240, 2))
STEPS = {"num_steps": 2}
#: what is not a whole number in any range that is asked for
NO_COUNTS = (-1, 0.5, "3", None, True, 10**12, 2**64, np.nan, [1])
NO_SEEDS = (-1, 2**63, 2**64, 0.5, "3", True, np.int64(-1))
NO_IMAGES = {
    "none": IMAGES[:0],
    "flat": IMAGES.flatten(),
    "a number": 0.5,
    "a text": "images",
    "nothing": None,
    "ragged": [[1.0], [1.0, 2.0]],
    "nan": IMAGES * torch.nan,
    "off the grid": IMAGES * 0.99,
    "out of range": IMAGES + 2,
    "complex": IMAGES * 1j,
    "bool": IMAGES > 0.5,
    "objects": np.array([{}]),
}
SAME_IMAGES = {
    "array": IMAGES.numpy(),
    "list": IMAGES.tolist(),
    "float64": IMAGES.double(),
    "big-endian": IMAGES.double().numpy().astype(">f8"),
    "reversed": IMAGES.flip(3).numpy()[..., ::-1],
    "levels": LEVELS.numpy().astype(np.uint8),
    "gradient": IMAGES.clone().requires_grad_(),
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
    if isinstance(model, EBM):  # few are enough to see that two calls are one
        options["num_nodes"] = 4
    return model.likelihood(images, **options).bits_per_dim


@pytest.mark.parametrize("given", SAME_IMAGES.values(), ids=SAME_IMAGES)
def test_images_are_taken_in_any_form(ebm, flow, given):
    for model in (ebm, flow):
        assert torch.equal(bits(model, given), bits(model))
    mask = (IMAGES > 0.5).tolist()
    assert complete(ebm, given, mask, num_temperatures=2).shape == IMAGES.shape


@pytest.mark.parametrize("given", NO_IMAGES.values(), ids=NO_IMAGES)
def test_what_is_no_image_is_one_sentence(ebm, flow, given, tmp_path):
    mask = torch.ones(8, 8, dtype=torch.bool)
    calls = [ebm.likelihood, flow.likelihood, lambda x: complete(ebm, x, mask)]
    for call in [*calls, lambda x: train(x, tmp_path / "run", num_levels=17)]:
        error_of(call, given)
    if given is not None:
        error_of(ebm.likelihood, IMAGES, noise=given)
        error_of(complete, ebm, IMAGES, given if isinstance(given, str) else 1.0)


def test_numbers_are_taken_in_any_form(ebm, flow):
    for seed in (np.int64(3), np.uint8(3), torch.tensor(3)):
        assert torch.equal(bits(ebm, seed=seed), bits(ebm, seed=3))
        assert torch.equal(bits(flow, seed=seed), bits(flow, seed=3))
        drawn = ebm.sample(np.int32(2), seed=seed, num_steps=np.int64(2))
        assert torch.equal(drawn, ebm.sample(2, seed=3, **STEPS))
        assert torch.equal(flow.sample(np.int32(2), seed=seed), flow.sample(2, seed=3))
    assert ebm.density.with_eps(np.float32(0.25)).end == 0.75


def test_numbers_that_are_wrong_are_one_sentence(ebm, flow):
    for number in (0, *NO_COUNTS):
        error_of(ebm.likelihood, IMAGES, repeats=number)
        error_of(ebm.sample, number, **STEPS)
        error_of(flow.sample, number)
        error_of(log_density_ratio, ROWS, ROWS, num_folds=number)
        error_of(mutual_information, ROWS[:, 0], ROWS[:, 1], num_folds=number)
        if number is not None:  # the default
            error_of(ebm.sample, 1, num_steps=number)
            error_of(log_density_ratio, ROWS, ROWS, steps=number)
    for seed in NO_SEEDS:
        error_of(ebm.likelihood, IMAGES, seed=seed)
        error_of(ebm.sample, 1, seed=seed, **STEPS)
        error_of(flow.likelihood, IMAGES, seed=seed)
        error_of(flow.sample, 1, seed=seed)
        error_of(log_density_ratio, ROWS, ROWS, random_state=seed)
        error_of(mutual_information, ROWS[:, 0], ROWS[:, 1], random_state=seed)
    for eps in (1e-20, 0.0, -1.0, 0.5, "small", np.nan):
        error_of(ebm.density.with_eps, eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_another_default_dtype_changes_nothing(ebm, dtype):
    noise = torch.rand(2, *IMAGES.shape)
    wanted = bits(ebm, noise=noise), ebm.sample(2, **STEPS)
    torch.set_default_dtype(dtype)
    try:
        found = bits(ebm, noise=noise), ebm.sample(2, **STEPS)
        list_of = bits(ebm, IMAGES.tolist(), noise=noise.double().numpy())
    finally:
        torch.set_default_dtype(torch.float32)
    for one in (*found, list_of):
        assert one.isfinite().all()
    torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-4, atol=1e-4)
    assert torch.equal(list_of, found[0])


def test_a_model_in_another_dtype(ebm):
    model = EBM(GREY)
    model.load_state_dict(ebm.state_dict())
    noise = torch.rand(2, *IMAGES.shape)
    model.to(torch.float64)
    torch.testing.assert_close(
        bits(model, noise=noise), bits(ebm, noise=noise), check_dtype=False, rtol=1e-4, atol=1e-4
    )
    assert model.sample(2, **STEPS).shape == (2, 1, 8, 8)
    model.to(torch.float16)
    error_of(model.likelihood, IMAGES)
    error_of(model.sample, 2, **STEPS)


CONSTANT = np.stack([ROWS[:, 0], np.ones(240)], 1)
NO_ROWS = {
    "none": np.zeros((0, 2)),
    "none, wide": np.zeros((0, 30_000_000), np.float32),
    "no columns": np.zeros((240, 0)),
    "constant": CONSTANT,
    "tiny": 1e-300 * ROWS,
    "huge": 1e300 * ROWS,
    "nan": ROWS * np.nan,
    "text": [["a", "b"]] * 240,
    "ragged": [[1.0], [1.0, 2.0]],
    "nothing": None,
    "half": torch.from_numpy(ROWS).bfloat16(),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_rows_that_have_no_ratio_are_one_sentence(name):
    for x0, x1 in itertools.permutations((ROWS, NO_ROWS[name])):
        error_of(log_density_ratio, x0, x1, num_folds=2, steps=1)
    if name not in ("tiny", "huge", "constant"):
        error_of(mutual_information, ROWS[:, 0], NO_ROWS[name])


def test_what_is_another_kind_of_object_is_one_sentence(ebm, tmp_path):
    no_numbers = torch.zeros(3, 1, 8, 8, device="meta"), IMAGES.to_sparse()
    for given in (None, 3, ROWS, [IMAGES], {"a": 1}, object(), *no_numbers):
        error_of(ebm.sample, 1, given)
        error_of(ebm.save_pretrained, given)
        error_of(complete, given, IMAGES, IMAGES > 0.5)
        error_of(sample_composed, ebm, given, 1)
        error_of(sample_composed, given, Product([ebm.density], [1.0]), 1)
        error_of(Product, given, given)
        error_of(two_sample_test, given, IMAGES, IMAGES)
        error_of(two_sample_test, ebm, given, IMAGES)
        error_of(AnomalyDetector, "digits", given)
        error_of(AnomalyDetector("digits").fit, given)
        error_of(benjamini_hochberg, given, 0.1)
        error_of(train, given, tmp_path)
        error_of(train, LEVELS, given)
        if given is not None:
            error_of(ebm.likelihood, IMAGES, dequantiser=given)
            error_of(train, LEVELS, tmp_path, flow=given)
    for given in no_numbers:
        error_of(log_density_ratio, given, ROWS)
        error_of(ebm.likelihood, given)
    error_of(AnomalyDetector("digits").threshold, 5e-324)


def test_training_leaves_the_global_generator(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    small = {"block_out_channels": [8], "num_nodes": np.int64(8), "max_train_steps": np.int32(1)}
    small |= {"train_batch_size": 4, "num_preview_images": 0, "validation_repeats": 1}
    images = LEVELS.repeat(4, 1, 1, 1).numpy().astype(np.uint8)
    train(images, tmp_path / "run", num_levels=np.int64(17), device="cpu", **small)
    assert torch.equal(torch.rand(3), wanted)
    with pytest.raises(UserError):
        train(images, tmp_path / "other", num_levels=17, seed=-1, **small)
