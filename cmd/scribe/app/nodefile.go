package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	scribev1 "scribe/proto/scribe/v1"
)

// nodeFile is what a node remembers of itself in DATA/node (docs/format/node.md). It is written before the node's etcd runs for the first
// time, so that a folder without it is that of a node that never took part in anything.
type nodeFile struct {
	// Version of the format.
	Version int `json:"version"`
	// Name and Address of the node.
	Name    string `json:"name"`
	Address string `json:"address"`
	// Cell is the name of the cell, and Token tells its etcd from others.
	Cell  string `json:"cell"`
	Token string `json:"token"`
	// Cluster are the nodes that it began with.
	Cluster []string `json:"cluster"`
	// Joined means that it came to a cell that was there.
	Joined bool `json:"joined,omitempty"`
	// Ready means that the cell was ready at least once: what the node had may have been acknowledged. It is written before the node serves.
	Ready bool `json:"ready"`
}

const nodeFileVersion = 1

// nodeFileName is its name in the data folder.
const nodeFileName = "node"

// decodeNodeFile reads the content of a node file.
func decodeNodeFile(text []byte) (*nodeFile, error) {
	f := new(nodeFile)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	switch {
	case f.Version != nodeFileVersion:
		return nil, fmt.Errorf("its version is %d, and this program knows %d: it was written by another version of the program", f.Version, nodeFileVersion)
	case !nodeName.MatchString(f.Name) || f.Address == "" || f.Token == "":
		return nil, errors.New("it is damaged: it names no node")
	}
	return f, nil
}

// readNodeFile returns what the node remembers; nil if it never began.
func readNodeFile(fsys vfs.FS, data string) (*nodeFile, error) {
	path := filepath.Join(data, nodeFileName)
	text, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, WithoutPath(err))
	}
	f, err := decodeNodeFile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// writeNodeFile makes what the node remembers durable.
func writeNodeFile(fsys vfs.FS, data string, f nodeFile) error {
	f.Version = nodeFileVersion
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(data, nodeFileName)
	err = durable.ReplaceFile(fsys, path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", path, WithoutPath(err))
	}
	return nil
}

// state is how far the node is, for the others.
func (f *nodeFile) state() scribev1.NodeState {
	switch {
	case f == nil:
		return scribev1.NodeState_NODE_STATE_EMPTY
	case f.Ready:
		return scribev1.NodeState_NODE_STATE_READY
	}
	return scribev1.NodeState_NODE_STATE_BEGUN
}

// etcdFolder is where a node's etcd keeps its data.
func etcdFolder(data string) string { return filepath.Join(data, "etcd") }

// hasMember reports whether the data folder has a member of etcd that has begun: etcd's own rule, a write-ahead log.
func hasMember(fsys vfs.FS, data string) (bool, error) {
	names, err := fsys.List(filepath.Join(etcdFolder(data), "member", "wal"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the folder of etcd: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".wal") {
			return true, nil
		}
	}
	return false, nil
}
