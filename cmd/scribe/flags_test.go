package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// TestPrecedence: flags win over the environment, which wins over the file, which wins over the defaults.
func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scribe.yaml")
	content := "listen: 127.0.0.1:1\ndata: from-file\nshutdown_timeout: 1m\nlimits: {read_cache: 32MiB}\nblobs: {kind: s3, s3: {bucket: b}}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCRIBE_DATA", "from-environment")
	t.Setenv("SCRIBE_LISTEN", "127.0.0.1:2")
	t.Setenv("SCRIBE_S3_BUCKET", "")
	var f serverFlags
	cmd := &cobra.Command{Use: "test", RunE: func(*cobra.Command, []string) error { return nil }}
	f.addFlags(cmd, "up", app.DefaultConfig())
	root := &cobra.Command{}
	root.AddCommand(cmd)
	prepareCommands(root)
	root.SetArgs([]string{"test", "--listen", "127.0.0.1:3", "--config", file})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	c := app.DefaultConfig()
	if err := f.apply(cmd, &c); err != nil {
		t.Fatal(err)
	}
	for _, got := range []struct{ name, got, want string }{
		{"flag", c.Listen, "127.0.0.1:3"},
		{"environment", c.Data, "from-environment"},
		{"file", c.ShutdownTimeout.String(), time.Minute.String()},
		{"file, nested", fmt.Sprint(c.ReadProxy.CacheBytes), fmt.Sprint(32 << 20)},
		{"default beside it", fmt.Sprint(c.Batcher.MemoryBytes), fmt.Sprint(256 << 20)},
		{"an empty variable is none", c.Blobs.S3.Bucket, "b"},
	} {
		if got.got != got.want {
			t.Errorf("%s: %q, want %q", got.name, got.got, got.want)
		}
	}
}

// TestReadProxyFlags: what a first cell needs of a read proxy is given without a file.
func TestReadProxyFlags(t *testing.T) {
	t.Setenv("SCRIBE_REGIONS", "us=http://a:1,asia=http://b:1")
	run := func(args ...string) (app.Config, error) {
		var f serverFlags
		c := app.DefaultConfig()
		cmd := &cobra.Command{Use: "test", SilenceErrors: true, SilenceUsage: true}
		cmd.RunE = func(*cobra.Command, []string) error { return f.apply(cmd, &c) }
		f.addFlags(cmd, "up", c)
		root := &cobra.Command{}
		root.AddCommand(cmd)
		prepareCommands(root)
		root.SetArgs(append([]string{"test"}, args...))
		err := root.Execute()
		return c, err
	}
	c, err := run("--region", "eu", "--memcached", "m1:11211,m2:11211", "--read-memory", "1GiB", "--max-views", "5")
	if err != nil || c.Validate() != nil {
		t.Fatal(err, c.Validate())
	}
	if c.Region != "eu" || len(c.Regions) != 2 || c.Regions[1].ReadProxies != "http://b:1" || len(c.ReadProxy.Memcached.Servers) != 2 || c.ReadProxy.Views.Views != 5 || c.ReadProxy.FetchBytes != 1<<30 || c.ReadProxy.RequestBytes != 1<<30 {
		t.Errorf("%+v", c)
	}
	if _, err := run("--regions", "us"); err == nil || !strings.Contains(err.Error(), "NAME=URL") {
		t.Errorf("got %v", err)
	}
}

func TestBadEnvironment(t *testing.T) {
	t.Setenv("SCRIBE_SHUTDOWN_TIMEOUT", "soon")
	root := newRoot()
	root.SetArgs([]string{"up"})
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(t.Context())
	if exitCode(err) != exitUsage || !strings.Contains(fmt.Sprint(err), "SCRIBE_SHUTDOWN_TIMEOUT") {
		t.Errorf("exit code %d, %v: want %d and the variable's name", exitCode(err), err, exitUsage)
	}
}

// TestRenamedEnvironment: a variable that no setting has any more is refused with its new name, rather than having no effect. Those that
// Kubernetes sets for a service scribe-gateway are not settings.
func TestRenamedEnvironment(t *testing.T) {
	t.Setenv("SCRIBE_COLLECTOR_GRACE", "2h")
	t.Setenv("SCRIBE_GATEWAY_PORT", "tcp://10.0.0.1:7420")
	root := newRoot()
	root.SetArgs([]string{"up"})
	err := root.ExecuteContext(t.Context())
	const want = "environment variable SCRIBE_COLLECTOR_GRACE is called SCRIBE_RETENTION_GRACE now"
	if exitCode(err) != exitUsage || fmt.Sprint(err) != want {
		t.Errorf("exit code %d, %v: want %d and %q", exitCode(err), err, exitUsage, want)
	}
}

// TestOneMeaning: an environment variable sets one flag of a command.
func TestOneMeaning(t *testing.T) {
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		owner := map[string]string{}
		visit := func(f *pflag.Flag) {
			names, ok := f.Annotations[variablesKey]
			if !ok {
				names = []string{variableOf(f.Name)}
			}
			for _, name := range names {
				if other := owner[name]; other != "" && other != f.Name {
					t.Errorf("%s: %s sets --%s and --%s", cmd.CommandPath(), name, other, f.Name)
				}
				owner[name] = f.Name
			}
		}
		cmd.LocalFlags().VisitAll(visit)
		cmd.InheritedFlags().VisitAll(visit)
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(newRoot())
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("any"), exitError},
		{usageError(errors.New("any")), exitUsage},
		{fmt.Errorf("wrapped: %w", usageError(errors.New("any"))), exitUsage},
		{rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "any"), exitNotFound},
		{connect.NewError(connect.CodePermissionDenied, errors.New("any")), exitDenied},
		{connect.NewError(connect.CodeUnavailable, errors.New("any")), exitUnavailable},
		{rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "any"), exitUnavailable},
		{context.DeadlineExceeded, exitUnavailable},
		{fmt.Errorf("wrapped: %w", producer.ErrUnknownOutcome), exitUnavailable},
		{&codedError{code: exitPartly, err: errors.New("any")}, exitPartly},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("exitCode(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

// TestHelp: every command says what it does and shows how, and names nothing that is not there.
func TestHelp(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if sub.Short == "" || sub.Example == "" {
				t.Errorf("%s lacks a description or an example", sub.CommandPath())
			}
			walk(sub)
		}
	}
	walk(newRoot())
}

func TestServerAddress(t *testing.T) {
	for text, good := range map[string]bool{
		"http://a:1": true, "https://a/b": true, "a": true, "a:7420": true, "[::1]:1": true, "unix:/run/s.sock": true, "unix:///run/s.sock": true,
		"a,b:1,unix:/run/s.sock": true, "a, b": true, "a,,b": false, "a,a:7420": false, "a,ftp://b": false, ",": false,
		"": false, "ftp://a": false, "http://": false, "unix:": false, "/run/s.sock": false,
	} {
		var a addressFlag
		if err := a.Set(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestPlain: where an error comes from does not reach the user either.
func TestPlain(t *testing.T) {
	refused := connect.NewError(connect.CodeAborted, fmt.Errorf("join: %w", connect.NewError(connect.CodeNotFound, errors.New("it is gone"))))
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("consumer: refused: %w", refused), "refused: join: it is gone"},
		{errors.New("producer: unavailable: a/0, attempt 1: unavailable: dial tcp"), "a/0, attempt 1: dial tcp"},
		{errors.New("consumer: checkpoint: cut"), "cut"},
		{errors.Join(errors.New("record: x"), errors.New("consumer: y"), errors.New("x")), "x\ny"},
		{errors.New(`category "consumer": the producer: it is internal: unknown`), `category "consumer": the producer: it is internal: unknown`},
	} {
		if got := plainText(c.err); got != c.want {
			t.Errorf("%q is printed as %q, want %q", c.err, got, c.want)
		}
	}
}

// TestCalled: the words of the protocol do not reach the user, the exit code does.
func TestCalled(t *testing.T) {
	err := callFailure("http://a", "tail x", rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "get category %q: it does not exist", "x"))
	if got := err.Error(); got != `get category "x": it does not exist` || exitCode(err) != exitNotFound {
		t.Errorf("%q, exit code %d", got, exitCode(err))
	}
	err = callFailure("http://a", "tail x", connect.NewError(connect.CodeUnavailable, errors.New("refused")))
	if got := err.Error(); !strings.HasPrefix(got, "tail x: http://a is not available: refused") || exitCode(err) != exitUnavailable {
		t.Errorf("%q, exit code %d", got, exitCode(err))
	}
	err = callFailure("http://a", "list groups", connect.NewWireError(connect.CodeUnavailable, errors.New("unavailable: dial tcp b: refused")))
	if got := err.Error(); got != "list groups: http://a can't reach its control plane: dial tcp b: refused" || exitCode(err) != exitUnavailable {
		t.Errorf("%q, exit code %d", got, exitCode(err))
	}
	if err := callFailure("http://a", "create category", rpc.Errorf(scribev1.Reason_REASON_INVALID, "shards")); exitCode(err) != exitUsage {
		t.Errorf("exit code %d, want %d", exitCode(err), exitUsage)
	}
}
