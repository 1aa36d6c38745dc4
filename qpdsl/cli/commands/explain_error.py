"""`qpdsl explain-error`: what a code of a diagnostic means, and how to mend it."""

from __future__ import annotations

import click

from qpdsl.cli.console import put
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_codes
from qpdsl.cli.shared_options import format_option


@click.command("explain-error")
@click.argument("code", metavar="[CODE]", required=False, shell_complete=complete_codes)
@format_option
def command(code: str | None, form: str) -> Exit:
    """Say what an error's CODE (such as QP203) means and why, with an example that fails and one that is right.

    Without a CODE all of them are listed.
    """
    from qpdsl.grammar.codes import CODES, RETIRED

    if code is None:
        _list(form)
        return Exit.OK
    name = code.upper()
    if name in RETIRED:
        from qpdsl.errors import UsageError

        raise UsageError(f"`{name}` is no longer given; it meant: {RETIRED[name]}")
    if name not in CODES:
        from qpdsl.errors import UsageError, shorten
        from qpdsl.grammar.suggest import closest

        by_number = f"QP{''.join(filter(str.isdecimal, name))[:3]}"
        near = by_number if by_number in CODES else closest(name, CODES)
        meant = f"; did you mean `{near}`?" if near else ""
        raise UsageError(f"there is no code `{shorten(code)}`{meant}", "`qpdsl explain-error` lists the codes")
    _show(name, form)
    return Exit.OK


def _list(form: str) -> None:
    from qpdsl.grammar.codes import CODES
    from qpdsl.planner.values.value import dumps

    if form == "json":
        put(dumps([{"code": n, "title": c.title, "summary": c.summary} for n, c in CODES.items()]))
    else:
        put("\n".join(f"{name}  {code.title}" for name, code in CODES.items()))


def _show(name: str, form: str) -> None:
    from qpdsl.grammar.codes import CODES
    from qpdsl.planner.values.value import dumps

    explanation = CODES[name]
    if form == "json":
        keys = ("code", "title", "summary", "body", "fails", "fixed")
        put(dumps({**{key: getattr(explanation, key) for key in keys}, "files": dict(explanation.files)}))
    else:
        put(f"{name}: {explanation.title}\n\n{explanation.summary}\n\n{explanation.text}")
