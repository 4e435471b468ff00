package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/recovery"
	"scribe/consumer"
	"scribe/internal/base/durable"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/retention"
	"scribe/storage/blob/layout"
	"scribe/test/history"
)

// recoveries is what the world knows of the recoveries that its operator made.
type recoveries struct {
	// one is held by the operator.
	one sync.Mutex
	// count grows when metadata is lost: from then on persisted times may be those of the blobs.
	count atomic.Int64
	mu    sync.Mutex
	// base is where the messages of a sequenced category begin since it was sequenced anew.
	base map[string]uint64
	// lost are categories that had left no trace: neither a blob nor a copy.
	lost map[string]bool
	// widened are categories whose schema got another column, or is about to.
	widened map[string]bool
}

// hasLost reports whether a category was lost, since nothing of it was committed when the metadata was. Who follows it must begin again.
func (r *recoveries) hasLost(category string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost[category]
}

// noteWidened notes that the schema of a category gets another column: who gives it back its schemas gives it both.
func (r *recoveries) noteWidened(category string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.widened == nil {
		r.widened = map[string]bool{}
	}
	r.widened[category] = true
}

// schemasOf returns the schemas that a category had, in their order.
func (w *world) schemasOf(x *categoryPlan) []string {
	first := x.schema()
	if first == "" {
		return nil
	}
	w.recovery.mu.Lock()
	defer w.recovery.mu.Unlock()
	if w.recovery.widened[x.Name] {
		return []string{first, first + restColumn}
	}
	return []string{first}
}

func (r *recoveries) noteLost(category string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == nil {
		r.lost = map[string]bool{}
	}
	r.lost[category] = true
}

// recoverMetadata loses the metadata, and has the operator do what docs/operations.md says: stop everything but agents and producers,
// recover from the blobs into a new folder, start the metadata on it, then the rest.
func (w *world) recoverMetadata(f faultPlan) {
	if !w.recovery.one.TryLock() {
		return // the operator is busy
	}
	defer w.recovery.one.Unlock()
	w.recovery.count.Add(1)
	w.history.Origin(uint64(time.Now().Add(-w.plan.maxSkew()).UnixMicro())) //nolint:gosec // after 1970
	metalog, control := w.first(app.Metalog), w.first(app.ControlPlane)
	lost := []*process{metalog}
	if control != metalog && f.Other != controlStore {
		lost = append(lost, control)
	}
	for _, p := range lost {
		p.mu.Lock()
		p.held = true
		p.mu.Unlock()
		p.kill(true)
		folders := []string{"metalog", "control"}
		if f.Other == controlStore {
			folders = folders[:1]
		}
		if err := p.disk.destroy(f.Keep, folders...); err != nil {
			w.note("%s: %v", p.plan.Name, err)
		}
	}
	time.Sleep(f.For)
	cell := slices.DeleteFunc(slices.Clone(w.processes), func(p *process) bool {
		return slices.Contains(lost, p) || slices.Equal(p.plan.Roles, []app.Role{app.Scribed})
	})
	var stopping sync.WaitGroup
	for _, p := range cell {
		stopping.Go(p.hold)
	}
	stopping.Wait()
	if !w.recoverOn(metalog, control, f) {
		return
	}
	w.releaseCell(metalog, control, cell, func(*process) string { return w.claims() })
}

// recoverControl loses the control store alone, and has the operator do what docs/operations.md says: stop everything but agents and
// producers, recover into another folder, and start the cell with the control store of that one, on the logs as they are.
func (w *world) recoverControl(f faultPlan) {
	if !w.recovery.one.TryLock() {
		return // the operator is busy
	}
	defer w.recovery.one.Unlock()
	w.recovery.count.Add(1)
	metalog, control := w.first(app.Metalog), w.first(app.ControlPlane)
	cell := slices.DeleteFunc(slices.Clone(w.processes), func(p *process) bool {
		return slices.Equal(p.plan.Roles, []app.Role{app.Scribed})
	})
	var stopping sync.WaitGroup
	for _, p := range cell {
		stopping.Go(p.hold)
	}
	stopping.Wait()
	fsys := control.disk.mount()
	if err := errors.Join(fsys.RemoveAll("/data/control"), durable.SyncFolder(fsys, "/data")); err != nil {
		w.note("%s: %v", control.plan.Name, err)
	}
	time.Sleep(f.For)
	o := app.RecoverOptions{To: "/new", Catalog: w.catalogFor(control, control, f), Logger: w.logger("recover")}
	// The logs remain: no blob's outcome is uncertain.
	o.Found = func(recovery.Finding) error { return nil }
	switch err := w.recoverPatiently(control, o, nil); {
	case errors.Is(err, app.ErrNothing):
	case err != nil:
		return
	default:
		fsys = control.disk.mount()
		err = errors.Join(fsys.Rename("/new/control", "/data/control"), durable.SyncFolder(fsys, "/data"), fsys.RemoveAll("/new"), durable.SyncFolder(fsys, "/"))
		if err != nil {
			w.violation("move the control store: %v", err)
		}
	}
	w.releaseCell(metalog, control, cell, func(p *process) string { return p.adopt })
}

// releaseCell starts the metadata, completes the categories, and then starts the rest of a cell that an operator has stopped.
func (w *world) releaseCell(metalog, control *process, cell []*process, adopt func(*process) string) {
	// Clients that found no category yet would take it for one that does not exist.
	c := w.newClient()
	defer c.transport.Close()
	w.net.set(func(n *network) { n.private[metalog.host], n.private[control.host] = c.host, c.host })
	metalog.release(adopt(metalog))
	if control != metalog {
		control.release(adopt(control))
	}
	w.completeCategories(c)
	w.net.set(func(n *network) { clear(n.private) })
	for _, p := range cell {
		if p != metalog && p != control {
			p.release(adopt(p))
		}
	}
}

// claims returns the claims of retention in the store as --retention-adopt takes them, "" without one.
func (w *world) claims() string {
	var keys []string
	for info, err := range w.store.blobs.List(context.Background(), retention.ClaimRoot) {
		if _, ok := retention.ClaimBoundary(info.Key); err == nil && ok {
			keys = append(keys, info.Key)
		}
	}
	return strings.Join(keys, ",")
}

// recoverOn recovers on the host of the metadata logs, as often as it takes, and puts the folders where they belong.
func (w *world) recoverOn(metalog, control *process, f faultPlan) bool {
	o := app.RecoverOptions{To: "/data", Catalog: w.catalogFor(metalog, control, f), Logger: w.logger("recover")}
	switch err := w.recoverPatiently(metalog, o, f.Cuts); {
	case errors.Is(err, app.ErrNothing):
		return true
	case err != nil:
		return false
	}
	if err := w.moveRest(metalog); err != nil {
		w.violation("move what was kept: %v", err)
	}
	if control == metalog {
		return true
	}
	if err := w.moveRest(control); err != nil {
		w.violation("move what was kept: %v", err)
	}
	if _, err := metalog.disk.copyTo(control.disk, "/data/control", "/data/control"); err != nil {
		w.violation("move the control store: %v", err)
	}
	return true
}

// recoverPatiently recovers on the host of a process, as often as it takes. It fails if there is nothing to recover, or with a violation.
func (w *world) recoverPatiently(p *process, o app.RecoverOptions, cuts []recoveryCut) error {
	for begin := time.Now(); ; time.Sleep(time.Second) {
		var cut recoveryCut
		if len(cuts) > 0 {
			cut, cuts = cuts[0], cuts[1:]
		}
		done, alive, err := p.recoverOnce(o, cut)
		switch {
		case alive && err == nil:
			w.checkRecovered(done)
			return nil
		case alive && errors.Is(err, app.ErrExists): // it was cut off when all was done
			return nil
		case alive && errors.Is(err, app.ErrNothing):
			w.note("there is nothing to recover")
			return err
		case time.Since(begin) > 2*liveness:
			w.violation("the metadata can't be recovered: %v", err)
			return errors.Join(err, errors.New("it took too long"))
		}
		w.note("recover: cut off %v: %v", !alive, err)
	}
}

// catalogFor puts the copy of the categories that a plan names on the disk on which is recovered. It returns its name there, "" for none.
func (w *world) catalogFor(metalog, control *process, f faultPlan) string {
	const name = "/copy"
	from, path := control, "/data/control"
	switch {
	case f.Other == "":
		return ""
	case f.Other != controlStore:
		from, path = w.process(f.Other), "/data/catalog"
	}
	if from == metalog {
		path = "/old" + path[len("/data"):]
	}
	done, err := from.disk.copyTo(metalog.disk, path, name)
	w.note("copy of the categories from %s: %v, %v", from.plan.Name, done, err)
	if !done || err != nil {
		return ""
	}
	return name
}

// moveRest moves the rest of a process's old data folder to the new one.
func (w *world) moveRest(p *process) error {
	fsys := p.disk.mount()
	names, err := fsys.List("/old")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err, durable.CreateFolder(fsys, "/data", 0o750)}
	for _, name := range names {
		if _, err := fsys.Stat("/data/" + name); errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fsys.Rename("/old/"+name, "/data/"+name))
		}
	}
	errs = append(errs, durable.SyncFolder(fsys, "/data"), fsys.RemoveAll("/old"), durable.SyncFolder(fsys, "/"))
	return errors.Join(errs...)
}

// recoverOnce runs a recovery on the host of a process, and cuts it off as the plan says. It reports whether it was not cut off.
func (p *process) recoverOnce(o app.RecoverOptions, cut recoveryCut) (done *app.Recovered, alive bool, err error) {
	p.w.net.powerOn(p.host)
	p.mu.Lock()
	ctx, l, host := p.beginLifeLocked()
	p.mu.Unlock()
	// A recovery closes stores that it has just opened. Pebble syncs a log that it closes under its mutex, so that must take no time.
	host.FS = p.disk.mountInstant()
	if o.Host = host; o.Found == nil {
		o.Found = p.w.noteFinding
	}
	o.Step = func(name string) error {
		if name == cut.Step {
			p.kill(cut.Power)
			return errors.New("cut off before " + name)
		}
		return nil
	}
	if cut.After > 0 {
		t := time.AfterFunc(cut.After, func() { p.kill(cut.Power) })
		defer t.Stop()
	}
	done, err = app.Recover(ctx, p.config(), o)
	p.mu.Lock()
	alive = p.life == l
	if alive {
		p.life = nil
	}
	p.mu.Unlock()
	if alive {
		p.sever(l)
	}
	return done, alive, err
}

// noteFinding notes which messages a recovery took as committed though nothing says so.
func (w *world) noteFinding(f recovery.Finding) error {
	switch f.Kind {
	case recovery.FindingUncertain:
		if err := w.noteUncertain(f.Key); err != nil {
			w.violation("blob %s, which is taken as committed: %v", f.Key, err)
		}
	case recovery.FindingVoid, recovery.FindingCategory:
	case recovery.FindingRestart:
		w.note("recover: %+v", f)
	default:
		w.violation("a recovery of blobs that are all there found %+v", f)
	}
	return nil
}

// noteUncertain tells the history of each message in a blob.
func (w *world) noteUncertain(key string) error {
	ctx := context.Background()
	footer, err := layout.ReadFooter(ctx, w.store.blobs, key)
	if err != nil {
		return err
	}
	for i := range footer.Entries {
		e := &footer.Entries[i]
		w.note("uncertain %s: run %x build %d, %s %v LSN %d epoch %d from %d, predicted %v, sequences %v", key, footer.History.Run, footer.History.Build,
			e.Category, e.Shard, e.LSN, e.Epoch, e.Start, e.Predicted, e.Pointer.Sequences)
		block, err := w.readBlock(ctx, &e.Pointer)
		if err != nil {
			return err
		}
		payload, err := layout.Payload(block, &e.Pointer)
		if err != nil {
			return err
		}
		for frame, err := range record.Split(payload) {
			var d record.Decoder
			if err == nil {
				_, err = d.Reset(frame.Bytes)
			}
			for r := (record.Record{}); err == nil && d.Next(&r); {
				if id, err := history.ParseID(r.Payload); err == nil {
					w.history.Uncertain(e.Category, id)
				}
			}
			if err = errors.Join(err, d.Err()); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRecovered: no blob was lost, so nothing is.
func (w *world) checkRecovered(r *app.Recovered) {
	w.note("recovered: %+v, %+v", r.BlobCounts, r.LogCounts)
	if !r.Whole() {
		w.violation("a recovery lost something: %+v, %+v", r.BlobCounts, r.LogCounts)
	}
}

// completeCategories does what an operator does about categories of which blobs do not tell all: it creates those that left no trace, and
// gives the others their schemas.
func (w *world) completeCategories(c *client) {
	control := rpc.NewControlClient(c.transport, w.first(app.ControlPlane).url())
	for _, x := range w.plan.Categories {
		err := patiently(func(ctx context.Context) error {
			_, err := control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: x.Name})
			if rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
				w.recovery.noteLost(x.Name)
				return nil
			}
			return err
		})
		if err == nil {
			err = createCategory(control, &x)
		}
		if err != nil {
			w.violation("category %s can't be created after a recovery: %v", x.Name, err)
			continue
		}
		if x.Keys != nil {
			// Who has lost the rule sets it again, with all shards that were added.
			if err := patiently(func(ctx context.Context) error { return w.setShards(ctx, control, x.Name) }); err != nil {
				w.violation("shards of %s after a recovery: %v", x.Name, err)
			}
		}
		for i, text := range w.schemasOf(&x) {
			err = patiently(func(ctx context.Context) error {
				res, err := control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: x.Name})
				known := res.GetCategory().GetSchema()
				if err != nil || known != "" && (i == 0 || strings.Contains(known, `"name":"rest"`)) {
					return err
				}
				_, err = control.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: x.Name, Schema: &text, ForceSchema: true})
				return err
			})
			if err != nil {
				w.violation("schema of %s after a recovery: %v", x.Name, err)
			}
		}
	}
}

// followRecovered lets readers begin anew when the metadata was recovered: what they get is ordered by the times that it has since.
func (w *world) followRecovered(ctx context.Context, readers *sync.WaitGroup) {
	if w.recovery.count.Load() == 0 {
		return
	}
	for _, x := range w.plan.Readers {
		if c := w.category(x.Category); c.Order != "sequenced" && c.Retention == 0 {
			x.Name += " anew"
			w.startFollower(ctx, readers, x)
		}
	}
}

// noteBase notes where the messages of a sequenced category begin.
func (w *world) noteBase(category string, offset uint64) {
	w.recovery.mu.Lock()
	defer w.recovery.mu.Unlock()
	if w.recovery.base == nil {
		w.recovery.base = map[string]uint64{}
	}
	w.recovery.base[category] = offset
}

// baseOf returns the number of the first message of a sequenced category, 0 if it was never sequenced anew.
func (w *world) baseOf(category string) uint64 {
	w.recovery.mu.Lock()
	defer w.recovery.mu.Unlock()
	return w.recovery.base[category]
}

// leftGap reports whether an error is a gap that a recovery left: a sequenced category is sequenced anew.
func (w *world) leftGap(category string, err error) bool {
	_, ok := errors.AsType[*consumer.GapError](err)
	return ok && w.recovery.count.Load() > 0 && w.category(category).Order == "sequenced"
}

// anew is below every number that messages get when a category is sequenced anew, and above all others.
const anew = 1 << 50

func (c recoveryCut) String() string {
	if c.Step != "" {
		return fmt.Sprintf("before %q, power %v", c.Step, c.Power)
	}
	return fmt.Sprintf("after %v, power %v", c.After, c.Power)
}
