/*
 * web.h -- jobq web: a dashboard for browsers, rendered on the server.
 *
 * One thread answers all requests, on one connection. The main thread looks at the queues once a
 * second while anybody watches, on another connection, and gives all viewers the same text.
 * The role of the connection decides what is shown; the server refuses the rest.
 */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "html.h"

enum {
    WEB_SAMPLES = 360,        /* of the last hour, one each 10 s */
    WEB_VIEWERS = 200,        /* at the same time */
    WEB_FORM_MAX = 65536,     /* bytes of a form */
    WEB_FIELDS = 1100,
    WEB_FORM_S = 12 * 3600,   /* a form is stale after this time */
    WEB_ROWS = 50             /* of a page of jobs */
};

/* What the last look found, as sections of pages. Viewers hold it while it is sent to them. */
typedef struct web_frame {
    app_text text;
    long refs;
} web_frame;

typedef struct web_viewer {
    struct web_state *web;
    struct MHD_Connection *connection;
    struct web_viewer *next;
    web_frame *frame; /* being sent */
    size_t sent;
    long seen;        /* the number of the frame sent last */
    bool suspended;
} web_viewer;

typedef struct web_state {
    app pages, look;          /* each with a connection of its own */
    const char *host, *user_header;
    int port;
    char *users;              /* the text of --basic */
    unsigned char key[32];    /* of this process: signs forms */
    bool may[32];             /* the role may use web_verbs[i] */
    bool payloads, ready;     /* the role may read payloads; rights are known */
    bool ending;
    pthread_mutex_t mutex;    /* guards what is below */
    web_viewer *viewers;
    int watching, samples;
    web_frame *frame;
    long number;
    float done[WEB_SAMPLES], waiting[WEB_SAMPLES], failed[WEB_SAMPLES];
} web_state;

/* A request. */
typedef struct web_visit {
    web_state *web;
    struct MHD_Connection *connection;
    const char *method, *path;
    char user[128], session[33];
    bool known;               /* the browser sent its session */
    app_text form, out;
    const char *fields[WEB_FIELDS][2];
    int field_count, status;
    char error[1024], location[2048];
} web_visit;

/* ---- SHA-256 (FIPS 180-4) and HMAC ----------------------------------------------------------- */

static const uint32_t web_hash_words[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t web_turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void web_hash_block(uint32_t *h, const unsigned char *p)
{
    uint32_t w[64], v[8];
    int i;

    for (i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (web_turn(a, 7) ^ web_turn(a, 18) ^ a >> 3) +
               (web_turn(b, 17) ^ web_turn(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t s = v[7] + (web_turn(v[4], 6) ^ web_turn(v[4], 11) ^ web_turn(v[4], 25)) +
                     ((v[4] & v[5]) ^ (~v[4] & v[6])) + web_hash_words[i] +
                     w[i];
        uint32_t t = (web_turn(v[0], 2) ^ web_turn(v[0], 13) ^ web_turn(v[0], 22)) +
                     ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += s;
        v[0] = s + t;
    }
    for (i = 0; i < 8; i++) h[i] += v[i];
}

static void web_hash(unsigned char *out, const unsigned char *data, size_t len)
{
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char block[64] = {0};
    size_t at = 0, rest = len % 64;
    int i;

    for (; at + 64 <= len; at += 64) web_hash_block(h, data + at);
    memcpy(block, data + at, rest);
    block[rest] = 0x80;
    if (rest >= 56) {
        web_hash_block(h, block);
        memset(block, 0, sizeof block);
    }
    for (i = 0; i < 8; i++) block[63 - i] = (unsigned char)((uint64_t)len * 8 >> 8 * i);
    web_hash_block(h, block);
    for (i = 0; i < 32; i++) out[i] = (unsigned char)(h[i / 4] >> (24 - 8 * (i % 4)));
}

/* HMAC-SHA256 of a text, by the process's key. */
static void web_sign(const web_state *web, const char *text, unsigned char *out)
{
    size_t len = strlen(text);
    unsigned char *data = app_need(malloc(len + 64)), outer[96];
    int i;

    for (i = 0; i < 64; i++) {
        data[i] = (i < 32 ? web->key[i] : 0) ^ 0x36;
        outer[i] = (i < 32 ? web->key[i] : 0) ^ 0x5c;
    }
    memcpy(data + 64, text, len);
    web_hash(outer + 64, data, len + 64);
    web_hash(out, outer, sizeof outer);
    free(data);
}

/* Whether two texts are equal, in a time that tells nothing about them. */
static bool web_equal(const web_state *web, const char *a, const char *b)
{
    unsigned char x[32], y[32], differ = 0;
    int i;

    web_sign(web, a, x);
    web_sign(web, b, y);
    for (i = 0; i < 32; i++) differ |= x[i] ^ y[i];
    return differ == 0;
}

static void web_hex(char *out, const unsigned char *bytes, int count)
{
    int i;

    for (i = 0; i < count; i++) sprintf(out + 2 * i, "%02x", bytes[i]);
}

/* ---- statements ------------------------------------------------------------------------------ */

/* What a person can do. The button names the verb; its form is where the verb is offered. */
typedef struct web_verb {
    const char *name, *label, *needs, *form, *sql;
} web_verb;

#define WEB_FILTER "queue => $2, kind => $3, older => $5::interval, tags => $6::jsonb"
static const web_verb web_verbs[] = {
    {"cancel", "Cancel", "jobq.cancel(bigint)", "jobs",
     "SELECT jobq.cancel(id) FROM unnest($1::bigint[]) AS u (id)"},
    {"revive", "Revive", "jobq.revive(bigint)", "jobs",
     "SELECT jobq.revive(id) FROM unnest($1::bigint[]) AS u (id)"},
    {"delete", "Delete", "jobq.delete(bigint)", "jobs",
     "SELECT jobq.delete(id) FROM unnest($1::bigint[]) AS u (id)"},
    {"cancel_all", "Cancel all that match",
     "jobq.cancel(text, text, text, interval, jsonb, integer)", "jobs",
     "SELECT cancelled + requested FROM jobq.cancel(queue => $2, kind => $3, state => $4, "
     "older => $5::interval, tags => $6::jsonb, at_most => 1000)"},
    {"revive_all", "Revive all that match", "jobq.revive(text, text, interval, jsonb, integer)",
     "jobs", "SELECT jobq.revive(" WEB_FILTER ", at_most => 1000)"},
    {"delete_all", "Delete all that match",
     "jobq.delete(text, text, text, interval, jsonb, integer)", "jobs",
     "SELECT jobq.delete(queue => $2, state => $4, kind => $3, older => $5::interval, "
     "tags => $6::jsonb, at_most => 1000)"},
    {"pause", "Pause", "jobq.pause(text, text)", "queues", "SELECT jobq.pause($1)"},
    {"resume", "Resume", "jobq.resume(text, text)", "queues", "SELECT jobq.resume($1)"},
    {"schedule_run", "Run now", "jobq.schedule_run(text)", "schedules",
     "SELECT jobq.schedule_run($1)"},
    {"schedule_pause", "Pause", "jobq.schedule_pause(text)", "schedules",
     "SELECT jobq.schedule_pause($1)"},
    {"schedule_resume", "Resume", "jobq.schedule_resume(text)", "schedules",
     "SELECT jobq.schedule_resume($1)"},
    /* Dead letters go to the end of their partition, in the transaction that resolves them. */
    {"replay", "Send again",
     "jobq.dead_letter_replay(bigint, bigint, text, integer, text, integer);"
     "jobq.dead_letter_resolve(bigint, bigint[]);"
     "jobq.outbox_enqueue(text, jsonb, integer, text, text, bytea, jsonb, text, boolean)", "outbox",
     "WITH t AS MATERIALIZED (SELECT (random() * 9e18)::bigint AS no), "
     "d AS MATERIALIZED (SELECT l.* FROM t, jobq.dead_letter_replay(t.no, 60000000, queue => $1, "
     "at_most => 1000) l), "
     "e AS MATERIALIZED (SELECT d.id, jobq.outbox_enqueue(queue => $1, payload => d.payload, "
     "partition => (d.partition_id & 32767)::integer, type => d.type, bytes => d.bytes, "
     "headers => d.headers) FROM d ORDER BY d.seq) "
     "SELECT jobq.dead_letter_resolve(t.no, ARRAY(SELECT id FROM e)) FROM t"},
    {"discard", "Discard", "jobq.dead_letter_discard(text, integer, text, integer)", "outbox",
     "SELECT jobq.dead_letter_discard(queue => $1, at_most => 1000)"},
};
enum { WEB_VERBS = sizeof web_verbs / sizeof web_verbs[0] };

static int web_verb_find(const char *name)
{
    int i;

    for (i = 0; i < WEB_VERBS && strcmp(web_verbs[i].name, name) != 0; i++) {}
    return i;
}

static bool web_may(const web_state *web, const char *name)
{
    int i = web_verb_find(name);

    return i < WEB_VERBS && web->may[i];
}

/* Opens a connection, or opens it again. A page can only read; a verb asks for more. */
static bool web_connect(app *a)
{
    const char *names[] = {"dbname", "fallback_application_name", "client_encoding",
                           "connect_timeout", NULL};
    const char *values[] = {a->conninfo, "jobq web", "UTF8", "5", NULL};

    if (a->conn == NULL) a->conn = PQconnectdbParams(names, values, 1);
    else PQreset(a->conn);
    if (PQstatus(a->conn) != CONNECTION_OK) return false;
    PQclear(PQexec(a->conn, "SET statement_timeout = '5s'; SET TimeZone = 'UTC'; "
                   "SET default_transaction_read_only = on; SET jit = off"));
    return true;
}

/* Asks once for a connection what its role may do. */
static bool web_rights(web_state *web)
{
    static const char sql[] =
        "SELECT coalesce(bool_and(coalesce(has_function_privilege("
        "to_regprocedure(s.text), 'execute'), false)), false) "
        "FROM unnest(string_to_array($1, '|')) WITH ORDINALITY AS n (needs, no) "
        "CROSS JOIN LATERAL unnest(string_to_array(n.needs, ';')) AS s (text) "
        "GROUP BY n.no UNION ALL "
        "SELECT has_column_privilege('jobq.jobs', 'payload', 'select')";
    app_text needs = {0};
    const char *values[1];
    char *text, *list;
    PGresult *res;
    int i;

    for (i = 0; i < WEB_VERBS; i++) {
        app_put(&needs, i == 0 ? "" : "|");
        app_put(&needs, web_verbs[i].needs);
    }
    text = app_sql(&web->pages, sql);
    list = app_sql(&web->pages, needs.ptr);
    values[0] = list;
    res = PQexecParams(web->pages.conn, text, 1, NULL, values, NULL, NULL, 0);
    web->ready = PQntuples(res) == WEB_VERBS + 1;
    for (i = 0; web->ready && i < WEB_VERBS; i++) web->may[i] = PQgetvalue(res, i, 0)[0] == 't';
    web->payloads = web->ready && PQgetvalue(res, WEB_VERBS, 0)[0] == 't';
    if (!web->ready) app_check(&web->pages, res);
    PQclear(res);
    free(text);
    free(list);
    free(needs.ptr);
    return web->ready;
}

static void web_fail(web_visit *visit, int status, const char *text)
{
    visit->status = status;
    snprintf(visit->error, sizeof visit->error, "%s", text);
}

/* Runs a statement for a page; its values are texts. NULL: it failed, and the visit says why. */
static PGresult *web_ask(web_visit *visit, const char *sql, int count, const char *const *values)
{
    static const Oid types[] = {25, 25, 25, 25, 25, 25, 25, 25};
    app *a = &visit->web->pages;
    char *text = app_sql(a, sql);
    PGresult *res = PQexecParams(a->conn, text, count, types, values, NULL, NULL, 0);
    const char *state, *message, *hint;
    char said[1024];

    free(text);
    if (PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK)
        return res;
    state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    snprintf(said, sizeof said, "%s%s%s", message != NULL ? message : PQerrorMessage(a->conn),
             hint != NULL ? " " : "", hint != NULL ? hint : "");
    web_fail(visit, PQstatus(a->conn) == CONNECTION_BAD ? 503
                  : state == NULL ? 500 : strcmp(state, "42501") == 0 ? 403
                  : strcmp(state, "57014") == 0 ? 504 : strncmp(state, "22", 2) == 0 ? 400 : 500,
             said);
    PQclear(res);
    return NULL;
}

static const char *web_cell(const PGresult *res, int row, int column)
{
    return PQgetvalue(res, row, column);
}

/* ---- forms ----------------------------------------------------------------------------------- */

/* A field of the query, "" if there is none. */
static const char *web_arg(web_visit *visit, const char *name)
{
    const char *value = MHD_lookup_connection_value(visit->connection, MHD_GET_ARGUMENT_KIND, name);

    return value == NULL ? "" : value;
}

/* A field of the form that was sent. */
static const char *web_field(const web_visit *visit, const char *name)
{
    int i;

    for (i = 0; i < visit->field_count; i++) {
        if (strcmp(visit->fields[i][0], name) == 0) return visit->fields[i][1];
    }
    return "";
}

static char *web_decode(char *text)
{
    char *from = text, *to = text;

    for (; *from != '\0'; from++) {
        unsigned byte;

        if (*from == '%' && from[1] != '\0' && sscanf(from + 1, "%2x", &byte) == 1) {
            *to++ = (char)(byte == 0 ? '?' : byte);
            from += from[2] == '\0' ? 1 : 2;
        } else {
            *to++ = *from == '+' ? ' ' : *from;
        }
    }
    *to = '\0';
    return text;
}

static void web_form_read(web_visit *visit)
{
    char *rest = visit->form.ptr, *next, *equal;

    for (; rest != NULL && visit->field_count < WEB_FIELDS; rest = next) {
        next = strchr(rest, '&');
        if (next != NULL) *next++ = '\0';
        equal = strchr(rest, '=');
        if (equal == NULL) continue;
        *equal = '\0';
        visit->fields[visit->field_count][0] = web_decode(rest);
        visit->fields[visit->field_count++][1] = web_decode(equal + 1);
    }
}

/* The token of a form: the time, and its signature with session, user and form. */
static void web_token(const web_visit *visit, const char *form, long at, char *token)
{
    unsigned char sign[32];
    char text[512];

    snprintf(text, sizeof text, "%s|%s|%s|%ld", visit->session, form, visit->user, at);
    web_sign(visit->web, text, sign);
    web_hex(token + sprintf(token, "%lx-", at), sign, 32);
}

static bool web_token_good(const web_visit *visit)
{
    const char *given = web_field(visit, "token");
    long at = strtol(given, NULL, 16), now = (long)time(NULL);
    char token[128];

    if (!visit->known || at > now || at < now - WEB_FORM_S) return false;
    web_token(visit, web_field(visit, "form"), at, token);
    return web_equal(visit->web, token, given);
}

/* Begins a form whose buttons, which may be anywhere on the page, do something. False, and nothing
   begins: the role may do none of it. */
static bool web_form(web_visit *visit, const char *form)
{
    char token[128];
    int i;

    for (i = 0; i < WEB_VERBS; i++)
        if (visit->web->may[i] && strcmp(web_verbs[i].form, form) == 0) break;
    if (i == WEB_VERBS) return false;
    web_token(visit, form, (long)time(NULL), token);
    html(&visit->out, "<form method=post action=\"/do\" id=act>"
         "<input type=hidden name=token value=\"%s\"><input type=hidden name=form value=\"%s\">",
         token, form);
    return true;
}

/* A button that does a verb to an object. Its title is the SQL. */
static void web_button(const web_state *web, app_text *out, const char *verb, const char *object)
{
    int i = web_verb_find(verb);
    const char *sql = web_verbs[i].sql, *hole;

    if (!web->may[i]) return;
    html(out, "<button form=act name=do value=\"%s %s\"", verb, object);
    if (strcmp(web_verbs[i].form, "outbox") == 0)
        html(out, " data-ask=\"%s?\"", web_verbs[i].label);
    app_put(out, " title=\"");
    for (; (hole = strstr(sql, "$1")) != NULL; sql = hole + 2) {
        app_add(out, sql, (size_t)(hole - sql));
        html(out, "'%s'", object);
    }
    html(out, "%s\">%s<span class=hidden> %s</span></button> ", sql, web_verbs[i].label, object);
}

#include "pages.h"

/* ---- doing ----------------------------------------------------------------------------------- */

/* How many parameters a statement has. */
static int web_params(const char *sql)
{
    int most = 0;

    for (; (sql = strchr(sql, '$')) != NULL; sql++) {
        if (sql[1] - '0' > most) most = sql[1] - '0';
    }
    return most;
}

/* The ids of a form, as an array of SQL. */
static void web_ids(const web_visit *visit, app_text *ids)
{
    int i;

    app_put(ids, "{");
    for (i = 0; i < visit->field_count; i++) {
        const char *id = visit->fields[i][1];

        if (strcmp(visit->fields[i][0], "id") || id[strspn(id, "0123456789")] != '\0') continue;
        if (ids->len > 1) app_put(ids, ",");
        app_put(ids, id);
    }
    app_put(ids, "}");
}

/* Runs a verb in a transaction that may write, under the name of the user. */
static PGresult *web_run(web_visit *visit, const web_verb *verb, const char *const *values)
{
    PGconn *conn = visit->web->pages.conn;
    char name[160];
    const char *names[1] = {name};
    app_text sql = {0};
    PGresult *res, *end;

    snprintf(name, sizeof name, "jobq web%s%s", visit->user[0] ? " " : "", visit->user);
    PQclear(PQexec(conn, "BEGIN READ WRITE"));
    PQclear(PQexecParams(conn, "SELECT set_config('application_name', $1, true)", 1, NULL, names,
                         NULL, NULL, 0));
    if (strstr(verb->sql, "$1::bigint[]")) {
        app_put(&sql, "SELECT count(*) FILTER (WHERE answer IN ('cancelled', 'requested', "
                "'revived', 'deleted')), count(*) FROM (");
        app_put(&sql, verb->sql);
        app_put(&sql, " ORDER BY id) AS done (answer)");
    } else {
        app_put(&sql, verb->sql);
    }
    res = web_ask(visit, sql.ptr, web_params(verb->sql), values);
    free(sql.ptr);
    if (res == NULL) {
        PQclear(PQexec(conn, "ROLLBACK"));
        return NULL;
    }
    end = web_ask(visit, "COMMIT", 0, NULL);
    if (end == NULL) {
        PQclear(res);
        return NULL;
    }
    PQclear(end);
    return res;
}

/* Does what the pressed button says, then sends the browser back to the page. */
static void web_do(web_visit *visit)
{
    char name[32] = "";
    const char *pressed = web_field(visit, "do"), *back = web_field(visit, "back");
    const char *values[6];
    static const char *const fields[] = {"", "queue", "kind", "state", "older", "tags"};
    size_t len = strcspn(pressed, " ");
    app_text ids = {0};
    PGresult *res;
    int i, verb;

    snprintf(name, sizeof name, "%.*s", (int)(len < 31 ? len : 31), pressed);
    verb = web_verb_find(name);
    if (verb == WEB_VERBS || strcmp(web_verbs[verb].form, web_field(visit, "form")) != 0) {
        web_fail(visit, 400, "This form has no such button.");
        return;
    }
    for (i = 1; i < 6; i++) {
        values[i] = web_field(visit, fields[i]);
        if (values[i][0] == '\0') values[i] = NULL;
    }
    web_ids(visit, &ids);
    values[0] = strstr(web_verbs[verb].sql, "$1::bigint[]") ? ids.ptr
              : pressed[len] == ' ' ? pressed + len + 1 : "";
    res = web_run(visit, &web_verbs[verb], values);
    if (res != NULL) {
        bool path = back[0] == '/' && back[1] != '/' && back[strcspn(back, "\\\r\n\t ")] == '\0';
        snprintf(visit->location, sizeof visit->location, "%.1900s%sdone=%s&n=%.20s&of=%.20s",
                 path ? back : "/", path && strchr(back, '?') ? "&" : "?", name,
                 PQnfields(res) > 0 ? web_cell(res, 0, 0) : "",
                 PQnfields(res) > 1 ? web_cell(res, 0, 1) : "");
        visit->status = 303;
        PQclear(res);
    }
    free(ids.ptr);
}

/* ---- who may --------------------------------------------------------------------------------- */

static const char *web_header(const web_visit *visit, const char *name)
{
    const char *value = MHD_lookup_connection_value(visit->connection, MHD_HEADER_KIND, name);

    return value == NULL ? "" : value;
}

/* Without authentication only names of this machine are answered: a foreign name that leads here
   would make a foreign page same-origin. */
static bool web_host_good(const web_visit *visit)
{
    const char *host = web_header(visit, "Host");
    char name[256];
    size_t len;

    if (visit->web->users != NULL || visit->web->user_header != NULL) return true;
    len = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (len == 0 || len >= sizeof name) return false;
    memcpy(name, host, len);
    name[len] = '\0';
    return strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 ||
           strcmp(name, "[::1]") == 0 || strcmp(name, visit->web->host) == 0;
}

/* Compares with all lines of the file, so that the time does not tell which users there are. */
static bool web_basic_good(web_visit *visit)
{
    char *password = NULL, *user, *lines, *line, *rest;
    char given[512];
    bool good = false;

    user = MHD_basic_auth_get_username_password(visit->connection, &password);
    if (user == NULL || password == NULL ||
        snprintf(given, sizeof given, "%s:%s", user, password) >= (int)sizeof given)
        given[0] = '\0';
    if (strchr(given, ':') != NULL && strchr(user, ':') == NULL) {
        lines = app_need(strdup(visit->web->users));
        for (line = strtok_r(lines, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
            bool equal = web_equal(visit->web, line, given);
            good = good || (equal && line[0] != '#' && strchr(line, ':') != NULL);
        }
        snprintf(visit->user, sizeof visit->user, "%.100s", user);
        free(lines);
    }
    MHD_free(user);
    MHD_free(password);
    return good;
}

static bool web_user_good(web_visit *visit)
{
    if (visit->web->users != NULL) return web_basic_good(visit);
    if (visit->web->user_header == NULL) return true;
    snprintf(visit->user, sizeof visit->user, "%.100s",
             web_header(visit, visit->web->user_header));
    return visit->user[0] != '\0';
}

static void web_session(web_visit *visit)
{
    const char *cookie =
        MHD_lookup_connection_value(visit->connection, MHD_COOKIE_KIND, "jobq_session");
    unsigned char bytes[16];

    visit->known = cookie != NULL && strlen(cookie) == 32 &&
                   cookie[strspn(cookie, "0123456789abcdef")] == '\0';
    if (visit->known) {
        memcpy(visit->session, cookie, 33);
        return;
    }
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) abort();
    web_hex(visit->session, bytes, 16);
}

/* Whether a write comes from a page of ours. */
static bool web_origin_good(const web_visit *visit)
{
    const char *origin = web_header(visit, "Origin"), *site = web_header(visit, "Sec-Fetch-Site");
    const char *host = strstr(origin, "://");

    if (site[0] != '\0' && strcmp(site, "same-origin") != 0) return false;
    if (origin[0] == '\0') return site[0] != '\0';
    return host != NULL && strcmp(host + 3, web_header(visit, "Host")) == 0;
}

/* Refuses what must not be answered. True: go on. */
static bool web_admit(web_visit *visit)
{
    bool post = strcmp(visit->method, "POST") == 0;

    if (!web_host_good(visit)) {
        web_fail(visit, 421, "This server answers to localhost and 127.0.0.1 only, unless "
                 "--basic or --user-header says who may.");
    } else if (!web_user_good(visit)) {
        web_fail(visit, 401, "Please log in.");
    } else if (strcmp(visit->path, "/do") == 0 ? !post
               : strcmp(visit->method, "GET") != 0 && strcmp(visit->method, "HEAD") != 0) {
        web_fail(visit, 405, "This page cannot be used in this way.");
    } else if (post && !web_origin_good(visit)) {
        web_fail(visit, 403, "This form comes from another site.");
    } else if (post && visit->status == 413) {
        web_fail(visit, 413, "This form is too large.");
    } else if (post && (web_form_read(visit), !web_token_good(visit))) {
        web_fail(visit, 403, "This form is stale. Go back, reload the page, and try again.");
    } else {
        return true;
    }
    return false;
}

/* ---- answering ------------------------------------------------------------------------------- */

static const char web_policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

static enum MHD_Result web_send(web_visit *visit, struct MHD_Response *response, const char *type)
{
    enum MHD_Result result;
    char cookie[128];

    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Content-Security-Policy", web_policy);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "same-origin");
    MHD_add_response_header(response, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(response, "Cross-Origin-Opener-Policy", "same-origin");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (visit->status == 401 && visit->web->users != NULL)
        MHD_add_response_header(response, "WWW-Authenticate", "Basic realm=\"jobq\"");
    if (visit->status == 405)
        MHD_add_response_header(response, "Allow",
                                strcmp(visit->path, "/do") == 0 ? "POST" : "GET, HEAD");
    if (visit->status == 303) MHD_add_response_header(response, "Location", visit->location);
    if (!visit->known && visit->status == 200) {
        snprintf(cookie, sizeof cookie, "jobq_session=%s; Path=/; HttpOnly; SameSite=Strict",
                 visit->session);
        MHD_add_response_header(response, "Set-Cookie", cookie);
    }
    result = MHD_queue_response(visit->connection, (unsigned)visit->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result web_send_text(web_visit *visit, const char *type, const char *text,
                                     size_t len)
{
    return web_send(visit, MHD_create_response_from_buffer(len, (void *)(size_t)text,
                                                           MHD_RESPMEM_MUST_COPY), type);
}

/* ---- server-sent events ---------------------------------------------------------------------- */

static void web_frame_drop(web_frame *frame)
{
    if (frame == NULL || --frame->refs > 0) return;
    free(frame->text.ptr);
    free(frame);
}

/* Gives libmicrohttpd more of the frame; when all is sent, waits for the next one. */
static ssize_t web_events_read(void *context, uint64_t at, char *to, size_t room)
{
    web_viewer *viewer = context;
    web_state *web = viewer->web;
    size_t len = 0;

    (void)at;
    pthread_mutex_lock(&web->mutex);
    if (web->ending) {
        pthread_mutex_unlock(&web->mutex);
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (viewer->frame == NULL && web->frame != NULL && viewer->seen != web->number) {
        viewer->frame = web->frame;
        viewer->frame->refs++;
        viewer->seen = web->number;
        viewer->sent = 0;
    }
    if (viewer->frame == NULL) {
        viewer->suspended = true;
        MHD_suspend_connection(viewer->connection);
    } else {
        len = viewer->frame->text.len - viewer->sent;
        if (len > room) len = room;
        memcpy(to, viewer->frame->text.ptr + viewer->sent, len);
        viewer->sent += len;
        if (viewer->sent == viewer->frame->text.len) {
            web_frame_drop(viewer->frame);
            viewer->frame = NULL;
        }
    }
    pthread_mutex_unlock(&web->mutex);
    return (ssize_t)len;
}

static void web_events_end(void *context)
{
    web_viewer *viewer = context, **link;
    web_state *web = viewer->web;

    pthread_mutex_lock(&web->mutex);
    for (link = &web->viewers; *link != viewer; link = &(*link)->next) {}
    *link = viewer->next;
    web->watching--;
    web_frame_drop(viewer->frame);
    pthread_mutex_unlock(&web->mutex);
    free(viewer);
}

static enum MHD_Result web_events(web_visit *visit)
{
    web_state *web = visit->web;
    web_viewer *viewer;

    if (strcmp(visit->method, "HEAD") == 0 || web->watching >= WEB_VIEWERS) {
        visit->status = web->watching >= WEB_VIEWERS ? 503 : 200;
        return web_send_text(visit, "text/event-stream", "", 0);
    }
    viewer = app_need(calloc(1, sizeof *viewer));
    viewer->web = web;
    viewer->connection = visit->connection;
    pthread_mutex_lock(&web->mutex);
    viewer->next = web->viewers;
    web->viewers = viewer;
    web->watching++;
    pthread_mutex_unlock(&web->mutex);
    return web_send(visit, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096,
                    web_events_read, viewer, web_events_end), "text/event-stream");
}

static void web_resume(web_state *web)
{
    web_viewer *viewer;

    for (viewer = web->viewers; viewer != NULL; viewer = viewer->next) {
        if (viewer->suspended) MHD_resume_connection(viewer->connection);
        viewer->suspended = false;
    }
}

/* Looks at the queues, and gives what it found to the viewers. */
static void web_look(web_state *web, bool sample)
{
    char *sql;
    PGresult *res;
    web_frame *frame;

    if (PQstatus(web->look.conn) != CONNECTION_OK && !web_connect(&web->look)) return;
    sql = app_sql(&web->look, page_look);
    res = PQexec(web->look.conn, sql);
    free(sql);
    if (PQresultStatus(res) == PGRES_TUPLES_OK) {
        frame = app_need(calloc(1, sizeof *frame));
        frame->refs = 1;
        pthread_mutex_lock(&web->mutex);
        if (sample) page_sample(web, res);
        page_sections(web, &frame->text, res);
        web_frame_drop(web->frame);
        web->frame = frame;
        web->number++;
        web_resume(web);
        pthread_mutex_unlock(&web->mutex);
    }
    PQclear(res);
}

/* ---- requests -------------------------------------------------------------------------------- */

static enum MHD_Result web_file(web_visit *visit)
{
    static const char icon[] =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><path fill=\"none\" "
        "stroke=\"#0b6e63\" stroke-width=\"2.4\" stroke-linecap=\"round\" "
        "d=\"M2 4h12M2 8h8M2 12h5\"/></svg>";

    if (strcmp(visit->path, "/style.css") == 0)
        return web_send_text(visit, "text/css; charset=utf-8", html_style, sizeof html_style - 1);
    if (strcmp(visit->path, "/script.js") == 0)
        return web_send_text(visit, "text/javascript; charset=utf-8", html_script,
                             sizeof html_script - 1);
    return web_send_text(visit, "image/svg+xml", icon, sizeof icon - 1);
}

static enum MHD_Result web_answer(web_visit *visit)
{
    web_state *web = visit->web;
    enum MHD_Result result;

    web_session(visit);
    visit->status = visit->status == 413 ? 413 : 200;
    if (web_admit(visit)) {
        visit->status = 200;
        if (strcmp(visit->path, "/style.css") == 0 || strcmp(visit->path, "/script.js") == 0 ||
            strcmp(visit->path, "/icon.svg") == 0) return web_file(visit);
        if (strcmp(visit->path, "/events") == 0) return web_events(visit);
        if (PQstatus(web->pages.conn) != CONNECTION_OK) {
            web->ready = false;
            web_connect(&web->pages);
        }
        if (!web->ready && !(PQstatus(web->pages.conn) == CONNECTION_OK && web_rights(web)))
            web_fail(visit, 503, "The database does not answer, or has no jobq schema that this "
                     "role may read.");
        else if (strcmp(visit->method, "POST") == 0) web_do(visit);
        else page(visit);
    }
    if (visit->error[0] != '\0') page_error(visit);
    result = web_send_text(visit, "text/html; charset=utf-8",
                           visit->out.ptr == NULL ? "" : visit->out.ptr, visit->out.len);
    return result;
}

static enum MHD_Result web_request(void *context, struct MHD_Connection *connection,
                                   const char *path, const char *method, const char *version,
                                   const char *data, size_t *size, void **state)
{
    web_visit *visit = *state;

    (void)version;
    if (visit == NULL) {
        *state = visit = app_need(calloc(1, sizeof *visit));
        visit->web = context;
        visit->connection = connection;
        visit->path = path;
        visit->method = method;
        return MHD_YES;
    }
    if (*size > 0) {
        if (visit->form.len + *size > WEB_FORM_MAX) visit->status = 413;
        else app_add(&visit->form, data, *size);
        *size = 0;
        return MHD_YES;
    }
    return web_answer(visit);
}

static void web_done(void *context, struct MHD_Connection *connection, void **state,
                     enum MHD_RequestTerminationCode code)
{
    web_visit *visit = *state;

    (void)context, (void)connection, (void)code;
    if (visit == NULL) return;
    free(visit->form.ptr);
    free(visit->out.ptr);
    free(visit);
}

/* ---- the program ----------------------------------------------------------------------------- */

static char *web_users(const char *path)
{
    app_text text = {0};
    char part[4096];
    size_t len;
    FILE *file = fopen(path, "r");

    if (file == NULL) return app_say(0, "%s: %s", path, strerror(errno)), NULL;
    app_put(&text, "");
    while ((len = fread(part, 1, sizeof part, file)) > 0) app_add(&text, part, len);
    fclose(file);
    return text.ptr;
}

/* "HOST:PORT", "PORT" or "HOST". */
static bool web_address(web_state *web, char *text, struct sockaddr_in *address)
{
    char *colon = strrchr(text, ':');
    bool number = text[strspn(text, "0123456789")] == '\0';

    web->host = number ? "127.0.0.1" : text;
    if (number || colon != NULL) web->port = atoi(number ? text : colon + 1);
    if (colon != NULL) *colon = '\0';
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)web->port);
    return web->port >= 0 && web->port < 65536 &&
           inet_pton(AF_INET, web->host, &address->sin_addr) == 1;
}

static void web_serve(web_state *web, struct MHD_Daemon *daemon)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    struct timespec second = {1, 0};
    sigset_t signals;
    long tick;

    printf("http://%s:%d/\n", web->host, info == NULL ? web->port : (int)info->port);
    fflush(stdout);
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    for (tick = 0;; tick++) {
        bool sample = tick % 10 == 0, watched;

        pthread_mutex_lock(&web->mutex);
        watched = web->watching > 0;
        pthread_mutex_unlock(&web->mutex);
        if (sample || watched) web_look(web, sample);
        if (sigtimedwait(&signals, NULL, &second) > 0) break;
    }
    pthread_mutex_lock(&web->mutex);
    web->ending = true;
    web_resume(web);
    pthread_mutex_unlock(&web->mutex);
}

static int web_start(web_state *web, struct sockaddr_in *address)
{
    struct MHD_Daemon *daemon;
    sigset_t signals;

    if (getrandom(web->key, sizeof web->key, 0) != sizeof web->key) abort();
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (!web_connect(&web->pages) || !web_connect(&web->look))
        return app_say(APP_SERVER, "%s", PQerrorMessage(web->pages.conn));
    if (!web_rights(web)) return app_failed(&web->pages);
    daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME,
                              address->sin_port == 0 ? 0 : (uint16_t)web->port, NULL, NULL,
                              web_request, web, MHD_OPTION_SOCK_ADDR, address,
                              MHD_OPTION_NOTIFY_COMPLETED, web_done, NULL,
                              MHD_OPTION_CONNECTION_TIMEOUT, 60u,
                              MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)24576,
                              MHD_OPTION_CONNECTION_LIMIT, 2u * WEB_VIEWERS, MHD_OPTION_END);
    if (daemon == NULL)
        return app_say(APP_NO, "cannot listen on %s:%d: %s", web->host, web->port, strerror(errno));
    web_serve(web, daemon);
    MHD_stop_daemon(daemon);
    return APP_OK;
}

static int web(app *a, int argc, char **argv)
{
    static web_state state;
    struct sockaddr_in address;
    const char *to = "127.0.0.1:8080", *basic = NULL;
    const app_option options[] = {{"listen", &to, NULL}, {"basic", &basic, NULL},
                                  {"user_header", &state.user_header, NULL}, {0}};
    char *text;
    int code = APP_USAGE;

    if (!app_options(&argc, argv, options, 0, 0)) return APP_USAGE;
    state.pages = state.look = *a;
    state.pages.conn = state.look.conn = NULL;
    state.port = 8080;
    text = app_need(strdup(to));
    pthread_mutex_init(&state.mutex, NULL);
    if (!web_address(&state, text, &address)) {
        app_say(0, "--listen takes HOST:PORT, with HOST in digits, not '%s'", to);
    } else if (strncmp(state.host, "127.", 4) != 0 && basic == NULL && state.user_header == NULL) {
        app_say(0, "--listen beyond this machine needs --basic or --user-header");
    } else if (basic == NULL || (state.users = web_users(basic)) != NULL) {
        code = web_start(&state, &address);
    }
    web_frame_drop(state.frame);
    PQfinish(state.pages.conn);
    PQfinish(state.look.conn);
    free(state.users);
    free(text);
    return code;
}
