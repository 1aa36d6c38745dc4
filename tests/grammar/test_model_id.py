"""Short names of models stand for ids, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from qpdsl.grammar.model_id import is_remote, with_adapter, written_out


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("ollama:llama3.2:3b", "openai:http://127.0.0.1:11434/v1#llama3.2:3b"),
        ("lmstudio:org/name think=none", "openai:http://127.0.0.1:1234/v1#org/name think=none"),
        ("openrouter:org/name", "openai:https://openrouter.ai/api/v1#org/name"),
        ("gpt-4o-mini", "openai:https://api.openai.com/v1#gpt-4o-mini"),
        ("claude-sonnet-4-5 tokenizer=./x", "openai:https://api.anthropic.com/v1#claude-sonnet-4-5 tokenizer=./x"),
        ("https://host/v1#name", "openai:https://host/v1#name"),
        ("hf:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ],
)
def test_short_names(name: str, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert with_adapter(name, None) == written_out(name) == id
    # A name that was written out once stays as it is.
    assert written_out(id) == id and is_remote(id) == id.startswith("openai:")


def test_models_of_openai_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert written_out("gpt-4o-mini") == "openai:http://127.0.0.1:9/v1#gpt-4o-mini"
    assert written_out("claude-opus-4-1").startswith("openai:https://api.anthropic.com/v1#")


@pytest.mark.parametrize("id", ["zoo/counting", "./gpt-4", "org/gpt-4", "gpt-neo", "gpt2", "model.gguf", "C:/models"])
def test_other_names_are_left_alone(id: str) -> None:
    assert written_out(id) == id and not is_remote(id)
