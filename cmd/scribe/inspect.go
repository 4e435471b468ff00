package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/layout"
)

func newInspect() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "inspect",
		Short: "Show and check blobs, logs, frames, checkpoints, spools and dead letters, and find dangling data",
		Long: `Show stored data, as a JSON object per line. Damage is reported with its location, and sets the exit code 1; everything that is still
readable is shown.`,
		Example: `  scribe inspect log access --verify
  scribe inspect blob --data ./scribe-data
  scribe inspect dangling --data ./scribe-data`,
	}, newInspectBlob(), newInspectLog(), newInspectFrame(), newInspectCheckpoint(), newInspectSpool(), newInspectDeadLetters(), newInspectDangling())
}

// errDamaged ends a command whose output has named the damage.
var errDamaged = errors.New("damage was found; it is named above")

func newInspectBlob() *cobra.Command {
	var f serverFlags
	var quick bool
	cmd := &cobra.Command{
		Use:   "blob [KEY|FILE...]",
		Short: "Show and check blobs: the footer, every block, every frame",
		Long: `Show the payloads of blobs and check everything: the header, the footer, the checksum and decompression of each block, and each frame of
each payload. Of blocks that are encrypted only the checksum is checked, unless --encryption-key-file has the keys that they need. Without arguments the command checks every blob of the store. It only reads, and is safe while a server runs.`,
		Example: `  scribe inspect blob --data ./scribe-data
  scribe inspect blob ./scribe-data/blobs/blobs/72h/0192f0c1-7e1a-7c4e-9d5b-3f1f0a2b4c6d
  scribe inspect blob blobs/72h/0192f0c1-7e1a-7c4e-9d5b-3f1f0a2b4c6d --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe`,
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.Flags().BoolVar(&quick, "quick", false, "read the footer only")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := f.configure(cmd)
		if err != nil {
			return err
		}
		return inspectBlobs(cmd.Context(), c, args, quick, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

func inspectBlobs(ctx context.Context, c app.Config, args []string, quick bool, stdout, stderr io.Writer) (err error) {
	damaged := false
	withStore := func(c app.Config, fn func(store blob.Store, show func(key string) error) error) error {
		return withBlobs(ctx, c, func(store blob.Store) error {
			keys, err := inspectKeys(&c, store)
			if err != nil {
				return err
			}
			if keys != nil {
				defer keys.Close()
			}
			return fn(store, func(key string) error {
				bad, err := inspectBlob(ctx, store, key, keys, quick, stdout, stderr)
				damaged = damaged || bad
				return err
			})
		})
	}
	var keys []string
	for _, arg := range args {
		if _, _, err := pointer.ParseKey(arg); err == nil {
			keys = append(keys, arg)
			continue
		}
		root, key, err := splitBlobPath(arg)
		if err != nil {
			return usageError(err)
		}
		fileConfig := c
		fileConfig.Blobs = app.BlobConfig{Kind: "file", Path: root, KeyFile: c.Blobs.KeyFile}
		if err := withStore(fileConfig, func(_ blob.Store, show func(string) error) error { return show(key) }); err != nil {
			return err
		}
	}
	if len(keys) > 0 || len(args) == 0 {
		err = withStore(c, func(s blob.Store, show func(string) error) error {
			for _, key := range keys {
				if err := show(key); err != nil {
					return err
				}
			}
			if len(args) > 0 {
				return nil
			}
			for info, err := range s.List(ctx, "blobs/") {
				if err == nil {
					err = show(info.Key)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil && damaged {
		err = errDamaged
	}
	return err
}

// withBlobs runs fn over the store of a configuration, which must exist.
func withBlobs(ctx context.Context, c app.Config, fn func(blob.Store) error) error {
	if err := checkBlobs(c); err != nil {
		return err
	}
	store, err := app.OpenBlobs(ctx, c)
	if err != nil {
		return fmt.Errorf("blob store: %w", err)
	}
	return errors.Join(fn(store), store.Close())
}

// checkBlobs refuses a configuration that is invalid, or whose folder of blobs is not there: to open it would make it.
func checkBlobs(c app.Config) error {
	if err := c.ValidateBlobs(); err != nil || c.Blobs.Kind != "file" {
		return usageError(err)
	}
	if _, err := os.Stat(c.BlobPath()); err != nil {
		return missingError("blob store %s: %w; set its location with --data or --blob-path", c.BlobPath(), app.WithoutPath(err))
	}
	return nil
}

// missingError is an error of the file system, which has an exit code of its own when what was asked for is not there.
func missingError(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if errors.Is(err, fs.ErrNotExist) {
		return &codedError{code: exitNotFound, err: err}
	}
	return err
}

// splitBlobPath finds the store's folder and the key in the path of a blob's file.
func splitBlobPath(path string) (root, key string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", "", err
	}
	parts := strings.Split(filepath.ToSlash(abs), "/")
	if len(parts) > 3 {
		key = strings.Join(parts[len(parts)-3:], "/")
		if _, _, perr := pointer.ParseKey(key); perr == nil {
			return filepath.FromSlash(strings.Join(parts[:len(parts)-3], "/")), key, nil
		}
	}
	return "", "", fmt.Errorf("%s is neither a blob's key nor the path of its file: both end in blobs/CLASS/ID", path)
}

// whyClosed says why encrypted blocks were not decrypted.
func whyClosed(keys *encryption.Keys) string {
	if keys == nil {
		return "--encryption-key-file checks the rest"
	}
	return "their keys were deleted"
}

// inspectKeys returns the keys in a store; nil without a key file.
func inspectKeys(c *app.Config, store blob.Store) (*encryption.Keys, error) {
	if c.Blobs.KeyFile == "" {
		return nil, nil
	}
	keys, err := app.OpenKeys(c, store, app.Host{Now: time.Now}, nil, "")
	if err != nil {
		return nil, usageError(err)
	}
	return keys, nil
}

// inspectBlob shows one blob and reports whether it is damaged.
func inspectBlob(ctx context.Context, store blob.Store, key string, keys *encryption.Keys, quick bool, stdout, stderr io.Writer) (damaged bool, err error) {
	footer, ferr := layout.ReadFooter(ctx, store, key)
	if ferr == nil {
		lines := []any{blobJSON(key, footer)}
		for i := range footer.Entries {
			lines = append(lines, entryJSON(&footer.Entries[i]))
		}
		if err := printLines(stdout, lines...); err != nil {
			return false, err
		}
	}
	verr := ferr
	if !quick {
		var decrypter layout.Decrypter
		if keys != nil {
			decrypter = keys
		}
		var closed int
		if closed, verr = layout.Verify(ctx, store, key, decrypter); closed > 0 {
			fmt.Fprintf(stderr, "blob %s: encrypted blocks of which only the checksums were checked: %d; %s\n", key, closed, whyClosed(keys))
		}
	}
	if errors.Is(verr, layout.ErrDamaged) {
		fmt.Fprintln(stderr, verr)
		return true, nil
	}
	return false, verr
}

type blobLine struct {
	Blob     string    `json:"blob"`
	Version  int       `json:"version"`
	Class    uint32    `json:"class_hours"`
	Region   string    `json:"region,omitempty"`
	Created  time.Time `json:"created"`
	Blocks   int       `json:"blocks"`
	Payloads int       `json:"payloads"`
	Run      string    `json:"run,omitempty"`
	Build    uint64    `json:"build,omitempty"`
}

func blobJSON(key string, f *layout.Footer) blobLine {
	return blobLine{Blob: key, Version: int(f.Version), Run: runName(f.History.Run), Build: f.History.Build, Class: f.Class, Region: f.Region, Created: timeOf(f.Created), Blocks: len(f.Blocks), Payloads: len(f.Entries)}
}

// runName is how a writer's run is shown.
func runName(run uint64) string {
	if run == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", run)
}

type pointerLine struct {
	Category    string    `json:"category,omitempty"`
	Shard       string    `json:"shard"`
	Epoch       uint64    `json:"epoch,omitempty"`
	LSN         uint64    `json:"lsn"`
	Predicted   bool      `json:"predicted,omitempty"`
	Persisted   string    `json:"persisted,omitempty"`
	Blob        string    `json:"blob,omitempty"`
	Codec       string    `json:"codec"`
	BlockOffset uint64    `json:"block_offset"`
	BlockLen    uint32    `json:"block_length"`
	BlockRawLen uint32    `json:"block_raw_length"`
	BlockCRC    string    `json:"block_crc32c"`
	Offset      uint32    `json:"offset"`
	Length      uint32    `json:"length"`
	Frames      uint32    `json:"frames"`
	Messages    uint32    `json:"messages"`
	MinTime     time.Time `json:"min_time"`
	MaxTime     time.Time `json:"max_time"`
	Sequences   int       `json:"sequence_runs,omitempty"`
}

func pointerJSON(p *pointer.Pointer) pointerLine {
	return pointerLine{
		Codec: p.Codec.String(), BlockOffset: p.BlockOffset, BlockLen: p.BlockLen, BlockRawLen: p.BlockRawLen, BlockCRC: fmt.Sprintf("%08x", p.BlockCRC),
		Offset: p.Offset, Length: p.Length, Frames: p.Frames, Messages: p.Messages, MinTime: timeOf(p.MinTime), MaxTime: timeOf(p.MaxTime),
		Sequences: len(p.Sequences),
	}
}

func entryJSON(e *layout.Entry) pointerLine {
	line := pointerJSON(&e.Pointer)
	line.Category, line.Shard, line.Epoch, line.LSN = e.Category, e.Shard.String(), e.Epoch, uint64(e.LSN)
	line.Predicted = e.Predicted
	return line
}

func newInspectFrame() *cobra.Command {
	return &cobra.Command{
		Use:   "frame [FILE...]",
		Short: "Show and check files that consist of frames",
		Example: `  scribe inspect frame captured.bin
  cat captured.bin | scribe inspect frame`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"-"}
			}
			var errs []error
			for _, name := range args {
				in, err := openInput(cmd.InOrStdin(), name)
				if err != nil {
					return err
				}
				errs = append(errs, inspectFrames(in.content, name, cmd.OutOrStdout()), in.close())
			}
			return errors.Join(errs...)
		},
	}
}

// maxInspect bounds the file of frames that is read into memory.
const maxInspect = 1 << 30

func inspectFrames(in io.Reader, name string, stdout io.Writer) error {
	b, err := io.ReadAll(io.LimitReader(in, maxInspect+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, app.WithoutPath(err))
	}
	if len(b) > maxInspect {
		return fmt.Errorf("%s: the file is larger than %v: split it between two frames", name, units.Bytes(maxInspect))
	}
	for f, err := range record.Split(b) {
		if err != nil {
			return fmt.Errorf("%s: frame at byte %d: %w", name, f.Offset, err)
		}
		line := struct {
			Offset        int       `json:"offset"`
			Length        int       `json:"length"`
			Category      string    `json:"category"`
			Shard         uint32    `json:"shard"`
			Encoding      string    `json:"encoding"`
			Flags         string    `json:"flags"`
			Messages      int       `json:"messages"`
			BaseTime      time.Time `json:"base_time"`
			Producer      uint64    `json:"producer,omitempty"`
			Epoch         uint32    `json:"epoch,omitempty"`
			FirstSequence uint64    `json:"first_sequence,omitempty"`
			SampleRate    uint32    `json:"sample_rate,omitempty"`
		}{
			f.Offset, f.Len, f.CategoryName(), f.Shard, f.Encoding.String(), f.Flags.String(), f.Count, timeOf(f.BaseTime),
			f.Producer, f.Epoch, f.FirstSequence, f.SampleRate,
		}
		if err := printLines(stdout, line); err != nil {
			return err
		}
		if err := checkFrame(f.Bytes); err != nil {
			return fmt.Errorf("%s: frame at byte %d: %w", name, f.Offset, err)
		}
	}
	return nil
}

// checkFrame checks the body and decodes every message.
func checkFrame(frame []byte) error {
	var dec record.Decoder
	if _, err := dec.Reset(frame); err != nil {
		if errors.Is(err, record.ErrEncoding) {
			_, err = record.Check(frame)
		}
		return err
	}
	var rec record.Record
	for dec.Next(&rec) {
		continue // only the error behind the last one matters
	}
	return dec.Err()
}

// readCheckpoint reads a checkpoint from its text, or from the file that has it.
func readCheckpoint(arg string) (checkpoint.Checkpoint, error) {
	b, err := os.ReadFile(arg)
	switch {
	case err != nil && strings.HasPrefix(arg, "scribe"): // of any version
		return checkpoint.Parse(arg)
	case err != nil:
		return checkpoint.Checkpoint{}, missingError("%s is neither the text of a checkpoint nor a file with one: %w", excerptOf(arg), app.WithoutPath(err))
	}
	cp, err := checkpoint.Parse(string(bytes.TrimSpace(b)))
	if err != nil {
		err = fmt.Errorf("%s: %w", arg, err)
	}
	return cp, err
}

func newInspectCheckpoint() *cobra.Command {
	return &cobra.Command{
		Use:   "checkpoint TEXT|FILE",
		Short: "Show the positions of a checkpoint",
		Example: `  scribe inspect checkpoint scribe1.AQZhY2Nlc3MBAQ...
  scribe inspect checkpoint access.checkpoint`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cp, err := readCheckpoint(args[0])
			if err != nil {
				return err
			}
			type position struct {
				Shard string `json:"shard"`
				LSN   uint64 `json:"lsn"`
				Skip  uint32 `json:"skip,omitempty"`
			}
			out := struct {
				Category   string     `json:"category"`
				CategoryID uint32     `json:"category_id"`
				Watermark  time.Time  `json:"watermark,omitzero"`
				Positions  []position `json:"positions"`
			}{Category: cp.Category, CategoryID: cp.CategoryID}
			if cp.Watermark != 0 {
				out.Watermark = timeOf(cp.Watermark)
			}
			for _, p := range cp.Positions {
				out.Positions = append(out.Positions, position{p.Shard.String(), uint64(p.LSN), p.Skip})
			}
			return printJSON(cmd.OutOrStdout(), out)
		},
	}
}
