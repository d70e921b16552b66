"""Runs on the page: argument checks, error messages, threads and stops."""

import asyncio
import threading
import time
from typing import Annotated

import gradio as gr
import pytest
from annotated_types import Ge, Le
from starlette.exceptions import HTTPException

from ebm_app.utils.errors import UserError
from ebm_app.web.runs import Upload, handler, in_lane
from ebm_app.web.shared import Seed


def test_user_errors_are_shown_and_others_logged(caplog):
    def fail(error):
        raise error

    def fail_later(error):
        yield 1
        raise error

    for call in (handler(fail), lambda error: list(handler(fail_later)(error))):
        caplog.clear()
        with pytest.raises(gr.Error) as caught:
            call(UserError("'<img src=x>' & more: leave it out"))
        assert caught.value.message == "'&lt;img src=x&gt;' &amp; more: leave it out"
        assert not caplog.records
        with pytest.raises(gr.Error) as caught:
            call(HTTPException(500, "secret"))
        assert len(caplog.records) == 1 and "secret" in caplog.text
        assert "secret" not in caught.value.message


def test_arguments_are_checked_and_fixed_ones_hidden():
    def run(rate: Annotated[float, Ge(1e-5), Le(0.1)], seed: Seed, image: Upload | None, *, own):
        yield rate, seed, image, own

    good = [1e-3, 7, {"path": "a.png", "meta": {}}]
    checked = handler(run, own=3)
    assert list(checked(*good)) == [(1e-3, 7, "a.png", 3)]
    for place, name, values in (
        (0, "rate", ("<b>", 0.2, float("nan"))),
        (1, "seed", (-1, 2.5, 10**400)),
        (2, "image", (3, {"a": 1})),
    ):
        for value in values:
            with pytest.raises(gr.Error) as caught:
                list(checked(*[value if at == place else kept for at, kept in enumerate(good)]))
            message = caught.value.message
            assert message.startswith(f"{name} must be ") and len(message) < 200
            assert "<" not in message and "\n" not in message


def steps_of(log, name, resume=None):
    """Return a run of two steps that logs them; the second one waits for ``resume``."""

    def run():
        try:
            for step in (1, 2):
                log.append((name, step, threading.get_ident()))
                if step == 2 and resume:
                    resume.wait(10)
                yield step
        finally:
            log.append((name, "closed", threading.get_ident()))

    return run


async def all_of(run, lane="long"):
    return [step async for step in in_lane(run, lane, [], None)()]


def test_runs_of_a_lane_alternate_in_one_thread():
    log = []

    async def two_runs():
        return await asyncio.gather(*(all_of(steps_of(log, name)) for name in "ab"))

    assert asyncio.run(two_runs()) == [[1, 2], [1, 2]]
    assert [step for _, step, _ in log][:4] == [1, 1, 2, 2]
    assert len({thread for *_, thread in log} | {threading.get_ident()}) == 2


def test_error_message_stays_in_the_text_box():
    def fail():
        yield ["picture", "text"]
        raise gr.Error("no &lt;ink&gt;: draw some")

    async def shown():
        steps = in_lane(fail, "long", outputs, outputs[1])()
        assert await anext(steps) == ["picture", "text"]
        assert await anext(steps) == [None, "Not done: no <ink>: draw some"]
        with pytest.raises(gr.Error):
            await anext(steps)

    outputs = [object(), object()]
    asyncio.run(shown())


def test_stop_returns_at_once_and_others_wait_for_the_step():
    log, resume = [], threading.Event()

    async def stop_and_continue():
        task = asyncio.create_task(all_of(steps_of(log, "first", resume)))
        while len(log) < 2:
            await asyncio.sleep(0.01)
        assert await all_of(steps_of([], "quick"), "quick") == [1, 2]  # does not wait
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begin < 1 and not resume.is_set()
        other = asyncio.create_task(all_of(steps_of(log, "second")))
        await asyncio.sleep(0.2)
        assert [entry[:2] for entry in log] == [("first", 1), ("first", 2)]
        resume.set()
        assert await other == [1, 2]

    asyncio.run(stop_and_continue())
    steps = [entry[:2] for entry in log]
    assert steps[2:4] == [("first", "closed"), ("second", 1)]
