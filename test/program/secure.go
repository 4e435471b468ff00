package program

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/tlsfiles"
	scribev1 "scribe/proto/scribe/v1"
)

// secureVariable has the cells that tests start be secured: TLS at every process, certificates of one authority, which members prove themselves by to each other and
// clients to them, and closed, so that only what is granted is allowed. certsVariable is how the test binary tells its children where the files are.
const (
	secureVariable = "SCRIBE_TEST_SECURE"
	certsVariable  = "SCRIBE_TEST_CERTS"
)

// Whom the certificates are of. The tester may do everything that clients and operators may, the agents of hosts may write.
const (
	memberName = "member"
	agentName  = "agent"
	testerName = "tester"
)

// Secured reports whether the cells that tests start are secured.
func Secured() bool { return os.Getenv(certsVariable) != "" }

// secureSuite makes the certificates of all cells in a folder, and has the test binary and the commands that it runs use those of a client. Tests that
// are left out are not run.
func secureSuite(dir string, leftOut map[string]string) error {
	for _, args := range [][]string{{"ca"}, {"server", memberName}, {"server", agentName, "--kind", "agent"}, {"client", testerName, "--kind", "operator"}} {
		args = append(append([]string{"cert"}, args...), "--dir", dir)
		if out, err := Command(context.Background(), binary, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("scribe %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	for variable, value := range map[string]string{
		certsVariable: dir, "SCRIBE_CA": filepath.Join(dir, "ca.pem"), "SCRIBE_CERT": filepath.Join(dir, testerName+".pem"), "SCRIBE_KEY": filepath.Join(dir, testerName+".key"),
	} {
		if err := os.Setenv(variable, value); err != nil {
			return err
		}
	}
	leaveOut(leftOut)
	return UseClientFiles()
}

// leaveOut has go test skip tests, beside those that the command line skips, and says why.
func leaveOut(leftOut map[string]string) {
	var patterns []string
	for _, name := range slices.Sorted(maps.Keys(leftOut)) {
		fmt.Fprintf(os.Stderr, "left out with %s: %s: %s\n", secureVariable, name, leftOut[name])
		var parts []string
		for part := range strings.SplitSeq(name, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(strings.ReplaceAll(part, " ", "_"))+"$")
		}
		patterns = append(patterns, strings.Join(parts, "/"))
	}
	skip := flag.Lookup("test.skip").Value
	if given := skip.String(); given != "" {
		patterns = append(patterns, given)
	}
	_ = skip.Set(strings.Join(patterns, "|")) // it takes any text
}

// UseClientFiles has the connections of this process, if cells are secured, be those of a client with a certificate. A test binary that is started as something else than
// a run of tests calls it first; Main does for the others.
func UseClientFiles() error {
	if !Secured() {
		return nil
	}
	files, err := tlsfiles.Open(clientConfig(), tlsfiles.Deps{})
	if err != nil {
		return err
	}
	rpc.SetProgramTLS(files)
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t.TLSClientConfig, t.ForceAttemptHTTP2 = files.ClientConfig(), false // HTTP/1.1, as without TLS
	}
	return nil
}

// clientConfig names the files of the client that tests are.
func clientConfig() tlsfiles.Config {
	return tlsfiles.Config{CA: os.Getenv("SCRIBE_CA"), Cert: os.Getenv("SCRIBE_CERT"), Key: os.Getenv("SCRIBE_KEY")}
}

// MemberConfig names the files of a process of the cells that tests start; none, if these are not secured.
func MemberConfig() tlsfiles.Config {
	dir := os.Getenv(certsVariable)
	if dir == "" {
		return tlsfiles.Config{}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	return tlsfiles.Config{Cert: file(memberName + ".pem"), Key: file(memberName + ".key"), CA: file("ca.pem"), ClientCA: file("ca.pem")}
}

// ClientFiles and MemberFiles are what connections prove by who they are that do not use the defaults of this process: of a client, and of a test that stands for a member. Nil
// if cells are not secured.
func ClientFiles(t testing.TB) *tlsfiles.Files { t.Helper(); return openFiles(t, clientConfig()) }

// MemberFiles is described at ClientFiles.
func MemberFiles(t testing.TB) *tlsfiles.Files { t.Helper(); return openFiles(t, MemberConfig()) }

func openFiles(t testing.TB, cfg tlsfiles.Config) *tlsfiles.Files {
	t.Helper()
	if !Secured() {
		return nil
	}
	files, err := tlsfiles.Open(cfg, tlsfiles.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// URL is where a process is reached at an address, host:port.
func URL(address string) string {
	if Secured() {
		return "https://" + address
	}
	return "http://" + address
}

// Address is the address, host:port, in the URL of a process.
func Address(t testing.TB, processURL string) string {
	t.Helper()
	u, err := url.Parse(processURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// ServerEnvironment are the variables of a process of a cell, an agent or `scribe node detach`, by which it is secured; none for other commands, and for processes that are told of files of their own.
func ServerEnvironment(args []string) []string {
	if !Secured() || len(args) == 0 || slices.ContainsFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--secure" || strings.HasPrefix(name, "--tls-")
	}) {
		return nil
	}
	cfg := MemberConfig()
	switch args[0] {
	case "up", "serve":
	case "node": // detach takes the node's place for a moment
		if len(args) < 2 || args[1] != "detach" {
			return nil
		}
	case "agent":
		dir := filepath.Dir(cfg.Cert)
		cfg.Cert, cfg.Key = filepath.Join(dir, agentName+".pem"), filepath.Join(dir, agentName+".key")
	default:
		return nil
	}
	return environmentOf(cfg)
}

func environmentOf(cfg tlsfiles.Config) []string {
	return []string{"SCRIBE_TLS_CERT=" + cfg.Cert, "SCRIBE_TLS_KEY=" + cfg.Key, "SCRIBE_TLS_CA=" + cfg.CA, "SCRIBE_TLS_CLIENT_CA=" + cfg.ClientCA}
}

// MemberEnvironment makes a certificate for processes that are reached at other hosts than this one's, and returns the variables by which they use it; none if cells
// are not secured.
func MemberEnvironment(t testing.TB, hosts ...string) []string {
	t.Helper()
	cfg := MemberConfig()
	if !Secured() {
		return nil
	}
	dir := t.TempDir()
	OK(t, nil, "cert", "server", memberName, "--host", strings.Join(hosts, ","), "--dir", dir, "--ca-cert", cfg.CA, "--ca-key", filepath.Join(filepath.Dir(cfg.CA), "ca.key"))
	cfg.Cert, cfg.Key = filepath.Join(dir, memberName+".pem"), filepath.Join(dir, memberName+".key")
	return environmentOf(cfg)
}

// closedCells are the data folders of control planes whose cells were closed. A cell stays closed, so its later starts are as they are.
var closedCells sync.Map

// closeOnce closes the cell of a process that has a control plane, unless that was done.
func (p *Process) closeOnce() {
	p.t.Helper()
	if p.closes == "" {
		return
	}
	if _, done := closedCells.LoadOrStore(p.closes, true); !done {
		CloseCell(p.t, rpc.Default(), p.URL)
	}
}

// closesFor names the cell that a command line begins, by its data folder, if its process is secured by ServerEnvironment and can be reached from here; "" otherwise.
func closesFor(wrapper, args []string) string {
	if len(wrapper) > 0 || ServerEnvironment(args) == nil {
		return ""
	}
	roles, data := "", ""
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "--roles":
			roles = value
		case "--data":
			data = value
		}
	}
	if args[0] == "up" || args[0] == "serve" && slices.ContainsFunc(strings.Split(roles, ","), func(r string) bool { return r == "all" || r == "controlplane" }) {
		return data
	}
	return ""
}

// CloseCell grants the certificates of tests what they need, which closes the cell: from then on nobody may do anything else. It does nothing if cells are not secured.
func CloseCell(t testing.TB, transport *rpc.Transport, server string) {
	t.Helper()
	if !Secured() {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), WaitLimit)
	defer cancel()
	client := rpc.NewAccessClient(transport, server)
	for _, grant := range []*scribev1.AddGrantsRequest{ // who may administer the cell comes first
		{Principal: testerName, Rules: []string{"all:*"}}, {Principal: agentName, Rules: []string{"write:*"}},
	} {
		for {
			_, err := client.AddGrants(ctx, grant)
			if err == nil {
				break
			}
			switch rpc.ReasonOf(err) { //nolint:exhaustive // those that do not pass
			case scribev1.Reason_REASON_DENIED, scribev1.Reason_REASON_UNAUTHENTICATED, scribev1.Reason_REASON_INVALID:
				t.Fatalf("close the cell at %s: %v", server, err)
			}
			if ctx.Err() != nil {
				t.Fatalf("the cell at %s could not be closed in time: %v", server, err)
			}
			<-time.After(50 * time.Millisecond) // nobody may lead for a moment
		}
	}
}

// CheckLeftOut fails for tests that a suite leaves out, and does not have, or for which it has no reason.
func CheckLeftOut(t *testing.T, leftOut map[string]string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				declared = append(declared, fn.Name.Name)
			}
		}
	}
	for name, why := range leftOut {
		if test, _, _ := strings.Cut(name, "/"); !slices.Contains(declared, test) || why == "" {
			t.Errorf("%s is left out where cells are secured, since %q: want a test of this suite, and a reason", name, why)
		}
	}
}
