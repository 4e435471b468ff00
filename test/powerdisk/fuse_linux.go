package powerdisk

import (
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// mountedNode answers the kernel's requests for one mount. Node ids are the kernel's. Handles are not used: a node stays known until
// the power is off, so processes that have a removed file open can use it. Closing a file does nothing, as the default does.
type mountedNode struct {
	fuse.RawFileSystem

	d *Disk
}

// cached is how long the kernel may cache names and attributes: only the kernel changes the disk while it is mounted.
const cached = time.Minute

// with runs fn with the node of a request, unless the power is off.
func (m *mountedNode) with(id uint64, fn func(t *fileTree, n *fileNode) fuse.Status) fuse.Status {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.d.mu.off {
		return fuse.EIO
	}
	n := m.d.mu.tree.nodes[id]
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	return fn(m.d.mu.tree, n)
}

// withDir is with for a folder.
func (m *mountedNode) withDir(id uint64, fn func(t *fileTree, dir *fileNode) fuse.Status) fuse.Status {
	return m.with(id, func(t *fileTree, n *fileNode) fuse.Status {
		if !n.isDir() {
			return fuse.ENOTDIR
		}
		return fn(t, n)
	})
}

func fillAttributes(n *fileNode, out *fuse.Attr) {
	*out = fuse.Attr{Ino: n.id, Mode: n.mode | syscall.S_IFDIR, Nlink: 1, Blksize: pageSize}
	if !n.isDir() {
		out.Mode = n.mode | syscall.S_IFREG
		out.Size = uint64(n.content.live.size) //nolint:gosec // not negative
		out.Blocks = uint64(len(n.content.live.pages)) * (pageSize / sectorSize)
	}
	at := time.Unix(0, n.modified)
	out.SetTimes(&at, &at, &at)
}

func fillEntry(n *fileNode, out *fuse.EntryOut) {
	out.NodeId, out.Generation = n.id, 1
	out.SetEntryTimeout(cached)
	out.SetAttrTimeout(cached)
	fillAttributes(n, &out.Attr)
}

// Lookup implements fuse.RawFileSystem, as do the methods below.
func (m *mountedNode) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return m.withDir(h.NodeId, func(_ *fileTree, dir *fileNode) fuse.Status {
		n := dir.live[name]
		if n == nil {
			return fuse.ENOENT
		}
		fillEntry(n, out)
		return fuse.OK
	})
}

// GetAttr returns the attributes for stat.
func (m *mountedNode) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		out.SetTimeout(cached)
		fillAttributes(n, &out.Attr)
		return fuse.OK
	})
}

// SetAttr changes a length or permissions.
func (m *mountedNode) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		if mode, ok := in.GetMode(); ok {
			n.mode = mode
		}
		if size, ok := in.GetSize(); ok {
			if n.isDir() {
				return fuse.Status(syscall.EISDIR)
			}
			n.content.setSize(int64(size)) //nolint:gosec // the kernel's, not negative
		}
		n.modified = unixNano()
		out.SetTimeout(cached)
		fillAttributes(n, &out.Attr)
		return fuse.OK
	})
}

// Access allows everything.
func (m *mountedNode) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.OK }

// makeNode adds a node to a folder.
func (m *mountedNode) makeNode(id uint64, name string, isDir bool, mode uint32, out *fuse.EntryOut) fuse.Status {
	return m.withDir(id, func(t *fileTree, dir *fileNode) fuse.Status {
		if dir.live[name] != nil {
			return fuse.Status(syscall.EEXIST)
		}
		if m.d.mu.full {
			return fuse.Status(syscall.ENOSPC)
		}
		n := t.newNode(isDir, mode&0o7777)
		t.applyChange(nameChange{{dir, name, n}})
		fillEntry(n, out)
		return fuse.OK
	})
}

// Mkdir makes a folder.
func (m *mountedNode) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return m.makeNode(in.NodeId, name, true, in.Mode, out)
}

// Create makes a file and opens it.
func (m *mountedNode) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return m.makeNode(in.NodeId, name, false, in.Mode, &out.EntryOut)
}

// removeName removes a name from a folder.
func (m *mountedNode) removeName(id uint64, name string, isDir bool) fuse.Status {
	return m.withDir(id, func(t *fileTree, dir *fileNode) fuse.Status {
		switch n := dir.live[name]; {
		case n == nil:
			return fuse.ENOENT
		case n.isDir() && !isDir:
			return fuse.Status(syscall.EISDIR)
		case !n.isDir() && isDir:
			return fuse.ENOTDIR
		case n.isDir() && len(n.live) > 0:
			return fuse.Status(syscall.ENOTEMPTY)
		}
		t.applyChange(nameChange{{dir, name, nil}})
		return fuse.OK
	})
}

// Unlink removes a file's name.
func (m *mountedNode) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return m.removeName(h.NodeId, name, false)
}

// Rmdir removes an empty folder.
func (m *mountedNode) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return m.removeName(h.NodeId, name, true)
}

// Rename moves a name, and replaces an existing one.
func (m *mountedNode) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return m.withDir(in.NodeId, func(t *fileTree, dir *fileNode) fuse.Status {
		target := t.nodes[in.Newdir]
		n := dir.live[from]
		switch {
		case target == nil || n == nil:
			return fuse.ENOENT
		case in.Flags != 0: // RENAME_NOREPLACE and similar
			return fuse.EINVAL
		}
		if over := target.live[to]; over != nil && over.isDir() && len(over.live) > 0 {
			return fuse.Status(syscall.ENOTEMPTY)
		}
		t.applyChange(nameChange{{dir, from, nil}, {target, to, n}})
		return fuse.OK
	})
}

// Link gives a file another name.
func (m *mountedNode) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return m.withDir(in.NodeId, func(t *fileTree, dir *fileNode) fuse.Status {
		n := t.nodes[in.Oldnodeid]
		switch {
		case n == nil:
			return fuse.ENOENT
		case dir.live[name] != nil:
			return fuse.Status(syscall.EEXIST)
		}
		t.applyChange(nameChange{{dir, name, n}})
		fillEntry(n, out)
		return fuse.OK
	})
}

// Open opens a file.
func (m *mountedNode) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
		if in.Flags&syscall.O_TRUNC != 0 && !n.isDir() {
			n.content.setSize(0)
		}
		return fuse.OK
	})
}

// Read returns a part of a file.
func (m *mountedNode) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	read := 0
	status := m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		if n.isDir() {
			return fuse.Status(syscall.EISDIR)
		}
		read = n.content.readAt(buf[:min(int(in.Size), len(buf))], int64(in.Offset)) //nolint:gosec // the kernel's, not negative
		return fuse.OK
	})
	return fuse.ReadResultData(buf[:read]), status
}

// Write changes a part of a file, in memory.
func (m *mountedNode) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	status := m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		if m.d.mu.full && !n.content.holds(int64(len(data)), int64(in.Offset)) { //nolint:gosec // the kernel's, not negative
			return fuse.Status(syscall.ENOSPC)
		}
		n.content.writeAt(data, int64(in.Offset)) //nolint:gosec // the kernel's, not negative
		n.modified = unixNano()
		return fuse.OK
	})
	return uint32(len(data)), status //nolint:gosec // at most MaxWrite
}

// Fallocate makes a file longer.
func (m *mountedNode) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		const keepSize = 1
		switch end := int64(in.Offset + in.Length); { //nolint:gosec // the kernel's, not negative
		case in.Mode&^keepSize != 0:
			return fuse.Status(syscall.EOPNOTSUPP)
		case m.d.mu.full && end > n.content.live.size:
			return fuse.Status(syscall.ENOSPC)
		case in.Mode == 0 && end > n.content.live.size:
			n.content.setSize(end)
		}
		return fuse.OK
	})
}

// Fsync makes a file's content durable.
func (m *mountedNode) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return m.with(in.NodeId, func(_ *fileTree, n *fileNode) fuse.Status {
		if m.d.mu.failing {
			n.content.forgetDirty(m.d.cfg.Rand)
			return fuse.EIO
		}
		n.content.syncPages()
		return fuse.OK
	})
}

// FsyncDir makes a folder's names durable.
func (m *mountedNode) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return m.withDir(in.NodeId, func(t *fileTree, dir *fileNode) fuse.Status {
		if m.d.mu.failing {
			return fuse.EIO
		}
		t.syncDir(dir)
		return fuse.OK
	})
}

// OpenDir opens a folder.
func (m *mountedNode) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	return m.withDir(in.NodeId, func(*fileTree, *fileNode) fuse.Status { return fuse.OK })
}

// ReadDir lists a folder. An offset is an index into the sorted names.
func (m *mountedNode) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return m.withDir(in.NodeId, func(_ *fileTree, dir *fileNode) fuse.Status {
		names := slices.Sorted(maps.Keys(dir.live))
		for i := min(int(in.Offset), len(names)); i < len(names); i++ { //nolint:gosec // a place that was given out here
			n := dir.live[names[i]]
			mode := uint32(syscall.S_IFREG)
			if n.isDir() {
				mode = syscall.S_IFDIR
			}
			if !out.AddDirEntry(fuse.DirEntry{Name: names[i], Ino: n.id, Mode: mode, Off: uint64(i + 1)}) { //nolint:gosec // a place
				break
			}
		}
		return fuse.OK
	})
}

// StatFs returns the total and the free space.
func (m *mountedNode) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const blocks = 1 << 20
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	used := uint64(m.d.mu.tree.usedBytes() / pageSize) //nolint:gosec // not negative
	if m.d.mu.full {
		used = blocks
	}
	*out = fuse.StatfsOut{Blocks: blocks, Bfree: blocks - min(used, blocks), Bavail: blocks - min(used, blocks), Bsize: pageSize, Frsize: pageSize, NameLen: 255}
	return fuse.OK
}
