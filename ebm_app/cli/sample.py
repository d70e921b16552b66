"""Draw images from a model.

python sample/ebm.py digits --sampler dpm --sampler_args noise=1 --num_images 64
"""

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse
from ebm_app.data.pictures import image_grid, save_image, to_uint8
from ebm_app.ebm import EBM
from ebm_app.nets.labelled import RANDOM
from ebm_app.sampling.samplers import SAMPLERS, Sampler
from ebm_app.utils.fields import Count, NonNegative, PositiveInt, Steps, configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import choose, settings_of_each


def settings_text(kind: type[Sampler]) -> str:
    """The settings of a sampler with their defaults, in words."""
    others = [field for field in fields(kind) if field.name != kind.counts]
    return ", ".join(f"{field.name}={field.default}" for field in others)


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    sampler: str = setting(
        "; ".join(f"{name}: {kind.note}" for name, kind in SAMPLERS.items()), "dpm"
    )
    num_images: PositiveInt = setting("how many", 64)
    labels: tuple[Count | Literal["random"], ...] = setting(
        "class labels to draw, which take turns, or random; of a model that was told them", ()
    )
    guidance: NonNegative = setting(
        "towards the labels: 1 draws from p(x | label), more is clearer and less varied", 1.0
    )
    num_steps: Steps | None = setting(
        ", ".join(f"{kind.steps} of {name}" for name, kind in SAMPLERS.items())
        + "; the sampler's own number if not given",
        None,
    )
    sampler_args: tuple[str, ...] = setting(
        "further settings KEY=VALUE of the sampler. "
        + "; ".join(f"{name}: {settings_text(kind)}" for name, kind in SAMPLERS.items()),
        (),
    )
    output_dir: Path = setting("where grid and images go", Path("runs/samples"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Sample; the files written, the seconds taken and the evaluations of the score."""
    args = parse(Arguments, __doc__, argv)
    pairs = list(args.sampler_args)
    kind = SAMPLERS[choose("sampler", args.sampler, SAMPLERS)]
    if args.num_steps is not None:
        pairs.append(f"{kind.counts}={args.num_steps}")
    settings = settings_of_each({args.sampler: kind}, pairs)[args.sampler]
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output = Output(args.output_dir / "samples.json", args)
    begin = time.perf_counter()
    frames = ebm.iterate_sample(
        args.num_images,
        args.sampler,
        args.seed,
        RANDOM if args.labels == (RANDOM,) else args.labels or None,
        args.guidance,
        **settings,
    )
    with tqdm(desc=args.sampler) as bar:
        for frame in frames:
            bar.total = frame.num_steps
            bar.update()
    images = ebm.to_images(frame.x)
    seconds = time.perf_counter() - begin
    grid = output.folder / "grid.png"
    files = [output.folder / f"{index:05d}.png" for index in range(len(images))]
    written = [str(file) for file in (grid, *files)]
    figures = {"files": written, "seconds": seconds, "nfe": frame.nfe}
    save_image(image_grid(images), grid)
    for pixels, file in zip(to_uint8(images), files, strict=True):
        save_image(pixels, file)
    output.write(figures)
    return figures
