"""The screens as pictures at two sizes. `QPDSL_REGENERATE=1` draws them force, to be looked at."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import Theme

from qpdsl.tui.widgets.palette import THEMES
from tests.support.tui.screen import LARGE, SMALL, dashboard, press, settle
from tests.support.tui.traces import BEAM

SNAPSHOTS = Path(__file__).parent / "snapshots"
CASES = [
    *((screen, size, "qpdsl-dark") for screen in ("plan", "search", "engine", "rows") for size in (SMALL, LARGE)),
    ("search", SMALL, "qpdsl-light"),
    ("search", SMALL, "qpdsl-contrast"),
]


def check(name: str, actual: str) -> None:
    """The picture must be that of the file; otherwise what was drawn is left beside it."""
    path = SNAPSHOTS / f"{name}.svg"
    if os.environ.get("QPDSL_REGENERATE"):
        path.write_text(actual, "utf-8")
    assert actual == path.read_text("utf-8"), f"{path.name} has changed; QPDSL_REGENERATE=1 draws it force"


@pytest.mark.parametrize(("screen", "size", "theme"), CASES)
def test_pictures(screen: str, size: tuple[int, int], theme: str) -> None:
    async def main() -> None:
        async with dashboard(BEAM, size, 0.97, first=screen) as pilot:
            pilot.app.theme = theme
            await settle(pilot)
            check(f"{screen}-{size[0]}x{size[1]}-{theme.removeprefix('qpdsl-')}", pilot.app.export_screenshot())

    asyncio.run(main())


def test_without_colour_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def main() -> None:
        async with dashboard(BEAM, SMALL) as pilot:
            shown = await press(pilot, "3")
            colours = {
                segment.style.color.triplet
                for strip in pilot.app.screen._compositor.render_strips()
                for segment in pilot.app._filters[-1].apply(list(strip), pilot.app.current_theme)
                if segment.style and segment.style.color
            }
            assert all(colour is None or colour.red == colour.green == colour.blue for colour in colours)
            assert "★" in shown and "✕" in shown and "0.9" in shown
            rows = await press(pilot, "2")
            assert "✔ right" in rows and "✖ failed" in rows and "≠ wrong" in rows

    asyncio.run(main())


def test_the_screen_can_be_resized() -> None:
    async def main() -> None:
        async with dashboard(BEAM, SMALL) as pilot:
            for key in "1234":
                await press(pilot, key)
                for size in (LARGE, (40, 10), (300, 15), (20, 60), SMALL):
                    await pilot.resize_terminal(*size)
                    lines = (await settle(pilot)).splitlines()
                    assert len(lines) == size[1]
            assert "beam_search.qp" in await settle(pilot)

    asyncio.run(main())


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_what_is_drawn_can_be_read(theme: Theme) -> None:
    """Texts stand out by 4.5:1 and marks by 3:1 on every ground that there is (WCAG 2.2, 1.4.3 and 1.4.11)."""
    texts = (theme.foreground, theme.primary, theme.secondary, theme.success, theme.warning, theme.error)
    shades = {name: theme.variables[name] for name in ("muted", "faint", "low", "middle", "high")}
    marks = [shades.pop("faint")]
    for ground in (theme.background, theme.surface, theme.panel):
        for colours, least in (((*texts, *shades.values()), 4.5), (marks, 3.0)):
            for colour in colours:
                assert colour is not None and ground is not None
                assert _contrast(colour, ground) >= least, (colour, ground)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_what_parts_the_screen_is_seen(theme: Theme) -> None:
    """Lines between the parts of a screen, and the bars that say how much more there is, stand out by 3:1."""

    async def main() -> None:
        async with dashboard(BEAM, (120, 40)) as pilot:
            pilot.app.theme = theme.name
            await settle(pilot)
            ground = Color.parse(theme.background or "")
            for part in pilot.app.query(".panel, .side, ModelPanel"):
                lines = {colour for kind, colour in part.styles.border if kind}
                assert lines and all(_contrast((ground + line).hex, ground.hex) >= 3 for line in lines), part
            for lists in pilot.app.query("LineList, .side, #models"):
                rail = ground + lists.styles.scrollbar_background
                assert _contrast((rail + lists.styles.scrollbar_color).hex, rail.hex) >= 3, lists

    asyncio.run(main())


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = (part / 255 for part in Color.parse(colour).rgb)
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
