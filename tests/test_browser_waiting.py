"""Who waits for a run or stops it, in a headless Chromium: no press is lost, no wait silent."""

import re
import time

import pytest
from browsing import WAIT, barriers, open_tab, picture, press, set_number, text_of, wait_until

from ebm_app.image_models.ebm import EBM

pytestmark = pytest.mark.browser


def slowed(monkeypatch, owner, name, seconds):
    """Let every step of a generator take so long, and tell how many have begun."""
    method, begun = getattr(owner, name), []

    def slow(*args, **kwargs):
        for step in method(*args, **kwargs):
            begun.append(step)
            time.sleep(seconds)
            yield step

    monkeypatch.setattr(owner, name, slow)
    return begun


def seconds_until(page, label, pattern):
    begin = time.monotonic()
    text_of(page, label, pattern)
    return time.monotonic() - begin


def test_stop_answers_within_a_step_and_the_next_press_counts(visit, monkeypatch):
    slowed(monkeypatch, EBM, "iterate_sample", 4)
    page = visit()
    set_number(page, "Steps", 9)
    press(page, "Generate")
    for pause in (0, 300, 0):
        text_of(page, "Run", "^Step 1 of 9")
        page.wait_for_timeout(500)  # the second step has begun
        press(page, "Stop")
        assert seconds_until(page, "Run", "^Stopped after step 1 of 9") < 2
        assert page.get_by_alt_text("Grid of the images that were drawn").is_visible()
        page.wait_for_timeout(pause)
        press(page, "Generate")
        assert seconds_until(page, "Run", "^Waiting for a free place") < 2
    text_of(page, "Run", "^Step 1 of 9 · .* s, about [0-9]+ s left")
    press(page, "Stop")


def test_stop_answers_where_a_step_is_a_whole_estimate(visit, monkeypatch):
    log_prob = EBM.log_prob
    begun = []

    def slow(*args, **kwargs):
        begun.append(1)
        time.sleep(6 if len(begun) > 1 else 0)
        return log_prob(*args, **kwargs)

    page = visit()
    set_number(page, "Steps", 1)
    press(page, "Generate")
    page.locator(".tiles img").first.click(timeout=WAIT)
    page.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    press(page, "Log-likelihood of the image")
    text_of(page, "Place among held-out images", "^Percentile")
    monkeypatch.setattr(EBM, "log_prob", slow)
    press(page, "Other estimators")
    press(page, "Compare the estimators")
    wait_until(page, lambda: len(begun) > 1, begun)
    row = page.get_by_role("button", name="Compare the estimators").locator("xpath=..")
    row.get_by_role("button", name="Stop").click()
    assert seconds_until(page, "Comparison", "stopped before") < 2
    press(page, "Compare the estimators")
    assert seconds_until(page, "Comparison", "^Waiting for a free place") < 2
    assert seconds_until(page, "Comparison", "running") < 20
    row.get_by_role("button", name="Stop").click()


def test_who_waits_for_another_is_told_so_and_can_stop(visit, monkeypatch):
    slowed(monkeypatch, EBM, "iterate_sample", 2)
    first, second = visit(), visit()
    set_number(first, "Steps", 9)
    press(first, "Generate")
    text_of(first, "Run", "^Step")
    open_tab(second, "Toy")
    press(second, "Train")
    second.get_by_text(re.compile("queue: 1/1")).wait_for(timeout=WAIT)
    text_of(second, "Run", "^Waiting for a free place")
    picture(second, "waiting")
    assert barriers(second) == []
    press(second, "Stop")
    text_of(second, "Run", "^Stopped before the first step$")
    press(second, "Train")
    second.get_by_text(re.compile("queue: 1/1")).wait_for(timeout=WAIT)
    press(first, "Stop")
    text_of(second, "Run", "^Step")
    press(second, "Stop")


def test_an_image_is_scored_while_the_run_of_another_goes_on(visit, monkeypatch):
    slowed(monkeypatch, EBM, "iterate_sample", 4)
    first, second = visit(), visit()
    set_number(first, "Steps", 90)
    press(first, "Generate")
    text_of(first, "Run", "^Step")
    open_tab(second, "Score")
    open_tab(second, "Upload")
    second.locator(".gallery-item").locator("visible=true").first.click()
    second.get_by_alt_text("The image that was uploaded").wait_for(timeout=WAIT)
    press(second, "Log-likelihood of the image")
    text_of(second, "Place among held-out images", "^Percentile")
    text_of(first, "Run", "^Step")
    press(first, "Stop")


def test_a_mistake_leaves_nobody_waiting(visit):
    page = visit()
    open_tab(page, "Toy")
    page.get_by_label("Learning rate").locator("visible=true").fill("0")
    press(page, "Train")
    page.get_by_test_id("toast-body").wait_for(timeout=WAIT)
    text_of(page, "Run", "^$")
