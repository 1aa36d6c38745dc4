"""Programs of every kind of stage, made from a seed; nearly all pass the checker. Plans are compared on them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

HEADER = 'model llm = "remote"\nmodel slm = "smaller"\nmodel prm = "bounded"\nmodel orm = "unbounded"\n'
# Programs to call, by their names.
_CALLED = {
    "aside": """program aside(question: text, n: int) -> text {
  chat user="Aside: {question}"
  generate llm n=n temperature=1.0 max_tokens=12 stop="."
  score prm
  extract answer = /[0-9]+/
  keep 1 by score
  return answer
}
""",
    "pasted": """program pasted(question: text, n: int) -> text {
  chat user="Pasted: {question}"
  generate llm n=n temperature=1.0 max_tokens=12
  extract answer = /is ([0-9]+)/
}
""",
    "plain": """program plain(question: text, n: int) -> text {
  let twice = n + n
  let asked = question
  return "{question}?"
}
""",
}
# The first alternative begins behind a `*`: in one piece of a text, where it may end in a later one.
_PENDING = [r"/[*][\s\S]*is|[0-9][0-9]/", r"/[*][\s\S]*b|4|7/", r"/[*] ([\s\S]*)a|[0-9]/"]
_REGEXES = [r"/[0-9]+/", r"/is ([0-9]+)/", r"/a[\s\S]*b/", r"/b|is ([0-9])/", "/zz/", *_PENDING]
_STOPS = [r'"\n\n"', '"."', '" * "', '"is "', '["is ", " * b"]', "/[0-9] */", '["answer ", /b ?a/]']


class SearchGenerator:
    """Makes one program. `numbers` and `texts` are the columns that are there, `generated` says whether rows have text.

    Half of the programs read little of what they generate, since then the rules do the most.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.numbers: list[str] = []
        self.texts: list[str] = []
        self.generated = False

    def program(self) -> str:
        """A file with the program `p`."""
        pick = self.chance
        like = " like search_and_learn" if pick.random() < 0.4 else ""
        make = pick.choice([self.any, self.any, self.quiet, self.quiet, self.closing])
        make = self.falling if self.seed % 7 == 3 else make
        body = "".join(f"  {stage}\n" for stage in ["chat user=problem", *make()])
        called = "".join(text for name, text in _CALLED.items() if f"call {name}(" in body)
        return f"{HEADER}{called}program p(problem: text, n: int = 2) -> text{like} {{\n{body}}}\n"

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
        which = pick.choice(["", "", "", "last "])
        stages += [f"extract {which}a = {pick.choice(_PENDING if begun else _REGEXES)}"]
        after = ["split 7 by 1", "keep 1 by 1 per group", "where a != none", "call aside(problem, n) into c"]
        after += ["where count(a per a) > 1", "let c = a"]
        stages += pick.sample([*after, "branch { { where a != none } { keep 1 by 1 } }"], pick.choice([0, 0, 1, 1, 2]))
        weight = " weight=s" if scored and pick.random() < 0.3 else ""
        stages.append(pick.choice([f"vote a{weight}", f"vote a{weight}", "where a != none", "vote a decided=0.8"]))
        if scored and pick.random() < 0.7:
            return [*stages, "score prm reduce=min given problem into t", 'return "{a} {s} {t}"']
        return [*stages, "return a"]

    def closing(self) -> list[str]:
        """Rows that a search may close between two scores of the same name."""
        score = "score prm given problem into s"
        stages = ["split 2", f"generate llm n=2 temperature=1.0 stop={self.chance.choice(_STOPS)}", score]
        stages += ["generate llm temperature=1.0", "keep 1 by 1 per group", score]
        return [*stages, "extract a = /[0-9]+/", self.chance.choice(["vote a weight=s", 'return "{a} {s}"'])]

    def falling(self) -> list[str]:
        """Samples that can be given up before they have ended, by a key that falls."""
        pick = self.chance
        stop = pick.choice(["", ' stop=" * "'])
        stages = [f"generate llm temperature=1.0 n={pick.choice(['4', '6', 'n'])}{stop}"]
        scorer = pick.choice(["prm reduce=min", "prm reduce=prod", "orm reduce=min"])
        stages += [f"score {scorer} given problem into s"]
        stages += pick.sample(["extract a = /[0-9]+/", "where tokens > 2", "let t = s - 0.1 * tokens"], 2)
        keys = ["s", "2 * s - 0.01 * tokens", "min(s, 0.9)", "-tokens", "exp(logprob) + s", "logprob"]
        return [*stages, f"keep {pick.choice(['1', '2', 'n'])} by {pick.choice(keys)}", "return text"]

    def end(self) -> str:
        pick = self.chance
        choices = ["best by logprob", "keep 2 by tokens", 'return "{text} {finished}"']
        if self.texts:
            column = pick.choice(self.texts)
            choices += [f"return {column}", f"vote {column}", f"vote {column} equal=number"] * 2
            choices += [f'vote {column} per group | join j = {column} sep=" " | return j']
            if "s" in self.numbers:
                choices += [f"vote {column} weight=s", f"vote {column} weight=s"]
        return pick.choice(choices)

    def stages(self, depth: int, least: int = 2) -> list[str]:
        return [stage for _ in range(self.chance.randint(least, 4)) if (stage := self.stage(depth))]

    def stage(self, depth: int) -> str:
        kinds: list[Callable[[], str]] = [
            self.generate, self.extract, self.extract, self.extract, self.score, self.score, self.where, self.keep,
            self.split, self.again, self.call, self.distinct, self.join, self.let, self.say, self.ask,
        ]  # fmt: skip
        if depth > 1:
            kinds += [lambda: self.repeat(depth - 1), lambda: self.branch(depth - 1), lambda: self.peek(depth - 1)]
            kinds += [lambda: self.search(depth - 1), lambda: self.if_(depth - 1), lambda: self.if_(depth - 1)]
            kinds += [lambda: self.each(depth - 1), self.columns_alone, self.columns_alone]
        return self.chance.choice(kinds)()

    def generate(self) -> str:
        pick = self.chance
        self.generated = True
        counts = ["1", "n", "3", "if(tokens > 4, 2, 1)", "min(count(), 3)"]
        warmths = ["0", "1.0", "1.0", "0.4 + 0.2 * group", "if(tokens > 4, 0, 1.0)"]
        options = [f"n={pick.choice(counts)}", f"temperature={pick.choice(warmths)}"]
        options += [f"stop={pick.choice(_STOPS)}"] if pick.random() < 0.6 else []
        if pick.random() < 0.2:
            dropped = ["stop_text=drop"] if "stop=" in options[-1] else []
            options += [pick.choice(["min_tokens=3", "frequency_penalty=0.1 * group", 'without=["is", "1"]', *dropped])]
        options += [f"max_tokens={pick.choice(['3', '8', '20', '3 + len(text)'])}"] if pick.random() < 0.5 else []
        if options[-1] == "max_tokens=8" and not any(option.startswith(("min", "without")) for option in options):
            options.append("via contrast(slm, 0.1 * group)")
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
        of = self.chance.choice(["", "", "", ' of "{step} 3"'])
        return f"extract {self.chance.choice(['', '', 'last '])}{column} = {self.chance.choice(_REGEXES)}{of}"

    def score(self) -> str:
        pick = self.chance
        column = pick.choice(["s", "t"])
        self.numbers = [*dict.fromkeys([*self.numbers, column])]
        verifiers = [f"prm{reduce} given problem" for reduce in ("", "", " reduce=min", " reduce=mean")]
        verifiers += ["length", 'judge(llm, "Rate.", 1..5) given problem']
        if column == "t":
            verifiers += ["orm given problem", "logprob", "logprob reduce=mean", "rank"]
            verifiers += ["logprob reduce=min", "entropy", 'likelihood(llm, "What?", text) reduce=mean']
            verifiers += ["logprob of piece"] if "piece" in self.texts and pick.random() < 0.5 else []
        return f"score {pick.choice(verifiers)} into {column}"

    def where(self) -> str:
        conditions = ["tokens > 2", "not finished", "finished", 'finish != "length"', "text matches /[0-9]/"]
        conditions += ["tokens >= mean(tokens)", "count(per group) > 1 or tokens > 4"]
        conditions += ["rank(logprob per group) < 3", "number() > 1 or tokens > 4", '"1" in text']
        conditions += [f"{column} != none" for column in self.texts]
        conditions += [f"{column} > 0.3 or {column} == none" for column in self.numbers]
        return f"where {self.chance.choice(conditions)}"

    def value(self) -> str:
        return self.chance.choice(["1", "tokens", "-tokens", "logprob", *self.numbers, *self.numbers])

    def keep(self) -> str:
        stage = self.chance.choice([f"keep {count} by" for count in (1, 2, 4, "int(count() / 2) + 1")] + ["best by"])
        return f"{stage} {self.value()}{self.per()}"

    def per(self) -> str:
        return self.chance.choice(["", "", " per group", *(f" per {column}" for column in self.texts)])

    def distinct(self) -> str:
        value = self.chance.choice(["text", "finish", self.value(), *self.texts])
        return self.chance.choice([f"distinct by {value}{self.per()}", f"order by {value}"])

    def join(self) -> str:
        value = self.chance.choice(['"{i}. {text}"', "step", "i", *self.texts])
        per = self.per()
        self.texts = [*dict.fromkeys([*self.texts, "j"])]
        return f'join j = {value} sep=" "{per}'

    def let(self) -> str:
        of_all = [f"count({self.per().strip()})", f"rank({self.value()}{self.per()})", f"number({self.per().strip()})"]
        value = f"{self.value()} + {self.chance.choice([*of_all, '[2, 0][tokens % 2]', 'max([1, tokens])'])}"
        self.numbers = [*dict.fromkeys([*self.numbers, "v"])]
        return f"let v = {value}"

    def split(self) -> str:
        shared = f"split {self.chance.choice([3, 5])} by {self.value()}{self.per()}"
        return shared if self.generated and self.chance.random() < 0.5 else "split 2"

    def again(self) -> str:
        said = f" {{{self.chance.choice(self.texts)}}}" if self.texts else ""
        return f'chat user="Again:{said}" | {self.generate()}'

    def say(self) -> str:
        said = self.chance.choice(['say "so {tokens} "', "say problem", 'chat user="More." assistant="is "'])
        return f"{said} | {self.generate()}" if self.chance.random() < 0.8 else said

    def ask(self) -> str:
        texts = self.texts
        begin, generate = self.chance.choice(['chat user="Check: {text}"', 'chat user="{problem}"']), self.generate()
        end = self.chance.choice(["best by logprob", "vote k", "keep 1 by tokens", "where k != none | best by tokens"])
        self.texts = [*dict.fromkeys([*texts, *(["piece"] if "into piece" in generate else []), "k"])]
        return f"ask {{ {begin} | {generate} | extract k = {self.chance.choice(_REGEXES)} | {end} }}"

    def call(self) -> str:
        if self.chance.random() < 0.3:
            self.texts = [*dict.fromkeys([*self.texts, "answer"])]
            return "call pasted(problem, 2)"
        self.texts = [*dict.fromkeys([*self.texts, "c"])]
        return f"call {self.chance.choice(['aside', 'aside', 'plain'])}(problem, n) into c"

    def repeat(self, depth: int) -> str:
        until = self.chance.choice(["", " until all(finished)", " until any(tokens > 12)"])
        if self.chance.random() < 0.5:
            ahead = self.chance.choice(["", "", " ahead=0", " ahead=3"])
            body = [f'generate llm n=2 temperature=1.0 stop="."{ahead}', self.score(), self.keep()]
        else:
            body = [self.generate(), *self.stages(depth, 0)]
        return f"repeat {self.chance.choice([2, 3, 0])}{until} {{ {' | '.join(body)} }}"

    def search(self, depth: int) -> str:
        pick = self.chance
        body = [self.again() if pick.random() < 0.3 else self.generate(), *self.stages(depth, 0)]
        options = f"simulations={pick.choice([1, 3, 4])} per_round={pick.choice([1, 2])}"
        if not body[0].startswith("chat"):
            options += pick.choice(["", " rollout=greedy", " rollout=sampled", " rollout=off"])
        method = pick.choice(["puct", "puct", "ab_mcts"])
        options += pick.choice(["", " backup=max"]) if method == "puct" else ""
        by = self.value()
        self.numbers = [*dict.fromkeys([*self.numbers, "value"])]
        return f"search {method} by {by} {options} {{ {' | '.join(body)} }}"

    def branch(self, depth: int) -> str:
        numbers, texts = self.numbers, self.texts
        arms = []
        made: list[tuple[list[str], list[str]]] = []
        for _ in range(2):
            self.numbers, self.texts = numbers, texts
            arms.append(" | ".join(self.stages(depth, 1) or ["where true or finished"]))
            made.append((self.numbers, self.texts))
        kind = self.chance.random()
        if kind < 0.4:
            arms[1], made[1] = arms[0], made[0]
        elif kind < 0.5:
            arms[0], made[0] = "", (numbers, texts)
        self.numbers = [*dict.fromkeys(column for own, _ in made for column in own)]
        self.texts = [*dict.fromkeys(column for _, own in made for column in own)]
        return f"branch {{ {{ {arms[0]} }} {{ {arms[1]} }} }}"

    def if_(self, depth: int) -> str:
        condition = self.where().removeprefix("where ")
        numbers, texts = self.numbers, self.texts
        blocks = [" | ".join(self.stages(depth, 1) or [self.distinct()])]
        made = [(self.numbers, self.texts)]
        if self.chance.random() < 0.6:
            self.numbers, self.texts = numbers, texts
            blocks.append(" | ".join(self.stages(depth, 1) or [self.distinct()]))
            made.append((self.numbers, self.texts))
        self.numbers = [*dict.fromkeys(column for own, _ in made for column in own)]
        self.texts = [*dict.fromkeys(column for _, own in made for column in own)]
        return f"if {condition} " + " else ".join(f"{{ {block} }}" for block in blocks)

    def each(self, depth: int) -> str:
        listed, stages = self.chance.choice([('["x", "y"]', ""), ("es", "extract all es = /[0-9a]/ | ")])
        self.texts = [*dict.fromkeys([*self.texts, "e"])]
        return f"{stages}each e in {listed} {{ {' | '.join(self.stages(depth, 1) or [self.again()])} }}"

    def peek(self, depth: int) -> str:
        inside, end = 'generate llm temperature=0 stop="." max_tokens=9', ""
        if len(self.texts) % 2:
            inside, end = "generate llm n=2 max_tokens=9", " | first"
        return f"peek {{ {inside} | {self.score()} | {self.extract()}{end} }}"

    def columns_alone(self) -> str:
        """A block that only makes columns, which nobody may read."""
        heads = ['each e in ["x", "y"]', "repeat 2", "repeat 3 until any(tokens > 12)", "peek", "ask"]
        head = self.chance.choice(heads)
        kinds = [self.let] if head == "ask" else [self.let, self.extract, self.score]
        return f"{head} {{ {' | '.join(self.chance.choice(kinds)() for _ in range(self.chance.randint(1, 2)))} }}"


# What a program looks for in texts, and what it says, in letters that take several tokens.
_SPREAD = {'"."': '"🙂"', '" * "': '" 中 "', "[*]": "[中]", "/b|is": "/é|is", "b ?a": "é ?a", "|7": "|中"}
_SPREAD |= {"[0-9]+": "[0-9中]+", '"so {tokens} "': '"é{tokens}🙂"', "max_tokens=12": "max_tokens=5"}


# What every other program leaves to chance, has by numbers of its rows, or asks itself.
_DRAWN = {r"split 3 by (\S+)": r"split 3 by \1 draw=multinomial", r"\btokens > 2\b": "random() < 0.7"}
_DRAWN |= {
    r"split 5 by (\S+)": r"split count() + 1 by \1 draw=systematic finished=share",
    "let v = ": "let v = random() + ",
}
_DRAWN |= {"keep 4 by": "keep max(1, int(count() / 2)) by", r"split 2(?= \|| \})": "split tokens % 3"}
_DRAWN |= {r">= mean\(tokens\)": ">= quantile(tokens, 0.4)", r"max\(\[1, tokens\]\)": "sort([3, tokens])[0]"}
_CALLS_ITSELF = '  call aside(step, n) into below depth=1\n  return "{answer} {below}"'
_DRAWN |= {r"(?<=keep 1 by score\n)  return answer": _CALLS_ITSELF}
_DRAWN |= {r"repeat 3 until any\b": "repeat 3 gather until any", r"repeat 2 (?=\{)": "repeat 2 gather "}


def random_search(seed: int, *, spread: bool = False) -> str:
    """The program of a seed; `spread`: for texts whose letters are spread over tokens."""
    text = SearchGenerator(seed).program()
    for part, other in _DRAWN.items() if seed % 2 else ():
        text = re.sub(part, other, text)
    for part, other in _SPREAD.items() if spread else ():
        text = text.replace(part, other)
    return text
