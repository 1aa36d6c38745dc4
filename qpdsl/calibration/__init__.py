"""Exit heads are fitted here to text of the user's, for `qpdsl calibrate`.

`head_fitting.py` is the file to read first: it goes through the steps. `texts.py` reads the files, `text_states.py`
runs the model over them once and keeps hidden states, `tuned_lens.py` fits a head to these, and `exit_agreement.py`
measures it on text that was kept apart. What is written is described in `executor/models/exit_record.py`.

The model runs as transformers' own modules, so that any family can be fitted, and everything is computed in float32.
The same text and seed give the same heads, up to how torch's threads split sums.
"""
