"""Random questions to saved runs, with what they are answered held against real runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qpdsl.cli.app import dispatch
from qpdsl.cli.runs.whatif_options import WhatifOptions
from qpdsl.cli.runs.whatif_run import WhatifRun
from qpdsl.executor.sample_memory.saved_samples import RowSamples
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.whatif import RowReplay
from qpdsl.session.session import Session

# What of an outcome says how long it took, and how much was shared.
_NOT_COMPARED = ("seconds", "engine_seconds", "saved_tokens")
_MODELS = 'model llm = "zoo/counting"\nmodel prm = "zoo/counting-prm"\n'
# Programs that leave open what the shipped ones fix.
WRITTEN = {
    "chosen": """program chosen(problem: text, n: int = 6, limit: int = 200, least: float = 0, most: int = 9) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=limit
  score prm reduce=min
  where score >= least
  extract answer = /The answer is (-?\\d+)/
  keep most by score
  vote answer weight=score
}""",
    "likely": """program likely(problem: text, n: int = 6, limit: int = 200) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=limit
  extract answer = /The answer is (-?\\d+)/
  score logprob reduce=mean
  vote answer weight=exp(score)
}""",
    "grouped": """program grouped(problem: text, g: int = 4, n: int = 2, depth: int = 12) -> text {
  chat user=problem
  split g
  repeat depth until all(finished) {
    generate llm n=n stop="\\n\\n" temperature=0.4+0.1*group
    score prm reduce=last
    keep 1 by score per group
  }
  extract answer = /The answer is (-?\\d+)/
  vote answer
}""",
    "checked": """program checked(problem: text, n: int = 4, tries: int = 2) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=200
  score prm reduce=mean
  keep 2 by score
  chat user="{problem} Somebody says: {text}"
  generate llm n=tries temperature=0.6 max_tokens=120
  extract last answer = /(-?\\d+)/
  vote answer
}""",
}
# Programs, each with the values that its parameters are drawn from.
PROGRAMS: dict[str, dict[str, Sequence[float]]] = {
    "self_consistency": {"n": (1, 2, 3, 5, 8)},
    "best_of_n": {"n": (1, 2, 4, 7, 8)},
    "weighted_best_of_n": {"n": (1, 3, 5, 8)},
    "beam_search": {"width": (1, 2, 3), "expand": (1, 2, 3), "depth": (1, 4, 12)},
    "dvts": {"subtrees": (1, 2, 3), "expand": (1, 2, 3), "depth": (2, 12)},
    "rebase": {"budget": (2, 4, 6), "balance": (0.1, 0.2), "depth": (3, 12)},
    "lookahead": {"width": (1, 2), "expand": (1, 2), "ahead": (1, 2), "depth": (2, 8)},
    "sal_best_of_n": {"n": (1, 2, 4, 6)},
    "idioms/particle_filter": {"n": (1, 2, 4), "depth": (3, 12)},
    "idioms/entropic_particle_filter": {"n": (2, 4)},
    "idioms/sequential_monte_carlo": {"n": (2, 4)},
    "idioms/puct": {"simulations": (1, 3, 6, 9)},
    "idioms/ab_mcts": {"simulations": (2, 5, 9)},
    "idioms/beam_search": {"width": (1, 2), "expand": (1, 2, 3)},
    "idioms/tree_of_thoughts_vote": {"depth": (1, 2, 4)},
    "idioms/self_certainty": {"n": (1, 3, 5)},
    "idioms/deepconf": {"n": (2, 4, 6)},
    "idioms/adaptive_consistency": {"n": (2, 6, 10)},
    "idioms/cot_decoding": {"k": (1, 3, 5)},
    "idioms/budget_stop": {"budget": (40, 100, 300)},
    "idioms/short_m_at_k": {"k": (2, 4, 6), "m": (1, 2)},
    "idioms/thinking_budget": {"budget": (5, 20, 40)},
    "idioms/preference_pairs": {"n": (2, 4)},
    "chosen": {"n": (2, 4, 6), "limit": (20, 45, 200), "least": (0, 0.3, 0.9), "most": (1, 2, 9)},
    "likely": {"n": (2, 4, 6), "limit": (25, 60, 200)},
    "grouped": {"g": (1, 2, 4), "n": (1, 2), "depth": (2, 12)},
    "checked": {"n": (2, 4), "tries": (1, 2, 3)},
}
# Programs that ask for the same samples at first.
_ALIKE = (
    ("self_consistency", "best_of_n", "weighted_best_of_n"),
    ("beam_search", "dvts", "rebase", "lookahead"),
    ("chosen", "likely"),
)


@dataclass(frozen=True)
class Case:
    """A run with its values, and what is asked of it: the values of a program, mostly the same one."""

    program: str
    values: dict[str, float]
    asked: str
    changed: dict[str, float]
    skip: int
    rows: int
    columns: bool

    @property
    def name(self) -> str:
        return f"{self.program} {self.values} -> {self.asked} {self.changed}"


@dataclass
class Compared:
    """What came of a case: for each row, what differs from the real run, and how many samples it says that it needs.

    `false` rows say so, and a real run draws no sample that was not saved, or fewer.
    """

    answered: int = 0
    open: int = 0
    missing: int = 0
    differences: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)


def drawn_case(seed: int, rows: int = 3) -> Case:
    """The question of a seed."""
    chance = random.Random(seed)
    names = list(PROGRAMS)
    program = names[seed % len(names)]
    alike = next((own for own in _ALIKE if program in own), (program,))
    asked = chance.choice(alike) if chance.random() < 0.4 else program

    def values(name: str) -> dict[str, float]:
        return {param: chance.choice(known) for param, known in PROGRAMS[name].items()}

    # More than is asked for, most often.
    saved = {name: max(value, chance.choice(PROGRAMS[program][name])) for name, value in values(program).items()}
    changed = values(asked)
    while asked == program and changed.items() <= saved.items():
        changed = values(asked)
    if asked == program and chance.random() < 0.5:
        differing = [name for name, value in changed.items() if value != saved[name]]
        changed = {name: changed[name] for name in differing[:1]}
    return Case(program, saved, asked, changed, chance.randrange(400), rows, chance.random() < 0.5)


def target_of(name: str, folder: Path) -> str:
    """What the command line calls a program: a shipped one, or a file that is written here."""
    if name not in WRITTEN:
        return name
    file = folder / f"{name}.qp"
    file.write_text(_MODELS * ("prm" in WRITTEN[name]) or _MODELS.splitlines()[0] + "\n", "utf-8")
    file.write_text(file.read_text("utf-8") + "\n" + WRITTEN[name] + "\n", "utf-8")
    return str(file)


def compared(case: Case, folder: Path, *, draws: bool = True) -> Compared:
    """Runs a case: saves the run, asks it, and runs what was asked for real. `folder` is for programs.

    With `draws`, what is not answered is drawn too, and held against the real run.
    """
    values = [text for name, value in case.values.items() for text in ("--set", f"{name}={value}")]
    data = ["--input", "counting-500", "--skip", str(case.skip), "--limit", str(case.rows), "--no-greedy"]
    more = ["--candidates"] * case.columns
    code = dispatch(["run", target_of(case.program, folder), *values, *data, *more, "--save-samples"])
    assert code in (0, 1), case.name
    targets = () if case.asked == case.program else (target_of(case.asked, folder),)
    assigned = tuple(f"{name}={value}" for name, value in case.changed.items())
    found = Compared()
    with RunFile.reading(RunFolder().find("last")) as run:
        asked = WhatifRun(WhatifOptions(run="last", targets=targets, assigned=assigned), run)
        replay = asked.replayed(draws=False)
        real = {place: _real(asked, place, replay) for place in range(1, len(asked.jobs))}
        for (place, number), outcome in sorted(replay.outcomes.items()):
            missing = replay.asked[place, number].missing
            name = f"{case.name}, row {number} of cell {place}"
            if not place:
                # The run itself, of which a sample can have been given up.
                found.differences += [f"{name}: {outcome.error}"] * bool(missing)
            elif missing:
                found.open += 1
                found.missing += missing
                new = len(_drawn(real[place][number].samples) - _drawn(run.samples(number)))
                if missing > new:
                    found.false.append(f"{name}: needs {missing}, and a real run draws {new} that were not saved")
            else:
                found.answered += 1
                found.differences += _differing(name, outcome, real[place][number])
        if found.missing and draws:
            drawn = asked.replayed(draws=True)
            for place, number in [at for at in drawn.outcomes if at[0]]:
                name = f"{case.name}, row {number} of cell {place}, drawn"
                found.differences += _differing(name, drawn.outcomes[place, number], real[place][number])
    return found


def _real(asked: WhatifRun, place: int, replay: RowReplay) -> dict[int, Outcome]:
    """What a session gives that knows nothing of the run, by the numbers of the rows."""
    job = replace(asked.jobs[place], contents=dict(replay.contents))
    session = Session.of(asked.cells[place].prepared.settings)
    session.load(job.plan)
    rows = [asked.data[place].rows[number] for number in asked.numbers]
    return dict(zip(asked.numbers, asyncio.run(outcomes_of(session, job, rows)), strict=True))


def _differing(name: str, answered: Outcome, real: Outcome) -> list[str]:
    first, second = (
        {key: value for key, value in one.to_json().items() if key not in _NOT_COMPARED} for one in (answered, real)
    )
    differing = {key: (first[key], value) for key, value in second.items() if first[key] != value}
    return [f"{name}: {differing}"] if differing else []


def _drawn(data: bytes | None) -> set[tuple[bytes, int, int]]:
    samples = RowSamples() if data is None else RowSamples.decoded(data)
    return {(one.source, one.key, one.max_tokens) for one in samples.drawn}
