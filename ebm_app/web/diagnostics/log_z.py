"""log Z of a model by annealed chains, temperature by temperature."""

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure

from ebm_app.evaluation.log_z.ais import Annealing, Chains, ChainState
from ebm_app.evaluation.log_z.estimates import from_forward
from ebm_app.evaluation.log_z.plots import temperatures_figure
from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.likelihood.bits import to_bits_per_dim

from ..buttons import RUNNING
from ..shared import Load

#: kinds of chains by the name a visitor chooses, for a number of temperatures
METHODS = {
    "transported": lambda num: Annealing(num, steps_per_temperature=1, transport="flow"),
    "diffusion": lambda num: Annealing(
        num, steps_per_temperature=0, transport="diffusion", transport_steps=8
    ),
    "ais": lambda num: Annealing(num, steps_per_temperature=1, num_leapfrog_steps=4),
}
MAX_CHAINS, DEFAULT_CHAINS = 64, 8
MAX_TEMPERATURES, DEFAULT_TEMPERATURES = 100, 16
NUM_PILOT = 4


def log_z(
    load: Load, model: str, method: str, num_chains: int, num_temperatures: int, seed: int
) -> Iterator[tuple[Figure | None, str]]:
    """Carry chains from noise to a model: (log-weights and acceptance by temperature, a text).

    Args:
        load: the model of a name. method: a key of ``METHODS``. seed: of all noise.

    Raises:
        UserError: for an unknown method, or a number out of range.
    """
    settings = METHODS[choose("method", method, METHODS)](int(num_temperatures))
    if not 2 <= num_chains <= MAX_CHAINS or not 2 <= num_temperatures <= MAX_TEMPERATURES:
        raise UserError(
            f"{num_chains} chains at {num_temperatures} temperatures are not possible: give 2 to "
            f"{MAX_CHAINS} chains and 2 to {MAX_TEMPERATURES} temperatures"
        )
    ebm = load(model)
    generator = torch.Generator(ebm.device).manual_seed(seed)
    noise = torch.randn(
        (NUM_PILOT + num_chains, *ebm.config.image_shape), device=ebm.device, generator=generator
    )
    label = f"{model} · {method} · {num_chains} chains · seed {seed}"
    chains = Chains(ebm.energy, settings)
    pilot = len(chains.targets) if settings.steps_per_temperature else 0
    total = pilot + chains.num_distributions
    yield None, f"{RUNNING} 0 of {total} · {label}"
    for step in chains.tune(noise[:NUM_PILOT], generator):
        yield None, f"{RUNNING} {step} of {total}, pilot chains · {label}"
    start = chains.start(noise[NUM_PILOT:], generator, is_reverse=False)
    for state in chains.run(start, generator, is_reverse=False):
        figure = temperatures_figure(
            state.log_weight.cpu(), state.acceptance, chains.num_distributions
        )
        yield figure, f"{RUNNING} {pilot + len(state.acceptance)} of {total} · {label}"
    yield figure, f"{report(state)}\n{label}"


def report(state: ChainState) -> str:
    """The estimate by chains that have passed all temperatures, with its warnings."""
    estimate = from_forward(state.log_weight[-1].cpu())
    nats = -torch.tensor([estimate.log_z, estimate.stderr])
    shift, error = to_bits_per_dim(nats, state.position[0].numel()).tolist()
    moved = state.acceptance[~state.acceptance.isnan()]
    acceptance = f", acceptance {moved.mean().item():.2f}" if len(moved) else ""
    return "\n".join(
        [
            f"log Z: {estimate.log_z:+.2f} ± {estimate.stderr:.2f} nats; normalised by it, a "
            f"likelihood changes by {shift:+.4f} ± {error:.4f} bits per dim",
            f"Effective sample size {estimate.ess:.1f} of {estimate.num}{acceptance}",
            *(f"Warning: {warning}" for warning in estimate.warnings),
        ]
    )
