// Package access is a process's copy of who may do what: tokens, grants, and the keys of tickets. It follows the control plane's
// watch, so that a check asks nobody, and keeps its last good state in a file, so that a process that starts while the control
// plane is unavailable decides by that state.
//
// A [View] has the copy; View.Set returns the newest [Set], which never changes and decides without a lock or an allocation. A set
// without any token or grant is open: everybody may do everything. Any other is closed: what no rule allows is denied, except for
// members of the cell. Until the first set is known everything is denied ([View.Known]).
//
// Damage denies. A record that can't be decoded takes the place of the former one: a token proves nothing, a principal has no
// rights, a role gives none. It is counted and logged, and does not concern others.
//
// [Set.SignTicket] and [Set.CheckTicket] make and check the tickets with which read streams let a reader fetch a payload (docs/adr/0063-grants-and-tickets.md).
// docs/format/access.md describes the records, the file, the text of tokens, and tickets.
package access
