"""How the texts of the field are scored by those who publish figures; each way has a name."""

import dataclasses

DOCUMENTS, LAST_WORD, STREAM, TOKENS, DOMAINS = (
  "documents", "last word", "stream", "tokens", "domains",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Convention:
  """A way of scoring a text.

  Attributes:
    kind: `documents`: each alone; `last word`: that of each document, given the rest; `stream`: all
      documents in one; `tokens`: a file of tokens, as a stream; `domains`: a folder of several
      texts, each of which is scored as documents.
    says: a description in one line.
    fields: the names of the field with the text, the first that is there; --data_field replaces it.
    split: the split of a folder or of TFDS that is read where none is named.
  """

  kind: str
  says: str
  fields: tuple[str, ...] = ("text", "content")
  split: str | None = None


_WORD = "context: all but the last word, split at spaces; target: a space and that word"

CONVENTIONS = {
  "documents": Convention(
    DOCUMENTS,
    "each document alone behind the token that starts texts; words and bytes of the document",
  ),
  "domains": Convention(
    DOMAINS, "each file or folder in a folder is a domain, scored as documents; macro average"
  ),
  "wikitext": Convention(
    DOCUMENTS,
    "lm-eval's wikitext: each page alone behind the token that starts texts, with the harness's "
    "detokeniser; words and bytes of the original page",
    ("page", "text"),
    "test",
  ),
  "wikitext_guide": Convention(
    STREAM,
    "Hugging Face's guide on perplexity: rows joined by two newlines into one stream, no "
    "detokeniser, per token; a window's first token without context is not scored",
    ("text",),
    "test",
  ),
  "wiki40b": Convention(
    DOCUMENTS,
    "each article alone, its _START_..._ and _NEWLINE_ marks as newlines; words and bytes of the "
    "stored article",
    split="test",
  ),
  "lambada_openai": Convention(
    LAST_WORD, f"OpenAI's LAMBADA; {_WORD}; perplexity per word", split="test"
  ),
  "lambada_standard": Convention(
    LAST_WORD,
    f"the original lower-case LAMBADA, lines stripped; {_WORD}; perplexity per word",
    ("text", "passage"),
    "test",
  ),
  "nanogpt": Convention(
    TOKENS,
    "nanoGPT's file of uint16 tokens, end of text after each document, as one stream in all "
    "disjoint windows (nanoGPT itself: a mean over random ones)",
  ),
  "llmc": Convention(
    TOKENS,
    "llm.c's and modded-nanogpt's file of uint16 tokens behind a header, end of text before each "
    "document, as one stream; at most its first 10,485,760 targets",
  ),
}
