"""Benchmark an anomaly detector."""

from ebm_app.cli.command_line import run_script
from studies.anomaly import main

if __name__ == "__main__":
    raise SystemExit(run_script(main))
