// Package program runs the scribe program for the tests of the whole system: it builds it once, starts it as processes, ends them
// in every way that there is, and looks at them from outside.
//
//	func TestMain(m *testing.M) { os.Exit(program.Main(m)) }
//
//	up := program.Serve(t, nil, "up", "--data", dir, "--listen", "127.0.0.1:0") // returns when it is ready
//	program.OK(t, stdin, "produce", "access", "--server", up.URL)
//	up.Kill()
//
// Every process ends with the test that started it, at the latest, and on Linux with the test binary, whatever ended that one; what else a
// test leaves behind, it has undone then by Undo.
// The log of a process goes to the log of a test that failed. Only tests may import this package.
package program
