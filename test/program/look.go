package program

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"scribe/internal/transport/tlsfiles"
)

// Metrics are the samples of one scrape of a process: by name, and by name{label="value",...} as the process wrote it.
type Metrics map[string]float64

// Scrape reads a process's metrics at its URL, http://host:port, https://host:port or unix:/path.
func Scrape(ctx context.Context, url string) (Metrics, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	if Secured() {
		files, err := tlsfiles.Open(clientConfig(), tlsfiles.Deps{})
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = files.ClientConfig()
		transport.TLSClientConfig.ServerName = "localhost" // a process in a network of its own has another address than its certificate
	}
	if socket, ok := strings.CutPrefix(url, "unix:"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
		url = "http://socket"
	}
	return ScrapeWith(ctx, &http.Client{Transport: transport}, url)
}

// ScrapeWith reads the metrics at http://host:port through a client.
func ScrapeWith(ctx context.Context, client *http.Client, url string) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/metrics: %s", url, res.Status)
	}
	return parseMetrics(res.Body)
}

// Scrape reads the process's metrics; those of nodes are added up.
func (p *Process) Scrape(ctx context.Context) (Metrics, error) {
	sum := Metrics{}
	for _, n := range p.Nodes() {
		m, err := Scrape(ctx, n.URL)
		if err != nil {
			return nil, err
		}
		for sample, v := range m {
			sum[sample] += v
		}
	}
	return sum, nil
}

func parseMetrics(r io.Reader) (Metrics, error) {
	m := Metrics{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("%q is no sample", line)
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no sample: %w", line, err)
		}
		m[line[:at]] = v
	}
	return m, lines.Err()
}

// Sum adds up a metric over its labels.
func (m Metrics) Sum(name string) float64 {
	sum := m[name]
	for sample, v := range m {
		if strings.HasPrefix(sample, name) && len(sample) > len(name) && sample[len(name)] == '{' {
			sum += v
		}
	}
	return sum
}

// PeakMemory returns the process's peak physical memory in bytes, including the pages of its program; 0 where the system does not report it.
func (p *Process) PeakMemory() int64 { return p.readMemory("VmHWM:") }

// PeakData is PeakMemory without the pages of the program and other files, which the system reclaims when it needs memory.
func (p *Process) PeakData() int64 { return max(0, p.readMemory("VmHWM:")-p.readMemory("RssFile:")) }

// readMemory returns the value of a line of proc_pid_status(5), in bytes.
func (p *Process) readMemory(name string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, name+" %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

// CPUTime returns the CPU time that the process has used so far, in user and system mode, to a hundredth of a second (proc_pid_stat(5),
// fields 14 and 15); 0 where the system does not report it.
func (p *Process) CPUTime() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses, which may contain spaces.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system = 14 - 3, 15 - 3
	if len(fields) <= system {
		return 0
	}
	ticks := 0
	for _, field := range []string{fields[user], fields[system]} {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0
		}
		ticks += n
	}
	const aSecond = 100 // USER_HZ on every Linux that Go runs on
	return time.Duration(ticks) * time.Second / aSecond
}
