package consumer_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports: a program that reads messages links nothing that only columns need.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "scribe/consumer").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		for _, heavy := range []string{"github.com/apache/", "google.golang.org/grpc", "github.com/twmb/avro", "scribe/columnar", "scribe/consumer/columns"} {
			if strings.HasPrefix(pkg, heavy) {
				t.Errorf("consumer links %s", pkg)
			}
		}
	}
}
