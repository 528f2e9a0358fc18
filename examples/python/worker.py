"""A worker of jobq in Python, on psycopg 3: what sql/protocol.sql describes. Copy it.

    import worker
    def welcome(job):            # returns: the job's stage succeeded, with this result
        send(job.payload["to"])  # raises: it runs again, or fails at its attempt limit
    worker.Worker("dbname=app", {"mail": {"welcome": welcome}}).run()  # until SIGTERM or SIGINT

A handler runs at least once, in one of the worker's threads. `with job.transaction() as cursor:`
has its effects exactly once: what it writes there commits with the end of the job, or not at all.
A handler that runs for long looks at job.stop, an event: its lease is lost, or somebody cancels it.
"""
import contextlib, logging, os, select, signal, socket, threading, time
import psycopg
from psycopg.types.json import Jsonb

log = logging.getLogger("jobq")
LISTEN = """do $$ begin -- it reads the server's whole queue of notifications: only a short one
    if exists (select from pg_listening_channels()) or pg_notification_queue_usage() < 0.01 then
        listen "{}"; end if; end $$"""


class End(Exception):
    """raise End("discard", "no such user"); End("snooze", delay="1 hour"): see work_fail."""
    def __init__(self, outcome, error=None, delay=None):
        self.outcome, self.error, self.delay = outcome, error, delay


class Job:
    def __init__(self, owner, token, row):
        self.owner, self.token, self.stop, self.ended = owner, token, threading.Event(), False
        (self.id, self.queue, self.kind, self.attempt, self.crash, self.stage, self.stages,
         self.timeout, self.payload, self.bytes, self.headers) = row

    @contextlib.contextmanager
    def transaction(self, result=None):
        with (connection := self.owner.connection()).transaction():
            yield connection.cursor()
            result = None if result is None else Jsonb(result)
            self.owner.call(connection, "work_done", *self.token, self.id, result)
        self.ended = True


class Worker:
    poll = 1  # seconds: the longest sleep without a look at the queues

    def __init__(self, conninfo, handlers, threads=4, lease=30, grace=30, schema="jobq", name=None):
        self.conninfo, self.handlers, self.schema, self.name = conninfo, handlers, schema, name
        self.threads, self.lease, self.grace, self.own = threads, lease, grace, threading.local()
        self.stopping, self.left, self.turn = threading.Event(), threading.Event(), threading.Lock()
        (self.wake_read, self.wake_write), self.number, self.jobs = os.pipe(), 0, set()

    def connect(self):
        return psycopg.connect(self.conninfo, autocommit=True, connect_timeout=9, keepalives_idle=9)

    def connection(self):  # the calling thread's
        if not hasattr(self.own, "connection") or self.own.connection.closed:
            self.own.connection = self.connect()
            self.own.connection.add_notify_handler(lambda _: None)  # else psycopg keeps them all
        return self.own.connection

    def call(self, connection, function, *values):
        text = f'SELECT * FROM "{self.schema}".{function}({", ".join(["%s"] * len(values))})'
        return connection.execute(text, values).fetchall()

    def until_answered(self, function, *values, pause=0.02):
        """Calls it on the thread's connection, again and again as long as no answer comes."""
        while True:
            try:
                return self.call(self.connection(), function, *values)
            except (psycopg.OperationalError, psycopg.InternalError) as error:
                log.warning("%s: %s", function, str(error).strip())
                time.sleep(pause := min(pause * 2, 5))

    def join(self):
        kinds, sent = {name: list(kinds) for name, kinds in self.handlers.items()}, time.monotonic()
        [(self.worker, self.channel)] = self.until_answered("work_join", Jsonb(kinds), self.name,
            f"{self.lease} seconds", socket.gethostname(), os.getpid())
        self.alive_until, self.watched = sent + self.lease, {}

    def beat(self):
        """Renews the lease, hears of cancels, and rescues the jobs of the dead."""
        worker, sent, connection = self.worker, time.monotonic(), self.connection()
        [(watched, alive, cancel)] = self.call(
            connection, "work_heartbeat", worker, int(sent * 1e6), Jsonb(self.watched))
        if worker == self.worker:  # else it has joined again meanwhile
            self.watched, self.alive_until = watched, sent + self.lease if alive else 0
        for job in self.jobs.copy():
            if job.id in cancel:
                job.stop.set()
        self.call(connection, "work_rescue", worker, int(sent * 1e6), Jsonb(watched))

    def beats(self):
        while not self.left.wait(self.lease / 6):
            try:
                self.beat()
            except psycopg.Error as error:
                log.warning("heartbeat: %s", str(error).strip())
                self.watched = {}  # an outage proves no worker dead

    def take(self, most=1):
        self.number += 1
        token = self.worker, self.number
        rows = self.call(self.connection(), "work_take", *token, most)
        jobs = [Job(self, token, row) for row in rows]
        self.jobs.update(jobs)
        return jobs

    def next_job(self):
        """Waits for a job. None: the worker stops."""
        nap = 0.01
        while not self.stopping.is_set():
            try:
                for job in self.take():
                    return job
                self.connection().execute(LISTEN.format(self.channel))  # if it does not yet
                heard, _, _ = select.select([self.connection(), self.wake_read], [], [], nap)
                nap = 0.01 if heard else min(nap * 2, self.poll)
            except psycopg.Error as error:
                log.warning("take: %s", str(error).strip())
                if error.sqlstate == "JQ002":  # dead: the heartbeat has been too late
                    self.join()
                else:  # the number is one whose jobs no thread has
                    self.until_answered("work_recover", self.worker, self.number)

    def run_handler(self, job):
        """Returns how the job ends: a function of the protocol, and values."""
        try:
            if self.stopping.is_set() or time.monotonic() > self.alive_until:
                raise End("release")
            result = self.handlers[job.queue][job.kind](job)
            return "work_done", None if result is None else Jsonb(result)
        except End as end:
            return "work_fail", end.error, end.outcome, end.delay
        except BaseException as error:  # a job that is to be cancelled is, then
            return "work_fail", f"{type(error).__name__}: {error}"

    def handle(self, job):
        """Runs a job and writes its end. If that is refused, the attempt has failed."""
        ends = [self.run_handler(job)]
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
                job = self.next_job()
            if job:
                self.handle(job)

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
        self.left.set()
        self.call(self.connect(), "work_leave", self.worker)
        if not self.stopping.is_set():
            raise RuntimeError("the threads have failed")
