package writeproxy

import (
	"errors"
	"fmt"
)

var errNoBatchers = errors.New("no batcher is a member of the cell: writes wait, and fail")

// Err returns why no write can succeed now: there are no batchers, or none answers. It is nil while one may.
func (p *Proxy) Err() error {
	n := len(p.deps.Batchers())
	if n == 0 {
		return errNoBatchers
	}
	p.fleet.currentTable() // without requests nobody else would notice that batchers are back
	if open, _ := p.fleet.countDegraded(); open >= n {
		return fmt.Errorf("none of the %d batchers answers", n)
	}
	return nil
}
