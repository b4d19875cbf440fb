"""Stand-ins for the disk and the clock, for our tests and for those of programs built on us.

- `FakeDisk`: a disk in memory that can crash after any operation and lose what was not synced.
- `FaultFs`: the error of your choice at the call of your choice.
- `MonitorFs`: raises when something is promised, renamed or overwritten in an unsafe order.
- `FaultyCold`: a cold store that fails, hangs or disappears when told to.
- `ManualClock`: time that passes when told to.

The file systems wrap one another: `MonitorFs(FaultFs(FakeDisk()))` sees everything.
"""

from __future__ import annotations

from stratalog.testing.clock import ManualClock
from stratalog.testing.cold import FaultyCold
from stratalog.testing.disk import Crashed, FakeDisk
from stratalog.testing.faults import Fault, FaultFs
from stratalog.testing.monitor import MonitorFs, OrderingViolation

__all__ = [
    "Crashed",
    "FakeDisk",
    "Fault",
    "FaultFs",
    "FaultyCold",
    "ManualClock",
    "MonitorFs",
    "OrderingViolation",
]
