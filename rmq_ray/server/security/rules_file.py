"""The accounts of a cluster in a file that nobody but its owner may read: the controller's, and the
copy of each broker and name server.

    {"globalWhiteRemoteAddresses": [..], "accounts": [..], "dataVersion": [{"counter": 7, ..}]}
    8a1f02c3

One line of JSON as ``plain_acl.yml`` has its members, one with its CRC-32 in hex. Decides the form.
Does not decide which rules hold. Invariants: mode 0600 before the first secret is in it; whenever
the power fails, the file is its old or its new content as a whole.
"""

from __future__ import annotations

import json
import zlib

from rmq_ray.errors import AccessRulesInvalid, StoreCorrupt
from rmq_ray.files import FileSystem
from rmq_ray.protocol.access.rules import AccessRules, from_plain_acl, to_plain_acl

ACCESS_FILE = "access.rules"
"""Its name in the directory of a controller, broker or name server."""


class RulesFile:
    """One file; its directory must be there."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self.path = path
        self._files = files

    def read(self) -> AccessRules | None:
        """What was written last; None before the first time. ``StoreCorrupt`` where it cannot be
        read.
        """
        if not self._files.exists(self.path):
            return None
        text, _, crc = self._files.read_whole(self.path).partition(b"\n")
        try:
            if int(crc, 16) != zlib.crc32(text):
                raise ValueError("its CRC does not fit")
            return from_plain_acl(json.loads(text), self.path)
        except (ValueError, AccessRulesInvalid) as error:
            raise StoreCorrupt(
                f"{self.path} cannot be read: {error}; remove it: the accounts come back from "
                f"another member of the cluster",
                self.path,
                0,
            ) from None

    def write(self, rules: AccessRules) -> None:
        """Durable on return."""
        text = json.dumps(to_plain_acl(rules, secrets=True)).encode()
        self._files.write_private(self.path, text + b"\n%08x\n" % zlib.crc32(text))
