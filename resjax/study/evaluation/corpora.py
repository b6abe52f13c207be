"""The texts that models are scored on: names that a user gives, and their documents."""

import dataclasses
import glob
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import logging

from resjax.base import locations
from resjax.data import (
  CorpusConfig,
  Document,
  SettingNames,
  Source,
  corpus_files,
  dropped,
  formats,
  sources,
  text_digest,
)
from resjax.study.evaluation import wikitext
from resjax.study.evaluation.conventions import CONVENTIONS, DOMAINS, TOKENS, Convention

MACRO = "macro"  # the name of the average over documents that are named one by one
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SPLIT = re.compile(r"(hash:[0-9.]+-[0-9.]+|[A-Za-z]\w*)")
_SHARD = re.compile(r"-\d+-of-\d+.*")
_MARKS = re.compile(r"\n?(_START_(ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_)\n?")


class Text(NamedTuple):
  """A document to be scored.

  Attributes:
    id: its name in its corpus.
    original: the text whose words and bytes count.
    given: the text that the model is given.
  """

  id: str
  original: str
  given: str


@dataclasses.dataclass(frozen=True)
class Corpus:
  """A text that models are scored on.

  Attributes:
    name: its name in results.
    place: a file, folder or glob, `python-stdlib`, or `tfds:NAME[/CONFIG]`.
    convention: one of `CONVENTIONS`.
    split: see `resjax.data.sources.open_source`; hash:A-B: the documents whose hashes, as numbers
      in [0, 1), are in [A, B), as training holds them out; None: the split of the convention.
    form: the format of files, one of `resjax.data.config.FORMATS`.
    field: the field that holds the text; empty: the convention's fields.
    group: the name of the macro average that it is a part of; empty: of none.
  """

  name: str
  place: str
  convention: str = "documents"
  split: str | None = None
  form: str = "auto"
  field: str = ""
  group: str = ""

  @property
  def rule(self) -> Convention:
    """The convention that its name stands for."""
    return CONVENTIONS[self.convention]

  def texts(self) -> Iterator[Text]:
    """Yields its documents in order, without those that hold no text.

    Raises:
      ValueError: there is none, or a file is damaged or has another form.
    """
    source, found = self._open()
    as_pages = source.look().form == formats.TEXT or self._field(source) == "text"
    if self.convention == "wikitext" and as_pages:
      rows = _rows(source, found)
      found = (Document(str(n), page) for n, page in enumerate(wikitext.pages(rows)))
    elif self.convention == "wikitext_guide":
      found = iter([Document("stream", "\n\n".join(_bare(_rows(source, found))))])
    empty, invalid = True, list[str]()
    for document in self._held_out(found):
      if document.text is None:
        invalid.append(document.id)
      if document.text and document.text.strip():
        empty = False
        yield self._as_given(document.id, document.text)
    if empty:
      what = "UTF-8 text" if invalid else "text"
      place = f"{self.place}@{self.split}" if self.split else self.place
      raise ValueError(f"--text={self.name}={place} holds no {what}; give another one")
    if invalid:
      named = dropped.listed(invalid, len(invalid))
      what = f"{len(invalid):,} documents are no UTF-8 text and left out"
      logging.warning("--text=%s: %s: %s", self.name, what, named)

  def file(self) -> locations.Location:
    """Returns the one file that a convention for tokens reads.

    Raises:
      ValueError: the place names none, or several.
    """
    files = corpus_files.find(self.place, f"--text={self.name}").files
    if self.split is not None or len(files) != 1:
      raise ValueError(
        f"--text={self.name}={self.place}: {self.convention} reads one file of tokens, without a "
        f"split; this names {len(files)} files"
      )
    return files[0].path

  def check(self) -> None:
    """Raises ValueError unless there are documents in the form asked for; reads the first one."""
    if self.rule.kind == TOKENS:
      self.file()
    else:
      self._open()

  def _open(self) -> tuple[Source, Iterator[Document]]:
    """Returns the source under the first field that its first document has, and its documents."""
    settings = SettingNames(f"--text={self.name}", "--data_format", "--data_field")
    refused: ValueError | None = None
    for field in [self.field] if self.field else self.rule.fields:
      config = CorpusConfig(self.place, self.form, field)
      try:
        source = sources.open_source(settings, config, self._split())
        found = source.documents()
        first = list(itertools.islice(found, 1))
      except ValueError as error:
        refused = refused or error
        continue
      return source, itertools.chain(first, found)
    assert refused is not None
    raise refused

  def _field(self, source: Source) -> str:
    return source.place[-1]

  def _split(self) -> str | None:
    """Returns the split to read; None: there is only one. A folder with several needs a setting."""
    if self.split is not None:
      return None if self.split.startswith("hash:") else self.split
    if self.place == sources.STDLIB:
      return None
    if self.place.startswith(sources.TFDS):
      return self.rule.split
    own = self.rule.split
    found = sources.splits_of_files(self.place, f"--text={self.name}", of_text=own is not None)
    if len(found) < 2:
      return None
    if own in found:
      return own
    raise ValueError(
      f"--text={self.name}={self.place} holds the splits {', '.join(found)}; choose one, as in "
      f"{self.place}@{found[-1]}"
    )

  def _held_out(self, documents: Iterator[Document]) -> Iterator[Document]:
    if self.split is None or not self.split.startswith("hash:"):
      return documents
    low, high = (float(edge) for edge in self.split.removeprefix("hash:").split("-"))
    return (
      document
      for document in documents
      if low <= text_digest.place_of(text_digest.digest_of(document.text)) < high
    )

  def _as_given(self, name: str, text: str) -> Text:
    if self.convention == "lambada_standard":
      text = text.rstrip()
    if self.convention == "wikitext":
      return Text(name, text, wikitext.detokenise(text))
    if self.convention == "wiki40b":
      return Text(name, text, _MARKS.sub("\n", text).lstrip("\n"))
    return Text(name, text, text)


def parse(items: Sequence[str], form: str = "auto", field: str = "") -> list[Corpus]:
  """Returns the corpora that items NAME=[CONVENTION:]PLACE[@SPLIT] name.

  Without a convention that is the one called NAME, or `documents`. Each domain of a folder is a
  corpus NAME/DOMAIN in the group NAME; documents named one by one are the group `MACRO`.

  Raises:
    ValueError: an item has another form, a name comes twice, or a place holds no text.
  """
  found: list[Corpus] = []
  for item in items:
    name, _, rest = item.partition("=")
    if not _NAME.fullmatch(name) or name == MACRO or not rest:
      raise ValueError(
        f"--text={item}: NAME=[CONVENTION:]SOURCE[@SPLIT] is allowed, a name of letters, digits, "
        f"_, . and - other than {MACRO}"
      )
    found += _domains(_corpus(name, rest, form, field))
  names = [corpus.name for corpus in found]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f"--text names {name!r} {names.count(name)} times; give each another name")
  for corpus in found:
    corpus.check()
  return found


def _corpus(name: str, rest: str, form: str, field: str) -> Corpus:
  convention, colon, place = rest.partition(":")
  if not colon or convention not in CONVENTIONS:
    convention, place = (name if name in CONVENTIONS else "documents"), rest
    if name == "lambada":
      raise ValueError(
        f"--text={name}={rest}: there are two LAMBADAs, whose figures differ; call it "
        "lambada_openai (cased, with punctuation) or lambada_standard (lower-case, tokenised)"
      )
  before, at, split = place.rpartition("@")
  if not at or not before or not _SPLIT.fullmatch(split):
    before, split = place, ""
  if split.startswith("hash:"):
    _check_range(name, split)
  if before.startswith("@") or not before:
    raise ValueError(f"--text={name}={rest}: no source is named; give a file or a folder")
  group = MACRO if convention == "documents" else ""
  return Corpus(name, before, convention, split or None, form, field, group)


def _check_range(name: str, split: str) -> None:
  try:
    low, high = (float(edge) for edge in split.removeprefix("hash:").split("-"))
  except ValueError:
    low, high = 1.0, 0.0
  if not 0 <= low < high <= 1:
    raise ValueError(f"--text={name}: @{split} must be @hash:A-B with 0 <= A < B <= 1")


def _domains(corpus: Corpus) -> list[Corpus]:
  """Returns the corpus, or one for each domain of a folder of domains."""
  if corpus.rule.kind != DOMAINS:
    return [corpus]
  flag = f"--text={corpus.name}"
  found = corpus_files.find(corpus.place, flag)
  if not found.is_folder or not found.files:
    raise ValueError(f"{flag}={corpus.place}: domains are the files or folders in a folder")
  places: dict[str, str] = {}
  for file in found.files:
    top, inner, _ = file.name.partition("/")
    shards = _SHARD.sub("", top)
    name = top if inner else shards.split(".")[0]
    place = str(found.base / top)
    if not inner and shards != top:
      place = f"{glob.escape(str(found.base))}/{glob.escape(shards)}-*"
    if places.setdefault(name, place) != place:
      raise ValueError(f"{flag}={corpus.place}: {top} is one more domain {name!r}; rename it")
  return [
    dataclasses.replace(
      corpus,
      name=f"{corpus.name}/{name}",
      place=place,
      convention="documents",
      group=corpus.name,
    )
    for name, place in sorted(places.items())
  ]


def _rows(source: Source, documents: Iterator[Document]) -> Iterator[str]:
  """Yields the lines of WikiText in rows; the original file is cut into documents at line ends."""
  for document in documents:
    text = document.text or ""
    # Unlike str.splitlines, this ends lines at "\n" alone; articles hold other separators.
    yield from io.StringIO(text, newline="\n") if source.look().form == formats.TEXT else [text]


def _bare(rows: Iterator[str]) -> Iterator[str]:
  """Yields rows like Hugging Face's data set, in which lines of white space are empty."""
  return (row if row.strip() else "" for row in rows)
