"""What a trained model loses where its residual path is attenuated, without training."""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from flax import nnx

from resjax.analysis.attenuated import attenuate, check_supported, cut_factors
from resjax.analysis.sensitivity import Sensitivity
from resjax.data.measured_text import MeasuredText
from resjax.models.decoder import Decoder
from resjax.models.loss import loss_sums
from resjax.typing import Array

_LOSS_CHUNK = 1024  # tokens per data shard whose logits exist at one time

Progress = Callable[[int, int], None]
"""Called as progress(done, total) after every evaluation of the text."""


def sensitivity(
  decoder: Decoder,
  text: MeasuredText,
  *,
  model: str,
  alphas: Sequence[float],
  layers: Sequence[int] = (),
  sites: Sequence[str] = (),
  progress: Progress = lambda done, total: None,
) -> Sensitivity:
  """Returns the loss of a decoder with its residual path cut at each layer by each alpha.

  A cut is x ← α x + f(x) at the chosen sites of one layer, so with two sites that layer multiplies
  its input by α² in all. One compiled program serves all cuts; α = 1 is the model as it is, of
  which there is another.

  Args:
    decoder: any of `resjax.analysis.attenuated.SUPPORTED`, pretrained ones included.
    text: to evaluate on.
    model: name of the decoder, for titles.
    alphas: factors of the stream, at least 0; 1 is the decoder as it is.
    layers: to cut, 0..L-1, negative ones from the end; empty: each.
    sites: of those layers that cut together; empty: all.
    progress: told of every evaluation.

  Raises:
    ValueError: the residual path is no single stream; a layer, site or alpha that does not exist.
  """
  check_supported(decoder)
  layers, sites, alphas = _chosen(decoder, layers, sites, alphas)
  evaluate = _evaluation(decoder, text)
  baseline = evaluate(None)
  loss = np.full((len(layers), len(alphas)), baseline)
  cuts = [cut for cut in np.ndindex(loss.shape) if alphas[cut[1]] != 1]
  progress(1, 1 + len(cuts))
  for done, (layer, alpha) in enumerate(cuts, 2):
    loss[layer, alpha] = evaluate(cut_factors(decoder, layers[layer], sites, alphas[alpha]))
    progress(done, 1 + len(cuts))
  return Sensitivity(
    model=model,
    corpus=text.name,
    num_tokens=text.num_tokens,
    residual=decoder.config.residual.name,
    layers=layers,
    sites=sites,
    alphas=alphas,
    baseline_loss=baseline,
    loss=loss,
  )


def _chosen(
  decoder: Decoder, layers: Sequence[int], sites: Sequence[str], alphas: Sequence[float]
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...]]:
  """Returns what is cut, checked: layers in order of depth, sites in order, alphas ascending."""
  depth, known = decoder.combinator.num_layers, decoder.combinator.sites
  for layer in layers:
    if not -depth <= layer < depth:
      raise ValueError(
        f"--layers={layer} is out of range; the model has {depth} layers: -{depth}..{depth - 1}"
      )
  for site in sites:
    if site not in known:
      raise ValueError(f"--sites={site} is no site of the model; it has {', '.join(known)}")
  if not alphas:
    raise ValueError("--alphas is empty; give factors of the stream, such as 0,0.25,0.5")
  for alpha in alphas:
    if not (alpha >= 0 and math.isfinite(alpha)):
      raise ValueError(f"--alphas={alpha} is out of range; factors of the stream are 0 or more")
  return (
    tuple(sorted({layer % depth for layer in layers} or range(depth))),
    tuple(site for site in known if site in sites or not sites),
    tuple(sorted({float(alpha) for alpha in alphas})),
  )


def _evaluation(decoder: Decoder, text: MeasuredText) -> Callable[[np.ndarray | None], float]:
  """Returns the loss of a text, nats per token, as a function of the factors [L, sites].

  None is the decoder as it is, a program of its own: where compilers see factors, they round
  bfloat16 in other places.
  """
  layout = decoder.layout
  graphdef, state = nnx.split(decoder)
  batches = [layout.split(batch) for batch in text.batches]
  everywhere = None if layout.mesh is None else layout.sharding()  # so that each process can read

  @functools.partial(jax.jit, out_shardings=everywhere)
  def nats(state, batch, factors: Array | None) -> Array:
    model = nnx.merge(graphdef, state)
    model = model if factors is None else attenuate(model, factors)
    return loss_sums(model, batch, None, _LOSS_CHUNK).nats

  def evaluate(factors: np.ndarray | None) -> float:
    if factors is not None and layout.mesh is not None:
      factors = layout.copy(factors)
    sums = [nats(state, batch, factors) for batch in batches]
    return math.fsum(map(float, jax.device_get(sums))) / text.num_tokens

  return evaluate
