"""Entry point of ``ebm COMMAND`` and ``python -m ebm_app.cli COMMAND``."""

import ast
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from ebm_app.cli.command_line import run_script

#: Command -> module of this package; the first line of its docstring is the summary
COMMANDS = {
    "sample": "sample",
    "bpd": "bpd",
    "score": "score",
    "ais": "ais",
    "samplers": "samplers",
    "ratio": "ratio",
    "mi": "mi",
    "toy": "toy",
    "ui": "app",
}


def main() -> int:
    """Run the command named by the first argument and return the exit code."""
    name, *words = sys.argv[1:] or ["--help"]
    if name == "--version":
        print(f"ebm_app {version('ebm_app')}")
        return 0
    if name not in COMMANDS:
        lines = [f"  {command:9} {summary(module)}" for command, module in COMMANDS.items()]
        print("usage: ebm COMMAND ...", *lines, sep="\n")
        print("Help: ebm COMMAND --help. Version: ebm --version.")
        return 0 if name in ("-h", "--help") else 2
    sys.argv = [f"ebm {name}", *words]
    return run_script(import_module(f"ebm_app.cli.{COMMANDS[name]}").main)


def summary(module: str) -> str:
    """Return the first line of the docstring of a module, without importing it."""
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)).partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
