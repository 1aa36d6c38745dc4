"""Starts a server in a process of its own, pinned to cores, and says when it answers.

Nothing is downloaded: the servers run on a folder, or a GGUF file, that is here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.folders import ROOT

NAME = "llm"
_PROGRAM = ROOT / "benchmarks" / "serving" / "answer.qp"
_SETTINGS = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1"}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# vLLM compiles its model when it starts.
_SECONDS_TO_START = 600.0
_SECONDS_TO_END = 20.0
_LAST = 400


class Absent(Exception):
    """A server that does not run here, with the reason."""


@dataclass(frozen=True)
class Server:
    """How one server is started: `command` makes its command line from a port; `model` is what requests name."""

    name: str
    command: Callable[[int], list[str]]
    model: str = NAME
    settings: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> str:
        """The command line, for a result file: of paths the last part."""
        return shlex.join(re.sub(r"[^\s=]*/", "", word) for word in self.command(8000))


def ours(model: Path, clients: int, replicas: int = 0) -> Server:
    """The bare model, and a program that asks it once, on our server; on so many replicas, where there are any."""
    options = ["--model", f"{NAME}={model}", "--expose", NAME, "--max-running", str(max(clients, 1))]
    options += ["--cluster", f"local:{replicas}"] if replicas else []
    command = [sys.executable, "-m", "qpdsl", "serve", str(_PROGRAM), *options]
    return Server("qpdsl serve", lambda port: [*command, "--port", str(port)])


def vllm(python: Path, model: Path, dtype: str, context: int, kv_gib: int) -> Server:
    """`vllm serve`, compiled, as it comes."""
    settings = {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    options = ["--served-model-name", NAME, "--host", "127.0.0.1", "--dtype", dtype, "--block-size", "32"]
    options += ["--max-model-len", str(context), "--max-num-seqs", "64", "--generation-config", "vllm"]
    program = str(python.parent / "vllm")
    return Server(
        "vllm serve", lambda port: [program, "serve", str(model), *options, "--port", str(port)], settings=settings
    )


def llama_server(program: Path, file: Path, slots: int, context: int, threads: int) -> Server:
    """llama.cpp's server; its context is shared out among its slots."""
    options = ["-m", str(file), "--alias", NAME, "--host", "127.0.0.1", "--parallel", str(slots)]
    options += ["-c", str(slots * context), "-t", str(threads), "-tb", str(threads), "--no-webui"]
    return Server("llama-server", lambda port: [str(program), *options, "--port", str(port)])


@contextlib.contextmanager
def started(server: Server, cores: set[int], log: Path) -> Iterator[str]:
    """The URL of a server that runs on these cores while the block does. Raises Absent."""
    with running(server, cores, log) as (url, _):
        yield url


@contextlib.contextmanager
def running(server: Server, cores: set[int], log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same with the server's process."""
    port = _free_port()
    threads = dict.fromkeys(_THREADS, str(len(cores)))
    environment = {**os.environ, **_SETTINGS, **threads, **server.settings}
    with log.open("w", encoding="utf-8") as written:
        try:
            process = subprocess.Popen(
                server.command(port),
                stdout=written,
                stderr=written,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
                start_new_session=True,
            )
        except OSError as error:
            raise Absent(f"{server.name} does not start: {error}") from error
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process, log)
        yield url, process
    finally:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < end:
        if process.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace")[-_LAST:].strip()
            raise Absent(f"it ended with {process.returncode}: {said}")
        # llama-server lists its model before it is loaded, and is healthy after.
        with contextlib.suppress(OSError, urllib.error.URLError):
            for path in ("/v1/models", "/health", "/healthz"):
                try:
                    with urllib.request.urlopen(f"{url}{path}", timeout=5):
                        pass
                except urllib.error.HTTPError as error:
                    if error.code != 404:
                        raise
            return
        time.sleep(0.5)
    raise Absent(f"it did not answer within {_SECONDS_TO_START:g} s")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
