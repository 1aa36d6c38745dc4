"""Under which names bare models are served."""

from __future__ import annotations

import pytest

from qpdsl.errors import UsageError
from qpdsl.serve.offered_models import exposed_models

PROGRAMS = [{"llm": "zoo/counting", "prm": "zoo/counting-prm"}]


@pytest.mark.parametrize(
    ("setting", "name", "id"),
    [
        ("llm", "llm", "zoo/counting"),
        ("mine=zoo/counting", "mine", "zoo/counting"),
        ("zoo/counting-mini", "counting-mini", "zoo/counting-mini"),
        ("./models/small.gguf", "small.gguf", "./models/small.gguf"),
        ("http://host/v1#org/name", "org/name", "openai:http://host/v1#org/name"),
        ("vllm:http://host/v1#m tokenizer=zoo/counting", "m", "vllm:http://host/v1#m tokenizer=zoo/counting"),
        ("far=vllm:http://host/v1#m tokenizer=x", "far", "vllm:http://host/v1#m tokenizer=x"),
    ],
)
def test_a_model_goes_by_its_own_name_where_it_gets_no_other(setting: str, name: str, id: str) -> None:
    assert exposed_models([setting], PROGRAMS) == {name: id}


@pytest.mark.parametrize(
    "settings", [["prn"], ["=zoo/counting"], ["a="], ["zoo/counting", "other/counting"], ["http://host/v1"]]
)
def test_what_names_no_model_or_two_by_one_name(settings: list[str]) -> None:
    with pytest.raises(UsageError):
        exposed_models(settings, PROGRAMS)
