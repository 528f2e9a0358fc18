/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * simulate_outbox.h -- the messages of the simulator: producers whose transactions commit late or
 * not at all, handlers that acknowledge through the loop or in a transaction of their own, and the
 * laws 10 to 16 of jobq.h. A part of simulate.c.
 *
 * The nature of a message is a letter: g is handled, f fails now and then, r fails each time, x is
 * refused, k kills the process of its handler, s mostly takes longer than its handler may.
 */

static mail *mail_at(int64_t partition, int64_t seq)
{
    return &w->mails[w->sent[partition - 1][seq - 1]];
}

static mail *mail_of(const jobq_memory_message *m) { return (mail *)(uintptr_t)m->payload.ptr; }

static int name_of(const mail *m) { return (int)(m - w->mails) + 1; }

static jobq_memory_partition *row_of(int64_t id) { return &store->partitions[id - 1]; }

/* ---- producers ------------------------------------------------------------------------------- */

static char draw_nature(void)
{
    static const char bad[] = "ffrrxxks";

    if (w->pure || !chance(30)) return 'g';
    return bad[between(0, (int64_t)sizeof bad - 2)];
}

/* A transaction writes messages, and ends in a while. */
static void write_mails(int32_t count)
{
    int32_t first = w->mail_count, i;
    event *e;

    if (first + count > MAILS) return;
    for (i = 0; i < count; i++) {
        mail *m = &w->mails[w->mail_count++];
        m->partition = (int32_t)between(1, w->partitions);
        m->nature = draw_nature();
    }
    e = plan(w->now_us + (chance(20) ? between(0, 60 * SECOND) : latency()), EVENT_SEND, -1);
    e->arg = first;
    e->generation = (uint32_t)count;
}

static int32_t free_messages(void)
{
    int32_t count = 0, i;

    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) count += store->messages[i].partition_id == 0;
    return count;
}

static void wake_sleepers(int32_t most);

/* ... and commits, unless it is rolled back, or finds no room. */
static void commit_mails(int32_t first, int32_t count)
{
    bool commits = free_messages() >= count && (w->pure || w->ill || !chance(100));
    int32_t i;

    trace("messages %d to %d are %s", first + 1, first + count, commits ? "there" : "rolled back");
    for (i = first; commits && i < first + count; i++) {
        mail *m = &w->mails[i];
        jobq_str payload = {(const char *)m, (size_t)m->bytes}; /* nobody reads them */
        w->sent[m->partition - 1][w->sent_count[m->partition - 1]++] = i;
        m->committed = true;
        if (!jobq__memory_send(store, OUTBOX, m->partition - 1, payload)) violate("no room");
    }
    if (commits) wake_sleepers(count);
}

/* ---- checks: what a statement wrote ---------------------------------------------------------- */

/* Promise 6: numbers count 1, 2, 3 ... in the order of the commits. */
static void check_numbers(int64_t id)
{
    int64_t seq = before->partitions[id - 1].last;

    if (row_of(id)->last > w->sent_count[id - 1]) violate("promise 6: a number for no message");
    while (++seq <= row_of(id)->last) {
        const jobq_memory_message *m = jobq__memory_message_at(store, id, seq);
        if (m == NULL || mail_of(m) != mail_at(id, seq)) {
            violate("promise 6: message %d of partition %d is not the one that was committed there",
                    (int)seq, (int)id);
        }
    }
}

/* Promise 1: what is not acknowledged, and each dead letter, is in the store. */
static void check_kept(void)
{
    int32_t counts[PARTITIONS] = {0}, i;

    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) {
        const jobq_memory_message *m = &store->messages[i];
        if (m->partition_id == 0) continue;
        if (m->seq == 0 || m->seq > row_of(m->partition_id)->cursor.acked)
            counts[m->partition_id - 1]++;
        else if (m->dead) mail_of(m)->seen = true;
    }
    for (i = 0; i < w->partitions; i++) {
        if (counts[i] != w->sent_count[i] - (int32_t)store->partitions[i].cursor.acked) {
            violate("promise 1: a message of partition %d is lost", i + 1);
        }
    }
    for (i = 0; i < w->mail_count; i++) {
        mail *m = &w->mails[i];
        if (m->dead && !m->seen) violate("promise 1: dead letter %d is lost", i + 1);
        m->seen = false;
    }
}

/* Law 15: a dead letter is one by its own fault, or was alone when its worker was lost, its handler
 * abandoned or its transaction rolled back. */
static void check_dead(const wire *s, mail *m, int32_t attempts)
{
    int32_t given = s->request.ack.given;

    m->dead = true;
    w->sum.dead++;
    if (strchr("xtbw", m->nature) == NULL && attempts < w->attempts) {
        violate("law 15: message %d was given up after %d attempts", name_of(m), attempts);
    }
    if (m->nature != 'g') return;
    if (given == 0 ? m->size_before != 1 : given > 1 || !m->unlucky) {
        violate("law 15: good message %d is a dead letter", name_of(m));
    }
}

/* own: the handler's effects and this are one commit. */
static void check_acknowledged(const wire *s, bool own)
{
    int64_t id = s->request.partition_id, seq = before->partitions[id - 1].cursor.acked;

    while (++seq <= row_of(id)->cursor.acked) {
        const jobq_memory_message *letter = jobq__memory_message_at(store, id, seq);
        mail *m = mail_at(id, seq);
        bool dead = letter != NULL && letter->dead;
        if (dead) check_dead(s, m, letter->attempts);
        if (dead && letter->attempts != m->had) {
            violate("law 14: message %d was delivered %d times, and %d are counted", name_of(m),
                    m->had, letter->attempts);
        }
        if (own && !dead) m->handled = true;
        if (!dead && !m->handled) {
            violate("law 11: message %d of partition %d is acknowledged, and nobody handled it",
                    (int)seq, (int)id);
        }
        if (!dead && strchr("rxktbwa", m->nature) != NULL) {
            violate("law 15: bad message %d is acknowledged", name_of(m));
        }
    }
}

/* Law 14: deliveries that a handler had, or may have had. */
static void give_back(int64_t id, int64_t from, int64_t last)
{
    for (; from <= last; from++) mail_at(id, from)->had--;
}

/* A delivery is read: how many messages are in it. */
static void note_read(int64_t id, int32_t count)
{
    int64_t seq = row_of(id)->cursor.acked;
    int32_t i;

    for (i = 1; i <= count; i++) {
        mail *m = mail_at(id, seq + i);
        m->had++;
        m->size_before = m->size;
        m->size = count;
        m->unlucky = false;
        if (!m->committed) violate("promise 6: a message is read that was never committed");
    }
}

/* What an acknowledgement leaves, and what was read without an answer, no handler had. */
static void note_left(const wire *s, const jobq_memory_partition *a)
{
    const jobq_request *p = &s->request;
    int64_t last = a->reading;

    if (p->kind == JOBQ_REQUEST_ACK && s->answer.error == JOBQ_OK) {
        while (last > a->cursor.acked && (p->ack.results[last - a->cursor.acked - 1] ==
               JOBQ_RESULT_LEFT || last - a->cursor.acked > p->ack.given)) {
            last--;
        }
        give_back(p->partition_id, last + 1, a->reading);
    } else if (p->kind == JOBQ_REQUEST_READ && a->holder.worker == p->worker &&
               a->holder.claim != p->handed && !s->answer.reading.busy &&
               (!p->aside || s->answer.reading.aside)) {
        give_back(p->partition_id, a->cursor.acked + 1, a->reading);
    }
}

/* Law 13: a partition is taken from a holder that its taker saw standing still for a lease. */
static void check_taken(const wire *s, const jobq_memory_partition *a)
{
    const jobq_request *p = &s->request;
    int32_t i;

    if (a->holder.worker == 0 || a->holder.worker == p->worker) return;
    w->sum.taken_over++;
    for (i = 0; i < w->partitions; i++) {
        const jobq_memory_partition *o = &store->partitions[i];
        if (o->holder.worker != p->worker || !w->taken[i]) continue;
        if (mail_at(i + 1, o->cursor.acked + 1)->nature != 'w') { /* else no handler ever runs */
            violate("law 15: a worker takes partition %d beside %d, which is not done",
                    (int)p->partition_id, i + 1);
        }
    }
    w->taken[p->partition_id - 1] = true;
    if (w->now_us - w->held_us[p->partition_id - 1] < a->holder.lease_us * 999 / 1000) {
        violate("law 13: partition %d was taken from a holder that moved %.3f s ago",
                (int)p->partition_id, (double)(w->now_us - w->held_us[p->partition_id - 1]) / 1e6);
    }
}

static void check_parts(int64_t id);

static void check_part_written(const wire *s, bool own)
{
    const jobq_request *p = &s->request;
    const jobq_memory_partition *a = &before->partitions[p->partition_id - 1];
    const jobq_memory_partition *b = row_of(p->partition_id);
    bool holds = jobq__memory_holder(b, p->worker, p->claim);

    check_numbers(p->partition_id);
    note_left(s, a);
    check_acknowledged(s, own);
    if (b->holder.worker != a->holder.worker || b->cursor.acked > a->cursor.acked) {
        w->taken[p->partition_id - 1] = false;
    }
    if (p->kind == JOBQ_REQUEST_READ && holds) check_taken(s, a);
    if (memcmp(&a->holder, &b->holder, sizeof a->holder) != 0) {
        w->held_us[p->partition_id - 1] = w->now_us;
    }
    if (p->kind != JOBQ_REQUEST_RENEW) note_read(p->partition_id, s->answer.reading.count);
    check_parts(p->partition_id);
}

static void check_messages_written(const wire *s, bool own)
{
    const char *wrong = laws_messages(before, store, s, store_us());

    if (wrong != NULL) violate("%s", wrong);
    if (wire_of_part(s->request.kind)) check_part_written(s, own);
}

/* ---- checks: what the workers have ----------------------------------------------------------- */

/* Law 13: a worker that holds a partition's lease by its own clock holds it in the store. */
static void check_parts(int64_t id)
{
    int32_t n, i;

    for (n = 0; n < node_count; n++) {
        const node *d = &w->nodes[n];
        for (i = 0; d->up && i < d->loop.relay.count; i++) {
            const jobq_part *p = &d->loop.relay.parts[i];
            const jobq_memory_partition *row = row_of(p->id);
            if (p->id != id || mono_us(d) >= p->lease_mono_us) continue;
            if (p->state != JOBQ_PART_QUEUED && p->state != JOBQ_PART_RUNNING) continue;
            if (row->holder.worker != p->worker || row->holder.claim != p->claim) {
                violate("law 13: worker %d may deliver partition %d, but the store gave it away",
                        n, (int)id);
            }
        }
    }
}

static void check_outbox(void)
{
    int32_t i;

    for (i = 1; i <= w->partitions; i++) {
        const jobq_memory_partition *p = row_of(i);
        check_parts(i);
        if (p->holder.worker != 0 && p->last == p->cursor.acked) {
            violate("law 16: partition %d is held, and there is nothing to deliver", i);
        }
        if (jobq_cursor_check(&p->cursor) != JOBQ_OK) violate("a cursor is out of order");
    }
    check_kept();
}

/* Law 10: a handler gets contiguous messages, right behind what is acknowledged; so each that comes
 * again was in a delivery that is not. */
static void check_begin(int n, const jobq_part *p)
{
    const jobq_memory_partition *row = row_of(p->id);
    int64_t seq;
    int32_t i;

    check_parts(p->id);
    if (row->cursor.acked != p->cursor.acked || p->given < 1 || p->given > p->count ||
        p->cursor.acked + p->count > row->last) {
        violate("law 10: worker %d delivers messages %d to %d of partition %d, and %d is "
                "acknowledged, %d there", n, (int)p->cursor.acked + 1,
                (int)p->cursor.acked + p->given, (int)p->id, (int)row->cursor.acked,
                (int)row->last);
    }
    for (seq = 1; seq <= p->cursor.acked; seq++) {
        const mail *m = mail_at(p->id, seq);
        if (!m->handled && !m->dead) violate("law 10: message %d was skipped", name_of(m));
    }
    for (i = 1; i <= p->given; i++) {
        mail *m = mail_at(p->id, p->cursor.acked + i);
        w->sum.delivered++;
        w->sum.redelivered += m->begun++ > 0;
    }
}

/* ---- handlers -------------------------------------------------------------------------------- */

static struct {
    bool killed, own, heeds;
    int64_t at_us;
    int32_t n, part;
    uint32_t generation;
} running; /* the handler that runs */

static jobq_result handle_message(jobq_delivery *d, const jobq_message *message)
{
    mail *m = mail_at(d->partition_id, message->seq);

    if (m->nature == 'k') running.killed = true;
    if (m->nature == 'k' || m->nature == 'r' || (m->nature == 'f' && chance(400))) {
        return JOBQ_RESULT_RETRY;
    }
    if (m->nature == 'x' || m->nature == 't') return JOBQ_RESULT_REJECT;
    if (!running.own) m->handled = true;
    return JOBQ_RESULT_SUCCESS;
}

/* Says where it failed, or does not; stops when it is told to, or does not. */
static jobq_result handle_batch(jobq_delivery *d)
{
    bool tells = chance(500);
    int32_t i;

    for (i = 0; i < d->count; i++) {
        jobq_result result;
        if (i > 0 && running.heeds && jobq_delivery_stopping(d, NULL) != JOBQ_STOP_NONE) {
            jobq_delivery_done(d, i);
            return JOBQ_RESULT_SUCCESS;
        }
        result = handle_message(d, &d->messages[i]);
        if (tells && result != JOBQ_RESULT_REJECT) jobq_delivery_done(d, i);
        if (result == JOBQ_RESULT_RETRY) return result;
        if (result == JOBQ_RESULT_REJECT) jobq_delivery_reject(d, i, jobq_str_from("no"));
    }
    if (tells) jobq_delivery_done(d, d->count);
    return JOBQ_RESULT_SUCCESS;
}

static int handler_stopping(const jobq_delivery *d, int64_t *remaining_us)
{
    const node *o = &w->nodes[running.n];

    (void)d;
    *remaining_us = JOBQ_NEVER;
    if (running.killed) return JOBQ_STOP_LOST;
    return (int)jobq__delivery_stop(&o->loop, mono_us(o), running.part,
                                            running.generation);
}

/* A handler of messages is at its end: what it says about count messages behind acked. */
static void run_handler(const jobq_part *p, uint8_t *results, jobq_verdict *v)
{
    static const jobq_delivery_store ours = {keep_refusal, handler_stopping, NULL, NULL};
    static jobq_delivery d;
    jobq_message messages[JOBQ_LOOP_BATCH];
    bool each = running.n % 2 == 0;
    int32_t i;

    memset(&d, 0, sizeof d);
    memset(messages, 0, sizeof messages);
    memset(v, 0, sizeof *v);
    for (i = 0; i < p->given; i++) messages[i].seq = p->cursor.acked + 1 + i;
    d.messages = messages;
    d.count = p->given;
    d.partition_id = p->id;
    d.results = results;
    d.store = &ours;
    jobq_delivery_run(&d, each ? handle_message : NULL, each ? NULL : handle_batch, v);
}

/* A delivery that nobody finished. A message that was alone in it may be blamed. */
static void blame(int64_t partition, int64_t acked, int32_t given)
{
    if (given == 1) mail_at(partition, acked + 1)->unlucky = true;
}

/* ---- a handler's own transaction ------------------------------------------------------------- */

/* Its COMMIT is on its way, on a connection of its own. */
static void send_commit(int n, int32_t part)
{
    node *d = &w->nodes[n];
    jobq_part *p = &d->loop.relay.parts[part];
    static jobq_request a;
    event *e;
    int32_t i;

    for (i = 0; i < COMMITS && w->commits[i].used;) i++;
    JOBQ_ASSERT(i < COMMITS);
    w->commits[i].used = true;
    w->commits[i].generation = p->generation;
    jobq__ask_for(&a, JOBQ_REQUEST_ACK);
    jobq__name_part(&d->loop, p, &a);
    jobq__ack_of(&d->loop, p, &a.ack);
    wire_send(&w->commits[i].wire, &a);
    e = plan(w->now_us + latency(), EVENT_COMMIT, n);
    e->arg = i;
}

static bool ails_now(mood m);
static bool refuses_commit(const wire *s);

/* It is executed, or rolled back; and its answer comes, or does not. A process that is gone may
 * have sent it, or not. */
static void on_commit(const event *e, bool gone)
{
    commit *c = &w->commits[e->arg];
    bool faults = rough(), away = w->now_us < w->outage_us || ails_now(MOOD_SILENT);
    bool lost = (faults && chance(30)) || away || ails_now(MOOD_DEAF);
    event *answer;

    if ((faults && chance(20)) || refuses_commit(&c->wire)) {
        c->wire.answer.error = JOBQ_ERROR_RETRYABLE;
        blame(c->wire.request.partition_id, c->wire.request.ack.before, c->wire.request.ack.given);
    } else if (!away && (!lost && !gone ? true : chance(500))) {
        memcpy(before, store, sizeof *store);
        wire_execute(&c->wire, store, QUEUE_BITS, 0, store_us());
        check_messages_written(&c->wire, true);
        w->sum.statements++;
    }
    w->sum.unknown += lost;
    trace("worker %d: a handler's transaction ends, %s%s", e->node,
          jobq_enum_name(JOBQ_ENUM_ERROR, c->wire.answer.error), lost ? ", and nobody knows" : "");
    if (lost) c->wire.answer.error = JOBQ_ERROR_CONNECTION;
    answer = plan(w->now_us + latency(), EVENT_COMMITTED, e->node);
    answer->arg = e->arg;
    answer->life = e->life;
}

static void on_committed(const event *e, bool gone)
{
    commit *c = &w->commits[e->arg];
    node *d = &w->nodes[e->node];

    if (!gone && d->paused) {
        put_off(e);
        return;
    }
    c->used = false;
    if (gone) return;
    told_committed(&d->loop, mono_us(d), c->wire.request.slot, c->generation,
                         c->wire.answer.error);
    if (!sleeps_on(e->node)) step(e->node);
}

/* ---- deliveries ------------------------------------------------------------------------------ */

static int64_t delivery_time(const node *d, const jobq_part *p)
{
    int64_t time = chance(300) ? 0 : between(0, 100 * MS);
    int32_t i;

    if (rough() && chance(5)) time = between(0, d->loop.served.tuning[OUTBOX - 1].lease_us);
    for (i = 1; i <= p->given; i++) {
        if (mail_at(p->id, p->cursor.acked + i)->nature != 's') continue;
        return p->budget_mono_us - mono_us(d) + between(0, 40 * SECOND);
    }
    return time;
}

static void begin_messages(int n, const jobq_part *p, int32_t part)
{
    event *e;

    check_begin(n, p);
    trace("worker %d: starts messages %d to %d of partition %d", n, (int)p->cursor.acked + 1,
          (int)p->cursor.acked + p->given, (int)p->id);
    e = plan(w->now_us + delivery_time(&w->nodes[n], p), EVENT_DELIVERED, n);
    e->arg = part;
    e->generation = p->generation;
}

static void on_delivered(const event *e)
{
    node *d = &w->nodes[e->node];
    jobq_part *p = &d->loop.relay.parts[e->arg];
    uint8_t results[JOBQ_LOOP_BATCH] = {0};
    jobq_verdict v;

    if (d->paused) {
        put_off(e);
        return;
    }
    if (p->generation != e->generation || p->state != JOBQ_PART_RUNNING) return; /* abandoned */
    memset(&running, 0, sizeof running);
    running.own = chance(w->own);
    running.heeds = chance(700);
    running.n = e->node;
    running.part = e->arg;
    running.generation = e->generation;
    run_handler(p, results, &v);
    if (running.killed) {
        crash(e->node);
        return;
    }
    w->taken[p->id - 1] = false; /* it survived them */
    trace("worker %d: messages of partition %d are handled, %d, %d", e->node, (int)p->id,
          (int)v.result, (int)v.processed);
    told_delivered(&d->loop, mono_us(d), e->arg, e->generation, &v, results, running.own);
    if (running.own) send_commit(e->node, e->arg);
    if (!sleeps_on(e->node)) step(e->node);
}

/* A handler that took too long: its connection is cut. */
static void abandon_messages(int n, const jobq_request *a)
{
    node *d = &w->nodes[n];
    const jobq_part *p = &d->loop.relay.parts[a->slot];

    trace("worker %d: abandons its messages of partition %d", n, (int)p->id);
    blame(p->id, p->cursor.acked, p->given);
    w->sum.abandoned++;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void settle_outbox(void)
{
    static const int64_t leases[] = {2, 6, 30};
    jobq_tuning *t = &w->served.tuning[OUTBOX - 1];

    w->partitions = (int32_t)between(4, SOME_PARTITIONS);
    w->attempts = (int32_t)between(w->pure ? 6 : 2, 6);
    w->own = between(0, 2) * 400; /* none, some, most */
    t->batch = (int32_t)between(1, chance(500) ? 2 : JOBQ_LOOP_BATCH);
    t->threshold = (uint32_t)between(1, 3);
    t->lease_us = leases[between(0, 2)] * SECOND;
    t->budget_us = between(1, 30) * SECOND;
    w->served.message_queues = w->served.jobless_queues = 1u << (OUTBOX - 1);
    jobq__memory_outbox(store, OUTBOX, w->partitions);
}

/* All that was sent is acknowledged. */
static bool outbox_done(void)
{
    int32_t i;

    for (i = 0; i < w->partitions; i++) {
        if (store->partitions[i].cursor.acked < w->sent_count[i]) return false;
    }
    return true;
}

/* How long the bad messages that are left may keep their partitions after the last fault. */
static int64_t bad_messages_time(void)
{
    jobq_tuning t = jobq_tuning_defaults(&w->served.tuning[OUTBOX - 1]);
    int64_t left = 0;
    int32_t i;

    for (i = 0; i < w->mail_count; i++) {
        left += w->mails[i].nature != 'g' && !w->mails[i].handled && !w->mails[i].dead;
    }
    return left * w->attempts * (t.lease_us + t.budget_us + 60 * SECOND);
}

static void count_mails(void)
{
    int32_t i;

    for (i = 0; i < w->mail_count; i++) {
        w->sum.messages += w->mails[i].committed;
        w->sum.rolled_back += !w->mails[i].committed;
    }
}
