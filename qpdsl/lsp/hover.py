"""Hover texts: the form of a stage and the columns after it, or what a name means."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.format.unparse import format_expr, format_head, format_model, format_param_type
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import COLUMNS
from qpdsl.lsp.definitions import Definition, caret, definition
from qpdsl.lsp.document import Document

_DESCRIPTIONS = {
    "text": "all that was generated since the last `chat` or `prompt`",
    "step": "the last stage's piece, without the stop string",
    "finish": "why it ended: `eos`, `stop`, `length` (`max_tokens`), `match` (`as`) or `context` (no room is left)",
    "finished": "whether the model ended its turn, or has no room to go on",
    "logprob": "natural logarithm of the probability of what was generated",
    "tokens": "how many tokens were generated",
    "group": "the number of the copy that `split` made",
    "thought": "what the model thought before its answer; none where it did not",
    "thought_tokens": "how many of the tokens were generated for the thought",
}


def hover(document: Document, offset: int) -> tuple[str, Span] | None:
    """Markdown, and the part of the text that it is about."""
    offset = caret(document, offset)
    nodes = document.nodes_at(offset)
    stages = [node for node in nodes if isinstance(node, ast.Stage)]
    target = definition(document, offset)
    if isinstance(nodes[-1] if nodes else None, ast.Name):
        name = nodes[-1]
        assert isinstance(name, ast.Name)
        return _name_in_row(document, name, stages[-1] if stages else None, target), name.span
    if target is not None and target.node is not None:
        return _declared(target), nodes[-1].span
    if stages:
        return _stage(document, stages[-1]), stages[-1].span
    return None


def _name_in_row(document: Document, name: ast.Name, stage: ast.Stage | None, target: Definition | None) -> str:
    if target is not None and isinstance(target.node, ast.Param):
        return _declared(target)
    columns = document.columns_after.get(stage.span, {}) if stage else {}
    type_ = columns.get(name.id) or COLUMNS.get(name.id, "unknown")
    description = _DESCRIPTIONS.get(name.id, "")
    if target is not None and target.node is not None:
        line, _ = target.source.position(target.node.span.start)
        description = f"made on line {line}: `{_line(target.source, target.node.span)}`"
    return f"column `{name.id}`: {type_}" + (f"\n\n{description}" if description else "")


def _declared(target: Definition) -> str:
    match target.node:
        case ast.Model() as model:
            return f"```qp\n{format_model(model)}\n```"
        case ast.Param(name=name, default=default) as param:
            shown = f" = {format_expr(default)}" if default else ""
            return f"parameter `{name}`: {format_param_type(param)}{shown}"
        case ast.Program() as program:
            return f"```qp\n{format_head(program)}\n```"
        case ast.Schema() as schema:
            return f"```qp\n{target.source.text[schema.span.start : schema.span.end]}\n```"
    return ""


def _stage(document: Document, stage: ast.Stage) -> str:
    parts = [f"```qp\n{STAGES[stage.word].usage}\n```"]
    columns = document.columns_after.get(stage.span)
    if columns:
        parts.append(f"columns after this stage:\n\n{_table(columns)}")
    return "\n\n".join(parts)


def _table(columns: Mapping[str, str]) -> str:
    return "\n".join(["| column | type |", "|---|---|", *(f"| {name} | {type_} |" for name, type_ in columns.items())])


def _line(source: Source, span: Span) -> str:
    return source.text[span.start : span.end].split("\n")[0].strip()
