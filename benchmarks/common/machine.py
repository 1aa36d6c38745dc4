"""What a benchmark ran on: a line to print beside its figures."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

import torch
import transformers


def describe() -> dict[str, str | int]:
    """Processor, cores, threads and versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    facts: dict[str, str | int] = {
        "processor": model,
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["llama-cpp-python"] = importlib.metadata.version("llama-cpp-python")
    return facts


def sentence() -> str:
    """`describe()` in one line."""
    facts = describe()
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} torch thread(s), "
        f"Python {facts['python']}, torch {facts['torch']}, transformers {facts['transformers']}"
        + (f", llama-cpp-python {facts['llama-cpp-python']}" if "llama-cpp-python" in facts else "")
    )
