package producer_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestLinks: a program that only produces messages links no columnar library and no gRPC. Columns are package producer/columns.
func TestLinks(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, out)
	}
	for path := range strings.FieldsSeq(string(out)) {
		for _, banned := range []string{"apache/arrow", "google.golang.org/grpc", "avro", "parquet", "scribe/columnar"} {
			if strings.Contains(path, banned) {
				t.Errorf("the producer links %s", path)
			}
		}
	}
}
