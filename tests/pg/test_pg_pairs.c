/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Each pair of functions at each boundary between statements: one session is held at every point of
 * one function in turn, while another session runs the other function. Promises 1 to 4, 6.
 *
 * The functions are the real ones, in a schema of their own, rewritten with a point after each
 * statement that touches the schema (plpgsql.h). tests/pg/pairs.sql has the operations (calls), the
 * scenes and the laws. The result for each job must be the result of the two operations one after
 * the other, in some order, or of one of them alone, because a function may skip what is locked.
 *
 *   test_pg_pairs [OPERATION [OTHER]]   only these, by their names, at every point
 *
 * Without arguments each pair is run at every tenth point, and pairs start at different points;
 * with JOBQ_TEST_LONG=1 at every point.
 */
#include "pg.h"
#include "plpgsql.h"

#include <poll.h>

#define WORLDS 3         /* processes, each with a schema of its own */
#define STATEMENTS 6     /* of an operation, and of the way out of worker 1 */
#define LINES 64         /* of a judgement */
#define OPERATIONS 124
#define OUTCOMES 5000
#define POINTS 200
#define STORIES 3        /* told in each world; failures beyond are counted */
#define AT_COMMIT 1000   /* held after the last statement, before COMMIT */
#define NEVER 1001
#define NONE (-1)
#define ALL 99

typedef struct op {
    char name[60], scenes[40];
    bool leaves, goes;
    int count;
    char *statements[STATEMENTS];
} op;

/* What a session said: names and words, as they came. */
typedef struct said {
    int count;
    char names[LINES][40], words[LINES][40];
} said;

typedef struct lines {
    int count;
    char *texts[LINES * 8];
} lines;

typedef struct outcome {
    char *world;
    uint64_t hash; /* of world: most of the thousands differ only far behind */
    lines ended;
} outcome;

typedef struct stops {
    int count, at[POINTS + 1];
} stops;

static outcome results[OUTCOMES];
static int outcome_count;
static op operations[OPERATIONS];
static int operation_count;
static PGconn *sessions[2];
static int points_seen; /* by the first session, in the operation that it does */
static char visited[POINTS][60]; /* their names */
static lines alone[2][OPERATIONS]; /* what each operation makes of the scene alone, as b and as a */
static int failures, cases, shares = 10;
static const char *only[2];

/* -- texts -- */

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text;
    long size;

    if (file == NULL) fail_msg("%s cannot be read: run this from the project's folder", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    text = calloc((size_t)size + 1, 1);
    if (fread(text, 1, (size_t)size, file) != (size_t)size) fail_msg("%s: short", path);
    fclose(file);
    return text;
}

/* Text of any length, with the schema's name in it. */
static PGresult *ask(PGconn *conn, const char *generic)
{
    char *text = for_schema(generic, schema);
    PGresult *res = PQexec(conn, text);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
        fprintf(stderr, "%.400s: %s\n", text, PQerrorMessage(conn));
        exit(2);
    }
    free(text);
    return res;
}

static void lines_free(lines *l)
{
    while (l->count > 0) free(l->texts[--l->count]);
}

static bool lines_have(const lines *l, const char *text)
{
    int i;

    for (i = 0; i < l->count; i++) {
        if (strcmp(l->texts[i], text) == 0) return true;
    }
    return false;
}

static void lines_add(lines *l, const char *text)
{
    if (lines_have(l, text)) return;
    if (l->count == LINES * 8) abort();
    l->texts[l->count++] = text_copy(text);
}

/* -- the instrumented copy -- */

/* The function as it is, with this body. */
static void replace_body(const char *whole, const char *old, const char *body)
{
    size_t size = strlen(whole) + strlen(body) + 1;
    const char *at = strstr(whole, old);
    char *text = calloc(size, 1);

    if (at == NULL) abort();
    snprintf(text, size, "%.*s%s%s", (int)(at - whole), whole, body, at + strlen(old));
    PQclear(ask(db, text));
    free(text);
}

/* As the library writes it. */
static const char *quoted_schema(void)
{
    static char quoted[50];

    snprintf(quoted, sizeof quoted, "\"%s\"", schema);
    return quoted;
}

#define FUNCTIONS "SELECT proname, prosrc, pg_get_functiondef(p.oid) FROM pg_proc p" \
                  " JOIN pg_language l ON l.oid = prolang WHERE lanname = 'plpgsql'" \
                  " AND pronamespace = 'jobq'::regnamespace"

/* Writes each function that takes a snapshot for each statement again, with points. */
static void put_points(void)
{
    PGresult *res = ask(db, FUNCTIONS " AND provolatile = 'v'"
                                  " AND proname !~ '^(point|judge|.*scene|.*drain|story|laws|"
                                  "called|_ended)$'");
    plpgsql p;
    int i;

    for (i = 0; i < PQntuples(res); i++) {
        char *body = plpgsql_with_points(&p, quoted_schema(), PQgetvalue(res, i, 0),
                                         PQgetvalue(res, i, 1));

        replace_body(PQgetvalue(res, i, 2), PQgetvalue(res, i, 1), body);
        free(body);
    }
    PQclear(res);
}

static void read_operations(void)
{
    PGresult *res = ask(db, "SELECT d.name, d.scenes, d.leaves, s.*, d.goes "
                            "FROM jobq.pair_operation d,"
                            " unnest(d.statements || NULL) WITH ORDINALITY s ORDER BY d.place, 5");
    int i;

    for (i = 0; i < PQntuples(res); i++) {
        op *d = &operations[operation_count];

        if (atoi(PQgetvalue(res, i, 4)) == 1) {
            if (operation_count == OPERATIONS) abort();
            d = &operations[operation_count++];
            snprintf(d->name, sizeof d->name, "%s", PQgetvalue(res, i, 0));
            snprintf(d->scenes, sizeof d->scenes, "%s", PQgetvalue(res, i, 1));
            d->leaves = PQgetvalue(res, i, 2)[0] == 't';
            d->goes = PQgetvalue(res, i, 5)[0] == 't';
        } else {
            d--;
        }
        if (!PQgetisnull(res, i, 3)) {
            if (d->count == STATEMENTS) abort();
            d->statements[d->count++] = text_copy(PQgetvalue(res, i, 3));
        }
    }
    PQclear(res);
}

/* -- sessions -- */

static void notice(void *user, const PGresult *res)
{
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

    (void)user;
    if (strncmp(text, "point ", 6) != 0) return;
    if (points_seen == POINTS) abort();
    snprintf(visited[points_seen++], sizeof visited[0], "%s", text + 6);
}

static void connect_sessions(void)
{
    char text[200];
    int i;

    for (i = 0; i < 2; i++) {
        sessions[i] = PQconnectdb(server());
        PQsetNoticeReceiver(sessions[i], notice, NULL);
        /* b begins to wait before a does. It must not take for a deadlock what ends by a's own
         * lock_timeout (50 ms in turn), also on a busy machine. */
        snprintf(text, sizeof text, "SET deadlock_timeout = '%s'; SET pairs.lock = %d;"
                 " SET plan_cache_mode = force_generic_plan", i == 0 ? "100ms" : "600ms",
                 (int)getpid());
        PQclear(ask(sessions[i], text));
    }
}

/* At which point a is held; 0, and before COMMIT: at none, and points cost nothing (plpgsql.h). */
static void set_stop(int who, int stop)
{
    static bool reports[2];
    char text[110];

    if (stop == AT_COMMIT) stop = 0;
    if (stop == 0 && !reports[who]) return;
    reports[who] = stop != 0;
    if (stop == 0) sprintf(text, "SELECT set_config('pairs.stop', '', false)");
    else
        sprintf(text, "SELECT set_config('pairs.at', '0', false),"
                      " set_config('pairs.stop', '%d', false)", stop == NEVER ? -1 : stop);
    PQclear(ask(sessions[who], text));
}

/* Sends a statement in the words of this session: 0 is a, 1 is b. stop: at which point a is held,
 * 0: at none. What precedes the statement is a query of its own: its result would make the session
 * answered() at its first point. */
static void send_to(int who, const char *statement, int stop)
{
    char text[3000], *own;
    size_t n;

    if (who == 0) points_seen = 0;
    set_stop(who, stop);
    if (stop == AT_COMMIT) PQclear(PQexec(sessions[who], "BEGIN"));
    n = 0;
    for (; *statement != '\0'; statement++) {
        if (n + 10 > sizeof text) abort();
        if (*statement == '@') text[n++] = who == 0 ? 'a' : 'b';
        else if (*statement == '#') n += (size_t)sprintf(text + n, "%d", 10 + who);
        else if (*statement == '~') n += (size_t)sprintf(text + n, "%d", 11 - who);
        else text[n++] = *statement;
    }
    text[n] = '\0';
    own = for_schema(text, schema);
    if (!PQsendQuery(sessions[who], own)) exit(2);
    free(own);
}

/* Waits a moment for a session's server; whether all of the answer is there. */
static bool answered(PGconn *conn, int wait_ms)
{
    struct pollfd p;

    if (!PQisBusy(conn)) return true;
    p.fd = PQsocket(conn);
    p.events = POLLIN;
    if (poll(&p, 1, wait_ms) > 0 && !PQconsumeInput(conn)) exit(2);
    return !PQisBusy(conn);
}

static bool is_blocked(PGconn *conn)
{
    char text[100];
    PGresult *res;
    bool blocked;

    snprintf(text, sizeof text, "SELECT cardinality(pg_blocking_pids(%d)) > 0", PQbackendPID(conn));
    res = ask(db, text);
    blocked = PQgetvalue(res, 0, 0)[0] == 't';
    PQclear(res);
    return blocked;
}

/* Runs until it has answered (true), or waits for a lock. */
static bool runs(PGconn *conn)
{
    while (!answered(conn, 3)) {
        if (is_blocked(conn) && !answered(conn, 0)) return false;
    }
    return true;
}

static void said_add(said *s, const char *name, const char *word)
{
    if (s->count == LINES) abort();
    snprintf(s->names[s->count], sizeof s->names[0], "%s", name);
    snprintf(s->words[s->count++], sizeof s->words[0], "%s", word);
}

/* A word that takes the place of busy, when the same is asked again. */
static void said_instead(said *s, const char *name, const char *word)
{
    int i;

    for (i = 0; i < s->count; i++) {
        if (strcmp(s->names[i], name) == 0 && strcmp(s->words[i], "b") == 0) {
            snprintf(s->words[i], sizeof s->words[0], "%s", word);
        }
    }
}

static bool said_busy(const said *s)
{
    int i;

    for (i = 0; i < s->count && strcmp(s->words[i], "b") != 0; i++) continue;
    return i < s->count;
}

/* Takes all that a session answers. SQLSTATE class 42, a call that SQL does not know, is this
 * program's mistake, not an answer. */
static void listen_to(int who, said *s, bool again)
{
    PGresult *res;
    int i;

    while ((res = PQgetResult(sessions[who])) != NULL) {
        const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

        if (state != NULL && strncmp(state, "42", 2) == 0) {
            fprintf(stderr, "%s", PQresultErrorMessage(res));
            exit(2);
        }
        if (state != NULL) said_add(s, "error", state);
        for (i = 0; PQnfields(res) == 2 && i < PQntuples(res); i++) {
            (again ? said_instead : said_add)(s, PQgetvalue(res, i, 0), PQgetvalue(res, i, 1));
        }
        PQclear(res);
    }
}

static void end_both(void)
{
    int64_t until = mono_us() + 60 * SECOND;

    while (!answered(sessions[0], 1) || !answered(sessions[1], 1)) {
        if (mono_us() < until) continue;
        fprintf(stderr, "two sessions wait for each other\n");
        exit(2);
    }
}

/* -- a case -- */

static void lock_points(bool lock)
{
    char text[100];

    snprintf(text, sizeof text, "SELECT pg_advisory_%slock(%d)", lock ? "" : "un", (int)getpid());
    PQclear(ask(db, text));
}

/* One statement of a session, with nothing beside it. */
static void plays_alone(int who, const char *statement, said *s, int stop)
{
    send_to(who, statement, stop);
    while (!answered(sessions[who], 1000)) continue;
    listen_to(who, s, false);
}

/* a is held at its point, or has answered all but COMMIT; b goes on until that is in its way. */
static void play_beside(const op *a, const op *b, int stop, said *said_a, said *said_b)
{
    bool held = true;
    int i;

    lock_points(true);
    send_to(0, a->statements[0], stop);
    while (!answered(sessions[0], 1000) && points_seen < stop) continue;
    if (stop == AT_COMMIT) listen_to(0, said_a, false);
    for (i = 0; i < b->count; i++) {
        send_to(1, b->statements[i], 0);
        if (held && !runs(sessions[1])) {
            held = false;
            if (stop < AT_COMMIT) lock_points(false);
            else PQclear(PQexec(sessions[0], "COMMIT"));
            end_both();
        }
        while (!answered(sessions[1], 1000)) continue;
        listen_to(1, said_b, false);
    }
    if (held && stop == AT_COMMIT) PQclear(PQexec(sessions[0], "COMMIT"));
    if (held) lock_points(false);
    else if (stop == AT_COMMIT) lock_points(false);
    while (!answered(sessions[0], 1000)) continue;
    if (stop < AT_COMMIT) listen_to(0, said_a, false);
}

/* What was busy is asked again, as a worker does. */
static void ask_again(int who, const op *d, said *s)
{
    int i, tries;

    for (tries = 0; d != NULL && said_busy(s) && tries < 3; tries++) {
        for (i = 0; i < d->count; i++) {
            send_to(who, d->statements[i], 0);
            while (!answered(sessions[who], 1000)) continue;
            listen_to(who, s, true);
        }
    }
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */

    for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

/* What becomes of the world as it is now. Worlds that read the same were judged before. */
static const outcome *judged(void)
{
    PGresult *res = ask(db, "SELECT string_agg(s, E'\\n') FROM jobq.story() s");
    char *text = PQgetvalue(res, 0, 0);
    uint64_t hash = hash_of(text);
    outcome *o = &results[0];
    int i;

    while (o < results + outcome_count && (o->hash != hash || strcmp(o->world, text) != 0)) o++;
    if (o == results + outcome_count) {
        if (outcome_count == OUTCOMES) abort();
        outcome_count++;
        o->world = text_copy(text);
        o->hash = hash;
        PQclear(res);
        text = for_schema("SELECT jobq.judge()", schema);
        res = PQexec(db, text);
        free(text);
        if (PQresultStatus(res) != PGRES_TUPLES_OK) lines_add(&o->ended, PQerrorMessage(db));
        for (i = 0; i < PQntuples(res); i++) lines_add(&o->ended, PQgetvalue(res, i, 0));
    }
    PQclear(res);
    return o;
}

static void add_words(char *text, size_t size, const said *s, const char *name, size_t len)
{
    size_t at = strlen(text);
    int i;

    for (i = 0; i < s->count; i++) {
        if (strlen(s->names[i]) != len || strncmp(s->names[i], name, len) != 0) continue;
        at += (size_t)snprintf(text + at, size - at, " %s", s->words[i]);
    }
}

/* A line for each name: what became of it, and what each session said. */
static void add_line(lines *out, const char *ended, size_t name, const said *a, const said *b)
{
    char text[400];

    snprintf(text, sizeof text, "%s; a:", ended);
    add_words(text, sizeof text, a, ended, name);
    strcat(text, "; b:");
    add_words(text, sizeof text, b, ended, name);
    lines_add(out, text);
}

/* The world as it was before it was judged. */
static const char *judge(const said *a, const said *b, lines *out)
{
    const outcome *o = judged();
    const lines *ended = &o->ended;
    const said *s;
    int i, k;

    for (i = 0; i < ended->count; i++) {
        const char *line = ended->texts[i];

        if (line[0] == '!' || strchr(line, ':') == NULL) lines_add(out, line);
        else add_line(out, line, (size_t)(strchr(line, ':') - line), a, b);
    }
    for (s = a; s != NULL; s = s == a ? b : NULL) {
        for (i = 0; i < s->count; i++) {
            char text[60];

            snprintf(text, sizeof text, "%s: -", s->names[i]);
            for (k = 0; k < ended->count; k++) {
                if (strncmp(ended->texts[k], text, strlen(text) - 1) == 0) break;
            }
            if (k == ended->count) add_line(out, text, strlen(text) - 3, a, b);
        }
    }
    return o->world;
}

static void set_scene(const char *scene)
{
    char text[100];

    snprintf(text, sizeof text, "SELECT jobq.scene('%s')", scene);
    PQclear(ask(db, text));
    if (++cases % 500 == 0) {
        PQclear(ask(db, "VACUUM jobq.job, jobq.claim, jobq.worker, jobq.history, jobq.failed,"
                        " jobq.idempotency, jobq.sleeper, jobq.queue, jobq.kind, jobq.meta"));
    }
}

/* Both operations with nothing between the statements of one: a before statement `at` of b (NONE:
 * never); statement `without` of b is left out. */
static void play_in_turn(const char *scene, const op *a, const op *b, int at, int without,
                         lines *out)
{
    said s[2];
    int i;

    memset(s, 0, sizeof s);
    set_scene(scene);
    for (i = 0; i <= b->count; i++) {
        if (i == at) plays_alone(0, a->statements[0], &s[0], 0);
        if (i < b->count && i != without && without != ALL) {
            plays_alone(1, b->statements[i], &s[1], 0);
        }
    }
    if (at != NONE) ask_again(0, a, &s[0]);
    ask_again(1, b, &s[1]);
    judge(&s[0], &s[1], out);
}

/* -- all of them -- */

static void tell_failure(const char *scene, const op *a, const op *b, int stop,
                         const lines *legal, const lines *got, const char *world)
{
    int i;

    failures++;
    printf("FAILED: scene %s: \"%s\" is held at %s; beside it \"%s\"\n", scene, a->name,
           stop == AT_COMMIT ? "COMMIT" : visited[stop - 1], b->name);
    if (failures > STORIES) return;
    for (i = 0; i < got->count; i++) {
        printf("  %s %s\n", lines_have(legal, got->texts[i]) ? "     " : "wrong", got->texts[i]);
    }
    printf("  then:\n%s\n", world);
}

static bool all_legal(const lines *legal, const lines *got)
{
    int i;

    for (i = 0; i < got->count && lines_have(legal, got->texts[i]); i++) continue;
    return i == got->count;
}

/* What one operation makes of the scene alone, as a or as b; the same for each pair. */
static void find_alone(const char *scene, const op *a, const op *b, bool is_a, lines *legal)
{
    const op *d = is_a ? a : b;
    lines once, *l = &once;
    int i;

    memset(&once, 0, sizeof once);
    if (d >= operations && d < operations + operation_count) l = &alone[is_a][d - operations];
    if (l->count == 0) play_in_turn(scene, a, b, is_a ? 0 : NONE, is_a ? ALL : NONE, l);
    for (i = 0; i < l->count; i++) lines_add(legal, l->texts[i]);
    lines_free(&once);
}

/* What they make of the scene in turn. effort 0: a first; 1: a later; 2: some statement is left
 * out. */
static void find_legal(const char *scene, const op *a, const op *b, int effort, lines *legal)
{
    int at, without;

    if (effort == 0) play_in_turn(scene, a, b, 0, NONE, legal);
    for (at = 1; effort == 1 && at <= b->count; at++) {
        play_in_turn(scene, a, b, at, NONE, legal);
    }
    if (effort < 2) return;
    find_alone(scene, a, b, false, legal);
    find_alone(scene, a, b, true, legal);
    for (without = 0; b->count > 1 && without < b->count; without++) {
        for (at = NONE; at <= b->count; at++) play_in_turn(scene, a, b, at, without, legal);
    }
}

static void play_pair_at(const char *scene, const op *a, const op *b, int stop, int *effort,
                         lines *legal)
{
    const char *world;
    lines got;
    said s[2];

    memset(&got, 0, sizeof got);
    memset(s, 0, sizeof s);
    set_scene(scene);
    play_beside(a, b, stop, &s[0], &s[1]);
    ask_again(0, a, &s[0]);
    ask_again(1, b, &s[1]);
    world = judge(&s[0], &s[1], &got);
    while (*effort < 2 && !all_legal(legal, &got)) find_legal(scene, a, b, ++*effort, legal);
    if (!all_legal(legal, &got)) tell_failure(scene, a, b, stop, legal, &got, world);
    lines_free(&got);
    fflush(stdout);
}

/* At which of the points that a passes undisturbed it is to be held: in a loop, the first time and
 * the last time that it comes to one. */
static void find_stops(const char *scene, const op *a, stops *p)
{
    int i, k, before, after;
    said s;

    memset(&s, 0, sizeof s);
    set_scene(scene);
    plays_alone(0, a->statements[0], &s, NEVER);
    for (p->count = i = 0; i < points_seen; i++) {
        for (k = before = after = 0; k < points_seen; k++) {
            if (strcmp(visited[k], visited[i]) != 0) continue;
            before += k < i;
            after += k > i;
        }
        if (before == 0 || after == 0) p->at[p->count++] = i + 1;
    }
    p->at[p->count++] = AT_COMMIT;
}

/* share: of the stops that are played; how many were. */
static int play_pair(const char *scene, const op *a, const op *b, const stops *p, int share)
{
    int i, effort = 0, played = 0;
    lines legal;

    memset(&legal, 0, sizeof legal);
    find_legal(scene, a, b, 0, &legal);
    for (i = 0; i < legal.count; i++) {
        if (legal.texts[i][0] != '!') continue;
        printf("FAILED: scene %s: \"%s\" and then \"%s\": %s\n", scene, a->name, b->name,
               legal.texts[i]);
        failures++;
    }
    for (i = 0; i < p->count; i++) {
        if (shares > 1 && i % shares != share % shares) continue;
        play_pair_at(scene, a, b, p->at[i], &effort, &legal);
        played++;
    }
    lines_free(&legal);
    return played;
}

/* What worker 1 does after it lost the session: the other operation, and goes. */
static op and_goes(const op *b)
{
    op d = *b;

    if (d.count + 2 > STATEMENTS) abort();
    snprintf(d.name, sizeof d.name, "%.40s, and goes", b->name);
    d.statements[d.count++] = (char *)"SELECT 'worker 1', ''"
                                      " FROM (SELECT jobq._recover(1, ~, 100) OFFSET 0) r";
    d.statements[d.count++] = (char *)"SELECT 'worker 1', 'gone'"
                                      " FROM (SELECT jobq._deregister(1) OFFSET 0) d";
    return d;
}

static bool is_asked_for(const op *d, int which)
{
    return only[which] == NULL || strcmp(only[which], d->name) == 0;
}

static void play_scene(const char *scene, int world)
{
    int i, k, played;

    for (i = 0; i < operation_count; i++) lines_free(&alone[0][i]), lines_free(&alone[1][i]);
    for (i = 0; i < operation_count; i++) {
        const op *a = &operations[i];
        stops p;

        if (strstr(a->scenes, scene) == NULL || a->count != 1 || !is_asked_for(a, 0)) continue;
        find_stops(scene, a, &p);
        for (k = played = 0; k < operation_count; k++) {
            const op *b = &operations[k];
            op last;

            if (strstr(b->scenes, scene) == NULL || !is_asked_for(b, 1)) continue;
            if ((i + k) % WORLDS != world) continue; /* a and b, b and a: often the same end */
            played += play_pair(scene, a, b, &p, i + k);
            if (!a->leaves || !b->goes) continue;
            last = and_goes(b);
            played += play_pair(scene, a, &last, &p, i + k + 1);
        }
        if (world == 0) printf("%s: %s: %d cases\n", scene, a->name, played * WORLDS);
        fflush(stdout);
    }
}

static void set_up(const char *name)
{
    jobq_pg_error error;

    snprintf(schema, sizeof schema, "pairs_%d_%s", (int)getpid(), name);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    pg = handle();
    if (jobq_pg_migrate(pg, &error) != JOBQ_OK) exit(2);
    jobq_pg_close(pg);
}

static void clean_up(void)
{
    RUN("DROP SCHEMA jobq CASCADE");
    PQfinish(db);
}

static void world(int which)
{
    char *text = read_file("tests/pg/pairs.sql");

    setvbuf(stdout, NULL, _IOFBF, 1 << 20); /* worlds write at once; each a story at a time */
    set_up("world");
    PQclear(ask(db, "SET plan_cache_mode = force_generic_plan"));
    PQclear(ask(db, text));
    free(text);
    put_points();
    read_operations();
    connect_sessions();
    play_scene("held", which);
    play_scene("idle", which);
    play_scene("late", which);
    play_scene("box", which);
    play_scene("flow", which);
    printf("world %d: %d cases, %d worlds judged, %d failures\n", which, cases, outcome_count,
           failures);
    clean_up();
    fflush(stdout);
    exit(failures > 0);
}

static void each_pair_at_each_boundary(void **unused)
{
    pid_t worlds[WORLDS];
    int i, status, good = 0;

    (void)unused;
    fflush(stdout);
    for (i = 0; i < WORLDS; i++) {
        worlds[i] = fork();
        assert_true(worlds[i] >= 0);
        if (worlds[i] == 0) world(i);
    }
    for (i = 0; i < WORLDS; i++) {
        waitpid(worlds[i], &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    assert_int_equal(good, WORLDS);
}

/* -- where the points are -- */

typedef struct dumped {
    char *text; /* plpgsql's own reading of a function */
    int count, lines[PLPGSQL_STATEMENTS];
    const char *statements[PLPGSQL_STATEMENTS + 1]; /* from its number to the next one's */
} dumped;

/* The server writes it to its log where a body begins with this option. */
static void dump_of(const char *whole, const char *old, const char *body, dumped *d)
{
    static const char head[] = "Function's statements:", tail[] = "End of execution tree";
    static const char foreach[] = "ENDFOREACHA "; /* the next statement is on the same line */
    char path[200], *log, *text = calloc(strlen(body) + 20, 1), *line, *at;
    size_t size;

    snprintf(path, sizeof path, "%s/log", getenv("JOBQ_SERVER_DIR"));
    log = read_file(path);
    size = strlen(log);
    free(log);
    sprintf(text, "#option dump%s", body); /* on the line that every body begins with, empty */
    replace_body(whole, old, text);
    free(text);
    log = read_file(path);
    d->text = text_copy(log + size);
    free(log);
    d->count = 0;
    line = strstr(d->text, head);
    assert_non_null(line);
    *strstr(line, tail) = '\0';
    for (at = d->text; (at = strstr(at, foreach)) != NULL;) at[sizeof foreach - 2] = '\n';
    while ((line = strchr(line, '\n')) != NULL) {
        int number, read = 0;

        line++;
        if (sscanf(line, " %d:%n", &number, &read) != 1 || read == 0 || number == 0) continue;
        assert_true(d->count < PLPGSQL_STATEMENTS);
        d->lines[d->count] = number;
        d->statements[d->count++] = line + read;
    }
    d->statements[d->count] = d->text + strlen(d->text);
}

static bool dumped_is(const dumped *d, int i, const char *word)
{
    const char *at = d->statements[i] + strspn(d->statements[i], " ");

    return strncmp(at, word, strlen(word)) == 0;
}

static bool dumped_touches(const dumped *d, int i)
{
    const char *at = strstr(d->statements[i], quoted_schema());

    return at != NULL && at < d->statements[i + 1];
}

/* Nothing is to come between this statement and the next one. */
static bool dumped_leaves(const dumped *d, int i)
{
    return dumped_is(d, i, "RAISE") || dumped_is(d, i, "EXIT") || dumped_is(d, i, "CONTINUE") ||
           (dumped_is(d, i, "RETURN") && !dumped_is(d, i, "RETURN QUERY") &&
            !dumped_is(d, i, "RETURN NEXT"));
}

static void compare_with_dumps(const char *name, const plpgsql *p, const dumped *plain,
                               const dumped *with)
{
    int i, k, asserts = 0;

    if (plain->count != p->statements) fail_msg("%s: %d statements, not %d", name, plain->count,
                                                p->statements);
    for (i = 0; i < plain->count; i++) {
        if (plain->lines[i] != p->lines[i]) fail_msg("%s: line %d, not %d", name, plain->lines[i],
                                                     p->lines[i]);
    }
    for (i = k = 0; i < with->count; i++) {
        if (dumped_is(with, i, "ASSERT")) {
            asserts++;
            continue;
        }
        assert_int_equal(with->lines[i], plain->lines[k++]);
        if (dumped_touches(with, i) && !dumped_leaves(with, i) &&
            !dumped_is(with, i + 1, "ASSERT")) {
            fail_msg("%s: no point after line %d", name, with->lines[i]);
        }
    }
    assert_int_equal(k, plain->count);
    assert_int_equal(asserts, p->points);
}

static void points_are_between_the_statements_that_plpgsql_sees(void **unused)
{
    dumped plain, with;
    PGresult *res;
    plpgsql p;
    int i;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    set_up("dump");
    res = ask(db, FUNCTIONS);
    assert_true(PQntuples(res) > 70);
    for (i = 0; i < PQntuples(res); i++) {
        const char *old = PQgetvalue(res, i, 1), *whole = PQgetvalue(res, i, 2);
        char *body = plpgsql_with_points(&p, quoted_schema(), PQgetvalue(res, i, 0), old);

        dump_of(whole, old, old, &plain);
        dump_of(whole, old, body, &with);
        compare_with_dumps(PQgetvalue(res, i, 0), &p, &plain, &with);
        free(plain.text);
        free(with.text);
        free(body);
    }
    PQclear(res);
    clean_up();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_are_between_the_statements_that_plpgsql_sees),
        cmocka_unit_test(each_pair_at_each_boundary),
    };

    if (argc > 1) only[0] = argv[1];
    if (argc > 2) only[1] = argv[2];
    if (argc > 1 || getenv("JOBQ_TEST_LONG") != NULL) shares = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
