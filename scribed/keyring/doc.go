// Package keyring has the keys with which an agent encrypts what it keeps on its host's disk: the records of the spool, and dead letters.
//
//	k, err := keyring.Open(keyring.Config{Dir: dir, FS: fs, Wrapper: encryption.KeyFile{Path: path}})
//	k.BeginRun(number)
//	key, err := k.WritingKey("payments")
//	stored = key.AppendEncrypted(stored, frame, bound)
//	frame, err = k.Decrypt("payments", stored, bound)
//
// A process makes a key of its own for each category that it writes, so nonces, which are random, need to be unique only among what one process
// writes, also if the folder is copied and both copies are used. A key lies in a file of a folder, wrapped by a key that is not on this
// disk: an [encryption.Wrapper] has that one. The format is in docs/format/spool.md.
//
// Keys are of runs: what a process wrote has a number (of a segment, of a file), and the keys of a run are for the numbers from that
// with which it began. [Keyring.Prune] removes those that nothing needs any more.
package keyring
