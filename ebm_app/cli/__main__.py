"""``ebm COMMAND``, which is also ``python -m ebm_app.cli COMMAND``."""

import sys
from importlib import import_module
from importlib.metadata import version

from ebm_app.cli.command_line import run_script

#: Commands, each a module of this folder, and what they do
COMMANDS = {
    "train": "train an energy-based model of images",
    "train_flow": "fit a normalising flow for the latent space of a model",
    "distill": "distil a model into an energy or a likelihood that needs one pass",
    "sample": "draw images from a model",
    "score": "write the log-likelihood of every image of a folder to a table",
    "bpd": "compute bits per dim on held-out images",
    "compare": "compare the settings and the bits per dim of two models",
    "ais": "estimate log Z with annealed chains",
    "anomaly": "test which images of a folder are unusual, or fit a detector",
    "selftest": "check a model against identities of exact models",
    "classify": "measure the accuracy of a class-conditional model",
    "samplers": "compare samplers by quality and cost",
    "ratio": "estimate the log density ratio of two samples",
    "mi": "estimate the mutual information of paired rows",
    "app": "serve the web page",
    "space": "write the folder of a Hugging Face Space that serves the page",
}
#: Other names of commands
ALIASES = {"evaluate": "bpd", "ui": "app", "flow": "train_flow", "train_energy": "distill"}


def main() -> int:
    """Run the command that the first word names and return the exit code."""
    name, *words = sys.argv[1:] or ["--help"]
    if name == "--version":
        print(f"ebm_app {version('ebm_app')}")
        return 0
    command = ALIASES.get(name, name)
    if command not in COMMANDS:
        lines = [f"  {command:12} {text}" for command, text in COMMANDS.items()]
        print("usage: ebm COMMAND ...", *lines, sep="\n")
        print("Flags: ebm COMMAND --help. Version: ebm --version.")
        return 0 if name in ("-h", "--help") else 2
    sys.argv = [f"ebm {name}", *words]
    return run_script(import_module(f"ebm_app.cli.{command}").main)


if __name__ == "__main__":
    sys.exit(main())
