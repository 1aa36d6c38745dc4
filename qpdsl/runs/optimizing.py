"""A program's texts improved by reflection: GEPA (Agrawal et al., 2025), by the package `gepa` (extra `optimize`).

A text of the program is a component: the default of a text parameter, or a string of a `chat`, `prompt` or `say`. GEPA
runs the program on rows, shows a model what went wrong, takes its new text, and keeps what is better on other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpdsl.errors import UsageError, UserError, installing
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.statistics import PairedResult, paired_values

Texts = Mapping[str, str]
# The outcomes of rows under a program's text. Raises QpError for a text that does not check.
RunRows = Callable[[str, Sequence[InputRow]], Sequence[Outcome]]
# Of a wrong answer, so much is shown to the model that reflects.
_MAX_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class ProgramTexts:
    """The texts of a program that can be others, by name, with their places in its source."""

    source: str
    texts: Texts
    spans: Mapping[str, Span]

    @classmethod
    def of(cls, program: LogicalProgram) -> ProgramTexts:
        """Raises UsageError where there are none."""
        assert program.syntax is not None
        found: dict[str, ast.Expr] = {
            param.name: param.default for param in program.syntax.params if isinstance(param.default, ast.Template)
        }
        for stage in walk_stages(program.syntax.body):
            for word, text in _strings(stage):
                count = sum(name.startswith(f"{word}_") for name in found) + 1
                found[f"{word}_{count}"] = text
        source = program.source.text
        written = {
            name: own
            for name, own in found.items()
            if isinstance(own, ast.Template) and any(isinstance(part, str) and part.strip() for part in own.parts)
        }
        if not written:
            raise UsageError(
                f"`{program.name}` has no text to optimize",
                'give a parameter of type text a default, such as `system: text = "Think in steps."`, or write '
                "strings in `chat`",
            )
        spans = {name: own.span for name, own in written.items()}
        return cls(source, {name: _text(own, source) for name, own in written.items()}, spans)

    def with_texts(self, texts: Texts) -> str:
        """The source with other texts in the place of its own."""
        made = self.source
        for name, span in sorted(self.spans.items(), key=lambda own: -own[1].start):
            text = texts.get(name, self.texts[name])
            if text != self.texts[name]:
                made = made[: span.start] + _string(text) + made[span.end :]
        return made


def _strings(stage: ast.Stage) -> list[tuple[str, ast.Expr]]:
    if isinstance(stage, ast.Chat):
        return [(turn.role, turn.content) for turn in stage.turns if turn.role != "messages"]
    if isinstance(stage, ast.Prompt):
        return [("prompt", stage.text)]
    return [("say", stage.text)] if isinstance(stage, ast.Say) else []


def _text(template: ast.Template, source: str) -> str:
    """A string with what it inserts in braces."""
    parts = template.parts
    return "".join(own if isinstance(own, str) else f"{{{source[own.span.start : own.span.end]}}}" for own in parts)


def _string(text: str) -> str:
    """A string of the language; what stands in braces is inserted, as in the text that it replaces."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class OptimizedTexts:
    """The texts before and after, the program's source with them, and what both come to on rows that nobody chose by.

    `calls`: how many rows were run to find them. `held_out` are the mean scores of both.
    """

    before: Texts
    after: Texts
    source: str
    calls: int
    held_out: tuple[float, float]
    gain: PairedResult


def optimized(
    program: ProgramTexts,
    rows: Sequence[InputRow],
    run: RunRows,
    reflect: Callable[[str], str],
    budget: int,
    *,
    seed: int = 0,
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> OptimizedTexts:
    """Optimizes the texts of a program: a quarter of the rows to reflect on, a quarter to choose by, half held out.

    It ends after `budget` rows, or a few more. With a `folder` it goes on with what is there, which has to be the
    user's own: gepa keeps its state as a pickle. `reflect` is what a model answers to a prompt. `tell` hears of each
    text that was tried on the rows to choose by. Raises UsageError without gepa and where there are too few rows.
    """
    gepa = required_gepa()
    graded = [row for row in rows if row.reference is not None]
    quarter = len(graded) // 4
    if quarter < 2:
        raise UsageError(f"{len(graded)} rows with a right answer are too few to optimize by", "give 8 or more")
    training, choosing, held_out = graded[:quarter], graded[quarter : 2 * quarter], graded[2 * quarter :]
    adapter = _Adapter(program, run, budget, tell)
    found = gepa.optimize(
        seed_candidate=dict(program.texts),
        trainset=list(training),
        valset=list(choosing),
        adapter=adapter,
        reflection_lm=reflect,
        max_metric_calls=budget,
        run_dir=None if folder is None else str(folder),
        seed=seed,
        logger=_Silent(),
    )
    after = dict(found.best_candidate)
    first, second = (adapter.scores(texts, held_out) for texts in (program.texts, after))
    gain = paired_values(first, second)
    means = (sum(first) / len(held_out), sum(second) / len(held_out))
    calls = int(found.total_metric_calls or 0)
    return OptimizedTexts(dict(program.texts), after, program.with_texts(after), calls, means, gain)


def required_gepa() -> Any:
    """The package. Raises UsageError without it."""
    try:
        import gepa
    except ImportError as error:
        raise UsageError("optimizing needs gepa", installing("optimize")) from error
    return gepa


def is_state(folder: Path) -> bool:
    """Whether a folder of the user has the state of an optimization that can go on."""
    from gepa.core.state import GEPAState

    try:
        GEPAState.load(str(folder))
    except Exception:  # what a pickle raises is anything
        return False
    return True


class _Silent:
    def log(self, message: str) -> None:
        pass


class _Adapter:
    """What `gepa` runs a program by (its `GEPAAdapter`). No row raises: what does not run scores 0, and says why."""

    propose_new_texts = None

    def __init__(self, program: ProgramTexts, run: RunRows, budget: int, tell: Callable[[str], None]) -> None:
        self._program = program
        self._run = run
        self._budget = budget
        self._tell = tell
        self._rows = 0

    def evaluate(self, batch: Sequence[InputRow], candidate: Texts, capture_traces: bool = False) -> Any:
        from gepa import EvaluationBatch

        outputs, scores, why = self._outputs(candidate, batch)
        self._rows += len(batch)
        if not capture_traces:
            mean = sum(scores) / len(scores)
            self._tell(f"{self._rows:,} of {self._budget:,} rows: a text scores {mean:.1%} of {len(scores):,} rows")
        traces = list(zip(batch, outputs, why, scores, strict=True)) if capture_traces else None
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    def make_reflective_dataset(
        self, candidate: Texts, eval_batch: Any, components_to_update: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        records = [
            {
                "Inputs": {name: shown(value)[:_MAX_SHOWN] for name, value in row.arguments.items()},
                "Generated Outputs": output[:_MAX_SHOWN],
                "Feedback": why if why else ("It is right." if score >= 1 else _wrong(row)),
            }
            for row, output, why, score in eval_batch.trajectories
        ]
        return dict.fromkeys(components_to_update, records)

    def scores(self, texts: Texts, rows: Sequence[InputRow]) -> list[float]:
        """Of each row, from 0 to 1."""
        return self._outputs(texts, rows)[1]

    def _outputs(self, texts: Texts, rows: Sequence[InputRow]) -> tuple[list[str], list[float], list[str]]:
        """What each row gives, how good that is, and why nothing came of it."""
        try:
            outcomes = self._run(self._program.with_texts(texts), rows)
        except (QpError, UserError) as error:
            why = f"The program with this text does not run: {error}. What stands in braces must be one of its names."
            return [""] * len(rows), [0.0] * len(rows), [why] * len(rows)
        outputs = ["" if own.answer is None else shown(own.answer) for own in outcomes]
        scores = [float(own.correct or 0) if own.points is None else own.points for own in outcomes]
        return outputs, scores, [own.failure or own.unanswered or "" for own in outcomes]


def _wrong(row: InputRow) -> str:
    right = row.reference if isinstance(row.reference, tuple) else (row.reference,)
    return f"It is wrong. Right is: {' or '.join(shown(own) for own in right)[:_MAX_SHOWN]}"
