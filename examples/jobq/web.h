/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * web.h -- jobq web: a dashboard for browsers, rendered on the server.
 *
 * One thread answers all requests, on one connection. The main thread looks at what the open pages
 * show, once a second, or more rarely, so that looking takes a tenth of the time at most; it has
 * another connection. It gives all viewers the same texts of the sections that have changed. A
 * third one does to many jobs, in steps, what a button says, see acts.h.
 * The role of the connection decides what is shown; the server refuses the rest.
 */
#include <arpa/inet.h>
#include <math.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "html.h"

enum {
    WEB_SAMPLES = 360,        /* of the last hour, one each 10 s */
    WEB_PLOTS = 3,
    WEB_OBJECTS = 20,         /* flows and jobs that are watched at the same time */
    WEB_SECTIONS = 64 + WEB_OBJECTS + 1, /* of tables, of objects, and the beat */
    WEB_BEAT = WEB_SECTIONS - 1,
    WEB_VIEWERS = 200,        /* at the same time */
    WEB_OF_ONE = 100,         /* connections of one address, unless it is a proxy */
    WEB_HEADERS_S = 10,       /* for sending the headers of a request */
    WEB_BODY_S = 30,          /* and for its form */
    WEB_IDLE_S = 60,
    WEB_FORM_MAX = 65536,     /* bytes of a form */
    WEB_FIELDS = 1100,
    WEB_FORM_S = 12 * 3600,   /* a form is stale after this time */
    WEB_ROWS = 50,            /* of a page of jobs */
    WEB_SERIALS = 65536,      /* forms: older ones are stale */
    WEB_TOKEN = 80,           /* bytes of a token */
    WEB_SAID = 64,            /* answers that wait for the page that says them */
    WEB_BULKS = 16,           /* that are remembered */
    PAGE_FILTERS = 12,        /* of jobs */
    WEB_VALUES = 1 + PAGE_FILTERS /* of a statement */
};

/* Why a statement failed: what HTTP says, SQLSTATE, a text. */
typedef struct web_trouble {
    int status;
    char state[6], text[1024];
} web_trouble;

/* What a verb did, until the page that the visitor is sent to says it. */
typedef struct web_said {
    char session[33], path[256], text[600];
} web_said;

enum { BULK_STEP = 500, BULK_MOST = 100000 /* that are counted before */ };

/* A verb that is done to many, in steps. */
typedef struct web_bulk {
    const look_verb *verb;
    long number;              /* from 1 */
    enum { BULK_NONE, BULK_WAITS, BULK_WORKS, BULK_ENDED, BULK_STOPPED, BULK_FAILED } state;
    bool stop;
    char user[128], what[600], *sql, *values[WEB_VALUES];
    long total, seen, done;   /* total: BULK_MOST or more; -1: unknown */
    char why[300];            /* some were left, or it failed */
    char operation[24];       /* its row of operator_log; "": it has none yet */
} web_bulk;

/* An event, such as a section of a page. Viewers hold it while it is sent to them. */
typedef struct web_frame {
    app_text text;
    long refs;
} web_frame;

/* A section as the look that is its version found it. */
typedef struct web_section {
    web_frame *frame;
    unsigned long version, looked; /* numbers of looks: of the last change, of the last one */
} web_section;

/* A connection, and by when the request must be there that it sends; 0: it waits for our answer. */
typedef struct web_socket {
    int fd;
    int64_t until_s;
    struct MHD_Connection *sorry; /* suspended, because of a wrong password */
    struct web_socket *next;
} web_socket;

struct web_page;

/* What the page of one object is about. */
typedef struct web_object {
    const struct web_page *page; /* NULL: nothing */
    long long id;
} web_object;

typedef struct web_viewer {
    struct web_state *web;
    struct MHD_Connection *connection;
    struct web_viewer *next;
    web_frame *frame; /* being sent, or NULL */
    size_t left;      /* of it, to send */
    bool wants[WEB_SECTIONS];
    unsigned long seen[WEB_SECTIONS]; /* versions */
    unsigned long since; /* a look; what earlier ones found may be older than its page */
    web_object object;
    bool suspended;
} web_viewer;

typedef struct web_state {
    app pages, look, acts;    /* each with a connection of its own */
    const char *host, *user_header;
    const char *name, *color; /* of the instance, so that one is not mistaken for another */
    int port;
    char *users;              /* the text of --basic */
    uint64_t key[2];          /* of this process: signs forms */
    bool may[LOOK_VERBS], acts_any; /* the role may use look_verbs[i]; it may use any */
    bool payloads, ready;     /* the role may read payloads; rights are known */
    bool look_locked;         /* the last look gave up a wait for a lock */
    unsigned long serial;     /* of the newest form */
    unsigned char used[WEB_SERIALS / 8]; /* forms that did something */
    web_said said[WEB_SAID];
    unsigned said_count;
    bool ending;
    pthread_mutex_t mutex;    /* guards what is below */
    web_viewer *viewers;
    web_socket *sockets;
    int watching, samples;
    web_section sections[WEB_SECTIONS];
    web_object objects[WEB_OBJECTS]; /* whose sections are from 64 on */
    unsigned long looks;
    float plots[WEB_PLOTS][WEB_SAMPLES];
    web_bulk bulks[WEB_BULKS]; /* by number */
    long bulk_count;
    pthread_cond_t bulk_news;
} web_state;

/* A request. */
typedef struct web_visit {
    web_state *web;
    struct MHD_Connection *connection;
    const char *method, *path;
    char user[128], session[33];
    bool known;               /* the browser sent its session */
    bool sorry;               /* it has waited because of a wrong password */
    web_socket *socket;
    app_text form, out;
    const char *fields[WEB_FIELDS][2];
    const char *args[PAGE_FILTERS]; /* the filter of jobs */
    int field_count, status;
    char error[1024], location[2048];
} web_visit;

/* ---- signatures ------------------------------------------------------------------------------ */

static uint64_t web_turn(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void web_mix(uint64_t v[4], int rounds)
{
    while (rounds-- > 0) {
        v[0] += v[1], v[2] += v[3];
        v[1] = web_turn(v[1], 13) ^ v[0], v[3] = web_turn(v[3], 16) ^ v[2];
        v[0] = web_turn(v[0], 32) + v[3], v[2] += v[1];
        v[1] = web_turn(v[1], 17) ^ v[2], v[3] = web_turn(v[3], 21) ^ v[0];
        v[2] = web_turn(v[2], 32);
    }
}

/* SipHash-2-4 with 128 bits, of a text, by the process's key: nobody who has not the key can tell
   the signature of a text from chance. */
static void web_sign(const web_state *web, const char *text, uint64_t out[2])
{
    uint64_t v[4] = {web->key[0] ^ 0x736f6d6570736575, web->key[1] ^ 0x646f72616e646f6d ^ 0xee,
                     web->key[0] ^ 0x6c7967656e657261, web->key[1] ^ 0x7465646279746573};
    size_t len = strlen(text), at, i;

    for (at = 0; at <= len; at += 8) {
        uint64_t word = len - at < 8 ? (uint64_t)len << 56 : 0;

        for (i = 0; i < 8 && at + i < len; i++)
            word |= (uint64_t)(unsigned char)text[at + i] << 8 * i;
        v[3] ^= word;
        web_mix(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xee;
    web_mix(v, 4);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    web_mix(v, 4);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Whether two texts are equal, in a time that tells nothing about them. */
static bool web_equal(const web_state *web, const char *a, const char *b)
{
    uint64_t x[2], y[2];

    web_sign(web, a, x);
    web_sign(web, b, y);
    return ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
}

/* ---- statements ------------------------------------------------------------------------------ */

/* Opens a connection, or opens it again. A page can only read; a verb asks for more. */
static bool web_connect(app *a)
{
    if (!app_connect(a, "jobq web", "5")) return false;
    PQclear(PQexec(a->conn, LOOK_SETTINGS "; SET TimeZone = 'UTC'; "
                   "SET default_transaction_read_only = on; SET lock_timeout = '2s'"));
    return true;
}

/* Asks once for a connection what its role may do. */
static bool web_rights(web_state *web)
{
    app_text sql = {0};
    PGresult *res;
    int i;

    for (i = 0; i < LOOK_VERBS; i++)
        app_format(&sql, "SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(name), "
                   "'execute'), false)) FROM unnest(string_to_array('%s', ';')) AS u (name) "
                   "UNION ALL ", look_verbs[i].needs);
    app_put(&sql, "SELECT has_column_privilege('jobq.jobs', 'payload', 'select')");
    res = app_exec(&web->pages, sql.ptr, 0, false, NULL);
    web->ready = PQntuples(res) == LOOK_VERBS + 1;
    for (i = 0, web->acts_any = false; web->ready && i < LOOK_VERBS; i++) {
        web->may[i] = PQgetvalue(res, i, 0)[0] == 't';
        web->acts_any = web->acts_any || web->may[i];
    }
    web->payloads = web->ready && PQgetvalue(res, LOOK_VERBS, 0)[0] == 't';
    if (!web->ready) app_check(&web->pages, res);
    PQclear(res);
    free(sql.ptr);
    return web->ready;
}

/* False, and the visit says why. */
static bool web_fail(web_visit *visit, int status, const char *text)
{
    visit->status = status;
    snprintf(visit->error, sizeof visit->error, "%s", text);
    return false;
}

/* Runs a statement; its values are texts. NULL: it failed, and trouble, if it is there, has why. */
static PGresult *web_try(const app *a, const char *sql, int count, const char *const *values,
                         web_trouble *trouble)
{
    PGresult *res = app_exec(a, sql, count, true, values);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);

    if (PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK)
        return res;
    if (trouble != NULL) {
        trouble->status = state == NULL || strncmp(state, "57P", 3) == 0 ? 503
                        : strcmp(state, "42501") == 0 ? 403 : strcmp(state, "57014") == 0 ||
                          strcmp(state, "55P03") == 0 ? 504
                        : strncmp(state, "22", 2) == 0 ? 400 : 500;
        snprintf(trouble->state, sizeof trouble->state, "%s", state == NULL ? "" : state);
        snprintf(trouble->text, sizeof trouble->text, "%s%s%s",
                 message != NULL ? message : PQerrorMessage(a->conn), hint != NULL ? " " : "",
                 hint != NULL ? hint : "");
    }
    PQclear(res);
    return NULL;
}

/* The same for a page. NULL: it failed, and the visit says why. */
static PGresult *web_ask(web_visit *visit, const char *sql, int count, const char *const *values)
{
    web_trouble trouble = {0};
    PGresult *res = web_try(&visit->web->pages, sql, count, values, &trouble);

    if (res == NULL) web_fail(visit, trouble.status, trouble.text);
    return res;
}

/* ---- forms ----------------------------------------------------------------------------------- */

/* A field of the query, a header or a cookie; "" if there is none. */
static const char *web_value(const web_visit *visit, enum MHD_ValueKind kind, const char *name)
{
    const char *value = MHD_lookup_connection_value(visit->connection, kind, name);

    return value == NULL ? "" : value;
}

static const char *web_arg(const web_visit *visit, const char *name)
{
    return web_value(visit, MHD_GET_ARGUMENT_KIND, name);
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
    char *plus;

    for (plus = text; (plus = strchr(plus, '+')) != NULL;) *plus = ' ';
    MHD_http_unescape(text);
    return text;
}

static enum MHD_Result web_form_add(void *context, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    web_visit *visit = context;

    (void)kind;
    if (value == NULL || visit->field_count == WEB_FIELDS) return MHD_YES;
    visit->fields[visit->field_count][0] = name;
    visit->fields[visit->field_count++][1] = value;
    return MHD_YES;
}

/* The fields of a form, and those that its button has in the address. */
static void web_form_read(web_visit *visit)
{
    char *rest = NULL, *field = visit->form.ptr, *equal;

    if (field != NULL) field = strtok_r(field, "&", &rest);
    for (; field != NULL; field = strtok_r(NULL, "&", &rest)) {
        equal = strchr(field, '=');
        if (equal == NULL) continue;
        *equal = '\0';
        web_form_add(visit, MHD_POSTDATA_KIND, web_decode(field), web_decode(equal + 1));
    }
    MHD_get_connection_values(visit->connection, MHD_GET_ARGUMENT_KIND, web_form_add, visit);
}

/* The serial number of a new form. */
static unsigned long web_serial(web_state *web)
{
    unsigned long serial = ++web->serial;

    web->used[serial % WEB_SERIALS / 8] &= (unsigned char)~(1u << serial % 8);
    return serial;
}

/* The token of a form: the time, a serial number, and their signature with session, user and
   form. */
static void web_token(const web_visit *visit, const char *form, long at, unsigned long serial,
                      char token[WEB_TOKEN])
{
    uint64_t sign[2];
    char text[512];

    snprintf(text, sizeof text, "%s|%s|%s|%ld|%lu", visit->session, form, visit->user, at, serial);
    web_sign(visit->web, text, sign);
    snprintf(token, WEB_TOKEN, "%lx-%lx-%016llx%016llx", at, serial, (unsigned long long)sign[0],
             (unsigned long long)sign[1]);
}

/* The serial number of the form that was sent. */
static unsigned long web_token_serial(const web_visit *visit)
{
    const char *given = web_field(visit, "token"), *dash = strchr(given, '-');

    return dash == NULL ? 0 : strtoul(dash + 1, NULL, 16);
}

static bool web_token_good(const web_visit *visit)
{
    const char *given = web_field(visit, "token");
    unsigned long serial = web_token_serial(visit);
    long at = strtol(given, NULL, 16), now = (long)time(NULL);
    char token[WEB_TOKEN];

    if (!visit->known || at > now || at < now - WEB_FORM_S) return false;
    web_token(visit, web_field(visit, "form"), at, serial, token);
    return web_equal(visit->web, token, given) && serial + WEB_SERIALS > visit->web->serial;
}

/* A form does something once, and what it did not do it may do again. False: it has done it. */
static bool web_token_use(web_visit *visit, bool use)
{
    unsigned long serial = web_token_serial(visit);
    unsigned char *byte = &visit->web->used[serial % WEB_SERIALS / 8], bit = 1u << serial % 8;
    bool used = *byte & bit;

    *byte = (unsigned char)(use ? *byte | bit : *byte & ~bit);
    return !used;
}

/* Begins a form whose buttons, which may be anywhere on the page, do something to the object with
   the id. False, and nothing begins: the role may do none of it. */
static bool web_form(web_visit *visit, const char *form, const char *id)
{
    char token[WEB_TOKEN];
    int i;

    for (i = 0; i < LOOK_VERBS; i++)
        if (visit->web->may[i] && strcmp(look_verbs[i].form, form) == 0) break;
    if (i == LOOK_VERBS && !(visit->web->acts_any && strcmp(form, "bulk") == 0)) return false;
    web_token(visit, form, (long)time(NULL), web_serial(visit->web), token);
    html(&visit->out, "<form method=post action=\"/do\" id=act>"
         "<input type=hidden name=token value=\"%s\"><input type=hidden name=form value=\"%s\">",
         token, form);
    if (id[0] != '\0') html(&visit->out, "<input type=hidden name=id value=\"%s\">", id);
    return true;
}

#include "pages.h"

#include "acts.h"

/* ---- who may --------------------------------------------------------------------------------- */

static const char *web_header(const web_visit *visit, const char *name)
{
    return web_value(visit, MHD_HEADER_KIND, name);
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

/* Notes a user's name, which operator_log gets. One that is too long is nobody's. */
static bool web_user_named(web_visit *visit, const char *name)
{
    bool good = strlen(name) <= 100 && jobq_utf8_valid(jobq_str_from(name));

    snprintf(visit->user, sizeof visit->user, "%s", good ? name : "");
    return visit->user[0] != '\0';
}

/* Tells who tried to log in, from where, once the attempt has been slowed down. */
static void web_log_refused(const web_visit *visit, const char *user)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(visit->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char address[INET_ADDRSTRLEN] = "?";
    app_text name = {0};

    if (info != NULL && info->client_addr->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)info->client_addr)->sin_addr,
                  address, sizeof address);
    app_put(&name, "");
    app_clean(&name, user, PQclientEncoding(visit->web->pages.conn));
    app_say(0, "log-in refused: '%.100s' from %s", name.ptr, address);
    free(name.ptr);
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
        good = web_user_named(visit, user) && good;
        free(lines);
    }
    if (user != NULL && !good && visit->sorry) web_log_refused(visit, user);
    MHD_free(user);
    MHD_free(password);
    return good;
}

static bool web_user_good(web_visit *visit)
{
    if (visit->web->users != NULL) return web_basic_good(visit);
    return visit->web->user_header == NULL ||
           web_user_named(visit, web_header(visit, visit->web->user_header));
}

static void web_session(web_visit *visit)
{
    const char *cookie = web_value(visit, MHD_COOKIE_KIND, "jobq_session");
    unsigned long long random[2];

    visit->known = strlen(cookie) == 32 && cookie[strspn(cookie, "0123456789abcdef")] == '\0';
    if (getrandom(random, sizeof random, 0) != sizeof random) abort();
    if (visit->known) memcpy(visit->session, cookie, 33);
    else snprintf(visit->session, sizeof visit->session, "%016llx%016llx", random[0], random[1]);
}

/* Whether a write comes from a page of ours. */
static bool web_origin_good(const web_visit *visit)
{
    const char *origin = web_header(visit, "Origin"), *site = web_header(visit, "Sec-Fetch-Site");
    const char *host = strstr(origin, "://");

    if (site[0] != '\0') return strcmp(site, "same-origin") == 0; /* a proxy may change Host */
    return host != NULL && strcmp(host + 3, web_header(visit, "Host")) == 0;
}

/* Refuses what must not be answered. True: go on. */
static bool web_admit(web_visit *visit)
{
    bool post = strcmp(visit->method, "POST") == 0, act = strcmp(visit->path, "/do") == 0;
    bool get = strcmp(visit->method, "GET") == 0 || strcmp(visit->method, "HEAD") == 0;

    if (!web_host_good(visit))
        return web_fail(visit, 421, "This server answers to localhost and 127.0.0.1 only, unless "
                        "--basic or --user-header says who may.");
    if (!web_user_good(visit)) return web_fail(visit, 401, "Please log in.");
    if (act ? !post : !get)
        return web_fail(visit, 405, "This page cannot be used in this way.");
    if (get) return true;
    if (!web_origin_good(visit))
        return web_fail(visit, 403, "This form comes from another site.");
    if (visit->status == 413) return web_fail(visit, 413, "This form is too large.");
    web_form_read(visit);
    if (web_token_good(visit)) return true;
    return web_fail(visit, 403, "This form is stale. Go back, reload the page, and try again.");
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
    if (strcmp(type, "text/event-stream") == 0) /* for proxies, which would wait for more */
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    if (!visit->known && visit->status == 200) {
        snprintf(cookie, sizeof cookie, "jobq_session=%s; Path=/; HttpOnly; SameSite=Strict",
                 visit->session);
        MHD_add_response_header(response, "Set-Cookie", cookie);
    }
    result = MHD_queue_response(visit->connection, (unsigned)visit->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result web_send_text(web_visit *visit, const char *type, const char *text)
{
    return web_send(visit, MHD_create_response_from_buffer(strlen(text), (void *)(size_t)text,
                                                           MHD_RESPMEM_MUST_COPY), type);
}

/* ---- server-sent events ---------------------------------------------------------------------- */

static void web_frame_drop(web_frame *frame)
{
    if (frame == NULL || --frame->refs > 0) return;
    free(frame->text.ptr);
    free(frame);
}

/* The place of an object among those that are watched. -1: it has none. */
static int web_object_at(const web_state *web, const web_object *object)
{
    int i;

    for (i = 0; i < WEB_OBJECTS && object->page != NULL; i++)
        if (web->objects[i].page == object->page && web->objects[i].id == object->id)
            return 64 + i;
    return -1;
}

/* The next event for a viewer: a section that has changed since it got it. NULL: none. */
static web_frame *web_next(web_state *web, web_viewer *viewer)
{
    int object = web_object_at(web, &viewer->object), i;

    for (i = 0; i < WEB_SECTIONS; i++) {
        web_section *section = &web->sections[i];

        if (!(viewer->wants[i] || i == object || i == WEB_BEAT) || section->frame == NULL ||
            section->looked <= viewer->since || section->version == viewer->seen[i]) continue;
        viewer->seen[i] = section->version;
        section->frame->refs++;
        return section->frame;
    }
    return NULL;
}

/* Gives libmicrohttpd more of the event; when all is sent, waits for the next one. */
static ssize_t web_events_read(void *context, uint64_t at, char *to, size_t room)
{
    web_viewer *viewer = context;
    web_state *web = viewer->web;
    ssize_t len = 0;

    (void)at;
    pthread_mutex_lock(&web->mutex);
    if (viewer->left == 0) {
        web_frame_drop(viewer->frame);
        viewer->frame = web_next(web, viewer);
        viewer->left = viewer->frame == NULL ? 0 : viewer->frame->text.len;
    }
    if (web->ending) {
        len = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (viewer->left == 0) {
        viewer->suspended = true;
        MHD_suspend_connection(viewer->connection);
    } else {
        len = (ssize_t)(viewer->left < room ? viewer->left : room);
        memcpy(to, viewer->frame->text.ptr + viewer->frame->text.len - viewer->left, (size_t)len);
        viewer->left -= (size_t)len;
    }
    pthread_mutex_unlock(&web->mutex);
    return len;
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

/* What a page shows: of, the ids of its sections with , between them; at, its path. */
static void web_wants(web_viewer *viewer, const char *of, const char *at)
{
    int live[LOOK_TABLES], count = look_flagged(LOOK_LIVE, live), i;

    viewer->object.page = page_find(at, &at);
    viewer->object.id = atoll(at);
    if (viewer->object.id == 0) viewer->object.page = NULL;
    for (; *of != '\0'; of += strcspn(of, ","), of += *of == ',') {
        for (i = 0; i < count; i++) {
            const char *id = look_tables[live[i]].id;

            if (strlen(id) == strcspn(of, ",") && strncmp(of, id, strlen(id)) == 0)
                viewer->wants[live[i]] = true;
        }
    }
}

static enum MHD_Result web_events(web_visit *visit)
{
    web_state *web = visit->web;
    web_viewer *viewer;

    if (strcmp(visit->method, "HEAD") == 0 || web->watching >= WEB_VIEWERS) {
        visit->status = web->watching >= WEB_VIEWERS ? 503 : 200;
        return web_send_text(visit, "text/event-stream", "");
    }
    viewer = app_need(calloc(1, sizeof *viewer));
    viewer->web = web;
    viewer->connection = visit->connection;
    web_wants(viewer, web_arg(visit, "of"), web_arg(visit, "at"));
    pthread_mutex_lock(&web->mutex);
    viewer->since = web->looks;
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

/* Puts what a look found in a section's place, if it is new. */
static void web_put(web_state *web, int at, app_text *text)
{
    web_section *section = &web->sections[at];
    web_frame *frame = section->frame;

    section->looked = web->looks;
    if (text->ptr == NULL) app_put(text, "");
    if (frame != NULL && frame->text.len == text->len &&
        memcmp(frame->text.ptr, text->ptr, text->len) == 0) {
        free(text->ptr);
        return;
    }
    web_frame_drop(frame);
    section->frame = frame = app_need(calloc(1, sizeof *frame));
    frame->refs = 1;
    frame->text = *text;
    section->version = web->looks;
}

/* Begins a look. Lists the tables that viewers want, and those that they are made of, and the
   objects. */
static int web_wanted(web_state *web, bool sample, bool wants[WEB_SECTIONS],
                      int tables[LOOK_TABLES])
{
    bool needs[LOOK_TABLES] = {false};
    const web_viewer *viewer;
    int i, count = 0;

    pthread_mutex_lock(&web->mutex);
    web->looks++;
    memset(web->objects, 0, sizeof web->objects);
    for (viewer = web->viewers; viewer != NULL; viewer = viewer->next) {
        for (i = 0; i < LOOK_TABLES; i++) wants[i] = wants[i] || viewer->wants[i];
        if (viewer->object.page == NULL || web_object_at(web, &viewer->object) >= 0) continue;
        for (i = 0; i < WEB_OBJECTS && web->objects[i].page != NULL; i++) {}
        if (i < WEB_OBJECTS) web->objects[i] = viewer->object;
    }
    pthread_mutex_unlock(&web->mutex);
    memcpy(needs, wants, sizeof needs);
    needs[LOOK_QUEUES] = needs[LOOK_QUEUES] || sample || wants[LOOK_NOW];
    needs[LOOK_WORKERS] = needs[LOOK_WORKERS] || wants[LOOK_NOW];
    needs[LOOK_OUTBOX] = needs[LOOK_OUTBOX] || wants[LOOK_NOW];
    for (i = 0; i < LOOK_TABLES; i++)
        if (needs[i]) tables[count++] = i;
    return count;
}

/* Looks with one statement. NULL: it failed; a wait for a lock is no load, and not counted. */
static PGresult *web_look_at(web_state *web, const int *tables, int count, const char *key)
{
    const char *state;
    const char *values[] = {key, ""};
    char *sql = look_sql(tables, count, 't', web->payloads);
    PGresult *res = app_exec(&web->look, sql == NULL ? "SELECT WHERE false" : sql, 2, true, values);

    free(sql);
    if (PQresultStatus(res) == PGRES_TUPLES_OK) return res;
    state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    web->look_locked = state != NULL && strcmp(state, "55P03") == 0;
    PQclear(res);
    return NULL;
}

/* Looks at the objects that are watched, and puts their sections. */
static void web_look_objects(web_state *web)
{
    int i;

    for (i = 0; i < WEB_OBJECTS && web->objects[i].page != NULL; i++) {
        char id[24];
        PGresult *res;
        app_text text = {0};

        snprintf(id, sizeof id, "%lld", web->objects[i].id);
        res = page_look(web, web->objects[i].page, id);
        pthread_mutex_lock(&web->mutex);
        if (res != NULL) {
            page_object_events(web, &text, web->objects[i].page, res, id);
            web_put(web, 64 + i, &text);
        }
        pthread_mutex_unlock(&web->mutex);
        PQclear(res);
    }
}

/*
 * Looks at all that open pages show, and gives the viewers what has changed, and a beat that says
 * when the next look is due. After a look that failed they get no beat, but a line that says
 * nothing, which shows whether they are still there. Returns how long it took, in ms.
 */
static long web_look(web_state *web, bool sample)
{
    bool wants[WEB_SECTIONS] = {false};
    int tables[LOOK_TABLES], count, i;
    int64_t started = app_now_us();
    PGresult *res = NULL;
    app_text beat = {0};
    long took;

    web->look_locked = false;
    count = web_wanted(web, sample, wants, tables);
    if (PQstatus(web->look.conn) == CONNECTION_OK || web_connect(&web->look))
        res = web_look_at(web, tables, count, "");
    if (res != NULL) web_look_objects(web);
    took = (long)((app_now_us() - started) / 1000);
    pthread_mutex_lock(&web->mutex);
    if (sample && res != NULL) page_sample(web, res);
    for (i = 0; i < LOOK_TABLES && res != NULL; i++) {
        app_text text = {0};

        if (!wants[i]) continue;
        page_event(web, &text, i, res);
        web_put(web, i, &text);
    }
    /* The number is there so that each beat is new. */
    if (res == NULL) app_format(&beat, ": %lu\n\n", web->looks);
    else app_format(&beat, "data: . %ld %lu\n\n", took / 100, web->looks);
    web_put(web, WEB_BEAT, &beat);
    web_resume(web);
    pthread_mutex_unlock(&web->mutex);
    PQclear(res);
    return web->look_locked ? 0 : took;
}

/* ---- requests -------------------------------------------------------------------------------- */

static const char web_icon[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><path fill=\"none\" "
    "stroke=\"#0b6e63\" stroke-width=\"2.4\" stroke-linecap=\"round\" "
    "d=\"M2 4h12M2 8h8M2 12h5\"/></svg>";

/* Pages that are the same for everybody. */
static const char *const web_files[][3] = {
    {"/style.css", "text/css; charset=utf-8", html_style},
    {"/script.js", "text/javascript; charset=utf-8", html_script},
    {"/icon.svg", "image/svg+xml", web_icon}};

static enum MHD_Result web_answer(web_visit *visit)
{
    web_state *web = visit->web;
    bool admitted;
    int i;

    web_session(visit);
    visit->status = visit->status == 413 ? 413 : 200;
    admitted = web_admit(visit);
    if (!admitted && visit->status == 401 && !visit->sorry &&
        web_header(visit, "Authorization")[0] != '\0') {
        visit->sorry = true; /* it is answered after a second */
        visit->error[0] = '\0';
        visit->field_count = 0;
        visit->socket->sorry = visit->connection;
        MHD_suspend_connection(visit->connection);
        return MHD_YES;
    }
    if (admitted) {
        visit->status = 200;
        for (i = 0; i < 3; i++)
            if (strcmp(visit->path, web_files[i][0]) == 0)
                return web_send_text(visit, web_files[i][1], web_files[i][2]);
        if (strcmp(visit->path, "/events") == 0) return web_events(visit);
        if (PQstatus(web->pages.conn) != CONNECTION_OK) web->ready = false;
        if (!web->ready && !(web_connect(&web->pages) && web_rights(web)))
            web_fail(visit, 503, "The database does not answer, or has no jobq schema that this "
                     "role may read.");
        else if (strcmp(visit->method, "POST") == 0) web_do(visit);
        else page(visit);
    }
    if (visit->error[0] != '\0') page_error(visit);
    return web_send_text(visit, "text/html; charset=utf-8",
                         visit->out.ptr == NULL ? "" : visit->out.ptr);
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Notes by when a connection has to have sent what it sends. */
static void web_socket_wait(web_visit *visit, int seconds)
{
    pthread_mutex_lock(&visit->web->mutex);
    visit->socket->until_s = seconds == 0 ? 0 : app_now_us() / 1000000 + seconds;
    pthread_mutex_unlock(&visit->web->mutex);
}

/* A connection begins or ends. */
static void web_socket_note(void *context, struct MHD_Connection *connection, void **state,
                            enum MHD_ConnectionNotificationCode code)
{
    web_state *web = context;
    web_socket *s = *state, **link;

    pthread_mutex_lock(&web->mutex);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *state = s = app_need(calloc(1, sizeof *s));
        s->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        s->until_s = app_now_us() / 1000000 + WEB_HEADERS_S;
        s->next = web->sockets;
        web->sockets = s;
    } else {
        for (link = &web->sockets; *link != s; link = &(*link)->next) {}
        *link = s->next;
        free(s);
    }
    pthread_mutex_unlock(&web->mutex);
}

/* Once a second: cuts connections that take too long to send, and lets those go on that have given
   a wrong password. */
static void web_sockets_check(web_state *web)
{
    int64_t now_s = app_now_us() / 1000000;
    web_socket *s;

    pthread_mutex_lock(&web->mutex);
    for (s = web->sockets; s != NULL; s = s->next) {
        if (s->until_s != 0 && now_s > s->until_s) shutdown(s->fd, SHUT_RDWR);
        if (s->sorry != NULL) MHD_resume_connection(s->sorry);
        s->sorry = NULL;
    }
    pthread_mutex_unlock(&web->mutex);
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
        visit->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
                            ->socket_context;
        web_socket_wait(visit, WEB_BODY_S);
        return MHD_YES;
    }
    if (*size > 0) {
        if (visit->form.len + *size > WEB_FORM_MAX) visit->status = 413;
        else app_add(&visit->form, data, *size);
        *size = 0;
        return MHD_YES;
    }
    web_socket_wait(visit, 0);
    return web_answer(visit);
}

static void web_done(void *context, struct MHD_Connection *connection, void **state,
                     enum MHD_RequestTerminationCode code)
{
    web_visit *visit = *state;

    (void)context, (void)connection, (void)code;
    if (visit == NULL) return;
    web_socket_wait(visit, WEB_IDLE_S);
    free(visit->form.ptr);
    free(visit->out.ptr);
    free(visit);
}

/* ---- the program ----------------------------------------------------------------------------- */

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

static void web_serve(web_state *web, struct MHD_Daemon *daemon, const sigset_t *signals)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    struct timespec second = {1, 0};
    int64_t next_us = 0, sample_us = 0;

    printf("http://%s:%d/\n", web->host, info == NULL ? web->port : (int)info->port);
    fflush(stdout);
    for (;;) {
        int64_t now = app_now_us();
        bool sample = now >= sample_us, watched;

        pthread_mutex_lock(&web->mutex);
        watched = web->watching > 0;
        pthread_mutex_unlock(&web->mutex);
        pthread_sigmask(SIG_UNBLOCK, signals, NULL);
        if (now >= next_us && (sample || watched)) {
            if (sample) sample_us = now + 10000000 - 500000; /* by the tick of a second */
            next_us = app_now_us() + 10000 * web_look(web, sample);
        }
        pthread_sigmask(SIG_BLOCK, signals, NULL);
        if (sigtimedwait(signals, NULL, &second) > 0) break;
        web_sockets_check(web);
    }
    alarm(5);
    web_sockets_check(web);
    pthread_mutex_lock(&web->mutex);
    web->ending = true;
    pthread_cond_broadcast(&web->bulk_news);
    web_resume(web);
    pthread_mutex_unlock(&web->mutex);
}

/* A signal during a look, or five seconds after one: the database may not answer for long. */
static void web_quit(int signal_number)
{
    (void)signal_number;
    _exit(APP_OK);
}

/* The plots of the time before this program started. How many jobs were ready then is not known. */
static void web_backfill(web_state *web)
{
    PGresult *res = app_exec(&web->look, "SELECT done_per_s, failed_1h FROM jobq._last_hour()", 0,
                             false, NULL);
    int i;

    for (i = 0; i < PQntuples(res) && i < WEB_SAMPLES; i++) {
        web->plots[0][i] = (float)atof(PQgetvalue(res, i, 0));
        web->plots[1][i] = NAN;
        web->plots[2][i] = (float)atof(PQgetvalue(res, i, 1));
    }
    web->samples = i;
    PQclear(res);
}

/* What an instance is called without --name: the database, its host and its schema. */
static const char *web_name(const app *a)
{
    const char *host = PQhost(a->conn);
    app_text name = {0};

    app_put(&name, PQdb(a->conn));
    if (host != NULL && host[0] != '/' && host[0] != '\0') app_format(&name, " on %s", host);
    if (strcmp(a->schema, "jobq") != 0) app_format(&name, ", %s", a->schema);
    return name.ptr;
}

static int web_start(web_state *web, struct sockaddr_in *address)
{
    struct MHD_Daemon *daemon;
    pthread_t bulks;
    sigset_t signals;

    if (getrandom(web->key, sizeof web->key, 0) != sizeof web->key) abort();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, web_quit);
    signal(SIGTERM, web_quit);
    signal(SIGALRM, web_quit);
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (!web_connect(&web->pages) || !web_connect(&web->look))
        return app_say(APP_SERVER, "%s", PQerrorMessage(web->pages.conn));
    if (!web_rights(web)) return app_failed(&web->pages);
    if (web->name == NULL) web->name = web_name(&web->pages);
    web_backfill(web);
    if (pthread_create(&bulks, NULL, bulk_work, web) != 0)
        return app_say(APP_NO, "cannot start a thread: %s", strerror(errno));
    daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME,
                              address->sin_port == 0 ? 0 : (uint16_t)web->port, NULL, NULL,
                              web_request, web, MHD_OPTION_SOCK_ADDR, address,
                              MHD_OPTION_NOTIFY_COMPLETED, web_done, NULL,
                              MHD_OPTION_NOTIFY_CONNECTION, web_socket_note, web,
                              MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)WEB_IDLE_S,
                              MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                              web->user_header != NULL ? 0u : (unsigned)WEB_OF_ONE,
                              MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)24576,
                              MHD_OPTION_CONNECTION_LIMIT, 2u * WEB_VIEWERS, MHD_OPTION_END);
    if (daemon == NULL)
        return app_say(APP_NO, "cannot listen on %s:%d: %s", web->host, web->port, strerror(errno));
    web_serve(web, daemon, &signals);
    MHD_stop_daemon(daemon);
    pthread_join(bulks, NULL);
    return APP_OK;
}

static int web(app *a)
{
    static web_state state = {.port = 8080};
    struct sockaddr_in address;
    const char *to = app_value(a, "listen"), *basic = app_value(a, "basic");
    FILE *file = basic == NULL ? NULL : fopen(basic, "r");
    int code;

    if (to == NULL) to = "127.0.0.1:8080";
    state.user_header = app_value(a, "user-header");
    state.name = app_value(a, "name");
    state.color = app_value(a, "color") == NULL ? "" : app_value(a, "color");
    if (!app_all_known(a)) return APP_USAGE;
    state.pages = state.look = state.acts = *a;
    pthread_mutex_init(&state.mutex, NULL);
    pthread_cond_init(&state.bulk_news, NULL);
    if (!web_address(&state, app_need(strdup(to)), &address))
        return app_say(APP_USAGE, "--listen takes HOST:PORT, with HOST in digits, not '%s'", to);
    if (strncmp(state.host, "127.", 4) != 0 && basic == NULL && state.user_header == NULL)
        return app_say(APP_USAGE, "--listen beyond this machine needs --basic or --user-header");
    if (basic != NULL && file == NULL)
        return app_say(APP_USAGE, "%s: %s", basic, strerror(errno));
    if (file != NULL) {
        state.users = app_file(file);
        fclose(file);
    }
    code = web_start(&state, &address);
    PQfinish(state.pages.conn);
    PQfinish(state.look.conn);
    PQfinish(state.acts.conn);
    return code;
}
