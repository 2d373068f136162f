import subprocess
import sys

import pytest

import sprocketmq


def test_every_exported_name_loads_and_is_listed():
    for name in sprocketmq.__all__:
        assert getattr(sprocketmq, name) is not None
        assert name in dir(sprocketmq)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nope"):
        sprocketmq.nope  # noqa: B018


def test_importing_the_package_loads_nothing_heavy():
    program = "import sprocketmq, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120).stdout.split()
    assert not {"asyncio", "msgspec", "uvloop", "rich", "typer", "pyspark", "pyarrow", "numpy"} & set(loaded)
    assert [name for name in loaded if name.startswith("sprocketmq.")] == ["sprocketmq._version"]


def test_the_clients_bring_no_broker_no_spark_and_no_terminal_library():
    program = "from sprocketmq import *; import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120).stdout.split()
    assert "sprocketmq.client.send.producer" in loaded
    assert not {"rich", "typer", "pyspark", "pyarrow", "numpy", "lz4", "zstandard", "uvloop"} & set(loaded)
    for layer in ("broker", "storage", "namesrv", "spark", "cli", "embedded"):
        assert f"sprocketmq.{layer}" not in loaded
