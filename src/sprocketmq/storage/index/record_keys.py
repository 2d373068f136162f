"""The keys of a record and their hashes, one record at a time. ``key_hashing`` does the same for many records with numpy.

A record has the keys ``TOPIC#UNIQ_KEY``, ``TOPIC#word`` for each word of its KEYS, and ``TOPIC#T#TAG``, in this order. Their hash is Java's
string hash without its sign. Records of rolled back transactions have no keys: their transaction bits are ``ROLLED_BACK``.
"""

from sprocketmq.protocol.codes import SYSFLAG_TRANSACTION_MASK
from sprocketmq.protocol.hashing import java_hash
from sprocketmq.protocol.properties import decode_properties

ROLLED_BACK = SYSFLAG_TRANSACTION_MASK


def key_hash(key: str) -> int:
    """Return the hash of a key string as the index stores it, from 0 to 2^31 - 1."""
    magnitude = abs(java_hash(key))
    return 0 if magnitude >> 31 else magnitude


def key_string(topic: str, key: str, *, tag: bool = False) -> str:
    """Return the key string of a key, a unique key or, with ``tag``, a tag of a topic."""
    return f"{topic}#T#{key}" if tag else f"{topic}#{key}"


def keys_in(properties: bytes) -> tuple[str | None, list[str], str | None]:
    """Return unique key, words of KEYS and tag of a record; invalid UTF-8 decodes to U+FFFD."""
    pairs = decode_properties(properties.decode("utf-8", "replace").encode())
    words = pairs.get("KEYS")
    return pairs.get("UNIQ_KEY"), [word for word in words.split(" ") if word] if words else [], pairs.get("TAGS")


def record_keys(topic: str, properties: bytes) -> list[str]:
    """Return the key strings of a record, in the order of its entries."""
    unique, words, tag = keys_in(properties)
    keys = [key_string(topic, key) for key in ([unique, *words] if unique else words)]
    if tag:
        keys.append(key_string(topic, tag, tag=True))
    return keys
