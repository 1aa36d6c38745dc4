"""The text model of an address: whose tokens the runtime works on, and what it may take for granted of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.load import load_tokens
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.text_tokenizer import EOS, UNBOUNDED, WIDTH, text_tokenizer
from qpdsl.executor.text.constraint import Constrainer


@dataclass
class RemoteTextModel(TextModel):
    """A text model that a server serves. `padding` is the id of the model's padding token, if it has one."""

    padding: int | None = None

    @property
    def most_read(self) -> int:
        """Less, as a server draws a token after what it reads of, and may be shown one to tell of."""
        return self.max_positions - 2

    @cached_property
    def constrainer(self) -> Constrainer:
        """As that of any model, but a record may have white space anywhere: what a server writes is checked by it."""
        return Constrainer(self.tokenizer, self.width, self.eos, any_spacing=True)


def text_model(
    model: str, address: Address, abilities: Abilities, location: Path | str | None, slow: Callable[[str], None] | None
) -> RemoteTextModel:
    """The text model of an id. `location` is where its tokenizer lies: None where only the server knows its tokens.

    `slow` is told what takes long for once. Raises ModelError where the tokenizer cannot be loaded, or the server does
    not go on from its token ids.
    """
    if location is None:
        tokenizer, ends = text_tokenizer(), frozenset({EOS})
        return RemoteTextModel(model, tokenizer, ends, UNBOUNDED, WIDTH, notes=abilities.notes, own_tokens=False)
    tokens = load_tokens(model, location, slow)
    if abilities.endpoint != "ids":
        raise ModelError(
            model,
            f"the server was not seen to go on from token ids of `{address.tokenizer}`: it takes none, or has other "
            "tokens; without `tokenizer=` it is sent text",
        )
    positions = abilities.context or UNBOUNDED
    writes = abilities.scores is None
    padding = getattr(tokens.config.get_text_config(), "pad_token_id", None)
    return RemoteTextModel(
        model, tokens.tokenizer, tokens.eos, positions, tokens.width, None, writes, abilities.notes, padding=padding
    )
