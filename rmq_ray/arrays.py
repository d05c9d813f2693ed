"""NumPy for those who may never need it: ``import rmq_ray.arrays as np`` has all of its names, and
loads it when the first of them is used.

What handles many messages at once is NumPy's, so consumers and servers load it at their start. A
producer of single messages need not: NumPy would be a third of its start. Decides from how many
on it pays.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

Array: TypeAlias = "ndarray[Any, Any]"
MANY = 16
"""From so many on NumPy's fixed cost is less than a loop's: of whoever has both ways."""

if TYPE_CHECKING:
    from numpy import *  # noqa: F403
    from numpy import ndarray
else:
    _loading = threading.RLock()
    # a child that was forked in the midst of it would have a half of NumPy for ever
    os.register_at_fork(
        before=_loading.acquire,
        after_in_parent=_loading.release,
        after_in_child=_loading.release,
    )

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):  # asked for by those who look what kind of module this is
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _loading:
            value = globals()[name] = getattr(import_module("numpy"), name)
        return value
