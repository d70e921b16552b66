"""The threads that compute for all visitors, and what the text of a run says around it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import pytest
import torch
from conftest import digit

from ebm_app.image_models.ebm import EBM
from ebm_app.web.buttons import (
    NEVER_BEGUN,
    WAITING,
    start_and_stop,
    start_by,
    stop_by,
    stopped,
    time_left,
)
from ebm_app.web.device import QUICK, on_device
from ebm_app.web.toy import tab as toy_tab


def steps_of(log, name, going=None):
    """A run that tells what it does; a second step goes on until ``going`` is set."""

    def run():
        try:
            for step in (1, 2):
                log.append((name, step, threading.get_ident()))
                if step == 2 and going:
                    going.wait(10)
                yield step
        finally:
            log.append((name, "closed", threading.get_ident()))

    return run


def test_runs_of_all_visitors_are_computed_by_one_thread_step_by_step():
    log = []

    async def visit(name):
        return [step async for step in on_device(steps_of(log, name))()]

    async def together():
        return await asyncio.gather(visit("a"), visit("b"))

    assert asyncio.run(together()) == [[1, 2], [1, 2]]
    assert len({thread for *_, thread in log}) == 1
    assert threading.get_ident() not in {thread for *_, thread in log}


def test_who_stops_is_let_go_within_a_step_and_the_next_run_waits_for_it():
    log, going = [], threading.Event()

    async def visit():
        async for _ in on_device(steps_of(log, "first", going))():
            pass

    async def stop_and_go_on():
        task = asyncio.create_task(visit())
        while len(log) < 2:
            await asyncio.sleep(0.01)
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begin < 1 and not going.is_set()
        other = asyncio.create_task(anext(on_device(steps_of(log, "second"))()))
        await asyncio.sleep(0.2)
        assert [entry[:2] for entry in log] == [("first", 1), ("first", 2)]
        going.set()
        assert await other == 1

    asyncio.run(stop_and_go_on())
    told = [entry[:2] for entry in log]
    assert told[:3] == [("first", 1), ("first", 2), ("first", "closed")]
    assert told[3] == ("second", 1)


def test_a_quick_run_is_answered_while_a_step_of_a_long_one_goes_on():
    log, going = [], threading.Event()

    async def visit():
        return [step async for step in on_device(steps_of(log, "long", going))()]

    async def together():
        task = asyncio.create_task(visit())
        while len(log) < 2:
            await asyncio.sleep(0.01)
        assert [step async for step in on_device(steps_of(log, "quick"), QUICK)()] == [1, 2]
        assert not task.done()
        going.set()
        assert await task == [1, 2]

    asyncio.run(together())


def test_a_model_draws_and_scores_in_two_threads_what_it_does_in_one(models):
    def draw():
        return models.load("grey").sample(4, "annealed_hmc", seed=1, num_steps=8)

    def score():
        ebm = EBM.from_pretrained(models.folder("grey"))  # weights of its own are drawn first
        return [ebm.log_prob(digit().expand(4, -1, -1, -1), seed=2).log_prob for _ in range(12)]

    def train():
        *_, last = toy_tab.train("gaussians_d2", "variance_preserving", ["tsm_stein"], 1e-3, 30, 3)
        return last[-1]["methods"]["tsm_stein"]["error"]

    runs = draw, score, train
    drawn, scored, error = [run() for run in runs]
    for long in (draw, train):
        with ThreadPoolExecutor(2) as threads:
            found, others = [thread.result() for thread in map(threads.submit, (long, score))]
        assert all(map(torch.equal, others, scored))
        assert torch.equal(found, drawn) if long is draw else found == error


def test_a_mistake_of_a_run_reaches_who_started_it():
    def run(number):
        yield number
        raise gr.Error("no")

    async def visit():
        async for step in on_device(run)(3):
            assert step == 3

    with pytest.raises(gr.Error, match="no"):
        asyncio.run(visit())


def test_a_run_says_that_it_waits_and_its_progress_covers_the_text_alone():
    def run():
        yield None, "Step 1 of 1"

    with gr.Blocks() as app:
        picture, text = gr.Image(), gr.Textbox()
        start, stop = start_and_stop("Go")
        event = start_by(start.click, run, [], [picture, text], api_name="go")
        stop_by(stop, [event], stopped, [text])
    waiting, started, failed, _, cancelling, told, asked = app.fns.values()
    assert waiting.js == f'() => "{WAITING}"' and waiting.outputs == [text] and not waiting.queue
    assert started.show_progress == "minimal" and started.show_progress_on == [text]
    assert started.trigger_mode == "always_last" and started.concurrency_limit == 1
    assert (
        failed.trigger_only_on_failure
        and WAITING in failed.js
        and failed.js.endswith('"" : found')
    )
    assert cancelling.cancels == [started._id]
    assert told.outputs == [text] and WAITING in told.js and NEVER_BEGUN in told.js
    assert asked.outputs == [text] and not asked.queue


def test_the_time_that_is_left_is_told_and_not_of_a_stopped_run():
    assert time_left(10.0, 5, 10) == ", about 10 s left"
    assert time_left(0.1, 9, 10) == ", about 1 s left"
    assert time_left(60.0, 1, 11) == ", about 10 min left"
    assert time_left(60.0, 11, 11) == ""
    for left in (", about 10 s left", ", about 3 min left"):
        text = f"Step 3 of 9 · grey · 2.0 s{left} · 9 evaluations"
        assert stopped(text) == "Stopped after step 3 of 9 · grey · 2.0 s · 9 evaluations"
