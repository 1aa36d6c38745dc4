"""The record-extraction task: every record follows its schema and can be read from its note; the split is clean."""

import json
import random
from itertools import islice

import llguidance
import pytest

from family.tasks.held_out import held_out
from family.tasks.records import SCHEMAS, Note, evaluation_notes, make_note, notes
from tests.support.paths import DATA


def words(value: object) -> list[str]:
    """The texts in a record, however deep."""
    if isinstance(value, dict):
        return [word for part in value.values() for word in words(part)]
    if isinstance(value, list):
        return [word for part in value for word in words(part)]
    return [value] if isinstance(value, str) else []


def byte_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte")


def accepts(schema: dict[str, object], text: str) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


@pytest.fixture(scope="module")
def many() -> list[Note]:
    return list(islice(notes(11), 300))


def test_every_record_follows_its_schema(many: list[Note]) -> None:
    assert all(accepts(SCHEMAS[note.kind], note.json) for note in many)


def test_a_record_that_breaks_its_schema_is_not_accepted() -> None:
    assert not accepts(SCHEMAS["meeting"], json.dumps({"topic": "rent", "day": "Sunday"}))
    assert not accepts(SCHEMAS["person"], '{"name": "Mia Stone", "age": 200, "tags": []}')


def test_every_text_of_a_record_stands_in_its_note(many: list[Note]) -> None:
    for note in many:
        assert all(word in note.text for word in words(note.record))


def test_kinds_come_evenly_mixed_and_streams_repeat() -> None:
    assert [note.kind for note in islice(notes(12), 6)] == [*SCHEMAS, *SCHEMAS]
    assert list(islice(notes(12), 30)) == list(islice(notes(12), 30))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="person, order, meeting"):
        make_note(random.Random(0), "letter")


def test_training_notes_are_never_held_out_ones() -> None:
    held_out_texts = {note.text for note in evaluation_notes()}
    assert not any(held_out(note.text) for note in islice(notes(13), 5000))
    assert all(held_out(text) for text in held_out_texts)


def test_the_shipped_notes_and_schemas_regenerate() -> None:
    for kind, schema in SCHEMAS.items():
        rows = [json.loads(line) for line in (DATA / f"{kind}-100.jsonl").read_text(encoding="utf-8").splitlines()]
        expected = [(note.text, note.record) for note in evaluation_notes() if note.kind == kind]
        assert [(row["note"], row["answer"]) for row in rows] == expected
        shipped = json.loads((DATA / f"{kind}.schema.json").read_text(encoding="utf-8"))
        assert {key: value for key, value in shipped.items() if key != "$schema"} == schema
