"""What visitors and programs send is checked before any component reads it: a mistake is answered
with a sentence that names its field."""

import math
from collections.abc import Sequence
from functools import singledispatch
from inspect import signature
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.components import Component
from gradio.state_holder import SessionState
from gradio.utils import get_upload_folder, is_in_or_equal
from gradio_client.utils import is_file_obj, is_valid_file, traverse
from pydantic import BaseModel

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened
from ebm_app.io.registry import nearest

from .explanations import explaining
from .ranges import real, whole

WRONG_FORM = "has a form that cannot be read: see the example under 'Use via API'"
NOT_UPLOADED = "names a file that is not on the page: upload it first"


class Page(gr.Blocks):
    """Gradio's page, whose events check what they are given."""

    async def preprocess_data(
        self,
        block_fn: BlockFunction,
        inputs: Sequence[Any],
        state: SessionState | None,
        explicit_call: bool = False,
    ) -> list[Any]:
        """As gradio's, for arguments that have passed."""
        with explaining(block_fn.name):
            checked = check_arguments(block_fn, inputs, state or {})
            return await super().preprocess_data(block_fn, checked, state, explicit_call)


def check_arguments(block_fn: BlockFunction, inputs: Sequence[Any], state: Any) -> list[Any]:
    """The arguments of an event, checked against its components.

    Args:
        state: component by number, as the visitor's session has changed them.

    Raises:
        UserError: naming the field, for a missing or superfluous argument, another type, and a
            value out of range or not among the choices.
    """
    components = block_fn.inputs
    if len(inputs) != len(components):
        names = ", ".join(signature(block_fn.fn).parameters)
        raise UserError(
            f"{len(inputs)} arguments were given in place of {len(components)}: give {names}"
        )
    given = zip(components, _names(block_fn), inputs, strict=True)
    return [_checked(component, name, value, state) for component, name, value in given]


def _checked(component: Component, name: str, value: Any, state: Any) -> Any:
    if component.stateful:  # the server's own
        return value
    known = state[component._id] if component._id in state else component
    return check(known, _field(component, name), value)


def _names(block_fn: BlockFunction) -> list[str]:
    """The arguments as a program calls them."""
    names = list(signature(block_fn.fn).parameters)
    return names if len(names) == len(block_fn.inputs) else [""] * len(block_fn.inputs)


def _field(component: Component, name: str) -> str:
    """A component as its visitors see it, and as a program calls it."""
    label = component.label or ""
    if not (label and name) or label.lower() == name:
        return label or name or component.get_block_name()
    return f"{label} ({name})"


@singledispatch
def check(component: Component, field: str, value: Any) -> Any:
    """One argument, checked: a file, or whatever else has a form of gradio's own. What is left
    out is for the event to explain.

    Raises:
        UserError: naming the field.
    """
    model = getattr(component, "data_model", None)
    if value is None or model is None:
        return value
    if not _has_form(model, value):
        raise UserError(f"{field} {WRONG_FORM}")
    kinds = getattr(component, "file_types", None)
    traverse(value, lambda file: _check_file(field, file["path"], kinds), is_file_obj)
    return value


def _has_form(model: type[BaseModel], value: Any) -> bool:
    if isinstance(value, dict) and not value.keys() & model.model_fields.keys():
        return False  # all of a drawing may be left out
    try:
        model.model_validate(value, context={"validate_meta": True})
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _check_file(field: str, path: str, kinds: list[str] | None) -> None:
    if kinds and not is_valid_file(path, kinds):
        raise UserError(f"{field} takes a file of another kind: give {' or '.join(kinds)}")
    try:
        is_there = is_in_or_equal(path, get_upload_folder()) and Path(path).is_file()
    except (OSError, ValueError):  # no path at all
        is_there = False
    if not is_there:
        raise UserError(f"{field} {NOT_UPLOADED}")


@check.register(gr.Number)
@check.register(gr.Slider)
def _number(component: gr.Number | gr.Slider, field: str, value: Any) -> float:
    # gradio's own check of the same limits does not name the field
    low = -math.inf if component.minimum is None else component.minimum
    high = math.inf if component.maximum is None else component.maximum
    is_whole = component.precision == 0 or component.step == 1
    return (whole if is_whole else real)(field, value, low, high)


@check.register
def _checkbox(component: gr.Checkbox, field: str, value: Any) -> bool:
    return _of_type(bool, "true or false", field, value)


@check.register
def _textbox(component: gr.Textbox, field: str, value: Any) -> str:
    return _of_type(str, "a text", field, value)


@check.register
def _group(component: gr.CheckboxGroup, field: str, values: Any) -> list[Any]:
    return [_choice(component, field, value) for value in _of_type(list, "a list", field, values)]


@check.register
def _dropdown(component: gr.Dropdown, field: str, value: Any) -> Any:
    one = _custom if component.allow_custom_value else _choice
    if not component.multiselect:
        return one(component, field, value)
    return [one(component, field, item) for item in _of_type(list, "a list", field, value)]


def _of_type(kind: type, wanted: str, field: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise UserError(f"{field} cannot be {shortened(value)}: give {wanted}")
    return value


def _custom(component: gr.Dropdown, field: str, value: Any) -> str:
    return _of_type(str, "a text", field, value)


def _choice(component: gr.Dropdown | gr.CheckboxGroup, field: str, value: Any) -> Any:
    choices = [choice for _, choice in component.choices]
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        given, names = shortened(value), list(map(str, choices))
        raise UserError(
            f"{field} cannot be {given}: {nearest(given, names)}choose one of {', '.join(names)}"
        )
    return value
