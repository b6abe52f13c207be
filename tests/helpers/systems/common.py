"""What the families of residual systems share: their cases, and the branch in float64 numpy."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

from tests.helpers.reference import rms

EPS = 1e-6  # of the branches' norms
D = Polynomial([0, 1])  # the width, in costs counted by hand


class Costs(NamedTuple):
  """What a combinator of 2 layers with two sites costs, counted by hand.

  Attributes:
    parameters: their number, a polynomial in D.
    state: values of the last depth state per token, a polynomial in D.
    flops: the terms in D and D² of the FLOPs per token. What is done to a few numbers per token,
      whatever D is, may come on top.
    coefficients: float32 numbers of the last depth state per token, which any dtype of the
      activations leaves as they are.
  """

  parameters: Polynomial | int
  state: Polynomial
  flops: Polynomial
  coefficients: int = 0


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity
class Case:
  """One combinator with options, and what is known about it.

  Attributes:
    name: of the registry.
    options: without sizes.
    dead: parameter -> index prefixes where the gradient is exactly zero, whatever the values are;
      everywhere else no element is zero.
    standard_at_init: whether a fresh one with these options computes what `standard` computes.
    learns_at_init: parameters that have a gradient at init everywhere but where they are dead.
    loop_only: whether it refuses a traced layer, so that no scan can run it.
  """

  name: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  dead: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
  standard_at_init: bool = False
  learns_at_init: tuple[str, ...] = ()
  loop_only: bool = False

  def __str__(self):
    return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


def run_branch(weights, site, views, pre_norm=True):
  """Normalised views and output of a branch of resjax/testing/toy.py.

  Views: x [B, T, D], or x, q, k and v by name.
  """
  views = views if isinstance(views, dict) else {"x": views}
  normed = {name: rms(x, EPS) if pre_norm else x for name, x in views.items()}
  x = normed["x"]
  if set(normed) > {"x"}:
    x = sum(c * normed.get(name, x) for name, c in zip("qkv", (0.5, 0.3, 0.2), strict=True))
  hidden = np.tanh((x * weights["gain"]) @ weights["up"])
  if site == "attention":
    hidden = np.stack([hidden[:, : t + 1].mean(axis=1) for t in range(x.shape[1])], axis=1)
  return normed, hidden @ weights["down"]


def num_layers(weights, sites):
  return len(weights[sites[0]]["gain"])


def sublayers(weights, sites, pre_norm=True):
  """(layer, index of the site, run) of every sublayer in order; run(views) -> (normed, out)."""
  for layer in range(num_layers(weights, sites)):
    for index, site in enumerate(sites):
      row = {name: array[layer] for name, array in weights[site].items()}
      yield layer, index, lambda views, w=row, s=site: run_branch(w, s, views, pre_norm)


def sigmoid(z):
  return 1.0 / (1.0 + np.exp(-z))
