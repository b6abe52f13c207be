"""A trained model with its tokenizer: what is evaluated, analyzed, sampled, and left by a run.

model = TrainedModel("mine", decoder, tokenizer, seq_len=1024)
perplexity([model], corpora.parse(["wikitext=data/wikitext-2-raw-v1"]))
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Collection

import numpy as np
from flax import nnx

from resjax.base import checksums
from resjax.data import Around, Tokenizer, prefix
from resjax.models import Decoder


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
  """A decoder with its parameters, and the tokenizer that it was trained with.

  Attributes:
    name: the name of the model, for titles and results.
    decoder: the decoder with its parameters, sharded or not.
    tokenizer: its tokenizer; the embedding may have more rows than this has tokens.
    seq_len: T, the most inputs of a row that it is measured on, such as the length of its training
      rows.
    bos: whether something stands in front of texts, one of `resjax.data.prefix.RULES`.
    pretrained: whether each text stands between the tokens that the rules of its tokenizer put
      around it; otherwise texts are packed as in training, with the `documents` of the tokenizer
      around each. Some pretrained models (Gemma) give poor predictions without such tokens.

  Raises:
    ValueError: the tokenizer has more tokens than the embedding has rows, or `bos` is unknown.
  """

  name: str
  decoder: Decoder
  tokenizer: Tokenizer
  seq_len: int
  bos: str = "auto"
  pretrained: bool = False

  def __post_init__(self) -> None:
    prefix.check_rule(self.bos)
    known, rows = self.tokenizer.vocab_size, self.decoder.config.vocab_size
    if known > rows:
      raise ValueError(
        f"the tokenizer of {self.name} has {known} tokens, its embedding {rows} rows; give the "
        "tokenizer that the model was trained with"
      )

  @property
  def around(self) -> Around | None:
    """The tokens around each text; None: texts are packed as in training."""
    ruled = self.pretrained or self.bos == "never"
    return prefix.by_rule(self.tokenizer, self.bos) if ruled else None

  @property
  def prefix(self) -> tuple[int, ...]:
    """The tokens in front of each text."""
    return (self.around or self.tokenizer.documents).before

  @property
  def context_prefix(self) -> tuple[int, ...]:
    """The tokens in front of contexts and streams that are scored."""
    return prefix.before_contexts(self.tokenizer, self.bos)

  @property
  def prefix_in_words(self) -> str:
    """What stands in front of texts, and why, in a line."""
    front = prefix.spelled(self.tokenizer, self.prefix)
    by_itself = None if self.around is None else prefix.by_rule(self.tokenizer).before
    why = {None: "as in training", self.prefix: "as its tokenizer's rules say"}
    return f"{self.name}: {front} in front of texts, {why.get(by_itself, 'as --bos says')}"

  def prompt(self, text: str, setting: str = "--text") -> np.ndarray:
    """Returns the tokens of a text behind those in front of it, int32 [T].

    Args:
      text: the text.
      setting: the name of the setting that gives it, for messages.

    Raises:
      ValueError: it does not fit into a row.
    """
    tokens = self.tokenizer.encode_batch([text])[0]
    whole = np.concatenate([np.array(self.prefix, np.int32), tokens])
    if len(whole) > self.seq_len:
      raise ValueError(
        f"{setting} is {len(tokens)} tokens of {self.name}, whose rows have {self.seq_len}, what "
        "stands before it included; give a shorter text"
      )
    return whole

  def renamed(self, taken: Collection[str]) -> "TrainedModel":
    """Returns the model, with a number behind its name where another one has this name."""
    numbered = (f"{self.name} ({number})" for number in itertools.count(2))
    name = next(one for one in itertools.chain([self.name], numbered) if one not in taken)
    return dataclasses.replace(self, name=name)

  def fingerprint(self) -> str:
    """Returns 64 hex digits of all parameters, the same for any sharding."""
    record = json.dumps(checksums.record(nnx.to_pure_dict(nnx.state(self.decoder))), sort_keys=True)
    return hashlib.sha256(record.encode()).hexdigest()
