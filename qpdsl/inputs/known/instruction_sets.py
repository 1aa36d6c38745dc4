"""Prompts with instructions that a program can check: IFEval."""

from __future__ import annotations

from typing import Any

from qpdsl.inputs.known.dataset_form import DatasetForm
from qpdsl.inputs.mapping.field_source import Combined, Field, FirstOf


def _without_nulls(arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On the hub each instruction has the arguments of all kinds, null where its own kind has none such."""
    return [{name: value for name, value in part.items() if value is not None} for part in arguments]


IFEVAL = DatasetForm(
    "ifeval",
    "IFEval: prompts with instructions that can be checked, such as a number of words",
    Field("prompt"),
    {
        "id": FirstOf((Field("key"), Field("id"))),
        "prompt": Field("prompt"),
        "instruction_id_list": Field("instruction_id_list"),
        "kwargs": Combined(("kwargs",), _without_nulls),
    },
    "ifeval",
    (frozenset({"prompt", "instruction_id_list", "kwargs"}),),
    "google/IFEval, google-research",
)
