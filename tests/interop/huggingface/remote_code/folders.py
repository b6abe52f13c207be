"""Random decoders in folders with remote code, and what transformers makes of them."""

import dataclasses

import jax
import numpy as np
from flax import nnx

from resjax.interop import huggingface
from tests.helpers import decoders
from tests.interop.huggingface.golden_test import logits

PROMPT, NEW = 6, 64


@dataclasses.dataclass(frozen=True)
class Case:
  """A combinator with options, in a style of configs/base.py with other changes."""

  name: str
  options: dict = dataclasses.field(default_factory=dict)
  style: str = "llama"
  changes: dict = dataclasses.field(default_factory=dict)

  def __str__(self):
    given = [f"{key}={value}" for key, value in {**self.options, **self.changes}.items()]
    return "-".join([self.name, self.style, *given])

  @property
  def config(self):
    sizes = {"num_layers": 4, "max_positions": 128, "head_dim": 6} | self.changes
    return decoders.config(self.style, self.name, self.options, **sizes)

  def decoder(self):
    """Returns the decoder with random parameters, none of which is neutral."""
    return decoders.decoder(self.config)

  def write(self, folder, **options):
    """Writes the folder, and returns the decoder."""
    decoder = self.decoder()
    huggingface.export(decoder, folder, with_code=True, **options)
    return decoder


def model(folder, **options):
  """Returns what transformers loads; no tensor is missing, and none is left over."""
  import torch
  import transformers

  options = {"dtype": torch.float32, "trust_remote_code": True} | options
  found, said = transformers.AutoModelForCausalLM.from_pretrained(
    folder, output_loading_info=True, **options
  )
  assert not any(said.values()), said
  return found.eval()


def assert_same(decoder, other):
  """Asserts that two decoders have the same parameters, to the bit."""
  ours, theirs = (nnx.to_pure_dict(nnx.state(each)) for each in (decoder, other))
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def greedy(found, prompt, mask=None):
  """Returns prompts with the tokens that `generate` adds to them, by its cache."""
  mask = prompt * 0 + 1 if mask is None else mask
  lengths = {"max_new_tokens": NEW, "min_new_tokens": NEW}
  return found.generate(prompt, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths)


def compare(decoder, found):
  """Returns how far logits are apart, how large they are, and how many greedy tokens differ."""
  import torch

  prompt = np.asarray(decoders.tokens(decoder.config, 2, PROMPT))
  with torch.no_grad():
    rows = greedy(found, torch.tensor(prompt))
    theirs = found(rows, use_cache=False).logits.float().numpy()
  rows = rows.numpy()
  ours = logits(decoder, rows)
  wrong = np.sum(np.argmax(ours[:, PROMPT - 1 : -1], axis=-1) != rows[:, PROMPT:])
  return np.abs(theirs - ours).max(), np.abs(ours).max(), wrong
