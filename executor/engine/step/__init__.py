"""One step of one model: the forward, then what is read off it.

Open `backends.py` first: a `StepBackend` lays a step's chunks out and runs the model, in torch, by compiled code on a
CPU or by Triton kernels on a GPU. `readout.py` reads its hidden states. A draw without filters goes to a `TokenHead`
(`token_head.py`), which comes from hidden states to tokens with no logits of all ids in memory, over all ids or over
those that a mask allows: the compiled head on a CPU (`routed_head.py`, where a policy may say in which way),
`device_head.py` elsewhere. The others have logits computed (`model/heads.py`), masked, and drawn from by `sampler.py`:
filters, noise, near ties. Which way a draw goes depends on that draw alone. `graphs.py` captures steps as CUDA graphs.
Draws of an early exit are read twice (`../exit/`).

`draws.py` lists the draws of a step. What they may take under a mask depends on tokens that are known before the
forward, so `mask_filler.py` asks the masks while it runs, in a thread of its own, or at once where a
thread's hand-over would cost more.

A token is the argmax of the filtered logits plus Gumbel noise, and the noise is a function of the sample's key, the
number of tokens drawn under it and the token's id. Nothing in this folder may let a row's result depend on the other
rows of its batch.

On a GPU a step waits for the device once, for the tokens and values that it copies back. A captured graph holds the
layers only: the head and the draw are few launches, which the host makes while the graph runs. What they and the reads
(`planned_reads.py`) need of the host is planned first and sent by one copy, masks included, which the kernels read as
bits. All of this also runs on a CPU, through Triton's interpreter or the torch twins, and tests compare its tokens with
those of the CPU path; a stand-in takes the place of captured graphs. Nothing of it was measured on a GPU:
`python -m benchmarks.gpu.run` checks and measures it there.
"""
