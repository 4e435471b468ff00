// Package planted has tests that fail on purpose, each in another way. They are built with the tag planted alone; tools/citest proves
// with them which failures CI takes for flaky, and which it never runs again.
package planted
