"""Command lines: a script declares its flags as the fields of one configuration.

    @configuration(kw_only=True)
    class Arguments:
        model: Positional[str] = argument("a folder, a bundled name or a hub id")
        num_images: PositiveInt = setting("how many", 64)
        step_factor: Positive = advanced("multiplies the step sizes", 1.0)

    args = parse(Arguments, __doc__, argv)

Flags are written ``--num_images 64``, lists ``--x 1 2``. ``--help`` shows the common ones,
``--help_advanced`` all. What would take seconds to import is imported after parsing.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import tyro
from tyro.conf import Positional

from ebm_app.utils.fields import Seed, check_digits, configuration, from_strings, setting
from ebm_app.utils.registry import choose, import_extension, import_plugins

T = TypeVar("T")
#: a list of which every word has its own flag: ``--run a --run b``
Repeated = tyro.conf.UseAppendAction
MORE = "--help_advanced shows all flags. "
IMPORT = (
    "--import MODULE, of any script, imports a module of yours first, which may add paths, "
    "objectives, data sets and more (docs/extending.md)."
)
ADVANCED = "--help_advanced"


def argument(text: str) -> Any:
    """A field that must be given."""
    return dataclasses.field(metadata={"help": text})


@configuration(kw_only=True)
class CommonFlags:
    """The flags of every script."""

    seed: Seed = setting("seed of all noise", 0)
    device: str = setting("auto, cpu or cuda", "auto")


@configuration(kw_only=True)
class ModelFlag:
    """The model that a script takes."""

    model: Positional[str] = argument("a folder, a bundled name or a hub id")


def parse(kind: type[T], description: str | None, argv: Sequence[str] | None = None) -> T:
    """The configuration ``kind`` with the flags of a command line. Fields without a help text are
    no flags and keep their defaults.

    Raises:
        UserError: for a value out of its range.
        SystemExit: with code 2 for a flag that does not exist or a text of another type.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    importer = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    importer.add_argument("--import", dest="modules", action="append", default=[])
    extensions, words = importer.parse_known_args(words)
    import_plugins()
    for module in extensions.modules:
        import_extension(module)
    is_advanced = ADVANCED in words
    is_short = not is_advanced and any(word in ("-h", "--help") for word in words)
    has_advanced = any(item.metadata.get("advanced") for item in dataclasses.fields(kind))
    more = MORE if is_short and has_advanced else ""
    description = f"{(description or '').strip()}\n\n{more}{IMPORT}"
    values = tyro.cli(
        _flags(kind, hide_advanced=is_short),
        args=["--help" if word == ADVANCED else word for word in words],
        description=description,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    _check_digits(values, words)
    return kind(**vars(values))


def _check_digits(values: Any, words: Sequence[str]) -> None:
    """``check_digits`` of the words of a command line."""
    name = ""
    for word in words:
        text, is_flag = word, word.startswith("--")
        if is_flag:
            name, _, text = word[2:].partition("=")
        value = getattr(values, name.replace("-", "_"), None)
        first = value[0] if isinstance(value, tuple) and value else value
        check_digits(f"--{name}", text, first)
        if not isinstance(value, tuple) and (text or not is_flag):
            name = ""  # what follows is of no flag


def _flags(kind: type, hide_advanced: bool) -> type:
    """The flags of ``kind`` as a dataclass that checks no ranges: ``kind`` does, in its own
    words."""
    hints = get_type_hints(kind, include_extras=True)
    shown = [
        (item.name, hints[item.name], item)
        for item in dataclasses.fields(kind)
        if "help" in item.metadata and not (hide_advanced and item.metadata.get("advanced"))
    ]
    return dataclasses.make_dataclass(kind.__name__, shown, kw_only=True)


def given(args: Any, argv: Sequence[str] | None, kind: type) -> dict[str, Any]:
    """The values of the fields of ``kind`` that were written on the command line, by name."""
    words = sys.argv[1:] if argv is None else argv
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word[:2] == "--"}
    return {
        item.name: getattr(args, item.name)
        for item in dataclasses.fields(kind)
        if item.name in names
    }


def settings_of_each(kinds: Mapping[str, type], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings of dataclasses by their names; each pair goes to all that have such a field."""
    texts = {key: text for key, _, text in (pair.partition("=") for pair in pairs)}
    has = {name: {item.name for item in dataclasses.fields(kind)} for name, kind in kinds.items()}
    for key in texts:
        choose(f"setting of {', '.join(kinds)}", key, set().union(*has.values()))
    found = {}
    for name, kind in kinds.items():
        own = {key: text for key, text in texts.items() if key in has[name]}
        made = from_strings(kind, own)
        found[name] = {key: getattr(made, key) for key in own}
    return found
