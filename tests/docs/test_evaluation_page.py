"""The page on sweeps: its options are there, and its table and its picture show the same."""

from __future__ import annotations

import re

import click
import pytest

from qpdsl.cli.commands.eval import command
from tests.support.documents import is_shown
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "evaluation.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
PICTURE = (ROOT / "docs" / "pictures" / "evaluation.svg").read_text("utf-8")
TABLE = re.findall(r"^(\w+) +(\w+=\d+) +([\d.]+)% +[\d.]+% to [\d.]+% +([\d,]+)( \*)?", PAGE, re.M)
MARKS = re.findall(r'fill="([^"]+)" stroke="([^"]+)"><title>(\w+) ([^:]+): (\d+)% at ([\d.]+k?)</title>', PICTURE)


def test_every_option_is_there() -> None:
    known = {name for param in command.params if isinstance(param, click.Option) for name in param.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z-]+", PAGE)) <= known


def test_the_readme_shows_a_part_of_the_table() -> None:
    (whole,), (part,) = (re.findall(r"^```\n([^`]*^program .*?)^```$", text, re.M | re.S) for text in (PAGE, README))
    assert is_shown(whole.splitlines(), part.splitlines())


def test_python_has_the_cells_of_the_table() -> None:
    cells = {(program, parameters): (float(share), tokens) for program, parameters, share, tokens, _ in TABLE}
    shown = re.findall(r"^(\w+)\((\w+=\d+)\): (\d+)% right, (\d+) tokens, points (\S+)$", PAGE, re.M)
    assert len(shown) == 4
    for program, parameters, share, tokens, points in shown:
        assert cells[program, parameters] == (float(share), tokens)
        baseline = cells["beam_search", "width=4"][0]
        assert points == ("None" if parameters == "width=4" else str(float(share) - baseline))


def test_the_picture_is_of_the_table() -> None:
    assert len(TABLE) == len(MARKS) == 11
    shown = {
        (program, parameters): (int(share), float(cost.removesuffix("k")) * (1000 if cost.endswith("k") else 1), fill)
        for fill, _, program, parameters, share, cost in MARKS
    }
    for program, parameters, share, tokens, front in TABLE:
        drawn, cost, fill = shown[program, parameters]
        assert drawn == round(float(share)) and (fill != "#fff") == bool(front)
        assert cost == pytest.approx(float(tokens.replace(",", "")), rel=5e-3)
