"""Hostile acts on the files of a store: a catalogue, each with its name.

A mutation changes a copy of a store's directory and says what it did; None if there is nothing
there that it could be done to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.outsider.stores import Scene

Mutation = Callable[[Random, Path, Scene], "str | None"]


def files_of(root: Path) -> list[Path]:
    """All files of a store, but its lock."""
    found = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [path for path in found if path.name != "lock" and "quarantine" not in path.parts]


def _pick(rng: Random, root: Path) -> Path | None:
    """Any file, each kind as often as the others."""
    by_kind: dict[str, list[Path]] = {}
    for path in files_of(root):
        by_kind.setdefault(path.suffix or path.name, []).append(path)
    return rng.choice(by_kind[rng.choice(sorted(by_kind))]) if by_kind else None


def _pair(rng: Random, root: Path) -> tuple[Path, Path] | None:
    """Two files of one kind; neighbours more often than not."""
    target = _pick(rng, root)
    if target is None:
        return None
    alike = [p for p in files_of(root) if p.suffix == target.suffix and p != target]
    near = [path for path in alike if path.parent == target.parent]
    chosen = near if near and rng.random() < 0.7 else alike
    return (target, rng.choice(chosen)) if chosen else None


def _said(root: Path, *paths: Path) -> str:
    return " ".join(str(path.relative_to(root)) for path in paths)


def copied_over(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file has the content of another of its kind."""
    pair = _pair(rng, root)
    if pair is None:
        return None
    shutil.copyfile(pair[1], pair[0])
    return _said(root, *pair)


def swapped(rng: Random, root: Path, scene: Scene) -> str | None:
    """Two files of a kind have each other's name."""
    pair = _pair(rng, root)
    if pair is None:
        return None
    temp = root / "swap"
    pair[0].rename(temp)
    pair[1].rename(pair[0])
    temp.rename(pair[1])
    return _said(root, *pair)


def renamed(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file has a name that another of its kind could have; what had it is gone."""
    target = _new_name(rng, root)
    if target is None:
        return None
    target[0].replace(target[1])
    return _said(root, *target)


def doubled(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file is there a second time, by another name."""
    target = _new_name(rng, root)
    if target is None or target[1].exists():
        return None
    shutil.copyfile(*target)
    return _said(root, *target)


def _new_name(rng: Random, root: Path) -> tuple[Path, Path] | None:
    path = _pick(rng, root)
    if path is None or not path.stem.isdigit():
        return None
    kin = sorted({p.parent for p in files_of(root) if p.suffix == path.suffix})
    directory = path.parent if rng.random() < 0.7 else rng.choice(kin)
    number = int(path.stem) + rng.choice((-20, -1, 0, 1, 8, 15, 20, 4096))
    suffix = rng.choice((path.suffix, path.suffix, {".seg": ".open", ".open": ".seg"}.get(
        path.suffix, path.suffix)))  # fmt: skip
    new = directory / f"{max(number, 0):020d}{suffix}"
    return None if new == path else (path, new)


def older(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file is as it was a while ago."""
    return _from(rng, root, scene.past)


def foreign(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file is that of another store."""
    return _from(rng, root, scene.other)


def _from(rng: Random, root: Path, source: Path) -> str | None:
    kin = [path.relative_to(source) for path in files_of(source)]
    kinds = sorted({path.suffix or path.name for path in kin})
    kind = rng.choice(kinds)
    name = rng.choice([path for path in kin if (path.suffix or path.name) == kind])
    target = root / name
    if target.is_dir() or (target.exists() and target.read_bytes() == (source / name).read_bytes()):
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / name, target)
    return str(name)


def foreign_directory(rng: Random, root: Path, scene: Scene) -> str | None:
    """A directory is that of another store, or as it was a while ago."""
    source = rng.choice((scene.past, scene.other))
    names = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_dir()]
    name = rng.choice([one for one in names if "incoming" not in one.parts] or names)
    shutil.rmtree(root / name, ignore_errors=True)
    shutil.copytree(source / name, root / name)
    return f"{name} of {source.name}"


def truncated(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file is shorter than it was."""
    path = _pick(rng, root)
    if path is None or not path.stat().st_size:
        return None
    size = path.stat().st_size
    length = rng.choice((0, 64, size - 1, size - 104, rng.randrange(size), rng.randrange(size)))
    os.truncate(path, max(0, min(length, size - 1)))
    return f"{_said(root, path)} to {length} of {size}"


def zeroed(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file, or a part of it, is zeros."""
    path = _pick(rng, root)
    if path is None or not path.stat().st_size:
        return None
    data = bytearray(path.read_bytes())
    start = rng.choice((0, 0, rng.randrange(len(data))))
    length = rng.choice((len(data), 512, 64, 8))
    end = min(len(data), start + length)
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    return f"{_said(root, path)} from {start} to {end} of {len(data)}"


def flipped(rng: Random, root: Path, scene: Scene) -> str | None:
    """Some bits are not what they were."""
    path = _pick(rng, root)
    if path is None or not path.stat().st_size:
        return None
    data = bytearray(path.read_bytes())
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 1, 3)))]
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{_said(root, path)} at {places} of {len(data)}"


def scribbled(rng: Random, root: Path, scene: Scene) -> str | None:
    """A part of a file is something else, or something stands after its end."""
    path = _pick(rng, root)
    if path is None:
        return None
    data = bytearray(path.read_bytes())
    start = rng.choice((len(data), rng.randrange(len(data) + 1)))
    noise = rng.randbytes(rng.choice((8, 64, 700)))
    data[start : start + len(noise)] = noise
    path.write_bytes(data)
    return f"{_said(root, path)} {len(noise)} bytes at {start} of {len(data)}"


def removed(rng: Random, root: Path, scene: Scene) -> str | None:
    """A file is gone."""
    path = _pick(rng, root)
    if path is None:
        return None
    path.unlink()
    return _said(root, path)


def removed_directory(rng: Random, root: Path, scene: Scene) -> str | None:
    """A directory is gone with all that was in it."""
    found = [path for path in sorted(root.rglob("*")) if path.is_dir()]
    if not found:
        return None
    path = rng.choice(found)
    shutil.rmtree(path)
    return _said(root, path)


def made_directory(rng: Random, root: Path, scene: Scene) -> str | None:
    """A directory is in the place of a file."""
    path = _pick(rng, root)
    if path is None:
        return None
    path.unlink()
    path.mkdir()
    if rng.random() < 0.3:
        (path / "something").write_bytes(b"here")
    return _said(root, path)


CATALOGUE: tuple[Mutation, ...] = (
    copied_over, swapped, renamed, doubled, older, foreign, foreign_directory, truncated, zeroed,
    flipped, scribbled, removed, removed_directory, made_directory,
)  # fmt: skip
