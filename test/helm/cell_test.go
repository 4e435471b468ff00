package helm

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"scribe/internal/testkit/s3test"
	"scribe/test/program"
)

// TestFlags gives the commands of each shape, with their variables and files of settings, to `scribe doctor`, which takes the same flags: it fails when the chart names a flag, a setting or a value that the program does not
// know, or leaves out one that it needs.
func TestFlags(t *testing.T) {
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1") // nobody is there, and nobody else is asked
	for _, file := range shapes(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r := mustRender(t, file, with(t, "blobs: {s3: {endpoint: 'http://127.0.0.1:1'}}"))
			for _, w := range r.workloads() {
				for _, pod := range w.names() {
					p := r.place(w, cmp.Or(w.container().argument("--upstream"), "an upstream"), "http://127.0.0.1:1")
					env, args := w.container().started(pod, func(string, string) string { return "a secret" })
					for _, variable := range env {
						name, value, _ := strings.Cut(p.local(variable), "=")
						if name != "SCRIBE_TOKEN_FILE" { // of the agent, not of the doctor's machine
							t.Setenv(name, value)
						}
					}
					for i := range args {
						args[i] = p.local(args[i])
					}
					command := append([]string{"doctor"}, args[1:]...)
					if args[0] != "up" {
						command = append([]string{"doctor"}, args...)
					}
					examined := program.Run(t, nil, append(command, "-o", "json")...)
					var report struct {
						Checks []struct{ Check, State, Found string }
					}
					if err := json.Unmarshal(examined.Stdout, &report); err != nil || len(report.Checks) == 0 {
						t.Fatalf("%s can't be started: scribe %s: exit code %d\n%s", pod, strings.Join(args, " "), examined.Code, examined.Stderr)
					}
					for _, c := range report.Checks {
						if c.Check == "configuration" && c.State != "ok" {
							t.Errorf("%s can't be started: scribe %s: %s", pod, strings.Join(args, " "), c.Found)
						}
					}
				}
			}
		})
	}
}

// place is where a pod runs: on this machine, with a folder for each of its mounts.
type place struct {
	replace []string
}

// local is a text of the pod for this machine.
func (p *place) local(text string) string { return strings.NewReplacer(p.replace...).Replace(text) }

// place makes the folders of a pod, and the files of its ConfigMaps. names are what is called otherwise on this machine, as pairs. A socket's path is at most some 100 bytes, so its folder is elsewhere.
func (r release) place(w workload, names ...string) *place {
	r.t.Helper()
	p := &place{replace: names}
	for _, m := range w.container().VolumeMounts {
		dir := filepath.Join(r.t.TempDir(), strings.Trim(strings.ReplaceAll(m.MountPath, "/", "-"), "-"))
		if m.Name == "socket" {
			short, err := os.MkdirTemp("", "s")
			if err != nil {
				r.t.Fatal(err)
			}
			r.t.Cleanup(func() { _ = os.RemoveAll(short) })
			dir = short
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			r.t.Fatal(err)
		}
		p.replace = append(p.replace, m.MountPath, dir)
		for _, v := range w.Template.Spec.Volumes {
			if v.Name != m.Name || v.ConfigMap == nil {
				continue
			}
			for name, text := range r.find("ConfigMap", v.ConfigMap.Name).Data {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					r.t.Fatal(err)
				}
			}
		}
	}
	return p
}

// launch starts a pod as a process. names are what is called otherwise on this machine, as pairs; give puts what the pod has of Secrets into files, and secret returns it for variables.
func (r release) launch(w workload, pod string, names []string, give func(p *place), secret func(name, key string) string) (process *program.Process, output io.Reader, env []string) {
	r.t.Helper()
	p := r.place(w, names...)
	give(p)
	env, args := w.container().started(pod, secret)
	for i := range env {
		env[i] = p.local(env[i])
	}
	for i := range args {
		args[i] = p.local(args[i])
	}
	process, output = program.Launch(r.t, env, args...)
	return process, output, env
}

// giveNothing is for pods without files of Secrets.
func giveNothing(*place) {}

// keysOf returns the keys of a store, under the names that Secrets have for them.
func keysOf(store *s3test.Server) func(name, key string) string {
	return func(_, key string) string {
		return map[string]string{"access-key": store.AccessKey, "secret-key": store.SecretKey}[key]
	}
}

// localNodes returns addresses on this machine for the nodes of a release, and what is called otherwise then, as pairs.
func localNodes(t *testing.T, w *workload) (addresses map[string]string, names []string) {
	t.Helper()
	addresses = map[string]string{}
	for text := range strings.SplitSeq(w.container().argument("--cluster"), ",") {
		name, address, _ := strings.Cut(text, "=")
		addresses[name] = program.NodeAddress(t)
		host, _, _ := net.SplitHostPort(address)
		local, _, _ := net.SplitHostPort(addresses[name])
		names = append(names, address, addresses[name], host, local)
	}
	return addresses, names
}

// cell are the nodes of a release as processes on this machine.
type cell struct {
	release
	t         *testing.T
	nodes     []*program.Process
	env       [][]string // of each node's pod
	addresses map[string]string
}

// startCell starts the nodes of a release. give puts what the pods have of Secrets into their places.
func startCell(t *testing.T, r release, store *s3test.Server, give func(p *place)) *cell {
	t.Helper()
	w := r.nodes()
	addresses, names := localNodes(t, w)
	c := &cell{release: r, t: t, addresses: addresses}
	var outputs []io.Reader
	for _, pod := range w.names() {
		node, output, env := r.launch(*w, pod, append([]string{w.container().argument("--listen"), addresses[pod]}, names...), give, keysOf(store))
		c.nodes, c.env, outputs = append(c.nodes, node), append(c.env, env), append(outputs, output)
		c.probe(node, w.container().LivenessProbe, addresses[pod])
	}
	for i, node := range c.nodes {
		node.AwaitReady(outputs[i])
		c.probe(node, w.container().ReadinessProbe, addresses[w.names()[i]])
	}
	return c
}

// probe asks what the kubelet would ask, as it does, without looking at certificates, until the answer is good.
func (c *cell) probe(node *program.Process, p *probe, address string) {
	c.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as the kubelet
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	url := strings.ToLower(p.HTTPGet.Scheme) + "://" + address + p.HTTPGet.Path
	program.Await(c.t, url+" answers", func() bool {
		select {
		case <-node.Done:
			c.t.Fatalf("%s ended: %v\n%s", node.Name, node.Err, node.Log)
		default:
		}
		res, err := client.Get(url)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// exec runs a command as `kubectl exec` does, in the pod of a node.
func (c *cell) exec(node int, stdin io.Reader, args ...string) program.Result {
	c.t.Helper()
	for _, variable := range c.env[node] {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "SCRIBE_") && !strings.HasPrefix(name, "SCRIBE_S3_") {
			c.t.Setenv(name, value)
		}
	}
	return program.Run(c.t, stdin, args...)
}

// ok is exec of a command that must succeed.
func (c *cell) ok(node int, stdin io.Reader, args ...string) string {
	c.t.Helper()
	r := c.exec(node, stdin, args...)
	if r.Code != 0 {
		c.t.Fatalf("scribe %s: exit code %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return string(r.Stdout)
}

// expectOneAndTwo reads what two producers wrote, through a node. Between their shards there is no order.
func (c *cell) expectOneAndTwo(node int) {
	c.t.Helper()
	if got := c.ok(node, nil, "tail", "web", "--from", "earliest", "--until-end", "-o", "raw"); got != "one\ntwo\n" && got != "two\none\n" {
		c.t.Errorf("read %q", got)
	}
}

// awaitUp waits until the list of nodes, at one of them, shows so many as up, as the procedures ask for before each step.
func (c *cell) awaitUp(node, count int) {
	c.t.Helper()
	program.Await(c.t, fmt.Sprint(count, " nodes are up"), func() bool {
		r := c.exec(node, nil, "node", "list")
		return r.Code == 0 && strings.Count(string(r.Stdout), " up ") == count
	})
}

// helmTest runs what `helm test` does, at a node in place of the Service, and with the authority in a file, if there is one.
func (c *cell) helmTest(address, authority string) {
	c.t.Helper()
	p := spec[pod](c.release, c.find("Pod", "scribe-test-ready"))
	_, args := p.Containers[0].started("", nil)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "scribe.default.svc.cluster.local:7420", address)
	}
	if len(p.Containers[0].Env) > 0 {
		c.t.Setenv(p.Containers[0].Env[0].Name, authority)
	}
	if out := string(program.OK(c.t, nil, args...)); !strings.HasPrefix(out, "ok") {
		c.t.Errorf("the test says %q", out)
	}
}

// startAgent starts an agent of a release, with another upstream, and returns the address of its socket.
func (c *cell) startAgent(r release, upstream string, give func(p *place)) (socket string) {
	c.t.Helper()
	for _, w := range r.workloads() {
		if w.Replicas > 0 {
			continue
		}
		container := w.container()
		names := []string{container.argument("--upstream"), upstream, container.argument("--listen"), program.Reserve(c.t)}
		agent, output, _ := r.launch(w, w.names()[0], names, func(p *place) {
			socket = "unix:" + p.local(container.argument("--socket"))
			give(p)
		}, nil)
		agent.AwaitReady(output)
		c.t.Cleanup(agent.Stop)
		return socket
	}
	c.t.Fatal("the release has no agent")
	return ""
}

// TestCell starts the nodes of the smallest release, and the agent of another one, as processes: they become a cell, which goes on when a node is away, and what is written to the agent's socket is read there. Commands run
// as in a pod.
func TestCell(t *testing.T) {
	store := s3test.Start(t)
	r := mustRender(t, chart+"/ci/defaults.yaml", with(t, "blobs: {s3: {endpoint: 'http://"+store.Endpoint+"', bucket: "+store.Bucket+"}}"))
	c := startCell(t, r, store, giveNothing)
	c.awaitUp(2, 3)
	c.helmTest(c.addresses["scribe-1"], "")
	agent := mustRender(t, chart+"/ci/agent.yaml", with(t, "agent: {settings: {inputs: null}}"))
	socket := c.startAgent(agent, "http://"+c.addresses["scribe-1"], giveNothing)
	program.OK(t, strings.NewReader("one\n"), "produce", "web", "--server", socket, "--ack", "committed")

	c.nodes[0].Terminate()
	c.nodes[0].AwaitStop()
	c.ok(1, strings.NewReader("two\n"), "produce", "web")
	c.expectOneAndTwo(2)
}

// TestSecureCell does what the notes of a release with certificates say, with names that this machine has: the nodes take the certificate of the command, the first token closes the cell, and an agent writes with a token.
func TestSecureCell(t *testing.T) {
	store := s3test.Start(t)
	r := mustRender(t, chart+"/ci/secure.yaml", with(t, "blobs: {s3: {endpoint: 'http://"+store.Endpoint+"', bucket: "+store.Bucket+
		", region: '', encryption: '', kmsKey: '', credentials: {iam: false, existingSecret: s3}}}\nnodes: {serviceAccount: {annotations: {eks.amazonaws.com/role-arn: null}}}"))
	certs := t.TempDir()
	secret := map[string]string{}
	// putSecret writes the keys of the Secret that the notes make into a folder, or some of them.
	putSecret := func(dir string, keys ...string) {
		for _, key := range keys {
			if err := os.WriteFile(filepath.Join(dir, key), []byte(readText(t, secret[key])), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	makeSecret := func(names []string) {
		local := strings.NewReplacer(names...)
		for line := range strings.Lines(r.notes) {
			words := strings.Fields(line)
			switch {
			case len(words) > 2 && words[0] == "scribe" && words[1] == "cert":
				program.OK(t, nil, append(strings.Fields(local.Replace(strings.Join(words[1:], " "))), "--dir", filepath.Join(certs, "certs"))...)
			case strings.Contains(line, "create secret generic"):
				for _, m := range regexp.MustCompile(`--from-file=(\S+)=(\S+)`).FindAllStringSubmatch(line, -1) {
					secret[m[1]] = filepath.Join(certs, m[2])
				}
			}
		}
		if len(secret) != 3 {
			t.Fatalf("the notes do not say how to make the Secret:\n%s", r.notes)
		}
	}
	c := startCell(t, r, store, func(p *place) {
		if len(secret) == 0 {
			makeSecret(p.replace)
		}
		putSecret(p.local("/etc/scribe/tls"), "tls.crt", "tls.key", "ca.crt")
	})
	c.helmTest(c.addresses["scribe-1"], secret["ca.crt"])
	admin := strings.TrimSpace(c.ok(0, nil, "token", "issue", "--can", "all:*", "--name", "admin"))
	t.Setenv("SCRIBE_TOKEN", admin)
	writer := c.ok(1, nil, "token", "issue", "--can", "write:web", "--name", "agents")

	t.Setenv("SCRIBE_TOKEN", "")
	socket := c.startAgent(r, "https://"+c.addresses["scribe-2"], func(p *place) {
		putSecret(p.local("/etc/scribe/tls"), "ca.crt")
		if err := os.WriteFile(p.local("/etc/scribe/token/token"), []byte(writer), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	program.OK(t, strings.NewReader("one\n"), "produce", "web", "--server", socket, "--ack", "committed")

	// Who has neither a certificate nor a token gets nothing.
	for _, name := range []string{"SCRIBE_CERT", "SCRIBE_KEY"} {
		t.Setenv(name, "")
	}
	server := "https://" + c.addresses["scribe-0"]
	if denied := program.Run(t, nil, "tail", "web", "--server", server, "--from", "earliest", "--until-end"); denied.Code != 4 {
		t.Errorf("a stranger: exit code %d, %s%s", denied.Code, denied.Stdout, denied.Stderr)
	}
	t.Setenv("SCRIBE_TOKEN", admin)
	if got := string(program.OK(t, nil, "tail", "web", "--server", server, "--from", "earliest", "--until-end", "-o", "raw")); got != "one\n" {
		t.Errorf("read %q", got)
	}
}

// TestGrowingCell takes a cell through the procedures of docs/operations.md: one process becomes the first of three nodes, with what it has, and these become five, each once the cell has a place for it.
func TestGrowingCell(t *testing.T) {
	store := s3test.Start(t)
	sized := func(values string) release {
		return mustRender(t, chart+"/ci/defaults.yaml", with(t, "blobs: {s3: {endpoint: 'http://"+store.Endpoint+"', bucket: "+store.Bucket+"}}\nnodes: "+values))
	}
	one, three, five := sized("{count: 1}"), sized("{count: 3, adopt: true}"), sized("{count: 5, adopt: true}")
	addresses, names := localNodes(t, five.nodes())
	c := &cell{release: five, t: t, addresses: addresses, nodes: make([]*program.Process, 5), env: make([][]string, 5)}
	folders := t.TempDir()
	launch := func(r release, i int) io.Reader {
		w := r.nodes()
		pod := fmt.Sprint("scribe-", i)
		var output io.Reader
		c.nodes[i], output, c.env[i] = r.launch(*w, pod, append([]string{w.container().argument("--listen"), addresses[pod], "/data", filepath.Join(folders, pod)}, names...), giveNothing, keysOf(store))
		return output
	}
	restart := func(r release, i int) {
		c.nodes[i].Stop()
		output := launch(r, i)
		c.nodes[i].AwaitReady(output)
	}
	output := launch(one, 0)
	c.nodes[0].AwaitReady(output)
	c.ok(0, strings.NewReader("one\n"), "produce", "web")

	// The new nodes wait for the first one, which is not a node yet.
	second, third := launch(three, 1), launch(three, 2)
	restart(three, 0)
	c.nodes[1].AwaitReady(second)
	c.nodes[2].AwaitReady(third)
	c.ok(1, strings.NewReader("two\n"), "produce", "web")

	for _, i := range []int{3, 4} {
		c.awaitUp(0, i)
		launch(five, i)
		<-c.nodes[i].Done
		if text := fmt.Sprint(c.nodes[i].Log); !strings.Contains(text, "is not one of the cell's nodes") {
			t.Fatalf("a node without a place ended with %v:\n%s", c.nodes[i].Err, text)
		}
		name := fmt.Sprint("scribe-", i)
		c.ok(0, nil, "node", "add", name+"="+addresses[name])
		output := launch(five, i)
		c.nodes[i].AwaitReady(output)
	}
	// The others get the new list, the last one first.
	for _, i := range []int{2, 1, 0} {
		c.awaitUp(4, 5)
		restart(five, i)
	}
	c.awaitUp(4, 5)
	c.expectOneAndTwo(4)
}
