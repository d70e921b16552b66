"""The loss is one graph of torch.compile, and a GPU agrees with a CPU."""

from dataclasses import replace

import pytest
import torch
from conftest import GREY, TINY, figures_of, load_script

from ebm_app.ebm import EBM
from ebm_app.nets.unet import UNetConfig
from ebm_app.objectives.regression import CTSMv
from ebm_app.training.loop import Loss

ATTENTION = UNetConfig((8, 8), norm_num_groups=4, attention_levels=(1,), num_heads=2)
CONFIGS = {
    "levels": replace(GREY, prediction="levels", dequantisation="truncated_normal"),
    "labelled": replace(GREY, prediction="moments", num_classes=3, net=ATTENTION),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_loss_compiles_to_one_graph(config):
    torch.manual_seed(0)
    ebm = EBM(config)
    for weight in ebm.model.parameters():  # the last layers are 0
        torch.nn.init.normal_(weight, std=0.1)
    x, u = torch.randn(2, 4, 1, 8, 8)
    t = torch.tensor([0.1, 0.3, 0.9, 0.99], dtype=torch.float64)
    loss = Loss(ebm.model, CTSMv(stein_factor=1.0, divergence="poisson"))
    labels = [torch.tensor([0, 1, -1, 2])] if config.num_classes else []
    arguments = x, u, t, torch.ones_like(t), None, *labels
    compiled = torch.compile(loss, backend="eager", fullgraph=True)(*arguments)
    torch.testing.assert_close(compiled, loss(*arguments), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.gpu
def test_gpu_agrees_with_cpu(tmp_path):
    bits = {}
    train, bpd, sample = map(load_script, ("train/ebm.py", "evaluate/bpd.py", "sample/ebm.py"))
    for device in ("cpu", "cuda"):
        run, last = tmp_path / device, ["--device", device]
        figures = figures_of(train, *TINY, *last, "--max_train_steps", 2, "--output_dir", run)
        estimators = ["--estimator", "all", "--limit", 2, "--repeats", 1]
        rows = figures_of(bpd, tmp_path / "cpu", *estimators, *last)["estimators"]
        flags = ["--sampler", "annealed_hmc", "--num_images", 2, "--num_steps", 1, *last]
        figures_of(sample, tmp_path / "cpu", *flags, "--output_dir", run / "samples")
        bits[device] = [figures["bits_per_dim"], *(row["bits_per_dim"] for row in rows.values())]
        assert (run / "samples" / "00001.png").is_file()
    assert bits["cuda"] == pytest.approx(bits["cpu"], abs=1e-3)
