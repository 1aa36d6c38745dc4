"""Every code that a diagnostic can carry. Codes are stable: a code that is retired is never given to anything else.

1xx: text and syntax. 2xx: names and types. 3xx: values and limits. 4xx: models and planning.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    title: str
    explanation: str


CODES: dict[str, Code] = {
    "QP101": Code("not program text", "A `.qp` file is UTF-8 text; this one holds bytes or characters that are none."),
    "QP102": Code("source too large", "A source may take at most 1 MiB; data belongs in parameters."),
    "QP103": Code("nested too deep", "Brackets, blocks and expressions may nest 64 deep."),
    "QP104": Code("unexpected character", 'The character begins nothing in the language; quotes must be plain `"`.'),
    "QP105": Code("string not closed", 'A `"…"` string ends on its line; text over several lines stands in `"""…"""`.'),
    "QP106": Code(
        "regex not closed", "A `/…/` regex ends on its line, at its first bare slash; one inside it is written `\\/`."
    ),
    "QP107": Code("brackets do not pair", "Each `(`, `[` and `{` needs the bracket that closes it, in order."),
    "QP108": Code("unknown escape", 'A backslash in a string stands before one of `n t r \\ " { }` or `uXXXX`.'),
    "QP109": Code("syntax error", "Something else was expected here; the form of the stage is given beside it."),
    "QP110": Code("unknown stage", "A line of a program begins with the word of a stage, and this is none."),
    "QP111": Code("unknown declaration", "Outside programs a line declares a model or a program."),
    "QP112": Code("stage outside a program", "Stages stand between the braces of a program."),
    "QP113": Code("empty stage", "`|` parts two stages; one of them is missing."),
    "QP114": Code("reserved word", "Clause words, operators and truth values cannot be names."),
    "QP115": Code("not part of the language", "The clause is planned for the language and not part of it as it is."),
    "QP116": Code("unknown option", "Each stage has its own `key=` options."),
    "QP117": Code("option given twice", "An option is given at most once; `chat` alone may repeat its roles."),
    "QP118": Code("regex does not compile", "The regex is not well formed."),
    "QP119": Code(
        "outside the regex dialect", "The dialect is what Python's `re` and llguidance both take and mean the same by."
    ),
    "QP120": Code("no program", "A file declares at least one program."),
    "QP121": Code("no stages", "A program, and the body of a `repeat`, has at least one stage."),
    "QP122": Code("block without a head", "A `{ … }` belongs to a program or a `repeat` that stands before it."),
    "QP123": Code("plain string expected", "A model id is fixed text; `{name}` has no meaning in it."),
    "QP201": Code("unknown model", 'A model is declared by `model NAME = "…"`, or named by a quoted id.'),
    "QP202": Code("unknown program", "The file declares no program of this name."),
    "QP203": Code("unknown column", "A column is there once a stage has made it; `text` and some others always are."),
    "QP204": Code("unknown parameter", "An option or a prompt reads the parameters that the program declares."),
    "QP205": Code("unknown function", "The functions are `len`, `min`, `max`, `mean`, `all` and `any`."),
    "QP206": Code("unknown type", "The types are `text`, `int`, `float` and `bool`."),
    "QP207": Code("unknown reduction", "`reduce` is one of `last`, `min`, `mean`, `prod` and `sum`."),
    "QP208": Code("name taken", "Each name is declared once; a parameter cannot share a column's name."),
    "QP209": Code("wrong type", "The value's type does not fit the place where it stands."),
    "QP210": Code("column where none can be read", "Options and prompts are the same for all rows: parameters only."),
    "QP211": Code("aggregate where none can stand", "Aggregates look at all rows, in `until` and `return`, once each."),
    "QP212": Code("column outside an aggregate", "`until` looks at all rows; a column in it needs an aggregate."),
    "QP213": Code("unfit default", "A default is a plain value of the parameter's type."),
    "QP214": Code("unfit result", "What the program gives back is not of the type that it declares."),
    "QP215": Code("no context", "`chat` or `prompt` starts the context that the other stages go on from."),
    "QP216": Code("second context", "A program starts one context; appending to it is not part of the language yet."),
    "QP217": Code("misplaced return", "`return` is the last stage of a program, outside any `repeat`."),
    "QP218": Code("nothing generated", "The stage works on generated text, and no `generate` stands before it."),
    "QP219": Code("wrong number of arguments", "`min` and `max` take one argument or more, other functions one."),
    "QP220": Code("which program", "The file declares several programs, so the one that is meant must be named."),
    "QP301": Code("out of range", "The number is outside what the option takes."),
    "QP302": Code("samples that cannot differ", "At temperature 0 each sample is the same text: one is enough."),
    "QP303": Code("empty stop string", "A stop string is at least one character long."),
    "QP304": Code("empty model id", "A model id names a model or a path."),
}
