"""Scores without a model: equality with a reference, valid JSON, and unit tests, which run in a sandbox."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated
from qpdsl.executor.runtime.instance.instance import RowError
from qpdsl.executor.runtime.sandbox.run import failure_of, passes_tests
from qpdsl.executor.runtime.scoring.checks import code_in, equal, passes, valid_json
from qpdsl.planner.plan import ops
from tests.support.executor.rows import NOWHERE, expr, instance, name, rows
from tests.support.timing import assert_quick, cpu_seconds

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits for processes")


def scores(made: Sequence[Any]) -> list[object]:
    return [row.columns["score"] for row in made]


@pytest.mark.parametrize(
    ("by", "pairs"),
    [
        ("text", {(" 12", "12 "): 1.0, ("12.0", "12"): 0.0, (None, "12"): None, ("12", None): None, (12, "12"): 1.0}),
        (
            "number",
            {("12.0", "12"): 1.0, ("+12", 12): 1.0, ("twelve", "twelve"): 1.0, ("12", "13"): 0.0, (0.5, ".5"): 1.0},
        ),
    ],
)
def test_an_answer_is_equal_to_a_reference(by: Any, pairs: Mapping[tuple[Any, Any], float | None]) -> None:
    op = ops.Equal(stage=0, span=NOWHERE, answer=expr("answer"), reference=expr("wanted"), into=name("score"), by=by)
    given = rows(*({"answer": answer, "wanted": wanted} for answer, wanted in pairs))
    assert scores(asyncio.run(equal(op, given, instance()))) == list(pairs.values())


def test_answers_are_equal_as_mathematics() -> None:
    pytest.importorskip("math_verify")
    op = ops.Equal(stage=0, span=NOWHERE, answer=expr("a"), reference=expr('"1/2"'), into=name("score"), by="math")
    given = rows({"a": r"\frac{1}{2}"}, {"a": "0.5"}, {"a": "2"}, {"a": "1/2"})
    assert scores(asyncio.run(equal(op, given, instance()))) == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "any_json", "of_schema"),
    [
        ('{"a": 1}', 1.0, 1.0), ('{"a": "x"}', 1.0, 0.0), ("[1, 2]", 1.0, 0.0), ('{"a": 1', 0.0, 0.0), ("", 0.0, 0.0),
        ("NaN", 0.0, 0.0), ('{"a": 1} ', 1.0, 1.0), ("[" * 100_000, 0.0, 0.0),
    ],
)  # fmt: skip
def test_a_text_is_json_of_a_schema(text: str, any_json: float, of_schema: float) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    (row,) = rows({})
    row = replace(row, generated=Generated(text=text))
    for source, expected in ((None, any_json), (schema, of_schema)):
        op = ops.ValidJson(
            stage=0, span=NOWHERE, into=name("score"), source=source, schema=name("S") if source else None
        )
        assert scores(asyncio.run(valid_json(op, (row,), instance()))) == [expected]
    op = ops.ValidJson(stage=0, span=NOWHERE, into=name("score"), of=expr("none"))
    assert scores(asyncio.run(valid_json(op, (row,), instance()))) == [None]


def test_code_is_the_last_block_of_python() -> None:
    fenced = "So:\n```python\na = 1\n```\nor\n~~~py\na = 2\n~~~\nprints\n```text\n2\n```"
    assert code_in(fenced) == "a = 2\n"
    assert code_in("a = 3") == "a = 3"
    # A block that the end of the text cuts off.
    assert code_in("```\na = 4") == "a = 4"


@pytest.mark.parametrize("piece", ["`", "~", "```a", "``` ", "```python\n", "   ```", "```\n"])
def test_code_is_found_in_time_in_proportion_to_the_text(piece: str) -> None:
    texts = ("```" + piece * 10_000, "```py" + piece[-1] * 30_000)
    assert_quick(lambda: cpu_seconds(lambda: [code_in(text) for text in texts]), 0.2)


@posix
def test_code_is_run_with_its_tests_and_equal_code_once() -> None:
    tests = "assert f(1) == k"
    op = ops.Passes(stage=0, span=NOWHERE, tests=expr("t"), into=name("score"), of=expr("code"))
    own = instance()
    given = rows(*({"code": code, "t": tests.replace("k", "2")} for code in ("def f(x): return x + 1", "f = 3")))
    with pytest.raises(RowError, match="not allowed here"):
        asyncio.run(passes(op, given, own))
    own.services = replace(own.services, allow_code=True)
    given = (*given, *given, *rows({"code": None, "t": ""}))
    assert scores(asyncio.run(passes(op, given, own))) == [1.0, 0.0, 1.0, 0.0, None]
    assert len(own.judged) == 2
    # The runs are those of the score.
    op, own.services = replace(op, why=True), replace(own.services)
    told = [row.columns["score"] for row in asyncio.run(passes(op, given, own))]
    assert told[0] is None and told[-1] is None and len(own.judged) == 2
    assert told[1] == "tests, line 1: assert f(1) == 2\nTypeError: 'int' object is not callable"


UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(), {})\n"


@posix
@pytest.mark.parametrize(
    ("code", "tests", "passed"),
    [
        ("def f(): return 1", "assert f() == 1", True),
        ("def f(): return 1", "def test_f():\n    assert f() == 2", False),
        ("def f(): return 1", UNITTEST.format(1), True),
        ("def f(): return 1", UNITTEST.format(2), False),
        ("def f(): return 1", UNITTEST.format(1) + "unittest.main()", True),
        ("def f(): return 1", UNITTEST.format(2) + "unittest.main()", False),
        ("def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit(1)", "assert f()", True),
        # Code that ends the process has passed nothing, and what it prints is no answer.
        ("import sys\nsys.exit(0)", "", False),
        ("import os\nos._exit(0)", "", False),
        (
            "import os\nfor out in range(3, 20):\n  try:\n    os.write(out, b'x' * 999)\n  except OSError: pass",
            "",
            False,
        ),
        ("def f(: 1", "", False),
        ("def f(): return 1", "def test_f(of=f):\n    assert of() == 2", False),
        # The call of an asynchronous test runs nothing.
        ("def f(): return 1", "async def test_f():\n    assert f() == 2", False),
    ],
)
def test_what_passes(code: str, tests: str, passed: bool) -> None:
    assert passes_tests(code, tests, 2) is passed


@posix
def test_why_it_does_not_pass() -> None:
    code = "def f(x):\n    return not x or g(x)\ndef g(x): raise ValueError(f'{object()} {set(\"abcdef\")}')"
    told = failure_of(code, "\n\nf(2)", 2)
    assert told is not None and told == failure_of(code, "\n\nf(2)", 2)
    assert told.splitlines()[:2] == ["tests, line 3: f(2)", "code, line 2: return not x or g(x)"]
    assert "ValueError: <object object at 0x…>" in told
    assert "AssertionError: 1 != 2" in (failure_of("def f(): return 1", UNITTEST.format(2), 2) or "")
    assert "SyntaxError" in (failure_of("def f(: 1", "", 2) or "")
    assert len(failure_of("raise ValueError('x' * 99999)", "", 2) or "") < 2000
    assert "took too much time" in (failure_of("import os\nos._exit(0)", "", 2) or "")


@posix
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "x = bytearray(3 << 30)",
        "open('x', 'w').write('x' * (20 << 20))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import os; assert os.system('true') == 0",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "open(OUTSIDE, 'w')",
        "import os; os.remove(OUTSIDE)",
        "import shutil; shutil.rmtree(FOLDER)",
        "for name in range(1000): open(str(name), 'w')",
        "import os\nfor depth in range(5000):\n    os.mkdir('deeper')\n    os.chdir('deeper')",
    ],
)
def test_code_cannot(code: str, tmp_path: Path) -> None:
    outside = tmp_path / "mine.txt"
    outside.write_text("mine")
    named = code.replace("OUTSIDE", repr(str(outside))).replace("FOLDER", repr(str(tmp_path)))
    assert not passes_tests(named, "", 1)
    assert outside.read_text() == "mine"


@posix
def test_code_is_alone() -> None:
    """It has no environment, sees none of the caller's files in its folder, and may write there."""
    code = "import os\nassert not set(os.environ) - {'LC_CTYPE'}, os.environ\nassert os.listdir() == []\n"
    assert passes_tests(code + "open('own', 'w').write('x')", "assert open('own').read() == 'x'", 2)
