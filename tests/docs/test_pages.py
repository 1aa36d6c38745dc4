"""The pages of `explain-error`: one for every code, and their examples are true."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.grammar.codes import CODES
from qpdsl.grammar.source import MAX_SOURCE_BYTES
from tests.support.documents import codes, codes_with_models, python_codes
from tests.support.paths import ROOT

# What no plain text can show.
UNSHOWN = {
    "QP101": "program p() {\0}",
    "QP102": "#" * (MAX_SOURCE_BYTES + 1),
    "QP310": 'program p65(a: text) { prompt "{a}" }\n'
    + "".join(f"program p{depth}(a: text) {{ call p{depth + 1}(a) }}\n" for depth in range(65)),
}
# Codes that no text gives without a server; tests/executor/remote has those.
SERVED = {"QP403"}
# Codes that need a model's tokenizer: `qpdsl check --model` gives them.
WITH_MODELS = {"QP404", "QP405"}
# Codes that only choosing a program of a file gives, and the choice.
CHOSEN = {"QP220": ""}


def test_every_page_is_of_a_code() -> None:
    assert {path.stem for path in (ROOT / "grammar" / "explanations").glob("*.md")} == set(CODES)


# Examples of what only Python can get wrong are run by tests/qpdsl/api/test_errors.py.
@pytest.mark.parametrize("code", [code for code in CODES if not code.startswith("QP5") and code not in SERVED])
def test_examples(code: str, tmp_path: Path) -> None:
    found = CODES[code]
    for name, text in found.files.items():
        (tmp_path / name).write_text(text, "utf-8")
    if code in UNSHOWN:
        assert found.fails is None and set(codes(UNSHOWN[code])) == {code}
        return
    assert found.fails is not None and found.fixed is not None
    given = python_codes if "```python" in found.body else codes_with_models if code in WITH_MODELS else codes
    assert set(given(found.fails, tmp_path, CHOSEN.get(code))) == {code}
    assert given(found.fixed, tmp_path) == []


@pytest.mark.parametrize("code", CODES)
def test_a_page_is_short_prose_and_two_programs(code: str) -> None:
    text = CODES[code].text
    assert "```" not in text and max(map(len, text.splitlines())) <= 160
    assert 1 <= text.partition("This fails:")[0].count(".") <= 12
