from torch import nn

from ..configuration import DEFAULTS, ResjaxConfig


class ResidualBase(nn.Module):
  """Holds the sizes and options of a residual path."""

  def __init__(self, config: ResjaxConfig):
    super().__init__()
    self.num_layers, self.num_sites = config.num_hidden_layers, len(config.sites)
    self.width = config.hidden_size
    for name in DEFAULTS:
      if name.startswith("residual_"):
        setattr(self, name.removeprefix("residual_"), getattr(config, name))
