// Package planted has tests that fail on purpose, each in another way. They are built only with the tag planted. The tests of
// tools/citest run them to prove which failures CI treats as flaky, and which tests it never runs again.
package planted
