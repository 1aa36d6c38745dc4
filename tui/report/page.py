"""The page: a template, a style sheet and a script in one file, with the run's data in it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import BinaryIO

from qpdsl.executor.events.events import Event
from qpdsl.grammar.printable import one_line, printable
from qpdsl.tui.report.page_data import report_data

_MARK = b'<meta name="generator" content="qpdsl">'
_HEAD = 1024


def begins_page(file: BinaryIO) -> bool:
    """Whether an open file is such a page."""
    return _MARK in file.read(_HEAD)


def page(events: Sequence[Event], notes: Sequence[str], name: str) -> str:
    """One HTML file that loads nothing."""
    data = report_data(events, notes)
    parts = files("qpdsl.tui.report")
    # No text of a model may end the script that it stands in. Escapes keep the data as it is.
    embedded = printable(json.dumps(data, ensure_ascii=False, separators=(",", ":"))).replace("<", "\\u003c")
    text = parts.joinpath("report.html").read_text("utf-8")
    filled = {
        "{{title}}": html.escape(one_line(f"{data['program']} · {name}")),
        "{{style}}": parts.joinpath("report.css").read_text("utf-8"),
        "{{script}}": parts.joinpath("report.js").read_text("utf-8"),
        "{{data}}": embedded,
    }
    for mark, part in filled.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    return text
