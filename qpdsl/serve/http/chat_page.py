"""The page at `/`: a chat with what the server serves. It loads nothing, and asks the same API as every client."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response


@cache
def chat_page() -> Response:
    """The page, under a policy by which it runs its own script alone and speaks to this server alone."""
    page = files("qpdsl.serve.http").joinpath("chat.html").read_text("utf-8")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
        f"script-src {_hash(page, 'script')}; style-src {_hash(page, 'style')}"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(page, media_type="text/html", headers=headers)


def _hash(page: str, tag: str) -> str:
    """The digest of what is in the only element of a tag, as a policy names it (CSP 3, section 2.3.1)."""
    found = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'"
