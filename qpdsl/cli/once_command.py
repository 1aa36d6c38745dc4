"""Commands that take the value of an option once, but for those that are repeatable."""

from __future__ import annotations

import click


class OnceCommand(click.Command):
    """A command that refuses a second value of an option, of which click would take the last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            seen = set[str | None]()
            for param in self.make_parser(ctx).parse_args(args=[*args])[2]:
                if isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count):
                    if param.name in seen:
                        ctx.fail(f"`{max(param.opts, key=len)}` is given twice")
                    seen.add(param.name)
        return super().parse_args(ctx, args)
