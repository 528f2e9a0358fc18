/* The two implementations may be in two files: jobq_pg.h uses only what is public in jobq.h. */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

size_t loop_size(void);

size_t loop_size(void) { return jobq_loop_size(); }
