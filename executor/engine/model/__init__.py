"""A transformers checkpoint behind paged attention.

Open `paged_model.py` first. Models are transformers' own: only attention is replaced, through transformers' attention
interface, and the batch travels as a keyword argument of the forward (`module_stack.py`).

A model decodes as `generate` does, or it is refused at load. 64 tokens run through its own forward, whole; then here,
40 of them and then the rest packed with a second sequence, and the logits must agree (`probe.py`). Rounding hides small
errors and 64 tokens hide late ones, so what is known to go wrong is looked for by name: a state beside keys and values
in what the model's own forward keeps (`kept_state.py`); layers that do not attend once, with the window that the
model's cache has, and nothing that paged attention does not know (`refusals.py`); logits that are more than a
projection. A new way to be wrong gets a test of its own there, before it is left to the logits. Attention sinks
(gpt-oss) are computed by the kernels and their twins only, so on a CPU such a model is refused. `docs/models.md` has
the outcome for every family of transformers, and is made by the test of the promise.

On a CPU in float32, Llama, Mistral, Qwen2, Qwen3 and Gemma run without transformers' modules (`lean_stack.py`), and
with kernels compiled for the machine where they can be (`native_stack.py`). Such a stack is used only where its logits
on the probe tokens are the model's own to 1e-4 of the largest. The weights are laid out a layer at a time and the
modules that they came from are emptied, so memory does not double; of the head a second copy is made, up to a gigabyte.
`heads.py` computes logits, or the values of a reward model.

A row's bits may not depend on the other rows of a forward: each layer's shape is tested at the thread count in use, and
a forward is padded to 2 rows, or to 16 where that test fails or a model runs its own modules. Nothing here may look at
a sequence's request.
"""
