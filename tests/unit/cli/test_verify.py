"""`sprocketmq verify`: exit codes, the report for people and for programs."""

import json
import shlex
from functools import partial

import pytest


@pytest.fixture
def verify(command):
    return partial(command, "verify")


def test_a_store_in_order(store, verify):
    code, out, err = verify(store)
    assert (code, err) == (0, "")
    assert "log 0 to 152401, 147 records, 7 queues, 489 index entries" in out
    assert out.endswith("everything is in order\n")


def test_a_store_with_notes_is_in_order(store, verify):
    (store / "abort").write_text("77")
    code, out, _ = verify(store)
    assert code == 0
    assert "a broker (process 77) uses the store" in out
    assert out.endswith("in order: 0 errors, 0 warnings, 1 note\n")


def test_a_damaged_store(store, verify):
    path = store / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[283 + 90] ^= 1
    path.write_bytes(data)
    code, out, _ = verify(store)
    assert code == 1
    assert f"error: {path}, byte 283\n" in out
    assert f"next: sprocketmq inspect {shlex.quote(str(path))} --offset 283" in out
    assert "NOT in order: 2 errors" in out
    code, out, _ = verify(store, "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["errors"], report["records"]) == (1, False, 2, 146)
    finding = report["findings"][0]
    assert (finding["severity"], finding["kind"], finding["path"], finding["offset"]) == ("error", "log damaged", str(path), 283)
    assert set(finding) == {"severity", "kind", "path", "offset", "what", "repair"}


def test_the_index_can_be_left_out(store, verify):
    for path in (store / "index").iterdir():
        path.write_bytes(b"\xff" * 5416)
    assert verify(store)[0] == 1
    assert verify(store, "--no-index")[0] == 0


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "there is no such directory"), ("file", "takes a store's directory"), ("empty", "there is no store")]
)
def test_what_cannot_be_verified(tmp_path, verify, name, said):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    code, out, err = verify(tmp_path / name)
    assert (code, out) == (2, "")
    assert said in err
