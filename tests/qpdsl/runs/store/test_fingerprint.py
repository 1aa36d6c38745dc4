"""What a run is resumed by: the build that computes, and every file of the models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qpdsl import __version__
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.planner.plan.naive import plan
from qpdsl.runs.job import Job
from qpdsl.runs.store import fingerprint
from qpdsl.runs.store.fingerprint import build, model_digests, operators, run_fingerprint, source_digest
from qpdsl.session.prepare import bind_program, prepare
from qpdsl.session.session import Session
from qpdsl.session.setting import declared
from qpdsl.session.settings import SessionSettings, Settings
from tests.support.executor.gguf_files import family_model, write_gguf
from tests.support.executor.model_files import weights, write_model
from tests.support.paths import ROOT
from tests.support.planner.lowered import lowered

GREEDY = Settings(target="greedy")


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
    assert {"grammar/qp.lark", "qpdsl/session/session.py", "qpdsl/runs/job.py"} <= names


def test_where_sources_lie_makes_no_other_build(tmp_path: Path) -> None:
    """A checkout has folders beside the package that an installed one has within."""
    digests = set()
    for places in (("a", "b/c"), ("b", "a/c")):
        folder = tmp_path / places[0]
        for place, name, text in (*((places[0], f"{n}.py", n) for n in "xz"), (places[1], "y.py", "y")):
            (folder / place).mkdir(parents=True, exist_ok=True)
            (folder / place / name).write_text(text)
        digests.add(source_digest(folder.rglob("*")))
    assert len(digests) == 1


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


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"device": "cuda"}, "device"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"kv_type": "int8"}, "kv type"),
        ({"deterministic": True}, "deterministic"),
    ],
)
def test_a_setting_that_tokens_depend_on_counts(setting: dict[str, Any], part: str) -> None:
    job = Job(prepare(bind_program(GREEDY), GREEDY).plan, None, 0)
    before, after = run_fingerprint(job, {}), run_fingerprint(job, {}, SessionSettings(**setting))
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == {part}


def test_bfloat16_counts_with_the_kind_of_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    job, parts = Job(prepare(bind_program(GREEDY), GREEDY).plan, None, 0), []
    for pairs in (False, True):
        monkeypatch.setattr("qpdsl.executor.kernels.llvm.compile.multiplies_pairs", lambda pairs=pairs: pairs)
        parts.append(run_fingerprint(job, {}, SessionSettings(dtype="bfloat16"))["dtype"])
    assert parts[0] != parts[1]


def test_other_settings_do_not_count() -> None:
    job = Job(prepare(bind_program(GREEDY), GREEDY).plan, None, 0)
    others = SessionSettings(threads=1, kv_bytes="64MiB", server_timeout=3, allow_code=True, router="lin_ucb", shadow=1)
    assert run_fingerprint(job, {}) == run_fingerprint(job, {}, others)


def test_every_setting_that_tokens_depend_on_is_a_part() -> None:
    parts = {known.fingerprint for _, known, _ in declared(SessionSettings) if known.fingerprint is not None}
    assert parts == {"device", "dtype", "kv type", "deterministic", "router"}


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


def test_how_a_program_is_laid_out_does_not_count() -> None:
    """Every stage of it: a run goes on where only spaces and comments of its program have changed."""
    text = (
        'chat user=problem | generate llm n=4 stop="\\n" | score prm reduce=last | extract a = /(\\d+)/ | best by score'
    )
    spread = text.replace(" | ", "\n    |  ").replace("score prm", "score   prm")
    one, other = (plan(lowered(written)).ops for written in (text, spread))
    assert operators(one) == operators(other) != operators(one[:-1])


def test_models_of_this_machine_are_digested_unloaded(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, "llama", family_model("llama"))

    def never() -> Session:
        raise AssertionError("it is loaded")

    folder = write_model(tmp_path / "m")
    digests = model_digests({"llm": str(file), "slm": str(folder)}, never)
    assert digests["llm"] != digests["slm"] and digests["llm"] == location_digest(file)
