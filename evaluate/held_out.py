"""What the page compares a visitor's image with, put into the folder of a model: log-likelihoods
of held-out images (held_out.json), and ten of these images as examples (example_0.png and on).

python evaluate/held_out.py digits --output_dir ebm_app/pretrained/digits
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.image_models.ebm import EBM
from ebm_app.io.cli import Parser, resolve_device
from ebm_app.io.errors import UserError
from ebm_app.io.writing import explained_write


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Find the log-likelihoods and write the files; their mean."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--output_dir", default="runs/held_out", help="where the files go: the model's folder")
    add("--device", default="auto", help="auto, cpu or cuda")
    args = parser.parse_args(argv)
    # seconds to import: --help does without
    from ebm_app.web.score.held_out import SEED, HeldOutImages, fingerprint
    from ebm_app.web.score.shipped import write_examples, write_likelihoods

    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    held_out, folder = HeldOutImages(args.data_root), Path(args.output_dir)
    images = held_out.images(ebm.config)
    if images is None:
        raise UserError(
            f"there are no held-out images of '{ebm.config.dataset}' in the form that the model "
            "takes: give the folder of the data sets with --data_root"
        )
    with explained_write(folder):  # before minutes of work
        folder.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(images)) as bar:
        for found in held_out.likelihoods(ebm, args.model):
            bar.update(len(found.log_prob) - bar.n)
    with explained_write(folder):
        write_likelihoods(folder, ebm, fingerprint(ebm), found.log_prob, SEED)
        write_examples(folder, ebm.config, images)
    return {"num_images": found.total, "mean_log_prob": found.log_prob.mean().item()}


if __name__ == "__main__":
    sys.exit(run_script(main))
