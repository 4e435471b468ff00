package postgres

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"scribe/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// server is a PostgreSQL with one connection.
type server struct {
	t    testing.TB
	conn *pgconn.PgConn
}

// start starts a PostgreSQL, which ends with the test. Texts are ordered by their bytes and have the letters of Unicode.
func start(t testing.TB) *server {
	t.Helper()
	initdb, postgres := find(t, "initdb"), find(t, "postgres")
	// The path of a socket is at most some 100 bytes, t.TempDir's are long; and another user must be able to enter it.
	dir, err := os.MkdirTemp("", "pg") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	user := unprivileged(t, dir)
	data := filepath.Join(dir, "data")
	setup := program.Command(t.Context(), user[0], append(user[1:], initdb, "-D", data, "-U", "scribe", "-A", "trust", "-E", "UTF8", //nolint:gosec // our own arguments
		"--locale=C", "--lc-ctype=C.UTF-8", "--no-sync")...)
	setup.Dir = dir
	if out, err := setup.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	line := append(user, postgres, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off",
		"-c", "synchronous_commit=off", "-c", "autovacuum=off", "-c", "jit=off", "-c", "max_connections=5", "-c", "timezone=UTC",
		"-c", "log_min_messages=fatal", "-c", "log_min_error_statement=fatal")
	p := program.Other(t, line[0], line[1:]...)
	s := &server{t: t}
	deadline := time.Now().Add(program.WaitLimit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s.conn, err = pgconn.Connect(t.Context(), "host="+dir+" user=scribe dbname=postgres")
		if err == nil {
			break
		}
		select {
		case <-p.Done:
			t.Fatalf("postgres ended with %v", p.Err)
		case <-tick.C:
		}
		if time.Now().After(deadline) {
			t.Fatalf("postgres does not answer: %v", err)
		}
	}
	t.Cleanup(func() { _ = s.conn.Close(context.WithoutCancel(t.Context())) })
	s.do("SET DateStyle = 'ISO, MDY'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; SET extra_float_digits = 1")
	return s
}

// find returns the path of one of PostgreSQL's programs, which Debian does not put where others are.
func find(t testing.TB, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) > 0 {
		sort.Strings(found)
		return found[len(found)-1]
	}
	path, err := exec.LookPath(name)
	if err != nil {
		lacking(t, "PostgreSQL's "+name+" is not installed: it is in Debian's package postgresql")
	}
	return path
}

// unprivileged returns what to put in front of a command line so that it does not run as root, and gives the folder to who it runs as.
func unprivileged(t testing.TB, dir string) []string {
	t.Helper()
	if os.Getuid() != 0 {
		return []string{"env", "-C", dir}
	}
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("setpriv")
	if err != nil {
		lacking(t, "setpriv is not installed: it is in Debian's package util-linux")
	}
	return []string{path, "--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL", "env", "-C", dir}
}

// lacking skips where a person runs it, and fails where everything must run.
func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("SCRIBE_CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// query returns the rows of an answer as texts, "\x00" for null.
func (s *server) query(text string) ([][]string, error) {
	results, err := s.conn.Exec(s.t.Context(), text).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, row := range results[len(results)-1].Rows {
		texts := make([]string, len(row))
		for i, v := range row {
			if texts[i] = null; v != nil {
				texts[i] = string(v)
			}
		}
		rows = append(rows, texts)
	}
	return rows, nil
}

// null stands for null among texts, none of which can have its byte.
const null = "\x00"

// do runs statements that must work.
func (s *server) do(statements ...string) {
	s.t.Helper()
	if _, err := s.query(strings.Join(statements, ";\n")); err != nil {
		s.t.Fatalf("%v in %.2000s", err, strings.Join(statements, ";\n"))
	}
}
