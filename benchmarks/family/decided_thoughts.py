"""What deciding a vote early saves a model that thinks: tokens with the rule `decided_vote` and without, equal answers.

    python -m benchmarks.family.decided_thoughts [--model FOLDER] [--problems 100] [--draw-only] [--output FOLDER]

Eight samples of the thinker vote on each held-out problem, one problem after another: a plain vote, and one that ends
once it is sure. Writes `decided_thoughts.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from family.tasks.counting import Problem, evaluation_problems
from qpdsl import zoo
from qpdsl.executor.requests import engine_loop
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan as naive_plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session
from qpdsl.session.surroundings import Surroundings

NAME, RULE = "decided_thoughts", "decided_vote"
SAMPLES = 8
VOTES = ("vote answer", "vote answer decided=0.95")


def stages(vote: str) -> str:
    """The program, as `-e` takes it."""
    generate = f"generate llm n={SAMPLES} temperature=0.8"
    return rf"chat user=problem | {generate} | extract answer = /The answer is (-?\d+)/ | {vote}"


@dataclass(frozen=True, slots=True)
class VoteFigures:
    """A vote over all problems, with the rule or without. Tokens are sums.

    Of `given_up` samples, `broken_off` were in their thoughts, for which `spent` tokens had been drawn.
    """

    vote: str
    rule: bool
    right: int
    tokens: int
    thought: int
    given_up: int
    broken_off: int
    spent: int


async def _run(plan: PhysicalPlan, problems: Sequence[Problem]) -> tuple[list[object], Counter[str]]:
    """The answers, and the sums of the tokens and the counts. The same each time: nothing runs beside a problem."""
    session = Session()
    session.load(plan)
    answers: list[object] = []
    counts: Counter[str] = Counter()
    async with session.running():
        for problem in problems:
            result = await session.run(plan, {"problem": problem.text})
            answers.append(result.value)
            counts.update({**result.counts, "tokens": result.sampled_tokens})
    return answers, counts


def measured(model: Path, problems: Sequence[Problem]) -> Iterator[VoteFigures]:
    """Each vote without the rule and with it. Raises ValueError where their answers differ."""
    for vote in VOTES:
        program = load_program(None, stages(vote), None, Surroundings(models={"llm": str(model)}))
        naive = naive_plan(program, reads=())
        whole = None
        for disabled in ((RULE,), ()):
            answers, counts = engine_loop.run(_run(optimize(naive, disabled).plan, problems))
            whole = answers if whole is None else whole
            if answers != whole:
                raise ValueError(f"`{vote}` has other answers with the rule")
            right = sum(str(answer) == str(problem.answer) for answer, problem in zip(answers, problems, strict=True))
            names = ("tokens", "thought_tokens", "given_up", "thoughts_given_up", "thought_tokens_given_up")
            yield VoteFigures(vote, not disabled, right, *(counts[name] for name in names))


def table(figures: Sequence[VoteFigures]) -> list[str]:
    """The figures in Markdown, with what the rule saves."""
    lines = [
        "| vote | samples given up | tokens | of them thought | thoughts broken off, after tokens | right |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for without, with_rule in zip(figures[::2], figures[1::2], strict=True):
        for one in (without, with_rule):
            name = f"`{one.vote}`" + ("" if one.rule else ", all samples")
            saved = f" (-{1 - one.tokens / without.tokens:.0%})" if one.rule else ""
            broken = f"{one.broken_off:,}, {one.spent / one.broken_off:,.0f} each" if one.broken_off else "0"
            cells = (name, f"{one.given_up:,}", f"{one.tokens:,}{saved}", f"{one.thought:,}", broken, str(one.right))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(problems: int, figures: Sequence[VoteFigures], machine: str) -> str:
    """All of it, as markdown."""
    programs = "\n".join(map(stages, VOTES))
    return f"""# Votes of samples that think (zoo/counting-thinker)

{SAMPLES} samples vote on each of {problems} held-out problems, with the rule `{RULE}` and without. The answers are the
same. A plain vote gives up what still goes on once it is decided. The samples of a problem think about equally long
side by side, so most of these are in their answers by then, and little is saved. A vote with `decided=` begins samples
in waves, and never begins those that it does not need.

{chr(10).join(table(figures))}

The programs:

```
{programs}
```

Written by `python -m benchmarks.family.{NAME}`. Measured on: {machine}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=zoo.path("zoo/counting-thinker"), metavar="FOLDER")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--draw-only", action="store_true", help="write the page again from the results that are there")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.output / f"{NAME}.json"
    if not arguments.draw_only:
        problems = evaluation_problems()[: arguments.problems]
        made = [asdict(one) for one in measured(arguments.model, problems)]
        data = {"machine": {**describe(), "sentence": sentence()}, "problems": len(problems), "figures": made}
        file.write_text(json.dumps(data, indent=1) + "\n")
    data = json.loads(file.read_text())
    text = page(data["problems"], [VoteFigures(**one) for one in data["figures"]], data["machine"]["sentence"])
    file.with_suffix(".md").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
