"""The page: a template, a style sheet and a script in one file, with the run's data in it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import BinaryIO

from qpdsl.executor.events.events import Event
from qpdsl.grammar.printable import one_line, printable
from qpdsl.tui.report.page_data import report_data
from qpdsl.tui.report.template import filled, part

_MARK = b'<meta name="generator" content="qpdsl">'
_HEAD = 1024


def begins_page(file: BinaryIO) -> bool:
    """Whether an open file is such a page."""
    return _MARK in file.read(_HEAD)


def page(events: Sequence[Event], notes: Sequence[str], name: str) -> str:
    """One HTML file that loads nothing."""
    data = report_data(events, notes)
    # No text of a model may end the script that it stands in. Escapes keep the data as it is.
    embedded = printable(json.dumps(data, ensure_ascii=False, separators=(",", ":"))).replace("<", "\\u003c")
    values = {
        "title": html.escape(one_line(f"{data['program']} · {name}")),
        "style": part("report.css"),
        "data": embedded,
        "script": part("report.js"),
    }
    return filled(part("report.html"), values)
