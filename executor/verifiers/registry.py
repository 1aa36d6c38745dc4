"""The kinds of verifiers, and which of them a model is.

To add a kind, write its subclass of `Verifier` in a file of its own here, and put the class into `VERIFIERS`. Its name
goes into `VerifierKind` (`grammar/words.py`), which the checker, editors and type checkers read; a test compares the
two. `docs/use/models.md` has a table of the kinds.
"""

from __future__ import annotations

from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.verifiers.math_shepherd import MathShepherdVerifier
from qpdsl.executor.verifiers.outcome import OutcomeVerifier
from qpdsl.executor.verifiers.qwen import QwenVerifier
from qpdsl.executor.verifiers.rlhflow import RlhflowVerifier
from qpdsl.executor.verifiers.skywork import SkyworkVerifier
from qpdsl.executor.verifiers.verifier import CheckpointTensors, ModelFiles, Verifier

# In the place of a kind: a verifier of the kind that the model's own files tell.
BY_CONFIGURATION = "by configuration"
# In the order in which a model's files are asked: a Qwen verifier has an outcome model's weights as well.
VERIFIERS: tuple[type[Verifier], ...] = (
    QwenVerifier,
    SkyworkVerifier,
    OutcomeVerifier,
    RlhflowVerifier,
    MathShepherdVerifier,
)


def named(kind: str) -> type[Verifier]:
    """The kind of that name. Raises KeyError."""
    return {verifier.kind: verifier for verifier in VERIFIERS}[kind]


def recognized(files: ModelFiles) -> type[Verifier] | None:
    """The kind that a model certainly is by its own files; None where they do not tell, or it is no verifier."""
    return next((verifier for verifier in VERIFIERS if verifier.recognizes(files)), None)


def own_head(kind: type[Verifier], tensors: CheckpointTensors, device: str) -> ValueHead | None:
    """The head of a model of a kind that has its own; None for a kind that is read off the language model's.

    Raises ContextError where its weights are not there, or are not of that kind.
    """
    if kind.head is None:
        return None
    head = tensors.head(kind.head, device)
    if head is None:
        raise ContextError(f"it has no weights `{kind.head}…`, so it is no {kind.kind} verifier")
    check_width(kind, head.width)
    return head


def check_width(kind: type[Verifier], width: int) -> None:
    """Raises ContextError where a head that gives so many numbers is not of that kind."""
    if kind.head_width not in (None, width):
        raise ContextError(f"its head gives {width} numbers; that of a {kind.kind} verifier gives {kind.head_width}")
