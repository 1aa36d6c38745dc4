"""The id of a model on a server: `DIALECT:URL#NAME`, with ` tokenizer=PLACE` where its tokens are known here."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.grammar.model_id import DialectName, dialect_of, without_think, written_out

_SIGN = " tokenizer="
_EXAMPLE = "; write it as in `vllm:http://127.0.0.1:8000/v1#name`"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is served: `url` without a slash at its end, `name` as the server calls it.

    `tokenizer` is a folder, a GGUF file, a built-in model or a hub id whose tokenizer and chat template are those of
    the model; None where only the server knows its tokens.
    """

    dialect: DialectName
    url: str
    name: str
    tokenizer: str | None = None

    @classmethod
    def of(cls, model: str) -> Address | None:
        """The address that a model id is, None for a model of this machine or the hub.

        Raises ModelError for one that begins as an address and is none.
        """
        dialect = dialect_of(model)
        if dialect is None:
            return None
        rest = without_think(model).partition(":")[2]
        place, _, tokenizer = rest.partition(_SIGN)
        url, _, name = place.strip().partition("#")
        try:
            parts = urlsplit(url)
            port_is_one = parts.port is None or parts.port > 0
        except ValueError:
            raise ModelError(model, f"`{url}` is not a URL{_EXAMPLE}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_one:
            known = f"; `{url}` alone is the name of one" if written_out(url) != url else ""
            raise ModelError(model, f"`{url}` is not the URL of a server{_EXAMPLE}{known}")
        if parts.username is not None or parts.password is not None or parts.query:
            raise ModelError(model, "the URL of a server has no password and no query; keys come from the environment")
        if not place.isprintable():
            raise ModelError(model, f"it has invalid characters{_EXAMPLE}")
        if not name:
            raise ModelError(model, f"name a model of it, as in `{url}#NAME`; `qpdsl models --probe {url}` lists them")
        return cls(dialect, url.rstrip("/"), name, tokenizer.strip() or None)

    def __str__(self) -> str:
        sign = "" if self.tokenizer is None else f"{_SIGN}{self.tokenizer}"
        return f"{self.dialect}:{self.url}#{self.name}{sign}"
