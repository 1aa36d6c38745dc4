"""Every benchmark starts: its module is imported, and a command says what it takes."""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

import benchmarks
from benchmarks.lessons import kv_memory, prefix_cache

# What some are compared with, which not every machine has.
OTHERS = ("llama_cpp", "vllm")
NAMES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.fixture(scope="module")
def modules() -> list[ModuleType]:
    found = []
    for name in NAMES:
        if not name.endswith("__main__"):
            try:
                found.append(importlib.import_module(name))
            except ModuleNotFoundError as error:
                assert error.name in OTHERS, f"{name}: {error}"
    return found


def test_every_module_is_imported(modules: list[ModuleType]) -> None:
    assert len(modules) > 100


def test_every_command_says_what_it_takes(
    modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        module
        for module in modules
        if getattr(module, "argparse", None) is argparse
        and inspect.isfunction(main := getattr(module, "main", None))
        and not inspect.signature(main).parameters
    ]
    assert len(commands) > 20
    for module in commands:
        monkeypatch.setattr(sys, "argv", [module.__name__, "--help"])
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 0 and "--help" in capsys.readouterr().out, module.__name__


@pytest.mark.parametrize("lesson", [kv_memory, prefix_cache], ids=lambda lesson: lesson.__name__)
def test_a_lesson_runs(lesson: ModuleType) -> None:
    assert lesson.exercise(True)
