package etcd

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewZapLogger returns a logger for etcd's packages that writes what is at least of a level to ours. Errors of etcd are warnings here: what
// an operator must act on is reported by who uses etcd.
func NewZapLogger(log *slog.Logger, least slog.Level) *zap.Logger { return zapLogger(log, least) }

func zapLogger(log *slog.Logger, least slog.Level) *zap.Logger {
	return zap.New(&slogCore{log: log, least: least})
}

// slogCore is a zapcore.Core that writes to a slog.Logger.
type slogCore struct {
	log   *slog.Logger
	least slog.Level
}

// Enabled implements zapcore.LevelEnabler.
func (c *slogCore) Enabled(l zapcore.Level) bool { return slogLevel(l) >= c.least }

// With implements zapcore.Core.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: c.log.With(slogArgs(fields)...), least: c.least}
}

// Check implements zapcore.Core.
func (c *slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), slogLevel(e.Level), "etcd: "+e.Message, slogArgs(fields)...) //nolint:sloglint // etcd's messages are constants
	return nil
}

// Sync implements zapcore.Core.
func (c *slogCore) Sync() error { return nil }

func slogArgs(fields []zapcore.Field) []any {
	values := zapcore.NewMapObjectEncoder()
	args := make([]any, 0, 2*len(fields))
	for _, f := range fields {
		f.AddTo(values)
		if v, ok := values.Fields[f.Key]; ok {
			args = append(args, f.Key, v)
		}
	}
	return args
}

func slogLevel(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.WarnLevel:
		return slog.LevelWarn
	case l == zapcore.InfoLevel:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}
