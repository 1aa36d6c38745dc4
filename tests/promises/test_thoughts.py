"""The promise that what a model thinks is a part of its own: the same by any plan, and no part of its answer."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.request import Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.text.context import Context, Turn, encode, encode_after
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session
from tests.support.executor import thinkers
from tests.support.planner.lowered import program_of

PROGRAMS = 9
DISABLED = (
    ["share_prefixes", "speculative_expansion"],
    ["decided_vote", "collapse_greedy", "option_tree", "draft_tokens"],
)


@dataclass(frozen=True)
class Thinker:
    """A model that thinks, by its id in programs, and a session to run it in."""

    kind: thinkers.Kind
    name: str
    session: Session

    def run(self, physical: PhysicalPlan, seed: int) -> tuple[InstanceResult, dict[tuple[int, ...], list[str]]]:
        """What a plan gives, and what was told of each path while it was written: of its answer, and its thought."""
        self.session.load(physical)
        told: dict[tuple[int, ...], list[str]] = defaultdict(lambda: ["", ""])

        def take(path: tuple[int, ...], stage: int, text: str, thought: bool) -> None:
            told[path][thought] += text

        async def main() -> InstanceResult:
            async with self.session.running():
                return await self.session.run(physical, {"problem": "é b🙂"[: seed % 6]}, seed, "0", take)

        return asyncio.run(main()), told


@pytest.fixture(scope="module", params=thinkers.KINDS)
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Thinker:
    return Thinker(request.param, thinkers.save(request.param, tmp_path_factory.mktemp(request.param)), Session())


class ProgramGenerator:
    """Makes one program of thoughts and answers, cut anywhere."""

    def __init__(self, seed: int, model: str) -> None:
        self.chance = random.Random(seed)
        self.model = model

    def program(self) -> str:
        turns = [f'chat user="{{problem}}"\n  {self.turn()}']
        for history in self.chance.choice([[], [], [""], ["history=tokens"], ["history=tokens"] * 2]):
            turns.append(f'chat user="b?" {history}\n  {self.turn()}')
        body = "".join(f"  {stage}\n" for stage in [*turns, 'return "{thought}|{text}|{step}"'])
        return f'model llm = "{self.model}"\nprogram p(problem: text) -> text {{\n{body}}}\n'

    def turn(self) -> str:
        pick = self.chance
        stages = pick.choice([self.whole, self.whole, self.in_parts, self.voted, self.held])()
        if pick.random() < 0.3:
            stages += [f"generate llm {self.options()}", "keep 2 by logprob"]
        return "\n  ".join(stages)

    def think(self) -> str:
        return self.chance.choice(["", "think=on", "think=off", "think=3", "think=6", "think=0", "think=tokens + 4"])

    def options(self) -> str:
        pick = self.chance
        options = [f"n={pick.choice([1, 2, 3])}", f"max_tokens={pick.randint(1, 9)}"]
        options += [f"temperature={pick.choice(['0', '0.7', '1.0'])}"]
        options += [f"stop={pick.choice(STOPS)}"] if pick.random() < 0.4 else []
        return " ".join(options) + (" draft ngram" if pick.random() < 0.3 else "")

    def whole(self) -> list[str]:
        return [f"generate llm {self.options()} {self.think()}"]

    def in_parts(self) -> list[str]:
        pick = self.chance
        more = f'repeat {pick.choice([1, 2])} {{ say "{pick.choice(SAID)}" | generate llm only=thought max_tokens=4 }}'
        rest = pick.choice([f"generate llm only=answer {self.options()}", f"generate llm {self.options()} think=4"])
        first = f"generate llm n=2 only=thought max_tokens={pick.randint(1, 7)}"
        return [first + pick.choice(["", ' stop="b"', " think=3"]), pick.choice([more, "split 2"]), rest]

    def voted(self) -> list[str]:
        vote = self.chance.choice(["vote a", "vote a weight=-logprob", "vote a decided=0.9"])
        return [f"generate llm n=6 max_tokens=4 {self.think()}", "extract a = /^./", vote]

    def held(self) -> list[str]:
        form = self.chance.choice(["/[ab]é🙂?中{2}/", 'choice("é🙂", "é中", "ab")', "int(0..20)"])
        return [f"generate llm n=2 {self.think()} as {form} into piece"]


STOPS = ('"🙂"', '"é"', '"b"', '["中", ". "]', "/[é🙂]./", '" b"')
SAID = ("é", "🙂b", " b", "中")


def test_thoughts_and_answers_are_the_same_by_any_plan(thinker: Thinker) -> None:
    met: Counter[str] = Counter()
    for seed in range(PROGRAMS):
        text = ProgramGenerator(seed, thinker.name).program()
        naive = plan(program_of(text, "p"))
        result, told = thinker.run(naive, seed)
        assert result.error is None, (result.error, text)
        for physical in (optimize(naive).plan, *(optimize(naive, rules).plan for rules in DISABLED)):
            other, told_by_it = thinker.run(physical, seed)
            assert (other.value, other.rows) == (result.value, result.rows), text
            for row in other.rows:
                assert told_by_it[row.path] == told[row.path], text
        for row in result.rows:
            generated, columns = row.generated, row.columns
            state = generated.thought
            assert columns["thought"] == state.text and columns["text"] == generated.text, text
            assert 0 <= state.tokens <= generated.sampled, text
            assert not state.open or generated.text == "", text
            met["thought"] += bool(state.text)
            met["answer"] += bool(generated.text and state.text)
            if len(row.path) == 1 and generated.sampled and not state.open:
                # What was told of a sample is what it came to.
                shown = told[row.path]
                assert shown[0] == generated.text and shown[1].strip() == (state.text or "").strip(), text
                met["told"] += bool(shown[0] and shown[1])
            if thinker.kind != "letters" and not generated.said and not state.open:
                thought, answer = thinkers.parted(thinker.name, generated.tokens, inside=state.inside)
                said = "chat" in text and state.text is None
                assert (thought or None, answer) == (state.text or None, generated.text) or said, text
    assert met["thought"] and met["answer"] and met["told"]


@pytest.mark.parametrize("most", [1, 3, 6])
def test_a_bound_is_reached_and_never_passed(thinker: Thinker, most: int) -> None:
    # A model whose marks are letters hardly writes one by chance: an answer of a form makes it begin with one.
    held = "as /a{1,3}/" if thinker.kind == "letters" else ""
    text = f"""model llm = "{thinker.name}"
    program p(problem: text) -> text {{
      chat user=problem
      generate llm n=12 think={most} max_tokens=2 {held}
      return text
    }}"""
    rows = thinker.run(plan(program_of(text, "p")), most)[0].rows
    assert max(int(str(row.columns["thought_tokens"])) for row in rows) == most


def test_a_prompt_that_fills_the_context_is_refused_with_its_length(thinker: Thinker) -> None:
    text = f"""model llm = "{thinker.name}"
    program p(problem: text) -> text {{
      chat user="{{problem}}{"é" * 300}"
      generate llm OPTIONS
      return text
    }}"""
    for options in ("max_tokens=4", "think=3 max_tokens=4", "as int(0..9)", 'think=3 as choice("a", "é")'):
        result = thinker.run(plan(program_of(text.replace("OPTIONS", options), "p")), 0)[0]
        assert result.fault is None and re.match(r"the context has \d+ tokens, .* takes 51[12]", result.error or "")


def test_a_stop_in_what_could_come_before_a_thought_ends_an_answer_with_it(thinker: Thinker) -> None:
    """White space may come before the mark that opens a thought. Where none follows it is the answer's."""
    program = f"""model llm = "{thinker.name}"
    program p(problem: text) -> text {{
      chat user=problem
      generate llm n=200 temperature=1.8 max_tokens=3 STOP
      return text
    }}"""
    whole, stopped = (
        thinker.run(plan(program_of(program.replace("STOP", stop), "p")), 1)[0].rows
        for stop in ("", r"stop=/[\s\x1c-\x1f]/")
    )
    met = 0
    for one, two in zip(whole, stopped, strict=True):
        answer, found = str(one.columns["text"]), re.search(r"[\s\x1c-\x1f]", str(one.columns["text"]))
        assert two.columns["thought"] == one.columns["thought"]
        assert two.columns["text"] == (answer if found is None else answer[: found.end()])
        met += found is not None and found.start() == 0
    assert met or thinker.kind == "opens"


def test_a_text_is_no_mark_of_a_turn_that_is_kept(thinker: Thinker) -> None:
    model = thinker.session.text_model(thinker.name)
    for said in ("b", "qpdslkept", "qpdslkeptt"):
        turns = Turn("user", said), Turn("assistant", "a"), Turn("user", said)
        rest = encode_after(model.tokenizer, Context(turns), 1, model.thinking, "")
        assert rest == encode(model.tokenizer, Context(turns), model.thinking)[-len(rest) :]
        assert said in model.decode(rest)


def test_a_history_in_tokens_goes_on_from_what_was_drawn(thinker: Thinker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn's prompt begins with all that the model was given and wrote, so no prefix is lost."""
    text = f"""model llm = "{thinker.name}"
    program p(problem: text) -> text {{
      chat user="a"
      generate llm think=4 max_tokens=5 temperature=0.7
      chat user="b" HISTORY
      generate llm only=thought max_tokens=1
      return text
    }}"""
    prompts: list[tuple[int, ...]] = []
    submit = PagedEngine.submit

    def seen(engine: PagedEngine, model: str, request: Request) -> Ticket:
        prompts.append(request.tokens)
        return submit(engine, model, request)

    monkeypatch.setattr(PagedEngine, "submit", seen)
    for history in ("history=tokens", "history=template"):
        prompts.clear()
        (row,) = thinker.run(plan(program_of(text.replace("HISTORY", history), "p")), 1)[0].rows
        assert row.context is not None and (row.context.kept is not None) == (history == "history=tokens")
        first, *_, last = prompts
        # What was drawn for the first turn, as far as the answer's request was given it.
        drawn = prompts[-2]
        assert len(drawn) > len(first)
        if row.context.kept is not None:
            kept = row.context.kept
            assert last[: len(first) + len(kept.tokens)] == first + kept.tokens
            assert last[: len(drawn)] == drawn
