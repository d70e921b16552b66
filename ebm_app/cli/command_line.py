"""Command lines: each command has a frozen dataclass of flags and a ``main``.

    @configuration(kw_only=True)
    class Arguments(CommonFlags, ModelFlag):
        num_images: PositiveInt = setting("number of images", 64)

    def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
        args = parse(Arguments, __doc__, argv)
        ...
        return {"bits_per_dim": 1.67}

``run_script`` runs a ``main`` and prints the metrics that it returns. Flags are written
``--num_images 64``, lists ``--x 1 2``. Slow imports come after parsing, so that ``--help`` is
fast.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_type_hints

import tyro
from tyro.conf import Positional

from ebm_app.utils.errors import Interrupted, UserError, user_message
from ebm_app.utils.fields import Seed, configuration, setting, user_errors
from ebm_app.utils.registry import import_extension

T = TypeVar("T")
Main = Callable[[Sequence[str] | None], dict[str, Any] | None]
HELP = ("-h", "--help")
IMPORT_NOTE = (
    "--import MODULE first imports a Python module, which may register paths, objectives, data "
    "sets and more (docs/extending.md)."
)


def argument(text: str) -> Any:
    """Return a required field with a help text."""
    return dataclasses.field(metadata={"help": text})


@configuration(kw_only=True)
class CommonFlags:
    """Flags of all commands."""

    seed: Seed = setting("random seed", 0)
    device: str = setting("auto, cpu or cuda", "auto")


@configuration(kw_only=True)
class ModelFlag:
    """Model argument of a command."""

    model: Positional[str] = argument("model: folder, bundled name or hub id")


@configuration(kw_only=True)
class ImageFileFlags:
    """Flags of a command that reads image files for a model."""

    resize: bool = setting(
        "centre-crop and resize images, and convert them to the colour and levels of the model",
        False,
    )


def parse(
    kind: type[T],
    description: str | None,
    argv: Sequence[str] | None = None,
    default: T | None = None,
) -> T:
    """Parse a command line into an instance of ``kind``.

    Fields with a help text are flags; other fields keep their default.

    Args:
        kind: dataclass of the flags.
        description: text at the top of ``--help``.
        argv: command-line arguments; default: those of ``sys.argv``.
        default: instance with the default values; if None, they are those of the class.

    Raises:
        UserError: if a value is out of range.
        SystemExit: with code 0 for ``--help``, and with code 2 for an unknown flag or a value of
            the wrong type.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    importer = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    importer.add_argument("--import", dest="modules", action="append", default=[])
    extensions, words = importer.parse_known_args(words)
    for module in extensions.modules:
        import_extension(module)
    # tyro joins the lines of a paragraph
    lines = (description or "").strip().replace("\nebm ", "\n\nebm ")
    values = tyro.cli(
        _flags(kind, default),
        args=words,
        description=f"{lines}\n\n{IMPORT_NOTE}",
        use_underscores=True,
        # a flag that is on by default, as in a recorded run, needs a flag that turns it off
        config=() if default is not None else (tyro.conf.FlagCreatePairsOff,),
    )
    with user_errors():
        return kind(**vars(values))


def _flags(kind: type, default: Any) -> type:
    """Return a dataclass of the flags of ``kind``, with the values of ``default``, if any. It has
    no range checks, so that ``kind`` itself reports values out of range."""
    hints = get_type_hints(kind, include_extras=True)
    shown = []
    for item in dataclasses.fields(kind):
        if "help" in item.metadata:
            field = item
            if default is not None:
                value = getattr(default, item.name)
                field = dataclasses.field(default=value, metadata=item.metadata)
            shown.append((item.name, hints[item.name], field))
    return dataclasses.make_dataclass(kind.__name__, shown, kw_only=True)


def wants_help(words: Sequence[str]) -> bool:
    """Return whether a command line asks for its help."""
    return any(word in HELP for word in words)


def without_help(words: Sequence[str]) -> list[str]:
    """Return a command line without the flags that ask for its help."""
    return [word for word in words if word not in HELP]


def run_script(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run the ``main`` of a command and return the exit code.

    The metrics that ``main`` returns are printed as JSON on the last line. An error that the user
    can fix is printed on stderr without a traceback, with exit code 2. The exit code is 128 + N
    after signal N.
    """
    try:
        figures = main(argv)
        if figures is not None:
            print(json.dumps(figures), flush=True)
    except (UserError, ImportError, OSError, MemoryError, RuntimeError) as error:
        message = user_message(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        advice = "resume with --resume_from_checkpoint latest"
        print(f"Stopped by {stop}. Saved {stop.saved}; {advice}.", file=sys.stderr)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    return 0
