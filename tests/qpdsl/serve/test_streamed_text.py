"""What is shown of an answer in pieces, and what is given back whole."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qpdsl.executor.models.text_model import TextModel
from qpdsl.serve.streamed_text import Growth, PendingUpdates, StopTruncator
from tests.support.executor import letters

TEXT = st.text("ab. ", max_size=30)


def cut_of(stops: list[str], bound: int | None) -> StopTruncator:
    """With words as tokens, the space before each belongs to it."""

    def ends(text: str) -> list[int]:
        starts = [at for at in range(1, len(text)) if text[at] == " "]
        return [*starts, len(text)] if text else []

    return StopTruncator(stops, bound, ends)


@given(st.lists(TEXT, max_size=6), st.lists(TEXT.filter(bool), max_size=3), st.none() | st.integers(1, 6))
@example(["a. ", "b"], [". b"], None)
def test_pieces_make_up_what_is_given_back(pieces: list[str], stops: list[str], bound: int | None) -> None:
    cut = cut_of(stops, bound)
    shown = "".join(map(cut.feed, pieces))
    whole, finish = cut.whole("".join(pieces))
    assert whole.startswith(shown)
    assert "".join(pieces).startswith(whole)
    assert not any(stop in whole for stop in stops)
    alone, why = cut_of(stops, bound).whole("".join(pieces))
    assert (whole, finish) == (alone, why)
    if bound is None:
        assert whole == min(
            (text.partition(stop)[0] for stop in stops for text in ["".join(pieces)]), default=whole, key=len
        )
    assert finish in ("stop", "length")


@pytest.mark.parametrize("kind", letters.KINDS)
@given(st.lists(st.text("ab é🙂中", max_size=6), max_size=5), st.integers(1, 12))
def test_a_bound_cuts_no_letter(kind: str, pieces: list[str], bound: int) -> None:
    model = TextModel("m", letters.tokenizer(kind), frozenset({letters.EOS}), 512, 512)
    cut = StopTruncator([], bound, model.letter_ends)
    shown, text = "".join(map(cut.feed, pieces)), "".join(pieces)
    whole, finish = cut.whole(text)
    assert whole.startswith(shown) and text.startswith(whole)
    assert (finish == "length") is (len(model.encode(text)) > bound) is (whole != text)
    # As much as the tokens hold: with one letter more there would be more of them.
    assert finish == "stop" or len(model.encode(text[: len(whole) + 1])) > bound


def test_the_bound_counts_tokens() -> None:
    assert cut_of([], 2).whole("aa bb cc") == ("aa bb", "length")
    assert cut_of([], 3).whole("aa bb cc") == ("aa bb cc", "stop")
    assert cut_of([" c"], 3).whole("aa bb cc", "length") == ("aa bb", "stop")
    assert cut_of([], None).whole("aa bb", "length") == ("aa bb", "length")


def test_what_comes_in_a_pause_is_one_batch_and_the_end_waits_for_no_pause() -> None:
    async def check() -> tuple[list[str], float]:
        updates, work, batches = PendingUpdates(), asyncio.get_running_loop().create_future(), list[str]()

        async def read() -> None:
            async for _, grown in updates.batches(work, lambda: pause):
                batches.append(grown[0].text if grown else "")

        pause, reading = 0.05, asyncio.create_task(read())
        for letter in "abcd":
            updates.grow(0, Growth(letter))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert batches == ["a"]
        while len(batches) < 2:
            await asyncio.sleep(0.01)
        pause = 60.0
        updates.grow(0, Growth("e"))
        while len(batches) < 3:
            await asyncio.sleep(0.01)
        updates.grow(0, Growth("f"))
        since = time.monotonic()
        work.set_result(None)
        await reading
        return batches, time.monotonic() - since

    batches, waited = asyncio.run(check())
    # What is left when the answer is there follows from the answer.
    assert batches[:3] == ["a", "bcd", "e"] and set(batches[3:]) <= {"f"} and waited < 30
