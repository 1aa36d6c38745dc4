"""What benchmarks that keep a record of their cases take on the command line, and how they write it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common.case_file import CaseFile, Record
from benchmarks.common.folders import RESULTS
from benchmarks.common.real_models import DEFAULT
from benchmarks.common.results import Goal


def case_parser(
    description: str | None, quick: str, repeats: int, *, rounds: str = "measured rounds, after a few tokens to warm up"
) -> argparse.ArgumentParser:
    """The options that all of them have. `quick` and `rounds` say what these two mean, `repeats` is the default."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=DEFAULT, help=f"where the models are (default: {DEFAULT})")
    options.add_argument("--threads", type=int, default=1, help="of each side")
    options.add_argument("--repeats", type=int, default=repeats, help=rounds)
    options.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="what ratios are of; both are kept")
    options.add_argument("--quick", action="store_true", help=f"{quick}: does it work?")
    options.add_argument("--fresh", action="store_true", help="forget what an earlier run wrote")
    options.add_argument("--show-only", action="store_true", help="write the tables of what is there")
    options.add_argument("--output", type=Path, default=RESULTS)
    return options


def add_peers(options: argparse.ArgumentParser, peers: Sequence[str]) -> None:
    """The options of those that run peers in processes of their own."""
    options.add_argument("--peers", nargs="*", choices=peers, default=list(peers))
    options.add_argument("--vllm-python", type=Path, help="a Python that has vLLM")
    options.add_argument("--llama-python", type=Path, help="a Python that has llama-cpp-python")


def case_file(arguments: argparse.Namespace, name: str, empty: Record) -> CaseFile:
    """The record of that name in the folder that the options say."""
    place = arguments.output / f"{name}.json"
    return CaseFile(place, empty, fresh=arguments.fresh, show_only=arguments.show_only)


def publish(
    file: CaseFile,
    clock: str,
    goals_of: Callable[[Record, str], Sequence[Goal]],
    page: Callable[[Record, str], str],
    draw: Callable[[Record, str, Path], None] | None = None,
) -> None:
    """Writes the record as it is, with its goals, its page and its plot."""
    goals = goals_of(file.record, clock)
    file.record["goals"] = [{"what": g.what, "goal": g.goal, "reached": g.reached, "met": g.met} for g in goals]
    file.write()
    file.path.with_suffix(".md").write_text(page(file.record, clock), encoding="utf-8")
    if draw is not None:
        draw(file.record, clock, file.path.with_suffix(".svg"))
