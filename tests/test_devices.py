"""Training, likelihoods and samples on a GPU agree with the CPU."""

import pytest
from conftest import TINY, load_script

pytestmark = pytest.mark.gpu


def metrics_of(script, *words):
    return load_script(script).main([str(word) for word in words])


def test_gpu_agrees_with_cpu(tmp_path):
    bits = {}
    for device in ("cpu", "cuda"):
        run, last = tmp_path / device, ["--device", device]
        train = [*TINY, *last, "--max_train_steps", "2", "--output_dir", run]
        metrics = metrics_of("train/ebm.py", *train)
        estimators = ["--estimator", "all", "--limit", "2", "--repeats", "1"]
        rows = metrics_of("evaluate/bpd.py", tmp_path / "cpu", *estimators, *last)["estimators"]
        sample = ["--sampler", "annealed_hmc", "--num_images", "2", "--num_steps", "1", *last]
        metrics_of("sample/ebm.py", tmp_path / "cpu", *sample, "--output_dir", run / "samples")
        bits[device] = [metrics["bits_per_dim"], *(row["bits_per_dim"] for row in rows.values())]
        assert (run / "samples" / "00001.png").is_file()
    assert bits["cuda"] == pytest.approx(bits["cpu"], abs=1e-3)
