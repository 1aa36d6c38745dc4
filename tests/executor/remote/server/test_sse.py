"""Events out of bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.remote.server.sse import ServerSentEvents

_STREAM = (
    ': ping\r\nevent: x\r\ndata: {"text": "Größe 😀"}\r\n\r\n'
    "data:one\rdata: two\r\r\n\ndata: last\n\nid: 3\n\n: end\n\n"
).encode()
_EVENTS = ['{"text": "Größe 😀"}', "one\ntwo", "last"]


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_however_it_is_cut(cuts: list[int]) -> None:
    events, found = ServerSentEvents(), []
    places = [0, *sorted(cuts), len(_STREAM)]
    for start, end in itertools.pairwise(places):
        found += events.push(_STREAM[start:end])
    assert found == _EVENTS


def test_an_event_that_does_not_end_is_none() -> None:
    assert ServerSentEvents().push(b'data: {"text": "half"}\n') == []
