"""Calls of functions, held against those that a row permits: the Berkeley Function Calling Leaderboard (BFCL).

The rules are those of its check of syntax trees for Python: each wanted call has its function and, for each parameter,
the values that are right, where "" says that it may be left out. Texts are compared without case, spaces and the marks
`,./-_*^`. Calls may come in any order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, GraderError, json_in

# Of a text that is compared nothing else is left.
_MARKS = re.compile(r"[ ,./\-_*^]")
_FENCE = re.compile(r"\A\s*```\w*\n(.*?)```\s*\Z", re.DOTALL)
Call = tuple[str, Mapping[str, Any]]


class CallAnswer:
    """Compares the calls of an answer with those of the row's field `ground_truth`; `points` is the share of these.

    Calls are Python, `[area(base=10, height=5)]`, or JSON: `[{"name": "area", "arguments": {…}}]`, or with the name as
    the one key of each.
    """

    name = "calls"
    version = "1"

    def applies(self, row: InputRow) -> bool:
        return bool(row.fields.get("ground_truth"))

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        wanted, given = _wanted(row), calls_in(answer)
        if given is None:
            return Grade(False, 0.0, "the answer is no list of calls")
        left = list(given)
        for name, values in wanted:
            own = next((call for call in left if call[0] == name and _fits(call[1], values)), None)
            if own is not None:
                left.remove(own)
        found = len(given) - len(left)
        return Grade(found == len(wanted) == len(given), found / len(wanted))


def _wanted(row: InputRow) -> list[Call]:
    found = row.fields["ground_truth"]
    calls = _from_json(found if isinstance(found, list) else [found])
    if not calls or any(not isinstance(values, list) for _, own in calls for values in own.values()):
        raise GraderError(
            "the grader `calls`: the field `ground_truth` is no list of calls with the values they may have"
        )
    return calls


def calls_in(answer: Any) -> list[Call] | None:
    """The calls that an answer consists of, None where it is anything else."""
    value = json_in(answer)
    if isinstance(value, dict | list):
        return _from_json(value if isinstance(value, list) else [value])
    text = shown(answer)
    fenced = _FENCE.match(text)
    try:
        tree = ast.parse((fenced[1] if fenced else text).strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        return [_from_python(call) for call in calls]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _from_python(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise ValueError("a call has a name, and each of its arguments has one")
    return ast.unparse(node.func), {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}


def _from_json(found: Sequence[Any]) -> list[Call] | None:
    calls: list[Call] = []
    for call in found:
        if not isinstance(call, Mapping):
            return None
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if len(call) == 1:
            ((name, arguments),) = call.items()
        arguments = json_in(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            return None
        calls.append((name, arguments))
    return calls


def _fits(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the arguments, or the fields of a record, have values that are right, and none is missing or too many."""
    missing = [name for name in wanted if name not in given and "" not in wanted[name]]
    return not missing and all(
        name in wanted and any(_same(value, right) for right in wanted[name]) for name, value in given.items()
    )


def _same(value: Any, right: Any) -> bool:
    if isinstance(right, Mapping):
        return isinstance(value, Mapping) and _fits(value, right)
    if isinstance(right, list):
        one = isinstance(value, list | tuple) and len(value) == len(right)
        return one and all(_same(*pair) for pair in zip(value, right, strict=True))
    if isinstance(right, str):
        return isinstance(value, str) and _plain(value) == _plain(right)
    if isinstance(right, bool) or isinstance(value, bool):
        return value is right
    # A whole number may stand for one that need not be whole, and not the other way round.
    return value == right and (isinstance(right, float) or not isinstance(value, float))


def _plain(text: str) -> str:
    return _MARKS.sub("", text).lower().replace("'", '"')
