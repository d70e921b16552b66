"""Check a model against identities of exact models, on held-out images.

ebm selftest digits

The result is on the last line and in selftest.json; it does not affect the exit code.
selftest.png shows the mean time score against the arc length of the path.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ebm_app.cli.command_line import parse
from ebm_app.cli.held_out import HeldOutFlags, held_out, open_model
from ebm_app.evaluation.selftest import run_checks
from ebm_app.utils import SELF_TEST_FILE
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output, to_markdown


@configuration(kw_only=True)
class Arguments(HeldOutFlags):
    output_dir: Path = setting("folder for the record and the plot", Path("runs/selftest"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all checks; return their values and whether they passed."""
    args = parse(Arguments, __doc__, argv)
    _, ebm = open_model(args)
    _, levels = held_out(args, ebm)
    output = Output(args.output_dir / SELF_TEST_FILE, args)
    from ebm_app.evaluation.plots import balance_figure  # matplotlib takes a second to import

    wrap = partial(tqdm, desc="self-test")
    balance, checks = run_checks(ebm, levels, args.seed, wrap)
    figures = {
        "passed": all(check.passed for check in checks),
        "checks": [check._asdict() for check in checks],
        "mean_time_score": {
            "shares": balance.shares.tolist(),
            "mean": balance.mean.tolist(),
            "stderr": balance.stderr.tolist(),
        },
        "num_images": len(levels),
        "model": args.model,
    }
    output.save(figures)
    save_figure(balance_figure(balance), output.folder / "selftest.png")
    print(to_markdown(figures["checks"]))
    return figures
