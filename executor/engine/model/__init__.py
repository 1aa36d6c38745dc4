"""A transformers checkpoint behind paged attention.

Open `paged_model.py` first. Models are transformers' own: only attention is replaced, through transformers' attention
interface (`module_stack.py`), or in the modules of families that do not use it or do not tell it all (`adapters/`).
What a layer keeps is what its attention is given: a forward in which nothing attends shows it, layer by layer, and the
layers that read what another one keeps.

A model decodes as `generate` does, or it is refused at load. 64 tokens run through its own forward, whole; then here,
40 of them and then the rest packed with a second sequence, and the logits must agree (`probe.py`). Rounding hides small
errors and 64 tokens hide late ones, so what is known to go wrong is looked for by name: a state beside keys and values
in what the model's own forward keeps (`kept.py`); layers that do not attend once, with the window that the model's
cache has, and nothing that paged attention does not know; logits that are more than a projection. A new way to be
wrong gets a test of its own there, before it is left to the logits. `docs/use/models.md` has the outcome for every
family of transformers, and is made by the test of the promise.

On a CPU, decoders whose layers attend or recur, and then widen, run without transformers' modules, whatever floats or
groups of whole numbers hold their weights. `families.py` reads such a model off its modules as plain data
(`decoder.py`), and `native_stack.py` lays the weights out anew and runs all layers as one compiled function, in
float32. It is used only where its logits on the probe tokens are those that the model's own forward gives in float32,
to 1e-4 of the largest. The modules are emptied then; where memory is scarce already on the way, so that no weights lie
in it twice, and a model that turns out otherwise must be loaded again. `heads.py` computes logits, or the values of a
reward model, and reads the embeddings of tokens, whose weights a head may share.

On a device `device_stack.py` runs the same descriptions, in the model's type: four products of torch a layer,
attention, and a kernel between each, nine launches in place of some forty. Its logits on the probe tokens must be the
model's own. In 16 bits they must lie no farther from those of float32 than the model's own do, but for a margin: that
tells a mistake from a rounding. Where weights are no floats, or the logits others, modules run, and `implementation`
says why.

Other models keep transformers' modules. On a CPU `rowwise.py` gives these compiled attention, and other code in linear
layers, experts and activations, where the logits stay the model's own.

Layers that keep a state of a sequence, in place of keys and values or beside them, are `mixers/`: the recurrence runs
token by token over a step's segments, between projections that are those of their modules, or of compiled layers. The
gated delta rule is compiled with these. They end before any other recurrence, and before the experts of a layer, and go
on after it, so a step of such a model is some runs of layers.

A row's bits may not depend on the other rows of a forward. Where an operation is left in a model's modules of which
that is not known, a forward is padded to 16 rows. Nothing here may look at a sequence's request.
"""
