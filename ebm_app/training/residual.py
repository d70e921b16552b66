"""What one pass of a trained energy network is off by."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from ebm_app.config import Calibration
from ebm_app.ebm import EBM
from ebm_app.evaluation.scoring import bits_of_images
from ebm_app.likelihood import VariationalBound
from ebm_app.utils.fields import to_dict
from ebm_app.utils.tensors import standard_error

#: draws of the bound at each of its nodes
BOUND_DRAWS = 16


def measure_residual(
    accelerator: Accelerator, folder: Path, levels: Tensor, noise: Tensor
) -> dict[str, Any]:
    """The residual of one pass of the model in a folder, on validation images by noise
    (1, N, C, H, W); it is written into the folder as well."""
    best = EBM.from_pretrained(folder, str(accelerator.device))
    best.density.calibration = Calibration()
    pass_, bound = (
        bits_of_images(accelerator, best, levels, noise, estimator=estimator).bits_per_dim.double()
        for estimator in ("energy", VariationalBound(num_draws=BOUND_DRAWS))
    )
    nats = (bound - pass_) * math.log(2) * levels.shape[1:].numel()
    mean, stderr, spread = nats.mean(), standard_error(nats), nats.std()
    calibration = Calibration(mean.item(), stderr.item(), spread.item())
    if accelerator.is_main_process:
        best.config = replace(best.config, calibration=calibration)
        best.save_pretrained(folder)
    accelerator.wait_for_everyone()
    return {"residual_nats": to_dict(calibration)}
