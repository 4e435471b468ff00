package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/entropy"
	"scribe/internal/format/pointer"
	spoollayout "scribe/scribed/spool/layout"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/layout"
)

// drawEncrypted makes a seed draw encryption.
const drawEncrypted = "encrypted"

// drawEncryption encrypts some categories of every third seed, or always. Batchers and read proxies have keys then, and so has every other agent, each
// its own: such an agent has a spool on its disk, which is encrypted.
func (p *plan) drawEncryption(rng *rand.Rand, always bool) {
	if rng.IntN(3) > 0 && !always {
		return
	}
	p.Processes = slices.Clone(p.Processes) // it is one of layouts
	for i := range p.Processes {
		p.Processes[i].Keys = rng.IntN(2) == 0 || !p.Processes[i].isAgent()
	}
	for i := range p.Categories {
		p.Categories[i].Encrypted = rng.IntN(2) == 0
	}
}

// isAgent reports whether the process is an agent, and nothing else.
func (x *processPlan) isAgent() bool { return slices.Equal(x.Roles, []app.Role{app.Scribed}) }

// simulatedKeys is a service with one key, of its name.
type simulatedKeys string

func (k simulatedKeys) Current(context.Context) (string, error) { return string(k), nil }

func (k simulatedKeys) Wrap(_ context.Context, key []byte, label string) (string, []byte, error) {
	return string(k), slices.Concat([]byte(string(k)+"|"+label+"|"), key), nil
}

func (k simulatedKeys) Unwrap(_ context.Context, name string, wrapped []byte, label string) ([]byte, error) {
	key, ok := bytes.CutPrefix(wrapped, []byte(string(k)+"|"+label+"|"))
	if !ok || name != string(k) {
		return nil, fmt.Errorf("%w: it was wrapped with %s", encryption.ErrWrapped, name)
	}
	return key, nil
}

// cellKeys are those of the processes of the cell.
const cellKeys = simulatedKeys("cell")

// openWrapper returns what wraps the keys of the process: one for all of the cell, and one of its own for an agent.
func (p *process) openWrapper(string, *entropy.Source) (encryption.Wrapper, error) {
	if p.plan.isAgent() {
		return simulatedKeys(p.plan.Name), nil
	}
	return cellKeys, nil
}

// readBlock returns the block of a pointer, as it is after decompression.
func (w *world) readBlock(ctx context.Context, p *pointer.Pointer) ([]byte, error) {
	stored, err := layout.ReadBlock(ctx, w.store.blobs, p)
	if err == nil && p.Codec.IsEncrypted() {
		var keys *encryption.Keys
		if keys, err = encryption.NewKeys(encryption.Config{Store: w.store.blobs, Wrapper: cellKeys}); err != nil {
			return nil, err
		}
		defer keys.Close()
		stored, err = keys.DecryptBlock(ctx, p.Codec, stored, int(p.BlockRawLen))
	}
	if err != nil {
		return nil, err
	}
	return layout.Decompress(nil, p.Codec.Compression(), stored, int(p.BlockRawLen))
}

// verifyEncryption: no payload of an encrypted category is in the store as it was, and no segment of an agent with keys has records that are not encrypted.
func (w *world) verifyEncryption() {
	ctx := context.Background()
	encrypted := 0
	for info, err := range w.store.blobs.List(ctx, pointer.KeyRoot) {
		if err != nil {
			w.violation("list blobs: %v", err)
			return
		}
		footer, err := layout.ReadFooter(ctx, w.store.blobs, info.Key)
		if err != nil {
			continue // verifyBlobs looks at those that should be there
		}
		for i := range footer.Entries {
			e := &footer.Entries[i]
			at := slices.IndexFunc(w.plan.Categories, func(c categoryPlan) bool { return c.Name == e.Category })
			switch {
			case at < 0 || !w.plan.Categories[at].Encrypted:
			case e.Pointer.Codec.IsEncrypted():
				encrypted++
			default:
				w.violation("blob %s has a payload of %s that is not encrypted", info.Key, e.Category)
			}
		}
	}
	segments := 0
	for _, p := range w.processes {
		if p.plan.Keys && p.plan.isAgent() {
			segments += w.verifySegments(p)
		}
	}
	if slices.ContainsFunc(w.plan.Processes, func(x processPlan) bool { return x.Keys }) {
		w.note("encrypted: %d payloads in blobs, %d segments", encrypted, segments)
	}
}

// verifySegments returns how many segments an agent has.
func (w *world) verifySegments(p *process) (n int) {
	fsys := p.disk.mount()
	names, err := fsys.List(agentSpool)
	if err != nil {
		w.note("%s has no spool: %v", p.plan.Name, err)
		return 0
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".segment") {
			continue
		}
		f, err := fsys.Open(fsys.PathJoin(agentSpool, name))
		if err != nil {
			continue // removed meanwhile
		}
		head := make([]byte, 8)
		_, err = io.ReadFull(f, head)
		_ = f.Close() // it was only read
		if err != nil || head[0] == 0 {
			continue // it is being made
		}
		n++
		if v := binary.LittleEndian.Uint32(head[4:]); v != spoollayout.VersionEncrypted {
			w.violation("%s has a segment of version %d: its records are not encrypted", p.plan.Name, v)
		}
	}
	return n
}

// agentSpool is the folder of the spool of an agent that has one.
const agentSpool = "/data/spool"
