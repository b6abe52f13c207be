"""Compares a run with its export in transformers: logits, and greedy tokens with a cache.

python docs/examples/compare_with_transformers.py RUN FOLDER      (needs torch and transformers)
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from resjax.models import generate
from resjax.train import experiment
from resjax.train.runs import restore


def main(workdir: str, folder: str) -> None:
  """Prints how far logits are apart, and how many greedy tokens are equal, of random prompts."""
  saved = restore.find(workdir, "RUN")
  decoder = restore.restore_model(experiment.load(str(saved.workdir)), saved).decoder
  exported = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
  rng = np.random.default_rng(0)
  tokens = rng.integers(decoder.config.vocab_size, size=(2, decoder.config.max_positions // 2))
  with torch.no_grad():
    theirs = exported(torch.from_numpy(tokens)).logits.numpy()
  ours = np.asarray(decoder.logits(decoder(jnp.asarray(tokens))))
  print(f"logits: at most {np.abs(ours - theirs).max():.1e} apart, of {np.abs(ours).max():.1f}")
  new = decoder.config.max_positions - tokens.shape[1]
  mine = generate(decoder, jnp.asarray(tokens), new, key=jax.random.key(0), temperature=0)
  options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new}
  options["attention_mask"] = torch.ones(tokens.shape, dtype=torch.long)
  other = exported.generate(torch.from_numpy(tokens), **options)
  equal = (np.asarray(mine) == other.numpy())[:, -new:]
  print(f"greedy tokens: {equal.sum()} of {equal.size} equal")


if __name__ == "__main__":
  if len(sys.argv) != 3:
    raise SystemExit("usage: python docs/examples/compare_with_transformers.py RUN FOLDER")
  main(*sys.argv[1:])
