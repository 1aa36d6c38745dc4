"""Training starts: the command's help, and a stage that needs what earlier ones leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from family.train import main
from family.training_stages import STAGES


def test_the_command_names_its_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    printed = capsys.readouterr().out
    assert [stage for stage in STAGES if stage not in printed] == []


def test_a_stage_needs_what_the_stages_before_it_leave(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run the stages before this one"):
        main(["--out", str(tmp_path), "--only", "samples"])
