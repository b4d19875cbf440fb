"""A pool of workers in threads: retries with backoff, and dead letters for what never works."""

import tempfile
import threading

import stratalog


def work(jobs: stratalog.Queue, done: list[bytes | None]) -> None:
    """Take messages until none comes for a while."""
    while True:
        try:
            with jobs.get(timeout=0.5) as message:
                if message.value == b"broken" or message.delivery_count < 2:
                    raise RuntimeError("it did not work this time")
                done.append(message.value)
        except RuntimeError:
            continue  # the message was given back, with the error as the reason
        except stratalog.QueueEmptyError:
            return


with tempfile.TemporaryDirectory() as directory, stratalog.open(directory) as store:
    jobs = store.queue("jobs", lease=10.0, max_deliveries=3, backoff=0.01)
    for number in range(20):
        jobs.put(b"job %d" % number, priority=number % 3)
    jobs.put(b"broken")

    done: list[bytes | None] = []
    workers = [threading.Thread(target=work, args=(jobs, done)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    print("done:", len(done))
    for letter in jobs.dead.read():
        print("dead:", letter.value, letter.headers["dlq.reason"])
    assert len(done) == 20
