// Package schema says how a category's messages become the columns of Arrow record batches.
//
// A [Schema] is one version: the format of the messages, and [Field]s with name, [Type], path into the message and default. It is written
// as YAML or JSON ([Parse], [Schema.Marshal], [Schema.YAML]); a type has a text of its own ([ParseType], [Type.Text]).
//
//	format: json
//	fields:
//	  - {name: ts, type: timestamp, nullable: false, aliases: [time]}
//	  - {name: status, type: int32}
//	  - {name: agent, type: dictionary, path: request.headers."user-agent"}
//	  - {name: zones, type: "map<struct<requests int64, discarded int64>>"}
//
// [Schema.Validate] reports everything that is wrong at once, as an [Error] with lines and near names.
//
// # Versions
//
// A [History] is all versions of a category, in the one text that a category keeps as its schema. A new version must be compatible with the
// newest one, so that whatever is stored reads under it as before ([Compare]); anything else takes force. A [Cache] keeps what was read.
//
// A category without a schema has [Opaque], version 0: its messages are bytes.
package schema
