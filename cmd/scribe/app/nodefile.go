package app

import (
	"encoding/hex"
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
	"scribe/storage/metalog/pebblelog"
)

// nodeFile is what a node remembers of itself in DATA/node (docs/format/node.md). It is written before the node's etcd runs for the first
// time, so that a folder without it is that of a node that never took part in anything. A process whose metadata is in an etcd that others run has it, too.
type nodeFile struct {
	// Version of the format.
	Version int `json:"version"`
	// Name and Address of the node. A process over an etcd that others run has no address.
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	// Cell is the name of the cell, and Token tells its etcd from others.
	Cell  string `json:"cell"`
	Token string `json:"token"`
	// TLS means that the nodes' etcd speaks TLS. Its members know each other by URLs, which say so.
	TLS bool `json:"tls,omitempty"`
	// Cluster are the nodes that it began with.
	Cluster []string `json:"cluster,omitempty"`
	// Etcd are the URLs of the etcd that others run, and that has the metadata; empty for nodes.
	Etcd []string `json:"etcd,omitempty"`
	// Joined means that it came to a cell that was there.
	Joined bool `json:"joined,omitempty"`
	// Ready means that the cell was ready at least once: what the node had may have been acknowledged. It is written before the node serves.
	Ready bool `json:"ready"`
	// Adopts is the node whose folder has the metadata that the cell begins with; empty if it begins with none.
	Adopts string `json:"adopts,omitempty"`
	// Moved is in the file of that node from the moment on when its folder can't be used without the nodes any more.
	Moved *movedMetadata `json:"moved,omitempty"`
	// Detached means that the folder is that of a cell of one process again, with all that the nodes had.
	Detached bool `json:"detached,omitempty"`
}

// movedMetadata is where the cell's journal begins: pebblelog.Adoption.
type movedMetadata struct {
	Entry uint64 `json:"entry"`
	Chain string `json:"chain"`
	Time  int64  `json:"time"`
}

// Versions of the node file. Programs that know only the first must not start with what the second one has, nor those that know only nodes with what the third one has.
const (
	nodeFileVersion  = 1
	movedFileVersion = 2
	etcdFileVersion  = 3
)

// adoption returns where the journal begins.
func (m *movedMetadata) adoption() (at pebblelog.Adoption, err error) {
	at.Seq, at.Time = m.Entry, m.Time
	chain, err := hex.DecodeString(m.Chain)
	if err != nil || len(chain) != len(at.Chain) || m.Entry == 0 {
		return at, errors.New("it is damaged: it does not say where the journal begins")
	}
	copy(at.Chain[:], chain)
	return at, nil
}

// nodeFileName is its name in the data folder.
const nodeFileName = "node"

// decodeNodeFile reads the content of a node file.
func decodeNodeFile(text []byte) (*nodeFile, error) {
	f := new(nodeFile)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if f.Moved != nil {
		if _, err := f.Moved.adoption(); err != nil {
			return nil, err
		}
	}
	switch {
	case f.Version < nodeFileVersion || f.Version > etcdFileVersion:
		return nil, fmt.Errorf("its version is %d, and this program knows %d to %d: it was written by another version of the program", f.Version, nodeFileVersion, etcdFileVersion)
	case f.isEtcd() != (f.Version == etcdFileVersion):
		return nil, fmt.Errorf("it is damaged: only version %d, and each one of it, names an etcd that others run", etcdFileVersion)
	case f.Name == "" || f.Token == "" || !f.isEtcd() && (!nodeName.MatchString(f.Name) || f.Address == ""):
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
	switch {
	case f.isEtcd():
		f.Version = etcdFileVersion
	case f.Adopts != "" || f.Detached:
		f.Version = movedFileVersion
	}
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

// isEtcd reports whether the folder is that of a process whose metadata is in an etcd that others run.
func (f *nodeFile) isEtcd() bool { return len(f.Etcd) > 0 }

// isUnmoved reports whether the folder is to move, and has not: it starts alone as well.
func (f *nodeFile) isUnmoved() bool { return f.Adopts == f.Name && f.Moved == nil && !f.Ready }

// target is whose the folder's metadata is.
func (f *nodeFile) target() moveTarget {
	if f.isEtcd() {
		return toEtcd
	}
	return toNodes
}

// useError says that the folder's metadata is the nodes', or in etcd, and how it starts.
func (f *nodeFile) useError(data string) error {
	whose, flags := "node "+f.Name, fmt.Sprintf("--node %s --cluster %s", f.Name, strings.Join(f.Cluster, ","))
	if f.isEtcd() {
		whose, flags = "process "+f.Name+", whose metadata is in etcd", fmt.Sprintf("--etcd %s --cell %s", strings.Join(f.Etcd, ","), f.Cell)
	}
	what, back := "is that", "To get a cell of one process again: scribe node detach"
	switch {
	case f.isUnmoved():
		what, back = fmt.Sprintf("is to move to %s of cell %s, as that", f.target().name, f.Cell), "It has not changed: to give that up, remove "+filepath.Join(data, nodeFileName)
	case f.Adopts == f.Name:
		what = fmt.Sprintf("has moved to %s of cell %s, and is that", f.target().name, f.Cell)
	}
	return fmt.Errorf("%s %s of %s: start it with %s. %s", data, what, whose, flags, back)
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
