"""Installs umf in this interpreter if `UMFPY_INSTALL` is set: see `umf.install()`.

`umf.pth` imports this file at the start of each interpreter that has the variable. It is not in the
package, whose import loads the extension: most processes of a tree never use a segment.
"""

import os
import sys


class _Loader:
    """Loads `multiprocessing.shared_memory`, and lets it use segments of umf."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        from umf import _install

        _install.patch(module)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "multiprocessing.shared_memory":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder)
if "UMFPY_SESSION" not in os.environ:
    # The first process of a tree: its children belong to its session, even if it never uses a
    # segment itself.
    import umf.session  # noqa: F401
