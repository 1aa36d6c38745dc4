"""The promise that a row's text is that of its tokens, wherever calls cut it: also in the middle of a letter."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session
from tests.support.executor import letters
from tests.support.planner.lowered import program_of

UNDECODABLE = "\ufffd"
PROGRAMS = 12
TAILS = {"byte_level": 1, "byte_fallback": 3}


@cache
def detokenizer(kind: str) -> Detokenizer:
    return Detokenizer(letters.tokenizer(kind).backend_tokenizer)


def written(kind: str) -> st.SearchStrategy[tuple[int, ...]]:
    """Tokens of letters, some of which are cut, and among them single bytes and special tokens."""
    ids = {data: id for id, data in enumerate(letters.bytes_of(kind)) if data}
    whole = [tuple(ids[bytes([byte])] for byte in letter.encode()) for letter in letters.LETTERS]
    one = st.integers(0, len(letters.bytes_of(kind)) - 1).map(lambda token: (token,))
    cut = st.sampled_from(whole).flatmap(lambda way: st.integers(1, len(way)).map(lambda length: way[:length]))
    wide = st.integers(259, len(letters.bytes_of(kind)) - 1).map(lambda token: (token,))
    return st.lists(st.one_of(st.sampled_from(whole), cut, wide, one), max_size=8).map(lambda ways: sum(ways, ()))


@pytest.mark.parametrize("kind", letters.KINDS)
@settings(max_examples=100)
@given(data=st.data())
def test_pieces_are_the_text_of_all_tokens_wherever_these_are_cut(kind: str, data: st.DataObject) -> None:
    """From any cut on, pieces only add to what is known; what is held back is less than a letter."""
    tokens = data.draw(written(kind))
    begun = data.draw(st.integers(0, len(tokens)))
    decoding = detokenizer(kind)
    text, earlier = letters.text_of(kind, tokens), tokens[:begun]
    assert decoding.text(tokens) == text
    growing, known = decoding.begin(earlier), decoding.text(earlier).removesuffix(decoding.tail(earlier))
    for length in range(begun, len(tokens)):
        known += growing.push(tokens[length])
        so_far = letters.text_of(kind, tokens[: length + 1])
        assert text.startswith(known) and so_far == known + growing.tail
        assert growing.tail in [UNDECODABLE * count for count in range(TAILS[kind] + 1)]
    assert decoding.added(earlier, tokens) == text[len(letters.text_of(kind, earlier)) - len(decoding.tail(earlier)) :]


@pytest.mark.parametrize("kind", letters.KINDS)
@settings(max_examples=80)
@given(data=st.data())
def test_the_pieces_of_all_tokens_at_once_are_those_of_one_after_another(kind: str, data: st.DataObject) -> None:
    tokens, earlier = data.draw(written(kind)), data.draw(written(kind))
    growing = Detokenizer(letters.tokenizer(kind).backend_tokenizer).begin(earlier)
    pieces = [growing.push(token) for token in tokens]
    assert detokenizer(kind).pieces(earlier, tokens) == tuple(pieces)
    if pieces:
        pieces[-1] += growing.tail
    assert detokenizer(kind).pieces(earlier, tokens, tail=True) == tuple(pieces)


@pytest.fixture(scope="module", params=letters.KINDS)
def written_by(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """The model of a kind."""
    return Writer(request.param, letters.save(request.param, tmp_path_factory.mktemp(request.param)), Session())


@dataclass(frozen=True)
class Writer:
    """A model of a kind of vocabulary, by its name in programs, and a session to run it in."""

    kind: str
    name: str
    session: Session

    def run(self, physical: PhysicalPlan, seed: int) -> tuple[InstanceResult, dict[tuple[int, ...], str]]:
        """What a plan gives, and the text that was told of each path while it was written."""
        self.session.load(physical)
        told: dict[tuple[int, ...], str] = defaultdict(str)

        def take(path: tuple[int, ...], stage: int, text: str, thought: bool) -> None:
            told[path] += text

        async def main() -> InstanceResult:
            async with self.session.running():
                return await self.session.run(physical, {"problem": "é b🙂"[: seed % 6]}, seed, "0", take)

        return asyncio.run(main()), told


class ProgramGenerator:
    """Makes one program whose calls cut text anywhere. `says`: it writes some of the text itself."""

    def __init__(self, seed: int, model: str) -> None:
        self.chance = random.Random(seed)
        self.model = model
        self.says = self.chance.random() < 0.5

    def program(self) -> str:
        begin = self.chance.choice(['prompt "b{problem}"', "chat user=problem", 'chat user=problem assistant="é"'])
        self.says = self.says or "assistant" in begin
        stages = [begin, *(self.stage(2) for _ in range(self.chance.randint(2, 4))), 'return "{text}|{step}"']
        body = "".join(f"  {stage}\n" for stage in stages)
        return f'model llm = "{self.model}"\nprogram p(problem: text) -> text {{\n{body}}}\n'

    def stage(self, depth: int) -> str:
        pick = self.chance
        kinds = [self.generate, self.generate, self.generate, lambda: f"split {pick.choice([2, 3])}"]
        kinds += [self.say, self.held] if self.says else []
        kinds += [self.repeat, self.search] if depth > 1 else []
        return pick.choice(kinds)()

    def generate(self) -> str:
        pick = self.chance
        options = [f"n={pick.choice([1, 1, 2])}", f"max_tokens={pick.randint(1, 6)}"]
        options += [f"temperature={pick.choice(['0', '0.7', '1.0'])}"]
        stops = ['"🙂"', '"é"', '"b"', '["中", ". "]', "/[é🙂]./", '" b"']
        options += [f"stop={pick.choice(stops)}"] if pick.random() < 0.4 else []
        draft = " draft ngram" if pick.random() < 0.3 else ""
        return f"generate llm {' '.join(options)}{draft}"

    def held(self) -> str:
        """A call that can complete no letter."""
        form = self.chance.choice(["/[ab]é🙂?中{2}/", 'choice("é🙂", "é中", "ab")'])
        return f"generate llm as {form} into piece"

    def say(self) -> str:
        said = self.chance.choice(["é", "🙂b", " b", "中", "a{tokens}"])
        return f'say "{said}"'

    def repeat(self) -> str:
        others = [self.stage(1) for _ in range(self.chance.choice([0, 0, 1]))]
        body = " | ".join([self.generate(), *others, "keep 2 by logprob"])
        return f"repeat {self.chance.choice([2, 4])} {{ {body} }}"

    def search(self) -> str:
        return f"search puct by logprob simulations=3 {{ {self.generate()} }}"


def told_of(row: Row, told: dict[tuple[int, ...], str]) -> str:
    """What was told of a row and of the rows that it was made of."""
    return "".join(told.get(row.path[:length], "") for length in range(len(row.path) + 1))


@pytest.mark.parametrize("part", range(3))
def test_a_text_is_that_of_its_tokens_by_any_plan(written_by: Writer, part: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(part, PROGRAMS, 3):
        generator = ProgramGenerator(seed, written_by.name)
        text = generator.program()
        naive = plan(program_of(text, "p"))
        result, told = written_by.run(naive, seed)
        assert result.error is None, text
        for physical in (optimize(naive).plan, optimize(naive, ["share_prefixes", "speculative_expansion"]).plan):
            other, told_by_it = written_by.run(physical, seed)
            assert (other.value, other.rows) == (result.value, result.rows), text
            assert [told_of(row, told_by_it) for row in other.rows] == [told_of(row, told) for row in result.rows], text
        for row in result.rows:
            # No model has read yet what was said last.
            said = "".join(text for text, _ in row.generated.said)
            expected = letters.text_of(written_by.kind, row.generated.tokens) + said
            assert row.generated.text == row.columns["text"] == expected, text
            if not generator.says:
                assert told_of(row, told) == expected, text
            met["cut"] += expected.endswith(UNDECODABLE)
            met["letters"] += any(letter in expected for letter in "é🙂中")
    assert met["cut"] and met["letters"]


@pytest.mark.parametrize("most", range(1, 7))
def test_steps_together_are_the_text(written_by: Writer, most: int) -> None:
    """A letter is a part of the step in which it is completed, so that no step has half of one."""
    text = f"""model llm = "{written_by.name}"
    program p(problem: text) -> text {{
      prompt "b"
      split 4
      let all = ""
      repeat {24 // most} {{
        if not finished {{ generate llm temperature=0.5 max_tokens={most} | let all = "{{all}}{{step}}" }}
      }}
      return text
    }}"""
    result, _ = written_by.run(plan(program_of(text, "p")), most)
    for row in result.rows:
        whole = letters.text_of(written_by.kind, row.generated.tokens)
        # What is no letter at the end of a call is none of a step's.
        assert str(row.columns["all"]).replace(UNDECODABLE, "") == whole.replace(UNDECODABLE, "")


@pytest.mark.parametrize("most", range(1, 7))
def test_what_is_said_behind_half_a_letter_has_it_in_its_step(written_by: Writer, most: int) -> None:
    text = f"""model llm = "{written_by.name}"
    program p(problem: text) -> text {{
      prompt "b"
      split 4
      let all = ""
      repeat {24 // most} {{
        if not finished {{
          generate llm temperature=0.5 max_tokens={most} | let all = "{{all}}{{step}}"
          say "é" | let all = "{{all}}{{step}}" | say "b" | let all = "{{all}}{{step}}"
        }}
      }}
      return text
    }}"""
    result, _ = written_by.run(plan(program_of(text, "p")), most)
    assert result.error is None
    for row in result.rows:
        assert row.columns["all"] == row.columns["text"]
