"""A saved run as data to train on, in the columns that trainers read: TRL 1.16 and verl 0.8.

`FORMS` has a function for each form, from the saved rows of a run to its records. Each takes what `--save-trajectories`
saved. A record begins with the run, the number of its row and the row's id, which trainers pass over. What differs from
record to record in its fields, such as the arguments of a tool call, is JSON text: Arrow would give every record the
fields of all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.executor.sample_memory.row_trajectory import DrawTree, RowTrajectory, TrajectoryDraw, TrajectoryEnd
from qpdsl.executor.sample_memory.saved_samples import RowSamples
from qpdsl.planner.values.value import dumps
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_record import RowRecord, RunRecord

Record = dict[str, Any]
# A prompt or a completion as TRL takes it: messages, or a text where the program has no conversation.
Said = list[Record] | str


@dataclass(frozen=True, slots=True)
class LastCandidate:
    """A row that came to the last choice, with its place among them. `value` is what it is chosen by: its score, else
    its answer's share of the votes, None without either.
    """

    number: int
    end: TrajectoryEnd
    answer: Any
    correct: bool | None
    value: float | None

    @property
    def completion(self) -> Said:
        """What was generated."""
        if isinstance(self.end.prompt, str):
            return self.end.text
        thought = {"reasoning_content": self.end.thought} if self.end.thought else {}
        return [{"role": "assistant", "content": self.end.text, **thought}]


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """A sequence of tokens of a model: a prompt, and a response with a `mask` of 1 where its tokens were drawn."""

    model: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    mask: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SavedRow:
    """A row of a run with its trajectory. `most`: how many records a form makes of it at most, None for its usual."""

    run: str
    record: RunRecord
    row: RowRecord
    trajectory: RowTrajectory
    most: int | None

    @property
    def begins(self) -> Record:
        """The columns that every record begins with."""
        return {"run": self.run, "number": self.row.number, "id": self.row.outcome.id}

    @property
    def candidates(self) -> list[LastCandidate]:
        """Those of the last choice, in their order; of a program without one the row whose answer was given."""
        outcome, ends = self.row.outcome, self.trajectory.ends
        if not outcome.candidates:
            chosen = self.trajectory.chosen
            known = [] if chosen is None else [(chosen, ends[chosen])]
            return [LastCandidate(place, end, outcome.answer, outcome.correct, outcome.score) for place, end in known]
        ballots = [own["ballot"] for own in outcome.candidates if own["ballot"] is not None]
        made = []
        for number, (own, end) in enumerate(zip(outcome.candidates, ends, strict=True)):
            share = ballots.count(own["ballot"]) / len(ballots) if own["ballot"] is not None else None
            value = own["score"] if own["score"] is not None else share
            made.append(LastCandidate(number, end, own["answer"], own["correct"], value))
        return made

    @property
    def distinct(self) -> list[LastCandidate]:
        """The candidates of different texts, those of the highest value first."""
        ranked = sorted(self.candidates, key=lambda own: -_value(own))
        return list({(own.end.thought, own.end.text): own for own in reversed(ranked)}.values())[::-1]

    @property
    def learned(self) -> list[LastCandidate]:
        """Right answers, the one of highest value first; of a row that is not graded, the answer that was given."""
        if any(own.correct is not None for own in self.candidates):
            return [own for own in self.distinct if own.correct][: self.most or 1]
        return [own for own in self.candidates if own.number == self.trajectory.chosen]

    def drawn(self, candidate: LastCandidate) -> DrawnTokens | None:
        """The tokens of a candidate, None where its last ones were not drawn."""
        draws, tree = self.trajectory.draws, DrawTree(self.trajectory.draws)
        if (last := tree.last_of(candidate.end)) is None:
            return None
        chain = [draws[place] for place in tree.chain(last)]
        said = _response(chain)
        response, mask = tuple(said["response_ids"]), tuple(said["response_mask"])
        return DrawnTokens(chain[0].model, chain[0].prompt, response, mask)


def _value(candidate: LastCandidate) -> float:
    return float("-inf") if candidate.value is None else candidate.value


def sft(row: SavedRow) -> Iterator[Record]:
    """Right answers, the one of the highest value first; of a row that is not graded, the answer that was given."""
    for own in row.learned:
        yield {**row.begins, "prompt": prompt_of(own.end), "completion": own.completion, "value": own.value}


def trl_dpo(row: SavedRow) -> Iterator[Record]:
    """Pairs of a right and a wrong answer, those furthest apart first; of a row that is not graded, of any two values.

    `margin` is how far apart their values are: scores, or shares of the votes.
    """
    known = row.distinct
    if any(own.correct is not None for own in known):
        pairs = [pair for pair in product(known, known) if pair[0].correct and pair[1].correct is False]
    else:
        told = [own for own in known if own.value is not None]
        pairs = [pair for pair in product(told, told) if _value(pair[0]) > _value(pair[1])]
    pairs = [pair for pair in pairs if pair[0].end.prompt == pair[1].end.prompt]
    pairs.sort(key=lambda pair: -(_margin(*pair) or 0.0))
    for chosen, rejected in pairs[: row.most or 1]:
        yield {
            **row.begins,
            "prompt": prompt_of(chosen.end),
            "chosen": chosen.completion,
            "rejected": rejected.completion,
            "chosen_value": chosen.value,
            "rejected_value": rejected.value,
            "margin": _margin(chosen, rejected),
        }


def _margin(chosen: LastCandidate, rejected: LastCandidate) -> float | None:
    return None if chosen.value is None or rejected.value is None else chosen.value - rejected.value


def trl_kto(row: SavedRow) -> Iterator[Record]:
    """Every answer that was graded, with whether it is right."""
    for own in islice((own for own in row.distinct if own.correct is not None), row.most):
        prompt = prompt_of(own.end)
        yield {**row.begins, "prompt": prompt, "completion": own.completion, "label": own.correct, "value": own.value}


def trl_prm(row: SavedRow) -> Iterator[Record]:
    """Steps, each with whether it leads to a right answer: the hard estimation of Math-Shepherd (Wang et al., 2024).

    A program that carries steps on by itself returns a record with `steps` and with `rates`, the share of the ways on
    from each that came out right, as `programs/math_shepherd.qp` does. Of another one, a step is a sample, and right
    where a candidate that goes on from it is. `rates` has the shares: the soft estimation.
    """
    for own in islice(_with_steps(row), row.most):
        yield {**row.begins, **own}


def _with_steps(row: SavedRow) -> Iterator[Record]:
    graded = [own for own in row.candidates if own.correct is not None]
    for own in row.candidates:
        if isinstance(own.answer, dict) and {"steps", "rates"} <= own.answer.keys():
            steps, rates = own.answer["steps"], own.answer["rates"]
            if len(steps) == len(rates):
                yield _steps(own, [str(step) for step in steps], [float(rate) for rate in rates])
            graded = []
    draws, tree = row.trajectory.draws, DrawTree(row.trajectory.draws)
    chains = [(own, [] if (last := tree.last_of(own.end)) is None else tree.chain(last)) for own in graded]
    told = {own.number for own in row.distinct}
    for own, chain in chains:
        if own.number not in told:
            continue
        reached = [[bool(other.correct) for other, others in chains if place in others] for place in chain]
        texts = [draws[place].text.strip() for place in chain]
        if texts:
            yield _steps(own, texts, [sum(right) / len(right) for right in reached])


def _steps(own: LastCandidate, steps: list[str], rates: list[float]) -> Record:
    asked = own.end.prompt
    prompt = asked if isinstance(asked, str) else "\n\n".join(turn["content"] for turn in asked)
    return {"prompt": prompt, "completions": steps, "labels": [rate > 0 for rate in rates], "rates": rates}


def trajectories(row: SavedRow) -> Iterator[Record]:
    """Every sequence of tokens that was drawn, under the names of verl's `AgentLoopOutput`.

    `response_mask` is 1 where a token was drawn and 0 where the program or its constraint wrote it;
    `response_logprobs` are the drawn tokens' under the model at temperature 1 and `drawn_logprobs` under what they were
    drawn from, both 0 elsewhere. `draws` says of each sample whose it is and from where to where its tokens go, and the
    paths make the tree: a row's is its parent's and one index more. `chosen`: it is that of the answer.
    """
    draws, tree = row.trajectory.draws, DrawTree(row.trajectory.draws)
    ends: dict[int, LastCandidate] = {}
    for own in row.candidates:
        if (last := tree.last_of(own.end)) is not None:
            ends.setdefault(last, own)
    for place in islice(dict.fromkeys((*ends, *tree.leaves)), row.most):
        chain, end = [draws[at] for at in tree.chain(place)], ends.get(place)
        turns = () if end is None or isinstance(end.end.prompt, str) else end.end.prompt
        yield {
            **row.begins,
            "prompt_ids": list(chain[0].prompt),
            **_response(chain),
            "num_turns": len(turns) + 1,
            "reward_score": None if end is None or end.correct is None else float(end.correct),
            "value": None if end is None else end.value,
            "answer": None if end is None else dumps(end.answer),
            "final": end is not None,
            "chosen": end is not None and end.number == row.trajectory.chosen,
            "tool_calls": json.dumps(_calls(turns)),
            "model": chain[0].model,
            "seed": row.record.seed,
            "plan": row.record.key,
        }


def _response(chain: Sequence[TrajectoryDraw]) -> Record:
    first, whole = len(chain[0].prompt), (*chain[-1].prompt, *chain[-1].tokens)
    mask = [0] * (len(whole) - first)
    logprobs, drawn, places = [0.0] * len(mask), [0.0] * len(mask), []
    told = all(own.logprobs is not None and own.drawn_logprobs is not None for own in chain)
    for own in chain:
        span = slice(len(own.prompt) - first, len(own.prompt) - first + len(own.tokens))
        mask[span] = [1] * len(own.tokens)
        logprobs[span], drawn[span] = own.logprobs or logprobs[span], own.drawn_logprobs or drawn[span]
        where = {"operator": own.operator, "rounds": own.rounds, "path": own.path, "finish": own.finish}
        places.append({**where, "start": span.start, "end": span.stop})
    return {
        "response_ids": list(whole[first:]),
        "response_mask": mask,
        "response_logprobs": logprobs if told else None,
        "drawn_logprobs": drawn if told else None,
        "draws": json.dumps(places),
    }


def verl(row: SavedRow) -> Iterator[Record]:
    """The problem, for reinforcement learning in verl: what it asks, and what its answer is held against."""
    if not row.trajectory.ends:
        return
    reference, outcome = row.row.reference, row.row.outcome
    prompt = prompt_of(row.trajectory.ends[0])
    yield {
        **row.begins,
        "data_source": row.record.input,
        "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
        "ability": row.record.program,
        "reward_model": {
            "style": "rule",
            "ground_truth": reference if isinstance(reference, str) else dumps(reference),
        },
        "extra_info": {"index": row.row.number, "answer": dumps(outcome.answer), "correct": outcome.correct},
    }


# To add a form: its function, and its line here.
FORMS: Mapping[str, Callable[[SavedRow], Iterator[Record]]] = {
    "sft": sft,
    "trl-dpo": trl_dpo,
    "trl-kto": trl_kto,
    "trl-prm": trl_prm,
    "trajectories": trajectories,
    "verl": verl,
}


def training_records(run: RunFile, form: str, most: int | None = None) -> list[Record]:
    """The records of a run in one of `FORMS`, at most so many of a row.

    Raises UsageError where the run does not hold what the form takes, or nothing comes of it.
    """
    rows = saved_rows(run, most)
    found = [record for row in rows for record in FORMS[form](row)]
    if not found:
        raise UsageError(f"nothing comes of the {len(rows):,} rows of run `{run.id}` as `{form}`", _WANTED.get(form))
    return found


def saved_rows(run: RunFile, most: int | None = None) -> list[SavedRow]:
    """The rows of a run that did not fail, with their trajectories. Raises UsageError where these were not saved."""
    found = []
    for row in run.rows():
        data = run.samples(row.number)
        trajectory = None if data is None else RowSamples.decoded(data).trajectory
        if trajectory is None and row.outcome.failure is None:
            raise UsageError(
                f"run `{run.id}` has no trajectories, which this is made of",
                "`qpdsl run … --save-trajectories` saves them with the run",
            )
        if trajectory is not None and row.outcome.failure is None:
            found.append(SavedRow(run.id, run.record, row, trajectory, most))
    return found


_WANTED = {
    "sft": "it takes right answers, or rows without a right answer to be held against",
    "trl-dpo": "it takes a right and a wrong answer to a problem: more samples, or a higher temperature",
    "trl-kto": "it takes rows with right answers to grade by",
    "trl-prm": "it takes rows with right answers to grade by, or a program that returns `steps` and `rates`",
}


def prompt_of(end: TrajectoryEnd) -> Said:
    """What was asked; the arguments of tool calls are JSON text."""
    if isinstance(end.prompt, str):
        return end.prompt
    return [
        {name: value for name, value in turn.items() if name != "calls"} | _encoded(json.loads(turn.get("calls", "{}")))
        for turn in end.prompt
    ]


def _calls(turns: Sequence[Mapping[str, str]]) -> list[Record]:
    """The tool calls of all turns, as they were made."""
    return [call for turn in turns for call in json.loads(turn.get("calls", "{}")).get("tool_calls") or ()]


def _encoded(fields: Record) -> Record:
    calls = [
        {**call, "function": {**call["function"], "arguments": _text(call["function"].get("arguments"))}}
        for call in fields.get("tool_calls") or ()
    ]
    return {**fields, "tool_calls": calls} if calls else fields


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
