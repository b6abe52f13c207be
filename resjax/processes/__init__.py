"""Several processes as one run: how they meet, agree, stop and end, and a watchdog for each."""

from resjax.processes.agreement import (
  active,
  end,
  explain,
  first,
  gather,
  listen_for_preemption,
  reached_sync_point,
  shutdown,
)
from resjax.processes.bring_up import initialize, refuse_several

__all__ = [
  "active",
  "end",
  "explain",
  "first",
  "gather",
  "initialize",
  "listen_for_preemption",
  "reached_sync_point",
  "refuse_several",
  "shutdown",
]
