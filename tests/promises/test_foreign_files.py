"""A file of a stranger has an end: whatever is in it, it is read or refused, in bounded time and memory, by name."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qpdsl import zoo
from qpdsl.cli.exits import Exit
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader
from qpdsl.executor.checkpoint.model_folder import TEXTS, ModelFolder
from qpdsl.executor.checkpoint.safe_files import tensor_shapes
from qpdsl.executor.models.load import load, load_tokens
from qpdsl.executor.text import chat_template
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import template_strips
from qpdsl.executor.text.thinking import find_thinking
from qpdsl.runs.store.run_file import RunFile, RunFileError
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord
from tests.support.cli import Run
from tests.support.executor.gguf_files import family_model, floats, gguf_bytes, write_gguf
from tests.support.executor.model_files import weights, write_model
from tests.support.saved_runs import outcome, record
from tests.support.tui.traces import BEAM

# What stands in the place of a number, a word or a list in JSON.
ODD = ["1e999", "-1e999", "NaN", "Infinity", "-1", "1" * 400, "1.5", "null", "true", '""', "[]", "{}", "[" * 5000]
_VALUE = re.compile(rb'(?<=:)\s*(-?[0-9][0-9.e+-]*|"[^"]*"|\[[^\[\]]*\])')


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The data with bytes or values changed, cut off, or twice in part."""
    for _ in range(chance.randint(1, 3)):
        at, values = chance.randrange(len(data) or 1), list(_VALUE.finditer(data))
        match chance.randrange(5):
            case 0 | 1 if values:
                found = chance.choice(values)
                data = data[: found.start()] + chance.choice(ODD).encode() + data[found.end() :]
            case 2:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 3:
                data = data[:at]
            case _:
                data = data[:at] + data[chance.randrange(len(data) or 1) :]
    return data


def test_headers_of_safetensors(tmp_path: Path) -> None:
    chance, file = random.Random(1), tmp_path / "m.safetensors"
    whole = weights("a", "b")
    size = int.from_bytes(whole[:8], "little")
    refused = 0
    for number in range(200):
        header = mutated(whole[8 : 8 + size], chance)
        length = len(header) if number % 8 else chance.choice([0, 1, 2**31, 2**63])
        file.write_bytes(length.to_bytes(8, "little") + header + whole[8 + size :])
        try:
            tensor_shapes(file)
        except CheckpointError:
            refused += 1
    assert refused > 150


@pytest.mark.parametrize("field", ["shape", "data_offsets"])
@pytest.mark.parametrize("value", ["[1e999]", "[0, 1e999]", "[NaN]", "[-1, Infinity]", '{"a": 1}', "[[1]]"])
def test_a_header_with_an_odd_number_is_refused_by_name(qpdsl: Run, field: str, value: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(zoo.path("zoo/counting-mini"), folder)
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = re.sub(rf'"{field}":\s*\[[^\]]*\]', f'"{field}":{value}', data[8 : 8 + size].decode(), count=1).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    ran = qpdsl("run", "greedy", "--set", "problem=x", "--model", f"llm={folder}")
    assert ran.code == Exit.MODEL
    assert "model.safetensors" in ran.err


def test_headers_of_gguf_files(tmp_path: Path) -> None:
    chance, file = random.Random(2), tmp_path / "m.gguf"
    metadata = {"general.architecture": "llama", "general.name": "é", "a.list": ["x", "yy"], "a.real": 0.5}
    whole = gguf_bytes(metadata, {"a": floats([1.0, 2.0]), "b": (8, (2, 32), bytes(68))})
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            size = chance.choice([1, 4, 8])
            data[at : at + size] = chance.choice([b"\xff" * size, b"\0" * size, chance.randbytes(size)])
        file.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        with contextlib.suppress(CheckpointError):
            GGUFHeader.of(file)


# What stands in the place of a setting of a GGUF file.
ODD_SETTINGS = [0, 1, 2**32 - 1, -1.0, float("inf"), float("nan"), True, "", "é", "yarn", ["a", "é"], [1, 2], [0.5]]


def test_settings_of_gguf_files(tmp_path: Path) -> None:
    chance, file = random.Random(5), tmp_path / "m.gguf"
    write_gguf(file, "llama", family_model("llama"), more={"llama.rope.scaling.type": "none", "general.type": "model"})
    header = GGUFHeader.of(file)
    tensors = {name: (0, (1,), bytes(4)) for name in header.tensors} | {"token_embd.weight": (0, (8, 4), bytes(128))}
    refused = 0
    for name in header.metadata:
        for value in chance.sample(ODD_SETTINGS, 6):
            file.write_bytes(gguf_bytes({**header.metadata, name: value}, tensors))
            try:
                GGUFModel.of(file)
            except CheckpointError as error:
                assert "m.gguf" in str(error)
                refused += 1
    assert refused > 50


def test_more_layers_than_tensors_are_refused_before_they_are_made(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(zoo.path("zoo/counting-mini"), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3_000}), "utf-8")
    with pytest.raises(ModelError, match="too few for 3,000 layers"):
        load("m", folder, "cpu", None)


def test_traces(qpdsl: Run, tmp_path: Path) -> None:
    chance = random.Random(3)
    first, *lines = BEAM.read_bytes().splitlines()
    # Some of each kind of event.
    kinds: dict[str, list[bytes]] = {}
    for line in lines:
        kinds.setdefault(json.loads(line)["kind"], []).append(line)
    for number in range(24):
        some = [line for of_kind in kinds.values() for line in of_kind[:6]]
        for at in range(len(some)):
            if chance.random() < 0.3:
                some[at] = mutated(some[at], chance)
        trace = tmp_path / "trace.jsonl"
        trace.write_bytes(b"\n".join([first, *some]) + b"\n" * chance.randint(0, 1))
        form = ("html", "chrome")[number % 2]
        ran = qpdsl("report", trace, "--format", form, "--output", tmp_path / f"report.{form}", "--overwrite")
        assert ran.code in (Exit.OK, Exit.DATA), ran.err


@pytest.mark.parametrize("figure", ["sequences", "other"])
@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e999", "-1e999", "1" * 400])
def test_a_figure_that_is_no_number_makes_a_broken_line(figure: str, value: str, qpdsl: Run, tmp_path: Path) -> None:
    lines = BEAM.read_text("utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if '"EngineStepped"' in line)
    report = json.loads(lines[at])["report"]
    report[figure] = "VALUE"
    changed = json.dumps({**json.loads(lines[at]), "report": report}).replace('"VALUE"', value)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n", "utf-8")
    for form in ("html", "chrome"):
        ran = qpdsl("report", trace, "--format", form, "--output", tmp_path / f"report.{form}", "--overwrite")
        assert ran.code == Exit.OK, ran.err
        assert "1 broken line skipped" in ran.err


def test_a_line_without_an_end_is_skipped(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.executor.events.trace._LONGEST", 1 << 16)
    trace = tmp_path / "trace.jsonl"
    lines = BEAM.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[:3], b" " * 300_000 + b"\n", *lines[3:]]))
    ran = qpdsl("report", trace, "--output", tmp_path / "report.html")
    assert ran.code == Exit.OK
    assert "1 broken line skipped" in ran.err
    with trace.open("ab") as file:
        file.write(b" " * 300_000)
    assert "the last line is cut off" in qpdsl("report", trace, "--output", tmp_path / "other.html").err


@pytest.mark.parametrize("name", [*TEXTS, "model.safetensors.index.json"])
def test_a_text_of_a_model_that_is_too_long_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", single=name != "model.safetensors.index.json")
    (folder / name).touch()
    # It takes no room on the disk.
    os.truncate(folder / name, 8 << 30)
    begun = time.monotonic()
    with pytest.raises(ModelError, match=rf"{re.escape(name)}.*larger than (64|512) MiB"):
        ModelFolder.of("m", folder)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("normalizer", {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "."}, "content": "e" * 10}),
        ("decoder", {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}),
    ],
)
def test_a_tokenizer_that_multiplies_is_refused(part: str, step: dict[str, object], tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(zoo.path("zoo/counting-mini"), folder)
    data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    data[part] = {"type": "Sequence", f"{part}s": [step] * 9}
    (folder / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    with pytest.raises(ModelError, match=f"`{part}` that makes a text 1e\\+09 times longer|2e\\+09 times longer"):
        load_tokens("m", folder)


def test_a_template_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_RENDERING", 0.5)
    tokenizer = load_tokens("m", zoo.path("zoo/counting-mini")).tokenizer
    loop = "{% for a in range(99999) %}"
    tokenizer.chat_template = loop * 3 + "{% endfor %}" * 3
    begun = time.monotonic()
    with pytest.raises(ContextError, match=r"takes more than 0\.5 s"):
        template_strips(tokenizer)
    assert find_thinking(tokenizer) is None
    assert time.monotonic() - begun < 10


# What makes rows without an end of a file of three.
ENDLESS = "WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n) SELECT number, x'00', x'00' FROM n"
HOSTILE: dict[str, Callable[[sqlite3.Connection], object]] = {
    "a view": lambda file: file.executescript(f"DROP TABLE rows; CREATE VIEW rows (number, data, digest) AS {ENDLESS}"),
    "another view": lambda file: file.execute(f"CREATE VIEW other AS {ENDLESS}"),
    "a view of settings": lambda file: file.executescript(
        f"ALTER TABLE meta RENAME TO old; CREATE VIEW meta (name, value, digest) AS {ENDLESS}"
    ),
    "a trigger": lambda file: file.execute(
        "CREATE TRIGGER t AFTER INSERT ON rows BEGIN INSERT INTO events VALUES (0, '', ''); END"
    ),
    "a virtual table": lambda file: file.executescript("DROP TABLE events; CREATE VIRTUAL TABLE events USING fts5(at)"),
    "no rows": lambda file: file.execute("DROP TABLE rows"),
}


@pytest.fixture
def saved(runs: RunFolder) -> Iterator[Path]:
    with runs.create(record()) as run:
        run.add(*(RowRecord(number=number, key="k", outcome=outcome(number)) for number in range(3)))
        run.end("finished", {"rows": 3})
        path = run.path
    yield path


@pytest.mark.parametrize("change", HOSTILE)
def test_a_run_whose_tables_are_programs_is_refused(change: str, saved: Path, qpdsl: Run) -> None:
    with contextlib.closing(sqlite3.connect(saved)) as file, file:
        try:
            HOSTILE[change](file)
        except sqlite3.OperationalError as error:
            pytest.skip(f"this SQLite has no such tables: {error}")
    for read in (RunFile.reading, RunFile.writing):
        with pytest.raises(RunFileError, match="no saved run, or it is damaged"):
            read(saved)
    assert qpdsl("runs", "show", saved, "--rows").code == Exit.USAGE


def test_damaged_runs(saved: Path) -> None:
    chance = random.Random(4)
    with contextlib.closing(sqlite3.connect(saved)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = saved.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        saved.write_bytes(data)
        for beside in ("-wal", "-shm"):
            saved.with_name(saved.name + beside).unlink(missing_ok=True)
        with contextlib.suppress(RunFileError), RunFile.reading(saved) as run:
            assert len(list(run.rows())) <= 3


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET at = 1e308",
        "INSERT INTO events VALUES (0.0, 'measured', '{}')",
        """INSERT INTO events VALUES (0.0, 'measured', '{"operators": [{}]}')""",
        """INSERT INTO events VALUES (0.0, 'measured', '{"operators": [[]], "problems": null, "statistics": 3}')""",
    ],
)
def test_events_that_nobody_signed_are_read_or_refused(
    change: str, saved: Path, qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a report stands where it is asked for
    with contextlib.closing(sqlite3.connect(saved)) as file, file:
        file.execute(change)
    allowed = (Exit.OK, Exit.USAGE, Exit.DATA)
    for command in (("runs", "show", saved), ("report", saved), ("diff", saved, saved)):
        ran = qpdsl(*command)
        assert ran.code in allowed and "internal error" not in ran.err, ran.err
