"""The answer that a text comes to: what it boxes, or what it calls its answer.

Two texts that say one answer in other words are to give one value, as values vote: a number loses the signs around it,
its thousands separators, its unit and what a reason adds to it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Literal

# Which rule found an answer.
Found = Literal["boxed", "stated", "marked"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*(?P<open>\{)|[ \t]+(?P<bare>[^\s${}][^\n${}]{0,200})\$)")
# A sign behind a backslash, which pairs with nothing, or a brace.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_MARKDOWN = re.compile(
    r"\*\*|`|^[ \t]*(?:#{1,6}|>|[-*])[ \t]+|(?<!\w)(?P<sign>[*_]{1,2})(?=\S)(?P<said>[^*_\n]*)(?P=sign)",
    re.MULTILINE,
)
_LINE = re.compile(r"[^\n]*")
_NEXT_LINE = re.compile(r"\s*([^\n]*)")
_STATED = re.compile(
    r"\banswers?(?:[ \t]+(?:to|of|for)[ \t][^\n:.?!]{1,200}?)?[ \t]*(?:[:=]|\b(?:is|are)\b[ \t]*(?::|(?P<said>)))",
    re.IGNORECASE,
)
# A line as those that end the solutions of GSM8K: no heading, as it has a number alone.
_MARKED = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]{0,40}?)[ \t]*$", re.MULTILINE)
# What is said of an answer, and is none.
_ABOUT = re.compile(
    r"(?:not|correct|incorrect|right|wrong|reasonable|verified|found|given|obtained|as follows|in the form)\b",
    re.IGNORECASE,
)
# What follows "is" in a sentence that states no value: a clause, or more than twelve words; and in one that breaks off.
_CLAUSE = re.compile(
    r"(?:to|that|by|because|when|if|whether|how|what|why)\b"
    r"|(?=[a-z])(?:(?!(?:because|since|as|which)\s)[^\s.!?,;:]+[ \t]+){12}"
)
_BROKEN = re.compile(r"(?:the|an)$|[a-z]{2,}\s+[a-z]{2,}")
# Where the sentence ends that states an answer, or begins to give its reason.
_END = re.compile(r"[.!?](?=\s|$)|(?<=\S)\s+(?:because|since|as|which)\s|I hope it is correct")
_REASON = re.compile(r"[,;]\s+(?=[^\W\d])")
_MATHS = re.compile(r"\$\$?(?=\S)(?P<dollar>[^$]*[^\s$])\$\$?(?!\d)|\\\((?P<round>.*?)\\\)|\\\[(?P<square>.*?)\\\]")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_NUMBER = re.compile(
    r"""
    (?P<minus>[-−–]?) \s* (?:\\?[$€£¥₹]\s*)? (?P<inner>[-−]?)
    (?P<whole>\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+ | \d+)? (?P<part>\.\d+)?
    (?: \s*\\?% | \s*\^?\s*\\circ\b | (?:\\[ ,]|[ ~]) (?![ ]*[a-zA-Z]{0,2}$) [^\d+*/=^<>\\{}]* )?
    [.,;]?
    """,
    re.VERBOSE,
)
_LETTER = re.compile(r"[(\[]?([A-Z])[)\]]?\.?")


def boxed(text: str) -> Iterator[str]:
    """What stands in each `\\boxed{…}` or `\\fbox{…}`, braces inside paired, or in `\\boxed …` before a dollar sign.

    Nothing of a box that does not end.
    """
    ends = _closing_braces(text)
    position = 0
    while (box := _BOX.search(text, position)) is not None:
        if box["open"] is None:
            position = box.end()
            yield box["bare"].strip()
            continue
        end = ends.get(box.end())
        position = box.end() if end is None else end
        if end is not None:
            yield text[box.end() : end]


def final_answer(text: str) -> tuple[str, Found] | None:
    """The answer that a text comes to, and which rule found it; None where the text has none.

    - `boxed`: what stands in the last closed box that is not empty.
    - `stated`: else what follows the last "answer is" or "answer:", to the end of the sentence or of the line; of the
      next line where that one ends there. Markdown and dollar signs count for nothing. A clause states none ("the
      answer is to add"), nor do more than twelve words, nor words that the text breaks off in.
    - `marked`: else the number that stands alone on the last line behind GSM8K's `####`.

    A text without any of these has no answer here: its last number is whatever it ended with.
    """
    box = next(iter(deque((own for own in boxed(text) if own.strip()), maxlen=1)), None)
    if box is not None:
        return _plain(box.strip()), "boxed"
    shown = _MARKDOWN.sub(lambda sign: sign["said"] or "", text)
    marks = [*_STATED.finditer(shown)]
    for mark in reversed(marks):
        if mark["said"] is not None and _CLAUSE.match(shown, mark.end()) is not None:
            continue
        said = _lines(shown, mark.end())
        if mark["said"] is not None and mark is marks[-1] and _breaks_off(shown, said):
            continue
        if said and _ABOUT.match(said) is None and (answer := _stated(said)):
            return answer, "stated"
    numbers = (_number(line[1]) for line in reversed([*_MARKED.finditer(text)]))
    return next(((number, "marked") for number in numbers if number is not None), None)


def _lines(text: str, begin: int) -> str:
    """What stands on the line from there on; if that is nothing, the next line that has something."""
    line, later = _LINE.match(text, begin), _NEXT_LINE.match(text, begin)
    assert line is not None and later is not None
    return line[0].strip(" \t*_:") or later[1].strip()


def _stated(said: str) -> str:
    """The answer at the beginning of what follows the words that announce it."""
    if (maths := _MATHS.match(said)) is not None:
        return _plain(next(part for part in maths.groups() if part is not None).strip())
    end = _END.search(said)
    head = (said if end is None else said[: end.start()]).rstrip(" ,;")
    first = _REASON.split(head, maxsplit=1)[0]
    return _plain((first if _number(first) is not None else head).strip())


def _breaks_off(text: str, said: str) -> bool:
    """Whether the text ends with what is said, in the middle of a sentence."""
    ends = text.rstrip(" \t\n*_:").endswith(said) and _END.search(said) is None
    return ends and _BROKEN.match(said) is not None


def _plain(answer: str) -> str:
    """An answer as another text might have it too."""
    answer = answer.strip().strip("$").strip()
    bare = _WORDS.sub(r"\1", answer).strip().strip('"“”').strip()
    # A unit in LaTeX's words; an equation, which says what it ends in.
    for said in (bare, _WORDS.sub("", answer).strip(), bare.rpartition("=")[2].strip()):
        if (number := _number(said)) is not None:
            return number
    letter = _LETTER.fullmatch(bare)
    return letter[1] if letter is not None else bare.rstrip(".").rstrip()


def _number(text: str) -> str | None:
    """The number that a text is, apart from currency and unit; None where it is none."""
    found = _NUMBER.fullmatch(text)
    if found is None or not (found["whole"] or found["part"]):
        return None
    whole = re.sub(r"\D", "", found["whole"] or "").lstrip("0") or "0"
    minus = "-" if found["minus"] or found["inner"] else ""
    return f"{minus}{whole}{found['part'] or ''}"


def _closing_braces(text: str) -> dict[int, int]:
    """The place of each brace that closes another, by the place behind that one."""
    open_braces: list[int] = []
    ends: dict[int, int] = {}
    for sign in _BRACE.finditer(text):
        if sign[0] == "{":
            open_braces.append(sign.end())
        elif sign[0] == "}" and open_braces:
            ends[open_braces.pop()] = sign.start()
    return ends
