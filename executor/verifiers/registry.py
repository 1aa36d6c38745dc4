"""Which kind of verifier a model is, and the head and the layout that go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerFast

from qpdsl.executor.engine.model.heads import Layer, ValueHead
from qpdsl.executor.text.context import ContextError
from qpdsl.executor.verifiers.checkpoint import Checkpoint
from qpdsl.executor.verifiers.math_shepherd import MathShepherdVerifier
from qpdsl.executor.verifiers.outcome import OutcomeVerifier
from qpdsl.executor.verifiers.qwen import QwenVerifier
from qpdsl.executor.verifiers.rlhflow import RlhflowVerifier
from qpdsl.executor.verifiers.skywork import SkyworkVerifier
from qpdsl.executor.verifiers.verifier import Verifier
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import KINDS

_Head = ValueHead | None

# How the weights of each kind's head begin in a checkpoint; a kind without one is read off the language model's own.
_HEADS = {"skywork": "v_head.summary", "qwen": "score", "outcome": "score"}

_LAYOUTS: Mapping[str, Callable[[PreTrainedTokenizerFast, _Head], Verifier]] = {
    "rlhflow": lambda tokenizer, head: RlhflowVerifier(tokenizer),
    "math_shepherd": lambda tokenizer, head: MathShepherdVerifier(tokenizer),
    "skywork": lambda tokenizer, head: SkyworkVerifier(tokenizer),
    "qwen": lambda tokenizer, head: QwenVerifier(tokenizer),
    "outcome": lambda tokenizer, head: OutcomeVerifier(tokenizer, 1 if head is None else head.width),
}


def kind_of(config: PretrainedConfig, checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerFast) -> str:
    """What kind of verifier a model is, by its configuration, its weights and its tokenizer. Raises ContextError."""
    architectures = getattr(config, "architectures", None) or [""]
    if architectures[0].endswith("ForProcessRewardModel"):
        return "qwen"
    if _layers_of(checkpoint, _HEADS["skywork"]):
        return "skywork"
    if _layers_of(checkpoint, _HEADS["outcome"]):
        return "outcome"
    if tokenizer.chat_template:
        return "rlhflow"
    with suppress(ContextError):
        MathShepherdVerifier(tokenizer)
        return "math_shepherd"
    raise ContextError(f"nothing in it tells which kind of verifier it is; say `kind=` behind its id: {listed(KINDS)}")


def has_own_head(kind: str) -> bool:
    """Whether models of this kind have a head of their own in place of the language model's."""
    return kind in _HEADS


def head_of(kind: str, checkpoint: Checkpoint, device: str) -> ValueHead:
    """The head of a model of a kind that has its own. Raises ContextError where the weights are not there."""
    name = _HEADS[kind]
    layers = _layers_of(checkpoint, name)
    if not layers:
        raise ContextError(f"it has no weights `{name}…`, so it is no {kind} verifier")
    head = ValueHead([_layer(checkpoint, layer, device) for layer in layers])
    outputs = {"skywork": 1, "qwen": 2}.get(kind, head.width)
    if head.width != outputs:
        raise ContextError(f"its head gives {head.width} numbers; that of a {kind} verifier gives {outputs}")
    return head


def verifier_of(kind: str, tokenizer: PreTrainedTokenizerFast, head: ValueHead | None) -> Verifier:
    """Raises ContextError where the tokenizer cannot lay the kind's format out."""
    return _LAYOUTS[kind](tokenizer, head)


def checkpoint_of(location: str | Path) -> Checkpoint:
    """As `Checkpoint.of`. Raises ContextError."""
    try:
        return Checkpoint.of(location)
    except Exception as error:  # the hub, the disk and a damaged file may each raise their own
        raise ContextError(f"its weights cannot be listed: {error}") from error


def _layers_of(checkpoint: Checkpoint, name: str) -> list[str]:
    """The linear layers of a head, which is one, or a sequence with activations between them."""
    if f"{name}.weight" in checkpoint.files:
        return [name]
    numbers = [
        int(middle)
        for tensor in checkpoint.files
        if tensor.startswith(f"{name}.") and tensor.endswith(".weight")
        if (middle := tensor.removeprefix(f"{name}.").removesuffix(".weight")).isdecimal()
    ]
    return [f"{name}.{number}" for number in sorted(numbers)]


def _layer(checkpoint: Checkpoint, layer: str, device: str) -> Layer:
    weight, bias = checkpoint.tensor(f"{layer}.weight"), f"{layer}.bias"
    return weight.to(device), checkpoint.tensor(bias).to(device) if bias in checkpoint.files else None
