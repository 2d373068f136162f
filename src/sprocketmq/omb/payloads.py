"""The bodies and keys of a workload."""

import random
from pathlib import Path

from sprocketmq.errors import ConfigError
from sprocketmq.omb.plan import STAMP_BYTES
from sprocketmq.omb.workload import KEYS, MAX_POOL_BYTES, MIXED_POOL, Workload

SEED = 20_231_107


def payloads_of(workload: Workload, directory: Path) -> tuple[bytes, ...]:
    """Return the bodies that messages take in turns: one of random bytes or of a file in ``directory``, or a pool.

    Raises ConfigError for a file that cannot be read, or whose length is not ``messageSize`` (as OMB does).
    """
    if workload.message_size_max is not None or workload.use_randomized_payloads:
        return _pool(workload)
    if workload.payload_file is None:
        return (random.Random(SEED).randbytes(workload.message_size),)
    path = directory / workload.payload_file
    try:
        body = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"payloadFile {path}: {e.strerror}: correct the path, or leave payloadFile out for random bytes") from None
    if len(body) != workload.message_size:
        raise ConfigError(f"payloadFile {path} has {len(body):,} bytes, and messageSize is {workload.message_size:,}: make them equal")
    return (body,)


def _pool(workload: Workload) -> tuple[bytes, ...]:
    """Return bodies whose first part is random, the same in every run."""
    chance = random.Random(SEED)
    count = workload.randomized_payload_pool_size if workload.use_randomized_payloads else MIXED_POOL
    count = max(1, min(count, int(MAX_POOL_BYTES / workload.mean_bytes)))
    ratio = workload.random_bytes_ratio if workload.use_randomized_payloads else 0.0
    least, most = workload.message_size, workload.message_size_max or workload.message_size
    pool = []
    for _ in range(count):
        size = chance.randint(least, most)
        noise = min(size, STAMP_BYTES + int((size - STAMP_BYTES) * ratio))
        pool.append(chance.randbytes(noise) + bytes(size - noise))
    return tuple(pool)


def keys_of(workload: Workload) -> tuple[str, ...]:
    """Return the keys that messages take in turns: none, 10,000 in their order, or 10,000 in a random one."""
    if workload.key_distributor == "NO_KEY":
        return ()
    keys = [f"key-{number:05}" for number in range(KEYS)]
    if workload.key_distributor == "RANDOM_NANO":
        random.Random(SEED).shuffle(keys)
    return tuple(keys)
