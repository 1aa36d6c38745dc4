"""Leaving a model before its last layer, where its first layers are sure enough of the next token."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.executor.requests.routing import ExitRouting


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """When a token is drawn from the logits after `layer` layers, and what happens where it is not.

    The exit's logits are those of the model's last norm and head over the hidden state after `layer` layers; with a
    `head`, an exit head by the name that the engine knows it by, over that head's hidden state (tuned lens: Belrose et
    al., 2023). Without a `layer` it is the head's, or the middle one.

    The exit's token stands where the two largest of its probabilities, over the ids that may come, differ by at least
    `margin`: 0 trusts all, and what no margin reaches refines all. With `certify` it also must lead: its logit over T,
    perturbed by the draw's noise, is more than 2 · certify / T above the next one's; at T = 0, its logit more than
    2 · certify. Where `certify` bounds how far logits of the exit and of the model are apart, it is the model's token.

    Where the token does not stand, the layers after `layer` run and the token is drawn again: from the model's logits,
    or with `rerank` from those of the exit's `rerank` best ids alone.

    With `deferred`, layers after `layer` do not run for a token that stands. Their keys and values are computed in one
    chunk before anyone attends to them, so no token depends on it. A model whose layers cannot run in part runs all.

    Of the draws that the exit decides, `shadow` is the share that the full model draws too, with the same noise (see
    `shadow.py`). It is counted whether it draws the same token; the exit's stays.

    With a `route` a router says of each draw whether it tries the exit or leaves it out.
    """

    margin: float = 0.0
    layer: int | None = None
    head: str | None = None
    rerank: int | None = None
    certify: float | None = None
    deferred: bool = False
    shadow: float = 0.0
    route: ExitRouting | None = None

    def __str__(self) -> str:
        """When and where it leaves, in words that no other exit has."""
        parts = {"head": self.head, "rerank": self.rerank, "certify": self.certify}
        rest = "".join(f", {name}={value}" for name, value in parts.items() if value is not None)
        return f"exit after {self.layer} at {self.margin:g}{rest}"

    def __post_init__(self) -> None:
        if not self.margin >= 0:
            raise ValueError(f"the margin of an early exit must be at least 0, not {self.margin}")
        if self.layer is not None and self.layer < 1:
            raise ValueError(f"an early exit leaves after 1 layer at least, not {self.layer}")
        if self.rerank is not None and self.rerank < 1:
            raise ValueError(f"an early exit has 1 id at least scored again, not {self.rerank}")
        if not 0 <= self.shadow <= 1:
            raise ValueError(f"the shadowed share of an early exit is in [0, 1], not {self.shadow}")
        if self.certify is not None and not self.certify >= 0:
            raise ValueError(f"the bound of an early exit must be at least 0, not {self.certify}")
