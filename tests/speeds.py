"""Lines of metrics.jsonl without what is never twice the same."""

SPEEDS = ("images_per_second", "core_seconds")


def without_speeds(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The rows without how fast they came."""
    return [{key: value for key, value in row.items() if key not in SPEEDS} for row in rows]
