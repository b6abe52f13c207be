"""A server on loopback that speaks as much of the hub's API as huggingface_hub asks of it."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def log_message(self, *args):
    pass

  def do_HEAD(self):
    self.do_GET(body=False)

  def do_GET(self, body=True):
    path = urllib.parse.unquote(self.path.partition("?")[0])
    self.server.asked.append(path)
    if found := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(/(revision|tree)/(.+))?", path):
      self._about(found[1], found[3], found[4] or "main")
    elif found := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
      self._file(*found.groups(), body)
    else:
      self._send(404, b"{}")

  def _repo(self, name, revision):
    if name in self.server.gated:
      self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
    elif name not in self.server.repos:
      self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
    elif revision not in self.server.repos[name]:
      self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    else:
      return self.server.repos[name][revision]
    return None

  def _about(self, name, what, revision):
    if (repo := self._repo(name, revision)) is None:
      return
    sha, files = repo
    if what == "tree":
      found = [
        {"type": "file", "path": path, "size": len(content), "oid": etag(content)}
        for path, content in files.items()
      ]
    else:
      found = {"id": name, "sha": sha, "siblings": [{"rfilename": path} for path in files]}
    self._send(200, json.dumps(found).encode())

  def _file(self, name, revision, path, body):
    if (repo := self._repo(name, revision)) is None:
      return
    sha, files = repo
    if path not in files:
      self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
      return
    content = files[path]
    if body:
      self.server.sent.append(path)
    self._send(200, content, {"ETag": f'"{etag(content)}"', "X-Repo-Commit": sha}, body)

  def _send(self, status, content, headers=None, body=True):
    self.send_response(status)
    for key, value in {"Content-Length": len(content), **(headers or {})}.items():
      self.send_header(key, str(value))
    self.end_headers()
    if body and self.command == "GET":
      self.wfile.write(content)


def etag(content):
  return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def serve(repos, gated=()):
  """Yields a server, whose `url` is its address, `asked` what was asked, `sent` the files sent.

  Args:
    repos: OWNER/NAME -> revision -> the files by path, as bytes.
    gated: names of repositories that may not be read.
  """
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.asked, server.sent, server.gated = [], [], gated
  server.repos = {}
  for name, revisions in repos.items():
    commits = {key: (etag(f"{name} {key}".encode()), files) for key, files in revisions.items()}
    server.repos[name] = commits | {sha: (sha, files) for sha, files in commits.values()}
  server.url = f"http://127.0.0.1:{server.server_address[1]}"
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  try:
    yield server
  finally:
    server.shutdown()
    server.server_close()
    thread.join()
