"""The journal: whatever a kill leaves behind, no finished row is lost and no torn one is believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qpdsl.dataset.journal import Journal, parse
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.errors import UsageError

PRINT = {"version": "1", "seed": "0", "input": "abc"}


def outcome(number: int, text: str = "x") -> Outcome:
    return Outcome(
        id=str(number), answer=text, score=0.5, tokens_in=1, tokens_out=2, near_ties=0, seconds=0.25, correct=True
    )


def written(path: Path, outcomes: list[Outcome]) -> bytes:
    journal = Journal.begin(path, PRINT)
    for number, one in enumerate(outcomes):
        journal.add(number, one)
    journal.close()
    return path.read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=5), st.data())
def test_a_cut_anywhere_leaves_whole_rows(tmp_path: Path, texts: list[str], data: st.DataObject) -> None:
    path = tmp_path / "j"
    outcomes = [outcome(number, text) for number, text in enumerate(texts)]
    whole = written(path, outcomes)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])

    journal = Journal.resume(path, PRINT)
    kept = len(journal.done)
    assert journal.done == dict(enumerate(outcomes[:kept]))
    assert kept == max(0, whole[:cut].count(b"\n") - 1)
    for number in range(kept, len(outcomes)):
        journal.add(number, outcomes[number])
    journal.close()
    assert path.read_bytes() == whole


def test_every_row_is_on_disk_when_it_counts_as_done(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.begin(path, PRINT)
    for number in range(3):
        journal.add(number, outcome(number))
        assert len(parse(path.read_bytes())[1]) == number + 1
    journal.remove()
    assert not path.exists()


def test_two_runs_cannot_share_a_journal(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path / "j", PRINT)
    for open_ in (Journal.begin, Journal.resume):
        with pytest.raises(UsageError, match="another run is writing"):
            open_(tmp_path / "j", PRINT)
    journal.close()
    Journal.resume(tmp_path / "j", PRINT).close()


def test_a_changed_run_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "j"
    before = written(path, [outcome(0)])
    with pytest.raises(UsageError) as caught:
        Journal.resume(path, {**PRINT, "seed": "1", "input": "abd"})
    assert "changed since it began: the seed (was 0, is 1), the input data" in caught.value.message
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"nonsense\n", b"[1]\n", b'{"row": 0}\n', b'{"row": 0, "outcome": {"id": "x"}}\n'])
def test_damage_that_no_kill_leaves_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(written(path, []) + damage + b"{}\n")
    with pytest.raises(UsageError, match="damaged"):
        Journal.resume(path, PRINT)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text('{"name": "something else"}\n')
    with pytest.raises(UsageError, match="not a journal"):
        Journal.resume(path, PRINT)
    assert path.read_text() == '{"name": "something else"}\n'
