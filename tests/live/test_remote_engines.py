"""Whole programs with their generator on a real server: run, replayed, refused, and run through the server's death."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.runs.store.run_folder import RunFolder
from tests.live.servers import KINDS, Server, vllm
from tests.support.cli import write_rows
from tests.support.saved_runs import rows_of_last

pytestmark = pytest.mark.live

PROBLEMS: list[dict[str, object]] = [
    {"id": f"row-{n}", "problem": f"Mia has {n} boxes with 4 cards in each box. How many cards does Mia have?"}
    for n in (3, 5)
]
NOTES: list[dict[str, object]] = [{"id": "note", "note": "Bob Stone is 41 and likes chess."}]
TOPICS: list[dict[str, object]] = [{"id": "topic", "topic": "boxes"}]
SEARCH = ("width=2", "expand=2", "depth=4")
# What each shipped program is run with: rows and settings that keep it small.
PROGRAMS: dict[str, tuple[Sequence[dict[str, object]], Sequence[str]]] = {
    "greedy": (PROBLEMS, ()),
    "self_consistency": (PROBLEMS, ("n=4",)),
    "best_of_n": (PROBLEMS, ("n=4",)),
    "weighted_best_of_n": (PROBLEMS, ("n=4",)),
    "beam_search": (PROBLEMS, SEARCH),
    "dvts": (PROBLEMS, ("subtrees=2", "expand=2", "depth=4")),
    "lookahead": (PROBLEMS, (*SEARCH, "ahead=1")),
    "rebase": (PROBLEMS, ("budget=4", "depth=4")),
    "sal_best_of_n": (PROBLEMS, ("n=4",)),
    "sal_beam_search": (PROBLEMS, SEARCH),
    "sal_dvts": (PROBLEMS, ("subtrees=2", "expand=2", "depth=4")),
    "constrained_json": (NOTES, ()),
    "filter_decoding": (PROBLEMS, ()),
    "outline_then_write": (TOPICS, ()),
}


# What a decided vote gave up was never kept, and may be asked for again.
VOTES = frozenset({"self_consistency", "weighted_best_of_n", "dvts", "rebase"})


@dataclass(frozen=True)
class Ran:
    """What a command line came to; `rows` are the lines of its output file, `summary` what `--json` printed."""

    code: int
    out: str
    err: str
    rows: Mapping[str, Any]

    @property
    def servers(self) -> Mapping[str, float]:
        summary: dict[str, Any] = json.loads(self.out)
        return dict(summary["servers"])


@dataclass(frozen=True)
class Place:
    """Where the tests of one server keep its completions and what is known of it."""

    server: Server
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}

    def command(self, program: str, rows: Sequence[object], settings: Sequence[str], output: Path) -> list[str]:
        data = write_rows(output.with_suffix(".rows.jsonl"), rows)
        line = [sys.executable, "-m", "qpdsl", "run", program, "--model", f"llm={self.server.model_id}"]
        if program == "constrained_json":
            line += ["--program", program]
        for setting in settings:
            line += ["--set", setting]
        line += ["--input", str(data), "--output", str(output), "--json", "--no-greedy", "--no-statistics"]
        return [*line, "--completions", str(output.parent / "completions.sqlite")]

    def run(self, program: str, output: Path) -> Ran:
        rows, settings = PROGRAMS.get(program, (PROBLEMS, ()))
        line = self.command(program, rows, settings, output)
        done = subprocess.run(
            line,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return Ran(done.returncode, done.stdout, done.stderr, values_of(output))


# The programs that each server runs, with the built-in verifier and draft here. The others are refused.
SAMPLED = frozenset({"greedy", "self_consistency", "best_of_n", "weighted_best_of_n", "sal_best_of_n"})
RUNS: dict[str, frozenset[str]] = {
    "vllm": frozenset(PROGRAMS),
    # The small model has other tokens than one that thinks.
    "vllm thinking": frozenset(PROGRAMS) - {"filter_decoding"},
    "qpdsl serve": frozenset(PROGRAMS),
    # The small model has another vocabulary than the filter's, and no regex holds the judge's answer.
    "llama-server": frozenset(PROGRAMS) - {"filter_decoding", "outline_then_write"},
    "llama_cpp.server": SAMPLED,
    "transformers serve": frozenset({"greedy"}),
}


def started(make: Callable[[Path], Server], folders: pytest.TempPathFactory) -> Iterator[Place]:
    """A server for as long as its place is needed."""
    folder = folders.mktemp("engine")
    server = make(folder)
    server.start()
    yield Place(server, folder)
    server.kill()


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One real server after the other, for all tests of it."""
    yield from started(KINDS[request.param], tmp_path_factory)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_and_is_replayed_or_is_refused_in_words(
    place: Place, program: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["place"]
    ran = place.run(program, tmp_path / "out.jsonl")
    if program not in RUNS[kind]:
        assert ran.code in (Exit.USAGE, Exit.MODEL), ran.err
        assert "error" in ran.err
        assert not ran.rows
        return
    assert ran.code in (Exit.OK, Exit.ROW_FAILED), ran.err
    assert ran.rows.keys() == {row["id"] for row in PROGRAMS[program][0]}
    assert all(is_settled(row) for row in ran.rows.values())
    assert ran.servers["requests"] > 0
    again = place.run(program, tmp_path / "again.jsonl")
    assert again.code == ran.code, again.err
    assert answers(again) == answers(ran)
    if program in VOTES:
        assert again.servers["requests"] < ran.servers["requests"]
    else:
        assert again.servers["requests"] == 0
        assert again.servers["replayed"] == ran.servers["requests"]


def test_a_run_waits_for_a_server_that_was_killed_and_loses_no_row(
    place: Place, tmp_path: Path, runs: RunFolder
) -> None:
    problem = "Mia has {} boxes with 4 cards in each box. How many cards does Mia have?"
    rows: list[dict[str, object]] = [{"id": f"row-{n}", "problem": problem.format(n)} for n in range(2, 14)]
    output = tmp_path / "out.jsonl"
    line = [*place.command("greedy", rows, (), output), "--concurrency", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(line, env=place.environment, text=True, **pipes) as run:
        until = time.monotonic() + 120
        while rows_of_last(runs) < 3:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        place.server.kill()
        time.sleep(2)
        assert run.poll() is None, "the run does not wait for its server"
        place.server.start()
        out, err = run.communicate(timeout=300)
    assert run.returncode in (Exit.OK, Exit.ROW_FAILED), err
    summary = json.loads(out)
    assert summary["rows"] == len(rows)
    assert summary["servers"]["retries"] > 0
    assert values_of(output).keys() == {row["id"] for row in rows}
    assert all(is_settled(row) for row in values_of(output).values())


def test_a_verifier_on_a_server_scores_as_here(tmp_path: Path) -> None:
    server = vllm(tmp_path, "zoo/counting-prm")
    server.start()
    scores = []
    try:
        for model in (server.model_id + " kind=rlhflow", "zoo/counting-prm"):
            line = [sys.executable, "-m", "qpdsl", "run", "best_of_n", "--model", f"prm={model}", "--rows", "--json"]
            line += ["--set", f"problem={PROBLEMS[0]['problem']}", "--set", "n=4", "--no-statistics"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == Exit.OK, done.stderr
            scores.append([row["score"] for row in json.loads(done.stdout)["rows"]])
    finally:
        server.kill()
    assert len(scores[0]) == len(scores[1]) > 0
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def values_of(output: Path) -> dict[str, Any]:
    """The finished rows of an output file, by id."""
    if not output.exists():
        return {}
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    return {row["id"]: row for row in rows}


def is_settled(row: dict[str, Any]) -> bool:
    """Whether a row ran to its end. Only the built-in generator writes the answer that the programs look for."""
    return row.get("error") in (None, "no row has a value to return")


def answers(ran: Ran) -> dict[str, tuple[object, object]]:
    """What the rows came to. How many tokens a vote took that was decided early depends on the clock."""
    return {id: (row["answer"], row["score"]) for id, row in ran.rows.items()}
