"""Who a run is: the random name that it gets at its first start, and its parent."""

import contextlib
import dataclasses
import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from resjax.base import Damaged, Location
from resjax.train.checkpoint import identity, reader
from resjax.train.checkpoint.identity import Identity
from resjax.train.runs import workdir
from resjax.train.runs.config import Run
from resjax.train.runs.parents import Parent


def find(folder: Location, run: Run, origin: Parent | None) -> dict[str, Any]:
  """Returns the identity of a run but for a step, as JSON: that of its record, or a new one.

  Args:
    folder: the folder of the run.
    run: the run.
    origin: the model that the run is about to start from; None: it has none, or goes on.

  Raises:
    ValueError: the record of the run is damaged, or is missing beside checkpoints of a known run.
  """
  begun = workdir.begun(folder)
  old = begun.lineage if begun else None
  if begun is None:
    _check_none_is_lost(folder)
  name = old.run if old else secrets.token_hex(8)
  parent = origin.facts() if origin else old.parent if old else None
  config = hashlib.sha256(json.dumps(run.resolved, sort_keys=True).encode()).hexdigest()
  return dataclasses.asdict(Identity(run=name, config=config, parent=parent))


def _check_none_is_lost(folder: Location) -> None:
  """Raises ValueError if a folder without a record has checkpoints that name their run.

  A new record would claim them for another run, and no setting would be compared.
  """
  for step in reversed(reader.saved_steps(folder / "checkpoints")):
    checkpoint = folder / "checkpoints" / str(step)
    with contextlib.suppress(Damaged):
      if (found := identity.of(checkpoint)).known:
        raise ValueError(
          f"{folder / workdir.RECORD} is missing, and {checkpoint} is {found}; bring back the "
          f"{workdir.RECORD} of that run, or set config.train.init_from={checkpoint} in another "
          "config.workdir to start from its parameters"
        )


def record(found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the part of the result of `find` that the record of a run stores."""
  return {key: found[key] for key in ("run", "parent")}
