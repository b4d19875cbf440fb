"""Append, read, look up a time, follow: the first steps with Stratalog."""

import tempfile
import time

import stratalog
from stratalog import Record

with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
    orders = store.topic("orders")  # created on first use; an append returns once it is on disk
    offset = orders.append(b'{"total": 30}', key=b"ada", tag="order-7", headers={"via": b"web"})
    print("appended at offset", offset)

    noon = time.time()
    first, last = orders.append_many([b'{"total": 12}', Record(value=b'{"total": 99}', key=b"bob")])
    print("one atomic batch at offsets", first, "to", last)

    for record in orders.read(start=0):
        print("read:", record)
    print("first offset since noon:", orders.offset_at(noon))
    print("as Arrow:", orders.read_arrow(columns=["offset", "key", "value"]).read_all().to_pydict())
    for record in orders.watch(start=last, timeout=0.1):  # without a timeout, waits for more
        print("watched:", record)
