"""Spark reads from and writes to Apache's broker with TLS and access control; the secret is in a file that options name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import Login
from tests.interop.secured import Secured

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def directory(path: Path, servers: Secured, login: Login) -> str:
    """Make what `secure` names: the authority to trust, and credentials for their owner only."""
    path.mkdir()
    (path / "ca.pem").write_bytes(Path(servers.authority.ca_file).read_bytes())
    credentials = path / "credentials.json"
    credentials.touch(0o600)
    credentials.write_text(json.dumps({"access_key": login.access_key, "secret_key": login.secret_key}))
    return str(path)


def test_a_topic_is_written_and_read_by_a_user_with_the_rights(
    spark: Any, secured_apache: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = secured_apache.create_topic("of_spark")
    login = secured_apache.create_user(
        Login("spark", "spark-has-a-secret-of-its-own"), (f"Topic:{topic}", "Pub,Sub,Get"), ("Group:*", "Sub,Get")
    )
    options = {"nameserver": secured_apache.namesrv, "secure": directory(tmp_path / "secure", secured_apache, login)}
    rows = spark.range(100).selectExpr("cast(id as string) as body")
    rows.write.format("rocketmq").options(topic=topic, **options).mode("append").save()
    read = spark.read.format("rocketmq").options(subscribe=topic, **options).load()
    assert sorted(int(bytes(row.body)) for row in read.select("body").collect()) == list(range(100))
    read.explain(extended=True)
    assert login.secret_key not in capsys.readouterr().out


def test_a_user_without_the_rights_is_told_what_is_missing(spark: Any, secured_apache: Secured, tmp_path: Path) -> None:
    topic = secured_apache.create_topic("not_of_spark")
    login = secured_apache.create_user(Login("spark-reader", "spark-has-a-secret-of-its-own"))
    options = {"nameserver": secured_apache.namesrv, "secure": directory(tmp_path / "secure", secured_apache, login)}
    with pytest.raises(Exception, match=f"Topic:{topic}") as raised:
        spark.read.format("rocketmq").options(subscribe=topic, **options).load().count()
    assert login.secret_key not in str(raised.value)
