"""Command lines: each command has a frozen dataclass of flags and a ``main``.

    @configuration(kw_only=True)
    class Arguments(CommonFlags, ModelFlag):
        num_images: PositiveInt = setting("number of images", 64)

    def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
        args = parse(Arguments, __doc__, argv)
        ...
        return {"bits_per_dim": 1.67}

``run_script`` runs a ``main`` and prints the metrics that it returns. Flags are written
``--num_images 64``, lists ``--x 1 2``.
"""

import dataclasses
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from pydantic import TypeAdapter
from tyro.conf import OmitArgPrefixes, Positional
from tyro.constructors import PrimitiveConstructorSpec

from ebm_app.utils.errors import Interrupted, UserError, shorten, user_message
from ebm_app.utils.fields import Seed, configuration, setting, user_errors

T = TypeVar("T")
#: Types of numbers, in the words of an error
NUMBERS = {int: "an integer", float: "a number"}
Main = Callable[[Sequence[str] | None], dict[str, Any] | None]


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
    # tyro joins the lines of a paragraph
    lines = (description or "").strip().replace("\npython ", "\n\npython ")
    values = tyro.cli(
        _flags(kind, default),
        args=list(sys.argv[1:] if argv is None else argv),
        description=lines,
        use_underscores=True,
        # a flag that is on by default, as in a recorded run, needs a flag that turns it off
        config=() if default is not None else (tyro.conf.FlagCreatePairsOff,),
    )
    flags: dict[str, Any] = {}
    for name, value in vars(values).items():
        flags |= vars(value) if dataclasses.is_dataclass(value) else {name: value}
    with user_errors():
        return kind(**flags) if default is None else dataclasses.replace(default, **flags)


def _flags(kind: type, default: Any) -> type:
    """Return a dataclass of the flags of ``kind``, with the values of ``default``, if any. It has
    no range checks, so that ``kind`` itself reports values out of range.

    Flags of a base class with an attribute ``group`` are shown under this title in the help.
    """
    hints = get_type_hints(kind, include_extras=True)
    groups: dict[str, list[Any]] = {"": []}
    for item in dataclasses.fields(kind):
        if "help" in item.metadata:
            owner = next(base for base in kind.__mro__ if item.name in base.__annotations__)
            field = item
            if default is not None:
                value = getattr(default, item.name)
                field = dataclasses.field(default=value, metadata=item.metadata)
            shown = groups.setdefault(owner.__dict__.get("group", ""), [])
            shown.append((item.name, _flag_type(hints[item.name]), field))
    flags = groups.pop("")
    for name, shown in groups.items():
        group = dataclasses.make_dataclass(name, shown, kw_only=True)
        flags.append((name, OmitArgPrefixes[group], dataclasses.field(default_factory=group)))
    return dataclasses.make_dataclass(kind.__name__, flags, kw_only=True)


def _flag_type(hint: Any) -> Any:
    """Return the type of a flag. That of a number, or of a number or None, has an error that names
    what it expects."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    bases = [get_args(x)[0] if get_origin(x) is Annotated else x for x in members]
    kind, *others = sorted(bases, key=lambda base: base is NoneType)
    if kind not in NUMBERS or others not in ([], [NoneType]):
        return hint

    def read(words: list[str]) -> Any:
        if others and words == ["None"]:
            return None
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"expected {NUMBERS[kind]}, got {shorten(words[0])!r}") from None

    metavar = kind.__name__.upper()
    spec = PrimitiveConstructorSpec(
        1, metavar, read, lambda x: isinstance(x, kind | NoneType), lambda x: [str(x)]
    )
    return Annotated[hint, spec]


def peek(kind: type, words: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of some flags of ``kind``, on which the defaults of others depend."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest=name, nargs="?")
    texts = {k: v for k, v in vars(parser.parse_known_args(words)[0]).items() if v is not None}
    with user_errors():
        values = TypeAdapter(kind).validate_python(texts, strict=False)
    return {name: getattr(values, name) for name in texts}


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
