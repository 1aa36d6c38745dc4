"""Names that people try first, by what has them, and what does it here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

_CELLS = '`pandas.DataFrame(table.to_json()["cells"])` makes one'
_STAGE = "it is a method of the rows that `qp.chat` and `qp.prompt` give"
_OTHERS = {
    "qpdsl": {
        "eval": "`qp.evaluate` compares programs on data",
        "verifier": "`qp.scorer` is the decorator of a function that scores rows, `rows.score(model)` asks a model",
        "grader": "`qp.evaluate(…, grader=function)` takes it",
        "dataset": "`qp.read_rows` reads data",
        "load_dataset": "`qp.read_rows` reads data",
        "run": "call the program: `program(…)`, or `program.run(…)` for rows and costs",
        "compile": "`@qp.program` makes a program of a function, `qp.parse` one of text",
        "user": "`qp.chat(user=…)` begins a conversation",
        "system": "`qp.chat(system=…, user=…)` begins a conversation",
        "assistant": "`rows.say` adds a turn",
        **dict.fromkeys(("generate", "gen", "score", "vote", "best", "keep", "repeat"), _STAGE),
    },
    "Result": {
        **dict.fromkeys(("answer", "output", "text", "result"), "`value` is what the program gave back"),
        **dict.fromkeys(("samples", "completions", "choices"), "`candidates` are the final rows with all they hold"),
        **dict.fromkeys(("usage", "cost"), "`tokens` and `seconds` say what it cost"),
        **dict.fromkeys(("messages", "history"), "`transcript` is the conversation of the first row"),
        **dict.fromkeys(("reasoning", "thinking"), "`thought` is what the model thought before its answer"),
    },
    "Evaluation": {
        **dict.fromkeys(("to_pandas", "to_df", "df", "to_frame"), _CELLS),
        **dict.fromkeys(("results", "rows", "table"), "`cells` are the lines of the table"),
        "show": "`print(table)` shows it, and `table.plot(file)` writes its picture",
    },
    "Program": {
        **dict.fromkeys(("eval", "evaluate"), "`qp.evaluate(program, data)` does"),
        **dict.fromkeys(("batch", "run_batch", "run_many"), "`map(rows)` runs many rows"),
        **dict.fromkeys(("source", "text"), "`str(program)` is its text"),
        **dict.fromkeys(("signature", "parameters"), "`params` are its parameters"),
    },
}


def no_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """That `owner` has no attribute of this name, with what does it here or the nearest of the `known` names."""
    from qpdsl.grammar.suggest import closest

    said = _OTHERS.get(owner, {}).get(name)
    near = None if name.startswith("_") else closest(name, [one for one in known if not one.startswith("_")])
    help = f"; {said}" if said else f"; did you mean `{near}`?" if near else ""
    return AttributeError(f"`{owner}` has no attribute `{name}`{help}")


class Suggesting:
    """An object that says of an attribute which it lacks what does it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            error = no_attribute(type(self).__name__, name, () if name.startswith("_") else dir(self))
            error.name = name
            raise error
