"""A Google Cloud Storage of one process: the part of its JSON API that gcsfs and TensorStore use.

https://cloud.google.com/storage/docs/json_api/v1: objects with generations and preconditions,
media, multipart and resumable uploads, ranges, listings with prefix and delimiter, rewriting.
"""

import base64
import contextlib
import dataclasses
import datetime
import email
import email.policy
import hashlib
import itertools
import json
import re
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import google_crc32c

_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
_LISTING = re.compile(r"/storage/v1/b/([^/]+)/o/?")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o/?")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)/?")
_MOVE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)")
_REWRITE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)")


@dataclasses.dataclass(frozen=True)
class Object:
  data: bytes
  generation: int
  updated: str


class Failure(Exception):
  """An answer of another status than 200."""


class FakeGcs(ThreadingHTTPServer):
  """The server.

  Attributes:
    buckets: names of those that exist.
    objects: (bucket, name) to `Object`.
    requests: (method, path) of every request, in order.
  """

  daemon_threads = True
  request_queue_size = 128

  def __init__(self, *buckets: str):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.buckets = set(buckets)
    self.objects: dict[tuple[str, str], Object] = {}
    self.requests: list[tuple[str, str]] = []
    self.uploads: dict[str, tuple[str, str, dict, bytearray]] = {}
    self.lock = threading.RLock()
    self.generations = itertools.count(1)

  @property
  def environment(self) -> dict[str, str]:
    """What makes clients come here: gcsfs, google-cloud-storage, TensorStore."""
    url = f"http://127.0.0.1:{self.server_port}"
    return {
      "STORAGE_EMULATOR_HOST": url,
      "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks over gRPC what kind a bucket is
      "TENSORSTORE_GCS_HTTP_URL": url,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
      "GOOGLE_CLOUD_PROJECT": "project",
    }

  def names(self, prefix: str) -> list[str]:
    """Returns the names of objects, gs:// and bucket left out, that begin with BUCKET/PREFIX."""
    bucket, _, rest = prefix.partition("/")
    with self.lock:
      return sorted(n for b, n in self.objects if b == bucket and n.startswith(rest))

  def get(self, key: tuple[str, str]) -> Object:
    if key not in self.objects:
      raise Failure(404, f"No such object: {'/'.join(key)}")
    return self.objects[key]

  def check(self, key: tuple[str, str], query: dict[str, str]) -> None:
    """Applies the preconditions of a request."""
    now = self.objects[key].generation if key in self.objects else 0
    if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != now:
      raise Failure(412, "conditionNotMet")
    if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == now:
      raise Failure(304, "notModified")

  def find(self, bucket: str) -> dict:
    if bucket not in self.buckets:
      raise Failure(404, "The specified bucket does not exist.")
    return {"kind": "storage#bucket", "id": bucket, "name": bucket}

  def put(self, key: tuple[str, str], data: bytes, query: dict[str, str] | None = None) -> dict:
    with self.lock:
      self.find(key[0])
      self.check(key, query or {})
      updated = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
      self.objects[key] = Object(data, next(self.generations), updated)
      return self.resource(key)

  def resource(self, key: tuple[str, str]) -> dict:
    found = self.get(key)
    return {
      "kind": "storage#object",
      "id": "/".join((*key, str(found.generation))),
      "bucket": key[0],
      "name": key[1],
      "size": str(len(found.data)),
      "generation": str(found.generation),
      "metageneration": "1",
      "updated": found.updated,
      "timeCreated": found.updated,
      "contentType": "application/octet-stream",
      "storageClass": "STANDARD",
      "etag": str(found.generation),
      "md5Hash": base64.b64encode(hashlib.md5(found.data).digest()).decode(),
      "crc32c": base64.b64encode(google_crc32c.Checksum(found.data).digest()).decode(),
    }

  def listing(self, bucket: str, query: dict[str, str]) -> dict:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    first, stop = query.get("startOffset", ""), query.get("endOffset")
    after, limit = query.get("pageToken", ""), int(query.get("maxResults", 1000))
    self.find(bucket)
    found: dict[str, bool] = {}  # name or prefix to whether it is an object
    with self.lock:
      for name in self.names(f"{bucket}/{prefix}"):
        rest = name[len(prefix) :]
        cut = bool(delimiter) and delimiter in rest
        entry = prefix + rest.split(delimiter, 1)[0] + delimiter if cut else name
        if name >= first and (stop is None or name < stop) and entry > after:
          found[entry] = not cut
      page = sorted(found)[:limit]
      answer = {"kind": "storage#objects"}
      answer["items"] = [self.resource((bucket, name)) for name in page if found[name]]
      answer["prefixes"] = [name for name in page if not found[name]]
    if len(found) > limit:
      answer["nextPageToken"] = page[-1]
    return answer


class _Handler(BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True

  def handle(self) -> None:
    with contextlib.suppress(ConnectionError):  # a client that was killed
      super().handle()

  def do_GET(self) -> None:
    self._answer(self._get)

  def do_POST(self) -> None:
    self._answer(self._post)

  def do_PUT(self) -> None:
    self._answer(self._post)

  def do_DELETE(self) -> None:
    self._answer(self._delete)

  def log_message(self, *args) -> None:
    """Keeps quiet."""

  def _answer(self, act) -> None:
    url = urllib.parse.urlsplit(self.path)
    self.place = url.path
    self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    self.body = self._read()
    self.server.requests.append((self.command, self.path))
    try:
      act()
    except Failure as failure:
      code, message = failure.args
      self._send(code, {"error": {"code": code, "message": message}})

  def _read(self) -> bytes:
    assert "Transfer-Encoding" not in self.headers
    return self.rfile.read(int(self.headers.get("Content-Length") or 0))

  def _send(self, code: int, content: dict | bytes = b"", **headers: object) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    self.send_response(code)
    kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
    headers = {"Content-Type": kind, "Content-Length": len(body)} | headers
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), str(value))
    self.end_headers()
    self.wfile.write(b"" if code in (204, 304) else body)

  def _match(self, pattern: re.Pattern) -> tuple[str, ...] | None:
    found = pattern.fullmatch(self.place)
    return found and tuple(map(urllib.parse.unquote, found.groups()))

  def _get(self) -> None:
    if key := self._match(_OBJECT):
      self._get_object(key)
    elif bucket := self._match(_LISTING):
      self._send(200, self.server.listing(bucket[0], self.query))
    elif bucket := self._match(_BUCKET):
      self._send(200, self.server.find(bucket[0]))
    else:
      raise Failure(501, f"the fake has no GET {self.path}")

  def _get_object(self, key: tuple[str, str]) -> None:
    with self.server.lock:
      found = self.server.get(key)
      self.server.check(key, self.query)
      if "generation" in self.query and int(self.query["generation"]) != found.generation:
        raise Failure(404, "No such object: other generation")
      if self.query.get("alt") != "media":
        self._send(200, self.server.resource(key))
        return
    size, headers = len(found.data), {"X_Goog_Generation": found.generation}
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
    if not asked:
      self._send(200, found.data, **headers)
      return
    first, last = asked.groups()
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= size:
      self._send(416, b"", Content_Range=f"bytes */{size}")
      return
    headers["Content_Range"] = f"bytes {start}-{stop - 1}/{size}"
    self._send(206, found.data[start:stop], **headers)

  def _post(self) -> None:
    if "upload_id" in self.query:
      self._resume(self.query["upload_id"])
    elif places := self._match(_REWRITE):
      data = self.server.get(places[:2]).data
      self._send(200, {"done": True, "resource": self.server.put(places[2:], data, self.query)})
    elif places := self._match(_MOVE):
      bucket, old, new = places
      with self.server.lock:
        data = self.server.get((bucket, old)).data
        self._send(200, self.server.put((bucket, new), data, self.query))
        del self.server.objects[bucket, old]
    elif bucket := self._match(_UPLOAD):
      self._upload(bucket[0])
    else:
      raise Failure(501, f"the fake has no {self.command} {self.path}")

  def _upload(self, bucket: str) -> None:
    kind, data, name = self.query["uploadType"], self.body, self.query.get("name")
    if kind == "multipart":
      head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
      message = email.message_from_bytes(head + data, policy=email.policy.HTTP)
      described, content = message.get_payload()
      name = name or json.loads(described.get_payload(decode=True))["name"]
      data = content.get_payload(decode=True)
    elif kind == "resumable":
      name = name or json.loads(data)["name"]
      identity = uuid.uuid4().hex
      self.server.uploads[identity] = bucket, name, self.query, bytearray()
      host = f"http://127.0.0.1:{self.server.server_port}"
      self._send(200, {}, Location=f"{host}{self.place}?uploadType=resumable&upload_id={identity}")
      return
    self._send(200, self.server.put((bucket, name), data, self.query))

  def _resume(self, identity: str) -> None:
    bucket, name, query, data = self.server.uploads[identity]
    data += self.body
    total = self.headers.get("Content-Range", "/*").rsplit("/", 1)[1]
    if total == "*" or len(data) < int(total):
      headers = {"Range": f"bytes=0-{len(data) - 1}"} if data else {}
      self._send(308, b"", **headers)
      return
    del self.server.uploads[identity]
    self._send(200, self.server.put((bucket, name), bytes(data), query))

  def _delete(self) -> None:
    key = self._match(_OBJECT)
    if key is None:
      raise Failure(501, f"the fake has no DELETE {self.path}")
    with self.server.lock:
      self.server.get(key)
      self.server.check(key, self.query)
      del self.server.objects[key]
    self._send(204)


@contextlib.contextmanager
def serve(*buckets: str) -> Iterator[FakeGcs]:
  """Runs a server in a thread."""
  with FakeGcs(*buckets) as server:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join()
