"""Settings: each is declared once, and what the machine, or nobody, can have is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.executor.engine.memory import budget
from qpdsl.session.setting import LONGEST_TIMEOUT, declared, given, option_of
from qpdsl.session.settings import HEADINGS, RowSettings, SessionSettings, Settings
from qpdsl.threads import cores
from tests.support.cli import Run


def test_as_many_threads_as_there_are_cores() -> None:
    SessionSettings(threads=cores())
    for threads in (cores() + 1, 100_000, 10**30):
        with pytest.raises(qp.ArgumentError, match=f"`threads` takes at most {cores()}, as many as"):
            SessionSettings(threads=threads)


def test_as_much_memory_as_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "main_memory", lambda: 8 << 30)
    for fine in (None, 1, 8 << 30, "8GiB", "100%"):
        SessionSettings(kv_bytes=fine)
    for amount in ((8 << 30) + 1, 10**15, "9GiB", "900TiB"):
        with pytest.raises(qp.ArgumentError, match=r"more memory than there is: it asks for .*, there is 8\.0 GiB"):
            SessionSettings(kv_bytes=amount)
        SessionSettings(kv_bytes=amount, device="cuda")
    with pytest.raises(qp.ArgumentError, match="is no amount of memory"):
        SessionSettings(kv_bytes="9" * 400)


@pytest.mark.parametrize("seconds", [0, -1, True, "3", float("nan"), float("inf"), 10**400])
def test_what_is_no_time_out(seconds: Any) -> None:
    with pytest.raises(qp.ArgumentError, match="`row_timeout` takes seconds, more than 0"):
        RowSettings(row_timeout=seconds)
    with pytest.raises(qp.ArgumentError, match="`server_timeout` takes seconds, more than 0"):
        SessionSettings(server_timeout=seconds)


def test_a_time_out() -> None:
    for seconds in (None, 1, 0.01, LONGEST_TIMEOUT):
        assert RowSettings(row_timeout=seconds).row_timeout == seconds


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"device": "tpu"}, "`tpu` is no device"),
        ({"dtype": "int8"}, "`dtype` is one of `float32`, `bfloat16` or `float16`, not `int8`"),
        ({"kv_type": "int2"}, "`kv_type` is one of `int8`, `fp8` or `int4`, not `int2`"),
        ({"threads": 0}, "`threads` takes a whole number of at least 1, not 0"),
        ({"max_tokens_total": True}, "`max_tokens_total` takes a whole number of at least 1, not true"),
        ({"max_cost": 0}, "`max_cost` takes a number above 0, not 0"),
        ({"shadow": 1.5}, "`shadow` takes a number from 0 to 1, not 1.5"),
        ({"router": "best"}, "`router`"),
        ({"exit_heads": ["folder"]}, "`exit_heads` takes folders by the names of models"),
        ({"device": "cuda", "share_samples": True}, "`share_samples` needs samples that are the same in any batch"),
    ],
)
def test_values_that_settings_do_not_take(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(qp.ArgumentError) as refused:
        SessionSettings(**setting)
    assert message in str(refused.value)


def test_what_is_none_is_at_its_default() -> None:
    none: dict[str, Any] = {name: None for name, _, _ in declared(Settings)}
    assert Settings(**none) == Settings() and not list(given(Settings(**none)))


def test_every_setting_has_a_heading_and_a_help_that_is_a_sentence() -> None:
    for name, known, _ in declared(Settings):
        assert (known.heading in HEADINGS and known.help[0].isupper()) or known.help.startswith("`"), name
        assert known.help.endswith("."), name


def test_options_are_spelt_once() -> None:
    options = [option_of(name, known) for name, known, _ in declared(Settings) if known.on]
    assert len({*options}) == len(options)


def test_the_settings_of_a_session_alone() -> None:
    settings = Settings(device="cuda", kv_type="fp8", seed=3, target="greedy")
    assert settings.of_session == SessionSettings(device="cuda", kv_type="fp8")
    assert replace(settings, kv_type=None).of_session == SessionSettings(device="cuda")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--threads", "100000", "`threads` takes at most"),
        ("--kv-memory", "900TiB", "`kv_bytes` is more memory than there is"),
        ("--row-timeout", "0", "`row_timeout` takes seconds"),
        ("--row-timeout", "nan", "`row_timeout` takes seconds"),
    ],
)
def test_on_the_command_line(qpdsl: Run, option: str, value: str, message: str) -> None:
    ran = qpdsl("run", "greedy", "--set", "problem=x", option, value)
    assert ran.code == 2 and message in ran.err
