"""Parametrisations over the registry.

`make test` runs what takes long for some names. The first case of every other name is `slow`, and
further options of a name are for `release`.
"""

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
  """Every case; `quick` are the first ones of these names, and those of the options `also`."""
  first = _first(selected)
  return _marked(selected, first, [case for case in first if case.name in quick], also)


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


def one_case_each(selected=CASES, *, all_of=(), quick=_ALL, slow=_ALL):
  """The first case of every name, for what options hardly change, and every case of some.

  Names that are neither in `quick` nor in `slow` wait for `release`.
  """
  first = _first(selected)
  chosen = [case for case in selected if case in first or case.name in all_of]
  fast = [case for case in first if case.name in quick]
  return _marked(chosen, [case for case in first if case.name in slow], fast)


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


def names(*quick, slow=(), among=_ALL, others=pytest.mark.release):
  """Every registered name, or those `among`; what is neither quick nor slow has the other mark."""
  assert {*quick, *slow} <= set(among)

  def marks(name):
    if name in quick:
      return ()
    return pytest.mark.slow if name in slow else others

  marked = [pytest.param(name, id=name, marks=marks(name)) for name in among]
  return pytest.mark.parametrize("name", marked)


def words(listed, *, quick, slow):
  """Tuples of words: one for `make test`, one that is slow; the others wait for `release`."""
  marks = {quick: (), slow: pytest.mark.slow}
  return [
    pytest.param(*one, marks=marks.get(one, pytest.mark.release), id="-".join(one))
    for one in listed
  ]


def _first(selected):
  return list({case.name: case for case in reversed(selected)}.values())


def _forms(case):
  return {
    (case.name, key, value if isinstance(value, str) else bool(value))
    for key, value in case.options.items()
  }


def _marked(chosen, slow, quick, also=()):
  def marks(case):
    if case in quick or case.options in also:
      return ()
    return pytest.mark.slow if case in slow else pytest.mark.release

  params = [pytest.param(case, id=str(case), marks=marks(case)) for case in chosen]
  return pytest.mark.parametrize("case", params)
