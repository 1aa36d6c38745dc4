"""Whether an answer follows the instructions of its row: IFEval."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
_BULLET = re.compile(r"^\s*(?:\*[^*]|-)", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*{1,2}([^\n*]+)\*{1,2}")
_PLACEHOLDER = re.compile(r"\[[^\]\n]+\]")
_TITLE = re.compile(r"<<[^\n]+>>")
_FENCE = re.compile(r"^```(?:json)?|```$", re.IGNORECASE)
_RELATIONS = {"at least": operator.ge, "less than": operator.lt}
_OPTIONS = ("my answer is yes.", "my answer is no.", "my answer is maybe.")


def follows(instruction: str, answer: str, arguments: Arguments) -> bool:
    """Whether an answer follows an instruction. An empty answer follows none. Raises KeyError for one not known."""
    return bool(answer.strip()) and CHECKS[instruction](answer, arguments)


def _relation(count: int, arguments: Arguments, bound: str, relation: str = "relation") -> bool:
    compare = _RELATIONS[arguments.get(relation) or "at least"]
    return bool(compare(count, int(arguments[bound])))


def _occurrences(word: str, text: str) -> int:
    return len(re.findall(re.escape(word), text, re.IGNORECASE))


def _has_keywords(answer: str, arguments: Arguments) -> bool:
    return all(_occurrences(word, answer) for word in arguments["keywords"])


def _has_keyword_often(answer: str, arguments: Arguments) -> bool:
    return _relation(_occurrences(arguments["keyword"], answer), arguments, "frequency")


def _has_none_of(answer: str, arguments: Arguments) -> bool:
    words = arguments["forbidden_words"]
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in words)


def _has_letter_often(answer: str, arguments: Arguments) -> bool:
    count = answer.lower().count(str(arguments["letter"]).lower())
    return _relation(count, arguments, "let_frequency", "let_relation")


def _has_words(answer: str, arguments: Arguments) -> bool:
    return _relation(len(_WORD.findall(answer)), arguments, "num_words")


def _has_sentences(answer: str, arguments: Arguments) -> bool:
    text = answer.strip()
    unended = not _SENTENCE_END.search(text[-4:])
    return _relation(len(_SENTENCE_END.findall(text)) + unended, arguments, "num_sentences")


def _paragraphs(answer: str, parting: str) -> list[str] | None:
    """The paragraphs; None where one in the middle is empty. Empty ones at the ends do not count."""
    parts = [part.strip() for part in re.split(parting, answer)]
    return None if not all(parts[1:-1]) else [part for part in parts if part]


def _has_paragraphs(answer: str, arguments: Arguments) -> bool:
    parts = _paragraphs(answer, r"\s?\*\*\*\s?")
    return parts is not None and len(parts) == int(arguments["num_paragraphs"])


def _paragraph_begins(answer: str, arguments: Arguments) -> bool:
    parts = [part.strip() for part in re.split(r"\n\n", answer) if part.strip()]
    number = int(arguments["nth_paragraph"])
    if len(parts) != int(arguments["num_paragraphs"]) or not 1 <= number <= len(parts):
        return False
    first = _WORD.search(parts[number - 1])
    return first is not None and first[0].lower() == str(arguments["first_word"]).lower()


def _has_placeholders(answer: str, arguments: Arguments) -> bool:
    return len(_PLACEHOLDER.findall(answer)) >= int(arguments["num_placeholders"])


def _has_postscript(answer: str, arguments: Arguments) -> bool:
    marker = str(arguments["postscript_marker"]).strip()
    spaced = r"\s?".join(re.escape(sign) for sign in marker if not sign.isspace())
    return re.search(rf"^\s*{spaced}", answer, re.IGNORECASE | re.MULTILINE) is not None


def _has_bullets(answer: str, arguments: Arguments) -> bool:
    return len(_BULLET.findall(answer)) == int(arguments["num_bullets"])


def _is_one_of(answer: str, arguments: Arguments) -> bool:
    return any(option in answer.lower() for option in _OPTIONS)


def _has_highlights(answer: str, arguments: Arguments) -> bool:
    return sum(bool(part.strip()) for part in _HIGHLIGHT.findall(answer)) >= int(arguments["num_highlights"])


def _has_sections(answer: str, arguments: Arguments) -> bool:
    word = re.escape(str(arguments["section_spliter"]).strip())
    return len(re.findall(rf"\s?{word}\s?\d+\s?", answer)) >= int(arguments["num_sections"])


def _is_json(answer: str, arguments: Arguments) -> bool:
    try:
        json.loads(_FENCE.sub("", _FENCE.sub("", answer.strip())).strip())
    except (ValueError, RecursionError):
        return False
    return True


def _has_title(answer: str, arguments: Arguments) -> bool:
    return any(title.strip("<>").strip() for title in _TITLE.findall(answer))


def _is_two_answers(answer: str, arguments: Arguments) -> bool:
    parts = _paragraphs(answer, r"\*{6}")
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def _repeats_prompt(answer: str, arguments: Arguments) -> bool:
    return answer.strip().lower().startswith(str(arguments["prompt_to_repeat"]).strip().lower())


def _ends_so(answer: str, arguments: Arguments) -> bool:
    return answer.strip().strip('"').lower().endswith(str(arguments["end_phrase"]).strip().lower())


def _is_quoted(answer: str, arguments: Arguments) -> bool:
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _has_capital_words(answer: str, arguments: Arguments) -> bool:
    count = sum(word.isupper() for word in re.findall(r"[\w'’-]+", answer))
    return _relation(count, arguments, "capital_frequency", "capital_relation")


CHECKS: Mapping[str, Check] = {
    "keywords:existence": _has_keywords,
    "keywords:frequency": _has_keyword_often,
    "keywords:forbidden_words": _has_none_of,
    "keywords:letter_frequency": _has_letter_often,
    "length_constraints:number_words": _has_words,
    "length_constraints:number_sentences": _has_sentences,
    "length_constraints:number_paragraphs": _has_paragraphs,
    "length_constraints:nth_paragraph_first_word": _paragraph_begins,
    "detectable_content:number_placeholders": _has_placeholders,
    "detectable_content:postscript": _has_postscript,
    "detectable_format:number_bullet_lists": _has_bullets,
    "detectable_format:constrained_response": _is_one_of,
    "detectable_format:number_highlighted_sections": _has_highlights,
    "detectable_format:multiple_sections": _has_sections,
    "detectable_format:json_format": _is_json,
    "detectable_format:title": _has_title,
    "combination:two_responses": _is_two_answers,
    "combination:repeat_prompt": _repeats_prompt,
    "startend:end_checker": _ends_so,
    "startend:quotation": _is_quoted,
    "change_case:english_capital": lambda answer, _: answer.isupper(),
    "change_case:english_lowercase": lambda answer, _: answer.islower(),
    "change_case:capital_word_frequency": _has_capital_words,
    "punctuation:no_comma": lambda answer, _: "," not in answer,
}


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
