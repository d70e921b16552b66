"""Compare the settings of two models, and their bits per dim on the same images.

ebm compare runs/one runs/other
ebm compare digits digits-energy --limit 100

Each model is evaluated with its default estimator, on the same dequantisation noise. The standard
error is that of the paired differences.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import Positional, argument, parse
from ebm_app.cli.held_out import HeldOutFlags, held_out, open_model
from ebm_app.utils import RUN_FILE
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting, to_dict
from ebm_app.utils.files import read_json
from ebm_app.utils.output import Output, to_markdown


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    other: Positional[str] = argument("second model: folder, bundled name or hub id")
    output_dir: Path = setting("folder for the record", Path("runs/compare"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Compare two models; return the metrics on the main process, and None on others."""
    args = parse(Arguments, __doc__, argv)
    # slow to import, and not needed for --help
    import pandas as pd

    from ebm_app.evaluation.scoring import bits_by_estimator, disagreements
    from ebm_app.folders import find_folder
    from ebm_app.likelihood import make_estimator
    from ebm_app.likelihood.noise import dequantisation_noise
    from ebm_app.utils.processes import shut_down

    settings, bits = [], {}
    if args.model == args.other:
        raise UserError(f"Both models are {args.model}. Pass two different models.")
    for name in (args.model, args.other):
        accelerator, ebm = open_model(replace(args, model=name))
        # evaluate the second model on the data set of the first
        args = replace(args, dataset=args.dataset or ebm.config.dataset)
        _, levels = held_out(args, ebm)
        noise = dequantisation_noise(args.repeats, levels, args.seed)
        estimator = make_estimator(ebm.default_estimator, {}, args.seed)
        shared = accelerator, ebm, levels, noise, estimator, ebm.dequantiser, args.batch_size
        bar = partial(tqdm, desc=name, disable=not accelerator.is_main_process)
        bits[name], _ = bits_by_estimator(*shared, wrap=bar)
        record = find_folder(name) / RUN_FILE
        own = read_json(record)["settings"] if record.is_file() else {"ebm": to_dict(ebm.config)}
        settings += pd.json_normalize(own).to_dict("records")  # keys are paths of settings
    (pair,) = disagreements(bits)
    rows = [
        {"setting": key, "first": repr(one), "second": repr(other)}
        for key in sorted({*settings[0], *settings[1]})
        if (one := settings[0].get(key)) != (other := settings[1].get(key))
    ]
    means = {name: each.mean().item() for name, each in bits.items()}
    figures = {"bits_per_dim": means, **pair, "num_images": len(levels), "settings": rows}
    if accelerator.is_main_process:
        print(to_markdown(rows))
        print(to_markdown([{"model": name, "bits_per_dim": mean} for name, mean in means.items()]))
        print(f"difference: {pair['difference']:.4f} ± {pair['stderr']:.4f} bits per dim")
        Output(args.output_dir / "compare.json", args).save(figures)
    shut_down(accelerator)
    return figures if accelerator.is_main_process else None
