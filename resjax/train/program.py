"""The programs of a run, for the devices that are here or for ones that are not."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jax.stages import Wrapped

from resjax.base.sharding import Layout
from resjax.models import ModelDef
from resjax.study.analysis import PROBED, ProbeConfig, make_probe_step
from resjax.train import optim
from resjax.train.runs.config import Run
from resjax.train.state import TrainState, abstract_state
from resjax.train.step import make_eval_step, make_train_step

BATCH = ("inputs", "targets", "segment_ids", "positions")
# The alignment of a run in progress: the state after each layer, all tokens together.
ALIGNMENT_PROBES = ProbeConfig(every="layer", readings=("closed",), deciles=False)


@dataclasses.dataclass(frozen=True)
class Program:
  """The functions that a run executes on its devices, and their abstract arguments.

  Attributes:
    model: the model without its parameters.
    optimizer: the optax transformation.
    train_step: what `make_train_step` returns.
    eval_step: what `make_eval_step` returns.
    alignment_step: what `make_probe_step` returns for `ALIGNMENT_PROBES`; it takes the parameters.
    state: the train state.
    batch: the arrays of a training batch, [B, T] int32 each and `bytes` [B], B over all devices.
    eval_batch: the arrays of an evaluation batch, which has as many rows as a microbatch.
    alignment_batch: the arrays of a batch whose alignment is measured, of at most as many rows.
    compiler_options: the options that all steps are compiled with, by name; the text of a lowered
      step does not show them.
  """

  model: ModelDef
  optimizer: optax.GradientTransformation
  train_step: Wrapped
  eval_step: Wrapped
  alignment_step: Wrapped
  state: TrainState
  batch: Mapping[str, jax.ShapeDtypeStruct]
  eval_batch: Mapping[str, jax.ShapeDtypeStruct]
  alignment_batch: Mapping[str, jax.ShapeDtypeStruct]
  compiler_options: Mapping[str, str]

  def lower_train_step(self) -> jax.stages.Lowered:
    """Returns the training step in the form that the compiler takes."""
    return self.train_step.lower(self.state, self.batch)

  def lower_eval_step(self) -> jax.stages.Lowered:
    """Returns the evaluation step in the form that the compiler takes."""
    return self.eval_step.lower(self.state.params, self.eval_batch)

  def lower_alignment_step(self) -> jax.stages.Lowered:
    """Returns the step that measures the alignment in the form that the compiler takes."""
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=self.model.layout.sharding())
    counts = _int32((self.model.config.vocab_size,), self.model.layout, None)
    return self.alignment_step.lower(self.state.params, self.alignment_batch, counts, None, number)


def build(run: Run) -> Program:
  """Returns the programs of a run; nothing is compiled, and no array is made.

  Args:
    run: what is trained, with the vocabulary of its data; the devices of its layout may be
      descriptions of absent ones.
  """
  layout, options = run.layout, run.compiler_options
  model = ModelDef(run.decoder, layout)
  optimizer = optim.make_optimizer(
    run.optim, run.train.steps, model.decayed_combinator_paths, run.scaling
  )
  learning_rate = optim.schedule(run.optim, run.train.steps)
  batch_size, length = run.train.batch_size, run.data.seq_len
  eval_size = batch_size // run.train.microbatches
  shards = layout.num_shards("batch")
  few = min(eval_size, -(-run.train.alignment_rows // shards) * shards)
  alignment_rows = _int32((few, length), layout, "batch", "tokens")
  return Program(
    model=model,
    optimizer=optimizer,
    train_step=make_train_step(
      model, optimizer, learning_rate, run.train, run.health, compiler_options=options
    ),
    eval_step=make_eval_step(model, run.train, compiler_options=options),
    alignment_step=make_probe_step(model.bind, layout, ALIGNMENT_PROBES, compiler_options=options),
    state=abstract_state(model, optimizer),
    batch=_batch(batch_size, length, layout),
    eval_batch=_batch(eval_size, length, layout),
    alignment_batch=dict.fromkeys(PROBED, alignment_rows),
    compiler_options=options,
  )


def _batch(size: int, length: int, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
  rows = dict.fromkeys(BATCH, _int32((size, length), layout, "batch", "tokens"))
  return rows | {"bytes": _int32((size,), layout, "batch")}


def _int32(shape: tuple[int, ...], layout: Layout, *axes: str | None) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=layout.sharding(*axes))
