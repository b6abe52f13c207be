"""Compiles a run with the changes that are suggested to it, until it fits."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from resjax.aot.compile_step import Report
from resjax.aot.memory import DoesNotFitError

_FLAG = re.compile(r"--config\.([\w.]+)=(\S+?):?(?= |$)")


class Verified(NamedTuple):
  """What compiling with changes has shown.

  Attributes:
    flags: the changes together, as flags of `resjax train`.
    outcome: the compiled step, or why it still does not fit.
  """

  flags: str
  outcome: Report | DoesNotFitError

  @property
  def fits(self) -> bool:
    """Whether the step fits with all these changes."""
    return isinstance(self.outcome, Report)


def verify(
  changes: Sequence[str], attempt: Callable[[dict[str, int | str]], Report]
) -> Verified | None:
  """Returns the first of the changes, added up one after the other, with which a run fits.

  If it fits with none, it is what compiling with all of them said; None if no change has flags.

  Args:
    changes: what `suggest_settings.suggestions` returns.
    attempt: a function of settings by name that compiles the run with them. It raises
      DoesNotFitError, or ValueError where the settings do not go together: the last change is left
      out then.
  """
  settings: dict[str, int | str] = {}
  last: Verified | None = None
  for change in changes:
    found = dict(_FLAG.findall(change.partition(": ")[0] + " "))
    if not found:
      continue
    tried = settings | {key: int(v) if v.isdigit() else v for key, v in found.items()}
    flags = " ".join(f"--config.{key}={value}" for key, value in tried.items())
    try:
      return Verified(flags, attempt(tried))
    except DoesNotFitError as error:
      last, settings = Verified(flags, error), tried
    except ValueError:
      continue
  return last
