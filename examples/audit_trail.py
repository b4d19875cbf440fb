"""An audit trail: everything that several topics say about money, in one topic that only grows.

The services that append know nothing of the audit. Routes collect what is tagged `money.*` from
their topics, each record once, while they go on; the trail has a retention of its own, and keeps
records that the services delete. A second route keeps what one customer has done by itself.
"""

from __future__ import annotations

import tempfile

import stratalog
from stratalog import Record, Store


def do_business(store: Store) -> None:
    """Append as services do."""
    orders, refunds = store.topic("orders"), store.topic("refunds")
    for number in range(3):
        customer = b"customer-%d" % (number % 2)
        orders.append(b"order %d: a book" % number, key=customer, tag="basket")
        orders.append(b"order %d: 12.50 paid" % number, key=customer, tag="money.in")
    refunds.append(b"order 1: 12.50 paid back", key=b"customer-1", tag="money.out")


def tidy_up(store: Store) -> None:
    """Delete what a service no longer needs; the trail keeps it."""
    store.topic("orders").delete(before=store.topic("orders").next_offset)


def show(store: Store, name: str) -> None:
    """Print a topic as an auditor reads it."""
    print(f"{name}:")
    for item in store.topic(name).read():
        if isinstance(item, Record):
            key, value = (item.key or b"").decode(), (item.value or b"").decode()
            print(f"  {item.offset}  {key}  {item.tag}  {value}")


def main() -> None:
    """Two sources, one trail, and an extract of it."""
    with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
        store.create_topic("audit", compression="zstd")
        routes = [
            store.route("orders", "audit", tag_glob="money.*"),
            store.route("refunds", "audit", tag_glob="money.*"),
            store.route("audit", "audit-customer-1", key_prefix="customer-1"),
        ]
        do_business(store)
        for route in routes:
            route.wait(timeout=10.0)
        tidy_up(store)
        show(store, "audit")
        show(store, "audit-customer-1")
        for route in store.routes():
            stats = route.stats()
            print(
                f"{route.source} -> {route.destination}: {stats.forwarded} records, lag {stats.lag}"
            )


if __name__ == "__main__":
    main()
