"""How well models predict the noise at fixed log signal-to-noise ratios, with the same noise for
all: where one network is better than another.

python evaluate/denoising.py mnist runs/mnist --split validation --limit 500

The figure is the mean over images of |eps - eps_hat|^2, in nats per unit of the log ratio twice
over: half of it, integrated, is the bound on log p. A model that was told class labels has a
second row, in which it is told those of the images.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.data.folder import SPLITS
from ebm_app.data.levels import dequantise
from ebm_app.evaluation.held_out import images_for
from ebm_app.image_models.ebm import EBM
from ebm_app.io.command_line import CommonFlags, Positional, argument, parse
from ebm_app.io.fields import BatchSize, Number, Several, configuration, setting
from ebm_app.io.output import Output
from ebm_app.io.processes import resolve_device
from ebm_app.io.records import to_dict
from ebm_app.io.registry import choose
from ebm_app.io.start import run_script
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.numerics.tensors import seeded, standard_error, sum_except_batch


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    models: Positional[tuple[str, ...]] = argument("folders, bundled names or hub ids of models")
    log_snr: tuple[Number, ...] = setting(
        "log signal-to-noise ratios", (-7.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 2.0, 6.0)
    )
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    split: str = setting("train, validation or test", "validation")
    limit: Several | None = setting("take the first images only", None)
    batch_size: BatchSize = setting("images taken together", 100)
    output_dir: Path = setting("where the record goes", Path("runs/denoising"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Predict the noise of every model and print the table."""
    args = parse(Arguments, __doc__, argv)
    split = choose("split", args.split, SPLITS)
    device, rows = resolve_device(args.device), []
    output = Output(args.output_dir / "denoising.json", to_dict(args))
    for name in args.models:
        ebm = EBM.from_pretrained(name, device)
        data = images_for(ebm, ebm.config.dataset, args.data_root, args.download)
        levels = data.split(split)[: args.limit]
        rows.append({"model": name, **errors(ebm.energy, ebm, levels, None, args)})
        if ebm.config.num_classes:
            labels = data.split_labels(split)[: args.limit].to(device)
            told = {"model": f"{name}, told the label"}
            rows.append(told | errors(ebm.energy, ebm, levels, labels, args))
    print("log snr" + "".join(f"{ratio:>16g}" for ratio in args.log_snr))
    for row in rows:
        cells = zip(row["error"], row["stderr"], strict=True)
        print("".join(f"{value:9.2f} ±{error:5.2f}" for value, error in cells), row["model"])
    output.write({"log_snr": list(args.log_snr), "rows": rows})
    return {"rows": rows}


def errors(
    energy: TimeScoreEnergy, ebm: EBM, levels: Tensor, labels: Tensor | None, args: Arguments
) -> dict[str, list[float]]:
    """Mean squared errors of the noise and their standard errors, one for each log ratio."""
    path, found = energy.path, []
    times = path.log_snr_inverse(torch.tensor(args.log_snr, dtype=torch.float64)).tolist()
    for index, t in enumerate(tqdm(times)):
        time, parts = torch.tensor(t, dtype=torch.float64), []
        for start in range(0, len(levels), args.batch_size):
            batch = levels[start : start + args.batch_size].to(ebm.device)
            generator = seeded(ebm.device, args.seed, index, start)
            middle = torch.full(batch.shape, 0.5, device=ebm.device)
            x1 = ebm.space.encode(dequantise(batch, ebm.config.num_levels, middle))
            e = torch.randn(x1.shape, device=ebm.device, generator=generator)
            given = energy
            if labels is not None:
                given = energy.given(labels[start : start + args.batch_size])
            sigma = path.variance(time).sqrt()
            with torch.no_grad():
                score = given.stein_score()(path.alpha(time) * x1 + sigma * e, t)
            parts.append(sum_except_batch((e + sigma * score).double().square()))
        found.append(torch.cat(parts).cpu())
    return {
        "error": [values.mean().item() for values in found],
        "stderr": [standard_error(values).item() for values in found],
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
