"""Themes, and the colours that the screens give a meaning. Every meaning also has a sign or a number."""

from __future__ import annotations

from dataclasses import dataclass, fields

from textual.app import App
from textual.color import Color
from textual.theme import Theme

THEMES = (
    Theme(
        name="qpdsl-dark",
        primary="#7aa2f7",
        secondary="#bb9af7",
        accent="#7aa2f7",
        success="#4fd6be",
        warning="#e5b567",
        error="#f2777a",
        foreground="#d3d9e4",
        background="#10141b",
        surface="#151a23",
        panel="#1f2733",
        dark=True,
        variables={"muted": "#8a94a8", "faint": "#667289", "low": "#8a94a8", "middle": "#d9b36b", "high": "#4fd6be"},
    ),
    Theme(
        name="qpdsl-light",
        primary="#2456c4",
        secondary="#7443c4",
        accent="#2456c4",
        success="#0a6e64",
        warning="#8a5a00",
        error="#b3261e",
        foreground="#1d222c",
        background="#fcfcfa",
        surface="#f3f4f6",
        panel="#e3e7ee",
        dark=False,
        variables={"muted": "#5b6474", "faint": "#76808f", "low": "#5b6474", "middle": "#8a5a00", "high": "#0a6e64"},
    ),
    Theme(
        name="qpdsl-contrast",
        primary="#7fd4ff",
        secondary="#ffb3ff",
        accent="#ffffff",
        success="#5fffd7",
        warning="#ffd75f",
        error="#ff8787",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#303030",
        dark=True,
        variables={"muted": "#d0d0d0", "faint": "#8a8a8a", "low": "#d0d0d0", "middle": "#ffd75f", "high": "#5fffd7"},
    ),
)


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as text that a style takes."""

    text: str
    muted: str
    faint: str
    accent: str
    second: str
    good: str
    warn: str
    bad: str
    background: str
    panel: str
    low: str
    middle: str
    high: str

    @classmethod
    def of(cls, app: App[object]) -> Palette:
        """The colours of the current theme. A theme of Textual's own has other colours in place of our shades."""
        known = app.theme_variables
        return cls(
            text=known["foreground"],
            muted=known.get("muted", known["foreground-darken-2"]),
            faint=known.get("faint", known["foreground-darken-3"]),
            accent=known["primary"],
            second=known["secondary"],
            good=known["success"],
            warn=known["warning"],
            bad=known["error"],
            background=known["background"],
            panel=known["panel"],
            low=known.get("low", known.get("muted", known["foreground-darken-2"])),
            middle=known.get("middle", known["warning"]),
            high=known.get("high", known["success"]),
        )

    def scale(self, value: float | None) -> str:
        """From low over middle to high, for a value between 0 and 1."""
        if value is None or value != value or not self.low:
            return self.muted
        value = min(max(value, 0.0), 1.0)
        low, high = (self.low, self.middle) if value < 0.5 else (self.middle, self.high)
        return Color.parse(low).blend(Color.parse(high), (value * 2) % 1 if value < 1 else 1.0).hex


# For texts of which the words alone are wanted.
NO_COLOURS = Palette(*[""] * len(fields(Palette)))
