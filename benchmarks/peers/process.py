"""Starts a side in a process of its own, in the environment that it needs, and asks it to load and run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.common.folders import ROOT
from benchmarks.peers.peer import Found, Room, Tokens

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Nothing is downloaded or reported; vLLM runs in the one process that is timed, and pins no thread.
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_LAST = 400
_NONE: Mapping[str, Any] = MappingProxyType({})


class Absent(Exception):
    """A side that does not run here, with the reason."""


class Process:
    """A worker. What it prints beside its replies goes to `log`."""

    def __init__(self, python: Path, threads: int, kv_gib: int, log: Path) -> None:
        """`kv_gib`: the memory that vLLM is given for keys and values."""
        environment = {**os.environ, **_SETTINGS, **dict.fromkeys(_THREADS, str(threads))}
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(kv_gib)
        # Each side says itself how its threads wait.
        environment.pop("OMP_WAIT_POLICY", None)
        self._log = log
        try:
            with log.open("w", encoding="utf-8") as written:
                self._process = subprocess.Popen(
                    [str(python), "-m", "benchmarks.peers.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=written,
                    cwd=ROOT,
                    env=environment,
                    text=True,
                    encoding="utf-8",
                )
        except OSError as error:
            raise Absent(f"{python} does not start: {error}") from error

    def load(
        self, side: str, model: Path, dtype: str, room: Room, options: Mapping[str, Any] = _NONE
    ) -> dict[str, Any]:
        """Raises Absent where the side is not installed, or does not take the model."""
        request = {"do": "load", "side": side, "model": str(model), "dtype": dtype, "options": dict(options)}
        sizes = {"slots": room.slots, "context": room.context, "threads": room.threads}
        return self._ask({**request, **sizes})

    def run(self, prompts: Tokens, lengths: list[int]) -> dict[str, Any]:
        """Raises Absent where the side fails."""
        return self._ask({"do": "run", "prompts": prompts, "lengths": lengths})

    def write(
        self, prompts: Tokens, schemas: Sequence[str], limit: int, plan: Mapping[str, Any] = _NONE
    ) -> dict[str, Any]:
        """JSON held to the schemas. Raises Absent where the side fails."""
        rows = {"prompts": prompts, "schemas": list(schemas)}
        return self._ask({"do": "write", **rows, "limit": limit, "plan": dict(plan)})

    def search(self, problems: Sequence[str], own_draws: bool = False) -> Found:
        """Raises Absent where the side fails."""
        return Found(**self._ask({"do": "search", "problems": list(problems), "own_draws": own_draws}))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise Absent(f"its process ended with {code}: {self._log.read_text(encoding='utf-8')[-_LAST:].strip()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise Absent(reply["error"])
        return reply

    def close(self) -> None:
        """Ends the process, whatever it does."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
