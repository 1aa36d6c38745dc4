"""Early exits outside the engine: heads that are fitted, kept in folders, offered to plans and loaded for them.

`exit_record.py` is what a folder says of its heads, and loads no torch; `exit_head.py` reads and writes their tensors.
`exit_ways.py` offers them to plans as ways to decode. `session_exits.py` is what a session asks: it loads the heads
that a plan names, and keeps what decides which draws try them. In the engine, `executor/engine/exit/` has the steps.

The other files fit heads to text of the user's, for `qpdsl calibrate`. Of these read `head_fitting.py` first: it goes
through the steps. `texts.py` reads the files, `text_states.py` runs the model over them once and keeps hidden states,
`tuned_lens.py` fits a head to these, and `exit_agreement.py` measures it on text that was kept apart. The model runs as
transformers' own modules, so that any family can be fitted, and everything is computed in float32. The same text and
seed give the same heads, up to how torch's threads split sums.
"""
