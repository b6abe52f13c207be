"""Samples text from the newest checkpoint of a run, or from a Hugging Face model.

  resjax generate --checkpoint=runs/tiny --prompt="import os" --prompt="def main" --top_k=40
  resjax generate --hf=models/SmolLM3-3B --prompt="import os"
  resjax generate --hf=smollm2-135m.gguf --prompt="import os" --bos=never

The same command in several processes samples together; see `resjax.base.processes.initialize`.
"""

import dataclasses
import functools
from typing import Any

import jax
from absl import flags

from resjax.base import MAX_SEED, processes, terminal
from resjax.cli import command
from resjax.cli.actions import loading
from resjax.cli.bos_flag import BOS
from resjax.data import END_OF_TEXT
from resjax.models import check_options
from resjax.study import TrainedModel
from resjax.train.runs import prefix_of_prompts, sample_text

_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", None, "Folder of a run, whose newest checkpoint is taken, or a checkpoint."
)
_FOLDER = flags.DEFINE_string(
  "hf",
  None,
  "Pretrained model, in place of a run: a folder, a GGUF file, or OWNER/NAME of the hub.",
)
_IGNORED = flags.DEFINE_list(
  "hf_ignore", [], "Settings of its config.json that are not known, and that change nothing."
)
_PROMPTS = flags.DEFINE_multi_string("prompt", [""], "Beginning of a text.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "Temperature; 0: the most probable token.")
_TOP_K = flags.DEFINE_integer("top_k", 0, "Sample among the k most probable tokens; 0: all.")
_TOP_P = flags.DEFINE_float(
  "top_p", 1.0, "Sample among the most probable tokens whose sum is p; 1: all."
)
_STOP = flags.DEFINE_string("stop", END_OF_TEXT, "Text of one token that ends a continuation too.")
# The arguments of `sample_text` of these names.
_SAMPLING: tuple[flags.FlagHolder[Any], ...] = (
  _TEMPERATURE, _TOP_K, _TOP_P, _STOP,
  flags.DEFINE_integer("num_tokens", 64, "Tokens of a continuation.", lower_bound=1),
  flags.DEFINE_integer("seed", 0, "Seed of the random numbers.", 0, MAX_SEED),
)  # fmt: skip
_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Continuations of a prompt.", lower_bound=1)


def _pretrained(folder: str) -> TrainedModel:
  processes.refuse_several("resjax generate --hf")
  return loading.from_huggingface(folder, ignore=_IGNORED.value)


def main() -> None:
  """Prints each prompt with its continuations."""
  checkpoint, folder = _CHECKPOINT.value, _FOLDER.value
  if checkpoint is None and folder is None:
    raise ValueError(
      "no model; give the folder of a run, for example --checkpoint=runs/tiny, or --hf with a "
      "Hugging Face folder, a GGUF file, or OWNER/NAME of the hub"
    )
  if checkpoint is not None and folder is not None:
    raise ValueError(
      f"--checkpoint={checkpoint} and --hf={folder} are two models; give one of them"
    )
  command.join()
  for prompt in _PROMPTS.value:
    command.check_text(prompt, "--prompt")
  command.check_text(_STOP.value, "--stop")
  check_options(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
  model = _pretrained(folder) if folder else loading.from_workdir(checkpoint or "")
  model = dataclasses.replace(model, bos=BOS.value)
  prompts = [prompt for prompt in _PROMPTS.value for _ in range(_SAMPLES.value)]
  texts = sample_text(model, prompts, **{flag.name: flag.value for flag in _SAMPLING})
  if jax.process_index() == 0:
    pairs = zip(prompts, texts, strict=True)
    print("\n----\n".join(prompt + text for prompt, text in pairs), flush=True)
    terminal.say(terminal.console(stderr=True), prefix_of_prompts(model, prompts))
  processes.shutdown()


run = functools.partial(command.run, main)
