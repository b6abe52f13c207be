"""Measures the loss of a trained model when its residual path is attenuated, without training."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.data import MeasuredText
from resjax.models import Decoder, loss_sums
from resjax.study.analysis import first_order
from resjax.study.analysis.alignment import Alignment
from resjax.study.analysis.measurement import Meter
from resjax.study.analysis.path_intervention import attenuate, check_supported, cut_factors
from resjax.study.analysis.sensitivity import Sensitivity
from resjax.study.analysis.totals import RowSums

_LOSS_CHUNK = 1024  # Tokens per data shard whose logits exist at a time.

Progress = Callable[[int, int], None]
"""A function that is called as progress(done, total) after every cut."""


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
  """Returns the loss and the alignment of a decoder for cuts at each layer with each alpha.

  One reverse pass gives the slopes of the loss at all sites, too. They are limits for α → 1: in
  pretrained models the terms of second order outweigh them at α = 0.9.

  A cut is x ← α x + f(x) at the chosen sites of one layer, so a layer with two sites multiplies its
  input by α². All cuts share one compiled program for the loss and one for the alignment. A cut
  with α = 1 is the model as it is.

  Args:
    decoder: a decoder with a combinator of `resjax.study.analysis.path_intervention.SUPPORTED`.
    text: the text to evaluate on.
    model: the name of the decoder, for titles.
    alphas: the factors of the stream, at least 0.
    layers: the layers to cut, 0..L-1, or negative from the end; empty chooses all.
    sites: the sites of a layer to cut together; empty chooses all.
    alignment: whether to measure the alignment, by the closed reading after every layer. It costs
      as many output heads per cut as there are layers.
    progress: is called after every cut.

  Raises:
    ValueError: The residual path is not a single stream, or a layer, site or alpha is out of range.
  """
  check_supported(decoder)
  layers, sites, alphas = _chosen(decoder, layers, sites, alphas)
  evaluate = _evaluation(decoder, text)
  align = _aligning(decoder, text, model) if alignment else None
  (whole, tokens), uncut = evaluate(None), align(1.0, 0, sites) if align else None
  baseline, total = math.fsum(whole) / text.num_tokens, len(layers) * len(alphas)
  loss, errors = np.full((len(layers), len(alphas)), baseline), np.zeros((len(layers), len(alphas)))
  slopes, slope_errors = first_order.slopes(decoder, text)
  chosen = np.ix_(layers, [decoder.combinator.sites.index(site) for site in sites])
  rows: list[list[Alignment]] = []
  for place, layer in enumerate(layers):
    rows.append([])
    for index, alpha in enumerate(alphas):
      if alpha != 1:
        cut, _ = evaluate(cut_factors(decoder, layer, sites, alpha))
        loss[place, index] = math.fsum(cut) / text.num_tokens
        errors[place, index] = RowSums.of((cut - whole)[None], tokens[None]).standard_error()[0]
      if align:
        rows[-1].append(uncut if uncut and alpha == 1 else align(alpha, layer, sites))
      progress(place * len(alphas) + index + 1, total)
  return Sensitivity(
    model=model,
    corpus=text.name,
    num_tokens=text.num_tokens,
    num_rows=int(np.sum(tokens > 0)),
    residual=decoder.config.residual.name,
    layers=layers,
    sites=sites,
    alphas=alphas,
    baseline_loss=baseline,
    loss=loss,
    errors=errors,
    slopes=slopes[chosen],
    slope_errors=slope_errors[chosen],
    baseline_alignment=uncut,
    alignments=tuple(map(tuple, rows)) if align else (),
    prefix=text.prefix,
  )


def _chosen(
  decoder: Decoder, layers: Sequence[int], sites: Sequence[str], alphas: Sequence[float]
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...]]:
  """Checks what to cut, and returns it in order: layers and sites by depth, alphas ascending."""
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


def _evaluation(decoder: Decoder, text: MeasuredText) -> Callable[[np.ndarray | None], np.ndarray]:
  """Returns a function from factors [L, sites] to the nats and tokens of each row [2, rows].

  For None it evaluates the unchanged decoder, in a program of its own: compilers round bfloat16 at
  other places where a program has factors.
  """
  layout = decoder.layout
  graphdef, state = nnx.split(decoder)
  batches = [layout.split(batch) for batch in text.batches]

  @functools.partial(jax.jit, out_shardings=layout.everywhere)
  def nats(state: PyTree, batch: Mapping[str, Array], factors: Array | None) -> Array:
    model = nnx.merge(graphdef, state)
    model = model if factors is None else attenuate(model, factors)
    hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
    sums = loss_sums(model, hidden, batch, _LOSS_CHUNK, by_row=True)
    return jnp.stack([sums.nats, sums.tokens])

  def evaluate(factors: np.ndarray | None) -> np.ndarray:
    placed = None if factors is None else layout.copy(factors)
    sums = [nats(state, batch, placed) for batch in batches]
    return np.concatenate(jax.device_get(sums), axis=1, dtype=np.float64)

  return evaluate


def _aligning(decoder: Decoder, text: MeasuredText, model: str) -> Callable[..., Alignment]:
  """Returns a function from alpha, layer and sites of a cut to the alignment, of all tokens."""
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
