"""The estimate of steps on a GPU: its counts are those of the code, it follows from them, and a run can prove it wrong.

`QPDSL_REGENERATE=1` writes its tables anew.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.common.folders import RESULTS
from benchmarks.gpu.estimate import instructions, step
from benchmarks.gpu.estimate.assumptions import ASSUMED, Side, usual
from benchmarks.gpu.estimate.cases import (
    CASES,
    MIXED,
    WAYS,
    Case,
    attention_case,
    estimate,
    fits,
    mixed_seconds,
    step_seconds,
)
from benchmarks.gpu.estimate.devices import device_of, devices
from benchmarks.gpu.estimate.page import figures, page
from benchmarks.gpu.estimate.shapes import SHAPES, KVKind, vector_bytes
from benchmarks.gpu.estimate.step import Batch, Machine
from benchmarks.gpu.estimate.verdicts import Verdict, verdicts

H100 = devices()["H100"]
pytestmark = pytest.mark.unshipped
VIEWS = {"view", "transpose", "t", "unsqueeze", "expand", "slice", "select", "reshape", "detach", "split", "squeeze"}


class Launches(TorchDispatchMode):
    """Counts the operations that would launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        if name not in VIEWS:
            self.counts[name] += 1
        return operator(*args, **(kwargs or {}))


def launches(layers: int) -> Counter[str]:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.zeros(1, 3, dtype=torch.long)
    with torch.inference_mode(), Launches() as counted:
        model.model(input_ids=ids, position_ids=torch.arange(3)[None], use_cache=False)
    return counted.counts


def test_launches_of_a_layer_are_those_of_transformers_modules() -> None:
    counted = launches(2)
    counted.subtract(launches(1))
    attention = counted.pop("scaled_dot_product_attention")
    products = counted.pop("linear")
    assert (attention, products) == (1, 7)
    # All but the write into pages, which is the engine's.
    assert sum(counted.values()) == sum(times for times, _, _ in step.MODULES.values()) - step.MODULES["store"][0]


def test_the_engines_own_layers_are_nine_launches_and_ten_with_a_merge() -> None:
    shape = SHAPES["8B"]
    for context, each in ((100, 9), (4096, 10)):
        batch = Batch(64, context)
        made = step.decode_step(shape, batch, "stack", Machine(H100, usual()), None)
        outside = step.OUTSIDE["stack"] + step.HEAD
        # cuBLAS joins the parts of two products of its own.
        joins = [launch for launch in made if launch.name.endswith(", joined")]
        assert step.count(joins) == 2 * shape.layers
        assert step.count(made) == shape.layers * (each + 2) + outside


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_bytes_of_weights_are_the_models_own(name: str) -> None:
    shape = SHAPES[name]
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert shape.held_bytes == sum(2 * weight.numel() for weight in model.parameters())
    embedding = 0 if shape.tied else 2 * model.get_input_embeddings().weight.numel()
    assert shape.read_bytes == shape.held_bytes - embedding


@pytest.mark.parametrize("kind", ["plain", "int8", "fp8"])
@pytest.mark.parametrize("dim", [48, 64, 128])
def test_bytes_of_a_token_are_those_of_its_page(kind: KVKind, dim: int) -> None:
    from qpdsl.executor.kernels.data.kv_rows import row_bytes

    assert 16 * 8 * vector_bytes(dim, kind) == row_bytes(kind, torch.bfloat16, 16, 8, dim)


def test_parts_of_a_context_are_those_of_the_kernel() -> None:
    from qpdsl.executor.kernels.triton import tuning

    assert (step.PART, step.MIN_PART, step.CONTEXT) == (tuning.PART, tuning._MIN_PART, tuning._CONTEXT)


def test_instructions_are_those_of_the_compiled_kernels() -> None:
    rows = json.loads(instructions.FILE.read_text("utf-8"))["rows"]
    counted = {
        (row["capability"], row["case"]): row["per_unit"]
        for row in rows
        if row["kernel"] == "attention_kernel" and row["form"] == "decode"
    }
    for device in devices().values():
        for case in CASES:
            found = instructions.decode(device.capability, case.model, case.batch.kind)
            assert found is not None
            assert found.instructions == counted[device.capability, f"{case.model} bf16 {case.batch.kind}"]
    # Where a block takes longer to issue than to read, instructions decide: so they must be able to.
    made = attention_case("fp8", H100)
    assert made is not None and made.issued > 0
    issued = instructions.Issued(10_000.0)
    shape, batch, on = SHAPES["8B"], Batch(64, 4096, "fp8"), Machine(H100, usual())
    assert step.attention(shape, batch, on, issued)[0].seconds > 2 * made.seconds


@pytest.mark.parametrize("name", sorted(ASSUMED))
def test_every_assumption_moves_something_and_best_is_better(name: str) -> None:
    moved = False
    for side, sign in (("best", -1), ("worst", 1)):
        varied = usual().varied(name, cast(Side, side))
        for case in CASES:
            for way in WAYS:
                change = sign * (step_seconds(case, way, H100, varied) - step_seconds(case, way, H100, usual()))
                assert change >= 0
                moved |= change > 0
        for mixed in MIXED:
            change = sign * (mixed_seconds(mixed, "eager", H100, varied) - mixed_seconds(mixed, "eager", H100))
            assert change >= 0
            moved |= change > 0
    assert moved


def test_each_way_is_faster_than_the_one_before_and_none_than_the_floor() -> None:
    for device in devices().values():
        for case in CASES:
            if fits(case, device):
                shares = [estimate(case, way, device).share for way in WAYS]
                assert shares == sorted(shares) and shares[0] > 0 and shares[-1] < 1
                last = estimate(case, "overlapped", device)
                assert last.least < last.share < last.most


def test_a_step_of_one_sequence_of_1b_takes_what_others_measured() -> None:
    """At most half of the data sheet's bandwidth in vLLM and SGLang, with some hundred kernels a step, 78% with one
    kernel (Spector et al., "Look Ma, No Bubbles", 2025)."""
    case = Case("1B", Batch(1, 128))
    share = estimate(case, "stack", H100).share * usual().copy_share
    assert 0.35 < share < 0.55


def test_what_does_not_fit_the_memory_is_left_out() -> None:
    there = {device.name: [case.name for case in CASES if fits(case, device)] for device in devices().values()}
    assert "8B 64 × 4096" in there["H100"] and "8B 64 × 4096" not in there["RTX 4090"]
    assert "8B 1 × 4096" in there["L4"]


def test_a_driver_s_names_are_known() -> None:
    names = {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200", "NVIDIA L4": "L4", "NVIDIA A100-SXM4-80GB": None}
    names |= {"NVIDIA L40S": None, "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA H100 NVL": None}
    names["NVIDIA A100-SXM4-80GB"] = "A100-80GB"
    found = {name: device_of(name) for name in names}
    assert {name: None if device is None else device.name for name, device in found.items()} == names


def results(share: float, **others: Any) -> dict[str, Any]:
    """A run on an H100 whose one step reached `share` of the roofline."""
    row = {
        "model": "8B",
        "variant": "overlapped",
        "way": "overlapped",
        "kv": "plain",
        "sequences": 64,
        "context": 4096,
        "ms": 20.0,
        "of_roofline": share,
    }
    machine = {"device": "NVIDIA H100 80GB HBM3"}
    return {"machine": machine, "steps": {"copy_gb_per_s": 3015.0, "decode": [row], "failed": []}, **others}


def about(found: list[Verdict], words: str) -> Verdict:
    return next(verdict for verdict in found if verdict.about.startswith(words))


def test_a_measured_step_proves_the_estimate_right_or_wrong() -> None:
    expected = estimate(Case("8B", Batch(64, 4096)), "overlapped", H100)
    assert expected.share < 0.81 < expected.most
    right = about(verdicts(results(0.81)), "a step of")
    assert right.right and right.then == "" and "reached" in right.found
    slow = about(verdicts(results(0.55)), "a step of")
    assert slow.right is False and "**missed**" in slow.found and slow.then == "profile it"
    assert "**wrong**" in slow.line() and "Next: profile it" in slow.line()
    # Faster than can be explained is as wrong.
    assert about(verdicts(results(expected.most + 0.02)), "a step of").right is False
    profiled = {"model": "8B", "way": "stack", "sequences": 64, "context": 4096, "ms": 20.0, "launches": 330}
    idle = {"profile": {"steps": [{**profiled, "busy_ms": 10.0, "first": "nvjet"}]}}
    assert "idle for 50%" in about(verdicts(results(0.55, **idle)), "a step of").then
    busy = {"profile": {"steps": [{**profiled, "busy_ms": 19.5, "first": "nvjet"}]}}
    assert "longest kernel is nvjet" in about(verdicts(results(0.55, **busy)), "a step of").then
    assert about(verdicts(results(0.55, **busy)), "launches").right
    many = {"profile": {"steps": [{**profiled, "busy_ms": 19.5, "first": "nvjet", "launches": 1300}]}}
    assert about(verdicts(results(0.55, **many)), "launches").right is False


def test_verdicts_say_what_is_wrong_and_what_was_not_measured() -> None:
    nothing = verdicts({})
    assert nothing and all(verdict.right is None for verdict in nothing)
    rows = [
        {"model": "8B", "product": "qkv", "rows_that_differ": 0},
        {"model": "8B", "product": "down", "rows_that_differ": 3},
    ]
    found = verdicts(
        results(
            0.85,
            checks={"checks": [{"kernel": "decode", "case": "a", "passed": False}], "failed": []},
            rows={"products": rows, "failed": [], "not_begun": ["8B gate"]},
            kernels={"decode": [attended("fp8", 0.2)], "failed": [{"case": "store", "why": "KeyError: x"}]},
            product={"ended": "it hung, and was stopped"},
        )
    )
    assert about(found, "rows of a product").right is False and "8B down" in about(found, "rows of a product").found
    assert about(found, "the part `checks`").right is False
    assert about(found, "decode attention, 8B fp8").right is False
    assert about(found, "the copy's bandwidth").right
    said = "\n".join(verdict.line() for verdict in found)
    for line in ("store broke: KeyError: x", "no time for 8B gate", "it hung", "`--only product`"):
        assert line in said


def attended(kind: str, share: float) -> dict[str, Any]:
    return {"model": "8B", "kv": kind, "sequences": 64, "context": 4096, "window": None, "of_copy": share}


def test_the_committed_tables_are_the_estimate() -> None:
    measured = RESULTS / "gpu.json"
    text = page(json.loads(measured.read_text("utf-8")) if measured.is_file() else None)
    told = json.dumps(figures(), indent=1) + "\n"
    for name, content in (("gpu_estimate.md", text), ("gpu_estimate.json", told)):
        if os.environ.get("QPDSL_REGENERATE"):
            (RESULTS / name).write_text(content, "utf-8")
        assert (RESULTS / name).read_text("utf-8") == content
