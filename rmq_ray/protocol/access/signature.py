"""Signatures of RocketMQ's ACL: what a client with an access key adds to each request.

    Signature = Base64(HMAC-SHA1(secretKey, values of the ext fields in the order of their names,
                                            without any separator and without Signature | body))

Names are ordered as Java orders strings: by UTF-16 units. Code, opaque, flag and remark are not
signed, and nothing makes a signature good for one time only: who reads the traffic may send a
request again (TLS keeps it unread).

Decides what is signed. Callers: the guard of servers. Pure.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Clients up to 4.9.3 add it without signing it, later ones sign it."""
KNOWN_CHARS_MAX = 1_024
"""Of all names of a request, so that nobody fills memory with what is remembered of them."""
Signed = bytes | bytearray | memoryview


def sign(
    fields: Mapping[str, str] | None, body: Signed | tuple[Signed, ...], secret_key: str
) -> str:
    """The signature of a request with these ext fields and this body."""
    found = fields or {}
    # as Java writes half a surrogate pair: "?"
    names = tuple(found)
    order = _known_order if len("".join(names)) <= KNOWN_CHARS_MAX else _in_order
    values = "".join([found[name] for name in order(names)]).encode("utf-8", "replace")
    signed = b"".join((values, *(body if isinstance(body, tuple) else (body,))))
    return b64encode(hmac.digest(secret_key.encode(), signed, "sha1")).decode()


def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """The signed ones of these names, as Java sorts them."""
    return tuple(sorted((name for name in names if name != SIGNATURE), key=_as_java))


_known_order = lru_cache(maxsize=1_024)(_in_order)


def matches(
    fields: Mapping[str, str] | None,
    body: Signed | tuple[Signed, ...],
    secret_key: str,
    signature: str,
) -> bool:
    """Whether this is the request's signature, in either form that clients give a query by unique
    key. Takes as long for a wrong one as for the right one.
    """
    given = signature.encode("utf-8", "replace")
    if hmac.compare_digest(sign(fields, body, secret_key).encode(), given):
        return True
    if not fields or UNIQUE_KEY_QUERY not in fields:
        return False
    without = {name: text for name, text in fields.items() if name != UNIQUE_KEY_QUERY}
    return hmac.compare_digest(sign(without, body, secret_key).encode(), given)


def _as_java(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
