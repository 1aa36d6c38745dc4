"""The layers as few launches of a device: the model's logits or its modules, and nothing that depends on the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from qpdsl.executor.engine.batch.kernel_batch import DirectAssembler, KernelBatch
from qpdsl.executor.engine.memory import sequence
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.memory.sequence import Chunk
from qpdsl.executor.engine.model import device_stack, paged_model
from qpdsl.executor.engine.model.device_stack import DeviceStack
from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from qpdsl.executor.engine.model.module_stack import ModuleStack
from qpdsl.executor.engine.model.paged_model import NativeMismatch, PagedModel
from qpdsl.executor.engine.model.probe import Probe
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.linear import StoredLinear
from qpdsl.executor.requests.request import ReadRequest
from qpdsl.executor.requests.ticket import Ticket
from tests.executor.engine.model.test_families import CASES, model_of
from tests.executor.engine.model.test_native_stack import louder, weights_left
from tests.support.executor.models import random_model
from tests.support.executor.paged_case import DEVICE
from tests.support.executor.weights import made

# Norms after and before, of heads and over all of them, half-turned and unturned heads, biases, factors: what the
# kernels' constants can be. Other families differ from these in nothing that a kernel sees.
INTERPRETED = ["gemma3_text", "glm4", "granite", "llama with biases", "olmo2", "smollm3"]
TEXT = [(5 * place + 2) % 101 for place in range(70)]


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch computes what the kernels do: quicker than their interpreter."""
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


def fused(model: PreTrainedModel, **options: Any) -> tuple[PagedModel, DeviceStack]:
    paged = PagedModel(model.to(DEVICE), kernels=True, **options)
    assert isinstance(paged._stack, DeviceStack), paged.implementation
    assert paged.implementation == "fused layers, Triton attention"
    return paged, paged._stack


class Reader:
    """Texts of one model, each with pages of its own, which are read in pieces."""

    def __init__(self, layout: KVLayout, texts: list[list[int]]) -> None:
        self._assembler, self._texts, pages = DirectAssembler(layout.page_size, 0), [], 1
        for tokens in texts:
            request = ReadRequest(tuple(tokens), (len(tokens) - 1,), (0,))
            text = sequence.Sequence.of(Ticket(request, lambda ticket: None), request)
            count = -(-len(tokens) // layout.page_size)
            text.pages = [page * layout.layers for page in range(pages, pages + count)]
            pages += count
            self._texts.append(text)
        self.cache = KVCache(torch.zeros(pages * layout.page_bytes, dtype=torch.uint8, device=DEVICE), layout, 0)

    def batch(self, *counts: int) -> KernelBatch:
        """The next so many tokens of each text, single ones first."""
        step = self._assembler.step([Chunk(text, count) for text, count in zip(self._texts, counts, strict=True)], 1)
        for text, count in zip(self._texts, counts, strict=True):
            text.computed += count
        return KernelBatch.of(torch.from_numpy(step.numbers).to(DEVICE), step.sizes)


@torch.inference_mode()
def logits_of(
    paged: PagedModel, stack: DeviceStack | ModuleStack, pieces: tuple[int, ...] = (40, 29, 1)
) -> torch.Tensor:
    """Logits [T, V] of the text, read in pieces of so many tokens."""
    reader = Reader(paged.layout, [TEXT])
    return torch.cat([paged.logits(stack.forward(reader.batch(count), reader.cache)[0]) for count in pieces])


@torch.inference_mode()
def own_logits(model: PreTrainedModel) -> torch.Tensor:
    return model(input_ids=torch.tensor([TEXT])).logits[0].float().to(DEVICE)


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("case", CASES)
def test_gives_the_models_logits(case: str) -> None:
    expected = own_logits(model_of(case))
    assert (logits_of(*fused(model_of(case))) - expected).abs().max() < 1e-5 * expected.abs().max() + 1e-5


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("case", INTERPRETED)
def test_kernels_give_them_too(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    expected = own_logits(model_of(case))[:8]
    paged, stack = fused(model_of(case))
    monkeypatch.setattr(paged_attention, "_INTERPRETED", True)
    assert (logits_of(paged, stack, (7, 1)) - expected).abs().max() < 1e-5 * expected.abs().max() + 1e-5


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["gemma3_text", "llama", "qwen2"])
def test_sixteen_bits_are_rounded_no_more_than_the_modules_do(case: str, dtype: torch.dtype) -> None:
    """Both against the same weights in float32."""
    model = model_of(case).to(dtype)
    expected = own_logits(deepcopy(model).float())
    modules = (own_logits(model) - expected).abs()
    paged, stack = fused(model)
    mine = (logits_of(paged, stack) - expected).abs()
    assert mine.mean() < 1.1 * modules.mean()
    assert stack.embed(torch.tensor([3], device=DEVICE)).dtype == dtype


@pytest.mark.usefixtures("twins")
@torch.inference_mode()
def test_reward_models_are_fused_too() -> None:
    head = ValueHead([(torch.randn(2, 48, generator=torch.Generator().manual_seed(3)).to(DEVICE), None)])
    base = random_model("qwen2").to(DEVICE).model
    expected = head.dense(deepcopy(base)(input_ids=torch.tensor([TEXT], device=DEVICE))[0][0])
    paged, stack = fused(base, head=head)
    reader = Reader(paged.layout, [TEXT])
    values = head.dense(torch.cat([stack.forward(reader.batch(count), reader.cache)[0] for count in (50, 20)]))
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("twins")
@torch.inference_mode()
def test_rows_can_leave_after_any_layer() -> None:
    paged, stack = fused(model_of("gemma2"))
    reader, modules = (
        Reader(paged.layout, [TEXT]),
        PagedModel(model_of("gemma2").to(DEVICE), kernels=True, native=False),
    )
    batch = reader.batch(40)
    hidden, states = stack.forward(batch, reader.cache, (1, 3, 4))
    assert sorted(states) == [1, 3, 4] and stack.depth == paged.depth == 4
    _, expected = modules._stack.forward(batch, reader.cache, (1, 3))
    for depth in (1, 3):
        torch.testing.assert_close(states[depth], expected[depth], rtol=1e-4, atol=1e-4)
    # What is normed on its way through the layers, and what is normed by itself, have the same bits.
    assert torch.equal(stack.normed(states[4]), hidden)
    again, _ = stack.forward(batch, reader.cache)
    assert torch.equal(again, hidden)


def quantized() -> PreTrainedModel:
    model = random_model("llama", hidden_size=64)
    mlp = model.model.layers[1].mlp
    mlp.up_proj = StoredLinear(made("Q8_0", *mlp.up_proj.weight.shape), None)
    mlp.gate_proj = StoredLinear(made("Q8_0", *mlp.gate_proj.weight.shape), None)
    return model


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize(
    ("made_other", "reason"),
    [
        (louder, "they give other logits"),
        (lambda: random_model("gpt_neox"), "what they compute is not known"),
        (quantized, "its weights are stored as int8 in groups of 32"),
    ],
)
def test_other_models_run_their_modules_and_say_why(made_other: Callable[[], PreTrainedModel], reason: str) -> None:
    own = made_other()
    expected = own_logits(own)
    paged = PagedModel(made_other().to(DEVICE), kernels=True)
    assert isinstance(paged._stack, ModuleStack)
    assert paged.implementation.startswith("transformers' modules, Triton attention; its layers are not fused: ")
    assert reason in paged.implementation
    assert (logits_of(paged, paged._stack) - expected).abs().max() < 1e-3


@pytest.mark.usefixtures("twins")
def test_a_mistake_that_is_smaller_than_a_rounding_is_found() -> None:
    """That of a hundredth in one MLP, where pieces of a text may give logits that lie 20 times as far apart."""
    model = louder().to(torch.float16)
    paged = PagedModel(deepcopy(model).to(DEVICE), kernels=True)
    assert "they give other logits (they differ by 0.0" in paged.implementation
    probe = Probe(model, LogitHead(model), 256)
    assert probe.tolerance > 0.8


@pytest.mark.usefixtures("twins")
def test_memory_that_is_scarce_holds_no_weights_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    laid_out = device_stack._LaidOut.__init__

    def lay_out(self: Any, *arguments: Any) -> None:
        left.append(weights_left(model))
        laid_out(self, *arguments)

    monkeypatch.setattr(device_stack._LaidOut, "__init__", lay_out)
    model = random_model("llama")
    fused(model)
    # Modules stay until the logits agree, where memory has room.
    assert left[0] == left[1] > 0 == weights_left(model)
    monkeypatch.setattr(paged_model, "_is_scarce", lambda weights, device: True)
    left.clear()
    model = random_model("llama")
    expected = own_logits(model)
    logits = logits_of(*fused(model))
    assert left[0] == 2 * left[1] > 0 == weights_left(model)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    model = louder()
    with pytest.raises(NativeMismatch, match="fused layers give other logits"):
        PagedModel(model, kernels=True)


@pytest.mark.usefixtures("twins")
@torch.inference_mode()
def test_positions_past_the_tables_turn_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_stack, "_MAX_POSITIONS", 64)
    # The probe of 64 tokens fits; the text is longer.
    expected = own_logits(random_model("llama"))
    paged, stack = fused(random_model("llama"))
    (table,) = stack._tables[-1]
    assert len(table) == 64
    kept = table.data_ptr(), table.clone()
    torch.testing.assert_close(logits_of(paged, stack), expected, rtol=1e-4, atol=1e-4)
    assert len(stack._tables[-1][0]) == 128
    # A graph that was captured before reads the table that it had.
    assert stack._tables[0][0].data_ptr() == kept[0] and torch.equal(stack._tables[0][0], kept[1])


class Launches(TorchDispatchMode):
    """Counts what would be launched: torch's operators that compute, and kernels by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "empty" not in func.name():
            self.names[func.name()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter counts")
@pytest.mark.usefixtures("twins")
@torch.inference_mode()
@pytest.mark.parametrize("case", ["gemma2", "llama", "llama with biases", "qwen3"])
def test_a_layer_is_nine_launches(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    launched: Counter[str] = Counter()

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        launched[self.fn.__name__] += 1

    paged, stack = fused(model_of(case))
    reader = Reader(paged.layout, [TEXT[:20], TEXT[20:40]])
    batch = reader.batch(1, 1)
    # What is counted need not be computed.
    monkeypatch.setattr(paged_attention, "_INTERPRETED", True)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)
    with Launches() as counted:
        stack.forward(batch, reader.cache)
    layers = stack.depth
    # `linear` is a product without bias, `embedding` the one operator beside the layers; Gemma scales its result.
    products = sum(count for name, count in counted.names.items() if name in ("aten::mm", "aten::linear"))
    assert products == 4 * layers
    assert sum(counted.names.values()) - products == (2 if case == "gemma2" else 1)
    assert launched["add_norm_kernel"] == 2 * layers + 1
    assert launched["rotate_store_kernel"] == launched["gate_kernel"] == layers
    attention = sum(launched.values()) - 4 * layers - 1
    # A context in several parts has a launch that merges them.
    assert layers <= attention <= 2 * layers


@pytest.mark.usefixtures("twins")
@torch.inference_mode()
def test_the_bits_of_a_row_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With products that sum every row alike, as they do at one shape on a device."""
    paged, stack = fused(model_of("gemma3_text"))

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.stack([(weight * row).sum(dim=-1) for row in x])

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    together, alone = Reader(paged.layout, [TEXT[:30], TEXT[30:50]]), Reader(paged.layout, [TEXT[30:50]])
    for first, second in ((1, 1), (19, 7)):
        both, single = together.batch(first, second), alone.batch(second)
        hidden = stack.forward(both, together.cache)[0]
        assert torch.equal(hidden[first : first + second], stack.forward(single, alone.cache)[0])
