"""A worker of jobq in Python, on psycopg 3: what sql/protocol.sql describes. Copy it.

    import worker
    def welcome(job):            # returns: the job's stage succeeded, with this result
        send(job.payload["to"])  # raises: it runs again, or fails at its attempt limit
    worker.Worker("dbname=app", {"mail": {"welcome": welcome}}).run()  # until SIGTERM or SIGINT

A handler runs at least once, in a thread of its own. `with job.transaction() as cursor:` has its
effects exactly once: what it writes there commits together with the end of the job, or not at all.
A handler that runs for long looks at job.stop, an event: its lease is lost, or somebody cancels it.
"""
import contextlib, logging, queue, select, signal, socket, os, threading, time
import psycopg
from psycopg.types.json import Jsonb

log = logging.getLogger("jobq")


class End(Exception):
    """raise End("discard", "no such user"); End("snooze", delay="1 hour"): see work_fail."""
    def __init__(self, outcome, error=None, delay=None):
        super().__init__(error)
        self.outcome, self.error, self.delay = outcome, error, delay


class Job:
    def __init__(self, owner, worker, number, row):
        self.owner, self.token, self.stop, self.ended = owner, (worker, number), threading.Event(), False
        (self.id, self.queue, self.kind, self.attempt, self.crash, self.stage, self.stages,
         self.timeout, self.payload, self.bytes, self.headers) = row

    @contextlib.contextmanager
    def transaction(self, result=None):
        with self.owner.connect() as connection, connection.transaction():
            yield connection.cursor()
            connection.execute(self.owner.sql("work_done(%s, %s, %s, %s)"),
                               (*self.token, self.id, None if result is None else Jsonb(result)))
        self.ended = True


class Worker:
    poll = 1  # seconds: the longest sleep without a look at the queues

    def __init__(self, conninfo, handlers, threads=4, lease=30, grace=30, schema="jobq", name=None):
        self.conninfo, self.handlers, self.schema, self.name = conninfo, handlers, schema, name
        self.threads, self.lease, self.grace = threads, lease, grace
        self.stopping, self.jobs, self.work = threading.Event(), {}, queue.Queue()
        self.worker, self.alive_at, self.lock = None, 0, threading.Lock()
        self.wake_read, self.wake_write = os.pipe()  # a free thread, or a signal, ends a sleep
        os.set_blocking(self.wake_write, False)

    def sql(self, call, columns="*"):
        return f'SELECT {columns} FROM "{self.schema}".{call}'

    def connect(self):
        return psycopg.connect(self.conninfo, autocommit=True, connect_timeout=10, keepalives_idle=10)

    def until_answered(self, connection, statement, values, patience):
        """Sends it again as long as no answer comes. Returns the connection and the rows."""
        wait, end = 0.05, time.monotonic() + patience
        while True:
            try:
                connection = connection if connection and not connection.broken else self.connect()
                cursor = connection.execute(statement, values)
                return connection, cursor.fetchall()
            except psycopg.OperationalError as error:  # also a lock time-out, a server that stops
                if time.monotonic() + wait > end:
                    raise
                log.warning("%s", str(error).strip())
                time.sleep(wait)
                wait = min(wait * 2, 5)

    def join(self, connection):
        kinds = {name: list(kinds) for name, kinds in self.handlers.items()}
        sent = time.monotonic()
        connection, rows = self.until_answered(
            connection, self.sql("work_join(%s, %s, %s, %s, %s)", "worker, channel"),
            (Jsonb(kinds), self.name, f"{self.lease} seconds", socket.gethostname(), os.getpid()), 1e9)
        self.worker, self.alive_at = rows[0][0], sent
        connection.execute(f'LISTEN "{rows[0][1]}"')
        return connection

    def beat(self):
        """The thread that renews the lease. It hears of cancels, and rescues."""
        connection, watched, worker = None, {}, None
        while self.worker and not self.left.wait(self.lease / 6):
            if worker != self.worker:
                watched, worker = {}, self.worker
            sent = time.monotonic()
            try:
                connection = connection or self.connect()
                watched, alive, cancel = connection.execute(
                    self.sql("work_heartbeat(%s, %s, %s)", "watched, alive, cancel"),
                    (worker, int(sent * 1e6), Jsonb(watched))).fetchone()
                if alive and worker == self.worker:
                    self.alive_at = sent
                for job in self.held(worker):
                    if job.id in cancel or not alive:
                        job.stop.set()
                if not alive:
                    self.dead.set()
                else:
                    connection.execute(self.sql("work_rescue(%s, %s, %s)"),
                                       (worker, int(time.monotonic() * 1e6), Jsonb(watched)))
            except psycopg.Error as error:
                log.warning("heartbeat: %s", str(error).strip())
                with contextlib.suppress(psycopg.Error):
                    connection and connection.close()
                connection = None
            if time.monotonic() - self.alive_at > self.lease:  # others may have the jobs now
                for job in self.held(worker):
                    job.stop.set()

    def held(self, worker):
        with self.lock:
            return [job for job in self.jobs.values() if job.token[0] == worker]

    def handle(self):
        """A handler's thread: runs jobs, one after the other."""
        connection = None
        while (job := self.work.get()) is not None:
            call, values = "work_fail(%s, %s, %s, %s, %s, %s)", None
            try:
                if self.stopping.is_set() or time.monotonic() - self.alive_at > self.lease:
                    raise End("release")
                result = self.handlers[job.queue][job.kind](job)
                call, values = "work_done(%s, %s, %s, %s)", (None if result is None else Jsonb(result),)
            except End as end:
                values = (end.error, end.outcome, end.delay)
            except Exception as error:
                values = (f"{type(error).__name__}: {error}", "cancelled" if job.stop.is_set() else "retry", None)
            try:
                if not job.ended:  # in the handler's own transaction
                    connection, _ = self.until_answered(
                        connection, self.sql(call), (*job.token, job.id, *values), self.lease)
            except psycopg.Error as error:  # JQ001: another worker has the job
                log.warning("job %s: %s", job.id, str(error).strip())
            with self.lock:
                del self.jobs[job.id, job.token]
            self.wake()

    def wake(self, *_):
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"x")

    def stop(self, *_):
        self.stopping.set()
        self.wake()

    def sleep(self, connection, seconds):
        """Until a notification, a free thread or a signal. Returns whether one came."""
        ready, _, _ = select.select([connection.fileno(), self.wake_read], [], [], seconds)
        if self.wake_read in ready:
            os.read(self.wake_read, 4096)
        connection.pgconn.consume_input()
        while connection.pgconn.notifies():
            pass
        return bool(ready)

    def run(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.stop)
        self.left, self.dead = threading.Event(), threading.Event()
        connection, number, nap = self.join(None), 0, 0.01
        threading.Thread(target=self.beat, daemon=True).start()
        for _ in range(self.threads):
            threading.Thread(target=self.handle, daemon=True).start()
        while not self.stopping.is_set():
            free = self.threads - len(self.jobs)
            try:
                if self.dead.is_set():
                    self.dead.clear()
                    connection, number = self.join(connection), 0
                rows = []
                if free > 0:
                    number += 1
                    rows = connection.execute(self.sql("work_take(%s, %s, %s)"),
                                              (self.worker, number, free)).fetchall()
                for row in rows:
                    job = Job(self, self.worker, number, row)
                    with self.lock:
                        self.jobs[job.id, job.token] = job
                    self.work.put(job)
                nap = 0.01 if rows else min(nap * 2, self.poll)
                if not rows and self.sleep(connection, nap if free > 0 else self.poll):
                    nap = 0.01
            except psycopg.Error as error:
                if error.sqlstate == "JQ002":  # dead: the heartbeat has been too late
                    self.dead.set()
                    continue
                log.warning("take: %s", str(error).strip())
                connection.close()
                connection, _ = self.until_answered(None, self.sql("work_recover(%s, %s)"),
                                                    (self.worker, number), 1e9)
                connection.execute(f'LISTEN "jobq_{self.worker & (1 << 64) - 1:x}"')
        end = time.monotonic() + self.grace
        while self.jobs and time.monotonic() < end:
            time.sleep(0.02)
        self.left.set()
        self.until_answered(connection, self.sql("work_leave(%s)"), (self.worker,), self.lease)
