"""The engine of this process: token ids in, token ids out. It knows neither text nor plans.

Open `paged_engine.py` first. `PagedEngine.step()` picks a model, schedules its sequences and runs one forward;
`drive()` does that inside asyncio. `model_runner.py` is one model in it: its steps, and their results for requests.
`scheduler.py` says which sequences run: decode first, then prefill in chunks. Run-ahead work ranks last; then sequences
go by the urgency of who asks, by slack against their deadline, and by age. `work_estimate.py` says how long a request
will take. Of those alike in all but age, within a small window, the one with the longest cached prefix goes first, and
one whose prefix is just being computed waits for it. None is overtaken more than 32 times. A fan-out that is wider than
the batch is forked in portions; the rest waits as a prompt whose pages are cached. The model of a step is the one with
the most urgent sequence, or with the deadline that presses most; else the one whose batch would be fullest against the
fullest it had lately, with an allowance for how long it has waited. `step_report.py` says what a step did.

Nothing of step t+1 runs under step t. On a CPU both would use the same core, and of a step of 64 rows the host's part
is a tenth. On a GPU the tokens of a step decide what the next one schedules. Whether an overlap pays there, or a stream
for each model, is not measured.

Sampled tokens must not depend on the schedule: not on the batch, the chunks, preemption or the cache. Nothing here may
import text, models or plans, and other folders use the engine through `executor/requests`.
"""
