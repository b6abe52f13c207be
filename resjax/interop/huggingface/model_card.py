"""The README.md of a folder: description, origin and loading of the model."""

from collections.abc import Mapping

from resjax.interop.huggingface.remote_code.serving import vllm_obstacles
from resjax.models import DecoderConfig

_HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [resjax, {residual}]
---

# A decoder with the residual path {residual}

| | |
|---|---|
"""
_USE = """
```python
from transformers import AutoModelForCausalLM{more}

model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})
{tokenizer}```
"""
# Without trust the class for tokenizers asks whether to run the code: it reads config.json, too.
_TOKENIZER = 'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})\n'
_CODE = """
`{modeling}` computes the model; its class `Residual` is the residual path, and
settings that begin with `residual_` are its options. It needs transformers 5.
`resjax.interop.huggingface.load` reads settings and tensors again and does not run the code.
"""


def model_card(
  config: DecoderConfig,
  facts: Mapping[str, object],
  modeling: str,
  num_parameters: int,
  dtype: str,
  has_tokenizer: bool,
) -> str:
  """Returns the text of the card.

  Args:
    config: of the decoder.
    facts: facts about its training, by name.
    modeling: the file that computes the model; empty where transformers has its code.
    num_parameters: how many numbers the tensors hold.
    dtype: of the tensors.
    has_tokenizer: whether the folder holds the files of one.
  """
  options = [f"{key}={value!r}" for key, value in config.residual.options.items()]
  rows = {
    "residual path": ", ".join([config.residual.name, *options]),
    "layers, width, MLP": f"{config.num_layers}, {config.d_model}, {config.mlp_dim}",
    "heads": f"{config.num_heads} of {config.head_dim}, {config.num_kv_heads} for keys and values",
    **_experts(config),
    "vocabulary": f"{config.vocab_size:,}",
    "parameters": f"{num_parameters:,}, {dtype}",
    **facts,
  }
  text = _HEAD.format(residual=config.residual.name)
  text += "".join(f"| {name} | {_cell(value)} |\n" for name, value in rows.items())
  trust = ", trust_remote_code=True" if modeling else ""
  more, tokenizer = (", AutoTokenizer", _TOKENIZER) if has_tokenizer else ("", "")
  text += _USE.format(more=more, trust=trust, tokenizer=tokenizer.format(trust=trust))
  if modeling:
    text += _CODE.format(modeling=modeling) + "\n" + _served(config)
  return text


def _experts(config: DecoderConfig) -> dict[str, str]:
  """Returns the row about experts, if there are any."""
  moe, layers = config.moe, len(config.routed_layers)
  if not layers:
    return {}
  shared = f", {moe.num_shared_experts} of all tokens" * bool(moe.num_shared_experts)
  what = f"{moe.num_experts} of width {config.expert_dim} in {layers} layers, "
  return {"experts": f"{what}{moe.num_experts_per_tok} for a token{shared}"}


def _served(config: DecoderConfig) -> str:
  found = vllm_obstacles(config)
  if found:
    return f"vLLM cannot serve it: {'; '.join(found)}.\n"
  return (
    "vLLM serves it by its Transformers backend (`--trust-remote-code`), without pipeline stages.\n"
    "It rounds the parameters of the residual path to the dtype in which it serves.\n"
    + "Mixtures of experts were not tried there.\n"
    * bool(config.routed_layers)
  )


def _cell(value: object) -> str:
  return str(value).replace("|", "\\|").replace("\n", " ")
