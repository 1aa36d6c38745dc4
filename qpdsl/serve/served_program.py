"""A program as a model: which fields of a request it honours, its runs, and their answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qpdsl.arguments import ArgumentError, bind, from_json
from qpdsl.errors import unknown
from qpdsl.executor.events.events import Event, OperatorDone
from qpdsl.executor.requests.request import LogProbRequest
from qpdsl.executor.text.context import encode as encode_context
from qpdsl.planner.explain.operators import in_words
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.values.json_values import plain, shown
from qpdsl.planner.values.value import Value
from qpdsl.run_store.fingerprint import build, digest, operators
from qpdsl.serve.answer_cut import AnswerCut
from qpdsl.serve.body_fields import BodyFields
from qpdsl.serve.conversation import arguments_of, read_messages, read_prompt
from qpdsl.serve.record_format import RecordFormat, read_format
from qpdsl.serve.refusal import Refusal
from qpdsl.serve.served_model import (
    Chosen,
    CompletionRequest,
    CompletionResponse,
    FinishReason,
    Piece,
    Progress,
    TokenUsage,
    no_pause,
)
from qpdsl.serve.streamable import text_stage
from qpdsl.serve.token_forms import TokenForms
from qpdsl.stage_options import check_options

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.executor.runtime.instance.candidates import Row
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.session import Session

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
# Seeds that nobody chose have so many bits: JSON numbers of any client hold them.
_SEED_BITS = 52


class ServedProgram:
    """A program whose models are loaded, by the name that clients give.

    `fixed` are parameters that a request may not set; `ignored` are fields of a request that the server was told to
    drop. `seed` is that of requests that name none; None for another one each time.
    """

    def __init__(
        self,
        name: str,
        plan: PhysicalPlan,
        session: Session,
        seed: int | None = None,
        fixed: Sequence[str] = (),
        ignored: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.plan = plan
        self.session = session
        self.seed = seed
        self.fixed = frozenset(fixed)
        self.ignored = frozenset(ignored)
        self.params = {param.name: param for param in plan.params}
        self.schema = _schema(plan)
        self.fingerprint = "fp_" + digest([build(), operators(plan.ops), dict(plan.models)])[:12]

    @property
    def card(self) -> Mapping[str, Any]:
        """The program's parameters, by what they take, and what it returns."""
        parameters = {name: param.declared for name, param in self.params.items() if name not in self.fixed}
        return {"program": self.plan.name, "parameters": parameters, "returns": self.plan.returns}

    @property
    def writer(self) -> TextModel | None:
        """The model whose tokens an answer is counted in: that of the last `generate`."""
        names = [node.op.model for node in everything(self.plan.ops) if isinstance(node.op, ops.Generate)]
        return self.session.text_model(self.plan.models[names[-1]]) if names else None

    def read(self, request: CompletionRequest) -> ProgramWork:
        """The runs that a request asks for. Raises Refusal."""
        fields = BodyFields(request.body, request.endpoint)
        own = [name for name in _SAMPLING if name in self.params and name not in self.fixed]
        # At temperature 0 a client asks for one answer, always the same, and a program gives that for a seed.
        greedy = ["temperature"] if fields.get("temperature") == 0 else []
        fields.refuse_others((*_HONOURED, *own, *greedy), self._instead(), self.ignored)
        arguments = self._arguments(request, fields, [name for name in own if name not in greedy])
        logprobs = self._wants_logprobs(request, fields, arguments)
        form = read_format(fields.get("response_format"), self.name, self.schema)
        stops, bound, writer = fields.stops(), fields.bound(), self.writer
        if logprobs and form is not None:
            raise Refusal("a record in which nulls are filled in has no log-probabilities", "logprobs")
        if self.schema is not None and stops:
            raise Refusal(f"`{self.name}` returns a record, which is no record any more where it is cut", "stop")
        if bound is not None and writer is None:
            raise Refusal(f"`{self.name}` has no model whose tokens could be counted", "max_tokens")
        if fields.mapping("stream_options").get("continuous_usage_stats"):
            message = f"what `{self.name}` costs is known at its end: `include_usage` tells it then"
            raise Refusal(message, "stream_options", code="unsupported_parameter")
        seed = fields.whole("seed", 0)
        if seed is None:
            # Whoever samples at temperature 0 asks for the same answer each time.
            seed = self.seed if self.seed is not None else 0 if greedy else secrets.randbits(_SEED_BITS)
        return ProgramWork(
            self,
            request,
            arguments,
            seed,
            fields.choices(),
            [AnswerCut(stops, bound, *_codec(writer)) for _ in range(fields.choices())],
            form,
            logprobs=logprobs,
            progress=fields.flag("progress"),
        )

    def _wants_logprobs(self, request: CompletionRequest, fields: BodyFields, arguments: Mapping[str, Value]) -> bool:
        """Whether log-probabilities of the answer's tokens are asked for. Raises Refusal where they are not known."""
        count = None if request.endpoint == "chat" else fields.whole("logprobs", 0, 0)
        if count is None and (request.endpoint == "text" or not fields.flag("logprobs")):
            return False
        message = None
        if text_stage(self.plan, arguments) is None:
            message = f"the answer of `{self.name}` is not the text of one sample, so it has no log-probabilities"
        elif self.writer is None or "logprobs" not in self.session.engine.capabilities(self.writer.name).features:
            message = f"the model of `{self.name}` does not tell the log-probabilities of given tokens"
        if message is not None:
            raise Refusal(message, "logprobs", code="unsupported_parameter")
        return True

    def _instead(self) -> dict[str, str]:
        """What to do instead of sending a field that is not honoured."""
        words = {
            name: f'`{name}` is a parameter of `{self.name}`: send it in {{"parameters": {{"{name}": …}}}}'
            for name in self.params
        }
        for name in _SAMPLING:
            words[name] = (
                f"`{self.name}` says itself how it samples; leave `{name}` out, give the program a parameter of that "
                f"name, or start the server with `--ignore {name}`"
            )
        words["top_logprobs"] = "the log-probabilities of the answer's own tokens are told, and no others"
        return words

    def _arguments(self, request: CompletionRequest, fields: BodyFields, own: Sequence[str]) -> dict[str, Value]:
        given = dict(fields.mapping("parameters"))
        for name in given:
            if name not in self.params:
                known = [param for param in self.params if param not in self.fixed]
                raise Refusal(unknown(name, known, f"`{self.name}` has no parameter"), "parameters")
            if name in self.fixed:
                raise Refusal(f"`{name}` of `{self.name}` is set by the server", "parameters")
        for name in own:
            if (value := fields.get(name)) is not None and given.setdefault(name, value) != value:
                raise Refusal(f"`{name}` is given twice, once among the parameters", name)
        where = "messages" if request.endpoint == "chat" else "prompt"
        said = self._said(request)
        for name, value in said.items():
            if name in self.fixed:
                raise Refusal(f"`{name}` of `{self.name}`, which the conversation gives, is set by the server", where)
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
        if request.endpoint == "chat":
            return arguments_of(self.name, self.plan.params, read_messages(request.body.get("messages")))
        turn = {"role": "user", "content": read_prompt(request.body.get("prompt"))}
        return arguments_of(self.name, self.plan.params, [turn])


@dataclass
class ProgramWork:
    """The runs of a program that one request asks for: `n` of them, with the seeds `seed`, `seed + 1`, ….

    `cuts` has one for each. `form`: what is to be added to the record that the program returns. With `logprobs` the
    log-probabilities of the answer's tokens are read once it is there: those of the model at temperature 1, whatever
    the program sampled by and held it to.
    """

    program: ServedProgram
    request: CompletionRequest
    arguments: Mapping[str, Value]
    seed: int
    n: int
    cuts: Sequence[AnswerCut]
    form: RecordFormat | None = None
    logprobs: bool = False
    progress: bool = False

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
    ) -> AsyncGenerator[Piece | Progress | CompletionResponse, None]:
        """Pieces of the text where it is known while it is written, then the answer. Raises Refusal."""
        pending = _PendingUpdates()
        tasks = [asyncio.create_task(self._run(index, self._pieces(index, pending))) for index in range(self.n)]
        runs = asyncio.gather(*tasks, return_exceptions=True)
        runs.add_done_callback(lambda _: pending.changed.set())
        unsubscribe = self._tell(pending) if self.progress else lambda: None
        try:
            while not runs.done():
                await pending.changed.wait()
                progress, texts = pending.take()
                for step in progress:
                    yield step
                for index, text in texts.items():
                    if shown_now := self.cuts[index].feed(text):
                        yield Piece(index, shown_now)
                if (seconds := pause()) > 0 and not runs.done():
                    await asyncio.wait((runs,), timeout=seconds)
            yield await self._answer([task.result() for task in tasks])
        finally:
            unsubscribe()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _run(
        self, index: int, on_token: Callable[[Any, int, str], None] | None = None
    ) -> Coroutine[Any, Any, InstanceResult]:
        program, name = self.program, self._name(index)
        return program.session.run(
            program.plan, self.arguments, self.seed + index, name, on_token, owner=self.request.owner
        )

    def _name(self, index: int) -> str:
        return f"{self.request.id} {index}"

    def _pieces(self, index: int, pending: _PendingUpdates) -> Callable[[Any, int, str], None] | None:
        """What takes the pieces of a run's text; None where they are not those of the answer."""
        stage = text_stage(self.program.plan, self.arguments)
        if stage is None or self.form is not None or self.logprobs:
            return None

        def take(path: object, at: int, text: str) -> None:
            if at == stage:
                pending.grow(index, text)

        return take

    def _tell(self, pending: _PendingUpdates) -> Callable[[], None]:
        """Puts what the runs have done among the updates; the function that is returned ends that."""
        names = {self._name(index): index for index in range(self.n)}
        kinds = {node.id: in_words(node.op) for node in everything(self.program.plan.ops)}

        def see(event: Event) -> None:
            if isinstance(event, OperatorDone) and event.instance in names:
                whose = f"choice {names[event.instance]}: " if self.n > 1 else ""
                place = "".join(f"round {number + 1}: " for number in event.rounds[-1:])
                rows = f"{event.rows_out} row{'' if event.rows_out == 1 else 's'}"
                tokens = f", {event.sampled_tokens} tokens" if event.sampled_tokens else ""
                what = kinds.get(event.operator, event.operator)
                pending.tell(Progress(f"{whose}{place}{what}: {rows}{tokens}"))

        return self.program.session.events.subscribe(see)

    async def _answer(self, results: Sequence[InstanceResult]) -> CompletionResponse:
        for result in results:
            if result.error is not None:
                raise Refusal(f"`{self.program.name}` has no answer: {result.error}", status=422, code="program_failed")
        made = [self._chosen(result, cut) for result, cut in zip(results, self.cuts, strict=True)]
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
            sum(result.cached_tokens + result.counts.get("server_cached", 0) for result in results),
            min(sum(tokens for _, tokens in made), sampled),
        )
        return CompletionResponse(tuple(choices), usage, self.program.fingerprint, {"seed": self.seed})

    def _chosen(self, result: InstanceResult, cut: AnswerCut) -> tuple[Chosen, int]:
        """The answer of a run, and how many tokens it has."""
        row = result.rows[0] if result.rows else None
        text = None if row is None else row.columns.get("text")
        score = {} if result.score is None else {"score": plain(result.score)}
        encode, _ = _codec(self.program.writer)
        if row is None or not isinstance(text, str) or text_stage(self.program.plan, self.arguments) is None:
            said, why = cut.whole(self._form(shown(result.value)))
            return Chosen(said, why, extra=score), len(encode(said))
        # What a model wrote last is given as it wrote it, so that it can be streamed.
        finish: FinishReason = "length" if row.columns.get("finish") in ("length", "context") else "stop"
        whole = self._form(text)
        said, why = cut.whole(whole, finish)
        return Chosen(said, why, extra=score), row.generated.sampled if said == whole else len(encode(said))

    async def _with_logprobs(self, chosen: Chosen, row: Row) -> Chosen:
        """The choice with the log-probabilities of its tokens, of which the last one may be cut."""
        model = self.program.session.text_model(row.generated.model)
        tokens = row.generated.tokens
        shortest = next(
            (n for n in range(len(tokens)) if len(model.decode(tokens[:n])) >= len(chosen.text)), len(tokens)
        )
        logprobs: Sequence[float] = ()
        if shortest:
            assert row.context is not None
            prompt = encode_context(model.tokenizer, row.context)
            reading = LogProbRequest(prompt, tokens[:shortest], owner=self.request.owner)
            logprobs = (await self.program.session.engine.submit(model.name, reading)).logprobs
        told = TokenForms(model).logprobs(self.request.endpoint, tokens[:shortest], logprobs, "none")
        return replace(chosen, logprobs=told)

    def _form(self, text: str) -> str:
        return text if self.form is None else self.form.filled(text)


class _PendingUpdates:
    """What runs have told since it was last taken: steps that are done, and the text of each choice."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._progress: list[Progress] = []
        self._texts: dict[int, str] = {}

    def tell(self, progress: Progress) -> None:
        self._progress.append(progress)
        self.changed.set()

    def grow(self, index: int, text: str) -> None:
        self._texts[index] = self._texts.get(index, "") + text
        self.changed.set()

    def take(self) -> tuple[list[Progress], dict[int, str]]:
        taken = self._progress, self._texts
        self._progress, self._texts = [], {}
        self.changed.clear()
        return taken


def _codec(model: TextModel | None) -> tuple[Callable[[str], Sequence[int]], Callable[[Sequence[int]], str]]:
    """Text to tokens and back; without a model, no text has a token."""
    if model is None:
        return lambda text: (), lambda ids: ""
    return model.encode, lambda ids: model.decode(tuple(ids))


def _schema(plan: PhysicalPlan) -> str | None:
    """The JSON Schema of the record that a plan returns, as text; None where it returns none."""
    root = plan.returning
    if root.schema is not None:
        return root.schema
    if not root.parse:
        return None
    held = [node.op.constraint for node in everything(plan.ops) if isinstance(node.op, ops.Generate)]
    schemas = {one.name: one.schema for one in held if one is not None and one.schema}
    return schemas.get(plan.returns) or (next(iter(schemas.values())) if len(schemas) == 1 else None)
