"""Estimate log Z of a model by annealing, and its bits per dim with and without log Z.

python evaluate/ais.py digits
python evaluate/ais.py digits-energy --method diffused --num_temperatures 400

log Z is the log of the integral of the unnormalised density. It is 0 for a normalised model.
"""

from collections.abc import Sequence
from functools import partial
from math import hypot, log
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from tqdm.auto import tqdm

from ebm_app.command_line import parse, run_script
from ebm_app.evaluation.flags import HeldOutFlags, held_out, open_model
from ebm_app.evaluation.scoring import bits_by_estimator
from ebm_app.likelihood import TimeIntegral
from ebm_app.nets.model import TimeScoreModel
from ebm_app.sampling.annealing import METHODS, Annealing, LogZResult, make_chains
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.random import derive_seed

#: At least 4, because two halves of the chains are compared
NumChains = Annotated[int, Ge(4), Le(1_000_000)]


@configuration(kw_only=True)
class Arguments(HeldOutFlags, Annealing):
    method: Annotated[tuple[Literal["diffused", "ais", "raise"], ...], Len(1)] = setting(
        "one or more methods; the first one normalises the bits per dim. diffused: forward and "
        "reverse chains with steps of the reversed diffusion; ais: forward chains of annealed "
        "importance sampling; raise: reverse chains from held-out images",
        ("diffused",),
    )
    num_chains: NumChains = setting("chains per run", 64)
    output_dir: Path = setting("folder for the record", Path("runs/ais"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Estimate log Z by the selected methods; return the metrics of each."""
    args = parse(Arguments, __doc__, argv)
    accelerator, ebm = open_model(args)
    _, levels = held_out(args, ebm)
    output = Output(args.output_dir / "ais.json", args)
    model = ebm.model
    if not isinstance(model, TimeScoreModel):
        raise UserError("A denoiser has no log density, so that log Z is not defined.")
    points = ebm.encode(levels, args.seed)
    results = {
        name: METHODS[name](
            make_chains(model, args, points, derive_seed(args.seed, index)), args.num_chains
        )
        for index, name in enumerate(args.method)
    }
    estimates = {name: result.estimate._asdict() for name, result in results.items()}
    output.write({"methods": estimates})  # the likelihoods below may take hours
    _, bits = bits_by_estimator(
        accelerator,
        ebm,
        levels,
        TimeIntegral(),
        args.batch_size,
        args.repeats,
        seed=args.seed,
        wrap=partial(tqdm, desc="bits per dim"),
    )
    num_dims = levels[0].numel()
    methods = {name: figures_of(result, bits, num_dims) for name, result in results.items()}
    figures = {
        **methods[args.method[0]],
        "method": args.method[0],
        "unnormalised_bits_per_dim": bits["bits_per_dim"],
        "unnormalised_stderr": bits["stderr"],
        "t_margin": bits["t_margin"],
        "num_images": len(levels),
        "model": args.model,
        "methods": methods,
    }
    print(to_markdown([{"method": name, **row} for name, row in methods.items()]))
    for name, row in methods.items():
        for warning in row["warnings"]:
            print(f"warning: {name}: {warning}")
    output.save(figures)
    return figures


def figures_of(result: LogZResult, bits: dict[str, Any], num_dims: int) -> dict[str, Any]:
    """Return the metrics of a method: log Z and the bits per dim normalised by it."""
    estimate, scale = result.estimate, num_dims * log(2)
    figures = {
        **estimate._asdict(),
        "acceptance": result.acceptance,
        "bits_per_dim": bits["bits_per_dim"] + estimate.log_z / scale,
        "bits_per_dim_stderr": hypot(bits["stderr"], estimate.stderr / scale),
    }
    for name, side in {"forward": result.forward, "reverse": result.reverse}.items():
        if side is not None:
            figures |= {f"{name}_log_z": side.log_z, f"{name}_stderr": side.stderr}
    return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
