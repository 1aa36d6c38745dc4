"""`via contrast(…)`: each token is drawn from what sets the model apart from a smaller one.

Source: contrastive decoding (Li et al., 2022; O'Brien and Lewis, 2023). A token takes a request to each model: the
smaller one gives its logits, and the larger one draws by them and its own (`executor/requests/drawing.py` says how),
with the noise of the row and the place. The engine batches what the rows want of each model, and finds what they had
in its cache. What a constraint forces is taken without asking either.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.drawing import LogitContrast
from qpdsl.executor.requests.request import GenerateRequest, LogitsRequest, Sample
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.piecewise import PiecewiseSample, begun
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.instance.instance import completed
from qpdsl.executor.runtime.instance.row_tasks import together
from qpdsl.planner.plan import ops


async def contrast_samples(sampling: Sampling, continuations: list[Continuation]) -> list[tuple[Sample, ...]]:
    """The samples of each row, each drawn a token at a time."""
    via = sampling.op.via
    assert isinstance(via, ops.Contrast)
    contrasting = _Contrasting(sampling, sampling.instance.services.models[via.model.name])
    rows = [[PiecewiseSample(*own) for own in begun(sampling, continuation)] for continuation in continuations]
    await together(contrasting.draw(sample) for row in rows for sample in row)
    pairs = zip(continuations, rows, strict=True)
    return [sampling.with_copies(continuation, tuple(one.sample for one in row)) for continuation, row in pairs]


@dataclass(frozen=True, slots=True)
class _Contrasting:
    """What the samples of one run of an operator have in common."""

    sampling: Sampling
    smaller: TextModel

    async def draw(self, sample: PiecewiseSample) -> None:
        """Draws a sample to its end."""
        instance, options = self.sampling.instance, sample.continuation.options
        jump, cached = self.sampling.strategy.decode.constraint == "jump", self.sampling.strategy.share
        larger, counts = self.sampling.model.name, instance.usage.counts
        while sample.finish is None:
            forced = len(sample.mask.forced()) if jump and sample.mask is not None else 0
            if forced:
                completion = await completed(instance, larger, self._request(sample, min(forced, sample.room), None))
                counts["forced"] += completion.samples[0].steps.forced
            else:
                read = await completed(instance, self.smaller.name, LogitsRequest(sample.text, cached=cached))
                contrast = LogitContrast(read.whole[0], options.alpha, options.beta)
                completion = await completed(instance, larger, self._request(sample, 1, contrast))
                counts["contrast_draws"] += 1
                # Of one id alone the logarithm of its probability is exactly 0.
                counts["contrast_alone"] += completion.samples[0].logprob == 0
            sample.take(completion.samples[0])

    def _request(self, sample: PiecewiseSample, tokens: int, contrast: LogitContrast | None) -> GenerateRequest:
        """One that goes on with a sample for so many tokens."""
        watch, floor = sample.watch, sample.continuation.floor
        return GenerateRequest(
            sample.text,
            (sample.key,),
            sample.continuation.options.params,
            tokens,
            self.sampling.model.eos,
            None if watch is None else lambda _: watch,
            None if sample.mask is None else sample.mask.fork,
            drawn=sample.continuation.drawn + len(sample.tokens),
            cached=self.sampling.strategy.share,
            jump=contrast is None,
            figures=self.sampling.strategy.figures,
            floor=None if floor is None else floor.after(sample.figures),
            contrast=contrast,
            since=sample.since,
        )
