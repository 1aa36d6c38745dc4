"""What a row asked of models, kept in its run's file: every sample that was drawn, and every number that was read.

A sample stands under a digest of all that it depends on (`SampleSource`) and its noise key, a number under a digest of
the model, the tokens up to where it was read, and what was read there. So they answer any program that asks the same of
a model again. A model counts by what its files hold, whatever it is called.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, Self

from qpdsl.executor.requests.drawing import Confidence, DrawFigures
from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import (
    GenerateRequest,
    LogProbRequest,
    ReadRequest,
    Request,
    Sample,
    StepCounts,
    TreeRequest,
)
from qpdsl.executor.requests.ticket import EngineSeconds, Ticket
from qpdsl.executor.sample_memory.kept_sample import DrawCost, KeptSample, SampleSource
from qpdsl.executor.sample_memory.packed_numbers import packed, unpacked
from qpdsl.executor.sample_memory.row_trajectory import RowTrajectory

# The logits of all ids are too many to be saved.
SavedRead = ReadRequest | LogProbRequest | TreeRequest
_DIGEST = 12
# Bytes that a row's samples take where they are read again.
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SavedSample:
    """One sample that a row's requests drew. `source` and `prompt` are digests: see `source_digest`.

    `key` is its noise key, 0 where it has no part in it. `logprobs` and `figures` say whether these were asked for.
    """

    source: bytes
    prompt: bytes
    key: int
    max_tokens: int
    sample: Sample
    logprobs: bool
    figures: bool
    cost: DrawCost = field(compare=False, repr=False)

    @property
    def kept(self) -> KeptSample:
        """The same as a sample memory holds it."""
        return KeptSample.packed(self.sample, self.cost, logprobs=self.logprobs, figures=self.figures)


@dataclass(frozen=True, slots=True)
class RowSamples:
    """All that was drawn for a row, in the order of its requests, and what was read, by its digest, with the seconds.

    `models` has what is known of each model without its weights, by the digest of its files. `trajectory`: how the row
    came to its answer, where that was to be saved too.
    """

    drawn: tuple[SavedSample, ...] = ()
    reads: Mapping[bytes, tuple[float, float]] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    trajectory: RowTrajectory | None = None

    def encoded(self) -> bytes:
        """All of it in few bytes."""
        groups: dict[tuple[Any, ...], list[SavedSample]] = {}
        for one in self.drawn:
            shared = (one.source, one.prompt, one.max_tokens, one.logprobs, one.figures, id(one.cost))
            groups.setdefault(shared, []).append(one)
        reads = list(self.reads.items())
        text = json.dumps(
            {
                "models": self.models,
                "drawn": [_group_json(own) for own in groups.values()],
                "read": {
                    "at": base64.b85encode(b"".join(digest for digest, _ in reads)).decode(),
                    "values": packed([value for _, (value, _) in reads]),
                    "seconds": packed([seconds for _, (_, seconds) in reads], "f"),
                },
                **({} if self.trajectory is None else {"trajectory": self.trajectory.to_json()}),
            },
            separators=(",", ":"),
        )
        return zlib.compress(text.encode(), 6)

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """What `encoded` gave. Raises ValueError for anything else."""
        try:
            said = json.loads(_inflated(data))
            at = base64.b85decode(said["read"]["at"])
            digests = [at[start : start + _DIGEST] for start in range(0, len(at), _DIGEST)]
            values, seconds = unpacked(said["read"]["values"]), unpacked(said["read"]["seconds"])
            reads = dict(zip(digests, zip(values, seconds, strict=True), strict=True))
            drawn = tuple(one for group in said["drawn"] for one in _of_group(group))
            trajectory = RowTrajectory.from_json(said["trajectory"]) if "trajectory" in said else None
            return cls(drawn, reads, said["models"], trajectory)
        except (KeyError, TypeError, AttributeError, IndexError, zlib.error) as error:
            raise ValueError(f"they are no samples: {error}") from error


class SampleRecorder:
    """Follows what is asked of an engine for one row.

    `contents` has a digest of each model's files, by its id, and `models` what is known of each without its weights.
    """

    def __init__(self, contents: Mapping[str, str], models: Mapping[str, Any] | None = None) -> None:
        self._contents = contents
        self._models = {contents[model]: facts for model, facts in (models or {}).items()}
        self._asked: list[tuple[str, Request, Ticket]] = []

    def engine(self, engine: Engine) -> Engine:
        """An engine before this one, of which all requests are followed."""
        return _FollowedEngine(engine, self._asked)

    def recorded(self) -> RowSamples:
        """All that there is by now; of requests that were given up, the samples that had ended."""
        drawn: list[SavedSample] = []
        reads: dict[bytes, tuple[float, float]] = {}
        for model, request, ticket in self._asked:
            content = self._contents.get(model)
            if content is None:
                continue
            if request.generation is not None:
                drawn += _drawn(content, request.generation, ticket)
            elif isinstance(request, SavedRead) and ticket.answered is not None:
                digests = [digest for place in read_digests(content, request) for digest in place]
                values = [value for place in request.values(ticket.answered) for value in place]
                seconds = ticket.seconds / len(values)
                reads.update((digest, (value, seconds)) for digest, value in zip(digests, values, strict=True))
        return RowSamples(tuple(drawn), reads, self._models)


class _FollowedEngine:
    def __init__(self, engine: Engine, asked: list[tuple[str, Request, Ticket]]) -> None:
        self._engine = engine
        self._asked = asked

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        ticket = self._engine.submit(model, request)
        self._asked.append((model, request, ticket))
        return ticket

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()


def source_digest(content: str, request: GenerateRequest, index: int = 0) -> tuple[bytes, bytes] | None:
    """Of what sample `index` of a request depends on but its noise key and `max_tokens`, and of its prompt.

    `content` is a digest of the model's files. How the steps are carried out (`jump`, `draft`, `route`) has no part in
    it, as no token depends on it. None where it cannot be told what the samples depend on.
    """
    first = None if request.rank is None else request.rank + index
    plain = replace(request, rank=None, cached=True, jump=False, draft=None, route=None)
    source = SampleSource.of(content, plain)
    return None if source is None else digest_of(source, first)


def prompt_digest(prompt: Sequence[int]) -> bytes:
    """Of the tokens that a sample goes on from."""
    return blake2b(array("q", prompt).tobytes(), digest_size=_DIGEST).digest()


def digest_of(source: SampleSource, rank: int | None = None) -> tuple[bytes, bytes] | None:
    """The same of a source; `rank` is that of the first token."""
    prompt = prompt_digest(source.request.prompt)
    alike = replace(source.request, prompt=(0,), jump=False, draft=None, route=None)
    try:
        told = _canonical((source.model, alike, source.ended_by, rank))
    except TypeError:
        return None
    return blake2b(prompt + told.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest(), prompt


def read_digests(content: str, request: SavedRead) -> list[tuple[bytes, ...]]:
    """A digest for each value at each position of a request: what it depends on."""
    logits = b"logits" if isinstance(request, ReadRequest) else b"log-probabilities"
    tokens, first = request.tokens, request.positions[0]
    before = blake2b(logits + content.encode() + b"\0", digest_size=_DIGEST)
    before.update(array("q", tokens[: first + 1]).tobytes())
    states = {first: before}
    parents = request.parents if isinstance(request, TreeRequest) else None
    found = []
    for place, position in enumerate(request.positions):
        if position not in states:
            # In a tree a node follows its parent; elsewhere it follows all tokens before.
            last = first if parents is None else first + 1 + parents[position - first - 1]
            last = max(states) if parents is None else last
            state = states[last].copy()
            state.update(array("q", tokens[last + 1 : position + 1] if parents is None else (tokens[position],)))
            states[position] = state
        own = []
        for ids in request.read_ids(place):
            state = states[position].copy()
            state.update(b"\0" + array("q", ids).tobytes())
            own.append(state.digest())
        found.append(tuple(own))
    return found


def _drawn(content: str, request: GenerateRequest, ticket: Ticket) -> Iterator[SavedSample]:
    digests = source_digest(content, request)
    ended = ticket.ended
    cost = DrawCost(
        EngineSeconds(ticket.forwards.prompt, ticket.forwards.drawn), sum(len(own.tokens) for own in ended.values())
    )
    source = SampleSource.of(content, replace(request, rank=None, cached=True))
    for index, sample in sorted(ended.items()):
        if request.rank is not None:
            digests = source_digest(content, request, index)
        if digests is None or source is None:
            return
        yield SavedSample(
            *digests,
            source.key(request.keys[index]),
            request.max_tokens,
            replace(sample, watch=None),
            request.logprobs,
            request.figures,
            cost,
        )


def _canonical(value: object) -> str:
    """Text that is equal for equal values, in any process. Raises TypeError for values of which that is not known."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return repr(value)
        case tuple() | list():
            return f"({','.join(map(_canonical, value))})"
        case frozenset() | set():
            return f"{{{','.join(sorted(map(_canonical, value)))}}}"
        case Mapping():
            return _canonical(sorted((_canonical(key), _canonical(own)) for key, own in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        own = [f"{one.name}={_canonical(getattr(value, one.name))}" for one in fields(value) if one.compare]
        return f"{type(value).__name__}({','.join(own)})"
    raise TypeError(f"{type(value).__name__} is not written down")


def _inflated(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(data, _MAX_BYTES)
    if not unpacking.eof:
        raise ValueError("they are cut off, or larger than any")
    return text


def _group_json(group: Sequence[SavedSample]) -> dict[str, Any]:
    first = group[0]
    return {
        "source": first.source.hex(),
        "prompt": first.prompt.hex(),
        "max_tokens": first.max_tokens,
        "logprobs": first.logprobs,
        "figures": first.figures,
        "seconds": [round(first.cost.forwards.prompt, 6), round(first.cost.forwards.drawn, 6)],
        "samples": [[one.key, _sample_json(one.sample, told=one.logprobs)] for one in group],
    }


def _of_group(group: Mapping[str, Any]) -> Iterator[SavedSample]:
    samples = [(key, _sample(said, told=group["logprobs"])) for key, said in group["samples"]]
    cost = DrawCost(EngineSeconds(*group["seconds"]), sum(len(sample.tokens) for _, sample in samples))
    source, prompt = bytes.fromhex(group["source"]), bytes.fromhex(group["prompt"])
    for key, sample in samples:
        how = (group["max_tokens"], sample, group["logprobs"], group["figures"], cost)
        yield SavedSample(source, prompt, key, *how)


def _sample_json(sample: Sample, *, told: bool) -> dict[str, Any]:
    """What differs from a sample whose tokens each had a forward of their own. `told`: its log-probabilities are."""
    said: dict[str, Any] = {"tokens": list(sample.tokens), "finish": sample.finish}
    if told:
        said |= {"logprob": sample.logprob, "logprobs": packed(sample.logprobs)}
    if sample.near_ties:
        said["near_ties"] = sample.near_ties
    if sample.steps != _usual_steps(sample.tokens):
        usual = StepCounts()
        steps = {one.name: getattr(sample.steps, one.name) for one in fields(StepCounts)}
        said["steps"] = {name: count for name, count in steps.items() if count != getattr(usual, name)}
    if sample.confidence is not None:
        said["confidence"] = [sample.confidence.by, sample.confidence.threshold, sample.confidence.share]
    if sample.figures:
        said["figures"] = packed([number for figures in sample.figures for number in figures])
    said |= {name: getattr(sample, name) for name in ("billed", "thought") if getattr(sample, name) is not None}
    return said


def _sample(said: Mapping[str, Any], *, told: bool) -> Sample:
    tokens = tuple(said["tokens"])
    numbers = unpacked(said["figures"]) if "figures" in said else []
    steps = _usual_steps(tokens)
    if "steps" in said:
        lists = {name: _frozen(count) for name, count in said["steps"].items()}
        steps = StepCounts(**lists)
    return Sample(
        tokens,
        said["finish"],
        said["logprob"] if told else 0.0,
        said.get("near_ties", 0),
        logprobs=tuple(unpacked(said["logprobs"])) if told else (0.0,) * len(tokens),
        steps=steps,
        confidence=Confidence(*said["confidence"]) if "confidence" in said else None,
        figures=tuple(DrawFigures(*numbers[start : start + 3]) for start in range(0, len(numbers), 3)),
        billed=said.get("billed"),
        thought=said.get("thought"),
    )


def _usual_steps(tokens: Sequence[int]) -> StepCounts:
    return StepCounts(len(tokens), len(tokens))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
