import dataclasses

import jax
import pytest
from flax import nnx

from resjax.models.config import ShortSWAConfig
from resjax.models.flops import forward_flops_per_token, training_flops_per_token
from tests.helpers import decoders

SIZES = {"d_model": 64, "num_heads": 4, "num_kv_heads": 4, "mlp_dim": 256, "vocab_size": 512}


@pytest.mark.parametrize("style", decoders.STYLES)
def test_matrix_products_are_those_that_xla_counts(style):
  config = decoders.config(style, num_layers=2, depth="loop", **SIZES)
  model = decoders.decoder(config)
  batch, length = 2, 32
  graphdef, state = nnx.split(model)

  def forward(state, tokens):
    model = nnx.merge(graphdef, state)
    return model.logits(model(tokens))

  compiled = jax.jit(forward).lower(state, decoders.tokens(config, batch, length)).compile()
  counted = compiled.cost_analysis()["flops"] / (batch * length)
  # XLA computes the scores of all T tokens, not of the T / 2 that a token sees on average, and
  # counts norms, activations and softmax, which the formula leaves out.
  scores = 2 * config.num_layers * 64 * length
  ours = forward_flops_per_token(config, model.combinator, length) + scores
  assert ours < counted < 1.15 * ours


def test_published_rule_of_six_flops_per_parameter_and_token():
  config = decoders.config(
    "gpt2", vocab_size=50257, max_positions=1024, num_layers=12, d_model=768, num_heads=12,
    num_kv_heads=12, mlp_dim=3072,
  )  # fmt: skip
  combinator = decoders.decoder(decoders.config()).combinator
  attention = 6 * 12 * 768 * 1024  # the causal half of 12 L D T
  parameters = 12 * 12 * 768**2 + 50257 * 768
  want = 6 * parameters + attention + 3 * combinator.flops_per_token()
  assert training_flops_per_token(config, combinator, 1024) == want


@pytest.mark.parametrize("window, tokens", [(1, 1 - 1 / 64), (8, 8 - 1), (99, 16)])
def test_a_short_window_counts(window, tokens):
  changed = decoders.config("llama", short_swa=ShortSWAConfig(window, num_heads=2))
  plain, made = decoders.config("llama"), decoders.decoder(decoders.config()).combinator
  got, without = (forward_flops_per_token(config, made, 32) for config in (changed, plain))
  assert got - without == 3 * (2 * 4 * 16**2 + 4 * 16 * tokens)


def test_a_combinator_counts():
  config = decoders.config("llama", "attn_res")
  full = decoders.decoder(config).combinator
  plain = decoders.decoder(dataclasses.replace(config, residual=decoders.config().residual))
  difference = forward_flops_per_token(config, full, 8) - forward_flops_per_token(
    config, plain.combinator, 8
  )
  assert difference == full.flops_per_token() - plain.combinator.flops_per_token() > 0
