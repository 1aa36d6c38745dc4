"""`qpdsl run --input`: many rows, in order, the same every time."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qpdsl.cli.exits import Exit
from qpdsl.executor.kernels.llvm.compile import multiplies_pairs
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord
from tests.support.cli import SAMPLED, Run, write_rows
from tests.support.executor.adapters import write_adapter
from tests.support.saved_runs import cut_short, damage_row, rows_of_last
from tests.support.user_cache import own_cache


@pytest.fixture
def unfinished(qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, runs: RunFolder) -> Path:
    """The output file of a run that was killed after four rows; its whole output lies in `whole.jsonl`."""
    output = tmp_path / "out.jsonl"
    assert qpdsl("run", sampled, "--input", problems, "--output", output).code == Exit.OK
    output.rename(tmp_path / "whole.jsonl")
    cut_short(runs, 4)
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
        assert total == "6" and f"({int(right) / 6:.1%}" in lines[name]
    assert "tokens/s" in lines["seconds"]
    for name in ("first", "each"):
        assert lines[name].startswith("token ") and " p99 " in lines[name]


def test_many_texts_without_a_bound_are_told_of_once(qpdsl: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": str(number), "q": "1"}) + "\n" for number in range(100)), "utf-8")
    for bound, notes in (("", 1), (" max_tokens=1", 0), (' stop="."', 0)):
        ran = qpdsl(
            "run", "-e", f"chat user=q | generate llm{bound}", "--input", rows, "--output", tmp_path / f"o{bound}"
        )
        assert ran.code == Exit.OK and ran.err.count("has no `max_tokens`") == notes


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
    from qpdsl.session.programs import input_path

    assert input_path("counting-500").is_file()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting-500").write_text("")
    assert qpdsl("run", "greedy", "--input", "counting-500").err.startswith("error: counting-500: the file is empty")


def test_an_unfinished_run_is_not_trampled(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, runs: RunFolder
) -> None:
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished)
    first, second = runs.ids()
    assert f"note: run `{first}` ended early with 4 of 10 rows; `--resume` goes on with it" in ran.err
    assert unfinished.read_bytes() == unfinished.with_name("whole.jsonl").read_bytes()
    with RunFile.reading(runs.file(first)) as before, RunFile.reading(runs.file(second)) as after:
        assert (before.info().totals.done, after.info().totals.done) == (4, 10)
        assert (before.info().state, after.info().state) == ("stopped", "finished")


@pytest.mark.parametrize("printed", [False, True])
def test_resumed_the_result_is_the_same(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, runs: RunFolder, printed: bool
) -> None:
    """Also without `--output`, where the rows that were there are printed too."""
    where = () if printed else ("--output", unfinished)
    ran = qpdsl("run", sampled, "--input", problems, *where, "--resume", "--concurrency", 3)
    assert ran.code == Exit.OK
    assert ran.err.splitlines()[0] == f"going on with run `{runs.ids()[0]}`: 4 of 10 rows are there"
    whole = unfinished.with_name("whole.jsonl").read_text()
    assert (ran.out if printed else unfinished.read_text()) == whole
    assert len(runs.ids()) == 1


def test_of_a_grown_input_the_new_rows_run_and_of_a_changed_one_the_changed(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, tmp_path: Path
) -> None:
    lines = problems.read_text().splitlines()
    lines[1] = lines[1].replace("3 boxes", "30 boxes")
    more = tmp_path / "more.jsonl"
    more.write_text("\n".join([*lines, '{"problem": "Mia has 3 cards."}']) + "\n")
    ran = qpdsl("run", sampled, "--input", more, "--output", unfinished, "--resume")
    assert ran.code == Exit.OK
    assert "3 of 11 rows are there" in ran.err
    assert "note: rows that have other arguments now run again: `row-1`" in ran.err
    assert unfinished.read_text() == qpdsl("run", sampled, "--input", more).out


def test_a_right_answer_that_was_corrected_changes_the_grade_and_runs_nothing(
    qpdsl: Run, sampled: Path, problems: Path, runs: RunFolder
) -> None:
    qpdsl("run", sampled, "--input", problems)
    cut_short(runs, 10)
    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    rows[1]["answer"] = "nothing like it"
    write_rows(problems, rows)
    ran = qpdsl("run", sampled, "--input", problems, "--resume")
    assert "10 of 10 rows are there" in ran.err and "note: 1 of them are graded anew" in ran.err
    assert ran.out == qpdsl("run", sampled, "--input", problems).out
    assert "tokens/s" not in ran.err


def test_resume_refuses_what_has_changed(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, tmp_path: Path, runs: RunFolder
) -> None:
    import shutil

    from qpdsl import zoo

    pairs = " by AVX512-BF16" if multiplies_pairs() else ""
    other = tmp_path / "other.qp"
    other.write_text(SAMPLED.replace("1.5", "1.4"))
    copied = tmp_path / "model"
    shutil.copytree(zoo.path("zoo/counting"), copied)
    (copied / "tokenizer_config.json").write_text((copied / "tokenizer_config.json").read_text() + "\n")
    adapter = write_adapter(tmp_path / "adapter", {"never.loaded": torch.ones(2)}, target_modules=["q_proj"])
    for program, data, args, changed in [
        (other, problems, [], "the program"),
        (sampled, problems, ["--seed", "3"], "the seed (was 0, is 3)"),
        (sampled, problems, ["--set", "n=3"], "`n` was not set, is 3"),
        (sampled, problems, ["--dtype", "bfloat16"], f"the dtype (was default, is bfloat16{pairs})"),
        (sampled, problems, ["--kv-type", "int8"], "the type of the KV cache (was default, is int8)"),
        (sampled, problems, ["--rows"], "what is recorded (was greedy, is rows, greedy)"),
        (sampled, problems, ["--model", f"llm={copied}"], "the model `llm`"),
        (sampled, problems, ["--adapter", f"llm={adapter}"], "the model `llm`"),
    ]:
        ran = qpdsl("run", program, "--input", data, "--output", unfinished, "--resume", *args)
        assert ran.code == Exit.USAGE
        assert ran.err.splitlines()[0].endswith(f"(4 of 10 rows); changed since it began: {changed}")
        assert rows_of_last(runs) == 4 and len(runs.ids()) == 1
    others = write_rows(tmp_path / "others.jsonl", [{"problem": "x"}])
    ran = qpdsl("run", sampled, "--input", others, "--output", unfinished, "--resume")
    assert ran.code == Exit.USAGE and f"no row of the unfinished run `{runs.ids()[0]}` is in the input" in ran.err


def test_a_run_of_another_build_is_not_resumed(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qpdsl.runs.store.fingerprint import build

    now = build()
    monkeypatch.setattr("qpdsl.runs.store.fingerprint.build", lambda: "0.1.0 build of tomorrow")
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume")
    assert ran.code == Exit.USAGE
    assert f"changed since it began: the qpdsl version (was {now}, is 0.1.0 build of tomorrow)" in ran.err


def test_a_comment_or_another_layout_is_not_another_program(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path
) -> None:
    sampled.write_text("# more words\n" + SAMPLED.replace("n=n temperature=1.5", "n = n  temperature = 1.5"))
    assert qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume").code == Exit.OK


def test_a_damaged_row_runs_again(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, runs: RunFolder) -> None:
    (run,) = runs.ids()
    damage_row(runs.file(run), 1)
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume")
    assert ran.code == Exit.OK
    assert ran.err.splitlines()[:2] == [
        f"going on with run `{run}`: 3 of 10 rows are there",
        f"warning: damaged in run `{run}`, and run again: row `2`",
    ]
    assert unfinished.read_bytes() == unfinished.with_name("whole.jsonl").read_bytes()


def test_a_finished_output_is_replaced_on_request_only(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, runs: RunFolder
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
    assert broken.code == Exit.MODEL and output.read_bytes() == first and len(runs.ids()) == 1
    assert qpdsl(*args, "--seed", 1, "--overwrite").code == Exit.OK
    assert output.read_bytes() != first


def test_a_second_copy_is_told_that_the_first_one_runs(
    qpdsl: Run, sampled: Path, problems: Path, unfinished: Path, runs: RunFolder
) -> None:
    (run,) = runs.ids()
    with RunFile.writing(runs.file(run)):
        for how in ([], ["--resume"], ["--overwrite"]):
            ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, *how)
            assert ran.code == Exit.USAGE and f"another run is writing to `{unfinished}` now: `{run}`" in ran.err
        elsewhere = ("run", sampled, "--input", problems, "--output", unfinished.with_name("other.jsonl"))
        ran = qpdsl(*elsewhere, "--resume")
        assert ran.code == Exit.USAGE and f"another process is writing run `{run}` now" in ran.err
        ran = qpdsl(*elsewhere)
        assert ran.code == Exit.OK and f"note: run `{run}` is at work on the same rows; `qpdsl top` shows it" in ran.err
    assert len(runs.ids()) == 2


def test_what_has_come_there_meanwhile_is_left(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path) -> None:
    unfinished.write_text("notes")
    args = ("run", sampled, "--input", problems, "--output", unfinished)
    assert "does not hold the results of a run" in qpdsl(*args, "--resume").err
    unfinished.write_bytes(unfinished.with_name("whole.jsonl").read_bytes())
    ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and f"`{unfinished}` was not there when run " in ran.err
    # Nor where it comes while the run goes on.
    unfinished.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "qpdsl.cli.runs.data_set_run.emit_row", lambda *given: unfinished.write_text("notes") if given else None
        )
        ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and unfinished.read_text() == "notes"
    assert "10 of 10 rows are saved" in ran.err
    unfinished.unlink()
    assert qpdsl(*args, "--resume").code == Exit.OK
    assert unfinished.read_bytes() == unfinished.with_name("whole.jsonl").read_bytes()


def test_a_run_begun_with_overwrite_is_resumed_with_what_it_replaces(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, runs: RunFolder
) -> None:
    output = tmp_path / "out.jsonl"
    args = ("run", sampled, "--input", problems, "--output", output)
    assert qpdsl(*args).code == Exit.OK
    before = output.read_bytes()
    assert qpdsl(*args, "--seed", 1, "--overwrite").code == Exit.OK
    whole = output.read_bytes()
    cut_short(runs, 4)
    output.write_bytes(before)
    assert qpdsl(*args, "--seed", 1, "--resume").code == Exit.OK
    assert output.read_bytes() == whole != before


def test_resuming_what_is_finished_or_not_begun(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, runs: RunFolder
) -> None:
    output = tmp_path / "out.jsonl"
    args = ("run", sampled, "--input", problems, "--output", output)
    ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and "there is no unfinished run of `sampled` in" in ran.err
    assert qpdsl(*args).code == Exit.OK
    whole = output.read_bytes()
    ran = qpdsl(*args, "--resume")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"the run `{runs.ids()[0]}` is finished, and no other of this program is unfinished" in ran.err
    assert "there is no unfinished run" in qpdsl(*args, "--resume", "--seed", 1).err
    assert output.read_bytes() == whole and len(runs.ids()) == 1


def test_what_was_computed_is_reused_when_asked(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, runs: RunFolder
) -> None:
    """By its arguments, under whatever id and in whatever order, and from an unfinished run too."""
    lines = problems.read_text().splitlines()
    half = tmp_path / "half.jsonl"
    half.write_text("\n".join(reversed(lines[:6])) + "\n")
    assert qpdsl("run", sampled, "--input", half).code == Exit.OK
    earlier = cut_short(runs, 4)
    other_seed = qpdsl("run", sampled, "--input", problems, "--seed", 1, "--reuse").err
    assert "reused" not in other_seed and "note: `--reuse` found no row" in other_seed
    ran = qpdsl("run", sampled, "--input", problems, "--reuse")
    assert ran.err.splitlines()[0] == f"reused 4 rows of run `{earlier}`"
    with RunFile.reading(runs.file(runs.ids()[-1])) as run:
        assert [row.number for row in run.rows() if row.reused == earlier] == [2, 3, 4, 5]
        assert run.info().totals.reused == 4
    for id in runs.ids():
        runs.remove(id)
    assert ran.out == qpdsl("run", sampled, "--input", problems).out


def test_what_operators_came_to_is_kept_and_the_statistics_are_made_of_it(
    qpdsl: Run, sampled: Path, problems: Path, runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    assert qpdsl("run", sampled, "--input", problems, "--no-greedy").code == Exit.OK
    shown = json.loads(qpdsl("runs", "show", "last", "--format", "json").out)
    tokens = sum(operator["tokens_out"] for operator in shown["operators"])
    assert tokens == shown["tokens_out"] > 0 and shown["operators"][1]["operator"].startswith("generate llm")
    before = qpdsl("analyze", "--format", "json").out
    assert qpdsl("analyze", "--forget").code == Exit.OK
    ran = qpdsl("analyze", "--rebuild")
    assert (ran.code, ran.err) == (Exit.OK, "the statistics are those of 1 saved run\n")
    after = json.loads(qpdsl("analyze", "--format", "json").out)
    for program in after["programs"].values():
        program.pop("clock")
    assert after["programs"] == {
        key: {name: value for name, value in program.items() if name != "clock"}
        for key, program in json.loads(before)["programs"].items()
    }
    assert qpdsl("analyze", "--rebuild", "sampled").code == Exit.USAGE


def test_a_full_disk_is_said_in_one_line(
    qpdsl: Run, sampled: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: RunFolder
) -> None:
    real, output = os.fsync, tmp_path / "out.jsonl"
    add = RunFile.add

    def full(run: RunFile, row: RowRecord) -> None:
        if rows_of_last(runs):
            pages = run._database.execute("PRAGMA page_count").fetchone()[0]
            run._database.execute(f"PRAGMA max_page_count = {pages}")
            row = replace(row, asked="x" * 100_000)
        add(run, row)

    args = ("run", sampled, "--input", problems, "--output", output, "--concurrency", 2)
    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "add", full)
        ran = qpdsl(*args)
    (run,) = runs.ids()
    assert ran.code == Exit.USAGE
    assert ran.err.splitlines() == [
        f"error: cannot write `{runs.file(run)}`: database or disk is full",
        f"help: 1 of 10 rows are saved in run `{run}`; the same command with `--resume` goes on from there",
    ]

    def full_at_the_end(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".part"):
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr("qpdsl.output.os.fsync", full_at_the_end)
        ran = qpdsl(*args, "--resume")
    assert ran.code == Exit.USAGE and not output.exists()
    assert f"help: 10 of 10 rows are saved in run `{run}`" in ran.err
    assert qpdsl(*args, "--resume").code == Exit.OK
    assert output.read_text() == qpdsl("run", sampled, "--input", problems).out


def test_a_run_is_gone_on_with_by_the_same_plan(qpdsl: Run, sampled: Path, problems: Path, unfinished: Path) -> None:
    ran = qpdsl("run", sampled, "--input", problems, "--output", unfinished, "--resume", "--plan", "naive")
    assert ran.code != Exit.OK and "the plan (was optimized, is naive)" in ran.err


def test_exact_plans_give_the_same_tokens_in_bfloat16(qpdsl: Run) -> None:
    """Where the processor multiplies pairs of bfloat16, inputs of products are rounded: in any batch alike."""
    asked = ("run", "best_of_n", "--input", "counting-500", "--limit", "3", "--set", "n=4", "--no-greedy", "--rows")
    plans = (), ("--plan", "naive"), ("--disable-rule", "share_prefixes", "--max-sequences", "3")
    rows = []
    for plan in plans:
        ran = qpdsl(*asked, *plan, "--dtype", "bfloat16", "--output", "-")
        assert ran.code == Exit.OK, ran.err
        rows.append(
            [
                {key: value for key, value in json.loads(line).items() if key != "tokens_in"}
                for line in ran.out.splitlines()
            ]
        )
    assert rows[0] == rows[1] == rows[2]
