"""LiteLLM: chat and streams through its `openai/` provider."""

import json
import sys

import litellm

ASKED = [{"role": "user", "content": "Tom has 3 apples. He buys 4 more. How many apples does he have?"}]
place = {"api_base": sys.argv[1], "api_key": "none", "num_retries": 0}

answer = litellm.completion(model="openai/greedy", messages=ASKED, seed=1, **place)
found = {"chat": answer.choices[0].message.content, "usage": answer.usage.model_dump(exclude_none=True)}
searched = litellm.completion(
    model="openai/best_of_n", messages=ASKED, seed=1, extra_body={"parameters": {"n": 3}}, **place
)
found["searched"] = searched.choices[0].message.content
stream = litellm.completion(model="openai/llm", messages=ASKED, max_tokens=12, temperature=0, stream=True, **place)
found["pieces"] = [piece for chunk in stream if (piece := chunk.choices[0].delta.content)]
text = litellm.text_completion(model="text-completion-openai/llm", prompt="3 + 4 = ", max_tokens=4, **place)
found["text"] = text.choices[0].text
# As a proxy's configuration names it.
entry = {"model_name": "qpdsl", "litellm_params": {"model": "openai/greedy", **place}}
routed = litellm.Router(model_list=[entry]).completion(model="qpdsl", messages=ASKED, seed=1)
found["routed"] = routed.choices[0].message.content
try:
    litellm.completion(model="openai/nothing", messages=ASKED, **place)
except litellm.exceptions.NotFoundError as error:
    found["unknown_model"] = str(error)
print(json.dumps(found))
