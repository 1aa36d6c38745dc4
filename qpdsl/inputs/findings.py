"""What is wrong with the records of some data, told with the places where it was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qpdsl.errors import DataError

MOST_LISTED = 10


def place(name: str, unit: str, number: int) -> str:
    """Where in a file: a line as editors take it, or the rank of a row."""
    return f"{name}:{number}" if unit == "line" else f"{name}, row {number:,}"


def again(unit: str, numbers: Sequence[int]) -> str:
    """How often more than once."""
    rest = len(numbers) - 1
    return f" (and {rest:,} {unit}{'s' * (rest > 1)} more)" if rest else ""


class Findings:
    """What is wrong with records: each fault with the places where it was found."""

    def __init__(self, name: str, unit: str) -> None:
        self._name = name
        self._unit = unit
        self._numbers: dict[str, list[int]] = {}

    def add(self, number: int, fault: str) -> None:
        self._numbers.setdefault(fault, []).append(number)

    def lack(self, param: str) -> bool:
        """Whether some record had no value for the parameter."""
        return any(fault.startswith(f"no value for `{param}`") for fault in self._numbers)

    def check(self, help: str | None) -> None:
        """Raises DataError with the first faults, each with the place where it was found first, and how often again."""
        if self._numbers:
            raise DataError("\n".join(self._lines()), help)

    def _lines(self) -> Iterator[str]:
        faults = sorted(self._numbers.items(), key=lambda item: min(item[1]))
        for fault, numbers in faults[:MOST_LISTED]:
            yield f"{place(self._name, self._unit, min(numbers))}: {fault}{again(self._unit, numbers)}"
        rest = sum(len(numbers) for _, numbers in faults[MOST_LISTED:])
        if rest:
            yield f"{self._name}: {rest:,} more {self._unit}{'s' * (rest > 1)} with errors"
