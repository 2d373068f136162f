import logging
import os
from pathlib import Path

import pytest

from sprocketmq.client.consume.offset_files import MAX_FILE_BYTES, OffsetFile, default_directory
from sprocketmq.errors import ConfigError, OffsetsLocked
from sprocketmq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)
OTHER = MessageQueue("t", "broker-b", 7)


@pytest.fixture
def files():
    """Make OffsetFiles that are closed at the end."""
    made: list[OffsetFile] = []

    def make(directory: Path, client: str = "192.0.2.1@DEFAULT", group: str = "cg") -> OffsetFile:
        made.append(OffsetFile(directory, client, group))
        return made[-1]

    yield make
    for file in made:
        file.close()


@pytest.fixture
def offsets(tmp_path, files) -> OffsetFile:
    file = files(tmp_path)
    file.open()
    return file


def again(file: OffsetFile) -> OffsetFile:
    """Open what ``file`` left, as the next process does."""
    file.close()
    file = OffsetFile(file.path.parents[2], file.path.parents[1].name, file.path.parent.name)
    file.open()
    file.close()
    return file


def test_the_file_lies_where_the_java_client_has_it(tmp_path):
    assert OffsetFile(tmp_path, "192.0.2.1@DEFAULT", "cg").path == tmp_path / "192.0.2.1@DEFAULT" / "cg" / "offsets.json"
    assert OffsetFile(None, "a", "cg").path == default_directory() / "a" / "cg" / "offsets.json"
    assert default_directory() == Path.home() / ".rocketmq_offsets"


def test_what_was_saved_is_there_after_a_restart(offsets):
    assert offsets.get(QUEUE) is None
    offsets.put(QUEUE, 5)
    offsets.put(OTHER, 0)
    offsets.save()
    found = again(offsets)
    assert (found.get(QUEUE), found.get(OTHER)) == (5, 0)


def test_the_file_is_written_in_the_form_that_the_java_client_reads(offsets):
    offsets.put(QUEUE, 5)
    offsets.save()
    assert offsets.path.read_bytes() == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:5}}'


def test_a_file_of_the_java_client_is_read(offsets):
    # Pretty-printed with tabs, as the reference writes it.
    offsets.path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"t"\n\t\t}:41\n\t}\n}'
    )
    assert again(offsets).get(QUEUE) == 41


def test_nothing_is_written_while_nothing_changed(offsets):
    offsets.put(QUEUE, 5)
    offsets.save()
    offsets.path.unlink()
    offsets.put(QUEUE, 5)
    offsets.save()
    assert not offsets.path.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"offsetTable":[1]}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":{{"queueId":1}:2}}']
    + [b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:%b}}' % v for v in (b"-1", b'"x"', b"99999999999999999999", b"1.5")],
)
def test_a_damaged_file_is_moved_aside_and_the_one_before_it_is_used(offsets, content, caplog):
    for offset in (4, 5):
        offsets.put(QUEUE, offset)
        offsets.save()
    offsets.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert again(offsets).get(QUEUE) == 4
    assert offsets.path.with_name("offsets.json.damaged").read_bytes() == content
    assert "are damaged" in caplog.text
    assert "offsets.json.damaged" in caplog.text


def test_two_damaged_files_are_both_kept(offsets, caplog):
    for content in (b"one", b"two"):
        offsets.path.write_bytes(content)
        again(offsets)
    kept = sorted(offsets.path.parent.glob("*.damaged*"))
    assert [path.read_bytes() for path in kept] == [b"one", b"two"]


def test_a_file_that_is_far_too_large_is_not_read_whole(offsets, caplog):
    with offsets.path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES * 100)
    assert again(offsets).get(QUEUE) is None
    assert "larger" in caplog.text


def test_a_crash_at_any_step_of_saving_leaves_the_old_offsets_or_the_new_ones(offsets, monkeypatch):
    """Each rename and sync of a save fails once; what is on the disk then is what a crash there would leave."""

    class Crash(Exception):
        pass

    offsets.put(QUEUE, 1)
    offsets.save()
    steps = 0
    while True:
        calls = 0

        def maybe(real, stop_at=steps):
            def call(*args):
                nonlocal calls
                calls += 1
                if calls > stop_at:
                    raise Crash
                return real(*args)

            return call

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", maybe(Path.replace))
            patched.setattr(os, "fsync", maybe(os.fsync))
            old = offsets.get(QUEUE)
            offsets.put(QUEUE, old + 1)
            try:
                offsets.save()
            except Crash:
                crashed = True
            else:
                crashed = False
        found = again(offsets).get(QUEUE)
        assert found in ((old, old + 1) if crashed else (old + 1,))
        if not crashed:
            break
        offsets.save()  # what failed is tried again
        assert again(offsets).get(QUEUE) == old + 1
        steps += 1
    assert steps == 4


def test_another_consumer_cannot_have_the_file_at_the_same_time(tmp_path, files, offsets):
    second = files(tmp_path)
    with pytest.raises(OffsetsLocked, match="offsets_dir"):
        second.open()
    files(tmp_path, group="other").open()
    offsets.close()
    second.open()


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path, files):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="offsets_dir"):
        files(tmp_path / "taken").open()
