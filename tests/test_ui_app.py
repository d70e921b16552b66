"""The page as a whole: its endpoints, who may reach it, and models chosen at the same time."""

import threading
from types import SimpleNamespace

import gradio as gr
import pytest
from conftest import error_of

from ebm_app.errors import UserError
from ebm_app.web import models as page_models
from ebm_app.web.app import build_app
from ebm_app.web.explanations import explained_once
from ebm_app.web.models import Models
from ebm_app.web.server import check_auth

#: what programs call: endpoint -> arguments in their order. Add at the end of a list, with a
#: default; any other change breaks the programs of others
CONTRACT = {
    "/estimators": ["model", "image", "draws"],
    "/generate": [
        *("model", "sampler", "num_images", "num_steps", "seed", "randomise", "score_images")
    ],
    "/mi": [*("x", "y", "csv", "x_columns", "y_columns", "preprocessing", "iterations", "seed")],
    "/mi_example": ["task", "num_rows", "seed"],
    "/mi_gaussian": ["dim", "methods", "learning_rate", "iterations", "seed"],
    "/score": ["model", "image", "repeats"],
    "/score_drawing": ["model", "drawing", "repeats"],
    "/score_many": ["model", "files", "repeats"],
    "/toy": ["problem", "path", "method", "second", "learning_rate", "iterations", "seed"],
}


@pytest.fixture(scope="module")
def app(models):
    return build_app(models)


def test_programs_find_every_endpoint_with_its_arguments_in_order(app):
    endpoints = app.get_api_info()["named_endpoints"]
    found = {
        name: [parameter["parameter_name"] for parameter in endpoint["parameters"]]
        for name, endpoint in endpoints.items()
    }
    assert found == CONTRACT
    assert app.get_api_info()["unnamed_endpoints"] == {}


def test_whatever_computes_shares_one_slot_of_the_device(app):
    on_device = [event for event in app.fns.values() if event.concurrency_id == "device"]
    names = {event.api_name for event in on_device}
    assert {"generate", "score", "score_drawing", "score_many", "toy", "mi"} <= names
    assert {event.concurrency_limit for event in on_device} == {1}
    waiting = [event for event in app.fns.values() if event.types_generator]
    assert {event.concurrency_id for event in waiting if event.api_name in names} == {"device"}


def test_other_machines_are_let_in_only_by_an_explicit_decision():
    check = check_auth
    assert check("127.0.0.1", None) is None and check("localhost", None) is None
    assert "--auth user:password, or say --no_auth" in error_of(check, "0.0.0.0", None)
    assert check("0.0.0.0", None, no_auth=True) is None
    assert check("0.0.0.0", "user:pass:word") == ("user", "pass:word")
    assert "contradict" in error_of(check, "0.0.0.0", "user:word", no_auth=True)


def test_two_visitors_who_choose_models_at_once_each_get_their_own(folder, monkeypatch):
    opened = threading.Event()

    def open_slowly(path, device):
        opened.wait(0.2)
        return SimpleNamespace(name=path.name)

    monkeypatch.setattr(page_models, "EBM", SimpleNamespace(from_pretrained=open_slowly))
    models = Models({name: folder / name for name in ("grey", "colour")})
    got = {}
    threads = [
        threading.Thread(target=lambda name=name: got.update({name: models.load(name).name}))
        for name in ("grey", "colour")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {"grey": "grey", "colour": "colour"}


def test_an_answer_at_once_is_explained_like_a_run(caplog):
    def failing(error):
        raise error

    handler = explained_once(failing)
    with pytest.raises(gr.Error, match="give another"):
        handler(UserError("the seed is bad: give another"))
    assert not caplog.records
    with pytest.raises(gr.Error) as caught:
        handler(RuntimeError("secret"))
    assert "secret" not in caught.value.message and "secret" in caplog.text
    assert explained_once(lambda x: x + 1)(1) == 2
