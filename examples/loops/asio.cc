/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * asio.cc -- a worker in the loop of Boost.Asio, and coroutines of C++20 that await jobs:
 *
 *     const std::int64_t id = co_await enqueue(worker, 7);
 *     const std::string result = co_await result_of(worker, id);
 *
 * Build   c++ -std=c++20 examples/loops/asio.cc -I. -lpq -o asio
 * Run     JOBQ_SERVER="host=... dbname=..." ./asio
 * Prints
 *         enqueued job 1
 *         attempt 1
 *         attempt 2
 *         job 1: 49
 *
 * Handlers are no coroutines: a job is at work until its handler returns. One that has to wait
 * belongs in a worker with threads, or snoozes. The schema jobq_example_loops is made anew.
 */
#include "app.h"
#include <chrono>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility> /* which Boost 1.74 forgets */

#include <boost/asio.hpp>

namespace asio = boost::asio;

/* The stepping. Sockets come and go in a step: before it all are forgotten, and afterwards those
 * are watched that there are then. */
static asio::awaitable<void> steps(jobq_pg_worker *worker)
{
    const auto executor = co_await asio::this_coro::executor;
    asio::steady_timer timer(executor);

    while (jobq_pg_worker_step(worker, APP_BUDGET_US)) {
        std::deque<asio::posix::stream_descriptor> sockets;
        const auto ready = [&timer](boost::system::error_code e) { if (!e) timer.cancel(); };
        struct pollfd fds[JOBQ_PG_FDS];
        boost::system::error_code ignored;
        std::int64_t wait_us;
        const int count = jobq_pg_worker_fds(worker, fds, &wait_us);

        timer.expires_after(std::chrono::microseconds(wait_us));
        for (int i = 0; i < count; i++) {
            auto &socket = sockets.emplace_back(executor, fds[i].fd);
            socket.async_wait(asio::posix::stream_descriptor::wait_read, ready);
            if ((fds[i].events & POLLOUT) != 0)
                socket.async_wait(asio::posix::stream_descriptor::wait_write, ready);
        }
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        for (auto &socket : sockets) socket.release(); /* libpq closes it */
    }
}

/* Asks, and completes with what pick makes of the answer; its code, if that is an error, is thrown. */
template <class value, class asks, class picks>
static asio::awaitable<value> answer(asks ask, picks pick)
{
    const auto begin = [ask, pick](auto handler) {
        struct waiter {
            decltype(handler) complete;
            decltype(pick) value_of;
        };
        ask([](void *user, const jobq_pg_reply *reply) { /* in a step */
            std::unique_ptr<waiter> w(static_cast<waiter *>(user));
            std::exception_ptr failed;
            if (reply->code != JOBQ_OK)
                failed = std::make_exception_ptr(std::runtime_error(reply->error->message));
            value got = failed ? value() : w->value_of(*reply);
            const auto executor = asio::get_associated_executor(w->complete);
            asio::post(executor, [w = std::move(w), failed, got = std::move(got)]() mutable {
                w->complete(failed, std::move(got));
            });
        }, new waiter{std::move(handler), pick});
    };
    return asio::async_initiate<const asio::use_awaitable_t<>, void(std::exception_ptr, value)>(
        begin, asio::use_awaitable);
}

static asio::awaitable<std::int64_t> enqueue(jobq_pg_worker *worker, int n)
{
    return answer<std::int64_t>(
        [=](jobq_pg_done done, void *user) { app_enqueue(worker, n, done, user); },
        [](const jobq_pg_reply &reply) { return reply.id; });
}

static asio::awaitable<std::string> result_of(jobq_pg_worker *worker, std::int64_t id)
{
    return answer<std::string>(
        [=](jobq_pg_done done, void *user) { app_await(worker, id, done, user); },
        [](const jobq_pg_reply &r) { return std::string(r.result.ptr, r.result.len); });
}

static asio::awaitable<void> program(jobq_pg_worker *worker)
{
    const std::int64_t id = co_await enqueue(worker, 7);
    std::printf("enqueued job %lld\n", static_cast<long long>(id));
    const std::string result = co_await result_of(worker, id);
    std::printf("job %lld: %s\n", static_cast<long long>(id), result.c_str());
    jobq_pg_worker_stop(worker);
}

int main()
{
    asio::io_context loop(1);
    jobq_pg *pg;
    jobq_pg_worker *worker = app_open(&pg);

    const auto over = [](std::exception_ptr failed) { if (failed) std::rethrow_exception(failed); };
    asio::co_spawn(loop, steps(worker), over);
    asio::co_spawn(loop, program(worker), over);
    loop.run();
    app_close(pg, worker);
    return 0;
}
