"""Files that a run reads and leaves: JSON records, tensors, and how they come to the disk."""

METRICS_FILE, RUN_FILE, PREVIEWS = "metrics.jsonl", "run.json", "previews"
SELF_TEST_FILE = "selftest.json"
