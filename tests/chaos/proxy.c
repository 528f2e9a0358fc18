/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * proxy.c -- a proxy between clients and a server that acts as a bad network on command.
 *
 *     proxy LOG DIR TARGET PORT [DIR TARGET PORT ...] <commands
 *
 * Listens at DIR/.s.PGSQL.5432 for each DIR. TARGET is a host name, or the folder of a server's
 * socket; it is resolved for each connection, so it may be a symbolic link that changes. Commands:
 *
 *     cut            ends every connection now
 *     commit N       cuts the next N commits, each one byte later than the one before:
 *                    before, within and after the message, within and after its answer
 *     hold MS        half of the connections carry nothing for this time, and stay open
 *     sync N MS      the next N requests arrive without the Sync that ends them; it follows this
 *                    much later (or, every second time, the connection ends then)
 *     late N MS      the next N requests with a completion (as text) arrive this much later, or up
 *                    to twice that, even if the client has gone
 *     delay MS       every read waits up to this long (0: not at all)
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

#define ENDS_MAX 4
#define QUERY 12  /* bytes of the message COMMIT */
#define ANSWER 19 /* bytes of its answer: CommandComplete, ReadyForQuery */

typedef struct end {
    const char *dir, *target, *port;
    int listener;
} end;

typedef struct carrier {
    const end *to;
    int client, server, cuts;
    unsigned random;
    int answer_left; /* bytes of a commit's answer that pass, then the cut; -1: none awaited */
} carrier;

/* Written by the thread that reads commands, by the others only through take(). */
static int cuts, commits, commit_point, syncs, sync_turn, lates, delay_ms, sync_ms, late_ms;
static int64_t hold_until;

static int take(int *counter)
{
    int left = __atomic_load_n(counter, __ATOMIC_SEQ_CST);

    while (left > 0 && !__atomic_compare_exchange_n(counter, &left, left - 1, false,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return left > 0;
}

static unsigned dice(carrier *l)
{
    l->random = l->random * 1103515245u + 12345u;
    return l->random >> 16;
}

static bool pass(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* Where the message COMMIT begins in what the client sends; size when it is not there. */
static size_t find_commit(const char *bytes, size_t size)
{
    size_t i;

    for (i = 5; i + 7 <= size; i++) {
        if (bytes[i - 5] == 'Q' && memcmp(bytes + i, "COMMIT", 7) == 0) return i - 5;
    }
    return size;
}

/* The next point of a commit is reached: false when the connection ends here. */
static bool cut_commit(carrier *l, const char *bytes, size_t size, size_t at)
{
    int point = __atomic_fetch_add(&commit_point, 1, __ATOMIC_SEQ_CST) % (QUERY + ANSWER);
    char detail[40];

    snprintf(detail, sizeof detail, "%d", point);
    log_line("proxy", "cut_commit", 0, 0, 0, 0, detail);
    if (point < QUERY) {
        pass(l->server, bytes, at + (size_t)point);
        return false;
    }
    l->answer_left = point - QUERY;
    return pass(l->server, bytes, size);
}

/* What the client sent goes without its Sync; the server has executed, and waits. */
static bool hold_sync(carrier *l, const char *bytes, size_t size)
{
    bool later = __atomic_fetch_add(&sync_turn, 1, __ATOMIC_SEQ_CST) % 2 == 0;

    log_line("proxy", "hold_sync", 0, 0, 0, 0, later ? "late" : "never");
    if (!pass(l->server, bytes, size - 5)) return false;
    nap_us(sync_ms * (int64_t)1000);
    return later && pass(l->server, bytes + size - 5, 5);
}

/* A network may keep a request for long, and deliver it when its sender is dead. */
static bool deliver_late(carrier *l, const char *bytes, size_t size)
{
    log_line("proxy", "late", 0, 0, 0, 0, "");
    nap_us((late_ms + (int64_t)(dice(l) % (unsigned)(late_ms + 1))) * 1000);
    log_line("proxy", "late_arrived", 0, 0, 0, 0, "");
    return pass(l->server, bytes, size);
}

static bool from_client(carrier *l, const char *bytes, size_t size)
{
    size_t at = find_commit(bytes, size);

    if (at < size && take(&commits)) return cut_commit(l, bytes, size, at);
    if (size > 5 && memcmp(bytes + size - 5, "S\0\0\0\4", 5) == 0 && take(&syncs)) {
        return hold_sync(l, bytes, size);
    }
    if (memmem(bytes, size, "._complete(", 10) != NULL && take(&lates))
        return deliver_late(l, bytes, size);
    return pass(l->server, bytes, size);
}

static bool from_server(carrier *l, const char *bytes, size_t size)
{
    if (l->answer_left >= 0) {
        if (size > (size_t)l->answer_left) size = (size_t)l->answer_left;
        pass(l->client, bytes, size);
        return false;
    }
    return pass(l->client, bytes, size);
}

/* One chunk from either side. */
static bool step(carrier *l)
{
    static __thread char bytes[65536];
    struct pollfd fds[2];
    ssize_t got;
    int from;

    memset(fds, 0, sizeof fds);
    fds[0].fd = l->client;
    fds[1].fd = l->server;
    fds[0].events = fds[1].events = POLLIN;
    if (poll(fds, 2, 20) <= 0) return l->cuts == __atomic_load_n(&cuts, __ATOMIC_SEQ_CST);
    from = fds[0].revents != 0 ? 0 : 1;
    got = read(fds[from].fd, bytes, sizeof bytes);
    if (got <= 0) return false;
    if (delay_ms > 0) nap_us(dice(l) % (unsigned)(delay_ms * 1000));
    while (l->random % 2 == 0 && mono_us() < hold_until) nap_us(5000);
    if (l->cuts != __atomic_load_n(&cuts, __ATOMIC_SEQ_CST)) return false;
    return from == 0 ? from_client(l, bytes, (size_t)got) : from_server(l, bytes, (size_t)got);
}

static int connect_unix(const end *to)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/.s.PGSQL.%s", to->target, to->port);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static int connect_tcp(const end *to)
{
    struct addrinfo hints, *found = NULL, *i;
    int fd = -1;

    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(to->target, to->port, &hints, &found) != 0) return -1;
    for (i = found; i != NULL && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype, i->ai_protocol);
        if (fd >= 0 && connect(fd, i->ai_addr, i->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

static void *carry(void *arg)
{
    carrier l = *(carrier *)arg;

    free(arg);
    l.server = l.to->target[0] == '/' ? connect_unix(l.to) : connect_tcp(l.to);
    if (l.server >= 0) {
        while (step(&l)) {
        }
        close(l.server);
    }
    close(l.client);
    return NULL;
}

static void *serve(void *arg)
{
    end *e = (end *)arg;
    unsigned seed = 1;
    pthread_t thread;
    int client;

    while ((client = accept(e->listener, NULL, NULL)) >= 0) {
        carrier *l = calloc(1, sizeof *l);
        l->to = e;
        l->client = client;
        l->cuts = cuts;
        l->answer_left = -1;
        l->random = seed++ * 2654435761u;
        dice(l);
        if (pthread_create(&thread, NULL, carry, l) == 0) pthread_detach(thread);
    }
    return NULL;
}

static void open_end(end *e)
{
    struct sockaddr_un address;
    pthread_t thread;

    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/.s.PGSQL.5432", e->dir);
    e->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(e->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(e->listener, 64) != 0 || pthread_create(&thread, NULL, serve, e) != 0) {
        perror(address.sun_path);
        exit(1);
    }
}

static void obey(const char *line)
{
    int n = 0, ms = 0;

    if (strncmp(line, "cut", 3) == 0) __atomic_add_fetch(&cuts, 1, __ATOMIC_SEQ_CST);
    if (sscanf(line, "commit %d", &n) == 1) __atomic_store_n(&commits, n, __ATOMIC_SEQ_CST);
    if (sscanf(line, "hold %d", &n) == 1) hold_until = mono_us() + n * (int64_t)1000;
    if (sscanf(line, "delay %d", &n) == 1) delay_ms = n;
    if (sscanf(line, "late %d %d", &n, &ms) == 2) {
        late_ms = ms;
        __atomic_store_n(&lates, n, __ATOMIC_SEQ_CST);
    }
    if (sscanf(line, "sync %d %d", &n, &ms) == 2) {
        sync_ms = ms;
        __atomic_store_n(&syncs, n, __ATOMIC_SEQ_CST);
    }
}

int main(int argc, char **argv)
{
    static end ends[ENDS_MAX];
    char line[100];
    int i;

    if (argc < 5 || (argc - 2) % 3 != 0 || (argc - 2) / 3 > ENDS_MAX) return 2;
    signal(SIGPIPE, SIG_IGN);
    log_open(argv[1]);
    for (i = 0; i < (argc - 2) / 3; i++) {
        ends[i].dir = argv[2 + 3 * i];
        ends[i].target = argv[3 + 3 * i];
        ends[i].port = argv[4 + 3 * i];
        open_end(&ends[i]);
    }
    while (fgets(line, sizeof line, stdin) != NULL) obey(line);
    return 0;
}
