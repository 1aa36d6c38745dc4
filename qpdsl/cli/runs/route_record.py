"""`--router` and `--record-routes`: what is told of routers at the end of a run, and the file of recorded steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from qpdsl.cli.console import say
from qpdsl.cli.file_guard import Contents, OutputFile

if TYPE_CHECKING:
    from qpdsl.session import Session


def _begins(file: BinaryIO) -> bool:
    return file.readline(256).startswith(b'{"format": "qpdsl routes')


ROUTES = Contents("the recorded steps of a router", _begins)


def tell_routers(session: Session, target: OutputFile | None, *, analyzed: bool) -> None:
    """Says what each router did, unless the analysis says it, and writes the recorded steps. Raises UsageError."""
    from qpdsl.planner.explain.router import exit_router_words, router_words
    from qpdsl.planning.router_memory import exit_router_figures, router_figures

    if not analyzed:
        for model, figures in router_figures(session).items():
            say(f"{model}: {router_words(figures)}")
        for model, exits in exit_router_figures(session).items():
            for router in exits:
                say(f"{model}: {exit_router_words(router)}")
    if target is not None:
        target.write(_lines(session))


def _lines(session: Session) -> Iterator[str]:
    """Those of a `RouteTrace`: the steps of all models, one model after the other."""
    from qpdsl.executor.engine.step.routed_head import FEATURES
    from qpdsl.executor.routing.route_trace import header, step_line

    yield header(session.routing.arms, FEATURES).rstrip()
    for trace in session.route_traces().values():
        for context, losses, arm in zip(trace.contexts, trace.losses, trace.taken, strict=True):
            yield step_line(context, losses, int(arm)).rstrip()
