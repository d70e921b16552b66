"""Utilities of all layers, and file names of a run."""

METRICS_FILE, RUN_FILE, PREVIEWS = "metrics.jsonl", "run.json", "previews"
