"""Every code that a diagnostic can carry, with a page about it: what it means, why, an example and a mended one.

1xx: text and syntax. 2xx: names and types. 3xx: values and limits. 4xx: models and planning. 5xx: programs written in
Python. Codes are stable: a code that is retired is never given to anything else.

The pages are the files `explanations/CODE.md`: prose, a block marked ```` ```qp fails ````, a block marked
```` ```qp ````, and for each file that the examples read a block marked with its name
(```` ```json order.schema.json ````). Examples that need Python are marked `python`. The tests
compile both programs of a page; `explain-error` and `docs/errors.md` are made of the pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import indent


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """A few words that name the error, and a sentence that explains it."""

    title: str
    explanation: str


# Codes that are no longer given, and what they said.
RETIRED = {"QP115": "not part of the language", "QP216": "second context", "QP269": "rows that are cut"}

CODES: dict[str, CodeInfo] = {
    "QP101": CodeInfo(
        "not program text", "A `.qp` file is UTF-8 text; this one holds bytes or characters that are none."
    ),
    "QP102": CodeInfo("source too large", "A source may take at most 1 MiB; data belongs in parameters."),
    "QP103": CodeInfo("nested too deep", "Brackets, blocks and expressions may nest 64 deep."),
    "QP104": CodeInfo(
        "unexpected character", 'The character begins nothing in the language; quotes must be plain `"`.'
    ),
    "QP105": CodeInfo(
        "string not closed", 'A `"…"` string ends on its line; text over several lines stands in `"""…"""`.'
    ),
    "QP106": CodeInfo(
        "regex not closed", "A `/…/` regex ends on its line, at its first bare slash; one inside it is written `\\/`."
    ),
    "QP107": CodeInfo("brackets do not pair", "Each `(`, `[` and `{` needs the bracket that closes it, in order."),
    "QP108": CodeInfo("unknown escape", 'A backslash in a string stands before one of `n t r \\ " { }` or `uXXXX`.'),
    "QP109": CodeInfo("syntax error", "Something else was expected here; the form of the stage is given beside it."),
    "QP110": CodeInfo("unknown stage", "A line of a program begins with the word of a stage, and this is none."),
    "QP111": CodeInfo(
        "unknown declaration", "Outside programs a line declares a model, schema or program, or a `use`."
    ),
    "QP112": CodeInfo("stage outside a program", "Stages stand between the braces of a program."),
    "QP113": CodeInfo("empty stage", "`|` parts two stages; one of them is missing."),
    "QP114": CodeInfo("reserved word", "Clause words, operators and truth values cannot be names."),
    "QP116": CodeInfo("unknown option", "Each stage has its own `key=` options."),
    "QP117": CodeInfo(
        "option given twice", "An option or clause is given at most once; `chat` alone may repeat its roles."
    ),
    "QP118": CodeInfo("regex does not compile", "The regex is not well formed."),
    "QP119": CodeInfo(
        "outside the regex dialect", "The dialect is what Python's `re` and llguidance both take and mean the same by."
    ),
    "QP120": CodeInfo("no program", "A file declares at least one program."),
    "QP121": CodeInfo(
        "no stages", "A program, the body of a `repeat` and each arm of a `branch` has at least one stage."
    ),
    "QP122": CodeInfo(
        "block without a head", "A `{ … }` belongs to the program, schema or stage that stands before it."
    ),
    "QP123": CodeInfo("plain string expected", "Ids, paths and choices are fixed text; `{name}` means nothing there."),
    "QP124": CodeInfo("unknown form", "Clauses, verifiers and types with arguments have a few forms; this is none."),
    "QP125": CodeInfo("unfit arguments", "What stands between the brackets is not what this form takes."),
    "QP126": CodeInfo("unknown comparison", "`equal` is one of `text`, `number` and `math`."),
    "QP127": CodeInfo("unknown kind of verifier", "A model that scores may be declared to be of a kind."),
    "QP140": CodeInfo("unfit scale", "The numbers that a judge may answer stand in its brackets, or after `as`."),
    "QP142": CodeInfo(
        "not a budget", "A budget is one amount of tokens, seconds or cost, as in `within budget(tokens=2000)`."
    ),
    "QP143": CodeInfo("not a width", "`auto` stands for a whole number, and may name those to choose among."),
    "QP150": CodeInfo(
        "unfit search", "A `search` names a method, `puct` or `ab_mcts`, and says how many `simulations` it takes."
    ),
    "QP201": CodeInfo(
        "unknown model or verifier", 'A model is declared by `model NAME = "…"`, or named by a quoted id.'
    ),
    "QP202": CodeInfo("unknown program", "No program of this name is declared here or in a file that is used."),
    "QP203": CodeInfo(
        "unknown column", "A column is there once a stage has made it; `text` and some others always are."
    ),
    "QP204": CodeInfo("unknown parameter", "An option reads the parameters that the program declares."),
    "QP205": CodeInfo("unknown function", "An expression calls a function that is not built in."),
    "QP206": CodeInfo(
        "unknown type", "The types are `text`, `int`, `float`, `bool`, choices, lists, records and schemas."
    ),
    "QP207": CodeInfo(
        "unknown reduction",
        "`reduce` is one of `last`, `min`, `mean`, `prod` and `sum`, of a judge `answer` or `expected`.",
    ),
    "QP208": CodeInfo("name taken", "Each name is declared once; a parameter cannot share a column's name."),
    "QP209": CodeInfo("wrong type", "The value's type does not fit the place where it stands."),
    "QP210": CodeInfo("column where none can be read", "What is the same for all rows reads parameters only."),
    "QP211": CodeInfo(
        "aggregate where none can stand", "Aggregates look at all rows, and here only parameters can be read."
    ),
    "QP212": CodeInfo("column outside an aggregate", "`until` looks at all rows; a column in it needs an aggregate."),
    "QP213": CodeInfo("unfit default", "A default is a plain value of the parameter's type."),
    "QP214": CodeInfo("unfit result", "What the program gives back is not of the type that it declares."),
    "QP215": CodeInfo("no context", "`chat` or `prompt` starts the context that the other stages go on from."),
    "QP217": CodeInfo("misplaced return", "`return` is the last stage of a program, outside any block."),
    "QP218": CodeInfo("nothing generated", "The stage works on generated text, and no `generate` stands before it."),
    "QP219": CodeInfo(
        "wrong number of arguments",
        "Each function takes so many arguments; aggregates take one, `min` and `max` several too.",
    ),
    "QP220": CodeInfo("which program", "The file declares several programs, so the one that is meant must be named."),
    "QP221": CodeInfo(
        "mixed context", "A context is chat turns or plain text: `chat` goes on with one, `prompt` with the other."
    ),
    "QP222": CodeInfo(
        "unknown schema", 'A schema is declared by `schema NAME { … }` or `schema NAME from "file.json"`.'
    ),
    "QP223": CodeInfo("recursive schema", "A schema that holds itself could be satisfied by no text that ends."),
    "QP224": CodeInfo("recursive call", "`call` puts a program's stages in its place, which would never end."),
    "QP225": CodeInfo("unfit reduction", "Process reward models score each step; other verifiers give one number."),
    "QP226": CodeInfo("nothing at this path", "The text is held to a schema that has no such field or item."),
    "QP227": CodeInfo(
        "unknown extractor", "A name after `extract NAME =` is a Python function that the caller registered."
    ),
    "QP228": CodeInfo("file not readable", "A program reads files under its own folder, UTF-8 and up to 1 MiB."),
    "QP229": CodeInfo(
        "nothing left to generate", "Where the model ends every turn itself, nothing but `say` or a new turn goes on."
    ),
    "QP230": CodeInfo(
        "blocks do not fit", "A column that several blocks of a `branch` or an `if` make has one type in all of them."
    ),
    "QP231": CodeInfo(
        "unfit arguments of a call", "`call` gives each parameter one value, by its place or by its name."
    ),
    "QP232": CodeInfo("unused column", "A stage makes the column, and nothing reads it afterwards."),
    "QP233": CodeInfo("unused model", "The file declares the model, and none of its programs needs it."),
    "QP234": CodeInfo("unused parameter", "The program declares the parameter and does not read it."),
    "QP235": CodeInfo("unused schema", "The file declares the schema, and nothing in it is held to it."),
    "QP236": CodeInfo("rows do not come back", "`peek` gives each row back, so its stages make one row of each."),
    "QP237": CodeInfo("word without effect", "JSON Schema takes a word that it does not know for a note."),
    "QP240": CodeInfo(
        "rows not told apart", "`compare` shows columns of two rows, `{a.…}` and `{b.…}`, and parameters."
    ),
    "QP241": CodeInfo(
        "unknown input of a function", "A Python function gets the columns and parameters that its own parameters name."
    ),
    "QP250": CodeInfo("nothing to choose from", "`last` and `all` are said of matches: of a regex, or of boxes."),
    "QP251": CodeInfo(
        "vote that weighs and counts", "`decided` asks how sure a count of votes is; weights are no counts."
    ),
    "QP252": CodeInfo(
        "search that makes no rows", "The block of a `search` makes the children of a row: it generates."
    ),
    "QP253": CodeInfo(
        "figures that nobody has", "Of a text that was filtered, left early or chosen, no draws are told of."
    ),
    "QP254": CodeInfo("misplaced `strategy`", "A program has one `strategy`, among its own stages."),
    "QP255": CodeInfo(
        "open program called", "A program that leaves its ways to a budget is called with all of them given."
    ),
    "QP256": CodeInfo("nothing to budget", "A budget chooses what a program leaves open by `strategy` or `auto`."),
    "QP260": CodeInfo("unknown built-in model", "An id that begins with `zoo/` names a model that ships with qpdsl."),
    "QP261": CodeInfo("verifier that is to write", "A verifier scores text; what writes it is a language model."),
    "QP262": CodeInfo("no verifier of this kind", "`score` takes a reward model, of the kind that it was trained as."),
    "QP265": CodeInfo("outdated score", "The text went on after it was scored, and the earlier score is read."),
    "QP266": CodeInfo(
        "column lost to a call", "A program called without `into` makes a column that was there already."
    ),
    "QP267": CodeInfo(
        "draft that cannot be", "`draft` stands where nothing can be proposed, or names two things at once."
    ),
    "QP268": CodeInfo(
        "braces around no name", "In a string `{name}` and `{item.name}` are replaced, and nothing else in braces is."
    ),
    "QP270": CodeInfo("empty turn", "The stage works on the text of this turn, in which nothing was generated yet."),
    "QP275": CodeInfo(
        "problem that is a guess", "A verifier is shown the first user turn as the problem; there is more than that."
    ),
    "QP276": CodeInfo("weight below zero", "The weight of a vote is 0 or more, since the greatest sum wins."),
    "QP277": CodeInfo("problem that nobody sees", "`given` names the problem for a verifier that is shown one."),
    "QP285": CodeInfo(
        "bound too large", "A number can be held to bounds up to 2⁵³ − 1; llguidance would take others in their place."
    ),
    "QP301": CodeInfo("out of range", "The number is outside what the option takes."),
    "QP302": CodeInfo("samples that cannot differ", "At temperature 0 each sample is the same text: one is enough."),
    "QP303": CodeInfo("empty stop string", "A stop string is at least one character long."),
    "QP304": CodeInfo("empty id or path", "A model id names a model, and a path names a file."),
    "QP305": CodeInfo(
        "decides nothing", "The condition is the same in every round, or for every row; or all rows are in one group."
    ),
    "QP306": CodeInfo("unfit schema", "llguidance must be able to hold an output to all that a schema says."),
    "QP307": CodeInfo("unfit constraint", "llguidance must be able to hold an output to the regex or grammar."),
    "QP308": CodeInfo("empty choice", "Each text of `choice(…)` is at least one character long."),
    "QP309": CodeInfo("unknown format", "`format` is one that llguidance can hold a text to."),
    "QP310": CodeInfo("program too large", "Calls may go 64 deep and add 10,000 stages to the programs of a file."),
    "QP311": CodeInfo("path that leads nowhere", "`.field` reads a record, and `[0]` a list."),
    "QP312": CodeInfo("mixed list", "All values of a list are of one type."),
    "QP313": CodeInfo("misplaced `per`", "`per` belongs to aggregates: it says over which rows they go."),
    "QP320": CodeInfo("number of a row taken", "In `join` the name `i` is the row's number, and nothing else."),
    "QP321": CodeInfo("no list to go through", "`each` goes through a list: a column, a parameter, or one in JSON."),
    "QP330": CodeInfo("several rows of one", "`ask` gives each row back, so its stages end in one row."),
    "QP331": CodeInfo("nothing comes out", "Of an `ask` the columns come out that its stages make, and nothing else."),
    "QP332": CodeInfo("regex as a value", "A regex stands behind `stop=`, `matches` and `as`, and in `extract`."),
    "QP333": CodeInfo("regex that cannot stop", "A regex in `stop` matches some text, and not the end of the text."),
    "QP334": CodeInfo("option that changes nothing", "A choice is drawn whole, so nothing cuts it."),
    "QP360": CodeInfo("output that is a text", "Every output is a text; a regex says what it may be."),
    "QP361": CodeInfo("unfit model", "A parameter that is a model is given the name of a model, or a quoted id."),
    "QP401": CodeInfo("clauses that exclude each other", "`via filter` stands without `as choice`."),
    "QP402": CodeInfo("model that helps itself", "Filtering or drafting with the model itself saves nothing."),
    "QP403": CodeInfo("server that cannot", "A stage needs what the server of its model was not seen to do."),
    "QP501": CodeInfo(
        "value not known yet", "A parameter or a column of a program in Python has a value when it runs."
    ),
    "QP502": CodeInfo(
        "no value of the language", "A program in Python is given something that `.qp` text could not say."
    ),
    "QP503": CodeInfo("unfit signature", "A program in Python has named parameters, and types that the language has."),
    "QP504": CodeInfo("misplaced stage", "A stage of a program in Python stands where it cannot run."),
}

_PROGRAMS = ("qp", "python")
_FOLDER = Path(__file__).with_name("explanations")
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """`body` is all of the page in Markdown, with the programs `fails` and `fixed` in it.

    Both are None for a code that no plain text can show. `files` holds the files that they read, by name.
    """

    code: str
    title: str
    summary: str
    body: str
    fails: str | None
    fixed: str | None
    files: Mapping[str, str]

    @property
    def text(self) -> str:
        """The page as a terminal shows it."""
        return _BLOCK.sub(
            lambda match: f"{_heading(match[1], match[2])}\n\n{indent(match[3], '    ')}", self.body
        ).strip()


@cache
def page(code: str) -> Page:
    """The page of a code. Raises KeyError for a code that does not exist."""
    summary = CODES[code]
    body = (_FOLDER / f"{code}.md").read_text("utf-8").strip()
    blocks = [(match[1], match[2], match[3]) for match in _BLOCK.finditer(body)]
    programs = {info: text for language, info, text in blocks if language in _PROGRAMS}
    files = {info: text for language, info, text in blocks if language not in _PROGRAMS}
    return Page(code, summary.title, summary.explanation, body, programs.get("fails"), programs.get(None), files)


def _heading(language: str, info: str | None) -> str:
    if language not in _PROGRAMS:
        return f"`{info}`:"
    return "This fails:" if info else "This is right:"
