package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"scribe/internal/base/units"
)

// confirmName asks on a terminal for a name before something is done that can't be undone. Anything else than the name is an error.
func confirmName(ctx context.Context, in io.Reader, out io.Writer, doing, name string) error {
	fmt.Fprintf(out, "This will %s. It can't be undone. Type %s to go on: ", doing, name)
	answers := make(chan string, 1)
	go func() { // a read of a terminal can't be ended; the process ends soon
		line, _ := bufio.NewReader(in).ReadString('\n')
		answers <- line
	}()
	select {
	case line := <-answers:
		if strings.TrimSpace(line) == name {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(out)
	}
	return fmt.Errorf("%s: not confirmed, nothing was done", doing)
}

// sizeWithUnit is a flag for a size that needs its unit: of a bare number nobody knows whether bytes or megabytes were meant.
type sizeWithUnit units.Bytes

// String implements pflag.Value.
func (s *sizeWithUnit) String() string { return units.Bytes(*s).String() }

// Type implements pflag.Value.
func (s *sizeWithUnit) Type() string { return (*units.Bytes)(s).Type() }

// Set implements pflag.Value.
func (s *sizeWithUnit) Set(text string) error {
	if bare := strings.TrimSpace(text); strings.Trim(bare, "0123456789.") == "" && strings.Trim(bare, "0.") != "" {
		return fmt.Errorf("%q has no unit: write %sMiB, %sKiB or %sB", text, bare, bare, bare)
	}
	return (*units.Bytes)(s).Set(text)
}
