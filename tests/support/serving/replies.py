"""Reading what a server answers, and waiting for what it does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from tests.support.serving.running_server import Running


def content(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text = response.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    found: dict[str, Any] = body["error"]
    return found


def until(holds: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def metrics(server: Running) -> str:
    return server.client.get(f"{server.root}/metrics").text
