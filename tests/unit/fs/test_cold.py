"""Cold stores: one contract for directories and object stores, and what is special about each."""

from __future__ import annotations

import errno
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.errors import ClosedError, ColdStoreError, OptionError, StorageError
from stratalog.fs import File, PosixFileSystem
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, MonitorFs

NAME = "000000000000002a/00000000000000001000.seg"
OTHER = "000000000000002a/00000000000000002000.seg"
FAR = "000000000000002b/00000000000000001000.seg"
MIB = 1 << 20


def _source(data: bytes, *faults: Fault) -> File:
    """A hot file with these bytes."""
    fs = FaultFs(FakeDisk())
    fs.makedirs("/hot")
    file = fs.open("/hot/file", "create")
    file.pwrite([data], 0)
    for fault in faults:
        fs.add(fault)
    return file


def _all(cold: ColdStore, name: str) -> bytes:
    size = cold.size(name)
    assert size is not None
    return cold.read(name, 0, size)


@pytest.fixture(params=["posix", "fake", "s3"])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ColdStore]:
    """An empty cold store of each kind; directories are watched by a monitor."""
    monitor = MonitorFs(FakeDisk() if request.param == "fake" else PosixFileSystem())
    location = "/cold" if request.param == "fake" else str(tmp_path / "cold")
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        prefix = uuid.uuid4().hex
        location = f"s3://me:secret@bucket/{prefix}?endpoint_override={endpoint}&scheme=http"
    store = open_cold(location, monitor)
    yield store
    store.close()
    monitor.check()


def test_what_was_put_can_be_read_in_ranges(cold: ColdStore) -> None:
    """Any range inside of the object, across the pieces it was copied in."""
    data = bytes(range(251)) * 12_000
    cold.put(NAME, _source(data))
    assert cold.size(NAME) == len(data)
    assert _all(cold, NAME) == data
    for position, length in [(0, 1), (MIB - 3, 7), (len(data) - 1, 1), (len(data), 0), (5, 0)]:
        assert cold.read(NAME, position, length) == data[position : position + length]


def test_an_empty_object_is_an_object(cold: ColdStore) -> None:
    """It is listed and has a size."""
    cold.put(NAME, _source(b""))
    assert (cold.size(NAME), cold.read(NAME, 0, 0), cold.names("")) == (0, b"", [NAME])


def test_put_leaves_an_object_as_it_is(cold: ColdStore) -> None:
    """Longer or shorter ones, and the same again, are not put there, and it says so.

    They were: of two stores that shared a place, one had the other's records.
    """
    assert cold.put(NAME, _source(b"first"))
    for data in (b"second one", b"3", b"first"):
        assert not cold.put(NAME, _source(data))
        assert _all(cold, NAME) == b"first"
    assert cold.names("") == [NAME]


def test_an_object_that_is_not_there_has_no_size_and_cannot_be_read(cold: ColdStore) -> None:
    """In an empty store and in one that holds something else."""
    for _ in range(2):
        assert cold.size(NAME) is None
        with pytest.raises(
            ColdStoreError, match=r"cannot read '.*' in .*: it is missing\. The hot"
        ):
            cold.read(NAME, 0, 1)
        cold.put(OTHER, _source(b"x"))


@pytest.mark.parametrize(("position", "length"), [(0, 4), (2, 2), (3, 1), (9, 1)])
def test_a_read_past_the_end_is_an_error(cold: ColdStore, position: int, length: int) -> None:
    """Fewer bytes than asked for are never returned."""
    cold.put(NAME, _source(b"abc"))
    with pytest.raises(ColdStoreError, match=f"{length} bytes at {position} .* has only 3"):
        cold.read(NAME, position, length)


def test_delete_removes_an_object_and_minds_nothing(cold: ColdStore) -> None:
    """Also one that is gone already, or never was, in a directory that never was."""
    cold.delete(FAR)
    for name in (NAME, OTHER):
        cold.put(name, _source(b"x"))
    cold.delete(NAME)
    cold.delete(NAME)
    assert cold.size(NAME) is None
    assert cold.names("") == [OTHER]
    cold.delete(OTHER)
    assert cold.names("") == []


def test_names_are_those_under_the_prefix_in_order(cold: ColdStore) -> None:
    """A directory, a part of a name, or everything; nothing where there is nothing."""
    for name in (FAR, OTHER, NAME):
        cold.put(name, _source(b"x"))
    assert cold.names("000000000000002a/") == [NAME, OTHER]
    assert cold.names("000000000000002a/00000000000000001") == [NAME]
    assert cold.names("000000000000002") == [NAME, OTHER, FAR]
    assert cold.names("") == [NAME, OTHER, FAR]
    assert cold.names("000000000000002c/") == cold.names("x") == []


def test_a_hot_file_that_fails_leaves_no_object(cold: ColdStore) -> None:
    """Half a copy is never seen, and the error does not blame the cold store."""
    source = _source(bytes(3 * MIB), Fault(operation="pread", call=3, error=errno.EIO))
    with pytest.raises(StorageError, match="/hot/file cannot be read") as caught:
        cold.put(NAME, source)
    assert not isinstance(caught.value, ColdStoreError)
    assert cold.names("") == []


def test_a_hot_file_that_shrinks_leaves_no_object(
    cold: ColdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealed file does not change: if it does, it is not copied."""
    source = _source(b"new")
    monkeypatch.setattr(source, "size", lambda: 5)
    with pytest.raises(StorageError, match="ended at 3 instead of 5"):
        cold.put(NAME, source)
    assert cold.size(NAME) is None


@pytest.mark.parametrize(
    "name", ["", "file", "../x", "a/..", "a/b/c", "/a", "a/", "a/b.tmp", "a//b"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(cold: ColdStore, name: str) -> None:
    """One directory and one file, nothing else."""
    calls: list[Callable[[], object]] = [
        lambda: cold.put(name, _source(b"x")),
        lambda: cold.read(name, 0, 1),
        lambda: cold.size(name),
        lambda: cold.delete(name),
    ]
    for call in calls:
        with pytest.raises(OptionError, match="directory/file"):
            call()


def test_a_closed_store_says_so(cold: ColdStore) -> None:
    """Closing twice is fine, using it after is not."""
    cold.close()
    cold.close()
    with pytest.raises(ClosedError, match="is closed"):
        cold.read(NAME, 0, 1)
    with pytest.raises(ClosedError, match="is closed"):
        cold.names("")


# Directories.


def test_a_crash_at_any_moment_of_put_leaves_all_or_nothing() -> None:
    """Every operation of a put, of one more, and of a delete, under many ways to lose what is
    unsynced.

    After the crash the same put succeeds, whatever was left.
    """
    new = b"n" * (MIB + 5)

    def run(disk: FakeDisk) -> int:
        """How many calls were acknowledged before the disk died."""
        done = 0
        try:
            monitor = MonitorFs(disk)
            cold = open_cold("/cold", monitor)
            for _ in range(2):
                cold.put(NAME, _source(new))
                done += 1
            cold.delete(NAME)
            done += 1
            monitor.check()
        except Crashed:
            pass
        return done

    whole = FakeDisk()
    assert run(whole) == 3
    seen = set()
    for crash_after in range(whole.operations + 1):
        disk = FakeDisk(crash_after=crash_after)
        done = run(disk)
        for seed in range(12):
            after = disk.crash(seed, "random" if seed else "drop")
            cold = open_cold("/cold", after)
            found = None if cold.size(NAME) is None else _all(cold, NAME)
            assert found in [(None, new), (new,), (None, new), (None,)][done], (crash_after, seed)
            assert cold.names("") == ([] if found is None else [NAME])
            seen.add((done, found and found[:1]))
            if seed < 2:
                cold.put(NAME, _source(new))
                assert _all(cold, NAME) == new
                assert [path for path in after.image() if path.endswith(".tmp")] == []
    assert seen == {(0, None), (0, b"n"), (1, b"n"), (2, b"n"), (2, None), (3, None)}


def test_a_deleted_object_does_not_come_back() -> None:
    """Once `delete` returned, no crash undoes it."""
    disk = FakeDisk()
    cold = open_cold("/cold", disk)
    cold.put(NAME, _source(b"x"))
    cold.delete(NAME)
    assert all(open_cold("/cold", disk.crash(seed)).size(NAME) is None for seed in range(50))


@pytest.mark.parametrize(
    "operation", ["makedirs", "unlink", "create", "pwrite", "fdatasync", "link", "sync_dir"]
)
def test_a_disk_that_fails_during_put_is_a_cold_store_error(operation: str) -> None:
    """The object is there or not, nothing temporary stays, and the next put works."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    monitor = MonitorFs(faults)
    cold = open_cold("/cold", monitor)
    faults.add(Fault(operation=operation, error=errno.ENOSPC))
    with pytest.raises(
        ColdStoreError, match=r"cannot put '.*' in the cold store /cold: .*No space"
    ):
        cold.put(NAME, _source(b"new"))
    assert cold.size(NAME) == (3 if operation == "sync_dir" else None)
    assert list(disk.image()) == ([f"/cold/{NAME}"] if operation == "sync_dir" else [])
    assert cold.put(NAME, _source(b"new")) == (operation != "sync_dir")
    assert _all(cold, NAME) == b"new"
    monitor.check()


def test_a_disk_without_links_has_objects_renamed() -> None:
    """Some file systems have none: an object that is there stays there, too."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    cold = open_cold("/cold", faults)
    faults.add(Fault(operation="link", error=errno.EPERM, always=True))
    assert cold.put(NAME, _source(b"new"))
    assert not cold.put(NAME, _source(b"newer"))
    assert _all(cold, NAME) == b"new"
    assert list(disk.image()) == [f"/cold/{NAME}"]


@pytest.mark.parametrize(
    ("operation", "what", "call"),
    [
        ("pread", "read", lambda cold: cold.read(NAME, 0, 1)),
        ("size", "look for", lambda cold: cold.size(NAME)),
        ("unlink", "delete", lambda cold: cold.delete(NAME)),
        ("listdir", "list", lambda cold: cold.names("000000000000002a/")),
    ],
)
def test_a_disk_that_fails_is_a_cold_store_error(
    operation: str, what: str, call: Callable[[ColdStore], object]
) -> None:
    """The message says what was tried, why it failed and what goes on regardless."""
    faults = FaultFs(FakeDisk())
    cold = open_cold("/cold", faults)
    cold.put(NAME, _source(b"x"))
    faults.add(Fault(operation=operation))
    with pytest.raises(
        ColdStoreError, match=rf"cannot {what} .*Input/output.*hot part .* works on"
    ):
        call(cold)


def test_what_is_not_ours_is_not_listed(tmp_path: Path) -> None:
    """Temporary files of a crash, and foreign files in the directory."""
    cold = open_cold(str(tmp_path), PosixFileSystem())
    cold.put(NAME, _source(b"x"))
    (tmp_path / f"{OTHER}.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "lost+found").mkdir()
    assert cold.names("") == cold.names("000000000000002a/") == [NAME]
    cold.delete(OTHER)
    assert not (tmp_path / f"{OTHER}.tmp").exists()


def test_a_directory_is_given_as_a_path_or_as_a_url(tmp_path: Path) -> None:
    """With percent signs for what a URL cannot hold; it is made by the first put, not before."""
    path = tmp_path / "a cold place"
    one = open_cold(str(path), PosixFileSystem())
    two = open_cold(f"file://{tmp_path}/a%20cold%20place", PosixFileSystem())
    assert one.location == two.location == str(path)
    assert not path.exists()
    one.put(NAME, _source(b"x"))
    assert two.names("") == [NAME]


# Where it is.


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "is empty: give a directory"),
        ("  ", "is empty: give a directory"),
        ("ftp://me:hunter2@host/x", "no cold store is known for ftp:// URLs: use a directory"),
        ("s3:bucket/x", "starts with s3://"),
        ("file:/tmp", "starts with file://"),
        ("file://elsewhere/x", "file:///path"),
        ("s3://", "names no bucket"),
        ("s3://[bucket/x", "is not a URL"),
        ("s3://me:hunter2/x@bucket/prefix", "slashes in credentials as %2F"),
        ("s3://me:hunter2@bucket/x?regoin=here", "option 'regoin' .* endpoint_override"),
        ("s3://bucket/x?skip_signature=maybe", 'is refused: .*"maybe" as boolean'),
        ("s3://bucket/x?allow_http=maybe", 'is refused: .*"maybe" as boolean'),
        ("s3://bucket/x?timeout=9s", "option 'timeout' that is not known"),
        ("s3://bucket/a//b", "is refused: .*empty path segment"),
        ("s3://me@bucket/x", "before the @: only s3:// takes key:secret"),
        ("s3://bucket/x?endpoint=http://me:hunter2@host", "endpoint .* holds an @"),
        ("gs://bucket/x?colour=red", "option 'colour' .*: gs:// takes .*service_account"),
        ("gs://bucket/x?secret=hunter2", "option 'secret' .* from the environment"),
        ("gs://me:hunter2@bucket/x", "before the @: only s3:// takes key:secret"),
        ("gs://bucket/x?service_account=/nowhere", "is refused: .*/nowhere"),
        ("az://container/x", "is refused: .*Account must be specified"),
        ("az://container/x?account_key=hunter2", "option 'account_key' .*: az:// takes"),
        ("abfss://me:hunter2@host/c/x", "before the @: only s3:// takes key:secret"),
        ("abfss://container@elsewhere/x", "is refused: .*did not match"),
        ("wasbs://container@host/x", "no cold store is known for wasbs://.* s3://, gs://, az://"),
    ],
)
def test_a_location_that_cannot_be_is_refused_at_once(
    location: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message helps, and shows no password."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(OptionError, match=message) as caught:
        open_cold(location, FakeDisk())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", ["posix", "fake"])
def test_a_location_that_is_a_file_is_refused(kind: str, tmp_path: Path) -> None:
    """A cold store is a directory."""
    fs = PosixFileSystem() if kind == "posix" else FakeDisk()
    root = str(tmp_path)
    fs.makedirs(root)
    fs.open(f"{root}/file", "create").close()
    with pytest.raises(OptionError, match="there is a file of that name"):
        open_cold(f"{root}/file", fs)


def test_a_directory_that_cannot_be_looked_at_is_no_reason_not_to_open() -> None:
    """A disk that is not there now may be there later; who reads is told."""
    faults = FaultFs(FakeDisk(), [Fault(operation="listdir"), Fault(operation="open")])
    cold = open_cold("/cold", faults)
    with pytest.raises(ColdStoreError, match="Input/output"):
        cold.read(NAME, 0, 1)


@pytest.mark.slow
def test_a_directory_does_not_load_a_client() -> None:
    """Only an object store pays for it; nor does the package load pyarrow for a directory."""
    code = (
        "import sys; from stratalog.fs.cold import *; from stratalog.fs import PosixFileSystem\n"
        "open_cold('/nowhere', PosixFileSystem()); sys.exit(bool({'obstore', 'pyarrow'} & "
        "{*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_an_object_store_does_not_load_pyarrow() -> None:
    """Its client needs nothing else."""
    code = (
        "import sys; from stratalog.fs.cold import *; from stratalog.fs import PosixFileSystem\n"
        "open_cold('s3://bucket', PosixFileSystem()); sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "abfss"])
def test_without_the_client_an_object_store_says_what_to_install(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra; directories do without."""
    monkeypatch.delitem(sys.modules, "stratalog.fs.objects", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(OptionError, match=r"needs obstore: pip install 'stratalog\[cold\]'"):
        open_cold(f"{scheme}://bucket/x", FakeDisk())
    open_cold("/cold", FakeDisk())
