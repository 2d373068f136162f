"""Which parts of a file are read when its holes are left out."""

import os

import pytest

from sprocketmq.storage.fs import REAL_FS, data_places

BLOCK = 1 << 16


class ReadAhead:
    """A file whose every hole counts as data once something before it was read, as on Linux, whose readahead fills holes with zeros."""

    def __init__(self, size, data):
        self.size_bytes, self.data, self.read = size, data, False

    def data_after(self, offset):
        if offset >= self.size_bytes:
            return None
        if self.read:
            return offset
        return min((max(begin, offset) for begin, end in self.data if end > offset), default=None)


@pytest.mark.parametrize(
    ("start", "end", "places"),
    [(0, 1000, [0, 300, 400, 900]), (450, 1000, [450, 900]), (500, 900, []), (901, 902, [901]), (999, 5000, [999])],
)
def test_pieces_of_data_between_two_positions(start, end, places):
    assert data_places(ReadAhead(1000, [(0, 1), (300, 500), (900, 1000)]), start, end, 100) == places


def test_what_is_read_of_a_hole_is_not_searched_as_well():
    file = ReadAhead(1 << 30, [(0, 50)])
    seen = 0
    for _ in data_places(file, 0, 1 << 30, 100):
        file.read = True
        seen += 1
    assert seen == 1


def test_a_real_file_with_a_hole(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(b"x" * BLOCK)
        file.truncate(64 * BLOCK)
        file.seek(32 * BLOCK)
        file.write(b"y")
    file = REAL_FS.open(os.fspath(path), read_only=True)
    try:
        found = data_places(file, 0, 64 * BLOCK, BLOCK)
        assert {0, 32 * BLOCK} <= set(found)
        assert found == sorted(set(found))
    finally:
        file.close()
