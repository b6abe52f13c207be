"""Settings of a decoder whose residual path is NAME_, as resjax computes it."""

from transformers import PretrainedConfig

# A digest of the code beside this file: with the same class of settings, transformers would take
# the code of another folder that was loaded before.
CODE = "DIGEST_"

# Settings that a config.json leaves out; one that export writes has all of them.
DEFAULTS = {
  "vocab_size": 32,
  "hidden_size": 8,
  "intermediate_size": 8,
  "num_hidden_layers": 1,
  "num_attention_heads": 1,
  "num_key_value_heads": 1,
  "head_dim": 8,
  "max_position_embeddings": 32,
  "tie_word_embeddings": True,
  "initializer_range": 0.02,
  # Norms: rmsnorm or layernorm; before branches, behind them, at the end, of queries and keys (each
  # head, or all heads together).
  "norm_type": "rmsnorm",
  "norm_eps": 1e-6,
  "norm_bias": False,
  "pre_norm": True,
  "post_norm": False,
  "final_norm": True,
  "qk_norm": "none",  # head, heads
  # Positions: rope or learned. A rotation has the angles per position of the pairs that it turns,
  # in radians, and a factor of what it turns; each layer has the number of its rotation, or null.
  "position_embedding_type": "rope",
  "rope_frequencies": [[1.0]],
  "rope_gains": [1.0],
  #: if longrope
  # Up to how many tokens a row is short: its angles are the first of two rows, else the second.
  "rope_short_lengths": [0],
  #: end
  "layer_ropes": [0],
  # Attention: its inputs, windows by layer, the factor of q · k, and the soft cap of scores.
  "attention_views": ["x"],
  "layer_types": ["full_attention"],
  "sliding_window": None,
  #: if windows
  "layer_windows": [0],
  #: end
  "attention_scaling": 1.0,
  "attn_logit_softcapping": None,
  "attention_bias": False,
  "attention_out_bias": False,
  "hidden_act": "silu",
  "mlp_gated": True,
  "mlp_bias": False,
  #: if experts
  # Which layers have experts (sparse) in place of an MLP (dense), how many, how many a token
  # chooses, their inner width, and that of an MLP of all tokens beside them. Scores are softmax or
  # sigmoid of the router's logits; a bias may be added where experts are chosen.
  "mlp_layer_types": ["sparse"],
  "num_experts": 2,
  "num_experts_per_tok": 1,
  "moe_intermediate_size": 8,
  "shared_intermediate_size": 0,
  "scoring_func": "softmax",
  "norm_topk_prob": True,
  "routed_scaling_factor": 1.0,
  "selection_bias": False,
  #: end
  # Factors of embeddings and logits, a divisor of branches, and the soft cap of logits.
  "embedding_multiplier": 1.0,
  "branch_divisor": 1.0,
  "logit_scale": 1.0,
  "final_logit_softcapping": None,
  #: if norm_gate
  # The norms' gates: their rank, and their value before learning.
  "norm_gate_rank": 1,
  "norm_gate_scale": 2.0,
  #: end
  #: if values
  # Values of the first layer (learned, fixed, gated, none), and of earlier ones by layer.
  "value_residual": "none",
  "value_gate": "relu",
  "gated_layers": 0,
  "value_sources": [[]],
  "value_share": False,
  #: end
  #: if short_swa
  # Attention over the last few tokens, before the other attention.
  "short_swa_window": 1,
  "short_swa_heads": 1,
  "short_swa_scaling": 1.0,
  "short_swa_frequencies": [[1.0]],
  #: end
  # The residual path: the sites of a layer in their order, and the options of NAME_.
  "sites": ["attention", "mlp"],
  #: options
}


class ResjaxConfig(PretrainedConfig):
  """The sizes and choices of the decoder, in Llama's spelling where Llama has them."""

  model_type = "resjax_NAME_"
  use_cache = True
  keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
  base_model_tp_plan = {  # noqa: RUF012
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
    #: if experts
    "layers.*.mlp.shared_mlp.gate_proj": "colwise",
    "layers.*.mlp.shared_mlp.up_proj": "colwise",
    "layers.*.mlp.shared_mlp.down_proj": "rowwise",
    #: end
  }

  def __init__(self, **settings):
    super().__init__(**{**DEFAULTS, **settings})
