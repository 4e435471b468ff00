package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"

	"scribe/cmd/scribe/survey"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Bounds of a bundle.
const (
	bundleFileBytes  = 16 << 20
	bundleBytes      = 256 << 20
	bundleMembers    = 500
	bundleAtOnce     = 32 // processes that are asked concurrently
	bundleCategories = 10_000
	// bundleAnswerTimeout bounds what one process answers, and bundleTimeout everything.
	bundleAnswerTimeout = 10 * time.Second
	bundleTimeout       = 2 * time.Minute
	bundleInterval      = 2 * time.Second // of the traffic
)

func newDebug() *cobra.Command {
	return newParent(&cobra.Command{
		Use:     "debug",
		Short:   "Gather what a bug report needs",
		Long:    "Gather what a bug report needs.",
		Example: `  scribe debug bundle -o bundle.tar.gz`,
	}, newDebugBundle())
}

func newDebugBundle() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle -o FILE.tar.gz",
		Short: "Write the state of a cell and of its processes to a file",
		Long: `Write the state of a cell and of its processes to a file, for a bug report: status and health, versions, the properties of categories,
two seconds of traffic, and of each process that can be reached its readiness, metrics, goroutines and heap (profiles need --pprof there).
MANIFEST.txt in the file says what each file is; unreached.txt, what could not be had, and why.

No messages, schemas, settings, tokens, keys or environment variables' values are gathered. What looks like a token, a key or a password in an
answer is replaced. The names of categories, owners and processes, and their addresses, are in it: look into the file before you give it
to others.

In a closed cell metrics take a token that may monitor:*, profiles one that may operate:*; an operator's certificate may do both. Each file has at most 16 MiB, the bundle 256 MiB before it is
compressed, and gathering takes two minutes at most.

Exit codes: 0 if the file was written, whatever is missing in it; 1 if it can't be written; 2 for mistakes in the flags.`,
		Example: `  scribe debug bundle -o bundle.tar.gz
  scribe debug bundle -o bundle.tar.gz --server http://10.0.0.1:7420 && tar -xOzf bundle.tar.gz MANIFEST.txt unreached.txt`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write; it must not exist")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usageError(errors.New("name a file with -o FILE.tar.gz"))
		}
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return usageError(fmt.Errorf("-o %s: the file exists: name another one, or remove it", file))
		}
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), bundleTimeout)
		defer cancel()
		b := &bundle{server: *server}
		b.gather(ctx)
		if err := errors.Join(cmd.Context().Err(), b.write(out), out.Close()); err != nil {
			return errors.Join(err, os.Remove(file))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s: %s", file, countText(len(b.mu.files), "file"))
		if n := len(b.mu.missing); n > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "; %s could not be had, see unreached.txt", countText(n, "thing"))
		}
		fmt.Fprintln(cmd.ErrOrStderr())
		return nil
	}
	return cmd
}

// bundle is what was gathered.
type bundle struct {
	server string
	mu     struct {
		sync.Mutex
		files   []bundleFile
		bytes   int
		missing []string
	}
}

// bundleFile is a file of a bundle.
type bundleFile struct {
	name, about string
	content     []byte
}

// addText adds a file of text, without what looks like a secret.
func (b *bundle) addText(name, about string, content []byte) {
	b.addFile(name, about, redactSecrets(content))
}

func (b *bundle) addFile(name, about string, content []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(content) > bundleFileBytes {
		about += fmt.Sprintf(", the first %v of it", units.Bytes(bundleFileBytes))
		content = content[:bundleFileBytes]
	}
	if b.mu.bytes+len(content) > bundleBytes {
		b.mu.missing = append(b.mu.missing, fmt.Sprintf("%s: the bundle would have more than %v", name, units.Bytes(bundleBytes)))
		return
	}
	b.mu.bytes += len(content)
	b.mu.files = append(b.mu.files, bundleFile{name, about, content})
}

// addMissing notes what could not be had.
func (b *bundle) addMissing(what string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.missing = append(b.mu.missing, string(redactSecrets([]byte(what+": "+strings.ReplaceAll(plainText(err), "\n", " ")))))
}

// addJSON adds a value as JSON.
func (b *bundle) addJSON(name, about string, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		b.addMissing(name, err)
		return
	}
	b.addText(name, about, append(text, '\n'))
}

// gather asks the cell and its processes.
func (b *bundle) gather(ctx context.Context) {
	b.addText("client.txt", "the program that gathered this, and the names of its environment variables", clientFacts())
	h, err := examineCell(ctx, b.server)
	if err != nil {
		b.addMissing("status", err)
		b.gatherProcess(ctx, "server", b.server)
		return
	}
	b.addJSON("status.json", "what scribe status -o json prints", h.JSON())
	var group errgroup.Group
	group.SetLimit(bundleAtOnce)
	group.Go(func() error { b.gatherTraffic(ctx); return nil })
	group.Go(func() error { b.gatherCategories(ctx); return nil })
	for i, m := range h.Members {
		if i == bundleMembers {
			b.addMissing(fmt.Sprintf("%d further processes", len(h.Members)-i), fmt.Errorf("the bundle has %d", bundleMembers))
			break
		}
		if m.GetUrl() == "" {
			b.addMissing("process "+m.GetId(), errors.New("it has no address"))
			continue
		}
		group.Go(func() error {
			b.gatherProcess(ctx, m.GetId(), m.GetUrl())
			return nil
		})
	}
	_ = group.Wait() // it has no errors
}

// clientFacts describes this program.
func clientFacts() []byte {
	var names []string
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "SCRIBE_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return fmt.Appendf(nil, "version      %s\ngo           %s\nsystem       %s/%s, %s\ntime         %s\nenvironment  %s\n", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		countText(runtime.NumCPU(), "processor"), time.Now().UTC().Format(time.RFC3339), cmp.Or(strings.Join(names, " "), "-"))
}

// gatherTraffic adds what is written and read.
func (b *bundle) gatherTraffic(ctx context.Context) {
	before, err := sampleCell(ctx, b.server, "")
	if err != nil {
		b.addMissing("traffic", err)
		return
	}
	wait := time.NewTimer(bundleInterval)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	after, err := sampleCell(ctx, b.server, "")
	if err != nil {
		b.addMissing("traffic", err)
		return
	}
	if err := sampleFailure(after); err != nil {
		b.addMissing("the traffic of some processes", err)
	}
	b.addJSON("top.json", "what scribe top -o json prints: traffic of "+bundleInterval.String(), (&survey.RowChoice{Sort: "bytes", By: "category"}).CompareSamples(before, after))
}

// gatherCategories adds the properties of categories, without their schemas.
func (b *bundle) gatherCategories(ctx context.Context) {
	var lines bytes.Buffer
	n := 0
	errMore := fmt.Errorf("the bundle has %d", bundleCategories)
	err := eachCategory(ctx, b.server, "", func(c *scribev1.Category) error {
		if n++; n > bundleCategories {
			return errMore
		}
		return json.NewEncoder(&lines).Encode(describeCategory(c))
	})
	if err != nil {
		b.addMissing("categories, or some of them", err)
	}
	b.addText("categories.jsonl", "the properties of categories, as scribe category list -o json prints them", lines.Bytes())
}

// gatherProcess adds what a process says of itself.
func (b *bundle) gatherProcess(ctx context.Context, id, url string) {
	folder := path.Join("processes", unsafeInNames.ReplaceAllString(id, "_"))
	ask, cancel := context.WithTimeout(ctx, bundleAnswerTimeout)
	health, err := rpc.NewProcessClient(rpc.Default(), url).GetHealth(ask, &scribev1.GetHealthRequest{})
	cancel()
	if err == nil {
		var text []byte
		if text, err = (protojson.MarshalOptions{Multiline: true}).Marshal(health); err == nil {
			b.addText(folder+"/health.json", "how "+id+" is", text)
		}
	}
	if err != nil {
		b.addMissing(folder+"/health.json", err)
	}
	for _, page := range []struct {
		name, path, about string
		binary            bool
	}{
		{"readyz.txt", "/readyz", "the answer of /readyz, of " + id, false},
		{"metrics.txt", "/metrics", "the metrics of " + id, false},
		{"goroutines.txt", "/debug/pprof/goroutine?debug=2", "the goroutines of " + id, false},
		{"heap.pb.gz", "/debug/pprof/heap", "the heap profile of " + id + ", for go tool pprof", true},
	} {
		content, err := fetchPage(ctx, url, page.path)
		switch {
		case err != nil:
			b.addMissing(folder+"/"+page.name, err)
		case page.binary:
			b.addFile(folder+"/"+page.name, page.about, content)
		default:
			b.addText(folder+"/"+page.name, page.about, content)
		}
	}
}

// unsafeInNames is what is replaced in the name of a folder.
var unsafeInNames = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// fetchPage gets a page of a process. A process that is not ready says why with an error's status.
func fetchPage(ctx context.Context, server, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bundleAnswerTimeout)
	defer cancel()
	if address, _, several := strings.Cut(server, ","); several {
		server = address
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+page, nil)
	if err != nil {
		return nil, err
	}
	client := rpc.Default().HTTPClient()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // it would take the token elsewhere
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, bundleFileBytes+1))
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK || page == "/readyz" && res.StatusCode == http.StatusServiceUnavailable {
		return body, nil
	}
	why := ""
	if res.StatusCode == http.StatusNotFound && strings.HasPrefix(page, "/debug/pprof/") {
		why = " (profiles are served with --pprof)"
	}
	return nil, fmt.Errorf("%s%s", res.Status, why)
}

// secrets are what looks like a secret, and what stands for it: tokens, private keys, passwords in addresses, credentials in headers, and
// values whose names say it.
var secrets = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`scribe_[a-z2-7]{12}_[A-Za-z0-9_-]{43}`), "[token]"},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`), "[private key]"},
	{regexp.MustCompile(`://[^/\s@"']+@`), "://[user]@"},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`), "$1 [credentials]"},
	{regexp.MustCompile(`(?i)((?:secret|password|passwd|token|credential|signature|access_?-?key)[a-z_-]*["']?\s*[=:]\s*["']?)(?:[0-9.]*[^\s"',;&}\]\[{0-9.])[^\s"',;&}]*`), "$1[secret]"}, // a number is none
}

// redactSecrets replaces what looks like a secret in a text.
func redactSecrets(text []byte) []byte {
	for _, s := range secrets {
		text = s.pattern.ReplaceAll(text, []byte(s.by))
	}
	return text
}

// write writes the bundle: first what it has, and what it lacks.
func (b *bundle) write(w io.Writer) error {
	slices.SortFunc(b.mu.files, func(a, b bundleFile) int { return cmp.Compare(a.name, b.name) })
	slices.Sort(b.mu.missing)
	var manifest strings.Builder
	fmt.Fprintf(&manifest, "What scribe debug bundle gathered of the cell of %s at %s.\n\n", redactSecrets([]byte(b.server)), time.Now().UTC().Format(time.RFC3339))
	fmt.Fprintf(&manifest, "%-40s  %9s  %s\n", "FILE", "SIZE", "WHAT IT IS")
	for _, f := range b.mu.files {
		fmt.Fprintf(&manifest, "%-40s  %9v  %s\n", f.name, units.Bytes(len(f.content)), f.about)
	}
	manifest.WriteString("unreached.txt                             what could not be had, and why\n\n" +
		"Not gathered: messages, schemas, settings of processes (no process shows them: status.json and health.json say what there is), tokens, keys, values of\n" +
		"environment variables. What looks like a token, a key or a password in an answer is replaced. Heap profiles have the names and sizes of\n" +
		"functions' memory, not its content.\n")
	missing := "nothing\n"
	if len(b.mu.missing) > 0 {
		missing = strings.Join(b.mu.missing, "\n") + "\n"
	}
	packed := gzip.NewWriter(w)
	out := tar.NewWriter(packed)
	now := time.Now()
	for _, f := range append([]bundleFile{{name: "MANIFEST.txt", content: []byte(manifest.String())}, {name: "unreached.txt", content: []byte(missing)}}, b.mu.files...) {
		if err := out.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: now}); err != nil {
			return err
		}
		if _, err := out.Write(f.content); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), packed.Close())
}
