"""`qpdsl profile --roofline`: what a model takes on named hardware, and what bounds it there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from qpdsl.cli.proposals import Item
    from qpdsl.planner.capacity.hardware import Hardware

Command = Callable[..., Any]
if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    # Earlier versions of click do not have it generic.
    _ParamType = click.ParamType
KV_TYPES = ("fp16", "fp8", "int8", "int4")
_COUNT = re.compile(r"(\d{1,12})(k?)", re.IGNORECASE)
_MOST_TOKENS = 1 << 30


class _Count(_ParamType):
    """A whole number above 0; `4k` is 4,096."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _COUNT.fullmatch(str(value).strip())
        number = 0 if match is None else int(match[1]) * (1024 if match[2] else 1)
        if not 0 < number <= _MOST_TOKENS:
            self.fail(f"it takes a whole number above 0, such as `4096` or `4k`, not `{str(value)[:40]}`", param, ctx)
        return number


def _complete_roofline(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The built-in models, models by their public names, GGUF files and folders."""
    from qpdsl import zoo
    from qpdsl.planner.capacity.published import published_models

    names = [*(model.name for model in zoo.BUILTIN), *published_models()]
    return [
        *(CompletionItem(name) for name in names if name.startswith(incomplete)),
        CompletionItem(incomplete, type="file"),
    ]


def _complete_hardware(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    from qpdsl.planner.capacity.hardware import known_hardware
    from qpdsl.planning.hardware_here import HERE

    return [CompletionItem(name) for name in (*known_hardware(), HERE) if name.lower().startswith(incomplete.lower())]


_OPTIONS = (
    click.option(
        "--roofline",
        metavar="MODEL",
        help="Measure nothing, and say what MODEL takes on hardware, and what bounds it: a folder, a GGUF file, a "
        "built-in name, a config.json, or a public name such as llama-3-70b.",
        shell_complete=_complete_roofline,
    ),
    click.option(
        "--hardware",
        metavar="NAME",
        multiple=True,
        help='With --roofline: hardware, such as "4x A100-80GB", or `here`.  [default: all that is known]',
        shell_complete=_complete_hardware,
    ),
    click.option(
        "--context",
        "contexts",
        metavar="N",
        type=_Count(),
        multiple=True,
        help="With --roofline: tokens of a sequence.  [default: 2k, 4k, 32k]",
    ),
    click.option(
        "--batch",
        "batches",
        metavar="N",
        type=_Count(),
        multiple=True,
        help="With --roofline: sequences side by side.  [default: 1, 4, 16, 64, 256]",
    ),
    click.option(
        "--kv",
        "kv_types",
        type=click.Choice(KV_TYPES),
        multiple=True,
        help="With --roofline: the type of keys and values; bounds are by the first.  [default: fp16, fp8, int4]",
    ),
    click.option(
        "--weights",
        metavar="TYPE|AMOUNT",
        help="With --roofline: the type of the weights, or what they take, such as 140GB.  [default: as stored]",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineOptions:
    """What `--roofline` takes; `_OPTIONS` says what each means."""

    roofline: str | None
    hardware: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    kv_types: tuple[str, ...]
    weights: str | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RooflineOptions:
        """Raises UsageError where one of them is given without `--roofline`."""
        from qpdsl.errors import UsageError

        options = cls(**{name: given[name] for name in cls.__dataclass_fields__})
        if options.roofline is None:
            for name, flag in (
                ("hardware", "--hardware"),
                ("contexts", "--context"),
                ("batches", "--batch"),
                ("kv_types", "--kv"),
                ("weights", "--weights"),
            ):
                if getattr(options, name):
                    raise UsageError(f"`{flag}` is for `--roofline`: `qpdsl profile --roofline MODEL {flag} …`")
        return options


def roofline_options(command: Command) -> Command:
    """The options of a command that can say what a model takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def roofline_shown(options: RooflineOptions, form: str, width: int | None) -> str:
    """What is printed, as text or JSON. Raises ModelError and UsageError."""
    import json

    from qpdsl.planner.capacity.roofline_report import BATCHES, CONTEXTS, roofline_report
    from qpdsl.planner.capacity.roofline_report import KV_TYPES as USUAL_KV_TYPES
    from qpdsl.planner.explain.roofline_tables import roofline_json, roofline_text
    from qpdsl.planning.described_model import described_model, weights_of

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
        tuple(dict.fromkeys(options.kv_types)) or USUAL_KV_TYPES,
    )
    if form == "json":
        return json.dumps(roofline_json(report), ensure_ascii=False, indent=2)
    return roofline_text(report, width)


def _hardware(names: tuple[str, ...]) -> list[Hardware]:
    """Raises UsageError where there is no such hardware."""
    from qpdsl.errors import UsageError, unknown
    from qpdsl.planner.capacity.hardware import USUAL, known_hardware, named_hardware
    from qpdsl.planning.hardware_here import HERE, hardware_here

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
