"""What cannot work is said in one clear line, with the documented exit code, before a model is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from qpdsl.cli.app import cli
from qpdsl.cli.exits import Exit
from tests.support.cli import Run, stdin
from tests.support.paths import PROGRAMS


def test_input_data_that_is_not_there(qpdsl: Run, tmp_path: Path) -> None:
    for name, meant in (("counting-50", "counting-500"), (tmp_path / "row.jsonl", tmp_path / "rows.jsonl")):
        (tmp_path / "rows.jsonl").touch()
        ran = qpdsl("run", "greedy", "--input", name)
        assert (ran.code, ran.out) == (Exit.DATA, "")
        assert (
            ran.err.startswith(f"error: there is no input data `{name}`"[:60]) and f"did you mean `{meant}`?" in ran.err
        )


def test_an_option_that_is_given_twice_is_refused_by_every_command(qpdsl: Run) -> None:
    root = click.Context(cli)
    commands = {(name,): cli.get_command(root, name) for name in cli.list_commands(root)}
    runs = commands.pop(("runs",))
    assert isinstance(runs, click.Group)
    commands |= {("runs", name): own for name, own in runs.commands.items()}
    seen = set[str]()
    for words, command in commands.items():
        for param in command.get_params(root):
            if isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count):
                option = max(param.opts, key=len)
                ran = qpdsl(*words, f"{option}=1", "x", option, "1")
                assert ran.code == 2 and f"`{option}` is given twice" in ran.err, (words, option, ran.err)
                seen.add(option)
                break
    assert len(seen) >= 5


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["eval", "x.qp", "--program", "one", "--program", "two"], "`--program` is given twice"),
        (["help", "runn"], "there is no command `runn`; did you mean `run`?"),
        (["runn"], "there is no command `runn`; did you mean `run`?"),
        (["run"], "give a program"),
        (["run", "greedy", "-e", "chat user=q"], "one of them only"),
        (["run", "greedy", "problem=x"], "a parameter of the program is set by `--set problem=…`"),
        (["run", "greedy", "x", "--set", "problem=y"], "`greedy` takes no text besides what `--set` gives it"),
        (["run", "greedy", "x", "--input", "counting-500"], "the texts of `--input` are its rows'"),
        (["run", "-e", 'chat user="{a} {b}" | generate llm', "x"], "the text could be `a` and `b`"),
        (["ls"], "`qpdsl runs` lists saved runs"),
        (["run", "greedy", "--sed", "1"], "there is no option `--sed`; did you mean `--seed`?"),
        (
            ["serve", "greedy", "--server-key", "x"],
            "there is no option `--server-key`; the environment has keys of servers",
        ),
        (["run", "greedy", "--input", "nope.jsonl", "--grader", "mathh"], "no grader `mathh`; did you mean `math`?"),
        (["run", "greedy", "--seed", "x"], "`x` is not a valid integer"),
        (["run", "greedy", "--device", "tpu"], "`tpu` is no device"),
        (["run", "greedy", "--concurrency", "0"], "invalid value for `--concurrency`"),
        (["run", "beem_search"], "there is no file or shipped program `beem_search`; did you mean `beam_search`?"),
        (["run", "nope.qp"], "there is no file `nope.qp`"),
        (["run", "greedy"], "no value for `problem`, which takes text"),
        (["run", "greedy", "--set", "problem"], "`--set` takes name=value"),
        (["run", "greedy", "--set", "proble=x"], "no parameter `proble`; did you mean `problem`?"),
        (
            ["run", "best_of_n", "--set", "problem=x", "--set", "n=many"],
            '`n` takes a whole number, not the text "many"',
        ),
        *((["check", name, "--model", "llm"], "`--model` takes NAME=ID or NAME=PATH") for name in ("greedy", "dvts")),
        (["run", "beam_search", "--model", "zoo/counting"], "is for one of several models: llm, prm"),
        (["run", "greedy", "--model", "lm=x"], "declares no model `lm`; did you mean `llm`?"),
        (["run", "-e", "chat user=q | generate llm", "--model", "lm=x"], "uses no model `lm`; did you mean `llm`?"),
        (["run", "greedy", "--output", "x"], "`--output` needs `--input`"),
        (["run", "greedy", "--set", "problem=x", "--resume"], "`--resume` needs `--input`"),
        (["run", "greedy", "--set", "problem=x", "--reuse"], "`--reuse` needs `--input`"),
        (
            ["run", "greedy", "--input", "counting-500", "--json"],
            "`--json` with `--input` needs `--output`",
        ),
        (["run", "best_of_n", "--set", "problem=x", "--set", "n=0"], "`n` takes a whole number of at least 1 and at"),
        (["run", "best_of_n", "--set", "problem=x", "--set", "n=99999999"], "at most 65536, not 99999999"),
        (["run", "best_of_n", "--input", "counting-500", "--set", "n=0"], "`n` takes a whole number of at least 1"),
        (["run", "beam_search", "--set", "problem=x", "--set", "width=0"], "not 0, the value of `width`"),
        (["run", "beam_search", "--set", "problem=x", "--set", "depth=-1"], "`repeat` takes a whole number"),
        (["explain", "beam_search", "--set", "width=0"], "`keep` takes a whole number of at least 1"),
        (["explain", "beam_search", "--set", "expand=0"], "`n` takes a whole number"),
        (["explain", "gredy"], "did you mean `greedy`?"),
        (["check", "nope.qp"], "there is no file `nope.qp`"),
        (["run", "greedy", "--problem", "x"], "`problem` is a parameter of the program: `--set problem=…`"),
        (["run", "greedy", "--max-tokens", "9"], "`max_tokens` is a parameter of the program: `--set max_tokens=…`"),
        (["run", "best_of_n", "--num-samples", "9"], "`n` is a parameter of the program: `--set n=…`"),
        (["run", "greedy", "--temperature", "1"], "the program says it, as `generate MODEL temperature=…`"),
        (["explain", "greedy", "x", "--analyze", "--input", "counting-500"], "the texts of `--input` are its rows'"),
        (["run", "problem=x"], "`problem=x` is no program"),
        (["run", "greedy", "--data", "my.jsonl"], "rows of a file are `--input FILE`"),
        (["run", "greedy", "--question", "x"], "name its field by `--map problem=question`"),
        (["run", "best_of_n", "--n-samples", "4"], "`n` is a parameter of the program: `--set n=…`"),
        (["run", "greedy", "--no-prefix-cache"], "`--disable-rule share_prefixes`"),
        (["eval", "greedy", "--pass-at-k", "4"], "`--candidates` grades every candidate"),
        (["eval", "greedy", "--resume"], "the same command again goes on by itself"),
        (["explain", "greedy", "--grader", "number"], "it is one of `qpdsl run`"),
        (["export"], "`qpdsl runs export`"),
        (["run", "greedy", "--set", "problem=x", "--set", "problem=y"], "`--set` gives `problem` twice"),
        (["run", "greedy", "--model", "llm=a", "--model", "llm=b"], "`--model` names two models for `llm`"),
        (["run", "greedy", "--set", "problem=x", "--concurrency", "2"], "`--concurrency` needs `--input`"),
        (["run", "-", "--input", "-"], "cannot both come from standard input"),
        (["programs", "gredy"], "there is no shipped program `gredy`; did you mean `greedy`?"),
    ],
)
def test_bad_usage(qpdsl: Run, args: list[str], message: str) -> None:
    ran = qpdsl(*args)
    assert ran.code == Exit.USAGE
    assert ran.out == ""
    first, *rest = ran.err.splitlines()
    assert first.startswith("error: ") and message in first
    assert all(line.startswith("help: ") for line in rest)


@pytest.mark.parametrize(("name", "option"), [("m.gguf", "--model llm=m.gguf"), ("rows.csv", "--input rows.csv")])
def test_a_model_or_data_in_the_place_of_a_program(
    qpdsl: Run, name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("question,answer\n")
    ran = qpdsl("run", name, "x")
    assert ran.code == Exit.USAGE and ran.err.endswith(f"the program comes first, then `{option}`\n")


def test_a_text_in_the_place_of_a_program_of_the_folder(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("solve.qp").write_text("")
    ran = qpdsl("run", "What is 2 + 3?")
    assert ran.code == Exit.USAGE and ran.err.endswith('here are `solve.qp`, as in `qpdsl run solve.qp "…"`\n')
    Path("small-Q4_K_M.gguf").touch()
    missing = qpdsl("run", "greedy", "x", "--model", "llm=./small-Q4_M.gguf").err
    assert "there is no file `small-Q4_M.gguf`; did you mean `small-Q4_K_M.gguf`?" in missing


@pytest.mark.parametrize("option", ["--lines", "--colour"])
def test_an_option_that_is_like_no_other_has_no_suggestion(qpdsl: Run, option: str) -> None:
    ran = qpdsl("run", "greedy", option, "3")
    assert (ran.code, ran.err.splitlines()[0]) == (Exit.USAGE, f"error: there is no option `{option}`")


def test_a_parameter_given_without_its_option(qpdsl: Run) -> None:
    ran = qpdsl("run", "greedy", "problem=x")
    assert (ran.code, ran.out) == (Exit.USAGE, "") and "`--set problem=…`" in ran.err


def test_a_program_from_standard_input(qpdsl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for command, text, code, message in [
        ("check", b'program p(q: text) { chat user=q | generate "zoo/counting" }', Exit.OK, "standard input: ok"),
        ("check", b"program p(q: text) { chat user=q | generate lmm }", Exit.USAGE, "--> standard input:1:45"),
        ("explain", b'program p(q: text) { chat user=q | generate "zoo/counting" }', Exit.OK, "template"),
        ("run", b"", Exit.USAGE, "`standard input` is empty"),
        ("run", b'file "other.txt"', Exit.USAGE, "--> standard input:1:1"),
    ]:
        with stdin(text):
            ran = qpdsl(command, "-")
        assert ran.code == code and message in ran.out + ran.err


def test_a_closed_standard_input_is_told(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for args in (["check", "-"], ["run", "-"], ["fmt", "-"], ["run", "greedy", "--input", "-"]):
        ran = qpdsl(*args)
        assert ran.code == Exit.USAGE and "standard input is closed" in ran.err


def test_what_is_shipped_is_listed_and_printed(qpdsl: Run) -> None:
    listed = qpdsl("programs")
    assert listed.code == Exit.OK
    for path in PROGRAMS.glob("*.qp"):
        assert f"\n{path.stem} " in f"\n{listed.out}"
        assert qpdsl("programs", path.stem).out == path.read_text("utf-8")
    assert "counting-500" in listed.out


def test_the_version_names_what_results_hang_on(qpdsl: Run) -> None:
    import torch

    assert torch.__version__ in qpdsl("--version").out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is a folder, not a program file"),
        (b"", "is empty, it holds no program"),
        (b"program\0p", "is a binary file"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"# " + b"x" * (1 << 20), "is larger than a program may be (1,048,576 bytes)"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check", "explain"])
def test_what_is_no_program_file(qpdsl: Run, tmp_path: Path, command: str, content: bytes | None, message: str) -> None:
    path = tmp_path / "p.qp"
    path.mkdir() if content is None else path.write_bytes(content)
    ran = qpdsl(command, path)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert ran.err.startswith("error: ") and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--kv-memory", "1KiB"), Exit.MODEL, "the KV budget of 1,024 bytes is too small for zoo/counting"),
        (("--kv-memory", "lots"), Exit.USAGE, "`lots` is no amount of memory"),
        (("--kv-type", "int2"), Exit.USAGE, "`int2` is not one of `int8`, `fp8`, `int4`"),
        (("--disable-rule", "nonsense"), Exit.USAGE, "there is no rule `nonsense`"),
        (("--trace", "/no/such/folder/t.jsonl"), Exit.USAGE, "cannot write `/no/such/folder/t.jsonl`"),
    ],
)
def test_settings_that_do_not_do(qpdsl: Run, options: tuple[str, ...], code: Exit, message: str) -> None:
    ran = qpdsl("run", "greedy", "--set", "problem=x", *options)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err.splitlines()[0]


def test_output_that_cannot_be_written(qpdsl: Run, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"problem": "x"}\n')
    for output, message in [
        (tmp_path, "it is a folder"),
        (tmp_path / "none" / "out.jsonl", "does not exist"),
        (data / "out.jsonl", "is not a folder"),
        (data, "must be another file"),
        (Path("/dev/null"), "not a regular file"),
    ]:
        ran = qpdsl("run", "greedy", "--input", data, "--output", output)
        assert ran.code == Exit.USAGE
        assert message in ran.err.splitlines()[0]
    assert data.read_text() == '{"problem": "x"}\n'


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/folder", "there is no folder"),
        ("vlm:http://127.0.0.1:9/v1#name", "no model begins with `vlm:`; did you mean `vllm:`?"),
        ("{tmp}", "no config.json"),
        ("zoo/countin", "`zoo/counting-prm`; did you mean `zoo/counting`?"),
    ],
)
@pytest.mark.parametrize("with_output", [False, True])
def test_models_that_cannot_be_loaded(
    qpdsl: Run, tmp_path: Path, problems: Path, model: str, message: str, with_output: bool
) -> None:
    output = tmp_path / "out.jsonl"
    folder = tmp_path / "empty"
    folder.mkdir()
    how = ["--input", problems, "--output", output] if with_output else ["--set", "problem=x"]
    ran = qpdsl("run", "greedy", *how, "--model", f"llm={model.replace('{tmp}', str(folder))}")
    assert ran.code == Exit.MODEL
    assert ran.err.startswith("error: model `") and message in ran.err and ran.err.count("\n") == 1
    assert not list(tmp_path.glob("*out.jsonl*"))


@pytest.mark.parametrize(
    ("option", "type_", "value", "message"),
    [
        ("temperature", "float", "0.5", "`temperature` takes a number of at least 0, not -0.5, the value of `x - 1`"),
        ("top_p", "float", "1", "`top_p` takes a number of over 0 and at most 1, not 0.0, the value of `x - 1`"),
        ("top_p", "float", "2.5", "not 1.5"),
        ("min_p", "float", "2", "`min_p` takes a number of at least 0 and under 1, not 1.0"),
        ("top_k", "int", "1", "`top_k` takes a whole number of at least 1, not 0"),
        ("max_tokens", "int", "-9223372036854775807", "`max_tokens` takes a whole number of at least 1, not one this"),
    ],
)
def test_every_option_is_held_against_its_range(
    qpdsl: Run, tmp_path: Path, option: str, type_: str, value: str, message: str
) -> None:
    path = tmp_path / "p.qp"
    path.write_text(
        f'model llm = "zoo/counting"\nprogram p(x: {type_}) -> text {{\n  chat user="x"\n'
        f"  generate llm {option}=x - 1\n  return text\n}}\n"
    )
    for command in ("run", "explain"):
        ran = qpdsl(command, path, "--set", f"x={value}")
        assert (ran.code, ran.out) == (Exit.USAGE, "") and message in ran.err


def test_a_hub_model_that_is_not_found_was_looked_up_as_one(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from qpdsl.executor.checkpoint.errors import ModelError

    def offline(name: str, *_: object) -> None:
        raise ModelError(name, "no connection")

    monkeypatch.setattr("qpdsl.session.session.load", offline)
    ran = qpdsl("run", "greedy", "--set", "problem=x", "--model", "llm=some/model")
    assert ran.code == Exit.MODEL
    why = "looked up as a hub id, as there is no such folder: no connection"
    assert ran.err == f"error: model `some/model` cannot be loaded: {why}\n"


def test_help_documents_every_exit_code(qpdsl: Run) -> None:
    ran = qpdsl("run", "--help")
    assert ran.code == Exit.OK
    for code in Exit:
        assert f"{code.value}  {code.meaning}" in ran.out


def test_a_text_is_the_parameter_that_has_none(qpdsl: Run) -> None:
    text = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
    named = qpdsl("run", "greedy", "--set", f"problem={text}")
    assert named.code == Exit.OK and qpdsl("run", "greedy", text).out == named.out
    pipeline = ("run", "-e", "chat user=q | generate llm temperature=0 | extract answer = final_answer | return answer")
    assert qpdsl(*pipeline, text).out.splitlines()[0] == named.out.splitlines()[0]


def test_the_short_help_names_what_it_leaves_out(qpdsl: Run) -> None:
    short, full = qpdsl("run", "--help").out, qpdsl("run", "--help-all").out
    assert len(short.splitlines()) < len(full.splitlines()) / 2
    assert "--input" in short and "--kv-memory" not in short and "`--help-all` has" in short
    assert "--kv-memory" in full and "`--help-all` has" not in full


def test_version(qpdsl: Run) -> None:
    assert qpdsl("--version").out.startswith("qpdsl ")


def test_internal_errors_ask_for_a_report(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(target: str) -> None:
        raise RuntimeError("a fault\nof ours")

    monkeypatch.setattr("qpdsl.session.programs.find_source", broken)
    ran = qpdsl("check", "greedy")
    assert ran.code == Exit.INTERNAL
    assert ran.err == "internal error: RuntimeError: a fault of ours (please report it; QPDSL_DEBUG=1 shows where)\n"


def test_a_lone_carriage_return_hides_no_stage(qpdsl: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.qp"
    path.write_bytes(b'program p(q: text) { chat user=q # why\r generate "zoo/counting"\r\n}')
    ran = qpdsl("check", path)
    assert ran.code == Exit.USAGE and "QP101" in ran.err and "U+000D" in ran.err
    path.write_bytes(b'program p(q: text) {\r\n chat user=q # why\r\n generate "zoo/counting"\r\n}')
    assert qpdsl("check", path).code == Exit.OK


def test_a_report_in_a_trace_that_says_too_little_is_skipped(qpdsl: Run, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    for report in ({"model": "m"}, {"model": "m", "prefill_tokens": 1e308, "decode_tokens": 1e308}):
        trace.write_text(
            f'{{"qpdsl_trace": 1}}\n{json.dumps({"kind": "EngineStepped", "report": report, "at": 1.0})}\n'
        )
        ran = qpdsl("report", trace, "--output", tmp_path / "r.html", "--overwrite")
        assert ran.code in (Exit.OK, Exit.USAGE, Exit.DATA), ran.err


@pytest.mark.parametrize("command", ["check", "fmt", "explain", "run"])
def test_a_named_pipe_is_no_program(qpdsl: Run, tmp_path: Path, command: str) -> None:
    """Nobody may ever write to it."""
    os.mkfifo(tmp_path / "pipe.qp")
    ran = qpdsl(command, tmp_path / "pipe.qp")
    assert ran.code == 2 and "is a named pipe, not a program file" in ran.err and "`-` reads" in ran.err


def test_a_pipe_of_the_shell_is_read(qpdsl: Run, sampled: Path) -> None:
    """That of `<(…)`."""
    read, write = os.pipe()
    os.write(write, sampled.read_bytes())
    os.close(write)
    try:
        assert qpdsl("check", f"/dev/fd/{read}").code == 0
    finally:
        os.close(read)


def test_the_only_model_may_be_on_a_server_that_takes_token_ids(qpdsl: Run) -> None:
    place = "vllm:http://127.0.0.1:9/v1#m tokenizer=zoo/counting"
    explained = qpdsl("explain", "greedy", "--model", place)
    assert explained.code == 0 and f"llm: {place}" in explained.out
