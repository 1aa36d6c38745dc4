"""The page on sweeps: its options are there, and its table and its picture show the same."""

from __future__ import annotations

import re

import click
import pytest

from qpdsl.cli.commands.eval import command
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "evaluation.md").read_text("utf-8")
PICTURE = (ROOT / "docs" / "pictures" / "evaluation.svg").read_text("utf-8")
TABLE = re.findall(r"^(\w+) +(\w+=\d+) +([\d.]+)% +[\d.]+% to [\d.]+% +([\d,]+)( \*)?", PAGE, re.M)
MARKS = re.findall(r'fill="([^"]+)" stroke="([^"]+)"><title>(\w+) ([^:]+): (\d+)% at ([\d.]+k?)</title>', PICTURE)


def test_every_option_is_there() -> None:
    known = {name for param in command.params if isinstance(param, click.Option) for name in param.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z-]+", PAGE)) <= known


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
