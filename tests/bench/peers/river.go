// river ROW -- measures River with no-op jobs on the database that PGHOST, PGUSER ... name.
// ROW is drain, enqueue or latency. Prints lines of a key and a figure for peers.sh.
//
// River keeps completed jobs. Workers, cool-down and poll are those of its own benchmark command
// (2,000 workers), with the shortest cool-down that it allows.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type noop struct { // 100 bytes of JSON
	N    int    `json:"n"`
	Text string `json:"text"`
}

func (noop) Kind() string { return "noop" }
func job(n int) noop      { return noop{100000000 + n, strings.Repeat("x", 75)} }

type worker struct {
	river.WorkerDefaults[noop]
	runs    atomic.Int64
	started chan time.Time
}

func (w *worker) Work(context.Context, *river.Job[noop]) error {
	w.runs.Add(1)
	select {
	case w.started <- time.Now():
	default:
	}
	return nil
}

var ctx = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
	return value
}

func setting(name string) int { return must(strconv.Atoi(os.Getenv(name))) }

// Calls step from goroutines, each with its own number, until all calls are made or the time is
// over. Returns calls a second.
func gang(routines int, calls int64, limit time.Duration, step func(n int)) float64 {
	var taken, made atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range routines {
		all.Go(func() {
			for n := taken.Add(1); n <= calls && time.Since(began) < limit; n = taken.Add(1) {
				step(int(n))
				made.Add(1)
			}
		})
	}
	all.Wait()
	return float64(made.Load()) / time.Since(began).Seconds()
}

func main() {
	pool := must(pgxpool.New(ctx, "pool_max_conns=20"))
	driver := riverpgxv5.New(pool)
	must(must(rivermigrate.New(driver, nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	w := &worker{started: make(chan time.Time, 1)}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client := must(river.NewClient(driver, &river.Config{
		FetchCooldown: time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger:  slog.New(slog.DiscardHandler),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers: workers,
	}))
	jobs, minute := setting("PEERS_JOBS"), time.Minute
	one := func(n int) { must(client.Insert(ctx, job(n), nil)) }
	many := func(n int) {
		params := make([]river.InsertManyParams, 1000)
		for i := range params {
			params[i].Args = job(n*1000 + i)
		}
		must(client.InsertManyFast(ctx, params))
	}
	count := func(where string) (rows int) {
		must(0, pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE "+where).Scan(&rows))
		return rows
	}
	switch os.Args[1] {
	case "drain":
		gang(2, int64(jobs/1000), minute, many)
		must(pool.Exec(ctx, "VACUUM ANALYZE"))
		must(pool.Exec(ctx, "CHECKPOINT"))
		began := time.Now()
		must(0, client.Start(ctx))
		for w.runs.Load() < int64(jobs) || count("state IN ('available', 'running')") > 0 {
			time.Sleep(2 * time.Millisecond)
		}
		fmt.Println("drain-kept", float64(jobs)/time.Since(began).Seconds())
		must(0, client.Stop(ctx))
		if n := count("state = 'completed'"); n != jobs || w.runs.Load() != int64(jobs) {
			must(0, fmt.Errorf("%d jobs run %d times, %d completed", jobs, w.runs.Load(), n))
		}
	case "enqueue":
		limit := time.Duration(setting("PEERS_MS")) * time.Millisecond
		gang(16, 200, minute, one) // opens the connections
		for _, producers := range []int{1, 16} {
			fmt.Println("one-"+strconv.Itoa(producers), gang(producers, 1<<40, limit, one))
		}
		must(pool.Exec(ctx, "CHECKPOINT"))
		fmt.Println("bulk", 1000*gang(2, int64(jobs/1000), minute, many))
	case "latency":
		must(0, client.Start(ctx))
		time.Sleep(500 * time.Millisecond)
		samples := setting("PEERS_SAMPLES")
		var ms []float64
		for n := range samples + 10 { // the first ten warm up
			time.Sleep(time.Duration(20+rand.Intn(20)) * time.Millisecond)
			began := time.Now()
			one(n)
			ms = append(ms, (<-w.started).Sub(began).Seconds()*1000)
		}
		ms = ms[10:]
		sort.Float64s(ms)
		fmt.Println("latency", ms[samples/2])
		must(0, client.Stop(ctx))
	}
}
