"""The page: errors of calls, and links."""

import asyncio

import gradio as gr
import pytest
from PIL import Image
from starlette.exceptions import HTTPException

from ebm_app.utils.errors import UserError
from ebm_app.web import app
from ebm_app.web.app import BAD_IMAGE, FAILED, describe_failure, link_updates
from ebm_app.web.shared import write_link


def test_errors_are_described_without_details(caplog):
    error = UserError("Cannot read '/srv/my models/run/a.json' (no /tmp/x/file).")
    assert describe_failure(error) == "Cannot read 'a.json' (no file)."
    assert describe_failure(gr.Error("too large")) == "too large"
    for error in (Image.UnidentifiedImageError("/tmp/a"), Image.DecompressionBombError("/tmp/a")):
        assert describe_failure(error) == BAD_IMAGE
    assert describe_failure(ValueError("bad value")) == "Malformed call: bad value"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("'<img src=x>' & more"), "'&lt;img src=x&gt;' &amp; more"),
        (HTTPException(500, "secret"), FAILED),
    ],
)
def test_page_escapes_messages_and_logs_internal_errors(monkeypatch, caplog, error, message):
    async def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(gr.Blocks, "process_api", fail)
    monkeypatch.setattr(app, "PACKAGE", app.Path(__file__).parent)
    with pytest.raises(gr.Error) as caught:
        asyncio.run(app.Page.process_api(app.Page.__new__(app.Page)))
    assert caught.value.message == message
    assert ("secret" in caplog.text) == (message == FAILED)


def test_link_sets_valid_values_only(models):
    def updates(**parameters):
        return link_updates(parameters, models, ["score", "generate"])

    values = {"tab": "generate", "class": "2", "guidance": "2.5", "seed": "7"}
    model, tab, which, guidance, *rest = updates(model="labelled", **values)
    assert model == "labelled" and tab["selected"] == "generate"
    assert which["value"] == "2" and guidance["value"] == 2.5 and rest == [7, False]
    model, tab, which, guidance, *rest = updates(model="../x", tab="x", guidance="9", seed="-1")
    assert model == "grey" and which["value"] == "any" and "value" not in guidance
    assert tab == gr.skip() and rest == [gr.skip()] * 2
    assert '{"tab": "score"}' in write_link("model", tab="score")
