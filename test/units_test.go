package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"scribe/test/program"
)

// unit is a service of deploy/systemd: the values of each setting, in order.
type unit map[string][]string

// readUnit reads a unit file, whose lines are not continued.
func readUnit(t *testing.T, path string) unit {
	t.Helper()
	u := unit{}
	for line := range strings.Lines(readText(t, path)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			u[key] = append(u[key], value)
		}
	}
	return u
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestUnits starts the commands of the systemd units as processes, with the configurations that packages bring and this test's folders, writes
// through the agent's socket, and stops them. It fails when a unit or a configuration names a flag or a setting that the program lacks, and
// when systemd would kill a process that is still in good order.
func TestUnits(t *testing.T) {
	dir, cell, agent := t.TempDir(), program.Reserve(t), program.Reserve(t)
	socketDir, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket is at most some 100 bytes, t.TempDir's are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(socketDir) })
	local := strings.NewReplacer("/var/lib", dir, "127.0.0.1:7420", cell, "127.0.0.1:7410", agent, "/run/scribe-agent", socketDir)
	socket := ""
	for _, name := range []string{"scribe", "scribe-agent"} {
		u := readUnit(t, "../deploy/systemd/"+name+".service")
		args := strings.Fields(u["ExecStart"][0])
		at := slices.Index(args, "--config") + 1
		if args[0] != "/usr/bin/scribe" || at == 0 || filepath.Dir(args[at]) != "/etc/scribe" || u["ConfigurationDirectory"][0] != "scribe" {
			t.Fatalf("%s runs %q", name, args)
		}
		config := local.Replace(readText(t, "../deploy/systemd/"+filepath.Base(args[at])))
		// What it writes lies in the folder that systemd makes for it.
		state := filepath.Join(dir, u["StateDirectory"][0])
		for _, m := range regexp.MustCompile(`(?m)^\s*(?:data|dir): (\S+)`).FindAllStringSubmatch(config, -1) {
			if m[1] != state && !strings.HasPrefix(m[1], state+"/") {
				t.Errorf("%s writes to %s", name, m[1])
			}
		}
		if m := regexp.MustCompile(`(?m)^socket: (\S+)`).FindStringSubmatch(config); m != nil {
			socket = m[1]
		}
		args[at] = filepath.Join(dir, filepath.Base(args[at]))
		if err := os.WriteFile(args[at], []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		p := program.Serve(t, nil, args[1:]...)
		t.Cleanup(p.Stop)
		stop, err := strconv.Atoi(u["TimeoutStopSec"][0])
		if shutdown := 30 * time.Second; err != nil || time.Duration(stop)*time.Second < shutdown+10*time.Second {
			t.Errorf("%s: TimeoutStopSec=%q leaves no time after a shutdown of %v", name, u["TimeoutStopSec"], shutdown)
		}
		if !slices.Contains(u["RestartPreventExitStatus"], "2") || u["Restart"][0] != "on-failure" {
			t.Errorf("%s is restarted for ever with a configuration that can't be right", name)
		}
		if !slices.Contains(u["Environment"], "GOTRACEBACK=crash") {
			t.Errorf("%s is not restarted after a defect: a Go program ends with 2 then, too", name)
		}
	}
	program.OK(t, strings.NewReader("a line\n"), "produce", "web", "--server", "unix:"+socket, "--ack", "committed")
	if got := program.OK(t, nil, "tail", "web", "--server", "http://"+cell, "--from", "earliest", "--until-end", "-o", "raw"); string(got) != "a line\n" {
		t.Errorf("read %q", got)
	}
}

// TestUnitsOfSystemd: systemd understands the units, and finds little that a process could do to its machine.
func TestUnitsOfSystemd(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("SCRIBE_CI") != "" {
			t.Fatal("systemd-analyze is not installed: it is in Debian's package systemd")
		}
		t.Skip("systemd-analyze is not installed: it is in Debian's package systemd")
	}
	dir := t.TempDir()
	for _, name := range []string{"scribe.service", "scribe-agent.service"} {
		file := filepath.Join(dir, name)
		text := strings.ReplaceAll(readText(t, "../deploy/systemd/"+name), "/usr/bin/scribe", program.Binary())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// It warns of what it ignores, such as a setting with a mistake in its name, and succeeds.
		if out, err := program.Command(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file).CombinedOutput(); err != nil || strings.Contains(string(out), name) {
			t.Errorf("systemd-analyze verify %s: %v\n%s", name, err, out)
		}
		// The exposure, of 100: what is left is the network, and reading the host's files.
		if out, err := program.Command(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=20", file).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze security %s: %v\n%s", name, err, out)
		}
	}
}

// TestPackagedFiles: what packages consist of is there, and a folder that a setting names is one that a package or systemd makes.
func TestPackagedFiles(t *testing.T) {
	var file struct {
		Contents []struct {
			Src string `yaml:"src"`
			Dst string `yaml:"dst"`
		} `yaml:"contents"`
		Scripts map[string]string `yaml:"scripts"`
	}
	if err := yaml.Unmarshal([]byte(readText(t, "../deploy/nfpm.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	installed := map[string]bool{}
	for _, c := range file.Contents {
		installed[c.Dst] = true
		if c.Src == "${PROGRAM}" {
			continue
		}
		if _, err := os.Stat(filepath.Join("..", c.Src)); err != nil {
			t.Error(err)
		}
	}
	for _, script := range file.Scripts {
		if out, err := program.Command(t.Context(), "sh", "-n", filepath.Join("..", script)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	for _, name := range []string{"scribe", "scribe-agent"} {
		u := readUnit(t, "../deploy/systemd/"+name+".service")
		config := strings.Fields(u["ExecStart"][0])
		doc, _ := strings.CutPrefix(u["Documentation"][0], "file://")
		for _, path := range []string{strings.Fields(u["ExecStart"][0])[0], config[len(config)-1], doc, "/usr/lib/systemd/system/" + name + ".service"} {
			if !installed[path] {
				t.Errorf("no package has %s, which %s.service names", path, name)
			}
		}
		if users := readText(t, "../deploy/systemd/sysusers.conf"); !regexp.MustCompile(`(?m)^u ` + u["User"][0] + ` `).MatchString(users) {
			t.Errorf("no package makes the user %s", u["User"][0])
		}
	}
}

// TestHealthChecks: the image has no program but this one, so health checks are a command of it, as compose files and the image name it.
func TestHealthChecks(t *testing.T) {
	image := readText(t, "../Dockerfile")
	entry := regexp.MustCompile(`(?m)^ENTRYPOINT \["([^"]+)"\]$`).FindStringSubmatch(image)
	if entry == nil || !strings.Contains(image, "\nFROM scratch\n") || !strings.Contains(image, "\nUSER 10001:10001\n") {
		t.Fatal("the image is not the program alone, or is root's")
	}
	checks := regexp.MustCompile(`(?m)^(?:HEALTHCHECK .*CMD|    test:) \[(?:"CMD", )?"([^"]+)", "([^"]+)"\]$`)
	count := 0
	for _, file := range []string{"../Dockerfile", "../docker-compose.yml", "../docker-compose.nodes.yml"} {
		for _, m := range checks.FindAllStringSubmatch(readText(t, file), -1) {
			count++
			if m[1] != entry[1] {
				t.Errorf("%s asks %s", file, m[1])
			}
			if r := program.Run(t, nil, m[2], "--server", program.Reserve(t)); r.Code != program.ExitUnavailable {
				t.Errorf("%s: scribe %s ends with %d where nobody answers: %s", file, m[2], r.Code, r.Stderr)
			}
		}
	}
	if count != 3 {
		t.Errorf("%d health checks, want one in each file", count)
	}
	p := program.Serve(t, nil, "up", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	if out := program.OK(t, nil, "ready", "--server", p.URL); !strings.HasPrefix(string(out), "ok\n") {
		t.Errorf("a process that is ready says %q", out)
	}
}
