"""What a request is counted as: once, and with no more of its prompt cached than it has."""

from __future__ import annotations

from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, GenerateRequest, Sample, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.instance import Usage

PROMPT = (1, 2, 3, 4, 5)


def failed_after_a_sample(calls: Calls | None) -> Usage:
    ticket = Ticket(GenerateRequest(PROMPT, (1, 2), SamplingParams(), 4), lambda ticket: None)
    ticket.finish_sample(0, Sample((7,), "eos", -0.5, 0), 3, calls)
    ticket.fail(EngineError("no memory is left"))
    usage = Usage()
    usage.spent(ticket)
    return usage


def test_a_request_that_failed_has_no_prompt_and_so_none_that_was_cached() -> None:
    usage = failed_after_a_sample(None)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.counts["failed_prompt"]) == (0, 0, 5)


def test_what_a_server_billed_before_it_failed_is_counted_as_it_said() -> None:
    usage = failed_after_a_sample(Calls(requests=1, prompt_tokens=6, cached_tokens=4))
    assert (usage.prompt_tokens, usage.cached_tokens, usage.counts["failed_prompt"]) == (6, 4, 0)
