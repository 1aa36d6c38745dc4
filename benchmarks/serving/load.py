"""Servers under load: throughput, and how long clients wait, at 1, 8 and 64 clients; and what HTTP costs ours.

    python -m benchmarks.serving.load --model FOLDER [--gguf FILE --llama-server PROGRAM] [--vllm PYTHON] [--quick]
    python -m benchmarks.serving.load --model FOLDER --replicas 2 [--kill] [--quick]

Each client asks again as soon as it has its answer, which is streamed. Prompts are different random token ids, and
every answer has the same number of tokens, whatever they are: all servers do the same work. One server runs at a time,
on the cores that the client has not. "Without HTTP" are the same requests, asked of the same engine by coroutines in
its own process; it and our server take turns. A program is asked by chat, with text, and ends where its model does.

With `--replicas` nothing is timed: the same requests, sampled by seed, go to one process and to replicas behind one
door, and the answers are compared; with `--kill` one of the replicas is killed in the middle. It ends with 1 where
answers differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from benchmarks.common.folders import RESULTS, ROOT
from benchmarks.common.results import Goal, Ratio, absent_line, goal_table, machine_line, write
from benchmarks.serving.replicas import compared
from benchmarks.serving.servers import NAME, Absent, Server, llama_server, ours, started, vllm

_LEVELS = (1, 8, 64)
_REQUESTS = {1: 8, 8: 48, 64: 192}
_QUICK_REQUESTS = {1: 2, 8: 8, 64: 64}
_CONTEXT = 1024
# The lowest ids are often special tokens.
_FIRST_ID = 30
_LOSS = 0.05
DIRECT, BARE, PROGRAM = "engine without HTTP", "qpdsl serve, bare model", "qpdsl serve, a program"


def bodies(count: int, vocabulary: int, prompt: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Requests for exactly so many tokens after prompts that nobody has seen."""
    rng = random.Random(seed)
    return [
        {
            "model": NAME,
            "prompt": [rng.randrange(_FIRST_ID, vocabulary) for _ in range(prompt)],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for _ in range(count)
    ]


def chats(count: int, words: int, seed: int) -> list[dict[str, Any]]:
    """Questions for the program, of so many words."""
    rng = random.Random(seed)
    numbers = [" ".join(str(rng.randrange(1000)) for _ in range(words)) for _ in range(count)]
    return [
        {
            "model": "answer",
            "messages": [{"role": "user", "content": f"Which is the largest of {text}?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for text in numbers
    ]


def asked(url: str, path: str, requests: list[dict[str, Any]], clients: int, core: int) -> dict[str, Any]:
    """What the client saw. Raises Absent where the server answers wrongly."""
    spec = {"url": url, "path": path, "bodies": requests, "clients": clients, "core": core}
    command = [sys.executable, "-m", "benchmarks.serving.client"]
    done = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise Absent(f"the client ended with {done.returncode}: {done.stderr[-400:]}")
    return checked(json.loads(done.stdout))


def checked(found: dict[str, Any]) -> dict[str, Any]:
    errors = [answer["error"] for answer in found["answers"] if answer["error"]]
    if errors:
        raise Absent(f"{len(errors)} of {len(found['answers'])} requests failed: {errors[0]}")
    return found


class Direct:
    """`direct.py` in a process of its own."""

    def __init__(self, model: Path, cores: set[int], log: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
        command = [sys.executable, "-m", "benchmarks.serving.direct", str(model), *map(str, sorted(cores))]
        with log.open("w", encoding="utf-8") as written:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                cwd=ROOT,
                env=environment,
                text=True,
            )
        self._read()

    def ask(self, requests: list[dict[str, Any]], clients: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"bodies": requests, "clients": clients}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Absent(f"its process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def direct(model: Path, cores: set[int], log: Path) -> Iterator[Direct]:
    """The engine without HTTP, loaded."""
    side = Direct(model, cores, log)
    try:
        yield side
    finally:
        side.close()


def figures(found: list[dict[str, Any]]) -> dict[str, float]:
    """Tokens a second, the median over rounds; percentiles in seconds over all requests."""
    answers = [answer for one in found for answer in one["answers"]]
    rates = [sum(answer["tokens"] for answer in one["answers"]) / one["seconds"] for one in found]
    firsts, wholes = (sorted(answer[name] for answer in answers) for name in ("first", "whole"))
    return {
        "tokens_per_second": round(statistics.median(rates), 1),
        "first_p50": round(percentile(firsts, 0.5), 4),
        "first_p99": round(percentile(firsts, 0.99), 4),
        "whole_p50": round(percentile(wholes, 0.5), 4),
        "whole_p99": round(percentile(wholes, 0.99), 4),
    }


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the ascending values lies."""
    return values[min(len(values) - 1, int(share * len(values)))]


class Load:
    """The measurement: its sizes, and what was found, by side and number of clients."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.levels: tuple[int, ...] = tuple(arguments.clients)
        self.rounds = 1 if arguments.quick else arguments.repeats
        self.counts = _QUICK_REQUESTS if arguments.quick else _REQUESTS
        self.prompt, self.tokens = (16, 16) if arguments.quick else (arguments.prompt, arguments.tokens)
        self.model: Path = arguments.model.resolve()
        config = AutoConfig.from_pretrained(self.model)
        self.vocabulary = int(config.vocab_size)
        self.dtype: str = arguments.dtype
        cores = sorted(os.sched_getaffinity(0))
        self.client_core, self.cores = cores[-1], set(cores[:-1]) or set(cores)
        if arguments.threads is not None:
            self.cores = set(sorted(self.cores)[: arguments.threads])
        self.scratch = scratch
        self.found: dict[str, dict[int, list[dict[str, Any]]]] = {}
        self.absent: dict[str, str] = {}
        self._seeds = iter(range(1, 1 << 30))

    def requests(self, clients: int) -> list[dict[str, Any]]:
        return bodies(self.counts[clients], self.vocabulary, self.prompt, self.tokens, next(self._seeds))

    def note(self, side: str, clients: int, found: dict[str, Any]) -> None:
        self.found.setdefault(side, {}).setdefault(clients, []).append(found)

    def ours(self, server: Server) -> None:
        """Our server beside the engine without HTTP, in turn; then the program."""
        with (
            started(server, self.cores, self.scratch / "ours.log") as url,
            direct(self.model, self.cores, self.scratch / "direct.log") as side,
        ):
            for clients in self.levels:
                for turn in range(-1, self.rounds):
                    requests = self.requests(clients)
                    over_http = asked(url, "/v1/completions", requests, clients, self.client_core)
                    without = side.ask(self.requests(clients), clients)
                    if turn >= 0:
                        self.note(BARE, clients, over_http)
                        self.note(DIRECT, clients, without)
                for _ in range(self.rounds):
                    requests = chats(self.counts[clients], self.prompt // 2, next(self._seeds))
                    answered = asked(url, "/v1/chat/completions", requests, clients, self.client_core)
                    self.note(PROGRAM, clients, answered)

    def peer(self, server: Server) -> None:
        """Another server, alone."""
        try:
            with started(server, self.cores, self.scratch / "peer.log") as url:
                for clients in self.levels:
                    for turn in range(-1, self.rounds):
                        requests = self.requests(clients)
                        found = asked(url, "/v1/completions", requests, clients, self.client_core)
                        if turn >= 0:
                            self.note(server.name, clients, found)
        except Absent as reason:
            self.found.pop(server.name, None)
            self.absent[server.name] = str(reason)
            print(f"without {server.name}: {reason}")

    def kept(self, clients: int) -> Ratio:
        """Throughput with HTTP over that without, round by round."""
        rates = [
            [sum(answer["tokens"] for answer in one["answers"]) / one["seconds"] for one in self.found[side][clients]]
            for side in (BARE, DIRECT)
        ]
        return Ratio.of([a / b for a, b in zip(*rates, strict=True)])


def table(load: Load) -> list[str]:
    lines = [
        "| server | clients | tokens/s | first token p50 | p99 | whole answer p50 | p99 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for side, levels in load.found.items():
        for clients, found in levels.items():
            row = figures(found)
            first = [f"{1000 * row[name]:.0f} ms" for name in ("first_p50", "first_p99")]
            if side == DIRECT:
                first = ["", ""]
            whole = [f"{row[name]:.2f} s" for name in ("whole_p50", "whole_p99")]
            cells = [side, str(clients), f"{row['tokens_per_second']:.0f}", *first, *whole]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def bench(arguments: argparse.Namespace, scratch: Path) -> None:
    load = Load(arguments, scratch)
    threads = len(load.cores)
    own = ours(load.model, max(_LEVELS))
    peers = []
    if arguments.vllm is not None:
        peers.append(vllm(arguments.vllm, load.model, load.dtype, _CONTEXT, arguments.kv_gib))
    if arguments.llama_server is not None:
        peers.append(llama_server(arguments.llama_server, arguments.gguf, max(_LEVELS), _CONTEXT // 4, threads))
    load.ours(own)
    report(load, [own], arguments.output)
    for number, server in enumerate(peers, start=1):
        load.peer(server)
        report(load, [own, *peers[:number]], arguments.output)


def compare(arguments: argparse.Namespace, scratch: Path) -> bool:
    """Prints how many answers of replicas equal those of one process, and whether all do."""
    load, clients = Load(arguments, scratch), 8
    # Long enough that some are under way whenever a replica is killed.
    tokens = 2 * arguments.tokens
    asked_for = bodies(48 if arguments.quick else 192, load.vocabulary, load.prompt, tokens, 1)
    sampled = [{**body, "temperature": 1, "seed": seed} for seed, body in enumerate(asked_for)]
    programs = [{**body, "seed": seed} for seed, body in enumerate(chats(len(sampled), load.prompt // 2, 1))]

    def ask(url: str) -> list[dict[str, Any]]:
        found = asked(url, "/v1/completions", sampled, clients, load.client_core)["answers"]
        return [*found, *asked(url, "/v1/chat/completions", programs, clients, load.client_core)["answers"]]

    one, many = (ours(load.model, clients, replicas) for replicas in (0, arguments.replicas))
    result = compared(one, many, arguments.replicas, load.cores, scratch, ask, kill=arguments.kill)
    print(result.words())
    return result.equal == result.requests and result.lost == arguments.kill


def report(load: Load, servers: list[Server], output: Path) -> None:
    """Writes what was found so far, of these servers: a run may be broken off."""
    most = max(load.levels)
    kept = load.kept(most)
    goals = [Goal(f"throughput at {most} clients over that without HTTP", 1 - _LOSS, kept.median)]
    commands = "\n".join(f"    {server.shown()}" for server in servers)
    text = (
        f"# Servers under load: `{load.model.name}`, {load.dtype}, prompts of {load.prompt} ids, "
        f"{load.tokens} tokens\n\n"
        + "\n".join(table(load))
        + f"\n\n{goal_table(goals)}\n\nWith HTTP over without, round by round: {kept}. Servers on {len(load.cores)} "
        f"core(s), the client on another; {load.rounds} round(s) after one to warm up.\n{absent_line(load.absent)}\n"
        f"The servers were started so:\n\n{commands}\n\n{machine_line()}\n"
    )
    record = {
        "model": load.model.name,
        "dtype": load.dtype,
        "prompt": load.prompt,
        "tokens": load.tokens,
        "rounds": load.rounds,
        "commands": {server.name: server.shown() for server in servers},
        "absent": load.absent,
        "runs": {
            side: {str(clients): figures(found) for clients, found in levels.items()}
            for side, levels in load.found.items()
        },
    }
    write(output, "serving_load", text, record, goals)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", type=Path, required=True, help="a folder in Hugging Face's format")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--vllm", type=Path, help="the Python of an environment with vLLM")
    options.add_argument("--kv-gib", type=int, default=1, help="vLLM's memory for keys and values")
    options.add_argument("--llama-server", type=Path, help="the program")
    options.add_argument("--gguf", type=Path, help="the same weights for llama-server")
    options.add_argument("--prompt", type=int, default=64)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--clients", type=int, nargs="+", choices=_LEVELS, default=_LEVELS)
    options.add_argument("--threads", type=int, help="cores of the server; all but the client's by default")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--replicas", type=int, help="compare the answers of so many replicas with one process's")
    options.add_argument("--kill", action="store_true", help="kill one of the replicas in the middle")
    options.add_argument("--quick", action="store_true", help="reduced sizes: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    if (arguments.llama_server is None) != (arguments.gguf is None):
        options.error("--llama-server and --gguf go together")
    if arguments.kill and arguments.replicas is None:
        options.error("--kill needs --replicas")
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.replicas is not None:
            sys.exit(not compare(arguments, Path(scratch)))
        bench(arguments, Path(scratch))


if __name__ == "__main__":
    main()
