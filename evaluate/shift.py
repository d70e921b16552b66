"""How often the test of two sets of images finds a shift, by the size of the sets.

python evaluate/shift.py mnist --limit 3000

Of both sets the images are drawn from a held-out split, without replacement. Those of the second
are as the first, lack class 3, or have strokes a little thicker: a quarter of the way to a 3 x 3
dilation. The table has the share of repetitions whose p-value is 0.05 or less.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.anomaly.shift import energy_test, shift_features
from ebm_app.data.levels import quantise, to_display
from ebm_app.evaluation.held_out import ImageFlags, held_out
from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import PositiveInt, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.start import run_script
from ebm_app.numerics.tensors import mixed_seed
from studies.grid import to_markdown
from studies.odd import ODD

LEVEL, NUM_PERMUTATIONS, THICKER, MISSING = 0.05, 199, 0.25, 3


@configuration(kw_only=True)
class Arguments(ImageFlags):
    """The command line."""

    sizes: tuple[PositiveInt, ...] = setting("images of a set", (50, 200, 1000))
    repeats: PositiveInt = setting("pairs of sets of each size", 40)
    output_dir: Path = setting("where the record goes", Path("runs/shift"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Test pairs of sets of every size; the table."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    levels, data = held_out(args, ebm)
    labels = data.split_labels(args.split)[: args.limit]
    most = min(int((labels != MISSING).sum()), len(labels) // 2)
    if max(args.sizes) > most:
        raise UserError(f"{len(labels)} images make no two sets of more than {most}: give --sizes")
    output = Output(args.output_dir / "shift.json", args)
    images = to_display(levels, ebm.config.num_levels)
    usual = shift_features(ebm, images)
    thick = ODD["thick strokes"](images, labels, np.random.default_rng(args.seed))
    between = quantise(images.lerp(thick, THICKER), ebm.config.num_levels)
    thicker = shift_features(ebm, between)
    shifts = {
        "none": (usual, labels >= 0),
        f"class {MISSING} is missing": (usual, labels != MISSING),
        "thicker strokes": (thicker, labels >= 0),
    }
    table = []
    for name, (second, allowed) in shifts.items():
        row: dict[str, Any] = {"shift": name}
        for size in args.sizes:
            found = []
            for index in tqdm(range(args.repeats), desc=f"{name}, {size} images"):
                seed = mixed_seed(args.seed, size, index)
                sets = pair(usual, second, allowed, size, seed)
                found.append(energy_test(*sets, NUM_PERMUTATIONS, seed).p_value <= LEVEL)
            row[str(size)] = sum(found) / len(found)
        table.append(row)
    print(to_markdown(table))
    output.save({"table": table})
    return {"table": table}


def pair(
    first: Tensor, second: Tensor, allowed: Tensor, size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Features of two sets of other images; the second is of rows that are ``allowed`` (N,)."""
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))
    of_second = order[allowed[order]][:size]
    of_first = order[~torch.isin(order, of_second)][:size]
    return first[of_first], second[of_second]


if __name__ == "__main__":
    sys.exit(run_script(main))
