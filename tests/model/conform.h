/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * conform.h -- every behaviour of a job, and of a partition of messages, once, as operations of
 * store.h and their answers. Any store that fills in the table of store.h can be tested with it.
 *
 *     claim w=1 n=1 l=2 -> ok 1 2       an operation, and what it must answer
 *     wait d=5                          an operation whose answer does not matter
 *     see j=1 -> 1 q1 k1 ...            what the store must show of a job
 *
 * After a refused operation (lost, dead, exists, not_found, transition, alive) the store must show
 * what it showed before. This is always checked, not only where a line says so.
 */
#ifndef CONFORM_INCLUDED
#define CONFORM_INCLUDED (1)

#include "store.h"

typedef struct behaviour {
    const char *name, *script;
} behaviour;

static const behaviour behaviours[] = {
    /* -- the order of claims -- */
    {"smaller priorities run first, whoever came first",
     "enqueue p=2 -> 1; enqueue p=0 -> 2; enqueue p=1 -> 3; register;"
     "claim n=1 -> ok 2; claim n=2 -> ok 3; claim n=3 -> ok 1; claim n=4 -> ok"},
    {"a negative priority runs before 0",
     "enqueue -> 1; enqueue p=-1 -> 2; see j=2 -> 2 q1 k1 p-1 ready 0/1 attempt 0 at 0; register;"
     "claim n=1 -> ok 2; claim n=2 -> ok 1"},
    {"a later stage runs before an earlier one of its priority",
     "enqueue s=3 -> 1; enqueue s=3 -> 2; register; claim n=1 -> ok 1; success j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 1/3 attempt 0 at 0; wait d=1; enqueue s=1 -> 3;"
     "claim n=2 -> ok 1; success j=1 n=2 -> ok; claim n=3 -> ok 1; success j=1 n=3 -> ok;"
     "see j=1 -> 1 q1 k1 p0 succeeded 2/3 attempt 1 at 1; claim n=4 -> ok 2"},
    {"in a lane the earlier run_at goes first, then the smaller id",
     "enqueue d=3 -> 1; enqueue d=1 -> 2; enqueue d=1 -> 3; enqueue -> 4; register;"
     "claim n=1 -> ok 4; wait d=5; claim n=2 -> ok 2; claim n=3 -> ok 3; claim n=4 -> ok 1"},
    {"a claim takes no more than its limit, and all that it may",
     "enqueue; enqueue; enqueue; register; claim n=1 l=2 -> ok 1 2; claim n=2 l=9 -> ok 3;"
     "claim n=3 l=9 -> ok"},
    {"a job is not due before its time, and an empty answer tells when",
     "enqueue d=10 -> 1; register; claim n=1 -> ok due 10; wait d=9; claim n=2 -> ok due 1;"
     "wait d=1; claim n=3 -> ok 1"},
    {"a past run_at is lifted to now",
     "wait d=10; enqueue d=-7 -> 1; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 10"},
    {"a lower bound hides what stands at or before it, and nothing else",
     "enqueue -> 1; enqueue -> 2; enqueue -> 3; register; claim n=1 l=9 a=0 i=2 -> ok 3;"
     "claim n=2 l=9 a=0 i=9 -> ok; claim n=3 l=9 -> ok 1 2"},
    {"kinds of others are left alone, and do not count as due",
     "enqueue k=2 -> 1; enqueue k=2 d=5 -> 2; enqueue k=1 -> 3; register;"
     "claim n=1 l=9 f=2 -> ok 3; claim n=2 l=9 f=2 -> ok; claim n=3 l=9 -> ok 1;"
     "claim n=4 -> ok due 5"},
    {"an upper bound hides what is due after it",
     "enqueue -> 1; wait d=5; enqueue -> 2; wait d=5; enqueue -> 3; register;"
     "claim n=1 l=9 b=5 -> ok 1 2; claim n=2 l=9 a=5 b=9 -> ok; claim n=3 l=9 a=5 b=10 -> ok 3"},
    {"queues of one priority are claimed from in the order of the lanes",
     "enqueue q=2 -> 1; enqueue q=1 -> 2; register; claim n=1 -> ok 2; claim n=2 -> ok 1"},

    /* -- ends -- */
    {"success is the end; nothing moves the job on",
     "enqueue -> 1; register; claim n=1 -> ok 1; success j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 succeeded 0/1 attempt 1 at 0; success j=1 n=1 -> lost;"
     "retry j=1 n=1 -> lost; cancel j=1 -> transition; revive j=1 -> transition; claim n=2 -> ok"},
    {"a retry waits for its backoff, which doubles",
     "enqueue -> 1; register; claim n=1 -> ok 1; retry j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 1 at 5; claim n=2 -> ok due 5; wait d=5;"
     "claim n=3 -> ok 1(attempt 2); retry j=1 n=3 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 2 at 15"},
    {"a retry may name its delay", "enqueue -> 1; register; claim n=1; retry j=1 n=1 d=2 -> ok;"
                                   "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 1 at 2"},
    {"the attempt that reaches the queue's limit fails the job, and says so",
     "policy m=2; enqueue -> 1; register; claim n=1; retry j=1 n=1 d=0 -> ok;"
     "claim n=2 -> ok 1(attempt 2); retry j=1 n=2 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 2 at 0 Max retries (2) exceeded; claim n=3 -> ok"},
    {"a job's own limit wins over its queue's",
     "policy m=5; enqueue m=1 -> 1; register; claim n=1; retry j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 at 0 Max retries (1) exceeded"},
    {"a time-out is a failed attempt",
     "enqueue m=2 -> 1; register; claim n=1; timeout j=1 n=1 -> ok; wait d=5; claim n=2;"
     "timeout j=1 n=2 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 2 at 5 Max retries (2) exceeded"},
    {"a discard fails at once, by no limit",
     "enqueue -> 1; register; claim n=1; discard j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 at 0"},
    {"a snooze gives its attempt back",
     "enqueue m=1 -> 1; register; claim n=1; snooze j=1 n=1 d=7 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 snoozes 1 at 7; wait d=7; claim n=2;"
     "snooze j=1 n=2 d=1;"
     "wait d=1; claim n=3 -> ok 1; retry j=1 n=3 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 snoozes 2 at 8 Max retries (1) exceeded"},
    {"after the snoozes that its queue allows a job fails",
     "policy s=2; enqueue -> 1; register; claim n=1; snooze j=1 n=1 d=0 -> ok; claim n=2;"
     "snooze j=1 n=2 d=0 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 snoozes 2 at 0;"
     "claim n=3 -> ok 1; snooze j=1 n=3 d=0 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 snoozes 2 at 0 Max snoozes (2) exceeded;"
     "revive j=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 0"},
    {"a kind's limit of snoozes goes before its queue's",
     "policy s=9; policy k=1 s=1; enqueue -> 1; register; claim n=1; snooze j=1 n=1 d=0 -> ok;"
     "claim n=2; snooze j=1 n=2 d=0 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 snoozes 1 at 0 Max snoozes (1) exceeded"},
    {"snoozes are forgotten with the stage, and kept by a retry, a release and a wait",
     "policy s=2; enqueue s=2 -> 1; enqueue k=2 -> 2; register; claim n=1 f=2 -> ok 1;"
     "snooze j=1 n=1 d=0 -> ok; claim n=2 f=2; retry j=1 n=2 d=0 -> ok; claim n=3 f=2;"
     "release j=1 n=3 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/2 attempt 1 snoozes 1 at 0;"
     "claim n=4 f=2; success j=1 n=4 -> ok; see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 0"},
    {"a release gives its attempt back, and the job runs at once",
     "enqueue -> 1; register; claim n=1; wait d=3; release j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 3; claim n=2 -> ok 1"},
    {"a handler's cancelled ends the job",
     "enqueue -> 1; register; claim n=1; cancelled j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 0"},

    /* -- stages -- */
    {"a stage done hands the next one its payload, and attempts begin anew",
     "enqueue s=2 -> 1; register; claim n=1; retry j=1 n=1 d=0; claim n=2 -> ok 1(attempt 2);"
     "wait d=1; success j=1 n=2 x=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 1 {\"n\": 2}; claim n=3 -> ok 1;"
     "success j=1 n=3 -> ok; see j=1 -> 1 q1 k1 p0 succeeded 1/2 attempt 1 at 1 {\"n\": 2}"},
    {"without a new payload the next stage has the old one",
     "enqueue s=2 -> 1; register; claim n=1; success j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 0"},
    {"attempts may count over all stages",
     "policy m=3 x=1; enqueue s=2 -> 1; register; claim n=1; success j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 1 at 0; claim n=2; retry j=1 n=2 d=0;"
     "claim n=3 -> ok 1(attempt 3); retry j=1 n=3 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 1/2 attempt 3 at 0 Max retries (3) exceeded"},
    {"a retry stays in its stage",
     "enqueue s=2 -> 1; register; claim n=1; success j=1 n=1; claim n=2; retry j=1 n=2 d=4 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 1 at 4"},
    {"a payload written under a lost token is not the next stage's",
     "enqueue s=2 -> 1; register w=1; claim w=1 n=1; wait d=31; register w=2; rescue w=1 -> dead 1;"
     "claim w=2 n=1 u=1 -> ok 1(suspect); success j=1 w=1 n=1 x=1 -> lost;"
     "success j=1 w=2 n=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 31"},

    /* -- cancel -- */
    {"a ready job is cancelled at once",
     "enqueue -> 1; cancel j=1 -> ok; see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 0 at 0;"
     "register; claim n=1 -> ok; cancel j=1 -> transition"},
    {"a running job is asked; its worker hears of it",
     "enqueue -> 1; register; claim n=1; cancel j=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 running 0/1 attempt 1 cancel w1 n1 at 0; beat -> ok cancel 1;"
     "cancel j=1 -> ok; beat -> ok cancel 1; cancelled j=1 n=1 c=1 -> ok; beat -> ok;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 0"},
    {"success after a cancel request is success",
     "enqueue -> 1; register; claim n=1; cancel j=1; success j=1 n=1 c=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 succeeded 0/1 attempt 1 at 0"},
    {"a discard after a cancel request fails",
     "enqueue -> 1; register; claim n=1; cancel j=1; discard j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 at 0"},
    {"a retry that did not hear of the request is cancelled",
     "enqueue -> 1; register; claim n=1; cancel j=1; retry j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 0"},
    {"so is a snooze", "enqueue -> 1; register; claim n=1; cancel j=1; snooze j=1 n=1 d=9 -> ok;"
                       "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 0"},
    {"so is a release", "enqueue -> 1; register; claim n=1; cancel j=1; release j=1 n=1 -> ok;"
                        "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 0"},
    {"so is a stage that is done, where more are left",
     "enqueue s=2 -> 1; register; claim n=1; cancel j=1; success j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/2 attempt 1 at 0"},
    {"a job whose worker dies after the request is cancelled",
     "enqueue -> 1; register; claim n=1; cancel j=1; wait d=31; rescue -> dead 0;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 0"},
    {"a parked job can be cancelled",
     "enqueue k=2 -> 1; register k=2; claim n=1; park j=1 n=1 -> ok; cancel j=1 -> ok;"
     "see j=1 -> 1 q1 k2 p0 cancelled 0/1 attempt 0 at never"},
    {"nobody can cancel what is not there", "cancel j=7 -> not_found; revive j=7 -> not_found"},

    /* -- revive -- */
    {"a failed job runs again, from its stage, with a clean record",
     "policy m=1; enqueue s=2 -> 1; register; claim n=1; success j=1 n=1; claim n=2;"
     "retry j=1 n=2; see j=1 -> 1 q1 k1 p0 failed 1/2 attempt 1 at 0 Max retries (1) exceeded;"
     "wait d=60; revive j=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 60;"
     "revive j=1 -> transition; claim n=3 -> ok 1; success j=1 n=3 -> ok"},
    {"a revived job keeps its own limit",
     "enqueue m=1 -> 1; register; claim n=1; retry j=1 n=1; revive j=1 -> ok; claim n=2;"
     "retry j=1 n=2; see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 at 0 Max retries (1) exceeded"},
    {"only failed jobs are revived",
     "enqueue -> 1; revive j=1 -> transition; register; claim n=1; revive j=1 -> transition;"
     "success j=1 n=1; revive j=1 -> transition; enqueue -> 2; cancel j=2;"
     "revive j=2 -> transition"},
    {"a job that failed by crashes loses its crashes when revived",
     "policy c=1; enqueue -> 1; register w=1; claim n=1; wait d=31; rescue w=1 -> dead 1;"
     "register w=2; claim w=2 n=1 u=1 -> ok 1(suspect); wait d=31; rescue w=2 -> dead 1;"
     "register w=3; claim w=3 n=1 u=2 -> ok 1(alone); wait d=31; rescue w=3 -> dead 0;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 crash 1 at 62 Max crashes (1) exceeded;"
     "revive j=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 93;"
     "register w=4; claim w=4 n=1 -> ok 1"},

    /* -- expiry -- */
    {"a job that has not begun in time is cancelled, and uses up no attempt",
     "enqueue e=5 -> 1; enqueue -> 2; register; wait d=5; claim n=1 l=9 -> ok 2 ended 1;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 0 at 0 expired; revive j=1 -> transition"},
    {"it may begin before its instant, and not at it",
     "enqueue e=5 -> 1; enqueue e=5 -> 2; register; wait d=4; claim n=1 -> ok 1; wait d=1;"
     "claim n=2 l=9 -> ok ended 1; see j=2 -> 2 q1 k1 p0 cancelled 0/1 attempt 0 at 0 expired;"
     "success j=1 n=1 -> ok; claim n=3 -> ok"},
    {"its time is counted from when it may run",
     "enqueue d=10 e=5 -> 1; enqueue d=10 e=5 -> 2; register; wait d=14; claim n=1 -> ok 1;"
     "wait d=1; claim n=2 -> ok ended 1"},
    {"a retry is as late as the first attempt, and sleeps no longer than that",
     "enqueue e=8 -> 1; register; claim n=1; retry j=1 n=1 d=60 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 1 at 8; wait d=8; claim n=2 -> ok ended 1;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 8 expired"},
    {"so does a snooze", "enqueue e=8 -> 1; register; claim n=1; snooze j=1 n=1 d=60 -> ok;"
                         "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 snoozes 1 at 8"},
    {"an attempt that has begun may end at any time; the next one is late",
     "enqueue e=2 -> 1; enqueue e=2 -> 2; register; claim n=1 l=2 -> ok 1 2; wait d=5;"
     "success j=1 n=1 -> ok; retry j=2 n=1 d=9 -> ok;"
     "see j=2 -> 2 q1 k1 p0 ready 0/1 attempt 1 at 5; claim n=2 -> ok ended 1"},
    {"a later stage is as late as the first",
     "enqueue s=2 e=3 -> 1; register; claim n=1; wait d=3; success j=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 3; claim n=2 -> ok ended 1;"
     "see j=1 -> 1 q1 k1 p0 cancelled 1/2 attempt 0 at 3 expired"},
    {"of a late job, who waits for its success is cancelled, and who waits for its failure runs",
     "enqueue e=5 -> 1; enqueue -> 2; enqueue -> 3; after j=2 i=1 x=1; after j=3 i=1 o=1; register;"
     "wait d=5; claim n=1 l=9 -> ok 3 ended 1;"
     "see j=2 -> 2 q1 k1 p0 cancelled 0/1 attempt 0 at 0"},
    {"a late job of a kind that the claim spares stays",
     "enqueue k=2 e=1 -> 1; register; wait d=1; claim n=1 f=2 -> ok; claim n=2 -> ok ended 1"},
    {"a late suspect ends, too",
     "enqueue e=40 -> 1; register w=1; claim n=1; wait d=31; register w=2; rescue w=1 -> dead 1;"
     "wait d=9; claim w=2 n=1 u=1 -> ok ended 1;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 0 at 31 expired"},
    {"a parked job is late when somebody can run it",
     "enqueue k=2 e=5 -> 1; register k=2; claim n=1; park j=1 n=1 -> ok; wait d=9;"
     "see j=1 -> 1 q1 k2 p0 ready 0/1 attempt 0 at never; unpark k=2 -> 1;"
     "claim n=2 -> ok ended 1"},
    {"a job that is revived no longer expires",
     "policy m=1; enqueue e=5 -> 1; register; claim n=1; retry j=1 n=1 -> ok; wait d=9;"
     "revive j=1 -> ok; claim n=2 -> ok 1"},
    {"a late job uses up no token of its line",
     "line z=1 t=1; enqueue z=1 e=2 -> 1; enqueue z=1 e=2 -> 2; enqueue z=1 -> 3; register;"
     "wait d=2; claim n=1 v=1 l=9 -> ok ended 1 walk q1 due 1e-06;"
     "claim n=2 v=1 l=9 -> ok ended 1 walk q1 due 1e-06; claim n=3 v=1 l=9 -> ok 3 walk q1 to 1"},
    {"nor does it take the place of a strict line",
     "line z=1 s=1; enqueue z=1 e=2 -> 1; enqueue z=1 -> 2; register; wait d=2;"
     "claim n=1 v=1 l=9 -> ok ended 1 walk q1 due 1e-06; claim n=2 v=1 l=9 -> ok 2 walk q1 to 1"},
    {"a strict line goes on when the job that held it is late",
     "line z=1 s=1; enqueue z=1 e=5 -> 1; enqueue z=1 -> 2; register;"
     "claim n=1 v=1 l=9 -> ok 1 walk q1 to 1; retry j=1 n=1 d=9 -> ok; wait d=5;"
     "claim n=2 v=1 l=9; claim n=3 v=1 l=9 z=1 -> ok 2;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 1 at 5 line 1 expired;"
     "see j=2 -> 2 q1 k1 p0 running 0/1 attempt 1 w1 n3 at 0 in line 1"},

    /* -- jobs that wait for others -- */
    {"a job waits for the success of another one",
     "enqueue -> 1; enqueue -> 2; after j=2 i=1 -> ok; see j=2 -> 2 q1 k1 p0 waiting 0/1 attempt 0 "
     "at 0; register; claim n=1 l=5 -> ok 1; claim n=2 -> ok; retry j=1 n=1 d=0;"
     "claim n=3 l=5 -> ok 1(attempt 2); wait d=5; success j=1 n=3; "
     "see j=2 -> 2 q1 k1 p0 ready 0/1 attempt 0 at 5; claim n=4 -> ok 2"},
    {"a failure holds it, and a revive continues",
     "enqueue -> 1; enqueue -> 2; after j=2 i=1; register; claim n=1 l=5 -> ok 1; discard j=1 n=1;"
     "see j=2 -> 2 q1 k1 p0 waiting 0/1 attempt 0 at 0; revive j=1 -> ok; claim n=2 l=5 -> ok 1;"
     "success j=1 n=2; claim n=3 -> ok 2"},
    {"or cancels it, and what waits for it",
     "enqueue -> 1; enqueue -> 2; enqueue -> 3; enqueue -> 4; after j=2 i=1 x=1; after j=3 i=2 x=1;"
     "after j=4 i=3 o=1; register; claim n=1 -> ok 1; discard j=1 n=1;"
     "see j=2 -> 2 q1 k1 p0 cancelled 0/1 attempt 0 at 0;"
     "see j=3 -> 3 q1 k1 p0 cancelled 0/1 attempt 0 at 0; claim n=2 -> ok 4"},
    {"it may wait for several, for a failure, or for any end",
     "enqueue -> 1; enqueue -> 2; enqueue -> 3; after j=3 i=1 o=1; after j=3 i=2 o=2; cancel j=1;"
     "see j=3 -> 3 q1 k1 p0 waiting 0/1 attempt 0 at 0; cancel j=2; register; claim n=1 -> ok 3"},
    {"what has ended before counts, too",
     "enqueue -> 1; cancel j=1; enqueue -> 2; after j=2 i=1 o=2 -> ok; enqueue -> 3;"
     "after j=3 i=1 -> ok; see j=3 -> 3 q1 k1 p0 waiting 0/1 attempt 0 at 0; enqueue -> 4;"
     "after j=4 i=1 x=1 -> ok; see j=4 -> 4 q1 k1 p0 cancelled 0/1 attempt 0 at 0;"
     "after j=1 i=2 -> refused; after j=2 i=2 -> refused; register; claim n=1 l=5 -> ok 2"},
    {"one that runs may begin to wait, and runs again afterwards",
     "enqueue -> 1; enqueue -> 2; register; claim n=1 -> ok 1; await j=1 n=1 i=2 -> ok;"
     "see j=1 -> 1 q1 k1 p0 waiting 0/1 attempt 0 at 0; claim n=2 l=5 -> ok 2; success j=2 n=2;"
     "claim n=3 -> ok 1; await j=1 n=3 i=2 -> ok; claim n=4 -> ok 1;"
     "await j=1 n=3 i=2 -> invalid; success j=1 n=4 -> ok"},
    {"but for none that waits for it, over however many others",
     "enqueue -> 1; enqueue -> 2; enqueue -> 3; after j=2 i=1; after j=3 i=2 o=2; register;"
     "claim n=1 -> ok 1; await j=1 n=1 i=3 -> invalid; await j=1 n=1 i=2 -> invalid; cancel j=2;"
     "await j=1 n=1 i=3 -> ok; claim n=2 l=5 -> ok 3"},
    {"it waits again for one that was revived",
     "enqueue -> 1; enqueue -> 2; register; claim n=1 -> ok 1; await j=1 n=1 i=2 o=2 -> ok;"
     "claim n=2 -> ok 2; discard j=2 n=2; claim n=3 -> ok 1; revive j=2;"
     "await j=1 n=3 i=2 o=2 -> ok; claim n=4 l=5 -> ok 2"},
    {"what has let it run does not hold it again, even if it is revived and ends otherwise",
     "enqueue -> 1; enqueue -> 2; after j=2 i=1 o=1; enqueue d=90 -> 3; register;"
     "claim n=1 l=5 -> ok 1; discard j=1 n=1; claim n=2 l=5 -> ok 2; revive j=1 -> ok;"
     "await j=2 n=2 i=3 -> ok; claim n=3 l=5 -> ok 1; success j=1 n=3 -> ok;"
     "see j=2 -> 2 q1 k1 p0 waiting 0/1 attempt 0 at 0; wait d=90; claim n=4 -> ok 3;"
     "success j=3 n=4; claim n=5 -> ok 2"},
    {"it keeps its time",
     "enqueue -> 1; enqueue d=20 -> 2; after j=2 i=1; register; claim n=1 l=5 -> ok 1;"
     "success j=1 n=1; see j=2 -> 2 q1 k1 p0 ready 0/1 attempt 0 at 20; claim n=2 -> ok due 20"},

    /* -- death, rescue, suspects -- */
    {"a worker is not dead before its lease is over",
     "enqueue -> 1; register; claim n=1; wait d=30; rescue -> alive; wait d=1; rescue -> dead 1"},
    {"nor when it has beaten since",
     "enqueue -> 1; register; claim n=1; wait d=31; beat; wait d=31; rescue b=1 -> alive;"
     "rescue b=0 -> dead 1"},
    {"expiry alone takes nothing away",
     "enqueue -> 1; register; claim n=1; wait d=99; success j=1 n=1 -> ok; beat -> ok"},
    {"a dead worker stays dead: no beat, no claim",
     "enqueue -> 1; register; wait d=31; rescue -> dead 0; beat -> dead; claim n=1 -> dead;"
     "register -> exists; register w=2 -> ok; claim w=2 n=1 -> ok 1"},
    {"nobody claims or beats who was never registered",
     "enqueue -> 1; claim w=5 n=1 -> dead; beat w=5 -> dead"},
    {"the jobs of a dead worker go back with their attempt, and are suspects",
     "enqueue -> 1; enqueue -> 2; register; claim n=1 l=2 -> ok 1 2; wait d=31; rescue -> dead 2;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 suspect at 31;"
     "see j=2 -> 2 q1 k1 p0 ready 0/1 attempt 0 suspect at 31; rescue -> dead 0"},
    {"no stale word of a dead worker counts, not even about its payload",
     "enqueue s=2 -> 1; register; claim n=1; wait d=31; rescue -> dead 1; success j=1 n=1 x=1 -> "
     "lost;"
     "retry j=1 n=1 -> lost; discard j=1 n=1 -> lost; snooze j=1 n=1 d=1 -> lost;"
     "release j=1 n=1 -> lost; park j=1 n=1 -> lost; cancelled j=1 n=1 -> lost;"
     "timeout j=1 n=1 -> lost"},
    {"suspects come one at a time, in a claim of their own",
     "enqueue -> 1; enqueue -> 2; register w=1; claim w=1 n=1 l=2; wait d=31; rescue w=1; register "
     "w=2;"
     "claim w=2 n=1 l=9 -> ok suspects; claim w=2 n=2 l=9 u=1 -> ok 1(suspect);"
     "claim w=2 n=3 l=9 u=1 -> ok 2(suspect)"},
    {"a heartbeat tells that suspects are ready",
     "enqueue -> 1; register w=1; claim w=1 n=1; register w=2; wait d=31; rescue w=1;"
     "beat w=2 -> ok suspects; claim w=2 n=1 u=1; beat w=2 -> ok"},
    {"a suspect that ends its attempt is none any more",
     "enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; retry j=1 w=2 n=1 d=0 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 1 at 31; claim w=2 n=2 -> ok 1(attempt 2)"},
    {"a suspect that is released stays one",
     "enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; release j=1 w=2 n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 suspect at 31"},
    {"a suspect whose worker dies gets its attempt back, and must run alone",
     "enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; wait d=31; rescue w=2 -> dead 1;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 alone at 62"},
    {"only a claim that says so takes what must run alone",
     "enqueue -> 1; enqueue -> 2; register w=1; claim w=1 n=1 l=2; wait d=31; rescue w=1 -> dead 2;"
     "register w=2; claim w=2 n=1 u=1 -> ok 1(suspect); wait d=31; rescue w=2 -> dead 1;"
     "register w=3; claim w=3 n=1 -> ok suspects alone; claim w=3 n=1 u=1 -> ok 2(suspect);"
     "claim w=3 n=2 u=1 -> ok alone; claim w=3 n=2 f=4 u=2 -> ok; claim w=3 n=3 u=2 -> ok 1(alone);"
     "claim w=3 n=4 u=2 -> ok"},
    {"a heartbeat tells where a job must run alone",
     "enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; wait d=31; rescue w=2; register w=3; beat w=3 -> ok alone 1;"
     "claim w=3 n=1 u=2; beat w=3 -> ok"},
    {"a job that ran alone when its worker died has crashed: the attempt stays",
     "enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; wait d=31; rescue w=2 -> dead 1; register w=3;"
     "claim w=3 n=1 u=2 -> ok 1(alone); wait d=31; rescue w=3 -> dead 1;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 1 crash 1 alone at 93"},
    {"a job that ran alone is released with its mark, and retried without",
     "enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; wait d=31; rescue w=2; register w=3; claim w=3 n=1 u=2;"
     "release j=1 w=3 n=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 alone at 62;"
     "claim w=3 n=2 u=2 -> ok 1(alone); retry j=1 w=3 n=2 d=0 -> ok;"
     "see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 1 at 62"},
    {"crashes count apart from retries, and end the job",
     "policy c=2; enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1 -> dead 1;"
     "register w=2; claim w=2 n=1 u=1; wait d=31; rescue w=2 -> dead 1; register w=3;"
     "claim w=3 n=1 u=2 -> ok 1(alone); wait d=31; rescue w=3 -> dead 1; register w=4;"
     "claim w=4 n=1 u=2 -> ok 1(attempt 2)(alone); wait d=31; rescue w=4 -> dead 0;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 2 crash 2 at 93 Max crashes (2) exceeded"},
    {"a crash at the last attempt is the last attempt",
     "policy m=1 c=9; enqueue -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1 -> dead 1;"
     "register w=2; claim w=2 n=1 u=1; wait d=31; rescue w=2 -> dead 1;"
     "register w=3; claim w=3 n=1 u=2; wait d=31; rescue w=3 -> dead 0;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 crash 1 at 62 Max retries (1) exceeded"},
    {"a kind's limit wins over its queue's, and a job's own over both",
     "policy m=5; policy k=1 m=2; enqueue -> 1; enqueue m=1 -> 2; enqueue k=2 -> 3; register;"
     "claim n=1 l=9 -> ok 1 2 3; retry j=1 n=1 d=0; retry j=2 n=1 -> ok; retry j=3 n=1 d=0;"
     "see j=2 -> 2 q1 k1 p0 failed 0/1 attempt 1 at 0 Max retries (1) exceeded;"
     "claim n=2 l=9 -> ok 1(attempt 2) 3(attempt 2); retry j=1 n=2 -> ok; retry j=3 n=2 d=0;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 2 at 0 Max retries (2) exceeded;"
     "see j=3 -> 3 q1 k2 p0 ready 0/1 attempt 2 at 0"},
    {"a crash at the last attempt of its kind is the last attempt",
     "policy m=2 c=9; policy k=1 m=1; enqueue -> 1; register w=1; claim w=1 n=1; wait d=31;"
     "rescue w=1 -> dead 1; register w=2; claim w=2 n=1 u=1; wait d=31; rescue w=2 -> dead 1;"
     "register w=3; claim w=3 n=1 u=2; wait d=31; rescue w=3 -> dead 0;"
     "see j=1 -> 1 q1 k1 p0 failed 0/1 attempt 1 crash 1 at 62 Max retries (1) exceeded"},
    {"a kind without a limit has its queue's again",
     "policy m=2 c=9; policy k=1 m=1; policy k=1; enqueue -> 1; register w=1; claim w=1 n=1;"
     "wait d=31; rescue w=1 -> dead 1; register w=2; claim w=2 n=1 u=1; wait d=31;"
     "rescue w=2 -> dead 1; register w=3; claim w=3 n=1 u=2; wait d=31; rescue w=3 -> dead 1"},
    {"crashes are forgotten with the stage",
     "enqueue s=2 -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2;"
     "claim w=2 n=1 u=1; wait d=31; rescue w=2; register w=3; claim w=3 n=1 u=2;"
     "wait d=31; rescue w=3; see j=1 -> 1 q1 k1 p0 ready 0/2 attempt 1 crash 1 alone at 93;"
     "register w=4; claim w=4 n=1 u=2;"
     "success j=1 w=4 n=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 93"},
    {"a rescue may come in parts",
     "enqueue; enqueue; enqueue; register; claim n=1; claim n=2; claim n=3; wait d=31;"
     "rescue l=2 -> dead 2 more; see j=3 -> 3 q1 k1 p0 running 0/1 attempt 1 w1 n3 at 0;"
     "rescue l=2 -> dead 1; rescue l=2 -> dead 0"},
    {"a worker whose lease runs out is in the news of the others; a dead one while it holds jobs",
     "enqueue; enqueue; register w=1; claim w=1 n=1; claim w=1 n=2; register w=2; wait d=10;"
     "beat w=2 -> ok; wait d=10; beat w=2 -> ok late 1; wait d=11; rescue w=1 l=1 -> dead 1 more;"
     "beat w=2 -> ok suspects late 1 overdue 1; rescue w=1 -> dead 1; beat w=2 -> ok suspects"},
    {"overdue is whose lease is over and who holds jobs",
     "enqueue; register w=1; claim w=1 n=1; register w=2; register w=3; wait d=20;"
     "beat w=3 -> ok late 1 2; wait d=11; beat w=3 -> ok late 1 2 overdue 1;"
     "success j=1 n=1 -> ok; beat w=1 n=1 -> ok late 2; beat w=3 -> ok late 2"},
    {"a worker that leaves with jobs leaves them to its rescuer",
     "enqueue; register; claim n=1; leave; beat -> dead; rescue -> dead 1"},
    {"a worker that leaves with nothing is gone", "register; leave; beat -> dead; register -> ok"},
    {"a dead worker's row goes a day later",
     "register; wait d=31; rescue; wait d=86400; prune; register -> exists; wait d=1; prune;"
     "register -> ok"},
    {"but not while a job is left in its hands",
     "enqueue; enqueue; register; claim n=1; claim n=2; wait d=31; rescue l=1 -> dead 1 more;"
     "wait d=90000; prune; register -> exists; rescue -> dead 1"},

    /* -- lost answers -- */
    {"a claim number works once",
     "enqueue; enqueue; register; claim n=1 -> ok 1; claim n=1 -> exists; claim n=2 -> ok 2"},
    {"a claim whose answer was lost gives back what still bears its token",
     "enqueue; enqueue; enqueue; register; claim n=1 l=3 -> ok 1 2 3; success j=2 n=1 -> ok;"
     "recover n=1 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 0; recover n=1 -> ok;"
     "claim n=1 -> exists; claim n=2 l=3 -> ok 1 3;"
     "success j=1 n=1 -> lost; success j=1 n=2 -> ok"},
    {"the same in parts",
     "enqueue; enqueue; enqueue; register; claim n=1 l=3 -> ok 1 2 3; recover n=1 l=2 -> ok more;"
     "claim n=2 l=3 -> ok 1 2; recover n=1 l=2 -> ok; claim n=3 l=3 -> ok 3"},
    {"a suspect comes back as one; a job whose cancel was asked for ends",
     "enqueue; register; claim n=1; wait d=31; rescue; register w=2;"
     "claim w=2 n=1 u=1 -> ok 1(suspect); recover w=2 n=1 -> ok; claim w=2 n=2 -> ok suspects;"
     "claim w=2 n=3 u=1 -> ok 1(suspect); cancel j=1;"
     "recover w=2 n=3 -> ok; claim w=2 n=4 u=1 -> ok"},
    {"an attempt whose claim was not answered does not count, even if the job is cancelled",
     "enqueue; register; claim n=1; wait d=1; cancel j=1; recover n=1 -> ok;"
     "see j=1 -> 1 q1 k1 p0 cancelled 0/1 attempt 0 at 0"},
    {"a claim that never came is burned, and can't arrive later",
     "enqueue; register; recover n=1 -> ok; claim n=1 -> exists; claim n=2 -> ok 1"},
    {"an empty claim leaves no row: its number is free",
     "register; claim n=1 -> ok; enqueue; claim n=1 -> ok 1"},
    {"the row of a settled claim goes with a heartbeat; the number is free then",
     "enqueue; enqueue; register; claim n=1 -> ok 1; success j=1 n=1; claim n=1 -> exists;"
     "beat n=1 -> ok; claim n=1 -> ok 2"},
    {"a burned number stays burned while its worker lives",
     "register; recover n=1; wait d=86401; beat; prune; enqueue; claim n=1 -> exists"},
    {"two workers may use the same number",
     "enqueue; enqueue; register w=1; register w=2; claim w=1 n=1 -> ok 1; claim w=2 n=1 -> ok 2;"
     "success j=1 w=2 n=1 -> lost; success j=2 w=2 n=1 -> ok; success j=1 w=1 n=1 -> ok"},
    {"a worker's own older claim is stale, too",
     "enqueue; register; claim n=1; release j=1 n=1; claim n=2 -> ok 1; success j=1 n=1 -> lost;"
     "success j=1 n=2 -> ok"},

    /* -- kinds, parking, sleep -- */
    {"a job of an unknown kind is parked, and comes back when its kind does",
     "enqueue k=2 p=-1 -> 1; register w=1 q=2 k=2; claim w=1 n=1; park j=1 w=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k2 p-1 ready 0/1 attempt 0 at never; claim w=1 n=2 -> ok; wait d=3;"
     "register w=2 q=2 k=4; beat w=2 -> ok spared 1 parked; unpark k=2 -> 1;"
     "see j=1 -> 1 q1 k2 p-1 ready 0/1 attempt 0 at 3; beat w=2 -> ok spared 1;"
     "claim w=2 n=1 -> ok 1"},
    {"nothing is parked while a living worker has its kind",
     "enqueue k=2 -> 1; register w=1 q=2 k=2; register w=2 q=2 k=4; claim w=1 n=1; wait d=2;"
     "park j=1 w=1 n=1 -> ok; see j=1 -> 1 q1 k2 p0 ready 0/1 attempt 0 at 2"},
    {"a dead worker's kinds do not count",
     "enqueue k=2 -> 1; register w=2 q=2 k=4; wait d=31; register w=1 q=2 k=2;"
     "beat w=1 -> ok late 2; claim w=1 n=1; park j=1 w=1 n=1 -> ok;"
     "see j=1 -> 1 q1 k2 p0 ready 0/1 attempt 0 at never"},
    {"a parked suspect stays a suspect",
     "enqueue k=2 -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2 q=2 k=2;"
     "claim w=2 n=1 u=1; park j=1 w=2 n=1 -> ok;"
     "see j=1 -> 1 q1 k2 p0 ready 0/1 attempt 0 suspect at never; unpark k=2 -> 1;"
     "claim w=2 n=2 u=1 -> ok 1(suspect)"},
    {"unpark touches one kind only",
     "enqueue k=1 -> 1; enqueue k=2 -> 2; register w=1 q=4; register w=2 q=2 k=0;"
     "claim w=2 n=1 l=2; park j=1 w=2 n=1; park j=2 w=2 n=1; unpark k=1 -> 1; unpark k=1 -> 0;"
     "see j=2 -> 2 q1 k2 p0 ready 0/1 attempt 0 at never"},
    {"a claim spares kinds that only other living workers of its queues have",
     "register w=1 q=2 k=2; register w=2 q=4 k=8; register w=3 q=6 k=14; beat w=1 -> ok spared 2;"
     "beat w=2 -> ok; beat w=3 -> ok; leave w=3; beat w=1 -> ok; register w=4 q=6 k=2;"
     "beat w=4 -> ok spared 3; beat w=1 -> ok"},
    {"a claim spares paused kinds",
     "register w=1 q=2 k=6; beat w=1 -> ok; pause k=2 -> ok; beat w=1 -> ok spared 2; pause k=1;"
     "beat w=1 -> ok spared 1 2; resume k=2; beat w=1 -> ok spared 1; resume k=1; beat w=1 -> ok"},
    {"a suspect of a kind that is spared does not count as ready",
     "enqueue k=2 -> 1; register w=1; claim w=1 n=1; wait d=31; rescue w=1; register w=2 q=2 k=2;"
     "beat w=2 -> ok suspects; pause k=2; beat w=2 -> ok spared 2; claim w=2 n=1 f=2 -> ok;"
     "claim w=2 n=2 -> ok suspects"},

    /* -- lines -- */
    {"a claim walks from line to line, from the one after the last",
     "enqueue z=1 -> 1; enqueue z=1 -> 2; enqueue z=2 -> 3; enqueue z=4 -> 4; register;"
     "claim n=1 v=1 z=1 l=2 -> ok 3 4 walk q1 to 4;"
     "claim n=2 v=1 z=4 l=1 -> ok 1 walk q1 to 1;"
     "claim n=3 v=1 z=1 l=2 -> ok 2;"
     "claim n=4 v=1 z=3 l=2 -> ok"},
    {"lines that are too few to fill a claim give more each, and the next claim goes on",
     "enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=2;"
     "enqueue z=2; enqueue z=3; register;"
     "claim n=1 v=1 l=7 -> ok 1 2 3 7 8 9 walk q1 to 3 due 1e-06;"
     "claim n=2 v=1 z=3 l=7 -> ok 4 5 6 walk q1 to 1"},
    {"few lines do not pass their limits",
     "line z=1 r=2; enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=2; enqueue z=2; register;"
     "claim n=1 v=1 l=9 -> ok 1 2 4 5 walk q1 to 2"},
    {"a visit gives the quantum times the line's weight, as far as the claim goes",
     "line z=2 v=2; enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=2; enqueue z=2; enqueue z=2;"
     "enqueue z=3; register; claim n=1 v=1 l=3 -> ok 1 4 5 walk q1 to 2;"
     "claim n=2 v=2 z=1 l=2 -> ok 6 7 walk q1 to 3"},
    {"plain jobs are taken beside lines, lane by lane",
     "enqueue z=1 -> 1; enqueue -> 2; enqueue p=-1 -> 3; enqueue z=1 p=1 -> 4; register;"
     "claim n=1 v=1 l=1 -> ok 3; claim n=2 v=1 l=2 -> ok 1 2 walk q1 to 1;"
     "claim n=3 v=1 l=2 -> ok 4 walk q1 to 1"},
    {"a claim that knows of no lines moves what it meets into them, and takes nothing of it",
     "enqueue z=1 d=1 -> 1; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 1 line 1; wait d=2;"
     "register; claim n=1 l=9 -> ok; see j=1 -> 1 q1 k1 p0 ready 0/1 attempt 0 at 2 in line 1;"
     "claim n=2 v=1 -> ok 1 walk q1 to 1"},
    {"no more jobs of a line run than its limit, and a full line says so",
     "line z=1 r=2; enqueue z=1; enqueue z=1; enqueue z=1; register;"
     "claim n=1 v=9 l=9 -> ok 1 2 walk q1 to 1; claim n=2 v=9 l=9 -> ok walk q1 due 60;"
     "success j=1 n=1 -> ok; claim n=3 v=9 l=9 -> ok 3 walk q1 to 1;"
     "retry j=3 n=3 d=4; enqueue z=1 -> 4; claim n=4 v=9 l=9 -> ok 4 walk q1 to 1"},
    {"a line with a limit of its own is not like the others of its queue",
     "line z=0 r=1; line z=2 r=0; line z=3 r=2; enqueue z=1; enqueue z=1; enqueue z=2; enqueue z=2;"
     "enqueue z=2; enqueue z=3; enqueue z=3; enqueue z=3; register;"
     "claim n=1 v=9 l=9 -> ok 1 3 4 5 6 7 walk q1 to 3"},
    {"suspects count, those that are retried do not",
     "line z=1 r=1; enqueue z=1; enqueue z=1; register w=1; claim n=1 v=1 -> ok 1 walk q1 to 1;"
     "wait d=31; rescue w=1 -> dead 1; register w=2;"
     "claim w=2 n=1 v=1 -> ok walk q1 due 60 suspects;"
     "claim w=2 n=2 u=1 -> ok 1(suspect);"
     "claim w=2 n=3 v=1 -> ok walk q1 due 60; retry j=1 w=2 n=2 d=9;"
     "claim w=2 n=4 v=1 -> ok 2 walk q1 to 1"},
    {"a new limit counts what runs already",
     "enqueue z=1; enqueue z=1; register; claim n=1 v=1 -> ok 1 walk q1 to 1; line z=1 r=1;"
     "claim n=2 v=1 -> ok walk q1 due 60; success j=1 n=1;"
     "claim n=3 v=1 -> ok 2 walk q1 to 1"},
    {"a strict line gives its next job when the last one has ended, also over retries",
     "line z=1 s=1; enqueue z=1; enqueue z=1; register; claim n=1 v=9 l=9 -> ok 1 walk q1 to 1;"
     "retry j=1 n=1 d=5; claim n=2 v=9 l=9 -> ok due 5;"
     "wait d=5; claim n=3 v=9 l=9 -> ok walk q1 due 1e-06;"
     "claim n=4 v=9 l=9 -> ok 1(attempt 2) walk q1 to 1;"
     "discard j=1 n=4 -> ok; claim n=5 v=9 l=9 -> ok 2 walk q1 to 1"},
    {"the job that holds a strict line waits for none that stands behind it",
     "line z=1 s=1; enqueue z=1 -> 1; enqueue z=1 -> 2; enqueue -> 3; register;"
     "claim n=1 v=9 -> ok 1 walk q1 to 1; await j=1 n=1 i=2 -> invalid; claim n=2 -> ok 3;"
     "await j=3 n=2 i=2 -> ok; await j=1 n=1 i=3 -> invalid; enqueue -> 4;"
     "await j=1 n=1 i=4 -> ok; claim n=3 v=9 l=9 -> ok 4; success j=4 n=3;"
     "claim n=4 v=9 l=9 -> ok 1 walk q1 to 1; success j=1 n=4;"
     "claim n=5 v=9 l=9 -> ok 2 walk q1 to 1"},
    {"a strict line beside one that always has jobs gets its turn",
     "line z=1 s=1; enqueue z=1; enqueue z=2; enqueue z=2; enqueue z=2; enqueue z=2; enqueue z=2;"
     "register; claim n=1 v=2 z=2 l=2 -> ok 1 2;"
     "claim n=2 v=2 z=2 l=2 -> ok 3 4"},
    {"a rate lets a burst begin, then one after the other",
     "line z=1 t=5 g=2; enqueue z=1; enqueue z=1; enqueue z=1; enqueue z=1; register;"
     "claim n=1 v=9 l=9 -> ok 1 2 walk q1 to 1;"
     "claim n=2 v=9 l=9 -> ok walk q1 due 2; wait d=2;"
     "claim n=3 v=9 l=9 -> ok 3 walk q1 to 1; wait d=1;"
     "claim n=4 v=9 l=9 -> ok walk q1 due 1; wait d=1;"
     "claim n=5 v=9 l=9 -> ok 4 walk q1 to 1"},
    {"a line that is paused or held gives nothing",
     "line z=1 a=1; line z=2 d=7; enqueue z=1; enqueue z=2; register;"
     "claim n=1 v=1 -> ok walk q1 due 7; wait d=7;"
     "claim n=2 v=1 -> ok 2 walk q1 to 2; line z=1 e=1; claim n=3 v=1 -> ok 1 walk q1 to 1"},
    {"a job keeps its line through stages and ends out of it",
     "line z=1 r=1; enqueue z=1 s=2 -> 1; enqueue z=1 s=2 -> 2; register;"
     "claim n=1 v=1 -> ok 1 walk q1 to 1; success j=1 n=1;"
     "see j=1 -> 1 q1 k1 p0 ready 1/2 attempt 0 at 0 in line 1;"
     "claim n=2 v=1 -> ok 1 walk q1 to 1; success j=1 n=2 -> ok;"
     "see j=1 -> 1 q1 k1 p0 succeeded 1/2 attempt 1 at 0 line 1;"
     "claim n=3 v=1 -> ok 2 walk q1 to 1"},

    /* -- messages -- */
    {"a read numbers messages 1, 2, 3 in their partition, each partition by itself",
     "send; send p=1; send; read n=1 -> held 1 2; read p=1 n=2 -> held 1;"
     "see p=0 -> part 0 acked 0 of 2 tried 2 w1 n1 to 2 until 30"},
    {"what has a number comes first; the next numbers are given when all those are acknowledged",
     "read n=1 -> idle; send; read n=2 -> held 1; send; send; read n=3 -> held 1;"
     "see p=0 -> part 0 acked 0 of 1 tried 1 w1 n3 to 1 until 30; ack o=1 l=1 -> ok 2; send;"
     "ack o=1 l=9 -> ok 3; ack o=1 l=9 -> ok 4; ack o=1 l=9 -> ok;"
     "see p=0 -> part 0 acked 4 of 4"},
    {"a look gives no numbers, and neither does a read that another holder refuses",
     "send; see p=0 -> part 0 acked 0 of 0; read n=1 -> held 1; send; read w=2 n=1 -> other w1 n1;"
     "see p=0 -> part 0 acked 0 of 1 tried 1 w1 n1 to 1 until 30"},
    {"a read stops before it has too many bytes, but takes one message",
     "send; send; send; read n=1 y=1 -> held 1 cut; ack o=1 l=9 y=1 -> ok 2 cut;"
     "ack o=1 l=9 -> ok 3"},
    {"a message that cannot be read is a dead letter, and the next one comes",
     "aside n=1 -> idle; send; send; aside n=2 -> aside; see d=1 -> dead 0:1 attempts 0;"
     "see p=0 -> part 0 acked 1 of 2; aside n=2 -> idle; read n=3 -> held 2; ack o=2 -> ok;"
     "aside n=4 b=1 -> due 1; wait d=1; aside n=5 b=1 -> aside;"
     "see d=1 -> dead 0:1 attempts 0, dead 0:2 attempts 1;"
     "see p=0 -> part 0 acked 2 of 2 failures 1"},
    {"a message of another's partition is not given up",
     "send; read n=1 -> held 1; aside w=2 n=1 -> other w1 n1; see d=1 -> none; wait d=31;"
     "aside w=2 n=2 t=1 -> aside; see d=1 -> dead 0:1 attempts 1; ack w=1 o=1 -> lost"},
    {"a read takes no more than it asks for, and reading on begins behind it",
     "send; send; send; send; read n=1 l=2 -> held 1 2; ack o=11 l=1 -> ok 3;"
     "see p=0 -> part 0 acked 2 of 4 tried 3 w1 n1 to 3 until 30; ack o=1 -> ok;"
     "see p=0 -> part 0 acked 3 of 4; read n=2 -> held 4"},
    {"what is acknowledged whole leaves no trace, and reading on finds nothing",
     "send; send; read n=1 -> held 1 2; ack o=11 l=9 -> ok;"
     "see p=0 -> part 0 acked 2 of 2; read n=2 -> idle; see p=0 -> part 0 acked 2 of 2"},
    {"a partition is one worker's at a time; another one is told whose",
     "send; send p=1; read w=1 n=5 -> held 1; read w=2 n=1 -> other w1 n5;"
     "read w=2 n=2 p=1 -> held 1; ack w=1 o=1 -> ok; read w=2 n=3 -> idle"},
    {"a retry ends the batch there: what came before is done, the rest was not delivered",
     "send; send; send; read n=1 -> held 1 2 3; ack o=12 -> ok;"
     "see p=0 -> part 0 acked 1 of 3 tried 2 failures 1 at 1; read n=2 -> due 1; wait d=1;"
     "read n=3 -> held 2(1) 3; ack o=11 -> ok; see p=0 -> part 0 acked 3 of 3"},
    {"failures double the wait, and degrade the partition to one message",
     "send; send; send; send; read n=1 -> held 1 2 3 4; ack o=2 -> ok;"
     "wait d=1; read n=2 -> held 1(1) 2 3 4; ack o=2 -> ok; read n=3 -> due 2; wait d=2;"
     "read n=4 -> held 1(2); ack o=1 l=9 -> ok 2 3; ack o=11 l=9 -> ok 4"},
    {"a reject is a dead letter and goes on",
     "send; send; send; read n=1 -> held 1 2 3; ack o=131 l=9 -> ok;"
     "see p=0 -> part 0 acked 3 of 3; see d=1 -> dead 0:2 attempts 1"},
    {"a message at its last attempt is given up, its neighbours go on",
     "policy m=2; send; send; read n=1 -> held 1 2; ack o=2 -> ok; wait d=1;"
     "read n=2 -> held 1(1) 2; ack o=2 -> ok; see d=1 -> dead 0:1 attempts 2;"
     "wait d=9; read n=3 -> held 2; ack o=1 -> ok; see d=1 -> dead 0:1 attempts 2"},
    {"attempts are each message's own",
     "policy m=3; send; send; send; read n=1 l=2 -> held 1 2; ack o=12 -> ok; wait d=1;"
     "read n=2 -> held 2(1) 3; ack o=12 -> ok; wait d=9;"
     "read n=3 -> held 3(1); ack o=2 -> ok; wait d=9; read n=4 -> held 3(2); ack o=2 -> ok;"
     "see d=1 -> dead 0:3 attempts 3; see p=0 -> part 0 acked 3 of 3 size 1"},
    {"a batch that fails without saying where comes again whole, and makes no dead letter",
     "policy m=2; send; send; read n=1 -> held 1 2; ack g=1 o=2 -> ok;"
     "see p=0 -> part 0 acked 0 of 2 tried 2 failures 1 at 1; wait d=1;"
     "read n=2 -> held 1(1) 2(1); ack g=1 o=2 -> ok; see d=1 -> none; wait d=9;"
     "read n=3 -> held 1(2); ack o=2 -> ok; see d=1 -> dead 0:1 attempts 3; wait d=9;"
     "read n=4 -> held 2(2); ack o=1 -> ok; see d=1 -> dead 0:1 attempts 3"},
    {"a batch handler may say how far it came",
     "send; send; send; read n=1 -> held 1 2 3; ack g=1 c=2 o=2 -> ok;"
     "see p=0 -> part 0 acked 2 of 3 tried 3 failures 1 at 1; wait d=1; read n=2 -> held 3(1);"
     "ack g=1 o=1 -> ok; see p=0 -> part 0 acked 3 of 3"},
    {"a batch that is rejected is dead letters",
     "send; send; read n=1 -> held 1 2; ack g=1 o=3 l=9 -> ok;"
     "see d=1 -> dead 0:1 attempts 1, dead 0:2 attempts 1"},
    {"what no handler had is given back, and costs no attempt",
     "send; send; read n=1 -> held 1 2; ack -> ok; see p=0 -> part 0 acked 0 of 2;"
     "read n=2 -> held 1 2"},
    {"a token acknowledges once",
     "send; send; read n=1 l=1 -> held 1; ack o=1 l=1 -> ok 2;"
     "ack b=0 o=1 -> lost; ack n=7 o=1 -> lost; ack o=1 -> ok; ack b=2 o=1 -> lost"},
    {"renewing is for the token that stands there, and makes the lease longer",
     "send; read n=1 -> held 1; wait d=20; renew -> ok;"
     "see p=0 -> part 0 acked 0 of 1 tried 1 w1 n1 to 1 until 50; renew n=2 -> lost;"
     "renew w=2 n=1 -> lost; ack o=1 -> ok; renew -> lost"},
    {"an expired lease that nobody took is still its holder's",
     "send; send; read n=1 l=1 -> held 1; wait d=99; renew -> ok; wait d=99;"
     "ack o=1 l=1 -> ok 2; wait d=99; ack o=1 -> ok; see p=0 -> part 0 acked 2 of 2"},
    {"a holder that stood still for its lease is followed, one message at a time",
     "send; send; read n=1 -> held 1 2; read w=2 n=1 -> other w1 n1; wait d=31;"
     "read w=2 n=2 t=1 -> held lost 2 1(1);"
     "see p=0 -> part 0 acked 0 of 2 tried 2 1 w2 n2 to 1 until 61 size 1;"
     "ack w=1 o=11 -> lost; renew w=1 -> lost; ack w=2 o=1 -> ok; read w=2 n=3 -> held 2(1)"},
    {"nobody is followed who was not watched, or has moved, or has time left",
     "send; read n=1 -> held 1; wait d=31; read w=2 n=1 -> other w1 n1;"
     "renew -> ok; wait d=31; read w=2 n=2 t=1 -> other w1 n1; wait d=1;"
     "read w=2 n=3 t=1 -> held lost 1 1(1)"},
    {"a worker's own earlier read is taken back, for no handler had it",
     "send; send; read n=1 -> held 1 2; read n=2 -> held 1 2;"
     "see p=0 -> part 0 acked 0 of 2 tried 2 w1 n2 to 2 until 30"},
    {"unless it was handed out: then it counts",
     "send; send; read n=1 -> held 1 2; read n=2 h=1 -> held lost 2 1(1)"},
    {"an older read comes too late", "send; read n=2 -> held 1; read n=1 -> busy;"
                                     "see p=0 -> part 0 acked 0 of 1 tried 1 w1 n2 to 1 until 30"},
    {"what kills its workers ends as a dead letter, and its neighbour is delivered",
     "policy m=2; send; send; read n=1 -> held 1 2; read w=2 n=1 -> other w1 n1;"
     "wait d=31; read w=2 n=2 t=1 -> held lost 2 1(1); read w=3 n=1 -> other w2 n2; wait d=31;"
     "read w=3 n=2 t=1 -> held lost 1 1(2); ack w=3 l=9 -> ok 2(1); see d=1 -> dead 0:1 attempts 2;"
     "ack w=3 o=1 -> ok; see p=0 -> part 0 acked 2 of 2 size 2 successes 1"},
};

/* Whether an answer refuses, so that nothing may have changed. */
static inline bool conform_refused(const char *answer)
{
    static const char *const words[] = {"lost",      "dead",       "exists",
                                        "not_found", "transition", "alive"};
    size_t i;

    for (i = 0; i < COUNT(words); i++) {
        if (strcmp(answer, words[i]) == 0) return true;
    }
    return false;
}

/* One line: OPERATION [-> ANSWER]. */
static void conform_line(stage *s, const char *name, const char *line)
{
    static char before[TEXT];
    const char *wanted = strstr(line, "->");
    operation d = operation_parse(line);

    show(s);
    memcpy(before, s->shown, sizeof before);
    stage_do(s, &d);
    if (wanted != NULL && strcmp(wanted + 3, s->answer) != 0) {
        fail_msg("%s, \"%s\": %s\n  answered: %s", s->on->name, name, line, s->answer);
    }
    if (!conform_refused(s->answer)) return;
    show(s);
    if (strcmp(before, s->shown) != 0) {
        fail_msg("%s, \"%s\": %s\n  was refused, and changed\n%sto\n%s", s->on->name, name, line,
                 before, s->shown);
    }
}

static void conform_run(const store *on, const behaviour *b)
{
    static stage s;
    char line[300];
    const char *p;
    size_t length;

    stage_open(&s, on);
    for (p = b->script; *p != '\0'; p += length + (p[length] == ';')) {
        length = strcspn(p, ";");
        assert_true(length < sizeof line);
        memcpy(line, p, length);
        line[length] = '\0';
        conform_line(&s, b->name, line + strspn(line, " "));
    }
}

/* A cmocka group of one test for each behaviour; state is the behaviour. */
static inline int conform(CMUnitTestFunction run, CMFixtureFunction up, CMFixtureFunction down)
{
    static struct CMUnitTest tests[COUNT(behaviours)];
    size_t i;

    for (i = 0; i < COUNT(behaviours); i++) {
        tests[i].name = behaviours[i].name;
        tests[i].test_func = run;
        tests[i].initial_state = (void *)(uintptr_t)&behaviours[i];
    }
    return cmocka_run_group_tests(tests, up, down);
}

#endif /* CONFORM_INCLUDED */
