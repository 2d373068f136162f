"""`sprocketmq rebuild`: in place, elsewhere, in part; and what it refuses."""

import hashlib
import json
import shutil
from functools import partial

import pytest

from sprocketmq.cli.app import main
from sprocketmq.storage.config import StoreConfig
from sprocketmq.storage.store import MessageStore


@pytest.fixture
def rebuild(command):
    return partial(command, "rebuild")


def tree(root):
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}


def test_files_that_are_gone_are_made_again(store, rebuild, capfd):
    before = tree(store / "consumequeue")
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    assert main(["verify", str(store)]) == 1
    capfd.readouterr()
    code, out, _ = rebuild(store)
    assert code == 0
    assert "from 147 records" in out
    assert main(["verify", str(store)]) == 0
    # The names of files say nothing of their size, so what is made has the size of a new store's.
    made = tree(store / "consumequeue")
    assert {name.rsplit("/", 1)[0] for name in made} == {name.rsplit("/", 1)[0] for name in before}


def test_queues_are_made_byte_for_byte_as_apaches_broker_made_them(store, rebuild):
    before = tree(store / "consumequeue")
    code, out, _ = rebuild(store, "--json")
    report = json.loads(out)
    assert (code, report["records"], report["queues"], report["damaged"]) == (0, 147, 7, [])
    assert tree(store / "consumequeue") == before


def test_some_files_can_be_made_elsewhere(store, rebuild, tmp_path):
    before = tree(store)
    assert rebuild(store, "--to", tmp_path / "new", "--only", "consumequeue")[0] == 0
    assert tree(store) == before
    assert tree(tmp_path / "new" / "consumequeue") == tree(store / "consumequeue")
    assert not (tmp_path / "new" / "index").exists()
    code, _, err = rebuild(store, "--to", tmp_path / "new", "--only", "consumequeue")
    assert code == 2
    assert "already has consumequeue" in err


def test_what_is_refused(store, rebuild, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, said in [
        ([store, "--only", "queues"], "--only takes consumequeue, batchconsumequeue, index, checkpoint"),
        ([store, "--to", store / "new"], "lies in the store itself"),
        ([tmp_path / "nothing"], "there is no such directory"),
        ([tmp_path / "empty"], "there is no store in this directory"),
    ]:
        code, _, err = rebuild(*arguments)
        assert code == 2
        assert said in err


def test_a_store_in_use_is_left_alone(store, rebuild):
    running = MessageStore(StoreConfig(store))
    running.open()
    try:
        code, _, err = rebuild(store)
        assert code == 1
        assert "is in use by another broker" in err
        assert "--to" in err
        assert "--store" not in err
    finally:
        running.close()
