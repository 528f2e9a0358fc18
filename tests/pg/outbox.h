/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * outbox.h -- what the tests of the outbox on Postgres share: queue o, messages whose payload is
 * their own number, single steps, scripted handlers.
 */
#ifndef OUTBOX_INCLUDED
#define OUTBOX_INCLUDED (1)

#include "pg.h"

static int32_t box; /* the id of queue o */

static inline void open_box(int partitions)
{
    jobq_pg_error error;

    if (jobq_pg_outbox_register(pg, NULL, "o", partitions, &box, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
}

static inline jobq_pg_message plain_message(int partition)
{
    jobq_pg_message m;

    memset(&m, 0, sizeof m);
    m.queue = "o";
    m.partition = partition;
    m.type = "text/plain";
    m.payload = jobq_str_from("hello");
    m.payload_bytes = true;
    return m;
}

/* Writes count messages to a partition, in one call, on conn. */
static inline void put(PGconn *conn, int partition, int count)
{
    jobq_pg_message *m = calloc((size_t)count + 1, sizeof *m);
    jobq_pg_error error;
    int i;

    for (i = 0; i < count; i++) m[i] = plain_message(partition);
    if (jobq_pg_outbox_enqueue_many(pg, conn, m, (size_t)count, NULL, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    free(m);
}

static inline verb_read_desc reader(int64_t worker, int64_t claim, int partition)
{
    verb_read_desc d;

    memset(&d, 0, sizeof d);
    d.worker = worker;
    d.claim = claim;
    d.partition = partition_id(box, partition);
    d.lease_us = 60 * SECOND;
    d.most = 10;
    return d;
}

/* Reads; the answer's letter. The caller clears *r. */
static inline char read_by(const verb_read_desc *d, verb_reading *r)
{
    jobq_pg_error error;

    if (verb_read(pg, NULL, d, r, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return r->answer;
}

/* Acknowledges all of a reading under its token; what came of it. */
static inline jobq_error ack_all(const verb_read_desc *d, const verb_reading *r)
{
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;

    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    after.acked = r->cursor.acked + r->count;
    ack.worker = d->worker;
    ack.claim = d->claim;
    ack.lease_us = d->lease_us;
    ack.partition = d->partition;
    ack.before = r->cursor.acked;
    ack.after = &after;
    return verb_ack(pg, NULL, &ack, NULL, &error);
}

/* Reads and acknowledges all of a partition; how many messages it was. */
static inline long drain(int partition)
{
    verb_read_desc d = reader(1, 1, partition);
    verb_reading r;
    long total = 0;

    d.most = 1000;
    while (read_by(&d, &r) == 'h') {
        if (ack_all(&d, &r) != JOBQ_OK) fail_msg("not acknowledged");
        total += r.count;
        verb_reading_clear(&r);
    }
    verb_reading_clear(&r);
    return total;
}

/* Messages that are not acknowledged. */
#define WAITING number("SELECT count(*) FROM jobq.message")

/* One number of the view outbox, partition 0 of queue o. */
#define BOX(column) number("SELECT " column " FROM jobq.outbox WHERE queue = 'o' AND partition = 0")

static inline void assert_text(const char *query, const char *wanted)
{
    expect_text(wanted, query);
}

#endif
