"""log Z of a model by annealed chains, temperature by temperature."""

from collections.abc import Iterator
from typing import Annotated

import torch
from annotated_types import Ge, Le
from matplotlib.figure import Figure

from ebm_app.evaluation.log_z.chains import NUM_PILOT, Annealing, Chains, ChainState
from ebm_app.evaluation.log_z.estimates import from_forward
from ebm_app.evaluation.log_z.plots import chains_figure
from ebm_app.io.registry import choose
from ebm_app.likelihood.bits import to_bits_per_dim

from ..models import Models
from ..shared import progress

#: kinds of chains that a visitor chooses from
METHODS = ("transported", "ais")
MAX_CHAINS, MAX_TEMPERATURES = 64, 100


def log_z(
    model: str,
    method: str,
    num_chains: Annotated[int, Ge(2), Le(MAX_CHAINS)],
    num_temperatures: Annotated[int, Ge(2), Le(MAX_TEMPERATURES)],
    *,
    models: Models,
    seed: int,
) -> Iterator[tuple[Figure | None, str]]:
    """Carry chains from noise to a model: (log-weights and acceptance by temperature, a text)."""
    choose("method", method, METHODS)
    ebm = models.load(model)
    generator = torch.Generator(ebm.device).manual_seed(seed)
    noise = torch.randn(
        (NUM_PILOT + num_chains, *ebm.config.image_shape), device=ebm.device, generator=generator
    )
    label = f"{model} · {method} · {num_chains} chains · seed {seed}"
    settings = Annealing(num_temperatures=num_temperatures)
    chains = Chains(ebm.energy, settings, method == "transported")
    pilot = len(chains.targets)
    total = pilot + chains.num_distributions
    yield None, f"{progress(0, total)} · {label}"
    for step in chains.tune(noise[:NUM_PILOT], generator):
        yield None, f"{progress(step, total)}, pilot chains · {label}"
    for state in chains.forward(noise[NUM_PILOT:], generator):
        figure = chains_figure({method: state}, chains.num_distributions)
        yield figure, f"{progress(pilot + len(state.acceptance), total)} · {label}"
    yield figure, f"{report(state)}\n{label}"


def report(state: ChainState) -> str:
    """The estimate by chains that have passed all temperatures, with its warnings."""
    estimate = from_forward(state.log_weight[-1].cpu())
    nats = -torch.tensor([estimate.log_z, estimate.stderr])
    shift, error = to_bits_per_dim(nats, state.position[0].numel()).tolist()
    acceptance = state.acceptance[~state.acceptance.isnan()].mean().item()
    return "\n".join(
        [
            f"log Z: {estimate.log_z:+.2f} ± {estimate.stderr:.2f} nats; normalised by it, a "
            f"likelihood changes by {shift:+.4f} ± {error:.4f} bits per dim",
            f"Effective sample size {estimate.ess:.1f} of {estimate.num}, acceptance "
            f"{acceptance:.2f}",
            *(f"Warning: {warning}" for warning in estimate.warnings),
        ]
    )
