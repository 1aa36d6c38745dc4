"""The language model of a checkpoint that may also see or hear, without the encoders of the rest."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from qpdsl.executor.checkpoint.model_folder import ENCODERS


def writing_class(config: PretrainedConfig) -> Any:
    """transformers' automatic class of the models with such a configuration that write text; None where it has none."""
    alone, whole = (
        mapping.get(type(config), None) for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING)
    )
    if alone is None:
        return None if whole is None else AutoModelForMultimodalLM
    # A class of the text alone may have no place for the rest of a checkpoint, nor know that it may be left out.
    is_whole = whole is not None and whole.__name__ in (config.architectures or ())
    return (
        AutoModelForMultimodalLM if is_whole and not alone._keys_to_ignore_on_load_unexpected else AutoModelForCausalLM
    )


def language_part(model: PreTrainedModel) -> PreTrainedModel:
    """The model without what computes with the configuration of an encoder, or a whole language model in it."""
    inside = getattr(model, "language_model", None)
    if isinstance(inside, PreTrainedModel) and inside.get_output_embeddings() is not None:
        inside.generation_config = model.generation_config
        return inside
    encoders = {type(getattr(model.config, name, None)) for name in model.config.sub_configs if name in ENCODERS}
    for name, module in [*model.named_modules()]:
        if isinstance(module, PreTrainedModel) and type(module.config) in encoders:
            owner, _, own = name.rpartition(".")
            nothing: Any = torch.nn.Module()
            # Some models ask for them though they are given text alone.
            nothing.device, nothing.dtype = module.device, module.dtype
            model.get_submodule(owner).register_module(own, nothing)
    return model
