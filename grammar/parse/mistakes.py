"""Known mistakes of syntax: habits from other languages, and words left out.

Each has a function that takes a failure and returns the diagnostic if it is that mistake, else None. `_MISTAKES`
holds them in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable

from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.diagnostic import Diagnostic, Edit
from qpdsl.grammar.literals import regex
from qpdsl.grammar.parse.failure import ParseFailure
from qpdsl.grammar.parse.tokens import Token
from qpdsl.grammar.source import Span

_COMPARISON_SIGNS = frozenset({"==", "!=", "<", "<=", ">", ">="})
# What begins a comment elsewhere.
_COMMENTS = ("//", "/*", "--")


def known_mistake(failure: ParseFailure) -> Diagnostic | None:
    """The diagnostic of the mistake that a failure is, None where it is none that is known."""
    if failure.token is None or failure.statement is None:
        return None
    for mistake in _MISTAKES:
        diagnostic = mistake(failure, failure.token)
        if diagnostic is not None:
            return diagnostic
    return None


def _options_first(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`generate n=4`: the model is left out."""
    word, earlier = failure.word, failure.earlier
    if token.text != "=" or word not in ("generate", "score") or len(earlier) != 2:
        return None
    first = STAGES[word].first
    message = f"expected {first} before the options"
    return Diagnostic("QP109", message, earlier[1].span, first, notes=failure.usage)


def _missing_value(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`n= top_k=4`."""
    earlier = failure.earlier
    if token.text != "=" or "EQ" not in failure.expected or len(earlier) < 3 or earlier[-2].text != "=":
        return None
    span = Span(earlier[-2].end, earlier[-2].end)
    message = f"option `{earlier[-3].text}` has no value"
    return Diagnostic("QP109", message, span, "expected an expression", notes=failure.usage)


def _single_equals(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`until a = b`: a `=` behind a whole expression."""
    if token.text != "=" or "EQ" not in failure.expected:
        return None
    texts = [earlier.text for earlier in failure.earlier]
    compares = not {"until", "by", "return", "if"}.isdisjoint(texts) or texts.count("(") > texts.count(")")
    mended = compares and failure.word in STAGES
    return Diagnostic(
        "QP109",
        "`=` sets an option and compares nothing",
        token.span,
        notes=failure.usage,
        help="write `==`" if mended else None,
        edit=Edit(token.span, "==") if mended else None,
    )


def _double_equals(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`n==4`: an `=` was expected, and the first of the two was taken for it."""
    if token.text != "==" or failure.offset != token.start + 1:
        return None
    edit = Edit(token.span, "=")
    return Diagnostic("QP109", "`==` compares and sets no option", token.span, help="write `=`", edit=edit)


def _stage_on_the_line(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`chat user=x generate llm`: two stages with nothing between them."""
    word = failure.before
    if word is None or word.text not in STAGES or failure.expected != {"EQUAL"} or failure.word not in STAGES:
        return None
    message = f"expected a newline or `|` before the stage `{word.text}`"
    edit = Edit(Span(word.start, word.start), "| ")
    return Diagnostic("QP109", message, word.span, help="begin a new stage", edit=edit)


def _chained_comparison(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`a < b < c`."""
    ends = not failure.expected.isdisjoint({"_SEP", "RPAR"})
    compared = any(earlier.text in _COMPARISON_SIGNS for earlier in failure.earlier)
    if token.text not in _COMPARISON_SIGNS or not ends or not compared:
        return None
    help = "join two comparisons with `and`"
    return Diagnostic("QP109", "comparisons do not chain", token.span, notes=failure.usage, help=help)


def _foreign_comment(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`// why`."""
    if failure.earlier or not "".join(token.text for token in failure.tokens[:2]).startswith(_COMMENTS):
        return None
    return Diagnostic("QP109", "nothing begins like this here", token.span, help="a comment begins with `#`")


def _string_for_regex(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`extract x = "a"`."""
    if token.kind != "string" or "REGEX" not in failure.expected:
        return None
    message, bare = "expected a `/regex/`, found a string", token.text.strip('"')
    sound = not {"/", "\n"} & set(bare) and regex.check(bare, 0) is None
    edit = Edit(token.span, f"/{bare}/") if sound else None
    help = "a regex stands between slashes"
    return Diagnostic("QP109", message, token.span, notes=failure.usage, help=help, edit=edit)


def _raw_string(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`extract x = r"a"`."""
    before = failure.before
    if token.kind != "string" or before is None or before.text != "r" or before.end != token.start:
        return None
    help = "a regex stands between slashes, as in `/\\d+/`"
    return Diagnostic("QP109", "there are no raw strings", before.span, notes=failure.usage, help=help)


def _regex_flags(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`extract x = /a/i`."""
    before, flags = failure.before, token.text
    if before is None or before.kind != "regex" or before.end != token.start or not set(flags) <= set("gims"):
        return None
    if "g" in flags:
        help, edit = "`extract all NAME = …` takes every match", None
    else:
        help, edit = f"write `/(?{flags})…/`", Edit(Span(before.start, token.end), f"/(?{flags}){before.text[1:]}")
    return Diagnostic("QP109", "no flags stand behind a regex", token.span, notes=failure.usage, help=help, edit=edit)


def _comma_between_options(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`generate llm n=4, top_k=2`."""
    word = failure.word
    if token.text != "," or word not in STAGES or word == "return" or "_SEP" not in failure.expected:
        return None
    after = failure.tokens[len(failure.earlier) + 1 :]
    if len(after) < 2 or after[1].text != "=":
        return None
    edit = Edit(token.span, "")
    return Diagnostic("QP109", "options are parted by spaces", token.span, help="leave the comma out", edit=edit)


def _several_verifiers(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`score prm, logprob`."""
    if token.text != "," or failure.word != "score" or len(failure.earlier) != 2 or failure.before is None:
        return None
    message, first = "a `score` asks one verifier", failure.before.text
    help = f"ask each in a stage of its own, as in `score {first} into a`, and add the columns up"
    return Diagnostic("QP109", message, token.span, "another one", notes=failure.usage, help=help)


def _per_behind(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`let share = count(answer) per answer`."""
    if token.text != "per" or failure.before is None or failure.before.text != ")":
        return None
    message = "the `per` of an aggregate stands inside its parentheses"
    help = "write it there, as in `count(per answer)` or `mean(score per group)`"
    return Diagnostic("QP109", message, token.span, "too late", notes=failure.usage, help=help)


def _score_as_value(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`where score prm > 0.5`."""
    if failure.before is None or failure.before.text != "score" or failure.word == "score" or token.kind != "word":
        return None
    message, help = (
        "`score` is a stage, and no part of an expression",
        f"write `score {token.text}` before it, then `score`",
    )
    return Diagnostic("QP109", message, token.span, notes=failure.usage, help=help)


def _list_in_brackets(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`tags: list[text]`."""
    if token.text != "[" or failure.before is None or failure.before.text.lower() != "list":
        return None
    span = Span(failure.before.start, failure.before.end)
    return Diagnostic("QP109", "a type has no brackets behind it", span, notes=failure.usage, help="a list is `[text]`")


def _method_with_arguments(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`search puct(c=1.4) { … }`."""
    if token.text != "(" or failure.word != "search" or len(failure.earlier) != 2:
        return None
    message, help = "a search has options, and no arguments", "write `search puct by score simulations=64 c=1.4 { … }`"
    return Diagnostic("QP109", message, token.span, "no arguments here", notes=failure.usage, help=help)


def _bare_prompt(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`prompt problem`."""
    if failure.word != "prompt" or len(failure.earlier) != 1 or token.kind != "word":
        return None
    edit = Edit(token.span, f'"{{{token.text}}}"')
    message = f"expected a string, found `{token.text}`"
    return Diagnostic("QP109", message, token.span, help="put the name into a string", edit=edit)


def _name_in_braces(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`chat user={problem}`."""
    before = failure.earlier[-3:]
    if token.text != "}" or [one.text for one in before[:2]] != ["=", "{"] or before[2].kind != "word":
        return None
    name, span = before[2].text, Span(before[1].start, token.end)
    message = "braces around a name are for strings; here they begin a record"
    help = f'write `{name}`, or in a string `"{{{name}}}"`'
    return Diagnostic("QP109", message, span, notes=failure.usage, help=help, edit=Edit(span, name))


def _dashed_option(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`top-p=0.9`."""
    parts = [failure.before, *failure.tokens[len(failure.earlier) :][:3]]
    if token.text != "-" or failure.before is None or len(parts) < 4 or parts[3].text != "=":  # type: ignore[union-attr]
        return None
    span = Span(failure.before.start, parts[2].end)  # type: ignore[union-attr]
    name = f"{failure.before.text}_{parts[2].text}"  # type: ignore[union-attr]
    help, edit = f"write `{name}`", Edit(span, name)
    return Diagnostic("QP109", "options are named with `_`", span, notes=failure.usage, help=help, edit=edit)


def _vote_by(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`vote answer by score`."""
    after = failure.tokens[len(failure.earlier) + 1 :]
    if failure.word != "vote" or token.text != "by" or not after:
        return None
    span = Span(token.start, after[0].start)
    help, edit = f"the weight of a vote is `weight={after[0].text}`", Edit(span, "weight=")
    return Diagnostic("QP109", "a `vote` has no `by`", token.span, notes=failure.usage, help=help, edit=edit)


def _search_without_by(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`search puct simulations=16 { … }`."""
    if failure.word != "search" or failure.expected != {"_BY"} or len(failure.earlier) != 2:
        return None
    message, span = "a `search` says by which value its rows are chosen", failure.span
    help, edit = "write `by score`, or another number of the row", Edit(Span(span.start, span.start), "by score ")
    return Diagnostic("QP109", message, span, "expected `by`", notes=failure.usage, help=help, edit=edit)


def _regex_for_expression(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`where /a/`."""
    if token.kind != "regex" or "NUMBER" not in failure.expected:
        return None
    help = "a column from a regex is made by `extract NAME = /…/`" if failure.word != "extract" else None
    message = "expected an expression, found a regex"
    return Diagnostic("QP109", message, token.span, notes=failure.usage, help=help)


def _ternary(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`let k = n > 3 ? 1 : 2`."""
    if token.text != "?" or "PLUS" not in failure.expected or failure.word not in STAGES:
        return None
    message, help = "there is no operator `? :`", "write `if(CONDITION, VALUE, OTHER)`"
    return Diagnostic("QP109", message, token.span, notes=failure.usage, help=help)


def _direction(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`order by score desc`, `keep 2 by score limit 2`."""
    if failure.word not in ("order", "keep", "best") or "_SEP" not in failure.expected:
        return None
    if token.text.lower() in ("asc", "desc", "ascending", "descending"):
        help = "the greatest value comes first; `-x` turns the order round"
        return Diagnostic("QP109", f"`{failure.word}` takes no direction", token.span, notes=failure.usage, help=help)
    if token.text.lower() == "limit":
        message, help = "there is no `limit`", "`keep K by …` keeps so many rows"
        return Diagnostic("QP109", message, token.span, notes=failure.usage, help=help)
    return None


def _several_results(failure: ParseFailure, token: Token) -> Diagnostic | None:
    """`return text, tokens`, `-> text, int` and the same in parentheses."""
    texts = [earlier.text for earlier in failure.earlier]
    if failure.word == "return" and token.text == "," and not failure.expected.isdisjoint({"_SEP", "RPAR"}):
        form = "return { NAME: EXPR, … }"
    elif failure.word == "program" and "->" in texts and (token.text == "," or texts[-1] + token.text == "->("):
        form = "-> { NAME: TYPE, … }"
    else:
        return None
    return Diagnostic("QP109", "a program has one result", token.span, help=f"several values are a record: `{form}`")


_MISTAKES: tuple[Callable[[ParseFailure, Token], Diagnostic | None], ...] = (
    _options_first,
    _missing_value,
    _single_equals,
    _double_equals,
    _stage_on_the_line,
    _chained_comparison,
    _foreign_comment,
    _raw_string,
    _regex_flags,
    _string_for_regex,
    _comma_between_options,
    _several_verifiers,
    _per_behind,
    _method_with_arguments,
    _bare_prompt,
    _name_in_braces,
    _dashed_option,
    _vote_by,
    _search_without_by,
    _regex_for_expression,
    _ternary,
    _direction,
    _several_results,
    _score_as_value,
    _list_in_brackets,
)
