"""Whole programs whose models are on servers, by the command line, over stubs of such servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.executor.remote.server_call import seed_of
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run, write_rows
from tests.support.paths import ROOT
from tests.support.remote.stub_server import StubServer, stub
from tests.support.saved_runs import rows_of_last
from tests.support.user_cache import own_cache

DIALECTS = {"vllm": "vllm", "sglang": "sglang", "llama-server": "llamacpp", "openai": "openai"}
PROBLEM = "Zoe has 3 boxes with 4 cards in each box. How many cards does Zoe have?"
SAMPLED = """\
model llm = "zoo/counting"
program sampled(problem: text) -> text {
  chat user=problem
  generate llm n=4 temperature=0.8 max_tokens=40
  extract answer = /The answer is (-?\\d+)/
  vote answer
}
"""
VOTED = """\
model llm = "zoo/counting"
program voted(problem: text) -> text {
  chat user=problem
  generate llm n=4 temperature=0.8 max_tokens=40
  extract answer = final_answer
  vote answer
}
"""
STEPS = """\
model llm = "zoo/counting"
program steps(problem: text) -> text {
  chat user=problem
  generate llm n=3 temperature=0.8 stop="\\n\\n" max_tokens=30
  say "So. "
  generate llm temperature=0.8 max_tokens=30
  return text
}
"""
WRITTEN = """\
model llm = "zoo/counting"
program written(problem: text) -> text {
  chat user=problem
  generate llm n=4 temperature=0.8 max_tokens=40
  return text
}
"""
RECORD = """\
model llm = "zoo/counting"
schema Card { count: int(1..9), sold: bool }
program record(problem: text) -> Card {
  chat user=problem
  generate llm as Card max_tokens=80
}
"""


def says(prompt: str, seed: int) -> str | None:
    """What a stub writes of the problem; of a probe's texts it writes what it likes."""
    if "Zoe" not in prompt:
        return None
    return "The answer is 12." if " * " in prompt else f"3 * 4 = {12 + seed % 2}.\n\nThe answer is {12 + seed % 2}."


def address(server: StubServer, dialect: str = "vllm", *, ids: bool = False) -> str:
    return f"llm={dialect}:{server.url}#{server.model}" + (" tokenizer=zoo/counting" if ids else "")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ports are given again to other stubs, and what is known of one server is not so of another."""
    own_cache(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache" / "qpdsl"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "program.qp"
    path.write_text(WRITTEN, "utf-8")
    yield path


def asked(server: StubServer) -> int:
    """Requests for text so far, those of the probe included."""
    return server.counts.requests


@pytest.mark.parametrize(("kind", "ids"), [("vllm", True), ("vllm", False), ("llama-server", True), ("openai", False)])
def test_a_program_runs_on_a_server_and_a_rerun_asks_for_nothing(
    kind: str, ids: bool, program: Path, qpdsl: Run
) -> None:
    program.write_text(SAMPLED, "utf-8")
    with stub(kind, writes=says) as server:
        command = ("run", program, "--set", f"problem={PROBLEM}", "--model", address(server, DIALECTS[kind], ids=ids))
        first = qpdsl(*command, "--json")
        assert (first.code, first.err) == (0, "")
        (record,) = first.records
        assert record["answer"] in ("12", "13") and record["servers"]["requests"] == 5
        before = asked(server)
        (again,) = qpdsl(*command, "--json").records
        # The version of the server is asked for, and no text.
        # A vote that is decided gives up what it was in the first run, too.
        assert again["servers"]["requests"] == 0 and 3 <= again["servers"]["replayed"] <= 5
        assert again["answer"] == record["answer"] and asked(server) - before <= 5
        (naive,) = qpdsl(*command, "--json", "--plan", "naive", "--completions", "none").records
        assert naive["answer"] == record["answer"] and naive["servers"]["requests"] >= 5
        assert "servers  0 requests, " in qpdsl(*command).out


@pytest.mark.parametrize(("kind", "ids"), [("vllm", True), ("vllm", False)])
def test_any_two_exact_plans_have_the_same_tokens(kind: str, ids: bool, tmp_path: Path, qpdsl: Run) -> None:
    path = tmp_path / "steps.qp"
    path.write_text(STEPS, "utf-8")
    with stub(kind) as server:
        shown = []
        for plan in ("optimized", "naive"):
            command = ("run", path, "--set", f"problem={PROBLEM}", "--model", address(server, DIALECTS[kind], ids=ids))
            ran = qpdsl(*command, "--json", "--rows", "--no-greedy", "--plan", plan, "--completions", "none")
            (record,) = ran.records
            shown.append([row["text"] for row in record["rows"]])
        assert shown[0] == shown[1] and len(set(shown[0])) == 3


def test_the_shipped_searches_run_with_the_verifier_here(qpdsl: Run) -> None:
    with stub("vllm", writes=says) as server:
        model = ("--model", address(server, ids=True), "--set", f"problem={PROBLEM}", "--no-greedy", "--json")
        for name in ("best_of_n", "beam_search"):
            ran = qpdsl("run", name, *model)
            assert ran.code == 0 and "error" not in ran.err
            (record,) = ran.records
            assert record["answer"] in ("12", "13") and record["score"] is not None
            # What the verifier read here is counted too.
            assert record["tokens_in"] > record["servers"]["tokens_in"] > 0


def test_records_are_held_to_their_schema_by_the_server(tmp_path: Path, qpdsl: Run) -> None:
    path = tmp_path / "record.qp"
    path.write_text(RECORD, "utf-8")
    with stub("vllm") as server:
        ran = qpdsl("run", path, "--set", f"problem={PROBLEM}", "--model", address(server), "--no-greedy", "--json")
        assert (ran.code, ran.err) == (0, "")
        assert set(ran.records[0]["answer"]) == {"count", "sold"}
        server.fail("wrong_text", path="completions", message='{"count": "x"}')
        ran = qpdsl("run", path, "--set", "problem=x", "--model", address(server), "--no-greedy")
        assert ran.code == 1 and "did not enforce a JSON Schema" in ran.err
    with stub("transformers serve") as server:
        ran = qpdsl("run", path, "--set", "problem=x", "--model", address(server, "openai"), "--no-greedy")
        assert ran.code == 2 and "error[QP403]: the server of `llm` does not constrain its output to" in ran.err
        assert " 5 |   generate llm as Card" in ran.err


def test_what_a_server_lacks_is_refused_before_anything_is_sent(tmp_path: Path, program: Path, qpdsl: Run) -> None:
    steps = tmp_path / "steps.qp"
    steps.write_text(STEPS, "utf-8")
    with stub("openai") as server:
        model = ("--set", f"problem={PROBLEM}", "--model", address(server, "openai"))
        assert "cannot continue a turn that it has begun" in qpdsl("run", steps, *model).err
        before = len(server.bodies)
        page = (ROOT / "docs" / "use" / "remote_models.md").read_text("utf-8")
        (shown,) = re.findall(r"^```\n(error\[QP403\].*?)^```$", page, re.M | re.S)
        told = qpdsl("run", "beam_search", *model).err.replace(server.url, "http://127.0.0.1:9000/v1")
        assert told.replace(f"#{server.model}", "#NAME").endswith(shown)
        program.write_text(SAMPLED.replace("temperature=0.8", "temperature=0.8 top_k=5"), "utf-8")
        ran = qpdsl("run", program, *model)
        assert ran.code == 2 and "ignores `top_k`" in ran.err and "help: leave out `top_k`" in ran.err
        program.write_text(SAMPLED.replace("-> text {", "-> text within exact {"), "utf-8")
        assert "`within exact` does not allow" in qpdsl("run", program, *model).err
        assert len(server.bodies) == before
    with stub("openai", seeds=False) as server:
        program.write_text(SAMPLED, "utf-8")
        model = ("--set", f"problem={PROBLEM}", "--model", address(server, "openai"))
        ran = qpdsl("run", program, *model)
        assert ran.code == 2 and "samples without seeds" in ran.err and "`within recorded`" in ran.err
        server.writes = says
        assert qpdsl("run", program, *model, "--within", "recorded").code == 0
        program.write_text(SAMPLED.replace("-> text {", "-> text within recorded {"), "utf-8")
        assert qpdsl("run", program, *model).code == 0
        ran = qpdsl("run", program, *model, "--within", "exact")
        assert ran.code == 2 and "says `within recorded` itself" in ran.err


def test_a_sweep_asks_its_servers_before_the_first_row(tmp_path: Path, program: Path, qpdsl: Run) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "Zoe has 3 * 4.", "answer": "12"}\n')
    with stub("openai", writes=says) as server:
        command = ("eval", program, "--input", rows, "--model", address(server, "openai"), "--format", "json")
        program.write_text(SAMPLED.replace("temperature=0.8", "temperature=0.8 top_k=5"), "utf-8")
        ran = qpdsl(*command)
        assert ran.code == 2 and "ignores `top_k`" in ran.err and "help: leave out `top_k`" in ran.err
        assert "Zoe" not in str(server.bodies) and RunFolder().ids() == []
        program.write_text(SAMPLED, "utf-8")
        assert qpdsl(*command).code == 0 and "Zoe" in str(server.bodies)


def test_explain_and_check_ask_no_server(program: Path, qpdsl: Run) -> None:
    ran = qpdsl("explain", program, "--model", "llm=vllm:http://127.0.0.1:9/v1#name")
    assert (ran.code, ran.err) == (0, "") and "not probed" in ran.out
    program.write_text(SAMPLED.replace("zoo/counting", "vllm:http://127.0.0.1:9/v1#name"), "utf-8")
    assert qpdsl("check", program).code == 0
    ran = qpdsl("run", program, "--set", "problem=x")
    assert ran.code == 4 and "127.0.0.1:9" in ran.err


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("vllm:127.0.0.1/v1#name", "is not the URL of a server"),
        ("vllm:http://127.0.0.1:9/v1", "`qpdsl models --probe http://127.0.0.1:9/v1` lists them"),
        ("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1 cannot be reached: no server listens there"),
        ("vllm:http://127.0.0.1:9/v1#na\udcffme", "has invalid characters"),
        ("vllm:http://xn--/v1#name", "is not the URL of a server"),
        ("vllm:http://127.0.0.1:9/v1#name tokenizer=./none", "there is no folder `none`"),
        ("vllm:http://127.0.0.1:9/v1#name adapter=./lora", "has to have the adapter itself"),
    ],
)
def test_a_wrong_address_is_refused_at_once(model: str, words: str, program: Path, qpdsl: Run) -> None:
    ran = qpdsl("run", program, "--set", "problem=x", "--model", f"llm={model}")
    assert ran.code == 4 and words in ran.err and len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("option", ["--dtype bfloat16", "--kv-memory 1GiB", "--threads 1"])
def test_what_is_about_models_here_is_refused_where_none_is(option: str, program: Path, qpdsl: Run) -> None:
    model = "llm=vllm:http://127.0.0.1:9/v1#name"
    ran = qpdsl("run", program, "--set", f"problem={PROBLEM}", "--model", model, *option.split())
    assert ran.code == 2 and f"`{option.split()[0]}` applies to models of this process only" in ran.err


@pytest.mark.parametrize("option", ["--max-tokens-total 9", "--server-timeout 9"])
def test_what_is_about_servers_is_refused_where_there_is_none(option: str, program: Path, qpdsl: Run) -> None:
    ran = qpdsl("run", program, "--set", f"problem={PROBLEM}", *option.split())
    assert ran.code == 2 and f"`{option.split()[0]}` applies to remote models only" in ran.err


def rows(path: Path, count: int) -> Path:
    problems = [{"problem": PROBLEM.replace("3", str(number))} for number in range(3, 3 + count)]
    return write_rows(path, problems)


def test_a_budget_ends_a_run_and_more_goes_on_with_it(
    tmp_path: Path, program: Path, qpdsl: Run, runs: RunFolder
) -> None:
    data, out, prices = rows(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl", tmp_path / "prices.json"
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--input", data, "--output", out, "--model", address(server), "--no-greedy")
        ran = qpdsl(*command, "--max-tokens-total", 300, "--concurrency", 1)
        assert ran.code == 7 and not out.exists()
        error, servers, kept = ran.err.splitlines()[-3:]
        assert "of 6 rows are finished" in error and servers.startswith("servers: ")
        # The error tells what was spent in all, with what was under way when the bound was reached.
        sent, written = map(int, re.findall(r"(\d+) tokens in, (\d+) out", servers)[0])
        assert error.startswith(f"error: token limit reached: {sent + written} of 300 tokens used")
        assert "`--resume` and more to spend goes on from there" in kept
        assert 0 < rows_of_last(runs) < 6
        prices.write_text(json.dumps({"other": {"input": 1, "output": 2}}), "utf-8")
        ran = qpdsl(*command, "--resume", "--max-cost", 1, "--prices", prices)
        assert ran.code == 4 and "price" in ran.err
        prices.write_text(json.dumps({server.model: {"input": 1e6, "output": 2e6}}), "utf-8")
        ran = qpdsl(*command, "--resume", "--max-cost", 1e9, "--prices", prices)
        assert ran.code == 0 and "cost " in ran.err and len(out.read_text().splitlines()) == 6
        # A row that was under way is not paid for twice.
        assert server.counts.requests < 24 + 100
    assert "`--max-cost` needs `--prices`" in qpdsl(*command, "--max-cost", 1).err


def test_a_table_of_prices_is_read_before_anything_is_sent(tmp_path: Path, program: Path, qpdsl: Run) -> None:
    prices = tmp_path / "prices.json"
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--set", "problem=x", "--model", address(server), "--max-cost", 1)
        for text, words in (
            ("{", "is not valid JSON"),
            ('{"other": {"input": 1, "output": 2}}', "has no price for `stub`"),
        ):
            prices.write_text(text, "utf-8")
            ran = qpdsl(*command, "--prices", prices)
            assert ran.code == 4 and words in ran.err
            with pytest.raises(qp.ModelError, match=words), qp.using(max_cost=1.0, prices=prices):
                qp.load(program).using(models={"llm": address(server).removeprefix("llm=")})("x")
        assert server.counts.requests == 0


def test_a_changed_server_is_refused_on_resume(tmp_path: Path, program: Path, qpdsl: Run) -> None:
    data, out = rows(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--input", data, "--output", out, "--model", address(server), "--no-greedy")
        assert qpdsl(*command, "--max-tokens-total", 200, "--concurrency", 1).code == 7
        server.becomes(version="0.33.0")
        ran = qpdsl(*command, "--resume")
    assert ran.code == 2 and "the model `llm`" in ran.err


def test_a_server_that_is_gone_ends_a_run_that_keeps_its_rows(tmp_path: Path, program: Path, qpdsl: Run) -> None:
    data, out = rows(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--input", data, "--output", out, "--model", address(server), "--no-greedy")
        assert qpdsl(*command, "--max-tokens-total", 200, "--concurrency", 1).code == 7
        server.stop()
        ran = qpdsl(*command, "--resume", "--server-timeout", 0.3)
        assert ran.code == 6 and server.origin in ran.err and "`--resume`" in ran.err
        server.start()
        assert qpdsl(*command, "--resume").code == 0
    assert len(out.read_text().splitlines()) == 4


def test_a_run_whose_server_dies_before_its_first_row_goes_on(tmp_path: Path, program: Path, qpdsl: Run) -> None:
    data, out = rows(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    with stub("vllm", writes=says) as server:
        known = ("run", program, "--input", data, "--model", address(server), "--no-greedy")
        assert qpdsl(*known, "--limit", 1, "--output", tmp_path / "known.jsonl").code == 0
        command = (*known, "--output", out)
        server.fail("stall_stream", times=None)
        ran = qpdsl(*command, "--seed", 3, "--server-timeout", 0.3)
        assert ran.code == 6 and "help: 0 of 4 rows are saved in run `" in ran.err
        assert "in the cache of completions what servers answered" in ran.err and "`--resume` goes on" in ran.err
        server.mend()
        asked = server.counts.requests
        ran = qpdsl(*command, "--seed", 4, "--resume")
        assert (ran.code, server.counts.requests) == (2, asked)
        assert "(0 of 4 rows); changed since it began: the seed (was 3, is 4)" in ran.err
        ran = qpdsl(*command, "--seed", 3, "--resume")
        assert ran.code == 0 and "0 of 4 rows are there" in ran.err


def test_a_server_that_takes_requests_and_answers_none_is_given_up(program: Path, qpdsl: Run) -> None:
    program.write_text(SAMPLED, "utf-8")
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--set", f"problem={PROBLEM}", "--model", address(server), "--no-greedy")
        server.fail("stall", times=None, path="models")
        ran = qpdsl(*command, "--server-timeout", 0.5)
        assert ran.code == 4 and "stopped responding" in ran.err
        server.mend()
        assert qpdsl(*command).code == 0
        server.fail("stall_stream", times=None)
        ran = qpdsl(*command, "--server-timeout", 0.5, "--completions", "none")
        assert ran.code == 6 and "stopped responding" in ran.err


@pytest.mark.parametrize("kind", ["comments", "no_tokens"])
def test_a_server_that_sends_no_token_is_given_up(kind: Any, program: Path, qpdsl: Run) -> None:
    program.write_text(SAMPLED, "utf-8")
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--set", f"problem={PROBLEM}", "--model", address(server), "--no-greedy")
        assert qpdsl(*command).code == 0
        server.fail(kind, times=None)
        ran = qpdsl(*command, "--server-timeout", 0.5, "--completions", "none")
        assert ran.code == 6 and server.origin in ran.err


@pytest.mark.parametrize(("kind", "how"), [("overloaded", {}), ("too_many", {"seconds": 0.1}), ("too_many", {})])
def test_a_server_that_is_busy_at_first_is_waited_for(
    kind: Any, how: dict[str, float], program: Path, qpdsl: Run
) -> None:
    with stub("vllm", writes=says) as server:
        command = ("run", program, "--set", "problem=x", "--model", address(server), "--no-greedy")
        server.fail(kind, times=None, path="models", **how)
        ran = qpdsl(*command, "--server-timeout", 0.5)
        assert ran.code == 4 and "no response for" in ran.err
        server.mend()
        server.fail(kind, times=2, path="models", **how)
        assert qpdsl(*command).code == 0


def test_a_run_that_is_killed_goes_on(tmp_path: Path, program: Path, qpdsl: Run, cache: Path, runs: RunFolder) -> None:
    data, out = rows(tmp_path / "in.jsonl", 8), tmp_path / "out.jsonl"
    with stub("vllm", writes=says) as server:
        assert qpdsl("run", program, "--set", "problem=x", "--model", address(server), "--completions", "none").out
        server.pace = 0.005
        options = ["--input", str(data), "--model", address(server), "--no-greedy", "--concurrency", "2"]
        command = ["run", str(program), *options, "--output", str(out)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent)}
        running = subprocess.Popen(
            [sys.executable, "-m", "qpdsl", *command], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while rows_of_last(runs) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        server.pace = 0.0
        assert qpdsl(*command, "--resume").code == 0
        whole = out.read_text()
        assert len(whole.splitlines()) == 8
        ran = qpdsl("run", program, *options)
        # All of it was kept: both runs together asked for each sample once.
        assert ran.out == whole and "0 requests, 32 replayed" in ran.err


def test_explain_analyze_runs_on_a_server(program: Path, qpdsl: Run) -> None:
    with stub("vllm", writes=says) as server:
        ran = qpdsl("explain", program, "--analyze", "--set", f"problem={PROBLEM}", "--model", address(server))
        assert ran.code == 0 and "requests" in ran.out
        ran = qpdsl("run", program, "--analyze", "--set", f"problem={PROBLEM}", "--model", address(server))
        assert ran.code == 0 and "4 replayed" in ran.err


def test_the_python_face_has_the_same_settings(program: Path) -> None:
    with stub("vllm", writes=says) as server:
        bound = qp.load(program).using(models={"llm": address(server).removeprefix("llm=")})
        with qp.using(max_tokens_total=100, completions="none"), pytest.raises(qp.BudgetReached, match="100"):
            for number in range(9):
                bound(f"{PROBLEM} {number}")
        with qp.using(server_timeout=0.2, completions="none"):
            assert bound(PROBLEM).startswith("3 * 4")
            server.stop()
            with pytest.raises(qp.ServerGone, match="no response"):
                bound(f"{PROBLEM} again")
            server.start()
            assert bound(PROBLEM).startswith("3 * 4")
        with pytest.raises(qp.ArgumentError, match="needs `prices`"):
            qp.Session(max_cost=1.0)


def test_the_prompt_of_a_request_that_failed_is_not_counted_for_its_row(
    program: Path, qpdsl: Run, tmp_path: Path
) -> None:
    program.write_text(STEPS.replace("n=3 ", ""), "utf-8")
    rows = write_rows(tmp_path / "rows.jsonl", [{"problem": f"{PROBLEM} ({number})"} for number in range(2)])
    with stub("vllm", writes=says) as server:
        where = ("--model", address(server, ids=True), "--completions", "none")
        qpdsl("run", program, "--set", f"problem={PROBLEM}", *where)
        server.fail("bad_request")
        output = tmp_path / "out.jsonl"
        done = qpdsl("run", program, "--input", rows, *where, "--concurrency", "1", "--json", "--output", output)
    failed, whole = (json.loads(line) for line in output.read_text("utf-8").splitlines())
    (summary,) = done.records
    assert "400" in failed["error"] and failed["tokens_in"] == 0 < whole["tokens_in"]
    assert summary["tokens_in"] == summary["servers"]["tokens_in"]


def test_a_vote_says_in_how_many_texts_an_answer_was_found(qpdsl: Run, tmp_path: Path) -> None:
    (tmp_path / "voted.qp").write_text(VOTED)
    seeds: dict[int, None] = {}

    def writes(prompt: str, seed: int) -> str | None:
        if "Zoe" not in prompt:
            return None
        seeds.setdefault(seed)
        return "The answer is 7." if seed in (greedy, *list(seeds)[: 2 if greedy in seeds else 1]) else "I cannot tell."

    greedy = seed_of(0, 0, 2**63 - 1)
    with stub("vllm", writes=writes, logprobs=None) as server:
        model = f"llm=vllm:{server.url}#stub"
        ran = qpdsl("run", str(tmp_path / "voted.qp"), PROBLEM, "--model", model, "--completions", "none", "--rows")
    assert re.search(r"found +an answer in 1 of 4 texts; `--rows` shows them", ran.out), ran.out
    # This server has none.
    assert set(re.findall(r"logprob +(\S+)", ran.out)) == {"none"}


def test_a_url_stands_for_the_only_model_of_its_server(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "written.qp").write_text(WRITTEN)
    with stub("vllm") as server:
        command = ("run", str(tmp_path / "written.qp"), PROBLEM, "--completions", "none", "--model")
        named = qpdsl(*command, f"llm=vllm:{server.url}#stub")
        ran = qpdsl(*command, f"llm={server.origin}")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "qpdsl.toml").write_text(f'[models]\nllm = "{server.url}"\n')
        by_project = qpdsl(*command[:-1])
    for own in (ran, by_project):
        assert f"note: `llm` is `vllm:{server.url}#stub`, the only model there" in own.err
        assert own.code == 0 and own.out == named.out
    # Nothing is asked to explain.
    explained = qpdsl("explain", str(tmp_path / "written.qp"), "--model", f"llm={server.url}")
    assert "name a model of it" in explained.err
