"""The log-likelihood of every image below a folder, as a table.

ebm score digits photos --output scores.csv

Each image gets a row: its path, log_prob in nats, the standard error of that over the repeats, and
bits_per_dim. Its centre is brought to the model's size, its values to the nearest levels.
"""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, ModelFlag, Positional, argument, parse
from ebm_app.data.folder import list_images
from ebm_app.data.pictures import prepare_image, read_image
from ebm_app.ebm import EBM
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import AtLeastTwo, BatchSize, configuration, setting
from ebm_app.utils.files import replace_file
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import make_generator
from ebm_app.utils.tensors import standard_error

COLUMNS = ("file", "log_prob", "stderr", "bits_per_dim")


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    folder: Positional[Path] = argument("folder of images, searched with all below it")
    output: Path = setting("the table", Path("scores.csv"))
    estimator: str | None = setting("of log p; the model's own if not given", None)
    repeats: AtLeastTwo = setting("dequantisation draws of each image", 4)
    batch_size: BatchSize = setting("images read together", 128)
    skip_bad: bool = setting("leave out files that are no images, and count them", False)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Score the images; how many there are, and the mean of their bits."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    files = list_images(args.folder)
    rows, bad = [], 0
    for begin in tqdm(range(0, len(files), args.batch_size), desc="score"):
        images = {}
        for number, file in enumerate(files[begin : begin + args.batch_size], begin):
            try:
                images[number] = prepare_image(read_image(file), ebm.config)
            except UserError as error:
                if not args.skip_bad:
                    raise
                print(f"left out: {error}", file=sys.stderr)
                bad += 1
        if images:
            names = [files[number].relative_to(args.folder).as_posix() for number in images]
            rows += zip(names, *scored(ebm, images, args), strict=True)
    if not rows:
        raise UserError(f"the folder '{args.folder}' holds no images: give another")
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([COLUMNS, *rows])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    replace_file(args.output, table.getvalue().encode())
    bits = sum(row[-1] for row in rows) / len(rows)
    return {"output": str(args.output), "images": len(rows), "bad": bad, "bits_per_dim": bits}


def scored(ebm: EBM, images: dict[int, torch.Tensor], args: Arguments) -> list[list[float]]:
    """The columns after the names, of images (1, C, H, W) in [0, 1] by their numbers, whose noise
    is a function of these."""
    whole, shape = torch.cat([*images.values()]), (args.repeats, *ebm.config.image_shape)
    draws = [
        torch.rand(shape, generator=make_generator("cpu", args.seed, number)) for number in images
    ]
    found = [
        ebm.likelihood(whole, args.estimator, noise=noise[None], seed=args.seed + repeat)
        for repeat, noise in enumerate(torch.stack(draws, 1))
    ]
    log_probs, bits = (torch.stack([each[i] for each in found]).cpu() for i in (0, 1))
    errors = [standard_error(values).item() for values in log_probs.unbind(1)]
    return [log_probs.mean(0).tolist(), errors, bits.mean(0).tolist()]
