"""The key-value configuration of a nameserver outlives it."""

import asyncio
import json
import threading

import pytest

from sprocketmq.errors import ConfigError
from sprocketmq.namesrv import NameServer, NameServerConfig, kvconfig
from sprocketmq.net.client import ConnectionPool
from sprocketmq.net.tasks import Background
from sprocketmq.storage.config import ConfigFile
from sprocketmq.testing import eventually


@pytest.fixture
def path(tmp_path):
    return tmp_path / "namesrv" / "kvConfig.json"


@pytest.fixture
async def start(path):
    """Start nameservers, one after the other, that keep their configuration in the same file; each comes as a function that asks it."""
    running = []

    async def stop():
        while running:
            server, pool = running.pop()
            await pool.close()
            await server.stop()

    async def start(file=None):
        await stop()
        server = NameServer(NameServerConfig(port=0), kv_file=file or ConfigFile(path))
        await server.start()
        pool = ConnectionPool(expected="nameserver")
        running.append((server, pool))
        conn = await pool.get(server.address)
        return lambda code, **ext: conn.request(code, ext=ext, timeout_s=60)

    yield start
    await stop()


def put(ask, key="a", value="1", namespace="n"):
    return ask(100, namespace=namespace, key=key, value=value)


async def value(ask, key="a", namespace="n"):
    answer = await ask(101, namespace=namespace, key=key)
    return answer.ext["value"] if answer.code == 0 else None


async def test_items_outlive_a_restart(start, path):
    ask = await start()
    for key in ("a", "b"):
        assert (await put(ask, key, f"value of {key}")).code == 0
    assert (await put(ask, "orders", "broker-a:4", namespace="ORDER_TOPIC_CONFIG")).code == 0
    assert (await ask(102, namespace="n", key="a")).code == 0
    assert json.loads(path.read_text()) == {"configTable": {"n": {"b": "value of b"}, "ORDER_TOPIC_CONFIG": {"orders": "broker-a:4"}}}
    ask = await start()
    assert await value(ask, "b") == "value of b"
    assert await value(ask) is None
    assert json.loads((await ask(219, namespace="ORDER_TOPIC_CONFIG")).body) == {"table": {"orders": "broker-a:4"}}


async def test_nothing_is_written_until_something_is_set(start, path):
    ask = await start()
    assert await value(ask) is None
    assert (await ask(102, namespace="n", key="a")).code == 0
    assert not path.parent.exists()


async def test_an_answer_comes_when_its_item_is_on_the_disk_and_waiting_changes_share_a_save(start, path):
    class Slow(ConfigFile):
        __slots__ = ("may", "saves")

        def save(self, tree):
            self.saves += 1
            assert self.may.wait(60)
            super().save(tree)

    file = Slow(path)
    file.may, file.saves = threading.Event(), 0
    ask = await start(file)
    answers = [asyncio.ensure_future(put(ask, str(n))) for n in range(20)]
    await eventually(lambda: file.saves == 1)
    assert await value(ask, "19") == "1", "readers see it meanwhile"
    assert not any(answer.done() for answer in answers)
    file.may.set()
    assert {(await answer).code for answer in answers} == {0}
    assert file.saves <= 2
    assert len(json.loads(path.read_text())["configTable"]["n"]) == 20


async def test_a_disk_that_refuses_is_told_of_and_the_next_change_saves_both(start, path):
    class Full(ConfigFile):
        __slots__ = ("full",)

        def save(self, tree):
            if self.full:
                raise OSError(28, "No space left on device")
            super().save(tree)

    file = Full(path)
    file.full = True
    ask = await start(file)
    answer = await put(ask)
    assert (answer.code, answer.remark) == (
        1,
        "done, but lost when this nameserver stops: the key-value configuration cannot be saved: [Errno 28] No space left on device",
    )
    file.full = False
    assert (await put(ask, "b")).code == 0
    assert json.loads(path.read_text()) == {"configTable": {"n": {"a": "1", "b": "1"}}}


@pytest.mark.parametrize("damage", [b"{\x00\x00", b"[]", b'{"configTable":{"n":{"a":1}}}', b'{"configTable":[]}', b"{}"])
async def test_a_damaged_file_is_kept_aside_and_its_predecessor_taken(start, path, caplog, damage):
    ask = await start()
    for number in "123":
        await put(ask, value=number)
    path.write_bytes(damage)
    ask = await start()
    assert await value(ask) == "2"
    assert f"{path} was damaged and is kept as {path}.damaged-1; its values are those of its .bak" in caplog.text
    for number in "45":
        await put(ask, "b", number)
    assert path.with_name("kvConfig.json.damaged-1").read_bytes() == damage


async def test_a_nameserver_starts_empty_when_both_files_are_damaged_and_keeps_them(start, path, caplog):
    path.parent.mkdir()
    path.write_bytes(b"rubbish")
    path.with_name("kvConfig.json.bak").write_bytes(b"more")
    path.with_name("kvConfig.json.damaged-1").write_bytes(b"older")
    ask = await start()
    assert await value(ask) is None
    assert "its values are gone" in caplog.text
    await put(ask)
    names = ("kvConfig.json.damaged-1", "kvConfig.json.damaged-2", "kvConfig.json.bak.damaged-1")
    assert [path.with_name(name).read_bytes() for name in names] == [b"older", b"rubbish", b"more"]


async def test_a_file_that_cannot_be_read_keeps_the_nameserver_from_starting(start, path):
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"kvConfig\.json cannot be read: Is a directory"):
        await start()


async def test_names_values_and_the_whole_are_bounded(start, monkeypatch):
    ask = await start()
    monkeypatch.setattr(kvconfig, "MAX_TABLE_BYTES", 100_000)
    for field in ("namespace", "key"):
        answer = await put(ask, **{field: "é" * 513})
        assert (answer.code, answer.remark) == (1, f"the {field} has 1026 bytes, the limit is 1024")
    answer = await put(ask, value="x" * 65537)
    assert (answer.code, answer.remark) == (1, "the value has 65537 bytes, the limit is 65536")
    assert (await put(ask, value="x" * 60_000)).code == 0
    assert (await put(ask, "b", "x" * 40_000)).remark == "the config items of this nameserver would take more than 100000 bytes, its limit"
    assert (await put(ask, value="x" * 50_000)).code == 0
    assert (await put(ask, "b", "x" * 40_000)).code == 0
    await ask(102, namespace="n", key="a")
    assert (await put(ask, "c", "x" * 59_000)).code == 0


async def test_without_a_file_items_last_as_long_as_the_nameserver():
    keeper = kvconfig.KvKeeper(None, Background("nameserver"))
    await keeper.load()
    keeper.put("n", "a", "1")
    assert keeper.kept
    await keeper.save()
    assert keeper.get("n", "a") == "1"
