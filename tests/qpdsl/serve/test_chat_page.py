"""The page at `/`: whoever reaches the server gets it, and a browser lets it run."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from qpdsl.serve.http.client_keys import add_key
from tests.support.serving.replies import error
from tests.support.serving.running_server import Running, running


def test_a_browser_runs_the_page_and_loads_nothing_else(server: Running) -> None:
    answered = server.client.get(f"{server.root}/")
    page, policy = answered.text, answered.headers["content-security-policy"]
    assert answered.status_code == 200 and answered.headers["content-type"].startswith("text/html")
    for tag in ("script", "style"):
        (written,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = b64encode(sha256(written.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and not re.search(r"""(?:src|href)\s*=|url\(|@import|\son\w+\s*=""", page)
    # What it asks for is there.
    asked = re.findall(r'fetch\("([^"]+)"', page)
    assert asked == ["v1/models", "v1/chat/completions"]
    assert all(server.client.get(f"{server.root}/{path}").status_code in (200, 405) for path in asked)
    shown = server.client.get(f"{server.url}/models/reply").json()
    assert shown["conversation"] == {"messages": "history", "user": "question"}


def test_the_page_is_open_where_models_need_a_key(programs: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    add_key(keys, "ann")
    with running([str(programs)], keys=keys) as server:
        assert server.client.get(f"{server.root}/").status_code == 200
        assert error(server.client.get(f"{server.url}/models"), 401)
