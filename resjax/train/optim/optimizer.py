"""The optimizer: AdamW, or Muon for the matrices of the layers and AdamW for all else."""

import math
import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from resjax.base import Array, PyTree, promoting
from resjax.train.optim.config import OptimizerConfig
from resjax.train.optim.schedules import schedule
from resjax.train.optim.table import SAME_SIZE, Scaling, column

# The last two axes span a matrix; the matrices of layers are orthogonalised separately.
_STACKED = MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
_MUON_RMS = 0.2


def make_optimizer(
  config: OptimizerConfig,
  steps: int,
  decayed_combinator_paths: Collection[str] = (),
  scaling: Scaling = SAME_SIZE,
  peak: float | Array | None = None,
) -> optax.GradientTransformation:
  """Returns the optimizer: gradients are clipped by their global norm, then each parameter moves.

  θ ← θ - lr · a · (b · u + weight_decay · θ)

  The last term is there for decayed parameters only, a is 1 or, for the combinator,
  config.optim.combinator_lr_multiplier, b is 1 or as `scaling` has it, and u is

  `adam`  m̂ / (√v̂ + eps); Loshchilov & Hutter 2019, arXiv:1711.05101
  `adam_layers`  the same with the smaller eps of a `scaling`; CompleteP, arXiv:2505.01618
  `muon`  0.2 √max(d_in, d_out) · orthogonalised Nesterov momentum, of each layer's matrix alone;
          Jordan et al. 2024. The factor gives u the root mean square that Adam's has, so that both
          share learning rate and weight decay; Liu et al. 2025, arXiv:2502.16982.

  `parameter_rows` says which parameter is treated how. Adam stores two moments of a parameter, Muon
  one.

  Args:
    config: the settings of the optimizer.
    steps: the number of steps of the run.
    decayed_combinator_paths, scaling: see `parameter_rows`.
    peak: the peak of the learning rate, see `schedule`.

  Raises:
    ValueError: `schedule` raises it; and the `init` of the result raises it as `parameter_rows`.
  """
  of_table = partial(
    column,
    config=config,
    decayed_combinator_paths=tuple(decayed_combinator_paths),
    scaling=scaling,
  )
  adam = partial(optax.scale_by_adam, b1=config.b1, b2=config.b2)
  updates = {"adam": adam(eps=config.eps)}
  if config.name == "muon":
    updates["muon"] = _muon(config.muon_momentum)
  # The chain has the same parts with and without clipping: a resumed run may change that.
  clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  scaled = []
  if scaling != SAME_SIZE:
    updates["adam_layers"] = adam(eps=config.eps / (scaling.width * scaling.depth))
    scaled.append(_multiplied(partial(of_table, "update_multiplier")))
  chain = optax.chain(
    clip,
    optax.partition(updates, partial(of_table, "update")),
    *scaled,
    optax.add_decayed_weights(config.weight_decay, partial(of_table, "decayed")),
    optax.scale_by_learning_rate(schedule(config, steps, peak)),
    _multiplied(partial(of_table, "lr_multiplier")),
  )
  return chain._replace(update=promoting(chain.update))


def _muon(momentum: float) -> optax.GradientTransformation:
  """Returns the update of `optax.contrib.muon` without its Adam, which is Nesterov's."""

  def every_matrix(updates: PyTree) -> PyTree:
    return jax.tree.map(lambda _: _STACKED, updates)

  def match_rms(updates: PyTree, _: PyTree) -> PyTree:
    return jax.tree.map(lambda u: _MUON_RMS * math.sqrt(max(u.shape[-2:])) * u, updates)

  orthogonalise = scale_by_muon(beta=momentum, weight_dimension_numbers=every_matrix)

  def update(updates: PyTree, state: Any, _: PyTree = None) -> tuple[PyTree, Any]:
    updates, state = orthogonalise.update(*_experts_first(updates, state))
    return _experts_first(updates, state)

  return optax.chain(orthogonalise._replace(update=update), optax.stateless(match_rms))


def _experts_first(updates: PyTree, state: Any) -> tuple[PyTree, Any]:
  """Swaps the axes L and E of updates and momentum; without experts nothing is changed.

  Optax joins all axes but those of a matrix. Devices that hold other experts would gather all of
  them for that, unless E comes first.
  """
  swapped = partial(jax.tree.map, lambda x: x.swapaxes(0, -3))
  return swapped(updates), state._replace(mu=swapped(state.mu))


def _multiplied(factors: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
  return optax.stateless(lambda updates, _: jax.tree.map(operator.mul, factors(updates), updates))
