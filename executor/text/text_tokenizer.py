"""What is asked of a model's tokenizer, by all that encodes, decodes and renders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from tokenizers import AddedToken, Tokenizer


class TextTokenizer(Protocol):
    """A fast tokenizer of transformers, or a `QuickTokenizer`, which gives the same. The methods are transformers'."""

    chat_template: Any

    @property
    def backend_tokenizer(self) -> Tokenizer: ...

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]: ...

    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...

    @property
    def bos_token(self) -> str | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def get_vocab(self) -> dict[str, int]: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool = True, **unusual: Any) -> Any: ...

    def decode(
        self,
        token_ids: Any,
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: Literal[False] | None = None,
    ) -> Any: ...

    def convert_ids_to_tokens(self, ids: Any) -> Any: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        continue_final_message: bool,
        **arguments: Any,
    ) -> Any: ...
