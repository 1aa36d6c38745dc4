"""What `deploy/` names is there: commands with their options, metrics, files. Docker itself is not run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra `serve`")

from qpdsl.cli.commands.serve import command
from qpdsl.serve.http.server_figures import ServerFigures

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("text", [DOCKERFILE, COMPOSE], ids=["Dockerfile", "compose"])
def test_the_server_takes_its_command_line(text: str) -> None:
    (line,) = re.findall(r"(?:^CMD|command:) (\[.*\])$", text, re.MULTILINE)
    name, *arguments = json.loads(line)
    assert name == "serve"
    with command.make_context(name, arguments) as context:
        assert context.params["host"] == "0.0.0.0"


def test_the_board_shows_metrics_that_there_are() -> None:
    board = json.loads((DEPLOY / "grafana" / "qpdsl.json").read_text())
    wanted = {
        name for panel in board["panels"] for own in panel["targets"] for name in re.findall(r"qpdsl_\w+", own["expr"])
    }
    figures = ServerFigures(lambda: 0, lambda: 0)
    told = set(re.findall(r"^# TYPE (\w+)", figures.text().decode(), re.MULTILINE))
    assert {re.sub(r"_bucket$", "", name) for name in wanted} <= told


def test_files_and_extras_are_there() -> None:
    for place in re.findall(r"\./([\w./-]+):/", COMPOSE):
        assert (DEPLOY / place).is_file(), place
    assert (DEPLOY.parent / re.findall(r"dockerfile: (\S+)", COMPOSE)[0]).is_file()
    pyproject = (DEPLOY.parent / "pyproject.toml").read_text()
    (extras,) = re.findall(r"'\.\[(.*)\]'", DOCKERFILE)
    assert all(f"\n{extra} = [" in pyproject for extra in extras.split(","))
    health = shlex.split(DOCKERFILE.split("HEALTHCHECK", 1)[1].splitlines()[0])
    assert any("/healthz" in word for word in health)
