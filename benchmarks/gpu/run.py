"""Everything that needs a GPU: is it right, where does the time go, how fast is it, was the estimate right. Offline.

    python -m benchmarks.gpu.run [--output DIR] [--wheels DIR] [--only PART ...] [--minutes 9] [--tune]
    python -m benchmarks.gpu.run --prepare CAPABILITY --cache DIR
    python -m benchmarks.gpu.run --dry | --interpret-check

Needs torch, triton, transformers and this checkout, nothing installed; run it in the checkout's root. What a session
needs besides is taken from wheels in the folder `--wheels`, where there is no network. Parts, in the order of what they
are worth: `product` (models from disk, a verifier, a program: right or wrong), `faults` (the engine's checks), `steps`
(of a search, then of 8B at 1 and 64 rows, against the roofline), `profile` (the kernels of one step), `checks` (kernels
against their twins), `rows` (bits of cuBLAS's products), `kernels` (against the copy bandwidth). Kernels are compiled
by all processors at once before they are first needed. Each part is a process of its own, so that one that crashes or
hangs takes no other with it. gpu.json and gpu.md are written anew after every part, and end in a verdict a line: was
the estimate (`benchmarks.gpu.estimate`) right, what share of the roofline, what next. A case that fails is noted, and
the next one runs. A part has its share of `--minutes`, and what those before it left; past it no case is begun. Exits
with 0; with 1 where a check or a case failed; with 2 where there is no CUDA device.

`--prepare` compiles the kernels for a device that is elsewhere, 90 for an H100, into a folder that `--cache` then names
there: Triton takes them from it if its version, and Python's, are the same, and the folder has the same name seen from
the checkout. `--dry` runs every part on a CPU over tiny shapes by the torch twins, `--interpret-check` the kernels'
checks in Triton's interpreter. `--tune` also looks for better block sizes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Nothing here loads torch before it must: Triton looks once, as it loads, whether it is to interpret its kernels.
from benchmarks.common.folders import RESULTS
from benchmarks.gpu import tables
from benchmarks.gpu.estimate.verdicts import verdicts


@dataclass(frozen=True, slots=True)
class Part:
    """The function `f(record, bench)` of a module, its table in `tables`, and its share of the time, in seconds."""

    module: str
    function: str
    render: Callable[[dict[str, Any]], str]
    seconds: float


PARTS = {
    "product": Part("benchmarks.gpu.product", "run", tables.engine, 90),
    "faults": Part("benchmarks.gpu.faults", "run", tables.engine, 60),
    "steps": Part("benchmarks.gpu.engine", "run", tables.engine, 120),
    "profile": Part("benchmarks.gpu.step_profile", "run", tables.profile, 60),
    "checks": Part("benchmarks.gpu.kernel_checks", "run", tables.checks, 60),
    "rows": Part("benchmarks.gpu.linears", "run", tables.rows, 50),
    "kernels": Part("benchmarks.gpu.kernels", "run", tables.kernels, 100),
}
# Starts a part in a process of its own.
COMMAND = [sys.executable, "-m", "benchmarks.gpu.run"]
NO_DEVICE = 2
# A part that does not end within so many seconds of its deadline hangs.
_GRACE = 20


def describe() -> dict[str, Any]:
    """The machine: what `machine.describe` says, and the device."""
    import torch
    import triton

    from benchmarks.common.machine import describe as processor

    compiler = next((name for name in (os.environ.get("CC", "cc"), "gcc", "clang") if shutil.which(name)), "none")
    facts: dict[str, Any] = {**processor(), "triton": triton.__version__, "cuda": torch.version.cuda, "cc": compiler}
    if not torch.cuda.is_available():
        return facts | {"device": "a dry run"}
    device = torch.cuda.get_device_properties(0)
    return facts | {
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "memory_gib": round(device.total_memory / 2**30, 1),
        "l2_mib": round(device.L2_cache_size / 2**20, 1),
    }


def run_part(name: str, output: Path, deadline: float, tune: bool, dry: bool = False) -> int:
    """One part, in this process. Returns the exit code: 0 where nothing failed."""
    import torch

    if not dry and not torch.cuda.is_available():
        print("gpu.run: torch sees no CUDA device; --dry runs it all on a CPU", file=sys.stderr)
        return NO_DEVICE
    from benchmarks.gpu.bench import Bench
    from benchmarks.gpu.record import Broken, Record, reason

    part = PARTS[name]
    record = Record(output / f"gpu-{name}.json", deadline, part.render)
    try:
        record.note(machine=describe())
        work = getattr(importlib.import_module(part.module), part.function)
        work(record, Bench("cpu" if dry else "cuda"), **({"tune": True} if tune and name == "kernels" else {}))
    except Broken as error:
        record.fail("the device takes no more work", str(error))
    except Exception as error:  # the figures that are there are to stay
        record.fail(name, reason(error))
    return int(record.failed)


def unpacked(wheels: Path, folder: Path) -> None:
    """Puts what the wheels hold into a folder, from which the parts import it."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def spawn(name: str, output: Path, seconds: float, tune: bool) -> tuple[int, str | None]:
    """A part in a process of its own. Its exit code, and what went wrong with it where it could not write that down."""
    command = [*COMMAND, "--part", name, "--output", str(output)]
    command += ["--deadline", str(time.time() + seconds), *(["--tune"] if tune else [])]
    try:
        code = subprocess.run(command, check=False, timeout=seconds + _GRACE).returncode
    except subprocess.TimeoutExpired:
        return 1, "it hung, and was stopped"
    return code, f"it ended with exit code {code}" if code not in (0, 1, NO_DEVICE) else None


def merged(parts: Path, output: Path, names: list[str], ends: dict[str, str | None]) -> str:
    """Writes gpu.json and gpu.md of what the parts have written so far into `parts`. Returns the text."""
    record: dict[str, Any] = {}
    texts = []
    for name in names:
        file = parts / f"gpu-{name}.json"
        part = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        record.setdefault("machine", part.pop("machine", None))
        texts.append(part.pop("markdown", ""))
        if (why := ends.get(name)) is not None:
            part["ended"] = why
            texts.append(f"**The part `{name}`: {why}.**")
        record[name] = part
    machine = ", ".join(f"{key} {value}" for key, value in (record["machine"] or {}).items())
    judged = [verdict.line() for verdict in verdicts(record)]
    texts += ["## Verdicts", "\n".join(judged)]
    record["verdicts"] = judged
    text = "\n\n".join(["# On a GPU", f"Measured on: {machine}.", *filter(None, texts)]) + "\n"
    (output / "gpu.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (output / "gpu.md").write_text(text, encoding="utf-8")
    return text


def run_all(names: list[str], output: Path, minutes: float, tune: bool, wheels: Path | None = None) -> int:
    """Each part after the other. Returns the exit code of all."""
    with tempfile.TemporaryDirectory() as folder:
        if wheels is not None:
            unpacked(wheels, Path(folder) / "wheels")
        return _run_all(names, Path(folder), output, minutes, tune)


def _run_all(names: list[str], parts: Path, output: Path, minutes: float, tune: bool) -> int:
    end, codes, text = time.time() + 60 * minutes, [0], ""
    ends: dict[str, str | None] = {}
    for place, name in enumerate(names):
        share = PARTS[name].seconds / sum(PARTS[part].seconds for part in names[place:])
        code, ends[name] = spawn(name, parts, max(0.0, end - time.time()) * share, tune)
        if code == NO_DEVICE:
            return code
        codes.append(int(code != 0))
        output.mkdir(parents=True, exist_ok=True)
        text = merged(parts, output, names[: place + 1], ends)
    print(text)
    return max(codes)


def run_dry(names: list[str], output: Path) -> int:
    """Every part in this process, on the processor. Returns the exit code of all."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        codes = [run_part(name, Path(folder), float("inf"), False, dry=True) for name in names]
        print(merged(Path(folder), output, names, {}))
    return max(codes)


def prepare(capability: int, cache: Path) -> int:
    """Compiles what the parts launch into Triton's cache `cache`. Returns the exit code."""
    if cache.is_absolute():
        # Triton writes down where its files are.
        print("gpu.run: --prepare takes a folder by its relative name, as --cache names it there", file=sys.stderr)
        return NO_DEVICE
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    from benchmarks.gpu import kernel_checks
    from benchmarks.gpu.compiled import cases
    from benchmarks.gpu.compiled.launches import compiled, launches_of

    made: set[str] = set()
    for launch in (*(case.launch for case in cases.CASES), *kernel_checks.launches()):
        for variant in launches_of(capability, launch):
            if variant.key not in made:
                compiled(variant)
                made.add(variant.key)
    print(f"kernels for compute capability {capability / 10} in {cache}: {len(made)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="checks and measures everything that needs a GPU")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--wheels", type=Path, help="a folder of wheels of what a session needs besides")
    parser.add_argument("--cache", type=Path, help="Triton's cache, as `--prepare` filled it")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--minutes", type=float, default=9.0, help="no case is begun after so many")
    parser.add_argument("--tune", action="store_true", help="try other block sizes for decode attention")
    parser.add_argument("--prepare", type=int, metavar="CAPABILITY", help="fill --cache for a device that is elsewhere")
    parser.add_argument("--dry", action="store_true", help="every part on a CPU, over tiny shapes")
    parser.add_argument("--interpret-check", action="store_true", help="check small sizes on a CPU")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=float("inf"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare is not None:
        if options.cache is None:
            parser.error("--prepare takes the folder to fill as --cache")
        return prepare(options.prepare, options.cache)
    if options.cache is not None:
        os.environ["TRITON_CACHE_DIR"] = str(options.cache)
    if options.interpret_check:
        os.environ["TRITON_INTERPRET"] = "1"
        from benchmarks.gpu import kernel_checks
        from benchmarks.gpu.bench import Bench
        from benchmarks.gpu.record import Record

        record = Record(None, float("inf"), tables.checks)
        kernel_checks.run(record, Bench("cpu"))
        print(record.data["markdown"])
        return int(record.failed)
    if options.dry:
        return run_dry(options.only, options.output)
    if options.part is not None:
        return run_part(options.part, options.output, options.deadline, options.tune)
    return run_all(options.only, options.output, options.minutes, options.tune, options.wheels)


if __name__ == "__main__":
    sys.exit(main())
