"""What goes wrong between a client and a server. A stub is told of a fault, which then meets the next requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "drop",  # the connection is closed before anything is answered
    "stall",  # nothing is answered, the connection stays
    "comments",  # a stream of comments, without an end
    "no_tokens",  # a stream of events without a token, without an end
    "stall_stream",  # the first chunks come, then nothing
    "half_json",
    "half_stream",
    "too_many",  # 429, with Retry-After where `seconds` is given
    "overloaded",  # 503
    "error",  # 500
    "gateway",  # 502 of a proxy, in HTML
    "slow",  # `seconds` before the answer
    "html",  # 200, and no JSON
    "empty",  # 200, and no choices
    "huge",  # a text of `size` bytes
    "redirect",  # 307 to `location`
    "other_model",  # the answer names another model
    "unauthorized",  # 401
    "bad_request",  # 400, with `message` and `param`
    "wrong_text",  # the text is `message`, whatever was asked for
]


@dataclass(frozen=True, slots=True)
class Fault:
    """`times` requests to paths that end with `path` are met by it, None for all."""

    kind: Kind
    times: int | None = 1
    path: str = ""
    seconds: float | None = None
    location: str = ""
    message: str = "the request is not understood"
    param: str | None = None
    size: int = 64 << 20
