"""Layers of Gemma 3n with LAuReL, see tests/helpers/published.py.

A layer is transformers' own, with two changes: attention and MLP are x ← tanh(W x), and AltUp,
which is no part of LAuReL, has a single stream and zero coefficients: it passes the layer's output
on.
"""

import numpy as np

from tests.helpers import published

B, T, D, RANK, L = 2, 3, 8, 3, 3
NORMS = (
  "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
  "post_feedforward_layernorm",
)  # fmt: skip


def compute():
  import torch
  from torch import nn
  from transformers import Gemma3nTextConfig
  from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextDecoderLayer

  class Branch(nn.Linear):
    def forward(self, x=None, *, hidden_states=None, **_):
      y = torch.tanh(super().forward(hidden_states if x is None else x))
      return (y, None) if x is None else y

  config = Gemma3nTextConfig(
    hidden_size=D, num_hidden_layers=L, intermediate_size=D, num_attention_heads=2,
    num_key_value_heads=1, head_dim=4, laurel_rank=RANK, rms_norm_eps=1e-4, altup_num_inputs=1,
    altup_active_idx=0, altup_correct_scale=False, hidden_size_per_layer_input=4,
    activation_sparsity_pattern=[0.0] * L, num_kv_shared_layers=0,
  )  # fmt: skip
  rng = np.random.default_rng(0)
  with published.float64():
    layers = [Gemma3nTextDecoderLayer(config, index) for index in range(L)]
    x = torch.from_numpy(rng.normal(size=(B, T, D)))
    streams = [x]
    for layer in layers:
      layer.self_attn, layer.mlp = (Branch(D, D, bias=False) for _ in range(2))
      published.fill(layer, rng)
      layer.altup.prediction_coefs.weight.zero_()
      layer.altup.correction_coefs.weight.zero_()
      streams.append(layer.forward(streams[-1][None], per_layer_input=torch.zeros(B, T, 4))[0])

  def stacked(*names):
    return np.array([[m.get_parameter(f"{n}.weight").numpy() for n in names] for m in layers])

  with torch.no_grad():
    return {
      "x": x.numpy(),
      "streams": torch.stack(streams[1:]).numpy(),
      "branch": stacked("self_attn", "mlp"),
      "norms": stacked(*NORMS),
      "left": stacked("laurel.linear_left")[:, 0],
      "right": stacked("laurel.linear_right")[:, 0],
      "scale": stacked("laurel.post_laurel_norm")[:, 0],
    }


if __name__ == "__main__":
  published.write("gemma3n", compute())
