"""Echo keeps the protocol of combinators."""

from resjax_echo import Echo

from resjax.testing import check_combinator


def test_echo():
  """One line checks all that a combinator owes; the first site has no echo, and no gradient."""
  check_combinator(Echo, decay=0.75, dead={"gain": ((0, 0),)})
