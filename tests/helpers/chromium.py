"""A page in headless Chromium, driven by the DevTools protocol over a pair of pipes."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
  *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
  # It asks for nothing but the pages of the tests.
  *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_TIMEOUT = 60  # seconds


class Page:
  """One page of a browser: what it logs, asks for, and looks like.

  Attributes:
    console: what scripts and the browser log about it: level and text.
    requests: addresses that it asks for.
  """

  def __init__(self, send: int, receive: int):
    self._send, self._receive, self._number, self._rest = send, receive, 0, b""
    self._session = None
    self._loaded = False
    self.console, self.requests = [], []
    target = self.call("Target.createTarget", url="about:blank")["targetId"]
    found = self.call("Target.attachToTarget", targetId=target, flatten=True)
    self._session = found["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
      self.call(f"{domain}.enable")

  def call(self, method: str, **parameters) -> dict:
    """Returns the result of a DevTools method."""
    self._number += 1
    message = {"id": self._number, "method": method, "params": parameters}
    if self._session is not None:
      message["sessionId"] = self._session
    os.write(self._send, json.dumps(message).encode() + b"\0")
    return self._until(lambda message: message.get("id") == self._number)["result"]

  def open(self, path: Path, width: int, height: int = 900) -> None:
    """Opens a file in a window of a size, and waits until it and its pictures are there."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    self.call("Emulation.setDeviceMetricsOverride", **size)
    self._loaded = False
    self.call("Page.navigate", url=path.absolute().as_uri())
    if not self._loaded:
      self._until(lambda message: self._loaded)

  def evaluate(self, script: str):
    """Returns the JSON value of an expression."""
    found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")

  def screenshot(self, path: Path) -> None:
    """Writes a picture of the whole page."""
    found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(found["data"]))

  def _until(self, wanted) -> dict:
    deadline = time.monotonic() + _TIMEOUT
    while True:
      message = self._next(deadline)
      assert "error" not in message, message
      self._note(message)
      if wanted(message):
        return message

  def _next(self, deadline: float) -> dict:
    while b"\0" not in self._rest:
      ready, _, _ = select.select([self._receive], [], [], max(deadline - time.monotonic(), 0))
      data = os.read(self._receive, 1 << 20) if ready else b""
      assert data, "the browser has ended or hangs"
      self._rest += data
    text, _, self._rest = self._rest.partition(b"\0")
    return json.loads(text)

  def _note(self, message: dict) -> None:
    method, values = message.get("method"), message.get("params", {})
    if method == "Runtime.consoleAPICalled":
      self.console.append((values["type"], str(values["args"])))
    elif method == "Runtime.exceptionThrown":
      self.console.append(("exception", str(values["exceptionDetails"])))
    elif method == "Log.entryAdded":
      self.console.append((values["entry"]["level"], values["entry"]["text"]))
    elif method == "Network.requestWillBeSent":
      self.requests.append(values["request"]["url"])
    elif method == "Page.loadEventFired":
      self._loaded = True


@contextlib.contextmanager
def page(folder: Path):
  """A page of a browser that keeps what it writes in a folder."""
  theirs_in, send = _pipe()
  receive, theirs_out = _pipe()
  command = [PROGRAM, *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}"]
  process = subprocess.Popen(
    ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
    pass_fds=(theirs_in, theirs_out),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  os.close(theirs_in)
  os.close(theirs_out)
  try:
    yield Page(send, receive)
    os.write(send, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
    process.wait(_TIMEOUT)
  finally:
    process.kill()
    process.wait()
    os.close(send)
    os.close(receive)


def _pipe() -> tuple[int, int]:
  """Two ends whose numbers are none of those that a browser expects its own under."""
  ends = os.pipe()
  high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
  for end in ends:
    os.close(end)
  return high
