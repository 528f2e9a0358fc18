/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* throws.cc -- a C++ program whose handler throws; it prints what becomes of the job. */
#include <jobq_pg.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

static jobq_outcome print(jobq_call *)
{
    const std::string missing = "paper";

    throw std::runtime_error("no " + missing);
}

int main()
{
    const std::unique_ptr<char[]> block(new char[jobq_test_size()]);
    jobq_job_handler handler = {};
    jobq_test_job job = {};

    handler.queue = job.queue = "office";
    handler.kind = job.kind = "print";
    handler.run[0] = print;
    jobq_test *test = jobq_test_init(block.get(), &handler, 1);
    const int64_t id = jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_SECONDS(1));
    const jobq_test_view *seen = jobq_test_get(test, id);
    std::printf("%s after attempt %d: %s\n", jobq_enum_name(JOBQ_ENUM_STATE, seen->job.state),
                static_cast<int>(seen->job.attempt), seen->error);
    return 0;
}
