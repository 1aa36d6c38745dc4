"""What a model takes on hardware: memory, users, operations and bytes, against published and counted figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qpdsl.planner.capacity.architecture import NUMBER_BYTES, Architecture, Experts
from qpdsl.planner.capacity.hardware import GIB, USUAL, Hardware, known_hardware, named_hardware
from qpdsl.planner.capacity.roofline import HeldModel, crossover, decode_step, memory_parts, prefill_seconds
from qpdsl.planner.capacity.roofline_report import advice, roofline_report
from qpdsl.planner.explain.roofline_tables import roofline_json, roofline_text

# Llama 3 70B, as its configuration has it.
LLAMA = Architecture("llama", 70_553_706_496, 1_050_673_152, 8192, 28672, 128256, 64, 8, 128, (None,) * 80)
CONTEXTS = (2048, 4096, 32768)


def hardware(name: str) -> Hardware:
    found = named_hardware(name)
    assert found is not None
    return found


def held(architecture: Architecture = LLAMA, kind: str = "bf16", kv: str = "fp16") -> HeldModel:
    return HeldModel(architecture, NUMBER_BYTES[kind], kind, NUMBER_BYTES[kv])


@pytest.mark.parametrize(("kv", "users"), [("fp16", 126), ("fp8", 252), ("int8", 252), ("int4", 504)])
def test_the_table_of_the_lesson(kv: str, users: int) -> None:
    """Llama 3 70B on four A100: 140 GB of weights, a tenth of 320 GiB kept back, sequences of 4,096 tokens."""
    parts = memory_parts(LLAMA, hardware("4x A100-80GB"), 140e9, kv, NUMBER_BYTES[kv], CONTEXTS)
    assert parts.users[4096] == users
    assert parts.memory == 320 * GIB
    assert parts.weights + parts.activations + parts.other + parts.kv == pytest.approx(parts.memory)
    assert parts.activations + parts.other == pytest.approx(32 * GIB)
    assert parts.blocks == int(parts.kv // parts.block_bytes) == parts.blocks // 1


def test_the_keys_and_values_of_the_lesson() -> None:
    """320 KiB a token, 1.25 GiB at 4,096 tokens and 40 GiB at 128k; an eighth of what 64 heads would take."""
    assert LLAMA.token_kv_bytes(2) == 327_680
    assert LLAMA.kv_bytes(131_072, 2) == 40 * GIB
    assert LLAMA.kv_bytes(4096, 2) * 8 == replace(LLAMA, kv_heads=64).kv_bytes(4096, 2)


def test_a_layer_with_a_window_holds_its_window() -> None:
    local = replace(LLAMA, windows=(512, 512, None))
    one = 2 * 8 * 128 * 2
    assert local.token_kv_bytes(2) == 3 * one
    assert local.kv_bytes(300, 2) == 3 * 300 * one
    assert local.kv_bytes(5000, 2) == (2 * 512 + 5000) * one
    # In blocks of 16 tokens.
    assert local.kv_bytes(5001, 2, 16) == (2 * 512 + 5008) * one
    assert local.flops(5000) - local.flops(0) == 4 * 64 * 128 * (2 * 512 + 5000)


def test_of_experts_a_token_is_multiplied_with_those_that_it_uses() -> None:
    mixture = replace(LLAMA, parameters=1000, looked_up=100, experts=Experts(800, 8, 2))
    assert mixture.active == 300
    assert mixture.read(1) == pytest.approx(300)
    assert 300 < mixture.read(2) < mixture.read(64) < 900.1
    assert mixture.read(1000) == pytest.approx(900)


def test_prompts_attend_to_what_stands_before() -> None:
    pairs = sum(range(1, 101))
    assert LLAMA.prompt_flops(100) == pytest.approx(200 * LLAMA.active + 4 * 80 * 64 * 128 * pairs)
    local = replace(LLAMA, windows=(10,))
    assert local.prompt_flops(100) - 200 * local.active == pytest.approx(4 * 64 * 128 * (55 + 90 * 10))


def test_the_batch_at_which_arithmetic_takes_over() -> None:
    """Without context a batch of b has b operations a byte with weights of 16 bits: the crossover is the ridge."""
    one = hardware("A100-80GB")
    assert one.ridge("bf16") == pytest.approx(312e12 / 2.039e12)
    assert decode_step(held(), 7, 0).intensity == pytest.approx(7)
    turn = crossover(held(), one, 0)
    assert turn == 154
    assert decode_step(held(), turn, 0).bound(one, "bf16") == "compute"
    assert decode_step(held(), turn - 1, 0).bound(one, "bf16") == "memory"
    later = crossover(held(), one, 256)
    assert later is not None and later > turn
    # Each sequence of 32k tokens brings more to read than there is to multiply.
    assert crossover(held(), one, 32768) is None


def test_the_floor_of_a_step_is_one_reading_of_the_weights() -> None:
    """The lesson: 140 GB at 2 TB/s take 70 ms. A prompt of 4,096 tokens takes its 400 ms on four A100, not on one."""
    step = decode_step(held(), 1, 0)
    assert step.seconds(hardware("A100-80GB"), "bf16") == pytest.approx(0.068, rel=0.01)
    assert 0.4 < prefill_seconds(held(), hardware("4x A100-80GB"), 4096) < 0.5


def test_hardware_by_name() -> None:
    assert set(USUAL) - {"4x A100-80GB"} == set(known_hardware())
    assert hardware("rtx 4090") == hardware("RTX-4090") == known_hardware()["RTX 4090"]
    four = hardware("4 x h100")
    assert (four.name, four.count, four.memory) == ("4x H100", 4, 4 * hardware("H100").memory)
    assert four.ridge("fp16") == hardware("H100").ridge("fp16")
    assert hardware("1x L4") == hardware("L4")
    assert named_hardware("0x L4") is None and named_hardware("abacus") is None
    # Weights of four bits are widened; what has no arithmetic of eight bits takes sixteen.
    assert hardware("A100-80GB").peak("fp8") == hardware("A100-80GB").peak("int4") == 312e12
    assert hardware("H100").peak("fp8") == 1979e12


def said(name: str, weights: float, context: int = 4096, architecture: Architecture = LLAMA) -> str:
    on = hardware(name)
    parts = tuple(memory_parts(architecture, on, weights, kv, NUMBER_BYTES[kv], (context,)) for kv in ("fp16", "int4"))
    model = HeldModel(architecture, weights / architecture.parameters, "bf16", 2.0)
    return " ".join(advice(model, on, parts, context))


def test_what_to_try() -> None:
    too_large = said("A100-80GB", 141e9)
    assert "do not fit" in too_large and '`--hardware "2x A100-80GB"`' in too_large and "`--weights fp8`" in too_large
    full = said("4x A100-80GB", 141e9)
    assert "memory bounds a full batch of 125" in full and "int4" in full
    assert "keys and values" in said("4x A100-80GB", 141e9, 32768)
    small = replace(LLAMA, parameters=10**8, looked_up=10**7, windows=(None,) * 2)
    assert "arithmetic bounds" in said("L4", 2e8, 16, small)
    assert "no sequence of 4,194,304 tokens fits" in said("4x A100-80GB", 141e9, 1 << 22)


def test_the_report_as_text_and_data() -> None:
    report = roofline_report(LLAMA, [hardware("4x A100-80GB"), hardware("L4")], "bf16", 140e9)
    text = roofline_text(report, 100)
    assert "70.6G parameters" in text and "1/8 of what" in text
    assert "126" in text and "504" in text and "does not fit" in text
    data = json.loads(json.dumps(roofline_json(report)))
    four, l4 = data["hardware"]
    assert [part["users"]["4096"] for part in four["memory_parts"]] == [126, 252, 504]
    assert four["crossovers"]["0"] == 152 and four["crossovers"]["32768"] is None
    assert l4["full_batches"] == [] and "source" in l4
    assert data["intensities"]["1"]["0"] == pytest.approx(1.0, rel=0.02)
