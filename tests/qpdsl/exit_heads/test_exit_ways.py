"""Exit heads on the command line: what their record offers a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.exit_heads.exit_record import WEIGHTS, ExitAgreement, ExitFigures, ExitRecord, LogitBound
from qpdsl.exit_heads.exit_ways import exit_ways
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import Tolerance
from qpdsl.session.setting import HeadFolders

CURVE = (ExitAgreement(0.0, 1.0, 0.9, 0.88), ExitAgreement(0.5, 0.6, 0.99, 0.995), ExitAgreement(0.95, 0.0, 1.0, 1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bound = LogitBound(3.0, {"0.99": 2.0}, 1.0, {"0.25": 2.0, "0.5": 6.0})
    figures = ExitFigures(
        2, 999, (2.0, 0.5), leave=0.6, refine=0.5, output=0.1, among={"8": 0.9}, bound=bound, curve=CURVE
    )
    (tmp_path / WEIGHTS).write_bytes(b"")
    ExitRecord("zoo/counting", "digest", 4, 256, 512, 5000, 0, (figures,)).write(tmp_path)
    return tmp_path


def test_each_margin_is_offered_with_its_loss(folder: Path) -> None:
    trusting, careful = exit_ways({"llm": str(folder)}, Tolerance("loss", 0.02))
    assert trusting.loss == pytest.approx((0.12 * 999 + 1) / 1000)
    assert careful.loss == pytest.approx((0.6 * 0.01 * 999 + 1) / 1000)
    assert careful.cost.large == pytest.approx(0.6 + 0.4 * 0.5) and trusting.cost.large == pytest.approx(0.6)
    assert isinstance(careful.via, ops.Amortized) and careful.via.head == str(folder)
    assert careful.words == "amortized(0.5, layer=2)"
    assert careful.measured == "0.70% of 999 draws change, 60% leave, by `qpdsl calibrate`"


@pytest.mark.parametrize(
    ("epsilon", "certify", "kept", "cost"), [(0.5, 2.5, 0.5, 0.85), (4.0, 0.0, 3.0, 0.6), (0.0, 3.0, 0.0, 1.1)]
)
def test_an_epsilon_is_kept_by_a_certificate(
    folder: Path, epsilon: float, certify: float, kept: float, cost: float
) -> None:
    (way,) = exit_ways({"": str(folder)}, Tolerance("epsilon", epsilon))
    assert isinstance(way.via, ops.Amortized) and way.via.margin is None and isinstance(way.via.certify, ast.Literal)
    assert way.via.certify.value == certify
    assert (way.epsilon, way.loss) == (kept, None)
    assert way.cost.large == pytest.approx(cost)


def test_settings() -> None:
    assert HeadFolders().read(["llm=a/b", "c=d/e"]) == {"llm": "a/b", "c": "d/e"}
    assert HeadFolders().read(["./heads=1"]) == {"": "./heads=1"}
    for settings, message in ((["llm="], "takes FOLDER"), (["a", "b"], "two folders for all models")):
        with pytest.raises(UsageError, match=message):
            HeadFolders().read(settings)


def test_a_folder_that_holds_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="exit head"):
        exit_ways({"llm": str(tmp_path / "none")}, Tolerance())
