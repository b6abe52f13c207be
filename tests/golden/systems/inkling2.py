"""The text model of Inkling 2 with other branches, see tests/helpers/published.py.

Model, layers and reads are transformers' own. Attention and MLP are x ← tanh(W x), summed over
queries, keys and values in layers with full attention; the convolutions pass x on; and norms with a
gain are torch's, since those of the model cast to float32.
"""

from unittest import mock

import numpy as np

from tests.helpers import published

B, T, D, L, PER_BLOCK = 2, 3, 8, 5, 2
FULL = (1, 4)  # layers whose queries, keys and values are read apart


def compute():
  import torch
  from torch import nn
  from transformers.models.inkling2 import modeling_inkling2 as source
  from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig

  outputs = []

  class Branch(nn.Module):
    def __init__(self, num_inputs):
      super().__init__()
      self.weight = nn.Parameter(torch.zeros(num_inputs, D, D))

    def forward(self, hidden_states, **others):
      names = "key_hidden_states", "value_hidden_states"
      inputs = [hidden_states, *(others[name] for name in names if name in others)]
      outputs.append(torch.tanh(sum(x @ w for x, w in zip(inputs, self.weight, strict=True))))
      return outputs[-1]

  class Attention(Branch):
    def forward(self, **inputs):
      return super().forward(**inputs), None

  class Same(nn.Module):
    def forward(self, x, **_):
      return x

  config = Inkling2TextConfig(
    vocab_size=7, hidden_size=D, num_hidden_layers=L, num_attention_heads=2, num_key_value_heads=1,
    head_dim=4, intermediate_size=8, moe_intermediate_size=8, n_routed_experts=2,
    n_layers_per_attn_res_block=PER_BLOCK, rms_norm_eps=1e-4,
    layer_types=["hybrid" if i in FULL else "hybrid_sliding" for i in range(L)],
  )  # fmt: skip
  rng = np.random.default_rng(0)

  def norm(width, eps):
    return nn.RMSNorm(width, eps)

  with published.float64(), mock.patch.object(source, "Inkling2RMSNorm", norm):
    model = source.Inkling2TextModel(config)
    for index, layer in enumerate(model.layers):
      layer.self_attn, layer.mlp = Attention(3 if index in FULL else 1), Branch(1)
      layer.post_attention_convolution, layer.post_mlp_convolution = Same(), Same()
    published.fill(model, rng, query=2.0)
    x = torch.from_numpy(rng.normal(size=(B, T, D)))
    final = model(inputs_embeds=x, use_cache=False).last_hidden_state
  found = {"x": x, "outputs": torch.stack(outputs), "final": final}
  found |= dict(model.named_parameters())
  return {name: value.detach().numpy() for name, value in found.items()}


if __name__ == "__main__":
  published.write("inkling2", compute())
