"""What stages need of servers, from the text of a program and what a server was seen to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.remote.missing_features import missing_features
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities, ServerThinking
from tests.support.executor.programs import compiled

MODEL = "openai:http://127.0.0.1:9/v1#m"
HEADER = f'model llm = "{MODEL}"\nschema A {{ x: int }}\nschema B {{ y: int }}\n'
CHAT = ServerCapabilities(
    endpoint="chat", chat=True, seeds=True, greedy=True, temperature=True, top_p=True, constraints=frozenset({"regex"})
)
TEXT = ServerCapabilities(endpoint="text", chat=False, seeds=True, greedy=True, temperature=True)
BOUNDED = ServerThinking("reasoning", "on", {"on": {}, "off": {"think": False}}, "thinking_token_budget")
THINKS = replace(CHAT, thinking=BOUNDED, prefill=True)
ALWAYS = replace(CHAT, thinking=ServerThinking(None, "on", {"on": {}, "low": {"reasoning_effort": "low"}}))
OWN = replace(CHAT, temperature=False, greedy=False, top_p=False)
IDS = ServerCapabilities(endpoint="ids", seeds=True, greedy=True, temperature=True, prompt_logprobs=True)
HELD = replace(IDS, constraints=frozenset({"json_schema"}), answer_constraints=frozenset({"json_schema"}))


def lacks(body: str, capabilities: ServerCapabilities, head: str = "") -> list[str]:
    plan = compiled(f"{HEADER}program p(q: text, t: float = 0.0) -> text {head}{{\n{body}\n}}")
    return [missing.lacks for missing in missing_features(plan, {MODEL: capabilities})]


@pytest.mark.parametrize(
    ("body", "capabilities", "words"),
    [
        ("chat user=q\ngenerate llm", CHAT, None),
        ("chat user=q\ngenerate llm\nchat user=q\ngenerate llm", CHAT, None),
        ("chat user=q\ngenerate llm top_p=0.9 temperature=0.5 as /a+/", CHAT, None),
        ("chat user=q\ngenerate llm as int(1..5)", CHAT, "constrain its output to a JSON Schema"),
        ('chat user=q\ngenerate llm stop="."\ngenerate llm', CHAT, "cannot continue a turn"),
        ('chat user=q\nsay "So: "\ngenerate llm', CHAT, "cannot continue a turn"),
        ('chat user=q\nrepeat 2 {\ngenerate llm stop="."\n}', CHAT, "cannot continue a turn"),
        ("chat user=q\ngenerate llm\nif finished { chat user=q }\ngenerate llm", CHAT, "cannot continue a turn"),
        ('chat user=q\ngenerate llm stop="."\ngenerate llm', IDS, None),
        ('prompt "{q}"\ngenerate llm', CHAT, "takes chat messages only"),
        ('prompt "{q}"\ngenerate llm stop="."\ngenerate llm', TEXT, None),
        ("chat user=q\ngenerate llm", TEXT, "answers no chat messages"),
        ("chat user=q\ngenerate llm min_p=0.1 temperature=1", CHAT, "ignores `min_p`"),
        ("chat user=q\ngenerate llm top_k=3 temperature=0", CHAT, None),
        ("chat user=q\ngenerate llm top_k=3 temperature=t", CHAT, None),
        ("chat user=q\ngenerate llm presence_penalty=1", CHAT, None),
        ("chat user=q\ngenerate llm repetition_penalty=1.1", CHAT, "has no `repetition_penalty`"),
        ("chat user=q\ngenerate llm min_tokens=4", IDS, "has no `min_tokens`"),
        ('chat user=q\ngenerate llm without="a"', IDS, "has no `without`"),
        ("chat user=q\ngenerate llm as bool", IDS, "does not constrain its output to"),
        ("chat user=q\ngenerate llm as A | B", HELD, "takes no union of schemas"),
        ("chat user=q\ngenerate llm as A", HELD, None),
        ("chat user=q\ngenerate llm until confidence < 9", IDS, "does not report what its tokens were drawn from"),
        ("chat user=q\ngenerate llm\nscore confidence\nbest by score", IDS, "does not report what its tokens"),
        ('chat user=q\ngenerate llm as choice("a", "b")', CHAT, "does not return the log-probabilities"),
        ('chat user=q\ngenerate llm as choice("a", "b")', IDS, None),
        ("chat user=q\ngenerate llm think=64", THINKS, None),
        ('chat user=q\ngenerate llm think=off\nscore judge(llm, "Good?", 1..5)', THINKS, None),
        ('chat user=q\ngenerate llm\nscore judge(llm, "Good?", 1..5)', ALWAYS, "without a thought"),
        ('chat user=q\ngenerate llm think="low"', ALWAYS, None),
        ("chat user=q\ngenerate llm think=64", ALWAYS, "takes no bound on a thought"),
        ("chat user=q\ngenerate llm think=off", ALWAYS, "was not seen to heed `think=off`"),
        ("chat user=q\ngenerate llm only=thought", THINKS, "gives a thought and its answer together"),
        ("chat user=q\ngenerate llm think=off", CHAT, "does not part thoughts from answers"),
        ("chat user=q\ngenerate llm think=off", IDS, None),
        ("chat user=q\ngenerate llm\nchat user=q history=tokens\ngenerate llm", THINKS, "renders each turn anew"),
        ("chat user=q\ngenerate llm\nchat user=q history=tokens\ngenerate llm", IDS, None),
        ("chat user=q\ngenerate llm temperature=0.5", OWN, "takes no `temperature` but its own"),
        ('chat user=q\ngenerate llm\nscore prob(llm, "Is it?", "yes")', CHAT, "does not return the log-probabilities"),
    ],
)
def test_a_stage_needs_what_it_does(body: str, capabilities: ServerCapabilities, words: str | None) -> None:
    found = lacks(body, capabilities)
    assert (len(found) == 1 and words in found[0]) if words else not found


def test_both_models_of_a_filter_need_token_ids() -> None:
    body = "chat user=q\ngenerate llm via filter(slm, 0.9)"
    text = f'{HEADER}model slm = "zoo/counting-mini"\nprogram p(q: text) -> text {{\n{body}\n}}'
    (missing,) = missing_features(compiled(text), {MODEL: CHAT})
    assert "takes no token ids" in missing.lacks and "`tokenizer=`" in missing.instead


def test_seeds_are_needed_unless_the_program_permits_that_nothing_comes_again() -> None:
    body = "chat user=q\ngenerate llm temperature=0.8"
    without = ServerCapabilities(endpoint="chat", chat=True, greedy=True, temperature=True)
    assert "samples without seeds" in lacks(body, without)[0]
    assert not lacks(body.replace("0.8", "0"), without) and not lacks(body, without, "within recorded ")
    assert "samples without seeds" in lacks(body, without, "within replayable ")[0]
    assert "`within exact` does not allow" in lacks(body, CHAT, "within exact ")[0]
    assert not lacks(body, CHAT, "within loss(0.1) ")
    fickle = ServerCapabilities(endpoint="chat", chat=True, seeds=True, temperature=True)
    assert "two texts at temperature 0" in lacks(body.replace("0.8", "0"), fickle)[0]


def test_what_a_called_program_needs_stands_where_it_is_called() -> None:
    inner = 'program inner(q: text) -> text {\nchat user=q\ngenerate llm stop="."\ngenerate llm\n}\n'
    text = f"{HEADER}{inner}program p(q: text) -> text {{\nchat user=q\ncall inner(q) into a\nreturn a\n}}"
    (missing,) = missing_features(compiled(text), {MODEL: CHAT})
    assert text[missing.span.start : missing.span.end].startswith("call inner")
