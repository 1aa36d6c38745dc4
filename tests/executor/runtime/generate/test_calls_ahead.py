"""Calls that are taken from what an earlier one wrote past its stop: the same tokens, with fewer requests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.runtime.generate.beyond_watch import BeyondWatch
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.text.stop import Stops, StopWatch
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, RemoteModel, Tolerance, everything
from tests.support.executor.scripted_engine import ScriptedEngine, result_of
from tests.support.planner.lowered import program_of
from tests.support.planner.rules import SERVER, with_server

_WRITES = "name: Ann\njob: baker\nage: 31\n"
_THREE = """
    prompt "{problem}"
    say "name:"
    generate llm temperature=0 stop="\\n" max_tokens=20 as text_name
    say "job:"
    generate llm temperature=0 stop="\\n" max_tokens=20
    say "age:"
    generate llm temperature=0 stop="\\n" max_tokens=20
    return text
"""


def planned(stages: str, server: RemoteModel = SERVER, **changes: object) -> PhysicalPlan:
    text = f'model llm = "vllm:http://127.0.0.1:8000/v1#m"\nprogram p(problem: text) -> text {{{stages}}}'
    naive = replace(plan(program_of(text.replace(" as text_name", "")), ()), **changes)
    return optimize(with_server(naive, server)).plan


def script(document: str = _WRITES):
    """A model that writes the document on, wherever the prompt has got to in it, and a dot where it is none of it."""

    def write(prompt: str, key: int) -> str:
        said = prompt[prompt.find("?") + 1 :]
        return document[len(said) :] if document.startswith(said) else "."

    return write


def both(physical: PhysicalPlan, document: str = _WRITES) -> tuple[InstanceResult, InstanceResult, int]:
    """The results with and without the rule, and how many requests fewer it takes."""
    plain = optimize(with_server(plain_of(physical)), ["speculative_calls"]).plan
    expected, straight = result_of(plain, script(document))
    result, ahead = result_of(physical, script(document))
    same(expected, result)
    return expected, result, len(straight.requests) - len(ahead.requests)


def plain_of(physical: PhysicalPlan) -> PhysicalPlan:
    def plain(node):  # type: ignore[no-untyped-def]
        return node

    raise NotImplementedError
