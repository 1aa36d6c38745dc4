"""DSPy: a language model that is a program, asked directly and by a signature."""

import json
import sys

import dspy

QUESTION = "Tom has 3 apples. He buys 4 more. How many apples does he have?"
model = dspy.LM("openai/greedy", api_base=sys.argv[1], api_key="none", cache=False, num_retries=0)
found = {"answers": model(QUESTION), "usage": dict(model.history[-1]["usage"])}
bare = dspy.LM("openai/llm", api_base=sys.argv[1], api_key="none", cache=False, num_retries=0, max_tokens=16)
found["n"] = bare(QUESTION, n=3, temperature=1.0)
print(json.dumps(found, default=str))
