"""The folder of all saved runs: where it is, and how a run is found in it."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from qpdsl.errors import UsageError, shorten
from qpdsl.grammar.suggest import closest
from qpdsl.runs.store import run_file
from qpdsl.runs.store.run_file import SUFFIX, RunFile, RunFileError, delete
from qpdsl.runs.store.run_record import RunInfo, RunRecord

VARIABLE = "QPDSL_RUNS"
# `~` as git has it.
_LAST = re.compile(r"last(?:[-~](\d+))?")
_DATED = re.compile(r"\d{8}-\d{6}-")


def usual_folder() -> Path:
    """QPDSL_RUNS, else `qpdsl/runs` in the user's data folder. Raises UsageError where there is no home."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data).absolute() / "qpdsl" / "runs"
    try:
        return Path.home() / ".local" / "share" / "qpdsl" / "runs"
    except RuntimeError as error:
        raise UsageError("there is no home folder to keep runs in", f"{VARIABLE} names a folder") from error


class RunFolder:
    """The runs in a folder, which need not exist yet."""

    def __init__(self, path: Path | None = None) -> None:
        """A folder of runs, the usual one unless `path` names another. Raises UsageError where there is no home."""
        self.path = usual_folder() if path is None else path

    def ids(self) -> list[str]:
        """The ids of all runs, oldest first: they begin with the time in UTC."""
        return sorted(file.name.removesuffix(SUFFIX) for file in self.path.glob(f"[!.]*{SUFFIX}"))

    def locked_ids(self) -> list[str]:
        """The ids of the runs that processes write now."""
        locks = sorted(self.path.glob(f"[!.]*{SUFFIX}{run_file.LOCK_SUFFIX}"))
        files = [lock.with_name(lock.name.removesuffix(run_file.LOCK_SUFFIX)) for lock in locks]
        return [file.name.removesuffix(SUFFIX) for file in files if run_file.is_locked(file)]

    def file(self, id: str) -> Path:
        """Where the run of this id is kept, whether it is there or not."""
        return self.path / f"{id}{SUFFIX}"

    def create(self, record: RunRecord) -> RunFile:
        """A new run, locked for this process to write. Raises UsageError."""
        whole, part = divmod(int(record.started * 1000), 1000)
        moment = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(whole))}-{part:03d}"
        while (path := self.file(moment + secrets.token_hex(2))).exists():
            pass
        try:
            return RunFile.create(path, record)
        except UsageError as error:
            help = f"{VARIABLE} names another folder for the saved runs"
            raise UsageError(error.message, error.help or help) from error

    def infos(self, tell: Callable[[RunFileError], None] | None = None) -> Iterator[RunInfo]:
        """All runs that can be read, oldest first. `tell` is called for each of the others."""
        for id in self.ids():
            try:
                yield RunFile.glance(self.file(id))
            except RunFileError as error:
                if tell is not None:
                    tell(error)

    def find(self, name: str) -> Path:
        """The file of a run: by its id, the beginning or the end of one, `last`, `last-1`…, a program, or a path.

        The name of a program stands for its newest run.

        Raises UsageError where there is none, or more than one.
        """
        path = Path(name)
        if path.suffix == SUFFIX and path.is_file():
            return path
        ids = self.ids()
        if match := _LAST.fullmatch(name):
            back = int(match[1] or 0)
            # A file that somebody put there under a name of its own has no place in time.
            dated = [id for id in ids if _DATED.match(id)]
            if back >= len(dated):
                raise UsageError(f"there is no run `{name}`: {len(dated)} are saved in `{self.path}`")
            return self.file(dated[-1 - back])
        found = [id for id in ids if id == name] or [
            id for id in ids if name and (id.startswith(name) or id.endswith(name))
        ]
        found = found or [info.id for info in self.infos() if info.record.program == name][-1:]
        if not found:
            guess = closest(name, ["last", *ids])
            meant = f"; did you mean `{guess}`?" if guess else ""
            help = "`qpdsl runs` lists them; `last`, `last-1` and the name of a program (its newest) name one too"
            raise UsageError(f"there is no saved run `{shorten(name)}`{meant}", help)
        if len(found) > 1:
            raise UsageError(f"`{name}` may be one of {len(found)} runs, such as `{found[0]}` and `{found[1]}`")
        return self.file(found[0])

    def remove(self, id: str) -> None:
        """Deletes a run, also one that is damaged. Raises UsageError where a process writes it, or it cannot be."""
        path = self.file(id)
        lock = run_file.locked(path)
        try:
            delete(path)
        except OSError as error:
            raise UsageError(f"cannot remove `{path}`: {error.strerror}") from error
        finally:
            run_file.unlock(path, lock)
