"""Messages between two processes of one machine, and memory that is handed over.

>>> from umf import link
>>> endpoint = link.bind()
>>> address = endpoint.address            # text, for the other process
>>> with endpoint.accept() as peer:       # doctest: +SKIP
...     print(peer.recv())

The other process:

>>> with link.connect(address) as peer:   # doctest: +SKIP
...     peer.send(b"hello")
"""

from umf._umf import Endpoint, Link, Loan, View, bind, connect

__all__ = ["Endpoint", "Link", "Loan", "View", "bind", "connect"]
