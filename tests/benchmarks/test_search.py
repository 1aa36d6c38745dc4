"""The benchmark of search against vLLM: the loop that people write, on a stand-in for vLLM, and our own side."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from benchmarks.peers.peer import Found, Room
from benchmarks.search.planned import Planned
from benchmarks.search.tables import page
from qpdsl import zoo

PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
GENERATOR, VERIFIER = str(zoo.path("zoo/counting")), str(zoo.path("zoo/counting-prm"))


class StandIn:
    """vLLM's `LLM`. Of a beam's four ways on two are equal; the third ends it, and the longer a text the better."""

    asked: ClassVar[list[list[int]]] = []

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def reset_prefix_cache(self) -> None:
        StandIn.asked = []

    def generate(self, prompts: list[dict[str, list[int]]], params: Any, use_tqdm: bool) -> list[Any]:
        if hasattr(params, "allowed_token_ids"):
            StandIn.asked += [prompt["prompt_token_ids"] for prompt in prompts]
            return [self._judged(len(prompt["prompt_token_ids"]), params.allowed_token_ids) for prompt in prompts]
        texts = ["3 * 4 = 12.\n\n", "3 * 4 = 12.\n\n", "3 + 4 = 7. The answer is 7.", "12.\n\n"]
        samples = [
            SimpleNamespace(text=text, token_ids=[20, 21], stop_reason="\n\n" if text.endswith("\n\n") else None)
            for text in texts
        ]
        assert params.n == len(texts)
        return [SimpleNamespace(outputs=samples) for _ in prompts]

    @staticmethod
    def _judged(length: int, ids: list[int]) -> Any:
        plus = 1 - 1 / length
        logprobs = {ids[0]: SimpleNamespace(logprob=math.log(plus)), ids[1]: SimpleNamespace(logprob=math.log1p(-plus))}
        return SimpleNamespace(outputs=[SimpleNamespace(logprobs=[logprobs])])


@pytest.fixture(scope="module")
def vllm_loop() -> Iterator[ModuleType]:
    stand_in = ModuleType("vllm")
    stand_in.LLM = StandIn  # type: ignore[attr-defined]
    stand_in.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", stand_in)
        yield importlib.import_module("benchmarks.search.vllm_loop")
        sys.modules.pop("benchmarks.search.vllm_loop")


def options(**changes: Any) -> dict[str, Any]:
    plain = {"verifier": VERIFIER, "rubric": None, "way": "cached", "width": 4, "expand": 4, "depth": 2}
    return {**plain, "step_tokens": None, **changes}


def test_the_cached_loop_scores_a_text_once_and_counts_duplicates(vllm_loop: ModuleType) -> None:
    loop = vllm_loop.VllmLoop(GENERATOR, "float32", Room(8, 1024), options())
    found = loop.search([PROBLEM, PROBLEM])
    # Round 1: 4 candidates, of which 2 are equal. Round 2: 3 beams go on, two of them equal, in 4 ways each: of the 12
    # candidates the 4 of the second beam and one more of each other have been seen. For both problems.
    assert (found.candidates, found.duplicates) == (2 * 16, 2 * (1 + 4 + 2))
    assert len(StandIn.asked) == found.candidates - found.duplicates
    assert found.sampled == 2 * 16 * 2
    # The longest conversation wins.
    assert found.answers == ["3 * 4 = 12.\n\n3 + 4 = 7. The answer is 7."] * 2


def test_a_judge_is_shown_a_rubric_and_its_likeliest_number_counts(vllm_loop: ModuleType) -> None:
    loop = vllm_loop.VllmLoop(GENERATOR, "float32", Room(8, 1024), options(rubric="Is it right?", verifier=GENERATOR))
    loop._judge.answers = lambda conversations: [[0.1, 0.2, 0.5, 0.1, 0.1] for _ in conversations]
    assert loop.search([PROBLEM]).candidates == 16
    # All marks are equal, so the first beams stay.
    assert loop.search([PROBLEM]).answers == ["3 * 4 = 12.\n\n3 * 4 = 12.\n\n"]


def test_a_beam_that_ended_stands_where_it_stood(vllm_loop: ModuleType) -> None:
    loop = vllm_loop.VllmLoop(GENERATOR, "float32", Room(8, 1024), options(rubric="Is it right?", verifier=GENERATOR))
    best, worst = [0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0, 0.0]
    loop._judge.answers = lambda conversations: [
        best if "The answer is" in loop._words.decode(ids) else worst for ids in conversations
    ]
    # Every answer has the best mark. The one of the first round is before those of the second.
    assert loop.search([PROBLEM]).answers == ["3 + 4 = 7. The answer is 7."]


def test_the_plain_verifier_pads_without_changing_scores(vllm_loop: ModuleType) -> None:
    judge = vllm_loop.PlainJudge(VERIFIER, "float32", [15, 17])
    rows = [[1, 40, 41, 2], [1, 50, 51, 52, 53, 54, 2]]
    together, alone = judge.answers(rows), [judge.answers([row])[0] for row in rows]
    assert together[0] != pytest.approx(together[1], abs=1e-3)
    for a, b in zip(together, alone, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
        assert sum(a) == pytest.approx(1.0)


def test_our_side_searches_with_a_program_s_plan() -> None:
    found = Planned("float32", Room(1, 1), {"program": "beam_search", "models": {}}).search([PROBLEM])
    assert isinstance(found, Found)
    assert found.answers == ["12"]
    assert found.sampled > 0


def test_the_table_tells_ratios_goals_and_duplicates() -> None:
    ratio = {"median": 3.0, "low": 2.5, "high": 3.5}
    side = {"seconds_a_problem": 0.1, "cpu_seconds_a_problem": 0.1, "slower_by": ratio, "slower_by_cpu": ratio}
    side |= {"slower_by_token": {**ratio, "median": 2.75}, "sampled_a_problem": 40.0, "right": 0.75, "duplicates": 0.8}
    figures = {"problems": 8, "goals": {"loop": 2.2}, "absent": {"other": "not\nthere"}, "sides": {"loop": side}}
    text = page({"vllm": {"m": figures}, "machine": {"sentence": "P"}})
    assert "| loop | 10.00 | 3.00 (2.50–3.50)x | 3.00 (2.50–3.50)x | 2.75 (2.50–3.50)x | 40 | 75% | 2.2x |" in text
    assert "80% to 80% had a text that was seen before" in text
    assert "Without other: not there" in text
