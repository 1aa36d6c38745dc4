"""A transformers checkpoint behind paged attention.

Open `paged_model.py` first. Models are transformers' own: only attention is replaced, through transformers' attention
interface, and the batch travels as a keyword argument of the forward (`module_stack.py`). At load 64 tokens run through
the model's own attention and through ours (`probe.py`). A model is refused unless paged attention was called once in
each layer, the logits are its own, and its layers give every sliding window to attention. Attention sinks (gpt-oss) are
computed by the kernels and their twins only, so on a CPU such a model is refused.

On a CPU in float32, Llama, Mistral, Qwen2, Qwen3 and Gemma run without transformers' modules (`lean_stack.py`), and
with kernels compiled for the machine where they can be (`native_stack.py`). Such a stack is used only where its logits
on the probe tokens are the model's own to 1e-4 of the largest. The weights are laid out a layer at a time and the
modules that they came from are emptied, so memory does not double; of the head a second copy is made, up to a gigabyte.
`heads.py` computes logits, or the values of a reward model.

A row's bits may not depend on the other rows of a forward: each layer's shape is tested at the thread count in use, and
a forward is padded to 2 rows, or to 16 where that test fails or a model runs its own modules. Nothing here may look at
a sequence's request.
"""
