"""A training's progress on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """Shows steps, losses and measured figures of one training."""

    def __init__(self, name: str, done: int, steps: int) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[losses]}"),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(name, total=steps, completed=done, losses="")
        self._name = name

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, step: int, losses: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.4f}" for name, value in losses.items())
        self._bar.update(self._task, completed=step, losses=text)
        if not self._console.is_terminal:
            self._console.print(f"{self._name}  step {step}  {text}")

    def measured(self, step: int, figures: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
        if text:
            self._console.print(f"{self._name}  step {step}  {text}")


def note(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)
