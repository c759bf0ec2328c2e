"""Memory that processes share.

>>> import umf
>>> pool = umf.Pool.shared()
>>> block = pool.allocate(1 << 20)
>>> message = block.send_handle()     # 256 bytes: bytes(message)
>>> mapping = umf.open(message)       # in any process of this machine
"""

from umf._umf import (
    Block,
    ClosedError,
    DeviceError,
    Error,
    ForkError,
    Handle,
    HandleError,
    LimitError,
    LinkError,
    Mapping,
    NotSupportedError,
    OutOfMemoryError,
    PeerClosedError,
    PeerGoneError,
    PermissionError,
    Pool,
    ProducerGoneError,
    SettingsError,
    StaleError,
    TicketClaimedError,
    TimeoutError,
    TruncatedError,
    __version__,
    cancel,
    drain,
    in_transit,
    open,
)

__all__ = [
    "Block",
    "ClosedError",
    "DeviceError",
    "Error",
    "ForkError",
    "Handle",
    "HandleError",
    "LimitError",
    "LinkError",
    "Mapping",
    "NotSupportedError",
    "OutOfMemoryError",
    "PeerClosedError",
    "PeerGoneError",
    "PermissionError",
    "Pool",
    "ProducerGoneError",
    "SettingsError",
    "StaleError",
    "TicketClaimedError",
    "TimeoutError",
    "TruncatedError",
    "__version__",
    "cancel",
    "drain",
    "in_transit",
    "open",
]
