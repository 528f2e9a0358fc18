# Users of jobq build nothing: it is two headers. This file is for the tests, examples and demos.

CC ?= cc
ifeq ($(origin CXX),default)
CXX = c++
endif
CFLAGS ?= -O2 -g
CXXFLAGS ?= $(CFLAGS)

STRICT_C = -std=c99 -Wall -Wextra -Wpedantic -Werror -Wconversion -Wsign-conversion -Wshadow \
	-Wstrict-prototypes -Wmissing-prototypes -Wswitch-enum -Wundef
STRICT_CXX = -std=c++11 -Wall -Wextra -Wpedantic -Werror -Wold-style-cast
# V=1 shows the commands.
QUIET = $(if $(V),,@)
POSIX = -D_POSIX_C_SOURCE=200809L

# The folder of libpq's headers. /usr/include is left out, because compilers look there anyway.
LIBPQ_CFLAGS ?= $(addprefix -I,$(filter-out /usr/include,$(or \
	$(shell pg_config --includedir 2>/dev/null), \
	$(patsubst -I%,%,$(shell pkg-config --cflags-only-I libpq 2>/dev/null)))))
LIBPQ_LIBS ?= -lpq

HEADERS = jobq.h jobq_pg.h
TEST_DEPENDS = $(HEADERS) $(wildcard tests/*/*.h) examples/jobq/story.h
TEST_FOLDERS = -Itests/harness -Itests/core -Itests/pg -Itests/model
CORE_TESTS = $(patsubst tests/core/%.c,%,$(wildcard tests/core/test_core_*.c))
PG_TESTS = $(patsubst tests/pg/%.c,%,$(wildcard tests/pg/test_pg_*.c))
# Those that need a library of their own are left out where it is missing.
SEALS = zstd sodium
LACKED = $(foreach lib,$(SEALS),$(if $(shell pkg-config --exists lib$(lib) && echo yes),,\
	.build/examples/seal/$(lib)))
EXAMPLES = $(filter-out $(LACKED) $(LOOPS),$(patsubst %.c,.build/%,$(wildcard examples/*.c examples/*/*.c))) \
	$(patsubst %.cc,.build/%_cc,$(wildcard examples/*.cc))
# make test-builds builds these.
LOOPS = $(addprefix .build/examples/loops/,glib libuv sd_event asio_cc qt_cc)
MAKEFLAGS += --no-print-directory
# Parallel builds, for the targets that build many programs.
JOBS = -j$(or $(shell getconf _NPROCESSORS_ONLN 2>/dev/null),1)

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help demo demo-outbox bench bench-against bench-peers figures test check chaos chaos-upgrade chaos-mutants \
	nightly test-core test-long test-python test-web test-fresh test-servers test-nodes test-citus test-breadth \
	test-builds test-windows dist static fuzz examples \
	sanitize valgrind coverage coverage-pg explore simulate differential judge mutants embed fingerprint verify clean \
	jobq replay

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: ## run the pipeline example on a Postgres of its own (ARGS="..."; --web: and show it in a browser)
	@CC="$(CC)" tests/harness/setup.sh demo
	@$(MAKE) build-demo $(if $(filter --web,$(ARGS)),jobq)
	@exec env JOBQ_SERVER_FSYNC=on tests/server.sh $(if $(filter --web,$(ARGS)),examples/jobq/demo.sh) \
		.build/examples/pipeline $(filter-out --web,$(ARGS))

demo-outbox: ## run the outbox example: transfers, two relays, a kill (ARGS="TRANSFERS")
	@CC="$(CC)" tests/harness/setup.sh demo
	@$(MAKE) build-demo-outbox
	@exec env JOBQ_SERVER_FSYNC=on tests/server.sh .build/examples/outbox $(ARGS)

bench: ## measure speed beside the bare server's (ARGS="--long --only drain,one --runs 5")
	@CC="$(CC)" tests/harness/setup.sh bench
	@$(MAKE) build-bench
	@exec env JOBQ_SERVER_FSYNC=on JOBQ_SERVER_OPTIONS="-c min_wal_size=1GB -c max_wal_size=2GB" \
		tests/server.sh tests/bench/bench.sh $(ARGS)

bench-peers: ## measure River, graphile-worker, pg-boss and PgQ beside jobq (ARGS="--short --runs 5")
	@CC="$(CC)" tests/harness/setup.sh bench
	@$(MAKE) build-bench
	@exec env JOBQ_SERVER_FSYNC=on JOBQ_SERVER_OPTIONS="-c min_wal_size=1GB -c max_wal_size=2GB \
		$(PEERS_SERVER)" tests/server.sh tests/bench/peers.sh $(ARGS)

# Below, a build that fails leaves no program, and run.sh counts that as a failure; the last line
# printed is the verdict. exec makes sure that a signal to make reaches server.sh and run.sh, and not
# a shell between them.
bench-against: ## compare speed with an older commit (REF=COMMIT ARGS="--only drain1 --pairs 50")
	@CC="$(CC)" tests/harness/setup.sh demo
	@exec env JOBQ_SERVER_FSYNC=on JOBQ_SERVER_OPTIONS="-c min_wal_size=1GB -c max_wal_size=2GB \
		-c autovacuum=off" CC="$(CC)" LIBPQ_CFLAGS="$(LIBPQ_CFLAGS)" LIBPQ_LIBS="$(LIBPQ_LIBS)" \
		tests/server.sh tests/tools/against.sh $(REF) $(ARGS)

figures: ## compare the size of the library with that of an older commit (ARGS=REF)
	@CC="$(CC)" tests/harness/setup.sh demo
	@LIBPQ_CFLAGS="$(LIBPQ_CFLAGS)" LIBPQ_LIBS="$(LIBPQ_LIBS)" CC="$(CC)" tests/tools/figures.sh $(ARGS)

# EACH_TESTS run on each server, of the others the longest ones first. OWN_TESTS run on the installed
# Postgres, because they need all of its programs, or test the worker more than the SQL; the others
# also on those of JOBQ_TEST_BINS, if CI has set it: folders of the programs of other versions.
EACH_TESTS = test_pg_fingerprint
OWN_TESTS = $(addprefix test_pg_,upheaval pairs faults refusals loop threads points pooler host copies \
	any_thread)
SLOW_TESTS = $(addprefix test_pg_,never_lost outages life deploy differential relay flows verbs)
test: export JOBQ_TEST_VERDICT = total
test: ## run all tests except the slow targets; install what they need
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@tests/harness/run.sh --reset
	@tests/harness/run.sh --step verify $(MAKE) -s verify
	@$(MAKE) $(JOBS) -k compile-core compile-pg build-core build-pg examples .build/jobq || :
	@tests/harness/run.sh --built $(COMPILE_CORE) $(COMPILE_PG) $(EXAMPLES) .build/jobq
	@printf '%s\n' $(OWN_TESTS:%=.build/cc/%) >.build/queue.own
	@printf '%s\n' $(SLOW_TESTS:%=.build/cc/%) $(filter-out $(EACH_TESTS:%=.build/cc/%) \
		$(OWN_TESTS:%=.build/cc/%) $(SLOW_TESTS:%=.build/cc/%),$(PG_TESTS:%=.build/cc/%)) >.build/queue
	@$(MAKE) test-jobq-h & tests/harness/run.sh --step hostile $(MAKE) test-hostile & \
	each="$(EACH_TESTS:%=.build/cc/%)"; \
	for bin in $(JOBQ_TEST_BINS); do JOBQ_TEST_EACH=$$each JOBQ_PG_BIN=$$bin tests/server.sh \
		tests/harness/run.sh --queue .build/queue & done; \
	for each in "$$each" ""; do JOBQ_TEST_EACH=$$each tests/server.sh \
		tests/harness/run.sh --queue .build/queue.own .build/queue & done; wait
	@tests/server.sh tests/harness/examples.sh
	@tests/harness/run.sh --total

# What needs no database, beside what mostly waits for one.
.PHONY: test-jobq-h
test-jobq-h:
	@tests/harness/run.sh $(CORE_TESTS:%=.build/cc/%)
	@tests/harness/run.sh --step explore $(MAKE) -s explore ARGS="--states 3000"
	@tests/harness/run.sh --step simulate $(MAKE) -s simulate ARGS="--seeds 1"
	@tests/harness/run.sh --step setup tests/harness/setup_test.sh

# In a database that sets what no function may depend on.
HOSTILE_TESTS = verbs outbox operators flows conform schedules fingerprint
.PHONY: test-hostile
test-hostile: $(HOSTILE_TESTS:%=.build/cc/test_pg_%)
	@printf '%s\n' $(HOSTILE_TESTS:%=.build/cc/test_pg_%) >.build/queue.hostile
	@export JOBQ_TEST_LABEL=hostile; run="tests/server.sh tests/harness/hostile.sh tests/harness/run.sh --queue .build/queue.hostile"; \
	$$run & $$run && wait $$!

nightly: ## run what .ci/run leaves out: other versions of Postgres, architectures, fuzzers, mutants
	@exec .ci/run nightly

LONG_TESTS = outbox_steps order refusals points pairs calendar faults
test-long: ## run tests at full size: 1.6 million messages, rows of 200 MB, pairs at each point (1 h)
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@$(MAKE) $(JOBS) $(LONG_TESTS:%=.build/cc/test_pg_%)
	@exec env JOBQ_TEST_LONG=1 JOBQ_TEST_TIMEOUT=3600 tests/server.sh tests/harness/run.sh \
		$(LONG_TESTS:%=.build/cc/test_pg_%)

# Chaos needs more of the server than tests do: replication, and deadlocks that are detected soon.
CHAOS_SERVER = JOBQ_SERVER_OPTIONS="-c wal_level=logical -c deadlock_timeout=200ms -c jit=off"
chaos: ## break everything around real processes (ARGS="--minutes 5 --seed 1 --only crash")
	@CC="$(CC)" tests/harness/setup.sh chaos
	@tests/harness/setup.sh psycopg 2>/dev/null || :
	@$(MAKE) build-chaos
	@exec env $(CHAOS_SERVER) tests/server.sh tests/chaos/chaos.sh $(ARGS)

chaos-upgrade: ## upgrade Postgres 14 to 18 under load, by dump and by logical replication
	@CC="$(CC)" tests/harness/setup.sh chaos
	@tests/harness/setup.sh servers
	@$(MAKE) build-chaos
	@exec env $(CHAOS_SERVER) tests/harness/servers.sh --ends tests/server.sh tests/chaos/chaos.sh \
		--minutes 0.4 --only kill,upgrade,crash $(ARGS)
	@exec env $(CHAOS_SERVER) tests/harness/servers.sh --ends tests/server.sh tests/chaos/chaos.sh \
		--minutes 0.4 --only kill,logical_upgrade,crash $(ARGS)

chaos-mutants: ## break the SQL in ways that chaos must notice, a minute each (ARGS="NAME ...")
	@CC="$(CC)" tests/harness/setup.sh chaos
	@$(MAKE) build-chaos
	@exec env $(CHAOS_SERVER) tests/chaos/mutants.sh $(ARGS)

check: ## build and run one test program quickly: make check T=leases (ARGS: its own)
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@test -n "$(strip $(CHECK))" || { echo "check: no such test: T=NAME runs tests/*/test_*_NAME.c" >&2; exit 2; }
	@$(MAKE) $(CHECK)
	@for program in $(CHECK); do tests/harness/check.sh $$program $(ARGS) || exit 1; done
CHECK = $(patsubst %.c,.build/check/%,$(notdir $(sort $(wildcard tests/*/test_*_$(T).c \
	tests/*/test_$(T).c tests/*/$(T).c))))

test-core: export JOBQ_TEST_VERDICT = total
test-core: ## run the tests of jobq.h alone, without a database and libpq
	@CC="$(CC)" tests/harness/setup.sh core
	@tests/harness/run.sh --reset
	@$(MAKE) $(JOBS) -k compile-core build-core || :
	@tests/harness/run.sh --built $(COMPILE_CORE)
	@tests/harness/run.sh $(CORE_TESTS:%=.build/cc/%)
	@tests/harness/run.sh --total

test-fresh: ## run `make demo` and `make test` in a fresh Debian (as root)
	@tests/harness/fresh.sh

test-servers: export JOBQ_TEST_VERDICT = total
test-servers: ## run the tests on Postgres 14 to 18 (ARGS="--short" or "15 17")
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@tests/harness/setup.sh servers
	@tests/harness/run.sh --reset
	@$(MAKE) $(JOBS) -k build-pg || :
	@exec env OWN_TESTS="$(OWN_TESTS)" tests/harness/servers.sh $(ARGS)
	@tests/harness/run.sh --total

test-nodes: export JOBQ_TEST_VERDICT = total
test-nodes: export JOBQ_TEST_TIMEOUT ?= $(if $(JOBQ_TEST_LONG),2400,300)
test-nodes: ## kill one of two servers with eight schemas, move schemas (JOBQ_TEST_LONG=1: 20,000 keys)
	@CC="$(CC)" tests/harness/setup.sh nodes
	@tests/harness/run.sh --reset
	@$(MAKE) .build/cc/nodes || :
	@tests/harness/nodes.sh tests/harness/run.sh .build/cc/nodes
	@tests/harness/run.sh --total

# The tests of the library's SQL that run at the coordinator, in a schema of it; and those that run
# in a distributed schema. tests/harness/distributed.h says what is left out there, and why. make
# nightly has all of them, CI those of FAR_SHORT.
CITUS_TESTS = conform enqueue verbs fingerprint
FAR_SHORT = conform erase outbox_steps
FAR_TESTS = $(FAR_SHORT) $(if $(filter --short,$(ARGS)),,steps topics)
FAR_RUN = tests/harness/run.sh $(FAR_TESTS:%=.build/cc/test_pg_%)
test-citus: export JOBQ_TEST_VERDICT = total
test-citus: ## run tests on Citus, with a node that is killed (CITUS_TREE=FOLDER or CITUS_SOURCE=..., ARGS="--short")
	@CC="$(CC)" tests/harness/setup.sh nodes
	@tests/harness/run.sh --reset
	@$(MAKE) .build/jobq .build/cc/citus $(CITUS_TESTS:%=.build/cc/test_pg_%) $(FAR_TESTS:%=.build/cc/test_pg_%) || :
	@rm -f .build/counts-far
	@tests/harness/run.sh --skip citus tests/harness/citus.sh sh -c 'tests/harness/run.sh .build/cc/citus \
		$(CITUS_TESTS:%=.build/cc/test_pg_%) && echo "in a distributed schema:" && \
		JOBQ_TEST_CITUS=distributed JOBQ_TEST_COUNTS=.build/counts-far $(FAR_RUN)'
	@test ! -e .build/counts-far || { JOBQ_TEST_COUNTS=.build/counts-far tests/harness/run.sh --total || :; \
		cat .build/counts-far >>"$${JOBQ_TEST_COUNTS:-.build/counts}"; }
	@tests/harness/run.sh --total

test-breadth: export JOBQ_TEST_VERDICT = total
test-breadth: ## run the tests of jobq.h on 32 bits, aarch64, big endian, clang (ARGS="--short")
	@CC="$(CC)" tests/harness/setup.sh breadth
	@tests/harness/run.sh --reset
	@CC="$(CC)" tests/compile/breadth.sh $(ARGS)
	@tests/harness/run.sh --total

test-windows: export JOBQ_TEST_VERDICT = total
test-windows: ## compile for Windows by mingw-w64, and run that under wine (ARGS="--short")
	@CC="$(CC)" tests/harness/setup.sh windows
	@tests/harness/run.sh --reset
	@tests/compile/windows.sh $(ARGS)
	@tests/harness/run.sh --total

# Debian's python has Debian's selenium.
test-web: export JOBQ_TEST_VERDICT = total
test-web: ## test jobq web in a headless Chromium (ARGS="Test.test_narrow")
	@CC="$(CC)" tests/harness/setup.sh web
	@test -e .build/axe/node_modules || npm install --prefix .build/axe --loglevel=error --ignore-scripts \
		--no-save --no-package-lock --no-audit --no-fund axe-core@4.14.1 >/dev/null
	@tests/harness/run.sh --reset
	@$(MAKE) .build/jobq .build/examples/pipeline >/dev/null
	@tests/harness/run.sh --step "jobq web in a browser" tests/server.sh /usr/bin/python3 \
		tests/web/test_web.py .build/jobq $(ARGS)
	@tests/harness/run.sh --total

# Debian's python has Debian's psycopg and cffi.
test-python: export JOBQ_TEST_VERDICT = total
test-python: ## test the workers in Python, Node and Go, and the Python binding (ARGS="Test.test_killed")
	@CC="$(CC)" tests/harness/setup.sh python
	@tests/harness/run.sh --reset
	@tests/harness/run.sh --step "worker.py" tests/server.sh /usr/bin/python3 tests/python/test_worker.py $(ARGS)
	@$(MAKE) .build/cc/python_conform || :
	@tests/server.sh tests/harness/run.sh .build/cc/python_conform
	@sed -n '/ are left out:$$/,/^[^ ]*$$/p;/^\[/q' .build/log/cc-python_conform.log
	@for test in sizes node go; do tests/harness/run.sh --step "smallest workers: $$test" tests/server.sh \
		/usr/bin/python3 tests/python/test_languages.py Languages.test_$$test; done
	@test -e .build/pyarrow/done || { python3 -m venv .build/pyarrow && .build/pyarrow/bin/pip -q \
		install --disable-pip-version-check pyarrow==26.0.1 'psycopg[binary]==3.3.9' && \
		touch .build/pyarrow/done; }
	@$(MAKE) .build/jobq >/dev/null
	@tests/harness/run.sh --step "jobq export" tests/server.sh .build/pyarrow/bin/python \
		tests/python/test_export.py .build/jobq
	@CC="$(CC)" tests/harness/run.sh --step "jobq.py" tests/server.sh /usr/bin/python3 tests/python/test_binding.py
	@tests/harness/run.sh --total

static: export JOBQ_TEST_VERDICT = total
static: ## run clang-tidy, cppcheck and gcc -fanalyzer on both headers (ARGS="--short")
	@CC="$(CC)" tests/harness/setup.sh static
	@tests/harness/run.sh --reset
	@LIBPQ_CFLAGS="$(LIBPQ_CFLAGS)" tests/tools/static.sh $(ARGS)
	@tests/harness/run.sh --total

test-builds: export JOBQ_TEST_VERDICT = total
test-builds: ## build a program by each recipe of examples/build/, from the tarball; and with musl
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh builds
	@tests/harness/run.sh --reset
	@CC="$(CC)" tests/compile/builds.sh
	@tests/harness/run.sh --total

dist: ## write .build/jobq-VERSION.tar.gz: headers, sql/, licence, sums
	@tests/tools/dist.sh .build
	@cat .build/jobq-*.tar.gz.sha256

FUZZERS = $(patsubst tests/fuzz/%.c,.build/fuzz/%,$(wildcard tests/fuzz/*.c))
FUZZ_FLAGS = -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all

.build/fuzz/%: tests/fuzz/%.c $(TEST_DEPENDS)
	@mkdir -p $(@D); rm -f $@; echo "build $(@:.build/%=%)"
	$(QUIET)clang $(STRICT_C) $(POSIX) $(FUZZ_FLAGS) -I. $(LIBPQ_CFLAGS) -pthread $< $(LIBPQ_LIBS) -o $@

fuzz: export JOBQ_TEST_VERDICT = total
fuzz: ## run libFuzzer on texts and rows from outside (ARGS="--seconds N fuzz_rows")
	@CC="$(CC)" tests/harness/setup.sh fuzz
	@tests/harness/run.sh --reset
	@$(MAKE) $(JOBS) -k $(FUZZERS)
	@tests/fuzz/fuzz.sh $(ARGS)
	@tests/harness/run.sh --total

examples: $(EXAMPLES) ## build all examples as a user would
	@:

jobq: .build/jobq ## build the program jobq, with each part whose library is installed
	@:

# part FILE HEADER FLAGS...: adds the flags, if the part and its library are there.
.build/jobq: $(wildcard examples/jobq/*) $(HEADERS)
	@mkdir -p $(@D); rm -f $@
	@flags=; part() { \
		test -e examples/jobq/$$1 && echo "#include <$$2>" | $(CC) -E - >/dev/null 2>&1 || return 0; \
		shift 2; flags="$$flags $$*"; }; \
	part top.h ncurses.h -DJOBQ_TOP -lncursesw; part web.h microhttpd.h -DJOBQ_WEB -lmicrohttpd; \
	set -x; $(CC) $(CFLAGS) examples/jobq/jobq.c -I. $(LIBPQ_CFLAGS) -pthread $(LIBPQ_LIBS) $$flags -o $@

# The program jobq names the limits that a recording needs, and is built with them.
replay: .build/jobq ## replay a recording, whatever limits it has (FILE=... ARGS="--story")
	@flags=$$(.build/jobq replay $(FILE) 2>&1 >/dev/null | sed -n 's/^    \(-DJOBQ_.*\)/\1/p'); \
	test -n "$$flags" || exec .build/jobq replay $(FILE) $(ARGS); \
	$(CC) -O0 -g $$flags examples/jobq/jobq.c -I. $(LIBPQ_CFLAGS) -pthread $(LIBPQ_LIBS) \
		-o .build/jobq-replay && exec .build/jobq-replay replay $(FILE) $(ARGS)

# Programs run slowly under such a tool; JOBQ_TEST_SLOW tells the tests so.
SLOW = JOBQ_TEST_SLOW=1 JOBQ_TEST_TIMEOUT=$${JOBQ_TEST_TIMEOUT:-900}
# ThreadSanitizer needs addresses that are not randomized.
TSAN_WRAPPER = "$$(setarch -R true 2>/dev/null && echo setarch -R)"

sanitize: export JOBQ_TEST_VERDICT = total
sanitize: ## run the tests under the address, undefined and thread sanitizers
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@tests/harness/run.sh --reset
	@$(MAKE) $(JOBS) -k build-sanitize || :
	@tests/harness/run.sh $(CORE_TESTS:%=.build/asan/%)
	@exec tests/server.sh tests/harness/run.sh $(PG_TESTS:%=.build/asan/%)
	@exec env $(SLOW) JOBQ_TEST_WRAPPER=$(TSAN_WRAPPER) \
		tests/server.sh tests/harness/run.sh $(PG_TESTS:%=.build/tsan/%)
	@tests/harness/run.sh --total

valgrind: export JOBQ_TEST_VERDICT = total
# The address sanitizer looks for leaks. valgrind would also report the forked children of tests,
# which end without freeing anything, on purpose.
valgrind: ## run the tests under valgrind
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@tests/harness/setup.sh valgrind
	@tests/harness/run.sh --reset
	@$(MAKE) $(JOBS) -k build-core build-pg || :
	@exec env $(SLOW) JOBQ_TEST_WRAPPER="valgrind -q --error-exitcode=9 --leak-check=no" \
		tests/server.sh tests/harness/run.sh $(CORE_TESTS:%=.build/cc/%) $(PG_TESTS:%=.build/cc/%)
	@tests/harness/run.sh --total

# Without optimization, so that the branches counted are those of the source.
COVERED = $(CORE_TESTS) explore simulate
COVER_RUN = gcovr -r . -f 'jobq\.h' --exclude-lines-by-pattern '.*JOBQ_ASSERT\(.*' \
	$(COVERED:%=.build/coverage/%)

define COVERAGE_BUILD
@rm -rf $(@D); mkdir -p $(@D); echo "build $(@:.build/%=%)"
$(QUIET)gcc -std=c99 $(POSIX) -O0 -w --coverage -I. $(TEST_FOLDERS) $< -lcmocka -o $@
endef

.build/coverage/test_core_%/run: tests/core/test_core_%.c $(TEST_DEPENDS)
	$(COVERAGE_BUILD)

.build/coverage/%/run: tests/model/%.c $(TEST_DEPENDS)
	$(COVERAGE_BUILD)

coverage: ## check that tests take 100 % of lines and 95 % of branches of jobq.h, without asserts
	@CC="$(CC)" tests/harness/setup.sh coverage
	@$(MAKE) $(COVERED:%=.build/coverage/%/run)
	@find .build/coverage -name '*.gcda' -delete
	@for test in $(filter test_%,$(COVERED)); do .build/coverage/$$test/run >.build/coverage/$$test/log 2>&1 || \
		{ cat .build/coverage/$$test/log; exit 1; }; done
	@.build/coverage/explore/run --states 10000 >.build/coverage/explore/log
	@.build/coverage/simulate/run --seeds 3 --once --hours 0.5 >.build/coverage/simulate/log
	@$(COVER_RUN) --json .build/coverage/data.json
	@gcovr -r . -a .build/coverage/data.json --fail-under-line 100
	@gcovr -r . -a .build/coverage/data.json -b --fail-under-branch 95

# Counts are atomic because there are threads. A process that ends by a signal or _exit writes none.
.build/coverage-pg/%/run: tests/pg/%.c $(TEST_DEPENDS)
	@rm -rf $(@D); mkdir -p $(@D); echo "build $(@:.build/%=%)"
	$(QUIET)gcc -std=c99 $(POSIX) -O0 -w --coverage -fprofile-update=atomic -I. $(TEST_FOLDERS) \
		$(LIBPQ_CFLAGS) -pthread $< \
		$(call library_of,$*,tests/pg/library.c,-std=c++11 tests/pg/throws.cc $(LIBCXX)) \
		-lcmocka $(LIBPQ_LIBS) -o $@

coverage-pg: export JOBQ_TEST_VERDICT = total
coverage-pg: ## check that tests take 95 % of the lines of jobq_pg.h, without asserts
	@CC="$(CC)" CXX="$(CXX)" tests/harness/setup.sh test
	@tests/harness/setup.sh coverage-pg
	@$(MAKE) $(PG_TESTS:%=.build/coverage-pg/%/run)
	@find .build/coverage-pg -name '*.gcda' -delete
	@tests/harness/run.sh --reset
	@exec env $(SLOW) tests/server.sh tests/harness/run.sh $(PG_TESTS:%=.build/coverage-pg/%/run)
	@gcovr -r . -f 'jobq_pg\.h' --exclude-lines-by-pattern '.*JOBQ_ASSERT\(.*' \
		--fail-under-line 95 .build/coverage-pg
	@tests/harness/run.sh --total

SQL = $(sort $(wildcard sql/*.sql sql/optional/*.sql))
SQL_SUM = $(shell cat $(SQL) | cksum)
EMBED = awk -v sum="$(SQL_SUM)" -f sql/embed.awk sql/install.sql jobq_pg.h

# sql/reference.sql and sql/README.md, which are generated from the comments above functions.
.PHONY: reference
reference:
	@mkdir -p .build
	@for out in sql:reference.sql page:README.md; do \
		awk -v out=$${out%%:*} -f sql/reference.awk sql/install.sql >.build/reference || exit 1; \
		cmp -s .build/reference sql/$${out#*:} || { cp .build/reference sql/$${out#*:}; \
		echo "sql/$${out#*:}: written"; }; done

embed: reference ## write sql/reference.sql and sql/README.md, and copy sql/ into jobq_pg.h
	@$(EMBED) >.build/jobq_pg.h
	@cmp -s .build/jobq_pg.h jobq_pg.h || { cat .build/jobq_pg.h >jobq_pg.h; echo "jobq_pg.h: written"; }

fingerprint: embed ## write what a fresh schema consists of into sql/fingerprint.txt and jobq_pg.h
	@CC="$(CC)" tests/harness/setup.sh test
	@$(MAKE) .build/check/test_pg_fingerprint
	@JOBQ_TEST_SUM="$(SQL_SUM)" tests/harness/check.sh .build/check/test_pg_fingerprint --list >.build/fingerprint
	@cp .build/fingerprint sql/fingerprint.txt
	@$(MAKE) embed

verify: .build/verify/jobq.o .build/verify/jobq_pg.o ## compare jobq_pg.h with sql/; check exported names
	@$(EMBED) >.build/verify/embedded
	@diff -u jobq_pg.h .build/verify/embedded || { echo "jobq_pg.h: run make embed" >&2; exit 1; }
	@for out in sql:reference.sql page:README.md; do \
		awk -v out=$${out%%:*} -f sql/reference.awk sql/install.sql | diff -u sql/$${out#*:} - || \
		{ echo "sql/$${out#*:}: run make embed" >&2; exit 1; }; done
	@grep -qFx "$(SQL_SUM)" sql/fingerprint.txt || { echo "sql/fingerprint.txt: run make fingerprint" >&2; exit 1; }
	@find sql -name '*.sql' -exec awk '/\t/ || /[ \t]$$/ || length($$0) > 95 { bad = 1; \
		print FILENAME ":" FNR ": tab, trailing blank or over 95 columns" } END { exit bad }' {} +
	@awk '{ text = $$0; while (match(text, /\047[^\047]*\047|--.*/)) text = substr(text, RSTART + RLENGTH) } \
		text ~ /\047/ { bad = 1; print FILENAME ":" FNR ": a string continues on the next line" } \
		END { exit bad }' $(SQL) >&2
	@test "$$(grep -oh "'JQ[0-9]*'" $(SQL) | tr -d "'" | sort -u)" = "$$(sed -n \
		's/^--     \(JQ[0-9]*\)  .*/\1/p' sql/names.sql)" || { echo "sql/names.sql: its list of SQLSTATEs" \
		"is not that of the codes in sql/" >&2; exit 1; }
	@test "$$(sed -n 's/^--     \(JQ[0-9]*\)  .*/\1/p' sql/names.sql | grep -v JQ000)" = "$$(sed -n \
		's/^    {"\(JQ[0-9]*\)", .*/\1/p' jobq_pg.h)" || { echo "jobq_pg__classes: not the SQLSTATEs" \
		"that sql/names.sql lists" >&2; exit 1; }
	@awk 'FNR == 1 { stop = 0 } /^#ifdef JOBQ(_PG)?_IMPLEMENTATION/ { stop = 1 } stop { next } \
		/^ \*     jobq_[a-z0-9_]+  / { n[$$2]-- } \
		/^JOBQ_API/ && match($$0, /jobq_[a-z0-9_]+\(/) { n[substr($$0, RSTART, RLENGTH - 1)]++ } \
		END { for (name in n) if (n[name]) { bad = 1; print name ": not once in a list FUNCTIONS" } \
		exit bad }' $(HEADERS) >&2
	@awk -f tests/tools/errors.awk jobq.h >&2
	@find $(HEADERS) sql tests examples -type f \( -name '*.[ch]' -o -name '*.cc' -o -name '*.hpp' -o -name '*.sh' \
		-o -name '*.py' -o -name '*.sql' -o -name '*.awk' \) -exec awk 'function ends() { if (file && !has) { bad = 1; \
		print file ": no line SPDX-License-Identifier: MIT-0 OR Unlicense at its top" } } \
		FNR == 1 { ends(); file = FILENAME; has = 0 } \
		FNR <= 2 && /SPDX-License-Identifier: MIT-0 OR Unlicense/ { has = 1 } END { ends(); exit bad }' {} + >&2
	@awk -f tests/tools/twins.awk $(HEADERS) >&2
	@awk -f tests/tools/lengths.awk $(HEADERS) $(SQL) $(wildcard examples/*.c \
		examples/*/*.[ch] examples/*.cc examples/*.hpp) >&2
	@find tests -name '*.[ch]' -exec awk 'length($$0) > 100 { print FILENAME ":" FNR ": over 100 columns"; \
		bad = 1 } END { exit bad }' {} + >&2
	@awk '/^[a-zA-Z].*\(/ && match($$0, /jobq_[a-z_]+\(/) { name = substr($$0, RSTART, RLENGTH) } \
		name ~ /^jobq_(_?call|delivery|pg|random)_|^jobq_test_(run|sleep|enqueue)\(/ && \
		/JOBQ_ASSERT\(.* [<>]=? -?[0-9]/ && !/\(int\)/ { bad = 1; print FILENAME ":" FNR \
		": a computed number is cut or an error, no assertion: see ERRORS in jobq.h" } END { exit bad }' \
		$(HEADERS) >&2
	@awk -f tests/tools/os.awk $(HEADERS) >&2
	@awk -f tests/tools/instants.awk $(SQL) >&2
	@awk -f tests/tools/refusals.awk $(HEADERS) $(SQL) >&2
	@awk -f tests/tools/steps.awk tests/model/explore_steps.h tests/model/explore_lines.h tests/model/explore_expiry.h tests/model/explore_flows.h $(SQL) >&2
	@awk -f tests/tools/settings.awk jobq_pg.h $(SQL) >&2
	@tests/tools/words.sh
	@tests/tools/pages.sh
	@for object in $^; do nm -g "$$object" | awk -v object="$$object" 'NF == 3 && $$3 !~ /^_?jobq_/ \
		{ bad = 1; print object ": exported without jobq_: " $$3 } END { exit bad }' || exit 1; done

.build/verify/%.o: $(HEADERS)
	@mkdir -p $(@D)
	@printf '#define JOBQ_IMPLEMENTATION\n#define JOBQ_PG_IMPLEMENTATION\n#include "%s.h"\n' $* \
		>$(@:.o=.c)
	$(QUIET)$(CC) -std=c99 $(POSIX) $(CFLAGS) -O0 -Wframe-larger-than=32768 -Werror -I. \
		$(LIBPQ_CFLAGS) -c $(@:.o=.c) -o $@

clean: ## remove .build/
	rm -rf .build

mutants: ## break jobq.h and sql/ in known ways and see which tool notices (ARGS="--short" or "NAME ...")
	@CC="$(CC)" tests/harness/setup.sh mutants
	@CC="$(CC)" LIBPQ_CFLAGS="$(LIBPQ_CFLAGS)" tests/mutants/mutants.sh $(ARGS)

explore: .build/explore ## walk every interleaving of small worlds (ARGS="--states N --faults N ...")
	@exec .build/explore $(ARGS)

differential: .build/cc/test_pg_differential ## compare Postgres and jobq_memory on random calls (ARGS="--seed N ...")
	@exec tests/server.sh .build/cc/test_pg_differential $(ARGS)

judge: ## compare the calendar with cronsim and croniter of PyPI (ARGS="EXPRESSIONS")
	@tests/harness/setup.sh judge
	@test -e .build/judge/done || { python3 -m venv .build/judge && .build/judge/bin/pip -q install \
		--disable-pip-version-check cronsim==2.8 croniter==7.0.0 && touch .build/judge/done; }
	@exec tests/server.sh .build/judge/bin/python tests/core/cron_judge.py $(ARGS)

simulate: .build/simulate ## simulate hours of a busy queue (ARGS="--seed N --seeds N --hours H ...")
	@exec .build/simulate $(ARGS)

.build/explore .build/simulate: .build/%: tests/model/%.c $(TEST_DEPENDS)
	@mkdir -p $(@D); rm -f $@; echo "build $(@:.build/%=%)"
	$(QUIET)$(CC) $(STRICT_C) $(POSIX) $(CFLAGS) -I. $(TEST_FOLDERS) $< -o $@

# -- tests: one program for each file and flavour --------------------------------------------------

# `@:` keeps make from saying that there was nothing to do.
.PHONY: build-core build-pg build-sanitize build-demo build-bench build-chaos build-demo-outbox \
	compile-core compile-pg
build-core: $(CORE_TESTS:%=.build/cc/%) .build/explore .build/simulate ; @:
build-pg: $(PG_TESTS:%=.build/cc/%) ; @:
build-sanitize: $(CORE_TESTS:%=.build/asan/%) $(PG_TESTS:%=.build/asan/%)
build-sanitize: $(PG_TESTS:%=.build/tsan/%) ; @:
build-demo: .build/examples/pipeline ; @:
build-demo-outbox: .build/examples/outbox ; @:
build-bench: .build/bench/bench .build/bench/adapter ; @:

.build/bench/bench: $(wildcard tests/bench/*.c tests/bench/peers/*.c tests/bench/*.h) $(HEADERS)
	@mkdir -p $(@D); rm -f $@; echo "build $(@:.build/%=%)"
	$(QUIET)$(CC) -std=c99 -Wall -Wextra -Wpedantic -Werror $(POSIX) $(CFLAGS) -I. $(LIBPQ_CFLAGS) \
		-pthread $(filter %.c,$^) $(LIBPQ_LIBS) -o $@

.build/bench/adapter: tests/bench/harness/adapter.c $(HEADERS)
	@mkdir -p $(@D); rm -f $@; echo "build $(@:.build/%=%)"
	$(QUIET)$(CC) -std=c99 -Wall -Wextra -Wpedantic -Werror $(POSIX) $(CFLAGS) -I. $(LIBPQ_CFLAGS) \
		-pthread $< $(LIBPQ_LIBS) -o $@

build-chaos: .build/chaos/actor .build/chaos/proxy .build/next/actor ; @:
.build/chaos/%: tests/chaos/%.c tests/chaos/log.h tests/chaos/flows.h $(HEADERS)
	@mkdir -p $(@D); rm -f $@; echo "build $(@:.build/%=%)"
	$(QUIET)$(CC) -std=c99 -Wall -Wextra -Wpedantic -Werror -D_GNU_SOURCE $(CFLAGS) -O0 -I. \
		$(LIBPQ_CFLAGS) -pthread $< $(LIBPQ_LIBS) -o $@

comma = ,
# The programs on Postgres share one build of the library, except those that test private functions.
PRIVATE_TESTS := $(patsubst tests/pg/%.c,%,$(shell grep -l '^.define TEST_PRIVATE' tests/pg/test_pg_*.c))
library_of = $(if $(filter $(PRIVATE_TESTS),$(1)),,$(if $(filter test_pg_throws,$(1)),$(3),$(2)))
# A C program that links one in C++ needs its library.
LIBCXX = $(if $(filter Darwin,$(shell uname)),-lc++,-lstdc++)

# Most tests wait more than they compute: to optimize them takes longer than it saves. These compute.
HOT_TESTS = test_core_record test_core_relay test_core_crowd test_core_permits test_pg_differential
# $(1): flavour, $(2): its flags, $(3): flags for all but the library and HOT_TESTS
define TEST_RULES
.build/$(1)/library.o: tests/pg/library.c $$(HEADERS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$$(CC) $$(STRICT_C) $$(POSIX) $$(CFLAGS) $(2) -I. $$(LIBPQ_CFLAGS) -c $$< -o $$@

.build/$(1)/throws.o: tests/pg/throws.cc tests/pg/throws.h $$(HEADERS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$$(CXX) $$(STRICT_CXX) $$(CXXFLAGS) $(2) -I. $$(LIBPQ_CFLAGS) -c $$< -o $$@
.build/$(1)/test_pg_throws: .build/$(1)/throws.o

.build/$(1)/test_core_%: tests/core/test_core_%.c $$(TEST_DEPENDS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$$(CC) $$(STRICT_C) $$(POSIX) $$(CFLAGS) $(2) $$(if $$(filter $$(@F),$(HOT_TESTS)),,$(3)) \
		-I. $(TEST_FOLDERS) $$< -lcmocka -o $$@

.build/$(1)/test_pg_%: tests/pg/test_pg_%.c .build/$(1)/library.o $$(TEST_DEPENDS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$$(CC) $$(STRICT_C) $$(POSIX) $$(CFLAGS) $(2) $$(if $$(filter $$(@F),$(HOT_TESTS)),,$(3)) \
		-I. $(TEST_FOLDERS) $$(LIBPQ_CFLAGS) -pthread $$< \
		$$(call library_of,$$(@F),.build/$(1)/library.o,.build/$(1)/throws.o $$(LIBCXX)) \
		-lcmocka $$(LIBPQ_LIBS) -o $$@

.build/$(1)/python_conform: tests/python/python_conform.c $$(TEST_DEPENDS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$$(CC) $$(STRICT_C) $$(POSIX) $$(CFLAGS) $(2) $(3) -I. $(TEST_FOLDERS) $$(LIBPQ_CFLAGS) -pthread $$< \
		-lcmocka $$(LIBPQ_LIBS) -o $$@

.build/$(1)/nodes .build/$(1)/citus: .build/$(1)/%: tests/pg/%.c .build/$(1)/library.o $$(TEST_DEPENDS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$$(CC) $$(STRICT_C) $$(POSIX) $$(CFLAGS) $(2) -I. $(TEST_FOLDERS) $$(LIBPQ_CFLAGS) -pthread $$< \
		.build/$(1)/library.o -lcmocka $$(LIBPQ_LIBS) -o $$@
endef
FLAVOURS = cc check asan tsan
$(eval $(call TEST_RULES,cc,,-O0))
$(eval $(call TEST_RULES,check,-O0))
$(eval $(call TEST_RULES,asan,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all))
$(eval $(call TEST_RULES,tsan,-fsanitize=thread))

# The program of a made-up next version, which test_pg_deploy runs.
.build/next/jobq_pg.h: $(HEADERS) $(SQL) $(wildcard tests/pg/next/*)
	@tests/pg/next/make.sh .build/next

.build/next/migrate: tests/pg/next/migrate.c .build/next/jobq_pg.h
	@echo "build next/migrate"
	$(QUIET)$(CC) -std=c99 $(POSIX) -w -O0 -I.build/next $(LIBPQ_CFLAGS) -pthread $< $(LIBPQ_LIBS) -o $@

.build/next/actor: tests/chaos/actor.c tests/chaos/log.h tests/chaos/flows.h .build/next/jobq_pg.h
	@echo "build next/actor"
	$(QUIET)$(CC) -std=c99 -D_GNU_SOURCE -w $(CFLAGS) -O0 -I.build/next $(LIBPQ_CFLAGS) -pthread $< \
		$(LIBPQ_LIBS) -o $@

$(FLAVOURS:%=.build/%/test_pg_deploy): | .build/next/migrate

# Two plugins, each with a copy of the library, which test_pg_copies loads.
PLUGINS = .build/plugins/a.so .build/plugins/b.so
$(PLUGINS): tests/pg/plugin.c tests/pg/copy.h $(HEADERS)
	@mkdir -p $(@D); rm -f $@; echo "build $(@:.build/%=%)"
	$(QUIET)$(CC) $(STRICT_C) $(POSIX) $(CFLAGS) -O0 -fPIC -shared -I. $(LIBPQ_CFLAGS) -pthread $< \
		$(LIBPQ_LIBS) -o $@

$(FLAVOURS:%=.build/%/test_pg_copies) .build/coverage-pg/test_pg_copies/run: | $(PLUGINS)

# The program jobq of schema version 11, with its sql/, which test_pg_carry runs. Without that commit,
# as in a tarball or a shallow clone, nothing is built, and the tests are skipped.
OLDER = 25920cd
.build/older/jobq:
	@rm -rf $(@D) && mkdir -p $(@D)
	@! git archive -o $(@D)/tree.tar $(OLDER) jobq.h jobq_pg.h examples/jobq sql 2>/dev/null || { \
		echo "build older/jobq" && tar -x -C $(@D) -f $(@D)/tree.tar && cd $(@D) && \
		$(CC) -std=c99 $(POSIX) -w -O0 -I. $(LIBPQ_CFLAGS) -pthread examples/jobq/jobq.c \
			$(LIBPQ_LIBS) -o jobq; }

$(FLAVOURS:%=.build/%/test_pg_carry): | .build/older/jobq

# -- compile tests: each must compile and link, with gcc and clang where both are installed --------
#
# compile_core_x.c is one program; compile_core_x_a.c and compile_core_x_b.cc together are another.

have = $(shell command -v $(1))
KINDS := $(if $(and $(call have,gcc),$(call have,g++),$(call have,clang++)),gcc clang,cc)
CC_gcc = gcc
CXX_gcc = g++
CC_clang = clang
CXX_clang = clang++
CC_cc = $(CC)
CXX_cc = $(CXX)

compile_files = $(wildcard tests/compile/compile_$(1)_*.c tests/compile/compile_$(1)_*.cc)
compile_parts = $(wildcard tests/compile/compile_$(1)_*_[ab].c tests/compile/compile_$(1)_*_[ab].cc)
compile_programs = $(notdir $(filter-out $(compile_parts),$(compile_files)) \
	$(sort $(patsubst %_a,%,$(patsubst %_b,%,$(basename $(compile_parts))))))
compile_targets = $(foreach kind,$(KINDS),$(addprefix .build/$(kind)-compile/,$(compile_programs)))
COMPILE_CORE := $(call compile_targets,core)
COMPILE_PG := $(call compile_targets,pg)
compile-core: $(COMPILE_CORE) ; @:
compile-pg: $(COMPILE_PG) ; @:

# $(1): program, $(2): its sources, $(3): kind of compiler, $(4): flags to compile, $(5): to link
define COMPILE_RULE
$(1): $(2) $$(TEST_DEPENDS)
	@mkdir -p $$(@D); rm -f $$@; echo "build $$(@:.build/%=%)"
	$$(QUIET)$(foreach file,$(filter %.c,$(2)),$$(CC_$(3)) $$(STRICT_C) $(4) $$(CFLAGS) -O0 -I. $(TEST_FOLDERS) \
		-c $(file) -o $$@-$(notdir $(file)).o &&) \
	$(foreach file,$(filter %.cc,$(2)),$$(CXX_$(3)) $$(STRICT_CXX) $(4) $$(CXXFLAGS) -O0 -I. $(TEST_FOLDERS) \
		-c $(file) -o $$@-$(notdir $(file)).o &&) \
	$$($(if $(filter %.cc,$(2)),CXX,CC)_$(3)) $(patsubst tests/compile/%,$$@-%.o,$(2)) $(5) -o $$@

endef
compile_ends = $(foreach end,_a.c _b.c _a.cc _b.cc,tests/compile/$(1)$(end))
compile_sources = $(wildcard tests/compile/$(notdir $(1)) $(call compile_ends,$(notdir $(1))))
compile_kind = $(patsubst .build/%-compile/,%,$(dir $(1)))
$(foreach program,$(COMPILE_CORE),$(eval $(call COMPILE_RULE,$(program),$(call \
	compile_sources,$(program)),$(call compile_kind,$(program)))))
$(foreach program,$(COMPILE_PG),$(eval $(call COMPILE_RULE,$(program),$(call \
	compile_sources,$(program)),$(call compile_kind,$(program)),$(POSIX) \
	$(LIBPQ_CFLAGS),$(LIBPQ_LIBS) -pthread)))

# -- examples: each built by the one line that the pages and the header promise --------------------

.build/examples/attune/attune .build/cc/test_pg_attune .build/asan/test_pg_attune: \
	examples/attune/attune.h

.build/examples/jobq/jobq: $(wildcard examples/jobq/*)

.build/examples/worker_cc: examples/jobq.hpp

.build/examples/seal/%: examples/seal/%.c $(HEADERS)
	@mkdir -p $(@D); rm -f $@
	$(CC) $< -I. -lpq -l$* -o $@

FLAGS_glib = $$(pkg-config --cflags --libs glib-2.0)
FLAGS_libuv = -luv
FLAGS_sd_event = -lsystemd
FLAGS_asio = -std=c++20
FLAGS_qt = -std=c++17 $$(pkg-config --cflags --libs Qt6Core)
.build/examples/loops/%_cc: examples/loops/%.cc examples/loops/app.h $(HEADERS)
	@mkdir -p $(@D); rm -f $@
	$(CXX) $< -I. -lpq $(FLAGS_$*) -o $@

.build/examples/loops/%: examples/loops/%.c examples/loops/app.h $(HEADERS)
	@mkdir -p $(@D); rm -f $@
	$(CC) $< -I. -lpq $(FLAGS_$*) -o $@

.PHONY: loops
loops: $(LOOPS) ; @:

.build/examples/%: examples/%.c $(HEADERS)
	@mkdir -p $(@D); rm -f $@
	$(CC) $< -I. -lpq -o $@

.build/examples/%_cc: examples/%.cc $(HEADERS)
	@mkdir -p $(@D); rm -f $@
	$(CXX) -std=c++17 $< -I. -lpq -o $@
