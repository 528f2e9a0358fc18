/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobq_pg.h -- jobq on Postgres, through libpq, version 0.2.0.  MIT-0 or public domain, at your
 * choice; the text is at the end of jobq.h.
 *
 * jobq.h decides; this header has the statements, connections and threads. Copy both.
 *
 * DO THIS
 *
 *     #define JOBQ_IMPLEMENTATION
 *     #define JOBQ_PG_IMPLEMENTATION
 *     #include "jobq_pg.h"
 *
 * in exactly one C or C++ file; or #define JOBQ_STATIC alone, which makes all of it private to that
 * file. Build it with:  cc program.c -I. -lpq  (and -pthread before glibc 2.34; on macOS:
 * $(pkg-config --cflags --libs libpq))
 *
 * QUICK START
 *
 *     static jobq_outcome greet(jobq_call *call)
 *     {
 *         char name[100];
 *
 *         if (jobq_json_text(call->payload, NULL, name, sizeof name) != JOBQ_OK)
 *             return JOBQ_OUTCOME_DISCARD;
 *         printf("hello %s\n", name);
 *         return JOBQ_OUTCOME_SUCCESS;
 *     }
 *
 *     int main(void)
 *     {
 *         jobq_pg_desc desc = {.conninfo = "dbname=app"};
 *         jobq_pg_handler handler = {.queue = "mail", .kind = "greet", .run = {greet}};
 *         jobq_pg_worker_desc work = {.handlers = &handler, .handler_count = 1,
 *                                     .loop = {.until = JOBQ_UNTIL_EMPTY}};
 *         jobq_pg_job job = {.queue = "mail", .kind = "greet"};
 *         jobq_pg *pg;
 *         jobq_pg_error error;
 *
 *         job.payload = jobq_str_from("\"Ann\"");
 *         if (jobq_pg_open(&pg, &desc, &error) || jobq_pg_migrate(pg, &error) ||
 *             jobq_pg_enqueue(pg, NULL, &job, NULL, &error) || jobq_pg_work(pg, &work, &error)) {
 *             fprintf(stderr, "%s\n", error.message);
 *             return 1;
 *         }
 *         jobq_pg_close(pg);
 *         return 0;
 *     }
 *
 * FUNCTIONS (examples/README.md has a list of tasks; the code here leaves out most error checks)
 *
 *     jobq_pg_dial_set             a keyword of libpq for a new connection
 *     jobq_pg_open                 a handle: a schema, a pool of connections, hooks
 *     jobq_pg_close                closes it
 *     jobq_pg_acquire              a connection of the pool
 *     jobq_pg_release              gives it back
 *     jobq_pg_schema               the schema's name as an identifier
 *     jobq_pg_random               64 random bits of the operating system
 *     jobq_pg_migrate              brings the schema to this library's version
 *     jobq_pg_check                whether the schema serves this library
 *     jobq_pg_transact             runs body in a transaction
 *     jobq_pg_unseal               opens a sealed payload
 *     jobq_pg_enqueue              writes one job
 *     jobq_pg_enqueue_many         writes many jobs of one queue, all or none
 *     jobq_pg_get                  the facts about a job, live or ended
 *     jobq_pg_rows_clear           frees rows
 *     jobq_pg_wait                 waits for the end of jobs, and reads their results
 *     jobq_pg_explain              why a job does not run, in words
 *     jobq_pg_outbox_register      gives a queue its partitions
 *     jobq_pg_outbox_grow          splits the partitions of a queue
 *     jobq_pg_outbox_enqueue       writes one message
 *     jobq_pg_outbox_enqueue_many  writes many messages, all or none
 *     jobq_pg_dead_letter_replay   takes dead letters, to work on them
 *     jobq_pg_dead_letter_end      what became of them
 *     jobq_pg_dead_letter_discard  gives pending ones up for good
 *     jobq_pg_flow_begin           begins a flow
 *     jobq_pg_flow_close           lets a flow end once its jobs have ended
 *     jobq_pg_signal               sends a signal
 *     jobq_pg_parents              the jobs that a job has waited for
 *     jobq_pg_cancel               cancels jobs, or asks running ones
 *     jobq_pg_revive               runs failed jobs again
 *     jobq_pg_delete               removes jobs
 *     jobq_pg_change               changes when, how soon and where ready jobs run
 *     jobq_pg_queue_set            the policy of a queue, or of a kind of it
 *     jobq_pg_line_set             the rules of a line
 *     jobq_pg_hold                 stops claims from a line or queue for a while
 *     jobq_pg_schedules_set        declares the schedules of a program
 *     jobq_pg_delivery_conn        the connection of a handler of messages
 *     jobq_pg_delivery_handle      the handle whose schema messages came from
 *     jobq_pg_worker_start         a worker in threads of its own
 *     jobq_pg_worker_open          a worker that an event loop steps
 *     jobq_pg_worker_step          does what is due, takes what has come, runs handlers
 *     jobq_pg_worker_fds           what to wait for before the next step
 *     jobq_pg_worker_ask           enqueues, gets, cancels or awaits in an event loop
 *     jobq_pg_worker_stop          asks it to stop
 *     jobq_pg_worker_wait          waits until it has stopped
 *     jobq_pg_worker_free          frees it
 *     jobq_pg_worker_ready         waits until it holds its lease
 *     jobq_pg_worker_stats         its counts
 *     jobq_pg_metrics              what a worker has counted, as OpenMetrics
 *     jobq_pg_worker_health        how it is, for a probe
 *     jobq_pg_work                 starts a worker and waits for it
 *     jobq_pg_call_conn            the connection of a handler
 *     jobq_pg_call_handle          the handle whose schema a job came from
 *     jobq_pg_call_complete        completes the job in the handler's transaction
 *     jobq_pg_call_commit          completes the job and commits
 *     jobq_pg_call_wait            commits, and the job waits for others
 *     jobq_pg_call_step_done       a step is done, in an open transaction
 *     jobq_pg_view_desc            a view of jobq's as a typed table
 *     jobq_pg_table_open           a table, by its description
 *     jobq_pg_table_close          frees it
 *     jobq_pg_table_get            the first row that matches
 *     jobq_pg_table_list           a page of rows
 *     jobq_pg_table_count          how many rows match
 *     jobq_pg_table_create         a new row, or an upsert
 *     jobq_pg_table_create_many    new rows, all or none
 *     jobq_pg_table_update         writes fields of one row, or of many
 *     jobq_pg_table_delete         deletes rows that match
 *     jobq_pg_worktable_open       the job verbs on a table of yours
 *     jobq_pg_worktable_close      frees it
 *     jobq_pg_worktable_claim      takes rows that are due
 *     jobq_pg_worktable_stage      the stage of a row
 *     jobq_pg_worktable_settle     what became of rows
 *     jobq_pg_worktable_heartbeat  rows are still being worked on
 *     jobq_pg_worktable_reset      gives back rows whose worker is gone
 *     jobq_pg_worktable_look       what a claim would take
 *
 * CONTENTS (search for >>name in the implementation)
 *
 *     the system       >>os: threads, clocks, sockets, the process, signals
 *     statements       >>error, >>sql, >>bind, >>exec, >>value, >>codec, >>columns, >>operators
 *     the handle       >>pool, >>selfcheck, >>prepared, >>migrate, >>transaction
 *     calls            >>enqueue, >>seal, >>verbs, >>request, >>outbox, >>operate, >>flows,
 *                      >>settings
 *     the worker       >>work: its state; handlers: >>deliver, >>handlers, >>run, >>hooks,
 *                      >>threads, >>calls; its connection: >>dial, >>send, >>answer, >>ask,
 *                      >>listen; >>step, >>life, >>metrics
 *     rows and tables  >>rows, >>table, >>table_calls, >>worktable, >>work_verbs
 *     the SQL          >>schema: generated from sql/
 *
 * NEEDS      Postgres 14 or newer, libpq 14 or newer, POSIX threads. The role owns the schema, or
 *            has been given grant_enqueue, grant_work, grant_operate or grant_read.
 *            If libpq-fe.h is not found, define JOBQ_PG_LIBPQ_HEADER as what #include takes,
 *            such as <postgresql/libpq-fe.h>.
 * WITHOUT    Define JOBQ_PG_NO_WORK_TABLES, JOBQ_PG_NO_TABLES (both kinds of tables) or
 *            JOBQ_PG_NO_OUTBOX wherever the header is included, to leave out that code;
 *            JOBQ_PG_NO_COMMENTS, to install no comments on functions and tables (52 KB).
 * MEMORY     What you pass is borrowed for the call. A payload stays valid until its handler
 *            returns. A function that gives you something to free says so.
 * THREADS    Any thread may use a jobq_pg, a worker or a table. A PGconn belongs to one thread at a
 *            time.
 * ERRORS     Every function that can fail returns a jobq_error and fills jobq_pg_error (which may
 *            be NULL): what is wrong, in which field, and how to mend it. ERRORS in jobq.h has the
 *            table of codes. A fault that C can find (in names, JSON, UTF-8, sizes, ranges) is
 *            reported before anything is sent, so it does not abort your transaction.
 * LOGGING    desc.log gets lines of text, desc.log_event the same lines as fields; one or both.
 *            Without either, errors and warnings go to stderr. Both functions are called with
 *            locks held: they must not call jobq. A message is a single line that begins with the
 *            schema's name. A job that fails for good, and a message that becomes a dead letter,
 *            are warnings, unless the worker has no_failed_log; of lines that can come often five a
 *            second are written. The codes of events, which do not change when a text does:
 *              connections   connect_failed connect_stuck connected connection_lost
 *                            connection_closed answer_missing listen_failed listens
 *                            server_unreachable
 *              statements    statement_failed maintenance_failed wake_failed transaction_left
 *                            migrated notice commit_unsafe objects_added
 *              jobs          job_failed message_dead result_refused decision_refused
 *                            job_unreadable job_unlawful hold_failed progress_failed step_failed
 *              handlers      handler_abandoned (also of messages) handlers_stuck thread_ended
 *                            open_failed
 *              workers       worker_gave_up thread_missing asleep awake statistics forked
 * FORK       A forked child opens handles and workers of its own. Calls on its parent's are
 *            refused; close and free release the sockets without telling the server.
 * SIGNALS    Only those in jobq_pg_worker_desc.stop_signals are handled. SIGPIPE is never raised.
 *            A signal stops all workers of the process that name it, also those of another copy of
 *            the library, such as a plugin with JOBQ_STATIC, which may be unloaded when its workers
 *            have been freed. The action before is not called meanwhile, and comes back when the
 *            last of these workers is freed. An action that the program sets later stays: it may
 *            call the one that it found, but not once the workers have been freed.
 *
 * CONNECTIONS AND TRANSACTIONS
 *
 * A function that makes one statement takes a PGconn: your own, also inside your transaction, which
 * it never begins or ends; or NULL for one of the handle's pool, where it commits by itself.
 * jobq_pg_transact begins and commits one for you. If you send COMMIT yourself, check PQcmdStatus:
 * the server answers that of an aborted transaction with ROLLBACK, which is no error.
 *
 * The pool opens up to pool_max connections when needed, READ COMMITTED and READ WRITE. A worker
 * has connections of its own, and raises pool_max by loop.threads for its handlers. While VACUUM or
 * prune runs it has one more; to limit these in a large fleet, set loop.prune_us and
 * loop.vacuum_rows to JOBQ_NEVER in all but a few workers. Statements are prepared once on each
 * connection, under names that begin with jobq_.
 *
 * An outage is waited out: the worker reconnects with backoff, sends unanswered results again, and
 * recovers the claims whose answer was lost. Only a primary is accepted, unless your conninfo sets
 * target_session_attrs. The log reports each problem once, with its fix. Commits after which the
 * worker discards its own copy are synchronous, even if synchronous_commit is off.
 *
 * POOLERS  A pooler in session mode needs nothing. For transaction mode set desc.behind_pooler:
 *          nothing is prepared, each statement has its own BEGIN and COMMIT in one flush, and a
 *          worker sends one only after the answer to the one before. Give listen_conninfo the
 *          server's own address, for one connection a worker that LISTENs and vacuums; without it
 *          workers poll once a second. jobq_pg_open refuses a pooler that you did not name, or a
 *          listen_conninfo that leads through it. Do not rely on SET, temporary tables or advisory
 *          locks in handlers, and name the isolation in your BEGIN.
 * PREPARED TRANSACTIONS  PREPARE TRANSACTION refuses one that has notified somebody, and enqueue,
 *          signal and the verbs of operators notify workers that sleep. SET LOCAL
 *          jobq_settings.notify = off keeps a transaction from it, SET a session, ALTER ROLE a
 *          role; workers then look within poll_us. Its keys, flows and locks stay locked until
 *          COMMIT PREPARED. Notifications also stop while the server's queue of them is half full.
 * LISTEN   A session that begins to LISTEN first reads the server's whole queue of notifications.
 *          While that is more than 1 % full, because another session that LISTENs stays in a
 *          transaction, a worker that starts looks for work every second instead, and LISTENs once
 *          the queue is short. The log tells of both.
 * SECRETS  desc.connect is called before each connection is made. It gives today's password, TLS
 *          files or host by jobq_pg_dial_set, or a connection of your own. It may block.
 * EXACTLY ONCE  In a handler: BEGIN on jobq_pg_call_conn, write your data, and return
 *          jobq_pg_call_commit(call, conn). If the lease was lost meanwhile, the COMMIT is refused.
 *          A job and the data that its handler changes belong on one server: see CITUS.
 * SEALED PAYLOADS  desc.seal turns a payload into other bytes before it is sent, desc.open turns
 *          them back before the handler gets it: compression, encryption. All ways of enqueue from
 *          C seal: jobs, arrays, COPY, messages, schedules, jobq_pg_worker_ask, and the payload of
 *          a sealed job's next stage. What is enqueued in SQL stays plain. The database holds
 *          bytes, and the header "seal" is the seal's name, so open can know several, also old
 *          ones; put the key's id into the bytes. A letter before the payload, sealed with it, says
 *          whether it is JSON. Not sealed are headers, keys, errors, log lines, steps and results.
 *          Views and jobq.wait show sealed bytes: see jobq_pg_unseal. JOBQ_KNOWN_MERGE is refused.
 *          A payload that cannot be opened is logged (open_failed) and uses up no attempt: the job
 *          runs again in a minute, messages come again in a second, until a worker can open them.
 *          examples/seal/zstd.c and examples/seal/sodium.c are seals to copy.
 * UNIT TESTS  Of handlers: jobq_test in jobq.h takes the same table of handlers and needs no
 *          database. A handler that uses jobq_pg_call_conn gets the connection that the test gave
 *          to jobq_test_conn, for example to a database with your tables only.
 *
 * A WORKER
 *
 * HOW MANY    At least two processes, so that one can rescue the other's jobs. Threads: the number
 *             of cores if handlers compute, 10 to 50 if they wait for other servers. All queues of
 *             a worker share them, for jobs and messages. If slow jobs must not hold up quick ones,
 *             give the slow kind a threads_max, or a worker of its own.
 * HOOKS       before, after and failed are called around every handler, on its thread, without
 *             locks. They may read the call or the delivery but not change it, and should be quick.
 *             after gets the outcome and what becomes of the job; if the handler overran its time,
 *             it has no outcome and runs on the replacing thread. failed follows if the job has
 *             failed for good, or once for each message that becomes a dead letter. Hooks run
 *             before the database has the result, so work that is repeated is reported again. For
 *             a job that failed because its workers died, or because the database refused its
 *             result, only failed is called, in the worker that found that, and at most once; its
 *             call has no payload. The view failures has all of them.
 * BAD HANDLERS  A handler that hangs keeps its thread for ever, unless its queue or kind has a
 *             time limit. There is none by default: give each queue one (jobq_pg_queue_set). A
 *             handler that overruns it counts as a failed attempt, and its thread is replaced.
 *             When more than half of the threads are lost that way within an hour, while the
 *             server answers, the worker stops with JOBQ_ERROR_TIMEOUT (of several schemas, that
 *             one does); end the process then. A job whose process died runs again. If that process
 *             dies, too, it runs alone at last, and only then does a death count against it (law
 *             (6) of jobq.h). pthread_exit is a failed attempt, and so is a C++ exception where
 *             jobq.h is compiled as C++ (see C++ there). An open transaction on jobq_pg_call_conn
 *             is rolled back. A handler must not leave by longjmp, and its thread must not be
 *             cancelled.
 * HEALTH      jobq_pg_worker_health uses no database and never waits. Ready: JOBQ_OK. Alive:
 *             anything but JOBQ_ERROR_TIMEOUT and JOBQ_ERROR_DEAD. An unreachable server is no
 *             reason to restart the program.
 * DEPLOYS     New programs call jobq_pg_migrate first; if several do, they wait for each other.
 *             Old programs go on working. A program that the schema does not serve is refused at
 *             start, with both versions. A schema is never downgraded. Do not migrate during
 *             pg_dump, because a migration waits for transactions that use its tables.
 *
 * A worker is its step function: it reads what has arrived, tells the loop of jobq.h, and sends
 * what is due. Either a thread of the worker or the host calls it. Between two steps it waits in
 * one poll:
 *
 *     stop, handlers, attempts  -> pipe                         \
 *     server <-> connection for statements (and LISTEN)          | poll, step, loop
 *     server <-> connection for LISTEN past a pooler             |       |
 *     server <-> connection for VACUUM and prune, while they run/        v jobs, messages
 *     server <-> connections of the pool <--------------- loop.threads threads: handlers, hooks
 *
 *     thread          how many             what only it uses
 *     the worker's    1 for each schema    the first three connections
 *     a handler's     loop.threads         its run, with a connection of the pool
 *     an attempt's    1 while the worker connects (desc.connect and name servers may block)
 *     a canceller     1 while libpq sends a cancel request
 *
 *     lock            guards
 *     the worker's    loop, slots, deliveries, runs, health, for all schemas; held by a step
 *                     except in poll, never by handlers, hooks and desc.connect
 *     an attempt's    its result; taken while holding the worker's
 *     the pool's      the list of idle connections; taken alone
 *     signals'        this copy's stop_signals; taken alone
 *     a signal's      which workers it stops; taken while holding signals'
 *
 * Stopping takes the handlers' grace time plus at most twice loop.answer_us. jobq_pg_worker_wait
 * returns an error if a handler or desc.connect has not returned by then.
 *
 * THE HOST'S EVENT LOOP
 *
 * A program with an event loop of its own steps the worker itself (examples/event_loop.c):
 *
 *     jobq_pg_worker_open(pg, &work, &worker, &error);
 *     while (jobq_pg_worker_step(worker, 5000)) {
 *         int64_t until;
 *         int count = jobq_pg_worker_fds(worker, fds, &until);
 *         ... poll these fds (of <poll.h>) beside yours, until then at the latest ...
 *     }
 *     jobq_pg_worker_free(worker);
 *
 * jobq_pg_worker_ask enqueues, gets, cancels and awaits jobs without waiting: a later step calls
 * back with the answer.
 *
 * Handlers run inside the step, one at a time. jobq_pg_worker_stop may be called from anywhere,
 * even from a signal handler, and wakes the poll. One thread may step many workers, for example one
 * for each schema: with budget 0 a step runs one job, and a larger budget is a larger share. No
 * thread renews the lease while a handler runs. A handler must therefore return well within the
 * lease (30 s), or call jobq_call_stopping (jobq_delivery_stopping) now and then, which sends the
 * heartbeat, and tells the handler when its time is up.
 *
 * SEVERAL SCHEMAS, ALSO ON SEVERAL SERVERS
 *
 * A worker with threads serves its own handle and those in work.also, with the same handlers and
 * receivers and one set of threads. A producer spreads keys over the same list with
 * jobq_schema_of. A free thread asks the schemas in turn, first those that hold less than their
 * share of the threads. Each schema has connections and a lease of its own, so a server that is
 * down, or frozen, delays only itself: when it has not answered for a quarter of loop.answer_us,
 * other threads take the place of those whose handlers may wait for it. A handler that overran its
 * time limit waits on until the server answers; when more than half of a schema's do, it starts no
 * others until then. Give such handlers a time limit, so that others may have their jobs. At start
 * at least one server must answer. The others are waited for; if a schema then does not serve this
 * library, the log says so, as an error. A program that may start while a server is down opens the
 * handles with desc.may_be_down. Priorities, loop.until and loop.jobs_max hold for each schema by
 * itself; a stop is for all. jobq_pg_worker_stats adds up and jobq_pg_worker_health reports the
 * worst, or either of them one schema. Lines of the log begin with the schema's
 * name, and jobq_pg_call_handle tells a handler where its job came from; so give the schemas
 * different names, also on different servers.
 *
 * SCHEDULES
 *
 * A schedule writes a job, or a message, at each tick of its calendar: a cron expression in a time
 * zone (see CALENDAR in jobq.h for what happens when the clocks change), or an interval. Programs
 * declare theirs by jobq_pg_schedules_set; others are made in psql by jobq.schedule. The living
 * workers of the queue fire them, and no other process is needed. A tick is fired in the
 * transaction that writes its job, so there is one job a tick, whoever dies. A schedule does not
 * fire while its queue or kind is paused or no worker lives; .missed says what becomes of those
 * ticks. A job's headers name the schedule and the tick. The view schedules says when each fires
 * next, and why one does not.
 *
 * LINES AND LIMITS
 *
 * A job may stand in a line of its queue: that of a tenant, an account, a device. Workers take
 * turns at the lines, so that a tenant with a million jobs does not keep the others waiting. A line
 * needs no set-up: the first job that names it makes it. Until the transaction of a queue's very
 * first line ends, other producers of its lines wait; jobq_pg_line_set beforehand avoids that.
 *
 *     jobq_pg_job job = {.queue = "mail", .kind = "send", .line = "tenant-7"};
 *     jobq_pg_queue_desc each = {.line_running_max = 5, .line_rate = "100/min"};
 *     jobq_pg_queue_desc ledger = {.line_strict = JOBQ_PG_ON};
 *     jobq_pg_line_desc large = {.running_max = 20, .weight = 3};
 *
 *     jobq_pg_queue_set(pg, conn, "mail", &each, &error);
 *     jobq_pg_queue_set(pg, conn, "ledger", &ledger, &error);
 *     jobq_pg_line_set(pg, conn, "mail", "tenant-7", &large, &error);
 *
 * WHICH       line_running_max and line_rate hold for each line by itself, over all workers;
 *             running_max and rate for a queue, or a kind, as a whole, over all workers;
 *             threads_max of a handler for a kind in one worker.
 * TURNS       A turn gives one job or a few, times the line's weight. Priorities come first: lines
 *             take turns within a priority and a stage.
 * STRICT      One job of the line at a time, in the order of enqueue. The job that has begun keeps
 *             the line until it has ended: while it waits for its next attempt, nothing else of the
 *             line runs. Order is that of one priority and stage, and of jobs that are due when
 *             they are enqueued; a job that was delayed, or came by COPY, joins the line's end when
 *             a worker finds it due.
 * RATES       Starts, not ends, count. After a rest rate_burst of them may come at once; then they
 *             come evenly. A suspect that starts again counts for its line's rate, but not for that
 *             of a queue or a kind.
 * HOLD        jobq_call_hold in a handler, jobq_pg_hold elsewhere: nothing is claimed from the line
 *             or the queue before an instant. Jobs that were claimed before go on. Workers hear of
 *             a queue's hold a moment later, and may claim from it until then; a line's hold counts
 *             at once.
 * FULL        With line_waiting_max an enqueue into a full line is JOBQ_ERROR_FULL, which aborts
 *             your transaction. Concurrent producers may exceed the number, and so may COPY and
 *             jobs for later.
 * PROMISED    A limit of a line is never exceeded, whichever workers die, freeze or lose their
 *             connection. A job whose worker died counts until it has run again and ended, and runs
 *             again only when its line has room. Jobs that run when a line gets its first limit
 *             count, except those that are being claimed at that moment. A lowered limit stops no
 *             job that runs. A server that crashes may forget its latest claims: law (17) of
 *             jobq.h.
 * NOT         Turns are fair in jobs, not in time: a tenant with slow jobs has more threads than
 *             one with quick ones, unless line_running_max says otherwise. A limit delays the start
 *             of a job by up to a few milliseconds.
 * NAME        A handler does not get the name of its line (call->job.line is a number, 0 for none):
 *             put what it needs into the payload.
 *
 * RESULTS AND WAITING
 *
 * A handler leaves a result behind, and whoever has the job's id can wait for it:
 *
 *     jobq_call_result(call, jobq_str_from("{\"pages\": 12}"), false);        in the handler
 *     jobq_pg_wait(pg, NULL, &id, 1, JOBQ_SECONDS(5), &jobs, &error);         elsewhere
 *     call jobq.wait(42, '5 s');                                              in psql
 *
 * The result is written with the end of the job, by the worker that holds it, or not at all. It is
 * that of the attempt that succeeded. It is kept in the history, in a queue without history too
 * (such a job is then the only one that is kept), until the history forgets the job.
 *
 * Do not wait in the transaction that enqueues: no worker sees the job before its commit. Do not
 * wait in a handler either, because the job that it waits for may need its thread:
 * jobq_pg_call_wait gives the thread back.
 *
 * FLOWS
 *
 * A job may wait for others: for their success, their failure, or any end. Jobs that belong
 * together are a flow, with names of its own:
 *
 *     jobq_pg_flow_desc desc = {.name = "import-7"};
 *     jobq_pg_after parts[] = {{.name = "load-1"}, {.name = "load-2"}};
 *     jobq_pg_job merge = {.queue = "etl", .kind = "merge", .after = parts, .after_count = 2};
 *
 *     jobq_pg_flow_begin(pg, conn, &desc, &merge.flow, &error);    (in one transaction with
 *     ... enqueue load-1 and load-2 with this flow, then merge      the jobs)
 *     jobq_pg_job after_it = {.queue = "mail", .kind = "report",
 *                             .after = &(jobq_pg_after){.flow = merge.flow}, .after_count = 1};
 *
 * ORDER       A new job waits for jobs that were enqueued before it, in whatever queue they are. A
 *             job that runs (SPAWNING) may wait for younger ones, but for none that waits for it.
 *             So there are no cycles. A parent may have ended already, if its history is kept;
 *             otherwise JOBQ_ERROR_NOT_FOUND.
 * FAILURE     By default a job that waits for a success goes on waiting: the flow is held. Revive
 *             the flow (jobq_pg_revive with .flow), and it continues. Or on_failure cancels it and
 *             what waits for it, or lets it run. A job that waits for a failure is cancelled when
 *             that cannot come any more. A failed job that is deleted, erased or no longer kept
 *             counts as cancelled: nobody can revive it, so cancel what waits for it, or the flow.
 * BATCH       jobq.batch in SQL: many jobs, and one that runs when all of them have ended, or a
 *             message in an outbox.
 * PROMISED    No job starts before all that it waits for has ended. It becomes ready with the last
 *             end, or by the second heartbeat of a living worker after that. Ends of jobs wait for
 *             nobody and share no row, however many have the same child.
 * NOT         While your transaction that names a parent is open, the parent cannot end.
 * LOOK        jobq.flows, jobq.flow_graph(12), jobq._parents(42) with the parents' results,
 *             jobq._job_ties(42) with a job's edges, flow and steps, jobq_pg_explain. A flow is
 *             forgotten a week after its end.
 * SPAWNING    A handler enqueues jobs and waits for them in one transaction. So they exist if this
 *             run was accepted, and not otherwise. It runs again when they have ended:
 *
 *     jobq_pg_parents(pg, conn, call->job.id, &parts, &error);       none: this is the first run
 *     if (parts.count > 0) return add_up(call, &parts);              which clears them, too
 *     PQclear(PQexec(conn, "BEGIN"));
 *     jobq_pg_enqueue_many(pg, conn, jobs, 2, ids, &error);
 *     jobq_pg_after after[] = {{.job = ids[0]}, {.job = ids[1]}};
 *     return jobq_pg_call_wait(call, conn, after, 2);
 *
 * STEPS       What a job must not do twice is a step, which a handler asks for by its name:
 *             jobq_call_step. Nothing is run again to find out where the handler was, so it may
 *             change between two runs. Snooze between steps to sleep for days.
 * SIGNALS     A job waits for a name, jobq_call_signal; anybody sends it once, jobq_pg_signal or
 *             jobq.signal in SQL. It does not matter which of the two comes first. Meanwhile the
 *             job is ready, and due when timeout_us is over, so reschedule and cancel work as
 *             usual.
 *
 * TRACES
 *
 * A job or a message carries a W3C trace context in its headers, as "traceparent" and "tracestate".
 * What is enqueued with .trace gets it; jobq_trace_of reads it from the headers of a call or of a
 * message, in handlers and hooks (examples/trace.c). jobq makes no spans: give the text to your
 * tracer.
 *
 * OWN HEADERS  A "traceparent" in .headers wins, whatever its value; null ends the trace there.
 * MALFORMED    As W3C asks, a traceparent that is not valid is ignored. So is a tracestate that is
 *              not printable ASCII without quotes and backslashes, or longer than 512 bytes.
 * SIZE         A trace counts as headers, with 74 bytes and up to 530 more for its tracestate. It
 *              is never cut: a job or a message that is too large with it is refused.
 *
 * OUTBOX
 *
 * A message is written in the transaction that changes your data. A worker delivers it, in order
 * within its partition, at least once. (partition_id, seq) names a message for ever: send it along.
 *
 *     jobq_pg_outbox_register(pg, NULL, "orders", 16, NULL, &error);
 *
 *     PQclear(PQexec(conn, "BEGIN")); ... your writes ...
 *     jobq_pg_message message = {.queue = "orders", .order_key = "customer-7", .type = "placed"};
 *     message.payload = jobq_str_from("{\"total\": 5}");
 *     jobq_pg_outbox_enqueue(pg, conn, &message, NULL, &error);
 *     PQclear(PQexec(conn, "COMMIT"));
 *
 *     jobq_result deliver(jobq_delivery *d, const jobq_message *m)          (in another process)
 *     {
 *         return post(d->partition_id, m->seq, m->payload) ? JOBQ_RESULT_SUCCESS
 *                                                          : JOBQ_RESULT_RETRY;
 *     }
 *
 *     jobq_pg_receiver r = {.queue = "orders", .each = deliver};
 *     jobq_pg_worker_desc desc = {.receivers = &r, .receiver_count = 1};
 *     jobq_pg_worker_start(pg, &desc, &worker, &error);
 *
 * PARTITIONS  A power of two. A message goes to the partition that it names, or to that of its
 *     order_key (jobq_partition_of). jobq_pg_outbox_grow splits each partition in two, when no
 *     message is under way and no producer's transaction is open.
 * NUMBERS  1, 2, 3 ... in each partition. The holder numbers messages when it reads them, after
 *     their commit, so a rollback leaves no gap. What a session commits is numbered before what it
 *     writes next. Numbers survive a dump and a logical upgrade. Once at start and once a minute a
 *     worker also finds messages that came in another way, such as a restored table.
 * RECEIVERS  Leased (the default): the handler runs outside any transaction, and one statement
 *     then acknowledges the batch and reads the next. Transactional: the handler runs in the
 *     transaction that acknowledges, on jobq_pg_delivery_conn, so what it writes there happens
 *     exactly once. Writes for a message that is retried or rejected are undone by a savepoint, and
 *     those for the messages before it in the batch with them: each runs a second time at once.
 * TIME  A delivery has tuning.budget_us. Then the handler is told to stop (jobq_delivery_stopping),
 *     and soon after its batch counts as a retry, and its thread is replaced.
 * LEASE  The next holder must have seen no heartbeat for a whole lease, and the lease must have
 *     expired by the database's clock. Nobody holds an idle partition. Acknowledgements of leased
 *     receivers do not wait for the disk: after a crash of the server the last 0.6 s of messages
 *     may come again, with the same numbers.
 * RESULTS  Success; retry: the partition waits with backoff; reject: the message becomes a dead
 *     letter. So does a message that reaches the queue's max_attempts, and one that no worker can
 *     receive (too large for the network, say).
 * DEAD LETTERS  pending -> reprocessing (replay, with a token and a deadline) -> resolved; or back
 *     to pending; or taken by another replay after the deadline; pending -> discarded.
 *     jobq_pg_dead_letter_end changes only what the token holds. The view dead_letters lists them
 *     (jobq_pg_view_desc). prune deletes those older than failed_keep; jobq.dead_letter_cleanup()
 *     in SQL deletes resolved and discarded ones at once. sql/outbox.sql shows it in psql.
 * LIMITS  Payload and headers: the queue's message_max (64 KiB), in jsonb's own text form; type: 1
 *     to 1024 printable ASCII characters. A key is remembered for a day, for jobs and messages of
 *     the queue together. A worker of your own must VACUUM the table of messages, as ours does.
 *
 * CITUS
 *
 * A schema is an ordinary one of the server that jobq_pg_migrate connects to, be it a node of
 * Citus or its coordinator. So each node may have schemas of its own, also of the same name, and a
 * worker serves them by their conninfos: see SEVERAL SCHEMAS, and examples/jobq/README.md.
 *
 * ONE SERVER  A job and the data that its handler changes belong on one server, and so do a message
 *         and the rows that it tells of. Only then is a transaction on both one commit. At the
 *         coordinator Citus is made to commit in two phases (jobq.citus_join: call it yourself if
 *         the first distributed table comes after the schema). At a node nothing can do that.
 * CHECK   jobq_pg_check, and so the start of a worker, warns of a transaction that may be committed
 *         in half; so does jobq doctor.
 * DISTRIBUTED SCHEMA  Citus may place the schema on one of its nodes, and move it: programs connect
 *         to the coordinator, and each call runs on that node (jobq.citus_distribute). COPY is
 *         done by arrays there, and only enqueues notify. While it moves, each call is refused
 *         with JOBQ_ERROR_RETRYABLE (jobq.citus_close). A new version is installed between
 *         jobq.citus_undistribute() and citus_distribute; migrate refuses it otherwise, as it
 *         refuses a schema that was distributed in another way.
 *
 * READ REPLICAS
 *
 * On a hot standby whatever only reads works, from the last commits that have reached it. Open a
 * separate handle with target_session_attrs=any, or standby, in the conninfo; otherwise open
 * refuses a standby. A worker does not start there; enqueues and operators' verbs are an error
 * (25006). A reader there must not make the primary keep dead rows: leave hot_standby_feedback off;
 * a long query may then be cancelled.
 *
 * TYPED TABLES
 *
 * Rows of any table as C structs. The description is static data. Opening the table compares it
 * with the catalogue, so that a misspelt name or a wrong type is an error at once.
 *
 *     typedef struct pack { int64_t id; jobq_str ref, label; jobq_pg_maybe_int32 port; } pack;
 *     static const jobq_pg_column pack_columns[] = {
 *         JOBQ_PG_COLUMN(pack, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
 *         JOBQ_PG_COLUMN(pack, ref, TEXT, 0), JOBQ_PG_COLUMN(pack, label, TEXT, JOBQ_PG_SEARCH),
 *         JOBQ_PG_COLUMN(pack, port, INT32, JOBQ_PG_NULLABLE), JOBQ_PG_COLUMNS_END};
 *     static const jobq_pg_table_desc pack_desc = {"pack", sizeof(pack), pack_columns};
 *
 *     jobq_pg_table_open(&packs, pg, NULL, &pack_desc, &error);
 *     pack core = {.ref = jobq_str_from("core"), .label = jobq_str_from("Core")};
 *     jobq_pg_table_create(packs, conn, "ref label", &core, NULL, &rows, &error);
 *     jobq_pg_rows_clear(&rows);
 *     jobq_pg_table_get(packs, conn, "ref", &core, &rows, &error);
 *
 * WHERE, FIELDS  Lists of column names; the values are in a struct. In where an operator may follow
 *         a name ("status created>="; "tags@>": contains). A NULL in the struct means IS NULL.
 *         fields names what is written; columns that it does not name keep their values. + counts a
 *         timestamptz from the database's now: "+timeout_at<=" with 0 is what has timed out.
 * PAGES   A list has at most 1000 rows unless you ask for more, in one allocation that
 *         jobq_pg_rows_clear frees. The next page starts after the last row, so rows that come and
 *         go neither shift nor repeat one. An index serves an order whose columns are all
 *         ascending, or all descending. A search is an ILIKE.
 * ERRORS  "Not found: E with F=V", "Already exists: E with F=V", "Validation error: ...". Field and
 *         value are those of the violated constraint.
 * LIMITS  64 columns. A timestamptz after the year 294246 is read as infinity.
 * OWN     The library's views are described, too: jobq_pg_view_desc.
 *
 * WORK TABLES
 *
 * The verbs of jobs on a table of yours with a status, a retry count, a time before which a row
 * rests, an error, a heartbeat and a time of creation (examples/videos.c). The status words come
 * from the names of the stages, or are your own:
 *
 *     PENDING     -claim-> A_IN_PROGRESS -success-> A_COMPLETE
 *     A_COMPLETE  -claim-> B_IN_PROGRESS -success-> SUCCEEDED
 *     A_IN_PROGRESS -retry, release, reset-> PENDING; -discard, or no attempt left-> FAILED
 *     B_IN_PROGRESS -retry, release, reset-> A_COMPLETE; likewise
 *
 * TOKEN  With a worker column and a lease column each write demands the token of its claim. Without
 *        them it demands the heartbeat that this worker wrote last, to the microsecond.
 * CLAIM  One statement for each stage, later stages first, then by age and key. It wants an index
 *        on (status, created_at, key), best a partial one on the statuses that are ready.
 * BATCH  settle and heartbeat take any number of rows in one statement; each is told by its own
 *        code if another worker has it by now.
 * STUCK  Send a heartbeat every 30 s. Call reset at start and once a minute: it takes back rows
 *        whose heartbeat is older than stale_us, and counts an attempt.
 * WAKE   Claims poll. To hear of ready rows at once, add a trigger that calls pg_notify, as
 *        examples/videos.sql does, and LISTEN on a connection of yours; PQnotifies tells when to
 *        claim. Go on polling now and then: the time after which a row is retried wakes nobody.
 * RETRY  By BACKOFF of jobq.h with n = retry_count, 1 for the first, which is after 120 s by
 *        default; it starts anew in each stage.
 *
 * AFTER A RESTORE OR A FAILOVER
 *
 * A synchronous standby needs nothing: name both servers in the connection string. After anything
 * else (a restored dump or backup, an asynchronous standby, a logical replica, pg_upgrade) run
 * SELECT jobq.renew(home => true) before clients connect. It moves the sequences past every id in
 * the tables and takes back all running jobs, because their workers may have finished some of them
 * on the old server; these jobs run once more. For logical replication publish all tables of the
 * schema, and call it once the new server has everything. Until it is called, a copy claims nothing
 * and fires no schedule, so a test machine that got a dump of production does not send its mail.
 */
#if defined(JOBQ_STATIC) && !defined(JOBQ_PG_IMPLEMENTATION)
#define JOBQ_PG_IMPLEMENTATION
#endif

#ifndef JOBQ_PG_INCLUDED
#define JOBQ_PG_INCLUDED (1)

#include "jobq.h"

#if !defined(JOBQ_VERSION_NUMBER) || JOBQ_VERSION_NUMBER != 200
#error "jobq.h and jobq_pg.h are of different versions: copy both from the same release"
#endif

#if defined(JOBQ_PG_LIBPQ_HEADER)
#include JOBQ_PG_LIBPQ_HEADER
#elif defined(__has_include)
#if __has_include(<libpq-fe.h>)
#include <libpq-fe.h>
#elif __has_include(<postgresql/libpq-fe.h>)
#include <postgresql/libpq-fe.h>
#else
#error "libpq-fe.h not found: add -I$(pg_config --includedir)"
#endif
#else
#include <libpq-fe.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---------------------------------------------------------------------------------- */

/* What went wrong, as far as it is known. Every function takes a pointer to one, or NULL. */
typedef struct jobq_pg_error {
    jobq_error code;
    char sqlstate[6];     /* empty when the server said nothing */
    char entity[64];      /* table, or the noun that was looked for */
    char field[64];       /* column, or the field of a descriptor */
    char constraint[64];
    char value[64];       /* the value that was refused, cut; empty: there is no single one */
    char message[512];    /* one sentence that names the fix where there is one */
} jobq_pg_error;

/* ---- the handle and its pool ----------------------------------------------------------------- */

typedef struct jobq_pg jobq_pg;

/* A line of the log as fields, for desc.log_event. What does not apply is zero. Pointers live until
 * the function returns. */
typedef struct jobq_pg_event {
    jobq_level level;
    const char *code;     /* what happened: one of the words under LOGGING */
    const char *text;     /* the line that desc.log gets */
    const char *schema;   /* the handle's */
    const char *sqlstate; /* NULL: the server said nothing */
    jobq_str queue, kind;
    int64_t worker;       /* its id */
    int64_t job;
    int64_t partition_id; /* of messages */
    int32_t attempt;      /* of the job */
    int64_t duration_us;  /* the handler's time */
} jobq_pg_event;

/* A connection that is about to be made, for desc.connect. */
typedef struct jobq_pg_dial {
    const char *conninfo; /* as in the descriptor */
    const char *worker;   /* whose own connection this is; NULL: of the pool */
    PGconn *conn;         /* set it to a connection of your own to use that one */
    int count;            /* the rest is used by jobq_pg_dial_set */
    const char *keywords[32];
    char *values[32];
} jobq_pg_dial;

/*
 * jobq_pg_dial_set -- a keyword of libpq for this connection, which wins over the conninfo: a fresh
 * password or token, TLS files, another host. Both are copied. False: no room.
 */
JOBQ_API bool jobq_pg_dial_set(jobq_pg_dial *dial, const char *keyword, const char *value);

/* A payload on its way into the database, or to its handler: see SEALED PAYLOADS. */
typedef struct jobq_pg_seal {
    const char *name;   /* of the seal: desc.seal_name, or what the payload's headers say */
    const char *queue;
    const char *kind;   /* NULL: of a message */
    jobq_str in;
    char *out;          /* yours to set, from malloc; the library frees it */
    size_t size;
    char why[256];      /* if you return false: what is wrong, and how to mend it */
} jobq_pg_seal;

/* Zero fields mean default. Strings are copied. */
typedef struct jobq_pg_desc {
    const char *conninfo;   /* of libpq, several hosts if you like (default: libpq's own) */
    const char *schema;     /* 1 to 48 of [A-Za-z0-9_] (default "jobq") */
    int pool_max;           /* connections (default 5) */
    int64_t acquire_us;     /* longest wait for one (default 3 s) */
    int64_t call_us;        /* longest wait for the answer to a statement of a call, except COPY,
                               BEGIN and COMMIT; then JOBQ_ERROR_TIMEOUT, and its connection is shut
                               down (default: none) */
    bool no_pool;           /* no connection of its own, also not to probe: each call names one */
    size_t payload_max;     /* bytes; queues have a limit of their own, too (default 1 MiB) */
    bool behind_pooler;     /* in transaction mode: see POOLERS */
    const char *listen_conninfo; /* past the pooler, for LISTEN and VACUUM (default: poll) */
    int64_t patience_us;    /* how long open tries while no server answers (default: once) */
    bool may_be_down;       /* if none has answered, open succeeds, and calls fail until one does */
    void (*log)(void *user, jobq_level level, const char *message);
    void (*log_event)(void *user, const jobq_pg_event *event); /* the same lines, as fields */
    /* Before each connection, from any thread; may take its time. False: cannot, try later. */
    bool (*connect)(void *user, jobq_pg_dial *dial);
    /* On a connection of the pool before its first use, and after each user of it whose settings
       were undone (jobq_pg_release). False: close it. */
    bool (*set_up)(void *user, PGconn *conn);
    /* SEALED PAYLOADS. From any thread. False: why says why. */
    bool (*seal)(void *user, jobq_pg_seal *seal);
    bool (*open)(void *user, jobq_pg_seal *seal);
    const char *seal_name;  /* 1 to 64 of [A-Za-z0-9._-], alphanumeric at both ends (default
                               "sealed") */
    void *user;             /* for all these functions */
} jobq_pg_desc;

/*
 * jobq_pg_open -- a handle. Makes and probes one connection; desc.patience_us waits for a server
 * that is down, restarting, in recovery or full. With desc.may_be_down the first connection that
 * can be made later is probed.
 *
 * Errors  JOBQ_ERROR_CONNECTION (nothing leaks), JOBQ_ERROR_INVALID, JOBQ_ERROR_MEMORY; *pg is NULL
 *         then.
 */
JOBQ_API jobq_error jobq_pg_open(jobq_pg **pg, const jobq_pg_desc *desc, jobq_pg_error *error);

/* jobq_pg_close -- closes the pool. Before that, give every connection back and end every worker.
 * NULL: nothing. */
JOBQ_API void jobq_pg_close(jobq_pg *pg);

/* jobq_pg_acquire -- a connection of the pool, to be given back; JOBQ_ERROR_FULL: none got free
 * within acquire_us. */
JOBQ_API jobq_error jobq_pg_acquire(jobq_pg *pg, PGconn **conn, jobq_pg_error *error);

/* jobq_pg_release -- gives it back. A transaction left open is rolled back; a connection left in
 * pipeline mode, or in another encoding than UTF8, is closed. Otherwise these are reset: role,
 * settings, cursors, temporary tables, advisory locks and LISTEN (not behind a pooler), and
 * libpq's notice receiver, verbosity and trace. Prepared statements stay. */
JOBQ_API void jobq_pg_release(jobq_pg *pg, PGconn *conn);

/* jobq_pg_schema -- the schema's name as an identifier, quoted where it must be. */
JOBQ_API const char *jobq_pg_schema(const jobq_pg *pg);

/* jobq_pg_random -- 64 bits of the operating system's, for ids and tokens. False: it has none. */
JOBQ_API bool jobq_pg_random(uint64_t *bits);

/* ---- migrations ------------------------------------------------------------------------------ */

/*
 * jobq_pg_migrate -- brings the schema to this library's version; creates it if it is not there.
 *
 * Tx      its own, under an advisory lock: many processes may do it at once. It leaves the whole
 *         version or nothing. A statement_timeout counts for each of its statements. After a
 *         deadlock with a worker it begins again, up to 10 times.
 * SQL     the migrations that are missing, then the current text of all functions and views; the
 *         same as sql/install.sql by psql
 * Errors  JOBQ_ERROR_VERSION, with both numbers, when the schema no longer serves this library, or
 *         is of an older version than 12, the first that can be upgraded; and as jobq_pg_check.
 */
JOBQ_API jobq_error jobq_pg_migrate(jobq_pg *pg, jobq_pg_error *error);

/* jobq_pg_check -- whether the schema serves this library: JOBQ_ERROR_VERSION with both numbers if
 * not. A schema of the library's own version is also compared with a fresh one: JOBQ_ERROR_VERSION
 * names the tables, columns, types, indexes, checks, views and functions that are missing or were
 * changed, and the log warns of what was added. Only names are compared in a schema that Citus
 * distributes; the log may warn there of transactions, too: see CITUS. */
JOBQ_API jobq_error jobq_pg_check(jobq_pg *pg, PGconn *conn, jobq_pg_error *error);

/* ---- transactions ---------------------------------------------------------------------------- */

/* What runs in a transaction: JOBQ_OK commits it, anything else rolls it back. */
typedef jobq_error (*jobq_pg_body)(PGconn *conn, void *user, jobq_pg_error *error);

/*
 * jobq_pg_transact -- runs body in a transaction; again, up to ten times with growing pauses, when
 * the database asks for it (40001, 40P01).
 *
 * Tx      conn NULL: a connection of the pool. In a transaction of yours: once, in a savepoint.
 * Errors  the body's, or the commit's.
 */
JOBQ_API jobq_error jobq_pg_transact(jobq_pg *pg, PGconn *conn, jobq_pg_body body, void *user,
                                     jobq_pg_error *error);

/* ---- enqueue --------------------------------------------------------------------------------- */

/* What a job waits for: one of the first three. */
typedef struct jobq_pg_after {
    int64_t job;        /* a job, by its id; it was enqueued before */
    const char *name;   /* or by its name in the flow; it may be earlier in the same call */
    int64_t flow;       /* or the end of all jobs of this flow */
    jobq_on_end on_end; /* (default: its success) */
} jobq_pg_after;

/* A job to enqueue. Zero fields mean default; strings are borrowed for the call. */
typedef struct jobq_pg_job {
    const char *queue;     /* created on first use */
    const char *kind;
    jobq_str payload;      /* JSON text (default: none); kept as jsonb, which sorts keys, drops all
                              but the last of equal ones, and leaves out blanks */
    bool payload_bytes;    /* payload holds bytes, kept exactly as they are */
    bool payload_exact;    /* payload is a JSON text, checked, and kept exactly as it is: as bytes,
                              with the header "content-type": "application/json". It may hold what
                              jsonb cannot, such as \u0000 */
    jobq_str headers;      /* a JSON object: tags (default: none) */
    jobq_trace trace;      /* added to the headers (default: none). See TRACES */
    int64_t run_at_us;     /* not before this instant, Unix epoch (default: now) */
    int64_t delay_us;      /* or not before now plus this */
    int priority;          /* -9 to 9, smaller runs first (default 0) */
    int stages;            /* 1 to 16 (default 1) */
    int max_attempts;      /* (default: the queue's) */
    int64_t timeout_us;    /* (default: its kind's, or else the queue's) */
    const char *line;      /* its line in the queue, such as a tenant: 1 to 1024 bytes of UTF-8
                              (default: none). See LINES AND LIMITS */
    const char *key;       /* idempotency: one job per queue and key, until a day after its end */
    jobq_known on_known;   /* what to do if the key is known (default: leave the job that has it) */
    jobq_unique unique_for; /* how long it is known */
    int64_t at_latest_us;  /* of JOBQ_KNOWN_REPLACE with a delay, and of JOBQ_KNOWN_BUMP: it runs at
                              the latest this long after the first enqueue (default: put off
                              without limit). A job that waits for another one runs at its end,
                              without a delay */
    int64_t flow;          /* the flow that it belongs to (default: none). See FLOWS */
    const char *name;      /* what it is called in the flow (default: nothing): 1 to 1024 bytes */
    const jobq_pg_after *after; /* what it waits for: all of these (default: nothing) */
    int after_count;
    bool quiet; /* wakes nobody: for transactions that will be PREPAREd; found at the next poll */
} jobq_pg_job;

/*
 * jobq_pg_unseal -- opens the payload of a row that you have read yourself: a view's, a dead
 * letter's. Handlers get theirs opened.
 *
 * Shape   kind NULL: of a message. *out: the payload, from malloc, or NULL if it is not sealed;
 *         *bytes: whether it is bytes, in and out.
 * Errors  JOBQ_ERROR_INVALID: open refused; the text is what it said. JOBQ_ERROR_MEMORY.
 */
JOBQ_API jobq_error jobq_pg_unseal(const jobq_pg *pg, const char *queue, const char *kind,
                                   jobq_str headers, jobq_str payload, bool *bytes, char **out,
                                   size_t *size, jobq_pg_error *error);

/*
 * jobq_pg_enqueue -- writes one job.
 *
 * Shape   *id (may be NULL) is the new job's, or that of the job which has the key already.
 * Tx      joins yours; NULL conn: the pool, committed.
 * SQL     enqueue_one, enqueue_known
 * Errors  JOBQ_ERROR_INVALID before anything is sent; JOBQ_ERROR_EXISTS when the key was known
 *         and its job is left: nothing is written, *id is set, your transaction goes on (with
 *         JOBQ_KNOWN_REJECT too).
 */
JOBQ_API jobq_error jobq_pg_enqueue(jobq_pg *pg, PGconn *conn, const jobq_pg_job *job, int64_t *id,
                                    jobq_pg_error *error);

/*
 * jobq_pg_enqueue_many -- writes count jobs of one queue in one statement, all or none.
 *
 * Shape   ids (may be NULL) holds count, in the order of jobs. A known key is no error here: the id
 *         is that of the job which has it. JOBQ_PG_BY_COPY instead of ids: by COPY, the fastest
 *         way; then no job may have a key or wait for others, and the role needs INSERT on the
 *         table. A batch that does not fit into memory: a thousand a call, in one transaction; the
 *         batch is still all or none.
 * Tx      joins yours; NULL conn: the pool, committed.
 * SQL     enqueue_many; bulk, COPY, wake
 * Errors  as jobq_pg_enqueue, but for JOBQ_ERROR_EXISTS. If jobs are committed by COPY but nobody
 *         could be woken, that is no error: the log says so.
 */
JOBQ_API jobq_error jobq_pg_enqueue_many(jobq_pg *pg, PGconn *conn, const jobq_pg_job *jobs,
                                         size_t count, int64_t *ids, jobq_pg_error *error);

#ifdef __cplusplus
#define JOBQ_PG_BY_COPY reinterpret_cast<int64_t *>(intptr_t(-1))
#else
#define JOBQ_PG_BY_COPY ((int64_t *)(intptr_t)-1)
#endif

/* ---- asking and waiting ---------------------------------------------------------------------- */

/*
 * jobq_pg_get -- the facts about a job, live or ended.
 *
 * Errors  JOBQ_ERROR_NOT_FOUND leaves *job untouched. error->value is then "gone" if the id was
 *         given out: the job has ended and is no longer kept, it was deleted, or the transaction
 *         that enqueued it was rolled back or has not committed. Otherwise it never existed, as far
 *         as the id can tell.
 * SQL     jobs; standing, if it is not there
 */
JOBQ_API jobq_error jobq_pg_get(jobq_pg *pg, PGconn *conn, int64_t id, jobq_job *job,
                                jobq_pg_error *error);

/* Rows that were read, in one allocation: every pointer in them lives until jobq_pg_rows_clear. */
typedef struct jobq_pg_rows {
    void *rows;   /* an array of structs; which, the call says */
    size_t count;
    bool more;    /* a list: there are more behind them */
} jobq_pg_rows;

/* jobq_pg_rows_clear -- frees rows. Empty ones: nothing. */
JOBQ_API void jobq_pg_rows_clear(jobq_pg_rows *rows);

/*
 * jobq_pg_wait -- waits until each of these jobs has succeeded, failed for good or been cancelled,
 * and reads them with their results.
 *
 *     if (jobq_pg_wait(pg, NULL, &id, 1, JOBQ_SECONDS(5), &jobs, &error) == JOBQ_OK)
 *         print(((const jobq_pg_job_row *)jobs.rows)->result);
 *     jobq_pg_rows_clear(&jobs);
 *
 * Shape   jobs, which may be NULL: a jobq_pg_job_row for each id, in their order, however the wait
 *         ended; without payload. facts.state 0: not found. Any number of threads may wait. They
 *         share one connection that LISTENs, and which the first one makes; they borrow others for
 *         the moments in which they look. It looks after 1, 2, 4 ... ms too, up to 4 s (without
 *         that connection 250 ms), so a notification that is lost only delays.
 * Units   timeout_us: 0 or less looks once; JOBQ_NEVER waits without a limit.
 * Errors  JOBQ_ERROR_TIMEOUT: some have not ended. JOBQ_ERROR_NOT_FOUND: all others have, and some
 *         are not there, for the reasons of jobq_pg_get. JOBQ_ERROR_INVALID: conn is in a
 *         transaction; commit it first, because no worker sees the jobs that it enqueued. A
 *         connection that is lost between two looks is not an error, unless the time ends; nor is
 *         a busy pool, which then is JOBQ_ERROR_FULL: it does not know what has become of them.
 * SQL     await, unawait; in psql: call jobq.wait(42, '5 s'). Needs grant_read
 */
JOBQ_API jobq_error jobq_pg_wait(jobq_pg *pg, PGconn *conn, const int64_t *ids, int32_t count,
                                 int64_t timeout_us, jobq_pg_rows *jobs, jobq_pg_error *error);

/*
 * jobq_pg_explain -- why a job does not run, in words: a line of text for each reason.
 *
 * Shape   text: of size bytes, at least 1. Ends with a NUL, and is cut if it is too long. Such as
 *         "its queue is paused". The text of a job that is not there says so; that is no error.
 * SQL     explain_job
 */
JOBQ_API jobq_error jobq_pg_explain(jobq_pg *pg, PGconn *conn, int64_t id, char *text, size_t size,
                                    jobq_pg_error *error);

#ifndef JOBQ_PG_NO_OUTBOX

/* ---- outbox ---------------------------------------------------------------------------------- */

/* A message to send. Zero fields mean default; strings are borrowed for the call. */
typedef struct jobq_pg_message {
    const char *queue;     /* registered with jobq_pg_outbox_register */
    const char *order_key; /* chooses the partition: messages of one key keep their order */
    int partition;         /* without order_key: its number, from 0 */
    const char *type;      /* for the handler: 1 to 1024 printable ASCII (default: none) */
    jobq_str payload;      /* JSON text (default: none) */
    bool payload_bytes;    /* payload holds bytes, kept as they are */
    bool payload_exact;    /* as in jobq_pg_job */
    jobq_str headers;      /* a JSON object (default: none) */
    jobq_trace trace;      /* as in jobq_pg_job */
    const char *key;       /* idempotency: one message per queue and key, for a day */
    bool quiet;            /* wakes nobody: for transactions that will be PREPAREd */
} jobq_pg_message;

/*
 * jobq_pg_outbox_register -- gives a queue its partitions; the same number again changes nothing.
 *
 * Shape   partitions: a power of two, 1 to 16384; 64 are plenty. *queue_id may be NULL.
 * SQL     outbox_register
 * Errors  JOBQ_ERROR_INVALID "partition count mismatch for queue 'q': expected 2, found 4".
 */
JOBQ_API jobq_error jobq_pg_outbox_register(jobq_pg *pg, PGconn *conn, const char *queue,
                                            int partitions, int32_t *queue_id,
                                            jobq_pg_error *error);

/* jobq_pg_outbox_grow -- splits each partition in two until the queue has this many partitions. Let
 * the consumers catch up, or stop the producers: JOBQ_ERROR_DATABASE while messages are under way
 * (55006) or a producer's transaction stays open for a second (55P03); then call it again. anyway:
 * do not check, for queues without order keys. Running programs find the new partitions; programs
 * that register the queue later must name the new number. SQL: outbox_grow. */
JOBQ_API jobq_error jobq_pg_outbox_grow(jobq_pg *pg, PGconn *conn, const char *queue,
                                        int partitions, bool anyway, jobq_pg_error *error);

/*
 * jobq_pg_outbox_enqueue -- writes one message, by a plain INSERT where the role may.
 *
 * Shape   *id (may be NULL) orders messages that have no number yet.
 * Tx      joins yours, which is the point; NULL conn: the pool, committed.
 * SQL     outbox_enqueue_one
 * Errors  JOBQ_ERROR_INVALID, JOBQ_ERROR_NOT_FOUND (queue not registered), JOBQ_ERROR_EXISTS (the
 *         key was known: *id is that message's): nothing is written, your transaction goes on.
 */
JOBQ_API jobq_error jobq_pg_outbox_enqueue(jobq_pg *pg, PGconn *conn,
                                           const jobq_pg_message *message, int64_t *id,
                                           jobq_pg_error *error);

/* jobq_pg_outbox_enqueue_many -- writes count messages of one queue in one statement, all or none.
 * ids (may be NULL) holds count; a known key is no error here. JOBQ_PG_BY_COPY instead of ids: by
 * COPY, without keys, the fastest way; needs INSERT on the table message. SQL: outbox_enqueue_many;
 * outbox_queue, COPY, wake. */
JOBQ_API jobq_error jobq_pg_outbox_enqueue_many(jobq_pg *pg, PGconn *conn,
                                                const jobq_pg_message *messages, size_t count,
                                                int64_t *ids, jobq_pg_error *error);

/* A partition of an outbox: a row of the view outbox. Instants and durations are 0 where there is
 * none. */
typedef struct jobq_pg_partition_row {
    int64_t partition_id;
    jobq_str queue;
    int32_t queue_id, partition;       /* partition: its number in the queue */
    int64_t lag;                       /* committed and not acknowledged: up to 10,000, */
    bool exact;                        /* all of them were counted */
    int64_t acked;                     /* the highest number */
    int64_t age_us;                    /* of the next message */
    int32_t attempts;                  /* of the next message */
    int64_t effective, failures;       /* PartitionMode; effective 0: Normal */
    int64_t worker;                    /* the holder; 0: nobody */
    int64_t dead_letters;              /* pending ones */
    int64_t lease_until_us, run_at_us;
    jobq_str error;                    /* of the last failed delivery */
} jobq_pg_partition_row;

/* -- dead letters: see OUTBOX for their states -- */

/* Which ones. Zero fields choose all. */
typedef struct jobq_pg_scope {
    const char *queue;
    bool one_partition;
    int partition;      /* its number, when one_partition */
    const char *type;
    int32_t limit;      /* (default: of a replay 100, of a discard none) */
} jobq_pg_scope;

typedef struct jobq_pg_dead_letter_row {
    int64_t id, partition_id, seq;
    int32_t queue_id, partition, attempts;
    int64_t created_at_us, failed_at_us, completed_at_us, deadline_us; /* 0: none */
    jobq_str status, type, error;
    jobq_str payload; /* JSON text; or */
    jobq_str bytes;
    jobq_str headers;
    jobq_str queue;   /* its name; only where the view is read */
} jobq_pg_dead_letter_row;

/*
 * jobq_pg_dead_letter_replay -- takes pending ones, and those of a replay past its deadline, to
 * work on them for timeout_us. It sends nothing: handle the rows here, or enqueue them again, then
 * end them. In a shell jobq outbox replay does all of this.
 *
 * Shape   rows: jobq_pg_dead_letter_row. token: random, not 0 (jobq_worker_id_from), for
 *         jobq_pg_dead_letter_end.
 * SQL     dead_letter_replay
 */
JOBQ_API jobq_error jobq_pg_dead_letter_replay(jobq_pg *pg, PGconn *conn, int64_t token,
                                               int64_t timeout_us, const jobq_pg_scope *scope,
                                               jobq_pg_rows *rows, jobq_pg_error *error);

/*
 * jobq_pg_dead_letter_end -- ends a replay of some of its dead letters.
 *
 * Shape   result: SUCCESS, they are resolved; RETRY, they are pending again, with why (may be NULL)
 *         as their error. *count (may be NULL): how many the token still held; fewer than given:
 *         the others were lost.
 * SQL     dead_letter_resolve, dead_letter_reject
 * Errors  JOBQ_ERROR_INVALID: another result, or a why with SUCCESS.
 */
JOBQ_API jobq_error jobq_pg_dead_letter_end(jobq_pg *pg, PGconn *conn, int64_t token,
                                            const int64_t *ids, size_t id_count,
                                            jobq_result result, const char *why, int64_t *count,
                                            jobq_pg_error *error);

/* jobq_pg_dead_letter_discard -- gives pending ones up for good. SQL: dead_letter_discard. */
JOBQ_API jobq_error jobq_pg_dead_letter_discard(jobq_pg *pg, PGconn *conn,
                                                const jobq_pg_scope *scope, int64_t *count,
                                                jobq_pg_error *error);

#endif /* JOBQ_PG_NO_OUTBOX */

/* ---- flows: jobs that wait for others -------------------------------------------------------- */

/* What becomes of a job of a flow if one that it waits for with JOBQ_ON_SUCCESS ends otherwise. */
typedef enum jobq_pg_on_failure {
    JOBQ_PG_FLOW_HOLD,   /* it waits on, so that a revive continues the flow */
    JOBQ_PG_FLOW_CANCEL, /* it is cancelled */
    JOBQ_PG_FLOW_RUN     /* it runs */
} jobq_pg_on_failure;

typedef struct jobq_pg_flow_desc {
    const char *name;              /* for people (default: ""): at most 1024 bytes */
    jobq_pg_on_failure on_failure;
    bool open;                     /* it takes more jobs when all have ended, until it is closed */
} jobq_pg_flow_desc;

/*
 * jobq_pg_flow_begin -- begins a flow. jobq_pg_flow_close -- one that was begun with open takes no
 * more jobs when those that it has have ended.
 *
 * Shape   *id is for jobq_pg_job.flow. Enqueue the jobs in the same transaction.
 * Tx      joins yours; NULL conn: the pool, committed.
 * SQL     flow, flow_close; see also jobq.flows, jobq.flow_graph, jobq.batch
 */
JOBQ_API jobq_error jobq_pg_flow_begin(jobq_pg *pg, PGconn *conn, const jobq_pg_flow_desc *desc,
                                       int64_t *id, jobq_pg_error *error);
JOBQ_API jobq_error jobq_pg_flow_close(jobq_pg *pg, PGconn *conn, int64_t id,
                                       jobq_pg_error *error);

/*
 * jobq_pg_signal -- sends a signal, for jobs that wait for it now or later: see jobq_call_signal.
 *
 * Shape   name: 1 to 1024 bytes of UTF-8. payload: JSON text or {NULL, 0}. *first (may be NULL): it
 *         is the first with this name; others change nothing. It is kept for a week, and as long as
 *         a job waits for it.
 * Tx      joins yours; NULL conn: the pool, committed.
 * SQL     signal
 */
JOBQ_API jobq_error jobq_pg_signal(jobq_pg *pg, PGconn *conn, const char *name, jobq_str payload,
                                   bool *first, jobq_pg_error *error);

/*
 * jobq_pg_parents -- the jobs that a job has waited for, with what became of them and their
 * results: for its handler.
 *
 * Shape   rows of jobq_pg_job_row, as of jobq_pg_wait, in the order of their ids; none if it has
 *         never waited.
 * Tx      reads; NULL conn: the pool.
 * SQL     parent_jobs
 */
JOBQ_API jobq_error jobq_pg_parents(jobq_pg *pg, PGconn *conn, int64_t job, jobq_pg_rows *rows,
                                    jobq_pg_error *error);

/* ---- operators: the verbs of sql/operators.sql ----------------------------------------------- */

/* Which jobs: one by its id, or those of a queue that match every field that is set. */
typedef struct jobq_pg_filter {
    int64_t id;         /* this job; leave the other fields zero */
    const char *queue;  /* without an id: must be named, and there */
    const char *kind;   /* (default: any) */
    jobq_state state;   /* cancel: ready or running (default both); delete: must be named; the
                           other verbs: what they change anyway, or nothing */
    int64_t older_us;   /* enqueued, or ended, longer ago than this (default: any) */
    jobq_str tags;      /* JSON object contained in headers (default: any) */
    int64_t flow;       /* cancel and revive: the jobs of this flow; nothing else but at_most */
    int32_t at_most;    /* jobs a call (default 1000) */
} jobq_pg_filter;

/*
 * Each verb joins your transaction; NULL conn: the pool, committed. *count (may be NULL): how many
 * jobs it changed. Only ready jobs are changed; a running one can only be asked to cancel.
 *
 *     jobq_pg_delete(pg, conn, &(jobq_pg_filter){.id = 42}, NULL, &error);
 *     jobq_pg_filter old = {.queue = "mail", .state = JOBQ_STATE_FAILED, .older_us = day};
 *     do code = jobq_pg_delete(pg, conn, &old, &count, &error); while (!code && count > 0);
 *
 * One job: waits for its row. JOBQ_ERROR_NOT_FOUND: see jobq_pg_get. JOBQ_ERROR_TRANSITION: its
 * state, which is in error->value, does not allow it. JOBQ_ERROR_EXISTS, of a revive or a move:
 * another job has its key, as enqueue would find it; nothing has changed.
 * Of a queue each call changes a limited number; call again until *count is 0. Rows that another
 * session has locked are skipped, so that no worker waits and nothing deadlocks; so are jobs for
 * which a call by id would answer JOBQ_ERROR_EXISTS. An unknown queue or kind is
 * JOBQ_ERROR_INVALID. Of a flow locked rows come last, and the call waits for them: 0 means that
 * none is left. Give each call for a flow its own transaction: the next one waits with the lock of
 * the flow, and may deadlock (40P01) with whoever enqueues into it.
 */

/* jobq_pg_cancel -- cancels ready jobs, asks running ones. *requested (may be NULL): how many were
 * asked, which *count does not include; of a queue, those not asked before. */
JOBQ_API jobq_error jobq_pg_cancel(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   int64_t *count, int64_t *requested, jobq_pg_error *error);

/* jobq_pg_revive -- runs failed jobs again, with attempt and crash 0; not those that jobq.erase has
 * erased. */
JOBQ_API jobq_error jobq_pg_revive(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   int64_t *count, jobq_pg_error *error);

/* jobq_pg_delete -- removes jobs in any state but running, their history and their keys too. */
JOBQ_API jobq_error jobq_pg_delete(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   int64_t *count, jobq_pg_error *error);

/* What becomes of jobs: one of these. */
typedef struct jobq_pg_changes {
    int64_t run_at_us;  /* they run not before this instant, Unix epoch */
    bool run_now;       /* they are due now */
    bool set_priority;  /* they get this one: */
    int priority;       /* -9 runs first, 9 last */
    const char *target; /* they move to this queue, which must exist; keys move along */
} jobq_pg_changes;

/* jobq_pg_change -- changes ready jobs. JOBQ_ERROR_INVALID unless what names exactly one change.
 * SQL: reschedule, prioritize, move. */
JOBQ_API jobq_error jobq_pg_change(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   const jobq_pg_changes *what, int64_t *count,
                                   jobq_pg_error *error);

/* On, off, or left as it is. */
typedef enum jobq_pg_choice { JOBQ_PG_LEAVE, JOBQ_PG_ON, JOBQ_PG_OFF } jobq_pg_choice;

#define JOBQ_PG_UNLIMITED (-1)

/* A queue's policy, or that of one of its kinds. Zero fields leave what is there; a new queue has
 * the defaults, and a kind has what its queue has. Only the fields marked * can be a kind's. */
typedef struct jobq_pg_queue_desc {
    int32_t max_attempts;                /* * (new: 20) */
    int32_t max_crashes;                 /* (new: 3) */
    int64_t timeout_us;                  /* * of a handler; JOBQ_NEVER: none (new: none, but set
                                            one: see BAD HANDLERS) */
    jobq_backoff backoff;                /* * whole, unless base_us is 0 (new: quick) */
    jobq_pg_choice attempts_span_stages; /* (new: off) */
    jobq_pg_choice history;              /* * keep succeeded and cancelled jobs (new: on) */
    const char *retention;               /* * "short", "medium" or "long": how long history keeps
                                            them (new: "medium") */
    int64_t failed_keep_us;              /* at most 1,000 years, as the next (new: 30 days) */
    int64_t key_keep_us;                 /* an idempotency key, after its job's end (new: 1 day) */
    int32_t message_max;                 /* bytes of an outbox message (new: 64 KiB) */
    int32_t payload_max;                 /* bytes of a job's payload (new: 1 MiB) */
    int32_t running_max;                 /* * jobs that may run at once, over all workers;
                                            JOBQ_PG_UNLIMITED: any number (new: so) */
    const char *rate;                    /* * starts over all workers: "100/s", "10/5 s", "6/min",
                                            "50/h", "1000/day"; "0": any number (new: so) */
    int32_t rate_burst;                  /* * starts that may come at once after a rest, at most
                                           1,000,000 (new: 1) */
    int32_t line_running_max;            /* of each of its lines, as above, unless the line has its
                                            own: jobq_pg_line_set */
    const char *line_rate;               /* likewise */
    int32_t line_rate_burst;
    jobq_pg_choice line_strict;          /* each line runs one job at a time, and the next one only
                                            when that one has ended (new: off) */
    int32_t line_waiting_max;            /* an enqueue of a job that is due, into a line in which
                                            this many stand, is refused: JOBQ_ERROR_FULL;
                                            JOBQ_PG_UNLIMITED: none is (new: so) */
    jobq_pg_choice paused;               /* * nothing is claimed until JOBQ_PG_OFF (new: off) */
    jobq_pg_choice ageing;               /* every 16th claim takes the oldest jobs, whatever their
                                            priority (new: off) */
    const char *const *kinds;            /* created with it */
    size_t kind_count;
    const char *kind;                    /* set the policy of this kind (default: the queue's) */
    bool reset;                          /* first drop all that the kind has of its own */
} jobq_pg_queue_desc;

/*
 * jobq_pg_queue_set -- makes a queue, or changes its policy or a kind's. desc may be NULL: only
 * makes it.
 *
 * Shape   desc.retention: "short" (at first 1 hour), "medium" (1 day) or "long" (30 days);
 *         jobq.retention_set() in SQL changes these times for all queues and kinds. Jobs go in
 *         bulk, by TRUNCATE of the oldest of eight parts, so up to a seventh of that time later; a
 *         worker does it every 5 to 10 minutes. desc.paused: jobs that are claimed already run to
 *         their end, and new ones can be enqueued.
 * SQL     queue_set
 * Tx      joins yours. The first use of a queue or kind inserts its name, and whoever uses the same
 *         new name meanwhile waits for the end of that transaction. So call this beforehand, with
 *         the kinds, if a long transaction might come first. Workers, too, make the names of their
 *         handlers.
 */
JOBQ_API jobq_error jobq_pg_queue_set(jobq_pg *pg, PGconn *conn, const char *queue,
                                      const jobq_pg_queue_desc *desc, jobq_pg_error *error);

/* What a line has of its own. Zero fields leave what is there; a new line has what its queue
 * has. */
typedef struct jobq_pg_line_desc {
    int32_t running_max;   /* jobs of it that may run at once; JOBQ_PG_UNLIMITED: any number,
                              although the queue has a limit for its lines */
    const char *rate;      /* as in jobq_pg_queue_desc; "0": any number, likewise */
    int32_t rate_burst;
    int32_t weight;        /* 1 to 100: its share of the turns (new: 1) */
    jobq_pg_choice strict;
    jobq_pg_choice paused; /* nothing is claimed from it until JOBQ_PG_OFF (new: off) */
    bool reset;            /* first drop all that it has of its own */
} jobq_pg_line_desc;

/*
 * jobq_pg_line_set -- changes what a line of a queue has of its own. See LINES AND LIMITS.
 *
 * SQL     line_set. The view lines shows lines, their limits, and who waits.
 * Tx      joins yours; claims leave the line alone until its end.
 */
JOBQ_API jobq_error jobq_pg_line_set(jobq_pg *pg, PGconn *conn, const char *queue,
                                     const char *line, const jobq_pg_line_desc *desc,
                                     jobq_pg_error *error);

/*
 * jobq_pg_hold -- nothing is claimed from a line, or with line NULL from the whole queue, before an
 * instant (Unix epoch; 0 or past: the hold ends). why, for people, may be NULL. Handlers call
 * jobq_call_hold.
 *
 * SQL     hold
 */
JOBQ_API jobq_error jobq_pg_hold(jobq_pg *pg, PGconn *conn, const char *queue, const char *line,
                                 int64_t until_us, const char *why, jobq_pg_error *error);

/* A schedule: when it fires, and the job that each tick writes. See SCHEDULES. */
typedef struct jobq_pg_schedule {
    const char *name;         /* of all schedules in the schema */
    const char *cron;         /* "30 2 * * *", "@daily" ...: see jobq_cron_parse. Or every_us */
    int64_t every_us;         /* at least a second; counted from starts_at_us, or from midnight */
    const char *zone;         /* of cron: a time zone that the server knows (default "UTC") */
    jobq_missed missed;       /* (default: JOBQ_MISSED_LAST) */
    int64_t missed_within_us; /* how late a tick may be (default: last: without limit; all: a day;
                                 skip: a minute) */
    jobq_overlap overlap;     /* (default: JOBQ_OVERLAP_ALLOW) */
    int64_t spread_us;        /* fires up to this much later, by a time that depends on the name */
    int64_t starts_at_us, ends_at_us; /* fires in this span (default: always) */
    jobq_pg_job job;          /* queue, kind, payload, headers, priority, max_attempts, timeout_us,
                                 and nothing else. The headers get "schedule": its name and "tick":
                                 the instant */
    int partition;            /* without job.kind each tick writes a message into this partition of
                                 the queue's outbox: without overlap, and of the job only its */
    const char *type;         /* payload and headers count. Its type (default: none) */
} jobq_pg_schedule;

/*
 * jobq_pg_schedules_set -- declares all schedules of a program. What the same owner declared before
 * and no longer names is dropped. Programs call it when they start.
 *
 * Shape   owner: a name for the program. revision: rises when the set changes; in a rolling deploy
 *         the highest one wins, whichever program starts last.
 * SQL     schedules_set. In psql: schedule, schedule_pause, _resume, _run, _drop, _preview, and the
 *         view schedules.
 * Errors  JOBQ_ERROR_VERSION: a program with a higher revision has declared its set; nothing
 *         changed. JOBQ_ERROR_INVALID names the field. All or none.
 */
JOBQ_API jobq_error jobq_pg_schedules_set(jobq_pg *pg, PGconn *conn, const char *owner,
                                          int64_t revision, const jobq_pg_schedule *schedules,
                                          size_t count, jobq_pg_error *error);

/* ---- worker ---------------------------------------------------------------------------------- */

typedef struct jobq_pg_worker jobq_pg_worker;

/* Who runs the jobs of a kind: queue, kind, run and user. It is jobq.h's, so that jobq_test takes
 * the same table. */
typedef jobq_job_handler jobq_pg_handler;

/* Who gets the messages of a queue: see OUTBOX. */
typedef struct jobq_pg_receiver {
    const char *queue;         /* registered with jobq_pg_outbox_register */
    jobq_message_handler each; /* one of the two */
    jobq_batch_handler all;
    bool transactional;        /* it runs in the transaction that acknowledges:
                                  jobq_pg_delivery_conn; else outside any, under the lease. When a
                                  message does not succeed, each is called a second time for those
                                  before it in the batch, whose attempts are one more then */
    jobq_tuning tuning;        /* batch, lease, retries, pace (default quick: jobq_tuning_of) */
    void *user;                /* delivery->user */
} jobq_pg_receiver;

/* jobq_pg_delivery_conn -- in a transactional handler: the connection whose transaction
 * acknowledges. Neither COMMIT nor ROLLBACK there. NULL: the handler is not transactional. */
JOBQ_API PGconn *jobq_pg_delivery_conn(const jobq_delivery *delivery);

/* jobq_pg_delivery_handle -- as jobq_pg_call_handle, for messages. */
JOBQ_API jobq_pg *jobq_pg_delivery_handle(const jobq_delivery *delivery);

/* A handler's run, as hooks are told of it. Pointers live until the hook returns. */
typedef struct jobq_pg_report {
    jobq_pg *pg;                   /* the handle whose schema it is of */
    jobq_str queue;
    const jobq_call *call;         /* a job; NULL: messages */
    const jobq_delivery *delivery; /* messages of a partition; NULL: a job */
    const jobq_message *message;   /* failed: which of them */
    jobq_outcome outcome;          /* of a job; NONE: none yet, or it never said one */
    jobq_result result;            /* of messages */
    jobq_state state;              /* after: what the job becomes */
    jobq_str error;                /* after: as it is kept, {NULL, 0}: none; failed: why */
    int64_t duration_us;           /* after: the handler's time */
} jobq_pg_report;

typedef void (*jobq_pg_hook)(void *user, const jobq_pg_report *report);

/* Called around handlers, each may be NULL: see HOOKS. */
typedef struct jobq_pg_hooks {
    jobq_pg_hook before; /* a handler */
    jobq_pg_hook after;  /* once for each before */
    jobq_pg_hook failed; /* then, if the job failed for good; for each message that is a dead letter
                            now; for jobs whose workers died */
    void *user;
} jobq_pg_hooks;

/* What a worker has done since its start. */
typedef struct jobq_pg_stats {
    jobq_loop_stats jobs;
    jobq_relay_stats messages;
    int64_t handler_us; /* its handlers' time, summed up */
} jobq_pg_stats;

/* Zero fields mean default. Strings, handlers and receivers are copied. */
typedef struct jobq_pg_worker_desc {
    const char *name;                 /* for people (default "jobq") */
    const jobq_pg_handler *handlers;
    size_t handler_count;
    const jobq_pg_receiver *receivers;
    size_t receiver_count;
    jobq_pg *const *also;             /* further handles that its threads serve: SEVERAL SCHEMAS */
    size_t also_count;                /* (default 0); not for jobq_pg_worker_open */
    jobq_loop_config loop; /* threads, lease, batches ... Its queues, kinds and tunings are made
                              of the above; listen is set unless no_listen */
    bool no_listen;                   /* poll only */
    int stop_signals[4];              /* each stops it, a second one at once: e.g. {SIGTERM,
                                         SIGINT} (default: none): see SIGNALS */
    jobq_pg_hooks hooks;              /* around its handlers */
    jobq_pg_stats *stats;             /* of jobq_pg_work: filled when it ends */
    bool no_failed_log;               /* do not log jobs that fail for good, and dead letters */
    int64_t stats_us;                 /* time between two lines of statistics in the log, of level
                                         INFO: what was counted in it, and since the start (default:
                                         none) */
} jobq_pg_worker_desc;

/*
 * jobq_pg_worker_start -- a worker in threads of its own: see A WORKER.
 *
 * Errors  JOBQ_ERROR_INVALID for names, missing handlers, times that are certainly mistakes;
 *         JOBQ_ERROR_VERSION for the schema; SQLSTATE 42501 for a role that may not work;
 *         JOBQ_ERROR_CONNECTION if no server answers; JOBQ_ERROR_MEMORY. Later troubles with the
 *         database are its own: it reconnects until stopped.
 */
JOBQ_API jobq_error jobq_pg_worker_start(jobq_pg *pg, const jobq_pg_worker_desc *desc,
                                         jobq_pg_worker **worker, jobq_pg_error *error);

/*
 * jobq_pg_worker_open -- a worker that its host steps, for a program that has an event loop: see
 * THE HOST'S EVENT LOOP. loop.threads is 1. It needs neither handlers nor receivers.
 *
 * Errors  as jobq_pg_worker_start. It waits for one answer of the server, later calls do not.
 */
JOBQ_API jobq_error jobq_pg_worker_open(jobq_pg *pg, const jobq_pg_worker_desc *desc,
                                        jobq_pg_worker **worker, jobq_pg_error *error);

/*
 * jobq_pg_worker_step -- does what is due, takes what has come, runs handlers. Waits for nothing.
 *
 * Shape   budget_us: no handler is begun after that time; 0: one at most, and one at least is run
 *         if a job is there. False: the worker has stopped, free it.
 * Threads one at a time. From within a handler of this worker: never.
 */
JOBQ_API bool jobq_pg_worker_step(jobq_pg_worker *worker, int64_t budget_us);

#define JOBQ_PG_FDS 4

struct pollfd; /* of poll.h, which the program includes */

/*
 * jobq_pg_worker_fds -- what to wait for before the next step.
 *
 * Shape   fds holds JOBQ_PG_FDS; returns how many are filled. Ask before each wait: they change.
 * Units   *until_mono_us (may be NULL): step then at the latest; of CLOCK_MONOTONIC, JOBQ_NEVER:
 *         only the fds say when; past: at once.
 */
JOBQ_API int jobq_pg_worker_fds(const jobq_pg_worker *worker, struct pollfd *fds,
                                int64_t *until_mono_us);

/* The answer to a question. Pointers live until the callback returns. */
typedef struct jobq_pg_reply {
    jobq_error code;                 /* as the blocking function answers, except that a job that
                                        is gone counts as never there; or one of those below */
    const jobq_pg_error *error;      /* filled if code is not JOBQ_OK */
    int64_t id;                      /* enqueue: as *id; get: as asked */
    jobq_job job;                    /* get, await */
    jobq_str result;                 /* await: what the job left behind; {NULL, 0}: nothing */
    bool result_bytes;               /* it is bytes, not JSON */
    int64_t count, requested;        /* cancel */
} jobq_pg_reply;

typedef void (*jobq_pg_done)(void *user, const jobq_pg_reply *reply);

#define JOBQ_PG_ASYNC_MAX 4096 /* questions of a worker without an answer */

/* What to ask: one of these. */
typedef struct jobq_pg_question {
    const jobq_pg_job *enqueue;   /* as jobq_pg_enqueue; not with flow, name or after */
    int64_t get;                  /* the facts of this job, as jobq_pg_get */
    const jobq_pg_filter *cancel; /* as jobq_pg_cancel */
    int64_t await;                /* the end of this job and its result, as jobq_pg_wait, */
    int64_t timeout_us;           /* the longest wait */
} jobq_pg_question;

/*
 * jobq_pg_worker_ask -- enqueues, gets, cancels or awaits, but does not wait: the statement goes
 * over the connection of a worker that its host steps, and a later step calls done, once, before
 * the worker has stopped.
 *
 *     jobq_pg_question ask = {.enqueue = &job};
 *     jobq_pg_worker_ask(worker, &ask, done, user, &error);
 *
 * Shape   what you pass is copied. Questions are sent in their order, at once, or as soon as there
 *         is a connection. done runs outside of handlers; it may ask, but must neither step nor
 *         free the worker. For a program that only enqueues, open a worker without handlers and
 *         receivers.
 * Tx      own, committed.
 * Threads that of the steps; from within handlers too.
 * Errors  JOBQ_ERROR_INVALID, JOBQ_ERROR_FULL, JOBQ_ERROR_DEAD (it has stopped), JOBQ_ERROR_MEMORY:
 *         done will not be called. Reply: JOBQ_ERROR_CONNECTION: it was sent and no answer came, so
 *         it may have been carried out; a job with a key can safely be enqueued again.
 *         JOBQ_ERROR_DEAD: the worker stopped before it was sent.
 */
JOBQ_API jobq_error jobq_pg_worker_ask(jobq_pg_worker *worker, const jobq_pg_question *question,
                                       jobq_pg_done done, void *user, jobq_pg_error *error);

/* jobq_pg_worker_stop -- asks it to stop: no more claims, handlers get their grace, the rest is
 * released. Returns at once; fit for signal handlers, until it is freed. Twice: the grace ends
 * now. */
JOBQ_API void jobq_pg_worker_stop(jobq_pg_worker *worker);

/*
 * jobq_pg_worker_wait -- waits until it has stopped; one of jobq_pg_worker_open is run meanwhile,
 * on this thread.
 *
 * Shape   stats may be NULL. Call it once.
 * Errors  JOBQ_ERROR_TIMEOUT: a handler did not return within the grace, or had overrun its time
 *         and still has not returned; the same applies to desc.connect; or the worker, or that
 *         of one schema, gave up, because more than half of its handlers did within an hour, or
 *         their threads could not be replaced. End the process: they use the worker and the handle.
 */
JOBQ_API jobq_error jobq_pg_worker_wait(jobq_pg_worker *worker, jobq_pg_stats *stats);

/* jobq_pg_worker_free -- frees it, after jobq_pg_worker_wait, or the step that said it has stopped;
 * before that, jobs in its hands stay there until its lease is over. NULL: nothing. */
JOBQ_API void jobq_pg_worker_free(jobq_pg_worker *worker);

/* jobq_pg_worker_ready -- waits until it holds its lease, at most wait_us; then answers as
 * jobq_pg_worker_health does of all its schemas. */
JOBQ_API jobq_error jobq_pg_worker_ready(jobq_pg_worker *worker, int64_t wait_us);

#define JOBQ_PG_ALL (-1)

/* jobq_pg_worker_stats -- a copy of its counts; from any thread, until it is freed. schema: 0 is
 * its own handle's, i + 1 that of desc.also[i], JOBQ_PG_ALL: the sum of all. */
JOBQ_API jobq_pg_stats jobq_pg_worker_stats(jobq_pg_worker *worker, int schema);

/*
 * jobq_pg_metrics -- what this worker has counted, in the text format of OpenMetrics: from any
 * thread, without the database. jobq.metrics() in SQL is the same for the whole fleet, with queues
 * and more.
 *
 * Shape   like snprintf: writes at most size bytes, the last of them NUL, and returns how long the
 *         text is. 0: out of memory. Of several schemas, each line has a label with its name. Until
 *         it is freed.
 * Units   application/openmetrics-text; version=1.0.0; charset=utf-8
 */
JOBQ_API size_t jobq_pg_metrics(jobq_pg_worker *worker, char *buffer, size_t size);

/* How a worker is just now. */
typedef struct jobq_pg_health {
    int64_t worker;    /* its id, a decimal number in logs and views; 0: not registered */
    int64_t lease_us;  /* until its lease may end; 0: it may have, and nothing new is started */
    int64_t silent_us; /* since the latest heartbeat that was accepted; -1: none was */
    bool connected;    /* the connection for its statements is up */
    bool hears;        /* so is LISTEN: enqueues wake it */
    bool stopping;
    int32_t running;   /* handlers at work */
    int32_t threads;   /* for handlers */
    int32_t abandoned; /* more threads, whose handlers, or at the end desc.connect, overran */
    int32_t pool_open; /* connections of the handle's pool */
    int32_t pool_idle; /* of them unused */
    int64_t error_us;  /* since its last trouble; -1: none since the latest accepted heartbeat */
    char error[512];   /* what that was, in a single line */
} jobq_pg_health;

/*
 * jobq_pg_worker_health -- how it is, for a probe: from any thread, without the database.
 *
 * Shape   health may be NULL. Until it is freed. schema: as of jobq_pg_worker_stats; JOBQ_PG_ALL:
 *         the worst of all, and sums of running and pool.
 * Errors  JOBQ_ERROR_CONNECTION: it holds no lease just now, because it starts, or has no server:
 *         it recovers by itself. JOBQ_ERROR_DEAD: it has ended. JOBQ_ERROR_TIMEOUT: it gave up: end
 *         the process.
 */
JOBQ_API jobq_error jobq_pg_worker_health(jobq_pg_worker *worker, int schema,
                                          jobq_pg_health *health);

/*
 * jobq_pg_work -- starts a worker and waits for it: until one of desc.stop_signals, until
 * loop.until (default JOBQ_UNTIL_STOPPED), or after loop.jobs_max jobs.
 *
 * Shape   JOBQ_UNTIL_EMPTY: nothing is due now. What was retried, snoozed or scheduled for later
 *         is left, and so is what other workers run, and paused queues. JOBQ_UNTIL_ENDED waits for
 *         all of it, whoever has it: for paused queues too, and for kinds that nobody handles.
 *         To run at most one job, and on this thread: jobq_pg_worker_open with loop.jobs_max 1 and
 *         JOBQ_UNTIL_EMPTY, then jobq_pg_worker_wait and _free.
 * Errors  as jobq_pg_worker_start and jobq_pg_worker_wait.
 */
JOBQ_API jobq_error jobq_pg_work(jobq_pg *pg, const jobq_pg_worker_desc *desc,
                                 jobq_pg_error *error);

/* jobq_pg_call_conn -- a connection of the pool for this handler, the same at each call. It goes
 * back when the handler returns, as by jobq_pg_release: what is not committed is rolled back, and
 * no setting reaches the next handler. Cut short when the handler overruns its time. NULL: see
 * error; return JOBQ_OUTCOME_RETRY. In a call that no worker made (jobq_test, or by hand):
 * call->conn. */
JOBQ_API PGconn *jobq_pg_call_conn(jobq_call *call, jobq_pg_error *error);

/* jobq_pg_call_handle -- the handle whose schema this job came from: to enqueue there, or to ask
 * for its name. NULL: a call that no worker made. */
JOBQ_API jobq_pg *jobq_pg_call_handle(const jobq_call *call);

/*
 * jobq_pg_call_complete -- completes this job, or its stage, in the open transaction of conn.
 *
 * Tx      yours, on any connection to the same database. Then COMMIT, and return JOBQ_OUTCOME_DONE;
 *         if the COMMIT failed, or its answer was lost, return JOBQ_OUTCOME_RETRY: if it
 *         did commit, the retry is refused as lost.
 *         Until the COMMIT it locks, beside the job, only what becomes ready or ends by it.
 * SQL     settle_here
 * Errors  JOBQ_ERROR_LOST: the transaction is aborted, roll it back. JOBQ_ERROR_INVALID: not in
 *         one.
 */
JOBQ_API jobq_error jobq_pg_call_complete(jobq_call *call, PGconn *conn, jobq_pg_error *error);

/*
 * jobq_pg_call_commit -- jobq_pg_call_complete, COMMIT, and what to return from the handler.
 *
 * Shape   JOBQ_OUTCOME_DONE when the COMMIT is known to have been one; else everything is rolled
 *         back (or unknown), the error is noted for the job, and it is JOBQ_OUTCOME_RETRY.
 */
JOBQ_API jobq_outcome jobq_pg_call_commit(jobq_call *call, PGconn *conn);

/*
 * jobq_pg_call_wait -- COMMIT, and the job waits for others, such as those that this transaction
 * has enqueued; and what to return from the handler. When they have ended, the job runs again, in
 * the same stage. No attempt is used up. See SPAWNING under FLOWS.
 *
 * Shape   after, count: at least 1. A job may wait for a younger one, unless that one waits for it
 *         or is behind it in a strict line: then the attempt fails, and its error says so. If all
 *         have ended already, the job runs again at once. As jobq_pg_call_commit. In a test's call:
 *         see jobq_test_ready.
 * SQL     wait_here
 */
JOBQ_API jobq_outcome jobq_pg_call_wait(jobq_call *call, PGconn *conn, const jobq_pg_after *after,
                                        int count);

/*
 * jobq_pg_call_step_done -- jobq_call_step_done in the open transaction of conn: what else is
 * written there happens exactly once. The job goes on when it is committed.
 *
 * Tx      yours, on any connection to the same database. It keeps the job's row locked, so do not
 *         call jobq_call_step_done or jobq_call_signal before the COMMIT.
 * SQL     step_done_here
 * Errors  JOBQ_ERROR_LOST: the transaction is aborted, roll it back. JOBQ_ERROR_INVALID: not in
 *         one; not JSON; the steps are too large.
 */
JOBQ_API jobq_error jobq_pg_call_step_done(jobq_call *call, PGconn *conn, const char *name,
                                           jobq_str value, jobq_pg_error *error);

/* ---- columns and rows ------------------------------------------------------------------------ */

/* A column's type, the C type of its field, and that of a field which may be NULL. */
typedef enum jobq_pg_type {
    JOBQ_PG_NONE,
    JOBQ_PG_BOOL,        /* bool;     jobq_pg_maybe_bool */
    JOBQ_PG_INT16,       /* int16_t;  jobq_pg_maybe_int16 */
    JOBQ_PG_INT32,       /* int32_t;  jobq_pg_maybe_int32 */
    JOBQ_PG_INT64,       /* int64_t;  jobq_pg_maybe_int64 */
    JOBQ_PG_FLOAT,       /* float;    jobq_pg_maybe_float */
    JOBQ_PG_DOUBLE,      /* double;   jobq_pg_maybe_double */
    JOBQ_PG_TEXT,        /* jobq_str, NUL-terminated; NULL is {NULL, 0}, for each jobq_str */
    JOBQ_PG_BYTES,       /* jobq_str; bytea */
    JOBQ_PG_UUID,        /* jobq_pg_uuid; jobq_pg_maybe_uuid */
    JOBQ_PG_TIMESTAMPTZ, /* int64_t, Unix epoch, JOBQ_NEVER: infinity; jobq_pg_maybe_int64 */
    JOBQ_PG_DATE,        /* int32_t, days since 1970-01-01; jobq_pg_maybe_int32 */
    JOBQ_PG_INTERVAL,    /* jobq_pg_interval; jobq_pg_maybe_interval */
    JOBQ_PG_DURATION,    /* an interval as int64_t, microseconds: days of 24 hours, months of 30
                            days; jobq_pg_maybe_int64 */
    JOBQ_PG_NUMERIC,     /* jobq_str: its digits */
    JOBQ_PG_JSON,        /* jobq_str: its text; json or jsonb. "null" is JSON's, not SQL's */
    JOBQ_PG_ENUM,        /* an enum, by the names of its column; jobq_pg_maybe_int32 */
    JOBQ_PG_TEXTS,       /* jobq_pg_texts; text[]. NULL is {NULL, 0} */
    JOBQ_PG_INT64S,      /* jobq_pg_int64s; bigint[]. NULL is {NULL, 0} */
    JOBQ_PG_TYPE_COUNT
} jobq_pg_type;

typedef struct jobq_pg_uuid {
    unsigned char bytes[16];
} jobq_pg_uuid;

typedef struct jobq_pg_interval {
    int64_t us;
    int32_t days, months;
} jobq_pg_interval;

/* One dimension. An element that is NULL is {NULL, 0}. */
typedef struct jobq_pg_texts {
    const jobq_str *items;
    size_t count;
} jobq_pg_texts;

/* One dimension, without NULLs. */
typedef struct jobq_pg_int64s {
    const int64_t *items;
    size_t count;
} jobq_pg_int64s;

/* Fields that may be NULL: zero is NULL, {5, true} is 5. */
typedef struct jobq_pg_maybe_bool { bool value, set; } jobq_pg_maybe_bool;
typedef struct jobq_pg_maybe_int16 { int16_t value; bool set; } jobq_pg_maybe_int16;
typedef struct jobq_pg_maybe_int32 { int32_t value; bool set; } jobq_pg_maybe_int32;
typedef struct jobq_pg_maybe_int64 { int64_t value; bool set; } jobq_pg_maybe_int64;
typedef struct jobq_pg_maybe_float { float value; bool set; } jobq_pg_maybe_float;
typedef struct jobq_pg_maybe_double { double value; bool set; } jobq_pg_maybe_double;
typedef struct jobq_pg_maybe_uuid { jobq_pg_uuid value; bool set; } jobq_pg_maybe_uuid;
typedef struct jobq_pg_maybe_interval { jobq_pg_interval value; bool set; } jobq_pg_maybe_interval;

/* A column's flags. */
#define JOBQ_PG_KEY 1u       /* (part of) what names a row */
#define JOBQ_PG_NULLABLE 2u  /* may be NULL */
#define JOBQ_PG_ZERO 34u     /* may be NULL, which is zero in a field of the plain type */
#define JOBQ_PG_READ_ONLY 4u /* the database gives it: never written */
#define JOBQ_PG_TOUCH 8u     /* each update writes the database's now */
#define JOBQ_PG_SEARCH 16u   /* a search looks into it */

typedef struct jobq_pg_column {
    const char *name;
    jobq_pg_type type;
    size_t offset, size;      /* of its field; size is checked (0: it is not) */
    unsigned flags;
    const char *const *names; /* of an enum, NULL-terminated: names[i] is the value i */
} jobq_pg_column;

/* One element of an array of columns: the struct, its field, which is named as the column (_AS:
 * is not), type without JOBQ_PG_, flags (and names); and the end of the array. */
#define JOBQ_PG_COLUMN(row, field, type, flags) \
    JOBQ_PG_COLUMN_AS(row, field, #field, type, flags)
#define JOBQ_PG_COLUMN_AS(row, field, column, type, flags) \
    {column, JOBQ_PG_##type, offsetof(row, field), JOBQ_PG_SIZE(row, field), flags, NULL}
#define JOBQ_PG_ENUM_COLUMN(row, field, names, flags) \
    {#field, JOBQ_PG_ENUM, offsetof(row, field), JOBQ_PG_SIZE(row, field), flags, names}
#define JOBQ_PG_COLUMNS_END {NULL, JOBQ_PG_NONE, 0, 0, 0, NULL}
#ifdef __cplusplus
#define JOBQ_PG_SIZE(row, field) sizeof(static_cast<row *>(nullptr)->field)
#else
#define JOBQ_PG_SIZE(row, field) sizeof(((row *)0)->field)
#endif

/* Static data: it is kept, not copied. */
typedef struct jobq_pg_table_desc {
    const char *name;              /* of the table or view, "schema.name" where wanted */
    size_t row_size;               /* sizeof the struct */
    const jobq_pg_column *columns; /* at most 64 */
    const char *entity;            /* in error texts (default: name) */
    const char *order;             /* of lists (default: the key) */
    bool unprepared;               /* its statements are not prepared: for a pooler that the handle
                                      does not know of (default: as desc.behind_pooler says) */
} jobq_pg_table_desc;

typedef struct jobq_pg_table jobq_pg_table; /* a table of yours that was opened */

/* -- the library's own tables -- */

/*
 * What the views of sql/ show, as typed tables: open one, then list, get and count it like a
 * table of yours. All columns are read-only.
 *
 *     jobq_pg_table_open(&queues, pg, NULL, jobq_pg_view_desc(JOBQ_PG_VIEW_QUEUES, false), &error);
 *     jobq_pg_table_list(queues, NULL, NULL, &rows, &error);
 *
 * Instants and durations are 0 where there is none.
 */
typedef enum jobq_pg_view {
    JOBQ_PG_VIEW_JOBS,         /* rows: jobq_pg_job_row */
    JOBQ_PG_VIEW_PAST_JOBS,    /* history: what has succeeded or was cancelled; jobq_pg_job_row */
    JOBQ_PG_VIEW_FAILURES,     /* jobq_pg_failure_row, the newest first */
    JOBQ_PG_VIEW_QUEUES,       /* jobq_pg_queue_row */
    JOBQ_PG_VIEW_WORKERS,      /* jobq_pg_worker_row */
#ifndef JOBQ_PG_NO_OUTBOX
    JOBQ_PG_VIEW_OUTBOX,       /* jobq_pg_partition_row */
    JOBQ_PG_VIEW_DEAD_LETTERS, /* jobq_pg_dead_letter_row, the newest first */
#endif
    JOBQ_PG_VIEW_COUNT
} jobq_pg_view;

/* jobq_pg_view_desc -- a view's description. payloads false: without payload, bytes, headers,
 * results and logs, for roles that may not see them (grant_read), and for long lists. */
JOBQ_API const jobq_pg_table_desc *jobq_pg_view_desc(jobq_pg_view view, bool payloads);

/* Every job. By id, or a page in the order of id, also of one queue, it is quick
 * however many there are; a state that is rare among them is searched for. */
typedef struct jobq_pg_job_row {
    jobq_job facts;   /* what jobq.h decides by: it has a token exactly while the job runs */
    int64_t worker;   /* the last one, also once it has ended */
    jobq_str queue, kind;
    int64_t claimed_at_us, finished_at_us, cancel_requested_at_us;
    jobq_str key;
    jobq_str payload; /* JSON text; or */
    jobq_str bytes;
    jobq_str headers;
    jobq_str errors;  /* JSON: of all its attempts */
    jobq_str line;    /* its line's name. facts.line is 0 */
    jobq_str result;  /* of its handler: JSON text; or */
    jobq_str result_bytes;
    jobq_str log;     /* JSON: see jobq_call_log; not from jobq_pg_wait */
} jobq_pg_job_row;

/* A failed job. */
typedef struct jobq_pg_failure_row {
    int64_t id;
    jobq_str queue, kind;
    int64_t failed_at_us, enqueued_at_us;
    int32_t attempt, crash;
    int16_t stage;
    jobq_str error;  /* the last one */
    jobq_str errors; /* of all its attempts, a line each */
    jobq_str key;
    jobq_str payload; /* JSON text; or */
    jobq_str bytes;
    jobq_str headers;
    jobq_str line;    /* its line's name */
} jobq_pg_failure_row;

/* A queue at a glance. To read the row of one queue is cheap at any size. */
typedef struct jobq_pg_queue_row {
    jobq_str queue;
    int64_t ready, running, scheduled, parked, suspects, failed, failed_1h;
    int64_t late_us;   /* how long the oldest due job has waited */
    int64_t workers;   /* that live and serve it */
    double done_per_s; /* over the last minute */
    bool paused;
    bool exact;        /* false: some count is an estimate, see \d+ jobq.queues */
    jobq_pg_texts paused_kinds;
} jobq_pg_queue_row;

/* A worker that lives, or died in the last day. */
typedef struct jobq_pg_worker_row {
    int64_t id;
    jobq_str name;
    jobq_str host;        /* of its process; NULL: it did not say */
    int32_t pid;
    bool alive, asleep;
    int64_t running;      /* jobs that it holds */
    int64_t longest_us;   /* since it holds the oldest of them */
    jobq_pg_int64s jobs;  /* which ones, the oldest 20 */
    int64_t beat, beat_at_us, expires_at_us, registered_at_us, dead_at_us;
    jobq_pg_texts queues, kinds;
} jobq_pg_worker_row;

#ifndef JOBQ_PG_NO_TABLES

/* ---- typed tables ---------------------------------------------------------------------------- */

/* Which rows, in what order. Zero fields mean default. */
typedef struct jobq_pg_query {
    const char *where;  /* columns that are as in like: "status created>=" (default: all rows) */
    const void *like;   /* a row of which only those fields count */
    const char *search; /* a substring, whatever its case, of any column with JOBQ_PG_SEARCH */
    const char *order;  /* "name", "-created id": minus is descending (default: the table's) */
    const void *after;  /* only what comes after this row: the last one of the page before */
    int32_t limit;      /* (default 1000) */
} jobq_pg_query;

/*
 * jobq_pg_table_open -- a table by its description, held against the catalogue.
 *
 * Shape   pg: whose pool serves a NULL conn later; NULL: each call names a conn. conn: to look at
 *         the catalogue (NULL: the pool). Any thread may use a table, and any PGconn of that
 *         database.
 * Errors  JOBQ_ERROR_INVALID that names what differs: table, column, type, NULL, size of the field,
 *         labels of the enum; *table is NULL then.
 */
JOBQ_API jobq_error jobq_pg_table_open(jobq_pg_table **table, jobq_pg *pg, PGconn *conn,
                                       const jobq_pg_table_desc *desc, jobq_pg_error *error);

/* jobq_pg_table_close -- frees it; rows stay. NULL: nothing. */
JOBQ_API void jobq_pg_table_close(jobq_pg_table *table);

/* In all that follow: conn NULL uses the pool, and the call commits by itself. where NULL means the
 * key columns. rows is filled on JOBQ_OK and empty otherwise; pass NULL if you do not want it. */

/* jobq_pg_table_get -- the first row whose columns are as in like. rows NULL: whether there is one.
 * JOBQ_ERROR_NOT_FOUND: none. */
JOBQ_API jobq_error jobq_pg_table_get(jobq_pg_table *table, PGconn *conn, const char *where,
                                      const void *like, jobq_pg_rows *rows, jobq_pg_error *error);

/* jobq_pg_table_list -- a page of rows. query NULL: the first 1000. An order column that may be
 * NULL can't be paged by. */
JOBQ_API jobq_error jobq_pg_table_list(jobq_pg_table *table, PGconn *conn,
                                       const jobq_pg_query *query, jobq_pg_rows *rows,
                                       jobq_pg_error *error);

/* jobq_pg_table_count -- how many rows; order, after and limit of the query count for nothing. */
JOBQ_API jobq_error jobq_pg_table_count(jobq_pg_table *table, PGconn *conn,
                                        const jobq_pg_query *query, int64_t *count,
                                        jobq_pg_error *error);

/*
 * jobq_pg_table_create -- a new row, with the fields that are named; the others get their defaults.
 *
 * Shape   fields NULL: all that are neither read-only nor touched. unique: the columns of a unique
 *         index; where a row has their values already, the other fields are written into that one
 *         (NULL: JOBQ_ERROR_EXISTS). rows: the row as it is there.
 * Errors  JOBQ_ERROR_EXISTS with field and value, JOBQ_ERROR_INVALID.
 */
JOBQ_API jobq_error jobq_pg_table_create(jobq_pg_table *table, PGconn *conn, const char *fields,
                                         const void *row, const char *unique, jobq_pg_rows *rows,
                                         jobq_pg_error *error);

/* jobq_pg_table_create_many -- count rows of an array, all or none. Tx: a savepoint in yours. */
JOBQ_API jobq_error jobq_pg_table_create_many(jobq_pg_table *table, PGconn *conn,
                                              const char *fields, const void *array, size_t count,
                                              jobq_pg_error *error);

/*
 * jobq_pg_table_update -- writes the fields of row that are named into what is as in like.
 *
 * Shape   Named and NULL: becomes NULL. Not named: left. like NULL: row itself. where says which:
 *         NULL            the row of the key
 *         "id status"     the key and more: that row, if the rest still is as in like
 *         "status"        without the whole key: the first 1000 by the key; rows: these, in any
 *                         order. Those that someone else has locked are left out: call again
 *                         while it changes any
 *         None named: nothing is written, not even touched; the row of the key is read.
 * Errors  JOBQ_ERROR_NOT_FOUND: there is no row of the key. JOBQ_ERROR_LOST: it is not as in like.
 *         JOBQ_ERROR_EXISTS, JOBQ_ERROR_INVALID.
 */
JOBQ_API jobq_error jobq_pg_table_update(jobq_pg_table *table, PGconn *conn, const char *fields,
                                         const void *row, const char *where, const void *like,
                                         jobq_pg_rows *rows, jobq_pg_error *error);

/* jobq_pg_table_delete -- deletes what is as in like. *count (may be NULL): how many there were. */
JOBQ_API jobq_error jobq_pg_table_delete(jobq_pg_table *table, PGconn *conn, const char *where,
                                         const void *like, int64_t *count, jobq_pg_error *error);

#ifndef JOBQ_PG_NO_WORK_TABLES

/* ---- work tables ----------------------------------------------------------------------------- */

/* A table of yours whose rows are processed in stages. Zero fields mean default. Names are those
 * of columns in the table's description. */
typedef struct jobq_pg_worktable_desc {
    const char *const *stages; /* "EXTRACTION", "EMBEDDING": their words see jobq_status_format */
    int stage_count;           /* 1 to 16 */
    const char *const *words;  /* instead of stages: for each stage the word of a row that is ready
                                  and of one that runs; then those of success and of failure */
    const char *status;        /* text or an enum (default "status") */
    const char *retry_count;   /* int32 (default "retry_count") */
    const char *retry_after;   /* timestamptz, nullable (default "retry_after") */
    const char *error;         /* text, nullable (default "error_message") */
    const char *heartbeat;     /* timestamptz, nullable (default "heartbeat") */
    const char *created_at;    /* timestamptz (default "created_at") */
    const char *worker;        /* int64, nullable: who holds it (default: there is none) */
    const char *lease;         /* int64, nullable: by which claim (with worker) */
    int32_t max_retries;       /* failed attempts that end a row (default 20) */
    jobq_backoff backoff;      /* delay(failed attempts) (default jobq_backoff_seed) */
    int64_t stale_us;          /* a heartbeat this old is lost (default 300 s) */
    bool attempts_span_stages; /* retry_count goes on in the next stage (default: from 0) */
} jobq_pg_worktable_desc;

typedef struct jobq_pg_worktable jobq_pg_worktable;

/* jobq_pg_worktable_open -- the job verbs on an open table, which must outlive it. desc is copied,
 * stages or words are kept. */
JOBQ_API jobq_error jobq_pg_worktable_open(jobq_pg_worktable **work, jobq_pg_table *table,
                                           PGconn *conn, const jobq_pg_worktable_desc *desc,
                                           jobq_pg_error *error);

/* jobq_pg_worktable_close -- frees it. NULL: nothing. */
JOBQ_API void jobq_pg_worktable_close(jobq_pg_worktable *work);

/*
 * jobq_pg_worktable_claim -- takes up to count rows that are due: later stages first, then the
 * oldest.
 *
 * Shape   worker, lease: the token, for tables that have the columns; lease is a number that this
 *         worker never uses again. rows: as they stand now, X_IN_PROGRESS; they are what the other
 *         verbs take.
 * Errors  JOBQ_ERROR_INVALID: count below 1, or no token; or one of the rows can't be read by the
 *         description, and then none is taken.
 */
JOBQ_API jobq_error jobq_pg_worktable_claim(jobq_pg_worktable *work, PGconn *conn, int32_t count,
                                            int64_t worker, int64_t lease, jobq_pg_rows *rows,
                                            jobq_pg_error *error);

/* jobq_pg_worktable_stage -- the stage of a row, from 0; -1: its status is none of these words. */
JOBQ_API int jobq_pg_worktable_stage(const jobq_pg_worktable *work, const void *row);

/* What became of a claimed row, and what its table says to that. */
typedef struct jobq_pg_verdict {
    jobq_outcome outcome;
    const char *why;  /* of RETRY, NONE, DISCARD: the error to be kept (default "") */
    jobq_state state; /* answer: what the row is now; NONE if it was refused */
    jobq_error code;  /* answer: JOBQ_OK; else why */
} jobq_pg_verdict;

/*
 * jobq_pg_worktable_settle -- what became of rows, in one statement. A row that is refused keeps no
 * other from being settled.
 *
 * Shape   rows: count of them, as claim gave them, or copies. verdicts: one for each, whose outcome
 *         SUCCESS      this stage is done: the next one is ready, or the row has succeeded
 *         RETRY, NONE  again after the backoff, or failed if that was the last attempt
 *         DISCARD      failed for good
 *         RELEASE      given back undone, at shutdown: no attempt is counted, and the error of the
 *                      last one stays
 * Errors  That of the first row that was refused. JOBQ_ERROR_LOST: it is someone else's by now, or
 *         has ended. JOBQ_ERROR_TRANSITION: by its status it does not run. JOBQ_ERROR_NOT_FOUND.
 *         JOBQ_ERROR_INVALID: another outcome, a key that no row can have, or a row twice: nothing
 *         is written.
 */
JOBQ_API jobq_error jobq_pg_worktable_settle(jobq_pg_worktable *work, PGconn *conn,
                                             const void *rows, jobq_pg_verdict *verdicts,
                                             size_t count, jobq_pg_error *error);

/* jobq_pg_worktable_heartbeat -- rows are still being worked on; they take the new time. As settle,
 * but verdicts may be NULL, and only their codes are written. */
JOBQ_API jobq_error jobq_pg_worktable_heartbeat(jobq_pg_worktable *work, PGconn *conn, void *rows,
                                                jobq_pg_verdict *verdicts, size_t count,
                                                jobq_pg_error *error);

/* jobq_pg_worktable_reset -- at start-up and every minute or so: rows whose heartbeat is stale or
 * missing go back to the start of their stage, which counts as an attempt, or fail with the last
 * one; so do waiting rows without attempts left. *count (may be NULL): how many, 1000 at most;
 * those locked by someone are left for the next time. */
JOBQ_API jobq_error jobq_pg_worktable_reset(jobq_pg_worktable *work, PGconn *conn, int64_t *count,
                                            jobq_pg_error *error);

/* jobq_pg_worktable_look -- what a claim of count rows would take, without taking it, and without
 * the keys in exclude, as text. Writes and locks nothing. */
JOBQ_API jobq_error jobq_pg_worktable_look(jobq_pg_worktable *work, PGconn *conn, int32_t count,
                                           const char *const *exclude, size_t exclude_count,
                                           jobq_pg_rows *rows, jobq_pg_error *error);

#endif /* JOBQ_PG_NO_WORK_TABLES */
#endif /* JOBQ_PG_NO_TABLES */

/*
 * ---- Stop here unless you write a store or a worker of your own --------------------------------
 *
 * What follows carries out the requests of a jobq_loop; jobq.h has its other half.
 *
 *     jobq_pg_execute        carries out one request of a loop
 *     jobq_pg_content_clear  frees what an answer brought
 *     jobq_pg_payload        the payload of a job that was claimed
 *     jobq_pg_classify       the class of a SQLSTATE
 */

/* What an ending writes besides its decision. */
typedef struct jobq_pg_ending {
    jobq_str error;   /* {NULL, 0}: none */
    jobq_str payload; /* of the next stage; {NULL, 0}: as it was. Of a success: the job's result */
    bool payload_bytes;
    jobq_str log;     /* of the attempt, see jobq_log_format; {NULL, 0}: no line */
} jobq_pg_ending;

/* What a jobq_request and its answer leave out, because they are plain values: names, texts and
 * payloads. Zero what a request does not need; clear it. */
typedef struct jobq_pg_content {
    const char *name;              /* REGISTER: the worker's, for people */
    const char *const *queues;     /* ... its queues, created on first use */
    const char *const *kinds;      /* ... its kinds, and of each which of queues, from 1 */
    const int32_t *kind_queues;
    int32_t queue_count, kind_count;
    const jobq_pg_ending *endings; /* COMPLETE, SETTLE: of the request's endings */
    jobq_str error;                /* ACK: of the message that failed. SET_ASIDE: why */
    const jobq_message *messages;  /* READ, ACK: those that came. Given to an ACK: its delivery's */
    const char *const *reasons;    /* ACK: reasons[i] of message i, where it is a dead letter */
    bool in_transaction;           /* ACK: in its handler's, whose COMMIT fails if it is lost */
    jobq_str last_error;           /* READ, ACK: of the last failed delivery */
    PGresult *result;              /* the answer: messages and last_error point into it, and */
    int *rows;                     /* of a claim: jobs[i] is its row rows[i], for jobq_pg_payload */
    jobq_message *own;             /* messages that came */
} jobq_pg_content;

/*
 * jobq_pg_execute -- carries out one request as a worker does: with it you can build your own.
 *
 * Shape   content: may be NULL, when nothing of it is needed. answer: as jobq_loop_tell wants it.
 * Tx      joins yours; NULL conn: the pool, committed.
 * SQL     the function of the request's name
 * Errors  answer->error, too. JOBQ_ERROR_INVALID before anything is sent. JOBQ_ERROR_LOST of a
 *         partition, JOBQ_ERROR_DEAD of a worker. With any other error the statement may have been
 *         carried out: RECOVER a claim; send an ending again, and take LOST for done.
 */
JOBQ_API jobq_error jobq_pg_execute(jobq_pg *pg, PGconn *conn, const jobq_request *request,
                                    jobq_pg_content *content, jobq_answer *answer,
                                    jobq_pg_error *error);

/* jobq_pg_content_clear -- frees what an answer brought, and empties it. NULL: nothing. */
JOBQ_API void jobq_pg_content_clear(jobq_pg_content *content);

/* jobq_pg_payload -- of the job in this row of a claim: JSON text, or bytes when *bytes (may be
 * NULL) says so; {NULL, 0}: none. */
JOBQ_API jobq_str jobq_pg_payload(const PGresult *result, int row, bool *bytes);

/* jobq_pg_classify -- the class of a SQLSTATE; NULL or empty: JOBQ_ERROR_CONNECTION. */
JOBQ_API jobq_error jobq_pg_classify(const char *sqlstate);

#ifdef __cplusplus
}
#endif

#endif /* JOBQ_PG_INCLUDED */

/* Stop here if you only want the API. */

#ifdef JOBQ_PG_IMPLEMENTATION

#include <fcntl.h> /* O_CLOEXEC */
#include <time.h>  /* CLOCK_MONOTONIC */

#if !defined(CLOCK_MONOTONIC) || !defined(O_CLOEXEC)
#error "-std=c99, c11, c17 and c23 hide POSIX: add -D_POSIX_C_SOURCE=200809L, or take gnu11"
#define JOBQ_PG_IMPLEMENTED (1) /* this is the only error */
#endif

#ifndef JOBQ_PG_IMPLEMENTED
#define JOBQ_PG_IMPLEMENTED (1)

#if __has_include(<libpq-events.h>)
#include <libpq-events.h>
#else
#include <postgresql/libpq-events.h>
#endif

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef JOBQ_ASSERT
#include <assert.h>
#define JOBQ_ASSERT(x) assert(x)
#endif

/* As in jobq.h. */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuseless-cast"
#endif
#endif

/* As JOBQ__ONCE in jobq.h. */
#if defined(__GNUC__) || defined(__clang__)
#define JOBQ_PG__ONCE __attribute__((noinline))
#else
#define JOBQ_PG__ONCE
#endif

/* ---- >>os: what differs between operating systems -------------------------------------------- */

/*
 * Only this section calls the system: make verify refuses it elsewhere. A half for another system
 * has the same four types, jobq_pg__mono_us and the functions jobq_pg__os_*, whose contracts
 * tests/pg/test_pg_os.c holds.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

typedef pthread_mutex_t jobq_pg__os_mutex; /* no thread takes one twice */
typedef pthread_cond_t jobq_pg__os_cond;
typedef pthread_t jobq_pg__os_thread;
typedef int jobq_pg__os_socket;
#define JOBQ_PG__OS_MUTEX PTHREAD_MUTEX_INITIALIZER
#define JOBQ_PG__OS_NONE (-1) /* no socket */

/* The clock of waits for conditions: a wall clock that is set back would prolong them. Some systems
 * have no other one for that. */
#if defined(_POSIX_CLOCK_SELECTION) && _POSIX_CLOCK_SELECTION > 0
#define JOBQ_PG__OS_CLOCK CLOCK_MONOTONIC
#else
#define JOBQ_PG__OS_CLOCK CLOCK_REALTIME
#endif

/* -- clocks, in microseconds -- */

static int64_t jobq_pg__os_clock(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Never set; begins anywhere. */
static int64_t jobq_pg__mono_us(void) { return jobq_pg__os_clock(CLOCK_MONOTONIC); }

/* The wall clock's, since 1970. */
static int64_t jobq_pg__os_wall_us(void) { return jobq_pg__os_clock(CLOCK_REALTIME); }

static struct timespec jobq_pg__os_timespec(int64_t us)
{
    struct timespec t;

    t.tv_sec = (time_t)(us / 1000000);
    t.tv_nsec = (long)(us % 1000000 * 1000);
    return t;
}

/* A signal may end it early. */
static void jobq_pg__os_nap(int64_t us)
{
    struct timespec t = jobq_pg__os_timespec(us > 0 ? us : 0);

    nanosleep(&t, NULL);
}

/* -- mutexes, conditions, threads -- */

static void jobq_pg__os_mutex_init(jobq_pg__os_mutex *mutex) { pthread_mutex_init(mutex, NULL); }
static void jobq_pg__os_mutex_end(jobq_pg__os_mutex *mutex) { pthread_mutex_destroy(mutex); }
static void jobq_pg__os_lock(jobq_pg__os_mutex *mutex) { pthread_mutex_lock(mutex); }
static void jobq_pg__os_unlock(jobq_pg__os_mutex *mutex) { pthread_mutex_unlock(mutex); }

static void jobq_pg__os_cond_init(jobq_pg__os_cond *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
#if defined(_POSIX_CLOCK_SELECTION) && _POSIX_CLOCK_SELECTION > 0
    pthread_condattr_setclock(&attributes, JOBQ_PG__OS_CLOCK);
#endif
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void jobq_pg__os_cond_end(jobq_pg__os_cond *cond) { pthread_cond_destroy(cond); }
static void jobq_pg__os_wake_one(jobq_pg__os_cond *cond) { pthread_cond_signal(cond); }
static void jobq_pg__os_wake_all(jobq_pg__os_cond *cond) { pthread_cond_broadcast(cond); }

/* Waits until somebody wakes it, or for no reason. False: until, on the clock of mono_us, has come
 * (JOBQ_NEVER: never). */
static bool jobq_pg__os_wait(jobq_pg__os_cond *cond, jobq_pg__os_mutex *mutex, int64_t until_us)
{
    int64_t now = jobq_pg__mono_us(), day = JOBQ_HOURS(24);
    struct timespec until;

    if (until_us == JOBQ_NEVER) {
        pthread_cond_wait(cond, mutex);
        return true;
    }
    if (until_us <= now) return false;
    until = jobq_pg__os_timespec(jobq_pg__os_clock(JOBQ_PG__OS_CLOCK) +
                                 (until_us - now < day ? until_us - now : day));
    pthread_cond_timedwait(cond, mutex, &until);
    return jobq_pg__mono_us() < until_us;
}

/* A thread to be joined. False: none could be started. */
static bool jobq_pg__os_start(jobq_pg__os_thread *thread, void *(*start)(void *), void *arg)
{
    return pthread_create(thread, NULL, start, arg) == 0;
}

static void jobq_pg__os_join(jobq_pg__os_thread thread) { pthread_join(thread, NULL); }

/* A thread that nobody joins. False: none could be started. */
static bool jobq_pg__os_detached(void *(*start)(void *), void *arg)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, start, arg) != 0) return false;
    pthread_detach(thread);
    return true;
}

/* Calls body, and quits if the thread ends in there (pthread_exit). */
static void jobq_pg__os_guarded(void (*body)(void *), void (*quits)(void *), void *arg)
{
    pthread_cleanup_push(quits, arg);
    body(arg);
    pthread_cleanup_pop(0);
}

/* -- sockets, and a pair of them: what is written to the second is read from the first -- */

/* As poll: it skips sockets that are none. It waits at most a minute, in whole milliseconds. */
static int jobq_pg__os_poll(struct pollfd *fds, int count, int64_t wait_us)
{
    int64_t us = wait_us < 0 ? 0 : wait_us > 60000000 ? 60000000 : wait_us;

    return poll(fds, (nfds_t)count, (int)((us + 999) / 1000));
}

/* False: there is none; the ends are none. Neither end blocks, and no exec inherits them. */
static bool jobq_pg__os_pair(jobq_pg__os_socket *ends)
{
    int i;

    if (pipe(ends) != 0) {
        ends[0] = ends[1] = JOBQ_PG__OS_NONE;
        return false;
    }
    for (i = 0; i < 2; i++) {
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    }
    return true;
}

static void jobq_pg__os_pair_end(const jobq_pg__os_socket *ends)
{
    if (ends[0] != JOBQ_PG__OS_NONE) close(ends[0]);
    if (ends[1] != JOBQ_PG__OS_NONE) close(ends[1]);
}

/* If the pair is full, nothing is written. Also for signal handlers. */
static void jobq_pg__os_pair_write(const jobq_pg__os_socket *ends, char byte)
{
    int saved = errno;
    ssize_t ignored = write(ends[1], &byte, 1);

    (void)ignored;
    errno = saved;
}

/* How many bytes there were; none if not positive. */
static int jobq_pg__os_pair_read(const jobq_pg__os_socket *ends, char *bytes, size_t size)
{
    return (int)read(ends[0], bytes, size);
}

/* Ends a connection, which libpq sees when it next reads. */
static void jobq_pg__os_shut(const PGconn *conn) { shutdown(PQsocket(conn), SHUT_RDWR); }

/* -- the process, its host, and random bits -- */

static int32_t jobq_pg__os_pid(void) { return (int32_t)getpid(); }

/* Stays as it is if there is no name. */
static void jobq_pg__os_host(char *name, size_t size) { gethostname(name, size - 1); }

/* In a forked child: what libpq still sends on this connection no longer reaches the server. */
static void jobq_pg__os_orphan(const PGconn *conn)
{
    int nowhere = open("/dev/null", O_RDWR);

    if (nowhere >= 0 && PQsocket(conn) >= 0) dup2(nowhere, PQsocket(conn));
    else if (PQsocket(conn) >= 0) close(PQsocket(conn));
    if (nowhere >= 0) close(nowhere);
}

/* False: there are none. */
static bool jobq_pg__os_random(void *bits, size_t size)
{
    int fd = open("/dev/urandom", O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, bits, size);

    if (fd >= 0) close(fd);
    return got == (ssize_t)size;
}

/* -- signals, for workers that asked for it -- */

#define JOBQ_PG__SIGNALS 64 /* the highest signal number, and workers that one may stop */

typedef void (*jobq_pg__on)(int number, siginfo_t *info, void *asked);

struct jobq_pg__stopped {
    jobq_pg_worker *worker; /* NULL: the entry is free */
    int32_t pid;              /* its process; a forked child must not use it */
    jobq_pg__on on_signal;  /* of its copy, */
    void (*stop)(jobq_pg_worker *);
};

/*
 * Whom a signal stops. All copies of the library in the process share it, such as two plugins with
 * JOBQ_STATIC, and any copy's handler stops the workers of all. It outlives a plugin, and points
 * into one only while a worker of it is here. So plugins may come and go in any order.
 */
typedef struct jobq_pg__trap {
    jobq_pg__os_mutex lock;
    int copies;              /* that point to it: the last one frees it */
    int busy;                /* handlers at work: they may still use a worker */
    bool installed;          /* some copy's handler, perhaps below a later one of the program */
    struct sigaction former; /* the action before it */
    volatile int32_t pid;      /* the process of the worker that came last */
    struct jobq_pg__stopped stopped[JOBQ_PG__SIGNALS];
} jobq_pg__trap;

static jobq_pg__trap *jobq_pg__signals[JOBQ_PG__SIGNALS + 1]; /* with workers of this copy */
static jobq_pg__os_mutex jobq_pg__signals_lock = JOBQ_PG__OS_MUTEX;
static int jobq_pg__signals_busy; /* handlers of this copy at work */

/* The signals that are blocked meanwhile tell a copy's handler from any other. Change them when
 * jobq_pg__trap changes: copies that differ in it must not share one. */
static struct sigaction jobq_pg__action(jobq_pg__on on_signal)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaddset(&action.sa_mask, SIGTTIN);
    sigaddset(&action.sa_mask, SIGTTOU);
    sigaddset(&action.sa_mask, SIGURG);
    sigaddset(&action.sa_mask, SIGVTALRM);
    return action;
}

static bool jobq_pg__of_a_copy(const struct sigaction *action)
{
    struct sigaction like = jobq_pg__action(NULL);
    bool same = (action->sa_flags & SA_SIGINFO) != 0;
    int i;

    for (i = 1; i <= JOBQ_PG__SIGNALS; i++)
        same = same && sigismember(&action->sa_mask, i) == sigismember(&like.sa_mask, i);
    return same;
}

/* True: it stopped a worker of this process. *forked: it has found another's. */
static bool jobq_pg__signal_stops(jobq_pg__trap *s, bool *forked)
{
    int32_t pid = jobq_pg__os_pid();
    bool mine = false;
    int i;

    __atomic_add_fetch(&s->busy, 1, __ATOMIC_SEQ_CST);
    *forked = s->pid != pid;
    for (i = 0; i < JOBQ_PG__SIGNALS; i++) {
        struct jobq_pg__stopped *e = &s->stopped[i];
        jobq_pg_worker *w = __atomic_load_n(&e->worker, __ATOMIC_SEQ_CST);
        if (w == NULL) continue;
        if (e->pid == pid) e->stop(w), mine = true;
        else *forked = true;
    }
    __atomic_sub_fetch(&s->busy, 1, __ATOMIC_SEQ_CST);
    return mine;
}

/* Gives another copy the signal, counted. */
static void jobq_pg__signal_share(int number, jobq_pg__trap **to)
{
    jobq_pg__os_lock(&jobq_pg__signals_lock);
    *to = jobq_pg__signals[number];
    if (*to != NULL) __atomic_add_fetch(&(*to)->copies, 1, __ATOMIC_SEQ_CST);
    jobq_pg__os_unlock(&jobq_pg__signals_lock);
}

/* A forked child must not stop its parent's workers. If it has none of its own, the signal's
 * default action happens. A negative number is another copy that asks. */
static void jobq_pg__on_signal(int number, siginfo_t *info, void *asked)
{
    int saved = errno;
    bool mine = false, forked = false;
    jobq_pg__trap *s;

    (void)info;
    if (number < 0) {
        jobq_pg__signal_share(-number, (jobq_pg__trap **)asked);
        return;
    }
    __atomic_add_fetch(&jobq_pg__signals_busy, 1, __ATOMIC_SEQ_CST);
    s = __atomic_load_n(&jobq_pg__signals[number], __ATOMIC_SEQ_CST);
    if (s != NULL) mine = jobq_pg__signal_stops(s, &forked);
    __atomic_sub_fetch(&jobq_pg__signals_busy, 1, __ATOMIC_SEQ_CST);
    if (forked && !mine) {
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = saved;
}

static void jobq_pg__signal_drop(jobq_pg__trap *s)
{
    if (s == NULL || __atomic_sub_fetch(&s->copies, 1, __ATOMIC_SEQ_CST) > 0) return;
    jobq_pg__os_mutex_end(&s->lock);
    free(s);
}

static jobq_pg__trap *jobq_pg__signal_new(void)
{
    jobq_pg__trap *s = (jobq_pg__trap *)calloc(1, sizeof *s);

    if (s == NULL) return NULL;
    jobq_pg__os_mutex_init(&s->lock);
    s->copies = 1;
    return s;
}

static bool jobq_pg__signal_install(jobq_pg__trap *s, int number)
{
    struct sigaction ours = jobq_pg__action(jobq_pg__on_signal);

    if (!s->installed) s->installed = sigaction(number, &ours, &s->former) == 0;
    return s->installed;
}

/* An entry of the signal, for which a handler is installed. False: none is free, or it cannot be
 * handled. */
static bool jobq_pg__signal_add(jobq_pg__trap *s, jobq_pg_worker *w, int number)
{
    struct jobq_pg__stopped *e = s->stopped;

    while (e < s->stopped + JOBQ_PG__SIGNALS && e->worker != NULL) e++;
    if (e == s->stopped + JOBQ_PG__SIGNALS) return false;
    e->pid = jobq_pg__os_pid();
    s->pid = e->pid;
    e->on_signal = jobq_pg__on_signal;
    e->stop = jobq_pg_worker_stop;
    __atomic_store_n(&e->worker, w, __ATOMIC_SEQ_CST);
    if (jobq_pg__signal_install(s, number)) return true;
    e->worker = NULL;
    return false;
}

/* The signal that a copy with this action is in, counted; NULL: none, or it is no copy's action. */
static jobq_pg__trap *jobq_pg__signal_asked(const struct sigaction *action, int number)
{
    jobq_pg__trap *s = NULL;

    if (jobq_pg__of_a_copy(action)) action->sa_sigaction(-number, NULL, &s);
    return s;
}

/* True: this copy has no worker left there. Then another's handler takes the place of ours, or the
 * former action comes back; a later one of the program stays. */
static bool jobq_pg__signal_remove(jobq_pg__trap *s, const jobq_pg_worker *w, int number)
{
    struct jobq_pg__stopped *e, *heir = NULL;
    struct sigaction there, next;
    bool last = true;

    jobq_pg__os_lock(&s->lock);
    for (e = s->stopped; e < s->stopped + JOBQ_PG__SIGNALS; e++) {
        if (e->worker == w) __atomic_store_n(&e->worker, NULL, __ATOMIC_SEQ_CST);
        if (e->worker == NULL) continue;
        if (e->on_signal == jobq_pg__on_signal) last = false;
        else heir = e;
    }
    next = heir != NULL ? jobq_pg__action(heir->on_signal) : s->former;
    if (last && s->installed && sigaction(number, NULL, &there) == 0 &&
        there.sa_sigaction == jobq_pg__on_signal) sigaction(number, &next, NULL);
    if (last && heir == NULL) s->installed = false;
    while (__atomic_load_n(&s->busy, __ATOMIC_SEQ_CST) > 0) sched_yield();
    jobq_pg__os_unlock(&s->lock);
    return last;
}

static void jobq_pg__signal_leave(const jobq_pg_worker *w, int number)
{
    jobq_pg__trap *s;

    jobq_pg__os_lock(&jobq_pg__signals_lock);
    s = jobq_pg__signals[number];
    if (s != NULL && jobq_pg__signal_remove(s, w, number)) {
        __atomic_store_n(&jobq_pg__signals[number], NULL, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&jobq_pg__signals_busy, __ATOMIC_SEQ_CST) > 0) sched_yield();
        jobq_pg__signal_drop(s);
    }
    jobq_pg__os_unlock(&jobq_pg__signals_lock);
}

/* there: another copy's signal, if its handler is installed, or this copy's. NULL: it did not. */
static jobq_pg__trap *jobq_pg__signal_join(jobq_pg_worker *w, int number, jobq_pg__trap *there)
{
    jobq_pg__trap *s;
    bool good = false;

    jobq_pg__os_lock(&jobq_pg__signals_lock);
    s = jobq_pg__signals[number];
    if (s != NULL) jobq_pg__signal_drop(there);
    else s = there != NULL ? there : jobq_pg__signal_new();
    if (s != NULL) {
        __atomic_store_n(&jobq_pg__signals[number], s, __ATOMIC_SEQ_CST);
        jobq_pg__os_lock(&s->lock);
        good = jobq_pg__signal_add(s, w, number);
        jobq_pg__os_unlock(&s->lock);
    }
    jobq_pg__os_unlock(&jobq_pg__signals_lock);
    return good ? s : NULL;
}

/* No lock is held while another copy is asked: it might be asking this one. So two that come at the
 * same time may each have installed its own handler; the later one sees it, and joins the other. */
static bool jobq_pg__signal_set(jobq_pg_worker *w, int number)
{
    jobq_pg__trap *s, *below;
    struct sigaction there;
    bool apart;

    if (number < 0 || number > JOBQ_PG__SIGNALS) return false;
    do {
        if (sigaction(number, NULL, &there) != 0) return false;
        s = jobq_pg__signal_join(w, number, jobq_pg__signal_asked(&there, number));
        if (s == NULL) return false;
        below = jobq_pg__signal_asked(&s->former, number);
        apart = below != NULL && below != s;
        if (apart) jobq_pg__signal_leave(w, number);
        jobq_pg__signal_drop(below);
    } while (apart);
    return true;
}

static bool jobq_pg__os_signals_set(jobq_pg_worker *w, const int *numbers)
{
    bool good = true;
    int i;

    for (i = 0; i < 4 && good; i++) good = numbers[i] == 0 || jobq_pg__signal_set(w, numbers[i]);
    return good;
}

/* In a forked child, without the locks: a thread of the parent may have held them. */
static void jobq_pg__os_signals_forget(const jobq_pg_worker *w)
{
    int number, i;

    for (number = 1; number <= JOBQ_PG__SIGNALS; number++) {
        jobq_pg__trap *s = jobq_pg__signals[number];
        for (i = 0; s != NULL && i < JOBQ_PG__SIGNALS; i++) {
            if (s->stopped[i].worker == w) s->stopped[i].worker = NULL;
        }
    }
}

/* Afterwards no signal reaches the worker, and no signal handler still uses it. */
static void jobq_pg__os_signals_clear(const jobq_pg_worker *w)
{
    int number;

    for (number = 1; number <= JOBQ_PG__SIGNALS; number++) jobq_pg__signal_leave(w, number);
}

/* ---- >>error --------------------------------------------------------------------------------- */

static const struct {
    const char *prefix; /* of the SQLSTATE; the first match counts */
    jobq_error code;
    const char *fix; /* added to the server's message */
} jobq_pg__classes[] = {
    {"JQ001", JOBQ_ERROR_LOST, ""},
    {"JQ002", JOBQ_ERROR_DEAD, ""},
    {"JQ003", JOBQ_ERROR_NOT_FOUND, ": call jobq_pg_outbox_register"},
    {"JQ004", JOBQ_ERROR_DATABASE, ""},
    {"JQ005", JOBQ_ERROR_FULL, ""},
    {"JQ006", JOBQ_ERROR_NOT_FOUND, ""},
    {"JQ007", JOBQ_ERROR_EXISTS, ""},
    {"23505", JOBQ_ERROR_EXISTS, ""}, /* but see jobq_pg__code_of */
    {"23", JOBQ_ERROR_INVALID, ""},
    {"22", JOBQ_ERROR_INVALID, ""},
    {"25P02", JOBQ_ERROR_DATABASE, "; an earlier error aborted the transaction: roll it back"},
    {"25P04", JOBQ_ERROR_TIMEOUT, ""}, /* transaction_timeout */
    {"25006", JOBQ_ERROR_RETRYABLE, "; server or transaction is read-only: write on the primary"},
    {"25", JOBQ_ERROR_DATABASE, ""},
    {"3F000", JOBQ_ERROR_VERSION, "; run jobq_pg_migrate"},
    {"42P01", JOBQ_ERROR_VERSION, "; run jobq_pg_migrate"},
    {"42883", JOBQ_ERROR_VERSION, "; run jobq_pg_migrate"},
    {"42501", JOBQ_ERROR_DATABASE,
     "; as the owner: select jobq.grant_enqueue (grant_work, grant_operate, grant_read)(role)"},
    {"26000", JOBQ_ERROR_RETRYABLE, "; behind a pooler in transaction mode set desc.behind_pooler"},
    {"40", JOBQ_ERROR_RETRYABLE, ""},
    {"53", JOBQ_ERROR_RETRYABLE, ""},
    {"55P03", JOBQ_ERROR_RETRYABLE, ""},
    {"57014", JOBQ_ERROR_TIMEOUT, ""},
    {"57P", JOBQ_ERROR_RETRYABLE, ""},
    {"08", JOBQ_ERROR_RETRYABLE, ""},
};

/* The index in jobq_pg__classes; -1: no prefix matches. */
static int jobq_pg__class_of(const char *sqlstate)
{
    int i;

    for (i = 0; i < (int)(sizeof jobq_pg__classes / sizeof jobq_pg__classes[0]); i++) {
        const char *prefix = jobq_pg__classes[i].prefix;
        if (strncmp(sqlstate, prefix, strlen(prefix)) == 0) return i;
    }
    return -1;
}

JOBQ_API jobq_error jobq_pg_classify(const char *sqlstate)
{
    int class_at;

    if (sqlstate == NULL || sqlstate[0] == '\0') return JOBQ_ERROR_CONNECTION;
    class_at = jobq_pg__class_of(sqlstate);
    return class_at < 0 ? JOBQ_ERROR_DATABASE : jobq_pg__classes[class_at].code;
}

/* The same for the library's own tables. They tell of a key that is known with JQ007, or in a row.
 * A unique index that is violated is a fault there: whoever took it for a known key would lose a
 * job. */
static jobq_error jobq_pg__code_of(const char *sqlstate)
{
    bool unique = sqlstate != NULL && strcmp(sqlstate, "23505") == 0;

    return unique ? JOBQ_ERROR_DATABASE : jobq_pg_classify(sqlstate);
}

/* Copies as much as fits, in whole characters. NULL is empty. */
static void jobq_pg__copy_str(char *out, size_t size, jobq_str text)
{
    text = jobq_utf8_cut(text, size - 1);
    memcpy(out, text.ptr, text.len);
    out[text.len] = '\0';
}

static void jobq_pg__copy(char *out, size_t size, const char *text)
{
    jobq_pg__copy_str(out, size, jobq_str_from(text == NULL ? "" : text));
}

/* Makes a single line of a text: libpq's errors have several. */
static void jobq_pg__one_line(char *text)
{
    char *to = text, *first = text;

    while (*text != '\0') {
        bool ends = *text == '\n' || *text == '\r';
        char c = *text;
        if (ends) c = ' ';
        *to++ = c;
        text += ends ? strspn(text, " \t\r\n") : 1;
    }
    while (to > first && to[-1] == ' ') to--;
    *to = '\0';
}

#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 3, 4)))
#endif
JOBQ_PG__ONCE static jobq_error jobq_pg__fail(jobq_pg_error *error, jobq_error code,
                                           const char *format, ...)
{
    va_list args;

    if (error == NULL) return code;
    memset(error, 0, sizeof *error);
    error->code = code;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    jobq_pg__one_line(error->message);
    return code;
}

JOBQ_PG__ONCE static jobq_error jobq_pg__invalid(jobq_pg_error *error, const char *field,
                                              const char *why)
{
    jobq_pg__fail(error, JOBQ_ERROR_INVALID, "invalid %s: %s", field, why);
    if (error != NULL) jobq_pg__copy(error->field, sizeof error->field, field);
    return JOBQ_ERROR_INVALID;
}

/* The same with the value that is refused. NULL: there is none. */
JOBQ_PG__ONCE static jobq_error jobq_pg__invalid_text(jobq_pg_error *error, const char *field,
                                                   const char *value, const char *why)
{
    char text[sizeof error->value];

    if (error == NULL || value == NULL) return jobq_pg__invalid(error, field, why);
    jobq_utf8_mend(text, sizeof text - 1, jobq_str_from(value));
    jobq_pg__fail(error, JOBQ_ERROR_INVALID, "invalid %s: %s (it is '%s')", field, why, text);
    jobq_pg__copy(error->field, sizeof error->field, field);
    jobq_pg__copy(error->value, sizeof error->value, text);
    return JOBQ_ERROR_INVALID;
}

JOBQ_PG__ONCE static jobq_error jobq_pg__invalid_int(jobq_pg_error *error, const char *field,
                                                  int64_t value, const char *why)
{
    if (error == NULL) return JOBQ_ERROR_INVALID;
    jobq_pg__fail(error, JOBQ_ERROR_INVALID, "invalid %s: %s (it is %lld)", field, why,
                  (long long)value);
    jobq_pg__copy(error->field, sizeof error->field, field);
    snprintf(error->value, sizeof error->value, "%lld", (long long)value);
    return JOBQ_ERROR_INVALID;
}

/* Says which one of a list was refused. */
static jobq_error jobq_pg__invalid_at(jobq_pg_error *error, const char *list, size_t i)
{
    size_t len = error == NULL ? 0 : strlen(error->message);

    if (error != NULL)
        snprintf(error->message + len, sizeof error->message - len, ", in %s[%llu]", list,
                 (unsigned long long)i);
    return JOBQ_ERROR_INVALID;
}

#define JOBQ_PG__NAME_RULE "must be 1 to 1024 of [A-Za-z0-9._-], alphanumeric at both ends"

/* Whether a time is so short that somebody meant seconds, or milliseconds. */
static bool jobq_pg__short(int64_t us, const char *field, jobq_pg_error *error)
{
    if (us <= 0 || us >= 1000) return false;
    jobq_pg__invalid_int(error, field, us, "must be at least 1000 microseconds, a millisecond");
    return true;
}

/* Checks a backoff. base_us 0 means the default as a whole, so it says nothing else. */
static jobq_error jobq_pg__backoff_invalid(const jobq_backoff *b, const char *field,
                                           jobq_pg_error *error)
{
    if (jobq_backoff_check(b) != JOBQ_OK)
        return jobq_pg__invalid(error, field, "not one that jobq_backoff_check accepts");
    if (b->base_us == 0 && (b->cap_us != 0 || b->floor_us != 0 || b->jitter_permille != 0 ||
                            b->curve != JOBQ_CURVE_EXPONENTIAL))
        return jobq_pg__invalid(error, field, "needs its base_us");
    return jobq_pg__short(b->base_us, field, error) || jobq_pg__short(b->cap_us, field, error) ||
                   jobq_pg__short(b->floor_us, field, error) ? JOBQ_ERROR_INVALID : JOBQ_OK;
}

static void jobq_pg__about(jobq_pg_error *error, const char *entity, const char *field,
                           const char *value)
{
    if (error == NULL) return;
    jobq_pg__copy(error->entity, sizeof error->entity, entity);
    jobq_pg__copy(error->field, sizeof error->field, field);
    jobq_pg__copy(error->value, sizeof error->value, value);
}

/* Such as "Not found: pack with ref=core", and the same in the error's fields. */
static jobq_error jobq_pg__said(jobq_pg_error *error, jobq_error code, const char *what,
                                const char *entity, const char *field, const char *value)
{
    jobq_pg__fail(error, code, "%s: %s with %s=%s", what, entity, field, value);
    jobq_pg__about(error, entity, field, value);
    return code;
}

JOBQ_PG__ONCE static jobq_error jobq_pg__no_memory(jobq_pg_error *error)
{
    return jobq_pg__fail(error, JOBQ_ERROR_MEMORY, "out of memory");
}

#define JOBQ_PG__NO_THREAD "no thread could be started: raise the limit (ulimit -u, ulimit -v, or "\
                           "a container's pids.max)"

/* libpq's own error text would repeat the string, password included, so we check it first. A single
 * word is a database name. */
static bool jobq_pg__conninfo_valid(const char *conninfo)
{
    PQconninfoOption *options;

    if (conninfo == NULL) return true;
    if (strchr(conninfo, '=') == NULL && strstr(conninfo, "://") == NULL) return true;
    options = PQconninfoParse(conninfo, NULL);
    PQconninfoFree(options);
    return options != NULL;
}

/* The error of a connection, with libpq's message if there is one. */
static jobq_error jobq_pg__conn_error(jobq_pg_error *error, const PGconn *conn)
{
    const char *text = conn == NULL ? "out of memory" : PQerrorMessage(conn);

    jobq_pg__fail(error, JOBQ_ERROR_CONNECTION, "%s", text[0] != '\0' ? text : "connection lost");
    return JOBQ_ERROR_CONNECTION;
}

/* The argument that SQL refused: the server names it, but Citus does not pass that on from the node
 * of a distributed schema. Then it is taken from the text, "invalid NAME: ..." (jobq._refuse). */
static void jobq_pg__field_of(char *field, size_t size, const PGresult *res, const char *state,
                              const char *text)
{
    static const char head[] = "invalid ";
    const char *name = PQresultErrorField(res, PG_DIAG_COLUMN_NAME);
    jobq_str argument;
    size_t length = 0;

    jobq_pg__copy(field, size, name);
    if (name != NULL || strcmp(state, "22023") != 0 || strncmp(text, head, sizeof head - 1) != 0)
        return;
    text += sizeof head - 1;
    while ((text[length] >= 'a' && text[length] <= 'z') || text[length] == '_') length++;
    argument.ptr = text;
    argument.len = length;
    if (text[length] == ':') jobq_pg__copy_str(field, size, argument);
}

/* The constraint that was violated, in the same way. */
static void jobq_pg__constraint_of(char *name, size_t size, const PGresult *res, const char *state,
                                   const char *text)
{
    static const char head[] = " constraint \"";
    const char *named = PQresultErrorField(res, PG_DIAG_CONSTRAINT_NAME);
    const char *at = strncmp(state, "23", 2) == 0 ? strstr(text, head) : NULL;
    jobq_str constraint;

    jobq_pg__copy(name, size, named);
    if (named != NULL || at == NULL) return;
    constraint.ptr = at + sizeof head - 1;
    constraint.len = strcspn(constraint.ptr, "\"");
    jobq_pg__copy_str(name, size, constraint);
}

/* The error of a result. The server's other texts are left out, because they may contain payloads,
 * except for the hint of an argument that was refused. */
static jobq_error jobq_pg__result_error(jobq_pg_error *error, const PGconn *conn,
                                        const PGresult *res)
{
    const char *state = res == NULL ? NULL : PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *text = res == NULL ? NULL : PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    jobq_error code = jobq_pg__code_of(state);
    const char *hint = res == NULL ? NULL : PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    int class_at = state == NULL ? -1 : jobq_pg__class_of(state);
    const char *fix = class_at < 0 ? "" : jobq_pg__classes[class_at].fix;

    if (state == NULL || text == NULL) return jobq_pg__conn_error(error, conn);
    if (hint == NULL || strcmp(state, "22023") != 0) hint = "";
    if (strncmp(state, "08", 2) == 0 && PQstatus(conn) == CONNECTION_BAD) {
        code = JOBQ_ERROR_CONNECTION; /* a pooler says it, and cannot know what the server did */
        fix = "; what was sent may have been carried out";
    }
    jobq_pg__fail(error, code, "%s%s%s%s", text, fix, hint[0] == '\0' ? "" : ". ", hint);
    if (error != NULL) {
        jobq_pg__copy(error->sqlstate, sizeof error->sqlstate, state);
        jobq_pg__copy(error->entity, sizeof error->entity,
                      PQresultErrorField(res, PG_DIAG_TABLE_NAME));
        jobq_pg__field_of(error->field, sizeof error->field, res, state, text);
        jobq_pg__constraint_of(error->constraint, sizeof error->constraint, res, state, text);
        if (strcmp(state, "22023") == 0) /* jobq._refuse puts it there */
            jobq_pg__copy(error->value, sizeof error->value,
                          PQresultErrorField(res, PG_DIAG_DATATYPE_NAME));
    }
    return code;
}

/* ---- >>sql: the statements ------------------------------------------------------------------- */

/* The tests of both stores define a clock of their own. */
#ifndef JOBQ_PG__NOW
#define JOBQ_PG__NOW "pg_catalog.statement_timestamp()"
#endif

#define JOBQ_PG__MAY_ENQUEUE_SQL                                                                   \
    "SELECT pg_catalog.has_table_privilege('jobq.job', 'INSERT') AND "                             \
    "pg_catalog.has_column_privilege('jobq.job', 'id', 'SELECT') AND "                             \
    "pg_catalog.has_column_privilege('jobq.job', 'queue_id', 'SELECT') AND "                       \
    "pg_catalog.has_table_privilege('jobq.kind', 'SELECT') AND "                                   \
    "pg_catalog.has_table_privilege('jobq.queue', 'SELECT') AND "                                  \
    "pg_catalog.has_table_privilege('jobq.sleeper', 'SELECT') AND "                                \
    "pg_catalog.has_sequence_privilege('jobq.job_id', 'USAGE') AND "                               \
    "pg_catalog.has_function_privilege('jobq._notify(pg_catalog.int8, pg_catalog.text)', "         \
    "'EXECUTE') AND "                                                                              \
    "pg_catalog.to_regclass('jobq.original') IS NULL"

#define JOBQ_PG__ENQUEUE_DIRECT_SQL                                                                \
    "INSERT INTO jobq.job (queue_id, kind_id, run_at, enqueued_at, priority, max_attempts, "       \
    "timeout_us, payload, bytes, headers) "                                                        \
    "SELECT k.queue_id, k.id, greatest(" JOBQ_PG__NOW ", "                                         \
    "coalesce($6::pg_catalog.timestamptz, " JOBQ_PG__NOW " OPERATOR(pg_catalog.+) "                \
    "($7::bigint OPERATOR(pg_catalog.*) interval '1 microsecond'))), "                             \
    JOBQ_PG__NOW ", coalesce($8, 0::smallint), $9::integer, $10::bigint, "                         \
    "$3::pg_catalog.jsonb, $4::pg_catalog.bytea, $5::pg_catalog.jsonb FROM jobq.kind k "           \
    "WHERE k.queue OPERATOR(pg_catalog.=) $1 AND k.name OPERATOR(pg_catalog.=) $2 "                \
    "AND $12::bigint OPERATOR(pg_catalog.<=) k.payload_max "                                       \
    "RETURNING id, (SELECT jobq._notify(s.worker, '') FROM jobq.sleeper s "                        \
    "WHERE s.queue_id OPERATOR(pg_catalog.=) job.queue_id AND $11 LIMIT 1)"

#define JOBQ_PG__OUTBOX_ENQUEUE_DIRECT_SQL                                                         \
    "WITH q AS MATERIALIZED (SELECT id, id::bigint OPERATOR(pg_catalog.*) 32768 "                  \
    "OPERATOR(pg_catalog.+) coalesce($3::integer OPERATOR(pg_catalog.&) (partitions "              \
    "OPERATOR(pg_catalog.-) 1), $2::integer) AS partition_id FROM jobq.queue "                     \
    "WHERE name OPERATOR(pg_catalog.=) $1 AND pg_catalog.pg_current_xact_id() IS NOT NULL "        \
    "AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) "              \
    "'read committed' AND coalesce($3::integer, $2::integer) OPERATOR(pg_catalog.>=) 0 "           \
    "AND coalesce($3::integer OPERATOR(pg_catalog.&) (partitions OPERATOR(pg_catalog.-) 1), "      \
    "$2::integer) OPERATOR(pg_catalog.<) partitions "                                              \
    "AND $9::bigint OPERATOR(pg_catalog.<=) message_max) "                                         \
    "INSERT INTO jobq.message (partition_id, type, payload, bytes, headers) "                      \
    "SELECT partition_id, $4::pg_catalog.text, $5, $6, $7 "                                        \
    "FROM q RETURNING id, (SELECT jobq._notify(s.worker, q.partition_id::pg_catalog.text) "        \
    "FROM jobq.sleeper s JOIN q ON s.queue_id OPERATOR(pg_catalog.=) q.id WHERE $8 LIMIT 1)"

#define JOBQ_PG__VACUUM_SQL                                                                        \
    "VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on, PARALLEL 0) jobq.job, jobq.message, "    \
    "jobq.partition"

/*
 * X(ID, name, in, out): SELECT out FROM jobq.name(in); in and out are columns in >>codec. If out is
 *                       none, the function returns one value, or nothing.
 * V(ID, name, in, none): SELECT from the view jobq.name WHERE in's column equals the parameter;
 *                       jobq_pg__desc_of has the columns of the result.
 * R(ID, name, in, none): a function that returns rows; jobq_pg__desc_of has their columns.
 * T(ID, text, in, out): any other text.
 */
#ifndef JOBQ_PG_NO_OUTBOX
#define JOBQ_PG__OUTBOX_STATEMENTS(X, V, R, T)                                                     \
    X(OUTBOX_REGISTER, "outbox_register", outbox_register_in, outbox_register_out)                 \
    X(OUTBOX_GROW, "outbox_grow", outbox_grow_in, none)                                            \
    X(OUTBOX_ENQUEUE, "_outbox_enqueue_many", messages_in, messages_out)                           \
    X(OUTBOX_ENQUEUE_ONE, "_outbox_enqueue_one", message_in, message_out)                          \
    X(OUTBOX_DIRECT, "_outbox_direct", none, none)                                                 \
    T(OUTBOX_ENQUEUE_DIRECT, JOBQ_PG__OUTBOX_ENQUEUE_DIRECT_SQL, message_direct_in, none)          \
    X(OUTBOX_QUEUE, "_outbox_queue", outbox_queue_in, outbox_queue_out)                            \
    T(OUTBOX_COPY, "COPY jobq.message (partition_id, type, payload, bytes, headers) FROM STDIN "   \
                   "(FORMAT binary)", none, none)                                                  \
    R(DEAD_LETTER_REPLAY, "dead_letter_replay", letter_replay_in, none)                            \
    X(DEAD_LETTER_RESOLVE, "dead_letter_resolve", letter_resolve_in, none)                         \
    X(DEAD_LETTER_REJECT, "dead_letter_reject", letter_reject_in, none)                            \
    X(DEAD_LETTER_DISCARD, "dead_letter_discard", letter_scope_in, none)
#else
#define JOBQ_PG__OUTBOX_STATEMENTS(X, V, R, T)
#endif

#define JOBQ_PG__STATEMENTS(X, V, R, T)                                                            \
    X(ENQUEUE, "_enqueue_many", enqueue_in, ids_out)                                               \
    X(ENQUEUE_ONE, "_enqueue_one", enqueue_one_in, existed_out)                                    \
    X(ENQUEUE_KNOWN, "_enqueue_known", enqueue_known_in, existed_out)                              \
    X(ENQUEUE_LINKED, "_enqueue_linked", enqueue_linked_in, ids_out)                               \
    T(MAY_ENQUEUE, JOBQ_PG__MAY_ENQUEUE_SQL, none, none)                                           \
    T(ENQUEUE_DIRECT, JOBQ_PG__ENQUEUE_DIRECT_SQL, enqueue_direct_in, none)                        \
    X(BULK, "_bulk", bulk_in, bulk_out)                                                            \
    T(COPY, "COPY jobq.job (", none, none)                                                         \
    X(WAKE, "_wake", wake_in, none)                                                                \
    X(CLAIM, "_claim", claim_in, claim_out)                                                        \
    X(RECOVER, "_recover", recover_in, none)                                                       \
    X(SET_ASIDE, "_set_aside", set_aside_in, none)                                                 \
    X(COMPLETE, "_complete", complete_in, exception_out)                                           \
    X(COMPLETE_WITH, "_complete_with", complete_with_in, exception_out)                            \
    X(SETTLE, "_settle", settle_in, exception_out)                                                 \
    X(SETTLE_HERE, "_settle_here", settle_here_in, none)                                           \
    X(WAIT_HERE, "_wait_here", wait_here_in, none)                                                 \
    X(STEP_OF_CLAIM, "_step_of_claim", step_of_claim_in, step_of_claim_out)                        \
    X(STEP_DONE_HERE, "_step_done_here", step_done_here_in, none)                                  \
    X(SIGNAL_OF_CLAIM, "_signal_of_claim", signal_of_claim_in, signal_of_claim_out)                \
    X(SIGNAL, "signal", signal_in, none)                                                           \
    X(REGISTER, "_register", register_in, register_out)                                            \
    X(POLICIES, "_policies", policies_in, policy_out)                                              \
    X(HEARTBEAT, "_heartbeat", heartbeat_in, news_out)                                             \
    X(BEAT_CLAIM, "_heartbeat", heartbeat_in, claim_out) /* + CLAIM: see jobq_pg__say_beat */      \
    X(RESCUE, "_rescue_jobs", rescue_in, rescue_out)                                               \
    X(SLEEP, "_sleep", sleep_in, none)                                                             \
    X(UNPARK, "_unpark", unpark_in, none)                                                          \
    X(REMAINS, "_remains", remains_in, none)                                                       \
    X(TICK, "_tick", tick_in, tick_out)                                                            \
    T(PRUNE, "SELECT jobq.prune($1), jobq.turn()", prune_in, none)                                 \
    T(VACUUM, JOBQ_PG__VACUUM_SQL, none, none)                                                     \
    X(DEREGISTER, "_deregister", deregister_in, none)                                              \
    X(CANCEL, "cancel", id_in, none)   /* of a verb: on one job, then on many */                   \
    X(CANCEL_MANY, "cancel", state_many_in, cancelled_out)                                         \
    X(REVIVE, "revive", id_in, none)                                                               \
    X(REVIVE_MANY, "revive", many_in, none)                                                        \
    X(FLOW, "flow", flow_in, none)                                                                 \
    X(FLOW_CLOSE, "flow_close", id_in, none)                                                       \
    X(FLOW_CANCEL, "flow_cancel", flow_many_in, none)                                              \
    X(FLOW_REVIVE, "flow_revive", flow_many_in, none)                                              \
    X(DELETE, "delete", id_in, none)                                                               \
    X(DELETE_MANY, "delete", state_many_in, none)                                                  \
    X(RESCHEDULE, "reschedule", reschedule_in, none)                                               \
    X(RESCHEDULE_MANY, "reschedule", reschedule_many_in, none)                                     \
    X(PRIORITIZE, "prioritize", prioritize_in, none)                                               \
    X(PRIORITIZE_MANY, "prioritize", prioritize_many_in, none)                                     \
    X(MOVE, "move", move_in, none)                                                                 \
    X(MOVE_MANY, "move", move_many_in, none)                                                       \
    X(QUEUE_SET, "queue_set", queue_set_in, none)                                                  \
    X(LINE_SET, "line_set", line_set_in, none)                                                     \
    X(HOLD, "hold", hold_in, none)                                                                 \
    X(HOLD_OF_CLAIM, "_hold_of_claim", hold_of_claim_in, none)                                     \
    X(PROGRESS_OF_CLAIM, "_progress_of_claim", progress_of_claim_in, none)                         \
    X(SCHEDULES_SET, "_schedules_set", schedules_in, none)                                         \
    V(GET, "jobs", id_in, none)                                                                    \
    R(AWAIT, "_await", await_in, none)                                                             \
    X(UNAWAIT, "_unawait", await_in, none)                                                         \
    R(PARENT_JOBS, "_parent_jobs", parents_in, none)                                               \
    X(EXPLAIN, "explain_job", id_in, explain_out)                                                  \
    X(STANDING, "standing", standing_in, none)                                                     \
    X(OUTBOX_LOOK, "_outbox_look", look_in, backlog_out)                                           \
    X(OUTBOX_READ, "_outbox_read", read_in, reading_out)                                           \
    X(OUTBOX_ACK, "_outbox_ack", ack_in, reading_out)                                              \
    X(OUTBOX_RENEW, "_outbox_renew", renew_in, renew_out)                                          \
    JOBQ_PG__OUTBOX_STATEMENTS(X, V, R, T)

typedef enum jobq_pg__statement {
#define JOBQ__X(id, name, in, out) JOBQ_PG__##id,
    JOBQ_PG__STATEMENTS(JOBQ__X, JOBQ__X, JOBQ__X, JOBQ__X)
#undef JOBQ__X
        JOBQ_PG__STATEMENT_COUNT
} jobq_pg__statement;

/* ---- >>bind: parameters and results ---------------------------------------------------------- */

/* Types of the server. */
typedef enum jobq_pg__wire {
    JOBQ_PG__NOTHING, JOBQ_PG__BOOL, JOBQ_PG__CHAR, JOBQ_PG__INT2, JOBQ_PG__INT4, JOBQ_PG__INT8,
    JOBQ_PG__TIMESTAMPTZ, JOBQ_PG__INTERVAL, JOBQ_PG__NUMERIC, JOBQ_PG__TEXT, JOBQ_PG__BYTEA,
    JOBQ_PG__JSONB
} jobq_pg__wire;

static const struct {
    const char *cast; /* of a parameter */
    int oid;
    size_t width;     /* bytes, if it is sent as an integer; else 0 */
} jobq_pg__wires[] = {
    {"", 0, 0},
    {"::pg_catalog.bool", 16, 1},
    {"::pg_catalog.\"char\"", 18, 1},
    {"::pg_catalog.int2", 21, 2},
    {"::pg_catalog.int4", 23, 4},
    {"::pg_catalog.int8", 20, 8},
    {"::pg_catalog.timestamptz", 1184, 8},
    {"::pg_catalog.interval", 1186, 0},
    {"::pg_catalog.text::pg_catalog.numeric", 1700, 0},
    {"::pg_catalog.text", 25, 0},
    {"::pg_catalog.bytea", 17, 0},
    {"::pg_catalog.jsonb", 3802, 0},
};

#define JOBQ_PG__EPOCH_US ((int64_t)946684800 * 1000000) /* 2000-01-01, the server's epoch */
#define JOBQ_PG__PARAMS_MAX 1024

/* Parameters of one statement, in binary form. SQL text is built in data alone. After a failed
 * allocation failed stays true, so the caller checks once, at the end. */
typedef struct jobq_pg__params {
    char *data;
    size_t size, room; /* bytes used, bytes allocated */
    bool failed;
    int count; /* of parameters; the rest of the arrays is not set */
    size_t offsets[JOBQ_PG__PARAMS_MAX]; /* in data; SIZE_MAX: NULL */
    int lengths[JOBQ_PG__PARAMS_MAX];    /* bytes */
} jobq_pg__params;

static void jobq_pg__params_init(jobq_pg__params *p)
{
    p->data = NULL;
    p->size = p->room = 0;
    p->failed = false;
    p->count = 0;
}

static void jobq_pg__params_clear(jobq_pg__params *p)
{
    free(p->data);
    jobq_pg__params_init(p);
}

/* Removes all parameters, but keeps the memory. */
static void jobq_pg__params_reset(jobq_pg__params *p)
{
    p->size = 0;
    p->count = 0;
    p->failed = false;
}

static char *jobq_pg__grow(jobq_pg__params *p, size_t more)
{
    size_t room = p->room == 0 ? 1024 : p->room;
    char *data;

    if (p->failed) return NULL;
    while (room < p->size + more) room *= 2;
    if (room > p->room) {
        data = (char *)realloc(p->data, room);
        if (data == NULL) {
            p->failed = true;
            return NULL;
        }
        p->data = data;
        p->room = room;
    }
    p->size += more;
    return p->data + p->size - more;
}

JOBQ_PG__ONCE static void jobq_pg__raw(jobq_pg__params *p, const char *bytes, size_t len)
{
    char *out = jobq_pg__grow(p, len);

    if (out != NULL && len > 0) memcpy(out, bytes, len);
}

/* Writes an integer of width bytes, big-endian. */
JOBQ_PG__ONCE static void jobq_pg__raw_int(jobq_pg__params *p, int64_t value, size_t width)
{
    char *out = jobq_pg__grow(p, width);
    uint64_t rest = (uint64_t)value;

    if (out == NULL) return;
    while (width > 0) {
        out[--width] = (char)(rest & 0xff);
        rest >>= 8;
    }
}

static void jobq_pg__begin(jobq_pg__params *p)
{
    JOBQ_ASSERT(p->count < JOBQ_PG__PARAMS_MAX);
    p->offsets[p->count] = p->size;
}

/* libpq takes lengths as int, and the server takes at most 1 GB. */
static void jobq_pg__end(jobq_pg__params *p)
{
    size_t size = p->size - p->offsets[p->count];

    if (size > INT32_MAX) p->failed = true;
    p->lengths[p->count++] = size > INT32_MAX ? 0 : (int)size;
}

JOBQ_PG__ONCE static void jobq_pg__add_null(jobq_pg__params *p)
{
    JOBQ_ASSERT(p->count < JOBQ_PG__PARAMS_MAX);
    p->offsets[p->count] = SIZE_MAX;
    p->lengths[p->count++] = 0;
}

/* The header of a one-dimensional array; the elements follow. */
static void jobq_pg__array_head_put(jobq_pg__params *p, jobq_pg__wire wire, size_t count)
{
    jobq_pg__raw_int(p, count > 0, 4);
    jobq_pg__raw_int(p, 1, 4);
    jobq_pg__raw_int(p, jobq_pg__wires[wire].oid, 4);
    if (count == 0) return;
    jobq_pg__raw_int(p, (int64_t)count, 4);
    jobq_pg__raw_int(p, 1, 4);
}

JOBQ_PG__ONCE static void jobq_pg__item_int(jobq_pg__params *p, int64_t value, size_t width)
{
    jobq_pg__raw_int(p, (int64_t)width, 4);
    jobq_pg__raw_int(p, value, width);
}

/* A text element; {NULL, 0} is NULL. */
static void jobq_pg__item_str(jobq_pg__params *p, jobq_str s)
{
    jobq_pg__raw_int(p, s.ptr == NULL ? -1 : (int64_t)s.len, 4);
    if (s.ptr != NULL) jobq_pg__raw(p, s.ptr, s.len);
}

/* Compilers make one instruction of it. */
static uint32_t jobq_pg__big32(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;

    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Reads a signed big-endian integer of len bytes. */
static int64_t jobq_pg__big(const char *p, size_t len)
{
    uint64_t value = (unsigned char)p[0] & 0x80 ? UINT64_MAX : 0;
    size_t i;

    if (len == 4) return (int32_t)jobq_pg__big32(p);
    if (len == 8) return (int64_t)((uint64_t)jobq_pg__big32(p) << 32 | jobq_pg__big32(p + 4));
    for (i = 0; i < len; i++) value = value << 8 | (unsigned char)p[i];
    return (int64_t)value;
}

/* An integer, a boolean or a "char" from a binary result; 0 if it is NULL or has another size. */
static int64_t jobq_pg__int(const PGresult *res, int row, int column)
{
    int len = PQgetlength(res, row, column);

    if (len < 1 || len > 8 || PQgetisnull(res, row, column)) return 0;
    return jobq_pg__big(PQgetvalue(res, row, column), (size_t)len);
}

static int64_t jobq_pg__from_server_us(int64_t us)
{
    if (us == INT64_MAX || us == INT64_MIN) return us; /* infinity, -infinity */
    return us > INT64_MAX - JOBQ_PG__EPOCH_US ? JOBQ_NEVER : us + JOBQ_PG__EPOCH_US;
}

static int64_t jobq_pg__to_server_us(int64_t us)
{
    if (us == INT64_MIN || us == JOBQ_NEVER) return us; /* -infinity, infinity */
    return us - JOBQ_PG__EPOCH_US;
}

JOBQ_PG__ONCE static void jobq_pg__say(jobq_pg__params *out, const char *text)
{
    jobq_pg__raw(out, text, strlen(text));
}

static void jobq_pg__say_name(jobq_pg__params *out, const char *name)
{
    jobq_pg__say(out, "\"");
    for (; *name != '\0'; name++) {
        if (*name == '"') jobq_pg__say(out, "\"");
        jobq_pg__raw(out, name, 1);
    }
    jobq_pg__say(out, "\"");
}

/* Formats: %s is a text, %n a name, which gets quotes, and %d an int. */
static void jobq_pg__sayf(jobq_pg__params *out, const char *format, ...)
{
    char number[16];
    va_list args;

    va_start(args, format);
    for (; *format != '\0'; format++) {
        if (*format != '%') {
            jobq_pg__raw(out, format, 1);
            continue;
        }
        format++;
        if (*format == 's') jobq_pg__say(out, va_arg(args, const char *));
        else if (*format == 'n') jobq_pg__say_name(out, va_arg(args, const char *));
        else {
            snprintf(number, sizeof number, "%d", va_arg(args, int));
            jobq_pg__say(out, number);
        }
    }
    va_end(args);
}

/* ---- >>pool ---------------------------------------------------------------------------------- */

/* A statement's text, made once. */
typedef struct jobq_pg__text {
    char *sql;
    uint64_t hash; /* of sql; it names the prepared statement */
} jobq_pg__text;

/* A call of jobq_pg_wait. */
typedef struct jobq_pg__waiting {
    const int64_t *ids;
    bool *ended;            /* of each id: it has ended, or is not there */
    int32_t count, left;    /* left: how many have not, also by what was heard */
    int32_t open;           /* how many have not by the last look, whose rows the caller gets */
    bool written;           /* await has written where the ear listens */
    bool missed;            /* some end was not heard: what await has written is left */
    jobq_pg__os_cond news;    /* left has changed, or the ear needs somebody */
    struct jobq_pg__waiting *next;
} jobq_pg__waiting;

/* The connection that hears of the ends of jobs. Of those who wait, one at a time uses it. */
typedef struct jobq_pg__ear {
    PGconn *conn;
    int64_t channel;        /* random, so that nobody who may not look can listen */
    int64_t retry_mono_us;  /* not to be made again before */
    bool used;              /* by a thread that does not hold the lock */
    bool deaf;              /* the log says that it could not be made; only for that thread */
    jobq_pg__waiting *waiting;
} jobq_pg__ear;

/* A line of the log that can come often: five a second are written, the others counted. */
typedef struct jobq_pg__often {
    int64_t second;
    int written, left_out;
} jobq_pg__often;

struct jobq_pg {
    char *conninfo, *listen_conninfo;
    char name[52];            /* the schema's, and */
    char schema[52];          /* as SQL writes it, with quotes unless it is jobq */
    jobq_pg__text texts[JOBQ_PG__STATEMENT_COUNT];
    int64_t acquire_us;       /* how long jobq_pg_acquire may wait */
    int64_t call_us;          /* how long a call may wait for an answer; JOBQ_NEVER: for ever */
    bool no_pool;
    size_t payload_max;       /* bytes */
    bool behind_pooler;       /* conninfo leads through a pooler in transaction mode */
    bool odd;                 /* sessions do not begin as READ COMMITTED, READ WRITE */
    int32_t pid;                /* of the opening process; a forked child must not use the handle */
    int64_t patience_us;      /* how long jobq_pg_open retries to connect */
    bool may_be_down;
    void (*log)(void *user, jobq_level level, const char *message);
    void (*log_event)(void *user, const jobq_pg_event *event);
    bool (*connect)(void *user, jobq_pg_dial *dial);
    bool (*set_up)(void *user, PGconn *conn);
    bool (*seal)(void *user, jobq_pg_seal *seal);
    bool (*open)(void *user, jobq_pg_seal *seal);
    char seal_name[68];
    void *user;
    jobq_pg__os_mutex lock;     /* guards the fields below */
    jobq_pg__os_cond freed;     /* a connection became idle, or was closed */
    int pool_max, open_count, idle_count, idle_room;
    PGconn **idle;            /* idle_count connections, owned; room for idle_room */
    bool unchecked;           /* the self-check is due: no server has answered yet */
    jobq_pg__often failures, leavings; /* jobs that failed for good; transactions left open */
    jobq_pg__ear ear;
};

JOBQ_API const char *jobq_pg_schema(const jobq_pg *pg) { return pg->schema; }

/* The log of a handle that was given none. */
static void jobq_pg__log_stderr(void *user, jobq_level level, const char *message)
{
    (void)user;
    if (level >= JOBQ_LEVEL_WARNING)
        fprintf(stderr, "jobq: %s: %s\n", level == JOBQ_LEVEL_ERROR ? "error" : "warning", message);
}

static jobq_pg_event jobq_pg__event_of(jobq_level level, const char *code)
{
    jobq_pg_event e;

    memset(&e, 0, sizeof e);
    e.level = level;
    e.code = code;
    return e;
}

/* An event that tells of an error. */
static jobq_pg_event jobq_pg__event_error(jobq_level level, const char *code,
                                          const jobq_pg_error *error)
{
    jobq_pg_event e = jobq_pg__event_of(level, code);

    e.sqlstate = error->sqlstate[0] == '\0' ? NULL : error->sqlstate;
    return e;
}

/* Every line of the log goes through here. It begins with the schema's name. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 3, 4)))
#endif
static void jobq_pg__log(const jobq_pg *pg, jobq_pg_event e, const char *format, ...)
{
    char message[700];
    size_t at = strlen(pg->name);
    va_list args;

    snprintf(message, sizeof message, "%s: ", pg->name);
    va_start(args, format);
    vsnprintf(message + at + 2, sizeof message - at - 2, format, args);
    va_end(args);
    jobq_pg__one_line(message);
    if (pg->log != NULL) pg->log(pg->user, e.level, message);
    if (pg->log_event == NULL) return;
    e.text = message;
    e.schema = pg->name;
    pg->log_event(pg->user, &e);
}

/* Whether a line may be written now. more: text about those that were left out before it. */
static bool jobq_pg__may_log(jobq_pg *pg, jobq_pg__often *often, char more[48])
{
    int64_t second = jobq_pg__mono_us() / 1000000;
    bool may;

    more[0] = '\0';
    jobq_pg__os_lock(&pg->lock);
    if (often->second != second) often->written = 0;
    often->second = second;
    may = often->written < 5;
    if (may && often->left_out > 0)
        snprintf(more, 48, " (and %d more before it)", often->left_out);
    often->left_out = may ? 0 : often->left_out + 1;
    often->written += may;
    jobq_pg__os_unlock(&pg->lock);
    return may;
}

static bool jobq_pg__word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

/* Copies SQL, with the schema for each word jobq. The caller frees the copy. */
static char *jobq_pg__for_schema(const char *sql, const char *schema)
{
    size_t len = strlen(schema), count = 0, at = 0, i;
    char *out;

    for (i = 0; sql[i] != '\0'; i++) count += sql[i] == 'j';
    out = (char *)malloc(strlen(sql) + count * len + 1);
    if (out == NULL) return NULL;
    for (i = 0; sql[i] != '\0';) {
        bool alone = strncmp(sql + i, "jobq", 4) == 0 && !jobq_pg__word(sql[i + 4]) &&
                     (i == 0 || !jobq_pg__word(sql[i - 1]));
        if (alone) memcpy(out + at, schema, len);
        else out[at] = sql[i];
        at += alone ? len : 1;
        i += alone ? 4 : 1;
    }
    out[at] = '\0';
    return out;
}

JOBQ_PG__ONCE static char *jobq_pg__dup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = (char *)malloc(size);

    if (copy != NULL) memcpy(copy, text, size);
    return copy;
}

#define JOBQ_PG__HASH_SEED ((uint64_t)0xcbf29ce484222325) /* FNV-1a */
#define JOBQ_PG__HASH_PRIME ((uint64_t)0x100000001b3)

static uint64_t jobq_pg__hash(uint64_t hash, const char *text)
{
    if (text == NULL) text = "\1";
    for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * JOBQ_PG__HASH_PRIME;
    return (hash ^ 0xff) * JOBQ_PG__HASH_PRIME;
}

/* False: not an allowed name. */
static bool jobq_pg__schema_set(jobq_pg *pg, const char *name)
{
    size_t len = strlen(name), i;

    if (len < 1 || len > 48 || (name[0] >= '0' && name[0] <= '9')) return false;
    for (i = 0; i < len; i++) {
        if (!jobq_pg__word(name[i])) return false;
    }
    jobq_pg__copy(pg->name, sizeof pg->name, name);
    snprintf(pg->schema, sizeof pg->schema, strcmp(name, "jobq") == 0 ? "%s" : "\"%s\"", name);
    return true;
}

/* -- fork -- */

static bool jobq_pg__forked(const jobq_pg *pg) { return pg->pid != jobq_pg__os_pid(); }

static jobq_error jobq_pg__forked_error(jobq_pg_error *error)
{
    return jobq_pg__invalid(error, "pg",
                            "not of this process: it was opened before fork(), and its connections "
                            "are the parent's; open a handle in the child");
}

/* Closes a forked child's copy of a connection. PQfinish alone would end the parent's session, so
 * it no longer reaches the server. */
static void jobq_pg__conn_leave(PGconn *conn)
{
    jobq_pg__os_orphan(conn);
    PQfinish(conn);
}

JOBQ_API bool jobq_pg_random(uint64_t *bits) { return jobq_pg__os_random(bits, sizeof *bits); }

/* -- connecting -- */

JOBQ_API bool jobq_pg_dial_set(jobq_pg_dial *dial, const char *keyword, const char *value)
{
    int last = (int)(sizeof dial->values / sizeof dial->values[0]) - 1;
    char *copy;

    JOBQ_ASSERT(dial != NULL && keyword != NULL && value != NULL);
    if (dial->count == last) return false;
    copy = (char *)malloc(strlen(keyword) + strlen(value) + 2);
    if (copy == NULL) return false;
    strcpy(copy, value);
    dial->values[dial->count] = copy;
    dial->keywords[dial->count++] = strcpy(copy + strlen(value) + 1, keyword);
    return true;
}

/* Overwrites the values, because they may be secrets. */
static void jobq_pg__dial_clear(jobq_pg_dial *dial)
{
    while (dial->count > 0) {
        volatile char *c = dial->values[--dial->count];
        while (*c != '\0') *c++ = '\0';
        free(dial->values[dial->count]);
        dial->keywords[dial->count] = dial->values[dial->count] = NULL;
    }
}

/* In libpq later values win: after our defaults comes conninfo, then the values of desc.connect. A
 * queue needs the primary. Keepalives and tcp_user_timeout detect half-open connections. */
static bool jobq_pg__dial_fill(jobq_pg_dial *dial)
{
    static const char *const defaults[][2] = {
        {"connect_timeout", "10"}, {"keepalives_idle", "30"}, {"keepalives_interval", "10"},
        {"keepalives_count", "3"}, {"tcp_user_timeout", "30000"}, {"client_encoding", "UTF8"},
        {"target_session_attrs", "primary"}};
    char name[64] = "jobq";
    bool good;
    size_t i;

    if (dial->worker != NULL) {
        jobq_pg__copy(name, sizeof name, "jobq ");
        jobq_pg__copy(name + 5, sizeof name - 5, dial->worker);
    }
    good = jobq_pg_dial_set(dial, "fallback_application_name", name);
    for (i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        good = good && jobq_pg_dial_set(dial, defaults[i][0], defaults[i][1]);
    return good && jobq_pg_dial_set(dial, "dbname", dial->conninfo);
}

/* libpq reports a refused connection as text without a SQLSTATE. If the text is English, we add the
 * fix. */
static jobq_error jobq_pg__dial_error(jobq_pg_error *error, const PGconn *conn)
{
    static const char *const fixes[][2] = {
        {"too many", "raise max_connections or the role's limit, or lower threads and pool_max"},
        {"slots are reserved", "raise max_connections, or lower threads and pool_max"},
        {"hot standby", "promote it, or name the primary among the hosts"},
        {"session is read-only", "set target_session_attrs=primary, the default here"},
        {"starting up", "temporary: workers retry"}, {"shutting down", "temporary: workers retry"},
        {"not yet accepting", "temporary: workers retry"},
        {"in recovery mode", "temporary: workers retry"},
        {"password", "give user and password, a passfile, or desc.connect"},
        {"no pg_hba.conf entry", "add an entry for this user and host"}};
    char text[sizeof error->message];
    size_t i;

    if (error == NULL) return JOBQ_ERROR_CONNECTION;
    jobq_pg__conn_error(error, conn);
    jobq_pg__copy(text, sizeof text, error->message);
    for (i = 0; i < sizeof fixes / sizeof fixes[0]; i++) {
        if (strstr(text, fixes[i][0]) == NULL) continue;
        jobq_pg__fail(error, error->code, "%.380s (%s)", text, fixes[i][1]);
        break;
    }
    return error->code;
}

/* Fills dial, and calls desc.connect, which may block. False: error is filled. */
static bool jobq_pg__dial_ask(const jobq_pg *pg, const char *conninfo, const char *worker,
                              jobq_pg_dial *dial, jobq_pg_error *error)
{
    memset(dial, 0, sizeof *dial);
    dial->conninfo = conninfo;
    dial->worker = worker;
    if (!jobq_pg__dial_fill(dial)) {
        jobq_pg__no_memory(error);
    } else if (pg->connect != NULL && !pg->connect(pg->user, dial)) {
        PQfinish(dial->conn);
        jobq_pg__fail(error, JOBQ_ERROR_CONNECTION, "desc.connect refused");
    } else return true;
    jobq_pg__dial_clear(dial);
    return false;
}

/* Connects, which may take seconds for each host, and clears dial. NULL: error is filled. */
static PGconn *jobq_pg__dial_make(jobq_pg_dial *dial, jobq_pg_error *error)
{
    PGconn *conn = dial->conn;

    if (conn == NULL) {
        conn = PQconnectdbParams(dial->keywords, (const char *const *)dial->values, 1);
        if (conn == NULL) jobq_pg__no_memory(error);
    }
    jobq_pg__dial_clear(dial);
    if (conn == NULL || PQstatus(conn) != CONNECTION_BAD) return conn;
    jobq_pg__dial_error(error, conn);
    PQfinish(conn);
    return NULL;
}

static PGconn *jobq_pg__dial_up(const jobq_pg *pg, const char *conninfo, const char *worker,
                             jobq_pg_error *error)
{
    jobq_pg_dial dial;

    if (!jobq_pg__dial_ask(pg, conninfo, worker, &dial, error)) return NULL;
    return jobq_pg__dial_make(&dial, error);
}

/* An earlier error has aborted the transaction. A statement now would only hide it: its text is the
 * connection's until then. */
JOBQ_PG__ONCE static jobq_error jobq_pg__aborted(jobq_pg_error *error, const PGconn *conn)
{
    jobq_pg__fail(error, JOBQ_ERROR_INVALID,
                  "invalid conn: has an aborted transaction: roll it back first; before: %s",
                  PQerrorMessage(conn));
    if (error != NULL) jobq_pg__copy(error->field, sizeof error->field, "conn");
    return JOBQ_ERROR_INVALID;
}

/* Whether a connection can take a statement now. */
static jobq_error jobq_pg__usable(PGconn *conn, jobq_pg_error *error)
{
    PGTransactionStatusType status = PQtransactionStatus(conn);
    const char *encoding = PQparameterStatus(conn, "client_encoding");
    const char *server = PQparameterStatus(conn, "server_encoding");

    if (PQstatus(conn) != CONNECTION_OK) return jobq_pg__conn_error(error, conn);
    if (server != NULL && strcmp(server, "UTF8") != 0 && strcmp(server, "SQL_ASCII") != 0) {
        return jobq_pg__fail(error, JOBQ_ERROR_INVALID,
                             "the database is encoded in %s, which cannot hold every text: CREATE "
                             "DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and use that one",
                             server);
    }
    if (status == PQTRANS_INERROR) return jobq_pg__aborted(error, conn);
    if (status == PQTRANS_ACTIVE || PQpipelineStatus(conn) != PQ_PIPELINE_OFF) {
        return jobq_pg__invalid(error, "conn",
                                "is busy with another statement, or in pipeline mode");
    }
    if (encoding != NULL && strcmp(encoding, "UTF8") != 0 && strcmp(encoding, "SQL_ASCII") != 0) {
        return jobq_pg__invalid(error, "conn",
                                "needs client_encoding UTF8: PQsetClientEncoding(conn, \"UTF8\")");
    }
    return JOBQ_OK;
}

/* Sends the server's notices to the log; libpq would print them on stderr. */
static void jobq_pg__on_notice(void *arg, const PGresult *res)
{
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    jobq_pg_event e = jobq_pg__event_of(JOBQ_LEVEL_DEBUG, "notice");

    e.sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    if (text != NULL) jobq_pg__log((const jobq_pg *)arg, e, "%s", text);
}

/* The pool's transactions are READ COMMITTED, READ WRITE, whatever the role's defaults are: under a
 * stricter level, two first uses of a name or key at a time fail with 40001. Through a pooler this
 * would change another client's session, so it is not sent. */
#define JOBQ_PG__PROBE \
    "SELECT pg_catalog.set_config('default_transaction_isolation', 'read committed', false), " \
    "pg_catalog.set_config('default_transaction_read_only', 'off', false)"

/* The name of a server that is not Postgres but speaks its protocol, by a text about its version:
 * what version() answers, or a parameter that it reports. NULL: it is none that is known. */
static const char *jobq_pg__not_postgres(const char *version)
{
    if (version == NULL) return NULL;
    if (strstr(version, "CockroachDB") != NULL) return "CockroachDB";
    return strstr(version, "-YB-") != NULL ? "YugabyteDB" : NULL;
}

/* Whether the server is a Postgres that the library knows. It has told so at the start of the
 * connection, so no statement fails. */
static bool jobq_pg__known_server(PGconn *conn, jobq_pg_error *error)
{
    const char *other = jobq_pg__not_postgres(PQparameterStatus(conn, "crdb_version"));

    if (other == NULL) other = jobq_pg__not_postgres(PQparameterStatus(conn, "server_version"));
    if (other != NULL) {
        jobq_pg__fail(error, JOBQ_ERROR_VERSION,
                      "the server is %s, and jobq needs PostgreSQL itself, 14 or newer: it builds "
                      "on the way in which PostgreSQL locks rows and notifies", other);
    } else if (PQserverVersion(conn) < 140000) {
        jobq_pg__fail(error, JOBQ_ERROR_VERSION,
                      "server version %d is too old: 14 or newer is needed",
                      PQserverVersion(conn) / 10000);
    } else {
        return true;
    }
    return false;
}

/* Opens a connection and checks it. NULL: error is filled. */
static PGconn *jobq_pg__connect(const jobq_pg *pg, jobq_pg_error *error)
{
    PGconn *conn = jobq_pg__dial_up(pg, pg->conninfo, NULL, error);
    PGresult *probe;
    bool good;

    if (conn == NULL) return NULL;
    PQsetNoticeReceiver(conn, jobq_pg__on_notice, (void *)(uintptr_t)pg);
    good = jobq_pg__known_server(conn, error);
    if (good) {
        probe = PQexec(conn, pg->behind_pooler ? "SELECT 1" : JOBQ_PG__PROBE);
        good = PQresultStatus(probe) == PGRES_TUPLES_OK;
        if (!good) jobq_pg__result_error(error, conn, probe);
        PQclear(probe);
    }
    if (good && pg->set_up != NULL && !pg->set_up(pg->user, conn)) {
        good = false;
        jobq_pg__fail(error, JOBQ_ERROR_CONNECTION, "desc.set_up refused the connection");
    }
    if (good) good = jobq_pg__usable(conn, error) == JOBQ_OK; /* conninfo may name an encoding */
    if (good) return conn;
    PQfinish(conn);
    return NULL;
}

static void jobq_pg__free(jobq_pg *pg)
{
    size_t i;

    if (pg == NULL) return;
    for (i = 0; i < JOBQ_PG__STATEMENT_COUNT; i++) free(pg->texts[i].sql);
    free(pg->conninfo);
    free(pg->listen_conninfo);
    free(pg->idle);
    free(pg);
}

static char *jobq_pg__statement_sql(jobq_pg__statement st);

/* A statement's text for a schema. NULL: out of memory. */
static char *jobq_pg__schema_sql(jobq_pg__statement st, const char *schema)
{
    char *generic = jobq_pg__statement_sql(st);
    char *sql = generic == NULL ? NULL : jobq_pg__for_schema(generic, schema);

    free(generic);
    return sql;
}

static jobq_error jobq_pg__desc_invalid(const jobq_pg_desc *desc, jobq_pg_error *error)
{
    const char *wrong =
        desc->pool_max < 0                           ? "pool_max"
        : (uint64_t)desc->acquire_us > INT64_MAX / 4 ? "acquire_us" /* or negative */
        : (uint64_t)desc->call_us > INT64_MAX / 4    ? "call_us"
        : desc->patience_us < 0                      ? "patience_us" : NULL;

    if (wrong != NULL)
        return jobq_pg__invalid(error, wrong, "must be 0 or more, and less than 70,000 years");
    if (jobq_pg__short(desc->call_us, "call_us", error)) return JOBQ_ERROR_INVALID;
    if (desc->listen_conninfo != NULL && !desc->behind_pooler)
        return jobq_pg__invalid(error, "listen_conninfo",
                                "needs behind_pooler, because it leads past a pooler");
    if (desc->no_pool && (desc->pool_max != 0 || desc->acquire_us != 0 || desc->patience_us != 0))
        return jobq_pg__invalid(error, "no_pool",
                                "not allowed with pool_max, acquire_us or patience_us, which are "
                                "of a pool");
    if (desc->seal_name != NULL &&
        (strlen(desc->seal_name) > 64 || !jobq_name_valid(jobq_str_from(desc->seal_name))))
        return jobq_pg__invalid(error, "seal_name",
                                "must be 1 to 64 of [A-Za-z0-9._-], alphanumeric at both ends");
    wrong = !jobq_pg__conninfo_valid(desc->conninfo)          ? "conninfo"
            : !jobq_pg__conninfo_valid(desc->listen_conninfo) ? "listen_conninfo" : NULL;
    if (wrong == NULL) return JOBQ_OK;
    return jobq_pg__invalid(error, wrong,
                            "must be a URI, or keyword=value pairs (keywords known to libpq, "
                            "values with blanks in quotes)");
}

/* Copies what cannot fail; the schema's name comes with the check of it. */
static void jobq_pg__desc_copy(jobq_pg *pg, const jobq_pg_desc *desc)
{
    pg->pid = jobq_pg__os_pid();
    pg->pool_max = desc->pool_max > 0 ? desc->pool_max : 5;
    pg->acquire_us = desc->acquire_us > 0 ? desc->acquire_us : 3000000;
    pg->call_us = desc->call_us > 0 ? desc->call_us : JOBQ_NEVER;
    pg->no_pool = desc->no_pool;
    pg->payload_max = desc->payload_max > 0 ? desc->payload_max : 1048576;
    pg->behind_pooler = desc->behind_pooler;
    pg->patience_us = desc->patience_us;
    pg->may_be_down = desc->may_be_down;
    pg->connect = desc->connect;
    pg->set_up = desc->set_up;
    pg->seal = desc->seal;
    pg->open = desc->open;
    snprintf(pg->seal_name, sizeof pg->seal_name, "%s",
             desc->seal_name == NULL ? "sealed" : desc->seal_name);
    pg->log_event = desc->log_event;
    pg->log = desc->log == NULL && desc->log_event == NULL ? jobq_pg__log_stderr : desc->log;
    pg->user = desc->user;
}

/* False: out of memory. */
static bool jobq_pg__texts_make(jobq_pg *pg, const jobq_pg_desc *desc)
{
    bool good;
    size_t i;

    pg->conninfo = jobq_pg__dup(desc->conninfo == NULL ? "" : desc->conninfo);
    if (desc->listen_conninfo != NULL) pg->listen_conninfo = jobq_pg__dup(desc->listen_conninfo);
    good = pg->conninfo != NULL && (pg->listen_conninfo != NULL) == (desc->listen_conninfo != NULL);
    for (i = 0; i < JOBQ_PG__STATEMENT_COUNT; i++) {
        pg->texts[i].sql = jobq_pg__schema_sql((jobq_pg__statement)i, pg->schema);
        good = good && pg->texts[i].sql != NULL;
        pg->texts[i].hash = jobq_pg__hash(JOBQ_PG__HASH_SEED, pg->texts[i].sql);
    }
    return good;
}

/* Makes a handle and its statements' texts, without a connection. NULL: error is filled. */
static jobq_pg *jobq_pg__new(const jobq_pg_desc *desc, jobq_pg_error *error)
{
    const char *schema = desc->schema == NULL ? "jobq" : desc->schema;
    jobq_pg *pg = (jobq_pg *)calloc(1, sizeof *pg);

    if (jobq_pg__desc_invalid(desc, error) == JOBQ_OK) {
        if (pg != NULL && !jobq_pg__schema_set(pg, schema)) {
            jobq_pg__invalid(error, "schema", "must be 1 to 48 of [A-Za-z0-9_], not a digit first");
        } else if (pg == NULL || !jobq_pg__texts_make(pg, desc)) {
            jobq_pg__no_memory(error);
        } else {
            jobq_pg__desc_copy(pg, desc);
            return pg;
        }
    }
    jobq_pg__free(pg);
    return NULL;
}

/* ---- >>selfcheck: is there a pooler? --------------------------------------------------------- */

/* The pid of a connection's backend, and whether its session began with odd defaults (reset_val,
 * because the probe changed the setting). 0: error is filled. */
static int jobq_pg__backend(PGconn *conn, bool *odd, jobq_pg_error *error)
{
    PGresult *res = PQexec(conn, "SELECT pg_catalog.pg_backend_pid(), reset_val "
                                 "FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.~) "
                                 "'^default_transaction_(isolation|read_only)$'");
    int pid = 0, row;

    *odd = false;
    if (PQresultStatus(res) != PGRES_TUPLES_OK) jobq_pg__result_error(error, conn, res);
    for (row = 0; row < PQntuples(res); row++) {
        const char *value = PQgetvalue(res, row, 1);
        pid = atoi(PQgetvalue(res, row, 0));
        if (strcmp(value, "read committed") != 0 && strcmp(value, "off") != 0) *odd = true;
    }
    PQclear(res);
    return pid;
}

/* *kept: a connection keeps its session between transactions. It does if the backend has the pid
 * that libpq got when it connected. Otherwise there is a pooler, and we query a second connection
 * in turns with this one, to see whether they keep their backends. */
static jobq_error jobq_pg__sessions_kept(const jobq_pg *pg, const char *conninfo, PGconn *conn,
                                         bool *kept, jobq_pg_error *error)
{
    bool odd;
    int before = jobq_pg__backend(conn, &odd, error), other, after = 0, i;
    PGconn *beside;

    *kept = true;
    if (before == 0) return error->code;
    if (before == PQbackendPID(conn)) return JOBQ_OK;
    beside = jobq_pg__dial_up(pg, conninfo, NULL, error);
    if (beside == NULL) return error->code;
    for (i = 0; i < 3 && *kept; i++, before = after) {
        other = jobq_pg__backend(beside, &odd, error);
        after = other == 0 ? 0 : jobq_pg__backend(conn, &odd, error);
        if (after == 0) break;
        *kept = other != before && after == before;
    }
    PQfinish(beside);
    return after == 0 ? error->code : JOBQ_OK;
}

/* The connection for LISTEN must not go through a pooler in transaction mode. */
static jobq_error jobq_pg__check_listen(const jobq_pg *pg, jobq_pg_error *error)
{
    PGconn *conn = jobq_pg__dial_up(pg, pg->listen_conninfo, NULL, error);
    jobq_error code;
    bool kept;

    if (conn == NULL) return error->code;
    code = jobq_pg__sessions_kept(pg, pg->listen_conninfo, conn, &kept, error);
    PQfinish(conn);
    if (code != JOBQ_OK || kept) return code;
    return jobq_pg__invalid(error, "listen_conninfo",
                            "must not lead through a pooler in transaction mode, where LISTEN is "
                            "lost: name the server itself, or leave it out to poll");
}

static jobq_error jobq_pg__self_check(const jobq_pg *pg, PGconn *conn, bool *odd,
                                      jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    bool kept = true;

    if (jobq_pg__backend(conn, odd, error) == 0) return error->code;
    if (pg->listen_conninfo != NULL) code = jobq_pg__check_listen(pg, error);
    if (code == JOBQ_OK && !pg->behind_pooler)
        code = jobq_pg__sessions_kept(pg, pg->conninfo, conn, &kept, error);
    if (code != JOBQ_OK || kept) return code;
    return jobq_pg__invalid(error, "behind_pooler",
                            "must be set, because conninfo leads through a pooler in transaction "
                            "mode, where sessions, prepared statements and LISTEN are lost; and "
                            "set desc.listen_conninfo to the server itself");
}

/* An instant that may be JOBQ_NEVER. */
static int64_t jobq_pg__deadline(int64_t now, int64_t us)
{
    return us > JOBQ_NEVER - now ? JOBQ_NEVER : now + (us > 0 ? us : 0);
}

/* The first connection, retried with backoff for up to patience_us. */
static jobq_error jobq_pg__first(jobq_pg *pg, jobq_pg_error *error)
{
    static const jobq_backoff backoff = {JOBQ_CURVE_EXPONENTIAL, 250, 100000, 5000000, 0};
    int64_t now = jobq_pg__mono_us();
    int64_t until = jobq_pg__deadline(now, pg->patience_us);
    jobq_random random = {(uint64_t)now};
    uint32_t tries = 0;
    jobq_error code;
    PGconn *conn;

    while (jobq_pg_acquire(pg, &conn, error) != JOBQ_OK) {
        int64_t wait = jobq_backoff_delay(&backoff, tries++, jobq_random_next(&random));
        now = jobq_pg__mono_us();
        if (error->code != JOBQ_ERROR_CONNECTION || now >= until) return error->code;
        jobq_pg__log(pg, jobq_pg__event_error(JOBQ_LEVEL_WARNING, "server_unreachable", error),
                     "%s", error->message);
        if (wait > until - now) wait = until - now;
        jobq_pg__os_nap(wait);
    }
    code = jobq_pg__self_check(pg, conn, &pg->odd, error);
    jobq_pg_release(pg, conn);
    return code;
}

/* The first connection of a handle that was opened while its server was down. */
static jobq_error jobq_pg__late_check(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    jobq_pg_error local;
    bool odd;
    jobq_error code = jobq_pg__self_check(pg, conn, &odd, error == NULL ? &local : error);

    if (code != JOBQ_OK) return code;
    jobq_pg__os_lock(&pg->lock);
    pg->unchecked = false;
    jobq_pg__os_unlock(&pg->lock);
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_open(jobq_pg **out, const jobq_pg_desc *desc, jobq_pg_error *error)
{
    jobq_pg_desc none;
    jobq_pg_error local;
    jobq_pg *pg;

    JOBQ_ASSERT(out != NULL);
    if (error == NULL) error = &local;
    *out = NULL;
    memset(&none, 0, sizeof none);
    pg = jobq_pg__new(desc == NULL ? &none : desc, error);
    if (pg == NULL) return error->code;
    jobq_pg__os_mutex_init(&pg->lock);
    jobq_pg__os_cond_init(&pg->freed);
    if (!pg->no_pool && jobq_pg__first(pg, error) != JOBQ_OK) {
        if (!pg->may_be_down || error->code != JOBQ_ERROR_CONNECTION) {
            jobq_pg_close(pg);
            return error->code;
        }
        jobq_pg__log(pg, jobq_pg__event_error(JOBQ_LEVEL_WARNING, "server_unreachable", error),
                     "%s", error->message);
        pg->unchecked = pg->odd = true; /* it is not known how its sessions begin */
    }
    *out = pg;
    return JOBQ_OK;
}

JOBQ_API void jobq_pg_close(jobq_pg *pg)
{
    if (pg == NULL) return;
    if (jobq_pg__forked(pg)) { /* without the lock: a thread of the parent may hold it */
        while (pg->idle_count > 0) jobq_pg__conn_leave(pg->idle[--pg->idle_count]);
        if (pg->ear.conn != NULL) jobq_pg__conn_leave(pg->ear.conn);
        jobq_pg__free(pg);
        return;
    }
    JOBQ_ASSERT(pg->open_count == pg->idle_count && pg->ear.waiting == NULL);
    PQfinish(pg->ear.conn);
    while (pg->idle_count > 0) PQfinish(pg->idle[--pg->idle_count]);
    jobq_pg__os_cond_end(&pg->freed);
    jobq_pg__os_mutex_end(&pg->lock);
    jobq_pg__free(pg);
}

/* Takes an idle connection, or the right to make one (*make), under the lock. False: timed out. */
static bool jobq_pg__reserve(jobq_pg *pg, PGconn **conn, bool *make)
{
    int64_t until = jobq_pg__deadline(jobq_pg__mono_us(), pg->acquire_us);
    bool late = false;

    while (pg->idle_count == 0 && pg->open_count >= pg->pool_max) {
        if (late) return false;
        late = !jobq_pg__os_wait(&pg->freed, &pg->lock, until);
    }
    *make = pg->idle_count == 0;
    *conn = NULL;
    if (*make) pg->open_count++;
    else *conn = pg->idle[--pg->idle_count];
    return true;
}

/* Gives back the right to have one more connection. */
static void jobq_pg__unreserve(jobq_pg *pg)
{
    jobq_pg__os_lock(&pg->lock);
    pg->open_count--;
    jobq_pg__os_wake_one(&pg->freed);
    jobq_pg__os_unlock(&pg->lock);
}

/* Waits until the connection can be read, or written if asked. False: not within that time. */
static bool jobq_pg__conn_poll(const PGconn *conn, short events, int64_t wait_us)
{
    struct pollfd fd;

    fd.fd = (jobq_pg__os_socket)PQsocket(conn);
    fd.events = events;
    fd.revents = 0;
    return jobq_pg__os_poll(&fd, 1, wait_us) > 0;
}

/* Whether an idle connection is still open. Reads what the server has sent meanwhile, such as the
 * reason why it closed the connection. */
static bool jobq_pg__well(PGconn *conn)
{
    int reads = 0;

    while (PQstatus(conn) == CONNECTION_OK && reads++ < 4 && jobq_pg__conn_poll(conn, POLLIN, 0)) {
        PQconsumeInput(conn); /* first the reason, then the end of the stream */
    }
    return PQstatus(conn) == CONNECTION_OK;
}

/* Whether an idle connection can be lent: after JOBQ_PG__RESETS, if they were sent. */
static bool jobq_pg__ready(const jobq_pg *pg, PGconn *conn)
{
    PGresult *res;
    bool good = jobq_pg__well(conn);

    if (!good || PQtransactionStatus(conn) == PQTRANS_IDLE) return good;
    while ((res = PQgetResult(conn)) != NULL) {
        good = good && PQresultStatus(res) != PGRES_FATAL_ERROR;
        PQclear(res);
    }
    return good && PQstatus(conn) == CONNECTION_OK &&
           (pg->set_up == NULL || pg->set_up(pg->user, conn));
}

JOBQ_API jobq_error jobq_pg_acquire(jobq_pg *pg, PGconn **conn, jobq_pg_error *error)
{
    bool make = false, got, unchecked;

    JOBQ_ASSERT(pg != NULL && conn != NULL);
    *conn = NULL;
    if (jobq_pg__forked(pg)) return jobq_pg__forked_error(error);
    if (pg->no_pool)
        return jobq_pg__invalid(error, "conn", "must not be NULL: the handle has no pool");
    jobq_pg__os_lock(&pg->lock);
    got = jobq_pg__reserve(pg, conn, &make);
    unchecked = pg->unchecked;
    jobq_pg__os_unlock(&pg->lock);
    if (!got) {
        *conn = NULL;
        return jobq_pg__fail(error, JOBQ_ERROR_FULL,
                             "no connection free within %lld ms: raise pool_max, or release sooner",
                             (long long)(pg->acquire_us / 1000));
    }
    if (!make && !jobq_pg__ready(pg, *conn)) {
        PQfinish(*conn);
        make = true;
    }
    if (!make) return JOBQ_OK;
    *conn = jobq_pg__connect(pg, error);
    if (*conn != NULL && unchecked && jobq_pg__late_check(pg, *conn, error) != JOBQ_OK) {
        PQfinish(*conn);
        *conn = NULL;
    }
    if (*conn != NULL) return JOBQ_OK;
    jobq_pg__unreserve(pg);
    return error != NULL ? error->code : JOBQ_ERROR_CONNECTION;
}

/* Rolls back what was left open, and says so. what: who left it, and a blank; or nothing. */
static void jobq_pg__roll_back(jobq_pg *pg, PGconn *conn, jobq_pg_event event, const char *what)
{
    char more[48];

    if (PQstatus(conn) != CONNECTION_OK || PQtransactionStatus(conn) == PQTRANS_IDLE) return;
    if (jobq_pg__may_log(pg, &pg->leavings, more))
        jobq_pg__log(pg, event, "%sa transaction was left open; rolled back%s", what, more);
    PQclear(PQexec(conn, "ROLLBACK"));
}

/* Whether a connection is as the pool lent it: no transaction (an open one is rolled back), no
 * pipeline, UTF8. */
static bool jobq_pg__clean(jobq_pg *pg, PGconn *conn)
{
    jobq_pg_error error;

    jobq_pg__roll_back(pg, conn, jobq_pg__event_of(JOBQ_LEVEL_WARNING, "transaction_left"), "");
    if (PQstatus(conn) != CONNECTION_OK || PQtransactionStatus(conn) != PQTRANS_IDLE) return false;
    if (jobq_pg__usable(conn, &error) == JOBQ_OK) return true;
    jobq_pg__log(pg, jobq_pg__event_error(JOBQ_LEVEL_WARNING, "connection_closed", &error),
                 "a released connection was closed: %s", error.message);
    return false;
}

/* What others may have changed in a session, and libpq cannot see. DISCARD ALL would drop our
 * prepared statements, too. Nobody waits for the answer: the next one to be lent the connection
 * reads it. Through a pooler it would change another client's session. */
#define JOBQ_PG__RESETS                                                                            \
    "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; UNLISTEN *; "            \
    "DISCARD TEMP; DISCARD SEQUENCES; SELECT pg_catalog.pg_advisory_unlock_all(); " JOBQ_PG__PROBE

static bool jobq_pg__reset(const jobq_pg *pg, PGconn *conn)
{
    PQuntrace(conn);
    PQsetnonblocking(conn, 0);
    PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
    PQsetNoticeReceiver(conn, jobq_pg__on_notice, (void *)(uintptr_t)pg);
    return pg->behind_pooler || PQsendQuery(conn, JOBQ_PG__RESETS);
}

/* Who has used a connection that comes back. SPENT: a cancel may arrive late and hit the next
 * statement. */
typedef enum jobq_pg__used { JOBQ_PG__BY_US, JOBQ_PG__BY_OTHERS, JOBQ_PG__SPENT } jobq_pg__used;

/* Returns a connection to the pool, or closes it. */
static void jobq_pg__give_back(jobq_pg *pg, PGconn *conn, jobq_pg__used used)
{
    bool keep;

    if (conn == NULL) return;
    if (jobq_pg__forked(pg)) {
        jobq_pg__conn_leave(conn);
        return;
    }
    keep = jobq_pg__clean(pg, conn) && used != JOBQ_PG__SPENT;
    if (keep && used == JOBQ_PG__BY_OTHERS) keep = jobq_pg__reset(pg, conn);
    jobq_pg__os_lock(&pg->lock);
    if (keep && pg->idle_count == pg->idle_room) {
        int room = pg->idle_room == 0 ? 8 : 2 * pg->idle_room;
        PGconn **idle = (PGconn **)realloc(pg->idle, (size_t)room * sizeof *idle);
        if (idle != NULL) {
            pg->idle = idle;
            pg->idle_room = room;
        }
        keep = idle != NULL;
    }
    if (keep) pg->idle[pg->idle_count++] = conn;
    else pg->open_count--;
    jobq_pg__os_wake_one(&pg->freed);
    jobq_pg__os_unlock(&pg->lock);
    if (!keep) PQfinish(conn);
}

JOBQ_API void jobq_pg_release(jobq_pg *pg, PGconn *conn)
{
    JOBQ_ASSERT(pg != NULL);
    jobq_pg__give_back(pg, conn, JOBQ_PG__BY_OTHERS);
}

/* ---- >>prepared: statements that a connection has prepared ----------------------------------- */

/* Whether this connection's role may enqueue by a plain INSERT; see >>enqueue. */
typedef enum jobq_pg__right { JOBQ_PG__UNASKED, JOBQ_PG__GRANTED, JOBQ_PG__REFUSED } jobq_pg__right;

typedef enum jobq_pg__how {
    JOBQ_PG__NOT_PREPARED,
    JOBQ_PG__PREPARING, /* sent in one flush with its first use */
    JOBQ_PG__PREPARED,
    JOBQ_PG__AS_TEXT
} jobq_pg__how;

/* A statement that a connection has sent. AS_TEXT: its columns have changed since it was prepared.
 * The server keeps the name, so a second PREPARE would fail, and abort an open transaction. */
typedef struct jobq_pg__known {
    struct jobq_pg__known *next;
    uint64_t hash;
    jobq_pg__how how;
    jobq_pg__right right; /* of a plain INSERT */
    unsigned role;        /* ... hash of the role that was asked about */
    char *sql; /* compared too: hashes may collide */
} jobq_pg__known;

#define JOBQ_PG__CHAINS 128

typedef struct jobq_pg__registry {
    jobq_pg__known *chains[JOBQ_PG__CHAINS];
} jobq_pg__registry;

static int jobq_pg__on_event(PGEventId event, void *info, void *pass);

static void jobq_pg__registry_free(PGconn *conn)
{
    jobq_pg__registry *r = (jobq_pg__registry *)PQinstanceData(conn, jobq_pg__on_event);
    size_t i;

    if (r == NULL) return;
    PQsetInstanceData(conn, jobq_pg__on_event, NULL);
    for (i = 0; i < JOBQ_PG__CHAINS; i++) {
        while (r->chains[i] != NULL) {
            jobq_pg__known *next = r->chains[i]->next;
            free(r->chains[i]);
            r->chains[i] = next;
        }
    }
    free(r);
}

static int jobq_pg__on_event(PGEventId event, void *info, void *pass)
{
    (void)pass;
    if (event == PGEVT_CONNRESET) jobq_pg__registry_free(((PGEventConnReset *)info)->conn);
    if (event == PGEVT_CONNDESTROY) jobq_pg__registry_free(((PGEventConnDestroy *)info)->conn);
    return 1;
}

/* Made at its first use. NULL: out of memory. */
static jobq_pg__registry *jobq_pg__registry_of(PGconn *conn)
{
    jobq_pg__registry *r = (jobq_pg__registry *)PQinstanceData(conn, jobq_pg__on_event);

    if (r != NULL) return r;
    r = (jobq_pg__registry *)calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    PQregisterEventProc(conn, jobq_pg__on_event, "jobq", NULL); /* does nothing the second time */
    if (PQsetInstanceData(conn, jobq_pg__on_event, r)) return r;
    free(r);
    return NULL;
}

/* A text's record, made at its first use. NULL: out of memory. Names are made from hashes, so of
 * two texts with the same hash the second is never prepared. */
static jobq_pg__known *jobq_pg__known_of(PGconn *conn, const jobq_pg__text *text)
{
    jobq_pg__registry *registry = jobq_pg__registry_of(conn);
    jobq_pg__known **chain, *k;
    jobq_pg__how how = JOBQ_PG__NOT_PREPARED;

    if (registry == NULL) return NULL;
    chain = &registry->chains[text->hash % JOBQ_PG__CHAINS];
    for (k = *chain; k != NULL; k = k->next) {
        if (k->hash != text->hash) continue;
        if (strcmp(k->sql, text->sql) == 0) return k;
        how = JOBQ_PG__AS_TEXT;
    }
    k = (jobq_pg__known *)malloc(sizeof *k + strlen(text->sql) + 1);
    if (k == NULL) return NULL;
    k->next = *chain;
    k->hash = text->hash;
    k->how = how;
    k->right = JOBQ_PG__UNASKED;
    k->role = 0;
    k->sql = strcpy((char *)(k + 1), text->sql);
    *chain = k;
    return k;
}

static void jobq_pg__statement_name(const jobq_pg__text *text, char *name, size_t size)
{
    snprintf(name, size, "jobq_%016llx", (unsigned long long)text->hash);
}

/* The session has lost its prepared statements (DISCARD ALL, DEALLOCATE, a pooler). */
static void jobq_pg__forget(PGconn *conn)
{
    jobq_pg__registry *registry = jobq_pg__registry_of(conn);
    jobq_pg__known *k;
    size_t i;

    for (i = 0; registry != NULL && i < JOBQ_PG__CHAINS; i++) {
        for (k = registry->chains[i]; k != NULL; k = k->next) {
            if (k->how != JOBQ_PG__AS_TEXT) k->how = JOBQ_PG__NOT_PREPARED;
        }
    }
}

/* Records what an error tells about a prepared statement. True: sent again, it may work. EXECUTE
 * rights are checked after PREPARE, so 42501 leaves the statement prepared. */
static bool jobq_pg__known_learn(PGconn *conn, const jobq_pg__text *text, const PGresult *res)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    jobq_pg__known *known = state == NULL ? NULL : jobq_pg__known_of(conn, text);
    bool anew;

    if (known == NULL || known->how == JOBQ_PG__AS_TEXT) return false;
    anew = known->how == JOBQ_PG__PREPARING;
    if (strncmp(state, "26", 2) == 0) jobq_pg__forget(conn);
    else if (strcmp(state, "42P05") == 0) known->how = JOBQ_PG__PREPARED;
    else if (strcmp(state, "0A000") == 0) known->how = JOBQ_PG__AS_TEXT;
    else {
        if (anew && strcmp(state, "42501") != 0 &&
            (strncmp(state, "42", 2) == 0 || strncmp(state, "3F", 2) == 0))
            known->how = JOBQ_PG__NOT_PREPARED;
        return false;
    }
    return true;
}

/* ---- >>exec: sending statements -------------------------------------------------------------- */

/* Checks the caller's connection, or gets *mine from the pool. */
static jobq_error jobq_pg__borrow(jobq_pg *pg, PGconn *conn, PGconn **mine, jobq_pg_error *error)
{
    if (conn == NULL && pg == NULL)
        return jobq_pg__invalid(error, "conn", "must not be NULL: the table has no handle");
    if (conn == NULL) return jobq_pg_acquire(pg, mine, error);
    if (pg != NULL && jobq_pg__forked(pg)) return jobq_pg__forked_error(error);
    return jobq_pg__usable(conn, error);
}

static int jobq_pg__ship_text(PGconn *conn, const char *sql)
{
    return PQsendQueryParams(conn, sql, 0, NULL, NULL, NULL, NULL, 1);
}

/* Sends one statement in pipeline mode. If known, it is prepared at its first use; NULL: its text
 * is sent. */
static bool jobq_pg__ship(PGconn *conn, const jobq_pg__text *text, const jobq_pg__params *p,
                          jobq_pg__known *known)
{
    const char *values[JOBQ_PG__PARAMS_MAX];
    int formats[JOBQ_PG__PARAMS_MAX], i;
    char name[32];

    for (i = 0; i < p->count; i++) {
        values[i] = p->offsets[i] == SIZE_MAX ? NULL : p->data + p->offsets[i];
        formats[i] = 1;
    }
    if (known == NULL || known->how == JOBQ_PG__AS_TEXT)
        return PQsendQueryParams(conn, text->sql, p->count, NULL, values, p->lengths, formats, 1);
    jobq_pg__statement_name(text, name, sizeof name);
    if (known->how == JOBQ_PG__NOT_PREPARED && !PQsendPrepare(conn, name, text->sql, 0, NULL))
        return false;
    known->how = known->how == JOBQ_PG__NOT_PREPARED ? JOBQ_PG__PREPARING : JOBQ_PG__PREPARED;
    return PQsendQueryPrepared(conn, name, p->count, values, p->lengths, formats, 1);
}

#define JOBQ_PG__BEGIN "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

/* The same in a transaction of its own, which sets its isolation level and, if limits is not NULL,
 * its time-outs; all in one flush. Connections through a pooler need this, because another client's
 * session settings may be in force there. */
static bool jobq_pg__ship_whole(PGconn *conn, const char *limits, const jobq_pg__text *text,
                                const jobq_pg__params *p, jobq_pg__known *known)
{
    return jobq_pg__ship_text(conn, JOBQ_PG__BEGIN) &&
           (limits == NULL || jobq_pg__ship_text(conn, limits)) &&
           jobq_pg__ship(conn, text, p, known) && jobq_pg__ship_text(conn, "COMMIT");
}

/* Keeps one of two results of a flush: the first error, else the latest rows. */
static PGresult *jobq_pg__weigh(PGresult *old, PGresult *res)
{
    bool rows = PQresultStatus(old) == PGRES_TUPLES_OK;
    bool failed = old != NULL && !rows && PQresultStatus(old) != PGRES_COMMAND_OK;

    if (failed || (rows && PQresultStatus(res) == PGRES_COMMAND_OK)) {
        PQclear(res);
        return old;
    }
    PQclear(old);
    return res;
}

/* Waits for a part of an answer, until then at the latest. False: it is late; the connection is
 * shut down, because the rest would be taken for the answer to the next statement. */
static bool jobq_pg__in_time(PGconn *conn, int64_t until)
{
    int64_t left;
    int unsent;

    for (;;) {
        unsent = PQflush(conn);
        if (unsent < 0 || (unsent == 0 && !PQisBusy(conn))) return true;
        left = until - jobq_pg__mono_us();
        if (left <= 0) break;
        if (jobq_pg__conn_poll(conn, unsent > 0 ? POLLIN | POLLOUT : POLLIN, left) &&
            !PQconsumeInput(conn)) return true;
    }
    jobq_pg__os_shut(conn);
    PQconsumeInput(conn); /* it notices the end */
    return false;
}

/* Sends a statement, by jobq_pg__ship_whole if whole, and waits for its answer until then. If the
 * statement cannot be sent, the Sync still is, because pipeline mode can only be left after it.
 * PREPARE has an answer of its own: the statement may be there although its first use has failed
 * (has_table_privilege of a table that does not exist), and may not be there (a lock timeout). */
static PGresult *jobq_pg__round(PGconn *conn, const jobq_pg__text *text, const jobq_pg__params *p,
                                bool prepare, bool whole, int64_t until)
{
    PGresult *res = NULL, *next;
    bool sent, synced = false, blocks = PQisnonblocking(conn) == 0;
    jobq_pg__known *known = prepare ? jobq_pg__known_of(conn, text) : NULL;
    int answers = whole ? -1 : 0; /* to BEGIN, which comes before */

    if (!PQenterPipelineMode(conn)) return NULL;
    if (until != JOBQ_NEVER) PQsetnonblocking(conn, 1);
    sent = whole ? jobq_pg__ship_whole(conn, NULL, text, p, known)
                 : jobq_pg__ship(conn, text, p, known);
    if (!PQpipelineSync(conn)) return NULL;
    while (!synced && PQstatus(conn) == CONNECTION_OK) {
        if (until != JOBQ_NEVER && !jobq_pg__in_time(conn, until)) break;
        next = PQgetResult(conn);
        synced = PQresultStatus(next) == PGRES_PIPELINE_SYNC;
        if (!synced && next != NULL && answers++ == 0 && known != NULL &&
            known->how == JOBQ_PG__PREPARING)
            known->how = PQresultStatus(next) == PGRES_COMMAND_OK ? JOBQ_PG__PREPARED
                                                                  : JOBQ_PG__NOT_PREPARED;
        if (synced) PQclear(next);
        else if (next != NULL) res = jobq_pg__weigh(res, next);
    }
    if (synced) PQexitPipelineMode(conn);
    if (until != JOBQ_NEVER && blocks) PQsetnonblocking(conn, 0);
    if (synced && whole && PQtransactionStatus(conn) != PQTRANS_IDLE)
        PQclear(PQexec(conn, "ROLLBACK"));
    if (sent) return res;
    PQclear(res);
    return NULL;
}

/* The server closes the connection after a longer message. */
#define JOBQ_PG__MESSAGE_MAX 1000000000

#ifndef JOBQ_PG_NO_TABLES
static jobq_error jobq_pg__table_error(const jobq_pg_table *t, jobq_pg_error *error,
                                       const PGconn *conn, const PGresult *res);
#else
#define jobq_pg__table_error(t, error, conn, res) jobq_pg__result_error(error, conn, res)
#endif

/* Runs one statement, the library's or table t's, on conn or on a connection from the pool. Clears
 * the parameters. NULL: error is filled. */
static PGresult *jobq_pg__exec_text(jobq_pg *pg, PGconn *conn, const jobq_pg_table *t,
                                    const jobq_pg__text *text, jobq_pg__params *p, bool prepare,
                                    jobq_pg_error *error)
{
    int64_t limit = pg == NULL ? JOBQ_NEVER : pg->call_us, until = JOBQ_NEVER;
    PGconn *mine = NULL;
    PGresult *res = NULL;
    bool whole, idle;

    if (p->failed) jobq_pg__no_memory(error);
    else if (p->size > JOBQ_PG__MESSAGE_MAX) {
        jobq_pg__invalid(error, "size", "must be at most 1 GB in one call: send fewer at once");
    } else if (jobq_pg__borrow(pg, conn, &mine, error) == JOBQ_OK) {
        if (conn == NULL) conn = mine;
        idle = PQtransactionStatus(conn) == PQTRANS_IDLE;
        whole = t == NULL && idle && (pg->behind_pooler || pg->odd);
        if (limit != JOBQ_NEVER) until = jobq_pg__mono_us() + limit;
        res = jobq_pg__round(conn, text, p, prepare, whole, until);
        if (prepare && PQresultStatus(res) == PGRES_FATAL_ERROR &&
            jobq_pg__known_learn(conn, text, res) && idle) {
            PQclear(res);
            res = jobq_pg__round(conn, text, p, prepare, whole, until);
        }
        if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
            if (jobq_pg__mono_us() >= until) {
                jobq_pg__fail(error, JOBQ_ERROR_TIMEOUT, "no answer within call_us: the statement "
                              "may have been carried out, and its connection was shut down");
            } else if (t != NULL) {
                jobq_pg__table_error(t, error, conn, res);
            } else {
                jobq_pg__result_error(error, conn, res);
            }
            PQclear(res);
            res = NULL;
        }
    }
    jobq_pg__params_clear(p);
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    return res;
}

/* ---- >>value: the values of fields, in binary and as text ------------------------------------ */

#define JOBQ_PG__DAY_US ((int64_t)86400000000)
#define JOBQ_PG__EPOCH_DAYS 10957 /* 2000-01-01, the server's epoch */
#define JOBQ_PG__INSTANT_FIRST (-(int64_t)210866803200000000) /* 4714-11-24 BC, as on the server */
#define JOBQ_PG__DATE_FIRST (-2440588)                        /* the same day */
#define JOBQ_PG__DATE_LAST 2145042905                         /* 5874897-12-31 */

/* Bytes of each C type, and of its jobq_pg_maybe_ form; 0 if the type itself can be NULL. */
static const struct {
    const char *name;
    size_t size, maybe;
    int oids[4]; /* of the server's types that fit */
} jobq_pg__types[JOBQ_PG_TYPE_COUNT] = {
    {"none", 0, 0, {0, 0, 0, 0}},
    {"bool", sizeof(bool), sizeof(jobq_pg_maybe_bool), {16, 0, 0, 0}},
    {"int16", 2, sizeof(jobq_pg_maybe_int16), {21, 0, 0, 0}},
    {"int32", 4, sizeof(jobq_pg_maybe_int32), {23, 0, 0, 0}},
    {"int64", 8, sizeof(jobq_pg_maybe_int64), {20, 0, 0, 0}},
    {"float", sizeof(float), sizeof(jobq_pg_maybe_float), {700, 0, 0, 0}},
    {"double", sizeof(double), sizeof(jobq_pg_maybe_double), {701, 0, 0, 0}},
    {"text", sizeof(jobq_str), 0, {25, 1043, 1042, 19}},
    {"bytes", sizeof(jobq_str), 0, {17, 0, 0, 0}},
    {"uuid", sizeof(jobq_pg_uuid), sizeof(jobq_pg_maybe_uuid), {2950, 0, 0, 0}},
    {"timestamptz", 8, sizeof(jobq_pg_maybe_int64), {1184, 0, 0, 0}},
    {"date", 4, sizeof(jobq_pg_maybe_int32), {1082, 0, 0, 0}},
    {"interval", sizeof(jobq_pg_interval), sizeof(jobq_pg_maybe_interval), {1186, 0, 0, 0}},
    {"duration", 8, sizeof(jobq_pg_maybe_int64), {1186, 0, 0, 0}},
    {"numeric", sizeof(jobq_str), 0, {1700, 0, 0, 0}},
    {"json", sizeof(jobq_str), 0, {3802, 114, 0, 0}},
    {"enum", sizeof(int), sizeof(jobq_pg_maybe_int32), {25, 1043, 18, 0}},
    {"texts", sizeof(jobq_pg_texts), 0, {1009, 1015, 0, 0}},
    {"int64s", sizeof(jobq_pg_int64s), 0, {1016, 0, 0, 0}},
};

/* Memory after a page's rows, for what they point to. jobq_pg__heap_need computes its size. */
typedef struct jobq_pg__heap {
    char *at, *end;
} jobq_pg__heap;

/* The most heap that a value of len bytes on the wire can need. */
static size_t jobq_pg__heap_need(jobq_pg_type type, size_t len)
{
    if (type == JOBQ_PG_TEXTS) return len / 4 * (sizeof(jobq_str) + 1) + len + 16;
    if (type == JOBQ_PG_INT64S) return len + 16;
    return jobq_pg__types[type].maybe == 0 ? len + 1 : 0;
}

static void *jobq_pg__heap_take(jobq_pg__heap *heap, size_t size, size_t align)
{
    size_t skip = (align - (uintptr_t)heap->at % align) % align;
    char *out = heap->at + skip;

    if ((size_t)(heap->end - heap->at) < size + skip) return NULL;
    heap->at = out + size;
    return out;
}

/* Copies a string to the heap and adds a NUL. */
static bool jobq_pg__heap_str(jobq_pg__heap *heap, const char *p, size_t len, jobq_str *out)
{
    char *copy = (char *)jobq_pg__heap_take(heap, len + 1, 1);

    if (copy == NULL) return false;
    if (len > 0) memcpy(copy, p, len);
    copy[len] = '\0';
    out->ptr = copy;
    out->len = len;
    return true;
}

/* Reads an array's header; *count elements follow at *at. False: malformed, or more than one
 * dimension. */
static bool jobq_pg__array_head(const char *p, size_t len, size_t *at, size_t *count)
{
    int32_t dims, items;

    if (len < 12) return false;
    dims = (int32_t)jobq_pg__big(p, 4);
    *count = 0;
    *at = 12;
    if (dims == 0) return len == 12;
    if (dims != 1 || len < 20) return false;
    items = (int32_t)jobq_pg__big(p + 12, 4);
    if (items < 0 || (size_t)items > (len - 20) / 4) return false;
    *count = (size_t)items;
    *at = 20;
    return true;
}

/* Reads the next element; item->ptr is NULL if the element is. False: malformed. */
static bool jobq_pg__array_item(const char *p, size_t len, size_t *at, jobq_str *item)
{
    int32_t size;

    item->ptr = NULL;
    item->len = 0;
    if (len - *at < 4) return false;
    size = (int32_t)jobq_pg__big(p + *at, 4);
    *at += 4;
    if (size == -1) return true;
    if (size < 0 || (size_t)size > len - *at) return false;
    item->ptr = p + *at;
    item->len = (size_t)size;
    *at += (size_t)size;
    return true;
}

static bool jobq_pg__get_texts(const char *p, size_t len, jobq_pg__heap *heap, jobq_pg_texts *out)
{
    jobq_str *items, item;
    size_t at, count, i;

    if (!jobq_pg__array_head(p, len, &at, &count)) return false;
    items = (jobq_str *)jobq_pg__heap_take(heap, count * sizeof *items, sizeof(void *));
    if (items == NULL) return false;
    for (i = 0; i < count; i++) {
        if (!jobq_pg__array_item(p, len, &at, &item)) return false;
        items[i] = item;
        if (item.ptr != NULL && !jobq_pg__heap_str(heap, item.ptr, item.len, &items[i]))
            return false;
    }
    out->items = items;
    out->count = count;
    return at == len;
}

static bool jobq_pg__get_int64s(const char *p, size_t len, jobq_pg__heap *heap,
                                jobq_pg_int64s *out)
{
    jobq_str item;
    size_t at, count, i;
    int64_t *items;

    if (!jobq_pg__array_head(p, len, &at, &count)) return false;
    items = (int64_t *)jobq_pg__heap_take(heap, count * sizeof *items, sizeof *items);
    if (items == NULL) return false;
    for (i = 0; i < count; i++) {
        if (!jobq_pg__array_item(p, len, &at, &item) || item.len != 8) return false;
        items[i] = jobq_pg__big(item.ptr, 8);
    }
    out->items = items;
    out->count = count;
    return at == len;
}

/* The index of a word in names, which end with NULL. -1: it is not there. */
static int jobq_pg__name_find(const char *const *names, jobq_str word)
{
    int i;

    for (i = 0; names[i] != NULL; i++) {
        if (jobq_str_equal(word, jobq_str_from(names[i]))) return i;
    }
    return -1;
}

static int32_t jobq_pg__days_from_server(int32_t days)
{
    if (days == INT32_MAX || days == INT32_MIN) return days; /* infinity */
    return days > INT32_MAX - JOBQ_PG__EPOCH_DAYS ? INT32_MAX : days + JOBQ_PG__EPOCH_DAYS;
}

/* The sum of an interval's parts, limited to +-JOBQ_NEVER; a month counts as 30 days. */
static int64_t jobq_pg__interval_us(const jobq_pg_interval *interval)
{
    const int64_t most = INT64_MAX / JOBQ_PG__DAY_US;
    int64_t days = (int64_t)interval->months * 30 + interval->days;

    if (days > most || days < -most) return days > 0 ? JOBQ_NEVER : -JOBQ_NEVER;
    days *= JOBQ_PG__DAY_US;
    if (days > 0 && interval->us > INT64_MAX - days) return JOBQ_NEVER;
    if (days < 0 && interval->us < -INT64_MAX - days) return -JOBQ_NEVER;
    return days + interval->us;
}

/* A whole number, a bool, or the bits of a float, from its field. */
static int64_t jobq_pg__field_get(const char *field, size_t size)
{
    int64_t big;
    int32_t medium;
    int16_t small;

    if (size == 8) memcpy(&big, field, 8);
    else if (size == 4) {
        memcpy(&medium, field, 4);
        big = medium;
    } else if (size == 2) {
        memcpy(&small, field, 2);
        big = small;
    } else {
        big = *(const bool *)field;
    }
    return big;
}

static void jobq_pg__field_set(char *field, size_t size, int64_t value)
{
    int32_t medium = (int32_t)value;
    int16_t small = (int16_t)value;

    if (size == 8) memcpy(field, &value, 8);
    else if (size == 4) memcpy(field, &medium, 4);
    else if (size == 2) memcpy(field, &small, 2);
    else *(bool *)field = value != 0;
}

/* Reads a value of fixed size. False: wrong size. */
static bool jobq_pg__get_fixed(jobq_pg_type type, const char *p, size_t len, char *out)
{
    size_t size = jobq_pg__types[type].size;
    jobq_pg_interval interval;
    int64_t value;

    if (type == JOBQ_PG_UUID || type == JOBQ_PG_INTERVAL || type == JOBQ_PG_DURATION) {
        if (len != 16) return false;
        interval.us = jobq_pg__big(p, 8);
        interval.days = (int32_t)jobq_pg__big(p + 8, 4);
        interval.months = (int32_t)jobq_pg__big(p + 12, 4);
        if (type == JOBQ_PG_UUID) memcpy(out, p, 16);
        else if (type == JOBQ_PG_INTERVAL) memcpy(out, &interval, sizeof interval);
        else jobq_pg__field_set(out, size, jobq_pg__interval_us(&interval));
        return true;
    }
    if (len != size) return false;
    value = jobq_pg__big(p, size);
    if (type == JOBQ_PG_TIMESTAMPTZ) value = jobq_pg__from_server_us(value);
    if (type == JOBQ_PG_DATE) value = jobq_pg__days_from_server((int32_t)value);
    jobq_pg__field_set(out, size, value);
    return true;
}

/* Reads one value into its field. False: malformed. */
static bool jobq_pg__get_value(const jobq_pg_column *column, bool jsonb, const char *p, size_t len,
                               char *field, jobq_pg__heap *heap)
{
    bool json = column->type == JOBQ_PG_JSON && jsonb; /* a version byte comes first */
    jobq_str word = {p, len};
    void *at = field;

    if (column->type == JOBQ_PG_TEXTS) return jobq_pg__get_texts(p, len, heap, (jobq_pg_texts *)at);
    if (column->type == JOBQ_PG_INT64S)
        return jobq_pg__get_int64s(p, len, heap, (jobq_pg_int64s *)at);
    if (column->type == JOBQ_PG_ENUM) {
        *(int *)at = jobq_pg__name_find(column->names, word);
        return *(int *)at >= 0;
    }
    if (json && (len < 1 || p[0] != 1)) return false;
    if (jobq_pg__types[column->type].maybe == 0)
        return jobq_pg__heap_str(heap, p + json, len - json, (jobq_str *)at);
    return jobq_pg__get_fixed(column->type, p, len, field);
}

/* Whether the field is a jobq_pg_maybe_...: a value and a flag. */
static bool jobq_pg__is_maybe(const jobq_pg_column *column)
{
    return (column->flags & JOBQ_PG_ZERO) == JOBQ_PG_NULLABLE &&
           jobq_pg__types[column->type].maybe != 0;
}

static bool jobq_pg__is_array(jobq_pg_type type)
{
    return type == JOBQ_PG_TEXTS || type == JOBQ_PG_INT64S;
}

/* Whether a field is NULL; an array that may not be NULL is empty instead. */
static bool jobq_pg__is_null(const jobq_pg_column *column, const char *field)
{
    size_t size = jobq_pg__types[column->type].size;

    if (jobq_pg__is_array(column->type) && (column->flags & JOBQ_PG_NULLABLE) == 0) return false;
    if (jobq_pg__types[column->type].maybe == 0)
        return ((const jobq_str *)(const void *)field)->ptr == NULL;
    if (jobq_pg__is_maybe(column)) return !*(const bool *)(field + size);
    while (size > 0 && field[size - 1] == 0) size--;
    return (column->flags & JOBQ_PG_NULLABLE) != 0 && size == 0;
}

static void jobq_pg__put_fixed(jobq_pg__params *p, jobq_pg_type type, const char *field)
{
    size_t size = jobq_pg__types[type].size;
    jobq_pg_interval interval;
    int64_t value;

    if (type == JOBQ_PG_UUID) {
        jobq_pg__raw(p, field, 16);
    } else if (type == JOBQ_PG_INTERVAL) {
        memcpy(&interval, field, sizeof interval);
        jobq_pg__raw_int(p, interval.us, 8);
        jobq_pg__raw_int(p, interval.days, 4);
        jobq_pg__raw_int(p, interval.months, 4);
    } else {
        value = jobq_pg__field_get(field, size);
        if (type == JOBQ_PG_TIMESTAMPTZ) value = jobq_pg__to_server_us(value);
        if (type == JOBQ_PG_DATE && value != INT32_MAX && value != INT32_MIN)
            value -= JOBQ_PG__EPOCH_DAYS;
        jobq_pg__raw_int(p, value, size);
        if (type == JOBQ_PG_DURATION) jobq_pg__raw_int(p, 0, 8); /* days and months */
    }
}

static void jobq_pg__put_texts(jobq_pg__params *p, const jobq_pg_texts *texts)
{
    size_t i;

    jobq_pg__array_head_put(p, JOBQ_PG__TEXT, texts->count);
    for (i = 0; i < texts->count; i++) jobq_pg__item_str(p, texts->items[i]);
}

static void jobq_pg__put_int64s(jobq_pg__params *p, const jobq_pg_int64s *longs)
{
    size_t i;

    jobq_pg__array_head_put(p, JOBQ_PG__INT8, longs->count);
    for (i = 0; i < longs->count; i++) jobq_pg__item_int(p, longs->items[i], 8);
}

/* Writes a field's value, which is valid and not NULL. */
static void jobq_pg__put_value(jobq_pg__params *p, const jobq_pg_column *column, bool jsonb,
                               const char *field)
{
    const void *at = field;
    const jobq_str *str = (const jobq_str *)at;

    if (column->type == JOBQ_PG_TEXTS) {
        jobq_pg__put_texts(p, (const jobq_pg_texts *)at);
    } else if (column->type == JOBQ_PG_INT64S) {
        jobq_pg__put_int64s(p, (const jobq_pg_int64s *)at);
    } else if (column->type == JOBQ_PG_ENUM) {
        jobq_pg__say(p, column->names[*(const int *)at]);
    } else if (jobq_pg__types[column->type].maybe == 0) {
        if (column->type == JOBQ_PG_JSON && jsonb) jobq_pg__raw_int(p, 1, 1); /* its version */
        jobq_pg__raw(p, str->ptr, str->len);
    } else {
        jobq_pg__put_fixed(p, column->type, field);
    }
}

#ifndef JOBQ_PG_NO_TABLES

/* -- as text: in errors; and what is sent as text -- */

#define JOBQ_PG__VALUE_SIZE 80 /* bytes that hold any such text */

static void jobq_pg__uuid_format(char *out, const jobq_pg_uuid *uuid)
{
    int i;

    for (i = 0; i < 16; i++)
        out += snprintf(out, 4, i >= 4 && i <= 10 && i % 2 == 0 ? "-%02x" : "%02x",
                        uuid->bytes[i]);
}

/* The rest of a text that is being parsed. */
typedef struct jobq_pg__scan {
    const char *at, *end;
} jobq_pg__scan;

static jobq_pg__scan jobq_pg__scan_of(jobq_str text)
{
    jobq_pg__scan s;

    s.at = text.ptr;
    s.end = text.ptr == NULL ? NULL : text.ptr + text.len;
    return s;
}

static bool jobq_pg__scan_char(jobq_pg__scan *s, char c)
{
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* Skips up to most digits, and returns how many there are. */
static int jobq_pg__scan_digits(jobq_pg__scan *s, int most)
{
    int count = 0;

    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9' && count < most; s->at++) count++;
    return count;
}

/* Source: Hinnant's civil_from_days; years begin in March, so that the leap day is the last. */
static void jobq_pg__date_of(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097, in_era = z - era * 146097;
    int64_t y = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    int64_t in_year = in_era - (365 * y + y / 4 - y / 100), m = (5 * in_year + 2) / 153;

    *day = (int)(in_year - (153 * m + 2) / 5 + 1);
    *month = (int)(m < 10 ? m + 3 : m - 9);
    *year = y + era * 400 + (*month <= 2);
}

/* Writes a date such as "0044-03-15". False: the caller must add " BC". */
static bool jobq_pg__date_put(char *out, int64_t days)
{
    int64_t year;
    int month, day;

    jobq_pg__date_of(days, &year, &month, &day);
    snprintf(out, JOBQ_PG__VALUE_SIZE, "%04lld-%02d-%02d", (long long)(year > 0 ? year : 1 - year),
             month, day);
    return year > 0;
}

static void jobq_pg__date_format(char *out, int32_t days)
{
    if (days == INT32_MAX || days == INT32_MIN) {
        jobq_pg__copy(out, JOBQ_PG__VALUE_SIZE, days > 0 ? "infinity" : "-infinity");
    } else if (!jobq_pg__date_put(out, days)) {
        memcpy(out + strlen(out), " BC", 4);
    }
}

/* Appends decimals, if there are any, and then tail. */
static void jobq_pg__micros_put(char *out, int micros, const char *tail)
{
    size_t len = strlen(out);

    if (micros != 0)
        len += (size_t)snprintf(out + len, JOBQ_PG__VALUE_SIZE - len, ".%06d", micros);
    jobq_pg__copy(out + len, JOBQ_PG__VALUE_SIZE - len, tail);
}

static void jobq_pg__instant_format(char *out, int64_t us)
{
    int64_t days = us / JOBQ_PG__DAY_US, rest = us % JOBQ_PG__DAY_US;
    int seconds;
    bool christ;
    size_t len;

    if (us == JOBQ_NEVER || us == INT64_MIN) {
        jobq_pg__copy(out, JOBQ_PG__VALUE_SIZE, us > 0 ? "infinity" : "-infinity");
        return;
    }
    if (rest < 0) {
        days--;
        rest += JOBQ_PG__DAY_US;
    }
    christ = jobq_pg__date_put(out, days);
    len = strlen(out);
    seconds = (int)(rest / 1000000);
    snprintf(out + len, JOBQ_PG__VALUE_SIZE - len, "T%02d:%02d:%02d", seconds / 3600,
             seconds / 60 % 60, seconds % 60);
    jobq_pg__micros_put(out, (int)(rest % 1000000), christ ? "Z" : "Z BC");
}

/* Hours, minutes and seconds are separate, because the server reads seconds as a double. */
static void jobq_pg__interval_format(char *out, const jobq_pg_interval *interval)
{
    uint64_t us = interval->us < 0 ? 0 - (uint64_t)interval->us : (uint64_t)interval->us;
    const char *sign = interval->us < 0 ? "-" : "";
    uint64_t minutes = us / 60000000;

    snprintf(out, JOBQ_PG__VALUE_SIZE, "P%dM%dDT%s%lluH%s%dM%s%d", (int)interval->months,
             (int)interval->days, sign, (unsigned long long)(minutes / 60), sign,
             (int)(minutes % 60), sign, (int)(us / 1000000 % 60));
    jobq_pg__micros_put(out, (int)(us % 1000000), "S");
}

static bool jobq_pg__numeric_valid(jobq_str text)
{
    jobq_pg__scan s = jobq_pg__scan_of(text);
    int digits;

    if (jobq_str_equal(text, jobq_str_from("NaN"))) return true;
    if (!jobq_pg__scan_char(&s, '-')) (void)jobq_pg__scan_char(&s, '+');
    if (s.at != NULL && s.end - s.at == 8 && memcmp(s.at, "Infinity", 8) == 0) return true;
    digits = jobq_pg__scan_digits(&s, 100000);
    if (jobq_pg__scan_char(&s, '.')) digits += jobq_pg__scan_digits(&s, 16000);
    if (digits == 0) return false;
    if (jobq_pg__scan_char(&s, 'e') || jobq_pg__scan_char(&s, 'E')) {
        if (!jobq_pg__scan_char(&s, '-')) (void)jobq_pg__scan_char(&s, '+');
        if (jobq_pg__scan_digits(&s, 4) == 0) return false;
    }
    return s.at == s.end;
}

/* Writes a value of these types as Postgres reads it. False: it is of another type. */
static bool jobq_pg__value_format(jobq_pg_type type, const void *value, char *out)
{
    if (type == JOBQ_PG_UUID) jobq_pg__uuid_format(out, (const jobq_pg_uuid *)value);
    else if (type == JOBQ_PG_DATE) jobq_pg__date_format(out, *(const int32_t *)value);
    else if (type == JOBQ_PG_TIMESTAMPTZ) jobq_pg__instant_format(out, *(const int64_t *)value);
    else if (type == JOBQ_PG_INTERVAL)
        jobq_pg__interval_format(out, (const jobq_pg_interval *)value);
    else return false;
    return true;
}

#endif

static const jobq_pg_table_desc *jobq_pg__desc_of(jobq_pg__statement st);
static jobq_error jobq_pg__rows_of(jobq_pg__statement st, PGresult *res, jobq_pg_rows *rows,
                                   jobq_pg_error *error);
static jobq_error jobq_pg__ask_rows(jobq_pg *pg, PGconn *conn, jobq_pg__statement st,
                                    const void *from, jobq_pg_rows *rows, jobq_pg_error *error);

/* ---- >>codec: the columns of statements, and how they are written and read ------------------- */

/* Flags, in addition to those of a table's column. */
#define JOBQ_PG__CSTR 64u     /* a const char *, not a jobq_str */
#define JOBQ_PG__NOT 128u     /* a bool, inverted */
#define JOBQ_PG__IF 256u      /* NULL unless the bool at size is true; reading a value sets it */
#define JOBQ_PG__UNLESS 512u  /* NULL if the bool at size is true */
#define JOBQ_PG__SPARSE 1024u /* a list: NULL if all its items are */
#define JOBQ_PG__EXACT 4096u  /* the bool after that at size is payload_exact: it counts for IF and
                                 UNLESS; without them, the column has headers, and what follows
                                 the field is the trace: both are added to them */
#define JOBQ_PG__LIST_UNLESS 2048u /* a list: NULL if the bool at size, beside the list, is true */
#define JOBQ_PG__ZEROS 16384u /* a list: NULL if all its items are 0 */
#define JOBQ_PG__NAMED 8192u  /* an enum, written as a name; size: its jobq_enum; 0 is NULL */

/* Where the items of a list are. Offsets are those in the struct. */
typedef struct jobq_pg__list {
    size_t items;  /* of the first or, if apart, of a pointer to it */
    size_t count;  /* of an int32_t; SIZE_MAX: there is one item */
    size_t stride; /* bytes from one item to the next */
    int32_t most;  /* for results: items that fit; 0: count says how many */
    bool apart;
    size_t belong; /* in an item: an int32_t, 0 if the item is left out; 0: none is left out */
} jobq_pg__list;

/* A parameter or a column of a result, and its field in a struct. */
typedef struct jobq_pg__col {
    jobq_pg_column of; /* name: in a result, or of a named parameter */
    jobq_pg__wire wire; /* NOTHING ends the columns */
    const jobq_pg__list *list;              /* of an array: the field is in each item */
    int64_t (*number)(const void *row);     /* instead of a field; INT64_MIN is NULL */
} jobq_pg__col;

#define JOBQ_PG__COL(name, row, field, wire, type, flags) \
    {{name, JOBQ_PG_##type, offsetof(row, field), 0, flags, NULL}, JOBQ_PG__##wire, NULL, NULL}
#define JOBQ_PG__COL_WHEN(name, row, field, wire, type, flags, when) \
    {{name, JOBQ_PG_##type, offsetof(row, field), offsetof(row, when), flags, NULL}, \
     JOBQ_PG__##wire, NULL, NULL}
#define JOBQ_PG__COL_NAMED(name, row, field, names) \
    {{name, JOBQ_PG_INT32, offsetof(row, field), names, JOBQ_PG__NAMED, NULL}, \
     JOBQ_PG__TEXT, NULL, NULL}
#define JOBQ_PG__COL_OF(name, function, wire) \
    {{name, JOBQ_PG_INT64, 0, 0, 0, NULL}, JOBQ_PG__##wire, NULL, jobq_pg__##function}
#define JOBQ_PG__LIST(name, list, row, field, wire, type, flags) \
    {{name, JOBQ_PG_##type, offsetof(row, field), 0, flags, NULL}, JOBQ_PG__##wire, \
     &jobq_pg__##list, NULL}
#define JOBQ_PG__LIST_WHEN(name, list, row, field, wire, type, flags, when) \
    {{name, JOBQ_PG_##type, offsetof(row, field), offsetof(row, when), flags, NULL}, \
     JOBQ_PG__##wire, &jobq_pg__##list, NULL}
#define JOBQ_PG__LIST_OF(name, list, function, wire, flags) \
    {{name, JOBQ_PG_INT64, 0, 0, flags, NULL}, JOBQ_PG__##wire, &jobq_pg__##list, \
     jobq_pg__##function}
/* A list whose items are plain values. */
#define JOBQ_PG__ITEMS(name, list, wire, type, flags) \
    {{name, JOBQ_PG_##type, 0, 0, flags, NULL}, JOBQ_PG__##wire, &jobq_pg__##list, NULL}
#define JOBQ_PG__COLS_END {{NULL, JOBQ_PG_NONE, 0, 0, 0, NULL}, JOBQ_PG__NOTHING, NULL, NULL}

#define JOBQ_PG__LIST_IN(row, items, count, most) \
    {offsetof(row, items), offsetof(row, count), sizeof(((row *)0)->items[0]), most, false, 0}
#define JOBQ_PG__LIST_APART(row, items, count) \
    {offsetof(row, items), offsetof(row, count), sizeof(((row *)0)->items[0]), 0, true, 0}

/* -- writing -- */

/* An integer from its field, or from its function. */
static int64_t jobq_pg__col_raw(const jobq_pg__col *c, const char *row)
{
    int64_t value;

    if (c->number != NULL) return c->number(row);
    value = jobq_pg__field_get(row + c->of.offset, jobq_pg__types[c->of.type].size);
    return (c->of.flags & JOBQ_PG__NOT) != 0 ? !value : value;
}

/* The same as the server counts it. */
static int64_t jobq_pg__col_int(const jobq_pg__col *c, const char *row)
{
    int64_t value = jobq_pg__col_raw(c, row);

    return c->of.type == JOBQ_PG_TIMESTAMPTZ ? jobq_pg__to_server_us(value) : value;
}

/* Of a column with CSTR or NAMED. */
static const char *jobq_pg__col_cstr(const jobq_pg__col *c, const char *row)
{
    const char *text;

    if ((c->of.flags & JOBQ_PG__NAMED) != 0)
        return jobq_enum_name((jobq_enum)c->of.size, jobq_pg__col_raw(c, row));
    memcpy(&text, row + c->of.offset, sizeof text);
    return text;
}

static bool jobq_pg__col_exact(const jobq_pg__col *c, const char *row)
{
    return (c->of.flags & JOBQ_PG__EXACT) != 0 && *(const bool *)(row + c->of.size + 1);
}

/* The trace that the headers of a job or of a message get. */
static const jobq_trace *jobq_pg__col_trace(const jobq_pg__col *c, const char *row)
{
    const void *trace = row + c->of.offset + sizeof(jobq_str);

    return (const jobq_trace *)trace;
}

/* Whether headers get more than their own text: that the payload's bytes are JSON, or a trace. */
static bool jobq_pg__col_marked(const jobq_pg__col *c, const char *row)
{
    char trace[JOBQ_TRACE_MAX];

    if ((c->of.flags & (JOBQ_PG__EXACT | JOBQ_PG__IF | JOBQ_PG__UNLESS)) != JOBQ_PG__EXACT)
        return false;
    return jobq_pg__col_exact(c, row) || jobq_trace_format(trace, jobq_pg__col_trace(c, row)) > 0;
}

/* Writes headers, valid or none, with what they get before their own members, because jsonb keeps
 * the last one of equal members; if sized, after their length. Headers that name a traceparent get
 * no trace at all: this tracestate would not belong to it. */
static void jobq_pg__put_marked(jobq_pg__params *p, const jobq_pg__col *c, const char *row,
                                bool sized)
{
    static const char exact[] = "\"content-type\": \"application/json\"";
    const void *field = row + c->of.offset;
    jobq_str headers = *(const jobq_str *)field, rest = jobq_str_from("}");
    char mark[sizeof exact + 1 + JOBQ_TRACE_MAX];
    size_t size = 0, at = 0, comma = 0;

    if (jobq_pg__col_exact(c, row)) memcpy(mark, exact, size = sizeof exact - 1);
    if (jobq_json_member(headers, "traceparent").ptr == NULL) {
        size_t more = jobq_trace_format(mark + size + (size > 0), jobq_pg__col_trace(c, row));
        if (size > 0 && more > 0) mark[size++] = ',';
        size += more;
    }
    if (headers.ptr != NULL) {
        while (headers.ptr[at++] != '{') {}
        rest.ptr = headers.ptr + at;
        rest.len = headers.len - at;
        for (at = 0; strchr(" \t\n\r", rest.ptr[at]) != NULL;) at++;
        comma = size > 0 && rest.ptr[at] != '}';
    }
    if (sized) jobq_pg__raw_int(p, (int64_t)(2 + size + comma + rest.len), 4);
    jobq_pg__raw_int(p, 1, 1); /* jsonb's version */
    jobq_pg__raw(p, "{", 1);
    jobq_pg__raw(p, mark, size);
    jobq_pg__raw(p, ",", comma);
    jobq_pg__raw(p, rest.ptr, rest.len);
}

static bool jobq_pg__col_null(const jobq_pg__col *c, const char *row)
{
    unsigned flags = c->of.flags;

    if (c->number != NULL) return c->number(row) == INT64_MIN;
    if ((flags & JOBQ_PG__NAMED) != 0) return jobq_pg__col_raw(c, row) == 0;
    if (jobq_pg__col_marked(c, row)) return false;
    if ((flags & (JOBQ_PG__IF | JOBQ_PG__UNLESS)) != 0) {
        bool when = *(const bool *)(row + c->of.size) || jobq_pg__col_exact(c, row);
        if (when != ((flags & JOBQ_PG__IF) != 0)) return true;
    }
    if ((flags & JOBQ_PG__CSTR) != 0) return jobq_pg__col_cstr(c, row) == NULL;
    if (jobq_pg__wires[c->wire].width > 0 && !jobq_pg__is_array(c->of.type) &&
        !jobq_pg__is_maybe(&c->of)) /* 0 is NULL in a nullable column */
        return (flags & JOBQ_PG_NULLABLE) != 0 && jobq_pg__col_raw(c, row) == 0;
    return jobq_pg__is_null(&c->of, row + c->of.offset);
}

/* Writes the bytes of a value that is not NULL. */
static void jobq_pg__put_bytes(jobq_pg__params *p, const jobq_pg__col *c, const char *row)
{
    size_t width = jobq_pg__is_array(c->of.type) ? 0 : jobq_pg__wires[c->wire].width;

    if (width > 0) jobq_pg__raw_int(p, jobq_pg__col_int(c, row), width);
    else if (jobq_pg__col_marked(c, row)) jobq_pg__put_marked(p, c, row, false);
    else if ((c->of.flags & (JOBQ_PG__CSTR | JOBQ_PG__NAMED)) != 0)
        jobq_pg__say(p, jobq_pg__col_cstr(c, row));
    else jobq_pg__put_value(p, &c->of, c->wire == JOBQ_PG__JSONB, row + c->of.offset);
}

/* Writes an array's item or a field of a COPY row: length and bytes. */
static void jobq_pg__put_item(jobq_pg__params *p, const jobq_pg__col *c, const char *row)
{
    size_t width = jobq_pg__wires[c->wire].width;
    const void *field = row + c->of.offset;
    bool jsonb = c->wire == JOBQ_PG__JSONB; /* a version byte comes first */
    jobq_str s;

    if (jobq_pg__col_null(c, row)) {
        jobq_pg__raw_int(p, -1, 4);
    } else if (width > 0) {
        jobq_pg__item_int(p, jobq_pg__col_int(c, row), width);
    } else if (jobq_pg__col_marked(c, row)) {
        jobq_pg__put_marked(p, c, row, true);
    } else {
        s = (c->of.flags & (JOBQ_PG__CSTR | JOBQ_PG__NAMED)) != 0
                ? jobq_str_from(jobq_pg__col_cstr(c, row)) : *(const jobq_str *)field;
        jobq_pg__raw_int(p, (int64_t)s.len + jsonb, 4);
        if (jsonb) jobq_pg__raw_int(p, 1, 1);
        jobq_pg__raw(p, s.ptr, s.len);
    }
}

/* The first item of a list, and the number of items. */
static const char *jobq_pg__items(const jobq_pg__list *l, const char *row, int32_t *count)
{
    const char *items = row + l->items;

    *count = 1;
    if (l->count != SIZE_MAX) memcpy(count, row + l->count, sizeof *count);
    if (l->apart) memcpy(&items, row + l->items, sizeof items);
    return items;
}

static bool jobq_pg__belongs(const jobq_pg__list *l, const char *item)
{
    const void *mark = item + l->belong;

    return l->belong == 0 || *(const int32_t *)mark != 0;
}

/* Whether an item need not be sent if all others need not. */
static bool jobq_pg__unsaid(const jobq_pg__col *c, const char *item)
{
    if ((c->of.flags & JOBQ_PG__ZEROS) != 0) return jobq_pg__col_raw(c, item) == 0;
    return jobq_pg__col_null(c, item);
}

static void jobq_pg__put_list(jobq_pg__params *p, const jobq_pg__col *c, const char *row)
{
    const jobq_pg__list *l = c->list;
    int32_t count, belong = 0, i = 0;
    const char *items = jobq_pg__items(l, row, &count);
    bool null = (c->of.flags & JOBQ_PG__LIST_UNLESS) != 0 && *(const bool *)(row + c->of.size);

    if ((c->of.flags & (JOBQ_PG__SPARSE | JOBQ_PG__ZEROS)) != 0) {
        while (i < count && jobq_pg__unsaid(c, items + (size_t)i * l->stride)) i++;
        null = i == count;
    }
    if (null) {
        jobq_pg__add_null(p);
        return;
    }
    if (l->belong == 0) belong = count;
    else for (i = 0; i < count; i++) belong += jobq_pg__belongs(l, items + (size_t)i * l->stride);
    jobq_pg__begin(p);
    jobq_pg__array_head_put(p, c->wire, (size_t)belong);
    for (i = 0; i < count; i++) {
        const char *item = items + (size_t)i * l->stride;
        if (jobq_pg__belongs(l, item)) jobq_pg__put_item(p, c, item);
    }
    jobq_pg__end(p);
}

/* Adds the parameters that a struct holds. */
static void jobq_pg__put(jobq_pg__params *p, const jobq_pg__col *c, const void *from)
{
    const char *row = (const char *)from;

    for (; c->wire != JOBQ_PG__NOTHING; c++) {
        if (c->list != NULL) {
            jobq_pg__put_list(p, c, row);
        } else if (jobq_pg__col_null(c, row)) {
            jobq_pg__add_null(p);
        } else {
            jobq_pg__begin(p);
            jobq_pg__put_bytes(p, c, row);
            jobq_pg__end(p);
        }
    }
}

/* -- reading: a value that is NULL or malformed leaves its field as it is -- */

/* Reads a value into its field. A string points into the result. */
static void jobq_pg__get_bytes(const jobq_pg__col *c, const char *p, size_t len, char *row)
{
    void *field = row + c->of.offset;
    size_t skip = c->wire == JOBQ_PG__JSONB; /* its version */
    int64_t value;

    if (jobq_pg__wires[c->wire].width > 0) {
        if (len < 1 || len > 8) return;
        value = jobq_pg__big(p, len);
        if (c->of.type == JOBQ_PG_TIMESTAMPTZ) value = jobq_pg__from_server_us(value);
        jobq_pg__field_set((char *)field, jobq_pg__types[c->of.type].size, value);
    } else if (len >= skip) {
        ((jobq_str *)field)->ptr = p + skip;
        ((jobq_str *)field)->len = len - skip;
        if ((c->of.flags & JOBQ_PG__IF) != 0) *(bool *)(row + c->of.size) = true;
    }
}

/* Reads up to most items of an array; returns how many. */
static int32_t jobq_pg__get_items(const jobq_pg__col *c, const char *p, size_t len, char *items,
                                  int32_t most)
{
    size_t at, count;
    jobq_str item;
    int32_t i;

    if (!jobq_pg__array_head(p, len, &at, &count)) return 0;
    for (i = 0; i < most && (size_t)i < count; i++) {
        if (!jobq_pg__array_item(p, len, &at, &item)) break;
        if (item.ptr != NULL)
            jobq_pg__get_bytes(c, item.ptr, item.len, items + (size_t)i * c->list->stride);
    }
    return i;
}

/* The first array of a list sets the number of its items. If another has more or fewer, the list
 * becomes empty. */
static void jobq_pg__get_list(const jobq_pg__col *c, bool first, const char *p, size_t len,
                              char *row)
{
    const jobq_pg__list *l = c->list;
    char *items = row + l->items;
    int32_t count = l->most, got;

    if (l->count != SIZE_MAX) memcpy(&count, row + l->count, sizeof count);
    if (l->apart) memcpy(&items, row + l->items, sizeof items);
    if (items == NULL) return;
    got = jobq_pg__get_items(c, p, len, items, l->most > 0 ? l->most : count);
    if (!first && count != got) got = 0;
    if (l->count != SIZE_MAX) memcpy(row + l->count, &got, sizeof got);
}

/* Reads a row's columns, starting at column at, into a struct. */
static void jobq_pg__row(const PGresult *res, int row, int at, const jobq_pg__col *cols, void *out)
{
    const jobq_pg__col *c = cols;

    for (; c->wire != JOBQ_PG__NOTHING; c++, at++) {
        size_t len = (size_t)PQgetlength(res, row, at);
        bool first = c->list != NULL && (c == cols || c[-1].list != c->list);
        const char *p;
        if (len == 0 && !first && PQgetisnull(res, row, at)) continue;
        p = PQgetvalue(res, row, at);
        if (c->list != NULL) jobq_pg__get_list(c, first, p, len, (char *)out);
        else jobq_pg__get_bytes(c, p, len, (char *)out);
    }
}

/* -- columns of statements that enqueue -- */

#define JOBQ_PG__NULL INT64_MIN

static const jobq_pg__col jobq_pg__none[] = {JOBQ_PG__COLS_END};

/* The arguments of enqueue_many. */
typedef struct jobq_pg__enqueued {
    const char *queue;
    const char **kinds;
    const int32_t *kind;  /* of each job: the index of its kind in kinds, from 1 */
    const jobq_pg_job *jobs;
    int32_t kind_count, indexed, count; /* of kinds, kind and jobs */
    bool quiet;
} jobq_pg__enqueued;

static const jobq_pg__list jobq_pg__enqueue_kinds =
    JOBQ_PG__LIST_APART(jobq_pg__enqueued, kinds, kind_count);
static const jobq_pg__list jobq_pg__enqueue_kind =
    JOBQ_PG__LIST_APART(jobq_pg__enqueued, kind, indexed);
static const jobq_pg__list jobq_pg__jobs = JOBQ_PG__LIST_APART(jobq_pg__enqueued, jobs, count);

/* What a trace adds to headers at most. */
static size_t jobq_pg__trace_size(const jobq_trace *trace)
{
    char text[JOBQ_TRACE_MAX];

    return trace->parent.ptr == NULL ? 0 : jobq_trace_format(text, trace) + 2;
}

/* The size of the text that the caller gave. To measure jsonb as text on the server would cost 8 %
 * of an enqueue, and a role that may insert could insert anything in any case. */
static int64_t jobq_pg__job_size(const void *row)
{
    const jobq_pg_job *job = (const jobq_pg_job *)row;

    size_t headers = job->headers.len + jobq_pg__trace_size(&job->trace);

    return (int64_t)(job->payload.len > headers ? job->payload.len : headers);
}

/* A job's columns. C and CW make them: single values, or lists. */
#define JOBQ_PG__JOB_COLS(C, CW)                                                                   \
    CW(payload, JSONB, JSON, JOBQ_PG__UNLESS | JOBQ_PG__EXACT, payload_bytes),                     \
    CW(payload, BYTEA, BYTES, JOBQ_PG__IF | JOBQ_PG__EXACT, payload_bytes),                        \
    CW(headers, JSONB, JSON, JOBQ_PG__EXACT, payload_bytes),                                       \
    C(run_at_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG_ZERO),                                          \
    C(delay_us, INT8, INT64, JOBQ_PG_ZERO),                                                        \
    C(priority, INT2, INT32, JOBQ_PG_ZERO)
#define JOBQ_PG__JOB_LIMITS(C)                                                                     \
    C(max_attempts, INT4, INT32, JOBQ_PG_ZERO),                                                    \
    C(timeout_us, INT8, INT64, JOBQ_PG_ZERO)
#define JOBQ_PG__ONE(field, wire, type, flags) \
    JOBQ_PG__COL(NULL, jobq_pg_job, field, wire, type, flags)
#define JOBQ_PG__ONE_WHEN(field, wire, type, flags, when) \
    JOBQ_PG__COL_WHEN(NULL, jobq_pg_job, field, wire, type, flags, when)
#define JOBQ_PG__MANY(field, wire, type, flags) \
    JOBQ_PG__LIST(NULL, jobs, jobq_pg_job, field, wire, type, (flags) | JOBQ_PG__SPARSE)
#define JOBQ_PG__MANY_WHEN(field, wire, type, flags, when) \
    JOBQ_PG__LIST_WHEN(NULL, jobs, jobq_pg_job, field, wire, type, (flags) | JOBQ_PG__SPARSE, when)

static const jobq_pg__col jobq_pg__enqueue_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__enqueued, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ITEMS(NULL, enqueue_kinds, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ITEMS(NULL, enqueue_kind, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__JOB_COLS(JOBQ_PG__MANY, JOBQ_PG__MANY_WHEN),
    JOBQ_PG__MANY(stages, INT2, INT32, JOBQ_PG_ZERO), JOBQ_PG__JOB_LIMITS(JOBQ_PG__MANY),
    JOBQ_PG__MANY(key, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__enqueued, count, INT4, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__enqueued, quiet, BOOL, BOOL, JOBQ_PG__NOT),
    JOBQ_PG__MANY(line, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

/* One of the things that a batch's jobs wait for. */
typedef struct jobq_pg__edge {
    int32_t child; /* the job that waits, from 1 */
    const char *on_end;
    jobq_pg_after after;
} jobq_pg__edge;

/* The arguments of enqueue_linked. */
typedef struct jobq_pg__linked {
    jobq_pg__enqueued batch; /* must be first: its columns are used */
    jobq_pg__edge *edges;
    int64_t flow;
    int32_t edge_count;
} jobq_pg__linked;

static const jobq_pg__list jobq_pg__edges =
    JOBQ_PG__LIST_APART(jobq_pg__linked, edges, edge_count);

#define JOBQ_PG__EDGE(field, wire, type, flags) \
    JOBQ_PG__LIST(NULL, edges, jobq_pg__edge, field, wire, type, (flags) | JOBQ_PG__SPARSE)

static const jobq_pg__col jobq_pg__enqueue_linked_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__enqueued, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ITEMS(NULL, enqueue_kinds, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ITEMS(NULL, enqueue_kind, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__JOB_COLS(JOBQ_PG__MANY, JOBQ_PG__MANY_WHEN),
    JOBQ_PG__MANY(stages, INT2, INT32, JOBQ_PG_ZERO), JOBQ_PG__JOB_LIMITS(JOBQ_PG__MANY),
    JOBQ_PG__MANY(key, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__enqueued, count, INT4, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__enqueued, quiet, BOOL, BOOL, JOBQ_PG__NOT),
    JOBQ_PG__MANY(line, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__linked, flow, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__MANY(name, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__EDGE(child, INT4, INT32, 0),
    JOBQ_PG__EDGE(after.job, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__EDGE(after.name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__EDGE(after.flow, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__EDGE(on_end, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__enqueue_one_in[] = {
    JOBQ_PG__ONE(queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ONE(kind, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__JOB_COLS(JOBQ_PG__ONE, JOBQ_PG__ONE_WHEN),
    JOBQ_PG__ONE(stages, INT2, INT32, JOBQ_PG_ZERO), JOBQ_PG__JOB_LIMITS(JOBQ_PG__ONE),
    JOBQ_PG__ONE(key, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ONE(quiet, BOOL, BOOL, JOBQ_PG__NOT),
    JOBQ_PG__ONE(line, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__enqueue_known_in[] = {
    JOBQ_PG__ONE(queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ONE(kind, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__JOB_COLS(JOBQ_PG__ONE, JOBQ_PG__ONE_WHEN),
    JOBQ_PG__ONE(stages, INT2, INT32, JOBQ_PG_ZERO), JOBQ_PG__JOB_LIMITS(JOBQ_PG__ONE),
    JOBQ_PG__ONE(key, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ONE(quiet, BOOL, BOOL, JOBQ_PG__NOT),
    JOBQ_PG__COL_NAMED(NULL, jobq_pg_job, on_known, JOBQ_ENUM_KNOWN),
    JOBQ_PG__COL_NAMED(NULL, jobq_pg_job, unique_for, JOBQ_ENUM_UNIQUE),
    JOBQ_PG__ONE(at_latest_us, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__ONE(line, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__enqueue_direct_in[] = {
    JOBQ_PG__ONE(queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ONE(kind, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__JOB_COLS(JOBQ_PG__ONE, JOBQ_PG__ONE_WHEN), JOBQ_PG__JOB_LIMITS(JOBQ_PG__ONE),
    JOBQ_PG__ONE(quiet, BOOL, BOOL, JOBQ_PG__NOT), JOBQ_PG__COL_OF(NULL, job_size, INT8),
    JOBQ_PG__COLS_END};

/* The arguments of schedules_set. */
typedef struct jobq_pg__declared {
    const char *owner;
    int64_t revision;
    const jobq_pg_schedule *schedules;
    int32_t count;
} jobq_pg__declared;

static const jobq_pg__list jobq_pg__schedules =
    JOBQ_PG__LIST_APART(jobq_pg__declared, schedules, count);

static int64_t jobq_pg__schedule_partition(const void *row)
{
    const jobq_pg_schedule *s = (const jobq_pg_schedule *)row;

    return s->job.kind != NULL ? JOBQ_PG__NULL : s->partition;
}

#define JOBQ_PG__TICK(field, wire, type, flags) \
    JOBQ_PG__LIST(NULL, schedules, jobq_pg_schedule, field, wire, type, flags)
#define JOBQ_PG__TICK_WHEN(field, wire, type, flags) \
    JOBQ_PG__LIST_WHEN(NULL, schedules, jobq_pg_schedule, field, wire, type, \
                       (flags) | JOBQ_PG__EXACT, job.payload_bytes)
#define JOBQ_PG__TICK_NAMED(field, names) \
    {{NULL, JOBQ_PG_INT32, offsetof(jobq_pg_schedule, field), names, JOBQ_PG__NAMED, NULL}, \
     JOBQ_PG__TEXT, &jobq_pg__schedules, NULL}
static const jobq_pg__col jobq_pg__schedules_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__declared, owner, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__declared, revision, INT8, INT64, 0),
    JOBQ_PG__TICK(name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__TICK(job.queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__TICK(job.kind, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__TICK(cron, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__TICK(every_us, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__TICK(zone, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__TICK_NAMED(missed, JOBQ_ENUM_MISSED),
    JOBQ_PG__TICK(missed_within_us, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__TICK_NAMED(overlap, JOBQ_ENUM_OVERLAP),
    JOBQ_PG__TICK(spread_us, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__TICK(starts_at_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__TICK(ends_at_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__TICK_WHEN(job.payload, JSONB, JSON, JOBQ_PG__UNLESS),
    JOBQ_PG__TICK_WHEN(job.payload, BYTEA, BYTES, JOBQ_PG__IF),
    JOBQ_PG__TICK_WHEN(job.headers, JSONB, JSON, 0),
    JOBQ_PG__TICK(job.priority, INT2, INT32, 0),
    JOBQ_PG__TICK(job.max_attempts, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__TICK(job.timeout_us, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__LIST_OF(NULL, schedules, schedule_partition, INT4, 0),
    JOBQ_PG__TICK(type, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

/* The answer to an enqueue. */
typedef struct jobq_pg__written {
    int64_t *ids;     /* the caller's; NULL: not wanted */
    int32_t count, partitions;
    int64_t id;
    jobq_str refused, code; /* why nothing was written, and its SQLSTATE */
    bool existed;
} jobq_pg__written;

static const jobq_pg__list jobq_pg__ids = JOBQ_PG__LIST_APART(jobq_pg__written, ids, count);

static const jobq_pg__col jobq_pg__ids_out[] = {
    JOBQ_PG__ITEMS("ids", ids, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__existed_out[] = {
    JOBQ_PG__COL("id", jobq_pg__written, id, INT8, INT64, 0),
    JOBQ_PG__COL("existed", jobq_pg__written, existed, BOOL, BOOL, 0), JOBQ_PG__COLS_END};

/* The arguments and the answer of bulk; wake takes two of the fields. */
typedef struct jobq_pg__bulk {
    const char *name;
    const char **kinds;
    int64_t *kind_ids;
    int32_t kind_count, stages, priority, queue, count, payload_max;
    int64_t now_us;
    bool lines; /* some of the jobs have one */
} jobq_pg__bulk;

static const jobq_pg__list jobq_pg__bulk_kinds =
    JOBQ_PG__LIST_APART(jobq_pg__bulk, kinds, kind_count);
static const jobq_pg__list jobq_pg__bulk_ids =
    JOBQ_PG__LIST_APART(jobq_pg__bulk, kind_ids, kind_count);

static const jobq_pg__col jobq_pg__bulk_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__bulk, name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ITEMS(NULL, bulk_kinds, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__bulk, stages, INT2, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__bulk, priority, INT2, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__bulk, lines, BOOL, BOOL, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__bulk_out[] = {
    JOBQ_PG__COL("queue", jobq_pg__bulk, queue, INT4, INT32, 0),
    JOBQ_PG__ITEMS("kinds", bulk_ids, INT4, INT64, 0),
    JOBQ_PG__COL("now_at", jobq_pg__bulk, now_us, TIMESTAMPTZ, TIMESTAMPTZ, 0),
    JOBQ_PG__COL("payload_max", jobq_pg__bulk, payload_max, INT4, INT32, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__wake_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__bulk, queue, INT4, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__bulk, count, INT4, INT32, 0), JOBQ_PG__COLS_END};

/* ---- >>columns: those of workers' statements and of messages --------------------------------- */

#define JOBQ_PG__ASKS(field, wire, type) JOBQ_PG__COL(NULL, jobq_request, field, wire, type, 0)

static const jobq_pg__list jobq_pg__lanes = JOBQ_PG__LIST_IN(jobq_request, lanes, lane_count, 0);
static const jobq_pg__list jobq_pg__request_kinds =
    JOBQ_PG__LIST_IN(jobq_request, kinds, kind_count, 0);
static const jobq_pg__list jobq_pg__queues = JOBQ_PG__LIST_IN(jobq_request, queues, queue_count, 0);
static const jobq_pg__list jobq_pg__message_queues =
    JOBQ_PG__LIST_IN(jobq_request, message_queues, message_queue_count, 0);
static const jobq_pg__list jobq_pg__settled =
    JOBQ_PG__LIST_IN(jobq_request, settled, settled_count, 0);
static const jobq_pg__list jobq_pg__exchange =
    JOBQ_PG__LIST_IN(jobq_request, asks, ask_count, 0);
static const jobq_pg__list jobq_pg__tally_queues =
    JOBQ_PG__LIST_IN(jobq_request, tally_queues, tally_count, 0);
static const jobq_pg__list jobq_pg__tally_kinds =
    JOBQ_PG__LIST_IN(jobq_request, tally_kinds, tally_count, 0);
static const jobq_pg__list jobq_pg__totals =
    JOBQ_PG__LIST_IN(jobq_request, totals, total_count, 0);
static const jobq_pg__list jobq_pg__one_partition = {
    offsetof(jobq_request, partition_id), SIZE_MAX, 8, 1, false, 0};
static const jobq_pg__list jobq_pg__one_claim = {offsetof(jobq_request, claim), SIZE_MAX, 8, 1,
                                                 false, 0};

static const jobq_pg__col jobq_pg__claim_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64),
    JOBQ_PG__ASKS(claim, INT8, INT64),
    JOBQ_PG__ASKS(limit, INT4, INT32),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, queue, INT4, INT32, 0),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, priority, INT2, INT16, 0),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, stage, INT2, INT16, 0),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, after_at_us, TIMESTAMPTZ, TIMESTAMPTZ, 0),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, after_id, INT8, INT64, 0),
    {{NULL, JOBQ_PG_INT32, 0, offsetof(jobq_request, every_kind), JOBQ_PG__LIST_UNLESS, NULL},
     JOBQ_PG__INT4, &jobq_pg__request_kinds, NULL},
    JOBQ_PG__ASKS(suspects, BOOL, BOOL),
    JOBQ_PG__ASKS(alone, BOOL, BOOL),
    JOBQ_PG__ASKS(look, BOOL, BOOL),
    JOBQ_PG__ASKS(relaxed, BOOL, BOOL),
    JOBQ_PG__ASKS(bytes, INT8, INT64),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, lined, BOOL, BOOL, JOBQ_PG__ZEROS),
    JOBQ_PG__COL(NULL, jobq_request, quantum, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, low_id, INT8, INT64, JOBQ_PG__ZEROS),
    JOBQ_PG__LIST(NULL, lanes, jobq_lane, until_at_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG__ZEROS),
    JOBQ_PG__COLS_END};

/* A row of a claim: a job or, if id is 0, what the claim saw: suspect, alone, due_us and, in
 * columns of their own, jobq_pg__saw. */
typedef struct jobq_pg__claim_row {
    jobq_job job;
    jobq_str payload, headers;
    bool payload_bytes;
    int64_t due_us;
} jobq_pg__claim_row;

#define JOBQ_PG__JOB(name, field, wire, type) \
    JOBQ_PG__COL(name, jobq_pg__claim_row, field, wire, type, 0)
/* The columns for the handler come first; they are read when the job runs. */
#define JOBQ_PG__HANDED                                                                            \
    JOBQ_PG__JOB("payload", payload, JSONB, JSON),                                                 \
        JOBQ_PG__COL_WHEN("bytes", jobq_pg__claim_row, payload, BYTEA, BYTES, JOBQ_PG__IF,         \
                          payload_bytes),                                                          \
        JOBQ_PG__JOB("headers", headers, JSONB, JSON)
static const jobq_pg__col jobq_pg__handed_out[] = {JOBQ_PG__HANDED, JOBQ_PG__COLS_END};
#define JOBQ_PG__CLAIMED                                                                           \
    JOBQ_PG__HANDED,                                                                               \
    JOBQ_PG__JOB("id", job.id, INT8, INT64),                                                       \
    JOBQ_PG__JOB("run_at", job.run_at_us, TIMESTAMPTZ, TIMESTAMPTZ),                               \
    JOBQ_PG__JOB("enqueued_at", job.enqueued_at_us, TIMESTAMPTZ, TIMESTAMPTZ),                     \
    JOBQ_PG__JOB("timeout_us", job.timeout_us, INT8, INT64),                                       \
    JOBQ_PG__JOB("queue_id", job.queue, INT4, INT32),                                              \
    JOBQ_PG__JOB("kind_id", job.kind, INT4, INT32),                                                \
    JOBQ_PG__JOB("attempt", job.attempt, INT4, INT32),                                             \
    JOBQ_PG__JOB("crash", job.crash, INT4, INT32),                                                 \
    JOBQ_PG__JOB("max_attempts", job.max_attempts, INT4, INT32),                                   \
    JOBQ_PG__JOB("priority", job.priority, INT2, INT16),                                           \
    JOBQ_PG__JOB("stage", job.stage, INT2, INT16),                                                 \
    JOBQ_PG__JOB("stages", job.stages, INT2, INT16),                                               \
    JOBQ_PG__JOB("suspect", job.suspect, BOOL, BOOL),                                              \
    JOBQ_PG__JOB("alone", job.alone, BOOL, BOOL),                                                  \
    JOBQ_PG__JOB("due_us", due_us, INT8, INT64),                                                   \
    JOBQ_PG__JOB("line", job.line, INT8, INT64)
static const jobq_pg__col jobq_pg__claimed_out[] = {JOBQ_PG__CLAIMED, JOBQ_PG__COLS_END};

/* What a claim saw in lines: the numbers of its walks and stretches, one after the other. */
#define JOBQ_PG__WALK 3
#define JOBQ_PG__STRETCH 7
typedef struct jobq_pg__saw {
    int32_t walks_count, stretches_count;
    int64_t walks[JOBQ_LOOP_QUEUES * JOBQ_PG__WALK];
    int64_t stretches[JOBQ_STRETCHES_MAX * JOBQ_PG__STRETCH];
} jobq_pg__saw;

static const jobq_pg__list jobq_pg__saw_walks = JOBQ_PG__LIST_IN(
    jobq_pg__saw, walks, walks_count, JOBQ_LOOP_QUEUES * JOBQ_PG__WALK);
static const jobq_pg__list jobq_pg__saw_stretches = JOBQ_PG__LIST_IN(
    jobq_pg__saw, stretches, stretches_count, JOBQ_STRETCHES_MAX * JOBQ_PG__STRETCH);

#define JOBQ_PG__SAW                                                                               \
    JOBQ_PG__ITEMS("walks", saw_walks, INT8, INT64, 0),                                            \
    JOBQ_PG__ITEMS("stretches", saw_stretches, INT8, INT64, 0)
static const jobq_pg__col jobq_pg__saw_out[] = {JOBQ_PG__SAW, JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__claim_out[] = {JOBQ_PG__CLAIMED, JOBQ_PG__SAW,
                                                  JOBQ_PG__COLS_END};
#define JOBQ_PG__COUNT(cols) ((int)(sizeof(cols) / sizeof(cols)[0]) - 1)
#define JOBQ_PG__CLAIM_WIDTH JOBQ_PG__COUNT(jobq_pg__claim_out)

static const jobq_pg__col jobq_pg__recover_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__ASKS(claim, INT8, INT64),
    JOBQ_PG__ASKS(limit, INT4, INT32), JOBQ_PG__COLS_END};

/* The arguments of set_aside: a job that cannot be claimed, and why. */
typedef struct jobq_pg__aside {
    int64_t job, bytes; /* the job's id; the largest size that a worker can take */
    const char *reason;
} jobq_pg__aside;

static const jobq_pg__col jobq_pg__set_aside_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__aside, job, INT8, INT64, 0),
    JOBQ_PG__COL(NULL, jobq_pg__aside, bytes, INT8, INT64, 0),
    JOBQ_PG__COL(NULL, jobq_pg__aside, reason, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

/* An ending with its error text and payload. */
typedef struct jobq_pg__end_row {
    jobq_ending of;
    jobq_pg_ending with;
    int32_t group; /* at a claim's first ending: the number of its endings; else 0 */
} jobq_pg__end_row;

typedef struct jobq_pg__ends {
    jobq_pg__end_row *rows;
    int32_t count;
} jobq_pg__ends;

static int64_t jobq_pg__end_state(const void *row)
{
    return jobq_enum_name(JOBQ_ENUM_STATE_LETTER,
                          ((const jobq_pg__end_row *)row)->of.decision.state)[0];
}

static int64_t jobq_pg__end_delay(const void *row)
{
    int64_t us = ((const jobq_pg__end_row *)row)->of.decision.delay_us;

    return us == JOBQ_NEVER ? -1 : us;
}

static const jobq_pg__list jobq_pg__end_list = JOBQ_PG__LIST_APART(jobq_pg__ends, rows, count);
static const jobq_pg__list jobq_pg__groups = {
    offsetof(jobq_pg__ends, rows), offsetof(jobq_pg__ends, count), sizeof(jobq_pg__end_row), 0,
    true, offsetof(jobq_pg__end_row, group)};

#define JOBQ_PG__GROUP(field, wire, type) \
    JOBQ_PG__LIST(NULL, groups, jobq_pg__end_row, field, wire, type, 0)
static const jobq_pg__col jobq_pg__complete_in[] = {
    JOBQ_PG__GROUP(of.worker, INT8, INT64), JOBQ_PG__GROUP(of.claim, INT8, INT64),
    JOBQ_PG__GROUP(group, INT4, INT32),
    JOBQ_PG__LIST(NULL, end_list, jobq_pg__end_row, of.job, INT8, INT64, 0), JOBQ_PG__COLS_END};

#define JOBQ_PG__END_COLS(C, CW, CF)                                                               \
    C(of.worker, INT8, INT64), C(of.claim, INT8, INT64), C(of.job, INT8, INT64),                   \
    CF(end_state, CHAR), C(of.decision.stage, INT2, INT16), C(of.decision.attempt, INT4, INT32),   \
    C(of.decision.crash, INT4, INT32), C(of.decision.suspect, BOOL, BOOL), CF(end_delay, INT8),    \
    C(with.error, TEXT, TEXT), CW(with.payload, JSONB, JSON, JOBQ_PG__UNLESS),                     \
    CW(with.payload, BYTEA, BYTES, JOBQ_PG__IF)
/* NULL if no attempt has logged. */
#define JOBQ_PG__END_LOGS \
    JOBQ_PG__LIST("p_logs", end_list, jobq_pg__end_row, with.log, JSONB, JSON, JOBQ_PG__SPARSE)
#define JOBQ_PG__ENDS(field, wire, type) \
    JOBQ_PG__LIST(NULL, end_list, jobq_pg__end_row, field, wire, type, 0)
#define JOBQ_PG__ENDS_WHEN(field, wire, type, flags) \
    JOBQ_PG__LIST_WHEN(NULL, end_list, jobq_pg__end_row, field, wire, type, flags, \
                       with.payload_bytes)
#define JOBQ_PG__ENDS_OF(function, wire) JOBQ_PG__LIST_OF(NULL, end_list, function, wire, 0)
#define JOBQ_PG__END(field, wire, type) \
    JOBQ_PG__COL(NULL, jobq_pg__end_row, field, wire, type, 0)
#define JOBQ_PG__END_WHEN(field, wire, type, flags) \
    JOBQ_PG__COL_WHEN(NULL, jobq_pg__end_row, field, wire, type, flags, with.payload_bytes)
#define JOBQ_PG__END_OF(function, wire) JOBQ_PG__COL_OF(NULL, function, wire)

static const jobq_pg__col jobq_pg__complete_with_in[] = {
    JOBQ_PG__ENDS(of.worker, INT8, INT64), JOBQ_PG__ENDS(of.claim, INT8, INT64),
    JOBQ_PG__ENDS(of.job, INT8, INT64),
    JOBQ_PG__ENDS_WHEN(with.payload, JSONB, JSON, JOBQ_PG__UNLESS),
    JOBQ_PG__ENDS_WHEN(with.payload, BYTEA, BYTES, JOBQ_PG__IF), JOBQ_PG__END_LOGS,
    JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__settle_in[] = {
    JOBQ_PG__END_COLS(JOBQ_PG__ENDS, JOBQ_PG__ENDS_WHEN, JOBQ_PG__ENDS_OF), JOBQ_PG__END_LOGS,
    JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__settle_here_in[] = {
    JOBQ_PG__END_COLS(JOBQ_PG__END, JOBQ_PG__END_WHEN, JOBQ_PG__END_OF),
    JOBQ_PG__END(with.log, JSONB, JSON), JOBQ_PG__COLS_END};

/* The arguments of wait_here. */
typedef struct jobq_pg__wait_row {
    jobq_pg__linked linked; /* must be first: its columns are used */
    jobq_pg__end_row end;
} jobq_pg__wait_row;

#define JOBQ_PG__WAITING(field, wire, type) \
    JOBQ_PG__COL(NULL, jobq_pg__wait_row, end.field, wire, type, 0)
static const jobq_pg__col jobq_pg__wait_here_in[] = {
    JOBQ_PG__WAITING(of.worker, INT8, INT64), JOBQ_PG__WAITING(of.claim, INT8, INT64),
    JOBQ_PG__WAITING(of.job, INT8, INT64), JOBQ_PG__WAITING(of.decision.stage, INT2, INT16),
    JOBQ_PG__WAITING(of.decision.attempt, INT4, INT32),
    JOBQ_PG__WAITING(of.decision.crash, INT4, INT32),
    JOBQ_PG__WAITING(of.decision.suspect, BOOL, BOOL), JOBQ_PG__WAITING(with.log, JSONB, JSON),
    JOBQ_PG__EDGE(after.job, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__EDGE(after.name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__EDGE(after.flow, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__EDGE(on_end, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

/* The arguments and answers about a step of a claimed job, or a signal. */
typedef struct jobq_pg__stepping {
    jobq_job job;
    const char *name;
    jobq_str value;
    int64_t delay_us;
    bool done; /* the step; the signal was sent */
} jobq_pg__stepping;

#define JOBQ_PG__STEP(name, field, wire, type, flags) \
    JOBQ_PG__COL(name, jobq_pg__stepping, field, wire, type, flags)
#define JOBQ_PG__STEP_OF_JOB \
    JOBQ_PG__STEP(NULL, job.worker, INT8, INT64, 0), \
    JOBQ_PG__STEP(NULL, job.claim, INT8, INT64, 0), \
    JOBQ_PG__STEP(NULL, job.id, INT8, INT64, 0), \
    JOBQ_PG__STEP(NULL, name, TEXT, TEXT, JOBQ_PG__CSTR)
static const jobq_pg__col jobq_pg__step_of_claim_in[] = {JOBQ_PG__STEP_OF_JOB, JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__step_of_claim_out[] = {
    JOBQ_PG__STEP("done", done, BOOL, BOOL, 0), JOBQ_PG__STEP("value", value, TEXT, TEXT, 0),
    JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__step_done_here_in[] = {
    JOBQ_PG__STEP_OF_JOB, JOBQ_PG__STEP(NULL, value, JSONB, JSON, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__signal_of_claim_in[] = {
    JOBQ_PG__STEP_OF_JOB, JOBQ_PG__STEP(NULL, delay_us, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__signal_of_claim_out[] = {
    JOBQ_PG__STEP("came", done, BOOL, BOOL, 0), JOBQ_PG__STEP("payload", value, TEXT, TEXT, 0),
    JOBQ_PG__STEP("delay_us", delay_us, INT8, INT64, JOBQ_PG_ZERO), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__signal_in[] = {
    JOBQ_PG__STEP(NULL, name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__STEP(NULL, value, JSONB, JSON, 0), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__exception_out[] = {
    JOBQ_PG__COL("id", jobq_exception, job, INT8, INT64, 0),
    JOBQ_PG__COL("worker", jobq_exception, worker, INT8, INT64, 0),
    JOBQ_PG__COL("claim", jobq_exception, claim, INT8, INT64, 0),
    JOBQ_PG__COL("answer", jobq_exception, error, CHAR, INT32, 0), JOBQ_PG__COLS_END};

/* The arguments and the answer of register. */
typedef struct jobq_pg__registering {
    int64_t worker, lease_us;
    const char *name;
    const char *const *queues;
    const int32_t *kind_queues; /* of each kind: the index of its queue in queues, from 1 */
    const char *const *kinds;
    int32_t queue_count, kind_count, library;
    const char *host; /* NULL and 0: unknown */
    int32_t pid;
    int32_t queue_ids[JOBQ_LOOP_QUEUES];
    int32_t kind_ids[JOBQ_LOOP_KINDS];
} jobq_pg__registering;

static const jobq_pg__list jobq_pg__register_queues =
    JOBQ_PG__LIST_APART(jobq_pg__registering, queues, queue_count);
static const jobq_pg__list jobq_pg__register_kind_queues =
    JOBQ_PG__LIST_APART(jobq_pg__registering, kind_queues, kind_count);
static const jobq_pg__list jobq_pg__register_kinds =
    JOBQ_PG__LIST_APART(jobq_pg__registering, kinds, kind_count);
static const jobq_pg__list jobq_pg__queue_ids =
    JOBQ_PG__LIST_IN(jobq_pg__registering, queue_ids, queue_count, JOBQ_LOOP_QUEUES);
static const jobq_pg__list jobq_pg__kind_ids =
    JOBQ_PG__LIST_IN(jobq_pg__registering, kind_ids, kind_count, JOBQ_LOOP_KINDS);

static const jobq_pg__col jobq_pg__register_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__registering, worker, INT8, INT64, 0),
    JOBQ_PG__COL(NULL, jobq_pg__registering, name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__registering, lease_us, INT8, INT64, 0),
    JOBQ_PG__ITEMS(NULL, register_queues, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__ITEMS(NULL, register_kind_queues, INT4, INT32, 0),
    JOBQ_PG__ITEMS(NULL, register_kinds, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__registering, library, INT4, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__registering, host, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__registering, pid, INT4, INT32, JOBQ_PG_ZERO), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__register_out[] = {
    JOBQ_PG__ITEMS("queue_ids", queue_ids, INT4, INT32, 0),
    JOBQ_PG__ITEMS("kind_ids", kind_ids, INT4, INT32, 0), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__policies_in[] = {
    JOBQ_PG__ITEMS(NULL, queues, INT4, INT32, 0), JOBQ_PG__ASKS(worker, INT8, INT64),
    JOBQ_PG__COLS_END};

/* The policy of a queue or a kind, and its backoff curve as text. */
typedef struct jobq_pg__policy_row {
    jobq_queue_policy of;
    jobq_str curve;
    int32_t kind; /* 0: of a queue */
} jobq_pg__policy_row;

#define JOBQ_PG__POLICY(name, field, wire, type) \
    JOBQ_PG__COL(name, jobq_pg__policy_row, field, wire, type, 0)
static const jobq_pg__col jobq_pg__policy_out[] = {
    JOBQ_PG__POLICY("max_attempts", of.policy.max_attempts, INT4, INT32),
    JOBQ_PG__POLICY("max_crashes", of.policy.max_crashes, INT4, INT32),
    JOBQ_PG__POLICY("backoff_curve", curve, TEXT, TEXT),
    JOBQ_PG__POLICY("backoff_base_us", of.policy.backoff.base_us, INT8, INT64),
    JOBQ_PG__POLICY("backoff_cap_us", of.policy.backoff.cap_us, INT8, INT64),
    JOBQ_PG__POLICY("backoff_floor_us", of.policy.backoff.floor_us, INT8, INT64),
    JOBQ_PG__POLICY("backoff_jitter_permille", of.policy.backoff.jitter_permille, INT4, INT32),
    JOBQ_PG__POLICY("timeout_us", of.policy.timeout_us, INT8, INT64),
    JOBQ_PG__POLICY("stages_max", of.stages_max, INT2, INT16),
    JOBQ_PG__POLICY("attempts_span_stages", of.policy.attempts_span_stages, BOOL, BOOL),
    JOBQ_PG__POLICY("paused", of.paused, BOOL, BOOL),
    JOBQ_PG__POLICY("priority_min", of.priority_min, INT2, INT16),
    JOBQ_PG__POLICY("kind_id", kind, INT4, INT32),
    JOBQ_PG__POLICY("lines", of.lines, BOOL, BOOL),
    JOBQ_PG__POLICY("ageing", of.ageing, BOOL, BOOL),
    JOBQ_PG__POLICY("hold_us", of.hold_us, INT8, INT64), JOBQ_PG__COLS_END};

/* NULL if nothing was counted: a kind 0 is one, too. */
#define JOBQ_PG__TALLIES \
    JOBQ_PG__COL("p_tally", jobq_request, tally, INT8, INT64, JOBQ_PG_ZERO), \
    JOBQ_PG__ITEMS("p_tally_queues", tally_queues, INT4, INT32, JOBQ_PG__SPARSE), \
    JOBQ_PG__ITEMS("p_tally_kinds", tally_kinds, INT4, INT32, JOBQ_PG__SPARSE), \
    JOBQ_PG__ITEMS("p_totals", totals, INT8, INT64, JOBQ_PG__SPARSE)

static const jobq_pg__col jobq_pg__heartbeat_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__ASKS(lease_us, INT8, INT64),
    JOBQ_PG__ITEMS(NULL, settled, INT8, INT64, 0),
    JOBQ_PG__COL(NULL, jobq_request, exchange, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__LIST(NULL, exchange, jobq_ask, quota, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__LIST(NULL, exchange, jobq_ask, running, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__LIST(NULL, exchange, jobq_ask, wanted, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__LIST(NULL, exchange, jobq_ask, tokens, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__LIST(NULL, exchange, jobq_ask, returned, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__LIST(NULL, exchange, jobq_ask, needed, INT4, INT32, JOBQ_PG__SPARSE),
    JOBQ_PG__TALLIES, JOBQ_PG__COLS_END};

/* How far a running job is. */
typedef struct jobq_pg__progress_row {
    int64_t worker, claim, job;
    int32_t permille;
    const char *note; /* NULL: none */
} jobq_pg__progress_row;

/* What a heartbeat carries besides its request: the progress that changed. */
typedef struct jobq_pg__progresses {
    const jobq_pg__progress_row *rows;
    int32_t count;
} jobq_pg__progresses;

static const jobq_pg__list jobq_pg__progress_rows =
    JOBQ_PG__LIST_APART(jobq_pg__progresses, rows, count);

#define JOBQ_PG__PROGRESS(name, field, wire, type, flags) \
    JOBQ_PG__LIST(name, progress_rows, jobq_pg__progress_row, field, wire, type, \
                  JOBQ_PG__SPARSE | (flags))
static const jobq_pg__col jobq_pg__progress_in[] = {
    JOBQ_PG__PROGRESS("p_progress_claims", claim, INT8, INT64, 0),
    JOBQ_PG__PROGRESS("p_progress_jobs", job, INT8, INT64, 0),
    JOBQ_PG__PROGRESS("p_permilles", permille, INT4, INT32, 0),
    JOBQ_PG__PROGRESS("p_notes", note, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

#define JOBQ_PG__NEAR(field, wire, type, flags) \
    JOBQ_PG__COL(NULL, jobq_pg__progress_row, field, wire, type, flags)
static const jobq_pg__col jobq_pg__progress_of_claim_in[] = {
    JOBQ_PG__NEAR(worker, INT8, INT64, 0), JOBQ_PG__NEAR(claim, INT8, INT64, 0),
    JOBQ_PG__NEAR(job, INT8, INT64, 0), JOBQ_PG__NEAR(permille, INT4, INT32, 0),
    JOBQ_PG__NEAR(note, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

static const jobq_pg__list jobq_pg__cancels =
    JOBQ_PG__LIST_IN(jobq_news, cancels, cancel_count, JOBQ_LOOP_SLOTS);
static const jobq_pg__list jobq_pg__news_kinds =
    JOBQ_PG__LIST_IN(jobq_news, kinds, kind_count, JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX);
static const jobq_pg__list jobq_pg__parked = {offsetof(jobq_news, parked_kind), SIZE_MAX, 4, 1,
                                              false, 0};
static const jobq_pg__list jobq_pg__late =
    JOBQ_PG__LIST_IN(jobq_news, late, late_count, JOBQ_LOOP_WATCHED);
static const jobq_pg__list jobq_pg__alone =
    JOBQ_PG__LIST_IN(jobq_news, alone, alone_count, JOBQ_LOOP_QUEUES);

static const jobq_pg__list jobq_pg__permits =
    JOBQ_PG__LIST_IN(jobq_news, permits, permit_count, JOBQ_LOOP_QUOTAS);

#define JOBQ_PG__PERMIT(name, field, wire, type) \
    JOBQ_PG__LIST(name, permits, jobq_permit, field, wire, type, 0)
#define JOBQ_PG__NEWS(name, field, wire, type) JOBQ_PG__COL(name, jobq_news, field, wire, type, 0)
static const jobq_pg__col jobq_pg__news_out[] = {
    JOBQ_PG__NEWS("alive", alive, BOOL, BOOL), JOBQ_PG__NEWS("policy", policy, INT8, INT64),
    JOBQ_PG__NEWS("suspects", suspects, BOOL, BOOL), JOBQ_PG__NEWS("written", written, BOOL, BOOL),
    JOBQ_PG__NEWS("now_at", store_now_us, TIMESTAMPTZ, TIMESTAMPTZ),
    JOBQ_PG__ITEMS("cancel", cancels, INT8, INT64, 0),
    JOBQ_PG__ITEMS("kinds", news_kinds, INT4, INT32, 0),
    JOBQ_PG__ITEMS("parked", parked, INT4, INT32, 0),
    JOBQ_PG__LIST("late", late, jobq_holder, worker, INT8, INT64, 0),
    JOBQ_PG__LIST("late_beats", late, jobq_holder, beat, INT8, INT64, 0),
    JOBQ_PG__LIST("late_leases_us", late, jobq_holder, lease_us, INT8, INT64, 0),
    JOBQ_PG__ITEMS("alone_queues", alone, INT4, INT32, 0),
    JOBQ_PG__NEWS("overdue", overdue, INT4, INT32),
    JOBQ_PG__NEWS("every_kind", every_kind, BOOL, BOOL),
    JOBQ_PG__NEWS("tick_us", tick_us, INT8, INT64),
    JOBQ_PG__PERMIT("quotas", quota, INT4, INT32),
    JOBQ_PG__PERMIT("quota_queues", queue, INT4, INT32),
    JOBQ_PG__PERMIT("quota_kinds", kind, INT4, INT32),
    JOBQ_PG__PERMIT("maxima", most, INT4, INT32), JOBQ_PG__PERMIT("held", held, INT4, INT32),
    JOBQ_PG__PERMIT("chunks", chunk, INT4, INT32),
    JOBQ_PG__PERMIT("tokens", tokens, INT4, INT32),
    JOBQ_PG__PERMIT("waits_us", wait_us, INT8, INT64), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__rescue_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__ASKS(beat, INT8, INT64),
    JOBQ_PG__ASKS(limit, INT4, INT32), JOBQ_PG__COLS_END};

/* A row of a rescue's answer: what the loop is told, and a job that failed (id 0: none). */
typedef struct jobq_pg__rescue_row {
    bool dead, more;
    int32_t rescued;
    jobq_job job;
    jobq_str queue, kind, error;
} jobq_pg__rescue_row;

#define JOBQ_PG__RESCUED(name, field, wire, type) \
    JOBQ_PG__COL(name, jobq_pg__rescue_row, field, wire, type, 0)
static const jobq_pg__col jobq_pg__rescue_out[] = {
    JOBQ_PG__RESCUED("dead", dead, BOOL, BOOL),
    JOBQ_PG__RESCUED("rescued", rescued, INT4, INT32),
    JOBQ_PG__RESCUED("more", more, BOOL, BOOL),
    JOBQ_PG__RESCUED("id", job.id, INT8, INT64),
    JOBQ_PG__RESCUED("queue", queue, TEXT, TEXT),
    JOBQ_PG__RESCUED("kind", kind, TEXT, TEXT),
    JOBQ_PG__RESCUED("attempt", job.attempt, INT4, INT32),
    JOBQ_PG__RESCUED("crash", job.crash, INT4, INT32),
    JOBQ_PG__RESCUED("stage", job.stage, INT2, INT16),
    JOBQ_PG__RESCUED("error", error, TEXT, TEXT),
    JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__sleep_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__ITEMS(NULL, queues, INT4, INT32, 0),
    JOBQ_PG__ASKS(asleep, BOOL, BOOL), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__unpark_in[] = {
    JOBQ_PG__ASKS(id, INT4, INT64), JOBQ_PG__ASKS(limit, INT4, INT32), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__tick_in[] = {
    JOBQ_PG__ITEMS(NULL, queues, INT4, INT32, 0), JOBQ_PG__ASKS(limit, INT4, INT32),
    JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__tick_out[] = {
    JOBQ_PG__COL("fired", jobq_answer, count, INT4, INT32, 0),
    JOBQ_PG__COL("due_us", jobq_answer, due_us, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__remains_in[] = {
    JOBQ_PG__ITEMS(NULL, queues, INT4, INT32, 0),
    JOBQ_PG__ITEMS(NULL, message_queues, INT4, INT32, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__prune_in[] = {
    JOBQ_PG__ASKS(limit, INT4, INT32), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__deregister_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__TALLIES, JOBQ_PG__COLS_END};

/* -- columns of statements about messages -- */

#ifndef JOBQ_PG_NO_OUTBOX
/* The arguments of outbox_enqueue_many and outbox_queue. */
typedef struct jobq_pg__posting {
    const char *queue;
    const jobq_pg_message *messages;
    int32_t count;
    bool quiet;
    int64_t lowest, highest, largest; /* partition numbers; bytes of the largest message */
} jobq_pg__posting;

/* A message has either the number of its partition or a hash that selects it. */
static int64_t jobq_pg__message_number(const void *row)
{
    const jobq_pg_message *m = (const jobq_pg_message *)row;

    return m->order_key != NULL ? JOBQ_PG__NULL : m->partition;
}

static int64_t jobq_pg__message_hash(const void *row)
{
    const jobq_pg_message *m = (const jobq_pg_message *)row;

    if (m->order_key == NULL) return JOBQ_PG__NULL;
    return jobq_partition_of(jobq_str_from(m->order_key), 65536);
}

static int64_t jobq_pg__message_size(const void *row)
{
    const jobq_pg_message *m = (const jobq_pg_message *)row;

    return (int64_t)(m->payload.len + m->headers.len + jobq_pg__trace_size(&m->trace));
}

static const jobq_pg__list jobq_pg__messages =
    JOBQ_PG__LIST_APART(jobq_pg__posting, messages, count);

/* A message's content; a COPY row ends with the same columns. */
#define JOBQ_PG__MESSAGE_COLS(C, CW)                                                               \
    C(type, TEXT, TEXT, JOBQ_PG__CSTR),                                                            \
    CW(payload, JSONB, JSON, JOBQ_PG__UNLESS | JOBQ_PG__EXACT),                                    \
    CW(payload, BYTEA, BYTES, JOBQ_PG__IF | JOBQ_PG__EXACT),                                       \
    CW(headers, JSONB, JSON, JOBQ_PG__EXACT)
#define JOBQ_PG__MESSAGE(field, wire, type, flags) \
    JOBQ_PG__COL(NULL, jobq_pg_message, field, wire, type, flags)
#define JOBQ_PG__MESSAGE_WHEN(field, wire, type, flags) \
    JOBQ_PG__COL_WHEN(NULL, jobq_pg_message, field, wire, type, flags, payload_bytes)
#define JOBQ_PG__MESSAGES(field, wire, type, flags) \
    JOBQ_PG__LIST(NULL, messages, jobq_pg_message, field, wire, type, (flags) | JOBQ_PG__SPARSE)
#define JOBQ_PG__MESSAGES_WHEN(field, wire, type, flags) \
    JOBQ_PG__LIST_WHEN(NULL, messages, jobq_pg_message, field, wire, type, \
                       (flags) | JOBQ_PG__SPARSE, payload_bytes)

static const jobq_pg__col jobq_pg__messages_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__posting, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__LIST_OF(NULL, messages, message_number, INT4, JOBQ_PG__SPARSE),
    JOBQ_PG__LIST_OF(NULL, messages, message_hash, INT4, JOBQ_PG__SPARSE),
    JOBQ_PG__MESSAGE_COLS(JOBQ_PG__MESSAGES, JOBQ_PG__MESSAGES_WHEN),
    JOBQ_PG__MESSAGES(key, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__posting, count, INT4, INT32, 0),
    JOBQ_PG__COL(NULL, jobq_pg__posting, quiet, BOOL, BOOL, JOBQ_PG__NOT), JOBQ_PG__COLS_END};

#define JOBQ_PG__MESSAGE_HEAD                                                                      \
    JOBQ_PG__MESSAGE(queue, TEXT, TEXT, JOBQ_PG__CSTR),                                            \
    JOBQ_PG__COL_OF(NULL, message_number, INT4), JOBQ_PG__COL_OF(NULL, message_hash, INT4),        \
    JOBQ_PG__MESSAGE_COLS(JOBQ_PG__MESSAGE, JOBQ_PG__MESSAGE_WHEN)
static const jobq_pg__col jobq_pg__message_in[] = {
    JOBQ_PG__MESSAGE_HEAD, JOBQ_PG__MESSAGE(key, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__MESSAGE(quiet, BOOL, BOOL, JOBQ_PG__NOT), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__message_direct_in[] = {
    JOBQ_PG__MESSAGE_HEAD, JOBQ_PG__MESSAGE(quiet, BOOL, BOOL, JOBQ_PG__NOT),
    JOBQ_PG__COL_OF(NULL, message_size, INT8), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__message_copy[] = {
    JOBQ_PG__MESSAGE_COLS(JOBQ_PG__MESSAGE, JOBQ_PG__MESSAGE_WHEN), JOBQ_PG__COLS_END};

#define JOBQ_PG__WRITTEN(name, field, wire, type) \
    JOBQ_PG__COL(name, jobq_pg__written, field, wire, type, 0)
#define JOBQ_PG__REFUSAL                                                                           \
    JOBQ_PG__WRITTEN("refused", refused, TEXT, TEXT), JOBQ_PG__WRITTEN("code", code, TEXT, TEXT)
static const jobq_pg__col jobq_pg__messages_out[] = {
    JOBQ_PG__ITEMS("ids", ids, INT8, INT64, 0), JOBQ_PG__REFUSAL, JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__message_out[] = {
    JOBQ_PG__WRITTEN("id", id, INT8, INT64), JOBQ_PG__REFUSAL,
    JOBQ_PG__WRITTEN("existed", existed, BOOL, BOOL), JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__outbox_queue_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__posting, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL(NULL, jobq_pg__posting, lowest, INT8, INT64, 0),
    JOBQ_PG__COL(NULL, jobq_pg__posting, highest, INT8, INT64, 0),
    JOBQ_PG__COL(NULL, jobq_pg__posting, largest, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__outbox_queue_out[] = {
    JOBQ_PG__WRITTEN("id", id, INT4, INT64), JOBQ_PG__REFUSAL,
    JOBQ_PG__WRITTEN("partitions", partitions, INT4, INT32), JOBQ_PG__COLS_END};

/* The arguments and the answer of outbox_register and outbox_grow. */
typedef struct jobq_pg__outbox {
    const char *queue;
    int32_t partitions, queue_id;
    bool anyway;
} jobq_pg__outbox;

#define JOBQ_PG__OUTBOX(name, field, wire, type, flags) \
    JOBQ_PG__COL(name, jobq_pg__outbox, field, wire, type, flags)
static const jobq_pg__col jobq_pg__outbox_register_in[] = {
    JOBQ_PG__OUTBOX(NULL, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__OUTBOX(NULL, partitions, INT4, INT32, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__outbox_register_out[] = {
    JOBQ_PG__OUTBOX("queue_id", queue_id, INT4, INT32, 0),
    JOBQ_PG__OUTBOX("partitions", partitions, INT4, INT32, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__outbox_grow_in[] = {
    JOBQ_PG__OUTBOX(NULL, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__OUTBOX(NULL, partitions, INT4, INT32, 0), JOBQ_PG__OUTBOX(NULL, anyway, BOOL, BOOL, 0),
    JOBQ_PG__COLS_END};
#endif /* JOBQ_PG_NO_OUTBOX */

/* One row more than the limit shows that there are more. */
static int64_t jobq_pg__limit_plus_one(const void *row)
{
    return (int64_t)((const jobq_request *)row)->limit + 1;
}

static const jobq_pg__col jobq_pg__look_in[] = {
    JOBQ_PG__ITEMS(NULL, message_queues, INT4, INT32, 0), JOBQ_PG__ASKS(id, INT8, INT64),
    JOBQ_PG__COL_OF(NULL, limit_plus_one, INT4), JOBQ_PG__ASKS(sweep, BOOL, BOOL),
    JOBQ_PG__ASKS(below_from, INT8, INT64),
    JOBQ_PG__COL(NULL, jobq_request, below_to, INT8, INT64, JOBQ_PG_ZERO), JOBQ_PG__COLS_END};
#define JOBQ_PG__BACKLOG(name, field, wire, type) \
    JOBQ_PG__COL(name, jobq_backlog, field, wire, type, 0)
static const jobq_pg__col jobq_pg__backlog_out[] = {
    JOBQ_PG__BACKLOG("partition_id", id, INT8, INT64),
    JOBQ_PG__BACKLOG("waiting", waiting, INT8, INT64),
    JOBQ_PG__BACKLOG("due_us", due_us, INT8, INT64),
    JOBQ_PG__BACKLOG("worker", holder.worker, INT8, INT64),
    JOBQ_PG__BACKLOG("claim", holder.claim, INT8, INT64),
    JOBQ_PG__BACKLOG("beat", holder.beat, INT8, INT64),
    JOBQ_PG__BACKLOG("lease_us", holder.lease_us, INT8, INT64),
    JOBQ_PG__BACKLOG("below", below, BOOL, BOOL), JOBQ_PG__BACKLOG("acked", acked, INT8, INT64),
    JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__read_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__ASKS(claim, INT8, INT64),
    JOBQ_PG__ASKS(lease_us, INT8, INT64), JOBQ_PG__ASKS(partition_id, INT8, INT64),
    JOBQ_PG__ASKS(limit, INT4, INT32), JOBQ_PG__ASKS(handed, INT8, INT64),
    JOBQ_PG__ASKS(watched.worker, INT8, INT64), JOBQ_PG__ASKS(watched.claim, INT8, INT64),
    JOBQ_PG__ASKS(watched.beat, INT8, INT64),
    JOBQ_PG__COL(NULL, jobq_request, bytes, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__COL_WHEN(NULL, jobq_request, acked, INT8, INT64, JOBQ_PG__IF, aside),
    JOBQ_PG__ASKS(sweep, BOOL, BOOL), JOBQ_PG__COLS_END};

/* A message that becomes a dead letter. */
typedef struct jobq_pg__dead {
    int64_t seq;
    int32_t attempts;
    const char *reason;
} jobq_pg__dead;

/* The arguments of outbox_ack: an acknowledgement with its texts. */
typedef struct jobq_pg__ack {
    jobq_holder token;
    int64_t partition_id, before, failures, effective, successes, delay_us, bytes;
    jobq_str error;           /* of the message that failed; {NULL, 0}: none */
    jobq_pg__dead *dead;      /* new dead letters, with seqs up to acked */
    int32_t dead_count, limit, tried_count;
    const int64_t *tried;
    int64_t acked;
    bool own; /* sent in the handler's transaction, which must fail if the answer is lost */
    bool relaxed, sweep;
} jobq_pg__ack;

static const jobq_pg__list jobq_pg__ack_tried =
    JOBQ_PG__LIST_APART(jobq_pg__ack, tried, tried_count);
static const jobq_pg__list jobq_pg__ack_dead = JOBQ_PG__LIST_APART(jobq_pg__ack, dead, dead_count);

#define JOBQ_PG__ACK(field, wire, type, flags) \
    JOBQ_PG__COL(NULL, jobq_pg__ack, field, wire, type, flags)
#define JOBQ_PG__DEAD(field, wire, type, flags) \
    JOBQ_PG__LIST(NULL, ack_dead, jobq_pg__dead, field, wire, type, flags)
static const jobq_pg__col jobq_pg__ack_in[] = {
    JOBQ_PG__ACK(token.worker, INT8, INT64, 0), JOBQ_PG__ACK(token.claim, INT8, INT64, 0),
    JOBQ_PG__ACK(token.lease_us, INT8, INT64, 0), JOBQ_PG__ACK(partition_id, INT8, INT64, 0),
    JOBQ_PG__ACK(before, INT8, INT64, 0), JOBQ_PG__ACK(acked, INT8, INT64, 0),
    JOBQ_PG__ITEMS(NULL, ack_tried, INT8, INT64, 0), JOBQ_PG__ACK(failures, INT8, INT64, 0),
    JOBQ_PG__ACK(effective, INT8, INT64, 0), JOBQ_PG__ACK(successes, INT8, INT64, 0),
    JOBQ_PG__ACK(error, TEXT, TEXT, 0), JOBQ_PG__ACK(delay_us, INT8, INT64, 0),
    JOBQ_PG__DEAD(seq, INT8, INT64, 0), JOBQ_PG__DEAD(reason, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__DEAD(attempts, INT4, INT32, 0), JOBQ_PG__ACK(limit, INT4, INT32, 0),
    JOBQ_PG__ACK(own, BOOL, BOOL, 0), JOBQ_PG__ACK(relaxed, BOOL, BOOL, 0),
    JOBQ_PG__ACK(bytes, INT8, INT64, JOBQ_PG_ZERO), JOBQ_PG__ACK(sweep, BOOL, BOOL, 0),
    JOBQ_PG__COLS_END};

/* The answer to a read or an acknowledgement; texts point into result. Owns both pointers. */
typedef struct jobq_pg__portion {
    int32_t answer; /* 'h' held: messages follow; 'i' nothing to read; 'o' another worker holds it;
                       'w' not due yet; 'b' busy; 'l' lost, nothing written; 'a' the next message
                       was set aside */
    jobq_reading of;
    int64_t wait_us;        /* 'w': until due; 'o': the holder's lease */
    jobq_str error;         /* of the last failed delivery */
    int32_t count;
    jobq_message *messages; /* their seqs are cursor.acked + 1, ... */
    PGresult *result;
} jobq_pg__portion;

static const jobq_pg__list jobq_pg__tried = {
    offsetof(jobq_pg__portion, of.cursor.tried), offsetof(jobq_pg__portion, of.cursor.tried_count),
    sizeof(int64_t), JOBQ_TRIED_MAX, false, 0};
static const jobq_pg__list jobq_pg__arrived =
    JOBQ_PG__LIST_APART(jobq_pg__portion, messages, count);

#define JOBQ_PG__PORTION(name, field, wire, type) \
    JOBQ_PG__COL(name, jobq_pg__portion, field, wire, type, 0)
static const jobq_pg__col jobq_pg__reading_out[] = {
    JOBQ_PG__PORTION("answer", answer, CHAR, INT32),
    JOBQ_PG__PORTION("acked", of.cursor.acked, INT8, INT64),
    JOBQ_PG__ITEMS("tried", tried, INT8, INT64, 0),
    JOBQ_PG__PORTION("lost", of.lost, INT8, INT64),
    JOBQ_PG__PORTION("worker", of.holder.worker, INT8, INT64),
    JOBQ_PG__PORTION("claim", of.holder.claim, INT8, INT64),
    JOBQ_PG__PORTION("beat", of.holder.beat, INT8, INT64),
    JOBQ_PG__PORTION("wait_us", wait_us, INT8, INT64),
    JOBQ_PG__PORTION("failures", of.cursor.mode.failures, INT8, INT32),
    JOBQ_PG__PORTION("effective", of.cursor.mode.effective, INT8, INT32),
    JOBQ_PG__PORTION("successes", of.cursor.mode.successes, INT8, INT32),
    JOBQ_PG__PORTION("error", error, TEXT, TEXT),
    JOBQ_PG__PORTION("cut", of.cut, BOOL, BOOL),
    JOBQ_PG__LIST("created_ats", arrived, jobq_message, created_at_us, TIMESTAMPTZ, TIMESTAMPTZ, 0),
    JOBQ_PG__LIST("types", arrived, jobq_message, type, TEXT, TEXT, 0),
    JOBQ_PG__LIST("payloads", arrived, jobq_message, payload, JSONB, JSON, 0),
    JOBQ_PG__LIST_WHEN("bytes", arrived, jobq_message, payload, BYTEA, BYTES, JOBQ_PG__IF,
                       payload_bytes),
    JOBQ_PG__LIST("headers", arrived, jobq_message, headers, JSONB, JSON, 0),
    JOBQ_PG__COLS_END};

static const jobq_pg__col jobq_pg__renew_in[] = {
    JOBQ_PG__ASKS(worker, INT8, INT64), JOBQ_PG__ASKS(lease_us, INT8, INT64),
    JOBQ_PG__ITEMS(NULL, one_partition, INT8, INT64, 0),
    JOBQ_PG__ITEMS(NULL, one_claim, INT8, INT64, 0), JOBQ_PG__COLS_END};
/* The partitions whose lease is lost. A request asks about one. */
typedef struct jobq_pg__losses {
    int64_t ids[1];
    int32_t count;
} jobq_pg__losses;

static const jobq_pg__list jobq_pg__lost = JOBQ_PG__LIST_IN(jobq_pg__losses, ids, count, 1);
static const jobq_pg__col jobq_pg__renew_out[] = {
    JOBQ_PG__ITEMS("_outbox_renew", lost, INT8, INT64, 0), JOBQ_PG__COLS_END};

/* ---- >>operators: columns of operators' statements; running a statement ---------------------- */

/* The arguments of a verb on jobs; count and requested: the answer of cancel. */
typedef struct jobq_pg__changing {
    jobq_pg_filter of;
    const char *state, *target;
    int64_t run_at_us, count, requested;
    int32_t priority;
} jobq_pg__changing;

#define JOBQ_PG__VERB(name, field, wire, type, flags) \
    JOBQ_PG__COL(name, jobq_pg__changing, field, wire, type, flags)
#define JOBQ_PG__FILTER                                                                            \
    JOBQ_PG__VERB("queue", of.queue, TEXT, TEXT, JOBQ_PG__CSTR),                                   \
    JOBQ_PG__VERB("kind", of.kind, TEXT, TEXT, JOBQ_PG__CSTR),                                     \
    JOBQ_PG__VERB("older", of.older_us, INTERVAL, DURATION, JOBQ_PG_ZERO),                         \
    JOBQ_PG__VERB("tags", of.tags, JSONB, JSON, 0),                                                \
    JOBQ_PG__VERB("at_most", of.at_most, INT4, INT32, 0)
/* A verb's columns for one job and for many, with those of its argument, if it has one. */
#define JOBQ_PG__VERB_COLS(verb, column)                                                           \
    static const jobq_pg__col jobq_pg__##verb##_in[] = {                                           \
        JOBQ_PG__VERB("id", of.id, INT8, INT64, 0), column, JOBQ_PG__COLS_END};                    \
    static const jobq_pg__col jobq_pg__##verb##_many_in[] = {JOBQ_PG__FILTER, column,              \
                                                             JOBQ_PG__COLS_END}
JOBQ_PG__VERB_COLS(reschedule, JOBQ_PG__VERB("run_at", run_at_us, TIMESTAMPTZ, TIMESTAMPTZ, 0));
JOBQ_PG__VERB_COLS(prioritize, JOBQ_PG__VERB("priority", priority, INT4, INT32, 0));
JOBQ_PG__VERB_COLS(move, JOBQ_PG__VERB("target", target, TEXT, TEXT, JOBQ_PG__CSTR));
static const jobq_pg__col jobq_pg__id_in[] = {
    JOBQ_PG__VERB("id", of.id, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__parents_in[] = {
    JOBQ_PG__VERB(NULL, of.id, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__flow_many_in[] = {
    JOBQ_PG__VERB("id", of.flow, INT8, INT64, 0),
    JOBQ_PG__VERB("at_most", of.at_most, INT4, INT32, 0), JOBQ_PG__COLS_END};

/* The arguments of flow. */
typedef struct jobq_pg__flow {
    const char *name, *on_failure;
    bool open;
} jobq_pg__flow;

static const jobq_pg__col jobq_pg__flow_in[] = {
    JOBQ_PG__COL("name", jobq_pg__flow, name, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL("on_failure", jobq_pg__flow, on_failure, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COL("open", jobq_pg__flow, open, BOOL, BOOL, 0), JOBQ_PG__COLS_END};

/* The arguments of await and unawait. */
typedef struct jobq_pg__awaiting {
    jobq_pg_int64s ids;
    int64_t channel; /* 0: none */
} jobq_pg__awaiting;

static const jobq_pg__col jobq_pg__await_in[] = {
    JOBQ_PG__COL(NULL, jobq_pg__awaiting, ids, INT8, INT64S, 0),
    JOBQ_PG__COL(NULL, jobq_pg__awaiting, channel, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__explain_out[] = {
    JOBQ_PG__COL("reason", jobq_pg_ending, error, TEXT, TEXT, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__standing_in[] = {
    JOBQ_PG__VERB(NULL, of.id, INT8, INT64, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__many_in[] = {JOBQ_PG__FILTER, JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__state_many_in[] = {
    JOBQ_PG__FILTER, JOBQ_PG__VERB("state", state, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__cancelled_out[] = {
    JOBQ_PG__VERB("cancelled", count, INT4, INT64, 0),
    JOBQ_PG__VERB("requested", requested, INT4, INT64, 0), JOBQ_PG__COLS_END};

/* Limits of a queue that may be NULL: left as they are. 0: none. */
typedef struct jobq_pg__limits {
    jobq_pg_maybe_int32 running, line_running, line_waiting;
    jobq_pg_maybe_bool strict, ageing, paused;
} jobq_pg__limits;

/* The arguments of queue_set. */
typedef struct jobq_pg__queue_args {
    const char *queue, *kind, *curve;
    jobq_pg_queue_desc of;
    int64_t timeout_us;
    bool has_backoff, has_timeout;
    jobq_str jitter;
    char digits[16]; /* the text of jitter */
    jobq_pg_maybe_bool span, history;
    int32_t kind_count;
    jobq_pg__limits limits;
} jobq_pg__queue_args;

static const jobq_pg__list jobq_pg__queue_kinds =
    JOBQ_PG__LIST_APART(jobq_pg__queue_args, of.kinds, kind_count);

#define JOBQ_PG__QUEUE(name, field, wire, type, flags) \
    JOBQ_PG__COL(name, jobq_pg__queue_args, field, wire, type, flags)
#define JOBQ_PG__QUEUE_IF(field, when) \
    JOBQ_PG__COL_WHEN(NULL, jobq_pg__queue_args, field, INTERVAL, DURATION, JOBQ_PG__IF, when)
static const jobq_pg__col jobq_pg__queue_set_in[] = {
    JOBQ_PG__QUEUE(NULL, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE(NULL, of.max_attempts, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE(NULL, of.max_crashes, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE(NULL, curve, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE_IF(of.backoff.base_us, has_backoff),
    JOBQ_PG__QUEUE_IF(of.backoff.cap_us, has_backoff),
    JOBQ_PG__QUEUE_IF(of.backoff.floor_us, has_backoff),
    JOBQ_PG__QUEUE(NULL, jitter, NUMERIC, NUMERIC, 0),
    JOBQ_PG__QUEUE_IF(timeout_us, has_timeout),
    JOBQ_PG__QUEUE(NULL, span, BOOL, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE(NULL, history, BOOL, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE(NULL, of.failed_keep_us, INTERVAL, DURATION, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE(NULL, of.key_keep_us, INTERVAL, DURATION, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE(NULL, of.message_max, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__ITEMS(NULL, queue_kinds, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE(NULL, of.payload_max, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE(NULL, kind, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE(NULL, of.reset, BOOL, BOOL, 0),
    JOBQ_PG__QUEUE(NULL, of.retention, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE("running_max", limits.running, INT4, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE("rate", of.rate, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE("rate_burst", of.rate_burst, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE("line_running_max", limits.line_running, INT4, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE("line_rate", of.line_rate, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__QUEUE("line_rate_burst", of.line_rate_burst, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__QUEUE("line_strict", limits.strict, BOOL, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE("line_waiting_max", limits.line_waiting, INT4, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE("ageing", limits.ageing, BOOL, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG__QUEUE("paused", limits.paused, BOOL, BOOL, JOBQ_PG_NULLABLE), JOBQ_PG__COLS_END};

/* The arguments of line_set and hold. */
typedef struct jobq_pg__line_row {
    const char *queue, *line, *why;
    jobq_pg_line_desc of;
    jobq_pg_maybe_int32 running;
    jobq_pg_maybe_bool strict, paused;
    int64_t until_us;
} jobq_pg__line_row;

#define JOBQ_PG__LINE(name, field, wire, type, flags) \
    JOBQ_PG__COL(name, jobq_pg__line_row, field, wire, type, flags)
static const jobq_pg__col jobq_pg__line_set_in[] = {
    JOBQ_PG__LINE(NULL, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__LINE(NULL, line, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__LINE("running_max", running, INT4, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG__LINE("weight", of.weight, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__LINE("strict", strict, BOOL, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG__LINE("rate", of.rate, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__LINE("rate_burst", of.rate_burst, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__LINE("paused", paused, BOOL, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG__LINE("reset", of.reset, BOOL, BOOL, 0), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__hold_in[] = {
    JOBQ_PG__LINE(NULL, queue, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__LINE(NULL, line, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__LINE(NULL, until_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__LINE(NULL, why, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};

/* The arguments of hold_of_claim: a claimed job, whose line or queue is held. */
typedef struct jobq_pg__holding {
    jobq_job job;
    bool queue;
    int64_t delay_us;
    const char *why;
} jobq_pg__holding;

#define JOBQ_PG__HOLDING(field, wire, type, flags) \
    JOBQ_PG__COL(NULL, jobq_pg__holding, field, wire, type, flags)
static const jobq_pg__col jobq_pg__hold_of_claim_in[] = {
    JOBQ_PG__HOLDING(job.worker, INT8, INT64, 0), JOBQ_PG__HOLDING(job.claim, INT8, INT64, 0),
    JOBQ_PG__HOLDING(job.id, INT8, INT64, 0), JOBQ_PG__HOLDING(queue, BOOL, BOOL, 0),
    JOBQ_PG__HOLDING(delay_us, INT8, INT64, 0), JOBQ_PG__HOLDING(why, TEXT, TEXT, JOBQ_PG__CSTR),
    JOBQ_PG__COLS_END};

#ifndef JOBQ_PG_NO_OUTBOX
/* A choice of dead letters, and the arguments of the verbs on them. */
typedef struct jobq_pg__chosen {
    jobq_pg_scope of;
    int64_t token, timeout_us;
    jobq_pg_int64s ids;
    const char *reason;
} jobq_pg__chosen;

#define JOBQ_PG__LETTER(field, wire, type, flags) \
    JOBQ_PG__COL(NULL, jobq_pg__chosen, field, wire, type, flags)
#define JOBQ_PG__SCOPE                                                                             \
    JOBQ_PG__LETTER(of.queue, TEXT, TEXT, JOBQ_PG__CSTR),                                          \
    JOBQ_PG__COL_WHEN(NULL, jobq_pg__chosen, of.partition, INT4, INT32, JOBQ_PG__IF,              \
                      of.one_partition),                                                           \
    JOBQ_PG__LETTER(of.type, TEXT, TEXT, JOBQ_PG__CSTR)
#define JOBQ_PG__LETTER_IDS                                                                        \
    JOBQ_PG__LETTER(token, INT8, INT64, 0), JOBQ_PG__LETTER(ids, INT8, INT64S, 0)
static const jobq_pg__col jobq_pg__letter_scope_in[] = {
    JOBQ_PG__SCOPE, JOBQ_PG__LETTER(of.limit, INT4, INT32, JOBQ_PG_ZERO), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__letter_replay_in[] = {
    JOBQ_PG__LETTER(token, INT8, INT64, 0), JOBQ_PG__LETTER(timeout_us, INT8, INT64, 0),
    JOBQ_PG__SCOPE, JOBQ_PG__LETTER(of.limit, INT4, INT32, JOBQ_PG_ZERO), JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__letter_resolve_in[] = {JOBQ_PG__LETTER_IDS, JOBQ_PG__COLS_END};
static const jobq_pg__col jobq_pg__letter_reject_in[] = {
    JOBQ_PG__LETTER_IDS, JOBQ_PG__LETTER(reason, TEXT, TEXT, JOBQ_PG__CSTR), JOBQ_PG__COLS_END};
#endif /* JOBQ_PG_NO_OUTBOX */

/* -- the text of a statement -- */

typedef enum jobq_pg__form {
    JOBQ_PG__CALLS, JOBQ_PG__READS_VIEW, JOBQ_PG__READS_ROWS, JOBQ_PG__SAYS
} jobq_pg__form;

static const struct {
    jobq_pg__form form;
    const char *name; /* of the function or the view; SAYS: the text itself */
    const jobq_pg__col *in, *out;
} jobq_pg__specs[JOBQ_PG__STATEMENT_COUNT] = {
#define JOBQ__CALL(id, name, in, out) {JOBQ_PG__CALLS, name, jobq_pg__##in, jobq_pg__##out},
#define JOBQ__VIEW(id, name, in, rows) {JOBQ_PG__READS_VIEW, name, jobq_pg__##in, jobq_pg__none},
#define JOBQ__ROWS(id, name, in, rows) {JOBQ_PG__READS_ROWS, name, jobq_pg__##in, jobq_pg__none},
#define JOBQ__TEXT(id, text, in, out) {JOBQ_PG__SAYS, text, jobq_pg__##in, jobq_pg__##out},
    JOBQ_PG__STATEMENTS(JOBQ__CALL, JOBQ__VIEW, JOBQ__ROWS, JOBQ__TEXT)
#undef JOBQ__CALL
#undef JOBQ__VIEW
#undef JOBQ__ROWS
#undef JOBQ__TEXT
};

#define JOBQ_PG__LETTER_COLUMNS                                                                    \
    "id, partition_id, queue_id, (partition_id OPERATOR(pg_catalog.&) 32767)::integer "            \
    "AS partition, seq, attempts, created_at, failed_at, completed_at, deadline, status, type, "   \
    "error, payload, bytes, headers"

/* Adds a parameter, such as "$1::pg_catalog.int8[]". */
static void jobq_pg__say_param(jobq_pg__params *out, const jobq_pg__col *c, int n)
{
    bool array = c->list != NULL || jobq_pg__is_array(c->of.type);

    jobq_pg__sayf(out, "$%d%s%s", n, jobq_pg__wires[c->wire].cast, array ? "[]" : "");
}

/* Adds a call, such as "jobq.name($1, older => $2)"; *n counts the parameters. */
static void jobq_pg__say_call(jobq_pg__params *out, jobq_pg__statement st, int *n)
{
    const jobq_pg__col *c = jobq_pg__specs[st].in;

    jobq_pg__sayf(out, "jobq.%s(", jobq_pg__specs[st].name);
    for (; c->wire != JOBQ_PG__NOTHING; c++) {
        if (c > jobq_pg__specs[st].in) jobq_pg__say(out, ", ");
        if (c->of.name != NULL) jobq_pg__sayf(out, "%s => ", c->of.name);
        jobq_pg__say_param(out, c, ++*n);
    }
    c = st == JOBQ_PG__HEARTBEAT ? jobq_pg__progress_in : jobq_pg__none;
    for (; c->wire != JOBQ_PG__NOTHING; c++) {
        jobq_pg__sayf(out, ", %s => ", c->of.name);
        jobq_pg__say_param(out, c, ++*n);
    }
    jobq_pg__say(out, ")");
}

/* Adds the columns of the result. A function without any returns a column of its own name. */
static void jobq_pg__say_out(jobq_pg__params *out, jobq_pg__statement st)
{
    const jobq_pg__col *c = jobq_pg__specs[st].out;

    if (c->wire == JOBQ_PG__NOTHING) jobq_pg__say(out, jobq_pg__specs[st].name);
    for (; c->wire != JOBQ_PG__NOTHING; c++) {
        if (c > jobq_pg__specs[st].out) jobq_pg__say(out, ", ");
        jobq_pg__say(out, c->of.name);
    }
}

/* Completes BEAT_CLAIM: a heartbeat and, unless the worker is dead, a claim. */
static void jobq_pg__say_beat(jobq_pg__params *out)
{
    int n = 0;

    jobq_pg__say(out, ", ");
    jobq_pg__say_out(out, JOBQ_PG__HEARTBEAT);
    jobq_pg__say(out, " FROM ");
    jobq_pg__say_call(out, JOBQ_PG__HEARTBEAT, &n);
    jobq_pg__say(out, " LEFT JOIN LATERAL (SELECT * FROM ");
    jobq_pg__say_call(out, JOBQ_PG__CLAIM, &n);
    jobq_pg__say(out, ") c ON alive");
}

/* Selects a view's rows by one of its columns. A NULL parameter selects all, if it is allowed. */
static void jobq_pg__say_view(jobq_pg__params *out, jobq_pg__statement st)
{
    const jobq_pg__col *in = jobq_pg__specs[st].in;
    const jobq_pg_column *c = jobq_pg__desc_of(st)->columns;
    int i;

    for (i = 0; c[i].name != NULL; i++)
        jobq_pg__sayf(out, "%s%n", i > 0 ? ", " : "", c[i].name);
    jobq_pg__sayf(out, " FROM jobq.%s WHERE ", jobq_pg__specs[st].name);
    if ((in->of.flags & JOBQ_PG_NULLABLE) != 0) {
        jobq_pg__say_param(out, in, 1);
        jobq_pg__say(out, " IS NULL OR ");
    }
    jobq_pg__sayf(out, "%n OPERATOR(pg_catalog.=) ", in->of.name);
    jobq_pg__say_param(out, in, 1);
    jobq_pg__say(out, " ORDER BY 1");
}

/* A statement's text for schema jobq; the caller frees it. NULL: out of memory. */
static char *jobq_pg__statement_sql(jobq_pg__statement st)
{
    jobq_pg__form form = jobq_pg__specs[st].form;
    jobq_pg__params out;
    int n = 0;

    jobq_pg__params_init(&out);
    if (form == JOBQ_PG__SAYS) {
        jobq_pg__say(&out, jobq_pg__specs[st].name);
    } else {
        jobq_pg__say(&out, "SELECT ");
        if (form == JOBQ_PG__READS_VIEW) jobq_pg__say_view(&out, st);
        else if (st == JOBQ_PG__AWAIT || st == JOBQ_PG__PARENT_JOBS) jobq_pg__say(&out, "*");
        else if (form == JOBQ_PG__READS_ROWS) jobq_pg__say(&out, JOBQ_PG__LETTER_COLUMNS);
        else jobq_pg__say_out(&out, st);
        if (st == JOBQ_PG__BEAT_CLAIM) jobq_pg__say_beat(&out);
        else if (form != JOBQ_PG__READS_VIEW) {
            jobq_pg__say(&out, " FROM ");
            jobq_pg__say_call(&out, st, &n);
        }
    }
    jobq_pg__raw(&out, "", 1);
    if (out.failed) jobq_pg__params_clear(&out);
    return out.data;
}

/* -- running a statement -- */

/* Runs a statement with a struct's parameters. NULL: error is filled. */
static PGresult *jobq_pg__call(jobq_pg *pg, PGconn *conn, jobq_pg__statement st, const void *from,
                               jobq_pg_error *error)
{
    jobq_pg__params p;

    jobq_pg__params_init(&p);
    jobq_pg__put(&p, jobq_pg__specs[st].in, from);
    return jobq_pg__exec_text(pg, conn, NULL, &pg->texts[st], &p, !pg->behind_pooler, error);
}

/* The same, and reads the first row into a struct, whose strings point into the result. */
static PGresult *jobq_pg__call_row(jobq_pg *pg, PGconn *conn, jobq_pg__statement st,
                                   const void *from, void *to, jobq_pg_error *error)
{
    PGresult *res = jobq_pg__call(pg, conn, st, from, error);

    if (res != NULL && PQntuples(res) > 0) jobq_pg__row(res, 0, 0, jobq_pg__specs[st].out, to);
    return res;
}

/* Runs a statement that returns one number or boolean. answer may be NULL. */
static jobq_error jobq_pg__ask(jobq_pg *pg, PGconn *conn, jobq_pg__statement st, const void *from,
                               int64_t *answer, jobq_pg_error *error)
{
    jobq_pg_error local;
    PGresult *res;

    if (error == NULL) error = &local;
    res = jobq_pg__call(pg, conn, st, from, error);
    if (res == NULL) return error->code;
    if (answer != NULL)
        *answer = PQntuples(res) > 0 && PQnfields(res) > 0 ? jobq_pg__int(res, 0, 0) : 0;
    PQclear(res);
    return JOBQ_OK;
}

/* ---- >>migrate ------------------------------------------------------------------------------- */

/* A file of sql/: a migration, or a part of the current text, which has the newest version. */
typedef struct jobq_pg__migration {
    int version;                /* the file is applied to schemas with a lower version */
    const char *name;
    const char *const *strings; /* the text in pieces; NULL ends them */
} jobq_pg__migration;

/* The i-th file; NULL after the last one. The files are at the end of this header. */
static const jobq_pg__migration *jobq_pg__file(size_t i);

/* The version of the schema that this library installs. */
static int jobq_pg__newest(void)
{
    int version = 0;
    size_t i;

    for (i = 0; jobq_pg__file(i) != NULL; i++) version = jobq_pg__file(i)->version;
    return version;
}

JOBQ_PG__ONCE static jobq_error jobq_pg__command(PGconn *conn, const char *sql,
                                                 jobq_pg_error *error)
{
    PGresult *res = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(res);
    jobq_error code = JOBQ_OK;

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        code = jobq_pg__result_error(error, conn, res);
    }
    PQclear(res);
    return code;
}

/* Joins the strings up to NULL; the caller frees the text. NULL: out of memory. */
static char *jobq_pg__join(const char *const *strings)
{
    size_t size = 1, at = 0, i;
    char *text;

    for (i = 0; strings[i] != NULL; i++) size += strlen(strings[i]);
    text = (char *)malloc(size);
    if (text == NULL) return NULL;
    for (i = 0; strings[i] != NULL; at += strlen(strings[i++]))
        memcpy(text + at, strings[i], strlen(strings[i]));
    text[at] = '\0';
    return text;
}

static jobq_error jobq_pg__apply(const jobq_pg *pg, PGconn *conn, const jobq_pg__migration *m,
                                 jobq_pg_error *error)
{
    char *generic = jobq_pg__join(m->strings);
    char *sql = generic == NULL ? NULL : jobq_pg__for_schema(generic, pg->schema);
    jobq_error code = sql == NULL ? jobq_pg__no_memory(error) : jobq_pg__command(conn, sql, error);

    free(sql);
    free(generic);
    if (code == JOBQ_OK)
        jobq_pg__log(pg, jobq_pg__event_of(JOBQ_LEVEL_INFO, "migrated"), "migration %s applied",
                     m->name);
    return code;
}

/* On Citus: refuses a schema that is distributed, but not by citus_distribute. There Citus refuses
 * most statements of jobq, and one that retries a job ends the whole server (Citus 13.2). older:
 * refuses both, because a migration would replace functions of the coordinator only. */
static jobq_error jobq_pg__citus_refuses(const jobq_pg *pg, PGconn *conn, bool older,
                                         jobq_pg_error *error)
{
    char sql[400];
    PGresult *res;
    bool distributed;

    snprintf(sql, sizeof sql, "SELECT FROM pg_catalog.pg_dist_partition WHERE colocationid "
             "OPERATOR(pg_catalog.>) 0 AND logicalrelid OPERATOR(pg_catalog.=) "
             "pg_catalog.to_regclass('%s.job') AND (%s OR "
             "pg_catalog.to_regclass('%s.original') IS NULL)", pg->schema,
             older ? "true" : "false", pg->schema);
    res = PQexec(conn, sql);
    distributed = PQntuples(res) > 0;
    PQclear(res);
    if (!distributed) return JOBQ_OK;
    return jobq_pg__fail(error, JOBQ_ERROR_INVALID,
                         "schema %s is distributed by Citus, which refuses statements of jobq: "
                         "undistribute it (jobq.citus_undistribute), migrate, and distribute it "
                         "(jobq.citus_distribute)", pg->name);
}

/* On Citus. A schema whose functions are older, or not granted, cannot say. */
static void jobq_pg__citus_warns(const jobq_pg *pg, PGconn *conn)
{
    char sql[100];
    PGresult *res;

    snprintf(sql, sizeof sql, "SELECT %s._citus_apart()", pg->schema);
    res = PQexec(conn, sql);
    if (PQntuples(res) == 1 && PQgetvalue(res, 0, 0)[0] == 't') {
        jobq_pg__log(pg, jobq_pg__event_of(JOBQ_LEVEL_WARNING, "commit_unsafe"),
                     "a transaction that also writes a distributed table may be committed in "
                     "half when a server crashes: run select %s.citus_join() at the coordinator; "
                     "at a node, keep what handlers write in its own tables", pg->schema);
    }
    PQclear(res);
}

/* The version of the schema, and of the oldest library it serves; 0 and 0 if it does not exist.
 * *citus: the database has that extension. */
static jobq_error jobq_pg__version(jobq_pg *pg, PGconn *conn, int *version, int *library_min,
                                   bool *citus, jobq_pg_error *error)
{
    char sql[200];
    PGresult *res;
    bool there;
    jobq_error code;

    *version = *library_min = 0;
    *citus = false;
    snprintf(sql, sizeof sql, "SELECT pg_catalog.to_regclass('%s.meta') IS NOT NULL, "
             "pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL", pg->schema);
    res = PQexec(conn, sql);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        code = jobq_pg__result_error(error, conn, res);
        PQclear(res);
        return code;
    }
    there = PQgetvalue(res, 0, 0)[0] == 't';
    *citus = PQgetvalue(res, 0, 1)[0] == 't';
    PQclear(res);
    if (!there) return JOBQ_OK;
    snprintf(sql, sizeof sql, "SELECT version, library_min FROM %s.meta", pg->schema);
    res = PQexec(conn, sql);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) code = jobq_pg__result_error(error, conn, res);
    else if (PQntuples(res) == 1) code = JOBQ_OK;
    else code = jobq_pg__fail(error, JOBQ_ERROR_DATABASE,
                              "the table meta of schema %s has no row: restore it from a backup",
                              pg->schema);
    if (code == JOBQ_OK) {
        *version = atoi(PQgetvalue(res, 0, 0));
        *library_min = atoi(PQgetvalue(res, 0, 1));
    }
    PQclear(res);
    return code;
}

/* Whether no migration begins at this version. */
static bool jobq_pg__too_old(int version)
{
    return version > 0 && version < jobq_pg__file(0)->version;
}

/* In rolling deploys a schema may be newer than the library, if it still serves the library. */
static jobq_error jobq_pg__serves(const jobq_pg *pg, int version, int library_min,
                                  jobq_pg_error *error)
{
    if (jobq_pg__too_old(version)) {
        return jobq_pg__fail(
            error, JOBQ_ERROR_VERSION,
            "schema %s is at version %d, which was never released and cannot be upgraded to %d: "
            "carry its work into a new schema, see examples/carry.sql",
            pg->schema, version, jobq_pg__newest());
    }
    if (library_min > jobq_pg__newest()) {
        return jobq_pg__fail(
            error, JOBQ_ERROR_VERSION,
            "schema %s is at version %d and serves libraries from %d on; this one is %d: "
            "update the program",
            pg->schema, version, library_min, jobq_pg__newest());
    }
    if (version < jobq_pg__newest()) {
        return jobq_pg__fail(
            error, JOBQ_ERROR_VERSION,
            "schema %s is at version %d, this library needs %d: run jobq_pg_migrate", pg->schema,
            version, jobq_pg__newest());
    }
    return JOBQ_OK;
}

/* -- the fingerprint -- */

/* The query of sql/fingerprint.sql, and the list of what it answers about a fresh schema: both are
 * at the end of this header. Between `make embed` and `make fingerprint` the list is empty, and
 * nothing is compared. */
static const char *const *jobq_pg__fingerprint(bool list);

/* Names of one sort of objects in one text: "function claim, column job.line and 3 more". */
typedef struct jobq_pg__names {
    int count;
    char text[250];
} jobq_pg__names;

static void jobq_pg__names_add(jobq_pg__names *names, const char *name)
{
    size_t at = strlen(names->text);

    if (++names->count > 3) return;
    snprintf(names->text + at, sizeof names->text - at, "%s%.70s", at > 0 ? ", " : "", name);
}

static const char *jobq_pg__names_end(jobq_pg__names *names)
{
    size_t at = strlen(names->text);

    if (names->count > 3)
        snprintf(names->text + at, sizeof names->text - at, " and %d more", names->count - 3);
    return names->text;
}

/* The settings in which the query answers the same on every connection. On a fresh one it takes 60
 * ms, which a role may not allow. */
#define JOBQ_PG__FINGERPRINT_SETS                                                                  \
    "SET LOCAL statement_timeout = 0; "                                                            \
    "SET LOCAL search_path = pg_catalog; SET LOCAL IntervalStyle = postgres; "                     \
    "SET LOCAL DateStyle = ISO; SET LOCAL quote_all_identifiers = off; SET LOCAL jit = off; "      \
    "SET LOCAL standard_conforming_strings = on"

/* What differs from a fresh schema: names, each with missing, changed or added. The caller has made
 * these settings. NULL: no memory. */
static PGresult *jobq_pg__differences(const jobq_pg *pg, PGconn *conn)
{
    static const char frame[] =
        "WITH f AS (SELECT a.kind || a.name AS name, a.sum FROM (%s) a), "
        "e AS (SELECT split_part(line, ':', 1) || split_part(n, '=', 1) AS name, "
        "split_part(n, '=', 2) AS sum FROM string_to_table($2, E'\\n') line, "
        "string_to_table(split_part(line, ':', 2), ' ') n WHERE n <> ''), "
        "far AS (SELECT bool_or(f.sum = '') AS far FROM f) " /* distributed by Citus: less */
        "SELECT coalesce(f.name, e.name), CASE WHEN f.name IS NULL THEN 'missing' "
        "WHEN e.name IS NULL THEN 'added' ELSE 'changed' END "
        "FROM f FULL JOIN e ON e.name = f.name CROSS JOIN far WHERE CASE WHEN far "
        "THEN f.name IS NULL AND e.name ~ '^(function (?!citus_)|column|type|view)' "
        "ELSE e.sum IS DISTINCT FROM f.sum END ORDER BY 2, 1";
    char *query = jobq_pg__join(jobq_pg__fingerprint(false));
    char *list = jobq_pg__join(jobq_pg__fingerprint(true));
    size_t size = sizeof frame + (query != NULL ? strlen(query) : 0);
    char *sql = (char *)malloc(size);
    const char *values[2];
    PGresult *res = NULL;

    if (query != NULL && list != NULL && sql != NULL) {
        snprintf(sql, size, frame, query);
        values[0] = pg->name;
        values[1] = list;
        res = PQexecParams(conn, sql, 2, NULL, values, NULL, NULL, 0);
    }
    free(query);
    free(list);
    free(sql);
    return res;
}

/* Refuses a schema in which something of this version is missing or was changed, and warns of what
 * was added. */
static jobq_error jobq_pg__weigh_differences(const jobq_pg *pg, const PGresult *res,
                                             jobq_pg_error *error)
{
    jobq_pg__names bad, added;
    char name[120];
    int i;

    memset(&bad, 0, sizeof bad);
    memset(&added, 0, sizeof added);
    for (i = 0; i < PQntuples(res); i++) {
        const char *how = PQgetvalue(res, i, 1);
        bool new_one = strcmp(how, "added") == 0;
        if (new_one) snprintf(name, sizeof name, "%s", PQgetvalue(res, i, 0));
        else snprintf(name, sizeof name, "%s is %s", PQgetvalue(res, i, 0), how);
        jobq_pg__names_add(new_one ? &added : &bad, name);
    }
    if (added.count > 0) {
        jobq_pg__log(pg, jobq_pg__event_of(JOBQ_LEVEL_WARNING, "objects_added"),
                     "the schema has what jobq did not install: %s: an upgrade may be in its way, "
                     "so move it to another schema", jobq_pg__names_end(&added));
    }
    if (bad.count == 0) return JOBQ_OK;
    return jobq_pg__fail(error, JOBQ_ERROR_VERSION,
                         "schema %s is at version %d, but not as this library installs it: %s: "
                         "psql -f sql/install.sql restores functions and views; for the rest, see "
                         "examples/carry.sql",
                         pg->schema, jobq_pg__newest(), jobq_pg__names_end(&bad));
}

/* Compares a schema of this library's version with a fresh one, and leaves the connection and its
 * transaction as they were. */
static jobq_error jobq_pg__compare(const jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    bool nested = PQtransactionStatus(conn) == PQTRANS_INTRANS;
    bool newer = PQserverVersion(conn) >= 170000;
    char sets[512];
    jobq_error code;
    PGresult *res;

    if (jobq_pg__fingerprint(true)[0] == NULL) return JOBQ_OK;
    snprintf(sets, sizeof sets, "%s; " JOBQ_PG__FINGERPRINT_SETS "%s",
             nested ? "SAVEPOINT jobq_compare" : "BEGIN",
             newer ? "; SET LOCAL transaction_timeout = 0" : "");
    code = jobq_pg__command(conn, sets, error);
    if (code == JOBQ_OK) {
        res = jobq_pg__differences(pg, conn);
        if (res == NULL) code = jobq_pg__no_memory(error);
        else if (PQresultStatus(res) != PGRES_TUPLES_OK)
            code = jobq_pg__result_error(error, conn, res);
        else code = jobq_pg__weigh_differences(pg, res, error);
        PQclear(res);
    }
    PQclear(PQexec(conn, nested ? "ROLLBACK TO SAVEPOINT jobq_compare; "
                                  "RELEASE SAVEPOINT jobq_compare" : "ROLLBACK"));
    return code;
}

/* What a migration sets first. Elsewhere than on Citus its setting is a name without a meaning. */
#define JOBQ_PG__MIGRATE_SETS                                                                      \
    "SET LOCAL client_min_messages = warning; SET LOCAL standard_conforming_strings = on; "        \
    "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL quote_all_identifiers = off; "         \
    "SET LOCAL jit = off; "                                                                        \
    "SET LOCAL citus.enable_ddl_propagation = off"

static jobq_error jobq_pg__migrate_in(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    const jobq_pg__migration *file;
    char sql[96];
    int version = 0, library_min = 0;
    jobq_error code;
    bool citus = false;
    size_t i;

    snprintf(sql, sizeof sql, "SELECT pg_catalog.pg_advisory_xact_lock(%lld)",
             0x6a6f6271LL << 24 | (long long)(jobq_pg__hash(JOBQ_PG__HASH_SEED, pg->schema) >> 40));
    code = jobq_pg__command(conn, sql, error);
    if (code == JOBQ_OK) code = jobq_pg__version(pg, conn, &version, &library_min, &citus, error);
    if (code == JOBQ_OK && citus)
        code = jobq_pg__citus_refuses(pg, conn, version < jobq_pg__newest(), error);
    if (code == JOBQ_OK && (version >= jobq_pg__newest() || jobq_pg__too_old(version))) {
        code = jobq_pg__serves(pg, version, library_min, error);
        if (code == JOBQ_OK && version == jobq_pg__newest())
            code = jobq_pg__compare(pg, conn, error);
        return code;
    }
    for (i = 0; code == JOBQ_OK && (file = jobq_pg__file(i)) != NULL; i++) {
        if (file->version > version) code = jobq_pg__apply(pg, conn, file, error);
    }
    return code;
}

static jobq_error jobq_pg__migrate_once(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    jobq_error code = jobq_pg__command(conn, JOBQ_PG__BEGIN, error);

    if (code == JOBQ_OK) code = jobq_pg__command(conn, JOBQ_PG__MIGRATE_SETS, error);
    if (code == JOBQ_OK) code = jobq_pg__migrate_in(pg, conn, error);
    if (code == JOBQ_OK) code = jobq_pg__command(conn, "COMMIT", error);
    else PQclear(PQexec(conn, "ROLLBACK"));
    return code;
}

/* A worker locks tables in another order, so either may be ended by the server: 40P01. */
JOBQ_API jobq_error jobq_pg_migrate(jobq_pg *pg, jobq_pg_error *error)
{
    PGconn *conn;
    jobq_error code;
    int tries = 0;

    JOBQ_ASSERT(pg != NULL);
    code = jobq_pg_acquire(pg, &conn, error);
    if (code != JOBQ_OK) return code;
    do code = jobq_pg__migrate_once(pg, conn, error);
    while (code == JOBQ_ERROR_RETRYABLE && ++tries < 10);
    jobq_pg__give_back(pg, conn, JOBQ_PG__BY_US);
    return code;
}

JOBQ_API jobq_error jobq_pg_check(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    int version, library_min;
    PGconn *mine = NULL;
    bool citus;
    jobq_error code =
        jobq_pg__borrow(pg, conn, &mine, error);

    if (code != JOBQ_OK) return code;
    if (conn == NULL) conn = mine;
    code = jobq_pg__version(pg, conn, &version, &library_min, &citus, error);
    if (code == JOBQ_OK) code = jobq_pg__serves(pg, version, library_min, error);
    if (code == JOBQ_OK && citus) code = jobq_pg__citus_refuses(pg, conn, false, error);
    if (code == JOBQ_OK && version == jobq_pg__newest()) code = jobq_pg__compare(pg, conn, error);
    if (code == JOBQ_OK && citus && PQtransactionStatus(conn) == PQTRANS_IDLE)
        jobq_pg__citus_warns(pg, conn);
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    return code;
}

/* ---- >>transaction --------------------------------------------------------------------------- */

/* The server answers COMMIT of an aborted transaction with ROLLBACK, not with an error. */
static jobq_error jobq_pg__transact_commit(PGconn *conn, bool nested, jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    PGresult *res;

    if (PQtransactionStatus(conn) == PQTRANS_INERROR) {
        return jobq_pg__fail(error, JOBQ_ERROR_DATABASE, "Database error: an earlier error aborted "
                                                         "the transaction, now rolled back: %s",
                             PQerrorMessage(conn));
    }
    res = PQexec(conn, nested ? "RELEASE SAVEPOINT jobq_tx" : "COMMIT");
    if (PQresultStatus(res) != PGRES_COMMAND_OK) code = jobq_pg__result_error(error, conn, res);
    PQclear(res);
    return code;
}

static jobq_error jobq_pg__transact_once(PGconn *conn, jobq_pg_body body, void *user,
                                         jobq_pg_error *error)
{
    jobq_error code = jobq_pg__usable(conn, error);
    PGTransactionStatusType status;
    bool nested;

    if (code != JOBQ_OK) return code;
    nested = PQtransactionStatus(conn) == PQTRANS_INTRANS;
    code = jobq_pg__command(conn, nested ? "SAVEPOINT jobq_tx" : "BEGIN", error);
    if (code != JOBQ_OK) return code;
    code = body(conn, user, error);
    if (code == JOBQ_OK) code = jobq_pg__transact_commit(conn, nested, error);
    status = PQtransactionStatus(conn);
    if (code != JOBQ_OK && (status == PQTRANS_INTRANS || status == PQTRANS_INERROR))
        PQclear(PQexec(conn, nested ? "ROLLBACK TO SAVEPOINT jobq_tx; RELEASE SAVEPOINT jobq_tx"
                                    : "ROLLBACK"));
    return code;
}

/* Waits after failed run n, from 0: 10 ms, doubling up to 1 s, with jitter. */
static void jobq_pg__transact_pause(uint32_t n)
{
    jobq_backoff backoff = {JOBQ_CURVE_EXPONENTIAL, 500, 10000, 1000000, 0};
    jobq_random random = {(uint64_t)jobq_pg__mono_us() ^ (uint64_t)jobq_pg__os_pid() << 32};
    int64_t us = jobq_backoff_delay(&backoff, n, jobq_random_next(&random));

    jobq_pg__os_nap(us);
}

JOBQ_API jobq_error jobq_pg_transact(jobq_pg *pg, PGconn *conn, jobq_pg_body body, void *user,
                                     jobq_pg_error *error)
{
    PGconn *mine = NULL;
    jobq_pg_error local;
    jobq_error code;
    uint32_t n;
    bool again;

    if (error == NULL) error = &local;
    memset(error, 0, sizeof *error);
    if (conn == NULL && pg == NULL)
        return jobq_pg__invalid(error, "conn", "must not be NULL without pg");
    if (conn == NULL && jobq_pg_acquire(pg, &mine, error) != JOBQ_OK) return error->code;
    if (conn == NULL) conn = mine;
    again = PQtransactionStatus(conn) == PQTRANS_IDLE;
    for (n = 0;; n++) {
        code = jobq_pg__transact_once(conn, body, user, error);
        again = again && (strcmp(error->sqlstate, "40001") == 0 ||
                          strcmp(error->sqlstate, "40P01") == 0);
        if (code == JOBQ_OK || !again || n == 9) break;
        jobq_pg__transact_pause(n);
        memset(error, 0, sizeof *error);
    }
    if (mine != NULL) jobq_pg_release(pg, mine);
    return code;
}

/* ---- >>enqueue ------------------------------------------------------------------------------- */

/* exact: it is kept as bytes, so it need not fit into jsonb. */
static jobq_error jobq_pg__json_invalid(jobq_pg_error *error, const char *field, jobq_str json,
                                        bool exact)
{
    const char *why;
    size_t at;
    char text[128];

    if ((exact ? jobq_json_valid(json, &at, &why) : jobq_json_check(json, &at, &why)) == JOBQ_OK)
        return JOBQ_OK;
    snprintf(text, sizeof text, "not JSON at byte %llu: %s", (unsigned long long)at, why);
    return jobq_pg__invalid(error, field, text);
}

/* Checks an optional JSON object. */
static jobq_error jobq_pg__object_invalid(jobq_pg_error *error, const char *field, jobq_str json)
{
    size_t at = 0;

    if (json.ptr == NULL) return JOBQ_OK;
    if (jobq_pg__json_invalid(error, field, json, false)) return JOBQ_ERROR_INVALID;
    while (strchr(" \t\n\r", json.ptr[at]) != NULL) at++;
    return json.ptr[at] == '{' ? JOBQ_OK : jobq_pg__invalid(error, field, "not a JSON object");
}

/* Checks an optional payload: JSON, bytes, or exact, which is JSON that is kept as bytes. */
static jobq_error jobq_pg__payload_invalid(jobq_pg_error *error, jobq_str payload, bool bytes,
                                           bool exact)
{
    if (payload.ptr == NULL && payload.len > 0)
        return jobq_pg__invalid(error, "payload", "has a length, but its pointer is NULL");
    if (payload.ptr == NULL || (bytes && !exact)) return JOBQ_OK;
    return jobq_pg__json_invalid(error, "payload", payload, exact);
}

static jobq_error jobq_pg__run_at_invalid(int64_t run_at_us, jobq_pg_error *error)
{
    if (run_at_us == 0 || (run_at_us >= JOBQ_DAYS(10957) && run_at_us <= INT64_MAX / 4))
        return JOBQ_OK;
    return jobq_pg__invalid_int(error, "run_at_us", run_at_us,
                                "must be microseconds since the Unix epoch, from the year 2000 on; "
                                "for seconds use JOBQ_SECONDS(t)");
}

static jobq_error jobq_pg__priority_invalid(int priority, jobq_pg_error *error)
{
    if (priority >= JOBQ_PRIORITY_MIN && priority <= JOBQ_PRIORITY_MAX) return JOBQ_OK;
    return jobq_pg__invalid_int(error, "priority", priority, "must be -9 to 9");
}

/* Checks a name; NULL is allowed if optional. */
JOBQ_PG__ONCE static jobq_error jobq_pg__name_invalid(const char *name, const char *field,
                                                   bool optional, jobq_pg_error *error)
{
    if (name == NULL ? optional : jobq_name_valid(jobq_str_from(name))) return JOBQ_OK;
    return jobq_pg__invalid_text(error, field, name, JOBQ_PG__NAME_RULE);
}

/* Of the payload, and of the headers with the trace. */
static jobq_error jobq_pg__too_large(const jobq_pg_job *job, size_t max, const char *limit,
                                     jobq_pg_error *error)
{
    size_t size = (size_t)jobq_pg__job_size(job);
    const char *field = job->payload.len > max ? "payload" : "headers";
    char text[128];

    if (size <= max) return JOBQ_OK;
    snprintf(text, sizeof text, "too large: size %llu exceeds maximum %llu (raise %s)",
             (unsigned long long)size, (unsigned long long)max, limit);
    return jobq_pg__invalid(error, field, text);
}

/* Checks an optional idempotency key, or the name of a line. */
static jobq_error jobq_pg__key_invalid(const char *key, const char *field, jobq_pg_error *error)
{
    if (key == NULL || (key[0] != '\0' && strlen(key) <= JOBQ_NAME_MAX &&
                        jobq_utf8_valid(jobq_str_from(key)))) return JOBQ_OK;
    return jobq_pg__invalid_text(error, field, key, "must be 1 to 1024 bytes of UTF-8");
}

/* Whether a job says something about a known key. To reject a new job is to leave the old one. */
static bool jobq_pg__knows(const jobq_pg_job *job)
{
    return (job->on_known != JOBQ_KNOWN_LEAVE && job->on_known != JOBQ_KNOWN_REJECT) ||
           job->unique_for != JOBQ_UNIQUE_DEFAULT || job->at_latest_us != 0;
}

/* Whether a job belongs to a flow, or waits for others. */
static bool jobq_pg__linked_job(const jobq_pg_job *job)
{
    return job->flow != 0 || job->name != NULL || job->after_count != 0;
}

static jobq_error jobq_pg__link_invalid(const jobq_pg_job *job, jobq_pg_error *error)
{
    int i;

    if (job->flow < 0) return jobq_pg__invalid_int(error, "flow", job->flow, "must be positive");
    if (job->name != NULL && job->flow == 0)
        return jobq_pg__invalid(error, "name", "needs a flow");
    if (jobq_pg__key_invalid(job->name, "name", error)) return JOBQ_ERROR_INVALID;
    if (job->after_count < 0 || (job->after_count > 0 && job->after == NULL))
        return jobq_pg__invalid(error, "after", "must have as many elements as after_count says");
    if (jobq_pg__knows(job) || job->on_known == JOBQ_KNOWN_REJECT)
        return jobq_pg__invalid(error, "on_known", "not allowed with flow or after");
    for (i = 0; i < job->after_count; i++) {
        const jobq_pg_after *a = &job->after[i];
        if ((a->job != 0) + (a->name != NULL) + (a->flow != 0) != 1 || a->job < 0 || a->flow < 0)
            return jobq_pg__invalid(error, "after", "must have one of job, name and flow");
        if ((int)a->on_end < 0 || a->on_end > JOBQ_ON_ANY)
            return jobq_pg__invalid_int(error, "on_end", (int)a->on_end, "not a jobq_on_end");
    }
    return JOBQ_OK;
}

static jobq_error jobq_pg__known_invalid(const jobq_pg_job *job, jobq_pg_error *error)
{
    if ((int)job->on_known < 0 || job->on_known > JOBQ_KNOWN_REJECT)
        return jobq_pg__invalid_int(error, "on_known", (int)job->on_known, "not a jobq_known");
    if ((int)job->unique_for < 0 || job->unique_for > JOBQ_UNIQUE_READY)
        return jobq_pg__invalid_int(error, "unique_for", (int)job->unique_for, "not a jobq_unique");
    if (job->at_latest_us < 0 || job->at_latest_us > INT64_MAX / 4)
        return jobq_pg__invalid_int(error, "at_latest_us", job->at_latest_us,
                                    "must be positive, less than 70,000 years");
    if (job->at_latest_us != 0 && job->on_known != JOBQ_KNOWN_REPLACE &&
        job->on_known != JOBQ_KNOWN_BUMP)
        return jobq_pg__invalid(error, "at_latest_us", "needs JOBQ_KNOWN_REPLACE or _BUMP");
    if (job->key == NULL && (jobq_pg__knows(job) || job->on_known != JOBQ_KNOWN_LEAVE))
        return jobq_pg__invalid(error, "key",
                                "must be given with on_known, unique_for and at_latest_us");
    return JOBQ_OK;
}

/* ---- >>seal: payloads that are sealed; the direct way and COPY ------------------------------- */

/* An answer, or memory, that is used until a handler returns or a call ends. */
typedef struct jobq_pg__lent {
    struct jobq_pg__lent *next;
    PGresult *result;
    void *memory;
} jobq_pg__lent;

static void jobq_pg__lent_drop(jobq_pg__lent **lent)
{
    while (*lent != NULL) {
        jobq_pg__lent *first = *lent;
        *lent = first->next;
        PQclear(first->result);
        free(first->memory);
        free(first);
    }
}

/* Takes one of the two, also if it fails. memory NULL, and no result: it fails. */
static bool jobq_pg__lend_to(jobq_pg__lent **lent, PGresult *res, void *memory)
{
    jobq_pg__lent *l = (jobq_pg__lent *)malloc(sizeof *l);

    if (l == NULL || (res == NULL && memory == NULL)) {
        PQclear(res);
        free(memory);
        free(l);
        return false;
    }
    l->result = res;
    l->memory = memory;
    l->next = *lent;
    *lent = l;
    return true;
}

/* What a job, a message and a schedule have in common, in this order in each of them. */
typedef struct jobq_pg__common {
    jobq_str payload;
    bool payload_bytes, payload_exact;
    jobq_str headers;
} jobq_pg__common;

/* Where that is. kind: SIZE_MAX if there is none. */
typedef struct jobq_pg__sealable {
    size_t size, queue, kind, content;
} jobq_pg__sealable;

static const jobq_pg__sealable jobq_pg__job_content = {
    sizeof(jobq_pg_job), offsetof(jobq_pg_job, queue), offsetof(jobq_pg_job, kind),
    offsetof(jobq_pg_job, payload)};

static jobq_error jobq_pg__seal_failed(const jobq_pg_seal *seal, const char *did,
                                       jobq_pg_error *error)
{
    char text[400];

    free(seal->out);
    snprintf(text, sizeof text, "cannot be %s by '%.64s': %.255s", did, seal->name,
             seal->why[0] == '\0' ? "its function gave no reason" : seal->why);
    return jobq_pg__invalid(error, "payload", text);
}

/* The payload with a letter before it, which is sealed with it: j JSON, b bytes. */
static jobq_error jobq_pg__seal_bytes(const jobq_pg *pg, jobq_pg_seal *seal, jobq_str payload,
                                      bool bytes, jobq_pg_error *error)
{
    char *plain = (char *)malloc(payload.len + 1);
    volatile char *wiped = plain;
    size_t i;
    bool good;

    if (plain == NULL) return jobq_pg__no_memory(error);
    plain[0] = bytes ? 'b' : 'j';
    if (payload.len > 0) memcpy(plain + 1, payload.ptr, payload.len);
    seal->in.ptr = plain;
    seal->in.len = payload.len + 1;
    seal->why[0] = '\0';
    good = pg->seal != NULL && pg->seal(pg->user, seal);
    for (i = 0; i <= payload.len; i++) wiped[i] = 0;
    free(plain);
    if (pg->seal == NULL)
        snprintf(seal->why, sizeof seal->why, "this program has no jobq_pg_desc.seal");
    return good && seal->out != NULL ? JOBQ_OK : jobq_pg__seal_failed(seal, "sealed", error);
}

/* The headers with the name of the seal. */
static jobq_error jobq_pg__seal_headers(const jobq_pg *pg, jobq_str *headers, jobq_pg__lent **lent,
                                        jobq_pg_error *error)
{
    size_t room = headers->len + sizeof pg->seal_name + 16, at = 0, start;
    char *text;

    if (jobq_json_member(*headers, "seal").ptr != NULL)
        return jobq_pg__invalid(error, "headers",
                                "must not have \"seal\", which jobq_pg_desc.seal writes");
    text = (char *)malloc(room);
    if (text == NULL) return jobq_pg__no_memory(error);
    start = (size_t)snprintf(text, room, "{\"seal\": \"%s\"", pg->seal_name);
    if (headers->ptr != NULL) {
        while (headers->ptr[at++] != '{') {}
        while (strchr(" \t\n\r", headers->ptr[at]) != NULL) at++;
        if (headers->ptr[at] != '}') text[start++] = ',';
        memcpy(text + start, headers->ptr + at, headers->len - at);
        headers->len = start + headers->len - at;
    } else {
        text[start++] = '}';
        headers->len = start;
    }
    headers->ptr = text;
    return jobq_pg__lend_to(lent, NULL, text) ? JOBQ_OK : jobq_pg__no_memory(error);
}

/* Puts copies with sealed payloads in place of the rows, which have been checked. Without
 * desc.seal it changes nothing. */
static jobq_error jobq_pg__sealed(const jobq_pg *pg, const jobq_pg__sealable *of, const void **rows,
                                size_t count, jobq_pg__lent **lent, jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    char *copy, *row;
    size_t i;

    if (pg->seal == NULL || count == 0) return JOBQ_OK;
    copy = (char *)malloc(count * of->size);
    if (!jobq_pg__lend_to(lent, NULL, copy)) return jobq_pg__no_memory(error);
    memcpy(copy, *rows, count * of->size);
    *rows = copy;
    for (i = 0; i < count && code == JOBQ_OK; i++) {
        jobq_pg__common c;
        jobq_pg_seal seal;
        row = copy + i * of->size;
        memcpy(&c, row + of->content, sizeof c);
        if (c.payload.ptr == NULL) continue;
        memset(&seal, 0, sizeof seal);
        seal.name = pg->seal_name;
        memcpy(&seal.queue, row + of->queue, sizeof seal.queue);
        if (of->kind != SIZE_MAX) memcpy(&seal.kind, row + of->kind, sizeof seal.kind);
        code = jobq_pg__seal_headers(pg, &c.headers, lent, error);
        if (code == JOBQ_OK)
            code = jobq_pg__seal_bytes(pg, &seal, c.payload, c.payload_bytes || c.payload_exact,
                                       error);
        if (code != JOBQ_OK) return code;
        if (!jobq_pg__lend_to(lent, NULL, seal.out)) return jobq_pg__no_memory(error);
        c.payload.ptr = seal.out;
        c.payload.len = seal.size;
        c.payload_bytes = true;
        memcpy(row + of->content, &c, sizeof c);
    }
    return code;
}

/* The name of a payload's seal. Empty: it has none, because only bytes are sealed. */
static void jobq_pg__seal_of(char name[68], jobq_str headers, jobq_str payload, bool bytes)
{
    jobq_str value = jobq_json_member(headers, "seal");

    name[0] = '\0';
    if (payload.ptr == NULL || !bytes || value.len < 3 || value.ptr[0] != '"') return;
    snprintf(name, 68, "%.*s", (int)(value.len > 66 ? 64 : value.len - 2), value.ptr + 1);
}

JOBQ_API jobq_error jobq_pg_unseal(const jobq_pg *pg, const char *queue, const char *kind,
                                   jobq_str headers, jobq_str payload, bool *bytes, char **out,
                                   size_t *size, jobq_pg_error *error)
{
    char name[68];
    jobq_pg_error local;
    jobq_pg_seal seal;

    JOBQ_ASSERT(pg != NULL && bytes != NULL && out != NULL && size != NULL);
    if (error == NULL) error = &local;
    *out = NULL;
    jobq_pg__seal_of(name, headers, payload, *bytes);
    if (name[0] == '\0') return JOBQ_OK;
    memset(&seal, 0, sizeof seal);
    seal.name = name;
    seal.queue = queue;
    seal.kind = kind;
    seal.in = payload;
    if (pg->open == NULL) {
        snprintf(seal.why, sizeof seal.why, "this program has no jobq_pg_desc.open");
        return jobq_pg__seal_failed(&seal, "opened", error);
    }
    if (!pg->open(pg->user, &seal)) return jobq_pg__seal_failed(&seal, "opened", error);
    if (seal.out == NULL || seal.size == 0 || (seal.out[0] != 'j' && seal.out[0] != 'b')) {
        snprintf(seal.why, sizeof seal.why, "what open returned was not sealed by jobq");
        return jobq_pg__seal_failed(&seal, "opened", error);
    }
    *bytes = seal.out[0] == 'b';
    *size = seal.size - 1;
    memmove(seal.out, seal.out + 1, *size);
    *out = seal.out;
    return JOBQ_OK;
}

/* Opens a payload in place. */
static jobq_error jobq_pg__unsealed(const jobq_pg *pg, const char *queue, const char *kind,
                                jobq_str headers, jobq_str *payload, bool *bytes,
                                jobq_pg__lent **lent, jobq_pg_error *error)
{
    char *out;
    size_t size;
    jobq_error code =
        jobq_pg_unseal(pg, queue, kind, headers, *payload, bytes, &out, &size, error);

    if (code != JOBQ_OK || out == NULL) return code;
    payload->ptr = out;
    payload->len = size;
    return jobq_pg__lend_to(lent, NULL, out) ? JOBQ_OK : jobq_pg__no_memory(error);
}

/* Checks a job before anything is sent. */
static jobq_error jobq_pg__job_invalid(const jobq_pg *pg, const jobq_pg_job *job,
                                       jobq_pg_error *error)
{
    if (jobq_pg__name_invalid(job->queue, "queue", false, error) ||
        jobq_pg__name_invalid(job->kind, "kind", false, error)) return JOBQ_ERROR_INVALID;
    if (jobq_pg__too_large(job, pg->payload_max, "jobq_pg_desc.payload_max", error))
        return JOBQ_ERROR_INVALID;
    if (jobq_pg__payload_invalid(error, job->payload, job->payload_bytes, job->payload_exact) ||
        jobq_pg__object_invalid(error, "headers", job->headers) ||
        jobq_pg__priority_invalid(job->priority, error)) return JOBQ_ERROR_INVALID;
    if (job->stages < 0 || job->stages > JOBQ_STAGES_MAX)
        return jobq_pg__invalid_int(error, "stages", job->stages, "must be 1 to 16");
    if (job->max_attempts < 0)
        return jobq_pg__invalid_int(error, "max_attempts", job->max_attempts, "must be 1 or more");
    if (job->timeout_us < 0 || job->timeout_us > INT64_MAX / 4)
        return jobq_pg__invalid_int(error, "timeout_us", job->timeout_us,
                                    "must be positive, less than 70,000 years");
    if (jobq_pg__short(job->timeout_us, "timeout_us", error)) return JOBQ_ERROR_INVALID;
    if (job->delay_us < 0 || job->delay_us > INT64_MAX / 4) {
        return jobq_pg__invalid_int(error, "delay_us", job->delay_us,
                                    "must be positive, less than 70,000 years");
    }
    if (job->delay_us != 0 && job->run_at_us != 0)
        return jobq_pg__invalid(error, "delay_us", "not allowed with run_at_us");
    if (jobq_pg__run_at_invalid(job->run_at_us, error) ||
        jobq_pg__key_invalid(job->key, "key", error) ||
        jobq_pg__key_invalid(job->line, "line", error)) return JOBQ_ERROR_INVALID;
    if (jobq_pg__linked_job(job) && jobq_pg__link_invalid(job, error)) return JOBQ_ERROR_INVALID;
    if (pg->seal != NULL && job->on_known == JOBQ_KNOWN_MERGE)
        return jobq_pg__invalid(error, "on_known",
                                "must not be JOBQ_KNOWN_MERGE, because sealed payloads cannot be "
                                "merged");
    return jobq_pg__known_invalid(job, error);
}

static jobq_error jobq_pg__enqueue_batch(jobq_pg *pg, PGconn *conn, const jobq_pg_job *jobs,
                                         size_t count, int64_t *ids, jobq_pg_error *error);

/* Checks job i of a batch, by itself and beside the first. */
static jobq_error jobq_pg__batched_invalid(const jobq_pg *pg, const jobq_pg_job *jobs, size_t i,
                                           jobq_pg_error *error)
{
    const char *differs;

    if (jobq_pg__job_invalid(pg, &jobs[i], error)) return JOBQ_ERROR_INVALID;
    if (jobq_pg__knows(&jobs[i]) || jobs[i].on_known == JOBQ_KNOWN_REJECT)
        return jobq_pg__invalid(error, "on_known",
                                "not allowed in a batch: use jobq_pg_enqueue for such a job");
    differs = strcmp(jobs[i].queue, jobs[0].queue) != 0 ? "queue"
              : jobs[i].flow != jobs[0].flow            ? "flow"
              : jobs[i].quiet != jobs[0].quiet          ? "quiet" : NULL;
    if (differs == NULL) return JOBQ_OK;
    return jobq_pg__invalid(error, differs, "must be the same for all jobs of a call");
}

static jobq_error jobq_pg__batch_invalid(const jobq_pg *pg, const jobq_pg_job *jobs, size_t count,
                                         jobq_pg_error *error)
{
    size_t i;

    if (count > INT32_MAX / 2)
        return jobq_pg__invalid(error, "count", "too many for one statement");
    for (i = 0; i < count; i++) {
        if (jobq_pg__batched_invalid(pg, jobs, i, error))
            return jobq_pg__invalid_at(error, "jobs", i);
    }
    return JOBQ_OK;
}

/* The distinct kinds of a batch. Free it with jobq_pg__kinds_clear. */
typedef struct jobq_pg__kinds {
    const char **names;
    int32_t *index;     /* of each job: its kind in names, from 1 */
    int32_t count;      /* of names */
} jobq_pg__kinds;

static void jobq_pg__kinds_clear(jobq_pg__kinds *k)
{
    free((void *)k->names);
    free(k->index);
}

static bool jobq_pg__kinds_of(jobq_pg__kinds *k, const jobq_pg_job *jobs, size_t count)
{
    int32_t at;
    size_t i;

    k->names = (const char **)malloc(count * sizeof *k->names);
    k->index = (int32_t *)malloc(count * sizeof *k->index);
    k->count = 0;
    if (k->names == NULL || k->index == NULL) return false;
    for (i = 0; i < count; i++) {
        for (at = 0; at < k->count && strcmp(k->names[at], jobs[i].kind) != 0;) at++;
        if (at == k->count) k->names[k->count++] = jobs[i].kind;
        k->index[i] = at + 1;
    }
    return true;
}

/* Reads and clears the answer of ENQUEUE_ONE. JOBQ_ERROR_EXISTS: the key was in use. */
static jobq_error jobq_pg__got_enqueued(PGresult *res, const char *key, int64_t *id,
                                        jobq_pg_error *error)
{
    jobq_pg__written written;

    memset(&written, 0, sizeof written);
    if (PQntuples(res) > 0) jobq_pg__row(res, 0, 0, jobq_pg__existed_out, &written);
    PQclear(res);
    if (id != NULL) *id = written.id;
    if (!written.existed) return JOBQ_OK;
    return jobq_pg__said(error, JOBQ_ERROR_EXISTS, "Already exists", "job", "key", key);
}

/* The function that enqueues a job. */
static jobq_pg__statement jobq_pg__enqueue_by(const jobq_pg_job *job)
{
    return jobq_pg__knows(job) ? JOBQ_PG__ENQUEUE_KNOWN : JOBQ_PG__ENQUEUE_ONE;
}

/* Enqueues a job by the SQL function. */
static jobq_error jobq_pg__enqueue_one(jobq_pg *pg, PGconn *conn, const jobq_pg_job *job,
                                       int64_t *id, jobq_pg_error *error)
{
    PGresult *res = jobq_pg__call(pg, conn, jobq_pg__enqueue_by(job), job, error);

    return res == NULL ? error->code : jobq_pg__got_enqueued(res, job->key, id, error);
}

/* -- the direct way --
 *
 * Most enqueues are one job in one transaction, and half of their cost was the function around the
 * INSERT. So if the role may write to the table, the library sends a plain INSERT, which looks up
 * the names itself. It writes nothing if a name is new or the payload is too large: then the
 * function creates the name, or raises the error. Other roles always call the function. */

/* A hash of what the server reports about the role. SET ROLE between two roles that are no
 * superusers does not change it. */
static unsigned jobq_pg__role_hash(const PGconn *conn)
{
    static const char *const names[] = {"session_authorization", "is_superuser"};
    unsigned hash = 2166136261u;
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *c = PQparameterStatus(conn, names[i]);
        for (; c != NULL && *c != '\0'; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    }
    return hash;
}

/* Asks once for each connection and role. False: error is filled. */
static bool jobq_pg__direct_ask(jobq_pg *pg, PGconn *conn, jobq_pg__known *direct,
                                jobq_pg__statement ask, jobq_pg_error *error)
{
    unsigned role = jobq_pg__role_hash(conn);
    int64_t may = 0;

    if (direct->right != JOBQ_PG__UNASKED && direct->role == role) return true;
    if (jobq_pg__ask(pg, conn, ask, NULL, &may, error) != JOBQ_OK) return false;
    direct->right = may != 0 ? JOBQ_PG__GRANTED : JOBQ_PG__REFUSED;
    direct->role = role;
    return true;
}

/* Sends the INSERT, which returns an id, if the role may. *done: it wrote a row. If the right was
 * revoked, that is an error only in the caller's transaction, because the INSERT aborted it. */
static jobq_error jobq_pg__direct_send(jobq_pg *pg, PGconn *conn, jobq_pg__statement ask,
                                       jobq_pg__statement insert, const void *row, int64_t *id,
                                       bool *done, jobq_pg_error *error)
{
    jobq_pg__known *direct =
        pg->behind_pooler ? NULL : jobq_pg__known_of(conn, &pg->texts[insert]);
    bool idle = PQtransactionStatus(conn) == PQTRANS_IDLE;
    PGresult *res;

    if (direct == NULL) return JOBQ_OK;
    if (!jobq_pg__direct_ask(pg, conn, direct, ask, error)) return error->code;
    if (direct->right != JOBQ_PG__GRANTED) return JOBQ_OK;
    res = jobq_pg__call(pg, conn, insert, row, error);
    if (res == NULL) {
        bool taken = strcmp(error->sqlstate, "42501") == 0;
        if (taken) direct->right = JOBQ_PG__REFUSED;
        return taken && idle ? JOBQ_OK : error->code;
    }
    *done = PQntuples(res) == 1;
    if (*done && id != NULL) *id = jobq_pg__int(res, 0, 0);
    PQclear(res);
    return JOBQ_OK;
}

/* Collects what the jobs of a batch wait for. */
static bool jobq_pg__edges_of(jobq_pg__linked *from, const jobq_pg_job *jobs, size_t count)
{
    size_t i, edges = 0;
    int k;

    for (i = 0; i < count; i++) edges += (size_t)jobs[i].after_count;
    from->edges = (jobq_pg__edge *)calloc(edges + 1, sizeof *from->edges);
    if (from->edges == NULL || edges > INT32_MAX / 2) return false;
    for (i = 0; i < count; i++) {
        for (k = 0; k < jobs[i].after_count; k++) {
            jobq_pg__edge *e = &from->edges[from->edge_count++];
            e->child = (int32_t)i + 1;
            e->after = jobs[i].after[k];
            e->on_end = jobq_enum_name(JOBQ_ENUM_ON_END, e->after.on_end);
        }
    }
    return true;
}

/* Enqueues jobs that have been checked. */
static jobq_error jobq_pg__enqueue_batch(jobq_pg *pg, PGconn *conn, const jobq_pg_job *jobs,
                                         size_t count, int64_t *ids, jobq_pg_error *error)
{
    jobq_pg__kinds kinds = {NULL, NULL, 0};
    jobq_pg__written written;
    jobq_pg__linked from;
    PGresult *res = NULL;
    jobq_error code = JOBQ_OK;
    bool linked = false;
    size_t i;

    memset(&written, 0, sizeof written);
    memset(&from, 0, sizeof from);
    for (i = 0; i < count && !linked; i++) linked = jobq_pg__linked_job(&jobs[i]);
    if (!jobq_pg__kinds_of(&kinds, jobs, count) ||
        (linked && !jobq_pg__edges_of(&from, jobs, count))) code = jobq_pg__no_memory(error);
    from.flow = jobs[0].flow;
    from.batch.queue = jobs[0].queue;
    from.batch.kinds = kinds.names;
    from.batch.kind_count = kinds.count;
    from.batch.kind = kinds.index;
    from.batch.indexed = kinds.count > 1 ? (int32_t)count : 0; /* 0: all are of the first kind */
    from.batch.jobs = jobs;
    from.batch.count = written.count = (int32_t)count;
    from.batch.quiet = jobs[0].quiet;
    written.ids = ids;
    if (code == JOBQ_OK)
        res = jobq_pg__call_row(pg, conn, linked ? JOBQ_PG__ENQUEUE_LINKED : JOBQ_PG__ENQUEUE,
                                &from, &written, error);
    if (res == NULL) code = error->code;
    PQclear(res);
    free(from.edges);
    jobq_pg__kinds_clear(&kinds);
    return code;
}

/* Enqueues a job that has been checked. */
static jobq_error jobq_pg__enqueue_sealed(jobq_pg *pg, PGconn *conn, const jobq_pg_job *job,
                                          int64_t *id, jobq_pg_error *error)
{
    PGconn *mine = NULL;
    bool done = false;
    jobq_error code = JOBQ_OK;

    if (conn == NULL) code = jobq_pg_acquire(pg, &mine, error);
    if (code != JOBQ_OK) return code;
    if (conn == NULL) conn = mine;
    if (jobq_pg__linked_job(job)) {
        code = jobq_pg__enqueue_batch(pg, conn, job, 1, id, error);
        done = true;
    } else if (job->key == NULL && job->line == NULL && job->stages <= 1 && job->priority >= 0) {
        code = jobq_pg__direct_send(pg, conn, JOBQ_PG__MAY_ENQUEUE, JOBQ_PG__ENQUEUE_DIRECT, job,
                                    id, &done, error);
    }
    if (code == JOBQ_OK && !done) code = jobq_pg__enqueue_one(pg, conn, job, id, error);
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    return code;
}

JOBQ_API jobq_error jobq_pg_enqueue(jobq_pg *pg, PGconn *conn, const jobq_pg_job *job, int64_t *id,
                                    jobq_pg_error *error)
{
    jobq_pg_error local;
    jobq_pg__lent *lent = NULL;
    const void *row = job;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && job != NULL);
    if (error == NULL) error = &local;
    code = jobq_pg__job_invalid(pg, job, error);
    if (code == JOBQ_OK) code = jobq_pg__sealed(pg, &jobq_pg__job_content, &row, 1, &lent, error);
    if (code == JOBQ_OK)
        code = jobq_pg__enqueue_sealed(pg, conn, (const jobq_pg_job *)row, id, error);
    jobq_pg__lent_drop(&lent);
    return code;
}

/* -- by COPY -- */

#define JOBQ_PG__CHUNK 65536 /* bytes between two writes to libpq */

/* A row of jobq.job that COPY writes. */
typedef struct jobq_pg__copied {
    jobq_pg_job job; /* must be first: jobq_pg__is_said uses its columns on a jobq_pg_job */
    int32_t queue, kind;
    int64_t enqueued_at_us;
} jobq_pg__copied;

#define JOBQ_PG__COPIED(name, field, wire, type, flags) \
    JOBQ_PG__COL(name, jobq_pg__copied, field, wire, type, flags)
#define JOBQ_PG__COPIED_WHEN(name, field, wire, type, flags, when) \
    JOBQ_PG__COL_WHEN(name, jobq_pg__copied, field, wire, type, flags, when)
/* A COPY has the first two columns, and others if a job of the batch sets them, because defaults
 * are cheaper. */
static const jobq_pg__col jobq_pg__copy_out[] = {
    JOBQ_PG__COPIED("queue_id", queue, INT4, INT32, 0),
    JOBQ_PG__COPIED("kind_id", kind, INT4, INT32, 0),
    JOBQ_PG__COPIED_WHEN("payload", job.payload, JSONB, JSON, JOBQ_PG__UNLESS | JOBQ_PG__EXACT,
                         job.payload_bytes),
    JOBQ_PG__COPIED_WHEN("bytes", job.payload, BYTEA, BYTES, JOBQ_PG__IF | JOBQ_PG__EXACT,
                         job.payload_bytes),
    JOBQ_PG__COPIED_WHEN("headers", job.headers, JSONB, JSON, JOBQ_PG__EXACT, job.payload_bytes),
    JOBQ_PG__COPIED("run_at", job.run_at_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__COPIED("enqueued_at", enqueued_at_us, TIMESTAMPTZ, TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__COPIED("priority", job.priority, INT2, INT32, 0),
    JOBQ_PG__COPIED("stages", job.stages, INT2, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__COPIED("max_attempts", job.max_attempts, INT4, INT32, JOBQ_PG_ZERO),
    JOBQ_PG__COPIED("timeout_us", job.timeout_us, INT8, INT64, JOBQ_PG_ZERO),
    JOBQ_PG__COPIED("line_name", job.line, TEXT, TEXT, JOBQ_PG__CSTR)};
#define JOBQ_PG__COPY_MAX ((int)(sizeof jobq_pg__copy_out / sizeof jobq_pg__copy_out[0]))

typedef struct jobq_pg__columns {
    jobq_pg__col at[JOBQ_PG__COPY_MAX];
    int count;
    char text[160]; /* their names, with commas */
} jobq_pg__columns;

/* Whether a job sets a column. A run_at or a delay needs both run_at and enqueued_at. */
static bool jobq_pg__is_said(const jobq_pg__col *c, const jobq_pg_job *job)
{
    if (c->wire == JOBQ_PG__TIMESTAMPTZ) return job->run_at_us != 0 || job->delay_us != 0;
    if (c->of.offset == offsetof(jobq_pg_job, priority)) return job->priority != 0;
    return !jobq_pg__col_null(c, (const char *)job);
}

static jobq_pg__columns jobq_pg__columns_of(const jobq_pg_job *jobs, size_t count)
{
    jobq_pg__columns c;
    size_t i, at = 0;
    int k;

    memset(&c, 0, sizeof c);
    for (k = 0; k < JOBQ_PG__COPY_MAX; k++) {
        for (i = 0; k >= 2 && i < count && !jobq_pg__is_said(&jobq_pg__copy_out[k], &jobs[i]);) i++;
        if (k >= 2 && i == count) continue;
        c.at[c.count] = jobq_pg__copy_out[k];
        at += (size_t)snprintf(c.text + at, sizeof c.text - at, "%s%s", c.count++ == 0 ? "" : ", ",
                               jobq_pg__copy_out[k].of.name);
    }
    return c;
}

static void jobq_pg__copy_row(jobq_pg__params *p, const jobq_pg__columns *c, const jobq_pg_job *job,
                              const jobq_pg__bulk *bulk, int32_t kind)
{
    jobq_pg__copied row;
    int i;

    row.queue = bulk->queue;
    row.kind = (int32_t)bulk->kind_ids[kind - 1];
    row.enqueued_at_us = bulk->now_us;
    row.job = *job;
    if (row.job.run_at_us == 0) row.job.run_at_us = bulk->now_us + job->delay_us;
    if (row.job.run_at_us < bulk->now_us) row.job.run_at_us = bulk->now_us;
    if (row.job.stages == 0) row.job.stages = 1;
    jobq_pg__raw_int(p, c->count, 2);
    for (i = 0; i < c->count; i++) jobq_pg__put_item(p, &c->at[i], (const char *)&row);
}

typedef struct jobq_pg__copying {
    PGconn *conn;
    jobq_pg__params p; /* rows that are not sent yet */
    bool good;         /* nothing has failed so far */
    bool no_memory, too_large;
} jobq_pg__copying;

/* Sends the buffer if it is long enough, or if last. */
static void jobq_pg__copy_flush(jobq_pg__copying *c, bool last)
{
    if (!last && c->p.size < JOBQ_PG__CHUNK) return;
    c->no_memory = c->no_memory || c->p.failed;
    c->too_large = c->too_large || c->p.size > JOBQ_PG__MESSAGE_MAX;
    c->good = c->good && !c->no_memory && !c->too_large &&
              PQputCopyData(c->conn, c->p.data, (int)c->p.size) == 1;
    c->p.size = 0;
}

static jobq_error jobq_pg__copy_begin(jobq_pg__copying *c, PGconn *conn, const char *text,
                                      jobq_pg_error *error)
{
    static const char head[19] = "PGCOPY\n\377\r\n"; /* 11 bytes, then flags and extension: 0 */
    PGresult *res = PQexec(conn, text);
    jobq_error code =
        PQresultStatus(res) == PGRES_COPY_IN ? JOBQ_OK : jobq_pg__result_error(error, conn, res);

    PQclear(res);
    memset(c, 0, sizeof *c);
    c->conn = conn;
    c->good = true;
    jobq_pg__params_init(&c->p);
    if (code == JOBQ_OK) jobq_pg__raw(&c->p, head, sizeof head);
    return code;
}

static jobq_error jobq_pg__copy_end(jobq_pg__copying *c, jobq_pg_error *error)
{
    PGresult *res;
    jobq_error code = JOBQ_OK;

    jobq_pg__raw_int(&c->p, -1, 2);
    jobq_pg__copy_flush(c, true);
    jobq_pg__params_clear(&c->p);
    PQputCopyEnd(c->conn, c->good ? NULL : "not all rows could be sent");
    res = PQgetResult(c->conn);
    if (PQresultStatus(res) != PGRES_COMMAND_OK)
        code = jobq_pg__result_error(error, c->conn, res);
    if (c->no_memory) code = jobq_pg__no_memory(error);
    else if (c->too_large) code = jobq_pg__invalid(error, "size",
                                                   "must be at most 1 GB for each row");
    PQclear(res);
    while ((res = PQgetResult(c->conn)) != NULL) PQclear(res);
    return code;
}

/* If the rows are committed already, an error is only logged: a caller that got it would write them
 * again. Workers find them by themselves. */
static jobq_error jobq_pg__copy_wake(jobq_pg *pg, PGconn *conn, const jobq_pg__bulk *bulk,
                                     jobq_pg_error *error)
{
    bool committed = PQtransactionStatus(conn) == PQTRANS_IDLE;
    jobq_error code = jobq_pg__ask(pg, conn, JOBQ_PG__WAKE, bulk, NULL, error);
    jobq_pg_event e;

    if (code == JOBQ_OK || !committed) return code;
    e = jobq_pg__event_error(JOBQ_LEVEL_WARNING, "wake_failed", error);
    e.queue = jobq_str_from(bulk->name);
    jobq_pg__log(pg, e, "jobs are written, but no worker was woken: %s", error->message);
    return JOBQ_OK;
}

/* Gets what the rows need: ids, the database's clock, the limit of payloads. In a schema that Citus
 * distributes, which takes no COPY, the queue is 0. */
static jobq_error jobq_pg__bulk_ask(jobq_pg *pg, PGconn *conn, const jobq_pg_job *jobs,
                                    size_t count, const jobq_pg__kinds *k, jobq_pg__bulk *bulk,
                                    jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    PGresult *res;
    size_t i;

    bulk->name = jobs[0].queue;
    bulk->kinds = k->names;
    bulk->kind_count = k->count;
    bulk->stages = 1;
    bulk->count = (int32_t)count;
    for (i = 0; i < count; i++) {
        bulk->stages = jobs[i].stages > bulk->stages ? jobs[i].stages : bulk->stages;
        bulk->priority = jobs[i].priority < bulk->priority ? jobs[i].priority : bulk->priority;
        bulk->lines = bulk->lines || jobs[i].line != NULL;
    }
    res = jobq_pg__call_row(pg, conn, JOBQ_PG__BULK, bulk, bulk, error);
    if (res == NULL) return error->code;
    PQclear(res);
    if (bulk->queue == 0) return JOBQ_OK;
    if (bulk->kind_count != k->count)
        return jobq_pg__fail(error, JOBQ_ERROR_DATABASE, "bulk did not answer every kind");
    for (i = 0; i < count && code == JOBQ_OK; i++)
        code = jobq_pg__too_large(&jobs[i], (size_t)bulk->payload_max, "the queue's payload_max",
                                  error);
    return code;
}

/* Writes jobs by COPY on a connection that can take it, and wakes workers. */
static jobq_error jobq_pg__copy_jobs(jobq_pg *pg, PGconn *conn, const void *array, size_t count,
                                     jobq_pg_error *error)
{
    const jobq_pg_job *jobs = (const jobq_pg_job *)array;
    jobq_pg__kinds k = {NULL, NULL, 0};
    jobq_pg__columns columns;
    jobq_pg__copying copying;
    jobq_pg__bulk bulk;
    char text[320];
    jobq_error code;
    bool instead;
    size_t i;

    memset(&bulk, 0, sizeof bulk);
    if (jobq_pg__kinds_of(&k, jobs, count))
        bulk.kind_ids = (int64_t *)malloc((size_t)k.count * sizeof *bulk.kind_ids);
    code = bulk.kind_ids == NULL ? jobq_pg__no_memory(error)
                                 : jobq_pg__bulk_ask(pg, conn, jobs, count, &k, &bulk, error);
    instead = code == JOBQ_OK && bulk.queue == 0;
    columns = jobq_pg__columns_of(jobs, code == JOBQ_OK ? count : 0);
    snprintf(text, sizeof text, "%s%s) FROM STDIN (FORMAT binary)", pg->texts[JOBQ_PG__COPY].sql,
             columns.text);
    if (code == JOBQ_OK && !instead) code = jobq_pg__copy_begin(&copying, conn, text, error);
    if (code == JOBQ_OK && !instead) {
        for (i = 0; i < count && copying.good; i++) {
            jobq_pg__copy_row(&copying.p, &columns, &jobs[i], &bulk, k.index[i]);
            jobq_pg__copy_flush(&copying, false);
        }
        code = jobq_pg__copy_end(&copying, error);
    }
    free(bulk.kind_ids);
    jobq_pg__kinds_clear(&k);
    if (instead) return jobq_pg__enqueue_batch(pg, conn, jobs, count, NULL, error);
    if (code != JOBQ_OK || jobs[0].quiet) return code;
    return jobq_pg__copy_wake(pg, conn, &bulk, error);
}

/* Runs copy on conn or on a connection from the pool, in a transaction of its own if always, or if
 * sessions may have odd defaults. */
static jobq_error jobq_pg__copy_whole(jobq_pg *pg, PGconn *conn, bool always,
                                      jobq_error (*copy)(jobq_pg *, PGconn *, const void *, size_t,
                                                         jobq_pg_error *),
                                      const void *array, size_t count, jobq_pg_error *error)
{
    PGconn *mine = NULL;
    jobq_error code = jobq_pg__borrow(pg, conn, &mine, error);
    bool own;

    if (code != JOBQ_OK) return code;
    if (conn == NULL) conn = mine;
    own = (always || pg->behind_pooler || pg->odd) && PQtransactionStatus(conn) == PQTRANS_IDLE;
    if (own) code = jobq_pg__command(conn, JOBQ_PG__BEGIN, error);
    if (code == JOBQ_OK) code = copy(pg, conn, array, count, error);
    if (own && code == JOBQ_OK) code = jobq_pg__command(conn, "COMMIT", error);
    else if (own) PQclear(PQexec(conn, "ROLLBACK"));
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    return code;
}

/* What COPY cannot write. */
static jobq_error jobq_pg__copy_invalid(const jobq_pg_job *jobs, size_t count,
                                        jobq_pg_error *error)
{
    size_t i;

    for (i = 0; i < count; i++) {
        const char *field = jobs[i].key != NULL ? "key"
                            : jobs[i].flow != 0 ? "flow"
                            : jobq_pg__linked_job(&jobs[i]) ? "after" : NULL;
        if (field == NULL) continue;
        jobq_pg__invalid(error, field, "not allowed with JOBQ_PG_BY_COPY");
        return jobq_pg__invalid_at(error, "jobs", i);
    }
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_enqueue_many(jobq_pg *pg, PGconn *conn, const jobq_pg_job *jobs,
                                         size_t count, int64_t *ids, jobq_pg_error *error)
{
    bool by_copy = ids == JOBQ_PG_BY_COPY;
    jobq_pg_error local;
    jobq_pg__lent *lent = NULL;
    const void *rows = jobs;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && (jobs != NULL || count == 0));
    if (error == NULL) error = &local;
    code = jobq_pg__batch_invalid(pg, jobs, count, error);
    if (code == JOBQ_OK && by_copy) code = jobq_pg__copy_invalid(jobs, count, error);
    if (code != JOBQ_OK || count == 0) return code;
    code = jobq_pg__sealed(pg, &jobq_pg__job_content, &rows, count, &lent, error);
    if (code == JOBQ_OK && by_copy)
        code = jobq_pg__copy_whole(pg, conn, false, jobq_pg__copy_jobs, rows, count, error);
    else if (code == JOBQ_OK)
        code = jobq_pg__enqueue_batch(pg, conn, (const jobq_pg_job *)rows, count, ids, error);
    jobq_pg__lent_drop(&lent);
    return code;
}

/* ---- >>verbs --------------------------------------------------------------------------------- */

/* 1,000 years: for much longer ages, now minus the age would be out of range. */
#define JOBQ_PG__AGE_MAX (365250 * (int64_t)86400000000)

/* The error of a job that is in no table. standing: "none", or "gone", or a state if it has come
 * since. */
static jobq_error jobq_pg__not_found(jobq_pg_error *error, int64_t id, const char *standing)
{
    char value[24];

    snprintf(value, sizeof value, "%lld", (long long)id);
    if (strcmp(standing, "none") == 0)
        return jobq_pg__said(error, JOBQ_ERROR_NOT_FOUND, "Not found", "job", "id", value);
    jobq_pg__fail(error, JOBQ_ERROR_NOT_FOUND, "Gone: job with id=%s; it ended and is no longer "
                  "kept, was deleted, or its enqueue has not committed", value);
    jobq_pg__about(error, "job", "state", "gone");
    return JOBQ_ERROR_NOT_FOUND;
}

/* Reads a job from a row of a claim. False: the row breaks a law of jobq.h. */
static bool jobq_pg__job_from(const PGresult *res, int row, int64_t worker, int64_t claim,
                         jobq_pg__claim_row *to)
{
    jobq_job *job = &to->job;

    memset(to, 0, sizeof *to);
    jobq_pg__row(res, row, 0, jobq_pg__claimed_out, to);
    job->worker = worker;
    job->claim = claim;
    job->state = JOBQ_STATE_RUNNING;
    job->bytes = (int64_t)(to->payload.len + to->headers.len);
    return jobq_job_check(job) == JOBQ_OK;
}

JOBQ_API jobq_str jobq_pg_payload(const PGresult *result, int row, bool *bytes)
{
    jobq_pg__claim_row to;

    memset(&to, 0, sizeof to);
    jobq_pg__row(result, row, 0, jobq_pg__handed_out, &to);
    if (bytes != NULL) *bytes = to.payload_bytes;
    return to.payload;
}

/* The order in which jobs are claimed, for the rows of one answer. */
static bool jobq_pg__before(const jobq_job *a, const jobq_job *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->stage != b->stage) return a->stage > b->stage;
    if (a->run_at_us != b->run_at_us) return a->run_at_us < b->run_at_us;
    return a->id < b->id;
}

/* Reads and clears the answer of GET. NOT_FOUND: no table has the job, and error is not filled. */
static jobq_error jobq_pg__got_facts(PGresult *res, jobq_job *job, jobq_pg_error *error)
{
    jobq_pg_rows rows;
    jobq_error code = jobq_pg__rows_of(JOBQ_PG__GET, res, &rows, error);

    if (code != JOBQ_OK) return code;
    if (rows.count == 0) return JOBQ_ERROR_NOT_FOUND;
    *job = ((const jobq_pg_job_row *)rows.rows)->facts;
    jobq_pg_rows_clear(&rows);
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_get(jobq_pg *pg, PGconn *conn, int64_t id, jobq_job *job,
                                jobq_pg_error *error)
{
    jobq_pg__changing from;
    jobq_pg_error local;
    jobq_error code;
    PGresult *res;

    JOBQ_ASSERT(pg != NULL && job != NULL);
    if (error == NULL) error = &local;
    from.of.id = id;
    res = jobq_pg__call(pg, conn, JOBQ_PG__GET, &from, error);
    code = res == NULL ? error->code : jobq_pg__got_facts(res, job, error);
    if (res == NULL || code != JOBQ_ERROR_NOT_FOUND) return code;
    res = jobq_pg__call(pg, conn, JOBQ_PG__STANDING, &from, error);
    if (res == NULL) return error->code;
    code = jobq_pg__not_found(error, id, PQgetvalue(res, 0, 0));
    PQclear(res);
    return code;
}

/* -- waiting for jobs -- */

/* Looks at all jobs of a wait. channel 0: without a word to whoever ends them. */
static jobq_error jobq_pg__wait_look(jobq_pg *pg, PGconn *conn, jobq_pg__waiting *w,
                                     int64_t channel, jobq_pg_rows *jobs, jobq_pg_error *error)
{
    jobq_pg__awaiting from;
    jobq_pg_rows rows;
    jobq_error code;
    int32_t i;

    from.ids.items = w->ids;
    from.ids.count = (size_t)w->count;
    from.channel = channel;
    code = jobq_pg__ask_rows(pg, conn, JOBQ_PG__AWAIT, &from, &rows, error);
    if (code != JOBQ_OK) return code;
    jobq_pg_rows_clear(rows.count > 0 ? jobs : &rows);
    if (rows.count == 0) return JOBQ_OK; /* none has ended */
    *jobs = rows;
    jobq_pg__os_lock(&pg->lock);
    for (i = w->left = w->open = 0; i < w->count; i++) {
        jobq_state state = ((const jobq_pg_job_row *)rows.rows)[i].facts.state;
        bool ended = jobq_state_final(state) || (int)state == 0;
        w->missed = w->missed || (w->written && ended && !w->ended[i]);
        w->ended[i] = ended;
        w->left += !ended;
        w->open += !ended;
    }
    jobq_pg__os_unlock(&pg->lock);
    return JOBQ_OK;
}

/* A session that LISTENs first reads the server's whole queue of notifications, and nothing stops
 * it. One that is long, because some session holds it, would take minutes: then we poll. */
#define JOBQ_PG__SHORT_QUEUE                                                                       \
    "SELECT (pg_catalog.pg_notification_queue_usage() < 0.01)::pg_catalog.text"

/* Reads the answer to LISTEN, or to that question, whose answer is *may. False: it failed, or the
 * queue is long. */
static bool jobq_pg__listen_read(const PGconn *conn, const PGresult *res, bool *may,
                                 jobq_pg_error *error)
{
    ExecStatusType status = PQresultStatus(res);

    if (status == PGRES_COMMAND_OK) return true;
    *may = status == PGRES_TUPLES_OK && PQgetvalue(res, 0, 0)[0] == 't';
    if (*may) return true;
    if (status != PGRES_TUPLES_OK) jobq_pg__result_error(error, conn, res);
    else jobq_pg__fail(error, JOBQ_ERROR_RETRYABLE, "the server's queue of notifications is long: "
                       "jobq doctor says which session holds it");
    return false;
}

/* LISTEN on a channel, which is random or a worker's id. */
static const char *jobq_pg__listen_sql(char sql[64], int64_t channel)
{
    snprintf(sql, 64, "LISTEN jobq_%llx", (unsigned long long)channel);
    return sql;
}

/* A notification of ends: "ended", and ids in hexadecimal. NULL: it is another. */
static const char *jobq_pg__ended_ids(const char *text)
{
    return strncmp(text, "ended", 5) == 0 ? text + 5 : NULL;
}

/* The next of these ids. False: there is none. */
static bool jobq_pg__ended_next(const char **ids, int64_t *id)
{
    char *end;

    if (*ids == NULL || **ids != ' ') return false;
    *id = (int64_t)strtoull(*ids + 1, &end, 16);
    *ids = end;
    return true;
}

/* The next pause between two looks for an end; with notifications looks are just in case. */
static int64_t jobq_pg__nap_next(int64_t us, bool hears)
{
    int64_t most = hears ? 4096000 : 250000;

    return 2 * us < most ? 2 * us : most;
}

/* The lock is held. */
static void jobq_pg__ear_heard(jobq_pg__ear *ear, const char *text)
{
    const char *ids = jobq_pg__ended_ids(text);
    jobq_pg__waiting *w;
    int64_t id;
    int32_t i;

    while (jobq_pg__ended_next(&ids, &id)) {
        for (w = ear->waiting; w != NULL; w = w->next) {
            for (i = 0; i < w->count; i++) {
                if (w->ids[i] != id || w->ended[i]) continue;
                w->ended[i] = true;
                if (--w->left == 0) jobq_pg__os_wake_one(&w->news);
            }
        }
    }
}

static bool jobq_pg__ear_says(PGconn *conn, const char *sql, jobq_pg_error *error)
{
    PGresult *res = PQexec(conn, sql);
    bool may = false, good = jobq_pg__listen_read(conn, res, &may, error);

    PQclear(res);
    return good;
}

/* Makes the connection. NULL: it cannot be made now; error is filled. */
static PGconn *jobq_pg__ear_connect(const jobq_pg *pg, int64_t channel, jobq_pg_error *error)
{
    const char *past = pg->listen_conninfo;
    PGconn *conn = jobq_pg__dial_up(pg, past != NULL ? past : pg->conninfo, NULL, error);
    char sql[64];

    if (conn == NULL) return NULL;
    PQsetNoticeReceiver(conn, jobq_pg__on_notice, (void *)(uintptr_t)pg);
    if (jobq_pg__ear_says(conn, JOBQ_PG__SHORT_QUEUE, error) &&
        jobq_pg__ear_says(conn, jobq_pg__listen_sql(sql, channel), error)) return conn;
    PQfinish(conn);
    return NULL;
}

/* Waits for input on the connection until an instant. False: the connection is lost. */
static bool jobq_pg__ear_listen(PGconn *conn, int64_t until)
{
    int64_t wait_us = until - jobq_pg__mono_us();

    if (wait_us > 0) jobq_pg__conn_poll(conn, POLLIN, wait_us);
    return PQconsumeInput(conn) != 0 && PQstatus(conn) == CONNECTION_OK;
}

static bool jobq_pg__ear_up(jobq_pg *pg)
{
    bool up;

    jobq_pg__os_lock(&pg->lock);
    up = pg->ear.conn != NULL;
    jobq_pg__os_unlock(&pg->lock);
    return up;
}

/* Uses the ear until an instant, or until it hears something. The lock is held, but not
 * meanwhile. */
static void jobq_pg__ear_use(jobq_pg *pg, int64_t until)
{
    jobq_pg__ear *ear = &pg->ear;
    PGconn *conn = ear->conn;
    bool makes = conn == NULL, good;
    jobq_pg_error error;
    PGnotify *n;

    ear->used = true;
    jobq_pg__os_unlock(&pg->lock);
    if (makes) conn = jobq_pg__ear_connect(pg, ear->channel, &error);
    good = makes ? conn != NULL : jobq_pg__ear_listen(conn, until);
    if (makes && !good && !ear->deaf)
        jobq_pg__log(pg, jobq_pg__event_error(JOBQ_LEVEL_WARNING, "listen_failed", &error),
                     "LISTEN: %s; meanwhile waits look four times a second", error.message);
    if (makes) ear->deaf = !good;
    if (!good) PQfinish(conn);
    jobq_pg__os_lock(&pg->lock);
    ear->used = false;
    ear->conn = good ? conn : NULL;
    if (!good) ear->retry_mono_us = jobq_pg__mono_us() + JOBQ_SECONDS(1);
    while (good && (n = PQnotifies(conn)) != NULL) {
        jobq_pg__ear_heard(ear, n->extra);
        PQfreemem(n);
    }
}

/* Waits until all jobs of the wait have ended, as far as the ear hears, or until an instant. */
static void jobq_pg__wait_news(jobq_pg *pg, jobq_pg__waiting *w, int64_t until)
{
    bool hears = !pg->no_pool && (!pg->behind_pooler || pg->listen_conninfo != NULL);
    jobq_pg__ear *ear = &pg->ear;
    jobq_pg__waiting *other;
    int64_t now;

    jobq_pg__os_lock(&pg->lock);
    while (w->left > 0 && (now = jobq_pg__mono_us()) < until) {
        bool up = ear->conn != NULL;
        if (hears && !ear->used && (up || ear->retry_mono_us <= now)) {
            jobq_pg__ear_use(pg, until);
            if (!up) break; /* await can write where it listens now */
        } else jobq_pg__os_wait(&w->news, &pg->lock, until);
    }
    for (other = ear->waiting; other == w || (other != NULL && other->left == 0);)
        other = other->next;
    if (other != NULL && !ear->used) jobq_pg__os_wake_one(&other->news);
    jobq_pg__os_unlock(&pg->lock);
}

static void jobq_pg__wait_join(jobq_pg *pg, jobq_pg__waiting *w)
{
    uint64_t bits = 0;

    jobq_pg__os_cond_init(&w->news);
    jobq_pg__os_lock(&pg->lock);
    while (pg->ear.channel == 0 && jobq_pg_random(&bits)) pg->ear.channel = (int64_t)bits;
    w->next = pg->ear.waiting;
    pg->ear.waiting = w;
    jobq_pg__os_unlock(&pg->lock);
}

static void jobq_pg__wait_leave(jobq_pg *pg, jobq_pg__waiting *w)
{
    jobq_pg__waiting **at = &pg->ear.waiting;

    jobq_pg__os_lock(&pg->lock);
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    jobq_pg__os_unlock(&pg->lock);
    jobq_pg__os_cond_end(&w->news);
}

/* Looks again and again. The first time that the ear is up, it writes that it waits, at once: a
 * job that ends meanwhile tells it. A connection that is lost is no reason to give up, and neither
 * is a pool that is busy. */
static jobq_error jobq_pg__wait_until(jobq_pg *pg, PGconn *conn, jobq_pg__waiting *w, int64_t until,
                                      jobq_pg_rows *jobs, jobq_pg_error *error)
{
    jobq_pg_error none;
    jobq_pg__awaiting from;
    int64_t now, nap_us = 1000;
    jobq_error code = JOBQ_OK;
    bool up;

    while (w->open > 0 && ((now = jobq_pg__mono_us()) < until ||
                           (jobs->count == 0 && code == JOBQ_OK))) {
        up = jobq_pg__ear_up(pg);
        w->written = w->written && up;
        if (w->written || !up)
            jobq_pg__wait_news(pg, w, nap_us > until - now ? until : now + nap_us);
        code = jobq_pg__wait_look(pg, conn, w, w->written || !up ? 0 : pg->ear.channel, jobs,
                                  error);
        w->written = up && code == JOBQ_OK;
        if (code != JOBQ_OK && (conn != NULL || (code != JOBQ_ERROR_CONNECTION &&
                                                 code != JOBQ_ERROR_FULL))) return code;
        nap_us = jobq_pg__nap_next(nap_us, up);
    }
    if (w->open == 0 && !w->missed) return code;
    from.ids.items = w->ids;
    from.ids.count = (size_t)w->count;
    from.channel = pg->ear.channel;
    jobq_pg__ask(pg, conn, JOBQ_PG__UNAWAIT, &from, NULL, &none);
    return code;
}

/* Of a wait whose jobs have all ended: whether some of them are not there. */
static jobq_error jobq_pg__wait_missed(jobq_pg *pg, PGconn *conn, const jobq_pg_rows *jobs,
                                       jobq_pg_error *error)
{
    const jobq_pg_job_row *rows = (const jobq_pg_job_row *)jobs->rows;
    jobq_job job;
    int64_t i;

    for (i = 0; i < (int64_t)jobs->count; i++) {
        if ((int)rows[i].facts.state == 0)
            return jobq_pg_get(pg, conn, rows[i].facts.id, &job, error);
    }
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_wait(jobq_pg *pg, PGconn *conn, const int64_t *ids, int32_t count,
                                 int64_t timeout_us, jobq_pg_rows *jobs, jobq_pg_error *error)
{
    int64_t now = jobq_pg__mono_us();
    int64_t until = jobq_pg__deadline(now, timeout_us);
    jobq_pg_error local;
    jobq_pg_rows rows;
    jobq_pg__waiting w;
    jobq_error code = JOBQ_OK;

    JOBQ_ASSERT(pg != NULL && (ids != NULL || count == 0));
    if (error == NULL) error = &local;
    if (jobs == NULL) jobs = &rows;
    memset(jobs, 0, sizeof *jobs);
    if (count == 0) return JOBQ_OK;
    if (count < 0) return jobq_pg__invalid_int(error, "count", count, "must not be negative");
    if (jobq_pg__forked(pg)) return jobq_pg__forked_error(error);
    if (conn != NULL && PQtransactionStatus(conn) != PQTRANS_IDLE)
        return jobq_pg__invalid(error, "conn",
                                "must not be in a transaction: no worker sees the jobs that it "
                                "enqueued; commit it first");
    memset(&w, 0, sizeof w);
    w.ids = ids;
    w.count = w.left = w.open = count;
    w.ended = (bool *)calloc((size_t)count, sizeof *w.ended);
    if (w.ended == NULL) return jobq_pg__no_memory(error);
    jobq_pg__wait_join(pg, &w);
    if (timeout_us <= 0 || !jobq_pg__ear_up(pg))
        code = jobq_pg__wait_look(pg, conn, &w, 0, jobs, error);
    if ((code == JOBQ_OK || (code == JOBQ_ERROR_FULL && conn == NULL)) && w.open > 0 &&
        timeout_us > 0) code = jobq_pg__wait_until(pg, conn, &w, until, jobs, error);
    jobq_pg__wait_leave(pg, &w);
    if (code == JOBQ_OK && w.open > 0)
        code = jobq_pg__fail(error, JOBQ_ERROR_TIMEOUT, "%d of %d jobs have not ended: wait for "
                             "them again, or see jobq_pg_explain", (int)w.open, (int)count);
    else if (code == JOBQ_OK) code = jobq_pg__wait_missed(pg, conn, jobs, error);
    free(w.ended);
    if (jobs == &rows) jobq_pg_rows_clear(jobs);
    return code;
}

JOBQ_API jobq_error jobq_pg_explain(jobq_pg *pg, PGconn *conn, int64_t id, char *text, size_t size,
                                    jobq_pg_error *error)
{
    jobq_pg__changing from;
    jobq_pg_ending to;
    jobq_pg_error local;
    PGresult *res;
    size_t at = 0;
    int i;

    JOBQ_ASSERT(pg != NULL && text != NULL);
    if (size == 0) return jobq_pg__invalid(error, "size", "must be at least 1");
    if (error == NULL) error = &local;
    text[0] = '\0';
    memset(&from, 0, sizeof from);
    memset(&to, 0, sizeof to);
    from.of.id = id;
    res = jobq_pg__call(pg, conn, JOBQ_PG__EXPLAIN, &from, error);
    if (res == NULL) return error->code;
    for (i = 0; i < PQntuples(res) && at + 1 < size; i++) {
        if (at > 0) text[at++] = '\n';
        jobq_pg__row(res, i, 0, jobq_pg__explain_out, &to);
        jobq_pg__copy_str(text + at, size - at, to.error);
        at += strlen(text + at);
    }
    PQclear(res);
    return JOBQ_OK;
}

/* ---- >>request: a request as a statement, and a result as an answer -------------------------- */

/* Of a COMPLETE: some ending needs more than to say that the job has succeeded. */
static jobq_pg__statement jobq_pg__complete_of(const jobq_request *a, const jobq_pg_content *c)
{
    int32_t i;

    for (i = 0; c->endings != NULL && i < a->ending_count; i++) {
        const jobq_pg_ending *with = &c->endings[i];
        if (with->payload.ptr != NULL || with->log.ptr != NULL) return JOBQ_PG__COMPLETE_WITH;
    }
    return JOBQ_PG__COMPLETE;
}

/* The statement of a request; STATEMENT_COUNT: it needs none. */
static jobq_pg__statement jobq_pg__statement_of(const jobq_request *a, const jobq_pg_content *c)
{
    switch (a->kind) {
    case JOBQ_REQUEST_REGISTER: return JOBQ_PG__REGISTER;
    case JOBQ_REQUEST_POLICIES: return JOBQ_PG__POLICIES;
    case JOBQ_REQUEST_CLAIM: return JOBQ_PG__CLAIM;
    case JOBQ_REQUEST_RECOVER: return JOBQ_PG__RECOVER;
    case JOBQ_REQUEST_COMPLETE: return jobq_pg__complete_of(a, c);
    case JOBQ_REQUEST_SETTLE: return JOBQ_PG__SETTLE;
    case JOBQ_REQUEST_HEARTBEAT: return a->claim != 0 ? JOBQ_PG__BEAT_CLAIM : JOBQ_PG__HEARTBEAT;
    case JOBQ_REQUEST_RESCUE: return JOBQ_PG__RESCUE;
    case JOBQ_REQUEST_SLEEP: return JOBQ_PG__SLEEP;
    case JOBQ_REQUEST_UNPARK: return JOBQ_PG__UNPARK;
    case JOBQ_REQUEST_TICK: return JOBQ_PG__TICK;
    case JOBQ_REQUEST_PRUNE: return JOBQ_PG__PRUNE;
    case JOBQ_REQUEST_VACUUM: return JOBQ_PG__VACUUM;
    case JOBQ_REQUEST_DEREGISTER: return JOBQ_PG__DEREGISTER;
    case JOBQ_REQUEST_REMAIN: return JOBQ_PG__REMAINS;
    case JOBQ_REQUEST_SET_ASIDE: return JOBQ_PG__SET_ASIDE;
    case JOBQ_REQUEST_LOOK: return JOBQ_PG__OUTBOX_LOOK;
    case JOBQ_REQUEST_READ: return JOBQ_PG__OUTBOX_READ;
    case JOBQ_REQUEST_ACK: return JOBQ_PG__OUTBOX_ACK;
    case JOBQ_REQUEST_RENEW: return JOBQ_PG__OUTBOX_RENEW;
    case JOBQ_REQUEST_WAIT:
    case JOBQ_REQUEST_CONNECT:
    case JOBQ_REQUEST_DISCONNECT:
    case JOBQ_REQUEST_ABANDON:
    case JOBQ_REQUEST_EXIT:
    case JOBQ_REQUEST_COUNT: break;
    }
    return JOBQ_PG__STATEMENT_COUNT;
}

/* Puts a claim's endings next to each other, as the function complete expects them. */
static int jobq_pg__by_claim(const void *a, const void *b)
{
    const jobq_ending *x = &((const jobq_pg__end_row *)a)->of;
    const jobq_ending *y = &((const jobq_pg__end_row *)b)->of;

    if (x->worker != y->worker) return x->worker < y->worker ? -1 : 1;
    if (x->claim != y->claim) return x->claim < y->claim ? -1 : 1;
    return x->job < y->job ? -1 : x->job > y->job;
}

static void jobq_pg__ends_group(jobq_pg__ends *ends)
{
    jobq_pg__end_row *rows = ends->rows, *first = rows;
    int32_t i;

    qsort(rows, (size_t)ends->count, sizeof *rows, jobq_pg__by_claim);
    for (i = 0; i < ends->count; i++) {
        if (rows[i].of.worker != first->of.worker || rows[i].of.claim != first->of.claim)
            first = &rows[i];
        rows[i].group = 0;
        first->group++;
    }
}

static bool jobq_pg__is_dead(uint8_t outcome)
{
    return outcome == JOBQ_RESULT_EXCEEDED || outcome == JOBQ_RESULT_REJECT;
}

/* The arguments of outbox_ack for a delivery. dead has room for all its messages. */
static jobq_pg__ack jobq_pg__ack_of(const jobq_ack *a, int64_t partition_id,
                                    const jobq_holder *token, const jobq_pg_content *c,
                                    jobq_pg__dead *dead)
{
    static const char refused[] = "the server refused the error's text";
    const jobq_cursor *after = &a->plan.cursor;
    const jobq_directive *directive = &a->plan.directive;
    jobq_pg__ack ack;
    int32_t i;

    memset(&ack, 0, sizeof ack);
    ack.token = *token;
    ack.partition_id = partition_id;
    ack.before = a->before;
    ack.acked = after->acked;
    ack.tried = after->tried;
    ack.tried_count = after->tried_count;
    ack.failures = after->mode.failures;
    ack.successes = after->mode.successes;
    ack.effective = after->mode.state == JOBQ_PARTITION_DEGRADED ? after->mode.effective : 0;
    ack.delay_us = directive->kind == JOBQ_DIRECTIVE_SLEEP ? directive->delay_us : 0;
    ack.own = c->in_transaction;
    ack.dead = dead;
    for (i = 0; i < a->plan.done; i++) {
        if (!jobq_pg__is_dead(a->results[i])) continue;
        dead[ack.dead_count].seq = c->messages[i].seq;
        dead[ack.dead_count].attempts = c->messages[i].attempts + (i < a->given);
        dead[ack.dead_count++].reason =
            a->bare ? refused : c->reasons == NULL ? NULL : c->reasons[i];
    }
    if (a->plan.failed < 0) return ack;
    ack.error = a->bare ? jobq_str_from(refused) : c->error;
    return ack;
}

static void jobq_pg__put_register(jobq_pg__params *p, const jobq_request *a,
                                  const jobq_pg_content *c)
{
    jobq_pg__registering from;
    char host[256] = "";

    jobq_pg__os_host(host, sizeof host);
    from.worker = a->worker;
    from.lease_us = a->lease_us;
    from.name = c->name;
    from.queues = c->queues;
    from.kind_queues = c->kind_queues;
    from.kinds = c->kinds;
    from.queue_count = c->queue_count;
    from.kind_count = c->kind_count;
    from.library = jobq_pg__newest();
    from.host = host;
    from.pid = jobq_pg__os_pid();
    jobq_pg__put(p, jobq_pg__register_in, &from);
}

static void jobq_pg__put_endings(jobq_pg__params *p, jobq_pg__statement st, const jobq_request *a,
                                 const jobq_pg_content *c)
{
    static const jobq_pg_ending nothing = {{NULL, 0}, {NULL, 0}, false, {NULL, 0}};
    jobq_pg__ends from = {NULL, a->ending_count};
    int32_t i;

    from.rows = (jobq_pg__end_row *)malloc(((size_t)a->ending_count + 1) * sizeof *from.rows);
    if (from.rows == NULL) {
        p->failed = true;
        return;
    }
    for (i = 0; i < a->ending_count; i++) {
        from.rows[i].of = a->endings[i];
        from.rows[i].with = c->endings == NULL ? nothing : c->endings[i];
    }
    jobq_pg__ends_group(&from);
    jobq_pg__put(p, jobq_pg__specs[st].in, &from);
    free(from.rows);
}

static void jobq_pg__put_ack(jobq_pg__params *p, const jobq_request *a, const jobq_pg_content *c)
{
    jobq_pg__dead dead[JOBQ_LOOP_BATCH];
    jobq_holder token = {a->worker, a->claim, 0, a->lease_us};
    jobq_pg__ack from = jobq_pg__ack_of(&a->ack, a->partition_id, &token, c, dead);

    from.limit = a->limit;
    from.relaxed = a->relaxed;
    from.bytes = a->bytes;
    from.sweep = a->sweep;
    jobq_pg__put(p, jobq_pg__ack_in, &from);
}

static void jobq_pg__put_aside(jobq_pg__params *p, const jobq_request *a, const jobq_pg_content *c)
{
    char reason[JOBQ_ERROR_MAX + 1];
    jobq_pg__aside from;

    jobq_utf8_mend(reason, JOBQ_ERROR_MAX, c->error);
    from.job = a->id;
    from.bytes = a->bytes;
    from.reason = reason;
    jobq_pg__put(p, jobq_pg__set_aside_in, &from);
}

/* Adds a request's parameters: what it says, and what the content adds. progress: of a heartbeat;
 * NULL: none. */
static void jobq_pg__put_request(jobq_pg__params *p, jobq_pg__statement st, const jobq_request *a,
                                 const jobq_pg_content *c, const jobq_pg__progresses *progress)
{
    static const jobq_pg__progresses nothing = {NULL, 0};

    if (a->kind == JOBQ_REQUEST_REGISTER) jobq_pg__put_register(p, a, c);
    else if (a->kind == JOBQ_REQUEST_ACK) jobq_pg__put_ack(p, a, c);
    else if (a->kind == JOBQ_REQUEST_SET_ASIDE) jobq_pg__put_aside(p, a, c);
    else if (a->kind == JOBQ_REQUEST_COMPLETE || a->kind == JOBQ_REQUEST_SETTLE)
        jobq_pg__put_endings(p, st, a, c);
    else jobq_pg__put(p, jobq_pg__specs[st].in, a);
    if (a->kind != JOBQ_REQUEST_HEARTBEAT) return;
    jobq_pg__put(p, jobq_pg__progress_in, progress == NULL ? &nothing : progress);
    if (st == JOBQ_PG__BEAT_CLAIM) jobq_pg__put(p, jobq_pg__claim_in, a);
}

/* -- a result as an answer -- */

/* A statement that was sent, and what we need of its request to read the answer. WAIT: a statement
 * without a request, of which only a failure counts. */
typedef struct jobq_pg__async jobq_pg__async;
typedef struct jobq_pg__pending {
    jobq_request_kind kind;
    jobq_pg__async *async; /* an asynchronous call of the host; then kind is WAIT. Else NULL */
    jobq_pg__statement st;
    int64_t worker, claim, id;
    int32_t slot, limit;
    uint32_t generation;
    bool names;       /* a claim of 0 bytes, which only returns the id of the first job */
    bool listens;     /* LISTEN, or the question before it: the worker does without */
    PGresult *result; /* the first error, else the last result */
} jobq_pg__pending;

static jobq_pg__pending jobq_pg__pending_of(const jobq_request *a, jobq_pg__statement st)
{
    jobq_pg__pending p;

    memset(&p, 0, sizeof p);
    p.kind = a->kind;
    p.st = st;
    p.worker = a->worker;
    p.claim = a->claim;
    p.id = a->id;
    p.slot = a->slot;
    p.limit = a->limit;
    p.generation = a->generation;
    p.names = a->bytes == 0;
    return p;
}

/* What an answer contains besides the jobq_answer. */
typedef struct jobq_pg__found {
    int *rows;             /* of each claimed job: its row in the result; the caller's memory */
    int32_t rows_max;
    jobq_pg__registering registered; /* REGISTER */
    jobq_pg__portion portion;        /* READ, ACK; it owns the result */
    int64_t odd;           /* id of a claimed job that breaks a law of jobq.h; 0: none */
} jobq_pg__found;

/* Reads the messages of a portion. False: malformed, or out of memory. */
static bool jobq_pg__portion_messages(jobq_pg__portion *r)
{
    const jobq_pg__col *c = jobq_pg__reading_out;
    int at = 0, i;
    size_t start, count = 0;

    while (c[at].list != &jobq_pg__arrived) at++;
    if (PQgetisnull(r->result, 0, at) ||
        !jobq_pg__array_head(PQgetvalue(r->result, 0, at), (size_t)PQgetlength(r->result, 0, at),
                             &start, &count) || count > INT32_MAX / 2)
        return false;
    r->messages = (jobq_message *)calloc(count + 1, sizeof *r->messages);
    r->count = (int32_t)count;
    if (r->messages == NULL || r->of.cursor.acked > INT64_MAX - r->count) return false;
    jobq_pg__row(r->result, 0, at, c + at, r);
    for (i = 0; i < r->count; i++) {
        jobq_message *m = &r->messages[i];
        m->seq = r->of.cursor.acked + 1 + i;
        m->attempts =
            r->of.cursor.tried_count == 0 ? 0 : jobq_cursor_attempts(&r->of.cursor, m->seq);
    }
    return r->count == (int32_t)count;
}

static void jobq_pg__portion_clear(jobq_pg__portion *portion)
{
    free(portion->messages);
    PQclear(portion->result);
    memset(portion, 0, sizeof *portion);
}

/* Reads an answer of outbox_read or outbox_ack. Takes the result, also if it fails. */
static jobq_error jobq_pg__portion_of(PGresult *res, jobq_pg__portion *r)
{
    jobq_cursor *c = &r->of.cursor;
    bool good = PQntuples(res) == 1;

    memset(r, 0, sizeof *r);
    r->result = res;
    if (good) jobq_pg__row(res, 0, 0, jobq_pg__reading_out, r);
    c->mode.state = c->mode.effective > 0 ? JOBQ_PARTITION_DEGRADED : JOBQ_PARTITION_NORMAL;
    good = good && jobq_cursor_check(c) == JOBQ_OK &&
           (r->answer != 'h' || jobq_pg__portion_messages(r));
    if (good) return JOBQ_OK;
    jobq_pg__portion_clear(r);
    return JOBQ_ERROR_DATABASE;
}

/* Inserts a job in claiming order. Rows come almost in this order, because they were written
 * almost in it: most jobs belong at the end. */
static void jobq_pg__claimed_add(jobq_claimed *c, int *rows, const jobq_job *job, int row)
{
    int at = c->count, low = at, after;

    if (at > 0 && jobq_pg__before(job, &c->jobs[at - 1])) low = 0;
    while (low < at) {
        int middle = low + (at - low) / 2;
        if (jobq_pg__before(job, &c->jobs[middle])) at = middle;
        else low = middle + 1;
    }
    after = c->count++ - at;
    memmove(&c->jobs[at + 1], &c->jobs[at], (size_t)after * sizeof *c->jobs);
    memmove(&rows[at + 1], &rows[at], (size_t)after * sizeof *rows);
    c->jobs[at] = *job;
    rows[at] = row;
}

/* A role that may write to the table can store numbers that no job has. The nearest valid ones are
 * used. */
static void jobq_pg__job_mend(jobq_job *job)
{
    if (job->attempt < 1) job->attempt = 1;
    if (job->crash < 0) job->crash = 0;
    if (job->stages > JOBQ_STAGES_MAX) job->stages = JOBQ_STAGES_MAX;
}

/* What a claim saw in lines: where the walks through queues stopped, and which lines of lanes were
 * walked. */
static void jobq_pg__claimed_saw(jobq_claimed *c, const PGresult *r, int row)
{
    jobq_pg__saw saw;
    int32_t i;

    memset(&saw, 0, sizeof saw);
    jobq_pg__row(r, row, JOBQ_PG__COUNT(jobq_pg__claimed_out), jobq_pg__saw_out, &saw);
    for (i = 0; i + JOBQ_PG__WALK <= saw.walks_count; i += JOBQ_PG__WALK) {
        jobq_walk *walk = &c->walks[c->walk_count++];
        walk->queue = (int32_t)saw.walks[i];
        walk->after = saw.walks[i + 1];
        walk->due_us = saw.walks[i + 2];
    }
    for (i = 0; i + JOBQ_PG__STRETCH <= saw.stretches_count; i += JOBQ_PG__STRETCH) {
        jobq_stretch *s = &c->stretches[c->stretch_count++];
        s->queue = (int32_t)saw.stretches[i];
        s->priority = (int16_t)saw.stretches[i + 1];
        s->stage = (int16_t)saw.stretches[i + 2];
        s->whole = saw.stretches[i + 3] != 0;
        s->to = saw.stretches[i + 4];
        s->low_at_us = saw.stretches[i + 5];
        s->low_id = saw.stretches[i + 6];
    }
}

static void jobq_pg__got_claim(const jobq_pg__pending *p, const PGresult *r, jobq_claimed *c,
                               jobq_pg__found *f)
{
    jobq_pg__claim_row row;
    int i;

    for (i = 0; i < PQntuples(r); i++) {
        bool good = jobq_pg__job_from(r, i, p->worker, p->claim, &row);
        if (row.job.id == 0) {
            c->suspects = row.job.suspect;
            c->alone = row.job.alone;
            c->due_us = row.due_us;
            if (c->walk_count == 0) jobq_pg__claimed_saw(c, r, i);
            continue;
        }
        if (p->names) {
            c->named = row.job.id;
            return;
        }
        if (c->count >= f->rows_max) continue;
        if (!good) f->odd = row.job.id;
        if (!good) jobq_pg__job_mend(&row.job);
        jobq_pg__claimed_add(c, f->rows, &row.job, i);
    }
}

/* Reads which endings were not written, and why; and whether others are ready now. */
static void jobq_pg__got_exceptions(const PGresult *r, jobq_answer *a)
{
    int i;

    for (i = 0; i < PQntuples(r) && a->count < JOBQ_ENDINGS_MAX; i++) {
        jobq_exception *e = &a->exceptions[a->count];
        int32_t letter = 0;
        memset(e, 0, sizeof *e);
        jobq_pg__row(r, i, 0, jobq_pg__exception_out, e);
        memcpy(&letter, &e->error, sizeof letter);
        e->error = letter == 'b' ? JOBQ_ERROR_BUSY : JOBQ_ERROR_LOST;
        if (letter == 'r') a->more = true;
        else a->count++;
    }
}

static void jobq_pg__got_register(const PGresult *r, jobq_answer *a, jobq_pg__registering *reg)
{
    int32_t queues = reg->queue_count, kinds = reg->kind_count;

    jobq_pg__row(r, 0, 0, jobq_pg__register_out, reg);
    if (reg->queue_count != queues || reg->kind_count != kinds) {
        a->error = JOBQ_ERROR_DATABASE;
        return;
    }
    a->count = queues;
    memcpy(a->queues, reg->queue_ids, sizeof a->queues);
    a->kind_count = kinds;
    memcpy(a->kinds, reg->kind_ids, sizeof a->kinds);
}

static void jobq_pg__got_rescue(const PGresult *r, jobq_answer *a)
{
    jobq_pg__rescue_row row;

    memset(&row, 0, sizeof row);
    jobq_pg__row(r, 0, 0, jobq_pg__rescue_out, &row);
    a->done = row.dead;
    a->count = row.rescued;
    a->more = row.more;
}

/* Reads the policy of a queue, or of a kind: then its id is returned, else 0. An invalid backoff is
 * replaced, because the row is outside data, and jobq.h would assert. */
static int32_t jobq_pg__policy(const PGresult *r, int row, jobq_queue_policy *q)
{
    jobq_pg__policy_row to;

    memset(&to, 0, sizeof to);
    jobq_pg__row(r, row, 0, jobq_pg__policy_out, &to);
    *q = to.of;
    q->policy.backoff.curve = (jobq_curve)jobq_enum_from(JOBQ_ENUM_CURVE, to.curve);
    if (q->policy.backoff.jitter_permille == 0) q->policy.backoff.jitter_permille = JOBQ_NO_JITTER;
    if (jobq_backoff_check(&q->policy.backoff) != JOBQ_OK)
        q->policy.backoff = jobq_backoff_defaults(NULL);
    return to.kind;
}

static void jobq_pg__got_policies(const PGresult *r, jobq_answer *a)
{
    jobq_queue_policy q;
    int row;

    for (row = 0; row < PQntuples(r); row++) {
        int32_t kind = jobq_pg__policy(r, row, &q);
        if (kind == 0 && a->count < JOBQ_LOOP_QUEUES) a->policies[a->count++] = q;
        if (kind == 0 || a->kind_policy_count == JOBQ_LOOP_KINDS) continue;
        a->kind_policies[a->kind_policy_count].kind = kind;
        a->kind_policies[a->kind_policy_count++].policy = q.policy;
    }
}

static void jobq_pg__got_look(const jobq_pg__pending *p, const PGresult *r, jobq_answer *a)
{
    int row;

    for (row = 0; row < PQntuples(r) && row < p->limit && row < JOBQ_BACKLOGS_MAX; row++) {
        jobq_backlog *b = &a->backlogs[row];
        memset(b, 0, sizeof *b);
        jobq_pg__row(r, row, 0, jobq_pg__backlog_out, b);
        b->queue = (int32_t)(b->id >> 15);
        b->number = (int32_t)(b->id & 32767);
        if (b->holder.worker == 0) memset(&b->holder, 0, sizeof b->holder);
    }
    a->count = row;
    a->more = PQntuples(r) > row;
}

/* Reads the answer to a READ or an ACK, and takes the result. */
static void jobq_pg__got_reading(PGresult *r, jobq_answer *a, jobq_pg__portion *portion)
{
    jobq_reading *to = &a->reading;
    int32_t answer;

    a->error = jobq_pg__portion_of(r, portion);
    answer = portion->answer;
    if (a->error == JOBQ_OK && answer == 'l') a->error = JOBQ_ERROR_LOST;
    if (a->error != JOBQ_OK) return;
    if (answer == 'h') {
        to->cursor = portion->of.cursor;
        to->lost = portion->of.lost;
        to->count = portion->count;
        to->cut = portion->of.cut;
    }
    to->busy = answer == 'b';
    to->aside = answer == 'a';
    if (answer == 'w') to->due_us = portion->wait_us;
    if (answer != 'o') return;
    to->holder = portion->of.holder;
    to->holder.lease_us = portion->wait_us;
}

/* Reads a successful result. True: f->portion has taken it. */
static bool jobq_pg__got(const jobq_pg__pending *p, PGresult *r, jobq_answer *a, jobq_pg__found *f)
{
    jobq_pg__losses losses = {{0}, 0};

    switch (p->kind) {
    case JOBQ_REQUEST_REGISTER: jobq_pg__got_register(r, a, &f->registered); break;
    case JOBQ_REQUEST_POLICIES: jobq_pg__got_policies(r, a); break;
    case JOBQ_REQUEST_HEARTBEAT: /* the news come after the job's columns */
        jobq_pg__row(r, 0, p->claim != 0 ? JOBQ_PG__CLAIM_WIDTH : 0, jobq_pg__news_out, &a->news);
        if (p->claim != 0) jobq_pg__got_claim(p, r, &a->claimed, f);
        break;
    case JOBQ_REQUEST_CLAIM: jobq_pg__got_claim(p, r, &a->claimed, f); break;
    case JOBQ_REQUEST_COMPLETE:
    case JOBQ_REQUEST_SETTLE: jobq_pg__got_exceptions(r, a); break;
    case JOBQ_REQUEST_RECOVER:
    case JOBQ_REQUEST_REMAIN: a->more = jobq_pg__int(r, 0, 0) != 0; break;
    case JOBQ_REQUEST_SET_ASIDE: a->done = jobq_pg__int(r, 0, 0) != 0; break;
    case JOBQ_REQUEST_RESCUE: jobq_pg__got_rescue(r, a); break;
    case JOBQ_REQUEST_TICK: jobq_pg__row(r, 0, 0, jobq_pg__tick_out, a); break;
    case JOBQ_REQUEST_UNPARK:
        a->count = (int32_t)jobq_pg__int(r, 0, 0);
        a->more = a->count >= p->limit;
        break;
    case JOBQ_REQUEST_LOOK: jobq_pg__got_look(p, r, a); break;
    case JOBQ_REQUEST_READ:
    case JOBQ_REQUEST_ACK: jobq_pg__got_reading(r, a, &f->portion); return true;
    case JOBQ_REQUEST_RENEW:
        jobq_pg__row(r, 0, 0, jobq_pg__renew_out, &losses);
        if (losses.count > 0) a->error = JOBQ_ERROR_LOST;
        break;
    case JOBQ_REQUEST_SLEEP:
    case JOBQ_REQUEST_DEREGISTER:
    case JOBQ_REQUEST_PRUNE:
    case JOBQ_REQUEST_VACUUM:
    case JOBQ_REQUEST_WAIT:
    case JOBQ_REQUEST_CONNECT:
    case JOBQ_REQUEST_DISCONNECT:
    case JOBQ_REQUEST_ABANDON:
    case JOBQ_REQUEST_EXIT:
    case JOBQ_REQUEST_COUNT: break;
    }
    return false;
}

/* -- running one request and waiting for its answer -- */

static jobq_error jobq_pg__lease_invalid(int64_t lease_us, jobq_pg_error *error)
{
    if (lease_us <= 0 || lease_us > INT64_MAX / 4)
        return jobq_pg__invalid_int(error, "lease_us", lease_us,
                                    "must be positive, less than 70,000 years");
    return jobq_pg__short(lease_us, "lease_us", error) ? JOBQ_ERROR_INVALID : JOBQ_OK;
}

static jobq_error jobq_pg__text_invalid(jobq_str text, const char *field, jobq_pg_error *error)
{
    if (text.ptr == NULL || jobq_utf8_valid(text)) return JOBQ_OK;
    return jobq_pg__invalid(error, field, "must be UTF-8 without NUL: see jobq_utf8_mend");
}

static jobq_error jobq_pg__registering_invalid(const jobq_request *a, const jobq_pg_content *c,
                                               jobq_pg_error *error)
{
    int32_t i;

    if (c->queue_count < 0 || c->queue_count > JOBQ_LOOP_QUEUES)
        return jobq_pg__invalid_int(error, "queue_count", c->queue_count,
                                    "must be 0 to JOBQ_LOOP_QUEUES");
    if (c->kind_count < 0 || c->kind_count > JOBQ_LOOP_KINDS)
        return jobq_pg__invalid_int(error, "kind_count", c->kind_count,
                                    "must be 0 to JOBQ_LOOP_KINDS");
    if (a->worker == 0) return jobq_pg__invalid(error, "worker", "must not be 0");
    if (c->name == NULL || !jobq_utf8_valid(jobq_str_from(c->name)))
        return jobq_pg__invalid(error, "name", "must be UTF-8, not NULL");
    for (i = 0; i < c->queue_count; i++) {
        if (jobq_pg__name_invalid(c->queues[i], "queue", false, error)) return JOBQ_ERROR_INVALID;
    }
    for (i = 0; i < c->kind_count; i++) {
        if (jobq_pg__name_invalid(c->kinds[i], "kind", false, error)) return JOBQ_ERROR_INVALID;
    }
    return jobq_pg__lease_invalid(a->lease_us, error);
}

static jobq_error jobq_pg__ending_invalid(const jobq_ending *e, const jobq_pg_ending *with,
                                          jobq_pg_error *error)
{
    const jobq_decision *d = &e->decision;

    if (!jobq_state_final(d->state) && d->state != JOBQ_STATE_READY)
        return jobq_pg__invalid_int(error, "decision", (int)d->state,
                                    "not a state that a claimed job can get");
    if (d->attempt < 0 || d->crash < 0 || d->stage < 0 || d->stage >= JOBQ_STAGES_MAX ||
        d->delay_us < 0 || (d->delay_us > INT64_MAX / 4 && d->delay_us != JOBQ_NEVER))
        return jobq_pg__invalid(error, "decision", "has a number that is out of its range");
    if (jobq_pg__text_invalid(with->error, "error", error)) return JOBQ_ERROR_INVALID;
    if (with->log.ptr != NULL && jobq_json_check(with->log, NULL, NULL) != JOBQ_OK)
        return jobq_pg__invalid(error, "log", "not JSON: see jobq_log_format");
    return jobq_pg__payload_invalid(error, with->payload, with->payload_bytes, false);
}

static jobq_error jobq_pg__ack_invalid(const jobq_request *a, const jobq_pg_content *c,
                                       jobq_pg_error *error)
{
    const jobq_plan *plan = &a->ack.plan;
    int32_t i;

    if (plan->directive.delay_us > JOBQ_NEVER / 4)
        return jobq_pg__invalid_int(error, "delay_us", plan->directive.delay_us,
                                    "must be less than 70,000 years");
    if (plan->done < 0 || plan->done > JOBQ_LOOP_BATCH || (plan->done > 0 && c->messages == NULL))
        return jobq_pg__invalid(error, "ack",
                                "must be of 0 to JOBQ_LOOP_BATCH messages, which the content must "
                                "have");
    for (i = 0; c->reasons != NULL && i < plan->done; i++) {
        if (!jobq_pg__is_dead(a->ack.results[i])) continue;
        if (jobq_pg__text_invalid(jobq_str_from(c->reasons[i]), "dead", error))
            return JOBQ_ERROR_INVALID;
    }
    return jobq_pg__text_invalid(c->error, "error", error);
}

/* Checks a request that the caller made, and not a loop. */
static jobq_error jobq_pg__request_invalid(const jobq_request *a, const jobq_pg_content *c,
                                           jobq_pg_error *error)
{
    static const jobq_pg_ending nothing = {{NULL, 0}, {NULL, 0}, false, {NULL, 0}};
    const struct {
        int32_t count, most;
        const char *name;
    } lists[] = {
#define JOBQ__X(part, count) {a->count, (int32_t)(sizeof a->part / sizeof a->part[0]), #part},
        JOBQ__REQUEST_PARTS(JOBQ__X)
#undef JOBQ__X
    };
    bool claims = a->kind == JOBQ_REQUEST_CLAIM || a->kind == JOBQ_REQUEST_RECOVER;
    bool of_part = a->kind == JOBQ_REQUEST_READ || a->kind == JOBQ_REQUEST_ACK ||
                   a->kind == JOBQ_REQUEST_RENEW;
    jobq_error code = JOBQ_OK;
    int32_t i;

    for (i = 0; i < (int32_t)(sizeof lists / sizeof lists[0]); i++) {
        if (lists[i].count < 0 || lists[i].count > lists[i].most)
            return jobq_pg__invalid_int(error, lists[i].name, lists[i].count,
                                        "must fit into the room of the request");
    }
    if (claims && (a->limit < 1 || a->limit > JOBQ_ENDINGS_MAX))
        return jobq_pg__invalid_int(error, "limit", a->limit, "must be 1 to JOBQ_ENDINGS_MAX");
    if (claims && a->claim < 1)
        return jobq_pg__invalid_int(error, "number", a->claim, "must be 1 or more, counting up");
    if (of_part && a->worker == 0) return jobq_pg__invalid(error, "worker", "must not be 0");
    if (of_part || a->kind == JOBQ_REQUEST_HEARTBEAT)
        code = jobq_pg__lease_invalid(a->lease_us, error);
    if (a->kind == JOBQ_REQUEST_REGISTER) code = jobq_pg__registering_invalid(a, c, error);
    if (a->kind == JOBQ_REQUEST_SET_ASIDE) code = jobq_pg__text_invalid(c->error, "error", error);
    for (i = 0; i < a->ending_count && code == JOBQ_OK; i++)
        code = jobq_pg__ending_invalid(&a->endings[i],
                                       c->endings == NULL ? &nothing : &c->endings[i], error);
    if (a->kind == JOBQ_REQUEST_ACK && code == JOBQ_OK) code = jobq_pg__ack_invalid(a, c, error);
    return code;
}

/* The code of a request's error. EXISTS: the worker's id, or the number of its claim, is in use. */
static jobq_error jobq_pg__request_error(jobq_request_kind kind, const jobq_pg_error *error)
{
    bool numbers = kind == JOBQ_REQUEST_REGISTER || kind == JOBQ_REQUEST_CLAIM;

    return numbers && strcmp(error->sqlstate, "23505") == 0 ? JOBQ_ERROR_EXISTS : error->code;
}

/* Runs a valid request; its result goes into the answer and the content. */
static jobq_error jobq_pg__run_request(jobq_pg *pg, PGconn *conn, const jobq_request *a,
                                   jobq_pg_content *c, jobq_answer *answer, jobq_pg_error *error)
{
    jobq_pg__statement st = jobq_pg__statement_of(a, c);
    jobq_pg__pending p = jobq_pg__pending_of(a, st);
    jobq_pg__params params;
    jobq_pg__found f;
    PGresult *res;

    memset(&f, 0, sizeof f);
    f.registered.queue_count = c->queue_count;
    f.registered.kind_count = c->kind_count;
    f.rows_max = JOBQ_ENDINGS_MAX;
    f.rows = c->rows = (int *)calloc(JOBQ_ENDINGS_MAX, sizeof *f.rows);
    if (f.rows == NULL) return answer->error = jobq_pg__no_memory(error);
    jobq_pg__params_init(&params);
    jobq_pg__put_request(&params, st, a, c, NULL);
    res = jobq_pg__exec_text(pg, conn, NULL, &pg->texts[st], &params, !pg->behind_pooler, error);
    if (res == NULL) return answer->error = jobq_pg__request_error(a->kind, error);
    c->result = jobq_pg__got(&p, res, answer, &f) ? f.portion.result : res;
    c->messages = c->own = f.portion.messages;
    c->last_error = f.portion.error;
    if (answer->error == JOBQ_ERROR_LOST)
        jobq_pg__fail(error, JOBQ_ERROR_LOST, "lease lost on partition %lld",
                      (long long)a->partition_id);
    else if (answer->error == JOBQ_ERROR_MEMORY)
        jobq_pg__no_memory(error);
    else if (answer->error != JOBQ_OK)
        jobq_pg__fail(error, answer->error, "a row breaks a law of jobq.h");
    return answer->error;
}

JOBQ_API jobq_error jobq_pg_execute(jobq_pg *pg, PGconn *conn, const jobq_request *request,
                                    jobq_pg_content *content, jobq_answer *answer,
                                    jobq_pg_error *error)
{
    jobq_pg_content none;
    jobq_pg_error local;

    JOBQ_ASSERT(pg != NULL && request != NULL && answer != NULL);
    memset(&none, 0, sizeof none);
    if (error == NULL) error = &local;
    if (content == NULL) content = &none;
    jobq_answer_start(answer, request);
    if (jobq_pg__statement_of(request, content) == JOBQ_PG__STATEMENT_COUNT)
        answer->error = jobq_pg__invalid_int(error, "kind", (int)request->kind,
                                             "not a request to the database");
    else answer->error = jobq_pg__request_invalid(request, content, error);
    if (answer->error == JOBQ_OK)
        jobq_pg__run_request(pg, conn, request, content, answer, error);
    jobq_pg_content_clear(&none);
    return answer->error;
}

JOBQ_API void jobq_pg_content_clear(jobq_pg_content *content)
{
    if (content == NULL) return;
    free(content->own);
    free(content->rows);
    PQclear(content->result);
    memset(content, 0, sizeof *content);
}

#ifndef JOBQ_PG_NO_OUTBOX

/* ---- >>outbox -------------------------------------------------------------------------------- */

static jobq_error jobq_pg__partitions_invalid(const char *queue, int partitions,
                                              jobq_pg_error *error)
{
    if (!jobq_name_valid(jobq_str_from(queue))) {
        jobq_pg__fail(error, JOBQ_ERROR_INVALID, "invalid queue name: '%.80s'",
                      queue == NULL ? "" : queue);
        jobq_pg__about(error, "", "queue", queue);
        return JOBQ_ERROR_INVALID;
    }
    if (partitions < 1 || partitions > 16384 || (partitions & (partitions - 1)) != 0) {
        return jobq_pg__invalid_int(error, "partitions", partitions,
                                    "must be a power of 2, 1 to 16384");
    }
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_outbox_register(jobq_pg *pg, PGconn *conn, const char *queue,
                                            int partitions, int32_t *queue_id,
                                            jobq_pg_error *error)
{
    jobq_pg__outbox outbox;
    jobq_pg_error local;
    PGresult *res;

    JOBQ_ASSERT(pg != NULL);
    if (error == NULL) error = &local;
    if (jobq_pg__partitions_invalid(queue, partitions, error)) return JOBQ_ERROR_INVALID;
    memset(&outbox, 0, sizeof outbox);
    outbox.queue = queue;
    outbox.partitions = partitions;
    res = jobq_pg__call_row(pg, conn, JOBQ_PG__OUTBOX_REGISTER, &outbox, &outbox, error);
    if (res == NULL) return error->code;
    PQclear(res);
    if (queue_id != NULL) *queue_id = outbox.queue_id;
    if (outbox.partitions == partitions) return JOBQ_OK;
    return jobq_pg__fail(error, JOBQ_ERROR_INVALID,
                         "partition count mismatch for queue '%.80s': expected %d, found %d; "
                         "jobq_pg_outbox_grow makes more", queue, partitions,
                         (int)outbox.partitions);
}

JOBQ_API jobq_error jobq_pg_outbox_grow(jobq_pg *pg, PGconn *conn, const char *queue,
                                        int partitions, bool anyway, jobq_pg_error *error)
{
    jobq_pg__outbox outbox;

    JOBQ_ASSERT(pg != NULL && queue != NULL);
    if (jobq_pg__partitions_invalid(queue, partitions, error)) return JOBQ_ERROR_INVALID;
    memset(&outbox, 0, sizeof outbox);
    outbox.queue = queue;
    outbox.partitions = partitions;
    outbox.anyway = anyway;
    return jobq_pg__ask(pg, conn, JOBQ_PG__OUTBOX_GROW, &outbox, NULL, error);
}

/* -- enqueue -- */

static bool jobq_pg__type_valid(const char *type)
{
    size_t len;

    for (len = 0; type[len] >= ' ' && type[len] <= '~'; len++) {}
    return type[len] == '\0' && len >= 1 && len <= JOBQ_NAME_MAX;
}

/* Checks a message before anything is sent. */
static jobq_error jobq_pg__message_invalid(const jobq_pg_message *m, jobq_pg_error *error)
{
    if (!jobq_name_valid(jobq_str_from(m->queue))) {
        jobq_pg__fail(error, JOBQ_ERROR_INVALID, "invalid queue name: '%.80s'",
                      m->queue == NULL ? "" : m->queue);
        jobq_pg__about(error, "", "queue", m->queue);
        return JOBQ_ERROR_INVALID;
    }
    if (m->type != NULL && !jobq_pg__type_valid(m->type)) {
        jobq_pg__fail(error, JOBQ_ERROR_INVALID,
                      "invalid payload type: '%.80s' (1 to 1024 printable ASCII characters)",
                      m->type);
        jobq_pg__about(error, "", "type", m->type);
        return JOBQ_ERROR_INVALID;
    }
    if (m->partition < 0)
        return jobq_pg__invalid_int(error, "partition", m->partition, "must be 0 or more");
    if (m->partition != 0 && m->order_key != NULL)
        return jobq_pg__invalid(error, "partition", "not allowed with order_key, which chooses it");
    if (m->payload.len > INT32_MAX / 2)
        return jobq_pg__invalid(error, "payload", "must be at most 1 GiB");
    if (jobq_pg__payload_invalid(error, m->payload, m->payload_bytes, m->payload_exact) ||
        jobq_pg__object_invalid(error, "headers", m->headers)) return JOBQ_ERROR_INVALID;
    if (m->order_key != NULL && !jobq_utf8_valid(jobq_str_from(m->order_key))) {
        return jobq_pg__invalid(error, "order_key", "not UTF-8");
    }
    return jobq_pg__key_invalid(m->key, "key", error);
}

/* Checks message i of a list, by itself and beside the first. */
static jobq_error jobq_pg__sent_invalid(const jobq_pg_message *messages, size_t i, bool keys,
                                        jobq_pg_error *error)
{
    const jobq_pg_message *m = &messages[i];
    const char *differs;

    if (jobq_pg__message_invalid(m, error)) return JOBQ_ERROR_INVALID;
    if (!keys && m->key != NULL)
        return jobq_pg__invalid(error, "key", "not allowed with JOBQ_PG_BY_COPY");
    differs = strcmp(m->queue, messages[0].queue) != 0 ? "queue"
              : m->quiet != messages[0].quiet          ? "quiet" : NULL;
    if (differs == NULL) return JOBQ_OK;
    return jobq_pg__invalid(error, differs, "must be the same for all messages of a call");
}

static jobq_error jobq_pg__messages_invalid(const jobq_pg_message *messages, size_t count,
                                            bool keys, jobq_pg_error *error)
{
    size_t i;

    if (count > INT32_MAX / 2)
        return jobq_pg__invalid(error, "count", "too many for one statement");
    for (i = 0; i < count; i++) {
        if (jobq_pg__sent_invalid(messages, i, keys, error))
            return jobq_pg__invalid_at(error, "messages", i);
    }
    return JOBQ_OK;
}

/* Sends messages by an SQL function. If it refuses them, it returns the reason and raises no
 * error. */
static jobq_error jobq_pg__post(jobq_pg *pg, PGconn *conn, jobq_pg__statement st, const void *from,
                                jobq_pg__written *to, jobq_pg_error *error)
{
    PGresult *res = jobq_pg__call_row(pg, conn, st, from, to, error);
    jobq_error code = JOBQ_OK;

    if (res == NULL) return error->code;
    if (to->refused.ptr != NULL) {
        int class_at = to->code.ptr == NULL ? -1 : jobq_pg__class_of(to->code.ptr);
        code = jobq_pg__fail(error, jobq_pg__code_of(to->code.ptr), "%.*s%s",
                             (int)to->refused.len, to->refused.ptr,
                             class_at < 0 ? "" : jobq_pg__classes[class_at].fix);
    }
    PQclear(res);
    return code;
}

static jobq_error jobq_pg__outbox_one(jobq_pg *pg, PGconn *conn, const jobq_pg_message *m,
                                      int64_t *id, jobq_pg_error *error)
{
    jobq_pg__written written;
    jobq_error code;

    memset(&written, 0, sizeof written);
    code = jobq_pg__post(pg, conn, JOBQ_PG__OUTBOX_ENQUEUE_ONE, m, &written, error);
    if (code != JOBQ_OK) return code;
    if (id != NULL) *id = written.id;
    if (!written.existed) return JOBQ_OK;
    return jobq_pg__said(error, JOBQ_ERROR_EXISTS, "Already exists", "message", "key", m->key);
}

static const jobq_pg__sealable jobq_pg__message_content = {
    sizeof(jobq_pg_message), offsetof(jobq_pg_message, queue), SIZE_MAX,
    offsetof(jobq_pg_message, payload)};

/* Sends a plain INSERT if the role may, as jobq_pg_enqueue does. If it writes nothing, the SQL
 * function tells why. */
static jobq_error jobq_pg__outbox_sealed(jobq_pg *pg, PGconn *conn, const jobq_pg_message *m,
                                         int64_t *id, jobq_pg_error *error)
{
    PGconn *mine = NULL;
    bool done = false;
    jobq_error code = jobq_pg__borrow(pg, conn, &mine, error);

    if (code != JOBQ_OK) return code;
    if (conn == NULL) conn = mine;
    if (m->key == NULL)
        code = jobq_pg__direct_send(pg, conn, JOBQ_PG__OUTBOX_DIRECT,
                                    JOBQ_PG__OUTBOX_ENQUEUE_DIRECT, m, id, &done, error);
    if (code == JOBQ_OK && !done) code = jobq_pg__outbox_one(pg, conn, m, id, error);
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    return code;
}

JOBQ_API jobq_error jobq_pg_outbox_enqueue(jobq_pg *pg, PGconn *conn, const jobq_pg_message *m,
                                           int64_t *id, jobq_pg_error *error)
{
    jobq_pg_error local;
    jobq_pg__lent *lent = NULL;
    const void *row = m;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && m != NULL);
    if (error == NULL) error = &local;
    code = jobq_pg__message_invalid(m, error);
    if (code == JOBQ_OK)
        code = jobq_pg__sealed(pg, &jobq_pg__message_content, &row, 1, &lent, error);
    if (code == JOBQ_OK)
        code = jobq_pg__outbox_sealed(pg, conn, (const jobq_pg_message *)row, id, error);
    jobq_pg__lent_drop(&lent);
    return code;
}

/* Enqueues messages that have been checked and sealed. */
static jobq_error jobq_pg__post_many(jobq_pg *pg, PGconn *conn, const jobq_pg_message *messages,
                                     size_t count, int64_t *ids, jobq_pg_error *error)
{
    jobq_pg__posting from;
    jobq_pg__written written;

    memset(&from, 0, sizeof from);
    memset(&written, 0, sizeof written);
    from.queue = messages[0].queue;
    from.messages = messages;
    from.count = written.count = (int32_t)count;
    from.quiet = messages[0].quiet;
    written.ids = ids;
    return jobq_pg__post(pg, conn, JOBQ_PG__OUTBOX_ENQUEUE, &from, &written, error);
}

/* Runs inside a transaction. Asking for the queue also assigns the transaction's id, which must
 * happen before message ids are drawn. */
static jobq_error jobq_pg__copy_messages(jobq_pg *pg, PGconn *conn, const void *array, size_t count,
                                         jobq_pg_error *error)
{
    const jobq_pg_message *messages = (const jobq_pg_message *)array;
    jobq_pg__copying copying;
    jobq_pg__posting from;
    jobq_pg__written queue;
    jobq_pg__bulk woken;
    jobq_error code;
    size_t i;

    memset(&from, 0, sizeof from);
    memset(&queue, 0, sizeof queue);
    from.queue = messages[0].queue;
    from.highest = -1;
    for (i = 0; i < count; i++) {
        int64_t number = jobq_pg__message_number(&messages[i]);
        int64_t size = jobq_pg__message_size(&messages[i]);
        from.highest = number > from.highest ? number : from.highest;
        from.largest = size > from.largest ? size : from.largest;
    }
    code = jobq_pg__post(pg, conn, JOBQ_PG__OUTBOX_QUEUE, &from, &queue, error);
    if (code == JOBQ_OK && queue.id == 0) /* in a schema that Citus distributes */
        return jobq_pg__post_many(pg, conn, messages, count, NULL, error);
    if (code == JOBQ_OK)
        code = jobq_pg__copy_begin(&copying, conn, pg->texts[JOBQ_PG__OUTBOX_COPY].sql, error);
    if (code != JOBQ_OK) return code;
    for (i = 0; i < count && copying.good; i++) {
        const jobq_pg__col *c = jobq_pg__message_copy;
        int64_t number = jobq_pg__message_hash(&messages[i]) & (queue.partitions - 1);
        if (messages[i].order_key == NULL) number = messages[i].partition;
        jobq_pg__raw_int(&copying.p, 5, 2);
        jobq_pg__item_int(&copying.p, queue.id * 32768 + number, 8);
        for (; c->wire != JOBQ_PG__NOTHING; c++)
            jobq_pg__put_item(&copying.p, c, (const char *)&messages[i]);
        jobq_pg__copy_flush(&copying, false);
    }
    code = jobq_pg__copy_end(&copying, error);
    if (code != JOBQ_OK || messages[0].quiet) return code;
    woken.queue = (int32_t)queue.id;
    woken.count = 1;
    return jobq_pg__ask(pg, conn, JOBQ_PG__WAKE, &woken, NULL, error);
}

JOBQ_API jobq_error jobq_pg_outbox_enqueue_many(jobq_pg *pg, PGconn *conn,
                                                const jobq_pg_message *messages, size_t count,
                                                int64_t *ids, jobq_pg_error *error)
{
    bool by_copy = ids == JOBQ_PG_BY_COPY;
    jobq_pg__lent *lent = NULL;
    const void *rows = messages;
    jobq_pg_error local;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && (messages != NULL || count == 0));
    if (error == NULL) error = &local;
    code = jobq_pg__messages_invalid(messages, count, !by_copy, error);
    if (code != JOBQ_OK || count == 0) return code;
    code = jobq_pg__sealed(pg, &jobq_pg__message_content, &rows, count, &lent, error);
    if (code == JOBQ_OK && by_copy)
        code = jobq_pg__copy_whole(pg, conn, true, jobq_pg__copy_messages, rows, count, error);
    else if (code == JOBQ_OK)
        code = jobq_pg__post_many(pg, conn, (const jobq_pg_message *)rows, count, ids, error);
    jobq_pg__lent_drop(&lent);
    return code;
}

/* -- dead letters -- */

/* limit applies if the scope has none; 0: no limit. */
static jobq_error jobq_pg__chosen_of(jobq_pg__chosen *c, const jobq_pg_scope *scope, int32_t limit,
                                     jobq_pg_error *error)
{
    memset(c, 0, sizeof *c);
    if (scope != NULL) c->of = *scope;
    if (jobq_pg__name_invalid(c->of.queue, "queue", true, error)) return JOBQ_ERROR_INVALID;
    if (c->of.type != NULL && !jobq_pg__type_valid(c->of.type))
        return jobq_pg__invalid_text(error, "type", c->of.type,
                                     "must be 1 to 1024 printable ASCII characters");
    if (c->of.partition != 0 && !c->of.one_partition)
        return jobq_pg__invalid(error, "partition", "needs one_partition");
    if (c->of.limit < 0)
        return jobq_pg__invalid_int(error, "limit", c->of.limit, "must be 1 or more");
    if (c->of.limit == 0) c->of.limit = limit;
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_dead_letter_replay(jobq_pg *pg, PGconn *conn, int64_t token,
                                               int64_t timeout_us, const jobq_pg_scope *scope,
                                               jobq_pg_rows *rows, jobq_pg_error *error)
{
    jobq_pg__chosen from;
    jobq_pg_error local;

    JOBQ_ASSERT(pg != NULL && rows != NULL);
    if (error == NULL) error = &local;
    memset(rows, 0, sizeof *rows);
    if (token == 0) return jobq_pg__invalid(error, "token", "must be random, not 0");
    if (timeout_us <= 0 || timeout_us > JOBQ_PG__AGE_MAX)
        return jobq_pg__invalid_int(error, "timeout_us", timeout_us,
                                    "must be positive, at most 1,000 years");
    if (jobq_pg__short(timeout_us, "timeout_us", error) ||
        jobq_pg__chosen_of(&from, scope, 100, error)) return JOBQ_ERROR_INVALID;
    from.token = token;
    from.timeout_us = timeout_us;
    return jobq_pg__ask_rows(pg, conn, JOBQ_PG__DEAD_LETTER_REPLAY, &from, rows, error);
}

JOBQ_API jobq_error jobq_pg_dead_letter_end(jobq_pg *pg, PGconn *conn, int64_t token,
                                            const int64_t *ids, size_t id_count,
                                            jobq_result result, const char *why, int64_t *count,
                                            jobq_pg_error *error)
{
    char text[JOBQ_ERROR_MAX + 1];
    bool good = result == JOBQ_RESULT_SUCCESS;
    jobq_pg__chosen from;

    JOBQ_ASSERT(pg != NULL && (ids != NULL || id_count == 0));
    if (!good && result != JOBQ_RESULT_RETRY)
        return jobq_pg__invalid_int(error, "result", (int)result, "must be SUCCESS or RETRY");
    if (good && why != NULL) return jobq_pg__invalid(error, "why", "needs JOBQ_RESULT_RETRY");
    jobq_utf8_mend(text, JOBQ_ERROR_MAX, jobq_str_from(why));
    memset(&from, 0, sizeof from);
    from.token = token;
    from.ids.items = ids;
    from.ids.count = id_count;
    from.reason = why == NULL ? NULL : text;
    return jobq_pg__ask(pg, conn,
                        good ? JOBQ_PG__DEAD_LETTER_RESOLVE : JOBQ_PG__DEAD_LETTER_REJECT, &from,
                        count, error);
}

JOBQ_API jobq_error jobq_pg_dead_letter_discard(jobq_pg *pg, PGconn *conn,
                                                const jobq_pg_scope *scope, int64_t *count,
                                                jobq_pg_error *error)
{
    jobq_pg__chosen from;

    JOBQ_ASSERT(pg != NULL);
    if (jobq_pg__chosen_of(&from, scope, 0, error)) return JOBQ_ERROR_INVALID;
    return jobq_pg__ask(pg, conn, JOBQ_PG__DEAD_LETTER_DISCARD, &from, count, error);
}

#endif /* JOBQ_PG_NO_OUTBOX */

/* ---- >>operate: the verbs of operators ------------------------------------------------------- */

/* The error of a verb that changed nothing. standing: the job's state, "gone", "none", "exists". */
static jobq_error jobq_pg__stands(jobq_pg_error *error, int64_t id, const char *standing)
{
    bool running = strcmp(standing, "running") == 0, exists = strcmp(standing, "exists") == 0;

    if (strcmp(standing, "none") == 0 || strcmp(standing, "gone") == 0)
        return jobq_pg__not_found(error, id, standing);
    if (exists) {
        jobq_pg__fail(error, JOBQ_ERROR_EXISTS, "Already exists: another job has the key of job "
                      "%lld; delete one of the two, or wait until the key is free",
                      (long long)id);
    } else {
        jobq_pg__fail(error, JOBQ_ERROR_TRANSITION, "job %lld is %s%s", (long long)id, standing,
                      running ? ": its worker holds it; cancel asks the worker to stop" : "");
    }
    jobq_pg__about(error, "job", exists ? "key" : "state", standing);
    return exists ? JOBQ_ERROR_EXISTS : JOBQ_ERROR_TRANSITION;
}

static jobq_error jobq_pg__at_most_invalid(const jobq_pg_filter *f, jobq_pg_error *error)
{
    if (f->at_most >= 0) return JOBQ_OK;
    return jobq_pg__invalid_int(error, "at_most", f->at_most, "must be 1 or more");
}

static jobq_error jobq_pg__filter_invalid(const jobq_pg_filter *f, jobq_pg_error *error)
{
    if (f->id != 0) {
        if (f->queue == NULL && f->kind == NULL && f->state == JOBQ_STATE_NONE &&
            f->older_us == 0 && f->tags.ptr == NULL && f->at_most == 0 && f->flow == 0)
            return JOBQ_OK;
        return jobq_pg__invalid(error, "id",
                                "not allowed with other fields, because it names one job");
    }
    if (f->flow != 0) {
        if (f->flow < 0 || f->queue != NULL || f->kind != NULL || f->state != JOBQ_STATE_NONE ||
            f->older_us != 0 || f->tags.ptr != NULL)
            return jobq_pg__invalid_int(error, "flow", f->flow,
                                        "must be positive, and with no other field than at_most");
        return jobq_pg__at_most_invalid(f, error);
    }
    if (jobq_pg__name_invalid(f->queue, "queue", false, error)) return JOBQ_ERROR_INVALID;
    if (jobq_pg__name_invalid(f->kind, "kind", true, error)) return JOBQ_ERROR_INVALID;
    if (f->older_us < 0 || f->older_us > JOBQ_PG__AGE_MAX)
        return jobq_pg__invalid_int(error, "older_us", f->older_us,
                                    "must be positive, at most 1,000 years");
    if (jobq_pg__short(f->older_us, "older_us", error)) return JOBQ_ERROR_INVALID;
    if (jobq_pg__at_most_invalid(f, error)) return JOBQ_ERROR_INVALID;
    if ((int)f->state < 0 || f->state >= JOBQ_STATE_COUNT)
        return jobq_pg__invalid_int(error, "state", (int)f->state, "not a jobq_state");
    return jobq_pg__object_invalid(error, "tags", f->tags);
}

static jobq_pg__changing jobq_pg__change_of(const jobq_pg_filter *which)
{
    jobq_pg__changing change;

    JOBQ_ASSERT(which != NULL);
    memset(&change, 0, sizeof change);
    change.of = *which;
    return change;
}

/* Checks and completes a verb's arguments. *st: its statement for one job becomes that for many,
 * which is the next one, if many are meant. */
static jobq_error jobq_pg__change_start(jobq_pg__statement *st, jobq_pg__changing *c,
                                        jobq_pg_error *error)
{
    bool revives = *st == JOBQ_PG__REVIVE;

    if (jobq_pg__filter_invalid(&c->of, error)) return JOBQ_ERROR_INVALID;
    if (*st != JOBQ_PG__CANCEL && *st != JOBQ_PG__DELETE && c->of.state != JOBQ_STATE_NONE &&
        c->of.state != (revives ? JOBQ_STATE_FAILED : JOBQ_STATE_READY))
        return jobq_pg__invalid(error, "state", revives
                                ? "must be FAILED: only failed jobs are revived"
                                : "must be READY: only ready jobs are changed");
    if (c->of.flow != 0) {
        if (*st != JOBQ_PG__CANCEL && *st != JOBQ_PG__REVIVE)
            return jobq_pg__invalid(error, "flow",
                                    "not allowed here: a flow can be cancelled and revived");
        *st = *st == JOBQ_PG__CANCEL ? JOBQ_PG__FLOW_CANCEL : JOBQ_PG__FLOW_REVIVE;
    } else if (c->of.id == 0) *st = (jobq_pg__statement)(*st + 1);
    if (c->of.at_most == 0) c->of.at_most = 1000;
    if (c->of.state != JOBQ_STATE_NONE) c->state = jobq_enum_name(JOBQ_ENUM_STATE, c->of.state);
    return JOBQ_OK;
}

/* Reads and clears a verb's answer: of one job done or requested if it worked, of many a count. */
static jobq_error jobq_pg__got_change(PGresult *res, jobq_pg__statement st, const char *done,
                                      jobq_pg__changing *c, jobq_pg_error *error)
{
    char answer[24] = "";
    bool one = c->of.id != 0;

    if (one) {
        jobq_pg__copy(answer, sizeof answer, PQntuples(res) == 1 ? PQgetvalue(res, 0, 0) : "none");
        c->count = strcmp(answer, done) == 0;
        c->requested = strcmp(answer, "requested") == 0;
    } else if (st == JOBQ_PG__CANCEL_MANY) {
        if (PQntuples(res) > 0) jobq_pg__row(res, 0, 0, jobq_pg__cancelled_out, c);
    } else c->count = jobq_pg__int(res, 0, 0);
    PQclear(res);
    if (one && c->count + c->requested == 0) return jobq_pg__stands(error, c->of.id, answer);
    return JOBQ_OK;
}

/* Runs a verb. st: its statement for one job. */
static jobq_error jobq_pg__change_jobs(jobq_pg *pg, PGconn *conn, jobq_pg__statement st,
                                       const char *done, jobq_pg__changing *c, int64_t *count,
                                       jobq_pg_error *error)
{
    jobq_pg_error local;
    PGresult *res;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL);
    if (error == NULL) error = &local;
    if (jobq_pg__change_start(&st, c, error) != JOBQ_OK) return JOBQ_ERROR_INVALID;
    res = jobq_pg__call(pg, conn, st, c, error);
    if (res == NULL) return error->code;
    code = jobq_pg__got_change(res, st, done, c, error);
    if (code == JOBQ_OK && count != NULL) *count = c->count;
    return code;
}

JOBQ_API jobq_error jobq_pg_cancel(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   int64_t *count, int64_t *requested, jobq_pg_error *error)
{
    jobq_pg__changing c = jobq_pg__change_of(which);
    jobq_error code =
        jobq_pg__change_jobs(pg, conn, JOBQ_PG__CANCEL, "cancelled", &c, count, error);

    if (code == JOBQ_OK && requested != NULL) *requested = c.requested;
    return code;
}

JOBQ_API jobq_error jobq_pg_revive(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   int64_t *count, jobq_pg_error *error)
{
    jobq_pg__changing c = jobq_pg__change_of(which);

    return jobq_pg__change_jobs(pg, conn, JOBQ_PG__REVIVE, "revived", &c, count, error);
}

JOBQ_API jobq_error jobq_pg_delete(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   int64_t *count, jobq_pg_error *error)
{
    jobq_pg__changing c = jobq_pg__change_of(which);

    return jobq_pg__change_jobs(pg, conn, JOBQ_PG__DELETE, "deleted", &c, count, error);
}

JOBQ_API jobq_error jobq_pg_change(jobq_pg *pg, PGconn *conn, const jobq_pg_filter *which,
                                   const jobq_pg_changes *what, int64_t *count,
                                   jobq_pg_error *error)
{
    jobq_pg__changing c = jobq_pg__change_of(which);

    JOBQ_ASSERT(what != NULL);
    if ((what->run_at_us != 0) + what->run_now + what->set_priority + (what->target != NULL) != 1)
        return jobq_pg__invalid(error, "what",
                                "must have one of run_at_us, run_now, set_priority and target");
    if (what->priority != 0 && !what->set_priority)
        return jobq_pg__invalid(error, "priority", "needs set_priority");
    if (jobq_pg__run_at_invalid(what->run_at_us, error) ||
        jobq_pg__priority_invalid(what->priority, error) ||
        jobq_pg__name_invalid(what->target, "target", true, error)) return JOBQ_ERROR_INVALID;
    c.run_at_us = what->run_at_us;
    c.priority = what->priority;
    c.target = what->target;
    if (c.target != NULL)
        return jobq_pg__change_jobs(pg, conn, JOBQ_PG__MOVE, "moved", &c, count, error);
    if (what->set_priority)
        return jobq_pg__change_jobs(pg, conn, JOBQ_PG__PRIORITIZE, "prioritized", &c, count, error);
    return jobq_pg__change_jobs(pg, conn, JOBQ_PG__RESCHEDULE, "rescheduled", &c, count, error);
}

/* ---- >>flows: flows, signals, and what jobs wait for ----------------------------------------- */

JOBQ_API jobq_error jobq_pg_flow_begin(jobq_pg *pg, PGconn *conn, const jobq_pg_flow_desc *desc,
                                       int64_t *id, jobq_pg_error *error)
{
    static const char *const words[] = {"hold", "cancel", "run"};
    jobq_pg__flow from;

    JOBQ_ASSERT(pg != NULL && desc != NULL && id != NULL);
    if ((int)desc->on_failure < 0 || desc->on_failure > JOBQ_PG_FLOW_RUN)
        return jobq_pg__invalid_int(error, "on_failure", (int)desc->on_failure,
                                    "not a jobq_pg_on_failure");
    from.name = desc->name == NULL ? "" : desc->name;
    if (strlen(from.name) > JOBQ_NAME_MAX || !jobq_utf8_valid(jobq_str_from(from.name)))
        return jobq_pg__invalid(error, "name", "must be at most 1024 bytes of UTF-8");
    from.on_failure = words[desc->on_failure];
    from.open = desc->open;
    return jobq_pg__ask(pg, conn, JOBQ_PG__FLOW, &from, id, error);
}

JOBQ_API jobq_error jobq_pg_flow_close(jobq_pg *pg, PGconn *conn, int64_t id,
                                       jobq_pg_error *error)
{
    jobq_pg__changing from;

    JOBQ_ASSERT(pg != NULL);
    memset(&from, 0, sizeof from);
    from.of.id = id;
    return jobq_pg__ask(pg, conn, JOBQ_PG__FLOW_CLOSE, &from, NULL, error);
}

JOBQ_API jobq_error jobq_pg_signal(jobq_pg *pg, PGconn *conn, const char *name, jobq_str payload,
                                   bool *first, jobq_pg_error *error)
{
    jobq_pg__stepping from;
    jobq_error code;
    int64_t answer;

    JOBQ_ASSERT(pg != NULL && name != NULL);
    if (jobq_pg__key_invalid(name, "name", error)) return JOBQ_ERROR_INVALID;
    if (payload.ptr != NULL && jobq_json_check(payload, NULL, NULL) != JOBQ_OK)
        return jobq_pg__invalid(error, "payload", "not JSON");
    memset(&from, 0, sizeof from);
    from.name = name;
    from.value = payload;
    code = jobq_pg__ask(pg, conn, JOBQ_PG__SIGNAL, &from, &answer, error);
    if (code == JOBQ_OK && first != NULL) *first = answer != 0;
    return code;
}

JOBQ_API jobq_error jobq_pg_parents(jobq_pg *pg, PGconn *conn, int64_t job, jobq_pg_rows *rows,
                                    jobq_pg_error *error)
{
    jobq_pg__changing from;
    jobq_pg_error local;

    JOBQ_ASSERT(pg != NULL && rows != NULL);
    memset(&from, 0, sizeof from);
    from.of.id = job;
    return jobq_pg__ask_rows(pg, conn, JOBQ_PG__PARENT_JOBS, &from, rows,
                             error == NULL ? &local : error);
}

/* ---- >>settings: of queues, kinds and lines; schedules --------------------------------------- */

/* Refuses what only a queue has in the policy of a kind. */
static jobq_error jobq_pg__kind_policy_invalid(const jobq_pg_queue_desc *d, jobq_pg_error *error)
{
    const char *field = d->max_crashes != 0 ? "max_crashes"
                        : d->attempts_span_stages != JOBQ_PG_LEAVE ? "attempts_span_stages"
                        : d->failed_keep_us != 0 ? "failed_keep_us"
                        : d->key_keep_us != 0 ? "key_keep_us"
                        : d->message_max != 0 ? "message_max"
                        : d->payload_max != 0 ? "payload_max"
                        : d->kind_count != 0 ? "kinds"
                        : d->line_running_max != 0 ? "line_running_max"
                        : d->line_rate != NULL ? "line_rate"
                        : d->line_rate_burst != 0 ? "line_rate_burst"
                        : d->line_strict != JOBQ_PG_LEAVE ? "line_strict"
                        : d->line_waiting_max != 0 ? "line_waiting_max"
                        : d->ageing != JOBQ_PG_LEAVE ? "ageing" : NULL;

    if (d->kind == NULL && d->reset) return jobq_pg__invalid(error, "reset", "needs a kind");
    if (d->kind == NULL || field == NULL)
        return jobq_pg__name_invalid(d->kind, "kind", true, error);
    return jobq_pg__invalid(error, field, "is set for the queue, not for a kind");
}

static jobq_error jobq_pg__retention_invalid(const char *retention, jobq_pg_error *error)
{
    if (retention == NULL || strcmp(retention, "short") == 0 ||
        strcmp(retention, "medium") == 0 || strcmp(retention, "long") == 0) return JOBQ_OK;
    return jobq_pg__invalid_text(error, "retention", retention, "must be short, medium or long");
}

/* Checks a limit: 0, JOBQ_PG_UNLIMITED, or positive. */
static jobq_error jobq_pg__limit_invalid(int32_t limit, const char *field, jobq_pg_error *error)
{
    if (limit >= JOBQ_PG_UNLIMITED) return JOBQ_OK;
    return jobq_pg__invalid_int(error, field, limit, "must be 1 or more, or JOBQ_PG_UNLIMITED");
}

static jobq_error jobq_pg__burst_invalid(int32_t burst, const char *field, jobq_pg_error *error)
{
    if (burst >= 0 && burst <= 1000000) return JOBQ_OK;
    return jobq_pg__invalid_int(error, field, burst, "must be 1 to 1,000,000");
}

/* A rate's text is checked by the server. */
static jobq_error jobq_pg__limits_invalid(const jobq_pg_queue_desc *d, jobq_pg_error *error)
{
    if (jobq_pg__burst_invalid(d->rate_burst, "rate_burst", error) ||
        jobq_pg__burst_invalid(d->line_rate_burst, "line_rate_burst", error) ||
        jobq_pg__limit_invalid(d->running_max, "running_max", error) ||
        jobq_pg__limit_invalid(d->line_running_max, "line_running_max", error))
        return JOBQ_ERROR_INVALID;
    return jobq_pg__limit_invalid(d->line_waiting_max, "line_waiting_max", error);
}

static jobq_error jobq_pg__queue_invalid(const char *queue, const jobq_pg_queue_desc *d,
                                         jobq_pg_error *error)
{
    size_t i;

    if (jobq_pg__name_invalid(queue, "queue", false, error)) return JOBQ_ERROR_INVALID;
    if (d->max_attempts < 0)
        return jobq_pg__invalid_int(error, "max_attempts", d->max_attempts, "must be 1 or more");
    if (d->max_crashes < 0)
        return jobq_pg__invalid_int(error, "max_crashes", d->max_crashes, "must be 1 or more");
    if (d->timeout_us < 0)
        return jobq_pg__invalid_int(error, "timeout_us", d->timeout_us,
                                    "must be positive, or JOBQ_NEVER for none");
    if (jobq_pg__backoff_invalid(&d->backoff, "backoff", error) ||
        jobq_pg__short(d->timeout_us, "timeout_us", error) ||
        jobq_pg__short(d->failed_keep_us, "failed_keep_us", error) ||
        jobq_pg__short(d->key_keep_us, "key_keep_us", error)) return JOBQ_ERROR_INVALID;
    if (d->failed_keep_us < 0 || d->failed_keep_us > JOBQ_PG__AGE_MAX)
        return jobq_pg__invalid_int(error, "failed_keep_us", d->failed_keep_us,
                                    "must be positive, at most 1,000 years");
    if (d->key_keep_us < 0 || d->key_keep_us > JOBQ_PG__AGE_MAX)
        return jobq_pg__invalid_int(error, "key_keep_us", d->key_keep_us,
                                    "must be positive, at most 1,000 years");
    if (jobq_pg__retention_invalid(d->retention, error)) return JOBQ_ERROR_INVALID;
    if (d->message_max < 0)
        return jobq_pg__invalid_int(error, "message_max", d->message_max, "must be positive");
    if (d->payload_max < 0)
        return jobq_pg__invalid_int(error, "payload_max", d->payload_max, "must be positive");
    if (d->kinds == NULL && d->kind_count > 0)
        return jobq_pg__invalid(error, "kinds", "has a count, but its pointer is NULL");
    for (i = 0; i < d->kind_count; i++) {
        if (jobq_pg__name_invalid(d->kinds[i], "kinds", false, error)) return JOBQ_ERROR_INVALID;
    }
    if (jobq_pg__limits_invalid(d, error)) return JOBQ_ERROR_INVALID;
    return jobq_pg__kind_policy_invalid(d, error);
}

/* A limit as SQL takes it: NULL leaves it, 0 removes it. */
static jobq_pg_maybe_int32 jobq_pg__limit(int32_t limit)
{
    jobq_pg_maybe_int32 maybe;

    maybe.value = limit == JOBQ_PG_UNLIMITED ? 0 : limit;
    maybe.set = limit != 0;
    return maybe;
}

static jobq_pg_maybe_bool jobq_pg__choice_of(jobq_pg_choice choice)
{
    jobq_pg_maybe_bool maybe;

    maybe.value = choice == JOBQ_PG_ON;
    maybe.set = choice != JOBQ_PG_LEAVE;
    return maybe;
}

JOBQ_API jobq_error jobq_pg_queue_set(jobq_pg *pg, PGconn *conn, const char *queue,
                                      const jobq_pg_queue_desc *desc, jobq_pg_error *error)
{
    jobq_pg__queue_args from;
    int jitter;

    JOBQ_ASSERT(pg != NULL);
    memset(&from, 0, sizeof from);
    if (desc != NULL) from.of = *desc;
    if (jobq_pg__queue_invalid(queue, &from.of, error)) return JOBQ_ERROR_INVALID;
    from.queue = queue;
    from.kind = from.of.kind;
    from.kind_count = (int32_t)from.of.kind_count;
    from.has_backoff = from.of.backoff.base_us != 0;
    if (from.has_backoff) {
        from.of.backoff = jobq_backoff_defaults(&from.of.backoff);
        from.curve = jobq_enum_name(JOBQ_ENUM_CURVE, from.of.backoff.curve);
        jitter = (int)from.of.backoff.jitter_permille;
        if (jitter == JOBQ_NO_JITTER) jitter = 0;
        snprintf(from.digits, sizeof from.digits, "%d.%03d", jitter / 1000, jitter % 1000);
        from.jitter = jobq_str_from(from.digits);
    }
    from.has_timeout = from.of.timeout_us != 0;
    from.timeout_us = from.of.timeout_us == JOBQ_NEVER ? 0 : from.of.timeout_us;
    from.span = jobq_pg__choice_of(from.of.attempts_span_stages);
    from.history = jobq_pg__choice_of(from.of.history);
    from.limits.running = jobq_pg__limit(from.of.running_max);
    from.limits.line_running = jobq_pg__limit(from.of.line_running_max);
    from.limits.line_waiting = jobq_pg__limit(from.of.line_waiting_max);
    from.limits.strict = jobq_pg__choice_of(from.of.line_strict);
    from.limits.ageing = jobq_pg__choice_of(from.of.ageing);
    from.limits.paused = jobq_pg__choice_of(from.of.paused);
    return jobq_pg__ask(pg, conn, JOBQ_PG__QUEUE_SET, &from, NULL, error);
}

/* -- lines -- */

JOBQ_API jobq_error jobq_pg_line_set(jobq_pg *pg, PGconn *conn, const char *queue,
                                     const char *line, const jobq_pg_line_desc *desc,
                                     jobq_pg_error *error)
{
    jobq_pg__line_row from;

    JOBQ_ASSERT(pg != NULL && line != NULL && desc != NULL);
    if (jobq_pg__name_invalid(queue, "queue", false, error) ||
        jobq_pg__key_invalid(line, "line", error) ||
        jobq_pg__limit_invalid(desc->running_max, "running_max", error) ||
        jobq_pg__burst_invalid(desc->rate_burst, "rate_burst", error))
        return JOBQ_ERROR_INVALID;
    if (desc->weight < 0 || desc->weight > 100)
        return jobq_pg__invalid_int(error, "weight", desc->weight, "must be 1 to 100");
    memset(&from, 0, sizeof from);
    from.queue = queue;
    from.line = line;
    from.of = *desc;
    from.running = jobq_pg__limit(desc->running_max);
    from.strict = jobq_pg__choice_of(desc->strict);
    from.paused = jobq_pg__choice_of(desc->paused);
    return jobq_pg__ask(pg, conn, JOBQ_PG__LINE_SET, &from, NULL, error);
}

JOBQ_API jobq_error jobq_pg_hold(jobq_pg *pg, PGconn *conn, const char *queue, const char *line,
                                 int64_t until_us, const char *why, jobq_pg_error *error)
{
    jobq_pg__line_row from;

    JOBQ_ASSERT(pg != NULL);
    if (jobq_pg__name_invalid(queue, "queue", false, error) ||
        jobq_pg__key_invalid(line, "line", error) ||
        jobq_pg__run_at_invalid(until_us, error)) return JOBQ_ERROR_INVALID;
    if (why != NULL && !jobq_utf8_valid(jobq_str_from(why)))
        return jobq_pg__invalid(error, "why", "not UTF-8");
    memset(&from, 0, sizeof from);
    from.queue = queue;
    from.line = line;
    from.until_us = until_us;
    from.why = why;
    return jobq_pg__ask(pg, conn, JOBQ_PG__HOLD, &from, NULL, error);
}

/* What the server cannot see, because it gets no such field, and a calendar, whose mistake would
 * abort the caller's transaction. The server checks the rest. */
static jobq_error jobq_pg__schedule_invalid(const jobq_pg *pg, const jobq_pg_schedule *s,
                                            jobq_pg_error *error)
{
    const jobq_pg_job *job = &s->job;
    jobq_pg_job checked = *job;
    jobq_cron cron;
    const char *why;
    const char *unused = job->run_at_us != 0                          ? "run_at_us"
                         : job->delay_us != 0                         ? "delay_us"
                         : job->stages > 1                            ? "stages"
                         : job->key != NULL                           ? "key"
                         : job->on_known != JOBQ_KNOWN_LEAVE          ? "on_known"
                         : job->unique_for != JOBQ_UNIQUE_DEFAULT     ? "unique_for"
                         : job->at_latest_us != 0                     ? "at_latest_us"
                         : job->line != NULL                          ? "line"
                         : job->flow != 0                             ? "flow"
                         : job->name != NULL                          ? "name"
                         : job->after != NULL || job->after_count > 0 ? "after"
                         : job->trace.parent.ptr != NULL ||
                               job->trace.state.ptr != NULL ? "trace"
                         : job->quiet                                 ? "quiet" : NULL;

    if (unused != NULL)
        return jobq_pg__invalid(error, unused, "not allowed in a schedule");
    if (job->kind != NULL && s->partition != 0)
        return jobq_pg__invalid(error, "partition", "not allowed with a kind: it is a message's");
    if (job->kind == NULL) checked.kind = "message";
    if (s->every_us < 0)
        return jobq_pg__invalid_int(error, "every_us", s->every_us, "must be positive");
    if (s->missed_within_us < 0)
        return jobq_pg__invalid_int(error, "missed_within_us", s->missed_within_us,
                                    "must be positive");
    if (s->spread_us < 0)
        return jobq_pg__invalid_int(error, "spread_us", s->spread_us, "must be positive");
    if (s->cron != NULL && jobq_cron_parse(jobq_str_from(s->cron), &cron, &why) != JOBQ_OK)
        return jobq_pg__invalid_text(error, "cron", s->cron, why);
    return jobq_pg__job_invalid(pg, &checked, error);
}

JOBQ_API jobq_error jobq_pg_schedules_set(jobq_pg *pg, PGconn *conn, const char *owner,
                                          int64_t revision, const jobq_pg_schedule *schedules,
                                          size_t count, jobq_pg_error *error)
{
    static const jobq_pg__sealable schedule = {
        sizeof *schedules, offsetof(jobq_pg_schedule, job.queue),
        offsetof(jobq_pg_schedule, job.kind), offsetof(jobq_pg_schedule, job.payload)};
    jobq_pg__declared from = {owner, revision, schedules, (int32_t)count};
    jobq_pg__lent *lent = NULL;
    const void *rows = schedules;
    jobq_pg_error local;
    int64_t taken = 0;
    jobq_error code;
    size_t i;

    JOBQ_ASSERT(pg != NULL && (schedules != NULL || count == 0));
    if (error == NULL) error = &local;
    if (count > INT32_MAX / 2)
        return jobq_pg__invalid(error, "count", "too many for one statement");
    for (i = 0; i < count; i++) {
        if (jobq_pg__schedule_invalid(pg, &schedules[i], error))
            return jobq_pg__invalid_at(error, "schedules", i);
    }
    code = jobq_pg__sealed(pg, &schedule, &rows, count, &lent, error);
    from.schedules = (const jobq_pg_schedule *)rows;
    if (code == JOBQ_OK)
        code = jobq_pg__ask(pg, conn, JOBQ_PG__SCHEDULES_SET, &from, &taken, error);
    jobq_pg__lent_drop(&lent);
    if (code != JOBQ_OK || taken) return code;
    jobq_pg__fail(error, JOBQ_ERROR_VERSION, "a newer program has declared the schedules of %s; "
                  "revision %lld changes nothing", owner, (long long)revision);
    return JOBQ_ERROR_VERSION;
}

/* ---- >>work: the worker's state -------------------------------------------------------------- */

/* Without the outbox no work is a delivery, so the compiler drops the code for deliveries. */
#ifndef JOBQ_PG_NO_OUTBOX
#define JOBQ_PG__IS_DELIVERY(w) ((w)->partition_id != 0)
#else
#define JOBQ_PG__IS_DELIVERY(w) false
#endif

/* ---- >>deliver: a delivery while its handler runs -------------------------------------------- */

#define JOBQ_PG__SAVEPOINTS 32 /* in a transaction: many more overflow a backend's cache of them */

typedef struct jobq_pg__run jobq_pg__run;

typedef struct jobq_pg__delivering {
    PGconn *conn;             /* of a transactional handler; else NULL */
    int64_t deadline_mono_us; /* when the handler has to stop, if run is NULL */
    char **reasons;           /* the delivery's: why message i is a dead letter, or NULL */
    jobq_pg__run *run;        /* of a worker's thread, or NULL */
    jobq_message_handler each; /* of a transaction in which message failed_at has failed */
    int32_t failed_at;        /* -1: none */
    jobq_result failed;       /* its result */
    const jobq_delivery *then; /* the delivery as it was at that moment */
} jobq_pg__delivering;

static int jobq_pg__run_stop(jobq_pg__run *run, int64_t *remaining_us);
static bool jobq_pg__run_keep(jobq_pg__run *run, char **reason, char *text);

static bool jobq_pg__reason_keep(jobq_delivery *d, int32_t index, jobq_str why)
{
    const jobq_pg__delivering *in = (const jobq_pg__delivering *)d->context;
    char *copy = (char *)malloc(JOBQ_ERROR_MAX + 1);

    if (copy == NULL) return false;
    jobq_utf8_mend(copy, JOBQ_ERROR_MAX, why);
    if (in->run != NULL) return jobq_pg__run_keep(in->run, &in->reasons[index], copy);
    free(in->reasons[index]);
    in->reasons[index] = copy;
    return true;
}

static int jobq_pg__reading_stop(const jobq_delivery *d, int64_t *remaining_us)
{
    const jobq_pg__delivering *in = (const jobq_pg__delivering *)d->context;

    if (in->run != NULL) return jobq_pg__run_stop(in->run, remaining_us);
    *remaining_us = in->deadline_mono_us - jobq_pg__mono_us();
    if (*remaining_us > 0) return JOBQ_STOP_NONE;
    *remaining_us = 0;
    return JOBQ_STOP_LOST;
}

static bool jobq_pg__in_transaction(const PGconn *conn)
{
    return PQtransactionStatus(conn) == PQTRANS_INTRANS;
}

/* A savepoint for each message after the failed one. */
static bool jobq_pg__one_enter(jobq_delivery *d, int32_t index)
{
    const jobq_pg__delivering *in = (const jobq_pg__delivering *)d->context;

    return index <= in->failed_at ||
           jobq_pg__command(in->conn, "SAVEPOINT jobq_one", NULL) == JOBQ_OK;
}

/* In an aborted transaction every further statement would fail, so the delivery stops. */
static int jobq_pg__whole_stop(const jobq_delivery *d, int64_t *remaining_us)
{
    *remaining_us = 0;
    return jobq_pg__in_transaction(((const jobq_pg__delivering *)d->context)->conn)
               ? jobq_pg__reading_stop(d, remaining_us) : JOBQ_STOP_LOST;
}

/* Why a transaction that its handler left aborted is rolled back: until then the connection has the
 * text of the statement that failed last. */
static const char *jobq_pg__left_aborted(const PGconn *conn, jobq_pg_error *error)
{
    jobq_pg__fail(error, JOBQ_ERROR_DATABASE, "the handler left its transaction aborted: %s",
                  PQerrorMessage(conn));
    return error->message;
}

/* A success counts only if the handler left the transaction open and not aborted. */
static bool jobq_pg__sound(jobq_delivery *d, jobq_result result)
{
    const PGconn *conn = ((const jobq_pg__delivering *)d->context)->conn;
    jobq_pg_error error;

    if (result != JOBQ_RESULT_SUCCESS || jobq_pg__in_transaction(conn)) return true;
    jobq_delivery_error(d, jobq_str_from(jobq_pg__left_aborted(conn, &error)));
    return false;
}

/* The first message that does not succeed ends the batch. */
static bool jobq_pg__whole_leave(jobq_delivery *d, int32_t index, jobq_result result)
{
    jobq_pg__delivering *in = (jobq_pg__delivering *)d->context;

    in->failed = jobq_pg__sound(d, result) ? result : JOBQ_RESULT_RETRY;
    if (in->failed != JOBQ_RESULT_SUCCESS) in->failed_at = index;
    return in->failed == JOBQ_RESULT_SUCCESS;
}

/* Keeps what the handler wrote for a message that succeeded; otherwise rolls it back. One before
 * the failed message that does not succeed again ends the batch. */
static bool jobq_pg__one_leave(jobq_delivery *d, int32_t index, jobq_result result)
{
    const jobq_pg__delivering *in = (const jobq_pg__delivering *)d->context;
    bool good = jobq_pg__sound(d, result);

    if (index == in->failed_at) return true;
    if (index < in->failed_at) return good && result == JOBQ_RESULT_SUCCESS;
    return jobq_pg__command(in->conn, good && result == JOBQ_RESULT_SUCCESS
                                      ? "RELEASE jobq_one"
                                      : "ROLLBACK TO jobq_one; RELEASE jobq_one", NULL) ==
               JOBQ_OK && good;
}

static const jobq_delivery_store jobq_pg__leased = {jobq_pg__reason_keep, jobq_pg__reading_stop,
                                                    NULL, NULL};
static const jobq_delivery_store jobq_pg__whole = {jobq_pg__reason_keep, jobq_pg__whole_stop, NULL,
                                                   jobq_pg__whole_leave};
static const jobq_delivery_store jobq_pg__singly = {jobq_pg__reason_keep, jobq_pg__reading_stop,
                                                    jobq_pg__one_enter, jobq_pg__one_leave};

JOBQ_API PGconn *jobq_pg_delivery_conn(const jobq_delivery *delivery)
{
    JOBQ_ASSERT(delivery != NULL);
    return ((const jobq_pg__delivering *)delivery->context)->conn;
}

/* The whole delivery is to be retried; why is the reason. */
static void jobq_pg__retry_all(jobq_delivery *d, jobq_verdict *verdict, const char *why)
{
    memset(d->results, JOBQ_RESULT_RETRY, (size_t)d->count);
    verdict->result = JOBQ_RESULT_RETRY;
    verdict->processed = JOBQ_COUNT_UNKNOWN;
    jobq_delivery_error(d, jobq_str_from(why));
}

static bool jobq_pg__all_done(const jobq_delivery *d, const jobq_verdict *verdict, bool each)
{
    int32_t i;

    for (i = 0; each && i < d->count; i++) {
        if (d->results[i] != JOBQ_RESULT_SUCCESS && d->results[i] != JOBQ_RESULT_LEFT) {
            return false;
        }
    }
    return verdict->result == JOBQ_RESULT_SUCCESS;
}

/* Handles a message after the writes of those before the failed one were undone with its own. They
 * are handled again, and see one attempt more. The failed one is not: its result is known. */
static jobq_result jobq_pg__again(jobq_delivery *d, const jobq_message *m)
{
    const jobq_pg__delivering *in = (const jobq_pg__delivering *)d->context;
    jobq_str why = {NULL, 0};

    if (m - d->messages < in->failed_at) ((jobq_message *)m)->attempts++;
    if (m - d->messages != in->failed_at) return in->each(d, m);
    why.ptr = in->then->error;
    why.len = in->then->error_size;
    jobq_delivery_error(d, why);
    d->delay_us = in->then->delay_us;
    d->delay_named = in->then->delay_named;
    return in->failed;
}

/* After a rollback to before the first message: once more without the writes of the failed one. If
 * another one fails now, nothing is kept, and the messages so far are retried as a group. */
static void jobq_pg__deliver_again(jobq_delivery *d, jobq_message_handler each,
                                   jobq_verdict *verdict)
{
    jobq_pg__delivering *in = (jobq_pg__delivering *)d->context;
    const jobq_delivery then = *d;
    int32_t handled = in->failed_at + 1;

    in->each = each;
    in->then = &then;
    if (d->count > handled + JOBQ_PG__SAVEPOINTS) d->count = handled + JOBQ_PG__SAVEPOINTS;
    memset(d->results, JOBQ_RESULT_NONE, (size_t)d->count);
    memset(d->results + d->count, JOBQ_RESULT_LEFT, (size_t)(then.count - d->count));
    d->store = &jobq_pg__singly;
    d->error_size = 0;
    d->delay_named = false;
    jobq_delivery_run(d, jobq_pg__again, NULL, verdict);
    d->count = then.count;
    if (handled > 0 && d->results[handled - 1] == JOBQ_RESULT_LEFT) {
        d->results[handled - 1] = JOBQ_RESULT_RETRY; /* it was handled, and that counts */
        if (verdict->result != JOBQ_RESULT_RETRY) return; /* a stop came in between */
        verdict->processed = JOBQ_COUNT_UNKNOWN;
        memset(d->results, JOBQ_RESULT_RETRY, (size_t)handled);
        jobq_pg__command(in->conn, "ROLLBACK TO jobq_batch", NULL);
    }
}

/*
 * Runs a handler in the open transaction of conn. At first one savepoint covers the whole batch.
 * When a message fails, everything is rolled back to it, and the messages before are handled again
 * at once, because a savepoint before each of them would cost a round trip, and a transaction id.
 * When a batch handler fails, nothing is kept: the messages that it reported as processed are
 * delivered again too. False: the transaction cannot be committed.
 */
static bool jobq_pg__deliver_in(PGconn *conn, jobq_delivery *d, jobq_message_handler each,
                                jobq_batch_handler all, jobq_verdict *verdict)
{
    int32_t i;
    jobq_pg_error error;
    bool lost = jobq_pg__command(conn, "SAVEPOINT jobq_batch", NULL) != JOBQ_OK;

    ((jobq_pg__delivering *)d->context)->failed_at = -1;
    d->store = &jobq_pg__whole;
    if (!lost) jobq_delivery_run(d, each, all, verdict);
    if (!lost && jobq_pg__in_transaction(conn) && jobq_pg__all_done(d, verdict, each != NULL) &&
        jobq_pg__command(conn, "RELEASE jobq_batch", NULL) == JOBQ_OK) {
        return true; /* the savepoint existed: it is still the same transaction */
    }
    if (!lost && each == NULL && verdict->result == JOBQ_RESULT_SUCCESS &&
        PQtransactionStatus(conn) == PQTRANS_INERROR) {
        jobq_pg__retry_all(d, verdict, jobq_pg__left_aborted(conn, &error));
    }
    if (lost || jobq_pg__command(conn, "ROLLBACK TO jobq_batch", NULL) != JOBQ_OK) {
        jobq_pg__retry_all(d, verdict, "the handler ended the transaction");
        return false;
    }
    for (i = 0; each == NULL && verdict->processed != JOBQ_COUNT_UNKNOWN && i < d->count &&
                i < (int32_t)verdict->processed; i++) {
        d->results[i] = JOBQ_RESULT_LEFT;
    }
    if (each != NULL) jobq_pg__deliver_again(d, each, verdict);
    if (jobq_pg__command(conn, "RELEASE jobq_batch", NULL) == JOBQ_OK) return true;
    jobq_pg__retry_all(d, verdict, "the handler ended the transaction");
    return false;
}

/* An asynchronous call of the host. */
struct jobq_pg__async {
    jobq_pg__async *next;
    jobq_pg__statement st;
    bool again;             /* sent again, because its prepared statement was unknown */
    jobq_pg_done done;
    void *user;
    jobq_pg_reply reply;
    jobq_pg_error error;
    char *key;              /* of an enqueue, or NULL */
    jobq_pg__changing change; /* of a cancel */
    int64_t until_us;       /* await: when its time is up */
    int64_t next_us, nap_us; /* its next look, and how long after the latest one */
    int64_t channel;        /* await has written that the worker with this id listens; 0: nothing */
    jobq_pg_rows rows;      /* await: reply.result points into them */
    jobq_pg__params params;
};

typedef struct jobq_pg__asyncs {
    jobq_pg__async *head, **tail; /* tail: where the next one is linked */
} jobq_pg__asyncs;

/* Points at which tests kill the process or cut the connection. step: a word for what is about to
 * happen or has just happened; kind: the statement's jobq_request_kind, or -1. */
#ifndef JOBQ_PG_POINT
#define JOBQ_PG_POINT(step, kind, conn) ((void)0)
#endif

#define JOBQ_PG__PENDING_MAX (64 + 2 * JOBQ_LOOP_PARTITIONS)

/* A result with jobs, whose texts point into it; its last user frees it. */
typedef struct jobq_pg__answer {
    PGresult *result;
    int32_t users; /* jobs, runs and hook calls that still need it */
} jobq_pg__answer;

/* What the worker keeps for the job in slot i of the loop. */
typedef struct jobq_pg__held {
    jobq_pg__answer *answer; /* of its claim; NULL once its run has it */
    int row;                 /* of the job in that result */
    char *error;             /* of the failed attempt, or NULL */
    size_t error_size;
    char *next;              /* payload of the next stage, or NULL */
    size_t next_size;
    bool next_bytes;         /* that payload is bytes, not JSON */
    char *log;               /* lines of the attempt, as JSON, or NULL */
    size_t log_size;
    int32_t refused;         /* the ending's count when a refusal last replaced the error */
    const jobq_pg_handler *handler; /* once its run has begun */
    bool failed;             /* the hook failed has been, or will be, told of it */
} jobq_pg__held;

typedef struct jobq_pg__delivery jobq_pg__delivery;
typedef struct jobq_pg__run_data jobq_pg__run_data;
typedef struct jobq_pg__hook_call jobq_pg__hook_call;
typedef struct jobq_pg__attempt jobq_pg__attempt;

/* The connection for LISTEN, when a pooler carries the statements. */
typedef struct jobq_pg__listener {
    PGconn *conn;
    jobq_pg__attempt *attempt; /* to make conn; NULL: none is under way */
    int64_t asked;             /* the worker id in the last LISTEN */
    bool waits;                /* LISTEN has been sent and has no answer yet */
    int64_t until_us;          /* of the next LISTEN or attempt; when waits, the time-out */
} jobq_pg__listener;

/* The connection for VACUUM and prune. */
typedef struct jobq_pg__maintenance {
    PGconn *conn;
    jobq_pg__attempt *attempt; /* to make conn; NULL: none is under way */
    uint32_t wanted;           /* requests to be sent: bit i is that of kind i */
    int32_t prune_limit;       /* rows of the next prune */
    jobq_request_kind kind;    /* of the statement under way; WAIT: another, or none */
    jobq_error code;           /* its result so far */
} jobq_pg__maintenance;

/* How far a run's job is. changes counts what its handler told: the heartbeat under way carries
 * those up to sent, and the database has those up to known. */
typedef struct jobq_pg__progress {
    int32_t permille;
    int64_t changes, sent, known;
    char note[JOBQ_NOTE_MAX + 1];
} jobq_pg__progress;

/* A thread for handlers, or the host, and the handler that it runs. */
struct jobq_pg__run {
    jobq_pg_worker *worker; /* whose work it does; NULL: the thread waits for work */
    bool busy;       /* the handler has not ended; later the hooks may only read what it got */
    jobq_work work;
    const jobq_pg_handler *handler; /* of a job */
    jobq_pg__delivery *kept;        /* of messages; else NULL */
    jobq_pg__delivering delivering;
    jobq_stop stop;       /* what the handler was told last; of messages asked at ask_mono_us */
    int64_t remaining_us; /* ... of messages: the time that was left then */
    int64_t ask_mono_us;
    bool abandoned;  /* the worker no longer waits for the handler */
    int64_t abandoned_mono_us;
    jobq_pg__run_data *data;
    jobq_pg__answer *answer; /* of the claim of a job; else NULL */
    int64_t began_mono_us;   /* when the work was taken */
    PGconn *conn;    /* of the pool, once the handler asked; else NULL */
    PGcancel *cancel; /* of conn, under the lock; NULL once it was sent */
    char *next;      /* payload of the next stage, as the handler gave it */
    size_t next_size;
    bool next_bytes;
    char seal[68];             /* name of its payload's seal; empty: it has none */
    struct jobq_pg__run *link; /* in the group's list */
};

/* What a handler gets, and what is planned when it returns. */
struct jobq_pg__run_data {
    struct jobq_pg__group *group;       /* of its thread */
    jobq_call call;
    jobq_delivery delivery;
    jobq_pg__progress progress;         /* of the job; guarded by the lock */
    jobq_log *log;                      /* ... what it has logged, or NULL; likewise */
    jobq_pg__lent *lent;                /* what steps and signals have answered, or NULL */
    jobq_ack ack;                       /* what will be written about the delivery */
    int32_t planned;                    /* messages that are settled by it, for the hooks */
    char error[JOBQ_ERROR_MAX + 1];     /* of the job or the delivery, for the hooks */
};

/* Workers that share threads for handlers: one for each schema, with a loop, connections and a
 * thread of its own. A worker of one schema is alone in its group. */
typedef struct jobq_pg__group {
    jobq_pg_worker **workers;  /* the program holds the first */
    size_t count;
    jobq_pg__os_mutex lock;      /* "the lock" below: guards what follows, and the workers' loops */
    jobq_pg__os_cond work, gone; /* there may be work; a thread or a worker has ended, or a worker's
                                  lease was renewed */
    jobq_pg__run *runs;
    int32_t threads, idle, stuck; /* stuck: handlers and attempts given up */
    int32_t fewer;             /* how many threads there were when the log said that a start had
                                  failed; 0: one has started since then */
    jobq_request *request;     /* that some worker is carrying out */
    jobq_answer *answer;       /* that some worker's loop is being told */
    size_t turn;               /* counts up: the worker that a free thread asks next */
    size_t open;               /* workers that have not ended */
} jobq_pg__group;

struct jobq_pg_worker {
    jobq_pg__group *group;
    jobq_pg *pg;
    char *name;
    jobq_pg_handler handlers[JOBQ_LOOP_KINDS]; /* with copies of the strings */
    size_t handler_count;
    jobq_pg_receiver *receivers;    /* with copies of the strings */
    size_t receiver_count;
    size_t receiver_of[JOBQ_LOOP_QUEUES]; /* index into receivers, by queue */
    jobq_pg_hooks hooks;
    const char *queues[JOBQ_LOOP_QUEUES]; /* point into handlers and receivers */
    size_t queue_count;
    int32_t kind_queues[JOBQ_LOOP_KINDS]; /* for REGISTER, by handler: its queue, counted from 1, */
    const char *kinds[JOBQ_LOOP_KINDS];   /* its kind, and the kind's id, from the answer */
    int32_t kind_ids[JOBQ_LOOP_KINDS];
    int32_t queue_ids[JOBQ_LOOP_QUEUES];
    jobq_pg__os_socket poke[2];     /* a pair: wakes the stepping thread; 's' asks it to stop */
    jobq_pg__os_thread thread;      /* its own thread, which steps it */
    bool threaded;                  /* that thread was started */
    PGconn *conn;                   /* for statements */
    jobq_pg__attempt *attempt;      /* to make conn; NULL: none is under way */
    const char *broken;             /* why disconnect is due; empty: that is logged; NULL: it is not
                                       due */
    bool may_listen;                /* on conn: the queue of notifications was short */
    bool deaf;                      /* the log says that notifications do not arrive */
    char limits[300];               /* SQL that sets the time-outs of statements */
    jobq_pg__listener listener;
    jobq_pg__maintenance maintenance;
    jobq_pg__params params;         /* of the statement that is being sent */
    jobq_pg__pending pending[JOBQ_PG__PENDING_MAX]; /* a ring, oldest at pending_first */
    int pending_first, pending_count;
    int64_t pending_mono_us;        /* when the first of them was sent */
    int rows[JOBQ_ENDINGS_MAX];     /* in the result, of the jobs of one answer */
    jobq_pg_ending *endings;        /* room for those of one flush */
    char refusal[512];              /* why the database last refused a statement */
    jobq_pg__asyncs waiting;        /* asynchronous calls that were not sent yet */
    jobq_pg__asyncs awaiting;       /* ... those that look again, each at its time */
    jobq_pg__asyncs answered;       /* ... and those to be told of */
    int async_count, async_sent;    /* all of them, and those in pending */
    bool async_turn;                /* behind a pooler: a call may go before the loop's statement */
    jobq_loop_config config;
    jobq_loop *loop;                /* guarded by the group's lock, as is all that follows */
    int64_t id;                     /* in its last REGISTER; 0: it has sent none */
    jobq_pg__held held[JOBQ_LOOP_SLOTS]; /* by the loop's slot of a job */
    jobq_pg__delivery *deliveries[JOBQ_LOOP_PARTITIONS]; /* by that of a partition */
    jobq_pg__hook_call *hook_calls; /* a list, of handlers that were abandoned */
    int64_t io_until_us;            /* the stepping thread sleeps until then */
    int64_t end_us;                 /* once ended: maintenance may run until then */
    int64_t handler_us;             /* time spent in handlers */
    bool no_failed_log;
    int64_t stats_us;               /* between two lines of statistics; 0: none */
    int64_t stats_mono_us;          /* when the next one is due */
    int64_t told_mono_us;           /* when the last one was written, and what was counted then */
    jobq_pg_stats told;
    int64_t trouble_mono_us;        /* when trouble was recorded */
    bool gave_up;                   /* too many handlers were stuck, or no thread was left */
    char trouble[512];              /* the last trouble, for health; empty: none */
    bool away;                      /* the connection was lost, or could not be made */
    bool unproved;                  /* no server answered at the start: the schema may not serve */
    bool vacuum_told;               /* the log has told of a VACUUM timed out through a pooler */
    bool ended;
    int pool_share;                 /* connections that it added to the pool's limit */
    bool hosted;                    /* the host steps it and runs its handlers; for that: */
    bool more;                      /* the last step ran out of budget: more may be ready */
    jobq_pg__run run;
    jobq_pg__run_data data;
    jobq_pg__progress_row progress_rows[JOBQ_LOOP_THREADS]; /* of the heartbeat being sent */
};

static void *jobq_pg__thread(void *arg);
static bool jobq_pg__keep(jobq_call *call, jobq_str next, bool bytes);
static int jobq_pg__stopping(const jobq_call *call, int64_t *remaining_us);

static bool jobq_pg__turn(jobq_pg_worker *w);

static jobq_error jobq_pg__call_hold(jobq_call *call, jobq_hold what, int64_t delay_us,
                                     const char *why);
static jobq_error jobq_pg__call_progress(jobq_call *call, int permille, const char *note, bool now);
static void jobq_pg__call_log(jobq_call *call, jobq_level level, jobq_str text);
static jobq_error jobq_pg__call_step(jobq_call *call, const char *name, const jobq_str *done,
                                     jobq_str *value);
static jobq_error jobq_pg__call_signal(jobq_call *call, const char *name, int64_t timeout_us,
                                       jobq_str *payload);
static const jobq_store jobq_pg__store = {
    jobq_pg__keep,     jobq_pg__stopping,  jobq_pg__call_hold,  jobq_pg__call_progress,
    jobq_pg__call_log, jobq_pg__call_step, jobq_pg__call_signal};

/* -- what has failed for good -- */

static bool jobq_pg__tells_failed(const jobq_pg_worker *w)
{
    return w->hooks.failed != NULL || !w->no_failed_log;
}

/* Whether a run may have ended in such a failure, of which somebody is told. */
static bool jobq_pg__has_failed(const jobq_pg_worker *w, const jobq_pg_report *report)
{
    if (report->call != NULL && report->state != JOBQ_STATE_FAILED) return false;
    return jobq_pg__tells_failed(w);
}

/* Logs a job that has failed, or a message that is a dead letter now, and calls the hook. */
static void jobq_pg__tell_failed(const jobq_pg_worker *w, const jobq_pg_report *report)
{
    bool is_job = report->call != NULL;
    jobq_pg_event e = jobq_pg__event_of(JOBQ_LEVEL_WARNING, is_job ? "job_failed" : "message_dead");
    char what[160], more[48];

    if (!w->no_failed_log && jobq_pg__may_log(w->pg, &w->pg->failures, more)) {
        e.queue = report->queue;
        if (is_job) {
            e.kind = report->call->kind;
            e.worker = report->call->job.worker;
            e.job = report->call->job.id;
            e.attempt = report->call->job.attempt;
            snprintf(what, sizeof what, "job %lld, kind %.*s, has failed for good",
                     (long long)e.job, (int)e.kind.len, e.kind.ptr);
        } else {
            e.partition_id = report->delivery->partition_id;
            snprintf(what, sizeof what, "message %lld of partition %lld is a dead letter now",
                     (long long)report->message->seq, (long long)report->delivery->partition);
        }
        jobq_pg__log(w->pg, e, "queue %.*s: %s: %.*s%s", (int)e.queue.len, e.queue.ptr, what,
                     (int)report->error.len, report->error.len > 0 ? report->error.ptr : "", more);
    }
    if (w->hooks.failed != NULL) w->hooks.failed(w->hooks.user, report);
}

/* -- what the worker keeps for a job -- */

static void jobq_pg__answer_drop(jobq_pg__answer *answer)
{
    if (answer == NULL || --answer->users > 0) return;
    PQclear(answer->result);
    free(answer);
}

static void jobq_pg__held_clear(jobq_pg__held *h)
{
    jobq_pg__answer_drop(h->answer);
    free(h->error);
    free(h->next);
    free(h->log);
    memset(h, 0, sizeof *h);
}

/* -- cancelling: PQcancel connects and may wait for a dead host, so another thread calls it -- */

static void *jobq_pg__canceller(void *arg)
{
    char ignored[64];

    PQcancel((PGcancel *)arg, ignored, sizeof ignored);
    PQfreeCancel((PGcancel *)arg);
    return NULL;
}

/* ---- >>handlers: their threads, and the deliveries that they get ----------------------------- */

/* Records what jobq_pg_worker_health will report. The lock is held. */
static void jobq_pg__trouble(jobq_pg_worker *w, const char *text)
{
    jobq_pg__copy(w->trouble, sizeof w->trouble, text);
    w->trouble_mono_us = jobq_pg__mono_us();
}

/* An event of a worker. error: NULL: none. The lock is held. */
static jobq_pg_event jobq_pg__worker_event(const jobq_pg_worker *w, jobq_level level,
                                           const char *code, const jobq_pg_error *error)
{
    jobq_pg_event e = error == NULL ? jobq_pg__event_of(level, code)
                                    : jobq_pg__event_error(level, code, error);

    e.worker = w->id;
    return e;
}

/* Sends and frees the cancel of what is given up. NULL: does nothing. The lock is held. */
static void jobq_pg__cancel_statement(jobq_pg_worker *w, PGcancel *cancel, const char *what)
{
    if (cancel == NULL || jobq_pg__os_detached(jobq_pg__canceller, cancel)) return;
    PQfreeCancel(cancel);
    jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "thread_missing", NULL),
                 "%s cannot be cancelled and runs on: " JOBQ_PG__NO_THREAD, what);
}

/* No connection could be made. That may last for hours, so a repeated error is logged at debug
 * level only. The lock is held. */
static void jobq_pg__undialed(jobq_pg_worker *w, const jobq_pg_error *error)
{
    bool known = w->away && strcmp(w->trouble, error->message) == 0;

    jobq_pg__log(w->pg, jobq_pg__worker_event(w, known ? JOBQ_LEVEL_DEBUG : JOBQ_LEVEL_WARNING,
                                              "connect_failed", error), "%s", error->message);
    jobq_pg__trouble(w, error->message);
    w->away = true;
}

static void jobq_pg__poke(jobq_pg_worker *w, char why)
{
    jobq_pg__os_pair_write(w->poke, why);
}

/* Wakes the stepping thread if it would sleep too long after the loop was told something. */
JOBQ_PG__ONCE static void jobq_pg__told(jobq_pg_worker *w, int64_t now)
{
    if (jobq_loop_due(w->loop, now) >= w->io_until_us) return;
    w->io_until_us = 0;
    if (!w->hosted) jobq_pg__poke(w, 'w');
}

static const jobq_pg_handler *jobq_pg__handler_of(const jobq_pg_worker *w, int32_t kind)
{
    size_t i;

    for (i = 0; i < w->handler_count; i++) {
        if (w->kind_ids[i] == kind) return &w->handlers[i];
    }
    return NULL;
}

/* The handler of a stage: its own, or that of the nearest earlier stage that has one. */
static jobq_handler jobq_pg__stage_of(const jobq_pg_handler *handler, int stage)
{
    while (stage > 0 && handler->run[stage] == NULL) stage--;
    return handler->run[stage];
}

/* Fills a call from a run; its strings point into the claim's result. The lock is held. */
static void jobq_pg__call_fill(jobq_call *call, const jobq_pg_worker *w, const jobq_pg__run *run)
{
    const jobq_pg__held *h = &w->held[run->work.slot];
    jobq_pg__claim_row row;

    memset(&row, 0, sizeof row);
    jobq_pg__row(run->answer->result, h->row, 0, jobq_pg__handed_out, &row);
    call->job = run->work.job;
    call->kind = jobq_str_from(run->handler->kind);
    call->payload = row.payload;
    call->payload_bytes = row.payload_bytes;
    call->headers = row.headers;
    call->user = run->handler->user;
    call->delay_us = 0;
    call->delay_named = false;
    call->error_size = 0;
    call->error[0] = '\0';
    call->store = &jobq_pg__store;
    call->context = (void *)run;
    memset(&run->data->progress, 0, sizeof run->data->progress);
}

/* Copies the slot's error for the hooks, because the slot may have been cleared when they are
 * called. The lock is held. */
static void jobq_pg__report_job(const jobq_pg_worker *w, jobq_pg__run *run, jobq_pg_report *report)
{
    const jobq_pg__held *h = &w->held[run->work.slot];

    if (h->error == NULL) return;
    memcpy(run->data->error, h->error, h->error_size + 1);
    report->error.ptr = run->data->error;
    report->error.len = h->error_size;
}

/* Keeps a failed attempt's error, with the decision's reason, in the slot. The lock is held. */
static void jobq_pg__error_keep(jobq_pg__held *h, const jobq_decision *decision,
                                jobq_outcome outcome, const jobq_call *call)
{
    char text[JOBQ_ERROR_MAX + 1];

    h->error_size = jobq_call_reason(text, call, outcome, decision);
    if (h->error_size == 0) return;
    h->error = (char *)malloc(h->error_size + 1);
    if (h->error != NULL) memcpy(h->error, text, h->error_size + 1);
}

/* Keeps what the attempt has logged in the slot. Without memory it is lost. The lock is held. */
static void jobq_pg__log_keep(jobq_pg__held *h, const jobq_log *log)
{
    char text[JOBQ_LOG_FORMAT_MAX];
    size_t size = log == NULL ? 0 : jobq_log_format(text, log);

    if (size == 0) return;
    free(h->log);
    h->log = jobq_pg__dup(text);
    h->log_size = size;
}

/* The error of an attempt whose time limit ended. */
static void jobq_pg__error_overran(jobq_pg__held *h, const jobq_decision *decision)
{
    static const char text[] = "the handler ran out of time";
    char full[JOBQ_ERROR_MAX + 1];

    h->error_size = jobq_reason_format(full, decision, jobq_str_from(text));
    h->error = jobq_pg__dup(full);
}

/* A job's handler returned: the loop decides, and the slot keeps the texts for the database. The
 * lock is held. */
static void jobq_pg__returned(jobq_pg_worker *w, jobq_pg__run *run, const jobq_call *call,
                              jobq_pg_report *report)
{
    int64_t now = jobq_pg__mono_us();
    jobq_pg__held *h = &w->held[run->work.slot];
    jobq_handled handled;
    jobq_decision decision;
    int64_t remaining_us;
    jobq_stop stop = jobq_loop_stopping(w->loop, now, &run->work, &remaining_us);

    memset(&handled, 0, sizeof handled);
    handled.lost = run->stop == JOBQ_STOP_LOST;
    handled.outcome = report->outcome;
    handled.delay_us = call->delay_us;
    handled.delay_named = call->delay_named;
    handled.bytes = (int64_t)(call->error_size + run->next_size +
                              (run->data->log == NULL ? 0 : run->data->log->size));
    if (!jobq_loop_handled(w->loop, now, &run->work, &handled, &decision)) return;
    if (stop == JOBQ_STOP_TIMEOUT) jobq_pg__error_overran(h, &decision);
    else jobq_pg__error_keep(h, &decision, report->outcome, call);
    jobq_pg__log_keep(h, run->data->log);
    if (decision.state == JOBQ_STATE_SUCCEEDED ||
        (decision.state == JOBQ_STATE_READY && decision.stage > run->work.job.stage)) {
        h->next = run->next;
        h->next_size = run->next_size;
        h->next_bytes = run->next_bytes;
        run->next = NULL;
    }
    report->state = decision.state;
    h->failed = decision.state == JOBQ_STATE_FAILED;
    jobq_pg__report_job(w, run, report);
    jobq_pg__told(w, now);
}

/* An event of the run that a thread has, or had last: its own thread, or the lock is held. */
static jobq_pg_event jobq_pg__run_event(const jobq_pg__run *run, jobq_level level,
                                        const char *code)
{
    jobq_pg_event e = jobq_pg__event_of(level, code);

    e.duration_us = jobq_pg__mono_us() - run->began_mono_us;
    if (JOBQ_PG__IS_DELIVERY(&run->work)) {
        e.queue = run->data->delivery.queue;
        e.worker = run->work.token.worker;
        e.partition_id = run->work.partition_id;
    } else if (run->handler != NULL) {
        e.queue = jobq_str_from(run->handler->queue);
        e.kind = jobq_str_from(run->handler->kind);
        e.worker = run->work.job.worker;
        e.job = run->work.job.id;
        e.attempt = run->work.job.attempt;
    }
    return e;
}

/* Gives the handler's connection back. If the cancel is gone, it was sent and may still arrive. The
 * lock is not held: a rollback may take a round trip. */
static void jobq_pg__run_end(jobq_pg_worker *w, jobq_pg__run *run)
{
    PGcancel *cancel;
    jobq_pg_event event = jobq_pg__run_event(run, JOBQ_LEVEL_WARNING, "transaction_left");
    char what[160];

    jobq_pg__os_lock(&w->group->lock);
    cancel = run->cancel;
    run->cancel = NULL;
    jobq_pg__os_unlock(&w->group->lock);
    PQfreeCancel(cancel);
    if (event.job != 0) snprintf(what, sizeof what, "queue %.*s, job %lld: ", (int)event.queue.len,
                                 event.queue.ptr, (long long)event.job);
    else snprintf(what, sizeof what, "queue %.*s, partition %lld: ", (int)event.queue.len,
                  event.queue.ptr, (long long)event.partition_id);
    jobq_pg__roll_back(w->pg, run->conn, event, what);
    jobq_pg__give_back(w->pg, run->conn, cancel == NULL ? JOBQ_PG__SPENT : JOBQ_PG__BY_OTHERS);
    run->delivering.conn = run->conn = NULL;
}

/* Whether a handler has to stop, and the time that is left to it. A hosted handler blocks its host,
 * so this steps the worker. */
static jobq_stop jobq_pg__run_asks(jobq_pg__run *run, int64_t *remaining_us)
{
    jobq_pg_worker *w = run->worker;
    int64_t now = jobq_pg__mono_us();
    jobq_stop stop;

    if (w->hosted && now >= run->ask_mono_us) {
        jobq_pg__turn(w);
        run->ask_mono_us = now + 1000;
    }
    jobq_pg__os_lock(&w->group->lock);
    stop = jobq_loop_stopping(w->loop, jobq_pg__mono_us(), &run->work, remaining_us);
    jobq_pg__os_unlock(&w->group->lock);
    return stop;
}

/* A connection of the pool for a handler, with a cancel for it. NULL: error is filled. */
static PGconn *jobq_pg__run_conn(jobq_pg__run *run, jobq_pg_error *error)
{
    PGconn *conn;

    if (run->conn != NULL) return run->conn;
    if (jobq_pg_acquire(run->worker->pg, &conn, error) != JOBQ_OK) return NULL;
    jobq_pg__os_lock(&run->worker->group->lock);
    run->conn = conn;
    run->cancel = PQgetCancel(conn);
    jobq_pg__os_unlock(&run->worker->group->lock);
    return conn;
}

/* -- messages: the delivery that the worker has of a partition -- */

/* A delivery. The worker uses it until the partition's next one, a thread until its hooks have
 * returned; the last user frees it. */
struct jobq_pg__delivery {
    jobq_pg__portion portion;
    char **reasons;          /* why message i is a dead letter, or NULL */
    char error[JOBQ_ERROR_MAX + 1]; /* of the message, or of the batch, that failed */
    size_t error_size;
    bool reasons_done;       /* all reasons have been completed */
    int32_t users;
};

static void jobq_pg__delivery_drop(jobq_pg__delivery *kept)
{
    int32_t i;

    if (kept == NULL || --kept->users > 0) return;
    for (i = 0; i < kept->portion.count; i++) free(kept->reasons[i]);
    free(kept->reasons);
    jobq_pg__portion_clear(&kept->portion);
    free(kept);
}

/* Takes a portion over. NULL: no memory; the portion is still the caller's. */
static jobq_pg__delivery *jobq_pg__delivery_new(const jobq_pg__portion *portion)
{
    jobq_pg__delivery *kept = (jobq_pg__delivery *)calloc(1, sizeof *kept);
    char **reasons = (char **)calloc((size_t)portion->count + 1, sizeof *reasons);

    if (kept == NULL || reasons == NULL) {
        free(kept);
        free(reasons);
        return NULL;
    }
    kept->portion = *portion;
    kept->reasons = reasons;
    kept->users = 1;
    return kept;
}

/* Writes down why message i is a dead letter. */
static void jobq_pg__delivery_reason(jobq_pg__delivery *kept, int32_t i, bool exceeded,
                                     bool delivered, int32_t limit)
{
    jobq_str why = {kept->error, kept->error_size};
    jobq_decision decision;
    char *text;

    if (kept->reasons[i] != NULL) why = jobq_str_from(kept->reasons[i]);
    else if (!delivered) why = kept->portion.error;
    if (!delivered && why.len == 0) why = jobq_str_from("its worker died each time");
    text = (char *)malloc(JOBQ_ERROR_MAX + 1);
    if (text == NULL) return;
    memset(&decision, 0, sizeof decision);
    decision.reason = exceeded ? JOBQ_REASON_ATTEMPTS : JOBQ_REASON_NONE;
    decision.limit = limit;
    jobq_reason_format(text, &decision, why);
    free(kept->reasons[i]);
    kept->reasons[i] = text;
}

/* Completes the reasons of the dead letters of an acknowledgement, once. The lock is held. */
static void jobq_pg__delivery_reasons(jobq_pg__delivery *kept, const jobq_ack *ack)
{
    int32_t i;

    for (i = 0; i < ack->plan.done && !kept->reasons_done; i++) {
        if (!jobq_pg__is_dead(ack->results[i])) continue;
        jobq_pg__delivery_reason(kept, i, ack->results[i] == JOBQ_RESULT_EXCEEDED,
                                 i < ack->given, ack->max_attempts);
    }
    kept->reasons_done = true;
}

/* What an acknowledgement adds to its request. The lock is held. */
static jobq_pg_content jobq_pg__delivery_content(jobq_pg__delivery *kept, const jobq_ack *ack)
{
    jobq_pg_content c;

    memset(&c, 0, sizeof c);
    jobq_pg__delivery_reasons(kept, ack);
    c.messages = kept->portion.messages;
    c.reasons = (const char *const *)kept->reasons;
    c.error.ptr = kept->error;
    c.error.len = kept->error_size;
    return c;
}

/* -- messages: handlers -- */

/* Keeps text as the reason of a dead letter, or frees it if the delivery has been given up. */
static bool jobq_pg__run_keep(jobq_pg__run *run, char **reason, char *text)
{
    jobq_pg__os_lock(&run->worker->group->lock);
    if (run->busy && !run->abandoned) {
        free(*reason);
        *reason = text;
    } else free(text);
    jobq_pg__os_unlock(&run->worker->group->lock);
    return run->busy;
}

/* It is called after each message, so it asks the loop at most once a millisecond. */
static int jobq_pg__run_stop(jobq_pg__run *run, int64_t *remaining_us)
{
    int64_t now = jobq_pg__mono_us();

    *remaining_us = 0;
    if (!run->busy) return JOBQ_STOP_LOST;
    if (run->stop == JOBQ_STOP_NONE && now >= run->ask_mono_us) {
        run->stop = jobq_pg__run_asks(run, &run->remaining_us);
        run->ask_mono_us = now + 1000;
    }
    *remaining_us = run->remaining_us;
    return (int)run->stop;
}

/* Fills the handler's delivery from a run. The lock is held. */
static void jobq_pg__delivery_fill(const jobq_pg_worker *w, jobq_pg__run *run)
{
    const jobq_pg_receiver *receiver = &w->receivers[w->receiver_of[run->work.queue]];
    jobq_delivery *d = &run->data->delivery;

    memset(d, 0, sizeof *d - sizeof d->error);
    d->error[0] = '\0';
    d->messages = run->kept->portion.messages;
    d->count = run->work.given;
    d->partition = run->work.partition;
    d->partition_id = run->work.partition_id;
    d->queue = jobq_str_from(receiver->queue);
    d->user = receiver->user;
    d->results = run->work.results;
    d->store = &jobq_pg__leased; /* jobq_pg__deliver_in sets its own */
    d->context = &run->delivering;
    run->ask_mono_us = 0;
    memset(&run->delivering, 0, sizeof run->delivering);
    run->delivering.reasons = run->kept->reasons;
    run->delivering.run = run;
}

/* Copies the plan for the hooks, because another worker may hold the partition when they are
 * called. The lock is held. */
static void jobq_pg__run_data_plan(const jobq_pg_worker *w, jobq_pg__delivery *kept,
                                   jobq_pg__run_data *data)
{
    data->planned = 0;
    if (w->hooks.after == NULL && !jobq_pg__tells_failed(w)) return;
    jobq_pg__delivery_reasons(kept, &data->ack);
    data->planned = data->ack.plan.done;
    memcpy(data->error, kept->error, kept->error_size + 1);
}

/* Tells the loop a handler's result. own: the handler's transaction acknowledges. False: the
 * handler had been abandoned. The lock is held. */
static bool jobq_pg__delivered(jobq_pg_worker *w, jobq_pg__run *run, const jobq_delivery *d,
                               const jobq_verdict *verdict, bool own)
{
    int64_t now = jobq_pg__mono_us();

    if (!jobq_loop_delivered(w->loop, now, &run->work, verdict, own, &run->data->ack)) return false;
    run->kept->error_size = d->error_size;
    memcpy(run->kept->error, d->error, d->error_size + 1);
    if (d->error_size == 0 && verdict->result != JOBQ_RESULT_SUCCESS) {
        run->kept->error_size = jobq_utf8_mend(run->kept->error, JOBQ_ERROR_MAX, jobq_str_from(
            verdict->result == JOBQ_RESULT_RETRY ? "message handler returned Retry" : "rejected"));
    }
    jobq_pg__run_data_plan(w, run->kept, run->data);
    if (!own) jobq_pg__told(w, now);
    return true;
}

/* Acknowledges and commits. OK: committed. LOST, RETRYABLE: rolled back. CONNECTION: unknown. */
static jobq_error jobq_pg__commit_own(jobq_pg_worker *w, PGconn *conn, const jobq_pg__ack *ack,
                                      jobq_pg_error *error)
{
    PGresult *res = jobq_pg__call(w->pg, conn, JOBQ_PG__OUTBOX_ACK, ack, error);
    jobq_error code = res == NULL ? error->code : JOBQ_OK;

    if (res != NULL && jobq_pg__int(res, 0, 0) == 'l') code = JOBQ_ERROR_LOST;
    PQclear(res);
    if (code != JOBQ_OK) {
        PQclear(PQexec(conn, "ROLLBACK"));
        return code == JOBQ_ERROR_LOST ? code : JOBQ_ERROR_RETRYABLE;
    }
    JOBQ_PG_POINT("acknowledge", -1, conn);
    res = PQexec(conn, "COMMIT");
    JOBQ_PG_POINT("acknowledged", -1, conn);
    if (res != NULL && strcmp(PQcmdStatus(res), "COMMIT") == 0) code = JOBQ_OK;
    else {
        jobq_pg__result_error(error, conn, res);
        if (PQstatus(conn) == CONNECTION_OK) code = JOBQ_ERROR_RETRYABLE;
        else code = JOBQ_ERROR_CONNECTION; /* it may have been committed */
    }
    PQclear(res);
    return code;
}

/* A transactional handler returned: the transaction with its effects also acknowledges. */
static void jobq_pg__deliver_own(jobq_pg_worker *w, jobq_pg__run *run, jobq_delivery *d,
                                 const jobq_verdict *verdict)
{
    jobq_pg__dead *dead = (jobq_pg__dead *)calloc((size_t)d->count + 1, sizeof *dead);
    jobq_pg_content c;
    jobq_pg__ack ack;
    jobq_pg_error error;
    jobq_error code = JOBQ_ERROR_RETRYABLE;
    bool wanted;

    error.message[0] = '\0';
    jobq_pg__os_lock(&w->group->lock);
    wanted = jobq_pg__delivered(w, run, d, verdict, true);
    if (wanted && dead != NULL) {
        c = jobq_pg__delivery_content(run->kept, &run->data->ack);
        c.in_transaction = true;
        ack = jobq_pg__ack_of(&run->data->ack, run->work.partition_id, &run->work.token, &c, dead);
    }
    jobq_pg__os_unlock(&w->group->lock);
    if (wanted && dead != NULL) code = jobq_pg__commit_own(w, run->conn, &ack, &error);
    else PQclear(PQexec(run->conn, "ROLLBACK"));
    free(dead);
    jobq_pg__os_lock(&w->group->lock);
    if (code != JOBQ_OK) run->data->planned = 0;
    if (code == JOBQ_ERROR_RETRYABLE && error.message[0] != '\0') {
        run->kept->error_size =
            jobq_utf8_mend(run->kept->error, JOBQ_ERROR_MAX, jobq_str_from(error.message));
    }
    if (wanted) jobq_loop_committed(w->loop, jobq_pg__mono_us(), &run->work, code);
    jobq_pg__told(w, jobq_pg__mono_us());
    jobq_pg__os_unlock(&w->group->lock);
}

static bool jobq_pg__run_begin(jobq_pg__run *run, jobq_pg_error *error)
{
    run->delivering.conn = jobq_pg__run_conn(run, error);
    return run->conn != NULL && jobq_pg__command(run->conn, JOBQ_PG__BEGIN, error) == JOBQ_OK;
}

/* Runs a handler in the transaction that also acknowledges. True: the loop knows the result. */
static bool jobq_pg__deliver_tx(jobq_pg_worker *w, jobq_pg__run *run, jobq_delivery *d,
                                const jobq_pg_receiver *r, jobq_verdict *verdict)
{
    jobq_pg_error error;
    bool open = jobq_pg__run_begin(run, &error);

    if (!open) jobq_pg__retry_all(d, verdict, error.message);
    else open = jobq_pg__deliver_in(run->conn, d, r->each, r->all, verdict);
    if (open) jobq_pg__deliver_own(w, run, d, verdict);
    if (run->conn != NULL) jobq_pg__run_end(w, run);
    return open;
}

/* ---- >>run: running the handler of a job or of messages -------------------------------------- */

/* Prepares what the handler gets. False: no handler has the job's kind. The lock is held. */
static bool jobq_pg__run_fill(jobq_pg_worker *w, jobq_pg__run *run)
{
    jobq_handled handled;

    run->began_mono_us = jobq_pg__mono_us();
    run->stop = JOBQ_STOP_NONE;
    if (JOBQ_PG__IS_DELIVERY(&run->work)) {
        run->kept = w->deliveries[run->work.slot];
        run->kept->users++;
        jobq_pg__delivery_fill(w, run);
        jobq_pg__told(w, run->began_mono_us);
        return true;
    }
    run->handler = jobq_pg__handler_of(w, run->work.job.kind);
    if (run->handler == NULL) {
        memset(&handled, 0, sizeof handled);
        handled.missing = true;
        jobq_loop_handled(w->loop, run->began_mono_us, &run->work, &handled, NULL);
        jobq_pg__told(w, run->began_mono_us);
        return false;
    }
    run->answer = w->held[run->work.slot].answer;
    w->held[run->work.slot].answer = NULL;
    w->held[run->work.slot].handler = run->handler;
    jobq_pg__call_fill(&run->data->call, w, run);
    jobq_pg__told(w, run->began_mono_us);
    return true;
}

static void jobq_pg__report_start(jobq_pg_report *report, const jobq_pg__run *run)
{
    memset(report, 0, sizeof *report);
    report->pg = run->worker->pg;
    if (JOBQ_PG__IS_DELIVERY(&run->work)) {
        report->delivery = &run->data->delivery;
        report->queue = report->delivery->queue;
    } else {
        report->call = &run->data->call;
        report->queue = jobq_str_from(run->handler->queue);
    }
}

#define JOBQ_PG__OPEN_AGAIN JOBQ_SECONDS(60) /* until a payload that could not be opened is again */

/* An operating error: nobody runs the job, or gets the messages, until open works. */
static void jobq_pg__open_failed(const jobq_pg_worker *w, const jobq_pg__run *run,
                                 const jobq_pg_error *error)
{
    jobq_pg_event e = jobq_pg__run_event(run, JOBQ_LEVEL_ERROR, "open_failed");

    jobq_pg__log(w->pg, e, "%s", error->message);
}

/* Opens the payload of a job. False: it was not opened, and is put off; no attempt is used up. */
static bool jobq_pg__open_job(const jobq_pg_worker *w, jobq_pg__run *run, jobq_call *call)
{
    jobq_pg_error error;

    jobq_pg__seal_of(run->seal, call->headers, call->payload, call->payload_bytes);
    if (jobq_pg__unsealed(w->pg, run->handler->queue, run->handler->kind, call->headers,
                      &call->payload, &call->payload_bytes, &run->data->lent, &error) == JOBQ_OK)
        return true;
    jobq_pg__open_failed(w, run, &error);
    jobq_call_error(call, jobq_str_from(error.message));
    jobq_call_delay(call, JOBQ_PG__OPEN_AGAIN);
    return false;
}

/* Opens the payloads of a delivery, all or none. If one cannot be opened, the delivery is given
 * back after a second. It must not be retried: its messages would become dead letters. */
static bool jobq_pg__open_messages(const jobq_pg_worker *w, jobq_pg__run *run, jobq_delivery *d,
                                   jobq_verdict *verdict)
{
    size_t size = (size_t)d->count * sizeof(jobq_message);
    jobq_message *copy;
    jobq_pg_error error;
    jobq_error code = JOBQ_OK;
    int32_t i;

    for (i = 0; i < d->count; i++) {
        const jobq_message *m = &d->messages[i];
        jobq_pg__seal_of(run->seal, m->headers, m->payload, m->payload_bytes);
        if (run->seal[0] != '\0') break;
    }
    if (i == d->count) return true;
    copy = (jobq_message *)malloc(size);
    if (!jobq_pg__lend_to(&run->data->lent, NULL, copy)) code = jobq_pg__no_memory(&error);
    else memcpy(copy, d->messages, size);
    for (i = 0; i < d->count && code == JOBQ_OK; i++)
        code = jobq_pg__unsealed(w->pg, w->receivers[w->receiver_of[run->work.queue]].queue, NULL,
                             copy[i].headers, &copy[i].payload, &copy[i].payload_bytes,
                             &run->data->lent, &error);
    if (code == JOBQ_OK) {
        d->messages = copy;
        return true;
    }
    jobq_pg__open_failed(w, run, &error);
    jobq_delivery_error(d, jobq_str_from(error.message));
    memset(d->results, JOBQ_RESULT_LEFT, (size_t)d->count);
    verdict->result = JOBQ_RESULT_LEFT;
    for (i = 0; i < 50 && jobq_delivery_stopping(d, NULL) == JOBQ_STOP_NONE; i++)
        jobq_pg__os_nap(JOBQ_MILLISECONDS(20));
    return false;
}

/* True: the loop knows the result. */
static bool jobq_pg__run_call(jobq_pg_worker *w, jobq_pg__run *run, jobq_pg_report *report,
                              jobq_verdict *verdict)
{
    jobq_delivery *d = &run->data->delivery;
    jobq_call *call = &run->data->call;
    const jobq_pg_receiver *r;

    if (JOBQ_PG__IS_DELIVERY(&run->work)) {
        r = &w->receivers[w->receiver_of[run->work.queue]];
        if (!jobq_pg__open_messages(w, run, d, verdict)) return false;
        if (r->transactional) return jobq_pg__deliver_tx(w, run, d, r, verdict);
        jobq_delivery_run(d, r->each, r->all, verdict);
        return false;
    }
    JOBQ_PG_POINT("handle", -1, NULL);
    report->outcome = jobq_pg__open_job(w, run, call)
                          ? jobq_call_run(call, jobq_pg__stage_of(run->handler, call->job.stage))
                          : JOBQ_OUTCOME_SNOOZE;
    JOBQ_PG_POINT("handled", -1, NULL);
    return false;
}

/* Calls the hooks after a run; kept: the delivery, NULL: it was a job. The lock is not held. */
static void jobq_pg__tell(const jobq_pg_worker *w, jobq_pg_report *report,
                          const jobq_pg__run_data *data, const jobq_pg__delivery *kept)
{
    bool messages = report->delivery != NULL;
    int32_t i;

    if (messages && report->result != JOBQ_RESULT_SUCCESS)
        report->error = jobq_str_from(data->error);
    if (w->hooks.after != NULL) w->hooks.after(w->hooks.user, report);
    if (!jobq_pg__tells_failed(w)) return;
    if (report->state == JOBQ_STATE_FAILED) jobq_pg__tell_failed(w, report);
    for (i = 0; messages && i < data->planned; i++) {
        if (!jobq_pg__is_dead(data->ack.results[i])) continue;
        report->message = i < report->delivery->count ? &report->delivery->messages[i] /* opened */
                                                       : &kept->portion.messages[i];
        report->error = jobq_str_from(kept->reasons[i]);
        jobq_pg__tell_failed(w, report);
    }
}

/* The handler has ended. told: the loop knows its result. The lock is held after, not before. */
static void jobq_pg__run_ended(jobq_pg_worker *w, jobq_pg__run *run, jobq_pg_report *report,
                               const jobq_verdict *verdict, bool told)
{
    jobq_pg__run_data *data = run->data;

    report->result = verdict->result;
    if (run->conn != NULL) jobq_pg__run_end(w, run);
    jobq_pg__os_lock(&w->group->lock);
    w->handler_us += report->duration_us;
    if (report->call != NULL && !run->abandoned) jobq_pg__returned(w, run, &data->call, report);
    if (report->call == NULL && !told)
        jobq_pg__delivered(w, run, &data->delivery, verdict, false);
    run->busy = false;
    if (!run->abandoned && (w->hooks.after != NULL || jobq_pg__has_failed(w, report))) {
        jobq_pg__os_unlock(&w->group->lock);
        jobq_pg__tell(w, report, data, run->kept);
        jobq_pg__os_lock(&w->group->lock);
    }
    free(run->next);
    free(data->log);
    jobq_pg__lent_drop(&data->lent);
    data->log = NULL;
    run->next = NULL;
    run->next_size = 0;
    jobq_pg__answer_drop(run->answer);
    jobq_pg__delivery_drop(run->kept);
    run->answer = NULL;
    run->kept = NULL;
}

/* The lock is held before and after. */
static void jobq_pg__run_work(jobq_pg_worker *w, jobq_pg__run *run)
{
    jobq_pg_report report;
    jobq_verdict verdict;
    int64_t began;
    bool told;

    if (!jobq_pg__run_fill(w, run)) return;
    jobq_pg__os_unlock(&w->group->lock);
    memset(&verdict, 0, sizeof verdict);
    jobq_pg__report_start(&report, run);
    if (w->hooks.before != NULL) w->hooks.before(w->hooks.user, &report);
    began = jobq_pg__mono_us();
    told = jobq_pg__run_call(w, run, &report, &verdict);
    report.duration_us = jobq_pg__mono_us() - began;
    jobq_pg__run_ended(w, run, &report, &verdict, told);
}

/* ---- >>hooks: for abandoned handlers; another thread calls them ------------------------------ */

struct jobq_pg__hook_call {
    jobq_pg_report report;
    bool failed;             /* only the hook failed: the job failed without a run */
    jobq_pg__run run;        /* as much of it as the report needs */
    jobq_pg__run_data data;
    jobq_pg__hook_call *next;
};

/* Lists a call of the hooks for a run that is abandoned; the caller completes the report. NULL: no
 * run, no hook or no memory. The lock is held. */
static jobq_pg__hook_call *jobq_pg__hook_call_new(jobq_pg_worker *w, const jobq_pg__run *run)
{
    jobq_pg__hook_call *n;

    if (run == NULL || (w->hooks.after == NULL && !jobq_pg__tells_failed(w))) return NULL;
    n = (jobq_pg__hook_call *)calloc(1, sizeof *n);
    if (n == NULL) return NULL;
    /* Not the results: the handler may still write them. */
    memcpy(&n->run.work, &run->work, offsetof(jobq_work, results));
    n->run.worker = w;
    n->run.handler = run->handler;
    n->run.answer = run->answer;
    n->run.kept = run->kept;
    n->run.data = &n->data;
    if (JOBQ_PG__IS_DELIVERY(&run->work)) {
        run->kept->users++;
        jobq_pg__delivery_fill(w, &n->run);
        n->data.delivery.results = NULL;
    } else {
        run->answer->users++;
        jobq_pg__call_fill(&n->data.call, w, &n->run);
    }
    jobq_pg__report_start(&n->report, &n->run);
    n->report.duration_us = jobq_pg__mono_us() - run->began_mono_us;
    n->next = w->hook_calls;
    w->hook_calls = n;
    jobq_pg__os_wake_one(&w->group->work);
    return n;
}

/* Lists a call of the hook failed for a job that failed without a run of its handler, or after it.
 * answer: the result that has the names; NULL: they are the worker's. The error is copied. The lock
 * is held. */
static void jobq_pg__hook_failed(jobq_pg_worker *w, const jobq_pg__rescue_row *of, void *user,
                                 jobq_pg__answer *answer)
{
    jobq_pg__hook_call *n = jobq_pg__tells_failed(w)
                                ? (jobq_pg__hook_call *)calloc(1, sizeof *n) : NULL;

    if (n == NULL) return;
    n->failed = true;
    n->data.call.job = of->job;
    n->data.call.kind = of->kind;
    n->data.call.user = user;
    n->report.pg = w->pg;
    n->report.call = &n->data.call;
    n->report.queue = of->queue;
    n->report.state = n->data.call.job.state = JOBQ_STATE_FAILED;
    n->report.error.ptr = n->data.error;
    n->report.error.len = jobq_utf8_mend(n->data.error, JOBQ_ERROR_MAX, of->error);
    n->run.answer = answer;
    if (answer != NULL) answer->users++;
    n->next = w->hook_calls;
    w->hook_calls = n;
    jobq_pg__os_wake_one(&w->group->work);
}

/* Lists the jobs that a rescue failed, and takes its result. */
static void jobq_pg__rescue_failed(jobq_pg_worker *w, jobq_pg__pending *p)
{
    jobq_pg__answer *answer = jobq_pg__tells_failed(w)
                                  ? (jobq_pg__answer *)calloc(1, sizeof *answer) : NULL;
    int i;

    if (answer == NULL) return;
    answer->result = p->result;
    answer->users = 1;
    p->result = NULL;
    for (i = 0; i < PQntuples(answer->result); i++) {
        jobq_pg__rescue_row row;
        size_t k = 0;
        memset(&row, 0, sizeof row);
        jobq_pg__row(answer->result, i, 0, jobq_pg__rescue_out, &row);
        while (k < w->handler_count &&
               !(jobq_str_equal(row.queue, jobq_str_from(w->handlers[k].queue)) &&
                 jobq_str_equal(row.kind, jobq_str_from(w->handlers[k].kind)))) k++;
        if (row.job.id == 0) continue;
        jobq_pg__hook_failed(w, &row, k < w->handler_count ? w->handlers[k].user : NULL, answer);
    }
    jobq_pg__answer_drop(answer);
}

/* Calls the hooks for an abandoned run, if one is listed. The lock is held before and after. */
static bool jobq_pg__hook_call_run(jobq_pg_worker *w)
{
    jobq_pg__hook_call *n = w->hook_calls;

    if (n == NULL) return false;
    w->hook_calls = n->next;
    jobq_pg__os_unlock(&w->group->lock);
    if (n->failed) jobq_pg__tell_failed(w, &n->report);
    else jobq_pg__tell(w, &n->report, &n->data, n->run.kept);
    jobq_pg__os_lock(&w->group->lock);
    jobq_pg__answer_drop(n->run.answer);
    jobq_pg__delivery_drop(n->run.kept);
    free(n);
    return true;
}

/* ---- >>threads: the life of a thread --------------------------------------------------------- */

/* Calls the hooks for an abandoned run, else runs a delivery, else a job. False: there is none. The
 * lock is held before and after. */
static bool jobq_pg__run_one(jobq_pg_worker *w, jobq_pg__run *run)
{
    if (jobq_pg__hook_call_run(w)) return true;
    run->busy = jobq_loop_take(w->loop, jobq_pg__mono_us(), &run->work);
    if (!run->busy) return false;
    jobq_pg__run_work(w, run);
    run->busy = false;
    return true;
}

/* Whether its server does not answer: then its handlers may wait for it, too. That shows before the
 * loop drops the connection. The lock is held. */
static bool jobq_pg__silent(const jobq_pg_worker *w, int64_t now)
{
    jobq_loop_status s = jobq_loop_status_of(w->loop);

    return !s.connected || (s.asked_mono_us != JOBQ_NEVER &&
                            s.asked_mono_us < now - w->config.answer_us / 4);
}

/* The threads that handlers of a worker hold. stuck: more, whose handlers were given up within the
 * last hour; old: before that. */
typedef struct jobq_pg__threads_held {
    int32_t held, stuck, old;
} jobq_pg__threads_held;

static jobq_pg__threads_held jobq_pg__hold_of(const jobq_pg_worker *w)
{
    int64_t since = jobq_pg__mono_us() - JOBQ_HOURS(1);
    jobq_pg__threads_held hold = {0, 0, 0};
    const jobq_pg__run *run;

    for (run = w->group->runs; run != NULL; run = run->link) {
        if (run->worker != w || !run->busy) continue;
        if (!run->abandoned) hold.held++;
        else if (run->abandoned_mono_us < since) hold.old++;
        else hold.stuck++;
    }
    return hold;
}

/* Many within an hour are an outage of what the handlers call. Single ones, days apart, only cost
 * a thread each. */
static bool jobq_pg__too_many(const jobq_pg_worker *w, const jobq_pg__threads_held *hold)
{
    return hold->stuck > (w->config.threads + 1) / 2 || hold->old >= JOBQ_LOOP_THREADS;
}

/* Whether a free thread may take work of this worker. Those that hold less than their share come
 * first (within), then those that hold more; none holds more than loop.threads, because others take
 * the place of threads that wait for a server. */
static bool jobq_pg__may_take(const jobq_pg_worker *w, bool within)
{
    int32_t threads = w->config.threads, share = threads / (int32_t)w->group->count;
    jobq_pg__threads_held hold;

    if (w->ended) return false;
    if (w->group->count == 1 && w->group->stuck == 0) return within;
    hold = jobq_pg__hold_of(w);
    if (jobq_pg__too_many(w, &hold)) return false;
    if (share == 0) share = 1;
    return within ? hold.held < share : hold.held >= share && hold.held < threads;
}

/* Asks the workers in turn for work. False: none has any. The lock is held before and after. */
static bool jobq_pg__group_runs(jobq_pg__group *group, jobq_pg__run *run)
{
    bool ran = false;
    size_t i;

    for (i = 0; i < 2 * group->count && !ran; i++) {
        jobq_pg_worker *w = group->workers[group->turn++ % group->count];
        if (!jobq_pg__may_take(w, i < group->count)) continue;
        run->worker = w;
        ran = jobq_pg__run_one(w, run);
        if (!ran) jobq_pg__told(w, jobq_pg__mono_us());
        if (w->ended) jobq_pg__os_wake_all(&group->gone);
    }
    run->worker = NULL;
    return ran;
}

static bool jobq_pg__works(const jobq_pg_worker *w)
{
    return jobq_loop_status_of(w->loop).phase == JOBQ_PHASE_WORKING;
}

/* Whether any worker still starts jobs. The lock is held. */
static bool jobq_pg__group_works(const jobq_pg__group *group)
{
    size_t i;

    for (i = 0; i < group->count; i++) {
        if (jobq_pg__works(group->workers[i])) return true;
    }
    return false;
}

/* Whether a thread still works for a worker that has ended. When all have ended: whether any thread
 * is left. The lock is held. */
static bool jobq_pg__group_busy(const jobq_pg_worker *w)
{
    const jobq_pg__run *run = w->group->runs;

    if (w->group->open == 0) return w->group->threads > 0;
    while (run != NULL && (run->worker != w || run->abandoned)) run = run->link;
    return run != NULL;
}

/* The threads that are missing, or too many, if those do not count whose handlers may wait for a
 * server that does not answer. Others take their place, and end when it is back. The lock is
 * held. */
static int32_t jobq_pg__missing(const jobq_pg__group *group)
{
    int32_t missing = group->workers[0]->config.threads - group->threads;
    int64_t now = jobq_pg__mono_us();
    size_t i;

    if (group->count == 1) return missing;
    for (i = 0; i < group->count; i++) {
        const jobq_pg_worker *w = group->workers[i];
        if (jobq_pg__silent(w, now)) missing += jobq_pg__hold_of(w).held;
    }
    return missing;
}

/* Waits for work and does it. The lock is held before and after. */
static void jobq_pg__thread_work(void *arg)
{
    jobq_pg__run *run = (jobq_pg__run *)arg;
    jobq_pg__group *group = run->data->group;

    while (group->open > 0 && !run->abandoned) {
        if (jobq_pg__group_runs(group, run)) continue;
        if (jobq_pg__missing(group) < 0) return;
        group->idle++;
        jobq_pg__os_wait(&group->work, &group->lock, JOBQ_NEVER);
        group->idle--;
    }
}

/* Starts one more thread for handlers. The lock is held. */
static bool jobq_pg__thread_start(jobq_pg__group *group)
{
    jobq_pg__run_data *data = (jobq_pg__run_data *)calloc(1, sizeof *data);
    bool good;

    if (data != NULL) data->group = group;
    good = data != NULL && jobq_pg__os_detached(jobq_pg__thread, data);
    if (good) group->threads++;
    else free(data);
    if (good) group->fewer = 0;
    return good;
}

/* Stops the worker; jobq_pg_worker_wait will report it. The lock is held. */
static void jobq_pg__give_up(jobq_pg_worker *w, const char *why)
{
    int64_t now = jobq_pg__mono_us();

    if (!jobq_pg__works(w)) return;
    w->gave_up = true;
    jobq_pg__trouble(w, why);
    jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_ERROR, "worker_gave_up", NULL), "%s",
                 why);
    jobq_loop_stop(w->loop, now, 0);
    jobq_pg__told(w, now);
}

/* Replaces a thread that no longer counts. All give up if no thread is left. That it goes on with
 * fewer is logged once. The lock is held. */
static void jobq_pg__thread_replace(jobq_pg_worker *w)
{
    jobq_pg__group *group = w->group;
    size_t i;

    if (group->open == 0 || jobq_pg__thread_start(group)) return;
    if (group->threads > 0 && group->threads != group->fewer)
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "thread_missing", NULL),
                     "the worker goes on with %d threads for handlers: " JOBQ_PG__NO_THREAD,
                     (int)group->threads);
    group->fewer = group->threads;
    if (group->threads > 0) return;
    for (i = 0; i < group->count; i++)
        jobq_pg__give_up(group->workers[i], "the worker stops: " JOBQ_PG__NO_THREAD);
}

/* A thread ends. w: the worker whose handler ended it, or NULL. Releases the lock. */
static void jobq_pg__thread_end(jobq_pg__group *group, jobq_pg__run *run, jobq_pg_worker *w)
{
    jobq_pg__run **link;

    for (link = &group->runs; *link != run; link = &(*link)->link) {}
    *link = run->link;
    if (run->abandoned) group->stuck--;
    else group->threads--;
    if (w != NULL && !run->abandoned) jobq_pg__thread_replace(w);
    jobq_pg__os_wake_all(&group->gone);
    jobq_pg__os_unlock(&group->lock);
    free(run->data);
}

/* A handler called pthread_exit: its attempt has failed, and its thread has to be replaced. */
static void jobq_pg__thread_quit(void *arg)
{
    static const char text[] = "the handler ended its thread";
    jobq_pg__run *run = (jobq_pg__run *)arg;
    jobq_pg_worker *w = run->worker;
    jobq_pg_event event = jobq_pg__run_event(run, JOBQ_LEVEL_ERROR, "thread_ended");
    jobq_pg_report report;
    jobq_verdict verdict;

    if (run->busy) {
        memset(&verdict, 0, sizeof verdict);
        jobq_pg__report_start(&report, run);
        report.duration_us = jobq_pg__mono_us() - run->began_mono_us;
        if (JOBQ_PG__IS_DELIVERY(&run->work))
            jobq_pg__retry_all(&run->data->delivery, &verdict, text);
        else jobq_call_error(&run->data->call, jobq_str_from(text));
        jobq_pg__run_ended(w, run, &report, &verdict, false);
    } else jobq_pg__os_lock(&w->group->lock);
    jobq_pg__log(w->pg, event, "%s: return from handlers", text);
    jobq_pg__thread_end(w->group, run, w);
}

static void *jobq_pg__thread(void *arg)
{
    jobq_pg__run_data *data = (jobq_pg__run_data *)arg;
    jobq_pg__group *group = data->group;
    jobq_pg__run run;

    memset(&run, 0, sizeof run);
    run.data = data;
    jobq_pg__os_lock(&group->lock);
    run.link = group->runs;
    group->runs = &run;
    jobq_pg__os_guarded(jobq_pg__thread_work, jobq_pg__thread_quit, &run);
    jobq_pg__thread_end(group, &run, NULL);
    return NULL;
}

/* Wakes threads for jobs, and for messages that no thread took because of a suspect job or of a
 * lease that was over. The lock is held. */
static void jobq_pg__wake_threads(jobq_pg_worker *w)
{
    int32_t want = jobq_loop_status_of(w->loop).ready;
    int32_t n = w->group->idle < want ? w->group->idle : want;

    while (n-- > 0) jobq_pg__os_wake_one(&w->group->work);
}

/* Work waits, and no thread is idle: whether one is missing is seen when a server has been silent
 * for a while. Returns when to look again; JOBQ_NEVER: no need. The lock is held. */
static int64_t jobq_pg__reinforce(jobq_pg_worker *w)
{
    jobq_pg__group *group = w->group;

    if (group->count == 1 || group->idle > 0 || jobq_loop_status_of(w->loop).ready == 0)
        return JOBQ_NEVER;
    if (jobq_pg__missing(group) > 0) jobq_pg__thread_replace(w); /* or at the next look */
    return jobq_pg__mono_us() + 250000;
}

/* ---- >>calls: what a handler may call -------------------------------------------------------- */

/* The payload of a sealed job's next stage is sealed again, under the same name, because the
 * headers stay. A result is not. */
static bool jobq_pg__keep(jobq_call *call, jobq_str next, bool bytes)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;
    jobq_pg_seal seal;
    jobq_pg_error error;

    if (!run->busy || next.len > run->worker->pg->payload_max) return false;
    memset(&seal, 0, sizeof seal);
    if (run->seal[0] != '\0' && call->job.stage + 1 < call->job.stages) {
        seal.name = run->seal;
        seal.queue = run->handler->queue;
        seal.kind = run->handler->kind;
        if (jobq_pg__seal_bytes(run->worker->pg, &seal, next, bytes, &error) != JOBQ_OK) {
            jobq_pg__open_failed(run->worker, run, &error);
            jobq_call_error(call, jobq_str_from(error.message));
            return false;
        }
        bytes = true;
    } else {
        seal.out = (char *)malloc(next.len + 1);
        if (seal.out == NULL) return false;
        if (next.len > 0) memcpy(seal.out, next.ptr, next.len);
        seal.size = next.len;
    }
    free(run->next);
    run->next = seal.out;
    run->next_size = seal.size;
    run->next_bytes = bytes;
    return true;
}

static int jobq_pg__stopping(const jobq_call *call, int64_t *remaining_us)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;

    *remaining_us = 0;
    if (!run->busy) return JOBQ_STOP_TIMEOUT;
    if (run->stop != JOBQ_STOP_LOST) run->stop = jobq_pg__run_asks(run, remaining_us);
    return (int)run->stop;
}

/* Keeps an answer until the handler returns, or clears it. */
static jobq_error jobq_pg__lend(jobq_pg__run_data *data, PGresult *res, bool keep)
{
    if (!keep) PQclear(res);
    return !keep || jobq_pg__lend_to(&data->lent, res, NULL) ? JOBQ_OK : JOBQ_ERROR_MEMORY;
}

/* Runs a statement of a handler about its job. The handler's own connection may be in a
 * transaction: then another one of the pool commits it. The error's text goes to the log, because
 * the handler gets only its class. */
static jobq_error jobq_pg__call_ask(const jobq_pg__run *run, jobq_pg__statement st,
                                    const void *from, void *to)
{
    jobq_pg *pg = run->worker->pg;
    jobq_pg_error error;
    jobq_pg_event e;
    PGconn *conn = run->conn;
    PGresult *res;

    if (conn != NULL && PQtransactionStatus(conn) != PQTRANS_IDLE) conn = NULL;
    res = jobq_pg__call_row(pg, conn, st, from, to, &error);
    if (res != NULL) return jobq_pg__lend(run->data, res, to != NULL);
    e = jobq_pg__run_event(run, JOBQ_LEVEL_WARNING, st == JOBQ_PG__HOLD_OF_CLAIM ? "hold_failed"
                                                 : st == JOBQ_PG__PROGRESS_OF_CLAIM
                                                     ? "progress_failed"
                                                     : "step_failed");
    e.sqlstate = error.sqlstate[0] == '\0' ? NULL : error.sqlstate;
    jobq_pg__log(pg, e, "job %lld: %s: %s", (long long)run->work.job.id, jobq_pg__specs[st].name,
                 error.message);
    return error.code;
}

static jobq_error jobq_pg__call_hold(jobq_call *call, jobq_hold what, int64_t delay_us,
                                     const char *why)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;
    jobq_pg__holding from;

    if (!run->busy) return JOBQ_ERROR_LOST;
    memset(&from, 0, sizeof from);
    from.job = call->job;
    from.queue = what == JOBQ_HOLD_QUEUE;
    from.delay_us = delay_us < INT64_MAX / 4 ? delay_us : INT64_MAX / 4;
    from.why = why[0] == '\0' ? NULL : why;
    return jobq_pg__call_ask(run, JOBQ_PG__HOLD_OF_CLAIM, &from, NULL);
}

/* Keeps the progress for the next heartbeat. The same again is no change. False: the job is no
 * longer this worker's. The lock is held. */
static bool jobq_pg__progress_keep(jobq_pg__run *run, int permille, const char *note)
{
    jobq_pg__progress *p = &run->data->progress;
    int64_t remaining_us;
    jobq_stop stop;

    if (!run->busy || run->abandoned) return false;
    stop = jobq_loop_stopping(run->worker->loop, jobq_pg__mono_us(), &run->work, &remaining_us);
    if (stop == JOBQ_STOP_LOST || stop == JOBQ_STOP_TIMEOUT) return false;
    if (p->changes > 0 && p->permille == permille && strcmp(p->note, note) == 0) return true;
    p->permille = permille;
    memcpy(p->note, note, strlen(note) + 1);
    p->changes++;
    return true;
}

/* What is published at once goes with the next heartbeat, too: one that is under way may carry an
 * older progress, and be executed later. */
static jobq_error jobq_pg__call_progress(jobq_call *call, int permille, const char *note, bool now)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;
    jobq_pg__progress_row from = {call->job.worker, call->job.claim, call->job.id, permille,
                                  note[0] == '\0' ? NULL : note};
    bool kept;

    jobq_pg__os_lock(&run->worker->group->lock);
    kept = jobq_pg__progress_keep(run, permille, note);
    jobq_pg__os_unlock(&run->worker->group->lock);
    if (!kept) return JOBQ_ERROR_LOST;
    return now ? jobq_pg__call_ask(run, JOBQ_PG__PROGRESS_OF_CLAIM, &from, NULL) : JOBQ_OK;
}

/* The time is this machine's, not the database's. */
static void jobq_pg__call_log(jobq_call *call, jobq_level level, jobq_str text)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;
    jobq_pg__run_data *data = run->data;
    int64_t now = jobq_pg__os_wall_us();

    jobq_pg__os_lock(&run->worker->group->lock);
    if (run->busy && !run->abandoned) {
        if (data->log == NULL) data->log = (jobq_log *)calloc(1, sizeof *data->log);
        if (data->log != NULL) jobq_log_add(data->log, now, level, text);
    }
    jobq_pg__os_unlock(&run->worker->group->lock);
}

static jobq_error jobq_pg__call_step(jobq_call *call, const char *name, const jobq_str *done,
                                     jobq_str *value)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;
    jobq_pg__stepping step;
    jobq_error code;

    if (!run->busy) return JOBQ_ERROR_LOST;
    memset(&step, 0, sizeof step);
    step.job = call->job;
    step.name = name;
    if (done != NULL) {
        step.value = *done;
        return jobq_pg__call_ask(run, JOBQ_PG__STEP_DONE_HERE, &step, NULL);
    }
    code = jobq_pg__call_ask(run, JOBQ_PG__STEP_OF_CLAIM, &step, &step);
    if (code == JOBQ_OK && !step.done) return JOBQ_ERROR_NOT_FOUND;
    *value = step.value;
    return code;
}

static jobq_error jobq_pg__call_signal(jobq_call *call, const char *name, int64_t timeout_us,
                                       jobq_str *payload)
{
    jobq_pg__run *run = (jobq_pg__run *)call->context;
    jobq_pg__stepping step;
    jobq_error code;

    if (!run->busy) return JOBQ_ERROR_LOST;
    memset(&step, 0, sizeof step);
    step.job = call->job;
    step.name = name;
    step.delay_us = timeout_us;
    code = jobq_pg__call_ask(run, JOBQ_PG__SIGNAL_OF_CLAIM, &step, &step);
    if (code != JOBQ_OK) return code;
    *payload = step.value;
    if (step.done) return JOBQ_OK;
    if (step.delay_us <= 0) return JOBQ_ERROR_TIMEOUT;
    jobq_call_delay(call, step.delay_us);
    return JOBQ_ERROR_NOT_FOUND;
}

JOBQ_API PGconn *jobq_pg_call_conn(jobq_call *call, jobq_pg_error *error)
{
    JOBQ_ASSERT(call != NULL);
    if (call->store != &jobq_pg__store) {
        if (call->conn == NULL) {
            jobq_pg__fail(error, JOBQ_ERROR_CONNECTION, "the test gave this call no connection: "
                                                        "see jobq_test_conn and jobq_call.conn");
        }
        return (PGconn *)call->conn;
    }
    return jobq_pg__run_conn((jobq_pg__run *)call->context, error);
}

JOBQ_API jobq_pg *jobq_pg_call_handle(const jobq_call *call)
{
    JOBQ_ASSERT(call != NULL);
    if (call->store != &jobq_pg__store) return NULL;
    return ((const jobq_pg__run *)call->context)->worker->pg;
}

JOBQ_API jobq_pg *jobq_pg_delivery_handle(const jobq_delivery *delivery)
{
    const jobq_pg__run *run;

    JOBQ_ASSERT(delivery != NULL);
    run = ((const jobq_pg__delivering *)delivery->context)->run;
    return run == NULL ? NULL : run->worker->pg;
}

/* The handler's job ends, or waits, in the handler's own transaction. log holds
 * JOBQ_LOG_FORMAT_MAX bytes. */
static void jobq_pg__end_here(const jobq_call *call, jobq_event_kind kind, jobq_pg__end_row *end,
                              char *log)
{
    const jobq_pg__run *run = (const jobq_pg__run *)call->context;
    jobq_event event;

    memset(end, 0, sizeof *end);
    memset(&event, 0, sizeof event);
    event.kind = kind;
    jobq_job_decide(&run->work.policy, &call->job, &event, &end->of.decision);
    end->of.job = call->job.id;
    end->of.worker = call->job.worker;
    end->of.claim = call->job.claim;
    end->with.payload.ptr = run->next;
    end->with.payload.len = run->next_size;
    end->with.payload_bytes = run->next_bytes;
    end->with.log.len = run->data->log == NULL ? 0 : jobq_log_format(log, run->data->log);
    end->with.log.ptr = end->with.log.len == 0 ? NULL : log;
}

static jobq_error jobq_pg__not_open(PGconn *conn, jobq_pg_error *error)
{
    PGTransactionStatusType status = PQtransactionStatus(conn);

    if (status == PQTRANS_INTRANS) return JOBQ_OK;
    if (status == PQTRANS_INERROR) return jobq_pg__aborted(error, conn);
    return jobq_pg__invalid(error, "conn",
                            "needs an open transaction: BEGIN before you complete in it");
}

JOBQ_API jobq_error jobq_pg_call_complete(jobq_call *call, PGconn *conn, jobq_pg_error *error)
{
    char log[JOBQ_LOG_FORMAT_MAX];
    jobq_pg__end_row end;

    JOBQ_ASSERT(call != NULL && conn != NULL);
    if (call->store != &jobq_pg__store) return JOBQ_OK; /* a test's call: there is no row */
    if (jobq_pg__not_open(conn, error) != JOBQ_OK) return JOBQ_ERROR_INVALID;
    jobq_pg__end_here(call, JOBQ_EVENT_SUCCESS, &end, log);
    return jobq_pg__ask(((jobq_pg__run *)call->context)->worker->pg, conn, JOBQ_PG__SETTLE_HERE,
                        &end, NULL, error);
}

JOBQ_API jobq_error jobq_pg_call_step_done(jobq_call *call, PGconn *conn, const char *name,
                                           jobq_str value, jobq_pg_error *error)
{
    jobq_pg__stepping step;

    JOBQ_ASSERT(call != NULL && conn != NULL && name != NULL);
    if (jobq_pg__key_invalid(name, "name", error)) return JOBQ_ERROR_INVALID;
    if (value.ptr != NULL && jobq_json_check(value, NULL, NULL) != JOBQ_OK)
        return jobq_pg__invalid(error, "value", "not JSON");
    if (call->store != &jobq_pg__store) return jobq_call_step_done(call, name, value);
    if (jobq_pg__not_open(conn, error) != JOBQ_OK) return JOBQ_ERROR_INVALID;
    memset(&step, 0, sizeof step);
    step.job = call->job;
    step.name = name;
    step.value = value;
    return jobq_pg__ask(((jobq_pg__run *)call->context)->worker->pg, conn,
                        JOBQ_PG__STEP_DONE_HERE, &step, NULL, error);
}

/* The statement of jobq_pg_call_wait. */
static jobq_error jobq_pg__wait_here(jobq_call *call, PGconn *conn, const jobq_pg_after *after,
                                     int count, jobq_pg_error *error)
{
    char log[JOBQ_LOG_FORMAT_MAX];
    jobq_pg__wait_row from;
    jobq_pg_job job;
    jobq_error code;

    memset(&job, 0, sizeof job);
    memset(&from, 0, sizeof from);
    job.after = after;
    job.after_count = count;
    if (count < 1) return jobq_pg__invalid_int(error, "count", count, "must be at least 1");
    if (jobq_pg__link_invalid(&job, error) != JOBQ_OK) return JOBQ_ERROR_INVALID;
    call->waits = true;
    if (call->store != &jobq_pg__store) return JOBQ_OK; /* a test's call: there is no row */
    if (jobq_pg__not_open(conn, error) != JOBQ_OK) return JOBQ_ERROR_INVALID;
    if (!jobq_pg__edges_of(&from.linked, &job, 1)) {
        free(from.linked.edges);
        return jobq_pg__fail(error, JOBQ_ERROR_MEMORY, "out of memory");
    }
    jobq_pg__end_here(call, JOBQ_EVENT_WAIT, &from.end, log);
    code = jobq_pg__ask(((jobq_pg__run *)call->context)->worker->pg, conn, JOBQ_PG__WAIT_HERE,
                        &from, NULL, error);
    free(from.linked.edges);
    return code;
}

/* COMMIT, or ROLLBACK if code is an error, and what to return from the handler. In an aborted
 * transaction COMMIT rolls back without an error: only the command tag tells. */
static jobq_outcome jobq_pg__call_end(jobq_call *call, PGconn *conn, jobq_error code,
                                      jobq_pg_error *error)
{
    PGresult *res;

    JOBQ_PG_POINT("commit", -1, conn);
    res = PQexec(conn, code == JOBQ_OK ? "COMMIT" : "ROLLBACK");
    JOBQ_PG_POINT("committed", -1, conn);
    if (code == JOBQ_OK && (res == NULL || strcmp(PQcmdStatus(res), "COMMIT") != 0)) {
        code = JOBQ_ERROR_DATABASE;
        jobq_pg__fail(error, code, "COMMIT failed: %s", PQerrorMessage(conn));
    }
    PQclear(res);
    if (code == JOBQ_OK) return JOBQ_OUTCOME_DONE;
    jobq_call_error(call, jobq_str_from(error->message));
    return JOBQ_OUTCOME_RETRY;
}

JOBQ_API jobq_outcome jobq_pg_call_commit(jobq_call *call, PGconn *conn)
{
    jobq_pg_error error;
    jobq_error code = jobq_pg_call_complete(call, conn, &error);

    return jobq_pg__call_end(call, conn, code, &error);
}

JOBQ_API jobq_outcome jobq_pg_call_wait(jobq_call *call, PGconn *conn, const jobq_pg_after *after,
                                        int count)
{
    jobq_pg_error error;
    jobq_error code;

    JOBQ_ASSERT(call != NULL && conn != NULL);
    code = jobq_pg__wait_here(call, conn, after, count, &error);
    return jobq_pg__call_end(call, conn, code, &error);
}

/* ---- >>dial: making connections, each in a thread of its own --------------------------------- */

/* A connection that is being made. It has a thread because desc.connect and name servers may block,
 * and because libpq obeys connect_timeout only in its blocking calls. */
struct jobq_pg__attempt {
    const jobq_pg *pg;
    const char *conninfo, *name;
    jobq_pg__group *group;     /* valid while asks, which its lock guards */
    bool asks;                 /* the thread still uses the handle, or runs desc.connect */
    jobq_pg__os_mutex lock;      /* guards what follows */
    jobq_pg_worker *worker;    /* NULL: given up, so its thread frees it; set under both locks */
    bool over;                 /* the thread is done with it */
    char proof[600];           /* a statement that fails if the schema does not serve; or empty */
    PGconn *conn;              /* the result; NULL: error says why */
    jobq_pg_error error;
};

static void jobq_pg__attempt_free(jobq_pg__attempt *a)
{
    PQfinish(a->conn);
    jobq_pg__os_mutex_end(&a->lock);
    free(a);
}

/* The thread no longer uses the handle. False: the attempt was given up. */
static bool jobq_pg__attempt_asked(jobq_pg__attempt *a)
{
    bool wanted;

    jobq_pg__os_lock(&a->group->lock);
    a->asks = false;
    wanted = a->worker != NULL;
    if (wanted) jobq_pg__poke(a->worker, 'w');
    else a->group->stuck--;
    jobq_pg__os_unlock(&a->group->lock);
    return wanted;
}

static void jobq_pg__attempt_prove(jobq_pg__attempt *a)
{
    if (a->conn == NULL || a->proof[0] == '\0' ||
        jobq_pg__command(a->conn, a->proof, &a->error) == JOBQ_OK) return;
    PQfinish(a->conn);
    a->conn = NULL;
}

static void *jobq_pg__attempt_run(void *arg)
{
    jobq_pg__attempt *a = (jobq_pg__attempt *)arg;
    jobq_pg_dial dial;
    bool good = jobq_pg__dial_ask(a->pg, a->conninfo, a->name, &dial, &a->error);
    bool wanted = jobq_pg__attempt_asked(a);

    if (good && wanted) a->conn = jobq_pg__dial_make(&dial, &a->error);
    else if (good) {
        PQfinish(dial.conn);
        jobq_pg__dial_clear(&dial);
    }
    jobq_pg__attempt_prove(a);
    if (a->conn != NULL) PQsetnonblocking(a->conn, 1);
    jobq_pg__os_lock(&a->lock);
    a->over = true;
    wanted = a->worker != NULL;
    if (wanted) jobq_pg__poke(a->worker, 'w');
    jobq_pg__os_unlock(&a->lock);
    if (!wanted) jobq_pg__attempt_free(a);
    return NULL;
}

/* What the start of a worker asks, for a server that did not answer then. */
static void jobq_pg__proof(char *sql, size_t size, const jobq_pg *pg)
{
    snprintf(sql, size,
             "DO $$ BEGIN IF NOT EXISTS (SELECT FROM %s.meta WHERE version >= %d AND "
             "library_min <= %d) THEN RAISE EXCEPTION 'schema %s does not serve version %d of the "
             "library: run jobq_pg_migrate, or update the program'; END IF; END $$",
             pg->schema, jobq_pg__newest(), jobq_pg__newest(), pg->schema, jobq_pg__newest());
}

/* NULL: error is filled. */
static jobq_pg__attempt *jobq_pg__attempt_new(jobq_pg_worker *w, const char *conninfo,
                                              jobq_pg_error *error)
{
    jobq_pg__attempt *a = (jobq_pg__attempt *)calloc(1, sizeof *a);

    if (a == NULL) {
        jobq_pg__no_memory(error);
        return NULL;
    }
    a->pg = w->pg;
    a->conninfo = conninfo;
    a->name = w->name;
    a->worker = w;
    a->group = w->group;
    a->asks = true;
    if (w->unproved) jobq_pg__proof(a->proof, sizeof a->proof, w->pg);
    jobq_pg__os_mutex_init(&a->lock);
    if (jobq_pg__os_detached(jobq_pg__attempt_run, a)) return a;
    jobq_pg__attempt_free(a);
    jobq_pg__fail(error, JOBQ_ERROR_MEMORY, "no connection: " JOBQ_PG__NO_THREAD);
    return NULL;
}

/* Whether an attempt is over. If so, frees it: *conn is the connection; NULL: error says why. */
static bool jobq_pg__attempt_over(jobq_pg__attempt **at, PGconn **conn, jobq_pg_error *error)
{
    jobq_pg__attempt *a = *at;
    bool over;

    if (a == NULL) return false;
    jobq_pg__os_lock(&a->lock);
    over = a->over;
    jobq_pg__os_unlock(&a->lock);
    if (!over) return false;
    *conn = a->conn;
    *error = a->error;
    a->conn = NULL;
    *at = NULL;
    jobq_pg__attempt_free(a);
    return true;
}

/* Whether an attempt still uses the handle. The lock is held. */
static bool jobq_pg__asks(const jobq_pg__attempt *a) { return a != NULL && a->asks; }

/* Gives an attempt up; one that still uses the handle counts as stuck. The lock is held. */
static void jobq_pg__attempt_leave(jobq_pg_worker *w, jobq_pg__attempt **at)
{
    jobq_pg__attempt *a = *at;
    bool asks = jobq_pg__asks(a), over;

    if (a == NULL) return;
    *at = NULL;
    jobq_pg__os_lock(&a->lock);
    over = a->over;
    a->worker = NULL;
    jobq_pg__os_unlock(&a->lock); /* from here on its thread may free it, unless it asks */
    if (asks) {
        w->group->stuck++;
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_ERROR, "connect_stuck", NULL),
                     "desc.connect has not returned: end the process");
    }
    if (over) jobq_pg__attempt_free(a);
}

/* Whether an attempt is under way. LISTEN and maintenance begin none meanwhile, to save threads. */
static bool jobq_pg__attempting(const jobq_pg_worker *w)
{
    return w->attempt != NULL || w->listener.attempt != NULL || w->maintenance.attempt != NULL;
}

/* Connects for LISTEN or maintenance. True: over; *conn is the connection, or error says why. */
static bool jobq_pg__connects(jobq_pg_worker *w, jobq_pg__attempt **at, const char *conninfo,
                              PGconn **conn, jobq_pg_error *error)
{
    bool begins = *at == NULL;

    if (begins && jobq_pg__attempting(w)) return false;
    if (begins) *at = jobq_pg__attempt_new(w, conninfo, error);
    if (*at != NULL && !jobq_pg__attempt_over(at, conn, error)) return false;
    if (*conn != NULL) PQsetNoticeReceiver(*conn, jobq_pg__on_notice, w->pg);
    return true;
}

static PGconn *jobq_pg__conn_take(PGconn **conn)
{
    PGconn *taken = *conn;

    *conn = NULL;
    return taken;
}

/* -- maintenance: VACUUM and prune may take long, so they run beside the worker's statements, on a
 * connection that is made for them and then closed -- */

/* Starts the answer to the request of a statement. The lock is held. */
static void jobq_pg__answer_start(jobq_pg_worker *w, const jobq_pg__pending *p, jobq_error code)
{
    jobq_request *of = w->group->request; /* free: no other request is being carried out */

    of->kind = p->kind;
    of->worker = p->worker;
    of->claim = p->claim;
    of->id = p->id;
    of->slot = p->slot;
    of->generation = p->generation;
    jobq_answer_start(w->group->answer, of);
    w->group->answer->error = code;
}

/* Answers a request of which only the kind is known. The lock is held. */
static void jobq_pg__answered(jobq_pg_worker *w, jobq_request_kind kind, jobq_error code)
{
    jobq_pg__pending p;

    memset(&p, 0, sizeof p);
    p.kind = kind;
    jobq_pg__answer_start(w, &p, code);
    jobq_loop_tell(w->loop, jobq_pg__mono_us(), w->group->answer);
}

/* Through a pooler a SET would reach other clients' statements, so VACUUM runs under the role's
 * time-outs, unless listen_conninfo leads past the pooler. The log says so once. */
static void jobq_pg__maintenance_failed(jobq_pg_worker *w, jobq_request_kind kind,
                                        const jobq_pg_error *error)
{
    bool bound = kind == JOBQ_REQUEST_VACUUM && error->code == JOBQ_ERROR_TIMEOUT &&
                 w->pg->behind_pooler && w->pg->listen_conninfo == NULL;

    if (w->ended || (bound && w->vacuum_told)) return;
    w->vacuum_told = w->vacuum_told || bound;
    jobq_pg__trouble(w, error->message);
    jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "maintenance_failed", error),
                 "%s: %s%s", jobq_enum_name(JOBQ_ENUM_REQUEST, kind), error->message,
                 bound ? ": the worker cannot change that through a pooler: set listen_conninfo, "
                         "raise the role's statement_timeout, or leave it to autovacuum" : "");
}

static jobq_request_kind jobq_pg__maintenance_take(jobq_pg__maintenance *m)
{
    bool vacuum = (m->wanted >> JOBQ_REQUEST_VACUUM & 1) != 0;
    jobq_request_kind kind = vacuum ? JOBQ_REQUEST_VACUUM : JOBQ_REQUEST_PRUNE;

    m->wanted &= ~(1u << kind);
    return kind;
}

/* The role's time-outs may be too short, so these statements set their own: prune for its
 * transaction; VACUUM, which cannot run in a transaction, for the session. */
#define JOBQ_PG__BOUNDS(set, most) set "statement_timeout = " most "; " set "lock_timeout = '5s'; "
#define JOBQ_PG__BOUNDS_17(conn, sql) (PQserverVersion(conn) >= 170000 ? (sql) : "")

static void jobq_pg__maintenance_send(jobq_pg_worker *w, jobq_request_kind kind)
{
    const char *sql = w->pg->texts[JOBQ_PG__PRUNE].sql, *hole = strstr(sql, "$1");
    jobq_pg__maintenance *m = &w->maintenance;
    jobq_pg_error error;
    char text[1024];

    m->kind = kind;
    m->code = JOBQ_ERROR_CONNECTION; /* if no result comes */
    if (kind == JOBQ_REQUEST_WAIT) {
        snprintf(text, sizeof text, JOBQ_PG__BOUNDS("SET ", "0") "%s",
                 JOBQ_PG__BOUNDS_17(m->conn, "SET transaction_timeout = 0"));
    } else if (kind == JOBQ_REQUEST_PRUNE) {
        snprintf(text, sizeof text, JOBQ_PG__BEGIN "; " JOBQ_PG__BOUNDS("SET LOCAL ", "'60s'")
                 "%s%.*s%ld%s; COMMIT",
                 JOBQ_PG__BOUNDS_17(m->conn, "SET LOCAL transaction_timeout = 0; "),
                 (int)(hole - sql), sql, (long)m->prune_limit, hole + 2);
    } else snprintf(text, sizeof text, "%s", w->pg->texts[JOBQ_PG__VACUUM].sql);
    if (PQsendQuery(m->conn, text) || kind == JOBQ_REQUEST_WAIT) return; /* the next fails, too */
    jobq_pg__conn_error(&error, m->conn);
    jobq_pg__maintenance_failed(w, kind, &error);
}

/* Connects if a request is wanted. A session that no pooler shares gets its time-outs first. */
static void jobq_pg__maintenance_connect(jobq_pg_worker *w)
{
    const char *past = w->pg->listen_conninfo;
    jobq_pg__maintenance *m = &w->maintenance;
    jobq_pg_error error;

    if (m->attempt == NULL && (m->wanted == 0 || w->conn == NULL || w->ended)) return;
    if (!jobq_pg__connects(w, &m->attempt, past != NULL ? past : w->pg->conninfo, &m->conn, &error))
        return;
    m->kind = JOBQ_REQUEST_WAIT;
    if (m->conn != NULL && (!w->pg->behind_pooler || past != NULL))
        jobq_pg__maintenance_send(w, JOBQ_REQUEST_WAIT);
    while (m->conn == NULL && m->wanted != 0) { /* the loop will ask again later */
        jobq_request_kind kind = jobq_pg__maintenance_take(m);
        jobq_pg__maintenance_failed(w, kind, &error);
        jobq_pg__answered(w, kind, error.code);
    }
}

/* A statement has ended: sends the next, or closes, which also ends a failed transaction. */
static void jobq_pg__maintenance_next(jobq_pg_worker *w)
{
    jobq_pg__maintenance *m = &w->maintenance;

    if (m->kind != JOBQ_REQUEST_WAIT) jobq_pg__answered(w, m->kind, m->code);
    m->kind = JOBQ_REQUEST_WAIT;
    if (m->wanted != 0 && !w->ended && PQtransactionStatus(m->conn) == PQTRANS_IDLE) {
        jobq_pg__maintenance_send(w, jobq_pg__maintenance_take(m));
    } else PQfinish(jobq_pg__conn_take(&m->conn));
}

static void jobq_pg__maintenance_got(jobq_pg_worker *w, PGresult *res)
{
    jobq_pg__maintenance *m = &w->maintenance;
    jobq_pg_error error;

    m->code = JOBQ_OK;
    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
        m->code = jobq_pg__result_error(&error, m->conn, res);
        if (m->kind != JOBQ_REQUEST_WAIT) jobq_pg__maintenance_failed(w, m->kind, &error);
    }
    PQclear(res);
}

/* ready: its socket has input. The lock is held. */
static void jobq_pg__maintenance_step(jobq_pg_worker *w, bool ready)
{
    jobq_pg__maintenance *m = &w->maintenance;

    if (m->conn == NULL) jobq_pg__maintenance_connect(w);
    if (ready && m->conn != NULL) PQconsumeInput(m->conn); /* PQgetResult tells of an error */
    while (m->conn != NULL && (PQstatus(m->conn) == CONNECTION_BAD || !PQisBusy(m->conn))) {
        PGresult *res = PQgetResult(m->conn);
        if (res != NULL) jobq_pg__maintenance_got(w, res);
        else jobq_pg__maintenance_next(w);
    }
}

/* ---- >>send: the statements of the loop ------------------------------------------------------ */

static void jobq_pg__async_push(jobq_pg__asyncs *list, jobq_pg__async *n)
{
    n->next = NULL;
    if (list->head == NULL) list->tail = &list->head;
    *list->tail = n;
    list->tail = &n->next;
}

static jobq_pg__async *jobq_pg__async_pop(jobq_pg__asyncs *list)
{
    jobq_pg__async *n = list->head;

    if (n != NULL) list->head = n->next;
    if (list->head == NULL) list->tail = &list->head;
    return n;
}

/* The host will be told of it. The lock is held. */
static void jobq_pg__async_end(jobq_pg_worker *w, jobq_pg__async *n, jobq_error code,
                               const char *why)
{
    n->reply.code = why == NULL ? code : jobq_pg__fail(&n->error, code, "%s", why);
    jobq_pg__async_push(&w->answered, n);
}

static void jobq_pg__pending_drop(jobq_pg_worker *w)
{
    jobq_pg__async *n = w->pending[w->pending_first].async;

    if (n != NULL && n->st == JOBQ_PG__AWAIT) { /* another look does no harm */
        w->async_sent--;
        n->channel = n->next_us = 0;
        jobq_pg__async_push(&w->awaiting, n);
    } else if (n != NULL) {
        w->async_sent--;
        jobq_pg__async_end(w, n, JOBQ_ERROR_CONNECTION, "the connection was lost before an answer "
                           "came: it may have been carried out; repeat it if it has a key, or get "
                           "the job first");
    }
    PQclear(w->pending[w->pending_first].result);
    w->pending_first = (w->pending_first + 1) % JOBQ_PG__PENDING_MAX;
    w->pending_count--;
}

/* The first reason counts. */
static void jobq_pg__break(jobq_pg_worker *w, const char *why)
{
    if (w->broken == NULL) w->broken = why;
}

#define JOBQ_PG__BAD "libpq refused a statement, or no memory was left for it"

static void jobq_pg__disconnect(jobq_pg_worker *w)
{
    bool bad = w->conn != NULL && PQstatus(w->conn) != CONNECTION_OK;
    jobq_pg_error error;

    if (bad || w->broken[0] != '\0') {
        if (bad) jobq_pg__conn_error(&error, w->conn);
        else jobq_pg__fail(&error, JOBQ_ERROR_CONNECTION, "%s", w->broken);
        jobq_pg__trouble(w, error.message);
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "connection_lost", &error),
                     "connection lost: %s", error.message);
    }
    if (w->conn != NULL) w->away = true; /* the log has said why, and will say "connected again" */
    while (w->pending_count > 0) jobq_pg__pending_drop(w);
    PQfinish(w->conn);
    w->conn = NULL;
    w->broken = NULL;
    jobq_loop_disconnected(w->loop, jobq_pg__mono_us());
}

static jobq_pg__pending *jobq_pg__pend(jobq_pg_worker *w)
{
    jobq_pg__pending *p;

    JOBQ_ASSERT(w->pending_count < JOBQ_PG__PENDING_MAX);
    if (w->pending_count == 0) w->pending_mono_us = jobq_pg__mono_us();
    p = &w->pending[(w->pending_first + w->pending_count++) % JOBQ_PG__PENDING_MAX];
    memset(p, 0, sizeof *p);
    p->kind = JOBQ_REQUEST_WAIT;
    return p;
}

/* Sends a statement in a transaction of its own. Through a pooler it also sets the isolation level
 * and time-outs. */
static void jobq_pg__send_params(jobq_pg_worker *w, jobq_pg__statement st,
                                 const jobq_pg__params *params)
{
    const jobq_pg__text *text = &w->pg->texts[st];
    bool good = !params->failed;

    if (w->pg->behind_pooler)
        good = good && jobq_pg__ship_whole(w->conn, w->limits, text, params, NULL);
    else good = good && jobq_pg__ship(w->conn, text, params, jobq_pg__known_of(w->conn, text));
    if (!good || !PQpipelineSync(w->conn)) jobq_pg__break(w, JOBQ_PG__BAD);
}

/* Sends a request, as jobq_pg__put_request writes it. */
static void jobq_pg__send(jobq_pg_worker *w, const jobq_request *a, const jobq_pg_content *c,
                          const jobq_pg__progresses *progress)
{
    jobq_pg__statement st = jobq_pg__statement_of(a, c);

    jobq_pg__params_reset(&w->params);
    jobq_pg__put_request(&w->params, st, a, c, progress);
    JOBQ_PG_POINT("send", (int)a->kind, w->conn);
    jobq_pg__send_params(w, st, &w->params);
    *jobq_pg__pend(w) = jobq_pg__pending_of(a, st);
    JOBQ_PG_POINT("sent", (int)a->kind, w->conn);
}

static jobq_pg__pending *jobq_pg__send_text(jobq_pg_worker *w, const char *sql)
{
    if (!jobq_pg__ship_text(w->conn, sql) || !PQpipelineSync(w->conn))
        jobq_pg__break(w, JOBQ_PG__BAD);
    return jobq_pg__pend(w);
}

/* The connection is of no further use. An error of libpq: the server may have committed. */
static bool jobq_pg__gone(const jobq_pg_error *error)
{
    return error->sqlstate[0] == '\0' || strcmp(error->sqlstate, "57P01") == 0;
}

/* Tells the loop, and the log when that changes, whether notifications arrive. why: why not; NULL:
 * they do. */
static void jobq_pg__hears(jobq_pg_worker *w, const jobq_pg_error *why)
{
    jobq_loop_hears(w->loop, jobq_pg__mono_us(), why == NULL);
    if (w->deaf == (why != NULL)) return;
    w->deaf = why != NULL;
    if (w->deaf)
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "listen_failed", why),
                     "LISTEN: %s; meanwhile the worker looks for work every second", why->message);
    else jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_INFO, "listens", NULL),
                      "LISTEN: notifications arrive again");
}

/* Whether this connection may LISTEN is asked first. */
static void jobq_pg__listen_ask(jobq_pg_worker *w)
{
    w->may_listen = false;
    if (w->config.listen) jobq_pg__send_text(w, JOBQ_PG__SHORT_QUEUE)->listens = true;
}

/* Listens on the worker's own channel, on which producers and operators notify it. */
static void jobq_pg__listen(jobq_pg_worker *w)
{
    char sql[64];

    if (!w->config.listen || w->id == 0) return;
    if (w->pg->behind_pooler) { /* on a connection of its own */
        if (!w->listener.waits) w->listener.until_us = 0;
        return;
    }
    if (w->may_listen) jobq_pg__send_text(w, jobq_pg__listen_sql(sql, w->id))->listens = true;
}

/* LISTEN, or the question before it, was answered. False: the connection is of no further use. */
static bool jobq_pg__listen_got(jobq_pg_worker *w, const PGresult *res)
{
    bool asked = PQresultStatus(res) == PGRES_TUPLES_OK;
    jobq_pg_error error;

    if (!jobq_pg__listen_read(w->conn, res, &w->may_listen, &error)) {
        if (!asked && jobq_pg__gone(&error)) return false;
        jobq_pg__hears(w, &error);
    } else if (asked) jobq_pg__listen(w);
    else jobq_pg__hears(w, NULL);
    return true;
}

/* The connection is up: prepares its session before the first request. The server gives up a
 * statement before the worker does, so the loop learns that it is the statement that took too long,
 * and not the network. */
static void jobq_pg__set_up(jobq_pg_worker *w)
{
    long long answer_ms = (long long)(w->config.answer_us / 1000 * 9 / 10) + 1;
    const char *local = w->pg->behind_pooler ? "true" : "false";
    bool newer = PQserverVersion(w->conn) >= 170000;

    snprintf(w->limits, sizeof w->limits,
             "SELECT pg_catalog.set_config('jit', 'off', %s), "
             "pg_catalog.set_config('statement_timeout', '%lld', %s), "
             "pg_catalog.set_config('lock_timeout', '%lld', %s)%s%s%s",
             local, answer_ms, local, answer_ms / 2, local,
             newer ? ", pg_catalog.set_config('transaction_timeout', '0', " : "",
             newer ? local : "", newer ? ")" : "");
    PQsetNoticeReceiver(w->conn, jobq_pg__on_notice, w->pg);
    if (!PQenterPipelineMode(w->conn)) jobq_pg__break(w, JOBQ_PG__BAD);
    if (!w->pg->behind_pooler) {
        jobq_pg__send_text(
            w, "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, "
               "READ WRITE");
        jobq_pg__send_text(w, w->limits);
        jobq_pg__listen_ask(w);
    }
    jobq_pg__answered(w, JOBQ_REQUEST_CONNECT, JOBQ_OK);
}

/* An earlier attempt that the loop has given up goes on: it may have more hosts to try. */
static void jobq_pg__do_connect(jobq_pg_worker *w)
{
    jobq_pg_error error;

    if (w->attempt == NULL) w->attempt = jobq_pg__attempt_new(w, w->pg->conninfo, &error);
    if (w->attempt != NULL) return;
    jobq_pg__undialed(w, &error);
    jobq_pg__break(w, "");
}

/* The attempt is over: conn is the connection; NULL: error says why. */
static void jobq_pg__attempted(jobq_pg_worker *w, PGconn *conn, jobq_pg_error *error)
{
    if (conn == NULL || jobq_pg__usable(conn, error) != JOBQ_OK) {
        jobq_pg__undialed(w, error);
        PQfinish(conn);
        jobq_pg__break(w, "");
        return;
    }
    w->conn = conn;
    if (w->away)
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_INFO, "connected", NULL),
                     "connected again");
    w->away = false;
    jobq_pg__set_up(w);
}

static void jobq_pg__do_register(jobq_pg_worker *w, const jobq_request *a)
{
    jobq_pg_content c;

    memset(&c, 0, sizeof c);
    w->id = a->worker;
    c.name = w->name;
    c.queues = w->queues;
    c.kind_queues = w->kind_queues;
    c.kinds = w->kinds;
    c.queue_count = (int32_t)w->queue_count;
    c.kind_count = (int32_t)w->handler_count;
    jobq_pg__send(w, a, &c, NULL);
    jobq_pg__listen(w);
}

/* Leaves only printable ASCII, which every database encoding takes. */
static void jobq_pg__ascii(char *text)
{
    for (; *text != '\0'; text++) {
        if (*text < ' ' || *text > '~') *text = '?';
    }
}

static void jobq_pg__refusal_log(const jobq_pg_worker *w, const jobq_ending *e,
                                 const char *message)
{
    static const char said[] = "SQLSTATE ";
    const jobq_pg_handler *handler = w->held[e->slot].handler;
    jobq_pg_event event = jobq_pg__worker_event(w, JOBQ_LEVEL_ERROR, "result_refused", NULL);
    char sqlstate[6];

    if (strncmp(w->refusal, said, sizeof said - 1) == 0) {
        snprintf(sqlstate, sizeof sqlstate, "%.5s", w->refusal + sizeof said - 1);
        event.sqlstate = sqlstate;
    }
    if (handler != NULL) {
        event.queue = jobq_str_from(handler->queue);
        event.kind = jobq_str_from(handler->kind);
    }
    event.job = e->job;
    jobq_pg__log(w->pg, event, "job %lld: %s", (long long)e->job, message);
}

/* The database refused a job's texts: this error replaces them. */
static void jobq_pg__refusal(jobq_pg_worker *w, const jobq_ending *e)
{
    char text[JOBQ_ERROR_MAX + 1], message[640];
    jobq_pg__held *h = &w->held[e->slot];
    jobq_pg__rescue_row failed;

    if (h->refused == e->refused) return;
    snprintf(message, sizeof message, "the database refused the result: %.*s",
             e->refused == 1 ? (int)sizeof w->refusal : 14 /* "SQLSTATE 22P05" */, w->refusal);
    jobq_pg__ascii(message);
    jobq_pg__refusal_log(w, e, message);
    free(h->error);
    h->error_size = jobq_reason_format(text, &e->decision, jobq_str_from(message));
    h->error = jobq_pg__dup(text);
    h->refused = e->refused;
    if (e->decision.state != JOBQ_STATE_FAILED || h->failed || h->handler == NULL) return;
    h->failed = true;
    memset(&failed, 0, sizeof failed);
    failed.job.id = e->job;
    failed.job.attempt = e->decision.attempt;
    failed.job.crash = e->decision.crash;
    failed.job.stage = e->decision.stage;
    failed.queue = jobq_str_from(h->handler->queue);
    failed.kind = jobq_str_from(h->handler->kind);
    failed.error = jobq_str_from(h->error);
    jobq_pg__hook_failed(w, &failed, h->handler->user, NULL);
}

static void jobq_pg__do_flush(jobq_pg_worker *w, const jobq_request *a)
{
    jobq_pg_content c;
    int32_t i;

    memset(&c, 0, sizeof c);
    c.endings = w->endings;
    for (i = 0; i < a->ending_count; i++) {
        const jobq_ending *e = &a->endings[i];
        const jobq_pg__held *h = &w->held[e->slot];
        jobq_pg_ending *with = &w->endings[i];
        if (e->refused > 0) jobq_pg__refusal(w, e);
        with->error.ptr = h->error;
        with->error.len = h->error_size;
        with->payload.ptr = e->refused == 0 ? h->next : NULL;
        with->payload.len = h->next_size;
        with->payload_bytes = h->next_bytes;
        with->log.ptr = e->refused == 0 ? h->log : NULL;
        with->log.len = h->log_size;
    }
    jobq_pg__send(w, a, &c, NULL);
}

/* The progress of a run's job, if the worker runs it under this id; otherwise NULL. */
static jobq_pg__progress *jobq_pg__progress_of(const jobq_pg_worker *w, const jobq_pg__run *run,
                                               int64_t worker)
{
    if (run->worker != w || !run->busy || run->abandoned || run->kept != NULL) return NULL;
    return run->work.job.worker == worker ? &run->data->progress : NULL;
}

/* Sends a heartbeat with the progress that changed since the last one that was answered. */
static void jobq_pg__do_beat(jobq_pg_worker *w, const jobq_request *a)
{
    jobq_pg__progresses from = {w->progress_rows, 0};
    jobq_pg__progress_row *row;
    const jobq_pg__run *run;
    jobq_pg__progress *p;

    if (w->deaf && !w->pg->behind_pooler) jobq_pg__listen_ask(w);
    for (run = w->group->runs; run != NULL && from.count < JOBQ_LOOP_THREADS; run = run->link) {
        p = jobq_pg__progress_of(w, run, a->worker);
        if (p == NULL || p->changes == p->known) continue;
        p->sent = p->changes;
        row = &w->progress_rows[from.count++];
        row->claim = run->work.job.claim;
        row->job = run->work.job.id;
        row->permille = p->permille;
        row->note = p->note[0] == '\0' ? NULL : p->note;
    }
    jobq_pg__send(w, a, NULL, &from);
}

/* A heartbeat has written what it carried. */
static void jobq_pg__progress_known(jobq_pg_worker *w, int64_t worker)
{
    const jobq_pg__run *run;

    for (run = w->group->runs; run != NULL; run = run->link) {
        jobq_pg__progress *p = jobq_pg__progress_of(w, run, worker);
        if (p != NULL) p->known = p->sent;
    }
}

static void jobq_pg__do_set_aside(jobq_pg_worker *w, const jobq_request *a)
{
    char reason[sizeof w->refusal];
    jobq_pg_content c;

    memset(&c, 0, sizeof c);
    memcpy(reason, w->refusal, sizeof reason);
    jobq_pg__ascii(reason);
    c.error = jobq_str_from(reason);
    jobq_pg__send(w, a, &c, NULL);
}

/* Gives a run's thread up and cancels its statement. False: there is no such run. */
static bool jobq_pg__run_abandon(jobq_pg_worker *w, jobq_pg__run *run)
{
    if (run == NULL) return false;
    run->abandoned = true;
    run->abandoned_mono_us = jobq_pg__mono_us();
    w->group->stuck++;
    if (w->hosted) return true; /* its handler is in this call, so it runs no statement */
    jobq_pg__cancel_statement(w, run->cancel, "the statement of the abandoned handler");
    run->cancel = NULL;
    w->group->threads--;
    if (jobq_pg__group_works(w->group)) jobq_pg__thread_replace(w);
    return true;
}

/* Handlers that wait for the schema's own server go on, or fail, with it, so the worker waits, too.
 * What else they wait for, only the end of this process ends. */
static void jobq_pg__too_many_stuck(jobq_pg_worker *w)
{
    jobq_pg__threads_held hold = jobq_pg__hold_of(w);

    if (jobq_pg__too_many(w, &hold) && !jobq_pg__silent(w, jobq_pg__mono_us()))
        jobq_pg__give_up(w, "too many handlers are stuck: the worker stops");
}

/* The run of the work that is to be abandoned; NULL: its handler has returned. */
static jobq_pg__run *jobq_pg__run_of(const jobq_pg_worker *w, const jobq_request *a)
{
    jobq_pg__run *run = w->group->runs;

    for (; run != NULL; run = run->link) {
        const jobq_work *work = &run->work;
        if (run->worker != w || !run->busy || run->abandoned) continue;
        if (work->partition_id == a->partition_id && work->slot == a->slot &&
            work->generation == a->generation) break;
    }
    return run;
}

/* A job's handler ran out of time: its statement is cancelled and its thread replaced. */
static void jobq_pg__do_abandon(jobq_pg_worker *w, const jobq_request *a)
{
    const jobq_decision *decision = &a->endings[0].decision;
    jobq_pg__held *h = &w->held[a->slot];
    jobq_pg_event event = jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "handler_abandoned", NULL);
    jobq_pg__run *run = jobq_pg__run_of(w, a);
    jobq_pg__hook_call *hook_call = jobq_pg__hook_call_new(w, run);

    if (!a->stopping) jobq_pg__error_overran(h, decision);
    if (run != NULL) jobq_pg__log_keep(h, run->data->log);
    h->failed = decision->state == JOBQ_STATE_FAILED;
    if (hook_call != NULL) {
        hook_call->report.state = decision->state;
        jobq_pg__report_job(w, &hook_call->run, &hook_call->report);
    }
    if (run != NULL) event = jobq_pg__run_event(run, JOBQ_LEVEL_WARNING, event.code);
    if (jobq_pg__run_abandon(w, run)) {
        jobq_pg__log(w->pg, event, "job %lld: its handler ran out of time and was abandoned",
                     (long long)a->id);
    }
    jobq_pg__too_many_stuck(w);
}

/* -- sending: messages -- */

static void jobq_pg__do_ack(jobq_pg_worker *w, const jobq_request *a)
{
    jobq_pg_content c = jobq_pg__delivery_content(w->deliveries[a->slot], &a->ack);

    jobq_pg__send(w, a, &c, NULL);
}

/* A handler of messages ran out of time: its batch is retried or, at a stop, given back. */
static void jobq_pg__abandon_part(jobq_pg_worker *w, const jobq_request *a)
{
    static const char text[] = "lease expired";
    jobq_pg_event event = jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "handler_abandoned", NULL);
    jobq_pg__delivery *kept = w->deliveries[a->slot];
    jobq_pg__run *run = jobq_pg__run_of(w, a);
    jobq_pg__hook_call *hook_call = jobq_pg__hook_call_new(w, run);

    if (run != NULL) event = jobq_pg__run_event(run, JOBQ_LEVEL_WARNING, event.code);
    event.partition_id = a->partition_id;
    if (!a->committing) { /* or else its thread is just writing it to the server */
        kept->error_size = sizeof text - 1;
        memcpy(kept->error, text, sizeof text);
    }
    jobq_pg__log(w->pg, event, "partition %lld: its handler ran out of time and was abandoned",
                 (long long)a->partition_id);
    if (hook_call != NULL) {
        hook_call->report.result = a->stopping ? JOBQ_RESULT_LEFT : JOBQ_RESULT_RETRY;
        hook_call->data.ack = a->ack;
    }
    jobq_pg__run_abandon(w, run);
    if (hook_call != NULL && !a->committing) jobq_pg__run_data_plan(w, kept, &hook_call->data);
    jobq_pg__too_many_stuck(w);
}

/* Carries out one request. The lock is held. */
static void jobq_pg__perform(jobq_pg_worker *w, const jobq_request *a)
{
    switch (a->kind) {
    case JOBQ_REQUEST_CONNECT: jobq_pg__do_connect(w); break;
    case JOBQ_REQUEST_DISCONNECT:
        jobq_pg__trouble(w, "no answer in time");
        jobq_pg__copy(w->refusal, sizeof w->refusal, "no answer in time");
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_WARNING, "answer_missing", NULL),
                     "no answer in time: reconnecting");
        jobq_pg__break(w, "");
        break;
    case JOBQ_REQUEST_REGISTER: jobq_pg__do_register(w, a); break;
    case JOBQ_REQUEST_SET_ASIDE: jobq_pg__do_set_aside(w, a); break;
    case JOBQ_REQUEST_COMPLETE:
    case JOBQ_REQUEST_SETTLE: jobq_pg__do_flush(w, a); break;
    case JOBQ_REQUEST_HEARTBEAT: jobq_pg__do_beat(w, a); break;
    case JOBQ_REQUEST_ACK: jobq_pg__do_ack(w, a); break;
    case JOBQ_REQUEST_PRUNE:
    case JOBQ_REQUEST_VACUUM:
        w->maintenance.wanted |= 1u << a->kind;
        if (a->kind == JOBQ_REQUEST_PRUNE) w->maintenance.prune_limit = a->limit;
        jobq_pg__maintenance_step(w, false);
        break;
    case JOBQ_REQUEST_ABANDON:
        if (JOBQ_PG__IS_DELIVERY(a)) jobq_pg__abandon_part(w, a);
        else jobq_pg__do_abandon(w, a);
        break;
    case JOBQ_REQUEST_POLICIES:
    case JOBQ_REQUEST_CLAIM:
    case JOBQ_REQUEST_RECOVER:
    case JOBQ_REQUEST_RESCUE:
    case JOBQ_REQUEST_SLEEP:
    case JOBQ_REQUEST_UNPARK:
    case JOBQ_REQUEST_TICK:
    case JOBQ_REQUEST_DEREGISTER:
    case JOBQ_REQUEST_REMAIN:
    case JOBQ_REQUEST_LOOK:
    case JOBQ_REQUEST_READ:
    case JOBQ_REQUEST_RENEW: jobq_pg__send(w, a, NULL, NULL); break;
    case JOBQ_REQUEST_WAIT:
    case JOBQ_REQUEST_EXIT:
    case JOBQ_REQUEST_COUNT: break;
    }
}

/* ---- >>answer: what comes back --------------------------------------------------------------- */

/* The loop was told of claimed jobs: their slots point into the result, which answer now owns. */
static void jobq_pg__hold_jobs(jobq_pg_worker *w, jobq_pg__pending *p, jobq_pg__answer *answer)
{
    const jobq_claimed *c = &w->group->answer->claimed;
    int i;

    answer->result = p->result;
    answer->users = 1;
    p->result = NULL;
    for (i = 0; i < c->count; i++) {
        jobq_pg__held *h = &w->held[c->slots[i] < 0 ? 0 : c->slots[i]];
        if (c->slots[i] < 0) continue;
        jobq_pg__held_clear(h);
        h->answer = answer;
        h->row = w->rows[i];
        answer->users++;
    }
    jobq_pg__answer_drop(answer);
}

/* Keeps the messages of a partition and wakes a thread for them. False: no memory, or too many. */
static bool jobq_pg__delivery_keep(jobq_pg_worker *w, int32_t slot, const jobq_pg__portion *portion)
{
    jobq_pg__delivery *kept =
        portion->count <= JOBQ_LOOP_BATCH ? jobq_pg__delivery_new(portion) : NULL;

    if (kept == NULL) return false;
    jobq_pg__delivery_drop(w->deliveries[slot]);
    w->deliveries[slot] = kept;
    jobq_pg__os_wake_one(&w->group->work);
    return true;
}

/* The error code for the loop, which has to know whether a row may be to blame. Postgres reports
 * 53200 for a row that is too large, but also when the lock table of all sessions is full. 23514
 * without a constraint's name: an operator has detached the part of the history that is written
 * now. */
static jobq_error jobq_pg__blame(jobq_request_kind kind, const jobq_pg_error *error,
                                 const char *source_file)
{
    bool locks = source_file != NULL && strcmp(source_file, "lock.c") == 0;

    if (strcmp(error->sqlstate, "25P02") == 0) return JOBQ_ERROR_RETRYABLE; /* another one failed */
    if (strcmp(error->sqlstate, "53200") == 0 && !locks) return JOBQ_ERROR_MEMORY;
    if (strcmp(error->sqlstate, "23514") == 0 && error->constraint[0] == '\0')
        return JOBQ_ERROR_RETRYABLE;
    return jobq_pg__request_error(kind, error);
}

/* Records and logs why, and whether the connection is of no further use. */
static jobq_error jobq_pg__on_refusal(jobq_pg_worker *w, const jobq_pg__pending *p)
{
    jobq_pg_error error;
    jobq_error code;

    jobq_pg__result_error(&error, w->conn, p->result);
    snprintf(w->refusal, sizeof w->refusal, "SQLSTATE %.5s: %.480s", error.sqlstate,
             error.message);
    jobq_pg__trouble(w, error.message);
    if (p->kind != JOBQ_REQUEST_WAIT && !w->pg->behind_pooler)
        jobq_pg__known_learn(w->conn, &w->pg->texts[p->st], p->result);
    code = jobq_pg__blame(p->kind, &error, PQresultErrorField(p->result, PG_DIAG_SOURCE_FILE));
    if (w->pg->behind_pooler) jobq_pg__send_text(w, "ROLLBACK");
    jobq_pg__log(w->pg, jobq_pg__worker_event(w, code == JOBQ_ERROR_DEAD ? JOBQ_LEVEL_WARNING
                                                                        : JOBQ_LEVEL_ERROR,
                                              "statement_failed", &error),
                 "%s %s", error.sqlstate, error.message);
    if (strcmp(error.sqlstate, "25006") == 0 || p->kind == JOBQ_REQUEST_WAIT ||
        jobq_pg__gone(&error)) jobq_pg__break(w, "");
    return code;
}

static void jobq_pg__found_in(jobq_pg_worker *w, jobq_pg__pending *p)
{
    jobq_answer *a = w->group->answer;
    jobq_pg_event event;
    jobq_pg__found f;

    memset(&f, 0, sizeof f);
    f.rows = w->rows;
    f.rows_max = w->config.batch_max;
    f.registered.queue_count = (int32_t)w->queue_count;
    f.registered.kind_count = (int32_t)w->handler_count;
    if (jobq_pg__got(p, p->result, a, &f)) p->result = NULL;
    if (f.odd != 0) {
        event = jobq_pg__worker_event(w, JOBQ_LEVEL_ERROR, "job_unlawful", NULL);
        event.job = f.odd;
        jobq_pg__log(w->pg, event, "job %lld breaks a law of jobq.h", (long long)f.odd);
    }
    if (a->kind == JOBQ_REQUEST_REGISTER && a->error == JOBQ_OK) {
        memcpy(w->kind_ids, f.registered.kind_ids, w->handler_count * sizeof *w->kind_ids);
        memcpy(w->queue_ids, f.registered.queue_ids, w->queue_count * sizeof *w->queue_ids);
    }
    if (f.portion.answer == 'h') {
        if (jobq_pg__delivery_keep(w, p->slot, &f.portion)) return;
        a->error = JOBQ_ERROR_MEMORY;
    }
    jobq_pg__portion_clear(&f.portion);
}

static int64_t jobq_pg__left(const jobq_pg_worker *w)
{
    return jobq_loop_status_of(w->loop).jobs.left;
}

/* Logs what operators should know of an answer. left: jobs left to a rescuer before it came. */
static void jobq_pg__log_answer(jobq_pg_worker *w, int64_t left)
{
    const jobq_answer *a = w->group->answer;
    jobq_pg_event e;

    if (a->kind == JOBQ_REQUEST_SET_ASIDE && a->done) {
        e = jobq_pg__worker_event(w, JOBQ_LEVEL_ERROR, "job_unreadable", NULL);
        e.job = a->id;
        jobq_pg__log(w->pg, e, "job %lld cannot be read: it was marked as failed",
                     (long long)a->id);
    }
    if (a->kind == JOBQ_REQUEST_SLEEP && a->error == JOBQ_OK) {
        bool asleep = jobq_loop_status_of(w->loop).asleep;
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_DEBUG, asleep ? "asleep" : "awake",
                                                  NULL),
                     asleep ? "nothing to do: new work is told by a notification"
                            : "busy: new work is found without notifications");
    }
    if (jobq_pg__left(w) > left) {
        jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_ERROR, "decision_refused", NULL),
                     "the database refuses every decision about a job: "
                     "the job stays running until this worker ends");
    }
}

/* ---- >>ask: asynchronous calls of the host --------------------------------------------------- */

/* Calls under way at a time. The ring must also have room for the loop's statements. */
#define JOBQ_PG__ASYNC_SENT 32

/* Sends what can be sent; behind a pooler only if nothing is under way. The lock is held. */
static void jobq_pg__async_send(jobq_pg_worker *w)
{
    bool alone = w->pg->behind_pooler;

    while (w->waiting.head != NULL && w->conn != NULL && w->broken == NULL && !w->ended &&
           w->async_sent < JOBQ_PG__ASYNC_SENT && (!alone || w->pending_count == 0)) {
        jobq_pg__async *n = jobq_pg__async_pop(&w->waiting);
        jobq_pg__pending *p;
        jobq_pg__send_params(w, n->st, &n->params);
        p = jobq_pg__pend(w);
        p->st = n->st;
        p->async = n;
        w->async_sent++;
    }
}

/* Fills in the parameters of the next look. The first one under a worker's id says who listens. */
static void jobq_pg__await_put(const jobq_pg_worker *w, jobq_pg__async *n)
{
    bool hears = jobq_loop_status_of(w->loop).hears;
    jobq_pg__awaiting from;

    if (!hears) n->channel = 0;
    from.ids.items = &n->reply.id;
    from.ids.count = 1;
    from.channel = hears && n->channel != w->id ? w->id : 0;
    if (from.channel != 0) n->channel = from.channel;
    jobq_pg__params_reset(&n->params);
    jobq_pg__put(&n->params, jobq_pg__specs[JOBQ_PG__AWAIT].in, &from);
}

static void jobq_pg__await_late(jobq_pg_worker *w, jobq_pg__async *n)
{
    jobq_pg__async_end(w, n, JOBQ_ERROR_TIMEOUT, "the job has not ended: await it again, or see "
                       "jobq_pg_explain");
}

/* Makes ready to be sent what is due. Answers when the next look is. The lock is held. */
static int64_t jobq_pg__await_due(jobq_pg_worker *w, int64_t now)
{
    jobq_pg__asyncs all = w->awaiting;
    jobq_pg__async *n;
    int64_t until = JOBQ_NEVER;

    w->awaiting.head = NULL;
    while (all.head != NULL) {
        n = jobq_pg__async_pop(&all);
        if (n->next_us <= now && w->conn != NULL) {
            jobq_pg__await_put(w, n);
            jobq_pg__async_push(&w->waiting, n);
        } else if (n->until_us <= now && w->conn == NULL) {
            jobq_pg__await_late(w, n);
        } else {
            int64_t due = w->conn == NULL ? n->until_us : n->next_us;
            if (due < until) until = due;
            jobq_pg__async_push(&w->awaiting, n);
        }
    }
    return until;
}

/* The next looks at these jobs are due. The lock is held. */
static void jobq_pg__await_heard(jobq_pg_worker *w, const char *ids)
{
    jobq_pg__async *n;
    int64_t id;

    while (jobq_pg__ended_next(&ids, &id)) {
        for (n = w->awaiting.head; n != NULL; n = n->next) {
            if (n->reply.id == id) n->next_us = 0;
        }
    }
}

/* Reads a look. False: it is not the last one, or the host will be told that the time is up. */
static bool jobq_pg__await_read(jobq_pg_worker *w, jobq_pg__async *n, PGresult *res,
                                jobq_error *code)
{
    int64_t now = jobq_pg__mono_us();
    const jobq_pg_job_row *row;

    jobq_pg_rows_clear(&n->rows);
    *code = jobq_pg__rows_of(JOBQ_PG__AWAIT, res, &n->rows, &n->error);
    if (*code != JOBQ_OK) return true;
    row = (const jobq_pg_job_row *)n->rows.rows;
    if (n->rows.count > 0) {
        n->reply.job = row->facts;
        n->reply.result_bytes = row->result_bytes.ptr != NULL;
        n->reply.result = n->reply.result_bytes ? row->result_bytes : row->result;
        if ((int)row->facts.state == 0)
            *code = jobq_pg__not_found(&n->error, n->reply.id, "none");
        if ((int)row->facts.state == 0 || jobq_state_final(row->facts.state)) return true;
    }
    if (now >= n->until_us && n->rows.count > 0) { /* the first look only writes who listens */
        jobq_pg__await_late(w, n);
        return false;
    }
    n->next_us = n->nap_us < n->until_us - now ? now + n->nap_us : n->until_us;
    n->nap_us = jobq_pg__nap_next(n->nap_us, n->channel != 0);
    jobq_pg__async_push(&w->awaiting, n);
    return false;
}

/* Reads an answer, and clears the result. */
static jobq_error jobq_pg__async_read(jobq_pg__async *n, PGresult *res)
{
    jobq_error code;

    if (n->st == JOBQ_PG__ENQUEUE_ONE || n->st == JOBQ_PG__ENQUEUE_KNOWN)
        return jobq_pg__got_enqueued(res, n->key, &n->reply.id, &n->error);
    if (n->st == JOBQ_PG__GET) {
        code = jobq_pg__got_facts(res, &n->reply.job, &n->error);
        if (code == JOBQ_ERROR_NOT_FOUND) jobq_pg__not_found(&n->error, n->reply.id, "none");
        return code;
    }
    code = jobq_pg__got_change(res, n->st, "cancelled", &n->change, &n->error);
    n->reply.count = n->change.count;
    n->reply.requested = n->change.requested;
    return code;
}

/* The answer to a call has come. If the connection broke while the server carried it out, the call
 * is left in pending, and ends with the connection. The lock is held. */
static void jobq_pg__async_got(jobq_pg_worker *w, jobq_pg__pending *p)
{
    ExecStatusType status = PQresultStatus(p->result);
    bool good = status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
    jobq_pg__async *n = p->async;
    jobq_error code = JOBQ_OK;

    if (good && n->st == JOBQ_PG__AWAIT) {
        if (!jobq_pg__await_read(w, n, p->result, &code)) n = NULL;
        p->result = NULL;
    } else if (good) {
        code = jobq_pg__async_read(n, p->result);
        p->result = NULL;
    } else {
        code = jobq_pg__result_error(&n->error, w->conn, p->result);
        if (jobq_pg__gone(&n->error)) {
            jobq_pg__break(w, "the server ended it during a call of the host");
            return;
        }
        if (w->pg->behind_pooler) jobq_pg__send_text(w, "ROLLBACK");
        else if (jobq_pg__known_learn(w->conn, &w->pg->texts[p->st], p->result) && !n->again) {
            n->again = true;
            jobq_pg__async_push(&w->waiting, n);
            n = NULL;
        }
    }
    p->async = NULL;
    w->async_sent--;
    if (n != NULL) jobq_pg__async_end(w, n, code, NULL);
}

static void jobq_pg__async_free(jobq_pg__async *n)
{
    jobq_pg__params_clear(&n->params);
    jobq_pg_rows_clear(&n->rows);
    free(n->key);
    free(n);
}

/* Calls back. The lock is not held. */
static void jobq_pg__async_tell(jobq_pg_worker *w)
{
    jobq_pg__async *n;

    for (;;) {
        jobq_pg__os_lock(&w->group->lock);
        n = jobq_pg__async_pop(&w->answered);
        if (n != NULL) w->async_count--;
        jobq_pg__os_unlock(&w->group->lock);
        if (n == NULL) return;
        n->reply.error = &n->error;
        n->done(n->user, &n->reply);
        jobq_pg__async_free(n);
    }
}

/* The worker has ended, and its connection is closed. */
static void jobq_pg__async_leave(jobq_pg_worker *w)
{
    jobq_pg__async *n;

    jobq_pg__os_lock(&w->group->lock);
    while (w->pending_count > 0) jobq_pg__pending_drop(w);
    while ((n = jobq_pg__async_pop(&w->waiting)) != NULL)
        jobq_pg__async_end(w, n, JOBQ_ERROR_DEAD, "it was not sent: the worker has stopped");
    while ((n = jobq_pg__async_pop(&w->awaiting)) != NULL)
        jobq_pg__async_end(w, n, JOBQ_ERROR_DEAD, "the worker has stopped: await it elsewhere");
    jobq_pg__os_unlock(&w->group->lock);
    jobq_pg__async_tell(w);
}

/* Begins a call with the parameters from a struct, or frees it. */
static jobq_error jobq_pg__async_start(jobq_pg_worker *w, jobq_pg__async *n, const void *from,
                                       jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    int64_t until;

    jobq_pg__put(&n->params, jobq_pg__specs[n->st].in, from);
    jobq_pg__os_lock(&w->group->lock);
    if (n->params.failed) code = jobq_pg__no_memory(error);
    else if (n->params.size > JOBQ_PG__MESSAGE_MAX)
        code = jobq_pg__invalid(error, "size",
                                "must be at most 1 GB in one call: send fewer at once");
    else if (w->ended) code = jobq_pg__fail(error, JOBQ_ERROR_DEAD, "the worker has stopped");
    else if (w->async_count >= JOBQ_PG_ASYNC_MAX)
        code = jobq_pg__fail(error, JOBQ_ERROR_FULL, "JOBQ_PG_ASYNC_MAX calls have no answer yet: "
                             "step the worker first");
    else {
        w->async_count++;
        jobq_pg__async_push(n->st == JOBQ_PG__AWAIT ? &w->awaiting : &w->waiting, n);
        until = jobq_pg__await_due(w, jobq_pg__mono_us());
        if (until < w->io_until_us) w->io_until_us = until;
        jobq_pg__async_send(w);
        if (w->broken != NULL) w->io_until_us = 0; /* the next step is due */
    }
    jobq_pg__os_unlock(&w->group->lock);
    if (code != JOBQ_OK) jobq_pg__async_free(n);
    return code;
}

/* NULL: error is filled. */
static jobq_pg__async *jobq_pg__async_new(jobq_pg_worker *w, jobq_pg__statement st,
                                          jobq_pg_done done, void *user, jobq_pg_error *error)
{
    jobq_pg__async *n;

    if (jobq_pg__forked(w->pg)) {
        jobq_pg__forked_error(error);
        return NULL;
    }
    n = (jobq_pg__async *)malloc(sizeof *n);
    if (n == NULL) {
        jobq_pg__no_memory(error);
        return NULL;
    }
    memset(n, 0, offsetof(jobq_pg__async, params));
    jobq_pg__params_init(&n->params);
    n->st = st;
    n->done = done;
    n->user = user;
    return n;
}

static jobq_error jobq_pg__ask_enqueue(jobq_pg_worker *w, const jobq_pg_job *job,
                                       jobq_pg_done done, void *user, jobq_pg_error *error)
{
    jobq_pg__lent *lent = NULL;
    const void *row = job;
    jobq_pg__async *n;
    jobq_error code;

    if (jobq_pg__job_invalid(w->pg, job, error) != JOBQ_OK) return error->code;
    if (jobq_pg__linked_job(job))
        return jobq_pg__invalid(error, "flow",
                                "not allowed here: use jobq_pg_enqueue for flow, name and after");
    n = jobq_pg__async_new(w, jobq_pg__enqueue_by(job), done, user, error);
    if (n == NULL) return error->code;
    if (job->key != NULL && (n->key = jobq_pg__dup(job->key)) == NULL) {
        jobq_pg__async_free(n);
        return jobq_pg__no_memory(error);
    }
    code = jobq_pg__sealed(w->pg, &jobq_pg__job_content, &row, 1, &lent, error);
    if (code == JOBQ_OK) code = jobq_pg__async_start(w, n, row, error);
    else jobq_pg__async_free(n);
    jobq_pg__lent_drop(&lent);
    return code;
}

static jobq_error jobq_pg__ask_get(jobq_pg_worker *w, int64_t id, jobq_pg_done done, void *user,
                                   jobq_pg_error *error)
{
    jobq_pg__async *n = jobq_pg__async_new(w, JOBQ_PG__GET, done, user, error);

    if (n == NULL) return error->code;
    n->reply.id = n->change.of.id = id;
    return jobq_pg__async_start(w, n, &n->change, error);
}

static jobq_error jobq_pg__ask_cancel(jobq_pg_worker *w, const jobq_pg_filter *which,
                                      jobq_pg_done done, void *user, jobq_pg_error *error)
{
    jobq_pg__changing change = jobq_pg__change_of(which);
    jobq_pg__statement st = JOBQ_PG__CANCEL;
    jobq_pg__async *n;

    if (jobq_pg__change_start(&st, &change, error) != JOBQ_OK) return error->code;
    n = jobq_pg__async_new(w, st, done, user, error);
    if (n == NULL) return error->code;
    n->change = change;
    return jobq_pg__async_start(w, n, &n->change, error);
}

static jobq_error jobq_pg__ask_await(jobq_pg_worker *w, int64_t id, int64_t timeout_us,
                                     jobq_pg_done done, void *user, jobq_pg_error *error)
{
    int64_t now = jobq_pg__mono_us();
    jobq_pg__async *n = jobq_pg__async_new(w, JOBQ_PG__AWAIT, done, user, error);
    jobq_pg__awaiting from;

    if (n == NULL) return error->code;
    n->reply.id = id;
    n->until_us = jobq_pg__deadline(now, timeout_us);
    n->nap_us = 1000;
    from.ids.items = &n->reply.id;
    from.ids.count = 1;
    from.channel = 0;
    return jobq_pg__async_start(w, n, &from, error);
}

JOBQ_API jobq_error jobq_pg_worker_ask(jobq_pg_worker *w, const jobq_pg_question *q,
                                       jobq_pg_done done, void *user, jobq_pg_error *error)
{
    jobq_pg_error local;

    JOBQ_ASSERT(w != NULL && w->hosted && q != NULL && done != NULL);
    if (error == NULL) error = &local;
    if ((q->enqueue != NULL) + (q->get != 0) + (q->cancel != NULL) + (q->await != 0) != 1)
        return jobq_pg__invalid(error, "question",
                                "must have one of enqueue, get, cancel and await");
    if (q->timeout_us != 0 && q->await == 0)
        return jobq_pg__invalid(error, "timeout_us", "needs await");
    if (q->enqueue != NULL) return jobq_pg__ask_enqueue(w, q->enqueue, done, user, error);
    if (q->get != 0) return jobq_pg__ask_get(w, q->get, done, user, error);
    if (q->cancel != NULL) return jobq_pg__ask_cancel(w, q->cancel, done, user, error);
    return jobq_pg__ask_await(w, q->await, q->timeout_us, done, user, error);
}

static void jobq_pg__dispatch(jobq_pg_worker *w, jobq_pg__pending *p)
{
    ExecStatusType status = PQresultStatus(p->result);
    jobq_pg__answer *jobs = NULL;
    jobq_error code = JOBQ_OK;
    int64_t left = jobq_pg__left(w);

    JOBQ_PG_POINT("answered", (int)p->kind, w->conn);
    if (p->async != NULL) {
        jobq_pg__async_got(w, p);
        return;
    }
    if (p->listens && jobq_pg__listen_got(w, p->result)) return;
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
        code = jobq_pg__on_refusal(w, p);
        if (w->broken != NULL) return;
    }
    if (p->kind == JOBQ_REQUEST_WAIT) return;
    jobq_pg__answer_start(w, p, code);
    if (code == JOBQ_OK) jobq_pg__found_in(w, p);
    if (w->group->answer->claimed.count > 0) {
        jobs = (jobq_pg__answer *)calloc(1, sizeof *jobs);
        if (jobs == NULL) { /* the next connection recovers the claim */
            jobq_pg__break(w, "no memory for the jobs of a claim");
            return;
        }
    }
    jobq_loop_tell(w->loop, jobq_pg__mono_us(), w->group->answer);
    if (jobs != NULL) jobq_pg__hold_jobs(w, p, jobs);
    if (p->kind == JOBQ_REQUEST_RESCUE && code == JOBQ_OK) jobq_pg__rescue_failed(w, p);
    jobq_pg__log_answer(w, left);
    if (p->kind == JOBQ_REQUEST_HEARTBEAT && code == JOBQ_OK && w->group->answer->news.alive &&
        w->group->answer->news.written) jobq_pg__progress_known(w, p->worker);
    if (p->kind == JOBQ_REQUEST_REGISTER || p->kind == JOBQ_REQUEST_HEARTBEAT)
        jobq_pg__os_wake_all(&w->group->gone);
    if (p->kind == JOBQ_REQUEST_CLAIM || p->kind == JOBQ_REQUEST_HEARTBEAT) {
        jobq_pg__wake_threads(w); /* they may have slept because the lease was over */
    }
}

/* Takes one result of the pipeline; a sync ends the oldest statement. */
static void jobq_pg__on_result(jobq_pg_worker *w, PGresult *res)
{
    jobq_pg__pending *p = &w->pending[w->pending_first];
    ExecStatusType status = PQresultStatus(res);

    if (status == PGRES_PIPELINE_SYNC && w->pending_count > 0) {
        PQclear(res);
        if (p->result != NULL) jobq_pg__dispatch(w, p);
        if (w->broken == NULL) jobq_pg__pending_drop(w);
        return;
    }
    p->result = jobq_pg__weigh(p->result, res);
}

static void jobq_pg__on_notify(jobq_pg_worker *w, PGconn *conn)
{
    PGnotify *n;

    while ((n = PQnotifies(conn)) != NULL) {
        const char *ids = jobq_pg__ended_ids(n->extra);
        if (ids != NULL) jobq_pg__await_heard(w, ids);
        else jobq_loop_notified(w->loop, jobq_pg__mono_us(), n->extra);
        PQfreemem(n);
    }
}

/* Reads what has arrived on the connection. The lock is held. */
static void jobq_pg__read(jobq_pg_worker *w)
{
    int empty = 0;

    if (!PQconsumeInput(w->conn)) jobq_pg__break(w, JOBQ_PG__BAD);
    while (w->broken == NULL && w->pending_count > 0 && empty < 2 && !PQisBusy(w->conn)) {
        PGresult *res = PQgetResult(w->conn);
        empty = res == NULL ? empty + 1 : 0;
        if (res != NULL) jobq_pg__on_result(w, res);
    }
    jobq_pg__on_notify(w, w->conn);
    if (PQstatus(w->conn) == CONNECTION_BAD) jobq_pg__break(w, JOBQ_PG__BAD);
}

/* ---- >>listen: past a pooler, on a connection of its own ------------------------------------- */

static bool jobq_pg__listens_past(const jobq_pg_worker *w)
{
    return w->config.listen && w->pg->behind_pooler;
}

/* As jobq_pg__hears. That is checked again after a heartbeat's interval. */
static void jobq_pg__listener_hears(jobq_pg_worker *w, const jobq_pg_error *why)
{
    jobq_pg__listener *l = &w->listener;

    if (why != NULL) PQfinish(jobq_pg__conn_take(&l->conn));
    l->waits = false;
    l->until_us = jobq_pg__mono_us() + w->config.heartbeat_us;
    jobq_pg__hears(w, why);
}

static void jobq_pg__listener_connect(jobq_pg_worker *w)
{
    jobq_pg__listener *l = &w->listener;
    jobq_pg_error error;

    if (l->attempt == NULL && jobq_pg__mono_us() < l->until_us) return;
    if (!jobq_pg__connects(w, &l->attempt, w->pg->listen_conninfo, &l->conn, &error)) return;
    l->until_us = 0;
    l->asked = 0;
    w->may_listen = false;
    if (l->conn == NULL) jobq_pg__listener_hears(w, &error);
}

/* Sends LISTEN for the worker's present id, after the question whether it may; repeated, it proves
 * that the connection is up. False: it is not. */
static bool jobq_pg__listener_asks(jobq_pg_worker *w, jobq_pg_error *error)
{
    jobq_pg__listener *l = &w->listener;
    int64_t now = jobq_pg__mono_us();
    char sql[64];

    if (l->waits && now >= l->until_us)
        return jobq_pg__fail(error, JOBQ_ERROR_TIMEOUT, "no answer in time") == JOBQ_OK;
    if (l->waits || (now < l->until_us && l->asked == w->id)) return true;
    l->waits = true;
    l->until_us = now + w->config.answer_us;
    l->asked = w->may_listen ? w->id : 0;
    return PQsendQuery(l->conn, w->may_listen ? jobq_pg__listen_sql(sql, w->id)
                                              : JOBQ_PG__SHORT_QUEUE) != 0 ||
           jobq_pg__conn_error(error, l->conn) == JOBQ_OK;
}

/* Takes a result; NULL: the statement has ended. False: it failed. */
static bool jobq_pg__listener_got(jobq_pg_worker *w, const PGresult *res, jobq_pg_error *error)
{
    jobq_pg__listener *l = &w->listener;

    l->waits = res != NULL;
    if (res != NULL) return jobq_pg__listen_read(l->conn, res, &w->may_listen, error);
    if (l->asked == w->id) jobq_pg__listener_hears(w, NULL);
    return true;
}

/* ready: its socket has input. The lock is held. */
static void jobq_pg__listener_step(jobq_pg_worker *w, bool ready)
{
    jobq_pg__listener *l = &w->listener;
    jobq_pg_error error;
    bool good = true;

    if (!jobq_pg__listens_past(w) || w->id == 0 || w->ended) return;
    if (l->conn == NULL) jobq_pg__listener_connect(w);
    if (l->conn == NULL) return;
    if (ready) good = PQconsumeInput(l->conn) || jobq_pg__conn_error(&error, l->conn) == JOBQ_OK;
    jobq_pg__on_notify(w, l->conn);
    while (good && l->waits && !PQisBusy(l->conn)) {
        PGresult *res = PQgetResult(l->conn);
        good = jobq_pg__listener_got(w, res, &error);
        PQclear(res);
    }
    if (!good || !jobq_pg__listener_asks(w, &error)) jobq_pg__listener_hears(w, &error);
}

/* ---- >>step: takes what has arrived and does what is due ------------------------------------- */

/* The loop has ended. Cancels a maintenance statement. The lock is held. */
static void jobq_pg__worker_end(jobq_pg_worker *w)
{
    w->ended = true;
    w->end_us = jobq_pg__mono_us() + w->config.answer_us;
    w->group->open--;
    jobq_pg__os_wake_all(&w->group->work);
    jobq_pg__os_wake_all(&w->group->gone);
    if (w->maintenance.conn != NULL)
        jobq_pg__cancel_statement(w, PQgetCancel(w->maintenance.conn), "maintenance");
}

/* Whether an ended worker still waits for a maintenance statement or for desc.connect. */
static bool jobq_pg__lingers(const jobq_pg_worker *w)
{
    bool busy = w->maintenance.conn != NULL || jobq_pg__asks(w->attempt) ||
                jobq_pg__asks(w->listener.attempt) || jobq_pg__asks(w->maintenance.attempt);

    return busy && jobq_pg__mono_us() < w->end_us;
}

/* Behind a pooler the loop is not asked for the next statement before the answer to this one, or
 * before it is overdue: pgbouncer 1.18 may give the second answer to another client. JOBQ_NEVER: it
 * may be asked. */
static int64_t jobq_pg__overdue(const jobq_pg_worker *w)
{
    int64_t overdue = w->pending_mono_us + w->config.answer_us;

    if (!w->pg->behind_pooler || w->pending_count == 0) return JOBQ_NEVER;
    return jobq_pg__mono_us() < overdue ? overdue : JOBQ_NEVER;
}

/* Adds a number to a line of statistics: since the last line, and in brackets since the start. */
static void jobq_pg__tell_count(char *line, size_t size, const char *what, int64_t now,
                                int64_t before)
{
    size_t used = strlen(line);

    snprintf(line + used, size - used, "%s %lld (%lld)", what, (long long)(now - before),
             (long long)now);
}

/* Logs what the worker has done, if that is due. */
static void jobq_pg__tell_stats(jobq_pg_worker *w, int64_t now)
{
#define JOBQ_PG__TELL(what, part, name)                                                            \
    jobq_pg__tell_count(line, sizeof line, what, s.part.name, w->told.part.name)
    jobq_loop_status s = jobq_loop_status_of(w->loop);
    char line[600] = "jobs:";

    if (now < w->stats_mono_us) return;
    JOBQ_PG__TELL(" started", jobs, started);
    JOBQ_PG__TELL(", succeeded", jobs, succeeded);
    JOBQ_PG__TELL(", retried", jobs, retried);
    JOBQ_PG__TELL(", failed", jobs, failed);
    JOBQ_PG__TELL(", cancelled", jobs, cancelled);
    JOBQ_PG__TELL(", released", jobs, released);
    JOBQ_PG__TELL(", lost", jobs, lost);
    JOBQ_PG__TELL(", abandoned", jobs, abandoned);
    JOBQ_PG__TELL(", rescued", jobs, rescued);
    JOBQ_PG__TELL("; messages: delivered", messages, delivered);
    JOBQ_PG__TELL(", succeeded", messages, succeeded);
    JOBQ_PG__TELL(", dead", messages, dead);
    JOBQ_PG__TELL(", retried", messages, retried);
    JOBQ_PG__TELL(", lost", messages, lost);
    JOBQ_PG__TELL("; reconnects", jobs, reconnects);
    jobq_pg__log(w->pg, jobq_pg__worker_event(w, JOBQ_LEVEL_INFO, "statistics", NULL),
                 "statistics of worker %lld in %.1f s (since its start): %s; handlers took %.1f "
                 "(%.1f) s", (long long)s.worker, (double)(now - w->told_mono_us) / 1e6, line,
                 (double)(w->handler_us - w->told.handler_us) / 1e6, (double)w->handler_us / 1e6);
    w->told.jobs = s.jobs;
    w->told.messages = s.messages;
    w->told.handler_us = w->handler_us;
    w->told_mono_us = now;
    w->stats_mono_us = now + w->stats_us;
#undef JOBQ_PG__TELL
}

/* Does what is due. False: the worker has ended and waits for nothing more. The lock is held. */
static bool jobq_pg__advance(jobq_pg_worker *w)
{
    jobq_request *a = w->group->request;
    jobq_pg_error error;
    PGconn *conn;
    int64_t await_us, overdue_us;

    jobq_pg__tell_stats(w, jobq_pg__mono_us());
    while (!w->ended) {
        if (jobq_pg__attempt_over(&w->attempt, &conn, &error)) jobq_pg__attempted(w, conn, &error);
        if (w->broken != NULL) jobq_pg__disconnect(w);
        await_us = jobq_pg__await_due(w, jobq_pg__mono_us());
        if (w->async_turn || !w->pg->behind_pooler) jobq_pg__async_send(w);
        overdue_us = jobq_pg__overdue(w);
        w->async_turn = overdue_us == JOBQ_NEVER;
        if (w->async_turn) jobq_loop_next(w->loop, jobq_pg__mono_us(), a);
        else jobq_loop_abandon(w->loop, jobq_pg__mono_us(), a);
        if (a->kind == JOBQ_REQUEST_WAIT) {
            if (w->pg->behind_pooler && w->async_turn) jobq_pg__async_send(w);
            w->io_until_us = a->until_mono_us;
            if (overdue_us < w->io_until_us) w->io_until_us = overdue_us;
            if (w->stats_mono_us < w->io_until_us) w->io_until_us = w->stats_mono_us;
            if (await_us < w->io_until_us) w->io_until_us = await_us;
            await_us = jobq_pg__reinforce(w);
            if (await_us < w->io_until_us) w->io_until_us = await_us;
            return true;
        }
        if (a->kind == JOBQ_REQUEST_EXIT) jobq_pg__worker_end(w);
        else jobq_pg__perform(w, a);
    }
    return jobq_pg__lingers(w);
}

/* When the worker has to be stepped again if nothing arrives. */
static int64_t jobq_pg__until(const jobq_pg_worker *w)
{
    bool listens = jobq_pg__listens_past(w) && w->id != 0;

    if (w->ended) return w->end_us;
    if (w->more) return 0;
    if (!listens || (w->listener.conn == NULL && jobq_pg__attempting(w))) return w->io_until_us;
    return w->listener.until_us < w->io_until_us ? w->listener.until_us : w->io_until_us;
}

/* Fills what to wait for: the pipe, and the connections for statements, LISTEN and maintenance. */
static void jobq_pg__watch(const jobq_pg_worker *w, struct pollfd *fds)
{
    PGconn *conns[JOBQ_PG_FDS];
    int i;

    conns[1] = w->conn;
    conns[2] = w->listener.conn;
    conns[3] = w->maintenance.conn;
    fds[0].fd = w->poke[0];
    fds[0].events = POLLIN;
    fds[0].revents = 0;
    for (i = 1; i < JOBQ_PG_FDS; i++) {
        bool writes = conns[i] != NULL && PQflush(conns[i]) > 0;
        fds[i].fd = conns[i] != NULL ? (jobq_pg__os_socket)PQsocket(conns[i]) : JOBQ_PG__OS_NONE;
        fds[i].events = (short)(writes ? POLLIN | POLLOUT : POLLIN);
        fds[i].revents = 0;
    }
}

/* Waits for input and takes it. The lock is held before and after, but not during the wait. */
static void jobq_pg__await(jobq_pg_worker *w, int64_t until_us)
{
    struct pollfd fds[JOBQ_PG_FDS];
    char pokes[64];
    int64_t wait = until_us - jobq_pg__mono_us();
    int got, i;

    jobq_pg__watch(w, fds);
    jobq_pg__os_unlock(&w->group->lock);
    jobq_pg__os_poll(fds, JOBQ_PG_FDS, wait);
    got = fds[0].revents != 0 ? jobq_pg__os_pair_read(w->poke, pokes, sizeof pokes) : 0;
    jobq_pg__os_lock(&w->group->lock);
    for (i = 0; i < got; i++) {
        bool again = !jobq_pg__works(w);
        if (pokes[i] == 's') jobq_loop_stop(w->loop, jobq_pg__mono_us(), again ? 0 : -1);
    }
    if (w->conn != NULL && fds[1].revents != 0) jobq_pg__read(w);
    if (w->conn != NULL && PQstatus(w->conn) == CONNECTION_BAD) jobq_pg__break(w, JOBQ_PG__BAD);
    jobq_pg__listener_step(w, fds[2].revents != 0);
    jobq_pg__maintenance_step(w, fds[3].revents != 0);
}

static void jobq_pg__conns_take(jobq_pg_worker *w, PGconn **conns)
{
    conns[0] = jobq_pg__conn_take(&w->conn);
    conns[1] = jobq_pg__conn_take(&w->listener.conn);
    conns[2] = jobq_pg__conn_take(&w->maintenance.conn);
}

/* Takes the connections away under the lock, because health may be asked, and closes them. */
static void jobq_pg__hang_up(jobq_pg_worker *w)
{
    PGconn *conns[3];
    size_t i;

    jobq_pg__os_lock(&w->group->lock);
    jobq_pg__conns_take(w, conns);
    jobq_pg__attempt_leave(w, &w->attempt);
    jobq_pg__attempt_leave(w, &w->listener.attempt);
    jobq_pg__attempt_leave(w, &w->maintenance.attempt);
    jobq_pg__os_unlock(&w->group->lock);
    for (i = 0; i < 3; i++) PQfinish(conns[i]);
}

/* The worker's own thread. */
static void *jobq_pg__worker_run(void *arg)
{
    jobq_pg_worker *w = (jobq_pg_worker *)arg;

    jobq_pg__os_lock(&w->group->lock);
    while (jobq_pg__advance(w)) jobq_pg__await(w, jobq_pg__until(w));
    while (jobq_pg__group_busy(w)) jobq_pg__os_wait(&w->group->gone, &w->group->lock, JOBQ_NEVER);
    while (jobq_pg__hook_call_run(w)) {}
    jobq_pg__os_unlock(&w->group->lock);
    jobq_pg__hang_up(w);
    return NULL;
}

/* A hosted worker ends, or is freed before its end. */
static void jobq_pg__host_ends(jobq_pg_worker *w)
{
    jobq_pg__os_lock(&w->group->lock);
    if (!w->ended) jobq_pg__worker_end(w);
    while (jobq_pg__lingers(w)) jobq_pg__await(w, w->end_us);
    while (jobq_pg__hook_call_run(w)) {}
    jobq_pg__os_unlock(&w->group->lock);
    jobq_pg__hang_up(w);
    jobq_pg__async_leave(w);
}

/* Whether this is a forked child, which must not use its parent's worker. */
static bool jobq_pg__worker_forked(const jobq_pg_worker *w)
{
    jobq_pg_error error;

    if (!jobq_pg__forked(w->pg)) return false;
    jobq_pg__forked_error(&error);
    jobq_pg__log(w->pg, jobq_pg__event_of(JOBQ_LEVEL_ERROR, "forked"), "%s", error.message);
    return true;
}

/* In a forked child: leaves the worker's memory as the fork found it, and drops the connections. */
static void jobq_pg__worker_leave(jobq_pg_worker *w)
{
    PGconn *conns[3];
    size_t i;

    jobq_pg__conns_take(w, conns);
    for (i = 0; i < 3; i++) {
        if (conns[i] != NULL) jobq_pg__conn_leave(conns[i]);
    }
}

/* -- steps of a host -- */

/* Takes what has arrived, does what is due, and never waits. False: the worker has ended. */
static bool jobq_pg__turn(jobq_pg_worker *w)
{
    bool alive;

    jobq_pg__os_lock(&w->group->lock);
    jobq_pg__await(w, 0);
    alive = jobq_pg__advance(w);
    jobq_pg__os_unlock(&w->group->lock);
    return alive;
}

/* False: there was nothing to run. */
static bool jobq_pg__host_runs(jobq_pg_worker *w)
{
    jobq_pg__run *run = &w->run;
    bool ran;

    jobq_pg__os_lock(&w->group->lock);
    run->ask_mono_us = 0;
    ran = jobq_pg__run_one(w, run);
    if (run->abandoned) w->group->stuck--;
    run->abandoned = false;
    jobq_pg__os_unlock(&w->group->lock);
    return ran;
}

JOBQ_API bool jobq_pg_worker_step(jobq_pg_worker *w, int64_t budget_us)
{
    int64_t until = jobq_pg__mono_us() + (budget_us > 0 ? budget_us : 0);
    bool alive, ran;

    JOBQ_ASSERT(w != NULL && w->hosted);
    if (jobq_pg__worker_forked(w)) return false;
    do {
        alive = jobq_pg__turn(w);
        jobq_pg__async_tell(w);
        ran = alive && !w->ended && jobq_pg__host_runs(w);
    } while (ran && jobq_pg__mono_us() < until);
    if (ran) alive = jobq_pg__turn(w);
    jobq_pg__async_tell(w);
    w->more = ran;
    if (!alive) jobq_pg__host_ends(w);
    return alive;
}

JOBQ_API int jobq_pg_worker_fds(const jobq_pg_worker *w, struct pollfd *fds, int64_t *until_mono_us)
{
    int count = 0, i;

    JOBQ_ASSERT(w != NULL && w->hosted && fds != NULL);
    if (until_mono_us != NULL) *until_mono_us = 0;
    if (jobq_pg__worker_forked(w)) return 0;
    jobq_pg__watch(w, fds);
    for (i = 0; i < JOBQ_PG_FDS; i++) {
        if (fds[i].fd != JOBQ_PG__OS_NONE) fds[count++] = fds[i];
    }
    if (until_mono_us != NULL) *until_mono_us = jobq_pg__until(w);
    return count;
}

/* ---- >>life: start, stop, wait, free --------------------------------------------------------- */

static void jobq_pg__worker_drop(jobq_pg_worker *w)
{
    size_t i;

    for (i = 0; i < w->handler_count; i++) {
        free((char *)w->handlers[i].queue);
        free((char *)w->handlers[i].kind);
    }
    for (i = 0; w->receivers != NULL && i < w->receiver_count; i++) {
        free((char *)w->receivers[i].queue);
    }
    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) jobq_pg__held_clear(&w->held[i]);
    for (i = 0; i < JOBQ_LOOP_PARTITIONS; i++) jobq_pg__delivery_drop(w->deliveries[i]);
    while (w->pending_count > 0) jobq_pg__pending_drop(w);
    jobq_pg__os_pair_end(w->poke);
    jobq_pg__params_clear(&w->params);
    free(w->name);
    free(w->receivers);
    free(w->endings);
    free(w->loop);
    free(w);
}

/* The index of a queue, which is added if new. JOBQ_LOOP_QUEUES: too many. Keeps the pointer. */
static size_t jobq_pg__queue_index(jobq_pg_worker *w, const char *name)
{
    size_t q = 0;

    while (q < w->queue_count && strcmp(w->queues[q], name) != 0) q++;
    if (q == w->queue_count && q < JOBQ_LOOP_QUEUES) w->queues[w->queue_count++] = name;
    return q;
}

static jobq_error jobq_pg__handlers_copy(jobq_pg_worker *w, const jobq_pg_worker_desc *desc,
                                         jobq_loop_config *config, jobq_pg_error *error)
{
    size_t i, q;

    for (i = 0; i < desc->handler_count; i++) {
        const jobq_pg_handler *h = &desc->handlers[i];
        if (jobq_pg__name_invalid(h->queue, "handlers.queue", false, error) ||
            jobq_pg__name_invalid(h->kind, "handlers.kind", false, error))
            return JOBQ_ERROR_INVALID;
        if (h->run[0] == NULL) return jobq_pg__invalid(error, "handlers.run", "needs run[0]");
        if (h->threads_max < 0)
            return jobq_pg__invalid_int(error, "handlers.threads_max", h->threads_max,
                                        "must be 0 (no limit) or more");
        for (q = 0; q < i; q++) {
            if (strcmp(h->queue, w->handlers[q].queue) == 0 &&
                strcmp(h->kind, w->handlers[q].kind) == 0) {
                return jobq_pg__invalid_text(error, "handlers.kind", h->kind,
                                             "not the only one of this name in its queue");
            }
        }
        w->handlers[i] = *h;
        w->handlers[i].queue = jobq_pg__dup(h->queue);
        w->handlers[i].kind = jobq_pg__dup(h->kind);
        if (w->handlers[i].queue == NULL || w->handlers[i].kind == NULL)
            return jobq_pg__no_memory(error);
        q = jobq_pg__queue_index(w, w->handlers[i].queue);
        if (q == JOBQ_LOOP_QUEUES)
            return jobq_pg__invalid(error, "handlers", "too many queues for one worker");
        w->kind_queues[i] = config->kind_queues[i] = (int32_t)q + 1;
        config->kind_threads[i] = h->threads_max;
        w->kinds[i] = w->handlers[i].kind;
    }
    return JOBQ_OK;
}

static jobq_error jobq_pg__receiver_check(const jobq_pg_receiver *r, jobq_pg_error *error)
{
    jobq_tuning tuning = jobq_tuning_defaults(&r->tuning);

    if (jobq_pg__name_invalid(r->queue, "receivers.queue", false, error))
        return JOBQ_ERROR_INVALID;
    if ((r->each == NULL) == (r->all == NULL)) {
        return jobq_pg__invalid(error, "receivers.each", "must be given, or all; but not both");
    }
    if (jobq_tuning_check(&tuning) != JOBQ_OK || tuning.batch > JOBQ_LOOP_BATCH) {
        return jobq_pg__invalid(error, "receivers.tuning",
                                "not one that jobq_tuning_check accepts");
    }
    return jobq_pg__backoff_invalid(&r->tuning.retry, "receivers.tuning.retry", error) ||
                   jobq_pg__short(tuning.lease_us, "receivers.tuning.lease_us", error) ||
                   jobq_pg__short(tuning.headroom_us, "receivers.tuning.headroom_us", error) ||
                   jobq_pg__short(tuning.budget_us, "receivers.tuning.budget_us", error)
               ? JOBQ_ERROR_INVALID : JOBQ_OK;
}

/* Copies the receivers; their queues follow those of the handlers. */
static jobq_error jobq_pg__receivers_copy(jobq_pg_worker *w, const jobq_pg_worker_desc *desc,
                                          jobq_loop_config *config, jobq_pg_error *error)
{
    size_t i, q, jobs = w->queue_count;

#ifdef JOBQ_PG_NO_OUTBOX
    if (desc->receiver_count > 0)
        return jobq_pg__invalid(error, "receivers",
                                "not allowed in a build with JOBQ_PG_NO_OUTBOX");
#endif
    for (i = 0; i < desc->receiver_count; i++) {
        jobq_error code = jobq_pg__receiver_check(&desc->receivers[i], error);
        if (code != JOBQ_OK) return code;
        w->receivers[i] = desc->receivers[i];
        w->receivers[i].queue = jobq_pg__dup(desc->receivers[i].queue);
        if (w->receivers[i].queue == NULL) return jobq_pg__no_memory(error);
        q = jobq_pg__queue_index(w, w->receivers[i].queue);
        if (q == JOBQ_LOOP_QUEUES)
            return jobq_pg__invalid(error, "receivers", "too many queues for one worker");
        if ((config->message_queues >> q & 1) != 0)
            return jobq_pg__invalid_text(error, "receivers.queue", w->receivers[i].queue,
                                         "not the only one of this name");
        config->message_queues |= 1u << q;
        if (q >= jobs) config->jobless_queues |= 1u << q;
        config->tuning[q] = jobq_tuning_defaults(&w->receivers[i].tuning);
        w->receiver_of[q] = i;
    }
    return JOBQ_OK;
}

/* Zeroed memory for count + 1 items, because calloc may return NULL for none. */
static void *jobq_pg__room(size_t count, size_t size, bool *good)
{
    void *room = calloc(count + 1, size);

    if (room == NULL) *good = false;
    return room;
}

/* The longest time-out of a statement. */
#define JOBQ_PG__ANSWER_MAX (86400 * (int64_t)1000000) /* the loop may wait longer */

/* Refuses what is certainly a mistake. */
static jobq_error jobq_pg__config_invalid(const jobq_loop_config *c, jobq_pg_error *error)
{
    const struct {
        const char *name;
        int64_t value;
        bool small; /* microseconds make sense, or it is no time */
    } times[] = {{"loop.lease_us", c->lease_us, true}, /* 100 ms, see below */
                 {"loop.heartbeat_us", c->heartbeat_us, false},
                 {"loop.poll_us", c->poll_us, false}, {"loop.flush_us", c->flush_us, true},
                 {"loop.linger_us", c->linger_us, true}, {"loop.sweep_us", c->sweep_us, false},
                 {"loop.grace_us", c->grace_us, false}, {"loop.answer_us", c->answer_us, false},
                 {"loop.prune_us", c->prune_us, false},
                 {"loop.vacuum_rows", c->vacuum_rows, true},
                 {"loop.jobs_max", c->jobs_max, true}, {"loop.batch_max", c->batch_max, true}};
    jobq_loop_config full = jobq_loop_config_defaults(c);
    size_t i;

    for (i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (times[i].value < 0)
            return jobq_pg__invalid_int(error, times[i].name, times[i].value,
                                        "must not be negative; 0 is the default");
        if (!times[i].small && jobq_pg__short(times[i].value, times[i].name, error))
            return JOBQ_ERROR_INVALID;
    }
    if (c->threads < 0 || c->threads > JOBQ_LOOP_THREADS)
        return jobq_pg__invalid_int(error, "loop.threads", c->threads,
                                    "must be 1 to JOBQ_LOOP_THREADS");
    if (full.lease_us < JOBQ_MILLISECONDS(100)) {
        return jobq_pg__invalid_int(error, "loop.lease_us", full.lease_us,
                                    "must be at least 100 ms; it is in microseconds: "
                                    "JOBQ_SECONDS(30)");
    }
    if (full.heartbeat_us > full.lease_us / 2)
        return jobq_pg__invalid_int(error, "loop.heartbeat_us", full.heartbeat_us,
                                    "must be at most half of the lease");
    return JOBQ_OK;
}

/* Adds a worker to the group, which frees it, even after an error here. */
static jobq_error jobq_pg__worker_new(jobq_pg *pg, const jobq_pg_worker_desc *desc,
                                      jobq_pg__group *group, jobq_pg_error *error)
{
    jobq_pg_worker *w = (jobq_pg_worker *)calloc(1, sizeof *w);
    jobq_loop_config config = desc->loop;
    size_t batch;
    uint64_t entropy;
    bool good = true;
    jobq_error code;

    if (w == NULL) return jobq_pg__no_memory(error);
    w->group = group;
    group->workers[group->count++] = w;
    group->open = group->count;
    config.listen = !desc->no_listen && (!pg->behind_pooler || pg->listen_conninfo != NULL);
    config.message_queues = config.jobless_queues = 0;
    config = jobq_loop_config_defaults(&config);
    batch = (size_t)config.batch_max;
    w->pg = pg;
    w->hooks = desc->hooks;
    w->stats_us = desc->stats_us;
    w->no_failed_log = desc->no_failed_log;
    w->told_mono_us = jobq_pg__mono_us();
    w->stats_mono_us = w->stats_us == 0 ? JOBQ_NEVER : w->told_mono_us + w->stats_us;
    w->poke[0] = w->poke[1] = JOBQ_PG__OS_NONE;
    w->handler_count = desc->handler_count;
    w->receiver_count = desc->receiver_count;
    w->receivers =
        (jobq_pg_receiver *)jobq_pg__room(desc->receiver_count, sizeof *w->receivers, &good);
    w->name = jobq_pg__dup(desc->name == NULL ? "jobq" : desc->name);
    w->endings = (jobq_pg_ending *)jobq_pg__room(batch, sizeof *w->endings, &good);
    w->loop = (jobq_loop *)jobq_pg__room(0, jobq_loop_size(), &good);
    if (!good || w->name == NULL) return jobq_pg__no_memory(error);
    if (!jobq_pg__os_pair(w->poke) || !jobq_pg_random(&entropy)) {
        return jobq_pg__fail(error, JOBQ_ERROR_MEMORY,
                             "no pipe or no random bits: raise the open file limit");
    }
    code = jobq_pg__handlers_copy(w, desc, &config, error);
    if (code == JOBQ_OK) code = jobq_pg__receivers_copy(w, desc, &config, error);
    w->config = jobq_loop_config_defaults(&config);
    if (w->config.answer_us > JOBQ_PG__ANSWER_MAX) w->config.answer_us = JOBQ_PG__ANSWER_MAX;
    if (code != JOBQ_OK) return code;
    jobq_loop_init(w->loop, &config, entropy, jobq_pg__mono_us());
    if (jobq_pg__listens_past(w)) jobq_loop_hears(w->loop, jobq_pg__mono_us(), false);
    return JOBQ_OK;
}

/* The pool's limit follows the number of handlers that may ask for a connection. */
static void jobq_pg__pool_add(jobq_pg_worker *w, int count)
{
    jobq_pg__os_lock(&w->pg->lock);
    w->pg->pool_max += count;
    w->pool_share += count;
    jobq_pg__os_wake_all(&w->pg->freed); /* a waiting caller may get one now */
    jobq_pg__os_unlock(&w->pg->lock);
}

static bool jobq_pg__group_start(jobq_pg__group *group)
{
    bool good = true;
    size_t i;

    jobq_pg__os_lock(&group->lock);
    while (good && jobq_pg__missing(group) > 0) good = jobq_pg__thread_start(group);
    for (i = 0; good && i < group->count; i++) {
        jobq_pg_worker *w = group->workers[i];
        good = w->threaded = jobq_pg__os_start(&w->thread, jobq_pg__worker_run, w);
    }
    for (i = 0; !good && i < group->count; i++) {
        jobq_pg_worker *w = group->workers[i];
        if (!w->threaded) jobq_pg__worker_end(w);
        else jobq_loop_stop(w->loop, jobq_pg__mono_us(), 0);
        jobq_pg__poke(w, 'w');
    }
    jobq_pg__os_unlock(&group->lock);
    if (good) return true;
    for (i = 0; i < group->count; i++) {
        if (group->workers[i]->threaded) jobq_pg__os_join(group->workers[i]->thread);
    }
    jobq_pg__os_lock(&group->lock);
    while (group->threads > 0) jobq_pg__os_wait(&group->gone, &group->lock, JOBQ_NEVER);
    jobq_pg__os_unlock(&group->lock);
    return false;
}

static void jobq_pg__group_free(jobq_pg__group *group)
{
    size_t i;

    for (i = 0; i < group->count; i++) {
        if (i == 0) jobq_pg__os_signals_clear(group->workers[i]);
        jobq_pg__pool_add(group->workers[i], -group->workers[i]->pool_share);
        jobq_pg__worker_drop(group->workers[i]);
    }
    jobq_pg__os_mutex_end(&group->lock);
    jobq_pg__os_cond_end(&group->work);
    jobq_pg__os_cond_end(&group->gone);
    free(group->request);
    free(group->answer);
    free(group->workers);
    free(group);
}

static jobq_error jobq_pg__worker_desc_check(const jobq_pg_worker_desc *desc, bool hosted,
                                             jobq_pg_error *error)
{
    bool needs = desc->handler_count == 0 && !hosted; /* a host may only enqueue */

    if ((desc->handlers == NULL && desc->handler_count > 0) ||
        desc->handler_count > JOBQ_LOOP_KINDS || (needs && desc->receiver_count == 0)) {
        return jobq_pg__invalid(error, "handlers",
                                "must be 1 to JOBQ_LOOP_KINDS, or there must be receivers");
    }
    if (desc->receivers == NULL && desc->receiver_count > 0) {
        return jobq_pg__invalid(error, "receivers", "has a count, but its pointer is NULL");
    }
    if (desc->also == NULL && desc->also_count > 0) {
        return jobq_pg__invalid(error, "also", "has a count, but its pointer is NULL");
    }
    if ((uint64_t)desc->stats_us > INT64_MAX / 4)
        return jobq_pg__invalid(error, "stats_us", "must be 0 or more, and less than 70,000 years");
    if (jobq_pg__short(desc->stats_us, "stats_us", error)) return JOBQ_ERROR_INVALID;
    if (desc->stats != NULL)
        return jobq_pg__invalid(error, "stats",
                                "is of jobq_pg_work; for others see jobq_pg_worker_wait and "
                                "jobq_pg_worker_stats");
    if (desc->name != NULL && !jobq_utf8_valid(jobq_str_from(desc->name)))
        return jobq_pg__invalid(error, "name", "must be UTF-8");
    return jobq_pg__config_invalid(&desc->loop, error);
}

/* Whether the schema serves a worker, and this role may work at all: a worker without the right
 * would try for ever. */
static jobq_error jobq_pg__may_work(jobq_pg *pg, jobq_pg_error *error)
{
    char sql[300];
    PGconn *conn;
    PGresult *res;
    jobq_error code = jobq_pg_check(pg, NULL, error);

    if (code == JOBQ_OK) code = jobq_pg_acquire(pg, &conn, error);
    if (code != JOBQ_OK) return code;
    snprintf(sql, sizeof sql,
             "SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')), "
             "pg_catalog.pg_is_in_recovery() "
             "FROM pg_catalog.pg_proc p WHERE p.pronamespace = "
             "'%s'::pg_catalog.regnamespace AND p.proname = '_register'", pg->schema);
    res = PQexec(conn, sql);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        code = jobq_pg__result_error(error, conn, res);
    } else if (PQgetvalue(res, 0, 1)[0] == 't') {
        code = jobq_pg__fail(error, JOBQ_ERROR_CONNECTION, "workers write, and this server is a "
                             "standby: name the primary, or leave out target_session_attrs");
    } else if (PQgetvalue(res, 0, 0)[0] != 't') {
        code = jobq_pg__fail(error, jobq_pg_classify("42501"),
                             "the role %s may not work here: the schema's owner runs "
                             "select %s.grant_work('%s')", PQuser(conn), pg->schema, PQuser(conn));
        if (error != NULL) jobq_pg__copy(error->sqlstate, sizeof error->sqlstate, "42501");
    }
    PQclear(res);
    jobq_pg__give_back(pg, conn, JOBQ_PG__BY_US);
    return code;
}

/* Makes a group without starting threads; *worker is its first worker. */
static jobq_error jobq_pg__group_make(jobq_pg *pg, const jobq_pg_worker_desc *desc, bool hosted,
                                     jobq_pg_worker **worker, jobq_pg_error *error)
{
    jobq_error code = jobq_pg__worker_desc_check(desc, hosted, error);
    bool good = true, waits;
    jobq_pg__group *group;
    size_t down = 0, i;

    *worker = NULL;
    if (code != JOBQ_OK) return code;
    group = (jobq_pg__group *)jobq_pg__room(1, sizeof *group, &good);
    if (group == NULL) return jobq_pg__no_memory(error);
    jobq_pg__os_mutex_init(&group->lock);
    jobq_pg__os_cond_init(&group->work);
    jobq_pg__os_cond_init(&group->gone);
    group->request = (jobq_request *)malloc(sizeof *group->request); /* filled as far as used */
    group->answer = (jobq_answer *)malloc(sizeof *group->answer);
    group->workers =
        (jobq_pg_worker **)jobq_pg__room(1 + desc->also_count, sizeof *group->workers, &good);
    good = good && group->request != NULL && group->answer != NULL;
    if (!good) code = jobq_pg__no_memory(error);
    for (i = 0; code == JOBQ_OK && i <= desc->also_count; i++) {
        jobq_pg *on = i == 0 ? pg : desc->also[i - 1];
        code = on != NULL ? jobq_pg__may_work(on, error)
                          : jobq_pg__invalid(error, "also", "has a handle that is NULL");
        waits = code == JOBQ_ERROR_CONNECTION && down++ < desc->also_count;
        if (waits) code = JOBQ_OK;
        if (code == JOBQ_OK) code = jobq_pg__worker_new(on, desc, group, error);
        if (code != JOBQ_OK) break;
        group->workers[i]->unproved = waits;
        jobq_pg__pool_add(group->workers[i], group->workers[i]->config.threads);
    }
    if (code == JOBQ_OK && !jobq_pg__os_signals_set(group->workers[0], desc->stop_signals)) {
        code = jobq_pg__invalid(error, "stop_signals",
                                "must be signals that exist, each shared by fewer than 64 workers");
    }
    if (code == JOBQ_OK) *worker = group->workers[0];
    else jobq_pg__group_free(group);
    return code;
}

JOBQ_API jobq_error jobq_pg_worker_start(jobq_pg *pg, const jobq_pg_worker_desc *desc,
                                         jobq_pg_worker **worker, jobq_pg_error *error)
{
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && desc != NULL && worker != NULL);
    code = jobq_pg__group_make(pg, desc, false, worker, error);
    if (code != JOBQ_OK || jobq_pg__group_start((*worker)->group)) return code;
    jobq_pg__group_free((*worker)->group);
    *worker = NULL;
    return jobq_pg__fail(error, JOBQ_ERROR_MEMORY,
                         "threads could not be started: ask for fewer, or raise the limit");
}

JOBQ_API jobq_error jobq_pg_worker_open(jobq_pg *pg, const jobq_pg_worker_desc *desc,
                                        jobq_pg_worker **worker, jobq_pg_error *error)
{
    jobq_pg_worker_desc d;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && desc != NULL && worker != NULL);
    d = *desc;
    d.loop.threads = 1;
    *worker = NULL;
    if (d.also_count > 0) {
        return jobq_pg__invalid(error, "also",
                                "not allowed in a host, which opens a worker for each handle and "
                                "steps them in turn");
    }
    code = jobq_pg__group_make(pg, &d, true, worker, error);
    if (code != JOBQ_OK) return code;
    (*worker)->hosted = true;
    (*worker)->run.worker = *worker;
    (*worker)->run.data = &(*worker)->data;
    (*worker)->group->runs = &(*worker)->run;
    (*worker)->group->threads = 1;
    return JOBQ_OK;
}

JOBQ_API void jobq_pg_worker_stop(jobq_pg_worker *worker)
{
    const jobq_pg__group *group = worker->group;
    size_t i;

    if (jobq_pg__forked(worker->pg)) return; /* the pipe belongs to the parent */
    for (i = 0; i < group->count; i++) jobq_pg__poke(group->workers[i], 's');
}

/* Steps a hosted worker and waits for what comes next, at most wait_us. False: it has ended. */
static bool jobq_pg__host_turn(jobq_pg_worker *w, int64_t wait_us)
{
    int64_t now, until;

    if (!jobq_pg_worker_step(w, 0)) return false;
    now = jobq_pg__mono_us();
    until = jobq_pg__until(w);
    if (until > now && until - now > wait_us) until = now + wait_us;
    jobq_pg__os_lock(&w->group->lock);
    jobq_pg__await(w, until);
    jobq_pg__os_unlock(&w->group->lock);
    return true;
}

JOBQ_API jobq_error jobq_pg_worker_wait(jobq_pg_worker *w, jobq_pg_stats *stats)
{
    bool failed;
    size_t i;

    JOBQ_ASSERT(w != NULL);
    if (jobq_pg__worker_forked(w)) return JOBQ_ERROR_INVALID;
    while (w->hosted && jobq_pg__host_turn(w, JOBQ_NEVER)) {}
    for (i = 0; i < w->group->count; i++) {
        jobq_pg_worker *worker = w->group->workers[i];
        if (worker->threaded) jobq_pg__os_join(worker->thread);
        jobq_pg__pool_add(worker, -worker->pool_share);
    }
    if (stats != NULL) *stats = jobq_pg_worker_stats(w, JOBQ_PG_ALL);
    jobq_pg__os_lock(&w->group->lock);
    failed = w->group->stuck > 0;
    for (i = 0; i < w->group->count; i++) failed = failed || w->group->workers[i]->gave_up;
    jobq_pg__os_unlock(&w->group->lock);
    return failed ? JOBQ_ERROR_TIMEOUT : JOBQ_OK;
}

JOBQ_API void jobq_pg_worker_free(jobq_pg_worker *w)
{
    int32_t stuck;
    size_t i;

    if (w == NULL) return;
    if (jobq_pg__forked(w->pg)) { /* no lock: a thread of the parent may have held it */
        jobq_pg__os_signals_forget(w->group->workers[0]);
        for (i = 0; i < w->group->count; i++) jobq_pg__worker_leave(w->group->workers[i]);
        return;
    }
    if (w->hosted) jobq_pg__host_ends(w);
    jobq_pg__os_lock(&w->group->lock);
    stuck = w->group->stuck;
    jobq_pg__os_unlock(&w->group->lock);
    if (stuck > 0) {
        jobq_pg__os_signals_clear(w);
        jobq_pg__log(w->pg, jobq_pg__event_of(JOBQ_LEVEL_ERROR, "handlers_stuck"),
                     "%d handlers never returned: end the process", (int)stuck);
        return; /* their threads still use the worker */
    }
    jobq_pg__group_free(w->group);
}

static jobq_pg_stats jobq_pg__stats_of(jobq_pg_worker *w, size_t index)
{
    jobq_pg_stats stats;
    jobq_loop_status loop;

    JOBQ_ASSERT(w != NULL);
    memset(&stats, 0, sizeof stats);
    if (jobq_pg__forked(w->pg) || index >= w->group->count) return stats;
    jobq_pg__os_lock(&w->group->lock);
    w = w->group->workers[index];
    loop = jobq_loop_status_of(w->loop);
    stats.jobs = loop.jobs;
    stats.messages = loop.messages;
    stats.handler_us = w->handler_us;
    jobq_pg__os_unlock(&w->group->lock);
    return stats;
}

/* All fields of jobq_pg_stats are int64_t, so they are added as an array. */
JOBQ_API jobq_pg_stats jobq_pg_worker_stats(jobq_pg_worker *w, int schema)
{
    jobq_pg_stats sum;
    size_t i, k;

    JOBQ_ASSERT(w != NULL);
    if (schema >= 0) return jobq_pg__stats_of(w, (size_t)schema);
    memset(&sum, 0, sizeof sum);
    for (i = 0; i < w->group->count; i++) {
        jobq_pg_stats one = jobq_pg__stats_of(w, i);
        for (k = 0; k < sizeof sum / sizeof(int64_t); k++)
            ((int64_t *)&sum)[k] += ((int64_t *)&one)[k];
    }
    return sum;
}

/* ---- >>metrics: of one process --------------------------------------------------------------- */

/* A line's worth of counts: those of a kind. */
typedef struct jobq_pg__counted {
    const char *schema, *queue, *kind; /* schema: NULL: there is only one */
    jobq_tally tally;
} jobq_pg__counted;

/* A text that may not fit. */
typedef struct jobq_pg__page {
    char *out;
    size_t size, len;
    jobq_pg__counted *rows;
    size_t count;
} jobq_pg__page;

#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 2, 3)))
#endif
static void jobq_pg__metrics_say(jobq_pg__page *m, const char *format, ...)
{
    size_t room = m->len < m->size ? m->size - m->len : 0;
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(room > 0 ? m->out + m->len : NULL, room, format, args);
    va_end(args);
    if (len > 0) m->len += (size_t)len;
}

static void jobq_pg__metrics_label(jobq_pg__page *m, const char *name, const char *value)
{
    jobq_pg__metrics_say(m, "%s=\"", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n') jobq_pg__metrics_say(m, "\\n");
        else jobq_pg__metrics_say(m, *value == '"' || *value == '\\' ? "\\%c" : "%c", *value);
    }
    jobq_pg__metrics_say(m, "\"");
}

/* Seconds, without zeros at the end. A locale may have another decimal point, so no %g. */
static void jobq_pg__metrics_seconds(jobq_pg__page *m, int64_t us)
{
    int rest = (int)(us % 1000000), digits = 6;

    while (digits > 0 && rest % 10 == 0) {
        rest /= 10;
        digits--;
    }
    jobq_pg__metrics_say(m, "%lld", (long long)(us / 1000000));
    if (digits > 0) jobq_pg__metrics_say(m, ".%0*d", digits, rest);
}

/* The head of a metric, as in jobq.metric. */
static void jobq_pg__metrics_head(jobq_pg__page *m, const char *name, const char *type,
                                  const char *unit, const char *help)
{
    jobq_pg__metrics_say(m, "# TYPE %s %s\n", name, type);
    if (unit != NULL) jobq_pg__metrics_say(m, "# UNIT %s %s\n", name, unit);
    jobq_pg__metrics_say(m, "# HELP %s %s\n", name, help);
}

/* The name of a line, and its labels up to those that only this metric has. operation: by the
 * conventions of OpenTelemetry, or NULL. */
static void jobq_pg__metrics_begin(jobq_pg__page *m, const char *name, const char *suffix,
                                   const jobq_pg__counted *c, const char *operation)
{
    jobq_pg__metrics_say(m, "%s%s{", name, suffix);
    if (operation != NULL) jobq_pg__metrics_say(m, "messaging_system=\"jobq\",");
    jobq_pg__metrics_label(m, operation != NULL ? "messaging_destination_name" : "queue", c->queue);
    if (operation != NULL)
        jobq_pg__metrics_say(m, ",messaging_operation_name=\"%s\"", operation);
    if (c->kind != NULL) {
        jobq_pg__metrics_say(m, ",");
        jobq_pg__metrics_label(m, "kind", c->kind);
    }
    if (c->schema == NULL) return;
    jobq_pg__metrics_say(m, ",");
    jobq_pg__metrics_label(m, "schema", c->schema);
}

static int64_t jobq_pg__counted_started(const jobq_pg__counted *c)
{
    int64_t started = 0;
    int i;

    for (i = 0; i < JOBQ_TIMES_BUCKETS; i++) started += c->tally.counts[JOBQ_TALLY_WAITING + i];
    return started;
}

static bool jobq_pg__counted_jobs(const jobq_pg__counted *c)
{
    int64_t ended = 0;
    int i;

    for (i = JOBQ_TALLY_SUCCEEDED; i <= JOBQ_TALLY_RELEASED; i++) ended += c->tally.counts[i];
    return ended > 0 || jobq_pg__counted_started(c) > 0;
}

static bool jobq_pg__counted_messages(const jobq_pg__counted *c)
{
    return c->tally.counts[JOBQ_TALLY_DELIVERED] + c->tally.counts[JOBQ_TALLY_DEAD] > 0;
}

static void jobq_pg__metrics_times(jobq_pg__page *m, const char *name, const char *help,
                                   jobq_tally_place place, const char *operation)
{
    const jobq_pg__counted *c;

    jobq_pg__metrics_head(m, name, "histogram", "seconds", help);
    for (c = m->rows; c < m->rows + m->count; c++) {
        const int64_t *counts = &c->tally.counts[place];
        int64_t count = 0;
        int32_t i;
        if (!jobq_pg__counted_jobs(c)) continue;
        for (i = 0; i < JOBQ_TIMES_BUCKETS; i++) {
            int64_t bound = jobq_times_bound(i);
            count += counts[i];
            jobq_pg__metrics_begin(m, name, "_bucket", c, operation);
            jobq_pg__metrics_say(m, ",le=\"");
            if (bound == JOBQ_NEVER) jobq_pg__metrics_say(m, "+Inf");
            else jobq_pg__metrics_seconds(m, bound);
            jobq_pg__metrics_say(m, "\"} %lld\n", (long long)count);
        }
        jobq_pg__metrics_begin(m, name, "_count", c, operation);
        jobq_pg__metrics_say(m, "} %lld\n", (long long)count);
        jobq_pg__metrics_begin(m, name, "_sum", c, operation);
        jobq_pg__metrics_say(m, "} ");
        jobq_pg__metrics_seconds(m, counts[JOBQ_TIMES_BUCKETS]);
        jobq_pg__metrics_say(m, "\n");
    }
}

/* Counts of jobs or messages, from place to last, with their names as a label. */
static void jobq_pg__metrics_outcomes(jobq_pg__page *m, const char *name,
                                      const jobq_pg__counted *c, int place, int last)
{
    static const char *const names[] = {
#define JOBQ__X(id, text) text,
        JOBQ_TALLIES(JOBQ__X)
#undef JOBQ__X
    };

    for (; place <= last; place++) {
        jobq_pg__metrics_begin(m, name, "_total", c, NULL);
        jobq_pg__metrics_say(m, ",outcome=\"%s\"} %lld\n", names[place],
                             (long long)c->tally.counts[place]);
    }
}

static void jobq_pg__metrics_jobs(jobq_pg__page *m)
{
    static const char jobs[] = "jobq_jobs", lost[] = "jobq_leases_lost";
    const jobq_pg__counted *c, *end = m->rows + m->count;

    jobq_pg__metrics_head(m, jobs, "counter", NULL, "What became of jobs, each time one ran.");
    for (c = m->rows; c < end; c++) {
        if (!jobq_pg__counted_jobs(c)) continue;
        jobq_pg__metrics_outcomes(m, jobs, c, JOBQ_TALLY_SUCCEEDED, JOBQ_TALLY_RELEASED);
    }
    jobq_pg__metrics_head(m, lost, "counter", NULL,
                          "Results that were refused, because others had the job.");
    for (c = m->rows; c < end; c++) {
        if (!jobq_pg__counted_jobs(c)) continue;
        jobq_pg__metrics_begin(m, lost, "_total", c, NULL);
        jobq_pg__metrics_say(m, "} %lld\n", (long long)c->tally.counts[JOBQ_TALLY_LOST]);
    }
}

static void jobq_pg__metrics_messages(jobq_pg__page *m)
{
    static const char messages[] = "jobq_messages";
    static const char consumed[] = "messaging_client_consumed_messages";
    const jobq_pg__counted *c, *end = m->rows + m->count;
    jobq_pg__counted queue;

    jobq_pg__metrics_head(m, messages, "counter", NULL, "What became of messages of the outbox.");
    for (c = m->rows; c < end; c++) {
        queue = *c;
        queue.kind = NULL;
        if (!jobq_pg__counted_messages(c)) continue;
        jobq_pg__metrics_outcomes(m, messages, &queue, JOBQ_TALLY_ACKNOWLEDGED,
                                  JOBQ_TALLY_REPEATED);
    }
    jobq_pg__metrics_head(m, consumed, "counter", NULL,
                          "Jobs that were started and messages that were delivered.");
    for (c = m->rows; c < end; c++) {
        queue = *c;
        queue.kind = "";
        if (jobq_pg__counted_jobs(c)) {
            jobq_pg__metrics_begin(m, consumed, "_total", c, "claim");
            jobq_pg__metrics_say(m, "} %lld\n", (long long)jobq_pg__counted_started(c));
        }
        if (!jobq_pg__counted_messages(c)) continue;
        jobq_pg__metrics_begin(m, consumed, "_total", &queue, "read");
        jobq_pg__metrics_say(m, "} %lld\n", (long long)c->tally.counts[JOBQ_TALLY_DELIVERED]);
    }
}

/* Adds a tally to the rows: to that of its names, if there is one. Queues and kinds of others have
 * no names here. The lock is held. */
static void jobq_pg__metrics_add(jobq_pg__page *m, const jobq_pg_worker *w, const char *schema,
                                 const jobq_tally *tally)
{
    const char *kind = "other";
    size_t queue = 0, i;

    while (queue < w->queue_count && w->queue_ids[queue] != tally->queue) queue++;
    if (queue == w->queue_count) return;
    for (i = 0; i < w->handler_count; i++)
        if (w->kind_ids[i] == tally->kind) kind = w->kinds[i];
    for (i = 0; i < m->count; i++) {
        jobq_pg__counted *c = &m->rows[i];
        int k;
        if (c->queue != w->queues[queue] || strcmp(c->kind, kind) != 0) continue;
        for (k = 0; k < JOBQ_TALLY_COUNT; k++) c->tally.counts[k] += tally->counts[k];
        return;
    }
    m->rows[i].schema = schema;
    m->rows[i].queue = w->queues[queue];
    m->rows[i].kind = kind;
    m->rows[i].tally = *tally;
    m->count++;
}

/* Copies what the loops have counted, so that the lock is held only for a moment. */
static void jobq_pg__metrics_copy(jobq_pg__page *m, jobq_pg__group *group, int32_t *busy,
                                  int32_t *idle)
{
    jobq_tally tally;
    int32_t k;
    size_t i;

    *busy = 0;
    jobq_pg__os_lock(&group->lock);
    for (i = 0; i < group->count; i++) {
        const jobq_pg_worker *w = group->workers[i];
        const char *schema = group->count > 1 ? jobq_pg_schema(w->pg) : NULL;
        for (k = 0; jobq_loop_tally(w->loop, k, &tally); k++)
            jobq_pg__metrics_add(m, w, schema, &tally);
        *busy += jobq_loop_status_of(w->loop).running;
    }
    *idle = *busy < group->threads ? group->threads - *busy : 0;
    jobq_pg__os_unlock(&group->lock);
}

JOBQ_API size_t jobq_pg_metrics(jobq_pg_worker *w, char *buffer, size_t size)
{
    jobq_pg__page m;
    int32_t busy, idle;

    JOBQ_ASSERT(w != NULL && (buffer != NULL || size == 0));
    memset(&m, 0, sizeof m);
    if (size > 0) buffer[0] = '\0';
    if (jobq_pg__forked(w->pg)) return 0;
    m.rows = (jobq_pg__counted *)malloc(w->group->count * JOBQ_LOOP_TALLIES * sizeof *m.rows);
    if (m.rows == NULL) return 0;
    m.out = buffer;
    m.size = size;
    jobq_pg__metrics_copy(&m, w->group, &busy, &idle);
    jobq_pg__metrics_jobs(&m);
    jobq_pg__metrics_messages(&m);
    jobq_pg__metrics_times(&m, "jobq_waiting_seconds", "Time from when a job was due to its start.",
                           JOBQ_TALLY_WAITING, NULL);
    jobq_pg__metrics_times(&m, "messaging_process_duration_seconds", "Time that handlers ran.",
                           JOBQ_TALLY_RUNNING, "process");
    jobq_pg__metrics_head(&m, "jobq_worker_threads", "gauge", NULL, "Threads of the worker.");
    jobq_pg__metrics_say(&m, "jobq_worker_threads{state=\"busy\"} %d\n", (int)busy);
    jobq_pg__metrics_say(&m, "jobq_worker_threads{state=\"idle\"} %d\n# EOF\n", (int)idle);
    free(m.rows);
    return m.len;
}

/* Fills all but the pool's counts. The lock is held. */
static void jobq_pg__health_fill(jobq_pg_health *h, const jobq_pg_worker *w, int64_t now)
{
    jobq_loop_status l = jobq_loop_status_of(w->loop);
    bool beaten = l.worker != 0 && l.lease_mono_us != INT64_MIN;

    memset(h, 0, sizeof *h);
    h->worker = l.worker;
    h->lease_us = beaten && l.lease_mono_us > now ? l.lease_mono_us - now : 0;
    h->silent_us = beaten ? now - (l.lease_mono_us - w->config.lease_us) : -1;
    h->connected = l.connected && w->conn != NULL;
    h->hears = h->connected && l.hears;
    h->stopping = l.phase != JOBQ_PHASE_WORKING;
    h->running = l.running;
    h->threads = w->group->threads;
    h->abandoned = w->group->stuck;
    if (w->trouble[0] == '\0' || (h->silent_us >= 0 && !w->gave_up &&
                                  now - w->trouble_mono_us > h->silent_us)) {
        h->error_us = -1;
        return;
    }
    h->error_us = now - w->trouble_mono_us;
    memcpy(h->error, w->trouble, sizeof h->error);
}

static jobq_error jobq_pg__health_of(jobq_pg_worker *w, size_t index, jobq_pg_health *health)
{
    jobq_pg_health h;
    bool gave_up, ended;

    JOBQ_ASSERT(w != NULL);
    memset(&h, 0, sizeof h);
    if (jobq_pg__forked(w->pg) || index >= w->group->count) {
        if (health != NULL) *health = h;
        return JOBQ_ERROR_INVALID;
    }
    jobq_pg__os_lock(&w->group->lock);
    w = w->group->workers[index];
    jobq_pg__health_fill(&h, w, jobq_pg__mono_us());
    gave_up = w->gave_up;
    ended = w->ended;
    jobq_pg__os_unlock(&w->group->lock);
    jobq_pg__os_lock(&w->pg->lock);
    h.pool_open = w->pg->open_count;
    h.pool_idle = w->pg->idle_count;
    jobq_pg__os_unlock(&w->pg->lock);
    if (health != NULL) *health = h;
    if (gave_up) return JOBQ_ERROR_TIMEOUT;
    if (ended) return JOBQ_ERROR_DEAD;
    return h.lease_us > 0 ? JOBQ_OK : JOBQ_ERROR_CONNECTION;
}

/* Combines two workers: the worse state of both, and the sums of their counts. */
static void jobq_pg__health_add(jobq_pg_health *sum, const jobq_pg_health *one)
{
    bool never = sum->silent_us < 0 || one->silent_us < 0;

    if (one->lease_us < sum->lease_us) sum->lease_us = one->lease_us;
    if (one->silent_us > sum->silent_us) sum->silent_us = one->silent_us;
    if (never) sum->silent_us = -1;
    sum->connected = sum->connected && one->connected;
    sum->hears = sum->hears && one->hears;
    sum->stopping = sum->stopping || one->stopping;
    sum->running += one->running;
    sum->pool_open += one->pool_open;
    sum->pool_idle += one->pool_idle;
    if (one->error_us < 0 || (sum->error_us >= 0 && sum->error_us <= one->error_us)) return;
    sum->error_us = one->error_us;
    memcpy(sum->error, one->error, sizeof sum->error);
}

/* A worker that has ended no longer counts as long as others work. */
JOBQ_API jobq_error jobq_pg_worker_health(jobq_pg_worker *w, int schema, jobq_pg_health *health)
{
    jobq_pg_health sum, one;
    jobq_error worst = JOBQ_ERROR_DEAD, code;
    size_t i;

    JOBQ_ASSERT(w != NULL);
    if (schema >= 0) return jobq_pg__health_of(w, (size_t)schema, health);
    memset(&sum, 0, sizeof sum);
    for (i = 0; i < w->group->count; i++) {
        code = jobq_pg__health_of(w, i, &one);
        if (i == 0 || (worst == JOBQ_ERROR_DEAD && code != JOBQ_ERROR_DEAD)) sum = one;
        else if (code != JOBQ_ERROR_DEAD || worst == JOBQ_ERROR_DEAD) {
            jobq_pg__health_add(&sum, &one);
        }
        if (code == JOBQ_ERROR_TIMEOUT ||
            (code != JOBQ_ERROR_DEAD && (worst == JOBQ_ERROR_DEAD || worst == JOBQ_OK)))
            worst = code;
    }
    if (health != NULL) *health = sum;
    return worst;
}

/* Whether a worker of the group has no lease, but may get one. The lock is held. */
static bool jobq_pg__unready(const jobq_pg__group *group)
{
    jobq_pg_health h;
    size_t i;

    for (i = 0; i < group->count; i++) {
        const jobq_pg_worker *w = group->workers[i];
        jobq_pg__health_fill(&h, w, jobq_pg__mono_us());
        if (!w->ended && !w->gave_up && h.lease_us == 0) return true;
    }
    return false;
}

JOBQ_API jobq_error jobq_pg_worker_ready(jobq_pg_worker *w, int64_t wait_us)
{
    int64_t until = jobq_pg__deadline(jobq_pg__mono_us(), wait_us), left;

    JOBQ_ASSERT(w != NULL);
    if (jobq_pg__forked(w->pg)) return JOBQ_ERROR_INVALID;
    jobq_pg__os_lock(&w->group->lock);
    while ((left = until - jobq_pg__mono_us()) > 0 && jobq_pg__unready(w->group)) {
        if (!w->hosted) jobq_pg__os_wait(&w->group->gone, &w->group->lock, until);
        else {
            jobq_pg__os_unlock(&w->group->lock);
            jobq_pg__host_turn(w, left);
            jobq_pg__os_lock(&w->group->lock);
        }
    }
    jobq_pg__os_unlock(&w->group->lock);
    return jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL);
}

JOBQ_API jobq_error jobq_pg_work(jobq_pg *pg, const jobq_pg_worker_desc *desc, jobq_pg_error *error)
{
    jobq_pg_worker_desc d;
    jobq_pg_worker *worker;
    jobq_error code;

    JOBQ_ASSERT(pg != NULL && desc != NULL);
    d = *desc;
    d.stats = NULL;
    code = jobq_pg_worker_start(pg, &d, &worker, error);
    if (code != JOBQ_OK) return code;
    code = jobq_pg_worker_wait(worker, desc->stats);
    jobq_pg_worker_free(worker);
    if (code == JOBQ_OK) return JOBQ_OK;
    return jobq_pg__fail(error, code, "handlers never returned: end the process");
}

/* ---- >>rows ---------------------------------------------------------------------------------- */

#define JOBQ_PG__COLUMNS_MAX 64
#define JOBQ_PG__PLANS 64 /* hash chains of a table's plans */

struct jobq_pg_table {
    jobq_pg *pg;
    const jobq_pg_table_desc *desc;
    const char *entity;
    bool unprepared; /* its statements are not prepared */
    bool spread; /* it has partitions or children, whose ctids repeat */
    int column_count;
    bool jsonb[JOBQ_PG__COLUMNS_MAX];    /* column i is jsonb */
    bool varchars[JOBQ_PG__COLUMNS_MAX]; /* it is varchar[], to which text[] needs a cast */
    int at[JOBQ_PG__COLUMNS_MAX]; /* its place in a result; -1: none, the field stays zero */
    char *name;   /* quoted, with its schema */
    char *list;   /* the columns as they are read */
    char *key;    /* names of the key's columns, with blanks between */
    struct jobq_pg__law *laws; /* constraints and unique indexes, for error texts */
    int law_count;
    jobq_pg__os_mutex lock; /* guards plans, which stay until the table is closed */
    struct jobq_pg__plan *plans[JOBQ_PG__PLANS];
};

JOBQ_PG__ONCE static jobq_error jobq_pg__unfit(const jobq_pg_table *t, jobq_pg_error *error,
                                            const char *field, const char *why)
{
    jobq_pg__fail(error, JOBQ_ERROR_INVALID, "Validation error: %s: %s: %s", t->entity, field, why);
    jobq_pg__about(error, t->entity, field, "");
    return JOBQ_ERROR_INVALID;
}

/* -- rows -- */

/* How many bytes the texts and arrays of a result's rows need. */
static size_t jobq_pg__rows_need(const jobq_pg_table *t, const PGresult *res, int count)
{
    size_t need = 0;
    int c, r;

    for (c = 0; c < t->column_count; c++) {
        jobq_pg_type type = t->desc->columns[c].type;
        if (jobq_pg__types[type].maybe != 0 || t->at[c] < 0) continue;
        for (r = 0; r < count; r++) {
            need += jobq_pg__heap_need(type, (size_t)PQgetlength(res, r, t->at[c]));
        }
    }
    return need;
}

/* Returns the column that does not fit its description, or -1. */
static int jobq_pg__row_get(const jobq_pg_table *t, const PGresult *res, int r, char *row,
                            jobq_pg__heap *heap)
{
    int i;

    for (i = 0; i < t->column_count; i++) {
        const jobq_pg_column *c = &t->desc->columns[i];
        int at = t->at[i], len = at < 0 ? 0 : PQgetlength(res, r, at);
        if (len == 0 && (at < 0 || PQgetisnull(res, r, at))) {
            if (at >= 0 && (c->flags & JOBQ_PG_NULLABLE) == 0) return i;
            continue;
        }
        if (!jobq_pg__get_value(c, t->jsonb[i], PQgetvalue(res, r, at), (size_t)len,
                                row + c->offset, heap))
            return i;
        if (jobq_pg__is_maybe(c))
            *(bool *)(row + c->offset + jobq_pg__types[c->type].size) = true;
    }
    return -1;
}

static void jobq_pg__facts_fill(const jobq_pg_table_desc *desc, jobq_pg_rows *rows);

/* Takes up to most rows from a result, which it clears. */
static jobq_error jobq_pg__rows_take(const jobq_pg_table *t, PGresult *res, int most,
                                     jobq_pg_rows *rows, jobq_pg_error *error)
{
    int count = PQntuples(res) < most ? PQntuples(res) : most, r, wrong = -1;
    size_t size = (size_t)count * t->desc->row_size, need;
    jobq_pg__heap heap;
    char *block;

    rows->more = PQntuples(res) > most;
    if (count == 0) {
        PQclear(res);
        return JOBQ_OK;
    }
    heap.end = NULL;
    need = size + 16 + jobq_pg__rows_need(t, res, count);
    block = (char *)malloc(need);
    if (block != NULL) {
        memset(block, 0, size);
        heap.at = block + size;
        heap.end = block + need;
    }
    for (r = 0; r < count && wrong < 0 && block != NULL; r++) {
        wrong = jobq_pg__row_get(t, res, r, block + (size_t)r * t->desc->row_size, &heap);
    }
    PQclear(res);
    rows->rows = block;
    rows->count = (size_t)count;
    if (block == NULL || wrong >= 0) jobq_pg_rows_clear(rows);
    if (block == NULL) return jobq_pg__no_memory(error);
    if (wrong < 0) jobq_pg__facts_fill(t->desc, rows);
    return wrong < 0 ? JOBQ_OK
                     : jobq_pg__unfit(t, error, t->desc->columns[wrong].name,
                                      "the database sent a value that does not fit its column");
}

JOBQ_API void jobq_pg_rows_clear(jobq_pg_rows *rows)
{
    if (rows == NULL) return;
    free(rows->rows);
    memset(rows, 0, sizeof *rows);
}

/* -- the library's own tables -- */

static const char *const jobq_pg__states[] = {"none",
#define JOBQ__X(id, letter, name) name,
                                              JOBQ_STATES(JOBQ__X)
#undef JOBQ__X
                                                  NULL};

#define JOBQ_PG__OWN(field, column, type, flags) \
    JOBQ_PG_COLUMN_AS(JOBQ_PG__ROW, field, column, type, JOBQ_PG_READ_ONLY | (flags))

/* The columns that a role may be forbidden to read come first, so a description can skip them. */
#define JOBQ_PG__HIDDEN 3
#define JOBQ_PG__HIDDEN_OF_JOBS (JOBQ_PG__HIDDEN + 3)
#define JOBQ_PG__OWN_HIDDEN                                                                        \
    JOBQ_PG__OWN(payload, "payload", JSON, JOBQ_PG_NULLABLE),                                      \
    JOBQ_PG__OWN(bytes, "bytes", BYTES, JOBQ_PG_NULLABLE),                                         \
    JOBQ_PG__OWN(headers, "headers", JSON, JOBQ_PG_NULLABLE)

#define JOBQ_PG__ROW jobq_pg_job_row
static const jobq_pg_column jobq_pg__job_columns[] = {
    JOBQ_PG__OWN_HIDDEN,
    JOBQ_PG__OWN(result, "result", JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(result_bytes, "result_bytes", BYTES, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(log, "log", JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(facts.id, "id", INT64, JOBQ_PG_KEY),
    JOBQ_PG__OWN(queue, "queue", TEXT, 0),
    JOBQ_PG__OWN(kind, "kind", TEXT, 0),
    {"state", JOBQ_PG_ENUM, offsetof(jobq_pg_job_row, facts.state), sizeof(jobq_state),
     JOBQ_PG_READ_ONLY, jobq_pg__states},
    JOBQ_PG__OWN(facts.priority, "priority", INT16, 0),
    JOBQ_PG__OWN(facts.stage, "stage", INT16, 0),
    JOBQ_PG__OWN(facts.stages, "stages", INT16, 0),
    JOBQ_PG__OWN(facts.attempt, "attempt", INT32, 0),
    JOBQ_PG__OWN(facts.max_attempts, "own_max_attempts", INT32, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(facts.timeout_us, "timeout_us", INT64, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(facts.crash, "crash", INT32, 0),
    JOBQ_PG__OWN(facts.suspect, "suspect", BOOL, 0),
    JOBQ_PG__OWN(facts.alone, "alone", BOOL, 0),
    JOBQ_PG__OWN(facts.enqueued_at_us, "enqueued_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(facts.run_at_us, "run_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(claimed_at_us, "claimed_at", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(finished_at_us, "finished_at", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(worker, "worker", INT64, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(facts.claim, "claim", INT64, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(cancel_requested_at_us, "cancel_requested_at", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(key, "key", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(errors, "errors", JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(facts.queue, "queue_id", INT32, 0),
    JOBQ_PG__OWN(facts.kind, "kind_id", INT32, 0),
    JOBQ_PG__OWN(line, "line", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMNS_END};
#undef JOBQ_PG__ROW

/* Of the rows of jobs, and of no others. */
static void jobq_pg__facts_fill(const jobq_pg_table_desc *desc, jobq_pg_rows *rows)
{
    jobq_pg_job_row *row = (jobq_pg_job_row *)rows->rows;
    size_t i;

    if (desc->columns != jobq_pg__job_columns &&
        desc->columns != jobq_pg__job_columns + JOBQ_PG__HIDDEN_OF_JOBS)
        return;
    for (i = 0; i < rows->count; i++) {
        bool runs = row[i].facts.state == JOBQ_STATE_RUNNING;
        row[i].facts.cancel_requested = row[i].cancel_requested_at_us != 0;
        row[i].facts.worker = runs ? row[i].worker : 0;
        if (!runs) row[i].facts.claim = 0;
    }
}

#define JOBQ_PG__ROW jobq_pg_failure_row
static const jobq_pg_column jobq_pg__failure_columns[] = {
    JOBQ_PG__OWN_HIDDEN,
    JOBQ_PG__OWN(id, "id", INT64, JOBQ_PG_KEY),
    JOBQ_PG__OWN(queue, "queue", TEXT, 0),
    JOBQ_PG__OWN(kind, "kind", TEXT, 0),
    JOBQ_PG__OWN(failed_at_us, "failed_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(attempt, "attempt", INT32, 0),
    JOBQ_PG__OWN(crash, "crash", INT32, 0),
    JOBQ_PG__OWN(stage, "stage", INT16, 0),
    JOBQ_PG__OWN(error, "error", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(errors, "errors", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(enqueued_at_us, "enqueued_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(key, "key", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(line, "line", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMNS_END};
#undef JOBQ_PG__ROW

#define JOBQ_PG__ROW jobq_pg_queue_row
static const jobq_pg_column jobq_pg__queue_columns[] = {
    JOBQ_PG__OWN(queue, "queue", TEXT, JOBQ_PG_KEY),
    JOBQ_PG__OWN(paused, "paused", BOOL, 0),
    JOBQ_PG__OWN(ready, "ready", INT64, 0),
    JOBQ_PG__OWN(running, "running", INT64, 0),
    JOBQ_PG__OWN(scheduled, "scheduled", INT64, 0),
    JOBQ_PG__OWN(parked, "parked", INT64, 0),
    JOBQ_PG__OWN(suspects, "suspects", INT64, 0),
    JOBQ_PG__OWN(failed, "failed", INT64, 0),
    JOBQ_PG__OWN(failed_1h, "failed_1h", INT64, 0),
    JOBQ_PG__OWN(late_us, "late", DURATION, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(done_per_s, "done_per_s", DOUBLE, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(workers, "workers", INT64, 0),
    JOBQ_PG__OWN(paused_kinds, "paused_kinds", TEXTS, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(exact, "exact", BOOL, 0),
    JOBQ_PG_COLUMNS_END};
#undef JOBQ_PG__ROW

#define JOBQ_PG__ROW jobq_pg_worker_row
static const jobq_pg_column jobq_pg__worker_columns[] = {
    JOBQ_PG__OWN(id, "id", INT64, JOBQ_PG_KEY),
    JOBQ_PG__OWN(name, "name", TEXT, 0),
    JOBQ_PG__OWN(host, "host", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(pid, "pid", INT32, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(alive, "alive", BOOL, 0),
    JOBQ_PG__OWN(asleep, "asleep", BOOL, 0),
    JOBQ_PG__OWN(running, "running", INT64, 0),
    JOBQ_PG__OWN(longest_us, "longest", DURATION, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(jobs, "jobs", INT64S, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(beat, "beat", INT64, 0),
    JOBQ_PG__OWN(beat_at_us, "beat_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(expires_at_us, "expires_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(registered_at_us, "registered_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(dead_at_us, "dead_at", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(queues, "queues", TEXTS, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(kinds, "kinds", TEXTS, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMNS_END};
#undef JOBQ_PG__ROW

#ifndef JOBQ_PG_NO_OUTBOX
#define JOBQ_PG__ROW jobq_pg_partition_row
static const jobq_pg_column jobq_pg__partition_columns[] = {
    JOBQ_PG__OWN(partition_id, "id", INT64, JOBQ_PG_KEY),
    JOBQ_PG__OWN(queue, "queue", TEXT, 0),
    JOBQ_PG__OWN(queue_id, "queue_id", INT32, 0),
    JOBQ_PG__OWN(partition, "partition", INT32, 0),
    JOBQ_PG__OWN(lag, "lag", INT64, 0),
    JOBQ_PG__OWN(exact, "exact", BOOL, 0),
    JOBQ_PG__OWN(acked, "acked", INT64, 0),
    JOBQ_PG__OWN(age_us, "age", DURATION, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(attempts, "attempts", INT32, 0),
    JOBQ_PG__OWN(effective, "batch", INT64, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(failures, "failures", INT64, 0),
    JOBQ_PG__OWN(worker, "worker", INT64, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(dead_letters, "dead_letters", INT64, 0),
    JOBQ_PG__OWN(lease_until_us, "lease_until", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(run_at_us, "run_at", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(error, "error", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMNS_END};
#undef JOBQ_PG__ROW

#define JOBQ_PG__ROW jobq_pg_dead_letter_row
static const jobq_pg_column jobq_pg__dead_letter_columns[] = {
    JOBQ_PG__OWN_HIDDEN,
    JOBQ_PG__OWN(id, "id", INT64, JOBQ_PG_KEY),
    JOBQ_PG__OWN(queue, "queue", TEXT, 0),
    JOBQ_PG__OWN(queue_id, "queue_id", INT32, 0),
    JOBQ_PG__OWN(partition_id, "partition_id", INT64, 0),
    JOBQ_PG__OWN(partition, "partition", INT32, 0),
    JOBQ_PG__OWN(seq, "seq", INT64, 0),
    JOBQ_PG__OWN(status, "status", TEXT, 0),
    JOBQ_PG__OWN(attempts, "attempts", INT32, 0),
    JOBQ_PG__OWN(error, "error", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(type, "type", TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG__OWN(created_at_us, "created_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(failed_at_us, "failed_at", TIMESTAMPTZ, 0),
    JOBQ_PG__OWN(completed_at_us, "completed_at", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG__OWN(deadline_us, "deadline", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG_COLUMNS_END};
#undef JOBQ_PG__ROW

#endif /* JOBQ_PG_NO_OUTBOX */

/* Without and with the hidden columns, if the view has any. */
#define JOBQ_PG__DESC(view, row, columns, hidden, entity, order) \
    {{"jobq." view, sizeof(row), (columns) + (hidden), entity, order, false}, \
     {"jobq." view, sizeof(row), columns, entity, order, false}}
static const jobq_pg_table_desc jobq_pg__views[JOBQ_PG_VIEW_COUNT][2] = {
    JOBQ_PG__DESC("jobs", jobq_pg_job_row, jobq_pg__job_columns, JOBQ_PG__HIDDEN_OF_JOBS, "job",
                  NULL),
    JOBQ_PG__DESC("past_jobs", jobq_pg_job_row, jobq_pg__job_columns, JOBQ_PG__HIDDEN_OF_JOBS,
                  "job", NULL),
    JOBQ_PG__DESC("failures", jobq_pg_failure_row, jobq_pg__failure_columns, JOBQ_PG__HIDDEN,
                  "failure", "-failed_at"),
    JOBQ_PG__DESC("queues", jobq_pg_queue_row, jobq_pg__queue_columns, 0, "queue", NULL),
    JOBQ_PG__DESC("workers", jobq_pg_worker_row, jobq_pg__worker_columns, 0, "worker", NULL),
#ifndef JOBQ_PG_NO_OUTBOX
    JOBQ_PG__DESC("outbox", jobq_pg_partition_row, jobq_pg__partition_columns, 0, "partition",
                  NULL),
    JOBQ_PG__DESC("dead_letters", jobq_pg_dead_letter_row, jobq_pg__dead_letter_columns,
                  JOBQ_PG__HIDDEN, "dead letter", "-failed_at"),
#endif
};

JOBQ_API const jobq_pg_table_desc *jobq_pg_view_desc(jobq_pg_view view, bool payloads)
{
    JOBQ_ASSERT((int)view >= 0 && view < JOBQ_PG_VIEW_COUNT);
    return &jobq_pg__views[view][payloads];
}

static const jobq_pg_table_desc *jobq_pg__desc_of(jobq_pg__statement st)
{
    if (st == JOBQ_PG__AWAIT || st == JOBQ_PG__PARENT_JOBS)
        return jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, true);
#ifndef JOBQ_PG_NO_OUTBOX
    if (st != JOBQ_PG__GET) return jobq_pg_view_desc(JOBQ_PG_VIEW_DEAD_LETTERS, true);
#endif
    return jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, false);
}

/* Reads the rows of one of the library's statements by their description. Columns that the
 * statement does not return stay zero. Takes the result. */
static jobq_error jobq_pg__rows_of(jobq_pg__statement st, PGresult *res, jobq_pg_rows *rows,
                                   jobq_pg_error *error)
{
    const jobq_pg_table_desc *desc = jobq_pg__desc_of(st);
    jobq_pg_table t;
    int i;

    memset(rows, 0, sizeof *rows);
    memset(&t, 0, sizeof t);
    t.desc = desc;
    t.entity = desc->entity;
    for (i = 0; desc->columns[i].name != NULL; i++) {
        t.at[i] = PQfnumber(res, desc->columns[i].name);
        t.jsonb[i] = desc->columns[i].type == JOBQ_PG_JSON;
    }
    t.column_count = i;
    return jobq_pg__rows_take(&t, res, INT32_MAX, rows, error);
}

static jobq_error jobq_pg__ask_rows(jobq_pg *pg, PGconn *conn, jobq_pg__statement st,
                                    const void *from, jobq_pg_rows *rows, jobq_pg_error *error)
{
    PGresult *res = jobq_pg__call(pg, conn, st, from, error);

    memset(rows, 0, sizeof *rows);
    return res == NULL ? error->code : jobq_pg__rows_of(st, res, rows, error);
}

#ifndef JOBQ_PG_NO_TABLES

/* ---- >>table: typed tables ------------------------------------------------------------------- */

/*
 * Here and in >>worktable, statements name operators, functions and types without a schema, unlike
 * those on the library's own tables: a column may be of any type, such as citext, whose operators
 * are where the session's search_path finds them.
 */

#define JOBQ_PG__ARGS_MAX 1024 /* parameters of one INSERT of create_many */
#define JOBQ_PG__PAGE 1000     /* rows of a list that names no limit */
#define JOBQ_PG__VARCHARS 1015 /* the oid of varchar[] */

/* A constraint or unique index, and its columns: "owner_type, name". */
typedef struct jobq_pg__law {
    char *name, *columns;
} jobq_pg__law;

/* An entry of a list of columns: "-created", "+timeout_at<=". */
typedef struct jobq_pg__term {
    unsigned char column;
    bool minus, plus;
    const char *op; /* "=", "<>", "<" ... */
} jobq_pg__term;

typedef struct jobq_pg__terms {
    int count;
    jobq_pg__term at[JOBQ_PG__COLUMNS_MAX];
} jobq_pg__terms;

typedef enum jobq_pg__op {
    JOBQ_PG__OP_LIST,
    JOBQ_PG__OP_COUNT,
    JOBQ_PG__OP_EXISTS, /* a row without columns, or none */
    JOBQ_PG__OP_CREATE,
    JOBQ_PG__OP_UPSERT,
    JOBQ_PG__OP_UPDATE,
    JOBQ_PG__OP_UPDATE_WHERE,
    JOBQ_PG__OP_DELETE
} jobq_pg__op;

/* What distinguishes one statement from another; equal shapes share a plan. */
typedef struct jobq_pg__shape {
    jobq_pg__op op;
    const char *fields, *where, *order; /* lists of columns */
    uint64_t nulls;  /* bit i: term i of where is NULL */
    size_t rows;     /* whose fields are parameters */
    bool search, after; /* it has these conditions */
} jobq_pg__shape;

/* A statement, whose text is made once. */
typedef struct jobq_pg__plan {
    struct jobq_pg__plan *next;
    jobq_pg__shape shape; /* with copies of its lists */
    jobq_pg__text text;
    jobq_pg__terms fields, where, order;
} jobq_pg__plan;

JOBQ_PG__ONCE static void jobq_pg__add_int(jobq_pg__params *p, int64_t value, size_t width)
{
    jobq_pg__begin(p);
    jobq_pg__raw_int(p, value, width);
    jobq_pg__end(p);
}

static const char *jobq_pg__wrong_texts(const jobq_pg_texts *texts)
{
    size_t i;

    for (i = 0; i < texts->count; i++) {
        if (texts->items[i].ptr != NULL && !jobq_utf8_valid(texts->items[i]))
            return "an element is not UTF-8, or has a NUL in it";
    }
    return NULL;
}

static const char *jobq_pg__wrong_enum(const jobq_pg_column *column, int value)
{
    int i;

    for (i = 0; column->names[i] != NULL; i++) {
        if (i == value) return NULL;
    }
    return "not a value of its enum";
}

/* Why the server would refuse this field's value, which is not NULL. NULL: it would not. */
static const char *jobq_pg__wrong(const jobq_pg_column *column, const char *field)
{
    const jobq_str *str = (const jobq_str *)(const void *)field;
    const char *why = NULL;
    int64_t value;

    if (column->type == JOBQ_PG_TEXT && !jobq_utf8_valid(*str))
        why = "not UTF-8, or has a NUL in it";
    if (column->type == JOBQ_PG_JSON && jobq_json_check(*str, NULL, &why) == JOBQ_OK) why = NULL;
    if (column->type == JOBQ_PG_NUMERIC && !jobq_pg__numeric_valid(*str)) why = "not a number";
    if (column->type == JOBQ_PG_TEXTS)
        why = jobq_pg__wrong_texts((const jobq_pg_texts *)(const void *)field);
    if (column->type == JOBQ_PG_ENUM)
        why = jobq_pg__wrong_enum(column, *(const int *)(const void *)field);
    if (column->type == JOBQ_PG_DATE) {
        value = jobq_pg__field_get(field, 4);
        if (value != INT32_MAX && value != INT32_MIN &&
            (value < JOBQ_PG__DATE_FIRST || value > JOBQ_PG__DATE_LAST))
            why = "out of range";
    }
    if (column->type == JOBQ_PG_TIMESTAMPTZ) {
        value = jobq_pg__field_get(field, 8);
        if (value != INT64_MIN && value < JOBQ_PG__INSTANT_FIRST) why = "out of range";
    }
    return why;
}

/* -- errors -- */

/* Takes field and value from the server's "Key (ref)=(core) already exists.", in any language. */
static void jobq_pg__detail(jobq_pg_error *error, const char *detail)
{
    const char *open = detail == NULL ? NULL : strchr(detail, '(');
    const char *middle = open == NULL ? NULL : strstr(open, ")=(");
    const char *end = middle == NULL ? NULL : strrchr(middle + 3, ')');
    jobq_str field, value;

    if (end == NULL) return;
    field.ptr = open + 1;
    field.len = (size_t)(middle - field.ptr);
    value.ptr = middle + 3;
    value.len = (size_t)(end - value.ptr);
    jobq_pg__copy_str(error->field, sizeof error->field, field);
    jobq_pg__copy_str(error->value, sizeof error->value, value);
}

/* Names the constraint's columns if the server's detail did not. */
static void jobq_pg__law_field(const jobq_pg_table *t, jobq_pg_error *error)
{
    int i;

    for (i = 0; i < t->law_count && error->field[0] == '\0'; i++) {
        if (strcmp(t->laws[i].name, error->constraint) == 0)
            jobq_pg__copy(error->field, sizeof error->field, t->laws[i].columns);
    }
}

static const char *jobq_pg__class_text(jobq_error code)
{
    if (code == JOBQ_ERROR_INVALID) return "Validation error";
    return code == JOBQ_ERROR_TIMEOUT ? "Operation timed out" : "Database error";
}

/* Whether it is one of the library's own: only these does jobq_pg_migrate make. */
static bool jobq_pg__is_view(const jobq_pg_table *t)
{
    int i;

    for (i = 0; i < 2 * JOBQ_PG_VIEW_COUNT; i++) {
        if (t->desc == &jobq_pg__views[i / 2][i % 2]) return true;
    }
    return false;
}

static jobq_error jobq_pg__table_error(const jobq_pg_table *t, jobq_pg_error *error,
                                       const PGconn *conn, const PGresult *res)
{
    jobq_pg_error said;
    jobq_error code = jobq_pg__result_error(&said, conn, res);

    if (strcmp(said.sqlstate, "23505") == 0) code = said.code = JOBQ_ERROR_EXISTS;
    if (code == JOBQ_ERROR_VERSION && !jobq_pg__is_view(t)) code = said.code = JOBQ_ERROR_DATABASE;
    if (error == NULL || code == JOBQ_ERROR_CONNECTION) {
        if (error != NULL) *error = said;
        return code;
    }
    if (said.sqlstate[0] == '2' && said.sqlstate[1] == '3')
        jobq_pg__detail(&said, PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL));
    jobq_pg__law_field(t, &said);
    if (code == JOBQ_ERROR_EXISTS) {
        snprintf(said.message, sizeof said.message, "Already exists: %s with %s=%s", t->entity,
                 said.field, said.value);
    } else {
        const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
        snprintf(said.message, sizeof said.message, "%s: %s", jobq_pg__class_text(code),
                 text == NULL ? "" : text);
    }
    jobq_pg__copy(said.entity, sizeof said.entity, t->entity);
    *error = said;
    return code;
}

/* -- lists of columns -- */

static int jobq_pg__column_find(const jobq_pg_table *t, const char *name, size_t len)
{
    int i;

    for (i = 0; i < t->column_count; i++) {
        const char *known = t->desc->columns[i].name;
        if (strncmp(known, name, len) == 0 && known[len] == '\0') return i;
    }
    return -1;
}

static const char *jobq_pg__op_find(const char *text, size_t len)
{
    static const char *const ops[] = {"=", "<", "<=", ">", ">=", "<>", "!=", "@>", NULL};
    jobq_str op = {text, len};
    int at = len == 0 ? 0 : jobq_pg__name_find(ops, op);

    return at < 0 ? NULL : ops[at];
}

static bool jobq_pg__word_next(const char **at, jobq_str *word)
{
    const char *p = *at;

    while (*p == ' ' || *p == ',') p++;
    word->ptr = p;
    while (*p != '\0' && *p != ' ' && *p != ',') p++;
    word->len = (size_t)(p - word->ptr);
    *at = p;
    return word->len > 0;
}

/* Reads a word: a sign, if any, the name, and an operator, if any. */
static jobq_error jobq_pg__term_of(const jobq_pg_table *t, jobq_str word, jobq_pg__term *term,
                                   jobq_pg_error *error)
{
    char name[64];
    size_t sign = word.ptr[0] == '-' || word.ptr[0] == '+', len;
    int column;

    for (len = 0; sign + len < word.len && strchr("=<>!@", word.ptr[sign + len]) == NULL; len++) {}
    column = jobq_pg__column_find(t, word.ptr + sign, len);
    term->column = (unsigned char)(column < 0 ? 0 : column);
    term->minus = word.ptr[0] == '-';
    term->plus = word.ptr[0] == '+';
    term->op = jobq_pg__op_find(word.ptr + sign + len, word.len - sign - len);
    jobq_pg__copy_str(name, sizeof name, word);
    if (column < 0) return jobq_pg__unfit(t, error, name, "no such column in the description");
    if (term->op == NULL)
        return jobq_pg__unfit(t, error, name, "unknown operator: use = <> < <= > >= or @>");
    if (term->op[0] == '@' && !jobq_pg__is_array(t->desc->columns[column].type) &&
        !t->jsonb[column])
        return jobq_pg__unfit(t, error, name, "@> needs an array or a jsonb");
    if (term->plus && t->desc->columns[column].type != JOBQ_PG_TIMESTAMPTZ)
        return jobq_pg__unfit(t, error, name, "+ needs a timestamptz");
    return JOBQ_OK;
}

static jobq_error jobq_pg__terms_add(const jobq_pg_table *t, const char *list,
                                     jobq_pg__terms *terms, jobq_pg_error *error)
{
    jobq_str word;
    jobq_error code;

    while (jobq_pg__word_next(&list, &word)) {
        if (terms->count == JOBQ_PG__COLUMNS_MAX)
            return jobq_pg__unfit(t, error, "list", "more than 64 columns");
        code = jobq_pg__term_of(t, word, &terms->at[terms->count], error);
        if (code != JOBQ_OK) return code;
        terms->count++;
    }
    return JOBQ_OK;
}

/* Fields to be written must be writable, plain names, and named once. */
static jobq_error jobq_pg__fields_check(const jobq_pg_table *t, const jobq_pg__terms *fields,
                                        jobq_pg_error *error)
{
    uint64_t seen = 0;
    int i;

    for (i = 0; i < fields->count; i++) {
        const jobq_pg_column *c = &t->desc->columns[fields->at[i].column];
        if ((c->flags & (JOBQ_PG_READ_ONLY | JOBQ_PG_TOUCH)) != 0)
            return jobq_pg__unfit(t, error, c->name, "is read-only");
        if (fields->at[i].minus || strcmp(fields->at[i].op, "=") != 0)
            return jobq_pg__unfit(t, error, c->name, "give the plain name, without - or operator");
        if (seen >> fields->at[i].column & 1)
            return jobq_pg__unfit(t, error, c->name, "is named twice");
        seen |= (uint64_t)1 << fields->at[i].column;
    }
    return JOBQ_OK;
}

/* What create writes when the caller names no field. */
static void jobq_pg__fields_all(const jobq_pg_table *t, jobq_pg__terms *fields)
{
    int i;

    for (i = 0; i < t->column_count; i++) {
        jobq_pg__term *term = &fields->at[fields->count];
        if ((t->desc->columns[i].flags & (JOBQ_PG_READ_ONLY | JOBQ_PG_TOUCH)) != 0) continue;
        memset(term, 0, sizeof *term);
        term->column = (unsigned char)i;
        term->op = "=";
        fields->count++;
    }
}

/* Appends the key's columns to an order, so that no two rows are equal in it. */
static jobq_error jobq_pg__order_close(const jobq_pg_table *t, jobq_pg__terms *order, bool after,
                                       jobq_pg_error *error)
{
    bool minus = order->count > 0 && order->at[order->count - 1].minus;
    int i, k, had, first = order->count;
    jobq_error code = jobq_pg__terms_add(t, t->key, order, error);

    if (code != JOBQ_OK) return code;
    for (i = had = first; i < order->count; i++) {
        for (k = 0; k < first && order->at[k].column != order->at[i].column; k++) {}
        if (k < first) continue;
        order->at[had] = order->at[i];
        order->at[had++].minus = minus;
    }
    order->count = had;
    for (i = 0; i < order->count && after; i++) {
        const jobq_pg_column *c = &t->desc->columns[order->at[i].column];
        if ((c->flags & JOBQ_PG_NULLABLE) != 0)
            return jobq_pg__unfit(t, error, c->name, "may be NULL, so pages cannot follow it");
    }
    return JOBQ_OK;
}

/* -- the text of a statement -- */

static const char *jobq_pg__name_at(const jobq_pg_table *t, int column)
{
    return t->desc->columns[column].name;
}

static void jobq_pg__say_arg(jobq_pg__params *out, const jobq_pg_table *t,
                             const jobq_pg__term *term, int n)
{
    const char *cast = t->varchars[term->column] ? "::text[]::varchar[]" : "";

    if (t->desc->columns[term->column].type == JOBQ_PG_NUMERIC) cast = "::text::numeric";
    if (term->plus)
        jobq_pg__sayf(out, "(statement_timestamp() + $%d::bigint * interval '1 microsecond')", n);
    else jobq_pg__sayf(out, "$%d%s", n, cast);
}

/* " WHERE a = $1 AND b IS NULL"; n counts parameters. */
static void jobq_pg__say_where(jobq_pg__params *out, const jobq_pg_table *t,
                               const jobq_pg__terms *where, uint64_t nulls, int *n)
{
    int i;

    for (i = 0; i < where->count; i++) {
        const jobq_pg__term *term = &where->at[i];
        jobq_pg__sayf(out, "%s%n", i == 0 ? " WHERE " : " AND ",
                      jobq_pg__name_at(t, term->column));
        if (nulls >> i & 1) {
            jobq_pg__say(out, term->op[0] == '=' ? " IS NULL" : " IS NOT NULL");
            continue;
        }
        jobq_pg__sayf(out, " %s ", term->op);
        jobq_pg__say_arg(out, t, term, ++*n);
    }
}

static void jobq_pg__say_search(jobq_pg__params *out, const jobq_pg_table *t, bool first, int n)
{
    int i, said = 0;

    jobq_pg__say(out, first ? " WHERE (" : " AND (");
    for (i = 0; i < t->column_count; i++) {
        if ((t->desc->columns[i].flags & JOBQ_PG_SEARCH) == 0) continue;
        jobq_pg__sayf(out, "%s%n ILIKE $%d", said++ > 0 ? " OR " : "", jobq_pg__name_at(t, i), n);
    }
    jobq_pg__say(out, said > 0 ? ")" : "false)");
}

/* open, then "a, b". */
static void jobq_pg__say_names(jobq_pg__params *out, const jobq_pg_table *t, const char *open,
                               const jobq_pg__terms *terms)
{
    int i;

    for (i = 0; i < terms->count; i++)
        jobq_pg__sayf(out, "%s%n", i == 0 ? open : ", ", jobq_pg__name_at(t, terms->at[i].column));
}

/* "(a, b) > ($1, $2)" if all columns have one direction, which an index serves; otherwise the same
 * condition written out: a >= $1 AND (a > $1 OR (b < $2 ...)). */
static void jobq_pg__say_after(jobq_pg__params *out, const jobq_pg_table *t,
                               const jobq_pg__terms *order, bool first, int *n)
{
    bool same = true;
    int i, last = order->count - 1, from = *n;

    for (i = 1; i < order->count; i++) same = same && order->at[i].minus == order->at[0].minus;
    jobq_pg__say(out, first ? " WHERE " : " AND ");
    if (same) jobq_pg__say_names(out, t, "(", order);
    if (same) jobq_pg__say(out, order->at[0].minus ? ") < " : ") > ");
    for (i = 0; i < order->count; i++) {
        const jobq_pg__term *term = &order->at[i];
        const char *name = jobq_pg__name_at(t, term->column), *than = term->minus ? "<" : ">";
        if (same) jobq_pg__say(out, i == 0 ? "(" : ", ");
        else jobq_pg__sayf(out, "%n %s%s ", name, than, i < last ? "=" : "");
        jobq_pg__say_arg(out, t, term, from + i + 1);
        if (same || i == last) continue;
        jobq_pg__sayf(out, " AND (%n %s ", name, than);
        jobq_pg__say_arg(out, t, term, from + i + 1);
        jobq_pg__say(out, " OR ");
    }
    for (i = same ? last : 0; i < order->count && (same || i < last); i++) jobq_pg__say(out, ")");
    *n += order->count;
}

static void jobq_pg__say_order(jobq_pg__params *out, const jobq_pg_table *t,
                               const jobq_pg__terms *order)
{
    int i;

    for (i = 0; i < order->count; i++) {
        jobq_pg__sayf(out, "%s%n%s", i == 0 ? " ORDER BY " : ", ",
                      jobq_pg__name_at(t, order->at[i].column), order->at[i].minus ? " DESC" : "");
    }
}

/* ", updated = now" for each column with JOBQ_PG_TOUCH. */
static void jobq_pg__say_touch(jobq_pg__params *out, const jobq_pg_table *t, bool first)
{
    int i;

    for (i = 0; i < t->column_count; i++) {
        if ((t->desc->columns[i].flags & JOBQ_PG_TOUCH) == 0) continue;
        jobq_pg__sayf(out, "%s%n = statement_timestamp()", first ? " SET " : ", ",
                      jobq_pg__name_at(t, i));
        first = false;
    }
}

/* " SET a = $1, updated = now" */
static void jobq_pg__say_set(jobq_pg__params *out, const jobq_pg_table *t,
                             const jobq_pg__plan *plan, bool excluded, int *n)
{
    int i;

    for (i = 0; i < plan->fields.count; i++) {
        const char *name = jobq_pg__name_at(t, plan->fields.at[i].column);
        jobq_pg__sayf(out, "%s%n = ", i == 0 ? " SET " : ", ", name);
        if (excluded) jobq_pg__sayf(out, "excluded.%n", name);
        else jobq_pg__say_arg(out, t, &plan->fields.at[i], ++*n);
    }
    jobq_pg__say_touch(out, t, plan->fields.count == 0);
}

static void jobq_pg__say_list(jobq_pg__params *out, const jobq_pg_table *t,
                              const jobq_pg__plan *plan, const jobq_pg__shape *shape)
{
    bool list = shape->op == JOBQ_PG__OP_LIST;
    const char *what = list ? t->list : shape->op == JOBQ_PG__OP_COUNT ? "count(*)" : "";
    int n = 0;

    jobq_pg__sayf(out, "SELECT %s FROM %s", what, t->name);
    jobq_pg__say_where(out, t, &plan->where, shape->nulls, &n);
    if (shape->search) jobq_pg__say_search(out, t, plan->where.count == 0, ++n);
    if (shape->op == JOBQ_PG__OP_EXISTS) jobq_pg__say(out, " LIMIT 1");
    if (!list) return;
    if (shape->after)
        jobq_pg__say_after(out, t, &plan->order, plan->where.count == 0 && !shape->search, &n);
    jobq_pg__say_order(out, t, &plan->order);
    jobq_pg__sayf(out, " LIMIT $%d::bigint", n + 1);
}

static void jobq_pg__say_create(jobq_pg__params *out, const jobq_pg_table *t,
                                const jobq_pg__plan *plan, const jobq_pg__shape *shape)
{
    int n = 0, i;
    size_t row;

    jobq_pg__sayf(out, "INSERT INTO %s", t->name);
    jobq_pg__say_names(out, t, " (", &plan->fields);
    jobq_pg__say(out, plan->fields.count == 0 ? " DEFAULT VALUES" : ") VALUES ");
    for (row = 0; row < shape->rows && plan->fields.count > 0; row++) {
        for (i = 0; i < plan->fields.count; i++) {
            jobq_pg__say(out, i > 0 ? ", " : row > 0 ? "), (" : "(");
            jobq_pg__say_arg(out, t, &plan->fields.at[i], ++n);
        }
    }
    if (plan->fields.count > 0) jobq_pg__say(out, ")");
}

static void jobq_pg__say_upsert(jobq_pg__params *out, const jobq_pg_table *t, jobq_pg__plan *plan,
                                const jobq_pg__shape *shape)
{
    jobq_pg__terms all = plan->fields;
    int i, k, kept = 0;

    jobq_pg__say_create(out, t, plan, shape);
    jobq_pg__say_names(out, t, " ON CONFLICT (", &plan->where);
    for (i = 0; i < all.count; i++) {
        for (k = 0; k < plan->where.count && plan->where.at[k].column != all.at[i].column; k++) {}
        if (k == plan->where.count) plan->fields.at[kept++] = all.at[i];
    }
    if (kept == 0) plan->fields.at[kept++] = plan->where.at[0]; /* DO NOTHING would return no row */
    plan->fields.count = kept;
    jobq_pg__say(out, ") DO UPDATE");
    jobq_pg__say_set(out, t, plan, true, &i);
    plan->fields = all;
}

static void jobq_pg__say_change(jobq_pg__params *out, const jobq_pg_table *t,
                                const jobq_pg__plan *plan, const jobq_pg__shape *shape)
{
    bool many = shape->op == JOBQ_PG__OP_UPDATE_WHERE;
    int n = 0;

    jobq_pg__sayf(out, "%s%s", shape->op == JOBQ_PG__OP_DELETE ? "DELETE FROM " : "UPDATE ",
                  t->name);
    if (shape->op != JOBQ_PG__OP_DELETE) jobq_pg__say_set(out, t, plan, false, &n);
    if (many) jobq_pg__sayf(out, " WHERE ctid = ANY (ARRAY(SELECT ctid FROM %s", t->name);
    jobq_pg__say_where(out, t, &plan->where, shape->nulls, &n);
    if (!many) return;
    jobq_pg__say_order(out, t, &plan->order);
    jobq_pg__say(out, " LIMIT 1000 FOR UPDATE SKIP LOCKED))");
}

static char *jobq_pg__plan_sql(const jobq_pg_table *t, jobq_pg__plan *plan,
                               const jobq_pg__shape *shape)
{
    jobq_pg__params out;

    jobq_pg__params_init(&out);
    switch (shape->op) {
    case JOBQ_PG__OP_LIST:
    case JOBQ_PG__OP_COUNT:
    case JOBQ_PG__OP_EXISTS: jobq_pg__say_list(&out, t, plan, shape); break;
    case JOBQ_PG__OP_CREATE: jobq_pg__say_create(&out, t, plan, shape); break;
    case JOBQ_PG__OP_UPSERT: jobq_pg__say_upsert(&out, t, plan, shape); break;
    case JOBQ_PG__OP_UPDATE:
    case JOBQ_PG__OP_UPDATE_WHERE:
    case JOBQ_PG__OP_DELETE: jobq_pg__say_change(&out, t, plan, shape); break;
    }
    if (shape->op >= JOBQ_PG__OP_CREATE && shape->op != JOBQ_PG__OP_DELETE && shape->rows <= 1) {
        jobq_pg__sayf(&out, " RETURNING %s", t->list);
    }
    jobq_pg__raw(&out, "", 1);
    if (!out.failed) return out.data;
    free(out.data);
    return NULL;
}

/* -- plans -- */

static uint64_t jobq_pg__shape_hash(const jobq_pg__shape *s)
{
    uint64_t hash = JOBQ_PG__HASH_SEED ^ (uint64_t)s->op ^ s->rows << 8;

    hash = jobq_pg__hash(jobq_pg__hash(hash, s->fields), s->where);
    return jobq_pg__hash(hash, s->order) ^ s->nulls;
}

static bool jobq_pg__list_equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool jobq_pg__shape_equal(const jobq_pg__shape *a, const jobq_pg__shape *b)
{
    return a->op == b->op && a->nulls == b->nulls && a->rows == b->rows &&
           a->search == b->search && a->after == b->after &&
           jobq_pg__list_equal(a->fields, b->fields) && jobq_pg__list_equal(a->where, b->where) &&
           jobq_pg__list_equal(a->order, b->order);
}

static bool jobq_pg__shape_keep(jobq_pg__shape *to, const jobq_pg__shape *from)
{
    const char *const lists[] = {from->fields, from->where, from->order};
    const char **const copies[] = {&to->fields, &to->where, &to->order};
    size_t i;

    *to = *from;
    for (i = 0; i < 3; i++) *copies[i] = NULL;
    for (i = 0; i < 3; i++) {
        if (lists[i] == NULL) continue;
        *copies[i] = jobq_pg__dup(lists[i]);
        if (*copies[i] == NULL) return false;
    }
    return true;
}

static void jobq_pg__plan_free(jobq_pg__plan *plan)
{
    if (plan == NULL) return;
    free((void *)(uintptr_t)plan->shape.fields);
    free((void *)(uintptr_t)plan->shape.where);
    free((void *)(uintptr_t)plan->shape.order);
    free(plan->text.sql);
    free(plan);
}

static bool jobq_pg__inserts(const jobq_pg__shape *s)
{
    return s->op == JOBQ_PG__OP_CREATE || s->op == JOBQ_PG__OP_UPSERT;
}

/* A minus is of orders, which have neither plus nor operator; nor has the list of an upsert. */
static jobq_error jobq_pg__signs_check(const jobq_pg_table *t, const jobq_pg__shape *s,
                                       const jobq_pg__plan *plan, jobq_pg_error *error)
{
    int i;

    for (i = 0; i < plan->where.count; i++) {
        const jobq_pg__term *term = &plan->where.at[i];
        bool equal = strcmp(term->op, "=") == 0;
        if (term->minus || (s->op == JOBQ_PG__OP_UPSERT && (term->plus || !equal)))
            return jobq_pg__unfit(t, error, jobq_pg__name_at(t, term->column),
                                  term->minus ? "a minus is of orders" : "give the plain name");
    }
    for (i = 0; i < plan->order.count; i++) {
        const jobq_pg__term *term = &plan->order.at[i];
        if (term->plus || strcmp(term->op, "=") != 0)
            return jobq_pg__unfit(t, error, jobq_pg__name_at(t, term->column),
                                  "an order has names, with a minus for descending");
    }
    return JOBQ_OK;
}

static jobq_error jobq_pg__plan_read(const jobq_pg_table *t, const jobq_pg__shape *s,
                                     jobq_pg__plan *plan, jobq_pg_error *error)
{
    const char *order = s->order == NULL ? t->desc->order : s->order;
    jobq_error code = JOBQ_OK;

    if (s->fields != NULL) code = jobq_pg__terms_add(t, s->fields, &plan->fields, error);
    else if (jobq_pg__inserts(s)) jobq_pg__fields_all(t, &plan->fields);
    if (code == JOBQ_OK) code = jobq_pg__fields_check(t, &plan->fields, error);
    if (code == JOBQ_OK)
        code = jobq_pg__terms_add(t, s->where == NULL ? t->key : s->where, &plan->where, error);
    if (s->op == JOBQ_PG__OP_UPDATE_WHERE) order = "";
    if (code == JOBQ_OK && order != NULL) code = jobq_pg__terms_add(t, order, &plan->order, error);
    if (code == JOBQ_OK) code = jobq_pg__signs_check(t, s, plan, error);
    return code != JOBQ_OK ? code : jobq_pg__order_close(t, &plan->order, s->after, error);
}

static jobq_error jobq_pg__plan_make(const jobq_pg_table *t, const jobq_pg__shape *shape,
                                     jobq_pg__plan **made, jobq_pg_error *error)
{
    jobq_pg__plan *plan = (jobq_pg__plan *)calloc(1, sizeof *plan);
    jobq_error code = JOBQ_OK;

    *made = NULL;
    if (plan == NULL) return jobq_pg__no_memory(error);
    if (!jobq_pg__shape_keep(&plan->shape, shape)) code = jobq_pg__no_memory(error);
    if (code == JOBQ_OK) code = jobq_pg__plan_read(t, shape, plan, error);
    if (code == JOBQ_OK) plan->text.sql = jobq_pg__plan_sql(t, plan, shape);
    if (code == JOBQ_OK && plan->text.sql == NULL) code = jobq_pg__no_memory(error);
    if (code != JOBQ_OK) {
        jobq_pg__plan_free(plan);
        return code;
    }
    plan->text.hash = jobq_pg__hash(JOBQ_PG__HASH_SEED, plan->text.sql);
    *made = plan;
    return JOBQ_OK;
}

/* Finds the plan of a shape; makes it when it is first asked for. */
static jobq_error jobq_pg__plan_of(jobq_pg_table *t, const jobq_pg__shape *shape,
                                   jobq_pg__plan **plan, jobq_pg_error *error)
{
    jobq_pg__plan **chain = &t->plans[jobq_pg__shape_hash(shape) % JOBQ_PG__PLANS];
    jobq_error code = JOBQ_OK;

    jobq_pg__os_lock(&t->lock);
    *plan = *chain;
    while (*plan != NULL && !jobq_pg__shape_equal(&(*plan)->shape, shape)) *plan = (*plan)->next;
    if (*plan == NULL) {
        code = jobq_pg__plan_make(t, shape, plan, error);
        if (code == JOBQ_OK) {
            (*plan)->next = *chain;
            *chain = *plan;
        }
    }
    jobq_pg__os_unlock(&t->lock);
    return code;
}

/* Sets the bits of those terms of where that are NULL in like. */
static jobq_error jobq_pg__nulls_of(const jobq_pg_table *t, const jobq_pg__plan *plan,
                                    const void *like, uint64_t *nulls, jobq_pg_error *error)
{
    int i;

    for (i = 0; i < plan->where.count; i++) {
        const jobq_pg__term *term = &plan->where.at[i];
        const jobq_pg_column *c = &t->desc->columns[term->column];
        if (like == NULL) return jobq_pg__unfit(t, error, c->name, "like is NULL");
        if (!jobq_pg__is_null(c, (const char *)like + c->offset)) continue;
        if (strchr(">@", term->op[0]) != NULL || (term->op[0] == '<' && term->op[1] != '>'))
            return jobq_pg__unfit(t, error, c->name, "NULL can only be compared by = or <>");
        *nulls |= (uint64_t)1 << i;
    }
    return JOBQ_OK;
}

/* -- parameters -- */

static jobq_error jobq_pg__args_field(jobq_pg__params *p, const jobq_pg_table *t,
                                      const jobq_pg__term *term, const void *row,
                                      jobq_pg_error *error)
{
    const jobq_pg_column *c = &t->desc->columns[term->column];
    const char *field = (const char *)row + c->offset, *why;
    bool null = jobq_pg__is_null(c, field);
    int64_t us;

    if (null && (c->flags & JOBQ_PG_NULLABLE) == 0)
        return jobq_pg__unfit(t, error, c->name, "is missing; the column can't be NULL");
    jobq_pg__begin(p);
    if (null) {
        jobq_pg__add_null(p);
        return JOBQ_OK;
    }
    why = term->plus ? NULL : jobq_pg__wrong(c, field);
    if (why != NULL) return jobq_pg__unfit(t, error, c->name, why);
    if (term->plus) {
        memcpy(&us, field, sizeof us);
        jobq_pg__raw_int(p, us, 8);
    } else {
        jobq_pg__put_value(p, c, t->jsonb[term->column], field);
    }
    jobq_pg__end(p);
    return JOBQ_OK;
}

static jobq_error jobq_pg__args_terms(jobq_pg__params *p, const jobq_pg_table *t,
                                      const jobq_pg__terms *terms, const void *row,
                                      jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    int i;

    for (i = 0; i < terms->count && code == JOBQ_OK; i++)
        code = jobq_pg__args_field(p, t, &terms->at[i], row, error);
    return code;
}

/* Adds "%text%", with the wildcards of LIKE in text escaped. */
static jobq_error jobq_pg__args_search(jobq_pg__params *p, const jobq_pg_table *t,
                                       const char *text, jobq_pg_error *error)
{
    if (!jobq_utf8_valid(jobq_str_from(text)))
        return jobq_pg__unfit(t, error, "search", "not UTF-8");
    jobq_pg__begin(p);
    jobq_pg__raw(p, "%", 1);
    for (; *text != '\0'; text++) {
        if (*text == '%' || *text == '_' || *text == '\\') jobq_pg__raw(p, "\\", 1);
        jobq_pg__raw(p, text, 1);
    }
    jobq_pg__raw(p, "%", 1);
    jobq_pg__end(p);
    return JOBQ_OK;
}

/* -- sending -- */

/* Runs a statement on conn, or on a connection of the pool. Clears args. NULL: error is filled. */
static PGresult *jobq_pg__table_exec(const jobq_pg_table *t, PGconn *conn,
                                     const jobq_pg__text *text, jobq_pg__params *args,
                                     jobq_pg_error *error)
{
    return jobq_pg__exec_text(t->pg, conn, t, text, args, !t->unprepared, error);
}

/* -- naming a row in error texts -- */

/* The value of a whole number or a bool. False: it is another type. */
static bool jobq_pg__long_of(jobq_pg_type type, const char *field, int64_t *out)
{
    if (type < JOBQ_PG_BOOL || type > JOBQ_PG_INT64) return false;
    *out = jobq_pg__field_get(field, jobq_pg__types[type].size);
    return true;
}

static void jobq_pg__value_text(const jobq_pg_column *c, const char *field, char *out, size_t size)
{
    char text[JOBQ_PG__VALUE_SIZE];
    const void *at = field;
    int64_t big;

    if (jobq_pg__is_null(c, field)) {
        jobq_pg__copy(out, size, "NULL");
    } else if (jobq_pg__types[c->type].maybe == 0 && !jobq_pg__is_array(c->type)) {
        jobq_utf8_mend(out, size - 1, jobq_utf8_cut(*(const jobq_str *)at, size - 1));
    } else if (c->type == JOBQ_PG_ENUM) {
        jobq_pg__copy(out, size, jobq_pg__wrong(c, field) == NULL ? c->names[*(const int *)at]
                                                                  : "?");
    } else if (jobq_pg__long_of(c->type, field, &big)) {
        snprintf(out, size, "%lld", (long long)big);
    } else {
        if (!jobq_pg__value_format(c->type, at, text) || strlen(text) >= size)
            jobq_pg__copy(text, sizeof text, "...");
        jobq_pg__copy(out, size, text);
    }
}

/* NOT_FOUND or LOST: "Not found: E with F=V", with as many columns of where as fit. */
static jobq_error jobq_pg__row_missing(const jobq_pg_table *t, const jobq_pg__terms *where,
                                       const void *like, jobq_error code, jobq_pg_error *error)
{
    const char *what = code == JOBQ_ERROR_LOST ? "Invalid state: not as expected" : "Not found";
    char field[64] = "", value[64] = "";
    size_t f = 0, v = 0;
    int i;

    for (i = 0; i < where->count && f < sizeof field - 3 && v < sizeof value - 40; i++) {
        const jobq_pg_column *c = &t->desc->columns[where->at[i].column];
        f += (size_t)snprintf(field + f, sizeof field - f, "%s%s", i == 0 ? "" : ", ", c->name);
        v += (size_t)snprintf(value + v, sizeof value - v, "%s", i == 0 ? "" : ", ");
        jobq_pg__value_text(c, (const char *)like + c->offset, value + v, sizeof value - v);
        v += strlen(value + v);
    }
    return jobq_pg__said(error, code, what, t->entity, where->count == 0 ? "any" : field,
                         where->count == 0 ? "row" : value);
}

/* The same, of the row with this one's key. */
static jobq_error jobq_pg__key_missing(const jobq_pg_table *t, const void *row, jobq_error code,
                                       jobq_pg_error *error)
{
    jobq_pg__terms key;

    key.count = 0;
    (void)jobq_pg__terms_add(t, t->key, &key, error);
    return jobq_pg__row_missing(t, &key, row, code, error);
}

/* ---- >>table_calls: the calls of typed tables ------------------------------------------------ */

typedef struct jobq_pg__request {
    jobq_pg_table *table;
    PGconn *conn;
    jobq_pg__shape shape;
    const void *row, *like, *after;
    const char *search;
    int64_t limit;
    jobq_pg__plan *plan; /* found by jobq_pg__request_run */
    int count;           /* rows of the answer */
} jobq_pg__request;

/* Finds the plan. The text depends on which values in like are NULL. */
static jobq_error jobq_pg__request_plan(jobq_pg__request *a, jobq_pg_error *error)
{
    jobq_error code = jobq_pg__plan_of(a->table, &a->shape, &a->plan, error);

    if (code != JOBQ_OK || jobq_pg__inserts(&a->shape)) return code;
    code = jobq_pg__nulls_of(a->table, a->plan, a->like, &a->shape.nulls, error);
    if (code != JOBQ_OK || a->shape.nulls == 0) return code;
    return jobq_pg__plan_of(a->table, &a->shape, &a->plan, error);
}

static jobq_error jobq_pg__request_args(const jobq_pg__request *a, jobq_pg__params *args,
                                    jobq_pg_error *error)
{
    const jobq_pg__plan *p = a->plan;
    const jobq_pg_table *t = a->table;
    jobq_error code = JOBQ_OK;
    size_t i;
    int k;

    for (i = 0; i < a->shape.rows && code == JOBQ_OK; i++) {
        code = jobq_pg__args_terms(args, t, &p->fields,
                                   (const char *)a->row + i * t->desc->row_size, error);
    }
    if (code != JOBQ_OK || jobq_pg__inserts(&a->shape)) return code;
    for (k = 0; k < p->where.count && code == JOBQ_OK; k++) {
        if (a->shape.nulls >> k & 1) continue;
        code = jobq_pg__args_field(args, t, &p->where.at[k], a->like, error);
    }
    if (code == JOBQ_OK && a->search != NULL)
        code = jobq_pg__args_search(args, t, a->search, error);
    if (code == JOBQ_OK && a->after != NULL)
        code = jobq_pg__args_terms(args, t, &p->order, a->after, error);
    if (a->shape.op == JOBQ_PG__OP_LIST) jobq_pg__add_int(args, a->limit, 8);
    return code;
}

static PGresult *jobq_pg__request_run(jobq_pg__request *a, jobq_pg_error *error)
{
    jobq_pg__params args;

    JOBQ_ASSERT(a->table != NULL);
    a->shape.search = a->search != NULL;
    a->shape.after = a->after != NULL;
    if (jobq_pg__request_plan(a, error) != JOBQ_OK) return NULL;
    jobq_pg__params_init(&args);
    if (jobq_pg__request_args(a, &args, error) != JOBQ_OK) {
        jobq_pg__params_clear(&args);
        return NULL;
    }
    return jobq_pg__table_exec(a->table, a->conn, &a->plan->text, &args, error);
}

/* Runs a request and takes up to most rows. rows NULL: they are only counted. */
static jobq_error jobq_pg__request_rows(jobq_pg__request *a, int most, jobq_pg_rows *rows,
                                        jobq_pg_error *error)
{
    jobq_pg_error local;
    PGresult *res;

    if (error == NULL) error = &local;
    if (rows != NULL) memset(rows, 0, sizeof *rows);
    res = jobq_pg__request_run(a, error);
    if (res == NULL) return error->code;
    a->count = PQntuples(res);
    if (rows != NULL) return jobq_pg__rows_take(a->table, res, most, rows, error);
    PQclear(res);
    return JOBQ_OK;
}

/* where and like: which rows; an INSERT has none. */
static jobq_pg__request jobq_pg__request_new(jobq_pg_table *table, PGconn *conn, jobq_pg__op op,
                                             const char *where, const void *like)
{
    jobq_pg__request a;

    memset(&a, 0, sizeof a);
    a.table = table;
    a.conn = conn;
    a.shape.op = op;
    a.shape.where = where;
    a.like = like;
    return a;
}

static jobq_error jobq_pg__query_invalid(const jobq_pg_table *table, const jobq_pg_query *query,
                                         jobq_pg_error *error)
{
    if (query == NULL) return JOBQ_OK;
    if (query->limit < 0) return jobq_pg__unfit(table, error, "limit", "is negative");
    if (query->like != NULL && query->where == NULL)
        return jobq_pg__unfit(table, error, "like", "where says which of its fields count");
    return JOBQ_OK;
}

/* The same of a query, without its order and page. NULL: all rows. */
static jobq_pg__request jobq_pg__request_of(jobq_pg_table *table, PGconn *conn, jobq_pg__op op,
                                            const jobq_pg_query *query)
{
    jobq_pg__request a = jobq_pg__request_new(table, conn, op, "", NULL);

    if (query == NULL) return a;
    if (query->where != NULL) a.shape.where = query->where;
    a.like = query->like;
    a.search = query->search;
    return a;
}

/* -- calls that read -- */

JOBQ_API jobq_error jobq_pg_table_get(jobq_pg_table *table, PGconn *conn, const char *where,
                                      const void *like, jobq_pg_rows *rows, jobq_pg_error *error)
{
    jobq_pg__request a = jobq_pg__request_new(
        table, conn, rows == NULL ? JOBQ_PG__OP_EXISTS : JOBQ_PG__OP_LIST, where, like);
    jobq_error code;

    a.limit = 1;
    code = jobq_pg__request_rows(&a, 1, rows, error);
    if (code != JOBQ_OK || a.count > 0) return code;
    return jobq_pg__row_missing(table, &a.plan->where, like, JOBQ_ERROR_NOT_FOUND, error);
}

JOBQ_API jobq_error jobq_pg_table_list(jobq_pg_table *table, PGconn *conn,
                                       const jobq_pg_query *query, jobq_pg_rows *rows,
                                       jobq_pg_error *error)
{
    jobq_pg__request a = jobq_pg__request_of(table, conn, JOBQ_PG__OP_LIST, query);
    int32_t limit = query == NULL || query->limit == 0 ? JOBQ_PG__PAGE : query->limit;

    JOBQ_ASSERT(rows != NULL);
    memset(rows, 0, sizeof *rows);
    if (jobq_pg__query_invalid(table, query, error)) return JOBQ_ERROR_INVALID;
    if (query != NULL) a.shape.order = query->order;
    if (query != NULL) a.after = query->after;
    a.limit = (int64_t)limit + 1;
    return jobq_pg__request_rows(&a, limit, rows, error);
}

/* Runs a request whose result is a number, or, of DELETE, the count of rows. */
static jobq_error jobq_pg__request_number(jobq_pg__request *a, int64_t *number,
                                          jobq_pg_error *error)
{
    jobq_pg_error local;
    PGresult *res;

    if (error == NULL) error = &local;
    res = jobq_pg__request_run(a, error);
    if (res == NULL) return error->code;
    *number = a->shape.op == JOBQ_PG__OP_DELETE ? strtoll(PQcmdTuples(res), NULL, 10)
                                                : jobq_pg__int(res, 0, 0);
    PQclear(res);
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_table_count(jobq_pg_table *table, PGconn *conn,
                                        const jobq_pg_query *query, int64_t *count,
                                        jobq_pg_error *error)
{
    jobq_pg__request a = jobq_pg__request_of(table, conn, JOBQ_PG__OP_COUNT, query);

    JOBQ_ASSERT(count != NULL);
    if (jobq_pg__query_invalid(table, query, error)) return JOBQ_ERROR_INVALID;
    return jobq_pg__request_number(&a, count, error);
}

/* -- calls that write -- */

static int jobq_pg__words(const char *list)
{
    jobq_str word;
    int count = 0;

    while (list != NULL && jobq_pg__word_next(&list, &word)) count++;
    return count;
}

JOBQ_API jobq_error jobq_pg_table_create(jobq_pg_table *table, PGconn *conn, const char *fields,
                                         const void *row, const char *unique, jobq_pg_rows *rows,
                                         jobq_pg_error *error)
{
    jobq_pg__request a = jobq_pg__request_new(
        table, conn, unique == NULL ? JOBQ_PG__OP_CREATE : JOBQ_PG__OP_UPSERT, unique, NULL);

    if (rows != NULL) memset(rows, 0, sizeof *rows);
    if (unique != NULL && jobq_pg__words(unique) == 0)
        return jobq_pg__unfit(table, error, "unique", "name at least one column");
    a.shape.fields = fields;
    a.shape.rows = 1;
    a.row = row;
    return jobq_pg__request_rows(&a, 1, rows, error);
}

/* Whether where has the whole key, so that one row at most is like it. */
static jobq_error jobq_pg__names_key(const jobq_pg_table *t, const char *where, bool *whole,
                                     jobq_pg_error *error)
{
    jobq_pg__terms terms;
    jobq_error code;
    int i, k;

    terms.count = 0;
    code = jobq_pg__terms_add(t, where == NULL ? t->key : where, &terms, error);
    *whole = code == JOBQ_OK;
    for (i = 0; i < t->column_count && *whole; i++) {
        if ((t->desc->columns[i].flags & JOBQ_PG_KEY) == 0) continue;
        for (k = 0; k < terms.count; k++) {
            const jobq_pg__term *term = &terms.at[k];
            if (term->column == i && !term->plus && strcmp(term->op, "=") == 0) break;
        }
        *whole = k < terms.count;
    }
    return code;
}

/* Statements that find their rows again by ctid would change others too, because each partition and
 * child of a table counts its own ctids. */
static jobq_error jobq_pg__not_spread(const jobq_pg_table *t, jobq_pg_error *error)
{
    if (!t->spread) return JOBQ_OK;
    return jobq_pg__unfit(t, error, "name", "the table has partitions or children (or had some, "
                                            "until ANALYZE ran): name one of them instead");
}

/* Why nothing was updated. */
static jobq_error jobq_pg__not_updated(jobq_pg_table *table, PGconn *conn, const char *where,
                                       const void *like, jobq_pg_error *error)
{
    jobq_error code = JOBQ_ERROR_NOT_FOUND;

    if (where != NULL) code = jobq_pg_table_get(table, conn, NULL, like, NULL, error);
    if (code != JOBQ_OK && code != JOBQ_ERROR_NOT_FOUND) return code;
    return jobq_pg__key_missing(table, like, code == JOBQ_OK ? JOBQ_ERROR_LOST : code, error);
}

JOBQ_API jobq_error jobq_pg_table_update(jobq_pg_table *table, PGconn *conn, const char *fields,
                                         const void *row, const char *where, const void *like,
                                         jobq_pg_rows *rows, jobq_pg_error *error)
{
    jobq_pg__request a;
    bool one, reads = jobq_pg__words(fields) == 0;
    jobq_error code = jobq_pg__names_key(table, where, &one, error);

    if (rows != NULL) memset(rows, 0, sizeof *rows);
    if (code == JOBQ_OK && !one) code = jobq_pg__not_spread(table, error);
    if (code == JOBQ_OK && !one && reads)
        code = jobq_pg__unfit(table, error, "fields", "name at least one");
    if (code != JOBQ_OK) return code;
    if (like == NULL) like = row;
    a = jobq_pg__request_new(table, conn,
                             reads ? JOBQ_PG__OP_LIST
                             : one ? JOBQ_PG__OP_UPDATE
                                   : JOBQ_PG__OP_UPDATE_WHERE,
                             where, like);
    a.shape.fields = fields;
    a.shape.rows = !reads;
    a.row = row;
    a.limit = 1;
    code = jobq_pg__request_rows(&a, INT32_MAX, rows, error);
    if (code != JOBQ_OK || !one || a.count > 0) return code;
    return jobq_pg__not_updated(table, conn, where, like, error);
}

JOBQ_API jobq_error jobq_pg_table_delete(jobq_pg_table *table, PGconn *conn, const char *where,
                                         const void *like, int64_t *count, jobq_pg_error *error)
{
    jobq_pg__request a = jobq_pg__request_new(table, conn, JOBQ_PG__OP_DELETE, where, like);
    int64_t number = 0;
    jobq_error code = jobq_pg__request_number(&a, &number, error);

    if (code == JOBQ_OK && count != NULL) *count = number;
    return code;
}

typedef struct jobq_pg__many {
    jobq_pg__request ask;
    const char *array;
    size_t count, step; /* step: rows of one INSERT */
} jobq_pg__many;

static jobq_error jobq_pg__create_rows(PGconn *conn, void *user, jobq_pg_error *error)
{
    const jobq_pg__many *many = (const jobq_pg__many *)user;
    jobq_pg__request a = many->ask;
    size_t at = 0;
    PGresult *res;

    a.conn = conn;
    while (at < many->count) {
        a.shape.rows = many->count - at < many->step ? many->count - at : many->step;
        a.row = many->array + at * a.table->desc->row_size;
        res = jobq_pg__request_run(&a, error);
        if (res == NULL) return error->code;
        PQclear(res);
        at += a.shape.rows;
    }
    return JOBQ_OK;
}

JOBQ_API jobq_error jobq_pg_table_create_many(jobq_pg_table *table, PGconn *conn,
                                              const char *fields, const void *array, size_t count,
                                              jobq_pg_error *error)
{
    jobq_pg__many many;
    jobq_pg__terms all;
    size_t width = (size_t)jobq_pg__words(fields);

    if (count == 0) return JOBQ_OK;
    all.count = 0;
    jobq_pg__fields_all(table, &all);
    if (fields == NULL) width = (size_t)all.count;
    if (width == 0) return jobq_pg__unfit(table, error, "fields", "name at least one");
    memset(&many, 0, sizeof many);
    many.ask = jobq_pg__request_new(table, conn, JOBQ_PG__OP_CREATE, NULL, NULL);
    many.ask.shape.fields = fields;
    many.array = (const char *)array;
    many.count = count;
    many.step = JOBQ_PG__ARGS_MAX / width > 0 ? JOBQ_PG__ARGS_MAX / width : 1;
    return jobq_pg_transact(table->pg, conn, jobq_pg__create_rows, &many, error);
}

/* -- opening: the description is compared with the catalogue -- */

/* A row for each column: the table's quoted name and kind; the column's name, type (under a domain,
 * its base type), NOT NULL, type category, type in SQL, and enum labels; whether the table has
 * partitions or children. No row: there is no such table. */
#define JOBQ_PG__CATALOGUE                                                                         \
    "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relkind::text, "            \
    "a.attname::text, coalesce(b.oid, t.oid)::bigint, "                                            \
    "a.attnotnull OR t.typnotnull, coalesce(b.typcategory, t.typcategory)::text, "                 \
    "format_type(a.atttypid, a.atttypmod), "                                                       \
    "ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = coalesce(b.oid, t.oid)), "  \
    "c.relkind = 'p' OR c.relhassubclass "                                                         \
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "                               \
    "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "      \
    "LEFT JOIN pg_type t ON t.oid = a.atttypid "                                                   \
    "LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0) "                                     \
    "WHERE c.oid = to_regclass($1)"

#define JOBQ_PG__LAWS                                                                              \
    "SELECT k.conname::text, string_agg(a.attname, ', ' ORDER BY u.n) FROM pg_constraint k "       \
    "CROSS JOIN LATERAL unnest(k.conkey) WITH ORDINALITY u(attnum, n) "                            \
    "JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.attnum "                      \
    "WHERE k.conrelid = to_regclass($1) GROUP BY k.oid, k.conname UNION ALL "                      \
    "SELECT i.relname::text, string_agg(a.attname, ', ' ORDER BY u.n) FROM pg_index x "            \
    "JOIN pg_class i ON i.oid = x.indexrelid "                                                     \
    "CROSS JOIN LATERAL unnest(x.indkey::int2[]) WITH ORDINALITY u(attnum, n) "                    \
    "JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = u.attnum "                      \
    "WHERE x.indrelid = to_regclass($1) AND x.indisunique GROUP BY i.oid, i.relname"

/* Whether a list of names can hold this one. */
static bool jobq_pg__listable(const char *name)
{
    return name[0] != '-' && name[0] != '+' && name[strcspn(name, " ,=<>!@")] == '\0';
}

#define JOBQ_PG__UNLISTABLE "has a blank, comma or operator in its name, which lists cannot hold"

/* What is wrong with a description itself, and at which *column. NULL: nothing. */
static const char *jobq_pg__desc_wrong(const jobq_pg_table_desc *d, const char **column)
{
    int i, keys = 0;

    *column = "columns";
    for (i = 0; d->columns[i].name != NULL; i++) {
        const jobq_pg_column *c = &d->columns[i];
        bool null = (c->flags & JOBQ_PG_NULLABLE) != 0;
        size_t size;
        *column = c->name;
        if (i == JOBQ_PG__COLUMNS_MAX) return "more than 64 columns";
        if (c->type <= JOBQ_PG_NONE || c->type >= JOBQ_PG_TYPE_COUNT) return "no type";
        size = jobq_pg__is_maybe(c) ? jobq_pg__types[c->type].maybe : jobq_pg__types[c->type].size;
        if (c->size != 0 && c->size != size)
            return null ? "the field is not of the type's size; if it may be NULL, make it a "
                          "jobq_pg_maybe_..., or add JOBQ_PG_ZERO"
                        : "the field is not of the type's size";
        if (c->offset + size > d->row_size) return "the field ends after row_size";
        if (c->type == JOBQ_PG_ENUM && c->names == NULL) return "an enum needs names";
        if ((c->flags & JOBQ_PG_SEARCH) != 0 && c->type != JOBQ_PG_TEXT)
            return "only text can be searched";
        if ((c->flags & JOBQ_PG_KEY) != 0 && !jobq_pg__listable(c->name))
            return JOBQ_PG__UNLISTABLE;
        keys += (c->flags & JOBQ_PG_KEY) != 0;
    }
    *column = "columns";
    return keys > 0 ? NULL : "no column has JOBQ_PG_KEY";
}

/* Whether an enum's names are its labels in the database, in any order. */
static bool jobq_pg__labels_equal(const char *const *names, const char *wire, size_t len)
{
    size_t at, count = 0, i, known = 0;
    jobq_str label;

    if (!jobq_pg__array_head(wire, len, &at, &count)) return false;
    while (names[known] != NULL) known++;
    for (i = 0; i < count; i++) {
        if (!jobq_pg__array_item(wire, len, &at, &label) || jobq_pg__name_find(names, label) < 0)
            return false;
    }
    return known == count;
}

static bool jobq_pg__type_fits(const jobq_pg_column *c, int64_t oid, char category)
{
    int i;

    if (c->type == JOBQ_PG_ENUM && category == 'E') return true;
    if (c->type == JOBQ_PG_TEXT && category == 'S') return true; /* citext too */
    for (i = 0; i < 4; i++) {
        if (oid != 0 && jobq_pg__types[c->type].oids[i] == oid) return true;
    }
    return false;
}

/* Compares a described column with row r of the catalogue. NOT NULL means nothing for views and
 * foreign tables. NULL: it fits. */
static const char *jobq_pg__column_wrong(jobq_pg_table *t, int column, const PGresult *res, int r)
{
    const jobq_pg_column *c = &t->desc->columns[column];
    bool null = (c->flags & JOBQ_PG_NULLABLE) != 0;
    char kind = PQgetvalue(res, r, 1)[0], category = PQgetvalue(res, r, 5)[0];

    if (!jobq_pg__type_fits(c, jobq_pg__int(res, r, 3), category)) return "but its type is ";
    if (c->type == JOBQ_PG_ENUM && category == 'E' &&
        !jobq_pg__labels_equal(c->names, PQgetvalue(res, r, 7), (size_t)PQgetlength(res, r, 7)))
        return "but its labels differ: ";
    t->jsonb[column] = jobq_pg__int(res, r, 3) == jobq_pg__wires[JOBQ_PG__JSONB].oid;
    t->varchars[column] = jobq_pg__int(res, r, 3) == JOBQ_PG__VARCHARS;
    if (kind == 'v' || kind == 'm' || kind == 'f') return NULL;
    if (null && jobq_pg__int(res, r, 4)) return "but it is NOT NULL: ";
    return null || jobq_pg__int(res, r, 4) ? NULL : "but it may be NULL (add JOBQ_PG_NULLABLE): ";
}

static jobq_error jobq_pg__columns_check(jobq_pg_table *t, const PGresult *res,
                                         jobq_pg_error *error)
{
    int i, r;

    for (i = 0; i < t->column_count; i++) {
        const jobq_pg_column *c = &t->desc->columns[i];
        const char *wrong;
        char why[256];
        for (r = 0; r < PQntuples(res) && strcmp(PQgetvalue(res, r, 2), c->name) != 0; r++) {}
        if (r == PQntuples(res)) return jobq_pg__unfit(t, error, c->name, "the table has no such "
                                                                             "column");
        wrong = jobq_pg__column_wrong(t, i, res, r);
        if (wrong == NULL) continue;
        snprintf(why, sizeof why, "is described as %s%s, %s%s", jobq_pg__types[c->type].name,
                 (c->flags & JOBQ_PG_NULLABLE) != 0 ? " that may be NULL" : "", wrong,
                 PQgetvalue(res, r, 6));
        return jobq_pg__unfit(t, error, c->name, why);
    }
    return JOBQ_OK;
}

static PGresult *jobq_pg__catalogue(const jobq_pg_table *t, PGconn *conn, const char *sql,
                                    const char *name, jobq_pg_error *error)
{
    PGresult *res = PQexecParams(conn, sql, 1, NULL, &name, NULL, NULL, 1);

    if (PQresultStatus(res) == PGRES_TUPLES_OK) return res;
    jobq_pg__table_error(t, error, conn, res);
    PQclear(res);
    return NULL;
}

static jobq_error jobq_pg__laws_read(jobq_pg_table *t, PGconn *conn, const char *name,
                                     jobq_pg_error *error)
{
    PGresult *res = jobq_pg__catalogue(t, conn, JOBQ_PG__LAWS, name, error);
    bool good = true;
    int i;

    if (res == NULL) return error->code;
    t->laws = (jobq_pg__law *)calloc((size_t)PQntuples(res) + 1, sizeof *t->laws);
    for (i = 0; t->laws != NULL && i < PQntuples(res); i++) {
        t->laws[i].name = jobq_pg__dup(PQgetvalue(res, i, 0));
        t->laws[i].columns = jobq_pg__dup(PQgetvalue(res, i, 1));
        good = good && t->laws[i].name != NULL && t->laws[i].columns != NULL;
        t->law_count = i + 1;
    }
    good = good && t->laws != NULL;
    PQclear(res);
    return good ? JOBQ_OK : jobq_pg__no_memory(error);
}

static jobq_error jobq_pg__table_texts(jobq_pg_table *t, const char *name, jobq_pg_error *error)
{
    jobq_pg__params list, key;
    int i;

    jobq_pg__params_init(&list);
    jobq_pg__params_init(&key);
    for (i = 0; i < t->column_count; i++) {
        const jobq_pg_column *c = &t->desc->columns[i];
        jobq_pg__sayf(&list, "%s%n", i > 0 ? ", " : "", c->name);
        /* With its own name, ORDER BY would sort by the text: 10 before 9. */
        if (c->type == JOBQ_PG_NUMERIC) jobq_pg__say(&list, "::text AS \"?\"");
        if ((c->flags & JOBQ_PG_KEY) == 0) continue;
        if (key.size > 0) jobq_pg__say(&key, " ");
        jobq_pg__say(&key, c->name);
    }
    jobq_pg__raw(&list, "", 1);
    jobq_pg__raw(&key, "", 1);
    t->list = list.data;
    t->key = key.data;
    t->name = jobq_pg__dup(name);
    return list.failed || key.failed || t->name == NULL ? jobq_pg__no_memory(error) : JOBQ_OK;
}

static jobq_error jobq_pg__table_read(jobq_pg_table *t, PGconn *conn, jobq_pg_error *error)
{
    char *own = t->pg == NULL ? jobq_pg__dup(t->desc->name)
                              : jobq_pg__for_schema(t->desc->name, t->pg->schema);
    PGresult *res;
    jobq_error code;

    if (own == NULL) return jobq_pg__no_memory(error);
    res = jobq_pg__catalogue(t, conn, JOBQ_PG__CATALOGUE, own, error);
    if (res == NULL) code = error->code;
    else if (PQntuples(res) == 0) code = jobq_pg__unfit(t, error, own, "there is no such table");
    else {
        t->spread = jobq_pg__int(res, 0, 8) != 0;
        code = jobq_pg__columns_check(t, res, error);
        if (code == JOBQ_OK) code = jobq_pg__table_texts(t, PQgetvalue(res, 0, 0), error);
        if (code == JOBQ_OK) code = jobq_pg__laws_read(t, conn, own, error);
    }
    PQclear(res);
    free(own);
    return code;
}

JOBQ_API void jobq_pg_table_close(jobq_pg_table *t)
{
    int i;

    if (t == NULL) return;
    for (i = 0; i < JOBQ_PG__PLANS; i++) {
        while (t->plans[i] != NULL) {
            jobq_pg__plan *next = t->plans[i]->next;
            jobq_pg__plan_free(t->plans[i]);
            t->plans[i] = next;
        }
    }
    for (i = 0; i < t->law_count; i++) {
        free(t->laws[i].name);
        free(t->laws[i].columns);
    }
    free(t->laws);
    free(t->name);
    free(t->list);
    free(t->key);
    jobq_pg__os_mutex_end(&t->lock);
    free(t);
}

JOBQ_API jobq_error jobq_pg_table_open(jobq_pg_table **table, jobq_pg *pg, PGconn *conn,
                                       const jobq_pg_table_desc *desc, jobq_pg_error *error)
{
    jobq_pg_table *t = (jobq_pg_table *)calloc(1, sizeof *t);
    const char *column, *wrong;
    jobq_pg_error local;
    PGconn *mine = NULL;
    jobq_error code;

    JOBQ_ASSERT(table != NULL && desc != NULL && desc->name != NULL && desc->columns != NULL);
    if (error == NULL) error = &local;
    *table = NULL;
    if (t == NULL) return jobq_pg__no_memory(error);
    jobq_pg__os_mutex_init(&t->lock);
    t->pg = pg;
    t->desc = desc;
    t->entity = desc->entity == NULL ? desc->name : desc->entity;
    t->unprepared = desc->unprepared || (pg != NULL && pg->behind_pooler);
    while (t->column_count < JOBQ_PG__COLUMNS_MAX && desc->columns[t->column_count].name != NULL) {
        t->at[t->column_count] = t->column_count;
        t->column_count++;
    }
    wrong = jobq_pg__desc_wrong(desc, &column);
    if (wrong != NULL) code = jobq_pg__unfit(t, error, column, wrong);
    else code = jobq_pg__borrow(pg, conn, &mine, error);
    if (code == JOBQ_OK) code = jobq_pg__table_read(t, conn == NULL ? mine : conn, error);
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    if (code == JOBQ_OK) *table = t;
    else jobq_pg_table_close(t);
    return code;
}

#ifndef JOBQ_PG_NO_WORK_TABLES

/* ---- >>worktable: the job verbs on a table of the user's ------------------------------------- */

typedef enum jobq_pg__role {
    JOBQ_PG__ROLE_STATUS,
    JOBQ_PG__ROLE_RETRY_COUNT,
    JOBQ_PG__ROLE_RETRY_AFTER,
    JOBQ_PG__ROLE_ERROR,
    JOBQ_PG__ROLE_HEARTBEAT,
    JOBQ_PG__ROLE_CREATED_AT,
    JOBQ_PG__ROLE_WORKER,
    JOBQ_PG__ROLE_LEASE,
    JOBQ_PG__ROLE_COUNT
} jobq_pg__role;

/* A word in the status column, with the stage and state that it means. */
typedef struct jobq_pg__status {
    char word[128];
    int stage;
    jobq_state state;
} jobq_pg__status;

struct jobq_pg_worktable {
    jobq_pg_table *table;
    jobq_pg_worktable_desc desc;
    jobq_policy policy;
    const jobq_pg_column *columns[JOBQ_PG__ROLE_COUNT]; /* NULL: there is none */
    jobq_pg__status words[2 * JOBQ_STAGES_MAX + 3];
    int word_count;
    /* What tells a claimed row from any other: its key, its status, its token or heartbeat. */
    const jobq_pg_column *marks[JOBQ_PG__COLUMNS_MAX + 3];
    int key_count, mark_count;
    PGresult *types; /* of the table's columns, while the statements are made */
    jobq_pg__text claim, reset, look, settle, heartbeat;
};

static const struct {
    const char *name; /* by default; NULL: none */
    size_t offset;    /* of the name in jobq_pg_worktable_desc */
    jobq_pg_type type;
    bool null;        /* it must be nullable */
} jobq_pg__roles[JOBQ_PG__ROLE_COUNT] = {
    {"status", offsetof(jobq_pg_worktable_desc, status), JOBQ_PG_TEXT, false},
    {"retry_count", offsetof(jobq_pg_worktable_desc, retry_count), JOBQ_PG_INT32, false},
    {"retry_after", offsetof(jobq_pg_worktable_desc, retry_after), JOBQ_PG_TIMESTAMPTZ, true},
    {"error_message", offsetof(jobq_pg_worktable_desc, error), JOBQ_PG_TEXT, true},
    {"heartbeat", offsetof(jobq_pg_worktable_desc, heartbeat), JOBQ_PG_TIMESTAMPTZ, true},
    {"created_at", offsetof(jobq_pg_worktable_desc, created_at), JOBQ_PG_TIMESTAMPTZ, false},
    {NULL, offsetof(jobq_pg_worktable_desc, worker), JOBQ_PG_INT64, true},
    {NULL, offsetof(jobq_pg_worktable_desc, lease), JOBQ_PG_INT64, true}};

static jobq_error jobq_pg__role_find(jobq_pg_worktable *w, int role, jobq_pg_error *error)
{
    jobq_pg_table *t = w->table;
    const jobq_pg_column *c;
    const char *name;
    int at;

    memcpy(&name, (const char *)&w->desc + jobq_pg__roles[role].offset, sizeof name);
    if (name == NULL) name = jobq_pg__roles[role].name;
    if (name == NULL) return JOBQ_OK;
    at = jobq_pg__column_find(t, name, strlen(name));
    if (at < 0) return jobq_pg__unfit(t, error, name, "a work table needs this column");
    c = w->columns[role] = &t->desc->columns[at];
    if (c->type != jobq_pg__roles[role].type &&
        !(role == JOBQ_PG__ROLE_STATUS && c->type == JOBQ_PG_ENUM))
        return jobq_pg__unfit(t, error, name, "a work table needs another type here");
    if ((c->flags & (JOBQ_PG_READ_ONLY | JOBQ_PG_TOUCH)) != 0 && role != JOBQ_PG__ROLE_CREATED_AT)
        return jobq_pg__unfit(t, error, name, "a work table writes here, and it is read-only");
    if (!jobq_pg__listable(name)) return jobq_pg__unfit(t, error, name, JOBQ_PG__UNLISTABLE);
    if (((c->flags & JOBQ_PG_NULLABLE) != 0) != jobq_pg__roles[role].null)
        return jobq_pg__unfit(t, error, name, jobq_pg__roles[role].null
                                                  ? "a work table writes NULL here"
                                                  : "a work table can't have NULL here");
    if (jobq_pg__roles[role].null && jobq_pg__types[c->type].maybe != 0 && !jobq_pg__is_maybe(c))
        return jobq_pg__unfit(t, error, name, "a work table needs a jobq_pg_maybe_... here");
    return JOBQ_OK;
}

static jobq_error jobq_pg__roles_find(jobq_pg_worktable *w, jobq_pg_error *error)
{
    const jobq_pg_worktable_desc *d = &w->desc;
    jobq_error code = JOBQ_OK;
    int i;

    for (i = 0; i < JOBQ_PG__ROLE_COUNT && code == JOBQ_OK; i++)
        code = jobq_pg__role_find(w, i, error);
    if (code == JOBQ_OK && (d->worker == NULL) != (d->lease == NULL))
        return jobq_pg__invalid(error, "lease", "must be given with worker, or neither of them");
    return code;
}

/* The word of a stage and state: one of desc.words, or made from desc.stages. False: it is missing
 * or too long. */
static bool jobq_pg__word_of(const jobq_pg_worktable_desc *d, jobq_pg__status *s)
{
    int at = 2 * d->stage_count + (s->state == JOBQ_STATE_FAILED);

    if (d->words == NULL)
        return jobq_status_format(s->word, sizeof s->word, d->stages, d->stage_count, s->stage,
                                  s->state) == JOBQ_OK;
    if (!jobq_state_final(s->state)) at = 2 * s->stage + (s->state == JOBQ_STATE_RUNNING);
    if (d->words[at] == NULL || strlen(d->words[at]) >= sizeof s->word) return false;
    jobq_pg__copy(s->word, sizeof s->word, d->words[at]);
    return true;
}

static jobq_error jobq_pg__word_add(jobq_pg_worktable *w, int stage, jobq_state state,
                                    jobq_pg_error *error)
{
    jobq_pg__status *s = &w->words[w->word_count++];
    const jobq_pg_column *c = w->columns[JOBQ_PG__ROLE_STATUS];
    const char *p, *field = w->desc.words == NULL ? "stages" : "words";
    int i;

    s->stage = stage;
    s->state = state;
    if (!jobq_pg__word_of(&w->desc, s))
        return jobq_pg__invalid(error, field, "has a word that is missing or too long");
    for (p = s->word; *p != '\0'; p++) {
        if (!jobq_pg__word(*p) && *p != '-' && *p != ' ')
            return jobq_pg__invalid(error, field,
                                    "must have only letters, digits, blanks, _ and - in words");
    }
    for (i = 0; i < w->word_count - 1; i++) {
        if (strcmp(w->words[i].word, s->word) == 0)
            return jobq_pg__unfit(w->table, error, s->word, "means two things");
    }
    if (c->type != JOBQ_PG_ENUM || jobq_pg__name_find(c->names, jobq_str_from(s->word)) >= 0)
        return JOBQ_OK;
    return jobq_pg__unfit(w->table, error, s->word, "is not a name of the column's enum");
}

static jobq_error jobq_pg__words_fill(jobq_pg_worktable *w, jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    int stage, last = w->desc.stage_count - 1;

    if ((w->desc.stages == NULL) == (w->desc.words == NULL) || last < 0 || last >= JOBQ_STAGES_MAX)
        return jobq_pg__invalid(error, "stages", "must be 1 to 16, either as stages or as words");
    for (stage = last; stage >= 0 && code == JOBQ_OK; stage--) {
        code = jobq_pg__word_add(w, stage, JOBQ_STATE_READY, error);
        if (code == JOBQ_OK) code = jobq_pg__word_add(w, stage, JOBQ_STATE_RUNNING, error);
    }
    if (code == JOBQ_OK) code = jobq_pg__word_add(w, last, JOBQ_STATE_SUCCEEDED, error);
    return code != JOBQ_OK ? code : jobq_pg__word_add(w, last, JOBQ_STATE_FAILED, error);
}

static const jobq_pg__status *jobq_pg__status_find(const jobq_pg_worktable *w, int stage,
                                                   jobq_state state)
{
    int i;

    for (i = 0; i < w->word_count; i++) {
        if (w->words[i].state == state && (w->words[i].stage == stage || jobq_state_final(state)))
            return &w->words[i];
    }
    return NULL;
}

/* What the row's status means. NULL: it is none of the table's words. */
static const jobq_pg__status *jobq_pg__status_of(const jobq_pg_worktable *w, const void *row)
{
    const jobq_pg_column *c = w->columns[JOBQ_PG__ROLE_STATUS];
    const void *field = (const char *)row + c->offset;
    jobq_str word = {NULL, 0};
    int i;

    if (c->type == JOBQ_PG_TEXT) word = *(const jobq_str *)field;
    else if (jobq_pg__wrong_enum(c, *(const int *)field) == NULL)
        word = jobq_str_from(c->names[*(const int *)field]);
    for (i = 0; i < w->word_count; i++) {
        if (jobq_str_equal(word, jobq_str_from(w->words[i].word))) return &w->words[i];
    }
    return NULL;
}

/* -- the statements; claim, reset and look repeat rules of jobq_job_decide -- */

static const char *jobq_pg__role_name(const jobq_pg_worktable *w, int role)
{
    return w->columns[role]->name;
}

/* A column's type, under a domain its base type. */
static const char *jobq_pg__type_of(const jobq_pg_worktable *w, const jobq_pg_column *c)
{
    int r;

    for (r = 0; r < PQntuples(w->types); r++) {
        if (strcmp(PQgetvalue(w->types, r, 0), c->name) == 0) return PQgetvalue(w->types, r, 1);
    }
    return "text";
}

static const char *jobq_pg__status_type(const jobq_pg_worktable *w)
{
    return jobq_pg__type_of(w, w->columns[JOBQ_PG__ROLE_STATUS]);
}

/* The names of the key's columns, with open before each. */
static void jobq_pg__say_key(jobq_pg__params *out, const jobq_pg_worktable *w, const char *open)
{
    int i;

    for (i = 0; i < w->key_count; i++)
        jobq_pg__sayf(out, "%s%s%n", i > 0 ? ", " : "", open, w->marks[i]->name);
}

/* Selects what is due in one stage, oldest first, up to $1 rows. */
static void jobq_pg__say_lane(jobq_pg__params *out, const jobq_pg_worktable *w,
                              const jobq_pg__status *s, const char *what, bool claim)
{
    const char *after = jobq_pg__role_name(w, JOBQ_PG__ROLE_RETRY_AFTER);

    jobq_pg__sayf(out, "SELECT * FROM (SELECT %s FROM %s WHERE %n = '%s' AND %n < %d AND (%n IS "
                       "NULL OR %n <= statement_timestamp())",
                  what, w->table->name, jobq_pg__role_name(w, JOBQ_PG__ROLE_STATUS), s->word,
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_RETRY_COUNT), (int)w->policy.max_attempts,
                  after, after);
    if (!claim) {
        jobq_pg__say(out, " AND concat_ws(' ', ");
        jobq_pg__say_key(out, w, "");
        jobq_pg__say(out, ") <> ALL ($2::text[])");
    }
    jobq_pg__sayf(out, " ORDER BY %n, ", jobq_pg__role_name(w, JOBQ_PG__ROLE_CREATED_AT));
    jobq_pg__say_key(out, w, "");
    jobq_pg__say(out, claim ? " LIMIT $1::bigint FOR UPDATE SKIP LOCKED) lane"
                            : " LIMIT $1::bigint) lane");
}

/* A SELECT for each stage, later stages first. UNION ALL reads them lazily, so nothing is sorted
 * and at most $1 rows are locked. */
static void jobq_pg__say_lanes(jobq_pg__params *out, const jobq_pg_worktable *w, const char *what,
                               bool claim)
{
    int stage;

    for (stage = w->desc.stage_count - 1; stage >= 0; stage--) {
        jobq_pg__say_lane(out, w, jobq_pg__status_find(w, stage, JOBQ_STATE_READY), what, claim);
        jobq_pg__say(out, stage > 0 ? " UNION ALL " : " LIMIT $1::bigint");
    }
}

/* " CASE status WHEN from THEN to ... END" for every stage. */
static void jobq_pg__say_moves(jobq_pg__params *out, const jobq_pg_worktable *w, jobq_state from,
                               jobq_state to)
{
    int stage;

    jobq_pg__sayf(out, "CASE %n", jobq_pg__role_name(w, JOBQ_PG__ROLE_STATUS));
    for (stage = 0; stage < w->desc.stage_count; stage++) {
        jobq_pg__sayf(out, " WHEN '%s' THEN '%s'", jobq_pg__status_find(w, stage, from)->word,
                      jobq_pg__status_find(w, stage, to)->word);
    }
    jobq_pg__sayf(out, " ELSE '%s' END", jobq_pg__status_find(w, 0, JOBQ_STATE_FAILED)->word);
}

static void jobq_pg__say_value(jobq_pg__params *out, const jobq_pg_worktable *w, int role,
                               const char *value)
{
    if (w->columns[role] != NULL)
        jobq_pg__sayf(out, ", %n = %s", jobq_pg__role_name(w, role), value);
}

static void jobq_pg__say_claim(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    jobq_pg__sayf(out, "UPDATE %s SET %n = (", w->table->name,
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_STATUS));
    jobq_pg__say_moves(out, w, JOBQ_STATE_READY, JOBQ_STATE_RUNNING);
    jobq_pg__sayf(out, ")::%s", jobq_pg__status_type(w));
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_HEARTBEAT, "statement_timestamp()");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_RETRY_AFTER, "NULL");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_WORKER, "$2::bigint");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_LEASE, "$3::bigint");
    jobq_pg__say_touch(out, w->table, false);
    jobq_pg__say(out, " WHERE ctid = ANY (ARRAY(");
    jobq_pg__say_lanes(out, w, "ctid", true);
    jobq_pg__sayf(out, ")) RETURNING %s", w->table->list);
}

/* "status IN (...)": all stages in a state. */
static void jobq_pg__say_in(jobq_pg__params *out, const jobq_pg_worktable *w, jobq_state state)
{
    int stage;

    jobq_pg__say_name(out, jobq_pg__role_name(w, JOBQ_PG__ROLE_STATUS));
    for (stage = 0; stage < w->desc.stage_count; stage++)
        jobq_pg__sayf(out, "%s'%s'", stage == 0 ? " IN (" : ", ",
                      jobq_pg__status_find(w, stage, state)->word);
    jobq_pg__say(out, ")");
}

/* Rows that run without a heartbeat, and rows that wait with no attempt left. */
static void jobq_pg__say_reset_which(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    jobq_pg__sayf(out, " WHERE ctid = ANY (ARRAY(SELECT ctid FROM %s WHERE ", w->table->name);
    jobq_pg__say_in(out, w, JOBQ_STATE_RUNNING);
    jobq_pg__sayf(out, " AND coalesce(%n, '-infinity') < statement_timestamp() - $1::bigint * "
                       "interval '1 microsecond' OR ",
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_HEARTBEAT));
    jobq_pg__say_in(out, w, JOBQ_STATE_READY);
    jobq_pg__sayf(out, " AND %n >= %d LIMIT 1000 FOR UPDATE SKIP LOCKED))",
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_RETRY_COUNT), (int)w->policy.max_attempts);
}

/* Applies the event CRASH to every row as if it were a suspect: the table has no column to tell. */
static void jobq_pg__say_reset(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    const char *count = jobq_pg__role_name(w, JOBQ_PG__ROLE_RETRY_COUNT);
    const char *error = jobq_pg__role_name(w, JOBQ_PG__ROLE_ERROR);
    int most = (int)w->policy.max_attempts;

    jobq_pg__sayf(out, "UPDATE %s SET %n = (CASE WHEN %n >= %d THEN '%s' ELSE ", w->table->name,
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_STATUS), count, most - 1,
                  jobq_pg__status_find(w, 0, JOBQ_STATE_FAILED)->word);
    jobq_pg__say_moves(out, w, JOBQ_STATE_RUNNING, JOBQ_STATE_READY);
    jobq_pg__sayf(out, " END)::%s, %n = CASE WHEN ", jobq_pg__status_type(w), error);
    jobq_pg__say_in(out, w, JOBQ_STATE_READY); /* no attempt is left: it keeps its own error */
    jobq_pg__sayf(out, " THEN coalesce(%n, 'Max retries (%d) exceeded') WHEN %n >= %d THEN "
                       "'Max retries (%d) exceeded: heartbeat lost' ELSE 'heartbeat lost' END, "
                       "%n = %n + (",
                  error, most, count, most - 1, most, count, count);
    jobq_pg__say_in(out, w, JOBQ_STATE_RUNNING);
    jobq_pg__say(out, ")::integer");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_HEARTBEAT, "NULL");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_WORKER, "NULL");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_LEASE, "NULL");
    jobq_pg__say_touch(out, w->table, false);
    jobq_pg__say_reset_which(out, w);
}

static void jobq_pg__say_look(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    jobq_pg__say_lanes(out, w, w->table->list, false);
}

#define JOBQ_PG__FATES 5 /* arrays that say what rows become: see jobq_pg__add_fates */

/* The oid of what a column's values are sent as: text, or its own type. */
static int jobq_pg__sent_as(const jobq_pg_column *c)
{
    return c->type == JOBQ_PG_NUMERIC ? jobq_pg__wires[JOBQ_PG__TEXT].oid
                                      : jobq_pg__types[c->type].oids[0];
}

/* u: an array for each mark, and of settle for what each row becomes; n: the place of a row. With
 * SELECT the planner does not look into the arrays. Otherwise it would plan each call for one row
 * anew, because its plan for any number looks dearer. */
static void jobq_pg__say_given(jobq_pg__params *out, const jobq_pg_worktable *w, bool settle)
{
    static const char *const fates[] = {"text", "integer", "bigint", "boolean", "text"};
    int i, n = w->mark_count;

    jobq_pg__say(out, "WITH u AS (SELECT * FROM unnest(");
    for (i = 0; i < n; i++) {
        bool text = jobq_pg__sent_as(w->marks[i]) == jobq_pg__wires[JOBQ_PG__TEXT].oid;
        jobq_pg__sayf(out, "%s(SELECT $%d::%s[])", i > 0 ? ", " : "", i + 1,
                      text ? "text" : jobq_pg__type_of(w, w->marks[i]));
    }
    for (i = 0; i < JOBQ_PG__FATES && settle; i++)
        jobq_pg__sayf(out, ", (SELECT $%d::%s[])", n + i + 1, fates[i]);
    jobq_pg__say(out, ") WITH ORDINALITY u(");
    for (i = 0; i < n; i++) jobq_pg__sayf(out, "m%d, ", i);
    jobq_pg__say(out, settle ? "status, failed, delay, keep, why, n))" : "n))");
}

/* "t.id = u.m0::bigint AND ...": the first marks of a row. */
static void jobq_pg__say_marked(jobq_pg__params *out, const jobq_pg_worktable *w, int count)
{
    int i;

    for (i = 0; i < count; i++) {
        jobq_pg__sayf(out, "%st.%n %s u.m%d::%s", i > 0 ? " AND " : "", w->marks[i]->name,
                      i < w->key_count ? "=" : "IS NOT DISTINCT FROM", i,
                      jobq_pg__type_of(w, w->marks[i]));
    }
}

static void jobq_pg__say_fate(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    const char *error = jobq_pg__role_name(w, JOBQ_PG__ROLE_ERROR);

    jobq_pg__sayf(out, "%n = u.status::%s, %n = u.failed, %n = CASE WHEN u.delay > 0 THEN "
                       "statement_timestamp() + u.delay * interval '1 microsecond' END, "
                       "%n = CASE WHEN u.keep THEN t.%n ELSE u.why END",
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_STATUS), jobq_pg__status_type(w),
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_RETRY_COUNT),
                  jobq_pg__role_name(w, JOBQ_PG__ROLE_RETRY_AFTER), error, error);
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_HEARTBEAT, "NULL");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_WORKER, "NULL");
    jobq_pg__say_value(out, w, JOBQ_PG__ROLE_LEASE, "NULL");
}

/* Rows are locked in the order of their keys, so that a heartbeat and a settle of the same rows
 * cannot block each other. Of each row: whether it was written, its heartbeat, and if it was not,
 * whether it is there. */
static void jobq_pg__say_write(jobq_pg__params *out, const jobq_pg_worktable *w, bool settle)
{
    const char *beat = jobq_pg__role_name(w, JOBQ_PG__ROLE_HEARTBEAT);

    jobq_pg__say_given(out, w, settle);
    jobq_pg__sayf(out, ", held AS (SELECT u.n FROM u JOIN %s t ON ", w->table->name);
    jobq_pg__say_marked(out, w, w->mark_count);
    jobq_pg__say(out, " ORDER BY ");
    jobq_pg__say_key(out, w, "t.");
    jobq_pg__sayf(out, " FOR UPDATE OF t), done AS (UPDATE %s t SET ", w->table->name);
    if (settle) jobq_pg__say_fate(out, w);
    else jobq_pg__sayf(out, "%n = statement_timestamp()", beat);
    jobq_pg__say_touch(out, w->table, false);
    jobq_pg__say(out, " FROM u JOIN held USING (n) WHERE ");
    jobq_pg__say_marked(out, w, w->key_count);
    jobq_pg__sayf(out, " RETURNING u.n, t.%n AS beat) SELECT done.n IS NOT NULL, done.beat, "
                       "done.n IS NULL AND EXISTS (SELECT FROM %s t WHERE ", beat, w->table->name);
    jobq_pg__say_marked(out, w, w->key_count);
    jobq_pg__say(out, ") FROM u LEFT JOIN done USING (n) ORDER BY u.n");
}

static void jobq_pg__say_settle(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    jobq_pg__say_write(out, w, true);
}

static void jobq_pg__say_heartbeat(jobq_pg__params *out, const jobq_pg_worktable *w)
{
    jobq_pg__say_write(out, w, false);
}

static bool jobq_pg__work_plan(jobq_pg__text *text, const jobq_pg_worktable *w,
                               void (*say)(jobq_pg__params *, const jobq_pg_worktable *))
{
    jobq_pg__params out;

    jobq_pg__params_init(&out);
    say(&out, w);
    jobq_pg__raw(&out, "", 1);
    text->sql = out.data;
    if (!out.failed) text->hash = jobq_pg__hash(JOBQ_PG__HASH_SEED, text->sql);
    return !out.failed;
}

static bool jobq_pg__work_plans(jobq_pg_worktable *w)
{
    return jobq_pg__work_plan(&w->claim, w, jobq_pg__say_claim) &&
           jobq_pg__work_plan(&w->reset, w, jobq_pg__say_reset) &&
           jobq_pg__work_plan(&w->look, w, jobq_pg__say_look) &&
           jobq_pg__work_plan(&w->settle, w, jobq_pg__say_settle) &&
           jobq_pg__work_plan(&w->heartbeat, w, jobq_pg__say_heartbeat);
}

static jobq_error jobq_pg__marks_find(jobq_pg_worktable *w, jobq_pg_error *error)
{
    bool token = w->desc.lease != NULL;
    int i;

    for (i = 0; i < w->table->column_count; i++) {
        const jobq_pg_column *c = &w->table->desc->columns[i];
        if ((c->flags & JOBQ_PG_KEY) == 0) continue;
        if (jobq_pg__is_array(c->type))
            return jobq_pg__unfit(w->table, error, c->name, "the key of a work table cannot be an "
                                                            "array");
        w->marks[w->key_count++] = c;
    }
    w->mark_count = w->key_count;
    w->marks[w->mark_count++] = w->columns[JOBQ_PG__ROLE_STATUS];
    w->marks[w->mark_count++] = w->columns[token ? JOBQ_PG__ROLE_WORKER : JOBQ_PG__ROLE_HEARTBEAT];
    if (token) w->marks[w->mark_count++] = w->columns[JOBQ_PG__ROLE_LEASE];
    return JOBQ_OK;
}

/* A column's name, its type, and why it cannot be the status. The server cannot compare a domain
 * over an enum with a text. */
#define JOBQ_PG__TYPES                                                                             \
    "SELECT attname, quote_ident(n.nspname) || '.' || quote_ident(b.typname), "                    \
    "CASE WHEN b.oid = 'bpchar'::regtype THEN "                                                    \
    "'is char(n), which adds blanks to the words: make it text' "                                  \
    "WHEN t.typcategory = 'E' AND t.typtype <> 'e' THEN "                                          \
    "'is a domain: make it the enum itself' ELSE '' END "                                          \
    "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "                                    \
    "JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid) "                         \
    "JOIN pg_namespace n ON n.oid = b.typnamespace "                                               \
    "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped"

static jobq_error jobq_pg__types_read(jobq_pg_worktable *w, PGconn *conn, jobq_pg_error *error)
{
    const char *name = w->table->name, *status = w->columns[JOBQ_PG__ROLE_STATUS]->name;
    int r;

    w->types = PQexecParams(conn, JOBQ_PG__TYPES, 1, NULL, &name, NULL, NULL, 0);
    if (PQresultStatus(w->types) != PGRES_TUPLES_OK)
        return jobq_pg__table_error(w->table, error, conn, w->types);
    for (r = 0; r < PQntuples(w->types); r++) {
        const char *wrong = PQgetvalue(w->types, r, 2);
        if (strcmp(PQgetvalue(w->types, r, 0), status) == 0 && wrong[0] != '\0')
            return jobq_pg__unfit(w->table, error, status, wrong);
    }
    return JOBQ_OK;
}

JOBQ_API void jobq_pg_worktable_close(jobq_pg_worktable *w)
{
    if (w == NULL) return;
    free(w->claim.sql);
    free(w->reset.sql);
    free(w->look.sql);
    free(w->settle.sql);
    free(w->heartbeat.sql);
    free(w);
}

JOBQ_API jobq_error jobq_pg_worktable_open(jobq_pg_worktable **work, jobq_pg_table *table,
                                           PGconn *conn, const jobq_pg_worktable_desc *desc,
                                           jobq_pg_error *error)
{
    jobq_pg_worktable *w = (jobq_pg_worktable *)calloc(1, sizeof *w);
    PGconn *mine = NULL;
    jobq_error code;

    JOBQ_ASSERT(work != NULL && table != NULL && desc != NULL);
    *work = NULL;
    if (w == NULL) return jobq_pg__no_memory(error);
    w->table = table;
    w->desc = *desc;
    w->policy.max_attempts = desc->max_retries;
    w->policy.max_crashes = INT32_MAX;
    w->policy.attempts_span_stages = desc->attempts_span_stages;
    w->policy.backoff = desc->backoff.base_us == 0 ? jobq_backoff_seed() : desc->backoff;
    w->policy = jobq_policy_defaults(&w->policy);
    if (w->desc.stale_us == 0) w->desc.stale_us = 300 * (int64_t)1000000;
    code = jobq_pg__not_spread(table, error);
    if (code == JOBQ_OK) code = jobq_pg__roles_find(w, error);
    if (code == JOBQ_OK) code = jobq_pg__marks_find(w, error);
    if (code == JOBQ_OK) code = jobq_pg__words_fill(w, error);
    if (code == JOBQ_OK && (w->policy.max_attempts < 1 || w->desc.stale_us < 0))
        code = jobq_pg__invalid(error, "desc",
                                "has a max_retries or stale_us that is out of range");
    if (code == JOBQ_OK && (jobq_pg__backoff_invalid(&desc->backoff, "backoff", error) ||
                            jobq_pg__short(desc->stale_us, "stale_us", error)))
        code = JOBQ_ERROR_INVALID;
    if (code == JOBQ_OK) code = jobq_pg__borrow(table->pg, conn, &mine, error);
    if (code == JOBQ_OK) code = jobq_pg__types_read(w, conn == NULL ? mine : conn, error);
    if (mine != NULL) jobq_pg__give_back(table->pg, mine, JOBQ_PG__BY_US);
    if (code == JOBQ_OK && !jobq_pg__work_plans(w)) code = jobq_pg__no_memory(error);
    PQclear(w->types);
    w->types = NULL;
    if (code == JOBQ_OK) *work = w;
    else jobq_pg_worktable_close(w);
    return code;
}

/* ---- >>work_verbs: the verbs of work tables -------------------------------------------------- */

JOBQ_API int jobq_pg_worktable_stage(const jobq_pg_worktable *w, const void *row)
{
    const jobq_pg__status *s = jobq_pg__status_of(w, row);

    return s == NULL ? -1 : s->stage;
}

typedef struct jobq_pg__place {
    int stage;
    int64_t created_us, id;
    jobq_str name; /* instead of id, when the key is a text */
    const char *row;
} jobq_pg__place;

static int jobq_pg__by_place(const void *a, const void *b)
{
    const jobq_pg__place *x = (const jobq_pg__place *)a, *y = (const jobq_pg__place *)b;
    size_t len = x->name.len < y->name.len ? x->name.len : y->name.len;
    int order;

    if (x->stage != y->stage) return x->stage > y->stage ? -1 : 1;
    if (x->created_us != y->created_us) return x->created_us < y->created_us ? -1 : 1;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    order = len == 0 ? 0 : memcmp(x->name.ptr, y->name.ptr, len);
    return order != 0 ? order : (x->name.len > y->name.len) - (x->name.len < y->name.len);
}

static jobq_pg__place jobq_pg__place_of(const jobq_pg_worktable *w, const char *row)
{
    jobq_pg__place place;
    int i;

    memset(&place, 0, sizeof place);
    place.row = row;
    place.stage = jobq_pg_worktable_stage(w, row);
    memcpy(&place.created_us, row + w->columns[JOBQ_PG__ROLE_CREATED_AT]->offset, 8);
    for (i = 0; i < w->table->column_count; i++) {
        const jobq_pg_column *c = &w->table->desc->columns[i];
        if ((c->flags & JOBQ_PG_KEY) == 0) continue;
        if (c->type == JOBQ_PG_TEXT)
            place.name = *(const jobq_str *)(const void *)(row + c->offset);
        else (void)jobq_pg__long_of(c->type, row + c->offset, &place.id);
        break;
    }
    return place;
}

/* RETURNING has no order. The rows are sorted here, so that a Sort in the statement's plan always
 * means a missing index. */
static jobq_error jobq_pg__rows_order(const jobq_pg_worktable *w, jobq_pg_rows *rows,
                                      jobq_pg_error *error)
{
    size_t size = w->table->desc->row_size, i;
    char *at = (char *)rows->rows, *copy;
    jobq_pg__place *places;

    if (rows->count < 2) return JOBQ_OK;
    copy = (char *)malloc(rows->count * size);
    places = (jobq_pg__place *)malloc(rows->count * sizeof *places);
    if (copy != NULL && places != NULL) {
        memcpy(copy, at, rows->count * size);
        for (i = 0; i < rows->count; i++) places[i] = jobq_pg__place_of(w, copy + i * size);
        qsort(places, rows->count, sizeof *places, jobq_pg__by_place);
        for (i = 0; i < rows->count; i++) memcpy(at + i * size, places[i].row, size);
    }
    i = copy != NULL && places != NULL;
    free(copy);
    free(places);
    return i ? JOBQ_OK : jobq_pg__no_memory(error);
}

static jobq_error jobq_pg__work_rows(jobq_pg_worktable *w, PGconn *conn, const jobq_pg__text *text,
                                     jobq_pg__params *args, jobq_pg_rows *rows,
                                     jobq_pg_error *error)
{
    PGresult *res = jobq_pg__table_exec(w->table, conn, text, args, error);
    jobq_error code;

    if (res == NULL) return error->code;
    code = jobq_pg__rows_take(w->table, res, INT32_MAX, rows, error);
    return code != JOBQ_OK ? code : jobq_pg__rows_order(w, rows, error);
}

typedef struct jobq_pg__claiming {
    jobq_pg_worktable *work;
    int32_t count;
    int64_t worker, lease;
    jobq_pg_rows *rows;
} jobq_pg__claiming;

static jobq_error jobq_pg__claim_rows(PGconn *conn, void *user, jobq_pg_error *error)
{
    const jobq_pg__claiming *c = (const jobq_pg__claiming *)user;
    bool token = c->work->desc.lease != NULL;
    jobq_pg__params args;

    jobq_pg_rows_clear(c->rows); /* of a first try that was rolled back */
    jobq_pg__params_init(&args);
    jobq_pg__add_int(&args, c->count, 8);
    if (token) jobq_pg__add_int(&args, c->worker, 8);
    if (token) jobq_pg__add_int(&args, c->lease, 8);
    return jobq_pg__work_rows(c->work, conn, &c->work->claim, &args, c->rows, error);
}

/* Whether a transaction failed because the connection's record of prepared statements was wrong.
 * The record is correct by now. */
static bool jobq_pg__was_stale(const jobq_pg_error *error)
{
    return strcmp(error->sqlstate, "26000") == 0 || strcmp(error->sqlstate, "0A000") == 0 ||
           strcmp(error->sqlstate, "25P02") == 0;
}

/* Claims and reads the rows in one transaction. Otherwise one row that cannot be read would leave
 * the whole batch to reset, which counts an attempt of each row. */
JOBQ_API jobq_error jobq_pg_worktable_claim(jobq_pg_worktable *w, PGconn *conn, int32_t count,
                                            int64_t worker, int64_t lease, jobq_pg_rows *rows,
                                            jobq_pg_error *error)
{
    jobq_pg__claiming c = {w, count, worker, lease, rows};
    PGconn *mine = NULL;
    jobq_pg_error local;
    jobq_error code;
    jobq_pg *pg;
    bool idle;

    JOBQ_ASSERT(w != NULL && rows != NULL);
    pg = w->table->pg;
    if (error == NULL) error = &local;
    memset(rows, 0, sizeof *rows);
    if (count < 1) return jobq_pg__invalid_int(error, "count", count, "must be at least 1");
    if (w->desc.lease != NULL && (worker == 0 || lease <= 0))
        return jobq_pg__invalid(error, "lease",
                                "needs a worker and a lease, because the table has tokens");
    code = jobq_pg__borrow(pg, conn, &mine, error);
    if (code != JOBQ_OK) return code;
    if (conn == NULL) conn = mine;
    idle = PQtransactionStatus(conn) == PQTRANS_IDLE;
    code = jobq_pg_transact(pg, conn, jobq_pg__claim_rows, &c, error);
    if (code != JOBQ_OK && idle && jobq_pg__was_stale(error))
        code = jobq_pg_transact(pg, conn, jobq_pg__claim_rows, &c, error);
    if (code != JOBQ_OK) jobq_pg_rows_clear(rows);
    if (mine != NULL) jobq_pg__give_back(pg, mine, JOBQ_PG__BY_US);
    return code;
}

JOBQ_API jobq_error jobq_pg_worktable_look(jobq_pg_worktable *w, PGconn *conn, int32_t count,
                                           const char *const *exclude, size_t exclude_count,
                                           jobq_pg_rows *rows, jobq_pg_error *error)
{
    jobq_pg_error local;
    jobq_pg__params args;
    size_t i;

    JOBQ_ASSERT(w != NULL && rows != NULL);
    if (error == NULL) error = &local;
    memset(rows, 0, sizeof *rows);
    if (count < 1) return jobq_pg__invalid_int(error, "count", count, "must be at least 1");
    for (i = 0; i < exclude_count; i++) {
        if (exclude[i] == NULL || !jobq_utf8_valid(jobq_str_from(exclude[i])))
            return jobq_pg__invalid(error, "exclude", "has an element that is NULL, or not UTF-8");
    }
    jobq_pg__params_init(&args);
    jobq_pg__add_int(&args, count, 8);
    jobq_pg__begin(&args);
    jobq_pg__array_head_put(&args, JOBQ_PG__TEXT, exclude_count);
    for (i = 0; i < exclude_count; i++) {
        jobq_pg__item_str(&args, jobq_str_from(exclude[i]));
    }
    jobq_pg__end(&args);
    return jobq_pg__work_rows(w, conn, &w->look, &args, rows, error);
}

JOBQ_API jobq_error jobq_pg_worktable_reset(jobq_pg_worktable *w, PGconn *conn, int64_t *count,
                                            jobq_pg_error *error)
{
    jobq_pg_error local;
    jobq_pg__params args;
    PGresult *res;

    JOBQ_ASSERT(w != NULL);
    if (error == NULL) error = &local;
    jobq_pg__params_init(&args);
    jobq_pg__add_int(&args, w->desc.stale_us, 8);
    res = jobq_pg__table_exec(w->table, conn, &w->reset, &args, error);
    if (res == NULL) return error->code;
    if (count != NULL) *count = strtoll(PQcmdTuples(res), NULL, 10);
    PQclear(res);
    return JOBQ_OK;
}

/* The facts for jobq_job_decide. They hold no token: the update compares the row's own. */
static jobq_job jobq_pg__work_job(const jobq_pg_worktable *w, const jobq_pg__status *s,
                                  const void *row)
{
    jobq_job job = jobq_job_new(0);
    int32_t failed;

    memcpy(&failed, (const char *)row + w->columns[JOBQ_PG__ROLE_RETRY_COUNT]->offset, 4);
    job.stages = (int16_t)w->desc.stage_count;
    job.stage = (int16_t)s->stage;
    job.state = s->state;
    job.attempt = failed < INT32_MAX ? failed + 1 : failed; /* the one that runs */
    return job;
}

/* The new count decides the delay: the first is the curve's second, 120 s by default. */
static int64_t jobq_pg__work_delay(const jobq_pg_worktable *w, const char *row)
{
    jobq_random random = {(uint64_t)jobq_pg__mono_us() ^ (uint64_t)jobq_pg__os_pid() << 32 ^
                          (uint64_t)(uintptr_t)row};
    int32_t failed;

    memcpy(&failed, row + w->columns[JOBQ_PG__ROLE_RETRY_COUNT]->offset, sizeof failed);
    return jobq_backoff_delay(&w->policy.backoff, (uint32_t)failed + 1, jobq_random_next(&random));
}

/* -- settle and heartbeat: one statement for all rows of a call -- */

/* A row of a call. */
typedef struct jobq_pg__fate {
    jobq_error code; /* not JOBQ_OK: it is not sent, or was not written */
    jobq_event_kind kind;
    jobq_decision next; /* of settle */
} jobq_pg__fate;

typedef struct jobq_pg__batch {
    jobq_pg_worktable *work;
    const char *rows;
    jobq_pg_verdict *verdicts; /* of a heartbeat: may be NULL */
    size_t count, sent;
    bool settles;
    jobq_pg__fate *fates; /* of count rows */
} jobq_pg__batch;

static const char *jobq_pg__batch_row(const jobq_pg__batch *b, size_t i)
{
    return b->rows + i * b->work->table->desc->row_size;
}

/* NONE: a work table has no such outcome. */
static jobq_event_kind jobq_pg__work_event(jobq_outcome outcome)
{
    if (outcome == JOBQ_OUTCOME_SUCCESS) return JOBQ_EVENT_SUCCESS;
    if (outcome == JOBQ_OUTCOME_DISCARD) return JOBQ_EVENT_DISCARD;
    if (outcome == JOBQ_OUTCOME_RELEASE) return JOBQ_EVENT_RELEASE;
    return outcome == JOBQ_OUTCOME_NONE || outcome == JOBQ_OUTCOME_RETRY ? JOBQ_EVENT_RETRY
                                                                         : JOBQ_EVENT_NONE;
}

/* Decides what becomes of a row. JOBQ_ERROR_TRANSITION: by its status it does not run. */
static jobq_error jobq_pg__fate_of(const jobq_pg__batch *b, size_t i, jobq_pg__fate *f)
{
    const char *row = jobq_pg__batch_row(b, i);
    const jobq_pg__status *s = jobq_pg__status_of(b->work, row);
    jobq_event event;
    jobq_job job;

    if (s == NULL || s->state != JOBQ_STATE_RUNNING) return JOBQ_ERROR_TRANSITION;
    if (!b->settles) return JOBQ_OK;
    memset(&event, 0, sizeof event);
    event.kind = f->kind = jobq_pg__work_event(b->verdicts[i].outcome);
    event.delay_named = event.kind == JOBQ_EVENT_RETRY;
    if (event.delay_named) event.delay_us = jobq_pg__work_delay(b->work, row);
    job = jobq_pg__work_job(b->work, s, row);
    return jobq_job_decide(&b->work->policy, &job, &event, &f->next);
}

/* A row that no claim can have given refuses the call. */
static jobq_error jobq_pg__marks_check(const jobq_pg_worktable *w, const char *row,
                                       jobq_pg_error *error)
{
    int i;

    for (i = 0; i < w->mark_count; i++) {
        const jobq_pg_column *c = w->marks[i];
        bool null = jobq_pg__is_null(c, row + c->offset);
        const char *why = null ? NULL : jobq_pg__wrong(c, row + c->offset);
        if (null && (c->flags & JOBQ_PG_NULLABLE) == 0) why = "is missing";
        if (why != NULL) return jobq_pg__unfit(w->table, error, c->name, why);
    }
    return JOBQ_OK;
}

/* What a row has in a column, after its size. */
static void jobq_pg__item_field(jobq_pg__params *p, const jobq_pg__batch *b, size_t i,
                                const jobq_pg_column *c)
{
    const jobq_pg_table *t = b->work->table;
    const char *field = jobq_pg__batch_row(b, i) + c->offset;
    size_t at = p->size, byte;

    jobq_pg__raw_int(p, -1, 4);
    if (jobq_pg__is_null(c, field)) return;
    jobq_pg__put_value(p, c, t->jsonb[c - t->desc->columns], field);
    for (byte = 0; byte < 4 && !p->failed; byte++)
        p->data[at + byte] = (char)((p->size - at - 4) >> (24 - 8 * byte) & 0xff);
}

static int jobq_pg__by_bytes(const void *a, const void *b)
{
    const jobq_str *x = (const jobq_str *)a, *y = (const jobq_str *)b;
    int order = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);

    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

/* One statement cannot say two things about a row. */
static jobq_error jobq_pg__batch_distinct(const jobq_pg__batch *b, jobq_pg_error *error)
{
    jobq_str *keys = (jobq_str *)calloc(b->count, sizeof *keys);
    jobq_error code = JOBQ_OK;
    jobq_pg__params p;
    size_t i, n = 0;
    int k;

    if (keys == NULL) return jobq_pg__no_memory(error);
    jobq_pg__params_init(&p);
    for (i = 0; i < b->count; i++) {
        size_t from = p.size;
        if (b->fates[i].code != JOBQ_OK) continue;
        for (k = 0; k < b->work->key_count; k++)
            jobq_pg__item_field(&p, b, i, b->work->marks[k]);
        keys[n++].len = p.size - from;
    }
    for (i = 0; i < n; i++) keys[i].ptr = i == 0 ? p.data : keys[i - 1].ptr + keys[i - 1].len;
    if (p.failed) code = jobq_pg__no_memory(error);
    else qsort(keys, n, sizeof *keys, jobq_pg__by_bytes);
    for (i = 1; i < n && code == JOBQ_OK; i++) {
        if (jobq_pg__by_bytes(&keys[i - 1], &keys[i]) == 0)
            code = jobq_pg__invalid(error, "rows", "has the same row twice");
    }
    jobq_pg__params_clear(&p);
    free(keys);
    return code;
}

static jobq_error jobq_pg__batch_decide(jobq_pg__batch *b, jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    size_t i;

    for (i = 0; i < b->count && b->settles; i++) {
        if (jobq_pg__work_event(b->verdicts[i].outcome) == JOBQ_EVENT_NONE)
            return jobq_pg__invalid_int(error, "outcome", (int)b->verdicts[i].outcome,
                                        "must be success, retry, discard or release");
    }
    b->fates = (jobq_pg__fate *)calloc(b->count, sizeof *b->fates);
    if (b->fates == NULL) return jobq_pg__no_memory(error);
    for (i = 0; i < b->count && code == JOBQ_OK; i++) {
        b->fates[i].code = jobq_pg__fate_of(b, i, &b->fates[i]);
        if (b->fates[i].code != JOBQ_OK) continue;
        code = jobq_pg__marks_check(b->work, jobq_pg__batch_row(b, i), error);
        b->sent++;
    }
    return code == JOBQ_OK && b->sent > 1 ? jobq_pg__batch_distinct(b, error) : code;
}

/* Adds an array of what the rows have in a column. */
static void jobq_pg__add_marks(jobq_pg__params *p, const jobq_pg__batch *b,
                               const jobq_pg_column *c)
{
    size_t i;

    jobq_pg__begin(p);
    jobq_pg__raw_int(p, 1, 4); /* dimensions */
    jobq_pg__raw_int(p, 1, 4); /* there may be NULLs */
    jobq_pg__raw_int(p, jobq_pg__sent_as(c), 4);
    jobq_pg__raw_int(p, (int64_t)b->sent, 4);
    jobq_pg__raw_int(p, 1, 4); /* of the first one */
    for (i = 0; i < b->count; i++) {
        if (b->fates[i].code == JOBQ_OK) jobq_pg__item_field(p, b, i, c);
    }
    jobq_pg__end(p);
}

/* The text that is kept of an attempt. NULL: none. */
static void jobq_pg__item_why(jobq_pg__params *p, const jobq_pg__batch *b, size_t i)
{
    const char *why = b->verdicts[i].why;
    char text[JOBQ_ERROR_MAX + 1];
    jobq_str kept = {NULL, 0};

    if (b->fates[i].kind == JOBQ_EVENT_RETRY || b->fates[i].kind == JOBQ_EVENT_DISCARD) {
        kept.ptr = text;
        kept.len = jobq_reason_format(text, &b->fates[i].next, jobq_str_from(why ? why : ""));
    }
    jobq_pg__item_str(p, kept);
}

/* Adds an array of what the rows become: 0 status, 1 failed attempts, 2 delay, 3 whether the error
 * stays, 4 the error. */
static void jobq_pg__add_fates(jobq_pg__params *p, const jobq_pg__batch *b, int which)
{
    static const jobq_pg__wire wires[] = {JOBQ_PG__TEXT, JOBQ_PG__INT4, JOBQ_PG__INT8,
                                          JOBQ_PG__BOOL, JOBQ_PG__TEXT};
    size_t i;

    jobq_pg__begin(p);
    jobq_pg__array_head_put(p, wires[which], b->sent);
    for (i = 0; i < b->count; i++) {
        const jobq_decision *d = &b->fates[i].next;
        jobq_event_kind kind = b->fates[i].kind;
        bool failed = kind != JOBQ_EVENT_SUCCESS || d->attempt == 0;
        if (b->fates[i].code != JOBQ_OK) continue;
        if (which == 0)
            jobq_pg__item_str(p, jobq_str_from(
                                     jobq_pg__status_find(b->work, d->stage, d->state)->word));
        if (which == 1) jobq_pg__item_int(p, failed ? d->attempt : d->attempt - 1, 4);
        if (which == 2) jobq_pg__item_int(p, d->delay_us, 8);
        if (which == 3) jobq_pg__item_int(p, kind == JOBQ_EVENT_RELEASE, 1);
        if (which == 4) jobq_pg__item_why(p, b, i);
    }
    jobq_pg__end(p);
}

/* Sends the rows that were decided, and takes the answers. */
static jobq_error jobq_pg__batch_send(jobq_pg__batch *b, PGconn *conn, jobq_pg_error *error)
{
    const jobq_pg_worktable *w = b->work;
    size_t offset = w->columns[JOBQ_PG__ROLE_HEARTBEAT]->offset, i;
    jobq_pg_maybe_int64 beat = {0, true};
    jobq_pg__params args;
    PGresult *res;
    int k, r = 0;

    jobq_pg__params_init(&args);
    for (k = 0; k < w->mark_count; k++) jobq_pg__add_marks(&args, b, w->marks[k]);
    for (k = 0; k < JOBQ_PG__FATES && b->settles; k++) jobq_pg__add_fates(&args, b, k);
    res = jobq_pg__table_exec(w->table, conn, b->settles ? &w->settle : &w->heartbeat, &args,
                              error);
    if (res == NULL) return error->code;
    for (i = 0; i < b->count; i++) {
        if (b->fates[i].code != JOBQ_OK) continue;
        beat.value = jobq_pg__from_server_us(jobq_pg__int(res, r, 1));
        if (!jobq_pg__int(res, r, 0))
            b->fates[i].code = jobq_pg__int(res, r, 2) ? JOBQ_ERROR_LOST : JOBQ_ERROR_NOT_FOUND;
        else if (!b->settles)
            memcpy((char *)(uintptr_t)jobq_pg__batch_row(b, i) + offset, &beat, sizeof beat);
        r++;
    }
    PQclear(res);
    return JOBQ_OK;
}

/* Why a row was refused. */
static jobq_error jobq_pg__fate_error(const jobq_pg__batch *b, size_t i, jobq_pg_error *error)
{
    const jobq_pg_worktable *w = b->work;
    const char *row = jobq_pg__batch_row(b, i);
    jobq_error code = b->fates[i].code;
    const jobq_pg__status *s = jobq_pg__status_of(w, row);

    if (code != JOBQ_ERROR_TRANSITION) return jobq_pg__key_missing(w->table, row, code, error);
    return jobq_pg__said(error, code, "Invalid state", w->table->entity,
                         w->columns[JOBQ_PG__ROLE_STATUS]->name, s == NULL ? "?" : s->word);
}

static jobq_error jobq_pg__batch_run(jobq_pg__batch *b, PGconn *conn, jobq_pg_error *error)
{
    jobq_error whole = b->count == 0 ? JOBQ_OK : jobq_pg__batch_decide(b, error), code;
    size_t i, first = b->count;

    if (whole == JOBQ_OK && b->sent > 0) whole = jobq_pg__batch_send(b, conn, error);
    for (i = b->count; i-- > 0;) {
        code = whole == JOBQ_OK ? b->fates[i].code : whole;
        if (code != JOBQ_OK) first = i;
        if (b->verdicts == NULL) continue;
        b->verdicts[i].code = code;
        if (b->settles)
            b->verdicts[i].state = code == JOBQ_OK ? b->fates[i].next.state : JOBQ_STATE_NONE;
    }
    if (whole == JOBQ_OK && first < b->count) whole = jobq_pg__fate_error(b, first, error);
    free(b->fates);
    return whole;
}

JOBQ_API jobq_error jobq_pg_worktable_settle(jobq_pg_worktable *w, PGconn *conn, const void *rows,
                                             jobq_pg_verdict *verdicts, size_t count,
                                             jobq_pg_error *error)
{
    jobq_pg__batch b = {w, (const char *)rows, verdicts, count, 0, true, NULL};
    jobq_pg_error local;

    JOBQ_ASSERT(w != NULL && (count == 0 || (rows != NULL && verdicts != NULL)));
    return jobq_pg__batch_run(&b, conn, error == NULL ? &local : error);
}

JOBQ_API jobq_error jobq_pg_worktable_heartbeat(jobq_pg_worktable *w, PGconn *conn, void *rows,
                                                jobq_pg_verdict *verdicts, size_t count,
                                                jobq_pg_error *error)
{
    jobq_pg__batch b = {w, (const char *)rows, verdicts, count, 0, false, NULL};
    jobq_pg_error local;

    JOBQ_ASSERT(w != NULL && (count == 0 || rows != NULL));
    return jobq_pg__batch_run(&b, conn, error == NULL ? &local : error);
}

#endif /* JOBQ_PG_NO_WORK_TABLES */
#endif /* JOBQ_PG_NO_TABLES */

/* ---- >>schema: the files of sql/ ------------------------------------------------------------- */

/* >>migrations begin (generated from sql/ by make embed) */
/* >>migrations end */

static const jobq_pg__migration *jobq_pg__file(size_t i)
{
    size_t count = sizeof jobq_pg__migrations / sizeof jobq_pg__migrations[0];

    return i < count ? &jobq_pg__migrations[i] : NULL;
}

static const char *const *jobq_pg__fingerprint(bool list)
{
    return list ? jobq_pg__fingerprint_list : jobq_pg__fingerprint_query;
}

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* JOBQ_PG_IMPLEMENTED */
#endif /* JOBQ_PG_IMPLEMENTATION */
