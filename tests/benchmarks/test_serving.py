"""The client of the load and soak benchmarks sees what a server says, and the soak's portions are answered as meant."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.serving.client import ask_all
from benchmarks.serving.load import bodies, figures
from benchmarks.serving.soak import Held, soak
from tests.support.serving.running_server import running


def test_the_client_counts_tokens_and_goes_away_where_it_is_told_to() -> None:
    whole = bodies(5, 100, 12, 9, seed=1)
    requests: list[dict[str, Any]] = [
        *whole,
        {**whole[0], "max_tokens": 400, "leave_after": 2},
        {name: value for name, value in whole[0].items() if name not in ("stream", "stream_options")},
        {**whole[0], "model": "none"},
    ]
    with running([], expose=["llm=zoo/counting"]) as server:
        seconds, answers = asyncio.run(ask_all(server.root, "/v1/completions", requests, 3))
        assert server.session.busy == 0
    assert [answer.tokens for answer in answers[:5]] == [9] * 5
    assert all(0 < answer.first <= answer.whole <= seconds for answer in answers[:5])
    assert answers[5].text == "" and not answers[5].error and answers[6].tokens == 9
    assert "HTTPError: 404" in answers[7].error
    found = {"seconds": seconds, "answers": [vars(answer) for answer in answers[:5]]}
    row = figures([found])
    assert row["tokens_per_second"] > 0 and row["first_p50"] <= row["first_p99"] <= row["whole_p99"]


def test_a_portion_of_the_soak_is_answered_and_leaves_no_socket_open() -> None:
    found, counts, _ = asyncio.run(soak(80, 40))
    assert len(found) == 2 and all(isinstance(held, Held) for held in found)
    assert sum(counts.values()) == 80 and counts["refused"] > 10
    assert found[0].files == found[1].files and found[0].tasks == found[1].tasks
