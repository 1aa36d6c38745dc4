"""The programs of the exercises, in a small size, and the page that they are on."""

from __future__ import annotations

import re

import pytest

from benchmarks.lessons import batching, kv_memory, page, prefix_cache, speculation

TEXT = page.PAGE.read_text("utf-8")


def shares(text: str, name: str) -> list[float]:
    """The per cents in the line that begins with the name."""
    line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
    return [float(share) for share in re.findall(r"([\d.]+)%", line)]


def test_continuous_batching_fills_more_slots_with_the_same_tokens() -> None:
    text = batching.exercise(quick=True)
    assert shares(text, "continuous")[0] > shares(text, "static")[0]
    assert shares(text, "continuous")[1] > 80
    # What the arithmetic says, the engine did.
    assert shares(text, "continuous")[0] == pytest.approx(100 * batching.filled(batching.lengths_of(10)), abs=0.06)
    assert text.endswith("the same tokens: yes")


def test_lengths_are_of_the_distribution() -> None:
    lengths = batching.lengths_of(4000)
    assert min(lengths) == batching.SCALE and max(lengths) == batching.LONGEST
    beyond = sum(length >= 2 * batching.SCALE for length in lengths) / len(lengths)
    assert beyond == pytest.approx(0.5**batching.SHAPE, abs=0.03)


def test_a_prefix_cache_hits_what_it_can_as_soon_as_it_is_large_enough() -> None:
    text = prefix_cache.exercise(quick=True)
    most = float(re.search(r"can hit: ([\d.]+)%", text)[1])  # type: ignore[index]
    assert shares(text, "unbounded")[0] == most >= shares(text, "20 entries")[0] > 30


def test_a_tree_has_more_of_its_tokens_accepted_than_a_chain() -> None:
    text = speculation.exercise(quick=True)
    rows = re.findall(r"(chain of \d|tree).*?  +([\d.]+)  +([\d.]+)  +([\d.]+)", text)
    assert [name for name, *_ in rows] == ["chain of 1", "chain of 3", "tree"]
    accepted = [float(accepted) for _, _, accepted, _ in rows]
    assert accepted == sorted(accepted) and text.endswith("without drafts: yes")


def test_users_by_type_are_those_of_the_lesson() -> None:
    text = kv_memory.exercise(quick=False)
    rows = {line.split("  ")[0]: line.split()[-4:] for line in text.splitlines()[1:5]}
    assert [rows[name][1] for name in ("16 bits", "fp8", "int4")] == ["126", "252", "504"]
    assert [rows[name][3] for name in ("16 bits", "fp8", "int4")] == ["126", "244", "304"]
    assert text.endswith("8 times less")


def test_the_page_has_every_program_and_what_it_printed() -> None:
    assert {block[1] for block in page.BLOCK.findall(TEXT)} == set(page.EXERCISES)
    assert all(block[2].strip() for block in page.BLOCK.findall(TEXT))
    # The one that takes no time is checked word for word.
    assert page.written(TEXT, dict.fromkeys(page.EXERCISES, kv_memory.exercise)).count("8 times less") == 4
    assert f"kv_memory\n{kv_memory.exercise(False)}\n" in TEXT
