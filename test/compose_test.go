package test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"scribe/internal/testkit/s3test"
	"scribe/internal/testkit/sample"
	"scribe/test/program"
)

// composed is a service of docker-compose.yml.
type composed struct {
	Image       string            `yaml:"image"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	Profiles    []string          `yaml:"profiles"`
}

// TestCompose starts the commands of docker-compose.yml as processes, with host names and paths replaced by this machine's, and
// does with the cell what the file's comment says. It fails when the file names a flag, role or variable that the program lacks.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]composed `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	roles := map[string]int{}
	dir := t.TempDir()
	addr := map[string]string{}
	for name := range file.Services {
		addr[name] = program.Reserve(t)
	}
	flight := program.Reserve(t)
	// local rewrites what names the compose network or a container's folders.
	local := func(service, s string) string {
		for name, a := range addr {
			s = strings.ReplaceAll(s, "http://"+name+":7420", "http://"+a)
			s = strings.ReplaceAll(s, "http://"+name+":7070", "http://"+a)
		}
		s = strings.ReplaceAll(s, "0.0.0.0:7420", addr[service])
		s = strings.ReplaceAll(s, "0.0.0.0:7070", addr[service])
		s = strings.ReplaceAll(s, "0.0.0.0:7424", flight)
		if s == "/data" {
			return filepath.Join(dir, service)
		}
		return s
	}
	start := func(name string) {
		s := file.Services[name]
		args := make([]string, len(s.Command))
		for i, a := range s.Command {
			args[i] = local(name, a)
		}
		var env []string
		for k, v := range s.Environment {
			if k != "ROOT_ACCESS_KEY" && k != "ROOT_SECRET_KEY" && !strings.HasPrefix(k, "SCRIBE_") {
				t.Errorf("service %s: variable %s is nobody's", name, k)
			}
			env = append(env, k+"="+local(name, v))
		}
		if name == "s3" {
			startGateway(t, addr[name], filepath.Join(dir, name), env, args)
			return
		}
		serve(t, env, args...)
		for i, a := range s.Command {
			if a == "--roles" {
				for r := range strings.SplitSeq(s.Command[i+1], ",") {
					roles[r]++
				}
			}
		}
		if s.Command[0] == "agent" {
			roles["agent"]++
		}
	}
	start("s3")
	start("control")
	rest := slices.Sorted(maps.Keys(file.Services))
	for _, name := range rest {
		if s := file.Services[name]; name != "s3" && name != "control" && name != "agent" && len(s.Profiles) == 0 {
			start(name)
		}
	}
	start("agent")
	want := map[string]int{"controlplane": 1, "metalog": 1, "batcher": 3, "writeproxy": 2, "readstream": 2, "readproxy": 2, "retention": 2, "sequencer": 2, "sqlserver": 1, "agent": 1}
	if !maps.Equal(roles, want) {
		t.Errorf("the file has the roles %v, want %v", roles, want)
	}
	c := &cell{write: "http://" + addr["agent"], read: local("cli", file.Services["cli"].Environment["SCRIBE_SERVER"])}
	produce(t, c, "access", sample.AccessLog())
	sameBytes(t, "through the composed cell", tail(t, c, "access"), sample.AccessLog())
	var row struct {
		Payload string `json:"payload"`
	}
	if err := json.Unmarshal(ask(t, "http://"+addr["sqlserver"], "SELECT payload FROM access LIMIT 1"), &row); err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(string(sample.AccessLog()), "\n"); row.Payload != first {
		t.Errorf("the SQL server's first row is %q, want %q", row.Payload, first)
	}
}

// ask is the answer of an SQL server, as JSON lines.
func ask(t *testing.T, gateway, sql string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gateway+"/v1/query?sql="+url.QueryEscape(sql), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", sql, res.Status, body)
	}
	return body
}

// startGateway runs the S3 server of the file's image with the file's command.
func startGateway(t *testing.T, addr, dir string, env, args []string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	p := program.OtherWith(t, env, s3test.Binary(t), args...)
	deadline := time.After(waitLimit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-tick.C:
		case <-p.Done:
			t.Fatalf("the S3 server ended: %v\n%s", p.Err, p.Log)
		case <-deadline:
			t.Fatal(fmt.Errorf("the S3 server does not answer: %w", err))
		}
	}
}
