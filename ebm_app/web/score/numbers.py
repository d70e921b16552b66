"""Numbers with their errors, as a text shows them."""

import math


def with_error(value: float, error: float) -> str:
    """A value and its error, the error to two digits and the value to the same place, never as a
    power of ten.

    >>> with_error(-505.73, 10.49), with_error(0.92814, 0.0175), with_error(-2137.0, 134.0)
    ('-506 ± 10', '0.928 ± 0.018', '-2140 ± 130')

    Args:
        error: 0 for an exact value, which is shown to 4 decimals.
    """
    if not error:
        return f"{value:z.4f} ± 0"
    exponent = int(f"{error:.1e}".partition("e")[2])  # once rounded: 0.0996 is 0.10
    place = 1 - exponent
    return f"{to_place(value, place)} ± {to_place(error, place)}"


def to_place(value: float, place: int) -> str:
    """A number with so many decimals; a negative number rounds to tens and hundreds.

    >>> to_place(1234.56, 1), to_place(1234.56, -2)
    ('1234.6', '1200')
    """
    if not math.isfinite(value):
        return str(value)
    return f"{round(value, place):z.{max(place, 0)}f}"
