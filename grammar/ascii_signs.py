"""Signs of ours in ASCII, for a terminal whose encoding has nothing better."""

from __future__ import annotations

_PAIRS = (
    ("│┃┆┊▏▎╎", "|"),
    ("─━╌┄", "-"),
    ("├└┌┐┘┤┬┴┼╭╮╯╰╸╺", "+"),
    ("█▉▊▋▌▆▇", "#"),
    ("▍▄▅", "="),
    ("▁▂▃░", "_"),
    ("▒▓", "%"),
    ("●◆◈■▪", "*"),
    ("○◌◇·", "."),
    ("★", "@"),
    ("✔✓", "+"),
    ("✕✖×", "x"),
    ("▶▸»›→", ">"),
    ("←‹«", "<"),
    ("↑▴▲", "^"),
    ("↓▾▼", "v"),
    ("‖", '"'),
    ("⚠", "!"),
    ("⏎", "/"),
    ("␣", "_"),
    ("…‥", "~"),
    ("–—−", "-"),
    ("≤", "<"),
    ("≥", ">"),
    ("≈", "~"),
    ("±", "+"),
    ("µ", "u"),
    ("‘’", "'"),
    ("“”", '"'),
)
_SIGNS = {ord(sign): plain for signs, plain in _PAIRS for sign in signs}


def needs_ascii(encoding: str | None) -> bool:
    """Whether an encoding lacks the lines and blocks that trees and bars are made of."""
    try:
        "├█●".encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return True
    return False


def in_ascii(text: str) -> str:
    """The text with our signs in ASCII, each one character as before. Other characters stay."""
    return text if text.isascii() else text.translate(_SIGNS)
