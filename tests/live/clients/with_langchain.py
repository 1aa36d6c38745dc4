"""LangChain: `ChatOpenAI`, whole and streamed."""

import json
import sys

from langchain_openai import ChatOpenAI

QUESTION = "Tom has 3 apples. He buys 4 more. How many apples does he have?"
place = {"base_url": sys.argv[1], "api_key": "none", "max_retries": 0}
answer = ChatOpenAI(model="greedy", seed=1, **place).invoke(QUESTION)
found = {"chat": answer.content, "usage": dict(answer.usage_metadata)}
searched = ChatOpenAI(model="self_consistency", seed=1, extra_body={"parameters": {"n": 4}}, **place).invoke(QUESTION)
found["searched"] = searched.content
bare = ChatOpenAI(model="llm", seed=1, max_tokens=12, stream_usage=True, **place)
chunks = list(bare.stream([("user", QUESTION)]))
found["pieces"] = [chunk.content for chunk in chunks if chunk.content]
found["stream_usage"] = next((dict(chunk.usage_metadata) for chunk in chunks if chunk.usage_metadata), None)
print(json.dumps(found))
