"""The engine as the exercises use it, and tables as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch

from benchmarks.common.serving import checkpoint, engine_of
from qpdsl import zoo
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport

SMALL = "zoo/counting-mini"


def built_in(name: str) -> PagedModel:
    """A built-in model behind the engine, on the CPU."""
    return PagedModel(checkpoint(zoo.path(name)))


def engine_for(
    model: PagedModel, slots: int, tokens: int, on_step: Callable[[StepReport], None] | None = None
) -> PagedEngine:
    """An engine with room for so many sequences at once, and for the KV of so many tokens."""
    pages = -(-tokens // model.layout.page_size) + 1
    config = EngineConfig(max_sequences=slots)
    return engine_of({"model": model}, pages * model.layout.page_bytes, config, on_step)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need be: the first to the left, the others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def main(description: str | None, exercise: Callable[[bool], str]) -> None:
    """Prints the text of an exercise."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="reduced sizes: does it work?")
    torch.set_num_threads(1)
    print(exercise(options.parse_args().quick))
