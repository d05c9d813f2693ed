"""NumPy for those who may never need it: ``import rmq_ray.arrays as np`` has all of its names, and
loads it when the first of them is used.

What handles many messages at once is NumPy's, so consumers and servers load it at their start. A
producer of single messages need not: NumPy would be a third of its start. Decides nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

Array: TypeAlias = "ndarray[Any, Any]"

if TYPE_CHECKING:
    from numpy import *  # noqa: F403
    from numpy import ndarray
else:

    def __getattr__(name: str) -> Any:
        value = globals()[name] = getattr(import_module("numpy"), name)
        return value
