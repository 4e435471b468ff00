package test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"scribe/internal/testkit/sample"
	"scribe/test/program"
)

// TestComposeNodes starts the commands of docker-compose.nodes.yml as processes, with host names and paths replaced by this machine's: what is
// written through one node is read through the others, over the addresses of the command line's service, also when that node is gone.
func TestComposeNodes(t *testing.T) {
	text, err := os.ReadFile("../docker-compose.nodes.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]composed `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	dir, names := t.TempDir(), []string{"n1", "n2", "n3"}
	store := program.Reserve(t)
	addr := map[string]string{}
	for _, name := range names {
		addr[name] = program.NodeAddress(t)
	}
	local := func(service, s string) string {
		for name, a := range addr {
			s = strings.ReplaceAll(s, name+":7420", a)
		}
		s = strings.NewReplacer("s3:7070", store, "0.0.0.0:7070", store, "0.0.0.0:7420", addr[service]).Replace(s)
		if s == "/data" {
			return filepath.Join(dir, service)
		}
		return s
	}
	lines := func(service string) (env, args []string) {
		for k, v := range file.Services[service].Environment {
			env = append(env, k+"="+local(service, v))
		}
		for _, a := range file.Services[service].Command {
			args = append(args, local(service, a))
		}
		return env, args
	}
	env, args := lines("s3")
	startGateway(t, store, filepath.Join(dir, "s3"), env, args)
	nodes, outputs := make([]*program.Process, len(names)), make([]io.Reader, len(names))
	for i, name := range names {
		env, args := lines(name)
		nodes[i], outputs[i] = launch(t, env, args...)
	}
	for i, p := range nodes {
		p.AwaitReady(outputs[i])
	}
	servers := local("cli", file.Services["cli"].Environment["SCRIBE_SERVER"])
	c := &cell{write: "http://" + addr["n1"], read: servers}
	produce(t, c, "access", sample.AccessLog())
	nodes[0].Kill()
	sameBytes(t, "after the node that wrote it was killed", tail(t, c, "access"), sample.AccessLog())
	if got := string(ok(t, nil, "node", "list", "--server", servers)); strings.Count(got, " up ") != 2 || !strings.Contains(got, "away") {
		t.Error(fmt.Sprint("the list of nodes is\n", got))
	}
}
