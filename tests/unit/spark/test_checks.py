"""A machine that lacks what Spark needs is told so in one sentence, before a JVM starts."""

import subprocess
import sys

import pytest

import pyspark_rocketmq
import pyspark_rocketmq_store
from sprocketmq.errors import ConfigError
from sprocketmq.spark import RocketMQDataSource, RocketMQStoreDataSource, version_checks
from sprocketmq.spark.formats import LazySource
from sprocketmq.spark.version_checks import MissingPackage, check_packages, parse_version, require

GOOD = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3"}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these packages are installed, and no others."""

    def pretend(**versions):
        monkeypatch.setattr(version_checks, "installed_version", (GOOD | versions).get)

    return pretend


def test_this_machine_has_what_it_takes():
    check_packages()


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(installed, package):
    installed(**{package: None})
    with pytest.raises(MissingPackage, match=rf"the package {package} .*not installed: pip install 'sprocketmq\[spark\]'$") as caught:
        check_packages()
    assert (caught.value.package, caught.value.found) == (package, None)


@pytest.mark.parametrize(
    ("package", "version", "command"),
    [
        ("pyspark", "3.5.4", "pip install 'pyspark>=4.0,<5'"),
        ("pyspark", "5.0.0.dev1", "pip install 'pyspark>=4.0,<5'"),
        ("pyarrow", "14.0.1", "pip install 'pyarrow>=18'"),
        ("pandas", "2.1.4", "pip install 'pandas>=2.2'"),
    ],
)
def test_a_version_that_does_not_work_is_named_with_the_one_that_does(installed, package, version, command):
    installed(**{package: version})
    with pytest.raises(MissingPackage) as caught:
        check_packages()
    assert f"{package} {version} does not work here" in str(caught.value)
    assert str(caught.value).endswith(command)


def test_versions_are_compared_as_numbers():
    assert parse_version("4.10.0") > parse_version("4.9.9")
    assert parse_version("4.2.0rc1") == (4, 2, 0)
    assert parse_version("unknown") == ()


def test_a_package_that_is_not_there_has_no_version():
    assert version_checks.installed_version("no_such_package") is None
    assert version_checks.installed_version("pyarrow") is not None


def test_a_package_without_papers_tells_its_version_itself(tmp_path, monkeypatch):
    (tmp_path / "vendored_thing.py").write_text('__version__ = "7.1"\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert version_checks.installed_version("vendored_thing") == "7.1"


def test_what_only_one_function_needs_is_asked_for_there():
    require("pyarrow", "the plot", "pip install pyarrow")
    with pytest.raises(MissingPackage, match=r"^the plot needs the package no_such_package, which is not installed: pip install it$"):
        require("no_such_package", "the plot", "pip install it")


class Broken(LazySource):
    format_name = "broken"
    module = "sprocketmq.no_such_module"
    class_name = "Source"


def test_a_format_that_cannot_work_says_so_when_it_is_used_and_not_before(installed):
    installed(pyarrow=None)
    source = pyspark_rocketmq.DefaultSource({})
    assert source.name() == "rocketmq"
    for use in (source.schema, lambda: source.reader(None), lambda: source.streamWriter(None, False)):
        with pytest.raises(ConfigError, match=r"package pyarrow .*pip install"):
            use()


def test_a_format_whose_module_does_not_load_says_why():
    with pytest.raises(ConfigError, match=r"the format broken could not be loaded \(No module named .*pip install"):
        Broken({}).schema()


def test_both_formats_lead_to_their_sources():
    for package, source in ((pyspark_rocketmq, RocketMQDataSource), (pyspark_rocketmq_store, RocketMQStoreDataSource)):
        lazy = package.DefaultSource({"option": "value"})
        assert type(lazy._source()) is source
        assert lazy._source().options == {"option": "value"}
        assert lazy.name() == source.name()


def test_what_one_source_cannot_do_is_said_as_by_itself():
    with pytest.raises(NotImplementedError):
        pyspark_rocketmq_store.DefaultSource({}).simpleStreamReader(None)


def test_looking_for_formats_loads_no_heavy_package():
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_rocketmq, pyspark_rocketmq_store;"
        "print(sorted({'pyarrow', 'pandas', 'numpy', 'asyncio'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
