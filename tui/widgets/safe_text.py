"""Text of a model or a user, without the characters that a terminal would obey."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text on one line."""
    shown = text.strip().replace("\n", "⏎")
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in shown
    )


def harmless(text: str) -> str:
    """The text with its lines."""
    return "".join(
        char if char.isprintable() or char == "\n" else " " if char == "\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
