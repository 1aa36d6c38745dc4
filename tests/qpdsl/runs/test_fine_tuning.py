"""An adapter from a run: it learns what was drawn, and is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run

pytest.importorskip("peft", reason="needs peft: pip install 'qpdsl[train]'")


def test_an_adapter_learns_the_answers_and_is_loaded(qpdsl: Run, tmp_path: Path) -> None:
    how = ("--input", "counting-500", "--limit", "4", "--no-greedy")
    assert qpdsl("run", "self_consistency", "--set", "n=4", *how, "--save-trajectories").code == Exit.OK
    adapter = tmp_path / "adapter"
    ran = qpdsl("train", "last", "--output", adapter, "--epochs", "2", "--rank", "2", "--rate", "0.02")
    assert ran.code == Exit.OK, ran.err
    first, second = (float(line.split("loss ")[1]) for line in ran.err.splitlines() if "loss" in line)
    assert second < first
    assert sorted(file.name for file in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert str(tmp_path) not in (adapter / "adapter_config.json").read_text()
    assert "`--overwrite` replaces it" in qpdsl("train", "last", "--output", adapter).err
    answered = qpdsl("run", "greedy", "--adapter", f"llm={adapter}", *how, "--output", tmp_path / "o.jsonl")
    assert answered.code == Exit.OK, answered.err


def test_what_cannot_be_trained_is_refused(qpdsl: Run, tmp_path: Path, sampled: Path, problems: Path) -> None:
    assert qpdsl("run", sampled, "--input", problems, "--no-greedy").code == Exit.OK
    refused = qpdsl("train", "last", "--output", tmp_path / "a")
    assert refused.code == Exit.USAGE and "--save-trajectories" in refused.err
