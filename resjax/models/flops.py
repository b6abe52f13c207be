"""The floating-point operations of a decoder."""

from resjax.combinators import Combinator
from resjax.models.config import DecoderConfig
from resjax.models.layer import normed_views
from resjax.nn import is_gated


def forward_flops_per_token(config: DecoderConfig, combinator: Combinator, seq_len: int) -> float:
  """Returns the forward FLOPs per token; a multiply-add counts as two.

  2 · (matrix parameters of all layers + V D) + 4 H C Σ_l (w_l − w_l² / 2T) + combinator

  The second term is scores and values over the tokens that a token sees on average, where w_l is
  min(window of layer l, T), or T without a window. Of a mixture of experts those count that a token
  goes through, and the router. Norms and activations are left out. `short_swa`
  adds 4 D² parameters to every layer, and scores and values of width D in its window. A gate
  behind a norm has 2 r D. A gated value residual adds D K parameters and 2 K C to a layer; the mix
  of its values with the values of n earlier layers 4 (n + 1) K C.

  Args:
    config: the decoder.
    combinator: its residual system.
    seq_len: the number of tokens in a row T.
  """
  heads = config.num_heads * config.head_dim
  kv_heads = config.num_kv_heads * config.head_dim
  attention = config.d_model * (2 * heads + 2 * kv_heads)
  per_unit, moe = (3 if is_gated(config.mlp) else 2) * config.d_model, config.moe
  active = (moe.num_experts_per_tok + moe.num_shared_experts) * per_unit * config.expert_dim
  matrices = config.num_layers * attention + config.vocab_size * config.d_model
  matrices += len(config.dense_layers) * per_unit * config.mlp_dim
  matrices += len(config.routed_layers) * (active + config.d_model * moe.num_experts)
  scores = 4 * heads * sum(_seen(window, seq_len) for window in config.layer_windows)
  if config.short_swa.window:
    matrices += config.num_layers * 4 * config.d_model**2
    scores += 4 * config.num_layers * config.d_model * _seen(config.short_swa.window, seq_len)
  gated = sum(map(len, normed_views(config, combinator).values()))
  matrices += config.num_layers * gated * 2 * config.d_model * config.norm_gate.rank
  if config.num_gated_layers:
    matrices += config.num_gated_layers * config.d_model * config.num_kv_heads
    scores += config.num_gated_layers * 2 * kv_heads
  scores += 4 * kv_heads * sum(len(layers) + 1 for layers in config.value_sources if layers)
  return 2 * matrices + scores + combinator.flops_per_token()


def inactive_parameters(config: DecoderConfig) -> int:
  """Returns how many parameters a token does not go through: those of experts it did not choose."""
  moe, maps = config.moe, 3 if is_gated(config.mlp) else 2
  idle = (moe.num_experts - moe.num_experts_per_tok) * maps * config.d_model * config.expert_dim
  return len(config.routed_layers) * idle


def _seen(window: int, seq_len: int) -> float:
  """Returns how many tokens a token sees on average; window 0: all earlier ones."""
  size = min(window or seq_len, seq_len)
  return size - size**2 / (2 * seq_len)


def training_flops_per_token(config: DecoderConfig, combinator: Combinator, seq_len: int) -> float:
  """Returns the FLOPs of training per token, three times the FLOPs of the forward pass.

  The backward pass costs as much as two forward passes; recomputation is not counted.

  Args:
    config: the decoder.
    combinator: its residual system.
    seq_len: the number of tokens in a row T.
  """
  return 3 * forward_flops_per_token(config, combinator, seq_len)
