"""Suggests what to change in a run that does not fit, and searches for settings that do."""

import dataclasses
from collections.abc import Callable, Iterator

from resjax.aot.compile_step import Report
from resjax.aot.memory import GIB, DoesNotFitError
from resjax.models import REMAT
from resjax.train.runs import Run


@dataclasses.dataclass(frozen=True)
class Try:
  """One compilation of a search.

  Attributes:
    run: the run with the settings that were tried.
    remat: how much a layer recomputes in the reverse pass.
    rows: the rows of a microbatch on each device.
    microbatches: how many microbatches make up the batch.
    outcome: the compiled step, or why it does not fit.
  """

  run: Run
  remat: str
  rows: int
  microbatches: int
  outcome: Report | DoesNotFitError

  @property
  def fits(self) -> bool:
    """Whether the run fits with these settings."""
    return isinstance(self.outcome, Report)

  @property
  def flags(self) -> str:
    """The settings as flags of resjax train."""
    return f"--config.model.remat={self.remat} --config.train.microbatches={self.microbatches}"


def search(run: Run, attempt: Callable[[Run], Report]) -> Iterator[Try]:
  """Bisects for the cheapest recomputation and the most rows that fit, and yields every try.

  The batch stays as it is. The search takes the first of `depth.REMAT`, the one that recomputes
  least, with which one row per device fits, and with it the largest number of rows that divides the
  rows of a device. `best(tries)` is the best of the tries that fit.

  Args:
    run: what would be trained.
    attempt: a function that compiles a run, or raises DoesNotFitError.
  """
  rows_per_device = run.train.batch_size // run.layout.num_shards("batch")
  choices = [rows for rows in range(1, rows_per_device + 1) if rows_per_device % rows == 0]
  for remat in REMAT:
    fits, too_many = -1, len(choices)
    while too_many - fits > 1:
      middle = (fits + too_many) // 2
      one = _try(run, remat, choices[middle], rows_per_device // choices[middle], attempt)
      yield one
      fits, too_many = (middle, too_many) if one.fits else (fits, middle)
    if fits >= 0:
      return


def best(tries: list[Try]) -> Try | None:
  """Returns, of the tries that fit, the one with the most rows; None if none fits."""
  return max((one for one in tries if one.fits), key=lambda one: one.rows, default=None)


def _try(
  run: Run, remat: str, rows: int, microbatches: int, attempt: Callable[[Run], Report]
) -> Try:
  changed = dataclasses.replace(
    run,
    decoder=dataclasses.replace(run.decoder, remat=remat),
    train=dataclasses.replace(run.train, microbatches=microbatches),
  )
  try:
    return Try(changed, remat, rows, microbatches, attempt(changed))
  except DoesNotFitError as error:
    return Try(changed, remat, rows, microbatches, error)


def suggestions(run: Run, error: DoesNotFitError, num_slices: int = 1) -> list[str]:
  """Returns what to change so that a run fits; what helps most comes first.

  Args:
    run: the run that does not fit.
    error: the compiler's refusal.
    num_slices: how many slices the mesh spans; its axis `data` joins them.
  """
  fsdp, parts = _more_fsdp(run, error, num_slices), []
  if error.arguments.total >= error.available:  # no other change of the layout can help
    parts = [fsdp]
  else:
    parts = [_more_microbatches(run, error), _more_remat(run), _smaller_chunks(run)]
    parts += [fsdp, _tensor(run)]
  parts.append("chips with more HBM, or more of them with config.mesh.fsdp raised in proportion")
  return [part for part in parts if part is not None]


def _more_microbatches(run: Run, error: DoesNotFitError) -> str | None:
  now = run.train.microbatches
  per_device = run.train.batch_size // run.layout.num_shards("batch")
  larger = [m for m in range(now + 1, per_device + 1) if per_device % m == 0]
  if not larger:
    return None
  temporaries = error.required - error.arguments.total
  room = error.available - error.arguments.total
  enough = [m for m in larger if temporaries * now / m <= room]
  chosen = (enough or larger[-1:])[0]
  return (
    f"--config.train.microbatches={chosen}: {per_device // chosen} rows per device at a time "
    f"instead of {per_device // now}; temporaries {temporaries / GIB:.1f} -> about "
    f"{temporaries * now / chosen / GIB:.1f} GiB"
  )


def _more_remat(run: Run) -> str | None:
  if run.decoder.remat == "full":
    return None
  return "--config.model.remat=full: a layer keeps its input alone, a third more computing"


def _smaller_chunks(run: Run) -> str | None:
  """Each shard of the tokens has float32 logits [loss_chunk, V] and their cotangent."""
  rows = run.train.batch_size // run.layout.num_shards("batch") // run.train.microbatches
  shards = run.layout.num_shards("vocab")
  chunk = min(run.train.loss_chunk, rows * run.data.seq_len)
  now = 2 * 4 * chunk * run.decoder.vocab_size // shards
  smaller = max(rows, chunk // 4)
  if now < GIB / 4 or smaller == chunk:
    return None
  return (
    f"--config.train.loss_chunk={smaller}: logits of {now / GIB:.1f} -> "
    f"{now * smaller / chunk / GIB:.1f} GiB"
  )


def _more_fsdp(run: Run, error: DoesNotFitError, num_slices: int) -> str | None:
  shape = run.layout.mesh.shape
  factor = shape["data"] // num_slices
  held = error.arguments.parameters + error.arguments.optimizer
  if factor < 2 or held < error.shortfall / 100:
    return None
  return (
    f"--config.mesh.data={num_slices} --config.mesh.fsdp={shape['fsdp'] * factor}: parameters and "
    f"moments {held / GIB:.1f} -> {held / factor / GIB:.1f} GiB, and gradients with them"
  )


def _tensor(run: Run) -> str | None:
  """Suggests to split each row over two devices, where a device has no more than one row."""
  decoder, shape = run.decoder, run.layout.mesh.shape
  rows = run.train.batch_size // run.layout.num_shards("batch") // run.train.microbatches
  widths = decoder.mlp_dim, decoder.expert_dim
  sizes = decoder.num_heads, decoder.num_kv_heads, *widths, decoder.vocab_size
  tensor = 2 * shape["tensor"]
  if rows > 1 or shape["fsdp"] % 2 or any(size % tensor for size in sizes):
    return None
  return (
    f"--config.mesh.tensor={tensor} --config.mesh.fsdp={shape['fsdp'] // 2} "
    f"--config.train.microbatches={2 * run.train.microbatches}: heads, MLP and vocabulary of a row "
    f"on {tensor} devices"
  )
