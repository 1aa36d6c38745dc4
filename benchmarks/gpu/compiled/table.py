"""The committed figures of all kernels: read, compared, and written as JSON and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.folders import RESULTS
from benchmarks.gpu.compiled.figures import Figures, changes, faults
from benchmarks.gpu.compiled.sass import Counts

FILE = RESULTS / "gpu_kernels.json"
_DEVICES = {80: "A100", 89: "L4, RTX 4090", 90: "H100, H200"}


@dataclass(frozen=True, slots=True)
class Table:
    """`triton`: the version that compiled the rows."""

    triton: str
    rows: tuple[Figures, ...]


def read(file: Path = FILE) -> Table:
    """The table in `file`; an empty one where there is no file."""
    if not file.exists():
        return Table("", ())
    whole = json.loads(file.read_text(encoding="utf-8"))
    return Table(whole["triton"], tuple(_row(row) for row in whole["rows"]))


def _row(row: dict[str, Any]) -> Figures:
    plain = {name: row[name] for name in Figures.__slots__ if name not in ("whole", "loop")}
    return Figures(**plain, whole=Counts(**row["whole"]), loop=Counts(**row["loop"]) if row["loop"] else None)


def write(table: Table, file: Path = FILE) -> None:
    """Writes `file`, and a page of the same name beside it."""
    rows = ",\n".join(json.dumps({**asdict(row), "per_unit": row.per_unit}) for row in table.rows)
    file.write_text(f'{{"triton": "{table.triton}", "rows": [\n{rows}\n]}}\n', encoding="utf-8")
    file.with_suffix(".md").write_text(page(table), encoding="utf-8")


def compared(old: Table, new: Iterable[Figures]) -> tuple[list[str], list[str]]:
    """What is worse in `new` than in the rows of `old` of the same name, and what is better; a line for each kernel."""
    before = {row.name: row for row in old.rows}
    worse, better = [], []
    for row in new:
        if row.name in before:
            found = changes(before[row.name], row)
            worse += [f"{row.name}: {'; '.join(found.worse)}"] if found.worse else []
            better += [f"{row.name}: {'; '.join(found.better)}"] if found.better else []
    return worse, better


def page(table: Table) -> str:
    """The table in markdown, a section for each capability."""
    parts = [
        "# GPU kernels, as compiled\n\n"
        f"Made by `python -m benchmarks.gpu.compiled` with Triton {table.triton}. Counts of machine code: nothing here "
        "was measured on a GPU.\n\n"
        "The counts in the middle are of a warp in one trip of the main loop, or in all code of a kernel that has no "
        "loop. *A unit*: warp instructions that a block "
        "executes for one key, weight or logit; a block of an attention kernel has all queries of a key head. "
        "*Shortest*: without what branches can skip. *Loads*: from global memory, of 128 bits and of fewer. *Special*: "
        "exponentials, logarithms, reciprocals. *Converted*: numbers from one type to another. *Blocks*: on a "
        "multiprocessor at a time. *Spilled*: bytes a thread.\n"
    ]
    for capability in sorted({row.capability for row in table.rows}):
        rows = [row for row in table.rows if row.capability == capability]
        parts.append(
            f"\n## sm_{capability} ({_DEVICES[capability]})\n\n"
            "| kernel | case | step | a unit | instructions | shortest | tensor cores | loads | shared | special "
            "| converted | float64 | barriers | registers | blocks | KiB shared | spilled |\n"
            "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            + "".join(_line(row) for row in rows)
        )
    wrong = [f"- {row.name}: {fault}\n" for row in table.rows for fault in faults(row)]
    return "".join([*parts, *(["\n## Faults\n\n", *wrong] if wrong else [])])


def _line(row: Figures) -> str:
    counts = row.loop or row.whole
    each = "no loop" if row.loop is None else f"{row.per_unit:.3g} a {row.unit}" if row.per_unit is not None else ""
    cells = (
        row.kernel.removesuffix("_kernel"),
        row.case,
        row.form,
        each,
        counts.instructions,
        counts.shortest,
        counts.tensor,
        f"{counts.wide} + {counts.narrow}",
        counts.shared,
        counts.special,
        counts.convert,
        counts.double,
        counts.barriers,
        row.registers,
        row.blocks,
        f"{row.shared / 1024:.3g}",
        row.local,
    )
    return f"| {' | '.join(map(str, cells))} |\n"
