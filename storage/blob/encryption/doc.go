// Package encryption encrypts the blocks of blobs, with a key for each category (docs/format/encryption.md).
//
//	keys, err := encryption.NewKeys(encryption.Config{Store: store, Wrapper: encryption.KeyFile{Path: path}})
//	key, err := keys.WritingKey(category.GetId(), category.GetKeyGeneration())
//	stored = key.AppendBlock(nil, codec, compressed, rawLen)
//	compressed, err = keys.DecryptBlock(ctx, codec.Encrypted(), stored, rawLen)
//
// A category's keys lie in the blob store beside its payloads, each encrypted ("wrapped") with a key that is not there: a [Wrapper] has that
// one, as a [KeyFile] or a service. So whoever has the store alone reads nothing; lost metadata can be recovered as ever; and once a
// category's keys are deleted, nobody reads its payloads any more.
//
//   - block.go: an encrypted block.
//   - object.go: a wrapped key in the store; keys.go: the keys that a process has in memory.
//   - keyfile.go: the file with the keys that wrap; rewrap.go: changing them.
package encryption
