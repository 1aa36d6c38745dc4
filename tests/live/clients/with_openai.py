"""OpenAI's own library: chat, completions, streams, `n`, usage, records by `parse`, and errors."""

import json
import sys

import openai
from pydantic import BaseModel

QUESTION = "Tom has 3 apples. He buys 4 more. How many apples does he have?"
ASKED = [{"role": "user", "content": QUESTION}]


class Person(BaseModel):
    name: str
    age: int
    tags: list[str]
    email: str | None = None


def error(name, **fields):
    try:
        client.chat.completions.create(model=name, **fields)
    except openai.APIStatusError as problem:
        return {"type": type(problem).__name__, "param": problem.param, "message": problem.body["message"]}
    return None


client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
found = {"models": [model.id for model in client.models.list()]}
found["model"] = client.models.retrieve("greedy").id

answer = client.chat.completions.create(model="greedy", messages=ASKED, seed=1)
found["chat"] = answer.choices[0].message.content
found["finish"] = answer.choices[0].finish_reason
found["usage"] = answer.usage.model_dump(exclude_none=True)

seeds = {"seed": 3, "extra_body": {"parameters": {"n": 4}}}
voted = client.chat.completions.create(model="self_consistency", messages=ASKED, n=3, **seeds)
found["n"] = [choice.message.content for choice in voted.choices]
found["n_again"] = [
    choice.message.content
    for choice in client.chat.completions.create(model="self_consistency", messages=ASKED, n=3, **seeds).choices
]

options = {"stream": True, "stream_options": {"include_usage": True}, "seed": 1}
chunks = list(client.chat.completions.create(model="llm", messages=ASKED, max_completion_tokens=12, **options))
pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
found["pieces"] = [piece for piece in pieces if piece]
found["stream_usage"] = chunks[-1].usage.model_dump(exclude_none=True)
whole = client.chat.completions.create(model="llm", messages=ASKED, max_completion_tokens=12, seed=1)
found["whole"] = whole.choices[0].message.content

text = client.completions.create(model="llm", prompt="3 + 4 = ", max_tokens=4, temperature=0, logprobs=1)
found["text"] = text.choices[0].text
found["logprobs"] = text.choices[0].logprobs.token_logprobs
text = client.completions.create(model="greedy", prompt=QUESTION, seed=1)
found["program_text"] = text.choices[0].text

note = [{"role": "user", "content": "Anna Bell, 34, likes tea and chess. anna@bell.org"}]
record = client.chat.completions.parse(model="constrained_json", messages=note, response_format=Person)
found["record"] = record.choices[0].message.parsed.model_dump()

found["unknown_model"] = error("nothing", messages=ASKED)
found["refused"] = error("greedy", messages=ASKED, frequency_penalty=0.5)
found["unknown_parameter"] = error("greedy", messages=ASKED, extra_body={"parameters": {"breadth": 3}})
found["image"] = error(
    "greedy",
    messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
)
print(json.dumps(found))
