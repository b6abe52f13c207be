"""The time of a step, split by cause: waiting for data, for the host, or for the device."""

from resjax.base.records.time_ledger import Ledger

_PARTS = ("input", "dispatch", "device")


class StepTime:
  """Gives the mean seconds of a step since the last reading, from three phases of the ledger.

  `input`     The loop gets a batch and sends it to the devices.
  `dispatch`  The loop calls the step, which the device carries out later.
  `device`    The loop waits for the metrics of the step before: nearly the whole time where the
              device is the bottleneck, and nearly no time where the data are.

  Compilation, evaluations and saving are phases of their own and do not count.

  Args:
    ledger: the ledger of the run.
  """

  def __init__(self, ledger: Ledger):
    self._ledger = ledger
    self._steps = 0
    self._before = ledger.phases()

  def add(self) -> None:
    """Counts a step."""
    self._steps += 1

  def read(self) -> dict[str, float]:
    """Returns time/input, time/dispatch, time/device, and time/input_share: the first's share."""
    now, steps = self._ledger.phases(), max(self._steps, 1)
    seconds = {part: (now[part] - self._before[part]) / steps for part in _PARTS}
    self._steps, self._before = 0, now
    total = sum(seconds.values())
    share = seconds["input"] / total if total > 0 else 0.0
    return {f"time/{part}": seconds[part] for part in _PARTS} | {"time/input_share": share}
