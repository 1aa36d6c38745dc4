"""Which quantized checkpoints are read here, by what config.json says, and which are left to their packages."""

from __future__ import annotations

from typing import Any

import pytest

from qpdsl.executor.checkpoint.quantization_config import quantized_layers
from tests.support.executor.quantized_files import Case

PACKED, BYTES = Case("pack-quantized", 4, 128), Case("int-quantized", 8, 0)
GPTQ, AWQ = Case("gptq", 4, 128), Case("awq", 4, 128, symmetric=False)
TORCHAO = Case("torchao", 8, 32)
TENSORS = {
    "pack-quantized": ("weight_packed", "weight_scale", "weight_shape"),
    "int-quantized": ("weight", "weight_scale"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
    "torchao": ("_weight_qdata", "_weight_scale", "_weight_zero_point"),
}


def tensors(case: Case, *layers: str) -> list[str]:
    return [f"{layer}.{name}" for layer in layers for name in TENSORS[case.layout]]


def kinds(settings: dict[str, Any], names: list[str]) -> str | None:
    found = quantized_layers({"quantization_config": settings}, names)
    return None if found is None else found.kinds


def scheme(case: Case, **changes: Any) -> dict[str, Any]:
    """A group of settings with other weights."""
    group = case.settings["config_groups"]["group_0"]
    return {**group, "weights": {**group["weights"], **changes}}


@pytest.mark.parametrize("case", [PACKED, BYTES, GPTQ, AWQ, TORCHAO])
def test_what_is_read(case: Case) -> None:
    assert kinds(case.settings, tensors(case, "a", "b")) == case.kind
    assert kinds(case.settings, ["a.weight"]) is None
    assert quantized_layers({}, tensors(case, "a")) is None


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (PACKED, {"format": "marlin-24"}),
        (PACKED, {"format": "float-quantized"}),
        (PACKED, {"kv_cache_scheme": {"num_bits": 8}}),
        (PACKED, {"sparsity_config": {"format": "sparse-bitmask"}}),
        (PACKED, {"transform_config": {"config_groups": {"R1": {}}}}),
        (PACKED, {"quantization_status": "frozen"}),
        (PACKED, {"of_tomorrow": 1}),
        (PACKED, {"config_groups": {}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED) | {"input_activations": {"num_bits": 8}}}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED, num_bits=3)}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED, type="float")}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED, strategy="block", block_structure=[128, 128])}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED, actorder="group")}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED, dynamic=True)}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED, symmetric=False)}}),
        (PACKED, {"config_groups": {"a": scheme(PACKED), "b": scheme(PACKED)}}),
        (GPTQ, {"desc_act": True}),
        (GPTQ, {"bits": 3}),
        (GPTQ, {"checkpoint_format": "marlin"}),
        (GPTQ, {"dynamic": {"-:.*": {}}}),
        (GPTQ, {"of_tomorrow": 1}),
        (AWQ, {"version": "gemv"}),
        (AWQ, {"zero_point": False}),
        (AWQ, {"bits": 8}),
        (TORCHAO, {"include_input_output_embeddings": True}),
        (TORCHAO, {"quant_type": "int8_weight_only"}),
        (TORCHAO, {"quant_type": {"default": {**TORCHAO.settings["quant_type"]["default"], "_version": 1}}}),
        (TORCHAO, {"quant_type": {"default": {**TORCHAO.settings["quant_type"]["default"], "_type": "Int4"}}}),
    ],
)
def test_what_is_left_to_the_package(case: Case, changes: dict[str, Any]) -> None:
    assert kinds({**case.settings, **changes}, tensors(case, "a")) is None


def test_layers_in_groups_of_settings() -> None:
    """By pattern and by name; the way of most layers is told first."""
    eight = {**scheme(BYTES), "targets": ["b"], "format": "int-quantized"}
    four = {**scheme(PACKED), "targets": ["re:a.*"], "format": "pack-quantized"}
    settings = {**PACKED.settings, "format": "mixed-precision", "config_groups": {"four": four, "eight": eight}}
    names = [*tensors(PACKED, "a1", "a2"), *tensors(BYTES, "b")]
    found = quantized_layers({"quantization_config": settings}, names)
    assert found is not None and found.kinds == "int4 in groups of 128, int8 by channel"
    assert {name: form.layout for name, form in found.formats.items()} == {"a1": "packed", "a2": "packed", "b": "bytes"}
    assert kinds(settings, [*names, *tensors(PACKED, "c")]) is None
