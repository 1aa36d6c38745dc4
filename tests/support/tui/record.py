"""Records the runs that tests of the dashboard and of pages read: `python -m tests.support.tui.record [NAME…]`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from qpdsl.cli import main as qpdsl
from qpdsl.runs.store.run_folder import VARIABLE
from tests.support.paths import ROOT
from tests.support.remote.stub_server import stub
from tests.support.tui.traces import FOLDER

PROBLEMS = (ROOT / "programs" / "data" / "counting-500.jsonl").read_text("utf-8").splitlines()
PEOPLE = (ROOT / "programs" / "data" / "person-100.jsonl").read_text("utf-8").splitlines()
PUCT = str(ROOT / "programs" / "idioms" / "search" / "puct.qp")
EARLY = """model llm = "zoo/counting"
program early(problem: text, threshold: float = 0.5) -> text within loss(0.5) {
  chat user=problem
  generate llm via amortized(threshold, layer=2) temperature=0 max_tokens=60
  extract answer = final_answer
  return answer
}
"""
# A million tokens out cost 3.
PRICES = {"stub": {"input": 1.0, "output": 3.0}}


@dataclass(frozen=True)
class Recorded:
    """A program, what it runs over, and options; on a server that goes wrong now and then where it is `remote`."""

    program: str
    rows: Sequence[str]
    options: tuple[str, ...] = ()
    remote: bool = False


RUNS = {
    "beam_search": Recorded("beam_search", PROBLEMS[:6], ("--concurrency", "1")),
    "best_of_n_logprob": Recorded("best_of_n_logprob", PROBLEMS[:6]),
    "self_consistency": Recorded("self_consistency", PROBLEMS[:6], ("--kv-memory", "4MiB")),
    "dvts": Recorded("dvts", PROBLEMS[:2]),
    "rebase": Recorded("rebase", PROBLEMS[:2]),
    "puct": Recorded(PUCT, PROBLEMS[1:3], ("--set", "simulations=4")),
    "filter_decoding": Recorded("filter_decoding", PROBLEMS[1:3]),
    "constrained_json": Recorded("constrained_json", PEOPLE[:2]),
    "early": Recorded(EARLY, PROBLEMS[:4], ("--shadow", "0.5")),
    "server": Recorded("self_consistency", PROBLEMS[:4], ("--set", "n=8", "--max-cost", "5"), remote=True),
}


def record(name: str, target: Path, folder: Path) -> None:
    """Runs one of them with what is cached in a folder of its own, and writes its trace."""
    run, rows, program = RUNS[name], folder / f"{name}.rows.jsonl", RUNS[name].program
    if "\n" in program:
        program = str(folder / f"{name}.qp")
        Path(program).write_text(run.program, "utf-8")
    rows.write_text("\n".join(run.rows) + "\n", "utf-8")
    paths = ["--input", str(rows), "--output", str(folder / "out.jsonl"), "--overwrite"]
    places = {VARIABLE: str(folder / "saved"), "XDG_CACHE_HOME": str(folder / "cache")}
    with patch.dict("os.environ", places), ExitStack() as stack:
        command = ["run", program, *paths, *run.options]
        if run.remote:
            server = stack.enter_context(stub("vllm", pace=0.004))
            prices = folder / "prices.json"
            prices.write_text(json.dumps(PRICES), "utf-8")
            command += ["--model", f"llm=vllm:{server.url}#{server.model}", "--prices", str(prices)]
        # What is done once is done before: kernels are compiled, and a server is asked what it can do.
        assert qpdsl([*command, "--limit", "1", "--seed", "1"]) in (0, 1), name
        if run.remote:
            server.fail("too_many", 6, seconds=1.0)
        assert qpdsl([*command, "--seed", "0", "--trace", str(target)]) in (0, 1), name
    trace = target.read_text("utf-8")
    for place in (folder, ROOT):
        trace = trace.replace(f"{place}/", "")
    target.write_text(trace, "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name in sys.argv[1:] or RUNS:
            record(name, FOLDER / f"{name}.jsonl", Path(place))
