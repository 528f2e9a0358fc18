# SPDX-License-Identifier: MIT-0 OR Unlicense
"""A worker of jobq in Python, on psycopg 3: what sql/optional/protocol.sql describes. Copy it.

    import worker
    def welcome(job):            # returns: the job's stage succeeded, with this result
        send(job.payload["to"])  # raises: it runs again, or fails at its attempt limit
    worker.Worker("dbname=app", {"mail": {"welcome": welcome}}).run()  # until SIGTERM or SIGINT

A handler runs at least once, in one of the worker's threads. `with job.transaction() as cursor:`
has its effects exactly once: what it writes there commits with the end of the job, or not at all.
(After psycopg.Rollback there, what the handler returns or raises is the job's end, as without it.)
Afterwards the session's settings, role, LISTEN, advisory locks and temporary tables are reset.
A handler that runs for long looks at job.stop, an event: its lease is lost, or somebody cancels it.

worker.Batch(store, most=100), as a handler, calls store(jobs) for up to 100 jobs of its kind. It
returns nothing, or a list with a result for each; job.end = worker.End("discard", "no row") is the
end of one. `with worker.transaction(jobs) as cursor` commits with the ends of all of these.
"""
import contextlib, json, logging, operator, os, select, signal, socket, threading, time, traceback
import psycopg
from psycopg.types.json import Jsonb

log = logging.getLogger("jobq")
LISTEN = """do $$ begin -- it reads the server's whole queue of notifications: only a short one
    if exists (select from pg_listening_channels()) or pg_notification_queue_usage() < 0.01 then
        listen "{}"; end if; end $$"""
CONNECTION = {  # what the worker's conninfo does not say. A server that vanishes is noticed in 18 s
    "connect_timeout": 9, "keepalives_idle": 9, "keepalives_interval": 3, "keepalives_count": 3,
    "tcp_user_timeout": 18000, "target_session_attrs": "primary", "client_encoding": "utf8"}
FRESH = """close all; set session authorization default; reset role; reset all; unlisten *;
    discard temp; discard sequences; select pg_advisory_unlock_all();
    set session characteristics as transaction isolation level read committed, read write"""
COLUMNS = {"work_take": "id, queue, kind, attempt, crash, stage, stages, timeout, payload::text, "
                        "bytes, headers::text"}  # run_handler loads the JSON


class End(Exception):
    """raise End("discard", "no such user"); End("snooze", delay="1 hour"): see work_fail."""
    def __init__(self, outcome, error=None, delay=None):
        self.outcome, self.error, self.delay = outcome, error, delay


class Batch:
    def __init__(self, handler, most=100):
        self.handler, self.most = handler, most


@contextlib.contextmanager
def transaction(jobs, results=None):
    owner, done = jobs[0].owner, False
    connection = owner.connection()
    owner.own.fresh = False
    with contextlib.ExitStack() as commit, connection.transaction():
        yield connection.cursor()
        ends = zip(jobs, results or [None] * len(jobs))
        for job, result in sorted(ends, key=lambda end: end[0].id):  # in one order: no deadlock
            result = None if result is None else Jsonb(result)
            owner.call(connection, "work_done", *job.token, job.id, result)
        done = commit.enter_context(owner.bounded())
    for job in jobs:
        job.ended = job.ended or done  # not after a Rollback


class Job:
    end = None  # of a job in a batch: an End

    def __init__(self, owner, token, row):
        self.owner, self.token, self.stop, self.ended = owner, token, threading.Event(), False
        (self.id, self.queue, self.kind, self.attempt, self.crash, self.stage, self.stages,
         self.timeout, self.payload, self.bytes, self.headers) = row

    def transaction(self, result=None):
        return transaction([self], [result])


class Own(threading.local):
    """What each thread has. fresh: no handler has changed the connection's session."""
    connection, socket, fresh, pooled = None, None, False, False


class Worker:
    poll = 1  # seconds: the longest sleep without a look at the queues

    def __init__(self, conninfo, handlers, threads=4, lease=30, grace=30, schema="jobq", name=None):
        self.conninfo, self.handlers, self.schema, self.name = conninfo, handlers, schema, name
        self.threads, self.lease, self.grace, self.own = threads, lease, grace, Own()
        self.stopping, self.left = threading.Event(), threading.Event()
        self.turn, self.pulse = threading.Lock(), threading.Lock()
        (self.wake_read, self.wake_write), self.number, self.jobs = os.pipe(), 0, set()
        self.waits, self.unanswered = {}, None
        self.most = max((getattr(handler, "most", 1) for kinds in handlers.values()
                         for handler in kinds.values()), default=1)  # jobs of a take
        self.ready = []  # taken for a batch, and not of it: they come next

    def connect(self):
        """Without prepared statements, which a pooler may not keep."""
        given = psycopg.conninfo.conninfo_to_dict(self.conninfo)
        return psycopg.connect(autocommit=True, prepare_threshold=None, **{**CONNECTION, **given})

    def connection(self):  # the calling thread's
        own = self.own
        if own.connection is None or own.connection.closed:
            own.connection, own.fresh = self.connect(), False
            own.connection.add_notify_handler(lambda _: None)  # else psycopg keeps them all
            own.socket = socket.socket(fileno=os.dup(own.connection.fileno()))
            with self.bounded():
                [pid] = own.connection.execute("select pg_backend_pid()").fetchone()
            own.pooled = pid != own.connection.info.backend_pid  # its session is others', too
        if not own.fresh and not own.pooled:
            with self.bounded():
                own.connection.execute(FRESH)
        own.fresh = True
        return own.connection

    def drop(self):
        """The next call gets a new connection: this one may lead to a standby by now."""
        if self.own.connection:
            self.own.connection.close()

    @contextlib.contextmanager
    def bounded(self):
        """run() breaks the thread's connection if this takes longer than a lease."""
        line = self.own.socket
        self.waits[line] = time.monotonic() + self.lease
        try:
            yield True
        finally:
            self.waits.pop(line, None)

    def call(self, connection, function, *values):
        text = (f'SELECT {COLUMNS.get(function, "*")} FROM "{self.schema}".{function}'
                f'({", ".join(["%s"] * len(values))})')
        with self.bounded():
            return connection.execute(text, values, binary=True).fetchall()

    def until_answered(self, function, *values, pause=0.02):
        """Calls it on the thread's connection, again and again as long as no answer comes."""
        while True:
            try:
                return self.call(self.connection(), function, *values)
            except (psycopg.OperationalError, psycopg.InternalError) as error:
                log.warning("%s: %s", function, str(error).strip())
                self.drop()
                if self.stopping.is_set() and function in ("work_join", "work_recover"):
                    raise
                time.sleep(pause := min(pause * 2, 5))

    def join(self):
        kinds, sent = {name: list(kinds) for name, kinds in self.handlers.items()}, time.monotonic()
        [(self.worker, self.channel)] = self.until_answered("work_join", Jsonb(kinds), self.name,
            f"{self.lease} seconds", socket.gethostname(), os.getpid())
        self.alive_until, self.watched = sent + self.lease, {}
        self.jobs.difference_update(self.ready)  # another worker has, or will have, them
        self.ready = []

    def beat(self):
        """Renews the lease, or joins again. Hears of cancels, and rescues the jobs of the dead."""
        with self.pulse:
            before, self.watched = self.watched, {}  # an outage proves no worker dead
            sent, connection = time.monotonic(), self.connection()
            [(watched, alive, cancel)] = self.call(
                connection, "work_heartbeat", self.worker, int(sent * 1e6), Jsonb(before))
            if not alive:
                return self.join()
            self.alive_until = sent + self.lease
            for job in self.jobs.copy():
                if job.id in cancel:
                    job.stop.set()
            self.call(connection, "work_rescue", self.worker, int(sent * 1e6), Jsonb(watched))
            self.watched = watched

    def beats(self):
        while not self.left.wait(self.lease / 6):
            try:
                self.beat()
            except Exception as error:
                log.warning("heartbeat: %s", str(error).strip())
                self.drop()

    def take(self, most=1):
        self.number += 1
        self.unanswered = token = self.worker, self.number
        rows = self.call(self.connection(), "work_take", *token, most)
        self.unanswered = None
        jobs = [Job(self, token, row) for row in rows]
        self.jobs.update(jobs)
        return jobs

    def mates(self):
        """The first ready job and those of its batch; with each attempt, half as many."""
        first, mates, others = self.ready[0], [], []
        most = getattr(self.handlers[first.queue][first.kind], "most", 1) >> first.attempt - 1
        alike = operator.attrgetter("queue", "kind", "stage", "attempt", "timeout")
        for job in self.ready:
            fits = alike(job) == alike(first) and len(mates) < max(most, 1)
            (mates if fits else others).append(job)
        self.ready = others
        return mates

    def next_jobs(self):
        """Waits for a job, or a batch. None: the worker stops."""
        nap = 0.01
        while not self.stopping.is_set():
            try:
                if self.ready:
                    return self.mates()
                if self.unanswered:  # no thread has the jobs of that number
                    token, self.unanswered = self.unanswered, None
                    self.until_answered("work_recover", *token)
                if time.monotonic() > self.alive_until:
                    self.beat()  # without a lease it would only give back what it takes
                    continue
                self.ready = self.take(self.most)
                if self.ready:
                    continue
                with self.bounded():
                    self.connection().execute(LISTEN.format(self.channel))  # if it does not yet
                heard, _, _ = select.select([self.connection(), self.wake_read], [], [], nap)
                nap = 0.01 if heard else min(nap * 2, self.poll)
            except Exception as error:
                log.warning("take: %s", str(error).strip())
                self.drop()
                if getattr(error, "sqlstate", "") == "JQ002":  # dead: a heartbeat was too late
                    self.unanswered, self.alive_until = None, 0
                self.stopping.wait(nap := min(nap * 2, self.poll))

    def run_handler(self, *jobs):
        """Returns how each job ends: a function of the protocol, and values."""
        try:
            if self.stopping.is_set() or time.monotonic() > self.alive_until:
                raise End("release")
            for job in jobs:
                job.payload, job.headers = (json.loads(text) if text else None
                                            for text in (job.payload, job.headers))
            handler = self.handlers[job.queue][job.kind]
            if isinstance(handler, Batch):
                results = handler.handler(list(jobs)) or [None] * len(jobs)
            else:
                results = [handler(job)]
            ends = [("work_done", None if result is None else Jsonb(result)) for result in results]
        except End as end:
            ends = [("work_fail", end.error, end.outcome, end.delay)] * len(jobs)
        except BaseException as error:  # a job that is to be cancelled is, then
            why = traceback.format_exception_only(type(error), error)[-1].strip()
            ends = [("work_fail", why)] * len(jobs)
        return [("work_fail", job.end.error, job.end.outcome, job.end.delay) if job.end else end
                for job, end in zip(jobs, ends)]

    def handle(self, *jobs):
        """Runs jobs in one call and writes the end of each."""
        for job, end in zip(jobs, self.run_handler(*jobs)):
            self.write_end(job, end)

    def write_end(self, job, end):
        """If it is refused, the attempt has failed."""
        ends = [end]
        for function, *values in ends:
            try:
                if not job.ended:  # in the handler's own transaction
                    self.until_answered(function, *job.token, job.id, *values)
            except Exception as error:  # JQ001: another worker has the job
                log.warning("job %s: %s", job.id, str(error).strip())
                if len(ends) == 1:
                    ends.append(("work_fail", ascii(f"{type(error).__name__}: {error}")))
        self.jobs.remove(job)

    def serve(self):
        while not self.stopping.is_set():
            with self.turn:  # one of the threads waits for a job; the others wait for their turn
                jobs = self.next_jobs()
            if jobs:
                self.handle(*jobs)

    def stop(self, *_):
        self.stopping.set()
        os.write(self.wake_write, b"x")  # ends a sleep, and all later ones

    def run(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.stop)
        self.join()
        threads = [threading.Thread(target=self.serve, daemon=True) for _ in range(self.threads)]
        for thread in [threading.Thread(target=self.beats, daemon=True), *threads]:
            thread.start()
        while self.grace > 0 and any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            self.grace -= 0.05 * self.stopping.is_set()  # what is left of it
            for job in self.jobs.copy():
                if time.monotonic() > self.alive_until or job.token[0] != self.worker:
                    job.stop.set()  # others may have the job now
            for line, until in self.waits.copy().items():
                if time.monotonic() > until:
                    with contextlib.suppress(OSError):
                        line.shutdown(socket.SHUT_RDWR)
        self.left.set()
        values = "work_leave", self.worker
        (leave := threading.Thread(target=self.until_answered, args=values, daemon=True)).start()
        leave.join(9)  # else others rescue its jobs
        if not self.stopping.is_set():
            raise RuntimeError("the threads have failed")
