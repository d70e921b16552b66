"""What the page compares a visitor's image with, put into the folder of a model: log-likelihoods
of held-out images (held_out.json), and ten of these images as examples (example_0.png and on).

python evaluate/held_out.py digits --output_dir ebm_app/pretrained/digits
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import ModelFlag, parse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import configuration, setting
from ebm_app.io.processes import resolve_device
from ebm_app.io.start import run_script


@configuration(kw_only=True)
class Arguments(ModelFlag):
    """The command line."""

    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    output_dir: Path = setting("where the files go: the model's folder", Path("runs/held_out"))
    device: str = setting("auto, cpu or cuda", "auto")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Find the log-likelihoods and write the files; their mean."""
    args = parse(Arguments, __doc__, argv)
    # seconds to import: --help does without
    from ebm_app.evaluation.held_out_likelihoods import (
        held_out_images,
        likelihoods,
        write_held_out,
    )

    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    folder = args.output_dir
    images = held_out_images(ebm.config, args.data_root)
    if images is None:
        raise UserError(
            f"there are no held-out images of '{ebm.config.dataset}' in the form that the model "
            "takes: give the folder of the data sets with --data_root"
        )
    folder.mkdir(parents=True, exist_ok=True)  # before minutes of work
    with tqdm(total=len(images)) as bar:
        for found in likelihoods(ebm, images):
            bar.update(len(found.log_prob) - bar.n)
    write_held_out(folder, ebm, found.log_prob, images)
    return {"num_images": found.total, "mean_log_prob": found.log_prob.mean().item()}


if __name__ == "__main__":
    sys.exit(run_script(main))
