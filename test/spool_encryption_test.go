package test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestSpoolEncryption: what an agent with a key file keeps on disk of messages is nowhere in its folder as it was written, be it in the spool or in dead
// letters. After a kill all of it is forwarded, and so is what an agent without a key file had left; without the file the agent does not start.
func TestSpoolEncryption(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spool, keys := filepath.Join(dir, "spool"), filepath.Join(dir, "keys")
	if err := os.WriteFile(keys, ok(t, nil, "key", "new", "host1"), 0o600); err != nil {
		t.Fatal(err)
	}
	const away = "http://127.0.0.1:1"
	args := func(upstream string, more ...string) []string {
		return append([]string{"agent", "--upstream", upstream, "--spool", spool, "--listen", "127.0.0.1:0"}, more...)
	}
	encrypted := []string{"--encryption-key-file", keys}
	// What no compressor makes smaller is in a frame as it was written.
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 4000)
	_, _ = random.Read(noise) // never fails
	noise = bytes.ReplaceAll(noise, []byte("\n"), []byte("_"))
	lines := func(mark string) []byte { return slices.Concat([]byte(mark), noise, []byte(mark), []byte("\n")) }
	write := func(agent *program.Process, category, mark string) {
		t.Helper()
		ok(t, bytes.NewReader(lines(mark)), "produce", category, "--server", agent.URL, "--ack", "spooled")
	}

	agent := serve(t, nil, args(away)...)
	write(agent, "payments", "open-mark")
	agent.Stop()
	if !holds(t, spool, "open-mark") {
		t.Fatal("without a key file the message can't be seen in the folder: the test proves nothing")
	}
	agent = serve(t, nil, args(away, encrypted...)...)
	write(agent, "payments", "secret-mark")
	write(agent, "nowhere", "secret-mark")
	agent.Kill()
	if holds(t, spool, "secret-mark") {
		t.Error("an encrypted message is in the spool as it was written")
	}
	inspect := []string{"inspect", "spool", spool, "--verify"}
	wantCode(t, program.Run(t, nil, inspect...), 0, `"wrapped_with":"host1"`, "only the checksums were checked: 2", "--encryption-key-file")
	if r := program.Run(t, nil, append(inspect, encrypted...)...); r.Code != 0 || len(r.Stderr) > 0 || !bytes.Contains(r.Stdout, []byte(`"encrypted":true`)) {
		t.Errorf("inspect with the key: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	wantCode(t, program.Run(t, nil, args(away)...), 1, "wrapped with host1", "--encryption-key-file", "nothing was changed")

	up := serve(t, nil, "up", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--auto-create=false")
	c := &cell{write: up.URL, read: up.URL}
	ok(t, nil, "category", "create", "payments", "--server", c.write)
	agent = serve(t, nil, args(up.URL, encrypted...)...)
	want := append(lines("open-mark"), lines("secret-mark")...)
	eventually(t, waitLimit, "everything is forwarded", func() bool { return len(tail(t, c, "payments")) >= len(want) })
	sameBytes(t, "forwarded", tail(t, c, "payments"), want)
	dead := []string{"inspect", "deadletters", filepath.Join(spool, "deadletters")}
	eventually(t, waitLimit, "the dead letter is written", func() bool { return strings.Contains(string(ok(t, nil, dead...)), `"category":"nowhere"`) })
	if holds(t, spool, "secret-mark") {
		t.Error("a message is in the folder of the spool as it was written: in a dead letter, or elsewhere")
	}
	wantCode(t, program.Run(t, nil, dead...), 0, `"reason":"unknown_category"`, `"encrypted":`, "--encryption-key-file")
	frames := filepath.Join(dir, "frames")
	letter := string(ok(t, nil, append(dead, append([]string{"--frames", frames}, encrypted...)...)...))
	if strings.Contains(letter, `"encrypted":`) || !strings.Contains(letter, `"message":`) || !strings.Contains(letter, `"messages":1`) || !holds(t, frames, "secret-mark") {
		t.Errorf("the dead letter with the key: %s", letter)
	}
	ok(t, nil, "inspect", "frame", frames)

	// When a category's keys are deleted, nobody can read what is left of it.
	deletion := []string{"key", "delete", "nowhere", "--in-spool", spool, "--yes"}
	wantCode(t, program.Run(t, nil, deletion...), 1, "in use")
	agent.Stop()
	if got := string(ok(t, nil, "key", "list", "--in-spool", spool)); strings.Count(got, `"category":"nowhere"`) == 0 {
		t.Errorf("keys %s", got)
	}
	wantCode(t, program.Run(t, nil, deletion...), 0, "keys were deleted")
	wantCode(t, program.Run(t, nil, append(dead, encrypted...)...), 0, "the key was deleted")
	// Nothing waits any more, so the agent starts without the key file.
	agent = serve(t, nil, args(up.URL)...)
	write(agent, "payments", "later-mark")
	eventually(t, waitLimit, "the last one is forwarded", func() bool { return bytes.Contains(tail(t, c, "payments"), []byte("later-mark")) })
	agent.Stop()
	up.Stop()
}
