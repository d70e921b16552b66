"""The evaluation scripts on a tiny model: what they print, resume, and share among processes."""

import json
import math

import forked
import pytest
import torch
from PIL import Image

from ebm_app.cli.command_line import run_script
from ebm_app.config import EBMConfig, PathConfig, UNetConfig
from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.likelihood.dequantisation import TruncatedNormal, dequantisation_noise

NAMES = {"elbo", "noised", "pf_ode", "ratio", "paper"}
METHODS = ("transported", "diffused", "ais", "raise")
SHORT = (
    "--num_chains 4 --num_nodes 4 --split train --limit 4 --repeats 1 "
    "--num_leapfrog_steps 1 --device cpu"
).split()
AIS = ["--num_temperatures", "2"]


def random_model(folder, dataset, image_shape, num_levels):
    """A model with random weights: far from any density."""
    torch.manual_seed(0)
    net = UNetConfig(block_out_channels=(8,), norm_num_groups=4, dropout=0.0)
    ebm = EBM(EBMConfig(dataset, image_shape, num_levels, eps=1e-4, net=net, num_nodes=8))
    with torch.no_grad():
        for weight in ebm.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    ebm.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Of digits."""
    return random_model(tmp_path_factory.mktemp("model"), "digits", (1, 8, 8), 17)


@pytest.fixture(scope="module")
def small(tmp_path_factory, image_folder):
    """Of 2 x 2 images, where a Jacobian takes 4 passes."""
    dataset = f"folder:{image_folder}"
    return random_model(tmp_path_factory.mktemp("small"), dataset, (1, 2, 2), 256)


def call(module, capsys, *args):
    assert run_script(module.main, [str(arg) for arg in args]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out.strip().splitlines()[-1]), captured


def without_times(figures):
    if isinstance(figures, dict):
        return {k: without_times(v) for k, v in figures.items() if k != "seconds"}
    return [without_times(v) for v in figures] if isinstance(figures, list) else figures


@pytest.mark.process
def test_all_estimators_stand_in_one_table_with_their_disagreements(
    model, script, capsys, tmp_path
):
    figures, captured = call(
        script("evaluate/bpd.py"), capsys, model, "--estimator", "all", "--limit", 2,
        "--repeats", 1, "--estimator_args", "num_probes=1", "num_steps=3", "num_draws=2",
        "max_refinements=1", "--output_dir", tmp_path,
    )  # fmt: skip
    rows = figures["estimators"]
    assert set(rows) == NAMES and all(name in captured.out for name in NAMES)
    wanted = {"bits_per_dim", "stderr", "eps", "nfe", "num_images", "seconds", "final_variance"}
    assert all(wanted <= set(row) for row in rows.values())
    assert {key: figures[key] for key in rows["elbo"]} == rows["elbo"]  # leads
    pairs = {(pair["first"], pair["second"]): pair for pair in figures["disagreements"]}
    assert len(pairs) == 10
    pair, (a, b) = pairs[("pf_ode", "ratio")], (rows["pf_ode"], rows["ratio"])
    assert pair["difference"] == pytest.approx(a["bits_per_dim"] - b["bits_per_dim"], abs=1e-12)
    assert abs(pairs[("ratio", "paper")]["difference"]) < 0.05
    assert rows["paper"]["nfe"] > rows["ratio"]["nfe"]
    assert rows["ratio"]["eps"] == pytest.approx(1e-4)
    assert rows["pf_ode"]["numerical_error"] is None  # a single probe
    assert rows["pf_ode"]["nfe"] == (3 + 6) * 4 and rows["elbo"]["nfe"] == 32
    levels = load_images("digits").test[:2]
    noise = dequantisation_noise(1, levels, 0)
    found = EBM.from_pretrained(model).likelihood(levels, "noised", noise=noise)
    errors = found.error / (64 * math.log(2))
    assert rows["noised"]["image_error"] == pytest.approx(errors.square().mean().sqrt().item())
    assert rows["noised"]["numerical_error"] == pytest.approx(errors.norm().item() / 2)
    assert json.loads((tmp_path / "bpd.json").read_text())["figures"] == figures


def test_the_script_gives_the_likelihood_of_the_model(model, script, capsys, tmp_path):
    """By another dequantisation too, with settings of the estimator."""
    given = ["--estimator", "pf_ode", "--estimator_args", "num_steps=2", "--seed", 3]
    given += ["--dequantisation", "truncated_normal"]
    given += ["--limit", 3, "--repeats", 2, "--output_dir", tmp_path]
    figures, _ = call(script("evaluate/bpd.py"), capsys, model, *given)
    found = EBM.from_pretrained(model).likelihood(
        load_images("digits").test[:3],
        estimator="pf_ode",
        num_steps=2,
        dequantiser=TruncatedNormal(),
        repeats=2,
        seed=3,
    )
    assert figures["bits_per_dim"] == found.bits_per_dim.mean().item()
    assert figures["dequantisation"] == "truncated_normal"


def test_a_margin_that_was_never_learned_is_named(model, script, capsys, tmp_path):
    flags = [model, "--limit", 2, "--repeats", 1, "--output_dir", tmp_path]
    note = "trained on times up to"
    for eps, told in ((1e-5, True), (1e-3, False)):
        _, captured = call(script("evaluate/bpd.py"), capsys, *flags, "--eps", eps)
        assert (note in captured.err) == told


def test_every_method_finds_log_z(small, script, capsys, tmp_path):
    ais = script("evaluate/ais.py")
    arguments = [small, *SHORT, *AIS, "--output_dir", tmp_path, "--method"]
    both, _ = call(ais, capsys, *arguments, "both")
    assert both["method"] == "ais" and set(both["methods"]) == {"ais", "raise"}
    found, captured = call(ais, capsys, *arguments, "all")
    assert set(found["methods"]) == set(METHODS) and found["method"] == "transported"
    assert {"log_z", "stderr", "ess", "acceptance"} <= set(found)
    for name, row in found["methods"].items():
        assert name in captured.out and row["stderr"] > 0 and 0 < row["acceptance"] <= 1
        shift = row["log_z"] / (4 * 0.6931471805599453)
        assert row["bits_per_dim"] == pytest.approx(found["ratio_bits_per_dim"] + shift)
    assert {"forward_log_z", "reverse_log_z"} <= set(found["methods"]["transported"])
    # four chains cannot be believed, and the script says so
    assert "warning" in captured.out and found["methods"]["ais"]["warnings"]


@pytest.mark.process
def test_two_processes_give_the_numbers_of_one(small, script, capsys, tmp_path):
    name = "evaluate/bpd.py"
    flags = "--estimator pf_ode --estimator_args num_steps=3 --device cpu --split train".split()
    flags += "--limit 5 --repeats 1 --batch_size 1".split()
    one, _ = call(script(name), capsys, small, *flags, "--output_dir", tmp_path / "1")
    printed, flags = tmp_path / "2.txt", [small, *flags, "--output_dir", tmp_path / "2"]
    assert forked.run(name, flags, printed, num=2) == {0}
    (line,) = [line for line in printed.read_text().splitlines() if line.startswith("{")]
    assert without_times(one) == without_times(json.loads(line))


@pytest.fixture
def exact(tmp_path):
    """Images of noise of variance 0.04, and a network of zeros, which is their exact model."""
    generator = torch.Generator().manual_seed(0)
    for split, num in (("train", 2), ("validation", 2), ("test", 40)):
        (tmp_path / "noise" / split).mkdir(parents=True)
        for index in range(num):
            x = 0.2 * torch.randn(8, 8, generator=generator)
            pixels = (128 * (x + 1)).floor().to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "noise" / split / f"{index}.png")
    name, path = f"folder:{tmp_path / 'noise'}", PathConfig(c=0.04)
    net = UNetConfig(block_out_channels=(8,), norm_num_groups=4)
    config = EBMConfig(name, (1, 8, 8), 256, eps=1e-6, path=path, net=net)
    EBM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.process
def test_the_self_test_tells_a_good_model_from_a_bad_one(script, capsys, tmp_path, model, exact):
    selftest = script("evaluate/selftest.py")
    flags = ["--limit", 16, "--num_times", 4, "--pf_ode_steps", 6]
    good, captured = call(selftest, capsys, exact, *flags, "--output_dir", tmp_path / "a")
    assert good["passed"] and "predicted noise" in captured.out
    names = [check["name"] for check in good["checks"]]
    assert names == ["mean time score", "predicted noise", "elbo against pf_ode"]
    assert all(check["passed"] for check in good["checks"])
    assert (tmp_path / "a" / "selftest.png").stat().st_size > 1000
    bad, _ = call(selftest, capsys, model, *flags, "--output_dir", tmp_path / "b")
    assert not bad["passed"]
    assert run_script(selftest.main, ["digits", "--num_times", "1"]) == 2
    assert "greater than or equal to 2" in capsys.readouterr().err
