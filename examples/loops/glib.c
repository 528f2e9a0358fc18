/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * glib.c -- a worker in GLib's main loop, as a GSource: for GTK and all that is built on GLib.
 *
 * Build   cc examples/loops/glib.c -I. -lpq $(pkg-config --cflags --libs glib-2.0) -o glib
 * Run     JOBQ_SERVER="host=... dbname=..." ./glib
 * Prints
 *         enqueued job 1
 *         attempt 1
 *         attempt 2
 *         job 1: 49
 *
 * Drops and creates the schema jobq_example_loops, and drops it at the end.
 */
#include "app.h"

#include <glib.h>

typedef struct source {
    GSource base;
    jobq_pg_worker *worker;
    GMainLoop *loop; /* to end with the worker */
    gpointer tags[JOBQ_PG_FDS];
    int count;
} source;

/* Sockets come and go in a step. Before it all are forgotten, and afterwards those are watched that
 * there are then. */
static void step(source *s)
{
    struct pollfd fds[JOBQ_PG_FDS];
    int64_t wait_us;
    int i;

    for (i = 0; i < s->count; i++) g_source_remove_unix_fd(&s->base, s->tags[i]);
    s->count = 0;
    if (!jobq_pg_worker_step(s->worker, APP_BUDGET_US)) {
        g_main_loop_quit(s->loop);
        g_source_set_ready_time(&s->base, -1);
        return;
    }
    s->count = jobq_pg_worker_fds(s->worker, fds, &wait_us);
    for (i = 0; i < s->count; i++) {
        int out = (fds[i].events & POLLOUT) != 0 ? G_IO_OUT : 0;
        s->tags[i] = g_source_add_unix_fd(&s->base, fds[i].fd, (GIOCondition)(G_IO_IN | out));
    }
    g_source_set_ready_time(&s->base, g_get_monotonic_time() + wait_us);
}

/* GLib calls it when a socket is ready, or its time has come. */
static gboolean dispatch(GSource *base, GSourceFunc unused, gpointer data)
{
    (void)unused;
    (void)data;
    step((source *)base);
    return G_SOURCE_CONTINUE;
}

int main(void)
{
    static GSourceFuncs functions = {.dispatch = dispatch};
    jobq_pg *pg;
    jobq_pg_worker *worker = app_open(&pg);
    source *s = (source *)g_source_new(&functions, sizeof *s);

    s->worker = worker;
    s->loop = g_main_loop_new(NULL, FALSE);
    g_source_set_ready_time(&s->base, 0); /* the first step */
    g_source_attach(&s->base, NULL);
    app_enqueue(worker, 7, app_enqueued, worker);
    g_main_loop_run(s->loop);
    g_main_loop_unref(s->loop);
    g_source_destroy(&s->base);
    g_source_unref(&s->base);
    app_close(pg, worker);
    return 0;
}
