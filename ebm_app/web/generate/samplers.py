"""The samplers as the page offers them: names that can be read, and how many steps each takes."""

import math
from typing import Any

import gradio as gr

from ebm_app.image_models.ebm import EBM
from ebm_app.sampling.samplers import SAMPLERS

from .settings import MAX_STEPS

LABELS = {
    "pf_ode": "Probability-flow ODE (seconds)",
    "annealed_hmc": "Annealed HMC (minutes)",
    "annealed_hmc_energy": "Annealed HMC by the energy (slow)",
}
#: choices of a dropdown: what is read, and what it stands for
CHOICES = [(LABELS[name], name) for name in SAMPLERS]
NOTES = "\n".join(f"- **{LABELS[name]}**: {kind.note}." for name, kind in SAMPLERS.items())


def own_steps(ebm: EBM, sampler: str) -> int:
    """How many steps a sampler takes for a model where it is not told."""
    return SAMPLERS[sampler]().count_steps(ebm.energy, math.prod(ebm.config.image_shape))


def offer_steps(ebm: EBM, sampler: str) -> dict[str, Any]:
    """An update of the choice of steps to the sampler's own number for a model; where that is more
    than the page allows, the most, and a note of it."""
    own, info = own_steps(ebm, sampler), SAMPLERS[sampler].steps
    if own > MAX_STEPS:
        info = f"{info}; by itself the sampler takes {own} for this model, the page {MAX_STEPS}"
    return gr.update(value=min(own, MAX_STEPS), info=info)
