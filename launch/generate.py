"""Samples text from the newest checkpoint of a run.

python -m launch.generate --workdir=runs/tiny --prompt="import os" --num_tokens=64
"""

import jax
from absl import flags

from launch import cli
from resjax import experiment
from resjax.train.restore import restore_model
from resjax.train.sample import sample_text

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_PROMPT = flags.DEFINE_string("prompt", "", "How the text begins.")
_NUM_TOKENS = flags.DEFINE_integer("num_tokens", 64, "Length of a continuation.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "0 takes the most probable token.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the random numbers.")
_SAMPLES = flags.DEFINE_integer("num_samples", 1, "How many continuations.", lower_bound=1)


def main() -> None:
  """Prints the prompt with each continuation."""
  if _WORKDIR.value is None:
    raise ValueError("no run; give its folder, for example --workdir=runs/tiny")
  model, params, tokenizer = restore_model(experiment.load(_WORKDIR.value))
  texts = sample_text(
    model,
    params,
    tokenizer,
    _PROMPT.value,
    num_tokens=_NUM_TOKENS.value,
    temperature=_TEMPERATURE.value,
    seed=_SEED.value,
    num_samples=_SAMPLES.value,
  )
  if jax.process_index() == 0:
    print("\n----\n".join(_PROMPT.value + text for text in texts))


if __name__ == "__main__":
  cli.run(main)
