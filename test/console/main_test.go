package console

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"scribe/test/program"
)

var screenshots = flag.Bool("screenshots", false, "write the pictures of docs/console")

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// findChromium returns a browser. Without one the test is skipped, but not in CI.
func findChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	const lacks = "there is no Chromium here (Debian: apt-get install --no-install-recommends chromium)"
	if os.Getenv("SCRIBE_CI") != "" {
		t.Fatal(lacks)
	}
	t.Skip(lacks)
	return ""
}

// tab is a page of a browser, and what it did.
type tab struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // chromedp's tab
	origin string
	mu     struct {
		sync.Mutex
		bytes    int64
		abroad   []string // requests to other origins
		errors   []string // what the console of the browser has
		requests int
	}
}

// openTab starts a browser for a cell.
func openTab(t *testing.T, origin string) *tab {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(findChromium(t)), chromedp.NoSandbox, chromedp.IgnoreCertErrors,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 860))
	allocated, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	ctx, cancel := chromedp.NewContext(allocated)
	b := &tab{t: t, ctx: ctx, origin: origin}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser to end
		cancel()
		stop()
	})
	if err := chromedp.Listen(ctx, b.watch); err != nil {
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, page.Enable, page.EnableParams{})
	return b
}

// call makes a call of the debugging protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

// watch notes what the page does. A dialog would stop it, which fails the test.
func (b *tab) watch(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.mu.requests++
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") && !strings.HasPrefix(e.Request.URL, "blob:"+b.origin) {
			b.mu.abroad = append(b.mu.abroad, e.Request.URL)
		}
	case *network.EventDataReceived:
		b.mu.bytes += e.DataLength
	case *runtime.EventExceptionThrown:
		b.mu.errors = append(b.mu.errors, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case *runtime.EventConsoleAPICalled:
		b.mu.errors = append(b.mu.errors, "a call of console."+string(e.Type))
	case *log.EventEntryAdded:
		b.mu.errors = append(b.mu.errors, e.Entry.Text+" "+e.Entry.URL)
	case *page.EventJavascriptDialogOpening:
		b.mu.errors = append(b.mu.errors, "a dialog: "+e.Message)
	}
}

// run does something with the page.
func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, program.WaitLimit/12)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.fail(err)
	}
}

// fail ends the test with what the page shows.
func (b *tab) fail(err error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, program.WaitLimit/8)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + (document.body?.innerText ?? "")`))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.t.Fatalf("%v\nthe page shows:\n%.3000s\nerrors: %q", err, text, b.mu.errors)
}

// value is an expression of the page.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, program.WaitLimit/12)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.fail(fmt.Errorf("%s: %w", expression, err))
	}
	return v
}

// await waits until an expression is true. The page itself looks again and again: its policy forbids the way in which chromedp would.
func (b *tab) await(expression string) {
	b.t.Helper()
	value[bool](b, `new Promise((done, failed) => { const look = () => { try { if (`+expression+`) done(true); else setTimeout(look, 20) } catch (e) { failed(e) } }; look() })`)
}

// open shows a page by its address. The one before must have been made of texts alone.
func (b *tab) open(hash string) {
	b.t.Helper()
	if value[bool](b, `/\[object |undefined|NaN|\bnull\b/.test(document.querySelector("main").innerText.replace(/"\w+":null/g, ""))`) {
		b.t.Errorf("a page has no text where it should have one:\n%s", value[string](b, `document.querySelector("main").innerText`))
	}
	value[string](b, fmt.Sprintf(`location.hash = %q`, hash))
}

// requireQuiet fails if the page did anything that no page may do. Refusals that were provoked are among the allowed errors.
func (b *tab) requireQuiet(allowed ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.abroad) > 0 || b.mu.requests == 0 {
		b.t.Errorf("of %d requests these go elsewhere: %q", b.mu.requests, b.mu.abroad)
	}
	for _, text := range b.mu.errors {
		if !slices.ContainsFunc(allowed, func(a string) bool { return strings.Contains(text, a) }) {
			b.t.Errorf("the browser's console has: %s", text)
		}
	}
}
