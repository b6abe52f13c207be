# options: layers alpha cut_sites scope
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.attenuated import AttenuatedStream


class Residual(AttenuatedStream):
  """x ← α x + f(x), where α is residual_alpha at the sites that cut, and 1 elsewhere.

  The sites that cut are residual_cut_sites, or all if it is empty, in the layers residual_layers,
  where negative numbers count from the end.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    layers = [self.layers] if isinstance(self.layers, int) else self.layers
    sites = [config.sites.index(name) for name in self.cut_sites or config.sites]
    self.cuts = {(layer % self.num_layers, site) for layer in layers for site in sites}

  def stream_factor(self, layer: int, site: int, normed: dict[str, Tensor]) -> float:
    """Returns α."""
    return self.alpha if (layer, site) in self.cuts else 1.0
