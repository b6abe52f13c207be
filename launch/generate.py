"""Samples text from the newest checkpoint of a run, or from a Hugging Face model.

  python -m launch.generate --workdir=runs/tiny --prompt="import os" --prompt="def main" --top_k=40
  python -m launch.generate --hf=models/SmolLM3-3B --prompt="import os"

The same command in several processes samples together; see `resjax.processes.initialize`.
"""

import jax
from absl import flags
from flax import nnx

from launch import cli
from resjax import experiment, measured_models, processes
from resjax.data.tokenizer import END_OF_TEXT, Tokenizer
from resjax.models.model_def import ModelDef
from resjax.models.sampling import check_options
from resjax.ranges import MAX_SEED
from resjax.runs import restore
from resjax.runs.sample import sample_text
from resjax.typing import PyTree

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run, or a checkpoint in it.")
_FOLDER = flags.DEFINE_string("hf", None, "Folder of a Hugging Face model, in place of a run.")
_IGNORED = flags.DEFINE_list(
  "hf_ignore", [], "Settings of its config.json that are not known, and that change nothing."
)
_PROMPTS = flags.DEFINE_multi_string("prompt", [""], "Beginning of a text.")
_NUM_TOKENS = flags.DEFINE_integer("num_tokens", 64, "Tokens of a continuation.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "Temperature; 0: the most probable token.")
_TOP_K = flags.DEFINE_integer("top_k", 0, "Sample among the k most probable tokens; 0: all.")
_TOP_P = flags.DEFINE_float(
  "top_p", 1.0, "Sample among the most probable tokens whose sum is p; 1: all."
)
_STOP = flags.DEFINE_string("stop", END_OF_TEXT, "Text of one token that ends a continuation too.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the random numbers.", 0, MAX_SEED)
_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Continuations of a prompt.", lower_bound=1)


def _trained(folder: str) -> tuple[ModelDef, PyTree, Tokenizer]:
  """Returns the model of --workdir, its parameters and its tokenizer."""
  saved = restore.find(folder, "--workdir")
  return restore.restore_model(experiment.load(str(saved.workdir)), saved)


def _pretrained(folder: str) -> tuple[ModelDef, PyTree, Tokenizer]:
  """Returns the model of --hf, its parameters and its tokenizer."""
  processes.refuse_several("launch.generate --hf")
  subject = measured_models.from_huggingface(folder, ignore=_IGNORED.value)
  decoder = subject.decoder
  params = nnx.to_pure_dict(nnx.state(decoder))
  return ModelDef(decoder.config, decoder.layout), params, subject.tokenizer


def main() -> None:
  """Prints each prompt with its continuations."""
  workdir, folder = _WORKDIR.value, _FOLDER.value
  if workdir is None and folder is None:
    raise ValueError(
      "no model; give the folder of a run, for example --workdir=runs/tiny, or --hf with the "
      "folder of a Hugging Face model"
    )
  if workdir is not None and folder is not None:
    raise ValueError(f"--workdir={workdir} and --hf={folder} are two models; give one of them")
  cli.join()
  for prompt in _PROMPTS.value:
    cli.check_text(prompt, "--prompt")
  check_options(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
  model, params, tokenizer = _pretrained(folder) if folder else _trained(workdir or "")
  prompts = [prompt for prompt in _PROMPTS.value for _ in range(_SAMPLES.value)]
  texts = sample_text(
    model,
    params,
    tokenizer,
    prompts,
    num_tokens=_NUM_TOKENS.value,
    temperature=_TEMPERATURE.value,
    seed=_SEED.value,
    top_k=_TOP_K.value,
    top_p=_TOP_P.value,
    stop=_STOP.value,
  )
  if jax.process_index() == 0:
    pairs = zip(prompts, texts, strict=True)
    print("\n----\n".join(prompt + text for prompt, text in pairs))
  processes.shutdown()


if __name__ == "__main__":
  cli.run(main)
