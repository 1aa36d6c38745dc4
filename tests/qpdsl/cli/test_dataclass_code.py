"""The code of dataclasses is compiled once; whatever becomes of the file, the classes are the same."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli import dataclass_code
from qpdsl.cli.dataclass_code import code_kept


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dataclass_code, "_place", lambda: tmp_path / "code")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "code"


def made() -> Any:
    @dataclass(frozen=True, slots=True, order=True)
    class Point:
        x: int
        y: list[int] = field(default_factory=list)

    return Point


def check(point: Any) -> None:
    assert point(1) == point(1, []) < point(2) and repr(point(3)).endswith("Point(x=3, y=[])")
    with pytest.raises(FrozenInstanceError):
        point(1).x = 2


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compiled."""
    texts: list[str] = []
    plain: Callable[..., Any] = builtins.compile

    def counted(text: Any, *rest: Any, **named: Any) -> Any:
        texts.append(text)
        return plain(text, *rest, **named)

    monkeypatch.setattr(builtins, "compile", counted)
    return texts


def test_the_second_time_nothing_is_compiled(place: Path, compiled: list[str]) -> None:
    for times in (True, False):
        compiled.clear()
        with code_kept():
            check(made())
        assert bool(compiled) is times
    whole = place.read_bytes()
    with code_kept():
        pass
    assert place.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 100], ids=range(3))
def test_a_damaged_file_is_written_anew(damage: bytes, place: Path) -> None:
    with code_kept():
        check(made())
    whole = place.read_bytes()
    for content in (damage, whole[:-1], whole[:40] + damage + whole[40:-3]):
        place.write_bytes(content)
        with code_kept():
            check(made())
        assert place.read_bytes() == whole


def test_writers_at_once_leave_a_whole_file(place: Path) -> None:
    with code_kept():
        check(made())
    codes = dataclass_code._read(place)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: dataclass_code._write(place, codes), range(40)))
    assert dataclass_code._read(place) == codes and [*place.parent.iterdir()] == [place]


def test_classes_are_plain_ones_outside_and_where_nothing_can_be_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError), code_kept():
        raise KeyError
    check(made())
    monkeypatch.setattr(dataclass_code, "_place", lambda: None)
    with code_kept():
        check(made())
    monkeypatch.setattr(dataclass_code, "_place", lambda: place / "no" / "folder" / "\0")
    assert not place.exists()
