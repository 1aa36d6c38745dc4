"""Speculative execution across calls: a sample goes on past its stop, and later calls take their text from that.

Source: SGLang (Zheng et al., 2024, section 3.3), which matches what a black box wrote with the text of the program.
Here tokens are compared: the prompt of the later call must be the prompt of the earlier one with what it has written,
token by token. At temperature 0 what was written after that is what the later call would write. What does not fit is
left, and the call is made.
"""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.requests.request import Finish, Sample
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.sampling import BeyondWatch, Sampling
from qpdsl.executor.runtime.instance.instance import WrittenAhead


def cut_at_stop(sampling: Sampling, continuation: Continuation, sample: Sample) -> Sample:
    """The sample as it would be without the tokens past its stop, which are kept for the calls that follow."""
    watch = sample.watch
    if not isinstance(watch, BeyondWatch):
        return sample
    if watch.length is None:
        return replace(sample, watch=watch.own)
    length = watch.length
    instance, more = sampling.instance, len(sample.tokens) - length
    if more:
        prompt, billed = continuation.prompt, sample.billed is not None
        written = WrittenAhead(sampling.model.name, prompt + sample.tokens, len(prompt) + length, billed)
        instance.written.append(written)
        instance.usage.counts["beyond_tokens"] += more
    logprobs = sample.logprobs[:length]
    return replace(
        sample,
        tokens=sample.tokens[:length],
        finish=watch.finish,
        watch=watch.own,
        logprobs=logprobs,
        logprob=sum(logprobs),
        figures=sample.figures[:length],
    )


def taken_over(sampling: Sampling, continuation: Continuation) -> Sample | None:
    """The sample of a row, where an earlier call has written all of it past its own stop; None where it has not."""
    thinks = continuation.turn.thinks
    if thinks or not sampling.strategy.continues or not continuation.options.params.greedy:
        return None
    prompt, instance = continuation.prompt, sampling.instance
    for written in instance.written:
        if written.model == sampling.model.name and written.goes_on_from(prompt):
            tokens, finish = _own(sampling, continuation, written.tokens[len(prompt) :])
            if finish is None:
                continue
            watch = sampling.watch(continuation, 0)
            for token in tokens[: len(tokens) - (finish == "eos")]:
                watch.push(token)
            instance.usage.counts["saved_calls"] += 1
            # What the program itself put in was drawn as well, and is none of the waste.
            instance.usage.counts["beyond_used"] += written.use(len(prompt) + len(tokens))
            return Sample(tokens, finish, 0.0, 0, watch, billed=0 if written.billed else None)
    return None


def _own(
    sampling: Sampling, continuation: Continuation, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], Finish | None]:
    """The first of the tokens, as many as a sample would have; no finish where it would have more."""
    # Nobody is shown a text that may not be taken.
    watch = replace(sampling, on_token=None).watch(continuation, 0)
    for number, token in enumerate(tokens, 1):
        if token in sampling.model.eos:
            return tokens[:number], "eos"
        if watch.push(token):
            return tokens[:number], "stop"
        if number == continuation.limit:
            return tokens[:number], "length"
    return (), None
