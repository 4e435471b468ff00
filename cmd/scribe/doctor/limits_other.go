//go:build !unix

package doctor

import "errors"

// lockHolder knows nothing here: the start of the process says it.
func lockHolder(string) (pid int, held bool) { return 0, false }

func readLimits() (Limits, error) { return Limits{}, errors.New("this system does not tell") }
