"""Scripts on a GPU, where one is: the numbers are those of the CPU up to round-off."""

import pytest
from conftest import TINY, load_script

pytestmark = pytest.mark.gpu


def metrics_of(script, *words):
    return load_script(script).main([str(word) for word in words])


def test_a_training_its_samples_and_its_bits_are_those_of_the_cpu(tmp_path):
    found = {}
    for device in ("cpu", "cuda"):
        run, last = tmp_path / device, ["--device", device]
        train = [*TINY, *last, "--max_train_steps", "2", "--output_dir", run]
        metrics = metrics_of("train/ebm.py", *train)
        estimators = ["--estimator", "all", "--limit", "2", "--repeats", "1"]
        bits = metrics_of("evaluate/bpd.py", tmp_path / "cpu", *estimators, *last)["estimators"]
        drawn = ["--sampler", "annealed_hmc", "--num_images", "2", "--num_steps", "1", *last]
        metrics_of("sample/ebm.py", tmp_path / "cpu", *drawn, "--output_dir", run / "drawn")
        found[device] = [metrics["bits_per_dim"], *(row["bits_per_dim"] for row in bits.values())]
        assert (run / "drawn" / "00001.png").is_file()
    assert found["cuda"] == pytest.approx(found["cpu"], abs=1e-3)
