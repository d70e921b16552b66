"""Write report.md of a training run from the records beside it.

python evaluate/report.py runs/digits
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebm_app.checkpoint import RUN_FILE, explained_write
from ebm_app.cli import Parser, run_script
from ebm_app.config import read_json
from ebm_app.errors import UserError

TEMPLATE = """# {name}

| figure | value |
| --- | --- |
| steps | {steps} |
| images a second in training | {images_per_second:.0f} |
| bits per dim in validation | {validation:.4f} |
| bits per dim, {num_images} {split} images | **{bits_per_dim:.4f} ± {stderr:.4f}** |
| estimated numerical error | {numerical_error:.1e} |
| dequantisation draws of each image | {repeats} |
| margin eps at t = 1 (variance left) | {eps:g} ({final_variance:.1e}) |
| evaluations of the network for an image | {nfe:.0f} |

Stopping at t = 1 - eps, and a density that is normalised only as far as the time score is exact,
are part of these bits: compare them with others at the same eps.

![samples](samples/grid.png)

![training](loss.png)

Trained by `{train}`, scored by `{score}`; revision {git_revision}, torch {torch}.
"""


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the report and print its figures."""
    parser = Parser(__doc__)
    parser.add_argument("run", help="folder of a training run that was scored")
    folder = Path(parser.parse_args(argv).run)
    run, score = read_json(folder / RUN_FILE), read_json(folder / "bpd.json")
    if run["figures"] is None:
        raise UserError(f"the run in {folder} has not ended: resume it, or report on another")
    text = TEMPLATE.format(
        name=folder.name,
        steps=run["figures"]["steps"],
        images_per_second=run["figures"]["images_per_second"],
        validation=run["figures"]["bits_per_dim"],
        train=" ".join(run["command"]),
        score=" ".join(score["command"]),
        git_revision=run["git_revision"],
        torch=run["versions"]["torch"],
        **score["figures"],
    )
    with explained_write(folder):
        (folder / "report.md").write_text(text, encoding="utf-8")
    keys = ("bits_per_dim", "stderr", "eps")
    figures = {key: score["figures"][key] for key in keys}
    print(
        f"{folder.name}, held out: {figures['bits_per_dim']:.4f} +- {figures['stderr']:.4f} "
        f"bits per dim at eps {figures['eps']:g}; see {folder}/report.md"
    )
    return {"report": str(folder / "report.md"), **figures}


if __name__ == "__main__":
    sys.exit(run_script(main))
