"""Who a run is: the random name that it gets at its first start, and what it began with."""

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from resjax.checkpoint.identity import Identity
from resjax.locations import Location
from resjax.runs import workdir
from resjax.runs.config import Run
from resjax.runs.parents import Parent


def find(folder: Location, run: Run, origin: Parent | None) -> dict[str, Any]:
  """Returns the identity of a run but for a step, as JSON: that of its record, or a new one.

  Args:
    folder: the folder of the run.
    run: the run.
    origin: the model that the run is about to start from; None: it has none, or goes on.

  Raises:
    ValueError: the record of the run is damaged.
  """
  old = workdir.read(folder).lineage if (folder / workdir.RECORD).exists() else None
  name = old.run if old else secrets.token_hex(8)
  parent = origin.facts() if origin else old.parent if old else None
  config = hashlib.sha256(json.dumps(run.resolved, sort_keys=True).encode()).hexdigest()
  return dataclasses.asdict(Identity(run=name, config=config, parent=parent))


def record(found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what the record of a run keeps of what `find` found."""
  return {key: found[key] for key in ("run", "parent")}
