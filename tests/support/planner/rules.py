"""The programs in `tests/planner/rules`, planned with and without a rule."""

from __future__ import annotations

from pathlib import Path

from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.lower import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.rules import RULES
from qpdsl.planning.planning import reads_of
from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / "planner" / "rules"
NAMES = [rule.name for rule in RULES]
FIXTURES = sorted(FOLDER.glob("*.qp"))


def lowered(path: Path, program: str | None = None) -> LogicalProgram:
    file = parse_file(Source(path.name, path.read_text("utf-8")))
    return lower(file, program, Environment(Files(path.parent)))


def rule_of(fixture: Path) -> str:
    """The rule that a fixture is of: its name begins with the rule's."""
    return max((name for name in NAMES if fixture.stem.startswith(name)), key=len)


def before_and_after(fixture: Path) -> tuple[PhysicalPlan, PhysicalPlan]:
    """The plan by the rules that stand before the fixture's, and by that one too."""
    program = lowered(fixture)
    only_value = "Nothing but the value is read" in fixture.read_text("utf-8")
    naive = plan(program, () if only_value else reads_of(program))
    at = NAMES.index(rule_of(fixture))
    return optimize(naive, NAMES[at:]).plan, optimize(naive, NAMES[at + 1 :]).plan
