"""The engine without HTTP: the requests of a `client.py` run, asked by as many coroutines in its own process.

    python -m benchmarks.serving.direct MODEL CORE… < SPECS

Each line of SPECS is a specification as `client.py` takes it, of which only `bodies` and `clients` are read. Of each it
prints a line of JSON as `client.py` does, without texts. Prompts are token ids, as the server gets them, and nobody
looks at a sample before it has ended: the least that there is to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from qpdsl.executor.requests import engine_loop
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.serve.offered_models import bare_plan
from qpdsl.session.session import Session


async def run(session: Session, model: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Asks all that one specification names; returns what `client.py` prints."""
    engine = session.engine
    answers: list[dict[str, Any]] = [{} for _ in spec["bodies"]]
    waiting = iter(enumerate(spec["bodies"]))

    async def one() -> None:
        for number, body in waiting:
            start = time.perf_counter()
            prompt, most = tuple(body["prompt"]), int(body["max_tokens"])
            request = GenerateRequest(prompt, (0,), SamplingParams(0.0), most, logprobs=False)
            (sample,) = (await engine.submit(model, request)).samples
            seconds = time.perf_counter() - start
            answers[number] = {"first": 0.0, "whole": seconds, "tokens": len(sample.tokens), "text": "", "error": ""}

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(spec["clients"])))
    return {"seconds": time.perf_counter() - start, "answers": answers}


async def main() -> None:
    model, *cores = sys.argv[1:]
    os.sched_setaffinity(0, {int(core) for core in cores})
    session = Session()
    session.load(bare_plan(model))
    print(json.dumps({"ready": True}), flush=True)
    async with session.running():
        # While the next line is waited for there is nothing else to do.
        for line in sys.stdin:
            print(json.dumps(await run(session, model, json.loads(line))), flush=True)


if __name__ == "__main__":
    engine_loop.run(main())
