"""Well-formed programs of every construct, in any layout, made from a seed; and mutations of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_PIECE = re.compile(r'"""|"[^"\n]*"|/[^/\n]*/|\w+|\s+|\.\.|[^\w\s]')
_ODD = [
    *('"', '"""', "(", ")", "[", "]", "{", "}", "|", "/", "\\", "#", ".", "..", "==", "->", ";", "é", "“", "\0", "?"),
    *("\t", "\n", "as", "via", "into", "draft", "where", "schema", "per", "not", "and", "matches", "true", "none"),
    *(
        "1e999",
        "8.",
        '"a\\\n',
        "&&",
        "größe",
        "/a/b/",
        "{,3}",
        "-1",
        ".a[0]",
        "/a(/",
        "/a^b/",
        "\r\n",
        "branch {",
        "strategy {",
        "or",
        "auto(",
        "{}",
    ),
    *("0x" + "f" * 5000, "int(0..)", "choice(", "generate", "use", "within", "prefer", "=", ",", ":", "😀", "\u2028"),
]
_NOTES = ["# note", "#", '# a "quote" and { and /', "#: |"]


class ProgramGenerator:
    """Makes programs from a seed. Each parses; most pass the checker too."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.schemas: list[str] = []
        # Whether the program's caller names models to judge by.
        self.judges = False

    def file(self) -> str:
        """A file: declarations, then programs."""
        pick, items = self.chance, [f"model {name} = {self.model_id()}" for name in ("llm", "slm", "prm")]
        items += [
            f'use "{name}.qp"{pick.choice(["", f" as {name}"])}' for name in ("shared", "more") if pick.random() < 0.05
        ]
        for name in ("Person", "Order"):
            if pick.random() < 0.4:
                from_file = pick.random() < 0.1
                items.append(f'schema {name} from "{name}.json"' if from_file else f"schema {name} {self.record(2)}")
                self.schemas.append(name)
        items += [self.program(name) for name in ("first", "second")[: pick.randint(1, 2)]]
        return self.lead() + self.declaration_break().join(items) + pick.choice(["", "\n", "\n# end\n", "  # end"])

    # Layout

    def note(self) -> str:
        return self.chance.choice(_NOTES)

    def lead(self) -> str:
        return self.chance.choice(["", "", "\n", f"{self.note()}\n", f"\n{self.note()}\n\n{self.note()}\n", "\ufeff"])

    def declaration_break(self) -> str:
        return self.chance.choice(["\n", "\n\n", "\r\n", f"  {self.note()}\n", f"\n\n{self.note()}\n", "\n\n\n\n"])

    def stage_break(self) -> str:
        note = self.note()
        plain = ["\n", "\n", "\n  ", " | ", "|", "\n\n\n", "\n| ", " |\n", "\r\n"]
        return self.chance.choice(
            [*plain, f"  {note}\n", f"\n{note}\n", f" |  {note}\n", f"\n\n  {note}\n\n| {note}\n"]
        )

    def edge(self) -> str:
        """What stands behind an opening brace or before a closing one."""
        return self.chance.choice([" ", " ", "\n", "\n\n", f"  {self.note()}\n", f"\n{self.note()}\n"])

    def option_break(self) -> str:
        return self.chance.choice([*[" "] * 8, "\t", "\n    ", f"  {self.note()}\n ", f"\n{self.note()}\n  "])

    def gap(self) -> str:
        """What stands between two pieces in brackets."""
        return self.chance.choice([*[""] * 12, *[" "] * 4, "\n", f" {self.note()}\n", f"\n{self.note()}\n"])

    def space(self) -> str:
        return self.chance.choice(["", "", "", " "])

    def brackets(self, *items: str, opening: str = "(", closing: str = ")", comma: bool = True) -> str:
        between = f"{self.gap()},{self.gap()} "
        trailing = f"{self.gap()}," if comma and items and self.chance.random() < 0.1 else ""
        return f"{opening}{self.gap()}{between.join(items)}{trailing}{self.gap()}{closing}"

    # Declarations

    def model_id(self) -> str:
        return self.chance.choice(['"zoo/counting"', '"zoo/counting-prm"', '"a \\"b\\" \\{c} {1}"'])

    def record(self, depth: int) -> str:
        names = self.chance.sample(
            ["name", "age", "tags", "score", "draft", "text", "by", "until"], self.chance.randint(1, 4)
        )
        text = "{" + self.edge()
        for index, name in enumerate(names):
            text += self.field_break() if index else ""
            text += f"{name}{self.space()}: {self.type(depth)}{self.chance.choice(['', '', '?', ' ?'])}"
        return text + self.chance.choice(["", "", ",", "\n"]) + self.edge() + "}"

    def field_break(self) -> str:
        note = self.note()
        return self.chance.choice(["\n", "\n\n", ", ", ",\n", f"  {note}\n", f",  {note}\n", f"\n{note}\n"])

    def type(self, depth: int) -> str:
        pick = self.chance
        low, high = pick.choice(["", "-1", "0", "- 3"]), pick.choice(["4", "150"])
        kinds: list[Callable[[], str]] = [
            lambda: pick.choice(["text", "int", "float", "bool"]),
            lambda: f"int{self.brackets(f'{low}..{high}')}",
            lambda: f"float{self.brackets(f'{low or 0.5} .. ')}",
            lambda: "text" + self.brackets("max_length=40", 'format="email"', r"pattern = /[^@]+@\w+/"),
            lambda: f"text{self.brackets('min_length=1')}",
            lambda: f"choice{self.brackets(*self.words())}",
        ]
        if depth:
            nested = depth - 1
            kinds += [
                lambda: self.brackets(self.type(nested), opening="[", closing="]", comma=False),
                lambda: self.record(nested),
            ]
        return pick.choice(kinds)()

    def words(self) -> list[str]:
        return [
            f'"{word}"' for word in self.chance.sample(["yes", "no", "a b", "é", "{x", "1"], self.chance.randint(1, 3))
        ]

    def program(self, name: str) -> str:
        pick = self.chance
        width = pick.choice([str(pick.randint(1, 9))] * 8 + [self.auto()])
        parameters = [f"problem{self.space()}: text", f"n: int{self.space()}={self.space()}{width}"]
        # Records go over lines of their own, which brackets on several lines do not.
        types = [*(f"x{number}: {self.parameter_type()}" for number in range(pick.randint(0, 2))), "m: model = slm"]
        others = pick.sample(types, pick.randint(0, 1))
        self.judges = pick.random() < 0.2
        others += [f"judges{self.space()}: [model]"] if self.judges else []
        head = f"program {name}{self.space()}{self.brackets(*parameters, *others)}"
        if pick.random() < 0.5:
            result = pick.choice(["text", "text", "[text](1..3)", "{ a: text, b: [int]? }", "shared.Person"])
            head += f"{self.option_break()}-> {result}"
        clauses = ["within exact", "within loss(0.02)", "within epsilon(1e-3)", "prefer latency = 0.8", "draft slm"]
        clauses.append("like search_and_learn")
        chosen = {clause.split()[0]: clause for clause in pick.sample(clauses, pick.randint(0, 3))}
        if pick.random() < 0.2:
            amount = pick.choice(["tokens=2000", "seconds = 1.5", "cost=0.002"])
            chosen["budget"] = f"within budget{self.brackets(amount)}"
            if pick.random() < 0.5:
                share = self.brackets("0.9", *pick.choice([[], ["delta = 0.05"]]))
                limit = f"{self.option_break()}or cost{self.brackets('0.02')}"
                chosen["budget"] = f"within accuracy{share}{pick.choice(['', limit])}"
        if pick.random() < 0.1:
            chosen["deadline"] = f"within deadline{self.brackets(pick.choice(['2s', '0.5min', '500ms']))}"
        head += "".join(self.option_break() + clause for clause in chosen.values())
        stages = [
            self.chat(),
            self.generate(),
            *([self.strategy(1)] if pick.random() < 0.2 else []),
            *self.stages(2),
            f"return {pick.choice(['text', 'len(text)', 'mean(tokens)', self.record_literal(1), self.list(1)])}",
        ]
        if pick.random() < 0.6:
            stages[-1] = "best by logprob"
        return head + pick.choice([" ", "", "\n"]) + self.block(stages)

    def parameter_type(self) -> str:
        kinds = [
            "[text]",
            "[[int]](1..)",
            "messages",
            'choice("a", "b")',
            "{ a: text, b: { c: int? } }",
            "shared.Person",
        ]
        return self.chance.choice(kinds) + self.chance.choice(["", "?", " ?"])

    def block(self, stages: list[str]) -> str:
        text = "{" + self.edge() + stages[0]
        for stage in stages[1:]:
            text += self.stage_break() + stage
        return text + self.edge() + "}"

    # Stages

    def stages(self, depth: int) -> list[str]:
        return [self.stage(depth) for _ in range(self.chance.randint(1, 4))]

    def stage(self, depth: int) -> str:
        kinds: list[Callable[[], str]] = [
            self.chat, self.generate, self.generate, self.score, self.extract, self.let, self.where, self.keep,
            self.vote,
            lambda: f"prompt {self.string()}", lambda: f"say {self.text()}",
            lambda: f"split {self.chance.randint(1, 4)}",
            lambda: f"split {self.number(1)}{self.option_break()}by {self.number(1)}{self.options('temperature=0.2')}",
            lambda: f"best by {self.number(2)}{self.options('per group')}",
            lambda: f"distinct by {self.number(1)}{self.options('per group')}",
            lambda: f"order{self.option_break()}by {self.number(1)}",
            lambda: f"join all{self.space()}= {self.text()}{self.options('per group', 'sep = problem')}",
            lambda: "best by compare" + self.brackets("llm", self.string(), "both=false"),
        ]  # fmt: skip
        if depth:
            kinds += [lambda: self.repeat(depth - 1), lambda: self.branch(depth - 1), self.call]
            kinds += [lambda: self.search(depth - 1)]
            kinds += [lambda: f"peek{self.space()}{self.block(self.stages(depth - 1))}"]
            kinds += [lambda: f"ask{self.space()}{self.block(self.stages(depth - 1))}"]
            kinds += [lambda: self.if_(depth - 1), lambda: self.each(depth - 1)]
        return self.chance.choice(kinds)()

    def if_(self, depth: int) -> str:
        text = f"if {self.condition(1)} {self.block(self.stages(depth))}"
        for _ in range(self.chance.randint(0, 2)):
            head = f"{self.else_()}if {self.condition(1)} "
            text += head + self.block(self.stages(depth))
        return text + (self.else_() + self.block(self.stages(depth)) if self.chance.random() < 0.5 else "")

    def else_(self) -> str:
        return self.chance.choice([" else ", "else ", "\nelse ", "  # a\n  # b\n else "])

    def each(self, depth: int) -> str:
        if self.judges and self.chance.random() < 0.5:
            judge = f"score judge{self.brackets('judge', self.string(), '1..5')}{self.options('into quality')}"
            return f"each judge in judges {self.block([judge, *self.stages(depth)])}"
        listed = self.chance.choice([".steps[0].a", "item.a[0]", "texts", '["a", problem]'])
        return f"each item in {listed} {self.block(self.stages(depth))}"

    def options(self, *options: str, most: int = 4) -> str:
        chosen = self.chance.sample(options, self.chance.randint(0, min(most, len(options))))
        return "".join(self.option_break() + option for option in chosen)

    def chat(self) -> str:
        turns = self.chance.sample(["system", "user", "assistant", "user"], self.chance.randint(1, 3))
        return "chat" + "".join(
            f"{self.option_break()}{turn}{self.space()}={self.space()}{self.text()}" for turn in turns
        )

    def generate(self) -> str:
        target = self.chance.choice(
            [r"as /[a-z]+ (\d+)\/x/", f"as choice{self.brackets(*self.words())}", 'as grammar("a.lark")']
            + ["as bool", f"as int{self.brackets('1..5')}", "as choice(n)", "as [text](1..3)", "as { a: text }"]
            + [f"as {schema}" for schema in self.schemas]
            + [f"as {' | '.join(self.schemas)}"] * (len(self.schemas) > 1)
        )
        filters = [
            self.brackets("slm", "0.9"),
            self.brackets("slm", "0.9", "by=margin"),
            "(slm, share=0.3, rows=4, wait=0.2)",
        ]
        exits = [self.brackets("0.5"), self.brackets("0.5", "layer=2", 'head="f"'), "(certify=1)"]
        via = self.chance.choice(
            [
                f"via filter{self.chance.choice(filters)}",
                f"via contrast{self.chance.choice([self.brackets('slm'), self.brackets('slm', '0.1', 'beta=1')])}",
                f"via amortized{self.chance.choice(exits)}",
            ]
        )
        return f"generate {self.chance.choice(['llm', 'slm', 'shared.llm', self.model_id()])}" + self.options(
            f"n={self.width()}", "temperature=0.8", "top_p = 0.9", "top_k=40", "min_p=0.05", f"stop={self.string()}",
            "max_tokens=99", target, via, "draft slm", "into piece",
        )  # fmt: skip

    def score(self) -> str:
        judge, asked = f"judge{self.brackets('llm', self.string(), '1..5')}", self.brackets("llm", self.string())
        verifier = self.chance.choice(
            [
                "prm", "logprob", "json", '"zoo/counting-prm"', judge, f"judge{asked} as int(-1..5)",
                "prob" + self.brackets("llm", self.string(), '"Yes"', '"No {x}"'),
                f"equal{self.brackets('answer', self.number(2), 'by=math')}", "json(Person)",
                f"passes{self.brackets(self.string(), 'timeout=2')}",
            ]
        )  # fmt: skip
        return f"score {verifier}" + self.options(
            f"reduce={self.chance.choice(['last', 'min', 'expected'])}", f"of {self.string()}",
            f"given {self.string()}", "into quality",
        )  # fmt: skip

    def extract(self) -> str:
        pattern = self.chance.choice([r"/The answer is (-?\d+)/", ".a.b[0]", ".[2].as", "/a\\/b|c # [{}d]/", "/^x$/"])
        if self.chance.random() < 0.3:
            which, pattern = self.chance.choice(["last ", "all "]), self.chance.choice(["boxed", "/^x$/"])
            return f"extract {which}{self.chance.choice(['last', 'boxes'])}{self.space()}={self.space()}{pattern}"
        if self.chance.random() < 0.3:
            called = self.brackets(self.value(1), f"k={self.number(0)}")
            failure = self.brackets(self.string(), "timeout=2")
            pattern = self.chance.choice([f"f{called}", f"f{called}", f"failure{failure}"])
        of = self.chance.choice(["", "", f"{self.option_break()}of {self.text()}"])
        return f"extract answer{self.space()}={self.space()}{pattern}{of}"

    def let(self) -> str:
        name = self.chance.choice(["m", "item", "answer", "count"])
        return f"let {name}{self.space()}={self.space()}{self.value(2)}"

    def where(self) -> str:
        return f"where {self.condition(2)}"

    def keep(self) -> str:
        per = f"{self.option_break()}per group" if self.chance.random() < 0.4 else ""
        return f"keep {self.width()}{self.option_break()}by {self.number(2)}{per}"

    def vote(self) -> str:
        return "vote text" + self.options(
            self.chance.choice([f"weight={self.number(1)}", "decided=0.9"]), "equal=number"
        )

    def search(self, depth: int) -> str:
        method, block = self.chance.choice(["puct", "ab_mcts", "ab_mcts_m"]), self.block(self.stages(depth))
        own = {"puct": ["c=1.5", "backup=max"], "ab_mcts": ["prior=beta", "arms=ucb"], "ab_mcts_m": ["arms=thompson"]}
        options = self.options("per_round=2", "rollout=sampled", *own[method])
        head = f"search {method}{self.option_break()}by {self.number(1)} simulations=9"
        return f"{head}{options}{self.option_break()}{block}"

    def repeat(self, depth: int) -> str:
        until = f"{self.option_break()}until all{self.brackets('finished')}" if self.chance.random() < 0.6 else ""
        return f"repeat {self.chance.randint(1, 9)}{until}{self.option_break()}{self.block(self.stages(depth))}"

    def branch(self, depth: int) -> str:
        arms = [self.block(self.stages(depth)) for _ in range(self.chance.randint(1, 3))]
        return (
            "branch {"
            + self.edge()
            + self.chance.choice([" ", "\n", "\n\n", f"  {self.note()}\n"]).join(arms)
            + self.edge()
            + "}"
        )

    def strategy(self, depth: int) -> str:
        arms = [self.block(self.stages(depth)) for _ in range(self.chance.randint(2, 3))]
        word = self.chance.choice([" or ", "or", "\nor ", "\n\nor\n", f"  {self.note()}\nor  {self.note()}\n"])
        return "strategy {" + self.edge() + word.join(arms) + self.edge() + "}"

    def auto(self) -> str:
        return self.chance.choice(["auto", f"auto{self.brackets('2', '3')}"])

    def width(self) -> str:
        """A number of rows, which may be left open."""
        return self.auto() if self.chance.random() < 0.1 else self.number(1)

    def call(self) -> str:
        arguments = self.brackets("problem", f"n{self.space()}={self.space()}{self.number(1)}")
        return f"call first{arguments}" + self.options("into result")

    # Expressions

    def string(self) -> str:
        return self.chance.choice(
            [
                '"a"',
                r'"\n\n"',
                '"The {problem}: \\{x} {1}"',
                '"é 😀 # | {"',
                '"""a\n    b {problem}\n  c"""',
                '""" one """',
                '"""\n      Say\n\n        it {n}.\n      """',
                '"{ n } {item.a[0]} {n + 1} { none } \\{ n }"',
                f'"{"long words in a row " * 5}"',
            ]
        )

    def text(self) -> str:
        return self.chance.choice(["problem", self.string()])

    def number(self, depth: int) -> str:
        pick = self.chance
        if depth == 0 or pick.random() < 0.5:
            return pick.choice(["n", "4", "0.50", "1e-3", "-2", "- 1"])
        left, right = self.number(depth - 1), self.number(depth - 1)
        return pick.choice(
            [
                f"{left} {pick.choice('+-*/%')} {right}",
                self.brackets(left, comma=False),
                f"max{self.brackets(left, right)}",
                f"-{self.brackets(left, comma=False)}",
                f"{left}{pick.choice('+-*')}{right}",
                f"len{self.brackets('problem')}",
                f"{pick.choice(['mean', 'sum', 'count'])}{self.brackets(f'{left} per group', comma=False)}",
                f"{pick.choice(['count()', 'count(per text)', 'item.by', 'steps[0].b', 'item[-1]'])} - {left}",
                f"if{self.brackets('finished', left, right)}",
                f"rank{self.brackets(f'{left} per group', comma=False)} - median{self.brackets('item.a', comma=False)}",
                f"{self.list(0)}{self.brackets(left, opening='[', closing=']', comma=False)}",
                f"len{self.brackets(self.record_literal(0), left)}",
                f"sum{self.brackets(f'item[{left}:{right}]', comma=False)}",
            ]
        )

    def value(self, depth: int) -> str:
        """A value of any type: after `let` and `return`, and in lists and records."""
        pick = self.chance
        kinds: list[Callable[[], str]] = [lambda: self.number(depth), lambda: self.condition(depth), self.text]
        if depth:
            kinds += [lambda: self.list(depth - 1), lambda: self.record_literal(depth - 1)]
        return pick.choice(kinds)()

    def list(self, depth: int) -> str:
        return self.brackets(*(self.value(depth) for _ in range(self.chance.randint(0, 3))), opening="[", closing="]")

    def record_literal(self, depth: int) -> str:
        names = self.chance.sample(["a", "branch", "let", "by", "none"], self.chance.randint(1, 3))
        text = "{" + self.edge()
        for index, name in enumerate(names):
            text += self.field_break() if index else ""
            text += f"{name}{self.space()}:{self.space()}{self.value(depth)}"
        return text + self.chance.choice(["", "", ",", "\n"]) + self.edge() + "}"

    def condition(self, depth: int) -> str:
        pick = self.chance
        if depth == 0 or pick.random() < 0.4:
            return pick.choice(["finished", "true", "text matches /a|b/", f"tokens {pick.choice(['==', '<', '>='])} 4"])
        left, right = self.condition(depth - 1), self.condition(depth - 1)
        joined = f"{left} {pick.choice(['and', 'or'])} {right}"
        return pick.choice(
            [
                joined,
                f"not {left}",
                f"{self.number(0)} in {self.list(0)}",
                self.brackets(joined, comma=False),
                f"not {self.brackets(left, comma=False)}",
            ]
        )


def random_program(seed: int) -> str:
    """The well-formed program of a seed."""
    return ProgramGenerator(seed).file()


def mutated(text: str, seed: int) -> str:
    """The text with a few pieces left out, put in, replaced or doubled."""
    chance, pieces = random.Random(seed), _PIECE.findall(text)
    for _ in range(chance.randint(1, 4)):
        if not pieces:
            break
        index = chance.randrange(len(pieces))
        piece = chance.choice(_ODD) if chance.random() < 0.5 else chance.choice(pieces)
        match chance.randrange(4):
            case 0:
                del pieces[index]
            case 1:
                pieces.insert(index, piece)
            case 2:
                pieces[index] = piece
            case _:
                pieces[index:index] = pieces[index : index + chance.randint(1, 8)]
    return "".join(pieces)
