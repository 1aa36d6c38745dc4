"""`--grader` and what is told of answers that are graded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import say
from qpdsl.cli.shared_options import with_options
from qpdsl.errors import UsageError

if TYPE_CHECKING:
    from qpdsl.inputs.input_row import InputData, InputRow
    from qpdsl.measures.grader import Grader
    from qpdsl.sources.surroundings import Surroundings

Command = Callable[..., Any]
# How the names of graders begin that read other fields of a row than the right answer.
_READERS = ("code", "ifeval", "python:")


@dataclass(frozen=True, kw_only=True)
class GradingOptions:
    """The options about grading as the user set them; `_OPTIONS` says what each means."""

    grader: str | None
    candidates: bool
    by: str | None

    def check_grading(self, *, has_input: bool) -> None:
        """Raises UsageError for options that are about rows of a data set, where there is none."""
        for name, given in (("grader", self.grader), ("candidates", self.candidates), ("by", self.by)):
            if given and not has_input:
                raise UsageError(f"`--{name}` needs `--input`")

    @property
    def used_fields(self) -> tuple[str, ...] | None:
        """The fields of the rows that are read for grading and for groups; None where a grader may read any."""
        if self.grader is not None and self.grader.startswith(_READERS):
            return None
        return () if self.by is None else (self.by,)

    def grader_for(self, data: InputData, surroundings: Surroundings, *, allow_code: bool) -> Grader:
        """What grades the answers to this data: the named one, else what goes with a named data set, else equality.

        Raises UsageError, also where a grader is named that can grade none of the rows.
        """
        from qpdsl.measures.graders.known_graders import grader_named, grader_of, grades_any

        def named(name: str) -> Grader:
            return grader_named(name, allow_code=allow_code, judge=lambda target: _judge(target, surroundings))

        grader = grader_of(data, self.grader, named)
        if data.grader is not None and not grades_any(grader, data):
            say(f"warning: no row has a right answer that the grader `{data.grader}` can use, so nothing is graded")
        return grader

    def groups_of(self, rows: Sequence[InputRow]) -> list[str] | None:
        """For each row the field that `--by` names and its value, such as `level 3`; None without one.

        Raises UsageError.
        """
        from qpdsl.inputs.row_groups import groups_of

        return groups_of(rows, self.by)


def _judge(target: str, surroundings: Surroundings) -> Grader:
    from qpdsl.measures.graders.judge_program import JudgeProgram
    from qpdsl.planner.optimize.optimizer import planned
    from qpdsl.planning.planning import reads_of
    from qpdsl.run_store.fingerprint import digest, operators
    from qpdsl.sources.programs import load_program
    from qpdsl.sources.surroundings import Surroundings

    # The judge has models of its own: `--model` is about the program that is judged.
    program = load_program(target, None, None, Surroundings(surroundings.allowed, surroundings.functions))
    plan = planned(program, reads_of(program))
    return JudgeProgram(plan, digest([operators(plan.ops), dict(plan.models)]))


_OPTIONS = (
    click.option(
        "--grader",
        metavar="GRADER",
        help="Who says whether an answer is right: equal, text, number, number(0.01), math, choice, json, code, "
        "ifeval, python:FILE.py:FUNCTION or judge:PROGRAM.  [default: what goes with --dataset, else equal]",
    ),
    click.option(
        "--candidates",
        is_flag=True,
        help="Record the rows among which the last choice was made, and tell pass@k, majority and best at every k of "
        "them.",
    ),
    click.option("--by", metavar="FIELD", help="Tell the accuracy for each value of a field of the rows too."),
)


def grading_options(command: Command) -> Command:
    """The options of every command that grades answers."""
    return with_options(_OPTIONS, command)
