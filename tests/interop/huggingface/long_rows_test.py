"""A Phi-3 with longrope in transformers and here, below, at and above the length of its short rows.

Run where torch and transformers are installed; elsewhere this is skipped.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from resjax.interop import huggingface
from resjax.study.evaluation.generator import Generator
from resjax.study.evaluation.scorer import Scored, Scorer
from resjax.testing.compare import assert_close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHORT = 100  # tokens, n
LENGTHS = (60, 99, 100, 101, 150)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """The model of transformers, and the same here."""
  factors = {"short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [2.0, 4.0, 8.0, 16.0]}
  rope = {"rope_type": "longrope", "rope_theta": 100.0, **factors}
  config = transformers.Phi3Config(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4 * SHORT,
    original_max_position_embeddings=SHORT, rope_parameters=rope, initializer_range=0.3,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
  )  # fmt: skip
  torch.manual_seed(0)
  theirs = transformers.Phi3ForCausalLM(config).eval()
  folder = tmp_path_factory.mktemp("phi3")
  theirs.save_pretrained(folder)
  return theirs, huggingface.load(folder)


def row(length):
  return np.random.default_rng(0).integers(3, 61, length)


@pytest.mark.parametrize("length", LENGTHS)
def test_rows(both, length):
  theirs, ours = both
  tokens = row(length)
  with torch.no_grad():
    want = theirs(torch.tensor(tokens[None])).logits[0].numpy()
  assert_close(ours.logits(ours(jnp.asarray(tokens[None])))[0], want, 1e-5)
  # In buckets of 64, 128 and 192 tokens, whose padding is no part of the row.
  found = Scorer(ours, max_length=3 * SHORT, batch_size=2).score([Scored(tokens), Scored(row(40))])
  # transformers turns by the last position of what it is given, so that it gets the inputs alone.
  with torch.no_grad():
    logits = theirs(torch.tensor(tokens[None, :-1])).logits[0].double()
  picked = torch.log_softmax(logits, -1)[torch.arange(length - 1), torch.tensor(tokens[1:])]
  assert found[0].log_prob == pytest.approx(picked.sum().item(), rel=1e-5)


def test_a_continuation_that_makes_a_row_long(both):
  """It is computed anew from its first token then, there as here; others of the batch are not."""
  theirs, ours = both
  prompts = [row(length).tolist() for length in (92, 40, 120)]
  found = Generator(ours, max_length=4 * SHORT, batch_size=4).generate(prompts, num_tokens=16)
  for prompt, got in zip(prompts, found, strict=True):
    with torch.no_grad():
      want = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None
      )
    assert got == want[0, len(prompt) :].tolist()
