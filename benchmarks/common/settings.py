"""What all benchmarks of the engine take on the command line, and the names of the peers that it can name."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.common.folders import RESULTS

GENERATE, GENERATE_BATCH, LLAMA = "generate", "generate_batch", "llama.cpp"
PEERS = (GENERATE, GENERATE_BATCH, LLAMA)


@dataclass(frozen=True)
class Settings:
    """`quick` runs reduced sizes, to see that a benchmark works; `scratch` is a folder for files of the run."""

    repeats: int
    threads: int
    clock: str
    peers: tuple[str, ...]
    models: tuple[str, ...]
    quick: bool
    output: Path
    scratch: Path

    def sized(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options common to all benchmarks."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=3, help="measured rounds, after one to warm up")
    options.add_argument("--threads", type=int, default=1, help="torch's and the peers' threads")
    options.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of the process")
    options.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    options.add_argument("--models", nargs="+", choices=("zoo", "0.5B"), default=["zoo", "0.5B"])
    options.add_argument("--quick", action="store_true", help="reduced sizes: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    return options


def settings_of(arguments: argparse.Namespace, scratch: Path) -> Settings:
    """Sets torch's threads, too."""
    torch.set_num_threads(arguments.threads)
    return Settings(
        arguments.repeats,
        arguments.threads,
        arguments.clock,
        tuple(arguments.peers),
        tuple(arguments.models),
        arguments.quick,
        arguments.output,
        scratch,
    )


def alone(description: str | None, bench: Callable[[Settings], None]) -> None:
    """Runs one benchmark from the command line."""
    arguments = parser(description).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench(settings_of(arguments, Path(scratch)))
