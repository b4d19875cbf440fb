"""An outbox: what a service decides and what it has to tell others are one.

A service that writes an order and then sends a mail may die in between, and nothing ever sends the
mail; one that sends first may mail about an order that does not exist. Here the order and the mail
that is due are written in one batch. Another process sends the mails, at its own pace, and what it
has sent is written down in one batch with the acknowledgement.
"""

from __future__ import annotations

import tempfile

import stratalog
from stratalog import Store


def place_order(store: Store, number: int) -> int:
    """Take an order: it and its mail are there, or neither is."""
    with store.batch() as batch:
        order = batch.topic("orders").append(b"order %d" % number, key=b"%d" % number)
        batch.queue("outbox").put(b"thank you for order %d" % number, dedup_id=f"mail-{number}")
    return order.offset


def send_mails(store: Store) -> int:
    """Send what is due; each is written down as sent when, and only when, it is done with."""
    outbox = store.queue("outbox")
    sent = 0
    while message := outbox.get_nowait():
        print("sending:", (message.value or b"").decode())
        with store.batch() as batch:
            batch.topic("sent").append(message.value)
            batch.queue("outbox").ack(message)
        sent += 1
    return sent


def main() -> None:
    """Orders come in, one of them is refused half-way, mails go out."""
    with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
        for number in range(3):
            place_order(store, number)
        try:
            with store.batch() as batch:
                batch.topic("orders").append(b"order 3")
                batch.queue("outbox").put(b"thank you for order 3")
                raise ValueError("the card was refused")
        except ValueError as error:
            print("no order, and no mail:", error)
        place_order(store, 0)  # the client tried again: an order more, but no second mail
        print(f"{send_mails(store)} mails for {len(store.topic('orders'))} orders")


if __name__ == "__main__":
    main()
