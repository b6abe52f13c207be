"""The tokens that begin and end the texts of a model, by the files of its folder."""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Annotated

import msgspec

GENERATION = "generation_config.json"

Given = int | list[int] | None  # a token, several of them, or none
_Some = int | Annotated[list[int], msgspec.Meta(min_length=1)] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndIds:
  """The tokens that end texts.

  Attributes:
    eos_token_id: ends texts; each of several does.
  """

  eos_token_id: _Some = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelIds(EndIds):
  """The special tokens of a model.

  Attributes:
    bos_token_id: begins texts.
    pad_token_id: fills rows.
  """

  bos_token_id: _Some = None
  pad_token_id: int | None = None

  def as_dict(self) -> dict[str, Given]:
    """Returns them by name; the one that fills rows only where there is one."""
    found = {"bos_token_id": self.bos_token_id, "eos_token_id": self.eos_token_id}
    return found | ({} if self.pad_token_id is None else {"pad_token_id": self.pad_token_id})

  def with_ends(self, *others: Given) -> "ModelIds":
    """Returns the same with further tokens that end texts."""
    ends = unique(self.eos_token_id, *others)
    return dataclasses.replace(self, eos_token_id=ends[0] if len(ends) == 1 else list(ends) or None)


def unique(*given: Given) -> tuple[int, ...]:
  """Returns all tokens, each once, in their order."""
  several: Iterable[list[int]] = (
    one if isinstance(one, list) else [] if one is None else [one] for one in given
  )
  return tuple(dict.fromkeys(itertools.chain.from_iterable(several)))
