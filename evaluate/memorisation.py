"""Whether a model copies: the training images nearest to the images it draws, compared with those
nearest to held-out images.

python evaluate/memorisation.py digits
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le

from ebm_app.data.png import grid_of, save_image
from ebm_app.evaluation.held_out import images_for, last_frame
from ebm_app.evaluation.memorisation import nearest, share_of_copies
from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import CommonFlags, ModelFlag, parse
from ebm_app.io.fields import PositiveInt, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.start import run_script
from ebm_app.sampling.samplers import SAMPLERS

#: rows of a picture
Shown = Annotated[int, Ge(1), Le(100)]
#: of held-out distances, and training images in a row of the picture
QUANTILE, NUM_NEAREST = 0.01, 5


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    """The command line."""

    sampler: str = setting(f"how to draw: {', '.join(SAMPLERS)}", next(iter(SAMPLERS)))
    num_images: PositiveInt = setting("images drawn", 200)
    num_shown: Shown = setting("images in the picture, a row each", 12)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    output_dir: Path = setting("where record and picture go", Path("runs/memorisation"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw, compare, and write a picture; the metrics."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    data = images_for(ebm, ebm.config.dataset, args.data_root, args.download)
    output = Output(args.output_dir / "memorisation.json", to_dict(args))
    train, test = data.display(data.train), data.display(data.test)
    frames = ebm.iterate_sample(args.num_images, args.sampler, args.seed)
    drawn = ebm.to_images(last_frame(frames, args.sampler).x)
    of_drawn = nearest(drawn, train, min(NUM_NEAREST, len(train)))
    of_test = nearest(test[: len(drawn)], train, 1)
    own, others = of_drawn.distances[:, 0], of_test.distances[:, 0]
    metrics = {
        "num_images": len(drawn),
        "num_held_out": len(others),
        "median_distance": own.median().item(),
        "median_distance_held_out": others.median().item(),
        "copies": share_of_copies(own, others, QUANTILE),
        "quantile": QUANTILE,
        "identical": int((own == 0).sum()),
    }
    shown = min(args.num_shown, len(drawn))
    rows = torch.cat([drawn[:shown, None], train[of_drawn.indices[:shown]]], 1)
    sheet = grid_of(rows.flatten(0, 1), columns=rows.shape[1])
    with output.saving(metrics):
        save_image(sheet, output.folder / "memorisation.png")
    print(
        f"{len(drawn)} images by {args.sampler}: median distance to the nearest training image "
        f"{metrics['median_distance']:.4f} of the range of a pixel, of {len(others)} held-out "
        f"images {metrics['median_distance_held_out']:.4f}; {100 * metrics['copies']:.1f} percent "
        f"lie nearer than all but {100 * QUANTILE:g} percent of those; "
        f"{metrics['identical']} identical"
    )
    return metrics


if __name__ == "__main__":
    sys.exit(run_script(main))
