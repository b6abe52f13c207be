"""Samples text from the newest checkpoint of a run.

  python -m launch.generate --workdir=runs/tiny --prompt="import os" --prompt="def main" --top_k=40

The same command in several processes samples together; see `resjax.processes.initialize`.
"""

import jax
from absl import flags

from launch import cli
from resjax import experiment, processes
from resjax.data.tokenizer import END_OF_TEXT
from resjax.models.sampling import check_options
from resjax.ranges import MAX_SEED
from resjax.runs import restore
from resjax.runs.sample import sample_text

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run, or a checkpoint in it.")
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


def main() -> None:
  """Prints each prompt with its continuations."""
  if _WORKDIR.value is None:
    raise ValueError("no run; give its folder, for example --workdir=runs/tiny")
  cli.join()
  for prompt in _PROMPTS.value:
    cli.check_text(prompt, "--prompt")
  check_options(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
  saved = restore.find(_WORKDIR.value, "--workdir")
  run = experiment.load(str(saved.workdir))
  model, params, tokenizer = restore.restore_model(run, saved)
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
