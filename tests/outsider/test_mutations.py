"""Files of a store are mutated at random: nothing wrong is served, nothing is lost in silence.

`STRATALOG_MUTATIONS` is how many mutations are tried (300 unless it says otherwise), and
`STRATALOG_MUTATION_SEED` the first seed. A failure prints the seed, what was done to which files,
and every promise that was not kept; `STRATALOG_MUTATIONS=1 STRATALOG_MUTATION_SEED=<seed>` does
it again. With `-s`, a table of kinds and outcomes is printed.

Held for every mutation, single or in a group, before and after `repair`: no record is wrong, every
acknowledged record is read, in a gap, or named by a typed error or report, no error is untyped,
nothing hangs, `verify`, opening and `repair` agree, the store takes appends after it, and a second
repair finds nothing to do.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.outsider.judge import Verdict, judge
from tests.outsider.mutations import CATALOGUE, Mutation
from tests.outsider.stores import Scene, build

MUTATIONS = int(os.environ.get("STRATALOG_MUTATIONS", "300"))
SEED = int(os.environ.get("STRATALOG_MUTATION_SEED", "0"))
SCENES = ("closed", "compact", "killed")
PARTS = 4
"""Tests that share the mutations, so that they can run side by side."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """One store of each kind, made once."""
    made = []
    for name in SCENES:
        base = tmp_path_factory.mktemp(name)
        made.append(build(base, name, 1))
    return made


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every damaged file is worth a warning, and there are thousands."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def mutate(rng: Random, root: Path, scene: Scene, chosen: Mutation | None = None) -> list[str]:
    """Do one thing to a store, or a few; says what."""
    done: list[str] = []
    wanted = 1 if chosen is not None else rng.choice((1, 1, 1, 2, 3))
    while len(done) < wanted:
        mutation = chosen or rng.choice(CATALOGUE)
        said = mutation(rng, root, scene)
        if said is not None:
            done.append(f"{mutation.__name__}: {said}")
    return done


def play(seed: int, scenes: list[Scene], base: Path) -> tuple[str, Verdict, list[str]]:
    """One mutation of a copy of a store; returns its kind, what came of it, and what was done."""
    rng = Random(seed)
    scene = rng.choice(scenes)
    root = base / f"store-{seed}"
    shutil.copytree(scene.root, root)
    done = mutate(rng, root, scene)
    verdict = judge(root, scene)
    shutil.rmtree(root)
    kind = done[0].partition(":")[0] if len(done) == 1 else "a group of them"
    return kind, verdict, [scene.name, *done]


def show(table: Counter[tuple[str, str]]) -> str:
    """Kinds of mutations, what came of them, and how often."""
    rows = [f"{kind:20} {outcome:40} {count}" for (kind, outcome), count in sorted(table.items())]
    return "\n".join(rows)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(max(600, MUTATIONS * 2))
def test_mutated_stores_serve_nothing_wrong_and_lose_nothing_in_silence(
    part: int, scenes: list[Scene], tmp_path: Path
) -> None:
    """Whatever is done to their files, before and after a repair."""
    table: Counter[tuple[str, str]] = Counter()
    broken: list[str] = []
    for seed in range(SEED + part, SEED + MUTATIONS, PARTS):
        kind, verdict, done = play(seed, scenes, tmp_path)
        table[kind, verdict.outcome] += 1
        if verdict.violations:
            broken.append("\n  ".join([f"seed {seed}: {done}", *verdict.violations]))
    print(show(table))
    assert not broken, "\n".join([f"{len(broken)} mutations broke a promise", *broken])


@pytest.mark.parametrize("seed", [779, 1678, 2436, 3843, 700190])
def test_mutations_that_once_broke_a_promise_are_withstood(
    seed: int, scenes: list[Scene], tmp_path: Path
) -> None:
    """Groups of three files and more: lost after a delete, of another store, doubled."""
    _, verdict, done = play(seed, scenes, tmp_path)
    assert not verdict.violations, (done, verdict.violations)


@pytest.mark.parametrize("mutation", CATALOGUE, ids=lambda mutation: mutation.__name__)
@pytest.mark.parametrize("name", SCENES)
def test_every_kind_of_mutation_is_withstood_alone(
    mutation: Mutation, name: str, scenes: list[Scene], tmp_path: Path
) -> None:
    """Two of each, on every kind of store."""
    scene = scenes[SCENES.index(name)]
    for seed in range(2):
        root = tmp_path / f"store-{seed}"
        shutil.copytree(scene.root, root)
        done = mutate(Random(seed), root, scene, mutation)
        verdict = judge(root, scene)
        assert not verdict.violations, (seed, done, verdict.violations)


def test_a_store_that_nothing_happened_to_is_found_whole(
    scenes: list[Scene], tmp_path: Path
) -> None:
    """Or every check above would be worth nothing."""
    for scene in scenes:
        root = tmp_path / scene.name
        shutil.copytree(scene.root, root)
        verdict = judge(root, scene)
        assert (verdict.outcome, verdict.violations) == ("no harm", [])
