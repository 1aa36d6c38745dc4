"""Real servers as processes: started on a free port, waited for, killed, and started again on the same port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from qpdsl import zoo
from tests.live.environments import named_by, python_with

# No server may look for anything outside this machine.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
_VLLM = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
CONTEXT = 1024
THINKER = "zoo/counting-thinker"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A server process. `port` stays the same when it is started again.

    `dialect` and `name` say how a model id names its model; `tokenizer` is a model whose tokenizer is the served one's,
    None where the server takes no token ids. `ready` is a path that answers 200 once the model is loaded.
    """

    dialect: str
    name: str
    tokenizer: str | None
    command: Sequence[str]
    port: int
    log: Path
    ready: str = "/v1/models"
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model_id(self) -> str:
        """How a program names the model."""
        sign = "" if self.tokenizer is None else f" tokenizer={self.tokenizer}"
        return f"{self.dialect}:{self.root}/v1#{self.name}{sign}"

    def start(self, seconds: float = 180.0) -> None:
        """Starts it and waits until it is ready. Fails the test, with the end of its log, where it ends or is late."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **_OFFLINE, **self.environment},
                start_new_session=True,
            )
        until = time.monotonic() + seconds
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                pytest.fail(f"{self.command[0]} does not start:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.25)

    def kill(self) -> None:
        """Ends it as `kill -9` does, with every process it made."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _is_ready(self) -> bool:
        try:
            return httpx.get(self.root + self.ready, timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False


def logs(folder: Path) -> Path:
    """Where servers write what they print."""
    place = Path(os.environ.get("QPDSL_LIVE_LOGS", folder))
    place.mkdir(parents=True, exist_ok=True)
    return place


def vllm(folder: Path, builtin: str = "zoo/counting") -> Server:
    """vLLM with a built-in model, in float32 and one thread."""
    port = free_port()
    program = python_with("vllm").with_name("vllm")
    name = builtin.removeprefix("zoo/")
    options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(CONTEXT)]
    options += ["--max-num-seqs", "32", "--block-size", "32", "--enforce-eager", "--enable-prompt-tokens-details"]
    command = [str(program), "serve", str(zoo.path(builtin)), "--served-model-name", name, *options]
    return Server("vllm", name, builtin, command, port, logs(folder) / "vllm.log", "/health", _VLLM)


def vllm_thinking(folder: Path, parser: str = "qwen3", *, plain_marks: bool = False) -> Server:
    """vLLM with the built-in model that thinks, whose marks of thoughts are special tokens unless they are `plain`.

    Of the parsers `qwen3` reads special tokens, and `deepseek_r1` text alone.
    """
    server = vllm(folder, THINKER)
    # The model, which knows no records, writes white space where it may.
    compact = '{"disable_any_whitespace": true, "backend": "guidance"}'
    command = [*server.command, "--reasoning-parser", parser, "--structured-outputs-config", compact]
    if plain_marks:
        command[command.index(str(zoo.path(THINKER)))] = str(_with_plain_marks(folder / "plain marks"))
    return replace(server, command=command)


def _with_plain_marks(folder: Path) -> Path:
    """A copy of the model that thinks, with marks as most published models have them."""
    shutil.copytree(zoo.path(THINKER), folder)
    for name, key in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "extra_special_tokens")):
        said = json.loads((folder / name).read_text("utf-8"))
        for token in list(said[key]):
            if isinstance(token, dict):
                token["special"] = token["special"] and "think" not in token["content"]
            elif "think" in token:
                said[key].remove(token)
        (folder / name).write_text(json.dumps(said, ensure_ascii=False), "utf-8")
    return folder


def llama_server(folder: Path) -> Server:
    """llama.cpp's own server, with eight slots of one context each."""
    port = free_port()
    file = named_by("QPDSL_LIVE_GGUF")
    options = ["--host", "127.0.0.1", "--port", str(port), "-c", str(8 * CONTEXT), "-np", "8", "-t", "1", "-tb", "1"]
    command = [str(named_by("QPDSL_LIVE_LLAMA_SERVER")), "-m", str(file), "--alias", "small", "--jinja", *options]
    return Server("llamacpp", "small", str(file), command, port, logs(folder) / "llama-server.log", "/health")


def llama_cpp_python(folder: Path) -> Server:
    """The server of llama-cpp-python: one request at a time, no token ids."""
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", str(CONTEXT), "--n_threads", "1"]
    model = ["--model", str(named_by("QPDSL_LIVE_GGUF")), "--model_alias", "small"]
    command = [str(python_with("llama_cpp")), "-m", "llama_cpp.server", *model, *options]
    return Server("openai", "small", None, command, port, logs(folder) / "llama_cpp.log")


def transformers_serve(folder: Path) -> Server:
    """`transformers serve` with the built-in generator: chat only, greedy unless told otherwise."""
    port = free_port()
    model = str(zoo.path("zoo/counting"))
    program = python_with("transformers.cli.serve", "fastapi").with_name("transformers")
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    command = [str(program), "serve", model, *options]
    return Server("openai", model, None, command, port, logs(folder) / "transformers.log", "/health")


def ours(folder: Path, *arguments: str) -> Server:
    """`qpdsl serve` with the arguments given."""
    port = free_port()
    command = [sys.executable, "-m", "qpdsl", "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    return Server("vllm", "llm", "zoo/counting", command, port, logs(folder) / "qpdsl.log", "/readyz")


def exposed(folder: Path) -> Server:
    """The built-in generator behind our own server."""
    return ours(folder, "greedy", "--expose", "llm")


KINDS: dict[str, Callable[[Path], Server]] = {
    "qpdsl serve": exposed,
    "vllm": vllm,
    "vllm thinking": vllm_thinking,
    "llama-server": llama_server,
    "llama_cpp.server": llama_cpp_python,
    "transformers serve": transformers_serve,
}
