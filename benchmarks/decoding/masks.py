"""MaskBench: what a schema lets through and what a mask costs, beside xgrammar and outlines-core.

    python -m benchmarks.decoding.masks --data FILE --tokenizer FOLDER [--peers PYTHON] [--seconds 10]
        [--timed N] [--clock wall] [--limit N]

FILE has a case of MaskBench (guidance-ai/jsonschemabench) a line: a schema, and records that are `valid` or not. FOLDER
holds a tokenizer of 262,144 ids, such as Gemma 3's; one of 131,072 is made from it, by leaving out the rarer half. The
peers run in PYTHON, which has their packages; a schema that one of them has not compiled and checked after `--seconds`
counts as refused.

A schema is refused when it is checked, or each record is accepted or rejected, byte by byte. Masks are timed along the
valid records, one mask at a time, as a model with that tokenizer would write them.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llguidance.hf
import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import absent_line, machine_line, write
from benchmarks.decoding import mask_peers
from qpdsl.executor.text.constraint import Constrainer, TokenMask
from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import faults, to_text

NAME = "masks"
OURS = "qpdsl"
SIZES = (131_072, 262_144)
GOALS = {"median": 100.0, "p99": 1000.0}


@dataclass(frozen=True)
class Case:
    """A schema of MaskBench, and its records as JSON text with whether they are valid."""

    id: str
    schema: Any
    records: tuple[tuple[str, bool], ...]

    @classmethod
    def read(cls, line: str) -> Case:
        case = json.loads(line)
        records = ((json.dumps(test["data"], ensure_ascii=False), bool(test["valid"])) for test in case["tests"])
        return cls(case["id"], case["schema"], tuple(records))


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that masks are over: the bytes that each writes, the one that ends, and how a text is split."""

    written: Sequence[bytes]
    eos: int
    encode: Callable[[str], list[int]]
    compile: mask_peers.Compile

    def asked(self, cases: Sequence[Case], valid_only: bool) -> list[dict[str, Any]]:
        """The cases as `mask_peers` takes them."""
        return [
            {
                "schema": json.dumps(case.schema),
                "outputs": [self.encode(text) for text, valid in case.records if valid or not valid_only],
            }
            for case in cases
        ]


class _Mask:
    """Our mask, as `mask_peers.Matcher` has it."""

    def __init__(self, mask: TokenMask, size: int, eos: int) -> None:
        self._mask = mask
        self._bits = np.zeros((1, -(-size // 32)), dtype=np.int32)
        self._eos = eos
        self._ended = False

    def fill(self) -> None:
        self._mask.fill([self._mask], self._bits)

    def take(self, token: int) -> bool:
        taken = not self._ended and self._mask.admits([token]) == 1
        self._ended = taken and self._mask.push(token)
        return taken

    def complete(self) -> bool:
        return self._ended or self._mask.admits([self._eos]) == 1


def vocabulary_of(tokenizer: PreTrainedTokenizerFast, size: int) -> Vocabulary:
    """Of a tokenizer, for logits that are `size` wide."""
    eos = int(tokenizer.convert_tokens_to_ids(tokenizer.eos_token))
    tokens = llguidance.hf.from_tokenizer(tokenizer, n_vocab=size)
    written = [b"" if tokens.is_special_token(token) else tokens.decode_bytes([token]) for token in range(size)]
    constrainer = Constrainer(tokenizer, size, [eos])

    def compile(text: str) -> Callable[[], mask_peers.Matcher]:
        document = json.loads(text)
        reason = next((why for _, why in faults(document)), None)
        constraint = to_text(as_constraint(document)) if reason is None else ""
        if (reason := reason or refusal("json_schema", constraint)) is not None:
            raise ValueError(reason)
        masks = constrainer.masks("json_schema", constraint)
        return lambda: _Mask(masks(), size, eos)

    def encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

    return Vocabulary(written, eos, encode, compile)


def of_bytes() -> PreTrainedTokenizerFast:
    """A token for each byte, and one for the end."""
    ids = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(ids, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def cut(tokenizer: PreTrainedTokenizerFast, size: int) -> PreTrainedTokenizerFast:
    """A tokenizer with `size` ids of this one: those of letters and bytes, and of the others the commonest."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    model = described["model"]
    special = {token["content"]: token for token in described["added_tokens"] if token["special"]}
    commonest = sorted(
        model["vocab"], key=lambda token: (not _basic(token) and token not in special, model["vocab"][token])
    )
    model["vocab"] = {token: number for number, token in enumerate(commonest[:size])}
    known = model["vocab"].keys()
    pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
    model["merges"] = [[*pair] for pair in pairs if {*pair, "".join(pair)} <= known]
    described["added_tokens"] = [
        {**token, "id": model["vocab"][content]} for content, token in special.items() if content in known
    ]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), eos_token=tokenizer.eos_token
    )


def _basic(token: str) -> bool:
    return len(token) == 1 or (token.startswith("<0x") and len(token) == len("<0x00>"))


@dataclass(frozen=True)
class Side:
    """What a system said: to each case over bytes, and to each over every large vocabulary."""

    version: str
    verdicts: list[dict[str, Any]]
    timed: dict[int, list[dict[str, Any]]]


def ours(cases: Sequence[Case], clock: str, small: Vocabulary, large: dict[int, Vocabulary]) -> Side:
    verdicts = [mask_peers.answer(small.compile, case, False, clock) for case in small.asked(cases, False)]
    timed = {
        size: [mask_peers.answer(one.compile, case, True, clock) for case in one.asked(cases, True)]
        for size, one in large.items()
    }
    return Side(version("llguidance"), verdicts, timed)


def theirs(
    name: str,
    python: str,
    seconds: float,
    clock: str,
    cases: Sequence[Case],
    timed_cases: int,
    small: Vocabulary,
    large: dict[int, Vocabulary],
) -> Side:
    """Masks are timed on the first `timed_cases`. Raises CalledProcessError or OSError where the peer does not run."""
    release, verdicts = _ask(name, python, seconds, clock, small, small.asked(cases, False), False)
    timed = {
        size: _ask(name, python, seconds, clock, one, one.asked(cases[:timed_cases], True), True)[1]
        for size, one in large.items()
    }
    return Side(release, verdicts, timed)


def _ask(
    name: str, python: str, seconds: float, clock: str, one: Vocabulary, cases: list[dict[str, Any]], timed: bool
) -> tuple[str, list[dict[str, Any]]]:
    asked = {
        "vocabulary": [base64.b64encode(token).decode() for token in one.written],
        "eos": one.eos,
        "seconds": seconds,
        "timed": timed,
        "clock": clock,
        "cases": cases,
    }
    with tempfile.TemporaryDirectory() as folder:
        questions, answers = Path(folder, "questions.json"), Path(folder, "answers.json")
        questions.write_text(json.dumps(asked), encoding="utf-8")
        subprocess.run([python, mask_peers.__file__, name, str(questions), str(answers)], check=True)
        found = json.loads(answers.read_text(encoding="utf-8"))
    return found["version"], found["answers"]


def counts(cases: Sequence[Case], verdicts: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many schemas were refused, and of the others' records, how many were judged rightly and wrongly."""
    found = dict.fromkeys(("schemas", "refused", "accepted", "not accepted", "rejected", "not rejected"), 0)
    for case, verdict in zip(cases, verdicts, strict=True):
        found["schemas"] += 1
        if verdict["refused"] is not None:
            found["refused"] += 1
            continue
        for (_, valid), accepted in zip(case.records, verdict["accepted"], strict=True):
            found[("" if accepted == valid else "not ") + ("accepted" if valid else "rejected")] += 1
    return found


def times(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of all masks: how many, and median, p95, p99 and most in microseconds; the median compile in milliseconds."""
    done = [answer for answer in answers if answer["refused"] is None]
    masks = np.array([seconds for answer in done for seconds in answer["masks"]]) * 1e6
    if not len(masks):
        return {}
    median, p95, p99, most = (round(float(at), 1) for at in np.percentile(masks, [50, 95, 99, 100]))
    compile = round(float(np.median([answer["compile"] for answer in done])) * 1e3, 2)
    return {
        "schemas": len(done),
        "masks": len(masks),
        "median": median,
        "p95": p95,
        "p99": p99,
        "most": most,
        "compile": compile,
    }


def page(record: dict[str, Any], absent: dict[str, str]) -> str:
    """The tables."""
    lines = [
        "# What constraints let through, and what masks cost",
        "",
        "| system | schemas | refused | valid: accepted | valid: rejected | invalid: rejected | invalid: accepted |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, side in record["systems"].items():
        found = side["counts"]
        lines.append(
            f"| {name} | {found['schemas']} | {found['refused']} | {found['accepted']} | {found['not accepted']} "
            f"| {found['rejected']} | {found['not rejected']} |"
        )
    lines += [
        "",
        "A mask, along the valid records of the schemas that a system took, in microseconds:",
        "",
        "| ids | system | schemas | masks | median | p95 | p99 | most | compile, ms |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in record["sizes"]:
        for name, side in record["systems"].items():
            found = side["times"][str(size)]
            if found:
                shown = " | ".join(f"{found[key]:,g}" for key in ("schemas", "masks", "median", "p95", "p99", "most"))
                lines.append(f"| {size:,} | {name} | {shown} | {found['compile']:g} |")
    met = [
        f"{key} at most {most:g} µs over {size:,} ids: {found[key]:g} µs, "
        + ("met" if found[key] <= most else "**missed**")
        for size in record["sizes"]
        for key, most in GOALS.items()
        if (found := record["systems"][OURS]["times"][str(size)])
    ]
    versions = ", ".join(f"{name} {side['version']}" for name, side in record["systems"].items() if name != OURS)
    version = record["systems"][OURS]["version"]
    lines += ["", "Goals: " + "; ".join(met) + ".", "", f"Masks of {OURS} by llguidance {version}; {versions}. "]
    lines[-1] += f"A peer might take {record['seconds']:g} s for a schema; {record['clock']} clock. {machine_line()}"
    return "\n".join(lines) + "\n" + absent_line(absent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="cases of MaskBench, one a line")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer of 262,144 ids")
    parser.add_argument("--peers", default=sys.executable, help="the Python that has xgrammar and outlines-core")
    parser.add_argument("--seconds", type=float, default=10.0, help="what a peer may take for a schema")
    parser.add_argument("--timed", type=int, default=129, help="the schemas that peers' masks are timed on: the first")
    parser.add_argument("--clock", choices=tuple(mask_peers.CLOCKS), default="wall", help="what masks are timed by")
    parser.add_argument("--limit", type=int, help="so many cases, for a try")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines = options.data.read_text(encoding="utf-8").splitlines()
    cases = [Case.read(line) for line in lines][: options.limit]
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    bytes_only = of_bytes()
    small = vocabulary_of(bytes_only, len(bytes_only))
    large = {size: vocabulary_of(cut(tokenizer, size), size) for size in SIZES}
    sides = {OURS: ours(cases, options.clock, small, large)}
    absent: dict[str, str] = {}
    for name in mask_peers.SYSTEMS:
        try:
            sides[name] = theirs(
                name, options.peers, options.seconds, options.clock, cases, options.timed, small, large
            )
        except (OSError, subprocess.CalledProcessError) as error:
            absent[name] = f"{type(error).__name__}: {error}"
    record: dict[str, Any] = {
        "sizes": list(SIZES),
        "seconds": options.seconds,
        "clock": options.clock,
        "systems": {},
        "refused": {},
    }
    for name, side in sides.items():
        record["systems"][name] = {
            "version": side.version,
            "counts": counts(cases, side.verdicts),
            "times": {str(size): times(answers) for size, answers in side.timed.items()},
        }
        record["refused"][name] = {
            case.id: verdict["refused"]
            for case, verdict in zip(cases, side.verdicts, strict=True)
            if verdict["refused"] is not None
        }
    write(options.output, NAME, page(record, absent), record)


if __name__ == "__main__":
    main()
