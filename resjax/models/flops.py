"""Floating-point operations of a decoder."""

from resjax.combinators import Combinator
from resjax.models.config import DecoderConfig


def forward_flops_per_token(config: DecoderConfig, combinator: Combinator, seq_len: int) -> float:
  """Returns the forward FLOPs per token, a multiply-add counting as two.

  2 · (matrix parameters of all layers + V D) + 2 L H C T (scores and values over T / 2 earlier
  tokens on average) + those of the combinator. Norms and activations are left out. `short_swa` adds
  L layers of 4 D² parameters, and scores and values over w − w² / 2T tokens, w = min(window, T).

  Args:
    config: the decoder.
    combinator: its residual system.
    seq_len: T.
  """
  heads = config.num_heads * config.head_dim
  kv_heads = config.num_kv_heads * config.head_dim
  attention = config.d_model * (2 * heads + 2 * kv_heads)
  mlp = (3 if config.mlp == "swiglu" else 2) * config.d_model * config.mlp_dim
  matrices = config.num_layers * (attention + mlp) + config.vocab_size * config.d_model
  scores = 2 * config.num_layers * heads * seq_len
  if config.short_swa.window:
    window = min(config.short_swa.window, seq_len)
    matrices += config.num_layers * 4 * config.d_model**2
    tokens = window - window**2 / (2 * seq_len)
    scores += 4 * config.num_layers * config.d_model * tokens
  return 2 * matrices + scores + combinator.flops_per_token()


def training_flops_per_token(config: DecoderConfig, combinator: Combinator, seq_len: int) -> float:
  """Returns 3 × forward: the backward pass costs two forwards; recomputation is not counted."""
  return 3 * forward_flops_per_token(config, combinator, seq_len)
