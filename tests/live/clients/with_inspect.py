"""inspect-ai: an evaluation of two samples with a program as its model."""

import json
import os
import sys
import tempfile

os.environ["QPDSL_BASE_URL"] = sys.argv[1]
os.environ["QPDSL_API_KEY"] = "none"

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import includes

QUESTION = "Mia has {n} boxes with 4 cards in each box. How many cards does Mia have?"
samples = [Sample(input=QUESTION.format(n=n), target=str(4 * n)) for n in (3, 5)]
task = Task(dataset=MemoryDataset(samples), scorer=includes())
with tempfile.TemporaryDirectory() as folder:
    (log,) = eval(task, model="openai-api/qpdsl/greedy", display="none", log_dir=folder, retry_on_error=0)
    found = {
        "status": log.status,
        "error": log.error.message if log.error else None,
        "answers": [sample.output.completion for sample in log.samples or ()],
        "usage": [s.output.usage.model_dump(exclude_none=True) for s in log.samples or () if s.output.usage],
        "samples": log.results.completed_samples if log.results else 0,
    }
print(json.dumps(found))
