"""Keys of the environment, and where they go."""

from __future__ import annotations

import pytest

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server.keys import key_of, variable_of


def test_a_key_goes_to_its_origin_alone() -> None:
    environment = {"OPENAI_API_KEY": "sk-1", "QPDSL_API_KEYS": "https://host:8000=two  http://127.0.0.1:9=three="}
    assert key_of("https://api.openai.com/v1", environment) == "sk-1"
    assert key_of("https://host:8000/v1", environment) == "two"
    assert key_of("http://127.0.0.1:9/v1", environment) == "three="
    for other in (
        "http://api.openai.com/v1",
        "https://api.openai.com:444/v1",
        "https://host/v1",
        "http://host:8000/v1",
    ):
        assert key_of(other, environment) is None
    assert key_of("https://api.openai.com.example/v1", environment) is None


def test_the_base_url_has_the_same_key() -> None:
    environment = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "https://proxy.example/v1"}
    assert key_of("https://proxy.example/other", environment) == "sk-1"
    assert key_of("https://proxy.example:8443/v1", environment) is None
    assert variable_of("https://proxy.example/v1", environment) == "OPENAI_API_KEY"


def test_what_to_set_is_said_and_no_key_is_shown() -> None:
    assert variable_of("http://127.0.0.1:8000/v1", {}) == 'QPDSL_API_KEYS="http://127.0.0.1:8000=KEY"'
    with pytest.raises(ModelError) as raised:
        key_of("http://127.0.0.1:8000/v1", {"QPDSL_API_KEYS": "secret"})
    assert "QPDSL_API_KEYS" in str(raised.value) and "secret" not in str(raised.value)
    with pytest.raises(ModelError, match="characters that no key has"):
        key_of("https://api.openai.com/v1", {"OPENAI_API_KEY": "sk\n1"})
