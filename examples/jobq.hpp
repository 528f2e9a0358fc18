/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobq.hpp -- jobq for C++17: a handle that closes itself, a transaction guard, handlers from
 * lambdas, errors as exceptions, answers as values. An example: copy it beside the headers, and
 * change it as you like.
 *
 *     jobq::handle pg("dbname=app");
 *     jobq::transaction tx(pg);
 *     tx.run("INSERT INTO customer VALUES ('ann@example.org')");
 *     tx.enqueue(jobq::job("mail", "welcome", R"({"to": "ann@example.org"})"));
 *     tx.commit();
 *
 *     jobq::worker worker(pg);
 *     worker.on("mail", "welcome", [&](jobq_call &call) {
 *         send_mail(jobq::text(call.payload, "to").value());
 *     });
 *     worker.run();
 *
 * Whatever is not here is a call of the C headers away: pg.get() is the jobq_pg, tx.conn() the
 * PGconn. As with them, exactly one file of the program defines JOBQ_IMPLEMENTATION and
 * JOBQ_PG_IMPLEMENTATION first; let that be a C++ file.
 */
#ifndef JOBQ_HPP_INCLUDED
#define JOBQ_HPP_INCLUDED

#include "jobq_pg.h"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace jobq {

/* ---- errors and strings ---------------------------------------------------------------------- */

/* What a call answered. what() is one sentence. */
struct error : std::runtime_error {
    explicit error(const jobq_pg_error &e) : std::runtime_error(e.message), detail(e) {}
    jobq_pg_error detail;
};

inline void must(jobq_error code, const jobq_pg_error &e)
{
    if (code != JOBQ_OK) throw error(e);
}

/* Both borrow. */
inline std::string_view view(jobq_str text) { return {text.ptr, text.len}; }
inline jobq_str str(std::string_view text) { return {text.data(), text.size()}; }

/* ---- payloads -------------------------------------------------------------------------------- */

/* Whether there is a value; throws if it is not what it should be. */
inline bool found(jobq_error code, const char *name, const char *what)
{
    if (code == JOBQ_OK || code == JOBQ_ERROR_NOT_FOUND) return code == JOBQ_OK;
    throw std::invalid_argument((name != nullptr ? name : "the payload") +
                                std::string(" is not ") + what);
}

/* A member of a JSON object or, without a name, the JSON text itself. None: there is no such
 * member, or it is null. Of another type: std::invalid_argument. */
inline std::optional<std::string> text(jobq_str json, const char *name = nullptr)
{
    std::string out((name != nullptr ? jobq_json_member(json, name) : json).len, '\0');

    if (!found(jobq_json_text(json, name, out.data(), out.size()), name, "a text")) return {};
    out.resize(out.find('\0'));
    return out;
}

inline std::optional<std::int64_t> integer(jobq_str json, const char *name = nullptr)
{
    std::int64_t out;
    if (!found(jobq_json_int(json, name, &out), name, "an integer")) return {};
    return out;
}

inline std::optional<double> number(jobq_str json, const char *name = nullptr)
{
    double out;
    if (!found(jobq_json_double(json, name, &out), name, "a number")) return {};
    return out;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* A job to enqueue; set its other fields as you need them. It borrows all three. */
inline jobq_pg_job job(const char *queue, const char *kind, std::string_view payload = {})
{
    jobq_pg_job made = {};
    made.queue = queue;
    made.kind = kind;
    made.payload = str(payload);
    return made;
}

/* How a job ended. */
struct end {
    jobq_state state;
    std::string result; /* JSON, or empty */
};

class handle {
public:
    explicit handle(const jobq_pg_desc &desc) { open(desc); }
    explicit handle(const char *conninfo, const char *schema = nullptr)
    {
        jobq_pg_desc desc = {};
        desc.conninfo = conninfo;
        desc.schema = schema;
        open(desc);
    }

    jobq_pg *get() const { return pg_.get(); }

    void migrate()
    {
        jobq_pg_error e;
        must(jobq_pg_migrate(get(), &e), e);
    }

    /* Returns the job's id. conn: in its transaction. */
    std::int64_t enqueue(const jobq_pg_job &job, PGconn *conn = nullptr)
    {
        jobq_pg_error e;
        std::int64_t id;
        must(jobq_pg_enqueue(get(), conn, &job, &id, &e), e);
        return id;
    }

    /* Waits for its end. After timeout_us: error, with JOBQ_ERROR_TIMEOUT. */
    end wait(std::int64_t id, std::int64_t timeout_us)
    {
        jobq_pg_error e;
        jobq_pg_rows rows;
        must(jobq_pg_wait(get(), nullptr, &id, 1, timeout_us, &rows, &e), e);
        const auto *row = static_cast<const jobq_pg_job_row *>(rows.rows);
        const end ended = {row->facts.state, std::string(view(row->result))};
        jobq_pg_rows_clear(&rows);
        return ended;
    }

private:
    void open(const jobq_pg_desc &desc)
    {
        jobq_pg_error e;
        jobq_pg *opened;
        must(jobq_pg_open(&opened, &desc, &e), e);
        pg_.reset(opened);
    }

    struct closes {
        void operator()(jobq_pg *pg) const { jobq_pg_close(pg); }
    };
    std::unique_ptr<jobq_pg, closes> pg_;
};

/* ---- transactions ---------------------------------------------------------------------------- */

/* On a connection of the pool. It is rolled back unless commit() has returned. */
class transaction {
public:
    explicit transaction(handle &pg) : pg_(pg), conn_(nullptr, releases{pg.get()})
    {
        jobq_pg_error e;
        PGconn *acquired;
        must(jobq_pg_acquire(pg.get(), &acquired, &e), e);
        conn_.reset(acquired);
        run("BEGIN");
    }

    PGconn *conn() const { return conn_.get(); }
    std::int64_t enqueue(const jobq_pg_job &job) { return pg_.enqueue(job, conn()); }

    /* A statement; what it returns is thrown away. The server answers COMMIT of an aborted
     * transaction with ROLLBACK. */
    void run(const char *sql)
    {
        std::unique_ptr<PGresult, decltype(&PQclear)> res(PQexec(conn(), sql), PQclear);
        const ExecStatusType status = PQresultStatus(res.get());
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
            throw std::runtime_error(PQerrorMessage(conn()));
        if (std::string_view(sql) == "COMMIT" &&
            std::string_view(PQcmdStatus(res.get())) != "COMMIT")
            throw std::runtime_error("not committed: a statement before has failed");
    }

    void commit() { run("COMMIT"); }

private:
    struct releases {
        jobq_pg *pg;
        void operator()(PGconn *conn) const
        {
            if (PQtransactionStatus(conn) != PQTRANS_IDLE) PQclear(PQexec(conn, "ROLLBACK"));
            jobq_pg_release(pg, conn);
        }
    };
    handle &pg_;
    std::unique_ptr<PGconn, releases> conn_;
};

/* ---- workers --------------------------------------------------------------------------------- */

/* A handler takes a jobq_call & and returns a jobq_outcome, or nothing, which is success. An
 * exception is a failed attempt, and its what() the error. Unless desc.loop.threads is 1, handlers
 * run on several threads at once, and share what they capture. */
class worker {
public:
    explicit worker(handle &pg) : pg_(pg.get()) {}

    template <class handler>
    worker &on(const char *queue, const char *kind, handler run, std::int32_t threads_max = 0)
    {
        if constexpr (std::is_void_v<std::invoke_result_t<handler &, jobq_call &>>) {
            return on(queue, kind, [run = std::move(run)](jobq_call &call) mutable {
                run(call);
                return JOBQ_OUTCOME_SUCCESS;
            }, threads_max);
        } else {
            runs_.emplace_back(std::move(run));
            handlers_.push_back({queue, kind, {call_run}, &runs_.back(), threads_max, nullptr, 0,
                                 0});
            return *this;
        }
    }

    /* Works until desc.loop.until, or until one of desc.stop_signals. */
    jobq_pg_stats run()
    {
        jobq_pg_stats stats;
        jobq_pg_error e;
        desc.handlers = handlers_.data();
        desc.handler_count = handlers_.size();
        desc.stats = &stats;
        must(jobq_pg_work(pg_, &desc, &e), e);
        return stats;
    }

    jobq_pg_worker_desc desc = {};

private:
    /* The library catches exceptions, too, but only if it is compiled as C++. */
    static jobq_outcome call_run(jobq_call *call)
    {
        try {
            return (*static_cast<std::function<jobq_outcome(jobq_call &)> *>(call->user))(*call);
        } catch (const std::exception &thrown) {
            jobq_call_error(call, str(thrown.what()));
            return JOBQ_OUTCOME_RETRY;
        }
    }

    jobq_pg *pg_;
    std::deque<std::function<jobq_outcome(jobq_call &)>> runs_; /* they do not move */
    std::vector<jobq_pg_handler> handlers_;
};

} /* namespace jobq */

#endif
