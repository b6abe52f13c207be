"""Times exported models in transformers, on the CPU, beside a Llama of the same size.

  resjax bench exported --residuals=standard,gate,block_attn_res

The first model is the plain decoder as `LlamaForCausalLM`, the others have the source that their
folders hold. `first` is the time of a prompt with a cache that is filled, `next` that of a token
behind it; both are the least of --repeats, in which the models take turns. It needs torch and
transformers. The command prints a table of Markdown.
"""

import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from flax import nnx

from configs import base
from launch.bench import sizes
from resjax.cli import command
from resjax.interop import huggingface
from resjax.models import Decoder
from resjax.train import experiment

_NAMES = flags.DEFINE_list(
  "residuals",
  ["standard", "gate", "block_attn_res", "deep_delta", "hyper_connections"],
  "Combinators, with their default options.",
)
_LAYERS, _WIDTH = sizes.define(8, 512)
_PROMPT = flags.DEFINE_integer("prompt", 256, "Tokens of the prompt.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("tokens", 24, "Tokens behind it.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Runs, of which the fastest counts.", lower_bound=1)


def main() -> None:
  """Prints the times of each model, and their ratios to Llama's."""
  for name in ("torch", "transformers"):
    if importlib.util.find_spec(name) is None:
      raise ValueError(f"{name} is not installed; this command needs torch and transformers")
  models = {"Llama": _load("standard", with_code=False)}
  models |= {f"`{name}`": _load(name, with_code=True) for name in _NAMES.value}
  turns = [[_times(model) for model in models.values()] for _ in range(_REPEATS.value)]
  best = 1e3 * np.min(turns, axis=0)
  print("| model | first, ms | ratio | next, ms | ratio |\n|---|---|---|---|---|")
  for name, times in zip(models, best, strict=True):
    cells = (f"{own:.4g} | {own / plain:.2f}" for own, plain in zip(times, best[0], strict=True))
    print(f"| {name} | {' | '.join(cells)} |")


def _load(name: str, *, with_code: bool) -> Any:
  """Returns the exported model as transformers loads it."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch) / name
    huggingface.export(_decoder(name), folder, with_code=with_code)
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, trust_remote_code=True, dtype=torch.float32).eval()


def _times(model: Any) -> tuple[float, float]:
  """Returns the seconds of the prompt, and of a token behind it."""
  import torch

  prompt = torch.randint(model.config.vocab_size, (1, _PROMPT.value))
  with torch.no_grad():
    start = time.perf_counter()
    found = model(prompt, use_cache=True)
    between = time.perf_counter()
    cache = "cache" if "cache" in found else "past_key_values"  # its name up to transformers 5.23
    for _ in range(_TOKENS.value):
      found = model(prompt[:, :1], **{cache: found[cache]})
    end = time.perf_counter()
  return between - start, (end - between) / _TOKENS.value


def _decoder(name: str) -> Decoder:
  config = base.get_config("llama")
  heads = _WIDTH.value // 64
  config.model.update(
    num_layers=_LAYERS.value, d_model=_WIDTH.value, mlp_dim=11 * _WIDTH.value // 4
  )
  config.model.update(num_heads=heads, num_kv_heads=heads, head_dim=64, dtype="float32")
  config.model.residual.name = name
  config.data.seq_len = _PROMPT.value + (_REPEATS.value + 1) * _TOKENS.value
  config.data.tokenizer.name = "byte"
  return Decoder(experiment.build(config).decoder, rngs=nnx.Rngs(0))


if __name__ == "__main__":
  command.run(main)
