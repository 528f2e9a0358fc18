// worker.go -- the smallest worker of jobq in Go, on pgx 5: sql/optional/protocol.sql. go run . "dbname=app"
// runs one job at a time, and polls, until SIGTERM or SIGINT; examples/python/worker.py has what it
// lacks. If a connection is lost it exits, and others rescue its job; let systemd restart it.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var handlers = map[string]func(payload map[string]any) (any, error){
	"welcome": func(p map[string]any) (any, error) { return map[string]any{"greeted": p["to"]}, nil },
	"bounce":  func(p map[string]any) (any, error) { return nil, errors.New("no such user") },
}
var db, invalid = pgxpool.New(context.Background(), os.Args[1])

// Calls a function of the protocol. row: for its columns. false: no row, or a lost job (JQ001).
func call(row []any, function string, values ...any) bool {
	text := "SELECT * FROM jobq." + function + "($1, $2, $3, $4"[:4*len(values)-1] + ")"
	err := db.QueryRow(context.Background(), text, values...).Scan(row...)
	if err != nil && err != pgx.ErrNoRows && !strings.Contains(err.Error(), "JQ001") {
		log.Fatal(err)
	}
	return err == nil
}

func beat(worker int64) {
	watched, alive, began := map[string]any{}, true, time.Now() // with a monotonic clock
	for ; alive; time.Sleep(5 * time.Second) {
		us := time.Since(began).Microseconds()
		call([]any{&watched, &alive, nil}, "work_heartbeat", worker, us, watched)
		call([]any{nil}, "work_rescue", worker, us, watched)
	}
	log.Fatal("declared dead")
}

func main() {
	if invalid != nil {
		log.Fatal(invalid)
	}
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	worker, id, kind := int64(0), int64(0), ""
	call([]any{&worker, nil}, "work_join", `{"mail": ["welcome", "bounce"]}`)
	go beat(worker)
	for number := 1; ctx.Err() == nil; number++ {
		payload := map[string]any{}
		job := []any{&id, nil, &kind, nil, nil, nil, nil, nil, &payload, nil, nil}
		if !call(job, "work_take", worker, number) {
			time.Sleep(200 * time.Millisecond)
		} else if result, err := handlers[kind](payload); err != nil {
			call([]any{nil}, "work_fail", worker, number, id, err.Error())
		} else {
			call([]any{nil}, "work_done", worker, number, id, result)
		}
	}
	call([]any{nil}, "work_leave", worker)
}
