"""`qpdsl calibrate`: a folder with exit heads, whole or not at all, and what it says."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from family.tasks.counting import problems
from qpdsl.cli.exits import Exit
from qpdsl.exit_heads.exit_record import RECORD, WEIGHTS, ExitRecord
from tests.support.cli import Run, write_rows

MODEL = "zoo/counting-mini"
QUICK = ("--tokens", 1500, "--seconds", 0.5)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    texts = [problem.text for problem in islice(problems(seed=3, split="held-out"), 150)]
    return write_rows(tmp_path / "rows.jsonl", [{"problem": text, "n": 1} for text in texts])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "problems.txt"
    path.write_text("\n".join(problem.text for problem in islice(problems(seed=3, split="held-out"), 150)))
    return path


def test_heads_are_written_with_their_curve(qpdsl: Run, text: Path, rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "heads"
    ran = qpdsl("calibrate", MODEL, "--text", text, "--output", folder, "--layers", "1", *QUICK)
    assert ran.code == Exit.OK, ran
    assert "fitting layer 1" in ran.err and f"{folder}" in ran.err
    assert "layer  KL before" in ran.out and MODEL in ran.out
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, WEIGHTS]
    record = ExitRecord.read(MODEL, folder)
    assert [head.layer for head in record.heads] == [1] and len(record.heads[0].curve) > 5
    again = ("calibrate", MODEL, "--text", rows, "--field", "problem", "--output", folder, "--format", "json", *QUICK)
    ran = qpdsl(*again)
    assert ran.code == Exit.USAGE and "`--overwrite` replaces it" in ran.err
    ran = qpdsl(*again, "--overwrite", "--seed", 5)
    assert ran.code == Exit.OK and json.loads(ran.out)["seed"] == 5
    assert ExitRecord.read(MODEL, folder).seed == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heads", "problems.txt", "rows.jsonl"]


@pytest.mark.parametrize("how", ["fails", "is interrupted"])
def test_nothing_half_written_stays(
    qpdsl: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    from qpdsl.exit_heads import exit_head, head_fitting

    monkeypatch.setattr(head_fitting, "fit_heads", lambda *args, **named: ("record", []))

    def save(folder: Path, record: object, heads: object) -> None:
        (folder / WEIGHTS).write_text("half")
        raise KeyboardInterrupt if how == "is interrupted" else OSError(28, "No space left on device")

    monkeypatch.setattr(exit_head, "save_heads", save)
    before = sorted(tmp_path.iterdir())
    ran = qpdsl("calibrate", MODEL, "--text", text, "--output", tmp_path / "heads")
    assert ran.code == (Exit.INTERRUPTED if how == "is interrupted" else Exit.USAGE), ran
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((MODEL, "--output", "heads"), Exit.USAGE, "missing option `--text`"),
        ((MODEL, "--text", "none.txt", "--output", "heads"), Exit.DATA, "cannot read the text `none.txt`"),
        ((MODEL, "--text", "rows.jsonl", "--output", "heads"), Exit.DATA, "`--field NAME` says"),
        ((MODEL, "--text", "rows.jsonl", "--field", "text", "--output", "heads"), Exit.DATA, "it has: problem, n"),
        ((MODEL, "--text", "rows.jsonl", "--field", "n", "--output", "heads"), Exit.DATA, "the field `n` is no"),
        ((MODEL, "--text", "problems.txt", "--field", "n", "--output", "heads"), Exit.DATA, "this is no JSON"),
        ((MODEL, "--text", "bytes.txt", "--output", "heads"), Exit.DATA, "no text in UTF-8"),
        ((MODEL, "--text", "short.txt", "--output", "heads"), Exit.DATA, "160 are the least"),
        ((MODEL, "--text", "problems.txt", "--output", "problems.txt"), Exit.USAGE, "it is a file"),
        ((MODEL, "--text", "problems.txt", "--output", "."), Exit.USAGE, "holds other files, such as"),
        ((MODEL, "--text", "problems.txt", "--output", "none/heads"), Exit.USAGE, "does not exist"),
        ((MODEL, "--text", "problems.txt", "--output", ""), Exit.USAGE, "not an empty text"),
        ((MODEL, "--text", "problems.txt", "--output", "heads", "--layers", "1,x"), Exit.USAGE, "no list of numbers"),
        ((MODEL, "--text", "problems.txt", "--output", "heads", "--layers", "0"), Exit.USAGE, "no exit after 0 layers"),
        (("zoo/none", "--text", "problems.txt", "--output", "heads"), Exit.MODEL, "zoo/none"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(
    qpdsl: Run,
    text: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    code: Exit,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "short.txt").write_text("Mia has 3 boxes.")
    before = sorted(tmp_path.iterdir())
    ran = qpdsl("calibrate", *args)
    assert ran.code == code and message in ran.err, ran
    assert sorted(tmp_path.iterdir()) == before
