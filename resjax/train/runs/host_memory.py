"""Refuses runs on CPUs that no machine here could hold, where Linux would kill them later."""

import os

import jax

from resjax.train.runs.config import Run

_GIB = 1 << 30
_BYTES_PER_PARAMETER = 12  # itself, and two moments in float32


def check(run: Run) -> None:
  """Raises ValueError if a run on CPUs needs more memory than all its processes could have.

  The need is a lower bound: the matrices of MLPs and the embedding with their moments, and the
  stream of one microbatch. Accelerators refuse by themselves what does not fit.
  """
  if run.layout.platform != "cpu":
    return
  there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * jax.process_count()
  model, train = run.decoder, run.train
  units = len(model.dense_layers) * model.mlp_dim
  units += len(model.routed_layers) * model.moe.num_experts * model.expert_dim
  weights = model.d_model * (2 * units + model.vocab_size)
  tokens = run.data.seq_len * train.batch_size // train.microbatches
  parameters, stream = _BYTES_PER_PARAMETER * weights, 4 * tokens * model.d_model
  if parameters + stream > there:
    raise ValueError(
      f"the run needs more than {parameters / _GIB:,.0f} GiB for parameters and moments and "
      f"{stream / _GIB:,.0f} GiB for the stream of a microbatch, and there are {there / _GIB:,.0f} "
      "GiB; make config.model.num_layers, d_model, mlp_dim or moe.num_experts, or "
      "config.train.batch_size or config.data.seq_len smaller, or config.train.microbatches larger"
    )
