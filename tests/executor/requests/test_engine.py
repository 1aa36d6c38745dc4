"""The `Engine` protocol: an engine that is not ours runs programs, and says what it cannot serve before they run."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.runtime.requirements import required_features
from qpdsl.session.session import Session
from tests.support.executor.models import engine_of, paged
from tests.support.executor.programs import SHIPPED, case, compiled, shipped
from tests.support.executor.scripted_engine import CAPABILITIES, result_of

TOKENIZER = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
VOTE = """model llm = "remote"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=5 temperature=0.8 max_tokens=60
  extract answer = /The answer is (-?\\d+)/
  vote answer
}"""
STEPS = """model llm = "remote"
program p(problem: text) -> text {
  chat user=problem
  repeat 3 until all(finished) {
    generate llm n=2 stop="\\n" temperature=0.8 max_tokens=60
    keep 1 by logprob
  }
  best by logprob
  return text
}"""

CHOICE = """model llm = "remote"
program p(problem: text) -> text {
  chat user=problem
  generate llm as choice("3", "4")
  return text
}"""
GREEDY = """model llm = "remote"
program p(problem: text) -> text {
  chat user=problem
  generate llm temperature=0
  return text
}"""


def test_a_program_runs_on_an_engine_of_another_kind() -> None:
    keys: list[int] = []

    def script(prompt: str, key: int) -> str:
        assert "What is 2 + 2?" in prompt
        keys.append(key)
        return f"The answer is {5 if len(keys) == 2 else 4}"

    result, engine = result_of(compiled(VOTE), script)
    assert (result.value, result.error) == ("4", None)
    assert len(set(keys)) == 5 and engine.busy("remote") == 0
    assert result.sampled_tokens > 5 and result.prompt_tokens > 0


def test_its_samples_stop_at_stop_strings_and_go_on_in_the_next_round() -> None:
    result, engine = result_of(compiled(STEPS), lambda prompt, key: "two\n" if "two" not in prompt else "four")
    assert (result.value, result.error) == ("two\nfour", None)
    assert all(isinstance(request, GenerateRequest) for request in engine.requests)


def test_a_request_that_it_does_not_serve_fails_the_instance() -> None:
    result, _ = result_of(compiled(CHOICE), lambda prompt, key: "")
    assert result.error == "remote does not return the log-probabilities of given tokens"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_built_in_models_have_what_the_shipped_programs_need(name: str) -> None:
    plan = shipped(name)
    assert required_features(plan)["llm"] >= {"sampling"}
    session = Session()
    session.load(plan)
    for model, features in required_features(plan).items():
        assert session._engine.capabilities(plan.models[model]).refusal(features) is None


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("amortized", {"sampling", "seeds", "early_exit"}),
        ("choice", {"logprobs"}),
        ("json", {"sampling", "seeds", "json_schema"}),
        ("filter", {"sampling", "seeds", "logprobs"}),
        ("contrast", {"sampling", "seeds", "contrast"}),
    ],
)
def test_what_a_plan_needs_is_known_before_it_runs(name: str, features: set[str]) -> None:
    assert required_features(case(name))["llm"] >= features


def test_greedy_decoding_needs_no_seeds() -> None:
    assert required_features(compiled(GREEDY)) == {"llm": {"sampling"}}
    warm = compiled(GREEDY.replace("temperature=0", "temperature=0.5"))
    assert required_features(warm) == {"llm": {"sampling", "seeds"}}


def test_a_model_says_what_it_lacks() -> None:
    assert CAPABILITIES.refusal({"sampling", "logits"}) == "does not return the logits of given tokens"
    assert Capabilities(frozenset({"logits"})).refusal({"sampling"}) == "writes no text"
    assert "early_exit" in engine_of(paged("llama")).capabilities("m").features
    assert "early_exit" not in engine_of(paged("llama", num_hidden_layers=1)).capabilities("m").features
