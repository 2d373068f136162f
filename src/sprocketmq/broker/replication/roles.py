"""The role of a broker: what its configuration asks for, and what it is at the moment."""

from enum import StrEnum

MASTER_ID = 0


class Role(StrEnum):
    """What a broker is configured as, under the reference's names."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"
