"""What a run is resumed by: the build that computes, and every file of the models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qpdsl import __version__
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.model_digest import location_digest
from qpdsl.run_store import fingerprint
from qpdsl.run_store.fingerprint import build, source_digest
from tests.support.executor.model_files import weights, write_model
from tests.support.paths import ROOT


def test_the_build_is_named_with_the_libraries() -> None:
    assert re.fullmatch(
        re.escape(__version__) + r" build [0-9a-f]{12}, torch \S+, transformers \S+, tokenizers \S+, llguidance \S+",
        build(),
    )


def test_every_source_that_decides_results_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[Path] = []
    monkeypatch.setattr(fingerprint, "source_digest", lambda paths: digested.extend(paths) or "")
    build.__wrapped__()
    names = {path.relative_to(ROOT).as_posix() for path in digested}
    for folder in ("grammar", "planner", "executor"):
        assert {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")} <= names
    assert {"grammar/qp.lark", "qpdsl/session.py", "qpdsl/dataset/job.py"} <= names


def test_a_source_that_changes_makes_another_build(tmp_path: Path) -> None:
    digests = set()
    for files in ({"a.py": "1"}, {"a.py": "2"}, {"b.py": "1"}, {"a.py": "1", "b.py": ""}, {"a.py": "1", "b.lark": ""}):
        folder = tmp_path / str(len(digests))
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        digests.add(source_digest(folder.iterdir()))
        (folder / "note.txt").write_text("does not count")
        assert source_digest(folder.iterdir()) in digests
    assert len(digests) == 5


def test_weights_below_the_folder_cannot_hide(tmp_path: Path) -> None:
    """What is not in the digest is not read either: the folder is refused."""
    folder = write_model(tmp_path / "m", single=False)
    before = location_digest(folder)
    (folder / "two.safetensors").write_bytes(weights("b", fill=1))
    assert location_digest(folder) != before
    (folder / "sub").mkdir()
    (folder / "two.safetensors").rename(folder / "sub" / "two.safetensors")
    with pytest.raises(ModelError, match=r"names `two\.safetensors`, and there is no such file"):
        location_digest(folder)
