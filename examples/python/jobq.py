# SPDX-License-Identifier: MIT-0 OR Unlicense
"""jobq in Python, over cffi (ABI mode): enqueue, workers, the queue in memory. Copy it.

    import jobq
    db = jobq.Database("dbname=app")
    db.migrate()
    db.enqueue("mail", "welcome", {"to": "ann"}, delay_us=60 * 10**6)
    def welcome(call):              # call.payload, headers, attempt, stage, id
        send(call.payload["to"])    # returns: success, with this result; raises: see Outcome
    db.work({("mail", "welcome"): welcome}, threads=4)       # until SIGTERM or SIGINT

    test = jobq.Memory({("mail", "welcome"): welcome})       # no database, and a clock of its own
    job = test.enqueue("mail", "welcome", {"to": "ann"})
    test.run(3600)                  # up to an hour, which takes no time
    assert test.state(job) == "succeeded"

The two headers are compiled and their declarations read when this is first imported, by $CC, into
the folder $JOBQ_BUILD (~/.cache/jobq), which nobody else may write to; $JOBQ_HEADERS is where they
are. So nothing here repeats what they declare:
the fields of jobq_pg_job, jobq_test_job and jobq_loop_config are the keywords of enqueue and work.
Handlers run in the worker's threads, one at a time in Python, because of its lock.
"""
import hashlib, json, os, re, shlex, signal, stat, subprocess, traceback
import cffi

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = os.environ.get("JOBQ_HEADERS", os.path.join(HERE, "..", ".."))
BUILD = os.environ.get("JOBQ_BUILD", os.path.expanduser("~/.cache/jobq"))
OPAQUE = """typedef struct pg_conn PGconn; typedef struct pg_result PGresult; typedef unsigned int Oid;
            struct pollfd { int fd; short events; short revents; };"""


def compiler(*arguments):
    include = subprocess.run(["pg_config", "--includedir"], capture_output=True, text=True).stdout.strip()
    command = [*shlex.split(os.environ.get("CC", "cc")), "-D_POSIX_C_SOURCE=200809L", "-I", HEADERS,
               "-I", include, "-x", "c", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declarations():
    """What the headers declare, without what they include."""
    own, lines = False, []
    for line in compiler("-E", os.path.join(HEADERS, "jobq_pg.h")).split("\n"):
        place = re.match(r'# \d+ "(.*)"', line)
        if place:
            own = os.path.basename(place[1]) in ("jobq.h", "jobq_pg.h")
        elif own:
            lines.append(line)
    return OPAQUE + "\n".join(lines)


def library():
    """Compiles the headers, once for each text of theirs."""
    text = b"".join(open(os.path.join(HEADERS, name), "rb").read() for name in ("jobq.h", "jobq_pg.h"))
    path = os.path.join(BUILD, f"libjobq-{hashlib.sha256(text).hexdigest()[:16]}.so")
    os.makedirs(BUILD, mode=0o700, exist_ok=True)
    folder = os.lstat(BUILD)
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid() or folder.st_mode & 0o022:
        raise PermissionError(f"{BUILD}: others could put code there; set JOBQ_BUILD to a folder of yours")
    if not os.path.exists(path):
        source, made = path[:-3] + ".c", f"{path}.{os.getpid()}"
        with open(source, "w", encoding="ascii") as out:
            out.write('#define JOBQ_IMPLEMENTATION\n#define JOBQ_PG_IMPLEMENTATION\n#include "jobq_pg.h"\n')
        compiler("-O2", "-w", "-shared", "-fPIC", source, "-o", made, "-lpq", "-pthread")
        os.rename(made, path)
    return ffi.dlopen(path)


ffi = cffi.FFI()
ffi.cdef(declarations())
lib = library()


class Error(Exception):
    def __init__(self, error):
        super().__init__(ffi.string(error.message).decode())
        self.code = word(lib.JOBQ_ENUM_ERROR, error.code)
        self.sqlstate = ffi.string(error.sqlstate).decode()


class Outcome(Exception):
    """raise Outcome("discard", "no such user"), Outcome("snooze", delay_us=10**6), or another of
    jobq_outcome. Any other exception is a retry."""
    def __init__(self, outcome, error=None, delay_us=None):
        super().__init__(error)
        self.outcome, self.error, self.delay_us = outcome, error, delay_us


def word(of, value):
    return ffi.string(lib.jobq_enum_name(of, int(value))).decode()


def text(value, keep):
    """A jobq_str of JSON, or of bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    buffer = ffi.from_buffer(data)
    keep.append((data, buffer))
    return {"ptr": ffi.cast("const char *", buffer), "len": len(data)}


def filled(kind, keep, queue, name, payload, headers, more):
    job = ffi.new(kind)
    more = {"queue": queue, "kind": name, **more} if queue is not None else more
    if payload is not None:
        job.payload, job.payload_bytes = text(payload, keep), isinstance(payload, bytes)
    if headers is not None:
        job.headers = text(headers, keep)
    for field, value in more.items():
        if isinstance(value, str):
            keep.append(value := ffi.new("char[]", value.encode()))
        setattr(job, field, value)
    keep.append(job)
    return job


def value(of, is_bytes):
    if of.ptr == ffi.NULL:
        return None
    data = ffi.buffer(of.ptr, of.len)[:]
    return data if is_bytes else json.loads(data)


class Call:
    def __init__(self, call):
        self.call, self.id, self.attempt, self.stage = call, call.job.id, call.job.attempt, call.job.stage
        self.payload, self.headers = value(call.payload, call.payload_bytes), value(call.headers, False)

    def stopping(self):
        """Why it should end soon: 0, or a jobq_stop."""
        return lib.jobq_call_stopping(self.call, NULL)

    def log(self, message, level="info"):
        keep = []
        levels = [word(lib.JOBQ_ENUM_LEVEL, n) for n in range(4)]
        lib.jobq_call_log(self.call, levels.index(level), text(message.encode(), keep))

    def end(self, returned):
        if returned is None:
            return lib.JOBQ_OUTCOME_SUCCESS
        keep = []
        if lib.jobq_call_result(self.call, text(returned, keep), isinstance(returned, bytes)):
            return lib.JOBQ_OUTCOME_SUCCESS
        raise Outcome("retry", "the result is too large")


@ffi.callback("jobq_outcome(jobq_call *)", error=0)  # 0: counts as a retry
def run(call):
    keep = []
    try:
        one = Call(call)
        return one.end(ffi.from_handle(call.user)(one))
    except Outcome as ended:
        outcome, error, delay = ended.outcome, ended.error, ended.delay_us
    except Exception as raised:
        outcome, error, delay = "retry", "".join(traceback.format_exception_only(raised)).strip(), None
    if error is not None:
        lib.jobq_call_error(call, text(str(error).encode(), keep))
    if delay is not None:
        lib.jobq_call_delay(call, delay)
    names = [word(lib.JOBQ_ENUM_OUTCOME, n) for n in range(lib.JOBQ_OUTCOME_COUNT)]
    return names.index(outcome)


def registered(handlers, kind, keep):
    """The function runs all stages of its kind."""
    made = ffi.new(kind + "[]", len(handlers))
    for at, ((queue, name), function) in zip(made, handlers.items()):
        held = ffi.new("char[]", queue.encode()), ffi.new("char[]", name.encode()), ffi.new_handle(function)
        keep.append((held, function))  # C does not keep them alive
        at.queue, at.kind, at.user = held
        for stage in range(len(at.run)):
            at.run[stage] = run
    keep.append(made)
    return made


class Database:
    def __init__(self, conninfo, **desc):
        keep, out, self.error = [], ffi.new("jobq_pg **"), ffi.new("jobq_pg_error *")
        desc = filled("jobq_pg_desc *", keep, None, None, None, None, {"conninfo": conninfo, **desc})
        self.check(lib.jobq_pg_open(out, desc, self.error))
        self.pg = ffi.gc(out[0], lib.jobq_pg_close)

    def check(self, code, error=None):
        if code != lib.JOBQ_OK:
            raise Error(error or self.error)

    def migrate(self):
        self.check(lib.jobq_pg_migrate(self.pg, self.error))

    def enqueue(self, queue, kind, payload=None, headers=None, connection=None, **job):
        """connection: of psycopg; the job exists if its transaction commits. Returns the id."""
        keep, out, error, conn = [], ffi.new("int64_t *"), ffi.new("jobq_pg_error *"), ffi.NULL
        if connection is not None:
            import psycopg
            if psycopg.pq.__impl__ == "binary":
                raise RuntimeError("psycopg-binary has a libpq of its own: install psycopg[c]")
            connection.execute("")  # begins a transaction, unless it is in autocommit
            conn = ffi.cast("PGconn *", connection.pgconn.pgconn_ptr)
        made = filled("jobq_pg_job *", keep, queue, kind, payload, headers, job)
        self.check(lib.jobq_pg_enqueue(self.pg, conn, made, out, error), error)
        return out[0]

    def work(self, handlers, until="stopped", **loop):
        """Runs a worker. until: stopped (by a signal), ended or empty; see jobq_until."""
        keep, desc, error = [], ffi.new("jobq_pg_worker_desc *"), ffi.new("jobq_pg_error *")
        desc.handlers, desc.handler_count = registered(handlers, "jobq_pg_handler", keep), len(handlers)
        desc.stop_signals[0], desc.stop_signals[1] = signal.SIGTERM, signal.SIGINT
        desc.loop.until = getattr(lib, f"JOBQ_UNTIL_{until.upper()}")
        for field, number in loop.items():
            setattr(desc.loop, field, number)
        self.check(lib.jobq_pg_work(self.pg, desc, error), error)


class Memory:
    def __init__(self, handlers):
        self.keep = [ffi.new("int64_t[]", lib.jobq_test_size() // 8 + 1)]
        self.test = lib.jobq_test_init(self.keep[0], registered(handlers, "jobq_job_handler", self.keep),
                                       len(handlers))

    def enqueue(self, queue, kind, payload=None, headers=None, **job):
        made = filled("jobq_test_job *", self.keep, queue, kind, payload, headers, job)
        if (job := lib.jobq_test_enqueue(self.test, made)) == 0:
            raise ValueError("a name, payload or header that jobq refuses")
        return job

    def run(self, seconds):
        return lib.jobq_test_run(self.test, int(seconds * 1e6))

    def state(self, job):
        return word(lib.JOBQ_ENUM_STATE, lib.jobq_test_get(self.test, job).job.state)

    def result(self, job):
        return value(lib.jobq_test_get(self.test, job).result, False)
