"""What is known of the exit heads in a folder: for which model they are, and how they agreed with it. No tensors.

`qpdsl calibrate` measures the figures on text that it kept apart. The planner goes by them, so this loads no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.model_folder import content, is_there
from qpdsl.executor.checkpoint.safe_files import parsed

RECORD, WEIGHTS = "exit_heads.json", "exit_heads.safetensors"
# What the record begins with, so that another JSON file is not taken for one.
KIND = "qpdsl exit heads"
# The agreement that tables and defaults ask for.
USUAL = 0.99


@dataclass(frozen=True, slots=True)
class ExitAgreement:
    """How an exit with a margin agreed with the full model, over the draws of a held-out text.

    exits:   the share of draws that leave: their two largest probabilities differ by at least `margin`
    greedy:  of these, the share whose likeliest token is the full model's; 1 where none leaves
    sampled: of these, the share whose token at temperature 1 is, where both are drawn with the same noise
    """

    margin: float
    exits: float
    greedy: float
    sampled: float

    @property
    def loss(self) -> float:
        """The share of all draws whose token changes, the larger one of greedy and sampled draws."""
        return self.exits * (1 - min(self.greedy, self.sampled))


@dataclass(frozen=True, slots=True)
class LogitBound:
    """How far the logits of an exit lie from the full model's, over the same draws.

    largest:   E such that no two ids changed their distance by more than 2E at any draw. So an exit whose best logit
               leads by more than 2E has the full model's best id, as far as was measured
    quantiles: the same at the share of draws that the key says
    lead:      the largest lead of an exit's best logit where the full model's best id was another
    leads:     the lead of the best logit, by the share of draws that lead by no more
    """

    largest: float
    quantiles: Mapping[str, float]
    lead: float
    leads: Mapping[str, float]

    def leading(self, lead: float) -> float:
        """About the share of draws whose best logit leads by more: at least this was measured."""
        return max((1 - float(share) for share, own in self.leads.items() if own > lead), default=0.0)


@dataclass(frozen=True, slots=True)
class ExitFigures:
    """The exit head after `layer` layers, as measured over `draws` draws of held-out text.

    curve:      by margin, ascending
    divergence: mean KL(full ‖ exit) in nats: before the head was fitted, and after
    leave:      what a draw reads that leaves, in shares of the weights that a full step reads: layers, head, exit head
    refine:     what a draw reads on top of it that goes on: the other layers and the head once more
    output:     the share of the head, which a draw that goes on does not read again with `rerank`
    among:      the share of draws where the full model's best id is among so many best ids of the exit
    """

    layer: int
    draws: int
    divergence: tuple[float, float]
    leave: float
    refine: float
    output: float
    among: Mapping[str, float]
    bound: LogitBound
    curve: tuple[ExitAgreement, ...]

    def smallest_margin(self, agreement: float = USUAL) -> ExitAgreement | None:
        """The smallest margin at which so many of the exits draw the full model's likeliest token; None for none."""
        return next((point for point in self.curve if point.exits and point.greedy >= agreement), None)

    def at(self, margin: float) -> tuple[float, float]:
        """At the largest measured margin that is none above this: the share of draws that leave, and that change."""
        point = next((point for point in reversed(self.curve) if point.margin <= margin), self.curve[0])
        return point.exits, point.loss

    def cost(self, point: ExitAgreement, *, rerank: bool = False) -> float:
        """What a draw reads on average at a margin, in shares of a full step."""
        return self.leave + (1 - point.exits) * (self.refine - (self.output if rerank else 0.0))


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """The exit heads of a folder. `digest` is that of the `model`'s files (`executor/checkpoint/model_digest.py`).

    layers, width, vocabulary: of the model; `tokens`: how many were read, all splits together.
    """

    model: str
    digest: str
    layers: int
    width: int
    vocabulary: int
    tokens: int
    seed: int
    heads: tuple[ExitFigures, ...]

    @property
    def usual(self) -> ExitFigures:
        """The head that is meant where no layer is named: the one that saves most at the usual agreement."""
        return min(self.heads, key=lambda head: head.cost(best) if (best := head.smallest_margin()) else 2.0)

    def head(self, layer: int | None) -> ExitFigures:
        """The head after `layer` layers, or the usual one. Raises CheckpointError."""
        if layer is None:
            return self.usual
        for head in self.heads:
            if head.layer == layer:
                return head
        there = ", ".join(str(head.layer) for head in self.heads)
        raise CheckpointError(f"it has no head for layer {layer}, but for: {there}")

    def check(self, digest: str, layers: int, width: int) -> None:
        """Raises CheckpointError unless the heads were fitted for a model of these files, layers and width."""
        if width != self.width:
            raise CheckpointError(f"it is for hidden states {self.width} wide, and the model's are {width}")
        if layers != self.layers:
            raise CheckpointError(f"it was fitted for a model of {self.layers} layers, and this one has {layers}")
        if digest != self.digest:
            raise CheckpointError(
                f"it was fitted for other weights than these, those of `{self.model}` as they were then; "
                "`qpdsl calibrate` fits one anew"
            )

    @classmethod
    def read(cls, name: str, folder: Path) -> ExitRecord:
        """The record of a folder. Raises ModelError, in which it is called `name`."""
        with reading(name, folder):
            return cls.checked(folder)

    @classmethod
    def checked(cls, folder: Path) -> ExitRecord:
        """The record of a folder. Raises CheckpointError and OSError."""
        if not folder.is_dir():
            raise CheckpointError("there is no such folder")
        for file in (RECORD, WEIGHTS):
            if not is_there(folder, file):
                raise CheckpointError(f"it has no {file}, so `qpdsl calibrate` did not write it")
        data = parsed(RECORD, content(folder, RECORD))
        if data.get("kind") != KIND:
            raise CheckpointError(f"its {RECORD} is no record of exit heads")
        try:
            return _record(data)
        except ValueError as error:
            raise CheckpointError(f"its {RECORD} is damaged") from error

    def json(self) -> dict[str, Any]:
        """The record as JSON data."""
        return {"kind": KIND, **asdict(self)}

    def write(self, folder: Path) -> None:
        """Writes the record into a folder that is there."""
        text = json.dumps(self.json(), indent=1, ensure_ascii=False)
        (folder / RECORD).write_text(text + "\n", encoding="utf-8")


@contextmanager
def reading(name: str, folder: Path) -> Iterator[None]:
    """Makes a ModelError of what is wrong with a folder of exit heads for the model that is called `name`."""
    try:
        yield
    except CheckpointError as error:
        raise ModelError(name, f"exit head `{folder}`: {error}") from error
    except OSError as error:
        reason = f"its files cannot be read: {error.strerror or error}"
        raise ModelError(name, f"exit head `{folder}`: {reason}") from error


def _record(data: Mapping[str, Any]) -> ExitRecord:
    """Raises ValueError where something is missing or is of another kind, or is no finite number."""
    # Whoever only looks whether there are heads need not wait for it to load.
    from pydantic import TypeAdapter

    record = TypeAdapter(ExitRecord).validate_json(json.dumps(data, allow_nan=False), strict=True)
    own = [head.layer for head in record.heads]
    if not own or len(set(own)) < len(own) or not all(1 <= layer < record.layers for layer in own):
        raise ValueError("layers")
    for head in record.heads:
        if not head.curve or any(first.margin >= second.margin for first, second in pairwise(head.curve)):
            raise ValueError("margins")
        if not all(math.isfinite(float(name)) for name in (*head.among, *head.bound.quantiles, *head.bound.leads)):
            raise ValueError("shares")
    return record
