"""Links to the page: its address holds model, tab, class, guidance and seed."""

import json
from collections.abc import Mapping

#: Writes values by name into the address of the browser
WRITE = """(...values) => {
  const names = NAMES, address = new URL(window.location);
  for (const [name, value] of Object.entries(FIXED)) address.searchParams.set(name, value);
  names.forEach((name, place) => address.searchParams.set(name, values[place]));
  window.history.replaceState(window.history.state, "", address);
}"""


def write_link(*names: str, **fixed: str) -> str:
    """Return JavaScript of an event that writes its inputs, by ``names``, and the ``fixed`` values
    into the address of the browser.

    >>> "tab" in write_link("model", tab="score")
    True
    """
    return WRITE.replace("NAMES", json.dumps(names)).replace("FIXED", json.dumps(fixed))


def read_number(parameters: Mapping[str, str], name: str, most: float) -> float | None:
    """Return a parameter of an address as a number from 0 to ``most``, or None if it is not one.

    >>> read_number({"seed": "7"}, "seed", 9), read_number({"seed": "-1"}, "seed", 9)
    (7.0, None)
    """
    try:
        value = float(parameters[name])
    except (KeyError, ValueError):
        return None
    return value if 0 <= value <= most else None
