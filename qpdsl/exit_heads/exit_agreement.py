"""How exits agree with the full model, by margin, on places of a text that no head was fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from qpdsl.exit_heads.exit_record import ExitAgreement, ExitFigures, LogitBound
from qpdsl.exit_heads.text_states import ROWS, FrozenHead, States
from qpdsl.exit_heads.tuned_lens import Lens

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_LEADS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
# Numbers of best ids that a reranked draw may choose among.
_AMONG = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Places at which an exit without its head is measured too.
_PLAIN = 1024


@dataclass(slots=True)
class _Tally:
    """What was found at each place so far, a piece of the text each."""

    margins: list[torch.Tensor] = field(default_factory=list)
    greedy: list[torch.Tensor] = field(default_factory=list)
    sampled: list[torch.Tensor] = field(default_factory=list)
    apart: list[torch.Tensor] = field(default_factory=list)
    leads: list[torch.Tensor] = field(default_factory=list)
    better: list[torch.Tensor] = field(default_factory=list)
    before: list[torch.Tensor] = field(default_factory=list)
    after: list[torch.Tensor] = field(default_factory=list)

    def figures(self, layer: int, costs: tuple[float, float, float]) -> ExitFigures:
        """Those of the head after a layer, with what `FrozenHead.costs` says of it."""
        margins, greedy, sampled = torch.cat(self.margins), torch.cat(self.greedy), torch.cat(self.sampled)
        apart, leads = torch.cat(self.apart), torch.cat(self.leads)
        curve = []
        for margin in MARGINS:
            exits = margins >= margin
            count = int(exits.sum())
            shares = [float(equal[exits].double().mean()) if count else 1.0 for equal in (greedy, sampled)]
            curve.append(ExitAgreement(margin, count / len(margins), *shares))
        wrong = leads[~greedy]
        bound = LogitBound(
            float(apart.max()),
            {f"{share:g}": float(apart.double().quantile(share)) for share in _QUANTILES},
            float(wrong.max()) if len(wrong) else 0.0,
            {f"{share:g}": float(leads.double().quantile(share)) for share in _LEADS},
        )
        better = torch.cat(self.better)
        among = {str(ids): float((better < ids).double().mean()) for ids in _AMONG}
        before, after = (float(torch.cat(part).mean()) for part in (self.before, self.after))
        return ExitFigures(layer, len(margins), (before, after), *costs, among, bound, tuple(curve))


@torch.inference_mode()
def measure(
    head: FrozenHead, lenses: Mapping[int, Lens], states: States, seed: int, tell: Callable[[float], None]
) -> dict[int, ExitFigures]:
    """The figures of each lens, by layer. `tell` is given the share of the places that is done."""
    draw = torch.Generator().manual_seed(seed)
    tallies = {layer: _Tally() for layer in lenses}
    for start in range(0, len(states), ROWS):
        piece = slice(start, start + ROWS)
        full = head.logits(states.read[piece])
        # Gumbel noise, the same for the model and for every exit.
        noise = -torch.empty(full.shape).exponential_(generator=draw).log().to(full.device)
        own = full.argmax(dim=1), (full + noise).argmax(dim=1)
        wanted = full.log_softmax(dim=1)
        for layer, lens in lenses.items():
            tally, residual = tallies[layer], states.after[layer][piece]
            logits = head.logits(head.normed(lens(residual)))
            best = logits.topk(2, dim=1)
            top = logits.log_softmax(dim=1).topk(2, dim=1).values.exp()
            tally.margins.append((top[:, 0] - top[:, 1]).cpu())
            tally.greedy.append((best.indices[:, 0] == own[0]).cpu())
            tally.sampled.append(((logits + noise).argmax(dim=1) == own[1]).cpu())
            tally.leads.append((best.values[:, 0] - best.values[:, 1]).cpu())
            tally.better.append((logits > logits.gather(1, own[0][:, None])).sum(dim=1).cpu())
            low, high = (logits - full).aminmax(dim=1)
            tally.apart.append(((high - low) / 2).cpu())
            if start < _PLAIN:
                plain = head.logits(head.normed(residual))
                tally.before.append(_divergence(wanted, plain).cpu())
                tally.after.append(_divergence(wanted, logits).cpu())
        tell(min(1.0, (start + ROWS) / len(states)))
    return {layer: tally.figures(layer, head.costs(layer)) for layer, tally in tallies.items()}


def _divergence(wanted: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL in nats, float32 [N], of log-probabilities `wanted` float32 [N, V] and of logits [N, V]."""
    return (wanted.exp() * (wanted - logits.log_softmax(dim=1))).sum(dim=1)
