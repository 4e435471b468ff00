// Package scribev1 is the protocol between Scribe's processes and clients: generated code, and what is asked of its messages in several places.
package scribev1

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// OneLog reports whether each logical shard of a category has one log, that of writer slot 0: with exactly_once because sequences are
// checked in it, with a bound one because its order is the readers'.
func (x *Category) OneLog() bool {
	return x.GetDelivery() == Delivery_DELIVERY_EXACTLY_ONCE || x.GetRepeatable() == Repeatability_REPEATABILITY_BOUND
}

// HasOneOrder reports whether all streams of a category send what they send in the same order.
func (x *Category) HasOneOrder() bool {
	return x.GetRepeatable() == Repeatability_REPEATABILITY_BOUND || x.IsSequenced()
}

// ShardFamily is the modulus of the numbers of logical shards that come from one by splits: they are equal in it. No group has more
// buckets, so all of them are in the same one.
const ShardFamily = 1024

// IsSplit reports whether logical shards of a category were split: messages of a key may be in several, in the order of their persisted
// times.
func (x *Category) IsSplit() bool { return len(x.GetLineage()) > 0 }

// KeepsOrder reports whether streams of a category send in the order of persisted times whatever their window.
func (x *Category) KeepsOrder() bool { return x.HasOneOrder() || x.IsSplit() }

// HasShard reports whether a category has, or had, a logical shard.
func (x *Category) HasShard(shard uint32) bool {
	if shard < max(x.GetShards(), 1) {
		return true
	}
	for _, l := range x.GetLineage() {
		if l.GetShard() == shard {
			return true
		}
	}
	return false
}

// IsSequenced reports whether streams of a category read its sequenced log.
func (x *Category) IsSequenced() bool {
	return x.GetRepeatable() == Repeatability_REPEATABILITY_SEQUENCED
}

// Enum is an enumeration of the protocol.
type Enum interface {
	~int32
	protoreflect.Enum
	fmt.Stringer
}

// EnumName returns the name of a value as users write it: in lower case, without the prefix that all values of the enumeration share.
func EnumName[E Enum](v E) string {
	prefix := strings.TrimSuffix(E(0).String(), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(v.String(), prefix))
}

// renamedRoles are the roles whose names in the protocol are former ones.
var renamedRoles = map[Role]string{Role_ROLE_COLLECTOR: "retention", Role_ROLE_GATEWAY: "sqlserver"}

// RoleNames returns the names that users give to roles.
func RoleNames(roles []Role) []string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = cmp.Or(renamedRoles[r], EnumName(r))
	}
	return names
}

// ParseEnum returns the value with the name.
func ParseEnum[E Enum](name string) (E, error) {
	var names []string
	values := E(0).Descriptor().Values()
	for i := 1; i < values.Len(); i++ { // the first is that nothing was specified
		v := E(values.Get(i).Number())
		if names = append(names, EnumName(v)); EnumName(v) == name {
			return v, nil
		}
	}
	last := len(names) - 1
	return 0, fmt.Errorf("want %s or %s", strings.Join(names[:last], ", "), names[last])
}
