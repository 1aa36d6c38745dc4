"""The profile of a device: what it copies and multiplies in a second, and the seconds of a step of each model.

A first run times the steps of its models (`timed_steps.py`), and `qpdsl profile` measures more
(`executor/measure/device.py`); both are kept as JSON. Where nothing was measured the figures are nominal, and every
estimate that is shown says so. Rates are those of one process with the threads it was measured with. JSON data is
checked when it is read, since it may be damaged or of another version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from qpdsl.grammar.model_id import base_of
from qpdsl.planner.cost.validation import by_name, count, mapping, number, positive, record, rising

# The version of the JSON data.
VERSION = 3
# Where the figures of the models of a plan come from.
DeviceSource = Literal["profiled", "timed", "partial", "nominal"]
SOURCE_WORDS: Mapping[DeviceSource, str] = {
    "profiled": "the device as `qpdsl profile` measured it",
    "timed": "the device as an earlier run timed it",
    "partial": "the device as measured, without one of the models",
    "nominal": "a device that was not measured",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers that a transformer's cost depends on.

    `parameters` are those that every token is multiplied with: without embeddings that are only looked up, with a head
    that shares them. `head_parameters` are those of the head among them, for `vocabulary` ids; 0 where not known.
    `number_bytes` is the size of one weight, less than a byte where several share one, and of one number of the KV
    cache unless `kv_token_bytes` gives the bytes of a token there. `state_bytes` is what layers keep of a sequence
    besides, however long it is.
    """

    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    number_bytes: float = 4
    kv_token_bytes: float | None = None
    head_parameters: int = 0
    vocabulary: int = 0
    state_bytes: float = 0.0

    @property
    def head_share(self) -> float:
        """The head's part of the weights that a token is multiplied with; 0 where not known."""
        return min(self.head_parameters / self.parameters, 1.0)

    @property
    def weight_bytes(self) -> float:
        """The bytes that every step reads once."""
        return self.parameters * self.number_bytes

    @property
    def kv_bytes(self) -> float:
        """Keys and values of one token."""
        if self.kv_token_bytes is not None:
            return self.kv_token_bytes
        return 2 * self.layers * self.kv_heads * self.head_dim * self.number_bytes

    def kept_bytes(self, tokens: float, sequences: float = 1.0) -> float:
        """What memory holds of so many sequences with so many tokens in all."""
        return tokens * self.kv_bytes + sequences * self.state_bytes

    def read_bytes(self, tokens: float, sequences: float) -> float:
        """What a step moves beside weights: keys and values of so many tokens; states are read and written."""
        return tokens * self.kv_bytes + 2 * sequences * self.state_bytes

    def flops(self, context: float) -> float:
        """Of one token that attends to `context` tokens: two operations a weight, and attention."""
        return 2.0 * self.parameters + 4.0 * self.layers * self.heads * self.head_dim * context


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a step by its size, measured at a few sizes; linear between and beyond them."""

    points: tuple[tuple[float, float], ...]

    def at(self, size: float) -> float:
        """The seconds of a step of this size; below the least measured size, those of that size."""
        sizes = [point for point, _ in self.points]
        index = bisect_right(sizes, size)
        if index == 0 or len(self.points) == 1:
            return self.points[0][1]
        (left, low), (right, high) = self.points[min(index, len(self.points) - 1) - 1 : min(index, len(sizes) - 1) + 1]
        return low + (high - low) * (size - left) / (right - left)


@dataclass(frozen=True, slots=True)
class Table:
    """Throughput by KV memory and batch size, tokens a second: the T of section 7.2.1 of the thesis.

    There is a row for each of `kv_tokens`, the tokens that the cache could hold, and a column for each of `batches`,
    the sequences that ran side by side.
    """

    kv_tokens: tuple[int, ...]
    batches: tuple[int, ...]
    rates: tuple[tuple[float, ...], ...]

    def at(self, kv_tokens: float, batch: float) -> float:
        """Tokens a second: interpolated inside the measured range, the nearest figure outside of it."""
        rates = [_between(self.batches, row, batch) for row in self.rates]
        return _between(self.kv_tokens, rates, kv_tokens)


def _between(sizes: Sequence[float], values: Sequence[float], size: float) -> float:
    """The value at a size: linear between known sizes, the nearest value outside of them."""
    index = bisect_right(sizes, size)
    if index == 0 or index == len(sizes):
        return values[min(index, len(sizes) - 1)]
    left, right = sizes[index - 1], sizes[index]
    return values[index - 1] + (values[index] - values[index - 1]) * (size - left) / (right - left)


@dataclass(frozen=True, slots=True)
class KVProfile:
    """A model whose keys and values are kept in another type than it computes them in.

    `epsilon` is the greatest difference of a logit on the calibration texts. `loss` is the share of draws there whose
    token changes, greedy or sampled with the same noise, and one more than was seen counts; None where that was not
    measured. `token_bytes` are the bytes of a token. `decode` and `prefill` are the curves of such steps.
    """

    token_bytes: float
    epsilon: float
    decode: Curve
    prefill: Curve
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model on the device. `overhead` is the part of a step, in seconds, that does not depend on its size.

    `decode` gives a step's seconds by the sequences decoding in it, at `context` tokens each; `prefill` by the prompt
    tokens computed in it. `read_seconds` is what a token of context costs a sequence that decodes, None where that was
    not measured. `generate` and `score` are throughput tables of drawing and of scoring. `kv_types` holds the profiles
    with keys and values in other types, by the types' names. `sparse_share`: up to which share of the head a list of
    ids takes no longer than all of it, None where that was not measured. `steps`: of the run that it was timed in, 0
    where `qpdsl profile` measured it.
    """

    shape: ModelShape
    overhead: float
    context: int
    decode: Curve
    prefill: Curve
    generate: Table | None = None
    score: Table | None = None
    kv_types: Mapping[str, KVProfile] = field(default_factory=dict)
    read_seconds: float | None = None
    sparse_share: float | None = None
    steps: int = 0

    def decode_seconds(self, batch: float, rows: float, context: float, bandwidth: float) -> float:
        """Of a step in which so many sequences draw, `rows` of each, in a context of so many tokens."""
        read = self.shape.kv_bytes / bandwidth if self.read_seconds is None else self.read_seconds
        seconds = self.decode.at(max(batch * rows, 1.0))
        return max(seconds + (context - self.context) * batch * read, seconds / 2)

    def kept(self, kv_type: str | None) -> ModelProfile:
        """The model with its keys and values in that type; itself where that was not measured."""
        profile = self.kv_types.get(kv_type) if kv_type is not None else None
        if profile is None:
            return self
        shape = replace(self.shape, kv_token_bytes=profile.token_bytes)
        return replace(self, shape=shape, decode=profile.decode, prefill=profile.prefill, generate=None, score=None)


@dataclass(frozen=True, slots=True)
class Device:
    """One device with the models profiled on it.

    `bandwidth` is in bytes a second of a large copy, read and write counted. `peak` is in floating-point operations a
    second of a large matrix product. `row_seconds` is what the runtime spends on one sample outside of the forwards.
    `step_overhead` is in seconds a layer.
    """

    name: str
    kind: str
    dtype: str
    threads: int
    bandwidth: float
    peak: float
    step_overhead: float
    row_seconds: float = 0.0004
    measured: bool = True
    models: Mapping[str, ModelProfile] = field(default_factory=dict)

    def profile(self, model: str, shape: ModelShape | None = None) -> ModelProfile:
        """The measured profile of a model, or one by roofline from its shape."""
        # An adapter changes the weights of a model, and not how long it takes.
        profile = self.models.get(model) or self.models.get(base_of(model))
        if profile is not None:
            return profile
        return self.by_roofline(shape or _DEFAULT_SHAPE)

    def by_roofline(self, shape: ModelShape) -> ModelProfile:
        """A model of this shape, which was not measured."""
        return _roofline(shape, self.bandwidth, self.peak, self.step_overhead)

    def source(self, models: Iterable[str]) -> DeviceSource:
        """Where the figures of these models come from."""
        known = [self.models.get(model) or self.models.get(base_of(model)) for model in models]
        if not self.measured:
            return "nominal"
        if None in known:
            return "partial"
        return "timed" if any(profile.steps for profile in known if profile is not None) else "profiled"

    def with_model(self, model: str, profile: ModelProfile) -> Device:
        return replace(self, models={**self.models, model: profile})


# For an unknown model: the size of the built-in generator.
_DEFAULT_SHAPE = ModelShape(2_600_000, 4, 8, 2, 32)


@lru_cache(maxsize=64)
def _roofline(shape: ModelShape, bandwidth: float, peak: float, step_overhead: float) -> ModelProfile:
    """Steps take as long as the slower of memory and arithmetic (Williams, Waterman and Patterson, 2009)."""
    context = 256

    def step(rows: int, read: float, sequences: int) -> float:
        moved = shape.weight_bytes + shape.read_bytes(rows * read, sequences)
        seconds = max(moved / bandwidth, rows * shape.flops(read) / peak)
        return step_overhead * shape.layers + seconds

    sizes = (1, 4, 16, 64, 128, 256, 512, 2048)
    return ModelProfile(
        shape,
        step_overhead * shape.layers,
        context,
        Curve(tuple((float(size), step(size, context, size)) for size in sizes[:5])),
        # What is kept of a prompt is read once a chunk, not once a token.
        Curve(tuple((float(size), step(size, context / size, 1)) for size in sizes)),
    )


def nominal(kind: str = "cpu") -> Device:
    """A device that was not measured: one CPU core, or one data-centre GPU."""
    if kind.startswith("cuda"):
        return Device("a GPU that was not measured", kind, "bfloat16", 1, 2e12, 3e14, 3e-5, measured=False)
    return Device("a CPU that was not measured", kind, "float32", 1, 1e10, 5e10, 1e-4, measured=False)


def device_json(device: Device) -> dict[str, Any]:
    """The device as data that `device_from_json` reads."""
    return {"version": VERSION, **asdict(device)}


def device_from_json(data: Any) -> Device:
    """Raises ValueError for data of another version or shape."""
    try:
        if mapping(data)["version"] != VERSION:
            raise ValueError("it is of another version")
        return record(Device, data, bandwidth=positive, peak=positive, models=by_name(_profile))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no profile of a device: {error}") from error


def _profile(data: Any) -> ModelProfile:
    names = {"decode": _curve, "prefill": _curve, "generate": _table, "score": _table}
    read: dict[str, Any] = {**names, "shape": _shape, "kv_types": by_name(_kv), "sparse_share": positive}
    return record(ModelProfile, data, ("steps",), **read)


def _shape(data: Any) -> ModelShape:
    # Those of the head are 0 where they are not known.
    absent = ("head_parameters", "vocabulary", "state_bytes")
    return record(ModelShape, data, absent, number_bytes=positive, kv_token_bytes=positive)


def _kv(data: Any) -> KVProfile:
    return record(KVProfile, data, ("loss",), token_bytes=positive, decode=_curve, prefill=_curve)


def _curve(data: Any) -> Curve:
    points = tuple((number(size), positive(seconds)) for size, seconds in mapping(data)["points"])
    rising(tuple(size for size, _ in points))
    return Curve(points)


def _table(data: Any) -> Table:
    data = mapping(data)
    kv_tokens, batches = (tuple(count(value) for value in data[name]) for name in ("kv_tokens", "batches"))
    rising(kv_tokens)
    rising(batches)
    rates = tuple(tuple(number(rate) for rate in row) for row in data["rates"])
    if [len(row) for row in rates] != [len(batches)] * len(kv_tokens):
        raise ValueError("a table has a row for each memory and a column for each batch")
    return Table(kv_tokens, batches, rates)
