"""Running the command line inside the test process, so that torch is imported once."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from qpdsl.cli import main, progress_notes

# What takes long is said, and on a machine that others use too that is anything.
progress_notes.MOMENT = progress_notes.OFTEN = 3600.0

SAMPLED = """\
model llm = "zoo/counting"

program sampled(problem: text, n: int = 2, limit: int = 12) -> text {
  chat user=problem
  generate llm n=n temperature=1.5 max_tokens=limit
  return text
}
"""

# Two programs that an `eval` compares.
SWEPT = """\
model llm = "zoo/counting-mini"

program sampled(problem: text, n: int = 2, limit: int = 12) -> text {
  chat user=problem
  generate llm n=n temperature=1.5 max_tokens=limit
  extract answer = /(\\d)/
  vote answer
}
program plain(problem: text, limit: int = 12) -> text {
  chat user=problem
  generate llm temperature=0 max_tokens=limit
  extract answer = /(\\d)/
  return answer
}
"""

MISTAKEN = """\
model llm = "zoo/counting"
program bad(problem: txt, n: int = 4) -> text {
  chat user=problem
  generate lmm n=n temperature=0.8
  extract answer = /The answer is (-?\\d+)/
  vote anser
}
"""


@dataclass(frozen=True)
class Ran:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def qpdsl(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `qpdsl` with the arguments given. No output of any command may hold a traceback."""

    def run(*args: object) -> Ran:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ran(code, out, err)

    return run


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    """A small program that samples."""
    path = tmp_path / "sampled.qp"
    path.write_text(SAMPLED, encoding="utf-8")
    return path


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Ten rows: some with ids, some with answers."""
    lines: list[dict[str, object]] = [
        {"problem": f"Mia has {n} boxes with 4 cards in each box. How many cards does Mia have?"} for n in range(2, 12)
    ]
    for number, line in enumerate(lines):
        if number % 2:
            line["id"] = f"row-{number}"
        if number % 3:
            line["answer"] = 4 * (number + 2)
    return write_rows(tmp_path / "problems.jsonl", lines)


@contextmanager
def stdin(data: bytes) -> Iterator[None]:
    """Gives `data` on standard input."""
    reading, writing = os.pipe()
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        os.write(writing, data)
        os.close(writing)
        yield
    finally:
        os.dup2(saved, 0)
        for handle in (saved, reading):
            os.close(handle)


def write_rows(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()
