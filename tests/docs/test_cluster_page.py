"""`docs/use/cluster.md` shows what its commands print. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.dispatcher import _LEAST, READ_AHEAD
from qpdsl.cluster.fleet import Autoscaler
from tests.support.documents import TIMED, check_commands, printed
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "cluster.md"
# What is another at another time and on another machine: who runs which row, and where the checkout lies.
VARYING = (TIMED, (re.compile(r"^(replica \d) .*", re.M), r"\1"), (re.compile(r"\S*programs/data/"), ""))


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ""

    def prints(command: str) -> str:
        nonlocal run
        run = command if "--output" in command else run
        return printed(command, capsys)

    check_commands(PAGE, prints, VARYING, written=partial(re.sub, r" on \S+, process \d+", " on node-1, process 4711"))
    # Without replicas the rows have the same bytes.
    printed(run.replace(" --cluster local:2", "").replace("votes.jsonl", "here.jsonl"), capsys)
    assert Path("votes.jsonl").read_bytes() == Path("here.jsonl").read_bytes()


def test_addresses_and_figures_of_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text("utf-8")
    addresses = re.findall(r"^\| `((?:local|ray):[^`]*)`", text, re.M)
    assert len(addresses) == 5
    for address in addresses:
        ClusterAddress.parse(address)
    words = " ".join(text.split())
    assert f"the same {_LEAST} characters" in words
    assert READ_AHEAD == 16 and "sixteen more for each" in words
    assert Autoscaler(1, 1).idle_seconds == 5 and "nothing to do for five seconds" in words
