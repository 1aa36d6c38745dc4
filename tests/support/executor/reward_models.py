"""Small random reward models, laid out on disk as the published ones are, with what a straight forward gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from qpdsl import zoo
from tests.support.executor.models import CONFIGS, random_model

PROBLEM = "Mia has 12 coins. She finds 30 more. How many coins does Mia have?"
STEPS = ["12 + 30 = 42.", "42 - 2 = 40.", "40 * 2 = 80. The answer is 80."]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH = 48

Straight = Callable[[str, list[str]], list[float]]


@dataclass(frozen=True)
class RewardModel:
    """A folder, and the step scores of a solution by a forward of the whole text."""

    folder: Path
    straight: Straight


def tokenizer(template: str | None, *added: str) -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    loaded.add_tokens([AddedToken(text, special=text.startswith("<"), normalized=False) for text in added])
    loaded.chat_template = template
    return loaded


def _saved(
    folder: Path, model: PreTrainedModel, words: PreTrainedTokenizerFast, **config: object
) -> PreTrainedTokenizerFast:
    """Saves both, and gives the tokenizer as it is loaded again: the architecture has a say in it."""
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    return loaded


def _with_head(folder: Path, head: Mapping[str, torch.Tensor], *, keep_lm_head: bool) -> None:
    """Adds a head's tensors to a saved checkpoint, in a file of its own beside an index, as large ones come."""
    weights = load_file(folder / "model.safetensors")
    if not keep_lm_head:
        weights.pop("lm_head.weight", None)
    files = dict.fromkeys(weights, "model-00001-of-00002.safetensors")
    files |= dict.fromkeys(head, "model-00002-of-00002.safetensors")
    save_file(weights, folder / "model-00001-of-00002.safetensors", {"format": "pt"})
    save_file(dict(head), folder / "model-00002-of-00002.safetensors", {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "model.safetensors").unlink()


@torch.no_grad()
def _answers_only(model: PreTrainedModel, signs: list[int]) -> None:
    """Makes one of two tokens the likeliest everywhere, as training does: each has what the other lacks."""
    weight = model.get_output_embeddings().weight
    kept = weight[signs[0]].clone()
    weight.zero_()
    weight[signs[0]], weight[signs[1]] = kept, -kept


@torch.inference_mode()
def _hidden(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    hidden: torch.Tensor = model.base_model(torch.tensor([ids]))[0][0]
    return hidden


def math_shepherd(folder: Path) -> RewardModel:
    words = tokenizer(None, "ки")
    model = random_model("mistral", vocab_size=len(words), sliding_window=4096)
    signs = [words.encode(sign, add_special_tokens=False)[-1] for sign in "+-"]
    _answers_only(model, signs)
    words = _saved(folder, model, words)
    tag = words.convert_tokens_to_ids("ки")

    @torch.inference_mode()
    def straight(problem: str, steps: list[str]) -> list[float]:
        text = f"{problem} " + "\n\n".join(f"{step} ки" for step in steps)
        ids = words(text).input_ids
        logits = model(torch.tensor([ids])).logits[0][:, signs].softmax(dim=-1)[:, 0]
        return [logits[position].item() for position, id in enumerate(ids) if id == tag]

    return RewardModel(folder, straight)


def skywork(folder: Path) -> RewardModel:
    words = tokenizer(CHAT, "<|im_start|>", "<|im_end|>")
    model = random_model("qwen2", vocab_size=len(words))
    torch.manual_seed(1)
    weight, bias = torch.randn(1, WIDTH), torch.randn(1)
    name = "Qwen2ForPrmModel"
    words = _saved(folder, model, words, architectures=[name], auto_map={"AutoModel": f"prm.{name}"})
    _with_head(folder, {"v_head.summary.weight": weight, "v_head.summary.bias": bias}, keep_lm_head=True)
    newline = words.encode("\n", add_special_tokens=False)[-1]

    def straight(problem: str, steps: list[str]) -> list[float]:
        ids = words.encode((words.bos_token or "") + problem + "\n", add_special_tokens=False)
        positions = []
        for line in "\n\n".join(steps).split("\n"):
            ids += [*words.encode(line, add_special_tokens=False), newline] if line else [newline]
            positions += [len(ids) - 1] if line else []
        values = torch.nn.functional.linear(_hidden(model, ids), weight, bias).sigmoid()
        return [values[position].item() for position in positions]

    return RewardModel(folder, straight)


def qwen(folder: Path) -> RewardModel:
    words = tokenizer(CHAT, "<|im_start|>", "<|im_end|>", "<extra_0>")
    model = random_model("qwen2", vocab_size=len(words))
    torch.manual_seed(2)
    score = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2))
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    name = "Qwen2ForProcessRewardModel"
    words = _saved(folder, model, words, architectures=[name], auto_map={"AutoModel": f"modeling_qwen2_rm.{name}"})
    _with_head(folder, {f"score.{key}": value for key, value in score.state_dict().items()}, keep_lm_head=False)

    @torch.inference_mode()
    def straight(problem: str, steps: list[str]) -> list[float]:
        messages = [
            {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
            {"role": "user", "content": problem},
            {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
        ]
        ids = words.encode(words.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
        classes = score(_hidden(model, ids)).softmax(dim=-1)[:, 1]
        mark = words.convert_tokens_to_ids("<extra_0>")
        return [classes[position].item() for position, id in enumerate(ids) if id == mark]

    return RewardModel(folder, straight)


def outcome(folder: Path, labels: int = 1, template: str = CHAT, padding: str | None = "<pad>") -> RewardModel:
    """`padding` is the token that the configuration says pads its batches; "<pad>" stands for id 0."""
    words = tokenizer(template, "<|im_start|>", "<|im_end|>")
    torch.manual_seed(3)
    pad = None if padding is None else 0 if padding == "<pad>" else words.convert_tokens_to_ids(padding)
    config = CONFIGS["llama"].__class__.from_dict(
        {**CONFIGS["llama"].to_dict(), "vocab_size": len(words), "num_labels": labels, "pad_token_id": pad}
    )
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    words = _saved(folder, model, words)

    @torch.inference_mode()
    def straight(problem: str, steps: list[str]) -> list[float]:
        messages = [{"role": "user", "content": problem}, {"role": "assistant", "content": "\n\n".join(steps)}]
        ids = words.encode(words.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
        logits = model(torch.tensor([ids])).logits[0]
        return [logits.item() if labels == 1 else logits.softmax(dim=-1)[1].item()]

    return RewardModel(folder, straight)


MAKERS: Mapping[str, Callable[[Path], RewardModel]] = {
    "math_shepherd": math_shepherd,
    "skywork": skywork,
    "qwen": qwen,
    "outcome": outcome,
}
