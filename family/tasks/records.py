"""Record extraction: a note in plain words about a person, an order or a meeting, and its JSON record.

The record is written as `json.dumps` writes it, keys in the order of the kind's schema.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from family.tasks.held_out import Split, distinct, stream
from family.tasks.stories import NAMES

_SURNAMES = ("Stone", "Rivera", "Okafor", "Lindt", "Chen", "Moreau", "Novak", "Silva", "Berg", "Haddad")
_TAGS = ("chess", "music", "running", "cooking", "painting", "football", "sailing", "reading", "dancing", "physics")
_HOSTS = ("mail.org", "post.net", "letters.example")
_GOODS = ("lamps", "chairs", "mugs", "towels", "candles", "notebooks", "pillows", "plates")
_TOPICS = ("budget", "hiring", "garden", "summer party", "new website", "school trip", "rent", "library")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_ROOMS = ("A", "B", "C", "D")


@dataclass(frozen=True)
class Note:
    """A note and the record that it holds; `kind` is a key of `SCHEMAS`."""

    kind: str
    text: str
    record: dict[str, Any]

    @property
    def prompt(self) -> str:
        return prompt(self.kind, self.text)

    @property
    def json(self) -> str:
        return json.dumps(self.record)


def prompt(kind: str, note: str) -> str:
    """The user turn that asks for a record."""
    return f"Extract the {kind} in this note as JSON: {note}"


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object schema with exactly these properties; one marked `optional` may be absent."""
    required = [name for name, schema in properties.items() if not schema.get("optional")]
    plain = {name: {k: v for k, v in schema.items() if k != "optional"} for name, schema in properties.items()}
    return {"type": "object", "properties": plain, "required": required, "additionalProperties": False}


_NAME = {"type": "string", "minLength": 1, "maxLength": 40}
_PART = _object(item=_NAME, count={"type": "integer", "minimum": 1, "maximum": 999})
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": _object(
        name=_NAME,
        age={"type": "integer", "minimum": 0, "maximum": 150},
        tags={"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        email={"type": "string", "format": "email", "maxLength": 60, "optional": True},
    ),
    "order": _object(
        customer=_NAME,
        items={"type": "array", "items": _PART, "minItems": 1, "maxItems": 3},
        express={"type": "boolean"},
    ),
    "meeting": _object(
        topic=_NAME,
        day={"type": "string", "enum": list(_DAYS)},
        hour={"type": "integer", "minimum": 0, "maximum": 23},
        room={"type": "string", "enum": list(_ROOMS)},
        people={"type": "array", "items": _NAME, "minItems": 1, "maxItems": 4},
    ),
}
"""JSON Schema of each kind of record."""


def make_note(rng: random.Random, kind: str) -> Note:
    """A random note of a kind.

    Raises ValueError when `kind` is not in `SCHEMAS`.
    """
    if kind not in SCHEMAS:
        raise ValueError(f"kind must be one of {', '.join(SCHEMAS)}, found {kind}")
    make = {"person": _person, "order": _order, "meeting": _meeting}[kind]
    text, record = make(rng)
    return Note(kind, text, record)


def notes(seed: int, split: Split = "train") -> Iterator[Note]:
    """An endless stream of notes, kinds evenly mixed; the same seed and split give the same stream."""
    return stream(make_note, SCHEMAS, f"notes {seed}", split)


def evaluation_notes(count: int = 300, seed: int = 300) -> list[Note]:
    """The first `count` distinct held-out notes of a seed; the defaults give the shipped evaluation set."""
    return distinct(notes(seed, "held-out"), count)


def _person(rng: random.Random) -> tuple[str, dict[str, Any]]:
    first, last, age = rng.choice(NAMES), rng.choice(_SURNAMES), rng.randint(18, 99)
    tags = rng.sample(_TAGS, k=rng.randint(1, 3))
    record: dict[str, Any] = {"name": f"{first} {last}", "age": age, "tags": tags}
    sentences = [
        rng.choice((f"{first} {last} is {age} years old.", f"This is {first} {last}, aged {age}.")),
        rng.choice((f"{first} likes {listed(tags)}.", f"Tags: {', '.join(tags)}.")),
    ]
    if rng.random() < 0.5:
        record["email"] = f"{first}.{last}@{rng.choice(_HOSTS)}".lower()
        sentences.insert(rng.randint(1, 2), f"Write to {record['email']}.")
    return " ".join(sentences), record


def _order(rng: random.Random) -> tuple[str, dict[str, Any]]:
    customer, express = rng.choice(NAMES), rng.random() < 0.5
    goods = rng.sample(_GOODS, k=rng.randint(1, 3))
    items = [{"item": item, "count": rng.choice((rng.randint(2, 9), rng.randint(10, 400)))} for item in goods]
    goods_text = listed([f"{item['count']} {item['item']}" for item in items])
    sentences = [rng.choice((f"{customer} orders {goods_text}.", f"Please send {goods_text} to {customer}."))]
    if express:
        sentences.append(rng.choice(("It is urgent.", "Send it by express.")))
    elif rng.random() < 0.5:
        sentences.append(rng.choice(("There is no hurry.", "Any day will do.")))
    return " ".join(sentences), {"customer": customer, "items": items, "express": express}


def _meeting(rng: random.Random) -> tuple[str, dict[str, Any]]:
    topic, day, room = rng.choice(_TOPICS), rng.choice(_DAYS), rng.choice(_ROOMS)
    hour, afternoon = rng.randint(1, 11), rng.random() < 0.5
    clock = f"{hour} {'pm' if afternoon else 'am'}"
    people = rng.sample(NAMES, k=rng.randint(1, 4))
    sentences = rng.choice(
        (
            (f"{listed(people)} meet about the {topic} on {day} at {clock}.", f"They take room {room}."),
            (f"On {day} at {clock} we talk about the {topic} in room {room}.", f"With {listed(people)}."),
        )
    )
    record = {"topic": topic, "day": day, "hour": hour + 12 * afternoon, "room": room, "people": people}
    return " ".join(sentences), record


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def write_evaluation_set(folder: Path, count: int = 300) -> None:
    """Write `KIND.schema.json` and `KIND-N.jsonl` for each kind: its N of the `count` notes, keys id, note, answer."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = evaluation_notes(count)
    for kind, schema in SCHEMAS.items():
        of_kind = [note for note in notes if note.kind == kind]
        with (folder / f"{kind}-{len(of_kind)}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for number, note in enumerate(of_kind, start=1):
                row = {"id": f"{kind}-{number:03d}", "note": note.text, "answer": note.record}
                file.write(json.dumps(row) + "\n")
        text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2)
        (folder / f"{kind}.schema.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m family.tasks.records", description="write the notes and schemas")
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER", help="the folder to write to")
    arguments = parser.parse_args()
    write_evaluation_set(arguments.write)


if __name__ == "__main__":
    main()
