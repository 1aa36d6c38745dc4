"""Whether an answer follows the instructions of its row: IFEval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.inputs.input_row import InputRow
from qpdsl.measures.grader import Grade
from qpdsl.measures.graders.instructions import CHECKS, follows
from qpdsl.planner.values.json_values import shown


class InstructionAnswer:
    """Checks the instructions that the fields `instruction_id_list` and `kwargs` name, strictly.

    `points` is the share that is followed; an answer is correct where all are (the paper's prompt-level accuracy, and
    points its instruction-level one). A row with an instruction that cannot be checked is not graded.
    """

    name = "ifeval"
    version = "1"

    def applies(self, row: InputRow) -> bool:
        return bool(_instructions(row))

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        instructions = _instructions(row)
        if unknown := [name for name, _ in instructions if name not in CHECKS]:
            return Grade(None, note=f"`{unknown[0]}` cannot be checked here")
        text = "" if answer is None else shown(answer)
        try:
            followed = [follows(name, text, arguments) for name, arguments in instructions]
        except (KeyError, ValueError, TypeError) as error:
            return Grade(None, note=f"the arguments of the instructions are not those of IFEval: {error}")
        return Grade(all(followed), sum(followed) / len(followed))


def _instructions(row: InputRow) -> Sequence[tuple[str, Mapping[str, Any]]]:
    names, arguments = row.fields.get("instruction_id_list"), row.fields.get("kwargs")
    if not isinstance(names, Sequence) or not isinstance(arguments, Sequence) or len(names) != len(arguments):
        return ()
    return [(str(name), own if isinstance(own, Mapping) else {}) for name, own in zip(names, arguments, strict=True)]
