"""``ebm COMMAND``, which is also ``python -m ebm_app.cli COMMAND``."""

import sys
from importlib import import_module

from ebm_app.cli.command_line import run_script

#: command -> its module in the package, and what it does
COMMANDS = {
    "train": ("cli.train", "an energy-based model of images"),
    "score": ("cli.score", "the log-likelihood of every image of a folder, as a table"),
    "evaluate": ("cli.bpd", "bits per dim on held-out images"),
    "sample": ("cli.sample", "draw images"),
    "ui": ("cli.app", "the web page"),
}


def main() -> int:
    """Run the command that the first word names; its exit code."""
    name, *words = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        lines = [f"  {command:9} {note}" for command, (_, note) in COMMANDS.items()]
        print("usage: ebm COMMAND ...", *lines, "ebm COMMAND --help says more.", sep="\n")
        return 0 if name in ("-h", "--help") else 2
    sys.argv = [f"ebm {name}", *words]
    return run_script(import_module(f"ebm_app.{COMMANDS[name][0]}").main)


if __name__ == "__main__":
    sys.exit(main())
