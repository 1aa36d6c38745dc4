"""The router on recorded decoding: every arm of the head at every step of a real model, and policies replayed on that.

    python -m benchmarks.routing.recorded [--folder FOLDER] [--models SmolLM2-135M Gemma-3-270M] [--steps 1200]
        [--tries 2] [--threads 1] [--clock wall] [--seeds 10] [--replay-only] [--quick] [--output FOLDER]

FOLDER holds what `python -m benchmarks.common.real_models FOLDER` makes; `--quick` takes the built-in model and 150
steps. Groups of 1 to 16 samples are decoded one after another, records that are held to a schema and free text beside
them. Half way the groups change: another schema, and other sizes. At each step that has a choice every arm draws from
the step's own hidden states under its own masks, `--tries` times in turn, and the least time counts. So the oracle, the
best arm of each step, is known. All arms draw the same tokens, which is checked.

Then each policy walks over the trace in its order and sees what it chose alone. What it takes itself is measured as it
walks, and charged. Beside the policies: always one arm, and the rule that decides without one, with its usual share and
with the one measured for the head (`qpdsl profile`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe
from benchmarks.common.real_models import DEFAULT
from benchmarks.common.results import write
from benchmarks.common.serving import NAME, checkpoint, engine_of, paged
from benchmarks.common.subjects import FLOAT32, subjects
from benchmarks.decoding.records import tasks
from benchmarks.routing.recorded_tables import draw, goals_of, page
from benchmarks.routing.recorder import Recorder
from benchmarks.routing.regret import Arms, cumulative, regret
from qpdsl import zoo
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.routed_head import FEATURES, policy_of
from qpdsl.executor.kernels.llvm.panel_head import SPARSE_SHARE
from qpdsl.executor.measure.device import head_crossover
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.routing import ARMS, Routing
from qpdsl.executor.routing.policy import Floats, Policy
from qpdsl.executor.text.constraint import Constrainer

FILE = "routing_recorded"
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MODELS = ("SmolLM2-135M", "Gemma-3-270M")
BUILT_IN = "zoo/counting"
_KV_BYTES = 512 << 20
_LIMIT = 96
# Samples of a group that are held to a schema, and that write freely; before the change and after it.
_GROUPS = (((1, 0), (4, 0), (2, 2), (12, 4)), ((2, 0), (1, 1), (8, 0), (8, 8)))
_TASKS = 16
_SAMPLING = SamplingParams(0.8)
_EVERY = 10
# Steps that are averaged for V_T, since times are noisy.
_SMOOTH = 10
# Walks of which the quickest counts, and what making the context of a step takes, which the trace has already.
_WALKS = 3
_CONTEXT_SECONDS = 3e-6


@dataclass(frozen=True)
class Recording:
    """T steps of one model: contexts [T, F], seconds and losses of every arm [T, A], and where the groups changed."""

    contexts: Floats
    seconds: Floats
    losses: Floats
    changed: int
    crossover: float

    def to_json(self) -> dict[str, Any]:
        rounded = {name: np.round(getattr(self, name), 7).tolist() for name in ("contexts", "seconds", "losses")}
        return {**rounded, "changed": self.changed, "crossover": self.crossover}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recording:
        arrays = (np.array(data[name]) for name in ("contexts", "seconds", "losses"))
        return cls(*arrays, data["changed"], data["crossover"])


def record(
    model: PagedModel, tokenizer: Any, eos: Sequence[int], steps: int, tries: int, clock: Callable[[], float]
) -> Recording:
    """The steps with a choice of real decoding: half of them of the first kind of groups, the rest of the second."""
    constrainer = Constrainer(tokenizer, model.vocabulary, tuple(eos))
    engine = engine_of({NAME: model}, _KV_BYTES)
    head = engine.routed(NAME)
    if head is None:
        raise SystemExit("the head of this model is not compiled for this machine, so that it has no arms")
    recorder = Recorder(head, tries, clock)
    prompts = Prompts(tokenizer, constrainer, frozenset(eos))
    half = changed = 0
    while len(recorder.steps) < steps:
        for held, free in _GROUPS[half]:
            tickets = [engine.submit(NAME, prompts.held(half)) for _ in range(held)]
            tickets += [engine.submit(NAME, prompts.free()) for _ in range(free)]
            while engine.has_work and len(recorder.steps) < (steps if half else steps // 2):
                engine.step()
            for ticket in tickets:
                ticket.cancel()
        print(f"  {len(recorder.steps)} of {steps} steps", flush=True)
        if not half and len(recorder.steps) >= steps // 2:
            half, changed = 1, len(recorder.steps)
    crossover = head_crossover(model, clock) or SPARSE_SHARE
    trace = recorder.trace()
    return Recording(trace.contexts, recorder.seconds(), trace.losses, changed, crossover)


class Prompts:
    """Requests one after another, each with noise of its own."""

    def __init__(self, tokenizer: Any, constrainer: Constrainer, eos: frozenset[int]) -> None:
        self._tokenizer, self._constrainer, self._eos = tokenizer, constrainer, eos
        self._tasks = tasks(_TASKS)
        self._made = 0

    def held(self, kind: int) -> GenerateRequest:
        """A record of a person, or of an order."""
        task = self._tasks[(2 * self._made + kind) % _TASKS]
        mask = self._constrainer.masks("json_schema", task.schema)
        request = self._request(task.prompt)
        return replace(request, mask=mask, jump=True, sparse=True, route=Routing())

    def free(self) -> GenerateRequest:
        """What goes on from a note, held to nothing."""
        return self._request(self._tasks[self._made % _TASKS].prompt)

    def _request(self, prompt: str) -> GenerateRequest:
        self._made += 1
        ids = tuple(self._tokenizer(prompt)["input_ids"])
        return GenerateRequest(ids, (self._made,), _SAMPLING, _LIMIT, self._eos)


@dataclass(frozen=True)
class Way:
    """What one way to choose came to on a trace. Times are in milliseconds a step, but for `micros`, its own.

    `over_oracle`, `first` and `second`: what was paid, its own time with it, over the oracle's: in all steps, before
    the change and after it. The seeds' deviation and their largest are of all steps. Regrets are sums, in seconds.
    """

    name: str
    over_oracle: float
    deviation: float
    largest: float
    first: float
    second: float
    micros: float
    milliseconds: float
    shares: list[float]
    static: float
    dynamic: float
    variation: float


def way(name: str, recording: Recording, walks: list[tuple[Arms, float]]) -> Way:
    """Of walks over the trace: the arms that were taken, and the seconds of a step that the way itself took."""
    seconds, changed = recording.seconds, recording.changed
    whole = [regret(seconds, taken, charge=own, smooth=_SMOOTH) for taken, own in walks]
    first = [regret(seconds[:changed], taken[:changed], charge=own).over_oracle for taken, own in walks]
    second = [regret(seconds[changed:], taken[changed:], charge=own).over_oracle for taken, own in walks]
    ratios = [each.over_oracle for each in whole]

    def mean(values: list[float]) -> float:
        return float(np.mean(values))

    return Way(
        name,
        mean(ratios),
        float(np.std(ratios)),
        max(ratios),
        mean(first),
        mean(second),
        mean([own for _, own in walks]) * 1e6,
        mean([each.loss for each in whole]) * 1e3,
        np.mean([each.shares for each in whole], 0).tolist(),
        mean([each.static for each in whole]),
        mean([each.dynamic for each in whole]),
        whole[0].variation,
    )


def walked(make: Callable[[], Policy], recording: Recording) -> tuple[Arms, float]:
    """The arms that a policy takes, told what these cost alone, and its own seconds of a step: the least of some walks.

    Its seconds are processor time of this thread, so that other work on the machine is not charged to it.
    """
    own = []
    shown = list(zip(recording.contexts.tolist(), recording.losses.tolist(), strict=True))
    for _ in range(_WALKS):
        policy, taken = make(), np.empty(len(recording.seconds), dtype=np.int64)
        start = time.thread_time()
        for step, (context, losses) in enumerate(shown):
            arm = policy.choose(context)
            policy.learn(context, arm, losses[arm])
            taken[step] = arm
        own.append((time.thread_time() - start) / len(taken))
    return taken, min(own) + _CONTEXT_SECONDS


def by_share(recording: Recording, share: float) -> Arms:
    """What the rule takes: the list that reads least, unless it reads more than this share of all."""
    own, union, dense = (recording.contexts[:, FEATURES.index(name)] for name in ("rows", "union", "dense"))
    few = np.where(union < own, ARMS.index("union"), ARMS.index("rows"))
    return np.where(np.minimum(own, union) > share * dense, ARMS.index("dense"), few)


def ways(recording: Recording, seeds: int) -> Iterator[tuple[Way, list[float]]]:
    """Every way, with its dynamic regret up to every tenth step, in seconds."""
    steps = len(recording.seconds)

    def made(name: str, walks: list[tuple[Arms, float]]) -> tuple[Way, list[float]]:
        taken, own = walks[0]
        return way(name, recording, walks), cumulative(recording.seconds, taken, own)[::_EVERY].round(5).tolist()

    for number, arm in enumerate(ARMS):
        yield made(f"always {arm}", [(np.full(steps, number), 0.0)])
    for words, share in (("usual share", SPARSE_SHARE), ("measured share", recording.crossover)):
        yield made(f"rule, {words} {share:.0%}", [(by_share(recording, share), 0.0)])
    for name in ("lin_ucb", "thompson", "exponential"):
        routing = Routing.named(name)
        assert routing is not None
        count = 1 if name == "lin_ucb" else seeds
        routings = [replace(routing, seed=seed) for seed in range(count)]
        yield made(name, [walked(partial(policy_of, each), recording) for each in routings])

    def warm() -> Policy:
        first, second = policy_of(Routing()), policy_of(Routing())
        for context, losses in zip(recording.contexts.tolist(), recording.losses.tolist(), strict=True):
            arm = first.choose(context)
            first.learn(context, arm, losses[arm])
        second.restore(first.state(), keep=0.5)
        return second

    yield made("lin_ucb, warm start", [walked(warm, recording)])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=DEFAULT, help="where the real models are")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--steps", type=int, default=1200)
    options.add_argument("--tries", type=int, default=2, help="times that every arm runs at a step")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: processor time of the process")
    options.add_argument("--seeds", type=int, default=10, help="of policies that draw")
    options.add_argument("--replay-only", action="store_true", help="policies on the traces that are there")
    options.add_argument("--quick", action="store_true", help="the built-in model, few steps: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    models = (BUILT_IN,) if arguments.quick else arguments.models
    steps = min(arguments.steps, 150) if arguments.quick else arguments.steps
    arguments.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in models:
        place = arguments.output / f"{FILE}_{name.rpartition('/')[2]}.json"
        if arguments.replay_only and place.is_file():
            recording = Recording.from_json(json.loads(place.read_text(encoding="utf-8")))
        else:
            print(name, flush=True)
            folder = (
                zoo.path(name) if name == BUILT_IN else subjects(arguments.folder)[name].weights(FLOAT32, gguf=False)
            )
            recording = recorded(folder, steps, arguments.tries, CLOCKS[arguments.clock])
            place.write_text(json.dumps(recording.to_json()) + "\n", encoding="utf-8")
        found = list(ways(recording, arguments.seeds))
        results[name] = {
            "steps": len(recording.seconds),
            "changed": recording.changed,
            "oracle_milliseconds": float(recording.seconds.min(1).mean()) * 1e3,
            "crossover": recording.crossover,
            "ways": [asdict(each) for each, _ in found],
            "curves": {each.name: curve for each, curve in found},
        }
    record = {
        "threads": arguments.threads,
        "clock": arguments.clock,
        "tries": arguments.tries,
        "seeds": arguments.seeds,
        "models": results,
    }
    whole = {"machine": describe(), **record}
    draw(whole, arguments.output / f"{FILE}.svg")
    write(arguments.output, FILE, page(whole), record, goals_of(whole))


def recorded(folder: Path, steps: int, tries: int, clock: Callable[[], float] = time.perf_counter) -> Recording:
    """A trace of the model in a folder."""
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    eos = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return record(paged(checkpoint(folder)), tokenizer, [*eos, tokenizer.eos_token_id], steps, tries, clock)


if __name__ == "__main__":
    main()
