"""The programs in `tests/planner/rules`, planned with and without a rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qpdsl.grammar.files import Files
from qpdsl.grammar.model_id import is_remote
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, RemoteModel
from qpdsl.planner.rules import RULES
from qpdsl.session.planning import reads_of
from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / "planner" / "rules"
# What a server is known to do, where a fixture's model is on one.
SERVER = RemoteModel(probed=True, greedy=True, token_ids=True, streams=True)
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
    naive = with_server(plan(program, () if only_value else reads_of(program)))
    at = NAMES.index(rule_of(fixture))
    return optimize(naive, NAMES[at:]).plan, optimize(naive, NAMES[at + 1 :]).plan


def with_server(physical: PhysicalPlan, server: RemoteModel = SERVER) -> PhysicalPlan:
    """The plan, its models on servers known to be like that."""
    return replace(physical, remote={id: server for id in physical.models.values() if is_remote(id)})
