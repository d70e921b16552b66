"""The costs that are reported: of whole training steps, and of integrals at equal error."""

import json
from dataclasses import replace

import torch
from conftest import GREY, call
from exact import generator, two_modes

from ebm_app.image_models.ebm import EBM
from ebm_app.models.energy import TimeScoreEnergy
from ebm_app.paths import LinearVPPath
from ebm_app.spaces import build_space
from studies import speed

BATCH = 3


def test_objectives_are_timed_on_the_same_network():
    steps = speed.Steps(GREY, BATCH, {})
    trainers = {name: steps.trainer(name) for name in ("ctsm_v", "ctsm", "tsm")}
    sizes = {sum(p.numel() for p in trainer.parameters) for trainer in trainers.values()}
    assert len(sizes) == 1 and not trainers["tsm"].task.model.config.stein_head
    with_head = steps.trainer("ctsm_m", stein_head=True)
    assert sum(p.numel() for p in with_head.parameters) > sizes.pop()
    for trainer in (*trainers.values(), with_head):
        before = [p.clone() for p in trainer.parameters]
        for trainer.now.step in range(2):  # the first has no learning rate yet
            trainer.train_step()
        pairs = zip(trainer.parameters, before, strict=True)
        assert any(not torch.equal(now, then) for now, then in pairs)


def test_the_bare_network_sees_what_a_step_shows_it_and_nothing_changes():
    trainer, shapes = speed.Steps(GREY, BATCH, {}).trainer("ctsm_v"), []
    net = trainer.task.model.model.net
    net.register_forward_pre_hook(lambda _, inputs: shapes.append([p.shape for p in inputs]))
    action = speed.bare_network(trainer)
    weights = [p.clone() for p in trainer.parameters]
    action()
    assert shapes[0] == shapes[1] == [(BATCH, 1, 8, 8), (BATCH,)]
    assert all(map(torch.equal, weights, trainer.parameters))
    assert all(p.grad is None for p in trainer.parameters)


def test_the_space_of_a_step_is_the_model_s():
    space = build_space("gaussian", (1, 8, 8), 17, {})
    space.fit(torch.rand((400, 1, 8, 8), generator=generator(), dtype=torch.float64))
    config = replace(GREY, space="gaussian", net_input="x")
    trainer = speed.Steps(config, BATCH, space.state_dict()).trainer("tsm")
    for name, value in space.state_dict().items():
        assert torch.equal(trainer.task.model.space.state_dict()[name], value), name


def test_integrals_of_an_exact_model_get_better_with_more_evaluations():
    energy = TimeScoreEnergy(two_modes(LinearVPPath(), 1e-5, (1, 2, 2)))
    x = torch.randn((4, 1, 2, 2), generator=generator(), dtype=torch.float64)
    rules, solves = speed.integrations(energy, x, (6, 12, 24), (1e-2, 1e-5))
    assert [rule.nfe for rule in rules] == [6, 12, 24] and solves[0].name == "rk45 at 0.01"
    for ways in (rules, solves):
        errors, costs = [way.error for way in ways], [way.nfe for way in ways]
        assert errors == sorted(errors, reverse=True) and costs == sorted(costs)
    assert 0 < rules[-1].error < 1e-4
    way = speed.Integration
    rules = [way("a", 8, 1e-2), way("b", 16, 1e-3), way("c", 32, 1e-4)]
    solves = [way("x", 80, 1e-3), way("y", 90, 1e-5)]
    assert speed.at_equal_error(solves, rules) == {solves[0]: rules[1]}


def test_the_fields_of_an_exact_model_agree():
    energy = TimeScoreEnergy(two_modes(LinearVPPath(), 1e-5, (1, 2, 2))).with_nodes(48)
    x = torch.randn((4, 1, 2, 2), generator=generator(), dtype=torch.float64)
    found = speed.ode_gradient(energy, x, 0.6, 1e-6, 1e-6)
    assert torch.allclose(found, energy.score(x, 0.6), atol=1e-4)


def test_the_script_writes_tables(script, tmp_path, capsys):
    model, out = tmp_path / "model", tmp_path / "out"
    ebm = EBM(GREY)
    torch.nn.init.normal_(ebm.model.net.unet.conv_out.weight, std=0.02, generator=generator())
    ebm.save_pretrained(model)
    given = [model, "--quick", "--device", "cpu", "--output_dir", out]
    module = script("evaluate/speed.py")
    module.integrations = lambda *given: speed.integrations(*given, tolerances=(1e-2, 1e-3))
    assert call(module, *given, "--parts", "training", "likelihood", "sampling") == 0
    text = capsys.readouterr().out
    found = json.loads(text.splitlines()[-1])
    assert json.loads((out / "speed.json").read_text())["figures"] == found
    assert list(found["ratios"]) == ["training", "likelihood", "sampling"]
    bare, *others = found["ratios"]["training"]
    assert bare["step"] == "bare network" and bare["of the bare network"] == 1
    assert [row["step"] for row in others][:3] == ["ctsm_v", "ctsm", "tsm"]
    assert "| rk45 at 0.001 | " in text
    assert call(module, *given, "--parts", "luck") == 2
    assert "unknown part 'luck': choose one of leapfrog" in capsys.readouterr().err


def test_in_bfloat16_the_network_computes_so():
    trainer, seen = speed.Steps(GREY, BATCH, {}).trainer("ctsm_v"), []
    last = trainer.task.model.model.net.unet.conv_out
    last.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    torch.autocast("cpu", torch.bfloat16)(trainer.train_step)()
    assert seen == [torch.bfloat16]
