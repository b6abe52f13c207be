"""All checks of a combinator in one call."""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from resjax import combinators
from resjax.combinators import Combinator
from resjax.testing.checks import CHECKS, Check
from resjax.testing.subject import Subject

_MOST = 400  # characters of a failure: JAX would fill pages


def check_combinator(
  factory: type[Combinator] | Callable[..., Combinator] | str,
  *,
  dead: Mapping[str, tuple] | None = None,
  num_layers: int = 3,
  without: Collection[str] = (),
  **options: Any,
) -> None:
  """Checks that a combinator keeps the protocol: one line in a test of its author.

    def test_my_gate():
      check_combinator(MyGate, rate=0.5)

  It runs a small model in a Python loop, in a scan, and with recomputation, and compares values and
  gradients in float64; in bfloat16; token by token; on two devices where there are; and looks at
  gradients, causality, costs and what is claimed of a fresh one. `resjax.testing.CHECKS` has the
  checks by name. It needs no pytest, takes seconds, and changes no settings of JAX.

  Args:
    factory: the class, or a function with its keywords that returns a combinator, or a name of
      `resjax.combinators`.
    dead: by name of a parameter, index prefixes where its gradient is zero whatever the values are,
      such as {"gain": ((0, 0),)} for a gain that layer 0 does not use at its first site.
    num_layers: L, 3 by default; more for what takes place in deeper models alone.
    without: names of checks that are left out.
    **options: the combinator's own options.

  Raises:
    AssertionError: a check fails; every one that does has a line with its name.
    ValueError: `without` names no check.
  """
  for name in without:
    if name not in CHECKS:
      raise ValueError(f"without={name!r} is no check; allowed: {', '.join(CHECKS)}")
  make = (
    functools.partial(combinators.build, factory, scaled_init=True)
    if isinstance(factory, str)
    else factory
  )
  subject = Subject(functools.partial(make, **options), num_layers, dict(dead or {}))
  failures = []
  for name, check in CHECKS.items():
    if name not in without and (failure := _failure(check, subject)):
      failures.append(f"{name} ({_first_line(check)}) {failure}")
  if failures:
    title = getattr(factory, "__name__", str(factory))
    count = f"{len(failures)} of {len(CHECKS) - len(set(without))} checks fail"
    raise AssertionError("\n".join([f"{title}: {count}", *failures]))


def _failure(check: Check, subject: Subject) -> str:
  """Returns why a check fails in one line, or nothing."""
  try:
    check(subject)
  except AssertionError as error:
    return f"fails: {_one_line(error)}"
  except Exception as error:  # whatever the code of the author raises
    return f"raises {type(error).__name__}: {_one_line(error)}"
  return ""


def _one_line(error: Exception) -> str:
  text = " ".join(str(error).split())
  return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _first_line(check: Check) -> str:
  return (check.__doc__ or "").partition("\n")[0].rstrip(".")
