/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * conform.c -- the behaviours of conform.h, done by examples/python/worker.py over a pipe:
 * tests/model/store_python.h. What the protocol of sql/optional/protocol.sql has no words for is
 * left out, by the table below, and counted: "N behaviours run, N are left out".
 */
#define TEST_PRIVATE
#include "store_python.h"
#include "conform.h"

#include <ctype.h>

/* Why a worker in SQL does not do a behaviour; the part of its name or script that shows it. */
typedef struct lack {
    const char *reason, *part;
} lack;

static const lack lacks[] = {
    {"the protocol is one of jobs, not of messages", "send"},
    {"a worker takes only jobs of kinds that it names, so it parks none", "park j="},
    {"work_take claims all kinds of its worker", " f="},
    {"work_take has no lower bounds of lanes", " a=0 "},
    {"work_take has no upper bounds of lanes", " b=5 "},
    {"work_take chooses itself whether it takes a suspect", "suspects come one at a time"},
    {"work_take chooses itself whether it takes a suspect", "a suspect comes back as one"},
    {"work_take chooses itself whether it takes a suspect", "suspects count, those that are"},
    {"work_take chooses itself where its walk of the lines begins", "from line to line"},
    {"work_take chooses itself how much it takes of a line", "the quantum times"},
    {"worker.py goes on by itself after a take that only ended late jobs",
     "when the job that held it is late"},
    {"work_take knows of suspects: heartbeats do not tell", "heartbeat tells"},
    {"work_take knows which kinds to spare: heartbeats do not tell", " spared "},
    {"work_rescue and work_recover do the whole at once", " more;"},
    {"work_done removes the row of its claim itself", "the row of a settled claim"},
    {"work_leave gives back the jobs that its worker has", "leaves them to its rescuer"},
    {"work_fail reads from the job's row that it is cancelled, and gives the attempt back",
     "so is a snooze"},
    {"work_fail reads from the job's row that it is cancelled, and gives the attempt back",
     "so is a release"},
};

/* The first that holds of a behaviour, or NULL. */
static const lack *lack_of(const behaviour *b)
{
    size_t i;

    for (i = 0; i < COUNT(lacks); i++) {
        if (strstr(b->name, lacks[i].part) != NULL) return &lacks[i];
        if (strstr(b->script, lacks[i].part) != NULL) return &lacks[i];
    }
    return NULL;
}

/* The length of what no function of the protocol tells, if p begins with it: a word, and the
 * numbers after it. What is said of lines is the last part of an answer. */
static size_t untold(const char *p)
{
    static const char *const words[] = {" due", " suspects", " alone", " spared", " parked",
                                        " overdue", " ended"};
    size_t i, length;

    if (strncmp(p, " walk", 5) == 0) return strcspn(p, ";");
    for (i = 0; i < COUNT(words); i++) {
        length = strlen(words[i]);
        if (strncmp(p, words[i], length) != 0) continue;
        while (p[length] == ' ' && isdigit((unsigned char)p[length + 1]))
            length += 1 + strspn(p + length + 1, "0123456789.e-");
        return length;
    }
    return 0;
}

/* The script without those words. */
static char *told(const char *script)
{
    char *copy = text_copy(script), *to = copy;
    const char *p;
    bool answers = false, sees = false;

    for (p = script; *p != '\0';) {
        size_t skip = answers && !sees ? untold(p) : 0;
        if (*p == ';') answers = false;
        if (p == script || *p == ';') sees = strncmp(p + strspn(p, "; "), "see ", 4) == 0;
        if (strncmp(p, "->", 2) == 0) answers = true;
        if (skip > 0) p += skip;
        else *to++ = *p++;
    }
    *to = '\0';
    return copy;
}

static void behaves(void **state)
{
    behaviour b = *(const behaviour *)*state;
    char *script = told(b.script);

    b.script = script;
    conform_run(&store_python, &b);
    free(script);
}

/* Tells how many behaviours run, and how many are left out for which reason. A line of the table
 * that leaves nothing out is an error. */
static bool tell(size_t count)
{
    size_t i, k, of;
    bool good = true;

    printf("%zu behaviours run, %zu are left out:\n", count, COUNT(behaviours) - count);
    for (i = 0; i < COUNT(lacks); i++) {
        for (k = of = 0; k < COUNT(behaviours); k++) of += lack_of(&behaviours[k]) == &lacks[i];
        printf("  %2zu  %s (%s)\n", of, lacks[i].reason, lacks[i].part);
        if (of == 0) good = false;
    }
    return good;
}

int main(void)
{
    static struct CMUnitTest tests[COUNT(behaviours)];
    size_t i, count = 0;

    for (i = 0; i < COUNT(behaviours); i++) {
        if (lack_of(&behaviours[i]) != NULL) continue;
        tests[count].name = behaviours[i].name;
        tests[count].test_func = behaves;
        tests[count++].initial_state = (void *)(uintptr_t)&behaviours[i];
    }
    if (!tell(count)) {
        fprintf(stderr, "a line of the table leaves nothing out\n");
        return 1;
    }
    return cmocka_run_group_tests_name("worker.py", tests, store_python_up, store_python_down);
}
