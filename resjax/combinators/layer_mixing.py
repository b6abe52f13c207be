"""The base class of combinators that mix the outputs of whole layers at the start of a layer."""

import abc
from typing import Any, NamedTuple

import jax.numpy as jnp

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, TokenContext, Views
from resjax.combinators.source import DepthState, SourceMixer
from resjax.kernels.depth_attention import Sources


class LayerStream(NamedTuple):
  """The state within a layer, from one site to the next.

  Attributes:
    stream: the input of the next site [B, T, D].
    output: the sum of the layer's branch outputs [B, T, D]; None if the stream is the output.
  """

  stream: Array
  output: Array | None = None


class LayerMixer(SourceMixer):
  """The first site of a layer reads mixes of the embedding and the outputs of earlier layers.

  The other sites read a stream that starts at the mix and to which every site adds. After the
  last site the layer's output becomes a source. `final` mixes what follows the last layer.

  Attributes:
    stream_has_mix: whether the stream starts at the mix, not at the first branch's output.
    output_has_mix: whether a layer's output is its stream; else it is the sum of its branch
      outputs.
  """

  family = "dense mixes"
  stream_has_mix: bool = True
  output_has_mix: bool = True

  @abc.abstractmethod
  def _mix(self, state: DepthState, layer: Layer) -> Views:
    """Returns the views of the first site of a layer."""

  def _output(self, running: LayerStream) -> Array:
    """Returns the output of a layer, after its last site."""
    return running.stream if running.output is None else running.output

  def _append(self, sources: Sources, layer: Layer, output: Array) -> Sources:
    return sources.append(output)

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(Sources(recent=(x,)), self._first_running(x))

  def _first_running(self, x: Array) -> LayerStream:
    return LayerStream(x, jnp.zeros_like(x) if self._splits else None)

  @property
  def _splits(self) -> bool:
    return self.stream_has_mix and not self.output_has_mix

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape is the stream that `write` adds to, or None at its start."""
    if site != self.sites[0]:
      return {"x": state.running.stream}, state.running.stream
    views = self._mix(state, layer)
    return views, views["x"] if self.stream_has_mix else None

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    """See `SourceMixer._after`. The last site of a layer appends its output to the sources."""
    output = None
    if self._splits:
      output = out if site == self.sites[0] else state.running.output + out
    running = LayerStream(out if tape is None else tape + out, output)
    if site != self.sites[-1]:
      return DepthState(state.sources, running)
    return DepthState(self._append(state.sources, layer, self._output(running)), running)

  def source_names(self) -> tuple[str, ...]:
    """See `Combinator.source_names`. They are the embedding and the outputs of the layers."""
    return ("embedding", *(f"layer {layer}" for layer in range(self.num_layers)))

  def _ended(self, state: DepthState, layer: Layer, site: str) -> Sources:
    """Returns the sources after a site, if its layer ended there."""
    if site == self.sites[-1]:
      return state.sources
    return self._append(state.sources, layer, self._output(state.running))
