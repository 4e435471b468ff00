package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"scribe/internal/testkit/sample"
)

// Workload is a set of messages that is written over and over.
type Workload struct {
	Name string
	// Messages are written in order, and again from the first.
	Messages [][]byte
	// Bytes of all Messages.
	Bytes int
}

// workloads are the ones that can be measured, by name.
var workloads = map[string]func() Workload{
	"100b":       func() Workload { return cutMessages("100b", sample.AccessLog(), 100) },
	"access-log": func() Workload { return splitLines("access-log", sample.AccessLog()) },
	"10kb":       func() Workload { return cutMessages("10kb", sample.NginxStatus(), 10_000) },
}

// WorkloadNames lists the names in order of message size.
func WorkloadNames() []string { return []string{"100b", "access-log", "10kb"} }

// NewWorkload returns a workload by name.
func NewWorkload(name string) (Workload, error) {
	build, ok := workloads[name]
	if !ok {
		return Workload{}, fmt.Errorf("unknown workload %q: the workloads are %s", name, strings.Join(WorkloadNames(), ", "))
	}
	return build(), nil
}

// splitLines is a workload of lines of text.
func splitLines(name string, text []byte) Workload {
	return newWorkload(name, bytes.Split(bytes.TrimSuffix(text, []byte{'\n'}), []byte{'\n'}))
}

// cutMessages slices real text into messages of n bytes, in a fixed random order so that neighbours are not continuations of each other.
func cutMessages(name string, text []byte, n int) Workload {
	messages := slices.Collect(slices.Chunk(text, n))
	if len(messages[len(messages)-1]) < n {
		messages = messages[:len(messages)-1]
	}
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible on purpose
	rng.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	return newWorkload(name, messages)
}

func newWorkload(name string, messages [][]byte) Workload {
	w := Workload{Name: name, Messages: messages}
	for _, m := range messages {
		w.Bytes += len(m)
	}
	return w
}
