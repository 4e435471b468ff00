package follow

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strings"

	"scribe/internal/base/atomicfile"
)

// savedPosition is the state of a file that is kept across restarts. Times are Unix microseconds.
type savedPosition struct {
	File     fileID       `json:"file"`
	Path     string       `json:"path"`
	Position int64        `json:"position"`
	Skipping bool         `json:"skipping,omitempty"`
	Prints   fingerprints `json:"prints"`
	Seen     int64        `json:"seen"`
}

// maxPositions bounds a file of positions in bytes.
const maxPositions = 256 << 20

// positionsHeader begins a file of positions, version 1. The CRC32C of the following JSON, in hexadecimal, ends the line.
const positionsHeader = "scribe follow positions 1 "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodePositions(list []savedPosition) ([]byte, error) {
	body, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, "%s%08x\n", positionsHeader, crc32.Checksum(body, castagnoli)), body...), nil
}

var errPositions = errors.New("not a file of positions")

func decodePositions(b []byte) ([]savedPosition, error) {
	line, body, found := strings.Cut(string(b), "\n")
	sum, ok := strings.CutPrefix(line, positionsHeader)
	switch {
	case !found || !strings.HasPrefix(line, strings.TrimRight(positionsHeader, "1 ")):
		return nil, errPositions
	case !ok:
		return nil, fmt.Errorf("%w of a version that is known: %q", errPositions, line[:min(len(line), 60)])
	case sum != fmt.Sprintf("%08x", crc32.Checksum([]byte(body), castagnoli)):
		return nil, fmt.Errorf("%w: its checksum does not match", errPositions)
	}
	var list []savedPosition
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return nil, fmt.Errorf("%w: %w", errPositions, err)
	}
	for i := range list {
		if !list[i].isValid() {
			return nil, fmt.Errorf("%w: entry %d is impossible", errPositions, i)
		}
	}
	return list, nil
}

func (s *savedPosition) isValid() bool {
	ok := func(p fingerprint) bool {
		return p.Offset >= 0 && p.Len >= 0 && p.Len <= maxFingerprint && p.Offset <= s.Position-p.Len
	}
	return s.Position >= 0 && ok(s.Prints.Head) && ok(s.Prints.Tail)
}

// maxFingerprint is the largest Config.Fingerprint.
const maxFingerprint = 64 << 10

// loadPositions reads the positions, or those before the last save if the newest are damaged. first says that no positions were
// ever saved.
func loadPositions(path string) (list []savedPosition, first bool, damage error) {
	var errs []error
	missing := 0
	for _, name := range []string{path, path + previous} {
		b, err := readBounded(name)
		if err == nil {
			if list, err = decodePositions(b); err == nil {
				return list, false, errors.Join(errs...)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			missing++
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	return nil, missing == 2, errors.Join(errs...)
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxPositions {
		return nil, fmt.Errorf("%d bytes are more than a file of positions has", info.Size())
	}
	return os.ReadFile(path)
}

// previous is the suffix of the positions before the last save.
const previous = ".previous"

// savePositions replaces the positions: they are on disk when it returns, and a crash at any time leaves the old or the new ones.
func savePositions(path string, list []savedPosition) error {
	b, err := encodePositions(list)
	if err != nil {
		return err
	}
	// The old positions stay until the next save: they replace damaged newer ones.
	if err := os.Rename(path, path+previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.WriteBytes(path, b)
}
