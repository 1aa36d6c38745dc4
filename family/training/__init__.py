"""Training the built-in models. Start with `loop`, the one training loop, then `generator`.

`generator` trains the solver, which is trained to the end and saves `counting` on its way, when it is right about half
the time, and the far smaller `counting-mini`. `thinker` trains the lower layers of `counting` to work results out in
thoughts. `eagle_training` trains a layer that drafts from the hidden states of `counting`, on its samples.
`process_reward_model` trains `counting-prm`: the solver with three layers on top. The first of these starts as a
`comparator`, which compares the token that the solver expected with the one that was written, because gradient descent
finds that comparison of two places only slowly.
`batches` and `verifier_rows` lay texts out as tensors, `transformers_sampling` samples without the engine, `export`
writes the folders. Besides the module of the EAGLE head and its format, this folder imports `tasks` and nothing else of
the project, so a change of the engine cannot change a model.
"""
