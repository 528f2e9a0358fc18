/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* throws.h -- what tests/pg/throws.cc has for tests/pg/test_pg_throws.c. */
#ifndef THROWS_INCLUDED
#define THROWS_INCLUDED (1)

#include "jobq.h"

#ifdef __cplusplus
extern "C" {
#endif

extern int throws_calls;   /* of the handlers below, where they may throw */
extern int throws_cleaned; /* destructors that ran as they were left */

jobq_outcome throws(jobq_call *call);
jobq_outcome throws_jobs(jobq_call *const *calls, int32_t count); /* the first has succeeded */
jobq_outcome throws_nothing(jobq_call *call); /* and catches what comes */
jobq_result throws_each(jobq_delivery *delivery, const jobq_message *message);
jobq_result throws_all(jobq_delivery *delivery);

#ifdef __cplusplus
}
#endif

#endif
