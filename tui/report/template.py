"""Templates of pages: files with marks such as `{{title}}` in them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files


def part(name: str) -> str:
    """The text of a file of this folder."""
    return files("qpdsl.tui.report").joinpath(name).read_text("utf-8")


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with each value in the place of its mark, which stands in it once.

    The marks stand in the order of `values`. What looks like a mark within a value stays as it is.
    """
    done = ""
    for name, value in values.items():
        before, mark, template = template.partition(f"{{{{{name}}}}}")
        assert mark, f"the template has no place for `{name}`"
        done += before + value
    return done + template
