"""An outbox: an order and the message about it are written at once, and sent at least once."""

import tempfile

import stratalog

sent: dict[bytes | None, int] = {}


def send(delivery: stratalog.Delivery) -> None:
    """Tell another system. It may be told twice, and knows that by the key."""
    sent[delivery.key] = sent.get(delivery.key, 0) + 1


with tempfile.TemporaryDirectory() as directory:
    with stratalog.open(directory) as store:
        for number in range(3):
            with store.batch() as batch:  # both or neither, whatever happens
                batch.topic("orders").append(b"order %d" % number, key=b"%d" % number)
                batch.topic("outbox").append(b"order %d was taken" % number, key=b"%d" % number)
        relay = store.topic("outbox").group("relay")
        for delivery in relay.poll("relay-1", limit=2, lease=0.01):
            send(delivery)
        # The process dies here: nothing was acknowledged.

    with stratalog.open(directory) as store:
        relay = store.topic("outbox").group("relay")
        while relay.lag:
            for delivery in relay.poll("relay-2", timeout=1.0):
                send(delivery)
                relay.ack([delivery])
    print("sent:", sent)
    assert set(sent) == {b"0", b"1", b"2"}
