"""Tables and goals of `engine.real`, from its record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.results import Goal, Ratio, goal_table

OURS = "qpdsl"
Record = dict[str, Any]
_CLOCKS = {"wall": 0, "cpu": 1}
_UNITS = {"wall": "a second", "cpu": "a second of processor time"}
_MIB = 2**20


class Case:
    """A case of the record, by one of the clocks."""

    def __init__(self, record: Record, entry: Record, clock: int) -> None:
        self.entry = entry
        self.key = {name: entry[name] for name in ("model", "dtype", "threads")}
        self.peers: list[str] = [side for side in entry["rounds"] if side != OURS]
        self.rounds: dict[str, list[Record]] = entry["rounds"]
        self._clock = clock
        self._model = record["models"][entry["model"]]
        self._roofline = next(
            roofline for roofline in record["rooflines"] if all(roofline[name] == self.key[name] for name in self.key)
        )

    def __contains__(self, side: str) -> bool:
        return side in self.rounds

    @property
    def what(self) -> str:
        return f"{self.entry['model']} {self.entry['dtype']}, {self.entry['threads']} thread(s)"

    @property
    def shape(self) -> tuple[int, int, str]:
        return self.entry["prompt"], self.entry["rows"], self.entry["lengths"]

    def first(self, side: str) -> list[float]:
        """Seconds until every row had its first token, a round each."""
        return [reply["first"][self._clock] for reply in self.rounds[side]]

    def decode(self, side: str) -> list[float]:
        """Tokens a second after that."""
        return [
            (self.entry["asked"] - reply["first_tokens"]) / (reply["total"][self._clock] - reply["first"][self._clock])
            for reply in self.rounds[side]
        ]

    def whole(self, side: str) -> list[float]:
        """Tokens a second, the prompts' time counted."""
        return [self.entry["asked"] / reply["total"][self._clock] for reply in self.rounds[side]]

    def speed(self, side: str) -> float:
        return statistics.median(self.decode(side))

    def ratio(self, peer: str) -> Ratio:
        """Our decoding over a peer's, round by round."""
        return _over(self.decode(OURS), self.decode(peer))

    @property
    def memory_share(self) -> float:
        """Of the bytes that could be read: the weights once a step. Meaningful where all rows have one length."""
        steps = self.speed(OURS) / self.entry["rows"]
        return float(steps * self._model["bytes"][self.entry["dtype"]] / self._roofline["read"][self._clock])

    @property
    def compute_share(self) -> float:
        """Of the multiply-adds that could be done: one for each weight and token."""
        best = self._roofline["multiply_adds"][self._clock]
        if self.entry["dtype"] == "bfloat16" and self._roofline["bfloat16_multiply_adds"]:
            best = max(best, self._roofline["bfloat16_multiply_adds"][self._clock])
        return float(self.speed(OURS) * self._model["multiply_adds"] / best)

    @property
    def share(self) -> str:
        """Of the roofline that is nearer."""
        if self.entry["lengths"] != "equal":
            return ""
        memory, compute = self.memory_share, self.compute_share
        return f"{memory:.0%} memory" if memory > compute else f"{compute:.0%} compute"


def page(record: Record, clock: str) -> str:
    """All tables, as markdown."""
    cases = cases_of(record, clock)
    lines = ["# Real models: decoding, prompts, memory", ""]
    lines += [goal_table(goals_of(record, clock)), ""] if cases else []
    for key in _keys(cases):
        of_key = [case for case in cases if case.key == key]
        peers = [peer for peer in record["sides"] if any(peer in case.peers for case in of_key)]
        lines += [f"## {of_key[0].what}", "", *_speeds(of_key, peers, clock), ""]
        lines += [*_firsts(of_key, peers), "", *_memory(record, of_key, peers), ""]
        lines += [*_roofline(record, key, clock), ""]
    if record["absent"]:
        lines += ["## Left out", ""]
        for entry in record["absent"]:
            why = " ".join(entry["why"].split())
            lines.append(f"- {entry['model']} {entry['dtype']}, {entry['threads']} thread(s), {entry['side']}: {why}")
        lines.append("")
    return "\n".join([*lines, *_notes(record, clock)]) + "\n"


def cases_of(record: Record, clock: str) -> list[Case]:
    return [Case(record, entry, _CLOCKS[clock]) for entry in record["cases"]]


def goals_of(record: Record, clock: str) -> list[Goal]:
    """What was set for prompts of 64 tokens and equal lengths, as far as it was measured."""
    goals: list[Goal] = []
    for case in cases_of(record, clock):
        prompt, rows, lengths = case.shape
        if prompt != 64 or lengths != "equal":
            continue
        name = f"{case.what}, {rows} row(s)"
        if case.entry["dtype"] == "quantized":
            least = {1: 0.9, 8: 1.2}.get(rows)
            if least is not None and "llama.cpp" in case:
                goals.append(Goal(f"{name}: times llama.cpp", least, case.ratio("llama.cpp").median))
            continue
        if rows in (1, 8, 64) and "vllm" in case:
            goals.append(Goal(f"{name}: times vLLM", 1.0, case.ratio("vllm").median))
        if rows == 1:
            goals.append(Goal(f"{name}: share of the memory's speed", 0.7, round(case.memory_share, 3)))
        if rows == 64 and "generate" in case:
            goals.append(Goal(f"{name}: times `generate`", 1.5, case.ratio("generate").median))
        if case.entry["dtype"] == "float32" and "generate" in case:
            goals.append(Goal(f"{name}: rows with `generate`'s tokens", rows, case.entry["same"]["generate"]))
    return goals


def _keys(cases: Sequence[Case]) -> list[Record]:
    keys: list[Record] = []
    for case in cases:
        if case.key not in keys:
            keys.append(case.key)
    return keys


def _speeds(cases: Sequence[Case], peers: Sequence[str], clock: str) -> Iterator[str]:
    yield f"Decoding, tokens {_UNITS[clock]}, after every row's first token."
    yield ""
    heads = "".join(f" {peer} | ratio (low–high) | same rows |" for peer in peers)
    yield f"| prompt | rows | lengths | qpdsl | of the roofline |{heads}"
    yield "|---:|---:|---|---:|---:|" + "---:|---:|---:|" * len(peers)
    for case in cases:
        prompt, rows, lengths = case.shape
        cells = "".join(
            f" {case.speed(peer):,.1f} | {case.ratio(peer)} | {case.entry['same'][peer]}/{rows} |"
            if peer in case
            else " | | |"
            for peer in peers
        )
        yield f"| {prompt} | {rows} | {lengths} | {case.speed(OURS):,.1f} | {case.share} |{cells}"


def _firsts(cases: Sequence[Case], peers: Sequence[str]) -> Iterator[str]:
    yield "Seconds until every row has its first token, and the ratio of tokens a second in all, prompts counted."
    yield ""
    heads = "".join(f" {peer} | ratio | in all |" for peer in peers)
    yield f"| prompt | rows | lengths | qpdsl |{heads}"
    yield "|---:|---:|---|---:|" + "---:|---:|---:|" * len(peers)
    for case in cases:
        prompt, rows, lengths = case.shape
        cells = ""
        for peer in peers:
            if peer in case:
                first = _over(case.first(peer), case.first(OURS))
                whole = _over(case.whole(OURS), case.whole(peer))
                cells += f" {statistics.median(case.first(peer)):.2f} | {first.median:.2f} | {whole.median:.2f} |"
            else:
                cells += " | | |"
        yield f"| {prompt} | {rows} | {lengths} | {statistics.median(case.first(OURS)):.2f} |{cells}"


def _memory(record: Record, cases: Sequence[Case], peers: Sequence[str]) -> Iterator[str]:
    yield "| side | loaded in | MiB in memory when loaded | after its largest run | at the most |"
    yield "|---|---:|---:|---:|---:|"
    for side in (OURS, *peers):
        loads = [load for load in record["loads"] if {**load, **cases[0].key, "side": side} == load]
        replies = [reply for case in cases for reply in case.rounds.get(side, [])]
        if loads and replies:
            after, peak = max(reply["resident"] for reply in replies), max(reply["peak"] for reply in replies)
            yield (
                f"| {side} | {loads[0]['seconds']:.1f} s | {loads[0]['resident'] / _MIB:,.0f} | {after / _MIB:,.0f} "
                f"| {peak / _MIB:,.0f} |"
            )


def _roofline(record: Record, key: Record, clock: str) -> Iterator[str]:
    roofline = next(entry for entry in record["rooflines"] if {**entry, **key} == entry)
    model = record["models"][key["model"]]
    read = roofline["read"][_CLOCKS[clock]]
    size = model["bytes"][key["dtype"]]
    adds = roofline["multiply_adds"][_CLOCKS[clock]]
    text = (
        f"A step reads {size / 1e6:,.0f} MB of weights; so much memory is read at {read / 1e9:.1f} GB {_UNITS[clock]}, "
        f"which allows {read / size:,.1f} steps. A token takes {model['multiply_adds'] / 1e6:,.0f} million "
        f"multiply-adds; {adds / 1e9:,.0f} thousand million are done {_UNITS[clock]} in float32"
    )
    if roofline["bfloat16_multiply_adds"]:
        text += f", {roofline['bfloat16_multiply_adds'][_CLOCKS[clock]] / 1e9:,.0f} in bfloat16"
    yield text + "."


def _notes(record: Record, clock: str) -> Iterator[str]:
    clock_name = "the wall clock" if clock == "wall" else "processor time of the side and all that it starts"
    yield (
        f"Times are by {clock_name}. Ratio: ours over theirs, the median of the rounds, lowest and highest. The "
        "bytes of a step are those of the matrices in the type in which each side is given them, the embeddings aside "
        "unless they are the head; keys and values are not counted. Shares are of what plain loops reach with the same "
        "threads in the same run, the loop over memory with a working set of the model's size. No side is asked for "
        "log-probabilities; qpdsl then reads a copy of a float head in eight bits and few rows of the head itself, so "
        "that its share of the memory's speed may be above 100%. Keys and values: qpdsl float32; vLLM and `generate` "
        "in the weights' type; llama.cpp float32 with float32 weights, else float16, its default. vLLM holds memory "
        "for keys and values ahead of time."
    )
    machine = record["machine"]
    sides = ", ".join(f"{side} {version}" for side, version in record["sides"].items())
    yield ""
    yield (
        f"Measured on: {machine['processor']}, {machine['cores']} cores, Python {machine['python']}, torch "
        f"{machine['torch']}, transformers {machine['transformers']}; {sides}."
    )


def _over(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    return Ratio.of([a / b for a, b in zip(ours, theirs, strict=True)])
