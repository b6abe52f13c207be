"""What a trained model loses where its residual path is attenuated, without training."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from flax import nnx

from resjax.analysis.alignment import Alignment
from resjax.analysis.measurement import Meter
from resjax.analysis.path_intervention import attenuate, check_supported, cut_factors
from resjax.analysis.sensitivity import Sensitivity
from resjax.data.eval_text import MeasuredText
from resjax.models.decoder import Decoder
from resjax.models.loss import loss_sums
from resjax.typing import Array

_LOSS_CHUNK = 1024  # tokens per data shard whose logits exist at one time

Progress = Callable[[int, int], None]
"""Called as progress(done, total) after every cut."""


def sensitivity(
  decoder: Decoder,
  text: MeasuredText,
  *,
  model: str,
  alphas: Sequence[float],
  layers: Sequence[int] = (),
  sites: Sequence[str] = (),
  alignment: bool = True,
  progress: Progress = lambda done, total: None,
) -> Sensitivity:
  """Returns loss and alignment of a decoder, its residual path cut at each layer by each alpha.

  A cut is x ← α x + f(x) at the chosen sites of one layer, so with two sites that layer multiplies
  its input by α² in all. All cuts share one compiled program for the loss and one for the
  alignment; α = 1 is the model as it is.

  Args:
    decoder: any of `resjax.analysis.path_intervention.SUPPORTED`, pretrained ones included.
    text: to evaluate on.
    model: name of the decoder, for titles.
    alphas: factors of the stream, at least 0.
    layers: to cut, 0..L-1, negative ones from the end; empty: each.
    sites: of those layers that cut together; empty: all.
    alignment: whether to measure it, after every layer, of states that are closed there. It costs
      as many output heads per cut as there are layers.
    progress: told of every cut.

  Raises:
    ValueError: the residual path is no single stream; a layer, site or alpha that does not exist.
  """
  check_supported(decoder)
  layers, sites, alphas = _chosen(decoder, layers, sites, alphas)
  evaluate = _evaluation(decoder, text)
  align = _aligning(decoder, text, model) if alignment else None
  baseline, as_it_is = evaluate(None), align(1.0, 0, sites) if align else None
  loss, rows, total = np.full((len(layers), len(alphas)), baseline), [], len(layers) * len(alphas)
  for place, layer in enumerate(layers):
    rows.append([])
    for index, alpha in enumerate(alphas):
      if alpha != 1:
        loss[place, index] = evaluate(cut_factors(decoder, layer, sites, alpha))
      if align:
        rows[-1].append(as_it_is if alpha == 1 else align(alpha, layer, sites))
      progress(place * len(alphas) + index + 1, total)
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
    baseline_alignment=as_it_is,
    alignments=tuple(map(tuple, rows)) if align else (),
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

  @functools.partial(jax.jit, out_shardings=layout.everywhere)
  def nats(state, batch, factors: Array | None) -> Array:
    model = nnx.merge(graphdef, state)
    model = model if factors is None else attenuate(model, factors)
    return loss_sums(model, batch, None, _LOSS_CHUNK).nats

  def evaluate(factors: np.ndarray | None) -> float:
    placed = None if factors is None else layout.copy(factors)
    sums = [nats(state, batch, placed) for batch in batches]
    return math.fsum(map(float, jax.device_get(sums))) / text.num_tokens

  return evaluate


def _aligning(decoder: Decoder, text: MeasuredText, model: str) -> Callable[..., Alignment]:
  """Returns the alignment of a text, all tokens in one group, as a function of a cut."""
  layout, batch_size = decoder.layout, len(text.batches[0]["inputs"])
  rows = layout.rows(batch_size)
  batches = [{name: array[rows] for name, array in batch.items()} for batch in text.batches]
  ones = np.ones((decoder.combinator.num_layers, len(decoder.combinator.sites)), np.float32)
  meter = Meter(attenuate(decoder, ones), batches, batch_size=batch_size, corpus=text.name)

  def align(alpha: float, layer: int, sites: tuple[str, ...]) -> Alignment:
    factors = cut_factors(decoder, layer, sites, alpha)
    cut = attenuate(decoder, layout.copy(factors))
    found = meter.measure(
      nnx.state(cut), f"{model}, alpha {alpha:g} at layer {layer}" if alpha != 1 else model
    )
    readings = {name: {"all": groups["all"]} for name, groups in found.readings.items()}
    return dataclasses.replace(found, readings=readings)

  return align
