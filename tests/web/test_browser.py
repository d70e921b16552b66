"""The web app in a headless Chromium: visitor actions, and no external requests."""

import io
import json
import re
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import free_port, load_script, save_digit, save_picture, served
from photographs import example, photograph
from PIL import Image
from playwright.sync_api import expect

from ebm_app.web.app import PAGES, build_app
from ebm_app.web.generate import generate
from ebm_app.web.models import Models
from ebm_app.web.score import Scorer
from ebm_app.web.server import serve

pytestmark = pytest.mark.browser
scenes = load_script("tools/screenshots.py")
#: Milliseconds
WAIT = 60_000
SEEN = "The image after resizing and rounding to the model's levels"


def answer(page):
    """Return the answer once its verdict is there."""
    box = page.locator("#answer")
    expect(box).to_contain_text("unusual", timeout=WAIT)
    return box


def answer_of(path, models, repeats=4):
    """Return the first line and the metrics of the answer of "grey" for a file."""
    *_, last = Scorer(models, 5).score("grey", str(path), repeats)
    return last.text.split("\n")[0].removeprefix("## "), last.metrics


def open_score(visit):
    """Open the Score page, and wait for the answer of its first example."""
    page = visit()
    answer(page)
    return page


def send(page, path):
    page.locator("input[type=file]").first.set_input_files(path)


def fill(box, value):
    """Fill a box. gradio sets a box that has just become visible to its initial value."""
    for _ in range(20):
        box.fill(value)
        box.page.wait_for_timeout(500)
        if box.input_value() == value:
            return
    raise AssertionError(f"the box has {box.input_value()!r}, not {value!r}")


def test_new_image_replaces_the_answer_of_the_old_one(visit, models, tmp_path):
    page = open_score(visit)
    for index in (0, 1):
        send(page, save_digit(tmp_path / f"{index}.png", index))
        page.wait_for_timeout(300)
    page.wait_for_timeout(6000)
    expected, _ = answer_of(tmp_path / "1.png", models)
    expect(page.locator("#answer h2")).to_have_text(expected, timeout=WAIT)


def test_answer_is_cleared_when_the_image_changes(visit, tmp_path):
    page, held, is_held = open_score(visit), [], True

    def hold(route):
        held.append(route) if is_held else route.continue_()

    page.route("**/queue/join*", hold)
    send(page, save_digit(tmp_path / "1.png", 1))
    expect(page.locator("#answer")).to_contain_text("Computing", timeout=WAIT)
    expect(page.locator("#answer h2")).to_have_count(0)
    assert not page.get_by_alt_text(SEEN).locator("visible=true").count()
    page.wait_for_timeout(500)
    is_held = False
    for route in held:
        route.continue_()
    answer(page)


def test_answers_of_quick_strokes_do_not_alternate(visit):
    page = open_score(visit)
    page.get_by_label("Draw", exact=True).check()
    expect(page.locator("#answer")).to_have_text(re.compile("draw one"), timeout=WAIT)
    page.evaluate("""() => { window.numbers = []; new MutationObserver(() => {
        const text = document.querySelector("#answer h2")?.innerText;
        if (text && text !== numbers.at(-1)) numbers.push(text);
    }).observe(document.body, { subtree: true, childList: true, characterData: true }) }""")
    for place in (0.3, 0.5, 0.7):
        scenes.draw(page, ((place, 0.2), (0.5, 0.8)))
    answer(page)
    page.wait_for_timeout(4000)
    numbers = page.evaluate("numbers")
    assert numbers and len(numbers) == len(set(numbers)) <= 3


def test_brush_is_as_wide_as_the_strokes_of_the_data(visit):
    page = open_score(visit)
    page.get_by_label("Draw", exact=True).check()
    scenes.draw(page, ((0.5, 0.2), (0.5, 0.8)))
    canvas = Image.open(io.BytesIO(page.locator("canvas:visible").first.screenshot()))
    row = np.asarray(canvas.convert("L"))[canvas.height // 2, canvas.width // 3 :]
    assert 14 <= (row < 128).sum() <= 20


def test_unreadable_file_is_named_in_the_answer(visit, tmp_path):
    page = open_score(visit)
    (tmp_path / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    send(page, tmp_path / "a.svg")
    box = page.locator("#answer")
    expect(box).to_contain_text("This file cannot be read as an image", timeout=WAIT)
    expect(box).not_to_contain_text("Upload an image, draw one")


def test_drawing_is_scored_when_the_pen_lifts(visit):
    page = visit()
    page.get_by_label("Draw", exact=True).check()
    empty, number = re.compile("Upload an image, draw one"), page.locator("#answer h2")
    expect(page.locator("#answer")).to_have_text(empty, timeout=WAIT)
    scenes.draw(page, ((0.5, 0.2), (0.5, 0.8)))
    answer(page)
    # the picture is loaded lazily, so that its address is checked
    expect(page.get_by_alt_text(SEEN)).to_have_attribute("src", re.compile("image.png"))
    first = number.inner_text()
    scenes.draw(page, ((0.3, 0.5), (0.7, 0.5)))
    expect(number).not_to_have_text(first, timeout=WAIT)
    page.get_by_role("button", name="Undo").first.click()
    expect(number).to_have_text(first, timeout=WAIT)
    page.get_by_role("button", name="Clear canvas").first.click()
    expect(page.locator("#answer")).to_have_text(empty, timeout=WAIT)
    scenes.draw(page, ((0.5, 0.2), (0.5, 0.8)))
    answer(page)


def test_only_grey_models_have_a_canvas(visit):
    page = visit(query="&model=colour")
    page.get_by_label("Draw", exact=True).wait_for(state="detached", timeout=WAIT)


def test_photograph_is_framed_unless_its_pixels_are_wanted(visit, tmp_path):
    page = open_score(visit)
    photograph(example(0), shadow=0.2).save(tmp_path / "photo.png")
    send(page, tmp_path / "photo.png")
    expect(answer(page)).to_contain_text("The ink was taken from its paper", timeout=WAIT)
    framed = page.get_by_alt_text(SEEN).get_attribute("src")
    page.get_by_label("Use the pixels as they are").check()
    expect(page.locator("#answer")).to_contain_text("Dark on light was inverted", timeout=WAIT)
    assert page.get_by_alt_text(SEEN).get_attribute("src") != framed


def test_answer_has_one_number_and_its_rank(visit, models, tmp_path):
    page = open_score(visit)
    send(page, save_digit(tmp_path / "1.png", 1))
    head, metrics = answer_of(tmp_path / "1.png", models)
    expect(page.locator("#answer")).to_contain_text(head, timeout=WAIT)
    share = (models.open("grey").held_out.bits > metrics["bits_per_dim"]).mean()
    expect(answer(page)).to_contain_text(f"More likely than {share:.0%} of held-out images")
    expect(page.get_by_test_id("matplotlib").locator("img")).to_be_visible(timeout=WAIT)
    assert page.get_by_text("integral").count() == 0
    assert page.get_by_text("Unusual regions").locator("visible=true").count() == 0


def test_early_upload_is_kept(visit, models, tmp_path):
    """An image that is uploaded before the answer with the examples arrives."""
    page, held = visit("toy"), []

    def hold_examples(route):
        asks_for_examples = route.request.post_data_json["data"][:1] == ["grey"]
        held.append(route) if asks_for_examples else route.continue_()

    page.route("**/run/predict", hold_examples)
    page.get_by_role("link", name="Score", exact=True).click()
    send(page, save_digit(tmp_path / "1.png", 1))
    expected, _ = answer_of(tmp_path / "1.png", models)
    expect(page.locator("#answer h2")).to_have_text(expected, timeout=WAIT)
    held[0].continue_()
    expect(page.locator(".small img")).to_have_count(13, timeout=WAIT)
    page.wait_for_timeout(2000)
    expect(page.locator("#answer h2")).to_have_text(expected)


def test_more_draws_change_the_answer(visit, models, tmp_path):
    page = open_score(visit)
    send(page, save_digit(tmp_path / "1.png", 1))
    page.get_by_label("number input for Draws").fill("8")
    page.keyboard.press("Tab")
    expected, _ = answer_of(tmp_path / "1.png", models, repeats=8)
    expect(page.locator("#answer h2")).to_have_text(expected, timeout=WAIT)


def test_progress_is_shown_until_the_number(visit, tmp_path):
    page = open_score(visit)
    old = page.locator("#answer h2").inner_text()
    page.evaluate("""() => new MutationObserver(() => {
        const text = document.querySelector("#answer").innerText;
        window.sawProgress ||= /processing|queue/.test(text);
    }).observe(document.body, { subtree: true, childList: true, characterData: true })""")
    send(page, save_digit(tmp_path / "2.png", 2))
    expect(page.locator("#answer h2")).not_to_have_text(old, timeout=WAIT)
    assert page.evaluate("window.sawProgress")


def test_captions_of_stored_samples_arrive(browser, tmp_path):
    page = browser.new_page()
    with served(["--model", "digits"], tmp_path) as address:
        page.goto(f"{address}/generate")
        expect(page.locator(".small img")).to_have_count(10, timeout=WAIT)
        expect(page.locator(".small .caption-label")).to_have_count(10, timeout=WAIT)
        page.close()


def test_selected_sample_is_scored(visit, models, tmp_path):
    page = visit("generate", query="&model=grey&images=3&sampler=dpm&steps=3&seed=7")
    caption = page.locator(".small .caption-label").nth(1)
    expect(caption).to_have_text(re.compile("log p"), timeout=WAIT)
    page.locator(".small .thumbnail-item").nth(1).click()
    scenes.press(page, "Score the selected image")
    *_, (images, *_) = generate("grey", "dpm", 3, 3, 7, False, models=models)
    images[1][0].save(tmp_path / "1.png")
    expected, _ = answer_of(tmp_path / "1.png", models)
    expect(page.locator("#answer h2")).to_have_text(expected, timeout=WAIT)


def test_phone_shows_the_answer_of_a_clicked_example(visit):
    page = visit(width=390)
    answer(page)
    page.locator(".small .thumbnail-item").nth(2).click()
    expect(page.locator("#answer h2")).to_be_in_viewport(timeout=WAIT)


def test_phone_keeps_the_height_of_the_answer(visit, tmp_path):
    page = visit(width=390)
    answer(page)
    drawing = page.get_by_label("Draw", exact=True)
    place = "element => element.getBoundingClientRect().top + scrollY"
    page.get_by_test_id("matplotlib").locator("img").wait_for(timeout=WAIT)
    before = drawing.evaluate(place)
    page.route("**/queue/join*", lambda route: None)
    send(page, save_digit(tmp_path / "1.png", 1))
    expect(page.locator("#answer")).to_contain_text("Computing", timeout=WAIT)
    page.wait_for_timeout(500)
    assert abs(drawing.evaluate(place) - before) < 20


def test_pages_have_addresses_and_the_back_button_works(visit):
    page = visit("toy")
    page.get_by_role("button", name="Train").wait_for(timeout=WAIT)
    page.get_by_role("link", name="Mutual information").click()
    page.get_by_role("button", name="Learn").wait_for(timeout=WAIT)
    assert page.url.split("?")[0].endswith("/mutual-information")
    assert page.title().startswith("Mutual information")
    page.go_back()
    page.get_by_role("button", name="Train").wait_for(timeout=WAIT)


def test_error_messages_run_no_script(visit):
    """Gradio repeats an invalid choice in its message."""
    page = visit("generate")
    html = "<img src=x onerror=document.title='changed'>"

    def replace(route):
        call = route.request.post_data_json
        route.continue_(post_data=json.dumps({**call, "data": [html, *call["data"][1:]]}))

    page.get_by_role("button", name="Generate").wait_for(timeout=WAIT)
    page.route("**/queue/join*", replace)
    scenes.press(page, "Generate")
    page.get_by_test_id("toast-text").first.wait_for(timeout=WAIT)
    page.wait_for_timeout(1000)
    assert page.title() != "changed" and not page.locator("img[onerror]").count()


class OtherOrigin(BaseHTTPRequestHandler):
    """Server on another port, which collects the paths of its requests."""

    paths: ClassVar[list[str]] = []

    def do_GET(self):
        self.paths.append(self.path)
        self.send_error(404)

    do_POST = do_GET


def test_hostile_model_folder_reaches_no_other_origin(browser, page_files, folder, tmp_path):
    name = "<b>name</b>"
    hostile = shutil.copytree(folder / "labelled", tmp_path / "hostile")
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherOrigin) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{other.server_port}"
        (hostile / "README.md").write_text(
            f"# Card\n<img src={origin}/img><style>@import url({origin}/css);</style>"
            f"<form action={origin}/form><button>Send</button></form><script src={origin}/script>"
            f"</script><p style='background: url({origin}/style)'>text</p>\n\n"
            f"text ![image]({origin}/markdown)"
        )
        app = build_app(Models({name: hostile}))
        address = serve(app, "127.0.0.1", free_port(), None)
        page = browser.new_page()
        for path in PAGES.values():
            page.goto(address + path)
            page.wait_for_timeout(2000)
        card = page.locator(".card").first
        expect(card).to_contain_text(name, timeout=WAIT)
        expect(card).to_contain_text("<form action")
        page.wait_for_timeout(2000)
        page.close()
        app.close(verbose=False)
        other.shutdown()
    assert not OtherOrigin.paths


def test_images_of_a_stopped_server_are_blank(visit):
    page = visit("generate")
    page.route("**/file=**", lambda route: route.abort())
    scenes.press(page, "Generate")
    scenes.text_of(page, "Run", "^10 images", WAIT)
    broken = page.locator(".small img")
    assert broken.count() == 10
    for index in range(10):
        expect(broken.nth(index)).not_to_be_visible()


def test_page_recovers_from_a_killed_server(browser, tmp_path):
    page, model, port = browser.new_page(), ["--model", "digits"], free_port()
    run = page.get_by_label("Run", exact=True)
    with served(model, tmp_path, port) as address:
        page.goto(f"{address}/generate")
        expect(run).to_have_value(re.compile("^Ten samples"), timeout=WAIT)
        page.get_by_label("number input for Images").fill("64")
        scenes.press(page, "Generate")
        expect(run).to_have_value(re.compile("^Step"), timeout=WAIT)
    expect(page.get_by_test_id("toast-text")).to_contain_text("lost", timeout=WAIT)
    with served(model, tmp_path, port):
        expect(run).to_have_value(re.compile("^Ten samples"), timeout=WAIT)
        scenes.press(page, "Generate")
        expect(run).to_have_value(re.compile("^10 images"), timeout=WAIT)
        page.context.close()


def test_flagged_image_is_reported(visit, tmp_path):
    page = open_score(visit)
    noise = np.random.default_rng(0).integers(0, 17, (8, 8)) * 255 / 16
    send(page, save_picture(tmp_path / "noise.png", noise.round()))
    expect(answer(page)).to_contain_text(" flagged as unusual", timeout=WAIT)
    expect(page.locator("#answer")).not_to_contain_text("class")


def test_link_repeats_the_shared_run(visit):
    settings = "&class=2&images=4&sampler=dpm&guidance=2&steps=3&seed=7"
    page = visit("generate", query=f"&model=labelled{settings}")
    expected = "^4 images in .* class 2, guidance 2 · labelled · seed 7"
    scenes.text_of(page, "Run", expected, WAIT)
    expect(page.get_by_text(re.compile("^2: log p ≥")).first).to_be_visible(timeout=WAIT)
    page.get_by_label("1", exact=True).check()
    scenes.press(page, "Generate")
    scenes.text_of(page, "Run", expected.replace("class 2", "class 1"), WAIT)
    page.wait_for_timeout(500)
    shared = dict(parse_qsl(urlsplit(page.url).query))
    assert {
        **dict(parse_qsl(settings)),
        "class": "1",
        "model": "labelled",
    }.items() <= shared.items()


@pytest.mark.parametrize("path", ["generate", ""])
def test_link_to_an_unknown_model_is_refused(visit, path):
    page = visit(path, query="&model=gone&class=2&images=4&sampler=dpm&guidance=2&steps=3&seed=7")
    expect(page.get_by_text("Error").first).to_be_visible(timeout=WAIT)
    page.wait_for_timeout(3000)
    expect(page.get_by_label("Model", exact=True)).to_have_value("")
    expect(page.get_by_text(re.compile("log p"))).to_have_count(0)


def test_selected_model_is_that_of_all_pages(visit):
    page = visit(query="&model=labelled")
    expect(page.get_by_label("Model", exact=True)).to_have_value(
        "Other models: labelled", timeout=WAIT
    )
    for path in ("Score", "Generate", "Model"):
        page.get_by_role("link", name=path, exact=True).click()
        expect(page.get_by_label("Model", exact=True)).to_have_value(
            "Other models: labelled", timeout=WAIT
        )
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name="colour").click()
    page.get_by_role("link", name="Score", exact=True).click()
    expect(page.get_by_label("Model", exact=True)).to_have_value(
        "Other models: colour", timeout=WAIT
    )
    address = page.url.split("?")[0]
    page.goto(f"{address}?model=grey")
    expect(page.get_by_label("Model", exact=True)).to_have_value(
        "Other models: grey", timeout=WAIT
    )


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
def test_every_page_is_accessible_and_fits_the_window(visit, width, theme):
    found = {}
    for name, path in PAGES.items():
        page = visit(path, width=width, theme=theme)
        page.wait_for_timeout(4000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        violations = Axe().run(page).response["violations"]
        found[name] = [
            (each["id"], node["html"][:200])
            for each in violations
            if each["impact"] == "critical"
            for node in each["nodes"]
            if "gallery-item" not in node["html"] and "Empty value" not in node["html"]
        ]
        page.context.close()
    assert not any(found.values()), found


@pytest.mark.parametrize(
    ("path", "field", "value", "start"),
    [
        ("generate", "Seed", "-1", "Generate"),
        ("toy", "Learning rate", "5", "Train"),
        ("mutual-information", None, None, "Estimate"),
    ],
)
def test_start_button_returns_after_an_error(visit, path, field, value, start):
    page = visit(path)
    button = page.get_by_role("button", name=start, exact=True)
    button.wait_for(timeout=WAIT)
    if field:
        for accordion in page.get_by_role("button", name="Advanced").all():
            accordion.click()
        if path == "generate":  # checked when the page has read its address
            expect(page.get_by_label("New seed for every run")).to_be_checked(timeout=WAIT)
        fill(page.get_by_label(field).first, value)
    button.click()
    page.get_by_test_id("toast-text").first.wait_for(timeout=WAIT)
    expect(button).to_be_visible()
    expect(page.get_by_role("button", name="Stop").locator("visible=true")).to_have_count(0)
