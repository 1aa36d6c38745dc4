"""Our server under the clients that people have: each does what its user would, and understands the answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qpdsl import zoo
from tests.live.environments import python_with
from tests.live.servers import Server, ours

pytestmark = pytest.mark.live

HERE = Path(__file__).parent / "clients"
PROGRAMS = ("greedy", "best_of_n", "self_consistency", "constrained_json")
# lm-eval always sends these two, and a program has its own.
DROPPED = ("--ignore", "temperature", "--ignore", "max_tokens")
# No client may look for prices, models or data outside this machine.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "OPENAI_API_KEY": "none",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All programs of the tests and their generator, behind one address."""
    server = ours(tmp_path_factory.mktemp("served"), *PROGRAMS, "--expose", "llm", *DROPPED)
    server.start()
    yield server
    server.kill()


def printed(command: Sequence[object], folder: Path) -> str:
    """What a command prints; its own errors are the test's."""
    environment = {**os.environ, **OFFLINE, "HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    line = [str(part) for part in command]
    done = subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:] or done.stdout[-4000:]
    return done.stdout


def understood(client: str, package: str, server: Server, folder: Path) -> dict[str, Any]:
    """What the client's script says it was told."""
    out = printed([python_with(package), HERE / f"with_{client}.py", f"{server.root}/v1"], folder)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def test_openai(served: Server, tmp_path: Path) -> None:
    found = understood("openai", "inspect_ai", served, tmp_path)
    assert {*PROGRAMS, "llm"} <= set(found["models"])
    assert found["model"] == "greedy"
    assert is_number(found["chat"])
    assert found["finish"] == "stop"
    assert found["program_text"] == found["chat"]
    usage = found["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len(found["n"]) == 3
    assert all(map(is_number, found["n"]))
    assert found["n"] == found["n_again"]
    assert len(found["pieces"]) > 1
    assert "".join(found["pieces"]) == found["whole"]
    assert found["stream_usage"]["completion_tokens"] > 0
    assert found["text"]
    assert all(logprob <= 0 for logprob in found["logprobs"])
    assert isinstance(found["record"]["age"], int)


def test_openai_errors(served: Server, tmp_path: Path) -> None:
    found = understood("openai", "inspect_ai", served, tmp_path)
    assert found["unknown_model"]["type"] == "NotFoundError"
    assert found["refused"]["type"] == "BadRequestError"
    assert found["refused"]["param"] == "frequency_penalty"
    assert "breadth" in found["unknown_parameter"]["message"]
    assert found["image"]["type"] == "BadRequestError"


def test_litellm(served: Server, tmp_path: Path) -> None:
    found = understood("litellm", "litellm", served, tmp_path)
    assert is_number(found["chat"])
    assert found["routed"] == found["chat"]
    assert is_number(found["searched"])
    assert found["usage"]["completion_tokens"] > 0
    assert len(found["pieces"]) > 1
    assert found["text"]
    assert "nothing" in found["unknown_model"]


def test_dspy(served: Server, tmp_path: Path) -> None:
    found = understood("dspy", "dspy", served, tmp_path)
    (answer,) = found["answers"]
    assert is_number(answer)
    assert found["usage"]["completion_tokens"] > 0
    assert len(found["n"]) == 3


def test_langchain(served: Server, tmp_path: Path) -> None:
    found = understood("langchain", "langchain_openai", served, tmp_path)
    assert is_number(found["chat"])
    assert is_number(found["searched"])
    assert found["usage"]["output_tokens"] > 0
    assert len(found["pieces"]) > 1
    assert found["stream_usage"]["output_tokens"] > 0


def test_inspect_ai(served: Server, tmp_path: Path) -> None:
    found = understood("inspect", "inspect_ai", served, tmp_path)
    assert found["error"] is None
    assert found["samples"] == 2
    assert all(map(is_number, found["answers"]))
    assert all(usage["output_tokens"] > 0 for usage in found["usage"])


def test_instructor(served: Server, tmp_path: Path) -> None:
    found = understood("instructor", "instructor", served, tmp_path)
    assert set(found["record"]) == {"name", "age", "tags", "email"}


def test_lm_eval(served: Server, tmp_path: Path) -> None:
    rows = [
        {"problem": f"Mia has {n} boxes with 4 cards in each box. How many cards does Mia have?", "answer": str(4 * n)}
        for n in (3, 5, 6)
    ]
    data, task = tmp_path / "rows.jsonl", tmp_path / "task" / "counting.yaml"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    task.parent.mkdir()
    task.write_text((HERE / "counting.yaml").read_text("utf-8").replace("DATA", str(data)), "utf-8")
    place = f"model=greedy,base_url={served.root}/v1/chat/completions,num_concurrent=2,max_retries=1"
    command = [python_with("lm_eval").with_name("lm_eval"), "run", "--model", "local-chat-completions"]
    command += ["--model_args", place, "--include_path", task.parent, "--tasks", "counting"]
    command += ["--apply_chat_template", "--log_samples", "--output_path", tmp_path / "out"]
    printed(command, tmp_path)
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    answers = [json.loads(line)["resps"][0][0] for line in samples.read_text("utf-8").splitlines()]
    assert len(answers) == len(rows)
    assert all(map(is_number, answers))


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_bench_serve(served: Server, tmp_path: Path, backend: str, endpoint: str) -> None:
    result = tmp_path / "result.json"
    command = [python_with("vllm").with_name("vllm"), "bench", "serve", "--backend", backend, "--endpoint", endpoint]
    command += ["--base-url", served.root, "--model", "llm", "--tokenizer", zoo.path("zoo/counting")]
    command += ["--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8", "--ignore-eos"]
    command += ["--num-prompts", "6", "--max-concurrency", "3", "--disable-tqdm"]
    printed([*command, "--save-result", "--result-filename", result], tmp_path)
    found = json.loads(result.read_text("utf-8"))
    assert (found["completed"], found["failed"]) == (6, 0)
    assert found["total_output_tokens"] == 6 * 8
