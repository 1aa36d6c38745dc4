"""A verifier whose model is on a server: laid out by its tokenizer here, read there."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.load import BY_CONFIGURATION
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.text.context import ContextError
from qpdsl.executor.verifiers.registry import check_width, named
from qpdsl.executor.verifiers.verifier import Verifier
from qpdsl.grammar.words import VERIFIER_KINDS


def remote_verifier(
    address: Address,
    kind: str,
    tokenizer: PreTrainedTokenizerFast,
    padding: int | None,
    abilities: Abilities,
) -> Verifier:
    """The verifier of that kind over a model on a server. `padding` is the id of its padding token, if it has one.

    A kind without a head of its own is read off log-probabilities, any other off what a reward model's server gives.

    Raises ModelError where no kind is named, or the server gives nothing that it could be read off.
    """
    model = str(address)
    if address.tokenizer is None or abilities.endpoint != "ids":
        raise ModelError(
            model, "as a verifier: it is shown token ids, so give it its tokenizer, ` tokenizer=FOLDER` behind its name"
        )
    if kind == BY_CONFIGURATION:
        kinds = ", ".join(VERIFIER_KINDS)
        raise ModelError(model, f"as a verifier: name its kind behind its id, `kind=…`: {kinds}")
    verifier = named(kind)
    if verifier.head is None and not abilities.capabilities.features & {"logprobs"}:
        served = ", as it serves a reward model" if abilities.scores else ""
        raise ModelError(
            model,
            f"as a verifier: kind {kind} is read off log-probabilities of given tokens, which the server does not "
            f"tell{served}; have it served as a language model by vLLM or SGLang",
        )
    if verifier.head is not None and abilities.scores is None:
        raise ModelError(
            model,
            f"as a verifier: kind {kind} has a head of its own, and the server gives no scores; have it served with "
            f"`vllm serve … --runner pooling`, or by SGLang with `--is-embedding`",
        )
    if verifier.head is None and abilities.scores is not None:
        raise ModelError(
            model,
            f"as a verifier: the server gives the scores of a reward model, and kind {kind} has no head of its own",
        )
    width = None
    try:
        if verifier.head is not None:
            width = abilities.score_width or verifier.head_width or 1
            check_width(verifier, width)
        return verifier(tokenizer, width, padding)
    except ContextError as error:
        raise ModelError(model, f"as a verifier: {error}") from error
