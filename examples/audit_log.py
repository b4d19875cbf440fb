"""An audit log: who did what and when, asked by time and person, with a person's right to go."""

import tempfile
from datetime import UTC, datetime, timedelta

import stratalog

MONDAY = datetime(2026, 11, 16, 9, tzinfo=UTC)
PEOPLE = ["ada", "grace", "edsger"]


def note(log: stratalog.Topic, who: str, what: str, when: datetime) -> int:
    """Write an entry down; it is on the disk when this returns."""
    return log.append(what.encode(), key=who.encode(), tag=what.split()[0], timestamp=when)


def show(title: str, records: list[stratalog.Record]) -> None:
    """Print entries as an auditor reads them."""
    print(f"{title}:")
    for record in records:
        who, what = (record.key or b"").decode(), (record.value or b"").decode()
        print(f"  {record.time:%a %H:%M}  {who:8}{what}")


with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
    log = store.create_topic("audit", compression="zstd", retention_seconds=10 * 365 * 86400.0)
    for hour in range(72):
        who = PEOPLE[hour % 3]
        what = "login from 10.0.0.7" if hour % 4 else f"delete invoice {hour}"
        note(log, who, what, MONDAY + timedelta(hours=hour))

    # What happened on Tuesday before noon?
    tuesday = MONDAY.replace(hour=0) + timedelta(days=1)
    morning = list(log.records(since=tuesday, until=tuesday + timedelta(hours=12)))
    show("Tuesday morning", morning)
    assert len(morning) == 12

    # The last three invoices that Grace deleted, newest first.
    last = list(log.records(key=b"grace", tag="delete", reverse=True, limit=3))
    show("Grace, newest first", last)
    assert len(last) == 3

    # Ada leaves, and asks for her data to go. What is deleted never comes back.
    print(log.delete(key=b"ada"), "entries of ada deleted")
    report = store.compact(purge=True)  # from every file of the store, too
    assert report.purge is not None
    print(report.purge.records_removed, "removed from files; to be seen to elsewhere:")
    print(*report.purge.unknown, sep="\n")
    assert not list(log.records(key=b"ada", gaps="skip"))
    assert len(list(log.records(gaps="skip"))) == 48
