"""What a command says while it runs: the step it is at, how far its rows are, a server that does not answer.

A step is said once it lasts longer than a moment. Rows have a bar on a terminal, and elsewhere a line now and then.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from qpdsl.cli.console import is_terminal, notes_through, say
from qpdsl.executor.events.events import (
    EngineStepped,
    Event,
    InstanceStarted,
    ModelsLoaded,
    Preparing,
    RunEnded,
    ServerReported,
)
from qpdsl.executor.events.stream import EventStream

# Seconds: a step and an answer that take longer are said, and how often they are said again where no bar moves.
MOMENT, SOON, OFTEN = 2.0, 5.0, 30.0
# And for how long a server that has requests gives no token before that is said.
LONG = 10.0
_WINDOW = 5.0
_COUNTS = re.compile(r"\d+ of \d+")


class Rate:
    """Tokens a second over the last few seconds, or since what came before them where that is longer ago."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._recent = 0
        self.total = 0

    def begin(self, at: float) -> None:
        """From when on tokens may come, where none has."""
        if not self._seen:
            self._seen.append((at, 0))

    def add(self, at: float, tokens: int) -> None:
        self._seen.append((at, tokens))
        self.total += tokens
        self._recent += tokens
        while len(self._seen) > 1 and self._seen[1][0] < at - _WINDOW:
            self._recent -= self._seen.popleft()[1]

    def per_second(self, now: float) -> float | None:
        """None where nothing has come for longer than it took to come."""
        if not self._recent:
            return None
        (begun, before), (last, _) = self._seen[0], self._seen[-1]
        if now - last > max(_WINDOW, 2 * (last - begun)):
            return None
        recent = self._recent - (before if begun < last - _WINDOW else 0)
        return recent / max(now - begun, 0.1)


class ProgressNotes:
    """How a process stands, by the events of its stream. `patience`: seconds after which a silent server is given up.

    Nothing is said of it if it is `quiet`, and every step as it begins if it is `verbose`.
    """

    def __init__(self, stream: EventStream, patience: float, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream, self._patience = stream, patience
        self._quiet, self._verbose = quiet, verbose and not quiet
        self._rate = Rate()
        self._step: str | None = None
        # When something is said next, on the monotonic clock.
        self._due = time.monotonic() + OFTEN
        self._rows: tuple[int, int] | None = None
        self._of_answer = False
        self._early = False
        self._advance: Callable[[int], None] | None = None
        self._ends: float | None = None
        self._sampled: dict[str, int] = {}
        # Models whose server is silent: since when, why, and whether that was said.
        self._silent: dict[str, tuple[float, str]] = {}
        self._told: set[str] = set()
        # Models whose server has requests and gives no token: since when.
        self._no_token: dict[str, float] = {}
        self._lost = 0.0
        stream.subscribe(self._see, patient=True)

    def worked(self) -> float:
        """A clock, in seconds, that stands while a server is silent."""
        self._stream.deliver()
        now = time.monotonic()
        return now - self._lost - self._silence_of_all(now)

    def words(self, now: float) -> str:
        """How rows stand at a moment of the monotonic clock."""
        # What draws a bar must not wait for a note that is being said, which waits for the bar.
        self._stream.deliver(blocking=False)
        done, total = self._rows or (0, 0)
        words = [f"{done:,}/{total:,} rows"]
        if self._ends is None and self._rate.total:
            # All rows may be at work side by side, and none ends for long.
            words.append(f"{self._rate.total:,} tokens")
        words += self._speed(now)
        silent = [model for model, (begun, _) in list(self._silent.items()) if now - begun > MOMENT]
        if troubles := [self._silence(model, now) for model in silent] or self._quiet_servers(now):
            return " ".join([*words, *troubles])
        if self._ends is None:
            return " ".join(words)
        return " ".join([*words, f"{_clock(self._ends - now)} left" if self._ends > now else "longer than expected"])

    @contextlib.contextmanager
    def of_rows(self, total: int, done: int, *, wanted: bool = True) -> Iterator[None]:
        """Tells of rows while the block runs: by a bar where stderr is a terminal and that is `wanted`."""
        self._rows, self._step, self._due = (done, total), None, time.monotonic() + SOON
        self._early = True
        wanted = wanted and not self._quiet and is_terminal(sys.stderr)
        try:
            with self._bar(total, done) if wanted else contextlib.nullcontext():
                yield
        finally:
            self._rows, self._ends, self._advance = None, None, None

    @contextlib.contextmanager
    def of_answer(self) -> Iterator[None]:
        """Tells of the tokens of one answer while the block runs."""
        self._of_answer = True
        try:
            yield
        finally:
            self._of_answer = False

    def rows_done(self, count: int, left: float | None) -> None:
        """Counts rows that have ended; what is left takes about that many seconds, None where nobody knows yet."""
        self._ends = None if left is None else time.monotonic() + left
        if self._rows is not None:
            self._rows = self._rows[0] + count, self._rows[1]
        if self._advance is not None:
            self._advance(count)

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Says what takes long, from a thread of its own, while the block runs."""
        if self._quiet:
            yield
            return
        ended = threading.Event()

        def speak() -> None:
            while not ended.wait(0.5):
                self._speak(time.monotonic())

        thread = threading.Thread(target=speak, name="qpdsl progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _speak(self, now: float) -> None:
        self._stream.deliver()
        if self._advance is None:
            for model in set(self._silent) - self._told:
                if now - self._silent[model][0] > MOMENT:
                    self._told.add(model)
                    say(self._silence(model, now))
        if now < self._due:
            return
        if self._step is not None:
            say(f"{self._step} …")
        elif self._rows is not None and not is_terminal(sys.stderr):
            # Soon only where nothing comes.
            if not (self._early and self._rate.total) or self._quiet_servers(now):
                say(self.words(now))
            self._early = False
        elif self._of_answer:
            so_far = f"{self._rate.total:,} tokens so far" if self._rate.total else "reading the prompt …"
            say(", ".join([so_far, *self._speed(now), *self._quiet_servers(now)]))
        self._due = now + OFTEN

    def _speed(self, now: float) -> list[str]:
        rate = self._rate.per_second(now)
        return [] if rate is None else [f"{rate:,.0f} tokens/s"]

    def _quiet_servers(self, now: float) -> list[str]:
        """The servers that have requests and give no token, each with for how long."""
        since = {model.partition(":")[2].partition("#")[0]: begun for model, begun in list(self._no_token.items())}
        return [f"no token from {url} for {_clock(now - begun)}" for url, begun in since.items() if now - begun > LONG]

    def _silence(self, model: str, now: float) -> str:
        begun, why = self._silent[model]
        return f"{why}: no answer for {_clock(now - begun)}; gives up after {_clock(self._patience)}"

    def _see(self, event: Event) -> None:
        match event:
            case EngineStepped(report=report):
                self._rate.add(event.at, report.decode_tokens)
                self._step = None
            case ServerReported():
                self._reported(event)
            case Preparing(step=step):
                # A count that goes on is one step.
                if self._step is None or _COUNTS.sub("", step) != _COUNTS.sub("", self._step):
                    self._due = event.at + MOMENT
                if self._verbose:
                    say(f"{step} …")
                    self._due = event.at + OFTEN
                self._step = step
            case ModelsLoaded() | InstanceStarted() | RunEnded():
                self._step = None
                if self._of_answer:
                    self._due = event.at + SOON

    def _reported(self, event: ServerReported) -> None:
        more = event.sampled_tokens - self._sampled.get(event.model, 0)
        self._sampled[event.model] = event.sampled_tokens
        if more > 0:
            self._rate.add(event.at, more)
        if event.in_flight:
            self._rate.begin(event.at)
        if event.quiet:
            self._no_token.setdefault(event.model, event.at - event.quiet)
        else:
            self._no_token.pop(event.model, None)
        if event.why is not None and event.failing:
            self._silent[event.model] = event.at - event.failing, event.why
            return
        lost = self._silence_of_all(event.at)
        self._silent.pop(event.model, None)
        self._told.discard(event.model)
        if not self._silent and lost:
            self._lost += lost
            self._ends = None if self._ends is None else self._ends + lost

    def _silence_of_all(self, now: float) -> float:
        """For how many seconds some server has been silent, 0 for less than a moment."""
        silence = now - min((begun for begun, _ in list(self._silent.values())), default=now)
        return silence if silence > MOMENT else 0.0

    @contextlib.contextmanager
    def _bar(self, total: int, done: int) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task
        from rich.progress import Progress as Bars
        from rich.text import Text

        progress = self

        class Words(ProgressColumn):
            """Is drawn anew as time goes by, also where nothing comes."""

            def render(self, task: Task) -> Text:
                return Text(progress.words(time.monotonic()))

        bars = Bars(
            BarColumn(),
            Words(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

        def note(text: str) -> None:
            bars.console.print(Text.from_ansi(text), soft_wrap=True)

        # A note that were written into the bar's line would break it.
        with bars, notes_through(note):
            self._advance = partial(bars.advance, bars.add_task("rows", total=total, completed=done))
            yield


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
