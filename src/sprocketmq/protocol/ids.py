r"""The two message ids: the client's (UNIQ_KEY) and the broker's (offset id); both are upper-case hex (docs/internals/messages.md#ids).

::

    client id                                                broker id
    0        4|16  +2      +4            +4            +2    0        4|16    +4          +8
    +--------+-----+-------+-------------+-------------+     +--------+-------+-----------+
    | IP     | pid | salt  | ms in month | counter     |     | IP     | port  | physical  |
    | (4|16) | u16 | u32   | u32         | u16         |     | (4|16) | i32   | offset i64|
    +--------+-----+-------+-------------+-------------+     +--------+-------+-----------+
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_address
from itertools import count, islice
from struct import Struct
from typing import overload

from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import LocalProtocolError, RemoteProtocolError

_OFFSET_TAIL = Struct(">iq")
_UNIQ_TAIL = Struct(">HIIH")

# The longest month; a larger span in an id was not written by these rules.
_MAX_SPAN_MS = 31 * 86_400_000 + 3_600_000
_HEX2 = [f"{n:02X}" for n in range(256)]
# As a client id ends in a property string: its last byte, and what separates it from the next property.
_ENDS = [f"{n:02X}\x02".encode() for n in range(256)]


def month_start_ms(at_ms: int) -> int:
    """Return the wall-clock milliseconds at which the local month of ``at_ms`` began."""
    local = time.localtime(at_ms // 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000


class MessageIds(Sequence[str]):
    """Client ids made together, in order. Most are only ever sent: each is made into text when it is asked for."""

    __slots__ = ("_length", "_runs")

    def __init__(self, amount: int, runs: list[tuple[str, int, int]]) -> None:
        """Make a sequence of ``amount`` ids.

        A run is a series of ids that differ in their last byte only: their common prefix, the last byte of the first, and their number.
        """
        self._runs = runs
        self._length = amount

    @property
    def runs(self) -> list[tuple[str, int, int]]:
        """The ids in parts that differ in their last byte only: what they share, the last byte of the first, and how many they are."""
        return self._runs

    def pieces(self) -> list[tuple[bytes, list[bytes]]]:
        """Return the ids as bytes with 0x02 after each, in parts that begin alike: the beginning, and what follows it in each."""
        return [(prefix.encode(), _ENDS[low : low + amount]) for prefix, low, amount in self._runs]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        at = index + self._length if index < 0 else index
        if at >= 0:
            for prefix, low, amount in self._runs:
                if at < amount:
                    return f"{prefix}{_HEX2[low + at]}"
                at -= amount
        raise IndexError(f"id {index} of {self._length}")

    def __iter__(self) -> Iterator[str]:
        for prefix, low, amount in self._runs:
            yield from [prefix + last for last in _HEX2[low : low + amount]]

    def __repr__(self) -> str:
        return f"<{self._length} message ids>"


class MessageIdFactory:
    """Makes client message ids that no other call in this process returns, and other processes only by a 48-bit coincidence.

    ``ip`` is the client's address as text (None: four random bytes, as for a host without a network); ``pid`` the process id
    (None: random). After a fork the child must call ``reset`` with its own pid before it makes an id. Safe to call from threads.

    Ids are unique as the time in them never goes back and moves on, ahead of the clock if need be, each time the counter wraps.
    """

    __slots__ = ("_clock_ms", "_count", "_head", "_ip", "_month_end_ms", "_month_ms", "_ms", "_prefix")

    def __init__(self, ip: str | None = None, pid: int | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        if ip is None:
            self._ip = secrets.token_bytes(4)
        else:
            try:
                self._ip = ip_address(ip.partition("%")[0]).packed
            except ValueError:
                raise LocalProtocolError(f"{ip!r} is not an IP address") from None
        self._clock_ms = clock.time_ms
        self.reset(pid)

    def reset(self, pid: int | None = None) -> None:
        """Start over under a new random salt; for a forked child, whose ids must differ from its parent's."""
        pid = secrets.randbits(16) if pid is None else pid & 0xFFFF
        self._head = (self._ip + pid.to_bytes(2, "big") + secrets.token_bytes(4)).hex().upper()
        self._count = count(1)  # 0 comes with a wrap, and a wrap moves the time
        self._month_ms = self._month_end_ms = 0
        self._move_to(self._clock_ms())

    def next(self) -> str:
        """Return a new id: 32 hex characters with an IPv4 address, 56 with an IPv6 one."""
        n = next(self._count) & 0xFFFF
        ms = self._clock_ms()
        if ms > self._ms:
            self._move_to(ms)
        if not n:
            self._move_to(self._ms + 1)
        return f"{self._prefix}{_HEX2[n >> 8]}{_HEX2[n & 255]}"

    def take(self, amount: int) -> MessageIds:
        """Return ``amount`` new ids, in order; cheaper than as many calls of ``next``."""
        ms = self._clock_ms()
        if ms > self._ms:
            self._move_to(ms)
        prefix = self._prefix
        numbers = list(islice(self._count, amount))
        runs: list[tuple[str, int, int]] = []
        whole = amount > 0 and numbers[-1] - numbers[0] == amount - 1  # otherwise another thread has used the counter
        at = 0
        while at < amount:
            n = numbers[at] & 0xFFFF
            if not n:
                self._move_to(self._ms + 1)
                prefix = self._prefix
            run = min(amount - at, 256 - (n & 255)) if whole else 1
            runs.append((f"{prefix}{_HEX2[n >> 8]}", n & 255, run))
            at += run
        return MessageIds(amount, runs)

    def _move_to(self, ms: int) -> None:
        if ms >= self._month_end_ms or ms < self._month_ms:
            self._month_ms = month_start_ms(ms)
            # 32 days after a month's first midnight is a day of the next month.
            self._month_end_ms = month_start_ms(self._month_ms + 32 * 86_400_000)
        self._ms = ms
        self._prefix = f"{self._head}{(ms - self._month_ms) & 0xFFFFFFFF:08X}"


def parse_uniq_key(text: str, *, now_ms: int | None = None) -> tuple[str, int, int | None, int]:
    """Return ``(ip, pid, time_ms, counter)`` of a client message id.

    The id holds the time within a month only: it is placed in the month of ``now_ms``, or the one before when that would be in
    the future; None when it cannot be a time within a month. Raises RemoteProtocolError when ``text`` is not 32 or 56 hex digits.
    """
    raw = _unhex(text, "client message id")
    width = len(raw) - 12
    pid, _, span, counter = _UNIQ_TAIL.unpack_from(raw, width)
    if span > _MAX_SPAN_MS:
        return str(ip_address(raw[:width])), pid, None, counter
    now = SYSTEM_CLOCK.time_ms() if now_ms is None else now_ms
    month = month_start_ms(now)
    if month + span >= now:
        month = month_start_ms(month - 1)
    return str(ip_address(raw[:width])), pid, month + span, counter


# When a message is stored that was made at 0 ms, the likeliest times first: at once, after a wait in a producer, by clocks that differ.
STORED_AFTER_MS = ((-200, 800), (800, 5_000), (5_000, 60_000), (-60_000, -200))


@lru_cache(maxsize=64)
def _host_hex(host: bytes) -> str:
    if len(host) not in (8, 20):
        raise LocalProtocolError(f"a host has 8 or 20 bytes, not {len(host)}")
    return host.hex().upper()


def offset_msg_id(host: bytes, physical: int) -> str:
    """Return the broker's id of the record at ``physical`` in the commit log of ``host`` (8 or 20 bytes, as stored)."""
    return f"{_host_hex(host)}{physical & 0xFFFFFFFFFFFFFFFF:016X}"


def parse_offset_msg_id(text: str) -> tuple[str, int, int]:
    """Return ``(ip, port, physical)`` of a broker's message id.

    Raises RemoteProtocolError when ``text`` is not 32 or 56 hex digits, or its port or offset is impossible.
    """
    raw = _unhex(text, "offset message id")
    width = len(raw) - 12
    port, physical = _OFFSET_TAIL.unpack_from(raw, width)
    if not 0 <= port <= 0xFFFF or physical < 0:
        raise RemoteProtocolError(f"{text!r} is not an offset message id: port {port}, offset {physical}")
    return str(ip_address(raw[:width])), port, physical


def _unhex(text: str, what: str) -> bytes:
    if len(text) not in (32, 56) or not text.isalnum():
        raise RemoteProtocolError(f"{repr(text)[:66]} is not a {what}: it has 32 or 56 hex digits")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise RemoteProtocolError(f"{text!r} is not a {what}: it has 32 or 56 hex digits") from None
