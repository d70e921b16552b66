"""The page in a headless Chromium: what a visitor does, that nothing leaves the machine, and what
a screen reader or a telephone makes of it. Pictures of it are left in runs/browser."""

import json
import re
import time
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, free_port, load_script

from ebm_app.ebm import EBM
from ebm_app.evaluation.checks import Check, as_record
from ebm_app.web.server import serve

pytestmark = pytest.mark.browser
PICTURES = ROOT / "runs" / "browser"
TABS = ("Generate", "Score", "Toy", "Mutual information", "Diagnostics")
WAIT = 60_000
#: what axe finds in the components of gradio itself, which no setting of the page changes
OF_GRADIO = {("aria-prohibited-attr", "Empty value"), ("button-name", 'class="gallery-item')}


@pytest.fixture(scope="module")
def address(page):
    yield serve(page, "127.0.0.1", free_port(), None)
    page.close(verbose=False)


@pytest.fixture(scope="module")
def browser():
    with load_script("tools/browser.py").open_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser, address):
    """Open the page in a window of its own; in the end, no request has left this machine."""
    contexts, hosts = [], set()

    def visit(width=1280, theme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        context.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        page = context.new_page()
        page.goto(f"{address}?__theme={theme}")
        page.get_by_role("button", name="Generate", exact=True).wait_for(timeout=WAIT)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert hosts - {None} == {"127.0.0.1"}  # None: pictures that are in the page itself


def picture(page, name):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def text_of(page, label, pattern):
    """The text of a box, once it is what it should be."""
    box, begin = page.get_by_label(label, exact=True), time.monotonic()
    while not re.search(pattern, box.input_value()):
        assert time.monotonic() - begin < WAIT / 1000, box.input_value()
        page.wait_for_timeout(50)
    return box.input_value()


def open_tab(page, name):
    tab = page.get_by_role("tab", name=name, exact=True)
    if tab.count():
        tab.click()
        return
    page.get_by_role("button", name="More tabs").click()  # of a narrow window
    page.locator(".overflow-dropdown:visible").get_by_role("button", name=name).click()


def set_number(page, label, value):
    box = page.get_by_role("spinbutton", name=re.compile(f"for {label}$"))
    if not box.is_visible():
        press(page, "Advanced")
    box.fill(str(value))
    box.press("Tab")


def press(page, name):
    page.get_by_role("button", name=name).locator("visible=true").first.click()


def barriers(page):
    """What axe calls serious or critical, short of what is gradio's own."""
    violations = Axe().run(page).response["violations"]
    nodes = [
        (violation["id"], node["html"][:200], node["failureSummary"][-120:])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    return [
        (name, html, summary)
        for name, html, summary in nodes
        if not any(name == known and part in html for known, part in OF_GRADIO)
    ]


def test_a_grid_is_drawn(visit):
    page = visit()
    set_number(page, "Steps", 3)
    page.get_by_role("button", name="Generate", exact=True).click()
    text_of(page, "Run", "^16 images · grey · seed")
    grid = page.get_by_alt_text("Grid of the images that were drawn")
    assert grid.evaluate("image => image.naturalWidth % (4 * 9 - 1)") == 0
    assert grid.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    picture(page, "generate")
    assert barriers(page) == []


def test_a_run_is_stopped_and_what_it_drew_stays(visit):
    page = visit()
    set_number(page, "Steps", 200)
    page.get_by_role("button", name="Generate", exact=True).click()
    text_of(page, "Run", "^Step")
    page.get_by_role("button", name="Stop", exact=True).locator("visible=true").click()
    stopped = text_of(page, "Run", "^Stopped after step")
    page.wait_for_timeout(500)
    assert page.get_by_label("Run", exact=True).input_value() == stopped
    assert page.get_by_alt_text("Grid of the images that were drawn").is_visible()


def test_a_drawn_digit_has_a_log_likelihood(visit):
    page = visit()
    open_tab(page, "Score")
    canvas = page.locator("canvas").first
    canvas.wait_for(timeout=WAIT)
    page.wait_for_timeout(1000)  # the brush comes after the canvas
    box = canvas.bounding_box()
    across, down = box["x"] + box["width"] / 2, box["y"]
    page.mouse.move(across, down + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(across, down + box["height"] * 0.8, steps=12)
    page.mouse.up()
    page.wait_for_timeout(500)
    page.get_by_role("button", name="Log-likelihood of the drawing").click()
    text = text_of(page, "Log-likelihood", "^Bits per dim")
    assert re.match(r"Bits per dim: -?\d+\.\d+ ± \d+\.\d+ \(-?[\d.]+ ± [\d.]+ nats\)", text)
    picture(page, "score")
    assert barriers(page) == []


def test_a_bad_file_is_refused_in_a_sentence_and_the_page_goes_on(visit, tmp_path):
    bad = tmp_path / "photo.png"
    bad.write_text("no image")
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").locator("visible=true").first.click()
    chooser.value.set_files(bad)
    page.wait_for_timeout(500)
    page.get_by_role("button", name="Log-likelihood of the image").click()
    toast = page.get_by_test_id("toast-body")
    toast.wait_for(timeout=WAIT)
    assert "photo.png' as an image" in toast.inner_text()
    assert str(tmp_path) not in toast.inner_text()
    open_tab(page, "Generate")
    set_number(page, "Steps", 1)
    page.get_by_role("button", name="Generate", exact=True).click()
    text_of(page, "Run", "^16 images")


def test_diagnostics_say_what_the_model_is(visit):
    page = visit()
    open_tab(page, "Diagnostics")
    page.get_by_role("cell", name="8 × 8 pixels, grey, 17 levels").wait_for(timeout=WAIT)
    text_of(page, "Training", "No training curves")
    set_number(page, "Chains", 2)
    set_number(page, "Temperatures", 3)
    page.get_by_role("button", name="Estimate log Z").click()
    text_of(page, "log Z", "Effective sample size")
    picture(page, "diagnostics")
    assert barriers(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_tab_is_accessible(visit, theme):
    page, found = visit(theme=theme), []
    for tab in TABS:
        open_tab(page, tab)
        page.wait_for_timeout(1000)
        picture(page, f"{theme}-{tab.lower().replace(' ', '-')}")
        found += barriers(page)
    assert found == []


def test_a_telephone_shows_every_tab_without_scrolling_sideways(visit):
    page = visit(width=390)
    for tab in TABS:
        open_tab(page, tab)
        page.wait_for_timeout(1000)
        picture(page, f"telephone-{tab.lower().replace(' ', '-')}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab


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
    press(page, "Log-likelihood of the image")
    text_of(page, "Place among held-out images", "^Percentile")
    monkeypatch.setattr(EBM, "log_prob", slow)
    press(page, "Other estimators")
    press(page, "Compare the estimators")
    while len(begun) < 2:
        page.wait_for_timeout(50)
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
    box = second.get_by_label("Run", exact=True).locator("visible=true")
    assert box.input_value().startswith("Waiting for a free place")
    picture(second, "waiting")
    assert barriers(second) == []
    press(second, "Stop")
    second.wait_for_timeout(1000)
    assert box.input_value() == "Stopped before the first step"
    press(second, "Train")
    second.wait_for_timeout(500)
    press(first, "Stop")
    while not box.input_value().startswith("Step"):
        second.wait_for_timeout(50)
    press(second, "Stop")


def test_a_mistake_leaves_nobody_waiting(visit):
    page = visit()
    open_tab(page, "Toy")
    page.get_by_label("Learning rate").locator("visible=true").fill("0")
    press(page, "Train")
    page.get_by_test_id("toast-body").wait_for(timeout=WAIT)
    page.wait_for_timeout(500)
    assert page.get_by_label("Run", exact=True).locator("visible=true").input_value() == ""


def test_the_gallery_is_accessible(visit):
    page = visit()
    press(page, "Generate")
    page.locator(".tiles img").nth(15).wait_for(timeout=WAIT)
    press(page, "Advanced")
    page.wait_for_timeout(1000)
    picture(page, "gallery")
    assert barriers(page) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_images_stand_one_by_one_and_a_click_sends_one_to_score(visit, width):
    page = visit(width=width)
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    page.get_by_label("Log-likelihoods of the images").check()
    press(page, "Generate")
    text_of(page, "Run", "log-likelihoods at eps")
    tiles, captions = page.locator(".tiles img"), page.locator(".tiles .caption-label")
    tiles.nth(2).wait_for(timeout=WAIT)
    assert [tiles.nth(index).bounding_box()["width"] >= 220 for index in range(3)] == [True] * 3
    assert tiles.first.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert captions.all_inner_texts()[0].startswith("1: ")
    page.get_by_label("most likely first").check()
    page.wait_for_timeout(1500)
    nats = [float(text.split()[1].replace("−", "-")) for text in captions.all_inner_texts()]
    assert len(nats) == 3 and nats == sorted(nats, reverse=True)
    picture(page, f"gallery-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    best = captions.first.inner_text()
    tiles.first.click()
    sent = page.get_by_alt_text("The image that was uploaded")
    sent.wait_for(timeout=WAIT)
    press(page, "Log-likelihood of the image")
    found = float(re.search(r"-?[0-9.]+", text_of(page, "Log-likelihood", "^Log-l"))[0])
    mean, error = (float(part) for part in re.findall(r"-?[0-9.]+", best)[1:])
    assert abs(found - mean) < 8 * error
    picture(page, f"sent-{width}")


def test_the_last_runs_survive_a_reload_and_set_every_choice(visit):
    page = visit()
    set_number(page, "Steps", 2)
    set_number(page, "Images", 3)
    press(page, "Generate")
    seed = re.search("seed ([0-9]+)", text_of(page, "Run", "^3 images"))[1]
    page.wait_for_timeout(1000)
    page.reload()
    page.get_by_role("button", name="Generate", exact=True).wait_for(timeout=WAIT)
    press(page, "Advanced")
    page.get_by_label("Last runs").click()
    option = page.get_by_role("option")
    assert option.all_inner_texts() == [
        f"grey · Probability-flow ODE · 3 images · 2 steps · seed {seed}"
    ]
    option.click()
    page.wait_for_timeout(1000)
    assert page.get_by_label("Seed", exact=True).first.input_value() == seed
    assert not page.get_by_label("New seed for every run").is_checked()
    press(page, "Generate")
    assert f"seed {seed} " in text_of(page, "Run", "^3 images")
    picture(page, "last-runs")


def test_an_example_is_scored_and_shown_large(visit):
    page = visit()
    open_tab(page, "Score")
    open_tab(page, "Upload")
    page.locator(".gallery-item").locator("visible=true").first.click()
    uploaded = page.get_by_alt_text("The image that was uploaded")
    uploaded.wait_for(timeout=WAIT)
    page.get_by_role("button", name="Log-likelihood of the image").click()
    text = text_of(page, "Log-likelihood", "^Bits per dim")
    assert "which changed none" in text and "Hint" not in text
    text_of(page, "Place among held-out images", "^Percentile")
    seen = page.get_by_alt_text("The image after resizing and rounding to the levels of the model")
    for image in (uploaded, seen):
        assert image.bounding_box()["width"] >= 220
    picture(page, "score-example")
    page.get_by_role("button", name="What the words mean").click()
    page.get_by_text("what it would cost to store").wait_for(timeout=WAIT)
    page.get_by_label("Invert").check()
    page.get_by_text("The log-likelihood of the image appears here").wait_for(timeout=WAIT)
    page.get_by_role("button", name="Log-likelihood of the image").click()
    assert "take the tick from Invert" in text_of(page, "Log-likelihood", "^Bits per dim")
    assert barriers(page) == []


def test_another_choice_leaves_no_result_of_the_old(visit):
    page = visit()
    open_tab(page, "Mutual information")
    open_tab(page, "Your data")
    set_number(page, "Rows to draw", 200)
    set_number(page, "Iterations of a fold", 5)

    def draw():
        page.get_by_role("button", name="Draw X and Y").click()

    def estimate(pattern):
        page.get_by_role("button", name="Estimate", exact=True).locator("visible=true").click()
        return text_of(page, "Estimate", pattern)

    draw()
    text_of(page, "True value of what was drawn", "normal_1x1: 0.4133")
    page.wait_for_timeout(500)
    assert "normal_1x1_x.npy and normal_1x1_y.npy" in estimate("^Mutual information")
    page.get_by_label("Preprocessing of every column").click()
    page.get_by_role("option", name="ranks to a normal distribution").click()
    text_of(page, "Estimate", "^$")
    estimate("^Mutual information")
    draw()  # the same task: other files
    text_of(page, "Estimate", "^$")
    set_number(page, "Iterations of a fold", 2000)
    estimate("^(Starting|Step)")
    draw()  # ends the run, which must not fill the box again
    text_of(page, "Estimate", "^$")
    page.wait_for_timeout(3000)
    assert text_of(page, "Estimate", "") == ""
    assert page.locator('[data-testid="matplotlib"]:visible').count() == 0


def test_another_toy_method_ends_the_run_of_the_first(visit):
    page = visit()
    open_tab(page, "Toy")
    page.get_by_role("button", name="Train", exact=True).locator("visible=true").click()
    run = page.get_by_label("Run", exact=True).locator("visible=true")
    run.wait_for()
    begin = time.monotonic()
    while not run.input_value().startswith("Step"):
        assert time.monotonic() - begin < WAIT / 1000
        page.wait_for_timeout(50)
    page.get_by_label("Method", exact=True).locator("visible=true").click()
    page.get_by_role("option", name="NCE, one classifier").locator("visible=true").click()
    page.wait_for_timeout(3000)
    assert run.input_value() == ""


def test_the_model_is_chosen_where_it_is_used_and_stays_chosen(visit):
    page = visit()
    model = page.get_by_label("Model", exact=True)
    model.click()
    page.get_by_role("option", name="colour").click()
    for tab, is_used in zip(TABS, (True, True, False, False, True), strict=True):
        open_tab(page, tab)
        model.wait_for(state="visible" if is_used else "hidden", timeout=WAIT)
    page.get_by_role("cell", name="4 × 8 pixels, RGB, 256 levels").wait_for(timeout=WAIT)


def test_a_failed_self_test_and_a_description_are_shown(visit, folder):
    check = Check("E", 1.0, 0.1, 0.1, "nats", False, "")
    time_score = {"shares": [0.5], "mean": [0.1], "stderr": [0.1]}
    figures = {"checks": [as_record(check)], "mean_time_score": time_score}
    record = {"started": "2025-01-01T00:00:00Z", "figures": figures}
    files = folder / "grey" / "selftest.json", folder / "grey" / "README.md"
    files[0].write_text(json.dumps(record))
    files[1].write_text('# On digits\n<img src=x onerror="window.bad = 1">\n\n- a **bold** item\n')
    try:
        page = visit()
        line = page.get_by_text("grey failed 1 of the checks of its self-test")
        line.wait_for(timeout=WAIT)
        for tab, is_used in zip(TABS, (True, True, False, False, True), strict=True):
            open_tab(page, tab)
            line.wait_for(state="visible" if is_used else "hidden", timeout=WAIT)
        page.get_by_role("button", name="Description and configuration").click()
        page.get_by_role("heading", name="On digits").wait_for(timeout=WAIT)
        assert page.locator("strong", has_text="bold").is_visible()
        assert page.evaluate("window.bad") is None
        picture(page, "description")
    finally:
        for file in files:
            file.unlink()


def test_plots_are_dark_on_a_dark_page(visit):
    page = visit(theme="dark")
    open_tab(page, "Toy")
    plot = page.locator('[data-testid="matplotlib"] img').locator("visible=true").first
    plot.wait_for(timeout=WAIT)
    assert "invert" in plot.evaluate("image => getComputedStyle(image).filter")
