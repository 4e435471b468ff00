package sqlserver

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/listing"
	"scribe/columnar/sql"
	"scribe/consumer/columns"
)

// openListing answers SHOW TABLES and DESCRIBE with what the caller of ctx may know of.
func (g *Server) openListing(ctx context.Context, req *Request, show *sql.Show) (rowSource, error) {
	if req.Follow {
		return nil, errorf(KindInvalid, "%s can't follow: ask again", show)
	}
	tables := g.tables(ctx)
	var rows arrow.RecordBatch
	if show.Category == "" {
		names := make([]string, len(tables))
		for i, t := range tables {
			names[i] = t.name
		}
		rows = listing.TableRows(names)
	}
	for _, t := range tables {
		if t.name == show.Category {
			columns, err := t.columns()
			if err != nil {
				return nil, err
			}
			rows = listing.ColumnRows(columns)
		}
	}
	if rows == nil {
		return nil, g.unknownCategory(ctx, show.Category)
	}
	if req.Limit >= 0 && req.Limit < rows.NumRows() {
		whole := rows
		rows = whole.NewSlice(0, req.Limit)
		whole.Release()
	}
	return &listed{schema: rows.Schema(), rows: rows, category: show.Category}, nil
}

// listed is an answer of one batch that is there already.
type listed struct {
	schema   *arrow.Schema
	rows     arrow.RecordBatch // nil after it was handed out
	category string
}

// Schema implements rowSource.
func (l *listed) Schema() *arrow.Schema { return l.schema }

// Next implements rowSource.
func (l *listed) Next() (arrow.RecordBatch, error) {
	if l.rows == nil {
		return nil, io.EOF
	}
	rows := l.rows
	l.rows = nil
	return rows, nil
}

// Category implements rowSource.
func (l *listed) Category() string { return l.category }

// Stats implements rowSource.
func (*listed) Stats() columns.Stats { return columns.Stats{} }

// Checkpoint implements rowSource: there is nothing to go on with.
func (*listed) Checkpoint() string { return "" }

// PausedAt implements rowSource.
func (*listed) PausedAt() string { return "" }

// Close implements rowSource.
func (l *listed) Close() error {
	if l.rows != nil {
		l.rows.Release()
	}
	return nil
}
