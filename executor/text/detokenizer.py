"""The text of tokens so far. Bytes that only begin a letter are kept apart, as the next tokens may complete it.

A letter may be spread over several tokens, of one call or of two. So no text is cut by the length of another: the text
of a row is that of all its tokens, and what a token adds is told once it can no longer change.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from functools import cache

from tokenizers import Tokenizer, decoders

# What stands for bytes that are no letter, or none yet.
UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
# The most bytes that are not a whole letter yet.
_MAX_BEGUN = 3
_MAX_KEPT = 65_536
# Stands for a token where there is none.
_NOTHING = -1
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")
_Decoder = getincrementaldecoder("utf-8")
Tokens = tuple[int, ...]


class Detokenizer:
    """Decodes the tokens of one model, without special ones, or with them where they are `marked`.

    The text is that of the tokenizer, but for bytes of a byte-fallback vocabulary that are no letter: as in
    SentencePiece each of them becomes U+FFFD, where the tokenizers library gives up the whole letters beside them too.

    What has been decoded is kept: the samples of one model share the object, and repeat one another's text.
    """

    def __init__(self, tokenizer: Tokenizer, *, marked: bool = False) -> None:
        self._tokenizer = tokenizer
        self._marked = marked
        added = tokenizer.get_added_tokens_decoder().items()
        self._hidden = {id for id, token in added if token.special and not marked}
        # A byte-level vocabulary has no such tokens, and letters that are not whole yet in many a text.
        self._has_fallback = any(tokenizer.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
        self._pieces: dict[tuple[Tokens, Tokens], tuple[str, bool]] = {}
        # Of two tokens that are each a text by themselves, the first of which may be nothing: what the second adds,
        # which in a byte-level vocabulary does not depend on the first.
        self._seconds: dict[int | tuple[int, int], str] = {}
        self._by_bytes = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._bytes: dict[int, bytes] = {}

    def text(self, tokens: Tokens) -> str:
        """The text of all tokens; of a letter that the last ones only begin, U+FFFD."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=not self._marked) if tokens else ""
        if self._has_fallback and UNDECODABLE in text and any(map(self._falls_back, tokens)):
            return self._sound_text(tokens)
        return text

    def tail(self, tokens: Tokens) -> str:
        """What stands at the end of their text for a letter that they only begin; empty where there is none."""
        begun, _ = self._begun(tokens)
        # The tokenizers write one for each such byte, and one for all of them in a byte-level vocabulary.
        return UNDECODABLE * (begun if begun and self._falls_back(self._last(tokens)) else min(begun, 1))

    def added(self, earlier: Tokens, tokens: Tokens) -> str:
        """The text of `tokens` behind that of `earlier`, with which they begin.

        A letter that `earlier` only begin is a part of it.
        """
        return self.text(tokens)[len(self.text(earlier)) - len(self.tail(earlier)) :]

    def piece(self, before: Tokens, pending: Tokens) -> tuple[str, bool]:
        """What `pending` add to the text of `before` that cannot change, and whether that is all of them."""
        piece = self._pieces.get((before, pending))
        if piece is None:
            if len(self._pieces) >= _MAX_KEPT:
                self._pieces.clear()
            tokens = before + pending
            tail = self.tail(tokens)
            text = self.text(tokens)[len(self.text(before)) :].removesuffix(tail)
            piece = self._pieces[before, pending] = text, not tail
        return piece

    def shows(self, token: int) -> bool:
        """Whether a token has a part in the text."""
        return bool(self.bytes_of(token))

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token by itself; none of one that is not shown."""
        data = self._bytes.get(token)
        if data is None:
            text = self._tokenizer.decode([token], skip_special_tokens=not self._marked)
            alone = text and UNDECODABLE not in text
            data = self._bytes[token] = text.encode() if alone else self._spelt(token)
        return data

    def pieces(self, earlier: Tokens, tokens: Tokens, *, tail: bool = False) -> tuple[str, ...]:
        """The text of each of `tokens` behind `earlier`. A letter that is spread over several comes with the last.

        With `tail` also comes what stands for a letter that they only begin.
        """
        if self._by_bytes and (not earlier or earlier[-1] in self._seconds):
            known = [self._seconds.get(token) for token in tokens]
            if None not in known:
                return tuple(known)  # type: ignore[arg-type]
        found: list[str] = []
        text: GrowingText | None = None
        # The token before, where what follows depends on nothing else. One that ends in ASCII begins no letter.
        last: int | None = _NOTHING
        if earlier:
            last = earlier[-1] if self.bytes_of(earlier[-1])[-1:] < b"\x80" and self.shows(earlier[-1]) else None
        for at, token in enumerate(tokens):
            pair = None if last is None else token if self._by_bytes else (last, token)
            piece = None if pair is None else self._seconds.get(pair)
            if piece is None:
                text = text or self.begin(earlier + tokens[:at])
                piece = text.push(token)
                stands = text.stands_alone and self.shows(token)
                if stands and pair is not None:
                    if len(self._seconds) >= _MAX_KEPT:
                        self._seconds.clear()
                    self._seconds[pair] = piece
                last = token if stands else None
            else:
                text, last = None, token
            found.append(piece)
        if found and tail:
            found[-1] += (text or self.begin(earlier + tokens)).tail
        return tuple(found)

    def begin(self, earlier: Tokens = ()) -> GrowingText:
        """The text that comes behind that of `earlier`."""
        return GrowingText(self, earlier)

    def unfinished(self, tokens: Tokens) -> int:
        """How many of the last tokens hold a letter that they only begin."""
        return self._begun(tokens)[1]

    def _begun(self, tokens: Tokens) -> tuple[int, int]:
        """How many bytes at the end only begin a letter, and how many of the tokens hold these."""
        data, sizes = b"", list[int]()
        for token in reversed(tokens):
            own = self.bytes_of(token)
            sizes.append(len(own))
            data = own + data
            if len(data) >= _MAX_BEGUN:
                break
        decoder = _Decoder("replace")
        decoder.decode(data[-_MAX_BEGUN:])
        begun, held = len(decoder.getstate()[0]), 0
        left = begun
        while left > 0:
            left -= sizes[held]
            held += 1
        return begun, held

    def _last(self, tokens: Tokens) -> int:
        """The last token with text."""
        return next(token for token in reversed(tokens) if self.bytes_of(token))

    def _spelt(self, token: int) -> bytes:
        """The bytes of a token that is no text by itself, by its name in the vocabulary: such as a lone space."""
        name = self._name(token)
        if (byte := _FALLBACK.fullmatch(name)) is not None:
            return bytes([int(byte[1], 16)])
        known = byte_characters()
        return bytes(known[sign] for sign in name) if known.keys() >= set(name) else name.replace("▁", " ").encode()

    def _falls_back(self, token: int) -> bool:
        """Whether a token is one byte of a byte-fallback vocabulary."""
        return (
            self._has_fallback and len(self.bytes_of(token)) == 1 and _FALLBACK.fullmatch(self._name(token)) is not None
        )

    def _name(self, token: int) -> str:
        """The token in the vocabulary; empty for one that is not shown."""
        return "" if token in self._hidden else self._tokenizer.id_to_token(token) or ""

    def _sound_text(self, tokens: Tokens) -> str:
        """The text where a run of byte tokens is not UTF-8: such a run comes to nothing but U+FFFD as it is."""
        names: list[str] = []
        run: list[int] = []

        def end_run() -> None:
            # Each byte that is no letter's is decoded to one surrogate.
            for sign in bytes(run).decode("utf-8", "surrogateescape"):
                lone = "\udc80" <= sign <= "\udcff"
                names.extend([UNDECODABLE] if lone else [f"<0x{byte:02X}>" for byte in sign.encode()])
            run.clear()

        for token in tokens:
            if self._falls_back(token):
                run += self.bytes_of(token)
            elif self.shows(token):
                end_run()
                names.append(self._name(token))
        end_run()
        return str(self._tokenizer.decoder.decode(names))


class GrowingText:
    """The text of tokens as they come behind those of `earlier`, as far as it cannot change.

    `text` is that of the last tokens, which are those from the number `start` on: below 0 for those of `earlier` that
    began a letter. `whole`: they end with a letter.
    """

    __slots__ = ("_before", "_detokenizer", "_pending", "start", "text", "whole")

    def __init__(self, detokenizer: Detokenizer, earlier: Tokens = ()) -> None:
        self._detokenizer = detokenizer
        unfinished = detokenizer.unfinished(earlier)
        done = len(earlier) - unfinished
        # Some tokenizers drop a space before the first token: it is enough to know one with text before the next.
        shown = next((at for at in range(done - 1, -1, -1) if detokenizer.shows(earlier[at])), done)
        self._before, self._pending = earlier[shown:done], earlier[done:]
        self.start = -unfinished
        self.text, self.whole = detokenizer.piece(self._before, self._pending) if unfinished else ("", True)

    @property
    def stands_alone(self) -> bool:
        """Whether the last token is a text by itself."""
        return self.whole and len(self._pending) == 1

    @property
    def tail(self) -> str:
        """What stands behind the text for a letter that is only begun."""
        return self._detokenizer.tail(self._before + self._pending)

    def push(self, token: int) -> str:
        """Takes the next token; the text that is now sure."""
        if self.whole:
            self._before = self._pending if any(map(self._detokenizer.shows, self._pending)) else self._before
            self.start += len(self._pending)
            self.text, self._pending = "", ()
        known = len(self.text)
        self._pending = (*self._pending, token)
        self.text, self.whole = self._detokenizer.piece(self._before, self._pending)
        return self.text[known:]


@cache
def byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary (GPT-2) stands for."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte) if byte in shown else chr(256 + others.index(byte)): byte for byte in range(256)}
