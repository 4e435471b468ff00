package s3_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"scribe/internal/testkit/s3test"
	"scribe/storage/blob/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config is for the server's bucket.
func config(server *s3test.Server) s3.Config {
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Secure, cfg.Region, cfg.Bucket = server.Endpoint, false, server.Region, server.Bucket
	cfg.AccessKey, cfg.SecretKey = server.AccessKey, server.SecretKey
	cfg.MaxAttempts, cfg.AttemptTimeout = 2, 30*time.Second
	return cfg
}

func open(tb testing.TB, cfg s3.Config) *s3.Store {
	tb.Helper()
	s, err := s3.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return s
}
