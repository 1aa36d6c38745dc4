"""Samples that were drawn once and serve every later request for them: the memory of a session, or of one instance.

Open `sharing_engine.py` first: an `Engine` that stands before another one and asks it only for what nobody has drawn.
A caller's ticket gathers samples that were drawn, that are being drawn for others, or that are drawn for it.
`sample_memory.py` is what the engine looks in, with the requests to the engine behind that others may join;
`kept_sample.py` is a sample in little memory, what it depends on and when that is known.

`saved_samples.py` records all that is asked for one row, samples and scores, for the file of its run;
`row_trajectory.py` is the same by its place in the program, as training takes it; and
`replay_engine.py` answers from it: what was drawn for one program answers another, and what was not drawn is missing.

What must hold: a shared sample is the one that the engine would draw, to the last bit, with the same accounts of how it
came about. So the noise keys, which say which samples of which programs share their random numbers, decide what is
shared: `n=64` contains `n=16`, strategies that sample alike share, and seeds share nothing but greedy decoding. A
request of which anything is not known, such as a watch that does not say what it ends samples by, goes past all this.
A sample that a watch ends is the beginning of the one that no watch ends, and is cut from that where all that is told
of it is known. This is for models whose samples do not depend on what else is computed beside them; which these are,
the caller says.

A row's tokens are counted as if it ran alone, and so are its engine seconds: a sample that was drawn before counts what
it took then. What was saved is counted apart, and depends on what ran before.
"""
