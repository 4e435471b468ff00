package powerdisk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Config configures a Disk.
type Config struct {
	// Dir is the empty folder where the disk is mounted.
	Dir string
	// Rand decides what a power loss keeps. New takes ownership of it.
	Rand *rand.Rand
}

// Disk is a mounted disk. It is safe for concurrent use, except PowerOff, PowerOn and Close.
type Disk struct {
	cfg    Config
	server *fuse.Server

	mu struct {
		sync.Mutex
		tree *fileTree
		// off means that the power is off, failing that syncs fail, full that there is no room.
		off, failing, full bool
		// losses counts power losses.
		losses int
	}
}

// Supported returns nil if this machine can mount a disk, else an error with the reason.
func Supported() error {
	if os.Getuid() != 0 {
		return errors.New("root, to mount a file system")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return fmt.Errorf("FUSE: %w", err)
	}
	return nil
}

// New mounts an empty disk.
func New(cfg Config) (*Disk, error) {
	d := &Disk{cfg: cfg}
	d.mu.tree = newTree(unixNano)
	return d, d.mountDisk()
}

func unixNano() int64 { return time.Now().UnixNano() }

func (d *Disk) mountDisk() error {
	server, err := fuse.NewServer(&mountedNode{RawFileSystem: fuse.NewDefaultRawFileSystem(), d: d}, d.cfg.Dir, &fuse.MountOptions{
		DirectMountStrict: true, FsName: "powerdisk", Name: "powerdisk", MaxWrite: 1 << 20, DisableXAttrs: true, DisableReadDirPlus: true, AllowOther: true,
	})
	if err != nil {
		return fmt.Errorf("powerdisk: mount on %s: %w", d.cfg.Dir, err)
	}
	go server.Serve() // ends with the mount, which Unmount waits for
	if err := server.WaitMount(); err != nil {
		return fmt.Errorf("powerdisk: mount on %s: %w", d.cfg.Dir, err)
	}
	d.server = server
	return nil
}

// unmountDisk unmounts the disk, also if processes still have files of it open.
func (d *Disk) unmountDisk() error {
	if d.server == nil {
		return nil
	}
	if err := syscall.Unmount(d.cfg.Dir, syscall.MNT_DETACH); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("powerdisk: unmount %s: %w", d.cfg.Dir, err)
	}
	d.server.Wait()
	d.server = nil
	return nil
}

// PowerOff turns the power off. It decides what the disk keeps. Every later call of a process fails, so no process can acknowledge
// anything on the strength of a sync that did not happen.
func (d *Disk) PowerOff() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.off {
		return
	}
	d.mu.off = true
	d.mu.losses++
	d.mu.tree = d.mu.tree.powerLoss(d.cfg.Rand)
}

// PowerOn mounts the data that the disk kept. The processes that had files open must have ended.
func (d *Disk) PowerOn() error {
	if err := d.unmountDisk(); err != nil {
		return err
	}
	d.mu.Lock()
	d.mu.off = false
	d.mu.Unlock()
	return d.mountDisk()
}

// FailSyncs makes every later sync fail with EIO, or succeed again. A failed sync makes only a part of its data durable; the rest is
// lost with the next power loss even if another sync succeeds, although processes see it until then.
func (d *Disk) FailSyncs(fail bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.failing = fail
}

// Fill leaves no room for anything new, or makes room again. What is written over older data needs none.
func (d *Disk) Fill(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.full = full
}

// Close unmounts the disk; its content is gone.
func (d *Disk) Close() error { return d.unmountDisk() }
