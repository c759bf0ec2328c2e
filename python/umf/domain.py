"""Memory that belongs to a named set of processes, and outlives the process that made it.

>>> from umf.domain import Domain
>>> domain = Domain("models")             # in each process of this user
>>> weights = domain.attach("tiny", 1 << 20)   # the same memory in all of them, zeroed at first
>>> view = memoryview(weights)

A domain and its objects end with their last process; nothing is left in a file system. A forked
child is in no domain until it joins: memory of its parent stays valid in it. A domain has a thread
in each of its processes, so that CPython warns of a fork from version 3.12 on: let each child join.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from umf import _umf
from umf._umf import DomainObject

__all__ = ["Domain", "DomainObject", "ObjectInfo"]


class ObjectInfo(NamedTuple):
    """An object of a domain, as `Domain.objects` lists it."""

    id: int
    kind: int
    size: int
    processes: int


def _kind(name: str) -> int:
    """Returns the 32 bits by which a domain knows an object with this name. Never 0."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") or 1


class Domain:
    """A named set of processes of one user, and their common objects.

    `timeout` is the longest that a call waits for other processes, in seconds.
    """

    def __init__(self, name: str, *, timeout: float = 2.0) -> None:
        self._domain = _umf.Domain(name, timeout=timeout)

    @property
    def name(self) -> str:
        """The name of the domain."""
        return self._domain.name

    def attach(self, name: str, size: int) -> DomainObject:
        """Returns the object with this name, or creates one of `size` zeroed bytes.

        Processes that call it at the same time get the same object. Raises `umf.DomainError` if the
        object exists with less than `size` bytes. Names are compared by a hash of 32 bits: check
        the content where two of many names must not be taken for one.
        """
        found = self._domain.find_or_create(size, _kind(name))
        if len(found) < size:
            raise _umf.DomainError(
                f"cannot attach to {name!r} in domain {self.name!r}: it has {len(found)} bytes, "
                f"not {size}; use its size, or another name"
            )
        return found

    def lookup(self, name: str) -> DomainObject:
        """Returns the object with this name. Raises `umf.DomainError` if there is none."""
        kind = _kind(name)
        for info in self.objects():
            if info.kind == kind:
                return self._domain.register(info.id, kind)
        raise _umf.DomainError(
            f"domain {self.name!r} has no object {name!r}: no running process has attached to it; "
            "attach with a size to create it"
        )

    def create(self, size: int) -> DomainObject:
        """Creates an object without a name. Other processes open it by its `id`."""
        return self._domain.create(size)

    def register(self, id: int) -> DomainObject:
        """Opens the object without a name that has this id."""
        return self._domain.register(id)

    def objects(self) -> list[ObjectInfo]:
        """Lists all objects that a process has."""
        return [ObjectInfo(*info) for info in self._domain.objects()]

    def __repr__(self) -> str:
        return f"<umf.domain.Domain {self.name!r}>"
