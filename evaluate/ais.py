"""log Z of a model by independent methods, and its bits per dim with and without it.

python evaluate/ais.py digits --method all
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
import zlib
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from math import hypot, isfinite, log
from pathlib import Path
from typing import Annotated, Any

from accelerate import Accelerator
from annotated_types import Ge, Le
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.evaluation.held_out import HeldOutFlags, held_out, open_model
from ebm_app.evaluation.log_z.ais import ENERGIES, Annealing
from ebm_app.evaluation.log_z.estimates import LogZ
from ebm_app.evaluation.log_z.methods import (
    DEFAULT,
    HEADLINES,
    METHODS,
    LogZMethods,
    LogZResult,
    agreement,
    raise_log_prob,
)
from ebm_app.evaluation.log_z.runs import ChainRun
from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.scoring import bits_by_estimator
from ebm_app.io.command_line import given, parse, refuse
from ebm_app.io.fields import (
    BatchSize,
    Nodes,
    Positive,
    PositiveInt,
    Steps,
    configuration,
    rare,
    setting,
)
from ebm_app.io.output import Output
from ebm_app.io.processes import shut_down
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.models.energy import HEAD, INTEGRAL
from ebm_app.numerics.tensors import mixed_seed, standard_error, sum_except_batch
from ebm_app.sampling.schedules import SCHEDULES

CHAINS = ("ais", "raise", "transported", "bridge")
#: flag -> the methods that heed it
USERS = {
    "num_temperatures": ("ais", "raise"),
    "transported_temperatures": ("transported", "bridge"),
    "pf_ode_steps": ("ode_importance", "bridge"),
    "diffusion_steps": ("diffusion",),
    "steps_per_temperature": CHAINS,
    "num_leapfrog_steps": CHAINS,
    "score_nodes": CHAINS,
    "score": CHAINS,
    "step_factor": CHAINS,
}
#: weights have a spread, and all of them are kept
NumChains = Annotated[int, Ge(2), Le(1_000_000)]


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    """The command line."""

    method: tuple[str, ...] = setting(
        f"how log Z is found, of {', '.join(METHODS)}, all; bridge or transported normalises the "
        "bits per dim, or the first",
        (DEFAULT,),
    )
    energy: str = setting(f"whose log Z is asked for: {', '.join(ENERGIES)}", "ratio")
    num_chains: NumChains = setting("chains of each run", 64)
    num_temperatures: Steps = setting("temperatures of AIS and RAISE", 100)
    schedule: str = setting(f"their spacing: {', '.join(SCHEDULES)}", "clock")
    resume: bool = setting("go on with the chains in the output folder", False)
    output_dir: Path = setting("where record, chains and plot go", Path("runs/ais"))
    transported_temperatures: Steps = rare("those of transported AIS", 48)
    pf_ode_steps: Steps = rare("steps of the probability flow as proposal", 48)
    diffusion_steps: Steps = rare("steps of the diffusion as proposal", 400)
    steps_per_temperature: PositiveInt = rare("HMC transitions at each temperature", 1)
    num_leapfrog_steps: PositiveInt = rare("leapfrog steps of each transition", 4)
    num_nodes: Nodes = rare("quadrature nodes of the densities", 8)
    score_nodes: Nodes = rare("nodes of the leapfrog's gradient", 4)
    score: str = rare(f"what drives the leapfrog: {INTEGRAL}, {HEAD}", INTEGRAL)
    step_factor: Positive = rare("multiplies the adapted step sizes", 1.0)
    block_size: BatchSize = rare("chains computed together", 16)


def parse_args(argv: Sequence[str] | None) -> Arguments:
    """The command line."""
    args = parse(Arguments, __doc__, argv)
    for kind, names, options in (
        ("method", args.method, [*METHODS, "all"]),
        ("energy", [args.energy], ENERGIES),
        ("schedule", [args.schedule], SCHEDULES),
        ("score", [args.score], [INTEGRAL, HEAD]),
    ):
        for name in names:
            choose(kind, name, options)
    for name, methods in USERS.items():
        if not {*methods, "all"} & set(args.method):
            reason = f"is of {' and '.join(methods)}: give one of them to --method"
            refuse(given(args, argv), [name], reason)
    return args


def annealing(args: Arguments, num_temperatures: int, transport: str) -> Annealing:
    """The settings of the chains."""
    own = {"num_temperatures": num_temperatures, "transport": transport}
    names = {field.name for field in fields(Annealing)}
    return Annealing(**{key: value for key, value in vars(args).items() if key in names} | own)


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Estimate log Z; the metrics, on the main process."""
    args = parse_args(argv)
    accelerator, ebm = open_model(args)
    levels = held_out(args, ebm)
    noise = dequantisation_noise(args.repeats, levels, args.seed)
    is_main = accelerator.is_main_process
    output = Output(args.output_dir / "ais.json", to_dict(args), is_main)
    points = ebm.dequantise(levels, noise[0])
    methods = make_methods(args, accelerator, ebm, points.y.cpu(), output.folder)
    names = list(METHODS if "all" in args.method else dict.fromkeys(args.method))
    results = {}
    for name in names:
        results[name] = METHODS[name](methods)
        if is_main:
            print(line(name, results[name]), flush=True)
    bar = partial(tqdm, desc="bits per dim", disable=not is_main)
    energy = ENERGIES[args.energy]()
    _, bits = bits_by_estimator(
        accelerator, ebm, levels, noise, energy, ebm.dequantiser, args.batch_size, bar
    )
    headline = next((name for name in HEADLINES if name in results), names[0])
    num_dims = levels[0].numel()
    metrics = {name: metrics_of(result, bits, num_dims) for name, result in results.items()}
    if "raise" in results:
        table, start = results["raise"].tables["raise"], methods.data
        log_density = energy(ebm.energy, start.to(ebm.device), points.t).value.cpu()
        volume = sum_except_batch(points.negative_log_q[: len(start)]).cpu()
        log_prob = raise_log_prob(table, log_density) + volume
        own = to_bits_per_dim(log_prob, num_dims)
        bound = {"bits_per_dim_bound": own.mean().item()}
        metrics["raise"].update(bound, bound_stderr=standard_error(own).item())
    answer = {
        **metrics[headline],
        "method": headline,
        "energy": args.energy,
        "energy_bits_per_dim": bits["bits_per_dim"],
        "energy_stderr": bits["stderr"],
        "eps": bits["eps"],
        "num_images": len(levels),
        "model": args.model,
        "methods": metrics,
    }
    if is_main:
        print(
            f"bits per dim: {bits['bits_per_dim']:.4f} +- {bits['stderr']:.4f} by {args.energy}, "
            f"{answer['bits_per_dim']:.4f} +- {answer['bits_per_dim_stderr']:.4f} with log Z by "
            f"{headline}"
        )
        from ebm_app.evaluation.log_z.plots import plot_chains  # a second to import

        tables = {k: v for result in results.values() for k, v in result.tables.items()}
        estimates = {k: (v["log_z"], v["stderr"]) for k, v in metrics.items()}
        with output.saving(answer):
            plot_chains(tables, estimates, output.folder / "ais.png")
    shut_down(accelerator)
    return answer if is_main else None


def make_methods(
    args: Arguments, accelerator: Accelerator, ebm: EBM, data: Tensor, output_dir: Path
) -> LogZMethods:
    """The methods with their runs in folders below ``output_dir``."""

    def make_run(settings: Annealing, name: str) -> ChainRun:
        return ChainRun(
            accelerator,
            ebm.energy,
            settings,
            shape=tuple(data.shape[1:]),
            folder=output_dir / "paths" / name,
            seed=mixed_seed(args.seed, zlib.crc32(name.encode())),
            block_size=args.block_size,
            resume=args.resume,
        )

    def progress(name: str) -> Any:
        return lambda states, total: tqdm(
            states, desc=name, total=total, disable=not accelerator.is_main_process
        )

    plain = annealing(args, args.num_temperatures, "none")
    transported = annealing(args, args.transported_temperatures, "flow")
    return LogZMethods(
        make_run=make_run,
        plain=plain,
        transported=transported,
        pf_ode_steps=args.pf_ode_steps,
        diffusion_steps=args.diffusion_steps,
        num_chains=args.num_chains,
        data=data[: args.num_chains],
        progress=progress,
    )


def metrics_of(result: LogZResult, bits: dict[str, Any], num_dims: int) -> dict[str, Any]:
    """The metrics of a method; bits per dim are the energy's, normalised by log Z."""
    estimate, scale = result.estimate, num_dims * log(2)
    metrics = {
        **estimate._asdict(),
        "acceptance": result.acceptance,
        "bits_per_dim": bits["bits_per_dim"] + estimate.log_z / scale,
        "bits_per_dim_stderr": hypot(bits["stderr"], estimate.stderr / scale),
    }
    metrics["warnings"] = [*estimate.warnings, *agreement(result)]
    if result.reverse is not None:
        metrics["reverse_log_z"] = result.reverse.log_z
        stderr = result.reverse.stderr
        metrics["reverse_stderr"] = stderr if isfinite(stderr) else None  # of a single point
    return metrics


def line(name: str, result: LogZResult) -> str:
    """An estimate in words, with its warnings."""
    estimate: LogZ = result.estimate
    text = (
        f"{name:15} log Z {estimate.log_z:8.2f} +- {estimate.stderr:.2f}   "
        f"ESS {estimate.ess:.1f} of {estimate.num}   mean log w {estimate.mean_log_weight:.2f}, "
        f"s.d. {estimate.sd_log_weight:.2f}"
    )
    if result.acceptance is not None:
        text += f"   acceptance {result.acceptance:.2f}"
    if result.reverse is not None:
        text += f"   reverse {result.reverse.log_z:.2f} +- {result.reverse.stderr:.2f}"
    warnings = [*estimate.warnings, *agreement(result)]
    return "\n".join([text, *(f"  warning: {warning}" for warning in warnings)])


if __name__ == "__main__":
    sys.exit(run_script(main))
