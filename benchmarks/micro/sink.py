"""A transport without a socket, which takes every byte at once. Like uvloop's, and unlike asyncio's own, it is written lists of buffers."""

from typing import Any


class Sink:
    """The transport of a connection from ``peer``, an address and a port."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def writelines(self, list_of_data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass
