package s3test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"scribe/internal/testkit/child"
	"scribe/internal/testkit/loopback"
)

const (
	region       = "us-east-1"
	startTimeout = time.Minute
	pollInterval = 20 * time.Millisecond
	// startAttempts bounds how often Start picks another port because another process took the one it had found free.
	startAttempts = 5
	// logLines bounds the log of a server in the log of a test that failed.
	logLines = 500
)

// Server is a running S3 server with one empty bucket. Only the goroutine of the test calls its methods.
type Server struct {
	Endpoint  string // host:port, plain HTTP
	Region    string
	AccessKey string
	SecretKey string
	Bucket    string

	tb      testing.TB
	binary  string
	dir     string
	sidecar bool
	log     child.Log
	// proc is nil while the server is stopped.
	proc *serverProcess
}

// Start runs a server until the end of the test. If the test fails, the server's output goes to the test's log.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{
		Region:    region,
		AccessKey: "scribe-test",
		// No other server has this secret: if a signed request succeeds, this server answered it, not another one that won the
		// race for the port.
		SecretKey: rand.Text(),
		Bucket:    "scribe",
		tb:        tb,
		binary:    Binary(tb),
		dir:       tb.TempDir(),
	}
	tb.Cleanup(func() {
		s.Stop()
		if tb.Failed() {
			tb.Logf("s3test: the end of the log of the server at %s:\n%s", s.Endpoint, s.log.Tail(logLines))
		}
	})

	for attempt := 1; ; attempt++ {
		s.Endpoint = freeAddress(tb)
		err := s.startProcess()
		if err == nil {
			break
		}
		// If the file system has no extended attributes, the server must store the metadata of objects in separate files.
		if !s.sidecar && strings.Contains(s.log.String(), "xattr") {
			s.sidecar = true
		}
		if attempt == startAttempts || !errors.Is(err, errExited) {
			tb.Fatalf("s3test: start versitygw: %v", err)
		}
	}
	s.CreateBucket(s.Bucket)
	return s
}

// Stop ends the server as a crash would: requests in flight fail, connections break. Acknowledged objects stay. If the server is
// stopped already, Stop does nothing.
func (s *Server) Stop() {
	s.tb.Helper()
	if s.proc == nil {
		return
	}
	s.proc.killProcess()
	s.proc = nil
}

// Restart stops the server if it runs, and starts it at the same address with the same objects.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if err := s.startProcess(); err != nil {
		s.tb.Fatalf("s3test: restart versitygw at %s: %v", s.Endpoint, err)
	}
}

// CreateBucket makes another bucket.
func (s *Server) CreateBucket(name string) {
	s.tb.Helper()
	err := s.Client().MakeBucket(s.tb.Context(), name, minio.MakeBucketOptions{Region: s.Region})
	if err != nil {
		s.tb.Fatalf("s3test: create bucket %q: %v", name, err)
	}
}

// Client returns a new client with the server's credentials.
func (s *Server) Client() *minio.Client {
	s.tb.Helper()
	client, err := s.newClient()
	if err != nil {
		s.tb.Fatalf("s3test: make a client for %s: %v", s.Endpoint, err)
	}
	return client
}

func (s *Server) newClient() (*minio.Client, error) {
	return minio.New(s.Endpoint, &minio.Options{
		Creds:      credentials.NewStaticV4(s.AccessKey, s.SecretKey, ""),
		Region:     s.Region,
		MaxRetries: 1,
		// Requests are not retried, so none may use a connection that the server is about to close.
		Transport: &http.Transport{DisableKeepAlives: true},
	})
}

// startProcess starts the process and returns when it answers. After an error no process runs.
func (s *Server) startProcess() error {
	objects, sidecar := filepath.Join(s.dir, "objects"), filepath.Join(s.dir, "sidecar")
	for _, dir := range []string{objects, sidecar} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	args := []string{"--quiet", "--port", s.Endpoint, "--region", s.Region, "posix"}
	if s.sidecar {
		args = append(args, "--sidecar", sidecar)
	}
	proc, err := startProcess(s.binary, append(args, objects), s.environVars(), &s.log)
	if err != nil {
		return err
	}
	if err := s.awaitReady(proc); err != nil {
		proc.killProcess()
		return err
	}
	s.proc = proc
	return nil
}

// environVars returns the environment with the credentials: in arguments, a list of processes would show them.
func (s *Server) environVars() []string {
	return []string{"ROOT_ACCESS_KEY_ID=" + s.AccessKey, "ROOT_SECRET_ACCESS_KEY=" + s.SecretKey}
}

func (s *Server) awaitReady(proc *serverProcess) error {
	client, err := s.newClient()
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(s.tb.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		_, err := client.ListBuckets(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-proc.exited:
			return fmt.Errorf("%w: %w, its log:\n%s", errExited, proc.err, s.log.String())
		case <-ctx.Done():
			return fmt.Errorf("no answer from %s in %v: %w, its log:\n%s", s.Endpoint, startTimeout, err, s.log.String())
		case <-tick.C:
		}
	}
}

// freeAddress returns an address that no other server gets until the end of the test, even while this server is stopped.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	addr, release, err := loopback.Reserve()
	if err != nil {
		tb.Fatalf("s3test: find a free port: %v", err)
	}
	tb.Cleanup(release)
	return addr
}
