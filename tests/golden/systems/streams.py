"""Layers of transformers with residual streams, whose branches are x ← tanh(W x)."""

import types

import numpy as np

from tests.helpers.published import fill, float64

B, T, D, R, L = 2, 3, 8, 4, 3


def compute(layer_class, connection_class, head_class, num_returned, **settings):
  """Returns embeddings, weights, the streams after every layer, and their collapse.

  Args:
    layer_class: whose `forward` runs two sites of streams [B, T, R, D].
    connection_class: of its `attn_hc` and `ffn_hc`.
    head_class: of what makes one stream of all; None: a layer takes and gives what the next site
      reads by, and so does the end.
    num_returned: how many values the attention returns.
    **settings: of the configuration, for the connections.
  """
  import torch
  from torch import nn

  class Branch(nn.Linear):
    def __init__(self, num_returned):
      super().__init__(D, D, bias=False)
      self.num_returned = num_returned

    def forward(self, x=None, *, hidden_states=None, **_):
      y = torch.tanh(super().forward(hidden_states if x is None else x))
      return y if self.num_returned == 1 else (y, *[None] * (self.num_returned - 1))

  config = types.SimpleNamespace(hc_mult=R, hidden_size=D, rms_norm_eps=1e-5, **settings)
  rng = np.random.default_rng(0)

  def layer():
    made = layer_class.__new__(layer_class)  # its own attention and experts are not wanted
    nn.Module.__init__(made)
    made.block_type, made.engram = "full_attention", None
    made.input_layernorm, made.post_attention_layernorm = nn.Identity(), nn.Identity()
    made.self_attn, made.mlp = Branch(num_returned), Branch(1)
    made.attn_hc, made.ffn_hc = connection_class(config), connection_class(config)
    fill(made, rng, base=1.0, scale=1.0)
    return made

  with float64():
    layers = [layer() for _ in range(L)]
    head = nn.Module()
    if head_class is not None:
      head = head_class(config) if head_class.__init__ is not nn.Module.__init__ else head_class()
    fill(head, rng, hc_base=1.0, hc_scale=1.0)
    x = torch.from_numpy(rng.normal(size=(B, T, D)))
    streams = [x.unsqueeze(2).expand(-1, -1, R, -1).contiguous()]
    read = torch.eye(R)[0].expand(B, T, -1)  # the first site reads stream 0
    for made in layers:
      if head_class is None:
        out, read = made.forward(streams[-1], read, None, None, shared={})
      else:
        out = made.forward(streams[-1])
      streams.append(out[0] if isinstance(out, tuple) else out)
    y = layer_class.hc_collapse(streams[-1], read) if head_class is None else head(streams[-1])

  def stacked(attention, mlp, name):
    pairs = [(getattr(made, attention), getattr(made, mlp)) for made in layers]
    return np.array([[getattr(m, name).detach().numpy() for m in pair] for pair in pairs])

  arrays = {name: stacked("attn_hc", "ffn_hc", name) for name in ("fn", "base", "scale")}
  arrays |= {name: p.detach().numpy() for name, p in head.named_parameters()}
  arrays["branch"] = stacked("self_attn", "mlp", "weight")
  arrays["streams"] = torch.stack(streams[1:]).numpy()
  return arrays | {"x": x.numpy(), "y": y.numpy()}
