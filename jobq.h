/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobq.h -- the state machine of a job queue and outbox, version 0.2.0.  MIT-0 or public domain, at
 * your choice; the text is at the end of this file.
 *
 * This file decides; it does nothing. It knows no database, clock, thread, file, environment or
 * malloc: facts, the time and random bits come in as arguments, and a decision comes out as plain
 * data. Its companion, jobq_pg.h, carries the decisions out on Postgres. Use this file alone to
 * test your logic, to run jobs on a store of your own, or for its parts (backoff, names, JSON and
 * UTF-8 checks).
 *
 *
 * DO THIS
 *
 *     #define JOBQ_IMPLEMENTATION
 *     #include "jobq.h"
 *
 * in exactly one C or C++ file; in all others only the include. C99, C++11.
 *
 *
 * QUICK START
 *
 *     #define JOBQ_IMPLEMENTATION
 *     #include "jobq.h"
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         jobq_policy policy = jobq_policy_defaults(NULL);
 *         jobq_job job = jobq_job_new(1);
 *         jobq_event claim = {JOBQ_EVENT_CLAIM};
 *         jobq_event retry = {JOBQ_EVENT_RETRY};
 *         jobq_decision decision;
 *
 *         claim.worker = 42;
 *         claim.claim = 1;
 *         jobq_job_decide(&policy, &job, &claim, &decision);
 *         jobq_job_apply(&job, &decision, 0);
 *
 *         retry.random = 0x9e3779b97f4a7c15u;
 *         jobq_job_decide(&policy, &job, &retry, &decision);
 *         jobq_job_apply(&job, &decision, 0);
 *         printf("%s, again in %.1f s\n", jobq_enum_name(JOBQ_ENUM_STATE, job.state),
 *                decision.delay_us / 1e6);
 *         return 0;
 *     }
 *
 *
 * FUNCTIONS (each declaration has the details; examples/README.md has a list of tasks)
 *
 *     jobq_error_text           one sentence for people
 *     jobq_str_from             borrows a terminated string
 *     jobq_str_equal            whether two strings have the same bytes
 *     jobq_enum_name            the name of a value
 *     jobq_enum_from            the value that has this name
 *     jobq_random_next          64 uniform bits
 *     jobq_worker_id_from       a worker id from 64 random bits of the operating system
 *     jobq_worker_name_format   a name for people, from an id
 *     jobq_worker_name_short    the six-character name of older systems
 *     jobq_backoff_seed         the preset of older systems: 60 s, doubling to 1 h
 *     jobq_backoff_defaults     a backoff with its zero fields filled
 *     jobq_backoff_check        whether a backoff is valid
 *     jobq_backoff_delay        how long to wait
 *     jobq_policy_defaults      the policy with its zero fields filled
 *     jobq_job_new              a ready job
 *     jobq_job_decide           what an event makes of a job
 *     jobq_job_apply            changes a job as decided
 *     jobq_job_check            whether a job keeps the laws
 *     jobq_job_holds            whether the job is running under this token
 *     jobq_state_final          whether a state is an end
 *     jobq_reason_format        the error text of an attempt
 *     jobq_status_format        a stage and a state as one word
 *     jobq_status_from          the stage and state of such a word
 *     jobq_partition_size       how many messages to read
 *     jobq_partition_next       the mode after a batch
 *     jobq_partition_backoff    how long a partition waits after this many failures in a row
 *     jobq_partition_directive  what to do after a batch
 *     jobq_tuning_of            the constants of a profile
 *     jobq_tuning_defaults      the tuning with its zero fields filled
 *     jobq_partition_of         the partition of a key
 *     jobq_schema_of            which of several schemas a key belongs to
 *     jobq_outbox_plan          what an acknowledgement writes
 *     jobq_trace_of             the trace in the headers of a job or message
 *     jobq_call_error           why the attempt failed
 *     jobq_call_delay           the delay of this retry or snooze
 *     jobq_call_hold            stops claims from the job's line or queue for a while
 *     jobq_call_progress        how far the job is, for people
 *     jobq_call_step            whether a step of this job is done
 *     jobq_call_step_done       this step is done, and leaves a value
 *     jobq_call_signal          the payload of a signal, or waits for it
 *     jobq_call_log             adds a line to the attempt's log, for people
 *     jobq_call_result          what this stage leaves, JSON or bytes
 *     jobq_call_stopping        whether, and why, this handler should stop soon
 *     jobq_delivery_done        the first messages of a batch are done
 *     jobq_delivery_reject      a batch handler rejects one message and says why
 *     jobq_delivery_error       why it failed
 *     jobq_delivery_delay       the delay of this retry, instead of the backoff
 *     jobq_delivery_stopping    whether, and why, this handler should stop soon
 *     jobq_utf8_valid           whether text is what Postgres accepts
 *     jobq_json_quote           writes text as a JSON string
 *     jobq_json_check           whether Postgres accepts text as jsonb
 *     jobq_json_member          the value of a member of an object
 *     jobq_json_text            a string of a payload, without its quotes and escapes
 *     jobq_json_int             an integer of a payload
 *     jobq_json_double          a number of a payload
 *     jobq_test_size            bytes of a test
 *     jobq_test_init            an empty queue and a worker with these handlers
 *     jobq_test_policy          sets the policy of a queue, or of a kind
 *     jobq_test_conn            what jobq_pg_call_conn returns
 *     jobq_test_enqueue         adds a job
 *     jobq_test_receive         gives the messages of a queue to a handler
 *     jobq_test_send            sends a message
 *     jobq_test_run             runs what falls due
 *     jobq_test_fault           what goes wrong next
 *     jobq_test_each_fault      runs a scenario with each fault at each point
 *     jobq_test_point           a point in a fake, where something may go wrong
 *     jobq_test_commit          commits with the job's success, for a fake database
 *     jobq_test_commit_all      the same for the jobs of a batch
 *     jobq_test_sleep           lets time pass in a handler
 *     jobq_test_now             the simulated time
 *     jobq_test_get             a job, and what it has left behind
 *     jobq_test_step            whether a step of a job is done
 *     jobq_test_signal          sends a signal
 *     jobq_test_ready           ends what a job waits for
 *
 *
 * WORDS (the same here, in SQL and in logs; each has one meaning, unless it says otherwise)
 *
 *     job          a unit of work; its kind names its handler, its queue holds its policy
 *     stage        one of up to 16 parts of a job that run in order, each with attempts of its own
 *     attempt      one run of a job in a stage
 *     crash        the death of a worker; it counts only against a job that ran alone on it
 *     suspect      a job that was running when its worker died
 *     alone        of a suspect whose worker died again: it runs where nothing else is held
 *     park         make a job wait for a worker that has a handler for its kind
 *     release      give an unfinished job back; its attempt does not count
 *     late         of a job that expires: the instant has come, and it has not begun; of a worker:
 *                  its heartbeat is overdue
 *     decision     what an event, such as a success or a crash, makes of a job
 *     outcome      what a handler says about its job
 *     result       what a handler says about a message or a batch of messages
 *     store        Postgres, or the in-memory queue
 *     worker       a process registered in the store, with an id, a lease and a heartbeat
 *     claim        one statement that takes ready jobs; each has a number
 *     batch        jobs, or messages, that a handler gets in one call
 *     token        (worker id, claim number); it guards every write about what the worker holds
 *     lease        the time for which nobody else may take what a worker holds
 *     lost         the answer to a write whose token is no longer in the row
 *     heartbeat    the statement that renews a worker's lease and returns what has changed
 *     step         a part of a job that is done once, however often the job is run
 *     signal       a name that is sent once, with a payload; jobs wait for it
 *     line         jobs of a queue that belong together, such as a tenant's; workers take turns at
 *                  the lines of a queue: they walk from line to line
 *     quota        a limit of a queue, or of one of its kinds, over all workers
 *     hold         of a line or queue: claim nothing from it until an instant; of a worker: have
 *                  claimed a job, or taken a partition, and not settled it yet
 *     key          a name that at most one live job of its queue has
 *     seal         turn a payload into other bytes, such as compressed or encrypted ones
 *     open         turn them back into the payload; of a handle: make it
 *     erase        remove what jobs and messages of a person have carried, and keep their rows
 *     tenant       in grants, a role that may enqueue only into certain queues and lines;
 *                  elsewhere, one of your customers, with a line of jobs
 *     schedule     a calendar, and the job or message that it writes
 *     tick         an instant at which a schedule fires
 *     subscription where messages of a queue, or of a topic, are copied to, for one more reader
 *     topic        a name for messages that only subscriptions read
 *     partition    an ordered part of a queue's messages; it has an id, and a number in its queue
 *     seq          the number of a message in its partition: 1, 2, 3 ...
 *     delivery     a batch of messages, while a handler has it
 *     acknowledge  write what became of a delivery
 *     dead letter  a message that is kept but not delivered again
 *
 *
 * COMPILE-TIME OPTIONS
 *
 *     JOBQ_STATIC          the implementation is emitted here and all functions are static
 *     JOBQ_API             linkage of public functions                     (default: extern)
 *     JOBQ_ASSERT(x)       programmer errors                               (default: assert)
 *     JOBQ_LOOP_SLOTS      jobs that one loop may hold                     (default: 2048)
 *     JOBQ_LOOP_CLAIMS     claims with unsettled jobs that one loop may hold        (default: 512)
 *     JOBQ_LOOP_QUEUES     queues that one loop may serve                  (default: 16)
 *     JOBQ_LOOP_THREADS    handlers that one loop may run at once          (default: 1024)
 *     JOBQ_LOOP_KINDS      kinds that one loop may have handlers for       (default: 256)
 *     JOBQ_LOOP_WATCHED    late workers that one loop watches              (default: 32)
 *     JOBQ_LOOP_PARTITIONS partitions that one loop keeps track of         (default: 64)
 *     JOBQ_LOOP_BATCH      messages of one delivery                        (default: 1000)
 *     JOBQ_TALLY_KINDS     kinds for which a worker keeps separate counts  (default: 64)
 *     JOBQ_MEMORY_PARTITIONS, JOBQ_MEMORY_MESSAGES   of a jobq_memory   (default: 16, 1024)
 *     JOBQ_MEMORY_KINDS    kinds of a jobq_memory with a policy of their own         (default: 8)
 *     JOBQ_MEMORY_EDGES    what jobs of a jobq_memory wait for                      (default: 32)
 *     JOBQ_MEMORY_LINES    lines of a jobq_memory with rules of their own or a rate  (default: 16)
 *     JOBQ_MEMORY_BATCH    jobs of one call of a handler on a jobq_memory            (default: 16)
 *     JOBQ_TEST_JOBS, JOBQ_TEST_BYTES   jobs of a jobq_test, and bytes of their payloads and
 *                          headers                                   (default: 256, 1,000,000)
 *     JOBQ_TEST_BATCH      jobs of one call of a handler in a jobq_test              (default: 100)
 *     JOBQ_NO_TEST         leaves out jobq_test                        (default: not defined)
 *
 *     JOBQ_NO_RECORD       leaves out recordings of loops
 *
 *     All files of a program must see the same values.
 *
 *
 * LIFE OF A JOB
 *
 * A job has a kind (which names its handler), a queue (which holds its policy), a priority (-9 to
 * 9, default 0, smaller runs first) and a time before which it does not run. It may have up to 16
 * stages. A later stage runs before an earlier one of the same priority, so that work once started
 * is finished first. A worker claims jobs in batches, and numbers its claims. (worker id, claim
 * number) is the lease token. The job has it while it runs, and every write about the job must show
 * it.
 *
 *               enqueue                                    revive
 *                  |     .------------------------------------------------------------------.
 *                  v     v                claim                                             |
 *                .---------.  ------------------------------->  .---------.                 |
 *                |  ready  |                                    | running |---- discard --->|
 *                '---------'  <-------------------------------  '---------'     retry (N)   |
 *                  |            success, with stages left         |  |  |       crash (N)   |
 *                  |            retry, snooze, release, park,     |  |  |                .--------.
 *                  |            crash                             |  |  '--------------->| failed |
 *                  |                                              |  |                   '--------'
 *                  | cancel, expire     cancelled, or put back    |  | success,
 *                  v                    after a cancel request    |  v last stage
 *              .-----------.                                      |  .-----------.
 *              | cancelled |<-------------------------------------'  | succeeded |
 *              '-----------'                                         '-----------'
 *                     ^  cancel   .---------.         wait
 *                     '-----------| waiting |<------------------- running, or enqueued after others
 *                                 '---------'-------------------> ready
 *                                                     ready
 *
 *   FROM -> TO [event]                   decided by
 *     ready   -> running   [claim]       jobq__on_claim     attempt + 1, takes the token
 *     ready   -> cancelled [cancel]      jobq__on_cancel
 *     ready   -> cancelled [expire]      jobq__on_expire    a claim found that it is late
 *     waiting -> cancelled [cancel]      jobq__on_cancel
 *     waiting -> ready     [ready]       the store: all that it waits for ended as it wants
 *     running -> succeeded [success]     jobq__on_success   in the last stage
 *     running -> ready     [success]     jobq__on_success   stages left: the next one, attempt 0
 *     running -> ready     [retry]       jobq__on_retry     after the backoff or its own delay
 *     running -> failed    [retry]       jobq__on_retry     the attempt that reaches max_attempts
 *     running -> as retry  [timeout]     jobq__on_retry     the handler ran too long
 *     running -> failed    [discard]     jobq__on_discard
 *     running -> ready     [snooze]      jobq__on_snooze    attempt given back
 *     running -> failed    [snooze]      jobq__on_snooze    snoozed snoozes_max times already
 *     running -> waiting   [wait]        jobq__on_wait      attempt given back
 *     running -> cancelled [cancelled]   jobq__on_cancelled the handler says so
 *     running -> ready     [release]     jobq__on_release   attempt given back, runs at once
 *     running -> ready     [park]        jobq__on_release   no handler for its kind: waits for one
 *     running -> ready     [crash]       jobq__on_crash     its worker died
 *     running -> failed    [crash]       jobq__on_crash     it ran alone: max_crashes times, or in
 *                                                           its last attempt
 *     running -> running   [cancel]      jobq__on_cancel    only a request; the handler may obey it
 *     failed  -> ready     [revive]      jobq__on_revive    attempt and crash 0
 *   Every other pair of state and event is JOBQ_ERROR_TRANSITION.
 *
 *   ready       Has no token. Can be claimed once run_at has come; parked if that is JOBQ_NEVER.
 *   waiting     Waits for the ends of other jobs. Has no token. Cannot be claimed.
 *   running     Has a token. Only the token's worker, or a rescuer if that worker is dead, moves it
 *               on.
 *   succeeded, cancelled   Final.
 *   failed      Final, until an operator revives it.
 *
 *   Laws. jobq_job_check() checks the first five, and that only a suspect is marked alone; tests
 *   attack all of them.
 *   (1) 0 <= stage < stages <= JOBQ_STAGES_MAX.
 *   (2) A job has a token if, and only if, it is running.
 *   (3) A running job has attempt >= 1.
 *   (4) attempt, crash and snoozes are never negative. A claim raises the attempt. Snooze, wait,
 *       release and park give it back. So does the death of a worker, except to a job that ran
 *       alone.
 *   (5) Only a running job has a cancel request.
 *   (6) A crash is counted only on evidence. A dead worker held many jobs, and one death does not
 *       tell which of them killed it. So all of them become ready again, the attempt does not
 *       count, and those that were not suspects become suspects. A worker runs at most one suspect
 *       at a time, in a claim of its own, beside other work. A suspect whose worker dies is marked
 *       alone: from then on only a worker that holds nothing else claims it, and that worker takes
 *       no other job and no message until it has ended. If a worker dies with such a job, its
 *       attempt stays and its crash count rises; at max_crashes, or if that attempt was its last,
 *       it is failed. A suspect whose attempt ends in any other way loses both marks, but a suspect
 *       that is released or parked keeps them.
 *   (7) A job that would go back to ready after a cancel request is cancelled. Success is success.
 *   (8) An event about a claimed job that has another token changes nothing: it is lost.
 *   (9) max_attempts N is reached by the N-th failed attempt. Its error reads
 *       "Max retries (N) exceeded: <message>". After snoozes_max N snoozes in a stage, one more
 *       fails the job: "Max snoozes (N) exceeded: <message>".
 *   (22) If nothing holds a waiting job any longer, or if it can never run, the store notes this in
 *       the transaction of the end that decides it. A living worker makes it ready, or cancels it,
 *       by its second heartbeat after that.
 *   (23) It never becomes ready before all that it waits for have ended as it wants. One that has
 *        run, has failed and is revived does not wait for them again; nor does one that runs while
 *        one of them is revived.
 *   (24) If one whose success it waits for is cancelled, it does not run. It is cancelled, too, or
 *       waits on.
 *   (25) Jobs that a handler enqueues in the transaction that ends its attempt exist if, and only
 *       if, that end was accepted.
 *   (33) No attempt of a job that expires begins at or after its instant: by the store's clock as
 *       the claim read it, and by the time that has passed since the claim was sent. Only the
 *       store's clock is asked. If that is set forward, jobs end that a watch would have let run;
 *       if it is set back, they may run later.
 *   (34) A job that a claim finds late ends in that claim, once, cancelled. It takes no attempt, no
 *       permit, no token and no place in a line. A job that does not expire never ends so.
 *
 *
 * TIME AND RANDOMNESS
 *
 * Times are int64_t microseconds. Names say which clock: _at_us is a time of the store's clock
 * (since the Unix epoch), _mono_us a time of the loop's own monotonic clock, _us a duration.
 * Decisions carry delays, and the store turns them into times. Random bits are 64 uniform bits,
 * passed by value: equal bits give equal decisions.
 *
 *
 * BACKOFF AND JITTER
 *
 *     d(n) = min(base * 2^n, cap)          jobs: n = attempt - 1      partitions: n = failures - 1
 *     delay: uniform on [d(1-j), d(1+j)] cut by [floor, cap] -- drawn inside the cut, not clamped
 *     onto its ends, so that delays do not pile up at the cap.
 *
 *     preset   base   cap   jitter  floor   first delays before jitter (s)
 *     quick     5 s   1 h   25 %    0       5 10 20 40 80 160 320 640 1280 2560 3600 3600 ...
 *     seed     60 s   1 h   25 %    60 s    60 120 240 480 960 1920 3600 3600 ...
 *
 *
 * CALENDAR
 *
 * A cron expression has five fields, minute hour day month weekday, or six, with the second before
 * them. A field is a list of numbers, names (JAN to DEC, SUN to SAT, in any case) and ranges, such
 * as 1,15-20. `*` is the whole range. A range followed by /3 means every third value of it, from
 * the first. Sunday is 0 and 7. L as the day is the last day of the month. @hourly, @daily,
 * @midnight, @weekly, @monthly, @yearly and @annually mean the first minute of the hour, day, week
 * ...
 *
 * A date must match month, day and weekday. But if neither the day nor the weekday begins with `*`,
 * one of them is enough: 0 0 13 * FRI is each 13th, and each Friday.
 *
 * When the clocks change, a schedule whose minute or hour begins with `*` follows elapsed time: it
 * runs both times in an hour that comes twice, and does not run in one that is missing. Any other
 * schedule runs once for each local time. If that time is missing, it runs later by as much as the
 * clocks were set forward (02:30 becomes 03:30). If it comes twice, the first one counts. Two local
 * times that become the same instant are one run. Only SQL knows time zones.
 *
 *
 * PARTITION MODES
 *
 * A partition is read in batches. When a batch fails, mode Degraded reads few messages at a time,
 * so that the bad one is found. Each success then doubles the batch, until the mode is Normal.
 *
 *
 * WORKER IDS
 *
 * 64 random bits, new for each process and after each death; never 0. An id does not depend on
 * anything stored, so a restored database cannot issue it twice. Logs and views show it as a signed
 * decimal number; only the name of the worker's channel has it in hexadecimal.
 * jobq_worker_name_format makes a distinct name of each id. jobq_worker_name_short is the form of
 * older systems: never guard a write with it.
 *
 *
 * WHAT A HANDLER LEAVES
 *
 *               what                     written                  kept                  at most
 *     step      what must not be done    at once, by a statement  while the job lives   1 MiB
 *               twice, and its value     of its own               or can be revived     a job
 *     result    the next stage's         with the stage's end     as long as the        payload_max
 *               payload, or the result   if that is a success     job's history         of a queue
 *     progress  how far it is            with the next heartbeat, until the attempt     200 bytes
 *                                        or at once               ends
 *     log       lines for people         with the attempt's end   with the job: of the  8 KB an
 *                                                                 latest ten failures   attempt
 *                                                                 and of the success
 *     error     why an attempt failed    with the attempt's end   with the job: the     4 KB each
 *                                                                 first 10, latest 39
 *
 *
 * BATCHES
 *
 * A handler with .batch instead of .run gets many jobs in one call: for an API that takes lists, a
 * COPY of many rows, inference on a GPU.
 *
 *     static jobq_outcome store(jobq_call *const *calls, int32_t count)
 *     {
 *         for (int32_t i = 0; i < count; i++)
 *             if (!add_row(calls[i]->payload)) calls[i]->outcome = JOBQ_OUTCOME_DISCARD;
 *         return send_rows() ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_RETRY;
 *     }
 *     {.queue = "rows", .kind = "row", .batch = store, .batch_max = 100}
 *
 * The worker makes batches of jobs that it has claimed, so whatever limits jobs (lines, quotas,
 * rates, threads_max) counts them as before, and of a strict line there is at most one. Each call
 * ends by itself: its outcome, error, delay, result, steps, progress and log are its own, and
 * jobq_call_stopping answers CANCEL only for the job that somebody has cancelled; all have one time
 * limit. RETRY for all means that one of them may be bad: they run again in batches of half the
 * size, so that the bad one is alone in the end, if max_attempts allows 1 + log2(batch_max)
 * attempts; 8 for 100. If the other side is down, no job is bad: hold the queue (jobq_call_hold)
 * and return RELEASE. If the worker dies, or the call overruns its time limit, each job runs alone
 * once, and no attempt is used up.
 *
 * With batch_wait_us a job waits until a batch is full, but no longer than that. Meanwhile it
 * counts for the limits above. Without it, batches become larger by themselves when jobs come
 * faster than calls take. A call needs about 20 KB for each of its jobs, which its thread keeps.
 *
 *
 * TESTING YOUR HANDLERS
 *
 * jobq_test runs handlers in memory, with the worker's own loop and a clock that jumps to whatever
 * is due next. It takes the same table of handlers as the worker:
 *
 *     jobq_test *test = jobq_test_init(malloc(jobq_test_size()), handlers, handler_count);
 *     jobq_test_job job = {.queue = "mail", .kind = "welcome"};
 *     job.payload = jobq_str_from("{}");
 *     int64_t id = jobq_test_enqueue(test, &job);
 *     int64_t runs = jobq_test_run(test, JOBQ_HOURS(1));
 *     assert(runs == 1 && jobq_test_get(test, id)->job.state == JOBQ_STATE_SUCCEEDED);
 *
 * jobq_test_fault makes something go wrong once: a crash, a lost connection, the time limit.
 * jobq_test_sleep lets time pass in a handler. A job may have a line, which a handler can hold, a
 * key, and jobs that it waits for. jobq_test_receive and jobq_test_send do the same for messages.
 * A handler of batches gets those that are due together: a crash, or the end of the time limit,
 * befalls its call, and a cancel request the first job of it.
 * examples/test_handlers.c shows all of it. To call one handler directly, a zeroed jobq_call with
 * its payload set is enough.
 *
 * jobq_test_each_fault finds what goes wrong at the points of a handler. It runs a scenario, a
 * function that enqueues, runs and looks at the outcome, again and again, each time with another
 * fault: the worker dies, an answer is lost, an hour passes, another worker takes over ... (see
 * jobq_test_event), at each point in turn: where a handler begins, returns, or calls
 * jobq_call_step, _step_done, _signal, _hold, _stopping, jobq_pg_call_commit, _wait or a fake of
 * yours, and where its outcome is written. It tells the first story that ends badly:
 *
 *     story 301 ends badly
 *        1  0.0 s, worker 1, job 1, attempt 1: begins
 *        2  0.0 s, worker 1, job 1, attempt 1: the bank charges
 *        3  0.0 s, worker 1, job 1, attempt 1: commits   <-- the worker dies
 *        4  45.3 s, worker 2, job 1, attempt 1: begins
 *        5  45.3 s, worker 2, job 1, attempt 1: the bank charges
 *
 * A fake keeps only what the real service or database would still have after a crash: keys that
 * were used, rows that were committed. See examples/test_faults.c. Look only for what is promised:
 * each job has ended; each order is there once, unless its job was cancelled (what was charged for
 * it then is to be refunded); sums are preserved; each key was used outside at most once; what has
 * no key was done at most faults->happened times too often. It does not find what goes
 * wrong between two lines without a point; anomalies and deadlocks of Postgres; data races; what
 * needs two faults, unless .pairs is set, or three; two handlers that change places twice; limits
 * that hold over all workers. TIMEOUT happens only to jobs with a time limit. A crash leaves a
 * handler by longjmp, so memory and locks of its own stay as they are.
 *
 * A file with handlers that includes jobq_pg.h needs libpq. To link a test without it, put handlers
 * that call nothing of jobq_pg.h into a file that includes only jobq.h.
 *
 *
 * ERRORS
 *
 * Functions that read outside data, or talk to a store, return a jobq_error. jobq_error_text gives
 * this line of the table; jobq_pg_error adds the field, the value and the server's words.
 *
 *     JOBQ_ERROR_ when                                               what to do
 *     INVALID     an argument or outside data breaks a rule          correct it
 *     TRANSITION  the event does not apply in this state             read it again
 *     LOST        the lease token is no longer in the row            stop this work
 *     DEAD        this worker was declared dead, or has ended        start another
 *     BUSY        another transaction has the row locked             send it again
 *     NOT_FOUND   no such row                                        check its id or name
 *     EXISTS      a row with this key exists already                 use that or another key
 *     TIMEOUT     it took too long                                   try again, or allow more time
 *     FULL        no room left in something of limited size          enlarge it, or free some
 *     MEMORY      out of memory                                      try again with less
 *     VERSION     the schema is too new or too old for this library  update one
 *     CONNECTION  the connection is lost                             see whether the work was done
 *     RETRYABLE   the database could not do it now                   run the transaction again
 *     DATABASE    the database refused                               read its own message
 *
 * After INVALID nothing has been written. After RETRYABLE and a refusal by the database the
 * transaction is rolled back, or aborted if it is yours. After CONNECTION, and a TIMEOUT of a
 * statement, the work may have been done: look, or repeat it under the same key. Where a function
 * means something else by a code, its comment says so.
 *
 * A function that cannot fail returns its value. It asserts only what is wrong in the program's
 * text: NULL for what must be there, a value outside its enum, something that was not opened or
 * checked before. A number that a program computes is not asserted: a time, share or count outside
 * its range counts as the nearest one in it (deadline - now in the past: no time), or is INVALID.
 *
 *
 * C++     A handler's exception is a failed attempt, and the text of std::exception::what is its
 *         error, if this implementation is compiled as C++, with exceptions. If it is compiled as
 *         C, an exception that leaves a handler ends the program (std::terminate).
 * MEMORY  No allocation. Strings are borrowed: pointer and length. The caller owns every struct.
 * THREADS No global state. One thread at a time per struct.
 */
#if defined(JOBQ_STATIC) && !defined(JOBQ_IMPLEMENTATION)
#define JOBQ_IMPLEMENTATION
#endif

#ifndef JOBQ_INCLUDED
#define JOBQ_INCLUDED (1)

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t, NULL */
#include <stdint.h>  /* fixed widths */

#define JOBQ_VERSION_MAJOR 0
#define JOBQ_VERSION_MINOR 2
#define JOBQ_VERSION_PATCH 0
#define JOBQ_VERSION "0.2.0"
/* The version as one number: #if JOBQ_VERSION_NUMBER >= 200 asks for 0.2.0 or newer. */
#define JOBQ_VERSION_NUMBER \
    (JOBQ_VERSION_MAJOR * 10000 + JOBQ_VERSION_MINOR * 100 + JOBQ_VERSION_PATCH)

#if !defined(JOBQ_API)
#if defined(JOBQ_STATIC) && (defined(__GNUC__) || defined(__clang__))
#define JOBQ_API __attribute__((unused)) static
#elif defined(JOBQ_STATIC)
#define JOBQ_API static
#else
#define JOBQ_API extern
#endif
#endif

#ifndef JOBQ_LOOP_SLOTS
#define JOBQ_LOOP_SLOTS 2048
#endif
#ifndef JOBQ_LOOP_CLAIMS
#define JOBQ_LOOP_CLAIMS 512
#endif
#ifndef JOBQ_LOOP_QUEUES
#define JOBQ_LOOP_QUEUES 16
#endif
#ifndef JOBQ_LOOP_THREADS
#define JOBQ_LOOP_THREADS 1024
#endif
#ifndef JOBQ_LOOP_KINDS
#define JOBQ_LOOP_KINDS 256
#endif
#ifndef JOBQ_LOOP_WATCHED
#define JOBQ_LOOP_WATCHED 32
#endif
#ifndef JOBQ_LOOP_LANES /* lanes of one claim: the others come with the next one */
#define JOBQ_LOOP_LANES 1024
#endif
#ifndef JOBQ_LOOP_SLICE_COST_US /* what one slice of a sweep costs, about; the tests set less */
#define JOBQ_LOOP_SLICE_COST_US ((int64_t)50000)
#endif
#ifndef JOBQ_LOOP_SLICE_US /* the first slice of a sweep */
#define JOBQ_LOOP_SLICE_US ((int64_t)5000000)
#endif
#ifndef JOBQ_LOOP_SLICE_MAX_US /* a longer slice has no beginning */
#define JOBQ_LOOP_SLICE_MAX_US ((int64_t)3600000000)
#endif
#ifndef JOBQ_LOOP_PARTITIONS
#define JOBQ_LOOP_PARTITIONS 64
#endif
#ifndef JOBQ_LOOP_BATCH
#define JOBQ_LOOP_BATCH 1000
#endif
#ifndef JOBQ_TALLY_KINDS /* kinds for which a worker keeps separate counts */
#define JOBQ_TALLY_KINDS 64
#endif
#ifndef JOBQ_MEMORY_PARTITIONS
#define JOBQ_MEMORY_PARTITIONS 16
#endif
#ifndef JOBQ_MEMORY_MESSAGES
#define JOBQ_MEMORY_MESSAGES 1024
#endif
#ifndef JOBQ_MEMORY_EDGES
#define JOBQ_MEMORY_EDGES 32
#endif
#ifndef JOBQ_MEMORY_LINES
#define JOBQ_MEMORY_LINES 16
#endif
#if JOBQ_LOOP_SLOTS < 2 || JOBQ_LOOP_SLOTS > 1000000
#error "JOBQ_LOOP_SLOTS must be 2 to 1000000"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors and strings ---------------------------------------------------------------------- */

/* id, name, text. Names are stable; numbers are stored nowhere. */
#define JOBQ_ERRORS(X)                                                                             \
    X(OK, "ok", "no error")                                                                        \
    X(ERROR_INVALID, "invalid", "an argument or outside data breaks a rule; correct it")           \
    X(ERROR_TRANSITION, "transition", "the event does not apply in this state; read it again")     \
    X(ERROR_LOST, "lost", "the lease token is no longer in the row; stop this work")               \
    X(ERROR_DEAD, "dead", "this worker was declared dead, or has ended; start another")            \
    X(ERROR_BUSY, "busy", "another transaction has the row locked; send it again")                 \
    X(ERROR_NOT_FOUND, "not_found", "no such row; check its id or name")                           \
    X(ERROR_EXISTS, "exists", "a row with this key exists already; use that or another key")       \
    X(ERROR_TIMEOUT, "timeout", "it took too long; try again, or allow more time")                 \
    X(ERROR_FULL, "full", "no room left in something of limited size; enlarge it, or free some")   \
    X(ERROR_MEMORY, "memory", "out of memory; try again with less")                                \
    X(ERROR_VERSION, "version", "the schema is too new or too old for this library; update one")   \
    X(ERROR_CONNECTION, "connection", "the connection is lost; see whether the work was done")     \
    X(ERROR_RETRYABLE, "retryable", "the database could not do it now; run the transaction again") \
    X(ERROR_DATABASE, "database", "the database refused; read its own message")

typedef enum jobq_error {
#define JOBQ__X(id, name, text) JOBQ_##id,
    JOBQ_ERRORS(JOBQ__X)
#undef JOBQ__X
        JOBQ_ERROR_COUNT
} jobq_error;

/* A borrowed string: not terminated, may hold any byte. {NULL, 0} means none, which differs from an
 * empty string. */
typedef struct jobq_str {
    const char *ptr;
    size_t len;
} jobq_str;

#define JOBQ_NAME_MAX 1024   /* bytes of a queue's or kind's name */
#define JOBQ_JSON_DEPTH 256  /* nesting that jobq_json_check accepts */
#define JOBQ_ERROR_MAX 4096  /* bytes of an attempt's error that are kept, cut at a character */

/* jobq_error_text -- one sentence for people. */
JOBQ_API const char *jobq_error_text(jobq_error error);

/* jobq_str_from -- borrows a terminated string. NULL gives {NULL, 0}. */
JOBQ_API jobq_str jobq_str_from(const char *terminated);

/* jobq_str_equal -- same length and same bytes. */
JOBQ_API bool jobq_str_equal(jobq_str a, jobq_str b);

/* The enums whose values have names: short and stable, for logs, tests and stores. */
typedef enum jobq_enum {
    JOBQ_ENUM_ERROR,        /* jobq_error: "lost" */
    JOBQ_ENUM_CURVE,        /* jobq_curve: "exponential" */
    JOBQ_ENUM_STATE,        /* jobq_state: "ready" */
    JOBQ_ENUM_STATE_LETTER, /* jobq_state, as the database has it: "r" */
    JOBQ_ENUM_EVENT,        /* jobq_event_kind: "claim" */
    JOBQ_ENUM_OUTCOME,      /* jobq_outcome: "success" */
    JOBQ_ENUM_PROFILE,      /* jobq_profile: "quick" */
    JOBQ_ENUM_REQUEST,      /* jobq_request_kind: "set aside" */
    JOBQ_ENUM_KNOWN,        /* jobq_known: "replace" */
    JOBQ_ENUM_UNIQUE,       /* jobq_unique: "live" */
    JOBQ_ENUM_MISSED,       /* jobq_missed: "last" */
    JOBQ_ENUM_OVERLAP,      /* jobq_overlap: "wait" */
    JOBQ_ENUM_ON_END,       /* jobq_on_end: "failure" */
    JOBQ_ENUM_LEVEL,        /* jobq_level: "info" */
    JOBQ_ENUM_ENTRY,        /* jobq_entry_kind: "tell" */
    JOBQ_ENUM_COUNT
} jobq_enum;

/* jobq_enum_name -- the name of a value; "unknown" if it has none. */
JOBQ_API const char *jobq_enum_name(jobq_enum of, int64_t value);

/* jobq_enum_from -- the value that has this name; -1: none. */
JOBQ_API int jobq_enum_from(jobq_enum of, jobq_str name);

/* ---- LOGIC WITHOUT A DATABASE ---------------------------------------------------------------- */

/*
 * Pure functions: facts, times and random bits in, plain data out. A worker decides by them, and so
 * can your unit tests: examples/logic_without_database.c.
 */

/* ---- random bits ----------------------------------------------------------------------------- */

/* A small generator (splitmix64) for jitter and simulations. Not for secrets: take the bits for
 * worker ids from the operating system. */
typedef struct jobq_random {
    uint64_t state; /* at first the seed: equal seeds give equal sequences */
} jobq_random;

/* jobq_random_next -- 64 uniform bits. */
JOBQ_API uint64_t jobq_random_next(jobq_random *random);

/* ---- worker ids ------------------------------------------------------------------------------ */

#define JOBQ_WORKER_NAME_MAX 64 /* bytes of a worker's name, terminator included */

/* jobq_worker_id_from -- a worker id from 64 random bits of the operating system. Never 0. */
JOBQ_API int64_t jobq_worker_id_from(uint64_t bits);

/*
 * jobq_worker_name_format -- "<prefix>-XXXXXXXXXXXXX", the id as 13 characters of A-Z0-9.
 *
 * Shape   out holds JOBQ_WORKER_NAME_MAX bytes. A prefix that is too long is cut (at a UTF-8
 *         character); the id never is. Distinct ids give distinct names.
 */
JOBQ_API void jobq_worker_name_format(char *out, jobq_str prefix, int64_t id);

/*
 * jobq_worker_name_short -- "<prefix>-XXXXXX", the six-character form of older systems.
 *
 * Shape   as jobq_worker_name_format. Only about 30 bits: a name for people. Never guard a write
 *         with it.
 * Source  the older systems: seed = nanoseconds XOR process id; per character seed = seed *
 *         6364136223846793005 + 1, index = (seed >> 33) mod 36.
 */
JOBQ_API void jobq_worker_name_short(char *out, jobq_str prefix, uint64_t seed);

/* ---- backoff --------------------------------------------------------------------------------- */

typedef enum jobq_curve {
    JOBQ_CURVE_EXPONENTIAL, /* base * 2^n */
    JOBQ_CURVE_LINEAR,      /* base * (n + 1) */
    JOBQ_CURVE_QUARTIC,     /* base * (n + 1)^4 */
    JOBQ_CURVE_CONSTANT,    /* base */
    JOBQ_CURVE_COUNT
} jobq_curve;

#define JOBQ_NO_JITTER (-1)

/* base_us 0: the whole struct is the preset quick. Otherwise the other fields are used as they are.
 * The struct has no padding, so equal values have equal bytes. */
typedef struct jobq_backoff {
    jobq_curve curve;
    int32_t jitter_permille; /* half the width of the jitter, in 1/1000 of the delay: 1 to 1000
                                (default 250), or JOBQ_NO_JITTER */
    int64_t base_us;         /* the delay of n = 0 */
    int64_t cap_us;          /* the longest delay (default 1 h) */
    int64_t floor_us;        /* the shortest delay */
} jobq_backoff;

/* jobq_backoff_seed -- 60 s doubling to 1 h, jitter 25 %, never under 60 s. */
JOBQ_API jobq_backoff jobq_backoff_seed(void);

/* jobq_backoff_defaults -- fills zero fields; returns what jobq_backoff_delay will use. NULL: the
 * preset quick, 5 s doubling to 1 h, jitter 25 %. */
JOBQ_API jobq_backoff jobq_backoff_defaults(const jobq_backoff *backoff);

/* jobq_backoff_check -- JOBQ_ERROR_INVALID for negative times, floor above cap, jitter out of
 * range. */
JOBQ_API jobq_error jobq_backoff_check(const jobq_backoff *backoff);

/*
 * jobq_backoff_delay -- how long to wait.
 *
 * Shape   n: 0 for the first delay; any value. random: 64 uniform bits.
 * Units   microseconds, within [d(1-j), d(1+j)] and [floor, cap]; if the two do not meet, the
 *         nearer end of [floor, cap].
 * Source  BACKOFF AND JITTER above.
 */
JOBQ_API int64_t jobq_backoff_delay(const jobq_backoff *backoff, uint32_t n, uint64_t random);

/* ---- jobs ------------------------------------------------------------------------------------ */

#define JOBQ_STAGES_MAX 16
#ifndef JOBQ_PRIORITY_MIN /* the tests set fewer priorities */
#define JOBQ_PRIORITY_MIN (-9)
#define JOBQ_PRIORITY_MAX 9
#endif
#ifndef JOBQ_STRAYS_MAX
#define JOBQ_STRAYS_MAX 256  /* see jobq_news */
#endif
#define JOBQ_NEVER INT64_MAX /* a time, or a delay, that never comes */

/* Times are int64_t, in microseconds; these make them of whole numbers. */
#define JOBQ_MILLISECONDS(n) (INT64_C(1000) * (n))
#define JOBQ_SECONDS(n) (INT64_C(1000000) * (n))
#define JOBQ_MINUTES(n) (JOBQ_SECONDS(60) * (n))
#define JOBQ_HOURS(n) (JOBQ_MINUTES(60) * (n))
#define JOBQ_DAYS(n) (JOBQ_HOURS(24) * (n))

/* id, letter in the database, name. */
#define JOBQ_STATES(X)           \
    X(READY, "r", "ready")       \
    X(RUNNING, "x", "running")   \
    X(SUCCEEDED, "s", "succeeded") \
    X(FAILED, "f", "failed")     \
    X(CANCELLED, "c", "cancelled") \
    X(WAITING, "w", "waiting")

typedef enum jobq_state {
    JOBQ_STATE_NONE,
#define JOBQ__X(id, letter, name) JOBQ_STATE_##id,
    JOBQ_STATES(JOBQ__X)
#undef JOBQ__X
        JOBQ_STATE_COUNT
} jobq_state;

#define JOBQ_EVENTS(X)        \
    X(CLAIM, "claim")         \
    X(SUCCESS, "success")     \
    X(RETRY, "retry")         \
    X(TIMEOUT, "timeout")     \
    X(DISCARD, "discard")     \
    X(SNOOZE, "snooze")       \
    X(CANCELLED, "cancelled") \
    X(RELEASE, "release")     \
    X(PARK, "park")           \
    X(CRASH, "crash")         \
    X(CANCEL, "cancel")       \
    X(REVIVE, "revive")       \
    X(READY, "ready")         \
    X(WAIT, "wait")           \
    X(EXPIRE, "expire")

typedef enum jobq_event_kind {
    JOBQ_EVENT_NONE,
#define JOBQ__X(id, name) JOBQ_EVENT_##id,
    JOBQ_EVENTS(JOBQ__X)
#undef JOBQ__X
        JOBQ_EVENT_COUNT
} jobq_event_kind;

/* What a handler says about its job. NONE (0) counts as a retry: a handler must say something. */
typedef enum jobq_outcome {
    JOBQ_OUTCOME_NONE,
    JOBQ_OUTCOME_SUCCESS,   /* this stage is done */
    JOBQ_OUTCOME_RETRY,     /* run again, after the backoff or the delay that the handler names */
    JOBQ_OUTCOME_DISCARD,   /* fail for good */
    JOBQ_OUTCOME_SNOOZE,    /* again after the handler's delay, or after that of a first retry if it
                               names none; no attempt is used up, but see policy.snoozes_max */
    JOBQ_OUTCOME_RELEASE,   /* give it back: ready at once, no attempt is used up. The answer to
                               JOBQ_STOP_SHUTDOWN */
    JOBQ_OUTCOME_CANCELLED, /* stopped, because it was asked to or for its own reasons */
    JOBQ_OUTCOME_DONE,      /* completed in the handler's own transaction, known to be committed */
    JOBQ_OUTCOME_COUNT
} jobq_outcome;

/* Policy of a queue, or of a kind that differs from its queue. Zero fields mean the default;
 * jobq_policy_defaults fills them. */
typedef struct jobq_policy {
    int32_t max_attempts;      /* failed attempts after which a job fails (default 20) */
    int32_t max_crashes;       /* crashes after which a job fails (default 3) */
    int32_t snoozes_max;       /* snoozes in a stage; one more fails the job (default any number) */
    int64_t timeout_us;        /* time limit of a handler (default none) */
    jobq_backoff backoff;      /* between attempts (default quick) */
    bool attempts_span_stages; /* attempts count over all stages (default: per stage) */
} jobq_policy;

/* The facts about a job that decisions are made from. Flat: no pointers. */
typedef struct jobq_job {
    int64_t id;
    int64_t worker;         /* the token: the worker (0: none) */
    int64_t claim;          /* the token: the claim's number */
    int64_t run_at_us;      /* store's clock; JOBQ_NEVER: parked */
    int64_t enqueued_at_us; /* store's clock */
    int64_t timeout_us;     /* its own time limit (0: its kind's, or else the queue's) */
    int64_t expires_us;     /* it is late this long after its claim; of a new job: after run_at_us
                               (0: never) */
    int64_t bytes;          /* size of payload and headers as sent (0: unknown) */
    int64_t line;           /* the number of its line (0: none) */
    int32_t queue;          /* id in the store */
    int32_t kind;           /* id in the store */
    int32_t attempt;        /* attempts in this stage, including the running one */
    int32_t crash;          /* times its worker died while it ran alone */
    int32_t snoozes;        /* in this stage */
    int32_t max_attempts;   /* its own limit (0: its kind's, or else the queue's) */
    int16_t stage;          /* 0 is the first */
    int16_t stages;         /* 1 to JOBQ_STAGES_MAX */
    int16_t priority;       /* -9 to 9, smaller runs first */
    bool suspect;           /* it was running when its worker died */
    bool alone;             /* its worker died again: it must run alone now */
    bool cancel_requested;
    jobq_state state;
} jobq_job;

/* What happened to a job. Only the fields that name the event's kind are used. */
typedef struct jobq_event {
    jobq_event_kind kind;
    int64_t worker;   /* CLAIM: the token to give the job */
    int64_t claim;    /* CLAIM: the token to give the job */
    int64_t delay_us; /* SNOOZE: how long. RETRY: the handler's own delay, if delay_named */
    bool delay_named;
    uint64_t random;  /* RETRY, TIMEOUT: jitter */
} jobq_event;

/* Why a decision ends a job. jobq_reason_format puts it into the error text. */
typedef enum jobq_reason {
    JOBQ_REASON_NONE,
    JOBQ_REASON_ATTEMPTS, /* max_attempts reached */
    JOBQ_REASON_CRASHES,  /* max_crashes reached */
    JOBQ_REASON_SNOOZES,  /* snoozes_max reached before this snooze */
    JOBQ_REASON_EXPIRED   /* it had not begun in time */
} jobq_reason;

/* What a job becomes. Plain data; a store writes it in one guarded statement. */
typedef struct jobq_decision {
    jobq_state state;
    int64_t worker;   /* the token afterwards */
    int64_t claim;
    int64_t delay_us; /* ready: time until it may run again; JOBQ_NEVER: parked */
    int32_t attempt;
    int32_t crash;
    int32_t snoozes;
    int16_t stage;
    bool suspect;
    bool alone;
    bool cancel_requested;
    bool keep_run_at; /* leave run_at as it is (claim, cancel request, final states) */
    jobq_reason reason;
    int32_t limit;    /* the max_attempts, max_crashes or snoozes_max that was reached */
} jobq_decision;

/* jobq_policy_defaults -- the policy with its zero fields filled. NULL: all defaults. */
JOBQ_API jobq_policy jobq_policy_defaults(const jobq_policy *policy);

/* jobq_job_new -- a ready job with one stage, priority 0, no limits of its own, due now. */
JOBQ_API jobq_job jobq_job_new(int64_t id);

/*
 * jobq_job_decide -- what an event makes of a job. Changes nothing.
 *
 * Shape   policy: that of the job's kind or queue, filled by jobq_policy_defaults. decision is
 *         written only on JOBQ_OK.
 * Errors  JOBQ_ERROR_TRANSITION if the event does not apply in the job's state. JOBQ_ERROR_INVALID
 *         for a CLAIM without a token, or a negative delay.
 */
JOBQ_API jobq_error jobq_job_decide(const jobq_policy *policy, const jobq_job *job,
                                    const jobq_event *event, jobq_decision *decision);

/* jobq_job_apply -- the only function that changes a job's state. now_us: the store's clock. */
JOBQ_API void jobq_job_apply(jobq_job *job, const jobq_decision *decision, int64_t now_us);

/* jobq_job_check -- JOBQ_ERROR_INVALID if a job breaks one of the laws (1) to (5). For outside
 * data. */
JOBQ_API jobq_error jobq_job_check(const jobq_job *job);

/* jobq_job_holds -- whether the job is running under this token. */
JOBQ_API bool jobq_job_holds(const jobq_job *job, int64_t worker, int64_t claim);

/* jobq_state_final -- succeeded, failed or cancelled. */
JOBQ_API bool jobq_state_final(jobq_state state);

/*
 * jobq_reason_format -- the error text of an attempt, and why the job failed if it was the last
 * one.
 *
 * Shape   "Max retries (3) exceeded: <message>", likewise "Max crashes" and "Max snoozes", or the
 *         message alone. message: any bytes. out holds JOBQ_ERROR_MAX + 1 bytes and gets valid
 *         UTF-8 of at most JOBQ_ERROR_MAX bytes, terminated. Returns its length.
 */
JOBQ_API size_t jobq_reason_format(char *out, const jobq_decision *decision, jobq_str message);

/*
 * jobq_status_format -- a stage and a state as one word, for tables that have a single status
 * column.
 *
 * Shape   stage_names: count names, such as EXTRACTION, EMBEDDING. PENDING is ready in the first
 *         stage, EXTRACTION_IN_PROGRESS running in it, EXTRACTION_COMPLETE ready in the second;
 *         then SUCCEEDED, FAILED, CANCELLED. out holds size bytes and is terminated.
 * Errors  JOBQ_ERROR_FULL if size is too small, JOBQ_ERROR_INVALID if there is no such stage.
 */
JOBQ_API jobq_error jobq_status_format(char *out, size_t size, const char *const *stage_names,
                                       int count, int stage, jobq_state state);

/* jobq_status_from -- the reverse. An unknown word is JOBQ_ERROR_INVALID; nothing is written
 * then. */
JOBQ_API jobq_error jobq_status_from(jobq_str word, const char *const *stage_names, int count,
                                     int *stage, jobq_state *state);

/* -- words of keys, schedules and flows -- */

/* What an enqueue does if another job has its key. */
typedef enum jobq_known {
    JOBQ_KNOWN_LEAVE,   /* nothing */
    JOBQ_KNOWN_REPLACE, /* give it this payload, headers, priority and run_at (debounce) */
    JOBQ_KNOWN_MERGE,   /* append the payload, an array, or join the two, objects */
    JOBQ_KNOWN_BUMP,    /* let it run earlier */
    JOBQ_KNOWN_CANCEL,  /* cancel it; the new job runs after its end */
    JOBQ_KNOWN_REJECT   /* refuse the new job */
} jobq_known;

/* How long a key counts as known. */
typedef enum jobq_unique {
    JOBQ_UNIQUE_DEFAULT, /* PERIOD for LEAVE and REJECT, LIVE for the others */
    JOBQ_UNIQUE_PERIOD,  /* until its queue's key_keep after the job's end */
    JOBQ_UNIQUE_LIVE,    /* until the job ends */
    JOBQ_UNIQUE_READY    /* until the job begins. Then its key is free: if it is retried, it may run
                            beside a newer one, or after it */
} jobq_unique;

/* Of a schedule: ticks that passed while nobody could fire them. */
typedef enum jobq_missed {
    JOBQ_MISSED_LAST, /* the last one fires */
    JOBQ_MISSED_ALL,  /* each fires */
    JOBQ_MISSED_SKIP  /* none fires */
} jobq_missed;

/* Of a schedule: a tick while the job of an earlier one has not ended. */
typedef enum jobq_overlap {
    JOBQ_OVERLAP_ALLOW,
    JOBQ_OVERLAP_SKIP,  /* this tick writes nothing */
    JOBQ_OVERLAP_WAIT,  /* its job waits for the other's end; at most one waits */
    JOBQ_OVERLAP_CANCEL /* the other is cancelled, and this one waits for its end */
} jobq_overlap;

/* Which end of a job lets another one run that waits for it. */
typedef enum jobq_on_end {
    JOBQ_ON_SUCCESS,
    JOBQ_ON_FAILURE, /* it failed, or was cancelled */
    JOBQ_ON_ANY
} jobq_on_end;

/* ---- partitions ------------------------------------------------------------------------------ */

typedef enum jobq_partition_state {
    JOBQ_PARTITION_NORMAL,
    JOBQ_PARTITION_DEGRADED
} jobq_partition_state;

/* PartitionMode. All zero is the start: Normal, no failures. */
typedef struct jobq_partition_mode {
    jobq_partition_state state;
    uint32_t effective;   /* Degraded: the batch size */
    uint32_t successes;   /* Degraded: in a row */
    uint32_t failures;    /* in a row; stops at UINT32_MAX */
} jobq_partition_mode;

/* What a handler says about a message or a batch: success, retry or reject. The other values are
 * set by jobq_delivery_run and the loop. */
typedef enum jobq_result {
    JOBQ_RESULT_NONE,     /* the handler said nothing: counts as a retry */
    JOBQ_RESULT_SUCCESS,
    JOBQ_RESULT_RETRY,
    JOBQ_RESULT_REJECT,   /* make it a dead letter */
    JOBQ_RESULT_LEFT,     /* no handler got it: given back */
    JOBQ_RESULT_EXCEEDED, /* max_attempts reached: a dead letter */
    JOBQ_RESULT_COUNT
} jobq_result;

#define JOBQ_COUNT_UNKNOWN UINT32_MAX /* the batch handler does not say how many it did */

typedef enum jobq_directive_kind {
    JOBQ_DIRECTIVE_PROCEED, /* there is probably more: go on at once */
    JOBQ_DIRECTIVE_IDLE,    /* wait for a notification */
    JOBQ_DIRECTIVE_SLEEP    /* wait for delay_us or a notification */
} jobq_directive_kind;

typedef struct jobq_directive {
    jobq_directive_kind kind;
    int64_t delay_us;
} jobq_directive;

/* jobq_partition_size -- how many messages to read: 1 to configured (0 counts as 1). */
JOBQ_API uint32_t jobq_partition_size(const jobq_partition_mode *mode, uint32_t configured);

/*
 * jobq_partition_next -- the mode after a batch.
 *
 * Shape   configured: the batch size of mode Normal. threshold: failures in a row that degrade a
 *         partition. 0 counts as 1. processed: messages done before the one that failed, or
 *         JOBQ_COUNT_UNKNOWN.
 *         Success: no failures; Degraded doubles its size, and becomes Normal at configured.
 *         Retry, and NONE: one more failure; from threshold on Degraded, with size processed, but
 *         at least 1.
 *         Reject: no failures, and Degraded at once. The size never exceeds configured.
 */
JOBQ_API jobq_partition_mode jobq_partition_next(jobq_partition_mode mode, jobq_result result,
                                                 uint32_t configured, uint32_t processed,
                                                 uint32_t threshold);

/* jobq_partition_backoff -- how long a partition waits after this many failures in a row. */
JOBQ_API int64_t jobq_partition_backoff(const jobq_backoff *backoff, uint32_t failures,
                                        uint64_t random);

/*
 * jobq_partition_directive -- what to do after a batch: go on, wait for a notification, or pause.
 *
 * Shape   mode: what jobq_partition_next returned. count: messages read; 0 if there were none, or
 *         another worker had the lease. size: what jobq_partition_size asked for.
 */
JOBQ_API jobq_directive jobq_partition_directive(const jobq_partition_mode *mode,
                                                 jobq_result result, uint32_t count, uint32_t size,
                                                 const jobq_backoff *backoff, uint64_t random);

/* ---- the outbox: messages and what becomes of them ------------------------------------------- */

#define JOBQ_TRIED_MAX 100 /* deliveries that a cursor counts */

/* A named preset of tuning constants. quick is the default; the other four come from the outbox
 * library that this one replaces. */
#define JOBQ_PROFILES(X)                    \
    X(QUICK, "quick")                       \
    X(SEED, "seed")                         \
    X(LOW_LATENCY, "low_latency")           \
    X(HIGH_THROUGHPUT, "high_throughput")   \
    X(RELAXED, "relaxed")

typedef enum jobq_profile {
#define JOBQ__X(id, name) JOBQ_PROFILE_##id,
    JOBQ_PROFILES(JOBQ__X)
#undef JOBQ__X
        JOBQ_PROFILE_COUNT
} jobq_profile;

typedef enum jobq_role {
    JOBQ_ROLE_PROCESSOR,  /* reads and acknowledges */
    JOBQ_ROLE_SEQUENCER,  /* numbers messages; here a processor does that when it reads */
    JOBQ_ROLE_RECLAIMER,  /* frees the space of acknowledged messages; here VACUUM does */
    JOBQ_ROLE_RECONCILER, /* looks for what no notification announced */
    JOBQ_ROLE_COUNT
} jobq_role;

/* How a queue's messages are handled. Zero fields mean the default: that of quick's processor, or 0
 * for times that quick has as 0. */
typedef struct jobq_tuning {
    int32_t batch;       /* messages of one delivery, 1 to JOBQ_LOOP_BATCH (default 100) */
    uint32_t threshold;  /* failures in a row that degrade a partition (default 2) */
    int64_t min_us;      /* shortest pause between batches that follow each other (default 0) */
    int64_t active_us;   /* ... and the pause before the first of them (default 0) */
    int64_t ramp_us;     /* ... which shrinks by this each time (default 0) */
    int64_t idle_us;     /* longest wait without a notification (default 10 min). A worker looks at
                            least every loop.poll_us, and as often as its most eager queue says */
    jobq_backoff retry;  /* between the attempts of a partition (default 1 s to 60 s, 25 %) */
    int64_t lease_us;    /* of the partition's holder (default 6 s) */
    int64_t headroom_us; /* time before the lease's end at which its holder stops (default 1/6) */
    int64_t budget_us;   /* time limit of a delivery (default 30 s). If it exceeds lease - headroom,
                            the lease is renewed meanwhile */
} jobq_tuning;

/* jobq_tuning_of -- the constants of a role in a profile. All profiles but quick have lease 30 s,
 * headroom 2 s, budget 28 s. A worker needs only those of the processor. */
JOBQ_API jobq_tuning jobq_tuning_of(jobq_profile profile, jobq_role role);

/* jobq_tuning_defaults -- the tuning with its zero fields filled. NULL: quick's processor. */
JOBQ_API jobq_tuning jobq_tuning_defaults(const jobq_tuning *tuning);

/*
 * jobq_partition_of -- the partition, 0 to partitions - 1, of a key.
 *
 * Shape   partitions: a power of two, 1 to 65536. The result is the first two bytes of the key's
 *         SHA-256, big end first, AND (partitions - 1). Any language can compute it; SQL does in
 *         one expression. Doubling the partitions splits each in two: p becomes p and p +
 *         partitions.
 *         Examples, of 65536: "" 58288, "a" 51863, "abc" 47736, "order-1" 2991; smaller counts take
 *         the low bits.
 */
JOBQ_API uint32_t jobq_partition_of(jobq_str key, uint32_t partitions);

/*
 * jobq_schema_of -- which of count schemas, 0 to count - 1, a key's jobs and messages go to.
 *
 * Shape   count: 1 to 65536, the length of the producer's list. A schema appended to the list takes
 *         its fair share of the keys, 1 in count, and no other key moves; so only append. What is
 *         already enqueued stays where it is, so an idempotency key is unique only for one length
 *         of the list.
 *         Examples, of 1, 2, 3, 10, 1000: "" 0 0 0 8 316, "a" 0 1 1 1 28, "abc" 0 1 1 3 144,
 *         "order-1" 0 1 2 9 813.
 * Source  Lamping and Veach, A Fast, Minimal Memory, Consistent Hash Algorithm (2014), in integers,
 *         on bytes 8 to 15 of the key's SHA-256, big end first. jobq_partition_of uses other bytes.
 */
JOBQ_API int32_t jobq_schema_of(jobq_str key, int32_t count);

/*
 * How far a partition is. tried holds, largest first, the last seq of each delivery that is not
 * acknowledged yet. So a message was delivered as often as there are entries >= its seq. When
 * everything is acknowledged, tried is empty, and costs nothing while all goes well. A delivery
 * whose process was killed is still in it. The count stops at JOBQ_TRIED_MAX: a queue with a higher
 * max_attempts retries for ever.
 */
typedef struct jobq_cursor {
    int64_t acked; /* everything up to this seq is acknowledged */
    jobq_partition_mode mode;
    int32_t tried_count;
    int64_t tried[JOBQ_TRIED_MAX];
} jobq_cursor;

/* How a delivery went. */
typedef struct jobq_verdict {
    int32_t count;      /* messages read: acked + 1 ... acked + count */
    int32_t size;       /* messages asked for */
    jobq_result result; /* of the whole; LEFT: given back, for example at a stop */
    uint32_t processed; /* messages done before the one that failed; UNKNOWN: it is not known which
                           failed */
    int64_t delay_us;   /* RETRY: the handler's own delay, when delay_named */
    bool delay_named;
} jobq_verdict;

/* What a partition becomes. One guarded statement writes it. */
typedef struct jobq_plan {
    jobq_cursor cursor;       /* afterwards */
    int32_t done;             /* messages [0, done) leave; REJECT and EXCEEDED as dead letters */
    int32_t dead;             /* how many of those are dead letters */
    int32_t failed;           /* the message that the partition retries, and its error; -1: none */
    jobq_directive directive; /* Proceed: the lease may be kept, and the next batch read at once */
} jobq_plan;

/*
 * jobq_outbox_plan -- what an acknowledgement writes.
 *
 * Shape   policy and tuning: filled by their defaults. cursor: before this delivery. results: a
 *         jobq_result for each message of the verdict, none of them NONE; a RETRY whose message has
 *         reached max_attempts is changed to EXCEEDED. Everything before the first RETRY or LEFT is
 *         done. Later messages come again; if a handler handled them, that counts as an attempt.
 *         LEFT at the end gives attempts back. A batch that fails without saying where makes no
 *         dead letter: at the limit its messages are delivered one by one, and then the bad one
 *         fails alone.
 */
JOBQ_API void jobq_outbox_plan(const jobq_policy *policy, const jobq_tuning *tuning,
                               const jobq_cursor *cursor, const jobq_verdict *verdict,
                               uint8_t *results, uint64_t random, jobq_plan *plan);

/* ---- traces ---------------------------------------------------------------------------------- */

#define JOBQ_TRACE_STATE_MAX 512 /* bytes of a tracestate */
#define JOBQ_TRACE_MAX 608       /* bytes that jobq_trace_format writes, terminator included */

/* A place in a trace, as W3C's HTTP headers of these names give it. Zero: none. */
typedef struct jobq_trace {
    jobq_str parent; /* traceparent: bytes 3 to 34 are the trace's id, 36 to 51 the caller's span */
    jobq_str state;  /* tracestate */
} jobq_trace;

/* jobq_trace_of -- the trace that the headers of a job or of a message hold, with pointers into
 * them; zero if they hold no valid one. In a handler: jobq_trace_of(call->headers). Give it to what
 * the handler enqueues (jobq_pg_job.trace) and to your tracer. What jobq_trace_format leaves out is
 * left out here too. */
JOBQ_API jobq_trace jobq_trace_of(jobq_str headers);

/* ---- handlers -------------------------------------------------------------------------------- */

typedef struct jobq_call jobq_call;
typedef struct jobq_store jobq_store; /* what a store offers to a handler */

/* What jobq_call_hold holds back: the line of the handler's job, or its queue. */
typedef enum jobq_hold { JOBQ_HOLD_LINE, JOBQ_HOLD_QUEUE } jobq_hold;

/* How serious a line of a log is, a job's or the library's own. */
typedef enum jobq_level {
    JOBQ_LEVEL_DEBUG,
    JOBQ_LEVEL_INFO,
    JOBQ_LEVEL_WARNING,
    JOBQ_LEVEL_ERROR /* so level >= JOBQ_LEVEL_WARNING is what a person should see */
} jobq_level;

/* Why a handler should stop, as jobq_call_stopping tells it. */
typedef enum jobq_stop {
    JOBQ_STOP_NONE,
    JOBQ_STOP_SHUTDOWN, /* the worker stops; handlers that outlast the grace are released */
    JOBQ_STOP_CANCEL,   /* somebody asked to cancel this job */
    JOBQ_STOP_TIMEOUT,  /* the time limit has passed: the attempt has failed */
    JOBQ_STOP_LOST      /* the lease is lost or about to end: stop all side effects */
} jobq_stop;

/* One run of a handler. The pointers are valid until the handler returns. */
struct jobq_call {
    jobq_job job;
    jobq_str kind;
    jobq_str payload;   /* JSON text or bytes; {NULL, 0}: none */
    jobq_str headers;   /* JSON text; {NULL, 0}: none */
    bool payload_bytes; /* payload holds bytes, not JSON */
    void *user;         /* from the handler's registration */
    int64_t delay_us;   /* set by jobq_call_delay */
    bool delay_named;
    bool waits;         /* set by jobq_pg_call_wait */
    size_t error_size;
    char error[JOBQ_ERROR_MAX + 1]; /* set by jobq_call_error */
    const jobq_store *store;        /* for the store only, like context */
    void *context;
    void *conn;         /* of a call without a worker: what jobq_pg_call_conn returns */
    jobq_outcome outcome; /* of a batch: for its handler to set, or leave at NONE */
    int32_t together;   /* jobs of its batch; 1: it is alone */
};

/* jobq_handler -- does the work of one job in one stage, and says how it went. */
typedef jobq_outcome (*jobq_handler)(jobq_call *call);

/* jobq_jobs_handler -- does the work of a batch of jobs of one stage. It sets the outcome of each
 * call; what it returns is the outcome of those that it left at NONE, and if it throws, those are
 * retried. An error, a delay or a result belongs to its own call. See BATCHES. */
typedef jobq_outcome (*jobq_jobs_handler)(jobq_call *const *calls, int32_t count);

/* Who runs the jobs of a kind. run[s] runs stage s; a stage without one is run by the last one
 * before it, so that {handler} runs them all. */
typedef struct jobq_job_handler {
    const char *queue;
    const char *kind;
    jobq_handler run[JOBQ_STAGES_MAX];
    void *user;          /* call->user */
    int32_t threads_max; /* threads of a worker that may run this kind at once, for each schema
                            (default: all). The others are free for quick jobs, and other workers
                            may take the kind's jobs. If its backlog may be long, give it a queue:
                            claims read past jobs of a kind at its limit, but leave out a queue of
                            such kinds */
    jobq_jobs_handler batch; /* instead of run: it gets the jobs in batches */
    int32_t batch_max;       /* jobs of one call, 1 to 1000 (default 100). A repeated attempt runs
                                in batches of half, a quarter ... of it */
    int64_t batch_wait_us;   /* how long a job may wait for others, at most 500 ms (default 0: a
                                batch is what is there when a thread is free) */
} jobq_job_handler;

#define JOBQ_BATCH_MAX 1000 /* the most that batch_max may be, */
#define JOBQ_BATCH_DEFAULT 100
#define JOBQ_BATCH_WAIT_MAX JOBQ_MILLISECONDS(500)

/* jobq_call_error -- why the attempt failed. Copied, made valid UTF-8, cut to JOBQ_ERROR_MAX. */
JOBQ_API void jobq_call_error(jobq_call *call, jobq_str text);

/* jobq_call_delay -- the delay of this RETRY (instead of the backoff) or SNOOZE. At least 0, at
 * most 1,000 years. */
JOBQ_API void jobq_call_delay(jobq_call *call, int64_t delay_us);

/*
 * jobq_call_hold -- nothing more is claimed from the job's line, or from its queue, for a while:
 * for a server that answers 429 Too Many Requests.
 *
 * Shape   delay_us: from now on, by the store's clock; 0 or less ends a hold. The latest call wins.
 *         why: for people; copied, cut to JOBQ_NAME_MAX bytes; may be empty. Jobs that are claimed
 *         already, such as this one, are not held: return JOBQ_OUTCOME_RETRY or SNOOZE.
 * Tx      own, even if the attempt fails. A line is held when the call returns; workers hear of a
 *         queue's hold a moment later.
 * Errors  JOBQ_ERROR_INVALID: JOBQ_HOLD_LINE, and the job has no line. JOBQ_ERROR_LOST: the job is
 *         no longer this worker's. Those of the store. A call without a store: none.
 */
JOBQ_API jobq_error jobq_call_hold(jobq_call *call, jobq_hold what, int64_t delay_us,
                                   jobq_str why);

#define JOBQ_NOTE_MAX 200 /* bytes of a note that are kept */

/*
 * jobq_call_progress -- how far the job is, for people: Postgres shows it in the view running. The
 * worker's next heartbeat (every 5 s by default: loop.heartbeat_us) carries it, without a statement
 * of its own, so call it as often as you like. The store keeps it until the attempt ends.
 *
 * Shape   permille: 0 to 1000, or the nearest. note: what it does just now, copied, made valid
 *         UTF-8 and cut to JOBQ_NOTE_MAX bytes; may be empty. The latest call counts. now: publish
 *         it before returning, by one statement.
 * Tx      own, even if the attempt fails.
 * Errors  with now: JOBQ_ERROR_LOST: the job is no longer this worker's. Those of the store.
 *         Otherwise, and for a call without a store: none.
 */
JOBQ_API jobq_error jobq_call_progress(jobq_call *call, int permille, jobq_str note, bool now);

/*
 * jobq_call_step -- whether a step of this job has been done, in this attempt or an earlier one, by
 * any worker. Make what must not be done twice a step:
 *
 *     switch (jobq_call_step(call, "charge", &receipt)) {
 *     case JOBQ_OK: break;
 *     case JOBQ_ERROR_NOT_FOUND:
 *         receipt = charge(order);
 *         if (jobq_call_step_done(call, "charge", receipt) == JOBQ_OK) break;
 *         return JOBQ_OUTCOME_RETRY;
 *     default: return JOBQ_OUTCOME_RETRY;
 *     }
 *
 * Shape   name: 1 to JOBQ_NAME_MAX bytes. *value (may be NULL): what jobq_call_step_done has left;
 *         valid until the handler returns. Steps are kept as long as the job lives or can be
 *         revived. A worker that dies before jobq_call_step_done leaves a step that is done again;
 *         jobq_pg_call_step_done excludes that for what is written to the database.
 * Tx      own.
 * Errors  JOBQ_ERROR_NOT_FOUND: it is not done. JOBQ_ERROR_LOST: the job is no longer this
 *         worker's. Those of the store. A call without a store: JOBQ_ERROR_NOT_FOUND.
 */
JOBQ_API jobq_error jobq_call_step(jobq_call *call, const char *name, jobq_str *value);

/*
 * jobq_call_step_done -- this step is done; later attempts get value from jobq_call_step.
 *
 * Shape   value: JSON text; {NULL, 0}: nothing. The steps of a job hold at most 1 MiB together.
 * Tx      own, even if the attempt fails.
 * Errors  JOBQ_ERROR_INVALID: not JSON, or too large. As jobq_call_step.
 */
JOBQ_API jobq_error jobq_call_step_done(jobq_call *call, const char *name, jobq_str value);

/*
 * jobq_call_signal -- the payload of a signal, or waits for it: on JOBQ_ERROR_NOT_FOUND return
 * JOBQ_OUTCOME_SNOOZE, and the job runs again when the signal has been sent, or after timeout_us.
 * No thread is held meanwhile, and no attempt is used up.
 *
 * Shape   name: 1 to JOBQ_NAME_MAX bytes. timeout_us: from the first call with this name on; a
 *         negative one counts as 0; JOBQ_NEVER: no limit. *payload (may be NULL): JSON text, or
 *         {NULL, 0}; valid until the handler returns. A job waits for one signal at a time.
 * Tx      own.
 * Errors  JOBQ_ERROR_NOT_FOUND: it has not been sent. JOBQ_ERROR_TIMEOUT: it was not sent within
 *         timeout_us. To go on waiting, call jobq_call_delay and return JOBQ_OUTCOME_SNOOZE: the
 *         signal still ends the delay. As jobq_call_step.
 */
JOBQ_API jobq_error jobq_call_signal(jobq_call *call, const char *name, int64_t timeout_us,
                                     jobq_str *payload);

#define JOBQ_LOG_MAX 8192      /* bytes of an attempt's log that are kept, as JSON */
#define JOBQ_LOG_LINE_MAX 1024 /* bytes of a line's text that are kept */

/*
 * jobq_call_log -- adds a line to the attempt's log, for people. The lines are written when the
 * attempt ends, without a statement of their own: those of a success into the column log of the
 * views jobs and past_jobs; those of any other attempt into its entry in errors, as "log". They are
 * kept as long as the job.
 *
 * Shape   text: copied, made valid UTF-8 and cut to JOBQ_LOG_LINE_MAX bytes at a character; it may
 *         hold line ends. When an attempt's lines exceed JOBQ_LOG_MAX, the oldest are dropped, and
 *         a line says how many. A worker that has lost the job, or dies, writes none of its lines.
 */
JOBQ_API void jobq_call_log(jobq_call *call, jobq_level level, jobq_str text);

/* jobq_call_result -- what this stage leaves, JSON or bytes; copied. In the last stage it is the
 * job's result, for those who wait for the job or look at it: it is written with the job's end, if
 * that is a success, and kept as long as its history. In any other stage it is the payload of the
 * next one. The latest call counts. False: out of memory, not JSON, or larger than the store
 * accepts. */
JOBQ_API bool jobq_call_result(jobq_call *call, jobq_str result, bool bytes);

/*
 * jobq_call_stopping -- whether, and why, this handler should stop soon. It is cheap: call it
 * often.
 *
 * Shape   SHUTDOWN: finish if that takes only moments; otherwise return JOBQ_OUTCOME_RELEASE.
 *         CANCEL: JOBQ_OUTCOME_CANCELLED. TIMEOUT and LOST: what you return changes nothing now:
 *         the attempt has failed, or another worker runs the job again. A transaction of your own
 *         that completed the job counts if it was committed before the failure was written.
 *         *left_us (may be NULL): microseconds until this handler's time limit, or until the end of
 *         its grace if the worker is stopping; at least 0, JOBQ_NEVER: no limit. For time-outs of
 *         what it calls.
 */
JOBQ_API jobq_stop jobq_call_stopping(const jobq_call *call, int64_t *left_us);

/* ---- handlers of messages -------------------------------------------------------------------- */

typedef struct jobq_message {
    int64_t seq;           /* 1, 2, 3 ... within its partition */
    int64_t created_at_us; /* store's clock */
    int32_t attempts;      /* earlier times that a handler got it: see law (14) */
    bool payload_bytes;    /* payload holds bytes */
    jobq_str type;         /* chosen by the producer */
    jobq_str payload;      /* JSON text, or bytes */
    jobq_str headers;      /* JSON text; {NULL, 0}: none */
} jobq_message;

typedef struct jobq_delivery jobq_delivery;
typedef struct jobq_delivery_store jobq_delivery_store;

/* One batch of one partition, as a handler gets it. The pointers are valid until it returns. */
struct jobq_delivery {
    const jobq_message *messages; /* in order, without a gap */
    int32_t count;
    int32_t partition;  /* number in its queue: 0, 1, 2 ... */
    int64_t partition_id; /* id in the store */
    jobq_str queue;
    void *user;         /* from the handler's registration */
    uint8_t *results;   /* a jobq_result each; the functions below write them */
    uint32_t processed; /* set by jobq_delivery_done */
    int64_t delay_us;   /* set by jobq_delivery_delay */
    bool delay_named;
    size_t error_size;
    char error[JOBQ_ERROR_MAX + 1]; /* set by jobq_delivery_error */
    const jobq_delivery_store *store;
    void *context;
};

/* Handles one message at a time. success goes on. reject makes a dead letter and goes on. retry
 * ends the batch: this message and those after it come again. */
typedef jobq_result (*jobq_message_handler)(jobq_delivery *delivery, const jobq_message *message);

/* Handles the whole batch at once. success: all are done. After jobq_delivery_done(n) only the
 * first n are done, and the others come again at once. retry: all come again. After
 * jobq_delivery_done(n) the first n are done, and the next one failed. reject: those that are not
 * done become dead letters. A message passed to jobq_delivery_reject becomes a dead letter once all
 * before it are done. */
typedef jobq_result (*jobq_batch_handler)(jobq_delivery *delivery);

/* jobq_delivery_done -- a batch handler has done the first count messages, all of them at most. */
JOBQ_API void jobq_delivery_done(jobq_delivery *delivery, int32_t count);

/* jobq_delivery_reject -- a batch handler rejects one message and says why. False: out of memory,
 * or no such message. */
JOBQ_API bool jobq_delivery_reject(jobq_delivery *delivery, int32_t index, jobq_str why);

/* jobq_delivery_error -- why it failed. Copied, made valid UTF-8, cut to JOBQ_ERROR_MAX. */
JOBQ_API void jobq_delivery_error(jobq_delivery *delivery, jobq_str text);

/* jobq_delivery_delay -- the delay of this retry, instead of the backoff. At least 0, at most 1,000
 * years. */
JOBQ_API void jobq_delivery_delay(jobq_delivery *delivery, int64_t delay_us);

/* jobq_delivery_stopping -- whether, and why, this handler should stop soon. A batch handler then
 * calls jobq_delivery_done and returns success; handlers of single messages are stopped between two
 * messages. It is cheap: call it often. *left_us: as of jobq_call_stopping. */
JOBQ_API jobq_stop jobq_delivery_stopping(const jobq_delivery *delivery, int64_t *left_us);

/* ---- texts ----------------------------------------------------------------------------------- */

/* jobq_utf8_valid -- strict UTF-8 without NUL: what a Postgres text column accepts. */
JOBQ_API bool jobq_utf8_valid(jobq_str text);

/* jobq_json_quote -- writes text as a JSON string, in quotes and terminated; returns its length, or
 * 0 if it does not fit into size bytes. Each bad byte and each NUL becomes '?'. */
JOBQ_API size_t jobq_json_quote(char *out, size_t size, jobq_str text);

/*
 * jobq_json_check -- whether Postgres will accept this text as jsonb, decided without Postgres.
 *
 * Shape   one value, with optional white space around it. Strict JSON (RFC 8259) in UTF-8, with the
 *         limits of jsonb: no \u0000, no lone surrogate, only numbers that fit a numeric, depth at
 *         most JOBQ_JSON_DEPTH.
 * Errors  JOBQ_OK or JOBQ_ERROR_INVALID; *at (may be NULL) is the byte of the first fault, *why
 *         (may be NULL) a constant text.
 */
JOBQ_API jobq_error jobq_json_check(jobq_str json, size_t *at, const char **why);

/* jobq_json_member -- the value of an object's member, as the JSON text that it is; of equal names
 * the last one counts, as in jsonb. {NULL, 0}: no such member, or not a JSON object. A name that is
 * written with escapes is not found; jsonb writes them only where JSON needs them. */
JOBQ_API jobq_str jobq_json_member(jobq_str object, const char *name);

/*
 * Reading a payload. The next three read the member of this name, or, if name is NULL, json itself:
 *
 *     char to[200];
 *     int64_t copies = 1;
 *     if (jobq_json_text(call->payload, "to", to, sizeof to) != JOBQ_OK ||
 *         jobq_json_int(call->payload, "copies", &copies) == JOBQ_ERROR_INVALID)
 *         return JOBQ_OUTCOME_DISCARD;
 *
 * JOBQ_OK               the value is in *out; with every other answer *out is as it was, so that it
 *                       may hold a default, such as one copy
 * JOBQ_ERROR_NOT_FOUND  there is no such member, or it is null; json is {NULL, 0} or not an object
 * JOBQ_ERROR_INVALID    it is of another type or out of range; json, read itself, is not valid
 * JOBQ_ERROR_FULL       the text does not fit
 *
 * An object in an object is jobq_json_member(json, "address"). A boolean is true if it is the text:
 * jobq_str_equal(jobq_json_member(json, "urgent"), jobq_str_from("true")).
 *
 * This is not a JSON library. It does not walk through arrays and objects, and each call reads json
 * from its beginning. If a payload has more than a few members, take a library, such as yyjson: one
 * C file and one header, MIT, fast, and strict.
 */

/* jobq_json_text -- a string as UTF-8, without its quotes and escapes, terminated. out holds size
 * bytes; as many as jobq_json_member's value has always suffice. */
JOBQ_API jobq_error jobq_json_text(jobq_str json, const char *name, char *out, size_t size);

/* jobq_json_int -- an integer, exactly. INVALID, too: it is beyond an int64_t, or is written with a
 * point or an exponent, such as 1.0 and 1e3. */
JOBQ_API jobq_error jobq_json_int(jobq_str json, const char *name, int64_t *out);

/* jobq_json_double -- the double that is nearest to a number; of two, the even one. INVALID, too:
 * it is too large. The locale and the rounding mode do not matter. */
JOBQ_API jobq_error jobq_json_double(jobq_str json, const char *name, double *out);

/* ---- a worker's settings and counts ---------------------------------------------------------- */

/* When a loop stops by itself. */
typedef enum jobq_until {
    JOBQ_UNTIL_STOPPED, /* never */
    JOBQ_UNTIL_EMPTY,   /* nothing is due; jobs due later, retries and snoozes too, are left */
    JOBQ_UNTIL_ENDED    /* all jobs of its queues have ended and all messages are acknowledged, even
                           those that other workers hold */
} jobq_until;

/* Zero fields mean the default; jobq_loop_config_defaults fills them. */
typedef struct jobq_loop_config {
    int32_t threads;      /* handlers that run at once, 1 to JOBQ_LOOP_THREADS (default 4) */
    int32_t batch_max;    /* jobs of one claim or flush (default 1000, at most half the slots) */
    int64_t lease_us;     /* the worker's lease (default 30 s) */
    int64_t heartbeat_us; /* between heartbeats (default a sixth of the lease) */
    int64_t poll_us;      /* between claims or looks (default heartbeat_us if woken, else 1 s) */
    int64_t rest_us;      /* a worker that is notified, and has had nothing to do for twelve
                             heartbeats while no other worker had, sends them more and more rarely,
                             and looks as rarely, at last this far apart (default 0: it does not) */
    int64_t flush_us;     /* longest time that a finished job waits for its flush (default 5 ms) */
    int64_t linger_us;    /* longest pause after a claim that got few jobs (default 20 ms) */
    int64_t sweep_us;     /* longest time that a bound may hide a job (default 5 s). While an old
                             snapshot pins dead rows, sweeps are made in slices, in a tenth of the
                             time: then it is longer for a job that committed 3 s late or more */
    int64_t grace_us;     /* time that running handlers get at a stop (default 30 s) */
    int64_t answer_us;    /* longest wait for a statement's answer (default a third of the lease).
                             Postgres gives a statement up after nine tenths of it */
    int64_t prune_us;     /* longest time between two prunes (default 10 min). JOBQ_NEVER: other
                             workers prune */
    int64_t vacuum_rows;  /* vacuum the tables after this many jobs ended and messages were
                             acknowledged here (default 100,000). JOBQ_NEVER: others do */
    int64_t jobs_max;     /* stop after this many jobs were started (default: never) */
    jobq_until until;     /* when to stop, besides jobs_max (default: never) */
    const struct jobq_loop_served *served; /* for a worker of your own; jobq_pg.h has its own */
} jobq_loop_config;

/* Counts since the start. succeeded to snoozed say what handlers said, each run once, when it was
 * said; flushed says what has been written, which is the same in the end unless a lease is lost. */
typedef struct jobq_loop_stats {
    int64_t claims;       /* claims that were answered */
    int64_t empty_claims; /* ... without a job */
    int64_t claimed;      /* jobs that came with claims */
    int64_t started;      /* jobs whose handlers were started */
    int64_t calls;        /* calls of handlers; one call may run a batch of jobs */
    int64_t flushed;      /* decisions that the store has taken: jobs that ended or went back */
    int64_t succeeded;    /* stages done, also by a handler's own transaction */
    int64_t retried;      /* attempts that failed or ran out of time, and will be repeated */
    int64_t failed;       /* jobs that failed for good */
    int64_t cancelled;    /* jobs that were cancelled while they ran */
    int64_t released;     /* jobs given back or parked */
    int64_t snoozed;      /* attempts that will be repeated and used up none */
    int64_t expired;      /* late jobs that claims have ended */
    int64_t lost;         /* results that the store refused, because the job was no longer ours */
    int64_t abandoned;    /* handlers that overran their time or the grace */
    int64_t heartbeats;   /* heartbeats that were accepted */
    int64_t rescued;      /* jobs of dead workers that this one gave back */
    int64_t reconnects;   /* connections that were lost */
    int64_t deaths;       /* times that others declared this worker dead; it registered again */
    int64_t aside;   /* jobs that could not be sent and were failed */
    int64_t refused; /* decisions that the database refused, and took without text and payload */
    int64_t left;    /* jobs left to a rescuer, because every decision about them was refused */
} jobq_loop_stats;

/* The same for messages. succeeded, dead and retried are counted when they have been written. */
typedef struct jobq_relay_stats {
    int64_t looks;     /* looks for partitions that have messages */
    int64_t crowded;   /* ... that found one when all places were taken by others to read */
    int64_t reads;     /* reads that brought messages */
    int64_t delivered; /* messages that handlers were given, each time they were given */
    int64_t succeeded; /* messages acknowledged, without dead letters */
    int64_t dead;      /* messages that became dead letters */
    int64_t retried;   /* deliveries that failed and are repeated */
    int64_t lost;      /* acknowledgements that the store refused: the partition was taken */
    int64_t renewals;  /* leases of partitions that were renewed for a long delivery */
    int64_t takeovers; /* partitions taken from workers that died */
    int64_t aside;     /* messages that could not be read and became dead letters */
} jobq_relay_stats;

/* ---- tests of handlers ----------------------------------------------------------------------- */

#ifndef JOBQ_NO_TEST

/*
 * Handlers on a jobq_memory, by name: see TESTING YOUR HANDLERS. Time starts at 0 and passes only
 * in jobq_test_run and jobq_test_sleep. Equal calls have equal effects, jitter included. Handlers
 * run one after the other. Up to 16 queues have handlers. 8 queues and 8 kinds may have a policy:
 * those that were named first, in handlers or by jobq_test_policy.
 */

#ifndef JOBQ_TEST_JOBS
#define JOBQ_TEST_JOBS 256
#endif
#ifndef JOBQ_TEST_BYTES
#define JOBQ_TEST_BYTES 1000000
#endif
#ifndef JOBQ_TEST_BATCH
#define JOBQ_TEST_BATCH JOBQ_BATCH_DEFAULT
#endif

typedef struct jobq_test jobq_test;

/* What a job waits for, with the names and meanings of jobq_pg_after. */
typedef struct jobq_test_after {
    int64_t job;        /* its id */
    jobq_on_end on_end; /* (default: its success) */
} jobq_test_after;

/* A job to add, with the names and meanings of jobq_pg_job. It is copied, but for the names of its
 * queue and kind, which must live as long as the test. */
typedef struct jobq_test_job {
    const char *queue;
    const char *kind;
    jobq_str payload;   /* JSON text, checked (default: none) */
    bool payload_bytes; /* payload holds bytes */
    jobq_str headers;   /* JSON text, checked (default: none) */
    int64_t delay_us;   /* (default 0) */
    int64_t timeout_us; /* (default: its kind's, or else the queue's) */
    int64_t expires_us; /* it ends unrun, cancelled, if it has not begun this long after run_at; at
                           least 1 ms (default: never) */
    int priority;       /* -9 to 9 (default 0) */
    int stages;         /* 1 to JOBQ_STAGES_MAX (default 1) */
    int max_attempts;   /* (default: the queue's) */
    const char *line;   /* its line in the queue: 1 to 1024 bytes of UTF-8 (default: none). A test
                           has room for 63 lines */
    const char *key;    /* one job per queue and key, until a day after its end: then the id is that
                           of the job which has the key */
    jobq_known on_known; /* only JOBQ_KNOWN_LEAVE; the others need the database */
    const jobq_test_after *after; /* what it waits for: all of these (default: nothing) */
    int after_count;
} jobq_test_job;

/* What goes wrong, the simplest first. */
typedef enum jobq_test_event {
    JOBQ_TEST_NOTHING,
    JOBQ_TEST_CRASH,     /* the worker dies; another one starts at once */
    JOBQ_TEST_UNSURE,    /* something is done, but the connection is lost before the answer */
    JOBQ_TEST_REFUSED,   /* it is refused, and nothing is done */
    JOBQ_TEST_CANCEL,    /* somebody cancels the job while it runs */
    JOBQ_TEST_SHUTDOWN,  /* the worker is told to stop; another one goes on afterwards */
    JOBQ_TEST_TIMEOUT,   /* the time limit of the job passes */
    JOBQ_TEST_LATE,      /* an hour passes */
    JOBQ_TEST_MEANWHILE, /* another thread runs the next job, or delivery, to its end */
    JOBQ_TEST_ELSEWHERE, /* the worker hangs until another one has taken over its work */
    JOBQ_TEST_ORDER,     /* of several jobs that are ready, the last one starts first */
    JOBQ_TEST_EVENT_COUNT
} jobq_test_event;

/* jobq_test_size -- bytes of a test: some MB. The memory is the caller's, aligned for int64_t. */
JOBQ_API size_t jobq_test_size(void);

/* jobq_test_init -- an empty queue and a worker with these handlers. The array is copied; the names
 * in it, and what user points to, must live as long as the test. To end it, free the block. */
JOBQ_API jobq_test *jobq_test_init(void *block, const jobq_job_handler *handlers, int32_t count);

/* jobq_test_policy -- sets the policy of a queue, or of a kind; the other name is NULL. Unlike on
 * Postgres, a kind is the same in all queues, and has the defaults where its policy is 0. */
JOBQ_API void jobq_test_policy(jobq_test *test, const char *queue, const char *kind,
                               const jobq_policy *policy);

/* jobq_test_conn -- what jobq_pg_call_conn returns from now on: a connection to a test database, or
 * what the test's own version of libpq takes for one. jobq_pg_call_commit commits on it. What
 * jobq_pg_call_step_done has done stays done, even if you roll back. */
JOBQ_API void jobq_test_conn(jobq_test *test, void *conn);

/* jobq_test_enqueue -- adds a job. Returns its id: 1, 2, 3 ... 0: it is refused, and
 * jobq_test_get(test, 0)->error names the field and says why. */
JOBQ_API int64_t jobq_test_enqueue(jobq_test *test, const jobq_test_job *job);

/* Who gets the messages of a queue, with the names and meanings of jobq_pg_receiver. */
typedef struct jobq_test_receiver {
    const char *queue;
    jobq_message_handler each; /* one of the two */
    jobq_batch_handler all;
    void *user;                /* delivery->user */
} jobq_test_receiver;

/* jobq_test_receive -- gives a queue an outbox of one partition, and its messages to a handler.
 * Call it before the first jobq_test_run, once for each queue. Names must live as long as the
 * test. */
JOBQ_API void jobq_test_receive(jobq_test *test, const jobq_test_receiver *receiver);

/* A message to send, with the names and meanings of jobq_pg_message. Copied. */
typedef struct jobq_test_message {
    const char *queue;  /* that of a receiver */
    const char *type;   /* 1 to 1024 printable ASCII (default: none) */
    jobq_str payload;   /* JSON text, checked (default: none) */
    bool payload_bytes; /* payload holds bytes */
    jobq_str headers;   /* a JSON object, checked (default: none) */
} jobq_test_message;

/* What has become of a message. */
typedef struct jobq_test_sent {
    int32_t deliveries; /* times that a handler returned from it */
    bool done;          /* it is acknowledged: it succeeded, or is a dead letter */
    bool dead;          /* it is a dead letter */
    const char *error;  /* why its latest delivery failed, as Postgres keeps it; "": it did not */
} jobq_test_sent;

/* jobq_test_send -- sends a message, which comes after all those sent before to its queue. Returns
 * what becomes of it: each jobq_test_run writes that anew, as long as the test lives. NULL: it is
 * refused, as by jobq_test_enqueue. */
JOBQ_API const jobq_test_sent *jobq_test_send(jobq_test *test, const jobq_test_message *message);

/* jobq_test_run -- runs what falls due, until every job has ended and every message is
 * acknowledged, or this much time has passed. Returns how many times a handler ran; for a batch,
 * once. */
JOBQ_API int64_t jobq_test_run(jobq_test *test, int64_t for_us);

/* jobq_test_fault -- what goes wrong, once: a crash when the next handler returns; UNSURE when a
 * result is written; REFUSED at a handler's next statement; ORDER when the next handler is chosen;
 * all else before the next handler that it can happen to. TIMEOUT needs a job with a time limit. */
JOBQ_API void jobq_test_fault(jobq_test *test, jobq_test_event event);

/* What jobq_test_each_fault tries. Zero it first. */
typedef struct jobq_test_faults {
    const jobq_job_handler *handlers; /* as of jobq_test_init */
    int32_t handler_count;
    bool (*scenario)(jobq_test *test, void *user); /* sets up its world anew, enqueues, runs and
                                                      looks at the outcome; false: it is wrong */
    void *(*conn)(void *user, int number); /* the connection of a handler, for jobq_pg_call_conn,
                                              without an open transaction. number 0; 1: while
                                              another handler is under way (default: see
                                              jobq_test_conn) */
    void (*died)(void *user, int number);  /* the process with that connection died: roll back, and
                                              forget what it had in memory (may be NULL) */
    void *user;
    uint32_t events;     /* 1 << JOBQ_TEST_CRASH | ...: only these (default: all) */
    bool pairs;          /* then also two faults in a story */
    int64_t number;      /* only this story, for a debugger (default: all) */
    int64_t stories_max; /* (default 10,000). stories says if it was reached */
    int64_t stories;     /* out: told so far */
    int32_t happened;    /* out: faults in this story so far, for scenarios */
    char text[4000];     /* out: the story that went wrong */
} jobq_test_faults;

/*
 * jobq_test_each_fault -- runs a scenario again and again: first with no fault, then each time with
 * one fault at the next point where it can happen; see TESTING YOUR HANDLERS.
 *
 * Shape   block: as of jobq_test_init. Returns 0: every story that was told ended well; if stories
 *         is stories_max, some were not told. Otherwise the number of the first one that did not,
 *         100 times its point plus the event, and faults->text tells it: it has the fewest faults,
 *         of the simplest kind, as early as possible. The number means the same as long as the
 *         scenario does. 1: the story without a fault, which must end well, with the same points
 *         each time. A crash leaves the handler by longjmp, and in C++ by an exception.
 */
JOBQ_API int64_t jobq_test_each_fault(void *block, jobq_test_faults *faults);

/* jobq_test_point -- for a fake service: something may go wrong here. The fake calls it first.
 * JOBQ_OK: do what the handler asks. JOBQ_ERROR_RETRYABLE: refuse it. JOBQ_ERROR_CONNECTION: do it,
 * and answer as if the connection had been lost. Only jobq_test_each_fault makes it fail. */
JOBQ_API jobq_error jobq_test_point(jobq_test *test, const char *name);

/* jobq_test_commit -- for a fake database: the handler's own transaction commits with the job's
 * success, as by jobq_pg_call_commit. JOBQ_OK: keep it, and return JOBQ_OUTCOME_DONE.
 * JOBQ_ERROR_CONNECTION: keep it, but the handler cannot know. JOBQ_ERROR_RETRYABLE,
 * JOBQ_ERROR_LOST: roll back. */
JOBQ_API jobq_error jobq_test_commit(jobq_call *call);

/* jobq_test_commit_all -- the same for the calls of a batch, all or none, as by
 * jobq_pg_call_commit_all: JOBQ_ERROR_LOST if one of them is lost. */
JOBQ_API jobq_error jobq_test_commit_all(jobq_call *const *calls, int32_t count);

/* jobq_test_sleep -- in a handler: so much time passes, and the worker goes on meanwhile. */
JOBQ_API void jobq_test_sleep(jobq_test *test, int64_t us);

/* jobq_test_now -- the simulated time. A job's run_at_us is a time of the same clock. */
JOBQ_API int64_t jobq_test_now(const jobq_test *test);

/* A job, and what it has left behind. */
typedef struct jobq_test_view {
    jobq_job job;      /* as it is now: state, attempt, run_at_us ... */
    const char *error; /* why its latest failed attempt failed, or that it expired, as Postgres
                          keeps it; "": neither */
    jobq_str result;   /* see jobq_call_result; {NULL, 0}: none, or it has not succeeded */
    int permille;      /* what its latest attempt last told with jobq_call_progress, even if it
                          has ended; -1: nothing */
    const char *note;  /* ... and its note */
    const char *log;   /* what its latest attempt has told jobq_call_log, whatever became of it, as
                          the JSON array that Postgres keeps:
                          [["1970-01-01T00:00:00.000000Z","info","text"], ...]; "": nothing */
} jobq_test_view;

/* jobq_test_get -- what can be seen of a job; valid until the next call. NULL: no such job. id 0:
 * only the error, which is why a job or message was refused last. */
JOBQ_API const jobq_test_view *jobq_test_get(jobq_test *test, int64_t id);

/* jobq_test_step -- whether a step of the job is done, see jobq_call_step. *value (may be NULL):
 * what it has left. */
JOBQ_API bool jobq_test_step(jobq_test *test, int64_t id, const char *name, jobq_str *value);

/* jobq_test_signal -- sends a signal, see jobq_call_signal; copied. False: it was sent before, or
 * there is no room. */
JOBQ_API bool jobq_test_signal(jobq_test *test, const char *name, jobq_str payload);

/* jobq_test_ready -- what a job waits for since jobq_pg_call_wait has ended. False: it does not
 * wait. */
JOBQ_API bool jobq_test_ready(jobq_test *test, int64_t id);

#endif /* JOBQ_NO_TEST */

/*
 * ---- Stop here unless you write a store or a worker of your own --------------------------------
 *
 * What follows is for jobq_pg.h, and for whoever writes its like for another database.
 *
 *
 * FUNCTIONS
 *
 *     jobq_call_run              runs a handler
 *     jobq_calls_run             runs the handler of a batch
 *     jobq_call_reason           the text that is kept of a failed attempt
 *     jobq_delivery_run          runs one of the two handlers on a delivery
 *     jobq_log_add               adds a line to a log
 *     jobq_log_format            a log as a JSON array
 *     jobq_name_valid            whether a queue or kind may have this name
 *     jobq_json_valid            whether text is JSON
 *     jobq_utf8_cut              the longest prefix that ends at a character
 *     jobq_utf8_mend             any bytes as valid UTF-8
 *     jobq_trace_format          a trace as members of a JSON object
 *     jobq_random_between        maps 64 uniform bits onto [low, high]
 *     jobq_tuning_check          whether a tuning is valid
 *     jobq_cursor_attempts       how often a message was delivered so far
 *     jobq_cursor_check          whether a cursor is valid
 *     jobq_cron_parse            reads a cron expression
 *     jobq_times_bound           the longest time of a bucket
 *     jobq_times_bucket          the bucket of a time
 *     jobq_answer_start          an empty answer to this request
 *     jobq_loop_size             bytes of a loop
 *     jobq_loop_config_defaults  the settings with their zero fields filled
 *     jobq_loop_init             a loop that has not connected yet
 *     jobq_loop_next             what to do now
 *     jobq_loop_abandon          a handler to abandon, or WAIT
 *     jobq_loop_tell             takes the answer of a statement
 *     jobq_loop_disconnected     the connection broke, or could not be made
 *     jobq_loop_notified         a notification arrived
 *     jobq_loop_hears            whether notifications arrive
 *     jobq_loop_stop             asks the loop to stop
 *     jobq_loop_due              when something is due
 *     jobq_loop_take             gives work to a free thread
 *     jobq_loop_mate             the next job of a batch
 *     jobq_loop_stopping         why a handler should stop
 *     jobq_loop_handled          the handler of a job returned
 *     jobq_loop_delivered        a handler of messages returned
 *     jobq_loop_committed        how the handler's own transaction ended
 *     jobq_loop_status_of        the state of a loop
 *     jobq_loop_tally            what it has counted since its start
 *     jobq_recorder_size         bytes of a recording
 *     jobq_recorder_init         begins a recording of a loop
 *     jobq_recorded_next         jobq_loop_next, recorded; likewise:
 *     jobq_recorded_abandon      jobq_loop_abandon
 *     jobq_recorded_tell         jobq_loop_tell
 *     jobq_recorded_disconnected  jobq_loop_disconnected
 *     jobq_recorded_notified     jobq_loop_notified
 *     jobq_recorded_hears        jobq_loop_hears
 *     jobq_recorded_stop         jobq_loop_stop
 *     jobq_recorded_take         jobq_loop_take
 *     jobq_recorded_handled      jobq_loop_handled
 *     jobq_recorded_delivered    jobq_loop_delivered
 *     jobq_recorded_committed    jobq_loop_committed
 *     jobq_replay_size           bytes of a replay
 *     jobq_replay_init           begins at the oldest entry of a recording
 *     jobq_replay_step           makes the next call of the loop again
 *     jobq_loop_wants            when the loop wants a kind of statement
 *     jobq_memory_size           bytes of a store
 *     jobq_memory_init           an empty store
 *     jobq_memory_policy         the policy of a queue
 *     jobq_memory_enqueue        adds a ready job
 *     jobq_memory_get            the job with this id
 *     jobq_memory_event          cancels, revives, or lets a job wait
 *     jobq_memory_work           one step of one worker
 *
 *
 * MORE WORDS
 *
 *     news         late workers, cancel requests, suspects, kinds and policies that changed
 *     lane         one queue, priority and stage; claims take jobs lane by lane
 *     bound        how far a lane, or a partition, has been searched; searches start after it
 *     permits      a worker's share of a quota: the number of its jobs that may run at once
 *     token        of a rate: lets one job start; not the token of a claim above
 *     exchange     the part of a heartbeat in which a worker asks for permits and tokens
 *     sweep        a claim, or a look for messages, that ignores the bounds
 *     slice        a part of a sweep, while an old snapshot makes sweeps expensive
 *     flush        the statement that settles finished jobs by writing their decisions
 *     rescue       give the jobs of a dead worker back
 *     recover      give back the jobs of a claim whose answer was lost, and burn its number
 *     burn         make a claim number invalid, so that a claim that arrives late takes nothing
 *     sleep        the state in which an idle worker asks producers to notify it
 *     holder       the worker that has a partition, with its token and its lease
 *     cursor       how far a partition is acknowledged, and its deliveries since then
 *
 *
 * RULES THAT SQL REPEATS
 *
 * A store decides some things itself, because it alone has read the rows. The head of sql/names.sql
 * lists those rules, the functions here that say the same, and the test that compares each pair.
 *
 *
 * THE WORKER'S LOOP
 *
 * jobq_loop decides everything that a worker does. jobq_loop_next makes the next request, and
 * jobq_loop_tell takes its answer; threads take work by jobq_loop_take. The loop has no pointers,
 * so a whole worker can be copied, hashed and compared. To use it from several threads, put one
 * lock around it.
 *
 *              .----------.  CONNECT, REGISTER; then, as they fall due, POLICIES, HEARTBEAT,
 *     init --->| WORKING  |  CLAIM, COMPLETE, SETTLE, RESCUE, SLEEP, LOOK, READ, ACK, RENEW ...
 *              '----------'  jobq_loop_take hands out jobs and messages
 *                   | jobq_loop_stop; jobs_max jobs were started; until: nothing is left
 *                   v
 *              .----------.  no CLAIM and no READ: what waits for a thread is given back.
 *              | STOPPING |  Handlers have their grace, then ABANDON. Decisions are flushed
 *              '----------'
 *                   | the loop holds nothing, and no claim is unanswered
 *                   v
 *              .----------.
 *              | LEAVING  |  DEREGISTER
 *              '----------'
 *                   | answered, or it never registered
 *                   v
 *              .----------.  EXIT. Any phase ends here once the grace and the time for one answer
 *              |  EXITED  |  are over; if others have locked the rows of all that is held, once the
 *              '----------'  grace is. What is still held will be rescued
 *
 * A lost connection changes no phase: the loop connects again. A worker that the store has declared
 * dead registers again, with a new id.
 *
 *     claim     as many jobs as handlers lately used up, fewer if handlers are slow. Lanes are
 *               claimed from their bounds; a sweep comes before sleeping and at least every
 *               sweep_us, because a bound may hide a job that committed late. If a claim times
 *               out in the store, the loop raises its bounds to the store's clock. The lines of a
 *               lane have one bound: no job that was ready when a walk last came round is before it
 *     flush     decisions in batches, after at most flush_us, or at once when there is nothing to
 *               wait for
 *     heartbeat every heartbeat_us; an idle worker claims in the same statement. The loop counts
 *               its lease from before the last accepted heartbeat was sent. When it ends by that
 *               count, no handler starts and running ones must stop; others see it end later
 *     rescue    only a worker whose heartbeat this worker has seen unchanged for a whole lease,
 *               while alive itself. If workers die young, rescue comes first: law (18)
 *     suspects  one at a time, on a thread that is kept free for it, so that it runs at once
 *     alone     a job that must run alone is claimed as soon as the worker holds nothing. If one
 *               has been ready for a lease, the worker takes nothing new until it holds nothing
 *     sleep     announced after 100 ms idle, withdrawn after 1 s busy. Claims 1, 2, 4, 8 ... ms
 *               later find jobs whose producers did not see the announcement
 *     lost      a claim without an answer is recovered under its own number. Decisions without an
 *     answers   answer are sent again, and then lost is an expected answer
 *     relaxed   claims, acknowledgements and the announcement of sleep commit without waiting for
 *               the disk. A commit waits if it ends a job, takes a partition or numbers messages
 *
 *   (17) A server that crashes forgets at most its last relaxed commits. A job claimed in one of
 *        them is ready again, and its old worker is told lost. Messages acknowledged in one are
 *        delivered again, with the same numbers, to the same holder: nobody else gets them until a
 *        lease later. A message's number is on the disk before a handler gets the message.
 *   (18) Rescue happens even if every worker dies young. If the first heartbeat's answer names
 *        three or more workers whose lease is over and that still hold jobs, the worker claims no
 *        job and reads no message until it has watched them for their lease and has rescued them,
 *        or their heartbeats have gone on. It waits at most two leases of its own.
 *   (19) If a kind has a limit, at most that number of its jobs run or wait for a thread in this
 *        worker; if it has batches, at most that number of calls run, and as many jobs as these may
 *        have run or wait. Claims leave out a kind that is at its limit. Before that, a claim may
 *        bring too many of its jobs; they are released at once. A handler that was abandoned no
 *        longer counts.
 *   (20) A queue or a kind may have a quota: a limit of the jobs that run at once over all
 *        workers, and a rate of starts. A worker claims at most what its permits and tokens allow.
 *        What it holds and what its claims without an answer may bring counts: a claim from when it
 *        is sent, a lost one until it is recovered, a job until it is settled. From sending a
 *        heartbeat until its answer comes, a worker runs at most what it reported as running,
 *        because the answer may be lost. So its jobs never exceed what the store has recorded for
 *        it, whatever is lost or late. sql/permits.sql has the laws over all workers.
 *   (30) The jobs of a batch are of one queue, kind, stage, attempt and time limit, and are at most
 *        batch_max; in attempt 2 half of that, in attempt 3 a quarter, and so on, but at least one.
 *        A suspect is alone.
 *   (31) Each job of a batch ends once, by its own outcome, as if it had run alone.
 *   (32) If a call with several jobs overruns its time limit, or does not survive its worker, no
 *        attempt and no crash of theirs counts. They are suspects then.
 *   (26) Equal calls make equal loops: the same calls in the same order, with the same times and
 *        answers, get the same requests, work and decisions. A take that gives nothing changes
 *        nothing; nor do jobq_loop_due, _stopping, _status_of, _tally and _wants.
 *   (27) A recording can be read at any instant, and has every call up to then that the ring still
 *        holds. What is torn or damaged is noticed, and what is before it is replayed.
 *
 *
 * THE OUTBOX AND ITS PARTITIONS
 *
 * A queue may have partitions. A producer writes a message in its own transaction. After that has
 * committed, the holder of the partition numbers the message when it reads it: 1, 2, 3 ... in each
 * partition, without a gap. A number never changes. Messages are delivered in that order, at least
 * once, a batch at a time. The relay is the part of jobq_loop that does this. It keeps a small
 * state machine for each partition, in relay.parts.
 *
 *                          a look found messages,
 *               .------.   a pause is over, a holder     .---------.   nothing to read, or
 *        .----->| AWAY |   did not move for a lease      | READING |   another holder: AWAY
 *        |      '------' ------------- READ -----------> '---------'
 *        |         ^                                          | messages
 *        |         | no messages left, a pause,               v
 *        |         | or lost                             .--------.  lease over, stop:
 *        |      .--------.     messages: the next batch  | QUEUED |  all given back (FINISHED)
 *        |      | ACKING | ----------------------------> '--------'
 *        |      '--------'                                    | a thread takes it
 *        |         ^ ACK                                      v
 *        |      .----------.       planned               .---------.  RENEW while the handler
 *        |      | FINISHED | <-------------------------- | RUNNING |  may run longer than the lease
 *        |      '----------'                             '---------'
 *        |                                                    | its own transaction
 *        |    committed, lost, or nobody knows                v acknowledges
 *        '--------------------------------------------- .------------.
 *                                                       | COMMITTING |
 *                                                       '------------'
 *   Laws. tests/core/test_core_relay.c and test_core_outbox.c attack them.
 *   (10) A handler gets contiguous messages; the first is the one after the last acknowledged.
 *   (11) A message is acknowledged only if a handler did its work or it became a dead letter.
 *   (12) A statement whose token is no longer in the row changes nothing: neither the partition nor
 *        a dead letter. Each READ brings a token of its own.
 *   (13) A partition is taken from a holder only when its lease is over by the store's clock, and
 *        the taker has seen the holder unchanged for a whole lease by its own clock. A handler is
 *        told to stop, and then abandoned, before its lease can end. The loop counts the lease from
 *        before it sent the statement that took or renewed it.
 *   (14) Each message has its own attempts: the deliveries that contained it. They are stored
 *        before a handler runs, so they survive kill -9. A message that no handler got, or whose
 *        READ was never answered, gets its attempt back. If a delivery's transaction was rolled
 *        back, a message that is handled a second time in it shows one attempt more.
 *   (15) A message becomes a dead letter when a handler rejects it, when it alone fails at its
 *        max_attempts, or when, at max_attempts, it was alone in a delivery that its worker did not
 *        survive. A batch that fails as a whole makes no dead letter: at the limit its messages are
 *        delivered one by one. A worker takes over the partitions of a dead one one at a time, so
 *        that a message that killed that worker does not kill its neighbours a second time.
 *   (16) Nobody holds a partition that has nothing to deliver; an idle look writes nothing.
 *
 * A retry's backoff and the PartitionMode are stored in the partition's row, for all workers. A
 * worker holds at most one partition for each thread, and half of that while it has jobs.
 *
 * There may be more partitions than relay.parts has places. A LOOK lists a page of those that have
 * messages, and the next LOOK goes on where places ran out. A partition that cannot be read yet
 * gives its place to one that can. While others wait, a partition is given up after 100 ms. So each
 * partition with messages gets its turn.
 *
 *
 * CONTENTS (search for >>name in the implementation)
 *
 *     errors, strings, names   >>errors   jobq_error, jobq_str, jobq_enum_name
 *     random bits              >>random   jobq_random
 *     worker ids               >>worker   jobq_worker_name_format
 *     input rules              >>input    names, UTF-8, JSON
 *     payloads                 >>payload  jobq_json_text, jobq_json_int, jobq_json_double
 *     traces                   >>trace    jobq_trace_of, jobq_trace_format
 *     backoff                  >>backoff  jobq_backoff_delay
 *     cron expressions         >>calendar jobq_cron_parse
 *     jobs                     >>job      states, events, jobq_job_decide, jobq_job_apply
 *     partitions               >>partition PartitionMode: the size of the next batch
 *     the outbox               >>outbox   profiles, keys, cursors, acknowledgements
 *     handlers of messages     >>delivery jobq_delivery_run
 *     lines                    >>room     how many jobs a line may give
 *     counts and times         >>tally    jobq_tally, jobq_times_bucket, jobq_loop_tally
 *     the worker's loop        >>loop     its state, and what both parts use
 *                              >>wire     statements on their way
 *                              >>slots    the jobs that it holds
 *     its part for messages    >>relay    partitions: looks and reads
 *                              >>ack      deliveries and acknowledgements
 *                              >>relay_next  what to do next about messages
 *     its part for jobs        >>take     handing out jobs
 *                              >>claim, >>lines   taking jobs from the store
 *                              >>flush    writing what became of them
 *                              >>exchange permits of quotas
 *                              >>beat     the heartbeat and its news
 *                              >>rescue   the jobs of dead workers
 *                              >>rest     schedules, sleep, prune, vacuum
 *     both parts               >>next     the connection, requests, answers, work for threads
 *     recordings               >>record   what crosses the boundary of a loop, and its replay
 *     the in-memory queue      >>memory   jobq_memory: a whole store without a database
 *                              >>memory_lines, >>memory_edges, >>memory_outbox, >>memory_wire
 *     tests of handlers        >>test     jobq_test: your handlers in memory, with simulated time
 */

/* ---- what stores offer to handlers ----------------------------------------------------------- */

/* What a store offers to a handler. The store fills it. Without one, as in a call that a test makes
 * by hand, nothing is kept and nothing stops. */
struct jobq_store {
    bool (*keep)(jobq_call *call, jobq_str next, bool bytes); /* copies the next stage's payload,
                                                                 or the result */
    int (*stopping)(const jobq_call *call, int64_t *remaining_us); /* a jobq_stop */
    jobq_error (*hold)(jobq_call *call, jobq_hold what, int64_t delay_us, const char *why);
    jobq_error (*progress)(jobq_call *call, int permille, const char *note, bool now);
    void (*log)(jobq_call *call, jobq_level level, jobq_str text);
    /* done: what the step leaves; NULL: only look, as jobq_call_step does. */
    jobq_error (*step)(jobq_call *call, const char *name, const jobq_str *done, jobq_str *value);
    jobq_error (*signal)(jobq_call *call, const char *name, int64_t timeout_us, jobq_str *payload);
    /* Of tests only: what the handler's own transaction is about to do to the job, see
     * jobq_test_commit. "": as it has just said of another job of the batch. NULL: it has
     * committed. */
    jobq_error (*own)(jobq_call *call, const char *what);
};

/* What a store offers to a handler of messages. The store fills it. enter and leave may be NULL. */
struct jobq_delivery_store {
    bool (*keep)(jobq_delivery *delivery, int32_t index, jobq_str why); /* copies the reason */
    int (*stopping)(const jobq_delivery *delivery, int64_t *remaining_us); /* a jobq_stop */
    bool (*enter)(jobq_delivery *delivery, int32_t index);              /* before one message */
    bool (*leave)(jobq_delivery *delivery, int32_t index, jobq_result result); /* ... after it */
};

/* jobq_call_run -- runs a handler, for stores and tests. If it throws: RETRY, and the error is what
 * it threw. */
JOBQ_API jobq_outcome jobq_call_run(jobq_call *call, jobq_handler handler);

/* jobq_calls_run -- runs the handler of a batch. Afterwards each call has its outcome. If it
 * throws, those without one are retried, and the error of each is what it threw. */
JOBQ_API void jobq_calls_run(jobq_call *const *calls, int32_t count, jobq_jobs_handler handler);

/* jobq_call_reason -- the text that is kept of a failed attempt: the handler's error, or a word for
 * its outcome, as jobq_reason_format puts it. out: as there. 0: nothing is kept. For stores. */
JOBQ_API size_t jobq_call_reason(char *out, const jobq_call *call, jobq_outcome outcome,
                                 const jobq_decision *decision);

/*
 * jobq_delivery_run -- runs one of the two handlers on a delivery.
 *
 * Shape   exactly one of each and all is not NULL. delivery: its results are NONE, as
 *         jobq_loop_take gives them. Fills the verdict's result, processed and delay, and every
 *         result.
 */
JOBQ_API void jobq_delivery_run(jobq_delivery *delivery, jobq_message_handler each,
                                jobq_batch_handler all, jobq_verdict *verdict);

/* The lines of one attempt, for a store. Zeroed, it has none. */
typedef struct jobq_log {
    int64_t dropped;         /* the oldest lines, which had to make room */
    size_t size;
    char lines[JOBQ_LOG_MAX]; /* JSON: each is [time, level, text], then a comma and a line end */
} jobq_log;

#define JOBQ_LOG_FORMAT_MAX (JOBQ_LOG_MAX + 100) /* bytes that jobq_log_format writes at most */

/* jobq_log_add -- adds a line, and drops the oldest ones if there is no room. at_us: since 1970. */
JOBQ_API void jobq_log_add(jobq_log *log, int64_t at_us, jobq_level level, jobq_str text);

/* jobq_log_format -- the lines as a terminated JSON array, preceded by one that says how many were
 * dropped. out holds JOBQ_LOG_FORMAT_MAX bytes. Returns the length; 0: there are no lines. */
JOBQ_API size_t jobq_log_format(char *out, const jobq_log *log);

/* ---- rules for texts and numbers ------------------------------------------------------------- */

/* jobq_name_valid -- queue and kind names: 1 to 1024 of [A-Za-z0-9._-], first and last
 * alphanumeric. */
JOBQ_API bool jobq_name_valid(jobq_str name);

/* jobq_json_valid -- jobq_json_check without the limits of jsonb, except the depth: for a text that
 * is kept as bytes. */
JOBQ_API jobq_error jobq_json_valid(jobq_str json, size_t *at, const char **why);

/* jobq_utf8_cut -- the longest prefix of at most max bytes that ends at a character. text must be
 * valid UTF-8. */
JOBQ_API jobq_str jobq_utf8_cut(jobq_str text, size_t max);

/*
 * jobq_utf8_mend -- copies any bytes, as valid UTF-8 of at most max bytes, for error texts.
 *
 * Shape   out holds max + 1 bytes and is terminated. Each bad byte and each NUL becomes '?'. Cut at
 *         a character. Returns the length.
 */
JOBQ_API size_t jobq_utf8_mend(char *out, size_t max, jobq_str bytes);

/*
 * jobq_trace_format -- a trace as members of a JSON object: "traceparent": "00-...", and
 * "tracestate" if there is one.
 *
 * Shape   out holds JOBQ_TRACE_MAX bytes and is terminated. Returns the length; 0 if the parent is
 *         not valid: ids of zeros, letters in upper case, version ff. Of a version that is not
 *         known yet the first 55 bytes count, and a dash must follow if there are more; it is
 *         written as version 00. A tracestate is left out if it is longer than
 *         JOBQ_TRACE_STATE_MAX, not printable ASCII, or has a quote or a backslash.
 */
JOBQ_API size_t jobq_trace_format(char *out, const jobq_trace *trace);

/*
 * jobq_random_between -- maps 64 uniform bits onto [low, high].
 *
 * Shape   any span, even all of int64_t; high below low: low.
 * Source  multiply and take the high half (Lemire): bias below 2^-32 for spans under 2^32.
 */
JOBQ_API int64_t jobq_random_between(uint64_t bits, int64_t low, int64_t high);

/* jobq_tuning_check -- JOBQ_ERROR_INVALID for a batch below 1, negative times, min above active,
 * active above idle, a bad backoff, or a headroom not below the lease. A batch above
 * JOBQ_LOOP_BATCH is allowed and cut later. Fill the tuning first. */
JOBQ_API jobq_error jobq_tuning_check(const jobq_tuning *tuning);

/* jobq_cursor_attempts -- how often a message (seq > acked) was delivered so far. */
JOBQ_API int32_t jobq_cursor_attempts(const jobq_cursor *cursor, int64_t seq);

/* jobq_cursor_check -- JOBQ_ERROR_INVALID for negative numbers, or entries not above acked or not
 * in order. For outside data. */
JOBQ_API jobq_error jobq_cursor_check(const jobq_cursor *cursor);

/* ---- calendar -------------------------------------------------------------------------------- */

#define JOBQ_CRON_MAX 1000 /* bytes of a cron expression */

/* Flags of a jobq_cron. */
#define JOBQ_CRON_ELAPSED 1u      /* the minute or the hour begins with `*` */
#define JOBQ_CRON_ANY_DAY 2u      /* the day begins with `*` */
#define JOBQ_CRON_ANY_WEEKDAY 4u  /* the weekday begins with `*` */

/* A cron expression as sets of bits: bit n of minutes is minute n. jobq.cron in SQL holds the same
 * bits. */
typedef struct jobq_cron {
    uint64_t seconds;
    uint64_t minutes;
    uint32_t hours;
    uint32_t days;     /* bits 1 to 31; bit 0: the last day of the month */
    uint32_t months;   /* bits 1 to 12 */
    uint32_t weekdays; /* bits 0 (Sunday) to 6 */
    uint32_t flags;    /* JOBQ_CRON_ELAPSED, ... */
} jobq_cron;

/*
 * jobq_cron_parse -- reads a cron expression; see CALENDAR.
 *
 * Shape   at most JOBQ_CRON_MAX bytes; blanks and tabs between the fields and around them. cron is
 *         written only on JOBQ_OK.
 * Errors  JOBQ_OK or JOBQ_ERROR_INVALID, also for a date that never comes, such as 30 February;
 *         *why (may be NULL) is a constant text with the field and what is allowed, as in SQL.
 */
JOBQ_API jobq_error jobq_cron_parse(jobq_str text, jobq_cron *cron, const char **why);

/* ---- rates and lines ------------------------------------------------------------------------- */

/* A rate of starts: count in us microseconds, burst of them at once. us 0: no limit. Its tokens are
 * stored as one instant, free_us: (now - free_us) / (us / count) of them are in the bucket. */
typedef struct jobq_rate {
    int64_t us;    /* at most a day here; SQL takes 366 */
    int32_t count; /* at most us, and 1,000,000 */
    int32_t burst; /* 1 to 1,000,000 */
} jobq_rate;

/* What holds for a line. */
typedef struct jobq_line {
    int32_t running_max; /* jobs that may run at once, over all workers; 0: no limit */
    int32_t weight;      /* how many turns' jobs it gives in one (default: 1) */
    bool strict;         /* one job at a time; that one keeps the line until it has ended */
    bool paused;
    jobq_rate rate;
} jobq_line;

/* ---- counts and times ------------------------------------------------------------------------ */

/*
 * A loop counts what becomes of its jobs and messages, and how long jobs wait and run. Its
 * heartbeats deliver the totals that changed, so that the store can add up the whole fleet.
 */

/* A histogram of times: a count for each bucket, then the sum of all in microseconds. */
#define JOBQ_TIMES_BUCKETS 20
#define JOBQ_TIMES_SIZE (JOBQ_TIMES_BUCKETS + 1)

/* jobq_times_bound -- the longest time of a bucket, 0 to JOBQ_TIMES_BUCKETS - 1, in microseconds.
 * The last has none: JOBQ_NEVER.
 *
 * Source  up to 10 s the buckets that OpenTelemetry's semantic conventions advise for durations. */
JOBQ_API int64_t jobq_times_bound(int32_t bucket);

/* jobq_times_bucket -- the bucket of a time. Less than 0 counts as 0. */
JOBQ_API int32_t jobq_times_bucket(int64_t us);

/* id, name. Of jobs: what handlers said, each run once; LOST: results that the store refused,
 * because the job was no longer ours. Of messages: as in jobq_relay_stats. */
#define JOBQ_TALLIES(X)           \
    X(SUCCEEDED, "succeeded")     \
    X(RETRIED, "retried")         \
    X(FAILED, "failed")           \
    X(CANCELLED, "cancelled")     \
    X(RELEASED, "released")       \
    X(SNOOZED, "snoozed")         \
    X(LOST, "lost")               \
    X(DELIVERED, "delivered")     \
    X(ACKNOWLEDGED, "acknowledged") \
    X(DEAD, "dead")               \
    X(REPEATED, "repeated")

/* Places in jobq_tally's counts. New ones are added at the end: the store keeps them in this
 * order. */
typedef enum jobq_tally_place {
#define JOBQ__X(id, name) JOBQ_TALLY_##id,
    JOBQ_TALLIES(JOBQ__X)
#undef JOBQ__X
    JOBQ_TALLY_WAITING, /* histogram of the times from run_at to the start */
    JOBQ_TALLY_RUNNING = JOBQ_TALLY_WAITING + JOBQ_TIMES_SIZE, /* ... of the handlers' times */
    JOBQ_TALLY_EXPIRED = JOBQ_TALLY_RUNNING + JOBQ_TIMES_SIZE, /* late jobs that claims ended */
    JOBQ_TALLY_CALLS, /* of handlers that get batches */
    JOBQ_TALLY_COUNT
} jobq_tally_place;

/* What a loop has counted for one kind. The first JOBQ_TALLY_KINDS kinds that a loop counts have
 * their own; the rest of a queue are one, and so are its messages. */
typedef struct jobq_tally {
    int32_t queue; /* ids in the store */
    int32_t kind;  /* 0: the rest of the queue */
    int64_t counts[JOBQ_TALLY_COUNT];
} jobq_tally;

/* ---- the worker's loop ----------------------------------------------------------------------- */

#define JOBQ_LOOP_TALLIES (JOBQ_LOOP_QUEUES + JOBQ_TALLY_KINDS)

#define JOBQ_PRIORITIES (JOBQ_PRIORITY_MAX - JOBQ_PRIORITY_MIN + 1)

/*
 * A loop decides what a worker does. It asks for one statement at a time: a jobq_request holds all
 * that the statement needs, a jobq_answer all that came back. Both are plain values without
 * pointers, so that a test can delay, drop or repeat them.
 *
 *     jobq_loop_next(loop, now, request);
 *     ... send it; one of each kind, and one of each partition, may be unanswered at a time ...
 *     jobq_answer_start(answer, request);
 *     ... fill in what the store said ...
 *     jobq_loop_tell(loop, now, answer);
 *
 * Threads run handlers:
 *
 *     if (jobq_loop_take(loop, now, work)) {
 *         ... run its handler, which may call jobq_loop_stopping ...
 *         jobq_loop_handled(loop, now, work, ...);  or, for messages, jobq_loop_delivered
 *     }
 */
typedef enum jobq_request_kind {
    JOBQ_REQUEST_WAIT,       /* until until_mono_us, or until the loop is told something */
    JOBQ_REQUEST_CONNECT,
    JOBQ_REQUEST_DISCONNECT, /* an answer is overdue: drop the connection */
    JOBQ_REQUEST_REGISTER,   /* worker, lease_us -> queues, kinds */
    JOBQ_REQUEST_POLICIES,   /* worker, queues -> policies, kind_policies */
    JOBQ_REQUEST_CLAIM,      /* worker, claim, limit, bytes, lanes, kinds, suspects, alone, sweep,
                                look -> claimed */
    JOBQ_REQUEST_RECOVER,    /* worker, claim, limit: makes jobs of a claim without an answer ready
                                again -> more */
    JOBQ_REQUEST_COMPLETE,   /* endings, all of them successes -> exceptions; more: jobs that waited
                                for these are ready now */
    JOBQ_REQUEST_SETTLE,     /* endings -> exceptions; more: the same */
    JOBQ_REQUEST_HEARTBEAT,  /* worker, lease_us, rest_us, settled, exchange, asks, tallies -> news.
                                claim not 0: includes a CLAIM in this statement -> claimed too */
    JOBQ_REQUEST_RESCUE,     /* worker, beat, limit (claims) -> done: it is dead; count: jobs given
                                back; more: it has claims left */
    JOBQ_REQUEST_SLEEP,      /* worker, queues, asleep */
    JOBQ_REQUEST_UNPARK,     /* id of the kind, limit -> count, more */
    JOBQ_REQUEST_TICK,       /* queues, limit: fires that many due schedules -> count: what they
                                wrote; due_us */
    JOBQ_REQUEST_PRUNE,      /* limit. This and VACUUM may take long */
    JOBQ_REQUEST_VACUUM,
    JOBQ_REQUEST_DEREGISTER, /* worker, tallies */
    JOBQ_REQUEST_REMAIN,     /* queues, message_queues -> more: some job has not ended, or some
                                message is not acknowledged, in this worker or another */
    JOBQ_REQUEST_SET_ASIDE,  /* id of the job, bytes -> done: it is failed now */
    JOBQ_REQUEST_LOOK,       /* writes nothing. Of the partitions of message_queues that have
                                messages, the first limit whose ids exceed id, ordered by id ->
                                backlogs; more: there may be others */
    JOBQ_REQUEST_READ,       /* partition_id, worker, claim, lease_us: the token wanted; watched,
                                handed, limit, bytes, sweep; aside, acked -> reading */
    JOBQ_REQUEST_ACK,        /* partition_id, worker, claim, lease_us, ack; if limit > 0, then reads
                                up to limit messages and bytes -> reading's count and cut. LOST:
                                nothing was written */
    JOBQ_REQUEST_RENEW,      /* partition_id, worker, claim, lease_us -> LOST: the lease is lost */
    JOBQ_REQUEST_ABANDON,    /* slot, generation: its handler ran too long. Close its connection,
                                replace its thread. What becomes of its job is in endings[0];
                                of its messages, if partition_id is not 0, in ack */
    JOBQ_REQUEST_EXIT,       /* the loop has ended */
    JOBQ_REQUEST_COUNT
} jobq_request_kind;

/* A lane of a claim, with its bounds: only jobs whose (run_at, id) is after (after_at_us,
 * after_id) and whose run_at is not after until_at_us. lined: only the jobs of this lane that are
 * in lines; otherwise only those that are in none. The claim walks from line to line, round and
 * round, and starts after the line with the number after_id. It looks only at jobs whose
 * (run_at, id) is (after_at_us, low_id) or later; a strict line that has one gives its first job
 * all the same. */
typedef struct jobq_lane {
    int32_t queue;
    int16_t priority;
    int16_t stage;
    bool lined;
    int64_t after_at_us; /* INT64_MIN: no bound */
    int64_t after_id;
    int64_t low_id;      /* lined: 1 or more */
    int64_t until_at_us; /* INT64_MAX: no bound; 0 in all lanes of a claim: none has one */
} jobq_lane;

/* The lines of a lane that a claim walked: those after the line where the walk started (as its
 * request said, or where the same queue's last stretch ended), up to the line `to`, or all. No
 * ready job of them is before (low_at_us, low_id), but for those before the bound of the lane.
 * Lanes without such a job are not told of. */
typedef struct jobq_stretch {
    int32_t queue;
    int16_t priority;
    int16_t stage;
    bool whole; /* it came round */
    int64_t to;
    int64_t low_at_us;
    int64_t low_id;
} jobq_stretch;

#define JOBQ_STRETCHES_MAX 64 /* of one claim; the others are not told of */

/* Late jobs of a kind that a claim has ended. */
typedef struct jobq_ended {
    int32_t queue;
    int32_t kind;
    int32_t count;
} jobq_ended;

#define JOBQ_ENDED_MAX 64 /* of one claim; the others are not counted */

/* Where a claim stopped on its walk through the lines of a queue. */
typedef struct jobq_walk {
    int32_t queue;
    int64_t after;  /* the next walk starts after this line */
    int64_t due_us; /* > 0: lines were passed by; time until one may be claimed from. 1: the walk
                       should go on at once: there may be more, or it was long */
} jobq_walk;

/* Quotas that one loop may know: one for each queue and kind. */
#define JOBQ_LOOP_QUOTAS (JOBQ_LOOP_QUEUES + JOBQ_LOOP_KINDS)

/* What a worker says about one quota in an exchange. */
typedef struct jobq_ask {
    int32_t quota;    /* its id */
    int32_t running;  /* its jobs, with those that claims without an answer may bring */
    int32_t wanted;   /* how many it could run, these included */
    int32_t tokens;   /* that it has */
    int32_t returned; /* tokens that it gives back, not among them */
    int32_t needed;   /* tokens that it asks for */
} jobq_ask;

/* What it is answered, for each quota of its queues and kinds. */
typedef struct jobq_permit {
    int32_t quota;
    int32_t queue;   /* id */
    int32_t kind;    /* id; 0: the quota is the whole queue's */
    int32_t most;    /* over all workers; 0: it limits only starts */
    int32_t held;    /* the jobs that may run here: claims stop there */
    int32_t chunk;   /* the most tokens that it may have; 0: no rate */
    int32_t tokens;  /* granted now */
    int64_t wait_us; /* time until the next token */
} jobq_permit;

/* The decision about a job, guarded by its token. */
typedef struct jobq_ending {
    int64_t job, worker, claim;
    int32_t slot;    /* as in jobq_work */
    int32_t refused; /* > 0: times that the store refused its handler's text and payload */
    jobq_decision decision;
} jobq_ending;

/* The holder of a partition, or a worker that is late. worker 0: none. */
typedef struct jobq_holder {
    int64_t worker;
    int64_t claim; /* of a partition: which of the worker's claims and reads holds it */
    int64_t beat;  /* counts the worker's heartbeats; its reads, acknowledgements and renewals */
    int64_t lease_us;
} jobq_holder;

/* What an acknowledgement writes. */
typedef struct jobq_ack {
    int64_t before;       /* acked of the cursor before the delivery */
    int32_t given;        /* messages of the delivery that a handler got */
    int32_t max_attempts; /* of the queue */
    bool bare;            /* without the texts of handlers, because the server refused them */
    jobq_plan plan;
    uint8_t results[JOBQ_LOOP_BATCH]; /* a jobq_result each */
} jobq_ack;

#define JOBQ_ENDINGS_MAX (JOBQ_LOOP_SLOTS / 2)       /* jobs of a claim or a flush */
#define JOBQ_BACKLOGS_MAX (4 * JOBQ_LOOP_PARTITIONS) /* partitions that a LOOK lists */

typedef struct jobq_request {
    jobq_request_kind kind;
    int32_t slot;        /* of a job or a partition */
    uint32_t generation; /* of the slot */
    int32_t limit;       /* rows that the statement may carry */
    int32_t quantum;     /* CLAIM: jobs that a line may give, times its weight. If there are too few
                            lines to fill the claim, each may give more */
    int64_t worker;
    int64_t claim;       /* its number. HEARTBEAT: 0: does not claim */
    int64_t id;          /* of a kind or a job: see the kinds of requests */
    int64_t beat;
    int64_t lease_us;
    int64_t rest_us;     /* HEARTBEAT: how much later than usual the next one may come. The lease
                            is as much longer, unless another worker holds something */
    int64_t bytes;       /* CLAIM: limit for all payloads together, but at least one job; 0: claim
                            nothing, name the first job. SET_ASIDE: a job up to this size can be
                            sent. READ, ACK: limit for all payloads, but at least one message */
    int64_t until_mono_us;
    int64_t partition_id;
    jobq_holder watched; /* READ: take the partition over from this holder, if it has not moved */
    int64_t handed;      /* READ: the latest claim number whose delivery reached a handler here */
    int64_t acked;       /* READ with aside: everything up to this seq is acknowledged */
    int64_t exchange;    /* HEARTBEAT: its number; an exchange with a smaller one does nothing */
    bool committing;     /* ABANDON: the handler's own transaction is committing; no ack then */
    bool stopping;       /* ABANDON: because the worker stops */
    bool suspects;       /* CLAIM: only suspects */
    bool alone;          /* CLAIM: with suspects, only those that must run alone */
    bool every_kind;     /* CLAIM: ignore kinds, take any */
    bool look;           /* CLAIM: if it is empty, say when the next job is due */
    bool sweep;          /* CLAIM: also below the lower bounds. LOOK: also messages below the bound
                            up to which a partition is known to be empty. READ, ACK: reads from the
                            beginning, ignoring that bound */
    int64_t below_from;  /* LOOK with sweep: ids from the bound to the slice's start */
    int64_t below_to;    /* ... and to its end. 0: all that is below the bound */
    bool aside;          /* READ: the message after acked cannot be read. If it still is the next
                            one, make it a dead letter unread and give the partition up, in one
                            transaction */
    bool asleep;         /* SLEEP */
    bool relaxed;        /* the commit need not wait for the disk */
    int32_t queue_count, message_queue_count, settled_count, kind_count, lane_count, ending_count;
    int32_t ask_count;
    int64_t tally;       /* HEARTBEAT, DEREGISTER: number of these tallies; those with a number that
                            is not greater than the latest change nothing. 0: there are none */
    int32_t tally_count, total_count;
    /* Only as many as these counts are filled. */
    int32_t queues[JOBQ_LOOP_QUEUES]; /* ids */
    int32_t message_queues[JOBQ_LOOP_QUEUES];
    int64_t settled[JOBQ_LOOP_CLAIMS];                /* claims whose rows may be deleted */
    int32_t kinds[JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX]; /* kinds whose jobs may be claimed */
    jobq_lane lanes[JOBQ_LOOP_LANES];                 /* in claiming order */
    jobq_ask asks[JOBQ_LOOP_QUOTAS];
    int32_t tally_queues[JOBQ_LOOP_TALLIES]; /* of the tallies: as in jobq_tally */
    int32_t tally_kinds[JOBQ_LOOP_TALLIES];
    int64_t totals[JOBQ_LOOP_TALLIES * JOBQ_TALLY_COUNT]; /* counts, one tally after the other */
    jobq_ending endings[JOBQ_ENDINGS_MAX];
    jobq_ack ack;
} jobq_request;

/* The parts of a request that are filled as far as a count says: X(part, count, fields); fields:
 * the list of an element's fields, in >>record. */
#define JOBQ__REQUEST_PARTS(X)                                                                     \
    X(queues, queue_count, JOBQ__NUMBER_FIELDS)                                                    \
    X(message_queues, message_queue_count, JOBQ__NUMBER_FIELDS)                                    \
    X(settled, settled_count, JOBQ__NUMBER_FIELDS)                                                 \
    X(kinds, kind_count, JOBQ__NUMBER_FIELDS)                                                      \
    X(lanes, lane_count, JOBQ__LANE_FIELDS)                                                        \
    X(asks, ask_count, JOBQ__ASK_FIELDS)                                                           \
    X(tally_queues, tally_count, JOBQ__NUMBER_FIELDS)                                              \
    X(tally_kinds, tally_count, JOBQ__NUMBER_FIELDS)                                               \
    X(totals, total_count, JOBQ__NUMBER_FIELDS)                                                    \
    X(endings, ending_count, JOBQ__ENDING_FIELDS)

/* The jobs of a claim. */
typedef struct jobq_claimed {
    int32_t count;
    int64_t named;  /* of a claim of 0 bytes: the job that it would take; 0: none */
    int64_t due_us; /* > 0: time until the next scheduled job */
    bool suspects;  /* a suspect is ready */
    bool alone;     /* a job that must run alone is ready */
    int32_t ended_count;
    int32_t walk_count;
    jobq_walk walks[JOBQ_LOOP_QUEUES]; /* one for each queue with lines that was walked */
    int32_t stretch_count;
    jobq_stretch stretches[JOBQ_STRETCHES_MAX]; /* in the order of the walks */
    jobq_ended ended[JOBQ_ENDED_MAX]; /* there may be more jobs, even if the claim brought none */
    jobq_job jobs[JOBQ_ENDINGS_MAX];
    int32_t slots[JOBQ_ENDINGS_MAX]; /* jobq_loop_tell fills these: as in jobq_work. -1: no room,
                                        which cannot happen within the request's limit */
} jobq_claimed;

/* The news of a heartbeat. */
typedef struct jobq_news {
    bool alive;           /* this worker is alive; if not, ignore the rest */
    bool suspects;        /* a suspect is ready */
    bool every_kind;      /* claims may take any kind, until one finds a kind without a handler */
    bool others;          /* if it would rest: another worker holds something */
    bool written;         /* for the store: it has written all that came with the heartbeat */
    int64_t policy;       /* version of the policies */
    int64_t store_now_us; /* the store's clock */
    int64_t tick_us;      /* > 0: 1 plus the time until a schedule of the worker's queues fires; 0:
                             none will */
    int32_t parked_kind;  /* a kind of this worker that has parked jobs; 0: none */
    int32_t overdue;      /* late workers whose lease is over and that still hold jobs */
    int32_t cancel_count, late_count, alone_count, kind_count, permit_count;
    jobq_holder late[JOBQ_LOOP_WATCHED]; /* workers whose heartbeat is late; beat -1: it is dead and
                                            still has jobs */
    int32_t alone[JOBQ_LOOP_QUEUES]; /* queues in which a job that must run alone is ready */
    int32_t kinds[JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX]; /* those of this worker that are not paused;
                                                         then up to JOBQ_STRAYS_MAX that no living
                                                         worker has, so that this one may claim
                                                         their jobs and park them */
    int64_t cancels[JOBQ_LOOP_SLOTS];   /* jobs of this worker with a cancel request */
    jobq_permit permits[JOBQ_LOOP_QUOTAS];
} jobq_news;

typedef struct jobq_queue_policy {
    jobq_policy policy;
    int16_t stages_max;   /* of any job of the queue: these two bound the lanes of a claim */
    int16_t priority_min; /* 0 if none is negative */
    bool paused;
    bool lines;           /* some of its jobs have lines */
    bool ageing;          /* every 16th claim lists its lanes by age, not by priority */
    int64_t hold_us;      /* > 0: nothing of it is claimed for this long */
} jobq_queue_policy;

/* The whole policy of a kind that differs from its queue's. */
typedef struct jobq_kind_policy {
    int32_t kind; /* id in the store */
    jobq_policy policy;
} jobq_kind_policy;

/* A decision that was not written. */
typedef struct jobq_exception {
    int64_t job, worker, claim;
    jobq_error error; /* JOBQ_ERROR_LOST or JOBQ_ERROR_BUSY */
} jobq_exception;

/* A partition with messages to read, as a LOOK finds it. */
typedef struct jobq_backlog {
    int64_t id;
    int32_t queue;   /* id in the store */
    int32_t number;  /* in its queue: 0, 1, 2 ... */
    int64_t acked;   /* everything up to this seq is acknowledged */
    int64_t waiting; /* > 0: messages wait; the store need not count them all */
    int64_t due_us;  /* > 0: time until its backoff ends */
    bool below;      /* a sweep found messages below its bound: only a sweep reads them */
    jobq_holder holder;
} jobq_backlog;

/* The answer of a READ, or of the read in an ACK. There is nothing to read if count is 0, there is
 * no holder, busy is false and due_us is 0. */
typedef struct jobq_reading {
    jobq_cursor cursor; /* before this delivery */
    int64_t lost;       /* the last seq of the delivery that its holder did not survive; 0: none */
    int64_t due_us;     /* > 0: time until its backoff ends */
    int32_t count;      /* messages read: acked + 1 ... */
    bool cut;           /* the limit of bytes ended the read: there are more */
    bool aside;         /* the next message was made a dead letter and the partition given up */
    bool busy;          /* another transaction has the row locked */
    jobq_holder holder; /* another worker has it */
} jobq_reading;

typedef struct jobq_answer {
    jobq_request_kind kind; /* copied from the request, like the next five */
    int32_t slot;
    uint32_t generation;
    int64_t worker;
    int64_t claim;
    int64_t id;
    bool more, done;        /* see the request's kind */
    jobq_error error;       /* if not JOBQ_OK, ignore the rest */
    int32_t count;          /* RESCUE, UNPARK: jobs. Else of the list that the kind fills */
    int64_t due_us;         /* TICK: > 0: 1 plus the time until a schedule fires; 0: none will */
    int32_t kind_policy_count;
    int32_t kind_count;
    jobq_reading reading;
    jobq_claimed claimed;
    jobq_news news;
    int32_t queues[JOBQ_LOOP_QUEUES];             /* ids, in the order of the queues served */
    jobq_queue_policy policies[JOBQ_LOOP_QUEUES]; /* in the order of the request's queues */
    int32_t kinds[JOBQ_LOOP_KINDS];               /* REGISTER: ids, by the kinds' numbers */
    jobq_kind_policy kind_policies[JOBQ_LOOP_KINDS]; /* of kinds that the worker has */
    jobq_exception exceptions[JOBQ_ENDINGS_MAX];
    jobq_backlog backlogs[JOBQ_BACKLOGS_MAX];     /* in the order of their ids */
} jobq_answer;

/* Those of an answer: X(part, count, kind); COUNT: to requests of every kind. */
#define JOBQ__ANSWER_PARTS(X)                                                                      \
    X(claimed.walks, claimed.walk_count, JOBQ_REQUEST_COUNT)                                       \
    X(claimed.stretches, claimed.stretch_count, JOBQ_REQUEST_COUNT)                                \
    X(claimed.ended, claimed.ended_count, JOBQ_REQUEST_COUNT)                                      \
    X(claimed.jobs, claimed.count, JOBQ_REQUEST_COUNT)                                             \
    X(news.late, news.late_count, JOBQ_REQUEST_COUNT)                                              \
    X(news.alone, news.alone_count, JOBQ_REQUEST_COUNT)                                            \
    X(news.kinds, news.kind_count, JOBQ_REQUEST_COUNT)                                             \
    X(news.cancels, news.cancel_count, JOBQ_REQUEST_COUNT)                                         \
    X(news.permits, news.permit_count, JOBQ_REQUEST_COUNT)                                         \
    X(queues, count, JOBQ_REQUEST_REGISTER)                                                        \
    X(kinds, kind_count, JOBQ_REQUEST_REGISTER)                                                    \
    X(policies, count, JOBQ_REQUEST_POLICIES)                                                      \
    X(kind_policies, kind_policy_count, JOBQ_REQUEST_POLICIES)                                     \
    X(exceptions, count, JOBQ_REQUEST_COMPLETE)                                                    \
    X(exceptions, count, JOBQ_REQUEST_SETTLE)                                                      \
    X(backlogs, count, JOBQ_REQUEST_LOOK)

/* jobq_answer_start -- an empty answer to this request; JOBQ_OK. */
JOBQ_API void jobq_answer_start(jobq_answer *answer, const jobq_request *request);

/* The work that a thread gets: a job, or the messages of a partition. */
typedef struct jobq_work {
    int32_t slot;        /* below JOBQ_LOOP_SLOTS; of messages below JOBQ_LOOP_PARTITIONS */
    uint32_t generation; /* counts the uses of the slot */
    int32_t queue;       /* index among the queues served; -1: a job of another queue */
    jobq_policy policy;  /* of the job's kind, or of the queue */
    jobq_job job;
    int32_t together;    /* jobs that its handler gets in one call; see jobq_loop_mate */
    int64_t partition_id; /* 0: it is a job */
    int32_t partition;   /* its number in its queue */
    int32_t given;       /* messages for the handler */
    jobq_holder token;   /* of the partition */
    /* Of messages only. */
    jobq_cursor cursor;                /* of the partition, before this delivery */
    uint8_t results[JOBQ_LOOP_BATCH]; /* for the handler to fill; all NONE */
} jobq_work;

typedef enum jobq_phase {
    JOBQ_PHASE_WORKING,
    JOBQ_PHASE_STOPPING, /* no claims; queued jobs are released; handlers have their grace */
    JOBQ_PHASE_LEAVING,  /* all is settled: deregister */
    JOBQ_PHASE_EXITED
} jobq_phase;

typedef struct jobq_loop jobq_loop;

/* What a loop serves, if that is not just the jobs of all its queues. Copied by jobq_loop_init. */
typedef struct jobq_loop_served {
    uint32_t message_queues; /* bit i: handle the messages of queue number i (default none) */
    uint32_t jobless_queues; /* bit i: do not run the jobs of queue number i (default none) */
    jobq_tuning tuning[JOBQ_LOOP_QUEUES]; /* for the messages of queue number i (default quick) */
    int32_t kind_threads[JOBQ_LOOP_KINDS]; /* handlers of kind number i that run at once (default:
                                              as many as there are threads) */
    int32_t kind_queues[JOBQ_LOOP_KINDS]; /* its queue, counted from 1 (default: unknown). A queue
                                             is not claimed from while all kinds of it that the
                                             worker has are at their limits */
    int32_t kind_batches[JOBQ_LOOP_KINDS];  /* jobs that a handler of kind number i gets in one
                                               call (default 1) */
    int64_t kind_waits_us[JOBQ_LOOP_KINDS]; /* how long one of them may wait for others */
    bool listen;             /* notifications arrive */
} jobq_loop_served;

/* jobq_loop_size -- bytes of a loop. The memory is the caller's, aligned for int64_t. Of calloc's,
 * an idle loop uses a small part. */
JOBQ_API size_t jobq_loop_size(void);

/* jobq_loop_config_defaults -- the configuration with its zero fields filled and cut to the
 * limits. */
JOBQ_API jobq_loop_config jobq_loop_config_defaults(const jobq_loop_config *config);

/* jobq_loop_init -- a loop that has not connected yet. entropy: 64 random bits of the operating
 * system, for worker ids and jitter. */
JOBQ_API void jobq_loop_init(jobq_loop *loop, const jobq_loop_config *config, uint64_t entropy,
                             int64_t mono_us);

/*
 * jobq_loop_next -- what to do now. Call it until the request is WAIT or EXIT.
 *
 * Shape   mono_us never goes back. A statement counts as sent once it was returned as a request.
 */
JOBQ_API void jobq_loop_next(jobq_loop *loop, int64_t mono_us, jobq_request *request);

/* jobq_loop_abandon -- as jobq_loop_next, but no statement: a handler to abandon, or WAIT. For who
 * may not send one yet. */
JOBQ_API void jobq_loop_abandon(jobq_loop *loop, int64_t mono_us, jobq_request *request);

/* jobq_loop_tell -- takes the answer of a statement. Outside data that breaks a rule is treated
 * like an answer JOBQ_ERROR_INVALID. */
JOBQ_API void jobq_loop_tell(jobq_loop *loop, int64_t mono_us, jobq_answer *answer);

/* jobq_loop_disconnected -- the connection broke, or could not be made. No outstanding answer will
 * come. */
JOBQ_API void jobq_loop_disconnected(jobq_loop *loop, int64_t mono_us);

/* jobq_loop_notified -- a notification arrived. about: "cancel" announces a cancel request, a
 * number is the id of a partition that has a new message, and anything else tells of work. */
JOBQ_API void jobq_loop_notified(jobq_loop *loop, int64_t mono_us, const char *about);

/* jobq_loop_hears -- with config.listen, whether the connection that listens works. If not, the
 * loop claims at least every second. */
JOBQ_API void jobq_loop_hears(jobq_loop *loop, int64_t mono_us, bool hears);

/* jobq_loop_stop -- asks the loop to stop. grace_us < 0: the configured one. If called again, the
 * shorter grace counts. */
JOBQ_API void jobq_loop_stop(jobq_loop *loop, int64_t mono_us, int64_t grace_us);

/* jobq_loop_due -- when something is due that the last WAIT may not have known of. Whoever has
 * called jobq_loop_take, _handled, _delivered, _committed, _stop or _hears must wake the thread
 * that calls jobq_loop_next if that thread would sleep longer than this. */
JOBQ_API int64_t jobq_loop_due(const jobq_loop *loop, int64_t mono_us);

/* jobq_loop_take -- gives work to a free thread; false: none. Messages come first. Nothing is
 * handed out when the lease may be over. */
JOBQ_API bool jobq_loop_take(jobq_loop *loop, int64_t mono_us, jobq_work *work);

/* jobq_loop_mate -- turns a job that jobq_loop_take has just given, or that this function has, into
 * the next one of its batch. False: it was the last. */
JOBQ_API bool jobq_loop_mate(const jobq_loop *loop, jobq_work *work);

/* jobq_loop_stopping -- why the handler of this work should stop, if it should. *remaining_us: the
 * time that is left to it (JOBQ_NEVER: no limit). */
JOBQ_API jobq_stop jobq_loop_stopping(const jobq_loop *loop, int64_t mono_us,
                                      const jobq_work *work,
                                      int64_t *remaining_us);

/* How a handler of a job ended. */
typedef struct jobq_handled {
    jobq_outcome outcome;
    int64_t delay_us;  /* with delay_named, as in jobq_event */
    bool delay_named;
    bool missing;      /* this worker has no handler for its kind: park it */
    bool lost;         /* it was told JOBQ_STOP_LOST: the job is given back */
    int64_t bytes;     /* size of its error and of the next stage's payload */
} jobq_handled;

/* jobq_loop_handled -- the handler of a job returned; of a batch, once for each job. *decision (may
 * be NULL) says what becomes of the job; after its time limit that is a time-out's, whatever the
 * handler says. False: the handler had been abandoned. */
JOBQ_API bool jobq_loop_handled(jobq_loop *loop, int64_t mono_us, const jobq_work *work,
                                const jobq_handled *handled, jobq_decision *decision);

/*
 * jobq_loop_delivered -- a handler of messages returned.
 *
 * Shape   verdict: its result, processed and delay are used, and the results in work. *ack: what
 *         will be written. own: the handler's transaction writes it; do that, commit, and call
 *         jobq_loop_committed. False: the handler had been abandoned.
 */
JOBQ_API bool jobq_loop_delivered(jobq_loop *loop, int64_t mono_us, const jobq_work *work,
                                  const jobq_verdict *verdict, bool own, jobq_ack *ack);

/* jobq_loop_committed -- tells how the handler's own transaction ended, after jobq_loop_delivered
 * with own. OK: known to be committed. LOST: the lease was lost. RETRYABLE: known to be rolled
 * back; it is tried again, and counts as an attempt. Any other error: not known. */
JOBQ_API bool jobq_loop_committed(jobq_loop *loop, int64_t mono_us, const jobq_work *work,
                                  jobq_error error);

/* The state of a loop, and what it has counted. */
typedef struct jobq_loop_status {
    jobq_phase phase;
    bool connected;
    bool hears;            /* it is registered and notifications arrive */
    bool asleep;           /* it has nothing to do, and is notified of new work */
    int64_t worker;        /* its id; 0: not registered */
    int64_t lease_mono_us; /* local end of its lease; INT64_MIN: never renewed yet */
    int32_t running;       /* handlers of jobs and of messages */
    int32_t ready;         /* jobs and partitions that a thread may take */
    int64_t asked_mono_us; /* when the oldest statement was sent that has no answer yet; JOBQ_NEVER:
                              none waits for one, but maintenance */
    jobq_loop_stats jobs;
    jobq_relay_stats messages;
} jobq_loop_status;

JOBQ_API jobq_loop_status jobq_loop_status_of(const jobq_loop *loop);

/* jobq_loop_tally -- what it has counted since its start; index 0, 1, 2 ... False: no more. */
JOBQ_API bool jobq_loop_tally(const jobq_loop *loop, int32_t index, jobq_tally *tally);

/* ---- recordings of a loop -------------------------------------------------------------------- */

#ifndef JOBQ_NO_RECORD

/*
 * A recorder keeps what crosses the boundary of a loop in a ring of the caller's memory. A replay
 * makes a loop of it that asks for the same requests and makes the same decisions again, without a
 * store, as often as you like, in a debugger; to go back, start again and stop earlier: law (26).
 * Instead of jobq_loop_next call jobq_recorded_next, and so on. Calls that change nothing, such as
 * jobq_loop_due, are not recorded.
 *
 * A recording has ids, times and sizes, and what the caller adds, such as names of queues and
 * kinds. It has no payloads, headers, keys, texts or results, because no loop ever gets them. The
 * ring can be read at any instant, such as that of a crash: law (27). Its layout is the loop's, so
 * only the same version of jobq.h reads it, with the same limits and an equal layout of structs.
 */
typedef struct jobq_recorder jobq_recorder;
typedef struct jobq_replay jobq_replay;

/* name. The calls of a loop that are recorded, and what else a replay meets. */
#define JOBQ_ENTRIES(X)                                                                            \
    X(SNAPSHOT, "snapshot")         /* a segment of the ring begins with the loop as it was */     \
    X(NEXT, "next")                 /* request: came out */                                        \
    X(ABANDON, "abandon")           /* request: came out */                                        \
    X(TELL, "tell")                 /* answer */                                                   \
    X(DISCONNECTED, "disconnected")                                                                \
    X(NOTIFIED, "notified")         /* about */                                                    \
    X(HEARS, "hears")               /* flag */                                                     \
    X(STOP, "stop")                 /* grace_us */                                                 \
    X(TAKE, "take")                 /* work: came out; of a batch, jobq_loop_mate has the others.  \
                                       Those that gave nothing are left out */                     \
    X(HANDLED, "handled")           /* work's slot, generation and job, handled; decision: came    \
                                       out */                                                      \
    X(DELIVERED, "delivered")       /* work's slot, generation, partition_id, given and results,   \
                                       verdict, flag: own; ack: came out */                        \
    X(COMMITTED, "committed")       /* work's slot, generation and partition_id, error */          \
    X(TORN, "torn")                 /* what follows in this segment is damaged and left out */

typedef enum jobq_entry_kind {
#define JOBQ__X(id, name) JOBQ_ENTRY_##id,
    JOBQ_ENTRIES(JOBQ__X)
#undef JOBQ__X
    JOBQ_ENTRY_COUNT
} jobq_entry_kind;

/* One call of a loop. Of the pointers only those are set that belong to its kind. */
typedef struct jobq_entry {
    jobq_entry_kind kind;
    int64_t mono_us;
    int64_t number;       /* 1, 2, 3 ... in this replay */
    const jobq_loop *loop; /* after the call */
    jobq_request *request;
    jobq_answer *answer;
    jobq_work *work;
    jobq_handled *handled;
    jobq_decision *decision;
    jobq_verdict *verdict;
    jobq_ack *ack;
    const char *about;
    int64_t grace_us;
    jobq_error error;
    bool flag;
    bool result;          /* what the call returned */
    bool same;            /* what came out is what the recording says; SNAPSHOT: the replayed loop
                             has drawn the same random numbers and has the same counts */
    bool cut;             /* the last call did not return: its process died, or was killed, in it */
    jobq_request_kind asked; /* NEXT, ABANDON: what the recorded loop asked for */
} jobq_entry;

/* The limits that a recording and its reader must share: X(macro). */
#define JOBQ_RECORD_LIMITS(X)                                                                      \
    X(JOBQ_LOOP_SLOTS) X(JOBQ_LOOP_CLAIMS) X(JOBQ_LOOP_QUEUES) X(JOBQ_LOOP_THREADS)                \
    X(JOBQ_LOOP_KINDS) X(JOBQ_LOOP_WATCHED) X(JOBQ_LOOP_LANES) X(JOBQ_LOOP_PARTITIONS)             \
    X(JOBQ_LOOP_BATCH) X(JOBQ_TALLY_KINDS) X(JOBQ_STRAYS_MAX)                                      \
    X(JOBQ_PRIORITY_MIN) X(JOBQ_PRIORITY_MAX)
enum { JOBQ_RECORD_LIMIT_COUNT = 13 };

/* The head of a recording. */
typedef struct jobq_recording {
    char magic[8];        /* "JOBQREC1" */
    uint32_t order;       /* 0x01020304, as the machine stores it */
    int32_t version;      /* JOBQ_VERSION_NUMBER */
    int32_t sizes[8];     /* of the structs that are stored as they are */
    int32_t limits[JOBQ_RECORD_LIMIT_COUNT];
    uint64_t from, bytes; /* where the first segment begins, and the size of each */
    int64_t mono_us, wall_us; /* the start, by the loop's clock and since 1970 */
    char notes[16384];    /* the caller's, for people: lines, terminated. jobq replay knows those
                             that begin with "queue ID " and "kind ID " */
} jobq_recording;

/* jobq_recorder_size -- bytes of a ring of about this many, rounded up to what it needs at least
 * with these limits. */
JOBQ_API size_t jobq_recorder_size(size_t bytes);

/* jobq_recorder_init -- begins a recording of this loop, which may be in the midst of its life.
 * block: jobq_recorder_size(bytes) bytes, aligned for int64_t. wall_us: the time since 1970. */
JOBQ_API jobq_recorder *jobq_recorder_init(void *block, size_t bytes, const jobq_loop *loop,
                                           int64_t mono_us, int64_t wall_us);

/* jobq_recorded_... -- the call of the loop of this name, recorded. recorder NULL: it is not. */
JOBQ_API void jobq_recorded_next(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                 jobq_request *request);
JOBQ_API void jobq_recorded_abandon(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                    jobq_request *request);
JOBQ_API void jobq_recorded_tell(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                 jobq_answer *answer);
JOBQ_API void jobq_recorded_disconnected(jobq_recorder *recorder, jobq_loop *loop,
                                         int64_t mono_us);
JOBQ_API void jobq_recorded_notified(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                     const char *about);
JOBQ_API void jobq_recorded_hears(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                  bool hears);
JOBQ_API void jobq_recorded_stop(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                 int64_t grace_us);
JOBQ_API bool jobq_recorded_take(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                 jobq_work *work);
JOBQ_API bool jobq_recorded_handled(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                    const jobq_work *work, const jobq_handled *handled,
                                    jobq_decision *decision);
JOBQ_API bool jobq_recorded_delivered(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                      const jobq_work *work, const jobq_verdict *verdict, bool own,
                                      jobq_ack *ack);
JOBQ_API bool jobq_recorded_committed(jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us,
                                      const jobq_work *work, jobq_error error);

/* jobq_replay_size -- bytes of a replay. */
JOBQ_API size_t jobq_replay_size(void);

/* jobq_replay_init -- begins at the oldest entry of a recording, which must stay as it is. replay,
 * block: aligned for int64_t. JOBQ_ERROR_INVALID: it is no recording, is empty or is damaged.
 * JOBQ_ERROR_VERSION: this build cannot read it. *why is a constant text. */
JOBQ_API jobq_error jobq_replay_init(jobq_replay *replay, const void *block, size_t bytes,
                                     const char **why);

/* jobq_replay_step -- makes the next call. False: there are no more. After an entry that differs,
 * those that follow mean little until the next SNAPSHOT. An assertion of jobq.h that ended
 * the recorded process ends this one, too. Replay files of strangers only where you would open a
 * core file of theirs. */
JOBQ_API bool jobq_replay_step(jobq_replay *replay, jobq_entry *entry);

/* jobq_loop_wants -- when a loop wants a request of this kind, as things are; JOBQ_NEVER: it does
 * not. A WAIT ends at the first of them, unless something else changes by time before, such as the
 * hold of a queue. */
JOBQ_API int64_t jobq_loop_wants(const jobq_loop *loop, jobq_request_kind kind, int64_t mono_us);

#endif /* JOBQ_NO_RECORD */

/* ---- the in-memory queue --------------------------------------------------------------------- */

/*
 * A whole store in one block of the caller's memory. It is the model that Postgres is tested
 * against, and a queue to test handlers and policies on. It applies the decisions of
 * jobq_job_decide under the same rules as the SQL functions. The block is flat: memcpy copies it.
 * Time is an argument. Ids of queues and kinds are 1 to 63.
 */

#define JOBQ_MEMORY_QUEUES 8 /* queues 1 to 8 have their own policy; others the defaults */
#ifndef JOBQ_MEMORY_KINDS
#define JOBQ_MEMORY_KINDS 8  /* kinds 1 to 8 may have a policy; others have their queue's */
#endif

#ifndef JOBQ_MEMORY_BATCH
#define JOBQ_MEMORY_BATCH 16 /* jobs of one call */
#endif

typedef struct jobq_memory jobq_memory;

typedef struct jobq_memory_job {
    jobq_job job;
    jobq_str payload;       /* borrowed: must live as long as the job */
    jobq_str next;          /* of the next stage; kept while this token holds the job. Once it has
                               succeeded: its result */
    int64_t finished_at_us;
    jobq_reason reason;     /* failed: why, for jobq_reason_format */
    int32_t limit;
    int32_t follows;        /* waiting: the job whose end it waits for (0: none) */
    int64_t line;           /* the line that it belongs to (0: none). job.line: it stands there */
    int64_t expires_at_us;  /* when it is late (0: never). job.expires_us: of a claim's answer */
    bool holds;             /* it was claimed from its line, which had a limit then */
} jobq_memory_job;

/* jobq_memory_size -- bytes of a block for this many jobs, workers and claims with unsettled
 * jobs. */
JOBQ_API size_t jobq_memory_size(int32_t jobs, int32_t workers, int32_t claims);

/* jobq_memory_init -- an empty store in the caller's block, aligned for int64_t. */
JOBQ_API jobq_memory *jobq_memory_init(void *block, int32_t jobs, int32_t workers, int32_t claims);

/* jobq_memory_policy -- sets the policy of queue 1 to JOBQ_MEMORY_QUEUES, and pauses it or not. */
JOBQ_API void jobq_memory_policy(jobq_memory *memory, int32_t queue, const jobq_policy *policy,
                                 bool paused);

/*
 * jobq_memory_enqueue -- adds a ready job; returns its id (1, 2, 3 ...), or 0 if there is no room.
 *
 * Shape   like: its queue, kind, line, priority, stages, run_at_us (raised to now_us if earlier),
 *         max_attempts, timeout_us and expires_us are used.
 */
JOBQ_API int64_t jobq_memory_enqueue(jobq_memory *memory, const jobq_job *like, jobq_str payload,
                                     int64_t now_us);

/* jobq_memory_get -- the job with this id; NULL: none. */
JOBQ_API jobq_memory_job *jobq_memory_get(jobq_memory *memory, int64_t id);

/* jobq_memory_event -- CANCEL cancels a job that has not begun, or requests it of a running one;
 * REVIVE makes a failed job ready again; WAIT makes a running one wait for those of its edges.
 * JOBQ_ERROR_TRANSITION: the job is in another state. */
JOBQ_API jobq_error jobq_memory_event(jobq_memory *memory, int64_t id, jobq_event_kind kind,
                                      int64_t now_us);

/* The handler of a kind's jobs on a jobq_memory. */
typedef struct jobq_memory_handler {
    int32_t queue, kind;
    jobq_handler run[JOBQ_STAGES_MAX]; /* as in jobq_pg_handler */
    void *user;
    jobq_jobs_handler batch; /* instead of run; the loop's configuration says how many jobs it gets,
                                at most JOBQ_MEMORY_BATCH */
} jobq_memory_handler;

/*
 * jobq_memory_work -- one worker, one step: does everything that is due at now_us, including
 * handlers.
 *
 * Shape   Returns when something is due next, by the same clock. Set your clock to that time and
 *         call again. JOBQ_NEVER: the loop has ended. The loop's configuration numbers the queues
 *         and the kinds in the order of their ids. Needs 64 KB of stack.
 */
JOBQ_API int64_t jobq_memory_work(jobq_memory *memory, jobq_loop *loop,
                                  const jobq_memory_handler *handlers, int32_t count,
                                  int64_t now_us);

#ifdef __cplusplus
}
#endif

#endif /* JOBQ_INCLUDED */

/* Stop here if you only want the API. */

#ifdef JOBQ_IMPLEMENTATION
#ifndef JOBQ_IMPLEMENTED
#define JOBQ_IMPLEMENTED (1)

#include <string.h> /* memcpy, memcmp, memset, strlen */
#ifndef JOBQ_NO_TEST
#include <setjmp.h> /* for jobq_test_each_fault */
#endif

#ifndef JOBQ_ASSERT
#include <assert.h>
#define JOBQ_ASSERT(x) assert(x)
#endif

/* In C++ our casts are still those of C. */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuseless-cast"
#endif
#endif

/* Around a handler in C++: what it throws makes the attempt fail, and its text is the error. */
#ifdef __cpp_exceptions
#include <exception>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif
#define JOBQ__TRY try
#define JOBQ__CATCH(keep, of) catch (...) { keep(of, jobq__thrown()); }

/* The text of the exception that is being caught. glibc ends a thread by abi::__forced_unwind: that
 * is thrown on, and no object is behind it, about which -fsanitize=null would complain. */
#ifdef __GLIBCXX__
__attribute__((no_sanitize("null")))
#endif
static jobq_str jobq__thrown()
{
    try {
        throw;
#ifdef __GLIBCXX__
    } catch (abi::__forced_unwind &) {
        throw;
#endif
    } catch (const std::exception &thrown) {
        return jobq_str_from(thrown.what());
    } catch (...) {
        return jobq_str_from("the handler threw something else than a std::exception");
    }
}
#else
#define JOBQ__TRY
#define JOBQ__CATCH(keep, of)
#endif

/* For small functions that are called in many places: inlining them everywhere would make the
 * program 5 % larger. */
#if defined(__GNUC__) || defined(__clang__)
#define JOBQ__ONCE __attribute__((noinline))
#define JOBQ__SPARE __attribute__((unused)) /* with JOBQ_NO_TEST nobody calls it */
#else
#define JOBQ__ONCE
#define JOBQ__SPARE
#endif

/* ---- >>errors -------------------------------------------------------------------------------- */

JOBQ_API const char *jobq_error_text(jobq_error error)
{
    switch (error) {
#define JOBQ__X(id, name, text) case JOBQ_##id: return text;
        JOBQ_ERRORS(JOBQ__X)
#undef JOBQ__X
    case JOBQ_ERROR_COUNT: break;
    }
    return "unknown error";
}

JOBQ__ONCE JOBQ_API jobq_str jobq_str_from(const char *terminated)
{
    jobq_str s = {terminated, 0};

    if (terminated != NULL) s.len = strlen(terminated);
    return s;
}

JOBQ_API bool jobq_str_equal(jobq_str a, jobq_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

#define JOBQ__SECOND_OF(id, name, more) name,
#define JOBQ__THIRD_OF(id, more, name) name,
#define JOBQ__NAME_OF(id, name) name,
static const char *const jobq__error_names[] = {JOBQ_ERRORS(JOBQ__SECOND_OF) NULL};
static const char *const jobq__state_names[] = {"", JOBQ_STATES(JOBQ__THIRD_OF) NULL};
static const char *const jobq__state_letters[] = {"", JOBQ_STATES(JOBQ__SECOND_OF) NULL};
static const char *const jobq__event_names[] = {"", JOBQ_EVENTS(JOBQ__NAME_OF) NULL};
static const char *const jobq__profile_names[] = {JOBQ_PROFILES(JOBQ__NAME_OF) NULL};
static const char *const jobq__curve_names[] = {"exponential", "linear", "quartic", "constant",
                                                NULL};
static const char *const jobq__outcome_names[] = {
    "none", "success", "retry", "discard", "snooze", "release", "cancelled", "done", NULL};
static const char *const jobq__request_names[] = {
    "wait", "connect", "disconnect", "register", "policies", "claim", "recover", "complete",
    "settle", "heartbeat", "rescue", "sleep", "unpark", "tick", "prune", "vacuum", "deregister",
    "remain", "set aside", "look", "read", "ack", "renew", "abandon", "exit", NULL};
static const char *const jobq__known_names[] = {"leave", "replace", "merge", "bump", "cancel",
                                                "reject", NULL};
static const char *const jobq__unique_names[] = {"", "period", "live", "ready", NULL};
static const char *const jobq__missed_names[] = {"last", "all", "skip", NULL};
static const char *const jobq__overlap_names[] = {"allow", "skip", "wait", "cancel", NULL};
static const char *const jobq__on_end_names[] = {"success", "failure", "any", NULL};
static const char *const jobq__level_names[] = {"debug", "info", "warning", "error", NULL};
#ifndef JOBQ_NO_RECORD
static const char *const jobq__entry_names[] = {JOBQ_ENTRIES(JOBQ__NAME_OF) NULL};
#else
static const char *const jobq__entry_names[] = {NULL};
#endif

/* By value, up to NULL; "" is not a name. */
static const char *const *jobq__names(jobq_enum of)
{
    static const char *const *const all[JOBQ_ENUM_COUNT] = {
        jobq__error_names, jobq__curve_names,   jobq__state_names,   jobq__state_letters,
        jobq__event_names, jobq__outcome_names, jobq__profile_names, jobq__request_names,
        jobq__known_names, jobq__unique_names,  jobq__missed_names,  jobq__overlap_names,
        jobq__on_end_names, jobq__level_names,  jobq__entry_names};

    JOBQ_ASSERT(of < JOBQ_ENUM_COUNT);
    return all[of];
}

JOBQ_API const char *jobq_enum_name(jobq_enum of, int64_t value)
{
    const char *const *names = jobq__names(of);
    int64_t i = 0;

    while (names[i] != NULL && i != value) i++;
    return names[i] != NULL && names[i][0] != '\0' ? names[i] : "unknown";
}

JOBQ_API int jobq_enum_from(jobq_enum of, jobq_str name)
{
    const char *const *names = jobq__names(of);
    int i = 0;

    while (names[i] != NULL && !jobq_str_equal(name, jobq_str_from(names[i]))) i++;
    return names[i] != NULL && name.len > 0 ? i : -1;
}

static int64_t jobq__min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t jobq__max(int64_t a, int64_t b) { return a > b ? a : b; }

/* a + b for b >= 0, but at most JOBQ_NEVER. */
static int64_t jobq__add(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

/* a * b for a, b >= 0, but at most cap. */
static int64_t jobq__mul_capped(int64_t a, int64_t b, int64_t cap)
{
    return a != 0 && b > cap / a ? cap : jobq__min(a * b, cap);
}

/* ---- >>random -------------------------------------------------------------------------------- */

JOBQ_API uint64_t jobq_random_next(jobq_random *random)
{
    uint64_t z;

    JOBQ_ASSERT(random != NULL);
    z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The high half of a 128-bit product, without a 128-bit type. */
static uint64_t jobq__mul_high(uint64_t a, uint64_t b)
{
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t mid = a1 * b0 + ((a0 * b0) >> 32);
    uint64_t low = a0 * b1 + (mid & 0xffffffffu);

    return a1 * b1 + (mid >> 32) + (low >> 32);
}

JOBQ_API int64_t jobq_random_between(uint64_t bits, int64_t low, int64_t high)
{
    uint64_t span = (uint64_t)jobq__max(high, low) - (uint64_t)low + 1;

    if (span != 0) bits = jobq__mul_high(bits, span);
    return (int64_t)((uint64_t)low + bits);
}

/* ---- >>worker -------------------------------------------------------------------------------- */

static const char jobq__alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

JOBQ_API int64_t jobq_worker_id_from(uint64_t bits)
{
    return bits == 0 ? 1 : (int64_t)bits;
}

/* Writes prefix, dash and suffix; cuts the prefix if they are too long. */
static void jobq__worker_name(char *out, jobq_str prefix, const char *suffix, size_t suffix_len)
{
    jobq_str kept = jobq_utf8_cut(prefix, JOBQ_WORKER_NAME_MAX - 2 - suffix_len);

    if (kept.len > 0) memcpy(out, kept.ptr, kept.len);
    out[kept.len] = '-';
    memcpy(out + kept.len + 1, suffix, suffix_len);
    out[kept.len + 1 + suffix_len] = '\0';
}

JOBQ_API void jobq_worker_name_format(char *out, jobq_str prefix, int64_t id)
{
    char suffix[13];
    uint64_t rest = (uint64_t)id;
    int i;

    JOBQ_ASSERT(out != NULL);
    for (i = 12; i >= 0; i--, rest /= 36) suffix[i] = jobq__alphabet[rest % 36];
    jobq__worker_name(out, prefix, suffix, sizeof suffix);
}

JOBQ_API void jobq_worker_name_short(char *out, jobq_str prefix, uint64_t seed)
{
    char suffix[6];
    int i;

    JOBQ_ASSERT(out != NULL);
    for (i = 0; i < 6; i++) {
        seed = seed * 6364136223846793005u + 1;
        suffix[i] = jobq__alphabet[(seed >> 33) % 36];
    }
    jobq__worker_name(out, prefix, suffix, sizeof suffix);
}

/* ---- >>input --------------------------------------------------------------------------------- */

static bool jobq__alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

JOBQ_API bool jobq_name_valid(jobq_str name)
{
    size_t i;

    if (name.ptr == NULL || name.len == 0 || name.len > JOBQ_NAME_MAX) return false;
    if (!jobq__alnum(name.ptr[0]) || !jobq__alnum(name.ptr[name.len - 1])) return false;
    for (i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        if (!jobq__alnum(c) && c != '.' && c != '_' && c != '-') return false;
    }
    return true;
}

/* Length of the UTF-8 character at p (n bytes left); 0 if it is not valid: overlong, a surrogate,
 * too big, cut off or NUL. */
static size_t jobq__utf8_one(const unsigned char *p, size_t n)
{
    unsigned char c = p[0];
    size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    size_t i;

    if (c == 0 || len == 0 || len > n) return 0;
    for (i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
    }
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f)) return 0;
    if ((c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f)) return 0;
    return len;
}

JOBQ_API bool jobq_utf8_valid(jobq_str text)
{
    const unsigned char *p = (const unsigned char *)text.ptr;
    size_t i = 0;

    while (i < text.len) {
        size_t len = jobq__utf8_one(p + i, text.len - i);
        if (len == 0) return false;
        i += len;
    }
    return true;
}

JOBQ_API jobq_str jobq_utf8_cut(jobq_str text, size_t max)
{
    if (text.len <= max) return text;
    text.len = max;
    while (text.len > 0 && ((unsigned char)text.ptr[text.len] & 0xc0) == 0x80) text.len--;
    return text;
}

JOBQ_API size_t jobq_utf8_mend(char *out, size_t max, jobq_str bytes)
{
    const unsigned char *p = (const unsigned char *)bytes.ptr;
    size_t i = 0, size = 0;

    JOBQ_ASSERT(out != NULL);
    while (i < bytes.len) {
        size_t len = jobq__utf8_one(p + i, bytes.len - i);
        size_t put = len == 0 ? 1 : len;
        if (size + put > max) break;
        if (len == 0) out[size] = '?';
        else memcpy(out + size, bytes.ptr + i, len);
        size += put;
        i += put;
    }
    out[size] = '\0';
    return size;
}

/* The characters that have an escape of one letter, and their letters. */
static const char jobq__escaped[] = "\"\\\b\f\n\r\t", jobq__escapes[] = "\"\\bfnrt";

/* How a character of len bytes (0: a bad one) is written in a JSON string; at most 6 bytes. */
static size_t jobq__quoted_one(char *out, const char *p, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    int i = 0;

    if (len == 0) {
        *out = '?';
        return 1;
    }
    while (jobq__escaped[i] != '\0' && jobq__escaped[i] != *p) i++;
    if (jobq__escaped[i] == '\0' && (unsigned char)*p >= 0x20) {
        memcpy(out, p, len);
        return len;
    }
    out[0] = '\\';
    if (jobq__escaped[i] != '\0') {
        out[1] = jobq__escapes[i];
        return 2;
    }
    out[1] = 'u';
    out[2] = out[3] = '0';
    out[4] = digits[*p >> 4];
    out[5] = digits[*p & 15];
    return 6;
}

JOBQ_API size_t jobq_json_quote(char *out, size_t size, jobq_str text)
{
    const unsigned char *p = (const unsigned char *)text.ptr;
    char put[6];
    size_t i, at = 1, len, more;

    JOBQ_ASSERT(out != NULL);
    for (i = 0; i < text.len; i += len == 0 ? 1 : len) {
        len = jobq__utf8_one(p + i, text.len - i);
        more = jobq__quoted_one(put, text.ptr + i, len);
        if (at + more + 2 > size) return 0;
        memcpy(out + at, put, more);
        at += more;
    }
    if (at + 2 > size) return 0;
    out[0] = out[at] = '"';
    out[at + 1] = '\0';
    return at + 1;
}

/* A reading position in JSON text. why: the first fault. */
typedef struct jobq__json {
    const char *ptr;
    size_t len, at;
    const char *why;
    bool any; /* also what jsonb cannot hold */
} jobq__json;

static int jobq__json_peek(const jobq__json *j)
{
    return j->at < j->len ? (unsigned char)j->ptr[j->at] : -1;
}

static bool jobq__json_fail(jobq__json *j, const char *why)
{
    if (j->why == NULL) j->why = why;
    return false;
}

static void jobq__json_space(jobq__json *j)
{
    int c = jobq__json_peek(j);

    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        j->at++;
        c = jobq__json_peek(j);
    }
}

/* Reads four hex digits; -1: they are not there. */
static int32_t jobq__json_hex(jobq__json *j)
{
    int32_t value = 0;
    int i;

    for (i = 0; i < 4; i++) {
        int c = jobq__json_peek(j);
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
        j->at++;
    }
    return value;
}

/* Reads the rest of an escape that starts with a backslash and u; after a high surrogate also the
 * low one. jsonb stores text, which has no NUL and no lone surrogates. */
static bool jobq__json_unicode(jobq__json *j, int32_t *code)
{
    int32_t low;

    *code = jobq__json_hex(j);
    if (*code < 0) return jobq__json_fail(j, "\\u needs four hex digits");
    if (j->any) return true;
    if (*code == 0) return jobq__json_fail(j, "\\u0000 cannot be stored as text");
    if (*code >= 0xdc00 && *code <= 0xdfff) return jobq__json_fail(j, "lone low surrogate");
    if (*code < 0xd800 || *code > 0xdbff) return true;
    if (jobq__json_peek(j) != '\\' || j->at + 1 >= j->len || j->ptr[j->at + 1] != 'u') {
        return jobq__json_fail(j, "lone high surrogate");
    }
    j->at += 2;
    low = jobq__json_hex(j);
    *code = 0x10000 + (*code - 0xd800) * 0x400 + (low - 0xdc00);
    return (low >= 0xdc00 && low <= 0xdfff) || jobq__json_fail(j, "lone high surrogate");
}

static bool jobq__json_escape(jobq__json *j)
{
    int c = jobq__json_peek(j);
    int32_t code;

    j->at++;
    if (c == 'u') return jobq__json_unicode(j, &code);
    if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' ||
        c == 't') {
        return true;
    }
    j->at--;
    return jobq__json_fail(j, "unknown escape");
}

static bool jobq__json_string(jobq__json *j)
{
    j->at++;
    for (;;) {
        int c = jobq__json_peek(j);
        size_t len;
        if (c < 0) return jobq__json_fail(j, "string without end");
        if (c < 0x20) return jobq__json_fail(j, "control character in a string");
        if (c == '"') {
            j->at++;
            return true;
        }
        if (c == '\\') {
            j->at++;
            if (!jobq__json_escape(j)) return false;
            continue;
        }
        len = jobq__utf8_one((const unsigned char *)j->ptr + j->at, j->len - j->at);
        if (len == 0) return jobq__json_fail(j, "not UTF-8");
        j->at += len;
    }
}

static size_t jobq__json_digits(jobq__json *j)
{
    size_t from = j->at;

    while (jobq__json_peek(j) >= '0' && jobq__json_peek(j) <= '9') j->at++;
    return j->at - from;
}

/* Postgres refuses exponents of this size and larger, for any number. */
#define JOBQ__JSON_EXPONENT (INT32_MAX / 2)

/* Reads the exponent, cut at JOBQ__JSON_EXPONENT, which is refused anyway; leaves 0 if there is
 * none. False: its digits are missing. */
static bool jobq__json_exponent(jobq__json *j, int64_t *exponent)
{
    int sign, c = jobq__json_peek(j);
    size_t from;

    if (c != 'e' && c != 'E') return true;
    j->at++;
    sign = jobq__json_peek(j);
    if (sign == '-' || sign == '+') j->at++;
    from = j->at;
    while ((c = jobq__json_peek(j)) >= '0' && c <= '9') {
        *exponent = jobq__min(*exponent * 10 + (c - '0'), JOBQ__JSON_EXPONENT);
        j->at++;
    }
    if (sign == '-') *exponent = -*exponent;
    return j->at > from || jobq__json_fail(j, "digit expected in the exponent");
}

/* Digits before the point, leading zeros not counted: 2 for 12, 0 for 0.1, -2 for 0.001. A zero
 * gets the lowest value, so that its exponent does not matter. */
static int64_t jobq__json_magnitude(const char *digits, size_t whole, size_t fraction)
{
    size_t i = 0;

    if (digits[0] != '0') return (int64_t)whole;
    while (i < fraction && digits[whole + 1 + i] == '0') i++;
    return i == fraction ? -JOBQ__JSON_EXPONENT : -(int64_t)i;
}

/* A numeric holds 131072 digits before the point and 16383 after it; jsonb refuses more. */
static bool jobq__json_number(jobq__json *j)
{
    size_t whole, fraction = 0, from;
    int64_t exponent = 0;

    if (jobq__json_peek(j) == '-') j->at++;
    from = j->at;
    whole = jobq__json_digits(j);
    if (whole == 0) return jobq__json_fail(j, "digit expected");
    if (whole > 1 && j->ptr[from] == '0') return jobq__json_fail(j, "number with leading zero");
    if (jobq__json_peek(j) == '.') {
        j->at++;
        fraction = jobq__json_digits(j);
        if (fraction == 0) return jobq__json_fail(j, "digit expected after the point");
    }
    if (!jobq__json_exponent(j, &exponent)) return false;
    if (!j->any && (exponent == JOBQ__JSON_EXPONENT || (int64_t)fraction - exponent > 16383 ||
                    jobq__json_magnitude(j->ptr + from, whole, fraction) + exponent > 131072)) {
        return jobq__json_fail(j, "number beyond what a numeric holds");
    }
    return true;
}

static bool jobq__json_word(jobq__json *j, const char *word)
{
    size_t len = strlen(word);

    if (j->len - j->at < len || memcmp(j->ptr + j->at, word, len) != 0) {
        return jobq__json_fail(j, "value expected");
    }
    j->at += len;
    return true;
}

static bool jobq__json_scalar(jobq__json *j)
{
    int c = jobq__json_peek(j);

    if (c == '"') return jobq__json_string(j);
    if (c == '-' || (c >= '0' && c <= '9')) return jobq__json_number(j);
    if (c == 't') return jobq__json_word(j, "true");
    if (c == 'f') return jobq__json_word(j, "false");
    return jobq__json_word(j, "null");
}

/* Reads "key": and the white space around it. */
static bool jobq__json_key(jobq__json *j)
{
    jobq__json_space(j);
    if (jobq__json_peek(j) != '"') return jobq__json_fail(j, "key expected");
    if (!jobq__json_string(j)) return false;
    jobq__json_space(j);
    if (jobq__json_peek(j) != ':') return jobq__json_fail(j, "colon expected");
    j->at++;
    return true;
}

/* After a value: closes the objects and arrays that end there. False: a comma follows, or there is
 * a fault (then why is set). */
static bool jobq__json_close(jobq__json *j, const char *open, size_t *depth)
{
    while (*depth > 0) {
        int c;
        jobq__json_space(j);
        c = jobq__json_peek(j);
        if (c == ',') {
            j->at++;
            return false;
        }
        if (c != (open[*depth - 1] == '{' ? '}' : ']')) {
            return jobq__json_fail(j, "comma or end of object or array expected");
        }
        j->at++;
        (*depth)--;
    }
    return true;
}

/* No recursion: the open brackets are kept in a small stack. */
static bool jobq__json_value(jobq__json *j)
{
    char open[JOBQ_JSON_DEPTH];
    size_t depth = 0;

    for (;;) {
        int c;
        if (depth > 0 && open[depth - 1] == '{' && !jobq__json_key(j)) return false;
        jobq__json_space(j);
        c = jobq__json_peek(j);
        if (c == '{' || c == '[') {
            if (depth == JOBQ_JSON_DEPTH) return jobq__json_fail(j, "nested too deeply");
            open[depth++] = (char)c;
            j->at++;
            jobq__json_space(j);
            if (jobq__json_peek(j) != (c == '{' ? '}' : ']')) continue;
        } else if (!jobq__json_scalar(j)) {
            return false;
        }
        if (jobq__json_close(j, open, &depth)) return true;
        if (j->why != NULL) return false;
    }
}

static jobq_error jobq__json_read(jobq_str json, bool any, size_t *at, const char **why)
{
    jobq__json j = {NULL, 0, 0, NULL, false};
    bool good;

    j.any = any;
    j.ptr = json.ptr;
    j.len = json.ptr == NULL ? 0 : json.len;
    good = jobq__json_value(&j);
    if (good) jobq__json_space(&j);
    if (good && j.at < j.len) good = jobq__json_fail(&j, "text after the value");
    if (at != NULL) *at = j.at;
    if (why != NULL) *why = good ? "" : j.why;
    return good ? JOBQ_OK : JOBQ_ERROR_INVALID;
}

JOBQ_API jobq_error jobq_json_check(jobq_str json, size_t *at, const char **why)
{
    return jobq__json_read(json, false, at, why);
}

JOBQ_API jobq_error jobq_json_valid(jobq_str json, size_t *at, const char **why)
{
    return jobq__json_read(json, true, at, why);
}

JOBQ_API jobq_str jobq_json_member(jobq_str object, const char *name)
{
    jobq_str wanted = jobq_str_from(name), found = {NULL, 0}, none = {NULL, 0}, key, value;
    jobq__json j = {NULL, 0, 0, NULL, false};
    int c;

    j.ptr = object.ptr;
    j.len = object.ptr == NULL ? 0 : object.len;
    jobq__json_space(&j);
    if (jobq__json_peek(&j) != '{') return none;
    do {
        j.at++;
        jobq__json_space(&j);
        key.ptr = j.ptr + j.at + 1;
        if (!jobq__json_key(&j)) return none;
        key.len = wanted.len;
        jobq__json_space(&j);
        value.ptr = j.ptr + j.at;
        if (!jobq__json_value(&j)) return none;
        value.len = (size_t)(j.ptr + j.at - value.ptr);
        if (value.ptr > key.ptr + key.len && key.ptr[key.len] == '"' &&
            jobq_str_equal(key, wanted)) found = value;
        jobq__json_space(&j);
        c = jobq__json_peek(&j);
    } while (c == ',');
    return c == '}' ? found : none;
}

/* ---- >>payload ------------------------------------------------------------------------------- */

/* Leaves j at the first byte of the value. */
static jobq_error jobq__json_find(jobq__json *j, jobq_str json, const char *name)
{
    jobq_str value = name == NULL ? json : jobq_json_member(json, name);

    memset(j, 0, sizeof *j);
    if (value.ptr == NULL) return JOBQ_ERROR_NOT_FOUND;
    if (jobq_json_check(value, NULL, NULL) != JOBQ_OK) return JOBQ_ERROR_INVALID;
    j->ptr = value.ptr;
    j->len = value.len;
    jobq__json_space(j);
    return jobq__json_peek(j) == 'n' ? JOBQ_ERROR_NOT_FOUND : JOBQ_OK;
}

/* Writes a character as UTF-8, 1 to 4 bytes. */
static size_t jobq__utf8_put(char *out, int32_t code)
{
    static const int32_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t len = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4, i;

    for (i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)(lead[len] | code);
    return len;
}

/* Reads a byte or an escape of a valid string; out gets 1 to 4 bytes. */
static size_t jobq__json_unescape(jobq__json *j, char *out)
{
    int32_t code;
    size_t i;

    *out = j->ptr[j->at++];
    if (*out != '\\') return 1;
    *out = j->ptr[j->at++];
    if (*out == 'u') {
        jobq__json_unicode(j, &code);
        return jobq__utf8_put(out, code);
    }
    for (i = 0; jobq__escapes[i] != '\0'; i++) {
        if (jobq__escapes[i] != *out) continue;
        *out = jobq__escaped[i];
        break;
    }
    return 1;
}

JOBQ_API jobq_error jobq_json_text(jobq_str json, const char *name, char *out, size_t size)
{
    jobq__json j, from;
    char unused[4];
    size_t len = 0;
    jobq_error code = jobq__json_find(&j, json, name);

    JOBQ_ASSERT(out != NULL);
    if (code != JOBQ_OK) return code;
    if (jobq__json_peek(&j) != '"') return JOBQ_ERROR_INVALID;
    j.at++;
    from = j;
    while (jobq__json_peek(&j) != '"') len += jobq__json_unescape(&j, unused);
    if (len >= size) return JOBQ_ERROR_FULL;
    while (jobq__json_peek(&from) != '"') out += jobq__json_unescape(&from, out);
    *out = '\0';
    return JOBQ_OK;
}

/* Leaves j at the first digit of a number. False: it is not a number. */
static bool jobq__json_minus(jobq__json *j, bool *negative)
{
    int c = jobq__json_peek(j);

    *negative = c == '-';
    if (*negative) j->at++;
    return *negative || (c >= '0' && c <= '9');
}

JOBQ_API jobq_error jobq_json_int(jobq_str json, const char *name, int64_t *out)
{
    jobq__json j;
    bool negative;
    int64_t value = 0, least; /* both with a minus: there are more negative numbers */
    int c;
    jobq_error code = jobq__json_find(&j, json, name);

    JOBQ_ASSERT(out != NULL);
    if (code != JOBQ_OK) return code;
    if (!jobq__json_minus(&j, &negative)) return JOBQ_ERROR_INVALID;
    least = negative ? INT64_MIN : -INT64_MAX;
    for (; (c = jobq__json_peek(&j)) >= '0' && c <= '9'; j.at++) {
        if (value < (least + (c - '0')) / 10) return JOBQ_ERROR_INVALID;
        value = value * 10 - (c - '0');
    }
    if (c == '.' || c == 'e' || c == 'E') return JOBQ_ERROR_INVALID;
    *out = negative ? value : -value;
    return JOBQ_OK;
}

/* A number is read as n / m * 2^exponent, exactly: n comes from its digits, m is a power of 5 where
 * the exponent is negative. JOBQ__DIGITS digits, and one for all that follow, decide how it is
 * rounded; with m above 5^1092 it would be 0. So n and m need at most 2556 bits. */
#define JOBQ__DIGITS 768

typedef struct jobq__big {
    uint32_t limb[84]; /* the lowest first */
    int size;          /* limbs in use; the highest of them is not 0 */
} jobq__big;

/* b = b * factor + more */
static void jobq__big_times(jobq__big *b, uint32_t factor, uint32_t more)
{
    uint64_t carry = more;
    int i;

    for (i = 0; i < b->size || carry > 0; i++) {
        if (i < b->size) carry += (uint64_t)b->limb[i] * factor;
        b->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    b->size = i;
}

static void jobq__big_shift(jobq__big *b, int bits)
{
    for (; bits > 31; bits -= 31) jobq__big_times(b, (uint32_t)1 << 31, 0);
    jobq__big_times(b, (uint32_t)1 << bits, 0);
}

static int jobq__big_bits(const jobq__big *b)
{
    uint32_t top = b->limb[b->size - 1];
    int bits = 32 * (b->size - 1);

    for (; top > 0; top >>= 1) bits++;
    return bits;
}

/* Below 0, 0 or above: a is less than, equal to or greater than b, which is not 0. */
static int jobq__big_compare(const jobq__big *a, const jobq__big *b)
{
    int i = a->size - 1;

    if (a->size != b->size) return a->size - b->size;
    while (i > 0 && a->limb[i] == b->limb[i]) i--;
    return a->limb[i] < b->limb[i] ? -1 : a->limb[i] > b->limb[i];
}

/* a = a - b; b is not greater. */
static void jobq__big_minus(jobq__big *a, const jobq__big *b)
{
    uint64_t had, take = 0;
    int i;

    for (i = 0; i < a->size; i++) {
        had = a->limb[i];
        if (i < b->size) take += b->limb[i];
        a->limb[i] = (uint32_t)(had - take);
        take = had < take;
    }
    while (a->size > 0 && a->limb[a->size - 1] == 0) a->size--;
}

/* The double nearest to n / m * 2^exponent, as it lies in memory. Neither n nor m is 0. */
static uint64_t jobq__double_bits(jobq__big *n, jobq__big *m, int exponent)
{
    int apart = jobq__big_bits(n) - jobq__big_bits(m), count = 53, rest;
    uint64_t mantissa = 0;

    jobq__big_shift(apart > 0 ? m : n, apart > 0 ? apart : -apart);
    exponent += apart;
    if (jobq__big_compare(n, m) < 0) {
        jobq__big_shift(n, 1);
        exponent--;
    }
    /* Now n / m is at least 1 and less than 2. A subnormal has fewer bits. */
    if (exponent < -1022) count += exponent + 1022;
    if (count < 0) return 0;
    for (; count > 0; count--) {
        mantissa *= 2;
        if (jobq__big_compare(n, m) >= 0) {
            jobq__big_minus(n, m);
            mantissa++;
        }
        jobq__big_shift(n, 1);
    }
    rest = jobq__big_compare(n, m); /* with half of the last bit */
    if (rest > 0 || (rest == 0 && mantissa % 2 == 1)) mantissa++;
    /* The mantissa's first bit, which is not stored, adds 1 to the exponent. */
    return mantissa + ((uint64_t)(exponent < -1022 ? 0 : exponent + 1022) << 52);
}

/* Reads a valid number, from its first digit on, as n * 10^exponent. Returns k if it is less than
 * 10^k and not less than 10^(k-1). */
static int64_t jobq__double_digits(jobq__json *j, jobq__big *n, int64_t *exponent)
{
    int64_t written = 0, fraction = 0;
    int digits = 0, c;
    bool point = false, more = false;

    n->size = 0;
    for (; (c = jobq__json_peek(j)) == '.' || (c >= '0' && c <= '9'); j->at++) {
        if (c == '.') point = true;
        else if (point) fraction++;
        if (c == '.' || (c == '0' && n->size == 0)) continue;
        if (digits < JOBQ__DIGITS) jobq__big_times(n, 10, (uint32_t)(c - '0'));
        else more = more || c != '0';
        digits++;
    }
    jobq__json_exponent(j, &written);
    *exponent = written - fraction;
    if (digits > JOBQ__DIGITS) *exponent += digits - JOBQ__DIGITS;
    if (more) {
        jobq__big_times(n, 10, 1);
        --*exponent;
    }
    return written - fraction + digits;
}

JOBQ_API jobq_error jobq_json_double(jobq_str json, const char *name, double *out)
{
    jobq__big n, m = {{1}, 1};
    jobq__json j;
    bool negative;
    int64_t exponent, below, i;
    uint64_t bits = 0;
    jobq_error code = jobq__json_find(&j, json, name);

    JOBQ_ASSERT(out != NULL);
    if (code != JOBQ_OK) return code;
    if (!jobq__json_minus(&j, &negative)) return JOBQ_ERROR_INVALID;
    below = jobq__double_digits(&j, &n, &exponent);
    if (n.size > 0 && below > 309) return JOBQ_ERROR_INVALID;
    if (n.size > 0 && below > -324) {
        for (i = 0; i < exponent; i++) jobq__big_times(&n, 5, 0);
        for (i = 0; i > exponent; i--) jobq__big_times(&m, 5, 0);
        bits = jobq__double_bits(&n, &m, (int)exponent);
    }
    if (bits >= (uint64_t)0x7ff << 52) return JOBQ_ERROR_INVALID;
    if (negative) bits |= (uint64_t)1 << 63;
    memcpy(out, &bits, sizeof *out);
    return JOBQ_OK;
}

/* ---- >>trace --------------------------------------------------------------------------------- */

/* Writes text into a buffer. The first overflow sets full; from then on nothing is written. */
typedef struct jobq__text {
    char *out;
    size_t size, at;
    bool full;
} jobq__text;

static void jobq__put(jobq__text *t, jobq_str s)
{
    if (t->full || t->at + s.len + 1 > t->size) {
        t->full = true;
        return;
    }
    if (s.len > 0) memcpy(t->out + t->at, s.ptr, s.len);
    t->at += s.len;
    t->out[t->at] = '\0';
}

#define JOBQ__TRACE_SIZE 55 /* of a traceparent of version 00 */

/* Whether text[from, from + count) are hex digits in lower case; *zero: all of them are 0. */
static bool jobq__trace_hex(jobq_str text, size_t from, size_t count, bool *zero)
{
    size_t i;

    *zero = true;
    for (i = from; i < from + count; i++) {
        char c = text.ptr[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
        if (c != '0') *zero = false;
    }
    return true;
}

static bool jobq__trace_valid(jobq_str parent)
{
    const char *p = parent.ptr;
    bool known, no_trace, no_span, unused;

    if (p == NULL || parent.len < JOBQ__TRACE_SIZE) return false;
    if (p[2] != '-' || p[35] != '-' || p[52] != '-') return false;
    if (!jobq__trace_hex(parent, 0, 2, &known) || (p[0] == 'f' && p[1] == 'f')) return false;
    if (parent.len > JOBQ__TRACE_SIZE && (known || p[JOBQ__TRACE_SIZE] != '-')) return false;
    return jobq__trace_hex(parent, 3, 32, &no_trace) && !no_trace &&
           jobq__trace_hex(parent, 36, 16, &no_span) && !no_span &&
           jobq__trace_hex(parent, 53, 2, &unused);
}

/* Whether a tracestate can be used, and stands in JSON as it is. */
static bool jobq__trace_state_valid(jobq_str state)
{
    size_t i;

    if (state.ptr == NULL || state.len == 0 || state.len > JOBQ_TRACE_STATE_MAX) return false;
    for (i = 0; i < state.len; i++) {
        char c = state.ptr[i];
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') return false;
    }
    return true;
}

JOBQ_API size_t jobq_trace_format(char *out, const jobq_trace *trace)
{
    jobq__text t = {NULL, JOBQ_TRACE_MAX, 0, false};
    jobq_str parent;

    JOBQ_ASSERT(out != NULL && trace != NULL);
    out[0] = '\0';
    if (!jobq__trace_valid(trace->parent)) return 0;
    t.out = out;
    parent.ptr = trace->parent.ptr + 2;
    parent.len = JOBQ__TRACE_SIZE - 2;
    jobq__put(&t, jobq_str_from("\"traceparent\": \"00"));
    jobq__put(&t, parent);
    /* Version 00 knows one flag. Those of an unknown version must not pass for its own. */
    if (trace->parent.ptr[0] != '0' || trace->parent.ptr[1] != '0') {
        char last = out[t.at - 1];
        out[t.at - 2] = '0';
        out[t.at - 1] = (char)('0' + ((last <= '9' ? last : last + 1) & 1));
    }
    jobq__put(&t, jobq_str_from("\""));
    if (!jobq__trace_state_valid(trace->state)) return t.at;
    jobq__put(&t, jobq_str_from(", \"tracestate\": \""));
    jobq__put(&t, trace->state);
    jobq__put(&t, jobq_str_from("\""));
    return t.at;
}

/* What is between the quotes of a member that is a string. */
static jobq_str jobq__trace_member(jobq_str headers, const char *name)
{
    jobq_str value = jobq_json_member(headers, name), none = {NULL, 0};

    if (value.len < 2 || value.ptr[0] != '"') return none;
    value.ptr++;
    value.len -= 2;
    return value;
}

JOBQ_API jobq_trace jobq_trace_of(jobq_str headers)
{
    jobq_trace trace;

    memset(&trace, 0, sizeof trace);
    trace.parent = jobq__trace_member(headers, "traceparent");
    if (!jobq__trace_valid(trace.parent)) {
        memset(&trace, 0, sizeof trace);
        return trace;
    }
    trace.parent.len = JOBQ__TRACE_SIZE; /* of an unknown version the rest has no meaning */
    trace.state = jobq__trace_member(headers, "tracestate");
    if (!jobq__trace_state_valid(trace.state)) memset(&trace.state, 0, sizeof trace.state);
    return trace;
}

/* ---- >>backoff ------------------------------------------------------------------------------- */

#define JOBQ__SECOND ((int64_t)1000000)
#define JOBQ__HOUR (3600 * JOBQ__SECOND)
#define JOBQ__DAY (24 * JOBQ__HOUR)

JOBQ_API jobq_backoff jobq_backoff_seed(void)
{
    jobq_backoff seed = {JOBQ_CURVE_EXPONENTIAL, 250, 60 * JOBQ__SECOND, JOBQ__HOUR,
                         60 * JOBQ__SECOND};

    return seed;
}

JOBQ_API jobq_backoff jobq_backoff_defaults(const jobq_backoff *backoff)
{
    static const jobq_backoff quick = {JOBQ_CURVE_EXPONENTIAL, 250, 5 * JOBQ__SECOND, JOBQ__HOUR,
                                       0};
    jobq_backoff b = backoff == NULL || backoff->base_us == 0 ? quick : *backoff;

    if (b.jitter_permille == 0) b.jitter_permille = 250;
    if (b.cap_us == 0) b.cap_us = jobq__max(JOBQ__HOUR, b.floor_us);
    return b;
}

JOBQ_API jobq_error jobq_backoff_check(const jobq_backoff *backoff)
{
    jobq_backoff b = jobq_backoff_defaults(backoff);

    if (b.base_us < 0 || b.cap_us < 0 || b.floor_us < 0 || b.floor_us > b.cap_us ||
        b.jitter_permille < JOBQ_NO_JITTER || b.jitter_permille > 1000 || (int)b.curve < 0 ||
        b.curve >= JOBQ_CURVE_COUNT) {
        return JOBQ_ERROR_INVALID;
    }
    return JOBQ_OK;
}

/* d(n), before jitter. jobq._work_backoff in sql/ does the same for workers in other languages. */
static int64_t jobq__backoff_curve(const jobq_backoff *b, uint32_t n)
{
    int64_t steps = (int64_t)n + 1;

    switch (b->curve) {
    case JOBQ_CURVE_LINEAR: return jobq__mul_capped(b->base_us, steps, b->cap_us);
    case JOBQ_CURVE_QUARTIC:
        steps = jobq__mul_capped(steps, steps, INT64_MAX);
        steps = jobq__mul_capped(steps, steps, INT64_MAX);
        return jobq__mul_capped(b->base_us, steps, b->cap_us);
    case JOBQ_CURVE_CONSTANT: return jobq__min(b->base_us, b->cap_us);
    case JOBQ_CURVE_EXPONENTIAL:
    case JOBQ_CURVE_COUNT: break;
    }
    return n > 61 ? b->cap_us : jobq__mul_capped(b->base_us, (int64_t)1 << n, b->cap_us);
}

JOBQ_API int64_t jobq_backoff_delay(const jobq_backoff *backoff, uint32_t n, uint64_t random)
{
    jobq_backoff b = jobq_backoff_defaults(backoff);
    int64_t delay, half, low, high;

    JOBQ_ASSERT(jobq_backoff_check(&b) == JOBQ_OK);
    if (b.jitter_permille == JOBQ_NO_JITTER) b.jitter_permille = 0;
    delay = jobq__backoff_curve(&b, n);
    half = delay / 1000 * b.jitter_permille + delay % 1000 * b.jitter_permille / 1000;
    low = jobq__max(delay - half, b.floor_us);
    high = jobq__min(jobq__add(delay, half), b.cap_us);
    return low < high ? jobq_random_between(random, low, high) : jobq__min(low, b.cap_us);
}

/* ---- >>calendar ------------------------------------------------------------------------------ */

typedef struct jobq__cron_field {
    int low, high;
    const char *names; /* of low and the values after it, of three letters */
    uint32_t flag;     /* if it begins with `*` */
    const char *why;
} jobq__cron_field;

#define JOBQ__CRON_WHY(allowed) "must have " allowed "; lists 1,3; ranges 1-5; steps */2 and 1-5/2"
static const jobq__cron_field jobq__cron_fields[] = {
    {0, 59, "", 0, JOBQ__CRON_WHY("a second of 0 to 59")},
    {0, 59, "", JOBQ_CRON_ELAPSED, JOBQ__CRON_WHY("a minute of 0 to 59")},
    {0, 23, "", JOBQ_CRON_ELAPSED, JOBQ__CRON_WHY("an hour of 0 to 23")},
    {1, 31, "", JOBQ_CRON_ANY_DAY, JOBQ__CRON_WHY("a day of 1 to 31, or L")},
    {1, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", 0,
     JOBQ__CRON_WHY("a month of 1 to 12, or JAN to DEC")},
    {0, 7, "SUNMONTUEWEDTHUFRISAT", JOBQ_CRON_ANY_WEEKDAY,
     JOBQ__CRON_WHY("a weekday of 0 to 7, or SUN to SAT")}};

/* Whether the rest of a text begins with a word, in any case; then the word is cut off. */
static bool jobq__cron_word(jobq_str *rest, const char *word, size_t len)
{
    size_t i;

    for (i = 0; i < len; i++) {
        int c = i < rest->len ? rest->ptr[i] : -1;
        bool lower = c >= 'a' && c <= 'z' && c - 'a' == word[i] - 'A';
        if (c != word[i] && !lower) return false;
    }
    rest->ptr += len;
    rest->len -= len;
    return true;
}

/* Cuts a number of one or two digits, or a name, off the rest of a text; -1: there is none. */
static int jobq__cron_value(jobq_str *rest, const char *names, int low)
{
    int value = -1, i;

    for (i = 0; i < 2 && rest->len > 0 && *rest->ptr >= '0' && *rest->ptr <= '9'; i++) {
        value = (i == 0 ? 0 : value * 10) + *rest->ptr - '0';
        rest->ptr++;
        rest->len--;
    }
    for (i = 0; value < 0 && names[i] != '\0'; i += 3) {
        if (jobq__cron_word(rest, names + i, 3)) value = low + i / 3;
    }
    return value;
}

/* Cuts an item of a field's list off the rest of the field, and adds it to the set. */
static bool jobq__cron_item(const jobq__cron_field *f, jobq_str *rest, uint64_t *set)
{
    int low = f->low, high = f->high, step = 1;
    bool range = true;

    if (f->high == 31 && jobq__cron_word(rest, "L", 1)) {
        *set |= 1;
        return true;
    }
    if (!jobq__cron_word(rest, "*", 1)) {
        low = high = jobq__cron_value(rest, f->names, f->low);
        range = jobq__cron_word(rest, "-", 1);
        if (range) high = jobq__cron_value(rest, f->names, f->low);
        if (range && high == 0 && low > 0 && f->high == 7) high = 7; /* FRI-SUN */
    }
    if (range && jobq__cron_word(rest, "/", 1)) step = jobq__cron_value(rest, "", 0);
    if (low < f->low || high < low || high > f->high || step < 1 || step > f->high) return false;
    for (; low <= high; low += step) *set |= (uint64_t)1 << low;
    return true;
}

/* The set of a field; 0: it breaks a rule. */
static uint64_t jobq__cron_set(const jobq__cron_field *f, jobq_str field)
{
    uint64_t set = 0;

    do {
        if (!jobq__cron_item(f, &field, &set)) return 0;
    } while (jobq__cron_word(&field, ",", 1));
    return field.len == 0 ? set : 0;
}

/* The text, or what a name such as @daily stands for. */
static jobq_str jobq__cron_named(jobq_str text)
{
    static const char *const names[] = {"@HOURLY",   "0 * * * *", "@DAILY",   "0 0 * * *",
                                        "@MIDNIGHT", "0 0 * * *", "@WEEKLY",  "0 0 * * 0",
                                        "@MONTHLY",  "0 0 1 * *", "@YEARLY",  "0 0 1 1 *",
                                        "@ANNUALLY", "0 0 1 1 *"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i += 2) {
        jobq_str rest = text;
        if (jobq__cron_word(&rest, names[i], strlen(names[i])) && rest.len == 0) {
            return jobq_str_from(names[i + 1]);
        }
    }
    return text;
}

static bool jobq__blank(char c) { return c == ' ' || c == '\t'; }

/* Cuts the text at its blanks. Returns the number of fields; 7 if there are more. */
static int jobq__cron_split(jobq_str text, jobq_str fields[7])
{
    size_t i = 0, from;
    int count = 0;

    for (;;) {
        while (i < text.len && jobq__blank(text.ptr[i])) i++;
        from = i;
        while (i < text.len && !jobq__blank(text.ptr[i])) i++;
        if (i == from || count == 7) return count;
        fields[count].ptr = text.ptr + from;
        fields[count++].len = i - from;
    }
}

/* Whether the date comes in some year. Each month has a last day, and the days 1 to 29. */
static bool jobq__cron_comes(const jobq_cron *c)
{
    if ((c->flags & (JOBQ_CRON_ANY_DAY | JOBQ_CRON_ANY_WEEKDAY)) == 0) return true;
    if ((c->days & 0x3fffffffu) != 0) return true;
    if ((c->days & 1u << 30) != 0 && (c->months & ~(1u << 2)) != 0) return true;
    return (c->months & 0x15aau) != 0; /* of 31 days: 1, 3, 5, 7, 8, 10, 12 */
}

/* Reads the expression. Returns what is wrong with it, or NULL. */
static const char *jobq__cron_read(jobq_str text, jobq_cron *cron)
{
    jobq_str fields[8];
    uint64_t sets[6];
    int count, i;

    if (text.len > JOBQ_CRON_MAX) return "must be at most 1000 bytes";
    fields[0] = jobq_str_from("0");
    count = jobq__cron_split(text, fields + 1);
    if (count == 1) count = jobq__cron_split(jobq__cron_named(fields[1]), fields + 1);
    if (count != 5 && count != 6) {
        return "must have five fields: minute hour day month weekday; or six, the second first; "
               "or be @hourly @daily @midnight @weekly @monthly @yearly @annually";
    }
    for (i = 0; i < 6; i++) {
        sets[i] = jobq__cron_set(&jobq__cron_fields[i], fields[i + count - 5]);
        if (sets[i] == 0) return jobq__cron_fields[i].why;
    }
    cron->seconds = sets[0];
    cron->minutes = sets[1];
    cron->hours = (uint32_t)sets[2];
    cron->days = (uint32_t)sets[3];
    cron->months = (uint32_t)sets[4];
    cron->weekdays = (uint32_t)((sets[5] | sets[5] >> 7) & 127);
    cron->flags = 0;
    for (i = 1; i < 6; i++) {
        if (*fields[i + count - 5].ptr == '*') cron->flags |= jobq__cron_fields[i].flag;
    }
    return jobq__cron_comes(cron) ? NULL : "must match a date that exists";
}

JOBQ_API jobq_error jobq_cron_parse(jobq_str text, jobq_cron *cron, const char **why)
{
    jobq_cron read;
    const char *wrong;

    JOBQ_ASSERT(cron != NULL);
    wrong = jobq__cron_read(text, &read);
    if (why != NULL) *why = wrong == NULL ? "" : wrong;
    if (wrong != NULL) return JOBQ_ERROR_INVALID;
    *cron = read;
    return JOBQ_OK;
}

static int64_t jobq__floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* The date of a day, counted from 1970-01-01, in the Gregorian calendar of all times. Source:
 * Hinnant's civil_from_days; years begin in March, so that the leap day is the last. */
static void jobq__date_of(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t z = days + 719468, era = jobq__floor_div(z, 146097), in_era = z - era * 146097;
    int64_t y = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    int64_t in_year = in_era - (365 * y + y / 4 - y / 100), m = (5 * in_year + 2) / 153;

    *day = (int)(in_year - (153 * m + 2) / 5 + 1);
    *month = (int)(m < 10 ? m + 3 : m - 9);
    *year = y + era * 400 + (*month <= 2);
}

/* ---- >>job ----------------------------------------------------------------------------------- */

JOBQ_API jobq_policy jobq_policy_defaults(const jobq_policy *policy)
{
    jobq_policy p;

    memset(&p, 0, sizeof p);
    if (policy != NULL) p = *policy;
    if (p.max_attempts == 0) p.max_attempts = 20;
    if (p.max_crashes == 0) p.max_crashes = 3;
    p.backoff = jobq_backoff_defaults(&p.backoff);
    return p;
}

JOBQ_API jobq_job jobq_job_new(int64_t id)
{
    jobq_job job;

    memset(&job, 0, sizeof job);
    job.id = id;
    job.stages = 1;
    job.state = JOBQ_STATE_READY;
    return job;
}

JOBQ_API bool jobq_job_holds(const jobq_job *job, int64_t worker, int64_t claim)
{
    return job->state == JOBQ_STATE_RUNNING && job->worker == worker && job->claim == claim;
}

JOBQ_API bool jobq_state_final(jobq_state state)
{
    return state == JOBQ_STATE_SUCCEEDED || state == JOBQ_STATE_FAILED ||
           state == JOBQ_STATE_CANCELLED;
}

JOBQ_API jobq_error jobq_job_check(const jobq_job *job)
{
    bool running, token;

    JOBQ_ASSERT(job != NULL);
    running = job->state == JOBQ_STATE_RUNNING;
    token = job->worker != 0 && job->claim > 0;
    if (job->stage < 0 || job->stage >= job->stages || job->stages > JOBQ_STAGES_MAX) {
        return JOBQ_ERROR_INVALID; /* law (1) */
    }
    if (running ? !token : job->worker != 0 || job->claim != 0) return JOBQ_ERROR_INVALID; /* (2) */
    if (running && job->attempt < 1)
        return JOBQ_ERROR_INVALID; /* (3) */
    if (job->attempt < 0 || job->crash < 0 || job->snoozes < 0)
        return JOBQ_ERROR_INVALID; /* (4) */
    if (job->cancel_requested && !running)
        return JOBQ_ERROR_INVALID; /* (5) */
    if (job->alone && !job->suspect) return JOBQ_ERROR_INVALID; /* (6) */
    if (job->priority < JOBQ_PRIORITY_MIN || job->priority > JOBQ_PRIORITY_MAX)
        return JOBQ_ERROR_INVALID;
    return job->state > JOBQ_STATE_NONE && job->state < JOBQ_STATE_COUNT ? JOBQ_OK
                                                                         : JOBQ_ERROR_INVALID;
}

/* A decision that ends the run and changes nothing else. */
static jobq_decision jobq__end(const jobq_job *job, jobq_state state)
{
    jobq_decision d;

    memset(&d, 0, sizeof d);
    d.state = state;
    d.attempt = job->attempt;
    d.crash = job->crash;
    d.snoozes = job->snoozes;
    d.stage = job->stage;
    d.keep_run_at = true;
    return d;
}

/* A decision that puts the job back. By law (7) a job with a cancel request is cancelled
 * instead. */
static jobq_decision jobq__put_back(const jobq_job *job, int64_t delay_us)
{
    jobq_decision d =
        jobq__end(job, job->cancel_requested ? JOBQ_STATE_CANCELLED : JOBQ_STATE_READY);

    d.keep_run_at = d.state != JOBQ_STATE_READY;
    d.delay_us = d.keep_run_at ? 0 : delay_us;
    return d;
}

static jobq_decision jobq__on_claim(const jobq_job *job, const jobq_event *event)
{
    jobq_decision d = jobq__end(job, JOBQ_STATE_RUNNING);

    d.worker = event->worker;
    d.claim = event->claim;
    d.attempt = job->attempt < INT32_MAX ? job->attempt + 1 : INT32_MAX;
    d.suspect = job->suspect;
    d.alone = job->alone;
    return d;
}

static jobq_decision jobq__on_success(const jobq_policy *policy, const jobq_job *job)
{
    jobq_decision d;

    if (job->stage + 1 >= job->stages) return jobq__end(job, JOBQ_STATE_SUCCEEDED);
    d = jobq__put_back(job, 0);
    if (d.state != JOBQ_STATE_READY) return d;
    d.stage = (int16_t)(job->stage + 1);
    if (!policy->attempts_span_stages) d.attempt = 0;
    d.crash = 0;
    d.snoozes = 0;
    return d;
}

static int32_t jobq__max_attempts(const jobq_policy *policy, const jobq_job *job)
{
    return job->max_attempts > 0 ? job->max_attempts : policy->max_attempts;
}

static jobq_decision jobq__exhausted(const jobq_job *job, jobq_reason reason, int32_t limit)
{
    jobq_decision d = jobq__end(job, JOBQ_STATE_FAILED);

    d.reason = reason;
    d.limit = limit;
    return d;
}

static jobq_decision jobq__on_retry(const jobq_policy *policy, const jobq_job *job,
                                    const jobq_event *event)
{
    int32_t limit = jobq__max_attempts(policy, job);
    uint32_t n = job->attempt > 0 ? (uint32_t)(job->attempt - 1) : 0;

    if (job->cancel_requested) return jobq__put_back(job, 0);
    if (job->attempt >= limit) return jobq__exhausted(job, JOBQ_REASON_ATTEMPTS, limit);
    return jobq__put_back(job, event->delay_named
                                   ? event->delay_us
                                   : jobq_backoff_delay(&policy->backoff, n, event->random));
}

static jobq_decision jobq__on_snooze(const jobq_policy *policy, const jobq_job *job,
                                     const jobq_event *event)
{
    jobq_decision d =
        jobq__put_back(job, event->delay_named
                                ? event->delay_us
                                : jobq_backoff_delay(&policy->backoff, 0, event->random));

    if (d.state == JOBQ_STATE_READY && policy->snoozes_max > 0 &&
        job->snoozes >= policy->snoozes_max)
        return jobq__exhausted(job, JOBQ_REASON_SNOOZES, policy->snoozes_max);
    d.attempt = (int32_t)jobq__max(job->attempt - 1, 0);
    d.snoozes = job->snoozes < INT32_MAX ? job->snoozes + 1 : INT32_MAX;
    return d;
}

/* Its handler has named jobs whose ends it waits for. */
static jobq_decision jobq__on_wait(const jobq_job *job)
{
    jobq_decision d = jobq__put_back(job, 0);

    d.attempt = (int32_t)jobq__max(job->attempt - 1, 0);
    if (d.state == JOBQ_STATE_READY) d.state = JOBQ_STATE_WAITING;
    return d;
}

/* Release and park: as if the attempt had not happened; a suspect keeps its marks. */
static jobq_decision jobq__on_release(const jobq_job *job, int64_t delay_us)
{
    jobq_decision d = jobq__put_back(job, delay_us);

    d.attempt = (int32_t)jobq__max(job->attempt - 1, 0);
    d.suspect = job->suspect && d.state == JOBQ_STATE_READY;
    d.alone = job->alone && d.suspect;
    return d;
}

/* Law (6). */
static jobq_decision jobq__on_crash(const jobq_policy *policy, const jobq_job *job)
{
    jobq_decision d = jobq__put_back(job, 0);
    int32_t limit = jobq__max_attempts(policy, job);

    if (d.state != JOBQ_STATE_READY) return d;
    d.suspect = true;
    d.alone = job->suspect;
    if (!job->alone) { /* other jobs ran beside it */
        d.attempt = (int32_t)jobq__max(job->attempt - 1, 0);
        return d;
    }
    d.crash = job->crash < INT32_MAX ? job->crash + 1 : INT32_MAX;
    if (d.crash < policy->max_crashes && job->attempt < limit) return d;
    d = d.crash >= policy->max_crashes
            ? jobq__exhausted(job, JOBQ_REASON_CRASHES, policy->max_crashes)
            : jobq__exhausted(job, JOBQ_REASON_ATTEMPTS, limit);
    d.crash = job->crash < INT32_MAX ? job->crash + 1 : INT32_MAX;
    return d;
}

static jobq_decision jobq__on_cancel(const jobq_job *job)
{
    jobq_decision d = jobq__end(job, JOBQ_STATE_CANCELLED);

    if (job->state != JOBQ_STATE_RUNNING) return d;
    d.state = JOBQ_STATE_RUNNING;
    d.worker = job->worker;
    d.claim = job->claim;
    d.suspect = job->suspect;
    d.alone = job->alone;
    d.cancel_requested = true;
    return d;
}

/* Law (34). */
static jobq_decision jobq__on_expire(const jobq_job *job)
{
    jobq_decision d = jobq__end(job, JOBQ_STATE_CANCELLED);

    d.reason = JOBQ_REASON_EXPIRED;
    return d;
}

static jobq_decision jobq__on_revive(const jobq_job *job)
{
    jobq_decision d = jobq__put_back(job, 0);

    d.attempt = 0;
    d.crash = 0;
    d.snoozes = 0;
    return d;
}

/* Whether an event applies in a state. */
static bool jobq__applies(jobq_state state, jobq_event_kind event)
{
    switch (event) {
    case JOBQ_EVENT_CLAIM:
    case JOBQ_EVENT_EXPIRE: return state == JOBQ_STATE_READY;
    case JOBQ_EVENT_CANCEL: return state != JOBQ_STATE_NONE && !jobq_state_final(state);
    case JOBQ_EVENT_REVIVE: return state == JOBQ_STATE_FAILED;
    case JOBQ_EVENT_READY: return state == JOBQ_STATE_WAITING;
    case JOBQ_EVENT_SUCCESS:
    case JOBQ_EVENT_RETRY:
    case JOBQ_EVENT_TIMEOUT:
    case JOBQ_EVENT_DISCARD:
    case JOBQ_EVENT_SNOOZE:
    case JOBQ_EVENT_CANCELLED:
    case JOBQ_EVENT_RELEASE:
    case JOBQ_EVENT_PARK:
    case JOBQ_EVENT_WAIT:
    case JOBQ_EVENT_CRASH: return state == JOBQ_STATE_RUNNING;
    case JOBQ_EVENT_NONE:
    case JOBQ_EVENT_COUNT: break;
    }
    return false;
}

static jobq_decision jobq__decide(const jobq_policy *policy, const jobq_job *job,
                                  const jobq_event *event)
{
    switch (event->kind) {
    case JOBQ_EVENT_CLAIM: return jobq__on_claim(job, event);
    case JOBQ_EVENT_SUCCESS: return jobq__on_success(policy, job);
    case JOBQ_EVENT_RETRY:
    case JOBQ_EVENT_TIMEOUT: return jobq__on_retry(policy, job, event);
    case JOBQ_EVENT_DISCARD: return jobq__end(job, JOBQ_STATE_FAILED);
    case JOBQ_EVENT_SNOOZE: return jobq__on_snooze(policy, job, event);
    case JOBQ_EVENT_CANCELLED: return jobq__end(job, JOBQ_STATE_CANCELLED);
    case JOBQ_EVENT_RELEASE: return jobq__on_release(job, 0);
    case JOBQ_EVENT_PARK: return jobq__on_release(job, JOBQ_NEVER);
    case JOBQ_EVENT_CRASH: return jobq__on_crash(policy, job);
    case JOBQ_EVENT_CANCEL: return jobq__on_cancel(job);
    case JOBQ_EVENT_READY: return jobq__put_back(job, event->delay_us);
    case JOBQ_EVENT_WAIT: return jobq__on_wait(job);
    case JOBQ_EVENT_EXPIRE: return jobq__on_expire(job);
    case JOBQ_EVENT_REVIVE:
    case JOBQ_EVENT_NONE:
    case JOBQ_EVENT_COUNT: break;
    }
    return jobq__on_revive(job);
}

JOBQ_API jobq_error jobq_job_decide(const jobq_policy *policy, const jobq_job *job,
                                    const jobq_event *event, jobq_decision *decision)
{
    JOBQ_ASSERT(policy != NULL && job != NULL && event != NULL && decision != NULL);
    if (!jobq__applies(job->state, event->kind)) return JOBQ_ERROR_TRANSITION;
    if (event->kind == JOBQ_EVENT_CLAIM && (event->worker == 0 || event->claim <= 0)) {
        return JOBQ_ERROR_INVALID;
    }
    if (event->delay_us < 0) return JOBQ_ERROR_INVALID;
    *decision = jobq__decide(policy, job, event);
    return JOBQ_OK;
}

JOBQ_API void jobq_job_apply(jobq_job *job, const jobq_decision *decision, int64_t now_us)
{
    JOBQ_ASSERT(job != NULL && decision != NULL);
    job->state = decision->state;
    job->worker = decision->worker;
    job->claim = decision->claim;
    job->stage = decision->stage;
    job->attempt = decision->attempt;
    job->crash = decision->crash;
    job->snoozes = decision->snoozes;
    job->suspect = decision->suspect;
    job->alone = decision->alone;
    job->cancel_requested = decision->cancel_requested;
    if (!decision->keep_run_at) job->run_at_us = jobq__add(now_us, decision->delay_us);
    JOBQ_ASSERT(jobq_job_check(job) == JOBQ_OK);
}

static void jobq__put_number(jobq__text *t, int64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    uint64_t rest = (uint64_t)value;
    jobq_str s;

    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    s.ptr = digits + at;
    s.len = sizeof digits - at;
    jobq__put(t, s);
}

JOBQ_API size_t jobq_reason_format(char *out, const jobq_decision *decision, jobq_str message)
{
    static const char *const limits[] = {"", "retries", "crashes", "snoozes"}; /* by reason */
    jobq__text t = {NULL, JOBQ_ERROR_MAX + 1, 0, false};

    JOBQ_ASSERT(out != NULL && decision != NULL);
    t.out = out;
    if (decision->reason == JOBQ_REASON_EXPIRED) {
        jobq__put(&t, jobq_str_from("expired: it had not begun in time"));
    } else if (decision->reason != JOBQ_REASON_NONE) {
        jobq__put(&t, jobq_str_from("Max "));
        jobq__put(&t, jobq_str_from(limits[decision->reason]));
        jobq__put(&t, jobq_str_from(" ("));
        jobq__put_number(&t, decision->limit);
        jobq__put(&t, jobq_str_from(") exceeded: "));
    }
    return t.at + jobq_utf8_mend(out + t.at, JOBQ_ERROR_MAX - t.at, message);
}

JOBQ_API jobq_error jobq_status_format(char *out, size_t size, const char *const *stage_names,
                                       int count, int stage, jobq_state state)
{
    jobq__text t = {NULL, 0, 0, false};

    JOBQ_ASSERT(out != NULL && stage_names != NULL);
    if (stage < 0 || stage >= count) return JOBQ_ERROR_INVALID;
    t.out = out;
    t.size = size;
    switch (state) {
    case JOBQ_STATE_READY:
    case JOBQ_STATE_WAITING:
        if (stage > 0) jobq__put(&t, jobq_str_from(stage_names[stage - 1]));
        jobq__put(&t, jobq_str_from(stage > 0 ? "_COMPLETE" : "PENDING"));
        break;
    case JOBQ_STATE_RUNNING:
        jobq__put(&t, jobq_str_from(stage_names[stage]));
        jobq__put(&t, jobq_str_from("_IN_PROGRESS"));
        break;
    case JOBQ_STATE_SUCCEEDED: jobq__put(&t, jobq_str_from("SUCCEEDED")); break;
    case JOBQ_STATE_FAILED: jobq__put(&t, jobq_str_from("FAILED")); break;
    case JOBQ_STATE_CANCELLED: jobq__put(&t, jobq_str_from("CANCELLED")); break;
    case JOBQ_STATE_NONE:
    case JOBQ_STATE_COUNT: return JOBQ_ERROR_INVALID;
    }
    return t.full ? JOBQ_ERROR_FULL : JOBQ_OK;
}

JOBQ_API jobq_error jobq_status_from(jobq_str word, const char *const *stage_names, int count,
                                     int *stage, jobq_state *state)
{
    static const jobq_state states[] = {JOBQ_STATE_READY, JOBQ_STATE_RUNNING, JOBQ_STATE_SUCCEEDED,
                                        JOBQ_STATE_FAILED, JOBQ_STATE_CANCELLED};
    char buffer[JOBQ_NAME_MAX];
    int s;
    size_t i;

    JOBQ_ASSERT(stage_names != NULL && stage != NULL && state != NULL);
    for (s = 0; s < count; s++) {
        for (i = 0; i < sizeof states / sizeof states[0]; i++) {
            if (jobq_status_format(buffer, sizeof buffer, stage_names, count, s, states[i]) !=
                    JOBQ_OK ||
                !jobq_str_equal(word, jobq_str_from(buffer))) {
                continue;
            }
            *state = states[i];
            *stage = jobq_state_final(states[i]) ? count - 1 : s;
            return JOBQ_OK;
        }
    }
    return JOBQ_ERROR_INVALID;
}

JOBQ_API void jobq_call_error(jobq_call *call, jobq_str text)
{
    JOBQ_ASSERT(call != NULL);
    call->error_size = jobq_utf8_mend(call->error, JOBQ_ERROR_MAX, text);
}

#define JOBQ__DELAY_MAX JOBQ_DAYS(365250) /* from now on it is within a database's range of time */

JOBQ_API void jobq_call_delay(jobq_call *call, int64_t delay_us)
{
    JOBQ_ASSERT(call != NULL);
    call->delay_us = jobq__min(jobq__max(delay_us, 0), JOBQ__DELAY_MAX);
    call->delay_named = true;
}

JOBQ_API jobq_error jobq_call_hold(jobq_call *call, jobq_hold what, int64_t delay_us, jobq_str why)
{
    char text[JOBQ_NAME_MAX + 1];

    JOBQ_ASSERT(call != NULL && (what == JOBQ_HOLD_LINE || what == JOBQ_HOLD_QUEUE));
    if (call->store == NULL || call->store->hold == NULL) return JOBQ_OK;
    jobq_utf8_mend(text, JOBQ_NAME_MAX, why);
    return call->store->hold(call, what, jobq__max(delay_us, 0), text);
}

static bool jobq__step_name(const char *name)
{
    return name[0] != '\0' && strlen(name) <= JOBQ_NAME_MAX && jobq_utf8_valid(jobq_str_from(name));
}

JOBQ_API jobq_error jobq_call_step(jobq_call *call, const char *name, jobq_str *value)
{
    jobq_str none;

    JOBQ_ASSERT(call != NULL && name != NULL);
    if (value == NULL) value = &none;
    *value = jobq_str_from(NULL);
    if (!jobq__step_name(name)) return JOBQ_ERROR_INVALID;
    if (call->store == NULL || call->store->step == NULL) return JOBQ_ERROR_NOT_FOUND;
    return call->store->step(call, name, NULL, value);
}

JOBQ_API jobq_error jobq_call_step_done(jobq_call *call, const char *name, jobq_str value)
{
    JOBQ_ASSERT(call != NULL && name != NULL);
    if (!jobq__step_name(name) ||
        (value.ptr != NULL && jobq_json_check(value, NULL, NULL) != JOBQ_OK))
        return JOBQ_ERROR_INVALID;
    if (call->store == NULL || call->store->step == NULL) return JOBQ_OK;
    return call->store->step(call, name, &value, NULL);
}

JOBQ_API jobq_error jobq_call_signal(jobq_call *call, const char *name, int64_t timeout_us,
                                     jobq_str *payload)
{
    jobq_str none;

    JOBQ_ASSERT(call != NULL && name != NULL);
    if (payload == NULL) payload = &none;
    *payload = jobq_str_from(NULL);
    if (!jobq__step_name(name)) return JOBQ_ERROR_INVALID;
    if (call->store == NULL || call->store->signal == NULL) return JOBQ_ERROR_NOT_FOUND;
    timeout_us = jobq__max(jobq__min(timeout_us, JOBQ__DELAY_MAX), 0);
    return call->store->signal(call, name, timeout_us, payload);
}

JOBQ_API jobq_error jobq_call_progress(jobq_call *call, int permille, jobq_str note, bool now)
{
    char text[JOBQ_NOTE_MAX + 1];

    JOBQ_ASSERT(call != NULL);
    if (call->store == NULL || call->store->progress == NULL) return JOBQ_OK;
    permille = (int)jobq__max(jobq__min(permille, 1000), 0);
    jobq_utf8_mend(text, JOBQ_NOTE_MAX, note);
    return call->store->progress(call, permille, text, now);
}

JOBQ_API void jobq_call_log(jobq_call *call, jobq_level level, jobq_str text)
{
    char kept[JOBQ_LOG_LINE_MAX + 1];
    jobq_str line = {kept, 0};

    JOBQ_ASSERT(call != NULL && (int)level >= JOBQ_LEVEL_DEBUG && level <= JOBQ_LEVEL_ERROR);
    if (call->store == NULL || call->store->log == NULL) return;
    line.len = jobq_utf8_mend(kept, JOBQ_LOG_LINE_MAX, text);
    call->store->log(call, level, line);
}

/* Of as many digits as width. */
static void jobq__put_digits(jobq__text *t, int64_t value, int width)
{
    char digits[20];
    jobq_str s = {digits, (size_t)width};

    for (; width > 0; value /= 10) digits[--width] = (char)('0' + value % 10);
    jobq__put(t, s);
}

/* A time in UTC as ISO 8601 has it. */
static void jobq__put_time(jobq__text *t, int64_t us)
{
    int64_t days = jobq__floor_div(us, JOBQ_DAYS(1)), rest = us - days * JOBQ_DAYS(1), year;
    int month, day;

    jobq__date_of(days, &year, &month, &day);
    jobq__put_digits(t, year, 4);
    jobq__put(t, jobq_str_from("-"));
    jobq__put_digits(t, month, 2);
    jobq__put(t, jobq_str_from("-"));
    jobq__put_digits(t, day, 2);
    jobq__put(t, jobq_str_from("T"));
    jobq__put_digits(t, rest / JOBQ_HOURS(1), 2);
    jobq__put(t, jobq_str_from(":"));
    jobq__put_digits(t, rest / JOBQ_MINUTES(1) % 60, 2);
    jobq__put(t, jobq_str_from(":"));
    jobq__put_digits(t, rest / JOBQ_SECONDS(1) % 60, 2);
    jobq__put(t, jobq_str_from("."));
    jobq__put_digits(t, rest % JOBQ_SECONDS(1), 6);
    jobq__put(t, jobq_str_from("Z"));
}

/* Where the first line ends. */
static size_t jobq__log_first(const jobq_log *log)
{
    return (size_t)((const char *)memchr(log->lines, '\n', log->size) - log->lines) + 1;
}

JOBQ_API void jobq_log_add(jobq_log *log, int64_t at_us, jobq_level level, jobq_str text)
{
    char line[JOBQ_LOG_LINE_MAX * 6 + 100];
    jobq__text t = {line, sizeof line, 0, false};

    JOBQ_ASSERT(log != NULL);
    jobq__put(&t, jobq_str_from("[\""));
    jobq__put_time(&t, at_us);
    jobq__put(&t, jobq_str_from("\",\""));
    jobq__put(&t, jobq_str_from(jobq_enum_name(JOBQ_ENUM_LEVEL, (int64_t)level)));
    jobq__put(&t, jobq_str_from("\","));
    text = jobq_utf8_cut(text, JOBQ_LOG_LINE_MAX);
    t.at += jobq_json_quote(line + t.at, sizeof line - t.at, text);
    jobq__put(&t, jobq_str_from("],\n"));
    while (log->size + t.at > sizeof log->lines) {
        size_t first = jobq__log_first(log);
        log->size -= first;
        memmove(log->lines, log->lines + first, log->size);
        log->dropped++;
    }
    memcpy(log->lines + log->size, line, t.at);
    log->size += t.at;
}

JOBQ_API size_t jobq_log_format(char *out, const jobq_log *log)
{
    jobq__text t = {out, JOBQ_LOG_FORMAT_MAX, 0, false};
    jobq_str lines;

    JOBQ_ASSERT(out != NULL && log != NULL);
    out[0] = '\0';
    if (log->size == 0) return 0;
    lines.ptr = log->lines;
    lines.len = log->size - 2;
    jobq__put(&t, jobq_str_from("["));
    if (log->dropped > 0) { /* with the time of the first line */
        jobq_str time = {log->lines, 0};
        time.len = (size_t)((const char *)memchr(log->lines, ',', log->size) - log->lines) + 1;
        jobq__put(&t, time);
        jobq__put(&t, jobq_str_from("\"warning\",\""));
        jobq__put_number(&t, log->dropped);
        jobq__put(&t, jobq_str_from(" lines dropped\"],\n"));
    }
    jobq__put(&t, lines);
    jobq__put(&t, jobq_str_from("]"));
    return t.at;
}

JOBQ_API bool jobq_call_result(jobq_call *call, jobq_str result, bool bytes)
{
    JOBQ_ASSERT(call != NULL);
    if (!bytes && jobq_json_check(result, NULL, NULL) != JOBQ_OK) return false;
    return call->store == NULL || call->store->keep(call, result, bytes);
}

static jobq_stop jobq__call_asks(const jobq_call *call, int64_t *remaining_us)
{
    JOBQ_ASSERT(call != NULL);
    *remaining_us = JOBQ_NEVER;
    if (call->store == NULL) return JOBQ_STOP_NONE;
    return (jobq_stop)call->store->stopping(call, remaining_us);
}

JOBQ_API jobq_stop jobq_call_stopping(const jobq_call *call, int64_t *left_us)
{
    int64_t remaining_us;

    return jobq__call_asks(call, left_us == NULL ? &remaining_us : left_us);
}

JOBQ_API jobq_outcome jobq_call_run(jobq_call *call, jobq_handler handler)
{
    jobq_outcome outcome = JOBQ_OUTCOME_RETRY;

    JOBQ_ASSERT(call != NULL && handler != NULL);
    JOBQ__TRY { outcome = handler(call); }
    JOBQ__CATCH(jobq_call_error, call)
    return outcome;
}

typedef struct jobq__fellows {
    jobq_call *const *calls;
    int32_t count;
} jobq__fellows;

static void jobq__fellows_error(const jobq__fellows *b, jobq_str text)
{
    int32_t i;

    for (i = 0; i < b->count; i++)
        if (b->calls[i]->outcome == JOBQ_OUTCOME_NONE) jobq_call_error(b->calls[i], text);
}

JOBQ_API void jobq_calls_run(jobq_call *const *calls, int32_t count, jobq_jobs_handler handler)
{
    jobq_outcome others = JOBQ_OUTCOME_RETRY;
    jobq__fellows batch = {calls, count};
    int32_t i;

    (void)jobq__fellows_error; /* only C++ uses it */
    JOBQ_ASSERT(calls != NULL && count > 0 && handler != NULL);
    for (i = 0; i < count; i++) calls[i]->outcome = JOBQ_OUTCOME_NONE;
    JOBQ__TRY { others = handler(calls, count); }
    JOBQ__CATCH(jobq__fellows_error, &batch)
    for (i = 0; i < batch.count; i++)
        if (calls[i]->outcome == JOBQ_OUTCOME_NONE) calls[i]->outcome = others;
}

#ifndef JOBQ_NO_TEST
/* Whether a batch's own transaction completes this job, see jobq_pg_call_commit_all. */
static bool jobq__completes(const jobq_call *call)
{
    return call->outcome == JOBQ_OUTCOME_NONE || call->outcome == JOBQ_OUTCOME_SUCCESS;
}
#endif

JOBQ_API size_t jobq_call_reason(char *out, const jobq_call *call, jobq_outcome outcome,
                                 const jobq_decision *decision)
{
    static const char *const unsaid[JOBQ_OUTCOME_COUNT] = {
        "the handler returned no outcome", NULL, "retry", "discarded", "snooze", NULL, NULL,
        "the handler said done, but its transaction did not complete the job"};
    jobq_str message;

    JOBQ_ASSERT(call != NULL);
    message.ptr = call->error;
    message.len = call->error_size;
    if ((int)outcome < 0 || outcome >= JOBQ_OUTCOME_COUNT) outcome = JOBQ_OUTCOME_NONE;
    if (message.len == 0 && (outcome != JOBQ_OUTCOME_SNOOZE || decision->reason != 0))
        message = jobq_str_from(unsaid[outcome]);
    if (message.len == 0 || outcome == JOBQ_OUTCOME_SUCCESS) return 0;
    return jobq_reason_format(out, decision, message);
}

/* Whether a job that waits for one of these ends may run after this one. ended: a final state. */
static bool jobq__end_serves(jobq_on_end on_end, jobq_state ended)
{
    JOBQ_ASSERT(jobq_state_final(ended));
    return on_end == JOBQ_ON_ANY || (on_end == JOBQ_ON_SUCCESS) == (ended == JOBQ_STATE_SUCCEEDED);
}

/* ---- >>partition ----------------------------------------------------------------------------- */

static uint32_t jobq__u32_min(uint32_t a, uint32_t b) { return a < b ? a : b; }

JOBQ_API uint32_t jobq_partition_size(const jobq_partition_mode *mode, uint32_t configured)
{
    JOBQ_ASSERT(mode != NULL);
    if (configured == 0) configured = 1;
    if (mode->state == JOBQ_PARTITION_NORMAL) return configured;
    return mode->effective == 0 ? 1 : jobq__u32_min(mode->effective, configured);
}

static jobq_partition_mode jobq__degraded(uint32_t configured, uint32_t processed,
                                          uint32_t failures)
{
    jobq_partition_mode mode = {JOBQ_PARTITION_DEGRADED, 1, 0, 0};

    if (processed != JOBQ_COUNT_UNKNOWN && processed > 1) {
        mode.effective = jobq__u32_min(processed, configured);
    }
    mode.failures = failures;
    return mode;
}

JOBQ_API jobq_partition_mode jobq_partition_next(jobq_partition_mode mode, jobq_result result,
                                                 uint32_t configured, uint32_t processed,
                                                 uint32_t threshold)
{
    static const jobq_partition_mode normal = {JOBQ_PARTITION_NORMAL, 0, 0, 0};

    if (configured == 0) configured = 1;
    if (result == JOBQ_RESULT_REJECT) return jobq__degraded(configured, processed, 0);
    if (result == JOBQ_RESULT_RETRY || result == JOBQ_RESULT_NONE) {
        if (mode.failures < UINT32_MAX) mode.failures++;
        return mode.failures < threshold ? mode
                                         : jobq__degraded(configured, processed, mode.failures);
    }
    if (mode.state == JOBQ_PARTITION_NORMAL || mode.effective >= configured - configured / 2)
        return normal;
    mode.effective = mode.effective == 0 ? 2 : mode.effective * 2;
    if (mode.effective >= configured) return normal;
    if (mode.successes < UINT32_MAX) mode.successes++;
    mode.failures = 0;
    return mode;
}

JOBQ_API int64_t jobq_partition_backoff(const jobq_backoff *backoff, uint32_t failures,
                                        uint64_t random)
{
    return jobq_backoff_delay(backoff, failures == 0 ? 0 : failures - 1, random);
}

JOBQ_API jobq_directive jobq_partition_directive(const jobq_partition_mode *mode,
                                                 jobq_result result, uint32_t count, uint32_t size,
                                                 const jobq_backoff *backoff, uint64_t random)
{
    jobq_directive d = {JOBQ_DIRECTIVE_IDLE, 0};

    JOBQ_ASSERT(mode != NULL);
    if (count == 0) return d;
    if (result == JOBQ_RESULT_RETRY || result == JOBQ_RESULT_NONE) {
        d.kind = JOBQ_DIRECTIVE_SLEEP;
        d.delay_us = jobq_partition_backoff(backoff, mode->failures, random);
    } else if (result == JOBQ_RESULT_REJECT || count >= size) {
        d.kind = JOBQ_DIRECTIVE_PROCEED;
    }
    return d;
}

/* ---- >>outbox -------------------------------------------------------------------------------- */

#define JOBQ__MINUTE (60 * JOBQ__SECOND)

/* The fields of jobq_tuning, times in ms. base and cap are those of the retry backoff. */
typedef struct jobq__profile_row {
    int32_t batch;
    uint32_t threshold;
    int32_t min, active, ramp, idle, base, cap;
    int32_t lease, headroom, budget;
} jobq__profile_row;

#define JOBQ__SEED_LEASE 30000, 2000, 28000

static const jobq__profile_row jobq__profiles[JOBQ_PROFILE_COUNT][JOBQ_ROLE_COUNT] = {
    {{100, 2, 0, 0, 0, 600000, 1000, 60000, 6000, 1000, 30000},
     {1000, 1, 0, 0, 0, 600000, 100, 30000, JOBQ__SEED_LEASE},
     {10000, 1, 1000, 1000, 0, 3600000, 1000, 60000, JOBQ__SEED_LEASE},
     {1, 1, 1000, 1000, 0, 60000, 1000, 60000, JOBQ__SEED_LEASE}},
    {{10, 2, 100, 500, 50, 600000, 1000, 60000, JOBQ__SEED_LEASE},
     {1000, 1, 100, 500, 50, 600000, 100, 30000, JOBQ__SEED_LEASE},
     {10000, 1, 1000, 1000, 0, 3600000, 1000, 60000, JOBQ__SEED_LEASE},
     {1, 1, 1000, 1000, 0, 60000, 1000, 60000, JOBQ__SEED_LEASE}},
    {{10, 3, 1, 2, 1, 60000, 100, 10000, JOBQ__SEED_LEASE},
     {500, 1, 0, 1, 0, 60000, 100, 30000, JOBQ__SEED_LEASE},
     {10000, 1, 1000, 1000, 0, 3600000, 1000, 60000, JOBQ__SEED_LEASE},
     {1, 1, 1000, 1000, 0, 30000, 1000, 60000, JOBQ__SEED_LEASE}},
    {{100, 2, 1, 20, 2, 600000, 1000, 60000, JOBQ__SEED_LEASE},
     {2000, 1, 10, 100, 10, 600000, 100, 30000, JOBQ__SEED_LEASE},
     {10000, 1, 1000, 1000, 0, 3600000, 1000, 60000, JOBQ__SEED_LEASE},
     {1, 1, 1000, 1000, 0, 60000, 1000, 60000, JOBQ__SEED_LEASE}},
    {{10, 1, 100, 500, 50, 600000, 5000, 300000, JOBQ__SEED_LEASE},
     {1000, 1, 100, 500, 100, 600000, 100, 30000, JOBQ__SEED_LEASE},
     {10000, 1, 1000, 1000, 0, 3600000, 1000, 60000, JOBQ__SEED_LEASE},
     {1, 1, 1000, 1000, 0, 120000, 1000, 60000, JOBQ__SEED_LEASE}},
};

JOBQ_API jobq_tuning jobq_tuning_of(jobq_profile profile, jobq_role role)
{
    const jobq__profile_row *p;
    jobq_tuning t;

    JOBQ_ASSERT(profile < JOBQ_PROFILE_COUNT && role < JOBQ_ROLE_COUNT);
    p = &jobq__profiles[profile][role];
    memset(&t, 0, sizeof t);
    t.batch = p->batch;
    t.threshold = p->threshold;
    t.min_us = (int64_t)p->min * 1000;
    t.active_us = (int64_t)p->active * 1000;
    t.ramp_us = (int64_t)p->ramp * 1000;
    t.idle_us = (int64_t)p->idle * 1000;
    t.retry.base_us = (int64_t)p->base * 1000;
    t.retry.cap_us = (int64_t)p->cap * 1000;
    t.retry.jitter_permille = 250;
    t.lease_us = (int64_t)p->lease * 1000;
    t.headroom_us = (int64_t)p->headroom * 1000;
    t.budget_us = (int64_t)p->budget * 1000;
    return t;
}

JOBQ_API jobq_tuning jobq_tuning_defaults(const jobq_tuning *tuning)
{
    jobq_tuning base = jobq_tuning_of(JOBQ_PROFILE_QUICK, JOBQ_ROLE_PROCESSOR), t = base;

    if (tuning != NULL) t = *tuning;
    if (t.batch == 0) t.batch = base.batch;
    if (t.threshold == 0) t.threshold = base.threshold;
    if (t.idle_us == 0) t.idle_us = jobq__max(base.idle_us, t.active_us);
    if (t.retry.base_us == 0) t.retry = base.retry;
    if (t.lease_us == 0) t.lease_us = base.lease_us;
    if (t.headroom_us == 0) t.headroom_us = t.lease_us / 6;
    if (t.budget_us == 0) t.budget_us = base.budget_us;
    return t;
}

JOBQ_API jobq_error jobq_tuning_check(const jobq_tuning *t)
{
    JOBQ_ASSERT(t != NULL);
    if (t->batch < 1 || t->threshold < 1 || t->min_us < 0 || t->ramp_us < 0 ||
        t->min_us > t->active_us || t->active_us > t->idle_us) {
        return JOBQ_ERROR_INVALID;
    }
    if (t->lease_us < 1 || t->headroom_us < 0 || t->headroom_us >= t->lease_us ||
        t->budget_us < 1 || t->retry.base_us < 1 || t->retry.base_us > t->retry.cap_us) {
        return JOBQ_ERROR_INVALID;
    }
    return jobq_backoff_check(&t->retry);
}

/* How long to wait after a directive; updates the pace, which is active_us at first. Proceed waits
 * for the pace, and then lowers it by ramp_us, down to min_us. Idle waits idle_us and Sleep its
 * delay; a notification ends both early, and both set the pace back to active_us. */
static int64_t jobq__pace_wait(const jobq_tuning *t, int64_t *pace_us, jobq_directive directive)
{
    int64_t wait = *pace_us;

    if (directive.kind == JOBQ_DIRECTIVE_PROCEED) {
        *pace_us = jobq__max(wait - t->ramp_us, t->min_us);
        return wait;
    }
    *pace_us = t->active_us;
    return directive.kind == JOBQ_DIRECTIVE_SLEEP ? directive.delay_us : t->idle_us;
}

/* -- a key's partition: SHA-256 (FIPS 180-4) -- */

static const uint32_t jobq__sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t jobq__rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* Hashes one block of 64 bytes. */
static void jobq__sha_block(uint32_t *h, const unsigned char *p)
{
    uint32_t w[64], v[8];
    int i;

    for (i = 0; i < 16; i++, p += 4) {
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (jobq__rotr(a, 7) ^ jobq__rotr(a, 18) ^ a >> 3) + w[i - 7] +
               (jobq__rotr(b, 17) ^ jobq__rotr(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t1 = v[7] + (jobq__rotr(e, 6) ^ jobq__rotr(e, 11) ^ jobq__rotr(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + jobq__sha_k[i] + w[i];
        uint32_t t2 = (jobq__rotr(a, 2) ^ jobq__rotr(a, 13) ^ jobq__rotr(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[0] = t1 + t2;
        v[4] += t1;
    }
    for (i = 0; i < 8; i++) h[i] += v[i];
}

static void jobq__sha(jobq_str key, uint32_t *h)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char tail[128];
    const unsigned char *p = (const unsigned char *)key.ptr;
    size_t rest, size, i;

    memcpy(h, start, sizeof start);
    for (rest = key.len; rest >= 64; rest -= 64, p += 64) jobq__sha_block(h, p);
    memset(tail, 0, sizeof tail);
    if (rest > 0) memcpy(tail, p, rest);
    tail[rest] = 0x80;
    size = rest < 56 ? 64 : 128;
    for (i = 0; i < 8; i++) {
        tail[size - 1 - i] = (unsigned char)((uint64_t)key.len * 8 >> 8 * i & 0xff);
    }
    jobq__sha_block(h, tail);
    if (size == 128) jobq__sha_block(h, tail + 64);
}

JOBQ_API uint32_t jobq_partition_of(jobq_str key, uint32_t partitions)
{
    uint32_t h[8];

    JOBQ_ASSERT(partitions >= 1 && partitions <= 65536 && (partitions & (partitions - 1)) == 0);
    jobq__sha(key, h);
    return h[0] >> 16 & (partitions - 1);
}

JOBQ_API int32_t jobq_schema_of(jobq_str key, int32_t count)
{
    uint32_t h[8];
    uint64_t bits;
    int64_t at = 0, next = 0;

    JOBQ_ASSERT(count >= 1 && count <= 65536);
    jobq__sha(key, h);
    bits = (uint64_t)h[2] << 32 | h[3];
    while (next < count) {
        at = next;
        bits = bits * 2862933555777941757u + 1;
        next = (at + 1) * ((int64_t)1 << 31) / ((int64_t)(bits >> 33) + 1);
    }
    return (int32_t)at;
}

/* -- the cursor -- */

JOBQ_API int32_t jobq_cursor_attempts(const jobq_cursor *c, int64_t seq)
{
    int32_t n = 0;

    JOBQ_ASSERT(c != NULL);
    while (n < c->tried_count && c->tried[n] >= seq) n++;
    return n;
}

/* Adds a delivery that ends at seq last. */
static void jobq__cursor_deliver(jobq_cursor *c, int64_t last)
{
    int32_t at = jobq_cursor_attempts(c, last);

    if (at == JOBQ_TRIED_MAX) return;
    if (c->tried_count == JOBQ_TRIED_MAX) c->tried_count--;
    memmove(c->tried + at + 1, c->tried + at, (size_t)(c->tried_count - at) * sizeof c->tried[0]);
    c->tried[at] = last;
    c->tried_count++;
}

/* Removes one. */
static void jobq__cursor_undo(jobq_cursor *c, int64_t last)
{
    int32_t at = jobq_cursor_attempts(c, last);

    if (at == 0 || c->tried[at - 1] != last) return;
    c->tried_count--;
    memmove(c->tried + at - 1, c->tried + at,
            (size_t)(c->tried_count - at + 1) * sizeof c->tried[0]);
    c->tried[c->tried_count] = 0;
}

JOBQ_API jobq_error jobq_cursor_check(const jobq_cursor *c)
{
    int32_t i;

    JOBQ_ASSERT(c != NULL);
    if (c->acked < 0 || c->tried_count < 0 || c->tried_count > JOBQ_TRIED_MAX) {
        return JOBQ_ERROR_INVALID;
    }
    for (i = 0; i < c->tried_count; i++) {
        if (c->tried[i] <= c->acked || (i > 0 && c->tried[i] > c->tried[i - 1])) {
            return JOBQ_ERROR_INVALID;
        }
    }
    return JOBQ_OK;
}

/* How many messages to read: batch, or fewer in mode Degraded. lost: the last seq of the delivery
 * whose holder died, and the size is 1 then; 0: none. */
static int32_t jobq__cursor_size(const jobq_cursor *c, int32_t batch, int64_t lost)
{
    return lost > 0 ? 1 : (int32_t)jobq_partition_size(&c->mode, (uint32_t)batch);
}

/* -- the plan of an acknowledgement -- */

static int32_t jobq__tries(const jobq_policy *policy)
{
    return jobq_policy_defaults(policy).max_attempts;
}

/* Before the handler: how many of the messages read it gets. Fills their results: NONE for those,
 * LEFT for the others. If the first message is at its limit, the handler gets it alone. But if the
 * lost delivery held nothing else, that message kills its workers: then the answer is 0, and it
 * becomes EXCEEDED without being delivered. */
static int32_t jobq__outbox_open(const jobq_policy *policy, const jobq_cursor *cursor,
                                 int64_t lost, int32_t count, uint8_t *results)
{
    int64_t first = cursor->acked + 1;
    int32_t given = count;

    if (jobq_cursor_attempts(cursor, first) >= jobq__tries(policy)) given = lost == first ? 0 : 1;
    memset(results, JOBQ_RESULT_NONE, (size_t)given);
    memset(results + given, JOBQ_RESULT_LEFT, (size_t)(count - given));
    if (given == 0) results[0] = JOBQ_RESULT_EXCEEDED;
    return given;
}

/* The number of messages up to the last one that a handler handled. */
static int32_t jobq__handled_count(const uint8_t *results, int32_t count)
{
    while (count > 0 && (results[count - 1] == JOBQ_RESULT_LEFT ||
                         results[count - 1] == JOBQ_RESULT_EXCEEDED)) {
        count--;
    }
    return count;
}

/* Walks over the messages that leave the partition. A retry at the limit leaves too, unless it is
 * not known which message of the batch failed. */
static void jobq__plan_walk(const jobq_policy *policy, const jobq_cursor *cursor, bool group,
                            int32_t count, uint8_t *results, jobq_plan *plan)
{
    int32_t i;

    for (i = 0; i < count; i++) {
        int32_t attempts = jobq_cursor_attempts(cursor, cursor->acked + 1 + i);
        JOBQ_ASSERT(results[i] != JOBQ_RESULT_NONE);
        if (results[i] == JOBQ_RESULT_RETRY && !group && attempts + 1 >= jobq__tries(policy)) {
            results[i] = JOBQ_RESULT_EXCEEDED;
        }
        if (results[i] == JOBQ_RESULT_RETRY || results[i] == JOBQ_RESULT_LEFT) break;
        plan->dead += results[i] != JOBQ_RESULT_SUCCESS;
    }
    plan->done = i;
    plan->failed = i < count && results[i] == JOBQ_RESULT_RETRY ? i : -1;
}

/* Counts this delivery for the messages that were handled. Messages that are done need no count. */
static void jobq__plan_tried(jobq_cursor *c, int32_t handled, int32_t done)
{
    int32_t left;

    if (handled > 0) jobq__cursor_deliver(c, c->acked + handled);
    c->acked += done;
    left = jobq_cursor_attempts(c, c->acked + 1);
    while (c->tried_count > left) c->tried[--c->tried_count] = 0; /* equal cursors, equal bytes */
}

/* The result that moves the mode. A message that has used up its attempts counts as a reject. */
static void jobq__plan_mode(const jobq_tuning *tuning, const jobq_verdict *v, bool exceeded,
                            jobq_plan *plan)
{
    uint32_t processed = exceeded ? (uint32_t)plan->done : v->processed;
    jobq_cursor *c = &plan->cursor;
    jobq_result result = v->result;

    if (exceeded && plan->failed < 0) result = JOBQ_RESULT_REJECT;
    if (result == JOBQ_RESULT_LEFT || (result == JOBQ_RESULT_SUCCESS && plan->done == 0)) return;
    if (processed != JOBQ_COUNT_UNKNOWN) {
        processed = jobq__u32_min(processed, (uint32_t)v->count);
    }
    c->mode = jobq_partition_next(c->mode, result, (uint32_t)tuning->batch, processed,
                                  tuning->threshold);
}

static jobq_directive jobq__plan_directive(const jobq_tuning *tuning, const jobq_verdict *v,
                                           uint64_t random, const jobq_plan *plan)
{
    jobq_directive d = {JOBQ_DIRECTIVE_PROCEED, 0};

    if (plan->failed >= 0 && v->delay_named) {
        d.kind = JOBQ_DIRECTIVE_SLEEP;
        d.delay_us = jobq__min(jobq__max(v->delay_us, 0), JOBQ__DELAY_MAX);
        return d;
    }
    if (v->result == JOBQ_RESULT_LEFT && plan->done == 0) d.kind = JOBQ_DIRECTIVE_IDLE;
    else if (plan->failed >= 0 || plan->done == 0) { /* without progress there is no hurry */
        d.kind = JOBQ_DIRECTIVE_SLEEP;
        d.delay_us = jobq_partition_backoff(&tuning->retry, plan->cursor.mode.failures, random);
    } else if (plan->done == v->count && plan->dead == 0) {
        return jobq_partition_directive(&plan->cursor.mode, JOBQ_RESULT_SUCCESS,
                                        (uint32_t)v->count, (uint32_t)v->size, &tuning->retry,
                                        random);
    }
    return d;
}

JOBQ_API void jobq_outbox_plan(const jobq_policy *policy, const jobq_tuning *tuning,
                               const jobq_cursor *cursor, const jobq_verdict *verdict,
                               uint8_t *results, uint64_t random, jobq_plan *plan)
{
    int32_t handled, retries = 0, i;
    bool group, exceeded = false;
    jobq_directive directive;

    memset(plan, 0, sizeof *plan);
    plan->cursor = *cursor;
    handled = jobq__handled_count(results, verdict->count);
    for (i = 0; i < handled; i++) retries += results[i] == JOBQ_RESULT_RETRY;
    group = verdict->processed == JOBQ_COUNT_UNKNOWN && retries > 1;
    jobq__plan_walk(policy, cursor, group, verdict->count, results, plan);
    for (i = 0; i < plan->done; i++) exceeded |= results[i] == JOBQ_RESULT_EXCEEDED;
    jobq__plan_tried(&plan->cursor, handled, plan->done);
    jobq__plan_mode(tuning, verdict, exceeded, plan);
    directive = jobq__plan_directive(tuning, verdict, random, plan);
    plan->directive.kind = directive.kind; /* by fields: equal plans have equal bytes */
    plan->directive.delay_us = directive.delay_us;
}

/* ---- >>delivery ------------------------------------------------------------------------------ */

JOBQ_API void jobq_delivery_done(jobq_delivery *d, int32_t count)
{
    JOBQ_ASSERT(d != NULL);
    d->processed = (uint32_t)jobq__max(jobq__min(count, d->count), 0);
}

JOBQ_API bool jobq_delivery_reject(jobq_delivery *d, int32_t index, jobq_str why)
{
    JOBQ_ASSERT(d != NULL && d->store != NULL);
    if (index < 0 || index >= d->count) return false;
    d->results[index] = JOBQ_RESULT_REJECT;
    return d->store->keep(d, index, why);
}

JOBQ_API void jobq_delivery_error(jobq_delivery *d, jobq_str text)
{
    JOBQ_ASSERT(d != NULL);
    d->error_size = jobq_utf8_mend(d->error, JOBQ_ERROR_MAX, text);
}

JOBQ_API void jobq_delivery_delay(jobq_delivery *d, int64_t delay_us)
{
    JOBQ_ASSERT(d != NULL);
    d->delay_us = jobq__min(jobq__max(delay_us, 0), JOBQ__DELAY_MAX);
    d->delay_named = true;
}

static jobq_stop jobq__delivery_asks(const jobq_delivery *d, int64_t *remaining_us)
{
    JOBQ_ASSERT(d != NULL);
    *remaining_us = JOBQ_NEVER;
    if (d->store == NULL) return JOBQ_STOP_NONE;
    return (jobq_stop)d->store->stopping(d, remaining_us);
}

JOBQ_API jobq_stop jobq_delivery_stopping(const jobq_delivery *d, int64_t *left_us)
{
    int64_t remaining_us;

    return jobq__delivery_asks(d, left_us == NULL ? &remaining_us : left_us);
}

/* Keeps the reason why message i was rejected, and clears the error for the next message. */
static void jobq__delivery_refuse(jobq_delivery *d, int32_t i)
{
    jobq_str why = {NULL, 0};

    why.ptr = d->error;
    why.len = d->error_size;
    jobq_delivery_reject(d, i, why);
    d->error_size = 0;
}

/* Handles one message. A result other than success or reject counts as retry. */
static jobq_result jobq__delivery_one(jobq_delivery *d, jobq_message_handler each, int32_t i)
{
    jobq_result result = JOBQ_RESULT_RETRY;

    if (d->store->enter == NULL || d->store->enter(d, i)) {
        JOBQ__TRY { result = each(d, &d->messages[i]); }
        JOBQ__CATCH(jobq_delivery_error, d)
    }
    if (result != JOBQ_RESULT_SUCCESS && result != JOBQ_RESULT_REJECT) result = JOBQ_RESULT_RETRY;
    if (d->store->leave != NULL && !d->store->leave(d, i, result)) result = JOBQ_RESULT_RETRY;
    return result;
}

static jobq_result jobq__delivery_each(jobq_delivery *d, jobq_message_handler each)
{
    jobq_result result = JOBQ_RESULT_SUCCESS;
    int32_t i;

    for (i = 0; i < d->count && result != JOBQ_RESULT_RETRY; i++) {
        if (i > 0 && jobq_delivery_stopping(d, NULL) != JOBQ_STOP_NONE) break;
        result = jobq__delivery_one(d, each, i);
        d->results[i] = (uint8_t)result;
        if (result == JOBQ_RESULT_REJECT) jobq__delivery_refuse(d, i);
    }
    d->processed = (uint32_t)(result == JOBQ_RESULT_RETRY ? i - 1 : i);
    for (; i < d->count; i++) d->results[i] = JOBQ_RESULT_LEFT;
    return result == JOBQ_RESULT_RETRY ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
}

/* Gives a batch handler's result to each message that the handler did not reject itself. */
static jobq_result jobq__delivery_all(jobq_delivery *d, jobq_batch_handler all)
{
    jobq_result result = JOBQ_RESULT_RETRY, rest;
    uint32_t i, done;

    JOBQ__TRY { result = all(d); }
    JOBQ__CATCH(jobq_delivery_error, d)
    done = d->processed;
    if (result != JOBQ_RESULT_SUCCESS && result != JOBQ_RESULT_REJECT) result = JOBQ_RESULT_RETRY;
    rest = result == JOBQ_RESULT_SUCCESS && done != JOBQ_COUNT_UNKNOWN ? JOBQ_RESULT_LEFT : result;
    for (i = 0; i < (uint32_t)d->count; i++) {
        bool failed = done == JOBQ_COUNT_UNKNOWN || result == JOBQ_RESULT_REJECT || i == done;
        if (d->results[i] == JOBQ_RESULT_REJECT) continue;
        if (done != JOBQ_COUNT_UNKNOWN && i < done) d->results[i] = JOBQ_RESULT_SUCCESS;
        else d->results[i] = (uint8_t)(failed ? rest : JOBQ_RESULT_LEFT);
    }
    return result;
}

JOBQ_API void jobq_delivery_run(jobq_delivery *d, jobq_message_handler each,
                                jobq_batch_handler all, jobq_verdict *verdict)
{
    JOBQ_ASSERT(d != NULL && verdict != NULL && (each == NULL) != (all == NULL));
    d->processed = JOBQ_COUNT_UNKNOWN;
    if (all != NULL) verdict->result = jobq__delivery_all(d, all);
    else verdict->result = jobq__delivery_each(d, each);
    verdict->processed = d->processed;
    verdict->delay_us = d->delay_us;
    verdict->delay_named = d->delay_named;
}

/* ---- >>room ---------------------------------------------------------------------------------- */

/* The time that one token takes, so that no more than count start in us. */
static int64_t jobq__token_us(const jobq_rate *rate)
{
    return rate->us > 0 ? (rate->us + rate->count - 1) / rate->count : 0;
}

/* The instant from which a line's tokens count: no more than burst of them are kept. An instant
 * that has not come was written before the store's clock ran back. */
static int64_t jobq__line_free(const jobq_rate *rate, int64_t free_us, int64_t now_us)
{
    int64_t full_us = now_us - jobq__token_us(rate) * jobq__max(rate->burst, 1);

    return free_us > now_us + 60 * JOBQ__SECOND ? full_us : jobq__max(free_us, full_us);
}

/* How many jobs a line may give in one visit of a claim. free_us: what jobq__line_used returned
 * last (INT64_MIN: nothing). until_us: the line is held until then. held: jobs claimed from it that
 * count: running ones and suspects. quantum: of a line with weight 1. *due_us: time until it may
 * give one; 0: now, or it is paused. A full line says a minute: it opens when one of its jobs
 * ends. */
static int32_t jobq__line_room(const jobq_line *line, int64_t free_us, int64_t until_us,
                               int64_t now_us, int32_t held, int32_t quantum, int64_t *due_us)
{
    int64_t most, room, token_us, tokens_us;

    JOBQ_ASSERT(line != NULL && quantum > 0 && due_us != NULL);
    most = line->strict ? 1 : line->running_max;
    room = quantum * jobq__max(line->weight, 1);
    token_us = jobq__token_us(&line->rate);
    *due_us = 0;
    if (line->paused) return 0;
    if (until_us > now_us) *due_us = until_us - now_us;
    else if (most > 0 && held >= most) *due_us = 60 * JOBQ__SECOND;
    if (*due_us > 0) return 0;
    if (most > 0) room = jobq__min(room, most - held);
    if (token_us == 0) return (int32_t)room;
    tokens_us = now_us - jobq__line_free(&line->rate, free_us, now_us);
    if (tokens_us < token_us) *due_us = token_us - tokens_us;
    return (int32_t)jobq__max(jobq__min(room, tokens_us / token_us), 0);
}

/* The new free_us of a line that has given this number of jobs. */
static int64_t jobq__line_used(const jobq_line *line, int64_t free_us, int64_t now_us,
                                int32_t jobs)
{
    JOBQ_ASSERT(line != NULL && jobs >= 0);
    return jobq__line_free(&line->rate, free_us, now_us) + jobs * jobq__token_us(&line->rate);
}

/* ---- >>tally --------------------------------------------------------------------------------- */

static const int64_t jobq__bounds_ms[JOBQ_TIMES_BUCKETS - 1] = {
    5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000,
    30000, 60000, 300000, 900000, 3600000};

JOBQ_API int64_t jobq_times_bound(int32_t bucket)
{
    JOBQ_ASSERT(bucket >= 0 && bucket < JOBQ_TIMES_BUCKETS);
    return bucket == JOBQ_TIMES_BUCKETS - 1 ? JOBQ_NEVER : jobq__bounds_ms[bucket] * 1000;
}

JOBQ_API int32_t jobq_times_bucket(int64_t us)
{
    int32_t i = 0;

    while (us > jobq_times_bound(i)) i++;
    return i;
}

/* Counts of a loop, by place. Each row of counts belongs to the queue and kind of its place. What
 * an earlier id of the worker delivered remains that id's, so the rows of the present id count from
 * there. */
typedef struct jobq_tallies {
    int32_t count;      /* places in use */
    int32_t kind_count; /* ... by kinds */
    int32_t tries;      /* statements that carried `sent` and were not answered well */
    int64_t number;     /* of `sent` */
    int64_t clock_us;   /* the store's clock less the loop's, at the latest heartbeat */
    int32_t queues[JOBQ_LOOP_TALLIES];
    int32_t kinds[JOBQ_LOOP_TALLIES];
    int64_t now[JOBQ_LOOP_TALLIES][JOBQ_TALLY_COUNT];
    int64_t sent[JOBQ_LOOP_TALLIES][JOBQ_TALLY_COUNT];  /* in the latest statement */
    int64_t known[JOBQ_LOOP_TALLIES][JOBQ_TALLY_COUNT]; /* the store has these */
    int64_t older[JOBQ_LOOP_TALLIES][JOBQ_TALLY_COUNT]; /* ... and these from earlier ids */
} jobq_tallies;

static int32_t jobq__tally_find(const jobq_tallies *t, int32_t queue, int32_t kind)
{
    int32_t i = 0;

    while (i < t->count && (t->queues[i] != queue || t->kinds[i] != kind)) i++;
    return i;
}

/* The counts of a kind, or of the rest of its queue. NULL: no room, because the ids of queues have
 * changed many times. */
static int64_t *jobq__tally_of(jobq_tallies *t, int32_t queue, int32_t kind)
{
    int32_t i = jobq__tally_find(t, queue, kind);

    if (i == t->count && kind != 0 && t->kind_count == JOBQ_TALLY_KINDS) {
        kind = 0;
        i = jobq__tally_find(t, queue, kind);
    }
    if (i < t->count) return t->now[i];
    if (i == JOBQ_LOOP_TALLIES) return NULL;
    t->queues[i] = queue;
    t->kinds[i] = kind;
    t->kind_count += kind != 0;
    t->count++;
    return t->now[i];
}

static void jobq__tally_add(jobq_tallies *t, int32_t queue, int32_t kind, jobq_tally_place place,
                            int64_t by)
{
    int64_t *counts = jobq__tally_of(t, queue, kind);

    if (counts != NULL) counts[place] += by;
}

/* Adds a time to a histogram. The sum stays below the limit of its type, whatever clocks do. */
static void jobq__tally_time(jobq_tallies *t, int32_t queue, int32_t kind, jobq_tally_place place,
                             int64_t us)
{
    int64_t *counts = jobq__tally_of(t, queue, kind), *sum;

    if (counts == NULL) return;
    us = jobq__max(us, 0);
    counts[(int32_t)place + jobq_times_bucket(us)]++;
    sum = &counts[(int32_t)place + JOBQ_TIMES_BUCKETS];
    *sum = jobq__min(jobq__add(*sum, us), INT64_MAX / 4);
}

static bool jobq__tally_same(const int64_t *a, const int64_t *b)
{
    return memcmp(a, b, JOBQ_TALLY_COUNT * sizeof *a) == 0;
}

/* Adds what the store does not know yet, as totals: repeated, they change nothing. While it is not
 * known whether a statement came through, the next ones carry the same. So if the worker is dead
 * then, that alone is in doubt. */
static void jobq__tally_send(jobq_tallies *t, jobq_request *a)
{
    int32_t i, k;

    if (t->tries == 0) memcpy(t->sent, t->now, (size_t)t->count * sizeof *t->now);
    for (i = 0; i < t->count; i++) {
        if (jobq__tally_same(t->sent[i], t->known[i])) continue;
        a->tally_queues[a->tally_count] = t->queues[i];
        a->tally_kinds[a->tally_count++] = t->kinds[i];
        for (k = 0; k < JOBQ_TALLY_COUNT; k++)
            a->totals[a->total_count++] = t->sent[i][k] - t->older[i][k];
    }
    if (a->tally_count == 0) return;
    if (t->tries++ == 0) t->number++;
    a->tally = t->number;
}

/* The store has taken what was sent. */
static void jobq__tally_took(jobq_tallies *t)
{
    memcpy(t->known, t->sent, (size_t)t->count * sizeof *t->sent);
    t->tries = 0;
}

/* The worker is dead; its next id counts from what the store has. refused: the latest statement
 * brought nothing. What may have been brought counts as brought, so that nothing counts twice. */
static void jobq__tally_die(jobq_tallies *t, bool refused)
{
    if (t->tries > refused) jobq__tally_took(t);
    memcpy(t->older, t->known, (size_t)t->count * sizeof *t->known);
    t->tries = 0;
}

/* ---- >>loop ---------------------------------------------------------------------------------- */

typedef enum jobq_slot_state {
    JOBQ_SLOT_FREE,
    JOBQ_SLOT_QUEUED,   /* claimed; waits for a thread */
    JOBQ_SLOT_RUNNING,  /* a handler runs it */
    JOBQ_SLOT_FINISHED, /* has a decision; waits for a flush */
    JOBQ_SLOT_SENT      /* its flush is on its way */
} jobq_slot_state;

/* A job that a loop holds. */
typedef struct jobq_slot {
    jobq_job job;
    jobq_decision decision;
    int64_t since_mono_us;    /* when it entered its state */
    int64_t deadline_mono_us; /* running: when its time limit ends (JOBQ_NEVER: none) */
    int64_t expires_mono_us;  /* queued: when it is late, at the latest (JOBQ_NEVER: never) */
    int64_t bytes;            /* size of the job, its error and its next payload, for a flush */
    int32_t next;             /* next slot of its list; -1: last */
    int32_t position;         /* running: its index in running[] */
    int32_t call;             /* running: index in calls[] */
    int32_t together;         /* running: jobs that the call began with */
    int32_t entry;            /* index of its claim in claims[] */
    uint32_t generation;      /* counts the uses of the slot */
    jobq_slot_state state;
    bool verify;              /* completed in its handler's own transaction: LOST is expected */
    bool resent;              /* sent before without an answer: LOST is not counted */
    uint8_t refused;          /* decisions about it that the database refused */
    bool cancel;              /* a cancel request arrived after it was claimed */
} jobq_slot;

typedef enum jobq_claim_state {
    JOBQ_CLAIM_NONE,
    JOBQ_CLAIM_SENT,    /* no answer yet */
    JOBQ_CLAIM_ORPHAN,  /* its answer was lost; it must be recovered */
    JOBQ_CLAIM_LIVE,    /* has unsettled jobs; open counts them */
    JOBQ_CLAIM_SETTLED, /* all settled; the next heartbeat may delete its row */
    JOBQ_CLAIM_GOING    /* in the heartbeat that is on its way */
} jobq_claim_state;

typedef struct jobq_claim {
    int64_t worker;
    int64_t number;
    int32_t open;
    jobq_claim_state state;
    int32_t limit; /* how many jobs it asked for */
    bool suspects;
    bool alone;
    bool left; /* a decision was given up: the row stays, so that a rescuer finds the job */
} jobq_claim;

/* A late worker, as this loop has seen it. */
typedef struct jobq_watched {
    int64_t worker; /* 0: a free place */
    int64_t beat;
    int64_t lease_us;
    int64_t since_mono_us; /* since when it has been seen with this beat */
    bool mentioned;        /* in the latest news */
} jobq_watched;

/* The lower bound of a lane: the last job claimed there, or where the store's clock was when it
 * gave up a claim. All are 0: none. */
typedef struct jobq_bound {
    int64_t run_at_us;
    int64_t id;
    int64_t claim; /* the latest that brought jobs; 0: none has */
} jobq_bound;

/* The lower bound of the jobs in a lane's lines: when walks last came round, no ready job was
 * before it. */
typedef struct jobq_low {
    int64_t at_us;
    int64_t id; /* 0: unknown */
    bool holds; /* no sweep has dropped it */
} jobq_low;

/* The latest round of walks through the lines of one lane, while it is under way. */
typedef struct jobq_round {
    bool begun;
    int16_t priority;
    int16_t stage;
    int64_t from;    /* it began after this line */
    uint64_t walked; /* how far it has come; wraps when it has come round */
    int64_t cost_us; /* what its claims took */
    jobq_low low;    /* of the jobs that it saw */
} jobq_round;

typedef struct jobq_loop_queue {
    int32_t id;
    int16_t stages_max;
    int16_t priority_min;
    bool paused;
    bool lines;
    bool ageing;
    bool passed;   /* the latest claim passed lines by that may open when a job ends */
    int32_t kinds; /* that the worker has of it; INT32_MAX: unknown */
    int32_t open;  /* of them, those that were not at their limit when last counted */
    int64_t hold_mono_us; /* nothing of it is claimed before */
    int64_t walk;         /* the next walk starts after the line with this number */
    uint64_t walked;      /* how far walks have come since they gave a job; wraps after a round */
    int32_t steps;        /* ... in so many claims */
    int64_t low_mono_us;  /* the next round without bounds, if claims bring jobs, is not before */
    jobq_round round;
    jobq_low lows[JOBQ_PRIORITIES][JOBQ_STAGES_MAX]; /* by priority - JOBQ_PRIORITY_MIN */
    jobq_policy policy;
    jobq_bound bounds[JOBQ_PRIORITIES][JOBQ_STAGES_MAX][2]; /* by priority - JOBQ_PRIORITY_MIN;
                                                               1: of jobs in lines, whose
                                                               claims start elsewhere */
} jobq_loop_queue;

/* A kind of which not every thread may run a job. */
typedef struct jobq_limit {
    int32_t kind;
    int32_t queue; /* index; -1: unknown */
    int32_t most;  /* jobs that may run at once */
    int32_t held;  /* jobs that ran or waited for a thread when last counted */
    bool passed;   /* a claim left the kind out, so its jobs may be below the bounds */
} jobq_limit;

/* A kind whose handler gets batches. */
typedef struct jobq_batching {
    int32_t kind;
    int32_t most;    /* jobs of a first attempt in one call */
    int32_t threads; /* calls at once */
    int64_t wait_us; /* how long a job may wait for others */
} jobq_batching;

/* A call of a handler that is under way. */
typedef struct jobq_calling {
    int32_t left; /* jobs that it has not ended; 0: a free place */
    int32_t kind;
} jobq_calling;

/* What this worker has of a quota: law (20). */
typedef struct jobq_share {
    int32_t quota;        /* id */
    int32_t queue;        /* index */
    int32_t kind;         /* id; 0: the whole queue */
    int32_t most;         /* over all workers; 0: only a rate */
    int32_t held;         /* the jobs that may run here */
    int32_t counted;      /* what the store has recorded for this worker: at least held */
    int32_t running;      /* jobs of this worker that are not settled */
    int32_t asked;        /* that the claim on its way may bring */
    int32_t orphaned;     /* that claims to be recovered may have brought */
    int32_t chunk;        /* 0: no rate */
    int32_t tokens;       /* with those of claims without an answer */
    int64_t used_mono_us; /* when one of its jobs was last claimed */
    int64_t ask_mono_us;  /* the next early heartbeat for it is not before */
    int64_t ask_us;       /* pause after one that brought nothing; doubles */
    bool fresh;           /* just heard of: the store waits for what runs here */
    bool skipped;         /* the latest claim left its queue or kind out */
    bool blocked;         /* ... because there was no permit */
    bool passed;          /* jobs of it may be below the bounds */
} jobq_share;

/* A list of slots. head and tail -1: empty. */
typedef struct jobq_list {
    int32_t head, tail, count;
} jobq_list;

/* What one statement of a kind may carry. No statement is repeated unchanged for ever: after a
 * failure, or if no answer comes, the next one is half as large; later ones grow again slowly. */
typedef struct jobq_budget {
    int64_t bytes; /* of payloads and errors; the first row is always carried */
    int32_t rows;
    int32_t single; /* failures of a single row in sequence, while the server answered others */
} jobq_budget;

/* -- the state of the part for messages -- */

typedef enum jobq_part_state {
    JOBQ_PART_NONE,      /* a free place */
    JOBQ_PART_AWAY,      /* not held; due_mono_us says when to read it */
    JOBQ_PART_READING,   /* READ on its way */
    JOBQ_PART_QUEUED,    /* held, with messages; waits for a thread */
    JOBQ_PART_RUNNING,   /* a handler has them */
    JOBQ_PART_FINISHED,  /* planned; waits to be acknowledged */
    JOBQ_PART_ACKING,    /* ACK on its way */
    JOBQ_PART_COMMITTING /* the handler's own transaction acknowledges it */
} jobq_part_state;

/* What the loop knows of a partition. */
typedef struct jobq_part {
    int64_t id;
    int64_t worker;           /* the token, while the loop holds the partition */
    int64_t claim;
    int64_t due_mono_us;      /* AWAY: when to read (JOBQ_NEVER: no reason). FINISHED: not before */
    int64_t sent_mono_us;     /* READING, ACKING: when the statement was sent */
    int64_t taken_mono_us;    /* when the READ that took it was sent */
    int64_t lease_mono_us;    /* local end of the lease, less the headroom */
    int64_t budget_mono_us;   /* RUNNING: end of the delivery's time limit */
    int64_t paced_mono_us;    /* AWAY: earliest read, even if a look finds messages */
    int64_t handed;           /* the latest claim number whose delivery reached a handler */
    int64_t acked;            /* as of the latest LOOK; -1: no LOOK has seen it */
    int64_t renew_mono_us;    /* RUNNING: when to renew the lease */
    int64_t pace_us;
    int64_t lost;             /* as in jobq_reading */
    jobq_holder holder;       /* READING: it is taken over from this holder; worker 0: from none */
    jobq_cursor cursor;       /* before the delivery */
    jobq_plan plan;           /* from FINISHED on */
    uint64_t turn;            /* QUEUED: order of arrival. READING, ACKING: order of sending */
    jobq_budget budget;       /* what a read may carry */
    uint32_t generation;      /* counts the deliveries */
    uint32_t failures;        /* in a row */
    int32_t queue;            /* index in queues[] */
    int32_t number;
    int32_t size, count, given;
    int32_t refused;          /* FINISHED: failed ACKs that did not read on */
    jobq_part_state state;
    bool on;                  /* ACKING: the ACK also reads on, under the same token */
    bool resent;              /* the ACK was sent before without an answer: LOST is not counted */
    bool renewing;            /* RENEW is on its way */
    bool suspect;             /* taken over from a dead worker, nothing acknowledged since. AWAY: to
                                 be taken over from one */
    bool below;               /* its next read is a sweep */
    uint8_t results[JOBQ_LOOP_BATCH];
} jobq_part;

/* A partition that another worker holds. The holder counts as dead only if this loop has seen it
 * unchanged for a whole lease, by its own clock. */
typedef struct jobq_watch {
    int64_t id; /* 0: a free place */
    jobq_holder holder;
    int64_t since_mono_us; /* since when it has been seen with this holder, unchanged */
    int64_t due_mono_us;   /* when to take it over */
    int32_t queue, number;
    bool moved; /* the holder has moved since, so another partition may have this place */
} jobq_watch;

typedef struct jobq_relay {
    jobq_relay_stats stats;
    int64_t look_mono_us;     /* next LOOK */
    int64_t sweep_mono_us;    /* next round of LOOKs that sweeps */
    int64_t slice;            /* ids of the next slice of a sweep; 0: sweeps are in one piece */
    int64_t sliced;           /* how far below the bounds the current sweep has come, in ids */
    int64_t slice_to;         /* how far it comes with this round; INT64_MAX: to the end */
    int64_t round_us;         /* time that the LOOKs of this round took */
    int64_t trip_us;          /* moving average of round_us, for rounds that do not sweep */
    int64_t sweep_cost_us;    /* cost of the current sweep so far */
    int64_t look_us;          /* pause after a round that found nothing; doubles */
    int64_t linger_us;        /* pause after a round that found something; doubles */
    int64_t idle_mono_us;     /* since when it has had no messages (JOBQ_NEVER: busy) */
    int64_t busy_mono_us;     /* since when it has had messages (JOBQ_NEVER: idle) */
    int64_t missed_mono_us;   /* when a partition that has no place can be read */
    int64_t after;            /* the next LOOK lists greater ids; 0: it starts a new round */
    uint64_t turn;
    int32_t count;            /* parts[0 .. count) have been used */
    int32_t held;             /* how many of those are not AWAY */
    int32_t running;          /* RUNNING and COMMITTING parts: threads in use */
    bool sweeping;            /* this round of LOOKs is a sweep */
    bool found;               /* this round found something to read */
    bool amid;                /* work was in hand when a LOOK of this round was sent */
    bool crowded;             /* the latest LOOK found more partitions to read than places */
    bool empty;               /* the latest round found nothing, and nothing has come since */
    jobq_watch watches[JOBQ_LOOP_WATCHED];
    jobq_part parts[JOBQ_LOOP_PARTITIONS];
} jobq_relay;

struct jobq_loop {
    jobq_loop_config config;
    jobq_loop_served served;
    jobq_loop_stats stats;
    jobq_random random;
    jobq_phase phase;
    int64_t worker;           /* its id; 0: none yet */
    int64_t number;           /* of the latest claim; it only grows */
    int64_t tick_mono_us;     /* when a schedule fires next */
    int64_t stop_mono_us;     /* end of the grace */
    int64_t deadline_mono_us; /* the first end of a running handler's time limit, or earlier */
    int64_t late_mono_us;     /* no queued job is late before */
    int64_t vacuum_rows;      /* rows that have ended since the last vacuum was sent */
    int32_t running_count;    /* jobs */
    int32_t call_count;       /* handlers that run them */
    int32_t orphan_count;
    int32_t queue_count;
    int32_t kind_count;
    int32_t kind_policy_count;
    /* session: the connection, and what the store knows of this worker */
    struct {
        uint32_t connects;       /* connections lost or not made since one worked */
        int64_t connect_mono_us; /* when to connect next */
        bool connected;
        bool registered;  /* the store knows the worker */
        bool informed;    /* the first news since it registered has come */
        bool kinds_known; /* a heartbeat on this connection told them; claims wait for that */
        bool every_kind;  /* claims take jobs of every kind */
        bool policies_stale;
        int64_t policy; /* version of the policies, as last read */
    } session;
    /* lease: for how long the store believes in it, and the heartbeat that renews that */
    struct {
        int64_t end_mono_us;   /* its local end */
        int64_t alive_mono_us; /* since when it is alive without a break (JOBQ_NEVER: it is not) */
        int64_t beat_mono_us;  /* next heartbeat */
        int64_t rest_us;       /* how much later than usual it may come, as the latest one said */
        int64_t heard_mono_us; /* the latest notification */
        int64_t store_now_us;  /* the store's clock at the last heartbeat */
        int32_t settled_count; /* claims settled since the last heartbeat */
    } lease;
    /* wire: statements by their kind, and what each may carry */
    struct {
        uint32_t inflight; /* bits by request kind: on its way */
        uint32_t well;     /* bit by request kind: something was answered since it failed */
        int64_t sent_mono_us[JOBQ_REQUEST_COUNT]; /* when the statement on its way was sent */
        int64_t hold_mono_us[JOBQ_REQUEST_COUNT]; /* earliest next statement */
        uint32_t failures[JOBQ_REQUEST_COUNT];
        int32_t carried[JOBQ_REQUEST_COUNT];     /* rows of the statement on its way */
        jobq_budget budgets[JOBQ_REQUEST_COUNT]; /* what a statement of a kind may carry */
        /* of claims of suspects, and of those that must run alone */
        jobq_budget suspect_budgets[2];
    } wire;
    /* claim: the claim in flight: what its request says, and what its answer has brought */
    struct {
        int32_t limit; /* rows that it may bring */
        bool suspects;
        bool alone;
        bool look; /* its answer says when the next job is due */
        bool sweep;
        bool names;    /* it takes nothing, and names the first job */
        bool slice;    /* it is one slice of a sweep, or a look just below the bounds */
        bool just_below; /* it is the latter */
        bool aged;     /* its lanes are in the order of their age */
        bool amid;     /* work was in hand when it was sent */
        bool tight;    /* its limit was lowered to what permits allow */
        bool rest;     /* it left out what has few permits, for the sake of the others */
        bool passed;   /* it left something out for lack of permits */
        bool cut;      /* it brought all that it may carry: there may be more in its lanes */
        bool ended;    /* it has ended late jobs: the same */
        int32_t from;  /* the place of its first lane, see jobq__lanes; 0: it begins a round */
        int32_t next;  /* the place of the first lane for which it had no room; 0: none */
        int64_t due_us; /* of the round so far: time until the next scheduled job; 0: none */
        int32_t entry; /* its index in claims */
        int32_t count; /* jobs in its answer so far */
        int64_t bytes; /* size of those jobs */
    } claim;
    /* pace: when the next claim is due */
    struct {
        int64_t claim_mono_us; /* next claim */
        int64_t full_mono_us;  /* next claim that lists all lanes */
        int64_t look_us;       /* pause after an empty claim; doubles */
        int64_t linger_us;     /* pause after a claim that got few jobs; doubles */
        int64_t due_mono_us;   /* when the next scheduled job is due */
        int64_t idle_mono_us;  /* since when it has had no jobs (JOBQ_NEVER: busy) */
        int64_t busy_mono_us;  /* since when it has had jobs (JOBQ_NEVER: idle) */
        int64_t left_mono_us;  /* when a job of a line was last settled */
        int64_t handler_us;    /* time that handlers take, moving average (-1: unknown) */
        int64_t trip_us;       /* time until a claim is answered, moving average; sweeps apart */
        int32_t turn;          /* 0 to twice the queues - 1: jobq__first_queue, jobq__lines_first */
        int32_t lanes_next;    /* where the next claim goes on with the round; 0: it begins one */
        bool rest_next;        /* the next claim leaves out what has few permits */
        bool passed_by;        /* no sweep since has looked at everything */
    } pace;
    /* sweep: claims below the bounds; in slices while an old snapshot makes them expensive */
    struct {
        int64_t next_mono_us;     /* next sweep */
        int64_t earliest_mono_us; /* the earliest next sweep, however many are wanted */
        int64_t near_mono_us;  /* while sweeps are in slices: the next look just below the bounds */
        int64_t slice_us;      /* length of the next slice of a sweep; 0: sweeps are in one piece */
        int64_t slice_from_us; /* the claim in flight covers every run_at from here to sliced_us */
        int64_t sliced_us; /* the current sweep has covered every later run_at; INT64_MAX: none */
        int64_t cost_us;   /* cost of the current sweep so far */
        int32_t overrun_count; /* sweeps that timed out in a row */
        bool whole;            /* the next sweep is in one piece */
        bool found;            /* jobs were claimed since the current sweep began */
        bool passed;           /* jobs were passed by since the current sweep began */
        bool empty;            /* the latest sweep found nothing, and nothing has come since */
    } sweep;
    /* blame: the search for a job that breaks every claim */
    struct {
        int64_t named;       /* the job at which claims of a single job fail; 0: none */
        int32_t named_lanes; /* jobq__claim_lanes of those claims */
        bool accused;        /* ... and they failed again after the store named it */
    } blame;
    /* suspects: jobs that were running when their worker died, and those that must run alone */
    struct {
        bool ready;
        int32_t held_count;
        int64_t alone_mono_us;  /* since when one that must run alone is ready (JOBQ_NEVER: none) */
        bool alone_told;        /* the latest news told of a job that must run alone */
        int32_t alone_entry;    /* index of the latest claim of a job that must run alone */
        bool halts;             /* it takes no job and reads no message: laws (6) and (18) */
        int64_t halts_mono_us;  /* when quiet may change by time alone */
        int64_t rescue_mono_us; /* law (18): watches that end by then come first; INT64_MIN: none */
    } suspects;
    /* sleep: what an idle worker and its producers tell each other */
    struct {
        bool asleep;
        bool deaf;             /* notifications should arrive but do not */
        int64_t told_mono_us;  /* when sleep was last announced or withdrawn */
        int64_t woken_mono_us; /* the first of the latest notifications that came close together */
        int32_t woken_count;   /* how many notifications came close together */
    } sleep;
    /* flush: writing what became of finished jobs */
    struct {
        int64_t due_mono_us;                   /* when the oldest finished job must be flushed */
        int32_t locked[JOBQ_REQUEST_COUNT];    /* decisions whose rows others had locked */
        int64_t locked_us[JOBQ_REQUEST_COUNT]; /* pause before they are sent again; doubles */
        int64_t locked_mono_us[JOBQ_REQUEST_COUNT]; /* end of that pause */
    } flush;
    /* permits: this worker's shares of quotas */
    struct {
        int64_t exchange;         /* number of the latest exchange; it only grows */
        int64_t exchange_mono_us; /* when that was sent */
        int64_t looked_mono_us;   /* when it last looked for jobs, or would have, had it permits */
        int32_t share_count;
        jobq_share shares[JOBQ_LOOP_QUOTAS];
    } permits;
    /* limited: kinds with a limit of this worker's own */
    struct {
        int32_t count;
        int32_t rows; /* most jobs of a claim that may bring such kinds */
        bool only;    /* the last claim brought no others, so the next one may not either */
        jobq_limit limits[JOBQ_LOOP_KINDS];
    } limited;
    /* batch: kinds whose handlers get several jobs in one call */
    struct {
        int32_t count;
        int32_t per_call; /* jobs to claim for a call: as many as calls lately had, or could have */
        int32_t least;    /* ... and at least. 2: a job may wait for others */
        jobq_batching kinds[JOBQ_LOOP_KINDS];
    } batch;
    /* parked: jobs whose kinds nobody had */
    struct {
        int32_t kind;  /* a kind of this worker that has parked jobs; 0: none */
        bool unparked; /* such jobs were made ready since the latest news */
    } parked;
    /* until: only for a worker that ends when nothing remains */
    struct {
        int64_t remain_us; /* pause before asking again; doubles */
        bool none_remain;  /* the store has just said that nothing remains */
        bool amid;         /* work in hand may enqueue more work */
    } until;
    int32_t fresh; /* slots that were never used: the last ones. They are taken first */
    jobq_list free, queued, done, others, sent_done, sent_others;
    int32_t running[JOBQ_LOOP_SLOTS]; /* the jobs of a call that has just begun are in a row */
    jobq_calling calls[JOBQ_LOOP_THREADS];
    int32_t kinds[JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX]; /* else only of these kinds */
    jobq_kind_policy kind_policies[JOBQ_LOOP_KINDS];  /* of kinds that differ from their queue */
    jobq_watched watched[JOBQ_LOOP_WATCHED];
    jobq_claim claims[JOBQ_LOOP_CLAIMS];
    jobq_slot slots[JOBQ_LOOP_SLOTS];
    jobq_loop_queue queues[JOBQ_LOOP_QUEUES];
    jobq_tallies tallies;
    jobq_relay relay;
};

#define JOBQ__MS ((int64_t)1000)
#define JOBQ__IDLE (100 * JOBQ__MS)          /* idle for this long: sleep is announced */
#define JOBQ__CONVOY 4                       /* notifications in one span that end sleep */
#define JOBQ__CONVOY_SPAN (50 * JOBQ__MS)
#define JOBQ__SLICE_IDS 100000               /* the first slice of a sweep of messages */
#define JOBQ__SLICE_IDS_MAX ((int64_t)1 << 40) /* a longer one has no beginning */
#define JOBQ__PREFETCH (50 * JOBQ__MS)       /* claim ahead what handlers use up in this time, */
#define JOBQ__PREFETCH_MAX (500 * JOBQ__MS)  /* or where commits are slow, up to this */
#define JOBQ__HOARD JOBQ__SECOND             /* jobs that wait this long for a thread go back */
#define JOBQ__OVERDUE 3                      /* overdue workers that are rescued first: law (18) */
#define JOBQ__VACUUM_PAUSE  (4 * JOBQ__SECOND) /* between the starts of two vacuums, at least */
/* Statements that another thread executes, not on the loop's connection. The loop does not wait for
 * their answers. */
#define JOBQ__ASIDE (1u << JOBQ_REQUEST_PRUNE | 1u << JOBQ_REQUEST_VACUUM)
#define JOBQ__RECONNECT_CAP (10 * JOBQ__SECOND)

/* A pause twice as long as the last one, within bounds. */
static int64_t jobq__twice(int64_t us, int64_t first, int64_t most)
{
    return jobq__min(jobq__max(2 * us, first), most);
}

/* How long to wait after this many failures: 50 ms, doubling to 5 s. */
static int64_t jobq__patience(uint32_t failures)
{
    return jobq__min((int64_t)50 * JOBQ__MS << jobq__min(failures, 10), 5 * JOBQ__SECOND);
}

static int64_t jobq__or(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

JOBQ_API jobq_loop_config jobq_loop_config_defaults(const jobq_loop_config *config)
{
    jobq_loop_config c;
    bool listens;

    memset(&c, 0, sizeof c);
    if (config != NULL) c = *config;
    listens = c.served != NULL && c.served->listen;
    c.threads =
        (int32_t)jobq__min(jobq__or(c.threads, 4), jobq__min(JOBQ_LOOP_THREADS, JOBQ_LOOP_SLOTS));
    c.batch_max = (int32_t)jobq__min(jobq__or(c.batch_max, 1000), JOBQ_LOOP_SLOTS / 2);
    c.lease_us = jobq__or(c.lease_us, 30 * JOBQ__SECOND);
    c.heartbeat_us = jobq__or(c.heartbeat_us, c.lease_us / 6);
    c.poll_us = jobq__or(c.poll_us, listens ? c.heartbeat_us : JOBQ__SECOND);
    c.flush_us = jobq__or(c.flush_us, 5 * JOBQ__MS);
    c.linger_us = jobq__or(c.linger_us, 20 * JOBQ__MS);
    c.sweep_us = jobq__or(c.sweep_us, 5 * JOBQ__SECOND);
    c.grace_us = jobq__or(c.grace_us, 30 * JOBQ__SECOND);
    c.answer_us = jobq__or(c.answer_us, c.lease_us / 3);
    c.prune_us = jobq__or(c.prune_us, 600 * JOBQ__SECOND);
    c.vacuum_rows = jobq__or(c.vacuum_rows, 100000);
    c.jobs_max = jobq__or(c.jobs_max, JOBQ_NEVER);
    return c;
}

/* A random time in the last quarter of a pause, so that workers do not go in step. */
static int64_t jobq__about(jobq_loop *l, int64_t us)
{
    return jobq_random_between(jobq_random_next(&l->random), us - us / 4, us);
}

/* -- lists of slots -- */

static const jobq_list jobq__empty = {-1, -1, 0};

static void jobq__push(jobq_loop *l, jobq_list *list, int32_t i)
{
    l->slots[i].next = -1;
    if (list->count == 0) list->head = i;
    else l->slots[list->tail].next = i;
    list->tail = i;
    list->count++;
}

static void jobq__push_first(jobq_loop *l, jobq_list *list, int32_t i)
{
    l->slots[i].next = list->count == 0 ? -1 : list->head;
    list->head = i;
    if (list->count == 0) list->tail = i;
    list->count++;
}

static int32_t jobq__pop(jobq_loop *l, jobq_list *list)
{
    int32_t i = list->head;

    if (list->count == 0) return -1;
    list->head = l->slots[i].next;
    if (--list->count == 0) *list = jobq__empty;
    return i;
}

static int32_t jobq__slots_free(const jobq_loop *l) { return l->fresh + l->free.count; }

/* Removes i from the list; prev is the slot before it, -1 for the head. */
static void jobq__unlink(jobq_loop *l, jobq_list *list, int32_t prev, int32_t i)
{
    if (prev < 0) {
        jobq__pop(l, list);
        return;
    }
    l->slots[prev].next = l->slots[i].next;
    if (list->tail == i) list->tail = prev;
    list->count--;
}

/* ---- >>wire: statements on their way, and how much each may carry ---------------------------- */

static bool jobq__sent(const jobq_loop *l, jobq_request_kind kind)
{
    return (l->wire.inflight & (1u << kind)) != 0;
}

/* Starts a request of this kind. Its arrays keep what they held. */
static void jobq__ask_for(jobq_request *a, jobq_request_kind kind)
{
    memset(a, 0, offsetof(jobq_request, queues));
    a->kind = kind;
    a->slot = -1;
}

static void jobq__send(jobq_loop *l, jobq_request_kind kind, int64_t now, jobq_request *a)
{
    jobq__ask_for(a, kind);
    a->worker = l->worker;
    a->lease_us = l->config.lease_us;
    a->limit = l->wire.carried[kind] = l->wire.budgets[kind].rows;
    l->wire.inflight |= 1u << kind;
    l->wire.sent_mono_us[kind] = now;
}

/* -- how much a statement may carry -- */

#define JOBQ__BYTES     ((int64_t)8 << 20) /* the largest budget */
#define JOBQ__BYTES_MIN ((int64_t)8 << 10) /* a row up to this size is never too large */
#define JOBQ__BLAME     3                  /* failures of a single row after which it is to blame */

static jobq_budget jobq__budget_full(int32_t rows_max)
{
    jobq_budget b;

    b.bytes = JOBQ__BYTES;
    b.rows = rows_max;
    b.single = 0;
    return b;
}

/* A statement with this many rows failed or got no answer. well: the server has answered another
 * statement since the previous failure, so a single row may be to blame. */
static void jobq__budget_failed(jobq_budget *b, int32_t rows, bool well)
{
    if (rows <= 1 && well) b->single++;
    b->rows = (int32_t)jobq__max(jobq__min(b->rows, rows) / 2, 1);
    b->bytes = jobq__max(b->bytes / 2, JOBQ__BYTES_MIN);
}

static void jobq__budget_worked(jobq_budget *b, int32_t rows_max)
{
    b->single = 0;
    b->rows = (int32_t)jobq__min(b->rows + b->rows / 8 + 1, rows_max);
    b->bytes = jobq__min(b->bytes + b->bytes / 8 + 1, JOBQ__BYTES);
}

/* Whether the single row that the last statements carried must be set aside. */
static bool jobq__budget_blames(const jobq_budget *b) { return b->single >= JOBQ__BLAME; }

/* The rows that a statement of a kind carries while nothing fails. */
static int32_t jobq__rows_max(const jobq_loop *l, jobq_request_kind kind)
{
    switch ((int)kind) {
    case JOBQ_REQUEST_CLAIM:
    case JOBQ_REQUEST_RECOVER:
    case JOBQ_REQUEST_COMPLETE:
    case JOBQ_REQUEST_SETTLE: return l->config.batch_max;
    case JOBQ_REQUEST_HEARTBEAT: return JOBQ_LOOP_CLAIMS;
    case JOBQ_REQUEST_TICK:
    case JOBQ_REQUEST_RESCUE: return 100;
    case JOBQ_REQUEST_UNPARK: return 5000;
    case JOBQ_REQUEST_PRUNE: return 1000;
    case JOBQ_REQUEST_LOOK: return JOBQ_BACKLOGS_MAX;
    }
    return 1;
}

/* Which jobs the latest claim asks for: 0: no suspects, 1: suspects, 2: those that must run
 * alone. */
static int32_t jobq__claim_lanes(const jobq_loop *l) { return l->claim.suspects + l->claim.alone; }

/* Claims of suspects have budgets of their own. Other claims find other jobs, or none, so their
 * answers do not show whether a suspect can be sent. */
static jobq_budget *jobq__budget_of(jobq_loop *l, jobq_request_kind kind)
{
    int32_t lanes = jobq__claim_lanes(l);

    if (kind != JOBQ_REQUEST_CLAIM || lanes == 0) return &l->wire.budgets[kind];
    return &l->wire.suspect_budgets[lanes - 1];
}

/* Whether the server has answered a statement since the last failure of this kind; then resets
 * that. */
static bool jobq__well(jobq_loop *l, jobq_request_kind kind)
{
    bool well = (l->wire.well >> kind & 1) != 0;

    l->wire.well &= ~(1u << kind);
    return well;
}

/* An answer came. After an error the next statement of its kind is smaller and waits 50 ms. If it
 * cannot be smaller, or the error is RETRYABLE, the wait doubles each time, up to 5 s. A lock or a
 * full disk is not blamed on a row. */
static void jobq__answered(jobq_loop *l, jobq_request_kind kind, int64_t now, jobq_error error)
{
    bool well = error != JOBQ_ERROR_RETRYABLE && jobq__well(l, kind);
    uint32_t *failures = &l->wire.failures[kind];

    l->wire.inflight &= ~(1u << kind);
    if (error == JOBQ_OK) {
        *failures = 0;
        if (kind != JOBQ_REQUEST_CONNECT) l->wire.well = UINT32_MAX;
        /* A claim that found nothing, or only locked jobs, does not show what a claim can carry. */
        if (kind != JOBQ_REQUEST_CLAIM || l->claim.count > 0) {
            jobq__budget_worked(jobq__budget_of(l, kind), jobq__rows_max(l, kind));
        }
        return;
    }
    l->wire.hold_mono_us[kind] = now + jobq__patience(*failures);
    if (*failures < UINT32_MAX && (l->wire.carried[kind] <= 1 || error == JOBQ_ERROR_RETRYABLE)) {
        ++*failures;
    }
    if (kind == JOBQ_REQUEST_CLAIM || kind == JOBQ_REQUEST_COMPLETE ||
        kind == JOBQ_REQUEST_SETTLE) {
        l->lease.beat_mono_us =
            jobq__min(l->lease.beat_mono_us, now); /* ask whether the server is well */
    }
    if (error == JOBQ_ERROR_LOST || error == JOBQ_ERROR_DEAD) return;
    jobq__budget_failed(jobq__budget_of(l, kind), l->wire.carried[kind], well);
}

/* The next statement of a kind waits at least until then. */
static void jobq__hold_back(jobq_loop *l, jobq_request_kind kind, int64_t until_mono_us)
{
    l->wire.hold_mono_us[kind] = jobq__max(l->wire.hold_mono_us[kind], until_mono_us);
}

/* Takes in how long a statement that does not sweep took; 0: none has been measured. */
static void jobq__trip(int64_t *average, int64_t took)
{
    *average = *average == 0 ? jobq__max(took, 1) : *average + (took - *average) / 8;
}

/* What a sweep has cost beyond a statement that does not sweep. The rest, such as a slow network,
 * does not depend on what it looks at. */
static int64_t jobq__sweep_cost(int64_t trip, int64_t took)
{
    return trip == 0 ? 0 : jobq__max(took - trip, 0);
}

/* The length of the slice after one of this length and cost. first: that of the first one. covered:
 * how far the sweep has come. The least length grows with that, so that a sweep comes to its
 * end even where the shortest slice costs too much. */
static int64_t jobq__slice_next(int64_t length, int64_t cost, int64_t first, int64_t covered)
{
    int64_t aim = JOBQ_LOOP_SLICE_COST_US;

    cost = jobq__min(jobq__max(cost, aim / 4 + 1), 4 * aim);
    return jobq__max(length * aim / cost, jobq__max(first, covered / 128));
}

/* Whether a statement has taken all the time that an answer may take. */
static bool jobq__overran(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    return now >= jobq__add(l->wire.sent_mono_us[kind], l->config.answer_us);
}

/* Sweeps of what claims have passed by: in one piece, because the oldest of it comes first. */
static void jobq__sweep_soon(jobq_loop *l, int64_t now)
{
    l->sweep.next_mono_us =
        jobq__min(l->sweep.next_mono_us, jobq__max(now, l->sweep.earliest_mono_us));
    l->sweep.whole = true;
}

/* A sweep that times out must not starve claims with bounds: wait before the next sweep, twice as
 * long each time. */
static void jobq__sweep_overran(jobq_loop *l, int64_t now)
{
    int64_t cost = now - l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM];

    if (!l->claim.sweep) return;
    l->sweep.slice_us = JOBQ_LOOP_SLICE_US;
    l->sweep.next_mono_us = l->sweep.earliest_mono_us = now + (2 * cost << l->sweep.overrun_count);
    if (l->sweep.overrun_count < 4) l->sweep.overrun_count++;
}

/* ---- >>slots: claims, queues, and whether to claim ------------------------------------------- */

static int32_t jobq__claim_new(const jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        if (l->claims[i].state == JOBQ_CLAIM_NONE) return i;
    }
    return -1;
}

static int32_t jobq__claim_find(const jobq_loop *l, int64_t worker, int64_t number)
{
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        const jobq_claim *c = &l->claims[i];
        if (c->state != JOBQ_CLAIM_NONE && c->worker == worker && c->number == number) return i;
    }
    return -1;
}

/* All jobs of a claim have ended here. The row of a dead worker's claim is left to its rescuer. */
static void jobq__claim_close(jobq_loop *l, jobq_claim *c)
{
    if (c->left && c->worker == l->worker) return;
    c->state = c->worker == l->worker ? JOBQ_CLAIM_SETTLED : JOBQ_CLAIM_NONE;
    if (c->state != JOBQ_CLAIM_SETTLED || ++l->lease.settled_count < JOBQ_LOOP_CLAIMS / 2) return;
    l->lease.beat_mono_us =
        INT64_MIN; /* many small batches fill the table: delete their rows now */
}

/* Whether a job counts for a quota. */
static bool jobq__share_of(const jobq_loop *l, const jobq_share *p, const jobq_job *job)
{
    return l->queues[p->queue].id == job->queue && (p->kind == 0 || p->kind == job->kind);
}

/* A job was claimed, or was settled. One that this process claimed under an older worker id is that
 * worker's, which is dead. */
static void jobq__shares_count(jobq_loop *l, const jobq_job *job, int32_t by)
{
    int32_t i;

    for (i = 0; i < l->permits.share_count && job->worker == l->worker; i++) {
        if (jobq__share_of(l, &l->permits.shares[i], job)) l->permits.shares[i].running += by;
    }
}

static void jobq__slot_free(jobq_loop *l, int32_t i)
{
    jobq_slot *s = &l->slots[i];
    jobq_claim *c = &l->claims[s->entry];

    if (s->job.suspect) l->suspects.held_count--;
    jobq__shares_count(l, &s->job, -1);
    if (--c->open == 0 && c->state == JOBQ_CLAIM_LIVE) jobq__claim_close(l, c);
    s->state = JOBQ_SLOT_FREE;
    s->generation++;
    jobq__push(l, &l->free, i);
}

/* -- queues -- */

/* The index of a queue, by its id; queue_count: this worker does not serve it. */
static int32_t jobq__queue_index(const jobq_loop *l, int32_t id)
{
    int32_t i = 0;

    while (i < l->queue_count && l->queues[i].id != id) i++;
    return i;
}

/* The policy of a job: its kind's, else its queue's, else the defaults. */
static jobq_policy jobq__policy_of(const jobq_loop *l, const jobq_job *job)
{
    int32_t queue = jobq__queue_index(l, job->queue), i;

    for (i = 0; i < l->kind_policy_count; i++) {
        if (l->kind_policies[i].kind == job->kind) return l->kind_policies[i].policy;
    }
    return queue < l->queue_count ? l->queues[queue].policy : jobq_policy_defaults(NULL);
}

/* -- whether to claim, and for which thread -- */

/* The lease is valid by the local clock: jobs may be claimed and started. */
static bool jobq__leased(const jobq_loop *l, int64_t now)
{
    return l->session.registered && now < l->lease.end_mono_us;
}

/* Whether this worker claims from a queue: it runs the queue's jobs, and the queue is neither
 * paused nor held. */
static bool jobq__claims_from(const jobq_loop *l, int32_t queue)
{
    const jobq_loop_queue *q = &l->queues[queue];

    return !q->paused && q->hold_mono_us == INT64_MIN &&
           (l->served.jobless_queues >> queue & 1) == 0;
}

static bool jobq__all_paused(const jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        if (jobq__claims_from(l, i)) return false;
    }
    return true;
}

/* -- permits: law (20) -- */

/* Jobs of a quota that run here, or may. */
static int32_t jobq__share_used(const jobq_share *p) { return p->running + p->asked + p->orphaned; }

/* How many more jobs of it this worker may claim. */
static int32_t jobq__share_room(const jobq_share *p)
{
    int64_t room = INT32_MAX;

    if (p->most > 0) room = p->held - jobq__share_used(p);
    if (p->chunk > 0) room = jobq__min(room, p->tokens - p->asked - p->orphaned);
    return (int32_t)jobq__max(room, 0);
}

/* Whether a claim of this many jobs leaves a quota out. rest: it also leaves out those that would
 * make the claim small. */
static bool jobq__share_skips(const jobq_share *p, bool rest, int32_t limit)
{
    int32_t room = jobq__share_room(p);

    return room == 0 || (rest && room < limit);
}

/* Whether a claim leaves this queue out: because of the queue's quota, or of those of all kinds
 * that the worker has of it. */
static bool jobq__queue_skipped(const jobq_loop *l, int32_t queue, bool rest, int32_t limit)
{
    int32_t kinds = l->queues[queue].kinds, i;

    for (i = 0; i < l->permits.share_count; i++) {
        const jobq_share *p = &l->permits.shares[i];
        if (p->queue != queue || !jobq__share_skips(p, rest, limit)) continue;
        if (p->kind == 0 || --kinds == 0) return true;
    }
    return false;
}

/* The quota of a kind; NULL: it has none. */
static jobq_share *jobq__share_of_kind(jobq_loop *l, int32_t kind)
{
    int32_t i = 0;

    while (i < l->permits.share_count && l->permits.shares[i].kind != kind) i++;
    return i < l->permits.share_count && kind != 0 ? &l->permits.shares[i] : NULL;
}

/* Whether permits leave nothing to claim. */
static bool jobq__all_closed(const jobq_loop *l, bool rest, int32_t limit)
{
    int32_t i;

    if (l->permits.share_count == 0) return false;
    for (i = 0; i < l->queue_count; i++) {
        if (!jobq__claims_from(l, i) || l->queues[i].open == 0) continue;
        if (!jobq__queue_skipped(l, i, rest, limit)) return false;
    }
    return true;
}

/* Whether this worker would claim, had it permits. */
static bool jobq__would_claim(const jobq_loop *l, int64_t now)
{
    return l->phase == JOBQ_PHASE_WORKING && jobq__leased(l, now) && !l->session.policies_stale &&
           l->session.kinds_known && !jobq__all_paused(l);
}

static bool jobq__claims(const jobq_loop *l, int64_t now)
{
    return jobq__would_claim(l, now) && !jobq__all_closed(l, false, 0);
}

static int32_t jobq__threads_left(const jobq_loop *l)
{
    return l->config.threads - l->call_count - l->relay.running;
}

static bool jobq__suspect_wanted(const jobq_loop *l)
{
    return l->suspects.ready && l->suspects.held_count == 0 && l->orphan_count == 0 &&
           !l->suspects.halts && jobq__threads_left(l) > 0 &&
           jobq__slots_free(l) > 0 && /* an orphaned claim may hold one */
           l->stats.started + l->queued.count < l->config.jobs_max;
}

/* A job that must run alone is being claimed, or has not ended. One that was left to a rescuer does
 * not run any longer. */
static bool jobq__alone_here(const jobq_loop *l)
{
    const jobq_claim *c = &l->claims[l->suspects.alone_entry];

    return c->alone && !c->left &&
           (c->state == JOBQ_CLAIM_SENT || c->state == JOBQ_CLAIM_ORPHAN ||
            c->state == JOBQ_CLAIM_LIVE);
}

/* Law (18): a worker that was overdue in the first news is still being watched or rescued. */
static bool jobq__rescues_first(const jobq_loop *l, int64_t now)
{
    int32_t i;

    if (l->suspects.rescue_mono_us == INT64_MIN ||
        now >= l->suspects.rescue_mono_us + l->config.lease_us) {
        return false;
    }
    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        const jobq_watched *w = &l->watched[i];
        if (w->worker != 0 && w->since_mono_us + w->lease_us <= l->suspects.rescue_mono_us)
            return true;
    }
    return jobq__sent(l, JOBQ_REQUEST_RESCUE);
}

static bool jobq__jobs_in_hand(const jobq_loop *l)
{
    return l->queued.count + l->running_count + l->done.count + l->others.count +
               l->sent_done.count + l->sent_others.count > 0;
}

static bool jobq__in_hand(const jobq_loop *l)
{
    return jobq__jobs_in_hand(l) || l->relay.held > 0;
}

/* Whether to claim a job that must run alone: one is ready, and nothing else is held or may be
 * held. */
static bool jobq__alone_wanted(const jobq_loop *l, int64_t now)
{
    return l->suspects.alone_mono_us != JOBQ_NEVER && l->session.informed && !jobq__in_hand(l) &&
           l->orphan_count == 0 && !jobq__rescues_first(l, now);
}

/* Decides whether this worker takes nothing new. While claims fail, it does not wait for a job that
 * must run alone. */
static bool jobq__halts(const jobq_loop *l, int64_t now)
{
    bool can = jobq__claims(l, now) && l->wire.hold_mono_us[JOBQ_REQUEST_CLAIM] <= now;

    return !l->session.informed || jobq__rescues_first(l, now) || jobq__alone_here(l) ||
           (can && (now >= jobq__add(l->suspects.alone_mono_us, l->config.lease_us) ||
                    jobq__alone_wanted(l, now)));
}

static void jobq__quiet_move(jobq_loop *l, int64_t now)
{
    int64_t drain = jobq__add(l->suspects.alone_mono_us, l->config.lease_us);

    l->suspects.halts = jobq__halts(l, now);
    l->suspects.halts_mono_us = now < drain ? drain : JOBQ_NEVER;
    if (jobq__rescues_first(l, now)) {
        l->suspects.halts_mono_us =
            jobq__min(l->suspects.halts_mono_us, l->suspects.rescue_mono_us + l->config.lease_us);
    }
}

/* Whether a thread may get work. The last free thread is reserved for a suspect that can be claimed
 * now; otherwise jobs claimed ahead would starve the suspect. */
static bool jobq__thread_free(const jobq_loop *l, int64_t now)
{
    bool suspect = l->session.connected && l->wire.hold_mono_us[JOBQ_REQUEST_CLAIM] <= now &&
                   jobq__claims(l, now) && jobq__suspect_wanted(l);

    return jobq__threads_left(l) > suspect;
}

/* ---- >>relay --------------------------------------------------------------------------------- */

#define JOBQ__LINGER_MESSAGES (4 * JOBQ__MS) /* only sleepers are notified: look that often */
#define JOBQ__LOOK_PAUSE (100 * JOBQ__MS) /* between rounds for those without a place */
#define JOBQ__TURN (100 * JOBQ__MS)       /* how long a partition is held while others wait */
#define JOBQ__PATIENCE 24 /* failures after which a part may lose its place to another partition */

static const jobq_tuning *jobq__relay_tuning(const jobq_loop *l, const jobq_part *p)
{
    return &l->served.tuning[p->queue];
}

static bool jobq__relay_held(const jobq_part *p) { return p->state > JOBQ_PART_AWAY; }

static bool jobq__relay_runs(const jobq_part *p)
{
    return p->state == JOBQ_PART_RUNNING || p->state == JOBQ_PART_COMMITTING;
}

/* The one function that changes a part's state. */
static void jobq__relay_move(jobq_relay *r, jobq_part *p, jobq_part_state state)
{
    r->held -= jobq__relay_held(p);
    r->running -= jobq__relay_runs(p);
    p->state = state;
    r->held += jobq__relay_held(p);
    r->running += jobq__relay_runs(p);
}

/* Whether this worker handles messages at all. */
static bool jobq__relay_serves(const jobq_loop *l)
{
    return l->served.message_queues != 0;
}

static bool jobq__relay_open(const jobq_loop *l, int32_t queue)
{
    return queue < l->queue_count && !l->queues[queue].paused &&
           (l->served.message_queues >> queue & 1) != 0;
}

static bool jobq__relay_closed(const jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        if (jobq__relay_open(l, i)) return false;
    }
    return true;
}

static void jobq__relay_init(jobq_loop *l, int64_t now)
{
    jobq_relay *r = &l->relay;

    r->look_mono_us = r->idle_mono_us = r->sweep_mono_us = now;
    r->busy_mono_us = r->missed_mono_us = JOBQ_NEVER;
    r->empty = !jobq__relay_serves(l);
}

/* Look again soon: messages may have come. */
static void jobq__relay_look(jobq_loop *l, int64_t now)
{
    l->relay.look_us = l->relay.linger_us = 0;
    l->relay.empty = !jobq__relay_serves(l);
    l->relay.look_mono_us = jobq__min(l->relay.look_mono_us, now);
}

/* Whether it holds a partition that was taken over from a dead worker. */
static bool jobq__relay_suspects(const jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->relay.count; i++) {
        if (l->relay.parts[i].suspect && jobq__relay_held(&l->relay.parts[i])) return true;
    }
    return false;
}

/* One whose takeover failed waits, and others are taken over meanwhile: still one at a time. */
static bool jobq__relay_readable(const jobq_loop *l, const jobq_part *p)
{
    return p->state == JOBQ_PART_AWAY && l->session.registered && !l->session.policies_stale &&
           !l->suspects.halts && l->phase == JOBQ_PHASE_WORKING && jobq__relay_open(l, p->queue) &&
           !(p->suspect && jobq__relay_suspects(l));
}

/* Counts the parts that can be read now, and wait for it. */
static int32_t jobq__relay_waiting(const jobq_loop *l, int64_t now)
{
    int32_t count = 0, i;

    for (i = 0; i < l->relay.count; i++) {
        const jobq_part *p = &l->relay.parts[i];
        count += jobq__relay_readable(l, p) && p->due_mono_us <= now;
    }
    return count;
}

static void jobq__part_count(jobq_loop *l, const jobq_part *p, jobq_tally_place place, int32_t by)
{
    if (by > 0) jobq__tally_add(&l->tallies, l->queues[p->queue].id, 0, place, by);
}

/* The part is not held. due_mono_us: when to read it, as far as is known now. */
static void jobq__relay_away(jobq_loop *l, jobq_part *p, int64_t due_mono_us)
{
    jobq__relay_move(&l->relay, p, JOBQ_PART_AWAY);
    p->due_mono_us = due_mono_us;
    p->renewing = p->resent = p->suspect = false;
    p->refused = 0;
}

/* -- what there is to read -- */

static jobq_part *jobq__relay_find(jobq_relay *r, int64_t id)
{
    int32_t i;

    for (i = 0; i < r->count; i++) {
        if (r->parts[i].id == id) return &r->parts[i];
    }
    return NULL;
}

/* Whether a part may lose its place: it is not held, and is not needed to find out what became of
 * its last delivery or which of its messages cannot be read. */
static bool jobq__relay_idles(const jobq_part *p)
{
    if (p->state != JOBQ_PART_AWAY) return false;
    if (p->due_mono_us == JOBQ_NEVER) return true;
    return p->handed == 0 && (p->failures == 0 || p->failures > JOBQ__PATIENCE);
}

static int32_t jobq__relay_batch(const jobq_loop *l, const jobq_part *p)
{
    return (int32_t)jobq__min(jobq__relay_tuning(l, p)->batch, JOBQ_LOOP_BATCH);
}

/* A free place, or that of the part that can be read last, if that is after due. NULL: neither. */
static jobq_part *jobq__relay_place(const jobq_loop *l, int64_t due)
{
    const jobq_relay *r = &l->relay;
    const jobq_part *last = NULL;
    int32_t i;

    if (r->count < JOBQ_LOOP_PARTITIONS) return (jobq_part *)(uintptr_t)&r->parts[r->count];
    for (i = 0; i < r->count; i++) {
        const jobq_part *p = &r->parts[i];
        int64_t at = jobq__relay_open(l, p->queue) ? p->due_mono_us : JOBQ_NEVER;
        if (!jobq__relay_idles(p) || at <= due) continue;
        last = p;
        due = at;
    }
    return (jobq_part *)(uintptr_t)last;
}

/* Gives a part to a partition that has none. NULL: there is no place. */
static jobq_part *jobq__relay_part(jobq_loop *l, int64_t id, int32_t queue, int32_t number,
                                   int64_t due)
{
    jobq_relay *r = &l->relay;
    jobq_part *place = jobq__relay_place(l, due);
    uint32_t generation;

    if (place == NULL) return NULL;
    if (place == &r->parts[r->count]) r->count++;
    else r->missed_mono_us = jobq__min(r->missed_mono_us, place->due_mono_us);
    generation = place->generation + 1;
    memset(place, 0, sizeof *place);
    place->generation = generation;
    place->id = id;
    place->queue = queue;
    place->number = number;
    place->pace_us = jobq__relay_tuning(l, place)->active_us;
    place->due_mono_us = due;
    place->paced_mono_us = INT64_MIN;
    place->acked = -1;
    place->budget = jobq__budget_full(jobq__relay_batch(l, place));
    jobq__relay_move(r, place, JOBQ_PART_AWAY);
    return place;
}

static jobq_watch *jobq__watch_find(jobq_relay *r, int64_t id)
{
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        if (r->watches[i].id == id) return &r->watches[i];
    }
    return NULL;
}

/* A free place, or one whose holder has moved. */
static jobq_watch *jobq__watch_place(jobq_relay *r)
{
    jobq_watch *place = jobq__watch_find(r, 0);
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_WATCHED && place == NULL; i++) {
        if (r->watches[i].moved) place = &r->watches[i];
    }
    if (place != NULL) memset(place, 0, sizeof *place);
    return place;
}

static void jobq__unwatch(jobq_relay *r, int64_t id)
{
    jobq_watch *watch = jobq__watch_find(r, id);

    if (watch != NULL) memset(watch, 0, sizeof *watch);
}

/* Another worker holds it. If all places have holders that do not move, a later look tries
 * again. */
static void jobq__watch_holder(jobq_relay *r, int64_t id, int32_t queue, int32_t number,
                               const jobq_holder *h, int64_t now)
{
    jobq_watch *watch = jobq__watch_find(r, id);

    if (watch == NULL) {
        watch = jobq__watch_place(r);
        if (watch == NULL) return;
        watch->id = id;
        watch->queue = queue;
        watch->number = number;
        watch->since_mono_us = now;
    } else if (h->worker != watch->holder.worker || h->claim != watch->holder.claim ||
               h->beat != watch->holder.beat) {
        watch->since_mono_us = now;
        watch->moved = true;
    }
    watch->holder = *h;
    watch->due_mono_us = jobq__add(watch->since_mono_us, h->lease_us);
}

/* Notes which message is next. Failures are blamed on the message that was next at the time. */
static void jobq__relay_next_is(jobq_part *p, int64_t acked)
{
    if (p->acked == acked) return;
    p->acked = acked;
    p->budget.single = 0;
}

/* Notes a partition that may be read when it is due. False: it is due now, and there is no
 * place. */
static bool jobq__relay_list(jobq_loop *l, const jobq_backlog *b, int32_t queue, jobq_part *p,
                             int64_t now)
{
    int64_t due = jobq__add(now, jobq__max(b->due_us, 0));

    jobq__unwatch(&l->relay, b->id);
    if (p != NULL) {
        due = jobq__max(due, p->paced_mono_us);
        if (b->due_us <= 0) due = jobq__min(due, p->due_mono_us); /* an earlier time counts */
    } else p = jobq__relay_part(l, b->id, queue, b->number, due);
    if (b->due_us <= 0) l->relay.found = true;
    if (p == NULL) {
        l->relay.missed_mono_us = jobq__min(l->relay.missed_mono_us, due);
        return due > now;
    }
    jobq__relay_next_is(p, b->acked);
    p->due_mono_us = due;
    p->below |= b->below;
    return true;
}

/* Takes in a partition that has messages. */
static void jobq__relay_backlog(jobq_loop *l, int64_t now, const jobq_backlog *b)
{
    jobq_relay *r = &l->relay;
    jobq_part *p;
    int32_t queue = jobq__queue_index(l, b->queue);

    if (r->crowded) return; /* a later LOOK lists it again */
    p = jobq__relay_find(r, b->id);
    if (p != NULL) jobq__relay_next_is(p, b->acked);
    if (jobq__relay_open(l, queue) && b->waiting > 0) {
        if (p != NULL && p->state != JOBQ_PART_AWAY) p->below |= b->below;
        else if (b->holder.worker != 0 && b->holder.worker != l->worker) {
            jobq__watch_holder(r, b->id, queue, b->number, &b->holder, now);
            if (p != NULL && !p->suspect) p->due_mono_us = JOBQ_NEVER;
        } else r->crowded = !jobq__relay_list(l, b, queue, p, now);
    }
    if (r->crowded) r->stats.crowded++;
    else r->after = jobq__max(r->after, b->id);
}

/* The round found something. More will come, so look again soon. */
static void jobq__relay_busy(jobq_loop *l, int64_t now)
{
    jobq_relay *r = &l->relay;

    if (r->busy_mono_us == JOBQ_NEVER) r->busy_mono_us = now;
    r->idle_mono_us = JOBQ_NEVER;
    r->look_us = 0;
    r->empty = false;
    r->linger_us = jobq__twice(r->linger_us, JOBQ__MS,
                               jobq__min(l->config.linger_us, JOBQ__LINGER_MESSAGES));
    r->look_mono_us = now + r->linger_us;
}

/* The longest time between two LOOKs. */
static int64_t jobq__look_most(const jobq_loop *l)
{
    int64_t most = l->config.poll_us + l->lease.rest_us;
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        if ((l->served.message_queues >> i & 1) == 0) continue;
        most = jobq__min(most, l->served.tuning[i].idle_us);
    }
    return most;
}

static void jobq__relay_idle(jobq_loop *l, int64_t now)
{
    jobq_relay *r = &l->relay;

    r->linger_us = 0;
    if (r->idle_mono_us == JOBQ_NEVER) r->idle_mono_us = now;
    r->busy_mono_us = JOBQ_NEVER;
    r->empty = !r->amid;
    r->look_us = jobq__twice(r->look_us, JOBQ__MS, jobq__look_most(l));
    r->look_mono_us = now + jobq__about(l, r->look_us);
    if (r->amid && !l->until.amid) r->look_mono_us = now;
}

/* A round of LOOKs has swept. While an old snapshot pins dead rows, a sweep in one piece would take
 * seconds, so it is made in slices: see jobq__slice_begin. They are kept, because a cheap sweep is
 * no proof: a partition that is just being read costs it nothing. A sweep rarely finds anything:
 * spend at most 1/50 of the time on sweeps, including those that timed out. */
static void jobq__relay_swept(jobq_loop *l, int64_t now)
{
    jobq_relay *r = &l->relay;
    int64_t pause = 50 * r->round_us, cost = jobq__sweep_cost(r->trip_us, r->round_us);

    r->sweep_cost_us += cost;
    r->sliced = r->slice_to;
    if (r->slice > 0) r->slice = jobq__slice_next(r->slice, cost, JOBQ__SLICE_IDS, r->sliced);
    if (r->slice_to == INT64_MAX) { /* the sweep has ended */
        pause = jobq__max(JOBQ__MINUTE, pause);
        if (r->slice > 0 || r->sweep_cost_us > JOBQ_LOOP_SLICE_COST_US / 2)
            r->slice = JOBQ__SLICE_IDS;
        r->sliced = r->sweep_cost_us = 0;
    }
    r->sweep_mono_us = now + pause;
}

static void jobq__relay_overran(jobq_loop *l, int64_t now)
{
    jobq_relay *r = &l->relay;
    int64_t cost;

    if (!jobq__overran(l, JOBQ_REQUEST_LOOK, now) || !r->sweeping) return;
    cost = now - l->wire.sent_mono_us[JOBQ_REQUEST_LOOK];
    r->sweep_mono_us = now + jobq__max(JOBQ__MINUTE, 50 * cost);
    r->slice = JOBQ__SLICE_IDS;
    r->sweeping = false;
}

static void jobq__tell_look(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq_relay *r = &l->relay;
    int32_t i;

    for (i = 0; a->error == JOBQ_OK && i < a->count; i++) {
        jobq__relay_backlog(l, now, &a->backlogs[i]);
    }
    jobq__answered(l, JOBQ_REQUEST_LOOK, now, a->error);
    if (a->error != JOBQ_OK) {
        jobq__relay_overran(l, now);
        return;
    }
    r->stats.looks++;
    r->round_us += now - l->wire.sent_mono_us[JOBQ_REQUEST_LOOK];
    if (!a->more && !r->crowded) r->after = 0;
    if (r->after == 0 && r->sweeping) jobq__relay_swept(l, now);
    else if (r->after == 0) jobq__trip(&r->trip_us, r->round_us);
    if (r->found) jobq__relay_busy(l, now);
    if (r->crowded) r->look_mono_us = now + JOBQ__LOOK_PAUSE; /* until a place is free, perhaps */
    else if (r->after != 0) r->look_mono_us = now; /* the round goes on */
    else if (!r->found) jobq__relay_idle(l, now);
}

/* -- reading -- */

/* Messages have arrived under our token. The lease counts from before the statement was sent. */
static void jobq__relay_here(jobq_loop *l, jobq_part *p, int32_t count, bool cut)
{
    const jobq_tuning *t = jobq__relay_tuning(l, p);
    const jobq_policy *policy = &l->queues[p->queue].policy;

    p->count = count;
    p->size = cut ? count : jobq__cursor_size(&p->cursor, p->size, p->lost);
    p->lease_mono_us = p->sent_mono_us + t->lease_us - t->headroom_us;
    p->failures = 0;
    p->renewing = p->resent = false;
    p->turn = ++l->relay.turn;
    p->generation++;
    p->given = jobq__outbox_open(policy, &p->cursor, p->lost, count, p->results);
    p->suspect = p->lost > 0;
    l->relay.stats.reads++;
    jobq__relay_move(&l->relay, p, JOBQ_PART_QUEUED);
}

/* Plans the acknowledgement of a delivery. The messages that its handler did not get are LEFT. */
static void jobq__relay_plan(jobq_loop *l, jobq_part *p, const jobq_verdict *verdict)
{
    jobq_verdict v = *verdict;

    v.count = p->count;
    v.size = p->size;
    jobq_outbox_plan(&l->queues[p->queue].policy, jobq__relay_tuning(l, p), &p->cursor, &v,
                     p->results, jobq_random_next(&l->random), &p->plan);
    jobq__relay_move(&l->relay, p, JOBQ_PART_FINISHED);
    p->due_mono_us = INT64_MIN;
}

/* Plans one result for all messages that a handler got or was to get: LEFT or RETRY. */
static void jobq__relay_all(jobq_loop *l, jobq_part *p, jobq_result result)
{
    jobq_verdict v;

    memset(&v, 0, sizeof v);
    v.result = result;
    v.processed = JOBQ_COUNT_UNKNOWN;
    memset(p->results, (int)result, (size_t)p->given);
    jobq__relay_plan(l, p, &v);
}

/* Gives messages back that no handler may get: the first is dead already, or the worker stops. */
static void jobq__relay_unwanted(jobq_loop *l, jobq_part *p)
{
    if (p->given == 0 || l->phase != JOBQ_PHASE_WORKING) jobq__relay_all(l, p, JOBQ_RESULT_LEFT);
}

/* After an error: when to try again. */
static int64_t jobq__relay_hold(jobq_part *p, int64_t now)
{
    int64_t wait = jobq__patience(p->failures);

    if (p->failures < UINT32_MAX) p->failures++;
    return now + wait;
}

/* Whether an answer keeps to what was asked for. */
static bool jobq__reading_good(const jobq_reading *r, int32_t size)
{
    return r->count >= 0 && r->count <= size && r->lost >= 0 &&
           jobq_cursor_check(&r->cursor) == JOBQ_OK;
}

/* A READ, or an ACK that reads on, failed. Only a message that is read alone can be to blame, and
 * only while the server answers other statements. */
static void jobq__relay_failed(jobq_loop *l, jobq_part *p, bool blamed)
{
    bool aside = jobq__budget_blames(&p->budget);
    bool well = blamed && jobq__well(l, JOBQ_REQUEST_READ) && p->state == JOBQ_PART_READING;

    jobq__budget_failed(&p->budget, p->size, well);
    if (aside) p->budget.single = 0; /* setting it aside failed too: read it again */
}

/* A READ, or an ACK that reads on, was answered. carried: it brought messages or set one aside. An
 * answer without any (the row is locked, perhaps by the READ that got no answer) does not show what
 * a READ can carry. */
static void jobq__relay_answered(jobq_loop *l, jobq_part *p, bool carried)
{
    if (carried) jobq__budget_worked(&p->budget, jobq__relay_batch(l, p));
    l->wire.well = UINT32_MAX;
}

/* Nothing was read: decides when to try again. */
static void jobq__relay_unread(jobq_loop *l, jobq_part *p, const jobq_reading *reading, int64_t now)
{
    jobq_watch *watch;

    jobq__relay_move(&l->relay, p, JOBQ_PART_AWAY);
    p->due_mono_us = JOBQ_NEVER;
    p->failures = 0;
    if (reading->busy) {
        p->due_mono_us = now + 5 * JOBQ__MS;
        return;
    }
    p->suspect = false;
    p->handed = 0;
    if (reading->aside) {
        l->relay.stats.aside++;
        l->relay.stats.dead++;
        jobq__part_count(l, p, JOBQ_TALLY_DEAD, 1);
        l->vacuum_rows++;
        p->due_mono_us = now;
    } else if (reading->due_us > 0) p->due_mono_us = jobq__add(now, reading->due_us);
    if (reading->holder.worker == 0) return;
    jobq__watch_holder(&l->relay, p->id, p->queue, p->number, &reading->holder, now);
    watch = jobq__watch_find(&l->relay, p->id);
    if (watch == NULL) return;
    watch->due_mono_us = jobq__max(watch->due_mono_us, now + reading->holder.lease_us / 8 + 1);
}

/* The part that an answer is for. */
static jobq_part *jobq__relay_asked(jobq_loop *l, const jobq_answer *a)
{
    JOBQ_ASSERT(a->slot >= 0 && a->slot < l->relay.count);
    return &l->relay.parts[a->slot];
}

static void jobq__tell_read(jobq_loop *l, int64_t now, jobq_answer *a)
{
    const jobq_reading *reading = &a->reading;
    jobq_part *p = jobq__relay_asked(l, a);
    jobq_error error = a->error;

    if (p->state != JOBQ_PART_READING) return;
    if (error == JOBQ_OK && !jobq__reading_good(reading, p->size)) error = JOBQ_ERROR_INVALID;
    if (error != JOBQ_OK) {
        jobq__relay_failed(l, p, error != JOBQ_ERROR_RETRYABLE);
        jobq__relay_move(&l->relay, p, JOBQ_PART_AWAY);
        p->due_mono_us = p->paced_mono_us = jobq__relay_hold(p, now);
        return;
    }
    jobq__relay_answered(l, p, reading->count > 0 || reading->aside);
    if (!reading->busy && reading->holder.worker == 0) jobq__unwatch(&l->relay, p->id);
    if (reading->count > 0) {
        if (p->holder.worker != 0 || reading->lost > 0) l->relay.stats.takeovers++;
        p->cursor = reading->cursor;
        p->lost = reading->lost;
        jobq__relay_here(l, p, reading->count, reading->cut);
        jobq__relay_unwanted(l, p);
        return;
    }
    jobq__relay_unread(l, p, reading, now);
}

/* ---- >>ack: handing out messages, and what becomes of them ----------------------------------- */

static int32_t jobq__take_messages(jobq_loop *l, int64_t mono_us)
{
    int32_t first = -1, i;
    jobq_part *p;

    JOBQ_ASSERT(l != NULL);
    if (l->phase != JOBQ_PHASE_WORKING || l->relay.count == 0) return -1;
    if (!jobq__thread_free(l, mono_us)) return -1;
    for (i = 0; i < l->relay.count; i++) {
        p = &l->relay.parts[i];
        if (p->state != JOBQ_PART_QUEUED || mono_us >= p->lease_mono_us) continue;
        if (first < 0 || p->turn < l->relay.parts[first].turn) first = i;
    }
    if (first < 0) return -1;
    p = &l->relay.parts[first];
    jobq__relay_move(&l->relay, p, JOBQ_PART_RUNNING);
    p->handed = p->claim;
    p->renew_mono_us = p->sent_mono_us + jobq__relay_tuning(l, p)->lease_us / 3;
    p->budget_mono_us = jobq__add(mono_us, l->queues[p->queue].policy.timeout_us > 0
                                               ? l->queues[p->queue].policy.timeout_us
                                               : jobq__relay_tuning(l, p)->budget_us);
    l->relay.stats.delivered += p->given;
    jobq__part_count(l, p, JOBQ_TALLY_DELIVERED, p->given);
    return first;
}

/* Whether the lease is renewed while the handler runs, because it may run longer than the lease. */
static bool jobq__relay_renews(const jobq_loop *l, const jobq_part *p)
{
    return p->budget_mono_us > p->sent_mono_us + jobq__relay_tuning(l, p)->lease_us -
                                   jobq__relay_tuning(l, p)->headroom_us;
}

/* When a handler is abandoned: half the headroom after it was asked to stop, because its time limit
 * or the lease ended. */
static int64_t jobq__relay_deadline(const jobq_loop *l, const jobq_part *p)
{
    return jobq__add(jobq__min(p->budget_mono_us, p->lease_mono_us),
                     jobq__relay_tuning(l, p)->headroom_us / 2);
}

static jobq_part *jobq__relay_of(jobq_loop *l, int32_t part, uint32_t generation)
{
    jobq_part *p;

    JOBQ_ASSERT(l != NULL && part >= 0 && part < JOBQ_LOOP_PARTITIONS);
    p = &l->relay.parts[part];
    return p->generation == generation && jobq__relay_runs(p) ? p : NULL;
}

static void jobq__relay_count(jobq_relay_stats *stats, const jobq_plan *plan)
{
    stats->succeeded += plan->done - plan->dead;
    stats->dead += plan->dead;
    stats->retried += plan->failed >= 0;
}

static jobq_stop jobq__delivery_stop(const jobq_loop *l, int64_t mono_us, int32_t part,
                                     uint32_t generation)
{
    const jobq_part *p;

    JOBQ_ASSERT(l != NULL && part >= 0 && part < JOBQ_LOOP_PARTITIONS);
    p = &l->relay.parts[part];
    if (p->generation != generation || !jobq__relay_runs(p)) return JOBQ_STOP_LOST;
    if (mono_us >= p->lease_mono_us) return JOBQ_STOP_LOST;
    if (mono_us >= p->budget_mono_us) return JOBQ_STOP_TIMEOUT;
    return l->phase == JOBQ_PHASE_WORKING ? JOBQ_STOP_NONE : JOBQ_STOP_SHUTDOWN;
}

/* -- acknowledging -- */

/* An acknowledgement is written and the lease given up: decides when to read again. While other
 * partitions wait, this one also loses its place; a look finds it again. */
static void jobq__relay_written(jobq_loop *l, jobq_part *p, int64_t now)
{
    const jobq_tuning *t = jobq__relay_tuning(l, p);
    int64_t wait = jobq__pace_wait(t, &p->pace_us, p->plan.directive);
    bool idle = p->on || p->plan.directive.kind == JOBQ_DIRECTIVE_IDLE; /* it read on: none left */

    p->handed = 0; /* over: if a crashed server forgets this, the hold that it shows is no crash */
    p->paced_mono_us = idle ? INT64_MIN : jobq__add(now, wait);
    idle = idle || jobq__relay_waiting(l, now) > 0;
    jobq__relay_away(l, p, idle ? JOBQ_NEVER : p->paced_mono_us);
    jobq__relay_look(l, now);
}

static void jobq__relay_settled(jobq_loop *l, jobq_part *p)
{
    jobq__relay_count(&l->relay.stats, &p->plan);
    jobq__part_count(l, p, JOBQ_TALLY_ACKNOWLEDGED, p->plan.done - p->plan.dead);
    jobq__part_count(l, p, JOBQ_TALLY_DEAD, p->plan.dead);
    jobq__part_count(l, p, JOBQ_TALLY_REPEATED, p->plan.failed >= 0);
    l->vacuum_rows += p->plan.done;
    p->failures = 0;
}

/* LOST: another worker took the partition, or our unanswered ACK had committed, or a crashed server
 * forgot a commit. A READ finds out. A hold of our own that it finds killed no worker, and no
 * handler got the messages that an ACK read on. */
static void jobq__relay_lost(jobq_loop *l, jobq_part *p, int64_t now)
{
    if (!p->resent) l->relay.stats.lost++;
    jobq__relay_away(l, p, now);
    p->handed = 0;
    jobq__relay_look(l, now);
}

/* An ACK failed or got no answer. The next one does not read on, and those after it leave out the
 * texts of handlers. If they fail too, this worker lets go, and what was handled comes again as
 * after a crash. */
static void jobq__relay_unacked(jobq_loop *l, jobq_part *p, bool blamed, int64_t now)
{
    int64_t again = jobq__relay_hold(p, now);

    if (p->on) jobq__relay_failed(l, p, false);
    else if (blamed) p->refused++;
    if (p->refused > JOBQ__BLAME) {
        jobq__relay_away(l, p, again);
        return;
    }
    jobq__relay_move(&l->relay, p, JOBQ_PART_FINISHED);
    p->due_mono_us = again;
}

static void jobq__tell_ack(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq_part *p = jobq__relay_asked(l, a);
    int32_t count = a->reading.count;
    jobq_error error = a->error;

    if (p->state != JOBQ_PART_ACKING) return;
    if (error == JOBQ_OK && (count < 0 || count > p->size)) error = JOBQ_ERROR_INVALID;
    if (error == JOBQ_ERROR_LOST) {
        jobq__relay_lost(l, p, now);
        return;
    }
    if (error != JOBQ_OK) {
        jobq__relay_unacked(l, p, error != JOBQ_ERROR_RETRYABLE, now);
        return;
    }
    jobq__relay_settled(l, p);
    if (p->on) jobq__relay_answered(l, p, count > 0);
    if (count == 0) {
        jobq__relay_written(l, p, now);
        return;
    }
    p->cursor = p->plan.cursor;
    p->lost = 0;
    jobq__pace_wait(jobq__relay_tuning(l, p), &p->pace_us, p->plan.directive);
    jobq__relay_here(l, p, count, a->reading.cut);
    jobq__relay_unwanted(l, p);
}

static void jobq__tell_renew(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq_part *p = jobq__relay_asked(l, a);

    if (p->generation != a->generation || !p->renewing) return;
    p->renewing = false;
    if (a->error == JOBQ_ERROR_LOST) { /* the handler must stop; its plan will be refused */
        p->lease_mono_us = jobq__min(p->lease_mono_us, now);
        p->renew_mono_us = JOBQ_NEVER;
        return;
    }
    if (a->error != JOBQ_OK) {
        p->renew_mono_us = now + 50 * JOBQ__MS;
        return;
    }
    l->relay.stats.renewals++;
    p->lease_mono_us = p->renew_mono_us + jobq__relay_tuning(l, p)->lease_us -
                       jobq__relay_tuning(l, p)->headroom_us; /* when RENEW was sent */
    p->renew_mono_us += jobq__relay_tuning(l, p)->lease_us / 3;
}

/* -- connections and stops -- */

/* The part whose statement the server was executing, if that is known. The server executes in the
 * order of sending. Of statements sent at the same time, flushes and the heartbeat go before those
 * of parts, and all others after them. */
static const jobq_part *jobq__relay_current(const jobq_loop *l)
{
    const jobq_part *first = NULL;
    int32_t i;
    int kind;

    for (i = 0; i < l->relay.count; i++) {
        const jobq_part *p = &l->relay.parts[i];
        if (p->state != JOBQ_PART_READING && p->state != JOBQ_PART_ACKING) continue;
        if (first == NULL || p->turn < first->turn) first = p;
    }
    for (kind = 0; kind < JOBQ_REQUEST_COUNT && first != NULL; kind++) {
        if ((JOBQ__ASIDE >> kind & 1) != 0 || !jobq__sent(l, (jobq_request_kind)kind)) continue;
        if (l->wire.sent_mono_us[kind] < first->sent_mono_us ||
            (kind <= JOBQ_REQUEST_HEARTBEAT && l->wire.sent_mono_us[kind] == first->sent_mono_us &&
             kind >= JOBQ_REQUEST_COMPLETE)) {
            first = NULL;
        }
    }
    return first;
}

static void jobq__relay_disconnected(jobq_loop *l, int64_t now)
{
    const jobq_part *current = jobq__relay_current(l);
    int32_t i;

    memset(l->relay.watches, 0, sizeof l->relay.watches); /* an outage proves no worker dead */
    for (i = 0; i < l->relay.count; i++) {
        jobq_part *p = &l->relay.parts[i];
        p->renewing = false;
        if (p->state == JOBQ_PART_READING) {
            jobq__relay_failed(l, p, p == current);
            jobq__relay_away(l, p, jobq__relay_hold(p, now));
        } else if (p->state == JOBQ_PART_AWAY) { /* a look or a read will tell */
            p->due_mono_us = p->handed == 0 ? JOBQ_NEVER : now;
        } else if (p->state == JOBQ_PART_ACKING) {
            jobq__relay_unacked(l, p, p == current && jobq__well(l, JOBQ_REQUEST_ACK), now);
            p->resent = jobq__relay_held(p);
        }
    }
    jobq__relay_look(l, now);
}

static void jobq__relay_stop(jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->relay.count; i++) {
        if (l->relay.parts[i].state == JOBQ_PART_QUEUED) {
            jobq__relay_all(l, &l->relay.parts[i], JOBQ_RESULT_LEFT);
        }
    }
}

/* ---- >>relay_next: what to do next about messages -------------------------------------------- */

/* How many more partitions to hold: up to one for each thread, or half of that while jobs need
 * threads. */
static int32_t jobq__relay_want(const jobq_loop *l)
{
    int32_t most = l->config.threads;

    if (l->queued.count + l->running_count > 0) most = (most + 1) / 2;
    return most - l->relay.held;
}

/* A LOOK lists as many as there are places. While all threads are busy the next round waits longer,
 * because it only tells whether others wait for them. */
static int64_t jobq__due_look(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    const jobq_relay *r = &l->relay;
    int64_t sent = l->wire.sent_mono_us[kind];
    int64_t at = jobq__min(r->look_mono_us, jobq__max(r->missed_mono_us, sent + JOBQ__LOOK_PAUSE));

    if (!jobq__relay_serves(l) || !l->session.registered || l->phase != JOBQ_PHASE_WORKING ||
        l->session.policies_stale || l->suspects.halts || jobq__sent(l, kind) ||
        jobq__relay_closed(l) || 2 * jobq__relay_waiting(l, now) >= JOBQ_LOOP_PARTITIONS) {
        return JOBQ_NEVER;
    }
    if (jobq__relay_want(l) <= 0 && r->after == 0) {
        at = jobq__max(at, sent + (r->found ? JOBQ__TURN : l->config.poll_us));
    }
    return jobq__max(at, l->wire.hold_mono_us[kind]);
}

/* The partition to take over next; NULL: none. Its last holder died, perhaps because of these
 * messages, so take over only one such partition at a time. */
static const jobq_watch *jobq__due_watch(const jobq_loop *l, int64_t now)
{
    const jobq_watch *first = NULL;
    int32_t i;

    for (i = 0; i < l->relay.count; i++) {
        const jobq_part *p = &l->relay.parts[i];
        if (p->suspect && (jobq__relay_held(p) ||
                           (p->due_mono_us <= now && jobq__relay_open(l, p->queue)))) return NULL;
    }
    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        const jobq_watch *watch = &l->relay.watches[i];
        if (watch->id == 0 || !jobq__relay_open(l, watch->queue)) continue;
        if (first == NULL || watch->due_mono_us < first->due_mono_us) first = watch;
    }
    return first;
}

/* When that is due, if it is not due already. */
static int64_t jobq__due_take_over(const jobq_loop *l, int64_t now)
{
    const jobq_watch *watch = jobq__due_watch(l, now);

    return watch == NULL || watch->due_mono_us <= now ? JOBQ_NEVER : watch->due_mono_us;
}

/* Gives it a part when it is due and there is a place. */
static void jobq__relay_take_over(jobq_loop *l, int64_t now)
{
    jobq_watch *watch = (jobq_watch *)(uintptr_t)jobq__due_watch(l, now);
    jobq_part *p;

    if (watch == NULL || watch->due_mono_us > now) return;
    p = jobq__relay_find(&l->relay, watch->id);
    if (p == NULL) {
        p = jobq__relay_part(l, watch->id, watch->queue, watch->number, watch->due_mono_us);
    }
    if (p == NULL) return;
    if (p->state == JOBQ_PART_AWAY) {
        p->due_mono_us = watch->due_mono_us;
        p->suspect = true;
    }
    watch->due_mono_us = JOBQ_NEVER;
}

/* When a part needs a statement next. */
static int64_t jobq__due_part(const jobq_loop *l, const jobq_part *p)
{
    if (jobq__relay_readable(l, p)) {
        return jobq__relay_want(l) > 0 ? p->due_mono_us : JOBQ_NEVER;
    }
    if (p->state == JOBQ_PART_FINISHED) return p->due_mono_us;
    if (p->state == JOBQ_PART_QUEUED) return p->lease_mono_us;
    if (p->state != JOBQ_PART_RUNNING || p->renewing) return JOBQ_NEVER;
    return jobq__relay_renews(l, p) ? p->renew_mono_us : JOBQ_NEVER;
}

/* The part in this state whose statement is due first; NULL: none. */
static jobq_part *jobq__first_part(const jobq_loop *l, jobq_part_state state, int64_t *due)
{
    const jobq_part *first = NULL;
    int32_t i;

    *due = JOBQ_NEVER;
    for (i = 0; i < l->relay.count; i++) {
        const jobq_part *p = &l->relay.parts[i];
        int64_t at = p->state == state ? jobq__due_part(l, p) : JOBQ_NEVER;
        if (at >= *due) continue;
        first = p;
        *due = at;
    }
    return (jobq_part *)(uintptr_t)first;
}

/* ACK, RENEW and READ are about one part each, in this state. */
static jobq_part_state jobq__part_asks(jobq_request_kind kind)
{
    return kind == JOBQ_REQUEST_ACK     ? JOBQ_PART_FINISHED
           : kind == JOBQ_REQUEST_RENEW ? JOBQ_PART_RUNNING
           : kind == JOBQ_REQUEST_READ  ? JOBQ_PART_AWAY
                                        : JOBQ_PART_NONE;
}

static int64_t jobq__due_of_parts(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    int64_t due;

    (void)now;
    jobq__first_part(l, jobq__part_asks(kind), &due);
    return due;
}

static int64_t jobq__due_part_answer(const jobq_loop *l)
{
    int64_t first = JOBQ_NEVER;
    int32_t i;

    for (i = 0; i < l->relay.count; i++) {
        const jobq_part *p = &l->relay.parts[i];
        if (p->state == JOBQ_PART_READING || p->state == JOBQ_PART_ACKING) {
            first = jobq__min(first, p->sent_mono_us);
        }
    }
    return first;
}

/* For a worker that runs until empty: whether nothing is left to do about messages. */
static bool jobq__relay_empty(const jobq_loop *l)
{
    if (l->relay.held > 0) return false;
    return !jobq__relay_serves(l) || l->relay.empty ||
           (l->session.registered && !l->session.policies_stale && jobq__relay_closed(l));
}

/* -- what to do next: making the requests -- */

/* The part that a request is about, and its token. */
static void jobq__name_part(const jobq_loop *l, const jobq_part *p, jobq_request *a)
{
    a->slot = (int32_t)(p - l->relay.parts);
    a->generation = p->generation;
    a->partition_id = p->id;
    a->worker = p->worker;
    a->claim = p->claim;
    a->lease_us = jobq__relay_tuning(l, p)->lease_us;
}

/* Each READ has a token of its own, so that a READ that arrives late is recognized. */
static void jobq__make_read(jobq_loop *l, int64_t now, jobq_request *a)
{
    int64_t due;
    jobq_part *p = jobq__first_part(l, JOBQ_PART_AWAY, &due);
    const jobq_watch *watch = jobq__watch_find(&l->relay, p->id);

    memset(&p->holder, 0, sizeof p->holder);
    if (watch != NULL && p->suspect) p->holder = watch->holder;
    p->worker = l->worker;
    p->claim = ++l->number;
    p->size = (int32_t)jobq__min(jobq__relay_batch(l, p), p->budget.rows);
    p->turn = ++l->relay.turn;
    p->sent_mono_us = p->taken_mono_us = now;
    p->suspect = p->holder.worker != 0;
    jobq__relay_move(&l->relay, p, JOBQ_PART_READING);
    jobq__name_part(l, p, a);
    a->watched = p->holder;
    a->limit = p->size;
    a->bytes = p->budget.bytes;
    a->handed = p->handed;
    a->aside = jobq__budget_blames(&p->budget) && p->acked >= 0;
    a->acked = a->aside ? p->acked : 0;
    a->sweep = p->below;
    p->below = false;
}

/* Whether a partition is given up because others wait and it has had its turn. */
static bool jobq__relay_yields(const jobq_loop *l, const jobq_part *p, int64_t now)
{
    const jobq_watch *watch = jobq__due_watch(l, now);

    return now - p->taken_mono_us >= JOBQ__TURN &&
           (jobq__relay_waiting(l, now) > 0 || (watch != NULL && watch->due_mono_us <= now));
}

/* What the acknowledgement of a part's delivery writes. */
static void jobq__ack_of(const jobq_loop *l, const jobq_part *p, jobq_ack *ack)
{
    ack->before = p->cursor.acked;
    ack->given = p->given;
    ack->max_attempts = l->queues[p->queue].policy.max_attempts;
    ack->bare = p->refused > 0;
    ack->plan = p->plan;
    memcpy(ack->results, p->results, (size_t)p->count);
}

/* Reads on in the same statement if more messages are likely and wanted. Not after an error:
 * reading may be its cause, and what is done must be acknowledged. */
static void jobq__make_ack(jobq_loop *l, int64_t now, jobq_request *a)
{
    int64_t due;
    jobq_part *p = jobq__first_part(l, JOBQ_PART_FINISHED, &due);
    int32_t batch = (int32_t)jobq__min(jobq__relay_batch(l, p), p->budget.rows);
    bool on = p->plan.directive.kind == JOBQ_DIRECTIVE_PROCEED && p->plan.done > 0 &&
              l->phase == JOBQ_PHASE_WORKING && p->pace_us == 0 && p->failures == 0 &&
              !l->suspects.halts && jobq__relay_open(l, p->queue) && !jobq__relay_yields(l, p, now);

    jobq__name_part(l, p, a);
    jobq__ack_of(l, p, &a->ack);
    a->relaxed = true;
    p->size = jobq__cursor_size(&p->plan.cursor, batch, 0);
    p->turn = ++l->relay.turn;
    p->sent_mono_us = now;
    jobq__relay_move(&l->relay, p, JOBQ_PART_ACKING);
    p->on = on && jobq__relay_want(l) >= 0;
    if (!p->on) return;
    a->limit = p->size;
    a->bytes = p->budget.bytes;
    a->sweep = p->below;
    p->below = false;
}

/* Abandons a handler whose time is up. Its messages are retried or, at a stop, given back. If its
 * own transaction is committing, only the store knows what became of them. */
static void jobq__part_abandon(jobq_loop *l, jobq_part *p, int64_t now, jobq_request *a)
{
    l->stats.abandoned++;
    jobq__ask_for(a, JOBQ_REQUEST_ABANDON);
    jobq__name_part(l, p, a);
    a->committing = p->state == JOBQ_PART_COMMITTING;
    a->stopping = l->phase != JOBQ_PHASE_WORKING;
    if (a->committing) {
        jobq__relay_away(l, p, jobq__relay_hold(p, now));
        return;
    }
    jobq__relay_all(l, p, a->stopping ? JOBQ_RESULT_LEFT : JOBQ_RESULT_RETRY);
    jobq__ack_of(l, p, &a->ack);
}

static int64_t jobq__part_end(const jobq_loop *l, const jobq_part *p)
{
    if (!jobq__relay_runs(p)) return JOBQ_NEVER;
    return jobq__min(jobq__relay_deadline(l, p), l->stop_mono_us);
}

/* When the first handler of messages must be abandoned. */
static int64_t jobq__relay_end(const jobq_loop *l)
{
    int64_t first = JOBQ_NEVER;
    int32_t i;

    for (i = 0; i < l->relay.count; i++) {
        first = jobq__min(first, jobq__part_end(l, &l->relay.parts[i]));
    }
    return first;
}

static bool jobq__relay_abandon(jobq_loop *l, int64_t now, jobq_request *a)
{
    int32_t i;

    for (i = 0; i < l->relay.count; i++) {
        if (now < jobq__part_end(l, &l->relay.parts[i])) continue;
        jobq__part_abandon(l, &l->relay.parts[i], now, a);
        return true;
    }
    return false;
}

static void jobq__make_renew(jobq_loop *l, int64_t now, jobq_request *a)
{
    int64_t due;
    jobq_part *p = jobq__first_part(l, JOBQ_PART_RUNNING, &due);

    p->renewing = true;
    p->renew_mono_us = now;
    jobq__name_part(l, p, a);
}

static void jobq__make_look(jobq_loop *l, int64_t now, jobq_request *a)
{
    jobq_relay *r = &l->relay;
    int32_t i;

    if (r->after == 0) { /* a new round */
        r->sweeping = now >= r->sweep_mono_us;
        r->slice_to = r->slice == 0 || r->slice > JOBQ__SLICE_IDS_MAX ? INT64_MAX
                                                                      : r->sliced + r->slice;
        r->round_us = 0;
        r->found = r->amid = false;
        r->missed_mono_us = JOBQ_NEVER;
    }
    if (r->crowded) a->limit = (int32_t)jobq__min(a->limit, JOBQ_LOOP_PARTITIONS);
    r->amid |= l->until.amid;
    r->crowded = false;
    a->id = r->after;
    a->sweep = r->sweeping;
    a->below_from = r->sweeping ? r->sliced : 0;
    a->below_to = r->sweeping && r->slice > 0 ? r->slice_to : 0;
    for (i = 0; i < l->queue_count; i++) {
        if (jobq__relay_open(l, i)) a->message_queues[a->message_queue_count++] = l->queues[i].id;
    }
}

/* Called before any request is made. Gives back what no thread took in time, and takes a partition
 * over if that is due. Returns when the next such thing is due. */
static int64_t jobq__relay_prepare(jobq_loop *l, int64_t now)
{
    int64_t due;
    jobq_part *p;

    if (!jobq__relay_serves(l)) return JOBQ_NEVER;
    jobq__relay_take_over(l, now);
    while ((p = jobq__first_part(l, JOBQ_PART_QUEUED, &due)) != NULL && due <= now) {
        jobq__relay_all(l, p, JOBQ_RESULT_LEFT);
    }
    return jobq__min(due, jobq__due_take_over(l, now));
}

/* When anything about messages is due next. */
static int64_t jobq__due_relay(const jobq_loop *l, int64_t now)
{
    int64_t due;
    int32_t i;

    if (!jobq__relay_serves(l)) return JOBQ_NEVER;
    due = jobq__due_take_over(l, now);
    for (i = 0; i < l->relay.count; i++) {
        due = jobq__min(due, jobq__due_part(l, &l->relay.parts[i]));
    }
    return jobq__min(due, jobq__due_look(l, JOBQ_REQUEST_LOOK, now));
}

/* ---- >>take: handing out jobs ---------------------------------------------------------------- */

/* From here to >>next: the loop's part for jobs, and what joins both parts. It calls >>relay, which
 * calls only what is before it. Each statement has three functions: due says when to send it
 * (JOBQ_NEVER: not wanted), make fills in what only its kind of request has, tell takes the answer.
 * jobq__activities, in >>next, lists them all. */

/* The worker is dead, or was told so. What waits now belongs to others. What runs is told to stop.
 * What is finished is still sent: its token guards the write. refused: a heartbeat said so. */
static void jobq__die(jobq_loop *l, bool refused)
{
    int32_t i;

    l->stats.deaths++;
    jobq__tally_die(&l->tallies, refused);
    while ((i = jobq__pop(l, &l->queued)) >= 0) jobq__slot_free(l, i);
    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        jobq_claim *c = &l->claims[i];
        if (c->state != JOBQ_CLAIM_SENT && c->open == 0) c->state = JOBQ_CLAIM_NONE;
    }
    l->orphan_count = 0;
    l->permits.share_count = 0; /* what it had is its old id's, until its jobs have been rescued */
    l->blame.named = l->blame.accused = 0;
    l->worker = 0;
    l->session.registered = false;
    l->lease.end_mono_us = INT64_MIN;
    l->lease.alive_mono_us = JOBQ_NEVER;
    l->sleep.asleep = false;
}

/* Zeroes memory, but writes only where something stands: pages that calloc has given and nobody has
 * used stay out of memory. */
static void jobq__clear(void *block, size_t size)
{
    char *at = (char *)block;
    size_t piece;

    for (; size > 0; size -= piece, at += piece) {
        piece = size < 4096 ? size : 4096;
        if (at[0] != 0 || memcmp(at, at + 1, piece - 1) != 0) memset(at, 0, piece);
    }
}

/* When a loop prunes first. Short-lived workers prune at once with probability 1/8; otherwise a
 * system that has no others would never prune. */
static int64_t jobq__first_prune(jobq_loop *l)
{
    int64_t any = jobq_random_between(jobq_random_next(&l->random), 0, l->config.prune_us);

    if (l->config.until == JOBQ_UNTIL_STOPPED) return any;
    return jobq_random_between(jobq_random_next(&l->random), 0, 7) == 0 ? 0 : any;
}

JOBQ_API void jobq_loop_init(jobq_loop *l, const jobq_loop_config *config, uint64_t entropy,
                             int64_t mono_us)
{
    int32_t i;

    JOBQ_ASSERT(l != NULL);
    jobq__clear(l, sizeof *l);
    l->config = jobq_loop_config_defaults(config);
    l->random.state = entropy;
    l->free = l->queued = l->done = l->others = l->sent_done = l->sent_others = jobq__empty;
    l->fresh = JOBQ_LOOP_SLOTS;
    l->batch.per_call = l->batch.least = 1;
    l->lease.end_mono_us = INT64_MIN;
    l->lease.alive_mono_us = l->flush.due_mono_us = l->pace.due_mono_us = l->pace.busy_mono_us =
        l->late_mono_us = JOBQ_NEVER;
    l->stop_mono_us = l->deadline_mono_us = l->suspects.alone_mono_us = l->suspects.halts_mono_us =
        JOBQ_NEVER;
    l->suspects.rescue_mono_us = l->pace.left_mono_us = INT64_MIN;
    l->pace.idle_mono_us = l->pace.claim_mono_us = l->session.connect_mono_us = mono_us;
    l->sweep.next_mono_us = l->pace.full_mono_us = l->lease.beat_mono_us = mono_us;
    l->sleep.told_mono_us = mono_us - JOBQ__SECOND;
    l->wire.hold_mono_us[JOBQ_REQUEST_PRUNE] = jobq__add(mono_us, jobq__first_prune(l));
    if (l->config.served != NULL) l->served = *l->config.served;
    l->config.served = NULL;
    for (i = 0; i < JOBQ_LOOP_QUEUES; i++)
        l->served.tuning[i] = jobq_tuning_defaults(&l->served.tuning[i]);
    l->pace.handler_us = -1;
    for (i = 0; i < 2; i++) l->wire.suspect_budgets[i] = jobq__budget_full(1);
    for (i = 0; i < JOBQ_REQUEST_COUNT; i++) {
        l->wire.budgets[i] = jobq__budget_full(jobq__rows_max(l, (jobq_request_kind)i));
    }
    jobq__relay_init(l, mono_us);
}

/* There may be a job: claim now, and again soon. */
static void jobq__look_again(jobq_loop *l, int64_t now)
{
    l->sweep.empty = false;
    l->pace.look_us = 0;
    if (l->pace.linger_us == 0) l->pace.claim_mono_us = jobq__min(l->pace.claim_mono_us, now);
}

/* -- kinds with a limit: law (19) -- */

static jobq_limit *jobq__limit_of(jobq_loop *l, int32_t kind)
{
    int32_t i = 0;

    while (i < l->limited.count && l->limited.limits[i].kind != kind) i++;
    return i < l->limited.count ? &l->limited.limits[i] : NULL;
}

static bool jobq__limit_full(const jobq_limit *limit)
{
    return limit != NULL && limit->held >= limit->most;
}

/* Counts a job. False: its kind is at its limit without it. */
static bool jobq__limit_takes(jobq_loop *l, int32_t slot)
{
    jobq_limit *limit = jobq__limit_of(l, l->slots[slot].job.kind);

    if (jobq__limit_full(limit)) return false;
    if (limit != NULL) limit->held++;
    return true;
}

/* Counts the jobs that run, and those of a list that wait for a thread. */
static void jobq__limits_count(jobq_loop *l, const jobq_list *waiting)
{
    int32_t i;

    if (l->limited.count == 0) return;
    for (i = 0; i < l->limited.count; i++) l->limited.limits[i].held = 0;
    for (i = 0; i < l->running_count; i++) jobq__limit_takes(l, l->running[i]);
    for (i = waiting->head; i >= 0; i = l->slots[i].next) jobq__limit_takes(l, i);
    for (i = 0; i < l->queue_count; i++) l->queues[i].open = l->queues[i].kinds;
    for (i = 0; i < l->limited.count; i++) {
        const jobq_limit *limit = &l->limited.limits[i];
        if (jobq__limit_full(limit) && limit->queue >= 0) l->queues[limit->queue].open--;
    }
}

/* A job has left the threads or the wait for one. Claims may take its kind again. If one has passed
 * the kind's jobs by, a sweep finds them. */
static void jobq__limit_freed(jobq_loop *l, int32_t kind, int64_t now)
{
    jobq_limit *limit = jobq__limit_of(l, kind);

    if (limit == NULL) return;
    if (limit->queue >= 0) l->queues[limit->queue].open = l->queues[limit->queue].kinds;
    if (limit->passed) jobq__sweep_soon(l, now);
    limit->passed = false;
    jobq__look_again(l, now);
}

/* Notes a kind, the i-th of the configuration, if its handler gets batches. */
static void jobq__batching_add(jobq_loop *l, int32_t i, int32_t kind, int32_t threads)
{
    jobq_batching *b = &l->batch.kinds[l->batch.count];

    if (l->served.kind_batches[i] <= 1) return;
    b->kind = kind;
    b->most = l->served.kind_batches[i];
    b->threads = threads;
    b->wait_us = jobq__max(l->served.kind_waits_us[i], 0);
    l->batch.count++;
    l->batch.per_call = (int32_t)jobq__max(l->batch.per_call, b->most);
    if (b->wait_us > 0) l->batch.least = 2;
}

/* The store knows the worker's kinds by these ids, in the order of the configuration. */
static void jobq__limits_set(jobq_loop *l, const int32_t *kinds, int32_t count)
{
    int32_t i;

    l->batch.count = 0;
    l->batch.least = 1;
    l->limited.count = 0;
    l->limited.rows = l->config.batch_max;
    l->limited.only = false;
    for (i = 0; i < count; i++) {
        int32_t queue = l->served.kind_queues[i] - 1, threads = l->served.kind_threads[i];
        int32_t most = (int32_t)jobq__max(l->served.kind_batches[i], 1);
        bool known = queue >= 0 && queue < l->queue_count;
        jobq_limit *limit = &l->limited.limits[l->limited.count];
        if (known && l->queues[queue].kinds == INT32_MAX) l->queues[queue].kinds = 0;
        if (known) l->queues[queue].kinds++;
        if (threads <= 0 || threads >= l->config.threads) threads = l->config.threads;
        jobq__batching_add(l, i, kinds[i], threads);
        if (threads == l->config.threads) continue;
        memset(limit, 0, sizeof *limit);
        limit->kind = kinds[i];
        limit->queue = known ? queue : -1;
        limit->most = threads * most;
        l->limited.count++;
    }
    for (i = 0; i < l->queue_count; i++) l->queues[i].open = l->queues[i].kinds;
}

/* -- handing out jobs -- */

/* The time limit of a job: its own, else its policy's. */
static int64_t jobq__timeout(const jobq_loop *l, const jobq_job *job)
{
    int64_t of_policy = jobq__policy_of(l, job).timeout_us;

    return jobq__or(job->timeout_us, jobq__or(of_policy, JOBQ_NEVER));
}

/* How long a job was due, by the store's clock as this loop last saw it. */
static int64_t jobq__waited(const jobq_loop *l, int64_t mono_us, const jobq_job *job)
{
    int64_t now = mono_us + l->tallies.clock_us, due = job->run_at_us;

    if (due >= now) return 0;
    return due >= 0 ? now - due : jobq__add(now, -jobq__max(due, -INT64_MAX));
}

/* -- batches: laws (30) to (32) -- */

/* How a kind is batched; NULL: its handler gets single jobs. */
static const jobq_batching *jobq__batching_of(const jobq_loop *l, int32_t kind)
{
    int32_t i = 0;

    while (i < l->batch.count && l->batch.kinds[i].kind != kind) i++;
    return i < l->batch.count ? &l->batch.kinds[i] : NULL;
}

/* The most jobs of a call that has this one. With each attempt it is half as much, so that in the
 * end a bad job is alone, and the others succeed. */
static int32_t jobq__batch_room(const jobq_batching *b, const jobq_job *job)
{
    if (b == NULL) return 1;
    return (int32_t)jobq__max(b->most >> jobq__min(jobq__max(job->attempt - 1, 0), 30), 1);
}

/* Whether two jobs may be in one call. */
static bool jobq__mates(const jobq_job *a, const jobq_job *b)
{
    return a->queue == b->queue && a->kind == b->kind && a->stage == b->stage &&
           a->attempt == b->attempt && a->timeout_us == b->timeout_us && !a->suspect && !b->suspect;
}

/* Whether the job in slot i may run in a call that begins with the one in slot first. A late one
 * stays, to be given back: jobq__unhoard. */
static bool jobq__joins(const jobq_loop *l, int64_t now, int32_t first, int32_t i)
{
    return now < l->slots[i].expires_mono_us &&
           jobq__mates(&l->slots[first].job, &l->slots[i].job);
}

/* Whether a call may begin with the job in slot i, which waits for a thread. It begins once there
 * are as many as fit, or once that job has waited long enough for others. */
static bool jobq__batch_begins(const jobq_loop *l, int64_t now, int32_t i, const jobq_batching *b)
{
    const jobq_slot *s = &l->slots[i];
    int32_t room = jobq__batch_room(b, &s->job), first = i, calls = 0, n = 0;

    if (b == NULL || s->job.suspect) return true;
    for (n = 0; n < l->config.threads; n++)
        calls += l->calls[n].left > 0 && l->calls[n].kind == b->kind;
    if (calls >= b->threads) return false;
    if (now - s->since_mono_us >= b->wait_us) return true;
    for (n = 0; i >= 0 && n < room; i = l->slots[i].next) n += jobq__joins(l, now, first, i);
    return n == room;
}

/* The first waiting job with which a call may begin; -1: none. *prev: the slot before it. If the
 * first of a kind has to wait for others, those behind it wait, too: they came later. */
static int32_t jobq__batch_first(const jobq_loop *l, int64_t now, int32_t *prev)
{
    bool waits[JOBQ_LOOP_KINDS];
    int32_t i;

    memset(waits, 0, (size_t)l->batch.count);
    *prev = -1;
    for (i = l->queued.head; i >= 0; *prev = i, i = l->slots[i].next) {
        const jobq_batching *b = jobq__batching_of(l, l->slots[i].job.kind);
        bool alone = b == NULL || l->slots[i].job.suspect;
        if (now >= l->slots[i].expires_mono_us) continue;
        if (!alone && waits[b - l->batch.kinds]) continue;
        if (jobq__batch_begins(l, now, i, b)) return i;
        if (!alone) waits[b - l->batch.kinds] = true;
    }
    return -1;
}

/* When a job has waited long enough for others, if a thread is free. */
static int64_t jobq__due_batch(const jobq_loop *l, int64_t now)
{
    int64_t due = JOBQ_NEVER;
    int32_t i;

    if (l->batch.least < 2 || l->phase != JOBQ_PHASE_WORKING || !jobq__thread_free(l, now))
        return due;
    for (i = l->queued.head; i >= 0; i = l->slots[i].next) {
        const jobq_batching *b = jobq__batching_of(l, l->slots[i].job.kind);
        int64_t at = b == NULL ? now : l->slots[i].since_mono_us + b->wait_us;
        if (at > now) due = jobq__min(due, at);
    }
    return due;
}

/* A call has begun with n jobs. If it was full, later calls may have twice as many. If not, claims
 * slowly become smaller, so that a worker does not hold jobs that it cannot run. */
static void jobq__per_call_move(jobq_loop *l, const jobq_batching *b, int32_t n)
{
    int32_t was = l->batch.per_call;

    if (n < was) l->batch.per_call -= (was - n + 7) / 8;
    else if (b != NULL) l->batch.per_call = (int32_t)jobq__min(2 * (int64_t)n, b->most);
    l->batch.per_call = (int32_t)jobq__max(l->batch.per_call, l->batch.least);
}

/* A job begins to run, in the call with this index. */
static void jobq__start_job(jobq_loop *l, int64_t mono_us, int32_t i, int32_t call)
{
    jobq_slot *s = &l->slots[i];

    s->state = JOBQ_SLOT_RUNNING;
    s->since_mono_us = mono_us;
    s->deadline_mono_us = jobq__add(mono_us, jobq__timeout(l, &s->job));
    l->deadline_mono_us = jobq__min(l->deadline_mono_us, s->deadline_mono_us);
    s->position = l->running_count;
    l->running[l->running_count++] = i;
    s->call = call;
    l->calls[call].left++;
    l->calls[call].kind = s->job.kind;
    l->stats.started++;
    jobq__tally_time(&l->tallies, s->job.queue, s->job.kind, JOBQ_TALLY_WAITING,
                     jobq__waited(l, mono_us, &s->job));
}

/* Starts a call. Returns the slot of its first job; jobq_loop_mate tells the others. -1: none. */
static int32_t jobq__take_job(jobq_loop *l, int64_t mono_us)
{
    int32_t first, prev, i, next, room, call = 0, n = 0;
    const jobq_batching *b;

    JOBQ_ASSERT(l != NULL);
    if (l->phase != JOBQ_PHASE_WORKING || mono_us >= l->lease.end_mono_us ||
        !jobq__thread_free(l, mono_us) || l->stats.started >= l->config.jobs_max) {
        return -1;
    }
    first = jobq__batch_first(l, mono_us, &prev);
    if (first < 0) return -1;
    b = jobq__batching_of(l, l->slots[first].job.kind);
    room = jobq__batch_room(b, &l->slots[first].job);
    while (l->calls[call].left > 0) call++;
    for (i = first; i >= 0 && n < room; i = next) {
        next = l->slots[i].next;
        if (i != first && !jobq__joins(l, mono_us, first, i)) {
            prev = i;
            continue;
        }
        jobq__unlink(l, &l->queued, prev, i);
        jobq__start_job(l, mono_us, i, call);
        n++;
    }
    for (i = 0; i < n; i++) l->slots[l->running[l->running_count - n + i]].together = n;
    l->call_count++;
    l->stats.calls++;
    if (l->batch.count > 0) jobq__per_call_move(l, b, n);
    if (b != NULL)
        jobq__tally_add(&l->tallies, l->slots[first].job.queue, b->kind, JOBQ_TALLY_CALLS, 1);
    return first;
}

/* Removes a slot from running[]; the last entry takes its place. */
static void jobq__unrun(jobq_loop *l, int32_t i)
{
    int32_t last = l->running[--l->running_count];

    l->running[l->slots[i].position] = last;
    l->slots[last].position = l->slots[i].position;
    if (--l->calls[l->slots[i].call].left == 0) l->call_count--;
}

/* A call has overrun its time limit. If it has one job, the attempt has failed. If it has several,
 * that is no evidence against any of them: law (32). */
static jobq_event_kind jobq__overrun(const jobq_slot *s)
{
    return s->together > 1 ? JOBQ_EVENT_CRASH : JOBQ_EVENT_TIMEOUT;
}

/* Gives a slot its decision and adds it to the finished ones. */
static void jobq__finish(jobq_loop *l, int32_t i, const jobq_event *event, int64_t now)
{
    jobq_slot *s = &l->slots[i];
    jobq_policy policy = jobq__policy_of(l, &s->job);
    jobq_error error;

    s->job.cancel_requested = s->cancel;
    error = jobq_job_decide(&policy, &s->job, event, &s->decision);
    JOBQ_ASSERT(error == JOBQ_OK);
    (void)error;
    s->state = JOBQ_SLOT_FINISHED;
    s->since_mono_us = now;
    jobq__push(l, s->decision.state == JOBQ_STATE_SUCCEEDED && !s->verify ? &l->done
                                                                          : &l->others, i);
    l->flush.due_mono_us = jobq__min(l->flush.due_mono_us, now + l->config.flush_us);
    jobq__limit_freed(l, s->job.kind, now);
}

/* What becomes of a job, for statistics. */
static jobq_tally_place jobq__outcome_of(const jobq_slot *s, jobq_event_kind event)
{
    const jobq_decision *d = &s->decision;

    if (s->verify || d->state == JOBQ_STATE_SUCCEEDED || event == JOBQ_EVENT_SUCCESS)
        return JOBQ_TALLY_SUCCEEDED;
    if (d->state == JOBQ_STATE_FAILED) return JOBQ_TALLY_FAILED;
    if (d->state == JOBQ_STATE_CANCELLED) return JOBQ_TALLY_CANCELLED;
    if (event == JOBQ_EVENT_RELEASE || event == JOBQ_EVENT_PARK) return JOBQ_TALLY_RELEASED;
    return event == JOBQ_EVENT_SNOOZE ? JOBQ_TALLY_SNOOZED : JOBQ_TALLY_RETRIED;
}

static void jobq__count_outcome(jobq_loop *l, const jobq_slot *s, jobq_event_kind event)
{
    jobq_tally_place outcome = jobq__outcome_of(s, event);

    l->stats.succeeded += outcome == JOBQ_TALLY_SUCCEEDED;
    l->stats.failed += outcome == JOBQ_TALLY_FAILED;
    l->stats.cancelled += outcome == JOBQ_TALLY_CANCELLED;
    l->stats.released += outcome == JOBQ_TALLY_RELEASED;
    l->stats.snoozed += outcome == JOBQ_TALLY_SNOOZED;
    l->stats.retried += outcome == JOBQ_TALLY_RETRIED;
    jobq__tally_add(&l->tallies, s->job.queue, s->job.kind, outcome, 1);
}

/* A handler has returned, or was abandoned, after this time. */
static void jobq__count_run(jobq_loop *l, const jobq_slot *s, int64_t took)
{
    jobq__tally_time(&l->tallies, s->job.queue, s->job.kind, JOBQ_TALLY_RUNNING, took);
}

static jobq_event_kind jobq__event_of(jobq_outcome outcome)
{
    switch (outcome) {
    case JOBQ_OUTCOME_SUCCESS: return JOBQ_EVENT_SUCCESS;
    case JOBQ_OUTCOME_DISCARD: return JOBQ_EVENT_DISCARD;
    case JOBQ_OUTCOME_SNOOZE: return JOBQ_EVENT_SNOOZE;
    case JOBQ_OUTCOME_RELEASE: return JOBQ_EVENT_RELEASE;
    case JOBQ_OUTCOME_CANCELLED: return JOBQ_EVENT_CANCELLED;
    case JOBQ_OUTCOME_NONE:
    case JOBQ_OUTCOME_RETRY:
    case JOBQ_OUTCOME_DONE:
    case JOBQ_OUTCOME_COUNT: break;
    }
    return JOBQ_EVENT_RETRY;
}

static void jobq__job_handled(jobq_loop *l, int64_t now, int32_t slot, const jobq_handled *handled)
{
    jobq_slot *s = &l->slots[slot];
    int64_t took = now - s->since_mono_us;
    jobq_event event;

    if (l->pace.handler_us < 0) l->pace.handler_us = took;
    else if (l->calls[s->call].left == 1) l->pace.handler_us += (took - l->pace.handler_us) / 8;
    jobq__count_run(l, s, took);
    jobq__unrun(l, slot);
    memset(&event, 0, sizeof event);
    if (now >= s->deadline_mono_us) event.kind = jobq__overrun(s);
    else if (handled->lost) event.kind = JOBQ_EVENT_RELEASE;
    else {
        event.kind = jobq__event_of(handled->outcome);
        event.delay_us = jobq__min(jobq__max(handled->delay_us, 0), JOBQ__DELAY_MAX);
        event.delay_named = handled->delay_named;
    }
    event.random = jobq_random_next(&l->random);
    s->verify = handled->outcome == JOBQ_OUTCOME_DONE;
    jobq__finish(l, slot, &event, now);
    jobq__count_outcome(l, s, event.kind);
}

/* Finishes a slot with an event that no handler reported. */
static void jobq__give_back(jobq_loop *l, int32_t slot, jobq_event_kind kind, int64_t now)
{
    jobq_event event;

    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.random = jobq_random_next(&l->random);
    jobq__finish(l, slot, &event, now);
    jobq__count_outcome(l, &l->slots[slot], kind);
}

/* This worker has no handler for the job's kind. */
static void jobq__job_unhandled(jobq_loop *l, int64_t now, int32_t slot)
{
    int32_t i;

    jobq__unrun(l, slot);
    l->stats.started--; /* no handler was */
    l->stats.calls -= l->calls[l->slots[slot].call].left == 0;
    l->session.every_kind = false; /* until the next news: the kind may be another worker's */
    for (i = 0; i < l->kind_count && l->kinds[i] != l->slots[slot].job.kind;) i++;
    if (i < l->kind_count) l->kinds[i] = l->kinds[--l->kind_count];
    jobq__give_back(l, slot, JOBQ_EVENT_PARK, now);
}

static jobq_stop jobq__job_stopping(const jobq_loop *l, int64_t mono_us, int32_t slot,
                                    uint32_t generation)
{
    const jobq_slot *s;

    JOBQ_ASSERT(l != NULL && slot >= 0 && slot < JOBQ_LOOP_SLOTS);
    s = &l->slots[slot];
    if (s->generation != generation || s->state != JOBQ_SLOT_RUNNING) return JOBQ_STOP_TIMEOUT;
    if (mono_us >= s->deadline_mono_us) return JOBQ_STOP_TIMEOUT;
    if (s->job.worker != l->worker || mono_us >= l->lease.end_mono_us) return JOBQ_STOP_LOST;
    if (s->cancel) return JOBQ_STOP_CANCEL;
    return l->phase == JOBQ_PHASE_WORKING ? JOBQ_STOP_NONE : JOBQ_STOP_SHUTDOWN;
}

/* When to give back jobs that have waited too long for a thread, because handlers became slow. Only
 * if more wait than there are threads, or some are late. */
static int64_t jobq__due_unhoard(const jobq_loop *l)
{
    if (l->phase != JOBQ_PHASE_WORKING || l->queued.count == 0) return JOBQ_NEVER;
    if (l->queued.count <= (int64_t)l->config.threads * l->batch.per_call) return l->late_mono_us;
    return jobq__min(l->late_mono_us, l->slots[l->queued.head].since_mono_us + JOBQ__HOARD);
}

/* Gives late jobs back. The next claim that meets one decides, by the store's clock, whether it
 * ends: counted from before the claim was sent, it may be late here and not yet there. */
static void jobq__give_back_late(jobq_loop *l, int64_t now)
{
    jobq_list kept = jobq__empty;
    int32_t i;

    l->late_mono_us = JOBQ_NEVER;
    while ((i = jobq__pop(l, &l->queued)) >= 0) {
        int64_t expires = l->slots[i].expires_mono_us;
        if (now < expires) {
            l->late_mono_us = jobq__min(l->late_mono_us, expires);
            jobq__push(l, &kept, i);
        } else jobq__give_back(l, i, JOBQ_EVENT_RELEASE, now);
    }
    l->queued = kept;
}

/* Keeps one call for each thread and gives the others back, so that workers with free threads can
 * have them. Handlers take at least as long as the jobs waited, even if none has ended to show
 * it. */
static void jobq__unhoard(jobq_loop *l, int64_t now)
{
    int32_t most = l->config.threads * l->batch.per_call, i;
    jobq_list kept = jobq__empty;

    if (now >= l->late_mono_us) jobq__give_back_late(l, now);
    if (now < jobq__due_unhoard(l)) return;
    l->pace.handler_us = jobq__max(l->pace.handler_us, JOBQ__HOARD);
    while (kept.count < most) jobq__push(l, &kept, jobq__pop(l, &l->queued));
    while ((i = jobq__pop(l, &l->queued)) >= 0) jobq__give_back(l, i, JOBQ_EVENT_RELEASE, now);
    l->queued = kept;
}

/* -- events from outside -- */

JOBQ_API void jobq_loop_stop(jobq_loop *l, int64_t mono_us, int64_t grace_us)
{
    int32_t i;

    JOBQ_ASSERT(l != NULL);
    if (l->phase > JOBQ_PHASE_STOPPING) return;
    if (grace_us < 0) grace_us = l->config.grace_us;
    l->phase = JOBQ_PHASE_STOPPING;
    l->stop_mono_us = jobq__min(l->stop_mono_us, jobq__add(mono_us, grace_us));
    while ((i = jobq__pop(l, &l->queued)) >= 0) jobq__give_back(l, i, JOBQ_EVENT_RELEASE, mono_us);
    jobq__relay_stop(l);
}

/* A notification tells of a message. If its partition rests, it is read without a look before. */
static void jobq__relay_arrived(jobq_loop *l, int64_t now, const char *partition)
{
    int64_t id = 0;
    jobq_part *p;

    for (; *partition >= '0' && *partition <= '9' && id < INT64_MAX / 16; partition++)
        id = 10 * id + (*partition - '0');
    p = jobq__relay_find(&l->relay, id);
    if (p == NULL || p->state != JOBQ_PART_AWAY || p->due_mono_us != JOBQ_NEVER) return;
    p->due_mono_us = jobq__max(now, p->paced_mono_us);
}

JOBQ_API void jobq_loop_notified(jobq_loop *l, int64_t mono_us, const char *about)
{
    JOBQ_ASSERT(l != NULL && about != NULL);
    if (strcmp(about, "cancel") == 0) {
        l->lease.beat_mono_us = jobq__min(l->lease.beat_mono_us, mono_us);
        return;
    }
    if (mono_us - l->sleep.woken_mono_us > JOBQ__CONVOY_SPAN) {
        l->sleep.woken_mono_us = mono_us;
        l->sleep.woken_count = 0;
    }
    if (l->sleep.woken_count < JOBQ__CONVOY) l->sleep.woken_count++;
    l->lease.heard_mono_us = mono_us;
    l->lease.beat_mono_us = jobq__min(l->lease.beat_mono_us, mono_us + l->config.heartbeat_us);
    jobq__look_again(l, mono_us);
    jobq__relay_arrived(l, mono_us, about);
    if (l->relay.linger_us == 0) jobq__relay_look(l, mono_us);
}

JOBQ_API void jobq_loop_hears(jobq_loop *l, int64_t mono_us, bool hears)
{
    JOBQ_ASSERT(l != NULL);
    if (l->sleep.deaf != hears) return;
    l->sleep.deaf = !hears;
    jobq_loop_notified(l, mono_us, ""); /* notifications may have been missed */
}

/* ---- >>claim --------------------------------------------------------------------------------- */

/* Whether every queue that this worker claims from has only kinds that are at their limit. */
static bool jobq__all_full(const jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        if (jobq__claims_from(l, i) && l->queues[i].open > 0) return false;
    }
    return true;
}

/* Where commits are slow, a claim comes only after the flush before it: four trips are what threads
 * use up until the jobs of the next claim are here. */
static int64_t jobq__prefetch(const jobq_loop *l)
{
    return jobq__min(jobq__max(4 * l->pace.trip_us, JOBQ__PREFETCH), JOBQ__PREFETCH_MAX);
}

/* How many jobs to claim: enough for the threads, plus what they use up in a short time. For
 * each free thread, all jobs of a batch but one may wait for the others, and are not counted. */
static int32_t jobq__claim_want(const jobq_loop *l)
{
    int64_t ahead = 0, want, per_call = l->batch.per_call;
    int64_t calls = l->config.threads - l->call_count;

    if (l->pace.handler_us == 0) ahead = l->config.batch_max;
    if (l->pace.handler_us > 0) {
        ahead = jobq__min(l->config.threads * jobq__prefetch(l) / l->pace.handler_us * per_call,
                          l->config.batch_max);
    }
    if (2 * (l->queued.count - calls * (per_call - 1)) > ahead || jobq__all_full(l)) return 0;
    want = calls * per_call + ahead - l->queued.count;
    want = jobq__min(want, l->config.jobs_max - l->stats.started - l->queued.count);
    want = jobq__min(want, l->config.batch_max);
    return (int32_t)jobq__max(jobq__min(want, jobq__slots_free(l)), 0);
}

/* When to claim, if permits allow it. */
static int64_t jobq__claim_time(const jobq_loop *l, int64_t now)
{
    if (!jobq__would_claim(l, now) || jobq__sent(l, JOBQ_REQUEST_CLAIM) || l->blame.accused) {
        return JOBQ_NEVER;
    }
    if (jobq__suspect_wanted(l) || jobq__alone_wanted(l, now)) {
        return l->wire.hold_mono_us[JOBQ_REQUEST_CLAIM];
    }
    if (l->suspects.halts || jobq__claim_want(l) == 0) return JOBQ_NEVER;
    return jobq__max(l->pace.claim_mono_us, l->wire.hold_mono_us[JOBQ_REQUEST_CLAIM]);
}

/* When to claim, if there is a place to record the claim in. */
static int64_t jobq__claim_at(const jobq_loop *l, int64_t now)
{
    return jobq__all_closed(l, false, 0) ? JOBQ_NEVER : jobq__claim_time(l, now);
}

static int64_t jobq__due_claim(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    (void)kind;
    return jobq__claim_new(l) < 0 ? JOBQ_NEVER : jobq__claim_at(l, now);
}

/* A lane belongs to a claim that lists all lanes. Other claims list lanes in which jobs were seen
 * lately. */
static bool jobq__lane_listed(const jobq_loop *l, const jobq_bound *b)
{
    return l->claim.look || l->claim.suspects || b->claim != 0;
}

static bool jobq__bounded(const jobq_bound *b) { return b->claim != 0 || b->run_at_us != 0; }

/* Whether the claim that is being made looks below the bound of a lane, or of its lines. Lines are
 * swept in one piece, when a sweep begins: jobq__stretch_end limits what that costs. */
static bool jobq__sweeps_lane(const jobq_loop *l, bool lined)
{
    bool begins = l->sweep.sliced_us == INT64_MAX && !l->claim.just_below;

    return l->claim.sweep && (!l->claim.slice || (lined && begins));
}

/* Whether a lane's turn has come, and there is room for it, and for its part in a slice. A claim
 * that has no room for all lanes begins a round: the next claims list the others, until one of them
 * brings all that it may carry. Only with the last one is it known that nothing is there. */
static bool jobq__lane_fits(jobq_loop *l, int32_t place, const jobq_request *a)
{
    if (place < l->claim.from || l->claim.next != 0) return false;
    if (a->lane_count + 1 + l->claim.slice > JOBQ_LOOP_LANES) l->claim.next = place;
    return l->claim.next == 0;
}

/* Adds the part of a lane that is in the slice. */
static void jobq__slice_add(const jobq_loop *l, int32_t queue, int16_t priority, int16_t stage,
                            const jobq_bound *b, jobq_request *a)
{
    int64_t until = jobq__min(b->run_at_us - 1, l->sweep.sliced_us);
    jobq_lane *lane = &a->lanes[a->lane_count];

    if (until <= l->sweep.slice_from_us) return;
    memset(lane, 0, sizeof *lane);
    lane->queue = queue;
    lane->priority = priority;
    lane->stage = stage;
    lane->after_at_us = l->sweep.slice_from_us;
    lane->after_id = INT64_MAX;
    lane->until_at_us = until;
    a->lane_count++;
}

/* Adds a lane, or the part of it that is in lines. */
static void jobq__lane_add(jobq_loop *l, const jobq_loop_queue *q, int16_t priority, int16_t stage,
                           bool lined, int32_t place, jobq_request *a)
{
    const jobq_bound *b = &q->bounds[priority - JOBQ_PRIORITY_MIN][stage][lined];
    const jobq_low *low = &q->lows[priority - JOBQ_PRIORITY_MIN][stage];
    bool bounded = (lined ? low->holds : jobq__bounded(b)) && !jobq__sweeps_lane(l, lined);
    jobq_lane *lane;

    if (!jobq__lane_listed(l, b) || !jobq__lane_fits(l, place, a)) return;
    if (l->claim.slice && bounded && !lined) jobq__slice_add(l, q->id, priority, stage, b, a);
    lane = &a->lanes[a->lane_count++];
    lane->queue = q->id;
    lane->priority = priority;
    lane->stage = stage;
    lane->lined = lined;
    lane->after_at_us = bounded ? (lined ? low->at_us : b->run_at_us) : INT64_MIN;
    lane->after_id = lined ? q->walk : bounded ? b->id : 0;
    lane->until_at_us = l->claim.slice ? INT64_MAX : 0;
    lane->low_id = lined ? (bounded ? low->id : 1) : 0;
    if (l->claim.slice && bounded && !lined) {
        lane->after_at_us = b->run_at_us - (l->claim.just_below ? JOBQ_LOOP_SLICE_US : 1);
        lane->after_id = INT64_MAX;
    }
}

/* Each queue comes first by turns. When each has been the first once, jobs in lines and the others
 * change places, so that neither of a queue waits for those of another. */
static int32_t jobq__first_queue(const jobq_loop *l) { return l->pace.turn % l->queue_count; }
static bool jobq__lines_first(const jobq_loop *l) { return l->pace.turn < l->queue_count; }

/* Adds the lanes of one queue and priority. place: that of its last stage. */
static void jobq__lanes_add(jobq_loop *l, const jobq_loop_queue *q, int16_t priority,
                            int32_t place, jobq_request *a)
{
    bool lines = q->lines && !a->suspects, first = lines && jobq__lines_first(l);
    int16_t stage;

    for (stage = JOBQ_STAGES_MAX - 1; stage >= 0; stage--, place += 2) {
        if (stage >= q->stages_max) continue;
        jobq__lane_add(l, q, priority, stage, first, place, a);
        if (lines) jobq__lane_add(l, q, priority, stage, !first, place + 1, a);
    }
}

/* Whether the claim that is being made leaves a queue out. */
static bool jobq__queue_left_out(const jobq_loop *l, int32_t queue)
{
    int32_t kinds = l->queues[queue].kinds, i;

    for (i = 0; i < l->permits.share_count; i++) {
        const jobq_share *p = &l->permits.shares[i];
        if (p->queue == queue && p->skipped && (p->kind == 0 || --kinds == 0)) return true;
    }
    return false;
}

/* The queue of a lane that is being claimed from. */
static const jobq_loop_queue *jobq__lane_queue(const jobq_loop *l, const jobq_lane *lane)
{
    int32_t i = 0;

    while (i < JOBQ_LOOP_QUEUES - 1 && l->queues[i].id != lane->queue) i++;
    return &l->queues[i];
}

/* The instant up to which a lane has been claimed from; 0: nothing of it was seen. */
static int64_t jobq__lane_age(const jobq_loop *l, const jobq_lane *lane)
{
    const jobq_loop_queue *q = jobq__lane_queue(l, lane);

    return q->bounds[lane->priority - JOBQ_PRIORITY_MIN][lane->stage][lane->lined].run_at_us;
}

/* Puts the lanes of queues with ageing into the order of these instants, on the places that they
 * have: first what has waited longest. */
static void jobq__lanes_age(const jobq_loop *l, jobq_request *a)
{
    int32_t i, k, last;

    for (i = 1; i < a->lane_count; i++) {
        jobq_lane lane = a->lanes[i];
        if (!jobq__lane_queue(l, &lane)->ageing) continue;
        for (last = i, k = i - 1; k >= 0; k--) {
            if (!jobq__lane_queue(l, &a->lanes[k])->ageing) continue;
            if (jobq__lane_age(l, &a->lanes[k]) <= jobq__lane_age(l, &lane)) break;
            a->lanes[last] = a->lanes[k];
            last = k;
        }
        a->lanes[last] = lane;
    }
}

/* Adds the lanes of a claim, in claiming order. The place of a lane in that order does not depend
 * on which others are listed. */
static void jobq__lanes(jobq_loop *l, jobq_request *a)
{
    int32_t place = -2 * JOBQ_STAGES_MAX, n;
    int16_t priority;

    l->claim.next = 0;
    for (priority = JOBQ_PRIORITY_MIN; priority <= JOBQ_PRIORITY_MAX; priority++) {
        for (n = 0; n < l->queue_count; n++) {
            place += 2 * JOBQ_STAGES_MAX;
            int32_t i = (jobq__first_queue(l) + n) % l->queue_count;
            const jobq_loop_queue *q = &l->queues[i];
            if (priority < q->priority_min || !jobq__claims_from(l, i) || q->open == 0) continue;
            if (jobq__queue_left_out(l, i)) continue;
            jobq__lanes_add(l, q, priority, place, a);
        }
    }
    if (l->claim.aged) jobq__lanes_age(l, a);
}

/* Adds the kinds of a claim, without those that are at their limit. A claim cannot limit the jobs
 * of one kind, so one that may bring kinds with a limit asks for few rows: see jobq__limited. It
 * asks for at most as many as all kinds have room for; if the last claim brought only kinds with a
 * limit, for at most as many as those have room for. */
static void jobq__claim_kinds(jobq_loop *l, jobq_request *a)
{
    bool limited = false;
    int64_t room = 0;
    int32_t i;

    jobq__limits_count(l, &l->queued);
    a->every_kind = l->session.every_kind;
    for (i = 0; i < l->kind_count; i++) {
        jobq_limit *limit = jobq__limit_of(l, l->kinds[i]);
        const jobq_share *share = jobq__share_of_kind(l, l->kinds[i]);
        bool full = jobq__limit_full(limit), skipped = share != NULL && share->skipped;
        if (full) limit->passed = true;
        full = full || skipped;
        if (!full) a->kinds[a->kind_count++] = l->kinds[i];
        a->every_kind = a->every_kind && !full;
        limited = limited || (limit != NULL && !full);
        if (!full && limit != NULL) room += limit->most - limit->held;
        else if (!full && !l->limited.only) room += l->config.batch_max;
    }
    if (limited) a->limit = (int32_t)jobq__min(a->limit, jobq__min(l->limited.rows, room));
}

/* Decides what permits leave to a claim. A claim has one limit for everything that it lists, so it
 * uses the smallest room. If it comes back full, the next claim leaves out whatever has less room.
 * So a quota that has room for one job does not make the claims of other queues and kinds small. */
static void jobq__claim_permits(jobq_loop *l, jobq_request *a)
{
    int32_t limit = a->limit, i;

    if (l->claim.from == 0)
        l->claim.rest = l->pace.rest_next && !a->suspects && !jobq__all_closed(l, true, limit);
    l->claim.tight = l->claim.passed = false;
    for (i = 0; i < l->permits.share_count; i++) {
        jobq_share *p = &l->permits.shares[i];
        p->skipped = jobq__share_skips(p, l->claim.rest, limit);
        p->blocked = p->skipped;
        l->claim.passed |= p->skipped;
    }
    for (i = 0; i < l->permits.share_count; i++) {
        jobq_share *p = &l->permits.shares[i];
        if (!p->skipped && jobq__claims_from(l, p->queue) && !jobq__queue_left_out(l, p->queue)) {
            a->limit = (int32_t)jobq__min(a->limit, jobq__share_room(p));
        }
    }
    l->claim.tight = a->limit < limit;
    for (i = 0; i < l->permits.share_count; i++) {
        jobq_share *p = &l->permits.shares[i];
        p->asked = p->skipped || jobq__queue_left_out(l, p->queue) ? 0 : a->limit;
    }
}

/* The newest bound of all lanes; INT64_MIN: none has one. */
static int64_t jobq__bounds_newest(const jobq_loop *l)
{
    int64_t newest = INT64_MIN;
    int32_t i, priority, stage;

    for (i = 0; i < l->queue_count; i++) {
        for (priority = 0; priority < JOBQ_PRIORITIES; priority++) {
            for (stage = 0; stage < l->queues[i].stages_max; stage++) {
                const jobq_bound *b = &l->queues[i].bounds[priority][stage][0];
                if (jobq__bounded(b)) newest = jobq__max(newest, b->run_at_us);
            }
        }
    }
    return newest;
}

/* A sweep in one piece passes all dead rows that an old snapshot pins, in one statement, and the
 * worker's other statements wait for it. When it costs more than two slices should, sweeps are made
 * in slices of run_at, the newest first, with the worker's other statements between them. At
 * least a second apart, looks at what is just below the bounds, where nearly all jobs are that
 * committed late, take the place of a slice. */
static void jobq__slice_begin(jobq_loop *l, int64_t now, bool sweeps)
{
    int64_t newest = l->sweep.slice_us > 0 && sweeps ? jobq__bounds_newest(l) : INT64_MIN;

    l->claim.slice = newest != INT64_MIN && !l->sweep.whole;
    l->claim.just_below = l->claim.slice && now >= l->sweep.near_mono_us;
    if (!sweeps) return;
    if (l->claim.just_below) {
        l->sweep.slice_from_us = l->sweep.sliced_us; /* it covers nothing */
        return;
    }
    if (!l->claim.slice || l->sweep.sliced_us == INT64_MAX) { /* a new sweep */
        l->sweep.sliced_us = INT64_MAX;
        l->sweep.cost_us = 0;
        l->sweep.found = l->sweep.passed = false;
    }
    l->sweep.slice_from_us = INT64_MIN;
    if (!l->claim.slice || l->sweep.slice_us > JOBQ_LOOP_SLICE_MAX_US) return;
    l->sweep.slice_from_us = jobq__min(l->sweep.sliced_us, newest) - l->sweep.slice_us;
}

/* Claims that leave a kind out move the bounds past its jobs, and sweeps that leave a queue out do
 * not look at it. The first claim that takes them in again sweeps. */
static void jobq__claim_sweeps(jobq_loop *l, int64_t now, jobq_request *a)
{
    bool owed = false;
    int32_t i;

    for (i = 0; i < l->permits.share_count; i++)
        owed |= l->permits.shares[i].passed && !l->permits.shares[i].skipped;
    if (owed) jobq__sweep_soon(l, now);
    a->sweep = l->claim.from > 0 ? l->claim.sweep
                                 : now >= l->sweep.next_mono_us && !l->claim.rest;
    if (l->claim.from == 0) jobq__slice_begin(l, now, a->sweep && !a->suspects);
    for (i = 0; i < l->permits.share_count && !a->suspects; i++) {
        jobq_share *p = &l->permits.shares[i];
        if (p->skipped) p->passed = p->passed || a->sweep || p->kind != 0;
        else if (a->sweep) p->passed = false;
    }
}

#define JOBQ__AGEING 16 /* of so many claims, one takes the oldest jobs of queues with ageing */

static bool jobq__some_age(const jobq_loop *l)
{
    int32_t i = 0;

    while (i < l->queue_count && !l->queues[i].ageing) i++;
    return i < l->queue_count;
}

/* Where the lanes of a claim begin: where those of the last one of its sort ended. */
static void jobq__round_move(jobq_loop *l, const jobq_request *a)
{
    bool same = l->claim.suspects == a->suspects && l->claim.alone == a->alone;

    l->claim.from = same ? l->pace.lanes_next : 0;
    l->pace.lanes_next = 0;
    l->claim.suspects = a->suspects;
    l->claim.alone = a->alone;
}

/* Adds a claim to a request. */
static void jobq__add_claim(jobq_loop *l, int64_t now, jobq_request *a)
{
    int32_t entry = jobq__claim_new(l);
    const jobq_budget *b;

    a->claim = ++l->number;
    a->alone = jobq__alone_wanted(l, now);
    a->suspects = a->alone || jobq__suspect_wanted(l);
    jobq__round_move(l, a);
    b = jobq__budget_of(l, JOBQ_REQUEST_CLAIM);
    l->claim.names = jobq__budget_blames(b) &&
                     (l->blame.named == 0 || l->blame.named_lanes != jobq__claim_lanes(l));
    a->limit = a->suspects ? 1 : (int32_t)jobq__min(a->limit, jobq__claim_want(l));
    jobq__claim_permits(l, a);
    jobq__claim_kinds(l, a);
    a->bytes = l->claim.names ? 0 : b->bytes;
    jobq__claim_sweeps(l, now, a);
    a->quantum = (int32_t)jobq__max(a->limit / 64, 1); /* a claim may serve 64 lines */
    l->claim.aged = !a->suspects && l->number % JOBQ__AGEING == 0 && jobq__some_age(l);
    a->look = a->sweep || l->pace.idle_mono_us != JOBQ_NEVER || now >= l->pace.full_mono_us ||
              l->claim.aged || (l->claim.from > 0 && l->claim.look);
    l->claim.sweep = a->sweep;
    l->claim.amid = l->until.amid || (l->claim.from > 0 && l->claim.amid);
    l->claim.look = a->look;
    if (a->alone) l->suspects.alone_entry = entry;
    l->claim.limit = l->wire.carried[JOBQ_REQUEST_CLAIM] = a->limit;
    l->claim.bytes = l->claim.count = 0;
    l->claim.entry = entry;
    l->claims[entry].worker = l->worker;
    l->claims[entry].number = a->claim;
    l->claims[entry].open = 0;
    l->claims[entry].limit = a->limit;
    l->claims[entry].state = JOBQ_CLAIM_SENT;
    l->claims[entry].suspects = a->suspects;
    l->claims[entry].alone = a->alone;
    l->claims[entry].left = false;
    jobq__quiet_move(l, now);
    jobq__lanes(l, a);
}

static void jobq__make_claim(jobq_loop *l, int64_t now, jobq_request *a)
{
    jobq__add_claim(l, now, a);
    a->relaxed = true;
}

/* Whether a claim has brought all that it may carry, or may have. */
static bool jobq__claim_is_cut(const jobq_loop *l, const jobq_claimed *got)
{
    int64_t bytes = 0;
    int32_t i;

    for (i = 0; i < got->count; i++) bytes += got->jobs[i].bytes;
    return got->count >= l->claim.limit || bytes >= l->wire.budgets[JOBQ_REQUEST_CLAIM].bytes / 2;
}

/* Moves a lane's bound to the last job claimed there. A sweep starts at the beginning of the
 * lane, so its last job becomes the bound even if that is lower: jobs after it have not been
 * looked at. A slice that was not cut has looked at all of them. */
static void jobq__bound_move(jobq_loop *l, const jobq_job *job, int64_t number)
{
    int32_t i = jobq__queue_index(l, job->queue);
    jobq_bound *b;

    if (i == l->queue_count) return;
    b = &l->queues[i].bounds[job->priority - JOBQ_PRIORITY_MIN][job->stage][job->line != 0];
    bool again = l->claim.sweep && (!l->claim.slice || l->claim.cut) && b->claim != number;
    if (!jobq__bounded(b) || again || job->run_at_us > b->run_at_us ||
        (job->run_at_us == b->run_at_us && job->id > b->id)) {
        b->run_at_us = job->run_at_us;
        b->id = job->id;
    }
    b->claim = number;
}

/* Takes in a claimed job; returns its slot. -1: it is not of this claim, or there is no room. */
static int32_t jobq__claimed_job(jobq_loop *l, int64_t now, const jobq_job *job)
{
    jobq_claim *c = &l->claims[l->claim.entry];
    jobq_slot *s;
    int32_t i;

    if (jobq__slots_free(l) == 0 || c->number != job->claim || c->worker != job->worker) return -1;
    i = l->fresh > 0 ? JOBQ_LOOP_SLOTS - l->fresh-- : jobq__pop(l, &l->free);
    s = &l->slots[i];
    s->job = *job;
    s->state = JOBQ_SLOT_QUEUED;
    s->since_mono_us = now;
    s->expires_mono_us =
        job->expires_us > 0 ? jobq__add(l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM], job->expires_us)
                            : JOBQ_NEVER;
    l->late_mono_us = jobq__min(l->late_mono_us, s->expires_mono_us);
    s->entry = l->claim.entry;
    s->bytes = job->bytes;
    s->verify = s->resent = s->cancel = false;
    s->refused = 0;
    c->open++;
    l->claim.count++;
    l->claim.bytes += job->bytes;
    l->stats.claimed++;
    jobq__shares_count(l, job, 1);
    if (job->suspect) l->suspects.held_count++;
    if (!job->suspect) jobq__bound_move(l, job, job->claim);
    if (job->suspect) jobq__push_first(l, &l->queued, i); /* a thread is kept free for it */
    else jobq__push(l, &l->queued, i);
    return i;
}

/* Of a claim with jobs of kinds with a limit, this many had to be given back. The next one carries
 * as many rows as could be kept; from then on the number doubles. */
static void jobq__limited(jobq_loop *l, int32_t excess)
{
    int64_t rows = 2 * (int64_t)l->limited.rows;

    if (excess > 0) rows = jobq__max(l->claim.count - excess, 1);
    l->limited.rows = (int32_t)jobq__min(rows, l->config.batch_max);
}

/* After an answer with jobs: drops those that came too late for this worker. If it was declared
 * dead, its rescuer has them. If it is stopping, or their kind is at its limit, they are
 * released. */
static void jobq__claimed_late(jobq_loop *l, int64_t now)
{
    jobq_list kept = jobq__empty;
    int32_t i, excess = 0;

    jobq__limits_count(l, &kept);
    l->limited.only = true;
    while ((i = jobq__pop(l, &l->queued)) >= 0) {
        bool dead = l->slots[i].job.worker != l->worker;
        bool takes = !dead && l->phase == JOBQ_PHASE_WORKING && jobq__limit_takes(l, i);
        l->limited.only = l->limited.only && jobq__limit_of(l, l->slots[i].job.kind) != NULL;
        if (takes) jobq__push(l, &kept, i);
        else if (dead) jobq__slot_free(l, i);
        else jobq__give_back(l, i, JOBQ_EVENT_RELEASE, now);
        excess += !takes;
    }
    l->queued = kept;
    jobq__limited(l, excess);
    jobq__limits_count(l, &l->queued);
}

/* Whether the sweep on its way, or the last slice of one. */
static bool jobq__sweep_ends(const jobq_loop *l)
{
    return l->claim.sweep && l->sweep.slice_from_us == INT64_MIN;
}

/* Sets how the next sweep, or slice, is made, after a claim that swept. Returns the pause before
 * the next sweep. However cheap the slices were, the next one adds little more than an eighth to
 * what they have covered: when a snapshot has ended, its dead rows begin somewhere, and are
 * expensive. */
static int64_t jobq__slice_end(jobq_loop *l, int64_t now, int64_t took)
{
    int64_t cost = jobq__sweep_cost(l->pace.trip_us, took), covered;

    if (l->claim.just_below) {
        l->sweep.near_mono_us = JOBQ_NEVER; /* a slice comes first */
        return 0;
    }
    if (l->sweep.near_mono_us == JOBQ_NEVER) l->sweep.near_mono_us = now + JOBQ__SECOND;
    l->sweep.cost_us += cost;
    if (jobq__sweep_ends(l)) {
        l->sweep.sliced_us = INT64_MAX;
        l->sweep.slice_us = l->sweep.cost_us > 2 * JOBQ_LOOP_SLICE_COST_US ? JOBQ_LOOP_SLICE_US : 0;
        return jobq__min(jobq__max(JOBQ__SECOND, 20 * jobq__max(l->sweep.cost_us, took)),
                         l->config.sweep_us);
    }
    l->sweep.sliced_us = l->sweep.slice_from_us;
    covered = jobq__bounds_newest(l) - l->sweep.sliced_us;
    l->sweep.slice_us =
        jobq__min(jobq__slice_next(l->sweep.slice_us, cost, JOBQ_LOOP_SLICE_US, covered),
                  JOBQ_LOOP_SLICE_US + covered / 8);
    return l->claim.count > 0 ? jobq__min(9 * took, JOBQ__SECOND) : 0;
}

/* While an old snapshot pins dead rows, a sweep takes seconds: spend at most 1/3 of the time on
 * them, and on slices of less than 0.1 s 1/10 while claims bring jobs. */
static void jobq__swept(jobq_loop *l, int64_t now)
{
    int64_t took = now - l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM];

    if (l->claim.look) l->pace.full_mono_us = now + JOBQ__IDLE;
    if (!l->claim.sweep) return;
    l->sweep.overrun_count = 0;
    if (!l->claim.slice) l->sweep.whole = false;
    l->sweep.next_mono_us = now + jobq__max(jobq__slice_end(l, now, took), 2 * took);
    l->sweep.earliest_mono_us = now + 2 * took;
}

/* Jobs came. After few jobs the next claim waits a little; otherwise many workers with tiny batches
 * use up the machine. */
static void jobq__claimed_some(jobq_loop *l, int64_t now, int64_t walk_us)
{
    if (l->pace.busy_mono_us == JOBQ_NEVER) l->pace.busy_mono_us = now;
    l->pace.idle_mono_us = JOBQ_NEVER;
    l->pace.look_us = l->until.remain_us = 0;
    l->sweep.empty = false;
    l->sweep.found = true;
    l->pace.rest_next = l->claim.tight && l->claim.count >= l->claim.limit;
    if (l->claim.cut || l->claim.rest || walk_us == 1) l->pace.linger_us = 0;
    else l->pace.linger_us = jobq__twice(l->pace.linger_us, JOBQ__MS, l->config.linger_us);
    l->pace.claim_mono_us = now + l->pace.linger_us;
}

/* No jobs came. Within bounds that proves little: a sweep follows, at once or when one is due
 * again. */
static void jobq__claimed_none(jobq_loop *l, int64_t now, int64_t due_us, int64_t walk_us)
{
    bool passed, ends = jobq__sweep_ends(l);
    int64_t poll = l->sleep.deaf ? jobq__min(l->config.poll_us, JOBQ__SECOND) : l->config.poll_us;

    l->stats.empty_claims++;
    l->pace.linger_us = 0;
    l->pace.rest_next = false;
    if (l->claim.rest) { /* there may be jobs of what it left out */
        l->pace.claim_mono_us = now;
        return;
    }
    passed = l->claim.passed || walk_us > 0;
    l->sweep.passed |= passed;
    if (passed || ends) l->pace.passed_by = l->sweep.passed;
    if (l->pace.idle_mono_us == JOBQ_NEVER) l->pace.idle_mono_us = now;
    l->pace.busy_mono_us = JOBQ_NEVER;
    if (ends && !l->claim.amid && !l->sweep.found) l->sweep.empty = true;
    if (l->claim.look) l->pace.due_mono_us = due_us > 0 ? jobq__add(now, due_us) : JOBQ_NEVER;
    if (walk_us > 0) l->pace.due_mono_us = jobq__min(l->pace.due_mono_us, jobq__add(now, walk_us));
    if (l->config.until != JOBQ_UNTIL_STOPPED && !l->sweep.empty && !l->until.amid)
        l->sweep.next_mono_us = now;
    l->pace.look_us = jobq__twice(l->pace.look_us, JOBQ__MS, poll);
    l->pace.claim_mono_us = jobq__min(now + jobq__about(l, l->pace.look_us), l->pace.due_mono_us);
    if (!l->sweep.empty)
        l->pace.claim_mono_us = jobq__min(l->pace.claim_mono_us, l->sweep.next_mono_us);
    else if (l->pace.look_us >= l->config.heartbeat_us) { /* the heartbeat claims */
        l->pace.claim_mono_us =
            jobq__min(jobq__max(l->pace.claim_mono_us, l->lease.beat_mono_us), l->pace.due_mono_us);
    }
}

/* A job that must run alone is ready in this queue; queue 0: in some queue that was claimed
 * from. */
static void jobq__alone_ready(jobq_loop *l, int64_t now, int32_t queue)
{
    int32_t i = jobq__queue_index(l, queue);

    if (queue != 0 && (i == l->queue_count || !jobq__claims_from(l, i))) return;
    if (l->suspects.alone_mono_us == JOBQ_NEVER) l->suspects.alone_mono_us = now;
    l->suspects.alone_told = true;
}

/* A job is to blame for failing claims only if three things happen. The store, asked for the
 * claim's first job without its payload, names it; the claim fails again; and the store then sets
 * the job aside. So the payload was the cause, and neither an outage nor another job. */
static void jobq__claim_named(jobq_loop *l, int64_t now, bool good)
{
    jobq_budget *b = jobq__budget_of(l, JOBQ_REQUEST_CLAIM);

    if (!l->claim.names) {
        if (l->blame.named_lanes != jobq__claim_lanes(l)) return;
        if (good && (l->claim.count > 0 || l->claim.ended)) l->blame.named = 0;
        l->blame.accused = l->blame.named != 0;
        return;
    }
    if (good && l->blame.named == 0) return; /* nothing is ready, or it is locked: ask again */
    l->blame.named_lanes = jobq__claim_lanes(l);
    b->single = 0;
    b->rows = 1;
    if (good) l->pace.claim_mono_us = now;
}

/* ---- >>lines: walks through the lines of queues ---------------------------------------------- */

/* Walks of queues whose lines gave jobs begin a new round. */
static void jobq__lines_gave(jobq_loop *l, const jobq_claimed *got)
{
    int32_t i, q;

    for (i = 0; i < got->count; i++) {
        if (got->jobs[i].line == 0) continue;
        q = jobq__queue_index(l, got->jobs[i].queue);
        if (q == l->queue_count) continue;
        l->queues[q].walked = 0;
        l->queues[q].steps = 0;
    }
}

#define JOBQ__WALK_STEPS 100 /* claims that go on at once */

/* Whether a walk has come round, or must pause in any case: in a queue with several lanes, `step`
 * may lack whole rounds. */
static bool jobq__came_round(jobq_loop_queue *q, uint64_t step)
{
    if (q->walked < step) q->steps = 0;
    else if (q->steps < JOBQ__WALK_STEPS) q->steps++;
    return q->steps == 0 || q->steps == JOBQ__WALK_STEPS;
}

/* Takes in a job, or a bound, that a round has seen. Each part by itself: the result may be too
 * low, but never too high. */
static void jobq__low_see(jobq_low *low, int64_t at_us, int64_t id)
{
    low->at_us = low->id == 0 ? at_us : jobq__min(low->at_us, at_us);
    low->id = low->id == 0 ? id : jobq__min(low->id, id);
}

/* Begins a round of walks. */
static void jobq__round_begin(jobq_round *r, const jobq_stretch *s, int64_t from)
{
    memset(r, 0, sizeof *r);
    r->begun = true;
    r->priority = s->priority;
    r->stage = s->stage;
    r->from = from;
}

/* A walk went through a stretch of a lane's lines. The bound of the lane moves when the stretches
 * have come round: until then, lines that were not visited may have earlier jobs. A sweep drops the
 * bound, unless it comes round itself, so that the next round finds jobs that were committed late.
 * Such a round is slow while an old snapshot pins dead rows. While claims bring jobs, at most 1/10
 * of the time is spent on such rounds; a claim that brings none must not be kept from its sweep. */
static void jobq__stretch_end(jobq_loop *l, jobq_loop_queue *q, const jobq_stretch *s,
                              int64_t start, int64_t now)
{
    jobq_low *low = &q->lows[s->priority - JOBQ_PRIORITY_MIN][s->stage];
    jobq_round whole, *r = &q->round;
    bool same = q->round.begun && q->round.priority == s->priority && q->round.stage == s->stage;
    bool drops = jobq__sweeps_lane(l, true) && low->holds && !s->whole &&
                 (l->claim.count == 0 || now >= q->low_mono_us);
    uint64_t at = (uint64_t)start - (uint64_t)q->round.from, end;

    memset(&whole, 0, sizeof whole);
    if (s->whole) r = &whole; /* a round by itself */
    if (drops) low->holds = false;
    if (same && s->whole) q->round.begun = false;
    if (!same || s->whole || drops || at > r->walked) { /* it leaves lines out */
        jobq__round_begin(r, s, start);
        at = 0;
    }
    end = at + ((uint64_t)s->to - (uint64_t)start);
    r->cost_us += now - l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM];
    jobq__low_see(&r->low, s->low_at_us, s->low_id);
    if (!s->whole && end >= at) {
        if (end > r->walked) r->walked = end;
        return;
    }
    if (!low->holds) q->low_mono_us = now + 9 * r->cost_us;
    *low = r->low;
    low->holds = true;
    r->begun = false;
}

static bool jobq__stretch_good(const jobq_stretch *s)
{
    return s->priority >= JOBQ_PRIORITY_MIN && s->priority <= JOBQ_PRIORITY_MAX && s->stage >= 0 &&
           s->stage < JOBQ_STAGES_MAX && s->low_id > 0;
}

/* Each stretch starts where the same queue's last one ended. */
static void jobq__stretched(jobq_loop *l, const jobq_claimed *got, int64_t now)
{
    int32_t i, k, last;

    for (i = 0; i < got->stretch_count; i++) {
        const jobq_stretch *s = &got->stretches[i];
        k = jobq__queue_index(l, s->queue);
        if (k == l->queue_count || !jobq__stretch_good(s)) continue;
        for (last = i - 1; last >= 0 && got->stretches[last].queue != s->queue;) last--;
        jobq__stretch_end(l, &l->queues[k], s,
                          last < 0 ? l->queues[k].walk : got->stretches[last].to, now);
    }
}

/* After a whole round without a job. When a line opens is not known, so the worker looks less and
 * less often. */
static int64_t jobq__round_wait(const jobq_loop *l)
{
    return jobq__min(jobq__max(l->pace.look_us, JOBQ__MS), JOBQ__SECOND);
}

/* Moves the places from which walks go on. Returns the time until a line that was left out may be
 * claimed from; 0: none was. A walk that finds no job continues at once until it has visited
 * every line. One that was full may have got room while the claim was under way. */
static int64_t jobq__walked(jobq_loop *l, const jobq_claimed *got)
{
    int64_t due_us = 0, sent = l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM];
    int32_t i, k;

    jobq__lines_gave(l, got);
    for (i = 0; i < got->walk_count; i++) {
        const jobq_walk *walk = &got->walks[i];
        jobq_loop_queue *q = &l->queues[k = jobq__queue_index(l, walk->queue)];
        uint64_t step;
        int64_t wait_us = walk->due_us;
        if (k == l->queue_count) continue;
        step = (uint64_t)walk->after - (uint64_t)q->walk;
        q->walk = walk->after;
        q->walked += step;
        q->passed = wait_us > 0;
        if (wait_us == 1 && jobq__came_round(q, step)) wait_us = jobq__round_wait(l);
        if (q->passed && l->pace.left_mono_us >= sent) wait_us = 1;
        if (q->passed) due_us = due_us == 0 ? wait_us : jobq__min(due_us, wait_us);
    }
    return due_us;
}

/* A job was settled. If its line was full, it is open now. */
static void jobq__line_left(jobq_loop *l, const jobq_job *job, int64_t now)
{
    int32_t i = jobq__queue_index(l, job->queue);

    if (job->line == 0) return;
    l->pace.left_mono_us = now;
    if (i < l->queue_count && l->queues[i].passed) jobq__look_again(l, now);
}

/* What the latest claim left out because it had no permit is claimed from as soon as there is one.
 * The permit may come while the claim is under way. */
static void jobq__shares_open(jobq_loop *l, int64_t now)
{
    int32_t i;

    for (i = 0; i < l->permits.share_count; i++) {
        if (!l->permits.shares[i].blocked || jobq__share_room(&l->permits.shares[i]) == 0) continue;
        l->pace.claim_mono_us = jobq__min(l->pace.claim_mono_us, now);
    }
}

/* The claim had no room for all lanes, and brought less than it may carry: the next one lists the
 * others, at once. */
static void jobq__round_goes_on(jobq_loop *l, int64_t now, int64_t walk_us)
{
    if (l->claim.count > 0) jobq__claimed_some(l, now, walk_us);
    l->sweep.passed |= l->claim.passed || walk_us > 0;
    l->pace.claim_mono_us = now;
}

/* After a claim that worked: decides when to claim again. */
static void jobq__claimed_all(jobq_loop *l, int64_t now, const jobq_claimed *got)
{
    bool came = l->claim.count > 0 || l->claim.ended;
    bool more = came || l->pace.lanes_next > 0; /* there may be */
    int64_t walk_us;

    l->stats.claims++;
    if (!l->claim.sweep)
        jobq__trip(&l->pace.trip_us, now - l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM]);
    if (l->claim.alone) {
        l->suspects.alone_mono_us = more ? now : JOBQ_NEVER;
        return;
    }
    if (l->claim.suspects) {
        l->suspects.ready = more;
        return;
    }
    if (got->suspects) l->suspects.ready = true;
    jobq__stretched(l, got, now);
    if (l->pace.lanes_next == 0) {
        jobq__swept(l, now);
        l->pace.turn = l->queue_count > 0 ? (l->pace.turn + 1) % (2 * l->queue_count) : 0;
    }
    walk_us = jobq__walked(l, got);
    if (l->claim.from == 0) l->claim.due_us = 0;
    if (got->due_us > 0 && (l->claim.due_us == 0 || got->due_us < l->claim.due_us))
        l->claim.due_us = got->due_us;
    if (l->pace.lanes_next > 0) jobq__round_goes_on(l, now, walk_us);
    else if (came) jobq__claimed_some(l, now, walk_us);
    else jobq__claimed_none(l, now, l->claim.due_us, walk_us);
    jobq__shares_open(l, now);
}

/* A claim was answered: what it did not bring is free again, and each job has used a token up. */
static void jobq__shares_answered(jobq_loop *l, int64_t now, const jobq_claimed *got,
                                  int32_t count)
{
    int32_t i, n;

    for (i = 0; i < l->permits.share_count; i++) {
        jobq_share *p = &l->permits.shares[i];
        p->asked = 0;
        for (n = 0; n < count; n++) {
            if (!jobq__share_of(l, p, &got->jobs[n])) continue;
            p->used_mono_us = now;
            if (p->tokens > 0) p->tokens--;
        }
    }
}

/* Moves the bounds of what is claimed from up to the store's clock. A sweep from the beginning
 * finds the jobs that are hidden now. */
static void jobq__bounds_raise(jobq_loop *l, int64_t now)
{
    int32_t i, priority, stage;

    for (i = 0; i < l->queue_count; i++) {
        for (priority = 0; priority < JOBQ_PRIORITIES; priority++) {
            for (stage = 0; stage < JOBQ_STAGES_MAX && jobq__claims_from(l, i); stage++) {
                jobq_bound *b = &l->queues[i].bounds[priority][stage][0];
                if (b->run_at_us >= l->lease.store_now_us) continue;
                b->run_at_us = l->lease.store_now_us;
                b->id = 0;
            }
        }
    }
    l->sweep.slice_us = JOBQ_LOOP_SLICE_US;
    l->sweep.sliced_us = INT64_MAX;
    l->sweep.next_mono_us = now;
    l->sweep.whole = l->sweep.empty = false;
}

/* The store has given up a claim because of the time that it took: dead rows lie before the first
 * job, more than it can pass in that time, and the same claim would not come farther. So the next
 * one begins at the store's clock, and slices look for what is older. A sweep is put off. */
static void jobq__claim_given_up(jobq_loop *l, int64_t now)
{
    bool sweeps = l->claim.sweep && jobq__bounds_newest(l) != INT64_MIN;

    if (sweeps) jobq__sweep_overran(l, now);
    else if (!l->claim.suspects) jobq__bounds_raise(l, now);
}

/* Counts the late jobs that a claim has ended. */
static void jobq__claimed_ended(jobq_loop *l, const jobq_claimed *got)
{
    int32_t i;

    for (i = 0; i < got->ended_count; i++) {
        const jobq_ended *e = &got->ended[i];
        l->stats.expired += e->count;
        jobq__tally_add(&l->tallies, e->queue, e->kind, JOBQ_TALLY_EXPIRED, e->count);
    }
    l->claim.ended = got->ended_count > 0;
    l->claim.cut |= l->claim.ended;
}

static void jobq__tell_claim(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq_claim *c = &l->claims[l->claim.entry];
    jobq_claimed *got = &a->claimed;
    int32_t i;

    l->claim.cut = a->error == JOBQ_OK && jobq__claim_is_cut(l, got);
    l->claim.ended = false;
    if (a->error == JOBQ_OK) jobq__claimed_ended(l, got);
    for (i = 0; a->error == JOBQ_OK && i < got->count; i++) {
        bool good = jobq_job_check(&got->jobs[i]) == JOBQ_OK;
        got->slots[i] = good ? jobq__claimed_job(l, now, &got->jobs[i]) : -1;
    }
    jobq__answered(l, JOBQ_REQUEST_CLAIM, now, a->error);
    jobq__shares_answered(l, now, got, a->error == JOBQ_OK ? got->count : 0);
    c->state = c->open > 0 ? JOBQ_CLAIM_LIVE : JOBQ_CLAIM_NONE; /* an empty claim writes no row */
    if (a->error == JOBQ_ERROR_DEAD && c->worker == l->worker) jobq__die(l, false);
    l->pace.lanes_next = a->error == JOBQ_OK && !l->claim.cut ? l->claim.next : 0;
    if (a->error != JOBQ_OK) {
        if (a->error != JOBQ_ERROR_RETRYABLE) jobq__claim_named(l, now, false);
        if (a->error == JOBQ_ERROR_TIMEOUT) jobq__claim_given_up(l, now);
        return;
    }
    if (got->named != 0) l->blame.named = got->named;
    if (got->alone) jobq__alone_ready(l, now, 0);
    jobq__claim_named(l, now, true);
    if (l->claim.names && l->blame.named != 0) return;
    jobq__claimed_late(l, now);
    jobq__claimed_all(l, now, got);
}

/* ---- >>flush: the decisions about jobs ------------------------------------------------------- */

/* The list of sent, or of finished, jobs of a kind of flush. */
static jobq_list *jobq__list_of(jobq_loop *l, jobq_request_kind kind, bool sent)
{
    if (kind == JOBQ_REQUEST_COMPLETE) return sent ? &l->sent_done : &l->done;
    return sent ? &l->sent_others : &l->others;
}

/* The database refuses the first finished decision but accepts others. Each time, a simpler one
 * is sent about the job. A success goes alone in a SETTLE; then it becomes a failed attempt,
 * without the texts and payload of the handler; then a failed job. In the end the job is left to
 * a rescuer. */
static void jobq__refuse(jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    int32_t i = jobq__pop(l, jobq__list_of(l, kind, false));
    jobq_slot *s = &l->slots[i];

    l->wire.budgets[kind].single = 0;
    if (kind == JOBQ_REQUEST_COMPLETE) {
        jobq__push_first(l, &l->others, i);
        return;
    }
    if (s->refused >= 2) {
        l->stats.left++;
        l->claims[s->entry].left = true;
        jobq__slot_free(l, i);
        return;
    }
    l->stats.refused++;
    s->state = JOBQ_SLOT_RUNNING;
    s->verify = false;
    s->bytes = s->job.bytes;
    jobq__give_back(l, i, s->refused++ == 0 ? JOBQ_EVENT_RETRY : JOBQ_EVENT_DISCARD, now);
}

/* A flush did not succeed: its jobs go back to the front of the finished ones, in the same order,
 * so that a smaller flush carries some of them. */
static void jobq__unsend(jobq_loop *l, jobq_request_kind kind, int64_t now, bool resent)
{
    jobq_list *sent = jobq__list_of(l, kind, true), *finished = jobq__list_of(l, kind, false);
    bool culprit = sent->count == 1 && jobq__budget_blames(&l->wire.budgets[kind]);
    jobq_list both = *sent;
    int32_t i;

    if (sent->count == 0) return;
    for (i = sent->head; i >= 0; i = l->slots[i].next) {
        l->slots[i].state = JOBQ_SLOT_FINISHED;
        l->slots[i].resent |= resent;
    }
    while ((i = jobq__pop(l, finished)) >= 0) jobq__push(l, &both, i);
    *finished = both;
    *sent = jobq__empty;
    l->flush.due_mono_us = jobq__min(l->flush.due_mono_us, now);
    if (culprit) jobq__refuse(l, kind, now);
}

/* A flush does not wait when a claim is due. If that waits for permits, the flush frees some. */
static int64_t jobq__due_flush(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    int32_t count = kind == JOBQ_REQUEST_COMPLETE ? l->done.count : l->others.count;
    bool full = count >= l->wire.budgets[kind].rows;
    bool idle = l->queued.count + l->running_count == 0; /* there is nothing to wait for */

    if (count == 0 || jobq__sent(l, kind)) return JOBQ_NEVER;
    if (l->wire.hold_mono_us[kind] > now) return l->wire.hold_mono_us[kind];
    if (count <= l->flush.locked[kind] && l->flush.locked_mono_us[kind] > now)
        return l->flush.locked_mono_us[kind];
    return full || idle || jobq__claim_time(l, now) <= now ? now : l->flush.due_mono_us;
}

static void jobq__add_ending(jobq_loop *l, int32_t slot, jobq_request *a)
{
    const jobq_slot *s = &l->slots[slot];
    jobq_ending *e = &a->endings[a->ending_count++];

    e->job = s->job.id;
    e->worker = s->job.worker;
    e->claim = s->job.claim;
    e->slot = slot;
    e->refused = s->refused;
    e->decision = s->decision;
}

static void jobq__make_flush(jobq_loop *l, int64_t now, jobq_request *a)
{
    jobq_request_kind kind = a->kind;
    jobq_list *from = jobq__list_of(l, kind, false), *to = jobq__list_of(l, kind, true);
    int64_t bytes = 0;

    (void)now;
    while (from->count > 0 && to->count < a->limit) {
        int32_t i = from->head;
        bytes += l->slots[i].bytes;
        if (to->count > 0 && bytes > l->wire.budgets[kind].bytes) break;
        jobq__pop(l, from);
        l->slots[i].state = JOBQ_SLOT_SENT;
        jobq__push(l, to, i);
        jobq__add_ending(l, i, a);
    }
    a->limit = l->wire.carried[kind] = to->count;
    l->flush.locked[kind] = 0;
    if (l->done.count + l->others.count == 0) l->flush.due_mono_us = JOBQ_NEVER;
}

static void jobq__count_lost(jobq_loop *l, const jobq_slot *s)
{
    l->stats.lost++;
    jobq__tally_add(&l->tallies, s->job.queue, s->job.kind, JOBQ_TALLY_LOST, 1);
}

/* A decision was not written: its job is locked, or has another token. */
static void jobq__unsettled(jobq_loop *l, int64_t now, jobq_request_kind kind,
                            const jobq_exception *e)
{
    jobq_list *sent = jobq__list_of(l, kind, true);
    int32_t i, prev = -1;

    for (i = sent->head; i >= 0; prev = i, i = l->slots[i].next) {
        const jobq_job *job = &l->slots[i].job;
        if (job->id == e->job && jobq_job_holds(job, e->worker, e->claim)) break;
    }
    if (i < 0) return;
    jobq__unlink(l, sent, prev, i);
    if (e->error == JOBQ_ERROR_BUSY) {
        l->slots[i].state = JOBQ_SLOT_FINISHED;
        jobq__push(l, jobq__list_of(l, kind, false), i);
        l->flush.locked[kind]++;
        return;
    }
    if (l->slots[i].verify) jobq__look_again(l, now); /* its next stage may be ready */
    else if (!l->slots[i].resent) jobq__count_lost(l, &l->slots[i]);
    jobq__slot_free(l, i);
}

/* Most locks on rows are those of another claim and last a moment; an operator's may last long. So
 * the wait doubles. */
static void jobq__locked(jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    int64_t *wait = &l->flush.locked_us[kind];

    *wait = l->flush.locked[kind] == 0 ? 0 : jobq__twice(*wait, 5 * JOBQ__MS, JOBQ__SECOND);
    l->flush.locked_mono_us[kind] = now + *wait;
    if (*wait > 0)
        l->flush.due_mono_us = jobq__min(l->flush.due_mono_us, l->flush.locked_mono_us[kind]);
}

static void jobq__tell_flush(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq_list *sent = jobq__list_of(l, a->kind, true);
    int32_t i;

    jobq__answered(l, a->kind, now, a->error);
    if (a->error != JOBQ_OK) {
        jobq__unsend(l, a->kind, now, false);
        return;
    }
    for (i = 0; i < a->count; i++) jobq__unsettled(l, now, a->kind, &a->exceptions[i]);
    jobq__locked(l, a->kind, now);
    while ((i = jobq__pop(l, sent)) >= 0) {
        const jobq_decision *d = &l->slots[i].decision;
        l->stats.flushed++;
        l->vacuum_rows++;
        if (d->state == JOBQ_STATE_READY && d->delay_us == 0 && !l->slots[i].verify) {
            jobq__look_again(l, now); /* the job may run again at once */
        }
        jobq__line_left(l, &l->slots[i].job, now);
        jobq__slot_free(l, i);
    }
    if (!a->more) return;
    l->pace.linger_us = 0; /* a chain, where each claim brings one job, would wait at each link */
    jobq__look_again(l, now);
}

/* ---- >>exchange: of permits: law (20) -------------------------------------------------------- */

#define JOBQ__ASK_MIN (50 * JOBQ__MS)  /* between two early heartbeats for a quota */
#define JOBQ__ASK_MAX JOBQ__SECOND     /* ... while others have it all */

/* Whether the worker looks for jobs now, or would, had it permits. */
static bool jobq__looks(const jobq_loop *l, int64_t now)
{
    int64_t at = jobq__claim_time(l, now);

    if (jobq__sent(l, JOBQ_REQUEST_CLAIM) && jobq__would_claim(l, now)) return true;
    return at != JOBQ_NEVER && (l->pace.idle_mono_us == JOBQ_NEVER || at <= now);
}

/* How many more jobs of a quota the worker could run. While it has other work, and none of this
 * quota came lately, one is enough to look for it. */
static int32_t jobq__share_more(const jobq_loop *l, const jobq_share *p, int64_t now)
{
    bool lately = jobq__share_used(p) > 0 || now < jobq__add(p->used_mono_us, JOBQ__SECOND);
    int32_t want = jobq__claim_want(l);

    if (!jobq__claims_from(l, p->queue)) return 0;
    return lately || !jobq__in_hand(l) ? (int32_t)jobq__max(want, 1) : 1;
}

/* Whether an early heartbeat could bring more of a quota. */
static bool jobq__share_short(const jobq_loop *l, const jobq_share *p)
{
    bool most = p->most > 0 && p->held <= jobq__share_used(p) && p->held >= p->most;

    return jobq__claims_from(l, p->queue) && jobq__share_room(p) == 0 && !most;
}

/* Whether the store has more down for this worker than it uses or may use. */
static bool jobq__share_spare(const jobq_share *p, bool looks)
{
    int32_t used = jobq__share_used(p);
    int64_t need = looks ? jobq__max(used, p->held) : used;

    return (p->most > 0 && p->counted > need) ||
           (!looks && p->chunk > 0 && p->tokens > p->asked + p->orphaned);
}

/* When an early heartbeat is due: for more permits as soon as a claim is due, or to give back what
 * is not used, when the worker has not looked for jobs for a while. */
static int64_t jobq__due_exchange(const jobq_loop *l, int64_t now)
{
    int64_t due = JOBQ_NEVER, at, back;
    bool looks, idle;
    int32_t i;

    if (l->permits.share_count == 0) return JOBQ_NEVER;
    at = jobq__claim_time(l, now);
    looks = jobq__looks(l, now);
    idle = l->pace.idle_mono_us != JOBQ_NEVER && now >= l->pace.idle_mono_us + JOBQ__IDLE;
    for (i = 0; i < l->permits.share_count; i++) {
        const jobq_share *p = &l->permits.shares[i];
        if (p->fresh) due = now;
        if (at != JOBQ_NEVER && jobq__share_short(l, p)) {
            due = jobq__min(due, jobq__max(at, p->ask_mono_us));
        }
        if (!jobq__share_spare(p, looks)) continue;
        back = looks || idle ? now : l->permits.looked_mono_us + JOBQ__IDLE;
        due = jobq__min(due, jobq__max(l->permits.exchange_mono_us + JOBQ__ASK_MIN, back));
    }
    return due;
}

/* Adds what the worker says about one quota. From now on it allows itself no more than it says it
 * runs: the store may take the rest away, and its answer may be lost. */
static void jobq__add_ask(jobq_loop *l, jobq_share *p, int64_t now, bool looks, jobq_request *a)
{
    jobq_ask *ask = &a->asks[a->ask_count++];
    int32_t used = jobq__share_used(p), more = looks ? jobq__share_more(l, p, now) : 0;
    int32_t reserved = (int32_t)jobq__min(p->tokens, p->asked + p->orphaned);

    memset(ask, 0, sizeof *ask);
    ask->quota = p->quota;
    ask->running = used;
    ask->wanted = used + more;
    if (more == 0) {
        ask->returned = p->tokens - reserved;
        p->tokens = reserved;
    }
    ask->tokens = p->tokens;
    ask->needed = (int32_t)jobq__max(jobq__min(more, p->chunk) - (p->tokens - reserved), 0);
    p->held = (int32_t)jobq__min(p->held, used);
    p->counted = used;
    p->fresh = false;
    p->ask_us = jobq__twice(p->ask_us, JOBQ__ASK_MIN, JOBQ__ASK_MAX);
    p->ask_mono_us = now + jobq__about(l, p->ask_us);
}

static void jobq__add_asks(jobq_loop *l, int64_t now, jobq_request *a)
{
    bool looks = jobq__looks(l, now);
    int32_t i;

    if (l->permits.share_count == 0) return;
    a->exchange = ++l->permits.exchange;
    l->permits.exchange_mono_us = now;
    for (i = 0; i < l->permits.share_count; i++)
        jobq__add_ask(l, &l->permits.shares[i], now, looks, a);
}

/* A quota that the loop hears of first. Jobs of it may run here already, or be under way. */
static void jobq__share_new(const jobq_loop *l, jobq_share *p, const jobq_permit *n)
{
    int32_t i;

    memset(p, 0, sizeof *p);
    p->quota = n->quota;
    p->kind = n->kind;
    p->queue = jobq__queue_index(l, n->queue);
    p->used_mono_us = INT64_MIN;
    p->fresh = p->passed = true;
    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        const jobq_claim *c = &l->claims[i];
        if (c->worker != l->worker) continue;
        if (c->state == JOBQ_CLAIM_SENT) p->asked += c->limit;
        if (c->state == JOBQ_CLAIM_ORPHAN) p->orphaned += c->limit;
    }
}

/* Takes the answer about one quota over. */
static void jobq__share_take(jobq_share *p, int64_t now, const jobq_permit *n)
{
    p->most = n->most;
    p->held = n->held;
    p->counted = (int32_t)jobq__max(p->counted, n->held);
    p->chunk = n->chunk;
    if (n->chunk == 0) p->tokens = 0;
    p->tokens += n->tokens;
    if (jobq__share_room(p) > 0) {
        p->ask_us = 0;
        p->ask_mono_us = now + JOBQ__ASK_MIN;
    } else if (n->chunk > 0 && p->tokens <= p->asked + p->orphaned) {
        p->ask_us = 0;
        p->ask_mono_us = now + jobq__max(n->wait_us, JOBQ__ASK_MIN);
    }
}

/* The place of a quota; share_count: the loop does not know it. */
static int32_t jobq__share_index(const jobq_loop *l, int32_t quota)
{
    int32_t i = 0;

    while (i < l->permits.share_count && l->permits.shares[i].quota != quota) i++;
    return i;
}

/* Drops quotas that are no longer in the news. */
static void jobq__shares_sift(jobq_loop *l, const jobq_news *n)
{
    int32_t i = 0, k;

    while (i < l->permits.share_count) {
        for (k = 0; k < n->permit_count && n->permits[k].quota != l->permits.shares[i].quota;) k++;
        if (k == n->permit_count)
            l->permits.shares[i] = l->permits.shares[--l->permits.share_count];
        else i++;
    }
}

/* Takes the answer of an exchange over: it has all quotas of the worker's queues. What was closed
 * and is open now is claimed from at once. */
static void jobq__permits_take(jobq_loop *l, int64_t now, const jobq_news *n)
{
    int32_t i;

    JOBQ_ASSERT(n->permit_count >= 0 && n->permit_count <= JOBQ_LOOP_QUOTAS);
    if (n->permit_count + l->permits.share_count == 0) return;
    jobq__shares_sift(l, n);
    for (i = 0; i < n->permit_count; i++) {
        int32_t at = jobq__share_index(l, n->permits[i].quota);
        jobq_share *p = &l->permits.shares[at];
        if (jobq__queue_index(l, n->permits[i].queue) == l->queue_count) continue;
        if (at == l->permits.share_count)
            jobq__share_new(l, &l->permits.shares[l->permits.share_count++], &n->permits[i]);
        jobq__share_take(p, now, &n->permits[i]);
    }
    jobq__shares_open(l, now);
    for (i = 0; i < l->permits.share_count; i++) l->permits.shares[i].running = 0;
    for (i = 0; i < JOBQ_LOOP_SLOTS && l->permits.share_count > 0; i++) {
        if (l->slots[i].state != JOBQ_SLOT_FREE) jobq__shares_count(l, &l->slots[i].job, 1);
    }
}

/* ---- >>beat: the heartbeat and its news ------------------------------------------------------ */

static int64_t jobq__due_beat(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    if (!l->session.registered || l->phase > JOBQ_PHASE_STOPPING || jobq__sent(l, kind)) {
        return JOBQ_NEVER;
    }
    return jobq__max(jobq__min(l->lease.beat_mono_us, jobq__due_exchange(l, now)),
                     l->wire.hold_mono_us[kind]);
}

/* How much later than usual the heartbeat after the next may come: the time between them doubles.
 * Only while producers know that this worker sleeps, so that their jobs wake it. */
static int64_t jobq__rest(const jobq_loop *l, int64_t now)
{
    int64_t idle = jobq__max(l->pace.idle_mono_us, l->relay.idle_mono_us);
    int64_t usual = l->config.heartbeat_us, pause = 2 * (usual + l->lease.rest_us);

    idle = jobq__add(jobq__max(idle, l->lease.heard_mono_us), 12 * usual);
    if (!l->sleep.asleep || l->sleep.deaf || now < idle || !l->sweep.empty || jobq__in_hand(l) ||
        l->orphan_count > 0) return 0;
    return jobq__max(jobq__min(pause, l->config.rest_us) - usual, 0);
}

/* Adds the claims whose rows this heartbeat may delete. */
static void jobq__add_settled(jobq_loop *l, jobq_request *a)
{
    int32_t i;

    l->lease.settled_count = 0;
    for (i = 0; i < JOBQ_LOOP_CLAIMS && a->settled_count < a->limit; i++) {
        if (l->claims[i].state != JOBQ_CLAIM_SETTLED) continue;
        l->claims[i].state = JOBQ_CLAIM_GOING;
        a->settled[a->settled_count++] = l->claims[i].number;
    }
}

/* The heartbeat of an idle worker also claims, in one statement, unless claims fail, or permits
 * must come first. The claim uses what the worker had before. */
static void jobq__make_beat(jobq_loop *l, int64_t now, jobq_request *a)
{
    bool idle = l->pace.idle_mono_us != JOBQ_NEVER && l->sweep.empty &&
                l->wire.budgets[JOBQ_REQUEST_CLAIM].rows == l->config.batch_max &&
                jobq__due_claim(l, JOBQ_REQUEST_CLAIM, now) != JOBQ_NEVER;
    int32_t i;

    a->rest_us = l->lease.rest_us = jobq__rest(l, now);
    l->lease.end_mono_us = jobq__min(l->lease.end_mono_us, now + a->lease_us + a->rest_us);
    jobq__add_settled(l, a);
    if (l->permits.share_count > 0)
        idle = idle && now >= l->lease.beat_mono_us; /* not to give permits back */
    for (i = 0; i < l->permits.share_count; i++)
        idle = idle && jobq__share_room(&l->permits.shares[i]) > 0;
    if (idle) {
        l->wire.inflight |= 1u << JOBQ_REQUEST_CLAIM;
        l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM] = now;
        a->limit = l->wire.budgets[JOBQ_REQUEST_CLAIM].rows;
        jobq__add_claim(l, now, a);
    }
    jobq__tally_send(&l->tallies, a);
    jobq__add_asks(l, now, a); /* last: it counts that claim */
}

/* A cancel request for this job. */
static void jobq__cancel(jobq_loop *l, int64_t job_id)
{
    int32_t i, prev = -1;

    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) {
        if (l->slots[i].state != JOBQ_SLOT_FREE && l->slots[i].job.id == job_id) {
            l->slots[i].cancel = true;
        }
    }
    for (i = l->queued.head; i >= 0 && l->slots[i].job.id != job_id; i = l->slots[i].next) prev = i;
    if (i < 0) return;
    jobq__unlink(l, &l->queued, prev, i);
    jobq__give_back(l, i, JOBQ_EVENT_CANCELLED, l->wire.sent_mono_us[JOBQ_REQUEST_HEARTBEAT]);
}

/* A worker is late. It is watched from the time when this loop first saw it with this beat. */
static void jobq__late(jobq_loop *l, int64_t now, const jobq_holder *late)
{
    jobq_watched *place = NULL;
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        jobq_watched *w = &l->watched[i];
        if (w->worker == late->worker) {
            place = w;
            break;
        }
        if (w->worker == 0 && place == NULL) place = w;
    }
    if (place == NULL) return;
    if (place->worker != late->worker || place->beat != late->beat) place->since_mono_us = now;
    place->worker = late->worker;
    place->beat = late->beat;
    place->lease_us = late->beat < 0 ? 0 : late->lease_us; /* dead: nothing to watch */
    place->mentioned = true;
}

/* The first news decides whether rescue comes first: law (18). */
static void jobq__inform(jobq_loop *l, int64_t now, int32_t overdue)
{
    if (!l->session.informed && overdue >= JOBQ__OVERDUE)
        l->suspects.rescue_mono_us = now + l->config.lease_us;
    l->session.informed = true;
    if (!l->suspects.alone_told) l->suspects.alone_mono_us = JOBQ_NEVER;
    l->suspects.alone_told = false;
}

/* A worker that is no longer in the news is no longer late. */
static void jobq__watched_sift(jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        if (!l->watched[i].mentioned) l->watched[i].worker = 0;
        l->watched[i].mentioned = false;
    }
}

static void jobq__claims_gone(jobq_loop *l, bool gone)
{
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        if (l->claims[i].state == JOBQ_CLAIM_GOING) {
            l->claims[i].state = gone ? JOBQ_CLAIM_NONE : JOBQ_CLAIM_SETTLED;
        }
    }
}

static void jobq__bounds_drop(jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        memset(l->queues[i].bounds, 0, sizeof l->queues[i].bounds);
        memset(l->queues[i].lows, 0, sizeof l->queues[i].lows);
        l->queues[i].round.begun = false;
    }
}

/* A store says a microsecond more than is left, because 0 means that there is none. */
static int64_t jobq__tick_at(int64_t now, int64_t due_us)
{
    return due_us > 0 ? now + due_us - 1 : JOBQ_NEVER;
}

static void jobq__news_take(jobq_loop *l, int64_t now, const jobq_news *n)
{
    int64_t sent = l->wire.sent_mono_us[JOBQ_REQUEST_HEARTBEAT];
    int32_t i;

    JOBQ_ASSERT(n->kind_count >= 0 && n->kind_count <= JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX);
    for (i = 0; i < n->cancel_count; i++) jobq__cancel(l, n->cancels[i]);
    for (i = 0; i < n->late_count; i++) jobq__late(l, now, &n->late[i]);
    for (i = 0; i < n->alone_count; i++) jobq__alone_ready(l, now, n->alone[i]);
    l->session.every_kind = n->every_kind;
    l->kind_count = n->kind_count;
    memcpy(l->kinds, n->kinds, (size_t)n->kind_count * sizeof *l->kinds);
    l->session.kinds_known = true;
    l->stats.heartbeats++;
    l->session.connects = 0; /* the connection has worked, and was not only made */
    if (sent >= l->lease.end_mono_us || l->lease.alive_mono_us == JOBQ_NEVER)
        l->lease.alive_mono_us = now;
    if (n->others || n->late_count > 0) l->lease.rest_us = 0; /* it may have to rescue them */
    l->lease.end_mono_us = sent + l->config.lease_us + l->lease.rest_us;
    l->lease.beat_mono_us = sent + l->config.heartbeat_us + l->lease.rest_us; /* and some jitter */
    l->lease.beat_mono_us +=
        jobq_random_between(jobq_random_next(&l->random), 0, l->config.heartbeat_us / 32);
    if (n->policy != l->session.policy) l->session.policies_stale = true;
    l->session.policy = n->policy;
    if (n->suspects) l->suspects.ready = true;
    jobq__permits_take(l, now, n);
    l->tick_mono_us = jobq__tick_at(now, n->tick_us);
    l->parked.kind = n->parked_kind;
    l->parked.unparked = false;
    if (n->store_now_us < l->lease.store_now_us)
        jobq__bounds_drop(l); /* the store's clock went back */
    l->lease.store_now_us = n->store_now_us;
    l->tallies.clock_us = n->store_now_us - sent;
    if (l->tallies.tries > 0) jobq__tally_took(&l->tallies);
    jobq__watched_sift(l);
    jobq__inform(l, now, n->overdue);
}

static void jobq__tell_beat(jobq_loop *l, int64_t now, jobq_answer *a)
{
    bool alive = a->error == JOBQ_OK && a->news.alive;

    jobq__answered(l, JOBQ_REQUEST_HEARTBEAT, now, a->error);
    jobq__claims_gone(l, alive);
    if (alive) jobq__news_take(l, now, &a->news);
    else if (a->error == JOBQ_OK) jobq__die(l, true);
    if (a->claim != 0) jobq__tell_claim(l, now, a);
}

/* ---- >>rescue -------------------------------------------------------------------------------- */

/* The late worker to rescue first, and when; NULL: none. The rescuer itself must have been alive
 * for a lease. */
static const jobq_watched *jobq__victim(const jobq_loop *l, int64_t *due)
{
    const jobq_watched *first = NULL;
    int32_t i;

    *due = JOBQ_NEVER;
    if (!l->session.registered || l->phase != JOBQ_PHASE_WORKING ||
        l->lease.alive_mono_us == JOBQ_NEVER)
        return NULL;
    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        const jobq_watched *w = &l->watched[i];
        int64_t at;
        if (w->worker == 0) continue;
        at = jobq__max(w->since_mono_us + w->lease_us, l->lease.alive_mono_us + l->config.lease_us);
        if (first == NULL || at < *due) {
            first = w;
            *due = at;
        }
    }
    *due = jobq__max(*due, l->wire.hold_mono_us[JOBQ_REQUEST_RESCUE]);
    return first;
}

static int64_t jobq__due_rescue(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    int64_t due;

    (void)now;
    if (jobq__sent(l, kind) || jobq__victim(l, &due) == NULL) return JOBQ_NEVER;
    return due;
}

static void jobq__make_rescue(jobq_loop *l, int64_t now, jobq_request *a)
{
    int64_t due;
    const jobq_watched *victim = jobq__victim(l, &due);

    (void)now;
    a->worker = victim->worker;
    a->beat = victim->beat;
}

static void jobq__tell_rescue(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq_watched *w = NULL;
    int32_t i;

    jobq__answered(l, JOBQ_REQUEST_RESCUE, now, a->error);
    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        if (l->watched[i].worker == a->worker) w = &l->watched[i];
    }
    if (a->error != JOBQ_OK) { /* rescue others first */
        bool blamed = jobq__budget_blames(&l->wire.budgets[JOBQ_REQUEST_RESCUE]);
        if (blamed && w != NULL) w->since_mono_us = now;
        return;
    }
    l->stats.rescued += a->count;
    if (a->count > 0) {
        l->suspects.ready = true;
        jobq__look_again(l, now);
    }
    if (w == NULL) return;
    if (a->done && !a->more) w->worker = 0;
    if (a->done) w->lease_us = jobq__min(l->config.heartbeat_us, JOBQ__SECOND);
    w->since_mono_us = now; /* it had locked jobs: come back for them; or it has beaten: watch on */
}

/* ---- >>rest: schedules, sleep, prune and the other statements -------------------------------- */

static int64_t jobq__due_tick(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    (void)now;
    if (!l->session.registered || l->phase != JOBQ_PHASE_WORKING || jobq__sent(l, kind))
        return JOBQ_NEVER;
    return jobq__max(l->tick_mono_us, l->wire.hold_mono_us[kind]);
}

/* A schedule is due, or is being fired. */
static bool jobq__ticks(const jobq_loop *l, int64_t now)
{
    return jobq__sent(l, JOBQ_REQUEST_TICK) ||
           (l->tick_mono_us <= now && l->wire.failures[JOBQ_REQUEST_TICK] == 0);
}

static void jobq__tell_tick(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_TICK, now, a->error);
    if (a->error != JOBQ_OK) return;
    l->tick_mono_us = jobq__tick_at(now, a->due_us);
    if (a->count == 0) return;
    jobq__look_again(l, now);
    jobq__relay_look(l, now);
}

/* -- sleep -- */

/* A worker is idle when it has neither jobs nor messages. NOTIFY takes a lock at commit, so
 * producers that all notify a sleeper commit one by one: 32 of them, with 8 workers, fell to a
 * sixth of their rate. So a sleeper that is notified often withdraws at once, before it knows
 * whether there is work for it. */
static int64_t jobq__due_sleep(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    int64_t busy = jobq__min(l->pace.busy_mono_us, l->relay.busy_mono_us);
    int64_t idle = jobq__max(l->pace.idle_mono_us, l->relay.idle_mono_us);
    int64_t since = l->sleep.asleep ? jobq__add(busy, JOBQ__SECOND) : jobq__add(idle, JOBQ__IDLE);

    (void)now;
    if (!l->served.listen || l->sleep.deaf || !l->session.registered ||
        l->phase != JOBQ_PHASE_WORKING || jobq__sent(l, kind))
        return JOBQ_NEVER;
    if (l->sleep.asleep && l->sleep.woken_count >= JOBQ__CONVOY) return l->wire.hold_mono_us[kind];
    if (since == JOBQ_NEVER) return JOBQ_NEVER;
    since = jobq__max(since, l->sleep.told_mono_us + JOBQ__SECOND);
    return jobq__max(since, l->wire.hold_mono_us[kind]);
}

/* Adds all queues. To a REMAIN, adds those whose jobs, and those whose messages, this worker
 * handles. */
static void jobq__make_queues(jobq_loop *l, int64_t now, jobq_request *a)
{
    bool all = a->kind != JOBQ_REQUEST_REMAIN;
    int32_t i;

    (void)now;
    for (i = 0; i < l->queue_count; i++) {
        int32_t id = l->queues[i].id;
        bool jobs = all || (l->served.jobless_queues >> i & 1) == 0;
        if (jobs) a->queues[a->queue_count++] = id;
        if ((l->served.message_queues >> i & 1) == 0) continue;
        a->message_queues[a->message_queue_count++] = id;
    }
}

static void jobq__make_sleep(jobq_loop *l, int64_t now, jobq_request *a)
{
    jobq__make_queues(l, now, a);
    a->relaxed = true;
    a->asleep = !l->sleep.asleep;
}

static void jobq__tell_sleep(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_SLEEP, now, a->error);
    if (a->error != JOBQ_OK) return;
    l->sleep.asleep = !l->sleep.asleep;
    l->sleep.told_mono_us = now;
    l->sleep.woken_count = 0;
    if (l->sleep.asleep) jobq__look_again(l, now); /* a producer may have looked before it */
}

/* -- other statements -- */

/* Nothing is held and nothing is due, as far as this loop has looked. */
static bool jobq__empty_here(const jobq_loop *l)
{
    bool paused = l->session.registered && !l->session.policies_stale && jobq__all_paused(l);
    bool swept = l->sweep.empty && !l->suspects.ready && l->suspects.alone_mono_us == JOBQ_NEVER &&
                 !l->pace.passed_by;
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        if (l->queues[i].hold_mono_us != INT64_MIN && !l->queues[i].paused &&
            (l->served.jobless_queues >> i & 1) == 0) return false;
    }
    if (l->parked.kind != 0 || l->parked.unparked) return false;
    return (swept || paused) && jobq__relay_empty(l) && !jobq__in_hand(l) && l->orphan_count == 0;
}

/* Whether a statement is wanted that waits only for its hold. */
static bool jobq__wanted(const jobq_loop *l, jobq_request_kind kind)
{
    bool member = l->session.registered && l->phase <= JOBQ_PHASE_STOPPING;
    bool works = l->session.registered && l->phase == JOBQ_PHASE_WORKING;

    switch ((int)kind) {
    case JOBQ_REQUEST_REGISTER: return !l->session.registered && l->phase == JOBQ_PHASE_WORKING;
    case JOBQ_REQUEST_POLICIES: return member && l->session.policies_stale;
    case JOBQ_REQUEST_RECOVER: return member && l->orphan_count > 0;
    case JOBQ_REQUEST_SET_ASIDE: return member && l->blame.accused;
    case JOBQ_REQUEST_UNPARK: return member && l->parked.kind != 0;
    case JOBQ_REQUEST_PRUNE: return works && l->config.prune_us != JOBQ_NEVER;
    case JOBQ_REQUEST_VACUUM: return works && l->vacuum_rows >= l->config.vacuum_rows;
    case JOBQ_REQUEST_REMAIN:
        return works && l->config.until == JOBQ_UNTIL_ENDED && jobq__empty_here(l);
    case JOBQ_REQUEST_DEREGISTER: return l->session.registered && l->phase == JOBQ_PHASE_LEAVING;
    }
    return false;
}

static int64_t jobq__due_wanted(const jobq_loop *l, jobq_request_kind kind, int64_t now)
{
    (void)now;
    return jobq__wanted(l, kind) && !jobq__sent(l, kind) ? l->wire.hold_mono_us[kind] : JOBQ_NEVER;
}

static void jobq__make_register(jobq_loop *l, int64_t now, jobq_request *a)
{
    (void)now;
    a->worker = l->worker = jobq_worker_id_from(jobq_random_next(&l->random));
    l->lease.end_mono_us = INT64_MIN;
}

/* Where a worker's first walk starts. Workers should not all visit the same lines. */
static int64_t jobq__walk_from(int64_t worker)
{
    uint64_t at = (uint64_t)worker * UINT64_C(0x9e3779b97f4a7c15) >> 1;

    return (int64_t)at - (INT64_MAX >> 1);
}

static void jobq__tell_register(jobq_loop *l, int64_t now, jobq_answer *a)
{
    int32_t i;

    jobq__answered(l, JOBQ_REQUEST_REGISTER, now, a->error);
    if (a->error != JOBQ_OK) {
        l->worker = 0;
        return;
    }
    JOBQ_ASSERT(a->count >= 0 && a->count <= JOBQ_LOOP_QUEUES);
    l->session.registered = true;
    l->session.informed = l->session.kinds_known = false;
    l->suspects.alone_mono_us = JOBQ_NEVER;
    l->suspects.rescue_mono_us = INT64_MIN;
    l->session.connects = 0;
    l->queue_count = a->count;
    for (i = 0; i < a->count; i++) {
        memset(&l->queues[i], 0, sizeof l->queues[i]);
        l->queues[i].id = a->queues[i];
        l->queues[i].stages_max = 1;
        l->queues[i].kinds = INT32_MAX;
        l->queues[i].hold_mono_us = l->queues[i].low_mono_us = INT64_MIN;
        l->queues[i].walk = jobq__walk_from(l->worker);
        l->queues[i].policy = jobq_policy_defaults(NULL);
    }
    JOBQ_ASSERT(a->kind_count >= 0 && a->kind_count <= JOBQ_LOOP_KINDS);
    jobq__limits_set(l, a->kinds, a->kind_count);
    l->lease.end_mono_us = l->wire.sent_mono_us[JOBQ_REQUEST_REGISTER] + l->config.lease_us;
    l->lease.alive_mono_us = now;
    l->lease.beat_mono_us = now; /* for the first news: late workers, parked kinds, suspects */
    l->tick_mono_us = JOBQ_NEVER;
    l->pace.claim_mono_us = l->sweep.next_mono_us = now;
    l->session.policies_stale = true;
    jobq__relay_look(l, now);
}

static void jobq__tell_policies(jobq_loop *l, int64_t now, jobq_answer *a)
{
    int32_t i;

    jobq__answered(l, JOBQ_REQUEST_POLICIES, now, a->error);
    if (a->error != JOBQ_OK) return;
    l->session.policies_stale = false;
    for (i = 0; i < a->count && i < l->queue_count; i++) {
        const jobq_queue_policy *p = &a->policies[i];
        jobq_loop_queue *q = &l->queues[i];
        int16_t least = (int16_t)jobq__max(jobq__min(p->priority_min, 0), JOBQ_PRIORITY_MIN);
        if (q->paused && !p->paused) l->pace.claim_mono_us = l->relay.look_mono_us = INT64_MIN;
        if (least < q->priority_min) l->pace.claim_mono_us = l->pace.full_mono_us = INT64_MIN;
        q->policy = jobq_policy_defaults(&p->policy);
        q->stages_max = (int16_t)jobq__min(jobq__max(p->stages_max, 1), JOBQ_STAGES_MAX);
        q->priority_min = least;
        q->paused = p->paused;
        if (p->lines && !q->lines) l->pace.claim_mono_us = l->pace.full_mono_us = INT64_MIN;
        q->lines = p->lines;
        q->ageing = p->ageing;
        q->hold_mono_us = p->hold_us > 0 ? jobq__add(now, p->hold_us) : jobq__min(
            q->hold_mono_us, now); /* jobq__holds_end ends it */
    }
    JOBQ_ASSERT(a->kind_policy_count >= 0 && a->kind_policy_count <= JOBQ_LOOP_KINDS);
    l->kind_policy_count = a->kind_policy_count;
    for (i = 0; i < a->kind_policy_count; i++) {
        l->kind_policies[i].kind = a->kind_policies[i].kind;
        l->kind_policies[i].policy = jobq_policy_defaults(&a->kind_policies[i].policy);
    }
}

static void jobq__make_recover(jobq_loop *l, int64_t now, jobq_request *a)
{
    int32_t i;

    (void)now;
    for (i = 0; i < JOBQ_LOOP_CLAIMS && l->claims[i].state != JOBQ_CLAIM_ORPHAN;) i++;
    JOBQ_ASSERT(i < JOBQ_LOOP_CLAIMS);
    a->claim = l->claims[i].number;
}

/* No claim is lost any more. Tokens of those that were are used up: they may have taken jobs. */
static void jobq__shares_recovered(jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < l->permits.share_count; i++) {
        jobq_share *p = &l->permits.shares[i];
        p->tokens = (int32_t)jobq__max(p->tokens - p->orphaned, 0);
        p->orphaned = 0;
    }
}

static void jobq__tell_recover(jobq_loop *l, int64_t now, jobq_answer *a)
{
    int32_t entry = jobq__claim_find(l, l->worker, a->claim);

    jobq__answered(l, JOBQ_REQUEST_RECOVER, now, a->error);
    if (a->error != JOBQ_OK || a->more || entry < 0) return;
    if (--l->orphan_count == 0) jobq__shares_recovered(l);
    /* The row of its number stays: without the row the claim could still arrive. */
    l->claims[entry].state = JOBQ_CLAIM_NONE;
    if (l->claims[entry].suspects) l->suspects.ready = true;
    jobq__look_again(l, now);
}

static void jobq__make_set_aside(jobq_loop *l, int64_t now, jobq_request *a)
{
    (void)now;
    a->id = l->blame.named;
    a->bytes = jobq__budget_of(l, JOBQ_REQUEST_CLAIM)->bytes;
}

static void jobq__tell_set_aside(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_SET_ASIDE, now, a->error);
    l->blame.named = l->blame.accused = 0;
    jobq__budget_of(l, JOBQ_REQUEST_CLAIM)->single = 0;
    if (a->error != JOBQ_OK || !a->done) return;
    l->stats.aside++;
    l->wire.hold_mono_us[JOBQ_REQUEST_CLAIM] = now;
    jobq__look_again(l, now);
}

static void jobq__make_unpark(jobq_loop *l, int64_t now, jobq_request *a)
{
    (void)now;
    a->id = l->parked.kind;
}

static void jobq__tell_unpark(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_UNPARK, now, a->error);
    if (a->error != JOBQ_OK) return;
    if (!a->more) {
        l->parked.kind = 0;
        l->parked.unparked = true; /* the next news may name another kind */
        if (l->config.until != JOBQ_UNTIL_STOPPED) l->lease.beat_mono_us = now;
    }
    if (a->count > 0) jobq__look_again(l, now);
}

static void jobq__tell_prune(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_PRUNE, now, a->error);
    jobq__hold_back(l, JOBQ_REQUEST_PRUNE,
                    jobq__add(now, jobq_random_between(jobq_random_next(&l->random),
                                                       l->config.prune_us / 2,
                                                       l->config.prune_us)));
}

static void jobq__make_vacuum(jobq_loop *l, int64_t now, jobq_request *a)
{
    (void)now;
    (void)a;
    l->vacuum_rows = 0;
}

/* Vacuum takes at most 1/3 of the time. If it is slow, as it is while an old snapshot keeps it from
 * removing anything, it takes 1/10, but waits no longer than a minute for that: when the snapshot
 * has ended, there is much to remove. After an error it waits 1 min, doubling to 1 h. */
static void jobq__tell_vacuum(jobq_loop *l, int64_t now, jobq_answer *a)
{
    int64_t cost = now - l->wire.sent_mono_us[JOBQ_REQUEST_VACUUM], wait;

    jobq__answered(l, JOBQ_REQUEST_VACUUM, now, a->error);
    wait = 30 * JOBQ__SECOND << jobq__min(l->wire.failures[JOBQ_REQUEST_VACUUM], 7);
    if (a->error == JOBQ_OK) {
        wait = cost > JOBQ__VACUUM_PAUSE / 2 ? jobq__min(9 * cost, JOBQ__MINUTE)
                                             : JOBQ__VACUUM_PAUSE - cost;
        wait = jobq__max(wait, 2 * cost);
    }
    jobq__hold_back(l, JOBQ_REQUEST_VACUUM, now + wait);
}

static void jobq__make_deregister(jobq_loop *l, int64_t now, jobq_request *a)
{
    (void)now;
    jobq__tally_send(&l->tallies, a);
}

static void jobq__tell_deregister(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_DEREGISTER, now, a->error);
    l->session.registered = false;
}

/* Something remains, perhaps with other workers, and nothing announces its end: ask again, with
 * ever longer pauses. */
static void jobq__tell_remain(jobq_loop *l, int64_t now, jobq_answer *a)
{
    jobq__answered(l, JOBQ_REQUEST_REMAIN, now, a->error);
    if (a->error != JOBQ_OK) return;
    l->until.none_remain = !a->more;
    l->until.remain_us = jobq__twice(l->until.remain_us, 10 * JOBQ__MS, l->config.poll_us);
    jobq__hold_back(l, JOBQ_REQUEST_REMAIN, now + jobq__about(l, l->until.remain_us));
}

/* ---- >>next: the connection, and what to do next --------------------------------------------- */

/* Whether the server was executing this statement when the connection broke: it was sent before all
 * others. Of statements sent at the same time, flushes go first and the claim last. */
static bool jobq__was_first(const jobq_loop *l, jobq_request_kind kind)
{
    int64_t at = l->wire.sent_mono_us[kind], part = jobq__due_part_answer(l);
    int k;

    if (part < at || (part == at && kind == JOBQ_REQUEST_CLAIM)) return false;
    for (k = 0; k < JOBQ_REQUEST_COUNT; k++) {
        bool before = kind == JOBQ_REQUEST_CLAIM || k == JOBQ_REQUEST_COMPLETE;
        if (k == (int)kind || (l->wire.inflight & ~JOBQ__ASIDE & 1u << k) == 0) continue;
        if (l->wire.sent_mono_us[k] < at || (l->wire.sent_mono_us[k] == at && before)) return false;
    }
    return true;
}

/* The statements on their way have failed. */
static void jobq__unanswered(jobq_loop *l)
{
    bool first[JOBQ_REQUEST_COUNT];
    int k;

    for (k = 0; k < JOBQ_REQUEST_COUNT; k++) first[k] = jobq__was_first(l, (jobq_request_kind)k);
    for (k = 0; k < JOBQ_REQUEST_COUNT; k++) {
        if ((l->wire.inflight & ~JOBQ__ASIDE & 1u << k) == 0) continue;
        jobq__budget_failed(jobq__budget_of(l, (jobq_request_kind)k), l->wire.carried[k],
                            first[k] && jobq__well(l, (jobq_request_kind)k));
    }
    if (jobq__sent(l, JOBQ_REQUEST_CLAIM) && first[JOBQ_REQUEST_CLAIM]) {
        jobq__claim_named(l, 0, false);
    }
    if (jobq__sent(l, JOBQ_REQUEST_SET_ASIDE)) l->blame.named = l->blame.accused = 0;
}

JOBQ_API void jobq_loop_disconnected(jobq_loop *l, int64_t mono_us)
{
    int64_t wait;
    int32_t i;

    JOBQ_ASSERT(l != NULL);
    if (l->session.connected) l->stats.reconnects++;
    if (jobq__sent(l, JOBQ_REQUEST_REGISTER))
        l->worker = 0; /* the next id is new, whatever became of this one */
    if (jobq__sent(l, JOBQ_REQUEST_CLAIM) && jobq__overran(l, JOBQ_REQUEST_CLAIM, mono_us))
        jobq__sweep_overran(l, mono_us);
    if (jobq__sent(l, JOBQ_REQUEST_LOOK)) jobq__relay_overran(l, mono_us);
    jobq__unanswered(l);
    jobq__relay_disconnected(l, mono_us);
    l->session.connected = false;
    l->wire.inflight &= JOBQ__ASIDE;
    wait = jobq__min((int64_t)100 * JOBQ__MS << jobq__min(l->session.connects, 10),
                     JOBQ__RECONNECT_CAP);
    l->session.connect_mono_us = mono_us + (l->session.connects == 0 ? 0 : jobq_random_between(
                                        jobq_random_next(&l->random), wait / 2, wait));
    if (l->session.connects < UINT32_MAX) l->session.connects++;
    for (i = 0; i < l->permits.share_count; i++) { /* a lost claim counts until it is recovered */
        l->permits.shares[i].orphaned += l->permits.shares[i].asked;
        l->permits.shares[i].asked = 0;
    }
    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        jobq_claim *c = &l->claims[i];
        if (c->state == JOBQ_CLAIM_SENT) {
            c->state = c->worker == l->worker ? JOBQ_CLAIM_ORPHAN : JOBQ_CLAIM_NONE;
            if (c->state == JOBQ_CLAIM_ORPHAN) l->orphan_count++;
        }
        if (c->state == JOBQ_CLAIM_GOING) c->state = JOBQ_CLAIM_SETTLED;
    }
    jobq__unsend(l, JOBQ_REQUEST_COMPLETE, mono_us, true);
    jobq__unsend(l, JOBQ_REQUEST_SETTLE, mono_us, true);
    if (jobq__rescues_first(l, mono_us)) l->session.informed = false; /* it must watch them again */
    l->suspects.rescue_mono_us = INT64_MIN;
    memset(l->watched, 0, sizeof l->watched); /* an outage proves no worker dead */
    l->lease.alive_mono_us = JOBQ_NEVER;
}

static void jobq__tell_connect(jobq_loop *l, int64_t now, jobq_answer *a)
{
    if (a->error != JOBQ_OK) {
        jobq_loop_disconnected(l, now);
        return;
    }
    jobq__answered(l, JOBQ_REQUEST_CONNECT, now, JOBQ_OK);
    l->session.connected = true;
    l->session.kinds_known = false;
    l->lease.beat_mono_us =
        now; /* the news comes first: is this worker still alive? what is paused? */
    l->pace.claim_mono_us = now;
    l->pace.look_us = l->pace.linger_us = 0;
    l->sweep.empty = l->sleep.asleep = false;
    l->sleep.told_mono_us = now - JOBQ__SECOND;
    l->session.policies_stale = true;
}

static void jobq__tell_disconnect(jobq_loop *l, int64_t now, jobq_answer *a)
{
    (void)a;
    jobq_loop_disconnected(l, now);
}

/* -- all statements -- */

typedef struct jobq_activity {
    jobq_request_kind kind;
    int64_t (*due)(const jobq_loop *l, jobq_request_kind kind, int64_t now); /* NULL: asked for
                                                                                elsewhere */
    void (*make)(jobq_loop *l, int64_t now, jobq_request *a); /* NULL: nothing to fill in */
    void (*tell)(jobq_loop *l, int64_t now, jobq_answer *a);
} jobq_activity;

/* Of requests that are due at the same time the first in this list goes first: decisions, news,
 * messages, the rest. The claim is last, because it fills what the others freed. */
static const jobq_activity jobq__activities[] = {
    {JOBQ_REQUEST_CONNECT, NULL, NULL, jobq__tell_connect},
    {JOBQ_REQUEST_DISCONNECT, NULL, NULL, jobq__tell_disconnect},
    {JOBQ_REQUEST_COMPLETE, jobq__due_flush, jobq__make_flush, jobq__tell_flush},
    {JOBQ_REQUEST_SETTLE, jobq__due_flush, jobq__make_flush, jobq__tell_flush},
    {JOBQ_REQUEST_HEARTBEAT, jobq__due_beat, jobq__make_beat, jobq__tell_beat},
    {JOBQ_REQUEST_ACK, jobq__due_of_parts, jobq__make_ack, jobq__tell_ack},
    {JOBQ_REQUEST_RENEW, jobq__due_of_parts, jobq__make_renew, jobq__tell_renew},
    {JOBQ_REQUEST_READ, jobq__due_of_parts, jobq__make_read, jobq__tell_read},
    {JOBQ_REQUEST_LOOK, jobq__due_look, jobq__make_look, jobq__tell_look},
    {JOBQ_REQUEST_TICK, jobq__due_tick, jobq__make_queues, jobq__tell_tick},
    {JOBQ_REQUEST_RESCUE, jobq__due_rescue, jobq__make_rescue, jobq__tell_rescue},
    {JOBQ_REQUEST_REGISTER, jobq__due_wanted, jobq__make_register, jobq__tell_register},
    {JOBQ_REQUEST_POLICIES, jobq__due_wanted, jobq__make_queues, jobq__tell_policies},
    {JOBQ_REQUEST_RECOVER, jobq__due_wanted, jobq__make_recover, jobq__tell_recover},
    {JOBQ_REQUEST_SET_ASIDE, jobq__due_wanted, jobq__make_set_aside, jobq__tell_set_aside},
    {JOBQ_REQUEST_UNPARK, jobq__due_wanted, jobq__make_unpark, jobq__tell_unpark},
    {JOBQ_REQUEST_SLEEP, jobq__due_sleep, jobq__make_sleep, jobq__tell_sleep},
    {JOBQ_REQUEST_PRUNE, jobq__due_wanted, NULL, jobq__tell_prune},
    {JOBQ_REQUEST_VACUUM, jobq__due_wanted, jobq__make_vacuum, jobq__tell_vacuum},
    {JOBQ_REQUEST_DEREGISTER, jobq__due_wanted, jobq__make_deregister, jobq__tell_deregister},
    {JOBQ_REQUEST_REMAIN, jobq__due_wanted, jobq__make_queues, jobq__tell_remain},
    {JOBQ_REQUEST_CLAIM, jobq__due_claim, jobq__make_claim, jobq__tell_claim},
};

#define JOBQ__ACTIVITIES (sizeof jobq__activities / sizeof jobq__activities[0])

/* -- what to do next -- */

/* When the oldest statement on its way was sent. */
static int64_t jobq__asked(const jobq_loop *l)
{
    int64_t first = jobq__due_part_answer(l);
    int kind;

    for (kind = 0; kind < JOBQ_REQUEST_COUNT; kind++) {
        if ((JOBQ__ASIDE >> kind & 1) != 0) continue;
        if (jobq__sent(l, (jobq_request_kind)kind))
            first = jobq__min(first, l->wire.sent_mono_us[kind]);
    }
    return first;
}

/* When it has waited long enough. */
static int64_t jobq__due_answer(const jobq_loop *l)
{
    int64_t first = jobq__asked(l);

    return jobq__add(first, first == JOBQ_NEVER ? 0 : l->config.answer_us);
}

/* Abandons a handler that overran its time limit or the grace of a stop. Its job is decided without
 * it. */
static bool jobq__job_abandon(jobq_loop *l, int64_t now, jobq_request *a)
{
    bool stop = now >= l->stop_mono_us;
    int64_t next = JOBQ_NEVER;
    int32_t i;

    if (!stop && now < l->deadline_mono_us) return false;
    for (i = 0; i < l->running_count; i++) {
        int32_t slot = l->running[i];
        if (!stop && now < l->slots[slot].deadline_mono_us) {
            next = jobq__min(next, l->slots[slot].deadline_mono_us);
            continue;
        }
        jobq__unrun(l, slot);
        jobq__count_run(l, &l->slots[slot], now - l->slots[slot].since_mono_us);
        jobq__give_back(l, slot, stop ? JOBQ_EVENT_RELEASE : jobq__overrun(&l->slots[slot]), now);
        l->stats.abandoned += l->calls[l->slots[slot].call].left == 0;
        jobq__ask_for(a, JOBQ_REQUEST_ABANDON);
        a->slot = slot;
        a->generation = l->slots[slot].generation;
        a->id = l->slots[slot].job.id;
        a->stopping = stop;
        a->endings[0].decision = l->slots[slot].decision;
        return true;
    }
    l->deadline_mono_us = next;
    return false;
}

/* A worker that ends when nothing is left looks once more after its handlers have ended: they may
 * have made work since it last looked. */
static void jobq__amid_move(jobq_loop *l, int64_t now)
{
    bool was = l->until.amid;

    l->until.amid = l->config.until != JOBQ_UNTIL_STOPPED && jobq__in_hand(l);
    if (!was || l->until.amid) return;
    l->claim.amid = l->relay.amid = true; /* what is on its way may have looked before */
    l->sweep.empty = false;
    l->pace.claim_mono_us = l->sweep.next_mono_us = now;
    l->sweep.whole = true; /* slices may have looked before, too */
    jobq__relay_look(l, now);
}

/* Whether it holds nothing but decisions whose rows others have locked, and will get nothing. */
static bool jobq__all_locked(const jobq_loop *l)
{
    return l->done.count + l->others.count > 0 && l->relay.held == 0 && l->orphan_count == 0 &&
           l->queued.count + l->running_count + l->sent_done.count + l->sent_others.count == 0 &&
           l->done.count <= l->flush.locked[JOBQ_REQUEST_COMPLETE] &&
           l->others.count <= l->flush.locked[JOBQ_REQUEST_SETTLE] &&
           !jobq__sent(l, JOBQ_REQUEST_CLAIM);
}

/* The latest end of a stop: the grace, plus the time of one answer about what the handlers did. Who
 * has locked a row may keep it for ever, so that is not waited for beyond the grace. */
static int64_t jobq__stop_end(const jobq_loop *l)
{
    return jobq__add(l->stop_mono_us, jobq__all_locked(l) ? 0 : l->config.answer_us);
}

/* Nothing keeps it from leaving. */
static bool jobq__stopped(const jobq_loop *l)
{
    return l->phase == JOBQ_PHASE_STOPPING && !jobq__in_hand(l) &&
           !jobq__sent(l, JOBQ_REQUEST_CLAIM) && !jobq__sent(l, JOBQ_REQUEST_REGISTER) &&
           l->orphan_count == 0;
}

/* STOPPING ends when nothing is held, or at jobq__stop_end whatever the database says. */
static void jobq__phase_move(jobq_loop *l, int64_t now)
{
    bool done = l->stats.started >= l->config.jobs_max && !jobq__jobs_in_hand(l) &&
                l->orphan_count == 0;

    jobq__amid_move(l, now);
    if (l->config.until == JOBQ_UNTIL_EMPTY) done |= jobq__empty_here(l) && !jobq__ticks(l, now);
    if (l->config.until == JOBQ_UNTIL_ENDED) done |= l->until.none_remain && jobq__empty_here(l);
    if (l->phase == JOBQ_PHASE_WORKING && done && !jobq__sent(l, JOBQ_REQUEST_CLAIM)) {
        jobq_loop_stop(l, now, -1);
    }
    l->until.none_remain = false; /* it was true only then */
    if (jobq__stopped(l)) l->phase = JOBQ_PHASE_LEAVING;
    if (l->phase == JOBQ_PHASE_LEAVING && !l->session.registered) l->phase = JOBQ_PHASE_EXITED;
    if (now >= jobq__stop_end(l)) l->phase = JOBQ_PHASE_EXITED; /* what is held will be rescued */
}

/* When a handler has to be abandoned. */
static int64_t jobq__due_abandon(const jobq_loop *l, int64_t now)
{
    int64_t due = jobq__min(l->deadline_mono_us, jobq__relay_end(l));

    return now < l->stop_mono_us ? jobq__min(due, l->stop_mono_us) : due;
}

/* Not connected: connects, or waits until it may. */
static void jobq__next_offline(jobq_loop *l, int64_t now, jobq_request *a)
{
    bool connecting = jobq__sent(l, JOBQ_REQUEST_CONNECT);
    int64_t until = connecting ? jobq__due_answer(l) : l->session.connect_mono_us;

    if (!connecting && now >= l->session.connect_mono_us) {
        jobq__send(l, JOBQ_REQUEST_CONNECT, now, a);
        return;
    }
    jobq__ask_for(a, JOBQ_REQUEST_WAIT);
    until = jobq__min(until, jobq__stop_end(l));
    a->until_mono_us = jobq__min(until, jobq__due_abandon(l, now));
}

/* Ends the holds of queues that are over. Returns when the next one ends. */
static int64_t jobq__holds_end(jobq_loop *l, int64_t now)
{
    int64_t next = JOBQ_NEVER;
    int32_t i;

    for (i = 0; i < l->queue_count; i++) {
        jobq_loop_queue *q = &l->queues[i];
        if (q->hold_mono_us > now) next = jobq__min(next, q->hold_mono_us);
        else if (q->hold_mono_us != INT64_MIN) {
            q->hold_mono_us = INT64_MIN;
            l->pace.full_mono_us = now;
            jobq__look_again(l, now);
        }
    }
    return next;
}

/* Connected: makes the first request that is due, or waits until one is. */
static void jobq__next_online(jobq_loop *l, int64_t now, jobq_request *a)
{
    int64_t until = jobq__min(jobq__holds_end(l, now),
                              jobq__min(jobq__due_unhoard(l), l->suspects.halts_mono_us));
    size_t i;

    until = jobq__min(until, jobq__due_batch(l, now));
    until = jobq__min(until, jobq__relay_prepare(l, now));
    for (i = 0; i < JOBQ__ACTIVITIES; i++) {
        const jobq_activity *activity = &jobq__activities[i];
        int64_t due =
            activity->due == NULL ? JOBQ_NEVER : activity->due(l, activity->kind, now);
        until = jobq__min(until, due);
        if (due > now) continue;
        if (jobq__part_asks(activity->kind) != JOBQ_PART_NONE) jobq__ask_for(a, activity->kind);
        else jobq__send(l, activity->kind, now, a);
        if (activity->make != NULL) activity->make(l, now, a);
        return;
    }
    until = jobq__min(until, jobq__due_abandon(l, now));
    jobq__ask_for(a, JOBQ_REQUEST_WAIT);
    a->until_mono_us = jobq__min(until, jobq__min(jobq__stop_end(l), jobq__due_answer(l)));
}

JOBQ_API void jobq_loop_abandon(jobq_loop *l, int64_t mono_us, jobq_request *a)
{
    JOBQ_ASSERT(l != NULL && a != NULL);
    if (jobq__job_abandon(l, mono_us, a) || jobq__relay_abandon(l, mono_us, a)) return;
    jobq__ask_for(a, JOBQ_REQUEST_WAIT);
    a->until_mono_us = jobq__due_abandon(l, mono_us);
}

JOBQ_API void jobq_loop_next(jobq_loop *l, int64_t mono_us, jobq_request *a)
{
    jobq_loop_abandon(l, mono_us, a);
    if (a->kind != JOBQ_REQUEST_WAIT) return;
    jobq__phase_move(l, mono_us);
    jobq__quiet_move(l, mono_us);
    if (l->permits.share_count > 0 && jobq__looks(l, mono_us)) l->permits.looked_mono_us = mono_us;
    if (mono_us >= jobq__due_unhoard(l)) jobq__unhoard(l, mono_us);
    if (l->phase == JOBQ_PHASE_EXITED) jobq__ask_for(a, JOBQ_REQUEST_EXIT);
    else if (mono_us >= jobq__due_answer(l)) jobq__ask_for(a, JOBQ_REQUEST_DISCONNECT);
    else if (l->session.connected) jobq__next_online(l, mono_us, a);
    else jobq__next_offline(l, mono_us, a);
}

JOBQ_API int64_t jobq_loop_due(const jobq_loop *l, int64_t mono_us)
{
    int64_t due;

    JOBQ_ASSERT(l != NULL);
    if (jobq__stopped(l)) return mono_us;
    due = jobq__min(jobq__due_abandon(l, mono_us), jobq__stop_end(l));
    if (!l->session.connected) return due;
    if (jobq__halts(l, mono_us) != l->suspects.halts) return mono_us;
    if (l->permits.share_count > 0)
        due = jobq__min(due, jobq__due_beat(l, JOBQ_REQUEST_HEARTBEAT, mono_us));
    due = jobq__min(due, jobq__due_flush(l, JOBQ_REQUEST_COMPLETE, mono_us));
    due = jobq__min(due, jobq__due_flush(l, JOBQ_REQUEST_SETTLE, mono_us));
    due = jobq__min(due, jobq__min(jobq__claim_at(l, mono_us), jobq__due_unhoard(l)));
    due = jobq__min(due, jobq__due_batch(l, mono_us));
    return jobq__min(due, jobq__due_relay(l, mono_us));
}

/* -- requests and answers -- */

JOBQ_API void jobq_answer_start(jobq_answer *answer, const jobq_request *request)
{
    JOBQ_ASSERT(answer != NULL && request != NULL);
    memset(answer, 0, offsetof(jobq_answer, claimed));
    memset(&answer->claimed, 0, offsetof(jobq_claimed, jobs));
    memset(&answer->news, 0, offsetof(jobq_news, late));
    answer->kind = request->kind;
    answer->slot = request->slot;
    answer->generation = request->generation;
    answer->worker = request->worker;
    answer->claim = request->claim;
    answer->id = request->id;
}

JOBQ_API void jobq_loop_tell(jobq_loop *l, int64_t mono_us, jobq_answer *a)
{
    size_t i;

    JOBQ_ASSERT(l != NULL && a != NULL);
    for (i = 0; i < JOBQ__ACTIVITIES; i++) {
        if (jobq__activities[i].kind == a->kind) jobq__activities[i].tell(l, mono_us, a);
    }
}

/* -- work for threads -- */

static void jobq__work_job(const jobq_loop *l, int32_t slot, jobq_work *work)
{
    const jobq_slot *s = &l->slots[slot];
    int32_t i = jobq__queue_index(l, s->job.queue);

    work->slot = slot;
    work->generation = s->generation;
    work->job = s->job;
    work->policy = jobq__policy_of(l, &s->job);
    work->queue = i < l->queue_count ? i : -1;
    work->together = s->together;
}

static void jobq__work_messages(const jobq_loop *l, int32_t slot, jobq_work *work)
{
    const jobq_part *p = &l->relay.parts[slot];

    work->slot = slot;
    work->generation = p->generation;
    work->queue = p->queue;
    work->policy = l->queues[p->queue].policy;
    work->partition_id = p->id;
    work->partition = p->number;
    work->given = p->given;
    work->token.worker = p->worker;
    work->token.claim = p->claim;
    work->token.lease_us = jobq__relay_tuning(l, p)->lease_us;
    work->cursor = p->cursor;
    memcpy(work->results, p->results, (size_t)p->given);
}

JOBQ_API bool jobq_loop_take(jobq_loop *l, int64_t mono_us, jobq_work *work)
{
    int32_t slot = jobq__take_messages(l, mono_us);

    JOBQ_ASSERT(work != NULL);
    memset(work, 0, offsetof(jobq_work, cursor));
    if (slot >= 0) jobq__work_messages(l, slot, work);
    else slot = jobq__take_job(l, mono_us);
    if (slot >= 0 && work->partition_id == 0) jobq__work_job(l, slot, work);
    return slot >= 0;
}

JOBQ_API bool jobq_loop_mate(const jobq_loop *l, jobq_work *work)
{
    const jobq_slot *s, *next;

    JOBQ_ASSERT(l != NULL && work != NULL);
    s = &l->slots[work->slot];
    if (work->partition_id != 0 || s->state != JOBQ_SLOT_RUNNING ||
        s->generation != work->generation || s->position + 1 >= l->running_count) return false;
    next = &l->slots[l->running[s->position + 1]];
    if (next->call == s->call) jobq__work_job(l, l->running[s->position + 1], work);
    return next->call == s->call;
}

JOBQ_API jobq_stop jobq_loop_stopping(const jobq_loop *l, int64_t mono_us, const jobq_work *work,
                                      int64_t *remaining_us)
{
    jobq_stop stop;
    bool messages;
    int64_t end;

    JOBQ_ASSERT(l != NULL && work != NULL && remaining_us != NULL);
    messages = work->partition_id != 0;
    stop = messages
               ? jobq__delivery_stop(l, mono_us, work->slot, work->generation)
               : jobq__job_stopping(l, mono_us, work->slot, work->generation);
    end = messages ? l->relay.parts[work->slot].budget_mono_us
                   : l->slots[work->slot].deadline_mono_us;
    if (stop == JOBQ_STOP_TIMEOUT || stop == JOBQ_STOP_LOST) end = mono_us;
    else end = jobq__min(end, l->stop_mono_us);
    *remaining_us = end == JOBQ_NEVER ? JOBQ_NEVER : jobq__max(end - mono_us, 0);
    return stop;
}

JOBQ_API bool jobq_loop_handled(jobq_loop *l, int64_t mono_us, const jobq_work *work,
                                const jobq_handled *handled, jobq_decision *decision)
{
    jobq_slot *s;

    JOBQ_ASSERT(l != NULL && work != NULL && work->partition_id == 0 && handled != NULL);
    s = &l->slots[work->slot];
    if (s->state != JOBQ_SLOT_RUNNING || s->generation != work->generation) return false;
    if (handled->missing) jobq__job_unhandled(l, mono_us, work->slot);
    else jobq__job_handled(l, mono_us, work->slot, handled);
    s->bytes += handled->bytes;
    if (decision != NULL) *decision = s->decision;
    return true;
}

JOBQ_API bool jobq_loop_delivered(jobq_loop *l, int64_t mono_us, const jobq_work *work,
                                  const jobq_verdict *verdict, bool own, jobq_ack *ack)
{
    jobq_part *p;

    JOBQ_ASSERT(l != NULL && work != NULL && verdict != NULL && ack != NULL);
    JOBQ_ASSERT(work->partition_id != 0);
    (void)mono_us;
    p = jobq__relay_of(l, work->slot, work->generation);
    if (p == NULL || p->state != JOBQ_PART_RUNNING) return false;
    memcpy(p->results, work->results, (size_t)p->given);
    jobq__relay_plan(l, p, verdict);
    if (own) jobq__relay_move(&l->relay, p, JOBQ_PART_COMMITTING);
    jobq__ack_of(l, p, ack);
    return true;
}

JOBQ_API bool jobq_loop_committed(jobq_loop *l, int64_t mono_us, const jobq_work *work,
                                  jobq_error error)
{
    jobq_part *p;

    JOBQ_ASSERT(l != NULL && work != NULL && work->partition_id != 0);
    p = jobq__relay_of(l, work->slot, work->generation);
    if (p == NULL || p->state != JOBQ_PART_COMMITTING) return false;
    if (error == JOBQ_OK) {
        jobq__relay_settled(l, p);
        jobq__relay_written(l, p, mono_us);
    } else if (error == JOBQ_ERROR_LOST) jobq__relay_lost(l, p, mono_us);
    else if (error == JOBQ_ERROR_RETRYABLE) jobq__relay_all(l, p, JOBQ_RESULT_RETRY);
    else jobq__relay_away(l, p, jobq__relay_hold(p, mono_us)); /* only the store knows */
    return true;
}

/* -- the state of a loop -- */

JOBQ_API size_t jobq_loop_size(void) { return sizeof(jobq_loop); }

JOBQ_API jobq_loop_status jobq_loop_status_of(const jobq_loop *l)
{
    jobq_loop_status s;

    JOBQ_ASSERT(l != NULL);
    memset(&s, 0, sizeof s);
    s.phase = l->phase;
    s.connected = l->session.connected;
    s.hears = l->session.registered && l->served.listen && !l->sleep.deaf;
    s.asleep = l->sleep.asleep;
    s.worker = l->session.registered ? l->worker : 0;
    s.lease_mono_us = l->lease.end_mono_us;
    s.running = l->call_count + l->relay.running;
    s.ready = l->queued.count + l->relay.held;
    s.asked_mono_us = jobq__asked(l);
    s.jobs = l->stats;
    s.messages = l->relay.stats;
    return s;
}

JOBQ_API bool jobq_loop_tally(const jobq_loop *l, int32_t index, jobq_tally *tally)
{
    JOBQ_ASSERT(l != NULL && index >= 0 && tally != NULL);
    if (index >= l->tallies.count) return false;
    tally->queue = l->tallies.queues[index];
    tally->kind = l->tallies.kinds[index];
    memcpy(tally->counts, l->tallies.now[index], sizeof tally->counts);
    return true;
}

/* ---- >>record: what crosses the boundary of a loop ------------------------------------------- */

#ifndef JOBQ_NO_RECORD

/* The fields of what comes out of a loop, for its hash and for tests and tools: X(at.field). */
#define JOBQ__REQUEST_FIELDS(X, at)                                                                \
    X((at).kind) X((at).slot) X((at).generation) X((at).limit) X((at).quantum) X((at).worker)      \
    X((at).claim) X((at).id) X((at).beat) X((at).lease_us) X((at).rest_us) X((at).bytes)           \
    X((at).until_mono_us) X((at).partition_id) X((at).watched.worker) X((at).watched.claim)        \
    X((at).watched.beat) X((at).watched.lease_us) X((at).handed) X((at).acked) X((at).exchange)    \
    X((at).committing) X((at).stopping) X((at).suspects) X((at).alone) X((at).every_kind)          \
    X((at).look) X((at).sweep) X((at).below_from) X((at).below_to) X((at).aside) X((at).asleep)    \
    X((at).relaxed) X((at).queue_count) X((at).message_queue_count) X((at).settled_count)          \
    X((at).kind_count) X((at).lane_count) X((at).ending_count) X((at).ask_count) X((at).tally)     \
    X((at).tally_count) X((at).total_count)
#define JOBQ__NUMBER_FIELDS(X, at) X(at)
#define JOBQ__LANE_FIELDS(X, at)                                                                   \
    X((at).queue) X((at).priority) X((at).stage) X((at).lined) X((at).after_at_us)                 \
    X((at).after_id) X((at).low_id) X((at).until_at_us)
#define JOBQ__ASK_FIELDS(X, at)                                                                    \
    X((at).quota) X((at).running) X((at).wanted) X((at).tokens) X((at).returned) X((at).needed)
#define JOBQ__DECISION_FIELDS(X, at)                                                               \
    X((at).state) X((at).worker) X((at).claim) X((at).delay_us) X((at).attempt) X((at).crash)      \
    X((at).snoozes) X((at).stage) X((at).suspect) X((at).alone) X((at).cancel_requested)           \
    X((at).keep_run_at) X((at).reason) X((at).limit)
#define JOBQ__ENDING_FIELDS(X, at)                                                                 \
    X((at).job) X((at).worker) X((at).claim) X((at).slot) X((at).refused)                          \
    JOBQ__DECISION_FIELDS(X, (at).decision)
#define JOBQ__CURSOR_FIELDS(X, at)                                                                 \
    X((at).acked) X((at).mode.state) X((at).mode.effective) X((at).mode.successes)                 \
    X((at).mode.failures) X((at).tried_count) X((at).tried[0])                                     \
    X((at).tried[(at).tried_count > 0 ? (at).tried_count - 1 : 0])
#define JOBQ__ACK_FIELDS(X, at)                                                                    \
    X((at).before) X((at).given) X((at).max_attempts) X((at).bare) X((at).plan.done)               \
    X((at).plan.dead) X((at).plan.failed) X((at).plan.directive.kind)                              \
    X((at).plan.directive.delay_us) JOBQ__CURSOR_FIELDS(X, (at).plan.cursor)
#define JOBQ__JOB_FIELDS(X, at)                                                                    \
    X((at).id) X((at).worker) X((at).claim) X((at).run_at_us) X((at).enqueued_at_us)               \
    X((at).timeout_us) X((at).expires_us) X((at).bytes) X((at).line) X((at).queue) X((at).kind)    \
    X((at).attempt) X((at).crash) X((at).snoozes) X((at).max_attempts) X((at).stage)               \
    X((at).stages) X((at).priority) X((at).suspect) X((at).alone) X((at).cancel_requested)         \
    X((at).state)
#define JOBQ__WORK_FIELDS(X, at)                                                                   \
    X((at).slot) X((at).generation) X((at).queue) X((at).policy.max_attempts)                      \
    X((at).policy.max_crashes) X((at).policy.snoozes_max) X((at).policy.timeout_us)                \
    X((at).policy.backoff.curve) X((at).policy.backoff.jitter_permille)                            \
    X((at).policy.backoff.base_us) X((at).policy.backoff.cap_us) X((at).policy.backoff.floor_us)   \
    X((at).policy.attempts_span_stages) X((at).partition_id) X((at).partition) X((at).given)       \
    X((at).together) X((at).token.worker) X((at).token.claim) X((at).token.lease_us)               \
    JOBQ__JOB_FIELDS(X, (at).job)

#define JOBQ__SEGMENTS 8
#define JOBQ__KEY UINT64_C(0x9e3779b97f4a7c15)

/* The stores before this are made before those after it. The kernel keeps the order of a process
 * that it kills, so only the compiler has to be told. */
#if defined(__GNUC__) || defined(__clang__)
#define JOBQ__FENCE() __asm__ __volatile__("" : : : "memory")
#else
#define JOBQ__FENCE() ((void)0)
#endif

static uint64_t jobq__mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * JOBQ__KEY;
    return hash ^ hash >> 32;
}

static uint64_t jobq__mix_bytes(uint64_t hash, const uint8_t *at, size_t size)
{
    uint64_t word;

    for (; size >= sizeof word; size -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = jobq__mix(hash, word);
    }
    for (word = size; size > 0; size--) word = word << 8 | *at++;
    return jobq__mix(hash, word);
}

/* What came out of a call, by its values, because compilers differ in the bytes between them. The
 * products do not wait for each other; each key is odd. */
static uint64_t jobq__mix_out(uint64_t hash, const jobq_entry *e)
{
#define JOBQ__SUM(value) sum += (uint64_t)(value) * (key += 2 * JOBQ__KEY);
#define JOBQ__SUM_PART(part, count, fields)                                                        \
    for (i = 0; i < a->count; i++) { fields(JOBQ__SUM, a->part[i]) }
    uint64_t sum = e->result, key = JOBQ__KEY;
    const jobq_request *a = e->request;
    const jobq_ack *ack = e->result ? e->ack : NULL;
    const jobq_slot *s;
    int32_t i;

    if (a != NULL) {
        JOBQ__REQUEST_FIELDS(JOBQ__SUM, (*a))
        JOBQ__REQUEST_PARTS(JOBQ__SUM_PART)
        if (a->kind == JOBQ_REQUEST_ABANDON && a->partition_id == 0) {
            JOBQ__DECISION_FIELDS(JOBQ__SUM, a->endings[0].decision)
        } else if (a->kind == JOBQ_REQUEST_ACK ||
                   (a->kind == JOBQ_REQUEST_ABANDON && !a->committing)) ack = &a->ack;
    }
    if (e->kind == JOBQ_ENTRY_TAKE) {
        JOBQ__WORK_FIELDS(JOBQ__SUM, (*e->work))
        if (e->work->partition_id != 0) { JOBQ__CURSOR_FIELDS(JOBQ__SUM, e->work->cursor) }
        for (i = 1; i < e->work->together; i++) { /* as jobq_loop_mate gives them */
            s = &e->loop->slots[e->loop->running[e->loop->running_count - i]];
            JOBQ__SUM(s->generation) JOBQ__JOB_FIELDS(JOBQ__SUM, s->job)
        }
    }
    if (e->kind == JOBQ_ENTRY_HANDLED && e->result) {
        JOBQ__DECISION_FIELDS(JOBQ__SUM, (*e->decision))
    }
    if (ack != NULL) {
        JOBQ__ACK_FIELDS(JOBQ__SUM, (*ack))
        hash = jobq__mix_bytes(hash, ack->results, (size_t)ack->given);
    }
    return jobq__mix(hash, sum);
}

/* -- the code: one function for each shape both writes and reads it -- */

/* The parts of an answer that are always filled, one after the other. */
static const struct {
    size_t at, size;
} jobq__heads[] = {
    {0, offsetof(jobq_answer, claimed) + offsetof(jobq_claimed, walks)},
    {offsetof(jobq_answer, claimed) + offsetof(jobq_claimed, stretch_count), sizeof(int32_t)},
    {offsetof(jobq_answer, news), offsetof(jobq_news, late)}};
enum {
    JOBQ__HEAD = offsetof(jobq_answer, claimed) + offsetof(jobq_claimed, walks) + sizeof(int32_t) +
                 offsetof(jobq_news, late),
    JOBQ__ELEMENT = 128 /* bytes of an element of a list at most */
};
#define JOBQ__ONE_PART(part, count, of) "x"
enum { JOBQ__PART_COUNT = sizeof("" JOBQ__ANSWER_PARTS(JOBQ__ONE_PART)) - 1 };

/* What the next record is told apart from: the last ones of this segment, at first zero. */
typedef struct jobq__images {
    int64_t mono_us;
    uint64_t out; /* of all that came out */
    uint64_t sum; /* of all bytes */
    jobq_handled handled;
    jobq_verdict verdict;
    uint8_t heads[JOBQ_REQUEST_COUNT][JOBQ__HEAD];
    uint8_t parts[JOBQ__PART_COUNT][JOBQ__ELEMENT];
} jobq__images;

typedef struct jobq__coder {
    uint8_t *at, *end; /* read, or written */
    bool reads;
    bool bad;          /* no room, or no such value */
    jobq__images *last;
} jobq__coder;

/* A number, 7 bits in a byte. */
static uint64_t jobq__code(jobq__coder *c, uint64_t value)
{
    uint64_t left = value;
    int shift = 0;

    if (!c->reads) {
        if (c->end - c->at < 10) c->bad = true;
        if (c->bad) return value;
        for (; left >= 128; left >>= 7) *c->at++ = (uint8_t)(left | 128);
        *c->at++ = (uint8_t)left;
        return value;
    }
    for (value = 0; !c->bad; shift += 7) {
        if (c->at == c->end || shift > 63) c->bad = true;
        else {
            value |= (uint64_t)(*c->at & 127) << shift;
            if (*c->at++ < 128) return value;
        }
    }
    return 0;
}

/* A number that may be negative: small ones are short. */
static int64_t jobq__code_signed(jobq__coder *c, int64_t value)
{
    uint64_t v = jobq__code(c, (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0));

    return (int64_t)(v >> 1 ^ ((v & 1) != 0 ? UINT64_MAX : 0));
}

/* One of 0 ... most - 1. */
static int32_t jobq__code_below(jobq__coder *c, int32_t value, int32_t most)
{
    uint64_t v = jobq__code(c, (uint64_t)value);

    if (c->reads && v >= (uint64_t)most) c->bad = true;
    return c->bad ? 0 : (int32_t)v;
}

/* The i-th 8 bytes, or the rest. */
static uint64_t jobq__word(const uint8_t *image, size_t size, size_t i)
{
    uint64_t word = 0;

    if (image == NULL) return 0;
    if (i * 8 + 8 <= size) memcpy(&word, image + i * 8, 8);
    else memcpy(&word, image + i * 8, size - i * 8);
    return word;
}

static void jobq__word_set(uint8_t *image, size_t size, size_t i, uint64_t word)
{
    if (image != NULL) memcpy(image + i * 8, &word, i * 8 + 8 <= size ? 8 : size - i * 8);
}

/* A struct as bytes: runs of words that are those of the last one, then 1 to 4 that are not, which
 * it becomes. was NULL: zeros, and they stay. */
static void jobq__code_image(jobq__coder *c, void *image, uint8_t *was, size_t size)
{
    uint8_t *now = (uint8_t *)image;
    size_t words = (size + 7) / 8, i = 0, run, take;
    uint64_t head, before;

    while (i < words && !c->bad) {
        for (run = 0; !c->reads && i + run < words; run++)
            if (jobq__word(now, size, i + run) != jobq__word(was, size, i + run)) break;
        for (take = 1; !c->reads && take < 4 && i + run + take < words; take++)
            if (jobq__word(now, size, i + run + take) == jobq__word(was, size, i + run + take))
                break;
        head = jobq__code(c, (uint64_t)run << 2 | (take - 1));
        if (head >> 2 > words - i) c->bad = true;
        if (c->bad) return;
        for (run = (size_t)(head >> 2); run > 0; run--, i++)
            if (c->reads) jobq__word_set(now, size, i, jobq__word(was, size, i));
        for (take = (size_t)(head & 3) + 1; take > 0 && i < words; take--, i++) {
            before = jobq__word(was, size, i);
            head = c->reads ? 0 : jobq__word(now, size, i) - before;
            head = before + (uint64_t)jobq__code_signed(c, (int64_t)head);
            jobq__word_set(was, size, i, head);
            if (c->reads) jobq__word_set(now, size, i, head);
        }
    }
}

static void jobq__code_list(jobq__coder *c, void *list, int32_t count, size_t most, size_t size,
                            uint8_t *last)
{
    uint8_t *at = (uint8_t *)list;
    size_t i;

    JOBQ_ASSERT(size <= JOBQ__ELEMENT);
    if (count < 0) return;
    for (i = 0; i < (size_t)count && i < most; i++, at += size)
        jobq__code_image(c, at, last, size);
}

static void jobq__code_answer(jobq__coder *c, jobq_answer *a)
{
    int32_t kind = jobq__code_below(c, (int32_t)a->kind, JOBQ_REQUEST_COUNT);
    uint8_t flat[JOBQ__HEAD], *at = flat;
    size_t i, n = 0;

    if (c->bad) return;
    for (i = 0; i < 3; at += jobq__heads[i++].size)
        memcpy(at, (uint8_t *)a + jobq__heads[i].at, jobq__heads[i].size);
    jobq__code_image(c, flat, c->last->heads[kind], sizeof flat);
    for (i = 0, at = flat; c->reads && i < 3; at += jobq__heads[i++].size)
        memcpy((uint8_t *)a + jobq__heads[i].at, at, jobq__heads[i].size);
    if (c->reads) a->kind = (jobq_request_kind)kind;
    if (a->error != JOBQ_OK) return;
#define JOBQ__CODE_PART(part, count, of)                                                           \
    if ((of) == JOBQ_REQUEST_COUNT || (of) == a->kind)                                             \
        jobq__code_list(c, a->part, a->count, sizeof a->part / sizeof a->part[0],                  \
                        sizeof a->part[0], c->last->parts[n]);                                     \
    n++;
    JOBQ__ANSWER_PARTS(JOBQ__CODE_PART)
    (void)n;
}

/* A notification counts only if it is this word or begins with a number. */
static void jobq__code_about(jobq__coder *c, jobq_entry *e)
{
    char about[24] = "";
    size_t i;

    if (!c->reads && (strcmp(e->about, "cancel") == 0 || (*e->about >= '0' && *e->about <= '9')))
        for (i = 0; i < sizeof about - 1 && e->about[i] != '\0'; i++) about[i] = e->about[i];
    jobq__code_image(c, about, NULL, sizeof about);
    if (c->reads) memcpy((char *)(uintptr_t)e->about, about, sizeof about - 1);
}

static void jobq__code_work(jobq__coder *c, jobq_work *work, int32_t slots)
{
    int32_t slot = jobq__code_below(c, work->slot, slots);
    uint32_t generation = (uint32_t)jobq__code(c, work->generation);

    if (!c->reads) return;
    work->slot = slot;
    work->generation = generation;
    work->partition_id = slots == JOBQ_LOOP_PARTITIONS;
}

static void jobq__code_results(jobq__coder *c, jobq_work *work)
{
    int32_t i;

    work->given = jobq__code_below(c, work->given, JOBQ_LOOP_BATCH + 1);
    for (i = 0; i < work->given && !c->bad; i++)
        work->results[i] = (uint8_t)jobq__code_below(c, work->results[i], JOBQ_RESULT_COUNT);
}

/* An entry without what came out. */
static void jobq__code_entry(jobq__coder *c, jobq_entry *e)
{
    int64_t since = e->mono_us - c->last->mono_us;
    uint64_t head = (uint64_t)since << 1 ^ (since < 0 ? UINT64_MAX : 0);

    head = jobq__code(c, head << 4 | (uint64_t)e->kind);
    since = (int64_t)(head >> 5 ^ ((head >> 4 & 1) != 0 ? UINT64_MAX : 0));
    e->kind = (jobq_entry_kind)(head & 15);
    e->mono_us = c->last->mono_us += since;
    switch ((int)e->kind) {
    case JOBQ_ENTRY_TELL: jobq__code_answer(c, e->answer); break;
    case JOBQ_ENTRY_NOTIFIED: jobq__code_about(c, e); break;
    case JOBQ_ENTRY_HEARS: e->flag = jobq__code(c, e->flag) != 0; break;
    case JOBQ_ENTRY_STOP: e->grace_us = jobq__code_signed(c, e->grace_us); break;
    case JOBQ_ENTRY_HANDLED:
        jobq__code_work(c, e->work, JOBQ_LOOP_SLOTS);
        jobq__code_image(c, e->handled, (uint8_t *)&c->last->handled, sizeof *e->handled);
        break;
    case JOBQ_ENTRY_DELIVERED:
        jobq__code_work(c, e->work, JOBQ_LOOP_PARTITIONS);
        jobq__code_image(c, e->verdict, (uint8_t *)&c->last->verdict, sizeof *e->verdict);
        e->flag = jobq__code(c, e->flag) != 0;
        jobq__code_results(c, e->work);
        break;
    case JOBQ_ENTRY_COMMITTED:
        jobq__code_work(c, e->work, JOBQ_LOOP_PARTITIONS);
        e->error = (jobq_error)jobq__code_below(c, (int32_t)e->error, JOBQ_ERROR_COUNT);
        break;
    }
    if (e->kind == JOBQ_ENTRY_SNAPSHOT || e->kind >= JOBQ_ENTRY_TORN) c->bad = true;
}

/* The call itself. */
static bool jobq__entry_call(jobq_loop *l, jobq_entry *e)
{
    int64_t now = e->mono_us;

    e->result = true;
    switch ((int)e->kind) {
    case JOBQ_ENTRY_NEXT: jobq_loop_next(l, now, e->request); break;
    case JOBQ_ENTRY_ABANDON: jobq_loop_abandon(l, now, e->request); break;
    case JOBQ_ENTRY_TELL: jobq_loop_tell(l, now, e->answer); break;
    case JOBQ_ENTRY_DISCONNECTED: jobq_loop_disconnected(l, now); break;
    case JOBQ_ENTRY_NOTIFIED: jobq_loop_notified(l, now, e->about); break;
    case JOBQ_ENTRY_HEARS: jobq_loop_hears(l, now, e->flag); break;
    case JOBQ_ENTRY_STOP: jobq_loop_stop(l, now, e->grace_us); break;
    case JOBQ_ENTRY_TAKE: e->result = jobq_loop_take(l, now, e->work); break;
    case JOBQ_ENTRY_HANDLED:
        e->result = jobq_loop_handled(l, now, e->work, e->handled, e->decision);
        break;
    case JOBQ_ENTRY_DELIVERED:
        e->result = jobq_loop_delivered(l, now, e->work, e->verdict, e->flag, e->ack);
        break;
    case JOBQ_ENTRY_COMMITTED: e->result = jobq_loop_committed(l, now, e->work, e->error);
    }
    return e->result;
}

/* -- the ring -- */

/* The head of a segment; the snapshot and the records follow. */
typedef struct jobq__segment {
    volatile uint64_t used; /* bytes, this head included; 0: being written. Always a whole number of
                               records, or of calls that have begun */
    uint64_t number;        /* grows; number modulo JOBQ__SEGMENTS is its place */
    int64_t mono_us;
    uint64_t sum;           /* of the snapshot and the two before */
} jobq__segment;

struct jobq_recorder {
    jobq_recording head;
    uint64_t number; /* of the segment */
    size_t at;       /* in the segment */
    bool full;       /* a record is larger than a segment: nothing more is recorded */
    jobq__images last;
};

#define JOBQ__FROM ((sizeof(jobq_recorder) + 4095) / 4096 * 4096)
/* A loop or an answer of the worst kind. */
#define JOBQ__SEGMENT_MIN ((sizeof(jobq_loop) + sizeof(jobq_answer)) / 2 * 3 / 4096 * 4096 + 4096)

static jobq__segment *jobq__segment_of(const jobq_recording *r, uint64_t number)
{
    char *block = (char *)(uintptr_t)r;

    return (jobq__segment *)(void *)(block + r->from + number % JOBQ__SEGMENTS * r->bytes);
}

static void jobq__recording_head(jobq_recording *r)
{
    static const size_t sizes[] = {sizeof(jobq_loop), sizeof(jobq_request), sizeof(jobq_answer),
                                   sizeof(jobq_job), sizeof(jobq_work), sizeof(jobq_handled),
                                   sizeof(jobq_verdict), sizeof(jobq_recorder)};
    size_t i;
#define JOBQ__LIMIT(limit) limit,
    static const int32_t limits[] = {JOBQ_RECORD_LIMITS(JOBQ__LIMIT)};

    memcpy(r->magic, "JOBQREC1", sizeof r->magic);
    r->order = 0x01020304;
    r->version = JOBQ_VERSION_NUMBER;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) r->sizes[i] = (int32_t)sizes[i];
    memcpy(r->limits, limits, sizeof limits);
    r->from = JOBQ__FROM;
}

JOBQ_API size_t jobq_recorder_size(size_t bytes)
{
    size_t each = bytes < JOBQ__FROM ? 0 : (bytes - JOBQ__FROM) / JOBQ__SEGMENTS / 4096 * 4096;

    return JOBQ__FROM + JOBQ__SEGMENTS * (each < JOBQ__SEGMENT_MIN ? JOBQ__SEGMENT_MIN : each);
}

/* The next segment, in the place of the oldest one, with the loop as it is. */
static void jobq__segment_begin(jobq_recorder *r, const jobq_loop *l, int64_t mono_us)
{
    jobq__segment *s = jobq__segment_of(&r->head, ++r->number);
    uint8_t *from = (uint8_t *)(s + 1);
    jobq__coder c = {from, (uint8_t *)s + r->head.bytes - 4, false, false, &r->last};

    s->used = 0;
    JOBQ__FENCE();
    memset(&r->last, 0, sizeof r->last);
    s->number = r->number;
    s->mono_us = r->last.mono_us = mono_us;
    jobq__code_image(&c, (void *)(uintptr_t)l, NULL, sizeof *l);
    r->last.out = jobq__mix(s->number, (uint64_t)mono_us);
    r->last.sum = s->sum = jobq__mix_bytes(r->last.out, from, (size_t)(c.at - from));
    r->at = (size_t)(c.at - (uint8_t *)s);
    JOBQ__FENCE();
    r->full = c.bad;
    if (!r->full) s->used = r->at;
}

JOBQ_API jobq_recorder *jobq_recorder_init(void *block, size_t bytes, const jobq_loop *loop,
                                           int64_t mono_us, int64_t wall_us)
{
    jobq_recorder *r;
    uint64_t i;

    JOBQ_ASSERT(block != NULL && loop != NULL && bytes == jobq_recorder_size(bytes));
    r = (jobq_recorder *)block;
    memset(r, 0, sizeof *r);
    r->head.bytes = (bytes - JOBQ__FROM) / JOBQ__SEGMENTS;
    r->head.mono_us = mono_us;
    r->head.wall_us = wall_us;
    jobq__recording_head(&r->head);
    for (i = 0; i < JOBQ__SEGMENTS; i++) jobq__segment_of(&r->head, i)->used = 0;
    jobq__segment_begin(r, loop, mono_us);
    return r;
}

/* Writes what goes in, before the call: if that never returns, the record shows it. */
static void jobq__record_begin(jobq_recorder *r, const jobq_loop *l, jobq_entry *e)
{
    int tries;

    for (tries = 0; tries < 2 && !r->full; tries++) {
        jobq__segment *s = jobq__segment_of(&r->head, r->number);
        uint8_t *from = (uint8_t *)s + r->at;
        jobq__coder c = {from, (uint8_t *)s + r->head.bytes - 4, false, false,
                         &r->last};
        jobq__code_entry(&c, e);
        if (!c.bad) {
            r->last.sum = jobq__mix_bytes(r->last.sum, from, (size_t)(c.at - from));
            r->at = (size_t)(c.at - (uint8_t *)s);
            JOBQ__FENCE();
            s->used = r->at;
            return;
        }
        jobq__segment_begin(r, l, e->mono_us);
    }
    r->full = true;
}

/* What a record ends with: 16 bits of what came out, if anything can, and of the sum of all bytes
 * 8, or 16 if something went in. */
static size_t jobq__record_outs(const jobq_entry *e)
{
    return e->request != NULL || e->kind >= JOBQ_ENTRY_TAKE ? 2 : 0;
}

static size_t jobq__record_sums(const jobq_entry *e)
{
    return e->request != NULL || e->kind == JOBQ_ENTRY_TAKE ? 1 : 2;
}

static void jobq__record_out(jobq__images *last, const jobq_entry *e, uint8_t *to)
{
    last->out = jobq__mix_out(last->out, e);
    to[0] = (uint8_t)(e->request != NULL ? (uint64_t)e->request->kind : last->out >> 8);
    to[1] = (uint8_t)last->out;
}

static bool jobq__recorded(jobq_recorder *r, jobq_loop *l, jobq_entry *e)
{
    bool takes = e->kind == JOBQ_ENTRY_TAKE; /* often there is nothing: it is written afterwards */
    jobq__segment *s;
    uint8_t *at;

    if (r == NULL || r->full) return jobq__entry_call(l, e);
    if (!takes) jobq__record_begin(r, l, e);
    else if (r->head.bytes - r->at < 64) jobq__segment_begin(r, l, e->mono_us);
    if (!jobq__entry_call(l, e) && takes) return false;
    if (takes) jobq__record_begin(r, l, e);
    if (r->full) return e->result;
    s = jobq__segment_of(&r->head, r->number);
    at = (uint8_t *)s + r->at;
    if (jobq__record_outs(e) > 0) jobq__record_out(&r->last, e, at);
    r->last.sum = jobq__mix_bytes(r->last.sum, at, jobq__record_outs(e));
    at[jobq__record_outs(e)] = (uint8_t)r->last.sum;
    if (jobq__record_sums(e) == 2) at[jobq__record_outs(e) + 1] = (uint8_t)(r->last.sum >> 8);
    r->at += jobq__record_outs(e) + jobq__record_sums(e);
    JOBQ__FENCE();
    s->used = r->at;
    return e->result;
}

/* -- the calls -- */

#define JOBQ__WITH jobq_recorder *recorder, jobq_loop *loop, int64_t mono_us
#define JOBQ__RECORDED(kind_, call, set, returns)                                                  \
    JOBQ_API call                                                                                  \
    {                                                                                              \
        jobq_entry e;                                                                              \
                                                                                                   \
        memset(&e, 0, sizeof e);                                                                   \
        e.kind = JOBQ_ENTRY_##kind_;                                                               \
        e.mono_us = mono_us;                                                                       \
        e.loop = loop;                                                                             \
        set;                                                                                       \
        returns jobq__recorded(recorder, loop, &e);                                                \
    }
JOBQ__RECORDED(NEXT, void jobq_recorded_next(JOBQ__WITH, jobq_request *request),
               e.request = request, (void))
JOBQ__RECORDED(ABANDON, void jobq_recorded_abandon(JOBQ__WITH, jobq_request *request),
               e.request = request, (void))
JOBQ__RECORDED(TELL, void jobq_recorded_tell(JOBQ__WITH, jobq_answer *answer), e.answer = answer,
               (void))
JOBQ__RECORDED(DISCONNECTED, void jobq_recorded_disconnected(JOBQ__WITH), (void)0, (void))
JOBQ__RECORDED(NOTIFIED, void jobq_recorded_notified(JOBQ__WITH, const char *about),
               e.about = about, (void))
JOBQ__RECORDED(HEARS, void jobq_recorded_hears(JOBQ__WITH, bool hears), e.flag = hears, (void))
JOBQ__RECORDED(STOP, void jobq_recorded_stop(JOBQ__WITH, int64_t grace_us), e.grace_us = grace_us,
               (void))
JOBQ__RECORDED(TAKE, bool jobq_recorded_take(JOBQ__WITH, jobq_work *work), e.work = work, return)
JOBQ__RECORDED(COMMITTED,
               bool jobq_recorded_committed(JOBQ__WITH, const jobq_work *work, jobq_error error),
               e.work = (jobq_work *)(uintptr_t)work; e.error = error, return)
JOBQ__RECORDED(DELIVERED,
               bool jobq_recorded_delivered(JOBQ__WITH, const jobq_work *work,
                                            const jobq_verdict *verdict, bool own, jobq_ack *ack),
               e.work = (jobq_work *)(uintptr_t)work;
               e.verdict = (jobq_verdict *)(uintptr_t)verdict; e.flag = own; e.ack = ack, return)
JOBQ__RECORDED(HANDLED,
               bool jobq_recorded_handled(JOBQ__WITH, const jobq_work *work,
                                          const jobq_handled *handled, jobq_decision *decision),
               jobq_decision unused; memset(&unused, 0, sizeof unused);
               e.work = (jobq_work *)(uintptr_t)work;
               e.handled = (jobq_handled *)(uintptr_t)handled;
               e.decision = decision != NULL ? decision : &unused, return)

/* -- the replay -- */

struct jobq_replay {
    const jobq_recording *head;
    size_t bytes;
    uint64_t segment; /* its number */
    int64_t count;    /* of entries */
    jobq__coder c;
    jobq__images last;
    jobq_handled handled;
    jobq_verdict verdict;
    jobq_decision decision;
    char about[24];
    jobq_work work;
    jobq_ack ack;
    jobq_request request;
    jobq_answer answer;
    jobq_loop loop, snapshot;
};

JOBQ_API size_t jobq_replay_size(void) { return sizeof(jobq_replay); }

/* Why this build cannot read it; NULL: it can. */
static const char *jobq__other_build(const jobq_recording *r)
{
#define JOBQ__LIMIT_WHY(limit) "it was recorded with another " #limit,
    static const char *const whys[] = {JOBQ_RECORD_LIMITS(JOBQ__LIMIT_WHY)};
    jobq_recording own;
    size_t i;

    JOBQ_ASSERT(sizeof whys / sizeof whys[0] == JOBQ_RECORD_LIMIT_COUNT);
    jobq__recording_head(&own);
    if (r->order != own.order) return "it was recorded on a machine with another order of bytes";
    if (r->version != own.version) return "it was recorded by another version of jobq.h";
    for (i = 0; i < JOBQ_RECORD_LIMIT_COUNT; i++)
        if (r->limits[i] != own.limits[i]) return whys[i];
    if (memcmp(r->sizes, own.sizes, sizeof own.sizes) != 0 || r->from != own.from)
        return "it was recorded on a machine with another layout of structs";
    return NULL;
}

/* A segment of this number, and where it ends; NULL: there is none. The file may be cut off. */
static jobq__segment *jobq__replay_find(const jobq_replay *p, uint64_t number, uint8_t **end)
{
    const jobq_recording *r = p->head;
    size_t from = r->from + number % JOBQ__SEGMENTS * r->bytes, left = p->bytes - from;
    jobq__segment *s = jobq__segment_of(r, number);

    if (p->bytes < from + sizeof *s || s->used <= sizeof *s || s->used > r->bytes) return NULL;
    *end = (uint8_t *)s + (s->used < left ? s->used : left);
    return s;
}

JOBQ_API jobq_error jobq_replay_init(jobq_replay *p, const void *block, size_t bytes,
                                     const char **why)
{
    const jobq_recording *r = (const jobq_recording *)block;
    uint64_t i, first = 0;
    uint8_t *end;

    JOBQ_ASSERT(p != NULL && block != NULL && why != NULL);
    *why = "it is no recording of jobq";
    if (bytes < sizeof *r || memcmp(r->magic, "JOBQREC", 7) != 0) return JOBQ_ERROR_INVALID;
    *why = jobq__other_build(r);
    if (*why != NULL) return JOBQ_ERROR_VERSION;
    memset(p, 0, offsetof(jobq_replay, work));
    p->head = r;
    p->bytes = bytes;
    *why = "it is damaged";
    if (r->bytes < sizeof(jobq__segment) || r->bytes % 4096 != 0 || r->bytes > bytes)
        return JOBQ_ERROR_INVALID;
    for (i = 0; i < JOBQ__SEGMENTS; i++) {
        const jobq__segment *s = jobq__replay_find(p, i, &end);
        if (s == NULL || s->number % JOBQ__SEGMENTS != i) continue;
        if (first == 0 || s->number < first) first = s->number;
    }
    *why = "it is empty";
    if (first == 0) return JOBQ_ERROR_INVALID;
    p->segment = first - 1;
    return JOBQ_OK;
}

/* Whether two loops have drawn and counted the same. The bytes between values may differ. */
static bool jobq__loops_agree(const jobq_loop *a, const jobq_loop *b)
{
    return a->random.state == b->random.state && a->worker == b->worker &&
           a->number == b->number && a->wire.inflight == b->wire.inflight &&
           a->phase == b->phase && a->stop_mono_us == b->stop_mono_us &&
           a->pace.claim_mono_us == b->pace.claim_mono_us &&
           memcmp(&a->stats, &b->stats, sizeof a->stats) == 0 &&
           memcmp(&a->relay.stats, &b->relay.stats, sizeof a->relay.stats) == 0;
}

/* Loads the next segment's snapshot, after a look at whether the loop has come there by itself. */
static bool jobq__replay_segment(jobq_replay *p, jobq_entry *e)
{
    uint8_t *end = NULL, *from;
    jobq__segment *s = jobq__replay_find(p, ++p->segment, &end);

    if (s == NULL || s->number != p->segment) return false;
    from = (uint8_t *)(s + 1);
    memset(&p->last, 0, sizeof p->last);
    p->c.at = from;
    p->c.end = end;
    p->c.reads = true;
    p->c.bad = false;
    p->c.last = &p->last;
    jobq__code_image(&p->c, &p->snapshot, NULL, sizeof p->snapshot);
    p->last.out = jobq__mix(s->number, (uint64_t)s->mono_us);
    p->last.sum = jobq__mix_bytes(p->last.out, from, (size_t)(p->c.at - from));
    e->mono_us = p->last.mono_us = s->mono_us;
    e->kind = p->c.bad || p->last.sum != s->sum ? JOBQ_ENTRY_TORN : JOBQ_ENTRY_SNAPSHOT;
    if (e->kind == JOBQ_ENTRY_TORN) p->c.at = end;
    else {
        e->same = e->number == 1 || jobq__loops_agree(&p->loop, &p->snapshot);
        p->loop = p->snapshot;
    }
    return true;
}

/* Where the parts of an entry of this kind are. */
static void jobq__replay_room(jobq_replay *p, jobq_entry *e, int kind)
{
    bool asks = kind == JOBQ_ENTRY_NEXT || kind == JOBQ_ENTRY_ABANDON;

    e->request = asks ? &p->request : NULL;
    e->answer = kind == JOBQ_ENTRY_TELL ? &p->answer : NULL;
    e->about = kind == JOBQ_ENTRY_NOTIFIED ? p->about : NULL;
    e->work = kind >= JOBQ_ENTRY_TAKE ? &p->work : NULL;
    e->handled = kind == JOBQ_ENTRY_HANDLED ? &p->handled : NULL;
    e->decision = kind == JOBQ_ENTRY_HANDLED ? &p->decision : NULL;
    e->verdict = kind == JOBQ_ENTRY_DELIVERED ? &p->verdict : NULL;
    e->ack = kind == JOBQ_ENTRY_DELIVERED ? &p->ack : NULL;
}

/* Whether an answer is about a partition that the loop does not have. */
static bool jobq__replay_lacks(const jobq_replay *p, const jobq_answer *a)
{
    bool part = a != NULL && jobq__part_asks(a->kind) != JOBQ_PART_NONE;

    return part && (a->slot < 0 || a->slot >= p->loop.relay.count);
}

JOBQ_API bool jobq_replay_step(jobq_replay *p, jobq_entry *e)
{
    uint8_t out[2], *from;
    uint64_t sum;
    size_t outs, sums;

    JOBQ_ASSERT(p != NULL && e != NULL);
    from = p->c.at;
    memset(e, 0, sizeof *e);
    e->number = ++p->count;
    e->loop = &p->loop;
    if (p->c.at == p->c.end) return jobq__replay_segment(p, e);
    jobq__replay_room(p, e, *from & 15);
    jobq__code_entry(&p->c, e);
    outs = jobq__record_outs(e);
    sums = jobq__record_sums(e);
    e->cut = p->c.at == p->c.end;
    if (!p->c.bad && !e->cut) {
        sum = jobq__mix_bytes(p->last.sum, from, (size_t)(p->c.at - from));
        if ((size_t)(p->c.end - p->c.at) < outs + sums) p->c.bad = true;
        else p->last.sum = sum = jobq__mix_bytes(sum, p->c.at, outs);
        p->c.bad = p->c.bad || (uint8_t)sum != p->c.at[outs] ||
                   (sums == 2 && (uint8_t)(sum >> 8) != p->c.at[outs + 1]);
    }
    if (!p->c.bad && e->kind == JOBQ_ENTRY_HANDLED)
        p->work.job = p->loop.slots[p->work.slot].job;
    if (!p->c.bad && e->kind > JOBQ_ENTRY_HANDLED && p->loop.relay.parts[p->work.slot].id != 0)
        p->work.partition_id = p->loop.relay.parts[p->work.slot].id;
    if (p->c.bad || jobq__replay_lacks(p, e->answer)) {
        e->kind = JOBQ_ENTRY_TORN;
        p->c.at = p->c.end;
        return true;
    }
    jobq__entry_call(&p->loop, e);
    e->same = true;
    if (e->cut) return true;
    if (outs > 0) {
        jobq__record_out(&p->last, e, out);
        e->asked = (jobq_request_kind)*p->c.at;
        e->same = memcmp(out, p->c.at, outs) == 0;
    }
    p->c.at += outs + sums;
    return true;
}

JOBQ_API int64_t jobq_loop_wants(const jobq_loop *l, jobq_request_kind kind, int64_t mono_us)
{
    int64_t due = JOBQ_NEVER;
    size_t i;

    JOBQ_ASSERT(l != NULL);
    for (i = 0; l->session.connected && i < JOBQ__ACTIVITIES; i++)
        if (jobq__activities[i].kind == kind && jobq__activities[i].due != NULL)
            due = jobq__activities[i].due(l, kind, mono_us);
    if (kind == JOBQ_REQUEST_CONNECT && !l->session.connected &&
        !jobq__sent(l, JOBQ_REQUEST_CONNECT)) due = l->session.connect_mono_us;
    if (kind == JOBQ_REQUEST_DISCONNECT) due = jobq__due_answer(l);
    if (kind == JOBQ_REQUEST_ABANDON) due = jobq__due_abandon(l, mono_us);
    if (kind == JOBQ_REQUEST_EXIT) due = jobq__stop_end(l);
    return due;
}

#endif /* JOBQ_NO_RECORD */

/* ---- >>memory -------------------------------------------------------------------------------- */

typedef struct jobq_memory_worker {
    int64_t id; /* 0: free */
    int64_t beat;
    int64_t lease_us;
    int64_t rest_us; /* added to the lease by the latest heartbeat */
    int64_t expires_at_us;
    uint64_t queues; /* bit i: queue i */
    uint64_t kinds;  /* bit i: kind i */
    int64_t dead_at_us;
    bool dead;       /* its row stays for a day, or until its place is needed */
    bool asleep;
} jobq_memory_worker;

typedef struct jobq_memory_claim {
    int64_t worker; /* 0: free */
    int64_t number;
    int64_t burned_at_us; /* when its number was burned; 0: it is not */
} jobq_memory_claim;

/* The row of a partition. */
typedef struct jobq_memory_partition {
    int32_t queue;  /* 0: free */
    int32_t number; /* in its queue: 0, 1, 2 ... */
    int64_t last;   /* last seq given out */
    jobq_cursor cursor;
    jobq_holder holder; /* worker 0: none */
    int64_t lease_until_us;
    int64_t beat_at_us; /* when lease_until_us or run_at_us was written */
    int64_t reading;    /* last seq of the holder's delivery; 0: none */
    int64_t run_at_us;
} jobq_memory_partition;

/* What a job on a jobq_memory waits for. */
typedef struct jobq_memory_edge {
    int32_t parent, child; /* 0: free */
    jobq_on_end on_end;
    bool cascade;
    bool ended;            /* the parent has; else */
    bool holds;            /* the child cannot run because of this edge */
} jobq_memory_edge;

/* A message on a jobq_memory. */
typedef struct jobq_memory_message {
    int64_t seq;       /* 0: no number yet, because no read has reached it */
    int32_t partition_id; /* 0: free */
    int32_t attempts;  /* of a dead letter: its deliveries, including the last */
    bool dead;
    jobq_str payload;  /* borrowed */
} jobq_memory_message;

/* Like the table line. */
typedef struct jobq_memory_line_row {
    int32_t queue; /* 0: free */
    int64_t line;  /* 0: the rules of all lines that have none of their own */
    bool own;      /* it has rules of its own */
    jobq_line rules;
    int64_t free_us, held_at_us, until_us;
} jobq_memory_line_row;

/* The head of the block. The jobs, workers and claims follow it. */
struct jobq_memory {
    size_t used;            /* bytes before the scratch of jobq_memory_work */
    int32_t job_max, worker_max, claim_max;
    int32_t job_count;      /* jobs[0 .. job_count) have been used */
    int64_t policy_version; /* changes with every change of a policy or pause */
    uint64_t paused;        /* bit i: queue i */
    uint64_t paused_kinds;  /* bit i: kind i */
    int16_t stages_max, priority_min;
    uint64_t own_policies;  /* bit i: kind i has a policy of its own */
    int64_t held_until_us[64]; /* by queue: nothing of it is claimed before */
    int64_t held_at_us[64];    /* when that was written */
    jobq_policy policies[JOBQ_MEMORY_QUEUES];
    jobq_policy kind_policies[JOBQ_MEMORY_KINDS];
    uint64_t lines;     /* bit i: queue i has lines */
    uint64_t ageing;    /* bit i: queue i has ageing */
    jobq_memory_line_row line_rows[JOBQ_MEMORY_LINES];
    jobq_memory_edge edges[JOBQ_MEMORY_EDGES];
    jobq_memory_partition partitions[JOBQ_MEMORY_PARTITIONS]; /* ids are index + 1 */
    jobq_memory_message messages[JOBQ_MEMORY_MESSAGES];
};

/* Time until the end of something that was written at from_us. If the latter has not come, either,
 * the store's clock has run back since, and it is over. */
static int64_t jobq__memory_wait(int64_t from_us, int64_t until_us, int64_t now_us)
{
    return from_us <= now_us ? jobq__max(until_us - now_us, 0) : 0;
}

/* Whether the lease of a worker is over. */
static bool jobq__memory_lapsed(const jobq_memory_worker *w, int64_t now_us)
{
    int64_t beat_at_us = w->expires_at_us - w->lease_us - w->rest_us;

    return jobq__memory_wait(beat_at_us, w->expires_at_us + 1, now_us) == 0;
}

static int64_t jobq__memory_held(const jobq_memory *m, int32_t queue, int64_t now_us)
{
    return jobq__memory_wait(m->held_at_us[queue & 63], m->held_until_us[queue & 63], now_us);
}

/* The end of the hold of a line. */
static int64_t jobq__memory_line_until(const jobq_memory_line_row *row, int64_t now_us)
{
    return row == NULL ? now_us
                       : now_us + jobq__memory_wait(row->held_at_us, row->until_us, now_us);
}

/* What a step of jobq_memory_work needs, at the end of the block: too much for a thread's stack. */
/* A job while its handler runs. */
typedef struct jobq__memory_run {
    jobq_memory *memory;
    const jobq_loop *loop;
    int64_t now_us;
    jobq_call call;
    jobq_work work;
} jobq__memory_run;

typedef struct jobq__memory_scratch {
    jobq_request request;
    jobq_answer answer;
    jobq__memory_run runs[JOBQ_MEMORY_BATCH];
} jobq__memory_scratch;

/* Bytes of the store itself. */
static size_t jobq__memory_used(int32_t jobs, int32_t workers, int32_t claims)
{
    return sizeof(jobq_memory) + (size_t)jobs * sizeof(jobq_memory_job) +
           (size_t)workers * sizeof(jobq_memory_worker) +
           (size_t)claims * sizeof(jobq_memory_claim);
}

JOBQ_API size_t jobq_memory_size(int32_t jobs, int32_t workers, int32_t claims)
{
    return jobq__memory_used(jobs, workers, claims) + sizeof(jobq__memory_scratch);
}

JOBQ_API jobq_memory *jobq_memory_init(void *block, int32_t jobs, int32_t workers, int32_t claims)
{
    jobq_memory *m;
    int i;

    JOBQ_ASSERT(block != NULL && jobs > 0 && workers > 0 && claims > 0);
    m = (jobq_memory *)memset(block, 0, jobq__memory_used(jobs, workers, claims));
    m->used = jobq__memory_used(jobs, workers, claims);
    m->job_max = jobs;
    m->worker_max = workers;
    m->claim_max = claims;
    m->stages_max = 1;
    m->policy_version = 1;
    for (i = 0; i < JOBQ_MEMORY_QUEUES; i++) m->policies[i] = jobq_policy_defaults(NULL);
    return m;
}

static jobq__memory_scratch *jobq__memory_scratch_of(const jobq_memory *m)
{
    return (jobq__memory_scratch *)(void *)((char *)(uintptr_t)m + m->used);
}

static jobq_memory_job *jobq__memory_jobs(const jobq_memory *m)
{
    return (jobq_memory_job *)(void *)((char *)(uintptr_t)m + sizeof *m);
}

static jobq_memory_worker *jobq__memory_workers(const jobq_memory *m)
{
    return (jobq_memory_worker *)(void *)(jobq__memory_jobs(m) + m->job_max);
}

static jobq_memory_claim *jobq__memory_claims(const jobq_memory *m)
{
    return (jobq_memory_claim *)(void *)(jobq__memory_workers(m) + m->worker_max);
}

JOBQ_API void jobq_memory_policy(jobq_memory *m, int32_t queue, const jobq_policy *policy,
                                 bool paused)
{
    JOBQ_ASSERT(m != NULL && queue >= 1 && queue <= JOBQ_MEMORY_QUEUES);
    m->policies[queue - 1] = jobq_policy_defaults(policy);
    m->paused &= ~((uint64_t)1 << queue);
    m->paused |= (uint64_t)paused << queue;
    m->policy_version++;
}

/* Sets the policy of kind 1 to JOBQ_MEMORY_KINDS, all of it. NULL: that of its queue. */
JOBQ__SPARE
static void jobq__memory_kind_policy(jobq_memory *m, int32_t kind, const jobq_policy *policy)
{
    JOBQ_ASSERT(m != NULL && kind >= 1 && kind <= JOBQ_MEMORY_KINDS);
    m->own_policies &= ~((uint64_t)1 << kind);
    m->own_policies |= (uint64_t)(policy != NULL) << kind;
    m->kind_policies[kind - 1] = jobq_policy_defaults(policy);
    m->policy_version++;
}

static const jobq_policy *jobq__memory_policy_of(const jobq_memory *m, int32_t queue)
{
    return &m->policies[queue >= 1 && queue <= JOBQ_MEMORY_QUEUES ? queue - 1 : 0];
}

/* Claims learn which priorities and stages there are. */
static void jobq__memory_lane(jobq_memory *m, const jobq_job *job)
{
    if (job->stages <= m->stages_max && job->priority >= m->priority_min) return;
    m->stages_max = (int16_t)jobq__max(m->stages_max, job->stages);
    m->priority_min = (int16_t)jobq__min(m->priority_min, job->priority);
    m->policy_version++;
}

/* A queue has lines. Loops walk through them as soon as they know it. */
static void jobq__memory_lines(jobq_memory *m, int32_t queue)
{
    uint64_t bit = (uint64_t)1 << (queue & 63);

    if ((m->lines & bit) == 0) m->policy_version++;
    m->lines |= bit;
}

/* Jobs that are due, and those that run, stand in their lines. */
static void jobq__memory_stand(jobq_memory_job *mj, int64_t now_us)
{
    bool ready = mj->job.state == JOBQ_STATE_READY && mj->job.run_at_us <= now_us;

    if (mj->job.state != JOBQ_STATE_RUNNING) mj->job.line = ready ? mj->line : 0;
}

JOBQ_API int64_t jobq_memory_enqueue(jobq_memory *m, const jobq_job *like, jobq_str payload,
                                     int64_t now_us)
{
    jobq_memory_job *mj;

    JOBQ_ASSERT(m != NULL && like != NULL && like->stages >= 1);
    if (m->job_count == m->job_max) return 0;
    mj = &jobq__memory_jobs(m)[m->job_count++];
    mj->job = jobq_job_new(m->job_count);
    mj->job.queue = like->queue;
    mj->job.kind = like->kind;
    mj->job.priority = like->priority;
    mj->job.stages = like->stages;
    mj->job.max_attempts = like->max_attempts;
    mj->job.timeout_us = like->timeout_us;
    mj->job.enqueued_at_us = now_us;
    mj->job.run_at_us = jobq__max(like->run_at_us, now_us);
    if (like->expires_us > 0)
        mj->expires_at_us = jobq__add(mj->job.run_at_us, like->expires_us);
    mj->payload = payload;
    mj->line = like->line;
    jobq__memory_stand(mj, now_us);
    if (mj->job.line != 0) jobq__memory_lines(m, like->queue);
    jobq__memory_lane(m, &mj->job);
    return mj->job.id;
}

JOBQ_API jobq_memory_job *jobq_memory_get(jobq_memory *m, int64_t id)
{
    JOBQ_ASSERT(m != NULL);
    return id < 1 || id > m->job_count ? NULL : &jobq__memory_jobs(m)[id - 1];
}

static jobq_memory_worker *jobq__memory_worker_of(const jobq_memory *m, int64_t id)
{
    int32_t i;

    for (i = 0; i < m->worker_max; i++) {
        if (jobq__memory_workers(m)[i].id == id) return &jobq__memory_workers(m)[i];
    }
    return NULL;
}

/* The row of a claim. worker and number 0: a free place. */
static jobq_memory_claim *jobq__memory_claim_of(const jobq_memory *m, int64_t worker,
                                                int64_t number)
{
    int32_t i;

    for (i = 0; i < m->claim_max; i++) {
        jobq_memory_claim *c = &jobq__memory_claims(m)[i];
        if (c->worker == worker && c->number == number) return c;
    }
    return NULL;
}

static bool jobq__memory_note(jobq_memory *m, int64_t worker, int64_t number, int64_t burned_at_us)
{
    jobq_memory_claim *c = jobq__memory_claim_of(m, 0, 0);

    if (c == NULL) return false;
    c->worker = worker;
    c->number = number;
    c->burned_at_us = burned_at_us;
    return true;
}

/* If the stage is done, its next payload becomes the job's; if the job has succeeded, its result.
 * Any other end of the run drops it. */
static void jobq__memory_apply(jobq_memory_job *mj, const jobq_decision *d, int64_t now_us)
{
    if (d->stage > mj->job.stage && mj->next.ptr != NULL) mj->payload = mj->next;
    if (d->state != JOBQ_STATE_RUNNING && d->state != JOBQ_STATE_SUCCEEDED)
        mj->next = jobq_str_from(NULL);
    mj->reason = d->reason;
    mj->limit = d->limit;
    mj->finished_at_us = jobq_state_final(d->state) ? now_us : 0;
    mj->holds = mj->holds && !jobq_state_final(d->state); /* nor does it when it is revived */
    if (jobq_state_final(d->state)) mj->expires_at_us = 0; /* likewise */
    jobq_job_apply(&mj->job, d, now_us);
    jobq__memory_stand(mj, now_us);
}

/* Decides one event about one job, and applies the decision. */
static jobq_error jobq__memory_decide(jobq_memory *m, jobq_memory_job *mj, jobq_event *event,
                                      int64_t now_us)
{
    jobq_decision d;
    bool own = (m->own_policies >> mj->job.kind & 1) != 0;
    jobq_error error = jobq_job_decide(own ? &m->kind_policies[mj->job.kind - 1]
                                           : jobq__memory_policy_of(m, mj->job.queue),
                                       &mj->job, event, &d);

    if (error == JOBQ_OK) jobq__memory_apply(mj, &d, now_us);
    return error;
}

/* Decides about a job that perhaps waits: ready if no edge holds it, cancelled if one that does
 * never lets it go. */
static void jobq__memory_waits(jobq_memory *m, jobq_memory_job *mj, int64_t now_us)
{
    jobq_event event;
    bool holds = mj->follows != 0, over = false;
    int i;

    if (mj->job.state != JOBQ_STATE_WAITING) return;
    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &m->edges[i];
        if (e->child != mj->job.id || !e->holds) continue;
        holds = true;
        over = over || (e->ended && e->cascade);
    }
    if (holds && !over) return;
    memset(&event, 0, sizeof event);
    event.kind = over ? JOBQ_EVENT_CANCEL : JOBQ_EVENT_READY;
    if (!over && mj->job.run_at_us != JOBQ_NEVER)
        event.delay_us = jobq__max(mj->job.run_at_us - now_us, 0);
    jobq__memory_decide(m, mj, &event, now_us);
}

/* If a job has ended: writes that into the edges to its children. */
static void jobq__memory_mark(jobq_memory *m, const jobq_job *ended)
{
    int32_t i;

    for (i = 0; i < JOBQ_MEMORY_EDGES && jobq_state_final(ended->state); i++) {
        jobq_memory_edge *e = &m->edges[i];
        if (e->child == ended->id) e->child = 0;
        if (e->child == 0 || e->parent != ended->id || e->ended) continue;
        e->ended = true;
        e->holds = !jobq__end_serves(e->on_end, ended->state);
    }
    for (i = 0; i < m->job_count && jobq_state_final(ended->state); i++) {
        jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        if (mj->follows == ended->id) mj->follows = 0;
    }
}

/* If a job has ended: decides about those that wait for it, and for what that cancels. Children
 * come after their parents, so one pass sees all, but for jobs that waited after they had run.
 * Returns whether it decided anything. */
static bool jobq__memory_promote(jobq_memory *m, const jobq_job *ended, int64_t now_us)
{
    int32_t i;
    bool more = jobq_state_final(ended->state), decided = false;

    if (more) jobq__memory_mark(m, ended);
    while (more) {
        more = false;
        for (i = 0; i < m->job_count; i++) {
            jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
            if (mj->job.state != JOBQ_STATE_WAITING) continue;
            jobq__memory_waits(m, mj, now_us);
            decided = decided || mj->job.state != JOBQ_STATE_WAITING;
            more = more || jobq_state_final(mj->job.state);
            jobq__memory_mark(m, &mj->job);
        }
    }
    return decided;
}

/* The edges from a revived job hold their children again, if these still wait. */
static void jobq__memory_hold_again(jobq_memory *m, int64_t parent)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        jobq_memory_edge *e = &m->edges[i];
        if (e->child == 0 || e->parent != parent ||
            jobq_memory_get(m, e->child)->job.state != JOBQ_STATE_WAITING) continue;
        e->ended = false;
        e->holds = true;
    }
}

/* One event about one job, and what follows from it for others. */
static jobq_error jobq__memory_happens(jobq_memory *m, jobq_memory_job *mj, jobq_event *event,
                                       int64_t now_us)
{
    jobq_error error = jobq__memory_decide(m, mj, event, now_us);

    if (error != JOBQ_OK) return error;
    if (event->kind == JOBQ_EVENT_REVIVE) jobq__memory_hold_again(m, mj->job.id);
    if (event->kind == JOBQ_EVENT_WAIT) jobq__memory_waits(m, mj, now_us);
    jobq__memory_promote(m, &mj->job, now_us);
    return JOBQ_OK;
}

static jobq_error jobq__memory_plain(jobq_memory *m, jobq_memory_job *mj, jobq_event_kind kind,
                                     int64_t now_us)
{
    jobq_event event;

    memset(&event, 0, sizeof event);
    event.kind = kind;
    return jobq__memory_happens(m, mj, &event, now_us);
}

/* Whether a worker has claims left; burned numbers do not count. */
static bool jobq__memory_left(const jobq_memory *m, int64_t worker)
{
    int32_t i;

    for (i = 0; i < m->claim_max; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(m)[i];
        if (c->worker == worker && c->burned_at_us == 0) return true;
    }
    return false;
}

/* -- its workers and claims -- */

/* Deletes a worker's claim rows that hold no job; burned numbers only if asked. Returns whether any
 * row is left. */
static bool jobq__memory_forget(jobq_memory *m, int64_t worker, bool burned)
{
    bool left = false;
    int32_t i, j;

    for (i = 0; i < m->claim_max; i++) {
        jobq_memory_claim *c = &jobq__memory_claims(m)[i];
        if (c->worker != worker) continue;
        for (j = 0; j < m->job_count; j++) {
            if (jobq_job_holds(&jobq__memory_jobs(m)[j].job, worker, c->number)) break;
        }
        if (j == m->job_count && (burned || c->burned_at_us == 0)) memset(c, 0, sizeof *c);
        else left = true;
    }
    return left;
}

/* Whether any job is running under a token of this worker. */
static bool jobq__memory_holds(const jobq_memory *m, int64_t worker)
{
    int32_t i;

    for (i = 0; i < m->job_count; i++) {
        if (jobq__memory_jobs(m)[i].job.worker == worker) return true;
    }
    return false;
}

/* A free place, or that of the worker that has been dead longest and left no jobs. */
static jobq_memory_worker *jobq__memory_place(const jobq_memory *m)
{
    jobq_memory_worker *place = jobq__memory_worker_of(m, 0), *w = jobq__memory_workers(m);
    int32_t i;

    for (i = 0; i < m->worker_max && (place == NULL || place->id != 0); i++, w++) {
        if (!w->dead || jobq__memory_holds(m, w->id)) continue;
        if (place == NULL || w->dead_at_us < place->dead_at_us) place = w;
    }
    return place;
}

/* JOBQ_ERROR_EXISTS: the id is taken. JOBQ_ERROR_FULL: all places belong to living workers, or to
 * dead ones that left jobs. */
static jobq_error jobq__memory_register(jobq_memory *m, int64_t worker, int64_t lease_us,
                                          uint64_t queues, uint64_t kinds, int64_t now_us)
{
    jobq_memory_worker *w;

    JOBQ_ASSERT(m != NULL && worker != 0);
    if (jobq__memory_worker_of(m, worker) != NULL) return JOBQ_ERROR_EXISTS;
    w = jobq__memory_place(m);
    if (w == NULL) return JOBQ_ERROR_FULL;
    if (w->id != 0) jobq__memory_forget(m, w->id, true);
    memset(w, 0, sizeof *w);
    w->id = worker;
    w->lease_us = lease_us;
    w->expires_at_us = now_us + lease_us;
    w->queues = queues;
    w->kinds = kinds;
    return JOBQ_OK;
}

/* Whether a claim may take a job: the rule of jobq.claim. */
static bool jobq__memory_eligible(const jobq_job *job, const jobq_lane *lane, uint64_t kinds,
                                  bool suspects, bool alone, int64_t now_us)
{
    if (job->state != JOBQ_STATE_READY || job->run_at_us > now_us) return false;
    if (job->suspect != suspects || job->alone != alone) return false;
    if (job->queue != lane->queue || job->priority != lane->priority || job->stage != lane->stage) {
        return false;
    }
    if (lane->until_at_us != 0 && job->run_at_us > lane->until_at_us) return false;
    if ((kinds >> job->kind & 1) == 0) return false;
    if (!suspects && (job->line != 0) != lane->lined) return false;
    if (suspects || job->run_at_us > lane->after_at_us) return true;
    return job->run_at_us == lane->after_at_us &&
           (lane->lined ? job->id >= lane->low_id : job->id > lane->after_id);
}

/* ---- >>memory_lines: lines, claims and rescues ----------------------------------------------- */

/* The row of a line; line 0: the rules of the queue's lines. NULL: none. */
static jobq_memory_line_row *jobq__memory_line_of(const jobq_memory *m, int32_t queue,
                                                  int64_t line)
{
    int32_t i = 0;

    while (i < JOBQ_MEMORY_LINES &&
           (m->line_rows[i].queue != queue || m->line_rows[i].line != line)) i++;
    return i < JOBQ_MEMORY_LINES ? &((jobq_memory *)(uintptr_t)m)->line_rows[i] : NULL;
}

/* The rules of a line: its own, or its queue's. */
static jobq_line jobq__memory_rules(const jobq_memory *m, int32_t queue, int64_t line)
{
    const jobq_memory_line_row *row = jobq__memory_line_of(m, queue, line);
    jobq_line none;

    if (row == NULL || !row->own) row = jobq__memory_line_of(m, queue, 0);
    memset(&none, 0, sizeof none);
    return row != NULL && row->own ? row->rules : none;
}

/* Whether a row may be forgotten: it has no rules, its hold is over, and all its tokens are there.
 * now_us is INT64_MIN: the time is not known. */
static bool jobq__memory_line_spare(jobq_memory *m, const jobq_memory_line_row *row, int64_t now_us)
{
    jobq_rate rate;

    if (row->queue == 0 || row->own || now_us == INT64_MIN) return row->queue == 0;
    rate = jobq__memory_rules(m, row->queue, row->line).rate;
    return jobq__memory_line_until(row, now_us) == now_us &&
           jobq__line_free(&rate, row->free_us, now_us) ==
               jobq__line_free(&rate, INT64_MIN, now_us);
}

/* Finds or adds it. NULL: no room. */
static jobq_memory_line_row *jobq__memory_line_add(jobq_memory *m, int32_t queue, int64_t line,
                                                   int64_t now_us)
{
    jobq_memory_line_row *row = jobq__memory_line_of(m, queue, line);
    int32_t i;

    if (row != NULL) return row;
    for (i = 0; i < JOBQ_MEMORY_LINES; i++) {
        if (jobq__memory_line_spare(m, &m->line_rows[i], now_us)) break;
    }
    if (i == JOBQ_MEMORY_LINES) return NULL;
    row = &m->line_rows[i];
    memset(row, 0, sizeof *row);
    row->queue = queue;
    row->line = line;
    row->free_us = INT64_MIN;
    return row;
}

/* Whether a job counts as one that was claimed from a line, and has not left it. */
static bool jobq__memory_in_line(const jobq_memory_job *mj, int32_t queue, int64_t line)
{
    return mj->line == line && mj->job.queue == queue && mj->holds;
}

static int32_t jobq__memory_line_held(const jobq_memory *m, int32_t queue, int64_t line,
                                      bool suspects)
{
    int32_t held = 0, i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        bool counts = mj->job.state == JOBQ_STATE_RUNNING ||
                      (suspects && mj->job.suspect && !jobq_state_final(mj->job.state));
        if (counts && jobq__memory_in_line(mj, queue, line)) held++;
    }
    return held;
}

/* What the line of a suspect leaves for it: suspects do not count, because two of them would wait
 * for each other. */
static bool jobq__memory_suspect_goes(const jobq_memory *m, const jobq_memory_job *mj,
                                      int64_t now_us)
{
    int32_t queue = mj->job.queue;
    const jobq_memory_line_row *row = jobq__memory_line_of(m, queue, mj->line);
    jobq_line rules = jobq__memory_rules(m, queue, mj->line);
    int64_t due_us;

    return mj->line == 0 || !mj->job.suspect ||
           jobq__line_room(&rules, row == NULL ? INT64_MIN : row->free_us,
                          jobq__memory_line_until(row, now_us), now_us,
                          jobq__memory_line_held(m, queue, mj->line, false), 1, &due_us) > 0;
}

/* Like jobq._suspect_admitted, of a suspect that goes. false: no room for its line's tokens. */
static bool jobq__memory_suspect_counts(jobq_memory *m, jobq_memory_job *mj, int64_t now_us)
{
    jobq_line rules = jobq__memory_rules(m, mj->job.queue, mj->line);
    jobq_memory_line_row *row;

    mj->holds = mj->holds || rules.strict || rules.running_max > 0;
    if (rules.rate.us == 0) return true;
    row = jobq__memory_line_add(m, mj->job.queue, mj->line, now_us);
    if (row != NULL) row->free_us = jobq__line_used(&rules, row->free_us, now_us, 1);
    return row != NULL;
}

/* The first eligible job by (lane, run_at, id) of some lanes; -1: none. Skips jobs early, because
 * most are not ready. */
static int32_t jobq__memory_first(const jobq_memory *m, const jobq_request *r, int32_t from,
                                  int32_t to, uint64_t kinds, int64_t now_us)
{
    const jobq_memory_job *jobs = jobq__memory_jobs(m);
    int32_t first = -1, i, n;

    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobs[i].job;
        if (job->state != JOBQ_STATE_READY || jobq__memory_held(m, job->queue, now_us) > 0)
            continue;
        for (n = from; n < to; n++) {
            if (jobq__memory_eligible(job, &r->lanes[n], kinds, r->suspects, r->alone, now_us) &&
                jobq__memory_suspect_goes(m, &jobs[i], now_us)) {
                break;
            }
        }
        if (n == to) continue;
        if (first < 0 || n + 1 < to || job->run_at_us < jobs[first].job.run_at_us) {
            first = i;
        }
        to = n + 1; /* later lanes no longer count */
    }
    return first;
}

/* Whether a job stands in a line of a lane, whatever its state. */
static bool jobq__memory_stands(const jobq_job *job, const jobq_lane *lane)
{
    return job->line != 0 && !job->suspect && job->queue == lane->queue &&
           job->priority == lane->priority && job->stage == lane->stage &&
           (job->state == JOBQ_STATE_READY || job->state == JOBQ_STATE_RUNNING);
}

/* Like jobq.strict_job. -1: none. */
static int32_t jobq__memory_strict_job(const jobq_memory *m, const jobq_lane *lane, int64_t line)
{
    const jobq_memory_job *jobs = jobq__memory_jobs(m);
    int32_t first = -1, i;
    bool held = false;

    for (i = 0; i < m->job_count; i++) {
        held = held || (jobq__memory_in_line(&jobs[i], lane->queue, line) &&
                        !jobq_state_final(jobs[i].job.state));
    }
    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobs[i].job;
        if (job->line != line || !jobq__memory_stands(job, lane)) continue;
        if (held && !jobs[i].holds) continue;
        if (first < 0 || job->run_at_us < jobs[first].job.run_at_us) first = i;
    }
    return first;
}

/* The first eligible job of a line; -1: none. */
static int32_t jobq__memory_line_first(const jobq_memory *m, const jobq_request *r,
                                       const jobq_lane *lane, int64_t line, uint64_t kinds,
                                       int64_t now_us)
{
    const jobq_memory_job *jobs = jobq__memory_jobs(m);
    int32_t first = -1, i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobs[i].job;
        if (job->line != line) continue;
        if (!jobq__memory_eligible(job, lane, kinds, false, r->alone, now_us)) continue;
        if (first < 0 || job->run_at_us < jobs[first].job.run_at_us) first = i;
    }
    return first;
}

/* The line with the smallest number after `after` in which a job of the lane is ready; 0: none.
 * *low: its first one is seen. */
static int64_t jobq__memory_next_line(const jobq_memory *m, const jobq_lane *lane, int64_t after,
                                      int64_t now_us, jobq_low *low)
{
    int64_t next = 0;
    int32_t i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (job->line <= after ||
            !jobq__memory_eligible(job, lane, UINT64_MAX, false, false, now_us)) continue;
        if (next == 0 || job->line < next) next = job->line;
    }
    for (i = 0; i < m->job_count && next != 0; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (job->line == next &&
            jobq__memory_eligible(job, lane, UINT64_MAX, false, false, now_us)) {
            jobq__low_see(low, job->run_at_us, job->id);
        }
    }
    return next;
}

/* Like jobq._claim_fresh: ends a job that a claim came upon, if it is late. */
static bool jobq__memory_ends(jobq_memory *m, jobq_memory_job *mj, int64_t now_us, jobq_claimed *c)
{
    jobq_ended *e = c->ended;

    if (mj->expires_at_us == 0 || mj->expires_at_us > now_us) return false;
    jobq__memory_plain(m, mj, JOBQ_EVENT_EXPIRE, now_us);
    while (e < c->ended + c->ended_count && e->kind != mj->job.kind) e++;
    if (e == c->ended + c->ended_count) {
        e->queue = mj->job.queue;
        e->kind = mj->job.kind;
        e->count = 0;
        c->ended_count++;
    }
    e->count++;
    c->due_us = 1;
    return true;
}

/* Like jobq._late_front: with one late job, others of these lanes end. */
static void jobq__memory_ends_front(jobq_memory *m, const jobq_request *r, int32_t from,
                                    int32_t to, uint64_t kinds, int64_t now_us, jobq_claimed *c)
{
    int32_t i, n;

    for (i = 0; i < m->job_count; i++) {
        jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        for (n = from; n < to; n++) {
            jobq_lane lane = r->lanes[n];
            lane.after_at_us = INT64_MIN;
            lane.until_at_us = 0;
            if (jobq__memory_eligible(&mj->job, &lane, kinds, false, false, now_us) &&
                jobq__memory_ends(m, mj, now_us, c)) break;
        }
    }
}

/* Takes a job into a claim. */
static jobq_error jobq__memory_claim_one(jobq_memory *m, const jobq_request *r, int32_t i,
                                         int64_t now_us, jobq_claimed *c)
{
    jobq_event event;

    if (c->count == 0) {
        if (jobq__memory_claim_of(m, r->worker, r->claim) != NULL) return JOBQ_ERROR_EXISTS;
        if (!jobq__memory_note(m, r->worker, r->claim, 0)) return JOBQ_ERROR_FULL;
    }
    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_CLAIM;
    event.worker = r->worker;
    event.claim = r->claim;
    jobq__memory_happens(m, &jobq__memory_jobs(m)[i], &event, now_us);
    c->jobs[c->count] = jobq__memory_jobs(m)[i].job;
    if (jobq__memory_jobs(m)[i].expires_at_us != 0)
        c->jobs[c->count].expires_us = jobq__memory_jobs(m)[i].expires_at_us - now_us;
    c->count++;
    return JOBQ_OK;
}

/* A number for a claim and a line, not negative. */
static int32_t jobq__memory_chance(const jobq_request *r, int64_t line)
{
    jobq_random random;

    random.state = (uint64_t)r->claim * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)line;
    return (int32_t)(jobq_random_next(&random) >> 34);
}

/* Like jobq._claim_visit, of one line. *more: it may have more jobs. */
static jobq_error jobq__memory_visit(jobq_memory *m, const jobq_request *r, const jobq_lane *lane,
                                     int64_t line, int32_t quantum, uint64_t kinds, int64_t now_us,
                                     jobq_claimed *c, jobq_walk *walk, bool *more)
{
    jobq_line rules = jobq__memory_rules(m, lane->queue, line);
    bool limited = rules.strict || rules.running_max > 0;
    jobq_memory_line_row *row = rules.rate.us == 0
        ? jobq__memory_line_of(m, lane->queue, line)
        : jobq__memory_line_add(m, lane->queue, line, now_us);
    int64_t due_us, free_us = row == NULL ? INT64_MIN : row->free_us;
    int32_t count = 0, room, n, i, held = jobq__memory_line_held(m, lane->queue, line, true);
    int32_t most = rules.strict ? 1 : rules.running_max;
    jobq_lane from = *lane;

    if (row == NULL && rules.rate.us > 0) { /* no room for its tokens */
        walk->due_us = jobq__min(jobq__or(walk->due_us, JOBQ__SECOND), JOBQ__SECOND);
        return JOBQ_OK;
    }
    room = jobq__line_room(&rules, free_us, jobq__memory_line_until(row, now_us), now_us, held,
                          quantum, &due_us);
    if (due_us > 0) walk->due_us = walk->due_us == 0 ? due_us : jobq__min(walk->due_us, due_us);
    if (rules.strict) from.after_at_us = INT64_MIN;
    for (n = 0; n < room && c->count < r->limit; n++) {
        jobq_memory_job *mj;
        jobq_error error;
        i = rules.strict ? jobq__memory_strict_job(m, lane, line)
                         : jobq__memory_line_first(m, r, lane, line, kinds, now_us);
        if (i < 0) break;
        mj = &jobq__memory_jobs(m)[i];
        if (!jobq__memory_eligible(&mj->job, &from, kinds, false, r->alone, now_us)) break;
        if (jobq__memory_ends(m, mj, now_us, c)) {
            walk->due_us = 1;
            continue;
        }
        error = jobq__memory_claim_one(m, r, i, now_us, c);
        if (error != JOBQ_OK) return error;
        mj->holds = limited;
        walk->after = line;
        count++;
    }
    if (c->count == r->limit && room > quantum &&
        jobq__memory_chance(r, line) % room < room - count) {
        walk->after = line - 1; /* see jobq._walk_stop */
    }
    if (rules.rate.us > 0) row->free_us = jobq__line_used(&rules, free_us, now_us, count);
    else if (count > 0 && count == room && (most == 0 || room < most - held)) *more = true;
    return JOBQ_OK;
}

/* The answer about a queue's walk. */
static jobq_walk *jobq__memory_walk_of(jobq_claimed *c, const jobq_lane *lane)
{
    jobq_walk *walk;
    int32_t i = 0;

    while (i < c->walk_count && c->walks[i].queue != lane->queue) i++;
    walk = &c->walks[i];
    if (i < c->walk_count) return walk;
    c->walk_count++;
    walk->queue = lane->queue;
    walk->after = lane->after_id;
    walk->due_us = 0;
    return walk;
}

/* How many jobs each line of a lane may give: if the lines are too few to fill a claim, more. */
static int32_t jobq__memory_quantum(const jobq_memory *m, const jobq_request *r,
                                    const jobq_lane *lane, int32_t most, int64_t now_us)
{
    jobq_low unused = {0, 0, false};
    int32_t quantum = (int32_t)jobq__max(r->quantum, 1), lines = 0;
    int64_t page = jobq__min((most + quantum - 1) / quantum, 200), line = INT64_MIN;

    for (; lines < page; lines++) {
        line = jobq__memory_next_line(m, lane, line, now_us, &unused);
        if (line == 0) break;
    }
    if (lines == 0 || lines >= page) return quantum;
    return (int32_t)jobq__max(quantum, (most - 1) / lines + 1);
}

/* Answers about the lines of a lane that were walked. */
static void jobq__memory_stretch(jobq_claimed *c, const jobq_lane *lane, const jobq_low *low,
                                 int64_t to, bool whole)
{
    jobq_stretch *s = &c->stretches[c->stretch_count];

    if (low->id == 0 || lane->low_id == 0 || c->stretch_count == JOBQ_STRETCHES_MAX) return;
    c->stretch_count++;
    s->queue = lane->queue;
    s->priority = lane->priority;
    s->stage = lane->stage;
    s->whole = whole;
    s->to = to;
    s->low_at_us = low->at_us;
    s->low_id = low->id;
}

/* Like jobq._claim_walk: once round the lines of a lane. */
static jobq_error jobq__memory_claim_walk(jobq_memory *m, const jobq_request *r,
                                          const jobq_lane *lane, uint64_t kinds, int64_t now_us,
                                          jobq_claimed *c)
{
    jobq_walk *walk = jobq__memory_walk_of(c, lane);
    int64_t from = walk->after, at = from, line;
    int32_t quantum = jobq__memory_quantum(m, r, lane, r->limit - c->count, now_us);
    bool round = false, more = false;
    jobq_low low = {0, 0, false};

    while (c->count < r->limit && jobq__memory_held(m, lane->queue, now_us) == 0) {
        jobq_error error;
        line = jobq__memory_next_line(m, lane, at, now_us, &low);
        if (line == 0 && !round) {
            round = true;
            at = INT64_MIN;
            continue;
        }
        if (line == 0 || (round && line > from)) {
            if (more) walk->due_us = 1;
            jobq__memory_stretch(c, lane, &low, walk->after, true);
            return JOBQ_OK;
        }
        error = jobq__memory_visit(m, r, lane, line, quantum, kinds, now_us, c, walk, &more);
        if (error != JOBQ_OK) return error;
        at = line;
    }
    jobq__memory_stretch(c, lane, &low, walk->after, false);
    return JOBQ_OK;
}

/* A job that is due goes from its lane into its line. */
static void jobq__memory_line_up(jobq_memory *m, jobq_memory_job *mj, int64_t now_us)
{
    mj->job.line = mj->line;
    mj->job.run_at_us = now_us;
    jobq__memory_lines(m, mj->job.queue);
}

/* Like jobq._line_up: all jobs of some lanes that are due go into their lines. Returns the bits of
 * their queues. */
static uint64_t jobq__memory_lines_up(jobq_memory *m, const jobq_request *r, int32_t from,
                                      int32_t to, int64_t now_us)
{
    uint64_t queues = 0;
    int32_t i, n;

    for (i = 0; i < m->job_count; i++) {
        jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        if (mj->line == 0 || mj->job.state != JOBQ_STATE_READY) continue;
        for (n = from; n < to && mj->job.line == 0; n++) {
            jobq_lane lane = r->lanes[n];
            lane.after_at_us = INT64_MIN;
            if (!jobq__memory_eligible(&mj->job, &lane, UINT64_MAX, false, false, now_us)) continue;
            jobq__memory_line_up(m, mj, now_us);
            queues |= (uint64_t)1 << (mj->job.queue & 63);
        }
    }
    return queues;
}

/* Like jobq._claim_lanes: lanes, or suspects, without lines. *moved: bits of queues of which jobs
 * were moved into their lines. */
static jobq_error jobq__memory_claim_lanes(jobq_memory *m, const jobq_request *r, int32_t from,
                                           int32_t to, uint64_t kinds, int64_t now_us,
                                           jobq_claimed *c, uint64_t *moved)
{
    int32_t had = c->count, most = (r->suspects ? 1 : r->limit) - had, round, met, i;
    bool lined = true, late = false;

    for (round = 0; round < 4 && (lined || late) && c->count == had; round++) {
        for (lined = late = false, met = 0; met < most; met++) {
            jobq_memory_job *mj;
            jobq_error error;
            i = jobq__memory_first(m, r, from, to, kinds, now_us);
            if (i < 0) break;
            mj = &jobq__memory_jobs(m)[i];
            if (jobq__memory_ends(m, mj, now_us, c)) {
                late = !r->suspects;
                continue;
            }
            if (mj->line != 0 && !mj->job.suspect) {
                lined = true;
                *moved |= (uint64_t)1 << (mj->job.queue & 63);
                jobq__memory_line_up(m, mj, now_us);
                continue;
            }
            if (mj->line != 0 && !jobq__memory_suspect_counts(m, mj, now_us)) break;
            error = jobq__memory_claim_one(m, r, i, now_us, c);
            if (error != JOBQ_OK) return error;
        }
        if (late) jobq__memory_ends_front(m, r, from, to, kinds, now_us, c);
        if (lined) *moved |= jobq__memory_lines_up(m, r, from, to, now_us);
    }
    return JOBQ_OK;
}

/* Like jobq.claim. kinds: bit i: jobs of kind i may be taken. */
static jobq_error jobq__memory_claim_jobs(jobq_memory *m, const jobq_request *r, uint64_t kinds,
                                          int64_t now_us, jobq_claimed *c)
{
    const jobq_memory_worker *w = jobq__memory_worker_of(m, r->worker);
    jobq_error error = JOBQ_OK;
    uint64_t moved = 0;
    int32_t from, to, i;

    if (r->worker == 0 || w == NULL || w->dead) return JOBQ_ERROR_DEAD;
    for (from = 0; from < r->lane_count && c->count < r->limit && error == JOBQ_OK; from = to) {
        const jobq_lane *lane = &r->lanes[from];
        for (to = from + 1; to < r->lane_count && !lane->lined && !r->lanes[to].lined;) to++;
        error = lane->lined ? jobq__memory_claim_walk(m, r, lane, kinds, now_us, c)
                            : jobq__memory_claim_lanes(m, r, from, to, kinds, now_us, c, &moved);
    }
    for (i = 0; i < c->walk_count && c->count < r->limit; i++) { /* they may stand in a lane that
                                                                    was walked before */
        if ((moved >> (c->walks[i].queue & 63) & 1) != 0) c->walks[i].due_us = 1;
    }
    return error;
}

/* Recovers a claim whose answer was lost: gives the jobs that still have its token back, up to
 * limit, and then burns its number. Returns whether there are more. */
static bool jobq__memory_recover(jobq_memory *m, int64_t worker, int64_t number, int32_t limit,
                                   int64_t now_us)
{
    jobq_memory_claim *c;
    jobq_event event;
    int32_t i;

    JOBQ_ASSERT(m != NULL);
    c = jobq__memory_claim_of(m, worker, number);
    if (c == NULL) {
        jobq__memory_note(m, worker, number, now_us); /* burned */
        return false;
    }
    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_RELEASE;
    for (i = 0; i < m->job_count; i++) {
        if (!jobq_job_holds(&jobq__memory_jobs(m)[i].job, worker, number)) continue;
        if (limit-- <= 0) return true;
        jobq__memory_happens(m, &jobq__memory_jobs(m)[i], &event, now_us);
    }
    c->burned_at_us = now_us; /* from now on it holds nothing */
    return false;
}

/* Makes a ready job failed without running it. False: there is no such job, or it is not ready. */
static bool jobq__memory_set_aside(jobq_memory *m, int64_t id, int64_t now_us)
{
    jobq_memory_job *mj = jobq_memory_get(m, id);
    jobq_decision d;

    if (mj == NULL || mj->job.state != JOBQ_STATE_READY) return false;
    d = jobq__end(&mj->job, JOBQ_STATE_FAILED);
    jobq__memory_apply(mj, &d, now_us);
    jobq__memory_promote(m, &mj->job, now_us);
    return true;
}

/* Whether a living worker has a handler for this kind. */
static bool jobq__memory_lives(const jobq_memory *m, int32_t kind, int64_t now_us)
{
    int32_t i;

    for (i = 0; i < m->worker_max; i++) {
        const jobq_memory_worker *w = &jobq__memory_workers(m)[i];
        if (w->id == 0 || w->dead || w->expires_at_us < now_us) continue;
        if ((w->kinds >> kind & 1) != 0) return true;
    }
    return false;
}

/* Writes a decision under its token: JOBQ_OK or JOBQ_ERROR_LOST. A job that is to be parked is
 * ready instead if a living worker has its kind. *promoted, unless it is NULL, becomes true if this
 * made others ready. */
static jobq_error jobq__memory_settle(jobq_memory *m, int64_t id, int64_t worker, int64_t claim,
                                      const jobq_decision *decision, int64_t now_us,
                                      bool *promoted)
{
    jobq_memory_job *mj = jobq_memory_get(m, id);
    jobq_decision d;

    JOBQ_ASSERT(decision != NULL);
    if (mj == NULL || !jobq_job_holds(&mj->job, worker, claim)) return JOBQ_ERROR_LOST;
    d = *decision;
    if (d.delay_us == JOBQ_NEVER && jobq__memory_lives(m, mj->job.kind, now_us)) d.delay_us = 0;
    if (d.state == JOBQ_STATE_READY && mj->job.cancel_requested) { /* law (7): requested since */
        d = jobq__end(&mj->job, JOBQ_STATE_CANCELLED);
    }
    if (mj->expires_at_us != 0 && d.delay_us != JOBQ_NEVER) /* it sleeps no longer than that */
        d.delay_us = jobq__max(jobq__min(d.delay_us, mj->expires_at_us - now_us), 0);
    jobq__memory_apply(mj, &d, now_us);
    if (decision->delay_us == JOBQ_NEVER) mj->job.line = 0; /* it waits in its lane */
    if (jobq__memory_promote(m, &mj->job, now_us) && promoted != NULL) *promoted = true;
    return JOBQ_OK;
}

static bool jobq__memory_heartbeat(jobq_memory *m, int64_t worker, const int64_t *settled,
                                     int32_t count, int64_t now_us)
{
    jobq_memory_worker *w;
    int32_t i;

    JOBQ_ASSERT(m != NULL);
    w = jobq__memory_worker_of(m, worker);
    if (worker == 0 || w == NULL || w->dead) return false;
    w->beat++;
    w->rest_us = 0;
    w->expires_at_us = now_us + w->lease_us;
    for (i = 0; i < count; i++) {
        jobq_memory_claim *c = jobq__memory_claim_of(m, worker, settled[i]);
        if (c != NULL) memset(c, 0, sizeof *c);
    }
    return true;
}

static void jobq__memory_die(jobq_memory_worker *w, int64_t now_us)
{
    if (!w->dead) w->dead_at_us = now_us;
    w->dead = true;
    w->asleep = false;
}

/* Gives the jobs of a dead worker's claim back and deletes the claim. Returns how many became
 * ready. */
static int32_t jobq__memory_take_back(jobq_memory *m, jobq_memory_claim *c, int64_t now_us)
{
    int32_t rescued = 0, i;

    for (i = 0; i < m->job_count; i++) {
        jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        if (!jobq_job_holds(&mj->job, c->worker, c->number)) continue;
        jobq__memory_plain(m, mj, JOBQ_EVENT_CRASH, now_us);
        if (mj->job.state == JOBQ_STATE_READY) rescued++;
    }
    memset(c, 0, sizeof *c);
    return rescued;
}

/* The claim of a worker with the smallest number that is not burned; NULL: none. */
static jobq_memory_claim *jobq__memory_oldest(const jobq_memory *m, int64_t worker)
{
    jobq_memory_claim *first = NULL;
    int32_t i;

    for (i = 0; i < m->claim_max; i++) {
        jobq_memory_claim *c = &jobq__memory_claims(m)[i];
        if (c->worker != worker || c->burned_at_us != 0) continue;
        if (first == NULL || c->number < first->number) first = c;
    }
    return first;
}

/* Takes the jobs of up to limit claims of a worker that is dead, or is declared dead now: its lease
 * is over and its beat unchanged. Returns whether it is dead. *more: it has claims left. limit 0:
 * as if another rescuer had them all locked. */
static bool jobq__memory_rescue(jobq_memory *m, int64_t victim, int64_t beat, int32_t limit,
                                  int64_t now_us, int32_t *rescued, bool *more)
{
    jobq_memory_claim *c;
    jobq_memory_worker *w;

    JOBQ_ASSERT(m != NULL && rescued != NULL && more != NULL && limit >= 0);
    *rescued = 0;
    *more = false;
    w = jobq__memory_worker_of(m, victim);
    if (victim == 0) return true;
    if (w != NULL && !w->dead && (w->beat != beat || !jobq__memory_lapsed(w, now_us))) return false;
    if (w != NULL) jobq__memory_die(w, now_us);
    while ((c = jobq__memory_oldest(m, victim)) != NULL && limit-- > 0) {
        *rescued += jobq__memory_take_back(m, c, now_us);
    }
    *more = c != NULL;
    return true;
}

JOBQ_API jobq_error jobq_memory_event(jobq_memory *m, int64_t id, jobq_event_kind kind,
                                      int64_t now_us)
{
    jobq_memory_job *mj = jobq_memory_get(m, id);

    JOBQ_ASSERT(kind == JOBQ_EVENT_CANCEL || kind == JOBQ_EVENT_REVIVE ||
                kind == JOBQ_EVENT_WAIT);
    return mj == NULL ? JOBQ_ERROR_NOT_FOUND : jobq__memory_plain(m, mj, kind, now_us);
}

/* ---- >>memory_edges: what jobs wait for, and what else a loop asks --------------------------- */

/* The row of an edge, or a free one; NULL: no room. */
static jobq_memory_edge *jobq__memory_edge_of(jobq_memory *m, int64_t child, int64_t parent)
{
    jobq_memory_edge *room = NULL;
    int32_t i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        jobq_memory_edge *e = &m->edges[i];
        if (e->child == child && e->parent == parent) return e;
        if (e->child == 0 && room == NULL) room = e;
    }
    return room;
}

/* Writes that a job waits for another one. */
static void jobq__memory_link(jobq_memory *m, jobq_memory_edge *e, int64_t child, int64_t parent,
                              jobq_on_end on_end, bool cascade)
{
    jobq_state state = jobq_memory_get(m, parent)->job.state;

    e->child = (int32_t)child;
    e->parent = (int32_t)parent;
    e->on_end = on_end;
    e->cascade = cascade;
    e->ended = jobq_state_final(state);
    e->holds = !e->ended || !jobq__end_serves(on_end, state);
}

/* Makes a job that no worker has claimed yet wait for an earlier one, too. cascade: an end that is
 * not wanted cancels it; otherwise it waits on, and a revive of the parent continues. False: there
 * is no room. */
JOBQ__SPARE
static bool jobq__memory_after(jobq_memory *m, int64_t child, int64_t parent, jobq_on_end on_end,
                               bool cascade, int64_t now_us)
{
    jobq_memory_job *mj = jobq_memory_get(m, child);
    jobq_memory_edge *e;

    JOBQ_ASSERT(mj != NULL && parent >= 1 && parent < child);
    JOBQ_ASSERT(mj->job.state != JOBQ_STATE_RUNNING && !jobq_state_final(mj->job.state));
    e = jobq__memory_edge_of(m, child, parent);
    if (e == NULL || e->child != 0) return e != NULL; /* it was written before */
    jobq__memory_link(m, e, child, parent, on_end, cascade);
    if (!e->holds) return true;
    mj->job.state = JOBQ_STATE_WAITING;
    mj->job.line = 0;
    jobq__memory_waits(m, mj, now_us);
    jobq__memory_promote(m, &mj->job, now_us);
    return true;
}

/* Whether any job of these queues (bit i: queue i) has not ended, or any message of message_queues
 * is not acknowledged. */
static bool jobq__memory_remains(const jobq_memory *m, uint64_t queues, uint64_t message_queues)
{
    int32_t i;

    JOBQ_ASSERT(m != NULL);
    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (!jobq_state_final(job->state) && (queues >> job->queue & 1) != 0) return true;
    }
    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) {
        const jobq_memory_message *message = &m->messages[i];
        const jobq_memory_partition *p;
        if (message->partition_id == 0) continue;
        p = &m->partitions[message->partition_id - 1];
        if ((message_queues >> p->queue & 1) == 0) continue;
        if (message->seq == 0 || message->seq > p->cursor.acked) return true;
    }
    return false;
}

/* Makes the parked jobs of a kind due now; returns how many. */
static int32_t jobq__memory_unpark(jobq_memory *m, int32_t kind, int64_t now_us)
{
    int32_t count = 0, i;

    JOBQ_ASSERT(m != NULL);
    for (i = 0; i < m->job_count; i++) {
        jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (job->kind != kind || job->state != JOBQ_STATE_READY || job->run_at_us != JOBQ_NEVER) {
            continue;
        }
        job->run_at_us = now_us;
        count++;
    }
    return count;
}

/* A worker stops. What it still holds is left to a rescuer. */
static void jobq__memory_deregister(jobq_memory *m, int64_t worker, int64_t now_us)
{
    jobq_memory_worker *w;
    bool left;

    JOBQ_ASSERT(m != NULL && worker != 0);
    w = jobq__memory_worker_of(m, worker);
    left = jobq__memory_forget(m, worker, false);
    if (w != NULL && left) jobq__memory_die(w, now_us);
    if (w != NULL && !left) memset(w, 0, sizeof *w);
}

/* Deletes workers dead for a day, and numbers burned a day ago. */
static void jobq__memory_prune(jobq_memory *m, int64_t now_us)
{
    int32_t i;

    JOBQ_ASSERT(m != NULL);
    for (i = 0; i < m->worker_max; i++) {
        jobq_memory_worker *w = &jobq__memory_workers(m)[i];
        if (!w->dead || w->dead_at_us >= now_us - JOBQ__DAY) continue;
        if (jobq__memory_left(m, w->id)) continue;
        memset(w, 0, sizeof *w);
    }
    for (i = 0; i < m->claim_max; i++) {
        jobq_memory_claim *c = &jobq__memory_claims(m)[i];
        if (c->burned_at_us == 0 || c->burned_at_us >= now_us - JOBQ__DAY) continue;
        if (jobq__memory_worker_of(m, c->worker) == NULL) memset(c, 0, sizeof *c);
    }
}

/* ---- >>memory_outbox ------------------------------------------------------------------------- */

/* Gives a queue this many partitions. Returns the id of the first (ids count up from 1), or 0 if
 * there is no room. */
JOBQ__SPARE
static int32_t jobq__memory_outbox(jobq_memory *m, int32_t queue, int32_t partitions)
{
    int32_t first = 0, i;

    JOBQ_ASSERT(m != NULL && queue >= 1 && partitions >= 1);
    while (first < JOBQ_MEMORY_PARTITIONS && m->partitions[first].queue != 0) first++;
    if (first + partitions > JOBQ_MEMORY_PARTITIONS) return 0;
    for (i = 0; i < partitions; i++) {
        m->partitions[first + i].queue = queue;
        m->partitions[first + i].number = i;
    }
    return first + 1;
}

static jobq_memory_partition *jobq__memory_partition_of(jobq_memory *m, int64_t id)
{
    JOBQ_ASSERT(m != NULL && id >= 1 && id <= JOBQ_MEMORY_PARTITIONS);
    return &m->partitions[id - 1];
}

/* Adds a message, without a seq yet, to a partition of a queue. False: no room or no such
 * partition. */
JOBQ__SPARE
static bool jobq__memory_send(jobq_memory *m, int32_t queue, int32_t number, jobq_str payload)
{
    int32_t id = 1, i;

    JOBQ_ASSERT(m != NULL && queue >= 1);
    for (; id <= JOBQ_MEMORY_PARTITIONS; id++) {
        if (m->partitions[id - 1].queue == queue && m->partitions[id - 1].number == number) break;
    }
    for (i = 0; i < JOBQ_MEMORY_MESSAGES && m->messages[i].partition_id != 0;) i++;
    if (id > JOBQ_MEMORY_PARTITIONS || i == JOBQ_MEMORY_MESSAGES) return false;
    m->messages[i].partition_id = id;
    m->messages[i].payload = payload;
    return true;
}

/* The message with this seq in the partition with this id; NULL: none. */
static jobq_memory_message *jobq__memory_message_at(jobq_memory *m, int64_t partition_id,
                                                     int64_t seq)
{
    int32_t i;

    JOBQ_ASSERT(m != NULL);
    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) {
        if (m->messages[i].partition_id == partition_id && m->messages[i].seq == seq) {
            return &m->messages[i];
        }
    }
    return NULL;
}

/* The first message of a partition that has no seq yet; NULL: none. */
static jobq_memory_message *jobq__memory_unread(const jobq_memory *m, int64_t partition_id)
{
    int32_t i;

    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) {
        const jobq_memory_message *message = &m->messages[i];
        if (message->partition_id == partition_id && message->seq == 0) {
            return (jobq_memory_message *)(uintptr_t)message;
        }
    }
    return NULL;
}

/* What a look at a partition answers. False: there is nothing to read. */
static bool jobq__memory_backlog(const jobq_memory *m, int64_t partition_id, int64_t now_us,
                                 jobq_backlog *b)
{
    const jobq_memory_partition *p;

    JOBQ_ASSERT(m != NULL && b != NULL);
    JOBQ_ASSERT(partition_id >= 1 && partition_id <= JOBQ_MEMORY_PARTITIONS);
    p = &m->partitions[partition_id - 1];
    memset(b, 0, sizeof *b);
    if (p->queue == 0) return false;
    b->id = partition_id;
    b->queue = p->queue;
    b->number = p->number;
    b->acked = p->cursor.acked;
    b->waiting = p->last > p->cursor.acked || jobq__memory_unread(m, partition_id) != NULL;
    b->due_us = jobq__memory_wait(p->beat_at_us, p->run_at_us, now_us);
    b->holder = p->holder;
    return b->waiting > 0;
}

static bool jobq__memory_holder(const jobq_memory_partition *p, int64_t worker, int64_t claim)
{
    return p->holder.worker == worker && p->holder.claim == claim;
}

/* The request's worker holds the partition, or holds it longer. */
static void jobq__memory_hold(jobq_memory_partition *p, const jobq_request *r, int64_t now_us)
{
    p->holder.beat = jobq__memory_holder(p, r->worker, r->claim) ? p->holder.beat + 1 : 0;
    p->holder.worker = r->worker;
    p->holder.claim = r->claim;
    p->holder.lease_us = r->lease_us;
    p->lease_until_us = now_us + r->lease_us;
    p->beat_at_us = now_us;
}

static void jobq__memory_give_up(jobq_memory_partition *p)
{
    memset(&p->holder, 0, sizeof p->holder);
    p->lease_until_us = 0;
    p->reading = 0;
}

/* Numbers messages, if all numbered ones are acknowledged. Returns whether there is one to read. */
static bool jobq__memory_number(jobq_memory *m, int64_t partition_id, int32_t limit)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, partition_id);
    jobq_memory_message *message;
    int64_t end = p->last + jobq__max(limit, JOBQ_LOOP_BATCH);

    if (p->last > p->cursor.acked) return true;
    while (p->last < end && (message = jobq__memory_unread(m, partition_id)) != NULL) {
        message->seq = ++p->last;
    }
    return p->last > p->cursor.acked;
}

/* Reads messages and records the delivery in the cursor. */
static void jobq__memory_deliver(jobq_memory *m, const jobq_request *r, jobq_reading *out)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, r->partition_id);
    int32_t size = jobq__cursor_size(&p->cursor, r->limit, out->lost);
    int64_t seq = p->cursor.acked, bytes = r->bytes;

    while (out->count < size && seq < p->last && !out->cut) {
        bytes -= (int64_t)jobq__memory_message_at(m, r->partition_id, ++seq)->payload.len;
        out->cut = bytes < 0 && out->count > 0;
        out->count += !out->cut;
    }
    p->reading = p->cursor.acked + out->count;
    jobq__cursor_deliver(&p->cursor, p->reading);
}

/* Whether the row may be taken. out->lost: the last seq of the delivery that its holder did not
 * survive. */
static bool jobq__memory_takes(jobq_memory_partition *p, const jobq_request *r, int64_t now_us,
                               jobq_reading *out)
{
    if (p->holder.worker == 0) return true;
    if (p->holder.worker == r->worker) {
        out->busy = p->holder.claim > r->claim; /* this token is older */
        if (out->busy) return false;
        if (p->holder.claim == r->handed) out->lost = p->reading;
        else jobq__cursor_undo(&p->cursor, p->reading);
        return true;
    }
    if (!jobq__memory_holder(p, r->watched.worker, r->watched.claim) ||
        p->holder.beat != r->watched.beat ||
        jobq__memory_wait(p->beat_at_us, p->lease_until_us + 1, now_us) > 0) {
        out->holder = p->holder;
        return false;
    }
    out->lost = p->reading;
    return true;
}

/* Takes a partition that has messages. If its holder died, the mode becomes one message at a
 * time. out: all zero. */
static bool jobq__memory_take(jobq_memory *m, const jobq_request *r, int64_t now_us,
                              jobq_reading *out)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, r->partition_id);

    if (p->holder.worker == 0) {
        out->due_us = jobq__memory_wait(p->beat_at_us, p->run_at_us, now_us);
        if (out->due_us > 0) return false;
    }
    if (!jobq__memory_takes(p, r, now_us, out)) return false;
    if (out->lost > 0) {
        p->cursor.mode.state = JOBQ_PARTITION_DEGRADED;
        p->cursor.mode.effective = 1;
        p->cursor.mode.successes = 0;
    }
    out->cursor = p->cursor;
    if (jobq__memory_number(m, r->partition_id, r->aside ? 1 : r->limit)) return true;
    jobq__memory_give_up(p);
    return false;
}

/* Takes a partition, or takes it over, and reads messages. Those that have a seq come first. If
 * there are none, the next ones get theirs, in the order in which they were sent: up to
 * JOBQ_LOOP_BATCH, or limit if that is more. Writes nothing if there is nothing to read. */
static void jobq__memory_read(jobq_memory *m, const jobq_request *r, int64_t now_us,
                              jobq_reading *out)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, r->partition_id);

    if (!jobq__memory_take(m, r, now_us, out)) return;
    jobq__memory_hold(p, r, now_us);
    p->run_at_us = 0;
    jobq__memory_deliver(m, r, out);
}

/* Removes messages that are done; dead letters stay. The others move up, because messages are
 * stored in the order of sending and numbered in the order of storage. */
static void jobq__memory_leave(jobq_memory *m, int64_t partition_id)
{
    int64_t acked = m->partitions[partition_id - 1].cursor.acked;
    int32_t kept = 0, i;

    for (i = 0; i < JOBQ_MEMORY_MESSAGES && m->messages[i].partition_id != 0; i++) {
        const jobq_memory_message *one = &m->messages[i];
        bool done = one->partition_id == partition_id && one->seq > 0 && one->seq <= acked;
        if (done && !one->dead) continue;
        if (kept < i) memcpy(&m->messages[kept], one, sizeof *one);
        kept++;
    }
    memset(&m->messages[kept], 0, (size_t)(i - kept) * sizeof m->messages[0]);
}

/* Takes a partition as jobq__memory_read does, makes its next message a dead letter unread, and
 * gives the partition up. Does nothing if acked is no longer the last acknowledged seq: another
 * worker may have set the message aside. */
static void jobq__memory_aside(jobq_memory *m, const jobq_request *r, int64_t now_us,
                               jobq_reading *out)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, r->partition_id);
    jobq_memory_message *message;

    if (p->cursor.acked != r->acked || !jobq__memory_take(m, r, now_us, out)) return;
    message = jobq__memory_message_at(m, r->partition_id, p->cursor.acked + 1);
    message->dead = true;
    message->attempts = jobq_cursor_attempts(&p->cursor, message->seq);
    jobq__plan_tried(&p->cursor, 0, 1);
    jobq__memory_give_up(p);
    p->run_at_us = 0;
    out->aside = true;
}

static void jobq__memory_bury(jobq_memory *m, const jobq_request *r, const jobq_cursor *before)
{
    const jobq_ack *ack = &r->ack;
    int32_t i;

    for (i = 0; i < ack->plan.done; i++) {
        int64_t seq = before->acked + 1 + i;
        jobq_memory_message *message = jobq__memory_message_at(m, r->partition_id, seq);
        if (ack->results[i] == JOBQ_RESULT_SUCCESS) continue;
        message->dead = true; /* the cursor counts this delivery for all */
        message->attempts = jobq_cursor_attempts(before, seq) - (i >= ack->given);
    }
}

/* Writes a plan under its token and reads on up to limit messages, as jobq__memory_read does. If
 * limit is 0, or none are left, gives the partition up. Messages that are done leave the store;
 * dead letters stay. Returns JOBQ_OK or JOBQ_ERROR_LOST. */
static jobq_error jobq__memory_ack(jobq_memory *m, const jobq_request *r, int64_t now_us,
                                   jobq_reading *out)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, r->partition_id);
    const jobq_plan *plan = &r->ack.plan;

    if (!jobq__memory_holder(p, r->worker, r->claim) || p->cursor.acked != r->ack.before) {
        return JOBQ_ERROR_LOST;
    }
    jobq__memory_bury(m, r, &p->cursor);
    p->cursor = plan->cursor;
    jobq__memory_leave(m, r->partition_id);
    if (r->limit > 0 && jobq__memory_number(m, r->partition_id, r->limit)) {
        jobq__memory_hold(p, r, now_us);
        jobq__memory_deliver(m, r, out);
        return JOBQ_OK;
    }
    jobq__memory_give_up(p);
    if (plan->directive.kind == JOBQ_DIRECTIVE_SLEEP) {
        p->run_at_us = jobq__add(now_us, plan->directive.delay_us);
        p->beat_at_us = now_us;
    }
    return JOBQ_OK;
}

/* JOBQ_OK, or JOBQ_ERROR_LOST if the token is no longer in the row. */
static jobq_error jobq__memory_renew(jobq_memory *m, const jobq_request *r, int64_t now_us)
{
    jobq_memory_partition *p = jobq__memory_partition_of(m, r->partition_id);

    if (!jobq__memory_holder(p, r->worker, r->claim)) return JOBQ_ERROR_LOST;
    jobq__memory_hold(p, r, now_us);
    return JOBQ_OK;
}

/* ---- >>memory_wire: the statements of a loop, and running handlers --------------------------- */

/* The queues, of these, that have a ready suspect of these kinds. alone: one that must run
 * alone. */
static uint64_t jobq__memory_suspects(const jobq_memory *m, uint64_t queues, uint64_t kinds,
                                      bool alone, int64_t now_us)
{
    uint64_t found = 0;
    int32_t i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        const jobq_job *job = &mj->job;
        if (job->state == JOBQ_STATE_READY && job->suspect && job->alone == alone &&
            job->run_at_us <= now_us && (kinds >> job->kind & 1) != 0 &&
            jobq__memory_suspect_goes(m, mj, now_us)) {
            found |= (uint64_t)1 << job->queue;
        }
    }
    return found & queues;
}

/* The kinds that a worker's claims may take. *every: all kinds; its own are returned then. Paused
 * kinds, and kinds that only other living workers have, are left out. */
static uint64_t jobq__memory_kinds(const jobq_memory *m, const jobq_memory_worker *me,
                                   int64_t now_us, bool *every)
{
    uint64_t out = 0;
    int32_t i;

    for (i = 0; i < m->worker_max; i++) {
        const jobq_memory_worker *w = &jobq__memory_workers(m)[i];
        if (w->id == 0 || w->dead || w->expires_at_us < now_us) continue;
        if ((w->queues & me->queues) != 0) out |= w->kinds & ~me->kinds;
    }
    out |= m->paused_kinds;
    *every = out == 0;
    return *every ? me->kinds : ~out;
}

/* Whether a job of this lane is ready but not due yet. */
static bool jobq__memory_scheduled(const jobq_job *job, const jobq_lane *lane, uint64_t kinds,
                                   int64_t now_us)
{
    return !job->suspect && job->run_at_us > now_us && job->run_at_us != JOBQ_NEVER &&
           job->queue == lane->queue && job->priority == lane->priority &&
           job->stage == lane->stage && (kinds >> job->kind & 1) != 0;
}

/* After an empty claim of these lanes: whether their queues have a ready suspect, and one that must
 * run alone. Returns the microseconds until their next job; -1: none. */
static int64_t jobq__memory_look(const jobq_memory *m, const jobq_request *r, uint64_t kinds,
                                 int64_t now_us, bool *suspects, bool *alone)
{
    int64_t due = JOBQ_NEVER;
    uint64_t queues = 0;
    int32_t i, n;

    for (n = 0; n < r->lane_count; n++) queues |= (uint64_t)1 << r->lanes[n].queue;
    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (job->state != JOBQ_STATE_READY) continue;
        for (n = 0; n < r->lane_count; n++) {
            if (jobq__memory_scheduled(job, &r->lanes[n], kinds, now_us)) {
                due = jobq__min(due, job->run_at_us);
            }
        }
    }
    *suspects = jobq__memory_suspects(m, queues, kinds, false, now_us) != 0;
    *alone = jobq__memory_suspects(m, queues, kinds, true, now_us) != 0;
    return due == JOBQ_NEVER ? -1 : due - now_us;
}

/* Like jobq._sleep: a dead worker does not sleep. */
static void jobq__memory_sleep(jobq_memory *m, int64_t worker, bool asleep)
{
    jobq_memory_worker *w = jobq__memory_worker_of(m, worker);

    if (w != NULL && !(asleep && w->dead)) w->asleep = asleep;
}

static void jobq__memory_do_register(jobq_memory *m, const jobq_request *r, uint64_t queues,
                                     uint64_t kinds, int64_t now_us, jobq_answer *a)
{
    int32_t id;

    a->error = jobq__memory_register(m, r->worker, r->lease_us, queues, kinds, now_us);
    for (id = 1; id < 64; id++) {
        bool kind = (kinds >> id & 1) != 0 && a->kind_count < JOBQ_LOOP_KINDS;
        bool queue = (queues >> id & 1) != 0 && a->count < JOBQ_LOOP_QUEUES;
        if (kind) a->kinds[a->kind_count++] = id;
        if (queue) a->queues[a->count++] = id;
    }
}

static void jobq__memory_do_policies(const jobq_memory *m, const jobq_request *r, int64_t now_us,
                                     jobq_answer *a)
{
    const jobq_memory_worker *me = jobq__memory_worker_of(m, r->worker);
    int32_t kind;

    for (; a->count < r->queue_count; a->count++) {
        int32_t queue = r->queues[a->count];
        jobq_queue_policy *q = &a->policies[a->count];
        q->policy = *jobq__memory_policy_of(m, queue);
        q->stages_max = m->stages_max;
        q->priority_min = m->priority_min;
        q->paused = (m->paused >> queue & 1) != 0;
        q->hold_us = jobq__memory_held(m, queue, now_us);
        q->lines = (m->lines >> queue & 1) != 0;
        q->ageing = (m->ageing >> queue & 1) != 0;
    }
    for (kind = 1; kind <= JOBQ_MEMORY_KINDS && a->kind_policy_count < JOBQ_LOOP_KINDS; kind++) {
        jobq_kind_policy *own = &a->kind_policies[a->kind_policy_count];
        if (me == NULL || (me->kinds & m->own_policies & (uint64_t)1 << kind) == 0) continue;
        own->kind = kind;
        own->policy = m->kind_policies[kind - 1];
        a->kind_policy_count++;
    }
}

/* Ids as bits. */
static uint64_t jobq__memory_bits(const int32_t *ids, int32_t count)
{
    uint64_t bits = 0;

    while (count > 0) bits |= (uint64_t)1 << ids[--count];
    return bits;
}

static void jobq__memory_do_claim(jobq_memory *m, const jobq_request *r, int64_t now_us,
                                  jobq_answer *a)
{
    uint64_t kinds = r->every_kind ? UINT64_MAX : jobq__memory_bits(r->kinds, r->kind_count);
    jobq_claimed *c = &a->claimed;
    int32_t first = -1;

    if (r->bytes == 0) {
        do {
            first = jobq__memory_first(m, r, 0, r->lane_count, kinds, now_us);
        } while (first >= 0 && jobq__memory_ends(m, &jobq__memory_jobs(m)[first], now_us, c));
    }
    if (first >= 0) {
        c->named = jobq__memory_jobs(m)[first].job.id;
        return;
    }
    a->error = jobq__memory_claim_jobs(m, r, kinds, now_us, c);
    if (!r->look || c->count > 0 || c->ended_count > 0) return;
    c->due_us = jobq__memory_look(m, r, kinds, now_us, &c->suspects, &c->alone);
}

static void jobq__memory_do_flush(jobq_memory *m, const jobq_request *r, int64_t now_us,
                                  jobq_answer *a)
{
    int32_t i;

    for (i = 0; i < r->ending_count; i++) {
        const jobq_ending *e = &r->endings[i];
        jobq_exception *x = &a->exceptions[a->count];
        x->error = jobq__memory_settle(m, e->job, e->worker, e->claim, &e->decision, now_us,
                                       &a->more);
        if (x->error == JOBQ_OK) continue;
        x->job = e->job;
        x->worker = e->worker;
        x->claim = e->claim;
        a->count++;
    }
}

/* Whether a worker is dead or its lease is over, and it still has jobs. */
static bool jobq__memory_overdue(const jobq_memory *m, const jobq_memory_worker *w, int64_t now_us)
{
    return (w->dead || jobq__memory_lapsed(w, now_us)) && jobq__memory_left(m, w->id);
}

/* The news about other workers: those that are late, and dead ones with jobs left. */
static void jobq__memory_others(const jobq_memory *m, const jobq_memory_worker *me, int64_t now_us,
                                jobq_news *n)
{
    int32_t i;

    for (i = 0; i < m->worker_max; i++) {
        const jobq_memory_worker *w = &jobq__memory_workers(m)[i];
        bool late = w->expires_at_us < now_us + w->lease_us * 6 / 10 ||
                    jobq__memory_lapsed(w, now_us);
        jobq_holder *l = &n->late[n->late_count];
        if (w->id == 0 || w->id == me->id) continue;
        n->overdue += jobq__memory_overdue(m, w, now_us);
        n->others |= me->rest_us > 0 && jobq__memory_left(m, w->id);
        if (w->dead ? !jobq__memory_left(m, w->id) : !late) continue;
        if (n->late_count == JOBQ_LOOP_WATCHED) continue;
        l->worker = w->id;
        l->beat = w->dead ? -1 : w->beat;
        l->lease_us = w->lease_us;
        n->late_count++;
    }
}

/* The news about a worker's own jobs and kinds. */
static void jobq__memory_own(const jobq_memory *m, const jobq_memory_worker *me, jobq_news *n)
{
    int32_t i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (job->worker == me->id && job->cancel_requested && n->cancel_count < JOBQ_LOOP_SLOTS) {
            n->cancels[n->cancel_count++] = job->id;
        }
        if (job->run_at_us == JOBQ_NEVER && job->state == JOBQ_STATE_READY &&
            (me->kinds >> job->kind & 1) != 0) {
            n->parked_kind = job->kind;
        }
    }
}

static void jobq__memory_do_heartbeat(jobq_memory *m, const jobq_request *r, int64_t now_us,
                                      jobq_answer *a)
{
    jobq_news *n = &a->news;
    jobq_memory_worker *me;
    uint64_t kinds, taken, alone;
    int32_t i;

    n->store_now_us = now_us;
    n->alive = jobq__memory_heartbeat(m, r->worker, r->settled, r->settled_count, now_us);
    if (!n->alive) return;
    me = jobq__memory_worker_of(m, r->worker);
    me->rest_us = r->rest_us;
    me->expires_at_us += r->rest_us;
    jobq__memory_own(m, me, n);
    jobq__memory_others(m, me, now_us, n);
    n->policy = m->policy_version;
    kinds = jobq__memory_kinds(m, me, now_us, &n->every_kind);
    taken = n->every_kind ? UINT64_MAX : kinds;
    n->suspects = jobq__memory_suspects(m, me->queues, taken, false, now_us) != 0;
    alone = jobq__memory_suspects(m, me->queues, taken, true, now_us);
    for (i = 1; i < 64; i++) {
        bool room = n->kind_count < JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX;
        if ((kinds >> i & 1) != 0 && room) n->kinds[n->kind_count++] = i;
        if ((alone >> i & 1) != 0 && n->alone_count < JOBQ_LOOP_QUEUES) {
            n->alone[n->alone_count++] = i;
        }
    }
}

/* -- the statements about messages -- */

static void jobq__memory_do_look(const jobq_memory *m, const jobq_request *r, int64_t now_us,
                                 jobq_answer *a)
{
    uint64_t queues = jobq__memory_bits(r->message_queues, r->message_queue_count);
    int64_t id;

    for (id = r->id + 1; id <= JOBQ_MEMORY_PARTITIONS && a->count < r->limit; id++) {
        jobq_backlog *b = &a->backlogs[a->count];
        if (!jobq__memory_backlog(m, id, now_us, b) || (queues >> b->queue & 1) == 0) continue;
        a->count++;
    }
    a->more = id <= JOBQ_MEMORY_PARTITIONS;
}

static void jobq__memory_do_set_aside(jobq_memory *m, const jobq_request *r, int64_t now_us,
                                      jobq_answer *a)
{
    const jobq_memory_job *mj = jobq_memory_get(m, r->id);

    a->done = mj != NULL && (int64_t)mj->payload.len > r->bytes &&
              jobq__memory_set_aside(m, r->id, now_us);
}

/* Executes one statement. queues, kinds: what this worker serves (bits). now_us: the store's clock.
 * Requests that are not statements do nothing. */
static void jobq__memory_execute(jobq_memory *m, const jobq_request *r, uint64_t queues,
                                 uint64_t kinds, int64_t now_us, jobq_answer *a)
{
    JOBQ_ASSERT(m != NULL && r != NULL && a != NULL);
    jobq_answer_start(a, r);
    switch (r->kind) {
    case JOBQ_REQUEST_REGISTER: jobq__memory_do_register(m, r, queues, kinds, now_us, a); break;
    case JOBQ_REQUEST_POLICIES: jobq__memory_do_policies(m, r, now_us, a); break;
    case JOBQ_REQUEST_CLAIM: jobq__memory_do_claim(m, r, now_us, a); break;
    case JOBQ_REQUEST_RECOVER:
        a->more = jobq__memory_recover(m, r->worker, r->claim, r->limit, now_us);
        break;
    case JOBQ_REQUEST_COMPLETE:
    case JOBQ_REQUEST_SETTLE: jobq__memory_do_flush(m, r, now_us, a); break;
    case JOBQ_REQUEST_HEARTBEAT:
        jobq__memory_do_heartbeat(m, r, now_us, a);
        if (r->claim != 0) jobq__memory_do_claim(m, r, now_us, a);
        break;
    case JOBQ_REQUEST_RESCUE:
        a->done = jobq__memory_rescue(m, r->worker, r->beat, r->limit, now_us, &a->count, &a->more);
        break;
    case JOBQ_REQUEST_SLEEP: jobq__memory_sleep(m, r->worker, r->asleep); break;
    case JOBQ_REQUEST_REMAIN:
        a->more = jobq__memory_remains(m, jobq__memory_bits(r->queues, r->queue_count),
                                       jobq__memory_bits(r->message_queues,
                                                         r->message_queue_count));
        break;
    case JOBQ_REQUEST_UNPARK:
        a->count = jobq__memory_unpark(m, (int32_t)r->id, now_us);
        break;
    case JOBQ_REQUEST_DEREGISTER: jobq__memory_deregister(m, r->worker, now_us); break;
    case JOBQ_REQUEST_PRUNE: jobq__memory_prune(m, now_us); break;
    case JOBQ_REQUEST_LOOK: jobq__memory_do_look(m, r, now_us, a); break;
    case JOBQ_REQUEST_READ:
        if (r->aside) jobq__memory_aside(m, r, now_us, &a->reading);
        else jobq__memory_read(m, r, now_us, &a->reading);
        break;
    case JOBQ_REQUEST_ACK: a->error = jobq__memory_ack(m, r, now_us, &a->reading); break;
    case JOBQ_REQUEST_RENEW: a->error = jobq__memory_renew(m, r, now_us); break;
    case JOBQ_REQUEST_SET_ASIDE: jobq__memory_do_set_aside(m, r, now_us, a); break;
    case JOBQ_REQUEST_TICK: /* there are no schedules */
    case JOBQ_REQUEST_VACUUM:
    case JOBQ_REQUEST_CONNECT:
    case JOBQ_REQUEST_DISCONNECT:
    case JOBQ_REQUEST_ABANDON:
    case JOBQ_REQUEST_WAIT:
    case JOBQ_REQUEST_EXIT:
    case JOBQ_REQUEST_COUNT: break;
    }
}

/* Executes one statement and tells the loop the answer. CONNECT always works. */
static void jobq__memory_perform(jobq_memory *m, jobq_loop *l, const jobq_request *r,
                                 uint64_t queues, uint64_t kinds, int64_t mono_us, int64_t now_us)
{
    jobq_answer *answer = &jobq__memory_scratch_of(m)->answer;

    JOBQ_ASSERT(l != NULL && r != NULL);
    jobq__memory_execute(m, r, queues, kinds, now_us, answer);
    jobq_loop_tell(l, mono_us, answer);
}

/* -- running handlers -- */

/* Keeps the payload of the next stage (borrowed), used if this token finishes the stage. A lost
 * lease is reported by the flush. */
static bool jobq__memory_keep(jobq_call *call, jobq_str next, bool bytes)
{
    const jobq__memory_run *run = (const jobq__memory_run *)call->context;
    jobq_memory_job *mj = jobq_memory_get(run->memory, call->job.id);

    (void)bytes;
    if (mj != NULL && jobq_job_holds(&mj->job, call->job.worker, call->job.claim)) mj->next = next;
    return true;
}

/* Like jobq.hold_of_claim. */
static jobq_error jobq__memory_hold_back(jobq_memory *m, const jobq_call *call, jobq_hold what,
                                         int64_t now_us, int64_t delay_us)
{
    const jobq_memory_job *mj = jobq_memory_get(m, call->job.id);
    int64_t until_us = jobq__add(now_us, delay_us);
    jobq_memory_line_row *row;

    if (mj == NULL || !jobq_job_holds(&mj->job, call->job.worker, call->job.claim))
        return JOBQ_ERROR_LOST;
    if (what == JOBQ_HOLD_LINE) {
        if (mj->line == 0) return JOBQ_ERROR_INVALID;
        row = jobq__memory_line_add(m, mj->job.queue, mj->line, INT64_MIN);
        if (row == NULL) return JOBQ_ERROR_FULL;
        row->held_at_us = now_us;
        row->until_us = until_us;
        return JOBQ_OK;
    }
    m->held_at_us[call->job.queue & 63] = now_us;
    m->held_until_us[call->job.queue & 63] = until_us;
    m->policy_version++;
    return JOBQ_OK;
}

static jobq_error jobq__memory_call_hold(jobq_call *call, jobq_hold what, int64_t delay_us,
                                         const char *why)
{
    const jobq__memory_run *run = (const jobq__memory_run *)call->context;

    (void)why;
    return jobq__memory_hold_back(run->memory, call, what, run->now_us, delay_us);
}

static int jobq__memory_stopping(const jobq_call *call, int64_t *remaining_us)
{
    const jobq__memory_run *run = (const jobq__memory_run *)call->context;

    return (int)jobq_loop_stopping(run->loop, run->now_us, &run->work, remaining_us);
}

static const jobq_store jobq__memory_store = {jobq__memory_keep, jobq__memory_stopping,
                                               jobq__memory_call_hold, NULL, NULL, NULL, NULL,
                                               NULL};

/* The handler of a kind in a queue. NULL: none. */
static const jobq_memory_handler *jobq__memory_handler_of(const jobq_memory_handler *handlers,
                                                          int32_t count, int32_t queue,
                                                          int32_t kind)
{
    int32_t i;

    for (i = 0; i < count; i++) {
        const jobq_memory_handler *h = &handlers[i];
        if (h->queue == queue && h->kind == kind) return h;
    }
    return NULL;
}

/* Runs the handler of the calls of a batch, or of one. Then each has its outcome. */
static void jobq__calls_handle(const jobq_memory_handler *h, jobq_call *const *calls, int32_t count)
{
    int stage = calls[0]->job.stage;

    if (h->batch != NULL) {
        jobq_calls_run(calls, count, h->batch);
        return;
    }
    while (stage > 0 && h->run[stage] == NULL) stage--;
    calls[0]->outcome = jobq_call_run(calls[0], h->run[stage]);
}

/* What a handler has said of its job. */
static jobq_handled jobq__handled_of(const jobq_call *call)
{
    jobq_handled handled;

    memset(&handled, 0, sizeof handled);
    handled.outcome = call->outcome;
    handled.delay_us = call->delay_us;
    handled.delay_named = call->delay_named;
    return handled;
}

/* Runs the handler of the jobs that were taken, in this thread. */
static void jobq__memory_handle(jobq__memory_run *runs, int32_t count, jobq_loop *l,
                                const jobq_memory_handler *h)
{
    jobq_call *calls[JOBQ_MEMORY_BATCH] = {NULL};
    jobq_handled handled;
    int32_t i;

    for (i = 0; i < count; i++) {
        jobq_call *call = calls[i] = &runs[i].call;
        memset(call, 0, sizeof *call);
        call->job = runs[i].work.job;
        call->payload = jobq_memory_get(runs[i].memory, call->job.id)->payload;
        call->together = count;
        call->store = &jobq__memory_store;
        call->context = &runs[i];
        if (h != NULL) call->user = h->user;
    }
    if (h != NULL) jobq__calls_handle(h, calls, count);
    for (i = 0; i < count; i++) {
        handled = jobq__handled_of(calls[i]);
        handled.missing = h == NULL;
        jobq_loop_handled(l, runs[i].now_us, &runs[i].work, &handled, NULL);
    }
}

/* Takes a job, or a batch, and runs its handler. False: there is none. */
static bool jobq__memory_run_one(jobq_memory *m, jobq_loop *l, const jobq_memory_handler *handlers,
                                 int32_t count, int64_t now_us)
{
    jobq__memory_run *runs = jobq__memory_scratch_of(m)->runs;
    const jobq_job *job = &runs[0].work.job;
    int32_t i;

    if (!jobq_loop_take(l, now_us, &runs[0].work)) return false;
    JOBQ_ASSERT(runs[0].work.together <= JOBQ_MEMORY_BATCH);
    for (i = 0; i < runs[0].work.together; i++) {
        if (i > 0) runs[i].work = runs[i - 1].work;
        if (i > 0) jobq_loop_mate(l, &runs[i].work);
        runs[i].memory = m;
        runs[i].loop = l;
        runs[i].now_us = now_us;
    }
    jobq__memory_handle(runs, i, l, jobq__memory_handler_of(handlers, count, job->queue,
                                                            job->kind));
    return true;
}

JOBQ_API int64_t jobq_memory_work(jobq_memory *m, jobq_loop *l, const jobq_memory_handler *handlers,
                                  int32_t count, int64_t now_us)
{
    uint64_t queues = 0, kinds = 0;
    jobq_request *r;
    int32_t i;

    JOBQ_ASSERT(m != NULL && l != NULL && handlers != NULL);
    r = &jobq__memory_scratch_of(m)->request;
    for (i = 0; i < count; i++) {
        queues |= (uint64_t)1 << handlers[i].queue;
        kinds |= (uint64_t)1 << handlers[i].kind;
    }
    do {
        jobq_loop_next(l, now_us, r);
        if (r->kind == JOBQ_REQUEST_EXIT) return JOBQ_NEVER;
        if (r->kind != JOBQ_REQUEST_WAIT) {
            jobq__memory_perform(m, l, r, queues, kinds, now_us, now_us);
        }
    } while (r->kind != JOBQ_REQUEST_WAIT || jobq__memory_run_one(m, l, handlers, count, now_us));
    return jobq__max(r->until_mono_us, now_us + 1);
}

/* ---- >>test ---------------------------------------------------------------------------------- */

#ifndef JOBQ_NO_TEST

/* What a jobq_memory_job does not hold. */
typedef struct jobq__test_kept {
    jobq_str headers, key;
    int permille; /* of the latest attempt; -1: its handler did not tell */
    char note[JOBQ_NOTE_MAX + 1];
    char error[JOBQ_ERROR_MAX + 1];
    bool crashed; /* the latest attempt */
    jobq_log log; /* of the latest attempt */
    jobq_str signal; /* that it waits for, until then */
    int64_t until_us;
} jobq__test_kept;

/* What a jobq_memory_message does not hold. */
typedef struct jobq__test_mail {
    jobq_message message; /* as its handler gets it; seq counts from when it is sent */
    int32_t partition_id;
    jobq_test_sent sent;  /* what jobq_test_send has returned */
    char error[JOBQ_ERROR_MAX + 1];
} jobq__test_mail;

/* What a step has left, or a signal (job 0). */
typedef struct jobq__test_note {
    int64_t job;
    jobq_str name, value;
} jobq__test_note;

typedef struct jobq__test_names {
    int32_t count;
    const char *name[63]; /* an id is an index + 1 */
} jobq__test_names;

enum { JOBQ__TEST_POINTS = 4096, JOBQ__TEST_LINE = 600 };

/* A point at which something may go wrong: bit e: event e can; and a hash of what is told of it. */
typedef struct jobq__test_place { uint32_t can, hash; } jobq__test_place;

/* A run of a scenario. Its number: a fault is 100 * point + event, a second one a million times as
 * much. */
typedef struct jobq__test_story {
    jobq_test_faults *faults; /* NULL: nobody tries faults */
    int64_t number;
    int32_t points;           /* met so far */
    int32_t odd;              /* the first one that was another one the last time; 0: none */
    jobq__test_place *places; /* where to write them; NULL: nowhere */
    size_t size;              /* of faults->text so far */
} jobq__test_story;

/* A job while its handler runs. */
typedef struct jobq__test_mate {
    jobq_call call; /* must be first */
    jobq_work work;
} jobq__test_mate;

struct jobq_test {
    jobq_memory *memory;
    int64_t now_us;
    uint64_t workers; /* started so far */
    jobq__test_names queues, kinds, lines;
    const char *refused; /* why the latest job or message was */
    int32_t handler_count;
    jobq_memory_handler handlers[63];
    jobq_loop_served served;
    int32_t receiver_count;
    jobq_test_receiver receivers[JOBQ_MEMORY_PARTITIONS]; /* of the partition with this id - 1 */
    void *conn;
    jobq_test_event fault;
    jobq_work work; /* what runs */
    uint64_t here;  /* the worker that runs it; 0: nothing runs. It stands still if it is not the
                       latest one that was started */
    int32_t together; /* of a job: those that run in the same call, in running */
    bool within;    /* another handler runs within the one that does */
    bool locked;    /* its own transaction has the job: nobody takes it until that ends */
    bool dying;
    jmp_buf *dies;  /* out of all handlers of this process */
    size_t used;
    int32_t note_count, mail_count;
    jobq_test_view view;  /* what jobq_test_get has returned */
    jobq__test_story story;
    jobq_loop loop;
    /* What follows is set before it is read: jobq_test_init leaves it as it is. */
    char bytes[JOBQ_TEST_BYTES];
    jobq__test_kept kept[JOBQ_TEST_JOBS];
    jobq__test_note notes[JOBQ_TEST_JOBS];
    jobq__test_mail mails[JOBQ_TEST_JOBS];
    char log[JOBQ_LOG_FORMAT_MAX]; /* of view */
    jobq__test_mate running[2][JOBQ_TEST_BATCH]; /* of a handler, and of one within it */
    jobq_message messages[2][JOBQ_LOOP_BATCH];
    jobq__test_place places[2][JOBQ__TEST_POINTS + 1]; /* of story 1; of one with a single fault */
};

enum { JOBQ__TEST_WORKERS = 64, JOBQ__TEST_HEAD = (sizeof(jobq_test) + 7) / 8 * 8 };

JOBQ_API size_t jobq_test_size(void)
{
    return JOBQ__TEST_HEAD + jobq_memory_size(JOBQ_TEST_JOBS, JOBQ__TEST_WORKERS, JOBQ_TEST_JOBS);
}

/* The id of a name; 0: it is not among them. */
static int32_t jobq__test_known(const jobq__test_names *names, const char *name)
{
    int32_t i = names->count;

    while (i > 0 && !jobq_str_equal(jobq_str_from(names->name[i - 1]), jobq_str_from(name))) i--;
    return i;
}

/* ... which is added if it is new. 0: no room. */
static int32_t jobq__test_add_name(jobq__test_names *names, const char *name)
{
    int32_t id = jobq__test_known(names, name);

    if (id > 0) return id;
    if (names->count == (int32_t)(sizeof names->name / sizeof names->name[0])) return 0;
    names->name[names->count++] = name;
    return names->count;
}

/* The id of a queue or kind. 0: no room, or not a name. */
static int32_t jobq__test_id(jobq__test_names *names, const char *name)
{
    return jobq_name_valid(jobq_str_from(name)) ? jobq__test_add_name(names, name) : 0;
}

#ifdef __cpp_exceptions
struct jobq__test_death {}; /* is thrown out of a handler whose process dies */
#endif

/* A worker process starts. */
static void jobq__test_start(jobq_test *t)
{
    jobq_loop_config config;
    jobq_loop_served served;
    uint64_t jobs = 0, messages = 0;
    int32_t number = 0, id, i;

    memset(&config, 0, sizeof config);
    served = t->served;
    config.served = &served;
    for (i = 0; i < t->handler_count; i++) jobs |= (uint64_t)1 << t->handlers[i].queue;
    for (i = 0; i < t->receiver_count; i++)
        messages |= (uint64_t)1 << t->memory->partitions[i].queue;
    for (id = 1; id < 64; id++) { /* the loop numbers its queues in the order of their ids */
        if ((messages >> id & 1) != 0) served.message_queues |= 1u << number;
        number += ((jobs | messages) >> id & 1) != 0;
    }
    jobq_loop_init(&t->loop, &config, ++t->workers, t->now_us);
}

/* A kind is the same in all queues, as for jobq_test_policy. The store numbers those that have
 * handlers in the order of their ids: all, because handlers were first to name kinds. */
static void jobq__test_batch(jobq_test *t, const jobq_job_handler *h, int32_t kind)
{
    int32_t i;

    for (i = 0; i < t->handler_count; i++) /* in all queues or in none */
        JOBQ_ASSERT(t->handlers[i].kind != kind ||
                    (t->handlers[i].batch != NULL) == (h->batch != NULL));
    if (h->batch == NULL) return;
    JOBQ_ASSERT(h->batch_max >= 0 && h->batch_max <= JOBQ_BATCH_MAX);
    JOBQ_ASSERT(h->batch_wait_us >= 0 && h->batch_wait_us <= JOBQ_BATCH_WAIT_MAX);
    JOBQ_ASSERT(kind <= JOBQ_LOOP_KINDS);
    t->served.kind_batches[kind - 1] =
        (int32_t)jobq__min(jobq__or(h->batch_max, JOBQ_BATCH_DEFAULT), JOBQ_TEST_BATCH);
    t->served.kind_waits_us[kind - 1] = h->batch_wait_us;
}

JOBQ_API jobq_test *jobq_test_init(void *block, const jobq_job_handler *handlers, int32_t count)
{
    jobq_test *t = (jobq_test *)block;
    int32_t i;

    JOBQ_ASSERT(t != NULL && handlers != NULL && count > 0);
    JOBQ_ASSERT((size_t)count <= sizeof t->handlers / sizeof t->handlers[0]);
    memset(t, 0, offsetof(jobq_test, bytes));
    t->memory = jobq_memory_init((char *)block + JOBQ__TEST_HEAD, JOBQ_TEST_JOBS,
                                 JOBQ__TEST_WORKERS, JOBQ_TEST_JOBS);
    t->handler_count = count;
    for (i = 0; i < count; i++) {
        t->handlers[i].queue = jobq__test_id(&t->queues, handlers[i].queue);
        t->handlers[i].kind = jobq__test_id(&t->kinds, handlers[i].kind);
        JOBQ_ASSERT(t->handlers[i].queue > 0 && t->handlers[i].kind > 0);
        JOBQ_ASSERT((handlers[i].run[0] != NULL) != (handlers[i].batch != NULL));
        memcpy(t->handlers[i].run, handlers[i].run, sizeof handlers[i].run);
        t->handlers[i].user = handlers[i].user;
        t->handlers[i].batch = handlers[i].batch;
        jobq__test_batch(t, &handlers[i], t->handlers[i].kind);
    }
    jobq__test_start(t);
    return t;
}

JOBQ_API void jobq_test_policy(jobq_test *t, const char *queue, const char *kind,
                               const jobq_policy *policy)
{
    JOBQ_ASSERT(t != NULL && (queue == NULL) != (kind == NULL));
    if (queue != NULL) {
        jobq_memory_policy(t->memory, jobq__test_id(&t->queues, queue), policy, false);
    } else {
        jobq__memory_kind_policy(t->memory, jobq__test_id(&t->kinds, kind), policy);
    }
}

JOBQ_API void jobq_test_conn(jobq_test *t, void *conn)
{
    JOBQ_ASSERT(t != NULL);
    t->conn = conn;
}

/* Copies a text. The byte before the copy says whether it holds bytes. False: no room, and the text
 * is as it was. */
static bool jobq__test_copy(jobq_test *t, jobq_str *text, bool bytes)
{
    char *copy = t->bytes + t->used + 1;

    if (text->ptr == NULL) return true;
    if (text->len >= sizeof t->bytes - t->used) return false;
    copy[-1] = (char)bytes;
    if (text->len > 0) memcpy(copy, text->ptr, text->len);
    t->used += text->len + 1;
    text->ptr = copy;
    return true;
}

/* Copies both texts, or neither. */
static bool jobq__test_copy_both(jobq_test *t, jobq_str *first, bool bytes, jobq_str *second)
{
    size_t used = t->used;

    if (jobq__test_copy(t, first, bytes) && jobq__test_copy(t, second, false)) return true;
    t->used = used;
    return false;
}

static bool jobq__test_json(jobq_str text)
{
    return text.ptr == NULL || jobq_json_check(text, NULL, NULL) == JOBQ_OK;
}

static bool jobq__test_object(jobq_str text)
{
    size_t at = 0;

    if (text.ptr == NULL) return true;
    if (!jobq__test_json(text)) return false;
    while (text.ptr[at] <= ' ') at++;
    return text.ptr[at] == '{';
}

static int64_t jobq__test_refuse(jobq_test *t, const char *why)
{
    t->refused = why;
    return 0;
}

/* The number of a line; 0: none. False: no room, or not a name of a line. */
static bool jobq__test_line_no(jobq_test *t, const char *line, int64_t *number)
{
    jobq_str text = jobq_str_from(line);

    *number = 0;
    if (line == NULL) return true;
    if (!jobq__step_name(line)) return false;
    *number = jobq__test_known(&t->lines, line);
    if (*number > 0) return true;
    text.len++; /* with its NUL */
    if (!jobq__test_copy(t, &text, false)) return false;
    *number = jobq__test_add_name(&t->lines, text.ptr);
    return *number > 0;
}

/* The job that has a key, until a day after its end; 0: none. */
static int64_t jobq__test_keyed(const jobq_test *t, int32_t queue, jobq_str key)
{
    int64_t id = key.ptr == NULL ? 0 : t->memory->job_count;

    for (; id > 0; id--) {
        const jobq_memory_job *mj = jobq_memory_get(t->memory, id);
        bool ended = jobq_state_final(mj->job.state);
        if (mj->job.queue != queue || !jobq_str_equal(t->kept[id - 1].key, key)) continue;
        if (!ended || mj->finished_at_us >= t->now_us - JOBQ__DAY) break;
    }
    return id;
}

/* What is wrong with the numbers and words of a job; NULL: nothing. */
static const char *jobq__test_wrong(const jobq_test *t, const jobq_test_job *job)
{
    int32_t room = 0, i;

    if (job->delay_us < 0) return "invalid delay_us: must not be negative";
    if (job->timeout_us < 0) return "invalid timeout_us: must not be negative";
    if (job->expires_us < 0 || (job->expires_us > 0 && job->expires_us < JOBQ__MS))
        return "invalid expires_us: must be at least a millisecond";
    if (job->max_attempts < 0) return "invalid max_attempts: must not be negative";
    if (job->stages < 0 || job->stages > JOBQ_STAGES_MAX) return "invalid stages: must be 1 to 16";
    if (job->priority < JOBQ_PRIORITY_MIN || job->priority > JOBQ_PRIORITY_MAX)
        return "invalid priority: must be -9 to 9";
    if (job->key != NULL && !jobq__step_name(job->key))
        return "invalid key: must be 1 to 1024 bytes of UTF-8";
    if (job->on_known != JOBQ_KNOWN_LEAVE)
        return "invalid on_known: must be JOBQ_KNOWN_LEAVE in a test without a database";
    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) room += t->memory->edges[i].child == 0;
    if (job->after_count < 0) return "invalid after_count: must not be negative";
    if (job->after_count > 0 && job->after == NULL) return "invalid after: must not be NULL";
    if (job->after_count > room) return "invalid after: too many (JOBQ_MEMORY_EDGES)";
    for (i = 0; i < job->after_count; i++) {
        if (jobq_memory_get(t->memory, job->after[i].job) == NULL)
            return "invalid after: must be jobs that were added before it";
        if (job->after[i].on_end > JOBQ_ON_ANY) return "invalid after: not a jobq_on_end";
    }
    return NULL;
}

/* Checks the texts of a job or message, and copies them. Returns what is wrong, or NULL. */
static const char *jobq__test_texts(jobq_test *t, jobq_str *payload, bool bytes, jobq_str *headers)
{
    if (!bytes && !jobq__test_json(*payload)) return "invalid payload: not JSON";
    if (!jobq__test_object(*headers)) return "invalid headers: not a JSON object";
    return jobq__test_copy_both(t, payload, bytes, headers) ? NULL : "no room (JOBQ_TEST_BYTES)";
}

/* Adds a job that has been checked; 0: no room. */
static int64_t jobq__test_put(jobq_test *t, const jobq_test_job *job, const jobq_job *like,
                              jobq_str payload)
{
    int64_t id = jobq_memory_enqueue(t->memory, like, payload, t->now_us);
    int32_t i;

    for (i = 0; i < job->after_count && id > 0; i++) {
        jobq_on_end on_end = job->after[i].on_end;
        jobq__memory_after(t->memory, id, job->after[i].job, on_end, on_end == JOBQ_ON_FAILURE,
                           t->now_us);
        if (jobq_state_final(jobq_memory_get(t->memory, id)->job.state)) break;
    }
    return id;
}

JOBQ_API int64_t jobq_test_enqueue(jobq_test *t, const jobq_test_job *job)
{
    jobq_job like = jobq_job_new(0);
    jobq_str payload, headers, key;
    const char *wrong;
    int64_t id;

    JOBQ_ASSERT(t != NULL && job != NULL);
    payload = job->payload;
    headers = job->headers;
    key = jobq_str_from(job->key);
    like.queue = jobq__test_id(&t->queues, job->queue);
    like.kind = jobq__test_id(&t->kinds, job->kind);
    like.stages = (int16_t)jobq__max(job->stages, 1);
    like.priority = (int16_t)job->priority;
    like.max_attempts = job->max_attempts;
    like.timeout_us = job->timeout_us;
    like.expires_us = job->expires_us;
    like.run_at_us = jobq__add(t->now_us, jobq__max(job->delay_us, 0));
    if (like.queue == 0) return jobq__test_refuse(t, "invalid queue: not a name, or over 63 names");
    if (like.kind == 0) return jobq__test_refuse(t, "invalid kind: not a name, or over 63 names");
    wrong = jobq__test_wrong(t, job);
    if (wrong != NULL) return jobq__test_refuse(t, wrong);
    id = jobq__test_keyed(t, like.queue, key);
    if (id > 0) return id;
    if (!jobq__test_line_no(t, job->line, &like.line))
        return jobq__test_refuse(t, "invalid line: not 1 to 1024 bytes of UTF-8, or over 63 lines");
    wrong = jobq__test_texts(t, &payload, job->payload_bytes, &headers);
    if (wrong == NULL && !jobq__test_copy(t, &key, false)) wrong = "no room (JOBQ_TEST_BYTES)";
    if (wrong != NULL) return jobq__test_refuse(t, wrong);
    id = jobq__test_put(t, job, &like, payload);
    if (id == 0) return jobq__test_refuse(t, "no room (JOBQ_TEST_JOBS)");
    memset(&t->kept[id - 1], 0, sizeof t->kept[0]);
    t->kept[id - 1].headers = headers;
    t->kept[id - 1].key = key;
    return id;
}

/* -- messages -- */

/* The id of the partition of a queue; 0: it has none. */
static int32_t jobq__test_partition(const jobq_test *t, const char *queue)
{
    int32_t id = t->receiver_count;

    while (id > 0 && !jobq_str_equal(jobq_str_from(t->receivers[id - 1].queue),
                                     jobq_str_from(queue))) id--;
    return id;
}

JOBQ_API void jobq_test_receive(jobq_test *t, const jobq_test_receiver *receiver)
{
    int32_t queue;

    JOBQ_ASSERT(t != NULL && receiver != NULL && t->workers == 1);
    JOBQ_ASSERT((receiver->each == NULL) != (receiver->all == NULL));
    JOBQ_ASSERT(jobq__test_partition(t, receiver->queue) == 0);
    JOBQ_ASSERT(t->receiver_count < JOBQ_MEMORY_PARTITIONS);
    queue = jobq__test_id(&t->queues, receiver->queue);
    JOBQ_ASSERT(queue > 0);
    jobq__memory_outbox(t->memory, queue, 1);
    t->receivers[t->receiver_count++] = *receiver;
    t->workers = 0;
    jobq__test_start(t);
}

static jobq__test_mail *jobq__test_mail_of(jobq_test *t, int64_t partition_id, int64_t seq)
{
    jobq__test_mail *mail = t->mails;

    while (mail->partition_id != partition_id || mail->message.seq != seq) mail++;
    return mail;
}

static bool jobq__test_type(const char *type)
{
    size_t i = 0;

    if (type == NULL) return true;
    while (type[i] >= ' ' && type[i] <= '~') i++;
    return type[i] == '\0' && i > 0 && i <= JOBQ_NAME_MAX;
}

static const jobq_test_sent *jobq__test_unsent(jobq_test *t, const char *why)
{
    t->refused = why;
    return NULL;
}

JOBQ_API const jobq_test_sent *jobq_test_send(jobq_test *t, const jobq_test_message *message)
{
    jobq__test_mail *mail;
    jobq_message m;
    const char *wrong;
    int32_t id, i;
    bool room;

    JOBQ_ASSERT(t != NULL && message != NULL);
    id = jobq__test_partition(t, message->queue);
    if (id == 0) return jobq__test_unsent(t, "invalid queue: has no receiver");
    if (!jobq__test_type(message->type))
        return jobq__test_unsent(t, "invalid type: must be 1 to 1024 printable ASCII characters");
    if (t->mail_count == JOBQ_TEST_JOBS) return jobq__test_unsent(t, "no room (JOBQ_TEST_JOBS)");
    memset(&m, 0, sizeof m);
    m.payload = message->payload;
    m.headers = message->headers;
    m.type = jobq_str_from(message->type);
    wrong = jobq__test_texts(t, &m.payload, message->payload_bytes, &m.headers);
    if (wrong == NULL && !jobq__test_copy(t, &m.type, false)) wrong = "no room (JOBQ_TEST_BYTES)";
    if (wrong != NULL) return jobq__test_unsent(t, wrong);
    room = jobq__memory_send(t->memory, t->memory->partitions[id - 1].queue, 0, m.payload);
    if (!room) return jobq__test_unsent(t, "no room (JOBQ_MEMORY_MESSAGES)");
    m.payload_bytes = message->payload_bytes;
    m.created_at_us = t->now_us;
    m.seq = 1;
    for (i = 0; i < t->mail_count; i++) m.seq += t->mails[i].partition_id == id;
    mail = &t->mails[t->mail_count++];
    memset(mail, 0, sizeof *mail);
    mail->message = m;
    mail->partition_id = id;
    mail->sent.error = mail->error;
    jobq_loop_notified(&t->loop, t->now_us, "");
    return &mail->sent;
}

static const jobq__test_note *jobq__test_find(const jobq_test *t, int64_t job, jobq_str name)
{
    const jobq__test_note *note = t->notes + t->note_count;

    while (note > t->notes) {
        note--;
        if (note->job == job && jobq_str_equal(note->name, name)) return note;
    }
    return NULL;
}

/* Like jobq._look_signals: jobs whose signal has been sent are due. */
static void jobq__test_wake(jobq_test *t)
{
    int32_t i;

    for (i = 0; i < t->memory->job_count; i++) {
        jobq_memory_job *mj = &jobq__memory_jobs(t->memory)[i];
        jobq_str signal = t->kept[i].signal;
        if (signal.ptr == NULL || mj->job.state != JOBQ_STATE_READY ||
            mj->job.run_at_us <= t->now_us || jobq__test_find(t, 0, signal) == NULL) continue;
        mj->job.run_at_us = t->now_us;
        jobq_loop_notified(&t->loop, t->now_us, "");
    }
}

/* -- points at which something may go wrong -- */

/* Bit e: event e can happen at such a point; bit 16 + e: jobq_test_fault makes it happen there. */
enum {
    JOBQ__TEST_RUNS = 1 << JOBQ_TEST_CRASH | 1 << JOBQ_TEST_CANCEL | 1 << JOBQ_TEST_SHUTDOWN |
                      1 << JOBQ_TEST_TIMEOUT | 1 << JOBQ_TEST_LATE | 1 << JOBQ_TEST_MEANWHILE |
                      1 << JOBQ_TEST_ELSEWHERE,
    JOBQ__TEST_BEGINS = JOBQ__TEST_RUNS | (JOBQ__TEST_RUNS & ~(1 << JOBQ_TEST_CRASH)) << 16,
    JOBQ__TEST_ASKS = JOBQ__TEST_RUNS | 1 << JOBQ_TEST_UNSURE | 0x10001 << JOBQ_TEST_REFUSED,
    JOBQ__TEST_ENDS = JOBQ__TEST_RUNS | 0x10001 << JOBQ_TEST_CRASH,
    JOBQ__TEST_WRITES = 1 << JOBQ_TEST_CRASH | 0x10001 << JOBQ_TEST_UNSURE,
    JOBQ__TEST_TAKES = 0x10001 << JOBQ_TEST_ORDER
};

static jobq_test_event jobq__test_meet(jobq_test *t, const char *what, const char *name, int kind);
static int64_t jobq__test_runs(jobq_test *t, int64_t for_us);

/* Before a handler's statement: see jobq_test_point. What a handler tells only in memory reaches
 * nobody before it returns, and is no point. */
static jobq_error jobq__test_ask(jobq_test *t, const char *what, const char *name)
{
    jobq_test_event event = jobq__test_meet(t, what, name, JOBQ__TEST_ASKS);

    return event == JOBQ_TEST_REFUSED  ? JOBQ_ERROR_RETRYABLE
           : event == JOBQ_TEST_UNSURE ? JOBQ_ERROR_CONNECTION : JOBQ_OK;
}

JOBQ_API jobq_error jobq_test_point(jobq_test *t, const char *name)
{
    JOBQ_ASSERT(t != NULL && name != NULL);
    return t->here == 0 ? JOBQ_OK : jobq__test_ask(t, name, "");
}

/* Whether the job is still that of this call. */
static bool jobq__test_holds(jobq_test *t, const jobq_call *call)
{
    const jobq_memory_job *mj = jobq_memory_get(t->memory, call->job.id);

    return jobq_job_holds(&mj->job, call->job.worker, call->job.claim);
}

/* Does what is due but for handlers. Returns when something is due next. */
static int64_t jobq__test_serve(jobq_test *t)
{
    jobq__memory_scratch *scratch = jobq__memory_scratch_of(t->memory);
    jobq_request *r = &scratch->request;
    jobq_answer *answer = &scratch->answer;
    uint64_t queues = 0, kinds = 0;
    jobq_test_event event;
    int32_t i;

    for (i = 0; i < t->handler_count; i++) {
        queues |= (uint64_t)1 << t->handlers[i].queue;
        kinds |= (uint64_t)1 << t->handlers[i].kind;
    }
    for (i = 0; i < t->receiver_count; i++)
        queues |= (uint64_t)1 << t->memory->partitions[i].queue;
    for (;;) {
        jobq__test_wake(t);
        jobq_loop_next(&t->loop, t->now_us, r);
        if (r->kind == JOBQ_REQUEST_WAIT) return jobq__max(r->until_mono_us, t->now_us + 1);
        if (r->kind == JOBQ_REQUEST_EXIT) return JOBQ_NEVER;
        if (r->kind == JOBQ_REQUEST_ABANDON && !r->stopping && r->id > 0) {
            jobq_reason_format(t->kept[r->id - 1].error, &r->endings[0].decision,
                               jobq_str_from("the handler ran out of time"));
        }
        jobq__memory_execute(t->memory, r, queues, kinds, t->now_us, answer);
        event = JOBQ_TEST_NOTHING;
        if (r->kind == JOBQ_REQUEST_COMPLETE || r->kind == JOBQ_REQUEST_SETTLE ||
            r->kind == JOBQ_REQUEST_ACK)
            event = jobq__test_meet(t, "the outcome is written", "", JOBQ__TEST_WRITES);
        if (event == JOBQ_TEST_UNSURE) jobq_loop_disconnected(&t->loop, t->now_us);
        else if (event != JOBQ_TEST_CRASH) jobq_loop_tell(&t->loop, t->now_us, answer);
    }
}

static int64_t jobq__test_until(const jobq_test *t, int64_t us)
{
    return jobq__add(t->now_us, jobq__max(jobq__min(us, JOBQ__DELAY_MAX), 0));
}

/* pause: the worker does nothing for that long at a time, so that an hour passes quickly. */
static void jobq__test_pass(jobq_test *t, int64_t us, int64_t pause)
{
    int64_t end = jobq__test_until(t, us), due;

    while ((due = jobq__max(jobq__test_serve(t), t->now_us + pause)) <= end) t->now_us = due;
    t->now_us = end;
    jobq__test_serve(t);
}

JOBQ_API void jobq_test_sleep(jobq_test *t, int64_t us)
{
    JOBQ_ASSERT(t != NULL);
    if (t->here != 0) jobq__test_meet(t, "sleeps", "", JOBQ__TEST_RUNS);
    jobq__test_pass(t, us, 0);
}

static bool jobq__test_keep(jobq_call *call, jobq_str next, bool bytes)
{
    jobq_test *t = (jobq_test *)call->context;

    if (!jobq__test_copy(t, &next, bytes)) return false;
    if (jobq__test_holds(t, call)) jobq_memory_get(t->memory, call->job.id)->next = next;
    return true;
}

static jobq_error jobq__test_hold(jobq_call *call, jobq_hold what, int64_t delay_us,
                                  const char *why)
{
    jobq_test *t = (jobq_test *)call->context;
    jobq_error met = jobq__test_ask(t, "holds ", what == JOBQ_HOLD_LINE ? "its line" : "its queue");
    jobq_error error = met;

    (void)why;
    if (met != JOBQ_ERROR_RETRYABLE)
        error = jobq__memory_hold_back(t->memory, call, what, t->now_us, delay_us);
    return met == JOBQ_OK ? error : met;
}

static int jobq__test_stops(jobq_test *t, const jobq_work *work, int64_t *remaining_us)
{
    jobq__test_meet(t, "asks whether to stop", "", JOBQ__TEST_RUNS);
    if (t->here == t->workers)
        return (int)jobq_loop_stopping(&t->loop, t->now_us, work, remaining_us);
    *remaining_us = 0;
    return JOBQ_STOP_LOST;
}

static int jobq__test_stopping(const jobq_call *call, int64_t *remaining_us)
{
    const jobq__test_mate *mate = (const jobq__test_mate *)(const void *)call;

    return jobq__test_stops((jobq_test *)call->context, &mate->work, remaining_us);
}

static jobq_error jobq__test_call_progress(jobq_call *call, int permille, const char *note,
                                           bool now)
{
    jobq_test *t = (jobq_test *)call->context;
    jobq_error met = now ? jobq__test_ask(t, "publishes its progress", "") : JOBQ_OK;
    jobq__test_kept *kept = &t->kept[call->job.id - 1];

    if (met == JOBQ_ERROR_RETRYABLE) return met;
    if (!jobq__test_holds(t, call)) return JOBQ_ERROR_LOST;
    kept->permille = permille;
    memcpy(kept->note, note, strlen(note) + 1);
    return met;
}

static void jobq__test_call_log(jobq_call *call, jobq_level level, jobq_str text)
{
    jobq_test *t = (jobq_test *)call->context;

    if (!jobq__test_holds(t, call)) return;
    jobq_log_add(&t->kept[call->job.id - 1].log, t->now_us, level, text);
}

static bool jobq__test_add(jobq_test *t, int64_t job, const char *name, jobq_str value)
{
    jobq__test_note *note = &t->notes[t->note_count];

    if (t->note_count == JOBQ_TEST_JOBS) return false;
    note->job = job;
    note->name = jobq_str_from(name);
    note->value = value;
    if (!jobq__test_copy_both(t, &note->name, false, &note->value)) return false;
    t->note_count++;
    return true;
}

static jobq_error jobq__test_call_step(jobq_call *call, const char *name, const jobq_str *done,
                                       jobq_str *value)
{
    jobq_test *t = (jobq_test *)call->context;
    jobq_error met = t->locked ? JOBQ_OK /* jobq_pg_call_step_done has asked */
                               : jobq__test_ask(t, done != NULL ? "step_done " : "step ", name);
    const jobq__test_note *note = jobq__test_find(t, call->job.id, jobq_str_from(name));

    t->locked = false;
    if (met == JOBQ_ERROR_RETRYABLE) return met;
    if (!jobq__test_holds(t, call)) return JOBQ_ERROR_LOST;
    if (done != NULL && !jobq__test_add(t, call->job.id, name, *done)) return JOBQ_ERROR_FULL;
    if (done != NULL || met != JOBQ_OK) return met;
    if (note == NULL) return JOBQ_ERROR_NOT_FOUND;
    *value = note->value;
    return JOBQ_OK;
}

/* Like jobq.signal_of_claim. */
static jobq_error jobq__test_call_signal(jobq_call *call, const char *name, int64_t timeout_us,
                                         jobq_str *payload)
{
    jobq_test *t = (jobq_test *)call->context;
    jobq__test_kept *kept = &t->kept[call->job.id - 1];
    jobq_error met = jobq__test_ask(t, "signal ", name);
    jobq_str wanted = jobq_str_from(name);
    const jobq__test_note *sent = jobq__test_find(t, 0, wanted);

    if (met != JOBQ_OK) return met;
    if (!jobq__test_holds(t, call)) return JOBQ_ERROR_LOST;
    if (sent != NULL) {
        kept->signal = jobq_str_from(NULL);
        *payload = sent->value;
        return JOBQ_OK;
    }
    if (!jobq_str_equal(kept->signal, wanted)) {
        if (!jobq__test_copy(t, &wanted, false)) return JOBQ_ERROR_FULL;
        kept->signal = wanted;
        kept->until_us = jobq__add(t->now_us, timeout_us);
    }
    if (kept->until_us <= t->now_us) return JOBQ_ERROR_TIMEOUT;
    jobq_call_delay(call, kept->until_us - t->now_us);
    return JOBQ_ERROR_NOT_FOUND;
}

/* The handler's own transaction has completed the job, or made it wait. */
static void jobq__test_done(jobq_test *t, const jobq_call *call)
{
    jobq_memory_job *mj = jobq_memory_get(t->memory, call->job.id);
    bool waits = call->waits;

    if (!jobq__test_holds(t, call)) return;
    if (waits) mj->follows = -1; /* what it waits for is not in this test */
    jobq__memory_plain(t->memory, mj, waits ? JOBQ_EVENT_WAIT : JOBQ_EVENT_SUCCESS, t->now_us);
}

static jobq_error jobq__test_own(jobq_call *call, const char *what)
{
    jobq_test *t = (jobq_test *)call->context;
    bool asks = what != NULL && what[0] != '\0';
    jobq_error met = asks ? jobq__test_ask(t, what, "") : JOBQ_OK;

    if (met == JOBQ_ERROR_RETRYABLE) return met;
    if (what != NULL && !jobq__test_holds(t, call)) return JOBQ_ERROR_LOST;
    t->locked = what != NULL;
    if (what == NULL) jobq__test_done(t, call);
    return met;
}

static const jobq_store jobq__test_store = {
    jobq__test_keep,     jobq__test_stopping,  jobq__test_hold,        jobq__test_call_progress,
    jobq__test_call_log, jobq__test_call_step, jobq__test_call_signal, jobq__test_own};

JOBQ_API jobq_error jobq_test_commit(jobq_call *call) { return jobq_test_commit_all(&call, 1); }

JOBQ_API jobq_error jobq_test_commit_all(jobq_call *const *calls, int32_t count)
{
    jobq_error met = JOBQ_OK, held = JOBQ_OK;
    int32_t i, done = 0;

    JOBQ_ASSERT(calls != NULL && count > 0 && calls[0]->store == &jobq__test_store);
    for (i = 0; i < count && held == JOBQ_OK; i++) {
        if (!jobq__completes(calls[i])) continue;
        if (done++ == 0) met = held = jobq__test_own(calls[i], "commits");
        else held = jobq__test_own(calls[i], "");
        if (held == JOBQ_ERROR_CONNECTION) held = JOBQ_OK; /* it is done all the same */
    }
    for (i = 0; i < count && held == JOBQ_OK; i++)
        if (jobq__completes(calls[i])) jobq__test_own(calls[i], NULL);
    return held != JOBQ_OK ? held : met;
}

/* A run of a handler: of the calls of a batch or of a job, or of a delivery. */
typedef struct jobq__test_turn {
    jobq_call *calls[JOBQ_TEST_BATCH];
    int32_t count;
    const jobq_memory_handler *handler;
    jobq_delivery *delivery;
    const jobq_test_receiver *receiver;
    jobq_verdict verdict;
} jobq__test_turn;

static void jobq__test_run_now(jobq_test *t, jobq__test_turn *run)
{
    const jobq_test_receiver *to = run->receiver;
    int32_t i;

    t->locked = false;
    jobq__test_meet(t, "begins", "", JOBQ__TEST_BEGINS);
    if (to != NULL) jobq_delivery_run(run->delivery, to->each, to->all, &run->verdict);
    else jobq__calls_handle(run->handler, run->calls, run->count);
    for (i = 0; i < run->count; i++)
        if (run->calls[i]->outcome == JOBQ_OUTCOME_DONE) jobq__test_done(t, run->calls[i]);
    t->locked = false;
    jobq__test_meet(t, "has returned", "", JOBQ__TEST_ENDS);
}

/* The process of a handler has died, with that of another one of its threads if two ran. */
static void jobq__test_died(const jobq_test *t, bool within)
{
    const jobq_test_faults *f = t->story.faults;

    if (f == NULL || f->died == NULL) return;
    if (t->within) f->died(f->user, 1);
    if (!within) f->died(f->user, 0);
}

/* Runs a handler. False: its process has died, or stood still for too long, and nobody hears what
 * the handler has returned. */
static bool jobq__test_lives(jobq_test *t, jobq__test_turn *run)
{
    uint64_t outer = t->here, worker = t->workers;
    bool within = t->within, died;
    jmp_buf here, *dies = t->dies;
    int32_t i;

    if (outer == worker) { /* another thread of this process: if that dies, so does this one */
        jobq__test_run_now(t, run);
        return true;
    }
    t->here = worker;
    t->dies = &here;
#ifdef __cpp_exceptions
    try { jobq__test_run_now(t, run); } catch (const jobq__test_death &) {}
#else
    if (setjmp(here) == 0) jobq__test_run_now(t, run);
#endif
    died = t->dying;
    t->dying = false;
    t->dies = dies;
    t->here = outer;
    if (died) jobq__test_died(t, within);
    for (i = 0; i < run->count && died; i++) t->kept[run->calls[i]->job.id - 1].crashed = true;
    t->within = within;
    if (died && worker == t->workers) jobq__test_start(t);
    return !died && worker == t->workers;
}

/* Fills a call; nothing is kept of the job's attempt yet. */
static void jobq__test_call_fill(jobq_test *t, jobq_call *call, const jobq_job *job, void *conn)
{
    jobq__test_kept *kept = &t->kept[job->id - 1];

    memset(call, 0, sizeof *call);
    call->job = *job;
    call->kind = jobq_str_from(t->kinds.name[job->kind - 1]);
    call->payload = jobq_memory_get(t->memory, job->id)->payload;
    call->payload_bytes = call->payload.ptr != NULL && call->payload.ptr[-1] != 0;
    call->headers = kept->headers;
    call->conn = conn;
    call->store = &jobq__test_store;
    call->context = t;
    kept->permille = -1;
    kept->note[0] = '\0';
    kept->log.size = 0;
    kept->log.dropped = 0;
    kept->crashed = false;
}

/* Runs the handler of the job in t->work, and of those of its batch. */
static void jobq__test_handle(jobq_test *t, const jobq_memory_handler *h)
{
    jobq__test_mate *mates = t->running[t->within];
    const jobq_test_faults *f = t->story.faults;
    void *conn = f != NULL && f->conn != NULL ? f->conn(f->user, t->within) : t->conn;
    int32_t count = t->work.together, i;
    jobq__test_turn run;
    jobq_handled handled;
    jobq_decision decision;

    memset(&run, 0, sizeof run);
    run.handler = h;
    run.count = count;
    for (i = 0; i < count; i++) {
        mates[i].work = i == 0 ? t->work : mates[i - 1].work;
        if (i > 0) jobq_loop_mate(&t->loop, &mates[i].work);
        jobq__test_call_fill(t, &mates[i].call, &mates[i].work.job, conn);
        mates[i].call.user = h->user;
        mates[i].call.together = count;
        run.calls[i] = &mates[i].call;
    }
    if (!jobq__test_lives(t, &run)) return;
    for (i = 0; i < count; i++) {
        jobq_call *call = run.calls[i];
        handled = jobq__handled_of(call);
        if (jobq_loop_handled(&t->loop, t->now_us, &mates[i].work, &handled, &decision) &&
            handled.outcome != JOBQ_OUTCOME_DONE)
            jobq_call_reason(t->kept[call->job.id - 1].error, call, handled.outcome, &decision);
    }
}

static bool jobq__test_reject(jobq_delivery *d, int32_t index, jobq_str why)
{
    jobq__test_mail *mail = jobq__test_mail_of((jobq_test *)d->context, d->partition_id,
                                               d->messages[index].seq);

    jobq_utf8_mend(mail->error, JOBQ_ERROR_MAX, why);
    return true;
}

static int jobq__test_hurry(const jobq_delivery *d, int64_t *remaining_us)
{
    jobq_test *t = (jobq_test *)d->context;

    return jobq__test_stops(t, &t->work, remaining_us);
}

static const jobq_delivery_store jobq__test_delivery_store = {jobq__test_reject, jobq__test_hurry,
                                                              NULL, NULL};

/* Why each message failed, as a worker writes it. failed: what the handler says of all that it did
 * not reject itself. */
static void jobq__test_explain(jobq_test *t, const jobq_ack *ack, jobq_str failed)
{
    int32_t i;

    for (i = 0; i < t->work.given; i++) {
        jobq__test_mail *mail = jobq__test_mail_of(t, t->work.partition_id,
                                                   t->work.cursor.acked + 1 + i);
        jobq_result result = (jobq_result)ack->results[i];
        jobq_decision d;
        mail->sent.deliveries++;
        if (result == JOBQ_RESULT_SUCCESS || result == JOBQ_RESULT_LEFT) continue;
        memset(&d, 0, sizeof d);
        d.reason = result == JOBQ_RESULT_EXCEEDED ? JOBQ_REASON_ATTEMPTS : JOBQ_REASON_NONE;
        d.limit = ack->max_attempts;
        if (mail->error[0] == '\0') jobq_reason_format(mail->error, &d, failed);
    }
}

/* Runs the handler of the messages in t->work. */
static void jobq__test_deliver(jobq_test *t, const jobq_test_receiver *h)
{
    jobq_message *messages = t->messages[t->within];
    jobq__test_turn run;
    jobq_str why;
    jobq_delivery d;
    jobq_ack ack;
    int32_t i;

    memset(&d, 0, sizeof d);
    memset(&run, 0, sizeof run);
    for (i = 0; i < t->work.given; i++) {
        int64_t seq = t->work.cursor.acked + 1 + i;
        jobq__test_mail *mail = jobq__test_mail_of(t, t->work.partition_id, seq);
        messages[i] = mail->message;
        messages[i].attempts = jobq_cursor_attempts(&t->work.cursor, seq);
        mail->error[0] = '\0';
    }
    d.messages = messages;
    d.count = t->work.given;
    d.partition_id = t->work.partition_id;
    d.queue = jobq_str_from(h->queue);
    d.user = h->user;
    d.results = t->work.results;
    d.store = &jobq__test_delivery_store;
    d.context = t;
    run.delivery = &d;
    run.receiver = h;
    if (!jobq__test_lives(t, &run)) return;
    if (d.error_size == 0 && run.verdict.result != JOBQ_RESULT_SUCCESS) {
        jobq_delivery_error(&d, jobq_str_from(run.verdict.result == JOBQ_RESULT_RETRY
                                                  ? "message handler returned Retry" : "rejected"));
    }
    why.ptr = d.error;
    why.len = d.error_size;
    if (jobq_loop_delivered(&t->loop, t->now_us, &t->work, &run.verdict, false, &ack))
        jobq__test_explain(t, &ack, why);
}

/* Takes work and runs its handler, or parks the job if there is none. */
static bool jobq__test_run_one(jobq_test *t, int64_t *runs)
{
    const jobq_memory_handler *h;
    jobq_handled handled;
    jobq_list *queued = &t->loop.queued;
    int32_t last = queued->count;

    if (last > 1 && jobq__test_meet(t, "several jobs are ready", "", JOBQ__TEST_TAKES) != 0)
        for (; last > 1; last--) jobq__push(&t->loop, queued, jobq__pop(&t->loop, queued));
    if (!jobq_loop_take(&t->loop, t->now_us, &t->work)) return false;
    if (t->work.partition_id != 0) {
        jobq__test_deliver(t, &t->receivers[t->work.partition_id - 1]);
        ++*runs;
        return true;
    }
    h = jobq__memory_handler_of(t->handlers, t->handler_count, t->work.job.queue, t->work.job.kind);
    if (h != NULL) {
        jobq__test_handle(t, h);
        ++*runs;
        return true;
    }
    memset(&handled, 0, sizeof handled);
    handled.missing = true;
    jobq_loop_handled(&t->loop, t->now_us, &t->work, &handled, NULL);
    return true;
}

/* What has become of the messages. One that no handler got any more has been too much for its
 * workers. */
static void jobq__test_see(jobq_test *t)
{
    jobq__test_mail *mail = t->mails;

    for (; mail < t->mails + t->mail_count; mail++) {
        const jobq_memory_partition *p = &t->memory->partitions[mail->partition_id - 1];
        const jobq_memory_message *letter =
            jobq__memory_message_at(t->memory, mail->partition_id, mail->message.seq);
        jobq_decision d;
        mail->sent.done = p->cursor.acked >= mail->message.seq;
        mail->sent.dead = letter != NULL && letter->dead;
        if (!mail->sent.dead || mail->error[0] != '\0') continue;
        memset(&d, 0, sizeof d);
        d.reason = JOBQ_REASON_ATTEMPTS;
        d.limit = jobq__memory_policy_of(t->memory, p->queue)->max_attempts;
        jobq_reason_format(mail->error, &d, jobq_str_from("its worker died each time"));
    }
}

static int64_t jobq__test_runs(jobq_test *t, int64_t for_us)
{
    int64_t runs = 0, end = jobq__test_until(t, for_us), due;

    for (;;) {
        due = jobq__test_serve(t);
        if (t->loop.phase == JOBQ_PHASE_EXITED) jobq__test_start(t);
        else if (jobq__test_run_one(t, &runs)) continue;
        else if (!jobq__memory_remains(t->memory, UINT64_MAX, UINT64_MAX)) return runs;
        else if (due > end) break;
        else t->now_us = due;
    }
    t->now_us = jobq__max(t->now_us, end);
    return runs;
}

JOBQ_API int64_t jobq_test_run(jobq_test *t, int64_t for_us)
{
    int64_t runs;

    JOBQ_ASSERT(t != NULL);
    runs = jobq__test_runs(t, for_us);
    jobq__test_see(t);
    return runs;
}

JOBQ_API void jobq_test_fault(jobq_test *t, jobq_test_event event)
{
    JOBQ_ASSERT(t != NULL);
    t->fault = event;
}

JOBQ_API int64_t jobq_test_now(const jobq_test *t)
{
    JOBQ_ASSERT(t != NULL);
    return t->now_us;
}

/* Why its latest failed attempt failed. If no handler said why, its worker died each time. */
static const char *jobq__test_error(jobq__test_kept *kept, const jobq_memory_job *mj)
{
    jobq_decision d;

    if (mj->reason == JOBQ_REASON_EXPIRED ||
        (mj->reason != JOBQ_REASON_NONE && (kept->crashed || kept->error[0] == '\0'))) {
        memset(&d, 0, sizeof d);
        d.reason = mj->reason;
        d.limit = mj->limit;
        jobq_reason_format(kept->error, &d, jobq_str_from(
            mj->reason == JOBQ_REASON_EXPIRED ? "" : "worker died"));
    }
    return kept->error;
}

JOBQ_API const jobq_test_view *jobq_test_get(jobq_test *t, int64_t id)
{
    jobq__test_kept *kept;
    const jobq_memory_job *mj;

    JOBQ_ASSERT(t != NULL);
    memset(&t->view, 0, sizeof t->view);
    t->view.error = t->refused == NULL ? "" : t->refused;
    if (id == 0) return &t->view;
    mj = jobq_memory_get(t->memory, id);
    if (mj == NULL) return NULL;
    kept = &t->kept[id - 1];
    jobq_log_format(t->log, &kept->log);
    t->view.job = mj->job;
    t->view.error = jobq__test_error(kept, mj);
    t->view.result = mj->job.state == JOBQ_STATE_SUCCEEDED ? mj->next : jobq_str_from(NULL);
    t->view.permille = kept->permille;
    t->view.note = kept->note;
    t->view.log = t->log;
    return &t->view;
}

JOBQ_API bool jobq_test_step(jobq_test *t, int64_t id, const char *name, jobq_str *value)
{
    const jobq__test_note *note;

    JOBQ_ASSERT(t != NULL && name != NULL);
    note = jobq__test_find(t, id, jobq_str_from(name));
    if (value != NULL) *value = note == NULL ? jobq_str_from(NULL) : note->value;
    return note != NULL;
}

JOBQ_API bool jobq_test_signal(jobq_test *t, const char *name, jobq_str payload)
{
    JOBQ_ASSERT(t != NULL && name != NULL && jobq__step_name(name));
    JOBQ_ASSERT(jobq__test_json(payload));
    return jobq__test_find(t, 0, jobq_str_from(name)) == NULL &&
           jobq__test_add(t, 0, name, payload);
}

JOBQ_API bool jobq_test_ready(jobq_test *t, int64_t id)
{
    jobq_memory_job *mj;

    JOBQ_ASSERT(t != NULL);
    mj = jobq_memory_get(t->memory, id);
    if (mj == NULL || mj->job.state != JOBQ_STATE_WAITING) return false;
    mj->follows = 0;
    jobq__memory_waits(t->memory, mj, t->now_us);
    jobq_loop_notified(&t->loop, t->now_us, "");
    return true;
}

/* -- every fault -- */

/* The process dies, and with it its handlers. */
static void jobq__test_die(jobq_test *t)
{
    if (t->here != 0) {
        t->dying = true;
#ifdef __cpp_exceptions
        throw jobq__test_death();
#else
        longjmp(*t->dies, 1);
#endif
    }
    jobq__test_died(t, t->within);
    jobq__test_start(t);
}

static void jobq__test_cancel(jobq_test *t)
{
    jobq_memory_event(t->memory, t->work.job.id, JOBQ_EVENT_CANCEL, t->now_us);
    jobq_loop_notified(&t->loop, t->now_us, "cancel");
    jobq__test_serve(t);
}

static void jobq__test_shut_down(jobq_test *t) { jobq_loop_stop(&t->loop, t->now_us, -1); }

static void jobq__test_time_out(jobq_test *t)
{
    int64_t left_us;

    jobq_loop_stopping(&t->loop, t->now_us, &t->work, &left_us);
    jobq__test_pass(t, left_us, 0);
}

static void jobq__test_hour(jobq_test *t)
{
    jobq_test_faults *faults = t->story.faults;

    t->story.faults = NULL; /* what is written meanwhile is no point */
    jobq__test_pass(t, JOBQ_HOURS(1), 5 * JOBQ__SECOND);
    t->story.faults = faults;
}

/* While a handler is at a point, others run. */
static void jobq__test_meanwhile(jobq_test *t)
{
    jobq_work work = t->work;
    int64_t runs = 0;

    t->within = true;
    jobq_loop_notified(&t->loop, t->now_us, "");
    jobq__test_serve(t);
    jobq__test_run_one(t, &runs);
    jobq__test_pass(t, JOBQ__SECOND, 0); /* its outcome is written */
    t->within = false;
    t->work = work;
}

static void jobq__test_elsewhere(jobq_test *t)
{
    jobq_work work = t->work;
    uint64_t here = t->here;
    int32_t i;

    for (i = 0; i < work.together; i++) t->kept[t->running[0][i].work.job.id - 1].crashed = true;
    t->within = true;
    t->here = 0;
    jobq__test_start(t);
    jobq__test_runs(t, 3 * t->loop.config.lease_us);
    t->here = here;
    t->within = false;
    t->work = work;
}

/* What happens, and to whom; NULL: the caller sees to it. */
static const struct { const char *text; void (*happens)(jobq_test *t); }
jobq__test_events[JOBQ_TEST_EVENT_COUNT] = {
    {"", NULL},
    {"the worker dies", jobq__test_die},
    {"it is done, but the answer is lost", NULL},
    {"it is refused, and nothing is done", NULL},
    {"somebody cancels the job", jobq__test_cancel},
    {"the worker is told to stop", jobq__test_shut_down},
    {"the time limit passes", jobq__test_time_out},
    {"an hour passes", jobq__test_hour},
    {"another thread runs what is next", jobq__test_meanwhile},
    {"the worker stands still until another one has taken over", jobq__test_elsewhere},
    {"the last one starts first", NULL}};

/* Which of the events can happen now. runs: at a point of a handler. */
static uint32_t jobq__test_can(const jobq_test *t, uint32_t can, bool runs)
{
    int64_t left_us;

    if ((t->here != 0 && t->here != t->workers) || (runs && t->locked))
        return runs ? can & (JOBQ__TEST_WRITES | 1u << JOBQ_TEST_REFUSED) : 0;
    if (!runs) return can;
    jobq_loop_stopping(&t->loop, t->now_us, &t->work, &left_us);
    if (left_us == JOBQ_NEVER || left_us == 0) can &= ~(1u << JOBQ_TEST_TIMEOUT);
    if (t->work.partition_id != 0) can &= ~(1u << JOBQ_TEST_CANCEL);
    if (t->within) can &= ~(1u << JOBQ_TEST_ELSEWHERE | 1u << JOBQ_TEST_MEANWHILE);
    return can;
}

/* Adds words, then a number if it is not negative. */
static void jobq__put_words(jobq__text *t, const char *words, int64_t number)
{
    jobq_str s = jobq_str_from(words);

    if (s.len > 150) s.len = 150; /* a name */
    jobq__put(t, s);
    if (number >= 0) jobq__put_number(t, number);
}

/* Writes a line of a story. */
static void jobq__test_line(const jobq_test *t, jobq__text *line, const char *what,
                            const char *name, bool runs)
{
    int64_t tenths = (t->now_us + 50000) / 100000, width;
    const jobq_work *w = &t->work;

    for (width = 1000; width > 1 && t->story.points < width; width /= 10)
        jobq__put_words(line, " ", -1);
    jobq__put_words(line, "", t->story.points);
    jobq__put_words(line, "  ", tenths / 10);
    jobq__put_words(line, ".", tenths % 10);
    jobq__put_words(line, " s, worker ", (int64_t)(t->here != 0 ? t->here : t->workers));
    if (runs && w->partition_id == 0) {
        jobq__put_words(line, ", job ", w->job.id);
        if (w->together > 1) jobq__put_words(line, " of a batch of ", w->together);
        jobq__put_words(line, ", attempt ", w->job.attempt);
    } else if (runs) {
        jobq__put_words(line, ", messages from ", w->cursor.acked + 1);
        jobq__put_words(line, " of ", -1);
        jobq__put_words(line, t->receivers[w->partition_id - 1].queue, -1);
    }
    jobq__put_words(line, ": ", -1);
    jobq__put_words(line, what, -1);
    jobq__put_words(line, name, -1);
}

/* Writes down a point, or compares it with the one of the first run. */
static void jobq__test_place_is(jobq__test_story *s, int32_t at, uint32_t can, uint32_t hash)
{
    jobq__test_place *p;

    if (s->places == NULL || at > JOBQ__TEST_POINTS) return;
    p = &s->places[at];
    if (s->faults->stories == 2 && s->odd == 0 && (p->can != can || p->hash != hash))
        s->odd = at + 1;
    p->can = can;
    p->hash = hash;
}

/* The next point of a story, and what goes wrong there. The text begins shortly before a fault. */
static jobq_test_event jobq__test_next(jobq_test *t, const char *what, const char *name,
                                       uint32_t can, bool runs)
{
    jobq__test_story *s = &t->story;
    int64_t rest = s->number, event = 0;
    char text[JOBQ__TEST_LINE];
    jobq__text line = {text, sizeof text, 0, false};
    uint32_t hash = 0;
    size_t i;

    s->points++;
    for (; rest > 0 && event == 0; rest /= 1000000)
        if (rest / 100 % 10000 == s->points && (can >> rest % 100 & 1) != 0) event = rest % 100;
    s->faults->happened += event != 0;
    jobq__test_line(t, &line, what, name, runs);
    for (i = 0; i < line.at; i++) hash = hash * 31 + (unsigned char)text[i];
    jobq__test_place_is(s, s->points - 1, can, hash);
    jobq__put_words(&line, event == 0 ? "" : "   <-- ", -1);
    jobq__put_words(&line, jobq__test_events[event].text, -1);
    jobq__put_words(&line, "\n", -1);
    if (s->points + 20 > s->number / 100 % 10000 && s->size + line.at < sizeof s->faults->text) {
        memcpy(s->faults->text + s->size, text, line.at + 1);
        s->size += line.at;
    }
    return (jobq_test_event)event;
}

/* A point: what goes wrong there does. */
static jobq_test_event jobq__test_meet(jobq_test *t, const char *what, const char *name, int kind)
{
    jobq_test_event event = JOBQ_TEST_NOTHING;
    bool runs = (kind & 1 << JOBQ_TEST_SHUTDOWN) != 0;
    uint32_t can;

    if (t->dying) jobq__test_die(t); /* the handler has caught its death */
    can = jobq__test_can(t, (uint32_t)kind, runs);
    if (t->story.faults != NULL) {
        if (can != 0) event = jobq__test_next(t, what, name, can & 0xffff, runs);
    } else if ((can & can >> 16) >> t->fault & 1) {
        event = t->fault;
        t->fault = JOBQ_TEST_NOTHING;
    }
    if (jobq__test_events[event].happens != NULL) jobq__test_events[event].happens(t);
    return event;
}

/* Runs the scenario with the faults of a number. Returns its points + 1; 0: it ends badly. level:
 * where to write its points; 2: nowhere. */
static int32_t jobq__test_try(jobq_test *t, jobq_test_faults *f, int64_t number, int level)
{
    jobq__test_story *s = &t->story;
    jobq__text head = {f->text, sizeof f->text, 0, false}, odd = head;
    bool good;

    jobq_test_init(t, f->handlers, f->handler_count);
    s->faults = f;
    s->number = number;
    s->places = level == 2 ? NULL : t->places[level];
    jobq__put_words(&head, "story ", number);
    jobq__put_words(&head, " ends badly", -1);
    jobq__put_words(&head, number == 1 ? ", and nothing goes wrong\n" : "\n", -1);
    s->size = head.at;
    f->stories++;
    f->happened = 0;
    good = f->scenario(t, f->user);
    jobq__test_place_is(s, s->points, 0, 0);
    if (good && s->odd == 0) f->text[0] = '\0';
    if (s->odd == 0) return good ? s->points + 1 : 0;
    jobq__put_words(&odd, "not deterministic: point ", s->odd);
    jobq__put_words(&odd, " is another one in a second run\n", -1);
    return 0;
}

static int64_t jobq__test_tell(jobq_test *t, jobq_test_faults *f, int64_t number)
{
    return jobq__test_try(t, f, number, 2) == 0 ? number : 0;
}

/* Tells each story that has one fault more than one with so many points. Returns the number of the
 * first that ends badly. level 0: that has no fault, and number 1; 1: it has one. */
static int64_t jobq__test_each(jobq_test *t, jobq_test_faults *f, int64_t number, int32_t count,
                               int level, int64_t (*tell)(jobq_test *, jobq_test_faults *, int64_t))
{
    int32_t event, point;
    int64_t told, failed;

    JOBQ_ASSERT(count <= JOBQ__TEST_POINTS); /* the scenario is too long to try every fault */
    for (event = JOBQ_TEST_CRASH; event < JOBQ_TEST_EVENT_COUNT; event++) {
        for (point = (int32_t)(number / 100); point < count; point++) {
            if (((t->places[level][point].can & f->events) >> event & 1) == 0) continue;
            if (f->stories >= f->stories_max) return 0;
            told = (point + 1) * 100 + event;
            failed = tell(t, f, level == 0 ? told : number + 1000000 * told);
            if (failed != 0) return failed;
        }
    }
    return 0;
}

static int64_t jobq__test_tell_pairs(jobq_test *t, jobq_test_faults *f, int64_t number)
{
    int32_t count = jobq__test_try(t, f, number, 1) - 1;

    return jobq__test_each(t, f, number, count, 1, jobq__test_tell);
}

JOBQ_API int64_t jobq_test_each_fault(void *block, jobq_test_faults *f)
{
    jobq_test *t = (jobq_test *)block;
    int64_t failed;
    int32_t count;

    JOBQ_ASSERT(t != NULL && f != NULL && f->scenario != NULL);
    f->stories = 0;
    f->stories_max = jobq__or(f->stories_max, 10000);
    if (f->events == 0) f->events = UINT32_MAX;
    if (f->number > 0) return jobq__test_tell(t, f, f->number);
    count = jobq__test_try(t, f, 1, 0) - 1;
    if (count < 0 || jobq__test_try(t, f, 1, 0) == 0) return 1;
    failed = jobq__test_each(t, f, 1, count, 0, jobq__test_tell);
    if (failed == 0 && f->pairs) failed = jobq__test_each(t, f, 1, count, 0, jobq__test_tell_pairs);
    return failed;
}

#endif /* JOBQ_NO_TEST */

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* JOBQ_IMPLEMENTED */
#endif /* JOBQ_IMPLEMENTATION */

/*
 * LICENCE -- your choice of A or B.
 *
 * A: MIT-0. Copyright (c) 2026 the jobq authors.
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
 * associated documentation files (the "Software"), to deal in the Software without restriction,
 * including without limitation the rights to use, copy, modify, merge, publish, distribute,
 * sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
 * furnished to do so.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
 * NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
 * NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
 * DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 *
 * B: public domain (Unlicense, www.unlicense.org). Anyone is free to copy, modify, publish, use,
 * compile, sell, or distribute this software, in source or compiled form, for any purpose,
 * commercial or non-commercial, and by any means. The same disclaimer of warranty applies.
 */
