"""A server on a free port with a few programs, one for all tests that change nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.serving.served_programs import PROGRAMS

if TYPE_CHECKING:
    from tests.support.serving.running_server import Running


@pytest.fixture(scope="package")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("served") / "mine.qp"
    file.write_text(PROGRAMS)
    return file


@pytest.fixture(scope="package")
def server(programs: Path) -> Iterator[Running]:
    from qpdsl.serve.http.routes import Limits
    from tests.support.serving.running_server import running

    targets = ["beam_search", "greedy", "constrained_json", str(programs), "self_consistency"]
    with running(targets, fixed=["depth=20"], defaults=["width=2"], limits=Limits(quiet=0.05, orders=True)) as server:
        yield server
