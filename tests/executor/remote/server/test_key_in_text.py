"""A key does not show in what a server says, however it was written."""

from __future__ import annotations

import base64
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.remote.server.key_in_text import without_key

KEYS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+", min_size=24, max_size=120)
WRITTEN = (
    lambda key: key,
    lambda key: key[:-1],
    lambda key: key[2:],
    lambda key: key[::-1],
    lambda key: key.upper(),
    lambda key: quote(key, safe=""),
    lambda key: base64.b64encode(key.encode()).decode(),
    lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    lambda key: base64.urlsafe_b64encode(f":{key}".encode()).decode(),
    lambda key: key.encode().hex(),
    lambda key: "".join(f"%{ord(sign):02X}" for sign in key),
    lambda key: " ".join(key),
    lambda key: "-".join(key[at : at + 4] for at in range(0, len(key), 4)),
    lambda key: f"token='{key}',",
)


@given(KEYS.filter(lambda key: sum(map(str.isalnum, key)) > 20), st.sampled_from(WRITTEN))
def test_a_key_is_hidden_in_every_form(key: str, written: object) -> None:
    assert callable(written)
    form = written(key)
    # A letter beside it goes with it where it could be one of its own, which an É never is.
    shown = without_key(f"the server said É {form} É to that", key)
    assert shown.startswith("the server said É ")
    assert shown.endswith(" É to that")
    letters = "".join(filter(str.isalnum, form)).casefold()
    left = "".join(filter(str.isalnum, shown)).casefold()
    assert not any(letters[at : at + 17] in left for at in range(len(letters) - 16))


@given(st.text(max_size=200))
def test_other_text_stays(text: str) -> None:
    assert without_key(text, "0123456789abcdefABCDEF-0123456789") == text or "0123456789" in text


def test_a_short_key_is_hidden_whole() -> None:
    assert without_key("Bearer abc12 is wrong", "abc12") == "Bearer … is wrong"
    assert without_key("sk-abc…wxyz is wrong", "sk-abcdefghijklmnopqrstuvwxyz") == "sk-abc…wxyz is wrong"
