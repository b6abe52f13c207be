"""Goals for a GPU, compared with the records of a day."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.bench.arms import OK
from launch.bench.kernels.suites import COPY
from launch.bench.supervisor import NO_TIME, RUNNING, STOPPED, Record

# What the goals are about: the arms are named after it.
MODEL, READ, STREAMS = "gpt2_124m", "8192x2048x8", "8192x2048x4"
FLA = ("fla_checkpoint_0", "fla_checkpoint_1")
RIGHT = "right "

Records = Mapping[str, Record]


def kernel_name(suite: str, shape: str, form: str) -> str:
  """Returns the name of the arm of one form of a suite."""
  return f"{suite} {shape} {form}"


def step_name(model: str, residuals: Sequence[str], remat: str = "") -> str:
  """Returns the name of the arm of the steps of several systems."""
  return f"step {model} {','.join(residuals)}" + (f" remat={remat}" if remat else "")


@dataclasses.dataclass(frozen=True)
class Goal:
  """A goal for a GPU.

  Attributes:
    what: the name of the measured quantity.
    wanted: its least value, or the most.
    least: whether `wanted` is the least.
    reached: returns the measured value, from the records by name.
  """

  what: str
  wanted: float
  least: bool
  reached: Callable[[Records], float | None]

  def line(self, found: Records) -> str:
    """Returns a line with goal and measured value; the value is left out if records are missing."""
    start = f"{self.what:52}{'>=' if self.least else '<='} {self.wanted:<7.4g}"
    value = self.reached(found)
    if value is None:
      return f"{start}not measured"
    fine = value >= self.wanted if self.least else value <= self.wanted
    return f"{start}{value:.4g}{'' if fine else '  MISSED'}"


def _rows(found: Records, shape: str, form: str) -> dict[str, Record]:
  """Returns the records of a form of a read, by direction."""
  records = found.get(kernel_name("read", shape, form), {}).get("records", [])
  return {row["direction"]: row for row in records if row["arm"] != COPY and "median_ms" in row}


def _share(direction: str) -> Callable[[Records], float | None]:
  return lambda found: _rows(found, READ, "direct").get(direction, {}).get("share_of_copy")


def _over_fla(found: Records) -> float | None:
  """Returns how much longer the faster form of fla-core takes for a read, forth and back.

  Times count that one timer has measured.
  """
  measured = [list(_rows(found, READ, form).values()) for form in ("direct", *FLA)]
  times = [sum(row["median_ms"] for row in rows) for rows in measured if len(rows) == 2]
  timers = {row["timer"] for rows in measured for row in rows}
  comparable = len(measured[0]) == 2 and len(times) > 1 and len(timers) == 1
  return min(times[1:]) / times[0] if comparable else None


def _ratio(residual: str) -> Callable[[Records], float | None]:
  name = step_name(MODEL, ("standard", residual))
  return lambda found: found.get(name, {}).get(f"{residual} over standard")


def _mfu(found: Records) -> float | None:
  """Returns the larger one of those with the recipe's recomputation and without any."""
  names = [step_name(MODEL, ["standard"], remat) for remat in ("", "none")]
  cases = [found[name].get("cases", {}) for name in names if name in found]
  return max((case["standard"]["mfu"] for case in cases if case), default=None)


def _share_right(found: Records) -> float | None:
  """Returns the share of right ones of the kernels that were compared."""
  status = [record["status"] for name, record in found.items() if name.startswith(RIGHT)]
  compared = [one for one in status if one not in (RUNNING, STOPPED, NO_TIME)]
  return compared.count(OK) / len(compared) if compared else None


GOALS = (
  Goal("kernels that are right, of those compared", 1.0, True, _share_right),
  Goal("124M step, standard: MFU", 0.40, True, _mfu),
  Goal("124M step, block_attn_res over standard", 1.04, False, _ratio("block_attn_res")),
  Goal("124M step, mhc with 4 streams over standard", 1.07, False, _ratio("mhc")),
  Goal("direct read, share of a copy", 0.90, True, _share("forward")),
  Goal("its reverse pass, share of a copy", 0.85, True, _share("backward")),
  Goal("read and reverse pass, fla-core's time over ours", 1.6, True, _over_fla),
)


def table(content: dict[str, Any]) -> str:
  """Returns a line for each goal, and a line for each arm that failed."""
  found = content["arms"]
  on_gpu = found if content["about"].get("platform") == "gpu" else {}
  bad = {name: record for name, record in found.items() if record["status"] != OK}
  where = ", ".join(content["about"].values())
  head = f"{len(found)} arms on {where or 'nothing yet'}; {len(bad)} not ok"
  return "\n".join(
    [
      head,
      *(f"  {name}: {record['status']}".splitlines()[0][:160] for name, record in bad.items()),
      *(goal.line(on_gpu) for goal in GOALS),
    ]
  )
