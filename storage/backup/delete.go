package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"scribe/storage/blob"
)

// ErrBusy means that backups are made while some are to be deleted, or the other way round.
var ErrBusy = errors.New("backup: the store is in use")

// Kinds of uses of a store. An object under useRoot says that one goes on: it is put before the first look at the store, and whoever has put his own looks
// for those of the other kind. So of a backup and a deletion at the same time at least one gives way, and no file is removed that a new list names.
const (
	useCreate = "create"
	useDelete = "delete"
)

// useLimits are how long uses last at most. Older objects are of processes that have ended.
var useLimits = map[string]time.Duration{useCreate: 24 * time.Hour, useDelete: time.Hour}

// leaveTimeout bounds the removal of the object of a use that has ended.
const leaveTimeout = 10 * time.Second

// enterUse begins a use, which ends before others take it for abandoned. The caller ends it with leave.
func (b *Backups) enterUse(ctx context.Context, kind, name string) (_ context.Context, leave func() error, err error) {
	key := useRoot + kind + "-" + name
	if err := b.store.Put(ctx, key, []byte(kind)); err != nil {
		return nil, nil, fmt.Errorf("backup: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, useLimits[kind]/2)
	leave = func() error {
		cancel()
		ending, ended := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer ended()
		return b.store.Delete(ending, key)
	}
	for object, err := range b.store.List(ctx, useRoot) {
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("backup: %w", err), leave())
		}
		other, _, _ := strings.Cut(strings.TrimPrefix(object.Key, useRoot), "-")
		switch limit, known := useLimits[other]; {
		case !known || other == kind:
		case b.o.Now().Sub(object.Modified) > limit:
			err = b.store.Delete(ctx, object.Key)
		default:
			err = fmt.Errorf("%w: %s says that a process runs %s; try again when that has ended, after %v at the latest", ErrBusy, object.Key, other, limit)
		}
		if err != nil {
			return nil, nil, errors.Join(err, leave())
		}
	}
	return ctx, leave, nil
}

// Delete removes backups, and files that no backup needs any more and that are older than a day. It fails with ErrBusy while a backup is made, and with
// blob.ErrNotFound, before it has removed anything, if one of the names is none of a backup.
func (b *Backups) Delete(ctx context.Context, names ...string) (err error) {
	for _, name := range names {
		if _, err := b.store.Stat(ctx, listRoot+name); err != nil {
			return fmt.Errorf("backup %s: %w", name, err)
		}
	}
	ctx, leave, err := b.enterUse(ctx, useDelete, strings.ToLower(b.o.Random.Text()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	for _, name := range names {
		if err := b.store.Delete(ctx, listRoot+name); err != nil {
			return fmt.Errorf("delete backup %s: %w", name, err)
		}
	}
	return b.removeUnused(ctx)
}

// Prune deletes all but the newest backups of a store of payloads, and returns the names of those that it deleted. Those that can't be read are kept, and
// do not count.
func (b *Backups) Prune(ctx context.Context, store string, keep int) (deleted []string, err error) {
	all, err := b.List(ctx)
	if err != nil {
		return nil, err
	}
	deleted = Superfluous(slices.DeleteFunc(all, func(i Info) bool { return i.Manifest == nil || i.Manifest.Store != store }), keep)
	if len(deleted) == 0 {
		return nil, nil
	}
	return deleted, b.Delete(ctx, deleted...)
}

// Superfluous returns the names of all but the newest backups of each store of payloads, the oldest first, of a list by age. Those that can't be read are not among them.
func Superfluous(all []Info, keep int) (names []string) {
	kept := map[string]int{}
	for _, i := range slices.Backward(all) {
		if i.Manifest == nil {
			continue
		}
		if kept[i.Manifest.Store]++; kept[i.Manifest.Store] > keep {
			names = append(names, i.Name)
		}
	}
	slices.Reverse(names)
	return names
}

// removeUnused removes files that no list names. It removes none while a list can't be read.
func (b *Backups) removeUnused(ctx context.Context) error {
	used := map[string]bool{}
	all, err := b.List(ctx)
	if err != nil {
		return err
	}
	for _, info := range all {
		if info.Err != nil {
			return fmt.Errorf("nothing that backups had is removed, since backup %s can't be read, which may need it: %w", info.Name, info.Err)
		}
		for _, files := range [][]File{info.Manifest.Logs, info.Manifest.Control} {
			for _, f := range files {
				used[fileKey(f)] = true
			}
		}
	}
	for object, err := range b.store.List(ctx, fileRoot) {
		if err != nil {
			return fmt.Errorf("list the files of backups: %w", err)
		}
		if used[object.Key] || b.o.Now().Sub(object.Modified) < fileAge {
			continue
		}
		if err := b.store.Delete(ctx, object.Key); err != nil && !errors.Is(err, blob.ErrNotFound) {
			return fmt.Errorf("remove %s, which no backup needs: %w", object.Key, err)
		}
	}
	return nil
}
