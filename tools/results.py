"""Run the commands behind the figures in the documents, and write the figures into the documents.

python tools/results.py run bits "python evaluate/bpd.py digits --labels"
python tools/results.py run bits --only mnist
python tools/results.py write

docs/results/ has a JSON file per table, with the record of each command: start, revision, SHA-256
of the weights of a bundled model, seconds and figures. "run" adds a command to a table or, without
a command, repeats the commands that contain the text of --only. "write" renders each marker
<!-- NAME -->...<!-- / --> of the Markdown files. tests/test_docs.py checks that the files are up
to date, and that the records are of the bundled weights.
"""

import argparse
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import safe_open

from ebm_app.utils.files import read_json, write_json
from ebm_app.utils.output import git_revision

ROOT = Path(__file__).resolve().parent.parent
RESULTS, BUNDLED = ROOT / "docs" / "results", ROOT / "ebm_app" / "pretrained"
#: Names of the JSON files; "checks" has no table, its figures are in the text
TABLES = ("bits", "samples", "ratios", "cost", "checks", "paper")
ESTIMATORS = ("elbo", "probability_flow", "path_integral", "time_integral", "energy")
#: Marker of a table or figure, and its end
MARKER = re.compile(r"(<!-- ([a-z0-9-]+) -->)(.*?)(<!-- / -->)", re.DOTALL)
Figures = dict[str, Any]


def records(table: str) -> dict[str, Figures]:
    """Return the records of a table, by command."""
    return read_json(RESULTS / f"{table}.json")


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
        "weights": weights_of(command),
        "seconds": round(time.time() - started, 1),
        "figures": json.loads(done.stdout.splitlines()[-1]),
    }
    path = RESULTS / f"{table}.json"
    write_json(path, (records(table) if path.exists() else {}) | {command: record})


def number(value: float | None, digits: int = 3, error: float | None = None) -> str:
    """Format a value with its error, or an empty cell.

    >>> number(1.66294, error=0.0158)
    '1.663 ± 0.016'
    """
    if value is None:
        return ""
    text = f"{value:.{digits}f}".replace("-", "−")
    return text if error is None else f"{text} ± {error:.{digits}f}"


def markdown(header: str, rows: list[list[str]]) -> str:
    """Format a Markdown table."""
    names = header.split(" | ")
    lines = [f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *rows]]
    return "\n".join(["", *lines, ""])


def with_commands(text: str, table: str, script: str = "") -> str:
    """Append the commands of a table, by default of all scripts."""
    commands = [command for command in records(table) if script in command]
    return "\n".join([text, "```bash", *commands, "```", ""])


def model_of(command: str) -> str:
    """Return the model argument of a command."""
    return shlex.split(command)[2]


def weights_of(command: str) -> str | None:
    """Return the SHA-256 of the weights of the bundled model that a command evaluates, or None."""
    for word in shlex.split(command)[2:3]:
        if (path := BUNDLED / word / "model.safetensors").is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return None


def figures_of(table: str, model: str) -> list[Figures]:
    """Return the figures of the commands of a table that evaluate a model."""
    found = records(table).items()
    return [record["figures"] for command, record in found if model_of(command) == model]


def bits_table() -> str:
    """Return bits per dim by model and estimator."""
    rows = []
    for command, record in records("bits").items():
        figures = record["figures"]
        results = [figures["estimators"].get(name, {}) for name in ESTIMATORS]
        rows.append(
            [
                f"`{model_of(command)}`" + (", given the class" * ("--labels" in command)),
                f"{figures['num_images']:,}",
                f"{figures['t_margin']:.1e}",
                *(number(x.get("bits_per_dim"), error=x.get("stderr")) for x in results),
            ]
        )
    names = " | ".join(f"`{name}`" for name in ESTIMATORS)
    return with_commands(markdown(f"model | images | t_margin | {names}", rows), "bits")


def samples_table() -> str:
    """Return the quality of samples by model and run, and of held-out images."""
    rows = []
    for command, record in records("samples").items():
        held_out, *deviation = record["figures"]["floor"]
        held_out["frechet_error"] = deviation[0]["frechet"] if deviation else None
        for row in (*record["figures"]["table"], held_out):
            of_class = row.get("of_class"), row.get("of_class_by_neighbour")
            rows.append(
                [
                    f"`{model_of(command)}`",
                    row["run"] if row is held_out else f"`{row['run']}`",
                    number(row.get("nfe"), 0),
                    number(row["frechet"], 1, row.get("frechet_error")),
                    number(row["confident_fraction"]),
                    ", ".join(filter(None, map(number, of_class))),
                    number(row.get("copies")),
                ]
            )
    header = "model | run | NFE | Fréchet distance | confident | of the class | copies"
    return with_commands(markdown(header, rows), "samples")


def ratios_table() -> str:
    """Return errors of log ratios, and estimates of mutual information."""
    rows = []
    for record in records("ratios").values():
        figures = record["figures"]
        if "dim" in figures:
            name = f"mutual information of Gaussians, D = {figures['dim']}"
            value = number(figures["value"], 2, figures["stderr"])
            rows.append([name, "CTSM-v", value, f"{figures['truth']:g}"])
        for row in figures.get("table", ()):
            name = f"error of the log ratio, `{row['problem']}`"
            error = f"{row['error']:.3g} ± {row['error_deviation']:.2g}"
            rows.append([name, f"`{row['method']}`", error, f"{row['paper_error']:.3g}"])
    return with_commands(markdown("what | method | result | truth or paper", rows), "ratios")


def cost_table() -> str:
    """Return the cost of a training step by objective, and of estimators by model."""
    rows = []
    for command, record in records("cost").items():
        for row in record["figures"]["table"]:
            name = f"step, {row['step']}, `{model_of(command)}`"
            share = f"{number(row['of tsm'], 2)} of TSM"
            rows.append([name, f"{number(row['ms'], 0)} ms", share])
    for model in ("digits", "mnist"):
        estimators = max((x["estimators"] for x in figures_of("bits", model)), key=len)
        for name, result in estimators.items():
            error = number(result["image_error"])
            nfe = f"{number(result['nfe'], 0)} NFE"
            rows.append([f"`{name}`, `{model}`", nfe, error and f"error {error}"])
    return with_commands(markdown("what | cost | compared with", rows), "cost")


def paper_rows(*problems: str) -> list[Figures]:
    """Return the rows of the problems whose names begin with one of ``problems``."""
    tables = (record["figures"].get("table", []) for record in records("paper").values())
    found = (row for table in tables for row in table)
    rows = [row for row in found if row.get("problem", "").startswith(problems)]

    def family_and_number(row: Figures) -> tuple[str, float]:
        family, number, _ = re.split(r"([\d.]+)", row["problem"], maxsplit=1)
        return family, float(number)

    return sorted(rows, key=family_and_number)


def paper_toy() -> str:
    """Return errors of the log ratio, beside those of the paper, and the terms of Theorem 4."""
    rows = []
    for row in paper_rows("gaussians", "mixtures"):
        terms = (row[key] for key in ("kl_squared", "discretisation", "estimation"))
        kl_squared, first, second = map(significant, terms)
        rows.append(
            [
                f"`{row['problem']}`",
                f"`{row['method']}`",
                f"{row['iterations']:,}",
                significant(row["error"], row["error_deviation"]),
                significant(row["paper_error"], row["paper_deviation"]),
                f"{number(row['ms'], 1)}, {number(row['paper_ms'], 1)}",
                f"{kl_squared} ≤ {first} + {second}",
                f"{row['learning_rate']:g}",
            ]
        )
    header = "problem | method | steps | error | paper | ms, paper | KL² ≤ Theorem 4 | rate"
    return with_commands(markdown(header, rows), "paper", "toy.py")


def paper_information() -> str:
    """Return estimates of the mutual information of the paper's Gaussians."""
    rows = []
    for row in paper_rows("mi_"):
        value = row.get("value", row.get("matrix"))
        deviation = row.get("deviation", row.get("matrix_deviation"))
        rows.append(
            [
                f"`{row['problem']}`",
                f"`{row['method']}`",
                number(value, 2, deviation) or "no value",
                f"{row.get('truth', row.get('divergence_truth')):g}",
                significant(row["error"]),
                number(row.get("ms"), 1),
                f"{row['iterations']:,}" if "iterations" in row else "",
            ]
        )
    header = "problem | method | information | truth | error of the log ratio | ms | steps"
    return with_commands(markdown(header, rows), "paper", "/mi")


#: Bits per dim of MNIST in table 1 of the paper, by space and method
PAPER_BITS = {
    "ambient-ctsm_v": "1.03",
    "ambient-tsm": "unstable",
    "latent-ctsm_v": "1.26",
    "latent-tsm": "1.30",
}


def paper_images() -> str:
    """Return the bits per dim of the paper's models of MNIST, and the time of a step."""
    rows = []
    for name, paper in PAPER_BITS.items():
        space, method = name.split("-")
        figures = figures_of("paper", f"runs/paper-{name}")
        bits = next(each["estimators"] for each in figures if "estimators" in each)
        rule, rk45 = bits.values()
        speed = figures_of("paper", f"runs/paper-{space}-ctsm_v")
        table = next(each["table"] for each in speed if "table" in each)
        step = next(row for row in table if row["step"] == method)
        rows.append(
            [
                f"{space}, `{method}`",
                number(rule["bits_per_dim"], 3, rule["stderr"]),
                f"{number(rk45['bits_per_dim'])}, {number(rk45['nfe'], 0)} NFE",
                paper,
                f"{number(step['ms'], 0)} ms, {number(step['of tsm'], 2)} of TSM",
            ]
        )
    header = "space, method | bits per dim | by RK45 | paper | step"
    return with_commands(markdown(header, rows), "paper", "runs/paper")


def significant(value: float | None, error: float | None = None) -> str:
    """Format a value by three significant digits, with its error.

    >>> significant(1234.5, 67.8)
    '1230 ± 68'
    """
    if value is None:
        return "not finite"
    text = f"{float(f'{value:.3g}'):g}"
    return text if error is None else f"{text} ± {float(f'{error:.2g}'):g}"


def models_table() -> str:
    """Return data, size, training run and bits of the bundled models."""
    rows = []
    for folder in sorted(BUNDLED.iterdir()):
        config = read_json(folder / "config.json")
        figures = read_json(folder / "run.json")["figures"]
        with safe_open(folder / "model.safetensors", "pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        shape = "×".join(str(size) for size in config["image_shape"])
        classes = ", class-conditional" if config["num_classes"] else ""
        megabytes = (folder / "model.safetensors").stat().st_size / 1e6
        cost = figures.get("core_seconds", figures["training_seconds"])
        rows.append(
            [
                f"`{folder.name}`",
                f"{config['dataset']}, {shape}, {config['num_levels']} levels{classes}",
                f"{sum(map(math.prod, shapes)) / 1e6:.2f} million, {megabytes:.1f} MB",
                f"{figures['steps']:,} steps of {figures['total_batch_size']}, {cost:,.0f} s",
                bits_of(folder.name),
            ]
        )
    return markdown("name | data | weights | training | bits per dim", rows)


def bits_of(model: str) -> str:
    """Return the bits per dim of a model on the most images, with their standard error."""
    best = max(figures_of("bits", model), key=lambda figures: figures["num_images"])
    result = best["estimators"]["elbo"]
    return number(result["bits_per_dim"], error=result["stderr"])


def gap(model: str) -> str:
    """Return by how many bits per dim ``time_integral`` exceeds ``elbo``."""
    all_results = (figures["estimators"] for figures in figures_of("bits", model))
    results = next(results for results in all_results if "time_integral" in results)
    return number(results["time_integral"]["bits_per_dim"] - results["elbo"]["bits_per_dim"], 2)


def information(dim: int) -> str:
    """Return the estimated mutual information of the paper's Gaussians, in nats."""
    runs = (record["figures"] for record in records("ratios").values())
    figures = next(figures for figures in runs if figures.get("dim") == dim)
    return number(figures["value"], 2, figures["stderr"])


def paper_estimate(problem: str, method: str) -> str:
    """Return the mutual information of a problem of the paper by a method, in nats."""
    row = next(row for row in paper_rows(problem) if row["method"] == method)
    return number(row["matrix"], 1)


def cost_of_a_step(model: str) -> str:
    """Return the time of a step of CTSM-v divided by that of TSM, on the network of a model."""
    (figures,) = figures_of("cost", model)
    return next(number(row["of tsm"], 2) for row in figures["table"] if row["step"] == "ctsm_v")


def frechet(model: str, rows: str) -> str:
    """Return the Fréchet distance of the first row of samples ("table") or of held-out images
    ("floor")."""
    row, *deviation = figures_of("samples", model)[0][rows]
    error = deviation[0]["frechet"] if rows == "floor" and deviation else None
    return number(row["frechet"], 1, error)


def auroc(model: str, score: str, digits: int) -> str:
    """Return the AUROC of images of another data set, the last kind, by a score."""
    *_, row = figures_of("checks", model)[0]["rows"].values()
    return number(row[score], digits)


#: Marker -> text
RENDERERS: dict[str, Callable[[], str]] = {
    "bits": bits_table,
    "samples": samples_table,
    "ratios": ratios_table,
    "cost": cost_table,
    "models": models_table,
    "paper-toy": paper_toy,
    "paper-information": paper_information,
    "paper-images": paper_images,
    "mi-40": partial(information, 40),
    "mi-320": partial(paper_estimate, "mi_d320", "ctsm_v_time1"),
    "mi-320-tsm": partial(paper_estimate, "mi_d320", "tsm_stein"),
    "cost-ctsm-v-mnist": partial(cost_of_a_step, "mnist"),
    "frechet-cifar10": partial(frechet, "cifar10", "table"),
    "frechet-cifar10-held-out": partial(frechet, "cifar10", "floor"),
    **{f"bits-{name}": partial(bits_of, name) for name in ("mnist", "fashion", "cifar10")},
    **{f"gap-{name}": partial(gap, name) for name in ("mnist", "cifar10")},
    **{f"auroc-{x}": partial(auroc, x, "likelihood", 2) for x in ("fashion", "cifar10")},
    **{f"detector-{x}": partial(auroc, x, "detector", 3) for x in ("fashion", "cifar10")},
}


def render(text: str) -> str:
    """Replace what is between the markers of a text by the tables and figures of the records."""
    return MARKER.sub(lambda match: match[1] + RENDERERS[match[2]]() + match[4], text)


def main() -> None:
    """Run commands, or write the figures of all records into the Markdown files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    runner = actions.add_parser("run", help="run commands and store their records")
    runner.add_argument("table", choices=TABLES)
    runner.add_argument("command", nargs="?", help="by default, all commands of the table")
    runner.add_argument("--only", default="", help="repeat the commands that contain this text")
    actions.add_parser("write", help="render the markers of README.md and docs/")
    args = parser.parse_args()
    if args.action == "write":
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
            page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for command in [args.command] if args.command else list(records(args.table)):
            if args.only in command:
                run(args.table, command)


if __name__ == "__main__":
    main()
