/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Payloads that are compressed: jobq_pg_desc.seal and .open by zstd. See SEALED PAYLOADS in
 * jobq_pg.h.
 *
 *     cc examples/seal/zstd.c -I. -lpq -lzstd -o seal_zstd
 *     tests/server.sh ./seal_zstd
 *
 * Compress what is large and repeats itself. A payload of 100 bytes becomes longer.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <zstd.h>

#define SCHEMA "jobq_seal_zstd"
#define LARGEST ((unsigned long long)64 << 20) /* of an opened payload: a bomb is refused */

static bool seal(void *user, jobq_pg_seal *s)
{
    size_t room = ZSTD_compressBound(s->in.len);

    (void)user;
    s->out = (char *)malloc(room);
    s->size = s->out == NULL ? 0 : ZSTD_compress(s->out, room, s->in.ptr, s->in.len, 3);
    if (s->out != NULL && !ZSTD_isError(s->size)) return true;
    snprintf(s->why, sizeof s->why, "zstd: %s",
             s->out == NULL ? "out of memory" : ZSTD_getErrorName(s->size));
    return false;
}

static bool open_sealed(void *user, jobq_pg_seal *s)
{
    unsigned long long size = ZSTD_getFrameContentSize(s->in.ptr, s->in.len);
    size_t done;

    (void)user;
    if (strcmp(s->name, "zstd") != 0 || size == ZSTD_CONTENTSIZE_ERROR ||
        size == ZSTD_CONTENTSIZE_UNKNOWN || size > LARGEST) {
        snprintf(s->why, sizeof s->why, "not of zstd, or larger than 64 MiB");
        return false;
    }
    s->out = (char *)malloc((size_t)size + 1);
    if (s->out == NULL) return false;
    done = ZSTD_decompress(s->out, (size_t)size, s->in.ptr, s->in.len);
    s->size = (size_t)size;
    if (!ZSTD_isError(done) && done == size) return true;
    snprintf(s->why, sizeof s->why, "damaged: %s", ZSTD_getErrorName(done));
    return false;
}

/* ---- a program around it --------------------------------------------------------------------- */

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void run(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_COMMAND_OK, PQerrorMessage(conn));
    PQclear(res);
}

static jobq_outcome count(jobq_call *call)
{
    printf("the handler gets %zu bytes of JSON\n", call->payload.len);
    return JOBQ_OUTCOME_SUCCESS;
}

int main(void)
{
    static char text[100002] = "\"";
    static const jobq_pg_handler handlers[] = {{.queue = "q", .kind = "count", .run = {count}}};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA, .seal = seal,
                         .open = open_sealed, .seal_name = "zstd"};
    jobq_pg_worker_desc work = {.handlers = handlers, .handler_count = 1,
                                .loop = {.until = JOBQ_UNTIL_ENDED}};
    jobq_pg_job job = {.queue = "q", .kind = "count"};
    jobq_pg_error error;
    PGconn *conn;
    PGresult *res;
    jobq_pg *pg;
    size_t i;

    for (i = 1; i < sizeof text - 2; i++) text[i] = "lorem ipsum "[i % 12];
    text[i] = '"';
    job.payload = jobq_str_from(text);
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    must(jobq_pg_enqueue(pg, conn, &job, NULL, &error) == JOBQ_OK, error.message);
    res = PQexec(conn, "SELECT length(bytes) < 1000 FROM " SCHEMA ".job");
    must(PQntuples(res) == 1 && PQgetvalue(res, 0, 0)[0] == 't', "it was not compressed");
    PQclear(res);
    printf("100001 bytes are sent as less than 1000\n");
    must(jobq_pg_work(pg, &work, &error) == JOBQ_OK, error.message);
    run(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
