"""Parametrisations over the registry: what takes long runs for some, and is `slow` for the rest."""

import pytest

from resjax import combinators
from tests.helpers.systems import CASES

_ALL = combinators.names()


def cases(selected=CASES):
  """Every case."""
  return pytest.mark.parametrize("case", selected, ids=str)


def first_cases(selected=CASES):
  """The first case of every name; the others are slow."""
  first = _first(selected)
  marked = [_param(case, str(case), case in first) for case in selected]
  return pytest.mark.parametrize("case", marked)


def one_case_each(selected=CASES, *, all_of=()):
  """The first case of every name, for what options hardly change; all of some names, as slow."""
  first = _first(selected)
  chosen = [case for case in selected if case in first or case.name in all_of]
  return pytest.mark.parametrize("case", [_param(c, str(c), c in first) for c in chosen])


def names(*quick, among=_ALL):
  """Every registered name, or some of them; those that are not named here are slow."""
  assert set(quick) <= set(among)
  marked = [_param(name, name, name in quick) for name in among]
  return pytest.mark.parametrize("name", marked)


def _first(selected):
  return list({case.name: case for case in reversed(selected)}.values())


def _param(value, name, is_quick):
  return pytest.param(value, id=name, marks=() if is_quick else pytest.mark.slow)
