"""Draw images from a model.

python sample/ebm.py digits --sampler dpm --sampler_args noise=1 --num_images 64

Writes one PNG file per image, and a grid of all images (grid.png), to the output folder.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.data.labels import NO_LABEL
from ebm_app.data.pictures import image_grid, save_image, to_uint8
from ebm_app.ebm import EBM
from ebm_app.sampling import SAMPLERS
from ebm_app.utils.fields import NonNegative, PositiveInt, Steps, configuration, setting
from ebm_app.utils.output import Output
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import choose, settings_of_each


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    sampler: str = setting(
        "dpm: DPM-Solver++(2M), for the ODE or, with noise=1, the SDE; probability_flow: the ODE "
        "by the solvers of the estimator probability_flow; annealed_hmc: annealed Hamiltonian "
        "Monte Carlo from noise to data",
        "dpm",
    )
    num_images: PositiveInt = setting("number of images", 64)
    labels: tuple[str, ...] = setting(
        "names or numbers of classes, used in turn, or none for the model without labels; for a "
        "class-conditional model; default: random",
        (),
    )
    guidance_scale: NonNegative = setting(
        "strength of the labels: 1 samples from p(x | label), larger values give clearer and less "
        "varied images",
        1.0,
    )
    num_steps: Steps | None = setting(
        "steps of the solver, or temperatures of annealed_hmc; if not given, the sampler's",
        None,
    )
    sampler_args: tuple[str, ...] = setting(
        "other settings KEY=VALUE; defaults: end_variance=0.001; dpm: noise=0; probability_flow: "
        "method=multistep (or rk4, dopri5), rtol=0.0001, atol=0.0001; "
        "annealed_hmc: schedule=arc_length, steps_per_temperature=1, num_leapfrog_steps=4, "
        "final_steps=5, step_size=0.5, score=head, acceptance=work",
        (),
    )
    output_dir: Path = setting("folder for the images", Path("runs/samples"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Sample and save images. Return the number of files, the seconds and the NFE."""
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
        NO_LABEL if args.labels == (NO_LABEL,) else args.labels or None,
        args.guidance_scale,
        **settings,
    )
    with tqdm(desc=args.sampler) as bar:
        for frame in frames:
            bar.total = frame.num_steps
            bar.update()
    images = ebm.to_images(frame.x)
    seconds = time.perf_counter() - begin
    save_image(image_grid(images), output.folder / "grid.png")
    for index, pixels in enumerate(to_uint8(images)):
        save_image(pixels, output.folder / f"{index:05d}.png")
    figures = {
        "output_dir": str(output.folder),
        "num_files": len(images) + 1,
        "seconds": seconds,
        "nfe": frame.nfe,
    }
    output.save(figures)
    return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
