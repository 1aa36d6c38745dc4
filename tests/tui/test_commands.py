"""The command lines: traces written and read, reports, what is refused, and the dashboard on a real terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from qpdsl.cli.exits import Exit
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run, write_rows
from tests.support.paths import ROOT
from tests.support.saved_runs import rows_of_last
from tests.support.tui.read_page import Page
from tests.support.tui.traces import BEAM

PATIENCE = 90


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))


def test_a_run_writes_its_trace_and_its_tokens_are_the_same(qpdsl: Run, problems: Path, tmp_path: Path) -> None:
    args = ("run", "beam_search", "--input", problems, "--concurrency", "4")
    plain = qpdsl(*args)
    traced = qpdsl(*args, "--trace", tmp_path / "trace.jsonl")
    assert traced.out == plain.out and traced.code == plain.code
    kinds = [json.loads(line).get("kind") for line in (tmp_path / "trace.jsonl").read_text("utf-8").splitlines()]
    assert kinds[:3] == [None, "ProcessStarted", "Preparing"] and kinds[-1] == "RunEnded"
    assert kinds.index("Preparing") < kinds.index("RunStarted") < kinds.index("ModelsLoaded") < kinds.index("RowDone")
    assert kinds.count("RowDone") == 10 and {"Expanded", "Valued", "Selected", "EngineStepped"} <= set(kinds)
    report = qpdsl("report", tmp_path / "trace.jsonl")
    assert report.code == Exit.OK and (tmp_path / "trace.html").is_file()


def test_a_trace_that_cannot_be_written(qpdsl: Run, tmp_path: Path) -> None:
    ran = qpdsl("run", "beam_search", "--set", "problem=x", "--trace", tmp_path / "no" / "trace.jsonl")
    assert ran.code == Exit.USAGE and "cannot write" in ran.err


def test_the_report_is_one_page_that_loads_nothing(qpdsl: Run, tmp_path: Path) -> None:
    trace = tmp_path / "beam.jsonl"
    hostile = '</script><script>alert("x")</script>'
    trace.write_text(BEAM.read_text("utf-8").replace('"answer":"910"', f'"answer":{json.dumps(hostile)}'), "utf-8")
    assert qpdsl("report", trace).out.strip() == str(tmp_path / "beam.html")
    page = (tmp_path / "beam.html").read_text("utf-8")
    assert hostile not in page and "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|@import|url\(""", page)
    read = Page.of(page)
    assert [row["status"].split()[1] for row in read.table("Rows")] == [
        *("wrong", "right", "right", "failed", "right", "right")
    ]
    assert len(read.table("Plan")) == 8 and sum(" candidates," in line for line in read.parts["Search"]) == 5
    assert any(row["answer"] == hostile for row in read.table("Rows"))


def test_the_chrome_trace_is_well_formed(qpdsl: Run, tmp_path: Path) -> None:
    assert qpdsl("report", BEAM, "--format", "chrome", "--output", tmp_path / "chrome.json").code == Exit.OK
    records = json.loads((tmp_path / "chrome.json").read_text("utf-8"))
    spans = [record for record in records if record["ph"] == "X"]
    assert {record["ph"] for record in records} == {"X", "C", "M"}
    assert all(span["dur"] >= 0 and span["ts"] >= 0 and {"pid", "tid", "name"} <= span.keys() for span in spans)
    assert {"count-005", "too-long", "score prm", "decode"} <= {span["name"] for span in spans}


@pytest.mark.parametrize("command", ["replay", "report"])
def test_what_is_no_trace_is_refused(qpdsl: Run, tmp_path: Path, command: str) -> None:
    other = write_rows(tmp_path / "rows.jsonl", [{"problem": "x"}])
    ran = qpdsl(command, other)
    assert ran.code == Exit.USAGE and "no trace of qpdsl" in ran.err
    assert qpdsl(command, tmp_path / "missing.jsonl").code == Exit.USAGE


def test_without_a_terminal_or_a_run(qpdsl: Run) -> None:
    assert "needs a terminal" in qpdsl("run", "beam_search", "--set", "problem=x", "--tui").err
    assert "needs a terminal" in qpdsl("replay", BEAM).err
    ran = qpdsl("top")
    assert ran.code == Exit.USAGE and "no run of yours is going on" in ran.err
    listed = qpdsl("top", "--list")
    assert listed.out == "" and "nothing of yours is going on" in listed.err and listed.code == Exit.OK


@pytest.mark.parametrize(
    "statement",
    [
        "import qpdsl.tui.app, qpdsl.tui.report.page, qpdsl.tui.report.chrome",
        "from qpdsl.cli.commands import top, replay, report; import qpdsl.cli.runs.dashboard, qpdsl.cli.live",
    ],
)
def test_showing_loads_no_torch(statement: str) -> None:
    code = f"import sys; {statement}; print(*sorted(set(sys.modules) & {{'torch', 'transformers', 'numpy'}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_run_is_watched_left_behind_and_seen_again(tmp_path: Path, runs: RunFolder) -> None:
    rows = [
        {"problem": f"Mia has {number} boxes with 4 cards in each box. Mia loses 3. How many cards does Mia have?"}
        for number in range(10, 90)
    ]
    many, out = write_rows(tmp_path / "many.jsonl", rows), tmp_path / "out.jsonl"
    args = [
        "-m",
        "qpdsl",
        "run",
        "beam_search",
        "--input",
        str(many),
        "--output",
        str(out),
        "--concurrency",
        "2",
        "--no-greedy",
    ]
    size = {
        "dimensions": (24, 80),
        "timeout": PATIENCE,
        "cwd": str(ROOT),
        "env": {**os.environ, "TERM": "xterm-256color"},
    }
    first = pexpect.spawn(sys.executable, [*args, "--tui"], **size)
    first.expect("running")
    first.send("q")
    first.expect("still going")
    first.send("b")
    first.expect(r"goes on as process (\d+)")
    pid = first.match[1].decode()
    first.expect(pexpect.EOF)
    again = pexpect.spawn(sys.executable, ["-m", "qpdsl", "top", pid], **size)
    again.expect("running")
    again.send("q")
    again.expect(pexpect.EOF)
    os.kill(int(pid), 2)
    deadline = pexpect.spawn(
        sys.executable,
        ["-c", f"import os, time\nwhile os.path.exists('/proc/{pid}'): time.sleep(.05)"],
        timeout=PATIENCE,
    )
    deadline.expect(pexpect.EOF)
    assert not out.exists() and 0 < rows_of_last(runs) < len(rows)


def test_what_a_watched_run_prints_comes_when_the_screen_is_free(tmp_path: Path) -> None:
    env = {**os.environ, "TERM": "xterm-256color"}
    args = [
        "-m",
        "qpdsl",
        "run",
        "greedy",
        "--set",
        "problem=Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?",
        "--tui",
    ]
    watched = pexpect.spawn(sys.executable, args, dimensions=(24, 80), timeout=PATIENCE, cwd=str(ROOT), env=env)
    # What it does before there is anything to search, from the first second on.
    watched.expect("planning|loading")
    watched.expect("done")
    watched.send("q")
    watched.expect(r"answer\s+12")
    watched.expect(pexpect.EOF)
    watched.close()
    assert watched.exitstatus == 0


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a headless Chromium")
def test_a_browser_draws_the_report_without_errors(qpdsl: Run, tmp_path: Path) -> None:
    qpdsl("report", BEAM, "--output", tmp_path / "page.html")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom", f"file://{tmp_path}/page.html"],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert "Uncaught" not in done.stderr and "CONSOLE" not in done.stderr
    assert "6 of 6 shown" in done.stdout and done.stdout.count("the answer") > 5


# Told by a page that is shown in a frame: how much wider parts are than their boxes, and how high words of plots are.
TELL = """<script>{
const wide = [document.documentElement, ...document.querySelectorAll("section, .scroll, .tree li")];
const words = [...document.querySelectorAll(".plot text")].map((each) => each.getBoundingClientRect().height);
parent.postMessage({ wider: wide.map((each) => each.scrollWidth - each.clientWidth), words }, "*");
}</script></body>"""
FRAME = """<iframe width={} height=900 src={}></iframe><pre></pre><script>
onmessage = (message) => {{ document.querySelector("pre").textContent = JSON.stringify(message.data); }};
</script>"""

LEAST_HEIGHT = 8


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a headless Chromium")
@pytest.mark.parametrize("width", [390, 700, 1280])
def test_no_width_hides_a_part_of_a_page(
    qpdsl: Run, problems: Path, runs: RunFolder, tmp_path: Path, width: int
) -> None:
    assert qpdsl("run", "greedy", "--input", problems).code == Exit.OK
    id = next(iter(runs.ids()))
    for name, sources in {"trace.html": [BEAM], "run.html": [id], "both.html": [id, id]}.items():
        page, frame = tmp_path / name, tmp_path / "frame.html"
        assert qpdsl("report", *sources, "--output", page).code == Exit.OK
        page.write_text(page.read_text("utf-8").replace("</body>", TELL), "utf-8")
        frame.write_text(FRAME.format(width, name), "utf-8")
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom", f"file://{frame}"],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        told = json.loads(re.search(r"<pre>(.*?)</pre>", done.stdout)[1])
        assert len(told["wider"]) > 5 and max(told["wider"]) <= 1, name
        # One that turns on its side is not shown where it has no room.
        words = [height for height in told["words"] if height]
        assert all(height >= LEAST_HEIGHT for height in words) and (words or name != "both.html"), name
