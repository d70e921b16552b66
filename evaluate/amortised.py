"""Compare the amortised likelihood of a model with the bound that it predicts, by kind of image.

python evaluate/amortised.py mnist --data_root data --limit 200

The table has the bits per dim by ``elbo``, the mean and standard deviation of amortised minus
``elbo`` over images, their correlation, and the mean stated error of an image. Kinds marked
* are in the training data of the network.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from anomaly_benchmark import unusual_images
from ebm_app.cli.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.data.unusual import KINDS
from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import images_for
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.utils.fields import AtLeastTwo, Draws, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    limit: AtLeastTwo = setting("number of ordinary test images", 200)
    num_unusual: AtLeastTwo = setting(
        "unusual images of each kind, made from the first test images", 20
    )
    num_draws: Draws = setting("draws of elbo, 16 network evaluations each", 4)
    output_dir: Path = setting("folder of the record", Path("runs/amortised"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Compare both likelihoods on test images and on every kind of unusual image."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    data = images_for(ebm.config, ebm.config.dataset, args.data_root)
    output = Output(args.output_dir / "amortised.json", args)
    source = data.test[: args.num_unusual]
    kinds = {"test images": data.test[: args.limit], "mirrored": source.flip(3)}
    kinds |= {"upside down": source.flip(2, 3)}
    kinds |= unusual_images(ebm.config, source, args.data_root, args.seed)
    rows = []
    for kind, levels in kinds.items():
        name = f"{kind} *" if kind in KINDS or kind == "test images" else kind
        rows.append({"images": name} | compare(ebm, levels, args.num_draws, args.seed))
        output.write({"table": rows})
    print(to_markdown(rows))
    output.save({"table": rows})
    return {"table": rows}


def compare(ebm: EBM, levels: Tensor, num_draws: int, seed: int) -> dict[str, float]:
    """Compare both likelihoods of images with levels (B, C, H, W), in bits per dim."""
    begin = time.process_time()
    predicted = ebm.likelihood(levels, estimator="amortised")
    seconds = time.process_time() - begin
    bound = ebm.likelihood(levels, estimator="elbo", num_draws=num_draws, seed=seed)
    bits = np.stack([bound.bits_per_dim.cpu().numpy(), predicted.bits_per_dim.cpu().numpy()])
    difference = bits[1] - bits[0]
    return {
        "num_images": len(levels),
        "elbo": float(bits[0].mean()),
        "difference": float(difference.mean()),
        "stderr": float(difference.std(ddof=1) / len(difference) ** 0.5),
        "spread": float(difference.std(ddof=1)),
        "correlation": float(np.corrcoef(bits)[0, 1]),
        "stated_error": float(to_bits_per_dim(-predicted.error, levels[0].numel()).mean()),
        "milliseconds": 1000 * seconds / len(levels),
    }


if __name__ == "__main__":
    raise SystemExit(run_script(main))
