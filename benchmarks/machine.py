"""What a benchmark ran on: a line to stand beside its figures."""

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
    found: dict[str, str | int] = {
        "processor": model,
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["llama-cpp-python"] = importlib.metadata.version("llama-cpp-python")
    return found


def sentence() -> str:
    """`describe()` in one line."""
    found = describe()
    return (
        f"{found['processor']}, {found['cores']} cores, {found['threads']} torch thread(s), "
        f"Python {found['python']}, torch {found['torch']}, transformers {found['transformers']}"
        + (f", llama-cpp-python {found['llama-cpp-python']}" if "llama-cpp-python" in found else "")
    )
