"""AdamW, or Muon for the matrices of the layers, by the table of parameters."""

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

# The last two axes are the matrix; the layers before them are orthogonalised one by one.
_STACKED = MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
_MUON_RMS = 0.2


def make_optimizer(
  config: OptimizerConfig, steps: int, decayed_combinator_paths: Collection[str] = ()
) -> optax.GradientTransformation:
  """Clipping by global norm, then AdamW or Muon, as `parameter_rows` says for each parameter.

  θ ← θ - lr · m · (u + weight_decay · θ), the last term for decayed parameters only; m is 1, or
  config.optim.combinator_lr_multiplier for the combinator.

  `adam`  u = m̂ / (√v̂ + eps); Loshchilov & Hutter 2019, arXiv:1711.05101
  `muon`  u = 0.2 √max(d_in, d_out) · orthogonalised Nesterov momentum, of each layer's matrix
          alone; Jordan et al. 2024. The factor gives u the root mean square that Adam's has, so
          that both share learning rate and weight decay; Liu et al. 2025, arXiv:2502.16982.

  Stores two moments per parameter (adam) or one (muon).

  Raises:
    ValueError: as `schedule`; and, from the transformation's `init`, as `parameter_rows`.
  """
  of_table = partial(
    column, config=config, decayed_combinator_paths=tuple(decayed_combinator_paths)
  )
  updates = {"adam": optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)}
  if config.name == "muon":
    updates["muon"] = _muon(config.muon_momentum)
  # Always the same parts: a run that resumes may turn clipping on or off.
  clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  return optax.chain(
    clip,
    optax.partition(updates, partial(of_table, "update")),
    optax.add_decayed_weights(config.weight_decay, partial(of_table, "decayed")),
    optax.scale_by_learning_rate(schedule(config, steps)),
    optax.stateless(lambda updates, _: _multiply(of_table("lr_multiplier", updates), updates)),
  )


def _muon(momentum: float) -> optax.GradientTransformation:
  """The update of `optax.contrib.muon`, without its Adam for the others (which is Nesterov's)."""

  def every_matrix(updates):
    return jax.tree.map(lambda _: _STACKED, updates)

  def match_rms(updates, _):
    return jax.tree.map(lambda u: _MUON_RMS * math.sqrt(max(u.shape[-2:])) * u, updates)

  orthogonalise = scale_by_muon(beta=momentum, weight_dimension_numbers=every_matrix)
  return optax.chain(orthogonalise, optax.stateless(match_rms))


def _multiply(factors: PyTree, updates: PyTree) -> PyTree:
  return jax.tree.map(lambda factor, update: factor * update, factors, updates)
