/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * simulate_ill.h -- servers that fail at some things, and the laws that hold all the same. A part
 * of simulate.c.
 *
 * Besides its busy world each seed has a world like this. The server always refuses some rows, may
 * need more time for statements with more bytes, and at times answers nothing, or answers
 * everything with an error. Then it recovers, and all healthy rows must end well. At last new work
 * comes, the server fails for ever, and all workers are asked to stop.
 *
 * Every fourth seed has five times as many partitions as a loop has places.
 *
 * The nature of a job is a letter:
 *
 *     g  healthy
 *     c  COMPLETE is refused, SETTLE is accepted
 *     o  the result of its first attempt is refused
 *     r  each result is refused in the form that its handler gave it
 *     d  as r, and a failed attempt is refused, too
 *     n  every statement about it is refused
 *     b  its payload cannot be sent: each claim that would hand it out fails
 *     w  its payload is so large that it never arrives in time
 *
 * Messages have these natures beside those of simulate_outbox.h:
 *
 *     b  it cannot be sent; w as above
 *     t  its handler rejects it, with a text that is refused
 *     a  each acknowledgement of what its handler did is refused
 */

enum { ILL_JOBS = 300, ILL_MAILS = 500, CROWD = 5 * JOBQ_LOOP_PARTITIONS };

/* ---- what the server refuses ----------------------------------------------------------------- */

/* A job's result as the statement carries it. What a worker gives back unhandled has no text. */
static bool refuses_result(const jobq_ending *it, jobq_request_kind kind)
{
    bool made = it->refused == 0 && it->decision.state == JOBQ_STATE_SUCCEEDED;

    switch (w->tales[it->job - 1].nature) {
    case 'c': return kind == JOBQ_REQUEST_COMPLETE;
    case 'o': return made && job_of(it->job)->attempt == 1;
    case 'r': return made;
    case 'd': return made || it->refused == 1;
    case 'n': return true;
    default: return false;
    }
}

/* No healthy job's result may be made plainer. */
static int64_t refused_in(const wire *s)
{
    int64_t refused = 0;
    int i;

    for (i = 0; i < s->request.ending_count; i++) {
        const jobq_ending *it = &s->request.endings[i];
        char nature = w->tales[it->job - 1].nature;
        if (refuses_result(it, s->request.kind) && refused == 0) refused = it->job;
        if (it->refused > 0 && strchr("ordn", nature) == NULL) {
            violate("the result of job %d, %c, is taken for refused", (int)it->job, nature);
        }
    }
    return refused;
}

static bool cannot_be_sent(int64_t id, int64_t bytes)
{
    return w->tales[id - 1].nature == 'b' || job_of(id)->bytes > bytes;
}

/* Whether an acknowledgement has a text, or an outcome, that the server refuses. */
static bool refuses_ack(const wire *s)
{
    const jobq_ack *ack = &s->request.ack;
    int i;

    if (s->request.kind != JOBQ_REQUEST_ACK) return false;
    for (i = 0; i < ack->given && i < ack->plan.done; i++) {
        char nature = mail_at(s->request.partition_id, ack->before + i + 1)->nature;
        if (nature == 'a') return true;
        if (nature == 't' && !ack->bare) return true;
    }
    return false;
}

/* The messages that the answer carries. */
static int32_t messages_in(const wire *s)
{
    return s->answer.error == JOBQ_OK ? s->answer.reading.count : 0;
}

static bool refuses_messages(const wire *s)
{
    int64_t id = s->request.partition_id;
    int32_t count = messages_in(s), i;

    for (i = 1; i <= count; i++) {
        if (mail_at(id, row_of(id)->cursor.acked + i)->nature == 'b') return true;
    }
    return false;
}

/* Before the statement is carried out. True: it is refused as it came. */
static bool refuses(wire *s)
{
    jobq_request_kind kind = s->request.kind;

    if (wire_is_flush(kind)) s->refused = refused_in(s);
    if (kind == JOBQ_REQUEST_SET_ASIDE && cannot_be_sent(s->request.id, s->request.bytes)) {
        s->stuck = s->request.id;
    }
    if (!refuses_ack(s)) return false;
    s->executed = true;
    s->answer.error = JOBQ_ERROR_DATABASE;
    return true;
}

/* After it: an answer with a row that cannot be sent rolls it back. True: so it was. */
static bool rolls_back(wire *s)
{
    int i;

    if (s->request.kind == JOBQ_REQUEST_CLAIM) {
        for (i = 0; i < s->answer.claimed.count && s->stuck == 0; i++) {
            int64_t id = s->answer.claimed.jobs[i].id;
            if (w->tales[id - 1].nature == 'b') s->stuck = id;
        }
        return s->stuck != 0 && wire__stuck_claim(s, store);
    }
    if (!wire_of_part(s->request.kind) || !refuses_messages(s)) return false;
    memcpy(store, before, sizeof *store);
    s->answer.reading.count = 0;
    s->answer.error = JOBQ_ERROR_DATABASE;
    return true;
}

/* ---- what takes its time --------------------------------------------------------------------- */

static int64_t bytes_in(const wire *s)
{
    int64_t bytes = 0, id = s->request.partition_id;
    int32_t count = wire_of_part(s->request.kind) ? messages_in(s) : 0, i;

    for (i = 1; i <= count; i++) bytes += mail_at(id, row_of(id)->cursor.acked + i)->bytes;
    if (s->request.kind != JOBQ_REQUEST_CLAIM || s->answer.error != JOBQ_OK) return bytes;
    for (i = 0; i < s->answer.claimed.count; i++) bytes += s->answer.claimed.jobs[i].bytes;
    return bytes;
}

static int64_t carry_us(int64_t bytes) { return w->rate == 0 ? 0 : bytes * SECOND / w->rate; }

/* An answer leaves when the one before it has, and takes its time. */
static void answer_later(int n, int i)
{
    node *d = &w->nodes[n];
    packet *p = &d->flight[i];

    if (w->now_us < w->ill_until && w->mood == MOOD_DEAF) p->answer_us = JOBQ_NEVER;
    if (p->answer_us < w->now_us) p->answer_us = w->now_us;
    if (i > 0 && p->answer_us < d->flight[i - 1].answer_us) {
        p->answer_us = d->flight[i - 1].answer_us;
    }
    if (p->answer_us == JOBQ_NEVER) return;
    p->answer_us += carry_us(bytes_in(&p->wire));
    plan(p->answer_us, EVENT_ANSWER, n)->generation = d->line;
}

/* A statement comes to a server that is ill. True: it is not carried out, now or for ever. */
static bool ails(int n, int i)
{
    wire *s = &w->nodes[n].flight[i].wire;

    if (w->now_us >= w->ill_until) return false;
    if (w->mood == MOOD_SILENT) {
        if (w->ill_until == JOBQ_NEVER) return true;
        plan(w->ill_until, EVENT_EXECUTE, n)->generation = w->nodes[n].line;
        return true;
    }
    if (w->mood != MOOD_ERRORS || s->request.kind == JOBQ_REQUEST_CONNECT) return false;
    s->executed = true;
    s->answer.error = w->ill_error;
    answer_later(n, i);
    return true;
}

/* What becomes of a handler's own transaction. */
static bool ails_now(mood m) { return w->ill && w->now_us < w->ill_until && w->mood == m; }

static bool refuses_commit(const wire *s)
{
    return ails_now(MOOD_ERRORS) || (w->ill && refuses_ack(s));
}

/* ---- laws ------------------------------------------------------------------------------------ */

/* While the server is well, and no process or connection has just been lost, some row comes to its
 * end, or a result of a bad one is taken, within this time.
 *
 * A statement takes at most the time of an answer, and 10 s pass before the next of its kind: that
 * is the longest pause before a connection is tried again, and a refused statement waits 5 s. To
 * find one bad row takes 12 statements: 5 that halve 32 rows, 3 of it alone, and at most 4 to name
 * it, to ask for it again, to set it aside and to read on. A row in the hands of a dead worker
 * comes back in 4 leases: its lease ends, a rescuer watches it for a lease, two more if the
 * rescuer has just begun. */
static int64_t progress_bound(void)
{
    return 4 * w->config.lease_us + 12 * (w->config.answer_us + 10 * SECOND);
}

/* A partition with messages that are due is read within this time, not counting the times when no
 * worker may read, since a job runs alone (law 6) or the dead come first (law 18): such a time ends
 * within the bound above. All others may be read before
 * it by one thread: each has it for its turn of 0.1 s, the delivery that it began then (0.1 s), and
 * the look and the read that follow. Each message that is too large to arrive costs as much as a
 * bad row above, since everything waits with it. */
static int64_t turn_bound(void)
{
    return progress_bound() * (1 + w->heavy) + w->partitions * SECOND / 2;
}

/* Bounds count from the last thing that disturbs the workers. */
static int64_t quiet_since(int64_t us) { return us > w->disturbed_us ? us : w->disturbed_us; }

static void disturb(void) { w->disturbed_us = w->now_us; }

static void note_wait(int64_t *longest, int64_t since)
{
    if (w->now_us - since > *longest) *longest = w->now_us - since;
}

static bool healthy(int64_t id) { return strchr("gco", w->tales[id - 1].nature) != NULL; }

/* A result was taken: of any job its end, of a bad one also an attempt. */
static void note_progress(const wire *s)
{
    int i;

    for (i = 0; i < s->request.ending_count && s->answer.error == JOBQ_OK; i++) {
        const jobq_ending *it = &s->request.endings[i];
        bool ends = jobq_state_final(it->decision.state) || it->refused > 0;
        if (s->errors[i] == JOBQ_OK && ends) w->job_ended_us = w->now_us;
    }
}

/* What a statement came to. */
static void note_served(const wire *s)
{
    int64_t id = s->request.partition_id;

    if (wire_is_flush(s->request.kind)) note_progress(s);
    else if (s->request.kind == JOBQ_REQUEST_SET_ASIDE && s->answer.done) {
        w->job_ended_us = w->now_us;
    }
    if (!wire_of_part(s->request.kind) || s->answer.error != JOBQ_OK) return;
    if (s->request.kind == JOBQ_REQUEST_READ && !s->answer.reading.aside && messages_in(s) == 0) {
        return;
    }
    if (s->request.kind != JOBQ_REQUEST_RENEW) w->served_us[id - 1] = w->now_us;
}

static void check_progress(void)
{
    int64_t left = 0, since;
    int32_t open = 0, i;

    for (i = 0; i < node_count; i++) left += w->nodes[i].up ? w->nodes[i].loop.stats.left : 0;
    if (left != w->left_before) w->job_ended_us = w->now_us;
    w->left_before = left;
    for (i = 0; i < store->job_count; i++) {
        open += healthy(i + 1) && !jobq_state_final(job_of(i + 1)->state);
    }
    if (open == 0) w->no_jobs_us = w->now_us;
    since = quiet_since(w->no_jobs_us > w->job_ended_us ? w->no_jobs_us : w->job_ended_us);
    note_wait(&w->sum.still_us, since);
    if (w->now_us - since <= progress_bound()) return;
    violate("%d healthy jobs are there, and none has ended for %.1f s", open,
            (double)(w->now_us - since) / 1e6);
}

static bool any_may_read(void)
{
    int n;

    for (n = 0; n < node_count; n++) {
        if (w->nodes[n].up && !w->nodes[n].loop.suspects.halts) return true;
    }
    return false;
}

static void check_turns(void)
{
    bool may = any_may_read();
    int32_t i;

    if (may || w->job_ended_us > w->may_read_us) w->may_read_us = w->now_us;
    if (w->now_us - quiet_since(w->may_read_us) > progress_bound()) {
        violate("no worker takes anything for %.1f s, and no job has ended meanwhile",
                (double)(w->now_us - quiet_since(w->may_read_us)) / 1e6);
    }

    for (i = 0; i < w->partitions; i++) {
        const jobq_memory_partition *p = &store->partitions[i];
        if (p->cursor.acked == w->sent_count[i] || p->run_at_us > store_us() || !may) {
            w->served_us[i] = w->now_us;
        }
        note_wait(&w->sum.waited_us, quiet_since(w->served_us[i]));
        if (w->now_us - quiet_since(w->served_us[i]) <= turn_bound()) continue;
        violate("nobody reads partition %d, which has messages, for %.1f s", i + 1,
                (double)(w->now_us - quiet_since(w->served_us[i])) / 1e6);
    }
}

static void check_ill(void)
{
    if (w->now_us < w->ill_until) disturb();
    if (w->farewell) return;
    check_progress();
    check_turns();
}

/* Healthy rows ended well, bad ones apart: a failed job, a dead letter; or a job that nobody can
 * write about is left to a rescuer. */
static void check_ends(void)
{
    int i;

    for (i = 0; i < store->job_count; i++) {
        const jobq_job *job = job_of(i + 1);
        char nature = w->tales[i].nature;
        bool well = job->state == (healthy(i + 1) ? JOBQ_STATE_SUCCEEDED : JOBQ_STATE_FAILED);
        if (well || (may_be_left(job) && left_by_its_worker(job))) continue;
        violate("job %d, %c, is %s at the end", i + 1, nature,
                jobq_enum_name(JOBQ_ENUM_STATE, job->state));
    }
    for (i = 0; i < w->mail_count; i++) {
        const mail *m = &w->mails[i];
        if (!m->committed || (m->nature == 'g' ? m->handled && !m->dead : m->dead)) continue;
        violate("message %d, %c, is %s at the end", i + 1, m->nature,
                m->dead ? "a dead letter" : m->handled ? "handled" : "not handled");
    }
}

/* ---- producers ------------------------------------------------------------------------------- */

/* Of a payload that arrives in an eighth of the time of an answer, or sooner. */
static int64_t draw_bytes(int64_t most)
{
    int64_t fits = w->rate == 0 ? most : w->rate / 8 * w->config.answer_us / SECOND;

    return chance(700) ? between(0, 4000) : between(0, fits < most ? fits : most);
}

static int64_t draw_weight(char nature, int64_t most)
{
    return nature == 'w' ? 2 * w->rate * w->config.answer_us / SECOND : draw_bytes(most);
}

static char draw_ill(const char *natures, int64_t permille)
{
    char nature = chance(permille) ? natures[between(0, (int64_t)strlen(natures) - 1)] : 'g';

    if (w->farewell) return 'g';
    return (char)(nature == 'w' && (w->rate == 0 || w->crowd) ? 'b' : nature);
}

static void produce_ill(int32_t count)
{
    while (count-- > 0 && store->job_count < JOBS) {
        jobq_job like = jobq_job_new(0);
        char nature = draw_ill("cordnbww", 120);
        int64_t id;
        like.queue = (int32_t)between(1, 2);
        like.kind = (int32_t)between(1, 3);
        like.priority = (int16_t)between(0, 1);
        like.max_attempts = strchr("rdn", nature) != NULL ? 3 : 0;
        id = jobq_memory_enqueue(store, &like, jobq_str_from(NULL), store_us());
        if (id == 0) return;
        w->tales[id - 1].nature = nature;
        job_of(id)->bytes = draw_weight(nature, 1 << 20);
        trace("job %d is enqueued, %c, %d bytes", (int)id, nature, (int)job_of(id)->bytes);
    }
    wake_sleepers(node_count);
}

/* In a crowd every other partition has a message that fails again and again, with its backoff. */
static void send_ill(int32_t count)
{
    int32_t first = w->mail_count, i;

    if (first + count > MAILS) return;
    for (i = 0; i < count; i++) {
        mail *m = &w->mails[w->mail_count++];
        m->partition = (int32_t)between(1, w->partitions);
        m->nature = draw_ill("rxbwwta", 100);
        if (w->crowd && m->partition % 2 == 0 && chance(400)) m->nature = draw_ill("r", 1000);
        m->bytes = draw_weight(m->nature, 1 << 16);
        w->heavy += m->nature == 'w';
    }
    commit_mails(first, count);
}

/* ---- the server falls ill, and recovers ------------------------------------------------------ */

static void fall_ill(mood m, int64_t until)
{
    static const char *const texts[] = {"well", "silent", "refusing all", "not heard"};
    static const jobq_error errors[] = {JOBQ_ERROR_DATABASE, JOBQ_ERROR_RETRYABLE,
                                        JOBQ_ERROR_TIMEOUT, JOBQ_ERROR_INVALID};

    w->mood = m;
    w->ill_error = errors[between(0, 3)];
    w->ill_until = until;
    w->sum.illnesses++;
    trace("the server is %s", texts[m]);
}

/* A process dies, a connection is cut, a worker is asked to stop, or the server falls ill. */
static void afflict(void)
{
    int n = (int)between(0, node_count - 1);
    mood m;

    disturb();
    switch (between(0, 5)) {
    case 0: crash(n); break;
    case 1: cut(n); break;
    case 2: ask_to_stop(n, between(0, 10 * SECOND)); break;
    default: /* drawn one after the other: compilers differ in the order of arguments */
        m = (mood)between(MOOD_SILENT, MOOD_DEAF);
        fall_ill(m, w->now_us + between(0, 3 * w->config.answer_us));
    }
}

static void recover_all(void)
{
    int n;

    w->calm = true;
    w->ill_until = 0;
    disturb();
    trace("the server is well from now on");
    for (n = 0; n < node_count; n++) {
        if (!w->nodes[n].up) plan(w->now_us + SECOND, EVENT_START, n);
    }
}

/* Work comes, the server falls ill for good while it is done, and all are asked to stop. */
static void say_farewell(int act)
{
    int n;

    w->farewell = true;
    if (act == 0) {
        produce_ill(60);
        send_ill(30);
        plan(w->now_us + between(0, SECOND), EVENT_FAREWELL, -1)->arg = 1;
        return;
    }
    if (act == 1) {
        fall_ill((mood)(w->seed / 4 % 4), JOBQ_NEVER);
        plan(w->now_us + between(0, 2 * w->config.answer_us), EVENT_FAREWELL, -1)->arg = 2;
        return;
    }
    for (n = 0; n < node_count; n++) ask_to_stop(n, between(0, 10 * SECOND));
}

static bool all_stopped(void)
{
    int n;

    for (n = 0; n < node_count && !w->nodes[n].up;) n++;
    return n == node_count;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void handle_ill(const event *e)
{
    if (e->kind == EVENT_FAREWELL) say_farewell(e->arg);
    else if (e->kind == EVENT_AFFLICT && !w->calm) {
        afflict();
        plan(w->now_us + between(0, w->calm_us / 6), EVENT_AFFLICT, -1);
    } else if (e->kind == EVENT_BURST && store->job_count < ILL_JOBS) {
        produce_ill((int32_t)(chance(200) ? between(20, 60) : between(1, 5)));
        plan(w->now_us + between(0, w->calm_us / 20), EVENT_BURST, -1);
    } else if (e->kind == EVENT_BURST_SENT && w->mail_count < ILL_MAILS) {
        send_ill((int32_t)(chance(200) ? between(20, 60) : between(1, 5)));
        plan(w->now_us + between(0, w->calm_us / 30), EVENT_BURST_SENT, -1);
    }
}

/* True: the world has come to its end. */
static bool ill_ended(void)
{
    int i;

    if (w->farewell) return all_stopped();
    if (!w->calm || store->job_count < ILL_JOBS || w->mail_count < ILL_MAILS) return false;
    if (!outbox_done()) return false;
    for (i = 0; i < store->job_count; i++) {
        const jobq_job *job = job_of(i + 1);
        if (!jobq_state_final(job->state) && !left_by_its_worker(job)) return false;
    }
    check_ends();
    say_farewell(0);
    return false;
}

static void settle_ill(uint64_t seed, double hours)
{
    jobq_tuning *t = &w->served.tuning[OUTBOX - 1];
    jobq_policy policy;
    int n;

    w->ill = true;
    w->crowd = seed % 4 == 3;
    w->attempts = 6;
    w->partitions = w->crowd ? CROWD : (int32_t)between(4, SOME_PARTITIONS);
    w->rate = seed % 2 == 0 ? between(50000, 1000000) : 0;
    w->config.lease_us = between(1, 5) * 6 * SECOND;
    w->config.prune_us = 60 * SECOND;
    w->own = between(0, 2) * 300;
    t->batch = (int32_t)between(2, JOBQ_LOOP_BATCH);
    t->lease_us = 6 * SECOND;
    w->served.message_queues = w->served.jobless_queues = 1u << (OUTBOX - 1);
    jobq__memory_outbox(store, OUTBOX, w->partitions);
    w->config = jobq_loop_config_defaults(&w->config);
    w->calm_us = (int64_t)((hours < 0.5 ? hours : 0.5) * (double)HOUR);
    node_count = chance(500) ? 1 : (int)between(2, 3);
    policy = jobq_policy_defaults(NULL);
    policy.max_crashes = 10;
    policy.backoff.base_us = SECOND;
    policy.backoff.cap_us = 60 * SECOND;
    for (n = 1; n <= OUTBOX; n++) {
        if (n == OUTBOX) policy.max_attempts = w->attempts;
        jobq_memory_policy(store, n, &policy, false);
    }
    for (n = 0; n < node_count; n++) {
        w->nodes[n].base_us = between(1, 1000) * HOUR;
        w->nodes[n].drift_ppm = between(-200, 200);
        plan(0, EVENT_START, n);
    }
    plan(0, EVENT_BURST, -1);
    plan(0, EVENT_BURST_SENT, -1);
    plan(between(0, w->calm_us / 6), EVENT_AFFLICT, -1);
}
