"""One part's figures on a GPU, written after every case: what a run cut short has found by then is kept."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Case = dict[str, Any]


class Broken(Exception):
    """The device takes no more work from this process, as after an illegal access."""


class Record:
    """Tables of cases. A case that fails is noted and the next goes on; past `deadline` none is begun.

    `deadline` in seconds as `time.time()` tells them; `render` makes markdown of `data`. `file` None writes nothing.
    """

    def __init__(self, file: Path | None, deadline: float, render: Callable[[Case], str]) -> None:
        self._file = file
        self._deadline = deadline
        self._render = render
        self.data: Case = {"failed": [], "not_begun": []}

    @property
    def failed(self) -> bool:
        """Whether a case failed, or a check did not pass."""
        checks = self.data.get("checks", [])
        return bool(self.data["failed"]) or not all(check["passed"] for check in checks)

    @property
    def late(self) -> bool:
        """Whether time is up, so that no case is begun any more."""
        return time.time() > self._deadline

    def fail(self, name: str, why: str) -> None:
        self.data["failed"].append({"case": name, "why": why})
        self.write()

    def skip(self, name: str) -> None:
        """Notes a case that is not begun."""
        self.data["not_begun"].append(name)
        self.write()

    def note(self, **figures: Any) -> None:
        """Figures outside the tables."""
        self.data |= figures
        self.write()

    def case(self, table: str, name: str, work: Callable[[], Case | list[Case]]) -> None:
        """Adds what `work` returns, a row or several, to a table."""
        rows = self.attempt(f"{table}: {name}", work)
        if rows is not None:
            self.data.setdefault(table, []).extend(rows if isinstance(rows, list) else [rows])
            self.write()

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """What `work` returns; None where it failed or time is up. Raises Broken."""
        if self.late:
            self.skip(name)
            return None
        start, outcome = time.time(), None
        try:
            outcome = work()
            _settled()
        except Broken:
            raise
        except Exception as error:  # whatever a compiler, a driver or a library may raise
            self.fail(name, reason(error))
            traceback.print_exc(limit=-4)
        if torch.cuda.is_initialized():
            gc.collect()
            alive()
            torch.cuda.empty_cache()
        print(f"{time.time() - start:6.1f} s  {name}  {outcome if isinstance(outcome, dict) else ''}", flush=True)
        return outcome

    def write(self) -> None:
        """The file is replaced whole: nobody reads half of one."""
        self.data["markdown"] = self._render(self.data)
        if self._file is not None:
            draft = self._file.with_suffix(".part")
            draft.write_text(json.dumps(self.data, indent=2) + "\n", encoding="utf-8")
            draft.replace(self._file)


def reason(error: BaseException) -> str:
    """Its kind and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def alive() -> None:
    """Raises Broken where nothing more can be launched."""
    try:
        _settled()
    except RuntimeError as error:
        raise Broken(reason(error)) from error


def _settled() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
