"""A request that a handler refuses with a response code of its own choice; the broker's ``handle``
turns it into the answer.
"""

from __future__ import annotations

from rmq_ray.errors import RmqError


class Refused(RmqError):
    """``args[0]`` = remark, ``args[1]`` = response code."""

    @property
    def response_code(self) -> int:
        """The answer's code."""
        return int(str(self.args[1]))
