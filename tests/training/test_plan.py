"""Learning rates of a run, and when it saves, validates and logs."""

from ebm_app.config import LoopConfig
from ebm_app.training.plan import CONSTANT, Schedule


def test_constant_rate_warms_up_and_decays():
    settings = dict(learning_rate=1.0, lr_scheduler=CONSTANT, max_train_steps=20)
    schedule = Schedule(LoopConfig(**settings, lr_warmup_steps=4, lr_decay_steps=5))
    rates = [schedule.learning_rate(step) for step in range(21)]
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(rates[4:16]) == {1.0}
    assert rates[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    open_ended = Schedule(LoopConfig(**settings, lr_warmup_steps=0, lr_decay_steps=0))
    assert open_ended.learning_rate(0) == open_ended.learning_rate(20) == 1.0
