"""What stages need of servers, from the text of a program and what a server was seen to do."""

from __future__ import annotations

import pytest

from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.remote.needs import unmet
from tests.support.executor.programs import compiled

MODEL = "openai:http://127.0.0.1:9/v1#m"
HEADER = f'model llm = "{MODEL}"\n'
CHAT = Abilities(
    endpoint="chat", chat=True, seeds=True, greedy=True, temperature=True, top_p=True, constraints=frozenset({"regex"})
)
TEXT = Abilities(endpoint="text", chat=False, seeds=True, greedy=True, temperature=True)
IDS = Abilities(endpoint="ids", seeds=True, greedy=True, temperature=True, prompt_logprobs=True)


def lacks(body: str, abilities: Abilities, head: str = "") -> list[str]:
    plan = compiled(f"{HEADER}program p(q: text, t: float = 0.0) -> text {head}{{\n{body}\n}}")
    return [need.lacks for need in unmet(plan, {MODEL: abilities})]


@pytest.mark.parametrize(
    ("body", "abilities", "words"),
    [
        ("chat user=q\ngenerate llm", CHAT, None),
        ("chat user=q\ngenerate llm\nchat user=q\ngenerate llm", CHAT, None),
        ("chat user=q\ngenerate llm top_p=0.9 temperature=0.5 as /a+/", CHAT, None),
        ("chat user=q\ngenerate llm as int(1..5)", CHAT, "hold what is written to a JSON Schema"),
        ('chat user=q\ngenerate llm stop="."\ngenerate llm', CHAT, "does not go on with a turn"),
        ('chat user=q\nsay "So: "\ngenerate llm', CHAT, "does not go on with a turn"),
        ('chat user=q\nrepeat 2 {\ngenerate llm stop="."\n}', CHAT, "does not go on with a turn"),
        ("chat user=q\ngenerate llm\nif finished { chat user=q }\ngenerate llm", CHAT, "does not go on with a turn"),
        ('chat user=q\ngenerate llm stop="."\ngenerate llm', IDS, None),
        ('prompt "{q}"\ngenerate llm', CHAT, "takes chat messages alone"),
        ('prompt "{q}"\ngenerate llm stop="."\ngenerate llm', TEXT, None),
        ("chat user=q\ngenerate llm", TEXT, "takes no chat messages"),
        ("chat user=q\ngenerate llm min_p=0.1 temperature=1", CHAT, "pays no heed to `min_p`"),
        ("chat user=q\ngenerate llm top_k=3 temperature=0", CHAT, None),
        ("chat user=q\ngenerate llm top_k=3 temperature=t", CHAT, None),
        ("chat user=q\ngenerate llm as bool", IDS, "does not hold what is written to"),
        ('chat user=q\ngenerate llm as choice("a", "b")', CHAT, "does not tell the log-probabilities"),
        ('chat user=q\ngenerate llm as choice("a", "b")', IDS, None),
        ('chat user=q\ngenerate llm\nscore prob(llm, "Is it?", "yes")', CHAT, "does not tell the log-probabilities"),
    ],
)
def test_a_stage_needs_what_it_does(body: str, abilities: Abilities, words: str | None) -> None:
    found = lacks(body, abilities)
    assert (len(found) == 1 and words in found[0]) if words else not found


def test_both_models_of_a_filter_need_token_ids() -> None:
    body = "chat user=q\ngenerate llm via filter(slm, 0.9)"
    text = f'{HEADER}model slm = "zoo/counting-mini"\nprogram p(q: text) -> text {{\n{body}\n}}'
    (need,) = unmet(compiled(text), {MODEL: CHAT})
    assert "is not sent token ids" in need.lacks and "`tokenizer=`" in need.instead


def test_seeds_are_needed_unless_the_program_permits_that_nothing_comes_again() -> None:
    body = "chat user=q\ngenerate llm temperature=0.8"
    without = Abilities(endpoint="chat", chat=True, greedy=True, temperature=True)
    assert "samples without seeds" in lacks(body, without)[0]
    assert not lacks(body.replace("0.8", "0"), without) and not lacks(body, without, "within recorded ")
    assert "samples without seeds" in lacks(body, without, "within replayable ")[0]
    assert "`within exact` does not permit that" in lacks(body, CHAT, "within exact ")[0]
    assert not lacks(body, CHAT, "within loss(0.1) ")
    fickle = Abilities(endpoint="chat", chat=True, seeds=True, temperature=True)
    assert "two texts at temperature 0" in lacks(body.replace("0.8", "0"), fickle)[0]


def test_what_a_called_program_needs_stands_where_it_is_called() -> None:
    inner = 'program inner(q: text) -> text {\nchat user=q\ngenerate llm stop="."\ngenerate llm\n}\n'
    text = f"{HEADER}{inner}program p(q: text) -> text {{\nchat user=q\ncall inner(q) into a\nreturn a\n}}"
    (need,) = unmet(compiled(text), {MODEL: CHAT})
    assert text[need.span.start : need.span.end].startswith("call inner")
