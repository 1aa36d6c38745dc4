"""The files of a model, before anything of them is loaded: which ones count, whether they are whole, what they name.

Open `model_folder.py` first. A `ModelFolder` lists every file that a model is made of, and refuses the folder where one
of them lies outside it, is no safetensors file, or is damaged. `safe_files.py` reads what a weight file says of itself,
and takes out of a configuration whatever would make transformers fetch or run code. `quantization_config.py` finds the
layers whose weights are stored as whole numbers. Transformers is given a folder with these files and no others.
`hub_snapshot.py` finds the folder of a hub id. A GGUF file is a model of its own: `gguf_header.py` reads what it says
of itself, `gguf_families.py` what that is in transformers' terms: `gguf_settings.py` and `gguf_configs.py` for its
settings, `gguf_layout.py` for its tensors. `cache_folder.py` finds the folder of what is made once and kept;
`model_digest.py` tells models apart by their files. An adapter is a folder of its own, in PEFT's format:
`adapter_folder.py` lists and checks its files, and reads its configuration.

Nothing here loads torch or transformers, so that a missing or damaged model is told at once. Everything that is read
from a model is in `ModelFolder.files`, and `AdapterFolder.files`, which is also what the fingerprint of a run digests.
"""
