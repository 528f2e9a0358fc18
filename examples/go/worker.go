// worker.go -- the smallest worker of jobq in Go, on github.com/jackc/pgx/v5: sql/protocol.sql.
//
//	go run . "dbname=app"     until SIGTERM or SIGINT
//
// It runs one job at a time and polls; examples/python/worker.py has what it lacks. If a connection
// is lost it exits, and others rescue its job; let systemd restart it.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var handlers = map[string]func(payload map[string]any) (any, error){
	"welcome": func(p map[string]any) (any, error) { return map[string]any{"greeted": p["to"]}, nil },
	"bounce":  func(p map[string]any) (any, error) { return nil, errors.New("no such user") },
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

var began = time.Now() // with a monotonic clock

func beat(db *pgxpool.Pool, worker int64) {
	var watched = map[string]any{}
	for range time.Tick(5 * time.Second) {
		var alive bool
		must(db.QueryRow(context.Background(), "SELECT watched, alive FROM jobq.work_heartbeat($1, $2, $3)",
			worker, time.Since(began).Microseconds(), watched).Scan(&watched, &alive))
		if !alive {
			log.Fatal("declared dead")
		}
		_, err := db.Exec(context.Background(), "SELECT jobq.work_rescue($1, $2, $3)", worker,
			time.Since(began).Microseconds(), watched)
		must(err)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, err := pgxpool.New(context.Background(), os.Args[1])
	must(err)
	var worker, id int64
	must(db.QueryRow(ctx, `SELECT worker FROM jobq.work_join('{"mail": ["welcome", "bounce"]}')`).Scan(&worker))
	go beat(db, worker)
	for number := int64(1); ctx.Err() == nil; number++ {
		var kind string
		var payload map[string]any
		err = db.QueryRow(context.Background(), "SELECT id, kind, payload FROM jobq.work_take($1, $2)",
			worker, number).Scan(&id, &kind, &payload)
		if err == pgx.ErrNoRows {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		must(err)
		result, failed := handlers[kind](payload)
		if failed == nil {
			_, err = db.Exec(context.Background(), "SELECT jobq.work_done($1, $2, $3, $4)", worker, number, id, result)
		} else {
			_, err = db.Exec(context.Background(), "SELECT jobq.work_fail($1, $2, $3, $4)", worker, number, id, failed.Error())
		}
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "JQ001" { // another worker has it
			log.Print(err)
			continue
		}
		must(err)
	}
	_, err = db.Exec(context.Background(), "SELECT jobq.work_leave($1)", worker)
	must(err)
}
