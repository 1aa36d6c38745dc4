"""What is shown of an answer in pieces, and what is given back whole."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from qpdsl.serve.answer_cut import AnswerCut

TEXT = st.text("ab. ", max_size=30)


def cut_of(stops: list[str], bound: int | None) -> AnswerCut:
    """With words as tokens, the space before each belongs to it."""

    def encode(text: str) -> list[int]:
        ids, rest = [], text
        while rest:
            end = rest.find(" ", 1)
            word = rest if end < 0 else rest[:end]
            words.append(word)
            ids.append(len(words) - 1)
            rest = rest[len(word) :]
        return ids

    words: list[str] = []
    return AnswerCut(stops, bound, encode, lambda ids: "".join(words[id] for id in ids))


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


def test_the_bound_counts_tokens() -> None:
    assert cut_of([], 2).whole("aa bb cc") == ("aa bb", "length")
    assert cut_of([], 3).whole("aa bb cc") == ("aa bb cc", "stop")
    assert cut_of([" c"], 3).whole("aa bb cc", "length") == ("aa bb", "stop")
    assert cut_of([], None).whole("aa bb", "length") == ("aa bb", "length")
