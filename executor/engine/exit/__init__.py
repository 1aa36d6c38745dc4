"""Leaving a model before its last layer: whose token stands there, and what becomes of the layers that did not run.

Open `exit_steps.py` first: `ExitSteps` is all that a model runner asks. A draw with an `EarlyExit` is made from the
hidden state after some layer; `leaving.py` draws it and says whether it stands. Where it does not,
it is made once more from the last layer's. Where `exit_router.py` says that a draw is to leave its exit out, the last
layer's is all that is read. `self_draft.py` has the first layers draft for the whole model.

In a plain exit all layers run anyway, so this only says from where a token comes. In a deferred one, a sample that
decodes runs the first layers for its next token alone. Where the token that is drawn stands, the residual waits
(`Sequence.deferred`). Where it does not, the other layers run for all residuals that wait and the new one, as one
chunk, together with those of the other samples that go on. Nothing else attends in the later layers, and such a chunk
brings all keys and values that they lack. So a token that is refined sees what it would see had all layers run, bit for
bit, and a sample that ends before has never needed them. `computed` goes on meaning all layers: late tokens are in no
cached prefix, and are forgotten with the pages. Samples of one batch leave or go on one by one.

No sample has more than `MAX_LATE` late tokens. Long before that a chunk reads its weights as seldom as it can, so that
waiting saves nothing more; what it bounds is the memory of the residuals, and how long one step keeps the others.
Residuals wait in slabs of the KV memory (`../memory/residuals.py`). Where that has none left, or needs them back, the
other layers run at once.

A shadowed draw stands, and is made from the last layer too, with the same noise, to count whether the token is the
same. Its sample catches up for that as for a refined token, so the layers that were saved are paid for, and since these
are exact whenever they run, no token depends on it. Neither does a router's choice depend on how an exit is carried
out: only on what the router knew before and on the sample's own draws, which outlive its pages.

A token's logits, where it left, are never known for the last layer: so its log-probability is that of the distribution
it was drawn from, in plain exits too. Prompts, and whatever is computed anew after its pages were lost, run all layers.
A draft is checked by all layers, so samples with drafts do not defer.
"""
