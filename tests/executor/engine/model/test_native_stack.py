"""The layers as compiled code: the model's logits or nothing, and bits of a row that are its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.batch.kernel_batch import DirectAssembler, KernelBatch
from qpdsl.executor.engine.memory import sequence
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.sequence import Chunk
from qpdsl.executor.engine.model import paged_model
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.native_stack import NativeStack
from qpdsl.executor.engine.model.paged_model import NativeMismatch, PagedModel
from qpdsl.executor.engine.model.probe import Probe
from qpdsl.executor.kernels.linear import StoredLinear
from qpdsl.executor.kernels.llvm import product
from qpdsl.executor.kernels.llvm.compile import multiplies_pairs, vector_width
from qpdsl.executor.requests.request import ReadRequest
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.grammar.words import KVType
from tests.support.executor.families import Family, tiny
from tests.support.executor.models import random_model
from tests.support.executor.weights import made

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

# Heads and hidden states of which no vector of 16 is a divisor, or not even one of 8, and outputs that fill no panel.
ODD = {"hidden_size": 72, "num_attention_heads": 6, "head_dim": 20, "intermediate_size": 88}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
CASES: dict[str, dict[str, Any]] = {
    "exaone4": {},
    "gemma": {},
    "gemma3_text": {},
    "glm4": {"attention_bias": True},
    "granite": {"residual_multiplier": 0.3, "embedding_multiplier": 5.0, "attention_multiplier": 0.2},
    "llama": {},
    "llama of odd sizes": {**ODD, "attention_bias": True, "mlp_bias": True},
    "llama with one KV head": {"num_key_value_heads": 1, "head_dim": 16},
    "mistral": {},
    "mistral with a window that is not reached": {"sliding_window": 500},
    "mistral with a window of one token": {"sliding_window": 1},
    "olmo2": {},
    "phi3": {},
    "phi3 that turns a part": HALF,
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "smollm3": {"no_rope_layers": [1, 0]},
}


def tiny_model(case: str) -> PreTrainedModel:
    return tiny(Family(case.partition(" ")[0], CASES[case]))


def stack_of(model: PagedModel) -> NativeStack | None:
    """The compiled layers; None where the model runs its modules."""
    return model._stack if isinstance(model._stack, NativeStack) else None


@torch.inference_mode()
def distance(model: PagedModel, probe: Probe, expected: torch.Tensor | None = None) -> float:
    """How far the logits of texts that are read in pieces lie from those expected, as a share of the largest."""
    expected = probe.logits if expected is None else expected
    worst = 0.0
    for trial in probe.pieces(replace(model.layout, dtype=torch.float32), model.fold, model.native):
        logits = model.logits(model.forward(trial.batch, trial.cache)[0])
        worst = max(worst, (logits - expected[trial.expected]).abs().max().item())
    return worst / expected.abs().max().item()


@pytest.mark.parametrize("case", CASES)
def test_gives_the_models_logits(case: str) -> None:
    own = tiny_model(case)
    probe = Probe(own, LogitHead(own), 256)
    model = PagedModel(tiny_model(case))
    assert stack_of(model) is not None
    assert distance(model, probe) < 1e-5


@pytest.mark.parametrize(
    ("case", "dtype"),
    [("gemma3_text", torch.bfloat16), ("granite", torch.bfloat16), ("llama", torch.float16), ("qwen2", torch.bfloat16)],
)
def test_weights_of_16_bits_are_computed_with_in_float32(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "multiplies_pairs", lambda: False)
    own = tiny_model(case).to(dtype)
    head = LogitHead(own)
    probe = Probe(own, head, 256)
    wide = probe.wide_logits(own, head)
    # What it did to the model for that is undone.
    assert {parameter.dtype for parameter in own.parameters()} == {dtype}
    with torch.inference_mode():
        again = own(input_ids=probe.tokens[None]).logits[0].float()
    assert torch.equal(again, probe.logits)
    model = PagedModel(deepcopy(own))
    assert stack_of(model) is not None and model.layout.dtype == dtype
    assert distance(model, probe, wide) < 1e-5 < probe.distance(wide, [*range(64)])
    if case == "llama":
        # Of which nothing but the weights is rounded.
        with torch.inference_mode():
            expected = own.float()(input_ids=probe.tokens[None]).logits[0]
        torch.testing.assert_close(wide, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not multiplies_pairs(), reason="this processor multiplies no pairs of bfloat16")
@pytest.mark.parametrize("case", ["llama", "gemma3_text"])
def test_bfloat16_rounds_as_the_model_does_where_the_processor_multiplies_it(case: str) -> None:
    own = tiny_model(case).bfloat16()
    head = LogitHead(own)
    probe = Probe(own, head, 256)
    wide = probe.wide_logits(own, head)
    model = PagedModel(deepcopy(own))
    stack = stack_of(model)
    assert stack is not None and stack.rounds
    own_distance = probe.distance(wide, [*range(64)]) / wide.abs().max().item()
    assert 1e-5 < distance(model, probe, wide) < 2 * own_distance


class Louder(torch.nn.Module):
    """An MLP with the parts of the family's that computes something else."""

    def __init__(self, mlp: torch.nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = mlp.gate_proj, mlp.up_proj
        self.down_proj, self.act_fn = mlp.down_proj, mlp.act_fn

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden)) * 1.01


def louder() -> PreTrainedModel:
    model = random_model("llama")
    model.model.layers[1].mlp = Louder(model.model.layers[1].mlp)
    return model


def of_odd_inputs() -> PreTrainedModel:
    """Panels hold no 100 inputs."""
    return random_model("llama", intermediate_size=100)


@pytest.mark.parametrize("made_wrong", [louder, of_odd_inputs])
def test_what_cannot_be_compiled_runs_its_modules(made_wrong: Callable[[], PreTrainedModel]) -> None:
    own = made_wrong()
    probe = Probe(own, LogitHead(own), 256)
    model = PagedModel(made_wrong())
    assert stack_of(model) is None and distance(model, probe) < 1e-4


def test_modules_run_where_the_compiled_way_is_not_wanted() -> None:
    own = random_model("llama")
    model = PagedModel(random_model("llama"), native=False)
    assert stack_of(model) is None and distance(model, Probe(own, LogitHead(own), 256)) < 1e-4


def weights_left(model: PreTrainedModel) -> int:
    return sum(part.weight.numel() for part in model.model.layers.modules() if isinstance(part, torch.nn.Linear))


def test_memory_that_is_scarce_holds_no_weights_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    own = random_model("llama")
    probe = Probe(own, LogitHead(own), 256)
    model, given = random_model("llama"), []
    native_forward = NativeStack.forward

    def forward(stack: NativeStack, *arguments: Any, **named: Any) -> Any:
        given.append(weights_left(model))
        return native_forward(stack, *arguments, **named)

    monkeypatch.setattr(NativeStack, "forward", forward)
    PagedModel(model)
    assert given[0] > 0 and weights_left(model) == 0
    monkeypatch.setattr(paged_model, "main_memory", lambda: 0)
    given.clear()
    model = random_model("llama")
    paged = PagedModel(model)
    assert given[0] == 0 and distance(paged, probe) < 1e-5


@pytest.mark.parametrize("made_wrong", [louder, of_odd_inputs])
def test_a_mismatch_is_told_where_the_modules_are_gone(
    made_wrong: Callable[[], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_model, "main_memory", lambda: 0)
    with pytest.raises(NativeMismatch, match="compiled"):
        PagedModel(made_wrong())


def test_positions_past_the_first_table_turn_as_the_model_does() -> None:
    shape = {"max_position_embeddings": 4096}
    model, reference = PagedModel(random_model("llama", **shape)), random_model("llama", **shape)
    probe = Probe(reference, LogitHead(reference), 4096)
    probe.tokens = torch.arange(1500) * 7 % 101
    with torch.inference_mode():
        probe.logits = reference(input_ids=probe.tokens[None]).logits[0]
    stack = stack_of(model)
    assert stack is not None and distance(model, probe) < 1e-3
    # What lies in memory after a table that is too short may be right by chance.
    assert all(len(table) >= 1500 for table in stack._tables)


# How a model's weights are stored, and its keys and values.
FORMS: list[tuple[str, KVType | None]] = [
    ("float32", None),
    ("bfloat16", None),
    ("Q4_1", "int8"),
    ("Q8_0", "fp8"),
    ("float32", "int4"),
]


def model_of(form: str, kv_type: KVType | None) -> PagedModel:
    """A model with biases, a window, norms of heads and weights in this form; larger than a tile in all its sides."""
    sizes = {"hidden_size": 96, "head_dim": 16, "num_attention_heads": 6, "intermediate_size": 160}
    windows = {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
    model = tiny(Family("qwen3", {**sizes, **windows, "attention_bias": True}))
    if form == "bfloat16":
        model.to(torch.bfloat16)
    elif form != "float32":
        for part in model.model.layers.modules():
            for name, child in part.named_children():
                if isinstance(child, torch.nn.Linear):
                    weight = made(form, child.out_features, child.in_features)
                    setattr(part, name, StoredLinear(weight, None if child.bias is None else child.bias.detach()))
    paged = PagedModel(model, kv_type=kv_type)
    assert stack_of(paged) is not None
    return paged


class Texts:
    """Texts that a model reads in pieces, each with pages of its own."""

    def __init__(self, model: PagedModel, texts: Sequence[tuple[int, ...]]) -> None:
        stack, layout = stack_of(model), model.layout
        assert stack is not None
        self._stack, pages = stack, 1
        self._sequences: list[sequence.Sequence] = []
        for tokens in texts:
            request = ReadRequest(tokens, (len(tokens) - 1,), (0,))
            text = sequence.Sequence.of(Ticket(request, lambda ticket: None), request)
            count = -(-len(tokens) // layout.page_size)
            text.pages = [page * layout.layers for page in range(pages, pages + count)]
            pages += count
            self._sequences.append(text)
        buffer = torch.zeros(pages * layout.page_bytes, dtype=torch.uint8)
        self._cache = KVCache(buffer, layout, 0)
        self._assembler = DirectAssembler(layout.page_size, 0)

    @torch.inference_mode()
    def read(
        self, numbers: Sequence[int], count: int, threads: int, early: bool = True
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Hidden states of the next tokens of some texts, `count` of each at most: after all layers, and half-way."""
        # Sequences with one token come first in a batch.
        chunks = [Chunk(text, min(count, text.missing)) for text in (self._sequences[number] for number in numbers)]
        order = sorted(range(len(chunks)), key=lambda place: chunks[place].count > 1)
        step = self._assembler.step([chunks[place] for place in order], 1)
        batch = KernelBatch.of(torch.from_numpy(step.numbers), step.sizes)
        exits = (self._stack.depth // 2,) if early else ()
        last, states = self._stack.forward(batch, self._cache, exits, threads=threads)
        middle = self._stack.normed(states[exits[0]]) if early else last
        read, at = [(torch.empty(0), torch.empty(0))] * len(chunks), 0
        for place in order:
            rows = slice(at, at + chunks[place].count)
            read[place] = last[rows], middle[rows]
            at += chunks[place].count
        for chunk in chunks:
            chunk.sequence.computed += chunk.count
        return read

    @torch.inference_mode()
    def read_some(self, rows: Sequence[int] | None, threads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All texts in one step of which these rows are read: hidden states, and all keys and values after it."""
        step = self._assembler.step([Chunk(text, text.missing) for text in self._sequences], 1)
        batch = KernelBatch.of(torch.from_numpy(step.numbers), step.sizes)
        batch = replace(batch, read_rows=None if rows is None else torch.tensor(rows, dtype=torch.int64))
        return self._stack.forward(batch, self._cache, threads=threads)[0], self._cache.rows.data


@cache
def texts() -> tuple[tuple[int, ...], ...]:
    rng = random.Random(2)
    lengths = [*range(1, 50, 7), *([3] * 57)]
    return tuple(tuple(rng.randrange(1, 100) for _ in range(length)) for length in lengths)


@pytest.mark.parametrize(("form", "kv_type"), FORMS, ids=str)
def test_rows_that_are_read_have_the_bits_that_they_have_among_all(form: str, kv_type: KVType | None) -> None:
    """And keys and values are those of all rows, though the others end before the last layer."""
    model, long = model_of(form, kv_type), [(1,), tuple(range(1, 72)), tuple(range(20, 60))]
    everything, kept = Texts(model, long).read_some(None, 1)
    for rows, threads in (((), 2), ((0, 71, 111), 2), ((40,), 1)):
        hidden, also_kept = Texts(model, long).read_some(rows, threads)
        assert torch.equal(hidden[[*rows]], everything[[*rows]])
        assert torch.equal(also_kept, kept)


@pytest.mark.parametrize(("form", "kv_type"), FORMS, ids=str)
def test_the_bits_of_a_row_are_its_own(form: str, kv_type: KVType | None) -> None:
    """However many rows a forward has, however texts are cut, and whatever the number of threads."""
    model = model_of(form, kv_type)
    together = Texts(model, texts()).read(range(64), 100, 2)

    def same(read: Sequence[tuple[torch.Tensor, torch.Tensor]], numbers: Sequence[int], first: int) -> None:
        for number, (last, middle) in zip(numbers, read, strict=True):
            rows = slice(first, first + len(last))
            assert torch.equal(last, together[number][0][rows])
            assert torch.equal(middle, together[number][1][rows])

    alone = Texts(model, texts())
    for number in range(64):
        same(alone.read([number], 100, 1), [number], 0)
    # Without the middle layer the last one is the same.
    (last, _), *_ = Texts(model, texts()).read([6], 100, 1, early=False)
    assert torch.equal(last, together[6][0])
    in_steps, in_pieces = Texts(model, texts()), Texts(model, texts())
    for first in range(3):
        numbers = [number for number in range(64) if len(texts()[number]) > first]
        same(in_steps.read(numbers, 1, 1 + first), numbers, first)
    for first in range(0, 43, 5):
        numbers = [number for number in range(7) if len(texts()[number]) > first]
        same(in_pieces.read(numbers, 5, 2), numbers, first)
