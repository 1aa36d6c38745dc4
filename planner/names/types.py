"""Types of expressions, and what to write instead of an expression of the wrong type.

What an expression may read depends on where it stands: an option reads parameters only, or aggregates too ("once"), or
("option") columns where it may differ from row to row; `let`, `where`, `by` and `weight` the columns of a row; `until`
columns inside aggregates; `return` both, and there a bare column is the first row's. Aggregates stand wherever columns
are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import Reads
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.suggest import closest, listed, meant
from qpdsl.grammar.words import FINISHES, FUNCTIONS, NUMBERS, Type
from qpdsl.planner.names.scope import Scope
from qpdsl.planner.values.library import (
    AGGREGATES,
    OF_SEVERAL,
    ROW_FUNCTIONS,
    SHARES,
    Aggregate,
    RowFunction,
    contains_type,
)
from qpdsl.planner.values.value import (
    common_of,
    common_type,
    fields_of,
    fits,
    is_list,
    is_record,
    item_of,
    list_of,
    record_of,
    type_at,
)

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
# What functions are called in other languages.
_FUNCTION_ALIASES = {
    "avg": "mean",
    "average": "mean",
    "length": "len",
    "size": "len",
    "str": "text",
    "string": "text",
    "number": "float",
    "integer": "int",
    "ln": "log",
    "stdev": "std",
    "stddev": "std",
    "percentile": "quantile",
    "trim": "strip",
    "lowercase": "lower",
    "uppercase": "upper",
    "total": "sum",
    "least": "min",
    "greatest": "max",
    "has": "contains",
}
_OF_NUMBERS = ("min", "max", "mean", "sum", "std", "median", "quantile", "rank")
# What stands for an aggregate where it is to look at several values of one row.
_OF_ONE_ROW = {"all": "of one row: `a and b`", "any": "of one row: `a or b`", "mean": "of one row: `(a + b) / 2`"}
_OF_ONE_ROW |= {"sum": "of one row: `a + b`"}
# Functions without arguments, and what may have been meant by one with some.
_OF_NOTHING = {
    "number": "`rank(x)` is the place of a row by a value",
    "random": "a number from a to b: `a + (b - a) * random()`; one of a list: `list[int(random() * len(list))]`",
}
_COUNTS = {"1": "one", "2": "two", "3": "three", "1 or 2": "one or two"}
# What other languages put between braces: a name, with spaces around it, an operator, an index, a call or a format.
_EXPRESSION = re.compile(
    r"""\s*(?P<name>[A-Za-z_]\w*)\s*(?:\(\s*(?P<argument>[A-Za-z_]\w*).*|[-+*/%.\[!|<>=].*|:[\d.<>^+,=a-z%]+)?\s*"""
)
# A call as other languages write it: `name.upper()`.
_METHOD = re.compile(r"(?P<of>[A-Za-z_][\w.]*)\.(?P<call>\w+)\((?P<arguments>[^()]*)\)")
_NUMBER = re.compile(r"-?(\d+(\.\d+)?|\.\d+)")


@dataclass(slots=True)
class Typer:
    """Infers the types of one stage's expressions, and reports what is wrong with them.

    `place` names the option or clause for messages, such as "`n`" or "`by`"; by default the stage. `upto` is the offset
    up to which a gap in the program counts as before the expression. `_around` are the aggregate functions around the
    current expression.
    """

    scope: Scope
    stage: ast.Stage
    reads: Reads
    place: str = ""
    upto: int | None = None
    _around: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.place = self.place or f"`{self.stage.word}`"

    def expect(self, expr: ast.Expr, wanted: frozenset[str] | str, what: str) -> Type:
        """The type of `expr`; "unknown", and reported, where it is not in `wanted`, which is `what` in words."""
        actual = self.type(expr)
        if fits(actual, wanted):
            return actual
        why: tuple[Label, ...] = ()
        if isinstance(expr, ast.Name) and expr.id in self.scope.params and expr.id not in self.scope.columns:
            param = self.scope.params[expr.id]
            # A parameter of a `-e` pipeline is not declared; its first use gives its type.
            word = "declared" if param.type.span != param.name_span else "taken for"
            if param.type.span != expr.span:
                why = (Label(param.type.span, f"{word} {actual}"),)
        self._wrong(expr, actual, wanted, f"{self.place} takes {what}", why)
        return "unknown"

    def _wrong(
        self,
        expr: ast.Expr,
        actual: Type,
        wanted: frozenset[str] | str,
        rule: str,
        why: tuple[Label, ...] = (),
    ) -> None:
        wanted = frozenset({wanted}) if isinstance(wanted, str) else wanted
        fix = {} if self.reads == "aggregates" else _fix(expr, actual, wanted, self.scope)
        shown = _with_article(actual)
        self.scope.error("QP209", f"{rule}, found {shown}", expr.span, f"this is {shown}", secondary=why, **fix)

    def type(self, expr: ast.Expr) -> Type:
        """The type of `expr`; "unknown" where it has an error, which is reported."""
        match expr:
            case ast.Literal(value=value):
                return "none" if value is None else type(value).__name__
            case ast.Template(parts=parts):
                for part in parts:
                    if not isinstance(part, str):
                        self._inserted(part)
                for braced in expr.braced:
                    self._warn_braced(braced)
                return "text"
            case ast.Name():
                return self._name(expr)
            case ast.Path():
                return self._path(expr)
            case ast.ListLiteral():
                return self._list(expr)
            case ast.Item():
                return self._item(expr)
            case ast.Slice():
                return self._slice(expr)
            case ast.Regex():
                message = "a regex is no value: it stands behind `stop=`, `matches`, `as` and in `extract`"
                help = 'a text is in quotes: `"…"`'
                self.scope.error("QP332", message, expr.span, "no value", help=help)
                return "unknown"
            case ast.Auto():
                message = "`auto` is no value: it stands in the place of a width, which a budget chooses"
                self.scope.error("QP143", message, expr.span, "no width")
                return "unknown"
            case ast.RecordLiteral(fields=fields):
                return record_of({field.name: self.type(field.value) for field in fields})
            case ast.Matches(subject=subject):
                if isinstance(subject, ast.Name) and self._bare(subject):
                    self._needs_aggregate(subject, Edit(expr.span, f"any({format_expr(expr)})"))
                else:
                    self._operand(subject, "text", "`matches` searches a text")
                return "bool"
            case ast.Unary(op="not", operand=operand):
                self._operand(operand, "bool", "`not` takes a bool")
                return "bool"
            case ast.Unary(operand=operand):
                return self._operand(operand, NUMBERS, "`-` takes a number")
            case ast.Binary():
                return self._binary(expr)
            case ast.Apply():
                return self._apply(expr)

    def _inserted(self, part: ast.Name | ast.Path) -> None:
        """Checks what a string puts in. Where there is no such name, the braces may have been meant as they are."""
        report = self.scope.report

        def report_with_note(found: Diagnostic) -> None:
            unknown = found.code in ("QP203", "QP204") and found.help is None
            report(replace(found, notes=(*found.notes, "a brace that is meant is written `\\{`")) if unknown else found)

        self.scope.report = report_with_note
        self.type(part)
        self.scope.report = report

    def _warn_braced(self, braced: ast.Braced) -> None:
        """Warns of braces around what reads like an expression over a name that is known here."""
        found = _EXPRESSION.fullmatch(braced.text)
        known = {*self.scope.params, *(() if self.reads == "parameters" else self.scope.columns)}
        if found is None or not any(word in known for word in (found["name"], found["argument"])):
            return
        message = f"`{{{braced.text}}}` stays as it is: between braces only a name or a path is replaced"
        taken = {*self.scope.params, *self.scope.columns}
        name = next(name for name in ("m", "value", "inserted", f"{found['name']}_") if name not in taken)
        expression = braced.text.strip()
        if ":" in expression and "(" not in expression:  # a format
            expression = f"text({found['name']})"
        method = _METHOD.fullmatch(expression)
        if method is not None and method["call"] in FUNCTIONS:
            arguments = ", ".join(filter(None, (method["of"], method["arguments"])))
            expression = f"{method['call']}({arguments})"
        help = f"work it out before: `let {name} = {expression}`, then `{{{name}}}`; a brace that is meant is `\\{{`"
        label = "no value is put in here"
        self.scope.report(Diagnostic("QP268", message, braced.span, label, help=help, severity="warning"))

    def _name(self, name: ast.Name) -> Type:
        of_rows = (
            name.id in self.scope.columns or name.id in self.scope.makers or (self.reads == "once" and self._around)
        )
        if self.reads == "parameters" or (self.reads in ("option", "once") and not of_rows):
            return self.scope.parameter(name, self.place)
        if self._bare(name):
            type_ = self.scope.columns[name.id].type
            choice = {"bool": "all", "int": "max"}.get(type_)
            self._needs_aggregate(name, Edit(name.span, f"{choice}({name.id})") if choice else None)
            return "unknown"
        numeric = (self._around and self._around[-1] in _OF_NUMBERS) or self.place in ("`by`", "`weight`")
        return self.scope.column(name, self.stage, upto=self.upto, role="score" if numeric else None)

    @property
    def _of_all(self) -> bool:
        """Whether a column stands in an aggregate alone."""
        return self.reads in ("aggregates", "once")

    def _bare(self, name: ast.Name) -> bool:
        """Whether a column stands outside of an aggregate where it needs one."""
        return self._of_all and not self._around and name.id in self.scope.columns

    def _path(self, path: ast.Path) -> Type:
        """The type of what stands at a path; a step that cannot be there is reported."""
        type_ = self._name(path.base)
        for index, step in enumerate(path.steps):
            inner = type_at(type_, step)
            if inner is None:
                before = format_expr(ast.Path(path.base, path.steps[:index], span=path.span) if index else path.base)
                self._report_step(path, before, type_, step)
                return "unknown"
            type_ = inner
        return type_

    def _report_step(self, path: ast.Path, before: str, type_: Type, step: str | int) -> None:
        shown = _with_article(type_)
        fields, fix = fields_of(type_), dict[str, Any]()
        notes: tuple[str, ...] = ()
        if isinstance(step, int):
            message = f"`{before}` is {shown}, and only a list has places"
        elif fields is None:
            message = f"`{before}` is {shown}, and only a record has fields"
            if type_ == "text":
                fix = {"help": f"`extract NAME = .{step}` reads JSON in a text"}
            elif is_list(type_):
                fix = {"help": f"say of which: `{before}[0].{step}`"}
        else:
            message = f"`{before}` has no field `{step}`"
            notes = (f"fields: {', '.join(fields)}",)
            near = closest(step, fields)
            fix = {"help": f"did you mean `{near}`?"} if near else {}
        self.scope.error("QP311", message, path.span, "nothing is there", notes=notes, **fix)

    def _list(self, expr: ast.ListLiteral) -> Type:
        types = [self.type(item) for item in expr.items]
        item = common_of(types)
        if item is None:
            first = next(type_ for type_ in types if type_ != "none")
            other, span = next(
                (type_, item.span)
                for type_, item in zip(types, expr.items, strict=True)
                if common_type(first, type_) is None
            )
            why = (Label(expr.items[types.index(first)].span, f"this is {_with_article(first)}"),)
            message = f"a list holds values of one type, found {first} and {other}"
            self.scope.error("QP312", message, span, f"this is {_with_article(other)}", secondary=why)
            return "unknown"
        return list_of(item)

    def _item(self, expr: ast.Item) -> Type:
        """The type of `list[EXPR]`."""
        whole = self.type(expr.base)
        self._operand(expr.place, "int", "a place in a list is an int")
        if is_list(whole) or whole == "unknown":
            return item_of(whole) if is_list(whole) else "unknown"
        message = f"`{format_expr(expr.base)}` is {_with_article(whole)}, and only a list has places"
        help = f"a part of a text: `{format_expr(expr.base)}[0:1]`" if whole == "text" else None
        self.scope.error("QP311", message, expr.span, "nothing is there", help=help)
        return "unknown"

    def _slice(self, expr: ast.Slice) -> Type:
        """The type of `list[a:b]` and of `text[a:b]`: that of the whole."""
        whole = self.type(expr.base)
        for place in (expr.start, expr.stop):
            if place is not None:
                self._operand(place, "int", "a place is an int")
        if is_list(whole) or whole in ("text", "unknown"):
            return whole
        message = f"`{format_expr(expr.base)}` is {_with_article(whole)}, and only lists and texts have parts"
        self.scope.error("QP311", message, expr.span, "nothing is there")
        return "unknown"

    @property
    def _for_all(self) -> str:
        return f"{self.place} {'is the same for' if self.reads == 'once' else 'looks at'} all rows"

    def _needs_aggregate(self, name: ast.Name, edit: Edit | None) -> None:
        message = f"{self._for_all}, but `{name.id}` is a column of each one"
        type_ = self.scope.columns[name.id].type
        functions = ("all", "any") if type_ == "bool" else ("min", "max", "mean")
        help = f"say over which rows: {listed(f'{function}({name.id})' for function in functions)}"
        if type_ in ("text", "unknown"):
            help = "put `any(…)` or `all(…)` around the comparison"
        self.scope.error("QP212", message, name.span, "needs an aggregate", help=help, edit=edit)

    def _operand(self, expr: ast.Expr, wanted: frozenset[str] | str, rule: str) -> Type:
        actual = self.type(expr)
        if fits(actual, wanted):
            return actual
        self._wrong(expr, actual, wanted, rule)
        return "unknown"

    def _binary(self, expr: ast.Binary) -> Type:
        if expr.op in ("and", "or"):
            self._operand(expr.left, "bool", f"`{expr.op}` takes bools")
            self._operand(expr.right, "bool", f"`{expr.op}` takes bools")
            return "bool"
        if self._bare_word(expr.left, expr.right) or self._bare_word(expr.right, expr.left):
            return "bool"
        left, right = self.type(expr.left), self.type(expr.right)
        compares = expr.op in _COMPARISONS
        if expr.op == "in":
            return self._contained(expr, left, right)
        if "unknown" in (left, right):
            return "bool" if compares else "unknown"
        if expr.op in ("==", "!="):
            same = common_type(left, right) is not None
            return "bool" if same else self._mismatch(expr, left, right)
        if {left, right} <= NUMBERS:
            return "bool" if compares else "int" if left == right == "int" and expr.op != "/" else "float"
        if left == right == "text" and (compares or expr.op == "+"):
            return "bool" if compares else "text"
        if expr.op == "+" and is_list(left) and is_list(right) and (both := common_type(left, right)) is not None:
            return both
        return self._mismatch(expr, left, right)

    def _contained(self, expr: ast.Binary, part: Type, whole: Type) -> Type:
        """The type of `x in list` and of `"part" in text`."""
        if whole not in ("text", "unknown", "none") and not is_list(whole):
            message = f"`in` looks into a list or a text, found {_with_article(whole)}"
            self.scope.error("QP209", message, expr.right.span, f"this is {_with_article(whole)}")
        elif contains_type((whole, part)) is None:
            message = f"no {whole} contains {_with_article(part)}"
            self.scope.error("QP209", message, expr.left.span, f"this is {_with_article(part)}")
        return "bool"

    def _bare_word(self, column: ast.Expr, word: ast.Expr) -> bool:
        """Reports a value of `finish` that is compared with it without quotes, as if it were a name."""
        if not (isinstance(column, ast.Name) and column.id == "finish" and isinstance(word, ast.Name)):
            return False
        if word.id not in FINISHES or word.id in self.scope.columns or word.id in self.scope.params:
            return False
        edit = Edit(word.span, f'"{word.id}"')
        message = f"`{word.id}` is a name here, and no stage makes it"
        self.scope.error("QP203", message, word.span, "unknown column", help="a text stands in quotes", edit=edit)
        return True

    def _mismatch(self, expr: ast.Binary, left: Type, right: Type) -> Type:
        what = f"apply `{expr.op}` to {left} and {right}"
        if expr.op in _COMPARISONS:
            what = f"compare {left} with {right}"
        help = None
        if expr.op == "+" and "text" in (left, right):
            other, type_ = (expr.right, right) if left == "text" else (expr.left, left)
            help = (
                f'a string puts it in: `"… {{{other.id}}}"`'
                if isinstance(other, ast.Name) and type_ in NUMBERS
                else None
            )
        self.scope.error("QP209", f"cannot {what}", expr.span, f"{left} {expr.op} {right}", help=help)
        return "unknown"

    def _apply(self, call: ast.Apply) -> Type:
        name, count = call.function, len(call.args)
        if name in ROW_FUNCTIONS:
            return self._row_function(call, ROW_FUNCTIONS[name])
        if name not in AGGREGATES:
            self._report_unknown(call)
            return "unknown"
        if name in OF_SEVERAL and count > 1:
            if call.per is not None:
                self._refuse_per(call, f"`{name}` of several values looks at one row")
            types = [self._operand(arg, NUMBERS, f"`{name}` takes numbers") for arg in call.args]
            return "unknown" if "unknown" in types else "int" if set(types) == {"int"} else "float"
        if AGGREGATES[name].takes_share and count != 2:
            self._report_count(call, "two arguments: what it is of, and a share")
            return "unknown"
        if name in _OF_NOTHING and count:
            self._report_count(call, "no argument", _OF_NOTHING[name])
            return "unknown"
        if count > 1 + AGGREGATES[name].takes_share or (not count and name not in ("count", *_OF_NOTHING)):
            several = ", or several of one row" if name in OF_SEVERAL else ""
            self._report_count(call, f"one argument{several}", _OF_ONE_ROW.get(name))
            return "unknown"
        return self._aggregate(call, AGGREGATES[name])

    def _report_unknown(self, call: ast.Apply) -> None:
        name = call.function
        near = _FUNCTION_ALIASES.get(name.lower()) or closest(name, FUNCTIONS)
        fix = meant(near, call.name_span)
        if name == "decided":
            fix = {"help": "a vote ends once it is decided by `vote COLUMN decided=0.95`"}
        notes = (f"functions: {', '.join(FUNCTIONS)}",)
        self.scope.error("QP205", f"unknown function `{name}`", call.name_span, notes=notes, **fix)
        for arg in call.args:
            self.type(arg)

    def _report_count(self, call: ast.Apply, takes: str, help: str | None = None) -> None:
        message = f"`{call.function}` takes {takes}, found {len(call.args) or 'none'}"
        self.scope.error("QP219", message, call.span, help=help)

    def _refuse_per(self, call: ast.Apply, why: str) -> None:
        assert call.per is not None
        notes = (f"aggregates: {', '.join(name for name in AGGREGATES if name != 'random')}",)
        self.scope.error("QP313", f"{why}, and takes no `per`", call.per.span, "leave it out", notes=notes)

    def _row_function(self, call: ast.Apply, function: RowFunction) -> Type:
        """The type of a call over one row."""
        name, count, most = call.function, len(call.args), len(function.takes)
        if call.per is not None:
            self._refuse_per(call, f"`{name}` looks at one row")
        if not function.least <= count <= most:
            bounds = f"{function.least}" if most == function.least else f"{function.least} or {most}"
            self._report_count(call, f"{_COUNTS.get(bounds, bounds)} argument{'' if bounds == '1' else 's'}")
            return "unknown"
        types = []
        for arg, wanted, words in zip(call.args, function.takes, function.words, strict=False):
            rule = f"`{name}` takes {words}" if arg is call.args[0] else f"`{name}` takes {words} here"
            types.append(self.type(arg) if wanted == {"unknown"} else self._operand(arg, wanted, rule))
        result = function.gives(types)
        if result is None:
            first, second = types[-2:]
            message = (
                f"`if` gives {first} or {second}" if name == "if" else f"no {first} contains {_with_article(second)}"
            )
            self.scope.error("QP209", message, call.args[-1].span, f"this is {_with_article(second)}")
            return "unknown"
        return result

    def _aggregate(self, call: ast.Apply, aggregate: Aggregate) -> Type:
        """The type of a call over all rows."""
        name = call.function
        if name == "random":
            return self._random(call)
        if self.reads == "parameters":
            message = f"{self.place} reads no rows, but `{name}` looks at all"
            notes = ("it is the same for all rows",)
            self.scope.error("QP211", message, call.span, "an aggregate", notes=notes)
            return "unknown"
        if call.per is not None:
            self._per(call.per)
        if aggregate.of_each is not None and self._of_all and not self._around:
            message = f"{self._for_all}, but `{name}` is of each one"
            help = f"put an aggregate around it, as in `max({format_expr(call)})`"
            self.scope.error("QP212", message, call.span, "of which row?", help=help)
        if not call.args:
            return "int"
        self._around = (*self._around, name)
        argument = call.args[0]
        actual = self.type(argument)
        self._around = self._around[:-1]
        for share in call.args[1:]:
            self._share(share, name)
        if aggregate.of_lists and is_list(actual) and fits(item_of(actual), aggregate.takes):
            self._check_of_list(call)
            actual = item_of(actual)
        elif aggregate.takes != {"unknown"} and not fits(actual, aggregate.takes):
            self._wrong(argument, actual, aggregate.takes, f"`{name}` takes {aggregate.words}")
            actual = "unknown"
        return aggregate.gives(actual)

    def _random(self, call: ast.Apply) -> Type:
        if call.per is not None:
            self._refuse_per(call, "`random` is of one row")
        if self.reads not in ("row", "option"):
            message = f"{self.place} is worked out once for all rows, but `random()` is drawn for each"
            help = "draw it before: `let chance = random()`"
            self.scope.error("QP212", message, call.span, "of which row?", help=help)
        return "float"

    def _check_of_list(self, call: ast.Apply) -> None:
        """Checks an aggregate of a list, which looks at one row."""
        if call.per is not None:
            self._refuse_per(call, f"`{call.function}` of a list looks at one row")
        elif self._of_all and not self._around and self._reads_columns(call):
            message = f"{self._for_all}, but `{format_expr(call)}` is of the list of each one"
            help = f"say over which rows: `max({format_expr(call)})`"
            self.scope.error("QP212", message, call.span, "of which row?", help=help)

    def _reads_columns(self, expr: ast.Expr) -> bool:
        return any(isinstance(node, ast.Name) and node.id in self.scope.columns for node in walk(expr))

    def _share(self, share: ast.Expr, name: str) -> None:
        """The second argument of an aggregate that takes one: the same for all rows."""
        place = f"the share of `{name}`"
        Typer(self.scope, self.stage, "parameters", place).expect(share, NUMBERS, "a number")
        if isinstance(share, ast.Literal) and isinstance(share.value, int | float) and not SHARES.holds(share.value):
            message = f"{place} is {SHARES}, found {share.value}"
            self.scope.error("QP301", message, share.span, "out of range")

    def _per(self, per: ast.Name) -> None:
        """The column of `mean(score per group)`."""
        if per.id in self.scope.params and per.id not in self.scope.columns:
            self.scope.error("QP203", f"`per` takes a column, but `{per.id}` is a parameter", per.span)
        elif self._bare(per):
            message = f"{self._for_all}, but `per {per.id}` looks at those that share one's value"
            help = "put an aggregate around it, as in `max(count(per answer))`"
            self.scope.error("QP212", message, per.span, "of which row?", help=help)
        else:
            self._name(per)


def _with_article(type_: Type) -> str:
    if type_ in ("none", "messages"):
        return type_
    if is_list(type_):
        return "a list" if item_of(type_) == "unknown" else f"a list of {item_of(type_)}"
    return "a record" if is_record(type_) else f"{'an' if type_ == 'int' else 'a'} {type_}"


def _fix(expr: ast.Expr, actual: Type, wanted: frozenset[str], scope: Scope) -> dict[str, Any]:
    """`help` and `edit` of a diagnostic: a value without its quotes or with them, a whole number, a comparison."""
    match expr:
        case ast.Template(parts=(str(text),)):
            if (wanted & NUMBERS and _NUMBER.fullmatch(text)) or _type_of_name(text, scope) in wanted:
                return _write(expr, text)
        case ast.Literal(value=bool()) | ast.Literal(value=None):
            return {}
        case ast.Literal(value=float(value)) if "int" in wanted and value.is_integer():
            return _write(expr, str(int(value)))
        case ast.Literal() if wanted == {"text"}:
            return _write(expr, f'"{format_expr(expr)}"')
        case ast.Binary() | ast.Apply() | ast.Name() if "int" in wanted and actual == "float":
            return _write(expr, f"int({format_expr(expr)})")
        case ast.Name(id=name) if wanted == {"text"} and actual not in ("text", "unknown", "none"):
            return _write(expr, f'"{{{name}}}"')
        case ast.Name(id=name) if actual == "text" and wanted & NUMBERS:
            call = f"{'float' if 'float' in wanted else 'int'}({name})"
            return {"help": f"`{call}` makes a number of it", "edit": Edit(expr.span, call)}
        case ast.Name(id=name) if wanted == {"bool"} and actual in NUMBERS:
            return {"help": f"compare it with a number, as in `{name} > 0`"}
        case ast.Name(id=name) if wanted == {"bool"} and actual == "text":
            return {"help": f"compare it, as in `{name} != none`, or search it: `{name} matches /…/`"}
    return {}


def _type_of_name(name: str, scope: Scope) -> Type | None:
    if name in scope.columns:
        return scope.columns[name].type
    return scope.param_type(name) if name in scope.params else None


def _write(expr: ast.Expr, text: str) -> dict[str, Any]:
    return {"help": f"write `{text}`", "edit": Edit(expr.span, text)}
