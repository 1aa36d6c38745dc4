"""What a model name stands for: a checkpoint behind paged attention, its tokenizer, and how it scores.

Open `text_model.py` first; `load.py` makes a `TextModel` of a folder, of a GGUF file or of a hub id, and refuses what
cannot run here. Models are transformers' own, loaded from safetensors or GGUF only, and no code from a checkpoint is
run. What a load on a CPU comes to is written down (`known_model.py`), so that the next one (`quick_load.py`, which
sessions use) need not import transformers, nor build and try models; weights are mapped then as they were laid out
(`executor/kernels/llvm/panel_file.py`), and while they are laid out, `mapped_files.py` gives back what was read of
their own files. Its tokenizer is a `QuickTokenizer` then
(`executor/text/quick_tokenizer.py`). `unloaded_model.py` makes a `TextModel` without weights of what was told of it
when it was loaded. `lora.py` merges a LoRA adapter into the weights. Exit heads that `qpdsl calibrate` fits are read
and written here too; `exit_record.py` has what is known of them, without torch.

A GGUF file is read without the package of that name, so that what is not understood is refused and not left out
(`executor/checkpoint/gguf_families.py`). `gguf_model.py` builds the model around layers that hold the stored weights,
`gguf_blocks.py` unpacks these, and `gguf_tokenizer.py` has transformers make the tokenizer, once. Small models of 24
architectures, written by llama.cpp's converter, gave transformers' logits in llama.cpp itself too: to 3e-5 of the
largest, but for starcoder2 (3e-4), Nemotron-H (2e-3) and Gemma 4 (1e-2). GPT-OSS agrees where the bounds of its yarn
are rounded, as llama.cpp does; they are not here, as in the published model.

Quantized safetensors in groups or channels of four or eight bits are read on a CPU without the package that wrote them:
compressed-tensors, GPTQ, AWQ and torchao's int8 weights. `executor/checkpoint/quantization_config.py` says which,
`quantized_model.py` has transformers load their tensors into layers that hold them, and unpacks these.
Their dequantized weights were compared with those of compressed-tensors 0.20 and torchao 0.18; for GPTQ and AWQ with
checkpoints made as their own packages pack them.

Other quantized checkpoints, and all of them on a GPU, are loaded by transformers with the package that wrote them; none
of these packages is a dependency. Tried on a CPU with small checkpoints (`tests/executor/models/test_quantized.py`;
transformers 5.23), with greedy tokens equal to those of `generate` and the same samples in any batch: torchao 0.18
(int8 weights and activations, fp8 weights), bitsandbytes 0.50 (int8 with `llm_int8_threshold` 0, fp4, nf4),
compressed-tensors 0.20 (fp8), and blockwise fp8 as DeepSeek-V3 ships it, which accelerate 1.15 turns back into the
model's type on a CPU. Checkpoints that come back as plain weights (the last two) run without transformers' modules, the
others through them. It finds layers in which a token's result depends on the rest of the batch, such as
bitsandbytes' int8 with outliers set apart, and methods that transformers does not know; both are refused. Transformers
itself refuses here: hqq (not available in this version), quanto (it cannot be saved) and torchao's int4 (it needs a
package for GPUs). Not tried: GPTQ with an order of activations, and all of them on a GPU.
"""
