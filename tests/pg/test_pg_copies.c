/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Several copies of the library in one process: the program's, and those of two plugins, which are
 * loaded and unloaded. A signal reaches all of them, and whoever goes takes along only what is its
 * own.
 */
#include "pg_work.h"

#include "copy.h"

#include <dlfcn.h>

#define COPIES 3 /* the program itself, and two plugins */
#define HOSTS 12 /* actions that the program sets */

static char files[COPIES][500]; /* of the plugins */
static void *plugins[COPIES];
static const copy_verbs *copies[COPIES]; /* NULL: it has no worker */

static void load(int i)
{
    const copy_verbs *(*verbs)(void) = NULL;
    void *symbol;

    plugins[i] = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (plugins[i] == NULL) fail_msg("%s", dlerror());
    symbol = dlsym(plugins[i], "plugin_verbs");
    assert_non_null(symbol);
    memcpy(&verbs, &symbol, sizeof verbs);
    copies[i] = verbs();
}

static void open_copy(int i)
{
    if (i == 0) copies[i] = &copy_here;
    else load(i);
    assert_true(copies[i]->open(server(), schema, SIGUSR1));
}

static void close_copy(int i)
{
    if (copies[i] == NULL) return;
    copies[i]->close();
    copies[i] = NULL;
    if (plugins[i] != NULL) assert_int_equal(dlclose(plugins[i]), 0);
    plugins[i] = NULL;
    if (i > 0) assert_null(dlopen(files[i], RTLD_NOW | RTLD_NOLOAD)); /* unmapped */
}

/* -- actions of the program's own: each counts -- */

static volatile sig_atomic_t calls[HOSTS];
static struct sigaction below; /* what the last one has found */
static bool passes_on;
static int hosts;

static void on_host(int number, siginfo_t *info, void *context)
{
    struct sigaction now;
    int i;

    sigaction(number, NULL, &now);
    for (i = 0; !sigismember(&now.sa_mask, SIGRTMIN + i);) i++; /* which one this is */
    calls[i]++;
    if (passes_on) below.sa_sigaction(number, info, context);
}

static void set_host(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_host;
    action.sa_flags = SA_SIGINFO;
    sigaddset(&action.sa_mask, SIGRTMIN + hosts);
    calls[hosts++] = 0;
    assert_int_equal(sigaction(SIGUSR1, &action, &below), 0);
}

/* -- what should be: actions above each other, each the program's or shared by copies -- */

static struct layer {
    int host;          /* its number; -1: it is the copies' */
    bool in[COPIES];   /* which ones share it */
} layers[HOSTS + COPIES];
static int layer_count, host_calls[HOSTS];
static bool told[COPIES];

static void layer_add(int host)
{
    struct layer *top = &layers[layer_count++];

    memset(top, 0, sizeof *top);
    top->host = host;
}

static void expect_open(int i)
{
    if (layers[layer_count - 1].host >= 0) layer_add(-1);
    layers[layer_count - 1].in[i] = true;
    told[i] = false;
}

static void expect_closed(int i)
{
    const struct layer *top;
    int n, k;

    for (n = 0; n < layer_count; n++) layers[n].in[i] = false;
    for (n = k = 0; n < layer_count; n++) { /* layers that nobody shares go */
        top = &layers[n];
        if (top->host >= 0 || top->in[0] || top->in[1] || top->in[2]) layers[k++] = *top;
    }
    layer_count = k;
}

static void expect_signal(void)
{
    const struct layer *top = &layers[layer_count - 1];
    int i;

    if (top->host >= 0) host_calls[top->host]++;
    for (i = 0; i < COPIES; i++) told[i] = told[i] || (top->host < 0 && top->in[i]);
}

static void signal_comes(void)
{
    int i;

    raise(SIGUSR1);
    expect_signal();
    for (i = 0; i < hosts; i++) assert_int_equal(calls[i], host_calls[i]);
    for (i = 0; i < COPIES; i++) {
        if (copies[i] != NULL) assert_int_equal(copies[i]->told(), told[i]);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void opens(int i)
{
    open_copy(i);
    expect_open(i);
}

static void closes(int i)
{
    close_copy(i);
    expect_closed(i);
}

static void sets_host(void)
{
    memset(&host_calls[hosts], 0, sizeof host_calls[0]);
    layer_add(hosts);
    set_host();
}

static void a_signal_stops_the_workers_of_all_copies(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < COPIES; i++) opens(i);
    signal_comes();
    for (i = 0; i < COPIES; i++) assert_true(told[i]);
}

/* Whoever goes first, and although its code is gone: the others hear, and then the program does. */
static void copies_go_in_any_order(void **unused)
{
    static const int orders[][COPIES] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    size_t n;
    int i, gone;

    (void)unused;
    for (n = 0; n < COUNT(orders); n++) {
        for (gone = 1; gone <= COPIES; gone++) {
            for (i = 0; i < COPIES; i++) opens(i);
            for (i = 0; i < gone; i++) closes(orders[n][i]);
            signal_comes();
            for (; i < COPIES; i++) closes(orders[n][i]);
            signal_comes();
        }
    }
}

/* Anybody comes and goes at any time, and the program sets actions of its own in between. */
static void a_copy_takes_back_only_what_is_its_own(void **unused)
{
    jobq_random random = {1};
    int round, step, i;

    (void)unused;
    for (round = 0; round < 12; round++) {
        for (step = 0; step < 9; step++) {
            i = (int)jobq_random_between(jobq_random_next(&random), 0, COPIES);
            if (i == COPIES && hosts < HOSTS) sets_host();
            else if (i < COPIES && copies[i] == NULL) opens(i);
            else if (i < COPIES) closes(i);
            signal_comes();
        }
        for (i = 0; i < COPIES; i++) closes(i);
        signal_comes();
        if (hosts == HOSTS) hosts = layer_count = 0, sets_host();
    }
}

static void the_program_may_pass_a_signal_on(void **unused)
{
    int i;

    (void)unused;
    opens(1);
    opens(0);
    sets_host();
    passes_on = true;
    raise(SIGUSR1);
    assert_int_equal(calls[hosts - 1], 1);
    for (i = 0; i < 2; i++) assert_true(copies[i]->told());
}

static pthread_barrier_t start_line;

static void *opens_at_once(void *which)
{
    pthread_barrier_wait(&start_line);
    return copies[*(int *)which]->open(server(), schema, SIGUSR1) ? which : NULL;
}

static void copies_that_come_at_once_share_a_signal(void **unused)
{
    static int which[] = {1, 2};
    pthread_t threads[2];
    int round, i;
    void *done;

    (void)unused;
    pthread_barrier_init(&start_line, NULL, 2);
    for (round = 0; round < 10; round++) {
        for (i = 0; i < 2; i++) load(which[i]), expect_open(which[i]);
        for (i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, opens_at_once, &which[i]), 0);
        for (i = 0; i < 2; i++) {
            pthread_join(threads[i], &done);
            assert_non_null(done);
        }
        signal_comes();
        for (i = 0; i < 2; i++) closes(which[(i + round) % 2]);
        signal_comes();
    }
    pthread_barrier_destroy(&start_line);
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int begin(void **state)
{
    hosts = layer_count = 0;
    passes_on = false;
    sets_host();
    return fresh(state);
}

static int quit(void **state)
{
    int i;

    for (i = 0; i < COPIES; i++) close_copy(i);
    signal(SIGUSR1, SIG_DFL);
    return all_stop(state);
}

static int up(void **state)
{
    const char *folder = getenv("JOBQ_PLUGINS");
    int i;

    for (i = 1; i < COPIES; i++)
        snprintf(files[i], sizeof files[i], "%s/%c.so", folder != NULL ? folder : ".build/plugins",
                 "_ab"[i]);
    return pg_up(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, quit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_signal_stops_the_workers_of_all_copies),
        TEST(copies_go_in_any_order),
        TEST(a_copy_takes_back_only_what_is_its_own),
        TEST(the_program_may_pass_a_signal_on),
        TEST(copies_that_come_at_once_share_a_signal),
    };

    return cmocka_run_group_tests(tests, up, pg_down);
}
