"""Settings in files of earlier versions: added keys, and renamed keys and values."""

from collections.abc import Iterable, Mapping
from typing import Any

#: Settings that were added since format 1, and the value that a file without them had.
ADDED: dict[str, Any] = {
    "max_train_minutes": None,
    "optimizer": "adam",
    "label_dropout": 0.4,
    "gradient_checkpointing": False,
    "compile": None,
    "network": "unet",
    "num_classes": 0,
    "early": None,
    "calibration": None,
}
#: Keys of files of earlier versions, and their new names; a key without a new name always had an
#: empty value.
OLD_KEYS = {
    "residual": "calibration",
    "palette": None,
    "ddp_args": None,
    "space_arguments": None,
    "arguments": None,
}
#: Values of settings in files of earlier versions, and their new names.
RENAMED: dict[str, dict[str, str]] = {
    "time_input": {"clock": "arc_length"},
    "weighting": {"time_score": "inverse_variance"},
    "objective": {"ctsm_m_deviance": "ctsm_m"},
}
#: Objective that was called ctsm_m in files without ``label_dropout``; it is no longer available.
RETIRED_OBJECTIVE = "ctsm_m with the gamma deviance"


def upgrade(data: Mapping[str, Any], keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return settings of an earlier version, as JSON data, with keys and values of this version.

    Args:
        data: a model configuration, or settings of a training.
        keys: settings of this version. Those that ``data`` lacks get the value that they had
            before they became settings.

    >>> upgrade({"palette": [], "path": {"name": "vp", "arguments": {}}}, ["network"])
    {'network': 'unet', 'path': {'name': 'vp'}}
    """
    values = {
        OLD_KEYS.get(key) or key: upgrade(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if value or OLD_KEYS.get(key, key) is not None
    }
    if values.get("objective") == "ctsm_m" and "label_dropout" not in values:
        values["objective"] = RETIRED_OBJECTIVE
    for key, names in RENAMED.items():
        if isinstance(values.get(key), str):
            values[key] = names.get(values[key], values[key])
    return {key: ADDED[key] for key in keys if key in ADDED} | values
