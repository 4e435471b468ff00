package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"scribe/internal/base/atomicfile"
)

// maxID bounds a member's id in bytes (proto/scribe/v1/control.proto).
const maxID = 255

// memberID is the name of the process in the membership: the configured one, or one that is made once and kept in the data folder,
// so that a process that comes back after a crash gets its writer slot back, and with it its logs.
func memberID(c *Config) (string, error) {
	if c.ID != "" || !c.needsData() {
		if c.ID == "" {
			return newID(), nil
		}
		return c.ID, nil
	}
	path := filepath.Join(c.Data, "id")
	text, err := os.ReadFile(path)
	switch id := strings.TrimSpace(string(text)); {
	case err == nil && id != "" && len(id) <= maxID:
		return id, nil
	case err == nil && len(text) == 0: // a loss of power cut it
	case err == nil:
		return "", fmt.Errorf("%s holds no member id: remove it to get a new one", path)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	id := newID()
	// A process that loses its id takes another writer slot, of which there are not many.
	return id, atomicfile.WriteBytes(path, []byte(id+"\n"))
}

func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	return host[:min(len(host), 200)] + "-" + rand.Text()[:10]
}
