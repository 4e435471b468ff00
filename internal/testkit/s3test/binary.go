package s3test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

const (
	serverModule  = "github.com/versity/versitygw/cmd/versitygw"
	serverVersion = "v1.8.0"
	executable    = "versitygw"
)

// Binary returns the path of the versitygw executable, and builds it if this machine does not have it yet.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := findBinary(tb.Context())
	if err != nil {
		tb.Fatalf("s3test: %v", err)
	}
	return path
}

func findBinary(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the folder that keeps versitygw: %w", err)
	}
	dir := filepath.Join(cache, "scribe-test", "versitygw-"+serverVersion)
	path := filepath.Join(dir, executable)
	if isFile(path) {
		return path, nil
	}

	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder that keeps versitygw: %w", err)
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return "", fmt.Errorf("wait for another process that builds versitygw, lock %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Unlock() }()
	// Another process may have built it while this one waited.
	if isFile(path) {
		return path, nil
	}
	return path, installBinary(ctx, dir)
}

// installBinary builds the server in a folder inside dir and moves the result to dir, so that a build that is interrupted never
// leaves half an executable under the final name. The caller holds the lock of dir.
func installBinary(ctx context.Context, dir string) error {
	build, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return fmt.Errorf("make a folder to build versitygw in: %w", err)
	}
	defer func() { _ = os.RemoveAll(build) }()

	cmd := exec.CommandContext(ctx, "go", "install", serverModule+"@"+serverVersion)
	cmd.Dir = build
	// The flags of the surrounding go test (a module file, a vendor folder, a workspace) are not meant for this build.
	cmd.Env = append(os.Environ(), "GOBIN="+build, "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s@%s: %w\n%s", serverModule, serverVersion, err, out)
	}
	if err := os.Rename(filepath.Join(build, executable), filepath.Join(dir, executable)); err != nil {
		return fmt.Errorf("keep versitygw: %w", err)
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
