"""Records the runs that tests of the dashboard and of pages read: `python -m tests.support.tui.record [NAME…]`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from qpdsl.cli import main as qpdsl
from qpdsl.runs.store.run_folder import VARIABLE
from tests.support.paths import ROOT
from tests.support.remote.stub_server import stub

FOLDER = Path(__file__).parent / "recorded"
PROBLEMS = (ROOT / "programs" / "data" / "counting-500.jsonl").read_text("utf-8").splitlines()
PEOPLE = (ROOT / "programs" / "data" / "person-100.jsonl").read_text("utf-8").splitlines()
PUCT = str(ROOT / "programs" / "idioms" / "search" / "puct.qp")
EARLY = """model llm = "zoo/counting"
program early(problem: text, threshold: float = 0.9) -> text within loss(0.5) {
  chat user=problem
  generate llm via amortized(threshold, layer=3) temperature=0 max_tokens=60
  extract answer = final_answer
  return answer
}
"""
# A million tokens out cost 3.
PRICES = {"stub": {"in": 1.0, "out": 3.0}}


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


def record(name: str, target: Path) -> None:
    """Runs one of them, and writes its trace."""
    run = RUNS[name]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        stack.enter_context(patch.dict("os.environ", {VARIABLE: str(folder / "saved"), "XDG_CACHE_HOME": place}))
        program = run.program
        if "\n" in program:
            (folder / f"{name}.qp").write_text(program, "utf-8")
            program = str(folder / f"{name}.qp")
        (folder / "rows.jsonl").write_text("\n".join(run.rows) + "\n", "utf-8")
        options = stack.enter_context(_served(folder)) if run.remote else ()
        paths = ["--input", str(folder / "rows.jsonl"), "--output", str(folder / "out.jsonl"), "--trace", str(target)]
        code = qpdsl(["run", program, *paths, "--seed", "0", "--overwrite", *run.options, *options])
        assert code in (0, 1), f"{name} ended with {code}"


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, ...]]:
    """The options for a server that is slow, and too busy for some requests."""
    (folder / "prices.json").write_text(json.dumps(PRICES), "utf-8")
    with stub("vllm", pace=0.004) as server:
        server.fail("too_many", 5, seconds=1.0)
        server.fail("overloaded", 1)
        yield "--model", f"llm=vllm:{server.url}#{server.model}", "--prices", str(folder / "prices.json")


if __name__ == "__main__":
    for name in sys.argv[1:] or RUNS:
        record(name, FOLDER / f"{name}.jsonl")
