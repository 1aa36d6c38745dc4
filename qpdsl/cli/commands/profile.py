"""`qpdsl profile`: measures the device once, for the planner's estimates, or estimates what a model takes.

Two of its options print estimates and measure nothing: `--roofline` what a model takes on named hardware, and what
bounds it there; `--surface` the throughput of a program's models by sequences and tokens of a step.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.project_command import ModelCommand
from qpdsl.cli.proposals import complete_models
from qpdsl.cli.shared_options import setting_options
from qpdsl.errors import UsageError
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED
from qpdsl.grammar.words import KV_TYPES
from qpdsl.session.setting import FilePath, Kind, OneOf, given, option_of, setting
from qpdsl.session.settings import MEASURING, OUTPUT, PLANNER, PROGRAM, Settings

if TYPE_CHECKING:
    from qpdsl.planner.capacity.hardware import Hardware

_COUNT = re.compile(r"(\d{1,12})(k?)", re.IGNORECASE)
_MAX_TOKENS = 1 << 30
ROOFLINE, SURFACE = "Roofline", "Surface"
_own = partial(setting, on="profile")
_roofline = partial(_own, heading=ROOFLINE, needs="roofline")


class _Counts(Kind):
    """Whole numbers above 0; `4k` is 4,096."""

    def read(self, value: Any) -> tuple[int, ...]:
        return tuple(self._number(text) for text in value)

    def _number(self, text: str) -> int:
        match = _COUNT.fullmatch(text.strip())
        number = 0 if match is None else int(match[1]) * (1024 if match[2] else 1)
        if not 0 < number <= _MAX_TOKENS:
            raise UsageError(f"a count is a whole number above 0, such as `4096` or `4k`, not `{text[:40]}`")
        return number


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Settings):
    """What `qpdsl profile` takes besides the settings of all commands."""

    measured: tuple[str, ...] = ()
    tables: bool = _own(True, usual=True, heading=MEASURING, help="Measure throughput by KV memory and batch too.")
    force: bool = _own(False, usual=True, heading=MEASURING, help="Measure again what is known.")
    roofline: str | None = _own(
        usual=True,
        heading=ROOFLINE,
        metavar="MODEL",
        complete="described",
        help="Measure nothing; estimate what MODEL takes on hardware, and what bounds it: a folder, a GGUF file, a "
        "built-in name, a config.json, or a public name such as llama-3-70b.",
    )
    hardware: tuple[str, ...] = _roofline(
        (),
        metavar="NAME",
        complete="hardware",
        shown="all that is known",
        help='Hardware, such as "4x A100-80GB", or `here`.',
    )
    contexts: tuple[int, ...] = _roofline(
        (),
        kind=_Counts(),
        option="--context",
        metavar="N",
        shown="2k, 4k, 32k",
        help="Tokens per sequence.",
    )
    batches: tuple[int, ...] = _roofline(
        (),
        kind=_Counts(),
        option="--batch",
        metavar="N",
        shown="1, 4, 16, 64, 256",
        help="Sequences per batch.",
    )
    cached_as: tuple[str, ...] = _roofline(
        (),
        kind=OneOf("fp16", *KV_TYPES),
        option="--kv",
        shown="fp16, fp8, int4",
        help="Type of the KV cache; bounds are by the first.",
    )
    weights: str | None = _roofline(
        metavar="TYPE|AMOUNT",
        shown="as stored",
        help="Type of the weights, or their size, such as 140GB.",
    )
    surface: str | None = _own(
        usual=True,
        heading=SURFACE,
        kind=FilePath(),
        metavar="FILE|NAME",
        complete="programs",
        help="Measure nothing; estimate the throughput of each model of a program by sequences and tokens per step, "
        "with the best split of the memory. Takes the options of a program, of the planner and --kv-memory.",
    )
    as_json: bool = _own(False, usual=True, heading=OUTPUT, option="--json", help="The same as `--format json`.")
    form: str = _own(
        "text", usual=True, heading=OUTPUT, kind=OneOf("text", "json"), option="--format", help="Output format."
    )

    def check(self) -> None:
        """Raises UsageError where options do not go together."""
        if self.roofline is not None and self.surface is not None:
            raise UsageError("`--roofline` is about a model and `--surface` about a program; give one of them")
        for flag, asked in (("--roofline", self.roofline), ("--surface", self.surface)):
            if asked is not None and (self.measured or self.force):
                what = f"`{self.measured[0]}` would be measured" if self.measured else "`--force` measures again"
                raise UsageError(f"`{flag}` measures nothing, and {what}; give one of them")
        for name, known in given(self):
            if self.surface is None and (known.heading in (PROGRAM, PLANNER) or name == "kv_bytes"):
                raise UsageError(f"`{option_of(name, known)}` needs `--surface`")
        super().check()


@click.command(cls=ModelCommand)
@click.argument("measured", metavar="[MODEL]...", nargs=-1, shell_complete=complete_models)
@setting_options(ProfileOptions, "profile", kv_bytes="With --surface: memory for the KV cache, such as 64MiB.")
def command(**values: Any) -> Exit:
    """Measure how fast the device copies and multiplies, and what a step of each MODEL takes on it.

    MODELs are built-in names, folders or hub ids; without one the built-in family is measured. The figures are kept in
    the user's cache folder, and `explain --analyze` and `run` go by them. A model takes up to a minute.

    With --roofline or --surface nothing is measured, and estimates are printed instead.

    \b
    qpdsl profile
    qpdsl profile --roofline llama-3-70b --hardware "4x A100-80GB" --weights 140GB
    qpdsl profile --surface beam_search --kv-memory 64MiB --set width=8
    """
    options = ProfileOptions(**values)
    options.check()
    form = "json" if options.as_json else options.form
    if options.roofline is not None:
        put(roofline_shown(options, form, width_of(sys.stdout)))
    elif options.surface is not None:
        put(surface_shown(options, form))
    else:
        _measure(options, form)
    return Exit.OK


def _measure(options: ProfileOptions, form: str) -> None:
    """Measures the device with these models, and prints its profile."""
    import json

    from qpdsl import zoo
    from qpdsl.model_location import check_models
    from qpdsl.planner.cost.device import device_json
    from qpdsl.planner.explain.measurements import profile_text
    from qpdsl.session.user_cache import damaged_files

    for note in damaged_files():
        say(f"note: {note}")
    names = options.measured or tuple(model.name for model in zoo.BUILTIN)
    check_models(names)
    # Only now, as it loads torch.
    from qpdsl.session.profile import measure_models

    def tell(model: str) -> None:
        say(f"measuring {model}")

    profile = measure_models(names, options, tables=options.tables, force=options.force, tell=tell)
    if form == "json":
        put(json.dumps(device_json(profile), ensure_ascii=False, indent=2))
    else:
        put(profile_text(profile))


def surface_shown(options: ProfileOptions, form: str) -> str:
    """What `--surface` prints, as text or JSON. Raises UsageError, QpError and ModelError."""
    import json

    from qpdsl.cli.diagnostics import show
    from qpdsl.planner.explain.surface_tables import surface_json, surface_text
    from qpdsl.session.planning import surface_of
    from qpdsl.session.prepare import PlanUse, bind_program, prepare

    # Nothing runs, so that a program with code can be estimated.
    settings = replace(options, target=options.surface, allow_code=UNCONFINED)
    prepared = prepare(bind_program(settings, warn=show), settings, PlanUse(alone=True))
    found = surface_of(prepared.plan, settings)
    if found is None:
        raise UsageError(f"`{options.surface}` calls no model of this machine, so that there is nothing to batch")
    surface, profile = found
    if form == "json":
        return json.dumps(surface_json(prepared.program.name, surface), ensure_ascii=False, indent=2)
    return surface_text(prepared.program.name, surface, profile)


def roofline_shown(options: ProfileOptions, form: str, width: int | None) -> str:
    """What `--roofline` prints, as text or JSON. Raises ModelError and UsageError."""
    import json

    from qpdsl.planner.capacity.roofline_report import BATCHES, CONTEXTS, DEFAULT_KV_TYPES, roofline_report
    from qpdsl.planner.explain.roofline_tables import roofline_json, roofline_text
    from qpdsl.session.described_model import described_model, weights_of

    assert options.roofline is not None
    hardware = _hardware(options.hardware)
    architecture = described_model(options.roofline)
    kind, size = weights_of(architecture, options.weights)
    report = roofline_report(
        architecture,
        hardware,
        kind,
        size,
        tuple(dict.fromkeys(options.contexts)) or CONTEXTS,
        tuple(dict.fromkeys(options.batches)) or BATCHES,
        tuple(dict.fromkeys(options.cached_as)) or DEFAULT_KV_TYPES,
    )
    if form == "json":
        return json.dumps(roofline_json(report), ensure_ascii=False, indent=2)
    return roofline_text(report, width)


def _hardware(names: tuple[str, ...]) -> list[Hardware]:
    """Raises UsageError where there is no such hardware."""
    from qpdsl.errors import unknown
    from qpdsl.planner.capacity.hardware import USUAL, known_hardware, named_hardware
    from qpdsl.session.described_model import HERE, hardware_here

    others = {HERE: hardware_here()}
    found: dict[str, Hardware] = {}
    for name in names or USUAL:
        one = named_hardware(name, others)
        if one is None:
            known = [*known_hardware(), HERE]
            help = 'several of them go by a number: "4x A100-80GB"'
            raise UsageError(unknown(name, known, "`--hardware`: there is no"), help)
        found[one.name] = one
    return list(found.values())
