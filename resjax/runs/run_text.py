"""The digests of the documents of a run, in its folder, which tell a later start what changed."""

import dataclasses
import itertools
import json
import platform

from resjax import locations, typed_json
from resjax.data import dataset, sources, text_digest
from resjax.data.config import DataConfig, SettingNames
from resjax.data.summary import DatasetSummary
from resjax.data.text_digest import TextDigest
from resjax.locations import Location

FILE_NAME = "documents.json"
_MOST_BYTES = 1 << 30  # 2 MB for each corpus


def write(folder: Location, built: DatasetSummary) -> None:
  """Writes the digests of the documents of all corpora whose text lies on this machine."""
  found = {name: text_digest.of_records(corpus.text) for name, corpus in built.corpora.items()}
  known = {name: dataclasses.asdict(digest) for name, digest in found.items() if digest}
  if known:
    locations.write_text(folder / FILE_NAME, json.dumps(known))


def explain(folder: Location, data: DataConfig, built: DatasetSummary) -> str:
  """Returns what differs between the text that a run was started with, and that of `built`."""
  if data.built:
    return f"config.data.built={data.built} names other data than those of its start"
  before = _read(folder)
  now = {name: text_digest.of_records(corpus.text) for name, corpus in built.corpora.items()}
  found = [
    f"config.data.corpora.{name} {changed}"
    for name in sorted(now)
    if (changed := _change(name, data, before.get(name), now[name]))
  ]
  return "; ".join(found) or "its text is the same, but its tokenizer or its rows are not"


def advice(data: DataConfig, fingerprint: str) -> str:
  """Returns what the user can do about data that are not those of a run's start."""
  where = f"which config.data.root={data.root} still has"
  if not dataset.is_built(data.root, fingerprint):
    where = "after config.data.root was copied from the machine that built them"
  return (
    f"set config.data.built={fingerprint} to go on with the data of its start, {where}; or choose "
    "another config.workdir to start anew"
  )


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
