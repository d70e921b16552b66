"""How well models predict the noise at fixed log signal-to-noise ratios, with the same noise for
all: the mean over images of |e - e_hat|^2.

python evaluate/denoising.py mnist runs/mnist --split validation --limit 500

A model that was told class labels has a second row, in which it is told those of the images.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.data.levels import dequantise
from ebm_app.evaluation.held_out import Split, images_for
from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import CommonFlags, Positional, argument, parse
from ebm_app.io.fields import Number, Several, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.start import run_script
from ebm_app.numerics.tensors import seeded, standard_error, sum_except_batch
from studies.grid import to_markdown

BATCH = 100


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    models: Positional[tuple[str, ...]] = argument("folders, bundled names or hub ids of models")
    log_snr: tuple[Number, ...] = setting(
        "log signal-to-noise ratios", (-7.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 2.0, 6.0)
    )
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    split: Split = setting("train, validation or test", "validation")
    limit: Several | None = setting("take the first images only", None)
    output_dir: Path = setting("where the record goes", Path("runs/denoising"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Predict the noise of every model; the table."""
    args = parse(Arguments, __doc__, argv)
    output, rows = Output(args.output_dir / "denoising.json", to_dict(args)), []
    for name in args.models:
        ebm = EBM.from_pretrained(name, resolve_device(args.device))
        data = images_for(ebm, ebm.config.dataset, args.data_root)
        levels, told = data.split(args.split)[: args.limit], {name: None}
        if ebm.config.num_classes:
            told[f"{name}, told the label"] = data.split_labels(args.split)[: args.limit]
        for row, labels in told.items():
            found = [
                squared_errors(ebm, levels, labels, ratio, (args.seed, index))
                for index, ratio in enumerate(tqdm(args.log_snr, desc=row))
            ]
            error = [values.mean().item() for values in found]
            stderr = [standard_error(values).item() for values in found]
            rows.append({"model": row, "error": error, "stderr": stderr})
    columns = ["model", *(f"{ratio:g}" for ratio in args.log_snr)]
    cells = [[row["model"], *row["error"]] for row in rows]
    print(to_markdown([dict(zip(columns, row, strict=True)) for row in cells]))
    output.save({"log_snr": list(args.log_snr), "rows": rows})
    return {"rows": rows}


@torch.no_grad()
def squared_errors(
    ebm: EBM, levels: Tensor, labels: Tensor | None, log_snr: float, seed: tuple[int, ...]
) -> Tensor:
    """|e - e_hat|^2 of images (N, C, H, W) at a log signal-to-noise ratio, (N,) float64."""
    path, parts = ebm.energy.path, []
    (t,) = path.log_snr_inverse(torch.tensor([log_snr], dtype=torch.float64))
    alpha, sigma = path.alpha(t), path.variance(t).sqrt()
    for start in range(0, len(levels), BATCH):
        rows = slice(start, start + BATCH)
        batch, generator = levels[rows].to(ebm.device), seeded(ebm.device, *seed, start)
        middle = torch.full(batch.shape, 0.5, device=ebm.device)
        x1 = ebm.space.encode(dequantise(batch, ebm.config.num_levels, middle))
        e = torch.randn(x1.shape, device=ebm.device, generator=generator)
        energy = ebm.energy if labels is None else ebm.energy.given(labels[rows].to(ebm.device))
        score = energy.stein_score()(alpha * x1 + sigma * e, t.item())
        parts.append(sum_except_batch((e + sigma * score).double().square()).cpu())
    return torch.cat(parts)


if __name__ == "__main__":
    sys.exit(run_script(main))
