"""By which names a server is asked: a page that gives its own name this machine's address is turned away."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")

from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.http.host_check import HostCheck
from tests.support.serving.replies import error
from tests.support.serving.running_server import running


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "[::1]", "localhost.", "gpu.lan:8000"],
)
def test_names_of_this_machine(host: str) -> None:
    HostCheck.of(["GPU.lan"]).check(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "attacker.example",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example",
        "10.0.0.1:80",
        "[::2]",
        "127.0.0.1:80@attacker.example",
        "[::1]attacker.example",
        "[::1",
        "localhost:x",
    ],
)
def test_other_names(host: str) -> None:
    with pytest.raises(Refusal) as refusal:
        HostCheck.of(["gpu.lan"]).check(host)
    assert refusal.value.status == 421
    HostCheck.any().check(host)


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_none(host: str) -> None:
    try:
        HostCheck.of([]).check(host)
    except Refusal as refusal:
        assert refusal.status == 421


def test_a_page_that_took_the_address_of_this_machine() -> None:
    with running([], expose=["llm=zoo/counting"], hosts=HostCheck.of([])) as server:
        there = {"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}
        for path in ("/v1/models", "/metrics", "/healthz"):
            assert error(server.client.get(server.root + path, headers=there), 421)["code"] == "wrong_host"
        body = {"model": "llm", "prompt": "1 + 1 =", "max_tokens": 1}
        assert error(server.client.post(f"{server.url}/completions", json=body, headers=there), 421)
        assert server.client.post(f"{server.url}/completions", json=body).status_code == httpx.codes.OK
