"""The tables of the thesis' protocol as Markdown, and its figures 6.1 to 6.7 as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from qpdsl.executor.engine.memory.budget import amount_text

Record = Mapping[str, Any]

NAME = "thesis"
SPLIT, PAGES, BATCH = (f"{NAME}_{part}.svg" for part in ("split", "pages", "batch"))
# The shares of figures 6.2 and 6.3, of which those are drawn that were measured.
_PAGES_AT = (0.3, 0.5)
# Colours that stay apart for the colour-blind (Okabe and Ito), each with a marker of its own.
_STYLES = (
    ("#D55E00", "*"),
    ("#56B4E9", "s"),
    ("#009E73", "^"),
    ("#E69F00", "o"),
    ("#0072B2", "D"),
    ("#CC79A7", "v"),
)
_HEAD = (
    "program",
    "verifier's share",
    "right",
    "95% interval",
    "failed",
    "same answers",
    "tokens/s",
    "problems/s",
    "tokens/CPU s",
    "verifier read",
    "preempted",
)


def publish(record: Record, folder: Path) -> None:
    """Writes the page and its pictures."""
    (folder / f"{NAME}.md").write_text(page(record), encoding="utf-8", newline="\n")
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    _save(_split(record), folder / SPLIT)
    if shown := _with_pages(record):
        _save(_pages(record, shown), folder / PAGES)
    if record["batches"]:
        _save(_batches(record), folder / BATCH)


def page(record: Record) -> str:
    """All of it, as Markdown."""
    levels = ", ".join(f"{count} of {level}" for level, count in record["spread"].items())
    spread = f", by `{record['field']}`: {levels}" if levels else ""
    models = ", ".join(f"`{name}` is {id_}" for name, id_ in record["models"].items())
    verifier = record["verifier"]
    lines = [
        "# The thesis' protocol: KV memory split between generator and verifier",
        "",
        f"{record['problems']} problems of {record['data']}{spread}. {models}; seed 0. "
        f"{amount_text(record['kv_bytes'])} for the keys and values of both, of which `{verifier}` has a share and an "
        "engine of its own; *one budget* is what every session does: memory moves to whom it is worth most. The "
        "thesis' share is of a GPU with weights and activations in it; here it is of the memory for keys and values.",
        "",
        *_table(_HEAD, [_cells(line, verifier) for line in record["lines"]]),
        "",
        "Only answered problems count for tokens and problems a second; failed ones are of those that a share does not "
        "hold. *Same answers* are those of one budget: a share changes when a token is computed, and none of the "
        "tokens. *Verifier read* counts the tokens that went through it, those evicted and read again included. "
        "Seconds are wall time; where other work ran on the machine, compare tokens a processor second (CPU s).",
        "",
        *(f"- `{own['program']}` at {own['share']:.2f} does not run: {own['reason']}." for own in record["unfit"]),
        f"![Throughput, cache hits and thrashing by the verifier's share]({SPLIT})",
        "",
        "Figures 6.1, 6.6 and 6.7: throughput, the share of prompt tokens found in the prefix cache, and the pages "
        "that were evicted and missed again. Dotted lines: one budget.",
        "",
        *_memory(record),
    ]
    if shown := _with_pages(record):
        shares = " and ".join(f"{line['share']:.2f}" for line in shown)
        lines += [
            f"![Pages that the verifier holds]({PAGES})",
            "",
            f"Figures 6.2 and 6.3: pages that the verifier of `{shown[0]['program']}` holds after each of its forwards "
            f"at {shares}; the line is all that it has.",
            "",
        ]
    if batches := record["batches"]:
        lines += [
            f"![Tokens a processor second by sequences and tokens of a step]({BATCH})",
            "",
            "Figures 6.4 and 6.5: tokens that go through a model, prompts included, a processor second, when its "
            "sequences and tokens of a step are bounded and the other model's are not. The process's time is divided "
            f"between the models as the time of their forwards. {batches[0]['problems']} problems of "
            f"`{record['lines'][0]['program']}` at a share of {batches[0]['share']:.2f}.",
            "",
        ]
    lines.append(f"Measured on: {record['machine']['sentence']}.")
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _cells(line: Record, verifier: str) -> tuple[str, ...]:
    forwards = line["forwards"].values()
    read = line["forwards"].get(verifier, {}).get("prefill_tokens", 0)
    return (
        line["program"],
        _share(line),
        f"{line['right']}/{line['total']} ({line['right'] / line['total']:.1%})",
        f"{line['low']:.1%} to {line['high']:.1%}",
        f"{line['failed']:,}",
        f"{line['same']}/{line['total']}",
        f"{line['tokens_per_second']:,.0f}",
        f"{line['problems_per_second']:.2f}",
        f"{line['tokens_per_cpu_second']:,.0f}",
        f"{read:,}",
        f"{sum(own['preemptions'] for own in forwards):,}",
    )


def _share(line: Record) -> str:
    return "one budget" if line["share"] is None else f"{line['share']:.2f}"


def _memory(record: Record) -> Iterator[str]:
    """What memory is made of (6.1), and the pages that each model has at each share (6.1.1)."""
    parts = record["memory"]
    if parts:
        named = {"weights": "weights of both", "activations": "activations of a step, at most", "other": "all else"}
        rows = [[text, amount_text(int(parts[name]["peak"]))] for name, text in named.items() if name in parts]
        yield from _table(["memory", "size"], [*rows, ["keys and values of both", amount_text(record["kv_bytes"])]])
        yield ""
    first = record["lines"][0]["program"]
    lines = [line for line in record["lines"] if line["program"] == first]
    names = list(record["models"])
    head = ["verifier's share", *(f"pages of `{name}`, at most held" for name in names)]
    rows = []
    for line in lines:
        own = line["forwards"]
        cells = [f"{own[name]['pages']:,}, {own[name]['peak_pages']:,}" if name in own else "" for name in names]
        rows.append([_share(line), *cells])
    yield from _table(head, rows)
    yield ""
    sizes = ", ".join(f"{amount_text(size)} in `{name}`" for name, size in record["page_bytes"].items())
    yield f"`{first}`. A page of keys and values takes {sizes}."
    yield ""


def _with_pages(record: Record) -> list[Record]:
    verifier = record["verifier"]
    return [
        line for line in record["lines"] if line["share"] in _PAGES_AT and "held" in line["forwards"].get(verifier, {})
    ]


def _split(record: Record) -> Figure:
    picture, panels = plt.subplots(1, 4, figsize=(16, 4), layout="constrained")
    throughput, processor, hits, thrashing = panels
    programs = list(dict.fromkeys(line["program"] for line in record["lines"]))
    for program, (color, marker) in zip(programs, _STYLES, strict=False):
        split = [line for line in record["lines"] if line["program"] == program and line["share"] is not None]
        shared = next(line for line in record["lines"] if line["program"] == program and line["share"] is None)
        for axes, name in ((throughput, "problems_per_second"), (processor, "tokens_per_cpu_second")):
            axes.plot(_shares(split), [line[name] for line in split], color=color, marker=marker, label=program)
            axes.axhline(shared[name], color=color, linestyle=":")
    first = [line for line in record["lines"] if line["program"] == programs[0] and line["share"] is not None]
    shared = record["lines"][0]
    for name, (color, marker) in zip(record["models"], _STYLES, strict=False):
        own = [line for line in first if name in line["forwards"]]
        for axes, figure in ((hits, "hit_rate"), (thrashing, "thrashed")):
            values = [line["forwards"][name][figure] for line in own]
            axes.plot(_shares(own), values, color=color, marker=marker, label=name)
            axes.axhline(shared["forwards"][name][figure], color=color, linestyle=":")
    throughput.set(title="6.1: problems a second", ylim=(0, None))
    processor.set(title="6.1: tokens a processor second", ylim=(0, None))
    hits.set(title=f"6.6: prompt tokens found in the cache, {programs[0]}", ylim=(0, 1))
    hits.yaxis.set_major_formatter(PercentFormatter(1.0))
    thrashing.set(title=f"6.7: pages missed again, {programs[0]}", ylim=(0, None))
    for axes in panels:
        axes.set_xlabel("the verifier's share of the KV memory")
        axes.legend(fontsize=7)
    return picture


def _shares(lines: Sequence[Record]) -> list[float]:
    return [line["share"] for line in lines]


def _pages(record: Record, shown: Sequence[Record]) -> Figure:
    size = (6.5 * len(shown), 3.6)
    picture, panels = plt.subplots(1, len(shown), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axes, line in zip(panels[0], shown, strict=True):
        own = line["forwards"][record["verifier"]]
        axes.plot(own["held"], color="#0072B2", linewidth=0.8)
        axes.axhline(own["pages"], color="#D55E00", linewidth=1)
        number = "6.2" if line["share"] == _PAGES_AT[0] else "6.3"
        title = f"{number}: pages that the verifier holds, share {line['share']:.2f}"
        axes.set(title=title, xlabel="forward of the verifier")
    panels[0][0].set_ylim(bottom=0)
    return picture


def _batches(record: Record) -> Figure:
    verifier = record["verifier"]
    names = sorted(record["models"], key=lambda name: name != verifier)
    picture, panels = plt.subplots(1, len(names), figsize=(5 * len(names), 3.4), layout="constrained", squeeze=False)
    for number, (axes, name) in enumerate(zip(panels[0], names, strict=True), 4):
        cells = [cell for cell in record["batches"] if cell["model"] == name]
        _cells_of(axes, cells, f"6.{number}: tokens of `{name}` a processor second")
    return picture


def _cells_of(axes: Axes, cells: Sequence[Record], title: str) -> None:
    sequences = sorted({cell["sequences"] for cell in cells})
    for most, (color, marker) in zip(sequences, _STYLES, strict=False):
        own = [cell for cell in cells if cell["sequences"] == most]
        tokens, rates = [cell["tokens"] for cell in own], [cell["rate"] for cell in own]
        axes.plot(tokens, rates, color=color, marker=marker, label=f"{most} sequences")
    axes.set(title=title, xlabel="tokens of a step, at most", xscale="log", ylim=(0, None))
    axes.set_xticks(
        sorted({cell["tokens"] for cell in cells}), [f"{cell:,}" for cell in sorted({c["tokens"] for c in cells})]
    )
    axes.minorticks_off()
    axes.legend(fontsize=7)


def _save(picture: Figure, path: Path) -> None:
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
