package buffers

import "testing"

func TestClasses(t *testing.T) {
	for n := range 1 << 17 {
		size := sizeOf(classOf(n))
		if size < n || n > 1<<minBits && (size-n)*4 > size {
			t.Fatalf("%d bytes get a buffer of %d", n, size)
		}
		if c := classOf(n); n > 1<<minBits && sizeOf(c-1) >= n {
			t.Fatalf("%d bytes fit the class below, of %d", n, sizeOf(c-1))
		}
	}
	if c := classOf(1 << maxBits); c != classes-1 || sizeOf(c) != 1<<maxBits {
		t.Errorf("the last class is %d of %d with %d bytes", c, classes, sizeOf(c))
	}
}

func TestPool(t *testing.T) {
	var p Pool
	p.Put(nil)
	for _, n := range []int{0, 1, 1000, 1 << 20, 1<<maxBits + 1} {
		b := p.Get(n)
		if len(b.B) != n {
			t.Errorf("%d bytes instead of %d", len(b.B), n)
		}
		p.Put(b)
		if again := p.Get(n); len(again.B) != n {
			t.Errorf("%d bytes instead of %d the second time", len(again.B), n)
		}
	}
}
