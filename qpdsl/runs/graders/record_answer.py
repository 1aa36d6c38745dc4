"""The fields of a record: how many of the reference's are right, and whether all are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, json_in, right_answers, same_json


class RecordAnswer:
    """`points` is the share of fields that are equal, of those that the reference or the answer has.

    An answer is correct where all are. Of several right answers the nearest counts.
    """

    name = "json"
    version = "1"

    def applies(self, row: InputRow) -> bool:
        return any(isinstance(json_in(right), dict) for right in right_answers(row))

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        given = json_in(answer)
        if not isinstance(given, dict):
            return Grade(False, 0.0, "the answer is no record")
        rights = [right for right in map(json_in, right_answers(row)) if isinstance(right, dict)]
        points = max(_share(given, right) for right in rights)
        return Grade(points == 1.0, points)


def _share(given: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    names = given.keys() | right.keys()
    same = sum(name in given and name in right and same_json(given[name], right[name]) for name in names)
    return same / len(names) if names else 1.0
