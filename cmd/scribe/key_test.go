package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/pointer"
	"scribe/scribed/keyring"
	"scribe/scribed/spool"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/encryption/encryptiontest"
	"scribe/storage/blob/file"
)

// runKey runs a command of scribe key with an input, and returns its output.
func runKey(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetArgs(append([]string{"key"}, args...))
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestKey: keys are made, listed, wrapped again and deleted, and what is wrong is told before anything is done.
func TestKey(t *testing.T) {
	dir := t.TempDir()
	blobs, keyFile := filepath.Join(dir, "blobs"), filepath.Join(dir, "keys")
	line, err := runKey(t, "", "new", "first")
	if err != nil || !strings.HasPrefix(line, "first ") {
		t.Fatal(line, err)
	}
	if _, err := runKey(t, "", "new", "not a name"); exitCode(err) != exitUsage {
		t.Errorf("a key of a strange name: %v", err)
	}
	if err := os.WriteFile(keyFile, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := runKey(t, "", "list", "--blob-path", blobs); exitCode(err) != exitNotFound {
		t.Errorf("keys of a store that is not there: %s %v", out, err)
	}
	block := encryptIn(t, blobs, keyFile)
	list := func() string {
		t.Helper()
		out, err := runKey(t, "", "list", "--blob-path", blobs)
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	if got := list(); !strings.Contains(got, `{"category":7,"generation":1,`) || !strings.Contains(got, `"wrapped_with":"first"`) {
		t.Errorf("keys %s", got)
	}
	if out, err := runKey(t, "", "rewrap", "--blob-path", blobs); exitCode(err) != exitUsage {
		t.Errorf("without a file: %s %v", out, err)
	}
	if out, err := runKey(t, "", "rewrap", "--blob-path", blobs, "--encryption-key-file", keyFile); err != nil || out != "0 keys were wrapped again\n" {
		t.Errorf("%s %v", out, err)
	}
	second, err := runKey(t, "", "new", "second")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, []byte(second+line), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := runKey(t, "", "rewrap", "--blob-path", blobs, "--encryption-key-file", keyFile); err != nil || !strings.Contains(out, "1 were made within the last hour") {
		t.Errorf("%s %v", out, err)
	}
	if got := list(); !strings.Contains(got, `"wrapped_with":"first"`) {
		t.Errorf("keys %s", got)
	}
	for _, args := range [][]string{{"delete", "seven"}, {"delete", "7"}} { // nobody confirms
		if out, err := runKey(t, "no\n", append(args, "--blob-path", blobs)...); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
	if got := list(); !strings.Contains(got, `"category":7`) {
		t.Errorf("keys %s", got)
	}
	if out, err := runKey(t, "", "delete", "7", "--blob-path", blobs, "--yes"); err != nil || out != "0 keys were deleted\n" {
		t.Errorf("the only generation: %s %v", out, err)
	}
	if out, err := runKey(t, "7\n", "delete", "7", "--all", "--blob-path", blobs); err != nil || !strings.HasSuffix(out, "1 keys were deleted\n") {
		t.Errorf("%s %v", out, err)
	}
	if got := list(); got != "" {
		t.Errorf("keys %s", got)
	}
	store, keys := openKeys(t, blobs, keyFile)
	defer func() { keys.Close(); _ = store.Close() }()
	if _, err := keys.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); !errors.Is(err, encryption.ErrNoKey) {
		t.Errorf("the block is read without its key: %v", err)
	}
}

func openKeys(t *testing.T, blobs, keyFile string) (*file.Store, *encryption.Keys) {
	t.Helper()
	store, err := file.New(blobs, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := encryption.NewKeys(encryption.Config{Store: store, Wrapper: encryption.KeyFile{Path: keyFile}})
	if err != nil {
		t.Fatal(err)
	}
	return store, keys
}

// encryptIn makes the key of category 7 in a store, and returns a block.
func encryptIn(t *testing.T, blobs, keyFile string) []byte {
	t.Helper()
	store, keys := openKeys(t, blobs, keyFile)
	defer func() { keys.Close(); _ = store.Close() }()
	for {
		key, err := keys.WritingKey(7, 1)
		if err == nil {
			return key.AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
		}
		if !errors.Is(err, encryption.ErrLoading) {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
}

// TestSpoolKeys: the keys of an agent's spool are listed and deleted by category, and what is no spool is told.
func TestSpoolKeys(t *testing.T) {
	dir := t.TempDir()
	if out, err := runKey(t, "", "list", "--in-spool", dir); exitCode(err) != exitNotFound {
		t.Errorf("a folder without keys: %s %v", out, err)
	}
	if out, err := runKey(t, "", "delete", "web", "--yes", "--in-spool", filepath.Join(dir, "nothing")); exitCode(err) != exitNotFound {
		t.Errorf("a folder that is not there: %s %v", out, err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("the folder has got %v, %v", names, err)
	}
	keys, err := keyring.Open(keyring.Config{Dir: filepath.Join(dir, "keys"), Wrapper: encryptiontest.KeyFile(t, "host1")})
	if err != nil {
		t.Fatal(err)
	}
	keys.BeginRun(7)
	for _, category := range []string{"web", "payments"} {
		if _, err := keys.WritingKey(category); err != nil {
			t.Fatal(err)
		}
	}
	list := func() string {
		t.Helper()
		out, err := runKey(t, "", "list", "--in-spool", dir)
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	if got := list(); strings.Count(got, `"from":7,"wrapped_with":"host1"`) != 2 {
		t.Errorf("keys %s", got)
	}
	if out, err := runKey(t, "no\n", "delete", "web", "--in-spool", dir); err == nil {
		t.Errorf("nobody confirmed: %s", out)
	}
	lock, err := spool.LockFolder(vfs.Default, dir)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := runKey(t, "", "delete", "web", "--yes", "--in-spool", dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("while the agent runs: %s %v", out, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := runKey(t, "web\n", "delete", "web", "--in-spool", dir); err != nil || !strings.HasSuffix(out, "1 keys were deleted\n") {
		t.Errorf("%s %v", out, err)
	}
	if got := list(); strings.Count(got, `"deleted":true`) != 1 || strings.Count(got, `"wrapped_with":"host1"`) != 1 {
		t.Errorf("keys %s", got)
	}
}
