"""The variants of kernels that users meet: each case launches what a step of some model launches.

A new kernel is a line here: a case whose function calls its launcher with tensors of the sizes of a real step. They are
not read, so they may be empty. A variant that an earlier case launched too counts for that case alone. Kernels are the
functions whose names end in `_kernel`; `--check` names those that no case launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch

from qpdsl.executor.kernels import layers, paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, reads_fp8, row_bytes
from qpdsl.executor.kernels.data.layer_constants import Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Paths, PrefixCascade, Scoring
from qpdsl.executor.kernels.data.token_draws import Filters, HeadWeights, TokenDraws
from qpdsl.executor.kernels.triton import sample

CAPABILITIES = (80, 89, 90)
# The code for 80 is nearly that for 89: most of it is compiled for these alone.
LATER = (89, 90)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PAGE = 16
# Sequences of a step, and new tokens of the chunk of a prompt beside them.
_SEQUENCES, _CHUNK = 16, 256


@dataclass(frozen=True, slots=True)
class Case:
    """What `launch()` launches on devices of `capabilities`.

    quick: is compiled in tests too, for the `LATER` capabilities
    """

    name: str
    form: str
    launch: Callable[[], object] = field(hash=False)
    capabilities: tuple[int, ...] = CAPABILITIES
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """Key heads, queries a key head, width, and the type of the model; what its attention has that others do not."""

    name: str
    kv_heads: int
    fold: int
    dim: int
    dtype: torch.dtype = BF16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def scoring(self) -> Scoring:
        sinks = torch.zeros(self.kv_heads * self.fold, dtype=self.dtype) if self.sinks else None
        return Scoring(self.dim**-0.5, self.window, self.softcap, sinks)

    def rows(self, kind: RowKind) -> KVRows:
        if kind == "plain":
            return KVRows.plain(torch.empty(4, PAGE, 2, self.kv_heads, self.dim, dtype=self.dtype))
        size = row_bytes(kind, self.dtype, PAGE, self.kv_heads, self.dim)
        return KVRows.quantized(torch.empty(4, size, dtype=torch.uint8), kind, PAGE, self.kv_heads, self.dim)

    def new(self, tokens: int, heads: int) -> torch.Tensor:
        return torch.empty(tokens, heads, self.dim, dtype=self.dtype)


def batch_of(decodes: int, chunk: int, shared: bool = False, trees: bool = False, longest: int = 4096) -> PagedBatch:
    """`decodes` sequences of one token each, and one of `chunk` tokens where that is not 0."""
    sequences, tokens = decodes + (chunk > 0), decodes + chunk

    def integers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    tiles = integers(3, 5)
    return PagedBatch(
        pages=integers(sequences, 64),
        context=integers(sequences),
        slots=torch.zeros(tokens, dtype=torch.int64),
        query_start=integers(sequences + 1),
        decodes=decodes,
        longest=longest,
        longest_query=max(chunk, 1),
        cascade=PrefixCascade(integers(decodes), tiles, integers(decodes), integers(decodes), decodes, 1, 2048, 2048)
        if shared
        else None,
        paths=Paths(integers(sequences), integers(sequences, 8)) if trees else None,
    )


def attend(model: Model, kind: RowKind, batch: PagedBatch, deterministic: bool = False) -> None:
    query = model.new(batch.slots.shape[0], model.kv_heads * model.fold)
    paged_attention.attention(query, model.rows(kind), batch, 1, model.scoring, deterministic)


def put(model: Model, kind: RowKind) -> None:
    new = model.new(_SEQUENCES, model.kv_heads)
    paged_attention.store(model.rows(kind), new, new, batch_of(_SEQUENCES, 0).slots, 1)


# What a step may be, by its name in the table.
FORMS: dict[str, Callable[[Model, RowKind], None]] = {
    "decode": lambda model, kind: attend(model, kind, batch_of(_SEQUENCES, 0)),
    "prefill": lambda model, kind: attend(model, kind, batch_of(0, _CHUNK)),
    "mixed": lambda model, kind: attend(model, kind, batch_of(_SEQUENCES, _CHUNK)),
    "short chunk": lambda model, kind: attend(model, kind, batch_of(0, 8)),
    "short decode": lambda model, kind: attend(model, kind, batch_of(64, 0, longest=128)),
    "shared prefix": lambda model, kind: attend(model, kind, batch_of(_SEQUENCES, 0, shared=True)),
    "deterministic decode": lambda model, kind: attend(model, kind, batch_of(_SEQUENCES, 0), True),
    "deterministic prefill": lambda model, kind: attend(model, kind, batch_of(0, _CHUNK), True),
    "deterministic mixed": lambda model, kind: attend(model, kind, batch_of(_SEQUENCES, _CHUNK), True),
    "trees": lambda model, kind: attend(model, kind, batch_of(_SEQUENCES, 0, trees=True)),
    "store": put,
}
KINDS: tuple[RowKind, ...] = ("plain", "int8", "fp8")
QUICK_KINDS = ("plain", "fp8")
# Llama 3 of 8B and of 1B parameters have the shapes of most others.
LLAMA_8B, LLAMA_1B = Model("8B bf16", 8, 4, 128), Model("1B bf16", 8, 4, 64)
QWEN_7B, SMALL = Model("Qwen 2.5 7B bf16", 4, 7, 128), Model("float32, 64 wide", 2, 4, 64, F32)
OTHERS = (
    Model("8B fp16", 8, 4, 128, F16),
    QWEN_7B,
    Model("gpt-oss bf16", 8, 8, 64, window=128, sinks=True),
    Model("Gemma 3 bf16", 4, 2, 256, window=512),
    Model("Gemma 2 bf16", 4, 2, 256, softcap=50.0),
    Model("Phi 3 bf16, 96 wide", 32, 1, 96),
    SMALL,
    Model("float32, 80 wide", 2, 7, 80, F32),
)
# Gemma 2 and Gemma 3 as stored in float32: their blocks are the largest of all.
WIDEST = (Model("float32, 256 wide", 4, 2, 256, F32), Model("float32, 256 wide, fold 8", 1, 8, 256, F32))


def served(kind: RowKind, capabilities: tuple[int, ...]) -> tuple[int, ...]:
    """Those that keep keys and values so: one that reads fp8 itself takes no int8."""
    return tuple(each for each in capabilities if kind != "int8" or not reads_fp8(*divmod(each, 10)))


def attention_cases() -> list[Case]:
    def of(model: Model, kinds: Iterable[RowKind], forms: Iterable[str], capabilities: tuple[int, ...]) -> list[Case]:
        return [
            Case(
                f"{model.name} {kind}",
                form,
                partial(FORMS[form], model, kind),
                served(kind, capabilities),
                (model is LLAMA_8B and kind in QUICK_KINDS and form in ("decode", "prefill"))
                or (model is WIDEST[0] and form == "decode"),
            )
            for kind in kinds
            for form in forms
        ]

    most = ("decode", "prefill", "mixed", "deterministic decode")
    cases = of(LLAMA_8B, KINDS, most, CAPABILITIES)
    cases += of(LLAMA_8B, KINDS, [form for form in FORMS if form not in most], LATER)
    cases += of(LLAMA_1B, KINDS, ("decode", "prefill"), CAPABILITIES)
    cases += of(LLAMA_1B, ("plain",), ("mixed", "shared prefix", "deterministic decode"), LATER)
    cases += [case for model in OTHERS for case in of(model, ("plain",), ("decode", "prefill"), LATER)]
    return cases + [case for model in WIDEST for case in of(model, ("plain",), most, LATER)]


def integers(count: int, tensors: int) -> list[torch.Tensor]:
    return [torch.zeros(count, dtype=torch.int64) for _ in range(tensors)]


def draws_of(count: int) -> TokenDraws:
    keys, positions = integers(count, 2)
    return TokenDraws(keys.int(), torch.ones(count), keys, positions)


def mask_of(count: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lines of bits, and the line of each draw."""
    return torch.zeros(count, -(-vocabulary // 32), dtype=torch.int32), torch.zeros(count, dtype=torch.int32)


def logits(rows: int, vocabulary: int, masked: bool = False, filtered: bool = False) -> None:
    which = torch.zeros(rows, dtype=torch.int32)
    shares = torch.ones(rows, dtype=torch.float64)
    sample.sample(
        torch.empty(rows, vocabulary),
        draws_of(rows),
        *(mask_of(rows, vocabulary) if masked else (None, None)),
        Filters(which, shares, shares, which, rows) if filtered else None,
    )


def dense(count: int, head: HeadWeights, masked: bool = False, deterministic: bool = False) -> None:
    vocabulary, width = head.weight.shape
    hidden = torch.empty(count, width, dtype=head.weight.dtype)
    bits, lines = mask_of(count, vocabulary) if masked else (None, None)
    layers.dense(hidden, head, draws_of(count), bits, lines, deterministic)


def head_cases() -> list[Case]:
    llama = HeadWeights(torch.empty(128_256, 4096, dtype=BF16))
    gemma = HeadWeights(torch.empty(256_000, 2304, dtype=BF16), softcap=30.0)
    phi = HeadWeights(torch.empty(51_200, 2560, dtype=F16), torch.empty(51_200, dtype=F16))
    small = HeadWeights(torch.empty(49_152, 576))
    return [
        Case("128,256 logits", "draw", partial(logits, 64, 128_256), quick=True),
        Case("128,256 logits", "draw, masked", partial(logits, 64, 128_256, masked=True), LATER),
        Case("128,256 logits", "draw, filtered", partial(logits, 64, 128_256, filtered=True)),
        Case("head 8B bf16", "dense, 64 draws", partial(dense, 64, llama), quick=True),
        Case("head 8B bf16", "dense, masked", partial(dense, 64, llama, masked=True), LATER),
        Case("head 8B bf16", "dense, 1 draw", partial(dense, 1, llama)),
        Case("head Gemma 2 bf16, capped", "dense, 16 draws", partial(dense, 16, gemma), LATER),
        Case("head Phi 2 fp16, biased", "dense, 16 draws", partial(dense, 16, phi), LATER),
        Case("head SmolLM2 float32", "dense, 16 draws", partial(dense, 16, small), LATER),
    ]


def join(width: int, dtype: torch.dtype, biased: bool = False, after: bool = False) -> None:
    """A product joins the residual stream; with `after` it is normed before."""
    weights = NormWeights(torch.empty(width), 1e-6)
    addition = Addition(torch.empty(width) if biased else None, weights if after else None)
    rows = torch.empty(_SEQUENCES, width, dtype=dtype)
    layers.add_norm(rows, torch.empty_like(rows), addition, weights)


def rotate(model: Model, kind: RowKind, biased: bool = False, normed: bool = False) -> None:
    queries = model.kv_heads * model.fold
    bias = torch.empty((queries + 2 * model.kv_heads) * model.dim) if biased else None
    norms = torch.empty(queries + model.kv_heads, model.dim) if normed else None
    heads = HeadConstants(queries, model.kv_heads, model.dim, bias, norms)
    joined = torch.empty(_SEQUENCES, heads.width, dtype=model.dtype)
    positions, slots = integers(_SEQUENCES, 2)
    rotations = torch.empty(4096, model.dim // 2, 2)
    layers.rotate_store(joined, positions, slots, rotations, heads, model.rows(kind), 1)


def gate(width: int, dtype: torch.dtype) -> None:
    layers.gate(torch.empty(_SEQUENCES, 2 * width, dtype=dtype), None, "silu")


def layer_cases() -> list[Case]:
    return [
        Case("8B bf16", "add and norm", partial(join, 4096, BF16), quick=True),
        Case("8B bf16", "gate", partial(gate, 14_336, BF16), quick=True),
        Case("1B bf16", "add and norm", partial(join, 2048, BF16)),
        Case("Gemma 2 bf16", "norm, add and norm", partial(join, 2304, BF16, after=True), LATER),
        Case("float32, 64 wide", "add and norm", partial(join, 896, F32, biased=True), LATER),
        *(
            Case(
                f"8B bf16 {kind}",
                "rotate and store",
                partial(rotate, LLAMA_8B, kind),
                served(kind, CAPABILITIES),
                kind in QUICK_KINDS,
            )
            for kind in KINDS
        ),
        Case("1B bf16 plain", "rotate and store", partial(rotate, LLAMA_1B, "plain")),
        Case("Qwen 2.5 7B bf16 plain", "rotate and store", partial(rotate, QWEN_7B, "plain", biased=True), LATER),
        Case("Qwen 3 8B bf16 plain", "rotate and store", partial(rotate, LLAMA_8B, "plain", normed=True), LATER),
        Case("float32, 64 wide plain", "rotate and store", partial(rotate, SMALL, "plain", biased=True), LATER),
    ]


CASES: tuple[Case, ...] = (
    *attention_cases(),
    *layer_cases(),
    *head_cases(),
)
