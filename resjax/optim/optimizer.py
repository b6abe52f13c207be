"""The optimizer: AdamW, or Muon for the matrices of the layers and AdamW for all else."""

import math
from collections.abc import Collection
from functools import partial

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from resjax.optim.config import OptimizerConfig
from resjax.optim.schedules import schedule
from resjax.optim.table import column
from resjax.typing import PyTree

# The last two axes are those of the matrix; the matrices of the layers are orthogonalised apart.
_STACKED = MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
_MUON_RMS = 0.2


def make_optimizer(
  config: OptimizerConfig, steps: int, decayed_combinator_paths: Collection[str] = ()
) -> optax.GradientTransformation:
  """Returns the optimizer: gradients are clipped by their global norm, then each parameter moves.

  θ ← θ - lr · m · (u + weight_decay · θ)

  The last term is there for decayed parameters only, m is 1 or, for the combinator,
  config.optim.combinator_lr_multiplier, and u is

  `adam`  m̂ / (√v̂ + eps); Loshchilov & Hutter 2019, arXiv:1711.05101
  `muon`  0.2 √max(d_in, d_out) · orthogonalised Nesterov momentum, of each layer's matrix alone;
          Jordan et al. 2024. The factor gives u the root mean square that Adam's has, so that both
          share learning rate and weight decay; Liu et al. 2025, arXiv:2502.16982.

  `parameter_rows` says which parameter is treated how. Adam stores two moments of a parameter, Muon
  one.

  Args:
    config: the settings of the optimizer.
    steps: the number of steps of the run.
    decayed_combinator_paths: see `parameter_rows`.

  Raises:
    ValueError: `schedule` raises it; and the `init` of the result raises it as `parameter_rows`.
  """
  of_table = partial(
    column, config=config, decayed_combinator_paths=tuple(decayed_combinator_paths)
  )
  updates = {"adam": optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)}
  if config.name == "muon":
    updates["muon"] = _muon(config.muon_momentum)
  # The chain has the same parts with and without clipping: a resumed run may change that.
  clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  return optax.chain(
    clip,
    optax.partition(updates, partial(of_table, "update")),
    optax.add_decayed_weights(config.weight_decay, partial(of_table, "decayed")),
    optax.scale_by_learning_rate(schedule(config, steps)),
    optax.stateless(lambda updates, _: _multiply(of_table("lr_multiplier", updates), updates)),
  )


def _muon(momentum: float) -> optax.GradientTransformation:
  """Returns the update of `optax.contrib.muon` without its Adam, which is Nesterov's."""

  def every_matrix(updates: PyTree) -> PyTree:
    return jax.tree.map(lambda _: _STACKED, updates)

  def match_rms(updates: PyTree, _: PyTree) -> PyTree:
    return jax.tree.map(lambda u: _MUON_RMS * math.sqrt(max(u.shape[-2:])) * u, updates)

  orthogonalise = scale_by_muon(beta=momentum, weight_dimension_numbers=every_matrix)
  return optax.chain(orthogonalise, optax.stateless(match_rms))


def _multiply(factors: PyTree, updates: PyTree) -> PyTree:
  return jax.tree.map(lambda factor, update: factor * update, factors, updates)
