"""Parametrisations over the registry: what takes long runs for some, and is `slow` for the rest."""

import functools

import pytest

from resjax import combinators
from resjax.testing import toy
from resjax.testing.subject import Subject
from tests.helpers.systems import CASES

_ALL = combinators.names()


def cases(selected=CASES):
  """Every case."""
  return pytest.mark.parametrize("case", selected, ids=str)


def first_cases(selected=CASES, *, quick=_ALL, also=()):
  """The first case of every name, or of these names, and of the options `also`; others are slow."""
  first = [case for case in _first(selected) if case.name in quick]
  marked = [_param(case, str(case), case in first or case.options in also) for case in selected]
  return pytest.mark.parametrize("case", marked)


def other_forms(selected=CASES):
  """Of the cases that are not the first of their name those that show another form of a system.

  A form is an option's word or flag, or whether its number is zero, that no case before has.
  """
  first, chosen = _first(selected), []
  seen = {form for case in first for form in _forms(case)}
  for case in selected:
    if case not in first and not _forms(case) <= seen:
      chosen.append(case)
      seen |= _forms(case)
  return pytest.mark.parametrize("case", chosen, ids=str)


def one_case_each(selected=CASES, *, all_of=(), quick=_ALL):
  """The first case of every name, for what options hardly change; all of some names, as slow.

  The first cases of names that are not among `quick` are slow, too.
  """
  first = _first(selected)
  chosen = [case for case in selected if case in first or case.name in all_of]
  marked = [_param(c, str(c), c in first and c.name in quick) for c in chosen]
  return pytest.mark.parametrize("case", marked)


def is_first(case):
  return case in _first(CASES)


@functools.cache
def subject(case, num_layers=None):
  """What the checks of resjax.testing check; one for all tests, which share what it expects."""
  return Subject(
    functools.partial(combinators.build, case.name, scaled_init=True, **case.options),
    num_layers or (3 if is_first(case) else 5),
    case.dead,
    value_and_gradients(case),
  )


def num_layers(case):
  """Layers of a case: 3, a first, a middle and a last one, for the first case of a name.

  Options of other cases may be about more layers; they have 5.
  """
  return subject(case).num_layers


def value_and_gradients(case):
  """The way to compute a loop by hand that compiles least.

  The first case of a name is one program. Other cases run operation by operation: they share the
  programs of most, where one of 5 layers, or of twenty Sinkhorn iterations, takes long to compile.
  """
  return toy.jitted if is_first(case) else toy.value_and_gradients


def names(*quick, among=_ALL):
  """Every registered name, or some of them; those that are not named here are slow."""
  assert set(quick) <= set(among)
  marked = [_param(name, name, name in quick) for name in among]
  return pytest.mark.parametrize("name", marked)


def _first(selected):
  return list({case.name: case for case in reversed(selected)}.values())


def _forms(case):
  return {
    (case.name, key, value if isinstance(value, str) else bool(value))
    for key, value in case.options.items()
  }


def _param(value, name, is_quick):
  return pytest.param(value, id=name, marks=() if is_quick else pytest.mark.slow)
