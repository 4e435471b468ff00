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

// Config says where a disk is mounted.
type Config struct {
	// Dir is an empty folder.
	Dir string
	// Rand draws what a power loss keeps. It belongs to the disk from now on.
	Rand *rand.Rand
}

// Disk is a mounted disk. It is safe for concurrent use, but for PowerOff, PowerOn and Close.
type Disk struct {
	cfg    Config
	server *fuse.Server

	mu struct {
		sync.Mutex
		tree *fileTree
		// off says that the power is gone, failing that syncs fail.
		off, failing bool
		// losses is how many power losses there were.
		losses int
	}
}

// Supported says whether this machine can mount a disk.
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

// unmountDisk takes the disk away, also from processes that still hold it open.
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

// PowerOff takes the power away. What the disk keeps is decided at this moment; every call of a process fails from now on, so nothing
// that it says afterwards rests on a sync that did not happen.
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

// PowerOn mounts what was kept. The processes that had files open must have ended.
func (d *Disk) PowerOn() error {
	if err := d.unmountDisk(); err != nil {
		return err
	}
	d.mu.Lock()
	d.mu.off = false
	d.mu.Unlock()
	return d.mountDisk()
}

// FailSyncs lets every sync fail with EIO from now on, or no more. A failed sync leaves a part of what it was for on the disk; the
// rest is lost with the next power loss even if another sync succeeds, although processes see it until then.
func (d *Disk) FailSyncs(fail bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.failing = fail
}

// Close unmounts the disk; its content is gone.
func (d *Disk) Close() error { return d.unmountDisk() }
