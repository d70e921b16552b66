"""Numbers in their ranges."""

import math
from typing import Any

from ebm_app.io.errors import UserError
from ebm_app.io.fields import shortened


def whole(name: str, value: Any, low: float, high: float) -> int:
    """A whole number from ``low`` to ``high``.

    Raises:
        UserError: for any other.
    """
    if not (_is_number(value) and low <= value <= high and value == int(value)):
        wanted = f"give a whole number from {low} to {high}"
        raise UserError(f"{name} cannot be {shortened(value)}: {wanted}")
    return int(value)


def real(name: str, value: Any, low: float, high: float) -> float:
    """A number from ``low`` to ``high``.

    Raises:
        UserError: for any other.
    """
    if not (_is_number(value) and low <= value <= high):
        wanted = f"give a number from {low:g} to {high:g}"
        raise UserError(f"{name} cannot be {shortened(value)}: {wanted}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
