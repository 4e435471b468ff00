// Package overlay lets go build programs whose code differs from that of the repository, which stays as it is.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Change replaces a text of the program.
type Change struct {
	// File is relative to the repository's root. Before occurs in it exactly once, and is replaced by After.
	File, Before, After string
}

// apply returns the text with the change.
func (c Change) apply(text string) (string, error) {
	if n := strings.Count(text, c.Before); n != 1 {
		return "", fmt.Errorf("%q, which is to be replaced, occurs %d times in %s, want once: adapt the change to the program", c.Before, n, c.File)
	}
	return strings.Replace(text, c.Before, c.After, 1), nil
}

// Write applies changes, one after another, and writes the result into an empty folder. It returns the file that `go build -overlay` wants.
func Write(dir, root string, changes ...Change) (list string, err error) {
	texts := map[string]string{}
	for _, c := range changes {
		text, ok := texts[c.File]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, c.File))
			if err != nil {
				return "", err
			}
			text = string(read)
		}
		if texts[c.File], err = c.apply(text); err != nil {
			return "", err
		}
	}
	replace := map[string]string{}
	for file, text := range texts {
		changed := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(file)))
		replace[filepath.Join(root, file)] = changed
		err = errors.Join(err, os.WriteFile(changed, []byte(text), 0o600))
	}
	list = filepath.Join(dir, "overlay.json")
	text, marshalErr := json.Marshal(map[string]any{"Replace": replace})
	return list, errors.Join(err, marshalErr, os.WriteFile(list, text, 0o600))
}
