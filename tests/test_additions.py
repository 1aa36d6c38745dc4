"""In how many files of the product one addition stands: the fewer, the easier it is to make the next one.

Each kind has an example that exists, and a pattern that only code about it holds. The bounds only shrink.
"""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

# Kind: the pattern of its example, and the bound.
ADDITIONS = {
    "rule with a decision": (r"speculative_expansion|run_ahead|run-ahead", 6),
    "decode variant": (r"ngram|NGram", 6),
    "early exit": (r"amortized|early_exit|EarlyExit|exit_head", 39),
    "stage": (r"\bDistinct\b|[\"']distinct[\"']|\bdef distinct\b|\bdistinct by\b", 18),
    "verifier kind": (r"rlhflow", 5),
    "grader": (r"ifeval", 5),
    "data format": (r"\bparquet\b|pyarrow", 2),
    "named data set": (r"\bgsm8k\b", 1),
    "dialect of servers": (r"sglang|SGLang", 15),
    "cluster backend": (r"\bray\b|\bRay", 7),
    "setting": (r"server.timeout", 1),
    "setting of an engine": (r"kv.type|KV_TYPES", 32),
}


@pytest.mark.parametrize(("pattern", "bound"), ADDITIONS.values(), ids=ADDITIONS)
def test_an_addition_stands_in_few_files(pattern: str, bound: int) -> None:
    tops = ("grammar", "planner", "executor", "qpdsl", "tui")
    paths = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".lark")]
    held = [path.relative_to(ROOT).as_posix() for path in paths if re.search(pattern, path.read_text("utf-8"))]
    assert 0 < len(held) <= bound, held
