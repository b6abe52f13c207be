"""Twice the layers take at most twice the memory of a training step, for every combinator."""

from tests.helpers import decoders, walks


@walks.names("deep_cross_attention")
def test_twice_the_layers_take_at_most_twice_the_memory(name):
  bytes_24, bytes_48 = (decoders.training_bytes(name, "full", n) for n in (24, 48))
  assert bytes_48 <= 2.2 * bytes_24
