"""Draw images from a model.

python sample/ebm.py digits --sampler pf_ode --num_images 64
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.data.png import save_grid, save_image, to_uint8
from ebm_app.ebm import EBM
from ebm_app.runs.cli import Parser, RunRecord, resolve_device, run_script
from ebm_app.runs.files import explained_write
from ebm_app.sampling.samplers import SAMPLERS

#: further settings, each of one sampler
SETTINGS = {
    "solver": (str, "pf_ode: heun, rk4 or dopri5"),
    "tolerance": (float, "pf_ode: tolerance of dopri5"),
    "schedule": (str, "annealed_hmc: clock, sigmoid or linear"),
    "steps_per_temperature": (int, "annealed_hmc: transitions at a level"),
    "num_leapfrog_steps": (int, "annealed_hmc: leapfrog steps of a transition"),
    "final_steps": (int, "annealed_hmc: further transitions at the last level"),
    "num_nodes": (int, "annealed_hmc: nodes of the density that the accept step reads"),
    "score_nodes": (int, "annealed_hmc: nodes of the integral whose gradient drives"),
    "end_variance": (float, "conditional variance at which the sampler stops"),
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Sample; the files written, the seconds taken and the evaluations of the score."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--sampler", default="pf_ode", choices=sorted(SAMPLERS), help="how to draw")
    add("--num_images", type=int, default=64, help="how many")
    add(
        "--num_steps",
        type=int,
        help="ODE steps or annealing levels; the sampler's own if not given",
    )
    add("--score", help="Stein score: head or integral; the sampler's own if not given")
    for name, (kind, text) in SETTINGS.items():
        add(f"--{name}", type=kind, help=f"{text}; the sampler's own if not given")
    add("--output_dir", default="runs/samples", help="where grid and images go")
    parser.add_common()
    args = parser.parse_args(argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    output_dir = Path(args.output_dir)
    record = RunRecord(output_dir / "samples.json", vars(args))
    begin = time.perf_counter()
    settings = {name: getattr(args, name) for name in ("num_steps", "score", *SETTINGS)}
    frames = ebm.iterate_sample(args.num_images, args.sampler, args.seed, **settings)
    bar = tqdm(desc=args.sampler)
    with bar:
        for frame in frames:
            bar.total = frame.num_steps
            bar.update()
    images = ebm.to_images(frame.x)
    seconds = time.perf_counter() - begin
    with explained_write(output_dir):
        files = [output_dir / "grid.png"]
        save_grid(images, files[0])
        for index, pixels in enumerate(to_uint8(images)):
            files.append(output_dir / f"{index:05d}.png")
            save_image(pixels, files[-1])
    figures = {"files": [str(file) for file in files], "seconds": seconds, "nfe": frame.nfe}
    record.write(figures)
    return figures


if __name__ == "__main__":
    sys.exit(run_script(main))
