"""Runs on the page: arguments held to their types, mistakes explained, threads, and stops."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Annotated

import gradio as gr
import pytest
from annotated_types import Ge, Le
from starlette.exceptions import HTTPException

from ebm_app.utils.errors import UserError
from ebm_app.web.runs import Upload, explained, stepwise
from ebm_app.web.shared import Seed


def test_visitors_read_mistakes_and_the_log_keeps_the_rest(caplog):
    def fail(error):
        raise error

    def fail_later(error):
        yield 1
        raise error

    for call in (explained(fail), lambda error: list(explained(fail_later)(error))):
        caplog.clear()
        with pytest.raises(gr.Error) as caught:
            call(UserError("'<img src=x>' & more: leave it out"))
        assert caught.value.message == "'&lt;img src=x&gt;' &amp; more: leave it out"
        assert not caplog.records
        with pytest.raises(gr.Error) as caught:
            call(HTTPException(500, "secret"))
        assert len(caplog.records) == 1 and "secret" in caplog.text
        assert "secret" not in caught.value.message


def test_arguments_are_held_to_their_types_and_the_pages_own_are_no_visitors():
    def run(
        rate: Annotated[float, Ge(1e-5), Le(0.1)],
        iterations: Annotated[int, Ge(1), Le(5000)],
        seed: Seed,
        image: Upload | None,
        on: bool,
        *,
        own: int,
    ):
        yield rate, iterations, seed, image, on, own

    good = [1e-3, 5, 7, {"path": "a.png", "meta": {}}, True]
    handler = explained(run, own=3)
    assert list(handler(*good)) == [(1e-3, 5, 7, "a.png", True, 3)]
    assert list(handler(*good[:3], None, True)) == [(1e-3, 5, 7, None, True, 3)]
    for place, name, values in (
        (0, "rate", (None, "", [], 0.2, 1e-6, float("nan"), float("inf"), {"a": 1})),
        (1, "iterations", (None, 0, 5001, 2.5, "x", [], 10**400)),
        (2, "seed", (-1, 2**31, None)),
        (3, "image", (3, [3], {"a": 1}, True)),
        (4, "on", (None, [], "<b>")),
    ):
        for value in values:
            with pytest.raises(gr.Error) as caught:
                list(handler(*[value if at == place else kept for at, kept in enumerate(good)]))
            message = caught.value.message
            assert message.startswith(f"{name} must be ") and len(message) < 200
            assert "<" not in message and "\n" not in message


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


async def all_of(run, lane="long", visitor="a"):
    request = SimpleNamespace(session_hash=visitor)
    return [step async for step in stepwise(run, lane, [], None)(request)]


@pytest.mark.parametrize(
    ("visitors", "steps"), [("ab", [1, 1, 2, 2]), ("aa", [1, 2, "closed", 1])]
)
def test_visitors_take_turns_by_one_thread_and_each_has_one_long_run(visitors, steps):
    log = []

    async def together():
        runs = [all_of(steps_of(log, n), "long", name) for n, name in enumerate(visitors)]
        return await asyncio.gather(*runs)

    assert asyncio.run(together()) == [[1, 2], [1, 2]]
    assert [step for _, step, _ in log][:4] == steps
    assert len({thread for *_, thread in log} | {threading.get_ident()}) == 2


def test_the_reason_of_an_error_stays_in_the_text():
    def fail():
        yield ["picture", "text"]
        raise gr.Error("no &lt;ink&gt;: draw some")

    async def shown():
        steps = stepwise(fail, "long", outputs, outputs[1])(SimpleNamespace(session_hash="a"))
        assert await anext(steps) == ["picture", "text"]
        assert await anext(steps) == [None, "Not done: no <ink>: draw some"]
        with pytest.raises(gr.Error):
            await anext(steps)

    outputs = [object(), object()]
    asyncio.run(shown())


def test_who_stops_is_let_go_within_a_step_and_others_of_the_lane_wait_for_it():
    log, going = [], threading.Event()

    async def stop_and_go_on():
        task = asyncio.create_task(all_of(steps_of(log, "first", going)))
        while len(log) < 2:
            await asyncio.sleep(0.01)
        assert await all_of(steps_of([], "quick"), "quick") == [1, 2]  # waits for nobody
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begin < 1 and not going.is_set()
        other = asyncio.create_task(all_of(steps_of(log, "second")))
        await asyncio.sleep(0.2)
        assert [entry[:2] for entry in log] == [("first", 1), ("first", 2)]
        going.set()
        assert await other == [1, 2]

    asyncio.run(stop_and_go_on())
    told = [entry[:2] for entry in log]
    assert told[2:4] == [("first", "closed"), ("second", 1)]
