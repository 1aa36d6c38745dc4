"""Options that are given once."""

from __future__ import annotations

import click


def refuse_twice(parent: click.Context, name: str | None, command: click.Command | None, args: list[str]) -> None:
    """Refuses a second value of an option that is not repeatable, of which click would take the last."""
    if command is None or isinstance(command, click.Group) or parent.resilient_parsing:
        return
    ctx = click.Context(command, parent, name)
    seen = set[str | None]()
    for param in command.make_parser(ctx).parse_args(args=[*args])[2]:
        if isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count):
            if param.name in seen:
                ctx.fail(f"`{max(param.opts, key=len)}` is given twice")
            seen.add(param.name)
