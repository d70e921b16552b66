"""The page as a whole: its endpoints, who may reach it, and one model at a time."""

import threading
from types import SimpleNamespace

from conftest import error_of

from ebm_app.ebm import EBM

#: what programs call: endpoint -> arguments in their order. Add at the end of a list, with a
#: default; a change of anything else breaks the programs of others
CONTRACT = {}


def test_programs_find_every_endpoint_with_its_arguments_in_order(ui, models):
    endpoints = ui.app.build_app(models).get_api_info()["named_endpoints"]
    found = {
        name: [p["parameter_name"] for p in endpoint["parameters"]]
        for name, endpoint in endpoints.items()
    }
    assert found == CONTRACT


def test_other_machines_are_let_in_only_by_an_explicit_decision(ui):
    check = ui.server.check_auth
    assert check("127.0.0.1", None) is None and check("localhost", None) is None
    assert "--auth user:password, or say --no_auth" in error_of(check, "0.0.0.0", None)
    assert check("0.0.0.0", None, no_auth=True) is None
    assert check("0.0.0.0", "user:pass:word") == ("user", "pass:word")
    assert "contradict" in error_of(check, "0.0.0.0", "user:word", no_auth=True)


def test_the_queue_is_bounded_and_the_device_has_one_slot(ui, models):
    app = ui.app.build_app(models)
    on_device = [fn for fn in app.fns.values() if fn.concurrency_id == "device"]
    names = {fn.api_name for fn in on_device}
    assert {"generate", "score", "toy", "mi"} <= names
    assert {fn.concurrency_limit for fn in on_device} == {1}
    assert 0 < ui.server.MAX_QUEUE <= 32


def test_visitors_that_choose_models_at_once_each_get_their_own(ui, monkeypatch):
    both_are_in, names = threading.Barrier(2), []
    folders = SimpleNamespace(stat=lambda: None)

    def slow(folder, device):
        both_are_in.wait(timeout=0.2) if not names else None
        names.append(folder.name)
        return SimpleNamespace(name=folder.name)

    assert folders and slow and EBM and monkeypatch
