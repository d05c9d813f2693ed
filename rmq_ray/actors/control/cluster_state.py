"""Where in its life a cluster is, as its controller says. Apart from the controller, which brings
the whole server with it: who only asks does not load that.
"""

from __future__ import annotations

from enum import Enum


class ClusterState(Enum):
    """Where in its life the cluster is."""

    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    STOPPING = "stopping"
