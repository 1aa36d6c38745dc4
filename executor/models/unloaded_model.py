"""A model as far as it is known without its weights: all that its text needs, and what its engine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from qpdsl.executor.checkpoint.hub_snapshot import cached_snapshot
from qpdsl.executor.checkpoint.model_folder import ModelFolder, isolated
from qpdsl.executor.models.known_model import known_tokenizer
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import Feature, Repeats
from qpdsl.executor.text.quick_tokenizer import kind_of
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.registry import named


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What was told of a loaded model. The first fields are those of a `TextModel`, the last ones of `Capabilities`.

    `head_width` and `padding` are what its verifier was made with, where it has a `kind`; `tokenizer` names the class
    of its tokenizer.
    """

    eos: tuple[int, ...]
    max_positions: int
    width: int
    writes: bool
    own_tokens: bool
    kind: str | None
    head_width: int | None
    padding: int | None
    tokenizer: str
    features: tuple[Feature, ...]
    spare_rows: int | None
    repeats: Repeats

    @classmethod
    def of(cls, model: TextModel, able: Capabilities) -> Self:
        verifier = model.verifier
        return cls(
            tuple(sorted(model.eos)),
            model.max_positions,
            model.width,
            model.writes,
            model.own_tokens,
            model.kind,
            None if verifier is None else verifier.width,
            None if verifier is None else verifier.padding,
            kind_of(model.tokenizer),
            tuple(sorted(able.features)),
            able.spare_rows,
            able.repeats,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Raises TypeError and KeyError for what `to_json` did not give."""
        return cls(**{**said, "eos": tuple(said["eos"]), "features": tuple(said["features"])})

    @property
    def capabilities(self) -> Capabilities:
        """What the engine could do for it."""
        return Capabilities(frozenset(self.features), self.spare_rows, self.repeats)

    def text_model(self, name: str, location: str | Path) -> TextModel:
        """The model of that id, whose tokenizer lies there. Raises ModelError, and KeyError for an unknown kind."""
        tokenizer = _tokenizer(self.tokenizer, name, location)
        verifier = None
        if self.kind is not None:
            verifier = named(self.kind)(tokenizer, self.head_width, self.padding)
        how = (self.max_positions, self.width, verifier, self.writes)
        return TextModel(name, tokenizer, frozenset(self.eos), *how, own_tokens=self.own_tokens)


def _tokenizer(kind: str, name: str, location: str | Path) -> TextTokenizer:
    """Without transformers' code for models, which takes seconds to import, if that does. Raises ModelError."""
    path = location if isinstance(location, Path) else cached_snapshot(location)
    try:
        assert path is not None
        folder = ModelFolder.of(name, path, weights=False)
        with isolated(folder) as files:
            return known_tokenizer(kind, folder, files)
    except Exception:  # whatever files provoke; the load itself says what is wrong
        from qpdsl.executor.models.load import load_tokens

        tokenizer: TextTokenizer = load_tokens(name, location).tokenizer
        return tokenizer
