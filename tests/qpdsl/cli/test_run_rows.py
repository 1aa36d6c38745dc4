"""`qpdsl run --input`: many rows, in order, the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qpdsl.cli.exits import Exit
from qpdsl.dataset.journal import Journal, journal_path
from tests.support.cli import SAMPLED, Run, write_rows
from tests.support.executor.adapters import write_adapter


@pytest.fixture
def unfinished(qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path) -> Path:
    """The output file of a run that was killed after four rows; its whole output lies in `whole.jsonl`."""
    from qpdsl.dataset import journal

    output = tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.Journal, "remove", journal.Journal.close)
        assert qpdsl("run", sampled, "--input", problems, "--output", output).code == Exit.OK
    output.rename(tmp_path / "whole.jsonl")
    lines = journal_path(output).read_bytes().splitlines(keepends=True)
    assert len(lines) == 11
    journal_path(output).write_bytes(b"".join(lines[:5]) + lines[5][:30])
    return output


def test_records_come_in_the_order_of_the_input(qpdsl: Run, sampled: Path, problems: Path) -> None:
    ran = qpdsl("run", sampled, "--input", problems)
    assert ran.code == Exit.OK
    ids = [f"row-{number}" if number % 2 else str(number + 1) for number in range(10)]
    assert [record["id"] for record in ran.records] == ids
    basic = ["id", "answer", "score", "tokens_in", "tokens_out"]
    assert list(ran.records[0]) == basic
    assert list(ran.records[1]) == [*basic, "correct", "greedy", "greedy_correct"]
    assert list(qpdsl("run", sampled, "--input", problems, "--no-greedy").records[1]) == [*basic, "correct"]


def test_stdout_and_the_output_file_hold_the_same(qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    ran = qpdsl("run", sampled, "--input", problems, "--output", output, "--json")
    assert ran.code == Exit.OK
    assert ran.records[0]["rows"] == 10 and ran.records[0]["compared"] == 6
    assert output.read_text() == qpdsl("run", sampled, "--input", problems).out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "problems.jsonl", "sampled.qp"]


def test_concurrency_does_not_show_in_the_results(qpdsl: Run, sampled: Path, problems: Path) -> None:
    one = qpdsl("run", sampled, "--input", problems, "--rows", "--concurrency", 1)
    eight = qpdsl("run", sampled, "--input", problems, "--rows", "--concurrency", 8)
    assert one.out == eight.out and len(one.records) == 10


def test_a_row_alone_gives_what_it_gives_among_others(qpdsl: Run, sampled: Path, problems: Path) -> None:
    among = qpdsl("run", sampled, "--input", problems).records[4]
    problem = json.loads(problems.read_text().splitlines()[4])["problem"]
    alone = json.loads(qpdsl("run", sampled, "--set", f"problem={problem}", "--json").out)
    assert among["answer"] == alone["answer"] and among["tokens_out"] == alone["tokens_out"]


def test_the_summary_compares_with_greedy(qpdsl: Run, problems: Path) -> None:
    err = qpdsl("run", "self_consistency", "--set", "n=2", "--input", problems).err
    lines = dict(line.split(maxsplit=1) for line in err.splitlines())
    assert lines["rows"] == "10"
    for name in ("accuracy", "greedy"):
        right, _, total = lines[name].split()[0].partition("/")
        assert total == "6" and f"({int(right) / 6:.1%})" in lines[name]
    assert "tokens/s" in lines["seconds"]
    for name in ("first", "each"):
        assert lines[name].startswith("token ") and " p99 " in lines[name]


def test_a_row_that_fails_leaves_the_others_be(qpdsl: Run, sampled: Path, tmp_path: Path) -> None:
    rows = [{"problem": "Mia has 3 cards."}, {"problem": "x" * 5000, "answer": "1"}, {"problem": "Mia has 5 cards."}]
    ran = qpdsl("run", sampled, "--input", write_rows(tmp_path / "d.jsonl", rows))
    assert ran.code == Exit.ROW_FAILED
    assert [record["answer"] is None for record in ran.records] == [False, True, False]
    assert "the context has" in str(ran.records[1]["error"]) and ran.records[1]["correct"] is False
    assert "1 (row `2`: the context has" in ran.err


def test_values_set_hold_for_rows_without_their_own(qpdsl: Run, sampled: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "d.jsonl", [{"n": 1, "limit": 2}, {"n": 1}])
    ran = qpdsl("run", sampled, "--input", data, "--set", "problem=Mia has 3 cards.", "--set", "limit=4")
    assert [record["tokens_out"] for record in ran.records] == [2, 4]


def test_the_shipped_problems_have_a_short_name(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qpdsl.sources.programs import input_path

    assert input_path("counting-500").is_file()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting-500").write_text("")
    assert qpdsl("run", "greedy", "--input", "counting-500").err.startswith("error: counting-500: the file is empty")


def test_an_unfinished_run_is_not_trampled(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path) -> None:
    before = journal_path(unfinished).read_bytes()
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished)
    assert ran.code == Exit.USAGE
    assert "an unfinished run is in" in ran.err and "--resume" in ran.err and "--overwrite" in ran.err
    assert journal_path(unfinished).read_bytes() == before


@pytest.mark.parametrize("how", ["--resume", "--overwrite"])
def test_resumed_or_restarted_the_result_is_the_same(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, how: str
) -> None:
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, how, "--concurrency", 3)
    assert ran.code == Exit.OK
    assert unfinished.read_bytes() == unfinished.with_name("whole.jsonl").read_bytes()
    assert not journal_path(unfinished).exists()


def test_resume_refuses_what_has_changed(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, tmp_path: Path
) -> None:
    import shutil

    from qpdsl import zoo

    before = journal_path(unfinished).read_bytes()
    other = tmp_path / "other.qp"
    other.write_text(SAMPLED.replace("1.5", "1.4"))
    more = tmp_path / "more.jsonl"
    more.write_text(problems.read_text() + '{"problem": "x"}\n')
    copied = tmp_path / "model"
    shutil.copytree(zoo.path("zoo/counting"), copied)
    (copied / "tokenizer_config.json").write_text((copied / "tokenizer_config.json").read_text() + "\n")
    adapter = write_adapter(tmp_path / "adapter", {"never.loaded": torch.ones(2)}, target_modules=["q_proj"])
    for program, data, args, changed in [
        (other, problems, [], "the program"),
        (sampled, more, [], "the input data"),
        (sampled, problems, ["--seed", "3"], "the seed (was 0, is 3)"),
        (sampled, problems, ["--set", "n=3"], "the arguments"),
        (sampled, problems, ["--dtype", "bfloat16"], "the dtype (was default, is bfloat16)"),
        (sampled, problems, ["--kv-type", "int8"], "the type of the KV cache (was default, is int8)"),
        (sampled, problems, ["--rows"], "what is recorded (was greedy, is rows, greedy)"),
        (sampled, problems, ["--model", f"llm={copied}"], "the model `llm`"),
        (sampled, problems, ["--adapter", f"llm={adapter}"], "the model `llm`"),
    ]:
        ran = qpdsl("run", program, "--input", data, "--output", unfinished, "--resume", *args)
        assert ran.code == Exit.USAGE
        assert ran.err.splitlines()[0].endswith(f"changed since it began: {changed}")
        assert journal_path(unfinished).read_bytes() == before


def test_a_run_of_another_build_is_not_resumed(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qpdsl.dataset.fingerprint import build

    monkeypatch.setattr("qpdsl.cli.runs.data_set_run.build", lambda: "0.1.0 build of tomorrow")
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume")
    assert ran.code == Exit.USAGE
    assert f"changed since it began: the qpdsl version (was {build()}, is 0.1.0 build of tomorrow)" in ran.err


def test_a_comment_or_another_layout_is_not_another_program(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path
) -> None:
    sampled.write_text("# more words\n" + SAMPLED.replace("n=n temperature=1.5", "n = n  temperature = 1.5"))
    assert qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume").code == Exit.OK


def test_a_damaged_line_costs_its_row(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path) -> None:
    journal = journal_path(unfinished)
    lines = journal.read_bytes().splitlines(keepends=True)
    edited = lines[2].replace(b'"tokens_out": ', b'"tokens_out": 9')
    assert edited != lines[2]
    journal.write_bytes(b"".join([*lines[:2], edited, *lines[3:]]))
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume")
    assert ran.code == Exit.OK
    assert ran.err.splitlines()[0] == (
        f"warning: line 3 of `{journal}` is damaged: what it held is not used, and rows that are missing run again"
    )
    assert unfinished.read_bytes() == unfinished.with_name("whole.jsonl").read_bytes()


def test_a_finished_output_is_replaced_on_request_only(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    args = ("run", sampled, "--input", problems, "--output", output)
    assert qpdsl(*args).code == Exit.OK
    first = output.read_bytes()
    ran = qpdsl(*args, "--seed", 1)
    assert ran.code == Exit.USAGE and f"`{output}` holds the results of a run already" in ran.err
    assert output.read_bytes() == first
    # A run that does not start takes nothing away.
    broken = qpdsl(*args, "--seed", 1, "--overwrite", "--kv-memory", "1KiB")
    assert broken.code == Exit.MODEL and output.read_bytes() == first and not journal_path(output).exists()
    assert qpdsl(*args, "--seed", 1, "--overwrite").code == Exit.OK
    assert output.read_bytes() != first


def test_a_second_copy_is_told_that_the_first_one_runs(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path
) -> None:
    journal = Journal(journal_path(unfinished))
    before = journal.path.read_bytes()
    for how in ([], ["--resume"], ["--overwrite"]):
        ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, *how)
        assert ran.code == Exit.USAGE and f"another run is writing to `{journal.path}` now" in ran.err
        assert "--overwrite" not in ran.err
    journal.close()
    assert journal.path.read_bytes() == before


def test_what_has_come_there_meanwhile_is_left(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path) -> None:
    unfinished.write_text("notes")
    args = ("run", sampled, "--input", problems, "--output", unfinished)
    assert "does not hold the results of a run" in qpdsl(*args, "--resume").err
    unfinished.write_bytes(unfinished.with_name("whole.jsonl").read_bytes())
    ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and "has come there since the unfinished run began" in ran.err
    # Nor where it comes while the run goes on.
    unfinished.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "qpdsl.cli.runs.data_set_run.emit_row", lambda *given: unfinished.write_text("notes") if given else None
        )
        ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and unfinished.read_text() == "notes"
    assert "10 of 10 rows are kept" in ran.err
    unfinished.unlink()
    assert qpdsl(*args, "--resume").code == Exit.OK
    assert unfinished.read_bytes() == unfinished.with_name("whole.jsonl").read_bytes()


def test_a_run_begun_with_overwrite_is_resumed_with_what_it_replaces(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path
) -> None:
    unfinished.write_bytes(unfinished.with_name("whole.jsonl").read_bytes())
    args = ("run", sampled, "--input", problems, "--output", unfinished, "--seed", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qpdsl.cli.runs.data_set_run.Journal.remove", Journal._unlock)
        assert qpdsl(*args, "--overwrite").code == Exit.OK
    whole = unfinished.read_bytes()
    unfinished.write_bytes(unfinished.with_name("whole.jsonl").read_bytes())
    assert qpdsl(*args, "--resume").code == Exit.OK
    assert unfinished.read_bytes() == whole


def test_resuming_what_is_finished_or_not_begun(qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    args = ("run", sampled, "--input", problems, "--output", output, "--resume")
    assert qpdsl(*args).code == Exit.OK
    whole = output.read_bytes()
    for changed in ([], ["--seed", "1"], ["--set", "n=3"]):
        ran = qpdsl(*args, *changed)
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        assert ran.err.startswith(f"error: there is no unfinished run beside `{output}`, and a finished file does not")
        assert ran.err.endswith("help: leave out `--resume` to run it again\n")
    assert output.read_bytes() == whole and not journal_path(output).exists()


def test_a_full_disk_is_said_in_one_line(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real, output = os.fsync, tmp_path / "out.jsonl"
    calls = iter(range(100))

    def full(handle: int) -> None:
        if next(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    args = ("run", sampled, "--input", problems, "--output", output, "--concurrency", 2)
    with monkeypatch.context() as patch:
        patch.setattr("qpdsl.dataset.journal.os.fsync", full)
        ran = qpdsl(*args)
    assert ran.code == Exit.USAGE
    assert ran.err.splitlines() == [
        f"error: cannot write `{journal_path(output)}`: no space left on device",
        f"help: 1 of 10 rows are kept in `{journal_path(output)}`; the same command with `--resume` goes on from there",
    ]

    def full_at_the_end(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".part"):
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr("qpdsl.output.os.fsync", full_at_the_end)
        ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and not output.exists()
    assert f"help: 10 of 10 rows are kept in `{journal_path(output)}`" in ran.err
    assert qpdsl(*args, "--resume").code == Exit.OK
    assert output.read_text() == qpdsl("run", sampled, "--input", problems).out


def test_a_run_is_gone_on_with_by_the_same_plan(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path) -> None:
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume", "--plan", "naive")
    assert ran.code != Exit.OK and "the plan (was optimized, is naive)" in ran.err
