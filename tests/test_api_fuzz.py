"""The Python API returns or raises a one-line UserError, whatever its arguments."""

import inspect
import random

import numpy as np
import pytest
import torch
from conftest import GREY
from pydantic import ValidationError

from ebm_app import (
    EBM,
    Product,
    complete,
    log_density_ratio,
    mutual_information,
    sample_composed,
)
from ebm_app.anomaly import AnomalyDetector, benjamini_hochberg, two_sample_test
from ebm_app.config import EBMConfig, PathConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.flow import Flow, FlowConfig
from ebm_app.likelihood import ESTIMATORS
from ebm_app.likelihood.dequantisation import DEQUANTISERS
from ebm_app.paths import PATHS
from ebm_app.sampling.samplers import SAMPLERS
from ebm_app.utils.errors import UserError

IMAGES = torch.randint(17, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 16
NUMBERS = (-1, 0, 1, 17, 0.5, 1e-20, 5e-324, 1e300, np.nan, np.inf, 2**31, 2**64, 10**400, 1j)
OTHERS = (None, True, "", "a\nb", "x" * 10_000, b"bytes", [], [1, 2], {}, {"a": 1}, object(), int)
ARRAYS = (np.int64(2), np.float32(0.5), np.zeros(0), np.array("a"), np.ones(2), torch.tensor(2))
BATCHES = (IMAGES, IMAGES.numpy(), IMAGES.tolist(), IMAGES[:1], IMAGES[0], IMAGES * 2)
BATCHES = (*BATCHES, IMAGES[:0], IMAGES.half(), IMAGES > 0.5, IMAGES.to_sparse(), IMAGES.mT)
BATCHES = (*BATCHES, torch.empty(2, 1, 8, 8, device="meta"), torch.zeros(1).expand(2, 1, 8, 8))
NAMES = (*ESTIMATORS, *DEQUANTISERS, *SAMPLERS, *PATHS, "digits", "nothing", "../x", "/dev/zero")
POOL = (*NUMBERS, *OTHERS, *ARRAYS, *BATCHES, *NAMES)
ROWS = np.random.default_rng(0).normal(size=(60, 2))
#: Settings that make a call short.
STEPS = {"num_steps": 2}


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
