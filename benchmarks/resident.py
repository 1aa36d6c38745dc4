"""What a model takes in memory beside its file: after its first token, and at the most while it is loaded.

    python -m benchmarks.resident MODEL … [--llama-cpp PYTHON] [--output FOLDER]

MODEL is a folder or a GGUF file. Each start is a process of its own: the first one with an empty cache folder, the
second with what that left behind. `--llama-cpp` names the Python of an environment with llama-cpp-python, which then
loads the GGUF files too. Resident pages are counted by the system: `own` without pages of files, so without weights
that are mapped; the peak with everything. What is `beyond` is more than a process takes that loads no model. A second
table says what that is made of: weights and code lie in pages of files, and how much of the rest is the tokenizer a
process says that reads it and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.folders import RESULTS

NAME = "resident"
_GOAL = 1.3
_PEER, _TOKENIZER = "llama.cpp", "tokenizer"
_MIB = 2**20
# Printed by the process that is measured, from what the system says of it: bytes.
_SAY = """
import json, re
def said(file, name):
    found = re.search(rf"^{name}:\\s+(\\d+) kB", open(f"/proc/self/{file}").read(), re.MULTILINE)
    return int(found[1]) * 1024
def code():
    mappings = re.findall(
        r"\\.so\\S*\\n(?:\\w+: .*\\n)*?Rss: +(\\d+) kB\\n(?:\\w+: .*\\n)*?Anonymous: +(\\d+) kB",
        open("/proc/self/smaps").read(),
    )
    return sum(int(resident) - int(own) for resident, own in mappings) * 1024
print(json.dumps({
    "code": code(),
    "resident": said("smaps_rollup", "Rss"), "own": said("smaps_rollup", "Anonymous"),
    "proportional": said("smaps_rollup", "Pss"), "peak": said("status", "VmHWM"),
}))
"""
_OURS = """
import sys
from pathlib import Path
import torch
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.models.quick_load import load
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

torch.set_num_threads(1)
if sys.argv[1] != "nothing":
    model = load("model", Path(sys.argv[1]), "cpu", None)
    engine = PagedEngine(EngineConfig(), kv_bytes=1 << 24)
    engine.add("model", model.paged)
    tokens = tuple(model.encode("Mia has 3 boxes with 4 cards in each box."))
    engine.submit("model", GenerateRequest(tokens, (0,), SamplingParams(0.0), 2, logprobs=False))
    while engine.has_work:
        engine.step()
"""
_OURS_TOKENIZER = """
import sys
from pathlib import Path
import torch
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.models.known_model import stored_backend
from qpdsl.executor.engine.memory.budget import trim_heap
from qpdsl.executor.models.quick_load import load  # as much code as the other processes have

folder = ModelFolder.of("model", Path(sys.argv[1]))
backend = stored_backend(folder, folder.path)
trim_heap()
"""
_LLAMA = """
import sys
from llama_cpp import Llama

model = Llama(sys.argv[1], n_ctx=512, n_threads=1, verbose=False)
model("Mia has 3 boxes with 4 cards in each box.", max_tokens=2, temperature=0)
"""


@dataclass(frozen=True)
class Memory:
    """Bytes of a process that has drawn two tokens; see the head of this file.

    `file`: those of the weights. `code`: of libraries, as it lies in their files.
    """

    model: str
    start: str
    file: int
    resident: int
    own: int
    proportional: int
    peak: int
    code: int


def weights(model: Path) -> int:
    """The bytes of a model's weights."""
    files = [model] if model.is_file() else [*model.glob("*.safetensors")]
    return sum(file.stat().st_size for file in files)


def measured(python: str, code: str, model: Path | None, start: str, cache: str) -> Memory:
    """Raises RuntimeError where the process fails."""
    place = "nothing" if model is None else str(model)
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1"}
    command = [python, "-c", code + _SAY, place]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    said = json.loads(done.stdout.splitlines()[-1])
    return Memory("no model" if model is None else model.name, start, 0 if model is None else weights(model), **said)


def page(found: Sequence[Memory], machine: str) -> str:
    """`found`: the first is of a process without a model."""
    shown = [memory for memory in found if memory.start != _TOKENIZER]
    head = "| model | start | file, MiB | own | proportional | resident | files | beyond | peak | files | beyond |"
    lines = ["# Memory beside the file", "", head, f"|---|---|{'---:|' * 9}"]
    for memory in shown:
        size, own, share, resident, most = (
            f"{part / _MIB:,.0f}"
            for part in (memory.file, memory.own, memory.proportional, memory.resident, memory.peak)
        )
        cells = [memory.model, memory.start, size, own, share]
        for text, part, empty in (
            (resident, memory.resident, found[0].resident),
            (most, memory.peak, found[0].peak),
        ):
            times = [f"{bytes_ / memory.file:.2f}" if memory.file else "" for bytes_ in (part, part - empty)]
            # Another program's process without a model is not this one's.
            cells += [text, times[0], times[1] if memory.start != _PEER else ""]
        lines.append(f"| {' | '.join(cells)} |")
    beyond = "`beyond` leaves out what a process takes without a model, more than a small file has"
    lines += ["", f"In files: the goal is {_GOAL}; {beyond}.", "", *_parts(found), ""]
    lines += ["Written by `python -m benchmarks.resident`.", ""]
    return "\n".join([*lines, f"Measured on: {machine}.", ""])


def _parts(found: Sequence[Memory]) -> list[str]:
    """What is resident beyond a process without a model, in MiB, and what the goal leaves of it."""
    lines = ["## What stands in the way", ""]
    lines += ["| model | start | weights, mapped | code | tokenizer | other own | beyond | goal |"]
    lines += [f"|---|---|{'---:|' * 6}"]
    empty = found[0]
    tokenizers = {memory.model: memory.own - empty.own for memory in found if memory.start == _TOKENIZER}
    for memory in found:
        if memory.start not in ("first", "second"):
            continue
        files, empty_files = (one.resident - one.own - one.code for one in (memory, empty))
        own, tokenizer = memory.own - empty.own, tokenizers[memory.model]
        parts = (files - empty_files, memory.code - empty.code, tokenizer, own - tokenizer)
        shown = [f"{part / _MIB:,.0f}" for part in (*parts, memory.resident - empty.resident, _GOAL * memory.file)]
        lines.append(f"| {memory.model} | {memory.start} | {' | '.join(shown)} |")
    return [*lines, "", f"In MiB. A process without a model has {empty.code / _MIB:,.0f} of code."]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    options.add_argument("--llama-cpp", metavar="PYTHON", help="the Python of an environment with llama-cpp-python")
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    found: list[Memory] = []
    with tempfile.TemporaryDirectory() as cache:
        found.append(measured(sys.executable, _OURS, None, "", cache))
        for model in given.models:
            for start, code in (("first", _OURS), ("second", _OURS), (_TOKENIZER, _OURS_TOKENIZER)):
                found.append(measured(sys.executable, code, model.resolve(), start, cache))
                print(found[-1], flush=True)
            if given.llama_cpp is not None and model.is_file():
                found.append(measured(given.llama_cpp, _LLAMA, model.resolve(), _PEER, cache))
    from benchmarks.common.machine import sentence

    record = {"machine": sentence(), "found": [asdict(memory) for memory in found]}
    (given.output / f"{NAME}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (given.output / f"{NAME}.md").write_text(page(found, sentence()), encoding="utf-8")
    print(page(found, sentence()))


if __name__ == "__main__":
    main()
