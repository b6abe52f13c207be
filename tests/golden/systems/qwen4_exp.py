"""Layers of Qwen3.8-Flash-Next with branches x ← tanh(W x), see tests/helpers/published.py."""

import types

import numpy as np

from tests.helpers import published

B, T, D, R, L, RANK = 2, 3, 8, 4, 3, 3


def compute():
  import torch
  from torch import nn
  from transformers.models.qwen4_exp import modeling_qwen4_exp as source

  class Branch(nn.Linear):
    """The MLP returns its output, the attention `hidden_states` and no weights."""

    def forward(self, x):
      return torch.tanh(super().forward(x))

  class Attention(Branch):
    def forward(self, x, *_, **__):
      return super().forward(x), None

  config = types.SimpleNamespace(hc_count=R, hidden_size=D, hc_lowrank=RANK, rms_norm_eps=1e-3)
  site, rng = source.Qwen4ExpTextGatedResidual, np.random.default_rng(0)

  def layer():
    made = source.Qwen4ExpTextDecoderLayer.__new__(source.Qwen4ExpTextDecoderLayer)
    nn.Module.__init__(made)  # its own attention and experts are not wanted
    made.layer_type, made.ple = "indexed_attention", None
    made.self_attn, made.mlp = Attention(D, D, bias=False), Branch(D, D, bias=False)
    made.attn_hyper_connection, made.mlp_hyper_connection = site(config), site(config)
    published.fill(made, rng, input_mix_weight_down=1.0)
    return made

  with published.float64():
    layers, mixer = [layer() for _ in range(L)], site(config, use_combine=False)
    published.fill(mixer, rng)
    x = torch.from_numpy(rng.normal(size=(B, T, D)))
    streams = [x.repeat(1, 1, R)]
    for made in layers:
      streams.append(made.forward(streams[-1], position_embeddings=None))
    y = mixer(streams[-1])
  arrays = {"x": x, "y": y, "streams": torch.stack(streams[1:])}
  for index, made in enumerate((*layers, mixer)):
    arrays |= {f"{index}.{path}": p.detach() for path, p in made.named_parameters()}
  return {name: array.numpy() for name, array in arrays.items()}


if __name__ == "__main__":
  published.write("qwen4_exp", compute())
