"""Times exported models in transformers, on the CPU, beside a Llama of the same size.

  resjax bench exported --residuals=standard,gate,block_attn_res

The first model is the plain decoder as `LlamaForCausalLM`, the others have the source that their
folders hold. `first` is the time of a prompt with a cache that is filled, `next` that of a token
behind it; both are the least of --repeats. It needs torch and transformers. The command prints a
table of Markdown.
"""

import importlib.util
import tempfile
import time
from pathlib import Path

from absl import flags
from flax import nnx

from configs import base
from launch import cli
from resjax import experiment
from resjax.interop import huggingface
from resjax.models.decoder import Decoder

_NAMES = flags.DEFINE_list(
  "residuals",
  ["standard", "gate", "block_attn_res", "deep_delta", "hyper_connections"],
  "Combinators, with their default options.",
)
_LAYERS = flags.DEFINE_integer("layers", 8, "Layers.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("d_model", 512, "Width; a multiple of 64.", lower_bound=64)
_PROMPT = flags.DEFINE_integer("prompt", 256, "Tokens of the prompt.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("tokens", 24, "Tokens behind it.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Runs, of which the fastest counts.", lower_bound=1)


def main() -> None:
  """Prints the times of each model, and their ratios to Llama's."""
  for name in ("torch", "transformers"):
    if importlib.util.find_spec(name) is None:
      raise ValueError(f"{name} is not installed; this command needs torch and transformers")
  print("| model | first, ms | ratio | next, ms | ratio |\n|---|---|---|---|---|")
  llama = _times("standard", with_code=False)
  print(f"| Llama | {llama[0]:.1f} | 1.00 | {llama[1]:.2f} | 1.00 |", flush=True)
  for name in _NAMES.value:
    times = _times(name, with_code=True)
    cells = (f"{own:.4g} | {own / plain:.2f}" for own, plain in zip(times, llama, strict=True))
    print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def _times(name: str, *, with_code: bool) -> tuple[float, float]:
  """Returns the milliseconds of the prompt, and of a token behind it."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  decoder = _decoder(name)
  with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch) / name
    huggingface.export(decoder, folder, with_code=with_code)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
  prompt = torch.randint(decoder.config.vocab_size, (1, _PROMPT.value))
  first, following = [], []
  with torch.no_grad():
    for _ in range(_REPEATS.value):
      start = time.perf_counter()
      cache = model(prompt, use_cache=True).past_key_values
      between = time.perf_counter()
      for _ in range(_TOKENS.value):
        cache = model(prompt[:, :1], past_key_values=cache).past_key_values
      first.append(between - start)
      following.append((time.perf_counter() - between) / _TOKENS.value)
  return 1e3 * min(first), 1e3 * min(following)


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
  cli.run(main)
