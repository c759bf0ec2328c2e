"""Ranks of a job on one machine: messages, and collectives on arrays.

>>> from umf import comm
>>> with comm.join("job", rank=0, size=1) as ranks:
...     ranks.allreduce(bytearray(4), "max")
bytearray(b'\\x00\\x00\\x00\\x00')
"""

from umf._umf import Communicator, join

__all__ = ["Communicator", "join"]
