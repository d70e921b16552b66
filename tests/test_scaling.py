"""Several processes: what the exchange of gradients costs, and what is measured."""

import json

import pytest
from conftest import TINY

from ebm_app.runs.cli import run_script
from ebm_app.studies.scaling import Link, efficiency, exchange_seconds

FAST, SLOW = Link(10.0, 0.5), Link(2.0, 3.0)


def test_one_device_exchanges_nothing():
    assert exchange_seconds(1e9, 1, 1) == 0 and efficiency(0.1, 0) == 1


def test_a_ring_passes_all_but_one_share_twice():
    # 4 devices: 2 x 3 messages of 100/4 bytes at 10 bytes a second, with half a second each
    assert exchange_seconds(100, 4, 1, FAST, SLOW) == pytest.approx(6 * (2.5 + 0.5))


def test_hosts_exchange_the_share_of_a_device():
    inside = exchange_seconds(100, 4, 1, FAST, SLOW)
    # 3 hosts: 2 x 2 messages of 25/3 bytes at 2 bytes a second, with 3 seconds each
    whole = exchange_seconds(100, 4, 3, FAST, SLOW)
    assert whole == pytest.approx(inside + 4 * (25 / 3 / 2 + 3))
    assert exchange_seconds(100, 1, 3, FAST, SLOW) == pytest.approx(4 * (100 / 3 / 2 + 3))
    assert efficiency(whole, whole) == 0.5


@pytest.mark.slow
def test_the_script_measures_processes_that_work_together(script, tmp_path, capsys):
    flags = " ".join(TINY[:-2]).replace("--train_batch_size 4", "")
    flags = flags.replace(
        "--validation_images 4 --validation_repeats 1 --num_preview_images 4", ""
    )
    given = ["--ebm_flags", flags, "--max_train_steps", "3", "--train_batch_size", "4"]
    given += ["--step_ms", "5", "--output_dir", str(tmp_path), "--device", "cpu"]
    assert run_script(script("evaluate/scaling.py").main, given) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures["measured"]) == ["1", "2"]
    assert figures["measured"]["1"]["efficiency"] == 1
    assert len(figures["estimates"]) == 6
    assert figures["estimates"][3]["images_per_second"] == pytest.approx(4 / 5e-3)
