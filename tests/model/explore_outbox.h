/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_outbox.h -- the messages of the explorer's worlds: what their handlers do, the laws 10 to
 * 16 of jobq.h after each move, and the meaning of a relay's state. A part of explore.c.
 *
 * The nature of a message is a letter: g is handled; r fails each time; p, too, but a batch handler
 * says where; x is refused; k kills the process of its handler; u cannot be read, because the
 * server refuses each statement that reads it. Message i goes to partition i modulo their count. In
 * a world with late messages the first one becomes visible when its time comes, and may get a
 * number after messages that were written later. The world remembers the message of each number,
 * because acknowledged messages are deleted. A handler in a transaction of its own has handled what
 * that transaction commits.
 */

/* -- its handlers -- */

static bool killed; /* the handler that runs is killed by its message */
static world *handling;

static int32_t message_index(const world *w, int64_t partition, int64_t seq)
{
    return w->numbers[partition - 1][seq - 1] - 1;
}

static char nature_of(const world *w, int64_t partition, int64_t seq)
{
    return set->messages[message_index(w, partition, seq)];
}

static bool handled(const world *w, int64_t partition, int64_t seq)
{
    return (w->handled >> message_index(w, partition, seq) & 1) != 0;
}

static jobq_result handle_message(jobq_delivery *d, const jobq_message *message)
{
    int32_t at = message_index(handling, d->partition_id, message->seq);
    char nature = set->messages[at];

    if (nature == 'k') killed = true;
    if (nature == 'k' || nature == 'r' || nature == 'p') return JOBQ_RESULT_RETRY;
    if (nature == 'x') return JOBQ_RESULT_REJECT;
    if (!set->own) handling->handled |= 1u << at;
    return JOBQ_RESULT_SUCCESS;
}

/* A batch: what is refused is said singly, and the first that fails ends it. */
static jobq_result handle_batch(jobq_delivery *d)
{
    int32_t i;

    for (i = 0; i < d->count; i++) {
        jobq_result result = handle_message(d, &d->messages[i]);
        if (result == JOBQ_RESULT_REJECT) jobq_delivery_reject(d, i, jobq_str_from("no"));
        if (result != JOBQ_RESULT_RETRY) continue;
        if (nature_of(handling, d->partition_id, d->messages[i].seq) == 'p') {
            jobq_delivery_done(d, i);
        }
        return JOBQ_RESULT_RETRY;
    }
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result fail_message(jobq_delivery *d, const jobq_message *message)
{
    (void)d;
    (void)message;
    return JOBQ_RESULT_RETRY;
}

static int dead_or_going(const jobq_delivery *d, int64_t *remaining_us)
{
    (void)d;
    *remaining_us = JOBQ_NEVER;
    return killed ? JOBQ_STOP_LOST : JOBQ_STOP_NONE;
}

/* True: its process died of it. */
static bool deliver(world *w, int n, int32_t part, bool good)
{
    static const jobq_delivery_store ours = {keep_refusal, dead_or_going, NULL, NULL};
    static jobq_delivery d;
    jobq_message messages[JOBQ_LOOP_BATCH];
    jobq_loop *l = &w->nodes[n].loop;
    jobq_part *p = &l->relay.parts[part];
    jobq_verdict v;
    jobq_work work;
    jobq_ack ack;
    int32_t i;

    memset(&d, 0, sizeof d);
    memset(&v, 0, sizeof v);
    memset(&work, 0, sizeof work);
    work.partition_id = 1;
    work.slot = part;
    work.generation = p->generation;
    memset(messages, 0, sizeof messages);
    for (i = 0; i < p->given; i++) messages[i].seq = p->cursor.acked + 1 + i;
    d.messages = messages;
    d.count = p->given;
    d.partition_id = p->id;
    d.results = work.results;
    d.store = &ours;
    handling = w;
    killed = false;
    jobq_delivery_run(&d, !good ? fail_message : set->all ? NULL : handle_message,
                      good && set->all ? handle_batch : NULL, &v);
    if (killed) return true;
    fix_chance(w, n);
    if (!jobq_loop_delivered(l, mono_us(w), &work, &v, set->own, &ack)) {
        violate("the result of a handler was refused by the loop");
    }
    return false;
}

/* -- a handler's own transaction -- */

static wire own_ack(node *d, int32_t part)
{
    const jobq_part *p = &d->loop.relay.parts[part];
    jobq_request a;
    wire s;

    memset(&a, 0, sizeof a);
    a.kind = JOBQ_REQUEST_ACK;
    a.slot = part;
    a.worker = p->worker;
    a.claim = p->claim;
    a.partition_id = p->id;
    a.lease_us = serving.tuning[0].lease_us;
    jobq__ack_of(&d->loop, p, &a.ack);
    wire_send(&s, &a);
    s.own = true;
    return s;
}

/* It acknowledges and commits, or does not; and the loop is told, or not for sure. */
static void commit_own(world *w, int n, int32_t part, own_end end)
{
    node *d = &w->nodes[n];
    wire s = own_ack(d, part);
    jobq_error told = JOBQ_ERROR_CONNECTION;
    jobq_work work;

    if (end == OWN_COMMITTED || end == OWN_UNTOLD) execute(w, n, &s, true);
    if (end == OWN_COMMITTED) told = s.answer.error;
    if (end == OWN_ROLLED_BACK) told = JOBQ_ERROR_RETRYABLE;
    if (end == OWN_LATE) haunt(w, n, &s);
    fix_chance(w, n);
    memset(&work, 0, sizeof work);
    work.partition_id = 1;
    work.slot = part;
    work.generation = d->loop.relay.parts[part].generation;
    jobq_loop_committed(&d->loop, mono_us(w), &work, told);
}

/* Nobody waits for it any more: it may commit after all. */
static void leave_own(world *w, int n, int32_t part)
{
    wire s = own_ack(&w->nodes[n], part);

    haunt(w, n, &s);
}

/* Promise 2: what a handler does in its own transaction is there once, with its acknowledgement. */
static void check_effects(world *w, const wire *s)
{
    const jobq_ack *ack = &s->request.ack;
    int i;

    for (i = 0; i < ack->plan.done; i++) {
        int64_t seq = ack->before + 1 + i;
        uint32_t bit = 1u << message_index(w, s->request.partition_id, seq);
        if (ack->results[i] != JOBQ_RESULT_SUCCESS) continue;
        if ((w->handled & bit) != 0) violate("promise 2: message %d took effect twice", (int)seq);
        if (s->own) w->handled |= bit;
    }
}

/* Law 10, when a handler begins: all before its messages has been handled, or is a dead letter. */
static void check_begin(const world *w, const jobq_part *p)
{
    const jobq_memory_partition *row = &store(w)->partitions[p->id - 1];
    int64_t seq;

    if (p->given < 1 || p->given > p->count || p->cursor.acked + p->count > row->last) {
        violate("law 10: a handler gets messages that do not exist");
    }
    for (seq = 1; seq <= p->cursor.acked; seq++) {
        const jobq_memory_message *m = jobq__memory_message_at(store(w), p->id, seq);
        if (!handled(w, p->id, seq) && (m == NULL || !m->dead)) {
            violate("law 10: partition %d goes on after message %d, which nobody handled",
                    (int)p->id, (int)seq);
        }
    }
    if (row->holder.worker == p->worker && row->holder.claim == p->claim &&
        row->cursor.acked != p->cursor.acked && !is_forgotten(w, p->worker, p->claim)) {
        violate("law 10: a handler's first message is not the one after the acknowledged ones");
    }
}

/* -- what a statement wrote -- */

/* Nothing has cost a message an attempt: the server may have crashed, but no worker. */
static bool blameless(const world *w)
{
    return w->faults + (set->falls && w->left[MOVE_FALL] == 0) == fault_limit;
}

static void check_acknowledged(const world *w, int64_t id, const jobq_cursor *before)
{
    const jobq_memory_partition *row = &store(w)->partitions[id - 1];
    int64_t seq;

    for (seq = before->acked + 1; seq <= row->cursor.acked; seq++) {
        const jobq_memory_message *m = jobq__memory_message_at(store(w), id, seq);
        char nature = nature_of(w, id, seq);
        bool dead = m != NULL && m->dead;
        if (dead && nature == 'g' && (set->attempts > 1 || blameless(w))) {
            violate("law 15: a good message is a dead letter");
        }
        if (!dead && !handled(w, id, seq)) {
            violate("law 11: message %d of partition %d is acknowledged, but nobody handled it",
                    (int)seq, (int)id);
        }
        if (dead && strchr("xu", nature) == NULL && m->attempts < set->attempts) {
            violate("law 15: a message was given up after %d attempts", m->attempts);
        }
    }
}

static void check_taken(const world *w, const jobq_memory_partition *a, const jobq_request *p)
{
    if (a->holder.worker == 0 || a->holder.worker == p->worker) return;
    if (w->tick - w->held[p->partition_id - 1] < LEASE) {
        violate("law 13: a partition was taken from a holder that moved %d ticks ago",
                (int)(w->tick - w->held[p->partition_id - 1]));
    }
}

/* Each number is given once, to one message, and never changes. */
static void note_numbers(world *w)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) {
        const jobq_memory_message *m = &store(w)->messages[i];
        uint8_t *to, index = (uint8_t)(m->payload.ptr - set->messages + 1);
        if (m->partition_id == 0 || m->seq == 0) continue;
        to = &w->numbers[m->partition_id - 1][m->seq - 1];
        if (*to != 0 && *to != index) violate("law 10: number %d was given twice", (int)m->seq);
        *to = index;
    }
}

/* Whether a statement read a message that cannot be read. */
static bool reads_unreadable(const world *w, const wire *s)
{
    int64_t partition = s->request.partition_id, seq, count = s->answer.reading.count;

    if (count == 0) return false;
    seq = store(w)->partitions[partition - 1].cursor.acked;
    for (; count > 0; count--) {
        const jobq_memory_message *m = jobq__memory_message_at(store(w), partition, ++seq);
        if (m->payload.ptr[0] == 'u') return true;
    }
    return false;
}

static void check_messages_written(world *w, const jobq_memory *before, wire *s)
{
    const char *wrong;
    const jobq_request *p = &s->request;
    const jobq_memory_partition *a, *b;

    if (reads_unreadable(w, s)) { /* it is rolled back */
        memcpy(w->store.bytes, before, sizeof w->store.bytes);
        s->answer.error = JOBQ_ERROR_DATABASE;
        return;
    }
    wrong = laws_messages(before, store(w), s, store_us(w));
    if (wrong != NULL) violate("%s", wrong);
    if (!wire_of_part(s->request.kind)) return;
    note_numbers(w);
    a = &before->partitions[p->partition_id - 1];
    b = &store(w)->partitions[p->partition_id - 1];
    if (s->request.kind == JOBQ_REQUEST_READ && jobq__memory_holder(b, p->worker, p->claim)) {
        check_taken(w, a, p);
    }
    if (set->own && s->request.kind == JOBQ_REQUEST_ACK && s->answer.error == JOBQ_OK) {
        check_effects(w, s);
    }
    check_acknowledged(w, p->partition_id, &a->cursor);
    if (memcmp(&a->holder, &b->holder, sizeof a->holder) != 0 && b->holder.worker != 0) {
        w->held[p->partition_id - 1] = w->tick;
    }
}

/* -- in each state -- */

static void check_part(const world *w, int n, const jobq_part *p)
{
    const jobq_memory_partition *row = &store(w)->partitions[p->id - 1];

    if ((p->state != JOBQ_PART_QUEUED && p->state != JOBQ_PART_RUNNING) ||
        mono_us(w) >= p->lease_mono_us) {
        return;
    }
    if (row->holder.worker != p->worker || row->holder.claim != p->claim) {
        violate("law 13: worker %d believes in its lease of partition %d, but the store does not",
                n + 1, (int)p->id);
    }
}

static void check_outbox(const world *w)
{
    int i, n;

    for (i = 0; i < set->partitions; i++) {
        const jobq_memory_partition *row = &store(w)->partitions[i];
        if (row->holder.worker != 0 && row->last == row->cursor.acked) {
            violate("law 16: a worker holds partition %d, but there is nothing to deliver", i + 1);
        }
        if (jobq_cursor_check(&row->cursor) != JOBQ_OK) violate("a cursor is out of order");
    }
    for (n = 0; n < set->nodes; n++) {
        const jobq_loop *l = &w->nodes[n].loop;
        for (i = 0; w->nodes[n].up && i < l->relay.count; i++) {
            check_part(w, n, &l->relay.parts[i]);
        }
    }
}

static bool outbox_done(const world *w)
{
    int64_t acked = 0;
    int i;

    for (i = 0; i < set->partitions; i++) {
        acked += store(w)->partitions[i].cursor.acked;
        if (store(w)->partitions[i].cursor.tried_count > 0) return false;
    }
    return set->partitions == 0 || acked + w->hidden == (int64_t)strlen(set->messages);
}

/* -- what a state means -- */

static void put_holder(digest *g, const jobq_holder *h)
{
    put_token(g, h->worker, h->claim);
    put(g, h->worker == 0 ? 0 : h->beat * 16 + h->lease_us / TICK);
}

static void put_cursor(digest *g, const jobq_cursor *c)
{
    int32_t i;

    put(g, c->acked * 512 + c->tried_count);
    put(g, (int64_t)c->mode.state);
    put(g, (int64_t)c->mode.effective * 64 + c->mode.failures);
    put(g, (int64_t)c->mode.successes);
    for (i = 0; i < c->tried_count; i++) put(g, c->tried[i]);
}

static void put_plan(digest *g, const jobq_plan *p)
{
    put_cursor(g, &p->cursor);
    put(g, p->done * 256 + p->dead * 16 + p->failed);
    put(g, (int64_t)p->directive.kind);
    put(g, (p->directive.delay_us + TICK - 1) / TICK);
}

/* How long the store's clock is away from an instant; over is over, unless it may step back. */
static int64_t rest(const world *w, int64_t at)
{
    int64_t left = at - store_us(w), low = may(w, MOVE_STEP) ? -3 : 0;

    if (left <= low * TICK) return low;
    return left > 0 ? (left + TICK - 1) / TICK : left / TICK;
}

static void put_wire_part(digest *g, const wire *s)
{
    const jobq_request *p = &s->request;
    const jobq_answer *a = &s->answer;
    const jobq_memory_partition *row;
    int i;

    if (p->kind == JOBQ_REQUEST_LOOK) {
        put(g, a->more);
        for (i = 0; i < a->count; i++) {
            put(g, a->backlogs[i].id * 64 + a->backlogs[i].waiting);
            put(g, a->backlogs[i].acked);
            put(g, (a->backlogs[i].due_us + TICK - 1) / TICK);
            put_holder(g, &a->backlogs[i].holder);
        }
    }
    if (!wire_of_part(p->kind)) return;
    row = &store(g->w)->partitions[p->partition_id - 1];
    put(g, p->partition_id * 4096 + p->ack.before * 256 + p->ack.given * 16 +
               (p->kind == JOBQ_REQUEST_ACK ? a->reading.count : 0));
    put_token(g, p->worker, p->claim);
    put(g, row->holder.worker == p->worker && row->holder.claim > p->claim);
    put(g, a->error);
    if (p->kind == JOBQ_REQUEST_RENEW) {
        const node *d = owner(g->w, p->worker);
        put(g, d != NULL && d->loop.relay.parts[p->slot].generation == p->generation);
    }
    if (p->kind == JOBQ_REQUEST_ACK && !s->executed) {
        put(g, s->own);
        put_plan(g, &p->ack.plan);
        for (i = 0; i < p->ack.given; i++) put(g, p->ack.results[i]);
    }
    if (p->kind != JOBQ_REQUEST_READ) return;
    put(g, p->aside * 16 + p->acked);
    put_token(g, p->worker, p->handed);
    put_holder(g, &p->watched);
    if (!s->executed) return;
    put_cursor(g, &a->reading.cursor);
    put(g, a->reading.lost * 64 + a->reading.count * 2 + a->reading.busy);
    put(g, (a->reading.due_us + TICK - 1) / TICK);
    put_holder(g, &a->reading.holder);
}

static void put_part(digest *g, const jobq_part *p)
{
    const world *w = g->w;
    int i;

    put(g, p->id * 64 + (int64_t)p->state);
    put_token(g, p->worker, p->claim);
    put_token(g, p->worker, p->handed);
    put(g, ticks(w, p->due_mono_us, -LEASE - 1));
    put(g, ticks(w, p->paced_mono_us, 0));
    put(g, p->budget.rows * 64 + p->budget.single * 8 + p->refused);
    put(g, p->acked);
    put(g, p->failures * 64 + p->on * 32 + p->resent * 16 + p->renewing * 8 + p->suspect);
    if (!jobq__relay_held(p)) return;
    put_holder(g, &p->holder);
    put(g, ticks(w, p->sent_mono_us, -LEASE - 1));
    put(g, ticks(w, p->taken_mono_us, -1));
    put(g, p->size * 256 + p->count * 16 + p->given);
    if (p->state == JOBQ_PART_READING) return;
    put(g, p->lost);
    put(g, ticks(w, p->lease_mono_us, -LEASE - 1));
    put_cursor(g, &p->cursor);
    for (i = 0; i < p->count; i++) put(g, p->results[i]);
    if (jobq__relay_runs(p)) {
        put(g, ticks(w, p->budget_mono_us, -LEASE - 1));
        put(g, ticks(w, p->renew_mono_us, -LEASE - 1));
    }
    if (p->state > JOBQ_PART_RUNNING) put_plan(g, &p->plan);
}

static void put_relay(digest *g, const jobq_loop *l)
{
    const jobq_relay *r = &l->relay;
    int i;

    put(g, r->count * 16 + r->crowded * 8 + r->found * 4 + r->empty * 2 + (r->linger_us > 0));
    put(g, r->after * 64 + l->wire.budgets[JOBQ_REQUEST_LOOK].rows);
    put(g, (l->wire.well >> JOBQ_REQUEST_READ & 1) * 2 + (l->wire.well >> JOBQ_REQUEST_ACK & 1));
    put(g, ticks(g->w, r->look_mono_us, 0));
    put(g, ticks(g->w, r->missed_mono_us, 0));
    put(g, r->idle_mono_us == JOBQ_NEVER);
    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        const jobq_watch *watch = &r->watches[i];
        if (watch->id == 0) continue;
        put(g, watch->id * 2 + watch->moved);
        put_holder(g, &watch->holder);
        put(g, ticks(g->w, watch->since_mono_us, -LEASE - 1));
        put(g, ticks(g->w, watch->due_mono_us, -LEASE - 1));
    }
    put(g, r->count > 1 && r->parts[0].turn < r->parts[1].turn);
    for (i = 0; i < r->count; i++) put_part(g, &r->parts[i]);
}

static void put_outbox(digest *g, const jobq_memory *m)
{
    const world *w = g->w;
    int i;

    for (i = 0; i < set->partitions; i++) {
        const jobq_memory_partition *p = &m->partitions[i];
        int32_t since = w->tick - w->held[i];
        put_cursor(g, &p->cursor);
        put(g, p->last * 64 + p->reading);
        put_holder(g, &p->holder);
        put(g, p->holder.worker == 0 ? 0 : rest(w, p->lease_until_us));
        put(g, p->holder.worker == 0 ? 0 : since > LEASE ? LEASE : since);
        put(g, rest(w, p->run_at_us));
        put(g, may(w, MOVE_STEP) || p->beat_at_us > store_us(w) ? rest(w, p->beat_at_us) : 0);
    }
    for (i = 0; i < JOBQ_MEMORY_MESSAGES && set->partitions > 0; i++) {
        const jobq_memory_message *one = &m->messages[i];
        put(g, one->seq * 512 + one->attempts * 4 + one->dead * 2 + (one->partition_id != 0));
        put(g, one->partition_id == 0 ? 0 : one->payload.ptr - set->messages);
    }
    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) put(g, w->numbers[0][i] * 8 + w->numbers[1][i]);
    put(g, (int64_t)w->handled * 2 + w->hidden);
}

/* -- its story, and its beginning -- */

static void say_outbox(const world *w)
{
    int i;

    for (i = 0; i < set->partitions; i++) {
        const jobq_memory_partition *p = &store(w)->partitions[i];
        const node *d = owner(w, p->holder.worker);
        printf("       partition %d: %d of %d acknowledged, %d deliveries counted", i + 1,
               (int)p->cursor.acked, (int)p->last, (int)p->cursor.tried_count);
        if (d != NULL) printf(", held by worker %d", (int)(d - w->nodes) + 1);
        else if (p->holder.worker != 0) printf(", held by someone gone");
        if (p->holder.worker != 0) {
            printf(" claim %d, up to %d", (int)p->holder.claim, (int)p->reading);
        }
        printf("\n");
    }
}

static void begin_outbox(world *w)
{
    int i;

    if (set->partitions == 0) return;
    jobq__memory_outbox(store(w), 1, set->partitions);
    w->hidden = set->late_message;
    for (i = w->hidden; set->messages[i] != '\0'; i++) {
        jobq__memory_send(store(w), 1, i % set->partitions, jobq_str_from(&set->messages[i]));
    }
}

/* The first message's transaction commits at last: its row comes before all others. */
static void show_message(world *w)
{
    jobq_memory_message *m = store(w)->messages;

    memmove(&m[1], &m[0], (JOBQ_MEMORY_MESSAGES - 1) * sizeof *m);
    memset(m, 0, sizeof *m);
    m->partition_id = 1;
    m->payload = jobq_str_from(set->messages);
    w->hidden = false;
}

static void configure_outbox(void)
{
    jobq_tuning *t = &serving.tuning[0];

    if (set->partitions == 0) return;
    serving.message_queues = 1;
    serving.jobless_queues = set->jobs == 0;
    t->batch = 2;
    t->lease_us = t->budget_us = LEASE * TICK;
    t->headroom_us = TICK;
    t->retry.curve = JOBQ_CURVE_CONSTANT;
    t->retry.jitter_permille = JOBQ_NO_JITTER;
    t->retry.base_us = t->retry.cap_us = TICK;
}
