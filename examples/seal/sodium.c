/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Payloads that are encrypted: jobq_pg_desc.seal and .open by libsodium, with keys that rotate. See
 * SEALED PAYLOADS in jobq_pg.h.
 *
 *     cc examples/seal/sodium.c -I. -lpq -lsodium -o seal_sodium
 *     tests/server.sh ./seal_sodium
 *
 * A sealed payload is the key's id (a byte), a random nonce (24 bytes), and XChaCha20-Poly1305 of
 * the payload, which also proves the kind: a payload that somebody gives to another kind cannot be
 * opened. To rotate, give all programs the new key, then seal with it. Drop the old key when
 *     SELECT count(*) FROM jobq.jobs WHERE get_byte(bytes, 0) = OLD AND headers ->> 'seal' = 'aead'
 * is 0, and the same of messages, failed jobs and history that you still want to read. Without the
 * key nobody can read them: that is one way to erase.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#define SCHEMA "jobq_seal_sodium"
#define NONCE crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
#define HEAD (1 + NONCE)
#define TAG crypto_aead_xchacha20poly1305_ietf_ABYTES

/* Keys come from your secret store. have: whether this program has the key of that id. */
typedef struct ring {
    unsigned char key[256][crypto_aead_xchacha20poly1305_ietf_KEYBYTES];
    bool have[256];
    unsigned char current; /* seals */
} ring;

static const unsigned char *about(const jobq_pg_seal *s, unsigned long long *size)
{
    const char *kind = s->kind == NULL ? "" : s->kind; /* a message has none */

    *size = strlen(kind);
    return (const unsigned char *)kind;
}

static bool seal(void *user, jobq_pg_seal *s)
{
    const ring *r = (const ring *)user;
    unsigned long long size, known;
    const unsigned char *kind = about(s, &known);
    unsigned char *out = (unsigned char *)malloc(HEAD + s->in.len + TAG);

    s->out = (char *)out;
    if (out == NULL || !r->have[r->current]) {
        snprintf(s->why, sizeof s->why, "no key %d, or no memory", r->current);
        return false;
    }
    out[0] = r->current;
    randombytes_buf(out + 1, NONCE);
    crypto_aead_xchacha20poly1305_ietf_encrypt(out + HEAD, &size, (const unsigned char *)s->in.ptr,
                                               s->in.len, kind, known, NULL, out + 1,
                                               r->key[r->current]);
    s->size = HEAD + (size_t)size;
    return true;
}

static bool open_sealed(void *user, jobq_pg_seal *s)
{
    const ring *r = (const ring *)user;
    const unsigned char *in = (const unsigned char *)s->in.ptr;
    unsigned long long size, known;
    const unsigned char *kind = about(s, &known);

    if (strcmp(s->name, "aead") != 0 || s->in.len < HEAD + TAG) {
        snprintf(s->why, sizeof s->why, "not of this program");
        return false;
    }
    if (!r->have[in[0]]) {
        snprintf(s->why, sizeof s->why, "key %d is missing: give it to this program", in[0]);
        return false;
    }
    s->out = (char *)malloc(s->in.len);
    if (s->out == NULL ||
        crypto_aead_xchacha20poly1305_ietf_decrypt(
            (unsigned char *)s->out, &size, NULL, in + HEAD, s->in.len - HEAD, kind, known, in + 1,
            r->key[in[0]]) != 0) {
        snprintf(s->why, sizeof s->why, "it was changed, or was sealed for another kind");
        return false;
    }
    s->size = (size_t)size;
    return true;
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

static jobq_outcome reads(jobq_call *call)
{
    printf("the handler gets %.*s\n", (int)call->payload.len, call->payload.ptr);
    return JOBQ_OUTCOME_SUCCESS;
}

static void put(jobq_pg *pg, PGconn *conn, const char *payload)
{
    jobq_pg_job job = {.queue = "q", .kind = "reads"};
    jobq_pg_error error;

    job.payload = jobq_str_from(payload);
    must(jobq_pg_enqueue(pg, conn, &job, NULL, &error) == JOBQ_OK, error.message);
}

int main(void)
{
    static const jobq_pg_handler handlers[] = {{.queue = "q", .kind = "reads", .run = {reads}}};
    static ring keys;
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA, .seal = seal,
                         .open = open_sealed, .seal_name = "aead", .user = &keys};
    jobq_pg_worker_desc work = {.handlers = handlers, .handler_count = 1,
                                .loop = {.threads = 1, .until = JOBQ_UNTIL_ENDED}};
    jobq_pg_error error;
    PGconn *conn;
    jobq_pg *pg;

    must(sodium_init() >= 0, "libsodium does not start");
    crypto_aead_xchacha20poly1305_ietf_keygen(keys.key[1]);
    keys.have[1] = true;
    keys.current = 1;
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    put(pg, conn, "\"sealed with key 1\"");
    crypto_aead_xchacha20poly1305_ietf_keygen(keys.key[2]);
    keys.have[2] = true;
    keys.current = 2;
    put(pg, conn, "\"sealed with key 2\"");
    must(jobq_pg_work(pg, &work, &error) == JOBQ_OK, error.message);
    run(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
