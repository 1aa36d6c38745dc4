"""`qpdsl cache`: what is kept between runs, and how to be rid of it."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import format_option


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from qpdsl.session.cache_parts import PARTS

    return [CompletionItem(part.name, help=part.about) for part in PARTS if part.name.startswith(incomplete)]


@click.command()
@click.argument("parts", metavar="[PART]…", nargs=-1, shell_complete=_complete)
@click.option("--empty", is_flag=True, help="Remove the files of the parts that are named; `all` names all.")
@format_option
def command(parts: Sequence[str], empty: bool, form: str) -> Exit:
    """Show what qpdsl keeps in the user's cache folder, or remove it. Nothing there is ever required.

    Saved runs lie elsewhere (`qpdsl runs`), and models of the hub where its own library keeps them.

    \b
    qpdsl cache
    qpdsl cache --empty kernels completions
    """
    import json

    from qpdsl.errors import UsageError, unknown
    from qpdsl.planner.explain.quantities import byte_count
    from qpdsl.runs.summary import aligned
    from qpdsl.session.cache_parts import PARTS
    from qpdsl.session.user_cache import folder

    known, place = {part.name: part for part in PARTS}, folder()
    if empty and not parts:
        raise UsageError("name the parts to empty, or `all`", f"there are {', '.join(known)}")
    for name in parts:
        if name not in (*known, "all"):
            raise UsageError(unknown(name, (*known, "all"), "the cache has no part"))
    chosen = list(PARTS) if not parts or "all" in parts else [known[name] for name in dict.fromkeys(parts)]
    found = [(part, *part.measured(place)) for part in chosen]
    if empty:
        for part in chosen:
            part.empty(place)
        say(f"removed {sum(count for _, count, _ in found):,} files ({byte_count(sum(size for *_, size in found))})")
    elif form == "json":
        rows = [{"part": part.name, "files": count, "bytes": size} for part, count, size in found]
        put(json.dumps({"folder": str(place), "parts": rows}, ensure_ascii=False, indent=2))
    else:
        put(f"{place}\n")
        put("\n".join(aligned((part.name, f"{byte_count(size):>9}  {part.about}") for part, _, size in found)))
    return Exit.OK
