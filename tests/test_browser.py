"""The page in a headless Chromium: what a visitor does, that nothing leaves the machine, and what
a screen reader or a telephone makes of it. Pictures of it are left in runs/browser."""

import json
import re
import time
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, free_port, load_script

from ebm_app.evaluation.checks import Check, as_record
from ebm_app.web.server import serve

pytestmark = pytest.mark.browser
PICTURES = ROOT / "runs" / "browser"
TABS = ("Generate", "Score", "Toy", "Mutual information", "Diagnostics")
WAIT = 60_000
#: what axe finds in the components of gradio itself, which no setting of the page changes
OF_GRADIO = {("aria-prohibited-attr", "Empty value")}


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
    box.fill(str(value))
    box.press("Tab")


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
    text = text_of(page, "Log-likelihood", "^Log-likelihood")
    assert re.match(r"Log-likelihood: -?\d+\.\d+ ± \d+\.\d+ nats", text)
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
