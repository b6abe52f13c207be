"""What a step waits for: its data, the host that starts it, or the device."""

from resjax.records.time_ledger import Ledger

_PARTS = ("input", "dispatch", "device")


class StepTime:
  """Mean seconds of a step since the last reading, from the ledger's phases of these names.

  `input`     getting a batch and starting its way to the devices.
  `dispatch`  the call of the step; the device works on after it.
  `device`    waiting for the metrics of the step before: nearly all of a step where the device is
              the bottleneck, nearly nothing where the data are.

  Compilation, evaluations and saving are phases of their own and stay out.

  Args:
    ledger: of the run.
  """

  def __init__(self, ledger: Ledger):
    self._ledger = ledger
    self._steps = 0
    self._before = ledger.phases()

  def add(self) -> None:
    """Counts a step."""
    self._steps += 1

  def read(self) -> dict[str, float]:
    """Returns time/input, time/dispatch, time/device, and time/input_share of their sum."""
    now, steps = self._ledger.phases(), max(self._steps, 1)
    seconds = {part: (now[part] - self._before[part]) / steps for part in _PARTS}
    self._steps, self._before = 0, now
    total = sum(seconds.values())
    share = seconds["input"] / total if total > 0 else 0.0
    return {f"time/{part}": seconds[part] for part in _PARTS} | {"time/input_share": share}
