"""The digests of the documents of a run, in its folder, which tell a later start what changed."""

import dataclasses
import itertools
import json
import platform
from collections.abc import Mapping

from resjax.base import Location, locations, manifest, typed_json
from resjax.data import (
  DataConfig,
  DatasetSummary,
  SettingNames,
  TextDigest,
  mirror,
  sources,
  text_digest,
)

FILE_NAME = "documents.json"
_CHUNK = 1 << 22  # bytes that are read at a time
_MOST_BYTES = 1 << 30  # 2 MB for each corpus


def write(folder: Location, built: DatasetSummary) -> None:
  """Writes the digests of the documents of all corpora whose text lies on this machine."""
  known = {name: dataclasses.asdict(text) for name, text in texts_of(built).items() if text}
  if known:
    locations.write_text(folder / FILE_NAME, json.dumps(known))


def texts_of(built: DatasetSummary) -> dict[str, TextDigest | None]:
  """Returns the digests of the documents of all corpora; None of a text that is not here."""
  return {name: text_digest.of_records(corpus.text) for name, corpus in built.corpora.items()}


def explain(folder: Location, data: DataConfig, now: Mapping[str, TextDigest | None]) -> str:
  """Returns what differs between the text that a run was started with, and the one of `now`."""
  if data.built:
    return f"config.data.built={data.built} names other data than those of its start"
  before = _read(folder)
  found = [
    f"config.data.corpora.{name} {changed}"
    for name in sorted(now)
    if (changed := _change(name, data, before.get(name), now[name]))
  ]
  return "; ".join(found) or "its text is the same, but its tokenizer or its rows are not"


def advice(folder: Location, data: DataConfig, fingerprint: str) -> str:
  """Returns advice for a user whose data differ from the data of the run in a folder."""
  anew = "choose another config.workdir to start anew"
  found = _summary(data, fingerprint)
  if found is None and not (folder / FILE_NAME).exists():  # of a release without manifests, too
    return (
      f"copy the config.data.root of its start to {data.root}, and the same command compares its "
      f"rows; or {anew}"
    )
  if found is None:
    where = "after config.data.root was copied from the machine that built them"
  elif all(_has_manifest(data, name) for name in found.names):
    where = f"which config.data.root={data.root} still has"
  else:
    return (
      f"{anew}: the data of its start have no manifest, so nothing tells whether they are whole"
    )
  return (
    f"set config.data.built={fingerprint} to go on with the data of its start, {where}; or {anew}"
  )


def have_no_manifest(data: DataConfig, fingerprint: str) -> bool:
  """Returns whether the root has data of a release before manifests, by its summary."""
  found = _summary(data, fingerprint)
  return found is not None and not all(_has_manifest(data, name) for name in found.names)


def are_rows_of(data: DataConfig, fingerprint: str, built: DatasetSummary) -> bool:
  """Returns whether built data have the bytes of those that have another fingerprint.

  Those of release 0.2 and before had other fingerprints, and lie in local folders without manifest.
  """
  found = _summary(data, fingerprint)
  if found is None or set(found.corpora) != set(built.corpora):
    return False
  here, where = mirror.local(data.root), f"summary-{fingerprint}.json"
  try:
    pairs = [(locations.inside(here, found.tokenizer, where), built.tokenizer)]
    for name, corpus in found.corpora.items():
      folders = locations.inside(here, corpus.rows, where), built.corpora[name].rows
      old, new = (sorted(folder.glob("*.array_record*")) for folder in folders)
      if [path.name for path in old] != [path.name for path in new]:
        return False
      pairs += zip(old, new, strict=True)
    return all(_same_bytes(old, new) for old, new in pairs)
  except (OSError, ValueError):
    return False


def _same_bytes(one: Location, other: Location) -> bool:
  with locations.open_regular(one) as a, locations.open_regular(other) as b:
    while chunk := a.read(_CHUNK):
      if chunk != b.read(_CHUNK):
        return False
    return not b.read(1)


@dataclasses.dataclass(frozen=True)
class _Rows:
  rows: str


@dataclasses.dataclass(frozen=True)
class _Summary:
  """The names of the parts of built data, also of those that an earlier release built."""

  tokenizer: str
  corpora: dict[str, _Rows]

  @property
  def names(self) -> list[str]:
    """The folders of the parts, KIND/NAME-FINGERPRINT."""
    paths = [self.tokenizer, *(corpus.rows for corpus in self.corpora.values())]
    return ["/".join(path.split("/")[:2]) for path in paths]


def _summary(data: DataConfig, fingerprint: str) -> _Summary | None:
  """Returns the summary of built data; None if there is none that can be read."""
  path = mirror.fetch_file(data.root, f"summary-{fingerprint}.json")
  try:
    return typed_json.read(path, _Summary) if path else None
  except (OSError, ValueError):
    return None


def _has_manifest(data: DataConfig, name: str) -> bool:
  here = mirror.local(data.root) / name / manifest.FILE_NAME
  return here.exists() or (mirror.is_mirrored(data.root) and mirror.has(data.root, name))


def _read(folder: Location) -> dict[str, TextDigest]:
  """Returns the digests by corpus, without those that are missing or damaged."""
  try:
    found = typed_json.read(folder / FILE_NAME, dict[str, TextDigest], most_bytes=_MOST_BYTES)
  except (OSError, ValueError):
    return {}
  return {name: digest for name, digest in found.items() if digest.is_whole}


def _change(
  name: str, data: DataConfig, before: TextDigest | None, now: TextDigest | None
) -> str | None:
  """Returns which documents of a corpus changed, or None if none did."""
  if before is None or now is None:
    return f"may have had other text at its start, of which {FILE_NAME} there has no digests"
  changed = before.first_difference(now)
  if changed is None:
    return None
  corpus = dict(data.corpora)[name]
  documents = sources.open_source(SettingNames.of_corpus(name), corpus).documents()
  ids = [document.id for document in itertools.islice(documents, *changed)]
  which = f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else "".join(ids)
  if before.documents != now.documents:
    text = f"it had {before.documents:,} documents and has {now.documents:,}"
    text += f", the first other one is {which}" if ids else ", the first of them"
  elif count := before.num_differences(now):
    text = f"{count:,} of {now.documents:,} documents changed, the first is {which}"
  else:
    text = f"of {now.documents:,} documents, the first that changed is one of {which}"
  if corpus.source == sources.STDLIB:
    text += f" ({sources.STDLIB} is the text of the running Python, {platform.python_version()})"
  return f"has other text than at its start: {text}"
