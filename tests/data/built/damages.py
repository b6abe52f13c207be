"""What may happen to a file of built data: functions of its path and of a random generator."""

import os
import shutil


def flip(path, rng):
  content = bytearray(path.read_bytes())
  content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
  path.write_bytes(content)


def cut(path, rng):
  os.truncate(path, rng.randrange(path.stat().st_size))


def empty(path, rng):
  del rng
  path.write_bytes(b"")


def extend(path, rng):
  with path.open("ab") as file:
    file.write(rng.randbytes(rng.randint(1, 100)))


def delete(path, rng):
  del rng
  path.unlink()


def swap(path, rng):
  """Exchanges a file with another one of the same ending, anywhere under the root."""
  root = next(parent for parent in path.parents if parent.name == "root")
  alike = [
    other
    for other in sorted(root.rglob("*"))
    if other.is_file() and other.name[-6:] == path.name[-6:]
    if other.read_bytes() != path.read_bytes()
  ]
  if not alike:
    delete(path, rng)
    return
  other = rng.choice(alike)
  content = path.read_bytes()
  path.write_bytes(other.read_bytes())
  other.write_bytes(content)


def rewrite(path, rng):
  """Replaces a file by another one of the same size."""
  path.write_bytes(rng.randbytes(path.stat().st_size))


def pipe(path, rng):
  del rng
  path.unlink()
  os.mkfifo(path)


def link(path, rng):
  """Replaces a file by a link to a flipped copy of it outside of the root."""
  root = next(parent for parent in path.parents if parent.name == "root")
  moved = root.parent / "moved"
  path.rename(moved)
  flip(moved, rng)
  path.symlink_to(moved)


def delete_folder(path, rng):
  del rng
  root = next(parent for parent in path.parents if parent.name == "root")
  shutil.rmtree(root / "/".join(path.relative_to(root).parts[:2])) if path.parent != root else (
    path.unlink()
  )


DAMAGES = (flip, flip, flip, cut, empty, extend, delete, swap, rewrite, pipe, link, delete_folder)
