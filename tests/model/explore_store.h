/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_store.h -- transactions as Postgres runs them in READ COMMITTED, as far as the steps of
 * explore_steps.h need them. A part of explore.c.
 *
 * The world's store holds what is committed. What open transactions have locked or written is kept
 * separately, row by row: a written row has one writer, which holds its lock, and nobody else sees
 * the change before the commit. Each statement reads its own snapshot and the writes of its own
 * transaction. Before it locks or writes a row, it looks at the newest committed version of the row
 * (EvalPlanQual). A statement that meets a lock waits. It keeps its snapshot and the locks that it
 * has, and is executed again when the other transaction has ended.
 *
 * The index of a row is its place in the store, in a range for each table. A row of the table
 * sleeper is a worker's mark "asleep"; a row of the table kind is the mark "parked". For the tables
 * of flows see explore_flows.h.
 */
enum { KEY_SHARE = 1, SHARE, NO_KEY_UPDATE, UPDATE }; /* two conflict if their sum is over 4 */

typedef struct txn {
    world *w;
    wire *s;
    backend *b;
    int id;
    jobq_memory *seen;       /* by its statement: a copy, which the statement may change */
    const jobq_memory *last; /* the newest version of each row that it may see or has written */
    uint32_t parked;         /* kinds that are marked, by its snapshot */
} txn;

static jobq_memory *memory_of(const image *i) { return (jobq_memory *)(void *)(uintptr_t)i->bytes; }

/* -- locks -- */

typedef enum lock_end { LOCK_HELD, LOCK_WAITS, LOCK_GONE } lock_end;


/* Whether a row is nobody's: no open transaction has it. */
static bool unlocked(const world *w, int row)
{
    int i;

    for (i = 0; i < BACKENDS && w->rows.locks[row][i] == 0;) i++;
    return i == BACKENDS;
}

static bool lock(txn *t, int row, int mode)
{
    uint8_t *held = t->w->rows.locks[row];
    int i;

    for (i = 0; i < BACKENDS; i++) {
        if (i == t->id || held[i] == 0 || held[i] + mode <= 4) continue;
        t->b->waits = (uint8_t)(i + 1);
        return false;
    }
    if (held[t->id] < mode) held[t->id] = (uint8_t)mode;
    return true;
}

static void note_write(txn *t, int row)
{
    JOBQ_ASSERT(t->w->rows.locks[row][t->id] >= NO_KEY_UPDATE);
    t->w->rows.writer[row] = (uint8_t)(t->id + 1);
}

static bool wrote(const world *w, int id, int row) { return w->rows.writer[row] == id + 1; }

/* -- rows -- */

static bool flows(void);
static void overlay_flows(const world *w, int id, jobq_memory *m);
static void clear_flow_row(rows *r, int row);
static void own_no_nudges(world *w, int id);

static jobq_memory_job *write_job(txn *t, int i)
{
    jobq_memory_job *row = &t->w->rows.jobs[i];

    if (!wrote(t->w, t->id, JOB_ROW + i)) *row = jobq__memory_jobs(t->last)[i];
    note_write(t, JOB_ROW + i);
    return row;
}

static jobq_memory_worker *write_worker(txn *t, int i)
{
    jobq_memory_worker *row = &t->w->rows.workers[i];

    if (!wrote(t->w, t->id, WORKER_ROW + i)) *row = jobq__memory_workers(t->last)[i];
    note_write(t, WORKER_ROW + i);
    return row;
}

static jobq_memory_claim *write_claim(txn *t, int i)
{
    jobq_memory_claim *row = &t->w->rows.claims[i];

    if (!wrote(t->w, t->id, CLAIM_ROW + i)) *row = jobq__memory_claims(t->last)[i];
    note_write(t, CLAIM_ROW + i);
    return row;
}

static void write_mark(txn *t, int row, bool on)
{
    t->w->rows.marks[row] = on;
    note_write(t, row);
}

/* The rows that a transaction has written, as it alone sees them. */
static void overlay(const world *w, int id, image *to, uint32_t *parked)
{
    jobq_memory *m = memory_of(to);
    int i;

    for (i = 0; i < JOBS; i++) {
        if (!wrote(w, id, JOB_ROW + i)) continue;
        jobq__memory_jobs(m)[i] = w->rows.jobs[i];
        if (i >= m->job_count) m->job_count = i + 1;
    }
    for (i = 0; i < ROWS; i++) {
        jobq_memory_worker *row = &jobq__memory_workers(m)[i];
        bool asleep = row->asleep;
        if (wrote(w, id, WORKER_ROW + i)) *row = w->rows.workers[i];
        if (wrote(w, id, WORKER_ROW + i) && row->id != 0) row->asleep = asleep;
        if (wrote(w, id, SLEEPER_ROW + i)) row->asleep = w->rows.marks[SLEEPER_ROW + i];
    }
    for (i = 0; i < CLAIM_ROWS; i++) {
        if (wrote(w, id, CLAIM_ROW + i)) jobq__memory_claims(m)[i] = w->rows.claims[i];
    }
    for (i = 0; i < KINDS; i++) {
        if (!wrote(w, id, KIND_ROW + i)) continue;
        *parked &= ~((uint32_t)1 << i);
        *parked |= (uint32_t)w->rows.marks[KIND_ROW + i] << i;
    }
    overlay_flows(w, id, m);
}

static int worker_place(const jobq_memory *m, int64_t id)
{
    const jobq_memory_worker *row = id == 0 ? NULL : jobq__memory_worker_of(m, id);

    return row == NULL ? -1 : (int)(row - jobq__memory_workers(m));
}

/* The worker's row, locked and read again: NULL where it is gone. -1 as place: it never was. */
static const jobq_memory_worker *worker_again(const txn *t, int place, int64_t id)
{
    const jobq_memory_worker *row = place < 0 ? NULL : &jobq__memory_workers(t->last)[place];

    return row == NULL || row->id != id ? NULL : row;
}

static bool job_holds(const jobq_memory *m, int i, int64_t worker, int64_t claim)
{
    return jobq_job_holds(&jobq__memory_jobs(m)[i].job, worker, claim);
}

/* Whether a job bears the token of a claim's row. */
static bool claim_held(const jobq_memory *m, const jobq_memory_claim *c)
{
    int i;

    for (i = 0; i < m->job_count && !job_holds(m, i, c->worker, c->number);) i++;
    return i < m->job_count;
}

typedef enum insert_end { INSERTED, KNOWN, WAITS } insert_end;

/* The primary key (worker, number) waits for the transaction that inserted or deleted it. */
static insert_end insert_claim(txn *t, int64_t worker, int64_t number, int64_t burned_at_us)
{
    jobq_memory_claim *row;
    int i, place = -1;

    for (i = 0; i < CLAIM_ROWS; i++) {
        const jobq_memory_claim *kept = &jobq__memory_claims(t->last)[i];
        int writer = t->w->rows.writer[CLAIM_ROW + i];
        bool ours = writer == 0 || writer == t->id + 1;
        if (kept->worker == worker && kept->number == number && ours) return KNOWN;
        row = ours ? NULL : &t->w->rows.claims[i];
        if ((kept->worker == worker && kept->number == number) ||
            (row != NULL && row->worker == worker && row->number == number)) {
            t->b->waits = (uint8_t)writer;
            return WAITS;
        }
        if (kept->worker == 0 && writer == 0 && place < 0) place = i;
    }
    JOBQ_ASSERT(place >= 0); /* else the world needs more CLAIM_ROWS */
    lock(t, CLAIM_ROW + place, UPDATE);
    row = write_claim(t, place);
    row->worker = worker;
    row->number = number;
    row->burned_at_us = burned_at_us;
    return INSERTED;
}

/* Ids of workers are random: nobody waits for one. Returns the place. */
static int insert_worker(txn *t, int64_t id)
{
    int i = 0;

    for (; i < ROWS; i++) {
        if (jobq__memory_workers(t->last)[i].id == 0 && unlocked(t->w, WORKER_ROW + i)) break;
    }
    JOBQ_ASSERT(i < ROWS); /* else the world needs more ROWS */
    lock(t, WORKER_ROW + i, UPDATE);
    write_worker(t, i)->id = id;
    return i;
}

/* -- the life of a transaction -- */

static int open_count(const world *w)
{
    int i, count = 0;

    for (i = 0; i < BACKENDS; i++) count += w->backends[i].step != 0;
    return count;
}

static void clear_row(rows *r, int row)
{
    r->writer[row] = 0;
    r->marks[row] = false;
    if (row < WORKER_ROW) memset(&r->jobs[row - JOB_ROW], 0, sizeof r->jobs[0]);
    else if (row < CLAIM_ROW) memset(&r->workers[row - WORKER_ROW], 0, sizeof r->workers[0]);
    else if (row < SLEEPER_ROW) memset(&r->claims[row - CLAIM_ROW], 0, sizeof r->claims[0]);
    else clear_flow_row(r, row);
}

/* Its writes are forgotten, its locks are free, and who waited for it may go on. */
static void close_backend(world *w, int id)
{
    int i;

    for (i = 0; i < LOCKS; i++) {
        if (wrote(w, id, i)) clear_row(&w->rows, i);
        w->rows.locks[i][id] = 0;
    }
    for (i = 0; i < BACKENDS; i++) {
        if (w->backends[i].waits == id + 1) w->backends[i].waits = 0;
    }
    memset(&w->backends[id], 0, sizeof w->backends[id]);
}

/* A connection that the server gives up: its transaction is rolled back. slot: 0 is none. */
static void roll_back(world *w, uint8_t *slot)
{
    if (*slot != 0) close_backend(w, *slot - 1);
    *slot = 0;
}

/* In worlds without flows jobq._promote, which each function that ends jobs calls, is done here, at
 * once. */
static void publish(world *w, int id, wire *s)
{
    bool promoted = flows() && w->backends[id].flow.decided != 0;
    int i;

    overlay(w, id, &w->store, &w->parked);
    own_no_nudges(w, id);
    for (i = 0; i < store(w)->job_count && !flows(); i++) {
        if (!wrote(w, id, JOB_ROW + i)) continue;
        promoted |= jobq__memory_promote(store(w), job_at(w, i), w->backends[id].now_us);
    }
    if (wire_is_flush(s->request.kind)) s->answer.more = promoted;
    close_backend(w, id);
}

static void check_deadlock(const world *w, int id)
{
    int at = w->backends[id].waits, steps_left = BACKENDS;

    while (at != 0 && at != id + 1 && steps_left-- > 0) at = w->backends[at - 1].waits;
    if (at == id + 1) violate("two transactions wait for each other's locks: a deadlock");
}
