"""The engine of this process: token ids in, token ids out. It knows neither text nor plans.

Open `paged_engine.py` first. `PagedEngine.step()` picks a model, schedules its sequences and runs one forward;
`drive()` does that inside asyncio. `model_runner.py` is one model in it: its steps, and their results for requests.
`served_models.py` puts the models together, each with its memory, scheduler, backend and drafters. `scheduler.py` says
which sequences run: decode first, then prefill in chunks. Spare work ranks last; then sequences go by the urgency of
who asks, by slack against their deadline (`WorkEstimate` says how long a request will take), and by age. Of those alike
in all but age, within a small window, the one with the longest cached prefix goes first, and one whose prefix is just
being computed waits for it. None is overtaken more than 32 times. A fan-out that is wider than the batch is forked in
portions; the rest waits as a prompt whose pages are cached. The model of a step is the one with the most urgent
sequence, or with the deadline that presses most; else the one whose batch would be fullest against the fullest it had
lately, with an allowance for how long it has waited. `step_report.py` says what a step did. `largest_step.py` has the
steps that take most memory, which tell how much is left for keys and values.

A step has two halves (`launched_step.py`). The launch lays it out and starts the forward, the draws
and the copy back; the collection waits for that copy, once, and gives tokens and values to their sequences. On a CPU
one follows the other at once: both would use the same cores. On a device the tokens of a model's step decide what its
next one has. Where they decide its tokens alone, it is launched before the host has them (`feeding.py`); else as soon
as these are there, and before anybody is told of them (`PagedEngine.step`): tickets, reports and the coroutines that
wait for them run while the device computes. Where it is another model's turn, its step is launched before the first is
collected. Which model goes next, and which sequence gives way, is decided as
if each step were collected first; where that depends on what is in flight, it waits. So what is asked for in reply to a
step comes one step later, and no token changes. What this saves is not measured on a GPU.

Sampled tokens must not depend on the schedule: not on the batch, the chunks, preemption or the cache. Nothing here may
import text, models or plans, and other folders use the engine through `executor/requests`.
"""
