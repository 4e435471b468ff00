package catalog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"scribe/internal/base/durable"
	"scribe/internal/role/quota"
	scribev1 "scribe/proto/scribe/v1"
)

// Layout of the file of the last quotas of tenants (docs/format/catalog.md), beside that of the categories: programs that know no quotas of tenants take no notice of it.
const (
	tenantsSuffix  = ".quotas"
	tenantsMagic   = "SCTQ"
	tenantsVersion = 1
	// tenantsHeader: magic 4, version 4, length 4.
	tenantsHeader = 12
	// maxFileTenants bounds the length of a header.
	maxFileTenants = 3 << 19 // 1.5 MiB
)

// toldTenants are the quotas of tenants as the control plane told them.
type toldTenants struct {
	set   *scribev1.TenantQuotas
	index *quota.Tenants
}

// Tenants returns the quotas of tenants. It takes no lock.
func (v *View) Tenants() *quota.Tenants {
	if t := v.tenants.Load(); t != nil {
		return t.index
	}
	return nil
}

func (v *View) takeTenants(set *scribev1.TenantQuotas) *toldTenants {
	t := &toldTenants{set: set, index: quota.NewTenants(set.GetQuotas())}
	v.tenants.Store(t)
	return t
}

// applyTenants takes the quotas of tenants that a message has, and reports whether it has any. v.mu is held.
func (v *View) applyTenants(msg *scribev1.WatchCategoriesResponse) (changed bool) {
	if msg.GetTenantQuotas() == nil {
		return false
	}
	v.takeTenants(msg.GetTenantQuotas())
	return true
}

// loadTenants takes the quotas of tenants of the file, if it is there. A damaged file is ignored: none are known then.
func (v *View) loadTenants() {
	if v.cfg.File == "" {
		return
	}
	set, err := ReadTenants(v.fileSystem(), v.cfg.File)
	switch {
	case err == nil:
		v.savedTenants = v.takeTenants(set)
	case !errors.Is(err, fs.ErrNotExist):
		v.logger.Error("last quotas of owners and prefixes ignored: the file cannot be read", "error", err)
	}
}

// saveTenants writes the file of the quotas of tenants, if they are not those that it has.
func (v *View) saveTenants() error {
	t := v.tenants.Load()
	if t == nil || t == v.savedTenants {
		return nil
	}
	b, err := encodeTenants(t.set)
	if err == nil {
		err = durable.ReplaceFile(v.fileSystem(), v.cfg.File+tenantsSuffix, func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("quotas of owners and prefixes: %w", err)
	}
	v.savedTenants = t
	return nil
}

func (v *View) fileSystem() vfs.FS {
	if v.cfg.FS != nil {
		return v.cfg.FS
	}
	return vfs.Default
}

// ReadTenants reads the quotas of tenants that a [View] keeps beside its file of the categories, at path. Where there is none it fails with [fs.ErrNotExist].
func ReadTenants(fsys vfs.FS, path string) (*scribev1.TenantQuotas, error) {
	path += tenantsSuffix
	f, err := fsys.Open(path)
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(io.LimitReader(f, tenantsHeader+maxFileTenants+4+1))
	if err != nil {
		return nil, fmt.Errorf("catalog: %s: %w", path, err)
	}
	set, err := decodeTenants(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

func encodeTenants(set *scribev1.TenantQuotas) ([]byte, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		return nil, err
	}
	if len(body) > maxFileTenants {
		return nil, fmt.Errorf("they take %d bytes, the limit is %d", len(body), maxFileTenants)
	}
	b := append(make([]byte, 0, tenantsHeader+len(body)+4), tenantsMagic...)
	b = binary.LittleEndian.AppendUint32(b, tenantsVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body))) //nolint:gosec // bounded above
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// decodeTenants decodes a file. The error wraps errDamaged.
func decodeTenants(b []byte) (*scribev1.TenantQuotas, error) {
	if len(b) < tenantsHeader+4 || !bytes.HasPrefix(b, []byte(tenantsMagic)) {
		return nil, fmt.Errorf("%w: want it to begin with %q and to have %d bytes at least", errDamaged, tenantsMagic, tenantsHeader+4)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != tenantsVersion {
		return nil, fmt.Errorf("%w: unknown version %d: a newer program may have written it", errDamaged, v)
	}
	end := len(b) - 4
	if n := binary.LittleEndian.Uint32(b[8:]); n > maxFileTenants || int(n) != end-tenantsHeader {
		return nil, fmt.Errorf("%w: its header says %d bytes, there are %d", errDamaged, n, end-tenantsHeader)
	}
	if binary.LittleEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
		return nil, fmt.Errorf("%w: its checksum does not match", errDamaged)
	}
	set := new(scribev1.TenantQuotas)
	if err := proto.Unmarshal(b[tenantsHeader:end], set); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return set, nil
}
