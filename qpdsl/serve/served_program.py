"""A program as a model: which fields of a request it honours, its runs, and their answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from qpdsl.arguments import ArgumentError, bind, from_json
from qpdsl.errors import unknown
from qpdsl.executor.events.events import Event, OperatorDone, Path
from qpdsl.executor.remote.remote_model import MIN_TOKEN_BYTES
from qpdsl.executor.requests.errors import RequestRefused
from qpdsl.executor.requests.request import LogProbRequest
from qpdsl.executor.runtime.instance.instance import OnToken
from qpdsl.executor.text.context import encode as encode_context
from qpdsl.grammar import ast
from qpdsl.grammar.ast.model_stages import MAX_ROWS
from qpdsl.grammar.ast.walk import made_column
from qpdsl.grammar.suggest import listed
from qpdsl.planner.explain.plan import in_words
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.logical import Parameter
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value, frozen, plain, shown, thawed
from qpdsl.runs.store.fingerprint import build, digest, operators
from qpdsl.serve.completion_request import BOUNDS, CompletionRequest, NoPlace, Refusal
from qpdsl.serve.conversation import Turn, arguments_of, places, read_messages, read_prompt
from qpdsl.serve.passthrough_model import too_many_characters
from qpdsl.serve.record_format import RecordFormat, read_format
from qpdsl.serve.served_model import (
    CompletionChoice,
    CompletionResponse,
    Delta,
    FinishReason,
    Progress,
    TokenUsage,
    no_pause,
)
from qpdsl.serve.streamed_text import Growth, PendingUpdates, StopTruncator, StrippedText
from qpdsl.serve.thinking_fields import THINK, THINKING_FIELDS, AskedThinking
from qpdsl.serve.token_forms import TokenForms
from qpdsl.serve.tool_fields import AskedTools, call_of
from qpdsl.stage_options import check_options

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.executor.runtime.instance.candidates import Row
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.session.session import Session

_HONOURED = (
    "n",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "response_format",
    "parameters",
    "progress",
    "logprobs",
)
# What shapes a distribution: a program says it, or has a parameter for it.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
# How a text ends that had no room for more.
_CUT = ("length", "context", "thought")
# Seeds that nobody chose have so many bits: JSON numbers of any client hold them.
_SEED_BITS = 52


class ServedProgram:
    """A program whose models are loaded, by the name that clients give.

    `fixed` are parameters that a request may not set. `seed` is that of requests that name none; None for another one
    each time.
    """

    def __init__(
        self,
        name: str,
        plan: PhysicalPlan,
        session: Session,
        seed: int | None = None,
        fixed: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.plan = plan
        self.session = session
        self.seed = seed
        self.fixed = frozenset(fixed)
        self.params = {param.name: param for param in plan.params}
        self.schema = plan.record
        self.calls = called_tools(plan)
        self.fingerprint = "fp_" + digest([build(), operators(plan.ops), dict(plan.models)])[:12]

    @property
    def card(self) -> Mapping[str, Any]:
        """The program's parameters, by what they take, which of them a conversation fills, and what it returns."""
        return {
            "program": self.plan.name,
            "parameters": {param.name: param.declared for param in self._open},
            "conversation": places(self._open),
            "returns": self.plan.returns,
        }

    @property
    def _open(self) -> list[Parameter]:
        """The parameters that a request may set."""
        return [param for param in self.plan.params if param.name not in self.fixed]

    @property
    def writer(self) -> TextModel | None:
        """The model whose tokens an answer is counted in: that of the last `generate`."""
        names = [node.op.model.name for node in everything(self.plan.ops) if isinstance(node.op, ops.Generate)]
        return self.session.text_model(self.plan.models[names[-1]]) if names else None

    def read(self, request: CompletionRequest) -> ProgramRequest:
        """The runs that a request asks for. Raises Refusal."""
        own = [name for name in _SAMPLING if name in self.params and name not in self.fixed]
        thinks = THINKING_FIELDS if THINK in self.params and THINK not in self.fixed else ()
        # At temperature 0 a client asks for one answer, always the same, and a program gives that for a seed.
        greedy = ["temperature"] if request.get("temperature") == 0 else []
        tools = ("tools",) if self.calls and request.endpoint == "chat" else ()
        request.refuse_others((*_HONOURED, *own, *greedy, *thinks, *tools), self._instead())
        called = bool(tools) and self._offers(request)
        arguments = self._arguments(request, [name for name in own if name not in greedy])
        self._check_size(request, arguments)
        logprobs = self._wants_logprobs(request, arguments)
        form = read_format(request.get("response_format"), self.name, self.schema)
        stops, bound, writer = request.stops(), request.bound(), self.writer
        if logprobs and form is not None:
            raise Refusal("a record in which nulls are filled in has no log-probabilities", "logprobs")
        if self.schema is not None and stops:
            raise NoPlace(f"`{self.name}` returns a record, which cannot be cut", "stop")
        if bound is not None and writer is None:
            fields = ("max_tokens", "max_completion_tokens")
            raise NoPlace(f"`{self.name}` has no model to count tokens with", "max_tokens", fields=fields)
        if request.mapping("stream_options").get("continuous_usage_stats"):
            message = f"the usage of `{self.name}` is known only at its end: use `include_usage`"
            raise Refusal(message, "stream_options", code="unsupported_parameter")
        seed = request.whole("seed", 0)
        plan, share = self.plan, None
        if bound is not None and writer is not None and not writer.own_tokens:
            # Only the model's server knows its tokens.
            bounded = _bounded(self.plan, arguments, bound)
            plan, share, bound = (self.plan, bound, None) if bounded is None else (bounded, None, None)
        # Without a model there is no bound, and no text has a token.
        letter_ends: Callable[[str], Sequence[int]] = (lambda text: ()) if writer is None else writer.letter_ends
        if seed is None:
            # Whoever samples at temperature 0 asks for the same answer each time.
            seed = self.seed if self.seed is not None else 0 if greedy else secrets.randbits(_SEED_BITS)
        return ProgramRequest(
            self,
            request,
            arguments,
            seed,
            request.choices(),
            [StopTruncator(stops, bound, letter_ends) for _ in range(request.choices())],
            form,
            logprobs=logprobs,
            progress=request.flag("progress"),
            called=called,
            plan=plan,
            share=share,
        )

    def _offers(self, request: CompletionRequest) -> bool:
        """Whether a client has tools, all that the program may call among them. Raises Refusal where one is missing."""
        names = AskedTools.of(request).names
        if not names:
            return False
        if missing := sorted(self.calls - names):
            raise Refusal(f"`{self.name}` may call {listed(missing)}, which `tools` has not", "tools")
        return True

    def _check_size(self, request: CompletionRequest, arguments: Mapping[str, Value]) -> None:
        """Raises Refusal for more samples than a program may draw, or more text than its models read."""
        generates = [node.op for node in everything(self.plan.ops) if isinstance(node.op, ops.Generate)]
        counts = [value for op in generates if isinstance(value := _count(op.n, arguments), int)]
        if (samples := request.choices() * max(counts, default=1)) > MAX_ROWS:
            message = f"{request.choices()} answers of `{self.name}` would draw {samples:,} samples at once"
            raise Refusal(f"{message}, and up to {MAX_ROWS:,} are taken", "n")
        roomiest = max(self._models(), key=lambda model: model.most_characters, default=None)
        characters = max(map(_characters, arguments.values()), default=0)
        if roomiest is not None and characters > roomiest.most_characters:
            where = "messages" if request.endpoint == "chat" else "prompt"
            raise too_many_characters(roomiest.max_positions, characters, where)

    def _models(self) -> Iterator[TextModel]:
        """The models of the program that it has loaded."""
        for id in set(self.plan.models.values()):
            with contextlib.suppress(KeyError):
                yield self.session.text_model(id)

    def _wants_logprobs(self, request: CompletionRequest, arguments: Mapping[str, Value]) -> bool:
        """Whether log-probabilities of the answer's tokens are asked for. Raises Refusal where they are not known."""
        count = None if request.endpoint == "chat" else request.whole("logprobs", 0, 0)
        if count is None and (request.endpoint == "text" or not request.flag("logprobs")):
            return False
        message = None
        if text_stage(self.plan, arguments) is None:
            message = f"the answer of `{self.name}` is not the text of one sample, so it has no log-probabilities"
        elif self.writer is None or "logprobs" not in self.session.engine.capabilities(self.writer.name).features:
            read = "are read once it is there, and its model's server gives none of a text that is given"
            message = f"the log-probabilities of the answer of `{self.name}` {read}"
        if message is not None:
            raise NoPlace(message, "logprobs")
        return True

    def _instead(self) -> dict[str, str]:
        """What to do instead of sending a field that is not honoured."""
        words = {
            name: f'`{name}` is a parameter of `{self.name}`: send it in {{"parameters": {{"{name}": …}}}}'
            for name in self.params
        }
        for name in _SAMPLING:
            words[name] = (
                f"`{self.name}` sets its own sampling; leave out `{name}`, give the program a parameter of that "
                f"name, or start the server with `--ignore {name}`"
            )
        for name in THINKING_FIELDS:
            words[name] = (
                f"`{self.name}` sets how its models think; leave out `{name}`, give the program a parameter "
                f"`{THINK}`, or start the server with `--ignore {name}`"
            )
        words["top_logprobs"] = "the log-probabilities of the answer's own tokens are returned, and no others"
        return words

    def _arguments(self, request: CompletionRequest, own: Sequence[str]) -> dict[str, Value]:
        given = dict(request.mapping("parameters"))
        for name in given:
            if name not in self.params:
                raise Refusal(
                    unknown(name, [param.name for param in self._open], f"`{self.name}` has no parameter"), "parameters"
                )
            if name in self.fixed:
                raise Refusal(f"`{name}` of `{self.name}` is set by the server", "parameters")
        for name in own:
            # The program may take more, and clients are told what OpenAI's API tells them.
            request.number(name, *BOUNDS[name])
            if (value := request.get(name)) is not None and given.setdefault(name, value) != value:
                raise Refusal(f"`{name}` is given twice, once among the parameters", name)
        if THINK in self.params and THINK not in self.fixed:
            asked = AskedThinking.of(request)
            for name, value in asked.of_program(self.name, self.params[THINK]).items():
                if given.setdefault(name, value) != value:
                    raise Refusal(f"`{name}` is given twice, once among the parameters", asked.field)
        for name, value in self._said(request).items():
            if name in given:
                raise Refusal(f"`{name}` is given twice, by the conversation and among the parameters", "parameters")
            given[name] = value
        try:
            values = {name: from_json(self.params[name], value) for name, value in given.items()}
            arguments = bind(self.plan.params, values)
            check_options(self.plan, arguments)
        except ArgumentError as error:
            raise Refusal(str(error), "parameters") from error
        return arguments

    def _said(self, request: CompletionRequest) -> dict[str, Any]:
        """What the conversation says of the arguments."""
        turns: Sequence[Turn]
        if request.endpoint == "chat":
            what, field = "last user message", "messages"
            turns = read_messages(request.body.get(field), tools=True)
        else:
            what, field = "prompt", "prompt"
            turns = [{"role": "user", "content": read_prompt(request.body.get(field))}]
        asked = [turn["content"] for turn in turns if turn["role"] == "user"]
        if asked and not asked[-1]:
            raise Refusal(f"the {what} is empty", field)
        return arguments_of(self.name, self._open, turns)


@dataclass
class ProgramRequest:
    """The runs of a program that one request asks for: `n` of them, with the seeds `seed`, `seed + 1`, ….

    `cuts` has one for each. `form`: what is to be added to the record that the program returns. With `logprobs` the
    log-probabilities of the answer's tokens are read once it is there: those of the model at temperature 1, whatever
    the program sampled by and held it to. `called`: the call that the program ends in is the client's to make. `plan`
    is the program's, with the client's bound in it where that is the model's server's to keep; an answer of more tokens
    than `share`, as that server counted them, is cut by its share of them.
    """

    program: ServedProgram
    request: CompletionRequest
    arguments: Mapping[str, Value]
    seed: int
    n: int
    cuts: Sequence[StopTruncator]
    form: RecordFormat | None = None
    logprobs: bool = False
    progress: bool = False
    called: bool = False
    plan: PhysicalPlan = field(kw_only=True)
    share: int | None = None

    async def answer(self) -> CompletionResponse:
        """The answers of all runs. Raises Refusal where one of them fails."""
        if self.n == 1:
            return await self._answer([await self._run(0)])
        tasks = [asyncio.create_task(self._run(index)) for index in range(self.n)]
        try:
            return await self._answer(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stream(
        self, pause: Callable[[], float] = no_pause
    ) -> AsyncGenerator[Delta | Progress | CompletionResponse, None]:
        """Deltas of the text where it is known while it is written, then the answer. Raises Refusal."""
        updates = PendingUpdates()
        tasks = [asyncio.create_task(self._run(index, self._deltas(index, updates))) for index in range(self.n)]
        runs = asyncio.gather(*tasks, return_exceptions=True)
        unsubscribe = self._report(updates) if self.progress else lambda: None
        try:
            async for progress, grown in updates.batches(runs, pause):
                for step in progress:
                    yield step
                for index, growth in grown.items():
                    shown_now = self.cuts[index].feed(growth.text) if growth.text else ""
                    if shown_now or growth.thought:
                        yield Delta(index, shown_now, thought=growth.thought)
            yield await self._answer([task.result() for task in tasks])
        finally:
            unsubscribe()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, index: int, on_token: OnToken | None = None) -> Coroutine[Any, Any, InstanceResult]:
        program, name = self.program, self._name(index)
        return program.session.run(
            self.plan, self.arguments, self.seed + index, name, on_token, client=self.request.client
        )

    def _name(self, index: int) -> str:
        return f"{self.request.id} {index}"

    def _deltas(self, index: int, updates: PendingUpdates) -> OnToken | None:
        """What takes the growing text of a run; None where it is not that of the answer."""
        stage = text_stage(self.program.plan, self.arguments)
        if stage is None or self.form is not None or self.logprobs or self.called or self.share is not None:
            return None

        shown_thought = StrippedText()

        def take(path: Path, at: int, text: str, thought: bool) -> None:
            # A text completion has no place for a thought.
            if at == stage and not (thought and self.request.endpoint == "text"):
                updates.grow(index, Growth(thought=shown_thought.feed(text)) if thought else Growth(text))

        return take

    def _report(self, updates: PendingUpdates) -> Callable[[], None]:
        """Puts what operators have come to among the updates, in words; the function that is returned ends that."""
        names = {self._name(index): index for index in range(self.n)}
        kinds = {node.id: in_words(node.op) for node in everything(self.program.plan.ops)}

        def see(event: Event) -> None:
            if isinstance(event, OperatorDone) and event.instance in names:
                whose = f"choice {names[event.instance]}: " if self.n > 1 else ""
                place = "".join(f"round {number + 1}: " for number in event.rounds[-1:])
                rows = f"{event.rows_out} row{'s' * (event.rows_out != 1)}"
                tokens = f", {event.sampled_tokens} tokens" if event.sampled_tokens else ""
                updates.report(Progress(f"{whose}{place}{kinds.get(event.operator, event.operator)}: {rows}{tokens}"))

        return self.program.session.events.subscribe(see)

    async def _answer(self, results: Sequence[InstanceResult]) -> CompletionResponse:
        for result in results:
            if result.fault is not None:
                raise result.fault
            if isinstance(result.cause, RequestRefused):
                raise result.cause
            if result.error is not None:
                raise Refusal(f"`{self.program.name}` has no answer: {result.error}", status=422, code="program_failed")
        made = [self._chosen(*one) for one in zip(range(self.n), results, self.cuts, strict=True)]
        choices = [chosen for chosen, _ in made]
        if self.logprobs:
            read = [
                self._with_logprobs(choice, result.rows[0]) for choice, result in zip(choices, results, strict=True)
            ]
            choices = await asyncio.gather(*read)
        sampled = sum(result.sampled_tokens for result in results)
        usage = TokenUsage(
            sum(result.prompt_tokens for result in results),
            sampled,
            sum(result.cached_tokens for result in results),
            min(sum(tokens for _, tokens in made), sampled),
        )
        return CompletionResponse(tuple(choices), usage, self.program.fingerprint, {"seed": self.seed})

    def _chosen(self, index: int, result: InstanceResult, cut: StopTruncator) -> tuple[CompletionChoice, int]:
        """The answer of a run, and how many tokens it has."""
        row = result.rows[0] if result.rows else None
        text = None if row is None else row.columns.get("text")
        thought = None if row is None else row.generated.thought.text
        score = {} if result.score is None else {"score": plain(result.score)}
        size = partial(_size, self.program.writer, row)
        if self.called and (calls := self._calls(index, result.value)):
            before = "" if row is None or row.generated.call is None else row.generated.call.before
            chosen = CompletionChoice(before, "tool_calls", extra=score, thought=thought, calls=calls)
            return chosen, size(before) + sum(size(call["function"]["arguments"]) for call in calls)
        if row is None or not isinstance(text, str) or text_stage(self.program.plan, self.arguments) is None:
            said, why = self._cut(*cut.whole(self._form(shown(result.value))), size)
            return CompletionChoice(said, why, extra=score, thought=thought), size(said)
        # What a model wrote last is given as it wrote it, so that it can be streamed.
        finish: FinishReason = "length" if row.columns.get("finish") in _CUT else "stop"
        whole = self._form(text)
        said, why = self._cut(*cut.whole(whole, finish), size)
        own = row.generated.sampled - row.generated.thought.tokens
        return CompletionChoice(said, why, extra=score, thought=thought), own if said == whole else size(said)

    def _cut(self, text: str, finish: FinishReason, size: Callable[[str], int]) -> tuple[str, FinishReason]:
        """An answer and why it ended, cut to its `share` of the counted tokens."""
        if self.share is None or (tokens := size(text)) <= self.share:
            return text, finish
        return text[: len(text) * self.share // tokens], "length"

    def _calls(self, index: int, value: Any) -> tuple[Mapping[str, Any], ...]:
        """The calls of the client's tools that a run gives back; none where it gives back anything else."""
        given = {name: thawed(argument) for name, argument in self.arguments.items()}
        calls = value if isinstance(value, list | tuple) else [value]
        if any(not isinstance(call, Mapping) or call.get("name") not in self.program.calls for call in calls):
            return ()
        return tuple(
            call_of(str(call["name"]), thawed(frozen(call["arguments"])), digest([self.seed + index, number, given]))
            for number, call in enumerate(calls)
        )

    async def _with_logprobs(self, chosen: CompletionChoice, row: Row) -> CompletionChoice:
        """The choice with the log-probabilities of its tokens, of which the last one may be cut."""
        model = self.program.session.text_model(row.generated.model)
        tokens, growing = row.generated.tokens, model.detokenizer.begin()
        thought, before = row.generated.thought, tokens[: row.generated.thought.begins]
        tokens = tokens[len(before) :]
        while before and tokens and not model.decode(tokens[:1]).strip():
            before, tokens = before + tokens[:1], tokens[1:]
        shortest = length = 0
        while shortest < len(tokens) and length < len(chosen.text):
            length += len(growing.push(tokens[shortest]))
            shortest += 1
        logprobs: Sequence[float] = ()
        if shortest:
            assert row.context is not None
            prompt = encode_context(model.tokenizer, row.context, model.thinking, thought.switch) + before
            reading = LogProbRequest(prompt, tokens[:shortest], client=self.request.client)
            logprobs = (await self.program.session.engine.submit(model.name, reading)).logprobs
        told = TokenForms(model).logprobs(self.request.endpoint, tokens[:shortest], logprobs, "none")
        return replace(chosen, logprobs=told)

    def _form(self, text: str) -> str:
        return text if self.form is None else self.form.filled(text)


def _bounded(plan: PhysicalPlan, arguments: Mapping[str, Value], bound: int) -> PhysicalPlan | None:
    """A plan that writes at most `bound` tokens of its answer; None where the answer is not the text of one sample."""
    stage = text_stage(plan, arguments)
    if stage is None:
        return None
    place = max(place for place, node in enumerate(plan.ops) if isinstance(node.op, ops.Generate))
    node = plan.ops[place]
    assert isinstance(node.op, ops.Generate)
    own = None if node.op.max_tokens is None else _count(node.op.max_tokens, arguments)
    if node.op.max_tokens is not None and not isinstance(own, int):
        return None
    least = ast.Literal(min(own, bound) if isinstance(own, int) else bound, span=node.op.span)
    bounded = replace(node, op=replace(node.op, max_tokens=least))
    return replace(plan, ops=(*plan.ops[:place], bounded, *plan.ops[place + 1 :]))


def _size(writer: TextModel | None, row: Row | None, text: str) -> int:
    """How many tokens a text has of the model that wrote a row: its share of those that a server counted for it."""
    if writer is None:
        return 0
    if writer.own_tokens:
        return len(writer.encode(text))
    length, generated = len(text.encode()), None if row is None else row.generated
    tokens = 0 if generated is None else generated.sampled - generated.thought.tokens
    if generated is None or tokens <= 0 or not generated.text:
        return -(-length // MIN_TOKEN_BYTES)
    return -(-length * tokens // len(generated.text.encode()))


def _characters(value: object) -> int:
    """The characters of the longest text in a value; of all turns in a conversation, as a model reads them together."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return max(map(_characters, value.values()), default=0)
    if not isinstance(value, tuple):
        return 0
    conversation = all(isinstance(part, Mapping) and part.keys() >= {"role", "content"} for part in value)
    lengths = list(map(_characters, value))
    return sum(lengths) if conversation else max(lengths, default=0)


def called_tools(plan: PhysicalPlan) -> frozenset[str]:
    """The tools that the call may be of which a program gives back; none where it gives back no call."""
    value, names = plan.returning.value, set[str]()
    for node in everything(plan.ops):
        op = node.op
        if not isinstance(op, ops.Generate) or op.constraint is None or not op.constraint.tools:
            continue
        if op.into is not None and isinstance(value, ast.Name) and value.id == op.into.id:
            names.update(tool["name"] for tool in json.loads(op.constraint.tools))
    return frozenset(names)


# Operators that make one row of each row, and leave what was generated in it as it is.
_ROW_BY_ROW = (
    ops.StepScore,
    ops.Judge,
    ops.Prob,
    ops.LogProb,
    ops.DrawScore,
    ops.Equal,
    ops.ValidJson,
    ops.Passes,
    ops.PythonScore,
    ops.Extract,
    ops.PythonExtract,
    ops.Let,
    ops.Peek,
    ops.Ask,
    ops.Call,
)
# Operators that make at most one row of each row.
_NO_MORE_ROWS = (*_ROW_BY_ROW, ops.SetContext, ops.Say, ops.Where, ops.Keep, ops.Order, ops.Distinct, ops.Tournament)
_TEXT = "text"


def text_stage(plan: PhysicalPlan, arguments: Mapping[str, Value]) -> int | None:
    """The number of the stage whose tokens are the answer, as they are generated; None where there is no such stage."""
    *chain, last = plan.ops
    assert isinstance(last.op, ops.Return)
    if not isinstance(last.op.value, ast.Name):
        return None
    while chain and isinstance(chain[-1].op, _ROW_BY_ROW):
        chain.pop()
    if not chain or not isinstance(chain[-1].op, ops.Generate):
        return None
    writer = chain.pop()
    assert isinstance(writer.op, ops.Generate)
    named = last.op.value.id in (_TEXT, made_column(writer.op))
    # What an earlier stage generated in the same context is part of the text too.
    fresh = bool(chain) and isinstance(chain[-1].op, ops.SetContext)
    if not named or not fresh or _count(writer.op.n, arguments) != 1:
        return None
    return writer.op.stage if _one_row(chain, arguments) else None


def _one_row(chain: list[PhysicalOp], arguments: Mapping[str, Value]) -> bool:
    """Whether a chain ends with one row, or none, whatever happens in it."""
    one = True
    for node in chain:
        match node.op:
            case ops.Keep(count=k, per=None):
                one = one or _count(k, arguments) == 1
            case ops.Vote(per=None) | ops.Join(per=None):
                one = True
            case ops.Generate(n=n):
                one = one and _count(n, arguments) == 1
            case ops.Repeat(gather=None) | ops.If():
                one = one and all(_one_row(list(block), arguments) for block in node.inside)
            case op:
                one = one and isinstance(op, _NO_MORE_ROWS)
    return one


def _count(expr: ast.Expr | None, arguments: Mapping[str, Value]) -> Value:
    return evaluate(expr, arguments) if expr is not None and is_same_for_all(expr, arguments) else None
