"""Programs of every kind of stage, made from a seed; nearly all pass the checker. Plans are compared on them."""

from __future__ import annotations

import random
from collections.abc import Callable

HEADER = 'model llm = "remote"\nmodel prm = "bounded"\nmodel orm = "unbounded"\n'
_ASIDE = """program aside(question: text, n: int) -> text {
  chat user="Aside: {question}"
  generate llm n=n temperature=1.0 max_tokens=12 stop="."
  score prm
  extract answer = /[0-9]+/
  keep 1 by score
  return answer
}
program pasted(question: text, n: int) -> text {
  chat user="Pasted: {question}"
  generate llm n=n temperature=1.0 max_tokens=12
  extract answer = /is ([0-9]+)/
}
"""
# The first alternative begins behind a `*`: in one piece of a text, where it may end in a later one.
_PENDING = [r"/[*][\s\S]*is|[0-9][0-9]/", r"/[*][\s\S]*b|4|7/", r"/[*] ([\s\S]*)a|[0-9]/"]
_REGEXES = [r"/[0-9]+/", r"/is ([0-9]+)/", r"/a[\s\S]*b/", r"/b|is ([0-9])/", "/zz/", *_PENDING]
_STOPS = [r'"\n\n"', '"."', '" * "', '"is "']


class SearchGenerator:
    """Makes one program. `numbers` and `texts` are the columns that are there, `generated` says whether rows have text.

    Half of the programs read little of what they generate, since then the rules do the most.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers: list[str] = []
        self.texts: list[str] = []
        self.generated = False

    def program(self) -> str:
        """A file with the program `p`."""
        pick = self.chance
        like = " like search_and_learn" if pick.random() < 0.4 else ""
        make = pick.choice([self.any, self.any, self.quiet, self.quiet, self.closing])
        body = "".join(f"  {stage}\n" for stage in ["chat user=problem", *make()])
        return f"{HEADER}{_ASIDE}program p(problem: text, n: int = 2) -> text{like} {{\n{body}}}\n"

    def any(self) -> list[str]:
        """Stages of all kinds."""
        stages = [self.split()] if self.chance.random() < 0.3 else []
        return [*stages, self.generate(), *self.stages(3), self.end()]

    def quiet(self) -> list[str]:
        """Stages that read a regex in the text, and little else."""
        pick = self.chance
        stages = ["split 2"] if pick.random() < 0.5 else []
        begun = pick.random() < 0.5
        if begun:
            stages.append('generate llm temperature=1.0 n=2 stop=" * "')
        options = ["temperature=0", "temperature=1.0 n=3", "temperature=1.0 n=3", "temperature=1.0 n=n max_tokens=20"]
        stages += [f"generate llm {pick.choice(options)}"]
        scored = pick.random() < 0.3
        stages += ["score prm given problem into s"] if scored else []
        stages += [f"extract a = {pick.choice(_PENDING if begun else _REGEXES)}"]
        after = ["split 7 by 1", "keep 1 by 1 per group", "where a != none", "call aside(problem, n) into c"]
        stages += pick.sample([*after, "branch { { where a != none } { keep 1 by 1 } }"], pick.choice([0, 1, 1, 2]))
        weight = " weight=s" if scored and pick.random() < 0.3 else ""
        stages.append(pick.choice([f"vote a{weight}", f"vote a{weight}", "where a != none"]))
        if scored and pick.random() < 0.7:
            return [*stages, "score prm reduce=min given problem into t", 'return "{a} {s} {t}"']
        return [*stages, "return a"]

    def closing(self) -> list[str]:
        """Rows that a search may close between two scores of the same name."""
        score = "score prm given problem into s"
        stages = ["split 2", f"generate llm n=2 temperature=1.0 stop={self.chance.choice(_STOPS)}", score]
        stages += ["generate llm temperature=1.0", "keep 1 by 1 per group", score]
        return [*stages, "extract a = /[0-9]+/", self.chance.choice(["vote a weight=s", 'return "{a} {s}"'])]

    def end(self) -> str:
        pick = self.chance
        choices = ["best by logprob", "keep 2 by tokens", 'return "{text} {finished}"']
        if self.texts:
            column = pick.choice(self.texts)
            choices += [f"return {column}", f"vote {column}", f"vote {column} equal=number"] * 2
            if "s" in self.numbers:
                choices += [f"vote {column} weight=s", f"vote {column} weight=s"]
        return pick.choice(choices)

    def stages(self, depth: int, least: int = 2) -> list[str]:
        return [stage for _ in range(self.chance.randint(least, 4)) if (stage := self.stage(depth))]

    def stage(self, depth: int) -> str:
        kinds: list[Callable[[], str]] = [
            self.generate, self.extract, self.extract, self.extract, self.score, self.score, self.where, self.keep,
            self.split, self.again, self.call,
        ]  # fmt: skip
        if depth > 1:
            kinds += [lambda: self.repeat(depth - 1), lambda: self.branch(depth - 1), lambda: self.peek(depth - 1)]
        return self.chance.choice(kinds)()

    def generate(self) -> str:
        pick = self.chance
        self.generated = True
        options = [f"n={pick.choice(['1', 'n', '3'])}", f"temperature={pick.choice(['0', '1.0', '1.0'])}"]
        options += [f"stop={pick.choice(_STOPS)}"] if pick.random() < 0.6 else []
        options += [f"max_tokens={pick.choice([3, 8, 20])}"] if pick.random() < 0.5 else []
        into = ""
        if pick.random() < 0.2:
            into = " into piece"
            self.texts = [*dict.fromkeys([*self.texts, "piece"])]
        if pick.random() < 0.1:
            return f'generate llm n=2 as choice("a", "12", "is 7"){into}'
        return f"generate llm {' '.join(options)}{into}"

    def extract(self) -> str:
        column = self.chance.choice(["a", "b"])
        self.texts = [*dict.fromkeys([*self.texts, column])]
        return f"extract {column} = {self.chance.choice(_REGEXES)}"

    def score(self) -> str:
        pick = self.chance
        column = pick.choice(["s", "t"])
        self.numbers = [*dict.fromkeys([*self.numbers, column])]
        verifiers = [f"prm{reduce} given problem" for reduce in ("", "", " reduce=min", " reduce=mean")]
        verifiers += ["length", 'judge(llm, "Rate.", 1..5) given problem']
        if column == "t":
            verifiers += ["orm given problem", "logprob", "logprob reduce=mean", "rank"]
        return f"score {pick.choice(verifiers)} into {column}"

    def where(self) -> str:
        conditions = ["tokens > 2", "not finished", "finished", 'finish != "length"', "text matches /[0-9]/"]
        conditions += [f"{column} != none" for column in self.texts]
        conditions += [f"{column} > 0.3 or {column} == none" for column in self.numbers]
        return f"where {self.chance.choice(conditions)}"

    def value(self) -> str:
        return self.chance.choice(["1", "tokens", "-tokens", "logprob", *self.numbers, *self.numbers])

    def keep(self) -> str:
        per = self.chance.choice(["", "", " per group", *(f" per {column}" for column in self.texts)])
        return f"keep {self.chance.choice([1, 2, 4])} by {self.value()}{per}"

    def split(self) -> str:
        shared = f"split {self.chance.choice([3, 5])} by {self.value()}"
        return shared if self.generated and self.chance.random() < 0.5 else "split 2"

    def again(self) -> str:
        said = f" {{{self.chance.choice(self.texts)}}}" if self.texts else ""
        return f'chat user="Again:{said}" | {self.generate()}'

    def call(self) -> str:
        if self.chance.random() < 0.3:
            self.texts = [*dict.fromkeys([*self.texts, "answer"])]
            return "call pasted(problem, 2)"
        self.texts = [*dict.fromkeys([*self.texts, "c"])]
        return "call aside(problem, n) into c"

    def repeat(self, depth: int) -> str:
        until = self.chance.choice(["", " until all(finished)", " until any(tokens > 12)"])
        if self.chance.random() < 0.5:
            body = ['generate llm n=2 temperature=1.0 stop="."', self.score(), self.keep()]
        else:
            body = [self.generate(), *self.stages(depth, 0)]
        return f"repeat {self.chance.choice([2, 3])}{until} {{ {' | '.join(body)} }}"

    def branch(self, depth: int) -> str:
        numbers, texts = self.numbers, self.texts
        arms = []
        made: list[tuple[list[str], list[str]]] = []
        for _ in range(2):
            self.numbers, self.texts = numbers, texts
            arms.append(" | ".join(self.stages(depth, 1) or ["where true or finished"]))
            made.append((self.numbers, self.texts))
        if self.chance.random() < 0.4:
            arms[1], made[1] = arms[0], made[0]
        self.numbers = [*dict.fromkeys(column for own, _ in made for column in own)]
        self.texts = [*dict.fromkeys(column for _, own in made for column in own)]
        return f"branch {{ {{ {arms[0]} }} {{ {arms[1]} }} }}"

    def peek(self, depth: int) -> str:
        inside = 'generate llm temperature=0 stop="." max_tokens=9'
        return f"peek {{ {inside} | {self.score()} | {self.extract()} }}"


def random_search(seed: int) -> str:
    """The program of a seed."""
    return SearchGenerator(seed).program()
