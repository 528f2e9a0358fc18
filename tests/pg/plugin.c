/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* plugin.c -- a plugin with a copy of the library of its own, for test_pg_copies. */
#define JOBQ_STATIC
#include "copy.h"

const copy_verbs *plugin_verbs(void);

const copy_verbs *plugin_verbs(void)
{
    return &copy_here;
}
