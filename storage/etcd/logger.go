package etcd

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewZapLogger returns a logger for packages of etcd that writes to logger, at the levels that levelOf gives to theirs; nil discards
// everything. Their debugging is left out: it is a line for each write.
func NewZapLogger(logger *slog.Logger, levelOf func(zapcore.Level) slog.Level) *zap.Logger {
	if logger == nil {
		return zap.NewNop()
	}
	return zap.New(&slogCore{logger: logger, levelOf: levelOf})
}

// clientLevel is low: a client logs each repetition as a warning, and who calls reports what fails.
func clientLevel(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// slogCore is a zapcore.Core that writes to a slog.Logger.
type slogCore struct {
	logger  *slog.Logger
	levelOf func(zapcore.Level) slog.Level
}

// Enabled implements zapcore.LevelEnabler.
func (c *slogCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.InfoLevel && c.logger.Enabled(context.Background(), c.levelOf(l))
}

// With implements zapcore.Core.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{logger: slog.New(c.logger.Handler().WithAttrs(attributesOf(fields))), levelOf: c.levelOf}
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
	c.logger.LogAttrs(context.Background(), c.levelOf(e.Level), "etcd: "+e.Message, attributesOf(fields)...) //nolint:sloglint // the text is etcd's
	return nil
}

// Sync implements zapcore.Core.
func (*slogCore) Sync() error { return nil }

func attributesOf(fields []zapcore.Field) []slog.Attr {
	values := zapcore.NewMapObjectEncoder()
	attributes := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		f.AddTo(values)
		if v, ok := values.Fields[f.Key]; ok {
			attributes = append(attributes, slog.Any(f.Key, v))
		}
	}
	return attributes
}
