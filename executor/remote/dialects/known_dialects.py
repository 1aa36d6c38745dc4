"""The dialects by their names in the ids of models."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.executor.remote.dialects.llamacpp import LlamaCppDialect
from qpdsl.executor.remote.dialects.openai import OpenAIDialect
from qpdsl.executor.remote.dialects.sglang import SGLangDialect
from qpdsl.executor.remote.dialects.vllm import VLLMDialect
from qpdsl.grammar.model_id import DialectName

_DIALECTS: Mapping[DialectName, OpenAIDialect] = {
    "openai": OpenAIDialect(),
    "vllm": VLLMDialect(),
    "sglang": SGLangDialect(),
    "llamacpp": LlamaCppDialect(),
}


def named(name: DialectName) -> OpenAIDialect:
    """The dialect of that name."""
    return _DIALECTS[name]
