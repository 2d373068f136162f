"""`sprocketmq user` and `sprocketmq acl` at a secured broker of either make: what they change holds for clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.interop.secured import ADMIN, Secured

from sprocketmq.cli.app import main
from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.parametrize("make", ["apache", "ours"])
def test_users_and_rights_are_managed_by_command(
    make: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secured: Secured = request.getfixturevalue(f"secured_{make}")
    topic = secured.create_topic(f"commands_{make}")
    admin = tmp_path / "admin.json"
    admin.touch(0o600)
    admin.write_text(json.dumps({"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}))
    where = ("--namesrv", secured.namesrv, "--tls-ca", str(secured.authority.ca_file))
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")

    def command(*arguments: object, login: Path = admin) -> tuple[int, str, str]:
        code = main([*map(str, arguments), *where, "--access-key-file", str(login)])
        return code, *capfd.readouterr()

    user = tmp_path / "shop" / "credentials.json"

    def sends() -> bool:
        return command("produce", topic, "--file", lines, login=user)[0] == 0

    code, out, err = command("user", "create", "shop", "--out", tmp_path / "shop")
    assert (code, err) == (0, "")
    assert f"{secured.broker}: user shop created" in out
    assert not sends()
    assert command("acl", "grant", "shop", "--topic", f"{topic[:4]}*", "--actions", "Pub")[0] == 0
    assert command("acl", "grant", "shop", "--topic", f"{topic[:4]}*", "--actions", "Sub,Get")[0] == 0
    wait_until(sends, what="the right to send")
    code, out, _ = command("acl", "list", "shop", "--json")
    (entry,) = json.loads(out)
    assert (entry["resource"], entry["actions"], entry["decision"]) == (f"Topic:{topic[:4]}*", ["Pub", "Sub", "Get"], "Allow")
    code, out, _ = command("user", "list", "--json")
    places = [secured.broker] if make == "apache" else [secured.broker, f"namesrv {secured.namesrv}"]
    assert {"username": "shop", "type": "Normal", "status": "enable", "places": places} in json.loads(out)
    assert ADMIN.secret_key not in out
    assert command("user", "update", "shop", "--disable")[0] == 0
    wait_until(lambda: not sends(), what="the user to be locked out")
    assert command("user", "update", "shop", "--enable")[0] == 0
    wait_until(sends, what="the user to be let in")
    assert command("acl", "revoke", "shop", "--topic", f"{topic[:4]}*")[0] == 0
    wait_until(lambda: not sends(), what="the right to be gone")
    assert command("user", "delete", "shop")[0] == 0
    assert "shop" not in command("user", "list")[1]
