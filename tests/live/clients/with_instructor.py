"""instructor: a record by a JSON schema, from a program that returns records."""

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int
    tags: list[str]
    email: str | None = None


plain = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
note = [{"role": "user", "content": "Anna Bell, 34, likes tea and chess. anna@bell.org"}]
person = client.chat.completions.create(model="constrained_json", messages=note, response_model=Person, max_retries=0)
print(json.dumps({"record": person.model_dump()}))
