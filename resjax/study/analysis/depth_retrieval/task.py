"""The question, the systems that are asked, and the ceiling of the plain stream."""

import ast
import dataclasses
import re
from fractions import Fraction
from math import factorial
from typing import Any

from flax import nnx

from resjax import combinators

SITE = "write"
MARKED = "marked"
_READ = "/read"


@dataclasses.dataclass(frozen=True)
class Setup:
  """The sizes of the task and of its training.

  Attributes:
    num_symbols: V; a guess is right in 1 of V cases.
    d_model: D.
    tag_scale: the standard deviation of what tells the sources apart.
    steps: of training.
    batch_size: the number of examples per step.
    evaluation_batches: how many such batches the accuracy is measured on.
    learning_rate: of Adam at the first step, from which it falls to 0 as a cosine.
    clip_norm: the largest norm of a gradient.
  """

  num_symbols: int = 32
  d_model: int = 48
  tag_scale: float = 0.5
  steps: int = 500
  batch_size: int = 256
  evaluation_batches: int = 100
  learning_rate: float = 1e-2
  clip_norm: float = 1.0


@dataclasses.dataclass(frozen=True)
class Task:
  """Which of the sources 0..L is asked for: always the same one, or one that bears a mark.

  Attributes:
    source: the number of the source; None: any one, which bears the mark.
  """

  source: int | None

  @classmethod
  def parse(cls, text: str) -> "Task":
    """Returns the task of a text such as fixed:3 or marked.

    Raises:
      ValueError: it is another text.
    """
    if text == MARKED:
      return cls(None)
    if found := re.fullmatch(r"fixed:(\d{1,4})", text):
      return cls(int(found[1]))
    raise ValueError(
      f"--task={text} is no task; allowed: {MARKED}, and fixed:J for source J of 0..L"
    )

  def __str__(self) -> str:
    """Returns the text that `parse` reads."""
    return MARKED if self.source is None else f"fixed:{self.source}"


@dataclasses.dataclass(frozen=True)
class System:
  """A combinator with options, and where its output is taken.

  Attributes:
    name: the name of the combinator.
    options: pairs of option and value, which differ from the defaults.
    next_read: whether the output is what one more site would read, in place of `final`.
  """

  name: str
  options: tuple[tuple[str, Any], ...] = ()
  next_read: bool = False

  @classmethod
  def parse(cls, text: str) -> "System":
    """Returns the system of NAME[:OPTION=VALUE...][/read], such as gate:granularity=token.

    Raises:
      ValueError: the text is none, or there is no such combinator.
    """
    name, *pairs = text.removesuffix(_READ).split(":")
    options = []
    for pair in pairs:
      option, equals, value = pair.partition("=")
      if not equals:
        raise ValueError(f"--systems={text}: {pair!r} is no option; they look like {name}:eps=1e-5")
      options.append((option, _value(value)))
    combinators.get(name)
    return cls(name, tuple(options), text.endswith(_READ))

  def __str__(self) -> str:
    """Returns the text that `parse` reads."""
    options = "".join(f":{option}={value}" for option, value in self.options)
    return self.name + options + _READ * self.next_read

  def build(self, num_layers: int, d_model: int, rngs: nnx.Rngs) -> combinators.Combinator:
    """Returns the combinator with one site per layer, and one layer more for the next read.

    Raises:
      ValueError: an option is unknown or out of range.
    """
    layers = num_layers + self.next_read
    options = dict(self.options)
    try:
      return combinators.build(
        self.name,
        num_layers=layers,
        d_model=d_model,
        sites=(SITE,),
        rngs=rngs,
        scaled_init=True,
        **options,
      )
    except ValueError as error:
      raise ValueError(f"--systems={self} with {num_layers} layers: {error}") from None


def _value(text: str) -> Any:
  """Returns the Python literal of a text, or the text where it is none."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def every_system() -> tuple[System, ...]:
  """Returns all combinators with their defaults, and variants that answer otherwise.

  The output of Delta Attention Residuals and ELC is a stream that no read of depth enters. What the
  next site would read of it is listed beside it.
  """
  variants = (
    "gate:granularity=depth_mixture",
    "gate:granularity=channel",
    "gate:granularity=token",
    "block_attn_res:layers_per_block=1",
    "delta_attn_res/read",
    "delta_block_attn_res:layers_per_block=1/read",
    "deep_delta:value_width=1:compressor=none:embedding_expansion=False",
    "elc/read",
  )
  return tuple(map(System.parse, (*combinators.names(), *variants)))


def ceiling(num_symbols: int, num_sources: int) -> float:
  """Returns the best accuracy of whoever sees only the sum of all sources, E[M] / n.

  M is the largest of the counts of V equally likely symbols among n independent sources:

    P(M ≤ k) = n! / Vⁿ · [xⁿ] (Σ_{i ≤ k} xⁱ / i!)^V,   E[M] = Σ_{k < n} (1 − P(M ≤ k)).

  The sum tells the counts at most. Given these every source is equally likely to hold each of the
  n written symbols, so that symbol v is right with probability count(v) / n. This is so for a fixed
  source and for a marked one. docs/findings/depth_retrieval.md has the proof.

  Args:
    num_symbols: V.
    num_sources: n.
  """
  total = Fraction(num_symbols) ** num_sources
  expected = Fraction(0)
  for most in range(num_sources):
    one = [Fraction(1, factorial(i)) for i in range(most + 1)]
    ways = _power(one, num_symbols, num_sources)[num_sources] * factorial(num_sources)
    expected += 1 - ways / total
  return float(expected / num_sources)


def _power(series: list[Fraction], exponent: int, degree: int) -> list[Fraction]:
  """Returns the coefficients 0..degree of a polynomial with constant term 1 to a power.

  Its logarithmic derivative, f · (fᵉ)′ = e · f′ · fᵉ, gives one coefficient after the other.
  """
  result = [Fraction(1)]
  for n in range(1, degree + 1):
    terms = (
      ((exponent + 1) * i - n) * series[i] * result[n - i]
      for i in range(1, min(n, len(series) - 1) + 1)
    )
    result.append(sum(terms, Fraction(0)) / n)
  return result
