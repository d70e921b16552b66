"""The costs that are reported: of whole training steps, of memory, of integrals at equal error."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import GREY
from exact import generator, two_modes

from ebm_app.image_models.ebm import EBM
from ebm_app.io.start import run_script
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath
from ebm_app.spaces import build_space
from studies import training_speed as training
from studies.likelihood_speed import (
    Integration,
    adaptive,
    at_equal_error,
    fixed_nodes,
    reference,
)

BATCH = 3


@pytest.fixture
def steps():
    return training.Steps(GREY, BATCH, {})


def test_objectives_are_timed_on_the_same_network(steps):
    trainers = {name: steps.trainer(name) for name in ("ctsm_v", "ctsm", "tsm")}
    sizes = {sum(p.numel() for p in trainer.parameters) for trainer in trainers.values()}
    assert len(sizes) == 1 and not trainers["tsm"].task.model.config.stein_head
    with_head = steps.trainer("ctsm_m", stein_head=True)
    assert sum(p.numel() for p in with_head.parameters) > sizes.pop()
    for trainer in (*trainers.values(), with_head):
        before = [p.clone() for p in trainer.parameters]
        for _ in range(2):  # the first has no learning rate yet
            trainer.train_step()
        pairs = zip(trainer.parameters, before, strict=True)
        assert any(not torch.equal(now, then) for now, then in pairs)


def test_the_bare_network_sees_what_a_step_shows_it_and_nothing_changes(steps):
    trainer = steps.trainer("ctsm_v")
    shapes = []
    net = trainer.task.model.model.net
    net.register_forward_pre_hook(lambda _, inputs: shapes.append([p.shape for p in inputs]))
    action = training.bare_network(trainer)
    weights = [p.clone() for p in trainer.parameters]
    action()
    assert shapes[0] == shapes[1] == [(BATCH, 1, 8, 8), (BATCH,)]
    assert all(map(torch.equal, weights, trainer.parameters))
    assert all(p.grad is None for p in trainer.parameters)


def test_the_space_of_a_step_is_the_model_s():
    space = build_space("gaussian", (1, 8, 8), 17, {})
    space.fit(torch.rand((400, 1, 8, 8), generator=generator(), dtype=torch.float64))
    config = replace(GREY, space="gaussian", net_input="x")
    trainer = training.Steps(config, BATCH, space.state_dict()).trainer("tsm")
    for name, value in space.state_dict().items():
        assert torch.equal(trainer.task.model.space.state_dict()[name], value), name
    trainer.train_step()


def test_memory_counts_each_storage_once():
    x = torch.ones(1000, requires_grad=True)
    assert training.saved_bytes(lambda: (x * x).sum().backward()) == 4000
    assert training.saved_bytes(lambda: (x[:500] * x[500:]).sum().backward()) == 4000
    assert training.saved_bytes(lambda: x.sum().backward()) == 0


def test_operations_are_counted_forward_and_backward():
    a, b = torch.ones(2, 3), torch.ones(3, 5, requires_grad=True)
    assert training.flops(lambda: a @ b) == 2 * 2 * 3 * 5
    assert training.flops(lambda: (a @ b).sum().backward()) == 2 * (2 * 2 * 3 * 5)
    product, operations = training.matrix_product("cpu")
    assert training.flops(product) == operations


def test_the_profile_names_what_takes_longest():
    a = torch.ones(500, 500)
    shares = training.top_operations(lambda: [a @ a for _ in range(5)], "cpu", num=2)
    assert next(iter(shares)) == "aten::mm" and 0.5 < shares["aten::mm"] <= 1


def test_under_autocast_the_network_computes_in_bfloat16(steps):
    trainer = steps.trainer("ctsm_v")
    seen = []
    last = trainer.task.model.model.net.unet.conv_out
    last.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    training.under_autocast(trainer.train_step, "cpu")()
    trainer.train_step()
    assert seen == [torch.bfloat16, torch.float32]


def test_integrals_of_an_exact_model_get_better_with_more_evaluations():
    energy = TimeScoreEnergy(two_modes(LinearVPPath(), 1e-5, (1, 2, 2)))
    x = torch.randn((4, 1, 2, 2), generator=generator(), dtype=torch.float64)
    truth = reference(energy, x)
    rules = fixed_nodes(energy, x, truth, (6, 12, 24))
    solves = adaptive(energy, x, truth, (1e-2, 1e-5))
    assert [rule.nfe for rule in rules] == [6, 12, 24]
    for ways in (rules, solves):
        errors, costs = [way.error for way in ways], [way.nfe for way in ways]
        assert errors == sorted(errors, reverse=True) and costs == sorted(costs)
    assert 0 < rules[-1].error < 1e-4
    assert solves[0].name == "rk45 at 0.01"


def test_a_solve_stands_beside_the_smallest_rule_that_is_as_exact():
    rules = [Integration("a", 8, 1e-2), Integration("b", 16, 1e-3), Integration("c", 32, 1e-4)]
    solves = [Integration("x", 80, 1e-3), Integration("y", 90, 1e-5)]
    assert at_equal_error(solves, rules) == {solves[0]: rules[1]}


def test_the_script_writes_tables_and_a_plot(script, tmp_path, capsys):
    model, out = tmp_path / "model", tmp_path / "out"
    ebm = EBM(GREY)
    torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.02, generator=generator())
    ebm.save_pretrained(model)
    given = [str(model), "--quick", "--device", "cpu", "--output_dir", str(out)]
    speed = script("evaluate/speed.py")
    main, speed.adaptive = speed.main, partial(adaptive, tolerances=(1e-2, 1e-3))
    assert run_script(main, [*given, "--parts", "training", "growth", "likelihood"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text.splitlines()[-1])
    assert list(found) == ["training", "growth", "likelihood"]
    bare, *others = found["training"]
    assert bare["step"] == "bare network" and bare["of the bare network"] == 1
    assert [row["step"] for row in others][:3] == ["ctsm_v", "ctsm", "tsm"]
    assert [row["pixels"] for row in found["growth"]] == ["8x8"] * 3 + ["16x16", "24x24"]
    assert "| rk45 at 0.001 | " in text
    assert (out / "speed.png").stat().st_size > 10_000
    assert json.loads((out / "speed.json").read_text())["figures"] == found
    assert run_script(main, [*given, "--parts", "luck"]) == 2
    assert "unknown part 'luck': choose one of growth, leapfrog" in capsys.readouterr().err
