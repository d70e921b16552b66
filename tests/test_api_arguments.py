"""Arguments of the Python API: accepted forms, and one-line UserErrors for all others."""

import inspect
import random

import numpy as np
import pytest
import torch
from conftest import GREY, error_of
from pydantic import ValidationError
from runs import SMALL

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
from ebm_app.config import EBMConfig, PathConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.flow import FlowConfig
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.paths import PATHS
from ebm_app.sampling import SAMPLERS
from ebm_app.utils.errors import UserError

LEVELS = torch.randint(17, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0))
IMAGES = LEVELS / 16
#: Settings that make a call short.
STEPS = {"num_steps": 2}
NOT_IMAGES = {
    "flat": IMAGES.flatten(),
    "ragged": [[1.0], [1.0, 2.0]],
    "nan": IMAGES * torch.nan,
    "meta": torch.zeros(3, 1, 8, 8, device="meta"),
}
SAME_IMAGES = {
    "list": IMAGES.tolist(),
    "big-endian": IMAGES.double().numpy().astype(">f8"),
    "reversed": IMAGES.flip(3).numpy()[..., ::-1],
    "levels": LEVELS.numpy().astype(np.uint8),
}
NUMBERS = (-1, 0, 1, 17, 0.5, 1e-20, 5e-324, 1e300, np.nan, np.inf, 2**31, 2**64, 10**400, 1j)
OTHERS = (None, True, "", "a\nb", "x" * 10_000, b"bytes", [], [1, 2], {}, {"a": 1}, object(), int)
ARRAYS = (np.int64(2), np.float32(0.5), np.zeros(0), np.array("a"), np.ones(2), torch.tensor(2))
BATCHES = (IMAGES, IMAGES.numpy(), IMAGES.tolist(), IMAGES[:1], IMAGES[0], IMAGES * 2)
BATCHES = (*BATCHES, IMAGES[:0], IMAGES.half(), IMAGES > 0.5, IMAGES.to_sparse(), IMAGES.mT)
BATCHES = (*BATCHES, torch.empty(2, 1, 8, 8, device="meta"), torch.zeros(1).expand(2, 1, 8, 8))
NAMES = (*ESTIMATORS, *DEQUANTISERS, *SAMPLERS, *PATHS, "digits", "nothing", "../x", "/dev/zero")
POOL = (*NUMBERS, *OTHERS, *ARRAYS, *BATCHES, *NAMES)
ROWS = np.random.default_rng(0).normal(size=(60, 2))


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
        options["num_nodes"] = 4
    return model.likelihood(images, **options).bits_per_dim


@pytest.mark.parametrize("images", SAME_IMAGES.values(), ids=SAME_IMAGES)
def test_images_of_any_form_are_equal(ebm, flow, images):
    for model in (ebm, flow):
        assert torch.equal(bits(model, images), bits(model))
    mask = (IMAGES > 0.5).tolist()
    assert complete(ebm, images, mask, num_temperatures=2).shape == IMAGES.shape


@pytest.mark.parametrize("images", NOT_IMAGES.values(), ids=NOT_IMAGES)
def test_invalid_images_raise_a_user_error(ebm, flow, images, tmp_path):
    mask = torch.ones(8, 8, dtype=torch.bool)
    for call in (ebm.likelihood, flow.likelihood, AnomalyDetector(ebm).fit):
        error_of(call, images)
    error_of(complete, ebm, images, mask)
    error_of(train, images, tmp_path / "run", num_levels=17)
    error_of(two_sample_test, ebm, images, IMAGES)


def test_numbers_of_any_type_are_equal(ebm, flow):
    for model, seed in ((ebm, np.int64(3)), (flow, torch.tensor(3))):
        assert torch.equal(bits(model, seed=seed), bits(model, seed=3))
    samples = ebm.sample(np.int32(2), seed=np.int64(3), num_steps=np.int64(2))
    assert torch.equal(samples, ebm.sample(2, seed=3, **STEPS))


def test_bfloat16_rows_raise_a_user_error():
    error_of(log_density_ratio, ROWS, torch.from_numpy(ROWS).bfloat16(), num_folds=2, steps=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_default_dtype_does_not_matter(ebm, dtype):
    noise = torch.rand(2, *IMAGES.shape)
    expected = bits(ebm, noise=noise), ebm.sample(2, **STEPS)
    torch.set_default_dtype(dtype)
    try:
        found = bits(ebm, noise=noise), ebm.sample(2, **STEPS)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-4, atol=1e-4)


def test_model_in_float64_agrees_and_float16_is_refused(ebm):
    model = EBM(GREY)
    model.load_state_dict(ebm.state_dict())
    noise = torch.rand(2, *IMAGES.shape)
    found = bits(model.to(torch.float64), noise=noise)
    torch.testing.assert_close(
        found, bits(ebm, noise=noise), check_dtype=False, rtol=1e-4, atol=1e-4
    )
    error_of(model.to(torch.float16).likelihood, IMAGES)


def test_training_keeps_the_global_generator(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    images = np.random.default_rng(0).integers(17, size=(12, 1, 8, 8), dtype=np.uint8)
    steps = {"max_train_steps": np.int32(1)}
    train(images, tmp_path / "run", num_levels=np.int64(17), **SMALL, **steps)
    assert torch.equal(torch.rand(3), expected)


def sample_from_config(**settings):
    """Build a small model from a configuration and draw a sample."""
    config = EBMConfig("digits", (1, 8, 8), 17, **{"net": UNetConfig((8,)), **settings})
    return EBM(config).sample(1, **STEPS)


def calls(ebm):
    """Return the functions to test, with their default arguments."""
    mask, detector = torch.ones(8, 8, dtype=torch.bool), AnomalyDetector("digits")
    flow = Flow(FlowConfig("digits", (1, 8, 8), 17, "copula"))
    return {
        ebm.likelihood: {"images": IMAGES, "estimator": "elbo", "num_draws": 1, "num_nodes": 4}
        | dict.fromkeys(("dequantiser", "noise", "labels"))
        | {"repeats": 1, "seed": 0},
        ebm.sample: {"num_images": 1, "sampler": "dpm", "seed": 0, "labels": None}
        | {"guidance": 1.0, **STEPS},
        ebm.classify: {"images": IMAGES, "seed": 0},
        ebm.density.with_eps: {"eps": 0.1},
        flow.log_density: {"x": IMAGES},
        ebm.energy: {"x": IMAGES, "t": 0.5},
        ebm.score: {"x": IMAGES, "t": 0.5},
        complete: {"ebm": ebm, "images": IMAGES, "mask": mask, "seed": 0, "num_temperatures": 2},
        EBM.from_pretrained: {"name_or_path": "digits", "device": "cpu"},
        load_images: {"name": "digits", "data_root": "data"},
        sample_from_config: {"space": "ambient", "eps": 0.01, "prediction": "v", "num_nodes": 4},
        PathConfig: {"name": "vp", "c": 1.0, "arguments": {}},
        AnomalyDetector: {"model": "digits", "score": "ranks"},
        detector.fit: {"images": IMAGES},
        detector.nearest: {"image": IMAGES[:1], "num": 2},
        detector.predict: {"images": IMAGES, "false_alarm_rate": 0.1},
        benjamini_hochberg: {"p_values": [0.1, 0.2], "rate": 0.1},
        two_sample_test: {"model": ebm, "a": IMAGES, "b": IMAGES, "num_permutations": 9},
        log_density_ratio: {"x0": ROWS, "x1": ROWS + 1, "num_folds": 3, "steps": 2},
        mutual_information: {"x": ROWS, "y": ROWS + 1, "num_folds": 3, "steps": 2},
        sample_composed: {
            "ebm": ebm,
            "composition": Product([ebm.density], [1.0]),
            "num_images": 1,
            "num_temperatures": 2,
        },
        **{kind: {} for kinds in (SAMPLERS, PATHS, ESTIMATORS) for kind in kinds.values()},
    }


def fault_of(function, arguments):
    """Return what is wrong with the outcome of a call, or None."""
    try:
        function(**arguments)
    except UserError as error:
        text = str(error)
        return None if text and "\n" not in text and len(text) < 2000 else f"message: {text[:200]}"
    except ValidationError as error:  # raised by pydantic when a settings class is constructed
        is_direct = inspect.isclass(function) or function is sample_from_config
        return None if is_direct else f"ValidationError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def faults(seed, num_calls):
    """Make random calls, each with one or two random arguments, and return their faults."""
    draw, ebm, found = random.Random(seed), EBM(GREY).eval(), []
    functions = calls(ebm)
    for _ in range(num_calls):
        function = draw.choice(list(functions))
        parameters = inspect.signature(function).parameters.values()
        names = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
        names = sorted({*functions[function], *names} - {"self", "ebm", "density"})
        chosen = draw.sample(names, min(draw.choice((1, 1, 2)), len(names)))
        arguments = {name: draw.choice(POOL) for name in chosen}
        if fault := fault_of(function, {**functions[function], **arguments}):
            shown = {name: repr(value)[:60] for name, value in arguments.items()}
            found.append(f"{getattr(function, '__name__', function)}({shown}): {fault}")
    return found


def test_random_arguments_raise_only_user_errors():
    assert faults(0, 200) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_random_arguments_raise_only_user_errors(seed):
    assert faults(seed, 1000) == []
