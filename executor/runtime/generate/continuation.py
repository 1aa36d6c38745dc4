"""From a row to the tokens that it continues, and from a sample to the row that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from qpdsl.executor.events.events import Path
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.drawing import ConfidenceFloor, DrawFigures, LogitProcessors
from qpdsl.executor.requests.request import Sample, SamplingParams, Thought
from qpdsl.executor.runtime.generate.thought import ThoughtWatch
from qpdsl.executor.runtime.generate.turn import Think, Turn, turn_of
from qpdsl.executor.runtime.instance.candidates import Generated, Row, ThoughtState, ToolCall, Written
from qpdsl.executor.runtime.instance.instance import Instance, RowError, checked
from qpdsl.executor.runtime.operators.json_documents import spelt_in
from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Context, encode, encode_after, read_beside
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.text.stop import Stops, StopWatch
from qpdsl.executor.text.tool_format import with_tools
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.grammar.ast import USUAL_ALPHA, USUAL_BETA, USUAL_WINDOW
from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value, format_value

# A larger bias would leave float32 nothing of the logits.
_MAX_BIAS = 1e5
# What leaves nothing to go on with: the model ended its turn, has no room, or is not sure enough. All else the program
# has ended.
_FINISHED = ("eos", "context", "until", "thought")


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The options of a `generate` stage, evaluated for one row.

    `ahead` is how many rounds its samples may run ahead, None where the plan decides. `threshold` and `share` are those
    of its filter, `alpha` and `beta` those of its contrast.
    """

    count: int
    params: SamplingParams
    stop: Stops | None
    max_tokens: int | None
    think: Think
    floor: ConfidenceFloor | None
    ahead: int | None
    threshold: float | None
    share: float | None
    alpha: float
    beta: float

    @classmethod
    def of(cls, values: Mapping[str, Value], op: ops.Generate, model: TextModel) -> GenerateOptions:
        """Of the values of the options that the stage has. Raises RowError where one does not do."""
        unchecked = ("stop", "without", "think", "bar", "logit_bias")
        given = {name: checked(name, value) for name, value in values.items() if name not in unchecked}
        top_k, bound, least = given.get("top_k"), given.get("max_tokens"), int(given.get("min_tokens", 0))
        processors = LogitProcessors(
            given.get("repetition_penalty", 1.0),
            given.get("presence_penalty", 0.0),
            given.get("frequency_penalty", 0.0),
            _bias(values.get("logit_bias", ()), model),
            least,
            _texts("without", values.get("without", ())),
        )
        params = SamplingParams(
            given["temperature"],
            None if top_k is None else int(top_k),
            given.get("top_p"),
            given.get("min_p"),
            processors,
        )
        texts, patterns = _texts("stop", values.get("stop", ())), op.stop_patterns
        stops = Stops(texts, patterns, op.stop_text == "drop", least) if texts or patterns else None
        think, bar = Think.of(values.get("think")), values.get("bar")
        floor = None
        # Nothing is less than none.
        if isinstance(bar, int | float):
            floor = ConfidenceFloor(int(given.get("window", USUAL_WINDOW)), float(bar), SCORE_DIGITS)
        most, ahead = (None if value is None else int(value) for value in (bound, given.get("ahead")))
        filtered = given.get("threshold"), given.get("share")
        contrast = given.get("alpha", USUAL_ALPHA), given.get("beta", USUAL_BETA)
        return cls(int(given["n"]), params, stops, most, think, floor, ahead, *filtered, *contrast)


def _texts(name: str, value: Value) -> tuple[str, ...]:
    given = value if isinstance(value, tuple) else (value,)
    texts = tuple(text for text in given if isinstance(text, str) and text)
    if len(texts) < len(given):
        raise RowError(f"`{name}` must be a text that is not empty, or a list of such texts")
    return texts


def _bias(value: Value, model: TextModel) -> tuple[tuple[int, float], ...]:
    """What a list of records says is added to the logits of ids, in their order."""
    bias: dict[int, float] = {}
    for record in value if isinstance(value, tuple) else (value,):
        if not isinstance(record, Mapping) or set(record) != {"token", "bias"}:
            raise RowError("`logit_bias` must be a list of records of a `token` and its `bias`")
        token, more = record["token"], record["bias"]
        if not isinstance(more, int | float) or isinstance(more, bool) or not abs(more) < _MAX_BIAS:
            raise RowError(f"a `bias` must be a number under {_MAX_BIAS:g}, not {format_value(more)}")
        if isinstance(token, str):
            special = model.tokenizer.get_added_vocab().get(token)
            ids = [special] if special is not None else model.encode(token)
            if len(ids) != 1:
                raise RowError(
                    f"{format_value(token)} is {len(ids)} tokens of model `{model.name}`, and a bias is for one"
                )
            token = ids[0]
        if not isinstance(token, int) or not 0 <= token < model.width:
            raise RowError(f"model `{model.name}` has no token {format_value(token)}")
        bias[token] = bias.get(token, 0.0) + more
    return tuple(sorted(bias.items()))


@dataclass(frozen=True, slots=True)
class Continuation:
    """An unfinished row: the tokens that it goes on from, how many may follow, and its samples' paths and keys.

    The last of the tokens are those of the row's `turn`. `options` are those of the stage, for this row. `full`: as
    many tokens as may follow take all of the model's context. `thought`: what comes before an answer, of which `limit`
    says how long it is. `drawn`: how many tokens were drawn before under the keys.
    """

    row: Row
    options: GenerateOptions
    prompt: tuple[int, ...]
    turn: Turn
    limit: int
    full: bool
    paths: tuple[Path, ...]
    keys: tuple[int, ...]
    thought: Thought | None = None
    drawn: int = 0

    @property
    def floor(self) -> ConfidenceFloor | None:
        """What its confidence may not fall under, that of what was drawn before counted in."""
        floor = self.options.floor
        return None if floor is None else floor.after(self.row.generated.figures or ())

    @property
    def earlier(self) -> tuple[int, ...]:
        """What was written since the context was set, in the tokens of the model."""
        return self.turn.earlier

    @classmethod
    def of(
        cls, op: ops.Generate, row: Row, model: TextModel, options: GenerateOptions, instance: Instance
    ) -> Continuation | None:
        """None where the row is finished, or what was generated has filled its context. Raises RowError."""
        if row.generated.finished:
            return None
        think = options.think
        turn = turn_of(op, row, model, think)
        shown = shown_context(row, op)
        prompt = _context(shown, model, instance, turn.state.switch) + turn.earlier
        models = [model, instance.services.models[op.via.model.name]] if isinstance(op.via, ops.Paired) else [model]
        room = min(one.max_positions for one in models) - len(prompt)
        assert row.context is not None and shown is not None
        if room <= 0 and (row.generated.text or row.generated.sampled or row.context.grown):
            return None
        paths = tuple((*row.path, index) for index in range(options.count))
        bounds = [options.max_tokens, think.limit if turn.thinks and op.only == "thought" else None]
        most = min((bound for bound in bounds if bound is not None), default=room)
        return cls(
            row,
            options,
            prompt,
            turn,
            max(1, min(most, room)),
            most >= room,
            paths,
            instance.keys(op.ordinal, row.context, paths),
            turn.thought(op, model.thought_marks, think.limit, room),
        )

    @property
    def of_thought(self) -> Continuation:
        """The same for the thought alone."""
        assert self.thought is not None
        params = self.options.params
        free = replace(params, processors=replace(params.processors, min_tokens=0, without=()))
        options = replace(self.options, params=free)
        return replace(self, options=options, limit=self.thought.most, thought=None)

    def of_answer(self, index: int, thought: tuple[int, ...]) -> Continuation | None:
        """How a sample goes on with its answer behind these tokens; None where it has no room."""
        assert self.thought is not None
        room = self.thought.room - len(thought)
        if room < 1:
            return None
        return replace(
            self,
            options=replace(self.options, count=1),
            prompt=self.prompt + thought,
            turn=Turn("answer", (earlier := self.earlier + thought), replace(self.turn.state, begins=len(earlier))),
            limit=min(self.limit, room),
            full=self.limit >= room,
            paths=self.paths[index : index + 1],
            keys=self.keys[index : index + 1],
            thought=None,
            drawn=self.drawn + len(thought),
        )

    def child(self, index: int, sample: Sample, op: ops.Generate, model: TextModel) -> Row:
        """The row that a sample makes."""
        row, before, stop = self.row, self.row.generated, self.options.stop
        tokens = self.earlier + (sample.tokens[:-1] if sample.finish == "eos" else sample.tokens)
        stopped = sample.watch if sample.finish == "stop" else None
        cut = stopped.cut if isinstance(stopped, StopWatch | ThoughtWatch) else None
        if cut is not None:
            tokens = tokens[: len(self.earlier) + cut.tokens]
            tokens += model.encode_after(tokens, cut.tail) if cut.tail else ()
        finish = self._finish(sample, op)
        finished = finish in _FINISHED or (op.like is not None and finish == "length")
        state = self.turn.state
        if self.turn.thinks:
            unthought = isinstance(sample.watch, ThoughtWatch) and sample.watch.unthought
            tokens, text, step, state = self._parted(tokens, op, model, finished=finished, unthought=unthought)
            state = replace(state, tokens=self.turn.state.tokens + thought_tokens(sample))
            if isinstance(sample.watch, ThoughtWatch):
                watch, former = sample.watch, before.figures or ()
                state = replace(
                    state,
                    figures=state.figures + sample.figures[watch.thought],
                    before=len(former) + min(watch.answer, len(sample.figures)),
                )
        else:
            text, step = self._texts(tokens, model.detokenizer, finished=finished)
        if stop is not None and sample.finish == "stop":
            step = stop.without(step)
        whole, spelt, before_call = op.constraint is None or finish == "match", step, text.removesuffix(step)
        says, calls = False, op.constraint is not None and bool(op.constraint.tools) and whole
        if op.constraint is not None and calls:
            own = max(len(self.earlier), state.begins)
            marked = partial(model.marked_detokenizer.added, tokens[:own], tokens)
            several = op.constraint.most_calls is not None
            parted = model.tool_format.parted(step, op.constraint.tools, marked, several=several)
            if parted is not None:
                before_call, spelt = before_call + parted[0], parted[1]
            says = op.constraint.or_text and parted is None
        held = op.constraint is not None and op.constraint.schema and whole and not says
        invalid = fault_of(spelt, op.constraint.schema) if op.constraint and held else None
        generated = Generated(
            model.name,
            tokens,
            text,
            finished,
            before.logprob + sample.logprob,
            before.sampled + sample.size,
            not whole or invalid is not None,
            invalid,
            least=_least(before, sample),
            figures=_figures(before, sample),
            thought=state,
            written=before.written if op.into is None else {**before.written, op.into.id: _written(sample)},
            tools=before.tools if op.constraint is None else with_tools(before.tools, op.constraint.tools),
            call=ToolCall(spelt, before_call, model.tool_format.id) if calls and not says else None,
        )
        # Some servers tell no log-probabilities.
        untold = is_remote(model.name) and sample.size > 0 and not sample.logprob
        columns = {
            **row.columns,
            "text": text,
            "step": step,
            "finish": finish,
            "finished": generated.finished,
            "logprob": None if untold else generated.logprob,
            "tokens": generated.sampled,
            "thought": state.text,
            "thought_tokens": state.tokens,
        }
        if op.into is not None:
            columns[op.into.id] = None if generated.incomplete or says else _held(op.constraint, spelt)
        return Row(row.context, self.paths[index], columns, generated)

    def _texts(self, tokens: tuple[int, ...], detokenizer: Detokenizer, *, finished: bool) -> tuple[str, str]:
        """The text of the row that ends with these tokens, and what this call has written of it.

        A letter belongs to the call that completes it: one that is only begun is no part of the second, unless the
        row is finished.
        """
        before, tokens = self.turn.text, tokens[self.turn.state.begins :]
        begun, added = detokenizer.tail(before), detokenizer.added(before, tokens)
        # Special tokens of a `say` are in the text before, but no tokenizer gives them back.
        text = self.row.generated.text.removesuffix(begun) + added
        step = added if finished else added.removesuffix(detokenizer.tail(tokens))
        if self.turn.begins:
            text, step = text.lstrip(), step.lstrip()
        return text, step.removeprefix(begun)

    def _parted(
        self, tokens: tuple[int, ...], op: ops.Generate, model: TextModel, *, finished: bool, unthought: bool
    ) -> tuple[tuple[int, ...], str, str, ThoughtState]:
        """The row's tokens, its text, what this call has written of it, and its thought. A thought alone stays open.

        `unthought`: it is all answer. A stop can cut it to white space, which alone could still come before a thought.
        """
        marks, detokenizer, inside = model.thought_marks, model.detokenizer, self.turn.state.inside
        assert marks is not None
        if op.only is not None:
            tokens = marks.unclosed(tokens, inside=inside)
        parted = marks.answer(tokens) if unthought else marks.parted(tokens, inside=inside)
        open_ = parted.place != "answer"
        state = replace(self.turn.state, text=parted.thought, open=open_, begins=0 if open_ else parted.begins)
        if op.only is not None:
            step = detokenizer.added(self.earlier, tokens)
            return tokens, "", step.removesuffix(detokenizer.tail(tokens)), state
        tail = "" if finished else detokenizer.tail(tokens[parted.begins :])
        return tokens, parted.answer, parted.answer.removesuffix(tail) if parted.answer else "", state

    def _finish(self, sample: Sample, op: ops.Generate) -> str:
        """Why the sample ended, as a program sees it. A model can end a turn only where nothing holds its output."""
        chooses = op.constraint is not None and op.constraint.kind == "choice"
        watch, full = sample.watch, self.full
        if sample.finish == "until":
            return "until"
        if isinstance(watch, ThoughtWatch):
            if op.only is not None and (watch.closed or sample.finish == "eos"):
                # To end the turn is to end its thought: an answer may still be asked for.
                return "closed"
            if watch.place != "answer" and sample.finish == "eos":
                return "eos"
            full = watch.filled if self.thought is not None else full
        if sample.finish == "length" and (full or chooses):
            return "context"
        return "match" if sample.finish == "eos" and op.constraint is not None else sample.finish


def thought_tokens(sample: Sample) -> int:
    """How many tokens the model drew for the thought of a sample."""
    if sample.thought is not None:
        return sample.thought
    return sample.watch.thought_tokens if isinstance(sample.watch, ThoughtWatch) else 0


def _written(sample: Sample) -> Written:
    """What is known of the draws of what it wrote, a thought before it aside."""
    watch, figures, logprobs = sample.watch, sample.figures, sample.logprobs
    if isinstance(watch, ThoughtWatch) and watch.answer and logprobs:
        logprobs, figures = logprobs[watch.answer :], figures[watch.answer :]
        return Written(sum(logprobs), len(logprobs), min(logprobs, default=None), figures)
    return Written(sample.logprob, sample.size, _least(Generated(), sample), figures)


def _least(before: Generated, sample: Sample) -> float | None:
    """The least log-probability of a token, those of a sample counted in; what was chosen as a whole is one draw."""
    drawn = sample.logprobs or ((sample.logprob,) if sample.tokens else ())
    return min((value for value in (before.least, *drawn) if value is not None), default=None)


def _figures(before: Generated, sample: Sample) -> tuple[DrawFigures, ...] | None:
    """Those of all tokens, where each has some."""
    if before.figures is None or len(sample.figures) < len(sample.tokens):
        return None
    return before.figures + sample.figures


def shown_context(row: Row, op: ops.Generate) -> Context | None:
    """A row's context with the tools that the model is shown: those of earlier calls, and of this one."""
    context, own = row.context, "" if op.constraint is None else op.constraint.tools
    if context is None or not (own or row.generated.tools):
        return context
    return replace(context, tools=with_tools(with_tools(context.tools, row.generated.tools), own))


def _held(constraint: ops.Constraint | None, step: str) -> Value:
    """The value of an output that a constraint held: a text, or what its JSON spells; none where that is too large."""
    if constraint is None or constraint.type == "text":
        return step
    return spelt_in(step, constraint.type)


def finished_row(row: Row, op: ops.Generate) -> Row:
    """A row that does not go on: it is finished already, or its context has no room left."""
    if not row.generated.finished:
        incomplete = op.constraint is not None
        row = replace(
            row,
            columns={**row.columns, "finish": "context", "finished": True},
            generated=replace(row.generated, finished=True, incomplete=incomplete),
        )
    return row if op.into is None or op.into.id in row.columns else row.with_column(op.into.id, None)


async def read_contexts(op: ops.Generate, rows: Sequence[Row], instance: Instance) -> None:
    """Encodes the contexts of unfinished rows ahead of their continuations. Raises RowError."""
    model = instance.services.models[op.model.name]
    same = op.think is None or is_same_for_all(op.think, instance.arguments)
    think = Think.of(instance.option(op.think)) if same else Think()
    for row in rows:
        if row.context is None or row.generated.finished:
            continue
        shown = shown_context(row, op) or row.context
        place = model.name, shown, turn_of(op, row, model, think).state.switch
        if place not in instance.contexts:
            encoded = partial(_encoded, shown, model, place[-1])
            instance.contexts[place] = await read_beside(row.context.characters, encoded)


def _context(shown: Context | None, model: TextModel, instance: Instance, switch: str) -> tuple[int, ...]:
    """The tokens of a row's context, rendered under a switch of how the model thinks."""
    assert shown is not None
    place = model.name, shown, switch
    context = instance.contexts.get(place)
    if context is None:
        # Where one runs ahead of the stage.
        context = instance.contexts[place] = _encoded(shown, model, switch)
    return context


def _encoded(context: Context, model: TextModel, switch: str) -> tuple[int, ...]:
    kept = context.kept
    try:
        if kept is not None and kept.model == model.name:
            drawn = _encoded(kept.before, model, kept.switch) + model.encode_said(kept.tokens, kept.said)
            close = model.thought_marks.closing if kept.open and model.thought_marks is not None else ()
            tokens = (
                drawn
                + close
                + encode_after(
                    model.tokenizer, context, kept.number, model.thinking, switch, plain_tools=_is_plain(context, model)
                )
            )
        else:
            tokens = encode(model.tokenizer, context, model.thinking, switch, plain_tools=_is_plain(context, model))
    except ContextError as error:
        raise RowError(f"model `{model.name}`: {error}") from error
    if not tokens:
        raise RowError("the context is empty: there is nothing to go on from")
    return tokens


def _is_plain(context: Context, model: TextModel) -> bool:
    """Whether the model is shown the tools of a context as text."""
    return bool(context.tools) and model.tool_format.is_plain
