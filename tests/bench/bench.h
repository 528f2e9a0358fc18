/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * bench.h -- what the rows share: clocks, connections, the floors' tables, crews of workers,
 * figures. Every row is one function. bench.sh starts the program once for each row and run.
 */
#ifndef BENCH_H
#define BENCH_H

#include "jobq_pg.h"

#include "../harness/verbs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BENCH_QUEUE "bench"
#define BENCH_KIND "noop"
#define BENCH_PAYLOAD 100 /* bytes of JSON */
#define BENCH_BATCH 1000

extern bool bench_long;
extern bool bench_alone; /* without floors, and with the counts that peers.sh gives */

/* What peers.sh sets in the environment, such as PEERS_JOBS; usual: it does not run this. */
int bench_setting(const char *name, int usual);
int bench_many(void); /* workers or connections of a row: BENCH_MANY (2) */

/* -- clocks and chance -- */

double bench_now(void);       /* seconds, monotonic */
int64_t bench_wall_us(void);  /* microseconds since the Unix epoch */
void bench_sleep(double seconds);
double bench_cpu(pid_t pid);  /* processor time of a process, in seconds; 0: it has ended */
int bench_chance(int low, int high);
double bench_quantile(double *values, size_t count, double q); /* sorts them */

/* -- the database; any failure ends the program -- */

void bench_fail(const char *format, ...);
PGconn *bench_db(void);
void bench_sql(PGconn *db, const char *format, ...);
double bench_number(PGconn *db, const char *format, ...);
void bench_wal_reset(PGconn *db); /* a checkpoint now, so that none comes during a measurement,
                                     and log segments that can be used again */
void bench_payload(char out[BENCH_PAYLOAD + 1], long n);

/* A fresh schema with one queue and one kind, both of id 1. */
jobq_pg *bench_schema(PGconn *db, bool history);

/* Makes floor.job with the columns, defaults, indexes and storage settings of jobq.job only. */
void bench_floor_table(PGconn *db);

/* Writes count ready jobs to a table with the columns of jobq.job, in one statement. */
void bench_load(PGconn *db, const char *table, long count);

/* -- crews: workers with a handler that counts each job -- */

typedef struct bench_crew {
    int count;
    jobq_pg *pg;
    jobq_pg_worker *workers[64];
} bench_crew;

void bench_seen_reset(long jobs);  /* job ids 1 .. jobs must be seen once each */
long bench_seen_wrong(void);       /* ids not seen exactly once */
jobq_outcome bench_noop(jobq_call *call);
void bench_crew_start(bench_crew *crew, jobq_pg *pg, int workers, jobq_handler handler,
                      const jobq_loop_config *loop);
long bench_crew_flushed(const bench_crew *crew);
void bench_crew_stop(bench_crew *crew);

/* Moves a lane's lower bound to this job, unless it is further already. */
void bench_lane_move(jobq_lane *lane, const jobq_job *job);

/* -- producers and floors: threads with a connection each -- */

typedef struct bench_gang bench_gang;
typedef long (*bench_step)(PGconn *db, void *state, long step); /* returns rows done; 0: end */

/* Runs step in threads until all steps are done, a step returns 0, or the seconds are over. Returns
 * rows a second. */
double bench_gang_run(int threads, bench_step step, void *state, long steps, double seconds);
bench_gang *bench_gang_start(int threads, bench_step step, void *state, long steps, double seconds);
long bench_gang_rows(bench_gang *gang);
long bench_gang_end(bench_gang *gang); /* waits, and returns all rows */

/* -- messages from producers to a reader, with their order -- */

#define BENCH_PRODUCERS 16
#define BENCH_OWN 10000000 /* the number in a payload is producer * BENCH_OWN + the producer's own,
                              from 0, which ascends within a partition */

/* The reader calls this for each message. Ends the program if an earlier one comes later. */
void bench_through_see(int partition, const char *payload);
long bench_through_seen(void);

/* Runs step in each producer, with its element of states, for count messages in transactions of
 * put, and waits until the reader has seen each of them once. Returns messages a second. */
double bench_through(int producers, bench_step step, void *states, size_t size, int put,
                     long count);

/* A step of the floor for arrays: inserts BENCH_BATCH rows into floor.job. */
long bench_floor_array(PGconn *db, void *state, long step);

/* Deletes the rows of floor.job in batches. Returns rows a second. */
double bench_floor_delete(int connections, long rows);

/* -- figures -- */

typedef enum bench_sense {
    BENCH_RATIO_AT_LEAST, /* figure / floor >= target */
    BENCH_RATIO_AT_MOST,  /* figure / floor <= target */
    BENCH_AT_MOST,        /* figure <= target */
    BENCH_AT_LEAST,       /* figure >= target */
    BENCH_SHOWN           /* no target */
} bench_sense;

/* Prints one figure with its floor (0: none). label must not have a tab. */
void bench_figure(const char *label, double value, const char *unit, const char *floor_label,
                  double floor, bench_sense sense, double target);
void bench_missing(const char *label, const char *why); /* "not there yet" */
void bench_note(const char *label, const char *text);    /* a text between the figures */
FILE *bench_data(const char *name); /* a file of points for the plots */

/* -- rows, by file -- */

void row_drain(void), row_drain_history(void), row_results(void), row_one(void);
void row_sleepers(void), row_wait(void);
void row_bulk(void), row_single(void), row_keepup(void), row_cost(void);
void row_latency(void), row_schedule(void), row_snapshot(void), row_idle(void);
void row_depth(void), row_size(void);
void row_outbox_read(void), row_outbox_held(void), row_outbox_enqueue(void), row_outbox_end(void);
void row_table_read(void), row_table_get(void);
void row_fires(void), row_ticks(void), row_replace(void);
void row_lines(void), row_lines_many(void), row_lines_late(void), row_lines_held(void);
void row_line_first(void);
void row_permits(void), row_flows(void);
void row_soak(void);
void row_outbox_one(void), row_outbox_worker(void), row_outbox_latency(void);
void row_outbox_through(void);
void row_topics(void), row_topics_through(void);
void row_pgq_through(void), row_pgq_latency(void), row_pgq_topics(void); /* peers/pgq.c */
void row_build(void), row_memory(void), row_delay(void), row_beats(void), row_scale(void);
void row_locked(void), row_disk(void), row_full(void), row_hoard(void), row_look(void);

#endif
