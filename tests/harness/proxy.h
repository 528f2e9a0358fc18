/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * proxy.h -- a proxy between a client and the server of the tests, in threads of this process. It
 * counts what passes, and cuts the connection or falls silent at the moment that the test names.
 */
#ifndef PROXY_INCLUDED
#define PROXY_INCLUDED (1)

#include "pg_work.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

typedef enum proxy_fault {
    PROXY_NONE,
    PROXY_CUT_REQUEST, /* what the client sends is lost, and the connection with it */
    PROXY_CUT_ANSWER,  /* the server gets it, and its answer is lost with the connection */
    PROXY_SILENT       /* half-open: nothing passes any more, nobody is told */
} proxy_fault;

static struct {
    char folder[40], conninfo[120];
    struct sockaddr_un server;
    int listener;
    int fault, at;  /* what happens at the at-th piece that clients send, counted from 1 */
    int pieces;     /* sent by clients so far */
    int happened;
    int connections;
    int refuse;     /* new connections are closed at once */
    int rate;       /* bytes a second that reach a client on one connection; 0: all at once */
} proxy;

typedef struct proxy_pair {
    int client, server;
    bool silent, cut_answer;
} proxy_pair;

/* Passes one piece on. False: the connection ends here. */
static inline bool proxy_pass(proxy_pair *p, int from, int to)
{
    char piece[65536];
    bool up = from == p->client;
    int rate = up ? 0 : GET(proxy.rate);
    ssize_t got = recv(from, piece, rate > 0 ? sizeof piece / 8 : sizeof piece, 0);

    if (got <= 0) return false;
    if (up && ADD(proxy.pieces) == GET(proxy.at) && GET(proxy.fault) != PROXY_NONE) {
        ADD(proxy.happened);
        if (GET(proxy.fault) == PROXY_CUT_REQUEST) return false;
        if (GET(proxy.fault) == PROXY_CUT_ANSWER) p->cut_answer = true;
        if (GET(proxy.fault) == PROXY_SILENT) p->silent = true;
    }
    if (p->silent) return true;
    if (!up && p->cut_answer) return false;
    if (rate > 0 && got > 0) nap_us((int64_t)got * 1000000 / rate);
    return send(to, piece, (size_t)got, MSG_NOSIGNAL) == got;
}

static inline void *proxy_relay(void *arg)
{
    proxy_pair p = *(proxy_pair *)arg;
    struct pollfd fds[2];
    bool open = true;

    free(arg);
    memset(fds, 0, sizeof fds);
    fds[0].fd = p.client;
    fds[1].fd = p.server;
    fds[0].events = fds[1].events = POLLIN;
    while (open) {
        poll(fds, 2, 1000);
        if (fds[0].revents != 0) open = proxy_pass(&p, p.client, p.server);
        if (open && fds[1].revents != 0) open = proxy_pass(&p, p.server, p.client);
    }
    close(p.client);
    close(p.server);
    return NULL;
}

static inline void *proxy_accept(void *arg)
{
    for (;;) {
        proxy_pair *p = calloc(1, sizeof *p);
        pthread_t thread;
        p->client = accept(proxy.listener, NULL, NULL);
        p->server = socket(AF_UNIX, SOCK_STREAM, 0);
        ADD(proxy.connections);
        if (p->client < 0) break;
        if (GET(proxy.refuse) ||
            connect(p->server, (struct sockaddr *)&proxy.server, sizeof proxy.server) != 0) {
            close(p->client);
            close(p->server);
            free(p);
            continue;
        }
        pthread_create(&thread, NULL, proxy_relay, p);
        pthread_detach(thread);
    }
    return arg;
}

/* Where the server's socket is, by a connection that works. */
static inline void proxy_up(void)
{
    struct sockaddr_un mine;
    pthread_t thread;

    memset(&mine, 0, sizeof mine);
    memset(&proxy.server, 0, sizeof proxy.server);
    strcpy(proxy.folder, "/tmp/jobq_proxy.XXXXXX");
    assert_non_null(mkdtemp(proxy.folder));
    mine.sun_family = proxy.server.sun_family = AF_UNIX;
    snprintf(mine.sun_path, sizeof mine.sun_path, "%s/.s.PGSQL.%s", proxy.folder, PQport(db));
    snprintf(proxy.server.sun_path, sizeof proxy.server.sun_path, "%s/.s.PGSQL.%s", PQhost(db),
             PQport(db));
    proxy.listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(proxy.listener, (struct sockaddr *)&mine, sizeof mine), 0);
    assert_int_equal(listen(proxy.listener, 32), 0);
    snprintf(proxy.conninfo, sizeof proxy.conninfo, "host=%s port=%s user=%s dbname=%s",
             proxy.folder, PQport(db), PQuser(db), PQdb(db));
    pthread_create(&thread, NULL, proxy_accept, NULL);
    pthread_detach(thread);
}

/* Group setup and teardown. */
static inline int pg_and_proxy_up(void **state)
{
    if (pg_up(state) != 0) return 1;
    proxy_up();
    return 0;
}

static inline void proxy_down(void)
{
    char path[100];

    snprintf(path, sizeof path, "%s/.s.PGSQL.%s", proxy.folder, PQport(db));
    unlink(path);
    rmdir(proxy.folder);
}

static inline int pg_and_proxy_down(void **state)
{
    proxy_down();
    return pg_down(state);
}

/* From now on: fault at the at-th piece. */
static inline void proxy_fault_at(proxy_fault fault, int at)
{
    SET(proxy.fault, PROXY_NONE);
    SET(proxy.pieces, 0);
    SET(proxy.happened, 0);
    SET(proxy.at, at);
    SET(proxy.fault, (int)fault);
}

#endif
