"""The promise that no command overwrites a file of the user's that it was not asked to replace.

`PARAMETERS` says of every parameter of every command whether it names a file, and what becomes of that file. A new
parameter has to be added there, and is then tried together with all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import click
import pytest
import torch

from qpdsl import zoo
from qpdsl.cli.app import cli
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard
from qpdsl.cli.runs.run_files import COMPLETIONS, RESULTS, TRACE
from qpdsl.cli.runs.run_tables import begins_export, exported
from qpdsl.cli.shared_options import FileName
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.remote.completion_store import CompletionStore
from qpdsl.runs.record_file import text_lines
from qpdsl.runs.store.run_file import SUFFIX, RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.tui.report.chrome import begins_chrome_trace, chrome_trace
from qpdsl.tui.report.page import begins_page, page
from tests.support import saved_runs
from tests.support.cli import Run
from tests.support.executor.adapters import RANK, write_adapter
from tests.support.tui.traces import BEAM, recorded
from tests.support.user_cache import own_cache

READS, READS_FOLDER, WRITES, REWRITES, NO_FILE = "reads", "reads a folder", "writes", "rewrites", "no file"
# A file is named within its value.
READS_TEXTS, READS_CODE = "reads texts", "reads code"
PARAMETERS = {
    "run": {
        "target": READS, "text": NO_FILE, "input": READS, "python": READS, "allow_read": READS_FOLDER,
        "models": READS_FOLDER, "adapters": READS_FOLDER, "output": WRITES, "trace": WRITES, "pipeline": NO_FILE,
        "program": NO_FILE, "kv_shares": NO_FILE, "urgent": NO_FILE,
        "assigned": NO_FILE, "disabled": NO_FILE, "kv_bytes": NO_FILE, "device": NO_FILE, "drafts": READS_TEXTS,
        "exit_heads": READS_FOLDER, "prices": READS, "completions": WRITES,
        "maps": NO_FILE, "id": NO_FILE, "split": NO_FILE, "where": NO_FILE, "spread": NO_FILE,
        "grader": NO_FILE, "by": NO_FILE, "cluster": NO_FILE, "budget": NO_FILE,
        "policy": NO_FILE, "answer": NO_FILE, "tools": READS_CODE,
        "otel": NO_FILE,
    },
    "explain": {
        "target": READS, "text": NO_FILE, "input": READS, "python": READS, "against": READS, "allow_read": READS_FOLDER,
        "models": READS_FOLDER, "adapters": READS_FOLDER, "pipeline": NO_FILE, "program": NO_FILE,
        "assigned": NO_FILE, "disabled": NO_FILE, "device": NO_FILE, "kv_shares": NO_FILE, "drafts": READS_TEXTS,
        "exit_heads": READS_FOLDER, "budget": NO_FILE,
        "policy": NO_FILE, "maps": NO_FILE, "id": NO_FILE, "split": NO_FILE,
        "where": NO_FILE, "spread": NO_FILE, "answer": NO_FILE, "tools": READS_CODE,
    },
    "eval": {
        "targets": READS, "input": READS, "python": READS, "allow_read": READS_FOLDER, "models": READS_FOLDER,
        "adapters": READS_FOLDER, "output": WRITES, "plot": WRITES, "trace": WRITES, "program": NO_FILE,
        "assigned": NO_FILE, "disabled": NO_FILE, "kv_bytes": NO_FILE, "kv_shares": NO_FILE, "device": NO_FILE,
        "drafts": READS_TEXTS,
        "exit_heads": READS_FOLDER, "prices": READS, "completions": WRITES, "baseline": NO_FILE,
        "maps": NO_FILE, "id": NO_FILE, "split": NO_FILE, "where": NO_FILE, "spread": NO_FILE,
        "grader": NO_FILE, "by": NO_FILE, "cluster": NO_FILE, "budget": NO_FILE, "answer": NO_FILE, "tools": READS_CODE,
        "log": NO_FILE, "otel": NO_FILE,
    },
    "optimize": {
        "target": READS, "input": READS, "python": READS, "allow_read": READS_FOLDER, "models": READS_FOLDER,
        "adapters": READS_FOLDER, "output": WRITES, "program": NO_FILE, "assigned": NO_FILE, "disabled": NO_FILE,
        "device": NO_FILE, "drafts": READS_TEXTS, "exit_heads": READS_FOLDER, "prices": READS, "completions": WRITES,
        "maps": NO_FILE, "id": NO_FILE, "split": NO_FILE, "where": NO_FILE, "spread": NO_FILE, "grader": NO_FILE,
        "by": NO_FILE, "answer": NO_FILE, "reflect": NO_FILE, "tools": READS_CODE,
    },
    "train": {"run": READS, "output": WRITES, "name": NO_FILE},
    "check": {
        "models": READS_FOLDER, "targets": READS, "python": READS, "allow_read": READS_FOLDER, "tools": READS_CODE,
    },
    "lsp": {"python": READS, "allow_read": READS_FOLDER, "tools": READS_CODE},
    "models": {"model": READS_FOLDER, "probe": NO_FILE},
    # Keys and completions are added to files that hold such already, and to no others.
    "serve": {
        "targets": READS, "python": READS, "allow_read": READS_FOLDER, "models": READS_FOLDER, "adapters": READS_FOLDER,
        "exit_heads": READS_FOLDER, "drafts": READS_TEXTS, "keys": REWRITES, "completions": REWRITES, "prices": READS,
        "tls_cert": READS, "tls_key": READS, "new_key": NO_FILE, "access_log": REWRITES, "trace": WRITES,
        "allow_host": NO_FILE, "assigned": NO_FILE,
        "defaults": NO_FILE, "expose": READS_FOLDER, "ignore": NO_FILE, "host": NO_FILE, "device": NO_FILE,
        "kv_bytes": NO_FILE, "kv_shares": NO_FILE, "disabled": NO_FILE, "answer": NO_FILE, "tools": READS_CODE,
        "cluster": NO_FILE, "otel": NO_FILE,
    },
    "fmt": {"targets": REWRITES},
    "report": {"runs": READS, "output": WRITES, "ids": NO_FILE},
    "whatif": {
        "run": NO_FILE, "targets": READS, "models": READS_FOLDER, "output": WRITES, "assigned": NO_FILE,
        "grader": NO_FILE, "by": NO_FILE, "budget": NO_FILE, "program": NO_FILE,
    },
    "verify": {"run": NO_FILE, "data": READS, "models": READS_FOLDER, "device": NO_FILE, "dtype": NO_FILE},
    "diff": {"first": NO_FILE, "second": NO_FILE, "field": NO_FILE},
    "replay": {"trace": READS, "ids": NO_FILE},
    "runs list": {"program": NO_FILE},
    "runs show": {"run": READS},
    "runs export": {"run": READS, "output": WRITES},
    "runs rm": {"runs": NO_FILE, "older_than": NO_FILE},
    "profile": {
        "measured": READS_FOLDER, "roofline": READS_FOLDER, "surface": READS, "device": NO_FILE, "hardware": NO_FILE,
        "contexts": NO_FILE, "batches": NO_FILE, "weights": NO_FILE, "kv_bytes": NO_FILE, "python": READS,
        "allow_read": READS_FOLDER, "models": READS_FOLDER, "adapters": READS_FOLDER, "program": NO_FILE,
        "assigned": NO_FILE, "disabled": NO_FILE, "drafts": READS_TEXTS, "exit_heads": READS_FOLDER, "answer": NO_FILE,
        "tools": READS_CODE,
    },
    "calibrate": {
        "model": READS_FOLDER, "text": READS, "output": WRITES, "field": NO_FILE, "layers": NO_FILE, "device": NO_FILE,
    },
    "analyze": {"name": NO_FILE},
    "explain-error": {"code": NO_FILE},
    "programs": {"name": NO_FILE},
    "init": {"model": NO_FILE},
    "cache": {"parts": NO_FILE},
}  # fmt: skip
# What these write is tried where they run: tests/qpdsl/cli/test_whatif.py, tests/qpdsl/runs/test_optimizing.py.
ELSEWHERE = ("whatif", "optimize")

PROGRAM = """\
use "part.qp"
schema Box from "box.schema.json"
model llm = "zoo/counting-mini"
program p(problem: text, n: int = 1) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=4 as /[a-z ]{2,9}/
  score shorter
  return text
}
"""
SCORER = """\
import qpdsl

@qpdsl.scorer
def shorter(text: str) -> float:
    return -float(len(text))
"""
RECORD = {"id": "1", "answer": "3", "score": None, "tokens_in": 1, "tokens_out": 2}
PAGE = Contents("a report of qpdsl", begins_page)
CHROME = Contents("a run for a trace viewer", begins_chrome_trace)
KINDS = {
    "results": RESULTS,
    "trace": TRACE,
    "page": PAGE,
    "chrome": CHROME,
    "completions": COMPLETIONS,
    "exported": Contents("an exported run", begins_export),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: RunFolder) -> Path:
    """The working folder: a file of each kind that a command reads or has written."""
    folder = tmp_path / "work"
    folder.mkdir()
    texts = {
        "p.qp": PROGRAM,
        "part.qp": 'model other = "zoo/counting-mini"\n',
        "box.schema.json": '{"type": "object", "properties": {"size": {"type": "integer"}}}',
        "scorers.py": SCORER,
        "in.jsonl": '{"problem": "Mia has 3 boxes."}\n',
        "results.jsonl": json.dumps(RECORD) + "\n",
        "trace.jsonl": BEAM.read_text("utf-8"),
        "page.html": page(recorded(), [], "t") + "\n",
        "chrome.json": "\n".join(chrome_trace(recorded())) + "\n",
        "notes.txt": "a line\nanother\n",
        "cert.pem": "a certificate\n",
        "key.pem": "a key\n",
        "prices.json": '{"name": {"input": 1, "output": 2}}',
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    CompletionStore(folder / "completions.sqlite").close()
    saved_runs.recorded(runs, 2)
    shutil.copyfile(runs.find("last"), folder / f"kept{SUFFIX}")
    (folder / "exported.csv").write_text(
        "\n".join(text_lines(exported(RunFile.reading(runs.find("last")), "csv"), "csv"))
    )
    shutil.copytree(zoo.path("zoo/counting-mini"), folder / "model")
    layer = "model.layers.0.self_attn.q_proj"
    height, width = ModelFolder.of("m", folder / "model").shapes[f"{layer}.weight"]
    matrices = {f"{layer}.lora_A.weight": torch.ones(RANK, width), f"{layer}.lora_B.weight": torch.zeros(height, RANK)}
    write_adapter(folder / "adapter", matrices, target_modules=[layer])
    (folder / "exits").mkdir()
    (tmp_path / "linked").symlink_to(folder)
    monkeypatch.chdir(folder)
    own_cache(tmp_path / "cache", monkeypatch)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def aliases(path: Path, folder: Path) -> Iterator[str]:
    """Names of one file: as it is, by another way, through a link to its folder, by a link to it, by a second name."""
    yield str(path)
    yield f"./{os.path.relpath(path)}"
    if path.is_relative_to(folder):
        yield str(folder.parent / "linked" / path.relative_to(folder))
    if path.exists():
        link, name = folder.parent / "link", folder.parent / "name"
        for made in (link, name):
            made.unlink(missing_ok=True)
        link.symlink_to(path)
        name.hardlink_to(path)
        yield str(link)
        yield str(name)


def usual(command: str) -> dict[str, str]:
    """A value for every parameter of a command that names a file."""
    if command == "report":
        return {"runs": "trace.jsonl", "output": "new.html"}
    if command == "calibrate":
        return {"model": "model", "text": "notes.txt", "output": "heads"}
    if command == "train":
        return {"run": f"kept{SUFFIX}", "output": "new-adapter"}
    if command == "runs export":
        return {"run": f"kept{SUFFIX}", "output": "new.jsonl"}
    return {
        "target": "p.qp", "input": "in.jsonl", "python": "scorers.py", "allow_read": ".", "models": "llm=model",
        "adapters": "llm=adapter", "output": "new.jsonl", "trace": "new-trace.jsonl", "drafts": "ngram(notes.txt)",
        "exit_heads": "exits", "router": "lin_ucb", "prices": "prices.json",
        "completions": "new.sqlite", "targets": "p.qp", "plot": "new.svg", "reflect": "zoo/counting-mini",
        "tls_cert": "cert.pem", "tls_key": "key.pem",
    }  # fmt: skip


def commands(group: click.Group = cli, lead: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its name; those of a group have the group's name before theirs."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{lead}{name} ")
        else:
            yield f"{lead}{name}", command


def line(command: str, values: Mapping[str, str]) -> list[str]:
    """The command line that gives parameters these values."""
    words, params = command.split(), dict(commands())[command].params
    # Some write new files alone.
    words += ["--overwrite"] if any(param.name == "overwrite" for param in params) else []
    for param in params:
        if param.name in values:
            words += ([] if isinstance(param, click.Argument) else [param.opts[0]]) + [values[param.name]]
    return words


def test_every_parameter_has_its_place() -> None:
    closed = (click.Choice, click.types.BoolParamType, click.types.IntParamType, click.types.FloatParamType)
    found = {}
    for command, known in commands():
        taken = {param.name: param for param in known.params if not isinstance(param.type, closed)}
        if taken:
            found[command] = set(taken)
        for name, param in taken.items():
            if isinstance(param, click.Option) and PARAMETERS[command].get(name or "") in (READS, WRITES):
                assert isinstance(param.type, FileName) or name == "against", f"{command} {name}"
    assert found == {command: set(uses) for command, uses in PARAMETERS.items()}


def colliding(command: str, world: Path) -> Iterator[tuple[str, Path, str]]:
    """What a command writes, a file that it must not write there, and who has that file already."""
    uses, values = PARAMETERS[command], usual(command)
    for writer in (name for name, use in uses.items() if use == WRITES):
        for name, use in uses.items():
            if use in (READS, WRITES) and name != writer:
                yield writer, world / values[name], name
        if command == "run":
            yield writer, world / "part.qp", "a used program"
            yield writer, world / "box.schema.json", "a schema"
            yield writer, world / "notes.txt", "texts to draft from"
            yield writer, world / "exits" / "new.jsonl", "the folder of exit heads"
        if command in ("run", "eval", "runs export"):
            yield writer, RunFolder().path / "new.jsonl", "the folder of the saved runs"
        if command == "calibrate":
            yield writer, world / "model" / "heads", "the folder of the model"
            yield writer, zoo.path("zoo/counting") / "heads", "the folder of a built-in model"
            yield writer, world.parent / "cache" / "qpdsl" / "heads", "where statistics are kept"
        if "models" in uses:
            yield writer, world / "model" / "new.jsonl", "the folder of a model"
            yield writer, world / "model" / "config.json", "a file of a model"
            yield writer, world / "adapter" / "new.jsonl", "the folder of an adapter"
            yield writer, world / "adapter" / "adapter_model.safetensors", "a file of an adapter"
            yield writer, zoo.path("zoo/counting") / "new.jsonl", "the folder of a built-in model"
            yield writer, world.parent / "cache" / "qpdsl" / "statistics.json", "the statistics"


@pytest.mark.parametrize(
    "command", [name for name, uses in PARAMETERS.items() if WRITES in uses.values() and name not in ELSEWHERE]
)
def test_no_file_is_read_and_written_or_written_twice(qpdsl: Run, world: Path, command: str) -> None:
    before, kept = contents(world), contents(zoo.path("zoo/counting"))
    tried = 0
    for writer, path, owner in colliding(command, world):
        for name in aliases(path, world):
            ran = qpdsl(*line(command, {**usual(command), writer: name}))
            assert (ran.code, ran.out) == (Exit.USAGE, ""), (writer, owner, name, ran)
            assert "internal" not in ran.err and Path(name).name in ran.err
            assert contents(world) == before, (writer, owner, name)
            tried += 1
    assert tried > 3 and contents(zoo.path("zoo/counting")) == kept


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_replaced_by_its_own_kind_and_on_request_only(world: Path, kind: str, overwrite: bool) -> None:
    (world / "empty").write_text("")
    for path in sorted(path for path in world.iterdir() if path.is_file()):
        ours = path.name.startswith(kind)
        guard = FileGuard()
        if path.name == "empty" or (ours and overwrite):
            assert guard.writes(path, "the option", KINDS[kind], overwrite=overwrite).path == path
            continue
        with pytest.raises(UsageError) as caught:
            guard.writes(path, "the option", KINDS[kind], overwrite=overwrite)
        assert f"`{path}`" in caught.value.message
        assert ("`--overwrite` replaces" in (caught.value.help or "")) is ours
    assert contents(world)["notes.txt"] == b"a line\nanother\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nor_the_file_that_a_stream_goes_to(world: Path, stream: str) -> None:
    redirect = contextlib.redirect_stdout if stream == "stdout" else contextlib.redirect_stderr
    with (world / "in.jsonl").open("a") as file, redirect(file):
        guard = FileGuard()
        with pytest.raises(UsageError, match=f"is the input data, but also the file that {stream} goes to"):
            guard.reads(world / "in.jsonl", "the input data")
        with pytest.raises(UsageError, match=f"is the file that {stream} goes to"):
            guard.writes(world / "in.jsonl", "`--trace`", TRACE, overwrite=True)


def test_a_run_that_does_not_start_changes_no_file(qpdsl: Run, world: Path) -> None:
    values = {**usual("run"), "output": "results.jsonl", "trace": "trace.jsonl"}
    before = contents(world)
    for fault, more, code in (
        ({}, ["--kv-memory", "1KiB"], Exit.MODEL),
        ({}, ["--set", "n=0"], Exit.USAGE),
        ({"input": "notes.txt"}, [], Exit.DATA),
        ({"models": "llm=no/folder/here"}, [], Exit.MODEL),
    ):
        ran = qpdsl(*line("run", {**values, **fault}), *more)
        assert ran.code == code, ran
        assert contents(world) == before, fault


def test_a_trace_that_came_meanwhile_is_left(world: Path) -> None:
    target = FileGuard().writes(world / "new.jsonl", "`--trace`", TRACE, overwrite=False)
    (world / "new.jsonl").write_text("notes")
    with pytest.raises(UsageError, match="does not hold the trace of a run"):
        target.open()
    with pytest.raises(UsageError, match="does not hold the trace of a run"):
        target.write(["x"])
    assert (world / "new.jsonl").read_text() == "notes"
    (world / "new.jsonl").unlink()
    os.mkfifo(world / "new.jsonl")
    with pytest.raises(UsageError, match="not a regular file"):
        target.open()


def test_two_runs_do_not_write_one_trace(world: Path) -> None:
    target = FileGuard().writes(world / "new.jsonl", "`--trace`", TRACE, overwrite=True)
    file: BinaryIO = target.open()
    with pytest.raises(UsageError, match="another run is writing"):
        target.open()
    file.close()
    target.open().close()


@pytest.mark.parametrize("command", ["run", "report"])
def test_no_name_and_a_dash_name_no_file(qpdsl: Run, world: Path, command: str) -> None:
    before = contents(world)
    for param, use in PARAMETERS[command].items():
        if use == WRITES:
            for name, message in (("", "it takes a name, not an empty text"), ("-", "`-` is no file here")):
                if (command, param, name) == ("run", "output", "-"):
                    # What is printed without it.
                    continue
                ran = qpdsl(*line(command, {**usual(command), param: name}))
                option = f"`--{param.replace('_', '-')}`"
                assert ran.code == Exit.USAGE and message in ran.err and option in ran.err
    assert contents(world) == before


def test_other_commands_change_no_file(qpdsl: Run, world: Path) -> None:
    before = contents(world)
    for words in (
        ["check", "p.qp", "--python", "scorers.py"],
        ["explain", "p.qp", "--python", "scorers.py", "--against", "naive"],
        ["fmt", "--check", "p.qp"],
        ["fmt", "--diff", "p.qp"],
        ["fmt", "notes.txt"],
        ["replay", "trace.jsonl"],
        ["analyze"],
        ["runs"],
        ["runs", "show", f"kept{SUFFIX}", "--rows"],
        ["runs", "export", f"kept{SUFFIX}"],
    ):
        qpdsl(*words)
        assert contents(world) == before, words
