"""Run the commands behind the figures in the documents, and write their figures there.

python tools/results.py run bits "python evaluate/bpd.py digits --labels"
python tools/results.py run bits --only mnist
python tools/results.py write

docs/results/ has a JSON file per table, with the record of each command: its start, revision,
seconds and figures. "run" adds a command to a table or, without a command, repeats its commands
that contain the word of --only. "write" replaces what is between <!-- NAME --> and <!-- / --> in
the Markdown files by the table or figure of this name. tests/test_docs.py checks that it would
change nothing.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebm_app.utils.files import read_json, write_json
from ebm_app.utils.output import git_revision

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BUNDLED = ROOT / "docs" / "results", ROOT / "ebm_app" / "pretrained"
TABLES = ("bits", "samples", "ratios", "cost")
ESTIMATORS = ("elbo", "probability_flow", "path_integral", "time_integral", "energy")
MARKED = re.compile(r"(<!-- ([a-z0-9_-]+) -->)(.*?)(<!-- / -->)", re.DOTALL)
Row = list[str]


def records(table: str) -> dict[str, dict[str, Any]]:
    """Return the records of a table, by their commands."""
    return read_json(RESULTS / f"{table}.json")


def figures(table: str, *words: str) -> dict[str, Any]:
    """Return the figures of the first command of a table that contains all words."""
    for command, record in records(table).items():
        if set(words) <= set(shlex.split(command)):
            return record["figures"]
    raise KeyError(f"{table}: {words}")


def run(table: str, command: str) -> None:
    """Run a command and store its record. The last line of its output has the figures."""
    print(command, file=sys.stderr)
    started = time.time()
    with TemporaryDirectory() as folder:
        words = [sys.executable, *shlex.split(command)[1:], "--output_dir", folder]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    record = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "git_revision": git_revision(),
        "seconds": round(time.time() - started, 1),
        "figures": json.loads(done.stdout.splitlines()[-1]),
    }
    path = RESULTS / f"{table}.json"
    write_json(path, (records(table) if path.exists() else {}) | {command: record})


def with_error(value: float, error: float | None, digits: int = 3) -> str:
    """Format a value with its error.

    >>> with_error(1.66294, 0.0158)
    '1.663 ± 0.016'
    """
    number = f"{value:.{digits}f}".replace("-", "−")
    return number if error is None else f"{number} ± {error:.{digits}f}"


def table(header: str, rows: list[Row], name: str) -> str:
    """Format rows as a Markdown table, followed by the commands of the table ``name``."""
    names = header.split(" | ")
    lines = [names, ["---"] * len(names), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n{text}\n\n```bash\n" + "\n".join(records(name)) + "\n```\n"


def bits() -> str:
    """Bits per dim by model and estimator."""
    rows = []
    for command, record in records("bits").items():
        found = record["figures"]
        model = f"`{found['model']}`" + (", given the class" if "--labels" in command else "")
        cells = [found["estimators"].get(name) for name in ESTIMATORS]
        texts = [cell and with_error(cell["bits_per_dim"], cell["stderr"]) for cell in cells]
        margin = f"{found['t_margin']:.1e}".replace("e-0", "e-")
        rows.append([model, f"{found['num_images']:,}", margin, *(text or "" for text in texts)])
    names = " | ".join(f"`{name}`" for name in ESTIMATORS)
    return table(f"model | images | t_margin | {names}", rows, "bits")


def samples() -> str:
    """Measures of samples by model and run."""
    rows = []
    for command, record in records("samples").items():
        model, found = shlex.split(command)[2], record["figures"]
        *held_out, spread = found["floor"] if len(found["floor"]) == 2 else (*found["floor"], {})
        for row in (*found["table"], *held_out):
            error = spread.get("frechet") if row in held_out else None
            of_class = [row.get("of_class"), row.get("of_class_by_neighbour")]
            name = row["run"] if row in held_out else f"`{row['run']}`"
            rows.append(
                [
                    f"`{model}`",
                    name,
                    f"{row['nfe']:.0f}" if "nfe" in row else "",
                    with_error(row["frechet"], error, 1),
                    f"{row['confident_fraction']:.3f}",
                    ", ".join(f"{value:.3f}" for value in of_class if value is not None),
                    f"{row['copies']:.3f}" if "copies" in row else "",
                ]
            )
    header = "model | run | NFE | Fréchet distance | confident | of the class | copies"
    return table(header, rows, "samples")


def main() -> None:
    """Run commands, or write the figures of all records to the Markdown files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    runner = actions.add_parser("run")
    runner.add_argument("table", choices=TABLES)
    runner.add_argument("command", nargs="?")
    runner.add_argument("--only", default="", help="repeat the commands that contain this word")
    actions.add_parser("write")
    args = parser.parse_args()
    commands = [args.command] if args.command else list(records(args.table))
    for command in commands:
        if args.only in command:
            run(args.table, command)


if __name__ == "__main__":
    main()
