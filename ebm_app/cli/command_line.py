"""Command lines: each command has a frozen dataclass of flags and a ``main``.

    @configuration(kw_only=True)
    class Arguments(CommonFlags, ModelFlag):
        num_images: PositiveInt = setting("number of images", 64)
        step_factor: Positive = advanced("factor of the step sizes", 1.0)

    def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
        args = parse(Arguments, __doc__, argv)
        ...
        return {"bits_per_dim": 1.67}

``run_script`` runs a ``main`` and prints the metrics that it returns. Flags are written
``--num_images 64``, lists ``--x 1 2``. ``--help`` shows the common flags, ``--help_advanced`` all
flags. Slow imports come after parsing, so that ``--help`` is fast.
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
from ebm_app.utils.output import lasting_terminal
from ebm_app.utils.registry import choose, import_extension

T = TypeVar("T")
Main = Callable[[Sequence[str] | None], dict[str, Any] | None]
#: Names and aliases by setting, to check flags before slow imports. Tests compare the registries
NAMES = {
    "estimator": "elbo path_integral probability_flow time_integral energy noised pf_ode "
    "ratio paper",
    "sampler": "dpm probability_flow annealed_hmc",
    "objective": "ctsm ctsm_v ctsm_m tsm",
    "path": "linear_vp vp schrodinger_bridge",
    "space": "ambient display gaussian copula spline",
    "dequantisation": "uniform truncated_normal",
    "augmentation": "none flip affine",
    "optimizer": "adam muon",
}
ADVANCED = "--help_advanced"
ADVANCED_NOTE = f"{ADVANCED} shows all flags. "
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
class ConversionFlags:
    """Flags that convert image files to the size, channels and grey levels of a model."""

    resize: bool = setting("centre-crop and resize images to the size of the model", False)
    grayscale: bool = setting("convert colour images to grey, for a model of grey images", False)
    rgb: bool = setting("convert grey images to RGB, for a model of colour images", False)
    round_levels: bool = setting("round pixels to the grey levels of the model", False)

    def conversions(self) -> list[str]:
        """Return the names of the enabled conversions."""
        names = (item.name for item in dataclasses.fields(ConversionFlags))
        return [name for name in names if getattr(self, name)]


@configuration(kw_only=True)
class ImageFileFlags(ConversionFlags):
    """Flags of a command that reads image files for a model."""

    skip_bad: bool = setting("skip image files that cannot be used", False)


def parse(
    kind: type[T],
    description: str | None,
    argv: Sequence[str] | None = None,
    first: Sequence[str] = (),
) -> T:
    """Parse a command line into an instance of ``kind``.

    Fields with a help text are flags; other fields keep their default.

    Args:
        kind: dataclass of the flags.
        description: text at the top of ``--help``.
        argv: command-line arguments; default: those of ``sys.argv``.
        first: flags that ``--help`` lists first; the others follow in field order.

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
    is_short = ADVANCED not in words and any(word in ("-h", "--help") for word in words)
    has_advanced = any(item.metadata.get("advanced") for item in dataclasses.fields(kind))
    note = ADVANCED_NOTE if is_short and has_advanced else ""
    # tyro joins the lines of a paragraph
    lines = (description or "").strip().replace("\nebm ", "\n\nebm ")
    values = tyro.cli(
        _flags(kind, is_short, first),
        args=["--help" if word == ADVANCED else word for word in words],
        description=f"{lines}\n\n{note}{IMPORT_NOTE}",
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    with user_errors():
        return kind(**vars(values))


def _flags(kind: type, hide_advanced: bool, first: Sequence[str]) -> type:
    """Return a dataclass of the flags of ``kind`` without range checks, so that ``kind`` itself
    reports values out of range."""
    hints = get_type_hints(kind, include_extras=True)
    rank = {name: index for index, name in enumerate(first)}
    items = sorted(dataclasses.fields(kind), key=lambda item: rank.get(item.name, len(rank)))
    shown = [
        (item.name, hints[item.name], item)
        for item in items
        if "help" in item.metadata and not (hide_advanced and item.metadata.get("advanced"))
    ]
    return dataclasses.make_dataclass(kind.__name__, shown, kw_only=True)


def check_name(kind: str, name: str, *others: str) -> None:
    """Raise a UserError for a name that is neither registered nor in ``others``. If a module of
    ``--import`` may have registered classes, the name is not checked."""
    if "torch" not in sys.modules:
        choose(kind, name, [*NAMES[kind].split(), *others])


def explicit(args: Any, argv: Sequence[str] | None, kind: type) -> dict[str, Any]:
    """Return the values of the fields of ``kind`` that the command line sets explicitly."""
    words = sys.argv[1:] if argv is None else argv
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word[:2] == "--"}
    return {
        item.name: getattr(args, item.name)
        for item in dataclasses.fields(kind)
        if item.name in names
    }


def run_script(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run the ``main`` of a command and return the exit code.

    The metrics that ``main`` returns are printed as JSON on the last line. An error that the user
    can fix is printed on stderr without a traceback, with exit code 2. The exit code is also 2 if
    the metrics could not be written to stdout, and 128 + N after signal N.
    """
    code, problem = 0, None
    with lasting_terminal() as stdout:
        try:
            figures = main(argv)
            if figures is not None:
                print(json.dumps(figures))
        except (UserError, ImportError, OSError, MemoryError, RuntimeError) as error:
            if user_message(error) is None:
                raise
            code, problem = 2, f"error: {user_message(error)}"
        except Interrupted as stop:
            code, problem = (
                128 + stop.signum,
                (
                    f"Stopped by {stop}. Saved {stop.saved}; resume with "
                    "--resume_from_checkpoint latest."
                ),
            )
        except KeyboardInterrupt:
            code, problem = 130, "Stopped."
        stdout.flush()
        if code == 0 and stdout.is_lost:
            code = 2
            problem = "error: Could not write the metrics to stdout; they are in the run record."
        if problem:
            print(problem, file=sys.stderr)
    return code
