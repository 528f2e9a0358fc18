/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * qt.cc -- a worker in Qt's event loop: QSocketNotifier and QTimer, without moc. On the thread of a
 * window, whose widgets handlers and answers may then use.
 *
 * Build   c++ -std=c++17 examples/loops/qt.cc -I. -lpq $(pkg-config --cflags --libs Qt6Core) -o qt
 * Run     JOBQ_SERVER="host=... dbname=..." ./qt
 * Prints
 *         enqueued job 1
 *         attempt 1
 *         attempt 2
 *         job 1: 49
 *
 * Drops and creates the schema jobq_example_loops, and drops it at the end.
 */
#include "app.h"

#include <QCoreApplication>
#include <QSocketNotifier>
#include <QTimer>

#include <functional>
#include <memory>
#include <vector>

class host {
public:
    host(jobq_pg_worker *worker, std::function<void()> ended)
        : worker_(worker), ended_(std::move(ended))
    {
        timer_.setSingleShot(true);
        timer_.setTimerType(Qt::PreciseTimer);
        timer_.callOnTimeout([this] { step(); });
        timer_.start(0); /* the first step */
    }

private:
    /* Sockets come and go in a step. Before it all are forgotten, and afterwards those are watched
     * that there are then. */
    void step()
    {
        struct pollfd fds[JOBQ_PG_FDS];
        std::int64_t wait_us;

        notifiers_.clear();
        if (!jobq_pg_worker_step(worker_, APP_BUDGET_US)) return ended_();
        const int count = jobq_pg_worker_fds(worker_, fds, &wait_us);
        for (int i = 0; i < count; i++) {
            watch(fds[i].fd, QSocketNotifier::Read);
            if ((fds[i].events & POLLOUT) != 0) watch(fds[i].fd, QSocketNotifier::Write);
        }
        timer_.start(static_cast<int>((wait_us + 999) / 1000));
    }

    /* The step is the timer's, because a notifier must not be destroyed while it notifies. */
    void watch(qintptr fd, QSocketNotifier::Type type)
    {
        notifiers_.push_back(std::make_unique<QSocketNotifier>(fd, type));
        QObject::connect(notifiers_.back().get(), &QSocketNotifier::activated, &timer_,
                         [this] { timer_.start(0); });
    }

    jobq_pg_worker *worker_;
    std::function<void()> ended_;
    QTimer timer_;
    std::vector<std::unique_ptr<QSocketNotifier>> notifiers_;
};

int main(int argc, char **argv)
{
    QCoreApplication application(argc, argv);
    jobq_pg *pg;
    jobq_pg_worker *worker = app_open(&pg);

    {
        const host steps(worker, [] { QCoreApplication::quit(); });
        app_enqueue(worker, 7, app_enqueued, worker);
        QCoreApplication::exec();
    }
    app_close(pg, worker);
    return 0;
}
